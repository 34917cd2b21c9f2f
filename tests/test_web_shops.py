"""The shops of the guides from end to end, each in processes of its own, against the simulator."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import types
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import attrs
import pytest
from aiohttp import web

import payclient
from manual_clock import ManualClock
from pages import Read
from payclient.notifications import notification_url
from payclient.simulator import PAYPHONE, Sale, Settings, Simulator
from payclient.web import Page
from postgres_server import PostgresServer
from shops.serving import BLOCKS, PRESET, SECRET, Shop, gunicorn, serving
from simulated import QUERIES

#: The preset's service, which sheds no queries.
UNLIMITED = attrs.evolve(PAYPHONE, queries_per_minute=None)


class HeldSimulator(Simulator):
    """A simulator that can keep the answer to a Sale back after it has created it."""

    def __init__(self, clock: ManualClock, settings: Settings = QUERIES) -> None:
        super().__init__(token="secret", clock=clock, settings=settings)
        self.released = asyncio.Event()
        self.released.set()
        self.held = asyncio.Event()
        self.holding = 0

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await super().serve(request)
        if request.method == "POST" and not self.released.is_set():
            self.held.set()
            self.holding += 1
            await self.released.wait()
            self.holding -= 1
        return response

    def of(self, client_transaction_id: str) -> Sale:
        """The one sale of a client transaction id."""
        (sale,) = [one for one in self.sales.values() if one.client_transaction_id == client_transaction_id]
        return sale


class Customer:
    """Somebody at the shop, with a browser that does what it is told."""

    def __init__(self, shop: Shop, session: aiohttp.ClientSession) -> None:
        self.shop = shop
        self._session = session

    async def get(self, path: str) -> str:
        url = path if path.startswith("http") else self.shop.url + path
        async with self._session.get(url) as response:
            assert response.status == 200, f"{path}: {response.status}"
            return await response.text()

    async def pay(self, order: str, phone: str) -> str:
        """Pay by push; the page that comes of it."""
        async with self._session.post(f"{self.shop.url}/pay/{order}", data={"phone": phone}) as response:
            assert response.status == 200, (response.status, await response.text())
            assert response.url.path == f"/orders/{order}"
            return await response.text()

    async def click(self, way: str, order: str, phone: str = "0984111222") -> tuple[int, str]:
        """Press a button, whatever is answered: the status and the page."""
        method, data = ("POST", {"phone": phone}) if way == "pay" else ("GET", None)
        url = f"{self.shop.url}/{way}/{order}"
        async with self._session.request(method, url, data=data) as response:
            return response.status, await response.text()

    async def withdraw(self, order: str) -> str:
        """Press the button for a wrong number; the order's page."""
        async with self._session.post(f"{self.shop.url}/pay/{order}", data={"withdraw": "yes"}) as response:
            assert response.status == 200
            return await response.text()

    async def status(self, identifier: str) -> dict[str, object]:
        async with self._session.get(f"{self.shop.url}/orders/{identifier}/status") as response:
            found: dict[str, object] = await response.json()
            return found

    async def decided(self, identifier: str) -> object:
        """Look as the waiting page does, until the waiting is over; what `paid` then is."""
        async with asyncio.timeout(60):
            while (status := await self.status(identifier))["waiting"]:  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(0.01)  # for the shop's own work
        return status["paid"]

    async def form(self, order: str) -> str:
        """Ask to pay by card; the link that the page moves on to."""
        async with self._session.get(f"{self.shop.url}/card/{order}") as response:
            assert response.status == 200
            assert response.headers.getall("Referrer-Policy") == ["origin"]
            assert response.headers["Cache-Control"] == "no-store"
            (link,) = [each["href"] or "" for each in Read(await response.text()).of("a")]
            return link

    async def notify(self, url: str, method: str = "GET", **options: object) -> bytes:
        async with self._session.request(method, url, **options) as response:  # type: ignore[arg-type]  # passed on
            assert response.status == 200
            return repr(sorted(set(response.headers) - {"Date"})).encode() + await response.read()


@asynccontextmanager
async def customer_of(shop: Shop) -> AsyncIterator[Customer]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Customer(shop, session)


