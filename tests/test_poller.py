"""The poller, in virtual time: crowds, rates, notifications that die, and what may go wrong in the midst of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from statistics import mean
from typing import Any

import attrs
import pytest

import crowd
import payclient
from crowd import Service, hint, in_virtual_time, now, push, pushed, waited
from fake_ledgers import HookedLedger, HookedSharedLedger, SharedLedger, disk_full, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Said,
    Script,
    answer,
    error_of,
    form,
    held_by,
    lost_request,
    outcome_of,
    pending_of,
    record_in,
    refusal,
    refuses,
    reset,
    sale,
    selling,
    tracking,
)
from fake_service import hint as told_of
from manual_clock import ManualClock
from payclient.events import Evidence, FoundAccepted
from payclient.ledger.memory import MemoryLedger
from payclient.profile import StatusProfile
from payclient.schedule import phase
from payclient.tracking import poller
from payclient.tracking.poller import EXPIRIES_AT_ONCE, REQUESTS_AT_ONCE
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

State = payclient.State


def test_a_crowd_ends_as_the_service_decided() -> None:
    """Lost answers, 5xx, 429, half of the notifications: each outcome is the truth, and no sale is charged twice."""
    result = crowd.run(300, seed=7)
    assert result.different == ()
    assert result.accepted > 180


@in_virtual_time
async def test_notifications_that_die_are_survived() -> None:
    """They thin the queries; when they stop, the delay is that of polling alone within 50 sales."""
    alive, dead, later = 120, 50, 130
    delays: dict[int, float] = {}
    service = Service(seed=3)
    async with tracking(service) as tracker:

        def notify(number: int, identifier: str) -> None:
            if number <= alive:
                said = payclient.Notification(transaction_id=number, client_transaction_id=identifier)
                notifying.add(asyncio.ensure_future(tracker.notify(said)))

        notifying: set[asyncio.Future[payclient.Receipt]] = set()
        service.answered = notify

        async def one(number: int) -> None:
            await asyncio.sleep(4.0 * number)
            pending = await tracker.sale(push(f"order-{number}"))
            outcome = await pending.wait()
            if outcome.paid is not None and pending.remaining > 0:
                delays[number] = now() - service.truth[f"order-{number}"][0]

        await asyncio.gather(*(one(number) for number in range(alive + dead + later)))
    queries = Counter(name for _, name in service.asked)
    assert mean(queries[f"order-{number}"] for number in range(50, alive)) < 7
    assert mean(queries[f"order-{number}"] for number in range(alive + dead, alive + dead + later)) > 20
    assert 0.7 < mean(delay for number, delay in delays.items() if number >= alive + dead) < 1.2


@in_virtual_time
async def test_the_rate_is_kept_and_a_notified_sale_waits_for_one_turn() -> None:
    """30 a minute whoever asks; a notification comes ahead of sixty that wait for the routine."""
    service = Service(seed=5)
    async with tracking(service, profile=attrs.evolve(crowd.PROFILE, queries_per_minute=30.0)) as tracker:
        pendings = await pushed(tracker, 60)
        await asyncio.sleep(20.0)
        one, began = pendings[40], now()
        service.truth["order-40"] = (began, "Aceptado")
        await tracker.notify(hint(one))
        assert (await one.wait()).paid is True
        assert now() - began < 4.5
        assert None not in {outcome.paid for outcome in await waited(pendings, 10_000)}
    times = [when for when, _ in service.asked]
    assert all(sum(when <= other < when + 60 for other in times) <= 31 for when in times)
    assert len(times) / (times[-1] - times[0]) == pytest.approx(0.5, rel=0.1)


@in_virtual_time
async def test_first_queries_come_by_the_id_and_the_permit_alone() -> None:
    """However many come at once, and whether others came before: half a gap to one and a half after the permit."""
    service = Service(undecided=True)
    async with tracking(service, schedule=payclient.Fixed(8.0)) as tracker:
        permits: dict[str, float] = {}
        for number in range(400):
            permits[f"order-{number}"] = now()
            await tracker.sale(push(f"order-{number}"))
            if number % 40 == 0:
                await asyncio.sleep(1.3)
        await asyncio.sleep(16.0)
        firsts: dict[str, float] = {}
        for when, name in service.asked:
            firsts.setdefault(name, when)
        assert firsts.keys() == permits.keys()
        for name, when in firsts.items():
            assert when - permits[name] == pytest.approx(8.0 * (0.5 + phase(name)), abs=0.3)


@in_virtual_time
async def test_a_stream_of_new_sales_keeps_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due is looked at while they are planned, however many there are."""
    monkeypatch.setattr(poller, "PER_TURN", 3)
    service = Service(undecided=True)
    async with tracking(service, schedule=payclient.Fixed(8.0)) as tracker:
        await tracker.sale(push("order-1"))
        await asyncio.sleep(3.0)
        await asyncio.gather(*(tracker.sale(push(f"new-{number}")) for number in range(200)))
        before = len(service.queries)
        await asyncio.sleep(10.0)
        assert "order-1" in [name for _, name in service.asked[before:]]


