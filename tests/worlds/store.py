"""The ledger of a world: the shipped `SqliteLedger` and its SQL, its thread replaced by events of the world.

Several machines share one connection, as they would share a server: the permit's unique key decides between them,
and what is SENDING is recovered by its age.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from payclient.errors import LedgerUnavailableError
from payclient.events import Notified, Returned
from payclient.ledger.batch import Database, Operation, Write, resolve, writes_of
from payclient.ledger.records import record_of
from payclient.ledger.sqlite import SqliteDatabase, SqliteLedger, SqliteWriter, run_now
from payclient.ledger.sqlite_files import STATEMENTS
from payclient.ledger.writer import Writer
from payclient.lifecycle import Record, State

if TYPE_CHECKING:
    from worlds.process import Process
    from worlds.world import World

__all__ = ["LoopWriter", "SharingLedger", "Store", "WorldLedger"]


@cache
def _empty() -> bytes:
    """A database with the shipped tables and triggers."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(STATEMENTS["schema"])
    connection.execute(STATEMENTS["insert_meta"], (bytes(32),))
    image = connection.serialize()
    connection.close()
    return image


class Store:
    """What is on disk. It outlives every process."""

    def __init__(self, world: World) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(_empty())
        self.connection.execute("PRAGMA recursive_triggers = ON")
        self.digest_key = world.random.randbytes(32)
        self.cursors = count(1)
        #: No write succeeds before this.
        self.out_until = 0.0
        self._world = world
        #: Who holds which open attempt until when, and who is woken by what others write.
        self.leases: dict[str, tuple[Process | None, float]] = {}
        self.watchers: list[tuple[Process, Callable[[str | None], None]]] = []

    def newest(self, client_id: str) -> Record | None:
        """The newest attempt."""
        records = self._attempts(client_id)
        return records[-1] if records else None

    def attempt(self, client_id: str, attempt: int) -> Record | None:
        """One attempt."""
        return next((each for each in self._attempts(client_id) if each.attempt == attempt), None)

    def _attempts(self, client_id: str) -> list[Record]:
        return [record_of(row) for row in self.connection.execute(STATEMENTS["attempts"], (client_id,))]

    def share(self, process: Process, write: Write) -> None:
        """Let who was permitted an attempt hold it, less long once it is notified, and wake the others."""
        client_id, now = write.record.client_transaction_id, self._world.now
        if write.event is None:
            self.leases[client_id] = process, now + self._world.settings.total + 30.0
        elif isinstance(write.event, Notified | Returned):
            holder, due = self.leases[client_id]
            self.leases[client_id] = holder, min(due, now if holder is None else now + 30.0)
        for each, woken in self.watchers:
            each.later(0.01, each.loop.call_soon, woken, client_id)

    def all(self) -> list[Record]:
        """Every attempt."""
        return [record_of(row) for row in self.connection.execute(STATEMENTS["records"], (0, 2**62))]


