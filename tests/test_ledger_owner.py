"""One owner of one SQLite file, in its place: real processes, real mounts, and the public names alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

import payclient
from payclient import (
    ConfigurationError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    open_ledger,
)
from payclient.events import Created
from payclient.ledger import Ledger
from payclient.lifecycle import Record
from test_ledger import NOW, fresh

ROOT = Path(payclient.__file__).parents[1]


def run(program: str, *arguments: object, within: tuple[str, ...] = ()) -> str:
    """What a process of its own prints, perhaps within a namespace of its own."""
    command = [*within, sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


#: Opens a ledger in another process, and prints what came of it.
OPEN = """
import asyncio, sys
from payclient.errors import PayError
from payclient.ledger import open_ledger

async def main():
    try:
        await (await open_ledger("sqlite:" + sys.argv[1])).aclose()
        print("opened")
    except PayError as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


# --- The lock


@pytest.mark.parametrize("foreign", ["", "-lock"])
async def test_no_foreign_close_makes_a_second_owner(tmp_path: Path, foreign: str) -> None:
    """A copy of the files by the owner's own process, as an upload makes it, takes nothing from the owner."""
    path = tmp_path / "charges.db"
    (tmp_path / "charges.db-lock").write_text(f"{10**18}\n")  # of a process that is no more
    ledger = await open_ledger(f"sqlite:{path}")
    assert await ledger.permit(fresh())
    shutil.copyfile(f"{path}{foreign}", tmp_path / "copy")
    with pytest.raises(LedgerInUseError, match="in use by this process, which opened it before") as caught:
        await open_ledger(f"sqlite:{path}")
    assert caught.value.owner == os.getpid()
    assert caught.value.__context__ is None
    assert await asyncio.to_thread(run, OPEN, path) == (
        f"LedgerInUseError the ledger is in use by process {os.getpid()}; several processes, such as the workers of a "
        'web server, must share a PostgreSQL ledger: ledger="postgresql://..."'
    )
    assert await ledger.permit(fresh("order-2"))
    await ledger.aclose()
    assert await asyncio.to_thread(run, OPEN, path) == "opened"


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "charges.db"
    program = OPEN.replace(
        '.aclose()\n        print("opened")', ".get('order-1')\n        import os; os._exit(0)"
    )
    assert run(program, path) == ""
    assert (tmp_path / "charges.db-lock").exists()
    assert run(OPEN, path) == "opened"


#: Reads a ledger in another process, and prints how many attempts it has, and whether it can be written.
READ = """
import asyncio, sys
from payclient.errors import LedgerUnavailableError
from payclient.ledger import open_ledger
from payclient.lifecycle import Record

async def main():
    ledger = await open_ledger("sqlite:" + sys.argv[1], read_only=True)
    count = len([record async for record in ledger.records()])
    try:
        await ledger.permit(Record(client_transaction_id="new", amount=1, currency="USD", created_at=1.0))
    except LedgerUnavailableError as error:
        print(count, error)
    await ledger.aclose()

asyncio.run(main())
"""


def _files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


@pytest.mark.parametrize("foreign", ["", "-shm"])
async def test_a_reader_beside_the_owner_changes_nothing(tmp_path: Path, foreign: str) -> None:
    """Also where the owner's own process dropped SQLite's locks by a copy: the reader sees every commit, and the
    shared memory stays as it was."""
    path = tmp_path / "charges.db"
    ledger = await open_ledger(f"sqlite:{path}")
    for number in range(1, 3):
        assert await ledger.permit(fresh(f"order-{number}"))
        shutil.copyfile(f"{path}{foreign}", f"{path}-copy")
        before = os.stat(f"{path}-shm")
        said = await asyncio.to_thread(run, READ, path)
        assert said == f"{number} the ledger could not be written (SQLITE_READONLY)"
        if number > 1:
            assert os.stat(f"{path}-shm").st_mtime_ns == before.st_mtime_ns
    await ledger.aclose()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "charges.db",
        "charges.db-copy",
        "charges.db-lock",
    ]
    assert await asyncio.to_thread(run, OPEN, path) == "opened"


@pytest.mark.parametrize("end", ["killed", "killed, without -shm", "closed"])
def test_a_reader_after_the_owners_end_harms_nothing(tmp_path: Path, end: str) -> None:
    """What a killed owner had committed is read from its log, which the next owner finds as it was."""
    path = tmp_path / "charges.db"
    program = (
        OPEN.replace(
            "await (await open_ledger(",
            "from payclient.lifecycle import Record\n        ledger = await open_ledger(",
        )
        .replace(
            ".aclose()",
            '\n        await ledger.permit(Record(client_transaction_id="a", amount=1, currency="USD", created_at=1.0))'
            + ("\n        await ledger.aclose()" if end == "closed" else "\n        import os; os._exit(0)"),
        )
        .replace("sys.argv[1]))", "sys.argv[1])")
    )
    run(program, path)
    if end == "killed, without -shm":
        os.unlink(f"{path}-shm")
    before = _files(path)
    for _ in range(2):
        assert run(READ, path) == "1 the ledger could not be written (SQLITE_READONLY)"
    after = _files(path)
    if end == "killed":
        assert after == before
    assert all(after[name] == content for name, content in before.items())
    assert after.get("charges.db-wal", b"") == before.get("charges.db-wal", b"")
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    assert run(OPEN, path) == "opened"
    assert run(READ, path).startswith("1 ")


