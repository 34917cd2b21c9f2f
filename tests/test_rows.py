"""Files of charges: what becomes a request, what is an error, what is found, what is told, and never guessed."""

import contextlib
import csv
import datetime
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import attrs
import openpyxl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from openpyxl.formatting.rule import Rule
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.styles.numbers import NumberFormat

from payclient.cli.tables import Dialect, bad_rows
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.profile import DOCUMENT, PAYPHONE, ServiceProfile
from payclient.rows import MAX_ROWS, ChargeFile, read_file
from payclient.rows.cells import cents_of, find_mark
from payclient.rows.format import Format
from payclient.rows.records import Row
from payclient.validation import id_fault, to_service

HEADER = "phone_number,country_code,currency,amount_with_tax,tax,client_transaction_id"
GOOD = "0991112223,593,USD,1000,150,order-1"
JSON_ROW: dict[str, Any] = {
    "phoneNumber": "0991112223", "countryCode": "593", "currency": "USD", "amountWithTax": 1000,
    "clientTransactionId": "order-1",
}  # fmt: skip
FIXED = {"currency": "USD", "country_code": "593"}
KEY = "client_transaction_id"


def form(columns: Mapping[str, str] = {}, constants: Mapping[str, str] = {}, **options: Any) -> Format:
    """A format, its pairs as mappings."""
    columns, key = {**columns}, columns.get(KEY, KEY)
    columns.pop(KEY, None)
    pairs = ([f"{name}={value}" for name, value in each.items()] for each in (columns, constants))
    return Format(**{"key": key, "map": next(pairs), "set": next(pairs)} | options)


Read = Callable[..., ChargeFile]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a file and read it."""

    def read(
        content: str | bytes, name: str = "rows.csv", profile: ServiceProfile = DOCUMENT, **options: Any
    ) -> ChargeFile:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_file(path, form(**options), profile=profile)

    return read


def the_request(file: ChargeFile) -> SaleRequest:
    (row,) = file.rows
    assert row.request is not None, row.errors
    return row.request


def errors_of(file: ChargeFile) -> list[str]:
    return [str(error) for error in file.errors]


def json_lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- The purchase


def test_a_row_may_say_what_it_is_for(read: Read) -> None:
    """By a column of that name or a mapped one, in some rows or all; a file without it has none."""
    lines = "".join(f"0991112223,593,USD,1000,150,order-{n},{'cart 17' if n else ''}\n" for n in range(3))
    objects = ({"clientTransactionId": f"order-{n}", "purchase": "cart 17" if n else None} for n in range(3))
    for file in (
        read(f"{HEADER},Pedido\n{lines}", columns={"purchase": "Pedido"}),
        read(json_lines(*(JSON_ROW | each for each in objects)), "rows.jsonl"),
    ):
        assert errors_of(file) == []
        assert [row.purchase for row in file.rows] == [None, "cart 17", "cart 17"]
    assert [row.purchase for row in read(f"{HEADER}\n{GOOD}\n").rows] == [None]


# --- CSV


@pytest.mark.parametrize("column", ["reference", "invoiceNo"])
def test_another_column_is_the_key(read: Read, column: str) -> None:
    """One that the model does not know, or one that keeps its own meaning; of CSV and of JSON alike."""
    row = {name: value for name, value in JSON_ROW.items() if name != "clientTransactionId"}
    for file in (
        read(f"{HEADER.replace(KEY, column)}\n{GOOD}\n", columns={KEY: column}),
        read(json_lines(row | {column: "order-1"}), "r.jsonl", columns={KEY: column}),
    ):
        assert the_request(file).client_transaction_id == "order-1"
        assert the_request(file).reference == ("order-1" if column == "reference" else None)
    file = read(json_lines(JSON_ROW | {column: "order-1"}), "r.jsonl", columns={KEY: column})
    assert "stands beside the column" in errors_of(file)[0]


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("", {}, "is empty"),
        (f"{HEADER}\n\n,,,,,\n", {}, "has no rows"),
        (f"{GOOD}\n{GOOD}\n", {}, "is the header missing"),
        (HEADER.replace("currency", "curency") + f"\n{GOOD}\n", {}, "unknown column curency; there is no column"),
        (f"{HEADER},phone,fax\n{GOOD},1,2\n", {}, r"unknown column phone, fax \(leave all such columns"),
        (f"{HEADER},0991112223\n{GOOD},1\n", {}, "column 7 has no known name"),
        (f"{HEADER},PhoneNumber\n{GOOD},1\n", {}, "unknown column PhoneNumber"),
        (f"{HEADER},phoneNumber\n{GOOD},1\n", {}, "phone_number is there twice"),
        (f"{HEADER},order\n{GOOD},1\n", {}, "order must be in a JSONL file"),
        ("currency,client_transaction_id\nUSD,1\n", {}, "or --set country_code=VALUE; there is no column phone_number"),
        ("phone_number,country_code,currency\n1,2,USD\n", {}, "no column client_transaction_id; name yours by --key$"),
        ('"phone_number,country_code\n', {}, "line 1 is not a header"),
        (f"{HEADER},store_id\n{GOOD},S1\n", {"columns": {KEY: "store_id"}}, f"{KEY} stands beside the column store_id"),
        (f"{HEADER}\n{GOOD}\n", {"columns": {KEY: "invoice"}}, "--key names the column invoice, and the file has ph"),
        (f"{HEADER},Mövil,a b\n{GOOD},1,2\n", {"columns": {"reference": "celular"}},
         r"--map reference names the column celular, and the file has phone_number, .*, Mövil, \(column 8\)$"),
        (f"{HEADER},Móvil,movil\n{GOOD},1,2\n", {"columns": {"reference": "movil"}}, "reference is there twice"),
        (f"{HEADER}\n{GOOD}\n", {"constants": {"tax": "1"}}, "tax is a column, and --set gives it as well"),
        (f"{HEADER}\n{GOOD}\n", {"header_row": 5}, "--header-row 5: must be a line with names"),
    ],
)  # fmt: skip
def test_a_bad_header_is_a_clear_error(read: Read, content: str, options: dict[str, Any], said: str) -> None:
    """Nothing can be sent; a header that is a person's data is not repeated."""
    with pytest.raises(InvalidRequestError, match=said) as caught:
        read(content, **options)
    assert "0991112223" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by_nick_name": "yes"}, "by_nick_name: must be true or false"),
        ({"time_zone": "5.0"}, "time_zone: must be a whole number"),
        ({"amount": "1151"}, "amount: must be the sum of its parts, and is 1 cent more than that"),
        ({"amount_with_tax": "-5"}, "amount_with_tax: must be 0 to"),
        ({"currency": ""}, "currency: must be given"),
        ({"country_code": "Ecuador"}, "country_code: must be a country calling code"),
        ({"client_transaction_id": ""}, "client_transaction_id: must be given"),
        ({"client_transaction_id": "order-1 "}, "client_transaction_id: must not begin or end with a blank"),
        ({"client_transaction_id": "order-e\u0301"}, "client_transaction_id: "),
        ({"phone_number": "no tiene"}, "phone_number: must be digits, such as 0984111222"),
        ({"reference": "two\nlines"}, "reference: must have no control characters"),
        ({"amount_with_tax": "", "tax": ""}, "amount: must have a part"),
        *(
            ({"amount_with_tax": cell}, "amount_with_tax: must be whole cents (write 10.50 as 1050)")
            for cell in ("10.51", "1,000", "1e3", " 100", "+100", "１００", "1_000", "9" * 25)
        ),
        *(
            ({"phone_number": cell}, "phone_number: is a number as a spreadsheet shortens it")
            for cell in ("5,93999E+11", "5E+11", "593e9")
        ),
    ],
)  # fmt: skip
def test_an_error_names_line_and_column(read: Read, change: dict[str, str], said: str) -> None:
    """As the file spells the column. Nothing is rounded, and no value is repeated."""
    names = [*HEADER.split(","), "amount", "by_nick_name", "time_zone", "reference"]
    values = {**dict(zip(names, GOOD.split(","), strict=False)), **change}
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerow(values)
    file = read(text.getvalue())
    assert file.requests == []
    assert any(error.startswith(f"line 2, {said}") for error in errors_of(file)), file.errors
    cell = next(iter(change.values()))
    assert len(cell) < 4 or cell not in "".join(errors_of(file))


