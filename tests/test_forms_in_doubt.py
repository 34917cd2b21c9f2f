"""Forms of which something is not known yet: a close in the midst, an answer under another token, a lagging index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, HookedLedger, HookedSharedLedger, SharedLedger, disk_full, once
from fake_service import (
    FakeService,
    Gate,
    Held,
    answer,
    collected_by,
    error_of,
    events_of,
    form,
    held_by,
    hint,
    lost_answer,
    outcome_of,
    pending_of,
    record_in,
    refusal,
    refused,
    refuses,
    reset,
    sale,
    tracking,
    two_processes,
    unlisted,
)
from payclient.events import Evidence, ReversalPermitted
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.tracking.followup import StatusSource
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_confirming import BLIND, PROFILE, STATUS, back, passing, prepared, state_of, the_end

State = payclient.State

#: A service that is queried by client transaction id alone.
UNNUMBERED = attrs.evolve(PROFILE, status=attrs.evolve(STATUS, by_transaction_id=None))

pytestmark = pytest.mark.usefixtures("delays")


def lost_confirmation(service: FakeService) -> HttpResponse:
    """The service carries the confirmation out, and its answer is lost."""
    service.confirmed.add(5001)
    return reset()


async def assert_paid(service: FakeService, tracker: payclient.Tracker, seconds: float = 30) -> None:
    """So many seconds later the form is known to be paid."""
    await service.clock.advance(seconds)
    assert (await pending_of(tracker, "form-1")).outcome.paid is True


async def assert_collected_once(tracker: payclient.Tracker) -> None:
    """The cart is paid, and by no two of its asks."""
    bought = await tracker.purchase("cart-1")
    assert (bought.paid, bought.collected, bought.overpaid) == (True, 1150, False)


@asynccontextmanager
async def second_form(service: FakeService, ledger: Ledger | None = None) -> AsyncIterator[payclient.Tracker]:
    """A tracker that has prepared another form for the cart, as the card of the first one was declined."""
    async with prepared(service, ledger=ledger) as tracker:
        await tracker.returned(service.pay("form-1", 4999, transactionStatus="Canceled"))
        await tracker.prepare(form("form-2"), purchase="cart-1")
        yield tracker


async def test_a_form_whose_tracker_closes_in_its_write_holds_its_purchase(service: FakeService) -> None:
    """Its caller has the links: nobody else is given another form, nor charged by a push."""
    gate = Gate()
    ledger = HookedLedger(before={"Prepared": once(gate)})
    async with tracking(service, ledger, PROFILE, drain=0.0) as tracker:
        work = asyncio.create_task(tracker.live_form("cart", form))
        await gate.there.wait()
    given = await work
    async with tracking(service, ledger, PROFILE) as tracker:
        await held_by(tracker, "cart")
        again = await tracker.live_form("cart", form)
    assert (again.payment_id, len(service.prepared)) == (given.payment_id, 1)


async def test_a_form_whose_tracker_closes_before_its_answer_is_an_error(service: FakeService) -> None:
    held = Held()
    service.scripts = [held]
    async with tracking(service, profile=PROFILE, drain=0.0) as tracker:
        work = asyncio.create_task(tracker.prepare(form()))
        await held.there.wait()
    await error_of(payclient.TrackerClosedError, work)


async def test_a_form_that_exists_already_is_paid_once_it_is_confirmed(service: FakeService) -> None:
    """The ledger that prepared it is gone, with what it was to confirm: unconfirmed it is reversed."""
    profile = attrs.evolve(PROFILE, duplicate_codes=frozenset({23}))
    async with tracking(service, profile=profile) as tracker:
        first = await tracker.live_form("cart", form)
    service.pay(first.client_transaction_id)
    async with tracking(service, profile=profile) as tracker:
        service.scripts = [refuses(23)]
        with pytest.raises((payclient.RefusedError, payclient.AlreadyPaidError, payclient.PurchaseOpenError)):
            await tracker.live_form("cart", form)
        await service.clock.advance(400)
        outcome = (await pending_of(tracker, first.client_transaction_id)).outcome
        assert (outcome.paid, service.confirmed) == (True, {5001})


async def test_a_refused_form_that_is_paid_is_confirmed_before_it_counts(service: FakeService) -> None:
    """A copy of its request was carried out, and its confirmation has no answer as it is prepared once more."""

    async def copied(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await service.take(request, before_send)
        return refusal(800)

    service.scripts, service.confirm_scripts = [copied], [reset] * 3
    async with tracking(service, profile=PROFILE) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form()))
        service.pay("form-1")
        await tracker.notify(hint(5001, "form-1"))
        await error_of(payclient.CustomerBusyError, tracker.prepare(form()))
        await service.clock.advance(60)
        assert ((await pending_of(tracker, "form-1")).outcome.paid, service.confirmed) == (True, {5001})


async def test_another_accounts_no_takes_no_transaction_from_a_form(service: FakeService) -> None:
    """Given up, and then paid: the answer to its confirmation is lost, and another account knows of nothing."""
    async with prepared(service) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
    async with tracking(service, service.ledger, PROFILE, token="token-2") as tracker:
        service.confirm_scripts = [lambda: refusal(20, status=404)] * 50
        service.status_scripts = [lambda: answer(200, [])] * 500
        await passing(service, tracker.returned(back(5001)))
        await service.clock.advance(30)
    assert (await record_in(service.ledger, "form-1")).candidate_ids == (5001,)


async def test_a_form_found_pending_is_paid_by_another_transaction(service: FakeService) -> None:
    """A crash left it unknown; the first card is declined after a query found it pending, the second one pays."""
    gate = Gate()
    ledger = HookedLedger(before={"Prepared": once(gate)})
    async with tracking(service, ledger, PROFILE, drain=0.0) as tracker:
        work = asyncio.create_task(tracker.prepare(form()))
        await gate.there.wait()
        died = await record_in(ledger, "form-1")
    await work
    ledger._attempts["form-1"] = [died]  # noqa: SLF001 - the process was killed before it wrote how it ended
    async with tracking(service, ledger, PROFILE) as tracker:
        await service.clock.advance(1000)
        service.pay("form-1", 5001, transactionStatus="Pending")
        pending = await pending_of(tracker, "form-1")
        ends = pending.expires_at
        assert (await pending.check()).state is State.PENDING
        assert pending.expires_at == ends, "its links live as long as before"
        service.sales[5001]["transactionStatus"] = "Canceled"
        outcome = await passing(service, tracker.returned(service.pay("form-1", 5002)))
        assert (outcome.paid, outcome.transaction_id) == (True, 5002)


@pytest.mark.parametrize("lagging", [[], ["Canceled"]])
async def test_no_form_is_cancelled_that_is_to_be_confirmed(service: FakeService, lagging: list[str]) -> None:
    """The index lags behind the payment whose confirmation has no answer, and the customer closes another tab."""
    async with prepared(service) as tracker:
        query = service.pay("form-1")
        service.confirm_scripts = [lambda: lost_confirmation(service)] * 3
        declined = dict(service.sales[5001], transactionId=4999, transactionStatus="Canceled")
        service.status_scripts = [lambda: answer(200, [declined] if lagging else [])] * 3
        await passing(service, tracker.returned(query))
        assert (await passing(service, tracker.returned(back(0)))).paid is None
        await held_by(tracker, "cart-1")
        assert (await the_end(service, tracker)).paid is True


async def test_a_declined_transaction_cancels_no_form_while_another_is_to_be_confirmed(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old tab is loaded again, whose card was declined, while the answer about the second card is lost."""
    confirm, lost = service.confirm, [lost_confirmation] * 30

    def losing(body: dict[str, object]) -> HttpResponse:
        return lost.pop()(service) if lost and body["id"] == 5001 else confirm(body)

    monkeypatch.setattr(service, "confirm", losing)
    async with prepared(service, BLIND) as tracker:
        service.pay("form-1", 4999, transactionStatus="Canceled")
        await tracker.returned(service.pay("form-1", 5001))
        assert (await passing(service, tracker.returned(back(4999)))).paid is None
        await held_by(tracker, "cart-1")
        lost.clear()
        await assert_paid(service, tracker)


