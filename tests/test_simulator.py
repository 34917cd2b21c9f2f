"""The simulated service, asked over real HTTP; time is moved by hand."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from yarl import URL

import control
from payclient.simulator import Answers, ManualClock, Settings, Simulator
from payclient.simulator.addresses import with_query
from payclient.simulator.rules import failing_fields

BEARER = {"Authorization": "Bearer token-1"}
BY_ID = "/api/Sale/{transaction_id}"
BY_CLIENT_ID = "/api/Sale/client/{client_transaction_id}"
QUERIES = Settings(status_by_transaction_id=BY_ID, status_by_client_transaction_id=BY_CLIENT_ID)

Answer = tuple[int, Any]


def body_of(number: int = 1, /, **changes: Any) -> dict[str, object]:
    """A valid Sale of one customer; a change to `...` takes the field out."""
    body: dict[str, object] = {
        "phoneNumber": f"09{number:08}",
        "countryCode": "593",
        "amount": 1150,
        "amountWithTax": 1000,
        "tax": 150,
        "currency": "USD",
        "clientTransactionId": f"order-{number}",
        "storeId": "S1",
    }
    return {name: value for name, value in {**body, **changes}.items() if value is not ...}


async def ask(
    service: Simulator,
    method: str,
    path: str,
    *,
    headers: dict[str, str] = BEARER,
    **options: Any,
) -> Answer:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, service.url + path, headers=headers, **options) as response,
    ):
        return response.status, json.loads(await response.read())


async def post(service: Simulator, body: object, **options: Any) -> Answer:
    return await ask(service, "POST", "/api/Sale", json=body, **options)


async def created(service: Simulator, body: object) -> int:
    status, answer = await post(service, body)
    assert status == 200, answer
    assert type(answer["transactionId"]) is int
    return int(answer["transactionId"])


def failing(answer: Answer) -> list[str]:
    status, error = answer
    assert status == 400
    assert error["errorCode"] == 800
    for entry in error["errors"]:
        assert entry["errorCode"] == 0
        assert entry["errorDescriptions"]
    return [entry["message"] for entry in error["errors"]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def service(clock: ManualClock) -> AsyncIterator[Simulator]:
    async with Simulator(clock=clock, settings=QUERIES) as simulator:
        yield simulator


class Merchant:
    """The merchant's server, which writes down what it is sent."""

    def __init__(self) -> None:
        self.received: list[tuple[str, list[tuple[str, str]]]] = []
        self.status = 200
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.received.append((request.method, list(request.query.items())))
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})


@pytest.fixture
async def merchant() -> AsyncIterator[Merchant]:
    it = Merchant()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", it.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield it
    await runner.cleanup()


# Creating


async def test_a_valid_sale_is_created_pending(service: Simulator, clock: ManualClock) -> None:
    """A valid request is answered with a transaction id, and its sale is Pendiente (§3)."""
    transaction_id = await created(service, body_of(1))
    sale = service.sales[transaction_id]
    assert (sale.state, sale.how, sale.decided_at) == ("Pendiente", None, None)
    assert (sale.client_transaction_id, sale.store_id) == ("order-1", "S1")
    assert (sale.amount, sale.currency, sale.created_at) == (1150, "USD", clock.time())
    assert "0900000001" not in repr(sale)


@pytest.mark.parametrize(
    "header",
    [{}, {"Authorization": "Bearer "}, {"Authorization": "Basic token-1"}, {"Authorization": "Bearer"}],
)
async def test_without_a_bearer_token_nothing_is_created(service: Simulator, header: dict[str, str]) -> None:
    """Every request carries a bearer token (§5); without one the answer is 401 with a message alone."""
    status, answer = await post(service, body_of(), headers=header)
    assert (status, list(answer)) == (401, ["message"])
    assert (service.counts.created, service.counts.refused) == (0, 1)
    assert (await ask(service, "GET", "/api/Sale/1001", headers=header))[0] == 401
    assert (await ask(service, "GET", "/api/Sale/client/a", headers=header))[0] == 401


