"""The ledger in a PostgreSQL that many processes share: the unique key of a permit is the judge between them.

One task owns the connection that writes. The writes of a batch are one statement over arrays.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg

from payclient.clock import read_exception
from payclient.errors import LedgerUnavailableError
from payclient.ledger import unavailable
from payclient.ledger.batch import Operation, Read, Write, fail, note_unsaid, read, resolve, write, writes_of
from payclient.ledger.postgres_connection import POLL, Listener, Server, Woken, drop, let_go, pauses
from payclient.ledger.records import FEED, record_of
from payclient.ledger.writer import StoredLedger, Writer
from payclient.lifecycle import Record
from payclient.secret import Secret

__all__ = ["PostgresDatabase", "PostgresLedger", "PostgresWriter"]

#: Seconds in which the server must have answered a statement.
ANSWERING = 10.0
#: Seconds that a batch waits for a server that cannot be reached.
REACHING = 5.0
#: Operations of one batch.
MOST_AT_ONCE = 1000
#: Seconds after which an attempt is due that was permitted by a process that follows no asks.
UNHELD = 60.0
#: Seconds of the longest lease. An ask that is put off for longer stays put off when its holder closes.
LONGEST_LEASE = 60.0
#: Seconds that closing waits for a server that cannot be reached.
CLOSING = 30.0

_PERMIT_COLUMNS, _CHANGE_COLUMNS = 12, 20
#: Behind a pooler the next statement may meet another server, which does not know the prepared one.
_UNPREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)


class PostgresDatabase:
    """One connection of the writer's."""

    value_faults: tuple[type[BaseException], ...] = (
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.ProgramLimitExceededError,
        asyncpg.RaiseError,
        asyncpg.TransactionRollbackError,  # it lost a deadlock; the connection is sound
        OverflowError,
    )

    def __init__(self, connection: asyncpg.Connection, statements: Mapping[str, str]) -> None:
        self.connection = connection
        self._statements = statements
        #: Prepared statements by their names here; None behind a pooler, whose servers would keep them for good.
        self._prepared: dict[str, Any] | None = {}
        #: The first parameters of the statement `write`: its owner, who holds what is permitted, and for how long.
        self.lease: tuple[int, int, float] = (0, 0, UNHELD)
        #: Whether the server warned beside its answer: a commit may not have reached a standby.
        self._warned = False
        connection.add_log_listener(self._note_warning)

    def _note_warning(self, _: object, message: Any) -> None:
        # From 40 million transactions before their numbers run out, the server says so with each that writes.
        of_numbers = getattr(message, "server_source_function", None) == "GetNewTransactionId"
        self._warned |= getattr(message, "severity_en", None) == "WARNING" and not of_numbers

    async def insert(self, permits: list[tuple[Any, ...]], changes: list[tuple[Any, ...]]) -> Container[str]:
        self._warned = False
        columns: list[Any] = [*self.lease]
        columns += zip(*permits, strict=True) if permits else [()] * _PERMIT_COLUMNS
        columns += zip(*changes, strict=True) if changes else [()] * _CHANGE_COLUMNS
        try:
            rows = await self.fetch("write", tuple(columns))
        except asyncpg.TransactionRollbackError:  # it lost a deadlock; nothing was written
            return ()
        except TimeoutError:
            # Not cancelled: a commit that waits for a standby would come into sight without it.
            drop(self.connection)
            raise
        if self._warned:
            raise LedgerUnavailableError("the ledger committed this, and perhaps on no standby")
        return {row[0] for row in rows}

    async def look_up(self, ids: Sequence[str], purchases: Sequence[str]) -> tuple[list[Any], list[Any]]:
        rows = await self.fetch("look_up", (ids, purchases))
        return [row for row in rows if not row["is_ask"]], [row for row in rows if row["is_ask"]]

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        sql = self._statements[name]
        if self._prepared == {}:
            # A pooler gives each of its clients a process id of its own.
            process = await self.connection.fetchval("SELECT pg_backend_pid()", timeout=ANSWERING)
            if process != self.connection.get_server_pid():
                self._prepared = None
        if self._prepared is not None:
            try:
                if name not in self._prepared:
                    # A name that no other process can have given to another statement on the same server.
                    unique = f"payclient_{secrets.token_hex(8)}"
                    self._prepared[name] = await self.connection.prepare(sql, name=unique, timeout=ANSWERING)
                rows: list[Any] = await self._prepared[name].fetch(*parameters, timeout=ANSWERING)
            except _UNPREPARED:  # nothing was carried out
                self._prepared = None
            else:
                return rows
        return list(await self.connection.fetch(sql, *parameters, timeout=ANSWERING))

    async def end_deletion(self, *, were_deleted: bool) -> bool:
        if not were_deleted:
            await self.fetch("probe", ())
        return True  # as far as can be said: the server overwrites what was deleted in its own time


