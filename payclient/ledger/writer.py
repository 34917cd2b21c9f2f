"""The half that both databases share: a queue of operations, and the ledger on top.

Operations that queue during a commit form the next batch, so the disk's fsync is shared out among all callers. A caller
that is cancelled stops waiting; the operation is carried out all the same, in order. Each operation is answered: by its
result, `TransitionError`, or `LedgerUnavailableError`.
"""

from __future__ import annotations

import asyncio
import math
import os
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from operator import methodcaller
from typing import Any

from payclient.errors import TransitionError, UsageError
from payclient.events import Event
from payclient.ledger import Change, FoundRecords, Ledger
from payclient.ledger.batch import Database, Get, Operation, Read, Write
from payclient.ledger.records import change_of, check_fresh, permit_row, record_of
from payclient.lifecycle import Record, advance
from payclient.logs import ledger_log as log

__all__ = ["StoredLedger", "Writer"]

#: Seconds from one log line about an outage to the next.
LINE_EVERY = 60.0
#: Records made in one turn of the loop while many are read: about a millisecond of work.
PAGE = 200
#: Numbers of attempts and changes among which attempts are read at once.
NUMBERS = 3 * PAGE
#: Seconds after which what was deleted is wiped once more, where a program read the file.
WIPE_AGAIN = 60.0


class Writer:
    """The queue before a database. `submit` is called in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pending: list[Operation] = []
        self._failing_since: float | None = None
        self._logged_at = -math.inf

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation, and return the future that is resolved once it is carried out."""
        operation.future = self.loop.create_future()
        # Handed over once per turn of the loop: what one turn brings forms one batch.
        if not self._pending:
            self.loop.call_soon(self._hand_over)
        self._pending.append(operation)
        return operation.future

    def _hand_over(self) -> None:
        """Hand what is pending to the thread, or to a task."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Carry out everything that is queued, and end. May be awaited in any event loop."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Stop, for a ledger that was not closed; also called by the garbage collector and at exit."""
        raise NotImplementedError

    def _log_failure(self, fault: BaseException) -> None:
        """Log that the database takes nothing: one line a minute, however many operations fail."""
        now = self.loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._logged_at >= LINE_EVERY:
            self._logged_at = now
            what = "%s, for %.0f s so far: nothing is sent until it can be"
            log("error", "ledger_unavailable", "", what, fault, now - self._failing_since)

    def _log_recovery(self) -> None:
        """Log the end of an outage whose begin was logged."""
        since, self._failing_since = self._failing_since, None
        if since is not None and self._logged_at >= since:
            seconds = self.loop.time() - since
            log("warning", "ledger_available", "", "the ledger works again after %.0f s", seconds)


class StoredLedger(Ledger):
    """The ledger over a writer, for one event loop of one process. Opened by `open`, closed by `aclose`."""

    def __init__(self, writer: Writer, digest_key: bytes, *, location: str, created: bool) -> None:
        self._writer = writer
        self.digest_key = digest_key
        self.location = location
        self.created = created
        self._process = os.getpid()
        self._closed = False
        # Stops the writer of a ledger that was not closed, when this is collected or at exit; keeps nothing alive.
        self._finalizer = weakref.finalize(self, _abandon, writer, self._process)

    async def service_fingerprint(self, mine: bytes, *, moved: bool = False) -> bytes:
        known = await self.fetch("environment")
        if moved or known[0][0] is None:
            # One of two processes that set it at once succeeds: read which.
            await self.fetch("set_environment", mine, moved)
            known = await self.fetch("environment")
        return bytes(known[0][0])

    async def permit(self, record: Record) -> bool:
        check_fresh(record)
        granted: bool = await self._submit(Write(record, row=permit_row(record)))
        return granted

    async def apply(self, record: Record, event: Event) -> Record:
        write = Write(record, event)
        try:  # noqa: SIM105 - `suppress` takes as long as all else here
            write.prepare(event, record, advance(record, event))
        except TransitionError:  # the writer reads the ledger's record, which may be newer and take the event
            pass
        after: Record = await self._submit(write)
        return after

    async def find(self, ids: Sequence[str], purchase: str | None = None) -> FoundRecords:
        found: FoundRecords = await self._submit(Get(ids, purchase))
        return found

    def unfinished(self) -> AsyncIterator[Record]:
        return _read_records(self.fetch("unfinished"))

    async def records(self) -> AsyncIterator[Record]:
        ((first, last),) = await self.fetch("ids")
        for begin in range((first or 1) - 1, last or 0, NUMBERS):
            for row in await self.fetch("records", begin, begin + NUMBERS):
                yield record_of(row)

    def work(self, work: Callable[[Database], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Queue something to be done in the database beside the writes."""
        return self._submit(Read(work))

    async def taken_by(self, record: Record, transaction_id: int) -> str | None:
        key = (transaction_id, record.credentials, record.client_transaction_id)
        return next((row[0] for row in await self.fetch("taken_by", *key)), None)

    async def keep_links(self, record: Record, links: str, until: float) -> None:
        await self.fetch("keep_links", links, until, record.client_transaction_id, record.attempt)

    async def links(self, purchase: str, now: float) -> dict[str, str]:
        return {row[0]: row[1] for row in await self.fetch("links", purchase, now)}

    async def drop_links(self, now: float) -> float | None:
        were_deleted = bool(await self.fetch("drop_links", now))
        is_wiped = await self.work(methodcaller("end_deletion", were_deleted=were_deleted))
        until: float | None = (await self.fetch("links_until"))[0][0]
        return until if is_wiped else min(until or math.inf, now + WIPE_AGAIN)

    async def history(self, client_transaction_id: str) -> list[Change]:
        return [change_of(row) for row in await self.fetch("history", client_transaction_id)]

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        return [change_of(row) for row in await self.fetch("news", since, limit)]

    async def aclose(self) -> None:
        if os.getpid() != self._process:
            return  # after a fork the writer is the parent's
        self._closed = True
        self._finalizer.detach()
        await self._writer.aclose()

    def __del__(self) -> None:
        # `_closed` is missing where `__init__` was not reached.
        if not getattr(self, "_closed", True) and os.getpid() == self._process:
            warnings.warn(
                "unclosed ledger; use `await ledger.aclose()`", ResourceWarning, source=self, stacklevel=2
            )

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("the ledger is closed")
        if os.getpid() != self._process:
            raise UsageError("the ledger belongs to the process that opened it; open another after a fork")
        if asyncio.get_running_loop() is not self._writer.loop:
            raise UsageError("the ledger belongs to another event loop")

    def _submit(self, operation: Operation) -> asyncio.Future[Any]:
        self._check_usable()
        return self._writer.submit(operation)

    def fetch(self, name: str, *parameters: object) -> asyncio.Future[Any]:
        """Queue a named statement beside the writes; its rows are the answer."""
        return self.work(methodcaller("fetch", name, parameters))


async def _read_records(rows: asyncio.Future[Any]) -> AsyncIterator[Record]:
    """Yield the records of these rows, and let the loop run after each page."""
    for number, row in enumerate(await rows, 1):
        yield record_of(row)
        if number % PAGE == 0:
            await asyncio.sleep(0)


def _abandon(writer: Writer, process: int) -> None:
    if os.getpid() == process:
        writer.abandon()
