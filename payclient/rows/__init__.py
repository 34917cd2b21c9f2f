"""A file of charges -> requests, and why the other rows cannot be sent. The file is read once, into memory.

Every bad row is named by line, column and reason, and no value is repeated: cells hold personal data. Nothing is
coerced, rounded or guessed. Read `records` (files -> cells; `sheets`: the faults of spreadsheets), `format` (what
columns mean), `cells` (cells -> values).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.rows.cells import MARKS, CellError, RowError, corrected_phone, faults_of, find_mark, read_cell
from payclient.rows.format import AMOUNTS, KEY, PURCHASE, Columns, Format
from payclient.rows.records import Records, Row, named, read_records
from payclient.tracking.attempts import lane_text
from payclient.tracking.purchases import check_purchase
from payclient.wire import encode_sale

#: A file with more is refused: all of it is held in memory.
MAX_ROWS = 100_000

#: The number of other lines that an error about equal keys names.
MAX_LINES = 5

#: The name of a row of sums, in the column of the key or another.
_TOTAL = re.compile(r"\s*(sub-? ?)?(total(es)?|suma)(?=[\s:=]|$)", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class ChargeFile:
    """The rows of a file, and how the file was read."""

    path: Path
    #: How the file was read, such as "CSV with semicolons, Windows-1252, decimal comma".
    description: str
    rows: list[Row] = attrs.field(repr=False)
    records: Records = attrs.field(repr=False)
    #: Columns that were not read, lines without a cell, and lines of totals below the rows.
    unread: list[str]
    empty: list[int]
    total_lines: list[int]
    #: Errors of the last total below the rows: sums that are not those of the rows.
    total_faults: list[RowError]
    #: The decimal mark of its amounts; None: they are cents.
    mark: str | None
    #: The amounts of a table are read as cents, because no option says what they are.
    guessed_cents: bool

    @cached_property
    def requests(self) -> list[SaleRequest]:
        """The good rows, in the order of the file."""
        return [row.request for row in self.rows if row.request is not None]

    @cached_property
    def bad(self) -> list[Row]:
        """The bad rows, in the order of the file."""
        return [row for row in self.rows if row.errors]

    @property
    def errors(self) -> list[RowError]:
        """Every error, in the order of the lines."""
        return [error for row in self.bad for error in row.errors]

    @property
    def doubles(self) -> list[list[int]]:
        """The lines of good rows with the same customer and the same amount, group by group."""
        groups = defaultdict[object, list[int]](list)
        for row in self.rows:
            if row.request is not None:
                groups[lane_text(row.request), row.request.amount, row.request.currency].append(row.line)
        return [lines for lines in groups.values() if len(lines) > 1]

    @property
    def lanes(self) -> Counter[str]:
        """Good rows by customer at one store."""
        return Counter(map(lane_text, self.requests))


def read_file(path: Path, form: Format | None = None, *, profile: ServiceProfile = DOCUMENT) -> ChargeFile:
    """Read a whole file of charges.

    Raises `InvalidRequestError` where the file cannot be read, is empty, has more than `MAX_ROWS` rows, has a bad
    header, or does not prove the decimal mark of its amounts.
    """
    form = form or Format()
    with named(path):
        file = read_records(path, form)
        if len(file.rows) > MAX_ROWS:
            raise InvalidRequestError(
                f"has more than {MAX_ROWS:,} rows: split the file, one run for each part"
            )
        columns_of = lru_cache(1000)(partial(Columns, form=form))
        header = columns_of(file.names)
        if file.names:
            header.check(file.line, form)
        mark: str | None = form.decimal_mark
        if form.amounts == "decimal" and mark is None:
            mark = find_mark(_amount_texts(file.rows, header, form))
        rows, empty, totals = _split_rows(file, header)
        if not rows:
            raise InvalidRequestError("has no rows")
        fixed = _read_constants(form, mark)
        for row in rows:
            _read_row(row, columns_of(row.names), mark, fixed, profile)
        _check_repeated_keys(rows)
        _check_dropped_zeros(rows)
        place = f", header in line {file.line}" if file.line > 1 else ""
        amounts = "amounts in cents" if mark is None else f"decimal {MARKS[mark]}"
        return ChargeFile(
            path=path,
            description=f"{file.description}{place}, {amounts}",
            rows=rows,
            records=file,
            mark=mark,
            guessed_cents=form.amounts is None and file.delimiter != "",
            unread=header.unread,
            empty=empty,
            total_lines=[row.line for row in totals],
            total_faults=list(_compare_total(totals[-1], rows, header, mark)) if totals else [],
        )


def _split_rows(file: Records, header: Columns) -> tuple[list[Row], list[int], list[Row]]:
    """Return the rows of charges, the lines without a cell between them, and the totals below them."""
    if not file.names:
        return file.rows, [], []
    rows = [each for each in file.rows if not each.is_empty]
    count = len(rows)
    while count and _is_total(rows[count - 1], header):
        count -= 1
    last = rows[count - 1].line if count else 0
    empty = [each.line for each in file.rows if each.is_empty and each.line < last]
    return rows[:count], empty, rows[count:]


def _is_total(row: Row, header: Columns) -> bool:
    """Return whether a row holds an amount or the word total, and beside that word no customer and no key."""
    if len(row.cells) != len(header.names):
        return False
    given = [(fields, cell) for fields, cell in zip(header.fields, row.cells, strict=True) if cell != ""]
    words = {field for fields, cell in given for field in fields or [""] if _TOTAL.match(str(cell))}
    found = {field for fields, _ in given for field in fields}
    return bool(words or found & AMOUNTS) and not (found - words) & {KEY, "phone_number", "nick_name"}


def _compare_total(total: Row, rows: Iterable[Row], header: Columns, mark: str | None) -> Iterator[RowError]:
    """Yield the amounts of a total that are not the sums of the rows above, as far as all of them can be read."""
    for place, (name, fields) in enumerate(zip(header.names, header.fields, strict=True)):
        for field in AMOUNTS & {*fields}:
            try:
                column = [row.cells[place] for row in (total, *rows)]
                stated, *amounts = (None if cell == "" else read_cell(cell, field, mark) for cell in column)
            except (CellError, IndexError):
                continue
            if stated not in (None, found := sum(amount or 0 for amount in amounts)):
                yield RowError(total.line, name, f"the total is not the sum of the rows, {found} cents")


def _amount_texts(rows: Iterable[Row], header: Columns, form: Format) -> Iterator[str]:
    """Yield the amounts that are texts, which prove the decimal mark."""
    for row in rows:
        if len(row.cells) == len(header.names):
            found = header.by_field(row.cells)
            yield from (found[field] for field in AMOUNTS & found.keys() if isinstance(found[field], str))
    yield from (text for field, text in form.constants.items() if field in AMOUNTS)


def _read_constants(form: Format, mark: str | None) -> dict[str, object]:
    """Return the values that every row has."""
    values: dict[str, object] = {"country_code": None, "currency": None}
    for field, text in form.constants.items():
        try:
            values[field] = read_cell(text, field, mark)
        except CellError as error:
            raise ConfigurationError(f"--set {field}: {error}") from None
    return values


def _read_row(
    row: Row, columns: Columns, mark: str | None, constants: Mapping[str, Any], profile: ServiceProfile
) -> None:
    """Give a row its request, or the errors that forbid one."""
    row.spelled, count, wanted = columns.spelled, len(row.cells), len(columns.names)
    if row.fault is not None:
        row.add(None, row.fault)
    elif count != wanted:
        row.add(None, f"has {count} cells and the header {wanted}{': is it cut?' if count < wanted else ''}")
    if count != wanted or (row.errors and not count):
        return
    for fault in columns.faults:
        row.add(None, fault)
    values = _read_cells(row, columns, mark, constants, profile.phone_shapes)
    key = values.get(KEY)
    row.key = key if isinstance(key, str) else None
    if key is None:
        row.add(KEY, "must be given")
    if row.errors:
        return
    row.purchase = values.pop(PURCHASE, None)
    try:
        if row.purchase is not None:
            check_purchase(row.purchase)
        row.request = SaleRequest(**values)
        encode_sale(row.request, profile)
    except InvalidRequestError as error:
        for field, why in faults_of(error):
            row.add(field, why)


def _read_cells(
    row: Row, columns: Columns, mark: str | None, constants: Mapping[str, Any], shapes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of the cells that are not empty, and the constants; a bad cell is an empty text."""
    for number, (name, cell) in enumerate(zip(columns.names, row.cells, strict=True), 1):
        if not name and cell not in ("", None):
            row.add(f"column {number}", "has a value and no name")
    is_json = row.source != ""
    empty = (None,) if is_json else (None, "")
    given = {field: cell for field, cell in columns.by_field(row.cells).items() if cell not in empty}
    values, currency = {**constants}, given.get("currency", constants["currency"])
    for field, cell in given.items():
        try:
            values[field] = read_cell(cell, field, mark, json=is_json, currency=str(currency))
        except CellError as error:
            values[field] = ""
            row.add(field, str(error))
    phone, country = values.get("phone_number"), str(values["country_code"])
    # A bad cell has its error already, and the model checks values of JSON.
    if phone and isinstance(phone, str):
        try:
            is_text = isinstance(given.get("phone_number", ""), str)
            found = corrected_phone(phone, country, shapes, is_text=is_text)
            if found != (phone, country):
                row.respelled = True
                values["phone_number"], values["country_code"] = found
        except CellError as error:
            row.add("phone_number", str(error))
    return values


