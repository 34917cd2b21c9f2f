"""Changes of a payment that exists: the merchant confirms it, withdraws it, gives it back."""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from .forms import Form, FormBook
from .messages import RefusalError
from .rules import check
from .sales import Sale, Sales
from .settings import ACCEPTED
from .transactions import Books, Transaction


def change(
    operation: str, body: Mapping[str, object], account: str, books: Books, sales: Sales, forms: FormBook
) -> Transaction:
    """Return the transaction after the change, or raise RefusalError."""
    check(operation, body, books.settings)
    if isinstance(number := body.get("id"), int):
        one = books.find(number)
        found = one if one is not None and one.account == account else None
    else:
        found = next(iter(books.find_by_client_id(str(body["clientId"]), account)), None)
    match operation.partition("_")[0]:
        case "confirm" if isinstance(found, Form) and found.client_transaction_id == body["clientTxId"]:
            forms.confirm(found)
            books.tally["confirms"] += 1
        case "cancel" if isinstance(found, Sale) and found.how is None:
            sales.decide(found, "cancelled")
        case "cancel":
            raise RefusalError.of(25, 2029)
        case "reverse" if (
            found and found.state == ACCEPTED and not found.reversal and _is_today(found, books)
        ):
            books.give_back(found, "merchant")
        case _:
            raise RefusalError.of(20)
    return found


def _is_today(found: Transaction, books: Books) -> bool:
    zone = timezone(timedelta(hours=books.settings.utc_offset))
    now = datetime.fromtimestamp(books.clock.time(), zone)
    paid = datetime.fromtimestamp(found.decided_at or found.created_at, zone)
    return now.date() == paid.date() and now.hour < books.settings.reversal_hour
