"""The ledger of a world: the shipped `SqliteLedger` and its SQL, its thread replaced by events of the world.

Several machines share one connection, as they would share a server: the permit's unique key decides between them,
and what is SENDING is recovered by its age.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from payclient.ledger.batch import Operation, Write, resolve, writes_of
from payclient.ledger.records import record_of
from payclient.ledger.sqlite import SqliteDatabase, SqliteLedger, SqliteWriter, finish
from payclient.ledger.sqlite_files import STATEMENTS
from payclient.ledger.writer import Writer
from payclient.lifecycle import Record, State

if TYPE_CHECKING:
    from worlds.process import Process
    from worlds.world import World

__all__ = ["LoopWriter", "Store", "WorldLedger"]


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

    def newest(self, client_id: str) -> Record | None:
        """The newest attempt."""
        records = self._attempts(client_id)
        return records[-1] if records else None

    def attempt(self, client_id: str, attempt: int) -> Record | None:
        """One attempt."""
        return next((each for each in self._attempts(client_id) if each.attempt == attempt), None)

    def _attempts(self, client_id: str) -> list[Record]:
        return [record_of(row) for row in self.connection.execute(STATEMENTS["attempts"], (client_id,))]

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


class _File:
    """An open ledger's file that nobody moves."""

    def check_in_place(self) -> None:
        """It always is."""


class LoopWriter(SqliteWriter):
    """The shipped writer, by events: it takes a batch, commits it a moment later, and answers a moment later."""

    def __init__(self, process: Process, store: Store) -> None:
        Writer.__init__(self, process.loop)  # not SQLite's, which starts the thread
        self._process = process
        self._store = store
        self._queued: list[Operation] = []
        self._busy = False
        self._proxy = _Connection(store.connection)
        self._database = SqliteDatabase(self._proxy, store.cursors)  # type: ignore[arg-type]  # as far as it is used
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
        # A hot incident comes around the COMMIT of a permit, where most depends on the order of things.
        hot = any(isinstance(each, Write) and each.event is None for each in batch) and process.is_hot()
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
        finish(self._carry_out(operations, _File(), self._database))  # type: ignore[arg-type]  # as far as it is used
        self._answer(operations)
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
        if hot and not self._process.away:
            self._process.incident()
        self._busy = False
        if self._queued:
            self._begin()

    def _tried(self, write: Write) -> None:
        """A write comes in an outage: so many of one sale that they spin?"""
        world, times = self._process.world, self._tries[write.record.client_transaction_id]
        times.append(world.now)
        while times[0] < world.now - 20.0:
            times.popleft()
        if write.event is not None and len(times) > 60:
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
        super().__init__(LoopWriter(process, store), store.digest_key)
        self._finalizer.detach()
        self._world = process.world

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
