"""One purchase, paid once, through the tracker: pushes and forms of one order, in one process and in several."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, SharedLedger
from fake_service import FakeService, answer, hint, lost_request, outcome_of, pending_of, refuses, tracking
from fake_service import form as form_of
from fake_service import sale as push
from payclient.events import Evidence, Exhausted
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

pytestmark = pytest.mark.usefixtures("delays")


async def test_a_paid_purchase_is_not_asked_for_again(service: FakeService) -> None:
    """By push or by form, under whatever id; the error holds what was paid, and nothing is sent."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        service.decide("Aceptado")
        assert (await outcome_of(service, sale)).paid
        for again in (
            tracker.sale(push("second"), purchase="order-17"),
            tracker.sale(push("second"), purchase="order-17", beside_open_form=True),
            tracker.prepare(form_of("third"), purchase="order-17"),
            tracker.live_form("order-17", form_of),
        ):
            with pytest.raises(payclient.AlreadyPaidError) as raised:
                await again
            assert (raised.value.outcome.paid, raised.value.outcome.client_transaction_id) == (True, "first")
        for same in (tracker.sale(push("first"), purchase="order-17"), tracker.sale(push("first"))):
            assert (await same).outcome.paid
        await tracker.sale(push("second"), purchase="order-18")
    assert (sum(service.posted.values()), service.prepared) == (2, {})