async def test_a_given_token_is_the_only_one() -> None:
    """A simulator with a token of its own takes no other."""
    async with Simulator(token="token-2") as service:
        assert (await post(service, body_of()))[0] == 401
        assert (await post(service, body_of(), headers={"Authorization": "Bearer token-2"}))[0] == 200


async def test_each_token_finds_its_own_accounts_transactions() -> None:
    """Two accounts at one address: neither sees, blocks or undoes the other's sales; a rotated token sees all."""
    accounts = {"token-1": "shop", "token-2": "other"}
    other = {"Authorization": "Bearer token-2"}
    settings = Settings(
        status_by_transaction_id=BY_ID,
        status_by_client_transaction_id=BY_CLIENT_ID,
        duplicate_code=23,
        paths={"cancel": ("/api/Cancel",)},
    )
    async with Simulator(accounts=accounts, settings=settings) as service:
        assert (await post(service, body_of(), headers={"Authorization": "Bearer token-3"}))[0] == 401
        status, created = await post(service, body_of())
        assert (await ask(service, "GET", "/api/Sale/1001"))[0] == 200
        for path in ("/api/Sale/1001", "/api/Sale/client/order-1"):
            assert (await ask(service, "GET", path, headers=other))[0] == 404
        cancelled = await ask(service, "POST", "/api/Cancel", json={"id": 1001}, headers=other)
        assert (status, created, cancelled[0]) == (200, {"transactionId": 1001}, 400)
        # The same id, customer and store are neither a repeat nor a pending transaction there.
        assert (await post(service, body_of(), headers=other))[0] == 200
        assert service.sales[1002].account == "other"
        accounts["token-9"] = accounts.pop("token-1")
        assert (await ask(service, "GET", "/api/Sale/1001"))[0] == 401
        rotated = {"Authorization": "Bearer token-9"}
        assert (await ask(service, "GET", "/api/Sale/client/order-1", headers=rotated))[0] == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'"text"', b"null", b"\xff", b"[" * 5000])
async def test_a_body_that_is_no_json_object_is_refused(service: Simulator, raw: bytes) -> None:
    """Message bodies are JSON objects; anything else fails validation."""
    headers = {**BEARER, "Content-Type": "application/json"}
    assert failing(await ask(service, "POST", "/api/Sale", data=raw, headers=headers)) == ["body"]


async def test_another_content_type_is_refused(service: Simulator) -> None:
    """Every request carries `Content-Type: application/json` (§5.2)."""
    answer = await ask(service, "POST", "/api/Sale", data=json.dumps(body_of()).encode())
    assert failing(answer) == ["Content-Type"]


@pytest.mark.parametrize("absent", [..., None, "", " "])
async def test_required_fields_are_named_together(service: Simulator, absent: object) -> None:
    """Each missing required field gives an entry of one error object (§2.2, §7.5)."""
    names = ["phoneNumber", "countryCode", "amount", "currency", "clientTransactionId"]
    answer = await post(service, body_of(**dict.fromkeys(names, absent)))
    assert failing(answer) == names
    assert not service.sales


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("phoneNumber", 984111222),
        ("amount", True),
        ("amount", 1150.0),
        ("amount", "1150"),
        ("amount", 2**70),
        ("tip", False),
        ("tax", "150"),
        ("storeId", 7),
        ("timeZone", "-5"),
        ("timeZone", -5.0),
        ("order", []),
    ],
)
async def test_a_wrong_type_names_its_field(service: Simulator, field: str, value: object) -> None:
    """Integers are integers and no booleans, strings are strings (§2.2)."""
    assert failing(await post(service, body_of(**{field: value}))) == [field]


async def test_the_order_is_checked_member_by_member(service: Simulator) -> None:
    """Faults inside `order` (§2.4) are named by their path."""
    order = {"billTo": {"country": 593, "city": 1}, "lineItems": [{"quantity": 1}, {"quantity": "1"}, 3]}
    names = failing(await post(service, body_of(order=order)))
    assert names == ["order.billTo.country", "order.lineItems[1].quantity", "order.lineItems[2]"]
    assert failing(await post(service, body_of(order={"billTo": [], "lineItems": {}}))) == [
        "order.billTo",
        "order.lineItems",
    ]


