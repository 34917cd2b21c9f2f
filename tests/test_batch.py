"""`charge_all` over a service that is a function, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast
from unittest.mock import AsyncMock, patch

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, SharedLedger
from fake_service import (
    PROFILE,
    FakeService,
    Held,
    Script,
    answer,
    error_of,
    form,
    hint,
    lost_answer,
    lost_request,
    no_connection,
    record_in,
    refusal,
    refuses,
    sale,
    seen_dead,
    tracking,
    two_processes,
    when,
)
from payclient.batch import ChargeRow
from payclient.batch.charges import KNOWN_FOR
from payclient.batch.lanes import CHUNK
from payclient.batch.retries import BUSY_FOR, UNKNOWN_IN_A_ROW
from payclient.cli.report import line_of
from payclient.clock import sleep
from payclient.events import FoundCancelled
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from raw_server import turns

State = payclient.State
Request = payclient.SaleRequest | payclient.ChargeRow
Requests = Iterable[Request] | AsyncIterable[Request]
Results = dict[str, payclient.ChargeResult]

pytestmark = pytest.mark.usefixtures("delays")


async def run(
    service: FakeService,
    tracker: payclient.Tracker,
    requests: Requests,
    *,
    each_second: Callable[[], object] | None = None,
    seconds: int = 2000,
    **options: Any,
) -> Results:
    """All results of a batch, while virtual time passes; every customer approves within a second."""
    results: Results = {}

    async def collect() -> None:
        async with payclient.charge_all(tracker, requests, **options) as charges:
            async for result in charges:
                results[result.request_key] = result

    task = asyncio.create_task(collect())
    for _ in range(seconds):
        if task.done():
            break
        await service.clock.advance(1)
        if each_second is None:
            accept_all(service)
        else:
            each_second()
    assert task.done(), "the batch did not end"
    await task
    return results


async def charged(
    service: FakeService,
    requests: Requests,
    ledger: MemoryLedger | None = None,
    profile: payclient.ServiceProfile = PROFILE,
    **options: Any,
) -> Results:
    """All results of a batch by a tracker of its own."""
    async with tracking(service, ledger, profile=profile) as tracker:
        return await run(service, tracker, requests, **options)


def silent() -> None:
    """No customer does anything."""


def rows(count: int, customers: int = 10**6) -> list[payclient.SaleRequest]:
    """Requests of so many customers in turn."""
    return [sale(f"row-{n}", phone=f"09{n % customers:08}") for n in range(count)]


def accept_all(service: FakeService) -> None:
    """Every customer approves."""
    for identifier, status in service.sales.items():
        if status["state"] == "Pendiente":
            service.decide("Aceptado", identifier)


class Prompts:
    """Every customer approves each second; `most` were asked at once."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.most = service, 0

    def __call__(self) -> None:
        asked = sum(status["state"] == "Pendiente" for status in self.service.sales.values())
        self.most = max(self.most, asked)
        accept_all(self.service)


