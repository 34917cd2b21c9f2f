"""Encode, permit, POST, answer: the only module that sends a Sale."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from payclient.errors import LedgerUnavailableError, NotSentError, OutcomeUnknownError, RefusedError
from payclient.events import Created, Event, Evidence, Lost, NotSent
from payclient.lifecycle import Record, State
from payclient.models import SaleRequest
from payclient.permits import Permits, TakenError, same_request
from payclient.session import PaySession
from payclient.wire import HttpRequest

__all__: list[str] = []

logger = logging.getLogger("payclient.sending")


def lane_text(request: SaleRequest) -> str:
    """The customer at the store, as a text to be digested: personal data, never to be kept."""
    if request.by_nick_name:
        who = f"nick\0{request.nick_name}"
    else:
        who = f"{request.country_code}\0{request.phone_number}"
    return f"lane\0{request.store_id or ''}\0{who}"


class Sender:
    """Sends sales through the ledger, one attempt at a time for each client transaction id."""

    def __init__(self, session: PaySession, permits: Permits) -> None:
        self._session = session
        self._permits = permits
        self._ledger = permits.ledger
        self._clock = permits.clock

    def encode(self, request: SaleRequest) -> tuple[HttpRequest, bytes]:
        """The request as it will be sent, and the keyed digest of its content. No I/O."""
        http = self._session.encode_sale(request)
        return http, self._permits.digest(http.body)

    def lane(self, request: SaleRequest) -> bytes:
        """Keyed digest of the customer at the store: one open sale at a time, because of error 2061."""
        return self._permits.keyed(lane_text(request).encode())

    async def send(
        self, request: SaleRequest, http: HttpRequest, digest: bytes, *, new: bool = False
    ) -> Record:
        """Send it unless it was sent before, and give the record as it is then. Raising: nothing was created.

        `new`: the ledger was asked already, and had none; the permit refuses where it has one now.
        """
        identifier = request.client_transaction_id
        known = None if new else await self._ledger.get(identifier)
        if known is not None and known.state is not State.REFUSED:
            return same_request(known, digest)
        attempt = self._permits.attempt(
            partial(
                Record,
                client_transaction_id=identifier,
                attempt=1 if known is None else known.attempt + 1,
                digest=digest,
                lane=self.lane(request),
                amount=request.amount,
                currency=request.currency,
            )
        )
        error: Exception
        event: Event
        try:
            result = await self._session.send_sale(http, attempt.permit)
        except TakenError:
            known = await self._ledger.get(identifier)
            if known is None:
                raise LedgerUnavailableError(
                    "the ledger refused the permit and holds no attempt", client_transaction_id=identifier
                ) from None
            return same_request(known, digest)
        except OutcomeUnknownError as unknown:
            return await self._permits.write(attempt.record, self._lost(attempt.record, unknown.candidate_id))
        except RefusedError as refused:
            if self._exists_already(refused, known):
                return await self._permits.write(attempt.record, self._lost(attempt.record, None))
            event, error = self._permits.refused(refused), refused
        except asyncio.CancelledError:
            # Only a tracker that closes without waiting cancels a send.
            if attempt.asked:
                event = NotSent(at=self._clock.time())
                if attempt.granted:
                    event = self._lost(attempt.record, None)
                await asyncio.shield(self._permits.write(attempt.record, event))
            raise
        except Exception as not_sent:
            # `NotSentError`, or the ledger failed in the permit: no byte has left.
            if not attempt.asked:
                raise
            if attempt.granted and not isinstance(not_sent, NotSentError):
                # A fault of ours after the permit proves nothing.
                logger.error("%s: the send failed: %s", identifier, type(not_sent).__name__)
                return await self._permits.write(attempt.record, self._lost(attempt.record, None))
            event, error = NotSent(at=self._clock.time()), not_sent
        else:
            now = self._clock.time()
            end = now + self._session.profile.sale_window
            created = Created(at=now, transaction_id=result.transaction_id, expires_at=end)
            return await self._permits.write(attempt.record, created)
        await self._permits.write(attempt.record, event)
        raise error

    def _lost(self, record: Record, candidate_id: int | None) -> Lost:
        # Never early: whatever reached the service did so within the total time-out.
        end = record.created_at + self._permits.total + self._session.profile.sale_window
        return Lost(at=self._clock.time(), expires_at=end, candidate_id=candidate_id)

    def _exists_already(self, refused: RefusedError, before: Record | None) -> bool:
        """Whether a "duplicate id" says that our own earlier attempt, thought absent, is there after all."""
        return (
            refused.error_code in self._session.profile.duplicate_codes
            and before is not None
            and before.evidence in (Evidence.ABSENT, Evidence.OPERATOR)
        )
