"""Several trackers over one PostgreSQL, each with a ledger of its own as in a process: who asks, who hears."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import asyncpg
import attrs
import pytest

import payclient
from crowd import Service, in_virtual_time, now
from cutting_proxy import PostgresProxy
from fake_ledgers import HookedSharedLedger, SharedLedger, Woken, disk_full, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Held,
    Script,
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
    outcome_of,
    pending_of,
    record_in,
    refusal,
    reset,
    sale,
    seen_dead,
    selling,
    tracking,
    unlisted,
    when,
)
from manual_clock import ManualClock
from payclient.batch import charge_all
from payclient.clock import SystemClock
from payclient.errors import LedgerUnavailableError
from payclient.events import Created, Event, Evidence
from payclient.ledger import batch
from payclient.ledger.postgres import PostgresDatabase, PostgresLedger
from payclient.lifecycle import Record, State
from payclient.notifications import Receipt
from payclient.secret import Secret
from payclient.tracking import leases
from payclient.tracking.late_writes import LateWrites
from payclient.tracking.leases import SharedRateLimit
from payclient.tracking.tracker import Tracker
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from postgres_server import PostgresServer
from test_ledger import until

#: What a batch says of each row.
Said = dict[str, State | None]


class DeafLedger(SharedLedger):
    """Hears nothing of what other processes write, as a process whose LISTEN the server dropped."""

    woken: Woken

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Call nobody; a test may."""
        self.woken = woken
        return lambda: None


