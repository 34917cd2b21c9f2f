"""Transactions, the counts of what was executed, and the entries of the log. No personal data in what they show."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from attrs import define, field, fields_dict, frozen

from .messages import Language, Reason
from .settings import ACCEPTED, PENDING

Method = Literal["wallet", "card"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
LogKind = Literal["request", "customer", "notification", "page", "service"]


@define(eq=False, kw_only=True)
class Transaction:
    """The common part of a sale and a button payment; amounts in cents, `*_at` in UTC seconds since the epoch."""

    transaction_id: int | None = None
    client_transaction_id: str
    #: The owner; the token of no other account finds it.
    account: str = ""
    store_id: str | None
    amount: int
    currency: str
    response_url: str | None = field(repr=False)
    created_at: float
    state: str = PENDING
    decided_at: float | None = None
    how: str | None = None  # the cause of the decision
    #: Why the bank declined.
    reason: Reason | None = None
    #: Given back by the merchant's Reverse, or by the service because it was not confirmed.
    reversal: Literal["merchant", "unconfirmed"] | None = None
    #: The texts of the request by their names, and what the customer typed of the cardholder's data (§2.3).
    texts: dict[str, str] = field(repr=False)

    @property
    def is_held(self) -> bool:
        """Whether the merchant has the money: it was paid and not given back."""
        return self.state == ACCEPTED and self.reversal is None

    def as_json(self) -> dict[str, object]:
        """Return what the control routes show of it: no personal data."""
        return {name: getattr(self, name) for name, one in fields_dict(type(self)).items() if one.repr}


@define(eq=False, kw_only=True)
class Sale(Transaction):
    """One created sale; `how` is approved, rejected, expired or cancelled."""

    transaction_id: int = 0
    customer: str = field(repr=False)
    expires_at: float
    #: Whether the customer has put the phone away; what the crowd had in mind is void.
    ignored: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the transaction, with the last digits of its customer's phone or name."""
        return Transaction.as_json(self) | {"customer": f"…{self.customer[-3:]}"}


@define(eq=False, kw_only=True)
class Form(Transaction):
    """One prepared payment with its two links; `how` is paid, declined or cancelled.

    Only a payment that was paid or declined is a transaction, with a transaction id.
    """

    payment_id: str = field(repr=False)  # as good as the links
    response_url: str = field(repr=False)
    cancellation_url: str | None = field(repr=False)
    language: Language = field(repr=False)
    #: The link by which it was decided.
    method: Method | None = None
    #: For each link that was loaded, the monotonic time at which its life ends.
    deadlines: dict[Method, float] = field(factory=dict, repr=False)
    confirmed_at: float | None = field(default=None, repr=False)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether it is paid, and reversed unless it is confirmed."""
        return self.is_held and self.confirmed_at is None

    def as_json(self) -> dict[str, object]:
        """Return the transaction with its payment id, which is as good as its links."""
        more = {"loaded": sorted(self.deadlines), "confirmed": self.confirmed_at is not None}
        return Transaction.as_json(self) | {"payment_id": self.payment_id, **more}


@frozen(kw_only=True)
class Counts:
    """Counts of all that the service really executed.

    `requests` is `created` + `prepared` + `refused` + `queries` + `confirms` + `cancelled` + `reversed`, without what
    `create_sale` and `create_form` made; a query of the regions is not counted. `collected` are the cents that were
    paid and not reversed; `confirms` includes repeats.
    """

    requests: int = 0
    created: int = 0
    prepared: int = 0
    refused: int = 0
    queries: int = 0
    approved: int = 0
    rejected: int = 0
    expired: int = 0
    pending: int = 0
    notifications_sent: int = 0
    notifications_failed: int = 0
    forms_paid: int = 0
    forms_declined: int = 0
    forms_cancelled: int = 0
    confirms: int = 0
    cancelled: int = 0
    reversed: int = 0
    reversed_unconfirmed: int = 0
    collected: int = 0
    #: How many sales were created under one client transaction id, where that is more than one.
    duplicates: Mapping[str, int]


@frozen(kw_only=True)
class LogEntry:
    """One line: `at` in UTC seconds since the epoch, `number` counted from 1."""

    number: int
    at: float
    kind: LogKind
    text: str
    client_transaction_id: str | None = None
    transaction_id: int | None = None
    #: The HTTP status of the answer; None: there was none.
    status: int | None = None
    #: The kind of the fault that befell it, or the error of a notification.
    fault: str | None = None
