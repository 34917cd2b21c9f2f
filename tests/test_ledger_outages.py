"""Ledgers that cannot be written for a while, or never again: nobody hangs, and the log stays short."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from jumping import jump_after, run_jumping
from payclient import LedgerUnavailableError, open_ledger
from payclient.events import Created
from postgres_server import PostgresServer
from test_ledger import NOW, fresh
from test_ledger_owner import namespace, run

# --- A disk that is full

FULL_DISK = """
import asyncio, errno, logging, os, sys
from payclient import LedgerUnavailableError, open_ledger
from payclient.events import Created
from payclient.lifecycle import Record

NOW = 1_700_000_000.0
lines = []

class Lines(logging.Handler):
    def emit(self, record):
        lines.append((record.levelname, record.getMessage()))

logging.getLogger("payclient").addHandler(Lines())

def fresh(name):
    return Record(client_transaction_id=name, amount=100, currency="USD", created_at=NOW)

async def permits(ledger, name, count):
    "How many of so many permits at once are granted."
    done = await asyncio.gather(*(ledger.permit(fresh(f"{name}-{n}")) for n in range(count)), return_exceptions=True)
    assert all(each is True or isinstance(each, LedgerUnavailableError) for each in done), done
    return sum(each is True for each in done)

async def main():
    folder, fill, free = sys.argv[1], *FILL
    ledger = await open_ledger(f"sqlite:{folder}/charges.db")
    lines.clear()
    assert await ledger.permit(fresh("before"))
    fill(folder)
    for number in range(50):
        if not await permits(ledger, f"full-{number}", 40):
            break
    else:
        sys.exit("the disk was never full")
    refused = 0
    for number in range(20):
        refused += 10 - await permits(ledger, f"refused-{number}", 10)
    print("refused", refused, "lines", len(lines), {name for name, _ in lines})
    try:
        await ledger.apply(fresh("before"), Created(at=NOW, transaction_id=7, expires_at=NOW + 300))
    except LedgerUnavailableError:
        print("not recorded yet")
    assert (await ledger.get("before")).state == "sending"
    free(folder)
    print("again", await permits(ledger, "again", 10), "lines", len(lines))
    record = await ledger.apply(fresh("before"), Created(at=NOW, transaction_id=7, expires_at=NOW + 300))
    known = [each.client_transaction_id async for each in ledger.records()]
    await ledger.aclose()
    ledger = await open_ledger(f"sqlite:{folder}/charges.db")
    assert [each.client_transaction_id async for each in ledger.records()] == known
    assert await ledger.get("before") == record
    assert not any(name.startswith("refused-") for name in known)
    await ledger.aclose()
    print("lines", len(lines))

asyncio.run(main())
"""

FILESYSTEM = """
def fill(folder):
    with open(folder + "/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC

FILL = fill, lambda folder: os.unlink(folder + "/filler")
"""

LIMIT = """
import resource

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

def fill(folder):
    limit(os.path.getsize(folder + "/charges.db-wal") + 4096)

FILL = fill, lambda folder: limit(resource.RLIM_INFINITY)
"""


@pytest.mark.parametrize("how", ["a full file system", "a limit on files"])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, how: str) -> None:
    """No permit is granted, one line is logged, and when there is room again the same ledger goes on."""
    within: tuple[str, ...] = ()
    if how == "a full file system":
        mount = ("sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(tmp_path))
        within = (*namespace(), *mount)
    filling = FILESYSTEM if how == "a full file system" else LIMIT
    said = run(FULL_DISK.replace("async def main", filling + "\nasync def main"), tmp_path, within=within)
    assert said.splitlines() == [
        "refused 200 lines 1 {'ERROR'}",
        "not recorded yet",
        "again 10 lines 2",
        "lines 2",
    ]


# --- A database thread that dies


async def test_nobody_waits_for_a_dead_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault that ends the thread answers who waits and who comes later, and lets go of the file."""
    connect = sqlite3.connect

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if args and "deadly" in str(args):
                raise SystemExit
            return super().execute(sql, *args)

    url = f"sqlite:{tmp_path / 'charges.db'}"
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Dying, **options))
        ledger = await open_ledger(url)
    assert await ledger.permit(fresh())
    async with asyncio.timeout(60):
        waiting: list[object] = [
            *await asyncio.gather(
                ledger.permit(fresh("deadly")), ledger.get("order-1"), return_exceptions=True
            )
        ]
        for _ in range(3):
            waiting += await asyncio.gather(
                ledger.permit(fresh("later")),
                ledger.apply(fresh(), Created(at=NOW, transaction_id=7, expires_at=NOW + 300)),
                ledger.history("order-1"),
                return_exceptions=True,
            )
        assert [type(each) for each in waiting] == [LedgerUnavailableError] * 11
        await ledger.aclose()
    assert [record.levelname for record in caplog.records] == ["WARNING", "CRITICAL"]
    ledger = await open_ledger(url)
    assert await ledger.get("order-1") == fresh()
    assert await ledger.get("deadly") is None
    await ledger.aclose()


