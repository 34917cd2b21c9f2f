"""A file of charges -> requests, and why the other rows cannot be sent. The file is read once, into memory.

Every bad row is named by line, column and reason, and no value is repeated: cells hold personal data. Nothing is
coerced, rounded or guessed. Read `records` (files -> cells), `format` (what columns mean), `cells` (cells -> values).
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import Order, SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.rows.cells import FORMULA, MARKS, CellError, Cells, RowError, build, faults_of, find_mark
from payclient.rows.format import AMOUNTS, FAULT, KEY, Columns, Format
from payclient.rows.records import Record, read_records
from payclient.tracking.attempts import lane_text
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
    #: The name under which the file has each field.
    spelled: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    #: The cells or the line as they stand.
    source: Any = attrs.field(default=None, repr=False)

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

    @cached_property
    def requests(self) -> list[SaleRequest]:
        """The good rows, in the order of the file."""
        return [row.request for row in self.rows if row.request is not None and not row.errors]

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
    def lanes(self) -> Counter[str]:
        """Good rows by customer at one store."""
        return Counter(map(lane_text, self.requests))

    def bad_rows(self, path: Path) -> bytes:
        """Return the bad rows as UTF-8, each with the reason in a last column `fault`: a table as CSV, else JSONL."""
        wanted = {".xlsx": ".csv", ".ods": ".csv"}.get(suffix := self.path.suffix.lower(), suffix)
        if path.suffix.lower() != wanted:
            raise ConfigurationError(f"--skip-bad {path.name}: must end in {wanted}; nothing was sent")
        reasons = [(row.source, "; ".join(error.words for error in row.errors)) for row in self.bad]
        if not self.delimiter:
            return "".join(_json_line(line.strip(), why) for line, why in reasons).encode(
                "utf-8", "surrogateescape"
            )
        keep = [number for number, name in enumerate(self.names) if name.strip() != FAULT]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.delimiter)
        writer.writerow([*(self.names[number].strip() for number in keep), FAULT])
        for cells, why in reasons:
            writer.writerow([*(_text(cells[n]) if n < len(cells) else "" for n in keep), why])
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
        raise InvalidRequestError(f"{name}: line {file.line}: {'; '.join(faults)}")
    if form.amounts == "decimal" and mark is None:
        mark = find_mark(name, _amounts(file.records, header, form))
    cells, fixed = Cells(mark, json=not file.delimiter), _constants(form, mark)
    columns_of = cache(partial(Columns, form=form))
    rows = [
        _row(record, columns_of(record[1]), cells, fixed, profile)
        for record in file.records
        if isinstance(record[2], CellError) or cells.json or any(cell != "" for cell in record[2])
    ]
    if not rows:
        raise InvalidRequestError(f"{name}: has no rows")
    _check_keys(rows)
    _check_zeros(rows)
    words = f"{file.description}, {'amounts in cents' if mark is None else f'decimal {MARKS[mark]}'}"
    return ChargeFile(path=path, description=words, rows=rows, names=file.names, delimiter=file.delimiter)


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
    row = Row(line, None, None, [], columns.spelled, source)
    if not isinstance(found, CellError) and len(found) != len(columns.names):
        cut = ": is it cut?" if len(found) < len(columns.names) else ""
        found = CellError(f"has {len(found)} cells and the header {len(columns.names)}{cut}")
    if isinstance(found, CellError):
        row.errors.append(RowError(line, None, str(found)))
        return row
    values = {"country_code": None, "currency": None, **constants}
    row.errors += [RowError(line, None, fault) for fault in columns.faults]
    for number, (name, fields, cell) in enumerate(zip(columns.names, columns.fields, found, strict=True), 1):
        if cell is None or (cell == "" and not cells.json):
            continue
        if not name:
            row.errors.append(RowError(line, f"column {number}", "has a value and no name"))
        for field in fields:
            values[field] = cell
            if field == "order":
                faults: list[tuple[str, str]] = []
                values[field] = build(Order, cell, "order.", faults)
                row.add(*faults)
                continue
            try:
                values[field] = cells.read(cell, field)
            except CellError as error:
                row.add((field, str(error)))
    key = values.get(KEY)
    row.key = key if isinstance(key, str) else None
    if key is None:
        row.add((KEY, "must be given"))
    if not row.errors:
        try:
            row.request = SaleRequest(**values)
            encode_sale(row.request, profile)
        except InvalidRequestError as error:
            row.add(*faults_of(error))
    return row


# --- What only the whole file can prove


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
            row.add((KEY, f"is the same as in line{'s' * (len(same) > 1)} {named}"))


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


# --- --skip-bad


def _text(cell: Any) -> str:
    text = "" if isinstance(cell, CellError) else f"{cell:.15g}" if isinstance(cell, float) else str(cell)
    return f"'{text}" if FORMULA.match(text) else text


def _json_line(line: str, why: str) -> str:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and FAULT not in data:
        # Behind the rest as it stands: a number read and written again might be another one.
        line = line[:-1].rstrip() + ", " * bool(data) + json.dumps({FAULT: why}, ensure_ascii=False)[1:]
    return line + "\n"