# --- What only the whole file can prove


def _check_repeated_keys(rows: Iterable[Row]) -> None:
    """Add an error to each row whose key another row has too: nobody can tell which is meant."""
    same = defaultdict[str | None, list[Row]](list)
    for row in rows:
        same[row.key].append(row)
    for row in rows:
        others = [str(each.line) for each in same[row.key][: MAX_LINES + 2] if each is not row]
        if row.key and others:
            dots = ["..."] if len(others) > MAX_LINES else []
            named = ", ".join(others[:MAX_LINES] + dots)
            row.add(KEY, f"is the same as in {'lines' if len(others) > 1 else 'line'} {named}")


def _check_dropped_zeros(rows: Iterable[Row]) -> None:
    """Add an error to each phone that is one digit short, where others of its country begin with a zero."""
    shapes = {
        row.line: (row.request.country_code.removeprefix("+"), phone[0] == "0", len(phone))
        for row in rows
        if row.request is not None
        if (phone := row.request.phone_number) and phone.isascii() and phone.isdigit()
    }
    seen = {*shapes.values()}
    for row in rows:
        country, has_zero, digits = shapes.get(row.line, ("", True, 0))
        if not has_zero and (country, True, digits + 1) in seen:
            why = f"has {digits} digits, and other phones of country {country} have {digits + 1} with a zero in front"
            row.add("phone_number", f"{why}: did a spreadsheet drop it?")
