"""What every test needs before it starts: workers, hypothesis without a stopwatch, aioresponses on today's aiohttp."""

import compileall
import gc
import importlib
import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aioresponses.core
import pytest
from aiohttp import ClientResponse
from hypothesis import settings

from cli_runs import charge, clean_environment, mixed, silent, unwilling, willing
from fake_service import FakeService
from payclient import session
from payclient.ledger import Ledger, open_ledger
from payclient.tracking import leases
from postgres_server import database, new_database, postgres

# Fixtures
__all__ = [
    "charge", "clean_environment", "database", "mixed", "new_database", "postgres", "silent", "unwilling", "willing",
]  # fmt: skip

#: Each has a PostgreSQL and services of its own: more would rather wait for each other.
MOST_WORKERS = 6

TESTS = Path(__file__).parent

#: For the files of tests: a ledger writes durably, and elsewhere thousands of tests wait for the disk.
MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is made by pytest, for its user alone


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in two processes a core, unless `-n` says otherwise: half of a test's time is waiting.

    What is named by its file runs in this process, as everything does with `-n 0`, `--pdb` or `-p no:xdist`. Each
    worker takes neighbours, which share the fixtures of their module, and helps the others at the end.
    """
    # In the background of a shell, or under nohup: the programs of tests hear these signals all the same.
    for each, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, default)
    if hasattr(config, "workerinput"):
        return
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    # No test calls a server on the internet, and each process that imports aiohttp would read all their certificates.
    os.environ["SSL_CERT_FILE"] = os.devnull
    # Where no bytecode is written, each process that a test starts would compile what it imports anew.
    for folder in (
        Path(session.__file__).parent,
        *(TESTS / name for name in ("campaigns", "shops", "worlds")),
    ):
        compileall.compile_dir(folder, quiet=2)
    option = config.option
    if not hasattr(option, "numprocesses"):
        return
    if option.numprocesses is None and not option.tx:
        here = config.invocation_params.dir
        named = any((here / each.partition("::")[0]).is_file() for each in config.args)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        option.numprocesses = 0 if named or option.usepdb else min(2 * cores, MOST_WORKERS)
    if option.numprocesses and option.dist == "no":
        option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Share the compiling of the tests out to the workers, and keep the collector of garbage from what stays.

    Each worker first imports its part of the modules, and leaves their rewritten `assert`s to the others as bytecode.
    """
    collects, writes_none = gc.isenabled(), sys.dont_write_bytecode
    gc.disable()
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is not None and all(Path(each).is_dir() for each in session.config.args):
        sys.dont_write_bytecode = False
        own = int(worker["workerid"].removeprefix("gw"))
        for module in sorted(TESTS.glob("test_*.py"))[own :: worker["workercount"]]:
            with suppress(Exception, pytest.skip.Exception):  # which the collection reports
                importlib.import_module(module.stem)
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = writes_none
        gc.freeze()
        if collects:
            gc.enable()


def _has_room() -> bool:
    """Return whether MEMORY has room (a container's default is 64 MB) and programs may be started there."""
    return (
        os.access(MEMORY, os.W_OK)
        and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(MEMORY).free > 4 << 30
    )


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases' rounds come in quick succession."""
    monkeypatch.setattr(leases, "RENEW", 0.01)


@pytest.fixture
def looks_at_once(quick_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds do, and each looks for abandoned forms."""
    monkeypatch.setattr(leases, "ABANDONED_ROUNDS", 1)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the session repeat without waiting; the delays that it asked for."""
    asked: list[float] = []

    shipped = session.sleep_time_seconds

    def none(tries: int, chance: float) -> float:
        asked.append(shipped(tries, chance))
        return 0.0

    monkeypatch.setattr(session, "sleep_time_seconds", none)
    return asked


@pytest.fixture
def service() -> FakeService:
    """A service as a function."""
    return FakeService()


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    """A ledger in memory, and one in a file."""
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'charges.db'}"
    opened = await open_ledger(url)
    yield opened
    await opened.aclose()


#: How many examples of each property are tried; for a search of hours: PAYCLIENT_TESTS_EXAMPLES=100000.
EXAMPLES = int(os.environ.get("PAYCLIENT_TESTS_EXAMPLES", "40"))
settings.register_profile("payclient", deadline=None, derandomize="CI" in os.environ, max_examples=EXAMPLES)
settings.load_profile("payclient")


class _MockedResponse(ClientResponse):
    """aioresponses 0.7.9 makes a `ClientResponse` without `stream_writer`, which aiohttp 3.14 requires.

    With `writer=None` the request counts as sent, and aiohttp reads no more of it than its `output_size`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, stream_writer=Mock(output_size=0), **options)


if "stream_writer" in inspect.signature(ClientResponse).parameters:
    aioresponses.core.ClientResponse = _MockedResponse  # type: ignore[attr-defined]  # it imports the name
