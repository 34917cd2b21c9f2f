"""Files as spreadsheets write them: what is found, what is told, and what is never guessed."""

import contextlib
import datetime
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.rows import read_file
from payclient.rows.cells import AMBIGUOUS, cents_of, mark_of
from payclient.rows.format import Format

SAMPLE = Path(__file__).parent / "samples" / "charges-spreadsheet.csv"
SPANISH = {
    "phone_number": "telefono",
    "country_code": "pais",
    "amount_without_tax": "base 0%",
    "amountWithTax": "base gravada",
    "tax": "IVA",
    "amount": "total",
    "currency": "moneda",
    "reference": "referencia",
}
HEADER = "phone_number,country_code,currency,amount_without_tax,client_transaction_id"
SAMPLE_FORM = Format(columns=SPANISH | {"client_transaction_id": "clave"}, amounts="decimal")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(*amounts: str, delimiter: str = ";") -> str:
    """A file of these amounts, with a customer for each."""
    lines = [HEADER.replace(",", delimiter)]
    lines += [
        delimiter.join((f"09911122{number:02}", "593", "USD", amount, f"row-{number}"))
        for number, amount in enumerate(amounts)
    ]
    return "\n".join(lines) + "\n"


def amounts_of(path: Path, **options: Any) -> list[int | None]:
    form = Format(amounts="decimal", **options)
    return [None if row.request is None else row.request.amount for row in read_file(path, form).rows]


# --- The sample


def test_each_row_of_the_sample_gets_its_verdict() -> None:
    """Two can be sent; the others are refused, each for what a spreadsheet or a person did to it."""
    file = read_file(SAMPLE, SAMPLE_FORM)
    errors = {error.line: (error.column, error.reason.split(":")[0].split(",")[0]) for error in file.errors}
    assert len(errors) == len(file.errors)
    good = {request.client_transaction_id: request for request in file.requests}
    assert [row.line for row in file.rows if not row.errors] == [2, 5]
    assert errors == {
        3: ("telefono", "is a number as a spreadsheet shortens it"),
        4: ("telefono", "has 9 digits"),
        6: ("total", "is 1 cent less than the sum of its parts"),
        7: ("clave", "is the same as in line 8"),
        8: ("clave", "is the same as in line 7"),
        9: ("referencia", "is a formula; its value is needed"),
        10: ("telefono", "is required"),
        11: ("moneda", "is three capital letters (ISO 4217)"),
    }
    assert good.keys() == {"2026-0001", "2026-0004"}
    assert (good["2026-0001"].amount, good["2026-0001"].reference) == (315, "Matrícula Ñandú")
    assert good["2026-0004"].amount_without_tax == 125050
    assert file.description == "CSV with semicolons, Windows-1252, decimal comma"
    assert (len(file.rows), len(file.bad), file.totals) == (10, 8, {"USD": (2, 125365)})


# --- Amounts


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("1.250,50", ","),
        ("1,250.50", "."),
        ("10,5", ","),
        ("10.50", "."),
        ("1.000.000", ","),
        ("1,000,000", "."),
        ("1 250,50", ","),
        ("0,150", ","),
        ("1,0000", ","),
        ("1,000", AMBIGUOUS),
        ("1.000", AMBIGUOUS),
        ("1000", None),
        ("1.2.3", None),
        ("-5,00", None),
        ("$5.00", None),
        ("", None),
    ],
)
def test_a_value_proves_its_mark_or_does_not(text: str, mark: str | None) -> None:
    assert mark_of(text) == mark


@given(
    cents=st.integers(0, 10**13), mark=st.sampled_from(",."), group=st.sampled_from(["", "other", " ", "'"])
)
def test_every_amount_is_read_as_it_was_written(cents: int, mark: str, group: str) -> None:
    """And what is written with two decimals proves its own mark."""
    group = {"other": "." if mark == "," else ","}.get(group, group)
    text = f"{cents // 100:,}".replace(",", group) + f"{mark}{cents % 100:02}"
    assert cents_of(text, mark) == cents
    assert mark_of(text) == mark


@given(text=st.text("0123456789.,' -", max_size=12))
def test_no_amount_has_two_meanings(text: str) -> None:
    """A value that both marks read as money is ambiguous, unless it has no mark at all."""
    read = set()
    for mark in ",.":
        with contextlib.suppress(ValueError):
            read.add(cents_of(text, mark))
    assert len(read) < 2
    if mark_of(text) in (",", "."):
        other = "," if mark_of(text) == "." else "."
        with pytest.raises(ValueError, match="amount"):
            cents_of(text, other)


