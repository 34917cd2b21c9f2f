"""The order of what is due."""

import math

from hypothesis import given
from hypothesis import strategies as st

from payclient.tracking.followup import Scheduled
from payclient.tracking.rate_limit import DueTimes


class Named(Scheduled):
    """An item of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([0.125, 0.00125, 0.3]))
def test_nothing_comes_early_or_a_slot_late(times: list[float], width: float) -> None:
    """Every entry comes out once, in the order of the slots."""
    planned, due = DueTimes(width), {}
    for number, when in enumerate(times):
        due[str(number)] = when
        planned.put(Named(str(number)), when)
    out = []
    while (now := planned.first()) < math.inf:
        while (found := planned.pop(now)) is not None:
            assert isinstance(found, Named)
            name = found.name
            out.append(name)
            assert due[name] <= now <= due[name] + 2 * width
    assert sorted(out) == sorted(due)


def test_the_last_plan_counts() -> None:
    """Planned anew, earlier or later or for the same time, an entry comes out once."""
    planned, one = DueTimes(0.125), Named("one")
    for when in (5.0, 1.0, 1.0, 3.0):
        planned.put(one, when)
    assert planned.pop(2.0) is None
    assert planned.pop(3.0) is one
    assert planned.pop(10.0) is None


def test_new_ones_are_given_out_together() -> None:
    """Once the first of them may be due, and those that were planned or looked at meanwhile no more."""
    planned, entries = DueTimes(0.125), [Named(str(number)) for number in range(4)]
    for each, soonest in zip(entries, (5.0, 4.5, 6.0, 7.0), strict=True):
        planned.put_new(each, soonest)
    planned.put(entries[2], 1.0)
    assert planned.first() == 1.0
    assert planned.pop_new(4.4) is None
    assert [planned.pop(4.4) for _ in range(2)] == [entries[2], None]
    assert planned.first() == 4.5
    assert [planned.pop_new(4.5) for _ in range(4)] == [entries[0], entries[1], entries[3], None]
    assert planned.first() == math.inf
