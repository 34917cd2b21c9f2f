"""When an ask is looked at, who may query, and when."""

import math
from collections import Counter
from itertools import pairwise

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payclient.lifecycle import Record
from payclient.tracking.asks import DueTimes
from payclient.tracking.followup import NEVER, Followed, Scheduled
from payclient.tracking.rate_limit import Backoff, RateLimit, RequestLine, RequestLines


def ask(name: str, created_at: float = 0.0, asked_at: float = NEVER) -> Followed:
    made = Followed(Record(client_transaction_id=name), created_at, created_at + 300)
    made.queried_at = asked_at
    return made


def name_of(item: Scheduled | None) -> str:
    assert isinstance(item, Followed)
    return item.record.client_transaction_id


@pytest.mark.parametrize(
    "least",
    [
        {"NOTIFIED": 40, "FINAL": 10, "ROUTINE": 10}, {"FINAL": 20, "FINAL_FORMS": 4, "ROUTINE": 0},
        {"NOTIFIED": 40, "FINAL": 8, "FINAL_FORMS": 4, "ROUTINE": 8, "RECHECKED": 4},
    ],
    ids=["hints", "left", "all"],
)  # fmt: skip
def test_no_line_starves(least: dict[str, int]) -> None:
    """However many wait in the others; the notified go first in most lines, forms that were left now and then."""
    lines = RequestLines(300.0)
    for number in range(400):
        for line in least:
            lines.put(ask(f"{line}-{number}"), getattr(RequestLine, line))
    served = Counter(name_of(lines.pop(200.0, ranked=False)).partition("-")[0] for _ in range(80))
    assert all(served[line] >= count for line, count in least.items())


def test_requests_before_their_turn_put_off_the_next_one_by_two_turns_at_most() -> None:
    """Each counts until then, and the first after a turn always: forms that come back in a crowd starve nobody."""
    rate = RateLimit(30.0)
    rate.note_request(0.0)
    for when, ready in ((0.5, 4.0), (0.6, 6.0), (0.7, 6.0), (0.8, 6.0)):
        rate.note_request(when, early=True)
        assert rate.ready_at() == ready
    rate.note_request(6.0)
    rate.note_request(6.1, early=True)
    assert rate.ready_at() == 10.0


def test_a_caller_has_every_other_turn_and_every_turn_where_no_more_may_be_queried() -> None:
    """So that a query that needs a second request does not wait for one that waits for it."""
    lines = RequestLines(300.0)
    for number in range(20):
        for line in (RequestLine.CALLERS, RequestLine.FINAL):
            lines.put(ask(f"{line}-{number}"), line)
    served = [int(name_of(lines.pop(200.0, ranked=False))[0]) for _ in range(10)]
    assert served in (
        [RequestLine.CALLERS, RequestLine.FINAL] * 5,
        [RequestLine.FINAL, RequestLine.CALLERS] * 5,
    )
    assert {name_of(lines.pop(200.0, ranked=False, callers_only=True))[0] for _ in range(15)} == {
        str(RequestLine.CALLERS)
    }
    assert lines.pop(200.0, ranked=False, callers_only=True) is None
    assert (lines.waiting[RequestLine.CALLERS], lines.waiting[RequestLine.FINAL]) == (0, 15)


def test_it_waits_once_and_in_the_better_line() -> None:
    """A notification overtakes the routine; a routine look changes nothing."""
    lines = RequestLines(300.0)
    other, one = ask("other"), ask("one")
    lines.put(other, RequestLine.ROUTINE)
    lines.put(one, RequestLine.ROUTINE)
    lines.put(one, RequestLine.NOTIFIED)
    lines.put(one, RequestLine.ROUTINE)
    assert lines.pop(1.0, ranked=False) is one
    assert lines.pop(1.0, ranked=False) is other
    assert not any(lines.waiting.values())


def test_ranked_the_neediest_comes_first() -> None:
    """Not who waits longest: who has just been asked for, or is too young, needs it less."""
    lines = RequestLines(300.0)
    young, asked, needy = ask("young", 95.0), ask("asked", 60.0, asked_at=98.0), ask("needy", 60.0)
    for each in (young, asked, needy):
        lines.put(each, RequestLine.ROUTINE)
    assert lines.lag(needy, 100.0) > lines.lag(asked, 100.0) > 0
    assert lines.pop(100.0, ranked=True) is needy
    assert {name_of(lines.pop(100.0, ranked=True)), name_of(lines.pop(100.0, ranked=True))} == {
        "young",
        "asked",
    }


