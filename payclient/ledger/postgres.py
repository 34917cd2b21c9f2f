"""The ledger in a PostgreSQL that many processes share: the unique key of a permit is the judge between them.

One task owns the connection that writes. The writes of a batch are one statement over arrays.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from payclient.errors import LedgerUnavailableError, PayError
from payclient.ledger.batch import Apply, Batch, Operation, resolve
from payclient.ledger.postgres_connection import (
    FAULTS,
    POLL,
    Address,
    Connect,
    Listener,
    Schema,
    Woken,
    connector,
    drop,
    patiently,
    unavailable,
)
from payclient.ledger.records import FEED, record_of
from payclient.ledger.writer import StoredLedger, Writer
from payclient.lifecycle import Record

__all__ = ["PostgresDatabase", "PostgresLedger", "PostgresWriter"]

#: Seconds in which the server must have answered a statement.
ANSWER = 10.0
#: Seconds that an operation waits for a server that cannot be reached.
PATIENCE = 5.0
#: Seconds between attempts to reach it.
BACK_OFF = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
#: Seconds without work after which the connection is probed.
IDLE = 30.0
#: Operations of one batch.
MOST = 1000
#: Seconds after which an attempt is due whose opening of the ledger follows nothing.
UNHELD = 60.0
#: Seconds of the longest lease: what is put off for longer stays so when its holder closes.
LEASE = 60.0
#: Seconds that closing waits for a server that cannot be reached, beyond what each operation waits.
CLOSING = 30.0

_PERMIT_COLUMNS, _CHANGE_COLUMNS = 13, 20
#: Behind a pooler the next statement may meet another server, which does not know the prepared one.
_UNPREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)


class PostgresDatabase:
    """One connection of the writer's."""

    value_faults: tuple[type[BaseException], ...] = (
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.ProgramLimitExceededError,
        asyncpg.RaiseError,
        asyncpg.TransactionRollbackError,  # of two that waited for each other it gave way; the connection is sound
        OverflowError,
    )

    def __init__(self, connection: asyncpg.Connection, schema: Schema) -> None:
        self.connection = connection
        self._schema = schema
        self._prepared: dict[str, Any] | None = {}
        #: The opening of the ledger; who holds what is permitted here, and for how many seconds.
        self.permits_of: tuple[int, int, float] = (0, 0, UNHELD)
        #: The server said something beside its answer: a commit may not have gone where it should.
        self._warned = False
        connection.add_log_listener(self._hear)

    def _hear(self, _: object, message: Any) -> None:
        self._warned = self._warned or getattr(message, "severity_en", None) == "WARNING"

    async def insert(self, permits: list[tuple[Any, ...]], changes: list[tuple[Any, ...]]) -> Container[str]:
        self._warned = False
        columns: list[Any] = [*self.permits_of]
        columns += zip(*permits, strict=True) if permits else [()] * _PERMIT_COLUMNS
        columns += zip(*changes, strict=True) if changes else [()] * _CHANGE_COLUMNS
        try:
            rows = await self.fetch("write", tuple(columns))
        except asyncpg.TransactionRollbackError:  # two waited for each other; nothing was written
            return ()
        if self._warned:
            raise LedgerUnavailableError("the ledger committed this, and perhaps on no standby")
        return {row[0] for row in rows}

    async def find(self, ids: Sequence[str]) -> Sequence[Any]:
        return await self.fetch("attempts", (ids,))

    async def find_asks(self, purchases: Sequence[str]) -> Sequence[Any]:
        return await self.fetch("asks", (purchases,))

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        sql = self._schema.statements[name]
        if self._prepared is not None:
            try:
                if name not in self._prepared:
                    # A name that no other process can have given to another statement on the same server.
                    unique = f"payclient_{secrets.token_hex(8)}"
                    self._prepared[name] = await self.connection.prepare(sql, name=unique, timeout=ANSWER)
                rows: list[Any] = await self._prepared[name].fetch(*parameters, timeout=ANSWER)
            except _UNPREPARED:
                self._prepared = None
            else:
                return rows
        return list(await self.connection.fetch(sql, *parameters, timeout=ANSWER))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self.connection.transaction(isolation="read_committed"):
            await self.connection.execute(self._schema.statements["lock_writers_out"], timeout=ANSWER)
            yield

    def unavailable(self, error: BaseException, doing: str) -> LedgerUnavailableError:
        return unavailable(error, doing)


