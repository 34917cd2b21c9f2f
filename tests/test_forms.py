"""Payment forms: prepared once, handed out while they live, here and in every process, and followed by their own id."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from crowd import in_virtual_time
from fake_ledgers import FailingLedger, HookedSharedLedger, SharedLedger
from fake_service import (
    LINKS,
    PROFILE,
    FakeService,
    Gate,
    Held,
    alarms,
    answers,
    error_of,
    events_of,
    lost_answer,
    lost_request,
    pending_of,
    record_in,
    refuses,
    sale,
    tracking,
    when,
)
from fake_service import form as request
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_rates import FORMS, Forms

State = payclient.State
pytestmark = pytest.mark.usefixtures("delays")


async def test_a_form_has_two_links_each_with_its_own_life(service: FakeService) -> None:
    """Ten minutes from each link's own load (§8), and from the preparing until that is known."""
    async with tracking(service) as tracker:
        form = await tracker.prepare(request())
        now = service.clock.time()
        assert (form.payment_id, form.wallet.url) == ("P1", LINKS["payWithPayPhone"])
        assert form.card.expires_at == form.wallet.expires_at == now + 600
        form.card.mark_loaded(now + 100)
        form.card.mark_loaded(now + 500)  # a second load changes nothing
        assert form.card.expires_at == now + 700
        assert form.card.is_live(now + 699)
        assert not form.wallet.is_live(now + 600)
        assert not form.is_live(now + 600)


async def test_a_link_is_shown_by_its_accessor_alone(service: FakeService) -> None:
    """Whoever asks for the address gets it; printed, taken apart or pickled a form shows none."""
    async with tracking(service) as tracker:
        form = await tracker.prepare(request())
        link = form.card
        assert link.url == form.result.links["payWithCard"] == LINKS["payWithCard"]
        for thing in (form, link, form.result.links):
            shown = f"{thing!r} {thing} {attrs.asdict(link)} {attrs.asdict(form.result.links)}"
            assert "pay.example" not in shown
            with pytest.raises(TypeError, match="secret"):
                pickle.dumps(thing)
        # Sentry walks through a mapping otherwise.
        assert form.result.links.__sentry_repr__() == repr(form.result.links)
        assert link == payclient.FormLink(link.url, link.prepared_at)
        assert link != payclient.FormLink("https://pay.example/another", link.prepared_at)


def test_a_link_is_made_of_its_address_and_two_times() -> None:
    """In this order: it was prepared at 1,000 s and loaded at 1,100 s, and lives ten minutes from then."""
    assert payclient.FormLink("https://pay.example/c", 1000.0, 1100.0).expires_at == 1700.0


async def test_no_link_is_handed_out_after_a_long_pause(service: FakeService) -> None:
    """A process that stood still hears its answer when others take the form for dead: nobody gets its links."""
    service.scripts = [when(lambda: service.clock.jump_wall(1300))]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.OutcomeUnknownError, match="stood still"):
            await tracker.live_form("cart-9", request)
        assert await service.ledger.links("cart-9", service.clock.time()) == {}


async def test_no_link_is_handed_out_dead_though_the_wall_clock_was_set_back(service: FakeService) -> None:
    """By an hour: here its age is known all the same; the next process knows of none, and hands out nothing."""
    async with tracking(service) as tracker:
        await tracker.live_form("cart", request)
        service.clock.jump_wall(-3600)
        await service.clock.advance(530)
        assert await several(tracker, 1) == {"P1"}
        async with tracking(service, service.ledger) as other:
            await error_of(payclient.PurchaseOpenError, other.live_form("cart", request))
        await service.clock.advance(20)  # less than the margin is left
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        assert (await tracker.live_form("cart", request, margin=0)).payment_id == "P1"
        await service.clock.advance(60)
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request, margin=0))