async def test_null_unknown_and_full_fields_pass(service: Simulator) -> None:
    """null stands for an absent optional field, and an unknown field is nobody's fault."""
    order = {
        "billTo": {"billToId": 1, "country": "EC"},
        "lineItems": [{"productSKU": "a", "unitPrice": 1150}],
    }
    body = body_of(tip=None, reference=None, timeZone=-5, lat="1.0", order=order, unheardOf=[1])
    await created(service, body)
    await created(service, body_of(2, order=None))


async def test_the_parts_of_the_sum(service: Simulator) -> None:
    """A wrong sum and a total without components fail as Amount; a mixed charge needs its tax (§2.1)."""
    assert failing(await post(service, body_of(amount=1151))) == ["Amount"]
    assert failing(await post(service, body_of(amountWithTax=..., tax=None))) == ["Amount"]
    assert failing(await post(service, body_of(amountWithoutTax=150, tax=...))) == ["tax"]
    await created(service, body_of(amount=5, amountWithTax=..., tax=..., tip=5))


_PARTS = ("amountWithoutTax", "amountWithTax", "tax", "service", "tip")


@given(
    parts=st.dictionaries(st.sampled_from(_PARTS), st.integers(0, 10**8)),
    error=st.integers(-3, 3),
)
def test_the_sum_rule_holds_for_all_components(parts: dict[str, int], error: int) -> None:
    """The total passes exactly when there is a component and the components add up to it (§2.1)."""
    removed = dict.fromkeys(_PARTS, ...)
    names = {
        fault.field
        for fault in failing_fields(
            "sale", body_of(**{**removed, **parts}, amount=sum(parts.values()) + error), Settings()
        )
    }
    assert ("Amount" in names) == (error != 0 or not parts)
    mixed = bool(parts.get("amountWithoutTax") and parts.get("amountWithTax"))
    assert ("tax" in names) == (mixed and "tax" not in parts)


_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)


def _around(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)


# In layers, since `st.recursive` needs eight times as long to make them up as the service to answer.
JSON = _around(_around(_LEAF))
_FIELDS = st.sampled_from([*body_of(), *_PARTS, "order", "nickName", "byNickName", "responseUrl", "storeId"])
_ORDERS = st.fixed_dictionaries({"billTo": JSON, "lineItems": st.lists(JSON)})


@given(
    changes=st.lists(st.dictionaries(_FIELDS, JSON | _ORDERS), max_size=5),
    others=st.lists(JSON, max_size=3),
)
@hypothesis_settings(max_examples=60, deadline=None)
async def test_no_json_crashes_the_service(changes: list[dict[str, object]], others: list[object]) -> None:
    """Whatever JSON arrives, the answer is a transaction id or an error object."""
    settings = Settings(nick_name_flag="byNickName", optional_fields=frozenset({"phoneNumber"}))
    bodies = [body_of(**change) for change in changes] + others
    async with Simulator(clock=ManualClock(), settings=settings, answers=Answers()) as service:
        async with aiohttp.ClientSession(headers=BEARER) as session:
            for body in bodies:
                async with session.post(service.url + "/api/Sale", json=body) as response:
                    assert response.status in {200, 400}
                    answer = json.loads(await response.read())
                    assert ("transactionId" in answer) != ("errorCode" in answer)
        assert service.counts.requests == len(bodies)
        assert service.counts.created + service.counts.refused == len(bodies)


async def test_a_customer_with_a_pending_sale_at_the_store_is_refused(
    service: Simulator, clock: ManualClock
) -> None:
    """One customer has one pending sale per store: 22 with 2061 (§7.3), until it is decided or expires."""
    await created(service, body_of(1))
    again = body_of(1, clientTransactionId="order-1b", countryCode="+593")
    assert await post(service, again) == (
        400,
        {
            "message": "La transacción no pudo ser creada por favor inténtelo de nuevo",
            "errorCode": 22,
            "errors": [
                {"message": "El cliente tiene transacciones pendientes con su local", "errorCode": 2061}
            ],
        },
    )
    await created(service, body_of(1, storeId="S2"))
    await created(service, body_of(1, storeId=None))
    await created(service, body_of(2))
    await clock.advance(300)
    second = await created(service, again)
    await service.reject(second)
    await created(service, again)


