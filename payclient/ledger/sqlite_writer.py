"""The one thread that owns the SQLite connection, and the queue between it and the event loop.

What queues during a commit forms the next transaction, so the disk's fsync is shared out among all who wait.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from payclient.errors import LedgerUnavailableError, PayError, TransitionError
from payclient.ledger.columns import record_of
from payclient.ledger.operations import Apply, Get, Operation, Permit, Read, Write
from payclient.ledger.outage import Outage
from payclient.ledger.sqlite_files import Connect, OpenFile, open_file, unavailable
from payclient.ledger.sqlite_lock import OwnerLock
from payclient.ledger.sqlite_schema import (
    SELDOM,
    SELECT_ATTEMPT,
    change_row,
    insert_attempts,
    insert_changes,
    select_newest,
)
from payclient.lifecycle import Record, State, advance, check_newest

__all__ = ["Writer"]

logger = logging.getLogger("payclient.ledger")

#: Rows of one statement, largest first: few statements, whatever the size of a batch, since after each the thread
#: waits for the interpreter's lock.
_CHUNKS = (128, 64, 32, 16, 8, 4, 2, 1)
#: What a value that no column takes raises. It is that operation's own fault, not the batch's.
_VALUE_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    OverflowError,
    ValueError,
)

_ENDED = "the ledger's thread has ended: open the ledger again"
_NOTHING = (None,) * SELDOM
_PLAIN_CHANGES = partial(insert_changes, whole=False)
_WHOLE_CHANGES = partial(insert_changes, whole=True)


_Answer = tuple[asyncio.Future[Any], Any, BaseException | None]
_Answers = list[_Answer]


class Writer:
    """`submit` and `stop` are called on the loop's side, `_run` and what follows it on the thread's."""

    def __init__(self, path: str, connect: Connect, loop: asyncio.AbstractEventLoop, create: bool) -> None:
        self._path = path
        self._create = create
        self._connect = connect
        self._loop = loop
        self._digest_key = b""
        self._identity = (0, 0)
        self._outage = Outage(time.monotonic)
        self._ended = False
        #: What numbers permits and changes, in one order.
        self._cursors: Iterator[int] = count(1)
        self._pending: list[Operation] = []
        # SimpleQueue, since `stop` may be called by the garbage collector in the midst of a `put`.
        self._inbox: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        #: The digest key and whether the file was made, once it is open.
        self.opened: asyncio.Future[tuple[bytes, bool]] = loop.create_future()
        # A daemon: a program that forgot to close its ledger must be able to end. Nothing is lost by it, for
        # the owner calls `stop` and `join` at exit.
        self._thread = threading.Thread(target=self._run, name="payclient-ledger", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        # Handed over once per turn of the loop: what one turn brings forms one batch.
        if not self._pending:
            self._loop.call_soon(self._hand_over)
        self._pending.append(operation)

    def stop(self) -> None:
        """Let the thread carry out what is queued, and end."""
        self._hand_over()
        self._inbox.put(None)

    def join(self) -> None:
        """Wait until it has; at once where the thread itself asks, collecting garbage."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _hand_over(self) -> None:
        if self._pending:
            operations, self._pending = self._pending, []
            self._inbox.put(operations)
            if self._ended:
                self._end()

    def _end(self) -> None:
        """Answer on the loop's side whatever comes after the thread has ended."""
        self._ended = True
        with suppress(queue.Empty):
            while True:
                _resolve([_failed(each, _ENDED) for each in self._inbox.get_nowait() or ()])

    def _run(self) -> None:
        # The connection is never an attribute: after a fork the child leaks this frame, and so cannot close
        # the connection, which would tear the write-ahead log from under its parent.
        try:
            file = open_file(self._path, self._connect, create=self._create)
        except BaseException as error:  # the opener's
            self._answer([(self.opened, None, error)])
            return
        self._digest_key, self._identity = file.digest_key, file.identity
        self._cursors = count(file.last_cursor + 1)
        self._answer([(self.opened, (file.digest_key, file.created), None)])
        try:
            self._serve(file, file.lock)
        except BaseException as error:
            logger.critical("the ledger's thread ended by a fault (%s): open it again", type(error).__name__)
        finally:
            file.lock.release()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._end)

    def _serve(self, file: OpenFile | None, lock: OwnerLock) -> None:
        try:
            going_on = True
            while going_on:
                batch, going_on = self._take()
                try:
                    if batch:
                        file = self._carry_out(file or self._open_again(lock), batch)
                except PayError as error:  # it could not be opened again
                    self._outage.failed(error)
                    self._answer([_failed(each, str(error)) for each in batch])
                except BaseException:
                    self._answer([_failed(each, _ENDED) for each in batch])
                    raise
                # Its futures hold their callers' frames, which hold the ledger; and the next may be long in coming.
                del batch
        finally:
            if file is not None:
                file.close()

    def _take(self) -> tuple[list[Operation], bool]:
        """All that is queued, waiting for the first; False when there will be no more."""
        batch: list[Operation] = []
        more = self._inbox.get()
        while more is not None:
            batch += more
            try:
                more = self._inbox.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _carry_out(self, file: OpenFile, batch: list[Operation]) -> OpenFile | None:
        """Answer every operation of the batch; what is returned is None when the file must be opened again."""
        answers: _Answers = []
        still: OpenFile | None = file
        writes = [each for each in batch if isinstance(each, (Permit, Apply))]
        if writes:
            try:
                answers = self._write(file, writes)
            except Exception as error:  # whatever it is, nothing of it was committed
                self._outage.failed(unavailable(error, "written"))
                answers = [_fault(each, error) for each in writes]
                if not _rolled_back(file.connection):
                    still = None
        reads = [each for each in batch if isinstance(each, (Get, Read))]
        self._answer(answers + _read(still.connection if still else None, reads))
        return still

    def _write(self, file: OpenFile, writes: list[Write]) -> _Answers:
        """Commit them all, and grant no permit in a file that is out of its place by then."""
        answers = _write(file.connection, writes, self._cursors)
        try:
            if any(isinstance(each, Permit) for each in writes):
                file.check_in_place()
        except LedgerUnavailableError as error:
            self._outage.failed(error)
            return [
                _failed(each, str(error)) if isinstance(each, Permit) else answer
                for each, answer in zip(writes, answers, strict=True)
            ]
        self._outage.worked()
        return answers

    def _open_again(self, lock: OwnerLock) -> OpenFile:
        file = open_file(self._path, self._connect, create=False, lock=lock)
        if (file.digest_key, file.identity) != (self._digest_key, self._identity):
            file.close()
            raise LedgerUnavailableError("another file has taken the ledger's place")
        self._cursors = count(file.last_cursor + 1)
        return file

    def _answer(self, answers: _Answers) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: _Answers) -> None:
    for future, result, error in answers:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """Where each chunk of so many rows begins and ends."""
    start = 0
    for size in _CHUNKS:
        while count - start >= size:
            yield start, start + size
            start += size


