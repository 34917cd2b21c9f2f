"""What a merchant does to a payment that exists: confirm it, withdraw it, give it back."""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from .forms import Form, FormBook
from .messages import RefusedError, invalid
from .rules import failing_fields
from .sales import Sale, Sales
from .settings import ACCEPTED
from .transactions import Books, Transaction

__all__ = ["Changes"]


class Changes:
    """Confirms forms, cancels pending sales, reverses what was paid today."""

    def __init__(self, books: Books, sales: Sales, forms: FormBook) -> None:
        self._books = books
        self._sales = sales
        self._forms = forms

    def execute(self, operation: str, body: Mapping[str, object], account: str) -> Transaction:
        """Return the transaction after the change, or raise RefusedError."""
        if faults := failing_fields(operation, body, self._books.settings):
            raise invalid(*faults)
        found = self._find(body, account)
        match operation.partition("_")[0]:
            case "confirm" if isinstance(found, Form) and found.client_transaction_id == body["clientTxId"]:
                self._forms.confirm(found)
                self._books.tally["confirms"] += 1
                return found
            case "cancel" if isinstance(found, Sale) and found.how is None:
                self._sales.decide(found, "cancelled")
                return found
            case "cancel":
                raise RefusedError.of(25, 2029)
            case "reverse" if (
                found and found.state == ACCEPTED and not found.reversal and self._is_today(found)
            ):
                self._books.give_back(found, "merchant")
                return found
        raise RefusedError.of(20)

    def _find(self, body: Mapping[str, object], account: str) -> Transaction | None:
        if isinstance(number := body.get("id"), int):
            found = self._books.find(number)
            return found if found is not None and found.account == account else None
        return next(iter(self._books.find_by_client_id(str(body["clientId"]), account)), None)

    def _is_today(self, found: Transaction) -> bool:
        zone = timezone(timedelta(hours=self._books.settings.utc_offset))
        now = datetime.fromtimestamp(self._books.clock.time(), zone)
        paid = datetime.fromtimestamp(found.decided_at or found.created_at, zone)
        return now.date() == paid.date() and now.hour < self._books.settings.reversal_hour