async def test_no_dead_link_is_handed_out_after_another_form(service: FakeService) -> None:
    """By the wall clock, which was set back little by little, the ledger has them as living ones."""
    async with tracking(service) as tracker:
        await tracker.live_form("cart", request)
        for _ in range(3):
            await service.clock.advance(210)
            service.clock.jump_wall(-180)
        await tracker.prepare(request("another"))
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))


async def test_a_form_that_was_loaded_is_handed_out_while_its_links_live(service: FakeService) -> None:
    """Both were loaded after five minutes, and live ten minutes from then, whatever the wall clock says."""
    async with tracking(service) as tracker:
        form = await tracker.live_form("cart", request)
        await service.clock.advance(300)
        for link in form.links.values():
            link.mark_loaded(service.clock.time())
        await service.clock.advance(400)
        assert await several(tracker, 1) == {"P1"}
        service.clock.jump_wall(-3600)
        await service.clock.advance(150)  # less than the margin is left
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        assert (await tracker.live_form("cart", request, margin=0)).payment_id == "P1"


async def several(tracker: payclient.Tracker, count: int) -> set[str]:
    """The payment ids of the forms that so many get at once."""
    forms = await asyncio.gather(*(tracker.live_form("cart", request) for _ in range(count)))
    return {form.payment_id for form in forms}


async def test_live_form_prepares_once_however_many_ask(service: FakeService) -> None:
    async with tracking(service) as tracker:
        assert await several(tracker, 50) == {"P1"}
        await service.clock.advance(500)
        assert await several(tracker, 1) == {"P1"}
        await service.clock.advance(50)  # less than the margin is left, and it can be paid for long
        error = await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        assert error.until == pytest.approx(service.clock.time() - 550 + 1230)
        assert (await tracker.live_form("cart", request, margin=0)).payment_id == "P1"
        await service.clock.advance(680)  # its last query was not made yet
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        await service.clock.advance(200)
        assert await several(tracker, 1) == {"P2"}
        await tracker.live_form("cart-10", request)
    assert len(set(service.prepared)) == 3
    assert all(len(identifier) <= 50 and "cart" not in identifier for identifier in service.prepared)


async def test_live_form_hands_out_none_that_is_cancelled(service: FakeService) -> None:
    """Declined, says the service: whoever comes back gets another, one however many ask."""
    async with tracking(service) as tracker:
        first = await tracker.live_form("cart", request)
        service.pay(first.client_transaction_id, state="Cancelado")
        await service.clock.advance(30)
        assert await several(tracker, 5) == {"P2"}


