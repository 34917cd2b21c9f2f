"""A paid form and a process that dies before it confirms: real processes, a real file, a service that reverses."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

import payclient
from fake_service import form
from manual_clock import ManualClock
from payclient.simulator import PAYPHONE, Simulator

ROOT = Path(payclient.__file__).parents[1]

#: The preset and its service, without 2 s between two queries.
PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=60_000)
UNLIMITED = attrs.evolve(PAYPHONE, queries_per_minute=None)

#: What both processes do first, and then each its own part.
SHOP = """
import asyncio, sys
import attrs, payclient
from payclient.session import PaySession

PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=60_000)

async def main(base_url, ledger):
    async with payclient.open_tracker(base_url, "token", ledger=ledger, profile=PROFILE) as tracker:
        {part}

asyncio.run(main(*sys.argv[1:]))
"""

#: Prepares a form, and hangs between the record of the return and its confirmation.
FIRST = """
        form = await tracker.prepare(payclient.PrepareRequest(
            amount_with_tax=1000, tax=150, currency="USD", client_transaction_id="form-1", store_id="S1",
            response_url="https://shop.example/back?cart=9",
        ))
        print(form.payment_id, flush=True)
        query = sys.stdin.readline().strip()

        async def confirm(self, *ids, **options):
            print("confirming", flush=True)
            await asyncio.Event().wait()

        PaySession.confirm = confirm
        await tracker.returned(query)
"""

#: Is started again, with nothing but the ledger.
SECOND = """
        pending = await tracker.find("form-1")
        outcome = await pending.wait()
        print(outcome.paid, outcome.evidence, flush=True)
"""


@asynccontextmanager
async def running(part: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SHOP.format(part=part.strip()), *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    """Its next line."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return (await process.stdout.readline()).decode().strip()


async def test_a_form_paid_before_a_crash_is_confirmed_and_not_reversed(tmp_path: Path) -> None:
    """Killed between return and confirmation, started again, confirmed; a form that nobody confirms is reversed."""
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    clock = ManualClock()
    async with Simulator(token="token", settings=UNLIMITED, clock=clock) as service:
        async with running(FIRST, service.url, ledger) as shop:
            payment_id = await said(shop)
            back = await service.pay(payment_id)
            assert back.startswith("https://shop.example/back?cart=9&id=")
            assert shop.stdin is not None
            shop.stdin.write(back.partition("?")[2].encode() + b"\n")
            assert await said(shop) == "confirming"
            shop.send_signal(signal.SIGKILL)
            assert await shop.wait() == -signal.SIGKILL
        assert service.forms[payment_id].confirmed_at is None
        async with payclient.PaySession(service.url, "token", profile=PROFILE) as session:
            other = await session.prepare(form("form-2"))
        await service.pay(other.payment_id)
        await clock.advance(240)  # the machine comes back after four minutes
        async with running(SECOND, service.url, ledger) as shop:
            assert await said(shop) == "True query"
            assert await shop.wait() == 0
        await clock.advance(3600)
        confirmed = service.forms[payment_id]
        assert confirmed.confirmed_at is not None
        assert confirmed.reversal is None
        assert service.collected_per_client_id["form-1"] == 1150
        assert service.forms[other.payment_id].reversal is not None
        assert service.collected_per_client_id["form-2"] == 0
