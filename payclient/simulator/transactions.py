"""Every transaction of the service, a sale or a decided form, by both of its ids."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, Protocol

__all__ = ["Reversal", "Transaction", "Transactions"]

#: Who gave a payment back: the merchant by Reverse, or the service because nobody confirmed it.
Reversal = Literal["merchant", "unconfirmed"]

# Not 1, so that a position in a list is not taken for an id by luck.
_FIRST_ID = 1001


class Transaction(Protocol):
    """What the status of a sale and that of a button payment have in common."""

    state: str
    reversal: Reversal | None
    #: Whose it is; nobody else's token finds it.
    account: str
    external_notification: str | None

    @property
    def transaction_id(self) -> int | None: ...
    @property
    def client_transaction_id(self) -> str: ...
    @property
    def store_id(self) -> str | None: ...
    @property
    def amount(self) -> int: ...
    @property
    def currency(self) -> str: ...
    @property
    def how(self) -> str | None: ...
    @property
    def created_at(self) -> float: ...
    @property
    def decided_at(self) -> float | None: ...
    @property
    def details(self) -> Mapping[str, object]: ...


class Transactions:
    """Gives transaction ids, one row of them for sales and button payments, and finds what has them."""

    def __init__(self) -> None:
        self._by_id: dict[int, Transaction] = {}
        self._by_client_id: dict[str, list[Transaction]] = {}
        #: Cents that were paid and not given back, in all and by client transaction id.
        self.collected = 0
        self.collected_per_client_id: Counter[str] = Counter()

    @property
    def next_id(self) -> int:
        return _FIRST_ID + len(self._by_id)

    def add(self, transaction_id: int, transaction: Transaction) -> None:
        self._by_id[transaction_id] = transaction
        self._by_client_id.setdefault(transaction.client_transaction_id, []).append(transaction)

    def find(self, transaction_id: int, account: str) -> Transaction | None:
        found = self._by_id.get(transaction_id)
        return found if found is not None and found.account == account else None

    def find_by_client_id(self, client_transaction_id: str, account: str) -> list[Transaction]:
        """All with this id in one account, newest first."""
        found = self._by_client_id.get(client_transaction_id, [])
        return [one for one in reversed(found) if one.account == account]

    def collect(self, transaction: Transaction) -> None:
        """The money of an accepted transaction is the merchant's."""
        self._move(transaction, transaction.amount)

    def give_back(self, transaction: Transaction, state: str, why: Reversal) -> None:
        """Reverse an accepted transaction, which then is in this state."""
        transaction.state, transaction.reversal = state, why
        self._move(transaction, -transaction.amount)

    def _move(self, transaction: Transaction, cents: int) -> None:
        self.collected += cents
        self.collected_per_client_id[transaction.client_transaction_id] += cents
