"""Follows open sales to their end: clock, queries, notifications, waits. **Never POSTs.**

One entry for each open sale, one heap of what is due next, one timer. A future exists only where somebody waits.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator

from payclient.asking import StatusSource, TransactionRef, conflict_of
from payclient.clock import Clock, Timer
from payclient.errors import (
    LedgerError,
    PayError,
    RateLimitedError,
    StillPendingError,
    TrackerClosedError,
    TransitionError,
    UnauthorizedError,
)
from payclient.ledger import Ledger
from payclient.lifecycle import (
    Conflicted,
    Event,
    Expired,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    Notified,
    ProvenAbsent,
    Record,
    State,
    Suspected,
)
from payclient.models import Notification, StatusReport
from payclient.notifications import Receipt
from payclient.outcomes import Outcome
from payclient.schedule import AFTERTHOUGHTS, LAST_QUERIES, NORMAL_WINDOW, Schedule, phase

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Expiries and queries begun in one turn of the loop.
PER_TURN = 500

#: Seconds from one query to the next after a notification, while the service still says pending.
CHASE = (0.25, 0.75, 2.0, 5.0)

#: A form lives longer than a push and its customer comes back by a redirect: it is asked for that much less often.
FORM_SLOWNESS = 5

#: Queries in flight at once.
AT_ONCE = 32


class Entry:
    """One open sale. Times are the monotonic clock's."""

    __slots__ = (
        "absent_at", "asked_at", "begun", "chase", "conflict", "due", "expires", "failures", "last_asked",
        "missing_since", "opened", "query", "record", "report", "spent", "waiters",
    )  # fmt: skip

    def __init__(self, record: Record, opened: float, expires: float, begun: float = 0.0) -> None:
        self.record = record
        #: When it was first followed here. Proof of absence counts from it: the permit was earlier, whatever the
        #: wall clock did since, and whoever's it was.
        self.begun = begun
        self.opened = opened
        self.expires = expires
        #: When it is next looked at; an item of the heap with another time is stale.
        self.due = 0.0
        self.asked_at = float("-inf")
        #: Last queries made after the expiry.
        self.last_asked = 0
        self.failures = 0
        #: Queries made since the last notification; None: it has been chased to its end.
        self.chase: int | None = None
        #: What of the last report was not ours.
        self.conflict: str | None = None
        #: The first of two proofs of absence.
        self.absent_at: float | None = None
        self.missing_since: float | None = None
        #: Every query that a wait hopes for has been made.
        self.spent = False
        self.report: StatusReport | None = None
        self.query: asyncio.Task[None] | None = None
        self.waiters: set[asyncio.Future[None]] | None = None


