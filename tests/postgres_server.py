"""A real PostgreSQL, the distribution's, started by the tests as an unprivileged user in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ports import kept_port
from required import without

_SUITE = "suite"
#: Past the triggers, as only a superuser may go.
_EMPTY = """
DO $$ BEGIN
    SET LOCAL session_replication_role = replica;
    IF to_regclass('payclient.meta') IS NOT NULL THEN
        DELETE FROM payclient.attempts;
        DELETE FROM payclient.changes;
        DELETE FROM payclient.open_attempts;
        DELETE FROM payclient.form_links;
        UPDATE payclient.meta SET environment = NULL, next_query_at = '-infinity';
    END IF;
END $$"""


def _binaries() -> Path | None:
    """Where `initdb` and `postgres` are; the newest, where there are several."""
    found = [Path(each).resolve().parent for each in [shutil.which("initdb")] if each]
    found += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True
    )
    return next((each for each in found if (each / "initdb").exists() and (each / "postgres").exists()), None)


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL does not run as root: as what it runs then."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("there is no unprivileged user to run PostgreSQL as")


class PostgresServer:
    """One server: everything durable as in production, but for what `initdb` writes."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = _unprivileged()
        self._directory = Path(tempfile.mkdtemp(prefix="payclient-pg-"))
        self._numbers = count()
        self._has_suite = False
        self._runs = False
        if self._user:
            os.chown(self._directory, self._user["user"], self._user["group"])
        self._kept = ExitStack()
        self.port = self._kept.enter_context(kept_port())
        self._run(
            "initdb", "--pgdata", self._data, "--no-sync", "--username", "payclient", "--auth", "trust",
            "--no-locale", "--encoding", "UTF8",
        )  # fmt: skip

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments], check=True, stdout=subprocess.DEVNULL,
            cwd=self._directory, timeout=60, **self._user,
        )  # fmt: skip

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = (
            f"-k {self._directory} -p {self.port} -c listen_addresses=127.0.0.1 -c max_connections=60 -c jit=off "
            "-c autovacuum=off"
        )
        log = str(self._directory / "log")
        self._run("pg_ctl", "start", "--wait", "--silent", "-D", self._data, "-l", log, "-o", options)
        self._runs = True

    def stop(self) -> None:
        """End it as a crash does: nothing is written any more."""
        if self._runs:
            self._run("pg_ctl", "stop", "--wait", "--silent", "-D", self._data, "-m", "immediate")
            self._runs = False

    def remove(self) -> None:
        """Stop it and delete what it kept."""
        self.stop()
        self._kept.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def url(self, database: str, *, port: int | None = None, user: str = "payclient") -> str:
        """Its address, or that of something between it and us."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    async def execute(self, database: str, sql: str, *parameters: object) -> list[Any]:
        """As somebody with psql."""
        connection = await asyncpg.connect(self.url(database), statement_cache_size=0)
        try:
            rows: list[Any] = await connection.fetch(sql, *parameters)
            return rows
        finally:
            await connection.close()

    async def database(self) -> str:
        """The name of a new, empty database."""
        name = f"test{next(self._numbers)}"
        await self.execute("postgres", f"CREATE DATABASE {name}")
        return name

    async def emptied(self) -> str:
        """The name of a database whose ledger, if it has one, is as new: quicker than a new database."""
        if not self._has_suite:
            await self.execute("postgres", f"CREATE DATABASE {_SUITE}")
            self._has_suite = True
        await self.execute(_SUITE, _EMPTY)
        return _SUITE


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server of the machine's PostgreSQL, for a program's own; a test takes `postgres`."""
    binaries = _binaries()
    if binaries is None:
        raise SystemExit("no PostgreSQL on this machine (the package is called postgresql)")
    server = PostgresServer(binaries)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server, one for all tests."""
    if _binaries() is None:
        without("PostgreSQL")
    with running_postgres() as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer) -> str:
    """The name of a database whose ledger is as new."""
    return await postgres.emptied()


@pytest.fixture
async def new_database(postgres: PostgresServer) -> AsyncIterator[str]:
    """The name of a database of the test's own, without a ledger."""
    name = await postgres.database()
    yield name
    await postgres.execute("postgres", f"DROP DATABASE {name} WITH (FORCE)")
