"""`payclient charge`, `sale`, `prepare` and `status`: outcomes, exit codes and signals, against a simulated service."""

import asyncio
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import payclient
from cli_runs import (
    ROOT,
    TOKEN,
    Charge,
    Said,
    Service,
    charge_arguments,
    check_truth,
    crowd,
    read_report,
    rows_of,
    start,
    wait_until,
    write_csv,
    write_jsonl,
)
from payclient import sync
from payclient.cli import main
from payclient.ledger.sqlite import SqliteDatabase
from payclient.simulator import Fault

pytestmark = pytest.mark.usefixtures("clean_environment")


# --- Whole files


def test_rows_of_one_purchase_are_charged_once(willing: Service, tmp_path: Path, charge: Charge) -> None:
    """Two rows of one order, with orders in them: the second is not sent, and report, page and terminal say why."""
    rows = rows_of("cart", 3)
    for number, row in enumerate(rows):
        row |= {"pedido": f"order-{min(number, 1)}", "order": {"billTo": {"firstName": "Ana"}}}
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    # The two are under way at the same time; the end of the run knows what became of the first.
    ran = charge(willing, file, "--map", "purchase=pedido", "--html", str(tmp_path / "report.html"))
    assert ran.code == 3
    paid, unsent = ([row for row in ran.report.values() if row["paid"] == p] for p in ("true", "false"))
    assert (len(paid), len(unsent)) == (2, 1)
    (row,) = unsent
    assert (row["state"], row["evidence"], row["purchase"]) == ("", "already paid", "order-1")
    winner = next(each for each in paid if each["purchase"] == row["purchase"])
    assert row["message"] == f"this purchase is paid by {winner['client_transaction_id']}; nothing was sent"
    assert sorted(willing.truth("cart")) == sorted(each["client_transaction_id"] for each in paid)
    assert "1 already paid: this purchase is paid by" in ran.err
    assert "Another charge of the same purchase is paid" in (tmp_path / "report.html").read_text()
    plan = charge(willing, file, "--map", "purchase=pedido", "--dry-run")
    assert "2 accepted, 1 already paid to send nothing" in plan.out
    # A row without a purchase is for the one of its key.
    assert "2 already paid to send nothing" in charge(willing, rows_of("order", 2), "--dry-run").out


