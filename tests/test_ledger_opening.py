"""Which ledger an address means, whether it is made, and backups of it: by the public names and the command line."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from fake_service import error_of
from payclient import (
    ConfigurationError,
    LedgerMissingError,
    LedgerUnavailableError,
    open_ledger,
    open_tracker,
)
from payclient.cli import main
from payclient.events import Created
from payclient.ledger import Ledger, Shared, archive_ledger, backup_ledger
from payclient.lifecycle import Record, State
from postgres_server import PostgresServer
from test_ledger import NOW, brought, fresh, opened, until


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_new_ledger_is_announced_once(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its location is absolute, and has neither user, password nor options; the first opening alone is the new one."""
    monkeypatch.chdir(tmp_path)
    url, location = "sqlite:charges.db", f"sqlite:{tmp_path / 'charges.db'}"
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        at = f"127.0.0.1:{postgres.port}/{await postgres.database()}"
        url, location = f"postgresql://payclient:s3cret@{at}?application_name=x", f"postgresql://{at}"
    for options in ({"create": False}, {"read_only": True}):
        await error_of(LedgerMissingError, open_ledger(url, **options))
    for new in (True, False):
        async with opened(url) as ledger:
            assert (ledger.created, ledger.location) == (new, location)
    said = f"the ledger {location} is new: it knows no earlier charge"
    assert caplog.record_tuples == [("payclient.ledger", logging.WARNING, said)]


async def test_a_memory_ledger_is_always_new(caplog: pytest.LogCaptureFixture) -> None:
    """Its address says so already: nothing is logged."""
    async with opened("memory:") as ledger:
        assert (ledger.created, ledger.location, caplog.records) == (True, "memory:", [])


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
        caught = await error_of(LedgerMissingError, opening, match="must exist")
        assert str(tmp_path / "charges.db") in str(caught)
        assert isinstance(caught, ConfigurationError)
    assert not empty or (tmp_path / "charges.db").stat().st_size == 0
    assert empty or os.listdir(tmp_path) == []


def test_init_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`payclient ledger init` says where the ledger is and whether it was there."""
    path = tmp_path / "charges.db"
    for words in (f"the ledger is ready at sqlite:{path}\n", "it was there already"):
        assert main(["ledger", "init", "--ledger", f"sqlite:{path}"]) == 0
        assert words in "".join(capsys.readouterr())
    assert path.exists()


async def test_a_schema_of_its_own(postgres: PostgresServer, new_database: str) -> None:
    """Tenants of one database have a ledger each, and notifications and the feed of one are not another's."""
    url = postgres.url(new_database)
    ledgers = [await open_ledger(f"{url}{options}") for options in ("", "?schema=order", "?schema=Shop-17")]
    heard: list[list[str | None]] = [[] for _ in ledgers]
    for ledger, words in zip(ledgers, heard, strict=True):
        assert isinstance(ledger, Shared)
        ledger.watch(words.append)
    await until(lambda: asyncio.sleep(0, all(heard)))  # they listen
    assert [ledger.created for ledger in ledgers] == [True] * 3
    assert len({ledger.digest_key for ledger in ledgers}) == 3
    assert [ledger.location.partition("?")[2] for ledger in ledgers] == ["", "schema=order", "schema=Shop-17"]
    for number, ledger in enumerate(ledgers):
        await brought(ledger, State.ACCEPTED)
        assert await ledger.service_fingerprint(bytes([number] * 16)) == bytes([number] * 16)
    await until(lambda: asyncio.sleep(0, all("order-1" in each for each in heard)))
    assert [each.count("order-1") for each in heard] == [1] * 3
    for ledger in ledgers:
        assert len(await ledger.changes()) == 1
        await ledger.aclose()
    async with opened(f"{url}?schema=order&application_name=x", create=False) as again:
        assert again.digest_key == ledgers[1].digest_key


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
        await error_of(
            ConfigurationError, opening, match=r"sqlite:charges\.db is in this directory, and sqlite:/charges"
        )
    assert not Path("/charges.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        None, 5, b"memory:", "memory", Path("s3cret.db"), "sqlite:s3cret\0.db", "sqlite:s3cret\ud800.db",
        "postgresql://shop:s3cret@127.0.0.1:99999/shop",
    ],
)  # fmt: skip
async def test_what_means_no_ledger(url: Any) -> None:
    """Whatever else is given, the setting is called wrong and is not repeated."""
    for opening in (
        open_ledger(url),
        open_ledger(url, read_only=True),
        archive_ledger(url, NOW, "archive.jsonl"),
        open_tracker("http://127.0.0.1:1", "t", ledger=url).__aenter__(),
    ):
        caught = await error_of(ConfigurationError, opening, match=r"ledger.*postgresql://USER@HOST/DATABASE")
        assert "s3cret" not in repr(caught.__context__) + str(caught)