async def decline(service: FakeService, tracker: payclient.Tracker) -> str:
    """Give out the cart's form, whose card is declined, and return its id once that was queried."""
    form = await tracker.live_form("cart", request)
    service.pay(form.client_transaction_id, state="Cancelado")
    await service.clock.advance(30)
    assert (await pending_of(tracker, form.client_transaction_id)).state is State.CANCELLED
    return form.client_transaction_id


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_declined_form_that_is_paid_after_all_is_found(
    service: FakeService, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another card paid by the same link, and neither a browser nor a notification told of it."""
    async with AsyncExitStack() as trackers:
        tracker = await trackers.enter_async_context(tracking(service))
        identifier = await decline(service, tracker)
        if restarts:
            await trackers.aclose()
            tracker = await trackers.enter_async_context(tracking(service, service.ledger))
        service.pay(identifier, 5002, state="Aceptado")
        await service.clock.advance(1300)
        found = await pending_of(tracker, identifier)
        assert (found.outcome.paid, found.transaction_id) == (True, 5002)
    assert alarms(caplog)


@pytest.mark.usefixtures("looks_at_once")
async def test_a_declined_form_of_a_process_that_is_gone_is_queried_by_a_living_one(
    service: FakeService,
) -> None:
    """Another card paid it, and no process has begun since."""
    ledger = SharedLedger()
    async with tracking(service, SharedLedger(ledger)) as living:
        async with tracking(service, ledger) as tracker:
            identifier = await decline(service, tracker)
        service.pay(identifier, 5002, state="Aceptado")
        for _ in range(10):
            await asyncio.sleep(0.005)  # the rounds of the leases are in real time
        await service.clock.advance(1400)
        assert (await pending_of(living, identifier)).outcome.paid is True


@pytest.mark.usefixtures("looks_at_once")
async def test_looks_at_declined_forms_put_off_no_query(service: FakeService) -> None:
    """By a clock that was set back each look takes the form for declined just now."""
    async with tracking(service, SharedLedger()) as tracker:
        identifier = await decline(service, tracker)
        service.clock.jump_wall(-10_000)
        service.pay(identifier, 5002, state="Aceptado")
        for _ in range(14):
            await asyncio.sleep(0.01)  # the rounds of the leases are in real time
            await service.clock.advance(100)
        assert (await pending_of(tracker, identifier)).outcome.paid is True


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_declined_form_is_queried_once_more(service: FakeService, restarts: bool) -> None:
    """When its links are dead, also by a process that began since; no query follows that one."""
    async with AsyncExitStack() as trackers:
        tracker = await trackers.enter_async_context(tracking(service))
        await decline(service, tracker)
        asked, declined_at = len(service.queried_at), service.queried_at[-1]
        await service.clock.advance(600)
        if restarts:
            await trackers.aclose()
            await trackers.enter_async_context(tracking(service, service.ledger))
        await service.clock.advance(5000)
    (again,) = service.queried_at[asked:]
    assert 1200 < again - declined_at < 1300


async def test_live_form_hands_out_none_that_a_query_found_paid(service: FakeService) -> None:
    """Its links still live, and no browser came back."""
    async with tracking(service) as tracker:
        form = await tracker.live_form("cart", request)
        service.pay(form.client_transaction_id, state="Aceptado")
        assert (await (await pending_of(tracker, form.client_transaction_id)).check()).paid is True
        await error_of(payclient.AlreadyPaidError, tracker.live_form("cart", request))


async def test_live_form_does_not_wait_for_a_push_that_is_being_sent(service: FakeService) -> None:
    """Its customer may answer it for minutes."""
    service.scripts = [held := Held()]
    async with tracking(service) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale(), purchase="cart"))
        await held.there.wait()
        async with asyncio.timeout(5):
            await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        held.go.set()
        await sending


async def test_a_cancelled_caller_leaves_the_form_to_the_others(service: FakeService) -> None:
    """Whoever closes a tab while the form is prepared takes it from nobody."""
    async with tracking(service) as tracker:
        first, second = (asyncio.create_task(tracker.live_form("cart", request)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).payment_id == "P1"
        assert first.cancelled()
        assert len(service.prepared) == 1


async def test_a_failure_that_nobody_waits_for_any_more_is_not_logged(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio logged it with its traceback, and with the service's message, in which a phone may stand."""
    service.scripts = [held := Held(refuses(21))]
    async with tracking(service) as tracker:
        gone = asyncio.create_task(tracker.live_form("cart", request))
        await asyncio.wait_for(held.there.wait(), 10)
        gone.cancel()
        held.go.set()
        for _ in range(50):
            await asyncio.sleep(0)  # it is refused
        assert await several(tracker, 1) == {"P1"}
        del gone
        gc.collect()
    assert "asyncio" not in {each.name for each in caplog.records}


async def test_a_failed_prepare_leaves_no_form_and_the_next_asks_again(service: FakeService) -> None:
    service.scripts = [refuses(800)]
    async with tracking(service) as tracker:
        asking = [tracker.live_form("cart", request) for _ in range(3)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(result) for result in results} == {payclient.ValidationFailedError}
        assert not service.prepared
        assert await several(tracker, 1) == {"P1"}


async def test_a_form_more_costs_the_same_however_many_live(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a hundred forms looks at few of the others; those that are dead are dropped all the same."""
    looked: list[payclient.PaymentForm] = []
    is_live = payclient.PaymentForm.is_live

    def note(form: payclient.PaymentForm, now: float) -> bool:
        looked.append(form)
        return is_live(form, now)

    monkeypatch.setattr(payclient.PaymentForm, "is_live", note)
    async with tracking(service) as tracker:
        forms = [await tracker.prepare(request(f"form-{number}")) for number in range(100)]
        assert len(looked) < 300
        await service.clock.advance(601)
        looked.clear()
        await tracker.prepare(request("late"))
        assert {each.client_transaction_id for each in looked} >= {
            each.client_transaction_id for each in forms
        }
        looked.clear()
        await tracker.prepare(request("later"))
        assert {each.client_transaction_id for each in looked} == {"late", "later"}


async def test_forms_are_let_go_of_though_one_was_prepared_by_a_clock_ahead(service: FakeService) -> None:
    """The clock was a year ahead for one form, and is right since: a form of today does not outlive its links."""
    async with tracking(service) as tracker:
        service.clock.jump_wall(365 * 86_400.0)
        await tracker.prepare(request("ahead"))
        service.clock.jump_wall(-365 * 86_400.0)
        form = weakref.ref(await tracker.prepare(request("today")))
        await service.clock.advance(3600)
        await tracker.prepare(request("later"))
        gc.collect()
        assert form() is None


async def test_an_id_that_was_prepared_before_leads_to_a_form(service: FakeService) -> None:
    """Code 23 of a POST that was repeated on its way, or of a ledger that is gone: the next generation."""
    service.scripts = [refuses(23), refuses(23)]
    async with tracking(service) as tracker:
        assert await several(tracker, 3) == {"P1"}
        service.scripts = [refuses(23)] * 20  # a service that knows every id leads nowhere
        await error_of(payclient.RefusedError, tracker.live_form("other", request))


async def test_an_id_that_was_paid_before_is_prepared_no_more(service: FakeService) -> None:
    """The ledger is gone, and the customer had paid: nobody is given another form."""
    async with tracking(service) as tracker:
        form = await tracker.live_form("cart", request)
        service.pay(form.client_transaction_id, state="Aceptado")
    async with tracking(service) as tracker:
        service.scripts = [refuses(23)]
        await error_of(payclient.AlreadyPaidError, tracker.live_form("cart", request))


async def test_the_id_of_a_form_is_no_longer_than_the_profile_allows(service: FakeService) -> None:
    """Else no form could be prepared there at all."""
    profile = attrs.evolve(PROFILE, max_lengths={"client_transaction_id": 15})
    async with tracking(service, profile=profile) as tracker:
        form = await tracker.live_form("cart-1", request)
        assert await tracker.live_form("cart-1", request) is form
        assert len(form.client_transaction_id) == 15


async def test_a_form_must_be_built_with_the_id_that_is_given(service: FakeService) -> None:
    """`make_request` that ignores its argument is a `ConfigurationError`; so is a margin beyond a form's life."""
    async with tracking(service) as tracker:
        with pytest.raises(payclient.ConfigurationError, match="make_request"):
            await tracker.live_form("cart", lambda _: request("mine"))
        with pytest.raises(payclient.ConfigurationError, match="margin"):
            await tracker.live_form("cart", request, margin=600)
    assert not service.prepared


@pytest.mark.parametrize("made", [sale, lambda _: None])
async def test_what_is_not_a_forms_request_is_not_sent(
    service: FakeService, made: Callable[[str], Any]
) -> None:
    """A `make_request` that builds a sale's request pushes nothing to the customer's phone."""
    async with tracking(service) as tracker:
        with pytest.raises(TypeError, match=r"^what make_request returns must be a PrepareRequest; "):
            await tracker.live_form("cart", made)
        assert (await tracker.purchase("cart")).asks == ()
    assert not service.sales


async def test_an_id_is_used_once(service: FakeService) -> None:
    """A form has a client transaction id of its own; after a refusal it may be tried again."""
    service.scripts = [refuses(800)]
    async with tracking(service) as tracker:
        await error_of(payclient.ValidationFailedError, tracker.prepare(request()))
        await tracker.prepare(request())
        await error_of(payclient.DifferentRequestError, tracker.prepare(request()))
        record = await record_in(service.ledger, "form-1")
        assert (record.kind, record.attempt, record.state) == ("form", 2, State.PENDING)
    await error_of(payclient.TrackerClosedError, tracker.prepare(request("late")))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"paymentId": "P", "payWithCard": "https://evil.example/c"}, payclient.OutcomeUnknownError),
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
        assert "evil" not in str(await error_of(error, tracker.prepare(request())))
        assert all(each.state is State.UNKNOWN for each in tracker.open_sales())


