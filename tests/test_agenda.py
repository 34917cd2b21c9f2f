"""The order of what is due."""

import math

from hypothesis import given
from hypothesis import strategies as st

from payclient.following.agenda import Agenda
from payclient.following.entries import Entry
from payclient.lifecycle import Record


def entry(name: str) -> Entry:
    return Entry(Record(client_transaction_id=name), 0.0)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([0.125, 0.00125, 0.3]))
def test_nothing_comes_early_or_a_slot_late(times: list[float], width: float) -> None:
    """Every entry comes out once, in the order of the slots."""
    agenda, due = Agenda(width), {}
    for number, when in enumerate(times):
        due[str(number)] = when
        agenda.put(entry(str(number)), when)
    out = []
    while (now := agenda.first()) < math.inf:
        while (found := agenda.pop(now)) is not None:
            name = found.record.client_transaction_id
            out.append(name)
            assert due[name] <= now <= due[name] + 2 * width
    assert sorted(out) == sorted(due)


def test_the_last_plan_counts() -> None:
    """Planned anew, earlier or later or for the same time, an entry comes out once."""
    agenda, one = Agenda(0.125), entry("one")
    for when in (5.0, 1.0, 1.0, 3.0):
        agenda.put(one, when)
    assert agenda.pop(2.0) is None
    assert agenda.pop(3.0) is one
    assert agenda.pop(10.0) is None
    agenda.put(one, 4.0)
    agenda.clear()
    assert agenda.first() == math.inf


def test_new_ones_are_given_out_together() -> None:
    """Once the first of them may be due, and those that were planned or looked at meanwhile no more."""
    agenda, entries = Agenda(0.125), [entry(str(number)) for number in range(4)]
    for each, soonest in zip(entries, (5.0, 4.5, 6.0, 7.0), strict=True):
        agenda.put_new(each, soonest)
    agenda.put(entries[2], 1.0)
    assert agenda.first() == 1.0
    assert agenda.pop_new(4.4) is None
    assert [agenda.pop(4.4) for _ in range(2)] == [entries[2], None]
    assert agenda.first() == 4.5
    assert [agenda.pop_new(4.5) for _ in range(4)] == [entries[0], entries[1], entries[3], None]
    assert agenda.first() == math.inf
    agenda.put_new(entries[0], 9.0)
    agenda.clear()
    assert (agenda.first(), agenda.pop_new(10.0)) == (math.inf, None)