async def test_a_push_that_the_network_held_back_keeps_its_purchase(service: FakeService) -> None:
    """Created 280 s after it was sent, it may be approved until 580 s: whatever our own clock presumed before."""

    async def held_back(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        service.clock.call_at(service.clock.monotonic() + 280, service.create, request)
        return await lost_request(service, request, before_send)

    async with tracking(service) as tracker:
        service.scripts = [held_back]
        sale = await tracker.sale(push("first"), purchase="order-17")
        wait = asyncio.ensure_future(sale.wait())
        await service.clock.advance(560)
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.live_form("order-17", form_of)
        assert not wait.done()
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert (await wait).paid
    assert (sum(service.posted.values()), service.prepared) == (1, {})


async def test_a_sale_for_another_purchase_is_not_the_same_sale(service: FakeService) -> None:
    """By which a batch that is run again tells a changed row from the row that was charged."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(push("first"), purchase="order-17")
        same = [
            tracker.attempts.is_same(push("first"), key, pending) for key in (None, "order-17", "order-18")
        ]
        assert same == [True, True, False]
        assert not tracker.attempts.is_same(push("first", tax=151), "order-17", pending)


async def test_an_open_purchase_is_not_asked_for_again(service: FakeService) -> None:
    """The error holds the handle of what is open and until when; once that is decided, the next ask is sent."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        begun = service.begun
        for again in (
            tracker.sale(push("second"), purchase="order-17"),
            tracker.prepare(form_of("third"), purchase="order-17"),
            tracker.live_form("order-17", form_of),
        ):
            with pytest.raises(payclient.PurchaseOpenError) as raised:
                await again
            assert raised.value.pending.client_transaction_id == "first"
            assert raised.value.until == sale.expires_at
        assert service.begun == begun  # no connection was asked for
        service.decide("Cancelado")
        assert (await outcome_of(service, sale)).paid is False
        await tracker.sale(push("second"), purchase="order-17")
    assert service.posted == {"first": 1, "second": 1}


async def test_a_purchase_says_until_when_it_is_held(service: FakeService) -> None:
    """What its refusal would say; None once another ask may be sent, and once it is paid."""
    async with tracking(service) as tracker:
        assert (await tracker.purchase("order-17")).held_until is None
        sale = await tracker.sale(push("first"), purchase="order-17")
        assert (await tracker.purchase("order-17")).held_until == sale.expires_at
        service.decide("Cancelado")
        await outcome_of(service, sale)
        assert (await tracker.purchase("order-17")).held_until is None
        await tracker.live_form("order-17", form_of)
        with pytest.raises(payclient.PurchaseOpenError) as raised:
            await tracker.sale(push("second"), purchase="order-17")
        assert (await tracker.purchase("order-17")).held_until == raised.value.until
        paid = await tracker.sale(push("third"), purchase="order-18")
        assert paid.transaction_id is not None
        service.decide("Aceptado", paid.transaction_id)
        assert (await outcome_of(service, paid)).paid
        assert (await tracker.purchase("order-18")).held_until is None


async def test_the_permit_decides_where_nothing_was_read_before(service: FakeService) -> None:
    """Two pushes at once, one without a purchase of its own: the ledger grants one, the other says why."""
    async with tracking(service) as tracker:
        results = await asyncio.gather(
            tracker.sale(push("order-17")),
            tracker.sale(push("other"), purchase="order-17"),
            return_exceptions=True,
        )
        assert [type(each) for each in results] == [payclient.PendingSale, payclient.PurchaseOpenError]
        with pytest.raises(payclient.DifferentRequestError, match="another purchase"):
            await tracker.sale(push("order-17"), purchase="order-18")
    assert service.posted == {"order-17": 1}


async def test_an_expired_push_is_open_until_its_last_query(service: FakeService) -> None:
    """What was heard of it last is in the ledger, for every process."""
    ledger = SharedLedger()
    async with tracking(service, ledger) as one, tracking(service, SharedLedger(ledger)) as other:
        sale = await one.sale(push("first"), purchase="order-17")
        await service.clock.advance(320)
        assert sale.state is payclient.State.EXPIRED
        with pytest.raises(payclient.PurchaseOpenError):
            await other.live_form("order-17", form_of)
        await outcome_of(service, sale)
        (record,) = await ledger.asks("order-17")
        assert record.evidence is Evidence.LAST_QUERY
        assert [each.event for each in await ledger.history("first")].count(Exhausted.__name__) == 1
        await other.live_form("order-17", form_of)


@pytest.mark.parametrize("status", [500, 429, 401])
async def test_an_expired_push_is_open_while_its_last_query_is_not_answered(
    service: FakeService, status: int
) -> None:
    """Its wait ends, and the answer that did not come may have been "paid": another ask would charge twice."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        service.status_scripts = [lambda: answer(status, {"message": "no"})] * 1000
        await service.clock.advance(250)
        service.decide("Aceptado")
        assert (await outcome_of(service, sale)).paid is None
        with pytest.raises(payclient.PurchaseOpenError) as raised:
            await tracker.sale(push("second"), purchase="order-17")
        service.status_scripts = []
        await service.clock.advance(60)
        assert raised.value.pending is not None
        assert (await raised.value.pending.check()).paid
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.sale(push("second"), purchase="order-17")
    assert service.posted == {"first": 1}


@pytest.mark.parametrize(
    "change",
    [{"state": "Aprobado"}, {"amount": 999}, {"amount": "much"}, {"clientTransactionId": "another"}],
    ids=["an unmapped word", "another amount", "no amount", "another's"],
)
async def test_an_expired_push_is_open_while_its_last_query_says_nothing_of_it(
    service: FakeService, change: dict[str, object]
) -> None:
    """What is not the service's word on this very push may hide that it was approved."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        before = dict(service.sales[1000])
        service.sales[1000] |= change
        assert (await outcome_of(service, sale)).paid is None
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        service.sales[1000] = before | {"state": "Aceptado"}
        await service.clock.advance(10)
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.sale(push("second"), purchase="order-17")
    assert service.posted == {"first": 1}


async def test_a_refused_ask_queries_what_holds_its_purchase(service: FakeService) -> None:
    """The service was silent at the last query: it is asked again as somebody wants to pay, an hour before its time."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        service.status_scripts = [lambda: answer(500, {"message": "no"})] * 1000
        await outcome_of(service, sale)
        await service.clock.advance(1000)
        service.status_scripts = []
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.live_form("order-17", form_of)
        await service.clock.advance(1)
        await tracker.live_form("order-17", form_of)
    assert len(service.prepared) == 1


async def test_an_expired_push_is_open_while_the_ledger_does_not_take_its_last_answer(
    service: FakeService,
) -> None:
    """The last query found it paid, and the ledger took what was written next, but not that."""
    fails: list[bool] = []
    ledger = FailingLedger(lambda name: name == "apply" and bool(fails) and fails.pop())
    async with tracking(service, ledger) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        await service.clock.advance(410)  # six of seven last queries
        fails.append(True)
        service.decide("Aceptado")
        assert (await outcome_of(service, sale)).paid is None
        assert not fails
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        await service.clock.advance(600)
        assert (await pending_of(tracker, "first")).outcome.paid
    assert service.posted == {"first": 1}


async def test_an_expired_push_is_open_while_others_under_its_id_cannot_be_looked_at(
    service: FakeService,
) -> None:
    """The one that we know of is cancelled; the index lags that would name the one which the customer paid."""
    status = service.status
    service.status = lambda path: answer(200, []) if "client" in path else status(path)  # type: ignore[method-assign]  # it lags
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        service.decide("Cancelado")
        assert (await outcome_of(service, sale)).paid is None
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        service.add_sale(1001, clientTransactionId="first")
        service.status = status  # type: ignore[method-assign]  # it has caught up
        await service.clock.advance(700)
        assert (await pending_of(tracker, "first")).outcome.paid
    assert service.posted == {"first": 1}


@pytest.mark.parametrize("by", ["notifications", "checks"])
async def test_who_asks_more_often_does_not_hasten_the_last_query(service: FakeService, by: str) -> None:
    """Forged notifications, or a page that polls: the service is heard out all the same, and its late word counts."""
    async with tracking(service) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        wait = asyncio.ensure_future(sale.wait())
        await service.clock.advance(301)
        for _ in range(60):
            if by == "checks":
                await sale.check()
            else:
                await tracker.notify(hint(1000, "first"))
            await service.clock.advance(1.0)
        assert not wait.done()
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        service.decide("Aceptado")
        await service.clock.advance(90)
        assert (await wait).paid is True
    assert service.posted == {"first": 1}


async def test_an_expired_push_ends_without_a_status_source_too(service: FakeService) -> None:
    """Nothing more can be heard of it ten seconds after its expiry."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
        sale = await tracker.sale(push("first"), purchase="order-17")
        await service.clock.advance(305)
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        assert (await outcome_of(service, sale)).evidence is Evidence.CLOCK
        await service.clock.advance(15)
        await tracker.sale(push("second"), purchase="order-17")


async def test_an_unknown_push_is_open(service: FakeService) -> None:
    """It may exist, however much time has passed; a refused one is gone."""
    service.scripts = [refuses(22), lost_request]
    async with tracking(service, profile=payclient.DOCUMENT) as tracker:
        with pytest.raises(payclient.NotCreatedError):
            await tracker.sale(push("first"), purchase="order-17")
        sale = await tracker.sale(push("second"), purchase="order-17")
        await service.clock.advance(100_000)
        assert sale.state is payclient.State.UNKNOWN
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("third"), purchase="order-17")