async def test_a_shop_from_end_to_end(tmp_path: Path) -> None:
    """Pushes accepted, cancelled and expired, forms paid and closed; notifications forged, repeated and early."""
    clock = ManualClock()
    async with HeldSimulator(clock) as service:
        with serving("aiohttp", service.url, tmp_path) as shop:
            async with customer_of(shop) as customer:
                await push(customer, service)
                await expiry(customer, service, clock)
                await early(customer, service)
                await forms(customer, service)
                await forged(customer, service)
                await customer.pay("left-open", "0984111299")  # the end finds one open
    assert service.counts.created == 6
    assert set(service.created_per_client_id.values()) == {1}


def notified(service: HeldSimulator, client_id: str) -> bool:
    """Whether the shop answered a notification of this id with 200."""
    found = [
        one for one in service.log if (one.kind, one.client_transaction_id) == ("notification", client_id)
    ]
    return [one.status for one in found] == [200]


async def push(customer: Customer, service: HeldSimulator) -> None:
    """Accepted and cancelled, each known to the page that waits; a double click charges once."""
    page = await customer.pay("accepted", "0984111201")
    assert "Approve the payment on your phone" in page
    assert (await customer.status("accepted-1"))["waiting"] is True
    assert "Approve the payment" in await customer.pay("accepted", "0984111201")
    await service.approve(service.of("accepted-1").transaction_id)
    assert notified(service, "accepted-1")
    assert await customer.decided("accepted-1") is True
    assert "Paid." in await customer.get("/orders/accepted")
    await customer.pay("cancelled", "0984111202")
    await service.reject(service.of("cancelled-1").transaction_id)
    assert await customer.decided("cancelled-1") is False
    assert "Not paid" in await customer.get("/orders/cancelled")


async def expiry(customer: Customer, service: HeldSimulator, clock: ManualClock) -> None:
    """Nobody answers and nothing is sent (§6): the service says Cancelado when it is asked."""
    await customer.pay("expired", "0984111203")
    await clock.advance(300)
    assert service.of("expired-1").how == "expired"
    assert await customer.decided("expired-1") is False


async def early(customer: Customer, service: HeldSimulator) -> None:
    """The customer answers before our POST has its answer."""
    service.released.clear()
    paying = asyncio.create_task(customer.pay("early", "0984111204"))
    await asyncio.wait_for(service.held.wait(), 60)
    await service.approve(service.of("early-1").transaction_id)
    assert notified(service, "early-1")
    service.released.set()
    await paying
    assert await customer.decided("early-1") is True


async def forms(customer: Customer, service: HeldSimulator) -> None:
    """Paid: the order's page knows. Closed by its X, of which the service says nothing: the same form is offered."""
    link = await customer.form("cart-1")
    assert await customer.form("cart-1") == link  # in whichever process
    page = await customer.get(
        await service.pay(payment_id(link))
    )  # asks the service, unless it was asked just now
    assert "Paid." in page or "Confirming your payment" in page
    form = service.forms[payment_id(link)].client_transaction_id
    assert await customer.decided(form) is True
    assert "Paid." in await customer.get("/orders/cart-1")
    other = await customer.form("cart-2")
    assert other != link
    back = await service.cancel_form(payment_id(other)) or ""
    assert "Confirming your payment" in await customer.get(back)
    assert (await customer.status(service.forms[payment_id(other)].client_transaction_id))["paid"] is None
    assert await customer.form("cart-2") == other
    # A push beside it could be paid, too.
    status, page = await customer.click("pay", "cart-2")
    assert (status, "There is an open card form until" in page) == (409, True)


