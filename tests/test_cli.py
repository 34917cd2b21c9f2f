"""The command line, against the simulated service in another process."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

import control
from payclient.cli import main
from payclient.cli.report import Line, Report
from payclient.cli.tables import csv_line

TOKEN = "token-never-shown"
PYTHON = [sys.executable, "-m", "payclient"]
ROOT = Path(__file__).parents[1]
COLUMNS = (
    "client_transaction_id", "phone_number", "country_code", "currency", "amount_with_tax", "tax",
    "store_id",
)  # fmt: skip

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
    """A running `payclient simulate`."""

    def __init__(self, url: str, profile: Path, process: "subprocess.Popen[str] | None" = None) -> None:
        self.url = url
        self.profile = profile
        self.process = process

    def stop(self) -> None:
        """Let it go, in the midst of what it does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = control.call_process(self.url, "counts")
        return counts

    def truth(self, prefix: str) -> dict[str, str]:
        """What the service did with each client transaction id."""
        sales = [
            sale
            for sale in control.call_process(self.url, "sales")
            if sale["client_transaction_id"].startswith(prefix)
        ]
        assert len({sale["client_transaction_id"] for sale in sales}) == len(sales)
        return {sale["client_transaction_id"]: sale["how"] for sale in sales}


@contextmanager
def simulated(directory: Path, *arguments: str, window: float) -> Iterator[Service]:
    profile = directory / "profile.toml"
    profile.write_text(PROFILE.format(window=window))
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    crowd = "approve=0.7,reject=0.2,ignore=0.1"
    with simulated(
        tmp_path_factory.mktemp("quick"), "--answers", crowd, "--delay", "0.2", window=1.5
    ) as running:
        yield running


@pytest.fixture(scope="module")
def willing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Everybody approves at once."""
    with simulated(
        tmp_path_factory.mktemp("willing"), "--answers", "approve=1", "--delay", "0.01", window=60
    ) as running:
        yield running


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Nobody answers."""
    with simulated(tmp_path_factory.mktemp("silent"), "--answers", "ignore=1", window=3) as running:
        yield running


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "PROFILE", "LEDGER"):
        monkeypatch.delenv(f"PAYCLIENT_{name}", raising=False)
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)


def rows_of(prefix: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "client_transaction_id": f"{prefix}-{number}", "phone_number": f"0977{number:06}",
            "country_code": "593", "currency": "USD" if number % 4 else "EUR",
            "amount_with_tax": 1000 + number, "tax": 150, "store_id": "S1",
        }
        for number in range(count)
    ]  # fmt: skip


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def charge_arguments(service: Service, file: Path, *more: str) -> list[str]:
    return [
        "charge", str(file), "--base-url", service.url, "--profile", str(service.profile),
        "--ledger", f"sqlite:{file.parent / 'ledger.db'}", "--new-ledger", "--yes", *more,
    ]  # fmt: skip


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
            ("accepted", "approved"),
            ("cancelled", "rejected"),
            ("cancelled", "expired"),
            ("refused", None),
        }, key
        assert line["paid"] in (("true", True) if how == "approved" else ("false", False)), key


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*PYTHON, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# --- What rows are for


