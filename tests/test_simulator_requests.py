"""What the simulated service makes of a request: of whom, in which form, with which fields (§2, §5)."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manual_clock import ManualClock
from payclient.simulator import PAYPHONE, Answers, Settings
from payclient.simulator.rules import read
from simulated import (
    BEARER,
    QUERIES,
    SHOP,
    TYPED,
    Client,
    client,
    client_of,
    clock,
    prepare_of,
    sale_of,
    settings,
)

__all__ = ["client", "clock", "settings"]

SALE, PREPARE = "/api/Sale", "/api/button/Prepare"
BOTH = pytest.mark.parametrize(
    ("path", "body_of"), [(SALE, sale_of), (PREPARE, prepare_of)], ids=["sale", "prepare"]
)


# Who asks


async def test_without_a_bearer_token_nothing_is_done(client: Client) -> None:
    """Every request carries a bearer token (§5); without one the answer is 401 with a message alone."""
    for value in (None, "Bearer ", "Basic token-1", "Bearer"):
        headers = {} if value is None else {"Authorization": value}
        for method, path, body in (
            ("POST", SALE, sale_of()), ("POST", PREPARE, prepare_of()), ("GET", "/api/Sale/1001", None),
            ("GET", "/api/Sale/client/a", None),
        ):  # fmt: skip
            status, answer = await client.send(method, path, json=body, headers=headers)
            assert (status, list(answer)) == (401, ["message"])
    counts = client.service.counts
    assert (counts.created, counts.prepared, counts.refused) == (0, 0, 8)


async def test_each_token_finds_its_own_accounts_transactions() -> None:
    """Two accounts at one address: neither sees, blocks or undoes the other's sales; a rotated token sees all."""
    other = {"Authorization": "Bearer token-2"}
    settings = QUERIES.changed({"duplicate_code": 23, "paths": {"cancel": ["/api/Cancel"]}})
    async with client_of(token="token-2") as client:
        assert (await client.sell(sale_of()))[0] == 401
        assert (await client.sell(sale_of(), headers=other))[0] == 200
    # The document says nothing of a foreign id; the real service, 401 by id and not found by the merchant's.
    for chosen, foreign in ((settings, 404), (PAYPHONE, 401)):
        accounts = {"token-1": "shop", "token-2": "other"}
        async with client_of(chosen, accounts=accounts) as client:
            assert (await client.sell(sale_of(), headers={"Authorization": "Bearer token-3"}))[0] == 401
            assert await client.sale() == 1001
            assert (await client.get("/api/Sale/1001"))[0] == 200
            assert (await client.get("/api/Sale/1001", headers=other))[0] == foreign
            for path in ("/api/Sale/7", "/api/Sale/client/order-1"):
                assert (await client.get(path, headers=other))[0] == 404
            assert (await client.post("/api/Cancel", {"id": 1001}, headers=other))[0] == 400
            # The same id, customer and store are neither a repeat nor a pending transaction there.
            assert (await client.sell(sale_of(), headers=other))[0] == 200
            assert client.service.sales[1002].account == "other"
            accounts["token-9"] = accounts.pop("token-1")
            assert (await client.get("/api/Sale/1001"))[0] == 401
            rotated = {"Authorization": "Bearer token-9"}
            assert (await client.get("/api/Sale/client/order-1", headers=rotated))[0] == 200


# In which form


@BOTH
async def test_a_body_is_a_json_object_of_a_megabyte_at_most(client: Client, path: str, body_of: Any) -> None:
    """Anything else fails validation (§5.2), and one without end is refused, in JSON, and logged."""
    headers = {**BEARER, "Content-Type": "application/json"}
    for raw in (b"", b"{", b"[]", b"1", b'"text"', b"null", b"\xff", b"[" * 5000):
        assert await client.failing(path, None, data=raw, headers=headers) == ["body"]
    body = json.dumps(body_of()).encode()
    for kind in ("text/plain", "application/octet-stream", "text/json"):
        other = {**BEARER, "Content-Type": kind}
        assert await client.failing(path, None, data=body, headers=other) == ["Content-Type"]
    status, answer = await client.send("POST", path, data=io.BytesIO(b" " * 2_000_000), headers=headers)
    assert (status, list(answer)) == (413, ["message"])
    assert (client.service.log[-1].text, client.service.log[-1].status) == (f"POST {path}", 413)


# With which fields


@pytest.mark.parametrize("absent", [..., None, "", " "])
@pytest.mark.parametrize(
    ("path", "body_of", "names"),
    [
        (SALE, sale_of, ["phoneNumber", "countryCode", "amount", "currency", "clientTransactionId"]),
        (PREPARE, prepare_of, ["amount", "currency", "clientTransactionId", "storeId", "responseUrl"]),
    ],
)
async def test_required_fields_are_named_together(
    client: Client, path: str, body_of: Any, names: list[str], absent: object
) -> None:
    """Each missing required field gives an entry of one error object (§2.2, §2.3, §7.5)."""
    assert await client.failing(path, body_of(**dict.fromkeys(names, absent))) == names
    assert not client.service.sales
    assert not client.service.forms


