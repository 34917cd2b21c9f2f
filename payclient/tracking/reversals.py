"""Gives payments back: a permit of its own, one request, and what is known then. Never sent twice by itself."""

from __future__ import annotations

import asyncio
import logging

from payclient.clock import start
from payclient.errors import (
    LedgerUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    TransitionError,
    UsageError,
)
from payclient.events import Event, ReversalNotSent, ReversalPermitted, ReversalRefused, Reversed
from payclient.lifecycle import Record, State
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller
from payclient.wire import undo_request

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("payclient.tracker")


class Reversals:
    """Reverses through one ledger."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._clock = poller.clock
        self._total = poller.session.timeouts.total
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def reverse(self, record: Record) -> Outcome:
        """Give it back; see `Tracker.reverse`. A caller who is cancelled detaches, and the request goes on."""
        if record.state in (State.REVERSING, State.REVERSED):
            return Outcome.of(record)
        if record.state is not State.ACCEPTED:
            raise UsageError(
                f"only what is paid is given back; this is {record.state}, and nothing was sent",
                client_transaction_id=record.client_transaction_id,
            )
        profile, ids = self._poller.session.profile, self._ids(record)
        undo_request(profile, "reverse", *ids)  # what the profile lacks costs no permit
        task = start(self._reverse(record, *ids))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _ids(self, record: Record) -> tuple[int | None, str | None]:
        """Return the id by which it is reversed, and None."""
        undo = self._poller.session.profile.reverse
        if record.transaction_id is not None and undo is not None and undo.by_transaction_id is not None:
            return record.transaction_id, None
        return None, record.client_transaction_id

    async def _reverse(
        self, record: Record, transaction_id: int | None, client_transaction_id: str | None
    ) -> Outcome:
        asks, wall, steady = self._poller.asks, self._clock.time(), self._clock.monotonic()
        # Counted twice: a request that is late on its way is executed by then.
        permitted = ReversalPermitted(at=wall, expires_at=wall + 2 * self._total)
        try:
            record = await asks.ledger.apply(record, permitted)
        except TransitionError:  # another call, or another process, reverses it
            return Outcome.of(await asks.ledger.get(record.client_transaction_id) or record)
        if asks.sharing is not None:
            asks.sharing.permitted(record.client_transaction_id)
        asks.touch()
        try:
            if max(self._clock.time() - wall, self._clock.monotonic() - steady) > self._total:
                raise NotSentError("stopped between the permit and the send")
            await self._poller.session.reverse(
                transaction_id=transaction_id, client_transaction_id=client_transaction_id
            )
        except NotSentError:
            await self._write(record, ReversalNotSent(at=self._clock.time()))
            raise
        except RefusedError as refused:
            refusal = ReversalRefused(at=self._clock.time(), error_code=refused.error_code)
            record = await self._write(record, refusal)
            # What stands between may repeat the request: the first gave it back, the second was refused.
            outcome = await self._poller.check(record)
            if outcome.state is not State.REVERSED:
                raise
            return outcome
        except OutcomeUnknownError:
            self._poller.follow(record)  # a query tells
            return Outcome.of(record)
        except BaseException as error:
            logger.error("%s: the reversal failed: %s", record.client_transaction_id, type(error).__name__)
            self._poller.follow(record)
            raise
        return Outcome.of(await self._write(record, Reversed(at=self._clock.time())))

    async def _write(self, record: Record, event: Event) -> Record:
        """Write how it ended. What the ledger does not take stays REVERSING, until a query tells."""
        try:
            record = await self._poller.asks.ledger.apply(record, event)
        except TransitionError:  # a query was quicker
            record = await self._poller.asks.ledger.get(record.client_transaction_id) or record
        except LedgerUnavailableError as error:
            self._poller.asks.late.failed(error)
        self._poller.took(record)
        sharing = self._poller.asks.sharing
        if sharing is not None and record.state.decided:
            sharing.decided(record.client_transaction_id)
        return record

    async def aclose(self) -> None:
        """Let what is on its way end, which it does within the total time-out."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=self._total + 5)
