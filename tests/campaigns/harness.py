"""Runs the child, hits it, runs it again until all is decided, and holds what it said against what the service did."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from campaigns.child import LEASE, TOTAL
from payclient.simulator import Answers, Fault, Faults, Settings, Simulator, SimulatorThread
from ports import kept_port

log = logging.getLogger("campaigns")

#: Seconds: a sale's life, and how long a stalled exchange stands still.
WINDOW, STALL = 1.5, 1.3

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PAYCLIENT_TOKEN": "campaigns"}

#: Seconds after which a run that has not ended hangs, and runs after the last hit in which a batch must end.
LONGEST_RUN, MOST_RUNS = 90.0, 12

PROFILE = f"""
name = "campaigns"
not_found_codes = [20]
response_url_field = "responseUrl"
sale_window = {WINDOW}
absent_after = {2 * WINDOW}
queries_per_minute = 60000
[status]
by_transaction_id = "/api/Sale/{{transaction_id}}"
by_client_transaction_id = "/api/Sale/client/{{client_transaction_id}}"
state_field = "transactionStatus"
"""

PAID = {"accepted": True, "cancelled": False, "refused": False}


@attrs.frozen
class Hit:
    """One signal: before a step of the child's, or so many seconds after its start."""

    signal: signal.Signals
    step: int = 0
    after: float = 0.0


@attrs.define
class Report:
    """What came of all batches: counts by name, and the violations."""

    counts: Counter[str] = attrs.field(factory=Counter)
    violations: list[str] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self.counts[what] += times

    def hit(self, hit: Hit) -> None:
        self.count("kills" if hit.signal is signal.SIGKILL else "stops")

    def violate(self, what: str) -> None:
        with self._lock:
            self.violations.append(what)

    def __str__(self) -> str:
        counts = ", ".join(f"{times} {what}" for what, times in sorted(self.counts.items()))
        return f"{counts}: {len(self.violations)} violations"


def _faults(rate: float, seed: int) -> Faults:
    """What goes wrong with so many of the exchanges; the others take a moment, each way.

    A request that is late arrives whether or not its client lives on.
    """
    sale = [
        Fault("reset", when="before"), Fault("reset"), Fault("cut"), Fault("error", when="after"),
        Fault("html", when="before", status=500), Fault("latency", when="before", seconds=STALL),
        Fault("latency", seconds=STALL), Fault("throttle", error_code=29, retry_after=0),
        Fault("refuse", when="before", error_code=2061),
    ]  # fmt: skip
    query = [
        Fault("reset", operation="status"), Fault("cut", operation="status"),
        Fault("html", operation="status", status=500), Fault("latency", operation="status", seconds=STALL),
    ]  # fmt: skip
    notification = [
        Fault("lost"), Fault("late", seconds=0.5), Fault("late", seconds=2 * WINDOW), Fault("duplicate"),
        Fault("forged"),
    ]  # fmt: skip
    moment = [Fault("latency", operation="any", when=when, seconds=0.03) for when in ("before", "after")]
    chances = dict.fromkeys(moment, 0.45 - rate / 2)
    if rate:
        chances |= dict.fromkeys(sale, rate / len(sale)) | dict.fromkeys(query, rate / len(query))
        chances |= dict.fromkeys(notification, min(rate, 0.2))
        # It keeps every query waiting for a second, so that it comes less often.
        chances[Fault("throttle", operation="status", error_code=29, retry_after=1)] = rate / 40
    return Faults(chances, seed=seed)


