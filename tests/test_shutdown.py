"""What closing does with requests in flight, and that SIGTERM ends a shop in time without losing a charge."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import attrs
import pytest

import payclient
from crowd import in_virtual_time
from fake_ledgers import FailingLedger, HookedLedger, SharedLedger, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Held,
    answers,
    broken,
    error_of,
    form,
    outcome_of,
    paid,
    pending_of,
    record_in,
    refuses,
    sale,
    tracking,
    when,
)
from manual_clock import ManualClock
from payclient.errors import LedgerUnavailableError
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import UndoProfile
from payclient.session import PaySession
from payclient.tracking import leases
from required import module
from shops.serving import UVICORN, blocks_of, serving
from test_web_shops import HeldSimulator
from virtual_loop import VirtualClock

State = payclient.State

BLOCKS = blocks_of("operations")

#: Seconds that a shop here gives its requests, and then the tracker where nothing is answered.
GRACE, DRAIN = 1, 0.2

GUNICORN = ("-m", "gunicorn", "--bind", "fd://{fd}", "--graceful-timeout", "20")

#: How each shop is served, with the modules of the guide.
SERVERS = {
    "uvicorn": (*UVICORN, "--timeout-graceful-shutdown", str(GRACE), "shop_fastapi:app"),
    "uvicorn under gunicorn": (*GUNICORN, "-k", "workers.Worker", "shop_fastapi:app"),
    "aiohttp under gunicorn": (*GUNICORN, "-k", "aiohttp.GunicornWebWorker", "serve_aiohttp:app"),
    "threads under gunicorn": (*GUNICORN[:-1], "1", "--threads", "8", "shop_flask:app"),
}


@pytest.mark.parametrize(
    ("server", "state"),
    [("uvicorn", State.UNKNOWN), ("uvicorn under gunicorn", State.UNKNOWN), ("aiohttp under gunicorn", State.PENDING),
     ("threads under gunicorn", State.SENDING)],
)  # fmt: skip
async def test_sigterm_while_a_charge_is_on_its_way(server: str, state: State, tmp_path: Path) -> None:
    """Answered within `drain`, the charge is pending. Else it is unknown, and found out after the next start.

    gunicorn waits for the threads of blocking code, and kills them in the end.
    """
    answered, threads = state is State.PENDING, server.startswith("threads")
    if threads:
        module("flask")
    identifier = "order-1" if threads else "order-1-1"
    for name in ("workers", "serve_aiohttp"):
        text = re.sub(r"(graceful_shutdown\": |shutdown_timeout=)5", rf"\g<1>{GRACE}", BLOCKS[name])
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    async with HeldSimulator(ManualClock()) as service, aiohttp.ClientSession() as session:
        service.released.clear()
        # That it ends a request which takes too long, a server reports as an error; gunicorn's own file of the worker
        # that it killed is never closed.
        expected = r"(?s)ERROR.*(Cancel 1 running task|CancelledError).*"
        expected = r"Exception ignored in: <_io.FileIO name=3 .*\n.*\n" if threads else expected
        drain = 10 if answered else DRAIN
        with serving(SERVERS[server], service.url, tmp_path, drain=drain, expected=expected) as shop:
            click = asyncio.create_task(session.post(f"{shop.url}/pay/order-1", data={"phone": "0984111222"}))
            await service.held.wait()
            shop.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            with suppress(aiohttp.ClientError):
                assert (await click).status >= 500  # the server has ended it
            if answered:
                service.released.set()
            await asyncio.to_thread(shop.process.wait, 20)
            took = time.monotonic() - began
        assert took < 15, "gunicorn's own bound, or none"
        book = await payclient.open_ledger(ledger, create=False)
        record = await book.get(identifier)
        assert record is not None
        assert record.state is state
        await book.aclose()
        service.released.set()
        async with payclient.open_tracker(
            service.url, "secret", ledger=ledger, profile=tmp_path / "shop.toml", create=False
        ) as tracker:
            pending = await pending_of(tracker, identifier)
            assert (pending.outcome.paid, pending.state is State.PENDING) == (None, answered)
            await service.approve(service.of(identifier).transaction_id)
            assert (await pending.wait()).paid is True
        assert service.created_per_client_id == {identifier: 1}


class SlowLedger(MemoryLedger):
    """A ledger that takes four seconds to keep links."""

    async def keep_links(self, record: Record, links: str, until: float) -> None:
        await asyncio.sleep(4)
        await super().keep_links(record, links, until)


REVERSING = attrs.evolve(
    PROFILE, reverse=UndoProfile(by_transaction_id="/api/Reverse", transaction_id_field="id")
)


async def test_a_sale_that_is_not_answered_in_time_is_unknown(service: FakeService) -> None:
    """Its caller gets the sale, since it may exist; the next tracker finds out."""
    service.scripts = [held := Held()]
    async with tracking(service, drain=0) as tracker:
        callers = [asyncio.create_task(tracker.sale(sale())) for _ in range(2)]
        await held.there.wait()
    for caller in callers:
        pending = await caller
        assert (pending.state, pending.outcome.paid) == (State.UNKNOWN, None)
        await error_of(payclient.TrackerClosedError, pending.wait())
    async with tracking(service, service.ledger) as tracker:
        service.decide("Aceptado")
        assert (await outcome_of(service, await pending_of(tracker))).paid is True
    assert service.posted == {"order-17": 1}


async def test_closing_goes_on_where_it_is_cancelled_again(service: FakeService, tmp_path: Path) -> None:
    """As under anyio, which cancels whatever is awaited: the answer is on record, and nothing is left running."""
    service.scripts = [held := Held()]
    options: Any = {"ledger": f"sqlite:{tmp_path / 'charges.db'}", "profile": PROFILE, "transport": service}

    async def charge() -> None:
        async with payclient.open_tracker("https://pay.example", "token", **options) as tracker:
            await tracker.sale(sale())

    caller = asyncio.create_task(charge())
    await held.there.wait()
    while not caller.done():
        caller.cancel()
        await asyncio.sleep(0)
    held.go.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=60)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with payclient.open_tracker("https://pay.example", "token", **options) as tracker:
        assert (await pending_of(tracker)).transaction_id == 1000


@pytest.mark.parametrize("drain", [None, 0])
@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_close_that_is_cancelled_ends_every_wait_all_the_same(
    service: FakeService, steps: int, drain: int | None
) -> None:
    """At whichever step, as by a time-out around the tracker: it closes at once, and a charge on its way may exist."""
    async with PaySession("https://pay.example", "token", profile=PROFILE, transport=service) as session:
        tracker = payclient.Tracker(session, MemoryLedger(), clock=service.clock, drain=drain)
        await tracker.__aenter__()
        wait = asyncio.create_task((await tracker.sale(sale())).wait())
        service.scripts = [held := Held()]
        caller = asyncio.create_task(tracker.sale(sale("order-18")))
        await held.there.wait()
        closing = asyncio.create_task(tracker.aclose())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([closing])
            await error_of(payclient.TrackerClosedError, wait)
            assert (await caller).outcome.paid is None


async def test_a_close_that_its_loop_leaves_behind_waits_for_nothing(service: FakeService) -> None:
    """It is ended by GeneratorExit, as where a program throws a loop away; whoever waits then gets a RuntimeError."""
    async with tracking(service) as tracker:
        service.scripts = [held := Held()]
        caller = asyncio.create_task(tracker.sale(sale()))
        await held.there.wait()
        closing = tracker.aclose()
        closing.send(None)
        closing.close()
        caller.cancel()


async def test_a_reversal_that_is_not_answered_in_time_stays_open(service: FakeService) -> None:
    """It is REVERSING, and the next tracker finds out."""
    async with tracking(service, profile=REVERSING, drain=0) as tracker:
        pending = await paid(service, tracker)
        service.scripts = [held := Held(answers(200, True))]
        caller = asyncio.create_task(tracker.reverse(pending))
        await held.there.wait()
    outcome = await caller
    assert (outcome.state, outcome.paid) == (State.REVERSING, None)
    assert (await record_in(service.ledger)).state is State.REVERSING


async def test_a_reversal_closed_while_it_is_permitted_says_so(service: FakeService) -> None:
    """It is not its caller who is cancelled."""
    ledger = HookedLedger(before={"ReversalPermitted": (gate := Gate())})
    async with tracking(service, ledger, REVERSING, drain=0) as tracker:
        caller = asyncio.create_task(tracker.reverse(await paid(service, tracker)))
        await gate.there.wait()
    await error_of(payclient.TrackerClosedError, caller)


@pytest.mark.parametrize(
    ("stuck", "state"),
    [("connecting", None), ("before", None), ("after", State.REFUSED)],
    ids=["no connection", "no permit", "permitted"],
)
async def test_a_sale_not_sent_created_nothing(service: FakeService, stuck: str, state: State | None) -> None:
    """An error says so, never a handle to wait on; the id is free, and a row that is there is closed."""
    gate, held = Gate(), Held(broken)
    ledger = HookedLedger(**{} if stuck == "connecting" else {stuck: {"Permitted": gate}})
    service.scripts = [held] if stuck == "connecting" else []
    async with tracking(service, ledger, drain=0) as tracker:
        caller = asyncio.create_task(tracker.sale(sale()))
        await (held if stuck == "connecting" else gate).there.wait()
    with pytest.raises(payclient.TrackerClosedError, match="nothing was sent"):
        await caller
    assert not service.posted
    record = await ledger.get("order-17")
    assert (record and record.state) == state


async def test_an_answer_that_is_being_written_at_the_close_is_not_lost(service: FakeService) -> None:
    """The ledger hangs: what the answer named is written once it takes anything again."""
    ledger = HookedLedger(before={"Created": once(gate := Gate())})
    async with tracking(service, ledger, drain=0) as tracker:
        caller = asyncio.create_task(tracker.sale(sale()))
        await gate.there.wait()
    assert ((await caller).state, (await record_in(ledger)).transaction_id) == (State.PENDING, 1000)


async def test_an_answer_whose_write_is_cancelled_twice_is_not_lost(service: FakeService) -> None:
    """By others, with all tasks of the process, and by the close: the write goes on by itself."""
    ledger = HookedLedger(before={"Created": (gate := Gate())})
    async with tracking(service, ledger, drain=0) as tracker:
        before = asyncio.all_tasks()
        caller = asyncio.create_task(tracker.sale(sale()))
        await gate.there.wait()
        gate.there.clear()
        for task in asyncio.all_tasks() - before - {caller}:
            task.cancel()
        await gate.there.wait()  # it is written anew
    gate.go.set()
    assert (await caller).client_transaction_id == "order-17"
    await asyncio.sleep(0)
    record = await record_in(ledger)
    assert (record.state, record.transaction_id) == (State.PENDING, 1000)


async def test_a_wait_that_reads_the_ledger_as_the_tracker_closes_ends(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process follows the sale, so that it is read again first: the close has ended the other waits by then."""
    ledger, gate = SharedLedger(), Gate()
    second = SharedLedger(ledger)

    async def get(identifier: str) -> Record | None:
        await gate()
        return await ledger.get(identifier)

    async with tracking(service, ledger) as tracker:
        await tracker.sale(sale())
        async with tracking(service, second) as another:
            pending = await pending_of(another)
            monkeypatch.setattr(second, "get", get)
            waiting = asyncio.create_task(pending.wait())
            await gate.there.wait()
        gate.go.set()
        async with asyncio.timeout(5):
            await error_of(payclient.TrackerClosedError, waiting)


