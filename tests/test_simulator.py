"""The simulated service over real HTTP: its sales, their notifications and queries, and its own life."""

import asyncio
import gc
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from manual_clock import ManualClock
from payclient.simulator import Answers, Fault, Settings, Simulator
from raw_server import turns
from simulated import Client, Merchant, client, client_of, clock, merchant, sale_of, settings, until

__all__ = ["client", "clock", "merchant", "settings"]


# Deciding


async def test_without_a_clock_it_has_one_of_its_own() -> None:
    """Whether it is left out, or None, as a fixture may hand on."""
    async with client_of(clock=None) as client:
        transaction_id = await client.sale()
        await client.service.advance(300)
        assert client.service.sales[transaction_id].how == "expired"


async def test_a_customer_with_a_pending_sale_there_is_refused(client: Client, clock: ManualClock) -> None:
    """One customer has one pending sale per store: 22 with 2061 (§7.3), until it is decided or expires."""
    await client.sale()
    again: dict[str, Any] = {"clientTransactionId": "order-1b", "countryCode": "+593"}
    status, error = await client.sell(sale_of(**again))
    assert (status, error["errorCode"], error["errors"][0]["errorCode"]) == (400, 22, 2061)
    await client.sale(1, storeId="S2")
    await client.sale(1, storeId=None)
    await client.sale(2)
    await clock.advance(300)
    await client.service.reject(await client.sale(**again))
    await client.sale(**again)


async def test_a_sale_expires_in_five_minutes(client: Client, clock: ManualClock, merchant: Merchant) -> None:
    """After the window the sale is Cancelado (§3), and nothing is sent (§6), however the machine's clock is set."""
    start = clock.time()
    sale = client.service.sales[await client.sale(responseUrl=merchant.url)]
    clock.jump_wall(86_400)
    await clock.advance(299.9)
    assert sale.state == "Pendiente"
    await clock.advance(0.1)
    assert (sale.state, sale.how, sale.decided_at) == ("Cancelado", "expired", start + 86_400 + 300)
    await client.service.notifications_done()
    counts = client.service.counts
    assert (merchant.received, counts.expired, counts.pending) == ([], 1, 0)
    assert clock.next_timer is None


async def test_a_late_timer_does_not_stretch_the_window(client: Client, clock: ManualClock) -> None:
    """A request after the window finds the sale expired even if the loop has not yet fired the timer."""
    transaction_id = await client.sale()
    clock.stand_at(301.0)
    with pytest.raises(ValueError, match="expired"):
        await client.service.approve(transaction_id)
    await client.sale()


@pytest.mark.parametrize(
    ("verb", "how", "state"), [("approve", "approved", "Aceptado"), ("reject", "rejected", "Cancelado")]
)
async def test_the_customers_answer_decides_and_notifies(
    client: Client, clock: ManualClock, merchant: Merchant, verb: str, how: str, state: str
) -> None:
    """Approval and rejection decide at once and send `id` and `clientTransactionID` to responseUrl (§6)."""
    url = f"{merchant.url}/hook?shop=7&x=a%20b#top"
    sale = client.service.sales[await client.sale(responseUrl=url, clientTransactionId="órder 1&2")]
    await clock.advance(10)
    await getattr(client.service, verb)(sale.transaction_id)
    assert (sale.state, sale.how, sale.decided_at) == (state, how, clock.time())
    ids = [("id", str(sale.transaction_id)), ("clientTransactionID", "órder 1&2")]
    assert merchant.received == [("GET", [("shop", "7"), ("x", "a b"), *ids], None)]
    assert (client.service.log[-1].status, client.service.counts.notifications_sent) == (200, 1)
    await clock.advance(300)
    assert sale.how == how
    for verb in ("approve", "reject", "ignore"):
        with pytest.raises(ValueError, match=how):
            await getattr(client.service, verb)(sale.transaction_id)
        with pytest.raises(LookupError, match="99"):
            await getattr(client.service, verb)(99)


async def test_a_notification_is_sent_once_and_changes_nothing(client: Client, merchant: Merchant) -> None:
    """A merchant that answers an error, redirects or cannot be reached: not followed, not repeated, recorded."""
    urls = {
        "http://127.0.0.1:1/": 0, "no address": 0, "http://[": 0, merchant.url: 302,
        f"{merchant.url}/": 500,
    }  # fmt: skip
    for number, (url, merchant.status) in enumerate(urls.items()):
        sale = await client.service.approve(await client.sale(number, responseUrl=url))
        assert sale.state == "Aceptado"
        said = client.service.log[-1]
        assert (said.status, said.fault is None) == (merchant.status or None, merchant.status > 0)
    counts = client.service.counts
    assert (counts.notifications_sent, counts.notifications_failed, len(merchant.received)) == (2, 3, 2)


