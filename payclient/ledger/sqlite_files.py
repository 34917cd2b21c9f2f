"""Opening the SQLite file: where it may lie, who may read it, and settings that are read back.

No file is opened here but by SQLite: closing any other handle would drop the locks of this whole process.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from payclient.errors import (
    ConfigurationError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    PayError,
)
from payclient.ledger.sqlite_schema import (
    APPLICATION_ID,
    LAST_CURSOR,
    SCHEMA,
    SELECT_KEY,
    VERSION,
)

__all__ = ["Connect", "OpenFile", "connect", "filesystem_of", "open_file", "unavailable"]

Connect = Callable[[str], sqlite3.Connection]

#: Their locks and their fsync are promises that nobody keeps.
_NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.rclone",
        "fuse.s3fs", "fuse.sshfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
    }
)  # fmt: skip

#: In this order, each with what must be read back. The lock is taken by the first read after the first.
_SETTINGS: tuple[tuple[str, str, object], ...] = (
    ("locking_mode", "EXCLUSIVE", "exclusive"),
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("fullfsync", "ON", 1),  # macOS: there a plain fsync reaches no disk
    ("checkpoint_fullfsync", "ON", 1),
    ("foreign_keys", "ON", 1),
    ("recursive_triggers", "ON", 1),  # so that REPLACE asks the triggers too
    ("trusted_schema", "OFF", 0),
    ("temp_store", "MEMORY", 2),  # nothing of the ledger in a file elsewhere
)


def connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None)


def filesystem_of(path: str, mounts: str) -> str:
    """The type of the file system that holds a real path, by the text of `/proc/self/mounts`."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # The later of two mounts on one point hides the earlier.
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def unavailable(error: BaseException, doing: str) -> LedgerUnavailableError:
    """What a fault of SQLite is to a caller; it quotes the fault's name, never a statement or a value."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return LedgerUnavailableError(f"the ledger could not be {doing} ({name})")


@attrs.frozen
class OpenFile:
    """A ledger's file that was opened, locked and checked."""

    connection: sqlite3.Connection
    digest_key: bytes
    #: The highest number of a permit or a change; 0 where there is none.
    last_cursor: int
    #: This opening made the ledger.
    created: bool


def open_file(path: str, connect: Connect, *, create: bool) -> OpenFile:
    """Open, lock and check a ledger's file, made if there is none and `create`.

    Raises `ConfigurationError` for what is no ledger or no safe place, `LedgerMissingError`, `LedgerInUseError`,
    `LedgerUnavailableError`.
    """
    if sqlite3.sqlite_version_info < (3, 37):
        raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; a ledger needs 3.37 or later")
    path = os.path.realpath(path)  # beside which SQLite keeps the write-ahead log
    try:
        _check_place(path, create)
        connection = connect(path)
        try:
            created = _prepare(connection, path, create)
            key = _digest_key(connection)
            return OpenFile(connection, key, connection.execute(LAST_CURSOR).fetchone()[0], created)
        except BaseException:
            with suppress(sqlite3.Error):
                connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        fault: PayError = unavailable(error, "opened")
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            fault = ConfigurationError("the ledger's file is not a SQLite database")
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            fault = LedgerInUseError("the ledger is in use by another process, or a second time by this one")
    # Outside the `except`, so that not even `__context__` keeps what SQLite said.
    raise fault


def _check_place(path: str, create: bool) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigurationError("the ledger's directory does not exist")
    with suppress(OSError):  # no such file: not Linux
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        kind = filesystem_of(path, mounts)
        if kind in _NETWORK:
            raise ConfigurationError(f"the ledger lies on a network file system ({kind})")
    if not create and not (os.path.exists(path) and os.path.getsize(path)):
        raise _missing(path)
    with suppress(FileExistsError):
        # Made here, since SQLite would ask the umask; -wal takes the mode of its file.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("the ledger is not a regular file")
    if status.st_nlink > 1:  # each name would have a write-ahead log of its own
        raise ConfigurationError("the ledger's file has a second name (a hard link)")


def _missing(path: str) -> LedgerMissingError:
    return LedgerMissingError(
        f"the ledger must exist, and there is no ledger at {path}; `payclient ledger init` makes one"
    )


def _prepare(connection: sqlite3.Connection, path: str, create: bool) -> bool:
    """Set and check the connection; whether the ledger was made."""
    _set(connection, *_SETTINGS[0])
    connection.execute("BEGIN EXCLUSIVE")  # the lock, kept from here on
    application = _read(connection, "application_id")
    version = _read(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    connection.execute("COMMIT")
    # Asked before anything is changed: a file that is not ours stays as it was.
    if application != APPLICATION_ID and (application or version or tables):
        raise ConfigurationError("the ledger's file is another program's SQLite database")
    if application == APPLICATION_ID and version != VERSION:
        raise ConfigurationError(
            f"the ledger must have schema version {VERSION}, and has version {version}: another release of "
            "payclient made it; nothing was changed"
        )
    if not tables and not create:
        raise _missing(path)
    for setting in _SETTINGS[1:]:
        _set(connection, *setting)
    if not tables:
        _create(connection)
    for each in (path, f"{path}-wal"):
        _tighten(each)
    made = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")}
    if not made >= {statement.strip() for statement in SCHEMA}:
        raise ConfigurationError("the ledger lacks a table, a view or a trigger that it was made with")
    return not tables


def _digest_key(connection: sqlite3.Connection) -> bytes:
    key = connection.execute(SELECT_KEY).fetchone()
    if key is None or len(key[0]) != 32:
        raise ConfigurationError("the ledger has no digest key")
    return bytes(key[0])


def _set(connection: sqlite3.Connection, name: str, value: str, expected: object) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    found = _read(connection, name)
    if found != expected:
        raise ConfigurationError(f"SQLite's {name} is {found}, and a ledger needs {expected}")


def _read(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute(
        "INSERT INTO meta (digest_key, created_at, schema_version) VALUES (?, ?, ?)",
        (secrets.token_bytes(32), time.time(), VERSION),
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _tighten(path: str) -> None:
    """Take from group and others what they may do with a file."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o077:
            os.chmod(path, mode & 0o700)