async def forged(customer: Customer, service: HeldSimulator) -> None:
    """However it comes and whatever it says, the answer is the same and nobody is paid by it."""
    await customer.pay("forged", "0984111205")
    number = service.of("forged-1").transaction_id
    parameters = {"id": str(number), "clientTransactionID": "forged-1"}
    ours = notification_url(f"{customer.shop.url}/notify", "forged-1", SECRET)
    accepted = notification_url(f"{customer.shop.url}/notify", "accepted-1", SECRET)
    wrong = f"{customer.shop.url}/notify/{'A' * 32}"
    repeat = {"id": str(service.of("accepted-1").transaction_id), "clientTransactionID": "accepted-1"}
    other = {"id": "999999", "clientTransactionID": "accepted-1"}
    answers = [
        await customer.notify(wrong, params=parameters),
        await customer.notify(accepted, params=parameters),  # the key of another sale
        await customer.notify(accepted, params=repeat),
        await customer.notify(accepted, "POST", data=repeat),
        await customer.notify(accepted, "PUT", json={**repeat, "id": int(repeat["id"])}),
        await customer.notify(accepted, params=other),
        await customer.notify(ours, "POST", data=b"{" * 100, headers={"Content-Type": "application/json"}),
        await customer.notify(ours, "POST", data=b"x" * 100_000),
        await customer.notify(ours, "DELETE"),
        await customer.notify(wrong, "PATCH", data=b"\xff\xfe"),
    ]
    assert len(set(answers)) == 1
    status = await customer.status("forged-1")
    assert (status["waiting"], status["paid"], status["state"]) == (True, None, "pending")
    assert (await customer.status("accepted-1"))["paid"] is True
    await service.reject(number)
    assert await customer.decided("forged-1") is False


def payment_id(link: str) -> str:
    return parse_qs(urlsplit(link).query)["paymentId"][0]


LEAKING = """
import asyncio, signal, socket
from aiohttp import ClientSession
async def serve():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    session = ClientSession(); asyncio.sleep(1)
    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        writer.close()
        await writer.wait_closed()
    async with await asyncio.start_server(answer, sock=socket.socket(fileno={fd})):
        await stopped.wait()
asyncio.run(serve())
"""


async def test_what_a_shop_leaks_is_noticed(tmp_path: Path) -> None:
    """A session, or a coroutine that nobody awaits: the tests above would fail."""
    with pytest.raises(AssertionError), serving(("-c", LEAKING), "http://127.0.0.1:1", tmp_path) as shop:
        async with aiohttp.ClientSession() as session, session.get(shop.url) as response:
            assert response.status == 200
    assert all(words in shop.err for words in ("Unclosed client session", "never awaited"))


# --- One order, paid once


def assert_collected_once(service: HeldSimulator, orders: int = 1) -> None:
    """What the service has of the customers, in cents."""
    assert service.counts.collected == 1150 * orders


async def test_a_shop_whose_forms_must_be_confirmed(tmp_path: Path) -> None:
    """The preset's service: returns of forms, one order and two ways to pay it, and a number that is withdrawn."""
    clock = ManualClock()
    async with HeldSimulator(clock, UNLIMITED) as service:
        with serving("fastapi", service.url, tmp_path, profile=PRESET) as shop:
            async with customer_of(shop) as customer, customer_of(shop) as tab:
                await confirmed(customer, service, clock)
                await paid_in_two_ways(customer, tab, service)
                await withdrawn(customer, service)
                async with asyncio.timeout(60):
                    while fulfilled(tmp_path) != ["a", "b", "cart-1", "e", "f"]:  # noqa: ASYNC110 - by another process
                        await asyncio.sleep(0.01)
    assert_collected_once(service, 5)
    assert (service.counts.created, len(service.forms)) == (5, 6)
    assert "'c': InvalidRequestError: " in shop.err, "its owner learns why customers are told to try again"


async def test_the_guides_workers_go_on_where_a_database_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger cannot be read once, and once the shop's own database is not written; one of two does each outcome."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "orders", types.SimpleNamespace(SECRET=SECRET))
    shop: dict[str, Any] = {}
    exec(BLOCKS["shop_fastapi"], shop)  # noqa: S102 - our own document
    shop["asyncio"] = types.SimpleNamespace(sleep=lambda _: asyncio.sleep(0))
    found = [payclient.LedgerUnavailableError("it restarts"), types.SimpleNamespace(key=object(), paid=True)]
    read = asyncio.Semaphore(0)

    async def outcomes(since: int) -> AsyncIterator[types.SimpleNamespace]:
        for cursor in range(since + 1, 4):
            yield types.SimpleNamespace(cursor=cursor, purchase=f"order-{cursor}")
        read.release()
        await asyncio.Event().wait()

    async def purchase(key: str) -> object:
        await asyncio.sleep(0)  # for the other worker
        first = found.pop(0) if found else types.SimpleNamespace(key=key, paid=True)
        if isinstance(first, Exception):
            raise first
        return first

    tracker = types.SimpleNamespace(outcomes=outcomes, purchase=purchase)
    done = list[str]()
    with closing(shop["database"]) as database:
        database.set_trace_callback(done.append)
        workers = [asyncio.create_task(shop["fulfil"](tracker)) for _ in range(2)]
        async with asyncio.timeout(60):
            for _ in workers:
                await read.acquire()
        for worker in workers:
            worker.cancel()
        assert fulfilled(tmp_path) == ["order-1", "order-2", "order-3"]
    assert sum(statement.startswith("INSERT OR IGNORE") for statement in done) == 3


