"""Payment forms: prepared once however many ask, and handed out only while they live (§8).

Links are secrets and are never stored: a form is handed out by the process that prepared it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import attrs

from payclient.clock import start
from payclient.errors import (
    AlreadyPaidError,
    ConfigurationError,
    DifferentRequestError,
    PurchaseOpenError,
    RefusedError,
)
from payclient.lifecycle import Record, State
from payclient.models import PrepareRequest, PrepareResult, derive_id
from payclient.tracking.attempts import Attempts
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller

__all__ = ["FormLink", "PaymentForm"]


#: Generations of one key that are looked up at once.
GENERATIONS = 8


@attrs.define
class FormLink:
    """A link to a hosted form. It lives 10 minutes from its own load (§8), which we may not see.

    `is_live` means safe to hand out: a link loaded late may still be payable for up to ten minutes after
    `expires_at`. Times are UTC seconds since the epoch. The address is a secret: show it to its customer only.
    """

    url: str = attrs.field(repr=False)
    prepared_at: float
    #: Seconds (§8: 600).
    lifetime: float = 600.0
    loaded_at: float | None = None

    @property
    def expires_at(self) -> float:
        """When it may stop working: counted from the load where that is known, else from the preparing."""
        return (self.prepared_at if self.loaded_at is None else self.loaded_at) + self.lifetime

    def is_live(self, now: float) -> bool:
        """Whether it is safe to hand out at this time."""
        return now < self.expires_at

    def mark_loaded(self, at: float) -> None:
        """The customer opened it: from now on its life is known."""
        if self.loaded_at is None:
            self.loaded_at = at


@attrs.frozen(kw_only=True)
class PaymentForm:
    """A prepared form: send the customer to one of its links by a redirect that brings the referrer (§4)."""

    client_transaction_id: str
    #: A secret where the links are made of it.
    payment_id: str = attrs.field(repr=False)
    #: UTC seconds since the epoch.
    prepared_at: float
    result: PrepareResult = attrs.field(repr=False)
    _links: dict[str, FormLink] = attrs.field(factory=dict, repr=False, init=False)
    _lifetime: float = attrs.field(default=600.0, repr=False, alias="lifetime")

    @property
    def wallet(self) -> FormLink:
        """Pays through the wallet app. `ConfigurationError` where the profile must name its field first."""
        return self._link(self.result.pay_with_wallet)

    @property
    def card(self) -> FormLink:
        """Pays with a card."""
        return self._link(self.result.pay_with_card)

    @property
    def links(self) -> dict[str, FormLink]:
        """Every link, by the service's name of its field (§2.6)."""
        return {name: self._link(url) for name, url in self.result.links.items()}

    def is_live(self, now: float) -> bool:
        """Whether every link is safe to hand out at this time."""
        return all(link.is_live(now) for link in self.links.values())

    def _link(self, url: str) -> FormLink:
        return self._links.setdefault(url, FormLink(url, self.prepared_at, self._lifetime))