def test_all_errors_of_a_row_are_there_in_the_spelling_of_the_file(read: Read) -> None:
    names = ",".join(map(to_service, HEADER.split(",")))
    errors = errors_of(read(f"{names}\n5E+11,593,USD,1.5,2.5,\n"))
    assert [error.partition(":")[0].removeprefix("line 2, ") for error in errors] == [
        "phoneNumber", "amountWithTax", "tax", "clientTransactionId"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (f"{HEADER}\n{GOOD}", "0991112223,593,US", "has 3 cells and the header 6: is it cut?"),
        (f"{HEADER}\n{GOOD}", f"{GOOD},more", "has 7 cells and the header 6"),
        (f"{HEADER}\n{GOOD}", '0991112223,593,USD,1000,150,"order', "a quote is not closed"),
        (f"{HEADER}\n{GOOD}", "x" * 2**20, "a quote is not closed"),
        (f"{HEADER},\n{GOOD},", f"{GOOD}2,x", "column 7: has a value and no name"),
        ("\n" + json.dumps(JSON_ROW), json.dumps(JSON_ROW)[:40], "is not JSON: is it cut?"),
        ("\n" + json.dumps(JSON_ROW), "[1]", "is not a JSON object"),
        ("\n" + json.dumps(JSON_ROW), '{"amountWithTax": NaN}', "has NaN or Infinity"),
        ("\n" + json.dumps(JSON_ROW), '{"amountWithTax": 1, "amountWithTax": 2}', "has a name twice"),
        ("\n" + json.dumps(JSON_ROW), "[" * 100_000, "is not JSON"),
        ("\n" + json.dumps(JSON_ROW), '{"amount": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)  # fmt: skip
def test_a_cut_line_is_an_error_and_the_others_are_read(read: Read, good: str, bad: str, said: str) -> None:
    file = read(f"{good}\n{bad}", "rows.csv" if HEADER in good else "rows.jsonl")
    assert len(file.requests) == 1
    (error,) = errors_of(file)
    assert error.removeprefix("line 3")[2:].startswith(said)


def test_a_line_is_counted_where_it_begins(read: Read) -> None:
    """Also after a cell with line breaks, and after blank lines. Rows behind an open quote cannot be told apart."""
    text = f'{HEADER}\n0991112223,593,USD,1000,150,"a\nb"\n\n0991112223,593,USD,1.0,150,order-2\n'
    assert [error.split(",")[0] for error in errors_of(read(text))] == ["line 2", "line 5"]
    with pytest.raises(InvalidRequestError, match="line 6: a quote is not closed"):
        read(f'{text}0991112224,593,USD,1000,150,"b\n{GOOD}c\n')


def test_a_cell_that_took_in_other_rows_is_an_error(read: Read) -> None:
    """A quote opens one name and another ends the next: the first key would have the second customer, who has none."""
    rows = [
        f"name,{HEADER}",
        f'"Ana,{GOOD}',
        f"Luz,{GOOD}2",
        f'Sol 4",{GOOD}3',
        f'"Calle 4, Loja\nEcuador",{GOOD}4',
    ]
    file = read("\n".join(rows), ignore_rest=True)
    assert [each.client_transaction_id for each in file.requests] == ["order-14"]
    (error,) = errors_of(file)
    assert error == "line 2: has a cell that holds other lines: is a quote not closed?"


# --- JSONL


def test_a_line_with_an_order_becomes_a_request(read: Read) -> None:
    """Either spelling, null is left out, a BOM and blank lines are tolerated."""
    order = {
        "billTo": {"firstName": "Ana", "country": "EC", "email": None},
        "line_items": [{"productSKU": "x", "unit_price": 5}],
    }
    file = read("\ufeff" + json_lines({**JSON_ROW, "order": order, "tip": None}) + "\n", "rows.jsonl")
    assert the_request(file).order == Order(
        bill_to=BillTo(first_name="Ana", country="EC"), line_items=(LineItem(product_sku="x", unit_price=5),)
    )
    assert (file.rows[0].line, file.rows[0].key, the_request(file).amount) == (1, "order-1", 1000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"amountWithTax": 10.0}, "amountWithTax: must be an int of cents, such as 1050"),
        ({"amountWithTax": "1000"}, "amountWithTax: must be an int of cents, such as 1050"),
        ({"amountWithTax": True}, "amountWithTax: must be an int of cents, such as 1050"),
        ({"phoneNumber": 991112223}, "phoneNumber: must be a text; int was given"),
        ({"byNickName": 1}, "byNickName: must be True or False"),
        ({"countryCode": None}, "countryCode: must be given"),
        ({"clientTransactionId": 17}, "clientTransactionId: must be a text; int was given"),
        ({"foo": 1}, "unknown column foo"),
        ({"0991112223": 1}, "column 6 has no known name"),
        ({"phone_number": "1"}, "phone_number is there twice"),
        ({"purchase": 17}, "purchase: must be a text"),
        ({"purchase": " cart"}, "purchase: must not begin or end with a blank"),
        ({"order": []}, "order: must be an object"),
        ({"order": {"lineItems": {}}}, "order: line_items: must be an array"),
        ({"order": {"lineItems": ["x"]}}, "order: must be an object"),
        ({"order": {"lineItems": [{}, {"unitPrice": 1.5}]}}, "order: unit_price: must be an int of cents"),
        ({"order": {"billTo": {"name": "x"}}}, "order: must be an object, and each of its names known"),
        ({"order": {"billTo": {"firstName": "a", "first_name": "b"}}}, "order: has a name in two spellings"),
    ],
)  # fmt: skip
def test_nothing_is_coerced(read: Read, change: dict[str, Any], said: str) -> None:
    """An error names the place inside the order as well, and repeats no value."""
    file = read(json_lines({**JSON_ROW, **change}), "rows.jsonl")
    assert file.requests == []
    assert any(error.startswith("line 1") and said in error for error in errors_of(file)), file.errors
    assert "0991112223" not in "".join(errors_of(file))


# --- Amounts with decimals


def amounts_of(read: Read, *amounts: str, **options: Any) -> list[int | None]:
    """The amounts of a file of these, with a customer for each."""
    lines = [f"09911122{number:02};{amount};row-{number}" for number, amount in enumerate(amounts)]
    text = "\n".join(["phone_number;amount_without_tax;client_transaction_id", *lines])
    rows = read(text, amounts="decimal", constants=FIXED, **options).rows
    return [None if row.request is None else row.request.amount for row in rows]


@given(
    cents=st.integers(0, 10**13), mark=st.sampled_from(",."), group=st.sampled_from(["", "other", " ", "'"])
)
def test_every_amount_is_read_as_it_was_written(cents: int, mark: str, group: str) -> None:
    """And what is written with two decimals proves its own mark."""
    group = {"other": "." if mark == "," else ","}.get(group, group)
    text = f"{cents // 100:,}".replace(",", group) + f"{mark}{cents % 100:02}"
    assert cents_of(text, mark) == cents
    assert find_mark([text]) == mark


@given(text=st.text("0123456789.,' -", max_size=12))
def test_no_amount_has_two_meanings(text: str) -> None:
    """A value that both marks read as money is asked for, unless it has no mark at all."""
    found = set()
    for mark in ",.":
        with contextlib.suppress(ValueError):
            found.add(cents_of(text, mark))
    assert len(found) < 2
    with contextlib.suppress(InvalidRequestError):
        mark = find_mark([text])
        if mark in text and found:
            with pytest.raises(ValueError, match="amount"):
                cents_of(text, "," if mark == "." else ".")


