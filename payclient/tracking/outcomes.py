"""`Outcome`, what is known of a sale and how; `PendingSale`, the handle of one that may exist; the feed of outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING, Self

import attrs
import orjson

from payclient.answers import MAX_ID
from payclient.clock import Clock, cancel_all, within
from payclient.errors import (
    LedgerError,
    LedgerUnavailableError,
    PayError,
    RefusedError,
    StillPendingError,
    TrackerClosedError,
    UsageError,
)
from payclient.events import Evidence
from payclient.ledger import Change
from payclient.lifecycle import APPROVED, Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.validation import check_type

if TYPE_CHECKING:
    from payclient.tracking.asks import OpenAsks
    from payclient.tracking.followup import Followed
    from payclient.tracking.poller import Poller

__all__ = ["Outcome", "PendingSale", "as_decided"]


#: Seconds after which outcomes are read again where the ledger could not be.
AGAIN = 1.0


@attrs.frozen(kw_only=True)
class Outcome:
    """The facts that are known of a sale at this moment. Times are UTC seconds since the epoch.

    - `client_transaction_id`: The merchant's id.
    - `state`: Where the sale stands.
    - `evidence`: What the state rests on.
    - `transaction_id`: The service's id; None where none is known.
    - `created_at`: When the permit was requested, right before the first byte.
    - `notified_at`: When a notification came (§6), which says that the customer acted, and not how.
    - `decided_at`: When it was decided; None until then.
    - `error`: Of a refused attempt.
    - `report`: The service's last report, where this process received one; it is not stored.
    - `purchase`: What the customer owes once, however many asks: without one of its own, the client transaction id.
    - `amount`: Cents.
    - `currency`: Three capitals (ISO 4217).
    - `kind`: `sale` for a push request, `form` for a payment form.
    - `reason`: Why it was declined, as the service wrote it.
    - `receipt`: What the profile's `receipt_fields` keep of its approval, by the service's names; also once given back.
    - `also_paid`: Of the feed: other client transaction ids of the same purchase that are paid, too. Give one of them
      back.
    - `cursor`: The place in the ledger's feed, for `tracker.outcomes(since=...)`.
    """

    client_transaction_id: str
    state: State
    evidence: Evidence
    transaction_id: int | None = None
    created_at: float | None = None
    notified_at: float | None = None
    decided_at: float | None = None
    error: PayError | None = None
    report: StatusReport | None = None
    purchase: str = ""
    amount: int = 0
    currency: str = ""
    kind: str = "sale"
    reason: str | None = attrs.field(default=None, repr=False)
    receipt: Mapping[str, str | int] = attrs.field(factory=dict, repr=False)
    also_paid: tuple[str, ...] = ()
    cursor: int | None = None

    @property
    def paid(self) -> bool | None:
        """True or False on the service's word, by proof or by an operator; None: not known, so hold the goods."""
        return self.state.paid

    @classmethod
    def of(cls, record: Record, *, report: StatusReport | None = None) -> Self:
        """Return what a record says."""
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
            purchase=record.purchase,
            amount=record.amount,
            currency=record.currency,
            kind=record.kind,
            reason=record.reason,
            receipt=_receipt(record),
        )

    @classmethod
    def at(cls, change: Change, record: Record) -> Self:
        """Return the outcome as of one change of an attempt, made from the attempt's newest record."""
        notified_at, was_refused = record.notified_at, change.after is State.REFUSED
        is_newest = change.after is record.state
        return attrs.evolve(
            cls.of(record),
            state=change.after,
            evidence=change.evidence,
            # A refused attempt has no id: the record's came with a later correction.
            transaction_id=None if was_refused and not is_newest else record.transaction_id,
            notified_at=None if notified_at is None or notified_at > change.at else notified_at,
            decided_at=change.at if change.after.decided else None,
            error=_refusal(record, change.evidence) if was_refused else None,
            # The record keeps the reason of its newest state alone.
            reason=record.reason if is_newest else None,
            receipt=_receipt(record) if change.after in APPROVED else {},
            # Only `Overpaid` says `also`.
            also_paid=tuple(change.facts.get("also", ())),
            cursor=change.cursor,
        )


def _receipt(record: Record) -> dict[str, str | int]:
    return orjson.loads(record.receipt) if record.receipt else {}