async def test_a_form_is_followed_by_its_own_id(service: FakeService) -> None:
    """Unpaid it is not found, which is no conflict; paid, its status decides it."""
    async with tracking(service) as tracker:
        await tracker.prepare(request())
        await service.clock.advance(60)
        found = await pending_of(tracker, "form-1")
        assert found.state is State.PENDING
        assert 1 <= len(service.queries) <= 8
        assert await events_of(service.ledger, "form-1") == ["Permitted", "Prepared"]
        service.pay("form-1", state="Aceptado")
        await service.clock.advance(30)
        assert (found.outcome.paid, found.transaction_id) == (True, 5001)


async def test_an_unpaid_form_ends_expired_and_not_unpaid(service: FakeService) -> None:
    """A link handed out at its last moment may be loaded then, and lives once more: twice ten minutes."""
    async with tracking(service) as tracker:
        await tracker.prepare(request())
        found = await pending_of(tracker, "form-1")
        await service.clock.advance(1190)
        assert found.state is State.PENDING
        await service.clock.advance(20)
        assert (found.state, found.outcome.paid) == (State.EXPIRED, None)


async def test_an_abandoned_form_is_queried_no_more_at_each_start_for_ever(service: FakeService) -> None:
    """A restart each night would query months of them, before those of today; a shop closed for days missed a query."""
    day = 86_400.0
    async with tracking(service) as tracker:
        await tracker.live_form("cart", request)
        await service.clock.advance(2 * day)
    queries = []
    for days in (1, 2, 20):
        await service.clock.advance(days * day)
        before = len(service.queries)
        async with tracking(service, ledger=service.ledger) as tracker:
            await service.clock.advance(0.5 * day)
            queries.append(len(service.queries) - before)
            assert len(await tracker.unresolved()) == 1
    assert queries == [1, 1, 0]


