"""The campaigns: how many processes charge what, and what they suffer."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg

from campaigns.harness import Batch, Hit, Report, running_service
from postgres_server import PostgresServer


def _hits(kind: signal.Signals, count: int, chance: random.Random) -> list[Hit]:
    """The hits of one batch, run after run; those after the first often come amid what it left to recover."""
    return [
        Hit(kind, after=chance.uniform(0.3, 2.0))
        if chance.random() < 0.2
        else Hit(kind, chance.randint(1, 20 if number else 120))
        for number in range(count)
    ]


def crashes(*, kills: int, stops: int, seed: int = 0, workers: int = 4) -> Report:
    """Many small batches over files of their own, each hit at places in the life of a sale."""
    report, chance, numbers = Report(), random.Random(seed), itertools.count()  # noqa: S311 - reproducible
    with tempfile.TemporaryDirectory() as folder, running_service(seed, 0.06) as service:

        def carry_out(hits: list[Hit]) -> None:
            number = next(numbers)
            Batch(
                service=service, report=report, folder=Path(folder), name=f"c{number}", rows=6 + number % 4 * 6,
                hits=[hits],
            ).carry_out()  # fmt: skip

        for kind, wanted, done in ((signal.SIGKILL, kills, "kills"), (signal.SIGSTOP, stops, "stops")):
            while not report.violations and (missing := wanted - report.counts[done]) > 0:
                batches = [
                    _hits(kind, min(missing, 3), chance) for _ in range(min(-(-missing // 3), 4 * workers))
                ]
                with ThreadPoolExecutor(workers) as pool:
                    list(pool.map(carry_out, batches))
        report.counts.update(service.faults.done)
    return report


def batch(*, rows: int, kills: int, faults: float = 0.05, seed: int = 0) -> Report:
    """One large file through faults, with notifications, killed at random."""
    report, chance = Report(), random.Random(seed)  # noqa: S311 - reproducible
    longest = 1.0 + rows / 150 / max(kills, 1)
    with tempfile.TemporaryDirectory() as folder, running_service(seed, faults) as service:
        hits = [Hit(signal.SIGKILL, after=chance.uniform(0.8, longest)) for _ in range(kills)]
        Batch(
            service=service, report=report, folder=Path(folder), name="b", rows=rows, notified=True,
            hits=[hits],
        ).carry_out()  # fmt: skip
        report.counts.update(service.faults.done)
    return report


def hosts(
    server: PostgresServer, *, kills: int, stops: int, rows: int = 300, hosts: int = 4, seed: int = 0
) -> Report:  # fmt: skip
    """Several hosts charge one file over one PostgreSQL, whose connections are cut and which is restarted."""
    report, chance = Report(), random.Random(seed)  # noqa: S311 - reproducible
    with tempfile.TemporaryDirectory() as folder, running_service(seed, 0.08) as service:
        for number in itertools.count():
            if number and (
                report.violations or (report.counts["kills"] >= kills and report.counts["stops"] >= stops)
            ):
                break
            signals = [signal.SIGKILL] * min(40, max(kills - report.counts["kills"], 0))
            signals += [signal.SIGSTOP] * min(40, max(stops - report.counts["stops"], 0))
            chance.shuffle(signals)
            hits = [Hit(each, after=chance.uniform(0.8, 2.5)) for each in signals]
            database = asyncio.run(server.database())
            with _cutting(server, database, report, chance):
                Batch(
                    service=service, report=report, folder=Path(folder), name=f"h{number}", rows=rows,
                    ledger=server.url(database), hosts=hosts, purchases=True,
                    hits=[hits[each::hosts] for each in range(hosts)],
                ).carry_out()  # fmt: skip
        report.counts.update(service.faults.done)
    return report


@contextmanager
def _cutting(server: PostgresServer, database: str, report: Report, chance: random.Random) -> Iterator[None]:
    """End the listeners' connections, and the writers', now and then; and the server once, as a crash does."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(chance.uniform(0.5, 1.5)):
            listens = "query LIKE 'LISTEN%' OR query = 'SELECT 1'"
            what = f"({listens})" if chance.random() < 0.7 else f"NOT ({listens})"
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                rows = asyncio.run(
                    server.execute(
                        database,
                        "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE "  # noqa: S608 - ours
                        f"application_name = 'payclient' AND {what} ORDER BY random() LIMIT 1) AS one",
                    )
                )
                report.count("connections cut", len(rows))

    def restart() -> None:
        if not over.wait(chance.uniform(1.5, 3.0)):
            server.stop()
            over.wait(0.5)
            server.start()
            report.count("restarts")

    threads = [threading.Thread(target=each) for each in (cut, restart)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in threads:
            each.join()


def forgets(*, seed: int = 0) -> Report:
    """A ledger that dies with its process: the harness must find customers who are charged twice."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder, running_service(seed, 0.0) as service:
        Batch(
            service=service, report=report, folder=Path(folder), name="f", rows=6, ledger="memory:",
            hits=[[Hit(signal.SIGKILL, 6)]],
        ).carry_out()  # fmt: skip
    return report
