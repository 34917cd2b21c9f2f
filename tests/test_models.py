"""Requests check themselves, results show nothing private, and both are frozen values."""

import copy
import pickle
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payclient.amounts import COMPONENTS, MAX_CENTS
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import (
    BillTo,
    FormLinks,
    LineItem,
    Notification,
    Order,
    PrepareRequest,
    PrepareResult,
    SaleRequest,
    SaleResult,
    StatusReport,
    derive_id,
)
from payclient.validation import blank_fault, from_service, id_fault, to_service

CANARY = "Canary"

SALE: dict[str, Any] = {
    "phone_number": "0984111222", "country_code": "593", "currency": "USD", "client_transaction_id": "order-17",
    "tax": 15,
}  # fmt: skip

PREPARE: dict[str, Any] = {
    "currency": "USD", "client_transaction_id": "order-17", "store_id": "S1", "response_url": "https://shop.example/",
    "tax": 15,
}  # fmt: skip

BOTH = pytest.mark.parametrize(("model", "base"), [(SaleRequest, SALE), (PrepareRequest, PREPARE)])


def faults_of(make: Callable[..., object], /, **fields: Any) -> dict[str, tuple[str, ...]]:
    """The descriptions by the service's name of each field at fault; empty if there is none."""
    try:
        make(**fields)
    except InvalidRequestError as error:
        errors = error.errors
    else:
        return {}
    faults = {detail.message: detail.error_descriptions for detail in errors}
    assert len(faults) == len(errors) > 0
    assert all(faults.values())
    assert {detail.error_code for detail in errors} == {0}
    return faults


# --- Amounts (§2.1)


@BOTH
@given(
    parts=st.fixed_dictionaries({}, optional={name: st.integers(0, 10**6) for name in COMPONENTS}),
    off=st.integers(-9, 9),
)
@example(parts={"amount_without_tax": 0, "amount_with_tax": 0}, off=-1)
@example(parts={"amount_without_tax": 100, "amount_with_tax": 100, "tip": 0}, off=0)
@example(parts={}, off=0)
def test_the_sum_rule(model: type, base: dict[str, Any], parts: dict[str, int], off: int) -> None:
    """§2.1: at least one part; given, the amount is their sum; both bases need the tax; all else passes."""
    fields = base | {"tax": None} | parts
    expected = set()
    if not parts or off:
        expected.add("Amount")
    wants_tax = {"amount_without_tax", "amount_with_tax"} <= set(parts) and "tax" not in parts
    if wants_tax:
        expected.add("tax")
    assert set(faults_of(model, **fields, amount=sum(parts.values()) + off)) == expected
    if parts and not wants_tax:
        assert model(**fields).amount == sum(parts.values())


@BOTH
def test_what_is_no_cents_is_refused(model: type, base: dict[str, Any]) -> None:
    """An amount is an int of cents, not negative, not without bound (§1); a wrong sum says by how much (§7.6)."""
    wrong: list[Any] = [True, False, 1.0, "100", Decimal(1), -1, 10**19, float("nan"), [], b"1"]
    for name in ("amount", *COMPONENTS):
        spelled = "Amount" if name == "amount" else to_service(name)
        for value in wrong:
            assert "cents" in faults_of(model, **base | {name: value})[spelled][0], value
    assert "1 cent more" in faults_of(model, **base, amount=16)["Amount"][0]
    assert "5 cents less" in faults_of(model, **base, amount=10)["Amount"][0]
    # Parts that are amounts can add up to one that is none; nothing to pay is one: there is no smallest (§8).
    assert set(faults_of(model, **base | {"tax": MAX_CENTS, "tip": MAX_CENTS})) == {"Amount"}
    assert model(**base | {"tax": 0}).amount == 0


# --- Every other bad value


