"""What is written of a send that went wrong, and who may send: the promises that no single fault may bend."""

from __future__ import annotations

import asyncio
import json

import pytest

import payclient
from fake_service import (
    PROFILE,
    FakeService,
    Script,
    events_of,
    hint,
    lost_answer,
    lost_request,
    no_connection,
    outcome_of,
    pending_of,
    refuses,
    sale,
    seen_dead,
    tracking,
)
from payclient.events import Evidence
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

State = payclient.State
pytestmark = pytest.mark.usefixtures("delays")


@pytest.fixture
def service() -> FakeService:
    return FakeService()


async def broken_after(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
    """The charge is executed, and then something of our own breaks."""
    await before_send()
    service.create(request)
    return None  # type: ignore[return-value]  # a fault of the transport's


async def broken_before(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
    """Something of our own breaks before the permit."""
    return None  # type: ignore[return-value]  # as above


@pytest.mark.parametrize("script", [lost_answer, broken_after], ids=["the network", "our own"])
async def test_a_fault_after_the_permit_proves_nothing(service: FakeService, script: Script) -> None:
    """Whatever breaks once the bytes may have left: unknown, found by the query, and never sent again."""
    service.scripts = [script]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.outcome.paid, pending.transaction_id) == (State.UNKNOWN, None, None)
        assert (await tracker.sale(sale())).state is State.UNKNOWN
        service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    assert service.posted == {"order-17": 1}


async def test_a_fault_of_ours_before_the_permit_leaves_nothing(service: FakeService) -> None:
    """It is raised, and the ledger has no row."""
    service.scripts = [broken_before]
    async with tracking(service) as tracker:
        with pytest.raises(AttributeError):
            await tracker.sale(sale())
        assert await tracker.find("order-17") is None
        assert (await tracker.sale(sale())).state is State.PENDING


@pytest.mark.parametrize("sent", [True, False])
def test_a_send_that_is_cancelled_with_its_loop_is_unknown(service: FakeService, sent: bool) -> None:
    """A program that ends without closing its tracker cancels it: what may have left is not called unsent."""
    ledger = asyncio.run(payclient.open_ledger("memory:"))

    async def main() -> None:
        begun = asyncio.Event()

        async def hanging(
            service: FakeService, request: HttpRequest, before_send: BeforeSend
        ) -> HttpResponse:
            if sent:
                await before_send()
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        service.scripts = [hanging]
        session = payclient.PaySession("https://pay.example", "token", profile=PROFILE, transport=service)
        tracker = await payclient.Tracker(session, ledger, clock=service.clock).__aenter__()
        task = asyncio.create_task(tracker.sale(sale()))
        await begun.wait()
        del task

    asyncio.run(main())
    record = asyncio.run(ledger.get("order-17"))
    if sent:
        assert record is not None
        assert (record.state, record.evidence) == (State.UNKNOWN, Evidence.NO_ANSWER)
        assert record.expires_at is not None
    else:
        assert record is None


async def race(
    service: FakeService, one: payclient.SaleRequest, other: payclient.SaleRequest
) -> list[payclient.PendingSale | BaseException]:
    """Two trackers over one ledger send one id; both have looked before either was permitted."""
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as first, tracking(service, ledger) as second:
        return list(await asyncio.gather(first.sale(one), second.sale(other), return_exceptions=True))


async def test_who_is_denied_the_permit_gets_the_sale_of_the_same_content(service: FakeService) -> None:
    """One POST, and both have its sale."""
    both = await race(service, sale(), sale())
    assert [isinstance(each, payclient.PendingSale) for each in both] == [True, True]
    assert service.posted == {"order-17": 1}


async def test_who_is_denied_the_permit_with_other_content_is_told(service: FakeService) -> None:
    """The other's sale is not taken for ours: another amount under this id was charged."""
    first, second = await race(service, sale(), sale(tax=151))
    assert isinstance(first, payclient.PendingSale)
    assert isinstance(second, payclient.DifferentRequestError)
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("restarted", [False, True])
async def test_nothing_unknown_is_sent_again(service: FakeService, restarted: bool) -> None:
    """No POST is even begun: neither by the tracker that lost the answer nor by the next one."""
    service.scripts = [lost_answer]
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale())).state is State.UNKNOWN
        if not restarted:
            assert (await tracker.sale(sale())).state is State.UNKNOWN
            with pytest.raises(payclient.DifferentRequestError):
                await tracker.sale(sale(tax=151))
    if restarted:
        async with tracking(service, ledger) as tracker:
            pending = await tracker.sale(sale())
            assert (pending.state, pending.attempt) == (State.UNKNOWN, 1)
    assert service.begun == 1


async def test_what_was_presumed_expired_is_not_sent_again(service: FakeService) -> None:
    """EXPIRED is our clock's word only."""
    async with tracking(service) as tracker:
        await tracker.sale(sale())
        await service.clock.advance(3000)
        assert (await tracker.sale(sale())).state is State.EXPIRED
    assert service.begun == 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("word", ["Aceptado", "Cancelado", "Pendiente"])