async def confirmed(customer: Customer, service: HeldSimulator, clock: ManualClock) -> None:
    """Where an unconfirmed payment is given back: paid, declined, closed and forged returns."""
    link = await customer.form("cart-1")
    own = await service.pay(payment_id(link))
    for query in ("id=x", "id=1&clientTransactionId=another", "msg=" + "x" * 5000):
        page = await customer.get(f"{urlsplit(own).path}?{query}")
        assert "Confirming your payment" in page
    assert "Paid." in await customer.get(own)
    await clock.advance(301)
    assert "Paid." in await customer.get(own)  # once more
    assert (service.counts.collected, service.counts.reversed_unconfirmed) == (1150, 0)
    for end in ("declined", "closed"):
        link = await customer.form("cart-2")
        if end == "declined":
            back = await service.pay(payment_id(link), declined=True)
        else:
            back = await service.cancel_form(payment_id(link)) or ""
        page = await customer.get(back)
        assert "Pay by card" in page
        if end == "declined":
            assert "Not paid." in page
            assert "Pay with the app" in page
        else:
            assert re.search(r"can still be paid. Another way is open from \d\d:\d\d", page)
            assert "Pay with the app" not in page
        # The X is known to the browser alone: its form may still be paid, so that no other is made.
        assert (await customer.form("cart-2") == link) is (end == "closed")
        (form,) = [one for one in service.forms.values() if link.endswith(one.payment_id)]
        assert await customer.decided(form.client_transaction_id) is False
    assert service.counts.forms_paid == 1


async def paid_in_two_ways(customer: Customer, tab: Customer, service: HeldSimulator) -> None:
    """Push, then card, and card, then push; double clicks in two tabs; clicks after it is paid."""
    assert "Pay with the app" in await customer.get("/")
    pages = await asyncio.gather(*(each.pay("a", "0984111222") for each in (customer, tab) * 3))
    assert all("Approve the payment on your phone" in page for page in pages)
    assert 'href="/pay/a"' in pages[0]
    status, page = await tab.click("card", "a")
    assert status == 409
    assert re.search(r"There is an open request on your phone until \d\d:\d\d", page)
    assert (await tab.click("pay", "a", "0999999999"))[0] == 200  # another phone, the same request
    await service.reject(service.of("a-1").transaction_id)
    assert await customer.decided("a-1") is False
    assert "Not paid." in await customer.get("/orders/a")
    links = await asyncio.gather(*(each.form("a") for each in (customer, tab) * 3))
    assert len(set(links)) == 1
    status, page = await tab.click("pay", "a")
    assert status == 409
    assert re.search(r"There is an open card form until \d\d:\d\d", page)
    assert "Paid." in await customer.get(await service.pay(payment_id(links[0])))
    for way in ("pay", "card", "pay"):
        status, page = await tab.click(way, "a")
        assert (status, "Paid." in page) == (200, True)
    # Card, then push.
    back = await service.pay(payment_id(await customer.form("b")), declined=True)
    assert "Not paid." in await customer.get(back)
    await customer.pay("b", "0984111222")
    await service.approve(service.of("b-2").transaction_id)
    assert await customer.decided("b-2") is True
    assert "Paid." in (await customer.click("card", "b"))[1]
    # Nothing that is typed is an error of the shop's.
    for phone in ("", "x" * 3000, "09' OR 1=1", "\x00"):
        assert (await customer.click("pay", "c", phone))[0] == 409
    assert (await customer.click("pay", "d" * 300))[0] == 409
    assert (await customer.click("card", "%0d%0aSet-Cookie:x=1"))[0] == 409
    assert (await customer.click("back", "nobody"))[0] == 404