_WRONG: list[tuple[str, object]] = [
    ("amount", True), ("amount", 1150.0), ("amount", "1150"), ("amount", 2**70), ("tip", False), ("tip", "0"),
    ("tax", "150"), ("storeId", 7), ("timeZone", "-5"), ("timeZone", -5.0), ("lat", 1.5), ("order", []),
    ("responseUrl", 7),
]  # fmt: skip
_WRONG_IN_PREPARE: list[tuple[str, object]] = [
    ("email", 7), ("documentId", 102030405), ("optionalParameter", {}), ("responseUrl", "shop.example/paid"),
    ("responseUrl", "https://"), ("responseUrl", "http://["), ("responseUrl", "https://shop.example:port/"),
    ("responseUrl", "https://shop.example/\r\nSet-Cookie: a=b"), ("cancellationUrl", "nowhere"),
    ("phoneNumber", "0984111222"), ("phoneNumber", "+0984111222"), ("phoneNumber", "+593 984111222"),
    ("phoneNumber", "+٥٩٣٩"), ("phoneNumber", ""), ("phoneNumber", 593984111222),
]  # fmt: skip


@BOTH
async def test_a_wrong_field_is_named(client: Client, path: str, body_of: Any) -> None:
    """Types are as listed, booleans are not integers; a form's phone is `+`, country code and number (§2.2, §2.3)."""
    wrong = [*_WRONG, *([("phoneNumber", 984111222)] if path == SALE else _WRONG_IN_PREPARE)]
    for field, value in wrong:
        assert await client.failing(path, body_of(**{field: value})) == [field], value


_ORDER = {"billTo": {"country": 593, "city": 1}, "lineItems": [{"quantity": 1}, {"quantity": "1"}, 3]}
_FULL_ORDER = {
    "billTo": {"billToId": 1, "country": "EC"},
    "lineItems": [{"productSKU": "a", "unitPrice": 1150}],
}


@BOTH
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"order": _ORDER}, ["order.billTo.country", "order.lineItems[1].quantity", "order.lineItems[2]"]),
        ({"order": {"billTo": [], "lineItems": {}}}, ["order.billTo", "order.lineItems"]),
        # null stands for an absent optional field, and an unknown field is nobody's fault.
        ({"order": None, "tip": None, "reference": None, "unheardOf": [1]}, []),
        ({"order": _FULL_ORDER, "timeZone": -5, "lat": "1.0"}, []),
        # The parts of the sum (§2.1, §7.6).
        ({"amount": 1151}, ["Amount"]),
        ({"amountWithTax": ..., "tax": None}, ["Amount"]),
        ({"amountWithoutTax": 150, "tax": ...}, ["tax"]),
        ({"amount": 5, "amountWithTax": ..., "tax": ..., "tip": 5}, []),
    ],
)
async def test_members_and_sums(
    client: Client, path: str, body_of: Any, changes: dict[str, Any], names: list[str]
) -> None:
    """Faults inside `order` (§2.4) are named by their path, a wrong sum as Amount, a tax that is missing as tax."""
    assert await client.failing(path, body_of(**changes)) == names


_PARTS = ("amountWithoutTax", "amountWithTax", "tax", "service", "tip")


@given(parts=st.dictionaries(st.sampled_from(_PARTS), st.integers(0, 10**8)), error=st.integers(-3, 3))
def test_the_sum_rule_holds_for_all_components(parts: dict[str, int], error: int) -> None:
    """The total passes exactly when there is a component and the components add up to it (§2.1)."""
    body = sale_of(**{**dict.fromkeys(_PARTS, ...), **parts}, amount=sum(parts.values()) + error)
    names = {fault.field for fault in read("sale", body, Settings())[1]}
    assert ("Amount" in names) == (error != 0 or not parts)
    mixed = bool(parts.get("amountWithoutTax") and parts.get("amountWithTax"))
    assert ("tax" in names) == (mixed and "tax" not in parts)


async def test_the_nick_name_is_the_customer_when_the_flag_says_so() -> None:
    """With the flag the request goes to the user name (§2.2), so that name is the customer."""
    ann: dict[str, Any] = {"byNick": True, "nickName": "ann"}
    settings = Settings(nick_name_flag="byNick", optional_fields=frozenset({"phoneNumber"}))
    async with client_of(settings) as client:
        await client.sale(1, **ann)
        assert (await client.sell(sale_of(2, **ann, phoneNumber=...)))[1]["errorCode"] == 22
        await client.sale(1, byNick=False)
        for changes, name in (
            ({"byNick": True}, "nickName"),
            ({"byNick": "yes"}, "byNick"),
            ({**ann, "phoneNumber": 5}, "phoneNumber"),
        ):
            assert await client.failing(SALE, sale_of(3, **changes)) == [name]
    async with client_of(Settings(nick_name_flag="byNick")) as client:
        assert await client.failing(SALE, sale_of(1, **ann, phoneNumber=...)) == ["phoneNumber"]


