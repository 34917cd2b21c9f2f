"""What a batch costs: wall time beside a naive gather, memory as it grows, and how close it comes to its own bounds.

Run: python benchmarks/bench_batch.py [--dir DIRECTORY_ON_A_REAL_DISK] [--only posted memory paced] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import logging
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator

# glibc's heap grows and trims at each receive of a small answer: the same cost for every variant, mostly noise.
if os.environ.get("MALLOC_TOP_PAD_") is None:
    os.environ["MALLOC_TOP_PAD_"] = "1048576"
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - ourselves, with the setting

import aiohttp
import orjson

from _measure import pin, ratio, row, server
from payclient.batch import charge_all
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.profile import ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.tracking.tracker import Tracker
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

AT_ONCE = 200


def request_of(number: int, customer: int | None = None) -> SaleRequest:
    """A charge; each is somebody else's unless it is said whose."""
    return SaleRequest(
        phone_number=f"09{number if customer is None else customer:08}",
        country_code="593",
        currency="USD",
        amount_with_tax=1000,
        tax=150,
        client_transaction_id=f"order-{number:08}",
        store_id="S1",
    )


# --- 20,000 rows, POSTed and recorded, beside people who POST only


async def posted(directory: str, rounds: int, rows: int, delay: float, *, target: bool) -> None:
    """Wall time, both over a server in another process that takes so many seconds to answer.

    The target is for a service that thinks for a while, as a real one does: what is naive of a naive session, such as
    its own limit of 100 connections, is part of the comparison. At once answered, all of it is CPU, and a ledger is no
    free gift: that ratio is printed beside it.
    """
    pin(0)
    logging.disable(logging.WARNING)  # that nothing here has a status source
    print(f"      over a service that answers after {delay * 1000:.0f} ms:")
    naive_times: list[float] = []
    lean_times: list[float] = []
    ours: list[float] = []
    async with server(delay=delay) as url:
        for number in range(rounds):
            naive_times.append(await _naive(url, rows))
            lean_times.append(await _lean(url, rows))
            ours.append(await _batch(url, os.path.join(directory, f"batch-{delay}-{number}.db"), rows))
    for name, times in (
        ("naive gather, json=, default connector", naive_times),
        ("naive gather of ready bytes, no connector limit", lean_times),
        ("charge_all, SQLite FULL", ours),
    ):
        print(f"      {rows / min(times):7.0f} rows a second at best  {name}")
    what = f"batch of {rows} rows, recorded durably, {AT_ONCE} in flight, {delay * 1000:.0f} ms to answer: as fast"
    against = "naive gather + Semaphore on aiohttp, POST only"
    if target:
        row(what, ratio(naive_times, ours), 1.1, against, most=False)
    else:
        print(f"      {ratio(naive_times, ours):7.2f}x  {what}  (against {against})")
    print(f"      {ratio(lean_times, ours):7.2f}x  as fast as the naive gather of ready bytes")


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
        await asyncio.gather(*(charge(number) for number in range(rows)))
        return time.perf_counter() - began


async def _lean(url: str, rows: int) -> float:
    """The same with all that aiohttp has to make it fast."""
    limit = asyncio.Semaphore(AT_ONCE)
    headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
    bodies = [orjson.dumps(_body(number)) for number in range(rows)]
    gc.collect()
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def charge(body: bytes) -> object:
            async with limit, session.post(url + "/api/Sale", data=body) as response:
                return await response.read()

        began = time.perf_counter()
        await asyncio.gather(*map(charge, bodies))
        return time.perf_counter() - began


