"""The simulator as one real service: its names, its shapes, and what it lets a client write."""

import contextlib
import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manual_clock import ManualClock
from payclient.simulator import PAYPHONE, TEST_MODE, Fault, Settings, Simulator
from payclient.simulator.messages import (
    MESSAGE_CODES,
    MESSAGES,
    REASONS,
    Reason,
    RefusalError,
    preferred_language,
    say,
)
from payclient.simulator.rules import fields_of, parse_body, read, valid_body
from play_clients import CLIENTS, play
from simulated import BEARER, SHOP, Client, Merchant, client, client_of, clock, merchant, prepare_of, sale_of

__all__ = ["client", "clock", "merchant"]

SAMPLES = Path(__file__).parent / "samples"
BACK = "https://shop.example/back?cart=9"


@pytest.fixture
def settings() -> Settings:
    return PAYPHONE


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text(encoding="utf-8"))


def changed(**settings: Any) -> pytest.MarkDecorator:
    """The tests below this mark meet another service."""
    return pytest.mark.parametrize("settings", [attrs.evolve(PAYPHONE, **settings)], ids=[""])


# What clients send


def written(value: object, chance: Random) -> object:
    """A value as some client writes it."""
    if isinstance(value, dict):
        members = [(cased(name, chance), written(one, chance)) for name, one in value.items()]
        return dict(chance.sample(members, len(members)))
    if isinstance(value, list):
        return [written(one, chance) for one in value]
    if isinstance(value, int):
        return chance.choice([value, str(value), f" {value}"])
    if isinstance(value, str) and value.isdecimal() and not value.startswith("0"):
        return chance.choice([value, int(value)])
    return value


def cased(name: str, chance: Random) -> str:
    return "".join(chance.choice([letter.lower(), letter.upper()]) for letter in name)


def spelled(members: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**32).map(lambda seed: written(members, Random(seed)))  # noqa: S311 - no secret


SAMPLE_SALE, SAMPLE_PREPARE = sample("sale_request.json"), sample("prepare_request.json")


@given(sale=spelled({**SAMPLE_SALE, "clientTransactionId": "42"}), form=spelled(SAMPLE_PREPARE))
def test_any_spelling_reads_the_same(sale: dict[str, Any], form: dict[str, Any]) -> None:
    """Any case of any name, at any depth, in any order, and any way to write a number; null is as good as absent."""
    assert valid_body("sale", sale, PAYPHONE) == {**SAMPLE_SALE, "clientTransactionId": "42"}
    there = {name: value for name, value in SAMPLE_PREPARE.items() if value is not None}
    assert valid_body("prepare", form, PAYPHONE) == there


@given(
    raw=st.binary(max_size=60),
    kind=st.sampled_from(["application/json", "application/x-www-form-urlencoded"]),
)
def test_any_bytes_are_read_or_refused(raw: bytes, kind: str) -> None:
    body: dict[str, object] = {}
    with contextlib.suppress(RefusalError):
        body, _ = read("sale", parse_body(kind, raw, PAYPHONE), PAYPHONE)
    assert body.keys() <= fields_of("sale", PAYPHONE).keys()


@given(st.booleans() | st.floats() | st.sampled_from(["1e3", "1,150", "11.50", "٣"]))
def test_what_is_no_whole_number_is_not_made_one(value: object) -> None:
    """Tolerance ends where money would be guessed."""
    body, faults = read("sale", {"Amount": value}, PAYPHONE)
    assert type(body["amount"]) is type(value)
    assert "amount" in {fault.field for fault in faults}


_SALE_NEEDS = ["phoneNumber", "countryCode", "amount", "clientTransactionId"]


