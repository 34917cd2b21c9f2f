"""The durable feed of decisions, presumptions and corrections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from payclient.clock import sleep
from payclient.errors import LedgerUnavailableError, UsageError
from payclient.tracking.asks import OpenAsks
from payclient.tracking.outcomes import Outcome

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("payclient.tracker")

#: Seconds after which outcomes are read again where the ledger could not be.
AGAIN = 1.0


async def feed(asks: OpenAsks, since: int) -> AsyncGenerator[Outcome]:
    """Yield what `Tracker.outcomes` does, until the tracker closes.

    A ledger that cannot be read is read again after a while, from the same place.
    """
    failing = False
    while True:
        changed = asks.changed
        try:
            changes = await asks.ledger.changes(since)
            attempts = await asks.ledger.attempts([change.client_transaction_id for change in changes])
        except (LedgerUnavailableError, UsageError) as error:
            if not asks.is_open:
                return
            if isinstance(error, UsageError):
                raise
            if not failing:
                logger.warning("outcomes cannot be read now: %s", error)
            failing = True
            await _either(changed.wait(), sleep(asks.clock, AGAIN))
            continue
        failing = False
        for change in changes:
            since = change.cursor
            yield Outcome.at(change, attempts[change.client_transaction_id][change.attempt - 1])
        if not changes:
            if not asks.is_open:
                return
            await changed.wait()


async def _either(*works: Coroutine[Any, Any, object]) -> None:
    """Until one of them has ended; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
