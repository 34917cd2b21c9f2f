"""`payclient follow`: each outcome as a line of JSON, from a cursor on, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from cli_runs import wait_until
from fake_service import record_in, sale
from payclient import sync
from payclient.cli.signals import handled
from payclient.events import Overpaid
from payclient.ledger import open_ledger
from payclient.simulator import PAYPHONE, Answers, Simulator, SimulatorThread
from postgres_server import PostgresServer
from shops.serving import PRESET

ROOT = Path(__file__).parent.parent
UNLIMITED = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)
(FULFIL,) = re.findall(
    r"^```python\n# fulfil\.py\n(.*?)^```$",
    (ROOT / "payclient" / "guide" / "fulfilment.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def service() -> Iterator[SimulatorThread]:
    """Its customers approve at once, but for those that are to be refused."""
    answers = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(0.01, 0.0))
    settings = attrs.evolve(PAYPHONE, queries_per_minute=None, refuse_with={"refused": 120})
    with SimulatorThread(Simulator(token="secret", settings=settings, answers=answers)) as thread:
        yield thread


@contextmanager
def following(
    service: SimulatorThread, folder: Path, ledger: str, *arguments: str, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process of it, which is killed at the latest at the end."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "PAYCLIENT_TOKEN": "secret", "PAYCLIENT_BASE_URL": service.url,
        "PAYCLIENT_PROFILE": str(folder / "quick.toml"), "PAYCLIENT_LEDGER": ledger,
    }  # fmt: skip
    (folder / "quick.toml").write_text(PRESET)
    with (folder / "err").open("a") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "payclient", "follow", *arguments],
            cwd=folder, env=environment, stderr=err, text=True, **({"stdout": subprocess.PIPE} | options),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def charging(service: SimulatorThread, ledger: str) -> sync.Tracker:
    return sync.open_tracker(
        service.url, "secret", ledger=ledger, profile=UNLIMITED, schedule=payclient.Fixed(0.02)
    )


def lines(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_each_outcome_is_a_line(service: SimulatorThread, tmp_path: Path) -> None:
    """What was decided before, also that a purchase was paid twice, and what is left open; SIGTERM ends it well."""
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    with charging(service, ledger) as tracker:
        assert tracker.sale(sale("paid")).wait().paid
        with pytest.raises(payclient.RefusedError):
            tracker.sale(sale("refused", phone="0984000001"))
        tracker.sale(sale("open", phone="0984000002"))

    async def overpay() -> None:
        async with aclosing(await open_ledger(ledger)) as book:
            await book.apply(await record_in(book, "paid"), Overpaid(at=time.time(), also=("form-1",)))

    asyncio.run(overpay())
    with following(service, tmp_path, ledger) as process:
        paid, refused, twice, opened = lines(process, 4)
        assert list(paid) == [
            "cursor", "client_transaction_id", "transaction_id", "state", "paid", "evidence", "purchase", "amount",
            "currency", "created_at", "notified_at", "decided_at", "error_code", "message",
        ]  # fmt: skip
        assert (paid["client_transaction_id"], paid["state"], paid["paid"]) == ("paid", "accepted", True)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", paid["decided_at"])
        assert (refused["client_transaction_id"], refused["paid"]) == ("refused", False)
        assert (refused["error_code"], refused["transaction_id"]) == (120, None)
        assert refused["message"]
        assert (twice["client_transaction_id"], twice["paid"], twice["also_paid"]) == (
            "paid",
            True,
            ["form-1"],
        )
        assert (opened["client_transaction_id"], opened["paid"]) == ("open", True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_over_postgresql_it_prints_what_others_send(
    service: SimulatorThread, postgres: PostgresServer, new_database: str, tmp_path: Path
) -> None:
    """While they go on."""
    ledger = postgres.url(new_database)
    with charging(service, ledger) as tracker, following(service, tmp_path, ledger) as process:
        for number in range(2):
            tracker.sale(sale(f"order-{number}", phone=f"098400000{number}"))
            (line,) = lines(process, 1)
            assert (line["client_transaction_id"], line["paid"]) == (f"order-{number}", True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
@pytest.mark.parametrize("is_ignored", [False, True], ids=["", "nohup"])
async def test_signals_are_handled_while_a_command_waits(is_ignored: bool) -> None:
    """A terminal that is closed is a SIGTERM, unless the command is to outlive it. Then they mean what they did."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = list[str]()
    try:
        if is_ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        theirs = [signal.getsignal(number) for number in before]
        with handled(lambda: heard.append("interrupt"), lambda: heard.append("terminate")):
            for number in before:
                signal.raise_signal(number)
                await asyncio.sleep(0)
        assert [signal.getsignal(number) for number in before] == theirs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == ["interrupt", "terminate", *(() if is_ignored else ("terminate",))]

    async def wait() -> list[object]:
        with handled(print, print):
            return [signal.getsignal(number) for number in before]

    # A thread other than the main one may handle none.
    assert await asyncio.to_thread(asyncio.run, wait()) == list(before.values())


def in_pipe(reader: int) -> int:
    """How many bytes a pipe holds."""
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_reader_that_is_gone_or_stuck(service: SimulatorThread, tmp_path: Path) -> None:
    """Gone: exit code 2 and a reason. Stuck: SIGTERM still ends it."""
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    with charging(service, ledger) as tracker:
        sales = [tracker.sale(sale(f"order-{number}", phone=f"09840000{number:02}")) for number in range(3)]
        assert all(each.paid for each in sync.as_decided(sales))
    with following(service, tmp_path, ledger) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 2
    assert "the outcomes cannot be written" in (tmp_path / "err").read_text()
    with following(service, tmp_path, ledger, "--since", "1000") as process:  # no line is to be written
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 2
    assert "the outcomes cannot be written" in (tmp_path / "err").read_text()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    os.read(reader, 4096)  # room for a line
    before = in_pipe(reader)
    with following(service, tmp_path, ledger, stdout=writer) as process:
        wait_until(lambda: in_pipe(reader) > before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    os.close(reader)
    os.close(writer)


def test_the_guides_worker_fulfils_once(service: SimulatorThread, tmp_path: Path) -> None:
    """A pipeline that Ctrl-C ends goes on from the cursor that its worker stored."""
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    (tmp_path / "fulfil.py").write_text(FULFIL, encoding="utf-8")
    worker = [sys.executable, "fulfil.py"]
    for turn in range(2):
        with charging(service, ledger) as tracker:
            for number in (2 * turn, 2 * turn + 1):
                request = sale(f"ask-{number}", phone=f"098400000{number}")
                assert tracker.sale(request, purchase=f"order-{number}").wait().paid
        cursor = subprocess.check_output([*worker, "cursor"], cwd=tmp_path, text=True)
        with following(service, tmp_path, ledger, "--since", cursor.strip()) as process:
            text = "".join(json.dumps(line) + "\n" for line in lines(process, 2))
            subprocess.run(worker, cwd=tmp_path, input=text, text=True, check=True, timeout=60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        asks = shop.execute("SELECT id, purchase FROM paid ORDER BY id").fetchall()
    assert asks == [(f"ask-{number}", f"order-{number}") for number in range(4)]