async def test_an_expiry_is_noted_before_the_first_query(service: FakeService) -> None:
    """What lives a shorter time than new sales usually wait expires when it does."""
    profile = attrs.evolve(PROFILE, form_window=60)
    async with selling(service, profile=profile, schedule=payclient.Fixed(1000.0)) as (tracker, _):
        await tracker.prepare(form("short"))
        await service.clock.advance(121.0)  # a link may be loaded as late as it is handed out
        assert (await pending_of(tracker, "short")).state is State.EXPIRED


class Odd:
    """A schedule of these gaps, which fails then."""

    def __init__(self, *gaps: Any) -> None:
        self.gaps = iter(gaps)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        return next(self.gaps, None) or 1 / 0


class OddFixed(payclient.Fixed):
    """One of our own schedules, changed."""

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        return 1 / 0


async def test_a_schedule_is_told_the_age_and_the_share_that_is_notified(service: FakeService) -> None:
    """The age counts from the permit, also after a restart; the share, from what queries found, each of them once."""
    told: list[tuple[float, float]] = []

    class Noting:
        def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
            told.append((round(age), heard))
            return 10.0

    async with tracking(service, schedule=Noting()) as tracker:
        service.scripts = [refuses(22)]
        await error_of(payclient.NotCreatedError, tracker.sale(sale("refused")))
        await tracker.notify(told_of(7, "refused"))
        await tracker.sale(sale())
        await service.clock.advance(100)
    async with tracking(service, service.ledger, schedule=Noting()) as tracker:
        assert (told[0], told[-1]) == ((0, 0.0), (100, 0.0))
        service.decide("Aceptado")
        await service.clock.advance(10)
        await tracker.notify(told_of())
        await tracker.sale(sale("another", phone="0984111223"))
        assert told[-1] == (0, 1 / 16)


async def test_one_round_of_429s_slows_down_once(service: FakeService) -> None:
    """The second of two queries that were on their way says nothing new: queries go on after a second."""
    gate = Gate()
    async with tracking(
        service, schedule=payclient.Fixed(1.0), transport=gate.before(service, "/1001")
    ) as tracker:
        pendings = [await tracker.sale(sale(f"o{n}", phone=f"09841112{n:02}")) for n in range(2)]
        service.status_scripts = [lambda: refusal(5, status=429)] * 2
        checks = asyncio.gather(*(each.check() for each in pendings))
        await service.clock.advance(0.2)
        gate.go.set()
        await checks
        await service.clock.advance(1.5)
        assert len(service.queries) > 2


async def test_a_short_window_is_queried_as_often_as_a_long_one() -> None:
    counts = []
    for window in (300.0, 60.0):
        async with selling(service := FakeService(), profile=attrs.evolve(PROFILE, sale_window=window)):
            await service.clock.advance(window / 2)
        counts.append(len(service.queries))
    assert counts[1] == pytest.approx(counts[0], rel=0.1)


