"""Files made of a ledger: the copy of a SQLite ledger, and the archive, to which decided attempts are moved.

A block of attempts is on the disk, and read back, before the database drops their changes: a crash leaves each attempt
in the ledger, or in both. Each takes one more change, `Archived`, unless it has taken another one meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import time
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryDirectory
from typing import Any

from payclient.errors import ConfigurationError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.batch import Database, Row
from payclient.ledger.records import COLUMNS
from payclient.ledger.sqlite_files import open_to_read
from payclient.ledger.writer import StoredLedger

__all__ = ["archive", "back_up"]

#: Numbers of attempts and changes in one block, which is one transaction.
BLOCK = 500


def _sync(path: str) -> None:
    """Make the bytes of a file, or the names in a folder, outlast a power failure."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        # File systems without an fsync of folders, such as VirtualBox's shared folders, say so by EINVAL.
        if error.errno != errno.EINVAL or not os.path.isdir(path):
            raise
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
            # Takes the name, or fails; a rename alone would go over another file.
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.replace(unfinished, target)
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


def _copy(source: sqlite3.Connection, target: str) -> None:
    """Copy a whole ledger but its form links, and check the copy."""
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # In one step: a snapshot of one commit, while the owner goes on writing.
        source.backup(copy)
        # One file, without a write-ahead log that would have to go with it.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("PRAGMA secure_delete = ON")
        copy.execute("DELETE FROM form_links")  # secrets, which a copy must not keep
        if copy.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            words = "the copy of the ledger is damaged, and perhaps the ledger: nothing was kept"
            raise LedgerUnavailableError(words)


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
    ((first, last),) = await ledger.fetch("ids")
    moved = 0
    for begin in range((first or 1) - 1, last or 0, BLOCK):
        attempts = await ledger.work(partial(_archivable, numbers=(begin, begin + BLOCK), before=before))
        if attempts:
            lines = "".join(json.dumps(each, default=bytes.hex) + "\n" for each in attempts)
            await asyncio.to_thread(_append, path, lines.encode())  # the loop waits for no disk
            moved += await ledger.work(partial(_move, attempts=attempts, before=before))
    return moved


async def _archivable(database: Database, numbers: tuple[int, int], before: float) -> list[dict[str, Any]]:
    """Return the attempts of a block that may leave, each with its changes."""
    # The changes first: one that comes in between is not among them, and its attempt stays, as does one that another
    # process archives.
    rows = await database.fetch("archivable_changes", numbers)
    changes = (dict(zip(COLUMNS["whole_change"], row, strict=True)) for row in rows)
    changes_of = {id_: [*group] for id_, group in groupby(changes, itemgetter("attempt_id"))}
    rows = await database.fetch("archivable", (*numbers, before)) if changes_of else ()
    attempts = (dict(zip(COLUMNS["whole_attempt"], row, strict=True)) for row in rows)
    return [each | {"changes": changes_of[each["id"]]} for each in attempts if each["id"] in changes_of]


async def _move(database: Database, attempts: list[dict[str, Any]], before: float) -> int:
    """Archive these attempts; return how many. One that has taken another change since it was read stays."""
    now = time.time()
    try:
        archived = await database.insert([], [_last_change(each, now) for each in attempts])
    except database.value_faults:
        # Another process has archived some of them meanwhile, and so dropped the changes that these follow.
        numbers = attempts[0]["id"] - 1, attempts[-1]["id"]
        left = [each for each in await _archivable(database, numbers, before) if each in attempts]
        if len(left) == len(attempts):
            raise
        return await _move(database, left, before) if left else 0
    return sum(each["client_transaction_id"] in archived for each in attempts)


def _last_change(attempt: dict[str, Any], at: float) -> Row:
    """Return the change `Archived` of an attempt: how it ended, without the texts."""
    newest = attempt["changes"][-1]
    change = newest | {
        "version": newest["version"] + 1, "at": at, "event": "Archived", "evidence": newest["state_evidence"],
        "before": newest["after"], "detail": None, "messages": None, "reason": None, "receipt": None,
    }  # fmt: skip
    facts = (change[name] for name in COLUMNS["whole_change"][2:])
    return (attempt["client_transaction_id"], attempt["attempt"], *facts)


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
        words = f"the archive {path} is damaged: nothing more was deleted from the ledger"
        raise LedgerUnavailableError(words)
