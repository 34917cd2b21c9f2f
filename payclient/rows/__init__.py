"""A file of charges -> requests, and why the other rows cannot be sent. The file is read once, into memory.

Every bad row is named by line, column and reason, and no value is repeated: cells hold personal data. Nothing is
coerced, rounded or guessed. Read `records` (files -> cells), `format` (what columns mean), `cells` (cells -> values).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import Order, SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.rows.cells import (
    FORMULA,
    MARKS,
    NOT_TEXT,
    CellError,
    Cells,
    RowError,
    build,
    faults_of,
    find_mark,
    fits_sign,
    shaped_phone,
    split_sign,
)
from payclient.rows.format import AMOUNTS, FAULT, KEY, PURCHASE, Columns, Format, plain
from payclient.rows.records import Record, Records, read_records
from payclient.tracking.attempts import lane_text
from payclient.tracking.purchases import check_purchase
from payclient.wire import encode_sale

__all__: list[str] = []

#: A file with more is refused: all of it is held in memory.
MAX_ROWS = 100_000

#: Other lines that an error about equal keys names.
MAX_LINES = 5


@attrs.define
class Row:
    """One row of a file: a request, or the errors that forbid one."""

    line: int
    #: The value of the key column; None where that is missing or not a text.
    key: str | None
    request: SaleRequest | None
    errors: list[RowError]
    #: What it is for; None: the key.
    purchase: str | None = None
    #: The name under which the file has each field.
    spelled: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    #: The cells or the line as they stand.
    source: Any = attrs.field(default=None, repr=False)
    #: The phone is charged in another spelling than the file's.
    respelled: bool = False

    def add(self, *faults: tuple[str, str]) -> None:
        """Add errors, each of a field."""
        self.errors += [RowError(self.line, self.spelled.get(field, field), why) for field, why in faults]


@attrs.frozen(kw_only=True)
class ChargeFile:
    """What a file holds, row by row."""

    path: Path
    #: How the file was read, such as "CSV with semicolons, Windows-1252, decimal comma".
    description: str
    rows: list[Row] = attrs.field(repr=False)
    #: The header of a table, and what stands between its columns.
    names: tuple[str, ...]
    delimiter: str
    #: Lines above the header, such as a title.
    above: int = 0
    #: Columns that nothing was read of, lines without a cell, and lines of totals below the rows.
    unread: list[str] = attrs.field(factory=list)
    empty: list[int] = attrs.field(factory=list)
    total_lines: list[int] = attrs.field(factory=list)
    #: What is wrong with a total below the rows, such as another sum than theirs.
    total_faults: list[RowError] = attrs.field(factory=list)
    #: The decimal mark of its amounts; None: they are cents.
    mark: str | None = None
    #: Whether a CSV for the same reader begins with a byte order mark.
    for_spreadsheets: bool = False

    @cached_property
    def requests(self) -> list[SaleRequest]:
        """The good rows, in the order of the file."""
        return [row.request for row in self.rows if row.request is not None and not row.errors]

    @cached_property
    def purchases(self) -> dict[str, str]:
        """What the good rows are for, by their client transaction ids; without those that are for nothing else."""
        return {
            row.request.client_transaction_id: row.purchase
            for row in self.rows
            if row.request is not None and not row.errors and row.purchase is not None
        }

    @cached_property
    def bad(self) -> list[Row]:
        """The bad rows, in the order of the file."""
        return [row for row in self.rows if row.errors]

    @property
    def errors(self) -> list[RowError]:
        """Every error, in the order of the lines."""
        return [error for row in self.bad for error in row.errors]

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """Good rows and their cents, by currency."""
        found: dict[str, tuple[int, int]] = {}
        for request in self.requests:
            count, cents = found.get(request.currency, (0, 0))
            found[request.currency] = count + 1, cents + request.amount
        return dict(sorted(found.items()))

    @property
    def doubles(self) -> list[list[int]]:
        """The lines of good rows with the same customer and the same amount, group by group."""
        groups: dict[object, list[int]] = {}
        for row in self.rows:
            if row.request is not None and not row.errors:
                same = lane_text(row.request), row.request.amount, row.request.currency
                groups.setdefault(same, []).append(row.line)
        return [lines for lines in groups.values() if len(lines) > 1]

    @property
    def lanes(self) -> Counter[str]:
        """Good rows by customer at one store."""
        return Counter(map(lane_text, self.requests))

    def kept(self, names: Sequence[str], mark: str = ".") -> dict[int, tuple[str, ...]]:
        """Return the texts of these columns, by line, a number's with this decimal mark.

        Raises `ConfigurationError` for a column that is not there.
        """
        if not self.delimiter:
            found = {row.line: _json_object(row.source) or {} for row in self.rows}
            return {
                line: tuple(_shown(data.get(name, ""), mark) for name in names)
                for line, data in found.items()
            }
        header = [plain(name.strip()) for name in self.names]
        for name in names:
            if plain(name) not in header:
                raise ConfigurationError(
                    f"--keep {name}: {self.path.name} has no such column; nothing was sent"
                )
        places = [header.index(plain(name)) for name in names]
        return {
            row.line: tuple(_shown(row.source[n], mark) if n < len(row.source) else "" for n in places)
            for row in self.rows
        }

    def bad_rows(
        self, path: Path, say: Callable[[str], str] = str, *, delimiter: str | None = None, mark: str = "."
    ) -> bytes:
        """Return the bad rows as UTF-8, each with the reason in a last column `fault`: a table as CSV, else JSONL.

        `say` gives the words of a reason in another language, `delimiter` another than the file's own, and `mark` is
        the decimal mark of a spreadsheet's numbers.
        """
        wanted = {".xlsx": ".csv", ".ods": ".csv"}.get(suffix := self.path.suffix.lower(), suffix)
        if path.suffix.lower() != wanted:
            raise ConfigurationError(f"--skip-bad {path.name}: must end in {wanted}; nothing was sent")
        reasons = [(row.source, "; ".join(say(error.words) for error in row.errors)) for row in self.bad]
        if not self.delimiter:
            return "".join(_json_line(line.strip(), why) for line, why in reasons).encode(
                "utf-8", "surrogateescape"
            )
        keep = [number for number, name in enumerate(self.names) if name.strip() != FAULT]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter or self.delimiter)
        writer.writerow([*(self.names[number].strip() for number in keep), FAULT])
        for cells, why in reasons:
            writer.writerow([*(_text(cells[n], mark) if n < len(cells) else "" for n in keep), why])
        return b"\xef\xbb\xbf" + text.getvalue().encode("utf-8", "replace")


def read_file(path: Path, form: Format | None = None, *, profile: ServiceProfile = DOCUMENT) -> ChargeFile:
    """Read a whole file of charges.

    Raises `InvalidRequestError` where the file cannot be read, is empty, has more than `MAX_ROWS` rows, has a bad
    header, or does not prove the decimal mark of its amounts.
    """
    form, name = form or Format(), path.name
    file = read_records(path, form)
    if len(file.records) > MAX_ROWS:
        raise InvalidRequestError(
            f"{name}: has more than {MAX_ROWS:,} rows: split the file, one run for each part"
        )
    mark: str | None = form.decimal_mark
    header = Columns(file.names, form)
    if file.delimiter and not header.known:
        raise InvalidRequestError(
            f"{name}: line {file.line} names no known column: is the header missing? Give columns of other names "
            "by --map, such as --map phone_number=telefono"
        )
    if file.delimiter and (faults := header.faults + header.missing(form)):
        what = "; ".join(faults).replace("; unknown column ", ", ")
        if faults[-1].startswith("unknown column"):
            what += " (leave it out by --ignore or --ignore-rest)"
        raise InvalidRequestError(f"{name}: line {file.line}: {what}")
    if form.amounts == "decimal" and mark is None:
        mark = find_mark(name, _amounts(file.records, header, form))
    cells, fixed = Cells(mark, json=not file.delimiter), _constants(form, mark)
    columns_of = cache(partial(Columns, form=form))
    records, empty, totals = _part(file, header)
    rows = [_row(record, columns_of(record[1]), cells, fixed, profile) for record in records]
    if not rows:
        raise InvalidRequestError(f"{name}: has no rows")
    _check_keys(rows)
    _check_zeros(rows)
    words = f"{file.description}, {'amounts in cents' if mark is None else f'decimal {MARKS[mark]}'}"
    return ChargeFile(
        path=path,
        description=words,
        rows=rows,
        names=file.names,
        delimiter=file.delimiter,
        mark=mark,
        for_spreadsheets=file.for_spreadsheets,
        above=max(file.line - 1, 0),
        unread=header.unread if file.delimiter else [],
        empty=empty,
        total_lines=[record[0] for record in totals],
        total_faults=list(_check_totals(rows, totals, header, cells)),
    )


def _part(file: Records, header: Columns) -> tuple[list[Record], list[int], list[Record]]:
    """Return the records of charges, the lines without a cell between them, and the totals below them."""
    if not file.delimiter:
        return file.records, [], []
    records = [
        each for each in file.records if isinstance(each[2], CellError) or any(c != "" for c in each[2])
    ]
    totals: list[Record] = []
    while records and _is_total(records[-1], header):
        totals.insert(0, records.pop())
    last, kept = records[-1][0] if records else 0, {record[0] for record in records}
    empty = [record[0] for record in file.records if record[0] < last and record[0] not in kept]
    return records, empty, totals


def _is_total(record: Record, header: Columns) -> bool:
    """Return whether a record names no customer and no key, and holds an amount or the word total."""
    cells = record[2]
    if isinstance(cells, CellError) or len(cells) != len(header.names):
        return False
    filled = [
        (fields, cell) for fields, cell in zip(header.fields, cells, strict=True) if cell not in ("", None)
    ]
    if any(
        {KEY, "phone_number", "nick_name"} & {*fields} and not _TOTAL.match(str(cell))
        for fields, cell in filled
    ):
        return False
    return any(AMOUNTS & {*fields} or _TOTAL.match(str(cell)) for fields, cell in filled)


def _check_totals(rows: list[Row], totals: list[Record], header: Columns, cells: Cells) -> Iterator[RowError]:
    """Yield the amounts of the last total that are not the sums of the rows, where every row is good."""
    if not totals or any(row.errors for row in rows):
        return
    line, _, found, _ = totals[-1]
    for name, fields, cell in zip(header.names, header.fields, found, strict=True):  # type: ignore[arg-type]  # a total is cells
        for field in AMOUNTS & {*fields} if cell not in ("", None) else ():
            sum_of_rows = sum(getattr(row.request, field) or 0 for row in rows)
            try:
                if cells.read(cell, field) == sum_of_rows:
                    continue
            except CellError:
                continue
            yield RowError(line, name, f"the total is not the sum of the rows, {sum_of_rows} cents")


def _amounts(records: Iterable[Record], header: Columns, form: Format) -> Iterator[str]:
    """Return every amount that is a text."""
    wanted = [number for number, fields in enumerate(header.fields) if AMOUNTS & {*fields}]
    for _, _, cells, _ in records:
        if not isinstance(cells, CellError) and len(cells) == len(header.names):
            yield from (cells[number] for number in wanted if isinstance(cells[number], str))
    yield from (text for field, text in form.constants.items() if field in AMOUNTS)


def _constants(form: Format, mark: str | None) -> dict[str, object]:
    """Return the values that every row has."""
    values: dict[str, object] = {}
    for field, text in form.constants.items():
        try:
            values[field] = Cells(mark).read(text, field)
        except CellError as error:
            raise ConfigurationError(f"--set {field}: {error}") from None
    return values


def _row(
    record: Record, columns: Columns, cells: Cells, constants: Mapping[str, Any], profile: ServiceProfile
) -> Row:
    line, _, found, source = record
    row = Row(line, None, None, [], None, columns.spelled, source)
    if not isinstance(found, CellError) and len(found) != len(columns.names):
        cut = ": is it cut?" if len(found) < len(columns.names) else ""
        found = CellError(f"has {len(found)} cells and the header {len(columns.names)}{cut}")
    if isinstance(found, CellError):
        row.errors.append(RowError(line, None, str(found)))
        return row
    row.errors += [RowError(line, None, fault) for fault in columns.faults]
    values, given = {"country_code": None, "currency": None, **constants}, dict[str, Any]()
    for number, (name, fields, cell) in enumerate(zip(columns.names, columns.fields, found, strict=True), 1):
        if cell is None or (cell == "" and not cells.json):
            continue
        if not name:
            row.errors.append(RowError(line, f"column {number}", "has a value and no name"))
        for field in fields:
            values[field] = given[field] = cell
            _read_field(row, field, cells, values, given)
    _check_signs(row, given, str(values["currency"]))
    _respell(row, values, given.get("phone_number"), profile)
    key = values.get(KEY)
    row.key = key if isinstance(key, str) else None
    if key is None:
        row.add((KEY, "must be given"))
    if not row.errors:
        _request(row, values, profile)
    return row


def _read_field(row: Row, field: str, cells: Cells, values: dict[str, Any], given: dict[str, Any]) -> None:
    """Put a cell's value in the place of its text in `values`; a bad cell is not in `given` either."""
    if field == "order":
        faults: list[tuple[str, str]] = []
        values[field] = build(Order, given[field], "order.", faults)
        row.add(*faults)
        return
    try:
        values[field] = cells.read(given[field], field)
    except CellError as error:
        row.add((field, str(error)))
        del given[field]


