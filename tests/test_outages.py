"""A ledger that fails for a while, at each of its writes: no wait hangs, nothing spins, and memory agrees with it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from crowd import BOUND, PROFILE, Service, in_virtual_time, now, push, pushed, tracking, waited
from fake_ledgers import FailingLedger, HookedLedger, disk_full
from fake_service import Gate, error_of, events_of, pending_of, record_in
from manual_clock import ManualClock
from payclient.events import Created, Event, Notified
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record, advance
from payclient.tracking.late_writes import LateWrites
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

State = payclient.State


class Outage:
    """Begins with the operation of a number, and lasts so many seconds."""

    def __init__(self, number: int, seconds: float, names: str = "apply") -> None:
        self.number, self.seconds, self.names = number, seconds, names
        self.count, self.until = 0, 0.0

    def __call__(self, name: str) -> bool:
        if name == "apply":
            self.count += 1
            if self.count == self.number:
                self.until = now() + self.seconds
        return now() < self.until and (name in self.names or self.names == "all")


class Losing(Service):
    """Loses the answers to some sales, refuses others, and decides the rest."""

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method != "POST":
            return await super().__call__(request, before_send)
        name = json.loads(request.body)["clientTransactionId"]
        if name == "refused":
            assert before_send is not None
            await before_send()
            return HttpResponse(400, {}, b'{"message": "no", "errorCode": 22}')
        answer = await super().__call__(request, before_send)
        if name == "lost":
            raise ConnectionResetError
        decisions = {"accepted": (40.0, "Aceptado"), "declined": (60.0, "Cancelado")}
        seconds, state = decisions.get(name, (310.0, "Cancelado"))
        self.truth[name] = (now() + seconds, state)
        return answer


class Broken(FailingLedger):
    """Fails as `fails` says, and hangs in or raises whatever `breaks` does before it writes."""

    def __init__(self, fails: Callable[[str], bool], breaks: Callable[[Record], Awaitable[None]]) -> None:
        super().__init__(fails)
        self.breaks = breaks

    async def apply(self, record: Record, event: Event) -> Record:
        await self.breaks(record)
        return await super().apply(record, event)


class Full(FailingLedger):
    """Says that a state does not take an event also while it cannot write, as a database that can be read does."""

    async def apply(self, record: Record, event: Event) -> Record:
        advance(await self.peek(record.client_transaction_id), event)
        return await super().apply(record, event)


def never(name: str) -> bool:
    return False


async def state_in(ledger: FailingLedger, name: str = "order-1") -> payclient.State:
    return (await ledger.peek(name)).state


def lines_of_a_minute(caplog: pytest.LogCaptureFixture) -> int:
    return len([each for each in caplog.records if each.levelno >= logging.WARNING])


@pytest.mark.parametrize(("seconds", "names"), [(1.0, "all"), (49.0, "all"), (120.0, "apply")])
@pytest.mark.parametrize("number", range(1, 11))
@in_virtual_time
async def test_an_outage_at_any_write(
    number: int, seconds: float, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every wait ends, a few lines are logged, each sale is sent once, and the ledger and memory agree at the end."""
    service = Losing()
    ledger = FailingLedger(Outage(number, seconds, names))
    async with tracking(service, ledger=ledger) as tracker:
        outcomes = {}
        for name in ("accepted", "lost", "silent", "refused", "declined"):
            try:
                pending = await tracker.sale(push(name))
            except (payclient.RefusedError, payclient.LedgerError):
                continue
            outcomes[name] = asyncio.create_task(pending.wait())
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*outcomes.values())
        await asyncio.sleep(1000.0)
        for name, wait in outcomes.items():
            known = await ledger.peek(name)
            assert (await pending_of(tracker, name)).state is known.state
            assert known.state is not State.SENDING
            assert wait.result().paid in (None, known.state.paid)
            if name in service.truth and known.state is not State.EXPIRED:
                assert known.state.paid is (service.truth[name][1] == "Aceptado")
        refused = await ledger.get("refused")
        assert refused is None or refused.state is State.REFUSED
    assert lines_of_a_minute(caplog) <= 8


