"""The report: true after every row, in the form of the user's own file; and the names on the page."""

import csv
import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import openpyxl
import pytest
from python_calamine import CalamineWorkbook

from cli_runs import (
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
from payclient.cli import main, plan, tables
from payclient.cli.page import RunPage
from payclient.cli.progress import next_steps
from payclient.cli.report import Carried, Line, Report, Tally
from payclient.cli.tables import Dialect, csv_line
from payclient.errors import ConfigurationError
from payclient.simulator import Fault
from postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("clean_environment")


CARRIED = Carried(names=("nombre",), rows={"row-1": (2, ("Ana",)), "row-2": (4, ("=Zoé",))})
LINES = [
    Line(client_transaction_id="row-1", amount=125050, currency="USD", state="accepted"),
    Line(client_transaction_id="row-2", amount=7, currency="USD", state="cancelled"),
]


def spanish(path: Path, *names: str, prefix: str, bad: bool = False) -> Path:
    """A file as a spreadsheet of a Spanish locale writes it, in Windows-1252."""
    lines = ["clave;teléfono;total;nombre;correo"]
    for number, name in enumerate(names):
        lines.append(f"{prefix}-{number};099100000{number};1.250,50;{name};{name}@correo.ec")
    if bad:
        lines.append(f"{prefix}-bad;;3,00;Beto;beto@correo.ec")
    path.write_bytes("\r\n".join([*lines, ""]).encode("cp1252"))
    return path


#: The columns of such a file, and what it lacks.
SPANISH = [
    "--key", "clave", "--map", "phone_number=telefono", "--map", "amount_without_tax=total", "--set",
    "country_code=593", "--set", "currency=USD", "--set", "store_id=S1", "--amounts", "decimal",
]  # fmt: skip


def test_a_csv_report_is_written_as_the_file_is(willing: Service, tmp_path: Path, charge: Charge) -> None:
    """Its delimiter, its decimal mark, a byte order mark for a spreadsheet; its lines and the columns to keep."""
    file = spanish(tmp_path / "c.csv", "Begoña", "Íñigo", prefix="own")
    options = [*SPANISH, "--ignore-rest", "--keep", "Nombre"]
    ran = charge(willing, file, *options)
    raw = (tmp_path / "report.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbfclient_transaction_id;line;Nombre;")
    assert [
        (row["line"], row["Nombre"], row["amount"], row["amount_units"]) for row in ran.report.values()
    ] == [
        ("2", "Begoña", "125050", "1250,50"),
        ("3", "Íñigo", "125050", "1250,50"),
    ]
    assert b"correo" not in raw
    again = charge(willing, file, *options)  # it is known as a report of ours
    other = charge(willing, file, *options, "--report-delimiter", "tab", "--report-decimal-mark", ".")
    assert ran.code == again.code == other.code == 0
    assert "\t125050\t1250.50\tUSD\t" in (tmp_path / "report.csv").read_text(encoding="utf-8-sig")


def test_another_files_report_is_replaced_with_a_word(
    willing: Service, tmp_path: Path, charge: Charge
) -> None:
    """In the plan, and with --yes in a line; nothing where the same file is charged again."""
    rows = rows_of("first", 3)
    assert charge(willing, rows).code == 0
    head = (tmp_path / "report.csv").read_bytes()
    assert head.startswith(b"client_transaction_id,line,"), "as the file: no byte order mark"
    assert "is replaced" not in charge(willing, rows).err
    words = "tells of 2 rows that this file lacks, and is replaced"
    assert words in charge(willing, rows[:1], "--dry-run").out
    assert words in charge(willing, rows[:1]).err


@pytest.mark.parametrize(
    ("options", "begin", "units", "balance"),
    [
        ("--language es", "client_transaction_id;line;saldo;", ";12,50;", ";0,5;"),
        ("--language en", "client_transaction_id,line,saldo,", ",12.50,", ",0.5,"),
        ("--language es --decimal-mark .", "client_transaction_id,line,saldo,", ",12.50,", ",0.5,"),
        ("--language es --report-delimiter ,", "client_transaction_id,line,", ',"12,50",', ',"0,5",'),
    ],
)
def test_a_csv_from_a_spreadsheet_is_as_its_reader_opens_it(
    willing: Service, tmp_path: Path, charge: Charge, options: str, begin: str, units: str, balance: str
) -> None:
    """A spreadsheet in Spanish parts cells by `;` and takes 0.5 for a date: the report, and the rows left out."""
    key = options.replace("-", "").replace(" ", "")  # each case's own
    book = openpyxl.Workbook()
    book.active.append(["clave", "telefono", "total", "saldo"])
    book.active.append([key, "0991000001", 12.5, 0.5])
    book.active.append(["x-2", "", 1, 0.5])
    file, bad = tmp_path / "c.xlsx", tmp_path / "bad.csv"
    book.save(file)
    assert (
        charge(willing, file, *SPANISH, "--keep", "saldo", "--skip-bad", str(bad), *options.split()).code == 0
    )
    text = (tmp_path / "report.csv").read_text(encoding="utf-8-sig")
    assert text.startswith(begin)
    assert units in text
    assert balance in text
    assert balance.strip('"')[:-1] in bad.read_text(encoding="utf-8-sig").replace(key, "")


@pytest.mark.parametrize("delimiter", [":", " ", "a", "_", "'", "ñ"])
def test_a_report_of_any_delimiter_is_known_again(tmp_path: Path, delimiter: str) -> None:
    """After a kill the same command goes on with it, also where another delimiter is given now."""
    path = tmp_path / "r.csv"
    Report(path, attrs.evolve(CARRIED, dialect=Dialect(delimiter=delimiter, bom=True))).begin(LINES)
    assert [*Report(path, CARRIED).earlier] == ["row-1", "row-2"]


@pytest.mark.parametrize("word", ["FALSE", "FALSO"])
def test_a_report_that_a_spreadsheet_saved_still_says_who_did_not_pay(tmp_path: Path, word: str) -> None:
    """Else a new id for a cancelled row would be refused, with words that the report calls it paid or open."""
    path = tmp_path / "r.csv"
    Report(path, CARRIED).begin(LINES)
    path.write_text(path.read_text().replace("false", word).replace("true", "VERDADERO"))
    assert Report(path, CARRIED).earlier == {"row-1": (2, 125050, "USD"), "row-2": None}


@pytest.mark.parametrize("option", ["--delimiter", "--report-delimiter"])
@pytest.mark.parametrize("given", ["ab", '"', "\n", ""])
def test_a_delimiter_is_one_character(tmp_path: Path, option: str, given: str, capfd: Said) -> None:
    """Of the file and of the report; a quote or the end of a line is none."""
    file = write_csv(tmp_path / "c.csv", rows_of("delimiter", 1))
    assert main(["charge", str(file), "--dry-run", option, given]) == 2
    assert "the delimiter must be one character" in capfd.readouterr().err


def test_a_spreadsheet_holds_numbers_and_texts(tmp_path: Path) -> None:
    """Amounts in units are numbers, ids are texts, and what begins with = is a text. An earlier one stands until the
    end, so that a run that is killed leaves it whole.
    """
    path = tmp_path / "r.xlsx"
    report = Report(path, CARRIED)
    report.begin(LINES[:1])
    report.write(LINES[1])
    assert len(CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python()) == 2
    report.rewrite(LINES)
    sheet = openpyxl.load_workbook(path).active
    names, *rows = sheet.iter_rows()
    found = [{name.value: cell for name, cell in zip(names, row, strict=True)} for row in rows]
    assert [row["nombre"].value for row in found] == ["Ana", "=Zoé"]
    assert [row["nombre"].data_type for row in found] == ["s", "s"]
    assert [row["amount_units"].value for row in found] == [1250.5, 0.07]
    assert [(row["paid"].value, row["line"].value) for row in found] == [(True, 2), (False, 4)]
    before, again = path.read_bytes(), Report(path, CARRIED)
    assert again.earlier == {"row-1": (2, 125050, "USD"), "row-2": None}
    again.begin(LINES[:1])
    again.write(LINES[1])
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["r.xlsx"]


def test_only_a_report_is_replaced(willing: Service, tmp_path: Path, charge: Charge) -> None:
    """Neither somebody's own file, nor the rows themselves, nor what has another ending or no folder."""
    book = openpyxl.Workbook()
    book.active.append(["name", "phone"])
    book.save(tmp_path / "mine.xlsx")
    for name in ("mine.csv", "mine.jsonl", "text.xlsx"):
        (tmp_path / name).write_text("name,phone\nAna,0991\n")
    write_csv(tmp_path / "charges.csv", rows_of("alone", 1))
    for name in ("mine.csv", "mine.jsonl", "mine.xlsx", "text.xlsx", "charges.csv", "r.xls", "no/r.csv"):
        path = tmp_path / name
        before = path.exists() and path.read_bytes()
        ran = charge(willing, tmp_path / "charges.csv", "--report", str(path))
        assert ran.code == 2
        assert (path.exists() and path.read_bytes()) == before
        assert ("is not a report" in ran.err) is name.startswith(("mine", "text"))
    assert willing.truth("alone-") == {}


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl"])
def test_a_report_that_is_deleted_meanwhile_is_a_report_again(tmp_path: Path, name: str) -> None:
    """It had no header: after a SIGKILL the same command called it no report, and went on no more."""
    report = Report(tmp_path / name)
    report.begin(LINES[:1])
    report.path.unlink()
    report.write(LINES[1])
    assert [*Report(report.path).earlier] == ["row-2"]


def test_a_file_that_a_kill_left_behind_stops_no_later_run(tmp_path: Path) -> None:
    """In a container each run is process 1, and finds the unfinished file of the one before under its own number."""
    (tmp_path / f".r.csv.{os.getpid()}").write_text("cut")
    Report(tmp_path / "r.csv").begin(LINES)
    assert list(read_report(tmp_path / "r.csv")) == ["row-1", "row-2"]


def test_a_column_of_a_charge_can_be_kept(willing: Service, charge: Charge) -> None:
    """It is read as ever; one named as a column of the report has another name there."""
    (line,) = charge(
        willing, rows_of("both", 1), "--keep", "phone_number", "--keep", "currency"
    ).report.values()
    assert line["phone_number"].startswith("09")
    assert line["currency (file)"] == line["currency"]


def test_the_page_names_who_did_not_pay_and_what_was_left_out(tmp_path: Path) -> None:
    """By line and by the columns to keep; those who paid are not named."""
    left_out = [(n, (f"Beto {n}",), "phone_number: must be given") for n in range(9, 14)]
    carried = Carried(names=CARRIED.names, rows=CARRIED.rows, left_out=left_out)
    page = RunPage(tmp_path / "r.html", title="c.csv", window=300, carried=carried)
    page.write(LINES, Tally(LINES), total=2, code=3)
    text = " ".join((tmp_path / "r.html").read_text().split())
    assert "=Zoé" in text
    assert "Ana" not in text
    for words in ("Rows left out: 5", "Beto 13", "phone_number: must be given", "These did not pay"):
        assert words in text


def test_no_phone_and_no_address_is_in_what_a_run_leaves(
    willing: Service, tmp_path: Path, charge: Charge
) -> None:
    """Unless it was asked for, not even of rows that are left out."""
    file, page = spanish(tmp_path / "c.csv", "Ana", prefix="shy", bad=True), tmp_path / "r.html"
    more = ["--ignore-rest", "--keep", "nombre", "--html", str(page)]
    assert charge(willing, file, *SPANISH, *more, "--skip-bad", str(tmp_path / "bad.csv")).code == 0
    for path in (tmp_path / "report.csv", page):
        text = path.read_text(encoding="utf-8-sig")
        assert "correo" not in text
        assert "09910" not in text
    assert "Beto" in page.read_text()


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl", "r.xlsx"])
def test_a_report_that_knows_the_rows_by_other_ids_is_a_refusal(
    willing: Service, tmp_path: Path, charge: Charge, name: str
) -> None:
    """They are of another column now: what was paid would be charged again. Another amount is another charge."""
    rows = [row | {"invoice": f"o-{name}-{n}"} for n, row in enumerate(rows_of(f"by-{name}", 3))]
    options = ["--report", str(tmp_path / name), "--ignore-rest"]
    by_invoice = [*options, "--key", "invoice"]
    assert charge(willing, rows, *options).code == 0
    before, report = willing.counts(), (tmp_path / name).read_bytes()
    ran = charge(willing, rows, *by_invoice)
    assert ran.code == 2
    assert f"calls 3 rows paid or open that are in the file under other ids (o-{name}-0," in ran.err
    assert "is replaced" not in ran.err
    assert (willing.counts(), (tmp_path / name).read_bytes()) == (before, report)
    assert charge(willing, [row | {"amount_with_tax": 7000} for row in rows], *by_invoice).code == 0


def test_a_report_that_knows_the_customers_by_other_ids_is_a_refusal(
    willing: Service, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none is on its line any more. In a report of its own, or some days later, it is another charge."""
    rows = rows_of("renumbered", 3)
    assert charge(willing, rows[1:]).code == 0
    before = willing.counts()
    renamed = [row | {"client_transaction_id": f"2-{row['client_transaction_id']}"} for row in rows]
    ran = charge(willing, renamed)
    assert ran.code == 2
    assert "calls 2 rows paid or open that are in the file under other ids (2-renumbered-1, 2-" in ran.err
    assert willing.counts() == before
    assert charge(willing, renamed, "--report", str(ran.folder / "another.csv")).code == 0
    monkeypatch.setattr(plan, "RECENT", -1.0)
    later = [row | {"client_transaction_id": f"3-{row['client_transaction_id']}"} for row in rows]
    assert charge(willing, later).code == 0


def test_a_row_that_the_report_has_as_not_sent_is_charged(willing: Service, charge: Charge) -> None:
    """It is another charge of the same customer and amount; the one that is paid was deleted from the file."""
    [row] = rows_of("unsent", 1)
    first = charge(willing, [row])
    [line] = first.report.values()
    with (first.folder / "report.csv").open("a", newline="") as report:
        unsent = {"client_transaction_id": "unsent-1", "line": 3, "amount": line["amount"], "currency": "EUR"}
        csv.DictWriter(report, list(line), restval="").writerow(unsent)
    assert charge(willing, [row | {"client_transaction_id": "unsent-1"}]).code == 0


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("0017", "17"), ("18", "0018"), ("21", "21.0"), ("22,00", "22"), ("2023", "2.023,00"),
        ("2,024", "2024"), ("025", "25.00"), ("+26", "26"), ("27", "+27"), ("+28", "'+28"),
    ],
)  # fmt: skip
def test_an_id_that_is_written_as_a_number_is_refused(
    willing: Service, charge: Charge, first: str, then: str
) -> None:
    """A spreadsheet, a program or a column's format writes the same number: what was paid would be charged again."""
    row = rows_of("number", 1)[0] | {"phone_number": f"09771{re.sub('[^0-9]', '', first):0>5}"}
    assert charge(willing, [row | {"client_transaction_id": first}]).code == 0
    before = willing.counts()
    ran = charge(willing, [row | {"client_transaction_id": then}])
    assert ran.code == 2
    said = f"1 ids are in the ledger with other zeros or marks ({then}: {first})"
    assert said in ran.err
    # The ledger is not called another one where the spreadsheet has saved the report, too.
    report = ran.folder / "report.csv"
    report.write_text(report.read_text().replace(first, then, 1))
    assert said in charge(willing, [row | {"client_transaction_id": then}]).err
    assert willing.counts() == before


def test_a_paid_row_whose_purchase_changed_in_the_file_holds_up_the_others(
    willing: Service, charge: Charge
) -> None:
    """Its column was added or lost: the ledger has the payment for another purchase, and would call this one free."""
    rows = rows_of("changed", 5)
    first, second, third, *lost = rows
    of_order = {"purchase": "order-9"}
    assert charge(willing, [first]).code == 0
    ran = charge(willing, [first | of_order, second | of_order, third | {"purchase": "order-8"}])
    assert ran.code == 2
    assert "for other purchases than the file gives them (changed-0: changed-0)" in ran.err
    kept = {"purchase": "changed-0"}
    assert charge(willing, [first | kept, second | kept, third | {"purchase": "order-8"}]).code == 3
    assert charge(willing, [row | {"purchase": "order-7"} for row in lost]).code == 3
    for other in (lost, [row | {"purchase": f"line-{number}"} for number, row in enumerate(lost)]):
        ran = charge(willing, other)
        assert ran.code == 2
        assert (
            "1 rows were charged for other purchases than the file gives them (changed-3: order-7)" in ran.err
        )
    assert sorted(willing.truth("changed-")) == ["changed-0", "changed-2", "changed-3"]


def test_rows_whose_purchases_changed_are_counted_in_the_plan_and_shown_where_nothing_is_sent(
    willing: Service, charge: Charge
) -> None:
    rows = rows_of("finished", 4)
    assert willing.simulator is not None
    willing.simulator.fail_next(Fault("refuse", error_code=22, client_transaction_id="finished-2"))
    assert charge(willing, [row | {"purchase": f"order-{n}"} for n, row in enumerate(rows[:3])]).code == 3
    dry = charge(willing, rows, "--dry-run")
    assert dry.code == 2
    assert "2 rows were charged for other purchases than the file gives them" in dry.err
    assert "4 good" in dry.out
    assert charge(willing, rows[:3]).code == 3


def test_a_purchase_that_is_written_as_a_number_is_refused(willing: Service, charge: Charge) -> None:
    """To ask again, its first id is copied into that column, and a spreadsheet drops the zeros in front."""
    row = rows_of("bought", 1)[0]
    assert charge(willing, [row | {"client_transaction_id": "0017001"}]).code == 0
    again = row | {"client_transaction_id": "bought-again", "amount_with_tax": 2000}
    ran = charge(willing, [again | {"purchase": "17001"}])
    assert ran.code == 2
    assert "1 ids are in the ledger with other zeros or marks (17001: 0017001)" in ran.err
    assert charge(willing, [again | {"purchase": "0017001"}]).code == 3
    assert willing.truth("bought-") == {}


def test_a_purchase_that_another_file_writes_as_another_number_is_refused(
    willing: Service, charge: Charge
) -> None:
    """The file of the bad rows, as a spreadsheet saved it: the order was collected by a good row."""
    good, bad = rows_of("order-of", 2)
    assert charge(willing, [good | {"purchase": "0017002"}]).code == 0
    ran = charge(willing, [bad | {"purchase": "17002"}])
    assert ran.code == 2
    assert "1 ids are in the ledger with other zeros or marks (17002: 0017002)" in ran.err
    assert sorted(willing.truth("order-of-")) == ["order-of-0"]


@pytest.mark.parametrize(
    ("first", "then", "moved"),
    [("123", "0123", True), ("01 2", "132", True), ("012", "1 2", False)],
    ids=["inserted", "deleted", "deleted-and-all-sent"],
)
def test_ids_that_moved_to_other_rows_are_refused(
    willing: Service, charge: Charge, first: str, then: str, moved: bool
) -> None:
    """They number the lines, and a line was inserted or deleted: who has paid would be charged by a new id."""

    def numbered(customers: str) -> list[dict[str, Any]]:
        rows = rows_of(first, 4)
        ids = [(f"line-{number}", each) for number, each in enumerate(customers) if each != " "]
        return [rows[int(each)] | {"client_transaction_id": f"{first}{key}"} for key, each in ids]

    assert charge(willing, numbered(first)).code == 0
    before = willing.counts()
    ran = charge(willing, numbered(then))
    assert ran.code == (2 if moved else 4)
    words = f" rows are in the ledger under ids that other rows of the file have now ({first}line-"
    assert (words in ran.err) == moved
    assert willing.counts() == before


def test_an_id_whose_text_changed_has_not_moved(willing: Service, charge: Charge) -> None:
    """Another charge of the same customer and amount is one of its own."""
    first, second = [
        rows_of("text", 1)[0] | {"client_transaction_id": f"text-{n}", "reference": ""} for n in "12"
    ]
    assert charge(willing, [first]).code == 0
    assert charge(willing, [first | {"reference": "new"}, second]).code == 4
    assert willing.truth("text-") == {"text-1": "approved", "text-2": "approved"}


def test_a_report_ends_with_the_ledgers_word(
    postgres: PostgresServer, database: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A row that was refused on this host, and that another charged meanwhile, is paid at the end."""
    rows, report, ledger = rows_of("word", 2), tmp_path / "r.csv", postgres.url(database)
    both, one = write_csv(tmp_path / "both.csv", rows), write_csv(tmp_path / "one.csv", rows[:1])
    with crowd(tmp_path_factory, "ignore=1", window=120) as service, ThreadPoolExecutor() as other_host:
        assert service.simulator is not None
        service.simulator.fail_next(Fault("refuse", error_code=22, client_transaction_id="word-0"))
        with start(charge_arguments(service, both, "--report", str(report), "--ledger", ledger)) as first:
            wait_until(lambda: report.exists() and "refused" in report.read_text())
            again = charge_arguments(service, one, "--retry", "refused", "--ledger", ledger)
            second = other_host.submit(main, again)
            wait_until(lambda: service.truth("word-0").keys() == {"word-0"})
            service.simulator.approve("word-0")
            assert second.result(60) == 0
            assert read_report(report)["word-0"]["state"] == "refused"
            service.simulator.reject("word-1")
            first.communicate(timeout=60)
    lines = read_report(report)
    assert list(lines) == ["word-0", "word-1"]
    assert (lines["word-0"]["state"], lines["word-0"]["paid"]) == ("accepted", "true")
    assert lines["word-1"]["state"] == "cancelled"
    assert first.returncode == 3


def test_a_row_charged_with_other_content_is_called_so(
    willing: Service, tmp_path: Path, charge: Charge
) -> None:
    """Not "never sent": the id is paid, with another amount, and the page and the table say it."""
    rows, page = rows_of("content", 2), tmp_path / "p.html"
    assert charge(willing, rows).code == 0
    (tmp_path / "report.csv").unlink()
    rows[0]["amount_with_tax"] = 7
    plan = charge(willing, rows, "--dry-run")
    assert plan.code == 0
    assert "knows 2 rows: 1 accepted, 1 other content" in plan.out
    assert "changed 1 row with an id that was used with other content" in plan.out
    assert "nothing is sent: content-0" in plan.out
    ran = charge(willing, rows, "--html", str(page))
    assert ran.code == 4
    assert "other content" in ran.out
    assert "not sent yet" not in ran.out
    assert re.search(
        r"to do: 1 row with an id .* payclient ledger show ID --ledger sqlite:.*ledger\.db", ran.err
    )
    line = ran.report["content-0"]
    assert (line["state"], line["paid"], line["amount"]) == ("", "", "157")
    assert "with other content and accepted" in line["message"]
    assert "Other content: 1" in page.read_text()
    assert willing.counts()["duplicates"] == {}


# --- The file


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        *((each, f"'{each}") for each in ("=1+1", "+593", "-1", "@x", "\tx", "\rx", "\nx")),
        ("x\t=1", "x\t'=1"), ("x;=1;y", "x;'=1;y"), ("x\n@a", "x\n'@a"), ("a-b=c", "a-b=c"), ("x;y", "x;y"),
        ("x; -1", "x;' -1"), ("=1;=2", "'=1;'=2"), ("x,=cmd|'A'!A0,y", "x,'=cmd|'A'!A0,y"), ("1,5", "1,5"),
    ],
)  # fmt: skip
def test_a_formula_inside_a_cell_is_defused(cell: str, safe: str) -> None:
    """What parts cells or rows in some locale begins a formula, too."""
    line = csv_line([cell], Dialect(delimiter=";")).decode()
    assert [*csv.reader(io.StringIO(line, newline=""), delimiter=";")] == [[safe]]


@pytest.mark.parametrize("cell", ["Cuota 1, -5%", "ana@x.example, @eva", "x,=1"])
def test_a_cell_with_a_comma_stays_as_it_is_in_a_file_of_commas(cell: str) -> None:
    """Such a cell is quoted there, so that no spreadsheet parts it."""
    assert csv_line([cell]).decode() == f'"{cell}"\r\n'


def test_a_report_begins_with_the_lines_that_it_is_given(tmp_path: Path) -> None:
    """What an earlier run wrote is replaced in one step, and each new line is in the file once it is written. A line
    that a crash cut counts as absent; where no file can be made, it is said before anything is sent.
    """
    path, other = tmp_path / "r.csv", attrs.evolve(LINES[0], client_transaction_id="order-2")
    for _ in range(2):
        report = Report(path)
        report.begin(LINES[:1])
        assert list(read_report(path)) == ["row-1"]
        report.write(other)
        assert list(read_report(path)) == ["row-1", "order-2"]
        report.rewrite([LINES[0], attrs.evolve(other, state="cancelled")])
        assert read_report(path)["order-2"]["state"] == "cancelled"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.csv"]
    Report(tmp_path / "r.jsonl").begin(
        [*LINES, attrs.evolve(LINES[1], client_transaction_id="x", state="pending")]
    )
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"client_transaction_id": "order-2", "state": "acc')
    found = {"row-1": (None, 125050, "USD"), "row-2": None, "x": (None, 7, "USD")}
    assert Report(tmp_path / "r.jsonl").earlier == found, "what is paid, or may be, has its place"
    (tmp_path / "there").mkdir()
    lost = Report(tmp_path / "there" / "r.xlsx", CARRIED)
    (tmp_path / "there").rmdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        lost.begin()


def test_a_report_whose_last_row_was_cut_is_read_without_it(tmp_path: Path) -> None:
    """As by a crash; and a text that no file takes is written all the same."""
    report = tmp_path / "report.csv"
    report.write_text("client_transaction_id,state,paid\na,accepted,true\nb,acc")
    assert [row["client_transaction_id"] for row in tables.read_report(report, "state", "paid")] == ["a"]
    assert tables.row_bytes(".jsonl", {"message": "\udce9"}) == b'{"message": "?"}\n'


def test_what_was_refused_for_the_moment_is_sent_by_the_same_command() -> None:
    """And not by --retry refused, which tries again what the service would refuse again."""
    facts: dict[str, Any] = {"amount": 7, "currency": "USD", "state": "refused", "evidence": "answer"}
    for passes in (True, False):
        tally = Tally([Line(client_transaction_id="row-1", passes=passes, **facts)])
        (step,) = next_steps(tally, "sqlite:charges.db", 3, 300.0)
        assert ("--retry refused" in step) is not passes


def test_a_row_that_is_being_given_back_is_told_to_people(tmp_path: Path) -> None:
    """Nobody knows whether it is paid: the run says what to do, and the page names the row."""
    line = Line(client_transaction_id="row-1", amount=7, currency="USD", state="reversing")
    tally, page = Tally([line]), RunPage(tmp_path / "r.html", title="c.csv", window=300)
    assert tally.exit_code == 4
    (step,) = next_steps(tally, "sqlite:charges.db", 4, 300.0)
    assert step.startswith("to do: 1 row not finished; run again: ")
    page.write([line], tally, total=1, code=4)
    text = " ".join((tmp_path / "r.html").read_text(encoding="utf-8").split())
    assert "1 row needs a person." in text
    assert "A request to give these back has no answer yet." in text


def test_a_run_is_shown_in_one_way(tmp_path: Path, capfd: Said) -> None:
    """Nothing, or objects for a machine."""
    file = write_csv(tmp_path / "rows.csv", rows_of("quiet", 1))
    assert main(["charge", str(file), "--dry-run", "--quiet", "--json"]) == 2
    assert "--quiet and --json: give one of them" in capfd.readouterr().err
