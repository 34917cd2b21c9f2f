"""Prepared payments and their form links without HTTP: how long a link lives and what decides a payment."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Literal

from attrs import define, field

from .addresses import with_query
from .agenda import Agenda
from .clock import Clock
from .limits import failing_limits, refused_on_demand
from .refusals import Refusal, refusal, validation_refusal
from .rules import failing_prepare_fields, redirect_field
from .settings import ACCEPTED, CANCELLED, PENDING, Settings
from .transactions import Reversal, Transactions

__all__ = ["METHODS", "Form", "FormOutcome", "Forms", "Language", "Method"]

Method = Literal["wallet", "card"]
Language = Literal["es", "en"]
FormOutcome = Literal["paid", "declined", "cancelled"]

METHODS: Final[tuple[Method, ...]] = ("wallet", "card")


@define(eq=False, kw_only=True)
class Form:
    """One prepared payment with its two links; amounts in cents, `*_at` in UTC seconds since the epoch."""

    payment_id: str = field(repr=False)  # who knows it has the links
    client_transaction_id: str
    store_id: str
    amount: int
    currency: str
    reference: str | None = field(repr=False)
    language: Language
    response_url: str = field(repr=False)
    cancellation_url: str | None = field(repr=False)
    #: The cardholder's, as prepared or as typed into the form (§2.3).
    phone_number: str | None = field(repr=False)
    email: str | None = field(repr=False)
    document_id: str | None = field(repr=False)
    optional_parameter: str | None = field(default=None, repr=False)
    #: Whether the answer has the third link.
    has_payment_code: bool = False
    prepared_at: float
    account: str = ""
    state: str = PENDING
    how: FormOutcome | None = None
    decided_at: float | None = None
    #: The link by which it was decided.
    method: Method | None = None
    #: Only a payment that was paid or declined is a transaction.
    transaction_id: int | None = None
    #: For each link that was loaded, the monotonic time at which its life ends.
    deadlines: dict[Method, float] = field(factory=dict)
    confirmed_at: float | None = None
    reversal: Reversal | None = None
    #: What came of the external notification, as `Sale.external_notification`.
    external_notification: str | None = None

    @property
    def created_at(self) -> float:
        """As of a sale."""
        return self.prepared_at

    @property
    def details(self) -> Mapping[str, object]:
        """What a full status answer repeats of the request and of what was typed, by the service's names."""
        return {
            "phoneNumber": self.phone_number and self.phone_number.removeprefix("+"),
            "email": self.email,
            "document": self.document_id,
            "reference": self.reference,
            "optionalParameter3": self.optional_parameter,
        }


