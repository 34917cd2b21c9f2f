"""What a first pass found, and the second: the rows again, as they were checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows import open_rows
from payclient.rows.csv_rows import CsvRows
from payclient.rows.formats import Format
from payclient.rows.index import Index, Place
from payclient.rows.jsonl_rows import JsonlRows

__all__ = ["CheckedRows", "FileCheck"]


@attrs.frozen(kw_only=True)
class FileCheck:
    """What a first pass over a file found. Close it, or leave its `with`, to let go of its index."""

    path: Path
    form: Format
    rows: int
    bad_rows: int
    #: Good rows, and their cents, by currency.
    charges: Mapping[str, int]
    totals: Mapping[str, int]
    #: Customers, each at one store, and the rows of the one with most.
    customers: int
    longest_lane: int
    #: The first faults, and how many there are.
    faults: Sequence[str]
    fault_count: int
    #: Why even the good rows cannot be told; None where they can.
    fatal: str | None
    #: How the file was read, such as "CSV, delimiter ;, cp1252, decimal comma".
    description: str
    digest: bytes = attrs.field(repr=False)
    index: Index = attrs.field(repr=False)

    @property
    def good(self) -> bool:
        """Whether every row can be sent."""
        return self.fault_count == 0 and self.fatal is None

    @property
    def good_rows(self) -> int:
        """Rows that can be sent."""
        return self.rows - self.bad_rows

    @contextmanager
    def reopened(self) -> Iterator[CsvRows | JsonlRows]:
        """A reader of the file; `InvalidRequestError` where it is not the one that was checked."""
        with open_rows(self.path, self.form) as (reader, seen):
            if seen.digest != self.digest:
                raise InvalidRequestError(f"{self.path.name}: changed since it was checked; nothing was sent")
            yield reader

    def requests(self) -> CheckedRows:
        """The good rows again, as they were checked; opened by `with`."""
        return CheckedRows(self)

    def close(self) -> None:
        """Let go of the index."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CheckedRows:
    """The good rows of a checked file, by lane or in the order of the file. Each is given once; open it by `with`.

    `InvalidRequestError` where the file is not the one that was checked: nothing of it is given then.
    """

    def __init__(self, check: FileCheck) -> None:
        self._check = check
        self._index = check.index
        self._stack = ExitStack()
        #: Lanes begun and not ended: lane -> the line of its last row given, and how many follow.
        self._begun: dict[int, tuple[int, int]] = {}
        self._lanes: Iterator[tuple[int, int]] | None = None
        #: Told of each row that is given.
        self.on_row: Callable[[SaleRequest], object] | None = None
        #: Lanes of one length in an order of this process's own, so that several over one file seldom meet.
        self.scattered = False

    def __enter__(self) -> Self:
        self._reader = self._stack.enter_context(self._check.reopened())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[SaleRequest]:
        """Those that were not given yet."""
        for lane in tuple(self._begun):
            while (request := self.next_of(lane)) is not None:
                yield request
        for lane, _ in self.lanes():
            while (request := self.next_of(lane)) is not None:
                yield request

    def lanes(self) -> Iterator[tuple[int, int]]:
        """Every lane not begun yet, with its size, the longest first."""
        if self._lanes is None:
            self._lanes = self._index.lanes(scattered=self.scattered)
        for lane, size in self._lanes:
            self._begun[lane] = 0, size
            yield lane, size

    def next_of(self, lane: int) -> SaleRequest | None:
        """The next row of a lane; None at its end."""
        after, left = self._begun.pop(lane, (0, 0))
        if not left:
            return None
        (place,) = self._index.lane(lane, after, 1)
        if left > 1:
            self._begun[lane] = place.line, left - 1
        request = self._read(place)
        if self.on_row is not None:
            self.on_row(request)
        return request

    def in_order(self) -> Iterator[SaleRequest]:
        """All of them in the order of the file, whatever was given."""
        return map(self._read, self._index.places())

    def _read(self, place: Place) -> SaleRequest:
        row = self._reader.at(place.offset, place.line)
        if row is None or row.digest != place.digest or row.request is None:
            raise InvalidRequestError(
                f"{self._check.path.name}: line {place.line} changed since it was checked"
            )
        return row.request