@pytest.mark.parametrize("mapped", [False, True])
def test_rows_of_one_purchase_are_charged_once(
    willing: Service, tmp_path: Path, mapped: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a column or a mapped one: two rows of one order, the second is not sent, and the report says why."""
    rows = rows_of(f"cart-{mapped}", 3)
    column = "pedido" if mapped else "purchase"
    for number, row in enumerate(rows):
        row[column] = f"order-{mapped}-{min(number, 1)}"
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    more = ["--map", "purchase=pedido"] if mapped else []
    arguments = charge_arguments(willing, file, "--report", str(tmp_path / "report.csv"), *more)
    main(arguments)
    # Once more, since the two may have been under way at the same time.
    assert main([*arguments, "--html", str(tmp_path / "report.html")]) == 3
    report = read_report(tmp_path / "report.csv")
    paid, unsent = ([row for row in report.values() if row["paid"] == paid] for paid in ("true", "false"))
    assert (len(paid), len(unsent)) == (2, 1)
    (row,) = unsent
    assert (row["state"], row["evidence"], row["purchase"]) == ("", "already paid", f"order-{mapped}-1")
    winner = next(each for each in paid if each["purchase"] == row["purchase"])
    assert row["message"] == f"this purchase is paid by {winner['client_transaction_id']}; nothing was sent"
    assert sorted(willing.truth(f"cart-{mapped}")) == sorted(each["client_transaction_id"] for each in paid)
    said = capfd.readouterr().err
    assert "1 already paid: this purchase is paid by" in said
    assert "Another charge of the same purchase is paid" in (tmp_path / "report.html").read_text()


def test_a_purchase_that_is_open_is_called_so(silent: Service, tmp_path: Path) -> None:
    """Nothing is sent for the second row, for which nobody knows: exit code 4, and the report says what is open."""
    rows = rows_of("open", 2)
    for row in rows:
        row["purchase"] = "open-order"
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    report = tmp_path / "report.jsonl"
    assert main(charge_arguments(silent, file, "--wait", "0", "--report", str(report))) == 4
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    (sent,) = (line for line in lines if line["state"])
    (unsent,) = (line for line in lines if not line["state"])
    assert (unsent["paid"], unsent["evidence"]) == (None, "purchase open")
    assert sent["client_transaction_id"] in unsent["message"]
    assert list(silent.truth("open")) == [sent["client_transaction_id"]]


# --- Whole files


def test_a_csv_finishes_and_a_second_run_sends_nothing(
    service: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every outcome is the service's, the report has them all, and the same command again asks for nothing."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("csv", 300)), tmp_path / "report.csv"
    arguments = charge_arguments(service, file, "--report", str(report), "--max-in-flight", "100")
    assert main(arguments) == 3
    truth, lines = service.truth("csv-"), read_report(report)
    assert len(truth) == len(lines) == 300
    check_truth(lines, truth)
    assert {line["currency"] for line in lines.values()} == {"USD", "EUR"}
    assert lines["csv-7"]["amount"] == "1157"
    before = service.counts()
    assert main(arguments) == 3
    assert service.counts() == before
    assert before["duplicates"] == {}
    assert read_report(report) == lines
    said = capfd.readouterr()
    assert "EUR 1,150.00" not in said.err
    for text in said:
        assert TOKEN not in text
        assert "0977" not in text
    assert "0977000" not in report.read_text()  # a transaction id may hold the first four
    accepted = sum(line["paid"] == "true" for line in lines.values())
    assert re.search(rf"accepted +yes +{accepted} ", said.out)


def test_a_jsonl_with_orders_finishes(willing: Service, tmp_path: Path) -> None:
    """Orders go along, and the report may be JSONL as well. Everybody pays, however slow the machine."""
    rows = rows_of("jsonl", 300)
    for row in rows:
        row["order"] = {
            "billTo": {"firstName": "Ana", "country": "EC", "phoneNumber": "+593991112223"},
            "lineItems": [{"productSKU": "sku-1", "unitPrice": 1000, "quantity": 1}],
        }
    file, report = write_jsonl(tmp_path / "charges.jsonl", rows), tmp_path / "report.jsonl"
    assert main(charge_arguments(willing, file, "--report", str(report))) == 0
    lines = {line["client_transaction_id"]: line for line in map(json.loads, report.read_text().splitlines())}
    truth = willing.truth("jsonl-")
    assert len(lines) == len(truth) == 300
    check_truth(lines, truth)


def test_a_killed_run_goes_on_and_charges_nobody_twice(service: Service, tmp_path: Path) -> None:
    """SIGKILL in the middle, and the same command again: every outcome is the service's, none is there twice."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("kill", 240)), tmp_path / "report.csv"
    arguments = charge_arguments(service, file, "--report", str(report), "--rate", "200")
    before = service.counts()["created"]
    with start(arguments) as process:
        wait_until(lambda: service.counts()["created"] > before + 80)
        process.kill()
        process.communicate()
    with report.open(newline="") as text:
        whole = [line for line in text if line.endswith("\n")]
    written = {line["client_transaction_id"]: line for line in csv.DictReader(whole)}
    check_truth(written, service.truth("kill-"))
    assert main(arguments) == 3
    lines = read_report(report)
    assert len(lines) == 240
    assert written.keys() <= lines.keys()
    check_truth(lines, service.truth("kill-"))
    assert service.counts()["duplicates"] == {}


# --- Exit codes


def test_a_token_that_is_not_taken_stops_the_sending(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One 401, and the rest is never sent: an empty state, exit 4."""
    monkeypatch.setenv("PAYCLIENT_TOKEN", "another-token")
    file, report = write_csv(tmp_path / "charges.csv", rows_of("refused", 20)), tmp_path / "report.csv"
    assert main(charge_arguments(willing, file, "--report", str(report), "--max-in-flight", "1")) == 4
    states = [line["state"] for line in read_report(report).values()]
    assert len(states) == 20
    assert states.count("refused") < 5
    assert set(states) == {"refused", ""}
    assert willing.truth("refused-") == {}
    assert "401" in capfd.readouterr().err
    # A row that a 401 met is no refused one: the next run sends it.
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)
    assert main(charge_arguments(willing, file, "--report", str(report))) == 0


# --- Bad input: exit 2, one line, nothing sent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["charge"], "FILE requires an argument"),
        (["charge", "none.csv", "--dry-run"], "none.csv: cannot be read"),
        (["charge", "x.csv", "--ledger", "memory:", "--base-url", "http://pay.example"], "must be https"),
        (["charge", "x.csv", "--ledger", "memory:", "--base-url", "https://pay.example"], "sqlite:PATH"),
        (["charge", "x.csv", "--base-url", "https://pay.example"], "--ledger"),
        (["charge", "x.csv"], "--base-url"),
        (["charge", "x.csv", "--dry-run", "--max-in-flight", "0"], "--max-in-flight"),
        (["charge", "x.csv", "--dry-run", "--max-pending", "1.5"], "whole number"),
        (["charge", "x.csv", "--dry-run", "--rate", "0"], "--rate"),
        (["charge", "x.csv", "--dry-run", "--wait", "nan"], "--wait"),
        (["charge", "x.csv", "--dry-run", "--retry", "all"], "--retry"),
        (["charge", "x.csv", "--dry-run", "--profile", "none.toml"], "none.toml"),
        (["charge", "x.csv", "--token", "abc"], "Unknown option"),
        (["nothing"], "Unknown command"),
        (["simulate", "--port", "0", "--answers", "approve=2"], "approve"),
        (["simulate", "--port", "99999"], "--port"),
        (["simulate", "--port", "0", "--account", "shop"], "--account"),
        (["simulate", "--port", "0", "--account", "shop=a", "--token", "b"], "--token"),
        (["status"], "--transaction-id"),
        (
            ["status", "--transaction-id", "5", "--base-url", "https://pay.example"],
            "status.by_transaction_id",
        ),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert TOKEN not in err


def test_faults_are_all_shown_before_anything_is_sent(
    willing: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fault in the last row keeps the first from being sent, and no value is repeated."""
    rows = rows_of("fault", 60)
    for row in rows[3:]:
        row["amount_with_tax"] = "10.51"
    before = willing.counts()
    file = write_csv(tmp_path / "charges.csv", rows)
    assert main(charge_arguments(willing, file)) == 2
    err = capfd.readouterr().err
    assert "lines 5, 6, 7, 8, 9, ... (57 rows), amount_with_tax: must be whole cents" in err
    assert "57 faults; nothing was sent" in err
    assert "10.51" not in err
    assert "0977" not in err
    assert willing.counts() == before
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 2), ("no", 2), (None, 2)])
def test_on_a_terminal_it_asks(
    willing: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: str | None,
    code: int,
) -> None:
    """It shows count and total, and takes yes alone for a yes; without a terminal (None) it needs `--yes`."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
    monkeypatch.setattr("rich.console.Console.input", lambda *_, **__: answer)
    prefix = f"asked{answer}"
    arguments = charge_arguments(willing, write_csv(tmp_path / "charges.csv", rows_of(prefix, 2)))
    arguments.remove("--yes")
    assert main(arguments) == code
    assert len(willing.truth(f"{prefix}-")) == (2 if code == 0 else 0)
    assert ("--yes" if answer is None else "USD 11.51") in capfd.readouterr().err


def test_the_environment_stands_for_the_options(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_csv(tmp_path / "charges.csv", rows_of("environ", 2))
    monkeypatch.setenv("PAYCLIENT_BASE_URL", willing.url)
    monkeypatch.setenv("PAYCLIENT_PROFILE", str(willing.profile))
    monkeypatch.setenv("PAYCLIENT_LEDGER", f"sqlite:{tmp_path / 'l.db'}")
    assert main(["charge", str(file), "--yes", "--new-ledger"]) == 0


def test_without_its_packages_it_says_what_to_install() -> None:
    """No cyclopts or no rich: one line, exit 2."""
    code = (
        "import sys; sys.modules['cyclopts'] = None; from payclient.cli import main; sys.exit(main(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'payclient[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


# --- Signals


def interrupted(
    service: Service, file: Path, report: Path, prefix: str, signals: list[int]
) -> tuple[int, str]:
    """Charge five at a time, and interrupt once the first five wait for their customers, by the program's own words."""
    arguments = charge_arguments(service, file, "--report", str(report), "--max-pending", "5")
    said: list[str] = []
    with start(arguments) as process:
        wait_until(lambda: len(service.truth(prefix)) >= 5)
        assert process.stderr is not None
        for number in signals:
            process.send_signal(number)
            while "waiting for 5 customers" not in "".join(said):
                line = process.stderr.readline()
                assert line, said
                said.append(line)
        _, err = process.communicate(timeout=60)
    return process.returncode, "".join(said) + err