@pytest.mark.parametrize(
    ("path", "changes", "failing"),
    [
        ("/api/Sale", dict.fromkeys(_SALE_NEEDS, ...), _SALE_NEEDS),
        ("/api/Sale", {"phoneNumber": ..., "chargeByNickName": True, "nickName": "ann"}, []),
        ("/api/Sale", {"phoneNumber": ..., "chargeByNickName": True}, ["nickName"]),
        ("/api/Sale", {"timeZone": -12}, []), ("/api/Sale", {"timeZone": -13}, ["timeZone"]),
        ("/api/Sale", {"timeZone": 15}, ["timeZone"]),
        ("/api/Sale", {"amount": 99_999_999, "amountWithTax": 99_999_999, "tax": None}, []),
        ("/api/Sale", {"amount": 100_000_000, "amountWithTax": 99_999_999, "tax": 1}, ["amount"]),
        ("/api/Sale", {"amount": 0, "amountWithTax": 0, "tax": None}, ["amount"]),
        ("/api/Sale", {"amount": 999, "tax": -1}, ["tax"]), ("/api/Sale", {"clientTransactionId": "x" * 200}, []),
        ("/api/Sale", {"reference": "x" * 101}, ["reference"]),
        ("/api/button/Prepare", dict.fromkeys(["amount", "clientTransactionId", "responseUrl"], None),
         ["amount", "clientTransactionId", "responseUrl"]),
        ("/api/button/Prepare", {"clientTransactionId": "x" * 50}, []),
        ("/api/button/Prepare", {"clientTransactionId": "x" * 51}, ["clientTransactionId"]),
        ("/api/button/Prepare", {"reference": "x" * 100}, []),
    ],
)  # fmt: skip
async def test_requirements_ranges_and_lengths(
    client: Client, path: str, changes: dict[str, Any], failing: list[str]
) -> None:
    """Bounds of amounts, of the offset from UTC, and of the button's texts; a Sale's id has none that is known."""
    body_of = sale_of if path == "/api/Sale" else prepare_of
    assert await client.failing(path, body_of(**changes)) == failing


# What is answered


async def test_a_status_has_every_field(client: Client) -> None:
    """An approved payment has every field that a recorded one has, with ids, money and card; others leave some out."""
    recorded = sample("status_approved.json")
    one = await client.paid(
        phoneNumber="+593999999999", email="aloy@mail.com", documentId="1234567890",
        reference="Pago por venta Fact#001", optionalParameter="Descripción Extra",
        amount=315, amountWithTax=315, tax=None,
    )  # fmt: skip
    _, answer = await client.confirm(one)
    assert set(recorded) - set(answer) == {"message"}  # null there, left out here
    assert set(answer) - set(recorded) == {"taxes"}
    same = {
        "email", "phoneNumber", "document", "currency", "amount", "optionalParameter3", "reference",
        "statusCode",
    }  # fmt: skip
    assert {name: answer[name] for name in same} == {name: recorded[name] for name in same}
    assert answer["date"] == "2023-11-14T17:13:20.000"
    names = {f"optionalParameter{number}": f"text {number}" for number in (1, 2, 3)}
    two = await client.sale(2, **names)
    _, pending = await client.get(f"/api/Sale/{two}")
    assert pending["phoneNumber"] == "593900000002"
    assert names.items() <= pending.items()
    assert not {"cardType", "authorizationCode", "message"} & set(pending)
    assert "reference" not in pending


_SMALL = {"amount": 99, "amountWithoutTax": 99, "amountWithTax": None, "tax": None}


