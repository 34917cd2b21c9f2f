"""The requests of the service, as frozen attrs classes.

Field names are the service's in snake case. A request checks itself when it is made, all faults at once, and
never shows a person's data in its `repr`. What only a profile knows is checked by the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from payclient.amounts import COMPONENTS, MAX_CENTS
from payclient.errors import ConfigurationError, ErrorDetail, InvalidRequestError
from payclient.validation import (
    CALLING_CODE,
    COUNTRY,
    CURRENCY,
    DOTS,
    FULL_PHONE,
    INTS,
    MAX_TEXT,
    TEXTS,
    Faults,
    fits,
    id_fault,
)

__all__: list[str] = [
    "BillTo",
    "FormLinks",
    "LineItem",
    "Notification",
    "Order",
    "PrepareRequest",
    "PrepareResult",
    "SaleRequest",
    "SaleResult",
    "StatusReport",
    "derive_id",
]


def private(default: Any = attrs.NOTHING) -> Any:
    """Declare a field that holds a person's data or a secret, and so never shows in `repr`."""
    return attrs.field(default=default, repr=False)


# --- §2.4


@attrs.frozen(kw_only=True)
class BillTo:
    """Billing data of the customer (§2.4). Every field may be left out."""

    bill_to_id: int | None = None
    address1: str | None = private(None)
    address2: str | None = private(None)
    #: ISO 3166-1 alpha-2, two capitals.
    country: str | None = None
    state: str | None = private(None)
    locality: str | None = private(None)
    first_name: str | None = private(None)
    last_name: str | None = private(None)
    #: `+`, country code and number.
    phone_number: str | None = private(None)
    email: str | None = private(None)
    postal_code: str | None = private(None)
    customer_id: str | None = private(None)
    ip_address: str | None = private(None)

    def __attrs_post_init__(self) -> None:
        a, b, c, d, e, f = (
            self.address1,
            self.address2,
            self.state,
            self.locality,
            self.first_name,
            self.last_name,
        )
        g, h, i, j = self.email, self.postal_code, self.customer_id, self.ip_address
        country, phone, number = self.country, self.phone_number, self.bill_to_id
        if (
            {
                a.__class__, b.__class__, c.__class__, d.__class__, e.__class__, f.__class__, g.__class__,
                h.__class__, i.__class__, j.__class__, country.__class__, phone.__class__,
            } <= TEXTS
            and (texts := f"{a}{b}{c}{d}{e}{f}{g}{h}{i}{j}").isprintable()
            and len(texts) <= MAX_TEXT
            and (country is None or COUNTRY.fullmatch(country))
            and (phone is None or FULL_PHONE.fullmatch(phone))
            and (number is None or (number.__class__ is int and -MAX_CENTS <= number <= MAX_CENTS))
        ):  # fmt: skip
            return
        faults = Faults(self)
        faults.text(*_BILL_TO_TEXTS)
        faults.integer("bill_to_id")
        faults.pattern("country", COUNTRY, "is two capital letters (ISO 3166-1)")
        faults.pattern("phone_number", FULL_PHONE, "is + country code and number")
        faults.report()


_BILL_TO_TEXTS = tuple(field.name for field in attrs.fields(BillTo) if field.name != "bill_to_id")


@attrs.frozen(kw_only=True)
class LineItem:
    """One item of an order (§2.4); prices are cents. Every field may be left out."""

    product_name: str | None = None
    unit_price: int | None = None
    quantity: int | None = None
    total_amount: int | None = None
    tax_amount: int | None = None
    product_sku: str | None = None
    product_description: str | None = None

    def __attrs_post_init__(self) -> None:
        name, sku, description = self.product_name, self.product_sku, self.product_description
        a, b, c, d = self.unit_price, self.total_amount, self.tax_amount, self.quantity
        if (
            {name.__class__, sku.__class__, description.__class__} <= TEXTS
            and (texts := f"{name}{sku}{description}").isprintable()
            and len(texts) <= MAX_TEXT
            and {a.__class__, b.__class__, c.__class__, d.__class__} <= INTS
            and (a is None or 0 <= a <= MAX_CENTS) and (b is None or 0 <= b <= MAX_CENTS)
            and (c is None or 0 <= c <= MAX_CENTS) and (d is None or 0 <= d <= MAX_CENTS)
        ):  # fmt: skip
            return
        faults = Faults(self)
        faults.text("product_name", "product_sku", "product_description")
        faults.cents("unit_price", "total_amount", "tax_amount")
        faults.integer("quantity")
        faults.report()


