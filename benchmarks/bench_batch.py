"""What a batch costs: wall time beside a naive gather, memory as it grows, and how close it comes to its own bounds.

Run: python benchmarks/bench_batch.py [--dir DIRECTORY_ON_A_REAL_DISK]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count

import aiohttp
import attrs
import orjson

from _measure import pin, ratio, row, sale_of, server, steady_heap
from crowd import PROFILE, Service, now
from fake_service import answer, refusal
from payclient.batch import charge_all
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import State
from payclient.session import PaySession
from payclient.tracking.tracker import Tracker
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from virtual_loop import VirtualClock, run

AT_ONCE = 200
#: Seconds that the server takes to answer.
DELAY = 0.05


# --- 20,000 rows, POSTed and recorded, beside people who POST only


async def posted(directory: str, rounds: int, rows: int) -> None:
    """Wall time, both over a server in another process that thinks for a while, as a real one does.

    What is naive of a naive session, such as its own limit of 100 connections, is part of the comparison.
    """
    pin(0)
    logging.disable(logging.WARNING)  # that nothing here has a status source
    naive: list[float] = []
    ours: list[float] = []
    async with server(delay=DELAY) as url:
        for number in range(rounds):
            naive.append(await _naive(url, rows))
            ours.append(await _batch(url, os.path.join(directory, f"batch-{number}.db"), rows))
    for name, times in {"naive gather": naive, "charge_all, SQLite FULL": ours}.items():
        print(f"      {rows / min(times):7.0f} rows a second at best  {name}")
    what = f"batch of {rows} rows, recorded durably, {AT_ONCE} in flight, {DELAY * 1000:.0f} ms to answer: as fast"
    against = "naive gather + Semaphore on aiohttp, POST only"
    row(what, ratio(naive, ours), 1.1, against, most=False)


def _body(number: int) -> dict[str, object]:
    return {
        "phoneNumber": f"09{number:08}", "countryCode": "593", "amount": 1150, "amountWithTax": 1000, "tax": 150,
        "currency": "USD", "clientTransactionId": f"order-{number:08}", "storeId": "S1",
    }  # fmt: skip


async def _naive(url: str, rows: int) -> float:
    """As people write it."""
    limit = asyncio.Semaphore(AT_ONCE)
    gc.collect()
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer token"}) as session:

        async def charge(number: int) -> object:
            async with limit, session.post(url + "/api/Sale", json=_body(number)) as response:
                return await response.json()

        began = time.perf_counter()
        await asyncio.gather(*map(charge, range(rows)))
        return time.perf_counter() - began


async def _batch(url: str, path: str, rows: int) -> float:
    ledger = await SqliteLedger.open(path)
    gc.collect()
    async with PaySession(url, "token") as session, Tracker(session, ledger) as tracker:
        began = time.perf_counter()
        requests = (sale_of(number) for number in range(rows))
        async with charge_all(
            tracker, requests, max_in_flight=AT_ONCE, max_pending=10 * AT_ONCE, wait=0
        ) as results:
            async for result in results:
                assert result.outcome is not None
                assert result.outcome.state is State.PENDING
        took = time.perf_counter() - began
    await ledger.aclose()
    return took


# --- Memory


def memory(directory: str, rows: tuple[int, int]) -> None:
    """What a streamed batch holds at its peak, by its length: each in a process of its own."""
    peaks = []
    for length in rows:
        done = subprocess.run(
            [sys.executable, __file__, "--dir", directory, "--stream", str(length)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        peak, rate = map(float, done.stdout.split())
        print(f"      {peak:7.1f} MB at the peak of {length:,} rows  ({rate:.0f} rows a second)")
        peaks.append(peak)
    what = f"RSS growth of a streamed batch, {rows[0]:,} -> {rows[1]:,} rows"
    row(what, peaks[1] - peaks[0], 10, "the same, shorter", unit=" MB")


async def stream(directory: str, rows: int) -> None:
    """Every tenth customer comes again, every tenth row is accepted at its first query, the others are refused."""
    identifiers: dict[int, str] = {}
    numbers = count(1)

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "GET":
            asked = int(request.path.rpartition("/")[2])
            return answer(200, {
                "transactionId": asked, "state": "Aceptado", "amount": 1150, "currency": "USD",
                "clientTransactionId": identifiers.pop(asked),
            })  # fmt: skip
        if before_send is not None:
            await before_send()
        number = next(numbers)
        if number % 10:
            return refusal(22)
        identifiers[number] = orjson.loads(request.body)["clientTransactionId"]
        return answer(200, {"transactionId": number})

    profile = attrs.evolve(PROFILE, sale_window=10.0)
    ledger = await SqliteLedger.open(os.path.join(directory, f"stream-{rows}.db"))
    session = PaySession("http://127.0.0.1:9", "token", profile=profile, transport=transport)
    began = time.perf_counter()
    async with session, Tracker(session, ledger) as tracker:
        requests = (sale_of(one, one * 9 // 10) for one in range(rows))
        async with charge_all(tracker, requests, max_in_flight=AT_ONCE) as results:
            seen = Counter([result.paid async for result in results])
    took = time.perf_counter() - began
    await ledger.aclose()
    assert seen.total() == rows, seen
    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale, rows / took)


# --- Virtual time: how close a paced batch comes to what bounds it


class Customers(Service):
    """The crowd of the tests (median 25 s, sigma 0.8, one in ten never), each of whom takes one sale at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._busy_until: dict[str, float] = {}
        self.busy = 0
        #: Seconds that each lane's customers took together.
        self.lanes: Counter[str] = Counter()

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "GET":
            return await super().__call__(request, before_send)
        body, began = orjson.loads(request.body), now()
        who = body["phoneNumber"]
        if self._busy_until.get(who, -1.0) > began:
            assert before_send is not None
            await before_send()
            self.busy += 1
            return refusal(22, 2061)
        response = await super().__call__(request, before_send)
        self._busy_until[who], _ = self.truth[body["clientTransactionId"]]
        self.lanes[who] += self._busy_until[who] - began
        return response