class PostgresWriter(Writer):
    """The task that owns the connection. Each operation is answered within a bounded time."""

    def __init__(self, server: Server, connection: asyncpg.Connection, digest_key: bytes) -> None:
        super().__init__(asyncio.get_running_loop())
        self._server = server
        self._digest_key = digest_key
        #: The number of this opening of the ledger: of its leases, and of the lock that its statements take.
        self.owner: int = secrets.randbits(63)
        #: For how many seconds this opening holds what it permits; None: it follows no asks, and holds nothing.
        self.holds_for: float | None = None
        self._work = asyncio.Event()
        self._stopping = False
        self._database: PostgresDatabase | None = PostgresDatabase(connection, server.statements)
        self.task: asyncio.Task[None] = self.loop.create_task(self._run())

    def _hand_over(self) -> None:
        self._work.set()
        if self.task.done():  # somebody cancelled all tasks of the loop
            self._refuse(self._pending)

    def _refuse(self, operations: list[Operation]) -> None:
        self._pending = []
        fail(operations, LedgerUnavailableError("the ledger was closed"))
        resolve(operations)

    def stop(self) -> None:
        self._stopping = True
        self._work.set()

    async def aclose(self) -> None:
        self.stop()
        if asyncio.get_running_loop() is self.loop:  # a task of another loop cannot be awaited
            await asyncio.wait([self.task], timeout=CLOSING)
            self.task.cancel()

    def abandon(self) -> None:
        if not self.loop.is_closed():  # a closed loop has ended the connections
            self.loop.call_soon_threadsafe(self.stop)

    async def _lose(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await let_go(database.connection)

    async def _run(self) -> None:
        """Carry out what is queued, a batch at a time, until the writer is stopped."""
        operations: list[Operation] = []
        try:
            while self._pending or not self._stopping:
                if not self._pending:
                    self._work.clear()
                    await self._work.wait()
                    continue
                operations, self._pending = self._pending[:MOST_AT_ONCE], self._pending[MOST_AT_ONCE:]
                await self._carry_out(operations)
                operations = []
            await self._lose()
        finally:
            drop(self._database and self._database.connection)
            self._refuse(operations + self._pending)

    async def _reach(self) -> PostgresDatabase:
        """Return the database, connected again where the connection was lost.

        Raises `LedgerUnavailableError` where the server is away for longer.
        """
        until, wait = self.loop.time() + REACHING, pauses()
        while self._database is None or self._database.connection.is_closed():
            await asyncio.sleep(next(wait))
            try:
                connection, digest_key, _ = await self._server.open(timeout=ANSWERING)
                self._database = PostgresDatabase(connection, self._server.statements)
                if digest_key != self._digest_key:
                    raise LedgerUnavailableError("another ledger has taken this one's place")
                await self._database.fetch("wait_for_own", (self.owner,))
                # The connection may have ended between a payment and its `Overpaid`.
                if self.holds_for is not None:
                    self.submit(Read(partial(note_unsaid, at=time.time()))).add_done_callback(read_exception)
                self._log_recovery()
            except Exception as error:  # whatever it is must not end the task
                await self._lose()
                self._log_failure(fault := unavailable(error, "reached"))
                if self.loop.time() >= until:
                    raise fault from None
        return self._database

    async def _carry_out(self, operations: list[Operation]) -> None:
        """Answer every operation of a batch, then notify the other processes of its news."""
        writes = writes_of(operations)
        is_sound = True
        try:
            database = await self._reach()
            holder, seconds = (0, UNHELD) if self.holds_for is None else (self.owner, self.holds_for)
            database.lease = (self.owner, holder, seconds)
            await write(database, writes)
            await read(database, operations)
        except Exception as error:  # every waiting caller gets an answer
            self._log_failure(fault := unavailable(error, "read or written"))
            fail(operations, fault)
            is_sound = False
        resolve(operations)
        if not is_sound:
            await self._lose()
        if (ids := _ids_to_notify(writes)) and self._database is not None:
            # In a transaction of its own, which waits for no disk: NOTIFY lets commits wait for each other.
            try:
                await self._database.fetch("notify", (self._server.schema, ids))
            except Exception:  # a loop of another kind raises RuntimeError where the wire is gone
                await self._lose()


def _ids_to_notify(writes: list[Write]) -> list[str]:
    """Return the ids that got a hint, or are in a state of the feed now; "" stands for one too long for NOTIFY."""
    found = set()
    for each in writes:
        after = each.answer
        if isinstance(after, Record):
            before = each.before
            hinted = (after.notified_at, after.candidate_ids) != (before.notified_at, before.candidate_ids)
            if hinted or after.state in FEED:
                found.add(each.identifier)
    return [each if len(each.encode()) < 1000 else "" for each in sorted(found)]


class PostgresLedger(StoredLedger):
    """One connection writes, another listens where somebody watches."""

    _writer: PostgresWriter

    def __init__(
        self, server: Server, poll: float, writer: PostgresWriter, digest_key: bytes, created: bool
    ) -> None:
        super().__init__(writer, digest_key, location=server.location, created=created)
        self._listen = partial(Listener, server, poll)
        self._listener: Listener | None = None

    @classmethod
    async def open(
        cls, url: Secret[str], *, create: bool = True, read_only: bool = False, poll: float = POLL
    ) -> PostgresLedger:
        """Do what `open_ledger` does. `poll`: seconds from one look at what is watched to the next."""
        server = Server(url, read_only=read_only)
        connection, digest_key, created = await server.open_patiently(create=create)
        return cls(server, poll, PostgresWriter(server, connection, digest_key), digest_key, created)

    # --- With other processes

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Call `woken` for what any process wrote; see `Shared.watch`."""
        self._check_usable()
        if self._listener is None:
            self._listener = self._listen()
        return self._listener.watch(woken)

    def hold(self, seconds: float) -> None:
        self._writer.holds_for = seconds

    async def claim_due(self, limit: int, seconds: float) -> list[Record]:
        rows = await self.fetch("claim_due", self._writer.owner, limit, seconds)
        return sorted(map(record_of, rows), key=lambda record: record.created_at)

    async def renew(self, seconds: float) -> int:
        return int((await self.fetch("renew", self._writer.owner, seconds))[0][0])

    async def held(self) -> set[str]:
        return {row[0] for row in await self.fetch("held", self._writer.owner)}

    async def defer(self, seconds: Mapping[str, float]) -> None:
        await self.fetch("defer", self._writer.owner, list(seconds), list(seconds.values()))

    async def reserve(self, gap: float) -> float:
        return float((await self.fetch("reserve", gap))[0][0])

    async def pause(self, seconds: float) -> None:
        await self.fetch("pause", seconds)

    async def note_overpaid(self, at: float) -> None:
        await self.work(partial(note_unsaid, at=at))

    async def aclose(self) -> None:
        is_usable = os.getpid() == self._process and asyncio.get_running_loop() is self._writer.loop
        if is_usable and not self._closed:
            if self._writer.holds_for is not None:
                # Other processes follow these asks from now on; where this fails, once the leases have ended.
                leaving = self.fetch("leave", self._writer.owner, LONGEST_LEASE)
                leaving.add_done_callback(read_exception)
            if self._listener is not None:
                await self._listener.aclose()
        await super().aclose()