async def _batch(url: str, path: str, rows: int) -> float:
    ledger = await SqliteLedger.open(path)
    gc.collect()
    async with PaySession(url, "token") as session, Tracker(session, ledger) as tracker:
        began = time.perf_counter()
        requests = (request_of(number) for number in range(rows))
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
    for count in rows:
        done = subprocess.run(
            [sys.executable, __file__, "--dir", directory, "--stream", str(count)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        peak, rate = map(float, done.stdout.split())
        print(f"      {peak:7.1f} MB at the peak of {count:,} rows  ({rate:.0f} rows a second)")
        peaks.append(peak)
    row(
        f"RSS growth of a streamed batch, {rows[0]:,} -> {rows[1]:,} rows",
        peaks[1] - peaks[0],
        10,
        "the same, shorter",
        unit=" MB",
    )


async def stream(directory: str, rows: int) -> None:
    """Every tenth customer comes again, every tenth row is accepted at its first query, the others are refused."""
    identifiers: dict[int, str] = {}
    number = 0

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        nonlocal number
        if request.method == "GET":
            asked = int(request.path.rpartition("/")[2])
            answer = {
                "transactionId": asked, "transactionStatus": "Aceptado", "amount": 1150, "currency": "USD",
                "clientTransactionId": identifiers.pop(asked),
            }  # fmt: skip
            return HttpResponse(status=200, headers={}, body=orjson.dumps(answer))
        if before_send is not None:
            await before_send()
        number += 1
        if number % 10:
            return HttpResponse(status=400, headers={}, body=b'{"message":"no","errorCode":22}')
        identifiers[number] = orjson.loads(request.body)["clientTransactionId"]
        return HttpResponse(status=200, headers={}, body=b'{"transactionId":%d}' % number)

    profile = ServiceProfile(
        name="stream",
        sale_window=10.0,
        status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="transactionStatus"),
    )
    ledger = await SqliteLedger.open(os.path.join(directory, f"stream-{rows}.db"))
    session = PaySession("http://127.0.0.1:9", "token", profile=profile, transport=transport)
    began = time.perf_counter()
    async with session, Tracker(session, ledger) as tracker:
        requests = (request_of(one, one * 9 // 10) for one in range(rows))
        async with charge_all(tracker, requests, max_in_flight=AT_ONCE) as results:
            seen = Counter([result.paid async for result in results])
    took = time.perf_counter() - began
    await ledger.aclose()
    assert seen.total() == rows, seen
    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale, rows / took)


# --- Virtual time: how close a paced batch comes to what bounds it


class VirtualClock:
    """Time that stands still while anything can run, and then goes to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._number = 0

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> _Timer:
        timer = _Timer(callback, args)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, timer))
        return timer

    async def run(self, task: asyncio.Task[object]) -> None:
        """Until the task is done."""
        loop = asyncio.get_running_loop()
        while not task.done():
            # All that can run runs: this callback is behind those that are ready, again and again.
            for _ in range(12):
                await asyncio.sleep(0)
            while loop._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110 - the one way to see that nothing can run
                await asyncio.sleep(0)
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
            if task.done():
                return
            if not self._timers:
                raise RuntimeError("nothing will ever happen")
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            timer.callback(*timer.args)


class _Timer:
    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.callback, self.args, self.cancelled = callback, args, False

    def cancel(self) -> None:
        self.cancelled = True


class Customers:
    """A service in virtual time: lognormal answers (median 25 s, sigma 0.8), one in ten never; 2061 as it is."""

    def __init__(self, clock: VirtualClock, window: float) -> None:
        self._clock = clock
        self._window = window
        self._chance = random.Random(11)  # noqa: S311 - the same customers in every run
        #: By transaction id: when it ends, how, its request.
        self._sales: list[tuple[float, str, dict[str, object]]] = []
        self._busy_until: dict[object, float] = {}
        self.created: list[float] = []
        self.queries = 0
        self.busy = 0
        #: Seconds that each lane's customers took together.
        self.lanes: Counter[object] = Counter()

    async def transport(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        now = self._clock.now
        if request.method == "GET":
            self.queries += 1
            return self._status(int(request.path.rpartition("/")[2]), now)
        if before_send is not None:
            await before_send()
        body = orjson.loads(request.body)
        who = body["phoneNumber"]
        if self._busy_until.get(who, -1.0) > now:
            self.busy += 1
            entry = {"message": "busy", "errorCode": 2061}
            return HttpResponse(
                status=400, headers={},
                body=orjson.dumps({"message": "no", "errorCode": 22, "errors": [entry]}),
            )  # fmt: skip
        answered, after = self._chance.random() >= 0.1, self._chance.lognormvariate(math.log(25), 0.8)
        took = after if answered and after < self._window else self._window
        self._sales.append((now + took, "Aceptado" if took < self._window else "Cancelado", body))
        self._busy_until[who] = now + took
        self.lanes[who] += took
        self.created.append(now)
        return HttpResponse(status=200, headers={}, body=b'{"transactionId":%d}' % len(self._sales))

    def _status(self, identifier: int, now: float) -> HttpResponse:
        end, how, body = self._sales[identifier - 1]
        answer = {
            "transactionId": identifier, "transactionStatus": how if now >= end else "Pendiente",
            "amount": body["amount"], "currency": "USD", "clientTransactionId": body["clientTransactionId"],
        }  # fmt: skip
        return HttpResponse(status=200, headers={}, body=orjson.dumps(answer))


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
    clock = VirtualClock()
    profile = ServiceProfile(
        name="paced",
        queries_per_minute=queries_per_minute,
        status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="transactionStatus"),
    )
    customers = Customers(clock, profile.sale_window)
    who = _customers(rows, longest)
    lanes = Counter(who)
    order = sorted(range(rows), key=lambda number: -lanes[who[number]])
    session = PaySession("http://127.0.0.1:9", "token", profile=profile, transport=customers.transport)
    async with session, Tracker(session, MemoryLedger(), clock=clock) as tracker:

        def requests() -> Iterator[SaleRequest]:
            return (request_of(number, who[number]) for number in order)

        async def charge() -> Counter[bool | None]:
            # As many prompts as the rate can have out at once: the rate is what bounds here.
            async with charge_all(
                tracker, requests(), max_in_flight=AT_ONCE, max_pending=10_000, rate=rate
            ) as results:
                return Counter([result.paid async for result in results])

        task = asyncio.create_task(charge())
        await clock.run(task)  # type: ignore[arg-type]  # a task of more than an object
        paid = task.result()
        took = clock.now
    creation = (rows - 1) / rate
    lane = max(customers.lanes.values())
    asked = 0.0 if queries_per_minute is None else customers.queries / queries_per_minute * 60
    bound = max(creation, lane, asked)
    print(
        f"      {name}: {took:.0f} s; creating takes {creation:.0f} s (the last at {customers.created[-1]:.0f} s), "
        f"the longest lane {lane:.0f} s, {customers.queries / rows:.1f} queries a sale {asked:.0f} s; {dict(paid)}"
    )
    row(f"batch of {rows} rows, {rate:g} a second, {name}", took / bound, 1.05, "max of its three bounds")
    row(f"2061 of our own making, {name}", customers.busy, 0, "none", unit=" ")


async def paced_all(rows: int) -> None:
    """A lane that is long, customers who come again, and queries that are few."""
    await paced(rows, 20.0, 60_000, 20, "a long lane")
    await paced(rows, 20.0, None, 1, "customers who come again")
    await paced(rows, 20.0, 1200, 5, "1,200 queries a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=".", help="a directory on the disk to measure")
    parser.add_argument(
        "--only", nargs="*", choices=("posted", "memory", "paced"), default=("posted", "memory", "paced")
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--memory-rows", type=int, nargs=2, default=(100_000, 1_000_000))
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stream is None:
        print(f"      load average {' '.join(f'{each:.1f}' for each in os.getloadavg())}")
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        if options.stream is not None:
            asyncio.run(stream(directory, options.stream))
            return
        if "posted" in options.only:
            for delay in (0.05, 0.0):
                asyncio.run(posted(directory, options.rounds, options.rows, delay, target=delay > 0))
        if "memory" in options.only:
            memory(directory, (options.memory_rows[0], options.memory_rows[1]))
        if "paced" in options.only:
            asyncio.run(paced_all(10_000))


if __name__ == "__main__":
    main()
