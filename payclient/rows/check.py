"""The first pass over a file: what it would charge, and every fault of it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from payclient.encoding import Encoder
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.rows import open_rows
from payclient.rows.checked import CheckedRows, FileCheck
from payclient.rows.csv_rows import CsvRows
from payclient.rows.decimals import AMBIGUOUS, MARKS, mark_of
from payclient.rows.faults import Fault, faults_of
from payclient.rows.formats import KEY, Format
from payclient.rows.index import Index, Place
from payclient.rows.jsonl_rows import JsonlRows
from payclient.rows.row import Row
from payclient.sending import lane_text

__all__ = ["CheckedRows", "FileCheck", "check_file"]

#: Faults kept at hand of one file; all are counted.
MAX_FAULTS = 50

#: Other lines that a fault about equal keys names.
MAX_LINES = 5


def check_file(
    path: str | os.PathLike[str], form: Format | None = None, *, profile: ServiceProfile = DOCUMENT
) -> FileCheck:
    """Read a whole file once: what it would charge, and every fault, equal keys and lost zeros among them.

    `InvalidRequestError`: the file cannot be read, is empty, or its header is at fault. `ConfigurationError`: there is
    no room for its index in the temporary directory.
    """
    index = Index()
    try:
        return _Pass(Path(path), form if form is not None else Format(), profile, index).check()
    except sqlite3.Error as error:
        index.close()
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise ConfigurationError(
            f"the index of the file cannot be kept in the temporary directory ({name})"
        ) from None
    except BaseException:
        index.close()
        raise


class _Pass:
    """The first pass over one file."""

    def __init__(self, path: Path, form: Format, profile: ServiceProfile, index: Index) -> None:
        self._path = path
        self._form = form
        self._encoder = Encoder(profile)
        self._index = index
        self._salt = secrets.token_bytes(16)
        self._charges: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        #: (calling code, phone begins with 0, digits) -> its number in the index.
        self._shapes: dict[tuple[str, bool, int], int] = {}

    def check(self) -> FileCheck:
        rows = 0
        with open_rows(self._path, self._form) as (reader, seen):
            for row in reader:
                rows += 1
                self._take(row, reader)
            fatal = self._mixed_marks(reader)
            description = _describe(reader, seen.encoding.name)
            key = reader.spelled.get(KEY, self._form.key_column)
            phone = reader.spelled.get("phone_number", "phone_number")
        if rows == 0:
            raise InvalidRequestError(f"{self._path.name}: has no rows")
        self._condemn(self._repeated(key))
        self._condemn(self._lost_zeros(phone))
        index = self._index
        index.settle()
        if (fault := index.fatal()) is not None:
            fatal = f"{fault}; what follows cannot be told apart"
        customers, longest = index.customers()
        return FileCheck(
            path=self._path,
            form=self._form,
            rows=rows,
            bad_rows=index.bad_rows(),
            charges={currency: count for currency, count in self._charges.items() if count},
            totals={currency: self._totals[currency] for currency, count in self._charges.items() if count},
            customers=customers,
            longest_lane=longest,
            faults=tuple(map(str, index.faults(MAX_FAULTS))),
            fault_count=index.fault_count(),
            fatal=fatal,
            description=description,
            digest=seen.digest,
            index=index,
        )

    def _take(self, row: Row, reader: CsvRows | JsonlRows) -> None:
        faults, request = row.faults, row.request
        if request is not None:
            try:
                self._encoder.sale(request)
            except InvalidRequestError as error:
                faults = tuple(faults_of(error, row.line, reader.spelled, {}))
        key = None if row.key is None else self._digest(row.key.encode("utf-8", "surrogatepass"))
        place = Place(row.line, row.offset, row.digest)
        if request is None or faults:
            self._index.add(place, key=key, faults=faults)
            return
        currency = request.currency
        self._charges[currency] = self._charges.get(currency, 0) + 1
        self._totals[currency] = self._totals.get(currency, 0) + request.amount
        self._index.add(
            place,
            key=key,
            lane=self._digest(lane_text(request).encode()),
            shape=self._shape(request),
            amount=request.amount,
            currency=currency,
        )

    def _digest(self, content: bytes) -> int:
        raw = blake2b(content, digest_size=8, key=self._salt).digest()
        return int.from_bytes(raw, "big", signed=True)

    def _shape(self, request: SaleRequest) -> int | None:
        phone = request.phone_number
        if phone is None or not (phone.isascii() and phone.isdigit()):
            return None
        shape = (request.country_code.removeprefix("+"), phone[0] == "0", len(phone))
        return self._shapes.setdefault(shape, len(self._shapes))

    # --- What only the whole file tells

    def _condemn(self, faults: Iterator[Fault]) -> None:
        for amount, currency in self._index.condemn(faults):
            self._charges[currency] -= 1
            self._totals[currency] -= amount

    def _repeated(self, key: str) -> Iterator[Fault]:
        """Which row of a key is meant, nobody knows: all of them are bad."""
        for lines in self._index.repeated():
            for line in lines:
                others = [str(other) for other in lines[: MAX_LINES + 1] if other != line][:MAX_LINES]
                more = ", ..." if len(lines) > MAX_LINES + 1 else ""
                plural = "s" if len(lines) > 2 else ""
                yield Fault(line, key, f"is the same as in line{plural} {', '.join(others)}{more}")

    def _lost_zeros(self, phone: str) -> Iterator[Fault]:
        """A phone one digit shorter than others of its country, which begin with a zero: a spreadsheet took it."""
        for (country, zero, digits), number in self._shapes.items():
            if not zero and (country, True, digits + 1) in self._shapes:
                reason = (
                    f"has {digits} digits, and other phones of country {country} have {digits + 1} with a zero in "
                    "front: did a spreadsheet drop it?"
                )
                for line in self._index.of_shape(number):
                    yield Fault(line, phone, reason, f"{digits} digits")

    def _mixed_marks(self, reader: CsvRows | JsonlRows) -> str | None:
        """Amounts that prove two decimal marks prove none."""
        mark = reader.cells.mark
        if mark is None or self._form.decimal_mark is not None:
            return None
        others = (
            found for text in reader.amounts() if (found := mark_of(text)) not in (None, AMBIGUOUS, mark)
        )
        if (other := next(others, None)) is None:
            return None
        return (
            f"{self._path.name}: some amounts have a decimal {MARKS[mark]} and others a decimal {MARKS[other]}: "
            f"give --decimal-mark {mark} or --decimal-mark {other}"
        )


def _describe(reader: CsvRows | JsonlRows, encoding: str) -> str:
    words = (
        ["JSONL"]
        if reader.delimiter is None
        else [f"CSV with {_DELIMITERS.get(reader.delimiter, reader.delimiter)}"]
    )
    words.append(_ENCODINGS.get(encoding, encoding))
    if reader.cells.decimal:
        mark = reader.cells.mark
        words.append(f"decimal {MARKS[mark]}" if mark else "amounts in whole units")
    else:
        words.append("amounts in cents")
    return ", ".join(words)


_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ENCODINGS = {"utf-8": "UTF-8", "cp1252": "Windows-1252", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16"}
