"""Encode, permit, POST, answer: the only module that sends a Sale.

The permit is awaited between the connection and the first byte. Before it there is no row; after it there is
exactly one writer of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

import orjson

from payclient.clock import Clock, sleep
from payclient.errors import (
    DifferentRequestError,
    LedgerUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    TransitionError,
)
from payclient.ledger import Ledger
from payclient.lifecycle import Created, Event, Evidence, Lost, NotSent, Record, Refused, State, advance
from payclient.models import SaleRequest
from payclient.session import PaySession
from payclient.wire import HttpRequest

__all__: list[str] = []

logger = logging.getLogger("payclient.sending")

#: Seconds before an answer that the ledger could not take is written again.
WRITE_AGAIN = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_DIGEST_VERSION = b"1"


class _TakenError(Exception):
    """The permit was not granted: somebody else sends, or sent, this client transaction id."""


class Sender:
    """Sends sales through the ledger, one attempt at a time for each client transaction id."""

    def __init__(self, session: PaySession, ledger: Ledger, clock: Clock) -> None:
        self._session = session
        self._ledger = ledger
        self._clock = clock
        self._late_writes: set[asyncio.Task[None]] = set()

    def encode(self, request: SaleRequest) -> tuple[HttpRequest, bytes]:
        """The request as it will be sent, and the keyed digest of its content. No I/O."""
        http = self._session.encode_sale(request)
        content = orjson.dumps(orjson.loads(http.body), option=orjson.OPT_SORT_KEYS)
        return http, self._digest(_DIGEST_VERSION + content)

    def lane(self, request: SaleRequest) -> bytes:
        """Keyed digest of the customer at the store: one open sale at a time, because of error 2061."""
        who = (
            f"nick\0{request.nick_name}"
            if request.by_nick_name
            else f"{request.country_code}\0{request.phone_number}"
        )
        return self._digest(f"lane\0{request.store_id or ''}\0{who}".encode())

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=16, key=self._ledger.digest_key).digest()

    async def send(self, request: SaleRequest, http: HttpRequest, digest: bytes) -> Record:
        """Send it unless it was sent before, and give the record as it is then. Raising: nothing was created."""
        identifier = request.client_transaction_id
        known = await self._ledger.get(identifier)
        if known is not None and known.state is not State.REFUSED:
            return same_request(known, digest)
        attempt = _Attempt(
            self._ledger,
            self._clock,
            self._session.timeouts.total,
            Record(
                client_transaction_id=identifier,
                attempt=1 if known is None else known.attempt + 1,
                digest=digest,
                lane=self.lane(request),
                amount=request.amount,
                currency=request.currency,
            ),
        )
        error: Exception
        try:
            result = await self._session.send_sale(http, attempt.permit)
        except _TakenError:
            known = await self._ledger.get(identifier)
            if known is None:
                raise LedgerUnavailableError(
                    "the ledger refused the permit and holds no attempt", client_transaction_id=identifier
                ) from None
            return same_request(known, digest)
        except OutcomeUnknownError as unknown:
            return await self._write(attempt.record, self._lost(attempt.record, unknown.candidate_id))
        except RefusedError as refused:
            if self._exists_already(refused, known):
                return await self._write(attempt.record, self._lost(attempt.record, None))
            event: Event = Refused(
                at=self._clock.time(),
                error_type=type(refused).__name__,
                error_code=refused.error_code,
                messages=refused.user_messages,
            )
            error = refused
        except asyncio.CancelledError:
            # Only a tracker that closes without waiting cancels a send.
            if attempt.asked:
                ended: Event = NotSent(at=self._clock.time())
                if attempt.granted:
                    ended = self._lost(attempt.record, None)
                await asyncio.shield(self._write(attempt.record, ended))
            raise
        except Exception as not_sent:
            # `NotSentError`, or the ledger failed in the permit: no byte has left.
            if not attempt.asked:
                raise
            event, error = NotSent(at=self._clock.time()), not_sent
        else:
            now = self._clock.time()
            created = Created(
                at=now,
                transaction_id=result.transaction_id,
                expires_at=now + self._session.profile.sale_window,
            )
            return await self._write(attempt.record, created)
        await self._write(attempt.record, event)
        raise error

    def _lost(self, record: Record, candidate_id: int | None) -> Lost:
        # Never early: whatever reached the service did so within the total time-out.
        end = record.created_at + self._session.timeouts.total + self._session.profile.sale_window
        return Lost(at=self._clock.time(), expires_at=end, candidate_id=candidate_id)

    def _exists_already(self, refused: RefusedError, before: Record | None) -> bool:
        """Whether a "duplicate id" says that our own earlier attempt, thought absent, is there after all."""
        return (
            refused.error_code in self._session.profile.duplicate_codes
            and before is not None
            and before.evidence in (Evidence.ABSENT, Evidence.OPERATOR)
        )

    async def _write(self, record: Record, event: Event) -> Record:
        """Record what happened. A ledger that fails now loses nothing: it is written again, and logged."""
        try:
            return await self._ledger.apply(record, event)
        except TransitionError:
            # It was decided otherwise meanwhile (an operator, another process): the ledger's word stands.
            logger.warning("%s: %s came too late", record.client_transaction_id, type(event).__name__)
            return await self._ledger.get(record.client_transaction_id) or record
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

    async def _write_again(self, record: Record, event: Event) -> None:
        for seconds in WRITE_AGAIN:
            await sleep(self._clock, seconds)
            try:
                await self._ledger.apply(record, event)
            except LedgerUnavailableError:
                continue
            except TransitionError:
                pass
            return

    async def aclose(self) -> None:
        """Try once more what the ledger could not take, and end."""
        for task in tuple(self._late_writes):
            task.cancel()
        await asyncio.gather(*self._late_writes, return_exceptions=True)


class _Attempt:
    """The permit of one attempt, as `before_send`."""

    def __init__(self, ledger: Ledger, clock: Clock, total: float, record: Record) -> None:
        self._ledger = ledger
        self._clock = clock
        self._total = total
        self.record = record
        #: The INSERT may have been carried out.
        self.asked = False
        #: The INSERT was committed, and the send may go on.
        self.granted = False

    async def permit(self) -> None:
        wall, steady = self._clock.time(), self._clock.monotonic()
        self.record = _dated(self.record, wall)
        self.asked = True
        if not await self._ledger.permit(self.record):
            self.asked = False
            raise _TakenError
        # A process stopped here and woken too late must not send: others count on the total time-out.
        waited = max(self._clock.time() - wall, self._clock.monotonic() - steady)
        if waited > self._total:
            raise NotSentError(
                f"stopped for {waited:.0f} s between the permit and the send",
                client_transaction_id=self.record.client_transaction_id,
            )
        self.granted = True


def _dated(record: Record, created_at: float) -> Record:
    return Record(
        client_transaction_id=record.client_transaction_id,
        attempt=record.attempt,
        digest=record.digest,
        lane=record.lane,
        amount=record.amount,
        currency=record.currency,
        created_at=created_at,
    )


def same_request(known: Record, digest: bytes) -> Record:
    """The known record, if its content is this one's; else `DifferentRequestError`."""
    if known.digest != digest:
        raise DifferentRequestError(
            "this client transaction id is in the ledger with other content; nothing was sent",
            client_transaction_id=known.client_transaction_id,
        )
    return known
