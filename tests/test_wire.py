"""Models to bytes, and answers to results or errors, over every answer that a service could give."""

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_service import sale
from payclient.answers import MAX_ENTRIES, retry_after
from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    ErrorDetail,
    InvalidRequestError,
    NotCreatedError,
    OutcomeUnknownError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
    ValidationFailedError,
)
from payclient.models import BillTo, LineItem, Order, PrepareRequest, PrepareResult, SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile, StatusProfile
from payclient.validation import is_safe_link
from payclient.wire import (
    HttpResponse,
    decode_confirm,
    decode_prepare,
    decode_sale,
    decode_status,
    encode_prepare,
    encode_sale,
)
from test_samples import sample

SHOP = ServiceProfile(
    name="shop",
    nick_name_flag="byNickName",
    language_field="lang",
    response_url_field="ResponseUrl",
    not_found_codes=frozenset({20}),
    refusing_statuses=frozenset({418, 429}),
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        state_field="transactionStatus",
        states={"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"},
    ),
)


def minimal_prepare(**changes: Any) -> PrepareRequest:
    return PrepareRequest(**{
        "currency": "USD", "client_transaction_id": "order-17", "store_id": "S1", "tax": 15,
        "response_url": "https://shop.example/paid", **changes,
    })  # fmt: skip


def encoded(request: SaleRequest | PrepareRequest, profile: ServiceProfile = DOCUMENT) -> dict[str, Any]:
    encode: Any = encode_sale if isinstance(request, SaleRequest) else encode_prepare
    data = json.loads(encode(request, profile).body)
    assert isinstance(data, dict)
    return data


# --- Models -> bytes


def test_only_what_was_given_is_sent() -> None:
    """The amount is the sum of the parts (§2.1); a part of 0 cents is present."""
    assert encoded(sale()) == {
        "phoneNumber": "0984111222", "countryCode": "593", "amount": 1150, "amountWithTax": 1000, "tax": 150,
        "currency": "USD", "clientTransactionId": "order-17", "storeId": "S1",
    }  # fmt: skip
    assert encoded(minimal_prepare()) == {
        "amount": 15, "tax": 15, "currency": "USD", "clientTransactionId": "order-17", "storeId": "S1",
        "responseUrl": "https://shop.example/paid",
    }  # fmt: skip
    zeros = encoded(sale(service=0, tip=0, time_zone=0))
    assert (zeros["service"], zeros["tip"], zeros["timeZone"]) == (0, 0, 0)
    item = LineItem(product_sku="1")
    for order, expected in (
        (Order(), {}), (Order(bill_to=BillTo()), {"billTo": {}}),
        (Order(line_items=(LineItem(), item)), {"lineItems": [{}, {"productSKU": "1"}]}),
    ):  # fmt: skip
        for request in (sale(order=order), minimal_prepare(order=order)):
            assert encoded(request)["order"] == expected, "every field of an order may be left out (§2.4)"


def test_names_that_the_document_leaves_to_the_profile() -> None:
    """§2.2, §2.3: the flag, the language and the redirect; a flag of false, its default, is not sent."""
    request = sale(by_nick_name=True, nick_name="ana")
    data = encoded(request, SHOP)
    assert (data["byNickName"], data["nickName"]) == (True, "ana")
    assert "byNickName" not in encoded(sale(), SHOP)
    with pytest.raises(ConfigurationError, match=r"nick_name_flag"):
        encode_sale(request, DOCUMENT)
    data = encoded(minimal_prepare(language="en"), SHOP)
    assert (data["lang"], data["ResponseUrl"]) == ("en", "https://shop.example/paid")
    assert not {"lang", "responseUrl"} & set(encoded(minimal_prepare(), SHOP))
    assert "responseUrl" in encoded(sale(response_url="https://shop.example/hook"), SHOP)
    with pytest.raises(ConfigurationError, match=r"language_field"):
        encode_prepare(minimal_prepare(language="es"), DOCUMENT)
    # §2.2 requires phoneNumber; a service may not.
    for blank in ("", "  ", None):
        request = sale(by_nick_name=True, nick_name="ana", phone_number=blank)
        with pytest.raises(InvalidRequestError) as caught:
            encode_sale(request, SHOP)
        assert caught.value.errors == (ErrorDetail("phoneNumber", 0, ("must be given",)),)
        assert caught.value.client_transaction_id == "order-17"
    assert "phoneNumber" not in encoded(request, attrs.evolve(SHOP, phone_optional_with_nick_name=True))