async def test_the_nick_name_is_the_customer_when_the_flag_says_so() -> None:
    """With the flag the request goes to the user name (§2.2), so that name is the customer."""
    settings = Settings(nick_name_flag="byNick", optional_fields=frozenset({"phoneNumber"}))
    async with Simulator(settings=settings) as service:
        ann = {"byNick": True, "nickName": "ann"}
        await created(service, body_of(1, **ann))
        assert (await post(service, body_of(2, **ann, phoneNumber=...)))[1]["errorCode"] == 22
        await created(service, body_of(1, byNick=False))
        assert failing(await post(service, body_of(3, byNick=True))) == ["nickName"]
        assert failing(await post(service, body_of(3, byNick="yes"))) == ["byNick"]
        assert failing(await post(service, body_of(3, **ann, phoneNumber=5))) == ["phoneNumber"]
    async with Simulator(settings=Settings(nick_name_flag="byNick")) as service:
        assert failing(await post(service, body_of(1, **ann, phoneNumber=...))) == ["phoneNumber"]


async def test_a_repeated_client_id_charges_twice(service: Simulator) -> None:
    """The document promises no refusal of a repeat, so the default creates a second sale and counts it."""
    await created(service, body_of(1))
    await created(service, body_of(2, clientTransactionId="order-1"))
    assert service.created_per_client_id == Counter({"order-1": 2})


async def test_a_repeat_is_refused_where_the_service_has_a_code_for_it() -> None:
    """With `duplicate_code` a repeated client id is refused and nothing is created."""
    async with Simulator(settings=Settings(duplicate_code=23)) as service:
        await created(service, body_of(1))
        status, answer = await post(service, body_of(2, clientTransactionId="order-1"))
        assert (status, answer["errorCode"], service.counts.created) == (400, 23, 1)


async def test_refused_phones_create_nothing() -> None:
    """A phone that is to be refused is answered with code 22 (§7.2)."""
    settings = Settings(refuse_with={"0900000001": 22}, error_statuses={22: 422})
    async with Simulator(settings=settings) as service:
        status, answer = await post(service, body_of(1))
        assert (status, answer["errorCode"], answer["errors"]) == (422, 22, [])
        assert (service.counts.created, service.counts.refused) == (0, 1)


# Deciding


async def test_a_sale_expires_after_five_minutes(
    service: Simulator, clock: ManualClock, merchant: Merchant
) -> None:
    """After the window the sale is Cancelado (§3), and nothing is sent (§6)."""
    start = clock.time()
    transaction_id = await created(service, body_of(responseUrl=merchant.url))
    await clock.advance(299.9)
    assert service.sales[transaction_id].state == "Pendiente"
    await clock.advance(0.1)
    sale = service.sales[transaction_id]
    assert (sale.state, sale.how, sale.decided_at) == ("Cancelado", "expired", start + 300)
    await service.notifications_done()
    assert (merchant.received, service.counts.expired, service.counts.pending) == ([], 1, 0)
    assert clock.next_timer is None


async def test_a_late_timer_does_not_stretch_the_window(service: Simulator, clock: ManualClock) -> None:
    """A request after the window finds the sale expired even if the loop has not yet fired the timer."""
    transaction_id = await created(service, body_of())
    clock._monotonic = 301.0
    with pytest.raises(ValueError, match="expired"):
        await service.approve(transaction_id)
    await created(service, body_of(1))


