"""The permit of an attempt, and writing down how it ended: what sending and forms share.

The permit is awaited between the connection and the first byte. Before it there is no row; after it there is
exactly one writer of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from itertools import chain, repeat

import attrs
import orjson

from payclient.clock import Clock, sleep, start
from payclient.credentials import Credentials
from payclient.errors import (
    DifferentRequestError,
    LedgerUnavailableError,
    NotSentError,
    RefusedError,
    TransitionError,
)
from payclient.events import Event, Evidence, NotSent, Recovered, Refused
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State, advance

__all__: list[str] = []

logger = logging.getLogger("payclient.permits")

#: Seconds from one log line about a ledger that fails to the next.
LINE_EVERY = 60.0

#: Seconds that closing gives a ledger for what it could not take until then.
LAST_TRY = 5.0

#: Seconds before an answer that the ledger could not take is written again; the last one goes on.
WRITE_AGAIN = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_DIGEST_VERSION = b"1"


class TakenError(Exception):
    """The permit was not granted: somebody else sends, or sent, this client transaction id."""


class Trouble:
    """Logs that a ledger fails: one line a minute, however many operations fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until = float("-inf")
        self._failures = 0

    def __call__(self, error: Exception) -> None:
        self._failures += 1
        now = self._clock.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LINE_EVERY
            logger.error(
                "the ledger failed: %s, %d times since the last line; trying again",
                type(error).__name__,
                self._failures,
            )
            self._failures = 0


class Permits:
    """Grants attempts through one ledger and records their ends. `total` is the session's total time-out.

    `granted` is told each client transaction id that was permitted here, `written` each record that was written late.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        total: float,
        granted: Callable[[str], object] = lambda _: None,
        written: Callable[[Record], object] = lambda _: None,
    ) -> None:
        self.ledger = ledger
        self.clock = clock
        self.total = total
        self.granted = granted
        self.credentials = Credentials(ledger.digest_key)
        self.written = written
        self.trouble = Trouble(clock)
        #: What the ledger could not take yet, in order, by client transaction id.
        self._late: dict[str, list[tuple[Record, Event]]] = {}
        self._writing: set[asyncio.Task[None]] = set()

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
        """Record what happened: later where the ledger fails, and then the record says no more than the ledger."""
        try:
            return await self._apply(record, event)
        except TransitionError:
            # It was decided otherwise meanwhile (an operator, another process): the ledger's word stands.
            logger.warning("%s: %s came too late", record.client_transaction_id, type(event).__name__)
        except LedgerUnavailableError as error:
            self.trouble(error)
            self._write_later(record, event)
            return _unwritten(record, event)
        try:
            return await self.ledger.get(record.client_transaction_id) or record
        except LedgerUnavailableError as error:
            self.trouble(error)
            return _unwritten(record, event)

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

    def _write_later(self, record: Record, event: Event) -> None:
        late = self._late.setdefault(record.client_transaction_id, [])
        late.append((record, event))
        if len(late) == 1:
            task = start(self._write_again(record.client_transaction_id))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write_again(self, client_transaction_id: str) -> None:
        for seconds in chain(WRITE_AGAIN, repeat(WRITE_AGAIN[-1])):
            await sleep(self.clock, seconds)
            if not await self.write_now(client_transaction_id):
                return

    async def write_now(self, client_transaction_id: str) -> bool:
        """Write what the ledger could not take; whether something is left."""
        while late := self._late.get(client_transaction_id):
            record, event = late[0]
            try:
                try:
                    after: Record | None = await self._apply(record, event)
                except TransitionError:
                    # Decided otherwise meanwhile, or written though the ledger failed: its record may say more.
                    after = await self.ledger.get(record.client_transaction_id)
            except LedgerUnavailableError as error:
                self.trouble(error)
                return True
            if late and late[0][1] is event:
                del late[0]
            if not late:
                self._late.pop(client_transaction_id, None)
            if after is not None:
                self.written(after)
        return False

    async def aclose(self) -> None:
        """Try once more; what the ledger cannot take stays SENDING, and is unknown at the next start."""
        for task in tuple(self._writing):
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)
        if self._late:
            tries = [start(self.write_now(each)) for each in tuple(self._late)]
            _, hanging = await asyncio.wait(tries, timeout=LAST_TRY)
            for late in hanging:
                late.cancel()
            await asyncio.gather(*tries, return_exceptions=True)
            if self._late:
                logger.error("the ledger could not take the end of %d attempts", len(self._late))


def _unwritten(record: Record, event: Event) -> Record:
    """What may be said of an attempt while the ledger has not taken the event: of one that was sent, that it may exist.

    The version stays the ledger's.
    """
    if record.state is not State.SENDING:
        return record
    after = advance(record, event)
    return attrs.evolve(
        record,
        state=State.UNKNOWN,
        evidence=Evidence.NO_ANSWER,
        expires_at=after.expires_at,
        candidate_ids=after.candidate_ids if after.transaction_id is None else (after.transaction_id,),
    )


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