@changed(
    stores=frozenset({"S1"}), refuse_with={"0990000000": 120, "order-9": 22, "order-8": 127}, least_amount=100
)
async def test_each_code_has_its_status(client: Client) -> None:
    """404 for 20, 100 and 120; 400 for 800, 23 and 107; of the others it is a setting."""
    await client.sale()
    sale, prepare = "/api/Sale", "/api/button/Prepare"
    for path, body, expected in (
        (sale, sale_of(2, storeId="S2"), (404, 100)),
        (sale, sale_of(2, phoneNumber="0990000000"), (404, 120)),
        (sale, sale_of(2, tax=14), (400, 800)),
        (sale, sale_of(), (400, 23)),
        (sale, sale_of(9), (400, 22)),
        (sale, sale_of(8), (400, 127)),
        (sale, sale_of(**_SMALL, clientTransactionId="order-2"), (400, 107)),
        (prepare, prepare_of(**_SMALL), (400, 107)),
        (prepare, prepare_of(storeId="S2"), (404, 100)),
    ):
        status, error = await client.post(path, body)
        assert (status, error["errorCode"]) == expected
    assert error["message"].startswith("La tienda asociada no existe.")
    assert (client.service.counts.created, client.service.counts.prepared) == (1, 0)


async def test_messages_follow_accept_language(client: Client) -> None:
    """Messages are Spanish unless the request prefers English; names of fields and data are as they are."""
    preferred = {"": "es", "en": "en", "fr, en;q=0.1": "en", "es, en": "es", "de": "es"}
    assert {header: preferred_language(header) for header in preferred} == preferred
    for spanish, english in MESSAGES.values():
        assert spanish != english
        assert [f"{{{one}}}" in spanish for one in range(3)] == [f"{{{one}}}" in english for one in range(3)]
    english_please = {**BEARER, "Accept-Language": "en-US,en;q=0.9,es;q=0.5"}
    _, error = await client.sell(sale_of(tax=14, countryCode=...), headers=english_please)
    assert error["message"] == "The validations have failed"
    assert [(one["message"], one["errorDescriptions"]) for one in error["errors"]] == [
        ("countryCode", ["The field countryCode is required"]),
        ("Amount", ["The amount is not the sum of its components"]),
    ]
    one = await client.sale(reference="Transacción no existe")
    await client.service.reject(one)
    _, answer = await client.get(f"/api/Sale/{one}", headers=english_please)
    assert answer["message"] == "The customer did not approve the transaction"
    assert answer["reference"] == "Transacción no existe"


async def test_thirty_queries_a_minute(client: Client, clock: ManualClock) -> None:
    """Past the limit the answer is 429, saying when to come back; other requests are answered."""
    one = await client.sale()
    for _ in range(30):
        await client.state(one)
        await clock.advance(1)
    status, answer = await client.get("/api/Sale/client/order-1")
    assert (status, list(answer), client.headers["Retry-After"]) == (429, ["message"], "30")
    await clock.advance(29.5)
    assert (await client.get(f"/api/Sale/{one}"))[0] == 429
    assert client.headers["Retry-After"] == "1"
    await clock.advance(0.5)
    assert (await client.get(f"/api/Sale/{one}"))[0] == 200
    assert (await client.post("/api/Cancel", {"id": one}))[0] == 200


async def test_every_request_is_counted_once(client: Client) -> None:
    """Created, prepared, asked, confirmed, cancelled, reversed or refused: together all requests."""
    sale = await client.sale()
    assert type((await client.control("counts"))[1]["requests"]) is int  # of the first one, too
    form = await client.paid()
    await client.confirm(form)
    await client.state(form)
    await client.post("/api/Reverse", {"id": form})
    await client.post("/api/Cancel", {"id": sale})
    await client.post("/api/Cancel", {"id": sale})
    await client.get("/api/Regions")
    _, counts = await client.control("counts")
    names = ("created", "prepared", "queries", "confirms", "reversed", "cancelled", "refused")
    assert [counts[name] for name in names] == [1] * 7
    assert (counts["requests"], counts["collected"]) == (7, 0)


# The truth about answers


@pytest.mark.parametrize("name", CLIENTS)
async def test_real_clients_are_answered_as_published(client: Client, name: str) -> None:
    """Requests that others' clients send, and the names and types of the published answers."""
    assert await play(client.service.url, CLIENTS[name]) == []