def test_what_moved_to_a_better_line_is_not_ranked_in_the_routine() -> None:
    """Its place there is stale: it has its turn among the notified."""
    lines = RequestLines(300.0)
    asked, needy = ask("asked", 60.0, asked_at=98.0), ask("needy", 60.0)
    for each in (asked, needy):
        lines.put(each, RequestLine.ROUTINE)
    lines.put(needy, RequestLine.NOTIFIED)
    assert [lines.pop(100.0, ranked=True) for _ in range(3)] == [needy, asked, None]


def test_the_rate_is_kept() -> None:
    """30 a minute over an hour, however late the timer is; never two at once."""
    limit, now, times = RateLimit(30.0), 0.0, []
    while now < 3600.0:
        times.append(now)
        limit.note_request(now)
        now = max(now, limit.ready_at()) + 0.05
    assert 1750 <= len(times) <= 1801
    assert min(b - a for a, b in pairwise(times)) >= 1.8


def test_a_429_pauses_and_slows_what_follows() -> None:
    """Once for a round of them; a few good answers end it, and no pause is for ever."""
    limit = RateLimit(None)
    assert not limit.binds
    for _ in range(32):
        limit.rate_limited(10.0, 9.0, 3.0)
    assert limit.is_paused(12.9)
    assert not limit.is_paused(13.0)
    assert limit.binds
    limit.note_request(13.0)
    assert 13.0 < limit.ready_at() <= 13.2
    for _ in range(5):
        limit.note_success(9.5)
    assert limit.binds
    for _ in range(5):
        limit.note_success(13.0)
    assert not limit.binds
    limit.rate_limited(20.0, 19.0, 1e9)
    assert limit.ready_at() == pytest.approx(20.0 + 60.0)
    limit = RateLimit(None)
    limit.rate_limited(0.0, 0.0, 0.0)
    assert limit.ready_at() == limit.gap > 0.0


def test_a_second_429_slows_down_further_however_fast_it_was_of_late() -> None:
    """The rate that was measured is from before the first one."""
    limit = RateLimit(None, Backoff(measures_rate=True))
    for number in range(20):
        limit.note_request(number * 0.1)
    gaps = []
    for when in (2.0, 3.0):
        limit.rate_limited(when, when - 0.1, 0.0)
        gaps.append(limit.gap)
    assert gaps == pytest.approx([0.2, 0.4])


def test_a_429_slows_down_what_keeps_a_known_rate() -> None:
    """From the seconds between two requests that the rate has, and not from those of a service without one."""
    limit = RateLimit(30)
    limit.rate_limited(10.0, 9.0, None)
    assert (limit.gap, limit.ready_at()) == (4.0, 14.0)
    for _ in range(2):
        limit.note_success(11.0)
    assert limit.gap == 2.0


# --- The order of what is due


@attrs.define(eq=False)
class Named(Scheduled):
    """An item of this name."""

    name: str


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([0.125, 0.00125, 0.3]))
@example([0.9], 0.3)  # three slots of 0.3 end before 0.9
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


def test_a_timer_that_fires_a_little_late_lowers_no_rate() -> None:
    """The gap counts from when the request was due, unless that was long ago."""
    rate = RateLimit(60)
    for now, ready_at in ((0.0, 1.0), (1.05, 2.0), (2.5, 3.5)):
        rate.note_request(now)
        assert rate.ready_at() == ready_at


def test_the_last_plan_counts() -> None:
    """Planned anew, earlier or later or for the same time, an entry comes out once."""
    planned, one = DueTimes(0.125), Named("one")
    for when in (5.0, 1.0, 1.0, 3.0):
        planned.put(one, when)
    assert planned.pop(2.0) is None
    assert planned.pop(3.0) is one
    assert planned.pop(10.0) is None


def test_a_flood_of_plans_takes_no_room() -> None:
    """A sale that waits for its turn by the rate is planned by each forged notification, for its expiry."""
    planned, one = DueTimes(0.125), Named("one")
    for _ in range(1000):
        planned.put(one, 300.0)
    assert one.slot is not None
    assert len(one.slot) == 1
    assert planned.pop(300.0) is one


def test_a_shorter_pause_ends_no_longer_one() -> None:
    """An answer to a request that was made before may say less than the service's last word."""
    rate = RateLimit(None)
    rate.pause(0.0, 30.0)
    rate.pause(1.0, 2.0)
    assert rate.is_paused(29.0)
    assert not rate.is_paused(30.0)
