"""Open asks: the index of all, when each is looked at, how it changes, and who waits for it.

Every change goes through the ledger first. There may be 100,000 asks, so that a new one must cost little.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from payclient.clock import Clock, end
from payclient.errors import LedgerError, TrackerClosedError, TransitionError, UsageError
from payclient.events import Event, Evidence, Suspected
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.tracking.followup import NEVER, Followed, Policy, Scheduled, awaits_last_query, customer_acted
from payclient.tracking.late_writes import LateWrites
from payclient.tracking.leases import A_DAY, A_YEAR, Leases

#: Seconds of one slot of the due times, in a sale window of 300 s.
SLOT = 0.125

#: Seconds by which the wall clock may differ from what has passed since the tracker was opened.
MOST_JUMP = 30.0

#: The states of a sale that was found: from its begin on its customer may approve it.
_APPROVABLE = (State.PENDING, State.EXPIRED)

#: States that nobody may follow yet: its sender, or who gives it back, writes what comes next.
_UNFOLLOWED = (State.SENDING, State.REVERSING)


class DueTimes:
    """A heap of slots of `width` seconds. An item comes out at most one width late, and never early."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._slots: dict[int, deque[Scheduled]] = {}
        self._order: list[int] = []
        #: Called where something is put before `alarm_at`.
        self.alarm: Callable[[], None] = lambda: None
        self.alarm_at: float = math.inf

    def put(self, item: Scheduled, when: float) -> None:
        """Make the item due at this time, in place of the one at which it was due before."""
        width = self._width
        number = math.ceil(when / width)
        if number * width < when:  # rounded
            number += 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = deque()
            heapq.heappush(self._order, number)
        if item.slot is not slot:  # once there, however often a flood of notifications puts it
            slot.append(item)
            item.slot = slot
        if when < self.alarm_at:
            self.alarm()

    def first(self) -> float:
        """Return when something is due next; infinity where nothing is."""
        return self._order[0] * self._width if self._order else math.inf

    def pop(self, now: float) -> Scheduled | None:
        """Return an item that is due, in the order of the slots; None where none is due."""
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
        self.late: LateWrites = LateWrites(ledger, clock, policy.total_timeout, self.note_written)
        #: Writes an event of an attempt, whether it is followed or not.
        self.write: Callable[[Record, Event], Awaitable[Record]] = self.late.write
        #: None: no other process has this ledger.
        self.leases: Leases | None = None
        self._asks: dict[str, Followed] = {}
        #: Returns the ask of a client transaction id that is followed or waited for here, or None.
        self.find: Callable[[str], Followed | None] = self._asks.get
        #: The event that feeds wait for; None while none does, so that a change costs nothing then.
        self._changed: asyncio.Event | None = None
        #: Called with the record before and after each change of state of an ask that is followed here. Also called for
        #: one that is decided before it is followed: refused by the answer to its POST, or given back.
        self.on_change: Callable[[Record, Record], object] | None = None
        #: Called with each form once it is decided: its links are dead, unless its customer closed it.
        self.on_form_decided: list[Callable[[Record], object]] = []
        #: Called with an attempt to which a transaction was named before the end of its POST was written.
        self.on_named: Callable[[Record], object] = lambda record: None
        #: Whether the tracker takes calls; `closed` once nothing is planned any more.
        self.is_open: bool = False
        self.closed: bool = False
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Seconds by which the wall clock was ahead of the monotonic one as the tracker was opened.
        self._wall_ahead = 0.0

    def open(self) -> None:
        """Take calls from now on, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._wall_ahead = self.clock.time() - self.clock.monotonic()
        self.is_open = True

    def check_open(self, client_transaction_id: str | None = None) -> None:
        """Raise `TrackerClosedError` where the tracker is not open, and as `check_loop` does."""
        if not self.is_open:
            raise TrackerClosedError("the tracker is not open", client_transaction_id=client_transaction_id)
        self.check_loop()

    def check_loop(self) -> None:
        """Raise `UsageError` in another event loop than the open tracker's: nothing would wake who waits there."""
        if self.is_open and asyncio.get_running_loop() is not self._loop:
            words = "this tracker belongs to another event loop; make one in each, or use payclient.sync"
            raise UsageError(words)

    # --- The index

    def follow(self, record: Record) -> Followed | None:
        """Follow an open ask and return it, the same object for each call. None: decided, replaced or closed."""
        ask = self._asks.get(record.client_transaction_id)
        if ask is not None and ask.record.attempt == record.attempt:
            if record.version > ask.record.version:
                self.update(ask, record)
            if ask.followed_elsewhere:
                ask.followed_elsewhere = self.is_followed_elsewhere(record)  # its lease may be ours by now
                if not ask.followed_elsewhere or not ask.is_planned:  # the look ends a new wait, too
                    self.plan(ask)
            return ask
        if record.state.decided or self.closed or (ask and ask.record.attempt > record.attempt):
            return None
        ask = self.add(record)
        ask.followed_elsewhere = self.is_followed_elsewhere(record)
        self.plan(ask)
        return ask

    def add(self, record: Record) -> Followed:
        """Index an ask, not planned yet. An older attempt of its id ends, and its planned query is made for this one:
        the service may not have listed yet what the older one created.
        """
        before, now = self._asks.get(record.client_transaction_id), self.clock.monotonic()
        ask = Followed(record, *self._times(record, now), now)
        self._asks[record.client_transaction_id] = ask
        if before is not None:
            ask.recheck_at = before.recheck_at
            self.end_waits(before)
        return ask

    def _times(self, record: Record, now: float) -> tuple[float, float]:
        """Return when an ask was permitted and expires, by the monotonic clock; note where the wall clock jumped."""
        expires_at, wall = record.expires_at, self.clock.time()
        if expires_at is None:
            expires_at = record.created_at + self.policy.sale_window
        if abs(wall - now - self._wall_ahead) > MOST_JUMP:
            self.policy.clocks_agree = False  # it jumped since the tracker was opened
        # Never later than a whole life from now, however the wall clock jumped between two runs.
        ends = min(now + expires_at - wall, now + self.policy.longest_life[record.kind])
        return ends - (expires_at - record.created_at), ends

    def open_ask(self, client_transaction_id: str) -> Followed | None:
        """Return an open ask whose record here is the newest. None: only the ledger has it, perhaps a new attempt's.

        A SENDING ask came here by an old handle: an attempt that is being sent is not followed yet.
        """
        ask = self._asks.get(client_transaction_id)
        if ask is None or ask.followed_elsewhere or ask.record.state is State.SENDING:
            return None
        return None if ask.record.state.decided else ask

    def all(self) -> Iterator[Followed]:
        """Return every open ask."""
        return (ask for ask in tuple(self._asks.values()) if not ask.record.state.decided)

    def has(self, ask: Followed) -> bool:
        """Return whether this ask is the one in the index; a newer attempt may have taken its place."""
        return self._asks.get(ask.record.client_transaction_id) is ask

    def drop(self, ask: Followed) -> None:
        """Remove the ask from the index, unless a newer attempt has taken its place."""
        if self.has(ask):
            del self._asks[ask.record.client_transaction_id]

    def plan(self, ask: Followed) -> None:
        """Plan the next look. Where no query is left for a wait, end the waits and defer the lease until that look."""
        now = self.clock.monotonic()
        when = self.policy.plan_look(ask, now)
        if ask.waits_over:
            self._wake(ask)
            self._defer_lease(ask, A_YEAR if when is None else when - now)
        if when is not None:
            self.due.put(ask, when)
        else:
            ask.slot = None  # the time for which it was planned before does not count

    def _defer_lease(self, ask: Followed, seconds: float) -> None:
        """Renew an expired ask's lease only at its next look, in so many seconds. Other leases stay as they are."""
        if self.leases is None or ask.followed_elsewhere or ask.record.state is not State.EXPIRED:
            return
        can_end = self.policy.can_query or not customer_acted(ask.record)
        is_unsettled = can_end and awaits_last_query(ask.record)
        if is_unsettled or (ask.record.kind == "form" and customer_acted(ask.record)):
            seconds = 0.0  # not put off: if this process ends, another one soon queries or confirms it
        elif not self.policy.has_id(ask.record):  # another process may query it: after an upgrade, say
            seconds = max(A_DAY, self.clock.time() - ask.record.created_at)
        self.leases.defer(ask.record.client_transaction_id, seconds)

    def is_followed_elsewhere(self, record: Record) -> bool:
        """Return whether another process sends or follows the attempt."""
        return self.leases is not None and record.client_transaction_id not in self.leases.ours

    # --- Changes

    async def apply(self, ask: Followed, event: Event, seen: Record | None = None) -> bool:
        """Write an event, end the waits of a decided ask, and return whether the ledger took the event.

        An event that the ledger did not take leaves the ask unanswered, so that it is queried again. `seen`: the record
        that the event was made of; None: the newest.
        """
        try:
            return await self._apply(ask, event, seen)
        except TransitionError:
            ask.failures += 1
            if ask.failures == 1:
                identifier, what = ask.record.client_transaction_id, type(event).__name__
                log("error", "event_not_taken", identifier, "%s does not take %s", ask.record.state, what)
        except LedgerError as error:
            self.note_failure(ask, error)
        return False

    def note_failure(self, ask: Followed, error: LedgerError) -> None:
        """Note that the ledger failed, so that an answer about the ask counts for nothing: it is queried again."""
        ask.failures += 1
        ask.recheck_again()
        self.late.log_failure(error)

    async def _apply(self, ask: Followed, event: Event, seen: Record | None) -> bool:
        """Write an event, where necessary after an earlier one that the ledger lacks. Raises what the ledger raises.

        Returns False where a newer record was read, which may not need the event.
        """
        before, identifier = ask.record, ask.record.client_transaction_id
        if before.kind == "form":  # a return that could not be written comes first
            await self.late.write_earlier(identifier)
        try:
            newest = await self.ledger.apply(seen or ask.record, event)
        except TransitionError:
            if await self.reread(ask) or ask.record is not before:
                return False  # newer by this read, or by another task: it may not need the event
            # The ledger may have failed to take an earlier event, without which this one is not allowed.
            await self.late.write_earlier(identifier)
            if ask.record is before and not await self.late.restore_end(before):
                raise  # no earlier event was missing
            newest = await self.ledger.apply(seen or ask.record, event)
        self.take_newest(ask, newest)
        return True

    async def reread(self, ask: Followed) -> bool:
        """Read the ask's record again, and return whether it has changed."""
        newest = await self.ledger.get(ask.record.client_transaction_id)
        return newest is not None and self.take_newest(ask, newest)

    def take_newest(self, ask: Followed, newest: Record) -> bool:
        """Take the ledger's newest record of the ask's id, and return whether it says anything new."""
        is_news = (newest.attempt, newest.version) > (ask.record.attempt, ask.record.version)
        was_decided = ask.record.state.decided
        if newest.attempt > ask.record.attempt and not (was_decided and newest.state.decided):
            # Another process proved that this attempt created nothing, and sent a newer one: follow the newer one.
            self.drop(ask)
            self.end_waits(ask)
            newer = self.follow(newest)
            if newer is not None and was_decided:  # the query that was planned of it is made later
                newer.recheck_at = self.clock.monotonic() + self.policy.absent_after
        elif is_news:
            self.update(ask, newest)
        return is_news

    def update(self, ask: Followed, record: Record) -> None:
        """Replace the ask's record by a newer one, and note on the ask what that changes."""
        before, ask.record = ask.record, record
        if record.created_at != before.created_at:
            self.late.note_lost_permit(before, record)
        self._note_times(ask, before)
        self._note_hints(ask, before)
        if record.state is not before.state:
            self._note_state(ask, before)
        # Another process may have made the last query. A process that can make none ends no wait of one that can.
        elif (
            record.evidence is not before.evidence
            and ask.waiters
            and (record.evidence is Evidence.LAST_QUERY or not self.policy.has_id(record))
        ):
            self.end_waits(ask)

    def _note_times(self, ask: Followed, before: Record) -> None:
        """Set `begun` where an ask was found, or its reversal permitted; set its times where its end has changed."""
        record = ask.record
        is_found = record.state in _APPROVABLE and before.state not in _APPROVABLE
        # A second reversal is told from the first by its end, where this process missed how the first one ended.
        is_another = record.state is not before.state or record.expires_at != before.expires_at
        if is_found or (record.state is State.REVERSING and is_another):
            ask.begun = self.clock.monotonic()
        if record.expires_at not in (None, before.expires_at):
            ask.created, ask.expires = self._times(record, self.clock.monotonic())

    def _note_hints(self, ask: Followed, before: Record) -> None:
        """Note that the ask was notified, or that a transaction id was named to it."""
        record = ask.record
        is_hinted = (record.notified_at, record.candidate_ids) != (before.notified_at, before.candidate_ids)
        if is_hinted and ask.waits_over:  # its lease may have been put off: renew it like any other
            self._defer_lease(ask, 0.0)
        if not set(record.candidate_ids) <= set(before.candidate_ids):
            # A transaction id was just named: it is queried before "not found" proves anything.
            ask.absent_at, ask.client_queried_at, ask.recheck_soon = None, NEVER, record.state.decided

    def _note_state(self, ask: Followed, before: Record) -> None:
        """Follow an ask on that was found pending, call `on_change`, and end the waits for one that was decided."""
        record = ask.record
        if record.state is State.PENDING:
            ask.waits_over, ask.final_queries = False, 0
            if record.notified_at is not None:
                ask.notified_queries = 0
            if ask.task is None and not ask.followed_elsewhere:  # else its next look is planned already
                self.plan(ask)
        self.wake_feeds()
        # Another process that follows the ask calls its own `on_change`.
        is_ours = not ask.followed_elsewhere and record.attempt == before.attempt
        if self.on_change is not None and is_ours:
            self.on_change(before, record)
        if record.state.decided:
            ask.followed_elsewhere = False  # a query that is still planned is made here
            self.policy.note_decision(before, record)
            self._end_follow_up(record)
            self._wake(ask)
            if ask.recheck_at == math.inf:  # else one more query of it is planned
                self.drop(ask)

    def note_written(self, record: Record, before: Record | None = None) -> None:
        """Note a record that was not written by `apply`, and follow it.

        Where leases are held, an open form that no query can find keeps its lease until its end, and is followed from
        then on. A decided ask loses its lease.
        """
        is_indexed = record.client_transaction_id in self._asks
        if record.state.decided:
            self.wake_feeds()
            self._end_follow_up(record)
            callback = None if is_indexed else self.on_change  # of an ask in the index `update` calls it
            if callback is not None and before is not None and before.state in _UNFOLLOWED:
                callback(before, record)
        if is_indexed or self.leases is None or self.policy.follows(record):
            self.follow(record)
        elif not record.state.decided:
            # Nothing is due before its end, but at once after a notification or a return: any process then confirms it.
            life = self.policy.longest_life[record.kind]
            self.leases.defer(record.client_transaction_id, life if record.notified_at is None else 0.0)
        if record.candidate_ids and before is not None and before.state is State.SENDING:
            self.on_named(record)

    def _end_follow_up(self, record: Record) -> None:
        """Forget a decided attempt's lease, which the ledger ended with it, and call what waits for a decided form."""
        if self.leases is not None:
            self.leases.ours.discard(record.client_transaction_id)
        if record.kind == "form":
            for callback in self.on_form_decided:
                callback(record)

    async def suspect(self, lane: bytes) -> None:
        """Note code 2061 in a lane: evidence that an unknown sale of the same lane landed. The code decides nothing."""
        for ask in self.all():
            if ask.record.state is State.UNKNOWN and ask.record.lane == lane:
                await self.apply(ask, Suspected(at=self.clock.time()))

    def next_change(self) -> asyncio.Event:
        """Return an event that is set at the next change that the feed shows."""
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    def wake_feeds(self) -> None:
        """Wake the feeds: the ledger has changes."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # --- Waits

    def end_waits(self, ask: Followed) -> None:
        """End the waits for an ask that is not decided, and each later one at once: no query is made for any."""
        ask.waits_over = True
        self._wake(ask)

    def _wake(self, ask: Followed) -> None:
        """End the waits for an ask."""
        for waiter in ask.waiters or ():
            end(waiter)

    def close(self) -> None:
        """End every wait by `TrackerClosedError`; the ledger knows what is open."""
        for ask in self._asks.values():
            for waiter in ask.waiters or ():
                if not waiter.done():
                    identifier = ask.record.client_transaction_id
                    words = "the tracker was closed"
                    waiter.set_exception(TrackerClosedError(words, client_transaction_id=identifier))
        self._asks.clear()
        self.next_change().set()
