"""A file of charges -> requests, and why the other rows cannot be sent. The file is read once, into memory.

Every bad row is named by line, column and reason, and no value is repeated: cells hold personal data. Nothing is
coerced, rounded or guessed.
"""

from __future__ import annotations

import codecs
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.rows.cells import CellError, Cells, FileRow, RowError, errors_of
from payclient.rows.decimals import AMBIGUOUS, MARKS, find_mark, mark_of
from payclient.rows.formats import AMOUNTS, KEY, Format
from payclient.rows.objects import Objects
from payclient.rows.tables import Table, csv_records, sheet_records
from payclient.sending import lane_text
from payclient.wire import Encoder

__all__: list[str] = []

#: A file with more is refused: all of it is held in memory.
MAX_ROWS, MAX_BYTES = 100_000, 256 << 20

#: Other lines that an error about equal keys names.
MAX_LINES = 5

_CSV, _SHEETS, _JSONL = (".csv", ".tsv", ".txt"), (".xlsx", ".ods"), (".jsonl", ".ndjson")

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

#: Bytes that a Windows-1252 text has no use for between letters, where another code page has its accents; the
#: apostrophe, ordinals and the middle dot aside. A detector that takes the likeliest code page would guess.
_FOREIGN = re.compile(
    rb"[\x81\x8D\x8F\x90\x9D]"
    rb"|[A-Za-z\xC0-\xFF][\x80-\x91\x93-\x9F\xA0-\xA9\xAB-\xB3\xB5\xB6\xB8\xB9\xBB-\xBF][A-Za-z\xC0-\xFF]"
)
_NAMES = {
    ",": "commas",
    ";": "semicolons",
    "\t": "tabs",
    "|": "bars",
    "utf-8": "UTF-8",
    "cp1252": "Windows-1252",
}


@attrs.frozen(kw_only=True)
class ChargeFile:
    """What a file holds: requests, and the rows that cannot be sent."""

    path: Path
    #: How the file was read, such as "CSV with semicolons, Windows-1252, decimal comma".
    description: str
    #: The good rows in the order of the file, and the lines in which they stand.
    requests: list[SaleRequest] = attrs.field(repr=False)
    lines: list[int] = attrs.field(repr=False)
    #: The bad rows, as they were read.
    bad: list[FileRow] = attrs.field(repr=False)
    #: Why even the good rows cannot be told; None where they can.
    fatal: str | None
    #: The header of a table, and what stands between its columns.
    names: list[str]
    delimiter: str

    @property
    def errors(self) -> list[RowError]:
        """Every error, in the order of the lines."""
        return [error for row in self.bad for error in row.errors]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.requests) + len(self.bad)

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


def read_file(path: Path, form: Format | None = None, *, profile: ServiceProfile = DOCUMENT) -> ChargeFile:
    """Read a whole file of charges.

    Raises `InvalidRequestError` where the file cannot be read, is empty, has more than `MAX_ROWS` rows, its header is
    at fault, or its amounts do not say what their decimal mark is.
    """
    form, name, kind = form or Format(), path.name, path.suffix.lower()
    if kind not in (*_CSV, *_SHEETS, *_JSONL):
        raise InvalidRequestError(
            f"{name}: a file of charges must end in .csv, .tsv, .txt, .xlsx, .ods or .jsonl"
        )
    raw = _read(path)
    source: Any
    if kind in _SHEETS:
        line, names, found = sheet_records(path)
        words, delimiter = ["spreadsheet"], ","
    else:
        encoding, text = _decode(raw, name, form.encoding, only_utf8=kind in _JSONL)
        words = ["JSONL", _NAMES.get(encoding, encoding)]
        line, names, delimiter = 1, [], ""
        if kind in _CSV:
            delimiter, line, names, found = csv_records(text, name, form)
            words[0] = f"CSV with {_NAMES.get(delimiter, delimiter)}"
    fatal = None
    if kind in _JSONL:
        source = Objects(text, form)
        records, spelled, amounts = source.parsed, {}, source.amounts()
    else:
        source = Table(name, line, names, form)
        records = []
        try:
            for record in found:
                records.append(record)
        except InvalidRequestError as error:
            fatal = f"{name}: {error}"
        spelled, amounts = source.spelled, source.amounts(records)
    if len(records) > MAX_ROWS:
        raise InvalidRequestError(
            f"{name}: has more than {MAX_ROWS:,} rows: split the file, one run for each part"
        )
    cells = Cells(form.amounts == "decimal", form.decimal_mark)
    if cells.decimal and cells.mark is None:
        mark, contradiction = find_mark(name, amounts)
        cells, fatal = attrs.evolve(cells, mark=mark), fatal or contradiction
    constants = _constants(form, cells)
    rows = [row for record in records if (row := source.row(record, cells, constants)) is not None]
    if not rows:
        raise InvalidRequestError(fatal or f"{name}: has no rows")
    _check_profile(rows, profile, spelled)
    _check_keys(rows, spelled.get(KEY, form.key_column))
    _check_zeros(rows, spelled.get("phone_number", "phone_number"))
    decimal = f"decimal {MARKS[cells.mark]}" if cells.mark else "amounts in whole units"
    words.append(decimal if cells.decimal else "amounts in cents")
    good = [row for row in rows if not row.errors and row.request is not None]
    return ChargeFile(
        path=path,
        description=", ".join(words),
        requests=[row.request for row in good if row.request is not None],
        lines=[row.line for row in good],
        bad=[row for row in rows if row.errors],
        fatal=fatal,
        names=names,
        delimiter=delimiter,
    )