# The crowd


async def crowd_of(numbers: list[int], answers: Answers) -> dict[str, tuple[str | None, float]]:
    clock = ManualClock()
    start = clock.time()
    async with client_of(clock=clock, answers=answers) as client:
        for number in numbers:
            await client.sale(number)
        await clock.advance(300)
        assert client.service.counts.pending == 0
        sales = client.service.sales.values()
        return {sale.client_transaction_id: (sale.how, (sale.decided_at or 0) - start) for sale in sales}


async def test_the_crowd_does_not_depend_on_the_order_of_arrival() -> None:
    """An id and the seed decide the answer and its time; another seed decides otherwise."""
    answers = [Answers(approve=0.4, reject=0.3, ignore=0.3, delay=(5.0, 0.5), seed=seed) for seed in (1, 2)]
    numbers = list(range(40))
    first = await crowd_of(numbers, answers[0])
    assert first == await crowd_of(numbers[::-1], answers[0])
    assert {str(how) for how, _ in first.values()} == {"approved", "rejected", "expired"}
    assert first != await crowd_of(numbers, answers[1])


async def test_the_crowd_answers_on_the_clock(merchant: Merchant, clock: ManualClock) -> None:
    """After its delay, with a notification; a later sale may come earlier; after the window the expiry wins."""
    async with client_of(clock=clock) as client:
        sales = []
        for number, delay in enumerate((60.0, 19.0, 60.0, 301.0)):
            client.service.answers = Answers(approve=1, reject=0, ignore=0, delay=(delay, 0.0))
            sales.append(client.service.sales[await client.sale(number, responseUrl=merchant.url)])
        await client.service.ignore(sales[2].transaction_id)  # out of the crowd
        await clock.advance(20)
        assert [sale.how for sale in sales] == [None, "approved", None, None]
        await clock.advance(280)
        assert [sale.how for sale in sales] == ["approved", "approved", "expired", "expired"]
        await client.service.notifications_done()
        assert client.service.counts.notifications_sent == len(merchant.received) == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not an answer"), ("aprove=1", "'aprove' is not an answer"), ("approve", "approve must be a number"),
        ("approve=x", "approve must be a number, not 'x'"), ("approve=0.5,approve=0.5", "sum to 1, not 0.5"),
        ("approve=0.5", "sum to 1, not 0.5"), ("approve=2,reject=-1", "approve must be a probability"),
        ("approve=nan", "approve must be a probability"),
    ],
)  # fmt: skip
def test_a_wrong_crowd_says_what_is_wrong(text: str, fault: str) -> None:
    """The command line's form names the chances; what is left out is 0."""
    assert Answers.parse("approve=0.7, reject=0.2,ignore=0.1") == Answers(approve=0.7, reject=0.2, ignore=0.1)
    with pytest.raises(ValueError, match="delay"):
        Answers(delay=(0.0, 1.0))
    with pytest.raises(ValueError, match=fault):
        Answers.parse(text)


# Queries


async def test_a_query_by_transaction_id_answers_the_state(client: Client, clock: ManualClock) -> None:
    """A valid request is created Pendiente (§3); the status answer has the ids, the money, the word and the number."""
    transaction_id = await client.sale()
    sale = client.service.sales[transaction_id]
    assert (sale.how, sale.decided_at, sale.store_id, sale.created_at) == (None, None, "S1", clock.time())
    assert "0900000001" not in repr(sale)
    answer = {
        "transactionId": transaction_id, "clientTransactionId": "order-1", "amount": 1150,
        "currency": "USD", "transactionStatus": "Pendiente", "statusCode": 1,
    }  # fmt: skip
    assert (await client.get(f"/api/Sale/{transaction_id}"))[1].items() >= answer.items()
    await client.service.approve(transaction_id)
    decided = {**answer, "transactionStatus": "Aceptado", "statusCode": 3}
    assert (await client.get(f"/api/Sale/{transaction_id}"))[1].items() >= decided.items()


async def test_a_query_for_nothing_answers_not_found(client: Client) -> None:
    """What is no known transaction id is answered with 404 and code 20."""
    await client.sale()
    for text in ("1", "0", "-1001", "1_001", "x", "%D9%A1", "9" * 5000, "1001.0", "%201001"):
        status, answer = await client.get(f"/api/Sale/{text}")
        assert (status, answer["errorCode"]) == (404, 20), text


