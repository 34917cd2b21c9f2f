"""Prepared payments and their form links without HTTP: how long a link lives and what decides a payment."""

import secrets
from collections.abc import Mapping
from typing import Final, Literal, get_args

from attrs import define, field

from .addresses import with_query
from .messages import Language, RefusalError
from .notifications import Notifications
from .rules import check
from .settings import ACCEPTED, CANCELLED
from .transactions import Books, Transaction

Method = Literal["wallet", "card"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)


@define(eq=False, kw_only=True)
class Form(Transaction):
    """One prepared payment with its two links; `how` is paid, declined or cancelled.

    Only a payment that was paid or declined is a transaction, with a transaction id.
    """

    payment_id: str = field(repr=False)  # whoever has it has the links
    response_url: str = field(repr=False)
    cancellation_url: str | None = field(repr=False)
    language: Language
    #: The texts of the request by their names, and what the customer typed of the cardholder's data (§2.3).
    texts: dict[str, str] = field(repr=False)
    #: The link by which it was decided.
    method: Method | None = None
    #: For each link that was loaded, the monotonic time at which its life ends.
    deadlines: dict[Method, float] = field(factory=dict)
    confirmed_at: float | None = None

    @property
    def awaits_confirmation(self) -> bool:
        return self.state == ACCEPTED and self.confirmed_at is None and self.reversal is None

    def as_json(self) -> dict[str, object]:
        """Return the transaction with its payment id, which is as good as its links."""
        more = {"payment_id": self.payment_id, "method": self.method, "loaded": sorted(self.deadlines)}
        return Transaction.as_json(self) | more | {"confirmed": self.confirmed_at is not None}


class FormBook:
    """Prepares payments, and lets their links live, be paid and be cancelled."""

    def __init__(self, books: Books, notifications: Notifications) -> None:
        self.by_id: dict[str, Form] = {}
        self._books = books
        self._notifications = notifications

    def prepare(self, body: Mapping[str, object], account: str = "") -> Form:
        """Prepare a new payment that waits to be paid, or raise RefusalError."""
        settings = self._books.settings
        check("prepare", body, settings)
        form = self._read(body, account)
        code = settings.duplicate_code
        if code is not None and self._books.find_by_client_id(form.client_transaction_id, account):
            raise RefusalError.of(code)
        self.by_id[form.payment_id] = form
        self._books.tally["prepared"] += 1
        return form

    def link(self, form: Form, way: str) -> str:
        """Return where a form is, from the service's own address on; `way` is a method or "code"."""
        return f"{self._books.settings.form_paths[way]}?paymentId={form.payment_id}"

    def opened(self, payment_id: str, method: Method) -> Form:
        """Open a link, whose first load starts its ten minutes (§8); LookupError for an unknown payment id."""
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        if (form := self.by_id.get(payment_id)) is None:
            raise LookupError("no prepared payment has this payment id")
        form.deadlines.setdefault(method, self._books.clock.monotonic() + self._books.settings.form_window)
        return form

    def is_expired(self, form: Form, method: Method) -> bool:
        return method in form.deadlines and self._books.clock.monotonic() >= form.deadlines[method]

    def pay(self, form: Form, method: Method, *, declined: bool = False) -> str:
        """Pay or decline, and return the address to which the customer is sent (§6); ValueError if it is closed."""
        self._require_open(form, method)
        settings, number = self._books.settings, self._books.add(form)
        if declined:
            self._decide(form, method, "declined", settings.states["rejected"])
        else:
            self._decide(form, method, "paid", settings.states["approved"])
        form.details = {
            "phoneNumber": form.texts.get("phoneNumber", "").removeprefix("+") or None,
            "email": form.texts.get("email"),
            "document": form.texts.get("documentId"),
            "reference": form.texts.get("reference"),
            "optionalParameter3": form.texts.get("optionalParameter"),
            "optionalParameter4": "CLIENTE SIMULADO" if form.state == ACCEPTED else None,  # the card's holder
        }
        if form.awaits_confirmation:
            self._notifications.tell_external(form)
            if settings.confirm_window is not None:
                self._books.timetable.after(settings.confirm_window, self._lapse, form)
        return self._back(form.response_url, form, number)

    def cancel(self, form: Form, method: Method) -> str | None:
        """Close the form by its X, and return the address to which it leads (§2.3), if there is one."""
        self._require_open(form, method)
        self._decide(form, method, "cancelled", CANCELLED)
        number = self._books.settings.cancelled_redirect_id
        if number is None:
            return None if form.cancellation_url is None else with_query(form.cancellation_url, {})
        return self._back(form.cancellation_url or form.response_url, form, number)

    def confirm(self, form: Form) -> None:
        """Note that the merchant has seen a payment, as often as it likes; a reversed one stays reversed."""
        if form.awaits_confirmation:
            form.confirmed_at = self._books.clock.time()

    def _read(self, body: Mapping[str, object], account: str) -> Form:
        # The types hold: `check` passed.
        settings, amount = self._books.settings, body["amount"]
        assert isinstance(amount, int)  # noqa: S101  (for mypy)
        is_english = settings.language_field is not None and body.get(settings.language_field) == "en"
        texts = {name: one for name, one in body.items() if isinstance(one, str) and one.strip()}
        return Form(
            payment_id=secrets.token_urlsafe(24),
            client_transaction_id=str(body["clientTransactionId"]),
            account=account,
            store_id=str(body.get("storeId") or ""),
            amount=amount,
            currency=str(body.get("currency") or "USD"),
            language="en" if is_english else "es",
            response_url=str(body["responseUrl"]),
            cancellation_url=texts.get("cancellationUrl"),
            texts=texts,
            created_at=self._books.clock.time(),
        )

    def _require_open(self, form: Form, method: Method) -> None:
        if form.how is not None:
            raise ValueError(f"the payment {form.client_transaction_id!a} was already {form.how}")
        if self.is_expired(form, method):
            raise ValueError(f"the {method} link of the payment {form.client_transaction_id!a} has expired")

    def _decide(self, form: Form, method: Method, how: str, state: str) -> None:
        form.method = method
        self._books.decide(form, how, state)
        self._books.tally[f"forms_{how}"] += 1

    def _lapse(self, form: Form) -> None:
        if form.awaits_confirmation:
            self._books.give_back(form, "unconfirmed")

    def _back(self, address: str, form: Form, number: int) -> str:
        values = (str(number), form.client_transaction_id)
        return with_query(address, dict(zip(self._books.settings.redirect_names, values, strict=True)))