async def test_a_form_that_was_refused_and_paid_is_confirmed(service: FakeService) -> None:
    """The answer was not about our request. What nobody confirms is reversed, and must not be called paid."""
    async with tracking(service, profile=PROFILE) as tracker:
        service.scripts = [refuses(800)]
        await error_of(payclient.RefusedError, tracker.prepare(form()))
        service.prepare({"clientTransactionId": "form-1", "amount": 1150, "currency": "USD"})
        service.pay("form-1")
        await tracker.notify(hint(5001, "form-1"))
        await assert_paid(service, tracker)
        assert service.confirmed == {5001}


async def pay_as_the_shop_ends(service: FakeService, tracker: payclient.Tracker, query: str) -> None:
    """The browser comes back from the form, which is confirmed, but the answer to that is lost."""
    service.confirm_scripts = [lambda: lost_confirmation(service)] * 9
    service.status_scripts = [reset] * 99
    await passing(service, tracker.returned(query))


async def assert_queried_before_a_push(
    service: FakeService, ledger: Ledger, profile: payclient.ServiceProfile = PROFILE
) -> None:
    """Hours later no push of the cart is sent before the form is known to be paid."""
    await service.clock.advance(20_000)
    service.confirm_scripts, service.status_scripts = [reset] * 2, [reset]
    async with tracking(service, ledger, profile) as tracker:
        for kind in (payclient.NotSentError, payclient.CustomerBusyError):
            raised = await error_of(kind, tracker.sale(sale(), purchase="cart-1"))
            assert raised.client_transaction_id == "form-1"
        await assert_paid(service, tracker)
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale(), purchase="cart-1"))
    assert "order-17" not in service.posted


async def test_a_closed_form_that_was_paid_as_its_shop_ended_is_queried_before_a_push(
    service: FakeService,
) -> None:
    """Nobody was there to ask while it held its purchase: the answer to its confirmation was lost, hours ago."""
    ledger = MemoryLedger()
    async with prepared(service, ledger=ledger) as tracker:
        await tracker.returned(back(0))
        await pay_as_the_shop_ends(service, tracker, service.pay("form-1"))
    await assert_queried_before_a_push(service, ledger)


async def test_an_exhausted_form_that_was_paid_as_its_shop_ended_is_queried_before_a_push(
    service: FakeService,
) -> None:
    """Paid in the last minute, and listed once the last query had been made."""
    ledger = MemoryLedger()
    async with prepared(service, ledger=ledger) as tracker:
        await service.clock.advance(1190)
        service.instead = unlisted
        query = service.pay("form-1")
        for _ in range(200):
            await service.clock.advance(1)
        assert (await record_in(ledger, "form-1")).evidence is Evidence.LAST_QUERY
        service.instead = lambda path: None
        await pay_as_the_shop_ends(service, tracker, query)
    await assert_queried_before_a_push(service, ledger)


async def test_a_declined_form_that_was_paid_as_its_shop_ended_is_queried_by_what_was_named(
    service: FakeService,
) -> None:
    """By another card. The service is asked by the numbers of transactions alone."""
    ledger = MemoryLedger()
    async with prepared(service, BLIND, ledger) as tracker:
        await tracker.returned(service.pay("form-1", 4999, transactionStatus="Canceled"))
        assert (await record_in(ledger, "form-1")).state is State.CANCELLED
        await pay_as_the_shop_ends(service, tracker, service.pay("form-1"))
    await assert_queried_before_a_push(service, ledger, BLIND)


async def test_a_push_beside_a_closed_form_waits_for_no_query_of_it(service: FakeService) -> None:
    """The form may be paid by another card as long as its links live, which whoever sends the push knows."""
    async with prepared(service) as tracker:
        await tracker.returned(back(0))
        service.pay("form-1", 4999, transactionStatus="Canceled")
        service.status_scripts, service.confirm_scripts = [reset] * 9, [reset] * 9
        await tracker.notify(hint(4999, "form-1"))
        pending = await tracker.sale(sale(), purchase="cart-1", beside_open_form=True)
        assert pending.state is State.PENDING


async def test_a_form_without_an_answer_is_queried_before_a_push(service: FakeService) -> None:
    """Nobody here has its links, but something in front of the service may have handed them out."""
    async with tracking(service, profile=PROFILE) as tracker:
        service.scripts = [lost_answer]
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(form(), purchase="cart-1"))
        service.pay("form-1")
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale(), purchase="cart-1"))


