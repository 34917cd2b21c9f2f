"""`Outcome`: what is known of a sale, and how it is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Self

import attrs

from payclient.clock import Clock, sleep
from payclient.errors import LedgerUnavailableError, PayError, RefusedError, UsageError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport

__all__ = ["Outcome"]

logger = logging.getLogger("payclient.tracker")

#: Seconds after which outcomes are read again where the ledger could not be.
AGAIN = 1.0


@attrs.frozen(kw_only=True)
class Outcome:
    """What is known of a sale at this moment. Times are UTC seconds since the epoch."""

    client_transaction_id: str
    state: State
    evidence: Evidence
    transaction_id: int | None = None
    #: When the permit was asked for, right before the first byte.
    created_at: float | None = None
    #: When a notification came (§6). It says that the customer acted, not how.
    notified_at: float | None = None
    decided_at: float | None = None
    #: Of a refused attempt.
    error: PayError | None = None
    #: The service's last word, where this process heard it; it is not stored.
    report: StatusReport | None = None
    #: The place in the ledger's feed, for `tracker.outcomes(since=...)`.
    cursor: int | None = None

    @property
    def paid(self) -> bool | None:
        """True or False on the service's word, by proof or by an operator; None: nobody knows, so hold it."""
        return self.state.paid

    @classmethod
    def of(cls, record: Record, *, report: StatusReport | None = None) -> Self:
        """What a record says."""
        return cls(
            client_transaction_id=record.client_transaction_id,
            state=record.state,
            evidence=record.evidence,
            transaction_id=record.transaction_id,
            created_at=record.created_at,
            notified_at=record.notified_at,
            decided_at=record.decided_at,
            error=_refusal(record, record.evidence) if record.state is State.REFUSED else None,
            report=report,
        )

    @classmethod
    def at(cls, change: Change, record: Record) -> Self:
        """What an attempt's record said after one of its changes; `record` is the same attempt's newest one."""
        notified_at, was_refused = record.notified_at, change.after is State.REFUSED
        return cls(
            client_transaction_id=change.client_transaction_id,
            state=change.after,
            evidence=change.evidence,
            # A correction brings an id that the refusal before it did not have.
            transaction_id=None
            if was_refused and record.state is not State.REFUSED
            else record.transaction_id,
            created_at=record.created_at,
            notified_at=None if notified_at is None or notified_at > change.at else notified_at,
            decided_at=change.at if change.after.decided else None,
            error=_refusal(record, change.evidence) if was_refused else None,
            cursor=change.cursor,
        )


async def feed(
    ledger: Ledger,
    clock: Clock,
    since: int,
    changed: Callable[[], asyncio.Event],
    is_open: Callable[[], bool],
) -> AsyncGenerator[Outcome]:
    """What `Tracker.outcomes` gives, until `is_open` says no.

    `changed` returns the event that is set at the next change. A ledger that cannot be read is read again after a
    while, from the same place.
    """
    failing = False
    while True:
        change_of = changed()
        try:
            changes = await ledger.changes(since)
            attempts = await ledger.attempts([change.client_transaction_id for change in changes])
        except (LedgerUnavailableError, UsageError) as error:
            if not is_open():
                return
            if isinstance(error, UsageError):
                raise
            if not failing:
                logger.warning("outcomes cannot be read now: %s", error)
            failing = True
            await _either(change_of.wait(), sleep(clock, AGAIN))
            continue
        failing = False
        for change in changes:
            since = change.cursor
            yield Outcome.at(change, attempts[change.client_transaction_id][change.attempt - 1])
        if not changes:
            if not is_open():
                return
            await change_of.wait()


async def _either(*works: Coroutine[Any, Any, object]) -> None:
    """Until one of them has ended; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _refusal(record: Record, evidence: Evidence) -> PayError:
    """The refusal as far as the ledger keeps it; the error's class is gone after a restart, its code is not."""
    return RefusedError(
        "; ".join(record.messages) or f"nothing was created ({evidence})",
        error_code=record.error_code,
        client_transaction_id=record.client_transaction_id,
    )
