"""One purchase, paid once, through the tracker: pushes and forms of one order, in one process and in several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, SharedLedger
from fake_service import (
    FakeService,
    Gate,
    alarms,
    answer,
    collected_by,
    error_of,
    events_of,
    form,
    held_by,
    hint,
    lost_answer,
    lost_request,
    no_connection,
    outcome_of,
    paid,
    pending_of,
    record_in,
    refusal,
    refuses,
    reset,
    sale,
    selling,
    tracking,
    two_processes,
    unlisted,
)
from payclient.batch import ChargeRow
from payclient.cli.report import ledger_line
from payclient.events import Evidence, FoundAccepted
from payclient.ledger import Ledger, PurchaseHeldError
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.tracking import leases
from payclient.tracking.purchases import Purchase
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from raw_server import turns
from test_ledger import until

State = payclient.State
pytestmark = pytest.mark.usefixtures("delays")

#: As the preset, but that status queries need not wait for one another.
PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)


async def test_a_paid_purchase_is_not_asked_for_again(service: FakeService) -> None:
    """By push or by form, under whatever id; the error holds what was paid, and nothing is sent."""
    async with tracking(service) as tracker:
        await paid(service, tracker, "first")
        for again in (
            tracker.sale(sale("second"), purchase="cart"),
            tracker.sale(sale("second"), purchase="cart", beside_open_form=True),
            tracker.prepare(form("third"), purchase="cart"),
            tracker.live_form("cart", form),
        ):
            outcome = (await error_of(payclient.AlreadyPaidError, again)).outcome
            assert (outcome.paid, outcome.client_transaction_id) == (True, "first")
        for same in (tracker.sale(sale("first"), purchase="cart"), tracker.sale(sale("first"))):
            assert (await same).outcome.paid
        await tracker.sale(sale("second"), purchase="another cart")
    assert (sum(service.posted.values()), service.prepared) == (2, {})


async def test_a_push_that_the_network_held_back_keeps_its_purchase(service: FakeService) -> None:
    """Created 280 s after it was sent, it may be approved until 580 s: whatever our own clock presumed before."""

    async def held_back(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        service.clock.call_at(service.clock.monotonic() + 280, service.create, request)
        return await lost_request(service, request, before_send)

    async with selling(service, held_back, purchase="cart") as (tracker, pending):
        wait = asyncio.ensure_future(pending.wait())
        await service.clock.advance(560)
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", form))
        assert not wait.done()
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert (await wait).paid
    assert (sum(service.posted.values()), service.prepared) == (1, {})


async def test_a_sale_for_another_purchase_is_not_the_same_sale(service: FakeService) -> None:
    """By which a batch that is run again tells a changed row from the row that was charged; a refused one is free."""
    async with selling(service, purchase="cart") as (tracker, pending):
        labels = []
        for request, key in ((sale(), None), (sale(), "cart"), (sale(), "other"), (sale(tax=151), "cart")):
            row, digest = ChargeRow(request=request, purchase=key), tracker.attempts.encode(request).digest
            labels.append(ledger_line(row, pending.record, digest).label)
        labels.append(ledger_line(row, attrs.evolve(pending.record, state=State.REFUSED), digest).label)
    assert labels == ["pending", "pending", "other content", "other content", "refused"]


async def test_a_second_click_on_a_refused_sale_may_name_the_purchase_that_the_first_left_out(
    service: FakeService,
) -> None:
    """Both are of the refused attempt's purchase, which the first had yet to read; any other is not."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        clicks = (tracker.sale(sale(), purchase=each) for each in (None, "cart", "another cart"))
        types = [type(each) for each in await asyncio.gather(*clicks, return_exceptions=True)]
        assert types == [payclient.PendingSale, payclient.PendingSale, payclient.DifferentRequestError]
        assert [ask.client_transaction_id for ask in (await tracker.purchase("cart")).asks] == ["order-17"]


@pytest.mark.parametrize("refused", [False, True])
async def test_a_second_click_for_another_purchase_is_not_told_that_it_is_paid(
    service: FakeService, refused: bool
) -> None:
    """That of the first click is: it names none, and is of the purchase of its id, or of the refused attempt's."""
    async with tracking(service) as tracker:
        if refused:
            service.scripts = [refuses(22)]
            await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        await paid(service, tracker, "first", "cart" if refused else "order-17")
        clicks = (tracker.sale(sale(), purchase=each) for each in (None, "another cart"))
        types = [type(each) for each in await asyncio.gather(*clicks, return_exceptions=True)]
        assert types == [payclient.AlreadyPaidError, payclient.DifferentRequestError]


