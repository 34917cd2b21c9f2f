"""The service without HTTP: its sales, who is pending where, and what decides them (§3)."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from attrs import define, field, fields, frozen

from .agenda import Agenda
from .answers import Answers
from .clock import Clock
from .limits import failing_limits, refused_on_demand
from .refusals import Refusal, refusal, validation_refusal
from .rules import failing_fields
from .settings import ACCEPTED, CANCELLED, PENDING, Settings
from .transactions import Reversal, Transaction, Transactions

__all__ = ["Counts", "How", "Sale", "Service"]

How = Literal["approved", "rejected", "expired", "cancelled"]


@define(eq=False, kw_only=True)
class Sale:
    """One created sale; amounts in cents, times in UTC seconds since the epoch."""

    transaction_id: int
    client_transaction_id: str
    customer: str = field(repr=False)
    store_id: str | None
    amount: int
    currency: str
    response_url: str | None = field(repr=False)
    created_at: float
    account: str = ""
    state: str = PENDING
    decided_at: float | None = None
    how: How | None = None
    #: The customer has put the phone away: what the crowd had in mind is void.
    ignored: bool = False
    #: What came of the notification: "HTTP 200" for any answer with that status, else the error's class name.
    notification: str | None = None
    #: The same of the external notification; "acknowledged" or "duplicate" for an answer in its own words.
    external_notification: str | None = None
    reversal: Reversal | None = None
    #: What a full status answer repeats of the request, by its own names.
    details: Mapping[str, object] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class Counts:
    """What the service really executed.

    `requests` is `created` + `prepared` + `refused` + `queries` + `confirms` + `cancelled` + `reversed`; who asks for
    the regions is not counted.
    """

    requests: int
    created: int
    prepared: int
    refused: int
    queries: int
    approved: int
    rejected: int
    expired: int
    pending: int
    notifications_sent: int
    notifications_failed: int
    forms_paid: int
    forms_declined: int
    forms_cancelled: int
    #: Confirm requests that were answered with a status, repeats too.
    confirms: int
    #: Sales that the merchant withdrew.
    cancelled: int
    #: Payments that the merchant reversed, and those that the service did because nobody confirmed them.
    reversed: int
    reversed_unconfirmed: int
    #: Cents that were paid and not reversed, over all sales and forms.
    collected: int
    external_notifications_sent: int
    external_notifications_failed: int


class Service:
    """Creates sales, and decides them by hand, by the crowd's answers or by expiry."""

    def __init__(
        self, settings: Settings, clock: Clock, answers: Answers | None, on_answered: Callable[[Sale], object]
    ) -> None:
        self.settings = settings
        self.sales: dict[int, Sale] = {}
        self.transactions = Transactions()
        self.created_per_client_id: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.agenda = Agenda(clock)
        self._clock = clock
        self._answers = answers
        self._on_answered = on_answered
        #: Told of each sale that is decided, by expiry too.
        self.on_decided: Callable[[Sale], object] = lambda _: None
        self._pending: set[tuple[str, str | None, str]] = set()

    @property
    def counts(self) -> Counts:
        known = {attribute.name: self.tally[attribute.name] for attribute in fields(Counts)}
        return Counts(**{**known, "pending": len(self._pending), "collected": self.transactions.collected})

    @property
    def duplicates(self) -> dict[str, int]:
        """How many sales were created under one client transaction id, where that is more than one."""
        return {one: times for one, times in self.created_per_client_id.items() if times > 1}

    def create(self, body: Mapping[str, object], account: str = "") -> Sale | Refusal:
        """A new pending sale with its push on the way, or the reason why there is none."""
        settings = self.settings
        faults = failing_fields(
            body,
            nick_name_flag=settings.nick_name_flag,
            phone_optional_by_nick_name=settings.phone_optional_by_nick_name,
            may_lack=settings.sale_may_lack,
        )
        faults += failing_limits(body, settings, settings.sale_max_lengths)
        if faults:
            return validation_refusal(faults)
        self.agenda.run_due()
        sale = self._read(body, account)
        if body.get("phoneNumber") in settings.refuse_phones:
            return refusal(22)  # §7.2
        if (refused := refused_on_demand(body, settings)) is not None:
            return refused
        code = settings.duplicate_code
        if code is not None and self.transactions.find_by_client_id(sale.client_transaction_id, account):
            return refusal(code)
        if (account, sale.store_id, sale.customer) in self._pending:
            return refusal(22, 2061)  # §7.3
        self._add(sale)
        return sale

    def answer(self, sale: int | str, how: Literal["approved", "rejected"]) -> Sale:
        """The customer approves or rejects now; LookupError if unknown, ValueError if not pending."""
        found = self._pending_one(sale)
        self._decide(found, how)
        return found

    def ignore(self, sale: int | str) -> None:
        """The customer will never answer: the sale expires, whatever the crowd had in mind."""
        self._pending_one(sale).ignored = True

    def use(self, answers: Answers | None) -> None:
        """The crowd that answers what is created from now on; None: nobody does by itself."""
        self._answers = answers

    def cancel(self, sale: Sale) -> None:
        """The merchant withdraws a pending sale."""
        self._decide(sale, "cancelled")

    def find(self, transaction_id: int) -> Sale | None:
        self.agenda.run_due()
        return self.sales.get(transaction_id)

    def meant(self, sale: int | str) -> Sale:
        """The sale of a transaction id, or the newest of a client transaction id; LookupError if there is none."""
        self.agenda.run_due()
        if isinstance(sale, int):
            if sale not in self.sales:
                raise LookupError(f"no sale has the transaction id {sale}")
            return self.sales[sale]
        for one in reversed(self.sales.values()):
            if one.client_transaction_id == sale:
                return one
        raise LookupError(f"no sale has the client transaction id {sale!r}")

    def query(self, transaction_id: int, account: str) -> Transaction | None:
        """The transaction that a status query of this account finds."""
        self.agenda.run_due()
        found = self.transactions.find(transaction_id, account)
        return None if found is None or self._is_forgotten(found) else found

    def query_by_client_id(self, client_transaction_id: str, account: str) -> list[Transaction]:
        """All transactions with this id that a status query finds, newest first."""
        self.agenda.run_due()
        found = self.transactions.find_by_client_id(client_transaction_id, account)
        return [one for one in found if not self._is_forgotten(one)]

    def close(self) -> None:
        """Stop the timer: nothing more is decided by time."""
        self.agenda.close()

    def _read(self, body: Mapping[str, object], account: str) -> Sale:
        # The types hold: `failing_fields` passed. Only `_add` makes the sale real, and the number used.
        amount, store_id, response_url = body["amount"], body.get("storeId"), body.get("responseUrl")
        assert isinstance(amount, int)  # noqa: S101  (for mypy)
        flag = self.settings.nick_name_flag
        if flag is not None and body.get(flag) is True:
            customer = f"nick name {body['nickName']}"
        else:
            customer = f"{str(body['countryCode']).removeprefix('+')} {body['phoneNumber']}"
        return Sale(
            transaction_id=self.transactions.next_id,
            client_transaction_id=str(body["clientTransactionId"]),
            customer=customer,
            store_id=None if store_id is None else str(store_id),
            amount=amount,
            currency=str(body.get("currency") or self.settings.default_currency),
            response_url=str(response_url) if response_url else None,
            created_at=self._clock.time(),
            account=account,
            details=_details(body) if self.settings.full_status else {},
        )

    def _add(self, sale: Sale) -> None:
        self.sales[sale.transaction_id] = sale
        self.transactions.add(sale.transaction_id, sale)
        self.created_per_client_id[sale.client_transaction_id] += 1
        self._pending.add((sale.account, sale.store_id, sale.customer))
        self.tally["created"] += 1
        self.agenda.after(self.settings.sale_window, self._happen, sale, "expired")
        if self._answers is not None:
            answer, delay = self._answers.draw(sale.client_transaction_id)
            # At the very end of the window the expiry wins.
            if answer != "ignored" and delay < self.settings.sale_window:
                self.agenda.after(delay, self._happen, sale, answer)

    def _is_forgotten(self, transaction: Transaction) -> bool:
        return self.settings.forgets_expired and transaction.how == "expired"

    def _pending_one(self, sale: int | str) -> Sale:
        found = self.meant(sale)
        if found.how is not None:
            raise ValueError(f"sale {found.transaction_id} is not pending: it was {found.how}")
        return found

    def _decide(self, sale: Sale, how: How) -> None:
        settings = self.settings
        states = {"approved": settings.state_after_approve, "rejected": settings.state_after_reject}
        sale.state = states.get(how, CANCELLED)  # §3: an expired one is Cancelado
        sale.how = how
        sale.decided_at = self._clock.time()
        self._pending.discard((sale.account, sale.store_id, sale.customer))
        self.tally[how] += 1
        self.on_decided(sale)
        if sale.state == ACCEPTED:
            self.transactions.collect(sale)
        if how in states:  # §6: nothing is sent on expiry
            self._on_answered(sale)

    def _happen(self, sale: Sale, how: How) -> None:
        if sale.how is None and (how == "expired" or not sale.ignored):
            self._decide(sale, how)


def _details(body: Mapping[str, object]) -> dict[str, object]:
    """The request's own words that a full status answer repeats."""
    phone = body.get("phoneNumber")
    if phone is not None:  # with the country code and without the local zero
        phone = str(body["countryCode"]).removeprefix("+") + str(phone).removeprefix("0")
    names = ("reference", "optionalParameter1", "optionalParameter2", "optionalParameter3")
    return {"phoneNumber": phone, **{name: body.get(name) for name in names}}
