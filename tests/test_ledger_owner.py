"""One owner of one SQLite file, in its place: real processes, real mounts, and the public names alone."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import payclient
from fake_service import error_of
from payclient import (
    ConfigurationError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    open_ledger,
)
from payclient.events import Created, FoundAccepted, ReversalPermitted
from payclient.ledger import backup_ledger
from test_ledger import NOW, fresh, opened

ROOT = Path(payclient.__file__).parents[1]


#: What every program of another process begins with.
PRELUDE = """\
import asyncio, gc, os, selectors, subprocess, sys, threading
from payclient import LedgerInUseError, LedgerUnavailableError, PayError, UsageError, open_ledger
from payclient.events import Created
from payclient.lifecycle import Record

def fresh(name):
    return Record(client_transaction_id=name, amount=1, currency="USD", created_at=1.0)

"""
#: Not epoll, of which parent and child would share one.
SELECT = "asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector()))"


def in_loop(body: str) -> str:
    """A whole program of what it does in its event loop."""
    main = textwrap.indent(textwrap.dedent(body), "    ")
    return f"{PRELUDE}async def main():{main}\nwith {SELECT} as runner:\n    runner.run(main())\n"


def run(program: str, *arguments: object, within: tuple[str, ...] = ()) -> str:
    """What a process of its own prints, perhaps within a namespace of its own."""
    command = [*within, sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def raw(path: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Somebody with the sqlite3 shell."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, parameters).fetchall()


#: Opens a ledger in another process, and prints what came of it.
OPEN = in_loop("""
    try:
        await (await open_ledger("sqlite:" + sys.argv[1])).aclose()
        print("opened")
    except PayError as error:
        print(type(error).__name__, error)
""")


# --- The lock


@pytest.mark.parametrize("foreign", ["", "-lock"])
async def test_no_foreign_close_makes_a_second_owner(tmp_path: Path, foreign: str) -> None:
    """A copy of the files by the owner's own process, as an upload makes it, takes nothing from the owner."""
    path = tmp_path / "charges.db"
    async with opened(f"sqlite:{path}") as ledger:
        assert await ledger.permit(fresh())
        shutil.copyfile(f"{path}{foreign}", tmp_path / "copy")
        caught = await error_of(
            LedgerInUseError,
            open_ledger(f"sqlite:{path}"),
            match="or was opened by this one before",
        )
        assert caught.__context__ is None
        assert await asyncio.to_thread(run, OPEN, path) == (
            "LedgerInUseError the ledger is in use by another process, or was opened by this one before; several "
            'processes, such as the workers of a web server, must share a PostgreSQL ledger: ledger="postgresql://..."'
        )
        assert await ledger.permit(fresh("order-2"))
    async with opened(f"sqlite:{path}", create=False):
        pass


#: Reads a ledger in another process, and prints how many attempts it has, and whether it can be written.
READ = in_loop("""
    ledger = await open_ledger("sqlite:" + sys.argv[1], read_only=True)
    count = len([record async for record in ledger.records()])
    try:
        await ledger.permit(fresh("new"))
    except LedgerUnavailableError as error:
        print(count, error)
    await ledger.aclose()
""")
READ_ONLY = "the ledger could not be written (SQLITE_READONLY)"

#: Writes one attempt, and closes the ledger or is killed.
WRITE = in_loop("""
    ledger = await open_ledger("sqlite:" + sys.argv[1])
    await ledger.permit(fresh("a"))
    if sys.argv[2] != "closed":
        os._exit(0)
    await ledger.aclose()
""")


@pytest.mark.parametrize("foreign", ["", "-shm"])
async def test_a_reader_beside_the_owner_changes_nothing(tmp_path: Path, foreign: str) -> None:
    """Also where a copy by the owner dropped SQLite's locks: each commit is seen, the shared memory stays as it was."""
    path = tmp_path / "charges.db"
    async with opened(f"sqlite:{path}") as ledger:
        for number in range(1, 3):
            assert await ledger.permit(fresh(f"order-{number}"))
            shutil.copyfile(f"{path}{foreign}", f"{path}-copy")
            before = os.stat(f"{path}-shm")
            assert await asyncio.to_thread(run, READ, path) == f"{number} {READ_ONLY}"
            if number > 1:
                assert os.stat(f"{path}-shm").st_mtime_ns == before.st_mtime_ns
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"charges.db", "charges.db-copy", "charges.db-lock"}
    async with opened(f"sqlite:{path}", create=False):
        pass