def test_the_mark_is_found_in_the_file(write: Write) -> None:
    """One amount that proves it speaks for those that prove nothing."""
    assert amounts_of(write(rows("1.000", "7", "10,50"))) == [100000, 700, 1050]
    assert amounts_of(write(rows("1,000", "7", "10.50"))) == [100000, 700, 1050]
    assert amounts_of(write(rows("5", "12"))) == [500, 1200]


def test_a_file_that_proves_no_mark_asks_for_it(write: Write) -> None:
    """One or one thousand: nothing is guessed."""
    path = write(rows("1,000", "2,500", "7"))
    with pytest.raises(InvalidRequestError, match="give --decimal-mark"):
        amounts_of(path)
    assert amounts_of(path, decimal_mark=".") == [100000, 250000, 700]
    assert amounts_of(path, decimal_mark=",") == [None, None, 700]


def test_a_file_with_two_marks_is_not_sent(write: Write) -> None:
    """Also not without the rows that contradict: those that prove nothing may be read either way."""
    path = write(rows("1.000", "10,50", "10.50"))
    with pytest.raises(InvalidRequestError, match="a decimal comma and others a decimal point"):
        amounts_of(path)
    assert amounts_of(path, decimal_mark=",") == [100000, 1050, None]


def test_amounts_of_json_are_cents(write: Write) -> None:
    with pytest.raises(InvalidRequestError, match="must be whole cents"):
        amounts_of(write('{"tip": 10.5}', "rows.jsonl"))


# --- Columns


def test_constants_fill_every_row(write: Write) -> None:
    """A field that is a constant and a column at once is a clear error, and so is a constant that cannot be."""
    path = write("phone_number,tip,client_transaction_id\n0991112223,5,a\n")
    form = Format(constants={"currency": "USD", "countryCode": "593", "amountWithTax": "1000"})
    (row,) = read_file(path, form).rows
    assert row.request is not None
    assert (row.request.currency, row.request.amount) == ("USD", 1005)
    with pytest.raises(InvalidRequestError, match="tip is a column, and --set gives it as well"):
        read_file(path, Format(constants={"currency": "USD", "country_code": "593", "tip": "1"}))
    with pytest.raises(ConfigurationError, match="--set tax: must be whole cents"):
        read_file(path, Format(constants={"currency": "USD", "country_code": "593", "tax": "1.5"}))
    path = write(
        '{"phone_number": "1", "tip": 5, "client_transaction_id": "a", "currency": "EUR"}', "r.jsonl"
    )
    (row,) = read_file(path, Format(constants={"currency": "USD", "country_code": "593"})).rows
    assert list(map(str, row.errors)) == ["line 1: currency is a column, and --set gives it as well"]


