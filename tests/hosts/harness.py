"""Runs one batch on several hosts at once, kills and stops them, and holds every report against the service's truth."""

import asyncio
import csv
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import attrs

from payclient.simulator import Answers, Fault, Faults, Settings, Simulator
from postgres_server import PostgresServer

from .child import LEASE, TOTAL, WINDOW

ROOT = Path(__file__).parents[2]
TOKEN = "hosts"
HOSTS = 4

#: Seconds after which a run that has not ended has somebody asleep in it.
LONGEST_RUN = 90.0
#: Runs of one host, and rounds at the end, after which a batch does not come to its end.
MOST_RUNS, MOST_ROUNDS = 60, 8

PROFILE = f"""
name = "hosts"
not_found_codes = [20]
sale_window = {WINDOW}
absent_after = 4
queries_per_minute = 6000
[status]
by_transaction_id = "/api/Sale/{{transaction_id}}"
by_client_transaction_id = "/api/Sale/client/{{client_transaction_id}}"
state_field = "transactionStatus"
"""

#: What goes wrong of all requests, beside what the processes suffer.
FAULTS = {
    Fault("reset", when="before"): 0.02,
    Fault("reset", when="after"): 0.03,
    Fault("stall"): 0.01,
    Fault("cut"): 0.01,
    Fault("refuse", error_code=2061): 0.02,
    Fault("reset", operation="status"): 0.03,
    Fault("error", operation="status"): 0.03,
}


@attrs.define
class Report:
    """What came of all batches."""

    batches: int = 0
    rows: int = 0
    runs: int = 0
    kills: int = 0
    stops: int = 0
    #: Connections ended by the server, and the server itself.
    cuts: int = 0
    restarts: int = 0
    posted: int = 0
    codes: Counter[int] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    states: Counter[str] = attrs.field(factory=Counter)
    #: Hosts that sent something, by batch.
    senders: list[int] = attrs.field(factory=list)
    violations: list[str] = attrs.field(factory=list)