@pytest.mark.parametrize(
    ("verb", "how", "state"), [("approve", "approved", "Aceptado"), ("reject", "rejected", "Cancelado")]
)
async def test_the_customers_answer_decides_and_notifies(
    service: Simulator, clock: ManualClock, merchant: Merchant, verb: str, how: str, state: str
) -> None:
    """Approval and rejection decide at once and send `id` and `clientTransactionID` to responseUrl (§6)."""
    body = body_of(responseUrl=f"{merchant.url}/hook?shop=7&x=a%20b#top", clientTransactionId="órder 1&2")
    transaction_id = await created(service, body)
    await clock.advance(10)
    await getattr(service, verb)(transaction_id)
    sale = service.sales[transaction_id]
    assert (sale.state, sale.how, sale.decided_at) == (state, how, clock.time())
    query = [("shop", "7"), ("x", "a b"), ("id", str(transaction_id)), ("clientTransactionID", "órder 1&2")]
    assert merchant.received == [("GET", query)]
    assert sale.notification == "HTTP 200"
    assert service.counts.notifications_sent == 1
    await clock.advance(300)
    assert sale.how == how


@pytest.mark.parametrize("verb", ["approve", "reject", "ignore"])
async def test_only_a_pending_sale_can_be_answered(service: Simulator, verb: str) -> None:
    """An unknown sale is a LookupError, a decided one a ValueError."""
    transaction_id = await created(service, body_of())
    await service.approve(transaction_id)
    with pytest.raises(ValueError, match="approved"):
        await getattr(service, verb)(transaction_id)
    with pytest.raises(LookupError, match="99"):
        await getattr(service, verb)(99)


async def test_the_states_after_an_answer_are_settings(merchant: Merchant) -> None:
    """The resulting states and the notification's method are not shown (§3, §6), so they can be set."""
    settings = Settings(states={"approved": "Cancelado"}, notification_method="POST")
    async with Simulator(settings=settings) as service:
        transaction_id = await created(service, body_of(responseUrl=merchant.url))
        await service.approve(transaction_id)
        assert service.sales[transaction_id].state == "Cancelado"
        assert merchant.received[0][0] == "POST"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "no address", "ftp://127.0.0.1/", "http://[", "x:"])
async def test_a_failed_delivery_is_recorded(service: Simulator, url: str) -> None:
    """A merchant that cannot be reached changes nothing about the sale."""
    transaction_id = await created(service, body_of(responseUrl=url))
    await service.approve(transaction_id)
    sale = service.sales[transaction_id]
    assert sale.state == "Aceptado"
    assert sale.notification is not None
    assert not sale.notification.startswith("HTTP")
    assert (service.counts.notifications_sent, service.counts.notifications_failed) == (0, 1)


@pytest.mark.parametrize("status", [302, 500])
async def test_a_delivery_is_neither_redirected_nor_repeated(
    service: Simulator, merchant: Merchant, status: int
) -> None:
    """A notification is sent once, whatever the merchant's server answers."""
    merchant.status = status
    transaction_id = await created(service, body_of(responseUrl=merchant.url))
    await service.approve(transaction_id)
    assert len(merchant.received) == 1
    assert service.sales[transaction_id].notification == f"HTTP {status}"


def test_the_parameters_join_an_existing_query() -> None:
    """The separator suits the address, and a fragment stays behind them."""
    ids: dict[str, str | int] = {"id": 1, "clientTransactionID": "b"}
    assert with_query("http://a/", ids) == "http://a/?id=1&clientTransactionID=b"
    assert with_query("http://a/?", ids) == "http://a/?id=1&clientTransactionID=b"
    assert with_query("http://a/?c=d#e", ids) == "http://a/?c=d&id=1&clientTransactionID=b#e"


# The crowd


async def crowd_of(numbers: list[int], answers: Answers) -> dict[str, tuple[str | None, float]]:
    clock = ManualClock()
    start = clock.time()
    async with Simulator(clock=clock, answers=answers) as service:
        for number in numbers:
            await created(service, body_of(number))
        await clock.advance(300)
        assert service.counts.pending == 0
        return {s.client_transaction_id: (s.how, (s.decided_at or 0) - start) for s in service.sales.values()}


async def test_the_crowd_does_not_depend_on_the_order_of_arrival() -> None:
    """An id and the seed decide the answer and its time; another seed decides otherwise."""
    answers = Answers(approve=0.4, reject=0.3, ignore=0.3, delay=(5.0, 0.5), seed=1)
    numbers = list(range(40))
    first = await crowd_of(numbers, answers)
    assert first == await crowd_of(numbers[::-1], answers)
    assert {str(how) for how, _ in first.values()} == {"approved", "rejected", "expired"}
    assert first != await crowd_of(
        numbers, Answers(approve=0.4, reject=0.3, ignore=0.3, delay=(5.0, 0.5), seed=2)
    )


