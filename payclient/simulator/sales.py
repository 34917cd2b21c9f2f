"""Sales without HTTP: who has a pending push where, and what decides it (§3)."""

from collections.abc import Mapping
from typing import Final

from attrs import define, field

from .answers import Answers
from .messages import RefusedError
from .notifications import Notifications
from .rules import check
from .settings import ACCEPTED, CANCELLED
from .transactions import Books, Transaction

__all__ = ["Sale", "Sales"]

_REPEATED: Final = ("reference", "optionalParameter1", "optionalParameter2", "optionalParameter3")


@define(eq=False, kw_only=True)
class Sale(Transaction):
    """One created sale; `how` is approved, rejected, expired or cancelled."""

    transaction_id: int = 0
    customer: str = field(repr=False)
    expires_at: float
    #: Whether the customer has put the phone away; what the crowd had in mind is void.
    ignored: bool = False
    details: Mapping[str, object] = field(factory=dict, repr=False)

    def as_json(self) -> dict[str, object]:
        """Return the transaction, with the last digits of its customer's phone or name."""
        return {
            **Transaction.as_json(self),
            "customer": f"…{self.customer[-3:]}",
            "expires_at": self.expires_at,
            "ignored": self.ignored,
        }


class Sales:
    """Creates sales, and decides them by hand, by the customers' `answers`, or by expiry."""

    def __init__(self, books: Books, notifications: Notifications, answers: Answers | None) -> None:
        self.by_id: dict[int, Sale] = {}
        #: What the customers of the sales to come do; None: nobody does anything by itself.
        self.answers = answers
        self._books = books
        self._notifications = notifications
        self._pending: set[tuple[str, str | None, str]] = set()

    def create(self, body: Mapping[str, object], account: str = "") -> Sale:
        """Create a pending sale with its push on the way, or raise RefusedError."""
        books, settings = self._books, self._books.settings
        check("sale", body, settings)
        sale = self._read(body, account)
        code = settings.duplicate_code
        if code is not None and books.find_by_client_id(sale.client_transaction_id, account):
            raise RefusedError.of(code)
        if _lane(sale) in self._pending:
            raise RefusedError.of(22, 2061)  # §7.3
        self.by_id[books.add(sale)] = sale
        self._pending.add(_lane(sale))
        books.created_per_client_id[sale.client_transaction_id] += 1
        books.tally.update(("created", "pending"))
        books.timetable.after(settings.sale_window, self._happen, sale, "expired")
        if self.answers is not None:
            answer, delay = self.answers.draw(sale.client_transaction_id)
            # At the very end of the window the expiry wins.
            if answer != "ignored" and delay < settings.sale_window:
                books.timetable.after(delay, self._happen, sale, answer)
        return sale

    def meant(self, sale: int | str) -> Sale:
        """Return the sale of a transaction id, or the newest of a client transaction id; LookupError for neither."""
        self._books.timetable.run_due()
        if isinstance(sale, int):
            if sale in self.by_id:
                return self.by_id[sale]
            raise LookupError(f"no sale has the transaction id {sale}")
        for one in reversed(self.by_id.values()):
            if one.client_transaction_id == sale:
                return one
        raise LookupError(f"no sale has the client transaction id {sale!a}")

    def pending(self, sale: int | str) -> Sale:
        """Return the sale that is meant; ValueError if it is decided."""
        found = self.meant(sale)
        if found.how is not None:
            raise ValueError(f"sale {found.transaction_id} is not pending: it was {found.how}")
        return found

    def decide(self, sale: Sale, how: str) -> None:
        """Decide a pending sale, and send what follows from it."""
        books = self._books
        self._pending.discard(_lane(sale))
        books.tally["pending"] -= 1
        books.tally[how] += 1
        books.decide(sale, how, books.settings.states.get(how, CANCELLED))  # §3: an expired one is Cancelado
        books.log.write(
            "customer",
            how,
            client_transaction_id=sale.client_transaction_id,
            transaction_id=sale.transaction_id,
        )
        if how in ("approved", "rejected"):  # §6: nothing is sent on expiry
            self._notifications.answered(sale)
            if sale.state == ACCEPTED:
                self._notifications.tell_external(sale)

    def _read(self, body: Mapping[str, object], account: str) -> Sale:
        # The types hold: `check` passed.
        settings, now = self._books.settings, self._books.clock.time()
        amount, phone, response_url = body["amount"], body.get("phoneNumber"), body.get("responseUrl")
        assert isinstance(amount, int)  # noqa: S101  (for mypy)
        prefix = str(body["countryCode"]).removeprefix("+")
        by_name = settings.nick_name_flag is not None and body.get(settings.nick_name_flag) is True
        # With the country code and without the local zero, as a status tells it.
        full_phone = None if phone is None else prefix + str(phone).removeprefix("0")
        is_full = settings.status_detail != "short"
        return Sale(
            client_transaction_id=str(body["clientTransactionId"]),
            account=account,
            customer=f"nick name {body['nickName']}" if by_name else f"{prefix} {phone}",
            store_id=None if (store := body.get("storeId")) is None else str(store),
            amount=amount,
            currency=str(body.get("currency") or "USD"),
            response_url=str(response_url) if response_url else None,
            created_at=now,
            expires_at=now + settings.sale_window,
            details={"phoneNumber": full_phone, **{name: body.get(name) for name in _REPEATED}}
            if is_full
            else {},
        )

    def _happen(self, sale: Sale, how: str) -> None:
        if sale.how is None and (how == "expired" or not sale.ignored):
            self.decide(sale, how)


def _lane(sale: Sale) -> tuple[str, str | None, str]:
    return sale.account, sale.store_id, sale.customer