class Batch:
    """One file of charges, charged by several hosts until all of it is decided."""

    def __init__(
        self,
        server: PostgresServer,
        database: str,
        folder: Path,
        number: int,
        report: Report,
        seed: int,
        ledger: str | None = None,
        rows: int | None = None,
        rounds: int = MOST_ROUNDS,
    ) -> None:
        self._server = server
        self._database = database
        self._ledger = ledger or server.url(database)
        self._folder = folder
        self._report = report
        self._chance = random.Random(f"{seed} {number}")  # noqa: S311 - reproducible
        self._prefix = f"b{number}"
        self.rows = rows or 260 + number % 3 * 40
        self._rounds = rounds
        self._file = folder / f"{self._prefix}.csv"
        self._kills = self._stops = 0
        self._over = False
        self._simulator = Simulator(
            settings=Settings(
                sale_window=WINDOW,
                status_by_transaction_id="/api/Sale/{transaction_id}",
                status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
            ),
            answers=Answers(approve=0.6, reject=0.25, ignore=0.15, delay=(0.2, 0.8)),
            faults=Faults(FAULTS, seed=seed + number),
        )

    async def carry_out(self, kills: int, stops: int, *, cuts: bool, restarts: bool) -> None:
        """Hit its processes so often, in any order; then let the command end, and compare."""
        self._kills, self._stops = kills, stops
        self._write()
        async with self._simulator:
            side = [asyncio.create_task(self._cut())] if cuts else []
            side += [asyncio.create_task(self._restart())] * restarts
            try:
                await asyncio.gather(*(self._host(host) for host in range(HOSTS)))
            finally:
                self._over = True
                await asyncio.gather(*side)
            # Reports tell of the moment at which their row was decided, refusals that a later run tried again included.
            for _ in range(self._rounds):
                codes = await asyncio.gather(*(self._run(host, hits=False) for host in range(HOSTS)))
                if set(codes) <= {0, 3} and not self._open_rows():
                    break
            self._compare()
        report = self._report
        report.batches += 1
        report.rows += self.rows
        report.posted += self._simulator.counts.created
        report.faults += self._simulator.faults.done

    def _write(self) -> None:
        (self._folder / "profile.toml").write_text(PROFILE)
        with self._file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                [
                    "client_transaction_id",
                    "phone_number",
                    "country_code",
                    "amount_without_tax",
                    "currency",
                    "store_id",
                ]
            )
            for number in range(self.rows):
                # Two charges for most customers, so that hosts must agree on who charges whom.
                phone = f"09{self._prefix[1:]:0>4}{number // 2:04}"
                writer.writerow([f"{self._prefix}-{number}", phone, "593", 1000 + number, "USD", "S1"])

    # --- The processes

    async def _host(self, host: int) -> None:
        """Run the command until it ends by itself, hitting it now and then; what is over then is not worth a hit."""
        for _ in range(MOST_RUNS):
            code = await self._run(host, hits=True)
            if self._report.violations or code in (0, 3):
                return
        self._report.violations.append(f"{self._prefix}: host {host} does not end after {MOST_RUNS} runs")

    async def _run(self, host: int, *, hits: bool) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hosts.child", "charge", str(self._file), "--yes", "--quiet",
            "--base-url", self._simulator.url, "--profile", str(self._folder / "profile.toml"),
            "--ledger", self._ledger, "--report", str(self._report_of(host)),
            "--max-in-flight", "4", "--max-pending", "6",
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PAYCLIENT_TOKEN": TOKEN},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        ending = asyncio.create_task(process.communicate())
        try:
            while hits and self._kills + self._stops > 0:
                await asyncio.wait([ending], timeout=self._chance.uniform(0.5, 2.5))
                if ending.done() or not await self._hit(process):
                    break
            await asyncio.wait([ending], timeout=LONGEST_RUN)
            if not ending.done():
                self._report.violations.append(f"{self._prefix}: host {host} sleeps")
                process.send_signal(signal.SIGUSR1)
                await asyncio.sleep(0.5)
                process.kill()
            _, said = await ending
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if self._report.violations:
            self._report.violations.append(said.decode(errors="replace")[-6000:])
        code = process.returncode or 0
        self._report.runs += 1
        self._report.codes[code] += 1
        if code not in (0, 2, 3, 4, -signal.SIGKILL) or b"Traceback" in said:
            self._report.violations.append(
                f"{self._prefix}: host {host} ended with {code}: {said.decode(errors='replace')[-6000:]}"
            )
        return code

    async def _hit(self, process: asyncio.subprocess.Process) -> bool:
        """Kill it, or stop it for a while: past its lease and the total time-out, mostly. Whether it goes on."""
        with suppress(ProcessLookupError):  # it has just ended
            if self._chance.random() * (self._kills + self._stops) < self._kills:
                process.kill()
                self._kills -= 1
                self._report.kills += 1
                return False
            if self._stops:
                process.send_signal(signal.SIGSTOP)
                self._stops -= 1
                self._report.stops += 1
                await asyncio.sleep(max(LEASE, TOTAL) * self._chance.uniform(0.8, 2.2))
                process.send_signal(signal.SIGCONT)
                return True
        return False

    # --- The database

    async def _cut(self) -> None:
        """End the listeners' connections, and the writers', now and then."""
        while not self._over:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5))
            # A listener says nothing else than that it listens, and that it lives.
            listens = "query LIKE 'LISTEN%' OR query = 'SELECT 1'"
            what = f"({listens})" if self._chance.random() < 0.7 else f"NOT ({listens})"
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                rows = await self._server.execute(
                    self._database,
                    "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE "  # noqa: S608 - ours
                    f"application_name = 'payclient' AND {what} ORDER BY random() LIMIT 1) AS one",
                )
                self._report.cuts += len(rows)

    async def _restart(self) -> None:
        """End the server in the middle, as a crash does, and start it again."""
        await asyncio.sleep(self._chance.uniform(1.5, 3.0))
        await asyncio.to_thread(self._server.stop)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(self._server.start)
        self._report.restarts += 1

    # --- The truth

    def _report_of(self, host: int) -> Path:
        return self._folder / f"{self._prefix}-{host}.jsonl"

    def _lines(self, host: int) -> dict[str, dict[str, Any]]:
        try:
            lines = self._report_of(host).read_text().splitlines()
        except FileNotFoundError:
            return {}
        rows = [json.loads(line) for line in lines]
        if len(rows) != len({row["client_transaction_id"] for row in rows}):
            self._report.violations.append(f"{self._prefix}: host {host} tells of a row twice")
        return {row["client_transaction_id"]: row for row in rows}

    def _open_rows(self) -> bool:
        """Whether a report tells of a row that is not decided for good, so that the command is to be run again."""
        said = [self._lines(host) for host in range(HOSTS)]
        final = ("accepted", "cancelled")
        return any(
            len(lines) < self.rows or any(row["state"] not in final for row in lines.values())
            for lines in said
        )

    def _compare(self) -> None:
        truth: dict[str, str] = {}
        for sale in self._simulator.sales.values():
            if sale.client_transaction_id in truth:
                self._report.violations.append(f"{sale.client_transaction_id}: charged twice")
            truth[sale.client_transaction_id] = "accepted" if sale.how == "approved" else "cancelled"
        for number in range(self.rows):
            identifier = f"{self._prefix}-{number}"
            for host in range(HOSTS):
                row = self._lines(host).get(identifier, {})
                if row.get("state") != truth.get(identifier, "lost"):
                    said = f"host {host} says {row.get('state')}, {row.get('message')}"
                    self._report.violations.append(f"{identifier}: {said}, and it is {truth.get(identifier)}")
            self._report.states[truth.get(identifier, "lost")] += 1


async def batches(
    server: PostgresServer,
    *,
    kills: int,
    stops: int,
    seed: int = 0,
    hits: int = 40,
    rows: int | None = None,
    restarts: bool = True,
    say: Any = lambda _: None,
) -> Report:
    """Batch after batch, until so many processes were killed and stopped; at the end nobody was charged twice."""
    report, number, began = Report(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while not report.violations and (report.kills < kills or report.stops < stops or not number):
            database = await server.database()
            batch = Batch(server, database, Path(folder), number, report, seed, rows=rows)
            await batch.carry_out(
                min(hits, max(kills - report.kills, 0)),
                min(hits, max(stops - report.stops, 0)),
                cuts=True,
                restarts=restarts,
            )
            number += 1
            say(
                f"{report.batches} batches, {report.kills} kills, {report.stops} stops, {report.cuts} cuts, "
                f"{len(report.violations)} violations, {time.monotonic() - began:.0f} s"
            )
    return report