@in_virtual_time
async def test_an_answer_that_is_not_written_is_unknown_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """For 500 seconds: memory says no more than the ledger, the handle is there, and then the answer is on record."""
    service, ledger = Service(undecided=True), FailingLedger(Outage(1, 500.0, "all"))
    async with tracking(service, ledger=ledger) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (pending.state, pending.transaction_id, pending.outcome.paid) == (State.UNKNOWN, None, None)
        assert pending.remaining > 0.0
        assert (await tracker.sale(push("order-1"))).state is State.UNKNOWN  # a double click
        await asyncio.sleep(490.0)
        assert pending.state is State.UNKNOWN
        assert await state_in(ledger) is State.SENDING
        service.truth["order-1"] = (0.0, "Aceptado")
        await asyncio.sleep(50.0)
        assert (await pending.wait()).paid is True
    assert (await events_of(ledger, "order-1"))[1] == "Created"
    assert len(service.queried_at) < 80
    assert lines_of_a_minute(caplog) <= 15


@in_virtual_time
async def test_what_a_second_outage_leaves_is_written_as_well() -> None:
    """Long after the first one is over, and all that it left is written."""
    outages = [(0.0, 5.0), (100.0, 105.0)]
    ledger = FailingLedger(lambda name: name == "apply" and any(a <= now() < b for a, b in outages))
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        for begin, _ in outages:
            await asyncio.sleep(begin - now())
            await tracker.sale(push(f"order-{begin}"))
            assert await state_in(ledger, f"order-{begin}") is State.SENDING
            await asyncio.sleep(60.0)
            assert await state_in(ledger, f"order-{begin}") is State.PENDING


@in_virtual_time
async def test_an_outage_in_which_others_cancel_all_tasks_is_written_with_the_next_answer() -> None:
    """A process that ends cancels all tasks but its own, and goes on for a while."""
    ledger = FailingLedger(lambda name: name == "apply" and now() < 5.0)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        before = asyncio.all_tasks()
        await tracker.sale(push("order-1"))
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await tracker.sale(push("order-2"))
        await asyncio.sleep(60.0)
        for identifier in ("order-1", "order-2"):
            assert await state_in(ledger, identifier) is State.PENDING