def test_ctrl_c_once_waits_for_what_is_pending(silent: Service, tmp_path: Path) -> None:
    """It says how many and until when, sends nothing more, lists every row and says how to go on."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("once", 12)), tmp_path / "report.csv"
    code, err = interrupted(silent, file, report, "once-", [signal.SIGINT])
    assert code == 130
    assert re.search(r"waiting for 5 customers until \d\d:\d\d:\d\d \(in \d s\)", err)
    assert "to go on: payclient charge" in err
    assert TOKEN not in err
    states = [line["state"] for line in read_report(report).values()]
    assert sorted(states) == [""] * 7 + ["cancelled"] * 5
    assert len(silent.truth("once-")) == 5


def test_ctrl_c_twice_stops_waiting_and_the_same_command_goes_on(silent: Service, tmp_path: Path) -> None:
    """The rows that wait are listed as pending, and the next run charges nobody twice."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("twice", 12)), tmp_path / "report.csv"
    code, err = interrupted(silent, file, report, "twice-", [signal.SIGINT, signal.SIGINT])
    assert code == 130
    assert "stopped waiting" in err
    states = [line["state"] for line in read_report(report).values()]
    assert sorted(states) == [""] * 7 + ["pending"] * 5
    assert main(charge_arguments(silent, file, "--report", str(report))) == 3
    assert silent.counts()["duplicates"] == {}
    check_truth(read_report(report), silent.truth("twice-"))


