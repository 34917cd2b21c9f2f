"""A real Chromium: from the shop's page to the form with the right referrer (§4), and the pages that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import attrs
import pytest
import pytest_asyncio
from aiohttp import web

import payclient
from browser import open_browser
from fake_service import sale
from manual_clock import ManualClock
from payclient.profile import StatusProfile
from payclient.simulator import Simulator
from payclient.tracking.forms import FormLink
from payclient.web import is_waiting, redirect_page, waiting_page
from payclient.web.aiohttp import order_routes, page_response, tracker_context, tracker_of
from ports import served
from shops.serving import Shop, serving
from simulated import QUERIES

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="module")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: The registered domain (§4), another one, and the service's address; all are this machine.
SHOP, OTHER = "shop.test", "other.test"

SETTINGS = attrs.evolve(QUERIES, registered_domains=frozenset({SHOP}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all the tests."""
    async with open_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A tab for all the tests that leave nothing in it: another one costs half a second."""
    async with tab(browser) as page:
        yield page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(browser: Browser) -> AsyncIterator[Page]:
    """Such a tab without JavaScript."""
    async with tab(browser, scripts=False) as page:
        yield page


class Site(Simulator):
    """The simulator, which remembers from where its forms were opened."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(token="secret", clock=clock, settings=SETTINGS)
        self.referrers: list[str | None] = []

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path.startswith("/form/"):
            self.referrers.append(request.headers.get("Referer"))
        return await super().serve(request)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(loop_scope="module")
async def service(clock: ManualClock) -> AsyncIterator[Site]:
    async with Site(clock) as site:
        yield site


