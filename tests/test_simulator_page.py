"""The page to play with, in a real Chromium: the customer's phone, the forms, the log."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from browser import open_browser
from payclient.simulator import PAYPHONE, Fault, Simulator
from simulated import prepare_of, sale_of

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDE: ViewportSize = {"width": 1280, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 844}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab() -> AsyncIterator[Page]:
    """A tab for all the tests, which leave nothing in it: another one costs half a second."""
    async with open_browser() as browser, await browser.new_page(viewport=WIDE) as tab:
        tab.set_default_timeout(60_000)
        yield tab


@pytest_asyncio.fixture(loop_scope="module")
async def service() -> AsyncIterator[Simulator]:
    async with Simulator() as it:
        yield it


@asynccontextmanager
async def page_of(tab: Page, service: Simulator) -> AsyncIterator[Page]:
    """The page, which must load nothing from elsewhere and have nothing to complain about."""
    complaints: list[str] = []
    requested: list[str] = []
    heard: dict[Any, Any] = {
        "pageerror": lambda error: complaints.append(str(error)),
        "console": lambda said: complaints.extend([said.text] if said.type == "error" else []),
        "request": lambda request: requested.append(request.url),
    }
    for event, hear in heard.items():
        tab.on(event, hear)
    await tab.goto(service.url)
    await tab.get_by_text("No real money moves.").wait_for()
    yield tab
    await tab.goto("about:blank")
    for event, hear in heard.items():
        tab.remove_listener(event, hear)
    assert complaints == []
    assert [url for url in requested if not url.startswith((service.url, "data:"))] == []


def sell(service: Simulator, number: int, **changes: object) -> None:
    service.create_sale(sale_of(number, **{"storeId": "Café Central", **changes}))


async def test_pushes_on_the_phone(tab: Page, service: Simulator) -> None:
    """They appear by themselves (§6), are answered by buttons, and show markup without obeying it."""
    markup = "<img src=x onerror=alert(1)>"
    async with page_of(tab, service) as page:
        await page.get_by_text("No payment requests.").wait_for()
        sell(service, 1)
        card = page.locator(".push")
        await card.wait_for()
        text = await card.inner_text()
        assert "Café Central" in text
        assert "USD 11.50" in text
        assert re.search(r"\b[45]:\d\d\b", text)
        assert "0900000001" not in await page.content()
        for viewport in (NARROW, WIDE):
            await page.set_viewport_size(viewport)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width == viewport["width"], "nothing sticks out"
        await card.get_by_role("button", name="Approve").click()
        await card.wait_for(state="detached")
        await page.locator("#log").get_by_text("approved").wait_for()
        sell(service, 2, storeId=markup, clientTransactionId=f"order-{markup}")
        sell(service, 3)
        second = page.locator(".push", has_text=markup)
        await second.wait_for()
        assert await page.locator("img").count() == 0
        await page.get_by_label("Rejected because").select_option("stolen_card")
        await second.get_by_role("button", name="Reject").click()
        await second.wait_for(state="detached")
        await service.advance(300)
        await page.locator(".push").first.wait_for(state="detached")
    assert [sale.how for sale in service.sales.values()] == ["approved", "rejected", "expired"]
    assert service.sales[1002].reason == "stolen_card"


async def test_a_form_opens_from_the_page_and_is_paid(tab: Page, service: Simulator) -> None:
    """The page says where it is, as the merchant's must (§4), so the form opens."""
    async with page_of(tab, service) as page:
        await page.get_by_role("button", name="Prepare a sample form").click()
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="Open by card").click()
        form = await opened.value
        for name in ("phoneNumber", "email", "documentId"):
            await form.fill(f"input[name={name}]", "+593999999999" if name != "email" else "a@example.com")
        await form.get_by_role("button", name="Pagar").click()
        await form.get_by_text(
            "No real money moves."
        ).wait_for()  # back at the merchant's, which here is the page
        await form.close()
        await page.locator("#forms").get_by_text("paid").wait_for()
        assert service.counts.forms_paid == 1


async def test_what_was_given_back_is_not_shown_as_paid(tab: Page) -> None:
    """A form that nobody confirmed in time is reversed by the service, which its page says."""
    async with Simulator(settings=PAYPHONE) as service, page_of(tab, service) as page:
        form = service.create_form(prepare_of())
        await service.pay(form.payment_id)
        await page.locator("#forms").get_by_text("paid").wait_for()
        await service.advance(310)
        await page.locator("#forms").get_by_text("given back").wait_for()


#: Of each text the contrast with what is behind it, where that is one colour: the least, and of which text.
CONTRAST = """() => {
    const numbers = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    // What `color-mix` makes is color(srgb ...), of parts from 0 to 1.
    const parts = (color) => numbers(color).map((x, at) => color.startsWith("color(") && at < 3 ? 255 * x : x);
    const light = (color) => {
        const [r, g, b] = parts(color).map((x) => x / 255)
            .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const style = getComputedStyle(one), alpha = parts(style.backgroundColor)[3];
            if (style.backgroundImage !== "none") return null;
            if (alpha === undefined) return style.backgroundColor;
            if (alpha !== 0) return null;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility() && !one.disabled
        && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
    const seen = found.map((one) => [one, behind(one)]).filter(([, back]) => back).map(([one, back]) => {
        const [low, high] = [light(back), light(getComputedStyle(one).color)].sort((a, b) => a - b);
        return [(high + 0.05) / (low + 0.05), one.textContent.trim().slice(0, 40)];
    });
    return [seen.length, ...seen.sort((a, b) => a[0] - b[0])[0]];
}"""


async def test_every_text_can_be_read(tab: Page, service: Simulator) -> None:
    """At a contrast of 4.5 or more: the page, a form, and the access-denied page."""
    sell(service, 1)
    sell(service, 2)
    service.fail_next(Fault("html", operation="status"))
    await service.approve("order-1")
    async with page_of(tab, service) as page:
        await page.get_by_role("button", name="Prepare a sample form").click()
        link = page.get_by_role("link", name="Open by card")
        await link.wait_for()
        address = f"{service.url}{await link.get_attribute('href')}"
        for url, referrer in ((None, None), (address, f"{service.url}/"), (address, None)):
            if url is not None:
                await page.goto(url, referer=referrer)
            texts, least, text = await page.evaluate(CONTRAST)
            assert texts > 3
            assert least >= 4.5, (url, text)


async def test_the_page_outlives_a_restart(tab: Page, service: Simulator) -> None:
    """What was pending is there again, and a sample charge is sent from the page."""
    async with page_of(tab, service) as page:
        await page.get_by_role("button", name="Send a sample charge").click()
        await page.locator(".push").wait_for()
        assert service.counts.created == 1
    await tab.goto(service.url)  # not by `page_of`: a failed request is an error in its console
    await tab.locator(".push").wait_for()
    await service.stop()
    await tab.get_by_text("does not answer").wait_for()
    await service.start()
    await tab.get_by_text("does not answer").wait_for(state="hidden")
    assert await tab.locator(".push").count() == 1, "what was pending is there"
    await tab.goto("about:blank")