def test_a_report_is_true_whenever_a_resumed_run_is_killed(silent: Service, tmp_path: Path) -> None:
    """Ctrl-C, then the same command killed again and again: each key stands once, and no row that was sent is "never
    sent"."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("again", 37)), tmp_path / "report.csv"
    assert interrupted(silent, file, report, "again-", [signal.SIGINT, signal.SIGINT])[0] == 130
    assert len(read_report(report)) == 37
    arguments = charge_arguments(silent, file, "--report", str(report), "--max-pending")
    decided: set[str] = set()

    def killed(sent: int, ended: int) -> None:
        """Once the report was begun, so many rows were sent and so many have ended."""
        begun = report.stat().st_ino
        with start([*arguments, "12"]) as process:
            wait_until(lambda: report.stat().st_ino != begun)
            wait_until(lambda: len(silent.truth("again-")) >= sent)
            wait_until(lambda: len(report.read_bytes().splitlines()) > ended)
            process.kill()
            process.communicate()

    for sent, ended in ((0, 0), (12, 0), (12, 12), (0, 0)):
        killed(sent, ended)
        lines = read_report(report)
        check_truth(lines, silent.truth("again-"))
        assert lines.keys() >= decided
        decided = set(lines)
    assert 12 <= len(decided) < 37
    assert main([*arguments, "37"]) == 3
    assert len(read_report(report)) == 37
    check_truth(read_report(report), silent.truth("again-"))
    assert silent.counts()["duplicates"] == {}


def test_sigterm_is_ctrl_c_once_and_later_twice(silent: Service, tmp_path: Path) -> None:
    """With a grace of 0.8 s here, 30 s there."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("term", 12)), tmp_path / "report.csv"
    arguments = charge_arguments(silent, file, "--report", str(report), "--max-pending", "5")
    code = (
        "import sys; from payclient.cli import main, run; run.TERM_GRACE = 0.8; "
        f"sys.exit(main({arguments!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(silent.truth("term-")) >= 5)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "waiting for 5 customers" in err
    assert "stopped waiting" in err
    states = [line["state"] for line in read_report(report).values()]
    assert sorted(states) == [""] * 7 + ["pending"] * 5


def test_two_runs_on_one_ledger_are_refused(silent: Service, tmp_path: Path) -> None:
    """The second says that the ledger is in use, leaves the report alone and exits with 2."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("both", 5)), tmp_path / "report.csv"
    arguments = charge_arguments(silent, file, "--report", str(report))
    with start(arguments) as process:
        wait_until(lambda: len(silent.truth("both-")) >= 5)
        # Stopped, it holds its ledger however slowly the second starts.
        process.send_signal(signal.SIGSTOP)
        try:
            second = subprocess.run(
                [*PYTHON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
            )
        finally:
            process.send_signal(signal.SIGCONT)
        assert second.returncode == 2
        assert second.stderr.count("\n") == 1
        process.communicate(timeout=60)
    assert process.returncode == 3
    assert len(read_report(report)) == 5


# --- The report


LINE = Line(client_transaction_id="order-1", amount=1150, currency="USD", state="accepted", paid=True)


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        *((each, f"'{each}") for each in ("=1+1", "+593", "-1", "@x", "\tx", "\rx", "\nx")),
        ("x\t=1", "x\t'=1"), ("x;=1;y", "x;'=1;y"), ("x\n@a", "x\n'@a"), ("a-b=c", "a-b=c"), ("x;y", "x;y"),
        ("x; -1", "x;' -1"), ("=1;=2", "'=1;'=2"),
    ],
)  # fmt: skip
def test_a_formula_inside_a_cell_is_defused(cell: str, safe: str) -> None:
    """What parts cells or rows in some locale begins a formula, too."""
    line = csv_line([cell]).decode()
    assert [*csv.reader(io.StringIO(line, newline=""))] == [[safe]]


def test_a_report_begins_with_the_lines_that_it_is_given(tmp_path: Path) -> None:
    """What an earlier run wrote is replaced in one step, and each new line is in the file once it is written."""
    path, other = tmp_path / "r.csv", attrs.evolve(LINE, client_transaction_id="order-2")
    for _ in range(2):
        with Report(path).begin([LINE]) as report:
            assert list(read_report(path)) == ["order-1"]
            report.write(other)
            assert list(read_report(path)) == ["order-1", "order-2"]
            report.rewrite([LINE, attrs.evolve(other, state="cancelled", paid=False)])
            assert read_report(path)["order-2"]["state"] == "cancelled"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.csv"]


def test_a_row_that_a_crash_cut_counts_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Report(path).begin() as report:
        report.write(LINE)
    path.write_bytes(path.read_bytes() + b'{"client_transaction_id": "order-2", "state": "acc')
    assert Report(path).earlier == {"order-1": True}


def test_a_report_is_csv_or_jsonl_and_not_the_file_itself(
    willing: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor a file of anything else: none is overwritten."""
    file = write_csv(tmp_path / "charges.csv", rows_of("itself", 2))
    for name in ("mine.csv", "mine.jsonl"):
        (tmp_path / name).write_text("name,phone\nAna,0991\n")
    for name in ("charges.csv", "r.xls", "no/r.csv", "mine.csv", "mine.jsonl"):
        assert main(charge_arguments(willing, file, "--report", str(tmp_path / name))) == 2
    assert "is not a report" in capfd.readouterr().err
    assert "Ana" in (tmp_path / "mine.csv").read_text()
    assert willing.truth("itself-") == {}


# --- sale, status


def sale_arguments(service: Service, tmp_path: Path, key: str, *more: str) -> list[str]:
    return [
        "sale", "--phone-number", "0977123456", "--country-code", "593", "--currency", "USD",
        "--client-transaction-id", key, "--base-url", service.url, "--profile", str(service.profile),
        "--ledger", f"sqlite:{tmp_path / 'l.db'}", "--new-ledger", *more,
    ]  # fmt: skip


def test_one_sale_and_its_status(
    willing: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged once however often the command runs; then asked for by both ids."""
    for _ in range(2):
        arguments = sale_arguments(willing, tmp_path, "sale-1", "--amount-with-tax", "1000", "--tax", "150")
        assert main(arguments) == 0
        out, err = capfd.readouterr()
        assert re.search(r"state +accepted", out)
        assert "USD 11.50" in out
        assert "0977" not in out + err
    identifier = re.search(r"transaction id +(\d+)", out)
    assert identifier is not None
    assert willing.truth("sale-1") == {"sale-1": "approved"}
    where = ["--base-url", willing.url, "--profile", str(willing.profile)]
    assert main(["status", "--transaction-id", identifier[1], *where]) == 0
    assert main(["status", "--client-transaction-id", "sale-1", *where]) == 0
    assert capfd.readouterr().out.count("Aceptado") == 2
    assert main(["status", "--client-transaction-id", "sale-none", *where]) == 3
    monkeypatch.setenv("PAYCLIENT_TOKEN", "another")
    assert main(["status", "--client-transaction-id", "sale-1", *where]) == 4


def test_a_sale_has_the_phone_of_its_customer(
    willing: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """However the number is spelled it is one sale, as in a file of charges; what cannot be one is bad input."""
    profile = tmp_path / "shaped.toml"
    shapes = '[phone_shapes]\n593 = "0#########"\n[status]'
    profile.write_text(willing.profile.read_text().replace("[status]", shapes, 1))
    arguments = sale_arguments(
        Service(willing.url, profile), tmp_path, "sale-shape", "--amount-with-tax", "1150"
    )
    place = arguments.index("0977123456")
    for phone in ("0977123456", "+593977123456", "593 97 712 3456"):
        arguments[place] = phone
        assert main([*arguments, "--tax", "0"]) == 0
        assert ("the phone was corrected to 0#########" in capfd.readouterr().err) is (phone != "0977123456")
    arguments[place] = "12345"
    assert main([*arguments, "--tax", "0"]) == 2
    assert "--phone-number: is not a phone of country 593, such as 0#########" in capfd.readouterr().err


@pytest.mark.parametrize("amount", ["10.50", "1,000", "1e3", "ten", "-5", "true"])
def test_an_amount_that_is_no_cents_is_bad_input(
    willing: Service, tmp_path: Path, amount: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Never rounded, never read as something else."""
    assert main(sale_arguments(willing, tmp_path, "sale-3", f"--amount-with-tax={amount}")) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert willing.truth("sale-3") == {}


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capfd.readouterr().out
    assert all(name in out for name in ("charge", "demo", "sale", "status", "simulate"))
    assert main(["charge", "--help"]) == 0
    assert os.environ["PAYCLIENT_TOKEN"] not in capfd.readouterr().out


def test_prepare_prints_both_links_and_their_time_left(
    willing: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each link stands whole on a line; the same id again is refused, and bad input says which field."""
    arguments = [
        "prepare", "--currency", "USD", "--client-transaction-id", "form-1", "--store-id", "S1",
        "--response-url", "https://shop.example/back", "--amount-without-tax", "500",
        "--base-url", willing.url, "--profile", str(willing.profile), "--ledger", f"sqlite:{tmp_path / 'l.db'}",
        "--new-ledger",
    ]  # fmt: skip
    assert main(arguments) == 0
    printed = capfd.readouterr()
    assert [line.startswith(willing.url) for line in printed.out.splitlines()[-2:]] == [True, True]
    assert printed.out.count("10 minutes left") == 2
    assert "Referrer-Policy" in printed.err
    assert main(arguments) == 2
    assert "was used already" in capfd.readouterr().err
    assert main([*arguments, "--form-language", "en", "--language", "en"]) == 2
    assert "a form's language needs language_field in the profile" in capfd.readouterr().err
    assert main([*arguments[:2], "usd", *arguments[3:]]) == 2
    assert "currency" in capfd.readouterr().err