LIMITS = ServiceProfile(
    max_lengths={"client_transaction_id": 8, "reference": 5, "optional_parameter1": 1},
    ranges={"amount": (100, 5000), "time_zone": (-12, 14)},
)


def test_the_profiles_limits_are_checked_all_at_once() -> None:
    """§8: length and amount bounds are not shown; a profile may know them."""
    with pytest.raises(InvalidRequestError) as caught:
        encode_sale(
            sale(client_transaction_id="order-017", reference="a secret", tax=9000, time_zone=15),
            LIMITS,
        )
    assert caught.value.errors == (
        ErrorDetail("clientTransactionId", 0, ("must be at most 8 characters",)),
        ErrorDetail("reference", 0, ("must be at most 5 characters",)),
        ErrorDetail("Amount", 0, ("must be 100 to 5000",)),
        ErrorDetail("timeZone", 0, ("must be -12 to 14",)),
    )
    assert caught.value.client_transaction_id == "order-017"
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidRequestError, match="timeZone"):
        encode_sale(sale(time_zone=15), attrs.evolve(DOCUMENT, ranges={"time_zone": (-12, 14)}))
    with pytest.raises(InvalidRequestError) as caught:
        nobody = sale(by_nick_name=True, nick_name="ana", phone_number=None, reference="a secret")
        encode_sale(nobody, attrs.evolve(LIMITS, nick_name_flag="byNickName"))
    assert [error.message for error in caught.value.errors] == ["phoneNumber", "reference"]
    # A value at its bound passes, and one left out is not checked.
    assert encoded(sale(reference="12345", time_zone=-12), LIMITS)["reference"] == "12345"
    assert [encoded(minimal_prepare(tax=each), LIMITS)["amount"] for each in (100, 5000)] == [100, 5000]
    with pytest.raises(InvalidRequestError):
        encode_prepare(minimal_prepare(), LIMITS)


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]), max_size=60), st.integers(0, 10**18))
def test_what_a_model_takes_is_encoded_unchanged(text: str, cents: int) -> None:
    """Texts and cents are read back as they were."""
    data = encoded(sale(reference=text, optional_parameter3=text, amount_with_tax=None, tax=cents))
    assert (data["reference"], data["optionalParameter3"], data["amount"]) == (text, text, cents)


# --- The answer to a Sale


BUSY = '{"message": "m", "errorCode": 5, "errors": [{"message": "b", "errorCode": 2061}]}'

Unknown = OutcomeUnknownError


