"""The books of the service: every transaction by both of its ids, its money, and what was counted."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

from attrs import define, field, fields_dict, frozen

from .clock import ServiceClock, Timetable
from .event_log import EventLog
from .settings import ACCEPTED, PENDING, Settings

# Not 1, so that a position in a list is not taken for an id by luck.
_FIRST_ID: Final = 1001
_PRIVATE: Final = frozenset({"response_url", "details"})


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
    #: Given back by the merchant's Reverse, or by the service because nobody confirmed it.
    reversal: Literal["merchant", "unconfirmed"] | None = None
    #: The result of the notification: "HTTP 200" for any answer with that status, else the error's class name.
    notification: str | None = None
    #: The same of the external notification; "acknowledged" or "duplicate" for an answer in the service's words.
    external_notification: str | None = None
    #: The request's words that a full status repeats, by the service's names.
    details: dict[str, object] = field(factory=dict, repr=False)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether it is paid, and reversed unless it is confirmed."""
        return False

    def as_json(self) -> dict[str, object]:
        """Return what the control routes tell of it: no personal data."""
        return {name: getattr(self, name) for name in fields_dict(Transaction) if name not in _PRIVATE}


@frozen(kw_only=True)
class Counts:
    """Counts of all that the service really executed.

    `requests` is `created` + `prepared` + `refused` + `queries` + `confirms` + `cancelled` + `reversed`; a query of the
    regions is not counted. `collected` are the cents that were paid and not reversed; `confirms` includes repeats.
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
    confirms: int
    cancelled: int
    reversed: int
    reversed_unconfirmed: int
    collected: int
    external_notifications_sent: int
    external_notifications_failed: int
    #: How many sales were created under one client transaction id, where that is more than one.
    duplicates: Mapping[str, int]


class Books:
    """The shared state of all parts of the service: settings, clock, timetable, log, tally, and every transaction."""

    def __init__(self, settings: Settings, clock: ServiceClock) -> None:
        self.settings = settings
        self.clock = clock
        self.timetable = Timetable(clock)
        self.log = EventLog(clock)
        self.tally: Counter[str] = Counter()
        self.created_per_client_id: Counter[str] = Counter()
        self.collected_per_client_id: Counter[str] = Counter()
        self._by_id: dict[int, Transaction] = {}
        self._by_client_id: dict[str, list[Transaction]] = {}

    @property
    def counts(self) -> Counts:
        counted: dict[str, Any] = {name: self.tally[name] for name in fields_dict(Counts)}
        counted["duplicates"] = {one: times for one, times in self.created_per_client_id.items() if times > 1}
        return Counts(**counted)

    def add(self, transaction: Transaction) -> int:
        """Give a transaction its id, from one row of ids for sales and button payments."""
        number = transaction.transaction_id = _FIRST_ID + len(self._by_id)
        self._by_id[number] = transaction
        self._by_client_id.setdefault(transaction.client_transaction_id, []).append(transaction)
        return number

    def find(self, transaction_id: int) -> Transaction | None:
        """Return the transaction, of whatever account."""
        return self._by_id.get(transaction_id)

    def find_by_client_id(self, client_transaction_id: str, account: str) -> list[Transaction]:
        """Return all with this id in one account, newest first."""
        found = self._by_client_id.get(client_transaction_id, [])
        return [one for one in reversed(found) if one.account == account]

    def decide(self, transaction: Transaction, how: str, state: str) -> None:
        """Write down what became of a transaction, and when; the money of an accepted one is the merchant's."""
        transaction.how, transaction.state = how, state
        transaction.decided_at = self.clock.time()
        if state == ACCEPTED:
            self._collect(transaction, transaction.amount)

    def give_back(self, transaction: Transaction, why: Literal["merchant", "unconfirmed"]) -> None:
        """Reverse an accepted transaction."""
        transaction.state, transaction.reversal = self.settings.states["reversed"], why
        self.tally["reversed" if why == "merchant" else "reversed_unconfirmed"] += 1
        self._collect(transaction, -transaction.amount)

    def _collect(self, transaction: Transaction, cents: int) -> None:
        self.tally["collected"] += cents
        self.collected_per_client_id[transaction.client_transaction_id] += cents