@pytest.mark.parametrize("acted", [True, False])
async def test_a_form_that_may_be_paid_is_queried_at_a_start_however_old_it_is(
    service: FakeService, acted: bool
) -> None:
    """Its customer acted, or its last query was never made: the service was out of reach."""
    async with tracking(service) as tracker:
        await tracker.prepare(request())
        if acted:
            hint = payclient.Notification(transaction_id=5001, client_transaction_id="form-1")
            assert await tracker.notify(hint) is payclient.Receipt.MATCHED
        else:
            service.instead = lambda path: HttpResponse(503, {}, b"")
        await service.clock.advance(7200)
        assert (await pending_of(tracker, "form-1")).state is State.EXPIRED
    service.instead = lambda path: None
    await service.clock.advance(30 * 86_400.0)
    service.pay("form-1", state="Aceptado")
    async with tracking(service, ledger=service.ledger) as tracker:
        await service.clock.advance(60)
        assert (await pending_of(tracker, "form-1")).outcome.paid


async def test_a_form_that_nobody_could_query_is_queried_at_a_start_once_somebody_can(
    service: FakeService,
) -> None:
    """However old it is: it may be paid."""
    async with tracking(service, profile=attrs.evolve(PROFILE, status=None)) as tracker:
        await tracker.prepare(request())
        await service.clock.advance(30 * 86_400.0)
    service.pay("form-1", state="Aceptado")
    async with tracking(service, ledger=service.ledger) as tracker:
        await service.clock.advance(60)
        assert (await pending_of(tracker, "form-1")).outcome.paid


