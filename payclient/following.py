"""Follows open sales to their end: clock, queries, notifications, waits. **Never POSTs.**

However many sales are open, there is one agenda of what is due next and one timer. What is due and must ask waits for
its turn; what expires is written down, a few at a time. The parts are modules of their own: `entries` (what is known),
`planning` (when to look), `agenda` (what is due), `turns` (who may ask), `querying`, `notifying`, `waiting`.

Over a ledger that several processes have open, `sharing` says which sales this one asks for; of the others it keeps an
entry where somebody waits, learns what the ledger says, and asks nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

from payclient.agenda import Agenda
from payclient.asking import StatusSource
from payclient.clock import Clock, Timer
from payclient.entries import Entries, Entry
from payclient.ledger import Ledger, Shared
from payclient.lifecycle import Expired, Record, State, Suspected
from payclient.models import Notification, StatusReport
from payclient.notifications import Receipt
from payclient.notifying import Arrivals, Notifying
from payclient.outcomes import Outcome
from payclient.planning import Planning
from payclient.querying import Querying
from payclient.schedule import Schedule
from payclient.sharing import LEASE, Budget, Sharing
from payclient.turns import LAST, NOTIFIED, ROUTINE, Pace, Turns
from payclient.waiting import Waiting

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Entries looked at in one turn of the loop.
PER_TURN = 500

#: Expiries written, and queries in flight, at once.
EXPIRIES_AT_ONCE = 64
QUERIES_AT_ONCE = 32

#: Seconds of one slot of the agenda, in a sale window of 300 s.
SLOT = 0.125


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
        budget: str = "queries",
    ) -> None:
        self._clock = clock
        self._arrivals = Arrivals()
        self._planning = Planning(
            schedule,
            asks=status is not None,
            sale_window=sale_window,
            absent_after=absent_after,
            arrivals=self._arrivals,
        )
        self._entries = Entries(
            ledger,
            clock,
            sale_window=sale_window,
            # A form's link may be loaded as late as it is handed out, and then lives once more.
            longest_life={"sale": sale_window + total_timeout, "form": 2 * form_window + total_timeout},
            follow=self.follow,
            decided=self._decided,
        )
        self._pace = Pace(queries_per_minute)
        #: None: no other process has this ledger.
        self._sharing: Sharing | None = None
        if isinstance(ledger, Shared):
            self._sharing = Sharing(
                ledger,
                clock,
                self._entries,
                total_timeout=total_timeout,
                let_go=self._let_go,
                notified=self._notified,
            )
            if queries_per_minute:
                self._pace = Budget(queries_per_minute, ledger, clock, name=budget, ready=self._go_on)
        self._querying = (
            None
            if status is None
            else Querying(
                self._entries,
                clock,
                self._pace,
                status,
                proves_absence=proves_absence,
                absent_after=absent_after,
                scale=self._planning.scale,
            )
        )
        self._waiting = Waiting(ledger, clock, self._entries, self.follow)
        self._notifying = Notifying(
            ledger,
            clock,
            self._entries,
            self._arrivals,
            hurry=self._notified,
            look_again=self._look_again,
        )
        self._agenda = Agenda(SLOT * self._planning.scale)
        self._turns = Turns(sale_window)
        self._to_expire: deque[Entry] = deque()
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._queries: set[asyncio.Task[StatusReport | None]] = set()
        self._expiries: set[asyncio.Task[StatusReport | None]] = set()
        self._closed = False

    # --- What is open

    def follow(self, record: Record) -> Entry | None:
        """Follow an open sale; None if it is decided. The same sale is followed once."""
        entry = self._entries.get(record.client_transaction_id)
        if entry is not None and entry.record.attempt == record.attempt:
            if record.version > entry.record.version:
                self._entries.take(entry, record)
            if entry.elsewhere and self._entries.holds(entry):
                self._reconsider(entry)
            return entry
        if record.state.decided or self._closed or (entry and entry.record.attempt > record.attempt):
            return None
        if entry is not None:
            # There is a next attempt, so this one created nothing; nobody here has heard of it.
            self._entries.wake(entry, spent=True)
        now = self._clock.monotonic()
        entry = self._entries.add(record, now)
        if not self._ours(record.client_transaction_id):
            self._let_go(entry)
            return entry
        if record.notified_at is not None and record.state is State.PENDING:
            # The notification came before our answer.
            self._hurry(entry)
            return entry
        when = self._planning.first(entry, now)
        self._agenda.put(entry, when)
        if when < self._timer_at:
            self._arm()
        return entry

    def get(self, client_transaction_id: str) -> Record | None:
        """The record of an open sale that is followed here: of others only the ledger knows the newest."""
        entry = self._entries.get(client_transaction_id)
        return None if entry is None or entry.elsewhere else entry.record

    # --- With other processes

    async def share(self, take_over: Callable[[list[Record]], Awaitable[None]]) -> None:
        """Follow what no living process follows, from now on; each time it is given to `take_over`."""
        assert self._sharing is not None  # noqa: S101 - asked for a shared ledger only
        await self._sharing.begin(take_over)

    async def take_lane(self, lane: bytes) -> bool:
        """Whether this process charges this customer alone from now on."""
        return self._sharing is None or await self._sharing.take_lane(lane)

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        """Let other processes charge these customers."""
        if self._sharing is not None:
            await self._sharing.drop_lanes(lanes)

    def permitted(self, client_transaction_id: str) -> None:
        """This process was granted a permit, and follows what comes of it."""
        if self._sharing is not None:
            self._sharing.permitted(client_transaction_id)

    def elsewhere(self, record: Record) -> bool:
        """Whether another process sends it, or follows it."""
        return not self._ours(record.client_transaction_id)

    def _ours(self, client_transaction_id: str) -> bool:
        return self._sharing is None or self._sharing.ours(client_transaction_id)

    def _let_go(self, entry: Entry) -> None:
        """Another process follows it: ask no more."""
        entry.elsewhere = True
        self._turns.drop(entry)
        now = self._clock.monotonic()
        self._plan(entry, self._planning.patience(entry, now, LEASE))

    def _reconsider(self, entry: Entry) -> None:
        """Somebody asks for it whom another process followed: is it ours by now?"""
        if self._ours(entry.record.client_transaction_id):
            entry.elsewhere = False
            if entry.record.notified_at is not None and entry.record.state is State.PENDING:
                self._hurry(entry)
            else:
                self._plan(entry, self._planning.first(entry, self._clock.monotonic()))
        elif entry.slot is None and entry.query is None:
            self._let_go(entry)  # whoever waits now is not kept waiting for ever

    def _decided(self, before: Record, after: Record) -> None:
        self._arrivals.decided(before, after)
        if self._sharing is not None:
            self._sharing.decided(after.client_transaction_id)

    @property
    def changed(self) -> asyncio.Event:
        """Set, and replaced, at the next change that the feed shows."""
        return self._entries.changed

    def touch(self) -> None:
        """Something changed that the feed shows."""
        self._entries.touch()

    def open_records(self) -> Iterator[Record]:
        """The records of all open sales."""
        return (entry.record for entry in self._entries.values())

    async def suspect(self, lane: bytes) -> None:
        """Code 2061 came in a lane: evidence that an unknown sale of the same lane landed. It decides nothing."""
        for entry in self._entries.values():
            if entry.record.state is State.UNKNOWN and entry.record.lane == lane:
                await self._entries.apply(entry, Suspected(at=self._clock.time()))

    # --- What is asked of it

    async def wait(self, record: Record, timeout: float | None) -> Outcome:
        """Until the sale is decided, or nothing more will be asked; see `PendingSale.wait`."""
        return await self._waiting.wait(record, timeout)

    async def check(self, record: Record) -> Outcome:
        """One query now, shared with whoever asks too, at most one a second; then what is known."""
        entry = self.follow(record)
        if entry is None:
            return await self._waiting.settled(record)
        now, report = self._clock.monotonic(), None
        if (
            self._querying is not None
            and now - entry.asked_at >= self._planning.least
            and not self._pace.paused(now)
        ):
            report = await asyncio.shield(entry.query or self._ask(entry, now))
        return Outcome.of(entry.record, report=report or entry.report)

    async def notify(self, notification: Notification) -> Receipt:
        """Take a hint; see `Tracker.notify`."""
        return await self._notifying.notify(notification)

    def remaining(self, record: Record) -> float:
        """Seconds until the customer can no longer approve, at least 0."""
        return 0.0 if record.expires_at is None else max(record.expires_at - self._clock.time(), 0.0)

    # --- The driver

    def _plan(self, entry: Entry, when: float) -> None:
        self._agenda.put(entry, when)
        if when < self._timer_at:
            self._arm()

    def _arm(self) -> None:
        when = self._agenda.first()
        if self._turns and len(self._queries) < QUERIES_AT_ONCE:
            now = self._clock.monotonic()
            self._pace.want(now)
            when = min(when, max(self._pace.ready_at(), now))
        if when < self._timer_at and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._clock.call_at(when, self._turn)

    def _turn(self) -> None:
        """Look at what is due: bounded, so that no crowd stalls the loop."""
        self._timer, self._timer_at = None, float("inf")
        now = self._clock.monotonic()
        for _ in range(PER_TURN):
            entry = self._agenda.pop(now)
            if entry is None:
                break
            if self._entries.holds(entry):
                self._look(entry, now)
        self._go_on()

    def _look(self, entry: Entry, now: float) -> None:
        """One entry is due: it expires, or waits for its turn to be asked for, or its waiters have waited enough."""
        if entry.query is not None:
            return  # what runs plans the next look
        if entry.elsewhere:
            if entry.waiters and self._sharing is not None:
                self._sharing.besides(entry.record.client_transaction_id)
                entry.elsewhere = False
                self._plan_next(entry, now)
            return
        # Where writing it down failed, asking goes on all the same, and tries again.
        failing = entry.case is not None and entry.case.failures > 0 and self._querying is not None
        if entry.record.state is State.PENDING and now >= entry.expires and not failing:
            self._to_expire.append(entry)
        elif self._querying is None:
            self._plan_next(entry, now)
        else:
            chased = entry.case is not None and entry.case.chase is not None
            last = self._planning.last(entry, now)
            self._turns.put(entry, NOTIFIED if chased else LAST if last else ROUTINE)
            if now < entry.expires:
                self._agenda.put(entry, entry.expires)  # however long it waits for its turn

    def _go_on(self) -> None:
        """Expire and ask for as many of those that are due as may be at once."""
        now = self._clock.monotonic()
        while self._to_expire and len(self._expiries) < EXPIRIES_AT_ONCE:
            entry = self._to_expire.popleft()
            if entry.query is None and self._entries.holds(entry):
                self._run(entry, self._expire(entry), self._expiries)
        while self._turns and len(self._queries) < QUERIES_AT_ONCE and self._pace.ready_at() <= now:
            waiting = self._turns.pop(now, rank=self._pace.binds)
            if waiting is None:
                break
            if waiting.query is None and self._entries.holds(waiting):
                self._ask(waiting, now)
        self._arm()

    def _run(
        self,
        entry: Entry,
        work: Coroutine[None, None, StatusReport | None],
        tasks: set[asyncio.Task[StatusReport | None]],
    ) -> asyncio.Task[StatusReport | None]:
        self._turns.drop(entry)
        task = asyncio.create_task(work)
        entry.query = task
        tasks.add(task)

        def done(task: asyncio.Task[StatusReport | None]) -> None:
            tasks.discard(task)
            if not self._closed:
                self._go_on()

        task.add_done_callback(done)
        return task

    def _plan_next(self, entry: Entry, now: float) -> None:
        """Say when this sale is looked at next, and end the waits that have nothing more to hope for."""
        when = self._planning.after(entry, now)
        if when is None:
            self._entries.wake(entry, spent=True)
            when = self._planning.afterthought(entry, now)
        if when is not None:
            self._plan(entry, when)

    def _ended(self, entry: Entry) -> None:
        entry.query = None
        if self._closed or entry.record.state.decided:
            return
        if entry.elsewhere:
            self._let_go(entry)
        else:
            self._plan_next(entry, self._clock.monotonic())

    # --- Expiries, queries, notifications

    async def _expire(self, entry: Entry) -> None:
        """Our clock says that the window passed unheard."""
        try:
            await self._entries.apply(entry, Expired(at=self._clock.time()))
        except Exception as error:  # a fault of ours must not end the driver
            logger.error("%s: following failed: %s", entry.record.client_transaction_id, type(error).__name__)
        finally:
            self._ended(entry)

    def _ask(self, entry: Entry, now: float) -> asyncio.Task[StatusReport | None]:
        self._pace.spend(now)
        return self._run(entry, self._query(entry), self._queries)

    async def _query(self, entry: Entry) -> StatusReport | None:
        """Expire it by the clock if it is time, ask once, take the answer, and plan the next look."""
        report = None
        try:
            now = self._clock.monotonic()
            if now >= entry.expires and entry.record.state is State.PENDING:
                await self._entries.apply(entry, Expired(at=self._clock.time()))
            if self._querying is not None and not entry.record.state.decided:
                # It counts when made, not when due.
                entry.asked_at = now
                if self._planning.last(entry, now):
                    entry.last_asked += 1
                self._entries.slim(entry)
                report = await self._querying.ask(entry)
        except Exception as error:  # a fault of ours or of a status source must not end the driver
            logger.error("%s: following failed: %s", entry.record.client_transaction_id, type(error).__name__)
            self._entries.case(entry).failures += 1
        finally:
            self._ended(entry)
        return report

    def _notified(self, record: Record) -> None:
        if self._entries.get(record.client_transaction_id) is None and self.elsewhere(record):
            return  # whoever follows it hears of it too
        if (entry := self.follow(record)) is not None:
            self._hurry(entry)

    def _hurry(self, entry: Entry) -> None:
        """Ask at once, ahead of the routine; without anybody to ask, the wait has nothing more to hope for."""
        if self._querying is None:
            self._entries.wake(entry, spent=True)
            if entry.slot is None:
                self._plan(entry, entry.expires)
            return
        if entry.elsewhere:
            return  # its follower hears of it too
        now = self._clock.monotonic()
        self._entries.case(entry).chase = 0
        when = entry.asked_at + self._planning.least
        if now < when or entry.query is not None:
            self._plan(entry, max(when, now))
        else:
            self._look(entry, now)
            self._go_on()

    def _look_again(self, record: Record) -> None:
        """A decided sale was notified: one query, for a correction."""
        if self._querying is not None and record.state is not State.ACCEPTED:
            querying, entry = self._querying, Entry(record, 0.0)

            async def ask() -> StatusReport | None:
                try:
                    return await querying.ask(entry)
                except Exception as error:
                    logger.error(
                        "%s: following failed: %s", record.client_transaction_id, type(error).__name__
                    )
                    return None

            self._pace.spend(self._clock.monotonic())
            self._run(entry, ask(), self._queries)

    async def aclose(self) -> None:
        """Stop: waits end by `TrackerClosedError`; the ledger knows what is open."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sharing is not None:
            await self._sharing.aclose()
        self._pace.close()
        tasks = (*self._queries, *self._expiries)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.close()
        self._entries.clear()
        self._agenda.clear()
        self._turns.clear()
        self._to_expire.clear()
