"""What only the SQLite ledger has: a file, a thread, a disk that can fill, and a database that refuses."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from fake_service import error_of
from payclient.errors import (
    ConfigurationError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    UsageError,
)
from payclient.events import Created, Notified
from payclient.ledger import sqlite_files
from payclient.ledger.sqlite import SqliteLedger
from payclient.ledger.sqlite_files import BUSY, STATEMENTS
from payclient.lifecycle import Record, State
from test_ledger import NOW, brought, fresh, opened
from test_ledger_owner import in_loop, raw, run

#: What lies beside a ledger that is open.
FILES = ("charges.db", "charges.db-lock", "charges.db-shm", "charges.db-wal")
CREATED = Created(at=NOW, transaction_id=7, expires_at=NOW + 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "charges.db"


async def opened_by(
    connect: Callable[[str], sqlite3.Connection], path: str, monkeypatch: pytest.MonkeyPatch
) -> SqliteLedger:
    """A ledger over a connection of the test's own."""
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_files, "connect", connect)
        return await SqliteLedger.open(path)


async def filled(path: Path, state: State = State.PENDING) -> None:
    """A closed ledger with one attempt in the state."""
    async with opened(f"sqlite:{path}") as ledger:
        await brought(ledger, state)


# The file


async def test_only_the_owner_may_read(path: Path) -> None:
    """The file and its write-ahead log are made with mode 0600, whatever the umask."""
    umask = os.umask(0)
    try:
        async with opened(f"sqlite:{path}") as ledger:
            await ledger.permit(fresh())
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert modes == dict.fromkeys(FILES, 0o600)


@pytest.mark.parametrize("mode", [0o640, 0o604])
async def test_a_symbolic_link(path: Path, mode: int) -> None:
    """The file and its log are tightened where they are, by whatever name they are opened."""
    await filled(path)
    os.chmod(path, mode)
    os.mkdir(f"{path}.d")
    os.symlink(path, f"{path}.d/link")
    ledger = await SqliteLedger.open(f"{path}.d/link")
    await error_of(LedgerInUseError, SqliteLedger.open(str(path)))
    modes = {
        each.name: stat.S_IMODE(each.stat().st_mode) for each in os.scandir(path.parent) if each.is_file()
    }
    assert modes == dict.fromkeys(FILES, 0o600)
    await ledger.aclose()