@changed(refuses_second_form=True)
async def test_an_unpaid_forms_id_is_refused(client: Client) -> None:
    """A retry, a double click, a reload: 400 with code 23, whatever became of the form; another id is free."""
    payment_id = (await client.form()).payment_id
    for _ in range(2):
        status, error = await client.prepare(prepare_of())
        assert (status, error["errorCode"]) == (400, 23)
        if client.service.forms[payment_id].how is None:
            await client.service.cancel_form(payment_id)
    await client.form(2)
    assert client.service.counts.prepared == 2
    # A setting turns it off; a paid one is taken all the same.
    await client.control("change_settings", changes={"refuses_second_form": False})
    await client.paid()
    assert (await client.prepare(prepare_of()))[1]["errorCode"] == 23


async def test_another_spelling_of_a_phone_is_refused(client: Client) -> None:
    """It is never another customer: the true one's pending push would not be seen."""
    await client.sale()
    for phone in ("900000001", 900000001, "+593900000001", "593900000001", "0900 000 001"):
        status, error = await client.sell(sale_of(2, phoneNumber=phone))
        assert (status, error["errorCode"]) == (404, 120)
    status, error = await client.sell(sale_of(1, clientTransactionId="order-2"))
    assert error["errors"][0]["errorCode"] == 2061


@pytest.mark.parametrize("reason", REASONS)
async def test_every_reason_of_a_decline(client: Client, reason: Reason) -> None:
    """By the control route for a sale and a form, and by a form's page: its code, its words, and the card."""
    call = client.control
    sale, first = await client.sale(), await client.form()
    second = await client.form(2)
    assert (await call("reject", sale=sale, reason=reason))[0] == 200
    assert (await call("pay", payment_id=first.payment_id, reason=reason))[0] == 200
    page = f"/Anonymous/Index?paymentId={second.payment_id}"
    assert f'value="{reason}"' in (await client.get(page, headers=SHOP))[1]
    await client.send("POST", page, headers=SHOP, data={"outcome": "reject", "reason": reason})
    for number in (sale, sale + 1, sale + 2):
        _, answer = await client.get(f"/api/Sale/{number}")
        assert (answer["statusCode"], answer["message"]) == (2, say(reason, "es"))
        assert answer["messageCode"] == MESSAGE_CODES[reason] != 0
        assert {"bin", "lastDigits", "cardBrand", "authorizationCode", "email"} <= set(answer)
    declined = (*client.service.sales.values(), *client.service.forms.values())
    assert {one.reason for one in declined} == {reason}


async def test_declined_cards_and_test_mode() -> None:
    """One scenario declines each card for one of the reasons, the same in every run; test mode approves all."""
    seen = []
    for make in (partial(Simulator, answers=TEST_MODE), *[partial(Simulator.scenario, "declined-cards")] * 2):
        clock = ManualClock()
        async with make(settings=PAYPHONE, clock=clock) as service:
            for number in range(40):
                phone = f"09840000{number:02}"
                service.create_sale(sale_of(clientTransactionId=f"order-{number}", phoneNumber=phone))
            await clock.advance(60)
            seen.append([(sale.how, sale.reason) for sale in service.sales.values()])
    approved, first, second = seen
    assert set(approved) == {("approved", None)}
    assert first == second
    assert set(first) == {("rejected", reason) for reason in REASONS}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_service_errors_prove_nothing(client: Client, when: str) -> None:
    """With whichever HTTP status; the sale may have been created."""
    cases = [(code, status) for code in (500, 501) for status in (200, 400, 500)]
    for number, (code, status) in enumerate(cases, 1):
        client.service.fail_next(Fault("refuse", error_code=code, status=status, when=when))
        body = sale_of(clientTransactionId=f"order-{number}", phoneNumber=f"098400000{number}")
        answered, error = await client.sell(body)
        assert (answered, error["errorCode"]) == (status, code)
        assert client.service.counts.created == (number if when == "after" else 0)


# From outside