#: What no text field takes, and why.
TEXTS: dict[Any, str] = {
    5: "must be a text; int was given", True: "must be a text; bool was given", b"x": "must be a text; bytes was given",
    ("x",): "must be a text; tuple was given", "x" * 1_000_000: "must be at most 4,096 characters",
    **dict.fromkeys(["a\x00b", "a\nb", "a\x7fb", "a\x85b", "a\ud800b"],
                    "must have no control characters or lone surrogates"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "base", "count"),
    [(SaleRequest, SALE, 14), (PrepareRequest, PREPARE, 12), (BillTo, {}, 12), (LineItem, {}, 3)],
)  # fmt: skip
def test_no_text_field_takes_what_no_service_could(model: type, base: dict[str, Any], count: int) -> None:
    """Another type, control characters, lone surrogates and a megabyte; and no error repeats a person's data."""
    names = [field.name for field in attrs.fields(model) if "str" in str(field.type)]
    assert len(names) == count
    for name in names:
        for value, description in TEXTS.items():
            assert description in faults_of(model, **base | {name: value})[to_service(name)]
    forms = dict.fromkeys(
        {"country_code", "lat", "response_url", "time_zone", "order", "language", "tax"}, CANARY
    )
    for wrong in (dict.fromkeys(names, f"{CANARY}\x00"), forms):
        fields = {name: value for name, value in wrong.items() if name in attrs.fields_dict(model)}
        if fields:
            with pytest.raises(InvalidRequestError) as caught:
                model(**base | fields)
            assert CANARY not in str(caught.value) + repr(caught.value) + repr(vars(caught.value))


#: A model, what it is valid with, a field, its bad values, and the service's name of the field.
BAD: list[tuple[type, dict[str, Any], str, list[Any], str]] = [
    *((model, base, *rest)
      for model, base in ((SaleRequest, SALE), (PrepareRequest, PREPARE))
      for rest in (
          ("currency", ["usd", "US", "USDX", "", " ", "US$", "ＵＳＤ", "USD ", None], "currency"),
          ("client_transaction_id", ["", " ", "  ", " a", "a ", "\u3000a", None], "clientTransactionId"),
          ("store_id", [" a", "a ", " "], "storeId"),
          ("lat", ["91", "-90.1", "", "abc", "1,5", "1e1", "nan", "٣", " 1", 9.5, 1, [], {}], "lat"),
          ("lng", ["181", "-180.5", "1000", "", "inf", 1, ["1"]], "lng"),
          ("response_url",
           ["", "shop.example", "ftp://shop.example", "javascript:alert(1)", "https://", "https:///back", "http://?a=1"],
           "responseUrl"),
          ("time_zone", [True, -5.0, "-5", 10**19, -(10**19)], "timeZone"),
          ("order", [{}, "order", BillTo(), 0], "order"),
      )),
    (SaleRequest, SALE, "phone_number",
     ["", " ", "   ", None, "no tiene", "+", "098411122O", "0984111222x", "٠٩٨٤", "ana@shop.example", "-0984111222"],
     "phoneNumber"),
    (SaleRequest, SALE, "country_code",
     ["Ecuador", "EC", "", "+", "59 3", "12345", "５９３", "593 ", None], "countryCode"),
    (SaleRequest, SALE, "by_nick_name", [0, 1, "yes", None, []], "byNickName"),
    (SaleRequest, SALE | {"by_nick_name": True}, "nick_name", [None, "", " ", 5], "nickName"),
    (PrepareRequest, PREPARE, "store_id", [None, "", " "], "storeId"),
    (PrepareRequest, PREPARE, "response_url", [None], "responseUrl"),
    (PrepareRequest, PREPARE, "cancellation_url", ["", "x", "file:///etc"], "cancellationUrl"),
    (PrepareRequest, PREPARE, "phone_number",
     ["0984111222", "593984111222", "+0984111222", "+593 984", "", "+12345"], "phoneNumber"),
    (PrepareRequest, PREPARE, "language", ["fr", "ES", "", 1, ()], "language"),
    (BillTo, {}, "country", ["Ecuador", "ec", "ECU", "", "E1"], "country"),
    (BillTo, {}, "phone_number", ["0984111222", "+", "", "+593984111222x"], "phoneNumber"),
    (BillTo, {}, "bill_to_id", [True, "12", 1.0, 10**19, -(10**19)], "billToId"),
    *((LineItem, {}, name, [True, 1.0, "100", Decimal(1), -1, 10**19], to_service(name))
      for name in ("unit_price", "total_amount", "tax_amount")),
    (LineItem, {}, "quantity", [True, 1.5, "1", 10**19, -(10**19)], "quantity"),
    (Order, {}, "bill_to", [{}, LineItem(), "x", 0], "billTo"),
    (Order, {}, "line_items", [None, 5, "ab", [{}], [LineItem(), None], [BillTo()], LineItem()], "lineItems"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "base", "name", "values", "field"), BAD)