def test_the_mark_is_found_in_the_file_or_asked_for(read: Read) -> None:
    """One amount that proves it speaks for those that prove nothing; one or one thousand is never guessed."""
    assert amounts_of(read, "1.000", "7", "10,50") == [100000, 700, 1050]
    assert amounts_of(read, "5", "12") == [500, 1200]
    assert find_mark(["1000", "1.2.3", ""]) == ".", "nothing is proven"
    ambiguous, contradicting = ("1,000", "2,500", "7"), ("1.000", "10,50", "10.50")
    with pytest.raises(InvalidRequestError, match="give --decimal-mark"):
        amounts_of(read, *ambiguous)
    assert amounts_of(read, *ambiguous, decimal_mark=".") == [100000, 250000, 700]
    assert amounts_of(read, *ambiguous, decimal_mark=",") == [None, None, 700]
    with pytest.raises(InvalidRequestError, match="a decimal comma and others a decimal point"):
        amounts_of(read, *contradicting)
    assert amounts_of(read, *contradicting, decimal_mark=",") == [100000, 1050, None]
    with pytest.raises(InvalidRequestError, match="must be whole cents"):
        read(json_lines(JSON_ROW), "rows.jsonl", amounts="decimal")


# --- What is told of a file


def test_constants_fill_every_row(read: Read) -> None:
    """One that cannot be is a clear error; an ambiguous one is asked about like a cell."""
    text = "phone_number,tip,client_transaction_id\n0991112223,5,a\n"
    request = the_request(read(text, constants={**FIXED, "amountWithTax": "1000"}))
    assert (request.currency, request.amount) == ("USD", 1005)
    with pytest.raises(ConfigurationError, match="--set tax: must be whole cents"):
        read(text, constants={**FIXED, "tax": "1.5"})
    with pytest.raises(InvalidRequestError, match="give --decimal-mark"):
        read(text, constants={**FIXED, "amount_with_tax": "1,000"}, amounts="decimal")
    (error,) = errors_of(read(json_lines(JSON_ROW), "r.jsonl", constants={"currency": "USD"}))
    assert "currency is a column, and --set gives it as well" in error


