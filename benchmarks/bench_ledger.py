"""What the SQLite ledger costs: durable writes beside the disk's fsync, and CPU per sale.

python benchmarks/bench_ledger.py [--dir DIRECTORY_ON_A_REAL_DISK]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from itertools import count

from _measure import created, interleaved, p50, pin, ratio, record_of, row, sale_of, server
from payclient.ledger.sqlite import SqliteLedger
from payclient.session import PaySession
from payclient.tracking.tracker import Tracker

ROUNDS = 5
#: Seconds of an fdatasync from which two of them are what a sale alone is compared with.
SLOW_SYNC = 0.0005


async def at_once(ledger: SqliteLedger, numbers: count[int], width: int, total: int) -> None:
    """`width` workers share out `total` permits."""

    async def worker(pieces: int) -> None:
        for _ in range(pieces):
            await ledger.permit(record_of(f"order-{next(numbers)}"))

    await asyncio.gather(*(worker(total // width) for _ in range(width)))


def fsync_rate(directory: str, seconds: float = 0.5) -> float:
    """How often a second 4 KiB reach the disk, one after another.

    Written over what is there, as a write-ahead log in use is: appending costs a file system's journal besides.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"x" * 4096 * 1000)
        os.fsync(file.fileno())
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            os.pwrite(file.fileno(), b"y" * 4096, done % 1000 * 4096)
            sync(file.fileno())
            done += 1
        return done / (time.perf_counter() - start)


async def durable_writes(directory: str) -> None:
    ledger = await SqliteLedger.open(os.path.join(directory, "writes.db"))
    numbers = count()
    widths = ((50, 5000, 5), (200, 20000, 10))
    for width, total, target in widths:
        ratios = []
        for _ in range(ROUNDS):
            disk = fsync_rate(directory)
            start = time.perf_counter()
            await at_once(ledger, numbers, width, total)
            rate = total / (time.perf_counter() - start)
            ratios.append(rate / disk)
            print(f"      {rate:7.0f} durable writes a second, fsync {disk:6.0f}")
        row(f"durable writes, {width} at once", statistics.median(ratios), target, "fsync", most=False)
    await ledger.aclose()


async def durable_sales(directory: str) -> None:
    """`session.sale` beside the same with both writes, and beside `tracker.sale`, over a server in another process."""
    pin(0)
    numbers = count()
    ledger = await SqliteLedger.open(os.path.join(directory, "sales.db"))
    async with (
        server() as url,
        PaySession(url, "token") as session,
        Tracker(session, await SqliteLedger.open(os.path.join(directory, "tracker.db"))) as tracker,
    ):

        async def raw(_: int) -> object:
            return await session.sale(sale_of(next(numbers)))

        async def written(_: int) -> object:
            record = record_of(f"order-{next(numbers)}")

            async def before_send() -> None:
                if not await ledger.permit(record):
                    raise RuntimeError("no permit")

            result = await session.sale(sale_of(next(numbers)), before_send=before_send)
            return await ledger.apply(record, created(result.transaction_id))

        async def tracked(_: int) -> object:
            return await tracker.sale(sale_of(next(numbers)))

        calls = {"session.sale": raw, "with both writes": written, "tracker.sale": tracked}
        bare, both, whole = await interleaved(calls, count=4000, at_once=200, rounds=ROUNDS)
        row("permit and answer in SQLite FULL, 200 at once", ratio(both, bare), 1.5, "session.sale")
        row("tracker.sale, durable, followed, 200 at once", ratio(whole, bare), 1.8, "session.sale")

        added, syncs = [], []
        for _ in range(ROUNDS):
            syncs.append(1 / fsync_rate(directory))
            added.append(await p50(tracked, 400) - await p50(raw, 400))
        what, sync = "tracker.sale one at a time: added p50", statistics.median(syncs)
        ratios = [seconds / (2 * each) for seconds, each in zip(added, syncs, strict=True)]
        print(
            f"      {sync * 1e3:7.2f} ms  an fdatasync of this disk; {what} {statistics.median(ratios):.2f}x two"
        )
        if sync >= SLOW_SYNC:
            row(what, statistics.median(ratios), 1.5, "two fdatasyncs of this disk")
        else:
            row(what, statistics.median(added) * 1e3, 0.6, "an fdatasync takes less than 0.5 ms", unit=" ms")
        await tracker.aclose()
        await tracker._ledger.aclose()
    await ledger.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=".", help="a directory on the disk to measure")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().dir) as directory:
        for part in (durable_writes, durable_sales):
            asyncio.run(part(directory))


if __name__ == "__main__":
    main()
