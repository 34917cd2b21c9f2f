"""May a status query be made now, and for whom: the service's limits, shared out among all that are due."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from payclient.following.entries import Entry
from payclient.schedule import expected_lag

__all__: list[str] = []

#: The lines in which entries wait: notified ones, those past their expiry or asked for by hand, the routine, and
#: decided ones that were notified.
NOTIFIED, LAST, ROUTINE, LATE = 1, 2, 3, 4

#: Which line goes first in each turn: notifications are seldom passed over, never twice in a row, and no line starves.
_TURNS = (
    (NOTIFIED, ROUTINE, LAST, LATE),
    (NOTIFIED, LAST, ROUTINE, LATE),
    (NOTIFIED, ROUTINE, LAST, LATE),
    (LAST, ROUTINE, LATE, NOTIFIED),
    (NOTIFIED, ROUTINE, LAST, LATE),
    (NOTIFIED, LAST, ROUTINE, LATE),
    (NOTIFIED, LATE, ROUTINE, LAST),
)
TURNS = (*_TURNS, (ROUTINE, LAST, LATE, NOTIFIED), *_TURNS, (LATE, ROUTINE, LAST, NOTIFIED))

#: Of the routine, so many that have waited longest are compared.
COMPARED = 250

#: The longest pause that a `Retry-After` may ask for, in seconds.
LONGEST_PAUSE = 60.0

#: Seconds between queries after the first 429, where no limit is known, and at most. One success divides them.
FIRST_SLOWNESS, MOST_SLOWNESS, RELIEF = 0.1, 10.0, 4.0

#: The pause after a 429 without a `Retry-After`, in units of the seconds between queries.
PAUSE = 10.0


class Pace:
    """Whether a query may be made now: the rate that the profile allows, and what the service asks for itself."""

    def __init__(self, queries_per_minute: float | None) -> None:
        self._gap = 60.0 / queries_per_minute if queries_per_minute else 0.0
        #: Seconds between queries, learnt from 429; it wears off.
        self._slowness = 0.0
        #: When it was last doubled. A 429 to a query that was made before says nothing new.
        self._slowed_at = float("-inf")
        self._next = float("-inf")
        self._paused_until = float("-inf")

    @property
    def gap(self) -> float:
        """Seconds from one query to the next, as far as is known."""
        return max(self._gap, self._slowness)

    @property
    def binds(self) -> bool:
        """Whether queries are rationed at all, so that it matters who comes first."""
        return self._gap > 0.0 or self._slowness > 0.0

    def ready_at(self) -> float:
        """From when on the next query may be made."""
        return max(self._next, self._paused_until)

    def want(self, now: float) -> None:
        """Somebody waits for a turn."""

    def paused(self, now: float) -> bool:
        """Whether the service wants to be left alone."""
        return now < self._paused_until

    def spend(self, now: float) -> None:
        """Count a query that is made now."""
        # Counted from the due moment, so that a late timer does not slow the rate down; no burst comes of it. Requests
        # that could not wait do not pile up.
        gap = self.gap
        self._next = max(min(self._next, now) + gap, now + gap * 0.9)

    def pause(self, now: float, seconds: float) -> None:
        """No queries for so long."""
        self._paused_until = max(self._paused_until, now + min(seconds, LONGEST_PAUSE))

    def rate_limited(self, now: float, made_at: float, retry_after: float | None) -> None:
        """Go slower after a 429: one doubling for each round of queries, however many were in flight."""
        pause = retry_after
        if made_at > self._slowed_at:
            self._slowed_at = now
            self._slowness = min(max(2 * self._slowness, FIRST_SLOWNESS), MOST_SLOWNESS)
            self._next = max(self._next, now + self._slowness)
            if pause is None:
                pause = min(PAUSE * self._slowness, MOST_SLOWNESS)
        if pause is not None:
            self.pause(now, pause)

    def answered(self, made_at: float) -> None:
        """Forget the service's 429 after a few successes of queries that were made since."""
        if made_at > self._slowed_at:
            self._slowness = self._slowness / RELIEF if self._slowness > FIRST_SLOWNESS / 2 else 0.0

    def close(self) -> None:
        """No more queries are made."""


class Turns:
    """Who is due and waits to be asked for. `window` is the sale window in seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._lines: dict[int, OrderedDict[Entry, None]] = {
            line: OrderedDict() for line in (NOTIFIED, LAST, ROUTINE, LATE)
        }
        self._turn = 0

    def __bool__(self) -> bool:
        return any(self._lines.values())

    def put(self, entry: Entry, line: int) -> None:
        """Let it wait; in the better line where it waits already."""
        if entry.queued and entry.queued <= line:
            return
        self.drop(entry)
        entry.queued = line
        self._lines[line][entry] = None

    def drop(self, entry: Entry) -> None:
        """It waits no more."""
        if entry.queued:
            line = self._lines[entry.queued]
            del line[entry]
            entry.queued = 0
            if not line:
                line.clear()  # a crowd's table is let go of

    def pop(self, now: float, *, rank: bool) -> Entry | None:
        """Whose turn it is; None if nobody waits. With `rank` the routine goes by need, else by waiting."""
        self._turn = (self._turn + 1) % len(TURNS)
        for number in TURNS[self._turn]:
            line = self._lines[number]
            if line:
                compared = islice(line, COMPARED if rank and number == ROUTINE else 1)
                entry = max(compared, key=lambda entry: self.need(entry, now))
                self.drop(entry)
                return entry
        return None

    def need(self, entry: Entry, now: float) -> float:
        """Seconds that its answer has lain there unseen, on average, since it was last asked for."""
        age = entry.age(now)
        return expected_lag(max(age - (now - entry.asked_at), 0.0), age, self._window)

    def clear(self) -> None:
        """Forget all."""
        for line in self._lines.values():
            line.clear()