class PostgresWriter(Writer):
    """The task that owns the connection. Each operation is answered within a bounded time."""

    def __init__(
        self, connect: Connect, connection: asyncpg.Connection, schema: Schema, digest_key: bytes
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, loop.time)
        self._connect = connect
        self._schema = schema
        self._digest_key = digest_key
        #: This opening of the ledger; a lock of this key shows what it has asked of the server.
        self.owner: int = secrets.randbits(63)
        #: For how many seconds this opening holds what is permitted here; None: it follows nothing.
        self.holds: float | None = None
        self._work = asyncio.Event()
        self._stopping = False
        self._database: PostgresDatabase | None = PostgresDatabase(connection, schema)
        self.task: asyncio.Task[None] = loop.create_task(self._run())

    def submit(self, operation: Operation) -> None:
        operation.since = self._loop.time()
        super().submit(operation)
        if self.task.done():  # somebody cancelled all tasks of the loop
            self._refuse_pending()

    def _refuse_pending(self) -> None:
        batch = Batch(self._pending)
        self._pending = []
        batch.fail(LedgerUnavailableError("the ledger was closed"))
        resolve(batch.answers)

    def _hand_over(self) -> None:
        self._work.set()

    def stop(self) -> None:
        self._stopping = True
        self._work.set()

    async def ended(self) -> None:
        if asyncio.get_running_loop() is self._loop:
            await asyncio.wait([self.task], timeout=CLOSING)
            self.task.cancel()

    def abandon(self) -> None:
        if not self._loop.is_closed():  # else the connections ended with it
            self._loop.call_soon_threadsafe(self.stop)

    def _lose(self) -> None:
        database, self._database = self._database, None
        drop(database and database.connection)

    async def _run(self) -> None:
        operations: list[Operation] = []
        try:
            while self._pending or not self._stopping:
                if not self._pending:
                    await self._idle()
                    continue
                operations, self._pending = self._pending[:MOST], self._pending[MOST:]
                await self._carry_out(await self._reach(operations))
                operations = []
        finally:
            database, self._database = self._database, None
            if database is not None and self._stopping:
                try:
                    await database.connection.close(timeout=1.0)
                except FAULTS:
                    drop(database.connection)
            else:
                drop(database and database.connection)
            self._pending = operations + self._pending
            self._refuse_pending()

    async def _idle(self) -> None:
        """Until there is work; a connection that died unheard meanwhile is found before anybody needs it."""
        self._work.clear()
        try:
            async with asyncio.timeout(IDLE):
                await self._work.wait()
        except TimeoutError:
            if self._database is not None:
                try:
                    await self._database.connection.execute("SELECT 1", timeout=ANSWER)
                except FAULTS:
                    self._lose()

    async def _reach(self, operations: list[Operation]) -> list[Operation]:
        """Those of the batch for which there is a connection: all, or none once their patience has ended."""
        attempt = 0
        while operations and (self._database is None or self._database.connection.is_closed()):
            await asyncio.sleep(BACK_OFF[min(attempt, len(BACK_OFF) - 1)])
            attempt += 1
            connection = None
            try:
                connection = await self._connect()
                key, _ = await asyncio.wait_for(self._schema.open(connection, create=False), ANSWER)
                if key != self._digest_key:
                    raise LedgerUnavailableError("another ledger has taken this one's place")
                wait = self._schema.statements["wait_for_own"]
                await connection.execute(wait.replace("$1", str(self.owner)), timeout=ANSWER)
                self._database = PostgresDatabase(connection, self._schema)
                self._worked()
            except BaseException as error:
                drop(connection)
                if not isinstance(error, (PayError, *FAULTS)):
                    raise
                fault = unavailable(error, "reached")
                self._failed(fault)
                late = self._loop.time() - PATIENCE
                batch = Batch([each for each in operations if each.since <= late])
                batch.fail(fault)
                resolve(batch.answers)
                operations = [each for each in operations if each.since > late]
        return operations

    async def _carry_out(self, operations: list[Operation]) -> None:
        batch = Batch(operations)
        database = self._database
        if database is None or not operations:
            return
        holder = 0 if self.holds is None else self.owner
        database.permits_of = (self.owner, holder, UNHELD if self.holds is None else self.holds)
        try:
            await batch.write(database)
            await batch.read(database)
        except Exception as error:  # whoever waits must hear of it, whatever it is
            fault = unavailable(error, "read or written")
            self._lose()
            self._failed(fault)
            batch.fail(fault)
        resolve(batch.answers)
        if (news := _news(batch)) and self._database is not None:
            # In a transaction of its own, which waits for no disk: NOTIFY lets commits wait for each other.
            try:
                await database.fetch("notify", (self._schema.name, news))
            except FAULTS:
                self._lose()