class _Connection:
    """The connection, with a disk that may fail at COMMIT: before it, or after it was carried out."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fault: str | None = None

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if self.fault == "reads too" and sql != "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        if sql != "COMMIT" or self.fault is None:
            return self._connection.execute(sql, parameters)
        if self.fault == "after":
            self._connection.execute(sql)
        raise sqlite3.OperationalError("disk I/O error")


class LoopWriter(SqliteWriter):
    """The shipped writer, by events: it takes a batch, commits it a moment later, and answers a moment later."""

    def __init__(self, process: Process, store: Store) -> None:
        Writer.__init__(self, process.loop)  # not SQLite's, which starts the thread
        self._process = process
        self._store = store
        self._queued: list[Operation] = []
        self._busy = False
        self._proxy = _Connection(store.connection)
        # No one moves its file.
        self._database = SqliteDatabase(self._proxy, store.cursors, lambda: None)  # type: ignore[arg-type]  # as used
        self._tries: defaultdict[str, deque[float]] = defaultdict(deque)

    def _hand_over(self) -> None:
        batch, self._pending = self._pending, []
        self._queued += batch
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        batch, self._queued = self._queued, []
        world, process = self._process.world, self._process
        # A hot incident comes around the COMMIT of a permit, where most depends on the order of things; of several
        # machines it ends the one that was told of a form.
        hot_events = (Returned, Notified) if world.settings.leases else type(None)
        hot = any(isinstance(each, Write) and isinstance(each.event, hot_events) for each in batch)
        hot = hot and process.is_hot()
        if hot and world.random.random() < 0.3:
            process.incident()
        process.later(world.random.choice((0.0005, 0.002, 0.02)), self._commit, batch, hot)

    def _commit(self, operations: list[Operation], hot: bool) -> None:
        world = self._process.world
        writes = writes_of(operations)
        self._proxy.fault = None
        settings = world.settings
        if writes and self._store.out_until <= world.now and world.happens(settings.outage):
            self._store.out_until = world.now + world.random.choice((1.0, 20.0, 49.0, 120.0))
            world.note(f"the ledger fails until {self._store.out_until:.3f}")
        if self._store.out_until > world.now:
            self._proxy.fault = "reads too" if settings.outage_of_reads else "before"
            for write in writes:
                self._tried(write)
        elif writes and world.happens(settings.disk_fault):
            self._proxy.fault = world.random.choice(("before", "after"))
            world.note(f"{self._process.name} the disk fails {self._proxy.fault} COMMIT")
        run_now(self._carry_out(operations, self._database))
        self._answer(self._without_lost(operations))
        for write in writes:
            key = (write.record.client_transaction_id, write.record.attempt)
            record = self._store.attempt(*key)
            if record is not None:
                if write.event is None and key not in world.oracle.permits:
                    world.oracle.permits[key] = world.now
                world.note(
                    f"{self._process.name} committed {key[0]}/{key[1]} {record.state} ({record.evidence})"
                )
                world.oracle.committed(record)
                if settings.leases and not isinstance(write.answer, Exception) and write.answer is not False:
                    self._store.share(self._process, write)
        if hot and not self._process.away:
            self._process.incident()
        self._busy = False
        if self._queued:
            self._begin()

    def _without_lost(self, operations: list[Operation]) -> list[Operation]:
        """What is answered now: of single reads the answer is lost, whatever they did, or comes much later."""
        world, now = self._process.world, []
        for each in operations:
            if isinstance(each, Write) or not world.happens(world.settings.lost_reads):
                now.append(each)
            elif world.random.random() < 0.7:
                each.fail(LedgerUnavailableError("the answer was lost"))
                now.append(each)
            else:
                # A disk may stand still for long; what has not answered by then, a ledger calls a server away.
                late = (1.0, 5.0, 12.0) if world.settings.leases else (1.0, 12.0, 40.0)
                self._process.later(world.random.choice(late), self.loop.call_soon, resolve, [each])
        return now

    def _tried(self, write: Write) -> None:
        """A write comes in an outage: so many of one sale that they spin?"""
        world, times = self._process.world, self._tries[write.record.client_transaction_id]
        times.append(world.now)
        while times[0] < world.now - 20.0:
            times.popleft()
        # Each notification of a storm may try once.
        if write.event is not None and len(times) > 60 * max(1, world.settings.storms):
            name = write.record.client_transaction_id
            world.oracle.violated(f"{self._process.name} {name}: {len(times)} writes in 20 s of an outage")

    def _answer(self, operations: Sequence[Operation]) -> None:
        delay = self._process.world.random.choice((0.0, 0.001, 0.01))
        self._process.later(delay, self.loop.call_soon, resolve, operations)

    async def aclose(self) -> None:
        """There is no thread to stop."""


class WorldLedger(SqliteLedger):
    """The shipped ledger over that writer."""

    def __init__(self, process: Process, store: Store) -> None:
        super().__init__(LoopWriter(process, store), store.digest_key, location="", created=False)
        self._finalizer.detach()
        self._world = process.world
        #: The tasks that read the asks of a purchase.
        self.readers: WeakSet[Any] = WeakSet()

    async def asks(self, purchase: str) -> list[Record]:
        found = await super().asks(purchase)
        self.readers.add(asyncio.current_task())
        return found

    def unfinished(self) -> AsyncIterator[Record]:
        records = super().unfinished()
        return records if self._world.settings.workers == 1 else self._orphans(records)

    async def _orphans(self, records: AsyncIterator[Record]) -> AsyncIterator[Record]:
        """Of many machines: what is SENDING has lost its owner only when it is old, by the database's clock."""
        world = self._world
        async for record in records:
            since = world.oracle.permits[record.client_transaction_id, record.attempt]
            if record.state is not State.SENDING or world.now - since > world.settings.total + 30.0:
                yield record

    def __del__(self) -> None:
        """A crashed process closes nothing, and nobody is to be warned of it."""


class SharingLedger(WorldLedger):
    """The same as several machines share it out, who hold what they follow, by the database's clock."""

    def __init__(self, process: Process, store: Store) -> None:
        super().__init__(process, store)
        self._me, self._store = process, store

    def watch(self, woken: Callable[[str | None], None]) -> Callable[[], None]:
        self._store.watchers.append((self._me, woken))
        self._poll(woken)
        return lambda: self._store.watchers.remove((self._me, woken))

    def _poll(self, woken: Callable[[str | None], None]) -> None:
        self._me.loop.call_soon(woken, None)
        self._me.later(10.0, self._poll, woken)

    def hold(self, seconds: float) -> None:
        """What is permitted here is held by `Store.share`."""

    async def _share(self, choose: Callable[[Process | None, float], float | None]) -> list[Record]:
        """Hold the open attempts of which `choose` says, by who holds them until when, how much longer; return them."""

        async def work(database: Database) -> list[Record]:
            found = []
            for record in map(record_of, await database.fetch("unfinished", ())):
                seconds = choose(*self._store.leases[record.client_transaction_id])
                if seconds is not None:
                    self._store.leases[record.client_transaction_id] = self._me, self._world.now + seconds
                    found.append(record)
            return found

        found: list[Record] = await self.work(work)
        return found

    async def claim_due(self, limit: int, seconds: float) -> list[Record]:
        return await self._share(lambda _, due: seconds if due <= self._world.now else None)

    async def renew(self, seconds: float) -> int:
        left = self._world.now
        found = await self._share(lambda who, due: max(seconds, due - left) if who is self._me else None)
        return len(found)

    async def held(self) -> set[str]:
        found = await self._share(lambda who, due: due - self._world.now if who is self._me else None)
        return {each.client_transaction_id for each in found}

    async def defer(self, seconds: Mapping[str, float]) -> None:
        for each, longer in seconds.items():
            if self._store.leases[each][0] is self._me:
                self._store.leases[each] = self._me if longer <= 86_400 else None, self._world.now + longer

    async def reserve(self, gap: float) -> float:
        return 0.0

    async def pause(self, seconds: float) -> None:
        """No world of leases has a rate."""

    async def note_overpaid(self, at: float) -> None:
        """Nothing: SQLite's writer writes that with the payment."""
