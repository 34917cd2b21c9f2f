"""`tracker.health()` and its routes: what is said of a tracker that fares well, and of one that does not."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from contextlib import nullcontext
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette

import payclient
import payclient.web.aiohttp
import payclient.web.starlette
from asgi import ask
from fake_ledgers import FailingLedger, SharedLedger
from fake_service import (
    PROFILE,
    FakeService,
    error_of,
    form,
    lost_answer,
    pending_of,
    refusal,
    sale,
    selling,
    tracking,
    when,
)
from manual_clock import ManualClock
from payclient.ledger import postgres as postgres_ledger
from payclient.profile import PAYPHONE
from payclient.session import PaySession
from payclient.tracking import health as tracker_health
from ports import served
from postgres_server import PostgresServer
from test_ledger import until
from test_ledger_postgres import configured


class Failing(FailingLedger):
    """Fails at what it is told to; "all" is everything."""

    def __init__(self, *failing: str) -> None:
        super().__init__(lambda name: bool(self.failing & {name, "all"}))
        self.failing = {*failing}


async def test_a_tracker_that_has_done_nothing(service: FakeService) -> None:
    """Nothing is open, and the service has not answered yet."""
    async with tracking(service) as tracker:
        assert await tracker.health() == payclient.Health(
            ledger_writable=True, poller_alive=True, answered_at=None, open=0, unknown=0, oldest_unknown=None,
            unwritten=0, unconfirmed=0, confirm_by=None,
        )  # fmt: skip


async def test_what_is_open_and_unknown(service: FakeService) -> None:
    """Unknown sales are no reason to take a process out of service."""
    before = time.time()
    async with selling(service) as (tracker, _):
        answered = (await tracker.health()).answered_at
        service.scripts.append(lost_answer)
        service.status_scripts = [lambda: refusal(0, status=500)] * 50
        await tracker.sale(sale("order-18", phone="0984111333"))
        await service.clock.advance(30)
        service.scripts.append(lost_answer)
        await tracker.sale(sale("order-19", phone="0984111444"))
        await service.clock.advance(10)
        health = await tracker.health()
    assert answered is not None
    assert before <= answered <= time.time()
    assert (health.open, health.unknown, health.oldest_unknown) == (3, 2, 40.0)
    assert health.answered_at == answered, "a 5xx may be a proxy's"
    assert health.ok


async def test_what_another_process_follows_is_not_counted(service: FakeService) -> None:
    """It is known here, and followed there."""
    ledger = SharedLedger()
    service.scripts = [lost_answer]
    async with tracking(service, ledger) as one, tracking(service, SharedLedger(ledger)) as other:
        await one.sale(sale())
        waiting = asyncio.ensure_future((await pending_of(other)).wait())
        await asyncio.sleep(0)
        counts = [(each.open, each.unknown) for each in (await one.health(), await other.health())]
        assert counts == [(1, 1), (0, 0)]
        waiting.cancel()


async def test_a_ledger_that_fails_the_probe(service: FakeService) -> None:
    """The process cannot charge until the probe succeeds."""
    async with tracking(service, ledger := Failing()) as tracker:
        ledger.failing = {"all"}
        health = await tracker.health()
        assert (health.ok, health.ledger_writable) == (False, False)
        assert health.problems == ("the ledger takes no writes: nothing is sent",)
        ledger.failing.clear()
        assert (await tracker.health()).ok


async def test_a_ledger_that_never_answers(service: FakeService) -> None:
    """The probe is given up after five seconds."""

    class Stuck(FailingLedger):
        async def drop_links(self, now: float) -> None:
            await asyncio.Event().wait()

    async with tracking(service, Stuck(lambda name: False)) as tracker:
        asked = asyncio.ensure_future(tracker.health())
        await service.clock.advance(5.1)
        assert (await asked).ledger_writable is False


async def test_a_tracker_that_closes_meanwhile(service: FakeService) -> None:
    """The probe meets a closed ledger, which is no error of whoever asks."""
    is_closed = asyncio.Event()

    class Slow(FailingLedger):
        async def drop_links(self, now: float) -> float | None:
            await is_closed.wait()
            return await super().drop_links(now)

    async with tracking(service, ledger := Slow(lambda name: False)) as tracker:
        asked = asyncio.ensure_future(tracker.health())
        await asyncio.sleep(0)
    await ledger.aclose()
    is_closed.set()
    assert (await asked).ledger_writable is False


async def test_a_full_disk(service: FakeService, tmp_path: Path) -> None:
    """The probe writes, so that it shows before a sale meets it, and for as long as it lasts."""
    file = tmp_path / "charges.db"
    ledger = await payclient.open_ledger(f"sqlite:{file}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with tracking(service, ledger) as tracker:
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{file}-wal"), hard))
        try:
            health = await tracker.health()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert health.problems == ("the ledger takes no writes: nothing is sent",)
        assert (await tracker.health()).ok
    await ledger.aclose()


async def test_a_ledger_whose_file_was_renamed(service: FakeService, tmp_path: Path) -> None:
    """It grants no permit, and says so before and after a sale that it refused, until the file is back."""
    file, elsewhere = tmp_path / "charges.db", tmp_path / "old.db"
    ledger = await payclient.open_ledger(f"sqlite:{file}")
    async with tracking(service, ledger) as tracker:
        file.rename(elsewhere)
        for _ in range(2):
            assert (await tracker.health()).ledger_writable is False
            await error_of(payclient.LedgerUnavailableError, tracker.sale(sale()))
        elsewhere.rename(file)
        assert (await tracker.health()).ok
    await ledger.aclose()


async def test_an_end_that_is_not_written_yet(service: FakeService) -> None:
    """The sale was answered, the ledger could not take the answer."""
    ledger = Failing("apply")
    async with selling(service, ledger=ledger) as (tracker, _):
        assert (await tracker.health()).unwritten == 1
        ledger.failing.clear()
        await service.clock.advance(5)
        assert (await tracker.health()).unwritten == 0


async def test_what_is_due_at_once_is_not_late(service: FakeService) -> None:
    """It was notified before its answer came, in a process that runs for a while already."""

    async def notified() -> None:
        await tracker.notify(payclient.Notification(transaction_id=1000, client_transaction_id="order-17"))

    service.scripts = [when(notified)]
    async with tracking(service) as tracker:
        await service.clock.advance(100)
        await tracker.sale(sale())
        assert (await tracker.health()).poller_alive


async def test_a_poller_that_stopped() -> None:
    """Its timer does not fire: outcomes are not followed any more."""

    class Stopped(ManualClock):
        is_stopped = False

        async def advance(self, seconds: float) -> None:
            if self.is_stopped:
                self._monotonic += seconds
            else:
                await super().advance(seconds)

    clock = Stopped()
    async with selling(FakeService(clock)) as (tracker, _):
        await clock.advance(100)
        assert (await tracker.health()).poller_alive
        clock.is_stopped = True
        await clock.advance(60)
        health = await tracker.health()
        assert health.problems == ("the poller is not running: outcomes are not followed",)
    health = await tracker.health()
    assert not health.poller_alive, "it is closed"
    assert not health.ledger_writable


async def test_forms_whose_confirmation_runs_out(service: FakeService) -> None:
    """The first of them is reversed five minutes after its customer came back."""
    async with tracking(service, profile=PAYPHONE) as tracker:
        await tracker.prepare(form())
        service.confirm_scripts = [lambda: refusal(0, status=503)] * 20
        back, came = service.pay("form-1"), service.clock.time()
        await tracker.returned(back)
        health = await tracker.health()
        assert (health.unconfirmed, health.confirm_by) == (1, came + 300)
        assert health.ok
        await tracker.prepare(form("form-2"))
        await service.clock.advance(10)
        later = asyncio.create_task(tracker.returned(service.pay("form-2", 5002)))
        await service.clock.advance(10)
        await later
        health = await tracker.health()
        assert (health.unconfirmed, health.confirm_by) == (2, came + 300)
        service.confirm_scripts = []
        await service.clock.advance(30)
        health = await tracker.health()
        assert (health.unconfirmed, health.confirm_by) == (0, None)


async def answers(kind: str, tracker: payclient.Tracker) -> tuple[int, str, dict[str, object]]:
    """The HTTP status, the content type and the JSON of `/health`."""
    if kind == "starlette":
        starlette = Starlette(routes=[payclient.web.starlette.health_route("/health")])
        one = await ask(starlette, "GET", "/health", (), "", {"tracker": tracker})
        return one.status, one.headers["content-type"], json.loads(one.body)
    app = web.Application()
    app.cleanup_ctx.append(payclient.web.aiohttp.tracker_context(lambda: nullcontext(tracker)))
    app.add_routes([payclient.web.aiohttp.health_route("/health")])
    async with served(app) as url, aiohttp.ClientSession(url) as session, session.get("/health") as answer:
        return answer.status, answer.headers["Content-Type"], await answer.json()


@pytest.mark.parametrize("kind", ["aiohttp", "starlette"])
async def test_the_route(service: FakeService, kind: str) -> None:
    """200 or 503, and counts only. Django's is in `test_web_shops.py`."""
    ledger = Failing()
    async with selling(service, ledger=ledger) as (tracker, _):
        status, content_type, body = await answers(kind, tracker)
        assert (status, body["ok"], body["problems"], body["open"]) == (200, True, [], 1)
        assert content_type.startswith("application/json")
        assert "order-17" not in json.dumps(body)
        ledger.failing = {"all"}
        status, _, body = await answers(kind, tracker)
        assert (status, body["ok"], body["ledger_writable"]) == (503, False, False)


