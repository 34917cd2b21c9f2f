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
from payclient.clock import Clock, is_cancelled_alone, outlive, start
from payclient.errors import (
    AlreadyPaidError,
    CustomerBusyError,
    DifferentRequestError,
    LedgerUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    PurchaseOpenError,
    RefusedError,
    TrackerClosedError,
    named_error,
)
from payclient.events import Conflicted, Created, Event, Lost, NotSent, Prepared, Refused
from payclient.ledger import PurchaseHeldError
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.models import PrepareRequest, PrepareResult, SaleRequest, SaleResult
from payclient.session import PaySession
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.poller import Poller
from payclient.tracking.purchases import check_purchase, find_holder, refusal_of
from payclient.tracking.refusals import Refusals
from payclient.validation import loggable_id
from payclient.wire import HttpRequest

if TYPE_CHECKING:
    from payclient.tracking.forms import KeptLinks

#: Marks that a customer's phone may be written with, or without.
_MARKS = str.maketrans("", "", "+ -")

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
        who = f"{request.country_code}\0{request.phone_number}".translate(_MARKS)
    return f"lane\0{request.store_id or ''}\0{who}"


def content_digest(body: bytes, key: bytes) -> bytes:
    """Return the digest, by a ledger's key, of a request's content as sent, its fields sorted; its version is 1."""
    content = b"1" + orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(content, digest_size=16, key=key).digest()


def lane_digest(request: SaleRequest, key: bytes) -> bytes:
    """Return the digest, by a ledger's key, of a customer at a store: one open sale at a time, for error 2061."""
    return hashlib.blake2b(lane_text(request).encode(), digest_size=16, key=key).digest()


async def check_awake(clock: Clock, wall: float, steady: float, most: float) -> None:
    """Raise `NotSentError` in a process that stood still since its permit: others count on the total time-out."""
    waited = max(clock.time() - wall, clock.monotonic() - steady)
    if waited > most:
        raise NotSentError(f"stopped for {waited:.0f} s between the permit and the send")