def _items(items: Iterable[LineItem]) -> tuple[LineItem, ...]:
    if items.__class__ is tuple:
        return items
    try:
        return tuple(items)
    except TypeError:
        return (None,)  # type: ignore[return-value]  # no item: the check names it


@attrs.frozen(kw_only=True)
class Order:
    """Billing data and items (§2.4)."""

    bill_to: BillTo | None = None
    line_items: tuple[LineItem, ...] = attrs.field(default=(), converter=_items)

    def __attrs_post_init__(self) -> None:
        good = self.bill_to is None or self.bill_to.__class__ is BillTo
        for item in self.line_items:
            good = good and item.__class__ is LineItem
        if good:
            return
        faults = Faults(self)
        faults.instance("bill_to", BillTo)
        if any(type(item) is not LineItem for item in self.line_items):
            faults.add("line_items", "are LineItem objects")
        faults.report()


# --- §2.2, §2.3


@attrs.frozen(kw_only=True)
class SaleRequest:
    """Charge a wallet user by a push request (§2.2). All amounts are cents.

    `amount` is the sum of its parts unless given; given, it must equal it. Raises `InvalidRequestError` with
    every fault at once.
    """

    phone_number: str | None = private(None)
    #: Country calling code (E.164), digits only.
    country_code: str
    currency: str
    client_transaction_id: str
    amount: int = attrs.field(default=None)  # an int from __attrs_post_init__ on
    amount_without_tax: int | None = None
    amount_with_tax: int | None = None
    tax: int | None = None
    service: int | None = None
    tip: int | None = None
    store_id: str | None = None
    reference: str | None = private(None)
    #: Where the service sends the two ids of a notification (§6).
    response_url: str | None = private(None)
    time_zone: int | None = None
    lat: str | None = private(None)
    lng: str | None = private(None)
    client_user_id: str | None = private(None)
    optional_parameter1: str | None = private(None)
    optional_parameter2: str | None = private(None)
    optional_parameter3: str | None = private(None)
    order: Order | None = private(None)
    #: Charge `nick_name` instead of the phone; needs the flag's name from the profile.
    by_nick_name: bool = False
    nick_name: str | None = private(None)

    def __attrs_post_init__(self) -> None:
        # One fused test, quick and coarse, since this stands on the way of every charge (a validator for each
        # field costs three times as much). Whatever it doubts goes to `_report_faults`, which is exact.
        a, b, c = self.amount_without_tax, self.amount_with_tax, self.tax
        d, e, amount = self.service, self.tip, self.amount
        phone, code, currency = self.phone_number, self.country_code, self.currency
        identifier, store, lat, lng = self.client_transaction_id, self.store_id, self.lat, self.lng
        reference, user, url, zone = self.reference, self.client_user_id, self.response_url, self.time_zone
        extra1, extra2, extra3 = self.optional_parameter1, self.optional_parameter2, self.optional_parameter3
        if {a.__class__, b.__class__, c.__class__, d.__class__, e.__class__, amount.__class__} <= INTS:
            total = (a or 0) + (b or 0) + (c or 0) + (d or 0) + (e or 0)
            if amount is None:
                object.__setattr__(self, "amount", total)
            elif amount != total:
                total = -1
        else:
            total = -1
        if not (
            0 < total <= MAX_CENTS
            and (a is None or a >= 0) and (b is None or b >= 0) and (c is None or c >= 0)
            and (d is None or d >= 0) and (e is None or e >= 0)
            and (c is not None or a is None or b is None)
            and {
                phone.__class__, code.__class__, currency.__class__, identifier.__class__, store.__class__,
                reference.__class__, url.__class__, user.__class__, extra1.__class__, extra2.__class__,
                extra3.__class__, lat.__class__, lng.__class__,
            } <= TEXTS
            and (
                texts := f"{phone}{code}{currency}{identifier}{store}{reference}{url}{user}{extra1}{extra2}{extra3}"
            ).isprintable()
            and len(texts) <= MAX_TEXT
            and phone and phone.strip() and identifier and identifier == identifier.strip()
            and identifier not in DOTS and (identifier.isascii() or id_fault(identifier) is None)
            and (store is None or store == store.strip())
            and fits(code, currency, lat, lng)
            and (url is None or url[:8] == "https://")
            and self.by_nick_name is False and self.nick_name is None
            and (zone is None or (zone.__class__ is int and -MAX_CENTS <= zone <= MAX_CENTS))
            and (self.order is None or self.order.__class__ is Order)
        ):  # fmt: skip
            self._report_faults()

    def _report_faults(self) -> None:
        faults = Faults(self)
        faults.amounts()
        faults.text("country_code", "currency", "client_transaction_id", required=True)
        faults.text("phone_number", required=self.by_nick_name is False)
        faults.text("nick_name", required=self.by_nick_name is True)
        faults.text(
            "store_id", "reference", "response_url", "lat", "lng", "client_user_id",
            "optional_parameter1", "optional_parameter2", "optional_parameter3",
        )  # fmt: skip
        faults.pattern("country_code", CALLING_CODE, "is a country calling code, digits only (E.164)")
        faults.url("response_url")
        _check_shared(faults)
        if type(self.by_nick_name) is not bool:
            faults.add("by_nick_name", "is True or False")
        faults.report(self.client_transaction_id)


