"""Rows of files: what becomes a request, and what is a fault."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from payclient.errors import InvalidRequestError
from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.profile import ServiceProfile
from payclient.rows import MAX_ROWS, Row, read_file
from payclient.rows.format import Format
from payclient.validation import id_fault, to_service

HEADER = "phone_number,country_code,currency,amount_with_tax,tax,client_transaction_id"
GOOD = "0991112223,593,USD,1000,150,order-1"
JSON_ROW: dict[str, Any] = {
    "phoneNumber": "0991112223",
    "countryCode": "593",
    "currency": "USD",
    "amountWithTax": 1000,
    "clientTransactionId": "order-1",
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows_of(path: Path, **options: Any) -> list[Row]:
    return read_file(path, Format(**options)).rows


def faults_of(path: Path, **options: Any) -> list[str]:
    return [str(fault) for row in rows_of(path, **options) for fault in row.errors]


# --- CSV


def test_a_row_becomes_a_request(write: Write) -> None:
    """Empty cells are left out; the line is counted with the header."""
    (row,) = rows_of(write(f"{HEADER},store_id,reference\n{GOOD},S1,\n"))
    assert row.line == 2
    assert row.request == SaleRequest(
        phone_number="0991112223",
        country_code="593",
        currency="USD",
        amount_with_tax=1000,
        tax=150,
        client_transaction_id="order-1",
        store_id="S1",
    )


def test_a_spreadsheets_file_is_taken_as_it_is(write: Write) -> None:
    """BOM, CRLF, semicolons, the service's spelling, quotes, and rows left blank at the end."""
    text = (
        "\ufeffphoneNumber;countryCode;currency;amountWithoutTax;clientTransactionId;reference\r\n"
        '0991112223;593;USD;1000;order-1;"Café; with ""milk"""\r\n'
        ";;;;;\r\n"
        "\r\n"
    )
    (row,) = rows_of(write(text))
    assert row.request is not None
    assert row.request.reference == 'Café; with "milk"'


def test_another_column_is_the_key(write: Write) -> None:
    """It may be one that the model does not know, or one that it does."""
    header = HEADER.replace("client_transaction_id", "invoice_no")
    (row,) = rows_of(write(f"{header}\n{GOOD}\n"), columns={"client_transaction_id": "invoice_no"})
    assert row.key == "order-1"
    assert row.request is not None
    assert row.request.client_transaction_id == "order-1"
    header = HEADER.replace("client_transaction_id", "reference")
    (row,) = rows_of(write(f"{header}\n{GOOD}\n"), columns={"client_transaction_id": "reference"})
    assert row.request is not None
    assert row.request.reference == row.request.client_transaction_id == "order-1"


def test_a_nick_name_needs_no_phone(write: Write) -> None:
    text = "nick_name,by_nick_name,country_code,currency,tip,client_transaction_id\nana,true,593,USD,5,o-1\n"
    profile = ServiceProfile(nick_name_flag="byNickName", phone_optional_with_nick_name=True)
    (row,) = read_file(write(text), profile=profile).rows
    assert row.request is not None
    assert row.request.by_nick_name is True


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("\n", "line 1 is not a header"),
        (f"{HEADER}\n", "has no rows"),
        (f"{HEADER}\n\n,,,,,\n", "has no rows"),
        (f"{GOOD}\n{GOOD}\n", "is the header missing"),
        (
            HEADER.replace("currency", "curency") + f"\n{GOOD}\n",
            "unknown column curency",
        ),
        (f"{HEADER},phone\n{GOOD},1\n", "unknown column phone"),
        (f"{HEADER},0991112223\n{GOOD},1\n", "column 7 has no known name"),
        (f"{HEADER},PhoneNumber\n{GOOD},1\n", "unknown column PhoneNumber"),
        (f"{HEADER},phoneNumber\n{GOOD},1\n", "phone_number is there twice"),
        (f"{HEADER},order\n{GOOD},1\n", "order must be in a JSONL file"),
        (
            "currency,client_transaction_id\nUSD,1\n",
            "no column country_code; there is no column phone_number",
        ),
        ("phone_number,country_code,currency\n1,2,USD\n", "there is no column client_transaction_id"),
        ('"phone_number,country_code\n', "line 1 is not a header"),
    ],
)
def test_a_bad_header_is_one_clear_error(write: Write, content: str, said: str) -> None:
    """Nothing can be sent; a header that is a person's data is not repeated."""
    with pytest.raises(InvalidRequestError, match=said) as caught:
        read_file(write(content))
    assert "0991112223" not in str(caught.value)