def outcome_of(
    reader: Callable[..., Any], status: int, body: Any, profile: ServiceProfile, headers: Any = None
) -> Any:
    """What comes of an answer with this JSON, or these bytes: a result or the error of ours."""
    response = HttpResponse(
        status, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    try:
        return reader(response, profile, *(() if reader is decode_status else ("order-17",)))
    except (RefusedError, OutcomeUnknownError) as error:
        return error


#: Of a Sale; tests/test_reading_answers.py has the table of all answers.
judged = partial(outcome_of, decode_sale, profile=DOCUMENT)


def test_an_error_object_is_kept_whole() -> None:
    """§7: messages, codes and descriptions, each in its place."""
    body = {
        "message": "general", "errorCode": 800,
        "errors": [
            {"message": "Amount", "errorCode": 0, "errorDescriptions": ["one", 5, "two"]},
            {"message": "no descriptions", "errorCode": 7}, "no entry", None, 5,
            {"message": 5, "errorCode": "7", "errorDescriptions": "x"}, {},
        ],
    }  # fmt: skip
    error = judged(400, body)
    assert (error.message, error.error_code) == ("general", 800)
    assert error.errors == (
        ErrorDetail("Amount", 0, ("one", "two")), ErrorDetail("no descriptions", 7), ErrorDetail(""),
        ErrorDetail(""),
    )  # fmt: skip
    assert error.user_messages == ("Amount: one; two", "no descriptions")
    # What is no list is none, and the general message is shown (§7.1); there is always one.
    for errors in (None, {}, "x", 5, True, {"errorCode": 2061}):
        error = judged(400, {"message": "general", "errorCode": 22, "errors": errors})
        assert (type(error), error.errors, error.user_messages) == (NotCreatedError, (), ("general",))
    assert judged(400, {"errorCode": 5}).user_messages == ("HTTP 400",)


def test_a_hostile_error_object_is_bounded_and_tamed() -> None:
    """Nothing in it can forge a log line, move a terminal's cursor or fill a disk."""
    evil = "line\nforged\x1b[2J\u2028\u202e" + "x" * 1000
    entry = {"message": evil, "errorCode": 1, "errorDescriptions": [evil] * 60}
    entries: list[dict[str, Any]] = [entry, *[entry | {"errorDescriptions": []}] * 59]
    error = judged(400, {"message": evil, "errorCode": 5, "errors": entries})
    assert len(error.errors) == MAX_ENTRIES
    assert len(error.errors[0].error_descriptions) == MAX_ENTRIES
    for text in (error.message, error.errors[0].message, error.errors[0].error_descriptions[0]):
        assert len(text) == 500
        assert text.isprintable()


# --- The answer to a Prepare


CARD, WALLET = "https://pay.example/card?t=1", "https://pay.example/wallet?t=2"
FORM: dict[str, Any] = {"paymentId": "p-1", "payWithCard": CARD, "payWithBrand": WALLET}


prepared = partial(outcome_of, decode_prepare, profile=DOCUMENT)


def test_a_prepared_form_has_every_link() -> None:
    """§2.6: an id and two links, one of which carries the brand in its name."""
    profile = attrs.evolve(SHOP, wallet_link_field="payWithBrand")
    result = prepared(200, FORM | {"payWithNothing": "", "payWithNull": None, "other": "x"}, profile=profile)
    assert isinstance(result, PrepareResult)
    assert (result.payment_id, dict(result.links)) == ("p-1", {"payWithCard": CARD, "payWithBrand": WALLET})
    assert (result.pay_with_card, result.pay_with_wallet) == (CARD, WALLET)
    assert result.raw["other"] == "x"
    assert "https" not in repr(result)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, FORM, PrepareResult), (201, FORM | {"message": None}, PrepareResult),
        (400, {"errorCode": 800, "message": "m"}, ValidationFailedError), (401, {"message": "m"}, UnauthorizedError),
        (400, {"errorCode": 22}, NotCreatedError), (429, {"errorCode": 5}, RateLimitedError),
        (500, {"errorCode": 5}, Unknown), (502, b"<html>", Unknown), (200, {}, Unknown), (200, b"", Unknown),
        (200, [FORM], Unknown), (200, {"paymentId": "p-1"}, Unknown), (200, FORM | {"paymentId": 5}, Unknown),
        (200, FORM | {"paymentId": ""}, Unknown), (200, FORM | {"paymentId": " "}, Unknown), (429, {}, Unknown),
        (200, FORM | {"paymentId": "a\nb"}, Unknown), (200, FORM | {"payWithCard": "http://pay.example/"}, Unknown),
        # A form alone charges nobody, so that a body with a paymentId is a form, whatever else it says (§4.3).
        *((status, FORM | json.loads(BUSY), PrepareResult) for status in (200, 400, 500)),
        *((status, FORM, PrepareResult) for status in (302, 404, 503)),
        (200, b"\xef\xbb\xbf" + json.dumps(FORM).encode(), PrepareResult), (400, json.loads(BUSY), CustomerBusyError),
        *((200, FORM | {"payWithBrand": link}, PrepareResult) for link in (None, "", ["x"])),
        (200, json.dumps(FORM).encode()[:-1], Unknown),
        *((200, FORM | {"paymentId": value}, Unknown)
          for value in (None, 12.0, True, ["p"], {"id": "p"}, "a\x00b", "x" * 5000, "\ud800")),
        (200, FORM | {"payWithBrand": "ftp://pay.example/c"}, Unknown),
        *((200, {"paymentId": "p-1", "payWithCard": link}, Unknown) for link in (None, "", 5, [CARD], {"url": CARD})),
    ],
)  # fmt: skip
def test_each_answer_to_a_prepare_is_one_of_three(status: int, body: Any, kind: type) -> None:
    """§4.3: one with a paymentId is a success; the error object refuses; all else tells nothing."""
    outcome = prepared(status, body)
    found: type = type(outcome)
    assert found is kind
    if found is not PrepareResult:
        assert (outcome.http_status, outcome.client_transaction_id) == (status, "order-17")


@pytest.mark.parametrize(
    ("link", "hosts", "safe"),
    [
        *((link, None, True) for link in (
            CARD, "HTTPS://pay.example/", "https://pay.example:8443/x#y", "http://localhost/x",
            "http://127.1.2.3:8080/x", "http://[::1]/x")),
        *((link, None, False) for link in (
            "http://pay.example/", "http://10.0.0.1/", "//pay.example/", "/x", "javascript:alert(1)", "https://",
            "https:///x", "https://[x/", "https://a@pay.example/", "https://pay.example\\@evil.example/",
            "https://pay.example\\.evil.example/", "https://pay.example:x/", "https://pay.example/a b",
            "https://pay.example/\n", "https://pay.exámple/",
            "https://pay.example:99999/")),
        ("https://PAY.example/x", {"pay.example"}, True), ("https://evil.example/x", {"pay.example"}, False),
        ("https://pay.example.evil.example/x", {"pay.example"}, False), ("https://pay.example/x", set(), False),
    ],
)  # fmt: skip
def test_a_link_is_safe_or_not(link: str, hosts: set[str] | None, safe: bool) -> None:
    """A form link is a redirect: https, or http to this machine, no tricks, and to a host of the profile's."""
    assert is_safe_link(link, None if hosts is None else frozenset(hosts)) is safe