async def test_memory_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be called `:memory:`; it is a file all the same."""
    monkeypatch.chdir(tmp_path)
    ledger = await SqliteLedger.open(":memory:")
    await ledger.aclose()
    assert sorted(os.listdir(tmp_path)) == [":memory:", ":memory:-lock"]


def damage(path: Path, of_table: str) -> None:
    """Fill the half of a table's first page in which its rows are with zeros, as a disk does."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        ((page,),) = connection.execute(query, (of_table,)).fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    with path.open("r+b") as file:
        file.seek(page * size - size // 2)
        file.write(bytes(size // 2))


#: What is done to a ledger's file, by SQL or by a function, and the words of its refusal.
HARMS: dict[str, str | Callable[[Path], object]] = {
    "must have schema version 1, and has version 99": "PRAGMA user_version = 99",
    "must have schema version 1, and has version 0": "PRAGMA user_version = 0",
    "lacks a table": "ALTER TABLE attempts ADD COLUMN note TEXT",
    "lacks": "DROP TRIGGER guard_change",
    "no digest key": "DELETE FROM meta",
    "has no digest key": lambda path: damage(path, of_table="meta"),
    "two digest keys": "INSERT INTO meta (digest_key) VALUES (x'00')",
    "hard link": lambda path: path.with_name("second.db").hardlink_to(path),
    "not a SQLite database": lambda path: path.write_text("client_transaction_id,amount\n" * 100),
    "another program's": lambda path: raw(path, "CREATE TABLE users (name TEXT)"),
    "not a regular file": Path.mkdir,
    "directory does not exist": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("words", HARMS)
def test_what_is_no_ledger(path: Path, words: str) -> None:
    """It stays as it is, and is let go of."""
    if words not in ("another program's", "not a regular file"):
        asyncio.run(filled(path))
    harm = HARMS[words]
    if isinstance(harm, str):
        raw(path, harm)
    else:
        harm(path)
    before = path.read_bytes() if path.is_file() else None
    for read_only in (False, words.startswith(("lacks", "hard link", "not a regular file"))):
        with pytest.raises(ConfigurationError, match=words) as caught:
            asyncio.run(SqliteLedger.open(str(path), read_only=read_only))
        assert caught.value.__context__ is None
        assert before is None or path.read_bytes() == before
        assert str(path) not in str(caught.value)


async def test_a_file_that_cannot_be_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that there is no ledger, and how to make one, where only this user may not enter its directory."""
    await filled(path)
    stat = os.stat

    def forbidden(file: Any, **options: Any) -> os.stat_result:
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied")
        return stat(file, **options)

    monkeypatch.setattr(os, "stat", forbidden)
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(LedgerUnavailableError, match="PermissionError"):
            await SqliteLedger.open(str(path), **options)


@pytest.mark.parametrize("end", ["", "-wal"])
async def test_a_file_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The start is refused, as on PostgreSQL, and not each permit; who only reads goes on."""
    await filled(path)
    await (await SqliteLedger.open(str(path), read_only=True)).aclose()  # which leaves a log
    monkeypatch.setattr(os, "access", lambda file, mode: str(file) != f"{path}{end}" or mode == os.R_OK)
    with pytest.raises(ConfigurationError, match="must be such that this user may write"):
        await SqliteLedger.open(str(path))
    await (await SqliteLedger.open(str(path), read_only=True)).aclose()


async def test_a_place_that_this_user_may_not_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a first run by root: it is said what to mend, and not that the ledger is away for a while."""
    await filled(path)
    modes = {str(path): os.R_OK, str(path.parent): os.W_OK}
    monkeypatch.setattr(os, "access", lambda file, mode: not modes.get(str(file), 0) & mode)
    with pytest.raises(ConfigurationError, match="file must be such that this user may read it"):
        await SqliteLedger.open(str(path), read_only=True)
    with pytest.raises(ConfigurationError, match="directory must be such that this user may write in it"):
        await SqliteLedger.open(str(path))


async def test_what_the_system_refuses_has_its_name(tmp_path: Path) -> None:
    """As a disk that is full, or only to be read: not `OSError`, which says nothing."""
    with pytest.raises(LedgerUnavailableError, match="ENAMETOOLONG"):
        await SqliteLedger.open(str(tmp_path / ("a" * 253)))


async def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    """As `mktemp` and a crash before the first commit leave it."""
    raw(path, "PRAGMA user_version")
    await filled(path)
    assert raw(path, "SELECT count(*) FROM attempts") == [(1,)]


async def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STRICT tables came with 3.37."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    await error_of(ConfigurationError, SqliteLedger.open(str(path)), match=r"3\.37")


async def test_settings_are_read_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite that does not do as it is told is refused, whatever it is told."""

    class Deaf(sqlite3.Connection):
        setting = ""

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.startswith(f"PRAGMA {self.setting} ="):
                sql = f"PRAGMA {self.setting}"
            return super().execute(sql, *args)

    settings = ["locking_mode", "journal_mode", "synchronous", "foreign_keys", "recursive_triggers"]
    for number, setting in enumerate(settings):
        Deaf.setting = setting

        def connect(path: str) -> sqlite3.Connection:
            connection = sqlite3.connect(path, isolation_level=None, factory=Deaf)
            # A build whose default is not ours.
            sqlite3.Connection.execute(connection, "PRAGMA synchronous = NORMAL")
            sqlite3.Connection.execute(connection, "PRAGMA locking_mode = EXCLUSIVE")
            return connection

        with pytest.raises(ConfigurationError, match=setting):
            await opened_by(connect, f"{path}{number}", monkeypatch)


def test_forgotten_at_exit(path: Path) -> None:
    """A program that ends without closing still has on disk what it had queued."""
    program = in_loop("""
        global ledger
        ledger = await open_ledger("sqlite:" + sys.argv[1])
        for number in range(100):
            asyncio.ensure_future(ledger.permit(fresh(str(number))))
        await asyncio.sleep(0)
    """)
    run(program, path)
    assert raw(path, "SELECT count(*) FROM attempts") == [(100,)]


def test_the_loop_closes_before_the_answer(path: Path) -> None:
    """The thread survives it, and the file can be let go of from another loop."""
    ledgers = []

    async def leave() -> None:
        ledgers.append(await SqliteLedger.open(str(path)))
        task = asyncio.ensure_future(ledgers[0].permit(fresh()))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(ledgers[0].get("order-1"))
    asyncio.run(ledgers[0].aclose())
    assert raw(path, "SELECT state FROM records") == [("sending",)]


async def test_a_cancelled_open(path: Path) -> None:
    """Whoever stops waiting for the file does not keep it."""
    opening = asyncio.ensure_future(SqliteLedger.open(str(path)))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    while True:
        try:
            ledger = await SqliteLedger.open(str(path))
        except LedgerInUseError:
            continue  # the thread is still at it
        break
    await ledger.aclose()


# The database refuses


async def test_reading_goes_by_keys(path: Path) -> None:
    """However long the ledger, no reader looks at all of it, the feed sorts nothing, and a page no more than itself."""
    await filled(path)
    tables = {"attempts", "changes"}
    for name, values, sorts in (
        ("attempts", ("a",), False),
        ("asks", ("a",), False),
        ("links", ("a", 0.0), False),
        ("taken_by", (7, b"", "a"), False),
        ("unfinished", (), True),
        ("records", (0, 1), False),
        ("archivable", (0, 1, 0.0), False),
        ("archivable_changes", (0, 1), False),
        ("history", ("a",), True),
        ("news", (0, 1), False),
        ("last_cursor", (), False),
    ):
        plan = [row[-1] for row in raw(path, f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", *values)]
        assert not [step for step in plan if step.startswith("SCAN") and set(step.split()) & tables], plan
        assert ("USE TEMP B-TREE FOR ORDER BY" in plan) is sorts, plan


# The disk


class Failing(sqlite3.Connection):
    """Fails the operations whose numbers are in `failing`, as a full disk does; `done`: after carrying them out."""

    number = 0
    failing: frozenset[int] = frozenset()
    done = False

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        cls = type(self)
        cls.number += 1
        fails = cls.number in cls.failing
        if not fails or cls.done:
            cursor = super().execute(sql, *args)
        if fails:
            raise sqlite3.OperationalError("database or disk is full")
        return cursor


def failing_at(
    *numbers: int, done: bool = False
) -> tuple[type[Failing], Callable[[str], sqlite3.Connection]]:
    own = type("Own", (Failing,), {"failing": frozenset(numbers), "done": done})
    return own, lambda path: sqlite3.connect(path, timeout=0, isolation_level=None, factory=own)


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
async def test_every_operation_can_fail(path: Path, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """Whichever: what was acknowledged is there, what was not is whole or absent, and nothing is permitted twice."""
    for number in range(1, 500):
        place = path.with_name(f"{number}.db")
        connection, connect = failing_at(number, done=done)
        try:
            ledger = await opened_by(connect, str(place), monkeypatch)
        except LedgerUnavailableError:
            async with opened(f"sqlite:{place}") as again:
                assert await again.permit(fresh())
            continue
        acknowledged: dict[str, State] = {}
        for batch in (["a"], ["b", "c", "d"], ["e", "e"]):
            permits = await asyncio.gather(
                *(ledger.permit(fresh(each)) for each in batch), return_exceptions=True
            )
            assert all(isinstance(each, (bool, LedgerUnavailableError)) for each in permits)
            granted = [each for each, permit in zip(batch, permits, strict=True) if permit is True]
            assert len(granted) == len(set(granted))
            acknowledged |= dict.fromkeys(granted, State.SENDING)
            records = await asyncio.gather(
                *(ledger.apply(fresh(each), CREATED) for each in granted), return_exceptions=True
            )
            for record in records:
                assert isinstance(record, (Record, LedgerUnavailableError))
                if isinstance(record, Record):
                    acknowledged[record.client_transaction_id] = record.state
        missed = number > connection.number
        connection.failing = frozenset()  # the disk has recovered: the ledger is as good as before
        assert await ledger.permit(fresh("z"))
        await ledger.aclose()
        async with opened(f"sqlite:{place}") as again:
            found = await again.get_many(["a", "b", "c", "d", "e"])
            for each in found:
                assert len(await again.history(each)) == found[each].version + 1
        states = {each: record.state for each, record in found.items()}
        if done:  # what failed after its COMMIT is there, and nobody was told
            assert set(acknowledged) <= set(states)
            assert all(states[each] in (state, State.PENDING) for each, state in acknowledged.items())
        else:
            assert states == acknowledged
        if missed:
            assert len(acknowledged) == 5
            return
    pytest.fail("it never ran without a fault")


async def test_what_fails_beside_a_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read fails alone, and is answered beside a commit that fails; nothing is done before a rollback succeeds."""
    connection, connect = failing_at()
    ledger = await opened_by(connect, str(path), monkeypatch)
    connection.failing = frozenset({connection.number + 1})
    await error_of(LedgerUnavailableError, ledger.history("a"), match="could not be read")
    assert await ledger.history("a") == []
    # BEGIN, SAVEPOINT, INSERT, RELEASE, COMMIT, and ROLLBACK before the reads.
    for steps in ((5,), (5, 6)):
        connection.failing = frozenset(connection.number + step for step in steps)
        permit, found = await asyncio.gather(
            ledger.permit(fresh("a")), ledger.get("a"), return_exceptions=True
        )
        assert isinstance(permit, LedgerUnavailableError)
        assert found is None if len(steps) == 1 else isinstance(found, LedgerUnavailableError)
    assert await ledger.permit(fresh("a")) is True  # at once, and nothing of the others was committed
    connection.failing = frozenset({connection.number + 6})
    permit, found = await asyncio.gather(ledger.permit(fresh("b")), ledger.get("b"), return_exceptions=True)
    assert permit is True  # it was committed before the read failed
    assert isinstance(found, LedgerUnavailableError)
    assert await ledger.get("a") == fresh("a")
    await ledger.aclose()


async def test_a_ledger_closes_though_its_thread_is_busy(path: Path) -> None:
    """What came before the order to end is carried out, and the order is not lost with it."""
    ledger, goes_on = await SqliteLedger.open(str(path)), threading.Event()

    async def slow(_: object) -> bool:
        return goes_on.wait()

    for _ in range(2):
        busy = asyncio.ensure_future(ledger.work(slow))
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(ledger.aclose())
    await asyncio.sleep(0)
    goes_on.set()
    async with asyncio.timeout(10):
        await closing
    assert await busy is True


async def test_wiping_dead_links_waits_for_no_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program shows the file, however long: permits go on, and what it still needs is wiped another time."""
    patient = partial(sqlite3.connect, timeout=1e6, isolation_level=None)
    ledger = await opened_by(patient, str(path), monkeypatch)
    await ledger.permit(fresh("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM attempts").fetchall()
        await ledger.keep_links(fresh("a"), "s3cret", NOW)
        async with asyncio.timeout(60):
            assert await ledger.drop_links(NOW) == NOW + 60
            assert await ledger.permit(fresh("b"))
    assert await ledger.drop_links(NOW + 60) is None
    assert not any(b"s3cret" in each.read_bytes() for each in path.parent.iterdir())
    await ledger.aclose()


async def test_a_wipe_leaves_the_owner_as_patient_as_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wipe waits for nobody, and the permit after it for a program that writes the file for a moment."""
    owner = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ledger = await opened_by(lambda _: owner, str(path), monkeypatch)
    await ledger.drop_links(NOW)
    assert owner.execute("PRAGMA busy_timeout").fetchone() == (BUSY * 1000,)
    await ledger.aclose()


async def test_dead_links_of_an_owner_that_was_killed_before_it_wiped_them(path: Path) -> None:
    """They are deleted, and in the write-ahead log that it left."""
    ledger = await SqliteLedger.open(str(path))
    await ledger.permit(fresh("a"))
    await ledger.keep_links(fresh("a"), "s3cret", NOW)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM attempts").fetchall()
        await ledger.drop_links(NOW)
        left = path.parent / "left"
        left.mkdir()
        for name in ("charges.db", "charges.db-wal"):
            shutil.copy(path.with_name(name), left)
    await ledger.aclose()
    async with opened(f"sqlite:{left / 'charges.db'}") as next_one:
        assert await next_one.drop_links(NOW) is None
        assert not any(b"s3cret" in each.read_bytes() for each in left.iterdir())


async def test_a_log_that_its_owner_had_only_begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner was killed there: SQLite's own attempts to read without writing end after ten seconds, so others do."""
    await filled(path)
    connect = sqlite3.connect

    class Begun(sqlite3.Connection):
        def execute(self, *_: Any) -> Any:
            error = sqlite3.OperationalError("locking protocol")
            error.sqlite_errorname = "SQLITE_PROTOCOL"
            raise error

    def connecting(address: str, **options: Any) -> sqlite3.Connection:
        return connect(address, factory=Begun if "readonly_shm" in address else sqlite3.Connection, **options)

    monkeypatch.setattr(sqlite3, "connect", connecting)
    async with opened(f"sqlite:{path}", read_only=True) as ledger:
        assert [record.state async for record in ledger.records()] == [State.PENDING]


async def test_a_ledger_whose_making_was_killed_is_not_there(path: Path, tmp_path: Path) -> None:
    """Its owner makes it anew; who may only read cannot roll back what is left of the first try."""
    with closing(sqlite3.connect(tmp_path / "begun", isolation_level=None)) as begun:
        begun.execute("CREATE TABLE attempts (id)")
        begun.execute("INSERT INTO attempts VALUES (zeroblob(100000))")
        begun.execute("PRAGMA cache_size = 1")
        begun.execute("BEGIN")
        begun.execute("UPDATE attempts SET id = zeroblob(90000)")
        for end in ("", "-journal"):
            shutil.copy(tmp_path / f"begun{end}", f"{path}{end}")
    await error_of(LedgerMissingError, SqliteLedger.open(str(path), read_only=True))


async def test_a_time_that_is_not_a_number(path: Path) -> None:
    """SQLite keeps NaN as NULL, which the column refuses: one caller's fault."""
    async with opened(f"sqlite:{path}") as ledger:
        await ledger.permit(fresh("a"))
        answers = await asyncio.gather(
            ledger.permit(attrs.evolve(fresh("c"), created_at=math.nan)), ledger.permit(fresh("d")),
            ledger.apply(fresh("a"), Notified(at=math.nan, transaction_id=7)), return_exceptions=True,
        )  # fmt: skip
    assert [type(answer) for answer in answers] == [LedgerUnavailableError, bool, LedgerUnavailableError]