@pytest.mark.parametrize(
    "ask",
    [
        lambda tracker: tracker.live_form("cart", request),
        lambda tracker: tracker.prepare(request(), purchase="cart"),
        lambda tracker: tracker.sale(sale(), purchase="cart"),
    ],
    ids=["live form", "form", "push"],
)
async def test_a_form_of_unknown_outcome_is_queried_before_another_ask(
    service: FakeService, ask: Callable[[payclient.Tracker], Awaitable[object]]
) -> None:
    """Its answer was lost, and it is paid all the same: no second form or push, without any time passing."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        await error_of(payclient.OutcomeUnknownError, tracker.live_form("cart", request))
        (identifier,) = service.prepared
        service.pay(identifier, state="Aceptado")
        await error_of(payclient.AlreadyPaidError, ask(tracker))
    assert (len(service.prepared), service.posted) == (1, {})


async def test_a_form_whose_links_were_lost_holds_no_other(service: FakeService) -> None:
    """Nobody can pay it: once a query has found nothing, the purchase gets another form, and a push."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(request("first"), purchase="cart"))
        await tracker.prepare(request("second"), purchase="cart")
        assert (await pending_of(tracker, "first")).state is State.UNKNOWN
    assert "/api/Sale/client/first" in service.queries
    assert set(service.prepared) == {"first", "second"}


async def test_a_form_refused_with_2061_is_no_evidence_about_another_form(service: FakeService) -> None:
    """A form has no customer at a store yet: all of them would be suspected of having landed."""
    service.scripts = [lost_request, refuses(22, 2061)]
    async with tracking(service) as tracker:
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(request("first")))
        await error_of(payclient.CustomerBusyError, tracker.prepare(request("second")))
    assert await events_of(service.ledger, "first") == ["Permitted", "Lost"]