def gaps_of(times: Iterable[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def paid_by(results: Results) -> dict[str, bool | None]:
    return {key: result.paid for key, result in results.items()}


def states_of(results: Iterable[payclient.ChargeResult]) -> list[State]:
    return [result.outcome.state for result in results if result.outcome is not None]


T = TypeVar("T")


async def in_time(work: Awaitable[T]) -> T:
    """What comes of work whose failure would be to hang."""
    async with asyncio.timeout(60):
        return await work


async def all_of(results: AsyncIterator[payclient.ChargeResult]) -> list[payclient.ChargeResult]:
    """What comes out of a batch, which must not hang."""
    async with asyncio.timeout(60):
        return [each async for each in results]


async def settled(service: FakeService) -> int:
    """How many were sent once nothing more is."""
    before = -1
    while before != (before := sum(service.posted.values())):
        await turns(200)
    return before


async def test_a_customer_has_one_open_sale_at_a_time(service: FakeService) -> None:
    """Rows of one customer wait for one another, however the phone is written: no 2061 of our own making."""
    prompts = Prompts(service)
    spelled = [("593", "0984111222"), ("593", "0984111222"), ("+593", "0984111222"), ("593", "0984 111-222")]
    requests = [
        sale(f"row-{number}", phone=phone, country_code=code) for number, (code, phone) in enumerate(spelled)
    ]
    assert len(await charged(service, requests, each_second=prompts)) == 4
    assert prompts.most == 1


@pytest.mark.parametrize("wait", [None, 1000])
async def test_an_expired_sale_frees_its_customer_early(service: FakeService, wait: int | None) -> None:
    """The lane goes on at the expiry; the first row's result comes when the last query is made."""
    results = await charged(service, rows(2, customers=1), each_second=silent, wait=wait)
    assert states_of(results.values()) == [State.EXPIRED] * 2
    assert service.posted_at["row-1"] < 310


@pytest.mark.parametrize("scale", [1.0, 0.5])
async def test_an_unknown_sale_holds_its_customer_longer(service: FakeService, scale: float) -> None:
    """Nobody knows since when it runs: the sale window and 60 s, not the total time-out; scaled as the window."""
    service.scripts = [lost_request]
    service.status_scripts = [lambda: refusal(20, status=404)] * 1000
    profile = attrs.evolve(PROFILE, sale_window=300 * scale)
    results = await charged(service, rows(2, customers=1), profile=profile, each_second=silent, seconds=4000)
    assert len(results) == 2
    assert 360 * scale - 2 <= service.posted_at["row-1"] <= 360 * scale + 2


async def test_both_limits_hold(service: FakeService) -> None:
    """At most `max_pending` prompts are open, and at most `max_in_flight` requests under way."""
    in_flight = most_in_flight = 0
    prompts, create = Prompts(service), service.take

    async def counted(request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        try:
            return await create(request, before_send)
        finally:
            in_flight -= 1

    service.take = counted  # type: ignore[method-assign]  # the fake's own seam
    async with tracking(service, schedule=payclient.Fixed(0.2)) as tracker:
        await run(service, tracker, rows(60), each_second=prompts, max_in_flight=3, max_pending=7)
    assert (most_in_flight, prompts.most) == (3, 7)


async def test_a_sale_that_expired_leaves_its_place_to_another_customer(service: FakeService) -> None:
    """Its last queries are still to come, and nobody reads a result until then."""
    async with tracking(service) as tracker:
        await run(service, tracker, rows(2), seconds=1000, each_second=silent, max_pending=1)
    assert 300 <= service.posted_at["row-1"] < 303


async def test_a_second_run_sends_nothing(service: FakeService) -> None:
    """The ledger knows every row; the results are the same."""
    ledger = MemoryLedger()
    first = await charged(service, rows(20), ledger)
    second = await charged(service, rows(20), ledger, each_second=silent)
    assert paid_by(first) == paid_by(second)
    assert sum(service.posted.values()) == 20


async def test_refused_rows_are_tried_again_where_it_is_asked_for(service: FakeService) -> None:
    """Code 22 stays refused, and is sent again with `retry` only."""
    ledger = MemoryLedger()
    service.scripts = [refuses(22)]
    for _ in range(2):
        results = await charged(service, rows(1), ledger)
        assert paid_by(results) == {"row-0": False}
    assert states_of(results.values()) == [State.REFUSED]
    assert not service.posted
    assert (await charged(service, rows(1), ledger, retry={"refused"}))["row-0"].paid is True


async def cancelled(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
    """A connector that its owner closes cancels who waits for a connection."""
    raise asyncio.CancelledError


async def test_one_failing_row_never_ends_the_others(service: FakeService) -> None:
    """Other content under a known id, no connection, and a request that nobody of ours cancelled; the last is paid."""
    ledger = MemoryLedger()
    await charged(service, rows(1), ledger)
    service.scripts = [*[no_connection] * 3, cancelled]
    requests = [
        sale("row-0", amount_with_tax=1), *[sale(each, phone=f"09{n}") for n, each in enumerate("abc")],
    ]  # fmt: skip
    results = await charged(service, requests, ledger, max_in_flight=1)
    assert isinstance(results["row-0"].error, payclient.DifferentRequestError)
    for each in "ab":
        assert isinstance(results[each].error, payclient.NotSentError)
        assert results[each].paid is None
    assert results["c"].paid is True


@pytest.mark.parametrize("scale", [1.0, 0.1])
async def test_a_busy_customer_is_tried_again_and_then_given_up(service: FakeService, scale: float) -> None:
    """Code 2061 without a sale of ours: again after 10, 20, 40, 60 s, for six minutes at most; scaled as the window."""
    profile = attrs.evolve(PROFILE, sale_window=300 * scale)
    service.scripts = [refuses(22, 2061)] * 5
    assert (await charged(service, rows(1), profile=profile))["row-0"].paid is True
    begun = service.clock.monotonic()
    assert 190 * scale <= begun <= 190 * scale + 6
    service.scripts = [refuses(22, 2061)] * 50
    results = await charged(service, [sale("busy", phone="0997")], profile=profile)
    assert isinstance(results["busy"].error, payclient.CustomerBusyError)
    assert service.clock.monotonic() - begun <= BUSY_FOR * scale + 1


async def test_a_busy_customer_and_a_busy_service_are_counted_apart(service: FakeService) -> None:
    """Neither do three 429s make the first wait for a customer longer, nor six 2061s a 429 the last one."""
    service.scripts = [*[refuses(5, status=429, retry_after=1)] * 3, *[refuses(22, 2061)] * 2]
    assert (await charged(service, rows(1)))["row-0"].paid is True
    assert service.posted_at["row-0"] <= 10 + 20 + 10
    service.scripts = [*[refuses(22, 2061)] * 6, refuses(5, status=429)]
    assert (await charged(service, [sale("busy", phone="0997")]))["busy"].paid is True


async def test_a_row_whose_earlier_attempt_waits_for_its_customer_is_not_unpaid(service: FakeService) -> None:
    """Refused as existing, and found as late as in the next batch: the customer may approve it after the batch."""
    ledger = MemoryLedger()
    service.scripts = [refuses(22, 2061)]
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
    service.add_sale(state="Pendiente")
    results = await charged(service, [sale()], ledger, each_second=silent)
    assert (results["order-17"].outcome, results["order-17"].paid) == (None, None)
    line = line_of(ChargeRow(request=sale()), None, results["order-17"].error)
    assert (line.state, line.paid) == ("", None)
    assert "waits for the customer" in line.message
    assert not service.posted


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_batch_whose_tasks_are_cancelled_by_others_ends(service: FakeService, seconds: int) -> None:
    """A process that ends cancels all tasks but one: whoever reads the results is told, and nothing is sent twice."""
    async with tracking(service) as tracker:
        before = asyncio.all_tasks()
        async with payclient.charge_all(tracker, rows(3)) as charges:
            await service.clock.advance(seconds)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            with pytest.raises(payclient.UsageError, match="cancelled"):
                async with asyncio.timeout(5):
                    await anext(charges)
        again = await run(service, tracker, rows(3))
        assert [each.paid for each in again.values()] == [True] * 3
    assert set(service.posted.values()) == {1}


async def test_what_was_known_before_a_batch_failed_is_told_first(service: FakeService) -> None:
    """Nobody had read it yet as others cancelled all tasks."""
    async with tracking(service) as tracker:
        before = asyncio.all_tasks()
        async with payclient.charge_all(tracker, rows(2)) as charges:
            await service.clock.advance(1)
            service.decide("Aceptado")
            await service.clock.advance(30)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await service.clock.advance(0)
            outcome = (await anext(charges)).outcome
            assert outcome is not None
            assert outcome.paid is True
            await error_of(payclient.UsageError, anext(charges), match="cancelled")


@pytest.mark.parametrize("count", range(8))
async def test_a_batch_whose_tasks_are_cancelled_as_they_begin_goes_on(
    service: FakeService, count: int
) -> None:
    """After however many turns of the loop others cancel all: the next run charges each row, once."""
    async with tracking(service) as tracker:
        before = asyncio.all_tasks()
        async with payclient.charge_all(tracker, rows(3)):
            await turns(count)
            for task in asyncio.all_tasks() - before:
                task.cancel()
        again = await run(service, tracker, rows(3))
        assert [each.paid for each in again.values()] == [True] * 3
    assert set(service.posted.values()) == {1}


async def test_a_batch_whose_ledger_breaks_its_word_ends(service: FakeService) -> None:
    """A ledger of the user's own raises what no ledger may, while a refused row waits for its customer's first one."""
    ledger, both = MemoryLedger(), rows(2, customers=1)
    service.scripts = [refuses(100)]
    await charged(service, both[1:], ledger)
    async with tracking(service, ledger) as tracker, payclient.charge_all(tracker, both, wait=0) as charges:
        assert (await anext(charges)).request_key == "row-0"
        ledger.get_many = AsyncMock(side_effect=RuntimeError("broken"))  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="broken"):
            async with asyncio.timeout(5):
                await anext(charges)


async def test_pending_counts_who_is_waited_for(service: FakeService) -> None:
    """One customer is asked, and then nobody."""
    async with tracking(service) as tracker, payclient.charge_all(tracker, rows(1)) as charges:
        await service.clock.advance(1)
        assert charges.pending == 1
        accept_all(service)
        await service.clock.advance(60)
        assert charges.pending == 0


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_limited_wait_reports_open_rows(service: FakeService, wait: int) -> None:
    """After `wait` seconds a row comes out as it stands; after none, once it is recorded."""
    results = await charged(service, rows(2), wait=wait, each_second=silent)
    assert {*states_of(results.values())} == {State.PENDING}
    assert wait <= service.clock.monotonic() <= wait + 2


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_customer_is_busy_beyond_a_limited_wait(service: FakeService, wait: int) -> None:
    """The first request stands on the phone until it is answered, or has expired: another would be refused (2061)."""

    def answered() -> None:
        if service.clock.monotonic() > 100:
            accept_all(service)

    for busy, each_second in ((100, answered), (300, silent)):
        began = service.clock.monotonic()
        twice = [sale(f"busy-{busy}-{n}", phone=f"09{busy:08}") for n in range(2)]
        assert len(await charged(service, twice, wait=wait, each_second=each_second)) == 2
        assert busy <= service.posted_at[f"busy-{busy}-1"] - began <= busy + 5


@pytest.mark.parametrize(
    ("script", "state"), [(FakeService.take, State.EXPIRED), (lost_request, State.UNKNOWN)]
)
async def test_a_limited_wait_holds_beyond_the_expiry(
    service: FakeService, script: Script, state: State
) -> None:
    """In the run that sent it, and in the next one: its last queries come up to eleven minutes after its permit."""
    ledger, service.scripts = MemoryLedger(), [script]
    for wait in (365, 2):
        began = service.clock.monotonic()
        results = await charged(service, rows(1), ledger, wait=wait, each_second=silent)
        assert states_of(results.values()) == [state]
        assert wait <= service.clock.monotonic() - began <= wait + 2


@pytest.mark.parametrize("script", [FakeService.take, lost_answer, lost_request])
@pytest.mark.parametrize("wait", [None, 5])
async def test_a_wall_clock_that_is_set_back_holds_no_customer_for_as_long(
    service: FakeService, script: Script, wait: int | None
) -> None:
    """By a day, amid a batch: the next row waits until the first is surely over by the monotonic clock."""
    service.scripts = [script]
    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, rows(2, customers=1), wait=wait) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(20)
        service.clock.jump_wall(-86_400)
        for _ in range(2000):
            await service.clock.advance(1)
        assert reading.done()
        assert len(await reading) == 2
    assert 300 <= service.posted_at["row-1"] <= 1000


async def test_a_wall_clock_that_is_set_forward_frees_no_customer(service: FakeService) -> None:
    """By an hour, amid a batch: the next row waits for as long as the customer can approve the first."""
    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, rows(2, customers=1), wait=5) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(3)
        service.clock.jump_wall(3600)
        for _ in range(400):
            await service.clock.advance(1)
        assert len(await reading) == 2
    assert 300 <= service.posted_at["row-1"] <= 320


async def test_a_limited_wait_does_not_begin_anew(service: FakeService) -> None:
    """An unknown sale that is found has its five minutes from then on."""
    service.scripts = [lost_answer]
    service.instead = lambda _: answer(200, []) if service.clock.monotonic() < 200 else None
    results = await charged(service, rows(1), wait=400, each_second=silent)
    assert states_of(results.values()) == [State.PENDING]
    assert 400 <= service.clock.monotonic() <= 402


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0}, {"max_pending": 0}, {"max_in_flight": math.nan}, {"max_pending": math.nan},
        {"rate": 0.0}, {"rate": math.nan}, {"rate": math.inf}, {"rate": 10**400},
        {"wait": -1.0}, {"wait": math.nan}, {"wait": math.inf}, {"wait": 10**400}, {"retry": {"all"}},
        {"retry": {"refused", "all"}},
    ],
)  # fmt: skip
async def test_bad_limits_are_refused(service: FakeService, options: dict[str, Any]) -> None:
    """A limit that cannot be is a ValueError, before anything is sent."""
    async with tracking(service) as tracker:
        with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
            payclient.charge_all(tracker, [], **options)