def test_two_keys_in_a_header_are_an_error(write: Write) -> None:
    with pytest.raises(InvalidRequestError, match="client_transaction_id stands beside the column store_id"):
        rows_of(write(f"{HEADER},store_id\n{GOOD},S1\n"), columns={"client_transaction_id": "store_id"})
    with pytest.raises(InvalidRequestError, match="there is no column invoice"):
        rows_of(write(f"{HEADER}\n{GOOD}\n"), columns={"client_transaction_id": "invoice"})


@pytest.mark.parametrize(
    "cell", ["10.50", "1,000", "10,50", "1e3", " 100", "+100", "１００", "0x10", "1_000", "$5", "true"]
)
def test_amounts_are_whole_cents(write: Write, cell: str) -> None:
    """Nothing is rounded; the value is not repeated."""
    (fault,) = faults_of(write(f'{HEADER}\n0991112223,593,USD,"{cell}",150,order-1\n'))
    assert fault.startswith("line 2, amount_with_tax: must be whole cents")
    assert cell not in fault.replace("write 10.50 as 1050", "")


@pytest.mark.parametrize("cell", ["5,93999E+11", "5.93999E+11", "5E+11", "593e9"])
def test_a_phone_that_a_spreadsheet_shortened_is_a_fault(write: Write, cell: str) -> None:
    (fault,) = faults_of(write(f'{HEADER}\n"{cell}",593,USD,1000,150,order-1\n'))
    assert fault == (
        "line 2, phone_number: is a number as a spreadsheet shortens it: format the column as text"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by_nick_name": "yes"}, "by_nick_name: must be true or false"),
        ({"time_zone": "5.0"}, "time_zone: must be a whole number"),
        ({"time_zone": ""}, None),
        ({"time_zone": "-5"}, None),
        ({"amount": "1151"}, "amount: is 1 cent more than the sum of its parts"),
        ({"amount_with_tax": "-5"}, "amount_with_tax: is 0 to"),
        ({"amount_with_tax": "9" * 25}, "amount_with_tax: must be whole cents"),
        ({"currency": "usd"}, "currency: is three capital letters"),
        ({"currency": ""}, "currency: is required"),
        ({"country_code": "Ecuador"}, "country_code: is a country calling code"),
        ({"client_transaction_id": ""}, "client_transaction_id: is required"),
        ({"client_transaction_id": "order-1 "}, "client_transaction_id: has blanks"),
        ({"reference": "two\nlines"}, "reference: has control characters"),
        ({"reference": "NUL\0"}, "reference: has control characters"),
        ({"reference": "x" * 5000}, "reference: is longer"),
        ({"amount_with_tax": "", "tax": ""}, "amount: give at least one of"),
    ],
)
def test_a_fault_names_line_and_column(write: Write, change: dict[str, str], said: str | None) -> None:
    """As the file spells the column; what the model says of a request is said of its row."""
    names = [*HEADER.split(","), "amount", "by_nick_name", "time_zone", "reference"]
    values = {**dict(zip(names, GOOD.split(","), strict=False)), **change}
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerow(values)
    (row,) = rows_of(write(text.getvalue()))
    assert (row.request is None) == (said is not None)
    if said is not None:
        assert any(str(fault).startswith(f"line 2, {said}") for fault in row.errors), row.errors


def test_faults_use_the_spelling_of_the_file(write: Write) -> None:
    names = ",".join(map(to_service, HEADER.split(",")))
    (fault,) = faults_of(write(f"{names}\n{GOOD.replace('USD', 'usd')}\n"))
    assert fault.startswith("line 2, currency:")
    (fault,) = faults_of(write(f"{names}\n{GOOD.replace('593', 'x')}\n"))
    assert fault.startswith("line 2, countryCode:")


def test_all_faults_of_a_row_are_there(write: Write) -> None:
    assert len(faults_of(write(f"{HEADER}\n5E+11,593,USD,1.5,2.5,\n"))) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0991112223,593,US", "has 3 cells and the header 6: is it cut?"),
        (f"{GOOD},more", "has 7 cells and the header 6"),
        ('0991112223,593,USD,1000,150,"order', "a quote is not closed"),
        ('0991112223,593,USD,1000,150,"order"-1', "a quote is not closed, or stands inside a cell"),
    ],
)
def test_a_cut_line_is_a_fault_and_the_others_are_read(write: Write, line: str, said: str) -> None:
    first, second = rows_of(write(f"{HEADER}\n{GOOD}\n{line}"))
    assert first.request is not None
    assert second.request is None
    assert str(second.errors[0]).startswith("line 3: ")
    assert said in str(second.errors[0])


def test_a_line_is_counted_where_it_begins(write: Write) -> None:
    """Also after a cell with line breaks in it, and after blank lines."""
    text = f'{HEADER}\n0991112223,593,USD,1000,150,"a\nb"\n\n0991112223,593,USD,1.0,150,order-2\n'
    assert [fault.split(",")[0] for fault in faults_of(write(text))] == ["line 2", "line 5"]


