"""The ledger in a SQLite file that one process owns: durable before a byte leaves, without a server.

One thread owns the connection. A batch is one transaction.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from itertools import count
from typing import Any

from payclient.errors import LedgerUnavailableError
from payclient.events import ReversalPermitted
from payclient.ledger import unavailable
from payclient.ledger.batch import Operation, Row, Rows, Write, fail, read, resolve, write, writes_of
from payclient.ledger.sqlite_files import APPLICATION_ID, BUSY, STATEMENTS, OpenFile, open_file, open_to_read
from payclient.ledger.writer import StoredLedger, Writer
from payclient.logs import ledger_log as log

__all__ = ["SqliteDatabase", "SqliteLedger", "SqliteWriter", "run_now"]

#: Rows of one statement, largest first: few statements, whatever the size of a batch, since after each the thread
#: waits for the interpreter's lock.
_CHUNKS = (128, 64, 32, 16, 8, 4, 2, 1)
#: Columns at the end of a change that most changes leave NULL. Binding a None takes as long as storing ten.
_SELDOM = 8
_NOTHING = (None,) * _SELDOM


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield where each chunk of so many rows begins and ends."""
    start = 0
    for size in _CHUNKS:
        while count - start >= size:
            yield start, start + size
            start += size


@cache
def _repeated(name: str, times: int) -> str:
    """Return a statement for so many rows (`VALUES ...`), or for so many ids (`IN (?)`)."""
    head, _, row = STATEMENTS[name].partition("VALUES")
    if row:
        return f"{head}VALUES {', '.join([row] * times)}"
    head, _, tail = STATEMENTS[name].partition("IN (?")
    return f"{head}IN ({', '.join('?' * times)}{tail}"