def test_mapped_and_ignored_columns(write: Write) -> None:
    """A mapped column that is not there is named; one that is not known is refused unless it is ignored."""
    text = "tel;pais;cur;tip;clave;nota interna\n0991112223;593;USD;5;a;x\n"
    columns = {
        "phone_number": "tel",
        "country_code": "pais",
        "currency": "cur",
        "client_transaction_id": "clave",
    }
    with pytest.raises(InvalidRequestError, match="column 6 has no known name"):
        read_file(write(text), Format(columns=columns))
    (row,) = read_file(write(text), Format(columns=columns, ignored=frozenset({"nota interna"}))).rows
    assert row.key == "a"
    with pytest.raises(InvalidRequestError, match="there is no column movil"):
        read_file(write(text), Format(columns=columns | {"reference": "movil"}))
    path = write('{"tel": "1", "pais": "593", "cur": "USD", "tip": 5, "clave": "a", "x": 1}', "r.jsonl")
    (row,) = read_file(path, Format(columns=columns, ignored=frozenset({"x"}))).rows
    assert row.request is not None


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {"phone": "x"}},
        {"columns": {"phone_number": "x", "phoneNumber": "y"}},
        {"constants": {"order": "x"}},
        {"delimiter": ";;"},
        {"delimiter": '"'},
        {"encoding": "base64"},
        {"encoding": "utf-32"},
        {"encoding": "nothing"},
        {"decimal_mark": ","},
    ],
)
def test_what_cannot_be_told_of_a_file(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Format(**options)


# --- Encodings and delimiters


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-be", "utf-16-le"])
def test_encoding_and_delimiter_are_found(write: Write, encoding: str, delimiter: str) -> None:
    """The two without a mark of UTF-16 are told; a line break and a wide character's bytes stand in a cell."""
    reference = "Ñandú Ċ\nਊ" if encoding.startswith("utf") else "Ñandú ¿sí? 5 €\n"
    text = f"{HEADER},reference\n0991112223,593,USD,5,a,X\n0991112224,593,USD,5,b,last\n"
    text = text.replace(",", delimiter).replace("X", f'"{reference}"').replace("\n", "\r\n")
    told = encoding if encoding[-3:] in ("-be", "-le") else None
    found = read_file(write(text.encode(encoding)), Format(encoding=told)).rows
    assert [row.line for row in found] == [2, 4]
    assert [str(fault) for row in found for fault in row.errors if "control" not in fault.reason] == []
    assert found[1].request is not None


def test_what_is_neither_is_asked_for(write: Write) -> None:
    """An old code page's accents are no Windows-1252: nothing is guessed, and it may be told."""
    path = write(f"{HEADER},reference\n1,593,USD,5,a,García Muñoz\n".encode("cp850"))
    with pytest.raises(InvalidRequestError, match="give --encoding"):
        read_file(path)
    (row,) = read_file(path, Format(encoding="cp850")).rows
    assert row.request is not None
    assert row.request.reference == "García Muñoz"
    (row,) = read_file(path, Format(encoding="utf-8")).rows
    assert "is not of the file's encoding" in str(row.errors[0])


def test_excels_own_line_of_the_delimiter(write: Write) -> None:
    """`sep=;` before the header; the lines are counted with it."""
    (row,) = read_file(write("sep=;\n" + rows("5"))).rows
    assert row.line == 3
    assert row.request is not None


def test_a_line_without_an_end_is_a_bad_row(write: Write) -> None:
    """A cell of a megabyte is not read."""
    (row,) = read_file(write(rows("5").split("\n")[0] + "\n" + "x" * 2**20)).rows
    assert row.request is None


# --- What spreadsheets do to cells


@pytest.mark.parametrize(
    ("field", "cell", "said"),
    [
        ("reference", "=SUM(A1:A3)", "is a formula"),
        ("reference", "+SUM(A1)", "is a formula"),
        ("reference", "@cmd(1)", "is a formula"),
        ("reference", "#REF!", "is an error of the spreadsheet"),
        ("reference", "#¿NOMBRE?", "is an error of the spreadsheet"),
        ("reference", "#N/A", "is an error of the spreadsheet"),
        ("reference", "lost \N{REPLACEMENT CHARACTER}", "has a character that was lost"),
        ("store_id", "5.9E+11", "is a number as a spreadsheet shortens it"),
        ("client_transaction_id", "2,026E+11", "is a number as a spreadsheet shortens it"),
        ("phone_number", "984111222.0", "ends in .0"),
        ("reference", "-10% today", None),
        ("reference", "+593 bonus", None),
        ("reference", "#17", None),
        ("client_transaction_id", "12E5", None),
    ],
)
def test_what_a_spreadsheet_made_of_a_cell(write: Write, field: str, cell: str, said: str | None) -> None:
    """Of CSV and of JSON alike; what people write is left alone."""
    values = {
        "phone_number": "0991112223", "country_code": "593", "currency": "USD", "client_transaction_id": "a",
        "reference": "r", "store_id": "S1", field: cell,
    }  # fmt: skip
    text = ";".join([*values, "tip"]) + "\n" + ";".join([*values.values(), "5"]) + "\n"
    for path in (write(text), write(json.dumps(values | {"tip": 5}), "rows.jsonl")):
        (row,) = read_file(path).rows
        assert (row.request is None) == (said is not None)
        assert said is None or said in str(row.errors[0])


def test_a_lost_zero_is_seen_by_its_neighbours(write: Write) -> None:
    """Only where others of the same country begin with one and are a digit longer."""
    lines = [
        "0991112223,593,USD,5,a",
        "991112224,593,USD,5,b",
        "991112225,51,USD,5,c",
        "99111222,593,USD,5,d",
    ]
    file = read_file(write("\n".join([HEADER, *lines])))
    assert [error.line for error in file.errors] == [3]
    assert (file.totals, len(file.lanes)) == ({"USD": (3, 15)}, 3)


def test_a_column_without_a_name_holds_nothing(write: Write) -> None:
    """A trailing delimiter is a spreadsheet's habit; a value behind it is a shifted row."""
    assert [
        bool(row.errors) for row in read_file(write(f"{HEADER},\n1,593,USD,5,a,\n2,593,USD,5,b,x\n")).rows
    ] == [
        False,
        True,
    ]


# --- Broken ends


def test_an_open_quote_hides_what_follows(write: Write) -> None:
    """Rows behind it cannot be told apart, so nothing is sent; in the last line it is a cut row."""
    swallowed = f'{HEADER}\n1,593,USD,5,a\n2,593,USD,5,"b\n3,593,USD,5,c\n'
    with pytest.raises(InvalidRequestError, match="line 3: a quote is not closed"):
        read_file(write(swallowed))
    file = read_file(write(f'{HEADER}\n1,593,USD,5,a\n2,593,USD,5,"b'))
    assert (len(file.bad), len(file.requests)) == (1, 1)


# --- What is left out


def test_what_is_left_out_is_written_to_be_corrected(tmp_path: Path) -> None:
    """As it stands, with why, as text that no spreadsheet calculates; corrected, it is charged by the same options."""
    left_out = tmp_path / "bad.csv"
    text = read_file(SAMPLE, SAMPLE_FORM).bad_rows(left_out).decode("utf-8-sig")
    assert text.count("\n") == 9
    assert text.splitlines()[0].endswith(";referencia;fault")
    assert "2026-0003;984111223;593;;20,00;3,00;23,00;USD;Sin cero inicial;telefono: has 9 digits" in text
    assert ";\"'=HYPERLINK(" in text
    corrected = text.replace("5,93985E+11", "0984111990").replace(";984111223;", ";0984111223;")
    corrected = corrected.replace("usd", "USD").replace("2026-0006;0984111226", "2026-0007;0984111226")
    left_out.write_bytes(corrected.encode())
    file = read_file(left_out, SAMPLE_FORM)
    assert {error.line for error in file.errors} == {4, 8}
    assert len(file.requests) == 6


def test_what_is_left_out_of_json(write: Write, tmp_path: Path) -> None:
    """Each line as it stands, with one name more where it is an object."""
    row = '{"phone_number": "1", "country_code": "593", "currency": "usd", "tip": 5.0, "client_transaction_id": "a"}'
    good = row.replace("5.0", "5").replace("usd", "USD").replace('"a"', '"b"')
    file = read_file(write(f"{row}\n{row[:50]}\n{{}}\n{good}\n", "rows.jsonl"))
    with pytest.raises(ConfigurationError, match=r"must end in \.jsonl"):
        file.bad_rows(tmp_path / "bad.csv")
    left = file.bad_rows(tmp_path / "bad.jsonl")
    lines = left.decode().splitlines()
    assert lines[1] == row[:50]
    assert json.loads(lines[0])["fault"].startswith("tip: is an int of cents, not float")
    assert json.loads(lines[0])["tip"] == 5.0
    assert list(json.loads(lines[2])) == ["fault"]
    again = read_file(write(left, "again.jsonl"))
    assert not [error for error in again.errors if "fault" in str(error)]


# --- Spreadsheets' own files


def sheet(path: Path, *rows: list[Any], **sheets: list[list[Any]]) -> Path:
    """Write an .xlsx file, its first sheet and others."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name, others in sheets.items():
        other = book.create_sheet(name)
        for row in others:
            other.append(row)
    book.save(path)
    return path


SHEET = ["clave", "telefono", "amount_without_tax", "tip", "nota"]
TYPED = Format(
    columns={"client_transaction_id": "clave", "phone_number": "telefono"},
    constants={"currency": "USD", "country_code": "593"},
    ignored=frozenset({"nota"}), amounts="decimal",
)  # fmt: skip


def test_typed_cells_need_neither_encoding_nor_decimal_mark(tmp_path: Path) -> None:
    """An amount is the number that the spreadsheet shows, blank rows are passed over, and a key may be a number."""
    path = sheet(
        tmp_path / "cobros.xlsx", SHEET, ["Ñ-1", "0984111222", 1250.5, None, datetime.date(2026, 1, 2)],
        [None, None, None, None, None], [1002, "0984111223", 0.1 + 0.2, 1], ["k-3", "0984111224", "1.250,50", 10.505],
    )  # fmt: skip
    found = read_file(path, TYPED).rows
    assert [(row.line, row.key, row.request and row.request.amount) for row in found] == [
        (2, "Ñ-1", 125050), (4, "1002", 130), (5, "k-3", None)
    ]  # fmt: skip
    assert str(found[2].errors[0]).startswith("line 5, tip: has 3 digits after the decimal point")
    assert read_file(path, TYPED).description == "spreadsheet, decimal comma"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["k", 984111222, 5], "telefono: must be a text, because a number keeps no zero in front"),
        (["k", "984111222.0", 5], "telefono: is a number that ends in .0"),
        ([datetime.date(2026, 1, 2), "0984111222", 5], "clave: must not be a date or a time"),
        (["k", "0984111222", "#REF!"], "amount_without_tax: is an error of the spreadsheet"),
        (["k", "0984111222", 5, "=B2*2"], "tip: is a formula without its value"),
        (["k", "0984111222", True], "amount_without_tax: must not be true or false"),
        ([1.5, "0984111222", 5], "clave: must be a text, because a number"),
        (["k", "0984111222", 1e300], "amount_without_tax: is not an amount"),
        (["k", "0984111222", 5, None, None, "beyond"], "line 2: has 6 cells and the header 5"),
    ],
)
def test_a_typed_cell_that_cannot_be_meant_is_named(tmp_path: Path, cells: list[Any], said: str) -> None:
    """By line, column and reason."""
    path = sheet(tmp_path / "cobros.xlsx", SHEET, cells)
    (row,) = read_file(path, TYPED).rows
    assert row.request is None
    assert any(str(error).removeprefix("line 2, ").startswith(said) for error in row.errors), row.errors


def test_which_sheet_is_meant_is_not_guessed(tmp_path: Path) -> None:
    """Empty sheets are passed over; two with content, none, or a file that is no spreadsheet are refused."""
    row = ["k", "0984111222", 5]
    assert len(read_file(sheet(tmp_path / "a.xlsx", SHEET, row, Hoja2=[]), TYPED).rows) == 1
    with pytest.raises(InvalidRequestError, match="has 2 sheets with content"):
        read_file(sheet(tmp_path / "b.xlsx", SHEET, row, Hoja2=[["x"]]), TYPED)
    with pytest.raises(InvalidRequestError, match="is empty"):
        read_file(sheet(tmp_path / "c.xlsx"), TYPED)
    for name in ("d.xlsx", "d.ods"):
        (tmp_path / name).write_bytes(b"clave;telefono\n")
        with pytest.raises(InvalidRequestError, match="cannot be read as a spreadsheet"):
            read_file(tmp_path / name, TYPED)


def test_an_open_document_is_read_as_well(tmp_path: Path) -> None:
    """Typed cells of LibreOffice; a cell that shows an error refuses the file."""
    cell = '<table:table-cell office:value-type="{}" {}><text:p>{}</text:p></table:table-cell>'
    header = "".join(cell.format("string", "", name) for name in SHEET[:3])
    row = cell.format("string", "", "k") + cell.format("string", "", "0984111222")
    amounts = (
        cell.format("float", 'office:value="12.5"', "12,50"),
        cell.format("string", 'calcext:value-type="error"', "#REF!"),
    )
    for number, amount in enumerate(amounts):
        path = tmp_path / f"{number}.ods"
        spaces = " ".join(
            f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
            for name in ("office", "table", "text")
        )
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("META-INF/manifest.xml", "<manifest/>")
            archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
            archive.writestr(
                "content.xml",
                f'<office:document-content {spaces} xmlns:calcext="x"><office:body><office:spreadsheet>'
                f'<table:table table:name="Hoja1"><table:table-row>{header}</table:table-row>'
                f"<table:table-row>{row}{amount}</table:table-row></table:table>"
                "</office:spreadsheet></office:body></office:document-content>",
            )
    (found,) = read_file(tmp_path / "0.ods", TYPED).rows
    assert found.request is not None
    assert found.request.amount == 1250
    with pytest.raises(InvalidRequestError, match="cells that show an error"):
        read_file(tmp_path / "1.ods", TYPED)


def test_what_is_left_out_of_a_spreadsheet_is_csv(tmp_path: Path) -> None:
    """Its typed cells as text, the errors empty."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", 984111222, 12.5, "#N/A"])
    left = read_file(path, TYPED).bad_rows(tmp_path / "bad.csv").decode("utf-8-sig").splitlines()
    assert left[0] == "clave,telefono,amount_without_tax,tip,nota,fault"
    assert left[1].startswith('k,984111222,12.5,,,"telefono: must be a text')