async def test_a_reader_makes_no_ledger(tmp_path: Path) -> None:
    """What is missing, another program's, or no database at all is refused as it is to an owner."""
    path = tmp_path / "charges.db"
    with pytest.raises(LedgerMissingError, match="there is no ledger at"):
        await open_ledger(f"sqlite:{path}", read_only=True)
    assert not list(tmp_path.iterdir())
    path.touch()
    with pytest.raises(LedgerMissingError, match="there is no ledger at"):
        await open_ledger(f"sqlite:{path}", read_only=True)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE a (b)")
    with pytest.raises(ConfigurationError, match="another program's"):
        await open_ledger(f"sqlite:{path}", read_only=True)
    path.write_bytes(b"x" * 5000)
    with pytest.raises(LedgerUnavailableError, match="SQLITE_NOTADB"):
        await open_ledger(f"sqlite:{path}", read_only=True)


def test_a_child_keeps_nothing_of_its_parent(tmp_path: Path) -> None:
    """Forked children neither drop the lock while the parent lives nor hold it after the parent's end."""
    said = run(
        """
        import asyncio, os, subprocess, sys
        from payclient.ledger import open_ledger

        path, program = sys.argv[1:]

        def opened():
            done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
            return done.stdout.split()[0]

        async def main():
            ledger = await open_ledger("sqlite:" + path)
            read, write = os.pipe()
            long_lived = os.fork()
            if not long_lived:
                os.close(write)
                os.read(read, 1)  # until the parent has ended
                print("after its parent's end:", opened(), flush=True)
                os._exit(0)
            brief = os.fork()
            if not brief:
                await ledger.aclose()
                os._exit(0)
            os.waitpid(brief, 0)
            print("beside its parent:", opened(), flush=True)
            os._exit(0)

        asyncio.run(main())
        """,
        tmp_path / "charges.db",
        OPEN,
    )
    assert said.splitlines() == ["beside its parent: LedgerInUseError", "after its parent's end: opened"]


def test_a_child_can_own_another_ledger(tmp_path: Path) -> None:
    """A child that opens a ledger of its own keeps it, whatever becomes of the parent's object in the child."""
    said = run(
        """
        import asyncio, gc, os, sys
        from payclient.errors import LedgerInUseError
        from payclient.ledger import open_ledger

        async def parent():
            return await open_ledger("sqlite:" + sys.argv[1])

        async def child(ledger):
            own = await open_ledger("sqlite:" + sys.argv[2])
            await ledger.aclose()
            del ledger
            gc.collect()
            try:
                await open_ledger("sqlite:" + sys.argv[2])
            except LedgerInUseError:
                print("still its own", flush=True)
            return own

        async def grandchild():
            await (await open_ledger(sys.argv[3])).aclose()
            print("and its child another", flush=True)

        ledger = asyncio.run(parent())
        if pid := os.fork():
            os.waitpid(pid, 0)
            os._exit(0)
        own = asyncio.run(child(ledger))
        if pid := os.fork():
            os.waitpid(pid, 0)
            os._exit(0)
        asyncio.run(grandchild())
        os._exit(0)
        """,
        tmp_path / "charges.db",
        tmp_path / "other.db",
        f"sqlite:{tmp_path / 'third.db'}",
    )
    assert said.splitlines() == ["still its own", "and its child another"]


async def test_a_lock_that_is_not_a_file(tmp_path: Path) -> None:
    """A FIFO or a link in the lock's place is refused without waiting, and the next opening works."""
    path, lock = tmp_path / "charges.db", tmp_path / "charges.db-lock"
    os.mkfifo(lock)
    with pytest.raises(ConfigurationError, match="lock must be a regular file"):
        await open_ledger(f"sqlite:{path}")
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerUnavailableError):
        await open_ledger(f"sqlite:{path}")
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    await (await open_ledger(f"sqlite:{path}")).aclose()