@pytest.mark.parametrize("end", ["killed", "killed, without -shm", "closed"])
async def test_a_reader_after_the_owners_end_harms_nothing(tmp_path: Path, end: str) -> None:
    """What a killed owner had committed is read from its log, which the next owner finds as it was."""
    path = tmp_path / "charges.db"

    def files() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    async def read() -> None:
        async with opened(f"sqlite:{path}", read_only=True) as ledger:
            assert [each.client_transaction_id async for each in ledger.records()] == ["a"]
            await error_of(LedgerUnavailableError, ledger.permit(fresh("new")), match=re.escape(READ_ONLY))

    run(WRITE, path, end)
    if end == "killed, without -shm":
        os.unlink(f"{path}-shm")
    before = files()
    for _ in range(2):
        await read()
    after = files()
    if end == "killed":
        assert after == before
    assert all(after[name] == content for name, content in before.items())
    assert after.get("charges.db-wal", b"") == before.get("charges.db-wal", b"")
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    async with opened(f"sqlite:{path}", create=False):
        pass
    await read()


async def test_a_reader_makes_no_ledger(tmp_path: Path) -> None:
    """What is empty, another program's, or no database at all is refused as it is to an owner."""
    path = tmp_path / "charges.db"
    harms: tuple[tuple[Callable[[], object], type[Exception], str], ...] = (
        (path.touch, LedgerMissingError, "there is no ledger at"),
        (lambda: raw(path, "CREATE TABLE a (b)"), ConfigurationError, "another program's"),
        (lambda: path.write_bytes(b"x" * 5000), LedgerUnavailableError, "SQLITE_NOTADB"),
    )
    for harm, kind, words in harms:
        harm()
        await error_of(kind, open_ledger(f"sqlite:{path}", read_only=True), match=words)


def test_a_child_keeps_nothing_of_its_parent(tmp_path: Path) -> None:
    """It may not use the ledger, drop its lock or end its log beside its parent, nor hold the lock after its end."""
    program = in_loop("""
        path, program = sys.argv[1:]

        def opened():
            done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
            return done.stdout.split()[0]

        ledger = await open_ledger("sqlite:" + path)
        await ledger.permit(fresh("a"))
        read, write = os.pipe()
        if not os.fork():
            os.close(write)
            os.read(read, 1)  # until the parent has ended
            print("after its parent's end:", opened(), flush=True)
            os._exit(0)
        brief = os.fork()
        if not brief:
            try:
                await ledger.permit(fresh("b"))
            except UsageError:
                print("refused", flush=True)
            await ledger.aclose()
            del ledger
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(brief, 0)[1]) == 0
        assert os.path.exists(path + "-wal")
        print("beside its parent:", opened(), flush=True)
        await ledger.permit(fresh("c"))
        os._exit(0)
    """)
    said = run(program, tmp_path / "charges.db", OPEN)
    assert said.splitlines() == [
        "refused", "beside its parent: LedgerInUseError", "after its parent's end: opened",
    ]  # fmt: skip
    ids = raw(tmp_path / "charges.db", "SELECT client_transaction_id FROM attempts ORDER BY id")
    assert ids == [("a",), ("c",)]


def test_a_child_can_own_another_ledger(tmp_path: Path) -> None:
    """A child that opens a ledger of its own keeps it, whatever becomes of the parent's object in the child."""
    program = """
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

ledger = asyncio.run(parent())
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    asyncio.run(child(ledger))
os._exit(0)
"""
    said = run(PRELUDE + program, tmp_path / "charges.db", tmp_path / "other.db")
    assert said == "still its own"