@attrs.frozen(kw_only=True)
class PrepareRequest:
    """Prepare a hosted payment form (§2.3). All amounts are cents.

    `phone_number`, `email` and `document_id` must be those of the actual cardholder of this transaction: fixed,
    false or repeated values may get transactions rejected and users blocked on suspicion of fraud (§2.3). Leave
    them out and the form asks.
    """

    currency: str
    client_transaction_id: str
    store_id: str
    #: Where the user is sent after paying.
    response_url: str = private()
    amount: int = attrs.field(default=None)  # an int from __attrs_post_init__ on
    amount_without_tax: int | None = None
    amount_with_tax: int | None = None
    tax: int | None = None
    service: int | None = None
    tip: int | None = None
    reference: str | None = private(None)
    #: `+`, country code and number.
    phone_number: str | None = private(None)
    email: str | None = private(None)
    document_id: str | None = private(None)
    #: Where the user is sent who closes the form by its X.
    cancellation_url: str | None = private(None)
    optional_parameter: str | None = private(None)
    order: Order | None = private(None)
    #: Of the form; needs the parameter's name from the profile.
    language: Literal["es", "en"] | None = None
    time_zone: int | None = None
    lat: str | None = private(None)
    lng: str | None = private(None)

    def __attrs_post_init__(self) -> None:
        if self.amount is None:
            parts = [getattr(self, name) for name in COMPONENTS]
            if INTS.issuperset(map(type, parts)):  # else the faults say which is no cents
                object.__setattr__(self, "amount", sum(filter(None, parts)))
        faults = Faults(self)
        faults.amounts()
        faults.text("currency", "client_transaction_id", "store_id", "response_url", required=True)
        faults.text(
            "reference", "phone_number", "email", "document_id", "cancellation_url", "optional_parameter",
            "lat", "lng",
        )  # fmt: skip
        faults.pattern("phone_number", FULL_PHONE, "is + country code and number")
        faults.url("response_url", "cancellation_url")
        _check_shared(faults)
        if self.language not in (None, "es", "en"):
            faults.add("language", "is 'es' or 'en'")
        faults.report(self.client_transaction_id)