async def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `flock` does not work no ledger is opened, and no descriptor is left behind."""
    import errno
    import fcntl

    def unsupported(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", unsupported)
        with pytest.raises(ConfigurationError, match="has locks"):
            await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
    assert not before or len(os.listdir("/proc/self/fd")) <= before
    await (await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")).aclose()


def test_a_system_without_locks(tmp_path: Path) -> None:
    """Where Python has no `fcntl`, as on Windows, the error names the ways out, and nothing is made."""
    program = OPEN.replace("from payclient", "sys.modules['fcntl'] = None\nfrom payclient", 1)
    said = run(program, tmp_path / "charges.db")
    assert said.startswith("ConfigurationError")
    assert "use PostgreSQL, or WSL" in said
    assert os.listdir(tmp_path) == []


async def test_a_refused_file_is_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "charges.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name TEXT)")
    connection.close()
    for words in ("another program's", "not a SQLite database"):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=words):
                await open_ledger(f"sqlite:{path}")
        path.write_text("no database " * 500)
    path.unlink()
    await (await open_ledger(f"sqlite:{path}")).aclose()


# --- In its place


async def moved_away(path: Path) -> None:
    path.rename(path.with_name("old.db"))


async def removed(path: Path) -> None:
    path.unlink()


async def replaced(path: Path) -> None:
    """By a copy that was made before, as a backup is put back."""
    copy = path.with_name("copy.db")
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    copy.replace(path)


async def log_removed(path: Path) -> None:
    Path(f"{path}-wal").unlink()


async def lock_removed(path: Path) -> None:
    Path(f"{path}-lock").unlink()


@pytest.mark.parametrize("harm", [moved_away, removed, replaced, log_removed, lock_removed])
async def test_a_file_out_of_its_place_grants_no_permit(tmp_path: Path, harm: object) -> None:
    """Renamed, removed or replaced while open, it takes outcomes and refuses permits, and says what happened."""
    path = tmp_path / "charges.db"
    ledger = await open_ledger(f"sqlite:{path}")
    assert await ledger.permit(fresh())
    await harm(path)  # type: ignore[operator]  # a table of functions
    for number in range(2):
        with pytest.raises(LedgerUnavailableError, match="must stay at") as caught:
            await ledger.permit(fresh(f"later-{number}"))
        assert str(path) in str(caught.value)
        assert caught.value.client_transaction_id == f"later-{number}"
    pending = await ledger.apply(fresh(), Created(at=NOW, transaction_id=7, expires_at=NOW + 300))
    assert await ledger.get("order-1") == pending
    if harm is moved_away:  # once it is where it was, permits are granted again
        path.with_name("old.db").rename(path)
        assert await ledger.permit(fresh("later-2"))
    await ledger.aclose()


async def test_batches_out_of_place(tmp_path: Path) -> None:
    path = tmp_path / "charges.db"
    ledger = await open_ledger(f"sqlite:{path}")
    assert await ledger.permit(fresh())
    await moved_away(path)
    event = Created(at=NOW, transaction_id=7, expires_at=NOW + 300)
    first, second, third = await asyncio.gather(
        ledger.permit(fresh("order-2")),
        ledger.apply(fresh(), event),
        ledger.permit(fresh("order-3")),
        return_exceptions=True,
    )
    assert isinstance(second, Record)
    assert second.transaction_id == 7
    for error in (first, third):
        assert isinstance(error, LedgerUnavailableError)
    await ledger.aclose()


# --- Mounts


def namespace() -> tuple[str, ...]:
    """How to run a program with mounts of its own; a skip where that is not to be had."""
    for within in (("unshare", "-m"), ("unshare", "-U", "-r", "-m")):
        if shutil.which("unshare"):
            probe = "mount -t tmpfs none /mnt"
            done = subprocess.run([*within, "sh", "-c", probe], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return within
    pytest.skip("no mount namespaces here")


def test_a_file_that_is_a_mount_point(tmp_path: Path) -> None:
    """A container's volume of one file keeps no write-ahead log: the error says to mount the directory."""
    within = namespace()
    volume, place = tmp_path / "volume.db", tmp_path / "app" / "charges.db"
    place.parent.mkdir()
    place.touch()
    assert run(OPEN, volume) == "opened"
    mounted = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(volume), str(place))
    said = run(OPEN, place, within=(*within, *mounted))
    assert said.startswith("ConfigurationError")
    assert "mount its directory" in said
    assert os.listdir(place.parent) == ["charges.db"]
    whole = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(tmp_path), "/mnt")
    assert run(OPEN, "/mnt/volume.db", within=(*within, *whole)) == "opened"


REMOTE = [
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "fuse",
    "fuse.sshfs", "fuse.s3fs", "fuse.davfs2", "fuse.glusterfs", "fuse.vmhgfs-fuse", "gfs2", "gpfs",
    "lustre", "nfs", "nfs4", "ocfs2", "smb3", "vboxsf", "virtiofs",
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [*REMOTE, "ext4", "fuseblk", "fuse.fuse-overlayfs", "overlay", "btrfs", "zfs"]
)
async def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Those of other machines are refused before anything is made, by what the kernel says of their mounts."""
    here = str(tmp_path).replace(" ", "\\040")
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/x {here} {kind} rw 0 0\n"
    read_text = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *args, **options: (
            mounts if str(self) == "/proc/self/mounts" else read_text(self, *args, **options)
        ),
    )
    if kind in REMOTE:
        with pytest.raises(ConfigurationError, match="must lie on a local file system") as caught:
            await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
        assert f"({kind})" in str(caught.value)
        assert os.listdir(tmp_path) == []
    else:
        ledger: Ledger = await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
        await ledger.aclose()
