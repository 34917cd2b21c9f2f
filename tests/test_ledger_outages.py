"""Ledgers that cannot be written for a while, or never again: nobody hangs, and the log stays short."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cutting_proxy import PostgresProxy
from fake_service import error_of
from jumping import in_jumping_time, jump_after
from payclient import LedgerUnavailableError, open_ledger
from payclient.events import Created
from postgres_server import PostgresServer
from test_ledger import NOW, fresh, opened, until
from test_ledger_owner import in_loop, run
from test_ledger_sqlite import opened_by

# --- A disk that is full

FULL_DISK = in_loop("""
    import logging, resource
    NOW = 1_700_000_000.0
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append((record.levelname, record.getMessage()))

    logging.getLogger("payclient").addHandler(Lines())

    async def permits(ledger, name, count):
        "How many of so many permits at once are granted."
        work = (ledger.permit(fresh(f"{name}-{n}")) for n in range(count))
        done = await asyncio.gather(*work, return_exceptions=True)
        assert all(each is True or isinstance(each, LedgerUnavailableError) for each in done), done
        return sum(each is True for each in done)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    folder = sys.argv[1]
    ledger = await open_ledger(f"sqlite:{folder}/charges.db")
    lines.clear()
    assert await ledger.permit(fresh("before"))
    limit(os.path.getsize(folder + "/charges.db-wal") + 4096)
    for number in range(50):
        if not await permits(ledger, f"full-{number}", 40):
            break
    else:
        sys.exit("the disk was never full")
    refused = 0
    for number in range(20):
        refused += 10 - await permits(ledger, f"refused-{number}", 10)
    print("refused", refused, "lines", len(lines), {name for name, _ in lines})
    created = Created(at=NOW, transaction_id=7, expires_at=NOW + 300)
    try:
        await ledger.apply(fresh("before"), created)
    except LedgerUnavailableError:
        print("not recorded yet")
    assert (await ledger.get("before")).state == "sending"
    limit(resource.RLIM_INFINITY)
    print("again", await permits(ledger, "again", 10), "lines", len(lines))
    record = await ledger.apply(fresh("before"), created)
    known = [each.client_transaction_id async for each in ledger.records()]
    await ledger.aclose()
    ledger = await open_ledger(f"sqlite:{folder}/charges.db")
    assert [each.client_transaction_id async for each in ledger.records()] == known
    assert await ledger.get("before") == record
    assert not any(name.startswith("refused-") for name in known)
    await ledger.aclose()
    print("lines", len(lines))
""")


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """No permit is granted, one line is logged, and when there is room again the same ledger goes on."""
    assert run(FULL_DISK, tmp_path).splitlines() == [
        "refused 200 lines 1 {'ERROR'}",
        "not recorded yet",
        "again 10 lines 2",
        "lines 2",
    ]


# --- A database thread that dies


@pytest.mark.parametrize("at", ["INSERT", "COMMIT"])
async def test_nobody_waits_for_a_dead_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A fault that ends the thread answers who waits and who comes later, and lets go of the file: no permit."""

    class Dying(sqlite3.Connection):
        dies = False

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            self.dies |= "deadly" in str(args)
            if self.dies and sql.startswith(at):
                raise SystemExit
            return super().execute(sql, *args)

    path = str(tmp_path / "charges.db")
    ledger = await opened_by(
        lambda path: sqlite3.connect(path, isolation_level=None, factory=Dying), path, monkeypatch
    )
    assert await ledger.permit(fresh())
    async with asyncio.timeout(60):
        for name in ("deadly", "later", "later", "later"):
            answers = await asyncio.gather(
                ledger.permit(fresh(name)), ledger.get("order-1"), ledger.history("order-1"),
                ledger.apply(fresh(), Created(at=NOW, transaction_id=7, expires_at=NOW + 300)),
                return_exceptions=True,
            )  # fmt: skip
            assert [type(each) for each in answers] == [LedgerUnavailableError] * 4
        await ledger.aclose()
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    async with opened(f"sqlite:{path}") as again:
        assert [each.client_transaction_id async for each in again.records()] == ["order-1"]
        assert await again.get("order-1") == fresh()


async def test_nobody_waits_for_a_log(tmp_path: Path) -> None:
    """A handler of logs ends the thread that logs: callers are answered all the same."""

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    path, handler = tmp_path / "charges.db", Ending()
    async with asyncio.timeout(60), opened(f"sqlite:{path}") as ledger:
        await ledger.permit(fresh())
        path.rename(tmp_path / "elsewhere.db")
        logging.getLogger("payclient").addHandler(handler)
        try:
            for name in ("order-2", "order-3"):
                await error_of(LedgerUnavailableError, ledger.permit(fresh(name)))
                await error_of(LedgerUnavailableError, ledger.get("order-1"))
        finally:
            logging.getLogger("payclient").removeHandler(handler)


