"""Files made of a ledger: the copy of a SQLite ledger, and the archive, to which decided attempts are moved.

The archive is text: a line of JSON for each attempt with all its changes. A block of attempts at a time is written,
synced to the disk and read back. Then those that are as the file has them are replaced by what a permit must know, in
one transaction. A crash leaves each attempt in the ledger, or in both, or in the file alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter, methodcaller
from tempfile import TemporaryDirectory
from typing import Any

from payclient.errors import ConfigurationError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.batch import Database
from payclient.ledger.records import COLUMNS
from payclient.ledger.sqlite_files import open_to_read
from payclient.ledger.writer import StoredLedger

__all__ = ["archive", "back_up"]

#: Numbers of attempts and changes in one block, which is one transaction.
BLOCK = 500


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def back_up(source: str, target: str) -> None:
    """Copy the SQLite ledger at `source`, as of one commit, to the new file `target`. Raises as `backup_ledger`."""
    target = os.path.abspath(target)
    folder = os.path.dirname(target)
    fault: PayError
    try:
        connection = open_to_read(source).connection
        with (
            closing(connection),
            TemporaryDirectory(prefix=f"{os.path.basename(target)}.", dir=folder) as beside,
        ):
            unfinished = os.path.join(beside, "ledger")
            os.close(os.open(unfinished, os.O_CREAT | os.O_RDWR, 0o600))
            _copy(connection, unfinished)
            _sync(unfinished)
            _name(unfinished, target)
        _sync(folder)
    except FileExistsError:
        fault = ConfigurationError(
            f"the backup must be a new file; {target} is there already and stays as it is"
        )
    except (OSError, sqlite3.Error) as error:
        fault = unavailable(error, "backed up")
    else:
        return
    raise fault  # outside the `except`, so that no `__context__` is kept


def _name(unfinished: str, target: str) -> None:
    """Give a file its name. Raises `FileExistsError` where the name is taken."""
    try:
        os.link(unfinished, target)  # fails then, as a rename does not
    except FileExistsError:
        raise
    except OSError:  # no hard links there, as on a USB stick: take the name by an empty file first
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.replace(unfinished, target)


def _copy(source: sqlite3.Connection, target: str) -> None:
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # In one step: a snapshot of one commit, while the owner goes on writing.
        source.backup(copy)
        # One file, without a write-ahead log that would have to go with it.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("PRAGMA secure_delete = ON")
        copy.execute("DELETE FROM form_links")  # secrets, which a copy must not keep
        if copy.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise LedgerUnavailableError(
                "the copy of the ledger is damaged, and perhaps the ledger: nothing was kept"
            )


async def archive(ledger: StoredLedger, before: float, path: str) -> int:
    """Move what was decided before a time (UTC seconds) to the new file at `path`; return how many were moved."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _sync(os.path.dirname(path))
    except FileExistsError:
        words = f"the archive must be a new file; {path} is there already and stays as it is"
        raise ConfigurationError(words) from None
    except OSError as error:
        raise unavailable(error, "archived") from None
    ((first, last, *_),) = await ledger.work(methodcaller("fetch", "ids", ()))
    moved = 0
    for block in [] if first is None else range((first - 1) // BLOCK, (last - 1) // BLOCK + 1):
        numbers = block * BLOCK, (block + 1) * BLOCK
        if lines := await ledger.work(partial(_lines, numbers=numbers, before=before)):
            # A disk may be slow: neither the loop nor the permits of other processes wait for it.
            await asyncio.to_thread(_append, path, "".join(lines.values()).encode())
            moved += await ledger.work(partial(_move, numbers=numbers, before=before, lines=lines))
    return moved


async def _lines(database: Database, numbers: tuple[int, int], before: float) -> dict[int, str]:
    """Return the attempts of a block that may leave, by id: each is a line of JSON with its changes."""
    attempts = await database.fetch("archivable", (*numbers, before))
    if not attempts:
        return {}
    found = {row[0]: _named("whole_attempt", row) for row in attempts}
    rows = await database.fetch("archivable_changes", numbers)
    # Those that another process has archived in between have no changes any more.
    changes = (
        (id_, [_named("whole_change", row) for row in each])
        for id_, each in groupby(rows, itemgetter(1))
        if id_ in found
    )
    return {id_: json.dumps(found[id_] | {"changes": own}, default=bytes.hex) + "\n" for id_, own in changes}


async def _move(database: Database, numbers: tuple[int, int], before: float, lines: dict[int, str]) -> int:
    """Move the attempts of a block that are as the file has them; return how many. One that was changed stays."""
    async with database.exclusive_transaction():
        same = lines.items() & (await _lines(database, numbers, before)).items()
        await database.fetch("archive", (time.time(), json.dumps([id_ for id_, _ in same])))
        await database.fetch("delete_archived_changes", numbers)
        await database.fetch("delete_archived_attempts", numbers)
    return len(same)


def _named(table: str, row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS[table], row, strict=True))


def _append(path: str, lines: bytes) -> None:
    """Write lines to the end of a file and to the disk, and read them back."""
    try:
        begin = os.path.getsize(path)
        try:
            with open(path, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(path, begin)  # no line is cut
            raise
        with open(path, "rb") as file:
            file.seek(begin)
            is_whole = file.read() == lines
    except OSError as error:
        raise unavailable(error, "archived") from None
    if not is_whole:
        raise LedgerUnavailableError(
            f"the archive {path} is damaged: nothing more was deleted from the ledger"
        )
