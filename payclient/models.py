"""The requests to the service, and its results, reports and notifications, as frozen attrs classes.

Field names are the service's in snake case. A request checks itself when it is made, all faults at once. No `repr`
shows a person's data, a link or a whole answer. The session checks the rules that only a profile knows.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import attrs

from payclient import validation as rules
from payclient.amounts import COMPONENTS, sum_fault
from payclient.errors import ConfigurationError, ErrorDetail, InvalidRequestError
from payclient.secret import Secret
from payclient.validation import CheckedModel, Declared, blank_fault, id_fault


def _optional(rule: Declared) -> Any:
    """Declare a field that may be left out."""
    return attrs.field(default=None, metadata=rule)


def _private(rule: Declared) -> Any:
    """Declare a field that may be left out, and that holds a person's data or a secret, so never shows in `repr`."""
    return attrs.field(default=None, metadata=rule, repr=False)


# --- §2.4


@attrs.frozen(kw_only=True)
class BillTo(CheckedModel):
    """Billing data of the customer (§2.4). Every field may be left out.

    - `bill_to_id`: Identifier of the billing data.
    - `address1`, `address2`: The lines of the address.
    - `country`: ISO 3166-1 alpha-2, two capitals.
    - `state`: State or province.
    - `locality`: City or locality.
    - `first_name`: Given name.
    - `last_name`: Family name.
    - `phone_number`: `+`, country code and number.
    - `email`: E-mail address.
    - `postal_code`: As text.
    - `customer_id`: The merchant's own id of the customer.
    - `ip_address`: Of the customer's device.
    """

    bill_to_id: int | None = _optional(rules.INTEGER)
    address1: str | None = _private(rules.text())
    address2: str | None = _private(rules.text())
    country: str | None = _optional(rules.COUNTRY)
    state: str | None = _private(rules.text())
    locality: str | None = _private(rules.text())
    first_name: str | None = _private(rules.text())
    last_name: str | None = _private(rules.text())
    phone_number: str | None = _private(rules.PHONE)
    email: str | None = _private(rules.text())
    postal_code: str | None = _private(rules.text())
    customer_id: str | None = _private(rules.text())
    ip_address: str | None = _private(rules.text())


@attrs.frozen(kw_only=True)
class LineItem(CheckedModel):
    """One item of an order (§2.4); prices are cents. Every field may be left out.

    - `product_name`: Name of the product or service.
    - `unit_price`: Price of one, in cents.
    - `quantity`: A whole number.
    - `total_amount`: What is to be paid for this item, in cents.
    - `tax_amount`: Tax of the item, in cents.
    - `product_sku`: Identifier of the product or service.
    - `product_description`: Short description.
    """

    product_name: str | None = _optional(rules.text())
    unit_price: int | None = _optional(rules.cents())
    quantity: int | None = _optional(rules.INTEGER)
    total_amount: int | None = _optional(rules.cents())
    tax_amount: int | None = _optional(rules.cents())
    product_sku: str | None = _optional(rules.text())
    product_description: str | None = _optional(rules.text())


def _to_tuple(items: Iterable[LineItem]) -> tuple[LineItem, ...]:
    try:
        return tuple(items)
    except TypeError:
        return (None,)  # type: ignore[return-value]  # not an item: the check names it


@attrs.frozen(kw_only=True)
class Order(CheckedModel):
    """Billing data and items (§2.4).

    - `bill_to`: A `BillTo`.
    - `line_items`: Any iterable of `LineItem`, kept as a tuple.
    """

    bill_to: BillTo | None = _optional(rules.instance(BillTo))
    line_items: tuple[LineItem, ...] = attrs.field(
        default=(), converter=_to_tuple, metadata=rules.tuple_of(LineItem)
    )


# --- §2.2, §2.3


@attrs.frozen(kw_only=True)
class _Charge(CheckedModel):
    """The common fields of a Sale and a payment form. All amounts are cents (§2.1)."""

    currency: str = attrs.field(metadata=rules.CURRENCY)
    client_transaction_id: str = attrs.field(metadata=rules.UNMISTAKABLE_ID)
    amount_without_tax: int | None = _optional(rules.cents(part=True))
    amount_with_tax: int | None = _optional(rules.cents(part=True))
    tax: int | None = _optional(rules.cents(part=True))
    service: int | None = _optional(rules.cents(part=True))
    tip: int | None = _optional(rules.cents(part=True))
    #: The sum of the parts unless given.
    amount: int = attrs.field(default=None, metadata=rules.cents(computed="_sum_of_parts"))
    reference: str | None = _private(rules.text())
    order: Order | None = _private(rules.instance(Order))
    time_zone: int | None = _optional(rules.INTEGER)
    lat: str | None = _private(rules.degrees(90))
    lng: str | None = _private(rules.degrees(180))

    # §2.1.1, §2.1.4; a sum of 0 may be that of no part.
    agreement: ClassVar[str] = (
        "0 < amount == (amount_without_tax or 0) + (amount_with_tax or 0) + (tax or 0) + (service or 0) + (tip or 0)"
        " and (tax is not None or amount_without_tax is None or amount_with_tax is None)"
    )

    def _sum_of_parts(self) -> int | None:
        # Written out, because most merchants leave the amount out: a loop over the names takes three times as long.
        total = 0
        for part in (self.amount_without_tax, self.amount_with_tax, self.tax, self.service, self.tip):
            if type(part) is int:
                total += part
            elif part is not None:
                return None  # this part is reported as a fault, so no sum is compared
        return total

    def _find_faults(self) -> dict[str, list[str]]:
        """Return every fault, those between fields too (§2.1)."""
        found = super()._find_faults()
        parts = [getattr(self, name) for name in COMPONENTS]
        # An amount with a fault of its own is not summed.
        if not {"amount", *COMPONENTS} & found.keys() and (fault := sum_fault(self.amount, parts)):
            found["amount"] = [fault]
        if self.amount_with_tax is not None and self.amount_without_tax is not None and self.tax is None:
            found["tax"] = ["must be given beside amountWithTax and amountWithoutTax"]
        return found