class Pages:
    """A merchant's site that sends its customers to one form, in every way there is."""

    def __init__(self, link: str) -> None:
        self._link = link
        self.port = 0

    def at(self, path: str, host: str = SHOP) -> str:
        return f"http://{host}:{self.port}{path}"

    async def linked(self, request: web.Request) -> web.Response:
        policy = request.query.get("policy")
        headers = {} if policy is None else {"Referrer-Policy": policy}
        html = f'<!DOCTYPE html><a id="go" href="{escape(self._link)}" {request.query.get("rel", "")}>go</a>'
        return web.Response(text=html, content_type="text/html", headers=headers)

    async def moved(self, request: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": self._link, "Referrer-Policy": "origin"})

    async def page(self, request: web.Request) -> web.Response:
        return page_response(redirect_page(FormLink(self._link, 0.0), "es", now=1.0))


@asynccontextmanager
async def pages_of(link: str) -> AsyncIterator[Pages]:
    pages = Pages(link)
    app = web.Application()
    app.add_routes(
        [web.get("/link", pages.linked), web.get("/moved", pages.moved), web.get("/page", pages.page)]
    )
    async with served(app) as url:
        pages.port = int(url.rpartition(":")[2])
        yield pages


@asynccontextmanager
async def tab(browser: Browser, *, scripts: bool = True) -> AsyncIterator[Page]:
    """A fresh tab without cookies or history."""
    context = await browser.new_context(java_script_enabled=scripts, viewport={"width": 390, "height": 844})
    context.set_default_timeout(60_000)
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def prepared(service: Simulator) -> payclient.PrepareResult:
    """A form whose cardholder's data are known, with addresses to come back to."""
    async with payclient.PaySession(service.url, "secret") as session:
        return await session.prepare(
            payclient.PrepareRequest(
                amount_without_tax=1150, currency="USD", client_transaction_id="cart-1", store_id="S1",
                response_url=f"{service.url}/paid", cancellation_url=f"{service.url}/closed",
                phone_number="+593984111222", email="ann@shop.example", document_id="0102030405",
            )
        )  # fmt: skip


PAY = "button.pay"
DENIED = "text=No autorizado"
PUSH, CARD, PAID = "text=Pay with the app", "text=Pay by card", 'text="Paid."'


async def test_a_form_opens_where_the_pages_policy_sends_the_referrer(page: Page, service: Site) -> None:
    """The origin of the registered domain is enough. Denied are `no-referrer`, Django's `same-origin`, another domain,
    and a typed address answered by a 303, since no page could be the referrer (§4, §7.7)."""
    form = await prepared(service)
    async with pages_of(form.pay_with_card) as pages:
        for path, opens in (
            ("/link?policy=origin", True),
            ("/link?policy=origin-when-cross-origin", True),
            ("/link?policy=strict-origin-when-cross-origin", True),
            ("/link", True),  # what browsers do by themselves
            ("/link?policy=no-referrer", False),
            ("/link?policy=same-origin", False),
            ("/link?policy=origin&rel=rel=noreferrer", False),
            ("/link?policy=same-origin&rel=referrerpolicy=origin", True),
        ):
            await page.goto(pages.at(path))
            await page.click("#go")
            await page.wait_for_selector(PAY if opens else DENIED)
            assert service.referrers.pop() == (pages.at("/") if opens else None), path
        await page.goto(pages.at("/moved"))
        await page.wait_for_selector(DENIED)
        assert service.referrers.pop() is None
        await page.goto(pages.at("/page", OTHER), wait_until="commit")
        await page.wait_for_selector(DENIED)
        assert service.referrers.pop() == pages.at("/", OTHER)


@pytest.mark.parametrize("way", ["script", "refresh", "button"])
async def test_a_redirect_moves_on_with_a_referrer(page: Page, plain: Page, service: Site, way: str) -> None:
    """By itself with JavaScript or without, or by its button; what is sent is the origin, never the path."""
    form = await prepared(service)
    refused: list[str] = []
    page = page if way == "script" else plain
    async with pages_of(form.pay_with_card) as pages:
        page.on("console", lambda message: refused.append(message.text))
        await page.goto(pages.at("/page"), wait_until="commit")
        if way == "button":
            await page.click("#go")  # before the refresh
        await page.wait_for_selector(PAY)
        assert service.referrers == [pages.at("/")]
    assert [text for text in refused if "Content Security Policy" in text] == []


async def test_the_redirect_page_leaves_no_trap_behind(page: Page, service: Site) -> None:
    """Back leads to where the customer came from, not into the same form again."""
    form = await prepared(service)
    async with pages_of(form.pay_with_card) as pages:
        await page.goto(pages.at("/link"))
        await page.evaluate("location.assign('/page')")
        await page.wait_for_selector(PAY)
        await page.go_back()
        assert page.url == pages.at("/link")


async def test_a_customer_in_a_shop(browser: Browser, service: Site, tmp_path: Path) -> None:
    """A push, another way while it is open, a card once it was rejected, and no way once it is paid."""
    with serving("aiohttp", service.url, tmp_path, host=SHOP) as shop:
        async with tab(browser) as page:
            refused: list[str] = []
            page.on("console", lambda message: refused.append(message.text))
            # The page's timers run when we say so: no test waits for them, and no page loads itself anew meanwhile.
            await page.clock.install(time=0)
            await page.clock.pause_at(1000)
            await page.goto(f"{shop.url}/pay/order-1")
            await page.fill("[name=phone]", "0984111222")
            await page.click(PUSH)
            await page.wait_for_selector("text=Approve the payment on your phone")
            assert (await page.inner_text("#clock")).startswith("0:")
            # Another way: not while the request is open.
            await page.click("text=Pay in another way")
            await page.click(CARD)
            await page.wait_for_selector("text=There is an open request on your phone until")
            await page.click("text=Go on with it")
            await page.wait_for_selector("text=Approve the payment on your phone")
            (sale,) = service.sales.values()
            await service.reject(sale.transaction_id)
            await waited(shop, "order-1-1")
            await page.clock.fast_forward(2000)
            await page.wait_for_selector("text=Not paid.")
            assert urlsplit(page.url).path == "/orders/order-1"
            await page.click(CARD)
            await page.wait_for_selector(PAY)
            assert service.referrers == [f"{shop.url}/"]
            await fill(page)
            await page.click(PAY)
            await page.wait_for_url("**/orders/order-1")  # by /back/
            (form,) = service.forms.values()
            await waited(shop, form.client_transaction_id)
            await page.clock.fast_forward(2000)  # unless it says so already
            await page.wait_for_selector(PAID)
            # Nothing that is clicked now asks for more.
            for button in (PUSH, CARD):
                await page.goto(f"{shop.url}/pay/order-1")
                await page.fill("[name=phone]", "0984111222")
                await page.click(button)
                await page.wait_for_selector(PAID)
            # A push that is approved; by a double click.
            await page.goto(f"{shop.url}/pay/order-2")
            await page.fill("[name=phone]", "0984111222")
            await page.dblclick(PUSH)
            await page.wait_for_selector("text=Approve the payment on your phone")
            (again,) = [each for each in service.sales.values() if each is not sale]
            await service.approve(again.transaction_id)
            await waited(shop, "order-2-1")
            await page.clock.fast_forward(2000)
            await page.wait_for_selector(PAID)
            assert [text for text in refused if "Content Security Policy" in text] == []
    assert (service.counts.created, len(service.forms), service.counts.forms_paid) == (2, 1, 1)


@asynccontextmanager
async def waiting_at(
    service: Site, policy: str = "", **options: str
) -> AsyncIterator[tuple[str, payclient.PendingSale]]:
    """The address of a page that waits for a sale, under a policy of the whole site, and with options of its own."""

    @web.middleware
    async def proxy(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if policy:
            response.headers.add("Content-Security-Policy", policy)
        return response

    async def order(request: web.Request) -> web.Response:
        sale = await tracker_of(request).find("order-1")
        assert sale is not None
        page = waiting_page(sale, "/orders/order-1/status", "en", cancel_url="/cart", **options)
        return page_response(page) if is_waiting(sale) else web.Response(text=f"paid: {sale.outcome.paid}")

    profile = payclient.ServiceProfile(status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}", state_field="transactionStatus"
    ))  # fmt: skip
    async with payclient.open_tracker(service.url, "secret", profile=profile, clock=service.clock) as tracker:
        app = web.Application(middlewares=[proxy])
        app.cleanup_ctx.append(tracker_context(lambda: nullcontext(tracker)))
        app.add_routes([*order_routes(), web.get("/orders/{id}", order)])
        async with served(app) as url:
            pending = await tracker.sale(sale("order-1"))
            yield f"http://{SHOP}:{url.rpartition(':')[2]}/orders/order-1", pending