async def test_a_decided_sale_says_its_outcome_after_the_close(service: FakeService, tmp_path: Path) -> None:
    """The ledger is closed, too: what is known is true all the same, and what is open may have been decided since."""
    ledger = await payclient.open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
    service.scripts = [refuses(22)]
    async with tracking(service, ledger) as tracker:
        with suppress(payclient.RefusedError):
            await tracker.sale(sale("order-1"))
        decided, opened = await pending_of(tracker, "order-1"), await tracker.sale(sale("order-2"))
    await ledger.aclose()
    assert (await decided.wait()).paid is False
    assert (await decided.check()).paid is False
    await error_of(payclient.TrackerClosedError, opened.wait())


async def test_a_reversal_that_reads_the_ledger_as_the_tracker_closes_is_not_sent(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close waits for nothing that begins after it, so that nobody was told of its success."""
    ledger, gate = HookedLedger(), Gate()
    read = ledger.get

    async def get(identifier: str) -> Record | None:
        await gate()
        return await read(identifier)

    async with tracking(service, ledger, REVERSING) as tracker:
        pending = await paid(service, tracker)
        monkeypatch.setattr(ledger, "get", get)
        caller = asyncio.create_task(tracker.reverse(pending))
        await gate.there.wait()
    gate.go.set()
    await error_of(payclient.TrackerClosedError, caller)
    assert (await record_in(ledger)).state is State.ACCEPTED


@in_virtual_time
async def test_closing_waits_as_long_as_a_charge_may_take() -> None:
    """By default: one that is answered just within the total time-out is pending, and not unknown."""
    service = FakeService(VirtualClock())
    service.scripts = [when(lambda: asyncio.sleep(28))]
    async with tracking(service) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        await asyncio.sleep(1)
    assert (await sending).state is State.PENDING


@in_virtual_time
async def test_closing_waits_for_a_slow_ledger_beyond_that() -> None:
    """A form's links come just within the total time-out, and four seconds later they are kept for the next process."""
    service, ledger = FakeService(VirtualClock()), SlowLedger()
    service.scripts = [when(lambda: asyncio.sleep(28))]
    async with tracking(service, ledger) as tracker:
        preparing = asyncio.create_task(tracker.prepare(form(), purchase="cart"))
        await asyncio.sleep(1)
    await preparing
    assert await ledger.links("cart", service.clock.time())


@pytest.mark.parametrize("drain", [-1.0, float("nan"), float("inf"), 10**400, "5"])
async def test_a_drain_that_is_no_time_is_refused(drain: Any) -> None:
    with pytest.raises(payclient.ConfigurationError, match="drain must be a finite number of seconds"):
        async with payclient.open_tracker("https://pay.example", "token", drain=drain):
            pass


async def test_an_end_that_the_ledger_did_not_take_at_the_close_is_written_all_the_same(
    service: FakeService,
) -> None:
    failures, held = iter([True]), Held()
    service.scripts = [held]
    ledger = FailingLedger(lambda name: name == "apply" and next(failures, False))
    async with tracking(service, ledger) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        await held.there.wait()
        asyncio.get_running_loop().call_soon(held.go.set)
    await sending
    assert (await record_in(ledger)).state is State.PENDING


@in_virtual_time
async def test_a_slow_ledger_has_five_seconds_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all that is not written: the supervisor waits no longer."""
    monkeypatch.setattr(leases, "RENEW", 1e6)
    service, ledger = FakeService(VirtualClock()), SharedLedger()
    async with tracking(service, ledger) as tracker:
        await tracker.sale(sale())
        await asyncio.sleep(1000)  # it expired: how long its lease is put off is written at the close
        monkeypatch.setattr(ledger, "apply", AsyncMock(side_effect=LedgerUnavailableError("disk full")))
        await tracker.sale(sale("order-18"))
        for name in ("apply", "defer"):
            monkeypatch.setattr(ledger, name, lambda *_: asyncio.sleep(100))
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 5.1