@attrs.frozen(kw_only=True)
class SaleRequest(_Charge):
    """Charge a wallet user by a push request (§2.2). All amounts are cents.

    `amount` is the sum of its parts unless given; given, it must equal it. Raises `InvalidRequestError` with
    every fault at once.

    - `currency`: Three capitals (ISO 4217). `client_transaction_id`: The id of what is to be paid, unique to it
      (§2.2).
    - `amount_without_tax`, `amount_with_tax` (without the tax), `tax`, `service`, `tip`: Parts of the amount, in
      cents; at least one is given.
    - `reference`: What is paid for. `order`: An `Order`. `time_zone`: A whole number, whose meaning the document does
      not show. `lat`, `lng`: Decimal degrees, as text.
    - `phone_number`: Digits, perhaps after a `+`, and parted by blanks or dashes. May be left out with `by_nick_name`,
      where the profile allows it.
    - `country_code`: Country calling code (E.164), such as 593.
    - `store_id`: The branch that charges.
    - `response_url`: Where the service sends the two ids of a notification (§6).
    - `client_user_id`: The merchant's own id of the customer.
    - `optional_parameter1`, `optional_parameter2`, `optional_parameter3`: Additional information.
    - `by_nick_name`: Charge `nick_name` instead of the phone; needs the flag's name from the profile.
    - `nick_name`: The user name that `by_nick_name` charges; without the flag the phone is charged.
    """

    phone_number: str | None = _private(rules.WALLET_PHONE)
    country_code: str = attrs.field(metadata=rules.CALLING_CODE)
    store_id: str | None = _optional(rules.store())
    response_url: str | None = _private(rules.url())
    client_user_id: str | None = _private(rules.text())
    optional_parameter1: str | None = _private(rules.text())
    optional_parameter2: str | None = _private(rules.text())
    optional_parameter3: str | None = _private(rules.text())
    by_nick_name: bool = attrs.field(default=False, metadata=rules.FLAG)
    nick_name: str | None = _private(rules.text())

    agreement: ClassVar[str] = _Charge.agreement + " and phone_number and nick_name is None"

    def _find_faults(self) -> dict[str, list[str]]:
        """Return every fault. The phone is required, or with `by_nick_name` the nick name."""
        found = super()._find_faults()
        name = "nick_name" if self.by_nick_name is True else "phone_number"
        value = getattr(self, name)
        is_missing = value is None or (isinstance(value, str) and not value.strip())
        if is_missing and not {name, "by_nick_name"} & found.keys():
            found[name] = ["must be given" if value is None else "must not be empty"]
        return found


@attrs.frozen(kw_only=True)
class PrepareRequest(_Charge):
    """Prepare a hosted payment form (§2.3). All amounts are cents.

    `phone_number`, `email` and `document_id` must be those of the actual cardholder of this transaction: fixed,
    false or repeated values may get transactions rejected and users blocked on suspicion of fraud (§2.3). Leave
    them out and the form asks.

    - `currency`: Three capitals (ISO 4217). `client_transaction_id`: The id of what is to be paid, unique to it
      (§2.2).
    - `amount_without_tax`, `amount_with_tax` (without the tax), `tax`, `service`, `tip`: Parts of the amount, in
      cents; at least one is given. `amount`: Their sum unless given.
    - `reference`: What is paid for. `order`: An `Order`. `time_zone`: A whole number, whose meaning the document does
      not show. `lat`, `lng`: Decimal degrees, as text.
    - `store_id`: The branch that charges.
    - `response_url`: Where the user is sent after paying.
    - `phone_number`: `+`, country code and number.
    - `email`: Of the cardholder.
    - `document_id`: Of the cardholder.
    - `cancellation_url`: Where the user is sent who closes the form by its X.
    - `optional_parameter`: Additional information.
    - `language`: Of the form; needs the parameter's name from the profile.
    """

    store_id: str = attrs.field(metadata=rules.store(required=True))
    response_url: str = attrs.field(metadata=rules.url(required=True), repr=False)
    phone_number: str | None = _private(rules.PHONE)
    email: str | None = _private(rules.text())
    document_id: str | None = _private(rules.text())
    cancellation_url: str | None = _private(rules.url())
    optional_parameter: str | None = _private(rules.text())
    language: Literal["es", "en"] | None = _optional(rules.LANGUAGE)


