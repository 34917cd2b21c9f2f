"""The permit of an attempt, and writing down how it ended: what sending and forms share.

The permit is awaited between the connection and the first byte. Before it there is no row; after it there is
exactly one writer of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable

import orjson

from payclient.clock import Clock, sleep
from payclient.credentials import Credentials
from payclient.errors import (
    DifferentRequestError,
    LedgerUnavailableError,
    NotSentError,
    RefusedError,
    TransitionError,
)
from payclient.events import Event, NotSent, Recovered, Refused
from payclient.ledger import Ledger
from payclient.lifecycle import Record, advance

__all__: list[str] = []

logger = logging.getLogger("payclient.permits")

#: Seconds before an answer that the ledger could not take is written again.
WRITE_AGAIN = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_DIGEST_VERSION = b"1"


class TakenError(Exception):
    """The permit was not granted: somebody else sends, or sent, this client transaction id."""


class Permits:
    """Grants attempts through one ledger and records their ends. `total` is the session's total time-out.

    `granted` is told each client transaction id that was permitted here.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        total: float,
        granted: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.ledger = ledger
        self.clock = clock
        self.total = total
        self.granted = granted
        self.credentials = Credentials(ledger.digest_key)
        self._late_writes: set[asyncio.Task[None]] = set()

    def digest(self, body: bytes) -> bytes:
        """Keyed digest of a request's content as it is sent, its fields sorted."""
        content = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
        return self.keyed(_DIGEST_VERSION + content)

    def keyed(self, content: bytes) -> bytes:
        """A digest that says nothing outside this ledger."""
        return hashlib.blake2b(content, digest_size=16, key=self.ledger.digest_key).digest()

    def attempt(self, make: Callable[..., Record]) -> Attempt:
        """A permit for the attempt that `make(created_at=..., credentials=...)` makes right before its first byte."""
        return Attempt(self, make)

    def refused(self, error: RefusedError) -> Refused:
        """The event of an error object."""
        return Refused(
            at=self.clock.time(),
            error_type=type(error).__name__,
            error_code=error.error_code,
            messages=error.user_messages,
        )

    async def write(self, record: Record, event: Event) -> Record:
        """Record what happened. A ledger that fails now loses nothing: it is written again, and logged."""
        try:
            return await self._apply(record, event)
        except TransitionError:
            # It was decided otherwise meanwhile (an operator, another process): the ledger's word stands.
            logger.warning("%s: %s came too late", record.client_transaction_id, type(event).__name__)
            return await self.ledger.get(record.client_transaction_id) or record
        except LedgerUnavailableError:
            logger.error(
                "%s: the ledger could not record %s; trying again",
                record.client_transaction_id,
                type(event).__name__,
            )
            task = asyncio.create_task(self._write_again(record, event))
            self._late_writes.add(task)
            task.add_done_callback(self._late_writes.discard)
            return advance(record, event)

    async def recover(self, record: Record, window: float) -> Record:
        """Whoever sent this is gone: it is unknown from now on, unless its end was recorded meanwhile."""
        ends = record.created_at + self.total + window
        try:
            return await self.ledger.apply(record, Recovered(at=self.clock.time(), expires_at=ends))
        except TransitionError:
            return await self.ledger.get(record.client_transaction_id) or record

    async def _apply(self, record: Record, event: Event) -> Record:
        if isinstance(event, NotSent):
            # Written also where nobody knows whether the permit was committed: the row may be somebody else's, who
            # was granted the same attempt and sends it.
            known = await self.ledger.get(record.client_transaction_id)
            if known is None or (known.attempt, known.created_at) != (record.attempt, record.created_at):
                raise TransitionError(
                    "the permit was not committed", client_transaction_id=record.client_transaction_id
                )
        return await self.ledger.apply(record, event)

    async def _write_again(self, record: Record, event: Event) -> None:
        for seconds in WRITE_AGAIN:
            await sleep(self.clock, seconds)
            try:
                await self._apply(record, event)
            except LedgerUnavailableError:
                continue
            except TransitionError:
                pass
            return

    async def aclose(self) -> None:
        """Give up what the ledger could not take: the row stays SENDING, and is unknown at the next start."""
        for task in tuple(self._late_writes):
            task.cancel()
        await asyncio.gather(*self._late_writes, return_exceptions=True)


class Attempt:
    """One attempt's permit; `permit` is the session's `before_send`."""

    #: As it was asked for.
    record: Record

    def __init__(self, permits: Permits, make: Callable[..., Record]) -> None:
        self._permits = permits
        self._make = make
        #: The INSERT may have been carried out.
        self.asked = False
        #: The INSERT was committed, and the send may go on.
        self.granted = False

    async def permit(self) -> None:
        """Insert the attempt, or raise `TakenError`. Raising anything means that no byte leaves."""
        clock = self._permits.clock
        wall, steady = clock.time(), clock.monotonic()
        # Of the very request that waits for this permit.
        self.record = self._make(created_at=wall, credentials=self._permits.credentials.current())
        self.asked = True
        if not await self._permits.ledger.permit(self.record):
            self.asked = False
            raise TakenError
        self._permits.granted(self.record.client_transaction_id)
        # A process stopped here and woken too late must not send: others count on the total time-out.
        waited = max(clock.time() - wall, clock.monotonic() - steady)
        if waited > self._permits.total:
            raise NotSentError(
                f"stopped for {waited:.0f} s between the permit and the send",
                client_transaction_id=self.record.client_transaction_id,
            )
        self.granted = True


def same_request(known: Record, digest: bytes) -> Record:
    """The known record, if its content is this one's; else `DifferentRequestError`."""
    if known.digest != digest:
        raise DifferentRequestError(
            "this client transaction id is in the ledger with other content; nothing was sent",
            client_transaction_id=known.client_transaction_id,
        )
    return known