# --- The source, and the window over it


async def fails_late() -> AsyncIterator[payclient.SaleRequest]:
    yield sale("a", phone="0991")
    yield sale("b", phone="0992")
    raise LookupError("the source is gone")


async def waits_for_what_was_cancelled() -> AsyncIterator[payclient.SaleRequest]:
    yield sale("a")
    waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waited.cancel()
    await waited


def fails_after(count: int) -> Iterator[payclient.SaleRequest]:
    yield from rows(count)
    raise LookupError("the source is gone")


@pytest.mark.parametrize(
    ("source", "error", "read"),
    [
        (fails_late(), LookupError, 2), (waits_for_what_was_cancelled(), payclient.UsageError, 1),
        (fails_after(CHUNK), LookupError, CHUNK), (fails_after(1), LookupError, 0), (fails_after(0), LookupError, 0),
        ([*rows(CHUNK), cast(Request, form())], TypeError, CHUNK),
    ],
    ids=["async", "cancelled", "in a later chunk", "in the first chunk", "at once", "not a sale's request"],
)  # fmt: skip
async def test_a_source_that_fails_ends_the_rest_and_says_so(
    service: FakeService, source: Requests, error: type[BaseException], read: int
) -> None:
    """What was read gets its result; the error comes out at the end, however often it is asked, and nothing hangs."""
    seen = []
    async with tracking(service) as tracker, payclient.charge_all(tracker, source, wait=0) as charges:
        for _ in range(2):
            with pytest.raises(error):
                while True:
                    seen.append((await in_time(anext(charges))).request_key)
    assert len(set(seen)) == len(seen) >= read
    assert {*service.posted.values()} <= {1}


async def test_requests_that_are_cancelled_end_no_task_group_as_if_all_was_read(service: FakeService) -> None:
    """A task group takes a bare `CancelledError` of its task for its end, and says nothing."""

    async def batch(tracker: payclient.Tracker) -> None:
        async with payclient.charge_all(tracker, waits_for_what_was_cancelled(), wait=0) as charges:
            await all_of(charges)

    async with tracking(service) as tracker:
        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                group.create_task(batch(tracker))
    assert [type(error) for error in raised.value.exceptions] == [payclient.UsageError]


async def test_the_longest_lane_never_waits(service: FakeService) -> None:
    """With two prompts for six customers, the one with most charges is asked again as soon as its sale has ended."""
    lanes = [
        sale(f"lane-{lane}-{number}", phone=f"09{lane:08}")
        for lane, size in ((2, 6), (0, 1), (1, 1), (3, 1), (4, 1), (5, 1))
        for number in range(size)
    ]
    begun = service.clock.time() - service.clock.monotonic()
    results = await charged(service, lanes, max_pending=2)
    assert list(paid_by(results).values()) == [True] * 11
    assert next(iter(service.posted_at)) == "lane-2-0"
    outcomes = [results[f"lane-2-{number}"].outcome for number in range(6)]
    ended = [outcome.decided_at for outcome in outcomes if outcome is not None]
    # The last is one row as others have.
    assert ended[:4] == [begun + service.posted_at[f"lane-2-{number}"] for number in range(1, 5)]
    assert set(service.posted.values()) == {1}