def _insert(
    connection: sqlite3.Connection,
    statement: Callable[[int], str],
    rows: list[tuple[Any, ...]],
    cursors: Iterator[int],
) -> None:
    for start, end in _chunks(len(rows)):
        values: list[Any] = []
        for row in rows[start:end]:
            values.append(next(cursors))
            values += row
        connection.execute(statement(end - start), values)


def _insert_changes(
    connection: sqlite3.Connection, rows: list[tuple[Any, ...]], cursors: Iterator[int]
) -> None:
    # It takes sqlite3 as long to bind a None as SQLite takes to store ten: those that all have are left out.
    _insert(connection, _PLAIN_CHANGES, [row[:-SELDOM] for row in rows if row[-SELDOM:] == _NOTHING], cursors)
    _insert(connection, _WHOLE_CHANGES, [row for row in rows if row[-SELDOM:] != _NOTHING], cursors)


def _write(connection: sqlite3.Connection, writes: list[Write], cursors: Iterator[int]) -> _Answers:
    """Commit them all in one transaction."""
    # Order matters only within one client transaction id; where none comes twice, like goes with like.
    permits: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    answers: _Answers = []
    ids = set()
    for each in writes:
        ids.add(each.record.client_transaction_id)
        if isinstance(each, Permit):
            permits.append(each.row)
            answers.append((each.future, True, None))
        else:
            changes.append(each.row)
            answers.append((each.future, each.after, None))
            if each.after is None:
                ids.clear()  # the record that it takes must be looked for
                break
    if len(ids) == len(writes):
        connection.execute("BEGIN IMMEDIATE")
        try:
            _insert(connection, insert_attempts, permits, cursors)
            _insert_changes(connection, changes, cursors)
        except _VALUE_FAULTS:
            connection.execute("ROLLBACK")
        else:
            connection.execute("COMMIT")
            return answers
    connection.execute("BEGIN IMMEDIATE")
    answers = [_one_by_one(connection, each, cursors) for each in writes]
    connection.execute("COMMIT")
    return answers


