"""The order of what is due."""

import math

import attrs
from hypothesis import given
from hypothesis import strategies as st

from payclient.tracking.followup import Scheduled
from payclient.tracking.rate_limit import DueTimes


@attrs.define(eq=False)
class Named(Scheduled):
    """An item of this name."""

    name: str


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
