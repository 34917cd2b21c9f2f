"""Runs `payclient charge` again and again, kills it, and holds its report against what the service did."""

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ports import kept_port

from .service import WINDOW

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PAYCLIENT_TOKEN": "any"}

#: Seconds after which a run that has not ended hangs, and runs after the last kill.
LONGEST_RUN, MOST_RUNS = 120.0, 12

#: Rows that are sent a second.
RATE = 150.0

PROFILE = f"""\
name = "batches"
not_found_codes = [20]
response_url_field = "responseUrl"
sale_window = {WINDOW}
absent_after = 2.4
queries_per_minute = 60000
[status]
by_transaction_id = "/api/Sale/{{transaction_id}}"
by_client_transaction_id = "/api/Sale/client/{{client_transaction_id}}"
state_field = "transactionStatus"
"""


@attrs.define
class Report:
    """What came of a campaign."""

    runs: int = 0
    kills: int = 0
    codes: list[int] = attrs.field(factory=list)
    faults: Counter[str] = attrs.field(factory=Counter)
    outcomes: Counter[str] = attrs.field(factory=Counter)
    violations: list[str] = attrs.field(factory=list)


class Service:
    """The running service, and its own account of what it did."""

    def __init__(self, url: str, control: str) -> None:
        self.url = url
        self._control = control

    def get(self, path: str) -> Any:
        address = f"{self._control}/_simulator/{path}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - our own
            return json.load(answer)


@contextmanager
def _running_service(seed: int, faults: float, report: Report) -> Iterator[Service]:
    with subprocess.Popen(
        [sys.executable, "-m", "batches.service", str(seed), str(faults)],
        cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url, control = process.stdout.readline().split()
            yield Service(url, control)
            said, _ = process.communicate(timeout=20)
            report.faults.update(json.loads(said))
        finally:
            process.kill()


def _write_charges(path: Path, rows: int, chance: random.Random) -> None:
    """Customers come again: one row in five is of somebody who has one already. Some are refused by the service."""
    phones = [f"0988{chance.randrange(1_000_000):06}" for _ in range(max(rows * 4 // 5, 1))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("client_transaction_id", "phone_number", "country_code", "currency", "amount_with_tax", "tax")
        )
        for number in range(rows):
            phone = phones[number] if number < len(phones) else chance.choice(phones)
            writer.writerow((f"row-{number}", phone, "593", "USD", 100 + number, 15))


class _Campaign:
    def __init__(self, folder: Path, service: Service, port: int, rows: int, report: Report) -> None:
        self._service = service
        self._rows = rows
        self._report = report
        self._out = folder / "report.csv"
        self._errors = folder / "stderr"
        (folder / "profile.toml").write_text(PROFILE)
        self._command = [
            sys.executable, "-m", "batches.charge", str(port), "charge", str(folder / "charges.csv"), "--yes", "--json",
            "--base-url", service.url, "--profile", str(folder / "profile.toml"),
            "--ledger", f"sqlite:{folder / 'charges.db'}", "--report", str(self._out),
            "--html", str(folder / "report.html"), "--rate", f"{RATE}",
            "--set", f"response_url=http://127.0.0.1:{port}/notified",
        ]  # fmt: skip

    def run(self, kill_after: float | None) -> int:
        """Run the command, kill it so many seconds after it began to send, and give its exit code."""
        with (
            self._errors.open("ab") as errors,
            subprocess.Popen(
                self._command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            hang = threading.Timer(LONGEST_RUN, process.kill)
            hang.start()
            timer = None
            try:
                for line in process.stdout:
                    event = json.loads(line) if line.endswith("\n") else {}
                    if kill_after is not None and event.get("event") == "begin":
                        timer = threading.Timer(kill_after, process.kill)
                        timer.start()
                code = process.wait()
                if not hang.is_alive():
                    self._report.violations.append("a run hangs")
            finally:
                hang.cancel()
                if timer is not None:
                    timer.cancel()
                process.kill()
        self._report.runs += 1
        self._report.codes.append(code)
        if code not in (0, 3, 4, -9):
            said = self._errors.read_text(errors="replace")[-1500:]
            self._report.violations.append(f"a run ended with {code}: {said}")
        return code

    def compare(self, *, final: bool) -> None:
        """Every row says what the service did. Before the end some have no row, or an older one beside a newer."""
        truth: dict[str, str] = {}
        for sale in self._service.get("sales"):
            if sale["client_transaction_id"] in truth:
                self._report.violations.append(f"{sale['client_transaction_id']}: charged twice")
            truth[sale["client_transaction_id"]] = sale["how"]
        lines: dict[str, dict[str, str]] = {}
        if self._out.exists():
            with self._out.open(newline="") as file:
                # A row that the kill cut is no row.
                for line in csv.DictReader(text for text in file if text.endswith("\n")):
                    if final and line["client_transaction_id"] in lines:
                        self._report.violations.append(f"{line['client_transaction_id']}: reported twice")
                    lines[line["client_transaction_id"]] = line
        for identifier, line in lines.items():
            if (fault := _fault(line, truth.get(identifier), final=final)) is not None:
                self._report.violations.append(f"{identifier}: {fault}: {line}, {truth.get(identifier)}")
        if not final:
            return
        self._report.outcomes.update(line["state"] for line in lines.values())
        if len(lines) != self._rows:
            self._report.violations.append(f"{len(lines)} of {self._rows} rows are in the report")


def _fault(line: dict[str, str], how: str | None, *, final: bool) -> str | None:
    """What is false in a row of the report."""
    state, paid = line["state"], line["paid"]
    if paid != {"accepted": "true", "cancelled": "false", "refused": "false"}.get(state, ""):
        return "paid does not follow from the state"
    if state == "accepted" and how != "approved":
        return "said to be paid, and is not"
    if state == "cancelled" and how not in ("rejected", "expired"):
        return "said to be cancelled, and is not"
    if not final:
        return None
    if state == "refused" and how is not None:
        return "said to be refused, and was created"
    return None if state in ("accepted", "cancelled", "refused") else "not decided"


def carry_out(
    *,
    rows: int,
    kills: int,
    faults: float = 0.05,
    seed: int = 0,
    say: Callable[[str], object] = lambda _: None,
) -> Report:
    """Charge so many rows, killed so many times, until the command says that it has finished; compare."""
    report, chance = Report(), random.Random(seed)  # noqa: S311 - reproducible
    # A little after the last kill there is nothing left to send.
    longest = 1.8 * rows / RATE / max(kills, 1)
    with (
        tempfile.TemporaryDirectory() as name,
        kept_port() as port,
        _running_service(seed, faults, report) as service,
    ):
        folder = Path(name)
        _write_charges(folder / "charges.csv", rows, chance)
        campaign = _Campaign(folder, service, port, rows, report)
        for _ in range(kills):
            if campaign.run(chance.uniform(0.1, longest)) == -9:
                report.kills += 1
            campaign.compare(final=False)
            say(f"{report.kills} kills, {service.get('counts')['created']} sales, {report.violations[:1]}")
        for _ in range(MOST_RUNS):
            code = campaign.run(None)
            say(f"a whole run ended with {code}")
            if code in (0, 3) or report.violations:
                break
        else:
            report.violations.append(f"not finished after {report.runs} runs: {report.codes}")
        campaign.compare(final=True)
        page = folder / "report.html"
        if not page.exists() or not page.read_text().endswith("</html>\n"):
            report.violations.append("the page is not whole")
    return report