async def test_the_crowd_answers_on_the_clock_and_notifies(merchant: Merchant) -> None:
    """The crowd's answer comes after its delay, with a notification; a later sale may be answered earlier."""
    clock, delays = ManualClock(), iter([60.0, 20.0])
    answers = Answers(approve=1, reject=0, ignore=0, delay=lambda _: next(delays))
    async with Simulator(clock=clock, answers=answers) as service:
        slow = await created(service, body_of(1, responseUrl=merchant.url))
        quick = await created(service, body_of(2, responseUrl=merchant.url))
        await clock.advance(20)
        assert (service.sales[quick].how, service.sales[slow].how) == ("approved", None)
        await clock.advance(40)
        assert service.sales[slow].how == "approved"
        await service.notifications_done()
        assert service.counts.notifications_sent == len(merchant.received) == 2


async def test_an_ignored_push_expires_whatever_the_crowd_had_in_mind() -> None:
    """`ignore` takes the customer out of the crowd, and so does an answer after the window."""
    clock, delays = ManualClock(), iter([60.0, 300.0])
    async with Simulator(
        clock=clock, answers=Answers(delay=lambda _: next(delays), approve=1, reject=0, ignore=0)
    ) as service:
        first, second = await created(service, body_of(1)), await created(service, body_of(2))
        await service.ignore(first)
        await clock.advance(300)
        assert (service.sales[first].how, service.sales[second].how) == ("expired", "expired")


def test_the_crowd_can_be_written_as_text() -> None:
    """The command line's form names the chances; what is left out is 0."""
    assert Answers.parse("approve=0.7, reject=0.2,ignore=0.1") == Answers(approve=0.7, reject=0.2, ignore=0.1)
    assert Answers.parse("approve=1", seed=3) == Answers(approve=1, reject=0, ignore=0, seed=3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not an answer"),
        ("aprove=1", "'aprove' is not an answer"),
        ("approve", "approve must be a number"),
        ("approve=x", "approve must be a number, not 'x'"),
        ("approve=0.5,approve=0.5", "given twice"),
        ("approve=0.5", "sum to 1, not 0.5"),
        ("approve=2,reject=-1", "approve must be a probability"),
        ("approve=nan", "approve must be a probability"),
    ],
)
def test_a_wrong_crowd_says_what_is_wrong(text: str, fault: str) -> None:
    """Each mistake in the text is named."""
    with pytest.raises(ValueError, match=fault):
        Answers.parse(text)


def test_wrong_settings_are_refused() -> None:
    """A delay without meaning and a path without its placeholder are refused when they are written."""
    with pytest.raises(ValueError, match="delay"):
        Answers(delay=(0.0, 1.0))
    with pytest.raises(ValueError, match="transaction_id"):
        Settings(status_by_transaction_id="/api/Sale")
    with pytest.raises(ValueError, match="status_by_client"):
        Settings(status_by_client_transaction_id=BY_ID)
    with pytest.raises(ValueError, match="sale_window"):
        Settings(sale_window=0)


# Queries


async def test_a_query_by_transaction_id_answers_the_state(service: Simulator) -> None:
    """The status answer carries the ids, the money and the state, in word and number."""
    transaction_id = await created(service, body_of())
    answer = {
        "transactionId": transaction_id,
        "clientTransactionId": "order-1",
        "amount": 1150,
        "currency": "USD",
        "transactionStatus": "Pendiente",
        "statusCode": 1,
    }
    assert await ask(service, "GET", f"/api/Sale/{transaction_id}") == (200, answer)
    await service.approve(transaction_id)
    decided = {**answer, "transactionStatus": "Aceptado", "statusCode": 3}
    assert await ask(service, "GET", f"/api/Sale/{transaction_id}") == (200, decided)


