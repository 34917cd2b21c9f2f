"""Every request counts against `queries_per_minute`, and no backlog of one kind holds up what cannot wait."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from contextlib import suppress

import attrs
import pytest

import payclient
from crowd import PROFILE as CROWD
from crowd import Service, hint, in_virtual_time, now, push, pushed, tracking, waited
from fake_ledgers import SharedLedger
from fake_service import FakeService, answer, form, refusal, sale
from payclient.ledger.memory import MemoryLedger
from payclient.wire import HttpResponse

RATE = 30.0
#: Seconds from one query to the next.
GAP = 60.0 / RATE
PROFILE = attrs.evolve(CROWD, queries_per_minute=RATE)


def assert_rate_kept(times: list[float], rate: float = RATE) -> None:
    """No minute has more requests than the rate says, but for the one at its edge."""
    for begin in times:
        assert sum(begin <= each < begin + 60.0 for each in times) <= rate + 1


async def cancelled(tracker: payclient.Tracker, service: Service, count: int) -> list[payclient.PendingSale]:
    """So many sales that the customer declined, and of which no notification came."""
    pendings = await asyncio.gather(*(tracker.sale(push(f"old-{each}")) for each in range(count)))
    for pending in pendings:
        service.truth[pending.client_transaction_id] = (0.0, "Cancelado")
    await waited(pendings)
    return list(pendings)


async def notified_in_time(
    tracker: payclient.Tracker, service: Service, pending: payclient.PendingSale, queries: float = 2
) -> None:
    """Its customer approves, and the notification of that waits for no more than so many queries."""
    asked = now()
    service.truth[pending.client_transaction_id] = (asked, "Aceptado")
    await tracker.notify(hint(pending))
    assert (await pending.wait()).paid is True
    assert now() - asked <= queries * GAP + 0.5


@in_virtual_time
async def test_a_backlog_of_late_notifications_delays_a_new_one_by_one_query() -> None:
    """500 decided sales are notified in one second: the rate is kept, and each is asked for once."""
    count, service, ledger = 500, Service(), MemoryLedger()
    async with tracking(service, ledger=ledger) as tracker:
        old = await cancelled(tracker, service, count)
    async with tracking(service, ledger=ledger, profile=PROFILE) as tracker:
        new = await tracker.sale(push("new"))
        begin = now()
        service.queries.clear()
        service.queried_at.clear()
        for pending in old:
            assert await tracker.notify(hint(pending)) is payclient.Receipt.LATE
        await asyncio.sleep(20.0)
        await notified_in_time(tracker, service, new)
        await asyncio.sleep(begin + (count + 20) * GAP - now())
        assert_rate_kept(service.queried_at)
        names = [name for _, name in service.asked if name.startswith("old")]
        assert sorted(set(names)) == sorted(names)
        assert len(names) == count


@in_virtual_time
async def test_a_crowd_that_checks_keeps_the_rate() -> None:
    """200 ask by hand at once: each call ends within the total time-out, and a notified sale waits for two queries."""
    service = Service(undecided=True)
    async with tracking(service, profile=PROFILE) as tracker:
        pendings = await pushed(tracker, 200)
        began = now()
        checks = asyncio.gather(*(pending.check() for pending in pendings))
        await asyncio.sleep(5.0)
        await notified_in_time(tracker, service, pendings[150])
        await checks
        assert now() - began <= 31.0
        assert_rate_kept(service.queried_at)


@in_virtual_time
async def test_a_check_within_the_rate_is_one_query_now() -> None:
    """Where nobody waits it is made at once, and two that ask at once share it."""
    service = Service(undecided=True)
    async with tracking(service, profile=PROFILE, schedule=payclient.Fixed(100.0)) as tracker:
        pending = await tracker.sale(push("order-1"))
        service.truth["order-1"] = (0.0, "Aceptado")
        first, second = await asyncio.gather(pending.check(), pending.check())
        assert first.paid is second.paid is True
        assert now() < 1.0
    assert len(service.queried_at) == 1


@in_virtual_time
async def test_a_rate_slower_than_the_total_time_out_decides_a_declined_sale() -> None:
    """Its second query waits for its turn for longer than the total time-out."""
    service = Service()
    async with tracking(service, profile=attrs.evolve(CROWD, queries_per_minute=1)) as tracker:
        pending = await tracker.sale(push("declined"))
        service.truth["declined"] = (now() + 10.0, "Cancelado")
        assert (await pending.wait()).paid is False
        assert_rate_kept(service.queried_at, rate=1)


async def test_a_slowdown_longer_than_the_total_time_out_costs_no_second_query() -> None:
    """The first answer after many 429s ends the slowdown, and the second query waited for less than that."""
    service, timeouts = FakeService(), payclient.Timeouts(total=3, connect=3)
    service.instead = lambda path: refusal(5, status=429)
    async with (
        payclient.PaySession(
            "https://pay.example", "token", profile=CROWD, transport=service, timeouts=timeouts
        ) as session,
        payclient.Tracker(session, MemoryLedger(), clock=service.clock) as tracker,
    ):
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        await service.clock.advance(870)
        service.instead = lambda path: None
        await service.clock.advance(60)  # one query in the background, 600 s after the expiry
        assert pending.outcome.paid is False


@in_virtual_time
async def test_a_first_look_after_a_restart_keeps_the_rate() -> None:
    service, ledger = Service(undecided=True), MemoryLedger()
    async with tracking(service, ledger=ledger, schedule=payclient.Fixed(1000.0)) as tracker:
        await pushed(tracker, 200)
        await asyncio.sleep(305.0)
    service.queried_at.clear()
    async with tracking(service, ledger=ledger, profile=PROFILE) as tracker:
        await asyncio.sleep(200.0)
    assert_rate_kept(service.queried_at)
    assert len(service.queried_at) >= 90


@pytest.mark.parametrize("trouble", [503, 401, None])
@in_virtual_time
async def test_a_query_that_fails_is_one_request(trouble: int | None) -> None:
    """A service that fails at every other query, or resets it, sees no more requests than the rate says."""

    async def fails() -> HttpResponse | None:
        if len(service.queried_at) % 2:
            return None
        if trouble is None:
            raise ConnectionResetError
        return HttpResponse(trouble, {}, b'{"message": "no"}')

    async def token() -> str:
        return "token"

    service = Service(fails, undecided=True)
    async with tracking(service, token=token, profile=PROFILE) as tracker:
        await pushed(tracker, 60)
        await asyncio.sleep(120.0)
        assert_rate_kept(service.queried_at)
        assert len(service.queried_at) >= 50


# --- Confirmations


class Forms(Service):
    """Prepares forms, which are paid at once under their number, and confirms them."""

    def __init__(self) -> None:
        super().__init__(undecided=True)
        self.forms: dict[str, dict[str, object]] = {}
        #: Form -> when it was first confirmed.
        self.confirmed_at: dict[str, float] = {}

    def prepare(self, body: dict[str, object]) -> HttpResponse:
        super().prepare(body)
        name, number = str(body["clientTransactionId"]), 10**6 + len(self.forms)
        self.pay(name, number, state="Aceptado")
        self.forms[name] = self.sales[number]
        return answer(200, {"paymentId": name, "payWithCard": f"https://pay.example/{name}"})

    def confirm(self, body: dict[str, object]) -> HttpResponse:
        self.queried_at.append(now())
        self.confirmed_at.setdefault(str(body["clientTxId"]), now())
        return super().confirm(body)

    def report(self, identifier: str) -> dict[str, object]:
        form = self.forms.get(identifier)
        return super().report(identifier) if form is None else form | {"state": "Pendiente"}


FORMS = attrs.evolve(payclient.PAYPHONE, queries_per_minute=RATE, status=CROWD.status)


async def prepared(tracker: payclient.Tracker, service: Forms, count: int) -> list[str]:
    """So many forms; what the browsers bring back of them."""
    for number in range(count):
        await tracker.prepare(form(f"form-{number}"))
    return [f"?id={each['transactionId']}&clientTransactionId={name}" for name, each in service.forms.items()]


@in_virtual_time
async def test_confirmations_keep_the_rate_with_the_queries() -> None:
    """Five forms come back in the midst of sixty open sales: each is confirmed soon, and the rate is kept."""
    service = Forms()
    async with tracking(service, profile=FORMS) as tracker:
        backs = await prepared(tracker, service, 5)
        await pushed(tracker, 60)
        await asyncio.sleep(60.0)
        returned = now()
        outcomes = await asyncio.gather(*(tracker.returned(back) for back in backs))
        assert {outcome.paid for outcome in outcomes} == {True}
        assert now() - returned <= 15.0 + 2 * GAP
        await asyncio.sleep(120.0)
    assert_rate_kept(service.queried_at, RATE + 1)


@in_virtual_time
async def test_no_backlog_makes_a_confirmation_late() -> None:
    """Late notifications, checks and other forms wait as long as they do: a paid form is confirmed in its window."""
    service = Forms()
    async with tracking(service, profile=FORMS) as tracker:
        backs = await prepared(tracker, service, 100)
        for pending in await cancelled(tracker, service, 100):
            await tracker.notify(hint(pending))
        returned = now()
        new = await tracker.sale(push("new"))
        async with asyncio.TaskGroup() as group:
            for back in backs:
                group.create_task(tracker.returned(back))
            await asyncio.sleep(20.0)
            await notified_in_time(tracker, service, new, queries=3)
        assert len(service.confirmed_at) == 100
        assert max(service.confirmed_at.values()) - returned <= 60.0


@pytest.mark.parametrize("kind", [MemoryLedger, SharedLedger])
@in_virtual_time
async def test_forms_that_come_back_faster_than_the_rate_starve_no_sale(kind: type[MemoryLedger]) -> None:
    """Each was confirmed before its turn and put off the next one: no sale was queried until they ended, and later."""
    service = Forms()
    async with tracking(service, ledger=kind(), profile=FORMS) as tracker, asyncio.TaskGroup() as group:
        pending = await tracker.sale(push("push"))
        service.truth["push"] = (now() + 60.0, "Aceptado")
        for number in range(200):
            await tracker.prepare(form(name := f"form-{number}"))
            back = {"id": str(service.forms[name]["transactionId"]), "clientTransactionId": name}
            group.create_task(tracker.returned(back))
            await asyncio.sleep(0.75 * GAP)
        assert pending.state is payclient.State.ACCEPTED


async def left(tracker: payclient.Tracker, count: int) -> None:
    """So many carts, ten a minute, whose forms nobody pays."""
    for number in range(count):
        await tracker.live_form(f"cart-{number}", form)
        await asyncio.sleep(6.0)


@in_virtual_time
async def test_forms_that_were_left_hold_up_no_end_of_a_push() -> None:
    """Each has as many last queries as a push, and a rate for three forms a minute: a wait lasted longer every hour."""
    service = Forms()
    async with tracking(service, profile=FORMS) as tracker:
        await left(tracker, 400)
        pending = await tracker.sale(push("ignored"))
        service.truth["ignored"] = (now() + 300.0, "Cancelado")
        assert (await pending.wait(timeout=360.0)).paid is False


@in_virtual_time
async def test_a_cart_that_was_left_can_be_paid_again() -> None:
    """Its last queries were hours behind: a customer who comes back has it queried now, and one query is the last."""
    service = Forms()
    async with tracking(service, profile=FORMS) as tracker:
        await left(tracker, 400)
        first = (await tracker.purchase("cart-120")).asks[0].client_transaction_id
        with suppress(payclient.PurchaseOpenError):
            await tracker.live_form("cart-120", form)
        await asyncio.sleep(30.0)
        assert (await tracker.live_form("cart-120", form)).client_transaction_id != first


@in_virtual_time
async def test_a_form_whose_overdue_query_fails_is_queried_once_more() -> None:
    """A 503 to the one that was enough ended the wait, and the paid form was found twenty minutes later."""
    service, ledger, profile = Forms(), MemoryLedger(), attrs.evolve(FORMS, confirm=None)
    async with tracking(service, ledger=ledger, profile=profile) as tracker:
        await tracker.prepare(form("form-1"))
    await asyncio.sleep(7200.0)
    answers = [HttpResponse(503, {}, b""), answer(200, service.forms["form-1"])]

    async def trouble() -> HttpResponse | None:
        return answers.pop(0)

    service.trouble = trouble
    async with tracking(service, ledger=ledger, profile=profile) as tracker:
        found = await tracker.find("form-1")
        assert found is not None
        assert (await found.wait()).paid is True


@in_virtual_time
async def test_forms_that_come_back_a_little_below_the_rate_are_within_it() -> None:
    """A confirmation before its turn puts off the next turn by a whole gap, though the one before it is not over."""
    service = Forms()

    async def comes_back(name: str) -> None:
        await tracker.prepare(form(name))
        await asyncio.sleep(60.0)
        back = {"id": str(service.forms[name]["transactionId"]), "clientTransactionId": name}
        await tracker.returned(back)

    async with tracking(service, profile=FORMS) as tracker, asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(comes_back(f"form-{number}"))
            await asyncio.sleep(1.2 * GAP)
    busiest = max(
        bisect_left(service.queried_at, each + 60.0) - n for n, each in enumerate(service.queried_at)
    )
    assert busiest <= 1.1 * RATE