async def test_a_second_click_for_another_purchase_is_told_that_nothing_was_sent(
    service: FakeService,
) -> None:
    """It may be sent again: no sale has its id."""
    async with tracking(service) as tracker:
        service.scripts = [no_connection] * 3
        clicks = (tracker.sale(sale(), purchase=each) for each in (None, "another cart"))
        types = [type(each) for each in await asyncio.gather(*clicks, return_exceptions=True)]
        assert types == [payclient.NotSentError] * 2
        assert (await tracker.sale(sale(), purchase="another cart")).state is State.PENDING


async def test_a_second_click_is_told_that_the_ledger_failed(service: FakeService) -> None:
    """Which purchase the first click is of stands in the ledger: that it is another one would be a guess."""
    ledger = FailingLedger(lambda _: False)
    async with tracking(service, ledger) as tracker:
        service.scripts = [refuses(22)]
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        ledger.fails = lambda name: name == "get"
        clicks = (tracker.sale(sale(), purchase=each) for each in (None, "cart"))
        types = [type(each) for each in await asyncio.gather(*clicks, return_exceptions=True)]
        assert types == [payclient.LedgerUnavailableError] * 2


async def test_a_purchase_of_the_same_name_is_the_one_without_a_name(service: FakeService) -> None:
    """Also while the sale is being sent."""
    async with tracking(service) as tracker:
        calls = [tracker.sale(sale(), purchase=name) for name in (None, "order-17", None)]
        assert {each.transaction_id for each in await asyncio.gather(*calls)} == {1000}


async def test_a_refused_sale_that_is_found_paid_as_its_purchase_is_read(service: FakeService) -> None:
    """It is the same sale, and paid: no error, and no second POST."""

    class Corrected(MemoryLedger):
        async def asks(self, purchase: str) -> list[Record]:
            record = await record_in(self)
            if record.state is State.REFUSED:
                await self.apply(record, FoundAccepted(at=service.clock.time(), transaction_id=1000))
            return await super().asks(purchase)

    service.scripts = [refuses(20)]
    async with tracking(service, Corrected()) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        assert (await tracker.sale(sale())).outcome.paid
    assert not service.posted


async def test_an_ask_that_nobody_can_query_is_named_where_another_is_not_sent(service: FakeService) -> None:
    """Somebody has to look at the one that was notified, not at the one that waits for it."""
    service.scripts = [refuses(20)]
    async with tracking(service, profile=attrs.evolve(PROFILE, status=None, confirm=None)) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale("first"), purchase="cart"))
        await tracker.notify(hint(1000, "first"))
        error = await error_of(payclient.NotSentError, tracker.sale(sale("second"), purchase="cart"))
    assert error.client_transaction_id == "first"


async def test_an_open_purchase_is_not_asked_for_again(service: FakeService) -> None:
    """The error holds the handle of what is open and until when; once that is decided, the next ask is sent."""
    async with selling(service, purchase="cart") as (tracker, pending):
        begun = service.begun
        for again in (
            tracker.sale(sale("second"), purchase="cart"),
            tracker.prepare(form("third"), purchase="cart"),
            tracker.live_form("cart", form),
        ):
            error = await error_of(payclient.PurchaseOpenError, again)
            assert (error.pending.client_transaction_id, error.until) == ("order-17", pending.expires_at)
        assert service.begun == begun  # no connection was asked for
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        await tracker.sale(sale("second"), purchase="cart")
    assert service.posted == {"order-17": 1, "second": 1}


async def test_a_purchase_says_until_when_it_is_held(service: FakeService) -> None:
    """What its refusal would say; None once another ask may be sent, and once it is paid."""
    async with tracking(service) as tracker:
        assert (await tracker.purchase("cart")).held_until is None
        pending = await tracker.sale(sale(), purchase="cart")
        assert (await tracker.purchase("cart")).held_until == pending.expires_at
        service.decide("Cancelado")
        await outcome_of(service, pending)
        assert (await tracker.purchase("cart")).held_until is None
        await tracker.live_form("cart", form)
        assert (await tracker.purchase("cart")).held_until == (await held_by(tracker, "cart")).until
        await paid(service, tracker, "third", purchase="another cart")
        assert (await tracker.purchase("another cart")).held_until is None


async def test_the_permit_decides_where_nothing_was_read_before(service: FakeService) -> None:
    """Two pushes at once, one without a purchase of its own: the ledger grants one, the other says why."""
    async with tracking(service) as tracker:
        results = await asyncio.gather(
            tracker.sale(sale("cart")), tracker.sale(sale("other"), purchase="cart"), return_exceptions=True
        )
        assert [type(each) for each in results] == [payclient.PendingSale, payclient.PurchaseOpenError]
        elsewhere = tracker.sale(sale("cart"), purchase="another cart")
        await error_of(payclient.DifferentRequestError, elsewhere, "another purchase")
        both = (tracker.sale(sale("one"), purchase=each) for each in ("a cart", "another cart"))
        types = [type(each) for each in await asyncio.gather(*both, return_exceptions=True)]
        assert types == [payclient.PendingSale, payclient.DifferentRequestError]
    assert service.posted == {"cart": 1, "one": 1}