def test_mapped_and_ignored_columns(read: Read) -> None:
    """A mapped name needs neither accents nor capitals; one of no known name is refused unless all such are."""
    text = "Teléfono;pais;cur;tip;Clave;nota interna\n0991112223;593;USD;5;a;x\n"
    columns = {"phone_number": "telefono", "country_code": "PAIS", "currency": "cur", KEY: "clave"}
    with pytest.raises(InvalidRequestError, match="column 6 has no known name"):
        read(text, columns=columns)
    assert the_request(read(text, columns=columns, ignore_rest=True)).phone_number == "0991112223"
    row = {"telefono": "1", "pais": "593", "cur": "USD", "tip": 5, "clave": "a", "x": 1}
    assert read(json_lines(row), "r.jsonl", columns=columns, ignore_rest=True).requests


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"map": ["phone_number"]}, "--map: must be FIELD=COLUMN"),
        ({"map": ["phone=x"]}, "--map phone: the field must be one of amount, "),
        ({"map": ["phone_number=x", "phoneNumber=y"]}, "--map phone_?[nN]umber: is given twice"),
        ({"key": "a", "map": [f"{KEY}=b"]}, f"--key and --map {KEY} name two columns"),
        ({"set": ["order=x"]}, "order"), ({"delimiter": ";;"}, "delimiter"), ({"delimiter": '"'}, "delimiter"),
        ({"encoding": "base64"}, "encoding must be one such as"), ({"encoding": "utf-32"}, "encoding must be"),
        ({"encoding": "utf-7"}, "encoding must be"), ({"encoding": "idna"}, "encoding must be"),
        ({"encoding": "iso2022_jp"}, "encoding must be"), ({"encoding": "klingon"}, "encoding must be"),
        ({"decimal_mark": ","}, "a decimal mark needs --amounts"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_of_a_file(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Format(**options)


@pytest.mark.parametrize(
    ("encoding", "delimiter", "words"),
    [
        ("utf-8", ",", "commas, UTF-8"), ("utf-8-sig", ";", "semicolons, UTF-8"),
        ("cp1252", "\t", "tabs, Windows-1252"), ("utf-8", "|", "bars, UTF-8"),
    ],
)  # fmt: skip
def test_encoding_and_delimiter_are_found(read: Read, encoding: str, delimiter: str, words: str) -> None:
    """A line break and a wide character's bytes stand in a cell."""
    reference = "Ñandú Ċ\nਊ" if encoding.startswith("utf") else "Ñandú ¿sí? 5 €\n"
    text = f"{HEADER},reference\n{GOOD},X\n{GOOD}2,last\n".replace(",", delimiter)
    raw = text.replace("X", f'"{reference}"').replace("\n", "\r\n").encode(encoding)
    file = read(raw)
    assert file.description == f"CSV with {words}, amounts in cents"
    assert [row.line for row in file.rows] == [2, 4]
    assert errors_of(file) == ["line 2, reference: must have no control characters or lone surrogates"]


def test_an_encoding_that_is_neither_is_asked_for(read: Read) -> None:
    """An old code page's accents are no Windows-1252: nothing is guessed, and it may be told."""
    raw = f"{HEADER},reference\n{GOOD},García Muñoz\n".encode("cp850")
    for name in ("rows.csv", "rows.jsonl"):
        for other in (raw, raw.decode("cp850").encode("utf-16")):
            with pytest.raises(InvalidRequestError, match="save it as CSV UTF-8, or give --encoding"):
                read(other, name)
    assert the_request(read(raw, encoding="cp850")).reference == "García Muñoz"
    assert "is not of the file's encoding" in errors_of(read(raw, encoding="utf-8"))[0]


# --- What spreadsheets do to cells


@pytest.mark.parametrize(
    ("field", "cell", "said"),
    [
        *(("reference", cell, "is a formula") for cell in ("=SUM(A1:A3)", " =A1", "+SUM(A1)", "@cmd(1)")),
        *(("reference", cell, "is an error of the spreadsheet") for cell in ("#REF!", "#¿NOMBRE?", "#N/A")),
        ("reference", "lost \N{REPLACEMENT CHARACTER}", "has a character that was lost"),
        ("store_id", "5.9E+11", "is a number as a spreadsheet shortens it"),
        ("client_transaction_id", "2,026E+11", "is a number as a spreadsheet shortens it"),
        ("phone_number", "984111222.0", "ends in .0"),
        *(("reference", cell, None) for cell in ("-10% today", "+593 bonus", "#17")),
        ("client_transaction_id", "12E5", None),
    ],
)
def test_what_a_spreadsheet_made_of_a_cell(read: Read, field: str, cell: str, said: str | None) -> None:
    """Of CSV and of JSON alike; what people write is left alone."""
    values = {
        "phone_number": "0991112223", **FIXED, KEY: "a", "reference": "r", "store_id": "S1", field: cell,
    }  # fmt: skip
    text = ";".join([*values, "tip"]) + "\n" + ";".join([*values.values(), "5"]) + "\n"
    for file in (read(text), read(json_lines(values | {"tip": 5}), "rows.jsonl")):
        assert (file.requests == []) == (said is not None)
        assert said is None or said in errors_of(file)[0]


# --- What only the whole file, or the profile, can find


def test_equal_keys_are_found_also_in_rows_with_errors(read: Read) -> None:
    """Every row of the key is bad, and each names the others; the rest is counted by customer."""
    lines = [GOOD, GOOD.replace("-1", "-2"), GOOD.replace("USD", "usd"), GOOD, GOOD.replace("-1", "-3")]
    file = read("\n".join([HEADER, *lines]))
    assert [error for error in errors_of(file) if "the same" in error] == [
        "line 2, client_transaction_id: is the same as in lines 4, 5",
        "line 4, client_transaction_id: is the same as in lines 2, 5",
        "line 5, client_transaction_id: is the same as in lines 2, 4",
    ]
    assert (len(file.errors), len(file.bad), [each.amount for each in file.requests]) == (4, 3, [1150, 1150])
    assert list(file.lanes.values()) == [2]


def test_a_lost_zero_is_seen_by_its_neighbours(read: Read) -> None:
    """Only where others of the same country begin with one and are a digit longer."""
    phones = ("0991112223,593", "991112224,593", "991112225,51", "99111222,593")
    lines = [f"{phone},USD,5,,{number}" for number, phone in enumerate(phones)]
    file = read("\n".join([HEADER, *lines]))
    assert [error.line for error in file.errors] == [3]
    assert (len(file.requests), len(file.lanes)) == (3, 3)


def test_the_profile_is_asked_too(read: Read) -> None:
    """What only a profile knows is an error of the row, too; it may say that a nick name needs no phone."""
    text = "nick_name,by_nick_name,country_code,currency,tip,client_transaction_id\nana,true,593,USD,5,o-1\n"
    profile = ServiceProfile(nick_name_flag="byNickName", phone_optional_with_nick_name=True)
    assert the_request(read(text, profile=profile)).by_nick_name is True
    profile = ServiceProfile(max_lengths={"client_transaction_id": 3}, ranges={"amount": (1, 5)})
    assert errors_of(read(f"{HEADER}\n{GOOD}\n", profile=profile)) == [
        "line 2, client_transaction_id: must be at most 3 characters",
        "line 2, amount: must be 1 to 5",
    ]


def test_an_unreadable_file_is_one_error(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is said: another ending, another place, a file that is split."""
    (tmp_path / "d.csv").mkdir()
    for name, said in (("rows.pdf", "must end in"), ("none.csv", "be read"), ("d.csv", "regular file")):
        with pytest.raises(InvalidRequestError, match=said):
            read_file(tmp_path / name)
    assert MAX_ROWS == 100_000
    monkeypatch.setattr("payclient.rows.MAX_ROWS", 10)
    lines = [f"{GOOD}{number}" for number in range(11)]
    assert len(read("\n".join([HEADER, *lines[:10]])).rows) == 10
    with pytest.raises(InvalidRequestError, match="more than 10 rows: split the file"):
        read("\n".join([HEADER, *lines]))


# --- What is left out


def test_what_is_left_out(read: Read, tmp_path: Path) -> None:
    """Each line of JSON as it stands; of a spreadsheet CSV, its typed cells as text, the errors empty."""
    row = '{"phone_number": "1", "country_code": "593", "currency": "usd", "tip": 5.0, "client_transaction_id": "a"}'
    good = row.replace("5.0", "5").replace("usd", "USD").replace('"a"', '"b"')
    file = read(f"{row}\n{row[:50]}\n{{}}\n{good}\n", "rows.jsonl")
    with pytest.raises(ConfigurationError, match=r"must end in \.jsonl"):
        bad_rows(file, tmp_path / "bad.csv", Dialect())
    left = bad_rows(file, tmp_path / "bad.jsonl", Dialect())
    assert left.decode().splitlines() == [row, row[:50], "{}"]
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", 984111222, 12.5, "#N/A"])
    names, cells = (
        bad_rows(read_file(path, TYPED), tmp_path / "bad.csv", Dialect()).decode("utf-8-sig").splitlines()
    )
    assert names == "clave,telefono,amount_without_tax,tip,nota,fault"
    assert cells.startswith("k,984111222,12.5,,,")
    assert "telefono: must be a text" in cells


def test_no_number_of_a_spreadsheet_becomes_thousands_in_the_file_of_the_bad_rows(tmp_path: Path) -> None:
    """That is written as its language has it, beside texts that have the other mark, and is charged later."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k-1", "0984111222", 12.345], ["k-2", "", "20.50"])
    left = tmp_path / "bad.csv"
    left.write_bytes(bad_rows(read_file(path, TYPED), left, Dialect(delimiter=";", mark=",")))
    rest = attrs.evolve(TYPED, ignore_rest=True)
    for told in (attrs.evolve(rest, decimal_mark="."), attrs.evolve(rest, decimal_mark=",")):
        again = read_file(left, told)
        assert again.requests == []
        assert errors_of(again)[0].startswith("line 2, amount_without_tax: ")
    with pytest.raises(InvalidRequestError, match="some amounts have a decimal comma and others a decimal"):
        read_file(left, rest)


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
TYPED = form(
    columns={KEY: "clave", "phone_number": "telefono"}, constants=FIXED, keep=("nota",),
    amounts="decimal",
)  # fmt: skip


def test_typed_cells_need_neither_encoding_nor_decimal_mark(tmp_path: Path) -> None:
    """An amount is the number that the spreadsheet shows, a date is a text, and a key may be a number."""
    path = sheet(
        tmp_path / "cobros.xlsx", SHEET, ["Ñ-1", "0984111222", 1250.5, None, datetime.date(2026, 1, 2)],
        [None, None, None, None, None], [1002, "0984111223", 0.1 + 0.2, 1], ["k-3", "0984111224", "1.250,50", 10.505],
    )  # fmt: skip
    file = read_file(path, attrs.evolve(TYPED, map=(*TYPED.map, "reference=nota"), keep=()))
    assert [request.reference for request in file.requests] == ["2026-01-02", None]
    assert [(row.line, row.key, row.request and row.request.amount) for row in file.rows] == [
        (2, "Ñ-1", 125050), (4, "1002", 130), (5, "k-3", None)
    ]  # fmt: skip
    assert errors_of(file)[0].startswith("line 5, tip: has 3 digits after the decimal point")
    assert file.description == "spreadsheet, decimal comma"


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
        (["k", "0984111222", 5, None, None, "=C2*2"], "line 2: has 6 cells and the header 5"),
    ],
)
def test_a_typed_cell_that_cannot_be_meant_is_named(tmp_path: Path, cells: list[Any], said: str) -> None:
    """By line, column and reason."""
    file = read_file(sheet(tmp_path / "cobros.xlsx", SHEET, cells), TYPED)
    assert file.requests == []
    assert any(error.removeprefix("line 2, ").startswith(said) for error in errors_of(file)), file.errors


@pytest.mark.parametrize("shown", ["0%", "0.00%", '0" "%'])
def test_a_percentage_is_no_amount(tmp_path: Path, shown: str) -> None:
    """A rate of 15% is the number 0.15, and would be charged as 15 cents. In a column that is kept it is text."""
    path = sheet(
        tmp_path / "cobros.xlsx", SHEET, ["k", "0984111222", 5, 0.15, 0.15], ["m", "0984111223", 5, 0.15]
    )
    book = openpyxl.load_workbook(path)
    for cell in ("D2", "E2"):
        book.active[cell].number_format = shown
    # A conditional format has numbers of its own: that of `0.00` is a percentage there.
    percentage = DifferentialStyle(numFmt=NumberFormat(numFmtId=2, formatCode="0%"))
    book.active.conditional_formatting.add("E2", Rule(type="expression", formula=["TRUE"], dxf=percentage))
    book.active["D3"].number_format = "0.00"
    book.save(path)
    file = read_file(path, TYPED)
    assert errors_of(file) == ["line 2, tip: is a percentage: write the amount itself"]
    assert [request.amount for request in file.requests] == [515]


def test_a_last_line_of_formulas_without_values_is_there(tmp_path: Path) -> None:
    """A program wrote them, and calamine ends before them: a charge is a bad row, and a sum is a total."""
    rows: list[list[Any]] = [SHEET, ["k", "0984111222", 5]]
    charge = read_file(sheet(tmp_path / "charge.xlsx", *rows, [], ["=A2", "=B2", "=C2"]), TYPED)
    assert (len(charge.requests), [row.line for row in charge.bad]) == (1, [4])
    total = read_file(sheet(tmp_path / "total.xlsx", *rows, [None, None, "=SUM(C2:C2)"]), TYPED)
    assert (len(total.requests), total.bad, total.total_lines, total.total_faults) == (1, [], [3], [])