async def test_a_wait_for_an_ask_of_a_short_window_is_short(service: FakeService) -> None:
    """Its last queries come as much earlier."""
    async with selling(service, profile=attrs.evolve(PROFILE, sale_window=60.0)) as (_, pending):
        assert (await outcome_of(service, pending, seconds=95)).evidence is Evidence.LAST_QUERY


async def test_a_short_window_has_a_short_pause_after_a_401(service: FakeService) -> None:
    """Half a minute would be the whole life of the sale."""
    service.status_scripts = [lambda: refusal(1, status=401)] * 2
    async with selling(service, profile=attrs.evolve(PROFILE, sale_window=30.0)) as (_, pending):
        for seconds in (0, 1, 4):
            await service.clock.advance(seconds)
            service.decide("Aceptado")
            await pending.check()
        assert pending.outcome.paid is True
    assert service.queried_at[2] - service.queried_at[1] >= 3


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_query_is_logged_with_its_status(
    service: FakeService, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is not valid, and one that may not query, are mended in different places."""
    service.status_scripts = [lambda: refusal(1, status=status)] * 2
    async with selling(service):
        await service.clock.advance(30)
    assert f"status queries are refused ({status})" in caplog.text


@in_virtual_time
async def test_a_schedule_may_change() -> None:
    class Changing:
        seconds = 100.0

        def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
            return self.seconds * part

    service, schedule = Service(undecided=True), Changing()
    async with tracking(service, schedule=schedule) as tracker:
        schedule.seconds = 2.0
        await tracker.sale(push("order-1"))
        await asyncio.sleep(4.0)
        assert service.queries


@in_virtual_time
async def test_no_sale_is_asked_for_more_than_once_a_second() -> None:
    """By the routine, a notification, and those who check, all together; the chase after a notification aside."""
    service = Service(undecided=True)
    async with tracking(service, schedule=payclient.Fixed(0.01)) as tracker:
        pending = await tracker.sale(push("order-1"))
        for _ in range(100):
            await asyncio.sleep(0.1)
            await pending.check()
    times = [when for when, _ in service.asked]
    assert len(times) >= 9
    assert min(b - a for a, b in pairwise(times)) >= 0.999


@in_virtual_time
async def test_a_schedule_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a user's own one raises or gives, the sale is followed to its end."""
    for odd in (Odd(float("nan"), "soon", -5.0, float("inf")), payclient.Fixed(1e12), Odd(), OddFixed()):
        async with tracking(Service(seed=1), schedule=odd) as tracker:
            pending = await tracker.sale(push("order-1"))
            assert (await pending.wait()).paid is not None
    assert "the schedule failed: ValueError" in caplog.text
    assert "the schedule failed: ZeroDivisionError" in caplog.text


@in_virtual_time
async def test_a_schedule_that_raises_a_cancellation_ends_no_follow_up() -> None:
    """As one that reads the result of a cancelled task does: a wait for the sale would never end."""

    class Cancelled:
        def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
            raise asyncio.CancelledError

    async with tracking(Service(seed=1), schedule=Cancelled()) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (await pending.wait(3600)).paid is not None


@in_virtual_time
async def test_a_crowd_of_expiries_is_written_a_few_at_a_time() -> None:
    """All are written, in any order, and never more at once than the loop can bear."""
    writing, most = 0, 0

    async def slowly() -> None:
        nonlocal writing, most
        writing, most = writing + 1, max(most, writing + 1)
        await asyncio.sleep(0.01)
        writing -= 1

    slow = HookedLedger(before={"Expired": slowly})
    async with tracking(Service(), ledger=slow, profile=payclient.DOCUMENT) as tracker:
        pendings = await asyncio.gather(*(tracker.sale(push(f"order-{number}")) for number in range(700)))
        outcomes = await waited(pendings)
    assert {outcome.state for outcome in outcomes} == {State.EXPIRED}
    assert most == EXPIRIES_AT_ONCE


async def test_a_crowd_that_is_due_at_once_is_looked_at_a_few_in_each_turn(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is due at that moment has its turn between."""
    monkeypatch.setattr(poller, "PER_TURN", 3)
    expired, seen = Counter[str](), [0]
    ledger = HookedLedger(before={"Expired": lambda: expired.update("e")})

    def look() -> None:
        seen.append(expired["e"])
        if len(seen) < 30:
            service.clock.call_at(300.0, look)

    async with tracking(service, ledger, payclient.DOCUMENT) as tracker:
        for number in range(30):
            await tracker.sale(sale(f"order-{number}", f"09841112{number}"))
        service.clock.call_at(300.0, look)
        await service.clock.advance(300)
    assert max(after - before for before, after in pairwise(seen)) == 3
    assert expired["e"] == 30


async def test_who_waits_in_the_line_of_expiries_has_its_last_query_all_the_same(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its expiry is written meanwhile, by a check or by another process: that was no last query, and it may be paid."""
    monkeypatch.setattr(poller, "EXPIRIES_AT_ONCE", 1)
    stuck = asyncio.Event()
    ledger = HookedLedger(before={"Expired": once(stuck.wait)})
    async with tracking(service, ledger) as tracker:
        await tracker.sale(sale("before"))
        await service.clock.advance(1)
        pending = await tracker.sale(sale(), purchase="cart")
        await service.clock.advance(300)
        assert (await pending_of(tracker)).state is State.PENDING
        service.decide("Aceptado", 1001)
        service.instead = lambda path: answer(500, {"message": "no"})
        assert (await pending.check()).state is State.EXPIRED
        stuck.set()
        await service.clock.advance(0.5)
        await held_by(tracker, "cart")
        service.instead = lambda path: None
        assert (await outcome_of(service, pending)).paid


async def test_an_expiry_whose_write_raises_anything_ends_nothing(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged by its class, and the sale is followed to its end."""

    tries = []

    def breaks() -> None:
        tries.append(service.clock.monotonic())
        if len(tries) < 5:
            raise RuntimeError("a fault of the ledger's own")

    async with selling(service, ledger=HookedLedger(before={"Expired": breaks})) as (_, pending):
        await service.clock.advance(306)
        assert "RuntimeError" in caplog.text
        assert len(tries) == 5
        assert min(b - a for a, b in pairwise(tries)) >= 1
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_each_fault_of_the_queries_is_logged_once(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it comes."""
    service.status_scripts = [lambda: refusal(0, status=503), lambda: refusal(7)] * 3
    async with selling(service):
        await service.clock.advance(200)
    assert not service.status_scripts
    assert len([each for each in caplog.messages if "a status query failed" in each]) == 2


async def test_an_unknown_sale_is_queried_ever_more_slowly_where_queries_fail(service: FakeService) -> None:
    """Also when it is old enough for a proof that it is absent."""
    service.instead = lambda _: refusal(0, status=503)
    async with selling(service, lost_request):
        await service.clock.advance(700)
    assert 1 <= len([each for each in service.queried_at if each >= 600]) <= 5


@pytest.mark.parametrize("hours", [1, 2, 5, 12])
async def test_a_payment_is_found_an_hour_after_an_outage_at_the_latest(
    service: FakeService, hours: int
) -> None:
    """However often its queries failed meanwhile."""
    service.instead = lambda _: refusal(0, status=503)
    async with selling(service) as (_, pending):
        service.decide("Aceptado")
        await service.clock.advance(hours * 3600)
        assert (pending.state, pending.outcome.paid) == (State.EXPIRED, None)
        service.instead = lambda _: None
        await service.clock.advance(3700)
        assert pending.outcome.paid
    assert len(service.queries) < 30


async def test_while_as_many_queries_as_may_be_are_under_way_no_timer_is_set_for_others() -> None:
    """They begin as the first of those is answered."""

    class Counting(ManualClock):
        timers = 0

        def call_at(self, *arguments: Any) -> Any:
            self.timers += 1
            assert self.timers < 1000
            return super().call_at(*arguments)

    service, gate, under_way = FakeService(Counting()), Gate(), []

    async def held_up(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "GET":
            under_way.append(request.path)
            await gate()
        return await service(request, before_send)

    async with tracking(service, transport=held_up) as tracker:
        for number in range(REQUESTS_AT_ONCE + 1):
            await tracker.sale(sale(f"order-{number}"))
        await service.clock.advance(20)
        assert not service.queries
        assert len(under_way) == REQUESTS_AT_ONCE
        gate.go.set()
        await service.clock.advance(1)
        assert len(set(service.queries)) == REQUESTS_AT_ONCE + 1


async def test_a_state_word_that_nobody_knows_is_queried_slowly(service: FakeService) -> None:
    """It may be final: then no query of it ever says more. Who asks again within a second has the report, too."""
    async with selling(service, schedule=payclient.Fixed(1.0)) as (_, pending):
        service.decide("Raro")
        report = (await pending.check()).report
        assert (await pending.check()).report is report is not None
        await service.clock.advance(60)
        assert 5 <= len(service.queries) <= 10


async def test_a_changed_sale_is_reread(service: FakeService) -> None:
    """Decided elsewhere: the driver takes the ledger's word at its next event, and whoever waits hears it."""
    async with selling(service) as (tracker, pending):
        wait = asyncio.create_task(pending.wait())
        await asyncio.sleep(0)
        found = FoundAccepted(at=service.clock.time(), transaction_id=1000)
        await service.ledger.apply(await record_in(service.ledger), found)
        await service.clock.advance(302)
        assert (await wait).paid is True
        assert tracker.open_sales() == []


async def test_the_same_request_again_long_after_is_the_same_sale(service: FakeService) -> None:
    """Its digest is let go of with the first query; the ledger still has it, and tells another content."""
    async with selling(service) as (tracker, _):
        await service.clock.advance(60)
        assert (await tracker.sale(sale())).transaction_id == 1000
        await error_of(payclient.DifferentRequestError, tracker.sale(sale(tax=151)))
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("script", [lost_request, refuses(22, 2061)])
async def test_no_turn_of_the_rate_is_for_a_sale_without_an_id_to_query_by(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """By transaction id alone a lost or refused sale cannot be queried: it failed every 32 s, for ever, for nothing."""
    by_its_id = StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
    profile = attrs.evolve(PROFILE, status=by_its_id, queries_per_minute=30)
    service = FakeService()
    async with tracking(service, profile=profile) as tracker:
        for number in range(20):
            service.scripts = [script]
            with suppress(payclient.CustomerBusyError):
                await tracker.sale(sale(f"lost-{number}"))
        await service.clock.advance(3600.0)
        new = await tracker.sale(sale("new"))
        await service.clock.advance(20.0)
        assert new.transaction_id is not None
        service.decide("Aceptado", new.transaction_id)
        wait = asyncio.ensure_future(new.wait())
        await service.clock.advance(3.0)
        assert wait.done()
        assert "ConfigurationError" not in caplog.text


async def test_no_turn_of_the_rate_is_for_a_form_without_an_id_to_query_by(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be queried of the forms of twenty pages that are open: they put off no query of a push."""
    by_its_id = StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
    profile = attrs.evolve(PROFILE, status=by_its_id, queries_per_minute=30)
    async with tracking(service, profile=profile) as tracker:
        for number in range(20):
            await tracker.prepare(form(f"form-{number}"), purchase=f"cart-{number}")
            await pending_of(tracker, f"form-{number}")
        await service.clock.advance(60.0)
        pushes = [await tracker.sale(sale(f"o{n}", phone=f"09841112{n:02}")) for n in range(10)]
        await service.clock.advance(20.0)
        assert len(service.queries) >= 10
        assert {each.state for each in pushes} == {State.PENDING}
        assert "ConfigurationError" not in caplog.text


async def test_what_had_its_last_query_long_ago_is_queried_once_more(service: FakeService) -> None:
    """Each start of a shop follows all that ever expired and was never decided: once, in case it can be found now."""
    ledger = MemoryLedger()
    async with selling(service, ledger=ledger) as (_, pending):
        await outcome_of(service, pending)
        await service.clock.advance(7 * 86_400)
    assert (pending.state, pending.outcome.evidence) == (State.EXPIRED, Evidence.LAST_QUERY)
    for _ in range(2):
        service.queries.clear()
        async with tracking(service, ledger) as tracker:
            assert (await outcome_of(service, await pending_of(tracker), 10)).paid is None
            await service.clock.advance(1000)
        assert len(service.queries) == 1


async def test_a_query_before_a_whole_window_has_passed_here_frees_no_purchase(service: FakeService) -> None:
    """A clock may be ahead, and its customer be quicker. The ledger takes the expiry only after the last queries."""
    failing = [True]
    ledger = HookedLedger(before={"Expired": lambda: disk_full() if failing else None})
    async with selling(service, ledger=ledger, purchase="cart"):
        await service.clock.advance(200)
    async with tracking(service, ledger) as tracker:
        await service.clock.advance(270)
        service.decide("Aceptado")
        failing.clear()
        await service.clock.advance(500)
        assert (await record_in(ledger)).evidence is Evidence.CLOCK
        await held_by(tracker, "cart")


async def test_that_query_comes_after_the_window_though_a_clock_was_set_back(service: FakeService) -> None:
    """By the next clock the window is open again: no query within it is the last one that a wait hopes for."""
    ledger = MemoryLedger()
    async with selling(service, ledger=ledger) as (_, pending):
        await outcome_of(service, pending)
    service.clock.jump_wall(-500)
    async with tracking(service, ledger) as tracker:
        found = await pending_of(tracker)
        waiting = asyncio.create_task(found.wait())
        await service.clock.advance(found.remaining + 1)
        service.decide("Aceptado")
        await service.clock.advance(70)
        assert (await waiting).paid is True


@pytest.mark.parametrize("fails", [1, 3])
@pytest.mark.parametrize("said", [reset, lambda: refusal(5, status=401)], ids=["reset", "401"])
async def test_that_query_is_made_again_where_it_has_no_answer(
    service: FakeService, said: Said, fails: int
) -> None:
    """What was paid meanwhile is found though the service fails as the shop starts."""
    ledger = MemoryLedger()
    async with selling(service, ledger=ledger) as (_, pending):
        await outcome_of(service, pending)
        service.decide("Aceptado")
    await service.clock.advance(7 * 86_400)
    service.status_scripts = [said] * fails
    async with tracking(service, ledger) as tracker:
        assert (await outcome_of(service, await pending_of(tracker), 300)).paid is True


async def test_a_notified_form_without_an_id_to_query_by_is_looked_at_no_more_often() -> None:
    """By transaction id alone no form is queried; its notification is confirmed, and the expiry ends the wait."""
    by_its_id = StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
    service = FakeService()
    async with tracking(service, profile=attrs.evolve(PROFILE, status=by_its_id)) as tracker:
        await tracker.prepare(form())
        await tracker.notify(payclient.Notification(transaction_id=5001, client_transaction_id="form-1"))
        async with asyncio.timeout(5):
            assert (await outcome_of(service, await pending_of(tracker, "form-1"))).paid is None
    assert not service.queries


async def test_a_write_that_is_answered_late_takes_nothing_back(service: FakeService) -> None:
    """The expiry is on record, and before its answer comes the process learns that another one has found it paid."""
    gate = Gate()
    ledger = HookedSharedLedger(after={"Expired": gate})
    async with selling(service, ledger=ledger) as (_, pending):
        service.instead = lambda path: answer(503, {})
        wait = asyncio.create_task(pending.wait())
        await service.clock.advance(301)
        await gate.there.wait()
        found = FoundAccepted(at=service.clock.time(), transaction_id=1000)
        await SharedLedger(ledger).apply(await record_in(ledger), found)
        assert (await wait).paid is True
        gate.go.set()
        await service.clock.advance(0.5)
        assert pending.outcome.paid is True
