"""The lock that makes one process the owner of a SQLite file.

SQLite's own locks are POSIX locks: any `open(ledger).close()` in the owner's process drops them. This one is a `flock`
on a file of its own, which belongs to one open file and ends with that or with the process.
"""

from __future__ import annotations

import errno
import os
import stat
import threading

from payclient.errors import ConfigurationError, LedgerInUseError, PayError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["OwnerLock", "check_supported"]

#: What `flock` raises where a file system has no locks.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

_held: set[OwnerLock] = set()
#: No fork comes between the opening of a lock file and its entry in `_held`.
_guard = threading.Lock()


class OwnerLock:
    """The lock on `path`, held from here to `release`. The file is never removed: another process may be opening it.

    Raises `LedgerInUseError` where another open file holds the lock, `ConfigurationError` where there are no locks, and
    `OSError`.
    """

    def __init__(self, path: str, owner: int | None) -> None:
        """`owner` is the user to whom a lock file belongs that root makes."""
        self.path = path
        with _guard:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._lock(owner)
            except BaseException:
                os.close(self._file)
                raise
            _held.add(self)

    def _lock(self, owner: int | None) -> None:
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"the ledger's lock must be a regular file, and {self.path} is not one")
        if owner is not None and os.geteuid() == 0 and status.st_uid != owner:
            os.fchown(self._file, owner, -1)
        fault: PayError
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fault = LedgerInUseError(
                "the ledger is in use by another process, or a second time by this one; several processes, such as "
                'the workers of a web server, must share a PostgreSQL ledger: ledger="postgresql://..."'
            )
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            fault = ConfigurationError("the ledger must lie on a file system that has locks (flock)")
        else:
            return
        # Outside the `except`, so that no `__context__` is kept.
        raise fault

    @property
    def status(self) -> os.stat_result:
        """The locked file's, wherever its name is by now."""
        return os.fstat(self._file)

    def release(self) -> None:
        """Let another process own the ledger. Call it once, in the process that took the lock."""
        with _guard:
            _held.remove(self)
            os.close(self._file)


def check_supported() -> None:
    """Raise `ConfigurationError` on a system without `flock`."""
    if fcntl is None:
        raise ConfigurationError(
            "a SQLite ledger must be on a system with flock, which Windows lacks: use PostgreSQL, or WSL"
        )


def _let_go_in_child() -> None:
    """Close the copies that a child inherited: they would hold the lock after its parent's end."""
    for lock in _held:
        os.close(lock._file)
    _held.clear()
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_let_go_in_child
    )