# --- Backups, of a ledger that is in use or not


async def held(path: Path) -> tuple[bytes, list[Record], list[object]]:
    """All that a ledger says."""
    async with opened(f"sqlite:{path}", create=False) as ledger:
        records = [record async for record in ledger.records()]
        histories: list[object] = [await ledger.history(each.client_transaction_id) for each in records]
    return ledger.digest_key, records, histories


async def filled(ledger: Ledger, numbers: range) -> None:
    for number in numbers:
        record = fresh(f"order-{number}")
        assert await ledger.permit(record)
        await ledger.apply(record, Created(at=NOW, transaction_id=number + 1, expires_at=NOW + 300))


@pytest.mark.parametrize("how", ["here", "another process", "closed"])
async def test_a_backup_is_the_ledger(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open here, open elsewhere, or closed: the copy holds all, is 0600 and one file, and harms nothing."""
    path, copy = tmp_path / "charges #1?%41.db", tmp_path / "backups" / "copy.db"
    copy.parent.mkdir()
    url = f"sqlite:{path}"
    async with opened(url) as ledger:
        await filled(ledger, range(20))
        if how == "another process":
            path.read_bytes()  # a foreign close has dropped SQLite's own locks: the backup leaves the log alone
            command = [sys.executable, "-m", "payclient", "ledger", "backup", str(copy), "--ledger", url]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert str(copy) in done.stderr + done.stdout
        elif how == "here":
            with monkeypatch.context() as away:  # it begins beside its place: elsewhere may be another disk
                away.setattr(tempfile, "tempdir", str(tmp_path / "none"))
                await backup_ledger(url, copy)
        await filled(ledger, range(20, 25))
    if how == "closed":
        await backup_ledger(url, copy)
    assert os.listdir(copy.parent) == ["copy.db"]
    assert (stat.S_IMODE(copy.stat().st_mode), copy.stat().st_nlink) == (0o600, 1)
    assert copy.read_bytes()[18:20] == b"\x01\x01", "it needs a write-ahead log"
    key, records, histories = await held(path)
    count = 25 if how == "closed" else 20
    assert len(records) == 25
    assert await held(copy) == (key, records[:count], histories[:count])


async def test_a_backup_has_its_name_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is on the disk last: a power failure leaves no half copy that is taken for a whole one."""
    steps, sync, rename = list[str](), os.fsync, os.replace

    def synced(file: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        sync(file)

    def renamed(source: str, target: str) -> None:
        steps.append("name")
        rename(source, target)

    await (await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")).aclose()
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    await backup_ledger(f"sqlite:{tmp_path / 'charges.db'}", tmp_path / "copy.db")
    assert steps == ["file", "name", "directory"]


async def test_copies_on_a_disk_that_syncs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder that a virtual machine shares with its host: a backup and an archive are whole there, too."""
    url, sync = f"sqlite:{tmp_path / 'charges.db'}", os.fsync

    def synced(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(file)

    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    monkeypatch.setattr(os, "fsync", synced)
    await backup_ledger(url, tmp_path / "copy.db")
    assert await held(tmp_path / "copy.db") == await held(tmp_path / "charges.db")
    assert await archive_ledger(url, time.time(), tmp_path / "archive.jsonl") == 1


async def test_a_backup_beside_writes(tmp_path: Path) -> None:
    """What was acknowledged before it began is in it, whatever is written meanwhile; one that fails harms nothing."""
    url = f"sqlite:{tmp_path / 'charges.db'}"
    async with opened(url) as ledger:
        await filled(ledger, range(50))
        writing = asyncio.create_task(filled(ledger, range(50, 150)))
        with pytest.raises(LedgerUnavailableError, match="could not be backed up"):
            await backup_ledger(url, tmp_path / "no such directory" / "copy.db")
        for number in range(3):
            known = len([record async for record in ledger.records()])
            await backup_ledger(url, copy := tmp_path / f"{number}.db")
            _, records, histories = await held(copy)
            assert len(histories) == len(records) >= known
        await writing
    assert len((await held(tmp_path / "charges.db"))[1]) == 150


async def test_a_backup_in_the_place_of_a_ledger_that_was_killed(tmp_path: Path) -> None:
    """SQLite would mix it with the log that is left there, and find nothing of charges that both have."""
    path, copy, log = tmp_path / "charges.db", tmp_path / "copy.db", tmp_path / "charges.db-wal"
    url = f"sqlite:{path}"
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
        await backup_ledger(url, copy)
        await brought(ledger, State.ACCEPTED, "order-2")
        left = log.read_bytes()
    log.write_bytes(left)
    shutil.copyfile(copy, path)
    for read_only in (False, True):
        opening = open_ledger(url, read_only=read_only)
        await error_of(ConfigurationError, opening, match="-wal is of the ledger that was there")
    assert (path.read_bytes(), log.read_bytes()) == (copy.read_bytes(), left)
    log.unlink()
    async with opened(url) as ledger:
        assert [each.client_transaction_id async for each in ledger.records()] == ["order-1"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "the ledger"])
async def test_a_backup_goes_over_nothing(tmp_path: Path, kind: str) -> None:
    """What has the name already stays as it is, and nothing is left beside it."""
    path, copy = tmp_path / "charges.db", tmp_path / "copy.db"
    await (await open_ledger(f"sqlite:{path}")).aclose()
    if kind == "file":
        copy.write_text("precious")
    elif kind == "the ledger":
        copy = path
    else:
        copy.symlink_to(path if kind == "link" else tmp_path / "nowhere")

    def files() -> dict[str, bytes]:
        kept = [each for each in tmp_path.iterdir() if not each.name.endswith(("-wal", "-shm"))]
        return {each.name: each.read_bytes() if each.exists() else b"" for each in kept}

    before = files()
    await error_of(ConfigurationError, backup_ledger(f"sqlite:{path}", copy), match="must be a new file")
    assert files() == before


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("sqlite:missing.db", LedgerMissingError, "there is no ledger at"),
        ("sqlite:text.db", LedgerUnavailableError, "NOTADB"),
        ("sqlite:empty.db", LedgerMissingError, "there is no ledger at"),
        ("memory:", ConfigurationError, "must be sqlite:PATH"),
        ("sqlite:", ConfigurationError, "must be sqlite:PATH"),
        ("postgresql://shop:s3cret@db/shop", ConfigurationError, "pg_dump"),
    ],
)
async def test_what_cannot_be_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: type[Exception], words: str
) -> None:
    """The error says why, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("no database " * 500)
    (tmp_path / "empty.db").touch()
    caught = await error_of(kind, backup_ledger(source, "copy.db"), match=words)
    assert "s3cret" not in str(caught)
    assert sorted(os.listdir(tmp_path)) == ["empty.db", "text.db"]


def test_the_command_needs_a_ledger(tmp_path: Path) -> None:
    """Without `--ledger`, or for a ledger that is not there, it ends with 2 and makes nothing."""
    for options in ([], ["--ledger", f"sqlite:{tmp_path / 'none.db'}"]):
        assert main(["ledger", "backup", str(tmp_path / "copy.db"), *options]) == 2
    assert os.listdir(tmp_path) == []
