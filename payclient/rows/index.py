"""What a first pass remembers of a file: digests and places, on disk, so that a million rows need no memory.

A private temporary database of SQLite's, gone with its connection. No value of a row is in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import attrs

from payclient.rows.faults import Fault

__all__ = ["Index", "Place"]

#: Rows written at once.
BATCH = 1000

_SCHEMA = """
CREATE TABLE rows (
    line INTEGER PRIMARY KEY, offset INTEGER, digest INTEGER, key INTEGER, lane INTEGER, shape INTEGER,
    amount INTEGER, currency TEXT, bad INTEGER NOT NULL
) STRICT;
CREATE TABLE faults (line INTEGER, column_name TEXT, reason TEXT NOT NULL, kind TEXT, fatal INTEGER NOT NULL) STRICT;
"""


@attrs.frozen
class Place:
    """Where a row stands, and a digest of its bytes as they were checked."""

    line: int
    offset: int
    digest: int


class Index:
    """Add every row, then `settle`; then it can be asked."""

    def __init__(self) -> None:
        # An empty name is a file of SQLite's own in the temporary directory, which nobody else can open.
        self._db = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -2048", "temp_store = FILE"):
            self._db.execute(f"PRAGMA {setting}")
        self._db.executescript(_SCHEMA)
        self._rows: list[tuple[object, ...]] = []
        self._faults: list[tuple[object, ...]] = []

    def add(
        self,
        place: Place,
        *,
        key: int | None,
        lane: int | None = None,
        shape: int | None = None,
        amount: int | None = None,
        currency: str | None = None,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        """Remember one row; one with faults is bad."""
        self._rows.append(
            (place.line, place.offset, place.digest, key, lane, shape, amount, currency, bool(faults))
        )
        self._faults += [(f.line, f.column, f.reason, f.kind, f.fatal) for f in faults]
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", self._rows)
        self._db.executemany("INSERT INTO faults VALUES (?, ?, ?, ?, ?)", self._faults)
        self._db.execute("COMMIT")
        self._rows.clear()
        self._faults.clear()

    def condemn(self, faults: Iterator[Fault]) -> Iterator[tuple[int, str]]:
        """Make rows bad that were good by themselves; gives amount and currency of each that was."""
        self._flush()
        for fault in faults:
            self._faults.append((fault.line, fault.column, fault.reason, fault.kind, fault.fatal))
            was = self._db.execute(
                "SELECT amount, currency, bad FROM rows WHERE line = ?", (fault.line,)
            ).fetchone()
            if not was[2]:
                self._db.execute("UPDATE rows SET bad = 1 WHERE line = ?", (fault.line,))
                yield was[0], was[1]
            if len(self._faults) >= BATCH:
                self._flush()
        self._flush()

    def repeated(self) -> Iterator[list[int]]:
        """The lines of each key that stands in more than one row."""
        self._flush()
        self._db.execute("CREATE INDEX rows_key ON rows (key)")
        found = self._db.execute(
            "SELECT key FROM rows WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1 ORDER BY min(line)"
        ).fetchall()
        for (key,) in found:
            yield [
                line
                for (line,) in self._db.execute("SELECT line FROM rows WHERE key = ? ORDER BY line", (key,))
            ]

    def of_shape(self, shape: int) -> list[int]:
        """The lines of rows whose phone has this shape."""
        self._flush()
        found = self._db.execute("SELECT line FROM rows WHERE shape = ? ORDER BY line", (shape,))
        return [line for (line,) in found]

    def settle(self) -> None:
        """No more rows come: gather the good ones by lane."""
        self._flush()
        self._db.execute(
            "CREATE TABLE lanes AS SELECT lane, count(*) AS size, min(line) AS first FROM rows "
            "WHERE NOT bad GROUP BY lane"
        )
        self._db.execute("CREATE INDEX lanes_size ON lanes (size DESC, first)")
        self._db.execute("CREATE INDEX rows_lane ON rows (lane, line) WHERE NOT bad")

    def customers(self) -> tuple[int, int]:
        """How many lanes there are, and the rows of the longest."""
        count, longest = self._db.execute("SELECT count(*), coalesce(max(size), 0) FROM lanes").fetchone()
        return count, longest

    def fault_count(self) -> int:
        """How many faults there are."""
        count: int = self._db.execute("SELECT count(*) FROM faults").fetchone()[0]
        return count

    def bad_rows(self) -> int:
        """How many rows have a fault."""
        count: int = self._db.execute("SELECT count(*) FROM rows WHERE bad").fetchone()[0]
        return count

    def faults(self, limit: int = -1) -> Iterator[Fault]:
        """The faults in the order of their lines."""
        for row in self._db.execute(
            "SELECT line, column_name, reason, kind, fatal FROM faults ORDER BY line, rowid LIMIT ?", (limit,)
        ):
            line, column, reason, kind, fatal = row
            yield Fault(line, column, reason, kind, bool(fatal))

    def fatal(self) -> Fault | None:
        """The fault behind which nothing can be told apart."""
        row = self._db.execute(
            "SELECT line, column_name, reason, kind FROM faults WHERE fatal LIMIT 1"
        ).fetchone()
        return None if row is None else Fault(row[0], row[1], row[2], row[3], fatal=True)

    def reasons(self, line: int) -> str:
        """All faults of a row, in one text."""
        rows = self._db.execute(
            "SELECT column_name, reason FROM faults WHERE line = ? ORDER BY rowid", (line,)
        )
        return "; ".join(f"{column}: {reason}" if column else reason for column, reason in rows)

    def places(self, *, bad: bool = False) -> Iterator[Place]:
        """The good rows, or the bad ones, in the order of the file."""
        for row in self._db.execute(
            "SELECT line, offset, digest FROM rows WHERE bad = ? ORDER BY line", (bad,)
        ):
            yield Place(*row)

    def lanes(self, *, scattered: bool = False) -> Iterator[tuple[int, int]]:
        """Each lane with its size, the longest first, equal ones in the order of the file, or in one of our own."""
        # A lane's number is a digest that no other process makes the same.
        then = "lane" if scattered else "first"
        # Not `yield from`, which would close the cursor of an iterator that outlives the index.
        for row in self._db.execute(f"SELECT lane, size FROM lanes ORDER BY size DESC, {then}"):  # noqa: S608 - our own words
            yield row[0], row[1]

    def lane(self, lane: int, after: int = 0, limit: int = -1) -> list[Place]:
        """The good rows of a lane behind a line."""
        found = self._db.execute(
            "SELECT line, offset, digest FROM rows WHERE NOT bad AND lane = ? AND line > ? ORDER BY line LIMIT ?",
            (lane, after, limit),
        )
        return [Place(*row) for row in found]

    def close(self) -> None:
        """Let go of the temporary file."""
        self._db.close()