class SqliteDatabase:
    """An open transaction, or reads, on one connection. `cursors` numbers permits and changes, in one order.

    `check_in_place` raises where the file is out of its place, so that no permit may be granted.
    """

    value_faults: tuple[type[BaseException], ...] = (
        sqlite3.IntegrityError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
        sqlite3.DataError,
        OverflowError,
        ValueError,
    )

    def __init__(
        self, connection: sqlite3.Connection, cursors: Iterator[int], check_in_place: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._cursors = cursors
        self.check_in_place = check_in_place
        #: Whether every deleted link is gone from the pages of the file and its log, which any program may read. An
        #: owner that was killed may have left some.
        self._is_wiped = False

    async def insert(self, permits: list[Row], changes: list[Row]) -> Container[str]:
        self._connection.execute("SAVEPOINT inserted")
        try:
            self._insert("permit", permits)
            self._insert("change", [row[:-_SELDOM] for row in changes if row[-_SELDOM:] == _NOTHING])
            self._insert("whole_change", [row for row in changes if row[-_SELDOM:] != _NOTHING])
        except self.value_faults:
            self._connection.execute("ROLLBACK TO inserted")
            self._connection.execute("RELEASE inserted")
            raise
        self._connection.execute("RELEASE inserted")
        # All of them: a row that other rows forbid raises.
        return {client_transaction_id for client_transaction_id, *_ in (*permits, *changes)}

    def _insert(self, name: str, rows: list[Row]) -> None:
        # One statement for many rows, not `executemany`, which takes the interpreter's lock back row by row.
        for start, end in _chunks(len(rows)):
            values: list[Any] = []
            for row in rows[start:end]:
                values.append(next(self._cursors))
                values += row
            self._connection.execute(_repeated(name, end - start), values)

    def _find(self, name: str, keys: Sequence[str]) -> Rows:
        rows = []
        for start, end in _chunks(len(keys)):
            rows += self._connection.execute(_repeated(name, end - start), keys[start:end]).fetchall()
        return rows

    async def look_up(self, ids: Sequence[str], purchases: Sequence[str]) -> tuple[Rows, Rows]:
        return self._find("attempts", ids), self._find("asks", purchases)

    async def fetch(self, name: str, parameters: Row) -> Rows:
        return self._connection.execute(STATEMENTS[name], parameters).fetchall()

    async def end_deletion(self, *, were_deleted: bool) -> bool:
        self._is_wiped = self._is_wiped and not were_deleted
        if not were_deleted:
            self.check_in_place()
            # Writes what is there already: a full disk shows.
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        if not self._is_wiped:
            # Empty the write-ahead log; another time, while a reader needs it: waiting would hold up all permits.
            self._connection.execute("PRAGMA busy_timeout = 0")
            try:
                is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._is_wiped = not is_busy
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")
        return self._is_wiped

    def begin(self) -> None:
        self.roll_back()
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo what a transaction left behind that failed. Nothing is read or written before that is done."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


#: One lock for each ledger of this process, which its thread holds while it is in SQLite; and those held by a fork.
_in_sqlite: set[threading.Lock] = set()
_at_fork: list[threading.Lock] = []
#: Held by a fork: no ledger's thread begins meanwhile.
_forking = threading.Lock()

#: Seconds for which a fork waits for a disk that stands still.
FORKING = 5.0


def _begin_fork() -> None:
    """Wait until no thread is in SQLite: a child would find SQLite's own locks taken by nobody, and wait for ever."""
    _forking.acquire(timeout=FORKING)  # two forks take turns, unless one is begun amid the other, by a signal
    _at_fork.extend(each for each in _in_sqlite.copy() if each.acquire(timeout=FORKING))


def _end_fork() -> None:
    while _at_fork:
        _at_fork.pop().release()
    # The lock is free where another thread loaded this module amid the fork, or where Ctrl-C ended the wait for it.
    with suppress(RuntimeError):
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def run_now(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end without a loop: it never waits."""
    with suppress(StopIteration):
        work.send(None)


class SqliteWriter(Writer):
    """The thread that owns the connection; from `_run` on it is the thread's side."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_file: Callable[[], OpenFile]) -> None:
        super().__init__(loop)
        self._open_file = open_file
        # SimpleQueue, since `stop` may be called by the garbage collector in the midst of a `put`. An empty list ends
        # the thread.
        self._inbox: queue.SimpleQueue[list[Operation]] = queue.SimpleQueue()
        #: Answered by the digest key and whether the file was made, once it is open.
        self.opening: Operation = Operation()
        self.opening.future = loop.create_future()
        #: Done once the thread has closed the file. It is marked as running, so that no waiter cancels it.
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()
        # A daemon: a program that forgot to close its ledger must be able to end. Nothing is lost by it, for
        # the ledger abandons its writer at exit.
        self._thread = threading.Thread(target=self._run, name="payclient-ledger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread once everything queued is carried out."""
        self._hand_over()
        self._inbox.put([])

    async def aclose(self) -> None:
        self.stop()
        # Not by `to_thread`: CPython 3.12.0 and 3.12.1 start no thread at the end of a program.
        await asyncio.wrap_future(self._ended)

    def abandon(self) -> None:
        self.stop()
        if threading.current_thread() is not self._thread:  # which may be collecting garbage
            self._thread.join()

    def _hand_over(self) -> None:
        if self._pending:
            operations, self._pending = self._pending, []
            self._inbox.put(operations)

    def _answer(self, operations: Sequence[Operation]) -> None:
        # A function without arguments, since asyncio's debug mode logs them, and an answer may hold a form's links.
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(lambda: resolve(operations))

    def _run(self) -> None:
        """Serve the queue until it ends. A fork waits while `in_sqlite` is held (`_begin_fork`)."""
        in_sqlite = threading.Lock()
        with _forking:
            _in_sqlite.add(in_sqlite)
        try:
            self._serve(in_sqlite)
        finally:
            _in_sqlite.discard(in_sqlite)
            self._ended.set_result(None)

    def _serve(self, in_sqlite: threading.Lock) -> None:
        """Open the file, carry out what is queued until the order to end, and close the file."""
        # The connection is never an attribute: after a fork the child leaks this frame, and so cannot close
        # the connection, which would tear the write-ahead log from under its parent.
        try:
            with in_sqlite:
                file = self._open_file()
        except BaseException as error:  # which `SqliteLedger.open` raises
            self.opening.fail(error)
            self._answer([self.opening])
            return
        self.opening.answer = file.digest_key, file.created
        self._answer([self.opening])
        database = SqliteDatabase(file.connection, count(file.last_cursor + 1), file.check_in_place)
        try:
            while operations := self._take():
                with in_sqlite:
                    run_now(self._carry_out(operations, database))
                self._answer(operations)
                # The futures hold their callers' frames, which hold the ledger, until the next batch comes.
                del operations
        except BaseException as error:
            what = "the ledger's thread ended by a fault (%s): open it again"
            with suppress(BaseException):  # a handler of logs may be that fault
                log("critical", "ledger_thread_ended", "", what, type(error).__name__)
        with in_sqlite:
            file.close()
        while operations:  # only after a fault: fail these, and all that comes until the order to end
            for each in operations:
                each.fail(LedgerUnavailableError("the ledger's thread has ended: open the ledger again"))
            self._answer(operations)
            del operations
            operations = self._take()

    def _take(self) -> list[Operation]:
        """Return all that is queued, waiting for the first; nothing once the thread is to end."""
        operations = self._inbox.get()
        while operations and not self._inbox.empty():
            more = self._inbox.get()
            if not more:
                self._inbox.put(more)  # the order to end, put back: these come first
                break
            operations += more
        return operations

    async def _carry_out(self, operations: list[Operation], database: SqliteDatabase) -> None:
        """Answer every operation."""
        if writes := writes_of(operations):
            try:
                database.begin()
                await write(database, writes)
                database.commit()
            except Exception as error:  # any failure: nothing was committed
                self._log_failure(fault := unavailable(error, "written"))
                for each in writes:
                    each.fail(fault)
            else:
                self._check_in_place(writes, database)
        try:
            database.roll_back()
            await read(database, operations)
        except Exception as error:  # a thread must answer
            fail(operations, unavailable(error, "read"))

    def _check_in_place(self, writes: list[Write], database: SqliteDatabase) -> None:
        """Fail the permits where the file is not in its place any more; log that, and that it is back."""
        permits = [each for each in writes if each.event is None or isinstance(each.event, ReversalPermitted)]
        try:
            if permits or self._failing_since is not None:
                database.check_in_place()
        except LedgerUnavailableError as error:
            self._log_failure(error)
            for each in permits:
                each.fail(error)
        else:
            self._log_recovery()


class SqliteLedger(StoredLedger):
    """One process owns the file and one thread writes it."""

    @classmethod
    async def open(cls, path: str, *, create: bool = True, read_only: bool = False) -> SqliteLedger:
        """Do what `open_ledger` does."""
        # Absolute, so that no name is special to SQLite (":memory:") and a later chdir changes nothing.
        path = os.path.abspath(path)  # noqa: ASYNC240 - reads no disk
        opening = partial(open_to_read, path) if read_only else partial(open_file, path, create=create)
        writer = SqliteWriter(asyncio.get_running_loop(), opening)
        try:
            digest_key, created = await writer.opening.future
        except BaseException:
            writer.stop()
            raise
        return cls(writer, digest_key, location=f"sqlite:{path}", created=created)
