"""The SQLite file: where it may lie, which process owns it, and how its owner and readers open it.

The file is opened by SQLite alone: closing any other handle would drop SQLite's locks in this whole process.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import attrs

from payclient.errors import ConfigurationError, LedgerInUseError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.records import (
    VERSION,
    check_one_key,
    check_version,
    lacking,
    missing,
    read_statements,
    refuse_if,
)

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # Windows has none: `_check_place` says so

STATEMENTS = {
    name: re.sub(r"\$\d", "?", sql.replace("payclient.", ""))
    for name, sql in read_statements("sqlite.sql").items()
}
#: "PayL": what makes a SQLite file ours.
APPLICATION_ID = 0x5061794C

#: Seconds that the owner waits for a program that reads, backs up or writes its file.
BUSY = 2.0

#: The errors of SQLite where it would have to make or write the shared memory of a write-ahead log. Where an owner was
#: killed as it began that log, SQLite tries for ten seconds first.
_NEEDS_SHARED_MEMORY = frozenset(
    {"SQLITE_CANTOPEN", "SQLITE_READONLY_CANTINIT", "SQLITE_READONLY_RECOVERY", "SQLITE_PROTOCOL"}
)

#: In this order, each with what must be read back.
_SETTINGS: tuple[tuple[str, str, object], ...] = (
    # So that readers work beside the owner. One owner is the business of `_own`.
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

# Where it may lie

#: File systems of another machine, of a cluster, or of the host of a virtual machine. SQLite needs shared memory, locks
#: and a durable fsync, and these break at least one of the three.
_REMOTE = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "gfs", "gfs2",
        "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2",
        "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip
#: FUSE programs that pass everything on to a disk of this machine. Any other one may be a network: refused.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs"})


def _mount_of(path: str) -> tuple[str, str]:
    """Return the mount point of a real path and the type of its file system, as far as the system lists them."""
    best, kind, mounts = "", "", ""
    with suppress(OSError):  # no such file: not Linux
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    for fields in (line.split(" ") for line in mounts.splitlines()):
        if len(fields) >= 3:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            # The later of two mounts on one point hides the earlier.
            if inside and len(point) >= len(best):
                best, kind = point, fields[2]
    return best, kind


def _check_place(path: str) -> None:
    """Raise `ConfigurationError` where no ledger may lie at this real path."""
    _, kind = _mount_of(path)
    refuse_if(
        (
            sqlite3.sqlite_version_info < (3, 37),
            f"SQLite is {sqlite3.sqlite_version}; a ledger needs 3.37 or later",
        ),
        (
            fcntl is None,
            "a SQLite ledger must be on a system with flock, which Windows lacks: use PostgreSQL, or WSL",
        ),
        (
            not os.path.isdir(at := os.path.dirname(path)),
            f"the ledger's directory does not exist, or may not be entered: {at}",
        ),
        (
            not os.access(at, os.W_OK | os.X_OK),  # the log and the lock lie beside the ledger
            f"the ledger's directory must be such that this user may write in it: {at}",
        ),
        (
            kind in _REMOTE or (kind.startswith("fuse") and kind not in _LOCAL_FUSE),
            f"the ledger must lie on a local file system; it lies on a network file system or its like ({kind})",
        ),
    )


def _check_file(path: str) -> int:
    """Return the owner of the file that is there; raise `ConfigurationError` where it cannot be a ledger."""
    status, (point, _) = os.stat(path), _mount_of(path)
    refuse_if(
        (not stat.S_ISREG(status.st_mode), "the ledger is not a regular file"),
        # Each name would have a write-ahead log of its own.
        (status.st_nlink > 1, "the ledger's file has a second name (a hard link)"),
        (
            # Not by the devices where there is a list: on an overlay of two disks, a file's is not its folder's.
            point == path or (not point and os.path.ismount(path)),
            "the ledger's file must not be a mount point of its own, since its write-ahead log lies beside it: "
            "mount its directory",
        ),
    )
    return status.st_uid


def _check_log(path: str) -> None:
    """Raise `ConfigurationError` where the file is a backup, and the log beside it is of the ledger before it.

    A backup has no write-ahead log. SQLite would mix its pages with those in the log of a ledger that was killed, and
    would not find many charges. Without a log the file is not opened here, since closing it drops SQLite's locks.
    """
    log = f"{path}-wal"
    if not os.path.exists(log) or os.path.getsize(log) == 0:
        return
    with open(path, "rb", buffering=0) as file:
        # These two bytes say whether its writers and its readers use such a log.
        is_backup = file.read(20)[18:] == b"\1\1"
    words = (
        f"the ledger's file is a backup, and {log} is of the ledger that was there before: move that file away first, "
        "and the -shm beside it; nothing was changed"
    )
    refuse_if((is_backup, words))


def _identity_of(file: str) -> tuple[int, int]:
    """Return the device and the inode of a file."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