async def test_a_customer_who_was_charged_before_is_charged_again(service: FakeService) -> None:
    """Their next row comes when nothing of theirs waits any more."""
    minute = asyncio.Event()
    service.clock.call_at(60, minute.set)

    async def late() -> AsyncIterator[payclient.SaleRequest]:
        for row in rows(2, customers=1):
            yield row
            await minute.wait()

    assert list(paid_by(await charged(service, late())).values()) == [True] * 2


async def test_a_list_is_read_whole(service: FakeService) -> None:
    """A long lane behind more rows than a window holds is begun at once, and not at the end."""
    long = [sale(f"long-{number}", phone="0999999999") for number in range(3)]
    assert len(await charged(service, [*rows(1200), *long], max_pending=100)) == 1203
    begun = list(service.posted_at)
    assert begun.index("long-0") <= 200
    assert begun.index("long-1") < 600


async def test_a_window_holds_as_many_as_may_be_pending(service: FakeService) -> None:
    """More prompts than the window would read ahead by itself are all open at once."""
    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, iter(rows(1500)), max_pending=1500, max_in_flight=500) as results,
    ):
        for _ in range(4):
            await service.clock.advance(1)
        assert results.pending == 1500


async def test_the_source_is_read_no_farther_than_the_window(service: FakeService) -> None:
    """Memory is bounded whatever the source holds; each result makes room for a row."""
    read = 0

    def source(count: int) -> Iterator[payclient.SaleRequest]:
        nonlocal read
        for row in rows(count):
            read += 1
            yield row

    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, source(5000), max_pending=10) as results,
    ):
        await service.clock.advance(5)
        assert results.pending == 10
    assert 1000 <= read <= 1000 + 2 * CHUNK
    assert len(await charged(FakeService(), source(1100), max_pending=100)) == 1100


# --- The pace


async def test_a_429_slows_the_sends_and_they_recover(service: FakeService) -> None:
    """Ten a second before, a hold, half as many after it, and then faster again."""
    service.scripts = [FakeService.take] * 20 + [refuses(5, status=429)]
    with patch.object(service.clock, "call_at", wraps=service.clock.call_at) as timers:
        results = await charged(service, rows(80), rate=10)
    assert timers.call_count < 1000  # each timer for the next send ends the one before
    assert all(result.paid for result in results.values())
    gaps = gaps_of(service.posted_at.values())
    assert max(gaps[:19]) == pytest.approx(0.1)
    assert gaps[19] == pytest.approx(5.1, abs=0.2)
    assert gaps[20] == pytest.approx(0.2, abs=0.02)
    assert gaps[-1] == pytest.approx(0.1)
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(gaps[20:]))