async def test_what_the_permit_denied_has_no_end_that_waits_to_be_written(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt of it is there, and the ledger that fails next owes nothing."""
    failing: list[str] = []
    ledger = FailingLedger(lambda name: name in failing)
    permit = ledger.permit

    async def denying(record: Record) -> bool:
        try:
            return await permit(record)
        except PurchaseHeldError:
            failing.append("get")
            raise

    monkeypatch.setattr(ledger, "permit", denying)
    async with tracking(service, ledger) as tracker:
        sales = (tracker.sale(sale(each), purchase="cart") for each in ("order-17", "order-18"))
        results = await asyncio.gather(*sales, return_exceptions=True)
        assert [type(each) for each in results] == [payclient.PendingSale, payclient.PurchaseOpenError]
        assert (await tracker.health()).unwritten == 0


async def test_an_expired_push_is_open_until_its_last_query(service: FakeService) -> None:
    """What was heard of it last is in the ledger, for every process."""
    ledger = SharedLedger()
    async with (
        selling(service, ledger=ledger, purchase="cart") as (_, pending),
        tracking(service, SharedLedger(ledger)) as other,
    ):
        await service.clock.advance(320)
        assert pending.state is State.EXPIRED
        await error_of(payclient.PurchaseOpenError, other.live_form("cart", form))
        await outcome_of(service, pending)
        (record,) = await ledger.asks("cart")
        assert record.evidence is Evidence.LAST_QUERY
        assert (await events_of(ledger)).count("Exhausted") == 1
        await other.live_form("cart", form)


Said = Callable[[dict[str, object]], HttpResponse]


def another(**changes: object) -> Said:
    """What is not the service's word on this very push."""
    return lambda sold: answer(200, sold | {"state": "Pendiente"} | changes)


@pytest.mark.parametrize(
    "said",
    [
        *(lambda _, status=status: answer(status, {"message": "no"}) for status in (500, 429, 401)),
        another(state="Aprobado"), another(amount=999), another(amount="much"),
        another(clientTransactionId="another"), lambda _: refusal(20, status=404),
    ],
    ids=["500", "429", "401", "an unmapped word", "another amount", "no amount", "another's", "not found"],
)  # fmt: skip
async def test_an_expired_push_is_open_until_a_query_says_more(service: FakeService, said: Said) -> None:
    """Its wait ends, and the answer that did not come may have been "paid": another ask would charge twice."""
    async with selling(service, purchase="cart") as (tracker, pending):
        service.decide("Aceptado")
        service.instead = lambda path: said(service.sales[1000])
        assert (await outcome_of(service, pending)).paid is None
        held = await held_by(tracker, "cart")
        service.instead = lambda path: None
        await service.clock.advance(60)
        assert held.pending is not None
        assert (await held.pending.check()).paid
        await collected_by(tracker, "cart")
    assert service.posted == {"order-17": 1}


async def test_a_query_that_was_answered_before_is_no_last_one(service: FakeService) -> None:
    """The service said "pending" of the push till it expired, and nothing more since: it may have been paid."""
    async with selling(service, purchase="cart") as (tracker, pending):
        await service.clock.advance(305)
        assert service.queries
        service.decide("Aceptado")
        service.instead = lambda path: answer(500, {"message": "no"})
        assert (await outcome_of(service, pending)).paid is None
        await held_by(tracker, "cart")
    assert service.posted == {"order-17": 1}


async def test_a_word_of_a_users_own_source_that_is_none_of_the_three_says_nothing(
    service: FakeService,
) -> None:
    """It passes on the service's own word, which may mean "paid"."""
    word: Any = "Approved"

    async def source(reference: payclient.TransactionRef) -> payclient.StatusReport:
        return payclient.StatusReport(state=word, transaction_id=reference.transaction_id)

    async with selling(service, purchase="cart", status=source) as (tracker, pending):
        assert (await outcome_of(service, pending)).paid is None
        await held_by(tracker, "cart")


async def test_a_refused_ask_queries_what_holds_its_purchase(service: FakeService) -> None:
    """The service was silent at the last query: it is asked again as somebody wants to pay, an hour before its time."""
    async with selling(service, purchase="cart") as (tracker, pending):
        service.instead = lambda path: answer(500, {"message": "no"})
        await outcome_of(service, pending)
        await service.clock.advance(1000)
        service.instead = lambda path: None
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", form))
        await service.clock.advance(1)
        await tracker.live_form("cart", form)
    assert len(service.prepared) == 1


async def test_an_expired_push_is_open_until_its_last_answer_is_written(service: FakeService) -> None:
    """The last query found it paid, and the ledger took what was written next, but not that."""
    fails: list[bool] = []
    ledger = FailingLedger(lambda name: name == "apply" and bool(fails) and fails.pop())
    async with selling(service, ledger=ledger, purchase="cart") as (tracker, pending):
        await service.clock.advance(410)  # six of seven last queries
        fails.append(True)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is None
        assert not fails
        await held_by(tracker, "cart")
        await service.clock.advance(600)
        assert (await pending_of(tracker)).outcome.paid
    assert service.posted == {"order-17": 1}


async def test_an_expired_push_is_open_until_others_can_be_looked_at(service: FakeService) -> None:
    """The one that we know of is cancelled; the index lags that would name the one which the customer paid."""
    service.instead = unlisted
    async with selling(service, purchase="cart") as (tracker, pending):
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is None
        await held_by(tracker, "cart")
        service.add_sale(1001)
        service.instead = lambda path: None
        await service.clock.advance(700)
        assert (await pending_of(tracker)).outcome.paid
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("by", ["notifications", "checks"])
async def test_who_asks_more_often_does_not_hasten_the_last_query(service: FakeService, by: str) -> None:
    """Forged notifications, or a page that polls: the service is heard out all the same, and its late word counts."""
    async with selling(service, purchase="cart") as (tracker, pending):
        wait = asyncio.ensure_future(pending.wait())
        await service.clock.advance(301)
        for _ in range(60):
            await (pending.check() if by == "checks" else tracker.notify(hint()))
            await service.clock.advance(1.0)
        assert not wait.done()
        await held_by(tracker, "cart")
        service.decide("Aceptado")
        await service.clock.advance(90)
        assert (await wait).paid is True
    assert service.posted == {"order-17": 1}


async def test_an_expired_push_ends_without_a_status_source_too(service: FakeService) -> None:
    """Nothing more can be heard of it ten seconds after its expiry."""
    async with selling(service, profile=payclient.DOCUMENT, purchase="cart") as (tracker, pending):
        await service.clock.advance(305)
        await held_by(tracker, "cart")
        assert (await outcome_of(service, pending)).evidence is Evidence.CLOCK
        await service.clock.advance(15)
        await tracker.sale(sale("second"), purchase="cart")


@pytest.mark.parametrize("after", [0.5, 5.0])
@pytest.mark.parametrize("state", ["Aceptado", "Pendiente"])
async def test_an_exhausted_push_that_is_notified_is_queried_before_another(
    service: FakeService, state: str, after: float
) -> None:
    """What the customer answered was listed after the last query, and the next one has no answer."""
    async with selling(service, purchase="cart") as (tracker, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.LAST_QUERY
        await service.clock.advance(after)
        service.decide(state)
        service.status_scripts = [reset] * 99
        await tracker.notify(hint(1000))
        await held_by(tracker, "cart")
        await service.clock.advance(5)
        await held_by(tracker, "cart")
        await service.clock.advance(5)
        service.status_scripts.clear()
        if state == "Aceptado":
            await collected_by(tracker, "cart")
        else:
            await tracker.sale(sale("second"), purchase="cart")


async def test_an_exhausted_push_that_is_notified_as_another_connects_forbids_that(
    service: FakeService,
) -> None:
    """It was free until then, and may be paid."""
    connecting = Gate()

    async def connects(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await connecting()
        return await service.take(request, before_send)

    async with selling(service, purchase="cart") as (tracker, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.LAST_QUERY
        service.scripts = [connects]
        asking = asyncio.ensure_future(tracker.sale(sale("second"), purchase="cart"))
        await connecting.there.wait()
        service.status_scripts = [reset] * 99
        await tracker.notify(hint(1000))
        connecting.go.set()
        await error_of(payclient.NotSentError, asking, match="as this one connected")
    assert "second" not in service.posted


async def test_an_expired_push_that_nobody_could_query_is_queried_before_another(
    service: FakeService,
) -> None:
    """A process without a status source freed the purchases; another one has a source, and asks it first."""
    ledger, ids = MemoryLedger(), ("approved", "ignored")
    async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
        for identifier in ids:
            await tracker.sale(sale(identifier), purchase=f"cart of {identifier}")
        service.decide("Aceptado")
        await service.clock.advance(500)
    async with tracking(service, ledger) as tracker:
        service.status_scripts = [reset] * 2
        for identifier in ids:
            await held_by(tracker, f"cart of {identifier}")
        await service.clock.advance(5)
        service.status_scripts.clear()
        await collected_by(tracker, "cart of approved")
        await tracker.sale(sale("second"), purchase="cart of ignored")
    assert service.posted == {"approved": 1, "ignored": 1, "second": 1}
    # It is queried for no third one.
    assert (await events_of(ledger, "ignored"))[-2:] == ["Unqueried", "Exhausted"]


async def test_an_expired_push_that_nobody_can_query_is_not_followed_at_a_start(service: FakeService) -> None:
    """Nothing is due of it: a shop without a status source would follow all that ever expired."""
    async with selling(service, profile=payclient.DOCUMENT):
        await service.clock.advance(30 * 86_400.0)
    async with tracking(service, service.ledger, payclient.DOCUMENT) as tracker:
        assert tracker.open_sales() == []
        assert [each.client_transaction_id for each in await tracker.unresolved()] == ["order-17"]


async def test_an_answered_push_is_queried_at_a_start_however_old_it_is(service: FakeService) -> None:
    """The process that was notified ended before its query had an answer, and the shop was closed for a month."""
    async with selling(service) as (tracker, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.LAST_QUERY
        await service.clock.advance(5)
        service.decide("Aceptado")
        service.status_scripts = [reset]
        await tracker.notify(hint(1000))
    await service.clock.advance(30 * 86_400.0)
    service.status_scripts.clear()
    async with tracking(service, service.ledger):
        await service.clock.advance(5)
        assert (await record_in(service.ledger)).state is State.ACCEPTED


async def test_an_expired_push_that_nobody_could_query_is_queried_once_by_who_can(
    service: FakeService,
) -> None:
    """A shop that gives its profile a status query has many of them, for which new pushes would wait by the rate."""
    async with selling(service, profile=payclient.DOCUMENT):
        await service.clock.advance(30 * 86_400.0)
    async with tracking(service, service.ledger):
        await service.clock.advance(600)
        assert len(service.queries) == 1


async def test_an_answered_push_that_cannot_be_queried_holds_its_purchase(service: FakeService) -> None:
    """Approved or rejected, the notification does not say: only a person can free the purchase, in any process."""
    ledger = MemoryLedger()
    for seconds in (100, 302, 500):  # the last one freed its purchase before the notification came
        identifier, cart = f"push-{seconds}", f"cart-{seconds}"
        async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
            pending = await tracker.sale(sale(identifier), purchase=cart)
            await service.clock.advance(seconds)
            await tracker.notify(hint(pending.transaction_id or 0, identifier))
            await service.clock.advance(400)
            assert (await pending.wait()).paid is None
        async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
            await service.clock.advance(400)
            refused = await error_of(payclient.PurchaseOpenError, tracker.sale(sale("again"), purchase=cart))
            assert refused.pending.client_transaction_id == identifier
            await tracker.resolve(identifier, as_="cancelled", actor="ana", reason="seen in the portal")
            await tracker.sale(sale(f"again-{seconds}"), purchase=cart)


async def test_an_expired_push_is_queried_before_another_once_it_is_notified(service: FakeService) -> None:
    """Approved at the last moment, and pending at its last query; the query of its notification has no answer yet."""
    gate = Gate()
    async with tracking(service, transport=gate.before(service, "/1000")) as tracker:
        gate.go.set()
        await tracker.sale(sale(), purchase="cart")
        await service.clock.advance(3000)
        assert (await record_in(service.ledger)).evidence is Evidence.LAST_QUERY
        service.decide("Aceptado")
        gate.go.clear()
        await tracker.notify(hint())
        asking = asyncio.ensure_future(tracker.sale(sale("order-18"), purchase="cart"))
        await turns(50)
        gate.go.set()
        await error_of(payclient.AlreadyPaidError, asking)
    assert "order-18" not in service.posted


async def test_an_answered_form_that_cannot_be_queried_holds_its_purchase(service: FakeService) -> None:
    """One of which no payment was named is free once its links are dead."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
        for identifier in ("form-1", "form-2"):
            await tracker.prepare(form(identifier), purchase=f"cart of {identifier}")
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(600)
        await held_by(tracker, "cart of form-2")
    async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
        await service.clock.advance(3600)
        await held_by(tracker, "cart of form-1")
        await tracker.sale(sale("second"), purchase="cart of form-2")
        await tracker.resolve("form-1", as_="cancelled", actor="ana", reason="seen in the portal")
        await tracker.sale(sale("third"), purchase="cart of form-1")


@pytest.mark.parametrize("ahead", [250, 7200])
@pytest.mark.parametrize("options", [{}, {"profile": payclient.DOCUMENT}], ids=["queried", "not queried"])
async def test_a_process_whose_clock_is_ahead_does_not_free_what_can_still_be_approved(
    service: FakeService, options: dict[str, Any], ahead: int
) -> None:
    """It takes over what another process sold, and calls it expired too early: "pending" is no last word yet."""
    ledger = MemoryLedger()
    async with selling(service, ledger=ledger, purchase="cart", **options):
        pass
    service.clock.jump_wall(ahead)
    async with tracking(service, ledger, **options) as tracker:
        await service.clock.advance(290)
        assert (await pending_of(tracker)).state is State.EXPIRED
        await held_by(tracker, "cart")
        await service.clock.advance(20)
        await tracker.sale(sale("second"), purchase="cart")


async def test_what_was_found_late_is_not_freed_by_a_clock_that_is_ahead(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has known it for long, and takes over what was only just found: approved from then on."""
    monkeypatch.setattr(leases, "RENEW", 0.02)
    ledger = SharedLedger()
    others = SharedLedger(ledger)
    monkeypatch.setattr(others, "watch", lambda woken: lambda: None)  # it hears nothing
    service.scripts, service.instead = [lost_answer], unlisted
    async with tracking(service, others) as other:
        async with tracking(service, ledger) as tracker:
            pending = await tracker.sale(sale(), purchase="cart")
            await pending_of(other)
            await service.clock.advance(400)
            service.instead = lambda path: None
            assert (await pending.check()).state is State.PENDING
        service.clock.jump_wall(250)
        ledger.holders["order-17"] = None, 0.0
        await until(others.held)
        await service.clock.advance(290)
        assert (await pending_of(other)).state is State.EXPIRED
        await held_by(other, "cart")
        await service.clock.advance(20)
        await other.sale(sale("second"), purchase="cart")


async def test_any_process_queries_again_what_it_is_refused_for(service: FakeService) -> None:
    """The last queries had no answer, in the process that follows it: the next one there is long in coming."""
    ledger = SharedLedger()
    async with (
        selling(service, ledger=ledger, purchase="cart") as (_, pending),
        tracking(service, SharedLedger(ledger)) as other,
    ):
        service.instead = lambda path: answer(500, {"message": "no"})
        assert (await outcome_of(service, pending)).state is State.EXPIRED
        service.decide("Cancelado")
        service.instead = lambda path: None
        await held_by(other, "cart")
        await service.clock.advance(5)
        await other.sale(sale("second"), purchase="cart")


async def test_a_stored_pending_frees_no_purchase(service: FakeService) -> None:
    """A cache stored it before the customer approved: the purchase was asked for again, and could be paid twice."""
    async with selling(service, purchase="cart") as (tracker, pending):
        stored = attrs.evolve(answer(200, service.sales[1000]), headers={"Age": "400"})
        service.instead = lambda path: stored
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).state is State.EXPIRED
        await held_by(tracker, "cart")
        await service.clock.advance(5)
        await held_by(tracker, "cart")
        service.instead = lambda path: None
        await service.clock.advance(5)
        await collected_by(tracker, "cart")


async def test_an_unknown_push_is_open(service: FakeService) -> None:
    """It may exist, however much time has passed; a refused one is gone."""
    service.scripts = [refuses(22), lost_request]
    async with tracking(service, profile=payclient.DOCUMENT) as tracker:
        await error_of(payclient.NotCreatedError, tracker.sale(sale("first"), purchase="cart"))
        pending = await tracker.sale(sale("second"), purchase="cart")
        await service.clock.advance(100_000)
        assert pending.state is State.UNKNOWN
        await held_by(tracker, "cart")


@pytest.mark.parametrize("state", ["Aceptado", "Pendiente", "Cancelado", None])
async def test_a_refused_push_that_was_notified_is_queried(service: FakeService, state: str | None) -> None:
    """A proxy repeated its request: what was refused may exist, and its process ended before it was answered."""
    service.scripts = [refuses(22)]
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.NotCreatedError, tracker.sale(sale(), purchase="cart"))
        if state is not None:
            service.add_sale(state=state)
        service.status_scripts = [reset] * 10
        await tracker.notify(hint())
        await service.clock.advance(1)
    service.status_scripts = []
    async with tracking(service, ledger) as tracker:
        if state == "Aceptado":
            assert (await collected_by(tracker, "cart")).outcome.client_transaction_id == "order-17"
            return
        if state is not None:  # "Cancelado" is not final either, while it can be approved
            for identifier in ("another", "order-17"):
                again = tracker.sale(sale(identifier), purchase="cart")
                await error_of(payclient.CustomerBusyError, again)
            service.decide("Cancelado")
            await service.clock.advance(400)
        await tracker.sale(sale("another"), purchase="cart")


async def test_a_push_that_was_refused_as_existing_is_queried_before_another(service: FakeService) -> None:
    """The index lagged when it was refused: what a proxy had sent first is listed, and paid, a moment later."""
    service.scripts = [refuses(22, 2061)]
    async with tracking(service) as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale(), purchase="cart"))
        service.add_sale()
        assert (await collected_by(tracker, "cart")).outcome.client_transaction_id == "order-17"
    assert not service.posted


async def test_a_new_attempt_is_of_the_same_purchase(service: FakeService) -> None:
    """Whoever charges a refused id again need not say what it was for."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        assert (await tracker.sale(sale())).outcome.purchase == "cart"


async def test_twice_paid_is_allowed_and_seen(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    """The shop let a push pass beside an open form, and both were paid: each place says so, and names them."""
    async with tracking(service) as tracker:
        prepared = await tracker.live_form("cart", form)
        assert (await held_by(tracker, "cart")).pending.kind == "form"
        push = await tracker.sale(sale("push"), purchase="cart", beside_open_form=True)
        # Not beside an open push.
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", form))
        service.decide("Aceptado")
        assert (await outcome_of(service, push)).paid
        assert (await tracker.purchase("cart")).overpaid == 0
        service.pay(prepared.client_transaction_id, transactionId=5001, state="Aceptado")
        pending = await pending_of(tracker, prepared.client_transaction_id)
        assert (await outcome_of(service, pending)).paid
        assert any("its purchase also by push" in each for each in alarms(caplog))
        purchase = await tracker.purchase("cart")
        assert (purchase.paid, purchase.collected, purchase.overpaid) == (True, 2300, 1150)
        assert [(ask.client_transaction_id, ask.kind, ask.purchase) for ask in purchase.asks] == [
            (prepared.client_transaction_id, "form", "cart"), ("push", "sale", "cart"),
        ]  # fmt: skip
        feed = tracker.outcomes()
        assert [(await anext(feed)).also_paid for _ in range(3)] == [(), (), ("push",)]


@pytest.mark.parametrize(
    ("states", "paid"),
    [
        ((State.UNKNOWN, State.REFUSED), None), ((State.REFUSED, State.EXPIRED), None),
        ((State.REVERSING, State.CANCELLED), None), ((State.CANCELLED, State.REVERSED), False),
        ((State.ACCEPTED, State.PENDING), True),
    ],
)  # fmt: skip
def test_a_purchase_is_not_paid_only_where_none_of_its_asks_may_be(
    states: tuple[State, State], paid: bool | None
) -> None:
    asks = [Record(client_transaction_id=str(number), state=each) for number, each in enumerate(states)]
    assert Purchase.of("cart", asks).paid is paid


def test_what_was_paid_beyond_the_first_payment_is_overpaid() -> None:
    asks = [
        Record(client_transaction_id=str(amount), state=State.ACCEPTED, amount=amount) for amount in (5, 7, 2)
    ]
    purchase = Purchase.of("cart", asks)
    assert (purchase.collected, purchase.overpaid) == (14, 9)
    again = [Record(client_transaction_id="7", attempt=n, state=State.REFUSED, amount=7) for n in (1, 2)]
    assert len(Purchase.of("cart", again).asks) == 1


async def test_a_purchase_that_nobody_asked_for(service: FakeService) -> None:
    """It is not paid, and has no asks; a key that could be taken for another one is refused."""
    async with tracking(service) as tracker:
        purchase = await tracker.purchase("cart")
        assert (purchase.paid, purchase.collected, purchase.asks) == (False, 0, ())
        for key in ("", "order\n17", "order\u200b17", " "):
            await error_of(payclient.InvalidRequestError, tracker.sale(sale(), purchase=key))
            await error_of(payclient.InvalidRequestError, tracker.purchase(key))
    assert not service.posted


# --- Links and forms


async def _wiped(ledger: Ledger, directory: Path) -> None:
    """Until no byte of the links is in any file, each time after the ledger's thread has done what was asked of it."""
    async with asyncio.timeout(60):
        while b"pay.example" in _bytes(directory):
            await ledger.get("nobody")


def _bytes(directory: Path) -> bytes:
    return b"".join(each.read_bytes() for each in directory.iterdir())


async def test_a_form_outlives_its_process(service: FakeService, tmp_path: Path) -> None:
    """After a restart, the same links; once they are dead, no byte of them is in any file, also while it is open."""
    forms = []
    for _ in range(2):
        ledger = await payclient.open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
        async with tracking(service, ledger) as tracker:
            forms.append(await tracker.live_form("cart", form))
            assert b"pay.example/c" in _bytes(tmp_path)
            if len(forms) == 2:
                await service.clock.advance(599)
                await ledger.get("what was queued before is written")
                assert b"pay.example/c" in _bytes(tmp_path)
                await service.clock.advance(2)
                await _wiped(ledger, tmp_path)
        await ledger.aclose()
    one, two = forms
    assert one.client_transaction_id == two.client_transaction_id
    assert dict(one.result.links) == dict(two.result.links)
    assert (one.card.expires_at, one.wallet.url) == (two.card.expires_at, two.wallet.url)
    assert len(service.prepared) == 1


async def test_the_links_of_another_process_are_as_old_as_their_form(service: FakeService) -> None:
    """They are handed out no later here than there."""
    async with tracking(service) as tracker:
        prepared = await tracker.live_form("cart", form)
    async with tracking(service, service.ledger) as tracker:
        await service.clock.advance(530)
        assert (await tracker.live_form("cart", form)).prepared_at == prepared.prepared_at
        await service.clock.advance(20)
        await error_of(payclient.PurchaseOpenError, tracker.live_form("cart", form))


async def test_kept_links_are_a_choice(service: FakeService) -> None:
    """Without them the process that prepared a form hands it out, and another one says until when it is open."""
    async with two_processes(service, keep_links=False) as (one, other):
        prepared = await one.live_form("cart", form)
        assert await one.live_form("cart", form) is prepared
        error = await error_of(payclient.PurchaseOpenError, other.live_form("cart", form))
        assert error.until == pytest.approx(service.clock.time() + 1230)
        assert await service.ledger.links("cart", 0.0) == {}


async def test_a_ledger_that_cannot_keep_links_costs_no_form(service: FakeService) -> None:
    """They are of use to other processes only."""
    async with tracking(service) as tracker:
        full = AsyncMock(side_effect=payclient.LedgerUnavailableError("the disk is full"))
        service.ledger.keep_links = full  # type: ignore[method-assign]
        prepared = await tracker.live_form("cart", form)
        assert await tracker.live_form("cart", form) is prepared


async def test_links_are_kept_before_their_form_counts_as_prepared(service: FakeService) -> None:
    """However slow the ledger is: whoever finds it PENDING, in whatever process, finds its links."""
    found: list[State] = []

    class Slow(MemoryLedger):
        async def keep_links(self, record: Record, links: str, until: float) -> None:
            await turns(20)
            found.append((await record_in(self, record.client_transaction_id)).state)

    async with tracking(service, Slow()) as tracker:
        await tracker.live_form("cart", form)
    assert found == [State.SENDING]


@pytest.mark.parametrize(
    ("profile", "identifier", "purchase", "held", "free"),
    [
        (None, "second", "cart", 1250, 1450), (None, "cart", None, 1250, 1450),
        (PROFILE, "second", "cart", 1450, 1550),
    ],
    ids=["by its last query", "by the purchase's own name", "by what may be confirmed"],
)  # fmt: skip
async def test_a_form_with_dead_links_holds_its_purchase(
    service: FakeService, profile: Any, identifier: str, purchase: str | None, held: float, free: float
) -> None:
    """It has expired, and may have been paid at the last moment: another ask waits for the query that tells.

    Also one that names no purchase, and whose client transaction id is the purchase's name. Where forms are confirmed
    it waits until nothing can be, though the service knew of nothing when it was last asked.
    """
    async with tracking(service, **({"profile": profile} if profile else {})) as tracker:
        await tracker.prepare(form("first"), purchase="cart")
        await service.clock.advance(held)
        assert (await pending_of(tracker, "first")).state is State.EXPIRED
        again = tracker.sale(sale(identifier), purchase=purchase)
        await error_of(payclient.PurchaseOpenError, again)
        await service.clock.advance(free - held)
        await tracker.sale(sale(identifier), purchase=purchase)


async def test_a_form_found_paid_holds_its_purchase_until_it_is_confirmed(service: FakeService) -> None:
    """Paid at the last moment and found so by its last query; the answer to its confirmation is lost."""

    def silent() -> HttpResponse:
        service.confirmed.add(5001)
        return reset()

    service.confirm_scripts = [silent] * 1000
    async with tracking(service, profile=PROFILE) as tracker:
        await tracker.prepare(form("first"), purchase="cart")
        await service.clock.advance(1195)
        service.pay("first")
        await service.clock.advance(345)  # its links are dead
        await held_by(tracker, "cart")
        await service.clock.advance(3600)  # it would have been reversed by now
        assert (await pending_of(tracker, "first")).outcome.paid
    assert not service.posted