async def test_a_query_by_client_id_answers_all_its_sales(client: Client) -> None:
    """The merchant's id finds every sale made with it, newest first, whatever characters it has."""
    name = "órder 1/2?#{}%"
    first, second = [await client.sale(number, clientTransactionId=name) for number in (1, 2)]
    _, sales = await client.get("/api/Sale/client/" + quote(name, safe=""))
    assert [sale["transactionId"] for sale in sales] == [second, first]
    assert (await client.get("/api/Sale/client/other"))[0] == 404
    assert client.service.counts.queries == 2


async def test_what_the_document_leaves_open_is_settings(merchant: Merchant) -> None:
    """The states after an answer, the notification's method, and the shape of a status answer (§3, §6)."""
    settings = Settings(
        states={"approved": "Cancelado"}, notification_method="POST",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state",
        state_words={"Cancelado": "Canceled"}, not_found=(400, 99),
    )  # fmt: skip
    async with client_of(settings) as client:
        sale = await client.service.approve(await client.sale(responseUrl=merchant.url))
        assert (sale.state, merchant.received[0][0]) == ("Cancelado", "POST")
        assert (await client.get("/api/Sale/client/order-1"))[1][0]["state"] == "Canceled"
        status, answer = await client.get("/api/Sale/client/other")
        assert (status, answer["errorCode"]) == (400, 99)
        assert (await client.get("/api/Sale/1001"))[0] == 404  # without a path there is no query (§4.2)


async def test_every_request_is_answered_in_json_and_logged(client: Client) -> None:
    """A wrong path or method is answered with a message, and is in the log."""
    for method, path, status in (
        ("GET", "/nothing", 404), ("PUT", "/api/Sale", 405), ("OPTIONS", "/api/Sale", 405), ("DELETE", "/x y", 404),
    ):  # fmt: skip
        assert (await client.send(method, path))[0] == status
        entry = client.service.log[-1]
        assert (entry.kind, entry.text, entry.status) == ("request", f"{method} {path}", status)
    assert client.service.counts.requests == 0


# Opening and closing


@pytest.mark.parametrize(("option", "wrong"), [("settings", "payphone"), ("answers", "everyday")])
def test_a_name_is_no_settings_and_no_customers(option: str, wrong: str) -> None:
    """It is refused at once, and not by a failing answer to the first sale."""
    with pytest.raises(TypeError, match=f"'{option}' must be "):
        Simulator(**{option: wrong})  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match=r"^chances must be of Fault objects; str was given$"):
        Simulator().fail_by_chance("reset", 0.5)  # type: ignore[arg-type]  # that is the test


async def test_a_simulator_is_opened_once() -> None:
    """Its address exists while it is open, its sales stay readable, and it is not opened again."""
    service = Simulator(host="localhost")
    with pytest.raises(RuntimeError, match="async with"):
        _ = service.url
    with pytest.raises(RuntimeError):
        await service.stop()
    async with service:
        sale = service.create_sale(sale_of())
        assert not service.url.endswith("/")
        with pytest.raises(RuntimeError):
            await service.start()
        await service.stop()
        with pytest.raises(RuntimeError):
            await service.stop()
    sale.response_url = "http://127.0.0.1:1/"
    await service.approve(sale.transaction_id)  # nothing is delivered any more
    assert (service.sales[1001].state, service.counts.notifications_failed) == ("Aceptado", 0)
    with pytest.raises(RuntimeError, match="once"):
        async with service:
            pass


async def test_closing_waits_for_nobody(clock: ManualClock) -> None:
    """Kept connections, pending sales and a delivery that hangs do not hold the simulator open."""
    silent: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: silent.put_nowait(writer), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with Simulator(clock=clock) as service:
            client = Client(service, session)
            transaction_id = await client.sale(responseUrl=address)
            await client.sale(2)
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


async def test_closing_ends_a_request_whose_client_hung_up(clock: ManualClock) -> None:
    """A slow one went on, and asyncio said as its loop ended that a task was destroyed."""
    before = asyncio.all_tasks()
    async with Simulator(clock=clock) as service, aiohttp.ClientSession() as session:
        service.fail_next(Fault("latency", seconds=60))
        call = asyncio.ensure_future(Client(service, session).sale())
        await until(lambda: clock.next_timer is not None)
        call.cancel()
        await asyncio.wait([call])
        await turns()  # the simulator sees it
    assert asyncio.all_tasks() == before