# --- The answer to a status query


report = partial(outcome_of, decode_status, profile=SHOP)


def entry(identifier: object, state: object) -> dict[str, object]:
    return {"transactionId": identifier, "transactionStatus": state}


def test_what_is_not_strictly_of_its_type_is_not_read() -> None:
    """It is named unless null; a word that the profile does not map is no state, not even one of the document's."""
    wrong: dict[str, tuple[str, list[Any]]] = {
        "transactionId": ("transaction_id", ["5", 5.0, True, 0, -1, 2**63, None, [5]]),
        "clientTransactionId": ("client_transaction_id", [5, None, ["a"]]),
        "amount": ("amount", ["315", 315.0, True, None]),
        "currency": ("currency", [5, None, ["USD"]]),
    }
    for name, (field, values) in wrong.items():
        for value in values:
            found = report(200, sample("status_approved.json") | {name: value})
            assert (found.state, getattr(found, field)) == ("Aceptado", None), value
            assert found.unreadable == (() if value is None else (name,))
    for word in (
        "Reversed", "approved", "", "Aceptado", "Pendiente", "Cancelado", None, 3, ["Approved"], True,
    ):  # fmt: skip
        found = report(200, entry(5, word))
        assert (found.state, found.transaction_id) == (None, 5), word


@pytest.mark.parametrize(
    ("entries", "state", "identifier", "also"),
    [
        ([entry(1, "Approved")], "Aceptado", 1, ()),
        ([entry(1, "Canceled"), entry(2, "Approved"), entry(3, "Pending")], "Aceptado", 2, ()),
        ([entry(1, "Approved"), entry(2, "Approved")], "Aceptado", 1, (2,)),
        ([entry(3, "Approved"), entry(1, "Canceled"), entry(2, "Approved"), entry(1, "Approved")],
         "Aceptado", 3, (2, 1)),
        ([entry(1, "Approved"), entry(1, "Approved")], "Aceptado", 1, ()),
        ([entry(1, "Approved"), entry("x", "Approved")], "Aceptado", 1, ()),
        ([entry(1, "Approved"), entry(2, "Reversed")], "Aceptado", 1, ()),
        ([entry(1, "Canceled"), entry(2, "Pending")], "Pendiente", 2, ()),
        ([entry(1, "Reversed"), entry(2, "Pending")], "Pendiente", None, ()),
        ([entry(1, "Pending"), entry(2, "Pending")], "Pendiente", None, ()),
        ([entry(1, "Pending"), entry(1, "Pending")], "Pendiente", 1, ()),
        ([entry(1, "Canceled"), entry(2, "Reversed")], None, 2, ()),
        ([entry(1, "Canceled"), entry(2, "Canceled")], "Cancelado", None, ()),
        ([entry(1, "Canceled"), {}], None, None, ()),
    ],
)  # fmt: skip
def test_an_array_is_reduced(
    entries: list[dict[str, object]], state: str | None, identifier: int | None, also: tuple[int, ...]
) -> None:
    """Any accepted, else any pending, else what nobody can name, else cancelled; a second accepted is shown."""
    found = report(200, entries)
    assert (found.state, found.transaction_id, found.also_accepted) == (state, identifier, also)


def test_what_names_no_id_may_be_ours() -> None:
    """Beside a report that names ours: only what names another one is left out."""
    ours = entry(1, "Canceled") | {"clientTransactionId": "order-17"}
    others = entry(2, "Approved") | {"clientTransactionId": "order-171"}
    for beside, state in ((entry(2, "Approved"), "Aceptado"), (others, "Cancelado")):
        found = decode_status(HttpResponse(200, {}, json.dumps([ours, beside]).encode()), SHOP, "order-17")
        assert found is not None
        assert found.state == state
    alone = decode_status(HttpResponse(200, {}, json.dumps([others]).encode()), SHOP, "order-17")
    assert alone is not None, "what names another id alone is no proof that there is nothing"


