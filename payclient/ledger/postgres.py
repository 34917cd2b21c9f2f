"""The ledger in a PostgreSQL that many processes share: the unique key of a permit is the judge between them."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from payclient.errors import TransitionError, UsageError
from payclient.events import Event
from payclient.ledger import Change
from payclient.ledger.columns import change_of, grouped, permit_row, record_of
from payclient.ledger.details import tame
from payclient.ledger.operations import Apply, Get, Permit, Read
from payclient.ledger.postgres_connecting import (
    Address,
    Connect,
    connector,
    drop,
    open_ledger_schema,
    patiently,
)
from payclient.ledger.postgres_listening import POLL, Listener, Woken
from payclient.ledger.postgres_statements import (
    CLAIM,
    DROP_LANES,
    HELD,
    INSERT_ENVIRONMENT,
    LEAVE,
    MOVE_ENVIRONMENT,
    PAUSE,
    RELEASE,
    RENEW,
    RESERVE,
    SELECT_ATTEMPTS,
    SELECT_CHANGES,
    SELECT_ENVIRONMENT,
    SELECT_HISTORY,
    SELECT_RECORDS,
    SELECT_UNFINISHED,
    TAKE_LANES,
)
from payclient.ledger.postgres_writer import Writer, aim
from payclient.lifecycle import Record, State

__all__ = ["PostgresLedger"]

#: Records made in one turn of the loop while many are read: about a millisecond of work.
_AT_ONCE = 200
#: Seconds that closing waits for a server that cannot be reached, beyond what each operation waits.
_CLOSING = 30.0


class PostgresLedger:
    """One connection writes, another listens where somebody watches. Made by `open`, closed by `aclose`."""

    def __init__(
        self,
        writer: Writer,
        connect: Connect,
        digest_key: bytes,
        poll: float,
        *,
        location: str,
        created: bool,
    ) -> None:
        self._writer = writer
        self._connect = connect
        self._digest_key = digest_key
        self._poll = poll
        self._location = location
        self._created = created
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._closed = False

    @classmethod
    async def open(cls, address: Address, *, create: bool = True, poll: float = POLL) -> PostgresLedger:
        """Connect, check the server's settings and the schema, made if there is none and `create`.

        Raises `ConfigurationError` for an unsafe server or a schema that is no ledger, `LedgerUnavailableError` where
        it cannot be reached.
        """
        connect = connector(address)
        connection = await patiently(connect)
        try:
            digest_key, created = await open_ledger_schema(connection, create)
        except BaseException:
            drop(connection)
            raise
        writer = Writer(connect, connection, digest_key)
        return cls(writer, connect, digest_key, poll, location=address.location, created=created)

    @property
    def digest_key(self) -> bytes:
        return self._digest_key

    @property
    def location(self) -> str:
        return self._location

    @property
    def created(self) -> bool:
        return self._created

    async def environment(self, mine: bytes, *, moved: bool = False) -> bytes:
        known = await self._read(SELECT_ENVIRONMENT)
        if moved or not known:
            await self._read(MOVE_ENVIRONMENT if moved else INSERT_ENVIRONMENT, mine)
            known = await self._read(SELECT_ENVIRONMENT)
        return bytes(known[0][0])

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
        write = Apply(self._future(), record, tame(event))
        with suppress(TransitionError):  # the ledger's record may be newer, and take it
            aim(write, record)
        self._writer.submit(write)
        result: Record = await write.future
        return result

    async def get(self, client_transaction_id: str) -> Record | None:
        return (await self.get_many((client_transaction_id,))).get(client_transaction_id)

    async def get_many(self, client_transaction_ids: Sequence[str]) -> dict[str, Record]:
        future = self._future()
        self._writer.submit(Get(future, client_transaction_ids))
        found: dict[str, Record] = await future
        return found

    async def attempts(self, client_transaction_ids: Sequence[str]) -> dict[str, list[Record]]:
        return grouped(await self._read(SELECT_ATTEMPTS, list(set(client_transaction_ids))))

    def unfinished(self) -> AsyncIterator[Record]:
        return self._records(self._read(SELECT_UNFINISHED))

    def records(self) -> AsyncIterator[Record]:
        return self._pages(self._read(SELECT_RECORDS, 0, _AT_ONCE))

    async def history(self, client_transaction_id: str) -> list[Change]:
        return [change_of(row) for row in await self._read(SELECT_HISTORY, client_transaction_id)]

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        return [change_of(row) for row in await self._read(SELECT_CHANGES, since, limit)]

    # --- With other processes

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Tell of what any process wrote; see `Shared.watch`."""
        self._check()
        if self._listener is None:
            self._listener = Listener(self._connect, self._poll)
        return self._listener.watch(woken)

    async def renew(self, seconds: float) -> bool:
        rows = await self._read(RENEW, self._writer.owner, seconds)
        self._writer.follower = self._writer.owner
        return bool(rows[0][0])

    async def claim(self, limit: int, sending_after: float) -> list[Record]:
        rows = await self._read(CLAIM, self._writer.owner, limit, sending_after)
        return sorted(map(record_of, rows), key=lambda record: record.created_at)

    async def held(self) -> set[str]:
        return {row[0] for row in await self._read(HELD, self._writer.owner)}

    async def release(self, client_transaction_ids: Sequence[str]) -> None:
        await self._read(RELEASE, self._writer.owner, client_transaction_ids)

    async def take_lanes(self, lanes: Sequence[bytes]) -> set[bytes]:
        return {row[0] for row in await self._read(TAKE_LANES, self._writer.owner, lanes)}

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        await self._read(DROP_LANES, self._writer.owner, lanes)

    async def reserve(self, budget: str, queries: int, gap: float) -> float:
        rows = await self._read(RESERVE, budget, queries, gap)
        return float(rows[0][0])

    async def pause(self, budget: str, seconds: float) -> None:
        await self._read(PAUSE, budget, seconds)

    async def aclose(self) -> None:
        if self._closed or os.getpid() != self._process:
            return  # in a child: it is the parent's
        self._closed = True
        if asyncio.get_running_loop() is not self._loop:
            if not self._loop.is_closed():  # else the connections ended with it
                self._loop.call_soon_threadsafe(self._writer.stop)
            return
        if self._listener is not None:
            await self._listener.aclose()
        if self._writer.follower:
            # What it follows is another's from now on, at once.
            leaving = self._loop.create_future()
            leaving.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._writer.submit(Read(leaving, LEAVE, (self._writer.owner,)))
        self._writer.stop()
        await asyncio.wait([self._writer.task], timeout=_CLOSING)
        self._writer.task.cancel()

    def __del__(self) -> None:
        # `_closed` is missing where `__init__` was not reached.
        if not getattr(self, "_closed", True) and os.getpid() == self._process:
            warnings.warn(
                "unclosed ledger; use `await ledger.aclose()`", ResourceWarning, source=self, stacklevel=2
            )
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._writer.stop)

    def _check(self) -> None:
        if self._closed:
            raise UsageError("the ledger is closed")
        if os.getpid() != self._process:
            raise UsageError("the ledger belongs to the process that opened it; open another after a fork")
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("the ledger belongs to another event loop")

    def _future(self) -> asyncio.Future[Any]:
        self._check()
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
