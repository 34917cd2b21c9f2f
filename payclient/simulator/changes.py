"""What a merchant does to a payment that exists: confirm it, withdraw it, give it back."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from .clock import Clock
from .forms import Form, Forms
from .refusals import Refusal, refusal, validation_refusal
from .rules import failing_reference
from .service import Sale, Service
from .settings import ACCEPTED
from .transactions import Transaction

__all__ = ["CHANGES", "Changes"]

_ID: Final[Mapping[str, type]] = {"id": int}
_CLIENT_ID: Final[Mapping[str, type]] = {"clientId": str}

#: The fields of each operation's body; the confirmation calls the merchant's id by a name of its own.
CHANGES: Final[Mapping[str, Mapping[str, type]]] = {
    "confirm": {"id": int, "clientTxId": str},
    "cancel": _ID,
    "cancel_by_client_id": _CLIENT_ID,
    "reverse": _ID,
    "reverse_by_client_id": _CLIENT_ID,
}


class Changes:
    """Confirms forms, cancels pending sales, reverses what was paid today."""

    def __init__(self, service: Service, forms: Forms, clock: Clock) -> None:
        self._service = service
        self._settings = service.settings
        self._forms = forms
        self._clock = clock
        self._tally: Counter[str] = service.tally

    def execute(self, operation: str, body: Mapping[str, object], account: str) -> Transaction | Refusal:
        """The transaction after the change, or the reason why there was none."""
        faults = failing_reference(body, CHANGES[operation])
        if faults:
            return validation_refusal(faults)
        self._service.agenda.run_due()
        found = self._find(body, account)
        match operation.partition("_")[0]:
            case "confirm":
                return self._confirm(found, body)
            case "cancel":
                return self._cancel(found)
            case _:
                return self._reverse(found)

    def _confirm(self, found: Transaction | None, body: Mapping[str, object]) -> Transaction | Refusal:
        if not isinstance(found, Form) or found.client_transaction_id != body["clientTxId"]:
            return refusal(20)
        self._forms.confirm(found)
        self._tally["confirms"] += 1
        return found

    def _cancel(self, found: Transaction | None) -> Transaction | Refusal:
        if not isinstance(found, Sale) or found.how is not None:
            return refusal(25, 2029)
        self._service.cancel(found)
        return found

    def _reverse(self, found: Transaction | None) -> Transaction | Refusal:
        if (
            found is None
            or found.state != ACCEPTED
            or found.reversal is not None
            or not self._is_today(found)
        ):
            return refusal(20)
        self._service.transactions.give_back(found, self._settings.state_after_reverse, "merchant")
        self._tally["reversed"] += 1
        return found

    def _find(self, body: Mapping[str, object], account: str) -> Transaction | None:
        transactions = self._service.transactions
        if (number := body.get("id")) is not None:
            return transactions.find(number, account) if isinstance(number, int) else None
        return next(iter(transactions.find_by_client_id(str(body["clientId"]), account)), None)

    def _is_today(self, found: Transaction) -> bool:
        zone = timezone(timedelta(hours=self._settings.utc_offset))
        now = datetime.fromtimestamp(self._clock.time(), zone)
        paid = datetime.fromtimestamp(found.decided_at or found.created_at, zone)
        return now.date() == paid.date() and now.hour < self._settings.reversal_hour
