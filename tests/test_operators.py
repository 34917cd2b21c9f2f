"""What a person sees and decides through a tracker: all processes' undecided asks, their histories, and decisions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import payclient
from fake_ledgers import FailingLedger
from fake_service import (
    FakeService,
    Gate,
    alarms,
    error_of,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    refusal,
    refused,
    refuses,
    sale,
    tracking,
    two_processes,
)
from payclient.events import Evidence
from payclient.ledger import Ledger
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

WHO: dict[str, Any] = {"actor": " Ana ", "reason": "seen in the portal"}


def unknowing() -> FakeService:
    """A service that loses the answer to the first sale and answers no query."""
    service = FakeService()
    service.scripts.append(lost_answer)
    service.status_scripts = [lambda: refusal(0, status=503)] * 1000
    return service


async def test_all_processes_asks() -> None:
    """Also those that another process follows; decided ones are not among them."""
    service = FakeService()
    async with two_processes(service) as (one, other):
        first = await one.sale(sale())
        await service.clock.advance(1)
        await other.sale(sale("order-18", phone="0984111333"))
        for tracker in (one, other):
            found = await tracker.unresolved()
            assert [each.client_transaction_id for each in found] == ["order-17", "order-18"]
            assert {each.state for each in found} == {"pending"}
        service.decide("Aceptado")
        await outcome_of(service, first)
        assert [each.client_transaction_id for each in await other.unresolved()] == ["order-18"]
        events = [change.event for change in await other.history("order-17")]
        assert (events[0], events[-1]) == ("Permitted", "FoundAccepted")
        assert await other.history("order-0") == []


@pytest.mark.parametrize(("as_", "paid"), [("accepted", True), ("cancelled", False), ("refused", False)])
async def test_a_decision_ends_the_waits(as_: Any, paid: bool) -> None:
    """With who decided and why in the history; only what was refused may be charged again."""
    service = unknowing()
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        waiting = asyncio.ensure_future(pending.wait())
        await service.clock.advance(3)
        outcome = await tracker.resolve("order-17", as_=as_, **WHO)
        assert (outcome.paid, outcome.evidence, outcome.state) == (paid, "operator", as_)
        assert (await waiting).paid is paid
        assert await tracker.unresolved() == []
        last = (await tracker.history("order-17"))[-1]
        assert (last.evidence, last.detail) == (
            "operator",
            '{"actor": "Ana", "reason": "seen in the portal"}',
        )
        service.status_scripts = []
        service.sales.clear()
        await tracker.sale(sale())
        assert service.posted["order-17"] == (2 if as_ == "refused" else 1)


async def test_what_was_accepted_by_hand_is_tied_to_its_transaction() -> None:
    """By its own id, though a forged notification named another one: then it can be given back, and seen to be."""
    service = unknowing()
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await tracker.notify(hint(5))
        await tracker.resolve("order-17", as_="accepted", **WHO)
        service.status_scripts = []
        service.decide("Aceptado")
        await service.clock.advance(2)
        assert (await pending.check()).transaction_id == 1000
        service.decide("Cancelado")
        await service.clock.advance(2)
        assert (await pending.check()).state is payclient.State.REVERSED


async def test_another_process_hears_of_it() -> None:
    """Also one that is started later."""
    service = unknowing()
    async with two_processes(service) as (one, other):
        pending = await one.sale(sale())
        await other.resolve("order-17", as_="accepted", **WHO)
        assert (await outcome_of(service, pending)).paid is True
    async with tracking(service, service.ledger) as later:
        found = await later.find("order-17")
        assert found is not None
        assert (found.state, found.outcome.paid) == ("accepted", True)


async def test_the_service_may_correct_what_was_accepted_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """It says that nobody paid, or that somebody gave it back: then it is not paid, and a person looks."""
    service = unknowing()
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(3)
        await tracker.resolve("order-17", as_="accepted", **WHO)
        service.status_scripts = []
        service.decide("Cancelado")
        outcome = await pending.check()
        assert (outcome.state, outcome.paid) == ("reversed", False)
        assert alarms(caplog) == ["order-17: accepted, and found given back"]


@pytest.mark.parametrize("as_", ["accepted", "refused"])
async def test_what_was_plainly_refused_is_not_decided_by_hand(as_: Any) -> None:
    """A mistyped id would make it paid for good: no query finds it. Where it was notified a person decides."""
    async with refused(FakeService(), refuses(800), profile=payclient.DOCUMENT) as tracker:
        await error_of(payclient.TransitionError, tracker.resolve("order-17", as_=as_, **WHO), "is refused")
        await tracker.notify(hint(7))
        assert (await tracker.resolve("order-17", as_=as_, **WHO)).state == as_


async def test_what_was_refused_by_proof_is_decided_by_hand() -> None:
    """The proof may be wrong: the service lists late."""
    service = FakeService()
    async with tracking(service) as tracker:
        service.scripts = [lost_request]
        assert (await outcome_of(service, await tracker.sale(sale()))).evidence is Evidence.ABSENT
        assert (await tracker.resolve("order-17", as_="accepted", **WHO)).paid is True


async def test_what_is_not_decided_by_hand() -> None:
    """What the service is still asked about, what is final, and what there is not; nothing is changed."""
    service = FakeService()
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        with pytest.raises(payclient.TransitionError, match="order-17 is pending: only what is unknown"):
            await tracker.resolve("order-17", as_="refused", **WHO)
        service.decide("Aceptado")
        await outcome_of(service, pending)
        with pytest.raises(payclient.TransitionError, match="is accepted"):
            await tracker.resolve("order-17", as_="cancelled", **WHO)
        with pytest.raises(payclient.UsageError, match="no such ask"):
            await tracker.resolve("order-0", as_="cancelled", **WHO)
        assert pending.outcome.paid is True
    await error_of(payclient.TrackerClosedError, tracker.resolve("order-17", as_="cancelled", **WHO))


async def test_an_id_that_no_ledger_can_have(ledger: Ledger) -> None:
    """It is not there, as any other that is not: the ledger is sound."""
    async with tracking(FakeService(), ledger) as tracker:
        with pytest.raises(payclient.UsageError, match="no such ask"):
            await tracker.resolve("order-\ud800", as_="cancelled", **WHO)


@pytest.mark.parametrize("change", [{"as_": "pending"}, {"actor": " "}, {"reason": ""}])
async def test_what_may_not_be_said(change: dict[str, Any]) -> None:
    async with tracking(unknowing()) as tracker:
        pending = await tracker.sale(sale())
        with pytest.raises(payclient.UsageError, match="nothing was changed"):
            await tracker.resolve("order-17", **{"as_": "accepted", **WHO, **change})
        assert pending.state == "unknown"


async def test_a_ledger_that_fails() -> None:
    """Nothing is decided until it is written."""
    full = False
    ledger = FailingLedger(lambda name: full and name == "apply")
    service = unknowing()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        full = True
        await error_of(payclient.LedgerUnavailableError, tracker.resolve("order-17", as_="accepted", **WHO))
        assert pending.state == "unknown"
        full = False
        assert (await tracker.resolve("order-17", as_="accepted", **WHO)).paid is True


async def test_an_old_query_says_nothing_of_an_attempt_after_it(caplog: pytest.LogCaptureFixture) -> None:
    """It was in flight as a person called the sale refused: the payment that it finds is that of the newer attempt."""
    service, gate = FakeService(), Gate()
    service.scripts = [lost_request]
    async with tracking(service, transport=gate.before(service, "order-17")) as tracker:
        querying = asyncio.ensure_future((await tracker.sale(sale())).check())
        await gate.there.wait()
        await tracker.resolve("order-17", as_="refused", **WHO)
        newer = await tracker.sale(sale())
        service.decide("Aceptado")
        gate.go.set()
        await querying
        assert (await outcome_of(service, newer)).paid is True
        events = [change.event for change in await tracker.history("order-17")]
        assert events == ["Permitted", "Lost", "DecidedRefused", "Permitted", "Created", "FoundAccepted"]
    assert alarms(caplog) == []


async def test_a_late_payment_of_an_older_attempt_leaves_the_newer_one_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A query by what was notified is in flight as a person calls the older one refused: what it finds is paid."""
    service, gate = FakeService(), Gate()
    service.first_id, service.scripts = 2000, [lost_request]

    async def hold_first(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.path.endswith("/1000") and not gate.there.is_set():
            await gate()
            service.add_sale(1000)
        return await service(request, before_send)

    async with tracking(service, transport=hold_first) as tracker:
        await tracker.sale(sale())
        await tracker.notify(hint(1000))
        await gate.there.wait()
        await tracker.resolve("order-17", as_="refused", **WHO)
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await service.clock.advance(5)
        waiting = asyncio.ensure_future((await sending).wait())
        await asyncio.sleep(0)
        gate.go.set()
        await service.clock.advance(5)
        service.decide("Aceptado", 2000)
        await service.clock.advance(60)
        assert waiting.done()
        assert (await waiting).transaction_id == 2000
    assert alarms(caplog) == ["order-17: refused, and yet accepted"]
