"""The ledger in a SQLite file that one process owns: durable before a byte leaves, without a server.

One thread owns the connection. A batch is one transaction.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Container, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from typing import Any

from payclient.errors import LedgerUnavailableError, PayError
from payclient.ledger.batch import Batch, Operation, Permit, resolve
from payclient.ledger.sqlite_files import (
    STATEMENTS,
    Connect,
    OpenFile,
    connect,
    open_file,
    open_to_read,
    unavailable,
)
from payclient.ledger.sqlite_owner import OwnerLock
from payclient.ledger.writer import StoredLedger, Writer
from payclient.logs import Log

__all__ = ["SqliteDatabase", "SqliteLedger", "SqliteWriter"]

log: Log = Log("payclient.ledger")

#: Rows of one statement, largest first: few statements, whatever the size of a batch, since after each the thread
#: waits for the interpreter's lock.
_CHUNKS = (128, 64, 32, 16, 8, 4, 2, 1)
#: Columns at the end of a change that most changes leave NULL. Binding a None takes as long as storing ten.
_SELDOM = 8
_NOTHING = (None,) * _SELDOM

_ENDED = "the ledger's thread has ended: open the ledger again"


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Where each chunk of so many rows begins and ends."""
    start = 0
    for size in _CHUNKS:
        while count - start >= size:
            yield start, start + size
            start += size


@cache
def _repeated(name: str, times: int) -> str:
    """Return a statement for so many rows or ids."""
    mark = "VALUES" if "VALUES" in STATEMENTS[name] else "IN (?"
    head, _, row = STATEMENTS[name].partition(mark)
    if mark == "VALUES":
        return f"{head}VALUES {', '.join([row] * times)}"
    return f"{head}IN ({', '.join('?' * times)}{row}"


