"""Which ledger an address means, and whether it is made: by the public names alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from payclient import ConfigurationError, LedgerMissingError, open_ledger, open_tracker
from payclient.cli import main
from postgres_server import PostgresServer


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


async def test_an_existing_ledger_is_opened(tmp_path: Path) -> None:
    """With `create=False` a ledger that is there opens as ever."""
    url = f"sqlite:{tmp_path / 'charges.db'}"
    await (await open_ledger(url)).aclose()
    ledger = await open_ledger(url, create=False)
    assert not ledger.created
    await ledger.aclose()


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
    with pytest.raises(LedgerMissingError, match="must exist"):
        await open_ledger(url, create=False)
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