async def test_twice_paid_is_allowed_and_seen(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    """The shop let a push pass beside an open form, and both were paid: each place says so, and names them."""
    async with tracking(service) as tracker:
        form = await tracker.live_form("order-17", form_of)
        with pytest.raises(payclient.PurchaseOpenError) as raised:
            await tracker.sale(push("push"), purchase="order-17")
        assert raised.value.pending.kind == "form"
        sale = await tracker.sale(push("push"), purchase="order-17", beside_open_form=True)
        with pytest.raises(payclient.PurchaseOpenError):  # not beside an open push
            await tracker.live_form("order-17", form_of)
        service.decide("Aceptado")
        assert (await outcome_of(service, sale)).paid
        assert (await tracker.purchase("order-17")).overpaid == 0
        service.pay(form.client_transaction_id, transactionId=5001, state="Aceptado")
        pending = await pending_of(tracker, form.client_transaction_id)
        with caplog.at_level("CRITICAL"):
            assert (await outcome_of(service, pending)).paid
        assert "its purchase also by push" in caplog.text
        purchase = await tracker.purchase("order-17")
        assert (purchase.paid, purchase.collected, purchase.overpaid) == (True, 2300, 1150)
        assert [(ask.client_transaction_id, ask.kind, ask.purchase) for ask in purchase.asks] == [
            (form.client_transaction_id, "form", "order-17"), ("push", "sale", "order-17"),
        ]  # fmt: skip
        feed = tracker.outcomes()
        assert [(await anext(feed)).also_paid for _ in range(3)] == [(), (), ("push",)]


async def test_a_purchase_that_nobody_asked_for(service: FakeService) -> None:
    """It is not paid, and has no asks; a key that could be taken for another one is refused."""
    async with tracking(service) as tracker:
        purchase = await tracker.purchase("order-17")
        assert (purchase.paid, purchase.collected, purchase.asks) == (False, 0, ())
        for key in ("", "order\n17", "order\u200b17", " "):
            with pytest.raises(payclient.InvalidRequestError):
                await tracker.sale(push("first"), purchase=key)
    assert not service.posted


async def test_a_form_outlives_its_process(service: FakeService, tmp_path: Path) -> None:
    """After a restart, the same links; once they are dead, no byte of them is in any file, also while it is open."""
    forms = []
    for _ in range(2):
        ledger = await payclient.open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
        async with tracking(service, ledger) as tracker:
            forms.append(await tracker.live_form("order-17", form_of))
            assert b"pay.example/c" in _bytes(tmp_path)
            if len(forms) == 2:
                await service.clock.advance(599)
                await ledger.get("what was queued before is written")
                assert b"pay.example/c" in _bytes(tmp_path)
                await service.clock.advance(2)
                await _wiped(ledger, tmp_path)
        await ledger.aclose()
    assert forms[0].client_transaction_id == forms[1].client_transaction_id
    assert dict(forms[0].result.links) == dict(forms[1].result.links)
    assert forms[0].card.expires_at == forms[1].card.expires_at
    assert forms[0].wallet.url == forms[1].wallet.url
    assert len(service.prepared) == 1


async def test_kept_links_are_a_choice(service: FakeService) -> None:
    """Without them the process that prepared a form hands it out, and another one says until when it is open."""
    ledger = SharedLedger()
    async with (
        tracking(service, ledger, keep_links=False) as one,
        tracking(service, SharedLedger(ledger)) as other,
    ):
        form = await one.live_form("order-17", form_of)
        assert await one.live_form("order-17", form_of) is form
        with pytest.raises(payclient.PurchaseOpenError) as raised:
            await other.live_form("order-17", form_of)
        assert raised.value.until == pytest.approx(service.clock.time() + 1230)
        assert await ledger.links("order-17", 0.0) == {}


async def test_a_ledger_that_cannot_keep_links_costs_no_form(service: FakeService) -> None:
    """They are of use to other processes only."""

    class Forgetful(MemoryLedger):
        async def keep_links(self, record: Record, links: str, until: float) -> None:
            raise payclient.LedgerUnavailableError("the disk is full")

    async with tracking(service, Forgetful()) as tracker:
        form = await tracker.live_form("order-17", form_of)
        assert await tracker.live_form("order-17", form_of) is form


async def _wiped(ledger: Ledger, directory: Path) -> None:
    """Until no byte of the links is in any file, each time after the ledger's thread has done what was asked of it."""
    async with asyncio.timeout(60):
        while b"pay.example" in _bytes(directory):
            await ledger.get("nobody")


def _bytes(directory: Path) -> bytes:
    return b"".join(each.read_bytes() for each in directory.iterdir())


@pytest.mark.parametrize(("second", "purchase"), [("second", "order-17"), ("order-17", None)])
async def test_a_form_with_dead_links_holds_its_purchase_until_its_last_query(
    service: FakeService, second: str, purchase: str | None
) -> None:
    """It has expired, and may have been paid at the last moment: another ask waits for the query that tells.

    Also one that names no purchase, and whose client transaction id is the purchase's name.
    """
    async with tracking(service) as tracker:
        await tracker.prepare(form_of("first"), purchase="order-17")
        await service.clock.advance(1250)
        assert (await pending_of(tracker, "first")).state is payclient.State.EXPIRED
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push(second), purchase=purchase)
        await service.clock.advance(200)
        await tracker.sale(push(second), purchase=purchase)


