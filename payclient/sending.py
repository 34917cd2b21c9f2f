"""Encode, permit, POST, answer: the only module that sends a Sale."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from payclient.asking import conflict_of, is_noted, verdict
from payclient.errors import (
    CustomerBusyError,
    LedgerUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    RefusedError,
)
from payclient.events import Conflicted, Created, Event, Evidence, Lost, NotSent
from payclient.lifecycle import Record, State
from payclient.models import SaleRequest, SaleResult
from payclient.permits import Permits, TakenError, same_request
from payclient.session import PaySession
from payclient.wire import HttpRequest

__all__: list[str] = []

logger = logging.getLogger("payclient.sending")


#: Transactions of which it is remembered whose they are: a copy of an answer comes soon after it.
REMEMBERED = 1000


class _ReplayedError(OutcomeUnknownError):
    """The answer names a transaction that another Sale of this process was answered with."""


def lane_text(request: SaleRequest) -> str:
    """The customer at the store, as a text to be digested: personal data, never to be kept."""
    if request.by_nick_name:
        who = f"nick\0{request.nick_name}"
    else:
        who = f"{request.country_code}\0{request.phone_number}"
    return f"lane\0{request.store_id or ''}\0{who}"


class Sender:
    """Sends sales through the ledger, one attempt at a time for each client transaction id."""

    def __init__(
        self,
        session: PaySession,
        permits: Permits,
        turn: Callable[[float], Awaitable[bool]],
        look_later: Callable[[Record], object],
    ) -> None:
        self._session = session
        #: Waits until a query may be made by the rate, at most the seconds that it is given; whether it may.
        self._turn = turn
        #: Queries a refused attempt once more, when an index that lags has caught up.
        self._look_later = look_later
        self._permits = permits
        status = session.profile.status
        #: Whether the service can be queried by our own id.
        self._asks = status is not None and status.by_client_transaction_id is not None
        self._ledger = permits.ledger
        self._clock = permits.clock
        #: Transaction id -> the client transaction id whose Sale was answered with it, the newest last.
        self._answered: dict[int, str] = {}

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
        if known is not None and (paid := await self._find_refused(known)) is not None:
            return same_request(paid, digest)
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
            result = await self._session.send_sale(
                http, attempt.permit, check=partial(self._check_new, identifier)
            )
        except TakenError:
            known = await self._ledger.get(identifier)
            if known is None:
                raise LedgerUnavailableError(
                    "the ledger refused the permit and holds no attempt", client_transaction_id=identifier
                ) from None
            return same_request(known, digest)
        except OutcomeUnknownError as unknown:
            record = await self._permits.write(
                attempt.record, self._lost(attempt.record, unknown.candidate_id)
            )
            if isinstance(unknown, _ReplayedError):
                logger.error("%s: %s", identifier, unknown)
                conflict = Conflicted(at=self._clock.time(), what=str(unknown))
                record = await self._permits.write(record, conflict)
            return record
        except RefusedError as refused:
            existing = await self._find_existing(attempt.record, refused, known)
            if existing is not None:
                return existing
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
        record = await self._permits.write(attempt.record, event)
        if self._asks and isinstance(error, RefusedError) and self._says_exists(error):
            self._look_later(record)
        raise error

    def _check_new(self, identifier: str, result: SaleResult) -> None:
        """Raise for an answer that is a copy of another Sale's: something in front of the service repeats answers."""
        answered, number = self._answered, result.transaction_id
        if answered.setdefault(number, identifier) != identifier:
            raise _ReplayedError(
                f"the answer names transaction {number}, which is another sale's",
                client_transaction_id=identifier,
            )
        if len(answered) > REMEMBERED:
            del answered[next(iter(answered))]

    def _lost(self, record: Record, candidate_id: int | None) -> Lost:
        # Never early: whatever reached the service did so within the total time-out.
        end = record.created_at + self._permits.total + self._session.profile.sale_window
        return Lost(at=self._clock.time(), expires_at=end, candidate_id=candidate_id)

    async def _find_refused(self, before: Record) -> Record | None:
        """Look again for a refused attempt that may exist, before another one is sent; None: nothing is there.

        The one query after a refusal as existing may have lagged, and a notification came for nothing that exists.
        Returns the attempt's record if it turns out to be paid. Raises `CustomerBusyError` while the attempt is open,
        and `NotSentError` if nobody can tell.
        """
        profile, identifier = self._session.profile, before.client_transaction_id
        existed = before.evidence is Evidence.ANSWER and (
            before.error_type == CustomerBusyError.__name__ or before.error_code in profile.duplicate_codes
        )
        if not (self._asks and (existed or before.notified_at is not None)):
            return None
        try:
            if not await self._turn(self._permits.total):
                raise NotSentError("a query could not be made in time by the rate")
            report = await self._session.status(client_transaction_id=identifier, repeat=False)
        except PayError as failed:
            words = f"an earlier attempt may exist, and cannot be queried ({type(failed).__name__})"
            raise NotSentError(words, client_transaction_id=identifier) from None
        if report is None:
            return None
        if not self._permits.credentials.may_deny(before):
            raise NotSentError(
                "an earlier attempt may exist: its id was found under other credentials than those that sent it",
                client_transaction_id=identifier,
            )
        if conflict_of(before, report) is not None:
            return None
        events, alarms = verdict(before, report, report.transaction_id, self._clock.time())
        if not await is_noted(self._ledger, before, events):
            for alarm in alarms:
                logger.critical("%s: %s", identifier, alarm)
            for event in events:
                before = await self._permits.write(before, event)
        if report.state in ("Pendiente", None):
            raise CustomerBusyError(
                "an earlier attempt of this sale waits for the customer", client_transaction_id=identifier
            )
        return before if before.state is State.ACCEPTED else None

    def _is_duplicate(self, refused: RefusedError) -> bool:
        codes = {refused.error_code, *(detail.error_code for detail in refused.errors)}
        return bool(codes & self._session.profile.duplicate_codes)

    def _says_exists(self, refused: RefusedError) -> bool:
        return isinstance(refused, CustomerBusyError) or self._is_duplicate(refused)

    async def _find_existing(
        self, record: Record, refused: RefusedError, before: Record | None
    ) -> Record | None:
        """Return the record of a sale that may exist though it was refused; None: the refusal proves that nothing does.

        What stands between us and the service may repeat a POST: the first one creates, the second one is answered by
        2061 or "duplicate". One query by client transaction id tells the two apart.
        """
        if not self._says_exists(refused):
            return None
        duplicate = self._is_duplicate(refused)
        lost = self._lost(record, None)
        if not self._asks:
            return await self._permits.write(record, lost) if duplicate else None
        identifier = record.client_transaction_id
        try:
            if not await self._turn(self._permits.total):
                raise NotSentError("a query could not be made in time by the rate")
            report = await self._session.status(client_transaction_id=identifier, repeat=False)
        except asyncio.CancelledError:
            await asyncio.shield(self._permits.write(record, lost))
            raise
        except Exception as failed:  # whatever it is, it tells nothing
            logger.warning(
                "%s: refused as existing, and the query failed: %s", identifier, type(failed).__name__
            )
            return await self._permits.write(record, lost)
        if not self._permits.credentials.may_deny(record):
            return await self._permits.write(record, lost)  # the token was renewed meanwhile
        if report is None:
            # An earlier attempt that was thought absent may be there after all.
            doubted = before is not None and before.evidence in (Evidence.ABSENT, Evidence.OPERATOR)
            return await self._permits.write(record, lost) if duplicate and doubted else None
        logger.warning("%s: refused as existing, and found: %s", identifier, report.state)
        record = await self._permits.write(record, lost)
        if record.state is State.UNKNOWN and conflict_of(record, report) is None:
            events, alarms = verdict(record, report, report.transaction_id, self._clock.time())
            for alarm in alarms:
                logger.critical("%s: %s", identifier, alarm)
            for event in events:
                record = await self._permits.write(record, event)
        return record