async def test_nobody_waits_for_a_cancelled_task(postgres: PostgresServer, database: str) -> None:
    """Whoever cancels all tasks of the loop, as a shutdown does, ends PostgreSQL's too: the calls after it fail."""
    ledger = await open_ledger(postgres.url(database))
    assert await ledger.permit(fresh())
    waiting = asyncio.ensure_future(asyncio.shield(asyncio.ensure_future(ledger.get("order-1"))))
    for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
        task.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError, match="was closed"):
                await ledger.get("order-1")
        with pytest.raises(LedgerUnavailableError, match="was closed"):
            await ledger.permit(fresh("order-2"))
        await ledger.aclose()


async def test_nobody_waits_for_what_was_cancelled_on_its_way(
    postgres: PostgresServer, new_database: str
) -> None:
    """The call that the server has not answered yet fails as well, and not only the next ones.

    The database is its own, since the server may yet carry that call out.
    """
    ledger = await open_ledger(postgres.url(new_database))
    other = await asyncpg.connect(postgres.url(new_database))
    async with other.transaction():
        await other.execute("LOCK TABLE payclient.attempts")
        call = asyncio.ensure_future(ledger.permit(fresh()))
        async with asyncio.timeout(60):
            while not await other.fetch("SELECT FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - no event of ours tells
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
                task.cancel()
            with pytest.raises(LedgerUnavailableError, match="was closed"):
                await call
            await ledger.aclose()
    await other.close()


# --- PostgreSQL: servers that are full, frozen or away


def message(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + struct.pack("!I", len(body) + 4) + body


def refusal(code: bytes) -> bytes:
    return message(b"E", b"SFATAL\0", b"VFATAL\0", b"C" + code + b"\0", b"Mno room\0", b"\0")


class Front:
    """Stands before a PostgreSQL: refuses so many connections, or takes them and says nothing, then passes on."""

    def __init__(self, port: int, refuse: int, code: bytes = b"53300") -> None:
        self.target, self.refuse, self.code = port, refuse, code
        self.asked = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        try:
            if self.asked > self.refuse:
                upstream, out = await asyncio.open_connection("127.0.0.1", self.target)
                await asyncio.gather(self._copy(reader, out), self._copy(upstream, writer))
            elif self.code:
                await reader.read(8192)
                writer.write(refusal(self.code))
                await writer.drain()
            else:
                await reader.read()  # until the client gives up
        finally:
            writer.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()


async def behind(front: Front, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    server = await asyncio.start_server(front.serve, "127.0.0.1", 0)
    front.port = server.sockets[0].getsockname()[1]
    try:
        await work()
    finally:
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


@pytest.mark.parametrize("code", [b"53300", b"57P03"])
def test_a_server_at_its_limit_is_tried_again(postgres: PostgresServer, code: bytes) -> None:
    """A server without a free connection, or one that is starting, is asked until it has room."""
    name = asyncio.run(postgres.emptied())
    front = Front(postgres.port, 2, code)

    async def work() -> None:
        ledger = await open_ledger(f"postgresql://payclient@127.0.0.1:{front.port}/{name}?sslmode=disable")
        assert await ledger.permit(fresh())
        await ledger.aclose()

    run_jumping(behind(front, work))
    assert front.asked == 3


def test_a_server_that_stays_at_its_limit(postgres: PostgresServer) -> None:
    """After half a minute the error says what the server lacks, and for how long it was asked."""
    front = Front(postgres.port, 1_000_000)

    async def work() -> None:
        begin = asyncio.get_running_loop().time()
        jump_after(0.02)
        with pytest.raises(
            LedgerUnavailableError, match=r"no more connections.* tried again for 30 s"
        ) as caught:
            await open_ledger(f"postgresql://ana:s3cret@127.0.0.1:{front.port}/shop?sslmode=disable")
        assert type(caught.value) is LedgerUnavailableError
        assert "s3cret" not in str(caught.value)
        assert 25 < asyncio.get_running_loop().time() - begin < 60

    run_jumping(behind(front, work))
    assert 10 < front.asked < 40


def test_a_frozen_host_keeps_nobody_from_the_next(postgres: PostgresServer) -> None:
    """Of two hosts the first takes connections and says nothing: the second is reached within seconds."""
    name = asyncio.run(postgres.emptied())
    front = Front(postgres.port, 1_000_000, b"")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        hosts = f"127.0.0.1:{front.port},127.0.0.1:{postgres.port}"
        ledger = await open_ledger(f"postgresql://payclient@{hosts}/{name}?sslmode=disable")
        assert await ledger.permit(fresh())
        assert loop.time() - begin < 5
        assert ledger.location == f"postgresql://{hosts}/{name}"
        await ledger.aclose()

    run_jumping(behind(front, work))
    assert front.asked == 1


def test_hosts_that_are_all_away() -> None:
    """The error of several hosts is the one of a host that answered, if any did."""
    front = Front(1, 1_000_000)

    async def work() -> None:
        jump_after(0.02)
        hosts = f"127.0.0.1:{front.port},127.0.0.1:1"
        with pytest.raises(LedgerUnavailableError, match="no more connections"):
            await open_ledger(f"postgresql://payclient@{hosts}/shop?sslmode=disable")

    run_jumping(behind(front, work))


def test_an_outage_is_logged_once_a_minute(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of operations that fail while the server is away make a line a minute, and one at its end."""
    name = asyncio.run(postgres.emptied())
    front = Front(postgres.port, 0)

    async def work() -> None:
        ledger = await open_ledger(f"postgresql://payclient@127.0.0.1:{front.port}/{name}?sslmode=disable")
        assert await ledger.permit(fresh())
        caplog.clear()
        front.refuse = 1_000_000
        await postgres.execute(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'payclient'",
        )
        jump_after(0.005)
        loop = asyncio.get_running_loop()
        begin, failed, words = loop.time(), 0, set[str]()
        while loop.time() - begin < 150:
            done = await asyncio.gather(
                *(ledger.permit(fresh(f"{failed}-{number}")) for number in range(10)), return_exceptions=True
            )
            assert {type(each) for each in done} == {LedgerUnavailableError}
            words.update(map(str, done))
            failed += len(done)
        assert failed >= 100
        assert any("takes no more connections" in each for each in words)
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
        front.refuse = 0
        jump_after(0.5)
        assert await ledger.permit(fresh("order-2"))
        assert [record.levelno for record in caplog.records][3:] == [logging.WARNING]
        assert all(record.name == "payclient.ledger" for record in caplog.records)
        await ledger.aclose()

    run_jumping(behind(front, work))


def test_a_child_leaves_its_parents_connections(postgres: PostgresServer) -> None:
    """A forked child that drops or closes the ledger ends no connection of its parent's, to the server's knowledge."""
    name = asyncio.run(postgres.emptied())
    said = run(
        """
        import asyncio, gc, os, selectors, sys
        import asyncpg
        from payclient import open_ledger
        from payclient.lifecycle import Record

        async def connections():
            connection = await asyncpg.connect(sys.argv[1])
            found = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'payclient' AND datname = current_database()"
            )
            await connection.close()
            return sorted(row[0] for row in found)

        async def main():
            ledger = await open_ledger(sys.argv[1])
            stop = ledger.watch(lambda _: None)
            before = await connections()
            while len(before) < 2:
                await asyncio.sleep(0.01)
                before = await connections()
            child = os.fork()
            if not child:
                try:
                    await ledger.aclose()
                finally:
                    del ledger, stop
                    gc.collect()
                    sys.exit()
            os.waitpid(child, 0)
            assert await ledger.permit(Record(client_transaction_id="a"))
            print("the same" if before == await connections() else "others")
            await ledger.aclose()

        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
            runner.run(main())
        """,
        postgres.url(name),
    )
    assert said == "the same"
