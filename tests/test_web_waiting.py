"""The page on which a customer waits, and what its app's JSON route says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import payclient
from fake_service import FakeService, Held, lost_answer, sale, tracking
from fake_service import form as request
from payclient.web import is_waiting, sale_status, waiting_page
from test_web_redirect import assert_policy_fits, read_page


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def pending(service: FakeService) -> AsyncIterator[payclient.PendingSale]:
    """A sale on its customer's phone, 28 seconds ago."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(28)
        yield pending


async def test_the_page_says_what_to_do_and_how_long(pending: payclient.PendingSale) -> None:
    """The time left is there before any script runs; the policy allows the page's own script and route."""
    page = waiting_page(pending, "/orders/order-17/status", amount="USD 11,50 <b>")
    text = page.body.decode()
    assert page.status == 200
    assert "Apruebe el pago en su teléfono" in text
    assert '<b id="clock" role="timer">4:32</b>' in text
    assert "USD 11,50 &lt;b&gt;" in text
    (box,) = [each for each in read_page(page).of("div") if each.get("id") == "wait"]
    assert box["role"] == "status"
    assert (box["data-status"], box["data-seconds"]) == ("/orders/order-17/status", "272")
    assert "connect-src 'self'; " in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"
    assert_policy_fits(page)


async def test_the_page_offers_another_way(pending: payclient.PendingSale) -> None:
    """A link of the shop's, escaped; without one there is none. It loads itself anew, sooner without JavaScript."""
    text = waiting_page(pending, "/s", "en", cancel_url="/cart?a=1&b=2").body.decode()
    assert '<a href="/cart?a=1&amp;b=2">Wrong number? Pay in another way</a>' in text
    assert '<noscript><meta http-equiv="refresh" content="4"></noscript>' in text
    assert '\n<meta http-equiv="refresh" content="30">' in text
    assert "<a " not in waiting_page(pending, "/s").body.decode()


async def test_what_cannot_be_a_page(pending: payclient.PendingSale) -> None:
    """The route is the app's own, the other way an address, and the language one of two."""
    for address in ("javascript:x", "//evil.example/s"):
        with pytest.raises(payclient.ConfigurationError, match="status_url"):
            waiting_page(pending, address)
    with pytest.raises(payclient.ConfigurationError, match="cancel_url"):
        waiting_page(pending, "/s", cancel_url="javascript:x")
    with pytest.raises(payclient.ConfigurationError, match="language"):
        waiting_page(pending, "/s", "fr")  # type: ignore[arg-type]  # meant


async def test_who_returns_from_a_form_is_told_of_no_phone() -> None:
    """The payment is being confirmed; how long the form lives is nothing to wait for."""
    async with tracking(FakeService()) as tracker:
        await tracker.prepare(request("cart-1"))
        found = await tracker.find("cart-1")
        assert found is not None
        page = waiting_page(found, "/s", "en")
    text = page.body.decode()
    assert "Confirming your payment" in text
    assert "phone" not in text
    assert 'id="clock"' not in text
    assert_policy_fits(page)


async def test_the_route_says_whether_to_go_on_waiting(service: FakeService) -> None:
    """Pending waits; decided does not."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert sale_status(pending) == {"waiting": True, "paid": None, "state": "pending", "remaining": 300.0}
        service.decide("Aceptado")
        await service.clock.advance(10)
        assert sale_status(pending)["waiting"] is False
        assert sale_status(pending)["paid"] is True
        assert not is_waiting(pending)


async def test_the_wait_ends_with_the_time_and_not_with_a_verdict(service: FakeService) -> None:
    """Expired, and unknown once its time is over: no more waiting, and `paid` stays None."""
    service.scripts = [lost_answer]
    async with tracking(service, profile=payclient.DOCUMENT) as tracker:
        unknown = await tracker.sale(sale("unknown"))
        pending = await tracker.sale(sale("silent", phone="0984111333"))
        assert is_waiting(unknown)
        await service.clock.advance(302)
        assert pending.state is payclient.State.EXPIRED
        assert sale_status(pending) == {"waiting": False, "paid": None, "state": "expired", "remaining": 0.0}
        assert is_waiting(unknown)  # it counts from the end of its time-out
        await service.clock.advance(30)
        assert sale_status(unknown) == {"waiting": False, "paid": None, "state": "unknown", "remaining": 0.0}


async def test_a_push_on_its_way_is_waited_for(service: FakeService) -> None:
    """The customer's page may be loaded before the service has answered the Sale."""
    held = Held()
    service.scripts = [held]
    async with tracking(service) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        for _ in range(50):
            await asyncio.sleep(0)
        found = await tracker.find("order-17")
        assert found is not None
        assert (found.state, sale_status(found)["waiting"]) == (payclient.State.SENDING, True)
        held.go.set()
        await sending
