"""Runs of the command line over files of charges: simulated services, the files, their reports. Fixtures."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from payclient.cli import main
from payclient.profile import find_profile
from payclient.simulator import Answers, Simulator, SimulatorThread

__all__ = [
    "PYTHON", "ROOT", "TOKEN", "Charge", "Said", "Service", "charge", "charge_arguments", "check_truth",
    "clean_environment", "crowd", "mixed", "read_report", "rows_of", "silent", "simulated", "start", "unwilling",
    "wait_until", "willing", "write_csv", "write_jsonl",
]  # fmt: skip

TOKEN = "token-never-shown"
#: What a run prints.
Said = pytest.CaptureFixture[str]
PYTHON = [sys.executable, "-m", "payclient"]
ROOT = Path(__file__).parents[1]

PROFILE = """\
name = "tests"
not_found_codes = [20]
sale_window = {window}
queries_per_minute = 30000
[status]
by_transaction_id = "/v1/sales/{{transaction_id}}"
by_client_transaction_id = "/v1/sales/of/{{client_transaction_id}}"
state_field = "status"
[status.states]
Pending = "Pendiente"
Approved = "Aceptado"
Canceled = "Cancelado"
"""


class Service:
    """A running simulator, in a thread or a process, and the profile that fits it."""

    def __init__(
        self,
        url: str,
        profile: Path,
        process: subprocess.Popen[str] | None = None,
        simulator: SimulatorThread | None = None,
    ) -> None:
        self.url, self.profile, self.process, self.simulator = url, profile, process, simulator

    def stop(self) -> None:
        """Let the process go, in the midst of what it does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.control("counts")
        return counts

    def control(self, operation: str, **arguments: Any) -> Any:
        """Call an operation, and return the result; `urllib.error.HTTPError` if it is refused."""
        request = urllib.request.Request(  # noqa: S310 - our own
            f"{self.url}/_simulator/{operation}",
            data=json.dumps(arguments).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own
            return json.load(answer)

    def sales(self, prefix: str) -> list[dict[str, Any]]:
        sales = self.control("sales")
        return [each for each in sales if each["client_transaction_id"].startswith(prefix)]

    def truth(self, prefix: str) -> dict[str, str]:
        """What the service did with each client transaction id."""
        sales = self.sales(prefix)
        assert len({sale["client_transaction_id"] for sale in sales}) == len(sales)
        return {sale["client_transaction_id"]: sale["how"] for sale in sales}

    def reject(self, prefix: str) -> None:
        """Let every customer who has not answered yet reject."""
        for sale in self.sales(prefix):
            with suppress(urllib.error.HTTPError):  # it is decided
                self.control("reject", sale=sale["client_transaction_id"])


def write_profile(directory: Path, window: float) -> Path:
    profile = directory / "profile.toml"
    profile.write_text(PROFILE.format(window=window))
    return profile


@contextmanager
def simulated(directory: Path, *arguments: str, window: float) -> Iterator[Service]:
    """A process of `payclient simulate`."""
    profile = write_profile(directory, window)
    command = [*PYTHON, "simulate", "--port", "0", "--profile", str(profile), "--token", TOKEN, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on http://127.0.0.1:"), line
            yield Service(line.split()[-1], profile, process)
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "no real money moves" in said


@contextmanager
def crowd(folders: pytest.TempPathFactory, answers: str, window: float = 10) -> Iterator[Service]:
    """A simulator in a thread, whose customers answer at once, such as "approve=0.7,reject=0.3".

    The gaps between queries scale with the window: a short one finds an answer soon.
    """
    from payclient.cli.simulate import settings_of  # which needs the packages of the command line

    profile = write_profile(folders.mktemp("service"), window)
    simulator = Simulator(
        token=TOKEN,
        settings=settings_of(find_profile(str(profile))),
        answers=Answers.parse(answers, delay=(0.01, 0.0)),
        control=True,
    )
    with SimulatorThread(simulator) as thread:
        yield Service(thread.url, profile, simulator=thread)


def customers(answers: str, window: float = 10) -> Any:
    """A fixture for each module: a `crowd` that answers so."""

    @pytest.fixture(scope="module")
    def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        with crowd(tmp_path_factory, answers, window) as service:
            yield service

    return running


mixed = customers("approve=0.7,reject=0.2,ignore=0.1", window=1.5)
willing = customers("approve=1")
unwilling = customers("reject=1")
silent = customers("ignore=1")  # until the test lets them reject


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "PROFILE", "LEDGER"):
        monkeypatch.delenv(f"PAYCLIENT_{name}", raising=False)
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)


def rows_of(prefix: str, count: int) -> list[dict[str, Any]]:
    """Rows of customers of their own for each prefix, so that none is busy with another test's sale."""
    own = f"0977{zlib.crc32(prefix.encode()) % 1000:03}"
    return [
        {
            "client_transaction_id": f"{prefix}-{number}", "phone_number": f"{own}{number:03}",
            "country_code": "593", "currency": "USD" if number % 4 else "EUR",
            "amount_with_tax": 1000 + number, "tax": 150, "store_id": "S1",
        }
        for number in range(count)
    ]  # fmt: skip


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def charge_arguments(service: Service, file: Path, *more: str) -> list[str]:
    """The command line that charges a file; `more` may have other values of the same options."""
    ledger = f"sqlite:{file.parent / 'ledger.db'}"
    options = {"--base-url": service.url, "--profile": str(service.profile), "--ledger": ledger}
    given = [each for option in options.items() if option[0] not in more for each in option]
    return ["charge", str(file), *given, "--new-ledger", "--yes", *more]


@attrs.frozen
class Ran:
    """A run that ended: its exit code, and what it printed, with one blank for each line break."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def report(self) -> dict[str, dict[str, str]]:
        return read_report(self.folder / "report.csv")


Charge = Callable[..., Ran]


@pytest.fixture
def charge(tmp_path: Path, capfd: Said) -> Charge:
    """Charge rows, or a file, of a service: `charges.csv`, `ledger.db` and `report.csv` lie in one folder."""

    def run(service: Service, rows: list[dict[str, Any]] | Path, *options: str) -> Ran:
        file = rows if isinstance(rows, Path) else write_csv(tmp_path / "charges.csv", rows)
        report = () if "--report" in options else ("--report", str(tmp_path / "report.csv"))
        capfd.readouterr()
        code = main(charge_arguments(service, file, *report, *options))
        out, err = (" ".join(text.split()) for text in capfd.readouterr())
        return Ran(code, out, err, tmp_path)

    return run


def read_report(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter=";" if ";" in first else ","))
    report = {row["client_transaction_id"]: row for row in rows}
    assert len(report) == len(rows)
    return report


def check_truth(report: Mapping[str, Mapping[str, Any]], truth: Mapping[str, str]) -> None:
    """Every line of a report says what the service did."""
    for key, line in report.items():
        how = truth.get(key)
        assert (line["state"], how) in {
            ("accepted", "approved"), ("cancelled", "rejected"), ("cancelled", "expired"), ("refused", None)
        }, key  # fmt: skip
        assert line["paid"] in (("true", True) if how == "approved" else ("false", False)), key


def start(arguments: list[str], program: list[str] | None = None) -> subprocess.Popen[str]:
    """Start the command line, or a program of the test's own in its place."""
    command = [*(program or PYTHON), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