# The owner

#: The errors of `flock` where a file system has no locks.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

#: The files of the locks that this process holds. A fork waits until nobody is opening a ledger (`sqlite`), so that it
#: finds here each lock file that is open.
_held: set[int] = set()


def _own(path: str, owner: int | None, undo: ExitStack) -> tuple[int, int]:
    """Hold the lock on `path` until `undo` is closed; return the device and the inode of its file.

    The file is never removed: another process may be opening it. `owner` is the user to whom a lock file belongs that
    root makes. Raises `LedgerInUseError` where another open file holds the lock, `ConfigurationError` where there are
    no locks, and `OSError`.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    undo.callback(os.close, file)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"the ledger's lock must be a regular file, and {path} is not one")
    if owner is not None and os.geteuid() == 0 and status.st_uid != owner:
        os.fchown(file, owner, -1)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fault: PayError = LedgerInUseError(
            "the ledger is in use by another process, or was opened by this one before; several processes, such as "
            'the workers of a web server, must share a PostgreSQL ledger: ledger="postgresql://..."'
        )
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        fault = ConfigurationError("the ledger must lie on a file system that has locks (flock)")
    else:
        _held.add(file)
        undo.callback(_held.discard, file)
        return status.st_dev, status.st_ino
    raise fault


def _drop_in_child() -> None:
    """Close the copies that a child inherited: they would hold the lock after its parent's end."""
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_in_child)


# How it is opened


def connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY, isolation_level=None)


@attrs.frozen
class OpenFile:
    """A ledger's file that was opened and checked."""

    connection: sqlite3.Connection
    digest_key: bytes
    #: Closes the connection, and lets another process own the file.
    close: Callable[[], None]
    #: The highest number of a permit or a change; 0 where there is none.
    last_cursor: int = 0
    #: This opening made the ledger.
    created: bool = False
    #: Raises `LedgerUnavailableError` where the ledger's path names other files than those that are open. One that is
    #: only read may be anywhere.
    check_in_place: Callable[[], None] = lambda: None


def _check_in_place(path: str, identities: dict[str, tuple[int, int]]) -> None:
    """Check the ledger's file at `path`, its write-ahead log and its lock, by the device and the inode of each.

    A commit to a renamed or removed file would be missing in the next process.
    """
    with suppress(OSError):
        if all(_identity_of(each) == identity for each, identity in identities.items()):
            return
    raise LedgerUnavailableError(
        f"the ledger must stay at {path} while it is open: the file, its -wal or its -lock was renamed, removed or "
        "replaced; no permit is granted"
    )


def open_file(path: str, *, create: bool) -> OpenFile:
    """Open, lock and check a ledger's file; `create` makes a missing one.

    Raises `ConfigurationError` for what is not a ledger, or not in a safe place, `LedgerMissingError`,
    `LedgerInUseError`, `LedgerUnavailableError`.
    """
    given, path = path, os.path.realpath(path)  # beside which SQLite keeps the write-ahead log
    try:
        with ExitStack() as undo:
            _check_place(path)
            owner = None
            try:
                owner = _check_file(path)
            except FileNotFoundError:  # any other error leaves open whether there is one
                if not create:
                    raise missing(path) from None
            else:
                # SQLite would open it all the same, and every permit would fail.
                files = (path, f"{path}-wal", f"{path}-shm")
                # In this order, since its last owner may just be removing the log.
                may_write = all(os.access(each, os.W_OK) or not os.path.exists(each) for each in files)
                words = "the ledger's file, its -wal and its -shm must be such that this user may write them"
                refuse_if((not may_write, words))
            identities = {f"{path}-lock": _own(f"{path}-lock", owner, undo)}
            with suppress(FileExistsError):
                # Made here, since SQLite would apply the umask; -wal and -shm take the mode of their file.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            _check_file(path)
            _check_log(path)
            connection = connect(path)
            undo.callback(_close, connection)
            made = _set_up(connection, path, create)
            key = _digest_key(connection)
            (last,) = connection.execute(STATEMENTS["last_cursor"]).fetchone()
            identities |= {each: _identity_of(each) for each in (path, f"{path}-wal")}
            identities[given] = identities[path]  # the next process follows a link to where it leads by then
            check_in_place = partial(_check_in_place, given, identities)
            check_in_place()
            return OpenFile(connection, key, undo.pop_all().close, last, made, check_in_place)
    except (OSError, sqlite3.Error) as error:
        fault: PayError = unavailable(error, "opened")
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            fault = ConfigurationError("the ledger's file is not a SQLite database")
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            fault = LedgerInUseError("the ledger is in use by another program that has it open")
    raise fault  # outside the `except`, so that no `__context__` keeps what SQLite said