def _check_shared(faults: Faults) -> None:
    """What both requests have, beside amounts and texts."""
    faults.identifier("client_transaction_id")
    faults.unmistakable("client_transaction_id")
    faults.identifier("store_id")
    faults.pattern("currency", CURRENCY, "is three capital letters (ISO 4217)")
    faults.integer("time_zone")
    faults.degrees("lat", 90)
    faults.degrees("lng", 180)
    faults.instance("order", Order)


def derive_id(*keys: str | int) -> str:
    """A short client transaction id (26 characters) from the caller's own keys, the same on every run.

    `derive_id("orders", 17)`. The keys are hashed, so what they say is not in it; do not derive ids from a phone
    or an e-mail alone, which can be guessed. Raises `InvalidRequestError` for a key that no id may be either:
    with invisible characters, or not in Unicode's normal form NFC, since another one would look the same.
    """
    if not keys or any(type(key) not in (str, int) for key in keys):
        raise TypeError("derive_id takes one or more texts or ints")
    for key in keys:
        if isinstance(key, str) and (fault := id_fault(key)):
            raise InvalidRequestError(errors=[ErrorDetail("key", 0, (fault,))])
    # Tagged and length-prefixed: ("a", "b") is not ("ab",), and 1 is not "1".
    parts = [f"{type(key).__name__}:{len(str(key))}:{key}" for key in keys]
    digest = hashlib.blake2b("".join(parts).encode(), digest_size=13, person=b"payclient-id")
    return digest.hexdigest()


@attrs.frozen(kw_only=True)
class SaleResult:
    """The service created the transaction (§2.5); it is `Pendiente` now (§3)."""

    transaction_id: int
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(repr=False)
class FormLinks(Mapping[str, str]):
    """Every `payWith...` link of a prepared form (§2.6). Links are secrets: `repr` shows only their names."""

    _links: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self._links[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __repr__(self) -> str:
        return f"FormLinks({', '.join(self._links)})"


@attrs.frozen(kw_only=True)
class PrepareResult:
    """A prepared payment form (§2.6)."""

    #: A secret where the links are made of it.
    payment_id: str = attrs.field(repr=False)
    links: FormLinks = attrs.field(repr=False)
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    #: The profile's name of the wallet link, which carries the service's brand (§2.6).
    wallet_link_field: str | None = attrs.field(default=None, repr=False)

    @property
    def pay_with_card(self) -> str:
        """The form for paying with a card. `ConfigurationError` if the answer had no such link."""
        return self._link("payWithCard")

    @property
    def pay_with_wallet(self) -> str:
        """The form for paying through the wallet app, by the profile's name or by being the only other.

        `ConfigurationError` where that is ambiguous.
        """
        if self.wallet_link_field is not None:
            return self._link(self.wallet_link_field)
        others = [name for name in self.links if name != "payWithCard"]
        if len(others) != 1:
            raise ConfigurationError(
                f"set wallet_link_field in the profile: one of {', '.join(others) or 'none'}"
            )
        return self.links[others[0]]

    def _link(self, name: str) -> str:
        try:
            return self.links[name]
        except KeyError:
            raise ConfigurationError(f"the answer has no link {name}") from None


@attrs.frozen(kw_only=True)
class StatusReport:
    """What the service says of a transaction at this moment.

    `state` is the document's word (§3): `Pendiente`, `Aceptado` or `Cancelado`; None where the profile does not
    map the service's own word, which is then neither pending nor final. `amount` is cents.
    """

    state: Literal["Pendiente", "Aceptado", "Cancelado"] | None
    transaction_id: int | None = None
    client_transaction_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    #: Other accepted transactions under the same client transaction id: each of them is money.
    also_accepted: tuple[int, ...] = ()
    #: All other transactions under the same client transaction id. Where several are undecided, or all cancelled, they
    #: are all here, and `transaction_id` is None.
    others: tuple[int, ...] = ()
    #: Fields of the answer that are there and are not of their type, by the service's names: the report is not ours.
    unreadable: tuple[str, ...] = ()
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class Notification:
    """What arrived at `responseUrl` (§6): two ids, unsigned, no verdict. A hint."""

    transaction_id: int
    client_transaction_id: str
