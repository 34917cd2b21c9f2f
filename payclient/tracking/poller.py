"""Follows open asks to their end: one timer, at most 32 requests at once, and every wait. **Never POSTs a sale.**

Every change goes through the ledger first. However many asks are due at once, few are looked at in one turn of the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

import attrs

from payclient.auth import SIGNED_WITH
from payclient.clock import Clock, Timer, start, within
from payclient.errors import (
    LedgerError,
    PayError,
    RateLimitedError,
    StillPendingError,
    TrackerClosedError,
    TransitionError,
    UnauthorizedError,
)
from payclient.events import Event, Expired, Suspected
from payclient.ledger import Ledger, Shared
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW, Attentive, Fixed, Schedule, Steps
from payclient.session import PaySession
from payclient.tracking.confirmations import ReturnedForm
from payclient.tracking.confirmer import Confirmer
from payclient.tracking.due_times import DueTimes, Scheduled
from payclient.tracking.evidence import UNDER_ANOTHER, AnswerReader, Credentials, Reading
from payclient.tracking.followup import NEVER, NOTIFIED_DELAYS, Followed, Policy, StatusSource, TransactionRef
from payclient.tracking.late_writes import LateWrite, LateWrites
from payclient.tracking.outcomes import Outcome
from payclient.tracking.rate_limit import FINAL, LATE, NOTIFIED, ROUTINE, RateLimit, RequestLines
from payclient.tracking.recovery import is_noted
from payclient.tracking.sharing import LEASE, SharedRateLimit, Sharing

__all__: list[str] = []

logger = logging.getLogger("payclient.tracker")

#: Asks looked at, and new ones planned, in one turn of the loop.
PER_TURN = 250

#: Expiries written, and requests in flight, at once.
EXPIRIES_AT_ONCE = 64
REQUESTS_AT_ONCE = 32

#: Seconds of one slot of the due times, in a sale window of 300 s.
SLOT = 0.125

#: Seconds without queries after a 401.
UNAUTHORIZED_PAUSE = 30.0

#: What one query weighs in the share of those that fail, and the share from which a service counts as failing.
WEIGHT, FAILING = 1 / 16, 0.05

#: Seconds by which clocks may seem to drift apart before asks get an offset of their own.
SAME_OFFSET = 0.001


class Poller:
    """All open asks of one tracker."""

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
        self.ledger = ledger
        self.clock = clock
        self.credentials = Credentials(ledger.digest_key)
        self._source = status
        by_client = profile.status is not None and profile.status.by_client_transaction_id is not None
        by_id = profile.status is not None and profile.status.by_transaction_id is not None
        self.queries_by_client_id = by_client
        self._queries_by_id = by_id
        if schedule is None:
            schedule = Attentive(window=profile.sale_window)
        elif not isinstance(schedule, Attentive | Fixed | Steps):
            schedule = _UsersSchedule(schedule, profile.sale_window)
        self.policy = Policy(
            schedule,
            can_query=status is not None or profile.status is not None,
            proves_absence=status is None and by_client,
            by_transaction_id=status is not None or by_id,
            sale_window=profile.sale_window,
            form_window=profile.form_window,
            total_timeout=session.timeouts.total,
            absent_after=profile.absent_after,
        )
        self._reader = AnswerReader(self.policy, self.credentials if status is None else None)
        self.late = LateWrites(ledger, clock, session.timeouts.total)
        self.rate = RateLimit(profile.queries_per_minute)
        self.sharing: Sharing | None = None
        if isinstance(ledger, Shared):
            self.sharing = Sharing(self, ledger)
            if profile.queries_per_minute:
                self.rate = SharedRateLimit(
                    profile.queries_per_minute, ledger, clock, f"queries {session.base_url}", self.late
                )
        self._asks: dict[str, Followed] = {}
        self._offset = 0.0
        self._due: DueTimes[Scheduled] = DueTimes(SLOT * self.policy.scale)
        self._lines = RequestLines(profile.sale_window)
        self._to_expire: deque[Followed] = deque()
        self._timer: Timer | None = None
        self._timer_at = math.inf
        #: Requests and expiries in flight, and all else.
        self._requests: set[asyncio.Task[Any]] = set()
        self._expiries: set[asyncio.Task[Any]] = set()
        self._works: set[asyncio.Task[Any]] = set()
        #: Who waits for the query of an ask to be made, and for a request of their own.
        self._starting: dict[Followed, list[asyncio.Future[None]]] = {}
        self._turns: deque[asyncio.Future[None]] = deque()
        self._turns_first = True
        #: Of late, the share of queries that brought no answer.
        self._failing = 0.0
        #: When the first 401 came after the last answer; infinity: none did.
        self._refused_at = math.inf
        self.confirmer = Confirmer(self)
        self._said: set[str] = set()
        self._changed = asyncio.Event()
        #: Whether anybody has the event; making one costs as much as all the rest of a decision.
        self._watched = False
        #: Whether the tracker takes calls; `closed` once nothing is planned any more.
        self.is_open = self.closed = False

    def check_open(self, client_transaction_id: str | None = None) -> None:
        """Raise `TrackerClosedError` where the tracker is not open."""
        if not self.is_open:
            raise TrackerClosedError("the tracker is not open", client_transaction_id=client_transaction_id)

    # --- The index

    def follow(self, record: Record) -> Followed | None:
        """Follow an open ask; None if it is decided. The same ask is followed once."""
        ask = self._asks.get(record.client_transaction_id)
        if ask is not None and ask.record.attempt == record.attempt:
            if record.version > ask.record.version:
                self._take(ask, record)
            if ask.elsewhere and self._holds(ask):
                self._reconsider(ask)
            return ask
        if record.state.decided or self.closed or (ask and ask.record.attempt > record.attempt):
            return None
        now = self.clock.monotonic()
        ask = self._add(record, self._offset_of(record, now))
        if record.state is not State.PENDING:
            self.policy.findings(ask, now)
        if self.is_elsewhere(record):
            self.release(ask)
        else:
            self._plan_first(ask, now)
        return ask

    def _add(self, record: Record, offset: float) -> Followed:
        """Add what is followed, in the place of an older attempt: there is a next one, so that one created nothing."""
        before = self._asks.get(record.client_transaction_id)
        ask = self._asks[record.client_transaction_id] = Followed(record, offset)
        if before is not None:
            self.wake(before, exhausted=True)
        return ask

    def _offset_of(self, record: Record, now: float) -> float:
        offset = now - self.clock.time()
        expires_at = record.expires_at
        if expires_at is None:
            expires_at = record.created_at + self.policy.sale_window
        # Never later than a whole life from now, however the wall clock jumped between two runs.
        if offset + expires_at > (latest := now + self.policy.longest_life(record.kind)):
            offset = latest - expires_at
        # The number that the others have will do, if it is hardly later: there may be 100,000 of it.
        if not 0.0 <= self._offset - offset < SAME_OFFSET:
            self._offset = offset
        return self._offset

    def find(self, client_transaction_id: str) -> Followed | None:
        """What is followed here under this id, or waited for."""
        return self._asks.get(client_transaction_id)

    def get(self, client_transaction_id: str) -> Record | None:
        """The record of an open ask that is followed here: of others only the ledger knows the newest."""
        ask = self._asks.get(client_transaction_id)
        return None if ask is None or ask.elsewhere or ask.record.state.decided else ask.record

    def all(self) -> Iterator[Followed]:
        """Every open ask there is at the call."""
        return (ask for ask in tuple(self._asks.values()) if not ask.record.state.decided)

    def _holds(self, ask: Followed) -> bool:
        return self._asks.get(ask.record.client_transaction_id) is ask

    def follows(self, record: Record) -> bool:
        """Return whether it is followed: a form only where its status can be queried by our own id."""
        return record.kind == "sale" or self.queries_by_client_id

    def took(self, record: Record) -> None:
        """Learn what the ledger took from elsewhere: a send, a confirmation, an operator's word."""
        if record.state.decided:
            self.touch()
        if record.client_transaction_id in self._asks or self.follows(record):
            self.follow(record)

    @property
    def changed(self) -> asyncio.Event:
        """Set, and replaced, at the next change that the feed shows."""
        self._watched = True
        return self._changed

    def touch(self) -> None:
        """Something changed that the feed shows."""
        if self._watched:
            self._changed.set()
            self._changed = asyncio.Event()
            self._watched = False

    async def suspect(self, lane: bytes) -> None:
        """Note code 2061 in a lane: evidence that an unknown sale of the same lane landed. It decides nothing."""
        for ask in self.all():
            if ask.record.state is State.UNKNOWN and ask.record.lane == lane:
                await self.apply(ask, Suspected(at=self.clock.time()))

    # --- Changes: the ledger first

    async def apply(self, ask: Followed, event: Event) -> None:
        """Let the ledger take an event, and wake who waits. Where that fails the ask is queried again, later."""
        try:
            try:
                self._take(ask, await self.ledger.apply(ask.record, event))
            except TransitionError:
                if await self.reread(ask):
                    return
                # The ledger may lack what it could not take before.
                before = ask.record
                if await self._write_late(before.client_transaction_id) or ask.record is before:
                    raise
                self._take(ask, await self.ledger.apply(ask.record, event))
        except TransitionError:
            found = self.policy.findings(ask, self.clock.monotonic())
            found.failures += 1
            if found.failures == 1:
                logger.error(
                    "%s: %s does not take %s",
                    ask.record.client_transaction_id, ask.record.state, type(event).__name__,
                )  # fmt: skip
        except LedgerError as error:
            # Not known until it is on disk: it is queried again.
            self.policy.findings(ask, self.clock.monotonic()).failures += 1
            self.late.failed(error)

    async def reread(self, ask: Followed) -> bool:
        """Take what an operator or another process wrote; False if nothing is new."""
        newest = await self.ledger.get(ask.record.client_transaction_id)
        return newest is not None and self.learn(ask, newest)

    def learn(self, ask: Followed, newest: Record) -> bool:
        """Take what the ledger has; False if nothing is new."""
        if newest.attempt > ask.record.attempt:
            # This one created nothing, somebody else proved, and sent the next: that is the one to follow.
            if self._holds(ask):
                del self._asks[newest.client_transaction_id]
            self.wake(ask, exhausted=True)
            self.follow(newest)
            return True
        if newest.attempt == ask.record.attempt and newest.version > ask.record.version:
            self._take(ask, newest)
            return True
        return False

    def _take(self, ask: Followed, record: Record) -> None:
        """Hold what the ledger holds."""
        before, ask.record = ask.record, record
        if record.expires_at != before.expires_at and record.expires_at is not None:
            ask.offset = self._offset_of(record, self.clock.monotonic())
        if ask.findings is not None and not set(record.candidate_ids) <= set(before.candidate_ids):
            ask.findings.absent_at = None  # what was just named is queried before anything is proven
        if record.state is before.state:
            return
        self.touch()
        if not record.state.decided:
            return
        self.policy.decided(before, record)
        if self.sharing is not None:
            self.sharing.decided(record.client_transaction_id)
        if ask.waiters:
            self.wake(ask)
        if self._holds(ask):
            del self._asks[record.client_transaction_id]

    def wake(self, ask: Followed, *, exhausted: bool = False) -> None:
        """End the waits: it is decided, or no further query is made for them."""
        if exhausted:
            ask.exhausted = True
        for waiter in ask.waiters or ():
            _end(waiter)

    async def write(self, record: Record, event: Event) -> Record:
        """Record how an attempt ended: later where the ledger fails, and then the record says no more than it."""
        record, late = await self.late.write(record, event)
        if late is not None:
            self._plan(late, self.clock.monotonic() + late.delay())
        return record

    async def _write_late(self, client_transaction_id: str) -> bool:
        """Write what the ledger could not take; whether something is left."""
        written, left = await self.late.write_now(client_transaction_id)
        for record in written:
            self.took(record)
        return left

    async def _write_again(self, late: LateWrite) -> None:
        left = True
        try:
            left = await self._write_late(late.client_transaction_id)
        finally:
            late.task = None
            if left and not self.closed:
                self._plan(late, self.clock.monotonic() + late.delay())

    # --- What is due

    def _plan_first(self, ask: Followed, now: float) -> None:
        """Look at it for the first time: at once if it was notified before our answer came."""
        record = ask.record
        if record.notified_at is not None and record.state is State.PENDING:
            self.query_now(ask)
        elif self.policy.is_new(ask, now):
            due, expires = self._due.new_due, ask.expires
            # The first of a line says when: nothing is due sooner for those behind it but an expiry.
            if due == math.inf:
                due = now + self.policy.soonest()
            if expires < due:
                due = expires
            self._due.put_new(ask, due)
            if due < self._timer_at:
                self._arm()
        else:
            self._plan(ask, self.policy.first(ask, now))

    def notified(self, record: Record, *, again: bool = False) -> None:
        """An open ask was notified: query it now, unless its follower is another process, which learns of it too."""
        if record.client_transaction_id not in self._asks and self.is_elsewhere(record):
            return
        if (ask := self.follow(record)) is not None and not ask.record.state.decided:
            self.query_now(ask, again=again)

    def query_now(self, ask: Followed, *, again: bool = False) -> None:
        """Query at once, ahead of the routine; where nothing can be queried, end the waits.

        `again`: the same was notified before, and earns no more than one query, a second after the last one.
        """
        if not self.policy.can_query:
            self.wake(ask, exhausted=True)
            if ask.slot is None:
                self._plan(ask, ask.expires)
            return
        if ask.elsewhere:
            return  # its follower learns of it too
        now = self.clock.monotonic()
        found = self.policy.findings(ask, now)
        if not again:
            found.notified_queries = 0
        elif found.notified_queries is None:
            found.notified_queries = len(NOTIFIED_DELAYS)
        when = ask.queried_at + self.policy.least_gap
        if now < when or ask.task is not None:
            self._plan(ask, max(when, now))
        else:
            self._look_at(ask, now)
            self._start_ready()

    def recheck(self, record: Record, *, after: float = 0.0) -> None:
        """Query a decided ask once, for a correction: when it is its turn, or after so many seconds."""
        if not self.policy.can_query or record.state is State.ACCEPTED or self.closed:
            return
        now, ask = self.clock.monotonic(), self._asks.get(record.client_transaction_id)
        if ask is not None and ask.record.attempt > record.attempt:
            return
        if ask is not None and ask.record.attempt == record.attempt and record.version > ask.record.version:
            self._take(ask, record)  # the waits of an ask that another process decided end here
        if ask is None or not self._holds(ask) or ask.record.attempt < record.attempt:
            ask = self._add(record, 0.0)
        found = self.policy.findings(ask, now)
        if after:
            found.recheck_at = now + after
            if ask.slot is None and ask.task is None:
                self._plan(ask, found.recheck_at)
        elif not ask.line:
            found.notified_again = True
            when = ask.queried_at + self.policy.least_gap
            if now < when or ask.task is not None:
                self._plan(ask, max(when, now))
            else:
                self._look_at(ask, now)
                self._start_ready()

    def _look_at_decided(self, ask: Followed, now: float) -> None:
        found = self.policy.findings(ask, now)
        if found.notified_again or now >= found.recheck_at:
            found.notified_again = False
            if now >= found.recheck_at:
                found.recheck_at = math.inf
            self._lines.put(ask, LATE)
        elif found.recheck_at < math.inf:
            self._plan(ask, found.recheck_at)
        else:
            del self._asks[ask.record.client_transaction_id]

    def release(self, ask: Followed) -> None:
        """Another process follows it: query it no more."""
        ask.elsewhere = True
        self._lines.drop(ask)
        self._plan(ask, self.policy.patience(ask, self.clock.monotonic(), LEASE))

    def is_elsewhere(self, record: Record) -> bool:
        """Return whether another process sends it, or follows it."""
        return self.sharing is not None and not self.sharing.ours(record.client_transaction_id)

    def _reconsider(self, ask: Followed) -> None:
        """Somebody asks for what another process followed: is it ours by now?"""
        if not self.is_elsewhere(ask.record):
            ask.elsewhere = False
            self._plan_first(ask, self.clock.monotonic())
        elif ask.slot is None and ask.task is None:
            self.release(ask)  # a new wait must end, too

    def _plan(self, item: Scheduled, when: float) -> None:
        self._due.put(item, when)
        if when < self._timer_at:
            self._arm()

    def _plan_next(self, ask: Followed, now: float) -> None:
        """Say when this ask is looked at next, and end the waits that have nothing more to hope for."""
        when = self.policy.after(ask, now)
        if when is None:
            self.wake(ask, exhausted=True)
            when = self.policy.recheck(ask, now)
        if when is not None:
            self._plan(ask, when)

    def _arm(self) -> None:
        when = self._due.first()
        waits = self._turns or (self._lines and len(self._requests) < REQUESTS_AT_ONCE)
        if self.sharing is not None:
            self._share_rate(wanted=bool(waits))
        if waits:
            when = min(when, max(self.rate.ready_at(), self.clock.monotonic()))
        if when < self._timer_at and not self.closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self.clock.call_at(when, self._turn)

    def _turn(self) -> None:
        """Look at what is due: bounded, so that no crowd stalls the loop."""
        self._timer, self._timer_at = None, math.inf
        now = self.clock.monotonic()
        for _ in range(PER_TURN):
            # One of each, so that no stream of new ones keeps waiting what is due.
            new = self._due.pop_new(now)
            if isinstance(new, Followed) and self._holds(new):
                self._due.put(new, self.policy.first_of_new(new))
            item = self._due.pop(now)
            if item is not None:
                self._look(item, now)
            elif new is None:
                break
        self._start_ready()

    def _look(self, item: Scheduled, now: float) -> None:
        if item.task is not None:
            return  # what runs plans the next look
        if isinstance(item, Followed):
            if self._holds(item):
                self._look_at(item, now)
        elif isinstance(item, ReturnedForm):
            if item.line:
                self._request(item, now)  # it waited long enough for its turn by the rate
            elif item.due(now) is not None:
                self._lines.put(item, NOTIFIED)
                self._due.put(item, item.forced_at(now))
        elif isinstance(item, LateWrite):
            self._run(item, self._write_again(item), self._works)

    def _look_at(self, ask: Followed, now: float) -> None:
        """One ask is due: it expires, or waits for its query, or its waiters have waited enough."""
        policy, found = self.policy, ask.findings
        if ask.record.state.decided:
            self._look_at_decided(ask, now)
            return
        if ask.elsewhere:
            if ask.waiters and self.sharing is not None:
                self.sharing.follow_beside(ask.record.client_transaction_id)
                ask.elsewhere = False
                self._plan_next(ask, now)
            return
        # Where writing it down failed, querying goes on all the same, and tries again.
        failing = found is not None and found.failures > 0 and policy.can_query
        if ask.record.state is State.PENDING and now >= ask.expires and not failing:
            self._to_expire.append(ask)
            return
        if not policy.can_query:
            self._plan_next(ask, now)
            return
        if now >= ask.expires:
            found = policy.findings(ask, now)
            if not ask.exhausted and now >= policy.end(ask) and self._failing > FAILING:
                self.wake(ask, exhausted=True)
        # However long it waits for its turn.
        again = policy.look_again(ask, now)
        if again is not None:
            self._due.put(ask, again)
        notified = found is not None and found.notified_queries is not None
        self._lines.put(ask, NOTIFIED if notified else FINAL if policy.is_final(ask, now) else ROUTINE)

    def _start_ready(self) -> None:
        """Expire and query as many of those that are due as may be at once."""
        now = self.clock.monotonic()
        while self._to_expire and len(self._expiries) < EXPIRIES_AT_ONCE:
            ask = self._to_expire.popleft()
            if ask.task is None and self._holds(ask):
                self._run(ask, self._expire(ask), self._expiries)
        while self.rate.ready_at() <= now:
            queries = self._lines and len(self._requests) < REQUESTS_AT_ONCE
            if self._turns and (self._turns_first or not queries):
                self._turns_first = False
                turn = self._turns.popleft()
                if not turn.done():
                    self.rate.spend(now)
                    turn.set_result(None)
                continue
            item = self._lines.pop(now, ranked=self.rate.binds) if queries else None
            if item is None:
                break
            self._turns_first = True
            self._request(item, now)
        self._arm()

    def _request(self, item: Scheduled, now: float) -> None:
        """Make the next request of an item, now that it is its turn."""
        if isinstance(item, Followed):
            if item.task is None and self._holds(item):
                self.rate.spend(now)
                self._run(item, self._query(item), self._requests)
            for started in self._starting.pop(item, ()):
                _end(started)
        elif isinstance(item, ReturnedForm) and item.task is None:
            self.rate.spend(now)
            self._run(item, self.confirmer.request(item, now), self._requests)

    def plan_form(self, form: ReturnedForm) -> None:
        """Make the next request of a form when it is due; now if it is."""
        if self.closed or form.task is not None or form.line:
            return
        now = self.clock.monotonic()
        due = form.due(now)
        if due is not None and due <= now:
            self._look(form, now)
            self._start_ready()
        elif due is not None:
            self._plan(form, due)

    def _run(self, item: Scheduled, work: Coroutine[None, None, Any], tasks: set[asyncio.Task[Any]]) -> None:
        """Start the request of an item; when it ends, others may start."""
        self._lines.drop(item)
        item.task = self._start(work, tasks)

    def _start(self, work: Coroutine[None, None, Any], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        task = start(work)
        tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            tasks.discard(task)
            if not self.closed:
                self._start_ready()

        task.add_done_callback(done)
        return task

    def _share_rate(self, *, wanted: bool) -> None:
        """Let the rate be known to the other processes of the ledger."""
        if not self.closed and (work := self.rate.ledger_work(self.clock.monotonic(), wanted=wanted)):
            self._start(work, self._works)

    # --- Expiries and queries

    async def _expire(self, ask: Followed) -> None:
        """Note that the window passed unheard, by our clock."""
        try:
            await self.apply(ask, Expired(at=self.clock.time()))
        except Exception as error:  # a fault of ours must not end the poller
            _failed(ask.record, error)
        finally:
            self._ended(ask)

    async def _query(self, ask: Followed) -> StatusReport | None:
        """Expire it by the clock if it is time, query once, take the answer, and plan the next look."""
        report = None
        try:
            now = self.clock.monotonic()
            if ask.record.state is State.PENDING and now >= ask.expires:
                await self.apply(ask, Expired(at=self.clock.time()))
            if ask.record.state.decided:
                with suppress(LedgerError):
                    await self.reread(ask)  # another attempt may have been made since
            late = ask.record.state.decided and self._holds(ask)
            if late or not ask.record.state.decided:
                # It counts when made, not when due.
                ask.queried_at = now
                if not late and self.policy.is_final(ask, now):
                    ask.final_queries += 1
                ask.slim()
                report = await self._query_once(ask, now)
        except Exception as error:  # a fault of ours or of a status source must not end the poller
            _failed(ask.record, error)
            self.policy.findings(ask, self.clock.monotonic()).failures += 1
        finally:
            self._ended(ask)
        return report

    def _ended(self, ask: Followed) -> None:
        ask.task = None
        if self.closed or not self._holds(ask):
            return
        now = self.clock.monotonic()
        if ask.record.state.decided:
            self._plan(ask, max(ask.queried_at + self.policy.least_gap, now))
        elif ask.elsewhere:
            self.release(ask)
        else:
            self._plan_next(ask, now)

    async def _query_once(self, ask: Followed, now: float) -> StatusReport | None:
        """Query once and let the ledger take the answer; the report, if one came that is ours."""
        query = self.policy.next_query(ask, now)
        answered, report = await self._fetch(ask, query)
        if not answered:
            if ask.findings is not None:
                ask.findings.client_queried_at = (
                    NEVER  # without an answer it proves nothing: it is made again
                )
            return None
        now, at, token = self.clock.monotonic(), self.clock.time(), SIGNED_WITH.get()
        if report is None:
            reading = self._reader.not_found(ask, query, now, at, token)
        else:
            if ask.record.kind == "form":
                report = self.confirmer.unless_confirmed(ask.record, report)
            reading = self._reader.report(ask, query, report, now, at, token)
        if reading.looks_at_all:
            # All transactions of this client transaction id, before a cancelled one decides.
            if not await self.wait_for_turn(self.policy.total_timeout):
                return None
            answered, report = await self._fetch(
                ask, attrs.evolve(query, transaction_id=None, candidate_id=None)
            )
            if not answered:
                return None
            now, at = self.clock.monotonic(), self.clock.time()
            reading = self._reader.all_transactions(ask, query, report, now, at)
        await self._act(ask, reading)
        return reading.report

    async def _act(self, ask: Followed, reading: Reading) -> None:
        identifier, decided = ask.record.client_transaction_id, ask.record.state.decided
        # What is known of a decided ask is made anew for each query: its history tells what was said before.
        if not decided or not await is_noted(self.ledger, ask.record, reading.events):
            for alarm in reading.alarms:
                logger.critical("%s: %s", identifier, alarm)
            for event in reading.events:
                await self.apply(ask, event)
            if reading.conflict is not None:
                logger.error("%s: a status report is not ours: %s", identifier, reading.conflict)
        if reading.warning is not None:
            self.say(reading.warning, f"{identifier}: {reading.warning}")

    async def _fetch(self, ask: Followed, query: TransactionRef) -> tuple[bool, StatusReport | None]:
        """Query once; whether an answer came, and its report."""
        made_at = self.clock.monotonic()
        try:
            report = await self._status(query)
        except RateLimitedError as limited:
            if ask.final_queries:
                ask.final_queries -= 1  # it was not made, as far as a wait is concerned
            self.rate.rate_limited(self.clock.monotonic(), made_at, limited.retry_after)
        except UnauthorizedError:
            # The first 401 may only mean that a fresh token is due: the next query is signed with that one.
            if made_at > self._refused_at:
                self.rate.pause(self.clock.monotonic(), UNAUTHORIZED_PAUSE * self.policy.scale)
                self.say("401", "status queries are refused (401): is the token still good?")
            elif self._refused_at == math.inf:
                self._refused_at = self.clock.monotonic()
        except Exception as error:  # of a user's own source anything
            self.policy.findings(ask, self.clock.monotonic()).failures += 1
            name = type(error).__name__
            self.say(f"error {name}", f"a status query failed: {name}")
        else:
            self._failing -= WEIGHT * self._failing
            self.rate.answered(made_at)
            self._refused_at = math.inf
            if ask.findings is not None:
                ask.findings.failures = 0
            return True, report
        self._failing += WEIGHT * (1.0 - self._failing)
        return False, None

    async def _status(self, query: TransactionRef) -> StatusReport | None:
        if self._source is not None:
            return await within(self.clock, self.policy.total_timeout, self._source(query))
        transaction_id = query.transaction_id or query.candidate_id
        if self.queries_by_client_id and (transaction_id is None or not self._queries_by_id):
            return await self.session.status(client_transaction_id=query.client_transaction_id, repeat=False)
        return await self.session.status(transaction_id=transaction_id, repeat=False)

    async def check(self, record: Record) -> Outcome:
        """Query once now, shared with whoever checks too, at most once a second; then what is known."""
        ask = self.follow(record)
        if ask is None or ask.record.state.decided:
            return await self._settled(record)
        report = await self._query_soon(ask)
        return Outcome.of(ask.record, report=report or ask.report)

    async def _query_soon(self, ask: Followed) -> StatusReport | None:
        """Query as soon as it is its turn; not where the service wants a pause or the turn is long in coming."""
        now = self.clock.monotonic()
        if (
            not self.policy.can_query
            or now - ask.queried_at < self.policy.least_gap
            or self.rate.is_paused(now)
        ):
            return None
        if ask.task is None:
            self._lines.put(ask, FINAL)
            self._start_ready()
        if ask.task is None and not self.closed:
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._starting.setdefault(ask, []).append(started)
            await self.wait_at_most(started, self.policy.total_timeout)
        return None if ask.task is None else await asyncio.shield(ask.task)

    async def wait_for_turn(self, patience: float) -> bool:
        """Wait until another request may be made by the rate, at most so many seconds; whether it may, and counts."""
        now = self.clock.monotonic()
        if not self._turns and self.rate.ready_at() <= now:
            self.rate.spend(now)
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._arm()
        return await self.wait_at_most(turn, patience)

    async def wait_at_most(self, ended: asyncio.Future[None], seconds: float) -> bool:
        """Wait; whether it ended by itself within so many seconds."""
        late = asyncio.get_running_loop().create_future()
        timer = self.clock.call_at(self.clock.monotonic() + seconds, _give_up, ended, late)
        try:
            await ended
        finally:
            timer.cancel()
        return not late.done()

    def may_deny(self, record: Record) -> bool:
        """Return whether "not found" under the token in use speaks of this attempt; warn once where it does not."""
        if self.credentials.may_deny(record, SIGNED_WITH.get()):
            return True
        self.say(UNDER_ANOTHER, f"{record.client_transaction_id}: {UNDER_ANOTHER}")
        return False

    def say(self, key: str, message: str) -> None:
        """Log a warning once."""
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", message)

    # --- Waiting

    async def wait(self, record: Record, timeout: float | None) -> Outcome:
        """Until the ask is decided, or no further query is planned; see `PendingSale.wait`."""
        ask = self.follow(record)
        if ask is None:
            return await self._settled(record)
        if (ask.exhausted and not ask.record.state.decided) or ask.elsewhere:
            # Nothing more is queried for it here, but an operator or another process may have decided it.
            with suppress(LedgerError):  # what is known is true all the same
                await self.reread(ask)
        if ask.record.state.decided or ask.exhausted:
            return Outcome.of(ask.record, report=ask.report)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if ask.waiters is None:
            ask.waiters = set()
        ask.waiters.add(waiter)
        timer = None
        if timeout is not None:
            late = StillPendingError(
                "still pending; tracking goes on", client_transaction_id=record.client_transaction_id
            )
            timer = self.clock.call_at(self.clock.monotonic() + timeout, _fail, waiter, late)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            ask.waiters.discard(waiter)
        return Outcome.of(ask.record, report=ask.report)

    async def _settled(self, record: Record) -> Outcome:
        """What the ledger says of an ask that is not followed."""
        if self.closed and not record.state.decided:
            raise _closed(record, "the tracker is closed")
        try:
            newest = await self.ledger.get(record.client_transaction_id)
        except LedgerError:
            if not record.state.decided:
                raise
            return Outcome.of(record)
        if newest is not None and newest.attempt == record.attempt:
            record = newest
        return Outcome.of(record)

    def remaining(self, record: Record) -> float:
        """Seconds until the customer can no longer approve, at least 0."""
        return 0.0 if record.expires_at is None else max(record.expires_at - self.clock.time(), 0.0)

    async def aclose(self) -> None:
        """Stop: waits end by `TrackerClosedError`; the ledger knows what is open."""
        await self.late.aclose()
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.sharing is not None:
            await self.sharing.aclose()
        tasks = (*self._requests, *self._expiries, *self._works)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._due.clear()
        self._lines.clear()
        self._to_expire.clear()
        self.confirmer.close()
        for waiting in (*self._turns, *(each for several in self._starting.values() for each in several)):
            _end(waiting)
        for ask in self._asks.values():
            for waiter in ask.waiters or ():
                _fail(waiter, _closed(ask.record, "the tracker was closed"))
        self._asks.clear()
        self._changed.set()


class _UsersSchedule:
    """A schedule of the user's own, whose faults must not end the poller."""

    def __init__(self, schedule: Schedule, sale_window: float) -> None:
        self._schedule = schedule
        self._default = 2.0 * sale_window / NORMAL_WINDOW

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        try:
            return float(self._schedule.gap(age, part=part, heard=heard))
        except Exception as error:  # whatever it raises
            logger.error("the schedule failed: %s", type(error).__name__)
            return self._default


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _fail(waiting: asyncio.Future[None], error: PayError) -> None:
    if not waiting.done():
        waiting.set_exception(error)


def _give_up(waiting: asyncio.Future[None], late: asyncio.Future[None]) -> None:
    if not waiting.done():
        late.set_result(None)
        waiting.set_result(None)


def _closed(record: Record, what: str) -> TrackerClosedError:
    return TrackerClosedError(what, client_transaction_id=record.client_transaction_id)


def _failed(record: Record, error: Exception) -> None:
    logger.error("%s: following failed: %s", record.client_transaction_id, type(error).__name__)