class Forms:
    """Prepares payments, and lets their links live, be paid and be cancelled."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        agenda: Agenda,
        transactions: Transactions,
        tally: Counter[str],
        on_settled: Callable[[Form], object],
    ) -> None:
        self.forms: dict[str, Form] = {}
        self._agenda = agenda
        self._on_settled = on_settled
        self._settings = settings
        self._clock = clock
        self._transactions = transactions
        self._tally = tally

    def prepare(self, body: Mapping[str, object], account: str = "") -> Form | Refusal:
        """A new payment that waits to be paid, or the reason why there is none."""
        settings = self._settings
        faults = failing_prepare_fields(
            body, language_field=settings.language_field, may_lack=settings.prepare_may_lack
        )
        faults += failing_limits(body, settings, settings.prepare_max_lengths)
        if faults:
            return validation_refusal(faults)
        if (refused := refused_on_demand(body, settings)) is not None:
            return refused
        form = self._read(body, account)
        code = settings.duplicate_code
        if code is not None and self._transactions.find_by_client_id(form.client_transaction_id, account):
            return refusal(code)
        self.forms[form.payment_id] = form
        self._tally["prepared"] += 1
        return form

    def link(self, form: Form, method: Method) -> str:
        """Where the form is, from the service's own address on."""
        return f"{self._settings.form_paths[method]}?paymentId={form.payment_id}"

    def load(self, form: Form, method: Method) -> None:
        """A link is opened; its first load starts its ten minutes (§8)."""
        form.deadlines.setdefault(method, self._clock.monotonic() + self._settings.form_window)

    def opened(self, payment_id: str, method: Method) -> Form:
        """The form of a link that a customer opens; LookupError if there is none, ValueError for another method."""
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        form = self.forms.get(payment_id)
        if form is None:
            raise LookupError("no prepared payment has this payment id")
        self.load(form, method)
        return form

    def is_expired(self, form: Form, method: Method) -> bool:
        return method in form.deadlines and self._clock.monotonic() >= form.deadlines[method]

    def pay(self, form: Form, method: Method, *, declined: bool = False) -> str:
        """The payment is made or declined; the address to which the customer is sent (§6)."""
        self._require_open(form, method)
        settings = self._settings
        form.transaction_id = self._transactions.next_id
        self._transactions.add(form.transaction_id, form)
        if declined:
            self._decide(form, method, "declined", settings.state_after_reject)
        else:
            self._decide(form, method, "paid", settings.state_after_approve)
            self._take(form)
        return with_query(form.response_url, self._parameters(form.transaction_id, form))

    def cancel(self, form: Form, method: Method) -> str | None:
        """The customer closes the form by its X; the address to which it leads, if there is one (§2.3)."""
        self._require_open(form, method)
        self._decide(form, method, "cancelled", CANCELLED)
        address = form.cancellation_url
        if address is None and self._settings.cancel_leads_to_response_url:
            address = form.response_url
        if address is None:
            return None
        number = self._settings.cancelled_redirect_id
        parameters = {} if number is None else self._parameters(number, form)
        return with_query(address, parameters)

    def confirm(self, form: Form) -> None:
        """The merchant has seen that this form was paid; again and again, if it likes."""
        if form.confirmed_at is None and form.how == "paid" and form.reversal is None:
            form.confirmed_at = self._clock.time()
            if form.state == ACCEPTED and self._settings.external_notification_on_confirm:
                self._on_settled(form)

    def _read(self, body: Mapping[str, object], account: str) -> Form:
        # The types hold: `failing_prepare_fields` passed.
        amount, language_field = body["amount"], self._settings.language_field
        assert isinstance(amount, int)  # noqa: S101  (for mypy)
        return Form(
            payment_id=secrets.token_urlsafe(24),
            client_transaction_id=str(body["clientTransactionId"]),
            store_id=str(body.get("storeId") or ""),
            amount=amount,
            currency=str(body.get("currency") or self._settings.default_currency),
            reference=_text(body, "reference"),
            language="en" if language_field is not None and body.get(language_field) == "en" else "es",
            response_url=str(body[redirect_field(body)]),
            cancellation_url=_text(body, "cancellationUrl"),
            phone_number=_text(body, "phoneNumber"),
            email=_text(body, "email"),
            document_id=_text(body, "documentId"),
            optional_parameter=_text(body, "optionalParameter"),
            has_payment_code=_text(body, "transactionSummaryUrl") is not None,
            prepared_at=self._clock.time(),
            account=account,
        )

    def _require_open(self, form: Form, method: Method) -> None:
        if form.how is not None:
            raise ValueError(f"the payment {form.client_transaction_id!r} was already {form.how}")
        if self.is_expired(form, method):
            raise ValueError(f"the {method} link of the payment {form.client_transaction_id!r} has expired")

    def _decide(self, form: Form, method: Method, how: FormOutcome, state: str) -> None:
        form.how, form.state, form.method = how, state, method
        form.decided_at = self._clock.time()
        self._tally[f"forms_{how}"] += 1

    def _take(self, form: Form) -> None:
        if form.state != ACCEPTED:
            return
        self._transactions.collect(form)
        if self._settings.confirm_window is not None:
            self._agenda.after(self._settings.confirm_window, self._lapse, form)
        if not self._settings.external_notification_on_confirm:
            self._on_settled(form)

    def _lapse(self, form: Form) -> None:
        if form.confirmed_at is None and form.reversal is None:
            self._transactions.give_back(form, self._settings.state_after_reverse, "unconfirmed")
            self._tally["reversed_unconfirmed"] += 1

    def _parameters(self, number: int, form: Form) -> dict[str, str | int]:
        settings = self._settings
        return {
            settings.redirect_id_field: number,
            settings.redirect_client_id_field: form.client_transaction_id,
        }


def _text(body: Mapping[str, object], name: str) -> str | None:
    value = body.get(name)
    return str(value) if isinstance(value, str) and value.strip() else None
