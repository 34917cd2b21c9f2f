"""What the PostgreSQL ledger writes a second, beside SQLite and the disk's fsync, and how soon others hear of it.

python benchmarks/bench_postgres.py [--url postgresql://USER@HOST/EMPTY_DATABASE]

Without a URL it starts the PostgreSQL of this machine in a temporary directory, as the tests do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from _measure import row
from bench_ledger import fsync_rate
from payclient.ledger import Ledger, Shared, open_ledger
from payclient.lifecycle import Created, Notified, Record

NOW = 1_700_000_000.0
ROUNDS = 3


async def sale(ledger: Ledger, name: str) -> None:
    """The two writes of a sale that is created."""
    record = Record(
        client_transaction_id=name,
        digest=b"d" * 16,
        lane=b"l" * 16,
        amount=1150,
        currency="USD",
        created_at=NOW,
    )
    if not await ledger.permit(record):
        raise SystemExit(f"{name} was there before: give an empty database")
    await ledger.apply(record, Created(at=NOW, transaction_id=1, expires_at=NOW + 300))


async def work(url: str, width: int, sales: int, name: str) -> None:
    """One process: says that it is ready, waits for a line, makes the sales, and says how long it took."""
    ledger = await open_ledger(url)
    numbers = iter(range(sales))
    await sale(ledger, f"{name}-warm")

    async def worker() -> None:
        for number in numbers:
            await sale(ledger, f"{name}-{number}")

    print("ready", flush=True)
    sys.stdin.readline()  # nothing else runs in this loop yet
    cpu = time.process_time()
    await asyncio.gather(*(worker() for _ in range(width)))
    print((time.process_time() - cpu) / sales * 1e6, flush=True)
    await ledger.aclose()


def rate(url: str, processes: int, width: int, sales: int, names: count[int]) -> tuple[float, float]:
    """Writes a second of so many processes with so many sales at once each; the first one's CPU, us a sale."""
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--work", url, str(width), str(sales), f"{next(names)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    lines = []
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
        lines.append(float(each.stdout.readline()))
    seconds = time.perf_counter() - start
    for each in workers:
        each.communicate()
    return 2 * sales * processes / seconds, lines[0]


def writes(url: str, directory: str) -> None:
    names = count()
    for processes in (1, 4):
        for width, sales in ((1, 400), (50, 4000), (200, 8000)):
            rates, ratios, beside, cpu = [], [], [], []
            for _ in range(ROUNDS):
                disk = fsync_rate(directory)
                figure, cost = rate(url, processes, width, sales // processes, names)
                rates.append(figure)
                cpu.append(cost)
                ratios.append(figure / disk)
                if processes == 1:  # one process owns a file of SQLite's
                    path = Path(directory, f"{next(names)}.db")
                    beside.append(figure / rate(f"sqlite:{path}", 1, width, sales, names)[0])
            words = f"{processes} process{'es' if processes > 1 else ''}, {width:3} at once each"
            print(
                f"{words}: {statistics.median(rates):7.0f} writes a second, {statistics.median(ratios):5.2f}x fsync"
                + (f", {statistics.median(beside):5.2f}x SQLite" if beside else "")
                + f", {statistics.median(cpu):4.0f} us of CPU a sale"
            )


async def waking(url: str, notifications: int = 300) -> None:
    """From the call of one ledger that writes a notification to the word that another one's watcher hears."""
    writer, reader = await open_ledger(url), await open_ledger(url)
    assert isinstance(reader, Shared)
    heard: asyncio.Queue[str | None] = asyncio.Queue()
    reader.watch(heard.put_nowait)
    await heard.get()
    times = []
    for number in range(notifications):
        name = f"notified-{number}"
        await sale(writer, name)
        record = await writer.get(name)
        assert record is not None
        start = time.perf_counter()
        await writer.apply(record, Notified(at=NOW, transaction_id=1))
        while await heard.get() != name:
            pass
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    print(f"notification to another's watcher: p50 {times[len(times) // 2]:.1f} ms")
    row("the same, p99", times[int(len(times) * 0.99)], 100, "PostgreSQL on this machine", unit=" ms")
    for each in (writer, reader):
        await each.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="an empty database; by default a server is started")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="a directory on the server's disk")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        url, width, sales, name = given.work
        asyncio.run(work(url, int(width), int(sales), name))
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        if given.url:
            writes(given.url, directory)
            asyncio.run(waking(given.url))
            return
        sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "tests"))
        from postgres_server import PostgresServer, _binaries

        binaries = _binaries()
        if binaries is None:
            raise SystemExit("no PostgreSQL on this machine: give --url")
        server = PostgresServer(binaries)
        try:
            server.start()
            url = server.url("postgres")
            writes(url, directory)
            asyncio.run(waking(url))
        finally:
            server.remove()


if __name__ == "__main__":
    main()