@pytest.mark.parametrize("text", ["1", "0", "-1001", "1_001", "x", "%D9%A1", "9" * 5000, "1001.0", "%201001"])
async def test_a_query_for_nothing_answers_not_found(service: Simulator, text: str) -> None:
    """What is no known transaction id is answered with 404 and code 20."""
    await created(service, body_of())
    status, answer = await ask(service, "GET", f"/api/Sale/{text}")
    assert (status, answer["errorCode"]) == (404, 20)


async def test_a_query_by_client_id_answers_all_its_sales(service: Simulator) -> None:
    """The merchant's id finds every sale made with it, newest first, whatever characters it has."""
    name = "órder 1/2?#{}%"
    first = await created(service, body_of(1, clientTransactionId=name))
    second = await created(service, body_of(2, clientTransactionId=name))
    path = "/api/Sale/client/" + quote(name, safe="")
    async with (
        aiohttp.ClientSession(headers=BEARER) as session,
        session.get(URL(service.url + path, encoded=True)) as response,
    ):
        answer = await response.json()
    assert [sale["transactionId"] for sale in answer] == [second, first]
    assert (await ask(service, "GET", "/api/Sale/client/other"))[0] == 404
    assert service.counts.queries == 2


async def test_the_shape_of_a_status_answer_is_a_setting() -> None:
    """Field name, words, array or object, and the answer for nothing are not shown, so they can be set."""
    settings = Settings(
        status_by_client_transaction_id=BY_CLIENT_ID,
        client_status_as_array=False,
        state_field="state",
        state_words={"Pendiente": "Pending"},
        not_found=(400, 99),
    )
    async with Simulator(settings=settings) as service:
        await created(service, body_of())
        _, answer = await ask(service, "GET", "/api/Sale/client/order-1")
        assert answer["state"] == "Pending"
        status, answer = await ask(service, "GET", "/api/Sale/client/other")
        assert (status, answer["errorCode"]) == (400, 99)


async def test_by_default_there_is_no_query() -> None:
    """The document shows no status endpoint (§4.2), so the default has none."""
    async with Simulator() as service:
        assert (await ask(service, "GET", "/api/Sale/1001"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("PUT", "/api/Sale", 405),
        ("OPTIONS", "/api/Sale", 405),
        ("DELETE", "/x%20y", 404),
    ],
)
async def test_every_request_is_answered_in_json_and_logged(
    service: Simulator, method: str, path: str, status: int
) -> None:
    """A wrong path or method is answered with a message, and is in the log."""
    assert (await ask(service, method, path))[0] == status
    entry = service.log[-1]
    assert (entry.kind, entry.text, entry.status) == (
        "request",
        f"{method} {path}".replace("%20", " "),
        status,
    )
    assert service.counts.requests == 0


# The control surface


async def test_another_process_reads_and_decides(service: Simulator) -> None:
    """The control surface lists the sales, counts them, names what was charged twice, and decides."""
    first = await created(service, body_of(1))
    second = await created(service, body_of(2, clientTransactionId="order-1"))
    status, summary = await control.call(service.url, "approve", sale=first)
    assert (status, summary["state"], summary["how"]) == (200, "Aceptado", "approved")
    assert (await control.call(service.url, "reject", sale=second))[1]["how"] == "rejected"
    assert (await control.call(service.url, "reject", sale=first))[0] == 409
    assert (await control.call(service.url, "reject", sale=7))[0] == 404
    _, sales = await control.call(service.url, "sales")
    assert sales[0] == service.sales[first].as_json()
    assert (sales[0]["client_transaction_id"], sales[0]["how"], sales[0]["amount"]) == (
        "order-1",
        "approved",
        1150,
    )
    assert "0900000001" not in json.dumps(sales)
    _, counts = await control.call(service.url, "counts")
    executed = {"requests": 2, "created": 2, "approved": 1, "rejected": 1, "collected": 1150}
    assert {name: count for name, count in counts.items() if count} == {
        **executed,
        "duplicates": {"order-1": 2},
    }


