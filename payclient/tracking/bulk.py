"""What a batch needs beside a tracker's public face: many look-ups at once, lanes, and sends in its own tasks."""

from __future__ import annotations

from collections.abc import Sequence

from payclient.models import SaleRequest
from payclient.tracking.attempts import Attempts
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.poller import Poller

__all__: list[str] = []


class Bulk:
    """One tracker, as a batch uses it."""

    def __init__(self, attempts: Attempts, poller: Poller) -> None:
        self._attempts = attempts
        self._poller = poller

    @property
    def total_timeout(self) -> float:
        """Seconds within which a request ends, as the session was told."""
        return self._poller.policy.total_timeout

    @property
    def renews_token(self) -> bool:
        """Whether the session fetches a fresh token after a 401."""
        return self._poller.session.renews_token

    @property
    def are_shared(self) -> bool:
        """Whether other processes may have this ledger open."""
        return self._poller.asks.leases is not None

    async def find(self, client_transaction_ids: Sequence[str]) -> dict[str, PendingSale]:
        """Return the sales of those ids that the ledger has."""
        records = await self._poller.asks.ledger.get_many(client_transaction_ids)
        return {identifier: self._poller.handle(record) for identifier, record in records.items()}

    def is_same(self, request: SaleRequest, purchase: str | None, pending: PendingSale) -> bool:
        """Return whether a sale was made for this purchase with this content, by the digest that the ledger keeps."""
        same = pending.digest == self._attempts.for_sale(request).digest
        return same and purchase in (None, pending.outcome.purchase)

    async def send(self, request: SaleRequest, purchase: str | None, *, is_new: bool) -> PendingSale:
        """Do what `Tracker.sale` does. `is_new`: the ledger had no such id just now."""
        self._poller.asks.check_open(request.client_transaction_id)
        record = await self._attempts.send(self._attempts.for_sale(request, purchase, is_new=is_new))
        return self._poller.handle(record)

    def lane(self, request: SaleRequest) -> bytes:
        """Return a keyed digest of the customer at the store, who has one open sale at a time (§7.3, error 2061)."""
        return self._attempts.lane(request)