class Following:
    """The driver of all open sales of one tracker."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        status: StatusSource | None,
        schedule: Schedule,
        proves_absence: bool,
        sale_window: float,
        form_window: float,
        total_timeout: float,
        absent_after: float,
        queries_per_minute: float | None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._status = status
        self._schedule = schedule
        #: "Not found" counts as proof only from the profile's own query by client transaction id.
        self._proves_absence = proves_absence
        self._window = sale_window
        # A form's link may be loaded as late as it is handed out, and then lives once more.
        self._longest_life = {"sale": sale_window + total_timeout, "form": 2 * form_window + total_timeout}
        self._scale = sale_window / NORMAL_WINDOW
        self._absent_after = absent_after
        self._query_gap = 60.0 / queries_per_minute if queries_per_minute else 0.0
        self._entries: dict[str, Entry] = {}
        self._heap: list[tuple[float, int, Entry]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        #: No query before this: the rate, or the service's own wish.
        self._quiet_until = float("-inf")
        self._queries: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()
        #: No more notes of notifications about unknown or conflicting ids before this.
        self._noted_until = float("-inf")
        self._closed = False
        #: Set, and replaced, at each change that the feed shows.
        self.changed = asyncio.Event()

    # --- What is open

    def follow(self, record: Record) -> Entry | None:
        """Follow an open sale; None if it is decided. The same sale is followed once."""
        entry = self._entries.get(record.client_transaction_id)
        if entry is not None and entry.record.attempt == record.attempt:
            if record.version > entry.record.version:
                self._take(entry, record)
            return entry
        if record.state.decided or self._closed or (entry and entry.record.attempt > record.attempt):
            return None
        if entry is not None:
            # There is a next attempt, so this one created nothing; nobody here has heard of it.
            self._wake(entry, spent=True)
        now, wall = self._clock.monotonic(), self._clock.time()
        opened = now - max(wall - record.created_at, 0.0)
        expires_at = record.expires_at if record.expires_at is not None else record.created_at + self._window
        # Never later than a whole life from now, however the wall clock jumped between two runs.
        entry = Entry(record, opened, now + min(expires_at - wall, self._longest_life[record.kind]), now)
        self._entries[record.client_transaction_id] = entry
        if record.notified_at is not None and record.state is State.PENDING:
            # The notification came before our answer.
            self._hurry(entry)
            return entry
        spread = phase(record.client_transaction_id) * self._schedule.gap(0.0)
        self._plan(entry, now + spread if now < entry.expires else now + spread * 0.1)
        return entry

    def get(self, client_transaction_id: str) -> Record | None:
        """The record of an open sale."""
        entry = self._entries.get(client_transaction_id)
        return None if entry is None else entry.record

    def touch(self) -> None:
        """Something changed that the feed shows."""
        self.changed.set()
        self.changed = asyncio.Event()

    def open_records(self) -> Iterator[Record]:
        """The records of all open sales."""
        return (entry.record for entry in tuple(self._entries.values()))

    async def suspect(self, lane: bytes) -> None:
        """Code 2061 came in a lane: evidence that an unknown sale of the same lane landed. It decides nothing."""
        for entry in tuple(self._entries.values()):
            if entry.record.state is State.UNKNOWN and entry.record.lane == lane:
                await self._apply(entry, Suspected(at=self._clock.time()))

    # --- Waiting

    async def wait(self, record: Record, timeout: float | None) -> Outcome:
        """Until the sale is decided, or nothing more will be asked; see `PendingSale.wait`."""
        entry = self.follow(record)
        if entry is None:
            return await self._settled(record)
        if entry.spent and not entry.record.state.decided:
            # Nothing more is asked for it here, but an operator or another process may have decided it.
            newest = await self._ledger.get(entry.record.client_transaction_id)
            if newest is not None and newest.attempt == entry.record.attempt:
                self._take(entry, newest)
        if entry.record.state.decided or entry.spent:
            return Outcome.of(entry.record, report=entry.report)
        waiter = asyncio.get_running_loop().create_future()
        if entry.waiters is None:
            entry.waiters = set()
        entry.waiters.add(waiter)
        timer = None
        if timeout is not None:
            timer = self._clock.call_at(self._clock.monotonic() + timeout, _ring, waiter, entry.record)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            entry.waiters.discard(waiter)
        return Outcome.of(entry.record, report=entry.report)

    async def check(self, record: Record) -> Outcome:
        """One query now, shared with whoever asks too, at most one a second; then what is known."""
        entry = self.follow(record)
        if entry is None:
            return await self._settled(record)
        if self._status is not None and self._clock.monotonic() - entry.asked_at >= min(1.0, self._scale):
            await asyncio.shield(entry.query or self._ask(entry))
        return Outcome.of(entry.record, report=entry.report)

    async def _settled(self, record: Record) -> Outcome:
        if self._closed and not record.state.decided:
            raise TrackerClosedError(
                "the tracker is closed", client_transaction_id=record.client_transaction_id
            )
        newest = await self._ledger.get(record.client_transaction_id)
        if newest is not None and newest.attempt == record.attempt:
            record = newest
        return Outcome.of(record)

    def remaining(self, record: Record) -> float:
        """Seconds until the customer can no longer approve, at least 0."""
        return 0.0 if record.expires_at is None else max(record.expires_at - self._clock.time(), 0.0)

    # --- The driver

    def _plan(self, entry: Entry, when: float) -> None:
        entry.due = when
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, entry))
        self._arm()

    def _arm(self) -> None:
        if not self._heap or self._closed:
            return
        when = self._heap[0][0]
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._clock.call_at(when, self._turn)

    def _turn(self) -> None:
        """Look at what is due: bounded, so that no crowd of expiries stalls the loop."""
        self._timer, self._timer_at = None, float("inf")
        now, heap = self._clock.monotonic(), self._heap
        for _ in range(PER_TURN):
            if not heap or heap[0][0] > now:
                break
            when, _, entry = heapq.heappop(heap)
            if when == entry.due and self._entries.get(entry.record.client_transaction_id) is entry:
                self._look(entry, now)
        self._arm()

    def _look(self, entry: Entry, now: float) -> None:
        """One entry is due: it expires, or it is asked for, or its waiters have waited enough."""
        if entry.query is not None:
            return  # the query that runs plans the next look
        if self._status is not None and now < self._quiet_until:
            self._plan(entry, self._quiet_until)
        elif self._status is not None and len(self._queries) >= AT_ONCE:
            self._plan(entry, now + 0.05)
        elif self._status is not None or (entry.record.state is State.PENDING and now >= entry.expires):
            self._ask(entry)
        else:
            self._plan_next(entry)

    def _plan_next(self, entry: Entry) -> None:
        """Say when this sale is looked at next, and end the waits that have nothing more to hope for."""
        now, scale = self._clock.monotonic(), self._scale
        if entry.chase is not None and self._status is not None:
            if entry.chase < len(CHASE):
                self._plan(entry, now + CHASE[entry.chase] * scale)
                entry.chase += 1
                return
            entry.chase = None
        if self._status is None:
            if now < entry.expires:
                self._plan(entry, entry.expires)
            elif not entry.spent and now < entry.expires + 10 * scale:
                self._plan(entry, entry.expires + 10 * scale)
            else:
                self._wake(entry, spent=True)
            return
        if now < entry.expires:
            slowness = FORM_SLOWNESS if entry.record.kind == "form" else 1
            gap = slowness * self._schedule.gap(now - entry.opened) * 2 ** min(entry.failures, 5)
            self._plan(entry, min(now + gap, entry.expires + LAST_QUERIES[0] * scale))
            return
        if entry.last_asked < len(LAST_QUERIES):
            gap = LAST_QUERIES[entry.last_asked] * scale
            begin = entry.expires if entry.last_asked == 0 else max(entry.asked_at, entry.expires)
            self._plan(entry, max(now, begin + gap))
            return
        if entry.record.state is State.UNKNOWN and entry.absent_at is not None:
            second = entry.absent_at + self._absent_after / 10
            if entry.asked_at < second:
                self._plan(entry, max(now, second))
                return
        elif entry.record.state is State.UNKNOWN and entry.asked_at < entry.begun + self._absent_after:
            self._plan(entry, max(now, entry.begun + self._absent_after))
            return
        self._wake(entry, spent=True)
        later = [age for age in AFTERTHOUGHTS if entry.expires + age * scale > now]
        if later:
            self._plan(entry, entry.expires + later[0] * scale)

    # --- Queries

    def _ask(self, entry: Entry) -> asyncio.Task[None]:
        if self._status is not None:
            self._quiet_until = max(self._quiet_until, self._clock.monotonic() + self._query_gap)
        task = asyncio.create_task(self._query(entry))
        entry.query = task
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)
        return task

    async def _query(self, entry: Entry) -> None:
        """Expire it by the clock if it is time, ask once, take the answer, and plan the next look."""
        try:
            now = self._clock.monotonic()
            if now >= entry.expires and entry.record.state is State.PENDING:
                await self._apply(entry, Expired(at=self._clock.time()))
            if self._status is not None and not entry.record.state.decided:
                # It counts when made, not when due.
                entry.asked_at = now
                if now >= entry.expires + LAST_QUERIES[0] * self._scale:
                    entry.last_asked += 1
                await self._ask_once(entry, self._status)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a fault of ours or of a status source must not end the driver
            logger.error("%s: following failed: %s", entry.record.client_transaction_id, type(error).__name__)
            entry.failures += 1
        finally:
            entry.query = None
            if not self._closed and not entry.record.state.decided:
                self._plan_next(entry)

    async def _ask_once(self, entry: Entry, status: StatusSource) -> None:
        record = entry.record
        reference = TransactionRef(
            client_transaction_id=record.client_transaction_id,
            transaction_id=record.transaction_id,
            candidate_id=record.candidate_id,
            kind=record.kind,
        )
        try:
            report = await status(reference)
        except RateLimitedError as limited:
            self._quiet_until = self._clock.monotonic() + (limited.retry_after or 5.0)
            return
        except UnauthorizedError:
            self._quiet_until = self._clock.monotonic() + 30.0 * self._scale
            self._say("401", "status queries are refused (401): is the token still good?")
            return
        except PayError as error:
            entry.failures += 1
            self._say(f"error {type(error).__name__}", "a status query failed: %s", type(error).__name__)
            return
        entry.failures = 0
        entry.report = report
        if report is None:
            await self._not_found(entry)
            return
        entry.missing_since = entry.absent_at = None
        if conflict := conflict_of(record, report, by_candidate=not self._proves_absence):
            if conflict != entry.conflict:  # written and said once, not at every query
                entry.conflict = conflict
                await self._apply(entry, Conflicted(at=self._clock.time(), what=conflict))
                logger.error("%s: a status report is not ours: %s", record.client_transaction_id, conflict)
            return
        if report.also_accepted:
            others = ", ".join(map(str, report.also_accepted))
            logger.critical("%s: accepted more than once: also %s", record.client_transaction_id, others)
            await self._apply(entry, Conflicted(at=self._clock.time(), what=f"also accepted: {others}"))
        await self._report(entry, report)

    async def _report(self, entry: Entry, report: StatusReport) -> None:
        now, identifier = self._clock.time(), report.transaction_id
        state = entry.record.state
        if report.state == "Aceptado":
            if state is State.CANCELLED:
                logger.critical("%s: cancelled, and yet accepted", entry.record.client_transaction_id)
            await self._apply(entry, FoundAccepted(at=now, transaction_id=identifier))
        elif report.state == "Cancelado":
            await self._apply(entry, FoundCancelled(at=now, transaction_id=identifier))
        elif report.state == "Pendiente":
            if state is State.UNKNOWN:
                await self._apply(entry, FoundPending(at=now, transaction_id=identifier))
        else:
            entry.failures = 3
            self._say("state word", "the service says a state that the profile does not map (status.states)")

    async def _not_found(self, entry: Entry) -> None:
        now = self._clock.monotonic()
        if entry.record.kind == "form":
            return  # a form that nobody has paid yet may well be not found
        if entry.record.state is not State.UNKNOWN:
            # "Not found" is not pending; tolerated while the service makes up its mind.
            if entry.missing_since is None:
                entry.missing_since = now
            elif now - entry.missing_since > 15.0 * self._scale:
                entry.missing_since = float("inf")
                await self._apply(entry, Conflicted(at=self._clock.time(), what="not found"))
            return
        # Twice, late enough and far enough apart, and nothing was created.
        if not self._proves_absence or now < entry.begun + self._absent_after:
            return
        if entry.absent_at is None:
            entry.absent_at = now
        elif now - entry.absent_at >= self._absent_after / 10:
            await self._apply(entry, ProvenAbsent(at=self._clock.time()))

    def _say(self, key: str, message: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(message, *values)

    # --- Notifications

    async def notify(self, notification: Notification) -> Receipt:
        """Take a hint: note it, and plan one query at once; see `Tracker.notify`."""
        identifier, transaction_id = notification.client_transaction_id, notification.transaction_id
        entry = self._entries.get(identifier)
        record = entry.record if entry is not None else await self._ledger.get(identifier)
        if record is None:
            return Receipt.UNMATCHED
        known = record.transaction_id if record.transaction_id is not None else record.candidate_id
        if record.notified_at is not None and known == transaction_id:
            return Receipt.DUPLICATE
        now, at = self._clock.monotonic(), self._clock.time()
        if known not in (None, transaction_id) or record.state is State.REFUSED:
            # Written once a second at most, since anybody can send these, and not over a candidate to be asked for.
            if now >= self._noted_until and (
                record.transaction_id is not None or record.candidate_id is None
            ):
                self._noted_until = now + 1.0
                what = f"a notification names transaction {transaction_id}"
                await self._note(entry, record, Conflicted(at=at, what=what))
            return Receipt.CONFLICT
        record = await self._note(entry, record, Notified(at=at, transaction_id=transaction_id))
        if record.state is State.SENDING:
            return Receipt.EARLY
        if record.state.decided:
            self._look_again(record)
            return Receipt.LATE
        if (entry := self.follow(record)) is not None:
            self._hurry(entry)
        return Receipt.MATCHED

    async def _note(self, entry: Entry | None, record: Record, event: Event) -> Record:
        if entry is None:
            return await self._ledger.apply(record, event)
        self._take(entry, await self._ledger.apply(entry.record, event))
        return entry.record

    def _hurry(self, entry: Entry) -> None:
        """Ask at once, ahead of the routine; without anybody to ask, the wait has nothing more to hope for."""
        if self._status is None:
            self._wake(entry, spent=True)
            return
        entry.chase = 0
        self._plan(entry, max(self._clock.monotonic(), entry.asked_at + min(1.0, self._scale)))

    def _look_again(self, record: Record) -> None:
        """A decided sale was notified: one query, for a correction."""
        if self._status is None or record.state is State.ACCEPTED:
            return
        entry = Entry(record, 0.0, 0.0)

        async def ask(status: StatusSource) -> None:
            try:
                await self._ask_once(entry, status)
            except Exception as error:
                logger.error("%s: following failed: %s", record.client_transaction_id, type(error).__name__)

        task = asyncio.create_task(ask(self._status))
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)

    # --- What happened

    async def _apply(self, entry: Entry, event: Event) -> None:
        """Let the ledger take an event, and tell whoever waits."""
        try:
            self._take(entry, await self._ledger.apply(entry.record, event))
        except TransitionError:
            newest = await self._ledger.get(entry.record.client_transaction_id)
            if (
                newest is not None
                and newest.attempt == entry.record.attempt
                and newest.version > entry.record.version
            ):
                self._take(entry, newest)
            elif newest is not None and newest.attempt > entry.record.attempt:
                # This one created nothing, somebody else proved, and sent the next: that is the one to follow.
                if self._entries.get(newest.client_transaction_id) is entry:
                    del self._entries[newest.client_transaction_id]
                self._wake(entry, spent=True)
                self.follow(newest)
            else:
                logger.error(
                    "%s: %s does not take %s",
                    entry.record.client_transaction_id, entry.record.state, type(event).__name__,
                )  # fmt: skip
        except LedgerError as error:
            # Not known until it is on disk: it is asked for again.
            entry.failures += 1
            logger.error(
                "%s: the ledger failed: %s", entry.record.client_transaction_id, type(error).__name__
            )

    def _take(self, entry: Entry, record: Record) -> None:
        before, entry.record = entry.record, record
        if record.expires_at is not None and record.expires_at != before.expires_at:
            remaining = min(record.expires_at - self._clock.time(), self._longest_life[record.kind])
            entry.expires = self._clock.monotonic() + remaining
        if record.state is not before.state:
            self.touch()
        if record.state.decided:
            self._wake(entry)
            # Not always this one: a decided sale that was notified is asked for beside the books.
            current = self._entries.get(record.client_transaction_id)
            if current is not None and current.record.attempt == record.attempt:
                del self._entries[record.client_transaction_id]
                current.record = record
                self._wake(current)

    def _wake(self, entry: Entry, *, spent: bool = False) -> None:
        entry.spent = entry.spent or spent
        for waiter in entry.waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    async def aclose(self) -> None:
        """Stop: waits end by `TrackerClosedError`; the ledger knows what is open."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._queries):
            task.cancel()
        await asyncio.gather(*self._queries, return_exceptions=True)
        for entry in self._entries.values():
            for waiter in entry.waiters or ():
                if not waiter.done():
                    waiter.set_exception(
                        TrackerClosedError(
                            "the tracker was closed", client_transaction_id=entry.record.client_transaction_id
                        )
                    )
        self._entries.clear()
        self._heap.clear()
        self.changed.set()


def _ring(waiter: asyncio.Future[None], record: Record) -> None:
    if not waiter.done():
        waiter.set_exception(
            StillPendingError(
                "still pending; tracking goes on", client_transaction_id=record.client_transaction_id
            )
        )
