"""The books of the service, without HTTP: every transaction, what decides it (§3), its money, the counts, the log."""

import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from datetime import datetime, time, timedelta, timezone
from typing import Any, Final
from urllib.parse import quote, urlencode

from attrs import Factory, define, field, fields_dict, validators

from .clock import JumpClock, ServiceClock, Timetable
from .faults import Faults, renewed
from .messages import Reason, RefusalError
from .rules import valid_body
from .scenarios import Answers
from .settings import CANCELLED, Settings
from .transactions import METHODS, Counts, Form, LogEntry, LogKind, Method, Sale, Transaction

_KEPT: Final = 1000  # entries of the log
_LONGEST: Final = 200  # characters of a foreign text, so that the log stays small whatever is sent
#: How a form is decided, in the customer's words for a sale, and how each reversal is counted.
_ANSWERS: Final = {"paid": "approved", "declined": "rejected"}
_REVERSALS: Final = {"merchant": "reversed", "unconfirmed": "reversed_unconfirmed"}


def _own_clock(clock: ServiceClock | None) -> ServiceClock:
    return JumpClock() if clock is None else clock


@define(eq=False, repr=False, slots=False, kw_only=True)
class Books:
    """The state of one service, and what its customers and its time do to it."""

    #: The only token that is taken, or the account of each; without either any token is.
    token: str | None = None
    accounts: Mapping[str, str] | None = None
    clock: ServiceClock = field(default=None, converter=_own_clock)
    settings: Settings = field(factory=Settings, validator=validators.instance_of(Settings))
    #: The simulated customers of later sales; None: no customer answers by itself.
    answers: Answers | None = field(
        default=None, validator=validators.optional(validators.instance_of(Answers))
    )
    #: The faults to come, a copy of those given; `done` counts those that happened.
    faults: Faults = field(factory=Faults, converter=renewed)
    timetable: Timetable = field(
        default=Factory(lambda self: Timetable(self.clock), takes_self=True), init=False
    )
    #: Counts of what no transaction shows.
    tally: Counter[str] = field(factory=Counter, init=False)
    #: Every created sale by its transaction id, and every prepared payment by its payment id, oldest first.
    sales: dict[int, Sale] = field(factory=dict, init=False)
    forms: dict[str, Form] = field(factory=dict, init=False)
    _entries: deque[LogEntry] = field(factory=lambda: deque(maxlen=_KEPT), init=False)
    _url: str = field(default="", init=False)
    _ahead: float = field(default=0.0, init=False)  # seconds by which the service's day is ahead of its clock
    _by_id: dict[int, Transaction] = field(factory=dict, init=False)
    _by_client_id: dict[str, list[Transaction]] = field(factory=lambda: defaultdict(list), init=False)
    #: The newest sale of each customer at each store.
    _lanes: dict[tuple[str, str | None, str], Sale] = field(factory=dict, init=False)

    @property
    def url(self) -> str:
        """The service's own base address, without a slash at its end."""
        if not self._url:
            raise RuntimeError("the Simulator is not open yet: use `async with`")
        return self._url

    @property
    def created_per_client_id(self) -> Counter[str]:
        """How many sales each client transaction id created; above 1, one was charged twice."""
        return Counter(sale.client_transaction_id for sale in self.sales.values())

    @property
    def collected_per_client_id(self) -> Counter[str]:
        """The cents that each client transaction id paid and did not get back."""
        collected: Counter[str] = Counter()
        for one in self._by_id.values():
            if one.is_held:
                collected[one.client_transaction_id] += one.amount
        return collected

    @property
    def counts(self) -> Counts:
        """Counts of all that the service has executed so far."""
        counted = self.tally.copy()
        counted.update(sale.how or "pending" for sale in self.sales.values())
        counted.update(f"forms_{form.how}" for form in self.forms.values())
        counted.update(_REVERSALS[one.reversal] for one in self._by_id.values() if one.reversal)
        counted.update(created=len(self.sales), prepared=len(self.forms))
        counted.update(collected=self.collected_per_client_id.total())
        duplicates = {one: times for one, times in self.created_per_client_id.items() if times > 1}
        numbers: dict[str, Any] = {name: counted[name] for name in fields_dict(Counts)}
        return Counts(**numbers | {"duplicates": duplicates})

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """The last thousand entries, oldest first."""
        return tuple(self._entries)

    @property
    def last_entry(self) -> int:
        """The number of the newest entry of the log."""
        return self._entries[-1].number if self._entries else 0

    def log_entry(
        self, kind: LogKind, text: str, client_id: str | None = None, number: int | None = None, **result: Any
    ) -> None:
        """Log one entry; `number` is a transaction id, and `result` its status and its fault."""
        ids = {"client_transaction_id": client_id and client_id[:_LONGEST], "transaction_id": number}
        at: dict[str, Any] = {"number": self.last_entry + 1, "at": self.clock.time(), **ids}
        self._entries.append(LogEntry(kind=kind, text=text[:_LONGEST], **at, **result))

    def local_time(self, moment: float | None = None) -> datetime:
        """Return a moment, or now, as the service counts its days."""
        zone = timezone(timedelta(hours=self.settings.utc_offset))
        return datetime.fromtimestamp((self.clock.time() if moment is None else moment) + self._ahead, zone)

    def set_time_of_day(self, time_of_day: str) -> None:
        """Make it this time of the service's day, such as "19:59"; ValueError for what is not one."""
        try:
            wanted, now = time.fromisoformat(time_of_day), self.local_time()
        except ValueError:
            raise ValueError("the time of day must be HH:MM, such as 19:59") from None
        change = datetime.combine(now, wanted, now.tzinfo) - now
        self._ahead += change.total_seconds()

    def account_of(self, token: str) -> str | None:
        """Return the account of a token; None if the token is not taken."""
        if self.accounts is not None:
            return self.accounts.get(token)
        return "" if (token.strip() if self.token is None else token == self.token) else None

    def exists(self, transaction_id: int | None) -> bool:
        """Return whether there is such a transaction, of whatever account."""
        return transaction_id in self._by_id

    def find(self, account: str, transaction_id: int | None, client_id: str = "") -> list[Transaction]:
        """Return the transaction of an account, or without its id all of a client transaction id, newest first."""
        if transaction_id is None:
            found = [one for one in self._of(client_id, account) if one.transaction_id]
            return sorted(found, key=lambda one: one.transaction_id or 0, reverse=True)
        one = self._by_id.get(transaction_id)
        return [one] if one is not None and one.account == account else []

    # Sales

    def create_sale(self, body: Mapping[str, Any], account: str = "") -> Sale:
        """Create a sale from the body of a Sale, without a token; RefusalError with the service's error object."""
        settings = self.settings
        body = valid_body("sale", body, settings)
        common = self._common("sale", body, account)
        phone, prefix = body.get("phoneNumber"), body["countryCode"].removeprefix("+")
        by_name = settings.nick_name_flag is not None and body.get(settings.nick_name_flag) is True
        if phone is not None:  # with the country code and without the local zero
            common["texts"]["phoneNumber"] = prefix + phone.removeprefix("0")
        sale = Sale(
            **common,
            customer=f"nick name {body['nickName']}" if by_name else f"{prefix} {phone}",
            expires_at=self.clock.time() + settings.sale_window,
        )
        lane = account, sale.store_id, sale.customer
        if (newest := self._lanes.get(lane)) is not None and newest.how is None:
            raise RefusalError(22, inner=(2061,))  # one pending sale of a customer at a store (§7.3)
        self.sales[self._give_id(sale)] = self._lanes[lane] = sale
        self._by_client_id[sale.client_transaction_id].append(sale)
        self.timetable.after(settings.sale_window, self._happen, sale, "expired")
        if self.answers is not None:
            answer, delay, reason = self.answers.draw(sale.client_transaction_id)
            if answer != "ignored":
                self.timetable.after(delay, self._happen, sale, answer, reason)
        return sale

    def sale(self, sale: int | str) -> Sale:
        """Return the sale of a transaction id, or the newest of a client transaction id; LookupError for neither."""
        self.timetable.run_due()
        found = [self._by_id.get(sale)] if isinstance(sale, int) else self._by_client_id.get(sale, [])
        for one in reversed(found):
            if isinstance(one, Sale):
                return one
        raise LookupError(f"no sale has the id {sale!a}")

    def pending_sale(self, sale: int | str) -> Sale:
        """Return the sale that is meant; ValueError if it is decided."""
        found = self.sale(sale)
        if found.how is not None:
            raise ValueError(f"sale {found.transaction_id} is not pending: it was {found.how}")
        return found

    def decide_sale(self, sale: Sale, how: str, reason: Reason | None = None) -> None:
        """Decide a pending sale, and notify the merchant of the customer's answer."""
        self._decide(sale, how, reason)
        self.log_entry("customer", how, sale.client_transaction_id, sale.transaction_id)
        if how in ("approved", "rejected"):  # §6: nothing is sent on expiry
            self.notify_merchant(sale)

    def notify_merchant(self, transaction: Transaction) -> None:
        """Send the notifications of a customer's answer, or of the payment of a form; here none is sent."""

    # Forms

    def create_form(self, body: Mapping[str, Any], account: str = "") -> Form:
        """Prepare a form from the body of a Button/Prepare. Raises `RefusalError` as `create_sale` does."""
        body = valid_body("prepare", body, self.settings)
        language_field = self.settings.language_field
        common = self._common("prepare", body, account)
        form = Form(
            **common,
            payment_id=secrets.token_urlsafe(24),
            cancellation_url=common["texts"].get("cancellationUrl"),
            language="en" if language_field is not None and body.get(language_field) == "en" else "es",
        )
        self.forms[form.payment_id] = form
        self._by_client_id[form.client_transaction_id].append(form)
        return form

    def link(self, form: Form, method: Method) -> str:
        """Return where a form is, from the service's own address on."""
        return f"{self.settings.paths[method][0]}?paymentId={form.payment_id}"

    def open_form(self, payment_id: str, method: Method = "card") -> Form:
        """Open the link of a form as a customer: its first load starts its ten minutes (§8)."""
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        if (form := self.forms.get(payment_id)) is None:
            raise LookupError("no prepared payment has this payment id")
        form.deadlines.setdefault(method, self.clock.monotonic() + self.settings.form_window)
        return form

    def is_expired(self, form: Form, method: Method) -> bool:
        return method in form.deadlines and self.clock.monotonic() >= form.deadlines[method]

    async def pay(
        self,
        payment_id: str,
        method: Method = "card",
        *,
        declined: bool = False,
        reason: Reason | None = None,
    ) -> str:
        """Open the link and pay, with all data that the form requires, or with a card that is declined for a reason.

        Returns the address to which the browser is sent (§6).
        """
        how = "declined" if declined or reason is not None else "paid"
        form = self._decide_form(payment_id, method, how, reason)
        number = self._give_id(form)
        if form.is_held:
            self.notify_merchant(form)
            if self.settings.confirm_window is not None:
                self.timetable.after(self.settings.confirm_window, self._lapse, form)
        return self._back(form.response_url, form, number)

    async def cancel_form(self, payment_id: str, method: Method = "card") -> str | None:
        """Open the link and close the form by its X; otherwise like `pay`. None if the X leads nowhere (§2.3)."""
        form = self._decide_form(payment_id, method, "cancelled")
        if self.settings.returns_without_payment:
            return self._back(form.cancellation_url or form.response_url, form, 0)
        return None if form.cancellation_url is None else with_query(form.cancellation_url, {})

    # The merchant's changes of a payment that exists

    def change(self, operation: str, body: Mapping[str, Any], account: str) -> Transaction:
        """Confirm, cancel or reverse, and return the transaction after it; RefusalError if that cannot be."""
        body = valid_body(operation, body, self.settings)
        found = next(iter(self.find(account, body.get("id"), body.get("clientId", ""))), None)
        match operation.partition("_")[0]:
            case "confirm" if isinstance(found, Form) and found.client_transaction_id == body["clientTxId"]:
                if found.awaits_confirmation:  # repeatable; a reversed payment stays reversed
                    found.confirmed_at = self.clock.time()
                self.tally["confirms"] += 1
            case "cancel" if isinstance(found, Sale) and found.how is None:
                self.decide_sale(found, "cancelled")
            case "cancel":
                raise RefusalError(25, inner=(2029,))
            case "reverse" if found is not None and found.is_held and self._is_today(found):
                found.state, found.reversal = self.settings.states["reversed"], "merchant"
            case _:
                raise RefusalError(20)
        return found

    def _of(self, client_transaction_id: str, account: str) -> list[Transaction]:
        """Return the sales and forms with this id in one account, paid or not."""
        return [one for one in self._by_client_id.get(client_transaction_id, ()) if one.account == account]

    def _common(self, operation: str, body: Mapping[str, Any], account: str) -> dict[str, Any]:
        """Return what sales and forms have in common; RefusalError for an id that may not be repeated."""
        client_id, code = body["clientTransactionId"], self.settings.duplicate_code
        refuses_unpaid = operation == "prepare" and self.settings.refuses_second_form
        is_taken = any(one.transaction_id or refuses_unpaid for one in self._of(client_id, account))
        if is_taken and code is not None:
            raise RefusalError(code)
        texts = {name: one for name, one in body.items() if isinstance(one, str) and one.strip()}
        return {
            "client_transaction_id": client_id,
            "account": account,
            "store_id": body.get("storeId"),
            "amount": body["amount"],
            "currency": body.get("currency") or "USD",
            "response_url": texts.get("responseUrl"),
            "created_at": self.clock.time(),
            "texts": texts,
        }

    def _give_id(self, transaction: Transaction) -> int:
        """Give a transaction its id, from one row of ids for sales and button payments."""
        number = transaction.transaction_id = self.settings.first_id + len(self._by_id)
        self._by_id[number] = transaction
        return number

    def _decide(self, transaction: Transaction, how: str, reason: Reason | None) -> None:
        transaction.how, transaction.reason, transaction.decided_at = how, reason, self.clock.time()
        # §3: an expired one is Cancelado.
        transaction.state = self.settings.states.get(_ANSWERS.get(how, how), CANCELLED)

    def _decide_form(self, payment_id: str, method: Method, how: str, reason: Reason | None = None) -> Form:
        """Open a link, decide the form by it, and return the form; ValueError if it cannot be decided."""
        form = self.open_form(payment_id, method)
        if form.how is not None:
            raise ValueError(f"the payment {form.client_transaction_id!a} was already {form.how}")
        if self.is_expired(form, method):
            raise ValueError(f"the {method} link of the payment {form.client_transaction_id!a} has expired")
        form.method = method
        self._decide(form, how, reason)
        return form

    def _happen(self, sale: Sale, how: str, reason: Reason | None = None) -> None:
        if sale.how is None and (how == "expired" or not sale.ignored):
            self.decide_sale(sale, how, reason)

    def _lapse(self, form: Form) -> None:
        if form.awaits_confirmation:
            form.state, form.reversal = self.settings.states["reversed"], "unconfirmed"

    def _back(self, address: str, form: Form, number: int) -> str:
        values = (str(number), form.client_transaction_id)
        return with_query(address, dict(zip(self.settings.redirect_names, values, strict=True)))

    def _is_today(self, found: Transaction) -> bool:
        now, paid = self.local_time(), self.local_time(found.decided_at)
        return now.date() == paid.date() and now.hour < self.settings.reversal_hour


def with_query(address: str, parameters: Mapping[str, str | int]) -> str:
    """Return the address with the parameters behind whatever query it has, fit for a header."""
    address, hash_sign, fragment = address.partition("#")
    if parameters:
        separator = "" if address.endswith(("?", "&")) else "&" if "?" in address else "?"
        address = f"{address}{separator}{urlencode(parameters)}"
    return quote(address + hash_sign + fragment, safe="%/:?#[]@!$&'()*+,;=~")