def derive_id(*keys: str | int) -> str:
    """Return a short client transaction id (26 characters) made of the caller's own keys, the same on every run.

    `derive_id("orders", 17)`. The keys are hashed, so what they say is not in it; do not derive ids from a phone
    or an e-mail address alone, which can be guessed. Raises `InvalidRequestError` for a key that cannot be an
    id: `.` or `..`, or one that looks like another one, by invisible characters, by blanks at its ends or outside
    Unicode's normal form NFC.
    """
    if not keys or any(type(key) not in (str, int) for key in keys):
        raise TypeError("derive_id takes one or more texts or ints")
    for key in keys:
        if isinstance(key, str) and (fault := id_fault(key) or blank_fault(key)):
            raise InvalidRequestError(errors=[ErrorDetail("key", 0, (fault,))])
    # Tagged and length-prefixed: ("a", "b") is not ("ab",), and 1 is not "1".
    parts = [f"{type(key).__name__}:{len(str(key))}:{key}" for key in keys]
    digest = hashlib.blake2b("".join(parts).encode(), digest_size=13, person=b"payclient-id")
    return digest.hexdigest()


# --- Answers


@attrs.frozen(kw_only=True)
class SaleResult:
    """The service created the transaction (§2.5); it is `Pendiente` now (§3).

    - `transaction_id`: The service's id of the sale, positive.
    - `raw`: The answer as it came.
    """

    transaction_id: int
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


def _hide(links: Mapping[str, str | Secret[str]]) -> Mapping[str, Secret[str]]:
    return {name: Secret.of(link) for name, link in links.items()}


@attrs.frozen(repr=False)
class FormLinks(Mapping[str, str]):
    """Every `payWith...` link of a prepared form (§2.6). Links are secrets: not in `repr`, and they do not pickle."""

    _links: Mapping[str, Secret[str]] = attrs.field(converter=_hide)

    def __getitem__(self, name: str) -> str:
        return self._links[name].reveal()

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __repr__(self) -> str:
        return f"FormLinks({', '.join(self._links)})"

    #: Sentry shows what a mapping holds, and not its `repr`, in the local variables of a frame that raises.
    __sentry_repr__ = __repr__


@attrs.frozen(kw_only=True)
class PrepareResult:
    """A prepared payment form (§2.6). Its links are secrets, so it does not pickle.

    - `payment_id`: A secret where the links are made of it.
    - `links`: Every `payWith...` link by its name.
    - `raw`: The answer as it came.
    - `wallet_link_field`: The profile's name of the wallet link, which carries the service's brand (§2.6).
    """

    payment_id: str = attrs.field(repr=False)
    links: FormLinks = attrs.field(repr=False)
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    wallet_link_field: str | None = attrs.field(default=None, repr=False)

    @property
    def pay_with_card(self) -> str:
        """The form for paying with a card. `ConfigurationError` if the answer had no such link."""
        return self._link("payWithCard")

    @property
    def pay_with_wallet(self) -> str:
        """The form for paying through the wallet app: of `wallet_link_field`, or the only link beside the card's.

        `ConfigurationError` where there is no such link.
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
    """The service's report of a transaction at this moment.

    `state` is the document's word (§3): `Pendiente`, `Aceptado` or `Cancelado`; None where the profile does not
    map the service's own word, which is then neither pending nor final. `amount` is cents.

    - `transaction_id`: The service's id; None where the report names none.
    - `client_transaction_id`: The merchant's id; None where the report names none.
    - `currency`: Three capitals, as the service wrote it.
    - `also_accepted`: Other accepted transactions under the same client transaction id: each of them is money.
    - `others`: All other transactions under the same client transaction id. Where several are undecided, or all
      cancelled, they are all here, and `transaction_id` is None.
    - `unreadable`: Fields of the answer that are there and are not of their type, by the service's names: the report
      is not ours.
    - `reason`: Of a cancelled one, why it was declined, of the profile's `receipt_fields`.
    - `receipt`: Of an accepted one, what the profile's `receipt_fields` keep, by the service's names.
    - `raw`: The answer as it came.
    """

    state: Literal["Pendiente", "Aceptado", "Cancelado"] | None
    transaction_id: int | None = None
    client_transaction_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    also_accepted: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    unreadable: tuple[str, ...] = ()
    reason: str | None = attrs.field(default=None, repr=False)
    receipt: Mapping[str, str | int] = attrs.field(factory=dict, repr=False)
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class Notification:
    """A notification that arrived at `responseUrl` (§6): two ids, unsigned, no verdict. A hint.

    - `transaction_id`: The service's id, which nothing vouches for.
    - `client_transaction_id`: The merchant's id, which nothing vouches for either.
    """

    transaction_id: int
    client_transaction_id: str
