"""The ledger in a SQLite file that one process owns: durable before a byte leaves, without a server."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

from payclient.errors import TransitionError, UsageError
from payclient.events import Event
from payclient.ledger import Change
from payclient.ledger.columns import change_of, grouped, permit_row, record_of
from payclient.ledger.details import tame
from payclient.ledger.operations import Apply, Get, Permit, Read
from payclient.ledger.sqlite_files import Connect, connect
from payclient.ledger.sqlite_schema import (
    SELECT_CHANGES,
    SELECT_ENVIRONMENT,
    SELECT_HISTORY,
    SELECT_RECORDS,
    SELECT_UNFINISHED,
    SET_ENVIRONMENT,
    change_row,
    select_newest,
)
from payclient.ledger.sqlite_writer import Writer
from payclient.lifecycle import Record, State, advance

__all__ = ["SqliteLedger"]

#: Records made in one turn of the loop while many are read: about a millisecond of work.
_AT_ONCE = 200


class SqliteLedger:
    """One process owns the file and one thread writes it. Made by `open`, closed by `aclose`."""

    def __init__(
        self,
        writer: Writer,
        digest_key: bytes,
        loop: asyncio.AbstractEventLoop,
        *,
        path: str = "",
        created: bool = False,
    ) -> None:
        self._writer = writer
        self._digest_key = digest_key
        self._path = path
        self._created = created
        self._loop = loop
        self._process = os.getpid()
        self._closed = False
        # For whoever forgets `aclose`: runs when this is collected, or at exit, and does not keep it alive.
        self._forgotten = weakref.finalize(self, _finish, writer, self._process)

    @classmethod
    async def open(cls, path: str, *, create: bool = True, connect: Connect = connect) -> SqliteLedger:
        """Open the file, made with mode 0600 if there is none and `create`; `connect` opens the one connection to it.

        Raises `ConfigurationError` for an unsafe place or a file that is no ledger, `LedgerMissingError` where there
        is none to open, `LedgerInUseError` where someone else has it open, `LedgerUnavailableError` where it cannot be
        opened.
        """
        loop = asyncio.get_running_loop()
        # Absolute, so that no name is special to SQLite (":memory:") and a later chdir changes nothing.
        path = os.path.abspath(path)  # noqa: ASYNC240 - asks no disk
        writer = Writer(path, connect, loop, create)
        try:
            digest_key, created = await writer.opened
        except BaseException:
            writer.stop()
            raise
        return cls(writer, digest_key, loop, path=path, created=created)

    @property
    def digest_key(self) -> bytes:
        return self._digest_key

    @property
    def location(self) -> str:
        return f"sqlite:{self._path}"

    @property
    def created(self) -> bool:
        return self._created

    async def environment(self, mine: bytes, *, moved: bool = False) -> bytes:
        known = await self._read(SELECT_ENVIRONMENT)
        if known and not moved:
            return bytes(known[0][0])
        await self._read(SET_ENVIRONMENT, mine)
        return mine

    async def permit(self, record: Record) -> bool:
        if record.state is not State.SENDING or record.version != 0:
            raise TransitionError(
                "a permit is for a fresh attempt", client_transaction_id=record.client_transaction_id
            )
        future = self._future()
        self._writer.submit(Permit(future, record, permit_row(record)))
        granted: bool = await future
        return granted

    async def apply(self, record: Record, event: Event) -> Record:
        future = self._future()
        event = tame(event)
        try:
            after = advance(record, event)
        except TransitionError:  # the ledger's record may be newer, and take it
            self._writer.submit(Apply(future, record, event))
        else:
            self._writer.submit(Apply(future, record, event, after, change_row(event, after)))
        result: Record = await future
        return result

    async def get(self, client_transaction_id: str) -> Record | None:
        future = self._future()
        self._writer.submit(Get(future, (client_transaction_id,)))
        found: dict[str, Record] = await future
        return found.get(client_transaction_id)

    async def get_many(self, client_transaction_ids: Sequence[str]) -> dict[str, Record]:
        future = self._future()
        self._writer.submit(Get(future, client_transaction_ids))
        found: dict[str, Record] = await future
        return found

    async def attempts(self, client_transaction_ids: Sequence[str]) -> dict[str, list[Record]]:
        ids = tuple(set(client_transaction_ids))
        return grouped(await self._read(select_newest(len(ids)), *ids))

    def unfinished(self) -> AsyncIterator[Record]:
        return self._records(self._read(SELECT_UNFINISHED))

    def records(self) -> AsyncIterator[Record]:
        return self._pages(self._read(SELECT_RECORDS, 0, _AT_ONCE))

    async def history(self, client_transaction_id: str) -> list[Change]:
        return [change_of(row) for row in await self._read(SELECT_HISTORY, client_transaction_id)]

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        return [change_of(row) for row in await self._read(SELECT_CHANGES, since, limit)]

    async def aclose(self) -> None:
        if os.getpid() != self._process:
            return  # it is the parent's
        self._closed = True
        self._writer.stop()
        self._forgotten.detach()
        # By a thread and not a future: this may be another loop than the one it was opened in.
        await asyncio.to_thread(self._writer.join)

    def __del__(self) -> None:
        # `_closed` is missing where `__init__` was not reached.
        if not getattr(self, "_closed", True) and os.getpid() == self._process:
            warnings.warn(
                "unclosed ledger; use `await ledger.aclose()`", ResourceWarning, source=self, stacklevel=2
            )

    def _future(self) -> asyncio.Future[Any]:
        if self._closed:
            raise UsageError("the ledger is closed")
        if os.getpid() != self._process:
            raise UsageError("the ledger belongs to the process that opened it; open another after a fork")
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("the ledger belongs to another event loop")
        return self._loop.create_future()

    def _read(self, sql: str, *parameters: object) -> asyncio.Future[Any]:
        future = self._future()
        self._writer.submit(Read(future, sql, parameters))
        return future

    async def _pages(self, rows: asyncio.Future[Any]) -> AsyncIterator[Record]:
        while page := await rows:
            for row in page:
                yield record_of(row)
            rows = self._read(SELECT_RECORDS, page[-1][-1], _AT_ONCE)

    @staticmethod
    async def _records(rows: asyncio.Future[Any]) -> AsyncIterator[Record]:
        for number, row in enumerate(await rows, 1):
            yield record_of(row)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)


def _finish(writer: Writer, process: int) -> None:
    if os.getpid() == process:
        writer.stop()
        writer.join()