def test_each_bad_value(model: type, base: dict[str, Any], name: str, values: list[Any], field: str) -> None:
    """One bad value is one fault, under the service's name of the field."""
    for value in values:
        assert list(faults_of(model, **base | {name: value})) == [field], value


GOOD: list[tuple[type, dict[str, Any]]] = [
    *((SaleRequest, SALE | change) for change in (
        {"country_code": "+593"}, {"lat": "-90", "lng": "180.0"}, {"lat": "+9.5"}, {"time_zone": -5},
        {"response_url": "http://shop.example"}, {"response_url": "HTTPS://SHOP.EXAMPLE"}, {"store_id": ""},
        {"reference": "Matrícula de «Ñandú» \N{ZERO WIDTH JOINER}"}, {"reference": "x" * 4096}, {"order": Order()},
        {"nick_name": "ana"}, {"by_nick_name": True, "nick_name": "ana"}, {"phone_number": "0984 111 222 "},
        {"by_nick_name": True, "nick_name": "ana", "phone_number": None}, {"time_zone": 0}, {"service": 0, "tip": 0},
        {"optional_parameter1": "x" * 3000, "optional_parameter2": "x" * 3000},
    )),
    *((PrepareRequest, PREPARE | change) for change in (
        {"language": "es"}, {"language": "en"}, {"phone_number": "+593984111222"}, {"email": "a@b"},
        {"document_id": "1"}, {"cancellation_url": "https://shop.example/x"}, {"order": Order()},
    )),
    (BillTo, {}), (BillTo, {"bill_to_id": -1, "country": "EC", "address1": "x" * 4096, "address2": "y" * 4096}),
    (BillTo, {"first_name": "a\N{NO-BREAK SPACE}b"}),
    (LineItem, {}), (LineItem, {"quantity": -1}), (LineItem, {"unit_price": 0, "product_sku": ""}),
    (LineItem, {"product_description": "a\N{NO-BREAK SPACE}b"}),
    (Order, {}), (Order, {"bill_to": BillTo(), "line_items": [LineItem()]}),
    (Order, {"bill_to": attrs.make_class("Sub", [], bases=(BillTo,), frozen=True, slots=True)()}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "fields"), GOOD)
def test_what_the_document_allows_passes(model: type, fields: dict[str, Any]) -> None:
    """Checks go as far as the document goes, and no further."""
    made = model(**fields)
    for name, value in fields.items():
        assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


def test_all_faults_at_once() -> None:
    """§7.5: each failing field gives an entry."""
    faults = faults_of(
        SaleRequest, phone_number="", country_code="Ecuador", currency="usd", client_transaction_id=" a\n",
        tax=-1, tip=True, lat="91", lng="x", response_url="x", time_zone="x", order="x", store_id=5, reference="\x00",
        by_nick_name=None,
    )  # fmt: skip
    assert set(faults) == {
        "tax", "tip", "countryCode", "currency", "clientTransactionId", "storeId", "reference", "responseUrl",
        "timeZone", "lat", "lng", "order", "byNickName",
    }  # fmt: skip
    assert len(faults["clientTransactionId"]) == 2


