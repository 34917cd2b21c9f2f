"""`payclient charge` and files as they come: the plan before, what is left out, and a token that rotates."""

import asyncio
import csv
import io
import itertools
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from cli_runs import TOKEN, Charge, Said, Service, charge_arguments, rows_of, write_csv
from payclient.cli import main
from payclient.ledger import open_ledger

pytestmark = pytest.mark.usefixtures("clean_environment")


SAMPLE = Path(__file__).parent / "samples" / "charges-spreadsheet.csv"
SPANISH = [
    "--key", "clave", "--map", "phone_number=telefono", "--map", "country_code=pais",
    "--map", "amount_without_tax=base 0%", "--map", "amountWithTax=base gravada", "--map", "tax=IVA",
    "--map", "amount=total", "--map", "currency=moneda", "--map", "reference=referencia", "--amounts", "decimal",
]  # fmt: skip


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLE, tmp_path / "cobros.csv"))


def test_the_sample_is_refused_until_its_bad_rows_are_left_out(
    willing: Service, sample: Path, tmp_path: Path, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then two customers are charged, and the other rows wait in a file of their own, corrected and charged later."""
    monkeypatch.setenv("COLUMNS", "300")
    before = willing.counts()
    refused = charge(willing, sample, *SPANISH)
    assert refused.code == 2
    for words in (
        "line 4, telefono: has 9 digits",
        "8 faults; nothing",
        "--skip-bad FILE charges the other 2 rows",
    ):
        assert words in refused.err
    bad = tmp_path / "bad.csv"
    for options, code, shown in (
        (
            [],
            2,
            [
                "2 good, 8 bad",
                "USD 1,253.65",
                "to send nothing: a row is bad; --skip-bad FILE would send the",
            ],
        ),
        (["--skip-bad", str(bad)], 0, [f"which are left out and go to {bad}", "to send 2 charges"]),
    ):
        plan = charge(willing, sample, *SPANISH, "--dry-run", *options)
        assert plan.code == code
        assert all(words in plan.out for words in shown), plan.out
        assert "line 11, moneda: must be three capital letters" in plan.err
    assert willing.counts() == before
    ran = charge(willing, sample, *SPANISH, "--skip-bad", str(bad))
    assert ran.code == 0
    assert willing.truth("2026-").keys() == ran.report.keys() == {"2026-0001", "2026-0004"}
    assert stat.S_IMODE(bad.stat().st_mode) == 0o600
    assert not re.search("98411122|5,93985|HYPERLINK", refused.out + refused.err + ran.out + ran.err)
    text = bad.read_text("utf-8-sig")
    assert ";\"'=HYPERLINK(" in text, "as text that no spreadsheet calculates"
    assert "2026-0003;984111223;593;;20,00;3,00;23,00;USD;Sin cero inicial;telefono: has 9 digits" in text
    assert len(list(csv.reader(io.StringIO(text), delimiter=";"))) == 9
    corrected = [line for line in text.splitlines() if line.startswith(("clave", "2026-0003"))]
    bad.write_text("\n".join([*corrected, ""]).replace("984111223", "0984111223"), encoding="utf-8")
    assert charge(willing, bad, *SPANISH).code == 0
    assert "2026-0003" in willing.truth("2026-")


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("-1+WEBSERVICE(A1)", "'-1+WEBSERVICE(A1)"),
        ("x;=1+1", "x;'=1+1"), ("+LOG10(A1)", "'+LOG10(A1)"), ("-\nSUM(A1)", "'-\nSUM(A1)"),
        ("+593 (98) 411-1222", "+593 (98) 411-1222"), ("@ana", "@ana"), ("-17", "-17"),
    ],
)  # fmt: skip
def test_a_formula_of_a_bad_row_is_defused(
    willing: Service, charge: Charge, tmp_path: Path, cell: str, safe: str
) -> None:
    """A person opens the file to correct it; what may be a phone, a name or an id stays as it is."""
    bad = tmp_path / "bad.csv"
    good, wrong = rows_of("formula", 2)
    rows = [good | {"note": ""}, wrong | {"note": cell, "currency": "x"}]
    assert charge(willing, rows, "--skip-bad", str(bad), "--ignore-rest").code == 0
    assert [row["note"] for row in csv.DictReader(io.StringIO(bad.read_text("utf-8-sig")))] == [safe]


def test_a_hostile_file_of_charges_writes_no_escape_sequence(tmp_path: Path, capfd: Said) -> None:
    """One could write other money over that of the plan, to which somebody says yes."""
    rows = [row | {"note\x1b[2J": "x"} for row in rows_of("hostile", 1)]
    file = write_csv(tmp_path / "charges.csv", rows)
    assert main(["charge", str(file), "--dry-run", "--ignore-rest"]) == 0
    named = tmp_path / "a\x1b[2J.csv"
    named.write_text("")
    assert main(["charge", str(named), "--dry-run"]) == 2
    shown = capfd.readouterr()
    assert "note\\x1b[2J" in shown.out
    assert "a\\x1b[2J.csv: is empty" in shown.err
    assert "\x1b" not in shown.out + shown.err


def test_a_wrong_total_is_said_without_the_plan(willing: Service, charge: Charge) -> None:
    """It may be a row that lost its key and its phone, and the plan is not shown with `--yes`."""
    rows = rows_of("sum", 3)
    rows[2] |= {"client_transaction_id": "", "phone_number": ""}
    ran = charge(willing, rows)
    assert ran.code == 0
    assert "line 4, amount_with_tax: the total is not the sum of the rows" in ran.err
    assert len(willing.truth("sum-")) == 2


def test_what_the_ledger_knows_is_said_without_the_plan(willing: Service, charge: Charge) -> None:
    """The rows may have the keys of another month: all are accepted, and nobody was charged."""
    rows = rows_of("month", 2)
    charge(willing, rows)
    ran = charge(willing, rows)
    assert ran.code == 0
    assert "ledger.db knows 2 rows: 2 accepted" in ran.err
    assert len(willing.truth("month-")) == 2


def test_a_dry_run_shows_all_that_is_known(
    willing: Service, tmp_path: Path, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the ledger decided, whom the rest goes to, and how long it may take; nothing is written or sent."""
    monkeypatch.setenv("COLUMNS", "500")  # the ledger's path, however long here, in one line
    rows = rows_of("plan", 6)
    rows[5]["phone_number"] = rows[4]["phone_number"]
    plan = charge(willing, rows, "--dry-run")
    assert plan.code == 0
    assert "is new: it knows no earlier charge" in plan.out
    assert not (tmp_path / "ledger.db").exists()
    assert charge(willing, rows[:4]).code == 0
    before = willing.counts()
    plan = charge(willing, rows, "--dry-run", "--skip-bad", str(tmp_path / "bad.csv"))
    assert plan.code == 0
    for words in (
        "CSV with commas, UTF-8, amounts in cents", "rows 6 good", "customers 5; one of them has 2 charges",
        "ledger.db knows 4 rows: 4 accepted", "to send 2 charges; over in",
    ):  # fmt: skip
        assert words in plan.out
    assert willing.counts() == before
    assert not (tmp_path / "bad.csv").exists()
    # A run that has nothing left to send asks nothing.
    assert charge(willing, rows).code == 0


def test_a_dry_run_needs_no_service_and_takes_address_and_limits_from_the_profile(
    tmp_path: Path, capfd: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset has the address of the real service; what a profile forbids is an error of a row."""
    monkeypatch.delenv("PAYCLIENT_TOKEN")
    profile = tmp_path / "shop.toml"
    profile.write_text('name = "shop"\nbase_url = "https://pay.example"\n', encoding="utf-8")
    file = write_csv(tmp_path / "charges.csv", rows_of("where", 2))
    arguments = ["charge", str(file), "--dry-run", "--profile", str(profile), "--rate", "33.333333333333336"]
    assert main(arguments) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "to https://pay.example as shop" in out
    assert "token not told: set PAYCLIENT_TOKEN, or give --token-file" in out
    profile.write_text("[max_lengths]\nclient_transaction_id = 5\n")
    assert main(arguments) == 2
    assert "(2 rows), client_transaction_id: must be at most 5 characters" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        ("keep", ["--keep", "nombre"], "--keep nombre: charges.csv has no such column"),
        ("lost", ["--report", "report.csv"], "calls 3 rows paid or open that the ledger does not know"),
        ("token", ["--token-file", "empty"], "the token file"),
        ("taken", ["--skip-bad", "bad.csv"], "is there already, with other rows"),
        ("place", ["--report", "report.csv"], "--report report.csv: cannot be written: Permission denied"),
        ("consent", [], "is not there, and a new one knows no earlier charge"),
        ("moved", ["--base-url", "https://pay.example"], "this ledger was used with another service"),
        ("nowhere", ["--ledger", "sqlite:none/l.db"], "the ledger's directory does not exist"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(
    willing: Service, tmp_path: Path, what: str, options: list[str], said: str,
    capfd: Said, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the same words and the same exit code; neither sends or leaves a ledger behind."""
    monkeypatch.chdir(tmp_path)
    rows = rows_of(f"-alike-{what}", 3)  # a report defuses such an id
    if what == "taken":
        rows[2]["phone_number"] = ""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bad.csv").write_text("corrected by somebody\n")
    arguments = charge_arguments(willing, write_csv(tmp_path / "charges.csv", rows), *options)
    if what == "place":
        monkeypatch.setattr("os.access", lambda *_: False)  # whoever runs the tests may write anywhere
    if what == "consent":
        arguments.remove("--new-ledger")
    if what == "lost":
        assert main(arguments) == 0
        (tmp_path / "ledger.db").unlink()
    if what == "moved":
        assert main(charge_arguments(willing, tmp_path / "charges.csv")) == 0
    before = willing.counts()
    for dry in (["--dry-run"], []):
        capfd.readouterr()
        assert main([*arguments, *dry]) == 2
        assert said in " ".join(capfd.readouterr().err.split())
    assert willing.counts() == before
    assert (tmp_path / "ledger.db").exists() is (what == "moved")


def test_a_ledger_in_use_is_read_and_not_taken(tmp_path: Path, capfd: Said) -> None:
    """The plan of a file that is being charged does not disturb the run; another run leaves the report alone."""
    file, url = write_csv(tmp_path / "charges.csv", rows_of("busy", 2)), f"sqlite:{tmp_path / 'l.db'}"
    report = tmp_path / "report.csv"

    async def plan() -> int:
        book = await open_ledger(url)
        try:
            arguments = ["charge", str(file), "--base-url", "https://pay.example", "--ledger", url, "--yes"]
            assert await asyncio.to_thread(main, [*arguments, "--report", str(report)]) == 2
            assert "the ledger is in use by" in capfd.readouterr().err
            return await asyncio.to_thread(main, [*arguments, "--dry-run"])
        finally:
            await book.aclose()

    assert asyncio.run(plan()) == 0
    assert "knows none of the rows" in " ".join(capfd.readouterr().out.split())
    assert not report.exists()


def test_a_token_file(
    willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charge: Charge
) -> None:
    """By option or environment, before PAYCLIENT_TOKEN; a file that holds none is one line."""
    monkeypatch.setenv("PAYCLIENT_TOKEN", "another")
    token, rows = tmp_path / "token", rows_of("tokenfile", 2)
    token.write_text(f"{TOKEN}\n")
    assert charge(willing, rows, "--token-file", str(token)).code == 0
    monkeypatch.setenv("PAYCLIENT_TOKEN_FILE", str(token))
    token.write_text("Bearer secret-never-shown")
    ran = charge(willing, rows)
    assert "must be given without the word Bearer" in ran.err
    assert "secret-never-shown" not in ran.err
    token.unlink()
    assert "cannot be read: No such" in charge(willing, rows).err
    for name in ("PAYCLIENT_TOKEN_FILE", "PAYCLIENT_TOKEN"):
        monkeypatch.delenv(name)
    assert "set PAYCLIENT_TOKEN" in charge(willing, rows).err


@pytest.mark.parametrize(
    ("option", "name", "what"),
    [
        ("FILE", "odd.csv", "pipe"), ("FILE", "odd.csv", "device"), ("--report", "odd.csv", "pipe"),
        ("--html", "odd.html", "device"), ("--skip-bad", "odd.csv", "directory"), ("--token-file", "odd", "pipe"),
        ("--profile", "odd", "device"),
    ],
)  # fmt: skip
def test_a_pipe_or_a_device_is_refused(
    willing: Service, tmp_path: Path, option: str, name: str, what: str, charge: Charge
) -> None:
    """In one line, without waiting for somebody to write into it."""
    odd = tmp_path / name
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/full"), "directory": os.mkdir}[what](odd)
    rows = [*rows_of("odd", 1), rows_of("x", 1)[0] | {"currency": "usd"}]
    options = {"--skip-bad": str(tmp_path / "bad.csv"), option: str(odd)}
    file = Path(options.pop("FILE", write_csv(tmp_path / "charges.csv", rows)))
    ran = charge(willing, file, *itertools.chain(*options.items()))
    assert ran.code == 2
    assert "must be a regular file" in ran.err
    assert "Traceback" not in ran.err
    assert willing.truth("odd") == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--report", "--skip-bad"), ("--report", "FILE"), ("--skip-bad", "FILE"), ("--ledger", "FILE"),
        ("--report", "--token-file"),
    ],
)  # fmt: skip
def test_a_file_for_two_uses(
    willing: Service, tmp_path: Path, first: str, second: str, charge: Charge
) -> None:
    """Also by another name, and where it does not exist yet."""
    file, new = write_csv(tmp_path / "charges.csv", rows_of("twice-named", 2)), tmp_path / "new.csv"
    (tmp_path / "link.csv").symlink_to(file if second == "FILE" else new)
    options = [first, f"{'sqlite:' if first == '--ledger' else ''}{tmp_path / 'link.csv'}"]
    if second != "FILE":
        new.write_text(TOKEN)
        options += [second, str(new)]
    before = file.read_bytes()
    ran = charge(willing, file, *options)
    assert ran.code == 2
    assert "is the same file as" in ran.err
    assert file.read_bytes() == before
    assert willing.truth("twice-named") == {}


def test_files_are_their_owners(willing: Service, tmp_path: Path, charge: Charge) -> None:
    """Report and page name customers' orders: mode 0600, also where an earlier one was readable by all."""
    paths = tmp_path / "report.csv", tmp_path / "p.html"
    for _ in range(2):
        assert charge(willing, rows_of("mode", 2), "--html", str(paths[1])).code == 0
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600] * 2
        for path in paths:
            path.chmod(0o644)
