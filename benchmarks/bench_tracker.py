"""What it costs to follow many open sales, beside an asyncio task with a time-out for each.

Run: python benchmarks/bench_tracker.py [--dir DIRECTORY_ON_A_REAL_DISK].
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable

import attrs

from _measure import pin, ratio, row
from payclient.clock import LoopClock, SystemClock
from payclient.events import Created, Event, Evidence
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import Record, State, advance
from payclient.models import Notification, StatusReport
from payclient.schedule import Fixed, Schedule
from payclient.session import PaySession
from payclient.tracking.arrivals import Arrivals
from payclient.tracking.followup import TransactionRef
from payclient.tracking.poller import Poller
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

PENDING = "Pendiente"


class Clock(SystemClock):
    """The system's, moved on by hand."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        return super().call_at(when - self.ahead, callback, *args)


class Forgetful(MemoryLedger):
    """Takes events and keeps nothing, so that what is measured is the following."""

    async def apply(self, record: Record, event: Event) -> Record:
        await asyncio.sleep(0)
        return advance(record, event)


async def unused(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
    """No request is made: the status source answers."""
    raise AssertionError


def polling(clock: Clock, ledger: Ledger, schedule: Schedule | None = None, answer: str = PENDING) -> Poller:
    async def status(reference: TransactionRef) -> StatusReport:
        return StatusReport(state=answer, transaction_id=reference.transaction_id)

    session = PaySession("https://pay.example", "token", transport=unused)
    return Poller(session, ledger, clock, status=status, schedule=schedule)


def pending_sales(count: int, first: int = 0, age: float = 0.0) -> list[Record]:
    """Records as a ledger gives them, no part of them shared."""
    now = time.time() - age
    return [
        Record(
            client_transaction_id=f"order-{number:08}", digest=number.to_bytes(16, "big"),
            lane=(number + 1).to_bytes(16, "big"), amount=1000 + number, currency="USD",
            state=State.PENDING, evidence=Evidence.ANSWER, version=1, transaction_id=10**6 + number,
            created_at=now + number * 1e-9, expires_at=now + 300 + number * 1e-9,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


async def timed_out(answered: asyncio.Event, record: Record | None) -> None:
    """What people write: several may wait for it, and it ends after five minutes."""
    await asyncio.wait_for(answered.wait(), 300)


async def waits_for(records: list[Record]) -> dict[str, tuple[asyncio.Event, asyncio.Task[None]]]:
    """Such a task for each, which has begun."""
    waits = {}
    for record in records:
        answered = asyncio.Event()
        waits[record.client_transaction_id] = (answered, asyncio.create_task(timed_out(answered, record)))
    await asyncio.sleep(0)
    return waits


async def cpu(count: int, rounds: int) -> None:
    """Add and decide one sale, while so many others are pending."""
    batch, clock = 10_000, LoopClock()
    clock.use_running_loop()
    sales = polling(clock, Forgetful(), Fixed(1e6))
    for record in pending_sales(count):
        sales.asks.follow(record)
    tasks = [asyncio.create_task(timed_out(asyncio.Event(), None)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # As a user's, but that nothing was due for all those meanwhile.
    sales.policy._schedule = polling(clock, Forgetful()).policy._schedule
    ours, theirs = [], []
    for number in range(rounds):
        records = pending_sales(batch, first=count + number * batch)
        after = {"state": State.ACCEPTED, "evidence": Evidence.QUERY, "version": 2}
        decided = [attrs.evolve(record, **after) for record in records]
        gc.collect()
        began = time.process_time()
        entries = [sales.asks.follow(record) for record in records]
        for entry, record in zip(entries, decided, strict=True):
            assert entry is not None
            sales.asks.update(entry, record)
        ours.append((time.process_time() - began) / batch * 1e6)
        gc.collect()
        began = time.process_time()
        waits = await waits_for(records)
        for record in records:
            waits.pop(record.client_transaction_id)[0].set()
        for _ in range(4):
            await asyncio.sleep(0)
        theirs.append((time.process_time() - began) / batch * 1e6)
    print(f"      {min(ours):8.2f} us  against {min(theirs):.2f} us, CPU at best")
    against = "a task with a time-out per sale: `wait_for(event.wait(), 300)`"
    row(f"add and decide a sale at {count:,} pending", ratio(ours, theirs), 0.3, against)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await sales.aclose()


async def memory(count: int) -> None:
    """What a pending sale holds, its record included, once it has been asked for."""
    clock = Clock()
    sales = polling(clock, Forgetful(), Fixed(100.0))  # nobody is asked for twice meanwhile
    gc.collect()
    tracemalloc.start()
    for record in pending_sales(count):
        sales.asks.follow(record)
    del record
    clock.ahead = 160.0
    sales._arm()
    while any(ask.queried_at < 0 for ask in sales.asks.all()):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.2)
    gc.collect()
    ours = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    await sales.aclose()
    del sales
    gc.collect()
    tracemalloc.start()
    waits = await waits_for(pending_sales(count))
    await asyncio.sleep(0)
    gc.collect()
    theirs = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    row("memory per pending sale, all in", ours / theirs, 0.35, f"such a task and its record: {theirs:.0f} B")
    row("the same", ours, 1000, "bytes; 600 would be better yet", unit=" B")
    for _, task in waits.values():
        task.cancel()
    await asyncio.gather(*(task for _, task in waits.values()), return_exceptions=True)


async def longest_stall(until: Callable[[], bool]) -> float:
    """The longest CPU time of the loop's thread between two of its turns, in seconds, until something is so."""
    longest, last = 0.0, time.thread_time()
    while not until():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest = max(longest, now - last)
        last = now
    return longest


async def stall(count: int, directory: str) -> float:
    clock = Clock()
    records = pending_sales(count)
    ledger = await SqliteLedger.open(os.path.join(directory, "stall.db"))
    await fill(ledger, records)
    sales = polling(clock, ledger, Fixed(1e6))
    for record in records:
        sales.asks.follow(record)
    await asyncio.sleep(0.01)
    gc.collect()
    gc.freeze()
    gc.disable()  # a full collection among 100,000 objects takes longer than all this, for whoever causes it
    clock.ahead = 300.5
    sales.asks.due.alarm_at = float("inf")  # the clock jumped: the timer is set anew
    sales._arm()
    longest = await longest_stall(
        lambda: not sales._to_expire and not sales._expiries and sales.asks.due.first() > clock.monotonic()
    )
    gc.enable()
    expired = sum(ask.record.state is State.EXPIRED for ask in sales.asks.all())
    assert expired == count, expired
    await sales.aclose()
    await ledger.aclose()
    return longest * 1000


async def call_later_stall(count: int) -> float:
    loop, fired = asyncio.get_running_loop(), []
    when = loop.time() + 1.0
    for _ in range(count):
        loop.call_at(when, fired.append, None)
    gc.collect()
    gc.freeze()
    gc.disable()
    longest = await longest_stall(lambda: len(fired) == count)
    gc.enable()
    return longest * 1000


async def waiter(count: int) -> None:
    """From a notification to the end of a wait."""
    sales = polling(Clock(), ledger := MemoryLedger(), Fixed(1e6), answer="Aceptado")
    arrivals = Arrivals(sales)
    records = pending_sales(count)
    for record in records:
        sales.asks.follow(record)
    asked = records[:: count // 1000][:1000]
    await fill(ledger, asked)
    gc.collect()
    gc.freeze()
    times = []
    for record in asked:
        assert record.transaction_id is not None
        wait = asyncio.create_task(sales.handle(record).wait())
        await asyncio.sleep(0)
        began = time.perf_counter()
        number, name = record.transaction_id, record.client_transaction_id
        await arrivals.notify(Notification(transaction_id=number, client_transaction_id=name))
        assert (await wait).paid
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    print(f"      {statistics.median(times):8.2f} ms  median")
    what = f"notification to waiter, p99, at {count:,} pending"
    row(what, times[989], 2.0, "the service answering at once", unit=" ms")
    await sales.aclose()


async def fill(ledger: Ledger, records: list[Record]) -> None:
    async def one(record: Record) -> None:
        fresh = attrs.evolve(
            record, state=State.SENDING, evidence=Evidence.PERMIT, version=0, transaction_id=None,
            expires_at=None,
        )  # fmt: skip
        await ledger.permit(fresh)
        assert record.transaction_id is not None
        assert record.expires_at is not None
        at, number = record.created_at, record.transaction_id
        await ledger.apply(fresh, Created(at=at, transaction_id=number, expires_at=record.expires_at))

    for first in range(0, len(records), 2000):
        await asyncio.gather(*(one(record) for record in records[first : first + 2000]))


async def recovery(count: int, directory: str) -> None:
    """From the opening of the file to every open sale followed."""
    path = os.path.join(directory, "recovery.db")
    ledger = await SqliteLedger.open(path)
    await fill(ledger, pending_sales(count))
    await ledger.aclose()
    began = time.perf_counter()
    ledger = await SqliteLedger.open(path)
    sales = polling(Clock(), ledger, Fixed(1e6))
    async for record in ledger.unfinished():
        sales.asks.follow(record)
    seconds = time.perf_counter() - began
    assert len(list(sales.asks.all())) == count
    row(f"recovery of {count:,} open sales from SQLite", seconds, 1.0, "wall time", unit=" s")
    await sales.aclose()
    await ledger.aclose()


def imports(directory: str) -> None:
    """CPU of a fresh interpreter; without what an interpreter costs by itself."""

    # Compiled once, as an installed package is; the rounds' first one does it for all.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = directory

    def cpu(program: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        after = os.times()
        return (after.children_user + after.children_system) - (before.children_user + before.children_system)

    bare, theirs, ours, used = (
        "pass", "import aiohttp, cattrs", "import payclient", "from payclient import open_tracker, SaleRequest",
    )  # fmt: skip
    figures: dict[str, list[float]] = {program: [] for program in (bare, theirs, ours, used)}
    for _ in range(15):
        for program, values in figures.items():
            values.append(cpu(program))
    nothing = statistics.median(figures[bare])
    spent = {program: [value - nothing for value in values] for program, values in figures.items()}
    row(ours, ratio(spent[ours], spent[theirs]), 1.25, theirs)
    print(f"      {ratio(spent[used], spent[theirs]):7.2f}x  {used}, which loads what it names")


async def main(directory: str) -> None:
    pin(0)
    count = 100_000
    await memory(count)
    await cpu(10_000, 9)
    what = f"{count:,} expiring at once: longest stall"
    row(what, await stall(count, directory), 5.0, "written to SQLite FULL", unit=" ms")
    print(f"      {await call_later_stall(count):8.2f} ms  with `call_later` per sale, which writes nothing")
    await waiter(count)
    await recovery(10_000, directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", help="for the ledgers' files; on a real disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        asyncio.run(main(place))
        imports(place)