async def test_a_push_beside_an_expired_form_waits_for_no_query_of_it(service: FakeService) -> None:
    async with prepared(service) as tracker:
        await service.clock.advance(1500)
        assert (await record_in(service.ledger, "form-1")).evidence is Evidence.LAST_QUERY
        service.status_scripts, service.confirm_scripts = [reset] * 9, [reset] * 9
        await tracker.notify(hint(4999, "form-1"))
        await held_by(tracker, "cart-1")
        pending = await tracker.sale(sale(), purchase="cart-1", beside_open_form=True)
        assert pending.state is State.PENDING


async def test_what_is_named_to_a_form_that_nobody_can_query_does_not_hold_its_purchase_for_good(
    service: FakeService,
) -> None:
    """A person has called it unpaid, and the notification may be forged."""
    profile = payclient.DOCUMENT
    async with prepared(service, profile) as tracker:
        await service.clock.advance(1500)
        await tracker.resolve("form-1", as_="cancelled", actor="ana", reason="seen")
        await tracker.notify(hint(5001, "form-1"))
        await held_by(tracker, "cart-1")
        await service.clock.advance(5000)
        await tracker.sale(sale(), purchase="cart-1")


async def test_a_closed_form_that_nobody_paid_costs_the_next_ask_no_query(service: FakeService) -> None:
    """Most closed forms are such."""
    async with prepared(service) as tracker:
        await tracker.returned(back(0))
        await service.clock.advance(5000)
        before = len(service.queries)
        await tracker.sale(sale(), purchase="cart-1")
        assert len(service.queries) == before


async def test_a_form_that_was_given_back_costs_the_next_ask_no_query(service: FakeService) -> None:
    """What was named to it is known to be over."""
    async with prepared(service) as tracker:
        assert (await tracker.returned(service.pay("form-1"))).paid
        service.sales[5001]["transactionStatus"] = "Canceled"
        assert (await (await pending_of(tracker, "form-1")).check()).state is State.REVERSED
        await service.clock.advance(5000)
        before = len(service.queries)
        await tracker.sale(sale(), purchase="cart-1")
        assert len(service.queries) == before


@pytest.mark.parametrize("identifier", ["form-1", "order-17"])
async def test_a_refused_form_that_was_named_is_queried_before_a_push(
    service: FakeService, identifier: str
) -> None:
    """It is paid all the same, and the query that its notification was worth had no answer: nothing is sent."""
    service.scripts, service.status_scripts = [refuses(20)], [reset]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form(), purchase="cart"))
        service.add_sale(5001, clientTransactionId="form-1")
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(0)
        assert service.queries
        push = tracker.sale(sale(identifier), purchase="cart")
        if identifier == "form-1":
            await error_of(payclient.DifferentRequestError, push)
        else:
            await error_of(payclient.AlreadyPaidError, push)
    assert not service.posted


async def test_a_refused_form_that_was_declined_holds_its_purchase_while_it_may_be_paid(
    service: FakeService,
) -> None:
    """Another ledger may have prepared it: its customer tries another card for as long as the links live."""
    service.scripts = [refuses(20)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form(), purchase="cart"))
        service.add_sale(5001, clientTransactionId="form-1", state="Cancelado")
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(400)
        await error_of(payclient.CustomerBusyError, tracker.sale(sale(), purchase="cart"))
        await service.clock.advance(900)
        await tracker.sale(sale(), purchase="cart")
    assert service.posted == {"order-17": 1}


def source_of(service: FakeService, kind: str, transaction_id: int) -> StatusSource:
    """A user's own list of one kind, which has a payment once the service has one."""

    async def source(ids: payclient.TransactionRef) -> payclient.StatusReport | None:
        if ids.kind != kind or not service.sales:
            return None
        return payclient.StatusReport(
            state="Aceptado", transaction_id=transaction_id, client_transaction_id=ids.client_transaction_id,
            amount=1150, currency="USD", raw={},
        )  # fmt: skip

    return source


async def test_a_source_learns_that_a_refused_form_is_a_form(service: FakeService) -> None:
    """It looks a form up in another list than a sale."""
    source = source_of(service, "form", 5001)
    service.scripts = [refuses(20)]
    async with tracking(service, status=source) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form(), purchase="cart"))
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(5)
        service.add_sale(5001, clientTransactionId="form-1")
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale(), purchase="cart"))
    assert not service.posted


async def test_a_refused_sale_is_doubted_as_a_sale_beside_a_refused_form_of_its_id(
    service: FakeService,
) -> None:
    """A user's source looks each kind up in a list of its own, and is asked for both."""
    source = source_of(service, "sale", 1000)
    async with refused(service, refuses(22), refuses(800), status=source) as tracker:
        await tracker.notify(hint(1000))
        await service.clock.advance(5)
        await error_of(payclient.RefusedError, tracker.prepare(form("order-17")))
        service.add_sale(1000)
        await error_of(payclient.DifferentRequestError, tracker.sale(sale()))
    assert not service.posted


async def test_a_paid_sale_is_found_beside_a_cancelled_form_of_its_id(service: FakeService) -> None:
    """A user's source is asked for the sale, too, though it has an answer about the form."""
    listed = False

    async def source(ids: payclient.TransactionRef) -> payclient.StatusReport | None:
        is_form = ids.kind == "form"
        report = payclient.StatusReport(
            state="Cancelado" if is_form else "Aceptado", transaction_id=5001 if is_form else 1000,
            client_transaction_id=ids.client_transaction_id, amount=1150, currency="USD", raw={},
        )  # fmt: skip
        return report if listed else None

    async with refused(
        service, refuses(22, 2061), refuses(800), profile=payclient.DOCUMENT, status=source
    ) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form("order-17")))
        await tracker.notify(hint(5001))
        await service.clock.advance(3000)
        listed = True
        await error_of(payclient.DifferentRequestError, tracker.sale(sale()))
    assert not service.posted


async def test_a_declined_form_holds_its_id_beside_a_refused_sale_of_it(service: FakeService) -> None:
    """Its links may be paid for longer than the push request that came after it."""
    service.scripts = [refuses(20), refuses(22)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form("order-17")))
        await tracker.notify(hint(5001))
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        service.add_sale(5001, state="Cancelado")
        await service.clock.advance(400)
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        await service.clock.advance(900)
        await tracker.sale(sale())
    assert service.posted == {"order-17": 1}