async def test_postgresql_that_stops_or_takes_no_writes(
    postgres: PostgresServer, new_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover to a standby; each process says it of itself, and recovers."""
    monkeypatch.setattr(postgres_ledger, "REACHING", 0.2)
    ledger = await payclient.open_ledger(postgres.url(new_database))
    async with (
        PaySession("https://pay.example", "token", profile=PROFILE, transport=FakeService()) as session,
        payclient.Tracker(session, ledger) as tracker,
    ):
        await tracker.sale(sale())
        assert (await tracker.health()).ok
        setting = f"ALTER DATABASE {new_database} SET default_transaction_read_only"
        await postgres.execute("postgres", f"{setting} = on")
        postgres.stop()
        health = await tracker.health()
        assert (health.ledger_writable, health.open) == (False, 1)
        postgres.start()
        assert not (await tracker.health()).ok, "it is read-only now"
        await postgres.execute("postgres", f"{setting} = off")
        postgres.stop()
        postgres.start()
        async with asyncio.timeout(60):
            while not (await tracker.health()).ok:  # noqa: ASYNC110 - connecting takes real time
                await asyncio.sleep(0.01)
    await ledger.aclose()


async def test_postgresql_without_its_standby(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe waits for it as a permit would, and is given up."""
    monkeypatch.setattr(tracker_health, "PROBE", 0.5)
    ledger = await payclient.open_ledger(postgres.url(database))
    async with (
        PaySession("https://pay.example", "token", profile=PROFILE, transport=FakeService()) as session,
        payclient.Tracker(session, ledger) as tracker,
    ):

        async def fails() -> bool:
            return not (await tracker.health()).ledger_writable

        assert not await fails()
        async with configured(postgres, "synchronous_standby_names", "nobody"):
            await until(fails)
    await ledger.aclose()
