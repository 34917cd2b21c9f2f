"""Waiting for an outcome: a future exists only where somebody waits, and ends whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from payclient.clock import Clock
from payclient.errors import LedgerError, StillPendingError, TrackerClosedError
from payclient.following.entries import Entries, Entry
from payclient.ledger import Ledger
from payclient.lifecycle import Record
from payclient.outcomes import Outcome

__all__: list[str] = []


class Waiting:
    """The waits for one tracker's sales; `follow` gives the entry of an open one."""

    def __init__(
        self, ledger: Ledger, clock: Clock, entries: Entries, follow: Callable[[Record], Entry | None]
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._entries = entries
        self._follow = follow
        self._closed = False

    async def wait(self, record: Record, timeout: float | None) -> Outcome:
        """Until the sale is decided, or nothing more will be asked; see `PendingSale.wait`."""
        entry = self._follow(record)
        if entry is None:
            return await self.settled(record)
        if (entry.spent and not entry.record.state.decided) or entry.elsewhere:
            # Nothing more is asked for it here, but an operator or another process may have decided it.
            with suppress(LedgerError):  # what is known is true all the same
                await self._entries.reread(entry)
        if entry.record.state.decided or entry.spent:
            return Outcome.of(entry.record, report=entry.report)
        waiter = asyncio.get_running_loop().create_future()
        if entry.waiters is None:
            entry.waiters = set()
        entry.waiters.add(waiter)
        timer = None
        if timeout is not None:
            timer = self._clock.call_at(self._clock.monotonic() + timeout, _ring, waiter, entry.record)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            entry.waiters.discard(waiter)
        return Outcome.of(entry.record, report=entry.report)

    async def settled(self, record: Record) -> Outcome:
        """What the ledger says of a sale that is not followed."""
        if self._closed and not record.state.decided:
            raise _closed(record, "the tracker is closed")
        try:
            newest = await self._ledger.get(record.client_transaction_id)
        except LedgerError:
            if not record.state.decided:
                raise
            return Outcome.of(record)
        if newest is not None and newest.attempt == record.attempt:
            record = newest
        return Outcome.of(record)

    def close(self) -> None:
        """End every wait by `TrackerClosedError`."""
        self._closed = True
        for entry in self._entries.values():
            for waiter in entry.waiters or ():
                if not waiter.done():
                    waiter.set_exception(_closed(entry.record, "the tracker was closed"))


def _closed(record: Record, what: str) -> TrackerClosedError:
    return TrackerClosedError(what, client_transaction_id=record.client_transaction_id)


def _ring(waiter: asyncio.Future[None], record: Record) -> None:
    if not waiter.done():
        waiter.set_exception(
            StillPendingError(
                "still pending; tracking goes on", client_transaction_id=record.client_transaction_id
            )
        )