async def test_a_form_is_found_by_a_source_of_ones_own(service: FakeService) -> None:
    """Where the profile names no status query."""
    source = AsyncMock(return_value=payclient.StatusReport(
        state="Aceptado", transaction_id=5001, client_transaction_id="form-1", amount=1150, currency="USD",
    ))  # fmt: skip
    async with tracking(service, profile=payclient.DOCUMENT, status=source) as tracker:
        await tracker.prepare(form(), purchase="cart")
        await service.clock.advance(2000)
        assert (await tracker.purchase("cart")).paid
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale(), purchase="cart"))
    assert not service.posted


async def test_a_form_that_its_own_process_cannot_find_is_queried_by_another(service: FakeService) -> None:
    """Nobody else would, and its purchase would be held for good: that process has no source, and follows no forms."""
    source = AsyncMock(return_value=None)
    async with (
        tracking(service, one := SharedLedger(), BLIND) as other,
        tracking(service, SharedLedger(one), BLIND, status=source) as tracker,
    ):
        await other.prepare(form(), purchase="cart")
        await service.clock.advance(3000)
        await held_by(tracker, "cart")
        await service.clock.advance(1500)
        await tracker.sale(sale(), purchase="cart")


async def test_an_answer_about_another_transaction_confirms_nothing(service: FakeService) -> None:
    """Something in front of the service gave it to the wrong request: the payment is confirmed all the same."""
    async with prepared(service, BLIND) as tracker:
        query = service.pay("form-1")
        mixed = dict(service.sales[5001], transactionId=77, clientTransactionId="form-7")
        service.confirm_scripts = [lambda: answer(200, mixed)]
        await tracker.returned(query)
        await assert_paid(service, tracker)


@pytest.mark.parametrize("fault", ["pending", "ledger"])
async def test_a_form_that_was_given_up_is_confirmed_until_paid(service: FakeService, fault: str) -> None:
    """An answer that decides nothing, or that the ledger does not take, is none."""
    failing: list[str] = []

    def said() -> HttpResponse:
        if fault == "ledger":
            failing.append("apply")
            return answer(200, service.sales[5001])
        return answer(200, dict(service.sales[5001], transactionStatus="Pending"))

    async with prepared(service, PROFILE, FailingLedger(lambda name: name in failing)) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
        service.confirm_scripts = [said]
        await tracker.returned(service.pay("form-1"))
        failing.clear()
        await assert_paid(service, tracker)


async def test_a_process_confirms_what_another_saw_before_it_gives_a_form_up(service: FakeService) -> None:
    """One process waits for the answer to a confirmation; the customer closes another tab, by way of a second one."""
    async with two_processes(service, PROFILE) as (first, second):
        await first.prepare(form(), purchase="cart-1")
        query = service.pay("form-1")
        service.confirm_scripts = [lambda: lost_confirmation(service)]
        service.status_scripts = [lambda: answer(200, [])] * 2
        await first.returned(query)
        assert (await second.returned(back(0))).paid is True


async def test_a_customer_comes_back_to_another_process_than_the_forms(service: FakeService) -> None:
    """The last queries of the form that was left were not answered: one that is answered now is enough there, too."""
    async with two_processes(service, PROFILE) as (first, second):
        await first.prepare(form(), purchase="cart-1")
        await service.clock.advance(1190)
        service.instead = lambda _: answer(503, b"")
        await service.clock.advance(1400)
        service.instead = lambda _: None
        await error_of(payclient.PurchaseOpenError, second.live_form("cart-1", form))
        await service.clock.advance(30)
        assert (await second.live_form("cart-1", form)).client_transaction_id != "form-1"
        assert (await first.purchase("cart-1")).asks[0].state is State.EXPIRED


@pytest.mark.parametrize("in_flight", [False, True])
async def test_no_query_cancels_a_form_that_another_confirms(service: FakeService, in_flight: bool) -> None:
    """One process follows the form, whose index lags behind the second card; another waits for its confirmation."""
    one = SharedLedger()
    async with (
        prepared(service, PROFILE, one) as first,
        tracking(service, SharedLedger(one), PROFILE) as second,
    ):
        service.pay("form-1", 4999, transactionStatus="Canceled")
        declined = [dict(service.sales[4999])]
        query = service.pay("form-1", 5001)
        service.confirm_scripts = [lambda: lost_confirmation(service)] * 20
        service.status_scripts = [lambda: answer(200, declined)] * 20
        pending = await pending_of(first, "form-1")
        if in_flight:  # the query is on its way as the browser comes back, and nobody hears of that
            one.watchers.clear()
            outcome, _ = await asyncio.gather(pending.check(), second.returned(query))
        else:
            await second.returned(query)
            outcome = await pending.check()
        assert outcome.paid is None
        await service.clock.advance(60)
        await held_by(first, "cart-1")
        service.confirm_scripts.clear()
        await service.clock.advance(60)
        assert (await first.purchase("cart-1")).collected == 1150
    assert not service.posted


@pytest.mark.parametrize("profile", [PROFILE, BLIND])
async def test_a_form_holds_its_purchase_until_its_confirmation_is_answered(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """Paid in the last minute, and no answer to its confirmation or a query; or none is asked about by our id."""
    service.confirm_scripts = [lambda: lost_confirmation(service)] * 1000
    async with prepared(service, profile) as tracker:
        await service.clock.advance(1490)
        service.status_scripts = [reset] * 1000
        await passing(service, tracker.returned(service.pay("form-1")))
        await service.clock.advance(60)  # its links are dead
        until = (await held_by(tracker, "cart-1")).until
        assert until is not None
        assert until > service.clock.time()
        async with payclient.charge_all(tracker, [sale("cart-1")]) as results:
            assert [type(each.error) async for each in results] == [payclient.PurchaseOpenError]
        await service.clock.advance(600)  # too late for a confirmation
        service.confirm_scripts, service.status_scripts = [], []
        if profile is PROFILE:
            await assert_paid(service, tracker, 60)
    assert not service.posted


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_form_that_no_query_finds_frees_its_purchase(service: FakeService, *, is_named: bool) -> None:
    """Somebody waits for it, so that its expiry is written. A person decides it only where a payment was named."""
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, BLIND) as tracker:
        if is_named:
            await passing(service, tracker.returned(service.pay("form-1")))
        assert (await the_end(service, tracker)).state is State.EXPIRED
        await service.clock.advance(4000)
        known = await record_in(service.ledger, "form-1")
        if is_named:
            assert known.evidence is Evidence.CLOCK  # the ledger itself keeps others from being sent
            await held_by(tracker, "cart-1")
        else:
            assert known.evidence is Evidence.NO_QUERY
            assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING


@pytest.mark.parametrize("profile", [BLIND, payclient.DOCUMENT], ids=["confirmed", "not confirmed"])
async def test_a_payment_that_is_named_late_holds_its_purchase(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """The form had freed the purchase, and no query tells what became of the payment: a person does, however late."""
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, profile) as tracker:
        assert (await the_end(service, tracker)).state is State.EXPIRED
        await service.clock.advance(60)
        assert (await record_in(service.ledger, "form-1")).evidence is Evidence.NO_QUERY
        service.pay("form-1")
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(8000)
        await held_by(tracker, "cart-1")
        await tracker.resolve("form-1", as_="cancelled", actor="ana", reason="seen in the portal")
        assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_form_that_no_query_found_is_queried_before_a_push_by_who_can(
    service: FakeService, is_confirmed: bool
) -> None:
    """Its purchase was free; after an upgrade the profile names the query, and the form is found paid.

    While its confirmation has no answer it holds its purchase.
    """
    async with prepared(service, BLIND) as tracker:
        assert (await the_end(service, tracker)).state is State.EXPIRED
        await service.clock.advance(4000)
    service.pay("form-1")
    service.confirm_scripts = [] if is_confirmed else [reset] * 100
    async with tracking(service, service.ledger, PROFILE) as tracker:
        await (collected_by if is_confirmed else held_by)(tracker, "cart-1")


async def test_a_form_that_nobody_looks_at_frees_its_purchase_once_its_links_are_dead(
    service: FakeService,
) -> None:
    """No query finds it, and nobody waits for it: it expires all the same."""
    async with prepared(service, BLIND) as tracker:
        await service.clock.advance(4000)
        assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING
        assert (await record_in(service.ledger, "form-1")).evidence is Evidence.NO_QUERY
    async with tracking(service, service.ledger, BLIND) as tracker:
        assert [each.client_transaction_id for each in tracker.open_sales()] == ["order-17"]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_person_decides_a_form_of_an_ended_process_that_no_query_finds(
    service: FakeService, is_named: bool
) -> None:
    """Somebody sees its payment in the portal, and says so before the purchase is asked for again."""
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, BLIND) as tracker:
        service.pay("form-1")
        if is_named:
            await tracker.notify(hint(5001, "form-1"))
    async with tracking(service, service.ledger, BLIND) as tracker:
        await service.clock.advance(4000)
        await tracker.resolve("form-1", as_="accepted", actor="ana", reason="seen in the portal")
        await collected_by(tracker, "cart-1")


async def test_who_looks_at_the_old_form_of_another_process_does_not_hold_its_purchase(
    service: FakeService,
) -> None:
    """No query finds the form; its process has ended, and its expiry is written as somebody checks it."""
    ledger = SharedLedger()
    async with prepared(service, BLIND, ledger):
        await service.clock.advance(2000)
    async with tracking(service, SharedLedger(ledger), BLIND) as tracker:
        assert (await (await pending_of(tracker, "form-1")).check()).state is State.EXPIRED
        assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING


@pytest.mark.parametrize("is_another", [False, True])
async def test_of_two_payments_of_a_form_one_is_confirmed(service: FakeService, is_another: bool) -> None:
    """The form was open in two tabs, and paid in both; the answer about the first is lost, and the other is tried."""
    lost, confirm = [5001] * 3, service.confirm

    def losing(body: dict[str, object]) -> HttpResponse:
        said = confirm(body)
        return reset() if lost and lost.pop() == body["id"] else said

    service.confirm = losing  # type: ignore[method-assign]  # carried out, and not answered
    async with two_processes(service, PROFILE) as (first, second):
        await first.prepare(form(), purchase="cart-1")
        queries = [service.pay("form-1", number) for number in (5001, 5002)]
        await passing(service, first.returned(queries[0]))
        await passing(service, (second if is_another else first).returned(queries[1]))
        await assert_paid(service, first)
    assert service.confirmed == {5001}


async def test_two_processes_confirm_the_same_one_of_two_payments_of_a_form(service: FakeService) -> None:
    """Two tabs come back at once, each to a process that has not seen the other; the answer about the first is lost."""
    gate = Gate()
    theirs = HookedSharedLedger(before={"Returned": gate})
    async with (
        prepared(service, PROFILE, SharedLedger(theirs)) as first,
        tracking(service, theirs, PROFILE) as second,
    ):
        queries = [service.pay("form-1", number) for number in (5001, 5002)]
        service.confirm_scripts = [lambda: lost_confirmation(service)]
        coming = asyncio.create_task(second.returned(queries[1]))
        await gate.there.wait()
        await first.returned(queries[0])
        gate.go.set()
        await assert_paid(service, first)
        assert (await coming).transaction_id == 5001
    assert service.confirmed == {5001}


async def test_a_payment_that_was_not_found_and_then_lost_is_in_doubt_again(service: FakeService) -> None:
    """Of two: "no such transaction" was answered of the first, then it was confirmed, and that answer is lost."""
    confirm, calls = service.confirm, count(1)

    def late(body: dict[str, object]) -> HttpResponse:
        number = next(calls) if body["id"] == 5001 else 0
        if number == 1:
            return refusal(20, status=404)
        said = confirm(body)
        return reset() if number in (2, 3) else said

    service.confirm = late  # type: ignore[method-assign]  # carried out the second time, and answered the fourth
    service.instead = unlisted
    async with prepared(service, PROFILE) as tracker:
        queries = [service.pay("form-1", number) for number in (5001, 5002)]
        await passing(service, tracker.returned(queries[0]))
        await service.clock.advance(1.5)
        await passing(service, tracker.returned(queries[1]))
        await assert_paid(service, tracker)
    assert service.confirmed == {5001}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_second_payment_waits_for_the_answer_to_a_first(service: FakeService, restarts: bool) -> None:
    """Paid in two tabs 200 s apart; no confirmation is answered before the window of the first one is over."""
    confirm = service.confirm

    def losing(body: dict[str, object]) -> HttpResponse:
        if restarts and len(trackers) == 2 and body["id"] == 5001 and service.clock.monotonic() < 400:
            return answer(429, {})
        said = confirm(body)
        return reset() if service.clock.monotonic() < 400 else said

    service.confirm = losing  # type: ignore[method-assign]  # carried out, and not answered
    service.instead = unlisted
    trackers = []
    async with prepared(service, PROFILE) as tracker:
        trackers.append(tracker)
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        await service.clock.advance(200 - service.clock.monotonic())
        await passing(service, tracker.returned(service.pay("form-1", 5002)))
        await service.clock.advance(50 if restarts else 250)
    async with tracking(service, service.ledger, PROFILE) as tracker:
        trackers.append(tracker)
        await service.clock.advance(600)
        assert (await record_in(service.ledger, "form-1")).state is State.ACCEPTED
    assert service.confirmed == {5001}