async def test_settings_change_from_outside(client: Client) -> None:
    """Stores, domains, kind of application and names, for the requests that come; a path is there at once."""
    change = partial(client.control, "change_settings")
    changes = {"stores": ["S1"], "application": "API", "registered_domains": "shop.example, shop.localhost"}
    assert (await change(changes=changes))[0] == 200
    status, error = await client.sell(sale_of(storeId="S2"))
    assert (status, error["errorCode"]) == (404, 100)
    assert (await client.prepare(prepare_of()))[0] == 401
    assert client.service.settings.registered_domains == frozenset({"shop.example", "shop.localhost"})
    assert (await change(changes={"paths": {"cancel": ["/api/Void"]}}))[0] == 200
    sale = await client.sale(storeId="S1")
    assert await client.post("/api/Void", {"id": sale}) == (200, True)
    assert (await client.post("/api/Cancel", {"id": sale}))[0] == 404
    for name, value in (("stors", []), ("cors", "yes"), ("sale_window", -1), ("application", "APP")):
        assert (await change(changes={name: value}))[0] == 409
    tokens = {"token-2": "shop"}
    assert (await client.control("use_accounts", accounts=tokens))[0] == 200
    assert (await client.get(f"/api/Sale/{sale}"))[0] == 401


async def test_a_payment_is_reversed_on_its_day_before_eight_in_the_evening(
    client: Client, clock: ManualClock
) -> None:
    """The day is Ecuador's, and begins at noon unless a clock is given: a test at 01:00 UTC can reverse as well."""
    async with client_of(PAYPHONE) as other:
        assert other.service.local_time().hour == 12
    assert client.service.local_time().hour == 17
    # From 19:00 on it is tomorrow in UTC.
    for at, expected in (("12:00", 200), ("19:30", 200), ("20:00", 404), ("19:59:59", 200), ("23:59", 404)):
        one = await client.paid(clientTransactionId=f"form-{at}")
        assert (await client.control("set_time_of_day", time_of_day=at))[0] == 200
        assert (await client.post("/api/Reverse", {"id": one}))[0] == expected
    assert (await client.control("set_time_of_day", time_of_day="25:00"))[0] == 409
    sale = await client.sale()
    await client.service.approve(sale)
    await clock.advance(43_200)
    assert (await client.post("/api/Reverse", {"id": sale}))[0] == 404, "the next morning"


@changed(cors=True)
async def test_scripts_of_other_pages_may_be_let_in(client: Client) -> None:
    """A preflight and an answer say so to a browser."""
    asked = {"Origin": "http://shop.example", "Access-Control-Request-Method": "POST"}
    assert (await client.send("OPTIONS", "/api/Sale", headers=asked))[0] == 204
    assert "Authorization" in client.headers["Access-Control-Allow-Headers"]
    await client.sale()
    assert client.headers["Access-Control-Allow-Origin"] == "*"
    await client.control("change_settings", changes={"cors": False})
    assert (await client.send("OPTIONS", "/api/Sale", headers=asked))[0] == 405
    assert "Access-Control-Allow-Origin" not in client.headers


# Forms


async def test_the_links_have_the_real_names(client: Client) -> None:
    """Each of the two links opens a form."""
    _, answer = await client.prepare(prepare_of())
    assert set(answer) == {"paymentId", "payWithPayPhone", "payWithCard"}
    query = f"?paymentId={answer['paymentId']}"
    assert answer["payWithPayPhone"] == f"{client.service.url}/PayPhone/Index{query}"
    assert answer["payWithCard"] == f"{client.service.url}/Anonymous/Index{query}"
    for name in ("payWithPayPhone", "payWithCard"):
        path = answer[name].removeprefix(client.service.url)
        status, page = await client.get(path, headers=SHOP)
        assert status == 200
        assert 'value="pay"' in page