@attrs.define(eq=False, repr=False)
class PendingSale:
    """A sale that may exist: follow it to its outcome. Made by the tracker."""

    _poller: Poller
    _record: Record
    #: None: it is not followed here.
    _ask: Followed | None

    @property
    def record(self) -> Record:
        """The record of the attempt, as far as this process knows."""
        return self._record if self._ask is None else self._ask.record

    def __repr__(self) -> str:
        record = self.record
        return f"<PendingSale {record.client_transaction_id} {record.state} transaction_id={record.transaction_id}>"

    @property
    def client_transaction_id(self) -> str:
        """The merchant's id."""
        return self._record.client_transaction_id

    @property
    def attempt(self) -> int:
        """Which attempt of its client transaction id this is; one more only where the one before created nothing."""
        return self._record.attempt

    @property
    def kind(self) -> str:
        """`sale` for a push request, `form` for a payment form."""
        return self._record.kind

    @property
    def transaction_id(self) -> int | None:
        """The service's id; None while it is not known."""
        return self.record.transaction_id

    @property
    def state(self) -> State:
        """Where it stands, as far as this process knows."""
        return self.record.state

    @property
    def expires_at(self) -> float | None:
        """UTC seconds since the epoch from which the customer can no longer approve (§8); never early."""
        return self.record.expires_at

    @property
    def remaining(self) -> float:
        """Seconds until the customer can no longer approve, at least 0, whatever the wall clock does meanwhile."""
        return max(seconds_left(self), 0.0)

    @property
    def notified_at(self) -> float | None:
        """When a notification came, in UTC seconds since the epoch (§6)."""
        return self.record.notified_at

    @property
    def outcome(self) -> Outcome:
        """The facts that are known now, without waiting."""
        return Outcome.of(self.record, report=None if self._ask is None else self._ask.report)

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome. Its `paid` is True, False, or None while it is not known.

        Without a timeout (seconds) it ends when the sale is decided or after the last query. With one it may raise
        `StillPendingError`: tracking goes on, wait again. `TrackerClosedError` if the tracker closes meanwhile.
        """
        check_type("timeout", timeout, int | float | None)
        # Behind a timer at nan the loop may fire no other one.
        if timeout is not None and isnan(timeout):
            raise UsageError("timeout must be a number of seconds, and nan is not one; tracking goes on")
        asks, record = self._poller.asks, self.record
        asks.check_loop()
        ask = asks.follow(record)
        if ask is not None and (ask.followed_elsewhere or (ask.waits_over and not ask.record.state.decided)):
            # The ask is not queried here: a person or another process may have decided it.
            with suppress(LedgerError):  # what is known is true all the same
                await asks.reread(ask)
            ask = asks.follow(ask.record)
        if ask is None:
            return self._take(await newest_of(asks, record))
        if not (ask.record.state.decided or ask.waits_over):
            await _wait_for_end(asks.clock, ask, timeout)
        return self._take(ask.record, ask.report)

    async def check(self) -> Outcome:
        """Query the service once, now (at most once a second for a sale), and return what is known.

        What was refused or given back is not queried.
        """
        return self._take(*await self._poller.check(self.record))

    def _take(self, record: Record, report: StatusReport | None = None) -> Outcome:
        """Take a newer record into this handle, whose own ask may be followed no more; return the outcome."""
        if record.state is not self.state and record.attempt == self.attempt:
            self._record, self._ask = record, self._poller.asks.follow(record)
        return Outcome.of(record, report=report)


def seconds_left(sale: PendingSale) -> float:
    """Return what `remaining` says, less than 0 later; by the wall clock only where the sale is not followed here."""
    expires_at, ask, clock = sale.record.expires_at, sale._ask, sale._poller.clock
    if expires_at is None:
        return 0.0
    return expires_at - clock.time() if ask is None else ask.expires - clock.monotonic()


async def _wait_for_end(clock: Clock, ask: Followed, timeout: float | None) -> None:
    """Wait until an ask is decided, or has no query left. Raises `StillPendingError` after `timeout` seconds."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if ask.waiters is None:
        ask.waiters = set()
    ask.waiters.add(waiter)
    try:
        await (waiter if timeout is None else within(clock, timeout, waiter))
    except TimeoutError:
        identifier = ask.record.client_transaction_id
        raise StillPendingError(
            f"{identifier} is still {ask.record.state} after {timeout:g} s; tracking goes on. A web request should "
            "not wait: answer it at once, and show waiting_page",
            client_transaction_id=identifier,
        ) from None
    finally:
        ask.waiters.discard(waiter)


async def newest_of(asks: OpenAsks, record: Record) -> Record:
    """Return what the ledger has of an attempt that is not followed; a decided `record` itself where it fails."""
    identifier = record.client_transaction_id
    if asks.closed and not record.state.decided:
        raise TrackerClosedError("the tracker is closed", client_transaction_id=identifier)
    try:
        newest = await asks.ledger.get(identifier)
    except (LedgerError, UsageError):  # the ledger was closed with the tracker, for instance
        if not record.state.decided:
            raise
        newest = None
    return newest if newest is not None and newest.attempt == record.attempt else record


def _refusal(record: Record, evidence: Evidence) -> PayError:
    """Return the refusal as far as the ledger keeps it; the error's class is gone after a restart, its code is not."""
    return RefusedError(
        "; ".join(record.messages) or f"nothing was created ({evidence})",
        error_code=record.error_code,
        client_transaction_id=record.client_transaction_id,
    )


async def feed(asks: OpenAsks, since: int) -> AsyncGenerator[Outcome]:
    """Yield what `Tracker.outcomes` does, until the tracker closes.

    A ledger that cannot be read is read again after a while, from the same place.
    """
    asks.check_loop()
    since = min(max(since, 0), MAX_ID)  # a database takes no more, and would be said to fail
    is_checked = since == 0
    while True:
        changed = asks.next_change()  # before the read, so that a change during the read ends the wait
        try:
            if not is_checked and not await asks.ledger.changes(since - 1, 1):
                what = "nothing is at cursor %d or after it: was it archived, or is the cursor of another ledger?"
                log("warning", "feed_cursor_ahead", "", what, since)
            is_checked = True
            changes = await asks.ledger.changes(since)
            attempts, _ = await asks.ledger.find([change.client_transaction_id for change in changes])
        except (LedgerUnavailableError, UsageError) as error:
            if not asks.is_open:
                return
            if isinstance(error, UsageError):
                raise
            asks.late.log_failure(error)
            with suppress(TimeoutError):
                await within(asks.clock, AGAIN, changed.wait())
            continue
        for change in changes:
            since = change.cursor
            yield Outcome.at(change, attempts[change.client_transaction_id][change.attempt - 1])
        if not changes:
            if not asks.is_open:
                return
            await changed.wait()


async def as_decided(pendings: Iterable[PendingSale]) -> AsyncIterator[Outcome]:
    """Yield the outcomes of several sales, in the order in which they are decided."""
    sales = [*pendings]
    for sale in sales:
        check_type("pending", sale, PendingSale)
    waits = [asyncio.create_task(sale.wait()) for sale in sales]
    try:
        for wait in asyncio.as_completed(waits):
            yield await wait
    finally:
        await cancel_all(waits)