def _set_up(connection: sqlite3.Connection, path: str, create: bool) -> bool:
    """Set up the connection, make the schema in a new file, and check that nothing of it is missing.

    Return whether the ledger was made.
    """
    _set(connection, *_SETTINGS[0])  # of this connection: no byte of the file changes
    # Read before anything is changed: a file that is not ours stays as it was.
    is_made = _is_made(connection)
    if not is_made and not create:
        raise missing(path)
    for setting in _SETTINGS[1:]:
        _set(connection, *setting)
    if not is_made:
        connection.executescript(f"BEGIN IMMEDIATE;\n{STATEMENTS['schema']}")
        connection.execute(STATEMENTS["insert_meta"], (secrets.token_bytes(32),))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    for each in (path, f"{path}-wal", f"{path}-shm"):
        _tighten(each)
    _check_schema(connection)
    return not is_made


def open_to_read(path: str) -> OpenFile:
    """Open a ledger's file beside its owner, to be read only.

    Raises `ConfigurationError` for what is not a ledger of this version, `LedgerMissingError`,
    `LedgerUnavailableError`.
    """
    path = os.path.realpath(path)
    try:
        _check_file(path)
        refuse_if((not os.access(path, os.R_OK), "the ledger's file must be such that this user may read it"))
        with ExitStack() as undo:
            if not _held:  # else to close the file would drop the locks of a ledger that is owned here
                _check_log(path)
            connection = _connect_to_read(path)
            undo.callback(_close, connection)
            if not _is_made(connection):
                raise missing(path)
            _check_schema(connection)
            return OpenFile(connection, _digest_key(connection), undo.pop_all().close)
    except (OSError, sqlite3.Error) as error:
        # A rollback journal is left of an owner that was killed as it made the ledger.
        is_unmade = getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK"
        is_missing = is_unmade or isinstance(error, FileNotFoundError)
        fault = missing(path) if is_missing else unavailable(error, "read")
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
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    filled = bool(_parts(connection))
    connection.execute("COMMIT")
    if application == APPLICATION_ID:
        check_version(version)
    elif application or version or filled:
        raise ConfigurationError("the ledger's file is another program's SQLite database")
    return filled


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raise `ConfigurationError` where a table, a view or a trigger is not as this release makes it."""
    with closing(sqlite3.connect(":memory:")) as whole:
        whole.executescript(STATEMENTS["schema"])
        if not _parts(connection) >= _parts(whole):
            raise lacking("a table, a view or a trigger as this release makes it")


def _parts(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that made the tables, the views and the triggers."""
    return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")}


def _digest_key(connection: sqlite3.Connection) -> bytes:
    keys = [key for (key,) in connection.execute(STATEMENTS["digest_key"])]
    check_one_key(keys)
    if not keys or len(keys[0] or b"") != 32:  # NULL where a disk has filled it with zeros
        raise ConfigurationError("the ledger has no digest key")
    return bytes(keys[0])


def _set(connection: sqlite3.Connection, name: str, value: str, expected: object) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    found = _pragma(connection, name)
    if found != expected:
        raise ConfigurationError(f"SQLite's {name} is {found}, and a ledger needs {expected}")


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None


def _tighten(path: str) -> None:
    """Remove the permissions that group and others have on a file."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o077:
            os.chmod(path, mode & 0o700)


def _close(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        connection.close()
