"""Files as spreadsheets write them: what is found, what is told, and what is never guessed."""

import contextlib
import json
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.rows.check import check_file
from payclient.rows.decimals import AMBIGUOUS, cents_of, mark_of
from payclient.rows.faults import kind_of
from payclient.rows.formats import Format
from payclient.rows.index import Index
from payclient.rows.left_out import write_left_out
from reading_rows import read_rows

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
SAMPLE_FORM = Format(key="clave", columns=SPANISH, amounts="decimal")

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
    return [None if row.request is None else row.request.amount for row in read_rows(path, form)]


# --- The sample


def test_each_row_of_the_sample_gets_its_verdict() -> None:
    """Two can be sent; the others are refused, each for what a spreadsheet or a person did to it."""
    with check_file(SAMPLE, SAMPLE_FORM) as checked:
        faults = {}
        for fault in checked.index.faults():
            assert fault.line not in faults
            faults[fault.line] = (fault.column, fault.reason.split(":")[0].split(",")[0], fault.kind)
        with checked.requests() as again:
            good = {request.client_transaction_id: request for request in again}
        places = [(place.line, False) for place in checked.index.places()]
        places += [(place.line, True) for place in checked.index.places(bad=True)]
    assert dict(sorted(places)) == {
        2: False,  # 2026-0001: good
        3: True,  # 2026-0002: the phone became 5,93985E+11
        4: True,  # 2026-0003: the phone lost its zero
        5: False,  # 2026-0004: 1.250,50 is read exactly
        6: True,  # 2026-0005: a cent too little
        7: True,  # 2026-0006: which of the two is meant?
        8: True,  # 2026-0006 again
        9: True,  # 2026-0008: a formula
        10: True,  # 2026-0009: no phone
        11: True,  # 2026-0010: usd
    }
    assert faults == {
        3: ("telefono", "is a number as a spreadsheet shortens it", "a number with an exponent"),
        4: ("telefono", "has 9 digits", "9 digits"),
        6: ("total", "is 1 cent less than the sum of its parts", "a number with a comma"),
        7: ("clave", "is the same as in line 8", None),
        8: ("clave", "is the same as in line 7", None),
        9: ("referencia", "is a formula", "a formula"),
        10: ("telefono", "is required", "empty"),
        11: ("moneda", "is three capital letters (ISO 4217)", "a text of 3 characters"),
    }
    assert good.keys() == {"2026-0001", "2026-0004"}
    assert (good["2026-0001"].amount, good["2026-0001"].reference) == (315, "Matrícula Ñandú")
    assert good["2026-0004"].amount_without_tax == 125050
    assert checked.description == "CSV with semicolons, Windows-1252, decimal comma"
    assert (checked.rows, checked.bad_rows, checked.totals) == (10, 8, {"USD": 125365})


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
    with check_file(path, Format(amounts="decimal")) as checked:
        assert not checked.good
        assert checked.fatal is not None
        assert "some amounts have a decimal comma and others a decimal point" in checked.fatal
    with check_file(path, Format(amounts="decimal", decimal_mark=",")) as checked:
        assert checked.fatal is None
        assert (checked.bad_rows, checked.totals) == (1, {"USD": 101050})


def test_decimal_amounts_of_json(write: Write) -> None:
    """Numbers are exact, texts have a mark, and an order's amounts are meant as well."""
    row = (
        '{{"phone_number": "1", "country_code": "593", "currency": "USD", "client_transaction_id": "{}", {}}}'
    )
    good = [
        '"tip": 10.5',
        '"tip": 10',
        '"tip": "1.250,50"',
        '"tip": 1, "order": {"lineItems": [{"unitPrice": 0.29}]}',
    ]
    bad = ['"tip": 0.125', '"tip": 1e400', '"tip": true', '"tip": -1.5', '"tip": "x"', '"tip": [1]']
    text = "\n".join(row.format(number, amount) for number, amount in enumerate(good + bad))
    found = list(read_rows(write(text, "rows.jsonl"), Format(amounts="decimal")))
    assert [row.request and row.request.tip for row in found] == [1050, 1000, 125050, 100] + [None] * len(bad)
    request = found[3].request
    assert request is not None
    assert request.order is not None
    assert request.order.line_items[0].unit_price == 29


