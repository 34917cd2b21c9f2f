"""Payment forms: prepared once, handed out while they live, followed by their own id."""

from __future__ import annotations

import asyncio
import json
import pickle

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger
from fake_service import (
    LINKS,
    PROFILE,
    FakeService,
    answers,
    events_of,
    no_connection,
    pending_of,
    record_in,
    refuses,
    tracking,
)
from fake_service import form as request
from payclient.ledger.memory import MemoryLedger
from payclient.session import PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse


@pytest.fixture
def service() -> FakeService:
    return FakeService()


pytestmark = pytest.mark.usefixtures("delays")


async def test_a_form_has_two_links_each_with_its_own_life(service: FakeService) -> None:
    """Ten minutes from each link's own load (§8), and from the preparing until that is known."""
    async with tracking(service) as tracker:
        form = await tracker.prepare(request())
        now = service.clock.time()
        assert form.payment_id == "P1"
        assert form.wallet.url == LINKS["payWithPayPhone"]
        assert form.card.expires_at == form.wallet.expires_at == now + 600
        form.card.mark_loaded(now + 100)
        form.card.mark_loaded(now + 500)  # a second load changes nothing
        assert form.card.expires_at == now + 700
        assert form.card.is_live(now + 699)
        assert not form.wallet.is_live(now + 600)
        assert not form.is_live(now + 600)
        assert "pay.example" not in repr(form) + repr(form.card)


async def test_a_link_is_shown_by_its_accessor_alone(service: FakeService) -> None:
    """Whoever asks for the address gets it; printed, taken apart or pickled a form shows none."""
    async with tracking(service) as tracker:
        form = await tracker.prepare(request())
        link = form.card
        assert (link.url, form.result.links["payWithCard"]) == (LINKS["payWithCard"], LINKS["payWithCard"])
        for thing in (form, link, form.result.links):
            shown = f"{thing!r} {thing} {attrs.asdict(link)} {attrs.asdict(form.result.links)}"
            assert not any(address in shown for address in LINKS.values())
            with pytest.raises(TypeError, match="secret"):
                pickle.dumps(thing)
        assert link == payclient.FormLink(link.url, link.prepared_at)
        assert link != payclient.FormLink("https://pay.example/another", link.prepared_at)


