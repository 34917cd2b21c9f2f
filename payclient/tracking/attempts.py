"""The only way to send: permit, POST, answer, the second write; for sales, forms and the rows of a batch alike.

The permit is the INSERT of the attempt, awaited between the connection and the first byte. Before it there is no row;
after it there is exactly one writer of bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import orjson

from payclient.auth import SIGNED_WITH
from payclient.clock import is_cancelled_alone, outlive
from payclient.errors import (
    CustomerBusyError,
    DifferentRequestError,
    LedgerUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    TrackerClosedError,
)
from payclient.events import Conflicted, Created, Event, Lost, NotSent, Prepared, Refused
from payclient.ledger import PurchaseHeldError
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.models import PrepareRequest, PrepareResult, SaleRequest, SaleResult
from payclient.session import PaySession
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.poller import Poller
from payclient.tracking.purchases import check_free, check_purchase, refusal_of
from payclient.tracking.queries import Refusals
from payclient.validation import loggable_id
from payclient.wire import BeforeSend, HttpRequest

if TYPE_CHECKING:
    from payclient.tracking.forms import KeptLinks

_DIGEST_VERSION = b"1"

#: Answers that are remembered by their ids, to find a copy of one: a copy comes soon after its original.
REMEMBERED = 1000


class ReplayedError(OutcomeUnknownError):
    """The answer is a copy of the one to another request of this process."""


class PermitDeniedError(Exception):
    """The permit was not granted: another call sends, or sent, this client transaction id."""


def lane_text(request: SaleRequest) -> str:
    """Return the customer at the store, as a text to be digested: personal data, never to be kept."""
    if request.by_nick_name:
        who = f"nick\0{request.nick_name}"
    else:
        who = f"{request.country_code}\0{request.phone_number}"
    return f"lane\0{request.store_id or ''}\0{who}"


def content_digest(body: bytes, key: bytes) -> bytes:
    """Return the keyed digest of a request's content as it is sent, its fields sorted."""
    return _keyed(_DIGEST_VERSION + orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS), key)


def _keyed(content: bytes, key: bytes) -> bytes:
    """Return a digest that says nothing outside the ledger of this key."""
    return hashlib.blake2b(content, digest_size=16, key=key).digest()


@attrs.define(eq=False)
class Attempt:
    """One send, with its permit."""

    kind: str
    client_transaction_id: str
    #: Holds personal data.
    http: HttpRequest = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)
    amount: int
    currency: str
    lane: bytes = attrs.field(default=b"", repr=False)
    #: None: the purchase of the id's earlier attempt, else the client transaction id itself.
    purchase: str | None = None
    beside_open_form: bool = False
    #: What Prepare returned.
    result: PrepareResult | None = attrs.field(default=None, repr=False)
    #: The record that the permit inserts; None before, and where it was denied.
    record: Record | None = None
    #: The INSERT was committed, and the send may go on.
    granted: bool = False

    def check_same(self, digest: bytes, purchase: str) -> None:
        """Raise `DifferentRequestError` unless the request that was sent under this id is the same sale."""
        if self.kind == "form":
            words = "this client transaction id was used already; a form has one of its own"
        elif digest != self.digest or self.purchase not in (None, purchase):
            identifier = loggable_id(self.client_transaction_id) or "this client transaction id"
            other = "a different request" if digest != self.digest else "another purchase"
            words = (
                f"{identifier} was already used for {other}; a new purchase needs a new id; nothing was sent"
            )
        else:
            return
        raise DifferentRequestError(words, client_transaction_id=self.client_transaction_id)


