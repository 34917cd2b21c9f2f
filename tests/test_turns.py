"""Who may ask, and when."""

from collections import Counter
from itertools import pairwise

import pytest

from payclient.following.entries import NEVER, Entry
from payclient.following.turns import LAST, LONGEST_PAUSE, NOTIFIED, ROUTINE, Pace, Turns
from payclient.lifecycle import Record


def entry(name: str, created_at: float = 0.0, asked_at: float = NEVER) -> Entry:
    made = Entry(Record(client_transaction_id=name, created_at=created_at, expires_at=created_at + 300), 0.0)
    made.asked_at = asked_at
    return made


def name_of(entry: Entry | None) -> str:
    assert entry is not None
    return entry.record.client_transaction_id


def test_no_line_starves() -> None:
    """However many wait in the others; the notified go first in most turns."""
    turns = Turns(300.0)
    for number in range(400):
        for line in (NOTIFIED, LAST, ROUTINE):
            turns.put(entry(f"{line}-{number}"), line)
    served = Counter(name_of(turns.pop(200.0, rank=False))[0] for _ in range(80))
    assert served["1"] >= 40
    assert min(served["2"], served["3"]) >= 10


def test_an_empty_line_passes_its_turn_on() -> None:
    """A lonely routine is served in every turn; nobody waiting is nobody."""
    turns = Turns(300.0)
    for number in range(8):
        turns.put(entry(str(number)), ROUTINE)
    assert [name_of(turns.pop(9.0, rank=False)) for _ in range(8)] == list("01234567")
    assert turns.pop(9.0, rank=False) is None
    assert not turns


def test_it_waits_once_and_in_the_better_line() -> None:
    """A notification overtakes the routine; a routine look changes nothing."""
    turns = Turns(300.0)
    other, one = entry("other"), entry("one")
    turns.put(other, ROUTINE)
    turns.put(one, ROUTINE)
    turns.put(one, NOTIFIED)
    turns.put(one, ROUTINE)
    assert turns.pop(1.0, rank=False) is one
    assert turns.pop(1.0, rank=False) is other
    assert not turns


def test_ranked_the_neediest_comes_first() -> None:
    """Not who waits longest: who has just been asked for, or is too young, needs it less."""
    turns = Turns(300.0)
    young, asked, needy = entry("young", 95.0), entry("asked", 60.0, asked_at=98.0), entry("needy", 60.0)
    for each in (young, asked, needy):
        turns.put(each, ROUTINE)
    assert turns.need(needy, 100.0) > turns.need(asked, 100.0) > 0
    assert turns.pop(100.0, rank=True) is needy
    assert {name_of(turns.pop(100.0, rank=True)), name_of(turns.pop(100.0, rank=True))} == {"young", "asked"}


def test_the_rate_is_kept() -> None:
    """30 a minute over an hour, however late the timer is; never two at once."""
    pace, now, times = Pace(30.0), 0.0, []
    while now < 3600.0:
        times.append(now)
        pace.spend(now)
        now = max(now, pace.ready_at()) + 0.05
    assert 1750 <= len(times) <= 1801
    assert min(b - a for a, b in pairwise(times)) >= 1.8


def test_a_429_pauses_and_slows_what_follows() -> None:
    """Once for a round of them; a few good answers end it, and no pause is for ever."""
    pace = Pace(None)
    assert not pace.binds
    for _ in range(32):
        pace.rate_limited(10.0, 9.0, 3.0)
    assert pace.paused(12.9)
    assert not pace.paused(13.0)
    assert pace.binds
    pace.spend(13.0)
    assert 13.0 < pace.ready_at() <= 13.2
    pace.answered(9.5)
    assert pace.binds
    for _ in range(5):
        pace.answered(13.0)
    assert not pace.binds
    pace.rate_limited(20.0, 19.0, 1e9)
    assert pace.ready_at() == pytest.approx(20.0 + LONGEST_PAUSE)