class Worker:
    """A process of a shop: its tracker, its ledger, and how often it asked."""

    def __init__(self, service: FakeService, ledger: PostgresLedger) -> None:
        self.ledger = ledger
        self.service = service
        self.queries = self.posts = 0
        self.tracker: Tracker

    async def transport(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        self.queries += request.method == "GET"
        self.posts += request.method == "POST"
        return await self.service(request, before_send)

    async def find(self, identifier: str = "order-17") -> payclient.PendingSale:
        return await pending_of(self.tracker, identifier)

    async def die(self) -> None:
        """As by SIGKILL, its lease over: nothing is said to anybody."""
        await self.tracker.aclose()  # which renews the lease no more
        await self.ledger.defer(dict.fromkeys(await self.ledger.held(), 0.0))


@asynccontextmanager
async def working(
    service: FakeService,
    url: str,
    *,
    profile: payclient.ServiceProfile = PROFILE,
    poll: float = 5.0,
) -> AsyncIterator[Worker]:
    async with aclosing(await PostgresLedger.open(Secret(url), poll=poll)) as ledger:
        worker = Worker(service, ledger)
        async with tracking(service, ledger, profile, transport=worker.transport) as worker.tracker:
            yield worker


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are looked after often."""
    monkeypatch.setattr(leases, "RENEW", 0.05)


@pytest.fixture
async def pair(service: FakeService, url: str) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two processes of a shop."""
    async with working(service, url) as first, working(service, url) as second:
        yield first, second


async def settled(limit: SharedRateLimit, now: float, *, wanted: bool = False) -> None:
    """Let a limit do in its ledger what is to be done."""
    if (work := limit.work_in_ledger(now, wanted=wanted)) is not None:
        await work


async def soon(waiting: asyncio.Future[payclient.Outcome]) -> payclient.Outcome:
    return await asyncio.wait_for(asyncio.shield(waiting), 60)


async def begun(worker: Worker) -> None:
    """Until a wait that was just started there has read what the ledger has: what is written now is news to it."""
    for _ in range(3):
        await asyncio.sleep(0)
        await worker.ledger.get("order-17")  # one after the other, in the order in which they were asked for


async def followed_by(worker: Worker, identifier: str = "order-17") -> None:
    """Until a process follows it."""

    async def held() -> bool:
        return identifier in await worker.ledger.held()

    await until(held)


async def passing(
    service: FakeService, waiting: asyncio.Future[payclient.Outcome], worker: Worker | None = None
) -> payclient.Outcome:
    """Let time pass until a wait ends; with a worker no faster than its ledger writes."""
    for _ in range(1000):
        if waiting.done():
            break
        await service.clock.advance(2.0)
        await asyncio.sleep(0.001)
        if worker is not None:
            await worker.ledger.get("order-17")
    return await soon(waiting)


#: What a failover forgets without a synchronous standby: how the POST ended, and the permit too.
END = "SET LOCAL session_replication_role = replica; DELETE FROM payclient.changes;"
PERMIT = " ".join([END, "DELETE FROM payclient.attempts; DELETE FROM payclient.open_attempts;"])


@pytest.mark.parametrize("scripts", [[], [lost_answer]], ids=["answered", "unknown"])
@pytest.mark.parametrize(("lost", "is_alarm"), [(END, False), (PERMIT, True)], ids=["end", "permit"])
async def test_a_failover_that_forgot_the_answer(
    service: FakeService,
    url: str,
    postgres: PostgresServer,
    database: str,
    caplog: pytest.LogCaptureFixture,
    scripts: list[Script],
    lost: str,
    is_alarm: bool,
) -> None:
    """The process that has it writes it once more; with the permit it is an alarm."""
    service.scripts = scripts
    async with working(service, url) as worker:
        waiting = asyncio.ensure_future((await worker.tracker.sale(sale())).wait())
        await begun(worker)
        await postgres.execute(database, f"DO $$ BEGIN {lost} END $$")
        service.decide("Aceptado")
        assert (await passing(service, waiting, worker)).paid is (None if is_alarm else True)
        known = await worker.ledger.get("order-17")
        assert (known and known.state) == (None if is_alarm else State.ACCEPTED)
    assert sum("the ledger has lost its permit" in each for each in alarms(caplog)) == is_alarm


async def test_a_failover_that_forgot_a_form(
    service: FakeService, url: str, postgres: PostgresServer, database: str
) -> None:
    """Found paid it is confirmed once, and accepted."""
    profile = attrs.evolve(PROFILE, confirm=payclient.PAYPHONE.confirm)
    async with working(service, url, profile=profile) as worker:
        await worker.tracker.prepare(form())
        await postgres.execute(database, f"DO $$ BEGIN {END} END $$")
        service.pay("form-1", state="Aceptado")
        waiting = asyncio.ensure_future((await worker.find("form-1")).wait())
        assert (await passing(service, waiting, worker)).state is State.ACCEPTED
        assert service.confirms == {5001: 1}


@pytest.mark.parametrize("is_paid", [True, False])
async def test_a_failover_that_forgot_a_permit_which_is_granted_again(
    service: FakeService,
    url: str,
    postgres: PostgresServer,
    database: str,
    caplog: pytest.LogCaptureFixture,
    is_paid: bool,
) -> None:
    """The second charge keeps its own transaction, whatever comes of the first, and the first is an alarm."""
    async with working(service, url) as first, working(service, url) as second:
        waiting = asyncio.ensure_future((await first.tracker.sale(sale())).wait())
        await begun(first)
        await postgres.execute(database, f"DO $$ BEGIN {PERMIT} END $$")
        await service.clock.advance(2.0)
        service.scripts = [held := Held()]
        again = asyncio.ensure_future(second.tracker.sale(sale()))
        await held.there.wait()
        if is_paid:
            service.decide("Aceptado")
            await (await first.find()).check()
        held.go.set()
        pending = await again
        service.decide("Aceptado", 1001)
        outcome = await passing(service, asyncio.ensure_future(pending.wait()), second)
        assert (await passing(service, waiting, first)).transaction_id == outcome.transaction_id == 1001
    assert "the ledger has lost its permit" in "".join(alarms(caplog))


async def test_a_notification_to_one_worker_wakes_a_waiter_in_another(service: FakeService, url: str) -> None:
    """The third of three hears it, the first follows the sale and asks, the second waits, and asks nobody."""
    async with (
        working(service, url) as first,
        working(service, url) as second,
        working(service, url) as third,
    ):
        await first.tracker.sale(sale())
        waiting = asyncio.ensure_future((await second.find()).wait())
        service.decide("Aceptado")
        assert await third.tracker.notify(hint()) is Receipt.MATCHED
        outcome = await soon(waiting)
        assert (outcome.paid, outcome.notified_at) == (True, service.clock.time())
        assert (second.queries, third.queries) == (0, 0)
        assert first.queries == 1
        assert (await third.find()).state is State.ACCEPTED
        assert (await third.find()).outcome.paid is True


async def test_who_is_told_of_what_another_follows_asks_nobody(
    service: FakeService, pair: tuple[Worker, Worker]
) -> None:
    """Also where somebody waits for it here: the process that follows it hears of it and asks."""
    first, second = pair
    await first.tracker.sale(sale())
    waiting = asyncio.ensure_future((await second.find()).wait())
    await begun(second)
    assert await second.tracker.notify(hint()) is Receipt.MATCHED
    await service.clock.advance(3)
    service.decide("Aceptado")
    assert (await passing(service, waiting)).paid is True
    assert second.queries == 0


@pytest.mark.parametrize("fails", [False, True], ids=["another id", "read later"])
async def test_what_another_process_is_told_is_queried_here(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A second id after a first, forged one; and what could not be read, once the ledger is read again."""
    service.scripts, service.instead, ledger = [lost_answer], unlisted, SharedLedger()
    seldom = payclient.Fixed(1000.0)
    async with (
        tracking(service, ledger, schedule=seldom) as first,
        tracking(service, SharedLedger(ledger), schedule=seldom) as second,
    ):
        pending = await first.sale(sale())
        await first.sale(sale("other", phone="0984111223"))
        service.decide("Aceptado")
        if not fails:
            await second.notify(hint(999))
            await service.clock.advance(60)
        with monkeypatch.context() as patched:
            if fails:
                patched.setattr(ledger, "get_many", AsyncMock(side_effect=LedgerUnavailableError("gone")))
            await second.notify(hint(1000))
            await service.clock.advance(2)
        if fails:
            assert pending.state is State.UNKNOWN
            await second.notify(hint(1001, "other"))
            await service.clock.advance(2)
        assert pending.state is State.ACCEPTED


async def test_what_another_process_is_told_while_this_one_reads_is_read_too(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is written later need wake it."""
    ledger, seldom, gate = SharedLedger(), payclient.Fixed(1000.0), Gate()
    read = ledger.get_many

    async def slow(ids: Sequence[str]) -> dict[str, Record]:
        await gate()
        return await read(ids)

    async with (
        tracking(service, ledger, schedule=seldom) as first,
        tracking(service, SharedLedger(ledger), schedule=seldom) as second,
    ):
        pending = await first.sale(sale())
        await first.sale(sale("other", phone="0984111223"))
        await service.clock.advance(1)
        monkeypatch.setattr(ledger, "get_many", slow)
        service.decide("Aceptado")
        await second.notify(hint(1001, "other"))
        await gate.there.wait()
        await second.notify(hint())
        await asyncio.sleep(0)
        gate.go.set()
        await service.clock.advance(5)
        assert pending.state is State.ACCEPTED


async def test_with_nobody_to_ask_a_notification_ends_all_waits(service: FakeService, url: str) -> None:
    """Nobody knows then; and nobody waits on."""
    blind = attrs.evolve(PROFILE, status=None)
    async with working(service, url, profile=blind) as first, working(service, url, profile=blind) as second:
        await first.tracker.sale(sale())
        waiting = asyncio.ensure_future((await second.find()).wait())
        await begun(second)
        await first.tracker.notify(hint())
        assert (await soon(waiting)).paid is None


async def test_what_expired_unqueried_is_queried_a_day_later_by_who_can(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process had no status source, and is gone; the one of the next release has."""
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())
    ledger, blind = SharedLedger(), attrs.evolve(PROFILE, status=None)
    async with tracking(service, ledger, blind) as first:
        await first.sale(sale())
        service.decide("Aceptado")
        waiting = asyncio.ensure_future((await pending_of(first)).wait())
        assert (await passing(service, waiting)).state is State.EXPIRED
        await until(
            lambda: asyncio.sleep(0, ledger.holders["order-17"][1] > service.clock.monotonic() + 3600)
        )

    async def paid() -> bool:
        await service.clock.advance(60)
        return (await record_in(ledger)).state is State.ACCEPTED

    async with tracking(service, SharedLedger(ledger)):
        await service.clock.advance(86_400)
        await until(paid)


async def test_the_end_of_what_nobody_can_query_is_written_once_its_process_is_dead(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the expiry and that end, without which the purchase stays held."""
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())
    ledger, blind = HookedSharedLedger(before={"Unqueried": disk_full}), attrs.evolve(PROFILE, status=None)
    async with tracking(service, ledger, blind) as one:
        await one.sale(sale(), purchase="cart")
        for _ in range(10):
            await service.clock.advance(32)
            await asyncio.sleep(0.06)
    async with tracking(service, SharedLedger(ledger), blind) as other:
        for _ in range(20):
            await service.clock.advance(50)
            await asyncio.sleep(0.06)
        assert (await other.sale(sale("another"), purchase="cart")).state is State.PENDING


async def test_a_late_notification_of_what_expired_unqueried_is_queried_beside_who_cannot(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that sent it lives on, and would renew its lease for ever; it leaves it to the one that can query."""
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())
    ledger = SharedLedger()
    blind = tracking(service, ledger, attrs.evolve(PROFILE, status=None))
    async with blind as one, tracking(service, SharedLedger(ledger)) as other:
        await one.sale(sale())
        await service.clock.advance(320)
        await until(
            lambda: asyncio.sleep(0, ledger.holders["order-17"][1] > service.clock.monotonic() + 3600)
        )
        service.decide("Aceptado")
        await other.notify(hint())
        await service.clock.advance(5)
        assert (await record_in(ledger)).state is State.ACCEPTED


async def test_an_answer_that_its_process_cannot_query_is_left_to_who_can(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that sent it was notified, lives on, and would renew its lease for ever."""
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())
    ledger = SharedLedger()
    async with tracking(service, ledger, attrs.evolve(PROFILE, status=None)) as one:
        await one.sale(sale())
        service.decide("Aceptado")
        await one.notify(hint())
        await service.clock.advance(500)
        await until(
            lambda: asyncio.sleep(0, ledger.holders["order-17"][1] > service.clock.monotonic() + 3600)
        )
        holder, _ = ledger.holders["order-17"]
        ledger.holders["order-17"] = (holder, 0.0)  # as once those days are over
        async with tracking(service, SharedLedger(ledger)):
            await service.clock.advance(5)
            assert (await record_in(ledger)).state is State.ACCEPTED


class CountingLedger(SharedLedger):
    """Counts how often all leases of its process are compared with what it follows."""

    compared = 0

    async def held(self) -> set[str]:
        self.compared += 1
        return await super().held()

    async def renew(self, seconds: float) -> int:
        count = await super().renew(seconds)
        self.compared -= 1
        return count

    async def defer(self, seconds: Mapping[str, float]) -> None:
        await super().defer(seconds)
        self.compared -= 1


@pytest.mark.parametrize("profile", [PROFILE, attrs.evolve(PROFILE, status=None)], ids=["minutes", "days"])
async def test_what_is_put_off_costs_no_look_at_all_leases(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, profile: payclient.ServiceProfile
) -> None:
    """None is lost: a shop puts off each push that expires, and may hold 100,000."""
    monkeypatch.setattr(leases, "COMPARE_ROUNDS", 10**9)
    ledger = CountingLedger()
    async with tracking(service, ledger, profile) as tracker:
        await tracker.sale(sale())
        before = ledger.compared
        await service.clock.advance(500)
        await until(
            lambda: asyncio.sleep(0, ledger.holders["order-17"][1] > asyncio.get_running_loop().time() + 60)
        )
        await asyncio.sleep(0.1)
        assert ledger.compared == before


async def test_a_wait_that_can_query_does_not_end_by_a_process_that_cannot(service: FakeService) -> None:
    """It ends after the last query: the process that follows the sale makes none, and the one that waits makes it."""
    ledger = SharedLedger()
    blind = tracking(service, ledger, attrs.evolve(PROFILE, status=None))
    async with blind as one, tracking(service, SharedLedger(ledger)) as other:
        await one.sale(sale())
        pending = await pending_of(other)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid


async def test_a_wait_that_cannot_query_ends_by_a_process_that_cannot(service: FakeService) -> None:
    """As soon as that has written that nobody looked, and not once its lease would have ended."""
    ledger, profile = SharedLedger(), attrs.evolve(PROFILE, status=None)
    async with (
        tracking(service, ledger, profile) as one,
        tracking(service, SharedLedger(ledger), profile) as other,
    ):
        await one.sale(sale())
        pending, begun = await pending_of(other), service.clock.time()
        assert (await outcome_of(service, pending)).paid is None
        assert service.clock.time() - begun < PROFILE.sale_window + 30


async def test_an_answer_from_before_its_end_is_no_last_query_of_what_expired_unqueried(
    service: FakeService,
) -> None:
    """A process that hears nothing queried it before its customer paid; the one that follows it cannot query."""
    ledger = SharedLedger()
    blind = tracking(service, ledger, attrs.evolve(PROFILE, status=None))
    async with blind as one, tracking(service, DeafLedger(ledger)) as other:
        await one.sale(sale(), purchase="cart")
        pending = await pending_of(other)
        await pending.check()
        service.decide("Aceptado")
        service.status_scripts = [reset] * 1000
        assert (await outcome_of(service, pending)).evidence is Evidence.NO_QUERY
        await held_by(other, "cart")
    assert service.posted == {"order-17": 1}


async def test_a_list_that_lags_does_not_free_the_purchase_of_what_expired_unqueried(
    service: FakeService,
) -> None:
    """Its customer paid in the last moment, which a query shows half a minute later: it waits for the last one."""
    ledger = SharedLedger()
    blind = tracking(service, ledger, attrs.evolve(PROFILE, status=None))
    async with blind as one, tracking(service, SharedLedger(ledger)) as other:
        await one.sale(sale(), purchase="cart")
        stale = answer(200, [dict(service.sales[1000])])
        service.instead = lambda _: stale
        service.decide("Aceptado")
        await service.clock.advance(320)
        await held_by(other, "cart")
        service.instead = lambda _: None
        await service.clock.advance(150)
        await collected_by(other, "cart")
    assert service.posted == {"order-17": 1}


async def test_a_deaf_listener_loses_nobody(
    service: FakeService, url: str, postgres: PostgresServer, database: str
) -> None:
    """Where nothing is heard, whoever waits looks again, at the poll."""
    async with (
        PostgresProxy(postgres.port) as proxy,
        working(service, url) as first,
        working(service, postgres.url(database, port=proxy.port), poll=0.05) as second,
    ):
        proxy.deaf = True
        pending = await first.tracker.sale(sale())
        waiting = asyncio.ensure_future((await second.find()).wait())
        service.decide("Aceptado")
        await pending.check()
        assert (await soon(waiting)).paid is True


@in_virtual_time
async def test_what_another_follows_is_forgotten_where_nobody_waits() -> None:
    """A page of this process showed it, which hears nothing of its end: it does not count as open for weeks."""
    ledger = SharedLedger()
    deaf = DeafLedger(ledger)
    async with tracking(Service(), ledger=ledger) as one, tracking(Service(), ledger=deaf) as other:
        pending = await one.sale(sale())
        assert len([await pending_of(other), *other.open_sales()]) == 2
        await pending.wait()
        await asyncio.sleep(1200)
        assert other.open_sales() == []
        assert (await pending_of(other)).state is pending.state


@in_virtual_time
async def test_what_another_decided_is_found_though_nothing_was_heard_of_it() -> None:
    """A page of this process showed it open; what is asked for anew is what the ledger says."""
    ledger = SharedLedger()
    deaf = DeafLedger(ledger)
    async with tracking(Service(), ledger=ledger) as one, tracking(Service(), ledger=deaf) as other:
        pending = await one.sale(sale())
        assert (await pending_of(other)).state is State.PENDING
        await pending.wait()
        assert (await pending_of(other)).state is pending.state


@in_virtual_time
async def test_a_wait_for_what_another_decided_ends_though_nothing_was_heard_of_it() -> None:
    """The handle is older than the decision; the ledger is read before anything is waited for."""
    ledger = SharedLedger()
    deaf = DeafLedger(ledger)
    async with tracking(Service(), ledger=ledger) as one, tracking(Service(), ledger=deaf) as other:
        pending = await one.sale(sale())
        handle = await pending_of(other)
        await pending.wait()
        async with asyncio.timeout(1.0):
            assert (await handle.wait()).state is pending.state


async def test_what_a_person_refused_elsewhere_and_is_paid_is_an_alarm(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that finds it paid has not heard of the refusal."""
    monkeypatch.setattr(leases, "RENEW", 60.0)  # nor reads of it between two rounds of real time
    ledger = DeafLedger()
    service.scripts = [lost_answer]
    async with tracking(service, ledger) as deaf, tracking(service, SharedLedger(ledger)) as other:
        await deaf.sale(sale())
        await other.resolve("order-17", as_="refused", actor="Ana", reason="called")
        service.decide("Aceptado")
        await service.clock.advance(60)
    assert (await record_in(ledger)).state is State.ACCEPTED
    assert alarms(caplog) == ["order-17: refused, and yet accepted"]


async def test_a_correction_is_no_failure_where_its_history_cannot_be_read(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody looks for a fault of ours: the payment is on record, and in the feed."""
    monkeypatch.setattr(leases, "RENEW", 60.0)
    ledger = DeafLedger()
    service.scripts = [lost_answer]
    async with tracking(service, ledger) as deaf, tracking(service, SharedLedger(ledger)) as other:
        await deaf.sale(sale())
        await other.resolve("order-17", as_="refused", actor="Ana", reason="called")
        gone = AsyncMock(side_effect=LedgerUnavailableError("gone"))
        monkeypatch.setattr(ledger, "history", gone)
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert gone.called
    assert (await record_in(ledger)).state is State.ACCEPTED
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_what_was_sent_again_elsewhere_and_is_paid_is_found_here(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that sent it first has heard of nothing since: its own query shows it the newer attempt."""
    monkeypatch.setattr(leases, "RENEW", 600.0)  # nor has it looked after its leases
    ledger = DeafLedger()
    async with (
        selling(service, lost_request, ledger=ledger) as (deaf, _),
        tracking(service, SharedLedger(ledger)) as other,
    ):
        await other.resolve("order-17", as_="refused", actor="Ana", reason="called")
        pending = await other.sale(sale())
        service.decide("Aceptado")
        assert (await pending.check()).paid
        await service.clock.advance(60)
        assert not deaf.open_sales()
        assert (await pending_of(deaf)).outcome.paid


async def test_the_late_answer_of_a_write_is_not_put_over_what_others_wrote_since(
    service: FakeService,
) -> None:
    """A person decided a sale between the commit of its expiry here and the answer to that."""
    ours = HookedSharedLedger(after={"Expired": (gate := Gate())})
    async with tracking(service, ours) as tracker, tracking(service, SharedLedger(ours)) as other:
        pending = await tracker.sale(sale())
        waiting = asyncio.ensure_future(pending.wait())
        while not gate.there.is_set():
            await service.clock.advance(1)
        await other.resolve("order-17", as_="accepted", actor="Ana", reason="called")
        assert (await waiting).paid is True
        gate.go.set()
        await service.clock.advance(1)
        assert (pending.state, pending.outcome.paid) == (State.ACCEPTED, True)


@in_virtual_time
async def test_the_last_query_of_another_process_ends_the_wait_here() -> None:
    """As soon as that is on record: nothing is left to hope for, and it need not query itself."""
    ledger = SharedLedger()
    service = Service(undecided=True)
    async with (
        tracking(service, ledger=ledger) as one,
        tracking(service, ledger=SharedLedger(ledger)) as other,
    ):
        pending = await one.sale(sale())
        waiting = asyncio.ensure_future((await pending_of(other)).wait())
        assert (await pending.wait()).evidence is Evidence.LAST_QUERY
        async with asyncio.timeout(1.0):
            assert (await waiting).evidence is Evidence.LAST_QUERY


@in_virtual_time
async def test_a_wait_that_begins_as_its_ask_is_forgotten_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is read for it, and takes a while: nobody waits for the ask yet."""
    ledger = SharedLedger()
    deaf = DeafLedger(ledger)
    read = deaf.get

    async def read_slowly(client_transaction_id: str) -> Record | None:
        found = await read(client_transaction_id)
        await asyncio.sleep(20)
        return found

    service = Service(undecided=True)
    async with tracking(service, ledger=ledger) as one, tracking(service, ledger=deaf) as other:
        await one.sale(sale())
        pending = await pending_of(other)
        await asyncio.sleep(600)
        monkeypatch.setattr(deaf, "get", read_slowly)
        async with asyncio.timeout(3600):
            assert (await pending.wait()).paid is None


async def test_what_another_sent_and_was_not_sent_is_sent_though_nothing_was_heard_of_it(
    service: FakeService,
) -> None:
    """It was waited for here, so long that this process follows it too."""
    ledger, gate = SharedLedger(), Gate()
    async with tracking(service, ledger) as one, tracking(service, DeafLedger(ledger)) as other:
        service.scripts = [when(gate, seen_dead)]
        sending = asyncio.ensure_future(one.sale(sale()))
        await gate.there.wait()
        assert ledger.holds == 60.0  # nobody claims it while its sender may be at it
        waiting = asyncio.ensure_future((await pending_of(other)).wait())
        await service.clock.advance(3000)
        gate.go.set()
        await error_of(payclient.NotSentError, sending)
        assert (await other.sale(sale())).attempt == 2
        waiting.cancel()


@in_virtual_time
async def test_a_form_whose_end_was_never_written_is_unknown_once_nobody_can_be_sending_it() -> None:
    """This process holds it, and sends it no more: somebody cancelled all tasks, say."""
    ledger = SharedLedger()
    async with tracking(Service(), ledger=ledger) as tracker:
        now = tracker.clock.time()
        await ledger.permit(
            Record(client_transaction_id="form-1", kind="form", created_at=now, links_dead_at=now + 1300)
        )
        await asyncio.sleep(120)
        assert (await record_in(ledger, "form-1")).state is State.UNKNOWN


@in_virtual_time
async def test_what_is_being_sent_is_not_taken_for_what_a_crash_left() -> None:
    """This process holds it and follows it only once it is answered."""
    ledger, service = SharedLedger(), Service(undecided=True)

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        response = await service(request, before_send)
        await asyncio.sleep(5)
        return response

    async with tracking(service, ledger=ledger, transport=slow) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await asyncio.sleep(4)
        assert (await record_in(ledger)).state is State.SENDING
        assert (await sending).state is State.PENDING


@in_virtual_time
async def test_what_had_its_last_look_is_held_for_a_year(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification may come yet; until then no process has to claim it every day."""
    ledger = SharedLedger()
    monkeypatch.setattr(leases, "RENEW", 600.0)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        await tracker.sale(sale())
        await asyncio.sleep(7 * 86400)
        assert ledger.holders["order-17"][1] > 300 * 86400


async def test_who_is_told_that_anything_may_have_changed_reads_what_is_waited_for(
    service: FakeService,
) -> None:
    """Also what it follows itself: another process was notified."""
    ledger, seldom = SharedLedger(), payclient.Fixed(1000.0)
    polls = DeafLedger(ledger)
    async with tracking(service, polls, schedule=seldom) as one, tracking(service, ledger) as other:
        waiting = asyncio.ensure_future((await one.sale(sale())).wait())
        service.decide("Aceptado")
        await other.notify(hint())
        polls.woken(None)
        await service.clock.advance(1)
        assert waiting.done()


@in_virtual_time
async def test_whose_lease_was_taken_leaves_the_queries_to_who_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process stood still, and what it waits for has another to follow it: for half an hour it queries nothing."""
    ledger, service = SharedLedger(), Service(undecided=True)
    monkeypatch.setattr(leases, "COMPARE_ROUNDS", 10**6)
    async with tracking(service, ledger=ledger) as tracker:
        waiting = asyncio.ensure_future((await tracker.sale(sale())).wait())
        ledger.holders["order-17"] = (object(), math.inf)
        await asyncio.sleep(1)
        queries = len(service.queries)
        await asyncio.sleep(300)
        assert len(service.queries) == queries
        waiting.cancel()


@pytest.mark.parametrize("reaches", [True, False])
@in_virtual_time
async def test_who_has_no_answer_leaves_what_it_holds_to_others(
    monkeypatch: pytest.MonkeyPatch, *, reaches: bool
) -> None:
    """Its token was replaced, or its host is cut off: another process follows its sale, and who waits there is told."""
    ledger, service = SharedLedger(), Service()
    monkeypatch.setattr(leases, "RENEW", 10.0)

    async def cut_off(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "POST":
            return await service(request, before_send)
        if reaches:
            return answer(401, {"message": "no"})
        raise ConnectionResetError

    async with (
        tracking(service, ledger=ledger, transport=cut_off) as one,
        tracking(service, ledger=SharedLedger(ledger)) as other,
    ):
        await one.sale(sale())
        service.truth["order-17"] = (now() + 20, "Aceptado")
        async with asyncio.timeout(240):
            assert (await (await pending_of(other)).wait()).paid


@in_virtual_time
async def test_what_another_account_could_not_find_is_followed_by_who_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its operator reads the warning, and starts it anew with the right token: it was put off for a year."""
    ledger, service = SharedLedger(), Service()
    monkeypatch.setattr(leases, "RENEW", 10.0)

    async def another_account(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        return answer(200, []) if "client" in request.path else refusal(20, status=404)

    async with tracking(service, ledger=ledger) as one:
        await one.sale(sale())
    service.truth["order-17"] = (now() + 20, "Aceptado")
    async with tracking(service, SharedLedger(ledger), token="token-2", transport=another_account):
        await asyncio.sleep(3 * 86_400)
    async with tracking(service, SharedLedger(ledger)):
        await asyncio.sleep(120)
    assert (await record_in(ledger)).state is State.ACCEPTED


async def test_a_deaf_follower_queries_what_another_was_told(
    service: FakeService, url: str, postgres: PostgresServer, database: str
) -> None:
    """It sits behind a pooler, or listens only from now on: it looks, and need not wait for the routine query."""
    async with (
        PostgresProxy(postgres.port) as proxy,
        working(service, postgres.url(database, port=proxy.port), poll=0.05) as first,
        working(service, url) as second,
    ):
        proxy.deaf = True
        await first.tracker.sale(sale())
        waiting = asyncio.ensure_future((await second.find()).wait())
        service.decide("Aceptado")
        await second.tracker.notify(hint())
        assert (await soon(waiting)).paid is True
        assert (first.queries, second.queries) == (1, 0)


async def test_a_late_notification_ends_the_wait_of_a_process_that_stood_still(
    service: FakeService, url: str, postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own answer was written, then it stood still; another process decided the sale before it could wait for it."""
    async with (
        PostgresProxy(postgres.port) as proxy,
        working(service, url) as first,
        working(service, postgres.url(database, port=proxy.port), poll=3600.0) as second,
    ):
        written, goes_on = asyncio.Event(), asyncio.Event()
        apply = second.ledger.apply
        proxy.deaf = True

        async def apply_slowly(record: Record, event: Event) -> Record:
            if isinstance(event, Created):
                record = await apply(record, event)
                written.set()
                await goes_on.wait()
                return record
            goes_on.set()
            for _ in range(20):  # the sale goes on, and is waited for
                await asyncio.sleep(0)
            return await apply(record, event)

        async def buy() -> payclient.Outcome:
            return await (await sending).wait()

        monkeypatch.setattr(second.ledger, "apply", apply_slowly)
        sending = asyncio.ensure_future(second.tracker.sale(sale()))
        waiting = asyncio.ensure_future(buy())
        await written.wait()
        found = await first.find()
        service.decide("Cancelado")
        assert (await found.check()).state is State.CANCELLED
        assert await second.tracker.notify(hint()) is payclient.Receipt.LATE
        assert (await soon(waiting)).state is State.CANCELLED


async def test_another_takes_over_what_died(service: FakeService, pair: tuple[Worker, Worker]) -> None:
    """Once the lease is over somebody else follows it, and a waiter there hears its end."""
    first, second = pair
    await first.tracker.sale(sale())
    waiting = asyncio.ensure_future((await second.find()).wait())
    assert await second.ledger.held() == set()
    await first.die()
    await followed_by(second)
    service.decide("Aceptado")
    assert (await passing(service, waiting)).paid is True
    assert second.queries >= 1


async def test_twice_paid_is_said_once_by_two_who_find_it_at_once(
    service: FakeService, pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one writes it between the look of this one and its reading of the asks."""
    first, second = pair
    await first.tracker.prepare(form(), purchase="cart")
    push = await first.tracker.sale(sale(), purchase="cart", beside_open_form=True)
    service.pay("form-1", state="Aceptado")
    service.decide("Aceptado")
    with monkeypatch.context() as killed:
        killed.setattr(batch, "_note_overpaid", AsyncMock())
        assert [(await each.check()).paid for each in (push, await first.find("form-1"))] == [True, True]
    look_up, others = PostgresDatabase.look_up, iter([second.ledger])

    async def late(*arguments: Any) -> Any:
        for other in others:
            await other.note_overpaid(service.clock.time())
        return await look_up(*arguments)

    monkeypatch.setattr(PostgresDatabase, "look_up", late)
    await first.ledger.note_overpaid(service.clock.time())
    assert [each.event for each in await first.ledger.changes()].count("Overpaid") == 1


async def test_dead_links_of_a_process_that_ended_are_deleted(
    service: FakeService, url: str, postgres: PostgresServer, database: str
) -> None:
    """By another that lives on and never had a form."""
    sql = "SELECT count(*) FROM payclient.form_links"
    async with working(service, url) as first:
        await first.ledger.get("order-17")  # behind its first look, which found none
        async with working(service, url) as second:
            await second.tracker.live_form("cart", form)
        assert await postgres.execute(database, sql) == [(1,)]
        for _ in range(3):
            await service.clock.advance(600.0)
            await first.ledger.get("order-17")
        assert await postgres.execute(database, sql) == [(0,)]


@pytest.mark.parametrize("lives", [True, False], ids=["another lives", "the next one"])
async def test_twice_paid_is_said_though_its_process_died(
    service: FakeService,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lives: bool,
) -> None:
    """Killed right after the commit of the second payment, once by whoever is there next; three payments count, too."""
    monkeypatch.setattr(leases, "ABANDONED_ROUNDS", 1)
    async with working(service, url) as first, AsyncExitStack() as stack:
        if lives:
            await stack.enter_async_context(working(service, url))
        for number in range(3):
            one, other = f"order-{number}", f"order-{number}-2"
            await first.tracker.prepare(form(f"form-{number}"), purchase=one)
            push = await first.tracker.sale(sale(other), purchase=one, beside_open_form=True)
            service.pay(f"form-{number}", 5000 + number, state="Aceptado")
            assert (await (await first.find(f"form-{number}")).check()).paid is True
            if number < 2:
                with monkeypatch.context() as killed:
                    killed.setattr(batch, "_note_overpaid", AsyncMock())
                    service.decide("Aceptado", 1000 + 2 * number)
                    await push.check()
        if not lives:
            await stack.enter_async_context(working(service, url))

        async def said() -> bool:
            return sum(each.event == "Overpaid" for each in await first.ledger.changes()) >= 2

        await until(said)
        await asyncio.sleep(0.2)  # several rounds of all
        found = [
            each.client_transaction_id for each in await first.ledger.changes() if each.event == "Overpaid"
        ]
        assert found == ["order-0-2", "order-1-2"]
        assert len({each for each in alarms(caplog) if "its purchase also by" in each}) == 2


@pytest.mark.parametrize(
    "error", [LedgerUnavailableError("gone"), RuntimeError("ours")], ids=["ledger", "ours"]
)
async def test_a_failure_does_not_end_the_sharing(service: FakeService, error: Exception) -> None:
    """Of the first renewal of its leases."""
    ledger, renew = SharedLedger(), AsyncMock(side_effect=[error, 0, *itertools.repeat(0, 10_000)])
    ledger.renew = renew  # type: ignore[method-assign]  # a stand-in
    async with tracking(service, ledger):
        await until(lambda: asyncio.sleep(0.01, renew.await_count > 1))


@in_virtual_time
async def test_a_round_that_the_ledger_did_not_let_end_is_made_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A form that came back to a process that died is reversed unless another confirms it: 10 s count."""
    monkeypatch.setattr(leases, "RENEW", 10.0)
    ledger, times, loop = SharedLedger(), list[float](), asyncio.get_running_loop()
    claim_due, renew = ledger.claim_due, ledger.renew

    async def claims(limit: int, seconds: float) -> list[Record]:
        times.append(loop.time())
        if len(times) == 1:
            raise LedgerUnavailableError("gone as it begins")
        return await claim_due(limit, seconds)

    async def renews(seconds: float) -> int:
        times.append(loop.time())
        if len(times) == 4:
            raise LedgerUnavailableError("gone later")
        return await renew(seconds)

    monkeypatch.setattr(ledger, "claim_due", claims)
    monkeypatch.setattr(ledger, "renew", renews)
    async with tracking(Service(), ledger=ledger):
        await asyncio.sleep(15)
    assert [round(each - times[0]) for each in times] == [0, 2, 2, 12, 14, 14]


async def test_an_expired_sale_that_nobody_holds(
    service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is due for it until its next look, in whichever process; a late notification is followed up at once."""
    due = "SELECT due > clock_timestamp() + interval '5 minutes' FROM payclient.open_attempts"
    connection = await asyncpg.connect(url)
    async with working(service, url) as first:
        waiting = asyncio.ensure_future((await first.tracker.sale(sale())).wait())
        assert (await passing(service, waiting, first)).state is State.EXPIRED
        await until(lambda: connection.fetchval(due))
    monkeypatch.setattr(leases, "RENEW", 1000.0)
    async with working(service, url) as second:
        await service.clock.advance(5.0)
        assert second.queries == 0
        assert await connection.fetchval(due)
        service.decide("Aceptado")
        assert await second.tracker.notify(hint()) is Receipt.MATCHED
        waiting = asyncio.ensure_future((await second.find()).wait())
        await followed_by(second)
        assert (await passing(service, waiting)).paid is True
    await connection.close()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_claimed_sending_is_never_sent_again(
    service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Its sender's lease ran out: unknown everywhere, the same request is the same sale, and a late answer counts."""
    monkeypatch.setattr(leases, "SENDING_GRACE", -30.0)
    answering = asyncio.Event()

    async def held(_: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        response = await service.take(request, before_send)
        await answering.wait()
        if answered:
            return response
        raise ConnectionResetError

    service.scripts.append(held)
    async with working(service, url) as first:
        sending = asyncio.ensure_future(first.tracker.sale(sale()))
        await until(lambda: asyncio.sleep(0, service.posted))
        async with working(service, url) as second:
            while (await second.find()).state is State.SENDING:
                await first.ledger.defer({"order-17": 0.0})
                await asyncio.sleep(0.01)
            again = await second.tracker.sale(sale())
            assert (again.state, again.attempt) == (State.UNKNOWN, 1)
            answering.set()
            assert (await sending).transaction_id == (1000 if answered else None)
            assert (await first.tracker.sale(sale())).attempt == 1
            service.decide("Aceptado")
            waiting = asyncio.ensure_future(again.wait())
            assert (await passing(service, waiting)).paid is True
        history = await events_of(first.ledger)
    assert history[:2] == ["Permitted", "Recovered"]
    assert history.count("Permitted") == 1
    assert service.posted == {"order-17": 1}


async def test_a_stopped_process_lets_go(service: FakeService, pair: tuple[Worker, Worker]) -> None:
    """Its lease ran out while it stood still: what others took over meanwhile it asks for no more."""
    first, second = pair
    pending = await first.tracker.sale(sale())
    while "order-17" not in await second.ledger.held():
        await first.ledger.defer({"order-17": 0.0})
        await asyncio.sleep(0.01)

    async def let_go() -> bool:
        return not (await first.tracker.health()).open

    await until(let_go)
    assert pending.state is State.PENDING
    service.decide("Aceptado")
    waiting = asyncio.ensure_future(pending.wait())
    await asyncio.sleep(0)
    asked = first.queries
    await service.clock.advance(60)
    assert (await soon(waiting)).paid is True
    assert first.queries == asked


async def test_what_is_permitted_while_leases_are_compared_is_queried_here(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the ledger says is held is older than the permit: nobody else would query the sale."""
    ledger, gate, held = SharedLedger(), Gate(), Held()

    async def older() -> set[str]:
        if gate.there.is_set():
            await asyncio.Event().wait()  # no second comparison ends
        await gate()
        return set()

    async with tracking(service, ledger) as tracker:
        monkeypatch.setattr(ledger, "held", older)
        monkeypatch.setattr(ledger, "renew", AsyncMock(return_value=-1))
        await gate.there.wait()
        service.scripts = [held]
        sending = asyncio.create_task(tracker.sale(sale()))
        await held.there.wait()
        gate.go.set()
        await service.clock.advance(0)
        held.go.set()
        pending = await sending
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert pending.outcome.paid is True


async def test_what_was_claimed_by_a_lost_answer_is_followed_where_somebody_waits(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held from then on by a process that takes it for another's, which is dead."""
    ledger, lost = SharedLedger(), once(disk_full)
    claiming = SharedLedger(ledger)
    claim = claiming.claim_due

    async def claim_due(limit: int, seconds: float) -> list[Record]:
        if found := await claim(limit, seconds):
            lost()
        return found

    monkeypatch.setattr(claiming, "claim_due", claim_due)
    async with tracking(service, claiming) as tracker:
        async with tracking(service, ledger) as dead:
            await dead.sale(sale())
            waiting = asyncio.ensure_future((await pending_of(tracker)).wait())
        ledger.holders["order-17"] = (ledger.name, 0.0)
        service.decide("Aceptado")
        for _ in range(60):  # of both times
            await service.clock.advance(1.0)
            await asyncio.sleep(0.005)
        assert waiting.done()
        assert (await waiting).paid is True


async def test_whoever_waits_too_long_asks_himself(service: FakeService, pair: tuple[Worker, Worker]) -> None:
    """A follower that lives and finds nothing, as by a fault of its own, makes nobody hang."""
    first, second = pair
    await first.tracker.sale(sale())
    await first.tracker.aclose()  # its ledger lives on, and with it its lease
    waiting = asyncio.ensure_future((await second.find()).wait())
    outcome = await passing(service, waiting)
    assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
    assert second.queries >= 7


async def test_another_tracker_over_the_ledger_goes_on_at_once(service: FakeService, url: str) -> None:
    """What the one before it left open is held by this very process, so that nobody else would claim it."""
    async with aclosing(await PostgresLedger.open(Secret(url))) as ledger:
        async with tracking(service, ledger) as tracker:
            await tracker.sale(sale())
        async with tracking(service, ledger) as tracker:
            assert [each.state for each in tracker.open_sales()] == [State.PENDING]


async def test_a_clock_that_jumps_frees_no_purchase_of_another_process(service: FakeService) -> None:
    """Its ledger compared the clocks as it was opened; the customer can still approve what seems long over here."""
    async with tracking(service, one := SharedLedger()) as tracker:
        async with selling(service, ledger=SharedLedger(one), purchase="cart"):
            service.clock.jump_wall(3600)
        assert (await outcome_of(service, await pending_of(tracker))).paid is None
        assert service.clock.monotonic() < 300
        await held_by(tracker, "cart")


# One rate


async def test_one_rate_for_all(url: str) -> None:
    clock, slots = SystemClock(), []

    async def taking() -> None:
        async with aclosing(await PostgresLedger.open(Secret(url))) as ledger:
            limit = SharedRateLimit(6.0, ledger, clock, LateWrites(ledger, clock))
            for _ in range(4):
                await settled(limit, clock.monotonic(), wanted=True)
                slots.append(limit.ready_at())
                limit.note_request(slots[-1])

    await asyncio.gather(taking(), taking())
    gaps = [after - before for before, after in itertools.pairwise(sorted(slots))]
    assert gaps == pytest.approx([10.0] * 7, abs=1.0)


async def test_a_429_is_for_all(pair: tuple[Worker, Worker]) -> None:
    """What one process was told silences the others; asked by hand, a query counts too; none is saved up."""
    ledger, other = (each.ledger for each in pair)
    limit = SharedRateLimit(60.0, ledger, clock := SystemClock(), LateWrites(ledger, clock))
    limit.rate_limited(0.0, -1.0, 40.0)
    await settled(limit, 0.0)
    assert await other.reserve(1.0) == pytest.approx(40, abs=5)
    limit.note_request(0.0)
    await settled(limit, 0.0)
    assert await other.reserve(1.0) == pytest.approx(42, abs=5)
    assert limit.is_paused(39.0)
    await settled(limit, 0.0, wanted=True)
    first = limit.ready_at()
    await settled(limit, first + 5, wanted=True)
    assert limit.ready_at() > first


async def test_one_request_is_reserved_at_a_time(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often one is wanted while the ledger answers, no other process waits for more than is made."""
    ledger, begun = SharedLedger(), []

    async def reserve(gap: float) -> float:
        begun.append(gap)
        return await asyncio.Future()

    monkeypatch.setattr(ledger, "reserve", reserve)
    async with tracking(service, ledger, attrs.evolve(PROFILE, queries_per_minute=60)) as tracker:
        for number in range(3):
            pending = await tracker.sale(sale(f"order-{number}", f"098411122{number}"))
            await tracker.notify(hint(1000 + number, pending.client_transaction_id))
        await service.clock.advance(5)
        assert begun == [1.0]


async def test_a_reservation_that_was_cancelled_is_made_anew() -> None:
    """As all tasks of a program that ends are, which may go on for a while: else nothing would be queried any more."""
    ledger, clock = AsyncMock(), SystemClock()
    ledger.reserve.side_effect = [asyncio.CancelledError, 1.0]
    limit = SharedRateLimit(60.0, ledger, clock, LateWrites(ledger, clock))
    with pytest.raises(asyncio.CancelledError):
        await settled(limit, 0.0, wanted=True)
    await settled(limit, 0.0, wanted=True)
    assert limit.ready_at() < float("inf")


async def test_a_reserved_request_is_made_once_and_after_every_pause() -> None:
    """Until then, for as long as two requests are apart, no other is reserved; one that was not delays all."""
    ledger, clock = AsyncMock(), ManualClock()
    ledger.reserve.return_value = 1.0
    limit = SharedRateLimit(15.0, ledger, clock, LateWrites(ledger, clock))
    reserving = limit.work_in_ledger(0.0, wanted=True)
    assert reserving is not None
    limit.rate_limited(0.0, 0.0, 5.0)
    await settled(limit, 0.0, wanted=True)  # the pause alone
    assert limit.work_in_ledger(0.0, wanted=True) is None
    await reserving
    assert limit.ready_at() == 5.0
    assert limit.work_in_ledger(8.0, wanted=True) is None
    for pauses in ([5.0], [5.0, limit.gap]):
        limit.note_request(8.0)
        await settled(limit, 8.0)
        assert [each.args[0] for each in ledger.pause.await_args_list] == pauses
        assert limit.ready_at() == math.inf  # a pause reserves nothing


@pytest.mark.parametrize("fault", [LedgerUnavailableError("gone"), RuntimeError("broken")])
async def test_a_ledger_that_cannot_say(fault: Exception) -> None:
    """Queries go on, slowly; nothing hangs and nothing is raised."""
    broken, clock = AsyncMock(), SystemClock()
    broken.reserve.side_effect = broken.pause.side_effect = fault
    limit = SharedRateLimit(60.0, broken, clock, LateWrites(broken, clock))
    now = clock.monotonic()
    await settled(limit, now, wanted=True)
    assert limit.ready_at() == pytest.approx(now + 10, abs=1)
    limit.note_request(now)
    limit.note_request(now)
    limit.rate_limited(now, now - 1.0, 1.0)
    await settled(limit, now, wanted=True)
    assert limit.ready_at() == pytest.approx(now + 10, abs=1)
    assert limit.work_in_ledger(now, wanted=False) is None


# --- One batch


def rows(count: int, each: int = 1) -> list[payclient.SaleRequest]:
    return [
        sale(f"row-{number}", phone=f"09841112{number // each:02}", amount_with_tax=1000 + number)
        for number in range(count)
    ]


async def test_anothers_customer_is_waited_for(service: FakeService, pair: tuple[Worker, Worker]) -> None:
    """The next row of a customer is sent when that of another host is over."""
    first, second = pair
    pending = await first.tracker.sale(rows(2, each=2)[0])
    run = asyncio.create_task(charge(second, rows(2, each=2)))
    for _ in range(5):
        await service.clock.advance(2.0)
        await asyncio.sleep(0.01)
    assert service.posted == {"row-0": 1}
    service.decide("Aceptado")
    await pending.check()
    async with asyncio.timeout(60):
        while not run.done():  # time passes, and the customer says yes
            for each in service.sales.values():
                each["state"] = "Aceptado"
            await service.clock.advance(1.0)
            await asyncio.sleep(0.005)
    assert run.result() == {"row-0": State.ACCEPTED, "row-1": State.ACCEPTED}
    assert service.posted == {"row-0": 1, "row-1": 1}


async def test_what_another_host_is_sending_keeps_its_customers_next_row_back(service: FakeService) -> None:
    """Sent beside it, the next one would be refused by 2061."""
    service.scripts, ledger = [held := Held()], SharedLedger()
    async with tracking(service, ledger) as one, tracking(service, SharedLedger(ledger)) as other:
        sending = asyncio.create_task(one.sale(rows(2, each=2)[0]))
        await held.there.wait()
        async with charge_all(other, rows(2, each=2)):
            await service.clock.advance(60)
            assert service.begun == 1
        held.go.set()
        await sending


async def charge(worker: Worker, requests: list[payclient.SaleRequest], *, stop: bool = False) -> Said:
    """One host's run of the batch, perhaps stopped before it sends: what it says of each row."""
    said: Said = {}
    async with charge_all(worker.tracker, requests, rate=0.001 if stop else None) as results:
        if stop:
            results.stop("enough")
        async for result in results:
            assert result.request_key not in said
            said[result.request_key] = None if result.outcome is None else result.outcome.state
    return said


async def test_a_host_that_is_stopped_tells_what_others_sent(
    service: FakeService, pair: tuple[Worker, Worker]
) -> None:
    """Only what nobody sent was never sent."""
    first, second = pair
    pending = await first.tracker.sale(rows(2)[0])
    service.decide("Aceptado")
    await pending.check()
    telling = asyncio.create_task(charge(second, rows(2), stop=True))
    while not telling.done():
        await service.clock.advance(1.0)
        await asyncio.sleep(0.005)
    assert await telling == {"row-0": State.ACCEPTED, "row-1": None}


async def test_a_ledger_that_is_gone_ends_no_wait_by_an_error(
    service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that ends just then tells what is known; one that goes on hears of it later."""
    gone = AsyncMock(side_effect=LedgerUnavailableError("gone"))
    async with working(service, url, poll=0.05) as first, working(service, url, poll=0.05) as second:
        await first.tracker.sale(sale())
        found = await second.find()
        with monkeypatch.context() as patched:
            patched.setattr(second.ledger, "get_many", gone)
            waiting = asyncio.ensure_future(found.wait())
            service.decide("Aceptado")
            await (await first.find()).check()
        assert (await soon(waiting)).paid is True
        monkeypatch.setattr(second.ledger, "get_many", gone)
        assert (await found.wait()).paid is True