# --- JSONL


def json_lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_a_line_with_an_order_becomes_a_request(write: Write) -> None:
    """Either spelling, null is left out, a BOM and blank lines are tolerated."""
    order = {
        "billTo": {"firstName": "Ana", "country": "EC", "email": None},
        "line_items": [{"productSKU": "x", "unit_price": 5}],
    }
    text = "\ufeff" + json_lines({**JSON_ROW, "order": order, "tip": None}) + "\n"
    (row,) = rows_of(write(text, "rows.jsonl"))
    assert row.request is not None
    assert row.request.order == Order(
        bill_to=BillTo(first_name="Ana", country="EC"), line_items=(LineItem(product_sku="x", unit_price=5),)
    )
    assert (row.line, row.key, row.request.amount) == (1, "order-1", 1000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"amountWithTax": 10.0}, "amountWithTax: is an int of cents, not float"),
        ({"amountWithTax": "1000"}, "amountWithTax: is an int of cents, not str"),
        ({"amountWithTax": True}, "amountWithTax: is an int of cents, not bool"),
        ({"phoneNumber": 991112223}, "phoneNumber: is a text, not int"),
        ({"phoneNumber": "5.9E+11"}, "phoneNumber: is a number as a spreadsheet"),
        ({"byNickName": 1}, "byNickName: is True or False"),
        ({"countryCode": None}, "countryCode: is required"),
        ({"clientTransactionId": 17}, "clientTransactionId: is a text, not int"),
        ({"clientTransactionId": None}, "clientTransactionId: is required"),
        ({"foo": 1}, "unknown column foo"),
        ({"0991112223": 1}, None),
        ({"currency": "usd"}, "currency: is three capital letters"),
        ({"phone_number": "1"}, "phone_number is there twice"),
        ({"order": []}, "order: must be an object"),
        ({"order": {"lineItems": {}}}, "order.line_items: must be an array"),
        ({"order": {"lineItems": ["x"]}}, "order.line_items[0]: must be an object"),
        (
            {"order": {"lineItems": [{}, {"unitPrice": 1.5}]}},
            "order.line_items[1].unit_price: is an int of cents, not float",
        ),
        ({"order": {"lineItems": [{"unitPrice": -1}]}}, "order.line_items[0].unit_price: is 0 to"),
        ({"order": {"billTo": {"country": "Ecuador"}}}, "order.bill_to.country: is two capital letters"),
        ({"order": {"billTo": {"name": "x"}}}, "order.bill_to.name: unknown name"),
        ({"order": {"billTo": {"firstName": 5}}}, "order.bill_to.first_name: is a text, not int"),
    ],
)
def test_nothing_is_coerced(write: Write, change: dict[str, Any], said: str | None) -> None:
    """A fault names the place inside the order as well, and repeats no value."""
    (row,) = rows_of(write(json_lines({**JSON_ROW, **change}), "rows.jsonl"))
    assert row.request is None
    assert any((said or "column 6 has no known name") in str(fault) for fault in row.errors), row.errors
    assert "0991112223" not in "".join(map(str, row.errors))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (json.dumps(JSON_ROW)[:40], "is not JSON: is it cut?"),
        ("[1]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('{"amountWithTax": NaN}', "has NaN or Infinity"),
        ('{"amountWithTax": 1, "amountWithTax": 2}', "has a name twice"),
        ("[" * 100_000, "is not JSON"),
        ('{"amount": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_a_bad_line_is_a_fault_and_the_others_are_read(write: Write, line: str | bytes, said: str) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    first, second = rows_of(write(json_lines(JSON_ROW).encode() + raw, "rows.jsonl"))
    assert first.request is not None
    assert str(second.errors[0]).startswith(f"line 2: {said}")


def test_another_name_is_the_key_of_an_object(write: Write) -> None:
    row = {**JSON_ROW, "invoiceNo": "inv-1"}
    assert faults_of(write(json_lines(row), "r.jsonl"), columns={"client_transaction_id": "invoiceNo"}) == [
        "line 1: clientTransactionId stands beside the column invoiceNo, which is read instead"
    ]
    del row["clientTransactionId"]
    (read,) = rows_of(write(json_lines(row), "r.jsonl"), columns={"client_transaction_id": "invoiceNo"})
    assert read.request is not None
    assert read.request.client_transaction_id == "inv-1"


# --- Both


@pytest.mark.parametrize(
    ("name", "said"),
    [("rows.pdf", "must end in .csv, .tsv, .txt, .xlsx, .ods or .jsonl"), ("none.csv", "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        rows_of(tmp_path / name)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InvalidRequestError, match=r"d\.csv"):
        rows_of(tmp_path / "d.csv")


def test_a_check_counts_and_sums_by_currency(write: Write) -> None:
    """Rows and money by currency, and the rows of each customer."""
    lines = [GOOD, GOOD.replace("-1", "-2"), GOOD.replace("-1", "-3").replace("USD", "EUR")]
    file = read_file(write("\n".join([HEADER, *lines])))
    assert file.bad == []
    assert (len(file.rows), file.totals) == (3, {"EUR": (1, 1150), "USD": (2, 2300)})
    assert list(file.lanes.values()) == [3]


def test_a_check_finds_equal_keys_also_in_rows_with_faults(write: Write) -> None:
    """Every row of the key is bad, and each names the others."""
    lines = [GOOD, GOOD.replace("-1", "-2"), GOOD.replace("USD", "usd"), GOOD]
    file = read_file(write("\n".join([HEADER, *lines])))
    assert [str(error) for error in file.errors if "the same" in error.reason] == [
        "line 2, client_transaction_id: is the same as in lines 4, 5",
        "line 4, client_transaction_id: is the same as in lines 2, 5",
        "line 5, client_transaction_id: is the same as in lines 2, 4",
    ]
    assert (len(file.errors), len(file.bad), file.totals) == (4, 3, {"USD": (1, 1150)})


def test_more_rows_than_a_run_holds_are_refused(write: Write) -> None:
    """The way out is said: split the file."""
    lines = "".join(f"{GOOD}{number}\n" for number in range(MAX_ROWS + 1))
    with pytest.raises(InvalidRequestError, match="more than 100,000 rows: split the file"):
        read_file(write(f"{HEADER}\n{lines}"))


def test_a_check_asks_the_profile_too(write: Write) -> None:
    """What only a profile knows is an error of the row, too."""
    profile = ServiceProfile(max_lengths={"client_transaction_id": 3}, ranges={"amount": (1, 5)})
    file = read_file(write(f"{HEADER}\n{GOOD}\n"), profile=profile)
    assert list(map(str, file.errors)) == [
        "line 2, client_transaction_id: is longer than 3 characters",
        "line 2, amount: is 1 to 5",
    ]


text = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
identifiers = text.filter(
    lambda value: value == value.strip() and value.strip() != "" and id_fault(value) is None
)
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
    order=st.none()
    | st.builds(
        Order,
        bill_to=st.none()
        | st.builds(BillTo, first_name=st.none() | text, bill_to_id=st.none() | st.integers(0, 9)),
        line_items=st.lists(
            st.builds(LineItem, product_sku=text, unit_price=st.integers(0, 999)), max_size=3
        ),
    ),
)
#: What the reader of CSV takes for a spreadsheet's doing: formulas, errors, shortened numbers, lost characters.
MANGLED = re.compile(r"\s*[=+@#-]|.*\N{REPLACEMENT CHARACTER}|[0-9][.,][0-9]+E")
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@quick
@given(request=requests, spelled=st.booleans())
def test_a_request_written_as_json_is_read_back(tmp_path: Path, request: SaleRequest, spelled: bool) -> None:
    """In either spelling, whatever its texts hold, but for a formula and its like, which are faults as in CSV."""

    def respell(value: Any) -> Any:
        if isinstance(value, dict):
            return {(to_service(name) if spelled else name): respell(inner) for name, inner in value.items()}
        return [respell(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(respell(attrs.asdict(request))) + "\n")
    (row,) = read_file(path).rows
    if row.errors:
        texts = {"client_transaction_id": request.client_transaction_id, "reference": request.reference or ""}
        assert all(MANGLED.match(texts[fault.column or ""]) for fault in row.errors)
    else:
        assert row.request == request


@quick
@given(request=requests, delimiter=st.sampled_from(",;"))
def test_a_request_written_as_csv_is_read_back(tmp_path: Path, request: SaleRequest, delimiter: str) -> None:
    """Without its order, with either delimiter; a formula and its like are faults there, and tried elsewhere."""
    request = attrs.evolve(request, order=None)
    assume(not any(MANGLED.match(text) for text in (request.client_transaction_id, request.reference or "")))
    values = {
        name: value for name, value in attrs.asdict(request).items() if name not in ("order", "by_nick_name")
    }
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(values), delimiter=delimiter)
        writer.writeheader()
        writer.writerow(values)
    (row,) = read_file(path).rows
    assert row.errors == []
    assert row.request == request


@quick
@given(content=st.binary(max_size=300), name=st.sampled_from(["rows.csv", "rows.jsonl"]))
def test_no_file_is_a_crash(tmp_path: Path, content: bytes, name: str) -> None:
    """Bytes of any kind give rows, faults or one clear error."""
    path = tmp_path / name
    for begin in (b"", HEADER.encode() + b"\n"):
        path.write_bytes(begin + content)
        try:
            for row in read_file(path).rows:
                assert (row.request is None) == bool(row.errors)
        except InvalidRequestError:
            pass
