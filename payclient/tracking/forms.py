"""Payment forms: one for a purchase however many ask, and handed out only while it lives (§8).

Links are secrets. Each stands in a table of their own in the ledger while they live, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count

import attrs
import orjson

from payclient.clock import Clock, is_cancelled_alone, outlive, sleep, start, within
from payclient.errors import (
    ConfigurationError,
    DifferentRequestError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    PurchaseOpenError,
    RefusedError,
    TrackerClosedError,
)
from payclient.ledger.records import holds_purchase
from payclient.lifecycle import Record, State
from payclient.models import FormLinks, PrepareRequest, PrepareResult, derive_id
from payclient.secret import Secret
from payclient.tracking.asks import OpenAsks
from payclient.tracking.attempts import Attempts
from payclient.tracking.poller import Poller
from payclient.tracking.purchases import check_purchase, find_holder, refusal_of
from payclient.validation import check_type

__all__ = ["FormLink", "PaymentForm"]


#: Forms that are tried one after another, where the service or another process has each of their ids.
MOST_IDS_TRIED = 8

#: The least characters of a form's id, however few the profile allows: of fewer, two purchases could have the same id.
SHORTEST_ID = 12

#: Seconds after which the links that the ledger could not delete are deleted once more.
DELETE_AGAIN = 60.0

#: Seconds from one deletion of dead links, which looks at all that are kept, to the next.
BETWEEN_DELETIONS = 0.5

#: Seconds from one look to the next at a form that another process prepares right now.
BETWEEN_LOOKS = 0.05

#: Seconds by which another machine's clock may be ahead of this one's. Nobody knows how old a form is that was prepared
#: later than that: by a clock that was set back since.
MOST_AHEAD = 60.0


def _hide(url: str | Secret[str]) -> Secret[str]:
    return Secret.of(url)


@attrs.define
class FormLink:
    """A link to a hosted form. The link lives 10 minutes from its own load (§8), which we may not see.

    `is_live` means safe to hand out: a link loaded late may still be payable for up to ten minutes after
    `expires_at`. Times are UTC seconds since the epoch. The address is a secret: show it to its customer only. A link
    does not pickle.

    - `prepared_at`: When the form was prepared.
    - `loaded_at`: When the customer loaded it; None until `mark_loaded`.
    - `lifetime`: Seconds (§8: 600).
    """

    _url: Secret[str] = attrs.field(converter=_hide, repr=False)
    prepared_at: float
    loaded_at: float | None = None
    lifetime: float = 600.0

    @property
    def url(self) -> str:
        """The address; a secret."""
        return self._url.reveal()

    @property
    def expires_at(self) -> float:
        """When it may stop working: counted from the load where that is known, else from the preparing."""
        return (self.prepared_at if self.loaded_at is None else self.loaded_at) + self.lifetime

    def is_live(self, now: float) -> bool:
        """Return whether it is safe to hand out at this time."""
        return now < self.expires_at

    def mark_loaded(self, at: float) -> None:
        """Note that the customer opened the link, whose life counts from then."""
        if self.loaded_at is None:
            self.loaded_at = at


@attrs.frozen(kw_only=True)
class PaymentForm:
    """A prepared form: send the customer to one of its links by a redirect that brings the referrer (§4).

    - `client_transaction_id`: The merchant's id of this form.
    - `payment_id`: A secret where the links are made of it.
    - `prepared_at`: UTC seconds since the epoch.
    - `result`: The service's answer, with every link.
    """

    client_transaction_id: str
    payment_id: str = attrs.field(repr=False)
    prepared_at: float
    result: PrepareResult = attrs.field(repr=False)
    _links: dict[Secret[str], FormLink] = attrs.field(factory=dict, repr=False, init=False)
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
        """Return whether every link is safe to hand out at this time."""
        return all(link.is_live(now) for link in self.links.values())

    def _link(self, url: str) -> FormLink:
        return self._links.setdefault(Secret(url), FormLink(url, self.prepared_at, lifetime=self._lifetime))


@attrs.frozen
class KnownForm:
    """A form that was prepared or handed out here."""

    form: PaymentForm
    #: By how many seconds the wall clock was ahead of the monotonic one then: it may be set back since.
    clock_ahead: float

    def is_live(self, clock: Clock, margin: float) -> bool:
        """Return whether the form lives so many seconds more, by both clocks."""
        return self.form.is_live(max(clock.time(), clock.monotonic() + self.clock_ahead) + margin)


class KeptLinks:
    """Keeps links where other processes and the next one find them, and deletes them once they are dead."""

    def __init__(self, asks: OpenAsks, *, may_keep: bool) -> None:
        self._asks = asks
        self._lifetime = asks.policy.form_window
        self._may_keep = may_keep  # in the ledger; `Tracker` has it as `keep_links`
        #: Wakes `delete_dead`: a form was decided, so its links may be dead; or new links are the next to die.
        self._wake = asyncio.Event()
        #: When links die next; None where none do, as far as is known.
        self._dead_at: float | None = None
        asks.on_form_decided.append(lambda _: self._wake.set())

    async def keep(self, record: Record, result: PrepareResult) -> None:
        """Keep a form's links in the ledger while they live, so that other processes can hand the form out."""
        if not self._may_keep:
            return
        kept = {"payment_id": result.payment_id, "links": dict(result.links)}
        until = record.created_at + self._lifetime
        try:
            await self._asks.ledger.keep_links(record, orjson.dumps(kept).decode(), until)
        except Exception as error:  # whatever it is must not leave with these frames, which hold the links
            self._asks.late.log_failure(error)
        if self._dead_at is None or until < self._dead_at:
            self._wake.set()

    async def delete_dead(self) -> None:
        """Delete dead links, again each time that the next ones die, or that a form is decided or kept.

        Where several processes share the ledger, look for dead links of others once in each lifetime, too.
        """
        clock = self._asks.clock
        while True:
            self._wake.clear()
            self._dead_at = None
            try:
                self._dead_at = await self._asks.ledger.drop_links(clock.time())
                if self._dead_at is None and self._asks.leases is not None:
                    self._dead_at = clock.time() + self._lifetime  # another process may keep links, and end
            except Exception as error:  # whatever it is must not end the deleting
                self._asks.late.log_failure(error)
                self._dead_at = clock.time() + DELETE_AGAIN
            await sleep(clock, BETWEEN_DELETIONS)
            if self._dead_at is None:
                await self._wake.wait()
            else:
                with suppress(TimeoutError):
                    await within(clock, max(self._dead_at - clock.time(), 0.0), self._wake.wait())