def _check_signs(row: Row, given: Mapping[str, Any], currency: str) -> None:
    for field in AMOUNTS & given.keys():
        sign = split_sign(given[field])[0] if isinstance(given[field], str) else ""
        if sign and not fits_sign(sign, currency):
            row.add((field, "has the sign of another currency"))


def _request(row: Row, values: dict[str, Any], profile: ServiceProfile) -> None:
    """Make the request of a row whose cells are good, and check it and its purchase."""
    row.purchase = values.pop(PURCHASE, None)
    try:
        if row.purchase is not None:
            check_purchase(row.purchase)
        row.request = SaleRequest(**values)
        encode_sale(row.request, profile)
    except InvalidRequestError as error:
        row.add(*faults_of(error))


def _respell(row: Row, values: dict[str, Any], cell: Any, profile: ServiceProfile) -> None:
    """Bring the phone of a cell to the shape that the profile names for its country, so that one customer is one."""
    phone, country = values.get("phone_number"), str(values["country_code"]).removeprefix("+")
    shape = profile.phone_shapes.get(country)
    if cell is None or not isinstance(phone, str):
        return  # none was given, or the model says what is wrong with one of JSON
    if shape is None:
        row.add(*([] if isinstance(cell, str) else [("phone_number", NOT_TEXT)]))
    elif (found := shaped_phone(phone, country, shape)) is None:
        row.add(("phone_number", f"is not a phone of country {country}, such as {shape}"))
    else:
        row.respelled = (phone, values["country_code"]) != (found, country)
        values |= {"phone_number": found, "country_code": country}


