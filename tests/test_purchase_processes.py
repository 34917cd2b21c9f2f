"""Real processes over a real PostgreSQL ask for the same purchases at once, and one of them is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import payclient
from payclient.simulator import PAYPHONE, Answers, Simulator
from postgres_server import PostgresServer

ROOT = Path(payclient.__file__).parents[1]
WORKERS = 3

#: Asks for what each line of its input says, and says what came of it.
WORKER = """
import asyncio, os, sys
import attrs, payclient
from payclient.tracking import leases

leases.LEASE, leases.RENEW, leases.SENDING_GRACE = 1.5, 0.3, 0.5
PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=60_000)

def push(id):
    phone = "0984" + "".join(id.split("-")[1:]).rjust(6, "0")
    return payclient.SaleRequest(phone_number=phone, country_code="593", amount_without_tax=1150, currency="USD",
        client_transaction_id=id, store_id="S1")

def form(id):
    return payclient.PrepareRequest(amount_without_tax=1150, currency="USD", client_transaction_id=id, store_id="S1",
        response_url="https://shop.example/back")

async def ask(tracker, way, key, number):
    try:
        if way == "push":
            return (await tracker.sale(push(f"{key}-{number:02}"), purchase=key)).client_transaction_id
        if way == "form":
            return (await tracker.live_form(key, form)).payment_id
        if way == "look":
            purchase = await tracker.purchase(key)
            return f"{purchase.paid} {purchase.collected} {purchase.overpaid}"
        if way == "back":
            return str((await tracker.returned(key)).paid)
    except payclient.PayError as error:
        return type(error).__name__

async def main(url, ledger, number):
    options = {"profile": PROFILE, "timeouts": payclient.Timeouts(connect=1, total=1), "schedule": payclient.Fixed(0.2)}
    async with payclient.open_tracker(url, "secret", ledger=ledger, **options) as tracker:
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            print(await ask(tracker, *line, int(number)), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    """One process of the shop."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def tell(self, way: str, key: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{way} {key}\n".encode())

    async def said(self) -> str:
        """Its next line; empty of a dead one."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()

    async def ask(self, way: str, key: str) -> str:
        self.tell(way, key)
        return await self.said()

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def working(service: Simulator, ledger: str, number: int) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, service.url, ledger, str(number),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    worker = Worker(process)
    try:
        assert await worker.said() == "ready"
        yield worker
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(60):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def asked_of(service: Simulator, key: str) -> bool:
    """Whether the service knows any sale or form of the purchase."""
    mine = {payclient.derive_id("form", key, number) for number in range(1, 2 * WORKERS)}
    return any(
        each.client_transaction_id in mine or each.client_transaction_id.startswith(key)
        for each in (*service.sales.values(), *service.forms.values())
    )


def way_of(number: int, key: str) -> str:
    return "push" if key.startswith("both") and number % 2 == 0 else "form"


async def settle(service: Simulator, workers: list[Worker]) -> None:
    """Every customer pays whatever they were asked for, also by what a dead process had begun."""
    for sale in tuple(service.sales.values()):
        if sale.how is None:
            await service.approve(sale.transaction_id)
    for form in tuple(service.forms.values()):
        if form.how is None:
            back = await service.pay(form.payment_id)
            await workers[-1].ask("back", back.partition("?")[2])


async def test_one_of_many_processes_collects(postgres: PostgresServer, database: str) -> None:
    """Three ask at once for a form, then some for a push; one is killed amid them, and another takes its place."""
    ledger, keys = postgres.url(database), ["form-0", "both-1"]
    answers = Answers.parse("ignore=1")
    async with (
        Simulator(token="secret", settings=PAYPHONE, answers=answers) as service,
        AsyncExitStack() as stack,
    ):
        workers = [await stack.enter_async_context(working(service, ledger, n)) for n in range(WORKERS)]
        answered: set[str] = set()
        for place, key in enumerate(keys):
            for number, worker in enumerate(workers):
                worker.tell(way_of(number, key), key)
            victim = place % WORKERS
            if place % 2:  # killed before its ask is read, or when some have their answers
                await workers[(victim + 1) % WORKERS].said()
                workers[(victim + 1) % WORKERS].tell("form", key)
            await workers[victim].kill()
            said = [await worker.said() for number, worker in enumerate(workers) if number != victim]
            names = {each for each in said if each and not each.endswith("Error")}
            assert len(names) <= 1, (key, said)  # one push, or one form for all
            answered |= {key} if names else set()
            workers[victim] = await stack.enter_async_context(working(service, ledger, victim + WORKERS))
        async with asyncio.timeout(60):
            # One killed between its permit and its request holds its purchase: until proof, or for 25 minutes.
            asked = [key for key in keys if asked_of(service, key)]
            assert answered <= set(asked)
            for key in set(keys).difference(asked):
                assert await workers[0].ask(way_of(0, key), key) == "PurchaseOpenError"
            for key in asked:
                while (said_last := await workers[0].ask("look", key)) != "True 1150 0":
                    assert said_last.endswith(" 0"), said_last
                    await settle(service, workers)
                    for number, worker in enumerate(workers):  # the customers press all buttons once more
                        await worker.ask(way_of(number, key), key)
        assert sum(service.collected_per_client_id.values()) == 1150 * len(asked)
