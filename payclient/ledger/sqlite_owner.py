"""Where a SQLite ledger may lie, and which process owns it."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from contextlib import suppress
from pathlib import Path

from payclient.errors import ConfigurationError, LedgerInUseError, PayError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # Windows has none: `check_place` says so

__all__ = ["OwnerLock", "check_file", "check_place", "identity_of", "mount_of"]

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


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return the mount point of a real path and the type of its file system, by the text of `/proc/self/mounts`."""
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
    return best, kind


def check_place(path: str) -> None:
    """Raise `ConfigurationError` where no ledger may lie at this real path."""
    if fcntl is None:
        raise ConfigurationError(
            "a SQLite ledger must be on a system with flock, which Windows lacks: use PostgreSQL, or WSL"
        )
    if not os.path.isdir(os.path.dirname(path)):
        raise ConfigurationError("the ledger's directory does not exist")
    point, kind = "", ""
    with suppress(OSError):  # no such file: not Linux
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        point, kind = mount_of(path, mounts)
    if kind in _REMOTE or (kind.startswith("fuse") and kind not in _LOCAL_FUSE):
        raise ConfigurationError(
            f"the ledger must lie on a local file system; it lies on a network file system or its like ({kind})"
        )
    if point == path or os.path.ismount(path):
        raise ConfigurationError(
            "the ledger's file must not be a mount point of its own, since its write-ahead log lies beside it: "
            "mount its directory"
        )


def identity_of(file: str | int) -> tuple[int, int]:
    """Return the device and the inode of a file."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


def check_file(path: str) -> None:
    """Raise `ConfigurationError` where the file that is there cannot be a ledger."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("the ledger is not a regular file")
    if status.st_nlink > 1:  # each name would have a write-ahead log of its own
        raise ConfigurationError("the ledger's file has a second name (a hard link)")


# Who owns it


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
        """Take the lock, and write our process id into its file."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"the ledger's lock must be a regular file, and {self.path} is not one")
        if owner is not None and os.geteuid() == 0 and status.st_uid != owner:
            os.fchown(self._file, owner, -1)
        fault: PayError
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fault = self._in_use()
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            fault = ConfigurationError("the ledger must lie on a file system that has locks (flock)")
        else:
            # Read by a process that finds the lock taken; the lock itself is `flock` alone.
            with suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
            return
        # Outside the `except`, so that no `__context__` is kept.
        raise fault

    def _in_use(self) -> LedgerInUseError:
        """Return the error that names the process whose id the lock file has."""
        written = os.pread(self._file, 20, 0).strip()
        owner = int(written) if written.isdigit() else None
        known = {None: "another process", os.getpid(): "this process, which opened it before"}
        who = known.get(owner, f"process {owner}")
        fault = LedgerInUseError(
            f"the ledger is in use by {who}; several processes, such as the workers of a web server, must share a "
            'PostgreSQL ledger: ledger="postgresql://..."'
        )
        fault.owner = owner
        return fault

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the locked file, wherever its name is by now."""
        return identity_of(self._file)

    def release(self) -> None:
        """Let another process own the ledger. Call it once, in the process that took the lock."""
        with _guard:
            _held.remove(self)
            os.close(self._file)


def _drop_in_child() -> None:
    """Close the copies that a child inherited: they would hold the lock after its parent's end."""
    for lock in _held:
        os.close(lock._file)
    _held.clear()
    _guard.release()  # the fork waited for it: see `register_at_fork`


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_drop_in_child)