@in_virtual_time
async def test_a_log_filter_that_raises_fails_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that looks for the web request of a background task: the sale is there, and is written in the end."""

    def failing(record: logging.LogRecord) -> bool:
        raise RuntimeError("working outside of request context")

    monkeypatch.setattr(logging.getLogger("payclient.tracker"), "filters", [failing])
    ledger = FailingLedger(lambda name: name == "apply" and now() < 5.0)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        assert (await tracker.sale(push("order-1"))).state is State.UNKNOWN
        await asyncio.sleep(60.0)
        assert await state_in(ledger, "order-1") is State.PENDING


@pytest.mark.parametrize("number", [1, 2])
@in_virtual_time
async def test_without_a_status_source_an_outage_hangs_nobody(number: int) -> None:
    """The wait ends ten seconds after the expiry, which is on record once the ledger is back."""
    ledger = FailingLedger(Outage(number, 49.0))
    async with tracking(Service(), ledger=ledger, profile=payclient.DOCUMENT) as tracker:
        (outcome,) = await waited(await pushed(tracker, 1), bound=345.0)
        assert outcome.paid is None
        await asyncio.sleep(200.0)
        assert (await pending_of(tracker, "order-0")).state is State.EXPIRED
        assert await state_in(ledger, "order-0") is State.EXPIRED


@in_virtual_time
async def test_an_expiry_that_is_never_written_hangs_nobody() -> None:
    """The service says that it is pending, for ever: the wait ends all the same, and says no more than the ledger."""
    ledger = HookedLedger(before={"Expired": disk_full})
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        (outcome,) = await waited(await pushed(tracker, 1))
        assert (outcome.state, outcome.paid) == (State.PENDING, None)


@in_virtual_time
async def test_a_tracker_that_closes_writes_once_more(caplog: pytest.LogCaptureFixture) -> None:
    """The disk has room again just before: the answer is on record, and nothing is unknown at the next start."""
    full = True
    ledger = FailingLedger(lambda name: full and name == "apply")
    async with tracking(Service(), ledger=ledger) as tracker:
        await tracker.sale(push("order-1"))
        await asyncio.sleep(100.0)
        full = False
    assert await state_in(ledger) is State.PENDING
    assert "could not take the end" not in caplog.text


@in_virtual_time
async def test_a_closed_tracker_writes_no_more() -> None:
    """What the ledger could not take until then is unknown at the next start."""
    full = True
    ledger = FailingLedger(lambda name: full and name == "apply")
    async with tracking(Service(), ledger=ledger) as tracker:
        await tracker.sale(push("order-1"))
    full = False
    await asyncio.sleep(100.0)
    assert await state_in(ledger) is State.SENDING


@in_virtual_time
async def test_a_write_that_raises_anything_ends_the_writing_of_no_other() -> None:
    """The ledger fails for all, and then raises what no ledger should for one: the other is written meanwhile."""
    broken = True

    async def breaks(record: Record) -> None:
        if now() > 0.5 and broken and record.client_transaction_id == "order-1":
            raise RuntimeError("a fault of the ledger's own")

    ledger = Broken(lambda name: name == "apply" and now() < 0.5, breaks)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        await asyncio.gather(*(tracker.sale(push(f"order-{number}")) for number in (1, 2)))
        await asyncio.sleep(100.0)
        assert [await state_in(ledger, f"order-{n}") for n in (1, 2)] == [State.SENDING, State.PENDING]
        broken = False
        await asyncio.sleep(100.0)
        assert await state_in(ledger) is State.PENDING


@in_virtual_time
async def test_a_tracker_closes_though_its_ledger_hangs() -> None:
    """The last try gets a few seconds; what it could not write is unknown at the next start."""
    hangs = False

    async def breaks(record: Record) -> None:
        if hangs:
            await asyncio.Event().wait()

    ledger = Broken(Outage(1, 0.2), breaks)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        await tracker.sale(push("order-1"))
        hangs = True
        async with asyncio.timeout(60.0):
            await tracker.aclose()
    assert await state_in(ledger) is State.SENDING


@in_virtual_time
async def test_a_crowd_that_cannot_be_written_logs_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """100 sales in flight as the disk fills: few lines, few queries, and all are on record afterwards."""
    async with tracking(Service(), ledger=FailingLedger(Outage(10, 120.0))) as tracker:
        pendings = await asyncio.gather(*(tracker.sale(push(f"order-{number}")) for number in range(100)))
        outcomes = await waited(pendings)
    assert {outcome.paid for outcome in outcomes} == {True, False}
    assert lines_of_a_minute(caplog) <= 5


async def test_each_line_counts_what_failed_since_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    late = LateWrites(MemoryLedger(), clock)
    for seconds in (0, 30, 31, 60):
        await clock.advance(seconds)
        late.log_failure(payclient.LedgerUnavailableError("disk full"))
    assert [each.args[1] for each in caplog.records if isinstance(each.args, tuple)] == [1, 2, 1]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_two_who_write_the_same_lose_nothing_that_fails_meanwhile(is_kept: bool) -> None:
    """One of them ends as all that can be is written, and the other after the next event could not be.

    That event was kept before they began, or comes in between.
    """
    first, second = Gate(), Gate()
    writes = iter((disk_full, first, second))
    ledger = HookedLedger(before={"Created": lambda: next(writes)(), "Notified": disk_full})
    late, record = LateWrites(ledger, ManualClock()), Record(client_transaction_id="order-1", created_at=0.0)
    assert await ledger.permit(record)
    event = Notified(at=2.0, transaction_id=1000)
    await late.write(record, Created(at=1.0, expires_at=300.0, transaction_id=1000))
    if is_kept:
        late.kept["order-1"].append((record, event))
    writers = [asyncio.ensure_future(late.write_earlier("order-1")) for _ in range(2)]
    await second.there.wait()
    first.go.set()
    await asyncio.gather(writers[0], return_exceptions=True)
    if not is_kept:
        await late.write(await record_in(ledger, "order-1"), event)
    second.go.set()
    with pytest.raises(payclient.LedgerUnavailableError):
        await writers[1]
    assert [each for _, each in late.kept["order-1"]] == [event]
    await late.aclose()


@in_virtual_time
async def test_a_full_disk_blames_neither_the_service_nor_a_person(caplog: pytest.LogCaptureFixture) -> None:
    """A paid sale whose answer is not written and rows without a permit: each line says that the ledger fails."""
    service, ledger = Service(undecided=True), Full(Outage(1, 120.0, "apply permit"))
    async with tracking(service, ledger=ledger) as tracker:
        pending = await tracker.sale(push("order-1"))
        service.truth["order-1"] = (0.0, "Aceptado")
        for number in range(2, 30):
            await error_of(payclient.LedgerUnavailableError, tracker.sale(push(f"order-{number}")))
        assert (await pending.wait()).paid is True
    assert {vars(each)["event"] for each in caplog.records if each.levelno >= logging.WARNING} == {
        "ledger_failed"
    }
    assert lines_of_a_minute(caplog) <= 4


@in_virtual_time
async def test_a_withdrawal_that_cannot_be_written_says_no_more_than_the_ledger() -> None:
    """The sale stays pending in memory while the ledger fails, and is cancelled once it is written."""
    service, ledger = Service(undecided=True), FailingLedger(Outage(2, 20.0))
    profile = attrs.evolve(PROFILE, cancel=payclient.PAYPHONE.cancel)
    async with tracking(service, ledger=ledger, profile=profile, schedule=payclient.Fixed(1000.0)) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (await tracker.cancel(pending)).state is State.PENDING
        await asyncio.sleep(60.0)
        assert pending.state is State.CANCELLED


@pytest.mark.parametrize(
    ("url", "ledger", "warns"),
    [
        ("https://pay.example", None, True), ("https://pay.example", "memory:", True),
        ("http://127.0.0.1:9", None, False), ("http://localhost:9", None, False),
        ("https://pay.example", "sqlite:", False),
    ],
)  # fmt: skip
async def test_a_ledger_in_memory_for_a_real_address_is_warned_of(
    url: str, ledger: str | None, warns: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Once, and not on loopback or where a file is kept."""
    if ledger == "sqlite:":
        ledger = f"sqlite:{tmp_path / 'charges.db'}"
    options: dict[str, Any] = {} if ledger is None else {"ledger": ledger}
    async with payclient.open_tracker(url, "token", profile=PROFILE, **options):
        pass
    said = [each for each in caplog.records if "forgotten" in each.getMessage()]
    assert [each.levelname for each in said] == ["WARNING"] * warns


