"""Files made of a ledger, each whole and on disk before it has its name: the copy of a SQLite ledger, and the archive.

An archive moves decided attempts out of a ledger: copied, compared, then deleted. The file is written whole before the
first attempt leaves the ledger. Then each block of attempts is read back from the file, compared with what the ledger
holds, and replaced by what a permit must know, in one transaction. A crash leaves each attempt in the ledger, or in
both, or in the file alone; the same call goes on from there.

The file is text: a line of JSON about the archive, one for each attempt with all its changes, and one that counts them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import groupby
from operator import itemgetter, methodcaller
from typing import Any

from payclient.errors import ConfigurationError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.batch import Database
from payclient.ledger.records import COLUMNS
from payclient.ledger.sqlite_files import open_to_read
from payclient.ledger.writer import StoredLedger

__all__ = ["archive", "back_up"]

#: Numbers of attempts and changes in one block, which is one transaction.
BLOCK = 2000
#: Bytes of a line that is read back.
_LINE = 1 << 20

Lines = dict[int, str]


@contextmanager
def _new_file(path: str) -> Iterator[str]:
    """Yield the path of an empty file of mode 0600, which is named `path` once it is written and on disk."""
    unfinished = f"{path}.{secrets.token_hex(8)}.part"
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        yield unfinished
        _sync(unfinished)
        os.link(unfinished, path)  # fails where the name is taken, as a rename does not
    finally:
        for leftover in (unfinished, f"{unfinished}-journal", f"{unfinished}-wal", f"{unfinished}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(leftover)
    _sync(os.path.dirname(path))


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def back_up(source: str, target: str) -> None:
    """Copy the SQLite ledger at `source`, as of one commit, to the new file `target`. Raises as `backup_ledger`."""
    target = os.path.abspath(target)
    fault: PayError
    try:
        connection = open_to_read(source).connection
        with closing(connection), _new_file(target) as unfinished:
            _copy(connection, unfinished)
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


async def archive(ledger: StoredLedger, before: float, path: str, stopped: Callable[[], bool]) -> int:
    """Move what was decided before a time (UTC seconds) to the file at `path`; return how many attempts the file has.

    Raises `ConfigurationError` where the file is there and not of this ledger and time, and `LedgerUnavailableError`
    where the file is damaged, or attempts changed after they were copied: these stay in the ledger.
    """
    head = {
        "payclient": "archive",
        "ledger": hashlib.blake2b(ledger.digest_key, digest_size=8).hexdigest(),
        "before": before,
    }
    if not os.path.exists(path):  # noqa: ASYNC240 - the loop is its own, here and below
        await _write(ledger, head, path, stopped)
    changed = copied = 0
    for block, lines in _read(path, head):
        _check_stopped(stopped)
        copied += len(lines)
        changed += await ledger.work(partial(_move, block=block, before=before, lines=lines))
    if changed:
        raise LedgerUnavailableError(
            f"the archive must hold what the ledger holds; {changed} attempts changed after they were copied, and stay "
            "in the ledger: archive them to another file"
        )
    return copied


def _check_stopped(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise LedgerUnavailableError("the archive was interrupted: the same call goes on")


async def _write(ledger: StoredLedger, head: dict[str, Any], path: str, stopped: Callable[[], bool]) -> None:
    """Write the file, whole or not at all."""
    ((first, last),) = await ledger.work(methodcaller("fetch", "ids", ()))
    blocks = [] if first is None else range((first - 1) // BLOCK, (last - 1) // BLOCK + 1)
    attempts, digest = 0, hashlib.sha256()
    with _new_file(path) as unfinished, open(unfinished, "w", encoding="ascii") as file:  # noqa: ASYNC230 - as above
        file.write(json.dumps(head) + "\n")
        for block in blocks:
            _check_stopped(stopped)
            lines = await ledger.work(partial(_lines, block=block, before=head["before"]))
            for line in lines.values():
                attempts += 1
                digest.update(line.encode())
                file.write(line)
        file.write(json.dumps({"attempts": attempts, "sha256": digest.hexdigest()}) + "\n")


async def _lines(database: Database, block: int, before: float) -> Lines:
    """Return the attempts of a block that may leave, by id, as lines of the file."""
    first, last = block * BLOCK, (block + 1) * BLOCK
    attempts = await database.fetch("archivable", (first, last, before))
    if not attempts:
        return {}
    rows = await database.fetch("archivable_changes", (first, last))
    changes = {id_: list(each) for id_, each in groupby(rows, itemgetter(1))}
    return {
        row[0]: _line(
            _named("whole_attempt", row)
            | {"changes": [_named("whole_change", each) for each in changes[row[0]]]}
        )
        for row in attempts
    }


def _named(table: str, row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS[table], row, strict=True))


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, default=bytes.hex) + "\n"


def _read(path: str, head: dict[str, Any]) -> Iterator[tuple[int, Lines]]:
    """Yield the lines of each block, once the whole file has proved to be sound."""
    with open(path, encoding="ascii", errors="replace") as file:
        if file.readline(_LINE) != json.dumps(head) + "\n":
            raise ConfigurationError(
                "the archive must be a new file, or one of this ledger and time that a crash left unfinished; "
                f"{path} is there already and stays as it is"
            )
        begin, attempts, digest = file.tell(), 0, hashlib.sha256()
        while (line := file.readline()).startswith('{"id"'):
            attempts += 1
            digest.update(line.encode())
        if line != json.dumps({"attempts": attempts, "sha256": digest.hexdigest()}) + "\n":
            raise LedgerUnavailableError(
                f"the archive {path} is damaged: nothing more was deleted from the ledger"
            )
        file.seek(begin)
        numbered = ((json.loads(line)["id"], line) for line in (file.readline() for _ in range(attempts)))
        for block, lines in groupby(numbered, lambda each: (each[0] - 1) // BLOCK):
            yield block, dict(lines)


async def _move(database: Database, block: int, before: float, lines: Lines) -> int:
    """Archive the attempts of a block that are as the file has them; return how many have changed, and stay."""
    async with database.exclusive_transaction():
        held = await _lines(database, block, before)
        same = {id_ for id_, line in lines.items() if held.get(id_) == line}
        if same:
            ids = json.dumps(sorted(same))
            await database.fetch("archive", (ids, time.time()))
            await database.fetch("delete_archived_changes", (ids,))
            await database.fetch("delete_archived_attempts", (ids,))
        # Those of the rest that left the ledger before a crash are not in it any more.
        rest = json.dumps([id_ for id_ in lines if id_ not in same])
        (row,) = await database.fetch("count_live", (rest,))
    return int(row[0])
