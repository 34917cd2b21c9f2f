"""Sales without HTTP: who has a pending push where, and what decides it (§3)."""

from collections.abc import Mapping
from typing import Final

from attrs import define, field

from .answers import Answers
from .messages import RefusalError
from .notifications import Notifications
from .rules import check
from .settings import ACCEPTED, CANCELLED
from .transactions import Books, Transaction

_REPEATED: Final = ("reference", "optionalParameter1", "optionalParameter2", "optionalParameter3")


@define(eq=False, kw_only=True)
class Sale(Transaction):
    """One created sale; `how` is approved, rejected, expired or cancelled."""

    transaction_id: int = 0
    customer: str = field(repr=False)
    expires_at: float
    #: Whether the customer has put the phone away; what the crowd had in mind is void.
    ignored: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the transaction, with the last digits of its customer's phone or name."""
        more = {"customer": f"…{self.customer[-3:]}", "expires_at": self.expires_at, "ignored": self.ignored}
        return Transaction.as_json(self) | more

    @property
    def lane(self) -> tuple[str, str | None, str]:
        """Where the customer may have one pending sale (§7.3)."""
        return self.account, self.store_id, self.customer


class Sales:
    """Creates sales, and decides them by hand, by the customers' `answers`, or by expiry."""

    def __init__(self, books: Books, notifications: Notifications, answers: Answers | None) -> None:
        self.by_id: dict[int, Sale] = {}
        #: The customers of the sales to come; None: nobody answers by itself.
        self.answers = answers
        self._books = books
        self._notifications = notifications
        self._pending: set[tuple[str, str | None, str]] = set()

    def create(self, body: Mapping[str, object], account: str = "") -> Sale:
        """Create a pending sale with its push on the way, or raise RefusalError."""
        books, window = self._books, self._books.settings.sale_window
        check("sale", body, books.settings)
        sale = self._read(body, account)
        code = books.settings.duplicate_code
        if code is not None and books.find_by_client_id(sale.client_transaction_id, account):
            raise RefusalError.of(code)
        if sale.lane in self._pending:
            raise RefusalError.of(22, 2061)
        self.by_id[books.add(sale)] = sale
        self._pending.add(sale.lane)
        books.created_per_client_id[sale.client_transaction_id] += 1
        books.tally.update(("created", "pending"))
        books.timetable.after(window, self._happen, sale, "expired")
        if self.answers is not None:
            answer, delay = self.answers.draw(sale.client_transaction_id)
            if answer != "ignored" and delay < window:  # at the very end of the window the expiry wins
                books.timetable.after(delay, self._happen, sale, answer)
        return sale

    def meant(self, sale: int | str) -> Sale:
        """Return the sale of a transaction id, or the newest of a client transaction id; LookupError for neither."""
        self._books.timetable.run_due()
        if isinstance(sale, int) and sale in self.by_id:
            return self.by_id[sale]
        for one in reversed(self.by_id.values()):
            if one.client_transaction_id == sale:
                return one
        raise LookupError(f"no sale has the id {sale!a}")

    def pending(self, sale: int | str) -> Sale:
        """Return the sale that is meant; ValueError if it is decided."""
        found = self.meant(sale)
        if found.how is not None:
            raise ValueError(f"sale {found.transaction_id} is not pending: it was {found.how}")
        return found

    def decide(self, sale: Sale, how: str) -> None:
        """Decide a pending sale, and send what follows from it."""
        books = self._books
        self._pending.discard(sale.lane)
        books.tally["pending"] -= 1
        books.tally[how] += 1
        books.decide(sale, how, books.settings.states.get(how, CANCELLED))  # §3: an expired one is Cancelado
        books.log.write("customer", how, sale.client_transaction_id, sale.transaction_id)
        if how in ("approved", "rejected"):  # §6: nothing is sent on expiry
            self._notifications.answered(sale)
            if sale.state == ACCEPTED:
                self._notifications.tell_external(sale)

    def _read(self, body: Mapping[str, object], account: str) -> Sale:
        # The types hold: `check` passed.
        settings, now = self._books.settings, self._books.clock.time()
        amount, phone, store = body["amount"], body.get("phoneNumber"), body.get("storeId")
        assert isinstance(amount, int)  # noqa: S101  (for mypy)
        prefix = str(body["countryCode"]).removeprefix("+")
        by_name = settings.nick_name_flag is not None and body.get(settings.nick_name_flag) is True
        details = {name: body.get(name) for name in _REPEATED}
        # With the country code and without the local zero.
        details["phoneNumber"] = None if phone is None else prefix + str(phone).removeprefix("0")
        return Sale(
            client_transaction_id=str(body["clientTransactionId"]),
            account=account,
            customer=f"nick name {body['nickName']}" if by_name else f"{prefix} {phone}",
            store_id=None if store is None else str(store),
            amount=amount,
            currency=str(body.get("currency") or "USD"),
            response_url=str(body.get("responseUrl") or "") or None,
            created_at=now,
            expires_at=now + settings.sale_window,
            details={} if settings.status_detail == "short" else details,
        )

    def _happen(self, sale: Sale, how: str) -> None:
        if sale.how is None and (how == "expired" or not sale.ignored):
            self.decide(sale, how)
