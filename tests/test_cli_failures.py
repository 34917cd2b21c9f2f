"""`payclient charge` where what is around it fails: its ledger, pipes, disks, signals and the service."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from contextlib import aclosing
from pathlib import Path

import pytest

from cli_runs import (
    PYTHON,
    ROOT,
    Charge,
    Said,
    Service,
    charge_arguments,
    crowd,
    read_report,
    rows_of,
    start,
    wait_until,
    write_csv,
)
from payclient.cli import main
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from test_ledger import brought

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("shell", "options"),
    [
        ('("$@"; echo $? > code) 2>&1 | true', []),
        ('"$@" >/dev/full 2>&1; echo $? > code', []),
        ('"$@" <&- >&- 2>&-; echo $? > code', []),
        ('"$@" <&- >&- 2>&-; echo $? > code', ["--json"]),
    ],
    ids=["nobody reads", "full disk", "closed", "closed to a machine"],
)
def test_lost_output_ends_no_run(unwilling: Service, tmp_path: Path, shell: str, options: list[str]) -> None:
    """Rows are followed to their end and the report is whole; closed streams are how some daemons start a program."""
    report = tmp_path / "report.csv"
    file = write_csv(
        tmp_path / "charges.csv", rows_of(f"untaken-{zlib.crc32(str((shell, options)).encode())}", 4)
    )
    arguments = charge_arguments(unwilling, file, "--report", str(report), *options)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-c", shell, "sh", *PYTHON, *arguments], cwd=tmp_path, env=environment, timeout=60)
    assert (tmp_path / "code").read_text() == "3\n"
    assert [line["state"] for line in read_report(report).values()] == ["cancelled"] * 4


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ledger show full-1", 2),
        ("ledger list --state accepted", 2),
        ("guide", 2),
        ("doctor", 4),
        ("--version", 2),
    ],
)
def test_results_that_a_full_disk_lost_are_complained_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said, command: str, code: int
) -> None:
    """Whoever redirects a history to a file hears that it is not there; an exit code with a meaning is kept."""

    async def fill() -> None:
        async with aclosing(await open_ledger(f"sqlite:{tmp_path / 'l.db'}")) as book:
            await brought(book, State.ACCEPTED, "full-1")

    asyncio.run(fill())
    monkeypatch.setenv("PAYCLIENT_LEDGER", f"sqlite:{tmp_path / 'l.db'}")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(command.split()) == code
    complaint = "payclient: the output cannot be written: No space left on device"
    assert complaint in " ".join(capfd.readouterr().err.split())


def test_the_end_of_an_interpreter_keeps_the_exit_code_of_a_full_disk() -> None:
    """It flushes once more, and would end with 120 where that fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PYTHON, "--version"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert "payclient: the output cannot be written: No space left on device" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("command", ["guide errors", "simulate --help", "guide es/empezar"])
def test_a_terminal_that_lacks_a_character_is_written_to(
    monkeypatch: pytest.MonkeyPatch, capfd: Said, command: str
) -> None:
    """As in an older locale: it shows ? for an accent or a line of a drawing, and there is no traceback."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(command.split()) == 0
    assert capfd.readouterr().err == ""
    assert b"?" in written.getvalue()


def test_a_reader_that_does_not_read_holds_up_no_run(unwilling: Service, tmp_path: Path) -> None:
    """As `less`, or a program that waits for the end first: all rows are charged, and then all lines are there."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("unread", 30)), tmp_path / "report.csv"
    with start(charge_arguments(unwilling, file, "--report", str(report), "--json")) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        wait_until(lambda: report.exists() and len(read_report(report)) == 30)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    events = [json.loads(line) for line in out.splitlines()]
    assert sum(event["event"] == "row" for event in events) == 30
    assert events[-1]["exit_code"] == 3


SMALL_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))
from payclient.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_under_the_ledger_and_the_log_hangs_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No file of the run may grow: what was sent is followed, the rest is never sent, and the exit code is 4."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("ledgerfull", 300)), tmp_path / "report.csv"
    with crowd(tmp_path_factory, "reject=1", window=1.5) as service, (tmp_path / "log").open("wb", 0) as log:
        log.write(b"x" * 250_000)
        arguments = charge_arguments(service, file, "--report", str(report), "--max-in-flight", "20")
        command = [sys.executable, "-c", SMALL_FILES, *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=90)
        sent = service.truth("ledgerfull-")
    assert done.returncode == 4
    lines = read_report(report)
    assert len(lines) == 300
    assert {line["paid"] for line in lines.values()} <= {"", "false"}
    assert len(sent) < 300
    assert {key for key, line in lines.items() if line["state"]} >= sent.keys()