@BOTH
def test_a_missing_tax_is_named_beside_a_bad_part(model: type, base: dict[str, Any]) -> None:
    """§2.1.4: a mixed charge without tax is at fault whatever else is; only a sum needs all its parts."""
    parts = {"amount_without_tax": 100, "amount_with_tax": 100, "tax": None, "tip": -1, "amount": 999}
    assert faults_of(model, **base | parts).keys() == {"tax", "tip"}


# --- Nothing private


@BOTH
def test_a_sane_id_goes_with_the_error(model: type, base: dict[str, Any]) -> None:
    """The merchant finds the row at fault by its id; an id that is no id is left out."""
    for identifier, kept in (("order-17", "order-17"), ("a\n", None), (5, None), ("x" * 201, None)):
        with pytest.raises(InvalidRequestError) as caught:
            model(**base | {"currency": "usd", "client_transaction_id": identifier})
        assert caught.value.client_transaction_id == kept


def every_model() -> list[Any]:
    """One of each, with a canary in all that is private."""
    bill_to = BillTo(
        bill_to_id=12, country="EC", phone_number="+593999999999",
        address1=CANARY, address2=CANARY, state=CANARY, locality=CANARY, first_name=CANARY, last_name=CANARY,
        email=CANARY, postal_code=CANARY, customer_id=CANARY, ip_address=CANARY,
    )  # fmt: skip
    order = Order(bill_to=bill_to, line_items=(LineItem(product_name="Producto"),))
    links = FormLinks({"payWithCard": f"https://pay.example/{CANARY}"})
    url = f"https://shop.example/{CANARY}"
    return [
        SaleRequest(
            **SALE | {"phone_number": "0999999999"}, by_nick_name=True, nick_name=CANARY, reference=CANARY,
            response_url=url, lat="12.345678", lng="87.654321", client_user_id=CANARY, optional_parameter1=CANARY,
            optional_parameter2=CANARY, optional_parameter3=CANARY, order=order,
        ),
        PrepareRequest(
            **PREPARE | {"response_url": url}, cancellation_url=url, reference=CANARY,
            phone_number="+593999999999", email=CANARY, document_id=CANARY, optional_parameter=CANARY, order=order,
            lat="12.345678", lng="87.654321",
        ),
        order, bill_to, LineItem(product_name="Producto"),
        SaleResult(transaction_id=5, raw={"x": CANARY}),
        PrepareResult(payment_id="p", links=links, raw={"x": CANARY}, wallet_link_field="payWithX"),
        links,
        StatusReport(state="Aceptado", transaction_id=5, raw={"email": CANARY}),
        Notification(transaction_id=5, client_transaction_id="order-17"),
    ]  # fmt: skip


@pytest.mark.parametrize("model", every_model(), ids=lambda model: type(model).__name__)
def test_models_are_frozen_slotted_keyword_only_values(model: Any) -> None:
    """Each equals its copy, takes no change or stray attribute, pickles unless it holds links, says nothing private."""
    kind = type(model)
    for text in (repr(model), str(model), f"{[model]}"):
        for secret in (CANARY, "999999999", "12.345678", "87.654321"):
            assert secret not in text
    assert not hasattr(model, "__dict__")
    for field in attrs.fields(kind):
        assert field.kw_only or kind is FormLinks
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(model, field.name, None)
    with pytest.raises(AttributeError):
        model.stray = 1
    if kind in (FormLinks, PrepareResult):
        with pytest.raises(TypeError, match="secret"):
            pickle.dumps(model)
        assert attrs.evolve(model) == model
    else:
        assert copy.deepcopy(model) == model == pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    if kind is not FormLinks:
        with pytest.raises(TypeError, match=r"positional"):
            kind("x")


# --- The two checks of one class agree