async def withdrawn(customer: Customer, service: HeldSimulator) -> None:
    """From the page with another way: the right number is asked then, or the card. Who was quicker has paid."""
    await customer.pay("e", "0984111299")
    assert 'name="withdraw"' in await customer.get("/pay/e")
    assert 'name="withdraw"' in (await customer.click("card", "e"))[1]
    assert "Not paid." in (await customer.withdraw("e"))
    assert service.of("e-1").how == "cancelled"
    await customer.pay("e", "0984111222")
    await service.approve(service.of("e-2").transaction_id)
    assert await customer.decided("e-2") is True
    await customer.pay("f", "0984111299")
    await service.approve(service.of("f-1").transaction_id)
    assert await customer.decided("f-1") is True
    assert "Paid." in await customer.withdraw("f")
    # Nothing is open, or only a form: nothing is withdrawn.
    assert "Pay with the app" in await customer.withdraw("g")
    link = await customer.form("g")
    await customer.withdraw("g")
    assert await customer.form("g") == link


async def test_three_workers_over_postgresql(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """Django under gunicorn: whichever is asked, told or waited in, knows; of twelve clicks one form, or one push."""
    clock = ManualClock()
    async with HeldSimulator(clock, UNLIMITED) as service:
        with serving(
            gunicorn("shop_django:app", 3), service.url, tmp_path, ledger=postgres.url(database),
            profile=PRESET,
        ) as shop:  # fmt: skip
            async with AsyncExitStack() as stack:
                tabs = [await stack.enter_async_context(customer_of(shop)) for _ in range(12)]
                links = await asyncio.gather(*(tab.form("a") for tab in tabs))
                assert len(set(links)) == len(service.forms) == 1
                assert "Paid." in await tabs[0].get(await service.pay(payment_id(links[0])))
                clicks = [tab.click(way, "a") for tab, way in zip(tabs, ("pay", "card") * 6, strict=True)]
                for status, page in await asyncio.gather(*clicks):
                    assert (status, "Paid." in page) == (200, True)
                # Both buttons at once: one of the ways wins.
                clicks = [tab.click(way, "b") for tab, way in zip(tabs, ("pay", "card") * 6, strict=True)]
                assert {status for status, _ in await asyncio.gather(*clicks)} <= {200, 409}
                assert service.counts.created + len(service.forms) == 2
                await asyncio.gather(*(tab.pay("c", "0984111223") for tab in tabs))
                assert [one for one in service.created_per_client_id if one.startswith("c-")] == ["c-1"]
                await service.approve(service.of("c-1").transaction_id)
                assert await tabs[1].decided("c-1") is True
                for status, page in await asyncio.gather(*(tab.click("pay", "c") for tab in tabs)):
                    assert (status, "Paid." in page) == (200, True)
                assert_collected_once(service, 2)
                await push(tabs[2], service)
                await early(tabs[3], service)
                await forged(tabs[4], service)
                await tabs[5].pay("left-open", "0984111299")  # the end finds one open
    assert set(service.created_per_client_id.values()) == {1}


async def during(clock: ManualClock, doing: Coroutine[object, object, Page]) -> Page:
    """Let the shop's time pass while it asks in turn."""
    task = asyncio.create_task(doing)
    while not (await asyncio.wait({task}, timeout=0.2))[0]:
        await clock.advance(1)
    return await task


async def test_an_old_form_that_is_paid_late() -> None:
    """Loaded in its last minute, paid when its link is no longer handed out: no push beside it, before or after."""
    shop = types.ModuleType("orders")
    exec(BLOCKS["orders"], vars(shop))  # noqa: S102 - our own document
    clock = ManualClock()
    async with (
        HeldSimulator(clock, UNLIMITED) as service,
        payclient.open_tracker(service.url, "secret", profile="payphone", clock=clock) as tracker,
    ):

        async def pay(order: str) -> Page:
            return await during(clock, shop.pay(tracker, order, b"phone=0984111222"))

        async def card(order: str) -> Page:
            return await during(clock, shop.card(tracker, order))

        assert (await card("a")).status == 200
        (form,) = service.forms.values()
        await clock.advance(595)
        service.open_form(form.payment_id)
        for _ in range(5):
            await clock.advance(100)
            assert (await pay("a")).status == 409
            page = await card("a")  # too old to be handed out; the order's page says what is known
            assert (page.status, page.headers["Location"]) == (303, "/orders/a")
        back = urlsplit(await service.pay(form.payment_id)).query
        assert (await during(clock, shop.back(tracker, form.client_transaction_id, back))).status == 303
        for _ in range(3):
            assert b"Paid." in (await during(clock, shop.show(tracker, "a"))).body
            assert {(await pay("a")).status, (await card("a")).status} == {303}
            await clock.advance(1000)
        assert (service.counts.created, len(service.forms)) == (0, 1)
        assert_collected_once(service)
        # Nobody pays: once no link of it can be paid any more, and the service was asked, a push may be sent.
        assert (await card("b")).status == 200
        prepared = clock.time()
        while b"Pay with the app" not in (await during(clock, shop.show(tracker, "b"))).body:
            assert clock.time() - prepared < 5000
            assert (await pay("b")).status == 409
            await clock.advance(100)
        assert 1500 <= clock.time() - prepared < 2000
        assert (await pay("b")).status == 303
        # The order's page is about the push, not about the form that nobody paid.
        assert b"Approve the payment on your phone" in (await during(clock, shop.show(tracker, "b"))).body
        assert (service.counts.created, len(service.forms)) == (1, 2)


async def test_a_shop_that_is_killed_between_two_steps(tmp_path: Path) -> None:
    """It is started again over its ledger, and each customer clicks on everything: every order is collected once.

    The orders have the names of the steps after which the shop was killed. The service has executed what was under way,
    and its answers were lost.
    """
    async with HeldSimulator(ManualClock(), UNLIMITED) as service:
        with suppress(AssertionError), serving("aiohttp", service.url, tmp_path, profile=PRESET) as shop:
            async with customer_of(shop) as customer:
                await customer.pay("sent", "0984111221")
                forms = ("prepared", "closed", "paid", "returned", "confirming")
                links = {order: await customer.form(order) for order in forms}
                await customer.get(await service.cancel_form(payment_id(links["closed"])) or "")
                backs = {each: await service.pay(payment_id(links[each])) for each in forms[2:]}
                assert "Paid." in await customer.get(backs["returned"])
                await killed(
                    service, shop, customer.click("pay", "sending", "0984111222"),
                    customer.click("card", "preparing"), customer.get(backs["confirming"]),
                )  # fmt: skip
        with serving("aiohttp", service.url, tmp_path, profile=PRESET) as shop:
            async with customer_of(shop) as customer:
                for order in ("sent", "sending", "preparing", *forms):
                    for way in ("pay", "card", "pay"):
                        assert (await customer.click(way, order))[0] in (200, 409)
                # The links of these may be paid, whoever has them: nothing beside them.
                assert await customer.form("closed") == links["closed"]
                for order in ("preparing", "closed"):
                    status, page = await customer.click("pay", order)
                    assert status == 409
                    assert re.search(r"There is an open card form until \d\d:\d\d", page)
                for order in ("sent", "sending"):
                    await service.approve(service.of(f"{order}-1").transaction_id)
                    assert await customer.decided(f"{order}-1") is True
                assert await customer.form("prepared") == links["prepared"]
                backs["prepared"] = await service.pay(payment_id(links["prepared"]))
                for back in backs.values():
                    page = await customer.get(f"{urlsplit(back).path}?{urlsplit(back).query}")
                    assert "Paid." in page
                for order in ("sent", "sending", *backs):
                    for way in ("pay", "card"):
                        assert "Paid." in (await customer.click(way, order))[1]
    assert_collected_once(service, 6)
    assert (service.counts.created, len(service.forms)) == (2, 6)


async def killed(service: HeldSimulator, shop: Shop, *clicking: Coroutine[object, object, object]) -> None:
    """Kill the shop once the service has carried the requests out, and before their answers."""
    service.released.clear()
    clicks = [asyncio.create_task(each) for each in clicking]
    async with asyncio.timeout(60):
        while service.holding < len(clicks):  # noqa: ASYNC110 - another process sends them
            await asyncio.sleep(0.01)
    shop.process.kill()
    await asyncio.gather(*clicks, return_exceptions=True)
    service.released.set()


def fulfilled(folder: Path) -> list[str]:
    """The orders that the shop's own database calls paid."""
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        return [order for (order,) in database.execute("SELECT id FROM paid ORDER BY id")]