LOST_AT_THE_END = """
import sys
from payclient.cli import main
from payclient.errors import LedgerUnavailableError
from payclient.tracking.attempts import Attempts
find, calls = Attempts.find, []
async def lost(self, keys):
    calls.append(keys)
    if len(calls) > 2:
        raise LedgerUnavailableError("the ledger could not be opened")
    return await find(self, keys)
Attempts.find = lost
sys.exit(main(sys.argv[1:]))
"""


def test_a_ledger_lost_at_the_end_hides_nothing_that_was_sent(silent: Service, tmp_path: Path) -> None:
    """Of two customers who were asked the report says so, and of the third that nothing was sent."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("lost", 3)), tmp_path / "report.csv"
    arguments = charge_arguments(silent, file, "--report", str(report), "--max-pending", "2")
    with start(arguments, [sys.executable, "-c", LOST_AT_THE_END]) as process:
        wait_until(lambda: len(silent.truth("lost-")) == 2)
        assert process.stderr is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            while "interrupted" not in process.stderr.readline():
                assert process.poll() is None
        process.communicate(timeout=60)
    assert process.returncode == 130
    lines = read_report(report)
    assert {key for key, line in lines.items() if line["state"]} == silent.truth("lost-").keys()
    assert {line["paid"] for line in lines.values()} == {""}


FULL_AFTER_TWO_ROWS = """
import io
import sys
from payclient.cli import main, report
class Disk(io.FileIO):
    free = 2
    def __init__(self, path, mode, buffering, opener):
        super().__init__(path, mode, opener=opener)
    def write(self, content):
        if not Disk.free:
            super().write(content[:7])
            raise OSError(28, "No space left on device")
        Disk.free -= 1
        return super().write(content)
report.open = Disk
sys.exit(main(sys.argv[1:]))
"""


def test_a_report_on_a_full_disk_ends_the_sending(unwilling: Service, tmp_path: Path) -> None:
    """What is open is followed to its end, one line says why, whole rows are left, and the exit code is its own."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("disk", 12)), tmp_path / "report.csv"
    arguments = charge_arguments(unwilling, file, "--report", str(report), "--max-pending", "3")
    command = [sys.executable, "-c", FULL_AFTER_TWO_ROWS, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 5, done.stderr
    assert "the report cannot be written: No space left on device; sending ends" in done.stderr
    assert "Traceback" not in done.stderr
    assert "the report is in" not in done.stderr
    assert "to do: mend the report's place and run again" in done.stderr
    assert len(unwilling.truth("disk-")) < 12
    assert [line["state"] for line in read_report(report).values()] == ["cancelled"] * 2


def test_without_sighup_it_charges(willing: Service, monkeypatch: pytest.MonkeyPatch, charge: Charge) -> None:
    """As Windows."""
    monkeypatch.delattr("signal.SIGHUP")
    assert charge(willing, rows_of("windows", 2)).code == 0


def test_a_batch_ends_soon_where_nobody_answers(willing: Service, charge: Charge) -> None:
    """Not each of 100 rows is tried: the first few tell, and the reason stands on the terminal."""
    away = Service("http://127.0.0.1:9", willing.profile)
    ran = charge(away, rows_of("nowhere", 100), "--max-in-flight", "4")
    assert ran.code == 4
    assert "5 charges in a row did not reach the service" in ran.err
    assert "not sent yet: 5 charges" in ran.err
    lines = ran.report.values()
    assert {(line["state"], line["paid"]) for line in lines} == {("", "")}
    assert sum("5 charges in a row" not in line["message"] for line in lines) < 15


def test_a_page_that_cannot_be_written_ends_no_run(
    unwilling: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charge: Charge
) -> None:
    """The terminal says so, and does not name the page at the end."""
    monkeypatch.setattr("payclient.cli.page.atomic_write", lambda _: os.open("/nowhere", os.O_RDONLY))
    ran = charge(unwilling, rows_of("unpaged", 2), "--html", str(tmp_path / "page.html"))
    assert ran.code == 3
    assert ran.err.count("the page cannot be written: No such file or directory") == 1
    assert "the page for people is in" not in ran.err
