"""The answer to a status query and what the external notification says: one table of fields for both."""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from .forms import Form
from .settings import ACCEPTED, CANCELLED, PENDING, Settings
from .transactions import Transaction

__all__ = ["external_notification", "status_of"]

_STATUS_CODES: Final = {PENDING: 1, CANCELLED: 2, ACCEPTED: 3}

#: What a simulated payment is made with.
_CARD: Final = {
    "cardType": "Credit",
    "bin": "530219",
    "lastDigits": "XX17",
    "deferredCode": "00000000",
    "deferred": False,
    "cardBrandCode": "51",
    "cardBrand": "Mastercard Simulada",
    "messageCode": 0,
}

#: Why a transaction is cancelled, in `message`; the service's own texts are not published.
_REASONS: Final = {
    "rejected": "La transacción fue rechazada por el cliente",
    "declined": "La transacción fue rechazada por el banco",
    "expired": "La transacción ha expirado",
    "cancelled": "La transacción fue cancelada por el comercio",
    "merchant": "La transacción fue reversada por el comercio",
    "unconfirmed": "La transacción fue reversada porque no se confirmó",
}

#: Fields of the external notification, each the status field of that name with a small first letter.
_EXTERNAL: Final = (
    "Amount", "AuthorizationCode", "ClientTransactionId", "StatusCode", "TransactionStatus", "StoreId", "PhoneNumber",
    "Email", "CardType", "Bin", "DeferredCode", "DeferredMessage", "Deferred", "CardBrandCode", "CardBrand", "Document",
    "Currency", "Taxes", "Reference", "AdditionalData", "Products", "TransactionId",
)  # fmt: skip


def status_of(transaction: Transaction, settings: Settings) -> dict[str, object]:
    """The status object of a transaction, short or full as the settings say."""
    state = _state(transaction, settings)
    status: dict[str, object] = {
        "transactionId": transaction.transaction_id,
        "clientTransactionId": transaction.client_transaction_id,
        "amount": transaction.amount,
        "currency": transaction.currency,
        settings.state_field: settings.state_words.get(state, state),
        "statusCode": _STATUS_CODES[state],
    }
    if not settings.full_status:
        return status
    status |= _full(transaction, settings, state)
    return status if settings.status_nulls else {k: v for k, v in status.items() if v is not None}


def external_notification(transaction: Transaction, settings: Settings) -> dict[str, object]:
    """The body of an approved payment's external notification; it has every field, absent ones as null."""
    status: Mapping[str, object] = {
        **status_of(transaction, settings),
        **_full(transaction, settings, ACCEPTED),
        "transactionStatus": settings.state_words.get(ACCEPTED, ACCEPTED),
        "statusCode": _STATUS_CODES[ACCEPTED],
        "storeId": transaction.store_id,
        "products": [],
    }
    return {name: status.get(name[0].lower() + name[1:]) for name in _EXTERNAL}


def _full(transaction: Transaction, settings: Settings, state: str) -> dict[str, object]:
    is_form = isinstance(transaction, Form)
    is_accepted = state == ACCEPTED
    moment = transaction.decided_at or transaction.created_at
    local = datetime.fromtimestamp(moment, timezone(timedelta(hours=settings.utc_offset)))
    return {
        **transaction.details,
        "authorizationCode": f"W{transaction.transaction_id}" if is_accepted else None,
        "message": None
        if state != CANCELLED
        else _REASONS.get(transaction.reversal or transaction.how or ""),
        # A form's is the name of the card's holder.
        "optionalParameter4": "CLIENTE SIMULADO" if is_form and is_accepted else None,
        "storeName": settings.store_name,
        "regionIso": settings.region,
        "date": local.replace(tzinfo=None).isoformat(timespec="milliseconds"),
        "transactionType": "Classic",
        "taxes": [],
        **(_CARD if is_accepted else {}),
    }


def _state(transaction: Transaction, settings: Settings) -> str:
    if (
        settings.confirm_window is not None
        and isinstance(transaction, Form)
        and transaction.confirmed_at is None
        and transaction.state == ACCEPTED
        and transaction.reversal is None
    ):
        return settings.state_until_confirmed
    return transaction.state