class Repeating(Service):
    """Something in front of it answers every sale with the first answer."""

    first: HttpResponse | None = None

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        answer = await super().__call__(request, before_send)
        if request.method == "POST":
            self.first = answer = self.first or answer
        return answer


@in_virtual_time
async def test_all_that_could_not_be_written_of_a_sale_is_written_in_order() -> None:
    """Another sale's answer, as the ledger fails: unknown, and then the conflict; neither takes the other's place."""
    ledger = FailingLedger(Outage(2, 30.0, "all"))
    async with tracking(Repeating(undecided=True), ledger=ledger) as tracker:
        await tracker.sale(push("order-1"))
        pending = await tracker.sale(push("order-2"))
        assert (pending.state, await state_in(ledger, "order-2")) == (State.UNKNOWN, State.SENDING)
        await asyncio.sleep(60.0)
        events = await events_of(ledger, "order-2")
        assert [each for each in events if each != "FoundPending"] == ["Permitted", "Lost", "Conflicted"]


@in_virtual_time
async def test_a_sale_whose_answer_cannot_be_written_for_whatever_reason_may_exist() -> None:
    """An error would say that nothing was created; the answer is written as soon as the ledger is well."""

    async def breaks(record: Record) -> None:
        if now() < 1.0:
            raise RuntimeError("a fault of the ledger's own")

    ledger = Broken(never, breaks)
    async with tracking(Service(undecided=True), ledger=ledger) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (pending.state, pending.outcome.paid) == (State.UNKNOWN, None)
        await asyncio.sleep(10.0)
        assert await state_in(ledger) is State.PENDING


@in_virtual_time
async def test_a_sale_whose_ledger_was_closed_meanwhile_may_exist() -> None:
    """Closed in the wrong order: the charge is on its way, and no error says that nothing was created."""
    ledger, service = FailingLedger(never), Service(undecided=True)
    async with tracking(service, ledger=ledger) as tracker:
        charge = asyncio.create_task(tracker.sale(push("order-1")))
        await asyncio.sleep(0.03)
        assert service.truth
        await ledger.aclose()
        assert (await charge).state is State.UNKNOWN


@in_virtual_time
async def test_a_tracker_that_cannot_begin_leaves_nothing_behind() -> None:
    """Neither where the ledger fails nor where the caller gives up: nothing is queried, renewed or deleted then."""

    class Hanging(FailingLedger):
        async def unfinished(self) -> AsyncIterator[Record]:
            await asyncio.sleep(1.0)
            async for record in super().unfinished():
                yield record
            if now() > 50.0:
                raise payclient.LedgerUnavailableError("gone")

    async def begin(seconds: float) -> None:
        async with asyncio.timeout(seconds), tracking(service, ledger=ledger, profile=payclient.PAYPHONE):
            pytest.fail("it began")

    ledger, service = Hanging(never), Service(undecided=True)
    async with tracking(service, ledger=ledger) as tracker:
        await tracker.sale(push("order-1"))
    await asyncio.sleep(60.0)
    before = asyncio.all_tasks()
    await error_of(TimeoutError, begin(0.5))
    assert asyncio.all_tasks() == before
    await error_of(payclient.LedgerError, begin(10.0))
    assert asyncio.all_tasks() == before
    queries = len(service.queries)
    await asyncio.sleep(1000.0)
    assert len(service.queries) == queries
