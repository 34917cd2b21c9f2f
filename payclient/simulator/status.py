"""The answer to a status query and the body of the external notification: one table of fields for both."""

from collections.abc import Mapping
from typing import Final

from .books import Books
from .messages import MESSAGE_CODES, Language, say
from .settings import ACCEPTED, CANCELLED, PENDING, Settings
from .transactions import Form, Transaction

_STATUS_CODES: Final = {PENDING: 1, CANCELLED: 2, ACCEPTED: 3}

#: The card of a simulated payment, and its holder's data unless the request has them.
_CARD: Final = {
    "email": "cliente@example.com",
    "document": "1799999999",
    "optionalParameter4": "CLIENTE SIMULADO",
    "cardType": "Credit",
    "bin": "530219",
    "lastDigits": "XX17",
    "deferredCode": "00000000",
    "deferred": False,
    "cardBrandCode": "51",
    "cardBrand": "Mastercard Simulada",
}
_STORE: Final = "tienda-simulada"
#: Where it is made.
_SHOP: Final = {"storeName": "Tienda simulada", "regionIso": "EC", "transactionType": "Classic"}

#: Fields of the external notification, each the status field of that name with a small first letter.
_EXTERNAL: Final = (
    "Amount", "AuthorizationCode", "ClientTransactionId", "StatusCode", "TransactionStatus", "StoreId", "PhoneNumber",
    "Email", "CardType", "Bin", "DeferredCode", "DeferredMessage", "Deferred", "CardBrandCode", "CardBrand", "Document",
    "Currency", "Taxes", "Reference", "AdditionalData", "Products", "TransactionId",
)  # fmt: skip


def status_of(transaction: Transaction, books: Books, language: Language) -> dict[str, object]:
    """Return the status object of a transaction, short or full by the settings."""
    settings = books.settings
    awaits = isinstance(transaction, Form) and transaction.awaits_confirmation
    state = settings.states["unconfirmed"] if awaits and settings.confirm_window else transaction.state
    status = _short(transaction, settings, state)
    if settings.status_detail == "full":
        status |= _full(transaction, books, state, language)
    return {name: value for name, value in status.items() if value is not None or settings.writes_absent}


def external_notification(transaction: Transaction, books: Books) -> Mapping[str, object]:
    """Return the body of an approved payment's external notification; all fields are in it, absent ones as null."""
    status: Mapping[str, object] = {
        **_short(transaction, books.settings, ACCEPTED),
        **_full(transaction, books, ACCEPTED, "es"),
        "transactionStatus": books.settings.state_words.get(ACCEPTED, ACCEPTED),
        "storeId": transaction.store_id or _STORE,
        "products": [],
    }
    return {name: status.get(name[0].lower() + name[1:]) for name in _EXTERNAL}


def _short(transaction: Transaction, settings: Settings, state: str) -> dict[str, object]:
    return {
        "transactionId": transaction.transaction_id,
        "clientTransactionId": transaction.client_transaction_id,
        "amount": transaction.amount,
        "currency": transaction.currency,
        settings.state_field: settings.state_words.get(state, state),
        "statusCode": _STATUS_CODES[state],
    }


def _full(transaction: Transaction, books: Books, state: str, language: Language) -> dict[str, object]:
    """Return the fields that a full status adds to `_short`."""
    why = transaction.reversal or transaction.reason or transaction.how or ""
    message = say(why, language) if state == CANCELLED and why else None
    shows_card = transaction.how not in (None, "expired", "cancelled")
    given = {name: value for name, value in transaction.details.items() if value is not None}
    moment = transaction.decided_at or transaction.created_at
    return {
        **transaction.details,
        **_SHOP,
        # The request's own values replace those of the simulated card.
        **(_CARD | given if shows_card else {}),
        "authorizationCode": f"W{transaction.transaction_id}" if shows_card else None,
        "message": message,
        "messageCode": 0 if message is None else MESSAGE_CODES[why],
        "date": books.local_time(moment).replace(tzinfo=None).isoformat(timespec="milliseconds"),
        "taxes": [],
    }