async def test_a_form_holds_its_purchase_until_nothing_of_it_can_be_confirmed(service: FakeService) -> None:
    """Paid at the last moment, it may still be confirmed, though the service knew of nothing when it was last asked."""
    profile = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)
    async with tracking(service, profile=profile) as tracker:
        await tracker.prepare(form_of("first"), purchase="order-17")
        await service.clock.advance(1450)
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        await service.clock.advance(100)
        await tracker.sale(push("second"), purchase="order-17")


async def test_a_form_found_paid_holds_its_purchase_until_its_confirmation_is_answered(
    service: FakeService,
) -> None:
    """Paid at the last moment and found so by its last query; the answer to its confirmation is lost."""

    def silent() -> HttpResponse:
        service.confirmed.add(5001)
        raise ConnectionResetError

    profile = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)
    service.confirm_scripts = [silent] * 1000
    async with tracking(service, profile=profile) as tracker:
        await tracker.prepare(form_of("first"), purchase="order-17")
        await service.clock.advance(1195)
        service.pay("first")
        await service.clock.advance(345)  # its links are dead
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.sale(push("second"), purchase="order-17")
        await service.clock.advance(3600)  # it would have been reversed by now
        assert (await pending_of(tracker, "first")).outcome.paid
    assert not service.posted


async def test_a_new_attempt_is_of_the_same_purchase(service: FakeService) -> None:
    """Whoever charges a refused id again need not say what it was for."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(push("first"), purchase="order-17")
        assert (await tracker.sale(push("first"))).outcome.purchase == "order-17"