async def test_a_report_of_another_transaction_decides_nothing(
    service: FakeService, known: bool, word: str
) -> None:
    """Asked for ours, the service answers another's with our client transaction id and amount: a conflict."""
    ledger = await payclient.open_ledger("memory:")
    service.scripts = [] if known else [lost_request]
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        if not known:
            await tracker.notify(hint())
        report = {
            "transactionId": 77, "clientTransactionId": "order-17", "amount": 1150, "currency": "USD", "state": word,
        }  # fmt: skip
        empty = service.status
        service.status = lambda path: (  # type: ignore[method-assign]  # by id another's
            HttpResponse(200, {}, json.dumps(report).encode())
            if path == "/api/Sale/1000"
            else empty(path.replace("order-17", "none"))
        )
        await service.clock.advance(500)
        assert pending.transaction_id == (1000 if known else None)
        assert pending.outcome.paid is None
    changes = [change for change in await ledger.history("order-17") if change.event == "Conflicted"]
    assert any("77" in (change.detail or "") for change in changes)


@pytest.mark.parametrize(
    ("field", "value"), [("clientTransactionId", "order-18"), ("amount", 1151), ("currency", "EUR")]
)
async def test_a_report_of_anothers_sale_decides_nothing(
    service: FakeService, field: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them alone is a conflict, which is written once and not at every query."""
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.sales[1000] |= {"state": "Aceptado", field: value}
        assert (await outcome_of(service, pending)).paid is None
    assert (await events_of(ledger)).count("Conflicted") == 1
    assert field != "amount" or "amount 1151" in caplog.text


async def test_the_end_of_each_send_is_written_as_what_it_was(service: FakeService) -> None:
    """Created, refused with its code and text, not sent, lost with the id that was seen."""

    async def half(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        return HttpResponse(500, {}, json.dumps({"transactionId": 55}).encode())

    ledger = await payclient.open_ledger("memory:")
    service.scripts = [
        refuses(800), seen_dead, half, FakeService.take, no_connection, no_connection, no_connection,
    ]  # fmt: skip
    async with tracking(service, ledger) as tracker:
        began = service.clock.time()
        with pytest.raises(payclient.ValidationFailedError):
            await tracker.sale(sale("refused"))
        with pytest.raises(payclient.NotSentError):
            await tracker.sale(sale("dead"))
        await tracker.sale(sale("half"))
        await tracker.sale(sale("created"))
        with pytest.raises(payclient.NotSentError):
            await tracker.sale(sale("never"))
        assert await tracker.find("never") is None
        assert (await pending_of(tracker, "dead")).refusal == (Evidence.NOT_SENT, None)
    written = {key: await ledger.get(key) for key in ("refused", "dead", "half", "created", "never")}
    assert written["never"] is None
    refused, dead_, half_, created = (written[key] for key in ("refused", "dead", "half", "created"))
    assert refused is not None
    assert dead_ is not None
    assert half_ is not None
    assert created is not None
    assert (refused.state, refused.evidence) == (State.REFUSED, Evidence.ANSWER)
    assert (refused.error_type, refused.error_code, refused.messages) == (
        "ValidationFailedError", 800, ("general",),
    )  # fmt: skip
    assert (dead_.state, dead_.evidence) == (State.REFUSED, Evidence.NOT_SENT)
    assert (half_.state, half_.evidence) == (State.UNKNOWN, Evidence.NO_ANSWER)
    assert half_.expires_at == began + 30 + 300
    assert (created.state, created.transaction_id) == (State.PENDING, 1000)
    assert created.expires_at == began + 300
    assert "55" in str([change.detail for change in await ledger.history("half")])
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale("dead"))).state is State.PENDING
    assert service.posted == {"created": 1, "dead": 1}


async def test_a_customer_at_two_stores_has_two_lanes(service: FakeService) -> None:
    """One open sale for each customer at each store: by phone and country, or by nick name."""
    async with tracking(service) as tracker:
        lanes = {
            tracker.attempts.lane(request)
            for request in (
                sale("a"), sale("b", store_id="S2"), sale("c", store_id=None), sale("d", country_code="57"),
                sale("e", phone="0984111223"), sale("f", by_nick_name=True, nick_name="ana"),
                sale("g", by_nick_name=True, nick_name="eva"),
            )
        }  # fmt: skip
        assert len(lanes) == 7
        assert tracker.attempts.lane(sale("h", tax=1)) == tracker.attempts.lane(sale("a"))
        nick = sale("i", by_nick_name=True, nick_name="ana", phone="0984111229")
        assert nick.nick_name == "ana"
        assert tracker.attempts.lane(nick) == tracker.attempts.lane(
            sale("f", by_nick_name=True, nick_name="ana")
        )


@pytest.mark.parametrize(
    "state", [State.UNKNOWN, State.PENDING, State.EXPIRED, State.ACCEPTED, State.CANCELLED]
)
async def test_what_another_tracker_sent_is_not_sent_again(service: FakeService, state: State) -> None:
    """The ledger alone knows of it: the same sale is returned, other content is refused, and no POST is begun."""
    service.scripts = [lost_answer] if state is State.UNKNOWN else []
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as first, tracking(service, ledger) as second:
        await first.sale(sale())
        if state in (State.ACCEPTED, State.CANCELLED):
            service.decide("Aceptado" if state is State.ACCEPTED else "Cancelado")
            await service.clock.advance(60)
        if state is State.EXPIRED:
            await service.clock.advance(301)
        with pytest.raises(payclient.DifferentRequestError):
            await second.sale(sale(tax=151))
        again = await second.sale(sale())
        assert (again.state, again.attempt) == (state, 1)
    assert service.begun == 1