async def test_no_link_is_handed_out_after_a_long_pause(service: FakeService) -> None:
    """A process that stood still hears its answer when others take the form for dead: nobody gets its links."""

    async def late(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        service.clock.jump_wall(1300)
        return service.prepare(json.loads(request.body))

    service.scripts = [late]
    ledger = MemoryLedger()
    async with tracking(service, ledger=ledger) as tracker:
        with pytest.raises(payclient.OutcomeUnknownError, match="stood still"):
            await tracker.live_form("cart-9", request)
        assert await ledger.links("cart-9", service.clock.time()) == {}


async def test_live_form_prepares_once_however_many_ask(service: FakeService) -> None:
    """Single flight, and a new client transaction id for each generation."""
    async with tracking(service) as tracker:
        forms = await asyncio.gather(*(tracker.live_form("cart-9", request) for _ in range(50)))
        assert len({form.payment_id for form in forms}) == 1
        await service.clock.advance(500)
        assert (await tracker.live_form("cart-9", request)).payment_id == "P1"
        await service.clock.advance(50)  # less than the margin is left, and it can be paid for long
        with pytest.raises(payclient.PurchaseOpenError) as raised:
            await tracker.live_form("cart-9", request)
        assert raised.value.until == pytest.approx(service.clock.time() - 550 + 1230)
        assert (await tracker.live_form("cart-9", request, margin=0)).payment_id == "P1"
        await service.clock.advance(680)
        with pytest.raises(payclient.PurchaseOpenError):  # its last query was not made yet
            await tracker.live_form("cart-9", request)
        await service.clock.advance(200)
        assert (await tracker.live_form("cart-9", request)).payment_id == "P2"
        await tracker.live_form("cart-10", request)
    assert len(set(service.prepared)) == 3
    assert all(len(identifier) <= 50 and "cart" not in identifier for identifier in service.prepared)


async def test_live_form_hands_out_none_that_is_cancelled(service: FakeService) -> None:
    """Declined, says the service: whoever comes back gets another, one however many ask."""
    async with tracking(service) as tracker:
        first = await tracker.live_form("cart-9", request)
        service.sales[5000] = {
            "transactionId": 5000, "clientTransactionId": first.client_transaction_id, "amount": 1150,
            "currency": "USD", "state": "Cancelado",
        }  # fmt: skip
        await service.clock.advance(30)
        forms = await asyncio.gather(*(tracker.live_form("cart-9", request) for _ in range(5)))
        assert {form.payment_id for form in forms} == {"P2"}


async def test_a_cancelled_caller_leaves_the_form_to_the_others(service: FakeService) -> None:
    """Whoever closes a tab while the form is prepared takes it from nobody."""
    async with tracking(service) as tracker:
        first, second = (asyncio.create_task(tracker.live_form("cart", request)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).payment_id == "P1"
        assert first.cancelled()
        assert len(service.prepared) == 1


async def test_a_failed_prepare_leaves_no_form_and_the_next_asks_again(service: FakeService) -> None:
    """Every waiter gets the error; nothing dead is kept."""
    service.scripts = [refuses(800)]
    async with tracking(service) as tracker:
        results = await asyncio.gather(
            *(tracker.live_form("cart", request) for _ in range(3)), return_exceptions=True
        )
        assert {type(result) for result in results} == {payclient.ValidationFailedError}
        assert not service.prepared
        assert (await tracker.live_form("cart", request)).payment_id == "P1"


async def test_an_id_that_was_prepared_before_leads_to_a_form(service: FakeService) -> None:
    """Code 23 of a POST that was repeated on its way, or of a ledger that is gone: the next generation."""
    service.scripts = [refuses(23), refuses(23)]
    profile = attrs.evolve(PROFILE, duplicate_codes=frozenset({23}))
    async with tracking(service, profile=profile) as tracker:
        forms = await asyncio.gather(*(tracker.live_form("cart", request) for _ in range(3)))
        assert {form.payment_id for form in forms} == {"P1"}
        service.scripts = [refuses(23)] * 20
        with pytest.raises(payclient.RefusedError):  # a service that knows every id leads nowhere
            await tracker.live_form("other", request)


async def test_an_id_that_was_paid_before_is_prepared_no_more(service: FakeService) -> None:
    """The ledger is gone, and the customer had paid: nobody is given another form."""
    profile = attrs.evolve(PROFILE, duplicate_codes=frozenset({23}))
    async with tracking(service, profile=profile) as tracker:
        form = await tracker.live_form("cart", request)
        service.pay(form.client_transaction_id, state="Aceptado")
    async with tracking(service, profile=profile) as tracker:
        service.scripts = [refuses(23)]
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.live_form("cart", request)


async def test_a_form_must_be_built_with_the_id_that_is_given(service: FakeService) -> None:
    """`make_request` that ignores its argument is a `ConfigurationError`; so is a margin beyond a form's life."""
    async with tracking(service) as tracker:
        with pytest.raises(payclient.ConfigurationError, match="make_request"):
            await tracker.live_form("cart", lambda _: request("mine"))
        with pytest.raises(payclient.ConfigurationError, match="margin"):
            await tracker.live_form("cart", request, margin=600)
    assert not service.prepared


async def test_an_id_is_used_once(service: FakeService) -> None:
    """A form has a client transaction id of its own; after a refusal it may be tried again."""
    ledger = MemoryLedger()
    service.scripts = [refuses(800)]
    async with tracking(service, ledger) as tracker:
        with pytest.raises(payclient.ValidationFailedError):
            await tracker.prepare(request())
        await tracker.prepare(request())
        with pytest.raises(payclient.DifferentRequestError):
            await tracker.prepare(request())
        record = await record_in(ledger, "form-1")
        assert (record.kind, record.attempt, record.state) == ("form", 2, payclient.State.PENDING)
    with pytest.raises(payclient.TrackerClosedError):
        await tracker.prepare(request("late"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"paymentId": "P", "payWithCard": "https://evil.example/c"}, payclient.OutcomeUnknownError),
        ({"paymentId": "P", "payWithCard": "https://pay.example:x/c"}, payclient.OutcomeUnknownError),
        ({"message": "m", "errorCode": 800, "errors": []}, payclient.ValidationFailedError),
    ],
)
async def test_an_answer_that_is_no_safe_form_is_an_error(
    service: FakeService, body: dict[str, object], error: type[Exception]
) -> None:
    """Links are of the profile's hosts: or an error, and never a redirect. More are in tests/test_transport.py."""
    service.scripts = [answers(200, body)]
    profile = attrs.evolve(PROFILE, link_hosts=frozenset({"pay.example"}))
    async with tracking(service, profile=profile) as tracker:
        with pytest.raises(error) as raised:
            await tracker.prepare(request())
        assert "evil" not in str(raised.value)
        assert all(each.state is payclient.State.UNKNOWN for each in tracker.open_sales())