@pytest.mark.parametrize("push", ["paid", "open", "cancelled"])
async def test_a_form_that_lost_its_purchase_to_a_push_is_left(service: FakeService, push: str) -> None:
    """Its card was declined, a push was sent instead, and then the old tab paid by another card."""
    async with prepared(service) as tracker:
        await tracker.returned(service.pay("form-1", 4999, transactionStatus="Canceled"))
        pending = await tracker.sale(sale(), purchase="cart-1")
        pushed = pending.transaction_id or 0
        sent = service.sales[pushed]
        sent["transactionStatus"] = "Approved" if push == "paid" else "Pending"
        await tracker.notify(hint(pushed))
        await service.clock.advance(10)
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        assert 5001 not in service.confirms
        sent["transactionStatus"] = "Canceled" if push == "cancelled" else "Approved"
        await service.clock.advance(60)
        assert pending.outcome.paid is (push != "cancelled")
        await service.clock.advance(1200)
        assert (5001 in service.confirmed) is (push == "cancelled")
        await assert_collected_once(tracker)


async def test_a_push_beside_a_form_takes_no_payment_from_it(service: FakeService) -> None:
    """The shop let it pass, and both are paid: the form is confirmed all the same, and the purchase says so."""
    async with prepared(service) as tracker:
        pending = await tracker.sale(sale(), purchase="cart-1", beside_open_form=True)
        service.sales[pending.transaction_id or 0]["transactionStatus"] = "Approved"
        assert (await outcome_of(service, pending)).paid is True
        assert (await passing(service, tracker.returned(service.pay("form-1")))).paid is True
        assert (await tracker.purchase("cart-1")).overpaid == 1150


async def test_of_two_forms_that_were_cancelled_and_then_paid_one_is_confirmed(service: FakeService) -> None:
    """Each form's card was declined; then both tabs pay by another card, and the first answer is lost."""
    async with second_form(service) as tracker:
        await tracker.returned(service.pay("form-2", 4998, transactionStatus="Canceled"))
        service.confirm_scripts = [lambda: lost_confirmation(service)]
        for number in (1, 2):
            await passing(service, tracker.returned(service.pay(f"form-{number}", 5000 + number)))
        await service.clock.advance(1300)
        assert 5002 not in service.confirms
        await assert_collected_once(tracker)


async def test_of_two_forms_paid_and_not_confirmed_the_first_is(service: FakeService) -> None:
    """Both cards were declined, both tabs pay by another card, and confirmations fail: neither waits for the other."""
    async with second_form(service) as tracker:
        await tracker.returned(service.pay("form-2", 4998, transactionStatus="Canceled"))
        service.confirm_scripts, service.instead = [reset] * 5, unlisted
        for number in (2, 1):
            await passing(service, tracker.returned(service.pay(f"form-{number}", 5000 + number)))
        await service.clock.advance(1300)
        assert 5002 in service.confirmed
        assert 5001 not in service.confirms
        await assert_collected_once(tracker)


def lose_confirmations(service: FakeService) -> None:
    """The first is lost on its way, the answers to the next four are; the service carries those out."""
    confirm, calls = service.confirm, count(1)

    def losing(body: dict[str, object]) -> HttpResponse:
        number = next(calls)
        said = reset() if number == 1 else confirm(body)
        return reset() if number < 6 else said

    service.confirm = losing  # type: ignore[method-assign]


async def test_a_payment_that_could_not_be_put_on_record_is_not_the_first(service: FakeService) -> None:
    """Only a query has found it; the return of the other form did not meet it in the ledger. Both answers are lost."""
    ledger = HookedLedger(before={"FoundPending": once(disk_full)})

    async with second_form(service, ledger) as tracker:
        lose_confirmations(service)
        service.pay("form-2", 5002)
        await (await pending_of(tracker, "form-2")).check()
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        await service.clock.advance(1300)
        assert 5002 not in service.confirmed
        await assert_collected_once(tracker)


async def test_a_return_that_could_not_be_written_is_not_the_first(service: FakeService) -> None:
    """The return of the other form did not meet it in the ledger. Both are confirmed, and the answers are lost."""
    failures: list[Callable[[], None]] = []
    ledger = HookedLedger(before={"Returned": lambda: failures.pop()() if failures else None})

    async with second_form(service, ledger) as tracker:
        lose_confirmations(service)
        failures += [disk_full] * 2
        await error_of(payclient.LedgerUnavailableError, tracker.returned(service.pay("form-2", 5002)))
        await service.clock.advance(0.1)
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        await service.clock.advance(1300)
        assert 5002 not in service.confirmed
        await assert_collected_once(tracker)


