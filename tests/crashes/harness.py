"""Starts processes that charge, kills and stops them, runs them again, and holds what they said against the truth."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from .child import POINTS, TOTAL

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}

#: Seconds after which a run that has not ended hangs, and runs after which a campaign does.
LONGEST_RUN, MOST_RUNS = 60.0, 25

#: "random" is any moment; the others are the child's. Some need what the one before them left.
KILLS = (
    ("permit asked", "permit inserted", "permit committed"),
    ("permit known", "recovery written", "recovery committed"),
    ("first byte", "random", "answer read"),
    ("answer written", "answer committed", "random"),
    ("first byte", "recovery committed", "recovery written"),
    ("decision written", "decision committed", "closing"),
    ("random", "opened", "random"),
)
STOPS = (
    ("permit known", "random"),
    ("permit inserted", "first byte"),
    ("permit committed", "answer read"),
    ("random", "decision written"),
    ("answer written", "random"),
)
#: Reached once in a run, whatever it has left to do.
ONCE = {"opened", "recovery written", "recovery committed", "closing"}
assert {point for plan in KILLS + STOPS for point in plan} <= {*POINTS, "random"}


@attrs.frozen
class Hit:
    """One signal, and where."""

    signal: signal.Signals
    point: str
    occurrence: int = 1
    #: Of a random one: seconds after the start.
    after: float = 0.0


@attrs.define
class Report:
    """What came of all campaigns."""

    campaigns: int = 0
    runs: int = 0
    charges: int = 0
    kills: int = 0
    stops: int = 0
    violations: list[str] = attrs.field(factory=list)
    #: How often a process said so: an error's class, or what a refused attempt rested on.
    said: Counter[str] = attrs.field(factory=Counter)
    #: Kills and stops by their place.
    places: Counter[str] = attrs.field(factory=Counter)
    lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)

    def hit(self, hit: Hit) -> None:
        with self.lock:
            if hit.signal is signal.SIGKILL:
                self.kills += 1
            else:
                self.stops += 1
            self.places[f"{hit.signal.name} {hit.point}"] += 1

    def violate(self, what: str) -> None:
        with self.lock:
            self.violations.append(what)


class Service:
    """The running service, and its own account of what it did."""

    def __init__(self, url: str, control: str) -> None:
        self.url = url
        self._control = control

    def _get(self, path: str) -> Any:
        address = f"{self._control}/_simulator/{path}"
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310 - our own
            return json.load(answer)

    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self._get("counts")
        return counts

    def sales(self, prefix: str) -> list[dict[str, Any]]:
        sales: list[dict[str, Any]] = self._get("sales")
        return [sale for sale in sales if sale["client_transaction_id"].rpartition("-")[0] == prefix]


@contextmanager
def running_service(seed: int) -> Iterator[Service]:
    with subprocess.Popen(
        [sys.executable, "-m", "crashes.service", str(seed)],
        cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url, control = process.stdout.readline().split()
            yield Service(url, control)
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()


class Campaign:
    """One set of charges over one ledger, run again and again until all are decided."""

    def __init__(
        self,
        service: Service,
        folder: Path,
        prefix: str,
        count: int,
        report: Report,
        *,
        forgets: bool = False,
    ) -> None:
        self._service = service
        self._report = report
        self._prefix = prefix
        self._count = count
        self._folder = folder / prefix
        self._folder.mkdir()
        #: A broken one, to be caught: what it sent is forgotten with its process.
        self._ledger = "memory:" if forgets else f"sqlite:{self._folder / 'charges.db'}"
        self.claims = self._folder / "claims.jsonl"
        self._mode = "batch"

    def carry_out(self, hits: list[Hit], mode: str) -> None:
        """Hit one run after another, then let the command end; compare."""
        self._mode = mode
        finished = False
        for hit in hits:
            code = self.run(hit)
            finished = code == 0
            if finished:
                break
        runs = len(hits)
        while not finished and runs < MOST_RUNS and not self._report.violations:
            finished = self.run(None) == 0
            runs += 1
        if not finished:
            self._report.violate(f"{self._prefix}: not decided after {runs} runs")
        self._compare()

    def run(self, hit: Hit | None) -> int:
        """Run the command once, hit it, and give its exit code (negative: the signal)."""
        arguments = []
        if hit is not None and hit.point != "random":
            arguments = ["--at", hit.point, "--occurrence", str(hit.occurrence), "--signal", hit.signal.name]
        began = time.monotonic()
        with self._start(arguments) as process:
            due = None if hit is None or hit.point != "random" else began + hit.after
            while True:
                found, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
                now = time.monotonic()
                if found and os.WIFSTOPPED(status):
                    assert hit is not None
                    self._report.hit(hit)
                    self._while_stopped(hit)
                    process.send_signal(signal.SIGCONT)
                elif found:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    break
                elif hit is not None and due is not None and now >= due:
                    due = None
                    process.send_signal(hit.signal)
                elif now - began > LONGEST_RUN:
                    self._report.violate(f"{self._prefix}: a run hangs ({hit})")
                    process.kill()
                    due = None
                else:
                    time.sleep(0.005)
        code = process.returncode
        with self._report.lock:
            self._report.runs += 1
        if code == -signal.SIGKILL and hit is not None and hit.signal is signal.SIGKILL:
            self._report.hit(hit)
        elif code not in (0, 1):
            said = (self._folder / "stderr").read_text(errors="replace")[-1500:]
            self._report.violate(f"{self._prefix}: a run ended with {code} ({hit}): {said}")
        return code

    @contextmanager
    def _start(self, arguments: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
        command = [
            sys.executable, "-m", "crashes.child", "--url", self._service.url, "--ledger", self._ledger,
            "--prefix", self._prefix, "--count", str(self._count), "--claims", str(self.claims),
            "--mode", self._mode, *arguments,
        ]  # fmt: skip
        with (
            (self._folder / "stderr").open("ab") as errors,
            subprocess.Popen(
                command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=errors
            ) as process,
        ):
            try:
                yield process
            finally:
                # Nothing where it has ended; else a fault here must not wait for a stopped process.
                process.kill()

    def _while_stopped(self, hit: Hit) -> None:
        """Longer than the total time-out. Where the ledger is held, nobody else gets in meanwhile."""
        until = time.monotonic() + TOTAL * 1.4
        # A random moment may come before the file is locked, or after it is let go.
        if hit.point not in ("random", "closing") and self._ledger != "memory:":
            with self._start([]) as second:
                code = second.wait(timeout=LONGEST_RUN)
            if code != 2:
                self._report.violate(f"{self._prefix}: a second run beside a stopped one ended with {code}")
        time.sleep(max(until - time.monotonic(), 0.0))

    # --- The truth

    def _compare(self) -> None:
        truth: dict[str, dict[str, Any]] = {}
        for sale in self._service.sales(self._prefix):
            identifier = sale["client_transaction_id"]
            if identifier in truth:
                self._report.violate(f"{identifier}: charged twice")
            truth[identifier] = sale
        final: dict[str, dict[str, Any]] = {}
        for line in self.claims.read_text().splitlines():
            claim = json.loads(line)
            if "error" in claim or claim["state"] == "refused":
                with self._report.lock:
                    self._report.said[claim.get("error") or claim["evidence"]] += 1
            if "state" in claim:
                final[claim["id"]] = claim
                if fault := _fault(claim, truth.get(claim["id"])):
                    self._report.violate(f"{claim['id']}: {fault}: {claim}, {truth.get(claim['id'])}")
        for number in range(self._count):
            identifier = f"{self._prefix}-{number}"
            if final.get(identifier, {}).get("state") not in ("accepted", "cancelled"):
                self._report.violate(f"{identifier}: ended as {final.get(identifier)}")
            if identifier not in truth:
                self._report.violate(f"{identifier}: lost")


def _fault(claim: dict[str, Any], truth: dict[str, Any] | None) -> str | None:
    """What is false in something that a process said of an outcome, at whatever time."""
    how = None if truth is None else truth["how"]
    if claim["paid"] is True and how != "approved":
        return "said to be paid, and is not"
    if claim["state"] == "cancelled" and how not in ("rejected", "expired"):
        return "said to be cancelled, and is not"
    if claim["state"] == "refused" and claim["evidence"] not in ("not sent", "absent"):
        return "said to be refused, by a service that refuses nothing"
    if claim["transaction_id"] is not None and (
        truth is None or claim["transaction_id"] != truth["transaction_id"]
    ):
        return "has another transaction id"
    return None


def plans(kills: int, stops: int, chance: random.Random) -> list[list[Hit]]:
    """What each campaign suffers: together so many kills and stops, or a few more."""
    made: list[list[Hit]] = []
    for number, sequences, wanted in ((signal.SIGKILL, KILLS, kills), (signal.SIGSTOP, STOPS, stops)):
        planned = 0
        for sequence in itertools.cycle(sequences):
            if planned >= wanted:
                break
            hits = [
                Hit(
                    number,
                    point,
                    1 if point in ONCE else chance.randint(1, 6 if place == 0 else 2),
                    chance.uniform(0.2, 1.6),
                )
                for place, point in enumerate(sequence)
            ]
            made.append(hits)
            planned += len(hits)
    return made


def crash(
    *,
    kills: int,
    stops: int,
    seed: int = 0,
    workers: int = 4,
    say: Any = lambda _: None,
    forgets: bool = False,
) -> Report:
    """Hit processes until so many were killed and stopped; at the end nobody was charged twice."""
    report, chance = Report(), random.Random(seed)  # noqa: S311 - reproducible
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, running_service(seed) as service:

        def carry_out(hits: list[Hit]) -> None:
            number = next(numbers)
            count = 6 + number % 5 * 6
            campaign = Campaign(service, Path(folder), f"c{number}", count, report)
            campaign.carry_out(hits, ("batch", "single")[number // 2 % 2])
            with report.lock:
                report.campaigns += 1
                report.charges += count
            say(f"{report.kills} kills, {report.stops} stops, {len(report.violations)} violations")

        while not report.violations and (report.kills < kills or report.stops < stops):
            # Some runs end before they are hit.
            missing = plans(
                kills - report.kills + 2 if kills > report.kills else 0,
                stops - report.stops + 1 if stops > report.stops else 0,
                chance,
            )
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(carry_out, missing))
        counts = service.counts()
        if counts["duplicates"]:
            report.violate(f"created more than once: {counts['duplicates']}")
        posted = counts["requests"] - counts["queries"]
        if posted != report.charges:
            report.violate(f"{posted} Sales reached the service for {report.charges} charges")
    return report