def test_a_plan_reads_the_purchases_of_many_rows_at_once(
    willing: Service, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one query for each row, a file of 50,000 would be planned for minutes, from a database far away."""
    rows = [row | {"purchase": f"cart-{number}"} for number, row in enumerate(rows_of("many", 90))]
    assert charge(willing, rows[:1]).code == 0
    reads, look_up = [], SqliteDatabase.look_up

    async def counted(self: SqliteDatabase, *sought: Any) -> Any:
        reads.append(sought)
        return await look_up(self, *sought)

    monkeypatch.setattr(SqliteDatabase, "look_up", counted)
    assert charge(willing, rows, "--dry-run").code == 0
    assert len(reads) < 9


def test_a_purchase_that_is_open_is_called_so(silent: Service, charge: Charge) -> None:
    """Nothing is sent for the second row, for which nobody knows: exit code 4, and the report says what is open."""
    ran = charge(silent, [row | {"purchase": "x"} for row in rows_of("open", 2)], "--wait", "0")
    assert ran.code == 4
    lines = ran.report.values()
    (sent,), (unsent,) = ([line for line in lines if bool(line["state"]) is was] for was in (True, False))
    assert (unsent["paid"], unsent["evidence"]) == ("", "purchase open")
    assert sent["client_transaction_id"] in unsent["message"]
    assert list(silent.truth("open")) == [sent["client_transaction_id"]]


def test_a_purchase_that_was_open_is_free_at_the_end(unwilling: Service, charge: Charge) -> None:
    """Its first row was cancelled while the run went on: the other is not sent yet, and the next run sends it."""
    rows = [row | {"purchase": "x"} for row in rows_of("freed", 2)]
    ran = charge(unwilling, rows)
    assert (ran.code, len(unwilling.truth("freed"))) == (4, 1)
    assert sorted(row["state"] for row in ran.report.values()) == ["", "cancelled"]
    assert "1 row not finished" in ran.err
    assert "may be paid" not in ran.err
    charge(unwilling, rows)
    assert len(unwilling.truth("freed")) == 2


def test_a_token_that_is_not_taken_stops_the_sending(
    willing: Service, monkeypatch: pytest.MonkeyPatch, charge: Charge
) -> None:
    """One 401, and the rest is never sent: an empty state, exit 4. The next run sends the row that met it as well."""
    monkeypatch.setenv("PAYCLIENT_TOKEN", "another-token")
    ran = charge(willing, rows_of("refused", 20), "--max-in-flight", "1")
    states = [line["state"] for line in ran.report.values()]
    assert (ran.code, len(states), set(states)) == (4, 20, {"refused", ""})
    assert states.count("refused") < 5
    assert willing.truth("refused-") == {}
    assert "401" in ran.err
    # The rows need no mending.
    assert "to do: 20 rows not finished; run again:" in ran.err
    assert "refused; mend" not in ran.err
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)
    assert charge(willing, rows_of("refused", 20)).code == 0


# --- Bad input: exit 2, one line, nothing sent


SALE = "sale --phone-number 1 --country-code 593 --currency USD --client-transaction-id x --amount-with-tax=10.50"

FORM = (
    "prepare --store-id S1 --response-url https://x.example --currency USD --client-transaction-id x --tip 5"
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("charge", "FILE requires an argument"),
        ("charge none.csv --dry-run", "none.csv: cannot be read"),
        ("charge x.csv --ledger memory: --base-url http://pay.example", "must be https"),
        ("charge x.csv --ledger memory: --base-url https://pay.example", "sqlite:PATH"),
        ("charge x.csv --base-url https://pay.example", "--ledger"),
        ("charge x.csv", "--base-url"),
        ("charge x.csv --dry-run --max-in-flight 0", "--max-in-flight"),
        ("charge x.csv --dry-run --max-pending 1.5", "whole number"),
        ("charge x.csv --dry-run --rate 0", "--rate"),
        ("charge x.csv --dry-run --wait nan", "--wait"),
        ("charge x.csv --dry-run --retry all", "--retry"),
        ("charge x.csv --dry-run --profile none.toml", "none.toml"),
        ("charge x.csv --token abc", "Unknown option"),
        ("nothing", "Unknown command"),
        (SALE, "--amount-with-tax"),
        (f"{SALE[:-3]} --base-url http://127.0.0.1:1 --ledger sqlite:none.db", "none.db is not there"),
        (f"{SALE[:-3]} --base-url http://127.0.0.1:1 --ledger memory", "ledger must be memory:"),
        (f"{FORM} --base-url http://127.0.0.1:1 --ledger sqlite:none.db", "none.db is not there"),
        ("follow --base-url http://127.0.0.1:1", "give --ledger"),
        ("follow --base-url http://127.0.0.1:1 --ledger memory: --since -1", "--since"),
        ("simulate --port 0 --answers approve=2", "approve"),
        ("simulate --port 99999", "--port"),
        ("simulate --port 0 --host 127..0.1", "--host, --port: cannot listen"),
        ("simulate --port 0 --account shop", "--account"),
        ("simulate --port 0 --account shop=a --token b", "--token"),
        ("status", "--transaction-id"),
        ("status --transaction-id 5 --base-url https://pay.example", "status.by_transaction_id"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(arguments: str, said: str, capfd: Said) -> None:
    assert main(arguments.split()) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert "Traceback" not in err
    assert TOKEN not in err
    assert not Path("none.db").exists()


def test_faults_are_all_shown_before_anything_is_sent(
    willing: Service, tmp_path: Path, charge: Charge
) -> None:
    """A fault in the last row keeps the first from being sent, and no value is repeated."""
    good, bad = rows_of("fault", 60)[:3], rows_of("fault", 60)[3:]
    ran = charge(willing, [*good, *(row | {"amount_with_tax": "10.51"} for row in bad)])
    assert ran.code == 2
    assert "lines 5, 6, 7, 8, 9, ... (57 rows), amount_with_tax: must be whole cents" in ran.err
    assert "57 faults; nothing was sent" in ran.err
    assert not re.search("10.51|0977", ran.err)
    assert willing.truth("fault") == {}
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("answer", ["y", "", "no", None])
def test_on_a_terminal_it_asks(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said, answer: str | None
) -> None:
    """With count and total, and that the ledger is new; only yes is a yes. No terminal (None): it needs `--yes`."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None, raising=False)
    monkeypatch.setattr("rich.console.Console.input", lambda *_, **__: answer)
    prefix = f"asked{answer}"
    arguments = charge_arguments(willing, write_csv(tmp_path / "charges.csv", rows_of(prefix, 2)))
    for given in ("--yes",) if answer is None else ("--yes", "--new-ledger"):
        arguments.remove(given)
    assert main(arguments) == (0 if answer == "y" else 2)
    assert len(willing.truth(f"{prefix}-")) == (2 if answer == "y" else 0)
    said = " ".join(capfd.readouterr().err.split())
    if answer is None:
        assert "--yes" in said
    else:
        assert "USD 11.51" in said
        assert "is new: it knows no earlier charge" in said


def test_a_ledger_that_goes_after_the_plan_is_not_made_anew(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """The person agreed to one charge. A new ledger would charge the other again, also with --new-ledger."""
    rows, ledger = rows_of("gone", 2), tmp_path / "ledger.db"
    arguments = charge_arguments(willing, write_csv(tmp_path / "charges.csv", rows[:1]))
    assert main(arguments) == 0
    write_csv(tmp_path / "charges.csv", rows)
    arguments.remove("--yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "rich.console.Console.input", lambda *_, **__: ledger.rename(tmp_path / "gone") and "y"
    )
    assert main(arguments) == 2
    assert "is not there, and a new one knows no earlier charge" in " ".join(capfd.readouterr().err.split())
    assert len(willing.truth("gone-")) == 1


def test_a_run_has_the_profile_of_its_plan(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is written anew while the person is asked is for the next run."""
    profile, other = Path(shutil.copy(willing.profile, tmp_path)), 'name = "other"\nsale_window = 1\n'
    file = write_csv(tmp_path / "charges.csv", rows_of("planned", 1))
    arguments = charge_arguments(Service(willing.url, profile), file)
    arguments.remove("--yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.console.Console.input", lambda *_, **__: profile.write_text(other) and "y")
    assert main(arguments) == 0


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


SHORT_GRACE = """
import sys
from payclient.cli import main, run
run.TERM_GRACE = 0.8
sys.exit(main(sys.argv[1:]))
"""


def test_a_report_is_true_whenever_a_resumed_run_is_killed(silent: Service, tmp_path: Path) -> None:
    """SIGTERM waits for who was asked, and stops waiting after its grace (30 s, here 0.8 s). The same command is killed
    again and again: each key stands once, no row that was sent is "never sent", and the end charges nobody twice."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("again", 37)), tmp_path / "report.csv"
    arguments = charge_arguments(silent, file, "--report", str(report), "--max-pending")
    with start([*arguments, "5"], [sys.executable, "-c", SHORT_GRACE]) as process:
        wait_until(lambda: len(silent.truth("again-")) == 5)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"waiting for 5 customers until \d\d:\d\d:\d\d \(in \d+ s\)", err)
    assert "stopped waiting" in err
    assert "to go on: payclient charge" in err
    assert TOKEN not in err
    states = [line["state"] for line in read_report(report).values()]
    assert sorted(states) == [""] * 32 + ["pending"] * 5
    decided: set[str] = set()

    def held() -> set[str]:
        """Rows of which a kill fell between the permit and the request: they may not be sent again."""
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
            permitted = {key for (key,) in ledger.execute("SELECT client_transaction_id FROM attempts")}
        return permitted - silent.truth("again-").keys()

    def killed(sent: int, ended: int) -> None:
        """Once the report was begun, so many rows were sent and so many have ended."""
        begun, sendable = report.stat().st_ino, sent - len(held())
        with start([*arguments, "12"]) as process:
            wait_until(lambda: report.stat().st_ino != begun)
            wait_until(lambda: len(silent.truth("again-")) >= sendable)
            silent.reject("again-") if ended else None
            wait_until(lambda: len(report.read_bytes().splitlines()) > ended)
            process.kill()
            process.communicate()

    for sent, ended in ((0, 0), (12, 0), (12, 12)):
        killed(sent, ended)
        lines = read_report(report)
        check_truth(lines, silent.truth("again-"))
        assert lines.keys() >= decided
        decided = set(lines)
    assert 12 <= len(decided) < 37
    unsent = held()
    with start([*arguments, "37"]) as process:
        wait_until(lambda: len(silent.truth("again-")) >= 37 - len(unsent))
        silent.reject("again-")
        wait_until(lambda: len(report.read_bytes().splitlines()) > 37 - len(unsent))
        process.kill() if unsent else None  # their absence would be proven after two windows
        process.communicate(timeout=60)
    assert process.returncode == 3 or unsent
    lines = read_report(report)
    assert len(lines.keys() | unsent) == 37
    assert all(lines[key]["paid"] != "true" for key in lines.keys() & unsent)
    check_truth({key: lines[key] for key in lines.keys() - unsent}, silent.truth("again-"))
    assert silent.counts()["duplicates"] == {}


def test_a_refused_row_that_waits_for_its_customer_is_not_unpaid(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Refused as busy, found pending by the next run, and left by Ctrl-C twice: the customer may still approve it."""
    (row,), ledger = rows_of("found", 1), f"sqlite:{tmp_path / 'ledger.db'}"
    file, report = write_csv(tmp_path / "charges.csv", [row]), tmp_path / "report.csv"
    request = payclient.SaleRequest(**row)

    async def sell(service: Service) -> None:
        async with payclient.PaySession(service.url, TOKEN, profile=str(service.profile)) as session:
            await session.sale(request)

    with crowd(tmp_path_factory, "ignore=1", window=300) as service:
        assert service.simulator is not None
        service.simulator.fail_next(Fault("refuse", error_code=2061))
        with (
            sync.open_tracker(service.url, TOKEN, ledger=ledger, profile=str(service.profile)) as tracker,
            pytest.raises(payclient.CustomerBusyError),
        ):
            tracker.sale(request)
        asyncio.run(sell(service))
        with start(charge_arguments(service, file, "--report", str(report))) as process:
            assert process.stderr is not None
            for word in ("the customer may approve it", "interrupted"):
                while word not in process.stderr.readline():
                    assert process.poll() is None
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    line = read_report(report)["found-0"]
    assert (line["state"], line["paid"], process.returncode) == ("", "", 130)


# --- sale, prepare, status


def sale_arguments(service: Service, tmp_path: Path, key: str, *more: str) -> list[str]:
    return [
        "sale", "--phone-number", "0977123456", "--country-code", "593", "--currency", "USD",
        "--client-transaction-id", key, "--base-url", service.url, "--profile", str(service.profile),
        "--ledger", f"sqlite:{tmp_path / 'l.db'}", "--new-ledger", *more,
    ]  # fmt: skip


def test_one_sale_and_its_status(
    willing: Service, tmp_path: Path, capfd: Said, monkeypatch: pytest.MonkeyPatch
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


def test_a_sale_shows_its_receipt_in_words(willing: Service, tmp_path: Path, capfd: Said) -> None:
    """As the ledger shows it, whose fields the profile names."""
    kept, line = tmp_path / "kept.toml", 'receipt_fields = ["authorizationCode"]\n[status]'
    kept.write_text(willing.profile.read_text(encoding="utf-8").replace("[status]", line), encoding="utf-8")
    arguments = sale_arguments(willing, tmp_path, "sale-kept", "--amount-with-tax", "1150", "--tax", "0")
    arguments[arguments.index("--profile") + 1] = str(kept)
    assert main(arguments) == 0
    assert re.search(r"receipt +authorizationCode \w+\n", capfd.readouterr().out)


def test_a_sale_that_a_person_refused_is_charged_again(willing: Service, tmp_path: Path, capfd: Said) -> None:
    """As `ledger resolve` says of it: by the same command with --retry refused, as in a file of charges."""
    arguments = sale_arguments(willing, tmp_path, "sale-again", "--amount-with-tax", "1150", "--tax", "0")
    willing.control("fail_next", fault={"kind": "reset", "when": "before"})
    assert main([*arguments, "--wait", "0"]) == 4
    decision = ["--as", "refused", "--actor", "Ana", "--reason", "the portal has none", "--yes"]
    assert (
        main(["ledger", "resolve", "sale-again", *decision, "--ledger", f"sqlite:{tmp_path / 'l.db'}"]) == 0
    )
    assert main(arguments) == 3
    assert willing.truth("sale-again") == {}
    assert main([*arguments, "--retry", "refused"]) == 0
    assert willing.truth("sale-again") == {"sale-again": "approved"}


def test_a_run_that_stopped_sending_with_all_paid_ends_with_0(willing: Service, charge: Charge) -> None:
    """Five answers in a row were lost, which stops the sending; there was no other row, and all were found paid."""
    for _ in range(5):
        willing.control("fail_next", fault={"kind": "reset", "when": "after"})
    ran = charge(willing, rows_of("last-five", 5))
    assert "sends nothing more: 5 unknown outcomes in a row" in ran.err
    assert {line["state"] for line in ran.report.values()} == {"accepted"}
    assert ran.code == 0


def test_a_run_that_stopped_sending_with_all_decided_is_finished(unwilling: Service, charge: Charge) -> None:
    rows = rows_of("five-declined", 6)
    unwilling.control("fail_next", fault={"kind": "refuse", "error_code": 22})
    assert charge(unwilling, rows[5:]).code == 3
    for _ in range(5):
        unwilling.control("fail_next", fault={"kind": "reset", "when": "after"})
    ran = charge(unwilling, rows)
    assert "sends nothing more: 5 unknown outcomes in a row" in ran.err
    assert Counter(line["state"] for line in ran.report.values()) == {"cancelled": 5, "refused": 1}
    assert ran.code == 3


def test_a_run_whose_last_row_met_a_401_is_not_finished(willing: Service, charge: Charge) -> None:
    """The row is refused, and the same command sends it again."""
    fault = {"kind": "refuse", "status": 401, "error_code": 1}
    willing.control("fail_next", fault=fault)
    ran = charge(willing, rows_of("last-401", 1))
    assert "does not take the token" in ran.err
    assert (ran.code, ran.report["last-401-0"]["state"]) == (4, "refused")
    assert charge(willing, rows_of("last-401", 1)).code == 0


def test_a_sale_that_was_not_sent_is_not_called_unknown(
    willing: Service, tmp_path: Path, capfd: Said
) -> None:
    """As in a run over a file, nothing is said of paid: nothing was created that anybody could doubt."""
    arguments = sale_arguments(willing, tmp_path, "sale-unsent", "--amount-with-tax", "1150", "--tax", "0")
    arguments[arguments.index("--base-url") + 1] = "http://127.0.0.1:1"
    assert main(arguments) == 4
    out = capfd.readouterr().out
    assert re.search(r"state +not sent yet", out)
    assert "unknown" not in out


def test_a_sale_has_the_phone_of_its_customer(willing: Service, tmp_path: Path, capfd: Said) -> None:
    """However the number is spelled it is one sale, as in a file of charges; what cannot be one is bad input."""
    profile = tmp_path / "shaped.toml"
    shapes = '[phone_shapes]\n593 = "0#########"\n[status]'
    profile.write_text(willing.profile.read_text().replace("[status]", shapes, 1))
    shaped = Service(willing.url, profile)
    arguments = sale_arguments(shaped, tmp_path, "sale-shape", "--amount-with-tax", "1150", "--tax", "0")
    place = arguments.index("0977123456")
    for phone in ("0977123456", "593 97 712 3456"):
        arguments[place] = phone
        assert main(arguments) == 0
        assert ("the phone was corrected to 0#########" in capfd.readouterr().err) is (phone != "0977123456")
    arguments[place] = "12345"
    assert main(arguments) == 2
    assert "--phone-number: is not a phone of country 593, such as 0#########" in capfd.readouterr().err


def test_prepare_prints_both_links_and_their_time_left(willing: Service, tmp_path: Path, capfd: Said) -> None:
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