# --- Columns


def test_constants_fill_every_row(write: Write) -> None:
    """A field that is a constant and a column at once is a clear error, and so is a constant that cannot be."""
    path = write("phone_number,tip,client_transaction_id\n0991112223,5,a\n")
    form = Format(constants={"currency": "USD", "countryCode": "593", "amountWithTax": "1000"})
    (row,) = read_rows(path, form)
    assert row.request is not None
    assert (row.request.currency, row.request.amount) == ("USD", 1005)
    with pytest.raises(InvalidRequestError, match="tip is a column, and --set gives it as well"):
        list(read_rows(path, Format(constants={"currency": "USD", "country_code": "593", "tip": "1"})))
    with pytest.raises(ConfigurationError, match="--set tax: is no whole number of cents"):
        list(read_rows(path, Format(constants={"currency": "USD", "country_code": "593", "tax": "1.5"})))
    path = write(
        '{"phone_number": "1", "tip": 5, "client_transaction_id": "a", "currency": "EUR"}', "r.jsonl"
    )
    (row,) = read_rows(path, Format(constants={"currency": "USD", "country_code": "593"}))
    assert list(map(str, row.faults)) == [
        "line 1, currency: is there, and --set gives it as well (it is a text of 3 characters)"
    ]


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
        list(read_rows(write(text), Format(columns=columns)))
    (row,) = read_rows(write(text), Format(columns=columns, ignored=frozenset({"nota interna"})))
    assert row.key == "a"
    with pytest.raises(InvalidRequestError, match="there is no column movil"):
        list(read_rows(write(text), Format(columns=columns | {"reference": "movil"})))
    path = write('{"tel": "1", "pais": "593", "cur": "USD", "tip": 5, "clave": "a", "x": 1}', "r.jsonl")
    (row,) = read_rows(path, Format(columns=columns, ignored=frozenset({"x"})))
    assert row.request is not None


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {"phone": "x"}},
        {"columns": {"phone_number": "x", "phoneNumber": "y"}},
        {"columns": {"client_transaction_id": "x"}, "key": "y"},
        {"columns": {"tax": "x"}, "constants": {"tax": "1"}},
        {"constants": {"client_transaction_id": "x"}},
        {"constants": {"order": "x"}},
        {"columns": {"tax": "x"}, "ignored": frozenset({"x"})},
        {"key": " "},
        {"delimiter": ";;"},
        {"delimiter": '"'},
        {"encoding": "base64"},
        {"encoding": "utf-32"},
        {"encoding": "nothing"},
        {"amounts": "units"},
        {"decimal_mark": ","},
        {"decimal_mark": ";", "amounts": "decimal"},
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
    found = list(read_rows(write(text.encode(encoding)), Format(encoding=told)))
    assert [row.line for row in found] == [2, 4]
    assert [str(fault) for row in found for fault in row.faults if "control" not in fault.reason] == []
    assert found[1].request is not None


def test_what_is_neither_is_asked_for(write: Write) -> None:
    """An old code page's accents are no Windows-1252: nothing is guessed, and it may be told."""
    path = write(f"{HEADER},reference\n1,593,USD,5,a,García Muñoz\n".encode("cp850"))
    with pytest.raises(InvalidRequestError, match="give --encoding"):
        list(read_rows(path))
    (row,) = read_rows(path, Format(encoding="cp850"))
    assert row.request is not None
    assert row.request.reference == "García Muñoz"
    (row,) = read_rows(path, Format(encoding="utf-8"))
    assert "is not of the file's encoding" in str(row.faults[0])