def test_an_array_that_nobody_means_is_not_read() -> None:
    """A thousand transactions of one id are the most."""
    assert report(200, [entry(5, "Approved")] * 1000).state == "Aceptado"
    assert type(report(200, [entry(5, "Approved")] * 1001)) is Unknown


def test_not_found() -> None:
    """An empty array, or one of the profile's codes; a gateway's error, or two things said at once, prove nothing."""
    assert report(200, []) is None
    for status in (200, 400, 404):
        assert report(status, sample("reverse_error_20.json")) is None
    for status in (302, 500, 502):
        assert type(report(status, sample("reverse_error_20.json"))) is Unknown
    for status in (200, 404):
        assert type(report(status, {"errorCode": 20} | entry(5, "Approved"))) is RefusedError
    twice = b'{"transactionStatus": "Pending", "transactionStatus": "Approved", "transactionId": 5}'
    for body in (
        twice,
        b"[" + twice + b"]",
        b'{"errorCode": 20, "errorCode": 5}',
        b'{"errorCode": 5, "errorCode": 20}',
    ):
        assert type(report(200, body)) is Unknown


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"message": "m"}, UnauthorizedError), (403, {"errorCode": 5}, UnauthorizedError),
        (401, {}, UnauthorizedError), (401, "<html>", UnauthorizedError), (403, {}, Unknown),
        (401, {"errorCode": 20}, UnauthorizedError), (403, {"errorCode": 20}, UnauthorizedError),
        (408, {"errorCode": 20}, Unknown), (425, {"errorCode": 20}, Unknown), (499, {"errorCode": 20}, Unknown),
        (429, {"errorCode": 20}, RateLimitedError),
        (400, {"errorCode": 25}, RefusedError), (200, {"errorCode": 25}, RefusedError),
        (200, {"errorCode": 0}, Unknown), (408, {"errorCode": 25}, Unknown),
        (429, {"errorCode": 5}, RateLimitedError), (429, {}, RateLimitedError), (429, "slow", RateLimitedError),
        (429, {"message": "slow"}, RateLimitedError), (400, {"errorCode": True}, Unknown),
        (404, {"errorCode": "20"}, Unknown),
        (404, {"errorCode": 20.0}, Unknown), (500, {"errorCode": 25}, Unknown), (200, {}, Unknown),
        (200, None, Unknown),
        (200, "ok", Unknown), (200, 5, Unknown), (200, [5], Unknown), (200, [entry(1, "Approved"), None], Unknown),
        (404, [], Unknown), (500, [], Unknown), (302, entry(1, "Approved"), Unknown),
        (404, entry(1, "Approved"), Unknown),
        (500, entry(1, "Approved"), Unknown), (204, {"transactionId": 5}, Unknown), (404, {}, Unknown),
        (502, "<html>", Unknown),
    ],
)  # fmt: skip
def test_a_query_that_tells_nothing_raises(status: int, body: object, kind: type[Exception]) -> None:
    """None of these says anything about the transaction."""
    for profile in (SHOP, attrs.evolve(SHOP, refusing_statuses=())):
        error = report(status, body, profile=profile)
        assert (type(error), error.http_status) == (kind, status)
        if not isinstance(body, list):  # nor does such an answer to a confirmation
            assert type(outcome_of(decode_confirm, status, body, profile)) is kind


# --- Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None), ({"Retry-After": "120"}, 120.0), ({"retry-after": "1.5"}, 1.5), ({"RETRY-AFTER": " 7 "}, 7.0),
        ({"Retry-After": "0"}, 0.0), ({"Retry-After": "-5"}, 0.0), ({"Retry-After": "99999"}, 3600.0),
        ({"Retry-After": "1e400"}, None), ({"Retry-After": "nan"}, None), ({"Retry-After": "inf"}, None),
        ({"Retry-After": ""}, None), ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
    ],
)  # fmt: skip
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, an hour at most; junk is nothing. Each 429 carries them."""
    assert retry_after(HttpResponse(429, headers)) == seconds
    for error in (
        judged(429, {"errorCode": 5}, headers=headers), judged(429, b"", profile=SHOP, headers=headers),
        report(429, {}, headers=headers),
        report(429, {}, profile=attrs.evolve(SHOP, refusing_statuses=()), headers=headers),
    ):  # fmt: skip
        assert isinstance(error, RateLimitedError)
        assert error.retry_after == seconds


@given(st.text(max_size=60) | st.floats().map(str))
def test_retry_after_is_total(value: str) -> None:
    """Whatever the header says, it is a sane number of seconds or None."""
    seconds = retry_after(HttpResponse(429, {"Retry-After": value}))
    assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= 3600)
