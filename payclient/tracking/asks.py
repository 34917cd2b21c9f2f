"""What is open: the index of all asks, when each is looked at, how it changes, and who waits for it.

Every change goes through the ledger first. There may be 100,000 asks, so that a new one must cost little.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from payclient.clock import Clock
from payclient.errors import (
    LedgerError,
    LedgerUnavailableError,
    PayError,
    StillPendingError,
    TrackerClosedError,
    TransitionError,
)
from payclient.events import Event, Evidence, Suspected
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.tracking.followup import Followed, Policy, Scheduled
from payclient.tracking.late_writes import LateWrites, unwritten
from payclient.tracking.outcomes import Outcome
from payclient.tracking.sharing import LEASE, NO_MORE, Sharing

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("payclient.tracker")

#: Seconds of one slot of the due times, in a sale window of 300 s.
SLOT = 0.125

#: Due before all that has a time.
AT_ONCE = 0.0

#: Seconds by which clocks may seem to drift apart before asks get an offset of their own.
SAME_OFFSET = 0.001


class DueTimes:
    """A heap of slots of `width` seconds. An item comes out so much late at most, never early; adding one is an append.

    New asks come in droves, and many are decided before anything is due for them. So they wait in one line, and come
    out together when the first of them may be due: only then it is worked out when each of them is.
    """

    def __init__(self, width: float) -> None:
        self._width = width
        self._slots: dict[int, deque[Scheduled]] = {}
        self._order: list[int] = []
        self._new: deque[Scheduled] = deque()
        #: When the new ones come out; infinity if there are none.
        self.new_due: float = math.inf

    def put_new(self, item: Scheduled, soonest: float) -> None:
        """Add a new one, which is due then or later: `pop_new` returns it in time to `put` it."""
        item.slot = self._new
        self._new.append(item)
        if soonest < self.new_due:
            self.new_due = soonest

    def pop_new(self, now: float) -> Scheduled | None:
        """A new one, as long as there are any once one of them may be due; None if none may be."""
        if self.new_due > now:
            return None
        while self._new:
            item = self._new.popleft()
            if item.slot is self._new:
                item.slot = None
                return item
        self.new_due = math.inf
        return None

    def put(self, item: Scheduled, when: float) -> None:
        """Look at it then; what was planned for it before counts no more."""
        width = self._width
        number = math.ceil(when / width)
        if number * width < when:  # rounded
            number += 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = deque()
            heapq.heappush(self._order, number)
        slot.append(item)
        item.slot = slot

    def first(self) -> float:
        """When something is due next; infinity if nothing ever is."""
        return min(self._order[0] * self._width, self.new_due) if self._order else self.new_due

    def pop(self, now: float) -> Scheduled | None:
        """An item that is due, in the order of the slots; None if none is."""
        while self._order and self._order[0] * self._width <= now:
            slot = self._slots[self._order[0]]
            while slot:
                item = slot.popleft()
                if item.slot is slot:
                    item.slot = None
                    return item
            del self._slots[heapq.heappop(self._order)]
        return None


class OpenAsks:
    """All open asks of one tracker, and decided ones that are queried once more."""

    def __init__(self, ledger: Ledger, clock: Clock, policy: Policy) -> None:
        self.ledger = ledger
        self.clock = clock
        self.policy = policy
        self.due: DueTimes = DueTimes(SLOT * policy.scale)
        self.late: LateWrites = LateWrites(ledger, clock, policy.total_timeout)
        #: None: no other process has this ledger.
        self.sharing: Sharing | None = None
        self._asks: dict[str, Followed] = {}
        #: What is followed here under this id, or waited for.
        self.find: Callable[[str], Followed | None] = self._asks.get
        self._offset = 0.0
        self._changed = asyncio.Event()
        #: Whether anybody has the event; making one costs as much as all the rest of a decision.
        self._watched = False
        #: Called with the record before and after each change of state of an ask that is followed here.
        self.on_change: Callable[[Record, Record], object] | None = None
        #: Called once a form is decided: its links are dead.
        self.form_decided: Callable[[], None] = _nothing
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
                self.take(ask, record)
            if ask.elsewhere and self.holds(ask):
                self._reconsider(ask)
            return ask
        if record.state.decided or self.closed or (ask and ask.record.attempt > record.attempt):
            return None
        now = self.clock.monotonic()
        ask = self.add(record, self._offset_of(record, now))
        if record.state is not State.PENDING:
            self.policy.findings(ask, now)
        if self.sharing is not None and self.is_elsewhere(record):
            self.release(ask)
        else:
            self._plan_first(ask, now)
        return ask

    def add(self, record: Record, offset: float = 0.0) -> Followed:
        """Add an ask in the place of an older attempt: there is a next one, so that one created nothing."""
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
        if offset + expires_at > (latest := now + self.policy.longest_life[record.kind]):
            offset = latest - expires_at
        # The number that the others have will do, if it is hardly later: there may be 100,000 of it.
        if not 0.0 <= self._offset - offset < SAME_OFFSET:
            self._offset = offset
        return self._offset

    def _plan_first(self, ask: Followed, now: float) -> None:
        """Look at it for the first time: at once if it was notified before our answer came."""
        record = ask.record
        if record.notified_at is not None and record.state is State.PENDING:
            self.policy.findings(ask, now).notified_queries = 0
            ask.exhausted = not self.policy.can_query  # then nothing is to be hoped for
            self.due.put(ask, ask.expires if ask.exhausted else AT_ONCE)
        elif self.policy.is_new(ask, now):
            # The first of a line says when: nothing is due sooner for those behind it but an expiry.
            due = self.due.new_due
            if due == math.inf:
                due = now + self.policy.soonest()
            self.due.put_new(ask, min(due, ask.expires))
        else:
            self.due.put(ask, self.policy.first(ask, now))

    def get(self, client_transaction_id: str) -> Record | None:
        """The record of an open ask that is followed here: of others only the ledger knows the newest."""
        ask = self._asks.get(client_transaction_id)
        return None if ask is None or ask.elsewhere or ask.record.state.decided else ask.record

    def all(self) -> Iterator[Followed]:
        """Every open ask there is at the call."""
        return (ask for ask in tuple(self._asks.values()) if not ask.record.state.decided)

    def holds(self, ask: Followed) -> bool:
        """Whether this is still the one of its client transaction id."""
        return self._asks.get(ask.record.client_transaction_id) is ask

    def drop(self, ask: Followed) -> None:
        """Forget it."""
        if self.holds(ask):
            del self._asks[ask.record.client_transaction_id]

    def plan_next(self, ask: Followed, now: float) -> None:
        """Say when it is looked at next, and end the waits that have nothing more to hope for."""
        when = self.policy.after(ask, now)
        if when is None:
            self.wake(ask, exhausted=True)
            when = self.policy.recheck(ask, now)
            if self.sharing is not None and ask.record.state is State.EXPIRED:
                seconds = NO_MORE if when is None else when - now
                self.sharing.defer(ask.record.client_transaction_id, seconds)
        if when is not None:
            self.due.put(ask, when)

    # --- With other processes

    def is_elsewhere(self, record: Record) -> bool:
        """Return whether another process sends it, or follows it."""
        return self.sharing is not None and not self.sharing.ours(record.client_transaction_id)

    def release(self, ask: Followed) -> None:
        """Another process follows it: query it no more."""
        ask.elsewhere = True
        self.due.put(ask, self.policy.patience(ask, self.clock.monotonic(), LEASE))

    def _reconsider(self, ask: Followed) -> None:
        """Somebody waits for what another process followed: is it ours by now?"""
        if not self.is_elsewhere(ask.record):
            ask.elsewhere = False
            self._plan_first(ask, self.clock.monotonic())
        elif ask.slot is None and ask.task is None:
            self.release(ask)  # a new wait must end, too

    def take_back(self, ask: Followed, now: float) -> None:
        """Query it here, if somebody waits: its follower should have come to an end by now."""
        if ask.waiters and self.sharing is not None:
            self.sharing.follow_beside(ask.record.client_transaction_id)
            ask.elsewhere = False
            self.plan_next(ask, now)

    # --- Changes

    async def apply(self, ask: Followed, event: Event) -> None:
        """Let the ledger take an event, and wake who waits. Where that fails the ask is queried again, later."""
        try:
            try:
                self.take(ask, await self.ledger.apply(ask.record, event))
            except TransitionError:
                if await self.reread(ask):
                    return
                # The ledger may lack what it could not take before.
                before = ask.record
                if await self.write_late(before.client_transaction_id) or ask.record is before:
                    raise
                self.take(ask, await self.ledger.apply(ask.record, event))
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
            self.late.failed_write(error)

    async def reread(self, ask: Followed) -> bool:
        """Take what an operator or another process wrote; False if nothing is new."""
        newest = await self.ledger.get(ask.record.client_transaction_id)
        return newest is not None and self.learn(ask, newest)

    def learn(self, ask: Followed, newest: Record) -> bool:
        """Take what the ledger has; False if nothing is new."""
        if newest.attempt > ask.record.attempt:
            # This one created nothing, somebody else proved, and sent the next: that is the one to follow.
            self.drop(ask)
            self.wake(ask, exhausted=True)
            self.follow(newest)
            return True
        if newest.attempt == ask.record.attempt and newest.version > ask.record.version:
            self.take(ask, newest)
            return True
        return False

    def take(self, ask: Followed, record: Record) -> None:
        """Hold what the ledger holds."""
        before, ask.record = ask.record, record
        if record.expires_at != before.expires_at and record.expires_at is not None:
            ask.offset = self._offset_of(record, self.clock.monotonic())
        if ask.findings is not None and not set(record.candidate_ids) <= set(before.candidate_ids):
            ask.findings.absent_at = None  # what was just named is queried before anything is proven
        if record.state is before.state:
            if record.evidence is Evidence.LAST_QUERY and ask.waiters:
                self.wake(ask, exhausted=True)  # made by whichever process
            return
        self.touch()
        if self.on_change is not None:
            self.on_change(before, record)
        if record.state.decided:
            self.policy.decided(before, record)
            if self.sharing is not None:
                self.sharing.decided(record.client_transaction_id)
            if record.kind == "form":
                self.form_decided()
            if ask.waiters:
                self.wake(ask)
            self.drop(ask)

    async def write(self, record: Record, event: Event) -> Record:
        """Record how an attempt ended: later where the ledger fails, and then the record says no more than it."""
        try:
            return await self.late.apply(record, event)
        except TransitionError:
            return await self.late.decided_otherwise(record, event)
        except LedgerUnavailableError as error:
            late = self.late.keep(record, event, error)
        if late is not None:
            self.due.put(late, self.clock.monotonic() + late.delay())
        return unwritten(record, event)

    async def write_late(self, client_transaction_id: str) -> bool:
        """Write what the ledger could not take; whether something is left."""
        written, left = await self.late.write_now(client_transaction_id)
        for record in written:
            self.took(record)
        return left

    def took(self, record: Record) -> None:
        """Learn what the ledger took from elsewhere: a send, a confirmation, an operator's word."""
        if record.state.decided:
            self.touch()
            if record.kind == "form":
                self.form_decided()
        if record.client_transaction_id in self._asks or self.policy.follows(record):
            self.follow(record)
        elif self.sharing is not None and not record.state.decided:
            self.sharing.defer(record.client_transaction_id, NO_MORE)  # until it is notified

    async def suspect(self, lane: bytes) -> None:
        """Note code 2061 in a lane: evidence that an unknown sale of the same lane landed. It decides nothing."""
        for ask in self.all():
            if ask.record.state is State.UNKNOWN and ask.record.lane == lane:
                await self.apply(ask, Suspected(at=self.clock.time()))

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

    # --- Waits

    async def refresh(self, ask: Followed) -> None:
        """Reread an ask of which nothing more is learnt here: an operator or another process may have decided it."""
        if (ask.exhausted and not ask.record.state.decided) or ask.elsewhere:
            with suppress(LedgerError):  # what is known is true all the same
                await self.reread(ask)

    async def wait(self, ask: Followed, timeout: float | None) -> Outcome:
        """Until the ask is decided, or no further query is planned."""
        if ask.record.state.decided or ask.exhausted:
            return Outcome.of(ask.record, report=ask.report)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if ask.waiters is None:
            ask.waiters = set()
        ask.waiters.add(waiter)
        timer = None
        if timeout is not None:
            identifier = ask.record.client_transaction_id
            late = StillPendingError(
                f"{identifier} is still {ask.record.state} after {timeout:g} s; tracking goes on. A web request should "
                "not wait: answer it at once, and show waiting_page",
                client_transaction_id=identifier,
            )
            timer = self.clock.call_at(self.clock.monotonic() + timeout, _fail, waiter, late)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            ask.waiters.discard(waiter)
        return Outcome.of(ask.record, report=ask.report)

    async def settled(self, record: Record) -> Outcome:
        """What the ledger says of an ask that is not followed."""
        if self.closed and not record.state.decided:
            raise _closed(record, "the tracker is closed")
        try:
            newest = await self.ledger.get(record.client_transaction_id)
        except LedgerError:
            if not record.state.decided:
                raise
            newest = None
        if newest is not None and newest.attempt == record.attempt:
            record = newest
        return Outcome.of(record)

    def wake(self, ask: Followed, *, exhausted: bool = False) -> None:
        """End the waits: it is decided, or no further query is made for them."""
        if exhausted:
            ask.exhausted = True
        for waiter in ask.waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """End every wait by `TrackerClosedError`; the ledger knows what is open."""
        for ask in self._asks.values():
            for waiter in ask.waiters or ():
                _fail(waiter, _closed(ask.record, "the tracker was closed"))
        self._asks.clear()
        self._changed.set()


def _nothing() -> None:
    pass


def _fail(waiting: asyncio.Future[None], error: PayError) -> None:
    if not waiting.done():
        waiting.set_exception(error)


def _closed(record: Record, what: str) -> TrackerClosedError:
    return TrackerClosedError(what, client_transaction_id=record.client_transaction_id)