class SqliteDatabase:
    """An open transaction, or reads, on one connection. `cursors` numbers permits and changes, in one order."""

    value_faults: tuple[type[BaseException], ...] = (
        sqlite3.IntegrityError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
        sqlite3.DataError,
        OverflowError,
        ValueError,
    )

    def __init__(self, connection: sqlite3.Connection, cursors: Iterator[int]) -> None:
        self._connection = connection
        self._cursors = cursors
        self._wrote = False

    async def insert(self, permits: list[tuple[Any, ...]], changes: list[tuple[Any, ...]]) -> Container[str]:
        several = len(permits) + len(changes) > 1
        if several and self._wrote:
            raise sqlite3.DataError  # one by one from here: each statement undoes itself
        try:
            self._insert("permit", permits)
            self._insert("change", [row[:-_SELDOM] for row in changes if row[-_SELDOM:] == _NOTHING])
            self._insert("whole_change", [row for row in changes if row[-_SELDOM:] != _NOTHING])
        except self.value_faults:
            if several:
                self._connection.execute("ROLLBACK")
                self._connection.execute("BEGIN IMMEDIATE")
            raise
        self._wrote = True
        return {row[0] for rows in (permits, changes) for row in rows}

    def _insert(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        # One statement for many rows, not `executemany`, which takes the interpreter's lock back row by row.
        for start, end in _chunks(len(rows)):
            values: list[Any] = []
            for row in rows[start:end]:
                values.append(next(self._cursors))
                values += row
            self._connection.execute(_repeated(name, end - start), values)

    async def find(self, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        return self._select("attempts", ids)

    async def find_asks(self, purchases: Sequence[str]) -> list[tuple[Any, ...]]:
        return self._select("asks", purchases)

    def _select(self, name: str, keys: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = []
        for start, end in _chunks(len(keys)):
            rows += self._connection.execute(_repeated(name, end - start), keys[start:end]).fetchall()
        return rows

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connection.execute(STATEMENTS[name], parameters).fetchall()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            _rolled_back(self._connection)
            raise
        self._connection.execute("COMMIT")

    def unavailable(self, error: BaseException, doing: str) -> LedgerUnavailableError:
        return unavailable(error, doing)


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits to its end."""
    with suppress(StopIteration):
        work.send(None)


class SqliteWriter(Writer):
    """The thread that owns the connection. What begins with `_run` is the thread's side."""

    def __init__(
        self, path: str, connect: Connect, loop: asyncio.AbstractEventLoop, create: bool, read_only: bool
    ) -> None:
        super().__init__(loop, time.monotonic)
        self._path = path
        self._read_only = read_only
        self._create = create
        self._connect = connect
        self._digest_key = b""
        self._identity = (0, 0)
        self._ended = False
        self._cursors: Iterator[int] = count(1)
        # SimpleQueue, since `stop` may be called by the garbage collector in the midst of a `put`.
        self._inbox: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        #: The digest key and whether the file was made, once it is open.
        self.opened: asyncio.Future[tuple[bytes, bool]] = loop.create_future()
        # A daemon: a program that forgot to close its ledger must be able to end. Nothing is lost by it, for
        # the ledger abandons its writer at exit.
        self._thread = threading.Thread(target=self._run, name="payclient-ledger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._hand_over()
        self._inbox.put(None)

    async def ended(self) -> None:
        await asyncio.to_thread(self._thread.join)

    def abandon(self) -> None:
        self.stop()
        if threading.current_thread() is not self._thread:  # which may be collecting garbage
            self._thread.join()

    def _hand_over(self) -> None:
        if self._pending:
            operations, self._pending = self._pending, []
            self._inbox.put(operations)
            if self._ended:
                self._fail_unread()

    def _fail_unread(self) -> None:
        """Note, in the loop, that the thread has ended, and answer by an error each operation that it never read."""
        self._ended = True
        while not self._inbox.empty():
            batch = Batch(self._inbox.get_nowait() or ())
            batch.fail(LedgerUnavailableError(_ENDED))
            resolve(batch.answers)

    def _run(self) -> None:
        # The connection is never an attribute: after a fork the child leaks this frame, and so cannot close
        # the connection, which would tear the write-ahead log from under its parent.
        try:
            file = self._open(create=self._create)
        except BaseException as error:  # the opener's
            self._call(_set_result, self.opened, None, error)
            return
        self._digest_key, self._identity = file.digest_key, file.identity
        self._cursors = count(file.last_cursor + 1)
        self._call(_set_result, self.opened, (file.digest_key, file.created), None)
        try:
            self._serve(file, file.lock)
        except BaseException as error:
            what = "the ledger's thread ended by a fault (%s): open it again"
            log("critical", "ledger_thread_ended", "", what, type(error).__name__)
        finally:
            if file.lock is not None:
                file.lock.release()
            self._call(self._fail_unread)

    def _open(self, *, create: bool, lock: OwnerLock | None = None) -> OpenFile:
        if self._read_only:
            return open_to_read(self._path)
        return open_file(self._path, self._connect, create=create, lock=lock)

    def _call(self, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _serve(self, file: OpenFile | None, lock: OwnerLock | None) -> None:
        try:
            going_on = True
            while going_on:
                operations, going_on = self._take()
                batch = Batch(operations)
                try:
                    if operations:
                        file = self._carry_out(file or self._open_again(lock), batch)
                except PayError as error:  # it could not be opened again
                    self._failed(error)
                    batch.fail(LedgerUnavailableError(str(error)))
                    self._answer(batch)
                except BaseException:
                    batch.fail(LedgerUnavailableError(_ENDED))
                    self._answer(batch)
                    raise
                # Its futures hold their callers' frames, which hold the ledger; and the next may be long in coming.
                del batch, operations
        finally:
            if file is not None:
                file.close()

    def _take(self) -> tuple[list[Operation], bool]:
        """All that is queued, waiting for the first; False when there will be no more."""
        operations: list[Operation] = []
        more = self._inbox.get()
        while more is not None:
            operations += more
            try:
                more = self._inbox.get_nowait()
            except queue.Empty:
                return operations, True
        return operations, False

    def _carry_out(self, file: OpenFile, batch: Batch) -> OpenFile | None:
        """Answer every operation of the batch; what is returned is None when the file must be opened again."""
        connection = file.connection
        database = SqliteDatabase(connection, self._cursors)
        lost = False
        if batch.writes:
            try:
                connection.execute("BEGIN IMMEDIATE")
                _finish(batch.write(database))
                connection.execute("COMMIT")
            except Exception as error:  # whatever it is, nothing of it was committed
                fault = unavailable(error, "written")
                self._failed(fault)
                batch.fail(fault, writes_too=True)
                lost = not _rolled_back(connection)
            else:
                self._check_in_place(file, batch)
        try:
            if lost:
                raise sqlite3.OperationalError  # what failed before them took the connection along
            _finish(batch.read(database))
        except Exception as error:  # a thread must answer
            batch.fail(unavailable(error, "read"))
        self._answer(batch)
        return None if lost else file

    def _check_in_place(self, file: OpenFile, batch: Batch) -> None:
        """Grant no permit in a file that is out of its place by now."""
        try:
            if any(isinstance(each, Permit) for each in batch.writes):
                file.check_in_place()
        except LedgerUnavailableError as error:
            self._failed(error)
            batch.deny_permits(error)
        else:
            self._worked()

    def _open_again(self, lock: OwnerLock | None) -> OpenFile:
        file = self._open(create=False, lock=lock)
        if (file.digest_key, file.identity) != (self._digest_key, self._identity):
            file.close()
            raise LedgerUnavailableError("another file has taken the ledger's place")
        self._cursors = count(file.last_cursor + 1)
        return file

    def _answer(self, batch: Batch) -> None:
        self._call(resolve, batch.answers)


def _set_result(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():  # cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _rolled_back(connection: sqlite3.Connection) -> bool:
    """False where even that failed: the connection is closed, and nobody knows what it held."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            connection.close()
        return False
    return True


class SqliteLedger(StoredLedger):
    """One process owns the file and one thread writes it."""

    @classmethod
    async def open(
        cls, path: str, *, create: bool = True, read_only: bool = False, connect: Connect = connect
    ) -> SqliteLedger:
        """Open the file, made with mode 0600 if there is none and `create`; `connect` opens the one connection to it.

        With `read_only` no process owns the file by this, and its owner goes on; a write raises
        `LedgerUnavailableError`.

        Raises `ConfigurationError` for an unsafe place or a file that is not a ledger, `LedgerMissingError` where there
        is none to open, `LedgerInUseError` where another process has it open, `LedgerUnavailableError` where it cannot
        be opened.
        """
        loop = asyncio.get_running_loop()
        # Absolute, so that no name is special to SQLite (":memory:") and a later chdir changes nothing.
        path = os.path.abspath(path)  # noqa: ASYNC240 - asks no disk
        writer = SqliteWriter(path, connect, loop, create, read_only)
        try:
            digest_key, created = await writer.opened
        except BaseException:
            writer.stop()
            raise
        return cls(writer, loop, digest_key, location=f"sqlite:{path}", created=created)