def test_a_fork_after_a_close_leaves_the_child_its_files(tmp_path: Path) -> None:
    """The number that the lock file had is another file's by then."""
    program = """
async def open_and_close():
    await (await open_ledger("sqlite:" + sys.argv[1])).aclose()

asyncio.run(open_and_close())
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    print(len([os.fstat(each) for each in files]), flush=True)
os._exit(0)
"""
    assert run(PRELUDE + program, tmp_path / "charges.db") == "9"


def test_a_fork_waits_until_nobody_is_in_sqlite(tmp_path: Path) -> None:
    """The child would find SQLite's own locks taken by a thread that it does not have, and its first use would hang."""
    program = in_loop("""
        there, forking, left = threading.Event(), threading.Event(), threading.Event()

        async def in_sqlite(database):
            there.set()
            forking.wait()
            left.set()
            return True

        ledger = await open_ledger("sqlite:" + sys.argv[1])
        working = ledger.work(in_sqlite)
        await asyncio.to_thread(there.wait)
        os.register_at_fork(before=forking.set)
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), await working, flush=True)
        os._exit(0 if left.is_set() else 1)
    """)
    assert run(program, tmp_path / "charges.db") == "0 True"


def test_no_ledger_is_opened_while_a_process_forks(tmp_path: Path) -> None:
    """A lock file that was opened meanwhile would be unknown to the child, which would hold the lock as long as it
    lives.
    """
    program = """
import fcntl
locking, forked, threads = threading.Event(), threading.Event(), []

async def open_and_close(path):
    await (await open_ledger("sqlite:" + path)).aclose()

def open_another():
    threads.append(threading.Thread(target=lambda: asyncio.run(open_and_close(sys.argv[2]))))
    threads[0].start()
    locking.wait(0.3)

def lock(file, how, flock=fcntl.flock):
    locking.set()
    forked.wait()
    flock(file, how)

os.register_at_fork(before=open_another)  # the last before the fork: the ledger's own are loaded now
asyncio.run(open_and_close(sys.argv[1]))
fcntl.flock = lock
read, write = os.pipe()
if not os.fork():
    os.close(write)
    os.read(read, 1)  # until the parent has ended
    os._exit(0)
forked.set()
threads[0].join()
try:
    asyncio.run(open_and_close(sys.argv[2]))
    print("free", flush=True)
except LedgerInUseError as error:
    print(error, flush=True)
os._exit(0)
"""
    assert run(PRELUDE + program, tmp_path / "charges.db", tmp_path / "other.db") == "free"


