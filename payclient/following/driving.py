"""The driver of all open sales: one agenda of what is due next, and one timer. **Never POSTs.**

However many are due at once, few are looked at in one turn of the loop: what must ask waits for its turn, what expires
is written down, a few at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine

from payclient.clock import Clock, Timer, start
from payclient.events import Expired
from payclient.following.agenda import Agenda
from payclient.following.entries import Entries, Entry
from payclient.following.planning import CHASE, Planning
from payclient.following.querying import Querying
from payclient.following.sharing import LEASE
from payclient.following.turns import LAST, LATE, NOTIFIED, ROUTINE, Pace, Turns
from payclient.lifecycle import Record, State
from payclient.models import StatusReport

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Entries looked at, and new ones planned, in one turn of the loop.
PER_TURN = 500

#: Seconds after which one that still waits for its turn is looked at again.
AGAIN = 10.0

#: Share of queries without an answer from which a service counts as failing.
FAILING = 0.05

#: Expiries written, and queries in flight, at once.
EXPIRIES_AT_ONCE = 64
QUERIES_AT_ONCE = 32

#: Seconds of one slot of the agenda, in a sale window of 300 s.
SLOT = 0.125


class Driver:
    """Looks at each entry when it is time. `querying` is None where nobody can be asked.

    `patience` is how many seconds a query by hand waits for its turn.

    `besides` is told of an entry that another process should have followed to its end, and did not.
    """

    def __init__(
        self,
        entries: Entries,
        clock: Clock,
        planning: Planning,
        pace: Pace,
        querying: Querying | None,
        *,
        sale_window: float,
        patience: float,
        besides: Callable[[str], object] | None,
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._planning = planning
        self._pace = pace
        self._querying = querying
        self._besides = besides
        self._agenda = Agenda(SLOT * planning.scale)
        #: Seconds: an entry of a younger sale is a new one.
        self._new = planning.least
        self._turns = Turns(sale_window)
        self._patience = patience
        #: Decided sales that were notified; those that were notified once more since their query was made.
        self._late: dict[str, Entry] = {}
        self._late_again: set[Entry] = set()
        #: Who waits for the query of an entry to be made, and for other requests' turns.
        self._starting: dict[Entry, list[asyncio.Future[None]]] = {}
        self._others: deque[asyncio.Future[None]] = deque()
        self._others_first = True
        self._to_expire: deque[Entry] = deque()
        self._timer: Timer | None = None
        self._timer_at = math.inf
        self._queries: set[asyncio.Task[StatusReport | None]] = set()
        self._expiries: set[asyncio.Task[StatusReport | None]] = set()
        self._closed = False

    # --- What is looked at, and when

    def begin(self, entry: Entry, now: float) -> None:
        """Look at it for the first time: at once if it was notified before our answer came, else as planned."""
        record = entry.record
        if record.notified_at is not None and record.state is State.PENDING:
            self.hurry(entry)
        elif record.expires_at is not None and abs(now - entry.offset - record.created_at) < self._new:
            due, expires = self._agenda.new_due, entry.offset + record.expires_at
            # The first of a line says when: nothing is due sooner for those behind it but an expiry.
            if due == math.inf:
                due = now + self._planning.soonest()
            if expires < due:
                due = expires
            self._agenda.put_new(entry, due)
            if due < self._timer_at:
                self._arm()
        else:
            self._plan(entry, self._planning.first(entry, now))

    def hurry(self, entry: Entry, *, again: bool = False) -> None:
        """Ask at once, ahead of the routine; without anybody to ask, the wait has nothing more to hope for.

        `again`: the same was notified before, and earns no more than one query, a second after the last one.
        """
        if self._querying is None:
            self._entries.wake(entry, spent=True)
            if entry.slot is None:
                self._plan(entry, entry.expires)
            return
        if entry.elsewhere:
            return  # its follower hears of it too
        now = self._clock.monotonic()
        case = self._entries.case(entry)
        if not again:
            case.chase = 0
        elif case.chase is None:
            case.chase = len(CHASE)
        when = entry.asked_at + self._planning.least
        if now < when or entry.query is not None:
            self._plan(entry, max(when, now))
        else:
            self._look(entry, now)
            self.go_on()

    def let_go(self, entry: Entry) -> None:
        """Another process follows it: ask no more."""
        entry.elsewhere = True
        self._turns.drop(entry)
        now = self._clock.monotonic()
        self._plan(entry, self._planning.patience(entry, now, LEASE))

    def _plan(self, entry: Entry, when: float) -> None:
        self._agenda.put(entry, when)
        if when < self._timer_at:
            self._arm()

    def _plan_next(self, entry: Entry, now: float) -> None:
        """Say when this sale is looked at next, and end the waits that have nothing more to hope for."""
        when = self._planning.after(entry, now)
        if when is None:
            self._entries.wake(entry, spent=True)
            when = self._planning.afterthought(entry, now)
        if when is not None:
            self._plan(entry, when)

    def _arm(self) -> None:
        when = self._agenda.first()
        if self._others or (self._turns and len(self._queries) < QUERIES_AT_ONCE):
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
        self._timer, self._timer_at = None, math.inf
        now = self._clock.monotonic()
        for _ in range(PER_TURN):
            # One of each, so that no stream of new ones keeps waiting what is due.
            new = self._agenda.pop_new(now)
            if new is not None and self._entries.holds(new):
                self._agenda.put(new, self._planning.first_of_new(new))
            entry = self._agenda.pop(now)
            if entry is not None and self._entries.holds(entry):
                self._look(entry, now)
            elif entry is not None and self._is_late(entry):
                self._look_late(entry)
            if new is None and entry is None:
                break
        self.go_on()

    def _look(self, entry: Entry, now: float) -> None:
        """One entry is due: it expires, or waits for its turn to be asked for, or its waiters have waited enough."""
        if entry.query is not None:
            return  # what runs plans the next look
        if entry.elsewhere:
            if entry.waiters and self._besides is not None:
                self._besides(entry.record.client_transaction_id)
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
            if now < entry.expires:
                # However long it waits for its turn. Not all at once at the expiry: most are asked for much earlier,
                # and would be kept until then though they are decided.
                again = math.inf if entry.queued else now + AGAIN * self._planning.scale
                self._agenda.put(entry, min(again, entry.expires))
            elif not entry.spent:
                end = self._planning.end(entry, self._entries.case(entry))
                if now >= end and self._querying.failing > FAILING:
                    self._entries.wake(entry, spent=True)
                else:
                    self._agenda.put(entry, max(end, now + AGAIN * self._planning.scale))
            self._turns.put(entry, NOTIFIED if chased else LAST if last else ROUTINE)

    def go_on(self) -> None:
        """Expire and ask for as many of those that are due as may be at once."""
        now = self._clock.monotonic()
        while self._to_expire and len(self._expiries) < EXPIRIES_AT_ONCE:
            entry = self._to_expire.popleft()
            if entry.query is None and self._entries.holds(entry):
                self._run(entry, self._expire(entry), self._expiries)
        while self._pace.ready_at() <= now:
            queries = self._turns and len(self._queries) < QUERIES_AT_ONCE
            if self._others and (self._others_first or not queries):
                self._others_first = False
                turn = self._others.popleft()
                if not turn.done():
                    self._pace.spend(now)
                    turn.set_result(None)
                continue
            waiting = self._turns.pop(now, rank=self._pace.binds) if queries else None
            if waiting is None:
                break
            self._others_first = True
            if waiting.query is None and self._entries.holds(waiting):
                self._ask(waiting, now)
            elif waiting.query is None and self._is_late(waiting):
                waiting.asked_at = now
                self._pace.spend(now)
                self._run(waiting, self._query_late(waiting), self._queries)
            self._started(waiting)
        self._arm()

    # --- Expiries and queries

    async def ask(self, entry: Entry) -> StatusReport | None:
        """One query as soon as it is its turn, shared with whoever asks too; its report, if there is one.

        At most one a second, and none where the service wants to be left alone or the turn is long in coming.
        """
        now = self._clock.monotonic()
        if self._querying is None or now - entry.asked_at < self._planning.least or self._pace.paused(now):
            return None
        if entry.query is None:
            self._turns.put(entry, LAST)
            self.go_on()
        if entry.query is None and not self._closed:
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._starting.setdefault(entry, []).append(started)
            await self._wait(started, self._patience)
        return None if entry.query is None else await asyncio.shield(entry.query)

    def _started(self, entry: Entry) -> None:
        for started in self._starting.pop(entry, ()):
            _end(started)

    async def turn(self, patience: float, *, insists: bool = True) -> bool:
        """Wait until another request than a query may be made, at most so many seconds; whether it may be by the rate.

        The request is counted: also one that comes too early, if its caller `insists`.
        """
        now = self._clock.monotonic()
        if not self._others and self._pace.ready_at() <= now:
            self._pace.spend(now)
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._others.append(turn)
        self._arm()
        in_time = await self._wait(turn, patience)
        if not in_time and insists:
            self._pace.spend(self._clock.monotonic())
        return in_time

    async def _wait(self, ended: asyncio.Future[None], seconds: float) -> bool:
        """Whether it ended by itself within so many seconds."""
        late = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.monotonic() + seconds, _give_up, ended, late)
        try:
            await ended
        finally:
            timer.cancel()
        return not late.done()

    def look_again(self, record: Record) -> None:
        """A decided sale was notified: one query when it is its turn, for a correction."""
        if self._querying is None or record.state is State.ACCEPTED or self._closed:
            return
        identifier = record.client_transaction_id
        entry = self._late.get(identifier)
        if entry is None:
            entry = self._late[identifier] = Entry(record, 0.0)
            self._turns.put(entry, LATE)
            self.go_on()
        else:
            if record.version > entry.record.version:
                entry.record = record
            if not entry.queued:  # it was asked for a moment ago
                self._late_again.add(entry)

    def _is_late(self, entry: Entry) -> bool:
        return self._late.get(entry.record.client_transaction_id) is entry

    def _look_late(self, entry: Entry) -> None:
        if entry in self._late_again:
            self._late_again.discard(entry)
            self._turns.put(entry, LATE)
        else:
            del self._late[entry.record.client_transaction_id]

    async def _query_late(self, entry: Entry) -> StatusReport | None:
        try:
            return None if self._querying is None else await self._querying.ask(entry)
        except Exception as error:  # a fault of ours must not end the driver
            _failed(entry.record, error)
            return None
        finally:
            entry.query = None
            if not self._closed:
                self._plan(entry, max(entry.asked_at + self._planning.least, self._clock.monotonic()))

    def _run(
        self,
        entry: Entry,
        work: Coroutine[None, None, StatusReport | None],
        tasks: set[asyncio.Task[StatusReport | None]],
    ) -> asyncio.Task[StatusReport | None]:
        self._turns.drop(entry)
        task = start(work)
        entry.query = task
        tasks.add(task)

        def done(task: asyncio.Task[StatusReport | None]) -> None:
            tasks.discard(task)
            if not self._closed:
                self.go_on()

        task.add_done_callback(done)
        return task

    def _ended(self, entry: Entry) -> None:
        entry.query = None
        if self._closed or entry.record.state.decided:
            return
        if entry.elsewhere:
            self.let_go(entry)
        else:
            self._plan_next(entry, self._clock.monotonic())

    async def _expire(self, entry: Entry) -> None:
        """Our clock says that the window passed unheard."""
        try:
            await self._entries.apply(entry, Expired(at=self._clock.time()))
        except Exception as error:  # a fault of ours must not end the driver
            _failed(entry.record, error)
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
            _failed(entry.record, error)
            self._entries.case(entry).failures += 1
        finally:
            self._ended(entry)
        return report

    def stop(self) -> None:
        """No more turns, and nothing is planned any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        """Stop asking, and forget what is due."""
        self.stop()
        self._pace.close()
        tasks = (*self._queries, *self._expiries)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._agenda.clear()
        self._turns.clear()
        self._to_expire.clear()
        self._late.clear()
        for waiting in (*self._others, *(each for several in self._starting.values() for each in several)):
            _end(waiting)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _give_up(waiting: asyncio.Future[None], late: asyncio.Future[None]) -> None:
    if not waiting.done():
        late.set_result(None)
        waiting.set_result(None)


def _failed(record: Record, error: Exception) -> None:
    logger.error("%s: following failed: %s", record.client_transaction_id, type(error).__name__)
