"""The answer to a status query and the body of the external notification: one table of fields for both."""

from collections.abc import Mapping
from typing import Final

from .books import Books
from .messages import MESSAGE_CODES, Language, say
from .settings import ACCEPTED, CANCELLED, PENDING
from .transactions import Form, Transaction

_STATUS_CODES: Final = {PENDING: 1, CANCELLED: 2, ACCEPTED: 3}

#: The fields of the request that a status repeats.
_REPEATED: Final = (
    "reference", "clientUserId", "optionalParameter1", "optionalParameter2", "optionalParameter3", "optionalParameter4",
    "phoneNumber", "email", "document",
)  # fmt: skip
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
    """Return the status object of a transaction, without absent values."""
    settings = books.settings
    awaits = isinstance(transaction, Form) and transaction.awaits_confirmation
    state = settings.states["unconfirmed"] if awaits and settings.confirm_window else transaction.state
    status = _full_status(transaction, books, state, language)
    return {name: value for name, value in status.items() if value is not None}


def external_notification(transaction: Transaction, books: Books) -> Mapping[str, object]:
    """Return the body of an approved payment's external notification; all fields are in it, absent ones as null."""
    status: Mapping[str, object] = {
        **_full_status(transaction, books, ACCEPTED, "es"),
        "transactionStatus": books.settings.state_words.get(ACCEPTED, ACCEPTED),
        "storeId": transaction.store_id or _STORE,
        "products": [],
    }
    return {name: status.get(name[0].lower() + name[1:]) for name in _EXTERNAL}


def _full_status(transaction: Transaction, books: Books, state: str, language: Language) -> dict[str, object]:
    settings, how = books.settings, transaction.how
    texts = {
        "document": transaction.texts.get("documentId", ""),
        "optionalParameter3": transaction.texts.get("optionalParameter", ""),
        **transaction.texts,
        "phoneNumber": transaction.texts.get("phoneNumber", "").removeprefix("+"),
    }
    why = transaction.reversal or transaction.reason or how or ""
    is_explained = state == CANCELLED and why in MESSAGE_CODES
    shows_card = how not in (None, "expired", "cancelled")
    date = books.local_time(transaction.decided_at or transaction.created_at)
    return {
        "transactionId": transaction.transaction_id,
        "clientTransactionId": transaction.client_transaction_id,
        "amount": transaction.amount,
        "currency": transaction.currency,
        settings.state_field: settings.state_words.get(state, state),
        "statusCode": _STATUS_CODES[state],
        **_SHOP,
        **(_CARD if shows_card else {}),
        # The request's own values replace those of the simulated card.
        **{name: texts[name] for name in _REPEATED if texts.get(name)},
        "authorizationCode": f"W{transaction.transaction_id}" if shows_card else None,
        "message": say(why, language) if is_explained else None,
        "messageCode": MESSAGE_CODES[why] if is_explained else 0,
        "date": date.replace(tzinfo=None).isoformat(timespec="milliseconds"),
        "taxes": [],
    }