def test_which_sheet_is_meant_is_not_guessed(tmp_path: Path) -> None:
    """Empty ones are passed over, two with content or none refused; one is named as it stands or by its shown place."""
    row = ["k", "0984111222", 5]
    assert read_file(sheet(tmp_path / "a.xlsx", SHEET, row, Hoja2=[]), TYPED).requests
    two = sheet(tmp_path / "two.xlsx", ["Notas"], Cobros=[SHEET, row], **{"1": []})
    sheet(tmp_path / "c.xlsx")
    for name in ("d.xlsx", "d.ods"):
        (tmp_path / name).write_bytes(b"clave;telefono\n")
    for name, said in (
        ("two.xlsx", r"2 sheets with content \(Sheet, Cobros, 1\): give --sheet"),
        ("c.xlsx", "is empty"),
        ("d.xlsx", "cannot be read as a spreadsheet"),
        ("d.ods", "cannot be read as a spreadsheet"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            read_file(tmp_path / name, TYPED)
    for told in ("Cobros", "2"):
        found = read_file(two, attrs.evolve(TYPED, sheet=told))
        assert found.description.startswith("spreadsheet, sheet Cobros")
    for told in ("1", "4", "Otra"):
        with pytest.raises(InvalidRequestError, match=f"--sheet {told}: has no such sheet with content"):
            read_file(two, attrs.evolve(TYPED, sheet=told))


def rewritten(path: Path, part: str, change: Callable[[bytes], bytes], name: str | None = None) -> Path:
    """The spreadsheet with one part changed, or under another name."""
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    parts[name or part] = change(parts.pop(part))
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in parts.items():
            archive.writestr(each, content)
    return path


@pytest.mark.parametrize(
    ("part", "old", "new", "name"),
    [
        ("xl/workbook.xml", b"Sheet", b"&#27;[2J", None),
        ("xl/workbook.xml", b"r:id=", b"id=", None),
        (
            "xl/worksheets/sheet1.xml",
            b"</sheetData>",
            b'<row r="9"><c r="ZZZZ9"><f>1</f></c></row></sheetData>',
            None,
        ),
        ("xl/worksheets/sheet1.xml", b"", b"", "xl/worksheets/SHEET1.xml"),
    ],
    ids=["bad character", "no relation", "column beyond all", "name in capitals"],
)
def test_a_spreadsheet_that_only_calamine_reads_is_refused(
    tmp_path: Path, part: str, old: bytes, new: bytes, name: str | None
) -> None:
    """Its formulas and hidden rows cannot be found; it is bad input, and no traceback."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5])
    rewritten(path, part, lambda content: content.replace(old, new, 1), name)
    with pytest.raises(InvalidRequestError, match="cannot be read as a spreadsheet"):
        read_file(path, TYPED)


def test_a_spreadsheet_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """A blank far from the rows makes a table of 400 GB, and a small file may unpack to a huge one."""
    path, name = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5]), "xl/worksheets/sheet1.xml"
    far = b'<row r="1048576"><c r="AA1048576" t="inlineStr"><is><t> </t></is></c></row></sheetData>'
    styled = b'<row r="1048576"><c r="XFD1048576" s="0"/></row></sheetData>'
    assert read_file(
        rewritten(path, name, lambda content: content.replace(b"</sheetData>", styled)), TYPED
    ).requests
    rewritten(path, name, lambda content: content.replace(b"</sheetData>", far))
    with pytest.raises(InvalidRequestError, match="cells up to column AA and line 1048576: delete those"):
        read_file(path, TYPED)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("blank", "w") as file:
        for _ in range(257):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InvalidRequestError, match="unpacks to more than 256 MB: copy the rows alone"):
        read_file(path, TYPED)


def test_a_sheet_that_is_not_read_may_be_of_any_size(tmp_path: Path) -> None:
    """A hidden sheet, of the lists of a program perhaps, takes no memory; nor does a chart beside the rows."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5])
    book = openpyxl.load_workbook(path)
    book.create_chartsheet("chart")
    lists = book.create_sheet("lists")
    lists["XFD1048576"], lists.sheet_state = " ", "hidden"
    book.save(path)
    assert read_file(path, TYPED).requests


@pytest.mark.parametrize("at", [0, 8], ids=["content", "method"])
def test_a_sheet_that_cannot_be_unpacked_is_refused(tmp_path: Path, at: int) -> None:
    """A half-copied download, or a part packed in another way: bad input, and no traceback."""
    path, part = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5]), b"xl/worksheets/sheet1.xml"
    raw = bytearray(path.read_bytes())
    begin = raw.index(part) + len(part) if at == 0 else raw.rindex(part) - 46 + 10
    raw[begin : begin + 2] = bytes([93, 0]) if at else bytes([255, 255])
    path.write_bytes(raw)
    with pytest.raises(InvalidRequestError, match="cannot be read as a spreadsheet"):
        read_file(path, TYPED)


def test_a_name_that_is_broken_over_lines_is_given_in_one(tmp_path: Path) -> None:
    """As a spreadsheet's narrow columns have it; nobody types a line break behind --map."""
    names = ["clave", "Teléfono\ncelular", "Valor \n  USD", "Nombre\ncompleto"]
    path = sheet(tmp_path / "a.xlsx", names, ["k", "0984111222", 5, "Ana"])
    columns = {KEY: "clave", "phone_number": "telefono celular", "amount_without_tax": "Valor USD"}
    named = form(columns=columns, constants=FIXED, amounts="decimal", ignore_rest=True)
    assert [request.amount for request in read_file(path, named).requests] == [500]
    text = '"Cobros\r\nde marzo;\r\n"Teléfono\r\ncelular";"Valor\r\nUSD";clave\r\n0984111222;5,00;k\r\n;5,00;l\r\n'
    (saved := tmp_path / "a.csv").write_bytes(text.encode())
    file = read_file(saved, named)
    assert [request.amount for request in file.requests] == [500]
    assert (file.records.line, [row.line for row in file.bad]) == (3, [7])


@pytest.mark.parametrize("quote", ['"', "'"])
def test_cells_without_addresses_are_looked_at_too(tmp_path: Path, quote: str) -> None:
    """Some programs leave them out. An error and a formula without its value count, and are not read as empty."""
    rows: list[list[Any]] = [
        SHEET,
        ["k", "0984111222", 5, "#REF!"],
        ["l", "0984111223", 5, "=B2*2"],
        ["m", "0984111224", 5, 1],
    ]
    path = sheet(tmp_path / "a.xlsx", *rows)
    rewritten(
        path,
        "xl/worksheets/sheet1.xml",
        lambda content: re.sub(rb'(<(?:c|row)) r="[A-Z0-9]+"', rb"\1", content).replace(b'"', quote.encode()),
    )
    file = read_file(path, TYPED)
    assert [request.client_transaction_id for request in file.requests] == ["m"]
    assert [error.split(" ")[4:6] for error in errors_of(file)] == [["an", "error"], ["a", "formula"]]