# --- What only the whole file can prove

#: What a row of sums is called, in its key's column or another.
_TOTAL = re.compile(r"\s*(sub-? ?)?(total(es)?|suma)(?=[\s:=]|$)", re.IGNORECASE)


def _check_keys(rows: Iterable[Row]) -> None:
    """Call every row of an equal key bad: nobody can tell which is meant."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        if row.key is not None:
            lines.setdefault(row.key, []).append(row.line)
    for row in rows:
        others = (str(line) for line in lines.get(row.key or "", ()) if line != row.line)
        if same := list(islice(others, MAX_LINES + 1)):
            named = ", ".join(same[:MAX_LINES]) + ", ..." * (len(same) > MAX_LINES)
            row.add((KEY, f"is the same as in {'lines' if len(same) > 1 else 'line'} {named}"))


def _check_zeros(rows: Iterable[Row]) -> None:
    """Find phones one digit shorter than others of their country, which begin with a zero: a spreadsheet took it."""
    shapes = {
        row.line: (row.request.country_code.removeprefix("+"), phone[0] == "0", len(phone))
        for row in rows
        if row.request is not None and not row.errors
        if (phone := row.request.phone_number) and phone.isascii() and phone.isdigit()
    }
    seen = {*shapes.values()}
    for row in rows:
        country, zero, digits = shapes.get(row.line, ("", True, 0))
        if not zero and (country, True, digits + 1) in seen:
            why = f"has {digits} digits, and other phones of country {country} have {digits + 1} with a zero in front"
            row.add(("phone_number", f"{why}: did a spreadsheet drop it?"))


# --- --skip-bad, --keep


def _shown(cell: Any, mark: str) -> str:
    if isinstance(cell, float):
        return f"{cell:.15g}".replace(".", mark)
    return "" if isinstance(cell, CellError) else str(cell)


def _text(cell: Any, mark: str) -> str:
    text = _shown(cell, mark)
    return f"'{text}" if FORMULA.match(text) else text


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _json_line(line: str, why: str) -> str:
    data = _json_object(line)
    if data is not None and FAULT not in data:
        # Behind the rest as it stands: a number read and written again might be another one.
        line = line[:-1].rstrip() + ", " * bool(data) + json.dumps({FAULT: why}, ensure_ascii=False)[1:]
    return line + "\n"
