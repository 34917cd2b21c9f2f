"""The SQLite file: how it is opened by its owner and by readers, and settings that are read back.

The file is opened by SQLite alone: closing any other handle would drop SQLite's locks in this whole process.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from urllib.parse import quote

import attrs

from payclient.errors import ConfigurationError, LedgerInUseError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.records import check_version, missing, read_statements
from payclient.ledger.sqlite_owner import OwnerLock, check_file, check_place, identity_of

STATEMENTS = {
    name: re.sub(r"\$\d", "?", sql.replace("payclient.", ""))
    for name, sql in read_statements("sqlite.sql").items()
}
#: The version of the tables, views and guards, which `TRANSITIONS` shapes too. A file of another version is refused.
VERSION = 1
#: "PayL": what makes a SQLite file ours.
APPLICATION_ID = 0x5061794C

Connect = Callable[[str], sqlite3.Connection]

#: Seconds that the owner waits for a program that reads, backs up or writes its file.
BUSY = 2.0

#: What SQLite raises where it would have to make or write the shared memory of a write-ahead log.
_NEEDS_SHARED_MEMORY = frozenset({"SQLITE_CANTOPEN", "SQLITE_READONLY_CANTINIT", "SQLITE_READONLY_RECOVERY"})

#: In this order, each with what must be read back.
_SETTINGS: tuple[tuple[str, str, object], ...] = (
    # So that readers work beside the owner. One owner is the business of `OwnerLock`.
    ("locking_mode", "NORMAL", "normal"),
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("fullfsync", "ON", 1),  # macOS: there a plain fsync reaches no disk
    ("checkpoint_fullfsync", "ON", 1),
    ("foreign_keys", "ON", 1),
    ("recursive_triggers", "ON", 1),  # so that REPLACE fires the triggers too
    ("trusted_schema", "OFF", 0),
    ("secure_delete", "ON", 1),  # a form's link that is dead is in no page of the file
    ("temp_store", "MEMORY", 2),  # nothing of the ledger in a file elsewhere
)


def connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY, isolation_level=None)


@attrs.frozen
class OpenFile:
    """A ledger's file that was opened and checked."""

    connection: sqlite3.Connection
    digest_key: bytes
    #: None where the file was opened to be read only.
    lock: OwnerLock | None = None
    #: The highest number of a permit or a change; 0 where there is none.
    last_cursor: int = 0
    #: This opening made the ledger.
    created: bool = False
    #: The file, its write-ahead log and its lock, each with its device and inode.
    identities: dict[str, tuple[int, int]] = attrs.Factory(dict)

    def check_in_place(self) -> None:
        """Raise `LedgerUnavailableError` where the ledger's path names other files than those that are open.

        What is committed to a renamed or removed file would be missing in the next process.
        """
        with suppress(OSError):
            if all(identity_of(path) == identity for path, identity in self.identities.items()):
                return
        raise LedgerUnavailableError(
            f"the ledger must stay at {next(iter(self.identities))} while it is open: the file, its -wal or its "
            "-lock was renamed, removed or replaced; no permit is granted"
        )

    def close(self) -> None:
        """Close the connection, and let another process own the file."""
        with suppress(sqlite3.Error):
            self.connection.close()
        if self.lock is not None:
            self.lock.release()


def open_file(path: str, connect: Connect, *, create: bool) -> OpenFile:
    """Open, lock and check a ledger's file; `create` makes a missing one.

    Raises `ConfigurationError` for what is no ledger or no safe place, `LedgerMissingError`, `LedgerInUseError`,
    `LedgerUnavailableError`.
    """
    if sqlite3.sqlite_version_info < (3, 37):
        raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; a ledger needs 3.37 or later")
    path = os.path.realpath(path)  # beside which SQLite keeps the write-ahead log
    lock: OwnerLock | None = None
    try:
        check_place(path)
        owner = None
        if os.path.exists(path):
            check_file(path)
            owner = os.stat(path).st_uid
        elif not create:
            raise missing(path)
        lock = OwnerLock(f"{path}-lock", owner)
        with suppress(FileExistsError):
            # Made here, since SQLite would apply the umask; -wal and -shm take the mode of their file.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        check_file(path)
        return _opened(path, connect, create, lock)
    except (PayError, sqlite3.Error, OSError) as error:
        if lock is not None:
            lock.release()
        fault = error if isinstance(error, PayError) else unavailable(error, "opened")
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            fault = ConfigurationError("the ledger's file is not a SQLite database")
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            fault = LedgerInUseError("the ledger is in use by another program that has it open")
    # Outside the `except`, so that not even `__context__` keeps what SQLite said.
    raise fault