def running_service(seed: int, rate: float) -> SimulatorThread:
    """The service, of whose exchanges a part goes wrong; it runs in a thread of this process."""
    settings = Settings(
        sale_window=WINDOW,
        refuse_with={f"0988{number:06}": 22 for number in range(0, 1_000_000, 97)},
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    answers = Answers(approve=0.65, reject=0.15, ignore=0.2, delay=(0.3, 0.6), seed=seed)
    return SimulatorThread(Simulator(settings=settings, answers=answers, faults=_faults(rate, seed)))


@attrs.define(kw_only=True)
class Batch:
    """One file of charges over one ledger, charged by one or more hosts until all of it is decided."""

    service: SimulatorThread
    report: Report
    folder: Path
    name: str
    rows: int
    #: "memory:" is a broken one, to be caught: what it sent is forgotten with its process.
    ledger: str = ""
    hosts: int = 1
    notified: bool = False
    #: Half of the rows are several for one purchase, by which one of them is collected at the most.
    purchases: bool = False
    #: What each host suffers, one hit a run.
    hits: list[list[Hit]] = attrs.field(factory=list)
    _port: int | None = None

    def carry_out(self) -> None:
        """Hit its runs one after another, then let the command end; compare."""
        self.folder = self.folder / self.name
        self.folder.mkdir()
        self.ledger = self.ledger or f"sqlite:{self.folder / 'charges.db'}"
        (self.folder / "profile.toml").write_text(PROFILE)
        with (
            kept_port() if self.notified else nullcontext() as self._port,
            ThreadPoolExecutor(self.hosts) as pool,
        ):
            self._write()
            list(pool.map(self._suffer, range(self.hosts)))
            faults = ["never compared"]
            for _ in range(MOST_RUNS):
                codes = set(pool.map(self.run, range(self.hosts)))
                # What one host said of a row, another may have charged since: then all are run again.
                said = (self.folder / "stderr-0").read_text(errors="replace")[-2000:]
                open_rows = [f"{self.name}: ended with {codes}: {said}"]
                faults = self.faults(final=True) if codes <= {0, 3} else open_rows
                if not faults or self.report.violations:
                    break
        self.report.violations += faults
        self.report.count("batches")
        self.report.count("rows", self.rows)
        log.info("%s", self.report)

    def _suffer(self, host: int) -> None:
        for hit in self.hits[host] if self.hits else ():
            code = self.run(host, hit)
            if self.report.violations or (code in (0, 3) and hit.signal is signal.SIGKILL):
                break  # what is over is not worth a hit
            if self.hosts == 1:
                self.report.violations += self.faults(final=False)

    def _write(self) -> None:
        """Most customers have two charges, so that hosts must agree on who charges whom; some are refused."""
        prefix = random.Random(self.name).randrange(100)  # noqa: S311 - reproducible
        with self._file.open("w") as file:
            for number in range(self.rows):
                row = {
                    "client_transaction_id": f"{self.name}-{number}", "country_code": "593", "currency": "USD",
                    "phone_number": f"0988{prefix:02}{number // 2:04}",
                    "amount_without_tax": 1000 + number, "store_id": self.name,
                }  # fmt: skip
                if purchase := self._purchase_of(number):
                    row["purchase"] = purchase
                if self._port is not None:
                    row["response_url"] = f"http://127.0.0.1:{self._port}/notified"
                file.write(json.dumps(row) + "\n")

    def _purchase_of(self, number: int) -> str:
        """What a row is for: three rows of two customers share a purchase; empty of the others."""
        shared = self.purchases and number // 3 % 2 == 0
        return f"{self.name}-cart-{number // 3}" if shared else ""

    @property
    def _file(self) -> Path:
        return self.folder / "charges.jsonl"

    # --- The processes

    def _command(self, host: int, hit: Hit | None) -> list[str]:
        command = [sys.executable, "-m", "campaigns.child"]
        if hit is not None and hit.step:
            command += ["--at", str(hit.step), "--signal", hit.signal.name]
        if self._port is not None:
            command += ["--notify", str(self._port)]
        return [
            *command, "charge", str(self._file), "--yes", "--quiet", "--new-ledger", "--base-url", self.service.url,
            "--profile", str(self.folder / "profile.toml"), "--ledger", self.ledger,
            "--report", str(self._report_of(host)),
        ]  # fmt: skip

    def run(self, host: int, hit: Hit | None = None) -> int:
        """Run the command once, hit it, and give its exit code (negative: the signal)."""
        errors = self.folder / f"stderr-{host}"
        with (
            errors.open("wb") as file,
            subprocess.Popen(
                self._command(host, hit), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file
            ) as process,
        ):
            try:
                code = self._watch(process, hit)
            finally:
                process.kill()  # nothing where it has ended; a fault here must not wait for a stopped one
        said = errors.read_text(errors="replace")
        self.report.count("runs")
        if code == -signal.SIGKILL and hit is not None:
            self.report.hit(hit)
        elif code not in (0, 2, 3, 4) or (code == 2 and self.hosts == 1) or "Traceback" in said:
            self.report.violate(f"{self.name}: a run ended with {code} ({hit}): {said[-3000:]}")
        return code

    def _watch(self, process: subprocess.Popen[bytes], hit: Hit | None) -> int:
        began = time.monotonic()
        due = began + hit.after if hit is not None and not hit.step else None
        while True:
            found, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            now = time.monotonic()
            if found and os.WIFSTOPPED(status):
                assert hit is not None
                self.report.hit(hit)
                self._while_stopped(hit)
                process.send_signal(signal.SIGCONT)
            elif found:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode
            elif hit is not None and due is not None and now >= due:
                due = None
                process.send_signal(hit.signal)
            elif now - began > LONGEST_RUN + self.rows / 25:  # 5,000 rows take 70 s of an idle machine
                self.report.violate(f"{self.name}: a run hangs ({hit})")
                process.kill()
                began = now
            else:
                time.sleep(0.005)

    def _while_stopped(self, hit: Hit) -> None:
        """Longer than the total time-out, or a lease. Where a file is held, nobody else gets in meanwhile."""
        until = time.monotonic() + (TOTAL if self.hosts == 1 else LEASE) * 1.4
        # Some moment of its life may come before the file is locked, or after it is let go; a step does not.
        if hit.step and self.ledger.startswith("sqlite:"):
            second = subprocess.run(
                self._command(99, None), cwd=ROOT, env=ENVIRONMENT, capture_output=True,
                timeout=LONGEST_RUN, check=False,
            )  # fmt: skip
            if second.returncode != 2:
                self.report.violate(f"{self.name}: a second run beside a stopped one: {second.returncode}")
        time.sleep(max(until - time.monotonic(), 0.0))

    # --- The truth

    def _report_of(self, host: int) -> Path:
        return self.folder / f"report-{host}.jsonl"

    def faults(self, *, final: bool) -> list[str]:
        """What is false in the reports. Before the end some rows have no line, or an older one."""
        truth: dict[str, tuple[int, str | None]] = {}
        faults = []
        for sale in self.service.sales.values():
            identifier = sale.client_transaction_id
            if identifier.rpartition("-")[0] == self.name:
                if identifier in truth:
                    self.report.violate(f"{identifier}: charged twice")
                truth[identifier] = (sale.transaction_id, sale.how)
        paid = Counter(
            self._purchase_of(int(identifier.rpartition("-")[2]))
            for identifier, (_, how) in truth.items()
            if how == "approved"
        )
        for purchase, times in paid.items():
            if purchase and times > 1:
                self.report.violate(f"{purchase}: collected {times} times: {self._story(purchase)}")
        for host in range(self.hosts):
            lines = {line["client_transaction_id"]: line for line in self._lines(host)}
            for identifier, line in lines.items():
                purchase = self._purchase_of(int(identifier.rpartition("-")[2]))
                if fault := _fault(line, truth.get(identifier), bool(paid[purchase]), final=final):
                    faults.append(f"{identifier}: host {host}: {fault}: {line}, {truth.get(identifier)}")
            if final and len(lines) != self.rows:
                faults.append(f"{self.name}: {len(lines)} of {self.rows} rows in the report of host {host}")
            if final and host == 0:
                self.report.counts.update(line["state"] or line["evidence"] for line in lines.values())
        return faults

    def _story(self, purchase: str) -> str:
        """What the service and the ledger say of each charge of a purchase, and when."""
        keys = [f"{self.name}-{each}" for each in range(self.rows) if self._purchase_of(each) == purchase]
        parts = [
            str(sale.as_json()) for sale in self.service.sales.values() if sale.client_transaction_id in keys
        ]
        for key in keys:
            command = [sys.executable, "-m", "payclient", "ledger", "show", key, "--ledger", self.ledger]
            shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
            parts.append(shown.stdout or shown.stderr)
        return "\n".join(parts)

    def _lines(self, host: int) -> Iterable[dict[str, Any]]:
        path = self._report_of(host)
        # A line that a kill cut is none.
        return (
            [json.loads(line) for line in path.read_text().splitlines(True) if line[-1:] == "\n"]
            if path.exists()
            else []
        )


def _fault(
    line: dict[str, Any], sale: tuple[int, str | None] | None, purchase_is_paid: bool, *, final: bool
) -> str | None:
    """What is false in a line of a report."""
    state, (number, how) = line["state"], sale or (None, None)
    if not state and line.get("evidence") == "already paid":
        if line["paid"] is not False or not purchase_is_paid:
            return "its purchase is said to be paid, and is not"
        return "said to be unsent, and was created" if final and how == "approved" else None
    if line["paid"] is not PAID.get(state):
        return "paid does not follow from the state"
    if state == "accepted" and how != "approved":
        return "said to be paid, and is not"
    if state == "cancelled" and how not in ("rejected", "expired"):
        return "said to be cancelled, and is not"
    if line["transaction_id"] not in (None, number):
        return "has another transaction id"
    if not final:
        return None
    if state == "refused" and how is not None:
        return "said to be refused, and was created"
    return None if state in PAID else "not decided"
