"""What the benchmarks share: a server in another process, variants timed side by side, and what is charged."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from payclient.events import Created
from payclient.lifecycle import Record
from payclient.models import SaleRequest

# The tests' virtual time and PostgreSQL.
sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "tests"))

NOW = 1_700_000_000.0

#: Each answer has an id of its own: a sale whose answer names another sale's transaction is unknown.
ANSWER = b'{"transactionId":%d}'


class _Server(asyncio.Protocol):
    """Answers every request at once, with the next id: the cheapest service there is."""

    ids = count(10**7)

    def __init__(self, answer: bytes, delay: float) -> None:
        self.delay = delay
        length = len(answer % 10**7)
        self.answer = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
            + answer
        )
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            size = 0
            if (at := head.find(b"content-length:")) >= 0:
                size = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.buffer) < end + 4 + size:
                return
            del self.buffer[: end + 4 + size]
            answer = self.answer % next(self.ids)
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.transport.write, answer)
            else:
                self.transport.write(answer)


def sale_of(number: int, customer: int | None = None) -> SaleRequest:
    """A small Sale, as most merchants send it; each is somebody else's unless it is said whose."""
    return SaleRequest(
        phone_number=f"09{number if customer is None else customer:08}", country_code="593", currency="USD",
        client_transaction_id=f"order-{number:08}", store_id="S1", amount_with_tax=1000, tax=150,
    )  # fmt: skip


def record_of(name: str) -> Record:
    """The attempt of such a sale, as it is permitted."""
    return Record(
        client_transaction_id=name, digest=b"d" * 32, lane=b"l" * 16, credentials=b"c" * 16, amount=1150,
        currency="USD", created_at=NOW,
    )  # fmt: skip


def created(number: int) -> Created:
    """The answer to it."""
    return Created(at=NOW, transaction_id=number, expires_at=NOW + 300)


def steady_heap() -> None:
    """Start this program anew with a heap that does not grow and trim at each receive of a small answer.

    That costs glibc's users the same for every variant, and is mostly noise.
    """
    if os.environ.get("MALLOC_TOP_PAD_") is None:
        os.environ["MALLOC_TOP_PAD_"] = "1048576"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - ourselves, with the setting


def _serve(answer: bytes, delay: float, ready: multiprocessing.SimpleQueue[int]) -> None:
    pin(1)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Server(answer, delay), "127.0.0.1", 0
        )
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def pin(core: int) -> None:
    """Keep this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


@asynccontextmanager
async def server(answer: bytes = ANSWER, delay: float = 0.0) -> AsyncIterator[str]:
    """The base address of a server in another process, on another core; it answers after `delay` seconds."""
    context = multiprocessing.get_context("spawn")
    ready: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    process = context.Process(target=_serve, args=(answer, delay, ready), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ready.get()}"
    finally:
        process.terminate()
        process.join()


async def cpu_of(call: Callable[[int], Awaitable[object]], count: int, at_once: int) -> float:
    """CPU seconds of this process for `count` calls, `at_once` in flight."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.process_time() - began


async def interleaved(
    calls: Mapping[str, Callable[[int], Awaitable[object]]], *, count: int, at_once: int, rounds: int
) -> list[list[float]]:
    """Microseconds of CPU per call, by variant and round, the best printed; the variants take turns in each round."""
    for call in calls.values():
        await cpu_of(call, count // 4, at_once)
    figures: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, row in zip(calls.values(), figures, strict=True):
            row.append(await cpu_of(call, count, at_once) / count * 1e6)
    for name, figure in zip(calls, figures, strict=True):
        print(f"      {min(figure):7.1f} us CPU at best  {name}")
    return figures


async def p50(call: Callable[[int], Awaitable[object]], times: int) -> float:
    """The median wall time of a call in seconds, made one at a time."""
    found = []
    for number in range(times):
        began = time.perf_counter()
        await call(number)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def time_of(call: Callable[[], object], count: int) -> float:
    """Microseconds of CPU per call of a plain function."""
    gc.collect()
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count * 1e6


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios round by round: noise that hits both of a round cancels out."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def row(what: str, value: float, target: float, against: str, *, most: bool = True, unit: str = "x") -> bool:
    """Print one row of the targets; say whether it is met."""
    met = value <= target if most else value >= target
    bound = "<=" if most else ">="
    print(
        f"{'met ' if met else 'MISS'}  {value:8.2f}{unit}  {bound} {target:g}{unit}  {what}  (against {against})"
    )
    return met