def _one_by_one(connection: sqlite3.Connection, write: Write, cursors: Iterator[int]) -> _Answer:
    result: object
    try:
        if isinstance(write, Permit):
            result = _permit(connection, write, cursors)
        else:
            result = _apply(connection, write, cursors)
    except TransitionError as error:
        return write.future, None, error
    except _VALUE_FAULTS as error:
        return _fault(write, error)
    return write.future, result, None


def _fault(write: Write, error: BaseException) -> _Answer:
    return _failed(write, str(unavailable(error, "written")))


def _failed(operation: Operation, words: str) -> _Answer:
    identifier = operation.record.client_transaction_id if isinstance(operation, (Permit, Apply)) else None
    return operation.future, None, LedgerUnavailableError(words, client_transaction_id=identifier)


def _permit(connection: sqlite3.Connection, write: Permit, cursors: Iterator[int]) -> bool:
    record = write.record
    attempts = _newest(connection, [record.client_transaction_id])
    newest = attempts.get(record.client_transaction_id)
    if newest is not None and (newest.attempt >= record.attempt or newest.state is not State.REFUSED):
        return False
    if record.attempt != (1 if newest is None else newest.attempt + 1):
        raise TransitionError(
            "the attempt before it is missing", client_transaction_id=record.client_transaction_id
        )
    _insert(connection, insert_attempts, [write.row], cursors)
    return True


def _apply(connection: sqlite3.Connection, write: Apply, cursors: Iterator[int]) -> Record:
    record = write.record
    row = connection.execute(SELECT_ATTEMPT, (record.client_transaction_id, record.attempt)).fetchone()
    if row is None:
        raise TransitionError("no such attempt", client_transaction_id=record.client_transaction_id)
    current = record_of(row)
    after = advance(current, write.event)
    if after.state is not current.state is State.REFUSED:
        newest = _newest(connection, [record.client_transaction_id])[record.client_transaction_id]
        check_newest(current, after, newest.attempt)
    _insert_changes(connection, [change_row(write.event, after)], cursors)
    return after


def _newest(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Record]:
    rows: dict[str, tuple[Any, ...]] = {}
    for start, end in _chunks(len(ids)):
        for row in connection.execute(select_newest(end - start), ids[start:end]):
            rows[row[0]] = row
    return {each: record_of(row) for each, row in rows.items()}


def _read(connection: sqlite3.Connection | None, reads: Sequence[Get | Read]) -> _Answers:
    if not reads:
        return []
    try:
        if connection is None:
            raise sqlite3.OperationalError  # what failed before them took the connection along
        # One look-up for all that ask for records.
        newest = _newest(
            connection, list({id_ for each in reads if isinstance(each, Get) for id_ in each.ids})
        )
        return [
            (
                each.future,
                {id_: newest[id_] for id_ in each.ids if id_ in newest}
                if isinstance(each, Get)
                else connection.execute(each.sql, each.parameters).fetchall(),
                None,
            )
            for each in reads
        ]
    except Exception as error:  # a thread must answer
        if isinstance(error, _VALUE_FAULTS) and len(reads) > 1:
            return [answer for each in reads for answer in _read(connection, [each])]
        return [(each.future, None, unavailable(error, "read")) for each in reads]


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
