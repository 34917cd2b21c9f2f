"""The pages of a customer: what they say, what their policy allows, and which links are not handed out."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator
from html import escape
from typing import Any

import attrs
import pytest
from aiohttp import web
from django.urls import path
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

import payclient
from asgi import FRAMEWORKS, asking_of
from fake_service import PROFILE, FakeService, Held, lost_answer, paid, pending_of, sale, tracking
from fake_service import form as request
from pages import Read, digest_of
from payclient.tracking.forms import FormLink
from payclient.web import Page, is_waiting, redirect_page, sale_status, waiting_page
from raw_server import turns
from test_reversals import PROFILE as REVERSIBLE
from test_reversals import Service as Reversing

URL = "https://pay.example/form/card?paymentId=a&b=%22"


def link(url: str = URL, prepared_at: float = 1000.0) -> FormLink:
    return FormLink(url, prepared_at)


def shown(language: str = "es", **options: object) -> Page:
    return redirect_page(link(), language, **{"now": 1001.0, **options})  # type: ignore[arg-type]  # any, also bad ones


def read_page(page: Page) -> Read:
    return Read(page.body.decode())


def assert_policy_fits(page: Page) -> None:
    """Nothing is allowed but what the page itself holds inline, by its hash."""
    read, policy = read_page(page), page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for tag, text in read.inline.items():
        assert f"{tag}-src {digest_of(text)}" in policy
    assert "script-src" not in policy or "script" in read.inline
    assert not [attributes for _, attributes in read.tags if "src" in attributes]


def test_the_page_brings_the_referrer_and_is_kept_by_nobody() -> None:
    """HTTP 200, the origin as referrer, no cache, no index, a strict policy (§4)."""
    page = shown()
    assert page.status == 200
    assert page.headers["Referrer-Policy"] == "origin"
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert {"name": "referrer", "content": "origin"} in read_page(page).of("meta")
    assert "pay.example" not in repr(page), "the link is a secret"
    assert_policy_fits(page)


def test_it_moves_on_by_script_by_refresh_and_by_a_button() -> None:
    """All three lead to the link, and the script holds no address."""
    page = shown()
    read = read_page(page)
    (button,) = read.of("a")
    assert button["href"] == URL
    assert "noreferrer" not in (button.get("rel") or "")
    (refresh,) = [meta["content"] for meta in read.of("meta") if meta.get("http-equiv") == "refresh"]
    assert refresh == f"2; url={URL}"
    assert "<noscript><meta http-equiv" in page.body.decode()
    assert "pay.example" not in read.inline["script"]


def test_it_says_a_word_while_the_form_loads() -> None:
    """In the customer's language, named in the document too; two there are, as of the forms themselves (§2.3)."""
    for language, word in (("es", "Abriendo el pago"), ("en", "Opening the secure payment")):
        text = shown(language).body.decode()
        assert word in text
        assert f'<html lang="{language}">' in text
    with pytest.raises(payclient.ConfigurationError, match="language"):
        shown("fr")


def test_a_link_that_is_not_live_is_not_handed_out() -> None:
    """HTTP 410 without the link, and a way to start again (§8)."""
    page = redirect_page(link(), now=1600.0, again="/cart?x=1&y=2")
    assert page.status == 410
    assert b"pay.example" not in page.body
    assert b'href="/cart?x=1&amp;y=2"' in page.body
    (button,) = read_page(page).of("a")
    assert button["href"] == "/cart?x=1&y=2"
    assert page.headers["Referrer-Policy"] == "origin"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert_policy_fits(page)
    assert read_page(redirect_page(link(), "en", now=1600.0)).of("a") == []
    assert redirect_page(link(), now=1599.9).status == 200
    # By itself it looks at this machine's clock.
    assert redirect_page(link()).status == 410
    assert redirect_page(link(prepared_at=time.time())).status == 200


@pytest.mark.parametrize(
    "url",
    [
        "http://pay.example/form", "javascript:alert(1)", "https://u:p@pay.example/", "https://pay.example\\@evil.example/",
        "https://pay.example/a b", "https://pay.example/\n", "//pay.example/", "", "data:text/html,x", "https://pay.éxample/",
    ],
)  # fmt: skip
def test_an_unsafe_link_is_an_error_and_never_a_redirect(url: str) -> None:
    """https, or http on loopback; no tricks; and the error does not repeat it."""
    with pytest.raises(payclient.ConfigurationError) as caught:
        redirect_page(link(url), now=1001.0)
    assert "example" not in str(caught.value)


def test_wrong_assets_are_an_error_that_shows_no_link() -> None:
    """Nor do its frames, whose local variables an error tracker sends."""
    with pytest.raises(payclient.ConfigurationError, match="assets") as caught:
        redirect_page(link(), now=1001.0, assets="//cdn.example/")
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)][1:]  # but the test's own
    assert "pay.example" not in repr(frames)