@changed(registered_domains=frozenset({"shop.example"}))
async def test_the_way_back(client: Client) -> None:
    """`id` and `clientTransactionId` behind what the address has; 0 when cancelled; `msg` for a foreign domain."""
    back = f"{BACK}&id={{}}&clientTransactionId={{}}"
    urls = {"responseUrl": BACK, "cancellationUrl": None}
    forms = [await client.form(clientTransactionId=name, **urls) for name in ("a", "b", "c")]
    paths = [f"/Anonymous/Index?paymentId={form.payment_id}" for form in forms]
    for path, outcome, *expected in ((paths[0], "cancel", 0, "a"), (paths[1], "reject", 1001, "b")):
        await client.get(path, headers=SHOP)
        status, _ = await client.send("POST", path, headers=SHOP, data={"outcome": outcome})
        assert (status, client.headers["Location"]) == (303, back.format(*expected))
    await client.get(paths[2], headers={"Referer": "https://other.example/"})
    query = dict(parse_qsl(urlsplit(client.headers["Location"]).query))
    assert query == {"cart": "9", "msg": MESSAGES["foreign domain"][0], "clientTransactionId": "c"}
    assert client.service.counts.forms_cancelled == 1


async def test_a_confirmed_form_is_kept_and_another_reversed(client: Client, clock: ManualClock) -> None:
    """Confirmed, as often as it is called, the money stays; unconfirmed it is given back in five minutes."""
    one, two = await client.paid(), await client.paid(2)
    await clock.advance(299.9)
    status, first = await client.confirm(one)
    assert (status, first["transactionStatus"], first["amount"]) == (200, "Approved", 1150)
    again = await client.post("/API/Button/v2/confirm", {"Id": str(one), "ClientTxId": "form-1"})
    assert again == (200, first)
    assert (await client.state(two), client.service.counts.collected) == ("Approved", 2 * 1150)
    await clock.advance(0.1)
    status, answer = await client.confirm(two, "form-2")
    assert (status, answer["statusCode"], answer["message"]) == (200, 2, "Cancelada")
    await clock.advance(86_400)
    assert await client.state(one) == "Approved"
    counts = client.service.counts
    done = (counts.confirms, counts.forms_paid, counts.reversed_unconfirmed, counts.collected)
    assert done == (3, 2, 1, 1150)
    assert client.service.collected_per_client_id["form-1"] == 1150
    _, forms = await client.control("forms")
    kept = [(form["confirmed"], form["reversal"]) for form in forms]
    assert kept == [(True, None), (False, "unconfirmed")]


async def test_a_confirm_must_match(client: Client) -> None:
    """Another merchant's id, an unknown one, a sale, or half a body confirms nothing."""
    one = await client.paid()
    two = await client.sale()
    for answer in (
        await client.confirm(one, "form-2"), await client.confirm(one + 7),
        await client.confirm(two, "order-1"), await client.confirm(0),
    ):  # fmt: skip
        assert (answer[0], answer[1]["errorCode"]) == (404, 20)
    status, error = await client.post("/api/button/V2/Confirm", {"id": "x"})
    assert (status, [entry["message"] for entry in error["errors"]]) == (400, ["clientTxId", "id"])
    # Null or absent, as a shop sends that did not read the address.
    for body in ({"clientTxId": "form-1"}, {"id": None}):
        assert (await client.post("/api/button/V2/Confirm", body))[1]["errorCode"] == 20
    assert client.service.counts.confirms == 0


@changed(confirm_window=6, states={"unconfirmed": "Pendiente", "reversed": "Aceptado"})
async def test_what_is_unpublished_about_confirming_is_settings(client: Client, clock: ManualClock) -> None:
    """The window, the state before and the state after can each be another."""
    one = await client.paid()
    assert await client.state(one) == "Pending"
    await client.confirm(one)
    assert await client.state(one) == "Approved"
    two = await client.paid(2)
    await clock.advance(6)
    assert await client.state(two) == "Approved"
    assert client.service.counts.collected == 1150