async def test_a_form_that_is_prepared_costs_no_look_at_dead_links(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion of nothing writes and commits, by the writer that grants the permits; others die before its links.

    The first one's die before those of an earlier process, whose forms lived longer.
    """
    async with tracking(service, profile=attrs.evolve(PROFILE, form_window=86_400.0)) as tracker:
        await tracker.prepare(request("of a day"))
    async with tracking(service, service.ledger) as tracker:
        await tracker.prepare(request("form-0"))
        await service.clock.advance(1)
        drop_links = AsyncMock(wraps=service.ledger.drop_links)
        monkeypatch.setattr(service.ledger, "drop_links", drop_links)
        for number in range(1, 10):
            await tracker.prepare(request(f"form-{number}"))
            await service.clock.advance(1)
        assert not drop_links.await_count
        await service.clock.advance(1300)
        assert drop_links.await_count
        assert await service.ledger.links("form-9", 0.0) == {}


async def test_a_form_decided_as_dead_links_are_deleted_is_worth_another_deletion(
    service: FakeService,
) -> None:
    """The one under way has passed its links by."""
    deletions, gate = 0, Gate()

    class Slow(MemoryLedger):
        async def drop_links(self, now: float) -> float | None:
            nonlocal deletions
            deletions += 1
            until = await super().drop_links(now)
            if deletions == 2:
                await gate()
            return until

    async with tracking(service, Slow()) as tracker:
        await tracker.prepare(request())
        await service.clock.advance(1)
        assert gate.there.is_set()
        service.pay("form-1", state="Aceptado")
        assert (await (await pending_of(tracker, "form-1")).check()).paid is True
        gate.go.set()
        await service.clock.advance(1)
        assert deletions == 3


async def test_dead_links_are_deleted_though_the_ledger_failed_at_it(service: FakeService) -> None:
    """It is asked again, with nobody's help."""
    fails: set[str] = set()
    async with tracking(service, FailingLedger(lambda name: name in fails)) as tracker:
        await tracker.live_form("cart", request)
        prepared_at = service.clock.time()
        fails.add("drop_links")
        await service.clock.advance(610)
        fails.clear()
        assert await service.ledger.links("cart", prepared_at)
        await service.clock.advance(60)
        assert not await service.ledger.links("cart", prepared_at)


# --- Over a service that confirms forms, in several processes


class Shop(Forms):
    """Confirms no form while `silent`, and finds a form that nobody paid as `word`."""

    silent, word = False, "Pendiente"

    async def __call__(self, http: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if self.silent and http.path.endswith("Confirm"):
            assert before_send is not None
            await before_send()
            raise ConnectionResetError
        return await super().__call__(http, before_send)

    def report(self, identifier: str) -> dict[str, object]:
        return super().report(identifier) | {"state": self.word}


def back_of(service: Shop, form: payclient.PaymentForm) -> str:
    """What the browser of a customer who paid brings back."""
    number = service.forms[form.client_transaction_id]["transactionId"]
    return f"?id={number}&clientTransactionId={form.client_transaction_id}"


async def assert_paid(tracker: payclient.Tracker, form: payclient.PaymentForm) -> None:
    error = await error_of(payclient.AlreadyPaidError, tracker.live_form("cart", request))
    assert (error.outcome.paid, error.client_transaction_id) == (True, form.client_transaction_id)
    assert pickle.loads(pickle.dumps(error)).outcome.paid is True  # noqa: S301 - our own


@pytest.mark.parametrize("age", [0.0, 1300.0], ids=["at once", "its links are dead"])
@in_virtual_time
async def test_a_paid_cart_gets_no_other_form(age: float) -> None:
    """In the same process, after a restart, and in another one over the same ledger."""
    service, ledger = Shop(), SharedLedger()
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        form = await tracker.live_form("cart", request)
        assert await tracker.live_form("cart", request) is form
        assert (await tracker.returned(back_of(service, form))).paid is True
        await asyncio.sleep(age)
        await assert_paid(tracker, form)
        async with tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other:
            await assert_paid(other, form)
            await other.live_form("other cart", request)
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        await assert_paid(tracker, form)
    assert len(service.forms) == 2


@in_virtual_time
async def test_a_form_that_came_back_undecided_forbids_another() -> None:
    """No confirmation comes through: nobody knows, so that none is prepared here, elsewhere or after a restart."""
    service, ledger = Shop(), SharedLedger()
    service.silent = True
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        form = await tracker.live_form("cart", request)
        assert (await tracker.returned(back_of(service, form))).paid is None
        # Its links live, and it is not handed out again: it may be paid.
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
        await asyncio.sleep(541.0)  # its margin begins
        async with tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other:
            for each in (tracker, other):
                error = await error_of(payclient.PurchaseOpenError, each.live_form("cart", request))
                assert error.pending.client_transaction_id == form.client_transaction_id
                assert error.until > error.pending.expires_at
                assert pickle.loads(pickle.dumps(error)).until == error.until  # noqa: S301 - our own
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))
    assert len(service.forms) == 1


@in_virtual_time
async def test_an_older_generation_counts() -> None:
    """The last of one key is live as the first is paid after all, though its links are dead."""
    service, ledger = Shop(), MemoryLedger()
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        forms = []
        for _ in range(3):
            forms.append(await tracker.live_form("cart", request))
            await asyncio.sleep(1700)
        assert len({form.client_transaction_id for form in forms}) == 3
        last = await tracker.live_form("cart", request)
        assert await tracker.live_form("cart", request) is last
        await tracker.returned(back_of(service, forms[0]))
        await assert_paid(tracker, forms[0])