@attrs.define(eq=False)
class Attempt:
    """One send, with its permit. The request and what is sent of it hold personal data."""

    request: SaleRequest | PrepareRequest = attrs.field(repr=False)
    http: HttpRequest = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)
    #: None: the purchase of the id's earlier attempt, else the client transaction id itself.
    purchase: str | None = None
    lane: bytes = attrs.field(default=b"", repr=False)
    beside_open_form: bool = False
    #: The refused attempt of the same id before this one, and all that was refused, or expired, and may not be paid.
    before: Record | None = None
    relies_on: Sequence[Record] = ()
    #: What Prepare returned.
    result: PrepareResult | None = attrs.field(default=None, repr=False)
    #: The record that the permit inserts; None before, and where it was denied.
    record: Record | None = None
    #: Whether the INSERT was committed, and the send may go on.
    granted: bool = False
    #: How the send ended, once that is known.
    end: Event | None = None

    @property
    def kind(self) -> str:
        """`sale` or `form`."""
        return "sale" if isinstance(self.request, SaleRequest) else "form"

    @property
    def purchase_key(self) -> str:
        """The purchase that it is of, as soon as the earlier attempt of its id was read."""
        default = self.request.client_transaction_id if self.before is None else self.before.purchase
        return self.purchase or default

    def check_same(self, digest: bytes, purchase: str) -> None:
        """Raise `DifferentRequestError` unless the request that was sent under this id is the same sale."""
        identifier = self.request.client_transaction_id
        if self.kind == "form":
            words = "this client transaction id was used already; a form has one of its own"
        elif digest != self.digest or self.purchase not in (None, purchase):
            named = loggable_id(identifier) or "this client transaction id"
            other = "a different request" if digest != self.digest else "another purchase"
            words = f"{named} was already used for {other}; a new purchase needs a new id; nothing was sent"
        else:
            return
        raise DifferentRequestError(words, client_transaction_id=identifier)

    def check_error(self, error: PayError, sender: Attempt) -> None:
        """Raise `DifferentRequestError` where an error says that the purchase of another sender is paid or open."""
        if sender is not self and isinstance(error, AlreadyPaidError | PurchaseOpenError):
            self.check_same(sender.digest, sender.purchase_key)


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
        self.log_ledger_failure: Callable[[Exception], None] = poller.asks.late.log_failure
        self._in_flight: dict[str, tuple[Attempt, asyncio.Task[Record]]] = {}
        #: Transaction id, or a form's payment id -> the client transaction id that was answered with it, newest last.
        self._answered: dict[int | str, str] = {}

    # --- What is sent. No I/O

    def encode(
        self,
        request: SaleRequest | PrepareRequest,
        purchase: str | None = None,
        *,
        beside_open_form: bool = False,
    ) -> Attempt:
        """Encode a sale or a form, checked by the profile."""
        try:
            if purchase is not None:
                check_purchase(purchase)
            if isinstance(request, SaleRequest):
                http, lane = self.session.encode_sale(request), self.lane(request)
            else:
                http, lane = self.session.encode_prepare(request), b""
        except PayError as error:
            raise named_error(error, request.client_transaction_id) from error.__cause__
        digest = content_digest(http.body, self._ledger.digest_key)
        return Attempt(request, http, digest, purchase, lane, beside_open_form)

    def lane(self, request: SaleRequest) -> bytes:
        """Return the keyed digest of the customer at the store, in this ledger."""
        return lane_digest(request, self._ledger.digest_key)

    # --- Sending

    async def find(self, client_transaction_ids: Sequence[str]) -> dict[str, PendingSale]:
        """Return the sales of those ids that the ledger has."""
        records = await self._ledger.get_many(client_transaction_ids)
        return {identifier: self._poller.handle(record) for identifier, record in records.items()}

    @property
    def are_shared(self) -> bool:
        """Whether other processes may have this ledger open."""
        return self._asks.leases is not None

    async def send(self, attempt: Attempt) -> Record:
        """Send the attempt unless one exists, and return its record. **Raises only if nothing was created.**

        An attempt that may exist is followed from now on. A cancelled caller detaches: the send is a task of its own.
        """
        identifier = attempt.request.client_transaction_id
        self._asks.check_open(identifier)
        sender, task = self._in_flight.get(identifier, (attempt, None))
        if task is not None and not task.done():  # a task that is done was cancelled before it began
            # A sender that names no purchase may yet read that of an earlier attempt.
            attempt.check_same(sender.digest, sender.purchase or attempt.purchase or identifier)
        else:
            if (ask := self._asks.open_ask(identifier)) is not None:
                attempt.check_same(ask.record.digest, ask.record.purchase)
                return ask.record
            sender, task = attempt, start(self._send(attempt), self._poller.detached)
            self._in_flight[identifier] = sender, task
        try:
            record = await outlive(task)
        except PayError as error:
            attempt.check_error(error, sender)
            raise named_error(error, identifier) from error.__cause__
        except asyncio.CancelledError:
            if not is_cancelled_alone(task):
                raise
        else:
            if sender is not attempt:
                attempt.check_same(record.digest, record.purchase)
            return record
        # A closing tracker ended it, or others cancelled all tasks of the process.
        if sender.granted and sender.record is not None:
            return sender.record
        if self._asks.is_open:
            raise NotSentError("others cancelled it; nothing was sent", client_transaction_id=identifier)
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
        except GeneratorExit:
            raise  # its loop is gone: nothing can be written
        except BaseException as ended:
            # Only a closing tracker cancels the send of a sale. After an exit in a callback the process may go on.
            if (record := attempt.record) is not None and not isinstance(ended, Exception):
                event = attempt.end or self._event_of(ended, attempt, record)
                attempt.record = await asyncio.shield(self._asks.write(record, event))
            raise
        finally:
            del self._in_flight[attempt.request.client_transaction_id]

    async def _send_once(self, attempt: Attempt) -> Record:
        """Return the attempt that the ledger has under the id; send one if it has none, or if it was refused."""
        identifier = attempt.request.client_transaction_id
        attempts, asks = await self._ledger.find((identifier,), attempt.purchase or identifier)
        known = attempts[identifier][-1] if attempts else None
        if known is None or known.state is State.REFUSED:
            attempt.before = known
            try:
                await self._check_free(attempt, asks)
                event = await self._post(attempt)
            except PermitDeniedError:
                known = await self._ledger.get(identifier)
            except Exception as error:
                if attempt.record is None:
                    raise  # no byte has left
                return await self._write_failure(attempt, attempt.record, error)
            else:
                assert attempt.record is not None  # noqa: S101 - the permit set it before the POST
                return await self._asks.write(attempt.record, event)
        if known is None:
            words = "the ledger refused the permit and holds no attempt"
            raise LedgerUnavailableError(words, client_transaction_id=identifier)
        attempt.check_same(known.digest, known.purchase)
        return known

    async def _check_free(self, attempt: Attempt, asks: list[Record]) -> None:
        """Raise where the purchase is paid or open, before anything connects.

        An ask that ended unpaid, and may exist all the same, is queried first. Raises `PermitDeniedError` where that is
        the earlier attempt of the same id.
        """
        before, identifier = attempt.before, attempt.request.client_transaction_id
        if attempt.purchase_key != (attempt.purchase or identifier):
            asks = await self._ledger.asks(attempt.purchase_key)
        if before is None and not asks:
            return
        if holder := find_holder(self._poller, asks, beside_open_form=attempt.beside_open_form):
            is_own = holder.client_transaction_id == identifier  # found paid since `before` was read
            raise PermitDeniedError if is_own else refusal_of(self._poller, holder)
        newest = {each.client_transaction_id: each for each in asks}
        if before is not None:
            newest[identifier] = before
        for each in newest.values():
            if (found := await self.refusals.find_ended(each)) is not None:
                raise PermitDeniedError if each is before else refusal_of(self._poller, found)
        attempt.relies_on = [each for each in newest.values() if each.state in (State.REFUSED, State.EXPIRED)]

    async def _post(self, attempt: Attempt) -> Event:
        """POST the attempt, and return the event of a good answer. Raises what the session and the permit raise."""
        check = partial(self._check_new, attempt.request.client_transaction_id)
        permit = partial(self._permit, attempt)
        if attempt.kind == "sale":
            sale = await self.session.send_sale(attempt.http, permit, check=check)
            now = self._clock.time()
            end = now + self._poller.policy.life["sale"]
            attempt.end = Created(at=now, transaction_id=sale.transaction_id, expires_at=end)
            return attempt.end
        attempt.result = await self.session.send_prepare(attempt.http, permit, check=check)
        assert attempt.record is not None  # noqa: S101 - there is no answer without a permit
        now = self._clock.time()
        attempt.end = Prepared(at=now, expires_at=now + self._poller.policy.life["form"])
        # Keep the links before the form is PENDING: whoever finds it PENDING finds its links, too.
        await self._links.keep(attempt.record, attempt.result)
        return attempt.end

    def _record(self, attempt: Attempt) -> Record:
        """Return the record that the permit inserts."""
        wall, before, request = self._clock.time(), attempt.before, attempt.request
        return Record(
            client_transaction_id=request.client_transaction_id,
            attempt=1 if before is None else before.attempt + 1,
            kind=attempt.kind,
            digest=attempt.digest,
            lane=attempt.lane,
            credentials=self._poller.queries.credentials.keyed(SIGNED_WITH.get()),
            amount=request.amount,
            currency=request.currency,
            created_at=wall,
            purchase=attempt.purchase_key,
            links_dead_at=None if attempt.kind == "sale" else wall + self._poller.policy.links_life,
            beside_open_form=attempt.beside_open_form,
        )

    async def _permit(self, attempt: Attempt) -> None:
        """Insert the attempt; raising anything means that no byte leaves."""
        wall, steady = self._clock.time(), self._clock.monotonic()
        record = attempt.record = self._record(attempt)
        try:
            granted = await self._ledger.permit(record)
        except PurchaseHeldError as held:
            attempt.record = None
            raise refusal_of(self._poller, held.holder) from None
        if not granted:
            attempt.record = None
            raise PermitDeniedError
        if self._asks.leases is not None:
            self._asks.leases.ours.add(attempt.request.client_transaction_id)
        if attempt.relies_on:  # after the permit: a later notification finds this attempt
            await self.refusals.check_unchanged(attempt.relies_on)
        await check_awake(self._clock, wall, steady, self._poller.policy.total_timeout)
        attempt.granted = True

    async def _write_failure(self, attempt: Attempt, record: Record, error: Exception) -> Record:
        """Write how a send without a good answer ended, and return the record of a sale that may exist.

        Raises the error where nothing was created, and for every form: nobody has its links, so that it charges nobody
        and its caller may prepare another.
        """
        if isinstance(error, RefusedError):
            existing = await self.refusals.find_existing(record, error, self._lost(record))
            if existing is not None:
                if attempt.kind == "form":
                    raise error
                return existing
        event = attempt.end = self._event_of(error, attempt, record)
        record = await self._asks.write(record, event)
        if not isinstance(event, Lost) or attempt.kind == "form":
            self.refusals.plan_query(record, error)
            raise error
        if isinstance(error, ReplayedError):
            log("error", "answer_conflicted", record.client_transaction_id, "%s", error)
            record = await self._asks.write(record, Conflicted(at=self._clock.time(), what=str(error)))
        return record

    def _event_of(self, error: BaseException, attempt: Attempt, record: Record) -> Event:
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
            return NotSent(at=at)  # it ended before the permit was granted: no byte has left
        if isinstance(error, Exception):
            what = "the send failed: %s"
            log("error", "send_failed", record.client_transaction_id, what, type(error).__name__)
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
        """Return the event of an answer that never came, with an end that is not too early."""
        # The request may have arrived as late as the total time-out; the wall clock may have been set forward since.
        at, policy = self._clock.time(), self._poller.policy
        end = max(policy.longest_end(record), at + policy.life[record.kind])
        return Lost(at=at, expires_at=end, candidate_id=candidate_id)