def test_a_fork_amid_the_first_opening(tmp_path: Path) -> None:
    """What a ledger needs is loaded just then: Python prints no error of the fork, and each process opens its own."""
    program = """
sys.unraisablehook = lambda raised: os._exit(1)
kept = []
os.register_at_fork(before=lambda: kept.append(asyncio.run(open_ledger("sqlite:" + sys.argv[1]))))
child = os.fork()
asyncio.run(open_ledger("sqlite:" + sys.argv[2 if child else 3]))
if child:
    print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""
    assert run(PRELUDE + program, *(tmp_path / each for each in "abc")) == "0"


async def test_a_lock_that_is_not_a_file(tmp_path: Path) -> None:
    """A FIFO or a link in the lock's place is refused without waiting, and the next opening works."""
    path, lock = tmp_path / "charges.db", tmp_path / "charges.db-lock"
    os.mkfifo(lock)
    await error_of(ConfigurationError, open_ledger(f"sqlite:{path}"), match="lock must be a regular file")
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    await error_of(LedgerUnavailableError, open_ledger(f"sqlite:{path}"))
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    await (await open_ledger(f"sqlite:{path}")).aclose()


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [(errno.ENOLCK, ConfigurationError, "has locks"), (errno.EIO, LedgerUnavailableError, "be opened")],
)
async def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], words: str
) -> None:
    """Where `flock` does not work no ledger is opened, and no descriptor is left behind."""

    def unsupported(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.is_dir() else 0
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", unsupported)
        await error_of(kind, open_ledger(f"sqlite:{tmp_path / 'charges.db'}"), match=words)
    assert not before or len(list(descriptors.iterdir())) <= before
    await (await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")).aclose()


def test_a_system_without_locks(tmp_path: Path) -> None:
    """Where Python has no `fcntl`, as on Windows, the error names the ways out, and nothing is made."""
    said = run(f"import sys; sys.modules['fcntl'] = None\n{OPEN}", tmp_path / "charges.db")
    assert said.startswith("ConfigurationError")
    assert "use PostgreSQL, or WSL" in said
    assert os.listdir(tmp_path) == []


# --- In its place


def replace_by_a_copy(path: Path) -> None:
    """As a backup is put back."""
    raw(path, f"VACUUM INTO '{path}.copy'")
    os.replace(f"{path}.copy", path)


HARMS: dict[str, Callable[[Path], object]] = {
    "renamed": lambda path: path.rename(path.with_name("old.db")),
    "removed": Path.unlink,
    "replaced": replace_by_a_copy,
    "without its log": lambda path: os.unlink(f"{path}-wal"),
    "without its lock": lambda path: os.unlink(f"{path}-lock"),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_a_file_out_of_its_place_grants_no_permit(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Renamed, removed or replaced while open, it takes outcomes and refuses permits, and says what happened."""
    path = tmp_path / "charges.db"
    async with opened(f"sqlite:{path}") as ledger:
        assert await ledger.permit(fresh())
        assert await ledger.permit(fresh("order-2"))
        HARMS[harm](path)
        created = Created(at=NOW, transaction_id=7, expires_at=NOW + 300)
        refused, pending, later = await asyncio.gather(  # in one batch, and alone
            ledger.permit(fresh("later-0")), ledger.apply(fresh(), created), ledger.permit(fresh("later-1")),
            return_exceptions=True,
        )  # fmt: skip
        for identifier, fault in (("later-0", refused), ("later-1", later)):
            assert isinstance(fault, LedgerUnavailableError)
            assert fault.client_transaction_id == identifier
        assert await ledger.get("order-1") == pending
        paid = await ledger.apply(fresh(), FoundAccepted(at=NOW, transaction_id=7))
        reversal = ReversalPermitted(at=NOW, expires_at=NOW + 60)
        await error_of(LedgerUnavailableError, ledger.apply(paid, reversal), match="must stay at")
        caught = await error_of(LedgerUnavailableError, ledger.permit(fresh("later-2")), match="must stay at")
        assert str(path) in str(caught)
        assert caught.client_transaction_id == "later-2"
        await ledger.apply(fresh("order-2"), created)
        assert "works again" not in caplog.text, "an outcome is taken, and no permit is granted"
        if harm == "renamed":  # once it is where it was, permits are granted again
            path.with_name("old.db").rename(path)
            assert await ledger.permit(fresh("later-3"))
            HARMS[harm](path)
            await error_of(LedgerUnavailableError, ledger.permit(fresh("later-4")))
            path.with_name("old.db").rename(path)
            assert await ledger.permit(fresh("later-5"))
            assert caplog.text.count("works again") == 1, (
                "nor was the begin of an outage a moment later logged"
            )


async def test_a_backup_by_its_owner_takes_no_lock_from_it(tmp_path: Path) -> None:
    """A process that closes any handle of a file loses SQLite's locks on it: another could write over its log."""
    path = tmp_path / "charges.db"
    takes_all = (
        "import fcntl, sys; "
        "fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"
    )
    async with opened(f"sqlite:{path}") as ledger:
        assert await ledger.permit(fresh())
        await backup_ledger(f"sqlite:{path}", tmp_path / "backup.db")
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", takes_all, path, stderr=asyncio.subprocess.PIPE
        )
        _, said = await program.communicate()
        assert b"BlockingIOError" in said


async def test_a_link_that_leads_elsewhere_by_now(tmp_path: Path) -> None:
    """The next process would find none of the permits, so that the one before it gets no more, as after a rename."""
    link = tmp_path / "current"
    for release in ("1", "2"):
        (tmp_path / release).mkdir()
    link.symlink_to("1")
    async with opened(f"sqlite:{link}/charges.db") as ledger:
        assert await ledger.permit(fresh())
        link.unlink()
        link.symlink_to("2")
        async with opened(f"sqlite:{link}/charges.db") as newer:
            await error_of(LedgerUnavailableError, ledger.permit(fresh("order-2")), match="must stay at")
            assert await newer.permit(fresh("order-2"))


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


async def test_a_file_that_is_a_mount_point(tmp_path: Path) -> None:
    """A container's volume of one file keeps no write-ahead log: the error says to mount the directory."""
    within = namespace()
    volume, place = tmp_path / "volume.db", tmp_path / "app" / "charges.db"
    place.parent.mkdir()
    place.touch()
    async with opened(f"sqlite:{volume}"):
        pass
    mounted = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(volume), str(place))
    said = run(OPEN, place, within=(*within, *mounted))
    assert said.startswith("ConfigurationError")
    assert "mount its directory" in said
    async with opened(f"sqlite:{volume}") as ledger:
        # In the log alone, so that nobody may read or copy the file without the log.
        assert await ledger.permit(fresh())
        reading = OPEN.replace("sys.argv[1]", "sys.argv[1], read_only=True")
        assert run(reading, place, within=(*within, *mounted)) == said
    assert os.listdir(place.parent) == ["charges.db"]
    whole = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(tmp_path), "/mnt")
    assert run(OPEN, "/mnt/volume.db", within=(*within, *whole)) == "opened"


def test_a_ledger_on_an_overlay_of_two_disks(tmp_path: Path) -> None:
    """Each file is then of another device than its folder, and yet no mount point: it is opened again."""
    overlay = (
        "mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work && "
        'mount -t overlay none -o "lowerdir=$0,upperdir=/mnt/up,workdir=/mnt/work" "$0"'
    )
    within = (*namespace(), "sh", "-c", f'{overlay} || exit 99; exec "$@"', str(tmp_path))
    if subprocess.run([*within, "true"], capture_output=True, check=False, timeout=60).returncode == 99:
        pytest.skip("no overlays here")
    program = OPEN + "\nwith asyncio.Runner() as again:\n    again.run(main())\n"
    assert run(program, tmp_path / "charges.db", within=within) == "opened\nopened"


REMOTE = [
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "fuse",
    "fuse.sshfs", "fuse.s3fs", "fuse.davfs2", "fuse.glusterfs", "fuse.vmhgfs-fuse", "gfs2", "gpfs",
    "lustre", "nfs", "nfs4", "ocfs2", "smb3", "vboxsf", "virtiofs",
]  # fmt: skip


async def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other machines are refused before anything is made, by what the kernel says of their mounts."""
    folder = tmp_path / "two words"
    folder.mkdir()
    here, read_text, url = (
        str(folder).replace(" ", "\\040"),
        Path.read_text,
        f"sqlite:{folder / 'charges.db'}",
    )

    def lie_on(*mounts: str) -> None:
        text = "".join(f"server:/x {mount} rw 0 0\n" for mount in ("/ ext4", *mounts))

        def reading(self: Path, *args: Any, **options: Any) -> str:
            return f"{text}short\n" if str(self) == "/proc/self/mounts" else read_text(self, *args, **options)

        monkeypatch.setattr(Path, "read_text", reading)

    for mounts in (*((f"{here} {kind}",) for kind in REMOTE), (f"{here} ext4", f"{here} nfs4")):
        lie_on(*mounts)
        with pytest.raises(ConfigurationError, match="must lie on a local file system") as caught:
            await open_ledger(url)
        assert f"({mounts[-1].split()[1]})" in str(caught.value)
        assert os.listdir(folder) == []
    local = ("ext4", "fuseblk", "fuse.fuse-overlayfs", "overlay", "btrfs", "zfs")
    for mounts in (
        *((f"{here} {kind}",) for kind in local),
        (f"{here} nfs4", f"{here} tmpfs"),  # the later of two mounts on one point hides the earlier
        (f"{here} ext4", f"{tmp_path} nfs4", f"{here}/charges nfs4"),  # above it, and beside it
    ):
        lie_on(*mounts)
        await (await open_ledger(url)).aclose()
