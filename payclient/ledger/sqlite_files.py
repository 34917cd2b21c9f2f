"""Opening the SQLite file: where it may lie, who may read it, and settings that are read back.

No file is opened here but by SQLite: closing any other handle would drop SQLite's locks in this whole process.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress

import attrs

from payclient.errors import (
    ConfigurationError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    PayError,
)
from payclient.ledger.sqlite_lock import OwnerLock, check_supported
from payclient.ledger.sqlite_place import check_file, check_place
from payclient.ledger.sqlite_schema import (
    APPLICATION_ID,
    LAST_CURSOR,
    SCHEMA,
    SELECT_KEY,
    VERSION,
)

__all__ = ["Connect", "OpenFile", "connect", "open_file", "unavailable"]

Connect = Callable[[str], sqlite3.Connection]

#: Seconds that the owner waits for a program that reads, backs up or writes its file.
BUSY = 2.0

#: In this order, each with what must be read back.
_SETTINGS: tuple[tuple[str, str, object], ...] = (
    # So that readers work beside the owner. One owner is the business of `OwnerLock`.
    ("locking_mode", "NORMAL", "normal"),
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
    return sqlite3.connect(path, timeout=BUSY, isolation_level=None)


def unavailable(error: BaseException, doing: str) -> LedgerUnavailableError:
    """What a fault of SQLite is to a caller; it quotes the fault's name, never a statement or a value."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return LedgerUnavailableError(f"the ledger could not be {doing} ({name})")


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


@attrs.frozen
class OpenFile:
    """A ledger's file that was opened, locked and checked."""

    connection: sqlite3.Connection
    lock: OwnerLock
    digest_key: bytes
    #: The highest number of a permit or a change; 0 where there is none.
    last_cursor: int
    #: This opening made the ledger.
    created: bool
    #: The file, its write-ahead log and its lock, each with its device and inode.
    identities: dict[str, tuple[int, int]]

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file itself."""
        return next(iter(self.identities.values()))

    def check_in_place(self) -> None:
        """Raise `LedgerUnavailableError` where the ledger's path names other files than those that are open.

        What is committed to a renamed or removed file would be missing in the next process.
        """
        with suppress(OSError):
            if all(_identity(path) == identity for path, identity in self.identities.items()):
                return
        raise LedgerUnavailableError(
            f"the ledger must stay at {next(iter(self.identities))} while it is open: the file, its -wal or its "
            "-lock was renamed, removed or replaced; no permit is granted"
        )

    def close(self) -> None:
        """Close the connection; the lock stays."""
        with suppress(sqlite3.Error):
            self.connection.close()


def open_file(path: str, connect: Connect, *, create: bool, lock: OwnerLock | None = None) -> OpenFile:
    """Open, lock and check a ledger's file, made if there is none and `create`; `lock` is held already, if given.

    Raises `ConfigurationError` for what is no ledger or no safe place, `LedgerMissingError`, `LedgerInUseError`,
    `LedgerUnavailableError`.
    """
    if sqlite3.sqlite_version_info < (3, 37):
        raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; a ledger needs 3.37 or later")
    check_supported()
    path = os.path.realpath(path)  # beside which SQLite keeps the write-ahead log
    taken: OwnerLock | None = None
    try:
        check_place(path)
        if os.path.exists(path):
            check_file(path)
        if not create and not os.path.exists(path):
            raise _missing(path)
        lock = lock or (taken := _locked(path))
        with suppress(FileExistsError):
            # Made here, since SQLite would ask the umask; -wal and -shm take the mode of their file.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        check_file(path)
        return _opened(path, connect, create, lock)
    except PayError:
        if taken:
            taken.release()
        raise
    except (sqlite3.Error, OSError) as error:
        if taken:
            taken.release()
        fault: PayError = unavailable(error, "opened")
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            fault = ConfigurationError("the ledger's file is not a SQLite database")
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            fault = LedgerInUseError("the ledger is in use by another program that has it open")
    # Outside the `except`, so that not even `__context__` keeps what SQLite said.
    raise fault


def _locked(path: str) -> OwnerLock:
    owner = os.stat(path).st_uid if os.path.exists(path) else None
    return OwnerLock(f"{path}-lock", owner)


def _opened(path: str, connect: Connect, create: bool, lock: OwnerLock) -> OpenFile:
    connection = connect(path)
    try:
        created = _prepare(connection, path, create)
        key = _digest_key(connection)
        (last,) = connection.execute(LAST_CURSOR).fetchone()
        locked = lock.status
        identities = {each: _identity(each) for each in (path, f"{path}-wal")}
        identities[lock.path] = locked.st_dev, locked.st_ino
        file = OpenFile(connection, lock, key, last, created, identities)
        file.check_in_place()
    except BaseException:
        with suppress(sqlite3.Error):
            connection.close()
        raise
    return file


def _missing(path: str) -> LedgerMissingError:
    return LedgerMissingError(
        f"the ledger must exist, and there is no ledger at {path}; `payclient ledger init` makes one"
    )


def _prepare(connection: sqlite3.Connection, path: str, create: bool) -> bool:
    """Set and check the connection; whether the ledger was made."""
    _set(connection, *_SETTINGS[0])
    connection.execute("BEGIN")
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
    for each in (path, f"{path}-wal", f"{path}-shm"):
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
