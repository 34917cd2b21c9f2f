"""When the next request may be made (the rate, and 429s), and whose it is. Pure."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

import attrs

from payclient.schedule import expected_lag
from payclient.tracking.followup import Followed, Scheduled

#: Seconds between requests after the first 429 where no rate is known.
FIRST_SLOWDOWN = 0.1

#: The pause after a 429 without a `Retry-After` where no rate is known, in units of the seconds between requests, and
#: at most, in seconds.
PAUSE, MOST_PAUSE = 10.0, 10.0

#: Requests over which the present rate is measured.
MEASURED = 20

#: Requests in a row that did not wait for their turn, and put off the next turn by a gap each.
MOST_EARLY = 2


@attrs.frozen
class Backoff:
    """How requests become slower after a 429, and faster again."""

    #: Seconds between requests at the slowest.
    most_slowdown: float = 10.0
    #: The part of a slowdown that one success leaves.
    relief: float = 0.25
    #: The longest pause in seconds that a `Retry-After` may ask for.
    longest_pause: float = 60.0
    #: Seconds of pause after a 429 without a `Retry-After`; None: by the slowdown.
    pause: float | None = None
    #: Whether a 429 halves the rate that was measured of late, not the rate that is allowed.
    measures_rate: bool = False


class RateLimit:
    """Says when the next request may be made. Times are monotonic seconds; `per_minute` None: no limit is known."""

    def __init__(self, per_minute: float | None, backoff: Backoff = Backoff()) -> None:
        self._backoff = backoff
        #: Seconds between requests by the known limit; 0: none is known.
        self._known_gap = 60.0 / per_minute if per_minute else 0.0
        #: Seconds between requests that 429s made necessary; 0: none came since the last successes.
        self._slowdown = 0.0
        #: When the slowdown was last raised. A 429 to a request that was made before says nothing new.
        self._slowed_at = -math.inf
        #: The next request is made at the later of the two: a gap after the last one, and the end of a pause.
        self._next_at = self._paused_until = -math.inf
        #: When the last requests were made; empty unless the backoff measures the rate.
        self._recent: deque[float] = deque(maxlen=MEASURED)
        #: Requests in a row, up to the latest, that did not wait for their turn.
        self._early = 0

    @property
    def gap(self) -> float:
        """Seconds from one request to the next: the known limit's, or the slowdown's."""
        return max(self._known_gap, self._slowdown)

    @property
    def longest_turn(self) -> float:
        """Seconds in which a caller's turn comes: after another's, and the gap of a slowdown that has ended."""
        return 2 * self.gap + self._backoff.most_slowdown

    @property
    def binds(self) -> bool:
        """Whether requests are rationed at all, so that their order matters."""
        return self.gap > 0.0

    def ready_at(self) -> float:
        """Return when the next request may be made."""
        return max(self._next_at, self._paused_until)

    def is_paused(self, now: float) -> bool:
        """Return whether the service asked for a pause that is not over."""
        return now < self._paused_until

    def note_request(self, now: float, *, early: bool = False) -> None:
        """Count a request that is made now, or `early`, before its turn: the next one is ready a gap later.

        Only the first few early requests in a row count: else nothing would have a turn any more.
        """
        self._early = self._early + 1 if early else 0
        if self._early <= MOST_EARLY:
            self._count(now)

    def _count(self, now: float) -> None:
        due = self.ready_at()
        # A timer that fires a little late must not lower the rate: the gap then counts from when the request was due.
        is_little_late = 0.0 < now - due <= self.gap * 0.1
        self._next_at = (due if is_little_late else max(now, self._next_at)) + self.gap
        if self._backoff.measures_rate:
            self._recent.append(now)

    def pause(self, now: float, seconds: float) -> None:
        """Make no request for so many seconds."""
        seconds = min(seconds, self._backoff.longest_pause)
        self._paused_until = max(self._paused_until, now + seconds)

    def rate_limited(self, now: float, made_at: float, retry_after: float | None) -> None:
        """Slow down and pause after a 429.

        Only the first 429 of a round of requests doubles the slowdown. A later one pauses by its own `Retry-After`.
        """
        pause, backoff = retry_after, self._backoff
        if made_at > self._slowed_at:  # the first of its round
            self._slowed_at = now
            present_gap = self.gap
            if backoff.measures_rate and self._recent:
                present_gap = max(present_gap, (now - self._recent[0]) / len(self._recent))
            self._slowdown = min(max(2 * present_gap, FIRST_SLOWDOWN), backoff.most_slowdown)
            self._next_at = max(self._next_at, now + self._slowdown)
            if pause is None:
                pause = backoff.pause
            if pause is None:
                pause = self._slowdown if self._known_gap else min(PAUSE * self._slowdown, MOST_PAUSE)
        if pause is not None:
            self.pause(now, pause)

    def note_success(self, made_at: float) -> None:
        """Speed up after a success, unless its request was made before the last 429."""
        if made_at > self._slowed_at and self._slowdown:
            self._slowdown *= self._backoff.relief
            if self._slowdown < FIRST_SLOWDOWN / 10:
                self._slowdown = 0.0


class RequestLine:
    """The lines in which requests wait, the best first. No enum: CPython 3.11 takes ten times as long to find a member.

    - `CALLERS`: Of callers, who make the request themselves.
    - `NOTIFIED`: Of notified asks, and of confirmations.
    - `FINAL`, `FINAL_FORMS`: Of pushes past their expiry, or checked by hand; of such forms: customers leave many.
    - `ROUTINE`: Of all other open asks.
    - `RECHECKED`: Of decided asks that are queried once more.
    """

    CALLERS, NOTIFIED, FINAL, FINAL_FORMS, ROUTINE, RECHECKED = ALL = range(1, 7)

    #: The line that goes first in each turn: the notified are seldom passed over, never twice in a row; no line
    #: starves. The number of turns is odd: callers go first in every other turn, before each of the lines at times.
    FIRST = (
        *(NOTIFIED, NOTIFIED, NOTIFIED, FINAL, NOTIFIED, FINAL_FORMS, NOTIFIED, ROUTINE),
        *(NOTIFIED, NOTIFIED, NOTIFIED, FINAL, NOTIFIED, NOTIFIED, ROUTINE, NOTIFIED, RECHECKED),
    )


#: The number of asks of the routine, those that waited longest, among which the one with most lag is chosen.
COMPARED = 250


class RequestLines:
    """The asks that are due and wait for a request. `window` is the sale window in seconds.

    An item that was dropped, or moved to a better line, stays in its deque and is passed over when it comes out. A
    table from which it could be deleted would stall the loop whenever it grows with a crowd.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._lines: dict[int, deque[Scheduled]] = {line: deque() for line in RequestLine.ALL}
        #: How many wait in each line.
        self.waiting: dict[int, int] = dict.fromkeys(RequestLine.ALL, 0)
        self._turn = 0

    def put(self, item: Scheduled, line: int) -> None:
        """Put the item in a line. An item that waits in another line goes to the better of the two."""
        if not item.line or line < item.line:
            self.drop(item)
            item.line = line
            self.waiting[line] += 1
            self._lines[line].append(item)

    def drop(self, item: Scheduled) -> None:
        """Take the item out of its line. Its deque keeps it until it comes out there."""
        if item.line:
            self.waiting[item.line] -= 1
            item.line = 0

    def give_turn_back(self) -> None:
        """Give the turn of an item that was removed, and needs no request, to the next of its line."""
        self._turn -= 1

    def pop(self, now: float, *, ranked: bool, callers_only: bool = False) -> Scheduled | None:
        """Remove and return the next item; None if none waits. With `ranked` the routine goes by lag, else in turn."""
        self._turn += 1
        first = RequestLine.FIRST[self._turn % len(RequestLine.FIRST)]
        rest = (RequestLine.FINAL, RequestLine.FINAL_FORMS, RequestLine.RECHECKED)
        by_turn = (RequestLine.ROUTINE, *rest) if self._turn % 4 else (*rest, RequestLine.ROUTINE)
        order = () if callers_only else (first, *by_turn, RequestLine.NOTIFIED)
        for number in (RequestLine.CALLERS, *order) if self._turn % 2 else (*order, RequestLine.CALLERS):
            line = self._lines[number]
            while line and line[0].line != number:
                line.popleft()
            if line:
                item = line[0]
                if ranked and number == RequestLine.ROUTINE:
                    compared = [each for each in islice(line, COMPARED) if each.line == number]
                    item = max(compared, key=lambda item: self.lag(item, now))
                line.remove(item)
                self.drop(item)
                return item
        return None

    def lag(self, item: Scheduled, now: float) -> float:
        """Return for how many seconds, on average, an answer given since the latest query has waited to be seen."""
        if not isinstance(item, Followed):
            return 0.0
        age = item.age(now)
        age_at_query = max(age - (now - item.queried_at), 0.0)
        return expected_lag(age_at_query, age, self._window)