async def test_the_pages_work_under_a_policy_of_the_whole_site(browser: Browser, service: Site) -> None:
    """Under a proxy's `default-src 'self'` style and script come as files, and nothing is refused."""
    refused: list[str] = []
    async with (
        waiting_at(service, "default-src 'self'", assets="/orders/assets") as (url, pending),
        tab(browser) as page,
    ):
        page.on("console", lambda message: refused.append(message.text))
        await page.clock.install(time=0)
        await page.clock.pause_at(1000)
        await page.goto(url)
        centred = await page.evaluate("getComputedStyle(document.querySelector('main')).textAlign")
        assert centred == "center"
        before = await page.inner_text("#clock")
        await page.clock.run_for(1500)
        assert await page.inner_text("#clock") != before
        assert not await page.is_visible("#offline")
        await page.context.set_offline(True)
        await page.clock.run_for(1000)
        await page.wait_for_selector("#offline", state="visible")
        await page.context.set_offline(False)
        await service.approve("order-1")
        await pending.check()
        for _ in range(60):  # an answer that was on its way may be of before: the next poll has the outcome
            await page.clock.run_for(1000)
            if await page.is_visible("text=paid: True"):
                break
        await page.wait_for_selector("text=paid: True")
    assert [text for text in refused if "Content Security Policy" in text] == []


async def test_the_page_is_loaded_anew_at_zero(browser: Browser, service: Site, clock: ManualClock) -> None:
    """At 0:00 by itself, though the status route has not answered; on a phone's screen nothing stands beside it."""
    async with waiting_at(service) as (url, _), tab(browser) as page:
        await page.set_viewport_size({"width": 320, "height": 640})
        await page.route("**/status", lambda route: route.abort())
        await page.clock.install(time=0)
        await page.clock.pause_at(1000)
        await page.goto(url)
        assert await page.evaluate("document.documentElement.scrollWidth") == 320
        # The shop's clock is ahead, so that the page that comes is not the one that waits.
        await clock.advance(301)
        await page.clock.run_for(290_000)
        assert (await page.inner_text("#clock")).startswith("0:")
        await page.clock.run_for(13_000)
        await page.wait_for_selector("text=paid:")


async def test_a_page_waits_without_javascript(plain: Page, service: Site) -> None:
    """It is loaded anew by itself until the outcome."""
    async with waiting_at(service) as (url, pending):
        await plain.goto(url)
        await plain.wait_for_selector("text=Approve the payment on your phone")
        await service.reject("order-1")
        await pending.check()
        await plain.wait_for_selector("text=paid: False")


async def waited(shop: Shop, identifier: str) -> None:
    """Until the shop says that the waiting is over; its name is the browser's only."""
    url = f"{shop.url.replace(SHOP, '127.0.0.1')}/orders/{identifier}/status"
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(url) as answer:
                if not (await answer.json())["waiting"]:
                    return
            await asyncio.sleep(0.01)  # for the shop's own work


async def fill(page: Page) -> None:
    for name, value in {
        "phoneNumber": "+593984111222", "email": "a@shop.example", "documentId": "0102",
    }.items():  # fmt: skip
        await page.fill(f'input[name="{name}"]', value)
