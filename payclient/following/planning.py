"""When an open sale is looked at next, and when its waits have nothing more to hope for. No clock, no I/O."""

from __future__ import annotations

import logging

from payclient.following.entries import Case, Entry
from payclient.following.notifying import Arrivals
from payclient.lifecycle import State
from payclient.schedule import AFTERTHOUGHTS, LAST_QUERIES, NORMAL_WINDOW, Schedule, first_part, phase

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Seconds from one query to the next after a notification, while the service still says pending.
CHASE = (0.25, 0.75, 2.0, 5.0)

#: A form lives longer than a push and its customer comes back by a redirect: it is asked for that much less often.
FORM_SLOWNESS = 5

#: Seconds after the expiry at which a wait ends though last queries are due, where the service fails.
MOST_PATIENCE = 500.0

#: Gaps double with each failure in a row, up to this power of two.
MOST_DOUBLINGS = 5


class Planning:
    """The times of one tracker's entries."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        asks: bool,
        sale_window: float,
        absent_after: float,
        arrivals: Arrivals,
    ) -> None:
        self._schedule = schedule
        #: Whether there is anybody to ask.
        self._asks = asks
        self._absent_after = absent_after
        self._arrivals = arrivals
        self.scale = sale_window / NORMAL_WINDOW
        #: Seconds between two queries of one sale, at least.
        self.least = min(1.0, self.scale)

    def soonest(self) -> float:
        """Seconds from now after which something but an expiry may be due for an entry of an age below `least`, and for
        those that come after it: notifications only thin the queries, and forms are asked for more seldom.
        """
        return max(self._gap("sale", 0.0, first_part(0.0), heard=0.0) - self.least, 0.0)

    def first_of_new(self, entry: Entry) -> float:
        """When a new sale is first looked at. The spread hangs on its id alone, as it does after a restart."""
        record = entry.record
        gap = self._gap(record.kind, 0.0, first_part(phase(record.client_transaction_id)))
        return min(entry.offset + record.created_at + gap, entry.expires)

    def first(self, entry: Entry, now: float) -> float:
        """When one is first looked at here that was followed before, by a process that is gone: at any moment."""
        spread, expires = phase(entry.record.client_transaction_id), entry.expires
        if now >= expires:
            return now + spread * self.scale
        return min(now + self._gap(entry.record.kind, entry.age(now), spread), expires)

    def last(self, entry: Entry, now: float) -> bool:
        """Whether a query now is one of the last, from which the truth is expected."""
        return now >= entry.expires + LAST_QUERIES[0] * self.scale

    def after(self, entry: Entry, now: float) -> float | None:
        """When it is looked at next, or None: no wait has anything more to hope for."""
        scale = self.scale
        if not self._asks:
            if now < entry.expires:
                return entry.expires
            end = entry.expires + 10 * scale
            return end if not entry.spent and now < end else None
        case = entry.case
        if case is not None and case.chase is not None:
            if case.chase < len(CHASE):
                case.chase += 1
                return now + CHASE[case.chase - 1] * scale
            case.chase = None
        if now < entry.expires:
            gap = self._gap(entry.record.kind, entry.age(now), 1.0)
            if case is not None:
                gap *= 2 ** min(case.failures, MOST_DOUBLINGS)
            # Not beyond the expiry: it is noted as it comes.
            return min(now + max(gap, self.least), entry.expires)
        if entry.last_asked < len(LAST_QUERIES) and not entry.spent:
            begin = entry.expires if entry.last_asked == 0 else max(entry.asked_at, entry.expires)
            # What the ledger or the service fails at is not tried again at once.
            soonest = now + self.least if case is not None and case.failures else now
            return max(soonest, begin + LAST_QUERIES[entry.last_asked] * scale)
        if entry.record.state is State.UNKNOWN and case is not None:
            return self._proof(entry, case, now)
        return None

    def afterthought(self, entry: Entry, now: float) -> float | None:
        """When it is asked for once more in the background, nobody waiting."""
        if not self._asks:
            # Expired, and the ledger could not take it yet.
            return now + 10 * self.scale if entry.record.state is State.PENDING else None
        later = (entry.expires + age * self.scale for age in AFTERTHOUGHTS)
        return next((when for when in later if when > now), None)

    def end(self, entry: Entry, case: Case) -> float:
        """When a failing service has been given time enough for the last queries, and for a proof of absence."""
        if entry.record.state is State.UNKNOWN:
            return max(entry.expires + NORMAL_WINDOW * self.scale, case.begun + 1.2 * self._absent_after)
        return max(entry.expires, case.begun) + MOST_PATIENCE * self.scale

    def patience(self, entry: Entry, now: float, lease: float) -> float:
        """When another process must have come to an end with it, though its follower died and the next began late."""
        end = entry.expires + 2 * sum(LAST_QUERIES) * self.scale
        if entry.record.state is State.UNKNOWN:
            end = max(end, now - entry.age(now) + 1.2 * self._absent_after)
        return max(end, now) + lease

    def _proof(self, entry: Entry, case: Case, now: float) -> float | None:
        """An unknown sale may be proven absent, by two queries that are late enough."""
        due = case.begun + self._absent_after
        if case.absent_at is not None:
            if case.unasked(entry.record):
                return max(now, entry.asked_at + self.least)
            due = case.absent_at + self._absent_after / 10
        # The queries that go by candidate ids prove nothing, and this one comes behind them.
        gap = self.least * 2 ** min(case.failures, MOST_DOUBLINGS)
        return max(now, due, entry.asked_at + gap) if case.client_asked_at < due else None

    def _gap(self, kind: str, age: float, part: float, *, heard: float | None = None) -> float:
        if heard is None:
            heard = self._arrivals.share
        try:
            if kind == "sale":
                gap = float(self._schedule.gap(age, part=part, heard=heard))
            else:
                gap = FORM_SLOWNESS * float(self._schedule.gap(age / FORM_SLOWNESS, part=part, heard=heard))
        except Exception as error:  # a user's own schedule must not end the driver
            logger.error("the schedule failed: %s", type(error).__name__)
            gap = 2.0 * self.scale
        return gap if gap >= 0.0 else self.least  # NaN too