async def test_where_no_rate_was_told_a_429_halves_that_of_late(service: FakeService) -> None:
    """One at a time, each a second long: two seconds between two sends after it."""

    async def slowly(_: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        done = asyncio.Event()
        service.clock.call_at(service.clock.monotonic() + 1, done.set)
        await done.wait()
        return await service.take(request, before_send)

    service.scripts = [*[slowly] * 20, refuses(5, status=429), *[slowly] * 20]
    await charged(service, rows(40), max_in_flight=1)
    gaps = gaps_of(service.posted_at.values())
    assert gaps[:19] == [1.0] * 19
    assert gaps[20] == pytest.approx(2, abs=0.2)


async def test_the_longest_of_two_pauses_holds(service: FakeService) -> None:
    """Two in flight are answered 429, the second with a shorter `Retry-After`."""
    service.scripts = [refuses(5, status=429, retry_after=seconds) for seconds in (30, 1)]
    await charged(service, rows(2))
    assert min(service.posted_at.values()) >= 30


async def test_a_row_that_is_rate_limited_for_ever_is_given_up(service: FakeService) -> None:
    """Six sends, and then its 429 is the result; none comes before `Retry-After` allows it."""
    times: list[float] = []
    limited = when(lambda: times.append(service.clock.monotonic()), refuses(5, status=429, retry_after=30))
    service.scripts = [limited] * 50
    results = await charged(service, rows(1))
    assert isinstance(results["row-0"].error, payclient.RateLimitedError)
    assert len(times) == 6
    assert min(gaps_of(times)) >= 30


async def test_however_often_it_is_rate_limited_a_batch_goes_on(service: FakeService) -> None:
    """A send a minute at the slowest, after its pause."""
    service.scripts = [refuses(5, status=429)] * 20
    results = await charged(service, rows(12), seconds=3000, rate=1)
    assert sum(result.paid is True for result in results.values()) >= 6
    assert max(gaps_of(service.posted_at.values())) <= 65


@pytest.mark.parametrize(
    ("options", "gap"),
    [({}, 4.0), ({"rate": 10}, 4.0), ({"rate": 0.1}, 10.0), ({"rate": 10, "wait": 0}, 0.1)],
)
async def test_the_slower_rate_holds(service: FakeService, options: dict[str, Any], gap: float) -> None:
    """The rate that was told and the one that queries can follow, which binds no run that makes none."""
    await charged(service, rows(4), profile=attrs.evolve(PROFILE, queries_per_minute=30), **options)
    assert list(service.posted_at.values()) == pytest.approx([gap * n for n in range(4)])


async def test_a_pause_is_not_made_up_for(service: FakeService) -> None:
    """Rows that come after a quiet minute go at the rate, not in a burst."""
    minute = asyncio.Event()
    service.clock.call_at(60, minute.set)

    async def late() -> AsyncIterator[payclient.SaleRequest]:
        for number, row in enumerate(rows(6)):
            if number == 1:
                await minute.wait()
            yield row

    await charged(service, late(), rate=2)
    assert gaps_of([*service.posted_at.values()][1:]) == pytest.approx([0.5] * 4)


# --- What the ledger knows


class Forgetful(MemoryLedger):
    """Finds none of many, if it is told so."""

    forgets = False

    async def get_many(self, client_transaction_ids: Sequence[str]) -> dict[str, Record]:
        return {} if self.forgets else await super().get_many(client_transaction_ids)


async def test_a_refused_row_that_is_found_paid_while_it_waits_is_paid(service: FakeService) -> None:
    """It waits for its customer's first row; meanwhile a notification names a transaction, which is paid."""
    ledger, both = MemoryLedger(), rows(2, customers=1)
    service.scripts = [refuses(100)]
    await charged(service, both[1:], ledger)

    def then() -> None:
        if service.clock.monotonic() < 60:
            return
        accept_all(service)

    async with tracking(service, ledger) as tracker:
        running = asyncio.create_task(run(service, tracker, both, each_second=then))
        await turns(200)
        service.add_sale(7777, clientTransactionId="row-1")
        await tracker.notify(hint(7777, "row-1"))
        assert paid_by(await running) == {"row-0": True, "row-1": True}


async def test_a_refused_row_that_cannot_be_read_again_is_not_called_unpaid(service: FakeService) -> None:
    """It was found paid while it waited for its customer's first row, and the ledger fails at its turn."""
    fails, both = False, rows(2, customers=1)
    ledger = FailingLedger(lambda name: fails and name == "get")
    service.scripts = [refuses(100)]
    await charged(service, both[1:], ledger)
    async with tracking(service, ledger) as tracker:
        running = asyncio.create_task(run(service, tracker, both, each_second=silent))
        await turns(200)
        service.add_sale(7777, clientTransactionId="row-1")
        service.decide("Aceptado", 7777)
        await tracker.notify(hint(7777, "row-1"))
        await turns(200)
        assert (await ledger.peek("row-1")).state.paid
        fails = True
        results = await running
    assert isinstance(results["row-1"].error, payclient.LedgerUnavailableError)
    assert results["row-1"].paid is None


@pytest.mark.parametrize("state", ["Aceptado", "Pendiente"])
async def test_the_permit_is_the_judge_of_what_the_look_up_missed(service: FakeService, state: str) -> None:
    """Somebody sent the row between its look-up and its turn: theirs is followed, and nothing is sent."""
    ledger = Forgetful()
    await charged(service, rows(3), ledger, wait=0, each_second=silent)
    for identifier in service.sales:
        service.decide(state, identifier)
    ledger.forgets = True
    results = await charged(service, [*rows(1), sale("row-1", phone="0999999999")], ledger)
    assert results["row-0"].paid is True
    assert isinstance(results["row-1"].error, payclient.DifferentRequestError)
    assert set(service.posted.values()) == {1}


@pytest.mark.parametrize(
    "script",
    [refuses(1, status=401), refuses(5, status=429), refuses(22, 2061), lost_request, seen_dead],
    ids=["401", "429", "2061", "absent", "not sent"],
)
async def test_a_refusal_of_the_moment_is_tried_by_the_next_run(service: FakeService, script: Script) -> None:
    """Each is a decided refusal of an attempt that created nothing; the next run makes a new one by itself."""
    ledger = MemoryLedger()
    service.scripts = [script] * 50
    first = await charged(service, rows(1), ledger, seconds=4000)
    record = await record_in(ledger, "row-0")
    assert (record.state, first["row-0"].paid) == (State.REFUSED, None if script is seen_dead else False)
    assert not service.posted
    service.scripts = []
    assert (await charged(service, rows(1), ledger))["row-0"].paid is True
    assert service.posted == {"row-0": 1}


@pytest.mark.parametrize("retry", [(), ("refused",)])
@pytest.mark.parametrize("script", [FakeService.take, lost_answer], ids=["pending", "unknown"])
async def test_what_may_exist_is_never_called_never_sent(
    service: FakeService, script: Script, retry: tuple[str, ...]
) -> None:
    """A batch that is stopped at its start reports rows that an earlier run sent as they stand."""
    ledger = MemoryLedger()
    service.scripts = [script] * 3
    first = await charged(service, rows(3), ledger, wait=0, each_second=silent)
    async with (
        tracking(service, ledger) as tracker,
        payclient.charge_all(tracker, rows(4), wait=0, retry=retry) as charges,
    ):
        charges.stop("at once")
        results = {result.request_key: result async for result in charges}
    for key, result in first.items():
        assert states_of([results[key]]) == states_of([result]) != [State.SENDING]
        assert results[key].paid is None
    assert isinstance(results["row-3"].error, payclient.NotSentError)


# --- Its end


async def test_leaving_waits_for_the_answer_of_what_was_sent(service: FakeService) -> None:
    """The block ends when every send under way is recorded, with what its answer said, and sends nothing more."""
    held, ledger = Held(), MemoryLedger()
    service.scripts = [held] * 3

    async def leave() -> payclient.batch.Charges:
        async with payclient.charge_all(tracker, rows(9), max_in_flight=3) as charges:
            await turns(200)
        return charges

    async with tracking(service, ledger) as tracker:
        leaving = asyncio.create_task(leave())
        await turns(500)
        assert not leaving.done()
        held.go.set()
        charges = await leaving
        assert [record.state async for record in ledger.unfinished()] == [State.PENDING] * 3
        await service.clock.advance(5)
    assert charges.stopped == "the batch was left"
    assert len(service.posted) == 3


async def test_leaving_does_not_wait_for_a_reader(service: FakeService) -> None:
    """Results that nobody reads hold up no one: as many as the window are kept, and then nothing more is sent."""
    held = Held()
    service.scripts = [FakeService.take] * 1000 + [held] * 3
    async with asyncio.timeout(60), tracking(service) as tracker:
        async with payclient.charge_all(tracker, rows(9000), wait=0, max_pending=10, max_in_flight=3):
            await settled(service)
            held.go.set()
        assert sum(service.posted.values()) == 1003


async def test_nobody_waits_for_results_outside_the_block(service: FakeService) -> None:
    """Without `async with`, by another task as it is left, and after what was left unread; its end stays an end."""
    async with tracking(service) as tracker:
        await error_of(payclient.UsageError, all_of(payclient.charge_all(tracker, rows(1))), "inside")
        async with payclient.charge_all(tracker, rows(1)) as results:
            reading = asyncio.create_task(all_of(results))
            await turns(200)
        await error_of(payclient.UsageError, reading, "inside")
        await error_of(payclient.UsageError, all_of(results), "inside")
        async with payclient.charge_all(tracker, rows(3), wait=0, rate=0.001) as results:
            await turns(200)
        assert [(await in_time(anext(results))).request_key for _ in range(2)] == ["row-0", "row-1"]
        await error_of(payclient.UsageError, all_of(results), "inside")
        async with payclient.charge_all(tracker, rows(1), wait=0) as results:
            assert len(await all_of(results)) == 1
        assert await all_of(results) == []
        for count in range(20):  # two readers: in one of these turns the first has just been given a result
            two = [sale(f"of-{count}", "0984111222"), sale(f"and-{count}", "0984111333")]
            async with payclient.charge_all(tracker, two, wait=0, rate=0.001) as results:
                readers = [asyncio.ensure_future(anext(results)) for _ in range(2)]
                await turns(count)
            await in_time(asyncio.gather(*readers, return_exceptions=True))


async def test_leaving_a_batch_that_is_full_ends_though_its_requests_wait(service: FakeService) -> None:
    """As many results as it keeps are ready, nobody reads them, and more rows may come."""

    async def requests() -> AsyncIterator[payclient.SaleRequest]:
        for each in rows(1000):
            yield each
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(60),
        tracking(service) as tracker,
        payclient.charge_all(tracker, requests(), max_pending=500, wait=0),
    ):
        assert await settled(service) == 1000