def test_a_date_by_formula_beside_the_key_is_no_error(tmp_path: Path) -> None:
    """Only an id must stay as it is."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5, 7])
    formula = b"<f>MONTH(TODAY())</f><v>7</v>"
    rewritten(path, "xl/worksheets/sheet1.xml", lambda content: content.replace(b"<v>7</v>", formula))
    assert [each.tip for each in read_file(path, TYPED).requests] == [700]


def test_a_hidden_sheet_is_not_read(tmp_path: Path) -> None:
    """Nobody sees its rows, and beside it the other is the only one with content."""
    path = sheet(tmp_path / "a.xlsx", SHEET, ["k", "0984111222", 5], old=[SHEET, ["j", "0984111223", 5]])
    book = openpyxl.load_workbook(path)
    for state in ("hidden", "veryHidden"):
        book["old"].sheet_state = state
        book.save(path)
        assert [each.client_transaction_id for each in read_file(path, TYPED).requests] == ["k"]
        with pytest.raises(InvalidRequestError, match="--sheet old: has no such sheet"):
            read_file(path, attrs.evolve(TYPED, sheet="old"))


def test_the_same_amount_of_another_currency_is_not_the_same(read: Read) -> None:
    """It is no charge that somebody may have listed twice."""
    lines = "".join(f"k-{each};0984111222;500;{each}\n" for each in ("USD", "EUR"))
    file = read(
        f"clave;telefono;amount_without_tax;currency\n{lines}",
        columns={KEY: "clave", "phone_number": "telefono"},
        constants={"country_code": "593"},
    )
    assert (len(file.requests), file.doubles) == (2, [])


def test_each_row_of_an_equal_key_names_others(read: Read) -> None:
    """Five of them, and that there are more."""
    lines = "".join(f"k;098411122{number};500\n" for number in range(8))
    columns = {KEY: "clave", "phone_number": "telefono"}
    file = read(f"clave;telefono;amount_without_tax\n{lines}", columns=columns, constants=FIXED)
    assert errors_of(file)[0] == "line 2, clave: is the same as in lines 3, 4, 5, 6, 7, ..."
    assert errors_of(file)[-1] == "line 9, clave: is the same as in lines 2, 3, 4, 5, 6, ..."


@pytest.mark.parametrize("delimiter", ["\r", "\n", '"', "\0", ";;", ""])
def test_a_delimiter_is_one_character_between_cells(delimiter: str) -> None:
    """What ends a line or holds a cell is none."""
    with pytest.raises(ConfigurationError, match="the delimiter must be one character"):
        Format(delimiter=delimiter)


def test_of_several_totals_the_last_is_that_of_all(read: Read) -> None:
    """A subtotal above it is one of some rows."""
    text = "clave;telefono;valor\na;0987000031;3,50\nb;0987000032;1,50\nSubtotal;;1,50\nTotal;;5,00\n"
    file = read(text, **attrs.asdict(FOUND))
    assert (file.total_lines, file.total_faults) == ([4, 5], [])


def test_a_byte_order_mark_says_more_than_an_option(read: Read) -> None:
    """Of several files under one command, each may be another's."""
    text = "\ufeffclave;telefono;amount_without_tax;reference\nk;0984111222;500;Ñandú\n"
    columns = {KEY: "clave", "phone_number": "telefono"}
    file = read(text, columns=columns, constants=FIXED, encoding="cp1252")
    assert [each.reference for each in file.requests] == ["Ñandú"]


def test_a_flag_of_a_table_is_true_or_false(read: Read) -> None:
    """As written; a word such as yes may mean another thing."""
    for cell, good in (("true", True), ("TRUE", False), ("1", False), ("si", False)):
        text = f"client_transaction_id;nick_name;tip;by_nick_name\nk;ana;5;{cell}\n"
        file = read(text, profile=PAYPHONE, constants=FIXED)
        said = [error for error in errors_of(file) if "must be true or false" in error]
        assert bool(said) is not good


def test_a_phone_that_lost_its_zero_is_found_beside_the_other_spelling_of_its_country(read: Read) -> None:
    """+593 is 593; the next number may be somebody else's."""
    columns = {KEY: "clave", "phone_number": "telefono"}
    rows = "a;984111222;5;+593\nb;0984111223;5;593\n"
    file = read(f"clave;telefono;tip;country_code\n{rows}", columns=columns, constants={"currency": "USD"})
    assert [row.key for row in file.bad] == ["a"]


def test_a_mark_is_proven_by_what_only_it_can_read() -> None:
    """Thousands of the other prove nothing."""
    assert find_mark(["1,000", "2.50"]) == "."
    assert find_mark(["1.000", "2,50"]) == ","


def test_an_empty_text_of_json_is_a_text(read: Read) -> None:
    """Null is left out; in a table an empty cell is."""
    line = {"phone_number": "0984111222", **FIXED, "tip": 1, KEY: "k", "reference": "", "store_id": None}
    (request,) = read(json.dumps(line), name="rows.jsonl").requests
    assert (request.reference, request.store_id) == ("", None)


def test_a_file_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    """Before it is read."""
    path = tmp_path / "rows.csv"
    path.touch()
    os.truncate(path, (256 << 20) + 1)  # holes
    with pytest.raises(InvalidRequestError, match="is larger than 256 MB"):
        read_file(path, TYPED)


@pytest.mark.parametrize("name", ["RANDBETWEEN(1,99)", '"2026-"&amp;TEXT(TODAY(),"mm")&amp;B2', "A9&amp;B2"])
def test_a_key_that_is_another_one_later_is_an_error(tmp_path: Path, name: str) -> None:
    """A spreadsheet makes it anew whenever the file is opened: what was paid would be charged again. Others may be."""
    rows = ([number, f"098411122{number}", 5] for number in range(3))
    shared = [f'<f t="shared" si="0" ref="A2:A4">{name}</f>', *['<f t="shared" si="0"/>'] * 2]

    def change(content: bytes) -> bytes:
        for number, formula in enumerate(shared):
            content = content.replace(b"<v>%d</v>" % number, f"{formula}<v>{number}</v>".encode(), 1)
        return content

    path = sheet(tmp_path / "a.xlsx", SHEET[:3], *rows)
    file = read_file(rewritten(path, "xl/worksheets/sheet1.xml", change), TYPED)
    if name.startswith("A9"):
        assert [each.client_transaction_id for each in file.requests] == ["0", "1", "2"]
    else:
        said = "clave: is a formula of chance or of the date, and has another value later: write the value itself"
        assert errors_of(file) == [f"line {line}, {said}" for line in (2, 3, 4)]


#: A cell of an .ods file: its type, its other attributes, and what it shows.
OPEN_CELL = '<table:table-cell office:value-type="{}" {}><text:p>{}</text:p></table:table-cell>'


def open_document(rows: str) -> str:
    """Return the content of an .ods file with these rows below a header, as LibreOffice writes it."""
    header = "".join(OPEN_CELL.format("string", "", name) for name in SHEET[:3])
    names = "urn:oasis:names:tc:opendocument:xmlns"
    spaces = " ".join(f'xmlns:{name}="{names}:{name}:1.0"' for name in ("office", "table", "text"))
    return (
        f'<office:document-content {spaces} xmlns:calcext="x"><office:body><office:spreadsheet>'
        f'<table:table table:name="Hoja1"><table:table-row>{header}</table:table-row>{rows}</table:table>'
        "</office:spreadsheet></office:body></office:document-content>"
    )