def _opened(path: str, connect: Connect, create: bool, lock: OwnerLock) -> OpenFile:
    """Set up the connection, make the schema in a new file, and check that nothing of it is missing."""
    connection = connect(path)
    try:
        _set(connection, *_SETTINGS[0])
        # Read before anything is changed: a file that is not ours stays as it was.
        made = _is_made(connection)
        if not made and not create:
            raise missing(path)
        for setting in _SETTINGS[1:]:
            _set(connection, *setting)
        if not made:
            _create(connection)
        for each in (path, f"{path}-wal", f"{path}-shm"):
            _tighten(each)
        with closing(sqlite3.connect(":memory:")) as whole:
            whole.executescript(STATEMENTS["schema"])
            if not _parts(connection) >= _parts(whole):
                raise ConfigurationError(
                    "the ledger lacks a table, a view or a trigger that it was made with"
                )
        key = _digest_key(connection)
        (last,) = connection.execute(STATEMENTS["last_cursor"]).fetchone()
        identities = {each: identity_of(each) for each in (path, f"{path}-wal")}
        file = OpenFile(connection, key, lock, last, not made, identities | {lock.path: lock.identity})
        file.check_in_place()
    except BaseException:
        with suppress(sqlite3.Error):
            connection.close()
        raise
    return file


def open_to_read(path: str) -> OpenFile:
    """Open a ledger's file beside its owner, to be read only.

    Raises `ConfigurationError` for what is no ledger of this version, `LedgerMissingError`, `LedgerUnavailableError`.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        raise missing(path)
    check_file(path)
    try:
        connection = _connect_to_read(path)
        try:
            if not _is_made(connection):
                raise missing(path)
            return OpenFile(connection, _digest_key(connection))
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error) as error:
        fault = unavailable(error, "read")
    raise fault


def _connect_to_read(path: str) -> sqlite3.Connection:
    """Return a connection that writes neither the database nor its write-ahead log.

    `readonly_shm` leaves the shared memory alone too. A plain `mode=ro` would truncate it under an owner that lost
    SQLite's locks on it, by copying its own -shm for instance. SQLite needs the plain mode in two cases: the owner
    closed and left no -shm, or no owner has set a read mark yet.
    """
    for options in ("mode=ro&readonly_shm=1", "mode=ro"):
        address = f"file:{quote(os.fsencode(path))}?{options}"
        connection = sqlite3.connect(address, uri=True, timeout=BUSY, isolation_level=None)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            connection.close()
            if options == "mode=ro" or error.sqlite_errorname not in _NEEDS_SHARED_MEMORY:
                raise
        else:
            break
    return connection


def _is_made(connection: sqlite3.Connection) -> bool:
    """Return whether the file is a ledger, and not empty. Raises `ConfigurationError` for what is something else."""
    connection.execute("BEGIN")
    application, version = _read(connection, "application_id"), _read(connection, "user_version")
    filled = bool(_parts(connection))
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or version or filled):
        raise ConfigurationError("the ledger's file is another program's SQLite database")
    if application == APPLICATION_ID:
        check_version(version, VERSION)
    return filled


def _parts(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that made the tables, the views and the triggers."""
    return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")}


def _digest_key(connection: sqlite3.Connection) -> bytes:
    key = connection.execute(STATEMENTS["digest_key"]).fetchone()
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
    connection.executescript(f"BEGIN IMMEDIATE;\n{STATEMENTS['schema']}")
    connection.execute(STATEMENTS["insert_meta"], (secrets.token_bytes(32), time.time(), VERSION))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _tighten(path: str) -> None:
    """Remove the permissions that group and others have on a file."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o077:
            os.chmod(path, mode & 0o700)