async def test_leaving_ends_though_a_source_loses_its_cancellation(service: FakeService) -> None:
    """And yields requests without end, for which a batch that was left has no room."""

    async def requests() -> AsyncIterator[payclient.SaleRequest]:
        for number in itertools.count():
            yield sale(f"row-{number}", phone=f"09{number:08}")
            if number > 20:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

    async with tracking(service) as tracker:

        async def leave() -> None:
            async with payclient.charge_all(tracker, requests(), max_pending=5):
                await turns(50)

        leaving = asyncio.create_task(leave())
        await turns(20_000)
        assert leaving.done()


async def test_results_that_nobody_reads_stop_the_reading_of_rows(service: FakeService) -> None:
    """Memory is bounded by the window however fast the service is and however slow the reader."""
    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, rows(2500), wait=0, max_pending=10) as charges,
    ):
        assert 1000 <= await settled(service) <= 2000
        assert len(await all_of(charges)) == 2500


async def test_the_first_reason_to_stop_stays(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once and not overwritten; the rest comes out at once, whatever the rate."""
    async with tracking(service) as tracker:
        async with payclient.charge_all(tracker, rows(50), rate=0.01) as charges:
            charges.stop("the first")
            charges.stop("the second")
            results = await all_of(charges)
        assert service.clock.monotonic() < 5
    assert charges.stopped == "the first"
    assert "the first" in caplog.text
    assert "the second" not in caplog.text
    assert all("not sent yet: the first" in str(result.error) for result in results)
    assert [result.paid for result in results] == [None] * 50


async def test_a_row_that_was_refused_when_the_batch_stops_says_so(service: FakeService) -> None:
    """A busy customer is not waited for any more, and the row is refused, not "never sent"."""
    service.scripts = [when(lambda: charges.stop("interrupted"), refuses(22, 2061))]
    async with tracking(service) as tracker, payclient.charge_all(tracker, rows(1)) as charges:
        (result,) = await all_of(charges)
    assert isinstance(result.error, payclient.CustomerBusyError)


async def test_a_batch_that_stops_waits_for_no_busy_customer(service: FakeService) -> None:
    """Twice refused by 2061, and to be tried again in 20 s: nobody is asked right now, so that the batch is over."""
    service.scripts = [refuses(22, 2061)] * 2
    async with tracking(service) as tracker, payclient.charge_all(tracker, rows(1)) as results:
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(12)
        assert not service.scripts
        results.stop("interrupted")
        await turns(200)
        assert reading.done()
        assert [type(each.error) for each in await reading] == [payclient.NotSentError]


async def test_a_refused_row_makes_room_for_the_next_prompt(service: FakeService) -> None:
    """With one prompt at a time, three refusals and three tries of a busy customer take none away."""
    service.scripts = [refuses(22)] * 3 + [refuses(22, 2061)] * 3
    results = await charged(service, rows(6), max_pending=1)
    assert sorted(str(result.paid) for result in results.values()) == ["False"] * 3 + ["True"] * 3


async def test_what_is_known_comes_out_before_what_the_rate_holds_back(service: FakeService) -> None:
    """A re-run reports the rows of the first run at once."""
    ledger = MemoryLedger()
    await charged(service, rows(5), ledger)
    async with (
        tracking(service, ledger) as tracker,
        payclient.charge_all(tracker, reversed(rows(25)), rate=0.01, wait=0) as charges,
    ):
        known = [(await in_time(anext(charges))).request_key for _ in range(6)]
    assert set(known) >= {f"row-{n}" for n in range(5)}


# --- What stops it


async def test_a_refused_token_stops_the_sending(service: FakeService) -> None:
    """One 401: what is open is followed to its end, the rest comes out as never sent."""
    service.scripts = [FakeService.take, refuses(1, status=401)]
    results = await charged(service, rows(10), max_in_flight=1)
    assert results["row-0"].paid is True
    assert isinstance(results["row-1"].error, payclient.UnauthorizedError)
    assert all(isinstance(results[f"row-{n}"].error, payclient.NotSentError) for n in range(2, 10))
    assert len(service.posted) == 1


NO_CONNECTION = [no_connection] * 3  # a charge tries it three times


@pytest.mark.parametrize(
    ("scripts", "posted", "failed", "kind"),
    [
        (NO_CONNECTION * 5, 0, 20, payclient.NotSentError),
        ([*NO_CONNECTION * 4, FakeService.take, *NO_CONNECTION * 4], 12, 8, payclient.NotSentError),
        ([*NO_CONNECTION * 4, refuses(100), *NO_CONNECTION * 4], 11, 9, payclient.PayError),
        (([lost_answer] * 4 + [FakeService.take]) * 2 + [lost_answer] * 5, 15, 5, payclient.NotSentError),
        ([*[lost_answer] * 4, refuses(100), *[lost_answer] * 4], 19, 1, payclient.RefusedError),
    ],
    ids=[
        "five without a connection", "one taken between", "one answered between", "five unknown at the end",
        "one refused between",
    ],
)  # fmt: skip
async def test_five_in_a_row_stop_the_sending(
    service: FakeService, scripts: list[Script], posted: int, failed: int, kind: type[Exception]
) -> None:
    """That find no connection, or get no answer: the others are not tried. One that gets through begins anew."""
    service.scripts = list(scripts)
    results = await charged(service, rows(20), wait=0, max_in_flight=1, each_second=silent)
    errors = [result.error for result in results.values() if result.error is not None]
    assert (len(results), len(service.posted), len(errors)) == (20, posted, failed)
    assert all(isinstance(error, kind) for error in errors)


async def test_what_a_crash_left_unknown_stops_no_batch(service: FakeService) -> None:
    """Only outcomes of what this run sent count as unknown in a row."""
    ledger = MemoryLedger()
    service.scripts = [lost_request] * UNKNOWN_IN_A_ROW
    first = await charged(service, rows(UNKNOWN_IN_A_ROW - 1), ledger, wait=0, each_second=silent)
    assert {*states_of(first.values())} == {State.UNKNOWN}
    results = await charged(service, rows(20), ledger, wait=0, max_in_flight=1, each_second=silent)
    assert not [result for result in results.values() if result.error is not None]
    assert len(service.posted) == 20 - UNKNOWN_IN_A_ROW


async def test_purchases_whose_other_asks_are_in_doubt_stop_no_batch(service: FakeService) -> None:
    """They may be paid by forms that no query under the renewed token finds, at each run anew: the service answers."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        for number in range(9):
            await tracker.prepare(form(f"form-{number}"), purchase=f"cart-{number}")
            record = await record_in(ledger, f"form-{number}")
            await ledger.apply(record, FoundCancelled(at=service.clock.time()))
            await tracker.notify(hint(5000 + number, f"form-{number}"))
    await service.clock.advance(20_000)
    carts = [ChargeRow(request=each, purchase=f"cart-{number}") for number, each in enumerate(rows(20))]
    async with tracking(service, ledger, token="renewed") as tracker:
        results = await run(service, tracker, carts, wait=0, max_in_flight=1, each_second=silent)
    assert [type(result.error) for result in results.values()].count(payclient.NotSentError) == 9
    assert len(service.posted) == 11


# --- Tokens


class Tokens:
    """Gives `token-1`, and the next number each time that it is asked for; `used` by the Sales of the service."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.given = service, 0
        self.used: list[str] = []

    async def __call__(self) -> str:
        self.given += 1
        return f"token-{self.given}"

    async def send(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "POST":
            self.used.append((request.headers or {})["Authorization"].removeprefix("Bearer "))
        return await self.service(request, before_send)


@pytest.fixture
async def tokens(service: FakeService) -> Tokens:
    return Tokens(service)


async def charged_with(tokens: Tokens, *batches: Requests, **options: Any) -> list[Results]:
    """The results of some batches, one after another, by one tracker."""
    service = tokens.service
    async with tracking(service, token=tokens, transport=tokens.send) as tracker:
        return [await run(service, tracker, batch, **options) for batch in batches]


async def test_a_token_that_rotates_stops_nothing(service: FakeService, tokens: Tokens) -> None:
    """A 401 asks for a fresh token and tries the row again, once; a second one stops the sending."""
    service.scripts = [FakeService.take, refuses(1, status=401), *[FakeService.take] * 4]
    service.scripts += [refuses(1, status=401)] * 5
    late = [sale(f"late-{n}", phone=f"08{n:08}") for n in range(5)]
    first, second = await charged_with(tokens, rows(5), late, max_in_flight=1)
    assert [result.paid for result in first.values()] == [True] * 5
    assert tokens.used == ["token-1"] * 2 + ["token-2"] * 5 + ["token-3"]
    assert sum(isinstance(result.error, payclient.UnauthorizedError) for result in second.values()) == 1
    assert service.posted == {f"row-{n}": 1 for n in range(5)}


async def test_a_403_asks_for_no_other_token(service: FakeService, tokens: Tokens) -> None:
    """The token is known and may not do this: the batch stops at once."""
    service.scripts = [refuses(1, status=403)] * 5
    (results,) = await charged_with(tokens, rows(5), max_in_flight=1)
    assert tokens.used == ["token-1"]
    assert isinstance(results["row-0"].error, payclient.UnauthorizedError)


async def test_all_that_had_the_old_token_goes_again(service: FakeService, tokens: Tokens) -> None:
    """Five in flight are answered 401: one token is asked for, and none of the five is given up."""
    service.scripts = [refuses(1, status=401)] * 5
    (results,) = await charged_with(tokens, rows(5))
    assert tokens.used == ["token-1"] * 5 + ["token-2"] * 5
    assert [result.paid for result in results.values()] == [True] * 5


@pytest.mark.parametrize("is_proven", [False, True])
async def test_the_old_token_proves_nothing_of_the_new_one(
    service: FakeService, tokens: Tokens, is_proven: bool
) -> None:
    """A 401, a late success of the old token, and a 401 with the new one: no third token unless that was taken once."""
    held = Held()

    async def answer_the_first() -> None:
        held.go.set()
        await turns(50)

    service.scripts = [held, refuses(1, status=401), *[FakeService.take] * is_proven]
    service.scripts.append(when(answer_the_first, refuses(1, status=401)))
    (results,) = await charged_with(tokens, rows(2 + is_proven), max_in_flight=2)
    assert tokens.used[2:] == (["token-2", "token-2", "token-3"] if is_proven else ["token-2"])
    assert results["row-0"].paid is True
    last = results[f"row-{1 + is_proven}"]
    assert last.paid is True if is_proven else isinstance(last.error, payclient.UnauthorizedError)


# --- What the rows are for


def for_cart(count: int, purchase: str = "cart", customers: int = 10**6) -> list[payclient.ChargeRow]:
    return [payclient.ChargeRow(request=each, purchase=purchase) for each in rows(count, customers)]


async def test_rows_of_one_purchase_are_collected_once(service: FakeService) -> None:
    """Of several customers: one is sent, the others are told that it is open; run again, that it is paid."""
    ledger = MemoryLedger()
    results = await charged(service, [*for_cart(3), sale("other", phone="0977000001")], ledger)
    errors = [result for result in results.values() if result.error]
    assert [type(each.error) for each in errors] == [payclient.PurchaseOpenError] * 2
    assert [each.paid for each in errors] == [None] * 2
    assert sorted(service.posted) == ["other", "row-0"]
    again = await charged(service, for_cart(3), ledger)
    assert [type(again[f"row-{n}"].error) for n in (1, 2)] == [payclient.AlreadyPaidError] * 2
    assert paid_by(again) == {"row-0": True, "row-1": False, "row-2": False}
    assert sum(service.posted.values()) == 2
    assert (await ledger.get("row-1"), await ledger.get("row-2")) == (None, None)


@pytest.mark.parametrize(("first", "paid"), [("Aceptado", "row-0"), ("Cancelado", "row-1")])
async def test_a_customers_next_row_waits_for_the_first(service: FakeService, first: str, paid: str) -> None:
    """Once the first is paid the others are not sent; where it was rejected the next row is a new try."""

    def step() -> None:
        for identifier, status in service.sales.items():
            if status["state"] == "Pendiente":
                service.decide("Aceptado" if len(service.sales) > 1 else first, identifier)

    async with tracking(service) as tracker:
        results = await run(service, tracker, for_cart(3, customers=1), each_second=step)
        purchase = await tracker.purchase("cart")
    assert paid_by(results) == {f"row-{n}": f"row-{n}" == paid for n in range(3)}
    assert isinstance(results["row-2"].error, payclient.AlreadyPaidError)
    assert (purchase.paid, purchase.collected) == (True, 1150)
    assert service.posted == {f"row-{n}": 1 for n in range(int(paid[-1]) + 1)}


async def test_a_known_row_for_another_purchase_is_refused(service: FakeService) -> None:
    """The ledger holds what it was for: nothing is sent, and it is called a different request."""
    ledger = MemoryLedger()
    await charged(service, for_cart(1), ledger)
    results = await charged(service, for_cart(1, "another cart"), ledger)
    assert isinstance(results["row-0"].error, payclient.DifferentRequestError)
    assert service.posted == {"row-0": 1}


@pytest.mark.parametrize("purchase", ["", " a", 17, "a\u200bb"])
def test_a_row_checks_its_purchase(purchase: Any) -> None:
    """What could be taken for another purchase's key is refused where the row is made."""
    with pytest.raises(payclient.InvalidRequestError, match="purchase"):
        payclient.ChargeRow(request=sale("row"), purchase=purchase)


@pytest.mark.parametrize("max_pending", [1, 5])
async def test_a_tracker_that_closes_ends_its_batches(service: FakeService, max_pending: int) -> None:
    """Each row has its result: what waits for its customer is open, and the rest was not sent."""
    async with (
        tracking(service) as tracker,
        payclient.charge_all(tracker, rows(3), max_pending=max_pending) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await turns(20)
        assert service.posted
        await tracker.aclose()
        found = await reading
    assert {each.request_key: each.paid for each in found} == dict.fromkeys(("row-0", "row-1", "row-2"))


async def test_a_closed_ledger_ends_the_batches_that_share_it(service: FakeService) -> None:
    """A row that would look again at what other processes did has its result as well."""
    async with (
        tracking(service, ledger := SharedLedger()) as tracker,
        payclient.charge_all(tracker, rows(2, customers=1)) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await turns(20)
        await service.clock.advance(KNOWN_FOR + 1)
        await ledger.aclose()
        await tracker.aclose()
        found = await reading
    assert {each.request_key: each.paid for each in found} == {"row-0": None, "row-1": None}
    assert service.posted == {"row-0": 1}


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_row_that_another_process_was_refused_meanwhile_is_sent_again_where_its_customer_was_busy(
    service: FakeService, is_busy: bool
) -> None:
    """It got the permit as the row connected; any other refusal is the answer to the row."""
    woken = asyncio.Event()

    async def late(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await woken.wait()
        return await service.take(request, before_send)

    service.scripts = [late, refuses(22, 2061 if is_busy else None)]
    async with (
        two_processes(service) as (other, tracker),
        payclient.charge_all(tracker, rows(1)) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await turns(20)
        await error_of(payclient.NotCreatedError, other.sale(rows(1)[0]))
        woken.set()
        for _ in range(60):
            await service.clock.advance(1)
            accept_all(service)
        assert reading.done()
        assert [each.paid for each in await reading] == [is_busy]
    assert service.posted == ({"row-0": 1} if is_busy else {})


async def test_rows_that_another_process_has_sent_take_none_of_the_rate(service: FakeService) -> None:
    """A send in 100 s: what the other one charged since the rows were read is looked up, and the next row is sent."""
    async with (
        two_processes(service) as (other, tracker),
        payclient.charge_all(tracker, rows(5), rate=0.01, wait=0) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(1)
        for request in rows(5)[1:4]:
            await other.sale(request)
        await service.clock.advance(110)
        assert reading.done()
        assert len(await reading) == 5
    assert service.posted == {request.client_transaction_id: 1 for request in rows(5)}


async def test_however_many_rows_look_again_at_a_slow_ledger_they_are_sent(service: FakeService) -> None:
    """Each right after its look, and not once all others have looked, too: then the first look is out of date."""

    async def slow(identifiers: Sequence[str]) -> dict[str, Record]:
        await sleep(service.clock, 0.1)
        return await MemoryLedger.get_many(ledger, identifiers)

    async with (
        tracking(service, ledger := SharedLedger()) as tracker,
        payclient.charge_all(tracker, rows(100), max_in_flight=1, wait=0) as results,
    ):
        with patch.object(ledger, "get_many", slow):
            reading = asyncio.create_task(all_of(results))
            await service.clock.advance(30)
        assert reading.done()
        assert len(await reading) == 100
    assert sum(service.posted.values()) == 100


async def test_a_row_that_another_process_has_sent_is_not_called_unsent(service: FakeService) -> None:
    """It was sent after this process had read the row, which is stopped before its turn."""
    async with (
        two_processes(service) as (other, tracker),
        payclient.charge_all(tracker, rows(3), rate=0.01, wait=0) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(1)
        await other.sale(rows(3)[1])
        results.stop("that is all")
        said = {each.request_key: each.outcome is not None for each in await reading}
    assert said == {"row-0": True, "row-1": True, "row-2": False}


async def test_a_row_that_another_process_sends_as_the_batch_stops_is_read_once_a_second(
    service: FakeService,
) -> None:
    """Not as often as the loop turns."""
    service.scripts = [held := Held()]
    async with (
        tracking(service, one := SharedLedger()) as other,
        tracking(service, ledger := SharedLedger(one)) as tracker,
    ):
        sending = asyncio.create_task(other.sale(rows(1)[0]))
        await held.there.wait()
        async with payclient.charge_all(tracker, rows(1), wait=0) as results:
            reading = asyncio.create_task(all_of(results))
            await service.clock.advance(1)
            results.stop("that is all")
            find = ledger.find = AsyncMock(side_effect=ledger.find)  # type: ignore[method-assign]
            await turns(500)
            assert find.await_count <= 5
            held.go.set()
            await sending
            await service.clock.advance(2)
            assert [each.outcome is not None for each in await reading] == [True]


async def test_rows_that_a_shared_ledger_cannot_show_are_logged_once_a_minute(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """However many rows look again, and however often."""
    gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
    async with (
        tracking(service, ledger := SharedLedger()) as tracker,
        payclient.charge_all(tracker, rows(50), rate=1.0) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(10)
        with patch.object(ledger, "get_many", gone):
            for _ in range(100):
                await service.clock.advance(1)
        assert 1 <= len([each for each in caplog.records if each.levelno >= logging.WARNING]) <= 3
        results.stop("that is all")
        while not reading.done():
            await service.clock.advance(10)


async def test_a_batch_that_stops_ends_soon_where_its_ledger_is_away(service: FakeService) -> None:
    """A server that is away takes ten seconds to say so: once for all rows, and not for each fifty of them.

    None of them is called proven unsent: another process may have sent it meanwhile.
    """

    async def lost(_: object) -> None:
        await sleep(service.clock, 10)
        raise payclient.LedgerUnavailableError("gone")

    async with (
        tracking(service, ledger := SharedLedger()) as tracker,
        payclient.charge_all(tracker, rows(1000), rate=0.001) as results,
    ):
        reading = asyncio.create_task(all_of(results))
        await service.clock.advance(KNOWN_FOR + 1)
        accept_all(service)
        with patch.object(ledger, "get_many", lost):
            results.stop("that is all")
            await service.clock.advance(30)
            assert reading.done()
        assert sum(isinstance(each.error, payclient.LedgerUnavailableError) for each in await reading) == 999