def test_excels_own_line_of_the_delimiter(write: Write) -> None:
    """`sep=;` before the header; the lines are counted with it."""
    (row,) = read_rows(write("sep=;\n" + rows("5")))
    assert row.line == 3
    assert row.request is not None


def test_a_line_without_an_end_is_no_row(write: Write) -> None:
    with pytest.raises(InvalidRequestError, match="line 2 is longer than"):
        list(read_rows(write(rows("5").split("\n")[0] + "\n" + "x" * 2**20)))


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
        (row,) = read_rows(path)
        assert (row.request is None) == (said is not None)
        assert said is None or said in str(row.faults[0])


def test_a_lost_zero_is_seen_by_its_neighbours(write: Write) -> None:
    """Only where others of the same country begin with one and are a digit longer."""
    lines = [
        "0991112223,593,USD,5,a",
        "991112224,593,USD,5,b",
        "991112225,51,USD,5,c",
        "99111222,593,USD,5,d",
    ]
    with check_file(write("\n".join([HEADER, *lines]))) as checked:
        assert [fault.line for fault in checked.index.faults()] == [3]
        assert (checked.charges, checked.customers) == ({"USD": 3}, 3)


def test_a_column_without_a_name_holds_nothing(write: Write) -> None:
    """A trailing delimiter is a spreadsheet's habit; a value behind it is a shifted row."""
    assert [
        bool(row.faults) for row in read_rows(write(f"{HEADER},\n1,593,USD,5,a,\n2,593,USD,5,b,x\n"))
    ] == [
        False,
        True,
    ]


@given(value=st.one_of(st.text(), st.integers(), st.booleans(), st.floats(), st.lists(st.text())))
def test_the_class_of_a_value_never_tells_it(value: Any) -> None:
    """It is one of few words and a length."""
    words = kind_of(value)
    assert len(words) < 60
    if isinstance(value, str) and len(value) > 3 and not value.isspace():
        assert value not in words


# --- Broken ends


def test_an_open_quote_hides_what_follows(write: Write) -> None:
    """Rows behind it cannot be told apart, so nothing is sent; in the last line it is a cut row."""
    swallowed = f'{HEADER}\n1,593,USD,5,a\n2,593,USD,5,"b\n3,593,USD,5,c\n'
    with check_file(write(swallowed)) as checked:
        assert checked.fatal is not None
        assert "line 3" in checked.fatal
    with check_file(write(f'{HEADER}\n1,593,USD,5,a\n2,593,USD,5,"b')) as checked:
        assert checked.fatal is None
        assert (checked.bad_rows, checked.good_rows) == (1, 1)


@pytest.mark.parametrize("change", ["05,a", "6,a", "5,a\n3,593,USD,5,z", "5,A"])
def test_a_file_that_changed_between_the_passes_is_refused(write: Write, change: str) -> None:
    """Nothing of it is given."""
    path = write(f"{HEADER}\n1,593,USD,5,a\n2,593,USD,5,b\n")
    with check_file(path) as checked:
        write(f"{HEADER}\n1,593,USD,{change}\n2,593,USD,5,b\n")
        with pytest.raises(InvalidRequestError, match="changed since it was checked"):
            checked.requests().__enter__()


def test_a_row_that_changes_under_our_hands_is_not_given(write: Write) -> None:
    """Each is compared with what was checked, also after the first was given."""
    text = f"{HEADER}\n" + "".join(f"{number},593,USD,5,row-{number}\n" for number in range(10_000, 19_000))
    path = write(text)
    with check_file(path) as checked, checked.requests() as again:
        assert next(iter(again)).client_transaction_id == "row-10000"
        path.write_text(text.replace("18999,593,USD,5", "18999,593,USD,6"))
        with pytest.raises(InvalidRequestError, match="line 9001 changed"):
            list(again)


