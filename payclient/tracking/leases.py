"""Shares the open asks out among the processes of one ledger, and reads what the others wrote.

Each open ask is held by one process at most: the one that was permitted it, or that claimed it once it was due. The
others keep an ask only where somebody waits: woken by the ledger they read again, they never query. Holding is for
efficiency only. Two that follow one ask query twice, and write nothing wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from payclient.clock import Clock, cancel_all, drain, start
from payclient.errors import LedgerError
from payclient.ledger import Shared
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.tracking.followup import LEASE
from payclient.tracking.late_writes import LAST_TRY, LateWrites
from payclient.tracking.rate_limit import RateLimit
from payclient.tracking.recovery import recheck_unpaid, take_over

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

#: Seconds after which this process renews its leases; and the part of them after which it does so where the ledger
#: failed. Sooner, since the service reverses a form that came back unless somebody confirms it.
RENEW, TRY_AGAIN = 10.0, 1 / 5

#: Seconds beyond the total time-out after which nobody can be sending any more.
SENDING_GRACE = 30.0

#: Rounds of renewal after which what is held is compared with what is followed, though nothing was lost.
COMPARE_ROUNDS = 6

#: Rounds after which forms are looked for that were paid after they had been given up: nobody holds those, and the
#: process that confirmed one may have died.
ABANDONED_ROUNDS = 30

#: Records claimed, or read again, at once.
PAGE = 500

#: Seconds for which an ask is put off that is due no more: a year. One that no query here can find is put off for as
#: long as it is old, and a day at least.
A_DAY, A_YEAR = 86400.0, 365 * 86400.0

#: Seconds after which a request that was reserved and not made is given up.
UNUSED = 1.0

#: The number of processes that is presumed to share the rate while the ledger fails to reserve a turn.
PRESUMED = 10


class SharedRateLimit(RateLimit):
    """One rate for all processes of a ledger, in which each request is reserved.

    Requests are reserved one at a time, each right before it is made. Which ask a request is for is decided only once
    it is reserved: in a queue of reservations, notified asks would wait behind the routine.
    """

    def __init__(self, per_minute: float, ledger: Shared, clock: Clock, late: LateWrites) -> None:
        super().__init__(per_minute)
        self._ledger = ledger
        self._clock = clock
        self._late = late
        #: From when on the reserved request may be made; infinity: none is reserved.
        self._reserved_from = float("inf")
        #: Seconds for which no process may make a request, while the ledger does not have them yet.
        self._unwritten_pause = 0.0

    def ready_at(self) -> float:
        return max(self._reserved_from, self._paused_until)

    def _count(self, now: float) -> None:
        """Use up the reserved request. A request made without a reservation delays the next one of all processes."""
        if self._reserved_from == float("inf"):
            self._unwritten_pause = max(self._unwritten_pause, self.gap)
        self._reserved_from = float("inf")

    def rate_limited(self, now: float, made_at: float, retry_after: float | None) -> None:
        before = self._paused_until
        super().rate_limited(now, made_at, retry_after)
        if self._paused_until > before:
            self._unwritten_pause = max(self._unwritten_pause, self._paused_until - now)

    def work_in_ledger(self, now: float, *, wanted: bool) -> Coroutine[None, None, None] | None:
        """Return the work that reserves a wanted request, and writes the pause that all processes keep; None: no work.

        Call this only while no earlier work of this kind is under way.
        """
        if self._reserved_from < now - max(self.gap, UNUSED):
            self._reserved_from = float("inf")  # a reservation that was not used lapses
        reserves = wanted and self._reserved_from == float("inf")
        return self._write(reserves=reserves) if reserves or self._unwritten_pause else None

    async def _write(self, *, reserves: bool) -> None:
        """Write a pause, and reserve a request. If the ledger fails, wait as though `PRESUMED` processes shared it."""
        seconds = max(PRESUMED * self._known_gap, self.gap)
        pause, self._unwritten_pause = self._unwritten_pause, 0.0
        try:
            if pause:
                await self._ledger.pause(pause)
            if reserves:
                seconds = await self._ledger.reserve(self.gap)
        except Exception as error:  # whatever it is must not end the queries of all
            self._late.log_failure(error)
        if reserves:
            self._reserved_from = self._clock.monotonic() + seconds


class Leases:
    """One tracker's part of the following over one shared ledger."""

    def __init__(self, poller: Poller, ledger: Shared) -> None:
        self._poller = poller
        self._asks = poller.asks
        self._ledger = ledger
        self._sending_after = poller.policy.total_timeout + SENDING_GRACE
        #: The client transaction ids of which this process has the lease.
        self.ours: set[str] = set()
        #: Ids that are held and not followed: the ledger failed in between, or a form was notified or came back.
        self._to_take_over: set[str] = set()
        #: Whether to look for abandoned forms: a process that confirmed one may have died.
        self._look_for_abandoned = False
        self._changed: set[str] = set()  # written by others, to be read again
        #: Leases to hold without renewal, and for how many seconds; not written yet.
        self._deferred: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[bool] | None = None
        self._unwatch: Callable[[], None] | None = None

    def defer(self, client_transaction_id: str, seconds: float) -> None:
        """Hold a lease without renewal from the next round on: for so many seconds nothing of its ask is due.

        With 0 seconds the lease is renewed like any other, also where it was deferred before.
        """
        self._deferred[client_transaction_id] = seconds + LEASE

    # --- Whose they are

    async def begin(self) -> None:
        """Watch what others write, and follow what is due, now and from time to time."""
        self._unwatch = self._ledger.watch(self._note_change)  # first, so that nothing is missed
        self._ledger.hold(self._sending_after)
        await self._compare()  # another tracker over this ledger may have left something
        start(self._run_rounds(has_failed=not await self._claim()), self._tasks)

    async def _run_rounds(self, *, has_failed: bool) -> None:
        """Renew the leases and claim what is due, every few seconds of real time: the database says what is due.

        A process whose queries have no answer does so seldom: its leases end in between, for others to claim. The round
        after one that has failed comes sooner; `has_failed`: the claim before the first round did.
        """
        for rounds in count(1):
            await asyncio.sleep(RENEW * TRY_AGAIN if has_failed else RENEW)
            is_cut_off, has_failed = self._poller.queries.is_cut_off, False
            if is_cut_off and rounds % COMPARE_ROUNDS != 0:
                continue
            self._look_for_abandoned = self._look_for_abandoned or rounds % ABANDONED_ROUNDS == 0
            try:
                if not is_cut_off:
                    await self._write_deferred()
                was_lost = await self._ledger.renew(LEASE) != len(self.ours)
                if was_lost or rounds % COMPARE_ROUNDS == 0:
                    await self._compare()
                has_failed = not await self._claim()
            except LedgerError as error:
                has_failed = True
                self._asks.late.log_failure(error)
            except Exception as error:  # our own error must not end it
                has_failed = True
                log("error", "sharing_failed", "", "sharing failed: %s", type(error).__name__)

    async def _write_deferred(self) -> None:
        """Write which leases are held without renewal; keep them for the next round where the ledger fails."""
        deferred, self._deferred = self._deferred, {}
        try:
            if deferred:
                await self._ledger.defer(deferred)
                self.ours.difference_update(each for each, seconds in deferred.items() if seconds > A_DAY)
        except BaseException:
            self._deferred = deferred | self._deferred
            raise

    def claim_soon(self) -> None:
        """Claim what is due, in a task: a notification came for an ask that perhaps no process holds."""
        if (self._claiming is None or self._claiming.done()) and not self._asks.closed:
            self._claiming = start(self._claim(), self._tasks)

    async def _claim(self) -> bool:
        """Claim the asks that are due and that no living process holds, a page at a time, and follow them.

        Then follow what is held and not followed, and look for abandoned forms, once: a customer who gave a form up may
        still pay it until its links are dead.
        Return False where a failure of the ledger leaves work over, which is done in the next round.
        """
        is_more = True
        try:
            while is_more:
                records = await self._ledger.claim_due(PAGE, LEASE)
                is_more = len(records) == PAGE
                ids = [record.client_transaction_id for record in records]
                self.ours.update(ids)
                self._look_for_abandoned = self._look_for_abandoned or bool(records)
                await self._take_over(ids, records)
            if self._to_take_over:  # what others write meanwhile is read again in the next round
                ids, self._to_take_over = [*self._to_take_over], set()
                await self._take_over(ids)
            if self._look_for_abandoned:
                self._look_for_abandoned = False  # what is claimed meanwhile needs a look of its own
                await recheck_unpaid(self._poller, self._poller.policy.links_life, forms_only=True)
        except LedgerError as error:
            self._look_for_abandoned = True
            self._asks.late.log_failure(error)
            return False
        return True

    async def _take_over(self, ids: Sequence[str], records: Sequence[Record] | None = None) -> None:
        """Follow asks that are held here. Where that fails, remember them. With `records` None read them first."""
        try:
            if records is None:
                newest = (await self._ledger.get_many(ids)).values()
                records = [record for record in newest if self._must_follow(record)]
            await take_over(self._poller, records)
        except BaseException:
            self._to_take_over.update(ids)
            raise

    def _must_follow(self, record: Record) -> bool:
        """Return whether an attempt that is held here is open, and cannot be on its way to the service any more."""
        sent_before = self._poller.clock.time() - self._sending_after
        return record.created_at < sent_before if record.state is State.SENDING else not record.state.decided

    async def _compare(self) -> None:
        """Leave the asks whose lease another process has taken, and find those held here that nobody follows."""
        before, find = set(self.ours), self._asks.find
        held = await self._ledger.held()
        self.ours = held | (self.ours - before)  # those that came while the ledger was read
        for ask in map(find, before - self.ours):
            if ask is not None and not ask.record.state.decided:
                ask.followed_elsewhere = True
                self._asks.plan(ask)
        unfollowed = [each for each in held if (known := find(each)) is None or known.followed_elsewhere]
        # A lease that is new here was claimed, and the answer was lost.
        self._to_take_over.update(set(unfollowed) - before)
        for begin in range(0, len(unfollowed), PAGE):
            records = (await self._ledger.get_many(unfollowed[begin : begin + PAGE])).values()
            # A form that no query finds is held, and not followed.
            sales = (each for each in records if each.kind == "sale" or each.state is State.SENDING)
            self._to_take_over.update(each.client_transaction_id for each in sales)

    # --- What others wrote

    def _note_change(self, client_transaction_id: str | None) -> None:
        """Read an ask again that another process wrote; with None all that somebody waits for: any may have changed."""
        self._asks.wake_feeds()
        if client_transaction_id is None:
            self._changed.update(ask.record.client_transaction_id for ask in self._asks.all() if ask.waiters)
        else:
            ask = self._asks.find(client_transaction_id)
            if ask is not None:
                self._changed.add(client_transaction_id)
            if client_transaction_id in self.ours and (ask is None or ask.record.kind == "form"):
                # A form may have come back to another process, which may die before it confirms the form.
                self._to_take_over.add(client_transaction_id)
                if ask is None:  # `OpenAsks.update` does the same for an ask that is followed
                    self.defer(client_transaction_id, 0.0)  # no longer put off
        is_idle = self._reading is None or self._reading.done()
        if self._changed and is_idle and not self._asks.closed:
            self._reading = start(self._read(), self._tasks)

    async def _read(self) -> None:
        """Read again whatever may have changed, many at a time."""
        ids: list[str] = []
        try:
            while self._changed:
                ids = [self._changed.pop() for _ in range(min(PAGE, len(self._changed)))]
                for record in (await self._ledger.get_many(ids)).values():
                    self._take_changed(record)
        except LedgerError as error:
            # Read with what changes next, within a poll at most where somebody waits.
            self._changed.update(ids)
            self._asks.late.log_failure(error)

    def _take_changed(self, record: Record) -> None:
        """Take a record that another process wrote; query its ask if its notification or its candidates changed."""
        if (ask := self._asks.find(record.client_transaction_id)) is None:
            return
        before = ask.record
        is_notified = record.notified_at != before.notified_at or record.candidate_ids != before.candidate_ids
        is_newer = self._asks.take_newest(ask, record)
        if is_newer and is_notified and not record.state.decided:
            self._poller.query_notified(record)

    async def aclose(self) -> None:
        """Stop; what is followed here stays ours until the ledger is closed, or it is due."""
        if self._unwatch is not None:
            self._unwatch()
        await cancel_all(self._tasks)
        await drain([start(self._write_deferred())], LAST_TRY)