def write_open_document(path: Path, content: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/manifest.xml", "<manifest/>")
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", content)
    return path


def test_an_open_document_is_read_as_well(tmp_path: Path) -> None:
    """Typed cells of LibreOffice. A cell with an error, one merged with the next below, a hidden row refuse it.

    So does a formula that has another value later, which may be an id: what was paid would be charged again. One
    without its value is read as empty: rows of one purchase would be several.
    """
    row = "".join(OPEN_CELL.format("string", "", text) for text in ("k", "0984111222"))
    row += OPEN_CELL.format("float", 'office:value="12.5"', "12,50")
    content = open_document(f"<table:table-row>{row}</table:table-row>")
    for said, old, new in (
        (None, "", ""),
        ("cells that show an error", '"float"', '"string" calcext:value-type="error"'),
        ("cells that are merged across rows", 'value="12.5"', 'value="12.5" table:number-rows-spanned="2"'),
        (
            "formulas without a value",
            'office:value-type="float" office:value="12.5"',
            'table:formula="of:=1&gt;[.A9]"',
        ),
        ("has hidden rows", "row><table:table-row", 'row><table:table-row table:visibility="filter"'),
        (
            "formulas of chance or of the date",
            '"string" ><text:p>k',
            '"string" table:formula="of:=RAND()"><text:p>k',
        ),
    ):
        path = write_open_document(tmp_path / "a.ods", content.replace(old, new) if old else content)
        if said is None:
            assert the_request(read_file(path, TYPED)).amount == 1250
        else:
            with pytest.raises(InvalidRequestError, match=said):
                read_file(path, TYPED)


def test_a_percentage_of_an_open_document_is_no_amount(tmp_path: Path) -> None:
    """Also where a row and a cell stand for several; in a column that is not read it may stand."""
    rate = OPEN_CELL.format("percentage", 'office:value="0.15" {}', "15%")
    phone = OPEN_CELL.format("string", "", "0984111222")
    rows = [
        ('table:number-rows-repeated="2"', ""),
        ('table:number-rows-repeated="2"', OPEN_CELL.format("string", "", "k") + phone + rate.format("")),
        ("", OPEN_CELL.format("string", "", "m") + rate.format('table:number-columns-repeated="2"')),
        (
            "",
            OPEN_CELL.format("string", "", "n")
            + phone
            + OPEN_CELL.format("float", 'office:value="5"', "5")
            + rate.format(""),
        ),
    ]
    content = "".join(f"<table:table-row {these}>{cells}</table:table-row>" for these, cells in rows)
    header = OPEN_CELL.format("string", "", SHEET[2])
    content = open_document(content).replace(header, header + OPEN_CELL.format("string", "", "nota"))
    file = read_file(write_open_document(tmp_path / "a.ods", content), TYPED)
    said = "amount_without_tax: is a percentage: write the amount itself"
    assert [error for error in errors_of(file) if "percentage" in error] == [
        f"line {line}, {said}" for line in (4, 5, 6)
    ]
    assert [request.amount for request in file.requests] == [500]


def test_a_merged_cell_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Three rows of one order would be three purchases. A title, an unread column and empty rows are left alone."""
    rows = [[f"n-{n}", f"098700003{n}", 25.5, None if n else "order-7"] for n in range(3)]
    names = ["clave", "telefono", "valor", "purchase", "casa"]
    path = sheet(tmp_path / "cobros.xlsx", ["Cobros de noviembre"], [], names, *rows)
    book = openpyxl.load_workbook(path)
    for cells in ("A1:E2", "D4:D6", "E4:E6", "A8:A9", "B8:B9"):
        book.active.merge_cells(cells)
    book.save(path)
    file = read_file(path, FOUND, profile=PAYPHONE)
    assert [row.purchase for row in file.rows if row.request] == ["order-7"]
    assert errors_of(file) == [
        f"line {line}, purchase: is merged with the cell above: write the value into each row"
        for line in (5, 6)
    ]


def test_a_hidden_row_is_not_charged_without_a_word(tmp_path: Path) -> None:
    """Who filters a sheet sees the others only. Left out, it goes to the file of the bad rows as it stands."""
    path = sheet(tmp_path / "cobros.xlsx", SHEET[:3], *([f"n-{n}", f"098700003{n}", 25.5] for n in range(4)))
    book = openpyxl.load_workbook(path)
    book.active.auto_filter.ref = "A1:C5"
    for line in (3, 9):
        book.active.row_dimensions[line].hidden = True
    book.active.column_dimensions["C"].hidden = True
    book.save(path)
    file = read_file(path, TYPED)
    assert [row.key for row in file.rows if row.request] == ["n-0", "n-2", "n-3"]
    words = "is hidden, by a filter perhaps: show it, or leave out what is hidden by --skip-bad"
    assert errors_of(file) == [f"line 3: {words}"]
    left = bad_rows(file, tmp_path / "bad.csv", Dialect()).decode("utf-8-sig").splitlines()
    assert left[1].startswith("n-1,0987000031,25.5,")


def test_a_row_is_hidden_however_it_is_written(tmp_path: Path) -> None:
    """A flag of XML is 1 or true, by the program that writes it."""
    path = sheet(tmp_path / "a.xlsx", SHEET[:3], *([f"n-{n}", f"098700003{n}", 25.5] for n in range(2)))
    rewritten(
        path,
        "xl/worksheets/sheet1.xml",
        lambda text: text.replace(b'<row r="2"', b'<row hidden="true" r="2"'),
    )
    assert [row.key for row in read_file(path, TYPED).rows if row.request] == ["n-1"]


def test_a_spreadsheet_that_is_saved_anew_meanwhile_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden row of the one and the shown rows of the other would be charged."""
    rows = [[f"n-{n}", f"098700003{n}", 25.5] for n in range(2)]
    path, shown = (sheet(tmp_path / name, SHEET[:3], *rows) for name in ("cobros.xlsx", "shown.xlsx"))
    book = openpyxl.load_workbook(path)
    book.active.row_dimensions[3].hidden = True
    book.save(path)
    unpack = zipfile.ZipFile
    monkeypatch.setattr(
        zipfile, "ZipFile", lambda file: unpack((not shown.exists() or shown.replace(path)) and file)
    )
    assert [row.key for row in read_file(path, TYPED).rows if row.request] == ["n-0"]


def test_a_hidden_line_without_a_cell_is_an_empty_one(tmp_path: Path) -> None:
    """Spreadsheets hide the lines below the rows by the hundred. Nothing in them could be charged."""
    charges = [[f"n-{n}", f"098700003{n}", 25.5] for n in range(2)]
    path = sheet(tmp_path / "cobros.xlsx", SHEET[:3], charges[0], [], charges[1], [], ["TOTAL", None, 51])
    book = openpyxl.load_workbook(path)
    for line in (3, 5):
        book.active.row_dimensions[line].hidden = True
    book.save(path)
    file = read_file(path, TYPED)
    assert (file.bad, file.empty, len(file.requests)) == ([], [3], 2)


# --- What people do to a spreadsheet

FOUND = form(
    columns={KEY: "clave", "phone_number": "telefono", "amount_without_tax": "valor"}, constants=FIXED,
    amounts="decimal", ignore_rest=True,
)  # fmt: skip


def test_a_table_is_found_under_its_title(tmp_path: Path) -> None:
    """A title and an empty line above, empty lines between, a total below, and columns that nobody asked for."""
    path = sheet(
        tmp_path / "cobros.xlsx", ["Cobros de noviembre"], [], ["clave", "telefono", "valor", "casa", None],
        ["n-1", "0987000031", 25.5, "A1", None, "llamar"], [],
        ["n-2", 987000032.0, "$ 1.234,50", datetime.date(2026, 1, 2)],
        [], [None, "TOTAL", 1260],
    )  # fmt: skip
    file = read_file(path, FOUND, profile=PAYPHONE)
    assert errors_of(file) == []
    assert [(each.phone_number, each.amount) for each in file.requests] == [
        ("0987000031", 2550), ("0987000032", 123450),
    ]  # fmt: skip
    assert file.description == "spreadsheet, header in line 3, decimal comma"
    assert (file.empty, file.total_lines, file.total_faults, file.unread) == ([5], [8], [], ["casa"])
    assert [row.respelled for row in file.rows] == [False, True]


def test_a_total_that_is_not_the_sum_of_the_rows_is_named(read: Read) -> None:
    """The last line has neither a key nor a customer."""
    text = "clave;telefono;valor\nn-1;0987000031;25,50\nn-2;0987000032;10,00\n;;36,50\n"
    (fault,) = read(text, profile=PAYPHONE, **attrs.asdict(FOUND)).total_faults
    assert str(fault) == "line 4, valor: the total is not the sum of the rows, 3550 cents"
    (fault,) = read(text.replace("0987000031", ""), profile=PAYPHONE, **attrs.asdict(FOUND)).total_faults
    assert "3550 cents" in str(fault), "whatever else is wrong with the rows"
    for bad in ("25", "25,5,0"):
        assert read(text.replace("25,50", bad), **attrs.asdict(FOUND)).total_faults == (
            [] if "," in bad else [ANY]
        )
    for last in ("n-3;;5,00", ";0987000033;5,00", ";;;", "TOTAL-3;;5,00"):
        assert read(text.replace(";;36,50", last), **attrs.asdict(FOUND)).total_lines == []


def test_the_line_of_the_header_may_be_told(read: Read) -> None:
    """A line above may name as many columns; Excel's own line of the delimiter names none."""
    text = f"{HEADER}\n{GOOD}\n".replace(",", ";")
    assert errors_of(read(f"{HEADER}\n{text}", header_row=1))
    for file in (read(f"{HEADER}\n{text}", header_row=2, delimiter=";"), read(f"sep=;\n{text}")):
        assert [(row.line, row.errors) for row in file.rows] == [(3, [])]


def test_a_header_among_the_rows_hides_none_of_them(tmp_path: Path, read: Read) -> None:
    """A whole sheet was sorted, its header too. What its line is may be told."""
    rows: list[list[Any]] = [
        ["a-1", "0987000031", 25.5],
        ["clave", "telefono", "valor"],
        ["n-1", "0987000032", 12.5],
    ]
    path, text = sheet(tmp_path / "rows.xlsx", *rows), "\n".join(",".join(map(str, each)) for each in rows)
    for read_it in (partial(read_file, path, FOUND), partial(read, text, **attrs.asdict(FOUND))):
        with pytest.raises(InvalidRequestError, match="line 1 is a row, and stands above the header"):
            read_it()
    assert len(read_file(path, attrs.evolve(FOUND, header_row=2)).requests) == 1
    total = sheet(tmp_path / "total.xlsx", ["TOTAL", 1, 12.5], *rows[1:])
    assert len(read_file(total, FOUND).requests) == 1


@pytest.mark.parametrize(
    ("text", "cents"),
    [("$ 1.234,50", 123450), ("$25,00", 2500), ("US$ 3,50", 350), ("USD 3,50", 350), ("3,50 USD", 350),
     ("€ 3,50", None), ("3,50 EUR", None), ("S/ 3,50", None), ("$ -3,50", None), ("$ $ 3,50", None), ("$3,50$", None),
     ("1.234.567,50", 123456750), ("1.234 567,50", None)],
)  # fmt: skip
def test_the_sign_of_a_currency_is_read(read: Read, text: str, cents: int | None) -> None:
    """Where it may be that of the row's currency."""
    file = read(f"clave;telefono;valor\na;0987000031;{text}\nb;0987000032;1,50\n", **attrs.asdict(FOUND))
    request = file.rows[0].request
    assert (None if request is None or file.rows[0].errors else request.amount) == cents


@pytest.mark.parametrize(("currency", "good"), [("USD", True), ("MXN", True), ("EUR", False), ("PEN", False)])
def test_a_dollar_sign_is_not_that_of_every_currency(read: Read, currency: str, good: bool) -> None:
    """Many have it; what has a sign of its own was meant in another currency."""
    options = attrs.asdict(attrs.evolve(FOUND, set=("country_code=593", f"currency={currency}")))
    file = read("clave;telefono;valor\na;0987000031;$ 3,50\nb;0987000032;1,50\n", **options)
    assert bool(file.errors) is not good


@pytest.mark.parametrize(
    ("phone", "found"),
    [
        ("0987000031", "0987000031"), ("987000031", "0987000031"), ("593987000031", "0987000031"),
        ("+593 98 700 0031", "0987000031"), ("+593 (0)98-700-0031", "0987000031"), ("00593987000031", "0987000031"),
        ("098 700 0031", "0987000031"), ("98700003", None), ("098700003", None), ("09870000311", None),
        ("+51 987000031", None), ("0098700003", None), ("+0987000031", None), ("098700003a", None),
        ("0987000031a", None),
    ],
)  # fmt: skip
def test_one_customer_is_one_customer(read: Read, phone: str, found: str | None) -> None:
    """Other spellings of a phone or a country are corrected where the profile's shape is exact, and else bad."""
    text = f"clave;telefono;valor;country_code\na;{phone};3,50;+593\nb;0987000031;3,50;593\n"
    options = attrs.asdict(attrs.evolve(FOUND, set=("currency=USD",)))
    file = read(text, profile=PAYPHONE, **options)
    row = file.rows[0]
    assert (None if row.errors else row.request and row.request.phone_number) == found
    assert row.respelled == (found is not None)  # the country, at least
    assert file.doubles == ([[2, 3]] if found else [])
    # Without a shape nothing is corrected; with one only what is not as it should be.
    assert not read(text, **options).rows[0].respelled
    assert not file.rows[1].respelled


# --- Whatever is written

text = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
identifiers = text.filter(lambda one: one == one.strip() and one.strip() != "" and id_fault(one) is None)
bills = st.builds(BillTo, first_name=st.none() | text, bill_to_id=st.none() | st.integers(0, 9))
items = st.lists(st.builds(LineItem, product_sku=text, unit_price=st.integers(0, 999)), max_size=3)
requests = st.builds(
    SaleRequest,
    phone_number=st.from_regex(r"[0-9]{6,12}", fullmatch=True),
    country_code=st.from_regex(r"[0-9]{1,3}", fullmatch=True),
    currency=st.sampled_from(["USD", "EUR"]),
    client_transaction_id=identifiers,
    amount_without_tax=st.integers(1, 10**9),
    tip=st.none() | st.integers(0, 10**6),
    time_zone=st.none() | st.integers(-12, 12),
    reference=st.none() | text,
    order=st.none() | st.builds(Order, bill_to=st.none() | bills, line_items=items),
)
#: What a reader takes for a spreadsheet's doing: formulas, errors, shortened numbers, lost characters.
MANGLED = re.compile(r"\s*[=+@#-]|.*\N{REPLACEMENT CHARACTER}|[0-9][.,][0-9]+E")
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@quick
@given(request=requests, spelled=st.booleans())
def test_a_request_written_as_json_is_read_back(tmp_path: Path, request: SaleRequest, spelled: bool) -> None:
    """In either spelling, whatever its texts hold, but for a formula and its like, which are errors as in CSV."""

    def respell(value: Any) -> Any:
        if isinstance(value, dict):
            return {(to_service(name) if spelled else name): respell(inner) for name, inner in value.items()}
        return [respell(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(respell(attrs.asdict(request))) + "\n")
    (row,) = read_file(path).rows
    if row.errors:
        texts = {KEY: request.client_transaction_id, "reference": request.reference or ""}
        texts["clientTransactionId"] = texts[KEY]
        assert all(MANGLED.match(texts[error.column or ""]) for error in row.errors)
    else:
        assert row.request == request


@quick
@given(request=requests, delimiter=st.sampled_from(",;"))
def test_a_request_written_as_csv_is_read_back(tmp_path: Path, request: SaleRequest, delimiter: str) -> None:
    """Without its order, with either delimiter; a formula and its like are tried elsewhere."""
    request = attrs.evolve(request, order=None)
    assume(not any(MANGLED.match(text) for text in (request.client_transaction_id, request.reference or "")))
    values = attrs.asdict(request, filter=lambda field, _: field.name not in ("order", "by_nick_name"))
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(values), delimiter=delimiter)
        writer.writeheader()
        writer.writerow(values)
    assert the_request(read_file(path)) == request


@quick
@given(content=st.binary(max_size=300), name=st.sampled_from(["rows.csv", "rows.jsonl"]))
def test_no_file_is_a_crash(tmp_path: Path, content: bytes, name: str) -> None:
    """Bytes of any kind give rows, errors or one clear error."""
    path = tmp_path / name
    for begin in (b"", HEADER.encode() + b"\n"):
        path.write_bytes(begin + content)
        rows: list[Row] = []
        with contextlib.suppress(InvalidRequestError):
            rows = read_file(path).rows
        assert all((row.request is None) == bool(row.errors) for row in rows)
