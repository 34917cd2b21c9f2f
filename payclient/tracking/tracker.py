"""The front door: sends through the ledger, and follows what is open to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Self

from payclient.answers import is_id
from payclient.auth import service_fingerprint
from payclient.clock import Clock, LoopClock
from payclient.errors import ConfigurationError, InvalidNotificationError, TransitionError, UsageError
from payclient.events import DecidedAccepted, DecidedCancelled, DecidedRefused, Decision, NotSent, Refused
from payclient.ledger import Change, Ledger
from payclient.lifecycle import TRANSITIONS, Record, State
from payclient.logs import tracker_log as log
from payclient.models import Notification, PrepareRequest, SaleRequest
from payclient.notifications import Receipt, parse_return
from payclient.profile import ServiceProfile
from payclient.schedule import Schedule
from payclient.session import PaySession
from payclient.tracking.arrivals import Arrivals
from payclient.tracking.attempts import Attempts
from payclient.tracking.followup import StatusSource
from payclient.tracking.forms import Forms, KeptLinks, PaymentForm
from payclient.tracking.health import Health, probe
from payclient.tracking.outcomes import Outcome, PendingSale, feed
from payclient.tracking.poller import Poller
from payclient.tracking.purchases import Purchase, check_purchase, held_until
from payclient.tracking.recovery import existing, look_back, take_over
from payclient.tracking.reversals import reverse, withdraw
from payclient.validation import check_method, check_setting, check_type, is_positive, text_fault

__all__ = ["DECISIONS", "DecidedAs", "Tracker", "objection"]


#: The word of an operator for what an ask was.
DecidedAs = Literal["accepted", "cancelled", "refused"]

DECISIONS: Mapping[str, type[Decision]] = MappingProxyType(
    {"accepted": DecidedAccepted, "cancelled": DecidedCancelled, "refused": DecidedRefused}
)


#: The changes of what was plainly refused, or never sent.
_PLAIN = {"Permitted", Refused.__name__, NotSent.__name__}


def _is_settled(record: Record, history: Sequence[Change]) -> bool:
    """Return whether an ask was plainly refused, or cancelled, and nothing was named to it."""
    if record.state is State.REFUSED:
        return not existing(history) and all(each.event in _PLAIN for each in history)
    return record.state is State.CANCELLED and not record.candidate_ids


def objection(record: Record, as_: str, history: Sequence[Change]) -> str | None:
    """Return why a person may not decide the record, of an id with this history, so; None: a person may."""
    kind = DECISIONS[as_]
    if kind in TRANSITIONS[record.state] and not _is_settled(record, history):
        return None
    allowed = " or ".join(
        state for state, table in TRANSITIONS.items() if kind in table and not state.decided
    )
    running = record.state in (State.SENDING, State.PENDING)
    hint = "; run the charge again, which queries the service first" if running else ""
    return (
        f"{record.client_transaction_id} is {record.state}: only what is {allowed} is decided by hand{hint}; "
        "nothing was changed"
    )


async def check_service(ledger: Ledger, base_url: str) -> None:
    """Raise `ConfigurationError` for the ledger of another service, whose "not found" would prove what is not so."""
    mine = service_fingerprint(base_url, ledger.digest_key)
    if await ledger.service_fingerprint(mine) != mine:
        raise ConfigurationError(
            "this ledger was used with another service than base_url names; nothing was sent. Give each "
            "service, test and real, a ledger of its own; if it is the same service at a new address, say so "
            "by `payclient ledger moved`"
        )


class Tracker:
    """Charges through a ledger and knows what happened. Opened by `async with`, for one event loop.

    `status` is another way to query a status; the default is the session's, if its profile names one. Without
    any, `paid` can never become True. `keep_links` False keeps no form's links in the ledger, not even while they live:
    another process than the one that prepared it raises `PurchaseOpenError` then.

    `drain` is how many seconds closing lets requests in flight end, 0 or more; None: 5 more than the total time-out. A
    charge that has no answer by then is UNKNOWN, and followed by the next process that opens the ledger.
    """

    def __init__(
        self,
        session: PaySession,
        ledger: Ledger,
        *,
        status: StatusSource | None = None,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
        keep_links: bool = True,
        drain: float | None = None,
    ) -> None:
        check_type("session", session, PaySession)
        check_method("ledger", ledger, "permit", "what open_ledger returns")
        check_setting("status", status, Callable, "an async function of a TransactionRef")
        check_method("schedule", schedule, "gap", "a Schedule, such as Fixed(5) or Attentive()")
        check_method("clock", clock, "call_at", "a Clock, such as a simulator's")
        check_setting("keep_links", keep_links, bool, "True or False")
        if drain is None:
            drain = session.timeouts.total + 5.0  # the rest is for a slow ledger
        if not (is_positive(drain) or drain == 0):
            raise ConfigurationError("drain must be a finite number of seconds, 0 or more")
        self._drain = drain
        self._session = session
        self._ledger = ledger
        self._clock = clock if clock is not None else LoopClock()
        self._poller = Poller(session, ledger, self._clock, status=status, schedule=schedule)
        self._links = KeptLinks(self._poller.asks, may_keep=keep_links)
        self._attempts = Attempts(self._poller, self._links)
        self._forms = Forms(self._attempts, self._poller)
        self._arrivals = Arrivals(self._poller)

    @property
    def clock(self) -> Clock:
        """The clock that this tracker was given, or the event loop's."""
        return self._clock

    @property
    def profile(self) -> ServiceProfile:
        """The session's profile."""
        return self._session.profile

    @property
    def attempts(self) -> Attempts:
        """The sender of `charge_all` and the command line; applications do not need it."""
        return self._attempts

    async def __aenter__(self) -> Self:
        if self._poller.asks.is_open or self._poller.asks.closed:
            raise UsageError("this tracker is opened or closed already; make another")
        if isinstance(self._clock, LoopClock):
            self._clock.use_running_loop()
        if not self._poller.policy.can_query:
            words = (
                "no status source: the profile names no status query, so that `paid` can never become True, and a wait "
                'lasts until a notification or the expiry; give profile="payphone", or a profile of your own'
            )
            log("warning", "status_query_missing", "", words)
        await check_service(self._ledger, self._session.base_url)
        self._poller.asks.open()
        try:
            self._poller.start_work(self._links.delete_dead())
            # Follow what a crash left open; beside other processes, what none of them follows, now and later.
            if self._poller.asks.leases is not None:
                await self._poller.asks.leases.begin()
            else:
                await take_over(self._poller, [record async for record in self._ledger.unfinished()])
            self._poller.start_work(look_back(self._poller))
        except (Exception, asyncio.CancelledError):  # nobody leaves what was not entered
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the requests in flight end (within `drain` seconds) and stop following. The ledger stays open."""
        self._poller.asks.is_open = False
        await self._poller.aclose(self._drain)

    async def sale(
        self, request: SaleRequest, *, purchase: str | None = None, beside_open_form: bool = False
    ) -> PendingSale:
        """Charge by a push request (§2.2). **Raising means that this call created nothing.**

        Returning means that it may exist: `wait()` goes on finding out. The same client transaction id with the
        same content again returns the same sale and sends nothing; with other content, or another `purchase`, it
        raises `DifferentRequestError`. A caller who is cancelled detaches; the send goes on.

        `purchase` is your key of what the customer owes once, an order's number for instance; by default the client
        transaction id. One of its asks at a time may be open: `AlreadyPaidError` and `PurchaseOpenError` say which one
        is paid or open, whichever process made it. With `beside_open_form` a payment form may be open, which cannot be
        withdrawn: then the customer can pay twice, which `purchase(key).overpaid` and the feed say.

        Raises those, `InvalidRequestError`, `ConfigurationError`, `NotSentError`, `RefusedError`, `LedgerError`.
        """
        check_type("request", request, SaleRequest)
        check_type("beside_open_form", beside_open_form, bool)
        attempt = self._attempts.encode(request, purchase, beside_open_form=beside_open_form)
        return self._poller.handle(await self._attempts.send(attempt))

    async def notify(self, notification: Notification) -> Receipt:
        """Take a notification (§6) as a hint: the sale is queried at once. Returns before any query.

        A notification is unsigned and never a verdict: forged ones cause no wrong state, and a query a second at most.
        Without a status source it ends the wait, with `paid` None. Raises `InvalidNotificationError` for ids that
        `parse_notification` never returns, `LedgerError`.
        """
        check_type("notification", notification, Notification)
        self._poller.asks.check_open()
        identifier = notification.client_transaction_id
        if not is_id(notification.transaction_id) or not _may_be_known(identifier):
            words = "a notification must have a transaction id and one of the merchant's"
            raise InvalidNotificationError(words)
        words = "the tracker was closed before the hint was on record"
        return await self._poller.finish(self._arrivals.notify(notification), identifier, words)

    async def returned(
        self, query: str | Mapping[str, str], *, client_transaction_id: str | None = None
    ) -> Outcome:
        """Take what a browser brings back from a payment form to `response_url` or `cancellation_url`.

        The return is recorded, confirmed once (within the total time-out), and what is then known is the outcome; what
        the service did not answer is confirmed again until its window is over, also after a crash. A browser's word is
        never a verdict: a cancelled return makes the form CANCELLED only where the service knows of no payment.
        `client_transaction_id` is your own knowledge of whose form it was, where the query may lack it.

        Raises `InvalidNotificationError` for what no form of this ledger sent, `ConfigurationError`, `LedgerError`.
        """
        self._poller.asks.check_open()
        profile = self._session.profile
        if profile.returned is None or profile.confirm is None:
            lacking = "returned" if profile.returned is None else "confirm"
            raise ConfigurationError(f"taking a browser back needs [{lacking}] in the profile")
        back = parse_return(query, profile.returned, client_transaction_id)
        record = await self._ledger.get(back.client_transaction_id)
        if record is None or record.kind != "form":
            raise InvalidNotificationError("this ledger has no such form")
        return await self._poller.confirmer.returned(record, back)

    async def cancel(self, pending: PendingSale) -> Outcome:
        """Withdraw a push request that nobody answers, and say what is true then: the customer may have been quicker.

        Where the service's answer is lost, the outcome is what the status query says, perhaps still undecided. Raises
        `ConfigurationError`, `NotSentError`, `RefusedError` where nothing was withdrawn, `UsageError` for a form.
        """
        check_type("pending", pending, PendingSale)
        record = await self._read(pending.client_transaction_id)
        return pending.outcome if record is None else pending._take(*await withdraw(self._poller, record))

    async def reverse(self, pending: PendingSale) -> Outcome:
        """Give a payment back, whole, and say what is known then: `paid` is False once it was given back.

        The payment is REVERSING, `paid` None, from before the request leaves: no second call sends one, in any process.
        Where the service's answer is lost it stays so until a query shows it; `wait()` waits for that. Raises
        `NotReversibleError`, any other `RefusedError`, `NotSentError` and `LedgerError` where it is still paid,
        `ConfigurationError` where the profile has no `[reverse]`, `UsageError` for what is not paid, or archived.
        """
        check_type("pending", pending, PendingSale)
        record = await self._read(pending.client_transaction_id)
        return pending.outcome if record is None else pending._take(*await reverse(self._poller, record))

    async def prepare(self, request: PrepareRequest, *, purchase: str | None = None) -> PaymentForm:
        """Prepare a hosted payment form (§2.3) under a client transaction id of its own.

        Raises what `PaySession.prepare` raises, `LedgerError`, and `DifferentRequestError` for an id used before. A
        form alone charges nobody; whether it was paid is found by `find(client_transaction_id)`, where the profile
        names a status query by client transaction id, or `status` is given.

        `purchase` is what the form is for, as in `sale`, and raises `AlreadyPaidError` and `PurchaseOpenError`
        likewise. A form counts as open until its links are dead, or the service calls it cancelled.
        """
        check_type("request", request, PrepareRequest)
        return await self._forms.prepare(request, purchase)

    async def live_form(
        self, key: str, make_request: Callable[[str], PrepareRequest], margin: float = 60.0
    ) -> PaymentForm:
        """Return the form of a purchase that lives at least `margin` seconds more; prepare one where none is open.

        However many callers there are at once, in whatever process and after a restart, one form is prepared and all
        get it. A form that the service calls cancelled is not handed out. `make_request(client_transaction_id)` builds
        a form's request with the id that it is given.

        Raises `AlreadyPaidError` where the purchase is paid. Raises `PurchaseOpenError`, with the ask and until when,
        where a push request is open, where a form came back and is not decided, and where a form's links are too old to
        hand out and may still be paid. Links stand in the ledger while they live, unless the tracker keeps none.
        """
        check_type("make_request", make_request, Callable)
        check_type("margin", margin, int | float)
        self._poller.asks.check_open()
        return await self._forms.live(key, make_request, margin)

    async def purchase(self, key: str) -> Purchase:
        """Return what is known of a purchase: whether it is paid, how much was collected, and each of its asks.

        Raises `InvalidRequestError` where `key` is not a valid key: it may look the same as that of a paid purchase.
        """
        self._poller.asks.check_open()
        check_purchase(key)
        records = await self._ledger.asks(key)
        return Purchase.of(key, records, held_until=held_until(self._poller, records))

    async def find(self, client_transaction_id: str) -> PendingSale | None:
        """Return the sale or form of a client transaction id, open or decided; None: the ledger has no such id."""
        self._poller.asks.check_loop()
        if not _may_be_known(client_transaction_id):
            return None
        ask = self._poller.asks.open_ask(client_transaction_id)
        record = await self._ledger.get(client_transaction_id) if ask is None else ask.record
        return None if record is None else self._poller.handle(record)

    def open_sales(self) -> list[PendingSale]:
        """Return every sale that is not decided and that this process knows."""
        return [self._poller.handle(ask.record) for ask in self._poller.asks.all()]

    async def unresolved(self) -> list[Outcome]:
        """Return every ask of the ledger that is not decided, oldest first, whichever process follows it.

        Raises `LedgerUnavailableError`.
        """
        return [Outcome.of(record) async for record in self._ledger.unfinished()]

    async def history(self, client_transaction_id: str) -> list[Change]:
        """Return every change of a client transaction id, oldest first; empty if the ledger has none.

        Raises `LedgerUnavailableError`.
        """
        if not _may_be_known(client_transaction_id):
            return []
        return await self._ledger.history(client_transaction_id)

    async def resolve(
        self, client_transaction_id: str, *, as_: DecidedAs, actor: str, reason: str
    ) -> Outcome:
        """Decide the newest attempt by hand where it is UNKNOWN, EXPIRED or REVERSING; `wait()` returns it then.

        `accepted` stands until the service says that it was cancelled, and `cancelled` until it says that it was
        accepted; of a reversal without an answer `cancelled` is final, and means that the money went back. `refused`
        **allows this id to be charged again**: if the attempt does exist at the service, the customer pays twice.
        What `NotSentError` says may exist all the same is decided once more: REFUSED as `accepted` or `refused`, unless
        nothing but its refusal is known; a CANCELLED form to which a payment was named as `accepted` or, once its links
        are dead, `cancelled`. That frees its purchase, unless it is paid, until a payment is named to it anew.
        `actor` and `reason` are kept in the history, and must not be empty.

        Raises `TransitionError` where the state does not allow it, and `UsageError` for an id that the ledger does not
        have and for what may not be said: nothing was changed. After `LedgerUnavailableError` look at its history: the
        decision may be on record.
        """
        for name, word in (("as_", as_), ("actor", actor), ("reason", reason)):
            check_type(name, word, str)
        if as_ not in DECISIONS:
            raise UsageError(f"as_ must be one of {', '.join(DECISIONS)}; nothing was changed")
        actor, reason = actor.strip(), reason.strip()
        if not actor or not reason:
            raise UsageError("actor and reason must not be empty; nothing was changed")
        can_be_read = _may_be_known(client_transaction_id)
        record = await self._read(client_transaction_id) if can_be_read else None
        if record is None:
            words = "this ledger has no such ask; nothing was changed"
            raise UsageError(words, client_transaction_id=client_transaction_id)
        history = await self._ledger.history(client_transaction_id)
        self._poller.asks.check_open(client_transaction_id)  # no close waits for what begins after it
        if (fault := objection(record, as_, history)) is not None:
            raise TransitionError(fault, client_transaction_id=client_transaction_id)
        decision = DECISIONS[as_](at=self._clock.time(), actor=actor, reason=reason)
        words = "the tracker was closed before the decision was on record; look at its history"
        return await self._poller.finish(self._decide(record, decision), client_transaction_id, words)

    async def _read(self, client_transaction_id: str) -> Record | None:
        """Return the ledger's record, to send or decide something of it now. None: the ledger has lost the sale.

        Raises `TrackerClosedError`, also where the tracker closes meanwhile: no close waits for what begins after it.
        """
        self._poller.asks.check_open(client_transaction_id)
        record = await self._ledger.get(client_transaction_id)
        self._poller.asks.check_open(client_transaction_id)
        return record

    async def _decide(self, record: Record, decision: Decision) -> Outcome:
        record = await self._ledger.apply(record, decision)
        self._poller.asks.note_written(record)
        return Outcome.of(record)

    async def health(self) -> Health:
        """Return how this process's tracker fares: one probe of the ledger, and counts.

        Raises `UsageError` in another event loop, and nothing else.
        """
        return await probe(self._poller)

    def outcomes(self, since: int = 0) -> AsyncIterator[Outcome]:
        """Yield decisions, presumptions (EXPIRED) and corrections after a cursor, until the tracker closes.

        Each outcome has its `cursor`; keep it with what you did about it, and go on from there. At least once. A ledger
        that cannot be read for a while delays the feed.
        """
        check_type("since", since, int)
        return feed(self._poller.asks, since)


def _may_be_known(client_transaction_id: str) -> bool:
    """Return whether a ledger can have this id. PostgreSQL fails to read one with NUL, which a web address may bring.

    Raises `TypeError` for what is not a text.
    """
    check_type("client_transaction_id", client_transaction_id, str)
    return bool(client_transaction_id.strip()) and text_fault(client_transaction_id) is None