# Cancel and reverse


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/Cancel", {"id": 1001}), ("/api/cancel", {"Id": "1001"}), ("/api/Cancel/Client", {"clientId": "order-1"}),
        ("/api/Reverse", {"id": 1001}), ("/api/reverse/set", {"id": "1001"}),
        ("/api/Reverse/Client", {"clientId": "order-1"}),
    ],
)  # fmt: skip
async def test_a_sale_is_undone_once(client: Client, path: str, body: dict[str, object]) -> None:
    """A pending push is cancelled, a payment of today reversed, with a bare true; else code 25 with 2029, or 20."""
    cancels = "cancel" in path.lower()
    too_late = (400, sample("cancel_error_25.json")) if cancels else (404, sample("reverse_error_20.json"))
    assert await client.post(path, body) == too_late, "nothing is there"
    await client.sale()
    if not cancels:
        assert await client.post(path, body) == too_late, "pending"
        await client.service.approve(1001)
        assert client.service.counts.collected == 1150
    assert await client.post(path, body) == (200, True)
    assert await client.post(path, body) == too_late
    counts = client.service.counts
    assert (counts.cancelled, counts.reversed, counts.pending, counts.collected) == (
        cancels,
        not cancels,
        0,
        0,
    )
    _, said = await client.get("/api/Sale/1001")
    assert (said["statusCode"], said["transactionStatus"]) == (2, "Canceled")
    if not cancels:
        assert (said["message"], said["messageCode"], said["authorizationCode"]) == ("Cancelada", 34, "W1001")
    paid = await client.paid()
    assert (await client.post("/api/Cancel", {"id": paid}))[0] == 400
    assert await client.state(paid) == "Approved"


# What is told


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"Response": True, "ErrorCode": "000"}, ", acknowledged"), ("gracias", ""),
        ({"Response": False, "ErrorCode": "333"}, ", duplicate"), ({"Response": True, "ErrorCode": "333"}, ""),
        ({"Response": False, "ErrorCode": "222"}, ""),
    ],
)  # fmt: skip
async def test_the_external_notification(
    merchant: Merchant, clock: ManualClock, answer: object, outcome: str
) -> None:
    """Approved payments alone are told of, by a POST of names in capitals, and the answer is written down."""
    merchant.answer = answer
    # A browser finds `shop.localhost` on this machine, and so does the service.
    url = merchant.url.replace("127.0.0.1", "shop.localhost")
    async with client_of(attrs.evolve(PAYPHONE, external_notification_url=url), clock=clock) as client:
        no = await client.sale(2)
        await client.service.reject(no)
        yes = await client.sale(storeId="S1")
        await client.service.approve(yes)
        form = await client.paid()
        await client.service.notifications_done()
        told = [(one.transaction_id, one.text) for one in client.service.log if one.kind == "notification"]
        assert sorted(told) == [(one, f"external notification{outcome}") for one in (yes, form)]
        assert client.service.counts.notifications_sent == 2
        away = {"external_notification_url": "http://127.0.0.1:1/"}
        await client.control("change_settings", changes=away)
        await client.paid(2)
        await client.service.notifications_done()
        counts = client.service.counts
        assert (counts.notifications_failed, counts.collected) == (1, 3 * 1150), "a payment stands"
    bodies = [body for method, query, body in merchant.received if method == "POST" and not query]
    assert [body["TransactionId"] for body in bodies] == [yes, form]
    assert bodies[1]["StoreId"]  # a store by default
    body = {
        "Amount": 1150, "ClientTransactionId": "order-1", "StatusCode": 3, "TransactionStatus": "Approved",
        "AuthorizationCode": f"W{yes}", "StoreId": "S1", "PhoneNumber": "593900000001", "Currency": "USD",
        "DeferredMessage": None, "Products": [],
    }  # fmt: skip
    assert body.items() <= bodies[0].items()