async def test_a_form_of_a_paid_purchase_is_not_confirmed(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first form was declined, and so another one was given; the old tab pays by another card, then the new one."""
    async with second_form(service) as tracker:
        assert (await tracker.returned(service.pay("form-1", 5001))).paid is True
        await passing(service, tracker.returned(service.pay("form-2", 5002)))
        await service.clock.advance(1800)
        await assert_collected_once(tracker)
    assert 5002 not in service.confirms
    assert sum("form-2: its payment is not confirmed" in each for each in caplog.messages) == 1


async def test_a_cancelled_form_is_not_confirmed_while_the_ledger_fails(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ask of its purchase was free to be paid, and was: only the ledger can tell."""
    async with second_form(service) as tracker:
        assert (await tracker.returned(service.pay("form-2", 5001))).paid is True
        gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
        monkeypatch.setattr(service.ledger, "asks", gone)
        await passing(service, tracker.returned(service.pay("form-1", 5002)))
        assert gone.called
        assert 5002 not in service.confirms


async def test_a_refused_form_is_not_confirmed_while_the_ledger_fails(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was prepared all the same. The form after it was free to be paid, and was."""
    service.scripts = [refuses(800)]
    async with tracking(service, profile=PROFILE) as tracker:
        await error_of(payclient.RefusedError, tracker.prepare(form(), purchase="cart-1"))
        service.prepare({"clientTransactionId": "form-1", "amount": 1150, "currency": "USD"})
        await tracker.prepare(form("form-2"), purchase="cart-1")
        assert (await tracker.returned(service.pay("form-2", 5001))).paid is True
        gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
        monkeypatch.setattr(service.ledger, "asks", gone)
        service.pay("form-1", 5002)
        await tracker.notify(hint(5002, "form-1"))
        await service.clock.advance(100)
        assert gone.called
        assert 5002 not in service.confirms


async def test_a_cancelled_form_is_confirmed_once_it_holds_its_purchase(service: FakeService) -> None:
    """Its return is on record at the third try: until then a push may be sent, which the customer may pay, too."""
    gate, failures = Gate(), [disk_full, disk_full]
    ledger = HookedLedger(before={"Returned": lambda: failures.pop()() if failures else None})
    transport = gate.before(service, "Confirm")
    async with tracking(service, ledger, PROFILE, transport=transport) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
        service.status_scripts = [lambda: answer(200, [service.sales[4999]])]
        service.pay("form-1", 4999, transactionStatus="Canceled")
        assert (await (await pending_of(tracker, "form-1")).check()).state is State.CANCELLED
        await error_of(payclient.LedgerUnavailableError, tracker.returned(service.pay("form-1", 5001)))
        while not gate.there.is_set():
            await service.clock.advance(0.1)
        await held_by(tracker, "cart-1")
        gate.go.set()
        await assert_paid(service, tracker)
    assert not service.posted


async def test_a_withheld_confirmation_stays_withheld_while_the_ledger_fails(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old tab paid by another card, the new form's payment waits for that, and then nobody can read the ledger."""
    async with second_form(service) as tracker:
        assert (await tracker.returned(service.pay("form-1", 5001))).paid is True
        await passing(service, tracker.returned(service.pay("form-2", 5002)))
        gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
        monkeypatch.setattr(service.ledger, "asks", gone)
        await service.clock.advance(100)
        assert gone.called
        assert 5002 not in service.confirms


async def test_a_confirmation_waits_a_while_for_a_ledger_that_fails(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ask may be paid: only the ledger can tell. Then the payment is taken rather than reversed."""
    async with prepared(service) as tracker:
        gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
        monkeypatch.setattr(service.ledger, "asks", gone)
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        await service.clock.advance(20)
        assert gone.called
        assert 5001 not in service.confirms
        await assert_paid(service, tracker, 40)


@pytest.mark.parametrize("unanswered", [0, 9])
async def test_a_return_that_is_written_late_is_written_before_its_answer(
    service: FakeService, unanswered: int
) -> None:
    """The card was declined, which settles what came back: written after that, a return would hold the purchase."""
    service.confirm_scripts = [reset] * unanswered  # then a query tells it
    failures = [disk_full, disk_full]
    ledger = HookedLedger(before={"Returned": lambda: failures.pop()() if failures else None})
    async with prepared(service, ledger=ledger) as tracker:
        query = service.pay("form-1", 5001, transactionStatus="Canceled")
        await error_of(payclient.LedgerUnavailableError, tracker.returned(query))
        if unanswered:
            await (await pending_of(tracker, "form-1")).check()
        await service.clock.advance(30)
        assert (await events_of(ledger, "form-1"))[2:] == ["Returned", "FoundCancelled"]
        assert (await tracker.purchase("cart-1")).held_until is None


async def test_a_form_whose_service_is_gone_is_queried_until_it_can_be_paid_no_more(
    service: FakeService,
) -> None:
    """The first card was declined, and nothing is answered about the second: its queries end all the same."""
    async with prepared(service) as tracker:
        await tracker.returned(service.pay("form-1", 4999, transactionStatus="Canceled"))
        service.confirm_scripts, service.status_scripts = [reset] * 10_000, [reset] * 10_000
        await passing(service, tracker.returned(service.pay("form-1", 5001)))
        await service.clock.advance(2000)
        assert len(service.queries) > 50
        await service.clock.advance(3000)
        before = len(service.queries)
        await service.clock.advance(10_000)
        assert len(service.queries) == before


async def test_a_payment_after_a_declined_card_is_confirmed_after_a_crash(service: FakeService) -> None:
    """The first card was declined, which cancelled the form; the second one's confirmation has no answer."""
    async with prepared(service) as tracker:
        declined = service.pay("form-1", 4999, transactionStatus="Canceled")
        assert (await tracker.returned(declined)).state is State.CANCELLED
        service.confirm_scripts = [lambda: lost_confirmation(service)] * 9
        await tracker.returned(service.pay("form-1", 5001))
        await held_by(tracker, "cart-1")
    service.confirm_scripts.clear()
    async with tracking(service, service.ledger, PROFILE) as tracker:
        await assert_paid(service, tracker)
    assert not service.posted


async def test_a_person_frees_the_purchase_of_a_form_in_doubt(service: FakeService) -> None:
    """A transaction was named, and nobody learns what became of it: a person says that the form was not paid."""
    service.confirm_scripts = [lambda: lost_confirmation(service)] * 1000
    async with prepared(service, BLIND) as tracker:
        await service.clock.advance(1190)
        await passing(service, tracker.returned(service.pay("form-1")))
        await service.clock.advance(60)
        await held_by(tracker, "cart-1")
        await service.clock.advance(30)
        await tracker.resolve("form-1", as_="cancelled", actor="ana", reason="asked the service")
        assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING


async def test_what_pays_a_form_that_a_person_has_cancelled_holds_its_purchase(service: FakeService) -> None:
    """A crash left it unknown, its customer had the link, and paid after the person had looked."""
    ledger = HookedLedger(before={"Prepared": disk_full})
    async with tracking(service, ledger, PROFILE) as tracker:
        identifier = (await tracker.live_form("cart", form)).client_transaction_id
    ledger.before = {}
    async with tracking(service, ledger, PROFILE) as tracker:
        await tracker.resolve(identifier, as_="cancelled", actor="ana", reason="nobody had paid")
        service.confirm_scripts = [lambda: lost_confirmation(service)] * 1000
        await passing(service, tracker.returned(service.pay(identifier)))
        assert service.confirmed == {5001}
        await held_by(tracker, "cart")
        service.confirm_scripts.clear()
        await service.clock.advance(30)
        await collected_by(tracker, "cart")
    assert not service.posted


async def left_in_doubt(service: FakeService, purchase: str | None = None) -> HookedLedger:
    """The ledger of a process that ended before the answer to its Prepare was on record."""
    ledger = HookedLedger(before={"Prepared": disk_full})
    async with tracking(service, ledger, BLIND) as tracker:
        await tracker.prepare(form(), purchase=purchase)
    ledger.before = {}
    return ledger


@pytest.mark.parametrize("again", [False, True])
async def test_what_a_person_has_settled_holds_its_purchase_once_it_is_confirmed(
    service: FakeService, again: bool
) -> None:
    """It was being confirmed as the person decided, or came back again, and its answer was lost."""
    ledger = await left_in_doubt(service, "cart-1")
    async with tracking(service, ledger, BLIND) as tracker:
        service.confirm_scripts = [reset] * 1000
        query = service.pay("form-1")
        await passing(service, tracker.returned(query))
        await tracker.resolve("form-1", as_="cancelled", actor="ana", reason="nobody had paid")
        service.confirm_scripts = [lambda: lost_confirmation(service)] * 1000
        if again:
            await passing(service, tracker.returned(query))
        await service.clock.advance(20)
        assert service.confirmed == {5001}
        await held_by(tracker, "cart-1")
        service.confirm_scripts.clear()
        await service.clock.advance(30)
        await collected_by(tracker, "cart-1")
    assert not service.posted


@pytest.mark.parametrize("comes_back", ["before", "after"])
async def test_a_payment_that_a_person_has_accepted_is_confirmed_all_the_same(
    service: FakeService, comes_back: str
) -> None:
    """The service's portal shows it as approved; unconfirmed it is given back five minutes later."""
    ledger = await left_in_doubt(service)
    async with tracking(service, ledger, BLIND) as tracker:
        query = service.pay("form-1")
        service.confirm_scripts = [reset] * 1000
        if comes_back == "before":
            await passing(service, tracker.returned(query))
        await tracker.resolve("form-1", as_="accepted", actor="ana", reason="seen in the portal")
        service.confirm_scripts.clear()
        if comes_back == "after":
            await passing(service, tracker.returned(query))
        await service.clock.advance(60)
        assert service.confirmed == {5001}
        outcome = (await pending_of(tracker, "form-1")).outcome
        assert (outcome.paid, outcome.transaction_id) == (True, 5001)


async def test_a_payment_that_a_person_has_accepted_is_confirmed_by_the_next_process(
    service: FakeService,
) -> None:
    """The process ended before it was confirmed: unconfirmed it is given back."""
    ledger = await left_in_doubt(service)
    async with tracking(service, ledger, BLIND) as tracker:
        service.confirm_scripts = [reset] * 1000
        await passing(service, tracker.returned(service.pay("form-1")))
        await tracker.resolve("form-1", as_="accepted", actor="ana", reason="seen in the portal")
    service.confirm_scripts.clear()
    before = service.confirms[5001]
    for _ in range(2):  # once it is confirmed, nobody confirms it again
        async with tracking(service, ledger, BLIND):
            await service.clock.advance(60)
        assert service.confirmed == {5001}
    assert service.confirms[5001] == before + 1


async def test_a_declined_card_takes_nothing_from_a_form_that_a_person_has_accepted(
    service: FakeService,
) -> None:
    """Another card paid it, which only the person knows."""
    ledger = await left_in_doubt(service)
    async with tracking(service, ledger, BLIND) as tracker:
        declined = service.pay("form-1", transactionStatus="Canceled")
        await tracker.resolve("form-1", as_="accepted", actor="ana", reason="seen in the portal")
        for query in (declined, back(0)):
            await passing(service, tracker.returned(query))
            await service.clock.advance(400)
            assert (await pending_of(tracker, "form-1")).outcome.paid is True


async def test_a_query_after_a_cancelled_return_takes_nothing_from_a_form_that_a_person_has_accepted(
    service: FakeService,
) -> None:
    """It was not answered until then, and finds the declined card alone."""
    ledger = await left_in_doubt(service)
    async with tracking(service, ledger, PROFILE) as tracker:
        service.status_scripts = [reset] * 1000
        await passing(service, tracker.returned(back(0)))
        await tracker.resolve("form-1", as_="accepted", actor="ana", reason="seen in the bank's statement")
        service.pay("form-1", transactionStatus="Canceled")
        service.status_scripts.clear()
        await service.clock.advance(60)
        assert (await pending_of(tracker, "form-1")).outcome.paid is True


@pytest.mark.parametrize("is_ours", [False, True], ids=["in the portal", "by a request without an answer"])
@pytest.mark.parametrize("profile", [PROFILE, UNNUMBERED], ids=["", "by client id"])
async def test_a_second_payment_that_nobody_confirms_takes_no_place(
    service: FakeService, profile: payclient.ServiceProfile, is_ours: bool
) -> None:
    """Two cards paid one form. The confirmed payment is given back, and the service gives the other back, too."""
    async with prepared(service, profile) as tracker:
        query = service.pay("form-1")
        service.pay("form-1", 5002)
        assert (await passing(service, tracker.returned(query))).transaction_id == 5001
        pending = await pending_of(tracker, "form-1")
        if is_ours:
            event = ReversalPermitted(at=service.clock.time(), expires_at=service.clock.time() + 20)
            await service.ledger.apply(await record_in(service.ledger, "form-1"), event)
            pending = await pending_of(tracker, "form-1")
        service.sales[5001]["transactionStatus"] = "Canceled"
        await service.clock.advance(60)
        assert (await passing(service, pending.check())).transaction_id == 5001
        await service.clock.advance(900)
        assert await state_of(service) is State.REVERSED
    assert service.confirmed == {5001}