def _read(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequestError(
                f"{path.name}: must be a regular file, not a directory, a pipe or a device"
            )
        if found.st_size > MAX_BYTES:
            raise InvalidRequestError(f"{path.name}: is larger than {MAX_BYTES >> 20} MB: split the file")
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path.name}: cannot be read: {error.strerror}") from None


def _decode(raw: bytes, name: str, told: str | None, *, only_utf8: bool) -> tuple[str, str]:
    """Return the encoding and the text; bytes that are not of it become lone surrogates, found again in their cell.

    A byte order mark decides; else it is as told; else UTF-8 if every byte is; else Windows-1252 if none contradicts.
    """
    for mark, codec in _BOMS:
        if raw.startswith(mark):
            wide = codec.startswith("utf-16")
            return "UTF-16" if wide else codec, raw[len(mark) :].decode(
                codec, "replace" if wide else "surrogateescape"
            )
    if told is not None:
        codec = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}.get(found := codecs.lookup(told).name, found)
        return codec, raw.decode(codec, "replace" if codec.startswith("utf-16") else "surrogateescape")
    try:
        return "utf-8", raw.decode("utf-8", "surrogateescape" if only_utf8 else "strict")
    except UnicodeDecodeError:
        if _FOREIGN.search(raw):
            raise InvalidRequestError(
                f"{name}: is neither UTF-8 nor Windows-1252 (cp1252): give --encoding"
            ) from None
        return "cp1252", raw.decode("cp1252")


def _constants(form: Format, cells: Cells) -> dict[str, object]:
    """Return the values that every row has; a decimal amount among them has a mark of its own."""
    values: dict[str, object] = {}
    for field, text in form.constants.items():
        own = cells
        if cells.decimal and field in AMOUNTS and form.decimal_mark is None:
            mark = mark_of(text)
            if mark == AMBIGUOUS:
                raise ConfigurationError(f"--set {field}: give --decimal-mark, too")
            own = attrs.evolve(cells, mark=mark)
        try:
            values[field] = own.read(text, field)
        except CellError as error:
            raise ConfigurationError(f"--set {field}: {error}") from None
    return values


# --- What only the profile, or only the whole file, tells


def _check_profile(rows: Iterable[FileRow], profile: ServiceProfile, spelled: Mapping[str, str]) -> None:
    encoder = Encoder(profile)
    for row in rows:
        if row.request is not None:
            try:
                encoder.sale(row.request)
            except InvalidRequestError as error:
                row.errors = tuple(errors_of(error, row.line, spelled))


def _check_keys(rows: Iterable[FileRow], column: str) -> None:
    """Call every row of an equal key bad: nobody can tell which is meant."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        if row.key is not None:
            lines.setdefault(row.key, []).append(row.line)
    for row in rows:
        same = [line for line in lines.get(row.key or "", ()) if line != row.line]
        if same:
            more = ", ..." if len(same) > MAX_LINES else ""
            words = (
                f"is the same as in line{'s' * (len(same) > 1)} {', '.join(map(str, same[:MAX_LINES]))}{more}"
            )
            row.errors += (RowError(row.line, column, words),)


def _check_zeros(rows: Iterable[FileRow], column: str) -> None:
    """Find phones one digit shorter than others of their country, which begin with a zero: a spreadsheet took it."""

    def shapes() -> Iterator[tuple[FileRow, tuple[str, bool, int]]]:
        for row in rows:
            phone = None if row.request is None or row.errors else row.request.phone_number
            if row.request is not None and phone and phone.isascii() and phone.isdigit():
                yield row, (row.request.country_code.removeprefix("+"), phone[0] == "0", len(phone))

    seen = {shape for _, shape in shapes()}
    for row, (country, zero, digits) in list(shapes()):
        if not zero and (country, True, digits + 1) in seen:
            why = (
                f"has {digits} digits, and other phones of country {country} have {digits + 1} with a zero in "
                "front: did a spreadsheet drop it?"
            )
            row.errors += (RowError(row.line, column, why),)