class Forms:
    """Prepares forms through the ledger."""

    def __init__(self, attempts: Attempts, poller: Poller) -> None:
        self._attempts = attempts
        self._poller = poller
        self._ledger = poller.asks.ledger
        self._clock = poller.clock
        self._lifetime = poller.policy.form_window
        #: By client transaction id, the oldest first, but for dead ones that the ledger has as living ones.
        self._known: dict[str, KnownForm] = {}
        #: By purchase, the form that is being prepared, which all callers share.
        self._preparing: dict[str, asyncio.Task[PaymentForm]] = {}

    async def prepare(self, request: PrepareRequest, purchase: str | None = None) -> PaymentForm:
        """Prepare a form under a client transaction id of its own."""
        attempt, identifier = self._attempts.encode(request, purchase), request.client_transaction_id
        record = await self._attempts.send(attempt)
        if attempt.result is None or attempt.record is None:
            # A closing tracker ended it, or others cancelled all tasks: nobody has its links.
            if self._poller.asks.is_open:
                words = "others cancelled the request before the form's links came; prepare another form"
                raise OutcomeUnknownError(words, client_transaction_id=identifier)
            words = "the tracker was closed before the form's links came; prepare another form"
            raise TrackerClosedError(words, client_transaction_id=identifier)
        if record.state is State.SENDING:  # no row took the answer (`LateWrites`)
            words = "the ledger has lost the form, as by a failover, and would know of no payment; prepare another form"
            raise LedgerUnavailableError(words, client_transaction_id=identifier)
        # The links' life counts from the permit: other processes take them for dead then, even if this one stood still.
        form = self._remember(identifier, attempt.result, attempt.record.created_at).form
        if not form.is_live(self._clock.time()):
            words = "the process stood still until the links were no longer safe to hand out; prepare another form"
            raise OutcomeUnknownError(words, client_transaction_id=identifier)
        return form

    def _remember(self, identifier: str, result: PrepareResult, prepared_at: float) -> KnownForm:
        """Keep the form of an id in memory unless one is, and return the kept one.

        The oldest are dropped once they are dead, in memory and in the ledger.
        """
        kept = {}
        while self._known and not self._known[oldest := next(iter(self._known))].is_live(self._clock, 0.0):
            dead = self._known.pop(oldest)
            if dead.form.is_live(self._clock.time()):
                kept[oldest] = dead  # the clock was set back: the ledger has its links as living ones
        self._known |= kept
        form = PaymentForm(
            client_transaction_id=identifier,
            payment_id=result.payment_id,
            prepared_at=prepared_at,
            result=result,
            lifetime=self._lifetime,
        )
        known = KnownForm(form, clock_ahead=max(prepared_at, self._clock.time()) - self._clock.monotonic())
        return self._known.setdefault(identifier, known)

    async def live(
        self, key: str, make_request: Callable[[str], PrepareRequest], margin: float
    ) -> PaymentForm:
        """Return the living form of a purchase, or a new one that all callers share; see `Tracker.live_form`."""
        check_purchase(key)
        if not 0 <= margin < self._lifetime:
            raise ConfigurationError(f"margin must be 0 or more and less than {self._lifetime:g} seconds")
        tries, until = MOST_IDS_TRIED, self._clock.monotonic() + self._poller.policy.total_timeout
        while True:
            asks = await self._ledger.asks(key)
            if (form := await self._find_live(key, asks, margin)) is not None:
                return form
            task = self._preparing.get(key)
            if task is None:
                if (holder := find_holder(self._poller, asks)) is not None:
                    is_prepared_now = holder.kind == "form" and holder.state is State.SENDING
                    if not is_prepared_now or self._clock.monotonic() >= until:
                        raise refusal_of(self._poller, holder)
                    await sleep(self._clock, BETWEEN_LOOKS)  # for the links that another process gets
                    continue
                free_id = _free_id(key, asks, self._poller.session.profile.max_lengths)
                task = self._start(key, free_id, make_request)
            try:
                return await outlive(task)
            except (asyncio.CancelledError, RefusedError, DifferentRequestError, PurchaseOpenError) as error:
                # Another process may have just prepared one, or prepares it: look again at what there is. The id may
                # have been prepared before: twice on its way, or under a ledger that is gone.
                tries -= 1
                if not tries or not self._is_worth_another(task, error):
                    raise

    def _is_worth_another(self, task: asyncio.Task[PaymentForm], error: BaseException) -> bool:
        """Return whether another form may be prepared after an error of this task's."""
        if isinstance(error, asyncio.CancelledError):
            return is_cancelled_alone(task)  # by others, with all tasks of the process
        return not isinstance(error, RefusedError) or self._attempts.refusals.is_duplicate(error)

    def _start(
        self, key: str, identifier: str, make_request: Callable[[str], PrepareRequest]
    ) -> asyncio.Task[PaymentForm]:
        """Start to prepare a form under this id, and return the task that all callers of `key` share."""
        request = make_request(identifier)
        check_type("what make_request returns", request, PrepareRequest)
        if request.client_transaction_id != identifier:
            raise ConfigurationError("make_request must build the request with the id that it is given")
        task = self._preparing[key] = start(self.prepare(request, key))
        task.add_done_callback(lambda _: self._preparing.pop(key, None))
        return task

    async def _find_live(self, key: str, asks: list[Record], margin: float) -> PaymentForm | None:
        """Return the purchase's form whose links may be handed out; None where another of its asks is paid or open."""
        now = self._clock.time()
        holders = [each for each in asks if holds_purchase(each, now)]
        for each in holders:
            is_named = bool(each.candidate_ids) or each.transaction_id is not None
            if each.kind != "form" or is_named or each.state is State.SENDING:
                return None  # it is paid, or it may be, or it has no links yet
        links = await self._ledger.links(key, now) if holders else {}
        for each in reversed(holders):
            identifier = each.client_transaction_id
            known = self._known.get(identifier)
            if known is None and identifier in links and each.created_at <= now + MOST_AHEAD:
                kept = orjson.loads(links[identifier])
                field = self._poller.session.profile.wallet_link_field
                result = PrepareResult(
                    payment_id=kept["payment_id"], links=FormLinks(kept["links"]), wallet_link_field=field
                )
                known = self._remember(identifier, result, each.created_at)
            if known is not None and known.is_live(self._clock, margin):
                return known.form
        return None


def _free_id(key: str, asks: list[Record], max_lengths: Mapping[str, int]) -> str:
    """Return the client transaction id of the next form of a purchase, cut to what the profile allows."""
    longest = max(max_lengths.get("client_transaction_id", 26), SHORTEST_ID)
    used = {each.client_transaction_id for each in asks}
    ids = (derive_id("form", key, number)[:longest] for number in count(1))
    return next(each for each in ids if each not in used)
