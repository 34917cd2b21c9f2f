"""The one task that owns the connection that writes, and the queue before it.

What queues during a commit forms the next one, a single statement over arrays: the disk's fsync is shared out among
all who wait, and a process that stops in the midst of it holds nothing that others wait for.
"""

from __future__ import annotations

import asyncio
import secrets
from itertools import groupby
from typing import Any

import asyncpg

from payclient.errors import LedgerUnavailableError, PayError, TransitionError
from payclient.events import NotSent
from payclient.ledger.columns import record_of
from payclient.ledger.operations import Apply, Get, Operation, Permit, Read, Write
from payclient.ledger.outage import Outage
from payclient.ledger.postgres_connecting import FAULTS, Connect, drop, open_ledger_schema, unavailable
from payclient.ledger.postgres_schema import BARRIER, CHANGING
from payclient.ledger.postgres_statements import SELECT_ATTEMPTS, WRITE, apply_row
from payclient.lifecycle import Record, State, advance, check_newest

__all__ = ["Writer", "aim"]

#: Seconds in which the server must have answered a statement.
ANSWER = 10.0
#: Seconds that an operation waits for a server that cannot be reached.
PATIENCE = 5.0
#: Seconds between attempts to reach it.
BACK_OFF = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
#: Seconds without work after which the connection is probed.
IDLE = 30.0
#: Writes of one transaction.
MOST = 1000

_PERMIT_COLUMNS, _APPLY_COLUMNS = 10, len(CHANGING) + 3
#: Behind a pooler the next statement may meet another server, which does not know the prepared one.
_UNPREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
#: Nothing was written, for the sake of one value among them all.
_VALUE_FAULTS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.RaiseError,
    OverflowError,
)


def aim(write: Apply, record: Record) -> None:
    """Let it be about this record. Raises `TransitionError` where that does not take the event."""
    write.after = advance(record, write.event)
    write.record, write.row = record, apply_row(record, write.event, write.after)