async def test_the_names_of_a_form_are_settings(client: Client) -> None:
    """Both spellings of the redirect (§2.3); a language where it has a name; the wallet link's own name (§2.6)."""
    address = "https://shop.example/other"
    assert (await client.form(responseUrl=..., ResponseUrl=address)).response_url == address
    assert await client.failing(PREPARE, prepare_of(responseUrl=..., ResponseUrl="x")) == ["responseUrl"]
    assert (await client.form(lang="en")).language == "es"
    async with client_of(Settings(language_field="lang", wallet_link_field="payWithBrand")) as other:
        for given_language, language in (("en", "en"), ("es", "es"), (..., "es"), (None, "es")):
            assert (await other.form(lang=given_language)).language == language
        for wrong in ("fr", 1):
            assert await other.failing(PREPARE, prepare_of(lang=wrong)) == ["lang"]
        assert list((await other.prepare(prepare_of()))[1]) == ["paymentId", "payWithBrand", "payWithCard"]


async def test_repeated_ids() -> None:
    """The default creates a second sale and counts it; with a code for it nothing is created, by neither operation."""
    async with client_of() as client:
        await client.sale(1)
        await client.sale(2, clientTransactionId="order-1")
        assert client.service.created_per_client_id == {"order-1": 2}
    async with client_of(Settings(duplicate_code=23)) as client:
        await client.form()
        await client.paid()  # what was only prepared is free
        for path, body in ((PREPARE, prepare_of()), (SALE, sale_of(clientTransactionId="form-1"))):
            status, answer = await client.post(path, body)
            assert (status, answer["errorCode"]) == (400, 23)
        assert client.service.counts.created == 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"status_by_transaction_id": "/api/Sale"}, "transaction_id"),
        ({"status_by_client_transaction_id": "/api/Sale/{transaction_id}"}, "status_by_client"),
        ({"sale_window": 0}, "sale_window"),
        ({"form_window": 0}, "form_window"),
        ({"confirm_window": 0}, "confirm_window"),
        ({"queries_per_minute": 0}, "queries_per_minute"),
        ({"reversal_hour": 25}, "reversal_hour"),
        ({"registered_domains": frozenset({"https://shop.example"})}, "registered_domains"),
        ({"registered_domains": frozenset({"shop.example:8000"})}, "registered_domains"),
        ({"registered_domains": frozenset({"Shop.example"})}, "registered_domains"),
        ({"wallet_link_field": "payWithCard"}, "wallet_link_field"),
        ({"wallet_link_field": ""}, "wallet_link_field"),
        ({"paths": {"refund": ("/api/Refund",)}}, "paths"),
        ({"paths": {"confirm": "/api/Confirm"}}, "paths"),
        ({"states": {"unconfirmed": "Approved"}}, "states"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Settings(**wrong)


# Whatever arrives

_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)


def _around(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


# In layers, since `st.recursive` needs eight times as long to make them up as the service to answer.
JSON = _around(_around(_LEAF))
_FIELDS = st.sampled_from(
    [
        *sale_of(), *prepare_of(), *_PARTS, "order", "nickName", "byNick", "ResponseUrl", "reference",
        "lang", "optionalParameter",
    ]
)  # fmt: skip
_ORDERS = st.fixed_dictionaries({"billTo": JSON, "lineItems": st.lists(JSON)})
_ADDRESSES = st.text().map(lambda text: "https://shop.example/" + text) | st.text().map("https://".__add__)


@given(
    path=st.sampled_from([SALE, PREPARE]),
    changes=st.lists(st.dictionaries(_FIELDS, JSON | _ORDERS | _ADDRESSES), max_size=5),
    others=st.lists(JSON, max_size=3),
)
async def test_no_json_crashes_it(path: str, changes: list[dict[str, Any]], others: list[object]) -> None:
    """Whatever JSON arrives, the answer is a success or an error object, and every form can be paid."""
    settings = Settings(
        nick_name_flag="byNick", optional_fields=frozenset({"phoneNumber"}), language_field="lang"
    )
    body_of = sale_of if path == SALE else prepare_of
    bodies = [body_of(**change) for change in changes] + others
    async with client_of(settings, clock=ManualClock(), answers=Answers()) as client:
        for body in bodies:
            status, answer = await client.post(path, body)
            assert status in {200, 400}
            assert ("errorCode" in answer) == (status == 400)
            if "payWithCard" in answer:
                assert 'value="pay"' in (await client.get(answer["payWithCard"], headers=SHOP))[1]
                await client.send("POST", answer["payWithCard"], data=TYPED)
                assert client.headers["Location"].isascii()
        counts = client.service.counts
        assert counts.created + counts.prepared + counts.refused == counts.requests == len(bodies)
        assert counts.forms_paid == counts.prepared