class Forms:
    """Prepares forms through the ledger."""

    def __init__(self, attempts: Attempts, poller: Poller) -> None:
        self._attempts = attempts
        self._poller = poller
        self._ledger = poller.asks.ledger
        self._clock = poller.clock
        self._lifetime = poller.policy.form_window
        self._live: dict[str, PaymentForm] = {}
        self._preparing: dict[str, asyncio.Task[PaymentForm]] = {}

    async def prepare(self, request: PrepareRequest) -> PaymentForm:
        """Prepare a form under a client transaction id of its own."""
        self._poller.asks.check_open(request.client_transaction_id)
        attempt = self._attempts.for_form(request)
        await self._attempts.send(attempt)
        assert attempt.result is not None  # noqa: S101 - it was sent, or an error was raised
        return PaymentForm(
            client_transaction_id=request.client_transaction_id,
            payment_id=attempt.result.payment_id,
            prepared_at=attempt.prepared_at,
            result=attempt.result,
            lifetime=self._lifetime,
        )

    async def live(
        self, key: str, make_request: Callable[[str], PrepareRequest], margin: float
    ) -> PaymentForm:
        """Return the live form of a key, or a new one, prepared once however many ask; see `Tracker.live_form`."""
        if not 0 <= margin < self._lifetime:
            raise ConfigurationError(f"margin must be 0 to {self._lifetime:g} seconds")
        tries, checked = GENERATIONS, list[Record]()
        while True:
            records, free = await self._generations(key)
            self._check_unpaid(list(records.values()))
            form = self._live.get(key)
            if form is not None and form.is_live(self._clock.time() + margin):
                record = records.get(form.client_transaction_id)
                if record is None or record.state is not State.CANCELLED:
                    return form
                self.forget(form.client_transaction_id)  # declined, or closed: its links are of no more use
            task = self._preparing.get(key)
            unknown = [one for one in records.values() if one.state is State.UNKNOWN and one not in checked]
            if task is None and unknown:
                # Nobody saw its links, unless this ledger is not the one that prepared it.
                for record in unknown:
                    await self._poller.check(record)
                checked += unknown
                continue
            try:
                return await asyncio.shield(task or self._prepare_next(key, make_request, free))
            except RefusedError as refused:
                # The id was prepared before: twice on its way, or under a ledger that is gone. Its links are not known.
                prepared = self._attempts.is_duplicate(refused) and await self._ledger.get(free)
                tries -= 1
                if not prepared or prepared.state is State.UNKNOWN or not tries:
                    raise
            except DifferentRequestError as used:
                # Another process prepares, or prepared, this generation: look again at what there is.
                if used.client_transaction_id != free or free not in (await self._generations(key))[0]:
                    raise

    def _check_unpaid(self, records: list[Record]) -> None:
        """Raise where one of the generations is paid, or may be: another form would be paid too."""
        for record in records:
            if record.state is State.ACCEPTED:
                raise AlreadyPaidError(
                    "a form of this key is paid; none was prepared",
                    outcome=Outcome.of(record),
                    client_transaction_id=record.client_transaction_id,
                )
        for record in records:
            if not record.state.decided and (record.candidate_ids or record.transaction_id is not None):
                raise PurchaseOpenError(
                    "a form of this key came back and is not decided; none was prepared",
                    pending=self._poller.handle(record),
                    until=record.expires_at,
                    client_transaction_id=record.client_transaction_id,
                )

    def _prepare_next(
        self, key: str, make_request: Callable[[str], PrepareRequest], free: str
    ) -> asyncio.Task[PaymentForm]:
        request = make_request(free)
        if request.client_transaction_id != free:
            raise ConfigurationError("make_request: build the request with the id that it is given")
        task = self._preparing[key] = start(self.prepare(request))
        task.add_done_callback(lambda task: self._prepared(key, task))
        return task

    async def _generations(self, key: str) -> tuple[dict[str, Record], str]:
        """Every form of this key in the ledger, whoever prepared it, and the id of the next one."""
        records: dict[str, Record] = {}
        for first in count(1, GENERATIONS):
            ids = [derive_id("form", key, number) for number in range(first, first + GENERATIONS)]
            found = await self._ledger.get_many(ids)
            for identifier in ids:
                if identifier not in found:
                    return records, identifier
                records[identifier] = found[identifier]
        raise AssertionError  # there are always more numbers

    def forget(self, client_transaction_id: str) -> None:
        """Hand this form out no more: its customer came back without paying."""
        self._live = {
            key: form
            for key, form in self._live.items()
            if form.client_transaction_id != client_transaction_id
        }

    def _prepared(self, key: str, task: asyncio.Task[PaymentForm]) -> None:
        del self._preparing[key]
        if not task.cancelled() and task.exception() is None:
            now = self._clock.time()
            # What is dead is dropped, so that this holds the living only.
            self._live = {known: form for known, form in self._live.items() if form.is_live(now)}
            self._live[key] = task.result()