@pytest.mark.parametrize(
    ("host", "has_control", "there"),
    [
        ("127.0.0.1", None, True),
        ("127.0.0.1", False, False),
        ("0.0.0.0", None, False),
        ("0.0.0.0", True, True),
    ],
)
async def test_the_control_surface_stays_on_the_machine(
    host: str, has_control: bool | None, there: bool
) -> None:
    """Open to everybody, it exists beyond a loopback host only when asked for."""
    async with Simulator(host=host, control=has_control) as service:
        assert (await control.call(service.url, "counts"))[0] == (200 if there else 404)


# Opening and closing


async def test_a_simulator_is_opened_once() -> None:
    """Its address exists while it is open, its sales stay readable, and it is not opened again."""
    service = Simulator(host="localhost")
    with pytest.raises(RuntimeError, match="async with"):
        _ = service.url
    async with service:
        transaction_id = await created(service, body_of())
        assert not service.url.endswith("/")
    assert service.sales[transaction_id].state == "Pendiente"
    service.sales[transaction_id].response_url = "http://127.0.0.1:1/"
    await service.approve(transaction_id)  # nothing is delivered any more
    assert service.counts.notifications_failed == 0
    with pytest.raises(RuntimeError, match="once"):
        async with service:
            pass


async def test_a_taken_port_leaves_nothing_open(service: Simulator) -> None:
    """A simulator that cannot bind says so and cleans up."""
    with pytest.raises(OSError, match="address"):
        async with Simulator(port=int(service.url.rpartition(":")[2])):
            pass
    gc.collect()  # an unclosed resource would warn here, and a warning is an error


async def test_closing_waits_for_nobody() -> None:
    """Kept connections, pending sales and a delivery that hangs do not hold the simulator open."""
    silent: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: silent.put_nowait(writer), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(headers=BEARER) as session:
        async with Simulator(clock=clock) as service:
            async with session.post(service.url + "/api/Sale", json=body_of(responseUrl=address)) as response:
                transaction_id = (await response.json())["transactionId"]
            await created(service, body_of(2))
            approving = asyncio.create_task(service.approve(transaction_id))
            writer = await silent.get()
            closing_from = loop.time()
        assert loop.time() - closing_from < 1
        await approving
        assert service.sales[transaction_id].how == "approved"
        assert clock.next_timer is None
    writer.close()
    server.close()
    await server.wait_closed()
    gc.collect()


# Clocks


async def test_the_manual_clock_fires_in_the_order_of_time() -> None:
    """Each callback sees its own time, also one that was set by another; a cancelled one is silent."""
    clock, seen = ManualClock(start=1000.0), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, clock.monotonic()))
        if name == "b":
            clock.call_at(2.5, note, "between")

    clock.call_at(3.0, note, "c")
    clock.call_at(2.0, note, "b")
    clock.call_at(1.0, note, "never").cancel()
    clock.call_at(9.0, note, "later")
    assert clock.next_timer == 2.0
    await clock.advance(5)
    assert seen == [("b", 2.0), ("between", 2.5), ("c", 3.0)]
    assert (clock.monotonic(), clock.time(), clock.next_timer) == (5.0, 1005.0, 9.0)
    with pytest.raises(ValueError, match="jump_wall"):
        await clock.advance(-1)


async def test_the_manual_clock_lets_tasks_run_in_between() -> None:
    """A task that sleeps on the clock step by step is woken at each of its steps."""
    clock, woken = ManualClock(), list[float]()

    async def walk() -> None:
        for _ in range(3):
            step = asyncio.get_running_loop().create_future()
            clock.call_at(clock.monotonic() + 1, step.set_result, None)
            await step
            woken.append(clock.monotonic())

    task = asyncio.create_task(walk())
    await clock.advance(10)
    await task
    assert woken == [1.0, 2.0, 3.0]


async def test_a_jump_of_the_wall_clock_expires_nothing(service: Simulator, clock: ManualClock) -> None:
    """Windows are counted in monotonic time, so setting the machine's clock changes none of them."""
    transaction_id = await created(service, body_of())
    clock.jump_wall(86_400)
    await clock.advance(299)
    assert service.sales[transaction_id].how is None
    assert clock.time() == 1_700_000_000 + 86_400 + 299
    await clock.advance(1)
    assert service.sales[transaction_id].how == "expired"
