"""What the PostgreSQL ledger writes a second, beside SQLite and the disk's fsync, and how soon others hear of it.

Run: python benchmarks/bench_postgres.py. It starts the PostgreSQL of this machine in a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import attrs

import payclient
from _measure import created, record_of, row, sale_of
from bench_ledger import fsync_rate
from cutting_proxy import PostgresProxy
from fake_service import FakeService, hint, tracking
from payclient.clock import SystemClock
from payclient.ledger import Ledger, open_ledger
from payclient.schedule import Fixed
from postgres_server import running_postgres

ROUNDS = 3

#: Each sale is another transaction, whichever process makes it.
numbers = count(secrets.randbits(40) << 20)


async def sale(ledger: Ledger, name: str) -> None:
    """The two writes of a sale that is created."""
    record = record_of(name)
    await ledger.permit(record)
    await ledger.apply(record, created(next(numbers)))


async def work(url: str, width: int, sales: int, name: str) -> None:
    """One process: says that it is ready, waits for a line, makes the sales, and says that it has."""
    ledger = await open_ledger(url)
    numbers = iter(range(sales))
    await sale(ledger, f"{name}-warm")

    async def worker() -> None:
        for number in numbers:
            await sale(ledger, f"{name}-{number}")

    print("ready", flush=True)
    sys.stdin.readline()  # nothing else runs in this loop yet
    await asyncio.gather(*(worker() for _ in range(width)))
    print("done", flush=True)
    await ledger.aclose()


def rate(url: str, processes: int, width: int, sales: int, names: count[int]) -> float:
    """Writes a second of so many processes with so many sales at once each."""
    command = [sys.executable, __file__, "--work", url, str(width), str(sales)]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen([*command, f"{next(names)}"], stdin=pipe, stdout=pipe, text=True)
        for _ in range(processes)
    ]
    for each in workers:
        assert each.stdout is not None
        each.stdout.readline()
    start = time.perf_counter()
    for each in workers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in workers:
        assert each.stdout is not None
        each.stdout.readline()
    seconds = time.perf_counter() - start
    for each in workers:
        each.communicate()
    return 2 * sales * processes / seconds


def writes(url: str, directory: str) -> None:
    names = count()
    for processes in (1, 4):
        for width, sales in ((1, 400), (50, 4000), (200, 8000)):
            rates, ratios, beside = [], [], []
            for _ in range(ROUNDS):
                disk = fsync_rate(directory)
                figure = rate(url, processes, width, sales // processes, names)
                rates.append(figure)
                ratios.append(figure / disk)
                if processes == 1:  # one process owns a file of SQLite's
                    path = Path(directory, f"{next(names)}.db")
                    beside.append(figure / rate(f"sqlite:{path}", 1, width, sales, names))
            words = f"{processes} process{'es' if processes > 1 else ''}, {width:3} at once each"
            print(
                f"{words}: {statistics.median(rates):7.0f} writes a second, {statistics.median(ratios):5.2f}x fsync"
                + (f", {statistics.median(beside):5.2f}x SQLite" if beside else "")
            )


@asynccontextmanager
async def worker(url: str, service: FakeService) -> AsyncIterator[payclient.Tracker]:
    async with (
        aclosing(await open_ledger(url)) as ledger,
        tracking(service, ledger, schedule=Fixed(60.0)) as tracker,
    ):
        yield tracker


async def wait_for(url: str, names: list[str], deaf: bool) -> None:
    """The process that waits: says when each wait ended, by the clock that all processes of a machine share."""
    port = urlsplit(url).port
    assert port is not None
    async with (
        PostgresProxy(port) as proxy,
        worker(url.replace(f":{port}", f":{proxy.port}"), FakeService(SystemClock())) as tracker,
    ):
        proxy.deaf = deaf

        async def one(name: str) -> None:
            pending = await tracker.find(name)
            assert pending is not None
            print("ready", flush=True)
            outcome = await pending.wait()
            print(name, time.monotonic(), outcome.paid, flush=True)

        await asyncio.gather(*map(one, names))


async def delivery(url: str, sales: int, *, deaf: bool) -> list[float]:
    """Milliseconds from `notify()` in one process to the end of `wait()` in another; a third follows, and asks."""
    service = FakeService(SystemClock())
    service.first_id = (
        secrets.randbits(40) << 20
    )  # each sale is another transaction, whichever process makes it
    async with worker(url, service) as follower, worker(url, service) as notified:
        names = [f"delivery-{deaf}-{number}" for number in range(sales)]
        for number, name in enumerate(names):
            await follower.sale(attrs.evolve(sale_of(number), client_transaction_id=name))
        waiter = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--wait", url, str(int(deaf)), *names, stdout=asyncio.subprocess.PIPE
        )
        assert waiter.stdout is not None
        for _ in names:
            await waiter.stdout.readline()
        await asyncio.sleep(1.0)
        began, ended = {}, {}

        async def told() -> None:
            assert waiter.stdout is not None
            async for line in waiter.stdout:
                name, when, paid = line.decode().split()
                assert paid == "True", line
                ended[name] = float(when)

        telling = asyncio.create_task(told())
        for number, sale in service.sales.items():
            name = str(sale["clientTransactionId"])
            service.decide("Aceptado", number)
            began[name] = time.monotonic()
            await notified.notify(hint(number, name))
            await asyncio.sleep(0.2 if deaf else 0.01)
        await telling
        await waiter.wait()
    return sorted((ended[name] - began[name]) * 1000 for name in names)


def deliveries(url: str) -> None:
    heard, longest = (asyncio.run(delivery(url, n, deaf=deaf)) for n, deaf in ((300, False), (40, True)))
    against = "PostgreSQL on this machine, status queries that cost nothing"
    print(f"notify() in one process to wait() in another: p50 {heard[len(heard) // 2]:.1f} ms")
    row("the same, p99", heard[int(len(heard) * 0.99)], 100, against, unit=" ms")
    row("with a dead listener, the longest", longest[-1] / 1000, 6, against, unit=" s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--wait", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.wait:
        url, deaf, *names = given.wait
        asyncio.run(wait_for(url, names, deaf == "1"))
        return
    if given.work:
        url, width, sales, name = given.work
        asyncio.run(work(url, int(width), int(sales), name))
        return
    with tempfile.TemporaryDirectory() as directory, running_postgres() as server:
        url = server.url("postgres")
        writes(url, directory)
        deliveries(url)


if __name__ == "__main__":
    main()