async def test_no_connection_leaves_no_row(service: FakeService) -> None:
    """Not sent: the same id may be used again."""
    service.scripts = [no_connection] * 3
    async with tracking(service) as tracker:
        with pytest.raises(payclient.NotSentError):
            await tracker.prepare(request())
        assert (await tracker.prepare(request())).payment_id == "P1"


async def test_a_form_is_followed_by_its_own_id(service: FakeService) -> None:
    """Unpaid it is not found, which is no conflict; paid, its status decides it."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await tracker.prepare(request())
        await service.clock.advance(60)
        found = await pending_of(tracker, "form-1")
        assert found.state is payclient.State.PENDING
        assert 1 <= len(service.queries) <= 8
        service.sales[5000] = {
            "transactionId": 5000, "clientTransactionId": "form-1", "amount": 1150, "currency": "USD",
            "state": "Aceptado",
        }  # fmt: skip
        await service.clock.advance(30)
        assert (found.outcome.paid, found.transaction_id) == (True, 5000)
        assert [change.event for change in await ledger.history("form-1")][:2] == ["Permitted", "Prepared"]


async def test_an_unpaid_form_ends_expired_and_not_unpaid(service: FakeService) -> None:
    """A link handed out at its last moment may be loaded then, and lives once more: twice ten minutes."""
    async with tracking(service) as tracker:
        await tracker.prepare(request())
        found = await pending_of(tracker, "form-1")
        await service.clock.advance(1190)
        assert found.state is payclient.State.PENDING
        await service.clock.advance(20)
        assert (found.state, found.outcome.paid) == (payclient.State.EXPIRED, None)


async def test_the_session_prepares_without_a_ledger(service: FakeService) -> None:
    """`session.prepare` is raw, with the profile's names in the body."""
    bodies: list[bytes] = []
    take = service.take

    async def keep(http: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        bodies.append(http.body)
        return await take(http, before_send)

    service.take = keep  # type: ignore[method-assign,assignment]  # the fake's own seam
    profile = payclient.ServiceProfile(response_url_field="ResponseUrl", language_field="lang")
    async with PaySession("https://pay.example", "token", profile=profile, transport=service) as session:
        result = await session.prepare(attrs.evolve(request(), language="en"))
    assert result.pay_with_card == LINKS["payWithCard"]
    assert b'"ResponseUrl"' in bodies[0]
    assert b'"lang":"en"' in bodies[0]


async def test_a_form_of_unknown_outcome_is_queried_before_another_is_prepared(service: FakeService) -> None:
    """Its answer was lost, and it is paid all the same: no second form, without any time passing."""

    async def lost(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await service.take(request, before_send)
        raise ConnectionResetError

    service.scripts = [lost]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.OutcomeUnknownError):
            await tracker.live_form("cart", request)
        (identifier,) = service.prepared
        service.pay(identifier, state="Aceptado")
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.live_form("cart", request)
    assert len(service.prepared) == 1


async def test_a_form_that_nobody_has_paid_yet_is_no_conflict(service: FakeService) -> None:
    """The service knows of no transaction, from its preparing to its end: that is nothing to note."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await tracker.prepare(request("form-1"))
        await service.clock.advance(900)
    assert service.queries
    assert await events_of(ledger, "form-1") == ["Permitted", "Prepared"]


async def test_dead_links_are_deleted_though_the_ledger_failed_at_it(service: FakeService) -> None:
    """It is asked again, with nobody's help."""
    fails: set[str] = set()
    ledger = FailingLedger(lambda name: name in fails)
    async with tracking(service, ledger) as tracker:
        await tracker.live_form("cart", request)
        prepared_at = service.clock.time()
        fails.add("drop_links")
        await service.clock.advance(610)
        fails.clear()
        assert await ledger.links("cart", prepared_at)
        await service.clock.advance(60)
        assert not await ledger.links("cart", prepared_at)