def test_no_room_for_the_index_is_one_clear_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary directory is full: nothing can be checked, so nothing is sent."""

    def full(self: Index) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Index, "settle", full)
    with pytest.raises(ConfigurationError, match="temporary directory"):
        check_file(write(rows("5", delimiter=",")))


# --- Lanes, and what is left out


def test_the_longest_lane_comes_first_and_every_row_once(write: Write) -> None:
    """Equal lanes in the order of the file; what was not given by lane is given after."""
    customers = "abcbbcd"
    lines = [f"09911122{ord(name)},593,USD,5,{name}{number}" for number, name in enumerate(customers)]
    with check_file(write("\n".join([HEADER, *lines]))) as checked, checked.requests() as again:
        assert (checked.customers, checked.longest_lane) == (4, 3)
        given = []
        sizes = []
        for lane, size in again.lanes():
            sizes.append(size)
            first = again.next_of(lane)
            assert first is not None
            given.append(first.client_transaction_id)
            if len(sizes) == 3:
                break
        assert (given, sizes) == (["b1", "c2", "a0"], [3, 2, 1])
        rest = [request.client_transaction_id for request in again]
        assert rest == ["b3", "b4", "c5", "d6"]


def test_what_is_left_out_is_written_to_be_corrected(tmp_path: Path) -> None:
    """As it stands, with why, as text that no spreadsheet calculates; corrected, it is charged by the same options."""
    left_out = tmp_path / "bad.csv"
    with check_file(SAMPLE, SAMPLE_FORM) as checked:
        write_left_out(checked, left_out)
        first = left_out.read_bytes()
        write_left_out(checked, left_out)
    assert left_out.read_bytes() == first
    assert stat.S_IMODE(left_out.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [left_out]
    text = first.decode("utf-8-sig")
    assert text.count("\n") == 9
    assert text.splitlines()[0].endswith(";referencia;fault")
    assert "2026-0003;984111223;593;;20,00;3,00;23,00;USD;Sin cero inicial;telefono: has 9 digits" in text
    assert ";\"'=HYPERLINK(" in text
    corrected = text.replace("5,93985E+11", "0984111990").replace(";984111223;", ";0984111223;")
    corrected = corrected.replace("usd", "USD").replace("2026-0006;0984111226", "2026-0007;0984111226")
    left_out.write_bytes(corrected.encode())
    with check_file(left_out, SAMPLE_FORM) as checked:
        assert {fault.line for fault in checked.index.faults()} == {4, 8}
        assert checked.good_rows == 6
    with (
        check_file(SAMPLE, SAMPLE_FORM) as checked,
        pytest.raises(ConfigurationError, match="with other rows"),
    ):
        write_left_out(checked, left_out)
    assert left_out.read_bytes() == corrected.encode()


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    """And not the file of the charges, which can be read."""
    nothing = pytest.raises(ConfigurationError, match=r"^bad\.csv: cannot be written: No such file")
    with check_file(SAMPLE, SAMPLE_FORM) as checked, nothing:
        write_left_out(checked, tmp_path / "nowhere" / "bad.csv")


def test_what_is_left_out_of_json(write: Write, tmp_path: Path) -> None:
    """Each line as it stands, with one name more where it is an object."""
    row = '{"phone_number": "1", "country_code": "593", "currency": "usd", "tip": 5.0, "client_transaction_id": "a"}'
    good = row.replace("5.0", "5").replace("usd", "USD").replace('"a"', '"b"')
    path = write(f"{row}\n{row[:50]}\n{{}}\n{good}\n", "rows.jsonl")
    with check_file(path) as checked:
        write_left_out(checked, tmp_path / "bad.jsonl")
        with pytest.raises(ConfigurationError, match=r"ends in \.jsonl"):
            write_left_out(checked, tmp_path / "bad.csv")
    lines = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert lines[1] == row[:50]
    assert json.loads(lines[0])["fault"] == "tip: must be a whole number"
    assert json.loads(lines[0])["tip"] == 5.0
    assert list(json.loads(lines[2])) == ["fault"]
    with check_file(tmp_path / "bad.jsonl") as checked:
        assert not [fault for fault in checked.faults if "fault" in fault]
