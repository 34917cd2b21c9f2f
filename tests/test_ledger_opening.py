"""Which ledger an address means, and whether it is made: by the public names alone."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from payclient import ConfigurationError, LedgerMissingError, open_ledger, open_tracker
from payclient.cli import main
from payclient.ledger import Shared, backup_ledger
from payclient.lifecycle import State
from postgres_server import PostgresServer
from test_ledger import brought


async def test_a_new_ledger_is_announced_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning names the absolute path, whatever the address and the directory were."""
    monkeypatch.chdir(tmp_path)
    seen = []
    for _ in range(2):
        ledger = await open_ledger("sqlite:charges.db")
        seen.append((ledger.created, ledger.location))
        await ledger.aclose()
    location = f"sqlite:{tmp_path / 'charges.db'}"
    assert seen == [(True, location), (False, location)]
    assert caplog.record_tuples == [
        (
            "payclient.ledger",
            logging.WARNING,
            f"the ledger {location} is new: it knows no earlier charge",
        )
    ]


async def test_a_memory_ledger_is_always_new(caplog: pytest.LogCaptureFixture) -> None:
    """Its address says so already: nothing is logged."""
    ledger = await open_ledger("memory:")
    assert (ledger.created, ledger.location, caplog.records) == (True, "memory:", [])
    await ledger.aclose()


@pytest.mark.parametrize("empty", [False, True])
async def test_a_missing_ledger_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    """The error names the absolute path, and an empty file is as good as none."""
    monkeypatch.chdir(tmp_path)
    if empty:
        (tmp_path / "charges.db").touch()
    for opening in (
        open_ledger("sqlite:charges.db", create=False),
        open_tracker("http://127.0.0.1:1", "t", ledger="sqlite:charges.db", create=False).__aenter__(),
    ):
        with pytest.raises(LedgerMissingError, match="must exist") as caught:
            await opening
        assert str(tmp_path / "charges.db") in str(caught.value)
        assert isinstance(caught.value, ConfigurationError)
    assert not empty or (tmp_path / "charges.db").stat().st_size == 0
    assert empty or os.listdir(tmp_path) == []


def test_init_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`payclient ledger init` says where the ledger is and whether it was there."""
    path = tmp_path / "charges.db"
    for words in (f"the ledger is ready at sqlite:{path}\n", "it was there already"):
        assert main(["ledger", "init", "--ledger", f"sqlite:{path}"]) == 0
        assert words in "".join(capsys.readouterr())
    assert path.exists()


async def test_a_new_postgres_ledger(
    postgres: PostgresServer, new_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its location has neither user, password nor options, and the first opening alone is the new one."""
    url = postgres.url(new_database).replace("payclient@", "payclient:s3cret@") + "?application_name=x"
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(LedgerMissingError, match="must exist"):
            await open_ledger(url, **options)
    seen = []
    for _ in range(2):
        ledger = await open_ledger(url)
        seen.append((ledger.created, ledger.location))
        await ledger.aclose()
    location = f"postgresql://127.0.0.1:{postgres.port}/{new_database}"
    assert seen == [(True, location), (False, location)]
    assert [record.getMessage() for record in caplog.records] == [
        f"the ledger {location} is new: it knows no earlier charge"
    ]


async def test_a_schema_of_its_own(postgres: PostgresServer, new_database: str) -> None:
    """Tenants of one database have a ledger each, and notifications and the feed of one are not another's."""
    url = postgres.url(new_database)
    ledgers = [await open_ledger(f"{url}{options}") for options in ("", "?schema=order", "?schema=Shop-17")]
    heard: list[list[str | None]] = []
    for ledger in ledgers:
        assert isinstance(ledger, Shared)
        heard.append([])
        ledger.watch(heard[-1].append)
    async with asyncio.timeout(60):
        while [] in heard:  # noqa: ASYNC110 - until all listen
            await asyncio.sleep(0.01)
    assert [ledger.created for ledger in ledgers] == [True] * 3
    assert len({ledger.digest_key for ledger in ledgers}) == 3
    assert [ledger.location.partition("?")[2] for ledger in ledgers] == ["", "schema=order", "schema=Shop-17"]
    for number, ledger in enumerate(ledgers):
        await brought(ledger, State.ACCEPTED)
        assert await ledger.environment(bytes([number] * 16)) == bytes([number] * 16)
    async with asyncio.timeout(60):
        while not all("order-1" in each for each in heard):  # noqa: ASYNC110 - until all have heard
            await asyncio.sleep(0.01)
    assert [each.count("order-1") for each in heard] == [1] * 3
    for ledger in ledgers:
        assert len(await ledger.changes()) == 1
        await ledger.aclose()
    again = await open_ledger(f"{url}?schema=order&application_name=x", create=False)
    assert again.digest_key == ledgers[1].digest_key
    await again.aclose()


@pytest.mark.parametrize("name", ["", "pg_shop", "1shop", 'a"b', "a.b", "a&schema=b", "x" * 64, "%41"])
async def test_what_is_not_a_schema(postgres: PostgresServer, name: str) -> None:
    """The name stands in statements: it must be a plain one."""
    with pytest.raises(ConfigurationError, match="must be one name"):
        await open_ledger(postgres.url("postgres") + f"?schema={name}")


@pytest.mark.parametrize("url", ["sqlite:///charges.db", "sqlite://charges.db"])
async def test_two_slashes_make_no_file_at_the_root(url: str, tmp_path: Path) -> None:
    """Another library's spelling is refused with ours, wherever a SQLite ledger is named."""
    for opening in (
        open_ledger(url),
        open_ledger(url, read_only=True),
        backup_ledger(url, tmp_path / "copy.db"),
        open_tracker("http://127.0.0.1:1", "t", ledger=url).__aenter__(),
    ):
        with pytest.raises(
            ConfigurationError, match=r"sqlite:charges\.db is in this directory, and sqlite:/charges"
        ):
            await opening
    assert not Path("/charges.db").exists()
