"""A web framework may cancel a view whose browser or sender hangs up; what it had begun to note is not half noted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import attrs
import pytest

import payclient
from fake_ledgers import SharedLedger
from fake_service import (
    FakeService,
    Gate,
    error_of,
    form,
    hint,
    lost_answer,
    outcome_of,
    pending_of,
    posted,
    refuses,
    sale,
    selling,
    tracking,
)
from payclient.events import Event
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from raw_server import turns

#: A service that is not asked about a form by the form's own id.
BLIND = attrs.evolve(
    payclient.PAYPHONE,
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        state_field="transactionStatus",
        states={"Pending": "Pendiente", "Canceled": "Cancelado", "Approved": "Aceptado"},
    ),
)


class SlowLedger(MemoryLedger):
    """A ledger that commits at once and answers once `go` is set, as a database far away does."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()

    async def apply(self, record: Record, event: Event) -> Record:
        after = await super().apply(record, event)
        await self.go.wait()
        return after


async def hang_up(ledger: SlowLedger, view: Coroutine[Any, Any, object]) -> None:
    """Cancel a view while the ledger writes for it."""
    ledger.go.clear()
    viewing = asyncio.create_task(view)
    await turns(20)
    viewing.cancel()
    await asyncio.wait([viewing])
    assert viewing.cancelled()
    ledger.go.set()


async def test_a_late_notification_whose_sender_hung_up_is_worth_its_query() -> None:
    """Its sender tries again, and that one is a duplicate; the sale that was called cancelled is paid."""
    service, ledger = FakeService(), SlowLedger()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        service.decide("Aceptado")
        await hang_up(ledger, tracker.notify(hint()))
        assert await tracker.notify(hint()) is payclient.Receipt.DUPLICATE
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True


@pytest.mark.parametrize("comes", ["back", "by notification"])
async def test_a_form_is_confirmed_whose_customer_hung_up(comes: str) -> None:
    """Else the service reverses the payment."""
    service, ledger = FakeService(), SlowLedger()
    async with tracking(service, ledger, BLIND) as tracker:
        await tracker.prepare(form())
        query = service.pay("form-1")
        await hang_up(
            ledger, tracker.returned(query) if comes == "back" else tracker.notify(hint(5001, "form-1"))
        )
        await service.clock.advance(10)
        assert (await pending_of(tracker, "form-1")).outcome.paid is True
        assert service.confirms == {5001: 1}
        # The customer loads the page again.
        assert (await tracker.returned(query)).paid is True
        assert service.confirms == {5001: 1}


@pytest.mark.parametrize("during", ["its write", "its request", "the write of its notification"])
async def test_a_form_is_confirmed_though_all_tasks_were_cancelled(during: str) -> None:
    """As a program that ends does, which may go on for a while; then nothing but this process knows of the return."""
    service, ledger = FakeService(), SlowLedger()
    gate = Gate()
    transport = gate.before(service, "/Confirm") if during == "its request" else service
    async with tracking(service, ledger, BLIND, transport=transport) as tracker:
        await tracker.prepare(form())
        query = service.pay("form-1")
        if during != "its request":
            ledger.go.clear()
        is_hint = during == "the write of its notification"
        viewing = asyncio.create_task(
            tracker.notify(hint(5001, "form-1")) if is_hint else tracker.returned(query)
        )
        await turns(20)
        assert gate.there.is_set() is (during == "its request")
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        ledger.go.set()
        gate.go.set()
        await asyncio.wait([viewing])
        await service.clock.advance(10)
        assert service.confirms == {5001: 1}
        assert (await pending_of(tracker, "form-1")).outcome.paid is True


async def test_a_late_notification_is_queried_though_all_tasks_were_cancelled() -> None:
    """It is on record by then, so that its repetition is no news. Something in front had repeated what was refused."""
    service, ledger = FakeService(), SlowLedger()
    service.scripts = [posted(1, refuses(800))]
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        service.decide("Aceptado")
        ledger.go.clear()
        notifying = asyncio.create_task(tracker.notify(hint()))
        await turns(20)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        ledger.go.set()
        await asyncio.wait([notifying])
        await service.clock.advance(10)
        assert (await pending_of(tracker)).outcome.paid is True


@pytest.mark.parametrize(
    ("ledger", "identifier", "passes"),
    [
        (MemoryLedger, "order-17", 1),
        (MemoryLedger, "form-1", 3),
        (MemoryLedger, "form-1", 1),
        (SharedLedger, "order-17", 1),
    ],
    ids=["a query", "a confirmation", "the write of a return", "a reservation of the rate"],
)
async def test_a_request_that_was_cancelled_before_it_began_is_made_later(
    ledger: type[MemoryLedger], identifier: str, passes: int
) -> None:
    """Such are those that are started in the very moment in which a program cancels all: a wait would never end."""
    service = FakeService()
    async with tracking(service, ledger(), BLIND) as tracker:
        pending = await tracker.sale(sale())
        await tracker.prepare(form())
        query = service.pay("form-1")
        service.sales[1000]["transactionStatus"] = "Approved"
        call = asyncio.create_task(pending.check() if identifier == "order-17" else tracker.returned(query))
        await turns(passes)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert "CORO_CREATED" in {inspect.getcoroutinestate(each.get_coro()) for each in tasks}  # type: ignore[arg-type]
        for each in tasks:
            each.cancel()
        await asyncio.wait([call])
        assert (await outcome_of(service, await pending_of(tracker, identifier))).paid is True
        assert service.queries == ["/api/Sale/1000"] or service.confirms == {5001: 1}


async def test_a_decision_whose_decider_hung_up_ends_the_waits() -> None:
    """It stands in the ledger: who waits is told, and nobody is shown that it is unknown."""
    service, ledger = FakeService(), SlowLedger()
    async with selling(service, lost_answer, ledger=ledger, profile=BLIND) as (tracker, pending):
        waiting = asyncio.ensure_future(pending.wait())
        await service.clock.advance(3)
        await hang_up(ledger, tracker.resolve("order-17", as_="accepted", actor="Ana", reason="portal"))
        await service.clock.advance(1)
        assert (await pending_of(tracker)).outcome.paid is True
        assert (await waiting).paid is True


async def test_a_closing_tracker_says_what_becomes_of_a_hint() -> None:
    """It is on record, or it is lost; the view is not cancelled for it."""
    service, ledger = FakeService(), SlowLedger()
    async with tracking(service, ledger, drain=0.0) as tracker:
        await tracker.sale(sale())
        ledger.go.clear()
        viewing = asyncio.create_task(tracker.notify(hint()))
        await turns(20)
    with pytest.raises(payclient.TrackerClosedError, match="hint"):
        await viewing