class Writer:
    """Takes operations from `submit` and answers each within a bounded time."""

    def __init__(self, connect: Connect, connection: asyncpg.Connection, digest_key: bytes) -> None:
        self._connect = connect
        self._connection: asyncpg.Connection | None = None
        self._digest_key = digest_key
        #: This process's, for as long as the ledger is open.
        self.owner = secrets.token_bytes(16)
        #: Who follows what is permitted here from now on: this process, once it has said that it follows.
        self.follower = b""
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[float, Operation]] = []
        self._work = asyncio.Event()
        self._stopping = False
        #: The server said something beside its answer: a commit may not have gone where it should.
        self._warned = False
        self._statements: dict[str, Any] | None = {}
        self._outage = Outage(self._loop.time)
        self._use(connection)
        self.task = self._loop.create_task(self._run())

    def submit(self, operation: Operation) -> None:
        if self.task.done():  # somebody cancelled all tasks of the loop
            _fail(operation, LedgerUnavailableError("the ledger was closed"))
            return
        self._pending.append((self._loop.time(), operation))
        self._work.set()

    def stop(self) -> None:
        """Let the task carry out what is queued, and end."""
        self._stopping = True
        self._work.set()

    def _use(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        if self._statements is not None:
            self._statements = {}
        connection.add_log_listener(self._hear)

    def _hear(self, _: object, message: Any) -> None:
        self._warned = self._warned or getattr(message, "severity_en", None) == "WARNING"

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        drop(connection)

    async def _run(self) -> None:
        batch: list[tuple[float, Operation]] = []
        try:
            while self._pending or not self._stopping:
                if not self._pending:
                    await self._idle()
                    continue
                batch, self._pending = self._pending[:MOST], self._pending[MOST:]
                if batch := await self._reach(batch):
                    await self._carry_out([operation for _, operation in batch])
                batch = []
        finally:
            connection, self._connection = self._connection, None
            if connection is not None and self._stopping:
                try:
                    await connection.close(timeout=1.0)
                except FAULTS:
                    drop(connection)
            else:
                drop(connection)
            for _, operation in batch + self._pending:
                _fail(operation, LedgerUnavailableError("the ledger was closed"))

    async def _idle(self) -> None:
        """Until there is work; a connection that died unheard meanwhile is found before anybody needs it."""
        self._work.clear()
        try:
            async with asyncio.timeout(IDLE):
                await self._work.wait()
        except TimeoutError:
            if self._connection is not None:
                try:
                    await self._connection.execute("SELECT 1", timeout=ANSWER)
                except FAULTS:
                    self._lose()

    async def _reach(self, batch: list[tuple[float, Operation]]) -> list[tuple[float, Operation]]:
        """Those of the batch for which there is a connection: all, or none once their patience has ended."""
        attempt = 0
        while batch and (self._connection is None or self._connection.is_closed()):
            await asyncio.sleep(BACK_OFF[min(attempt, len(BACK_OFF) - 1)])
            attempt += 1
            connection = None
            try:
                connection = await self._connect()
                key, _ = await asyncio.wait_for(open_ledger_schema(connection, create=False), ANSWER)
                if key != self._digest_key:
                    raise LedgerUnavailableError("another ledger has taken this one's place")
                # Whatever the lost connection had asked for is done or undone once this is answered.
                await connection.execute(BARRIER, timeout=ANSWER)
                self._use(connection)
                self._outage.worked()
            except BaseException as error:
                drop(connection)
                if not isinstance(error, (PayError, *FAULTS)):
                    raise
                self._outage.failed(unavailable(error, "reached"))
                late = self._loop.time() - PATIENCE
                for since, operation in batch:
                    if since <= late:
                        _fail(operation, unavailable(error, "reached"))
                batch = [each for each in batch if each[0] > late]
        return batch

    async def _carry_out(self, batch: list[Operation]) -> None:
        try:
            writes = [each for each in batch if isinstance(each, Permit | Apply)]
            while writes:
                now, later = _apart(writes)
                writes = await self._write(now) + later
            await self._get([each for each in batch if isinstance(each, Get)])
            for each in batch:
                if isinstance(each, Read):
                    await self._read(each)
        except Exception as error:  # whoever waits must hear of it, whatever it is
            self._lose()
            self._outage.failed(unavailable(error, "read or written"))
            for each in batch:
                _fail(each, unavailable(error, "read or written"))

    async def _fetch(self, sql: str, *parameters: object) -> list[Any]:
        connection = self._connection
        if connection is None:
            raise LedgerUnavailableError("the ledger has no connection")
        if self._statements is not None:
            try:
                if sql not in self._statements:
                    # A name that no other process can have given to another statement on the same server.
                    name = f"payclient_{secrets.token_hex(8)}"
                    self._statements[sql] = await connection.prepare(sql, name=name, timeout=ANSWER)
                rows: list[Any] = await self._statements[sql].fetch(*parameters, timeout=ANSWER)
            except _UNPREPARED:
                self._statements = None
            else:
                return rows
        return list(await connection.fetch(sql, *parameters, timeout=ANSWER))

    async def _write(self, writes: list[Write]) -> list[Write]:
        """Commit what can be of these, each of another id; give back what must be tried again."""
        self._warned = False
        columns = self._columns(writes)
        if not any(columns[:-2]):
            return await self._reconsider(writes)
        try:
            done = {row[0] for row in await self._fetch(WRITE, *columns)}
        except _VALUE_FAULTS as error:
            if len(writes) == 1:
                _fail(writes[0], unavailable(error, "written"))
                return []
            return [again for each in writes for again in await self._write([each])]
        except asyncpg.TransactionRollbackError:  # somebody by hand, at the same time; nothing was written
            return writes
        if self._warned:
            raise LedgerUnavailableError("the ledger committed this, and perhaps on no standby")
        for each in writes:
            if each.record.client_transaction_id in done:
                _answer(each, True if isinstance(each, Permit) else each.after)
        rest = [each for each in writes if each.record.client_transaction_id not in done]
        return await self._reconsider(rest) if rest else []

    def _columns(self, writes: list[Write]) -> list[object]:
        permits = [each.row for each in writes if isinstance(each, Permit)]
        applies = [each.row for each in writes if isinstance(each, Apply) and each.after is not None]
        columns: list[object] = []
        columns += zip(*permits, strict=True) if permits else [()] * _PERMIT_COLUMNS
        columns += zip(*applies, strict=True) if applies else [()] * _APPLY_COLUMNS
        return [*columns, self.owner, self.follower]

    async def _reconsider(self, writes: list[Write]) -> list[Write]:
        """Answer by what the ledger holds what it did not take, or aim it at that."""
        ids = [each.record.client_transaction_id for each in writes]
        known = await self._attempts(ids)
        again = []
        for each in writes:
            attempts = known.get(each.record.client_transaction_id, [])
            try:
                if isinstance(each, Permit):
                    if _refuses(attempts, each.record):
                        _answer(each, False)
                        continue
                else:
                    _aim(each, attempts)
            except TransitionError as error:
                _fail(each, error)
            else:
                again.append(each)
        return again

    async def _attempts(self, ids: list[str]) -> dict[str, list[Record]]:
        records = [record_of(row) for row in await self._fetch(SELECT_ATTEMPTS, ids)]
        return {
            key: list(each) for key, each in groupby(records, lambda record: record.client_transaction_id)
        }

    async def _get(self, gets: list[Get]) -> None:
        if not gets:
            return
        try:
            found = await self._attempts(list({identifier for each in gets for identifier in each.ids}))
        except _VALUE_FAULTS as error:
            if len(gets) == 1:
                _fail(gets[0], unavailable(error, "read"))
            else:
                for each in gets:
                    await self._get([each])
            return
        for each in gets:
            _answer(
                each, {identifier: found[identifier][-1] for identifier in each.ids if identifier in found}
            )

    async def _read(self, read: Read) -> None:
        try:
            rows = await self._fetch(read.sql, *read.parameters)
        except _VALUE_FAULTS as error:
            _fail(read, unavailable(error, "read"))
        else:
            _answer(read, rows)


def _apart(writes: list[Write]) -> tuple[list[Write], list[Write]]:
    """The first of each client transaction id, for whose next ones the order matters; and those."""
    now: list[Write] = []
    later: list[Write] = []
    seen: set[str] = set()
    for each in writes:
        identifier = each.record.client_transaction_id
        (later if identifier in seen else now).append(each)
        seen.add(identifier)
    return now, later


def _refuses(attempts: list[Record], record: Record) -> bool:
    """Whether those attempts forbid this one; `TransitionError` where the one before it is missing."""
    newest = attempts[-1] if attempts else None
    if newest is not None and (newest.attempt >= record.attempt or newest.state is not State.REFUSED):
        return True
    if record.attempt != (1 if newest is None else newest.attempt + 1):
        raise TransitionError(
            "the attempt before it is missing", client_transaction_id=record.client_transaction_id
        )
    return False


def _aim(write: Apply, attempts: list[Record]) -> None:
    record = write.record
    current = next((each for each in attempts if each.attempt == record.attempt), None)
    if current is None:
        raise TransitionError("no such attempt", client_transaction_id=record.client_transaction_id)
    if isinstance(write.event, NotSent) and write.after is not None and current.version == record.version:
        raise TransitionError(
            "another process was granted this attempt", client_transaction_id=record.client_transaction_id
        )
    aim(write, current)
    assert write.after is not None  # noqa: S101 - aimed
    check_newest(current, write.after, attempts[-1].attempt)


def _answer(operation: Operation, result: object) -> None:
    if not operation.future.done():  # not cancelled
        operation.future.set_result(result)


def _fail(operation: Operation, error: PayError) -> None:
    if isinstance(operation, Permit | Apply) and error.client_transaction_id is None:
        error.client_transaction_id = operation.record.client_transaction_id
    if not operation.future.done():
        operation.future.set_exception(error)
