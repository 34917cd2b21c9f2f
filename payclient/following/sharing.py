"""Sharing the following out among the processes of one ledger, and hearing what the others wrote.

Each open sale is followed by one process at a time: the one that was permitted it, or that claimed it once the other's
lease was over. The others keep an entry only where somebody waits: woken by the ledger they read again, they never ask.
A lease is for efficiency only. Two that follow one sale ask twice, and write nothing wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from payclient.clock import Clock, start
from payclient.errors import LedgerError
from payclient.following.entries import Entries, Entry
from payclient.ledger import Shared
from payclient.lifecycle import Record, State

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Seconds for which this process says that it follows, and seconds after which it says so again.
LEASE = 30.0
RENEW = 10.0

#: Seconds beyond the total time-out after which nobody can be sending any more (the semantics' recovery).
SENDING_GRACE = 30.0

#: Rounds of renewal after which what is held is compared with what is followed, though nothing was lost.
ROUNDS = 6

#: Records claimed, or read again, at once.
PAGE = 500


class Sharing:
    """One tracker's part of the following over one shared ledger.

    `take_over` is given what this process follows from now on, `let_go` what it does no more; `notified` is told of an
    entry of which a notification was noted elsewhere.
    """

    def __init__(
        self,
        ledger: Shared,
        clock: Clock,
        entries: Entries,
        *,
        total_timeout: float,
        let_go: Callable[[Entry], object],
        notified: Callable[[Record], object],
        trouble: Callable[[Exception], object],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._entries = entries
        self._sending_after = total_timeout + SENDING_GRACE
        self._let_go = let_go
        self._notified = notified
        self._trouble = trouble
        self._take_over: Callable[[list[Record]], Awaitable[None]] | None = None
        #: The client transaction ids that this process follows; those that came while `held` was asked for.
        self._ours: set[str] = set()
        self._since: set[str] = set()
        #: Those that others should have followed to their end, and somebody here still waits for.
        self._besides: set[str] = set()
        self._changed: set[str] = set()
        self._lanes: list[tuple[bytes, asyncio.Future[bool]]] = []
        #: Customers that could not be let go of yet: a process that waits for one of them must not wait for ever.
        self._undropped: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._closed = False

    def ours(self, client_transaction_id: str) -> bool:
        """Whether this process asks for it."""
        return client_transaction_id in self._ours or client_transaction_id in self._besides

    def permitted(self, client_transaction_id: str) -> None:
        """What this process was permitted it follows itself."""
        self._ours.add(client_transaction_id)
        self._since.add(client_transaction_id)

    def besides(self, client_transaction_id: str) -> None:
        """Ask for it too: whoever follows it should have come to an end by now."""
        self._besides.add(client_transaction_id)

    def decided(self, client_transaction_id: str) -> None:
        """There is nothing more to follow."""
        self._ours.discard(client_transaction_id)
        self._besides.discard(client_transaction_id)

    # --- Whose they are

    async def begin(self, take_over: Callable[[list[Record]], Awaitable[None]]) -> None:
        """Hear of what others write, and follow what nobody follows, now and from time to time."""
        self._take_over = take_over
        self._unwatch = self._ledger.watch(self._woken)  # first, so that nothing is missed
        if await self._ledger.renew(LEASE):
            await self._compare()  # another tracker over this ledger left something
        await self._claim()
        self._start(self._live())

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _live(self) -> None:
        # By real time: leases are the database's, whatever clock a test has.
        rounds = 0
        while True:
            await asyncio.sleep(RENEW)
            try:
                rounds += 1
                if not await self._ledger.renew(LEASE) or rounds % ROUNDS == 0:
                    await self._compare()
                if self._undropped:
                    await self._ledger.drop_lanes(tuple(self._undropped))
                    self._undropped.clear()
                await self._claim()
            except LedgerError as error:
                self._trouble(error)
            except Exception as error:  # a fault of ours must not end it
                logger.error("sharing failed: %s", type(error).__name__)

    async def _claim(self) -> None:
        """Take over what died with other processes."""
        while True:
            records = await self._ledger.claim(PAGE, self._sending_after)
            for record in records:
                self.permitted(record.client_transaction_id)
            await self._hand_over(records)
            if len(records) < PAGE:
                return

    async def _compare(self) -> None:
        """Let go of what others took over meanwhile, and follow what is ours and was lost from sight."""
        self._since = set()
        held = await self._ledger.held()
        self._ours = held | self._since
        for entry in self._entries.values():
            if not entry.elsewhere and not self.ours(entry.record.client_transaction_id):
                self._let_go(entry)
        lost = [each for each in held if (known := self._entries.get(each)) is None or known.elsewhere]
        for begin in range(0, len(lost), PAGE):
            records = await self._ledger.get_many(lost[begin : begin + PAGE])
            await self._hand_over([record for record in records.values() if self._is_lost(record)])

    def _is_lost(self, record: Record) -> bool:
        if record.state is State.SENDING:
            # A permit of ours whose answer could not be written; or it is being sent right now.
            return self._clock.time() - record.created_at > self._sending_after
        return record.kind == "sale" and not record.state.decided

    async def _hand_over(self, records: list[Record]) -> None:
        if records and self._take_over is not None:
            await self._take_over(records)

    # --- Whom a batch charges

    async def take_lane(self, lane: bytes) -> bool:
        """Whether this process charges this customer alone from now on; all that ask at once are asked for together."""
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lanes.append((lane, taken))
        if len(self._lanes) == 1:
            self._start(self._take_lanes())
        return await taken

    async def _take_lanes(self) -> None:
        await asyncio.sleep(0)
        wanted, self._lanes = self._lanes, []
        taken: set[bytes] = set()
        try:
            taken = await self._ledger.take_lanes([lane for lane, _ in wanted])
        except LedgerError as error:
            self._trouble(error)
        finally:
            self._undropped -= taken
            for lane, future in wanted:
                if not future.done():
                    future.set_result(lane in taken)

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        """Let other processes charge these customers, as soon as the ledger can be told."""
        try:
            await self._ledger.drop_lanes(lanes)
        except LedgerError as error:
            self._undropped.update(lanes)
            self._trouble(error)

    # --- What others wrote

    def _woken(self, client_transaction_id: str | None) -> None:
        self._entries.touch()
        if client_transaction_id is None:
            self._changed.update(
                entry.record.client_transaction_id for entry in self._entries.values() if entry.waiters
            )
        elif self._entries.get(client_transaction_id) is not None:
            self._changed.add(client_transaction_id)
        if self._changed and self._reading is None and not self._closed:
            self._reading = self._start(self._read())

    async def _read(self) -> None:
        """Read again whatever may have changed, many at a time."""
        ids: list[str] = []
        try:
            while self._changed:
                ids = [self._changed.pop() for _ in range(min(PAGE, len(self._changed)))]
                for record in (await self._ledger.get_many(ids)).values():
                    self._learn(record)
        except LedgerError as error:
            # Read with what changes next, within a poll at most where somebody waits.
            self._changed.update(ids)
            self._trouble(error)
        finally:
            self._reading = None

    def _learn(self, record: Record) -> None:
        entry = self._entries.get(record.client_transaction_id)
        if entry is None:
            return
        before = entry.record
        news = record.notified_at != before.notified_at or record.candidate_ids != before.candidate_ids
        if self._entries.learn(entry, record) and not record.state.decided and news:
            self._notified(record)

    async def aclose(self) -> None:
        """Stop; what is followed here stays ours until the ledger is closed, or the lease is over."""
        self._closed = True
        if self._unwatch is not None:
            self._unwatch()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
