"""Where a SQLite ledger may lie: on a local file system, in a directory that holds its write-ahead log too."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from payclient.errors import ConfigurationError

__all__ = ["check_file", "check_place", "mount_of"]

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
    """The mount point that holds a real path, and the type of its file system, by the text of `/proc/self/mounts`."""
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


def check_file(path: str) -> None:
    """Raise `ConfigurationError` where the file that is there cannot be a ledger."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("the ledger is not a regular file")
    if status.st_nlink > 1:  # each name would have a write-ahead log of its own
        raise ConfigurationError("the ledger's file has a second name (a hard link)")
