"""Every transaction of the service, a sale or a decided form, by both of its ids."""

from typing import Protocol

__all__ = ["Transaction", "Transactions"]

# Not 1, so that a position in a list is not taken for an id by luck.
_FIRST_ID = 1001


class Transaction(Protocol):
    """What the status of a sale and that of a button payment have in common."""

    @property
    def transaction_id(self) -> int | None: ...
    @property
    def client_transaction_id(self) -> str: ...
    @property
    def amount(self) -> int: ...
    @property
    def currency(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def how(self) -> str | None: ...


class Transactions:
    """Gives transaction ids, one row of them for sales and button payments, and finds what has them."""

    def __init__(self) -> None:
        self._by_id: dict[int, Transaction] = {}
        self._by_client_id: dict[str, list[Transaction]] = {}

    @property
    def next_id(self) -> int:
        return _FIRST_ID + len(self._by_id)

    def add(self, transaction_id: int, transaction: Transaction) -> None:
        self._by_id[transaction_id] = transaction
        self._by_client_id.setdefault(transaction.client_transaction_id, []).append(transaction)

    def find(self, transaction_id: int) -> Transaction | None:
        return self._by_id.get(transaction_id)

    def find_by_client_id(self, client_transaction_id: str) -> list[Transaction]:
        """All with this id, newest first."""
        return self._by_client_id.get(client_transaction_id, [])[::-1]