async def test_nobody_waits_for_a_cancelled_task(postgres: PostgresServer, new_database: str) -> None:
    """Where a shutdown cancels PostgreSQL's tasks the call under way fails, and those after it. It may be done yet."""
    ledger = await open_ledger(postgres.url(new_database))
    other = await asyncpg.connect(postgres.url(new_database))
    async with other.transaction(), asyncio.timeout(60):
        await other.execute("LOCK TABLE payclient.attempts")
        call = asyncio.ensure_future(ledger.permit(fresh()))
        await until(lambda: other.fetch("SELECT FROM pg_locks WHERE NOT granted"))
        for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
            task.cancel()
        for work in (call, ledger.get("order-1"), ledger.get("order-1"), ledger.permit(fresh("order-2"))):
            await error_of(LedgerUnavailableError, work, match="was closed")
        await ledger.aclose()
    await other.close()


# --- PostgreSQL: servers that are full, frozen or away

#: Of an address: one connection for each try, and not another one to ask for TLS.
DIRECT = "?sslmode=disable"
#: More connections than any test makes.
FOR_EVER = 1_000_000


@pytest.mark.parametrize("code", ["53300", "57P03"])
@in_jumping_time(0.5)
async def test_a_server_at_its_limit_is_tried_again(
    postgres: PostgresServer, database: str, code: str
) -> None:
    """A server without a free connection, or one that is starting, is asked until it has room."""
    async with PostgresProxy(postgres.port) as proxy:
        proxy.refuses, proxy.code = 2, code
        async with opened(postgres.url(database, port=proxy.port) + DIRECT) as ledger:
            assert await ledger.permit(fresh())
        assert proxy.asked == 3


@in_jumping_time(0.02)
async def test_a_server_that_stays_at_its_limit(postgres: PostgresServer) -> None:
    """After half a minute the error says what the server that answers lacks, and for how long it was asked."""
    loop = asyncio.get_running_loop()
    async with PostgresProxy(postgres.port) as proxy:
        proxy.refuses, begin = FOR_EVER, loop.time()
        caught = await error_of(
            LedgerUnavailableError,
            open_ledger(f"postgresql://ana:s3cret@127.0.0.1:{proxy.port},127.0.0.1:1/shop{DIRECT}"),
            match=r"no more connections.* tried again for 30 s",
        )
        assert type(caught) is LedgerUnavailableError
        assert "s3cret" not in str(caught)
        assert 25 < loop.time() - begin < 60
        assert 10 < proxy.asked < 40


@in_jumping_time(0.5)
async def test_a_frozen_host_keeps_nobody_from_the_next(postgres: PostgresServer, database: str) -> None:
    """Of two hosts the first takes connections and says nothing: the second is reached within seconds."""
    loop = asyncio.get_running_loop()
    async with PostgresProxy(postgres.port) as proxy:
        proxy.silent, begin = True, loop.time()
        hosts = f"127.0.0.1:{proxy.port},127.0.0.1:{postgres.port}"
        async with opened(f"postgresql://payclient@{hosts}/{database}{DIRECT}") as ledger:
            assert await ledger.permit(fresh())
            assert loop.time() - begin < 5
            assert ledger.location == f"postgresql://{hosts}/{database}"
        assert proxy.asked == 1


@in_jumping_time(0.5)
async def test_an_outage_is_logged_once_a_minute(
    postgres: PostgresServer, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of operations that fail while the server is away make a line a minute, and one at its end."""
    loop = asyncio.get_running_loop()
    async with (
        PostgresProxy(postgres.port) as proxy,
        opened(postgres.url(database, port=proxy.port) + DIRECT) as ledger,
    ):
        assert await ledger.permit(fresh())
        caplog.clear()
        proxy.refuses = FOR_EVER
        proxy.abort()
        jump_after(0.005)
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
        proxy.refuses = 0
        jump_after(0.5)
        assert await ledger.permit(fresh("order-2"))
        assert [record.levelno for record in caplog.records][3:] == [logging.WARNING]
        assert all(record.name == "payclient.ledger" for record in caplog.records)


def test_a_child_leaves_its_parents_connections(postgres: PostgresServer, database: str) -> None:
    """A forked child that drops or closes the ledger ends no connection of its parent's, to the server's knowledge."""
    program = in_loop("""
        import asyncpg

        async def connections():
            connection = await asyncpg.connect(sys.argv[1])
            found = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'payclient' AND datname = current_database()"
            )
            await connection.close()
            return sorted(row[0] for row in found)

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
        assert await ledger.permit(fresh("a"))
        print("the same" if before == await connections() else "others")
        await ledger.aclose()
    """)
    assert run(program, postgres.url(database)) == "the same"