def _mutated(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    texts = st.sampled_from([
        "", " ", "a", "a ", " a", "USD", "usd", "EC", "593", "+593", "12345", "+593999999999", "91", "-5.5",
        "180", "1e1", "https://x", "http://x", "ftp://x", "\x00", "\ud800", "\N{NO-BREAK SPACE}", "\u3000a",
        "x" * 4096, "x" * 4097, "ñ",
    ])  # fmt: skip
    numbers = st.sampled_from(
        [0, 1, 2, 15, 16, -1, MAX_CENTS, MAX_CENTS + 1, -MAX_CENTS, -MAX_CENTS - 1, 10**19]
    )
    kinds: list[Any] = [None, True, False, 1.0, b"x", [], {}, BillTo(), Order(), (LineItem(),), "es"]
    others = st.sampled_from(kinds)
    return st.dictionaries(
        st.sampled_from(sorted(base)), texts | numbers | others | st.text(max_size=5), max_size=4
    )


class Text(str):
    """A text that the quick check does not know, so that the exact one decides."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("model", "base", "text"),
    [(SaleRequest, SALE, "reference"), (PrepareRequest, PREPARE, "reference"), (BillTo, {}, "address1"),
     (LineItem, {}, "product_name")],
)  # fmt: skip
def test_the_quick_check_agrees_with_the_exact_one(model: type, base: dict[str, Any], text: str) -> None:
    """What is constructed has no fault, and what is refused has one."""
    names = {field.name: None for field in attrs.fields(model) if field.name != text}

    @given(_mutated(names))
    @example({"phone_number": " "})
    @example({"phone_number": "\x1f"})
    @example({"lat": []})
    @example({"time_zone": 10**19})
    def agree(changes: dict[str, Any]) -> None:
        fields = base | {name: value for name, value in changes.items() if name in names}
        assert faults_of(model, **fields) == faults_of(model, **fields | {text: Text("x")})

    agree()


def test_the_quick_check_knows_each_control_character() -> None:
    for character in map(chr, (*range(0x100), 0x2028, 0xD800, 0xDFFF)):
        is_control = unicodedata.category(character) in ("Cc", "Cs")
        assert bool(faults_of(LineItem, product_name=f"a{character}")) == is_control, hex(ord(character))


# --- Results


def prepared(wallet_link_field: str | None = None, **links: str) -> PrepareResult:
    return PrepareResult(payment_id="p", links=FormLinks(links), wallet_link_field=wallet_link_field)


def test_a_member_of_an_enum_is_its_value() -> None:
    """And not its name, as which it may format: it stands in an address of a query, too."""

    class Order(str, Enum):  # noqa: UP042 - a StrEnum formats as its value
        FIRST = "order-17"

    request = SaleRequest(**SALE | {"client_transaction_id": Order.FIRST})
    assert f"{request.client_transaction_id}" == "order-17"


def test_no_result_shows_what_others_may_not_know() -> None:
    """A payment id may be what the links are made of, and a reason is the service's own text."""
    form = PrepareResult(payment_id="geheim", links=FormLinks({}), raw={"paymentId": "geheim"})
    declined = StatusReport(
        state="Cancelado", reason="geheim", receipt={"date": "geheim"}, raw={"a": "geheim"}
    )
    assert "geheim" not in repr(form) + repr(declined)


def test_links_are_read_by_their_names() -> None:
    """§2.6: the wallet's carries the brand: the only other, or the one that the profile names; it is not guessed."""
    result = prepared(payWithCard="https://c", payWithBrand="https://w")
    assert (result.pay_with_card, result.pay_with_wallet) == ("https://c", "https://w")
    assert dict(result.links) == {"payWithCard": "https://c", "payWithBrand": "https://w"}
    assert (len(result.links), "payWithX" in result.links) == (2, False)
    assert repr(result.links) == "FormLinks(payWithCard, payWithBrand)"
    several = {"payWithCard": "https://c", "payWithA": "https://a", "payWithB": "https://b"}
    assert prepared("payWithB", **several).pay_with_wallet == "https://b"
    with pytest.raises(ConfigurationError, match=r"wallet_link_field.*payWithA, payWithB$"):
        _ = prepared(**several).pay_with_wallet
    assert prepared(**several).pay_with_card == "https://c", "the answer stays a success"
    with pytest.raises(ConfigurationError, match=r"no link payWithCard"):
        _ = prepared(payWithBrand="https://w").pay_with_card
    with pytest.raises(ConfigurationError, match=r"no link payWithBrand"):
        _ = prepared("payWithBrand", payWithCard="https://c").pay_with_wallet
    with pytest.raises(ConfigurationError, match=r"one of none"):
        _ = prepared(payWithCard="https://c").pay_with_wallet


# --- Derived ids


def test_a_derived_id_is_the_same_in_every_run() -> None:
    """Short and printable; two that are written down here must never change: a re-run finds its charges by them."""
    assert derive_id("orders", 17) == "9e325497ee1ffad211233cc9c6"
    assert derive_id("matrícula-2026") == "8f48328acdeb1d77608b4d1bfc"
    identifier = derive_id("ana@example.com", "0984111222")
    assert len(identifier) == 26
    assert identifier.isascii()
    assert identifier.isalnum()
    assert SaleRequest(**SALE | {"client_transaction_id": identifier}).client_transaction_id == identifier


PLAIN = st.text(max_size=4).filter(lambda text: (id_fault(text) or blank_fault(text)) is None)
KEYS = st.lists(PLAIN | st.integers(-99, 99), min_size=1, max_size=4)


@given(KEYS, KEYS)
@example(["a", "b"], ["ab"])
@example([1], ["1"])
@example(["str:1:a"], ["a"])
def test_different_keys_derive_different_ids(one: list[str | int], other: list[str | int]) -> None:
    """Neither the borders between keys nor their types are lost; whatever has no single spelling is no key."""
    assert (derive_id(*one) == derive_id(*other)) == (one == other)
    wrong: list[Any] = [(), (True,), (1.0,), (None,), (b"a",), ("a", Decimal(1))]
    for keys in wrong:
        with pytest.raises(TypeError, match=r"one or more texts or ints"):
            derive_id(*keys)


# --- The one rule of spelling, against the tables of the document

#: §2.2, without the flag, whose name is not shown.
SALE_FIELDS = """phoneNumber countryCode amount amountWithoutTax amountWithTax tax service tip currency
clientTransactionId storeId reference responseUrl timeZone lat lng clientUserId optionalParameter1 optionalParameter2
optionalParameter3 order nickName"""

#: §2.3, without the language parameter, whose name is not shown.
PREPARE_FIELDS = """amount amountWithoutTax amountWithTax tax service tip currency clientTransactionId storeId reference
phoneNumber email documentId responseUrl cancellationUrl optionalParameter order timeZone lat lng"""

#: §2.4
BILL_TO_FIELDS = """billToId address1 address2 country state locality firstName lastName phoneNumber email postalCode
customerId ipAddress"""
LINE_ITEM_FIELDS = "productName unitPrice quantity totalAmount taxAmount productSKU productDescription"

MODELS = [
    (SaleRequest, SALE_FIELDS, {"by_nick_name"}), (PrepareRequest, PREPARE_FIELDS, {"language"}),
    (Order, "billTo lineItems", set()), (BillTo, BILL_TO_FIELDS, set()), (LineItem, LINE_ITEM_FIELDS, set()),
    (SaleResult, "transactionId", {"raw"}), (PrepareResult, "paymentId", {"links", "raw", "wallet_link_field"}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "table", "ours"), MODELS)
def test_every_field_is_spelled_as_in_the_document(model: type, table: str, ours: set[str]) -> None:
    """§2.2 to §2.6: a model has the fields of its table, no more and no less; each spelling leads back to its field."""
    names = [one.name for one in attrs.fields(model) if one.name not in ours]
    assert {to_service(name) for name in names} == set(table.split())
    assert [from_service(to_service(name)) for name in names] == names


def test_other_spellings_of_the_samples_are_read() -> None:
    """§2.3 and §6 spell some names in other letter cases."""
    assert from_service("ResponseUrl") == "response_url"
    assert from_service("clientTransactionID") == "client_transaction_id"