def _customers(rows: int, longest: int) -> list[int]:
    """Who each row charges: one in five comes again, and one of them `longest` times; in any order."""
    chance = random.Random(5)  # noqa: S311 - the same rows in every run
    rest = rows - longest
    once = rest * 4 // 5
    who = [0] * longest + list(range(1, once + 1))
    who += [chance.randrange(1, once + 1) for _ in range(rest - once)]
    chance.shuffle(who)
    return who


async def paced(rows: int, rate: float, queries_per_minute: float | None, longest: int, name: str) -> None:
    """Longest lanes first, as a file's are sent: from the first row to the last outcome."""
    profile = attrs.evolve(PROFILE, queries_per_minute=queries_per_minute)
    customers = Customers()
    who = _customers(rows, longest)
    lanes = Counter(who)
    order = sorted(range(rows), key=lambda number: -lanes[who[number]])
    session = PaySession("http://127.0.0.1:9", "token", profile=profile, transport=customers)
    async with session, Tracker(session, MemoryLedger(), clock=VirtualClock()) as tracker:
        requests = (sale_of(number, who[number]) for number in order)
        # As many prompts as the rate can have out at once: the rate is what bounds here.
        async with charge_all(
            tracker, requests, max_in_flight=AT_ONCE, max_pending=10_000, rate=rate
        ) as results:
            paid = Counter([result.paid async for result in results])
        took = now()
    creation = (rows - 1) / rate
    lane = max(customers.lanes.values())
    asked = 0.0 if queries_per_minute is None else len(customers.queried_at) / queries_per_minute * 60
    bound = max(creation, lane, asked)
    print(
        f"      {name}: {took:.0f} s; creating takes {creation:.0f} s, the longest lane {lane:.0f} s, "
        f"{len(customers.queried_at) / rows:.1f} queries a sale {asked:.0f} s; {dict(paid)}"
    )
    row(f"batch of {rows} rows, {rate:g} a second, {name}", took / bound, 1.05, "max of its three bounds")
    row(f"2061 of our own making, {name}", customers.busy, 0, "none", unit=" ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=".", help="a directory on the disk to measure")
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        if options.stream is not None:
            asyncio.run(stream(directory, options.stream))
            return
        asyncio.run(posted(directory, 5, 20_000))
        memory(directory, (100_000, 1_000_000))
        run(paced(10_000, 20.0, 60_000, 20, "a long lane"))
        run(paced(10_000, 20.0, None, 1, "customers who come again"))
        run(paced(10_000, 20.0, 1200, 5, "1,200 queries a minute"))


if __name__ == "__main__":
    steady_heap()
    main()