def _news(batch: Batch) -> list[str]:
    """Return the ids of what was notified or decided; an empty one stands for those that NOTIFY has no room for."""
    found = set()
    for operation, after, _ in batch.answers:
        if isinstance(operation, Apply) and after is not None:
            before = operation.record
            hinted = (after.notified_at, after.candidate_ids) != (before.notified_at, before.candidate_ids)
            if hinted or (after.state is not before.state and after.state in FEED):
                found.add(after.client_transaction_id)
    return [each if len(each.encode()) < 1000 else "" for each in sorted(found)]


class PostgresLedger(StoredLedger):
    """One connection writes, another listens where somebody watches."""

    _writer: PostgresWriter

    def __init__(self, writer: PostgresWriter, listen: Callable[[], Listener], **options: Any) -> None:
        super().__init__(writer, **options)
        self._listen = listen
        self._listener: Listener | None = None

    @classmethod
    async def open(cls, address: Address, *, create: bool = True, poll: float = POLL) -> PostgresLedger:
        """Connect, check the server's settings and the schema, made if there is none and `create`.

        Raises `ConfigurationError` for an unsafe server or a schema that is not a ledger, `LedgerUnavailableError`
        where it cannot be reached.
        """
        connect, schema = connector(address), Schema(address.schema)
        connection = await patiently(connect)
        try:
            digest_key, created = await schema.open(connection, create)
        except BaseException:
            drop(connection)
            raise
        writer = PostgresWriter(connect, connection, schema, digest_key)
        return cls(
            writer,
            partial(Listener, connect, schema.name, poll),
            loop=asyncio.get_running_loop(),
            digest_key=digest_key,
            location=address.location,
            created=created,
        )

    # --- With other processes

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Tell of what any process wrote; see `Shared.watch`."""
        self._check_usable()
        if self._listener is None:
            self._listener = self._listen()
        return self._listener.watch(woken)

    def hold(self, seconds: float) -> None:
        self._writer.holds = seconds

    async def claim_due(self, limit: int, seconds: float) -> list[Record]:
        rows = await self._read("claim_due", self._writer.owner, limit, seconds)
        return sorted(map(record_of, rows), key=lambda record: record.created_at)

    async def renew(self, seconds: float) -> int:
        return int((await self._read("renew", self._writer.owner, seconds))[0][0])

    async def held(self) -> set[str]:
        return {row[0] for row in await self._read("held", self._writer.owner)}

    async def defer(self, seconds: Mapping[str, float]) -> None:
        await self._read("defer", self._writer.owner, list(seconds), list(seconds.values()))

    async def reserve(self, gap: float) -> float:
        return float((await self._read("reserve", gap))[0][0])

    async def pause(self, seconds: float) -> None:
        await self._read("pause", seconds)

    async def aclose(self) -> None:
        if not self._closed and os.getpid() == self._process and asyncio.get_running_loop() is self._loop:
            if self._writer.holds is not None:
                # What this process follows is another's from now on, at once.
                leaving = self._read("leave", self._writer.owner, LEASE)
                leaving.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._listener is not None:
                await self._listener.aclose()
        await super().aclose()