class Attempts:
    """Sends through one ledger, one attempt at a time for each client transaction id."""

    def __init__(self, poller: Poller, links: KeptLinks) -> None:
        self._poller = poller
        self._asks = poller.asks
        self._links = links
        self.session: PaySession = poller.session
        self._ledger = poller.asks.ledger
        self._clock = poller.clock
        self.refusals: Refusals = Refusals(poller)
        #: Logs that the ledger fails: one line a minute.
        self.ledger_failed: Callable[[Exception], None] = poller.asks.late.failed
        self._in_flight: dict[str, tuple[Attempt, asyncio.Task[Record]]] = {}
        #: Transaction id, or a form's payment id -> the client transaction id that was answered with it, newest last.
        self._answered: dict[int | str, str] = {}

    # --- What is sent. No I/O

    def for_sale(
        self, request: SaleRequest, purchase: str | None = None, *, beside_open_form: bool = False
    ) -> Attempt:
        """Encode a sale, checked by the profile."""
        if purchase is not None:
            check_purchase(purchase)
        http = self.session.encode_sale(request)
        digest = content_digest(http.body, self._ledger.digest_key)
        identifier, lane = request.client_transaction_id, self.lane(request)
        return Attempt(
            "sale", identifier, http, digest, request.amount, request.currency, lane, purchase, beside_open_form
        )  # fmt: skip

    def for_form(self, request: PrepareRequest, purchase: str | None) -> Attempt:
        """Encode a form, checked by the profile."""
        if purchase is not None:
            check_purchase(purchase)
        http = self.session.encode_prepare(request)
        digest, identifier = content_digest(http.body, self._ledger.digest_key), request.client_transaction_id
        return Attempt("form", identifier, http, digest, request.amount, request.currency, purchase=purchase)

    def lane(self, request: SaleRequest) -> bytes:
        """Keyed digest of the customer at the store: one open sale at a time, because of error 2061."""
        return _keyed(lane_text(request).encode(), self._ledger.digest_key)

    # --- Sending

    async def charge(
        self, request: SaleRequest, purchase: str | None = None, *, beside_open_form: bool = False
    ) -> PendingSale:
        """Do what `Tracker.sale` does."""
        attempt = self.for_sale(request, purchase, beside_open_form=beside_open_form)
        return self._poller.handle(await self.send(attempt))

    async def find(self, client_transaction_ids: Sequence[str]) -> dict[str, PendingSale]:
        """Return the sales of those ids that the ledger has."""
        records = await self._ledger.get_many(client_transaction_ids)
        return {identifier: self._poller.handle(record) for identifier, record in records.items()}

    def is_same(self, request: SaleRequest, purchase: str | None, pending: PendingSale) -> bool:
        """Return whether a sale was made for this purchase with this content, by the digest that the ledger keeps."""
        same = pending.digest == self.for_sale(request).digest
        return same and purchase in (None, pending.outcome.purchase)

    @property
    def are_shared(self) -> bool:
        """Whether other processes may have this ledger open."""
        return self._asks.leases is not None

    async def send(self, attempt: Attempt) -> Record:
        """Send the attempt unless one exists, and return its record. **Raises only if nothing was created.**

        What may exist is followed from now on. A caller who is cancelled detaches: the send is a task of its own.
        """
        identifier = attempt.client_transaction_id
        self._asks.check_open(identifier)
        if (running := self._in_flight.get(identifier)) is not None:
            attempt.check_same(running[0].digest, running[0].purchase or identifier)
        else:
            existing = self._asks.open_record(identifier)
            if existing is not None and existing.state is not State.SENDING:
                attempt.check_same(existing.digest, existing.purchase)
                return existing
            running = self._in_flight[identifier] = attempt, self._poller.start_detached(self._send(attempt))
        attempt, sent = running
        try:
            return await outlive(sent)
        except asyncio.CancelledError:
            if self._asks.is_open or not is_cancelled_alone(sent):
                raise
        # A closing tracker ended it.
        if attempt.granted and attempt.record is not None:
            return attempt.record
        raise TrackerClosedError("the tracker was closed; nothing was sent", client_transaction_id=identifier)

    async def _send(self, attempt: Attempt) -> Record:
        """Send once. After code 2061, note on the unknown sales of the lane that one of them may exist."""
        try:
            return await self._send_once(attempt)
        except CustomerBusyError:
            # A form has no lane; without a permit nothing was sent.
            if attempt.lane and attempt.record is not None:
                await self._asks.suspect(attempt.lane)
            raise
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            # Only a tracker that closes cancels the send of a sale. An exit in a callback may not end the process.
            if (record := attempt.record) is not None:
                event = self._event_of_close(attempt, record)
                attempt.record = await asyncio.shield(self._asks.write(record, event))
            raise
        finally:
            del self._in_flight[attempt.client_transaction_id]

    async def _send_once(self, attempt: Attempt) -> Record:
        """Return the attempt that the ledger has under the id; send one if it has none, or if it was refused."""
        identifier = attempt.client_transaction_id
        before, asks = await self._ledger.look_up(identifier, attempt.purchase or identifier)
        existing = before
        if before is not None and before.state is State.REFUSED:
            # A sale may exist though it was refused: that is queried first.
            existing = await self.refusals.find_refused(before) if attempt.kind == "sale" else None
        if existing is None:
            try:
                return await self._send_new(attempt, before, asks)
            except PermitDeniedError:
                existing = await self._ledger.get(identifier)
        if existing is None:
            words = "the ledger refused the permit and holds no attempt"
            raise LedgerUnavailableError(words, client_transaction_id=identifier)
        attempt.check_same(existing.digest, existing.purchase)
        return existing

    async def _send_new(self, attempt: Attempt, before: Record | None, asks: list[Record]) -> Record:
        """Take the permit, POST, and write how it ended. `before`: the refused attempt of the same id."""
        own = attempt.client_transaction_id if before is None else before.purchase
        purchase = attempt.purchase or own
        make_record = partial(self._record, attempt, before, purchase)
        refused = [] if before is None else [before]
        if before is not None:  # it was queried since, and may be of another purchase
            asks = await self._ledger.asks(purchase)
        if asks:
            refused += await check_free(self._poller, self.refusals, make_record(), asks)
        try:
            event = await self._post(attempt, partial(self._permit, attempt, make_record, refused))
        except Exception as error:
            if attempt.record is None:
                raise  # no byte has left
            return await self._write_failure(attempt, attempt.record, error, before)
        assert attempt.record is not None  # noqa: S101 - the permit set it before the POST
        return await self._asks.write(attempt.record, event)

    async def _post(self, attempt: Attempt, permit: BeforeSend) -> Event:
        """POST the attempt, and return the event of a good answer. Raises what the session and the permit raise."""
        check = partial(self._check_new, attempt.client_transaction_id)
        if attempt.kind == "sale":
            sale = await self.session.send_sale(attempt.http, permit, check=check)
            now = self._clock.time()
            end = now + self._poller.policy.life["sale"]
            return Created(at=now, transaction_id=sale.transaction_id, expires_at=end)
        attempt.result = await self.session.send_prepare(attempt.http, permit, check=check)
        now = self._clock.time()
        assert attempt.record is not None  # noqa: S101 - there is no answer without a permit
        # Keep the links before the form is PENDING: whoever finds it PENDING finds its links, too.
        await self._links.keep(attempt.record, attempt.result)
        return self._prepared(now)

    def _prepared(self, now: float) -> Prepared:
        return Prepared(at=now, expires_at=now + self._poller.policy.life["form"])

    def _event_of_close(self, attempt: Attempt, record: Record) -> Event:
        """Return the event of a send that a closing tracker ended."""
        if attempt.result is not None:
            return self._prepared(self._clock.time())  # its caller has the links
        return self._lost(record) if attempt.granted else NotSent(at=self._clock.time())

    def _record(self, attempt: Attempt, before: Record | None, purchase: str) -> Record:
        """Return the record that the permit inserts."""
        wall, policy = self._clock.time(), self._poller.policy
        return Record(
            client_transaction_id=attempt.client_transaction_id,
            attempt=1 if before is None else before.attempt + 1,
            kind=attempt.kind,
            digest=attempt.digest,
            lane=attempt.lane,
            credentials=self._poller.queries.credentials.keyed(SIGNED_WITH.get()),
            amount=attempt.amount,
            currency=attempt.currency,
            created_at=wall,
            purchase=purchase,
            links_dead_at=None if attempt.kind == "sale" else wall + policy.links_life,
            beside_open_form=attempt.beside_open_form,
        )

    async def _permit(
        self, attempt: Attempt, make_record: Callable[[], Record], refused: Sequence[Record]
    ) -> None:
        """Insert the attempt; raising anything means that no byte leaves."""
        if refused:
            await self.refusals.check_unchanged(refused)
        wall, steady = self._clock.time(), self._clock.monotonic()
        record = attempt.record = make_record()
        denied: Exception = PermitDeniedError()
        try:
            granted = await self._asks.late.permit(record)
        except PurchaseHeldError as held:
            granted, denied = False, refusal_of(self._poller, held.holder)
        if not granted:
            attempt.record = None
            raise denied
        if self._asks.leases is not None:
            self._asks.leases.add(attempt.client_transaction_id)
        # A process stopped here and woken too late must not send: others count on the total time-out.
        waited = max(self._clock.time() - wall, self._clock.monotonic() - steady)
        if waited > self._poller.policy.total_timeout:
            raise NotSentError(
                f"stopped for {waited:.0f} s between the permit and the send",
                client_transaction_id=attempt.client_transaction_id,
            )
        attempt.granted = True

    async def _write_failure(
        self, attempt: Attempt, record: Record, error: Exception, before: Record | None
    ) -> Record:
        """Write how a send without a good answer ended, and return the record of a sale that may exist.

        Raises the error where nothing was created, and for every form: nobody has its links, so that it charges nobody
        and its caller may prepare another. `before` is the refused attempt of the same id.
        """
        if isinstance(error, RefusedError):
            existing = await self.refusals.find_existing(record, error, before, self._lost(record))
            if existing is not None:
                if attempt.kind == "form":
                    raise error
                return existing
        event = self._event_of(error, attempt, record)
        record = await self._asks.write(record, event)
        if not isinstance(event, Lost) or attempt.kind == "form":
            self.refusals.plan_queries(record, error)
            raise error
        if isinstance(error, ReplayedError):
            log("error", "answer_conflicted", record.client_transaction_id, "%s", error)
            record = await self._asks.write(record, Conflicted(at=self._clock.time(), what=str(error)))
        return record

    def _event_of(self, error: Exception, attempt: Attempt, record: Record) -> Event:
        """Return the event of a send that ended in an error; our own errors after the permit prove nothing."""
        at = self._clock.time()
        match error:
            case RefusedError():
                return Refused(
                    at=at,
                    error_type=type(error).__name__,
                    error_code=error.error_code,
                    messages=error.user_messages,
                    exists=self.refusals.says_exists(error) or None,
                )
            case OutcomeUnknownError():
                return self._lost(record, error.candidate_id)
            case NotSentError():
                return NotSent(at=at)
        if not attempt.granted:
            return NotSent(at=at)  # the ledger failed in the permit: no byte has left
        log("error", "send_failed", record.client_transaction_id, "the send failed: %s", type(error).__name__)
        return self._lost(record)

    def _check_new(self, identifier: str, result: SaleResult | PrepareResult) -> None:
        """Raise for a copy of the answer to another request: something in front of the service repeats answers."""
        if isinstance(result, SaleResult):
            key: int | str = result.transaction_id
            words = f"the answer names transaction {key}, which is another sale's"
        else:
            key, words = result.payment_id, "the answer is another form's"
        if self._answered.setdefault(key, identifier) != identifier:
            raise ReplayedError(words, client_transaction_id=identifier)
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def _lost(self, record: Record, candidate_id: int | None = None) -> Lost:
        # Not too early: the request may have reached the service as late as the total time-out.
        end = record.created_at + self._poller.policy.longest_life[record.kind]
        return Lost(at=self._clock.time(), expires_at=end, candidate_id=candidate_id)
