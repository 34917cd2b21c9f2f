"""The only loop: one timer, and at most 32 requests at once. **Never POSTs a sale.**

However many asks are due at once, few are looked at in one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from payclient.clock import Clock, Timer, cancel_all, drain, is_cancelled_alone, outlive, start, within
from payclient.errors import LedgerError, PayError, TrackerClosedError, named_error
from payclient.events import Evidence, Exhausted, Expired, Unqueried
from payclient.ledger import Ledger, Shared
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.schedule import Attentive, Schedule
from payclient.session import PaySession
from payclient.tracking.asks import OpenAsks
from payclient.tracking.confirmations import Confirmer
from payclient.tracking.followup import (
    NOTIFIED_DELAYS,
    Followed,
    Policy,
    Scheduled,
    StatusSource,
    awaits_last_query,
    customer_acted,
)
from payclient.tracking.leases import Leases, SharedRateLimit
from payclient.tracking.outcomes import PendingSale, newest_of
from payclient.tracking.queries import StatusQueries
from payclient.tracking.rate_limit import RateLimit, RequestLine, RequestLines
from payclient.tracking.returned_form import ReturnedForm

_T = TypeVar("_T")

#: Asks looked at, and new ones planned, in one turn of the loop.
PER_TURN = 250

#: Expiries written, and requests in flight, at once.
EXPIRIES_AT_ONCE = 64
REQUESTS_AT_ONCE = 32

#: What is known of an ask: its record, and the service's report of it that came just now.
RecordAndReport = tuple[Record, StatusReport | None]

#: Seconds after which something due that was not looked at means that the poller has stopped.
MOST_LATE = 10.0


class Poller:
    """Looks at each ask when it is due, and makes the requests of all."""

    def __init__(
        self,
        session: PaySession,
        ledger: Ledger,
        clock: Clock,
        *,
        status: StatusSource | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        profile = session.profile
        self.session = session
        self.clock = clock
        schedule = Attentive(window=profile.sale_window) if schedule is None else schedule
        self.policy: Policy = Policy(profile, schedule, session.timeouts.total, own_source=status is not None)
        self.asks: OpenAsks = OpenAsks(ledger, clock, self.policy)
        self.asks.due.alarm = self._arm
        self.asks.on_named = self._note_named
        self.rate: RateLimit = RateLimit(profile.queries_per_minute)
        if isinstance(ledger, Shared):
            self.asks.leases = Leases(self, ledger)
            self.policy.clocks_agree = True
            if profile.queries_per_minute:
                self.rate = SharedRateLimit(profile.queries_per_minute, ledger, clock, self.asks.late)
        self.queries: StatusQueries = StatusQueries(self, status)
        self.confirmer: Confirmer = Confirmer(self)
        self._lines = RequestLines(profile.sale_window)
        self._to_expire: deque[Followed] = deque()  # expired or exhausted, to be written next
        self._timer: Timer | None = None
        #: When the timer was last set, or last fired.
        self._looked_at = math.inf
        #: Requests and expiries in flight, and all else.
        self._requests: set[asyncio.Task[Any]] = set()
        self._expiries: set[asyncio.Task[Any]] = set()
        self._works: set[asyncio.Task[Any]] = set()
        #: The work of a shared rate in the ledger.
        self._reserving: asyncio.Task[Any] | None = None
        #: Sends and writes, which go on where their callers are cancelled. Closing waits for them.
        self.detached: set[asyncio.Task[Any]] = set()
        #: The events that callers wait for: the query of an ask, or their turn to make a request of their own.
        self._starting: dict[Scheduled, asyncio.Event] = {}

    # --- What changes when an ask is looked at

    @property
    def is_alive(self) -> bool:
        """Whether asks are looked at in time once they are due."""
        due = max(self.asks.due.first(), self._looked_at)
        return not self.asks.closed and self.clock.monotonic() - due < MOST_LATE

    def query_notified(self, record: Record, *, is_repeated: bool = False) -> None:
        """Query an open ask that was notified, ahead of the routine; where nothing can be queried, end the waits.

        With `is_repeated` an earlier one said the same: one query follows, at least a second after the latest one.
        """
        if self.asks.find(record.client_transaction_id) is None and self.asks.is_followed_elsewhere(record):
            if self.asks.leases is not None:
                self.asks.leases.claim_soon()  # perhaps no process follows it; the ledger wakes one that does
            return
        ask = self.asks.follow(record)
        if ask is None or ask.record.state.decided:
            return
        if not self.policy.can_query:
            self.asks.end_waits(ask)
            self.asks.plan(ask)
        elif not ask.followed_elsewhere:
            if not is_repeated:
                ask.notified_queries = 0
            elif ask.notified_queries is None:
                ask.notified_queries = len(NOTIFIED_DELAYS)  # no query is left after this one
            self._look_from(ask, ask.queried_at + self.policy.least_gap)

    def recheck(self, record: Record, *, after: float | None = None) -> None:
        """Query a decided ask once more, for a correction: as soon as its turn comes, by the ids that were named to it.

        With `after`, in so many seconds, by its client transaction id.
        """
        if not self.policy.can_find(record) or self.asks.closed:
            return
        newest = self.asks.find(record.client_transaction_id)
        if newest is not None and newest.record.attempt > record.attempt:
            return  # a newer attempt has been sent since
        ask = self.asks.follow(record)  # an open ask that learns its decision here leaves the index
        if ask is None or not self.asks.has(ask):
            ask = self.asks.add(record)
        if after is not None:
            due = self.clock.monotonic() + after
            # The later of two times stays: by then a list that lags has surely caught up.
            ask.recheck_at = due if ask.recheck_at == math.inf else max(ask.recheck_at, due)
            if not ask.is_planned:
                self.asks.due.put(ask, ask.recheck_at)
        else:
            ask.recheck_soon = True
            self._look_from(ask, ask.queried_at + self.policy.least_gap)

    def _note_named(self, record: Record) -> None:
        """Confirm or query what was named to an attempt while its POST was on its way: the service may have created it
        all the same.
        """
        if record.kind == "form":
            self.confirmer.confirm_named(record, record.candidate_ids)
        if record.state.paid is False:
            self.recheck(record)

    def is_payable_again(self, record: Record) -> bool:
        """Return whether the links of a declined form may be paid by another card, which only a query would tell."""
        return record.kind == "form" and record.state is State.CANCELLED and not self.confirmer.confirms

    def plan_form(self, form: ReturnedForm) -> None:
        """Make the next request of a form, or forget it, when that is due; now if it is."""
        due = form.next_look(self.clock.monotonic())
        if due is not None and not self.asks.closed and form.task is None and not form.line:
            self._look_from(form, due)

    def _look_from(self, item: Scheduled, when: float) -> None:
        """Look at an item as soon as that time has come."""
        now = self.clock.monotonic()
        if now < when:
            self.asks.due.put(item, when)
        else:
            self._look_at(item, now)
            self._start_ready()

    # --- The loop

    def _arm(self) -> None:
        """Set the timer for what is due next. A shared rate then reserves the next request in the ledger."""
        due = self.asks.due
        when, waiting = due.first(), self._lines.waiting
        request_waits = bool(waiting[RequestLine.CALLERS]) if self._is_full else any(waiting.values())
        if request_waits:
            when = min(when, self.rate.ready_at())
        is_idle = self._reserving is None or self._reserving.done()
        if isinstance(self.rate, SharedRateLimit) and is_idle and not self.asks.closed:
            work = self.rate.work_in_ledger(self.clock.monotonic(), wanted=request_waits)
            if work is not None:
                self._reserving = self.start_work(work)
        if self._timer is None:
            due.alarm_at = math.inf
        if when < due.alarm_at and not self.asks.closed:
            if self._timer is not None:
                self._timer.cancel()
            due.alarm_at, self._looked_at = when, self.clock.monotonic()
            self._timer = self.clock.call_at(max(when, self._looked_at), self._turn)

    def _turn(self) -> None:
        """Look at what is due: bounded, so that no crowd stalls the loop."""
        now, due = self.clock.monotonic(), self.asks.due
        self._looked_at = now
        self._timer, due.alarm_at = None, -math.inf  # the end of the turn sets the timer
        try:
            for _ in range(PER_TURN):
                if (item := due.pop(now)) is None:
                    break
                self._look_at(item, now)
        finally:
            self._start_ready()

    def _look_at(self, item: Scheduled, now: float) -> None:
        """Look at an item that is due, unless its request is in flight."""
        if item.task is not None:
            return  # what runs plans the next look
        if isinstance(item, Followed):
            if self.asks.has(item):
                self._look_at_ask(item, now)
        elif isinstance(item, ReturnedForm):
            if item.line:
                self._request(item, now)  # it waited long enough for its turn by the rate
            elif item.is_idle:
                self.confirmer.forget(item)
            elif item.next_look(now) is not None:  # else a write in flight plans it
                self._lines.put(item, RequestLine.NOTIFIED)
                self.asks.due.put(item, now + item.patience)

    def _look_at_ask(self, ask: Followed, now: float) -> None:
        """Let an ask that is due expire, queue its query, or end its waits."""
        policy = self.policy
        if ask.record.state.decided:
            self._look_at_decided(ask, now)
        elif ask.followed_elsewhere:
            # The process that has its lease should have ended its follow-up by now.
            if ask.waiters or ask.recheck_at < math.inf:
                ask.followed_elsewhere = False
                self.asks.plan(ask)
            else:
                self.asks.drop(ask)  # the next call that needs the ask reads it from the ledger
        elif policy.expires_now(ask, now):
            self._to_expire.append(ask)
        elif not policy.can_find(ask.record):
            self.asks.plan(ask)
            if policy.exhausts_now(ask, now):
                self._to_expire.append(ask)
        else:
            if policy.gives_up(ask, now, failing=self.queries.is_failing):
                self.asks.end_waits(ask)
            if (again := policy.look_meanwhile(ask, now)) is not None:
                self.asks.due.put(ask, again)
            last = RequestLine.FINAL_FORMS if ask.record.kind == "form" else RequestLine.FINAL
            line = last if policy.is_final(ask, now) else RequestLine.ROUTINE
            self._lines.put(ask, line if ask.notified_queries is None else RequestLine.NOTIFIED)

    def _look_at_decided(self, ask: Followed, now: float) -> None:
        """Query a decided ask once more where it was notified, or its time has come; else forget it."""
        if ask.line:
            return  # its query plans the next look
        if ask.recheck_soon or now >= ask.recheck_at:
            # A hint and a due time have a query each. That of a hint goes by the ids that it named.
            ask.by_client_id_next = self.policy.can_query_any and not ask.recheck_soon
            if not ask.recheck_soon:
                ask.recheck_at = math.inf
            ask.recheck_soon = False
            self._lines.put(ask, RequestLine.RECHECKED)
        elif ask.recheck_at < math.inf:
            self.asks.due.put(ask, ask.recheck_at)
        else:
            self.asks.drop(ask)

    def _start_ready(self) -> None:
        """Start what may start now: expiries, and as many requests as the rate allows."""
        if self.asks.closed:
            return
        now = self.clock.monotonic()
        while self._to_expire and len(self._expiries) < EXPIRIES_AT_ONCE:
            ask = self._to_expire.popleft()
            if ask.task is None and self.asks.has(ask):
                self._run(ask, self._follow_up(ask, queries=False), self._expiries)
        while self.rate.ready_at() <= now:
            if (item := self._lines.pop(now, ranked=self.rate.binds, callers_only=self._is_full)) is None:
                break
            self._request(item, now)
        self._arm()

    @property
    def _is_full(self) -> bool:
        """Whether as many requests are in flight as may be; those of callers belong to what is in flight already."""
        return len(self._requests) >= REQUESTS_AT_ONCE

    def _request(self, item: Scheduled, now: float) -> None:
        """Make the next request of an item, now that it is its turn."""
        started = self._starting.pop(item, None)
        work: Coroutine[None, None, Any] | None = None
        if isinstance(item, ReturnedForm):
            current = item.begin_request(now)
            work = None if current is None else self.confirmer.request(item, current)
        elif not isinstance(item, Followed):
            self.rate.note_request(now)  # its caller makes it
        elif self.asks.has(item) and (started or not item.followed_elsewhere):
            work = self._follow_up(item, queries=True)  # where a caller waits for it, whoever follows the ask
        if work is not None:
            if not isinstance(item, Followed) or self.policy.has_id(item.record):
                self.rate.note_request(now, early=item.line != 0)  # it waits in its line still
            self._run(item, work, self._requests)
        elif isinstance(item, Followed | ReturnedForm):
            self._lines.give_turn_back()
        if started is not None:
            started.set()

    def _run(self, item: Scheduled, work: Coroutine[None, None, Any], tasks: set[asyncio.Task[Any]]) -> None:
        self._lines.drop(item)
        item.task = self.start_work(work, tasks)
        item.task.add_done_callback(partial(self._note_end, item))

    def _note_end(self, item: Scheduled, task: asyncio.Future[Any]) -> None:
        """Look again at an item whose task was cancelled before it began: any other task has cleared itself."""
        if item.task is task:
            item.task = None
            self.asks.due.put(item, self.clock.monotonic())

    def start_work(
        self, work: Coroutine[None, None, Any], tasks: set[asyncio.Task[Any]] | None = None
    ) -> asyncio.Task[Any]:
        """Start work that closing cancels. When it ends, the next requests are started."""
        task = start(work, self._works if tasks is None else tasks)
        task.add_done_callback(lambda _: self._start_ready())
        return task

    # --- What is done for one item

    async def _follow_up(self, ask: Followed, *, queries: bool) -> StatusReport | None:
        """Write what our clock says of an ask, with `queries` query it, and plan its next look.

        Returns the report, if it is ours.
        """
        report = None
        try:
            now = self.clock.monotonic()
            if ask.record.state is State.PENDING and now >= ask.expires:
                await self.asks.apply(ask, Expired(at=self.clock.time()))
            if ask.record.state.decided or ask.record.state is State.SENDING:  # as far as this process knows
                with suppress(LedgerError):
                    await self.asks.reread(ask)
            if self.asks.has(ask):  # a newer attempt may have taken its place
                if queries and self.policy.can_find(ask.record):  # it may have become a newer attempt
                    query = self.policy.begin_query(ask, now)
                    if self.policy.has_id(ask.record):
                        report = await self.queries.query(ask, query)
                if self.policy.exhausts_now(ask, now):
                    await self._exhaust(ask)
        except Exception as error:  # an error of ours or of a status source must not end the poller
            identifier = ask.record.client_transaction_id
            log("error", "following_failed", identifier, "following failed: %s", type(error).__name__)
            ask.failures += 1
        finally:
            ask.task = None
            if not self.asks.closed and self.asks.has(ask):
                self.asks.plan(ask)
        return report

    async def _exhaust(self, ask: Followed) -> None:
        """Write that the ask no longer keeps others of its purchase from being sent."""
        is_queried = self.policy.can_query and self.policy.follows(ask.record)
        await self.asks.apply(ask, (Exhausted if is_queried else Unqueried)(at=self.clock.time()))

    # --- What others call

    def handle(self, record: Record) -> PendingSale:
        """Return the handle of an attempt, which is followed from now on."""
        # A sale that is being sent here is followed by its sender.
        sending = record.state is State.SENDING and not self.asks.is_followed_elsewhere(record)
        return PendingSale(self, record, None if sending else self.asks.follow(record))

    async def check(self, record: Record) -> RecordAndReport:
        """Query once now, and return what is known. Calls at the same time share a query, one a second at most."""
        self.asks.check_loop()
        ask = self.asks.follow(record)
        if ask is None and record.state in (State.ACCEPTED, State.CANCELLED) and self._may_query_now(record):
            ask = self.asks.add(record)  # it may be given back, or paid after all; dropped after its query
        if ask is None or ask.record.state.decided is not record.state.decided:  # changed since
            return await newest_of(self.asks, record), None
        report = await self._query_soon(ask)
        return ask.record, report or ask.report

    async def _query_soon(self, ask: Followed) -> StatusReport | None:
        """Query as soon as the rate allows it within the total time-out; not while the service wants a pause."""
        if ask.task is None:
            was_just_queried = self.clock.monotonic() - ask.queried_at < self.policy.least_gap
            if was_just_queried or not self._may_query_now(ask.record):
                return None
            await self._wait_in_line(ask, RequestLine.FINAL, self.policy.total_timeout)
        if (query := ask.task) is None:
            return None
        await asyncio.wait([query])
        return None if query.cancelled() else query.result()  # cancelled: the tracker closes

    def query_overdue(self, record: Record) -> None:
        """Query an ask that keeps another one of its purchase from being sent, if its time has passed.

        The queries that were planned of it may be used up, or hours behind by the rate, or another process's.
        """
        if (ask := self.asks.find(record.client_transaction_id)) is None or not self.policy.can_query:
            return
        is_overdue = ask.record.state is State.PENDING and self.clock.monotonic() >= ask.expires
        if ask.followed_elsewhere and is_overdue:
            ask.followed_elsewhere = False  # its process may follow no such asks
            self.asks.plan(ask)
        if ask.waits_over or awaits_last_query(ask.record):
            self.start_work(self._query_soon(ask))

    async def query_unqueried(self, record: Record) -> Record | None:
        """Query an ask that ended while nobody could query it, or before its customer acted.

        Return its record; None: another one may be sent.
        """
        if (ask := self.asks.follow(record)) is None:
            return None
        since = self.clock.monotonic()
        await self._query_soon(ask)
        is_heard = not customer_acted(ask.record) or (ask.is_answered and ask.queried_at >= since)
        is_exhausted = ask.record.evidence is Evidence.LAST_QUERY and is_heard
        if is_exhausted or ask.record.state in (State.CANCELLED, State.UNKNOWN):
            return None
        return ask.record

    def _may_query_now(self, record: Record) -> bool:
        """Return whether an attempt can be queried at all, and the service does not want a pause."""
        is_paused = self.rate.is_paused(self.clock.monotonic())
        return self.policy.can_find(record) and not self.asks.closed and not is_paused

    async def wait_for_turn(self) -> bool:
        """Wait until the rate allows a request, and count it; return False where its turn did not come in time.

        Waits for at most the sum of the total time-out and the rate's longest turn.
        """
        turn, patience = Scheduled(), self.policy.total_timeout + self.rate.longest_turn
        try:
            return await self._wait_in_line(turn, RequestLine.CALLERS, patience)
        finally:
            self._lines.drop(turn)
            self._starting.pop(turn, None)

    async def _wait_in_line(self, item: Scheduled, line: int, patience: float) -> bool:
        """Put the item in a line and wait at most `patience` seconds for its turn. Return whether it came."""
        started = self._starting.setdefault(item, asyncio.Event())
        self._lines.put(item, line)
        self._start_ready()
        if not started.is_set():
            with suppress(TimeoutError):
                await within(self.clock, patience, started.wait())
        return started.is_set()

    async def finish(
        self,
        work: Coroutine[None, None, _T],
        client_transaction_id: str,
        if_closed: str,
        *,
        at_end: Callable[[], object] = lambda: None,
    ) -> _T:
        """Await work that goes on where its caller is cancelled, as a web framework cancels when a browser hangs up.

        Raises `TrackerClosedError` with the message `if_closed` where a closing tracker ended the work. `at_end` is
        called at its end, also where its task was cancelled before it began.
        """
        task = start(work, self.detached)
        task.add_done_callback(lambda _: at_end())
        try:
            return await outlive(task)
        except PayError as error:
            raise named_error(error, client_transaction_id) from error.__cause__
        except asyncio.CancelledError:
            if not is_cancelled_alone(task):
                raise
        raise TrackerClosedError(if_closed, client_transaction_id=client_transaction_id)

    async def aclose(self, drain_seconds: float = 0.0) -> None:
        """Let sends end, then stop: waits end by `TrackerClosedError`; the ledger knows what is open."""
        try:
            await drain(self.detached, drain_seconds)
        except asyncio.CancelledError:  # who waits in other tasks would wait for ever
            await self._stop()
            raise
        await self._stop()

    async def _stop(self) -> None:
        """End requests and waits."""
        self.asks.closed = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            await cancel_all((*self._requests, *self._expiries, *self._works))
            closing = [] if self.asks.leases is None else [self.asks.leases.aclose()]
            await asyncio.gather(*closing, self.asks.late.aclose())  # once nothing else writes
        finally:  # also where the caller is cancelled
            self.confirmer.close()
            for started in self._starting.values():
                started.set()
            self.asks.close()