def test_a_link_names_one_of_the_hosts_where_they_are_given() -> None:
    """The profile's `link_hosts`, in any letter case."""
    assert shown(hosts={"pay.example"}).status == shown(hosts={"Pay.Example"}).status == 200
    with pytest.raises(payclient.ConfigurationError):
        shown(hosts={"other.example"})
    assert redirect_page(link("http://127.0.0.1:8080/form"), now=1001.0).status == 200


@pytest.mark.parametrize(
    "again",
    [
        "javascript:alert(1)", "javascript://shop.example/%0aalert(1)", "//evil.example/",
        " //evil.example/", "https:evil", "/a\\b", "/a\nb", "https://[x",
    ],
)  # fmt: skip
def test_a_way_back_is_a_path_or_an_http_address(again: str) -> None:
    """Nothing else becomes a link of the page; it is refused while the form lives, too."""
    for now in (1001.0, 1600.0):
        with pytest.raises(payclient.ConfigurationError, match="again"):
            redirect_page(link(), now=now, again=again)


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60))
def test_whatever_the_link_it_stays_inside_its_attributes(rest: str) -> None:
    """A page is the same but for its link, and what was put in comes out of it."""
    url = f"https://pay.example/{rest}"
    if "\\" in rest:
        return
    read, plain = read_page(redirect_page(link(url), now=1001.0)), read_page(shown())
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in plain.tags]
    assert read.of("a")[0]["href"] == url


# --- In each framework


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_response_goes_by_the_trackers_clock_and_hosts(framework: Any) -> None:
    """200 with the referrer while the link lives, 410 with the way back afterwards, and no foreign host ever."""

    async def view(request: Any, age: str = "") -> Any:
        age = age or dict(getattr(request, "path_params", None) or request.match_info)["age"]
        prepared_at = tracker.clock.time() - float(age)
        with pytest.raises(payclient.ConfigurationError):
            framework.redirect_response(request, link("https://evil.example/form", prepared_at))
        return framework.redirect_response(request, link(URL, prepared_at), "en", again="/cart")

    routing: dict[object, Any] = {
        payclient.web.aiohttp: web.get("/form/{age}", view),
        payclient.web.starlette: Route("/form/{age}", view),
        payclient.web.django: path("form/<age>", view),
    }
    profile = attrs.evolve(PROFILE, link_hosts=frozenset({"pay.example"}))
    async with (
        tracking(FakeService(), profile=profile) as tracker,
        asking_of(framework, tracker, [routing[framework]]) as asking,
    ):
        alive, dead = await asking("GET", "/form/599"), await asking("GET", "/form/600")
    assert (alive.status, alive.headers["referrer-policy"]) == (200, "origin")
    assert escape(URL).encode() in alive.body
    assert [each["referrerpolicy"] for each in Read(alive.body.decode()).of("a")] == ["origin"]
    assert (dead.status, b'href="/cart"' in dead.body, b"pay.example" in dead.body) == (410, True, False)


# --- The page that waits, and what its app's JSON route says


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
    page = waiting_page(pending, "/orders/order-17/status")
    text = page.body.decode()
    assert page.status == 200
    assert "Apruebe el pago en su teléfono" in text
    assert '<b id="clock" role="timer">4:32</b>' in text
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


async def test_the_time_left_has_two_digits_of_seconds(service: FakeService) -> None:
    """Without JavaScript it stands there as it is."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(56)
        assert '<b id="clock" role="timer">4:04</b>' in waiting_page(pending, "/s").body.decode()


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
        found = await pending_of(tracker, "cart-1")
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


@pytest.mark.parametrize("seconds", [-86_400, 3600])
async def test_a_wall_clock_that_jumps_changes_no_time_left(service: FakeService, seconds: float) -> None:
    """The page counted down from a day of an unknown sale, or sent away who could still approve."""
    service.scripts = [lost_answer]
    async with tracking(service, profile=payclient.DOCUMENT) as tracker:
        unknown = await tracker.sale(sale("unknown"))
        service.clock.jump_wall(seconds)
        await service.clock.advance(100)
        assert (is_waiting(unknown), sale_status(unknown)["remaining"]) == (True, 230.0)
        await service.clock.advance(235)
        assert not is_waiting(unknown)


async def test_a_payment_on_its_way_back_is_not_waited_for() -> None:
    """There is nothing for the customer to approve on the phone any more."""
    service = Reversing()
    service.reverse_scripts = [(ConnectionResetError(), False)]
    async with tracking(service, profile=REVERSIBLE) as tracker:
        pending = await paid(service, tracker)
        await tracker.reverse(pending)
        assert (pending.state, sale_status(pending)["waiting"]) == (payclient.State.REVERSING, False)


async def test_a_push_on_its_way_is_waited_for(service: FakeService) -> None:
    """The customer's page may be loaded before the service has answered the Sale."""
    held = Held()
    service.scripts = [held]
    async with tracking(service) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        await turns(50)
        found = await pending_of(tracker, "order-17")
        assert (found.state, sale_status(found)["waiting"]) == (payclient.State.SENDING, True)
        held.go.set()
        await sending