@in_virtual_time
async def test_workers_that_ask_at_once_get_one_form() -> None:
    """The ones that lose its permit wait for its links, which the ledger keeps while they live."""
    service, ledger = Shop(), SharedLedger()
    async with (
        tracking(service, ledger=ledger, profile=FORMS) as one,
        tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other,
    ):
        forms = await asyncio.gather(*(each.live_form("cart", request) for each in (one, other) * 3))
        assert len({(form.client_transaction_id, form.card.url) for form in forms}) == 1
        await one.returned(back_of(service, forms[1]))
        await assert_paid(one, forms[1])
        await assert_paid(other, forms[1])
        await asyncio.sleep(1)
        assert await ledger.links("cart", 0.0) == {}


@in_virtual_time
async def test_no_worker_hands_out_a_form_before_it_counts_as_prepared() -> None:
    """Its links are kept by then; a form whose end is never written frees its purchase, and no customer may have it."""
    gate = Gate()
    ledger = HookedSharedLedger(before={"Prepared": gate})
    async with (
        tracking(Shop(), ledger=ledger, profile=FORMS) as one,
        tracking(Shop(), ledger=SharedLedger(ledger), profile=FORMS) as other,
    ):
        preparing = asyncio.ensure_future(one.live_form("cart", request))
        await gate.there.wait()
        asking = asyncio.ensure_future(other.live_form("cart", request))
        await asyncio.sleep(5)
        is_early = asking.done()
        gate.go.set()
        assert (await asking).card.url == (await preparing).card.url
        assert not is_early


@in_virtual_time
async def test_a_form_that_another_process_never_prepares_is_not_waited_for_without_end() -> None:
    """Stopped between its permit and its links: whoever asks hears within the total time-out that a form is open."""
    ledger = SharedLedger()
    async with tracking(Shop(), ledger=ledger, profile=FORMS) as tracker:
        begun = tracker.clock.time()
        record = Record(
            client_transaction_id="cart-1", kind="form", purchase="cart", created_at=begun, links_dead_at=begun + 1300,
        )  # fmt: skip
        assert await ledger.permit(record)
        async with asyncio.timeout(100):
            await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", request))


class Dropping(MemoryLedger):
    """Remembers until when it kept links after the last deletion; None: it kept none."""

    until: float | None = None
    deletions = 0

    async def drop_links(self, now: float) -> float | None:
        self.deletions += 1
        self.until = await super().drop_links(now)
        return self.until


@pytest.mark.parametrize("by", ["a query", "its confirmation"])
@in_virtual_time
async def test_the_links_of_a_decided_form_are_deleted(by: str) -> None:
    """Within a second: by a query, or by its confirmation where the profile has no query by client transaction id."""
    service, ledger, profile = Shop(), Dropping(), FORMS
    if by == "a query":
        service.word = "Cancelado"
    else:
        assert FORMS.status is not None
        profile = attrs.evolve(FORMS, status=attrs.evolve(FORMS.status, by_client_transaction_id=None))
    async with tracking(service, ledger=ledger, profile=profile) as tracker:
        form = await tracker.live_form("cart", request)
        await asyncio.sleep(1)
        assert ledger.until is not None
        if by == "a query":
            found = await pending_of(tracker, form.client_transaction_id)
            assert (await found.wait()).state is State.CANCELLED
        else:
            assert (await tracker.returned(back_of(service, form))).paid is True
        await asyncio.sleep(1)
        assert ledger.until is None


@in_virtual_time
async def test_many_forms_cost_few_deletions_of_links() -> None:
    """Each deletion looks at all links that are kept, in the one writer of a ledger."""
    ledger = Dropping()
    async with tracking(Shop(), ledger=ledger, profile=FORMS) as tracker:
        for number in range(100):
            await tracker.prepare(request(f"form-{number}"))
            await asyncio.sleep(0.01)
        assert ledger.deletions < 10
