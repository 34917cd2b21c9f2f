"""What an archive takes out of a ledger, what stays of it, and that a crash loses nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import attrs
import pytest

from fake_service import (
    FakeService,
    Held,
    alarms,
    error_of,
    hint,
    outcome_of,
    pending_of,
    posted,
    record_in,
    refusal,
    refuses,
    reset,
    sale,
    tracking,
)
from payclient.cli import main
from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    LedgerInUseError,
    LedgerMissingError,
    LedgerUnavailableError,
    RefusedError,
    TransitionError,
    UsageError,
)
from payclient.events import Created, DecidedRefused, FoundAccepted, FoundCancelled, Lost, Notified, Prepared
from payclient.ledger import Ledger, PurchaseHeldError, Shared, TransactionTakenError, archive_ledger, batch
from payclient.ledger import archive as archives
from payclient.ledger.postgres import PostgresDatabase
from payclient.ledger.sqlite import SqliteDatabase
from payclient.lifecycle import Record, State
from payclient.notifications import Receipt
from payclient.profile import PAYPHONE
from postgres_server import PostgresServer
from test_ledger import NOW, PATHS, brought, fresh, opened, took, url_of
from test_ledger import url as url  # the fixture

#: After every event of `PATHS`.
BEFORE = NOW + 1000


async def known(url: str) -> dict[str, Record]:
    async with opened(url) as ledger:
        return {each.client_transaction_id: each async for each in ledger.records()}


def ids_in(path: Path) -> list[str]:
    return [
        json.loads(line)["client_transaction_id"]
        for line in path.read_text().splitlines(True)
        if line.endswith("\n")
    ]


async def test_what_is_decided_leaves(url: str, tmp_path: Path) -> None:
    """The file has it whole; the ledger answers as before, without the texts, and says that it was archived."""
    async with opened(url) as ledger:
        for state in State:
            await brought(ledger, state, state.value)
    before, file = await known(url), tmp_path / "archive.jsonl"
    decided = {"accepted", "cancelled", "refused", "reversed"}
    assert await archive_ledger(url, BEFORE, file) == 4
    assert (sorted(ids_in(file)), file.stat().st_mode & 0o777) == (sorted(decided), 0o600)
    after = await known(url)
    assert list(after) == list(before)
    assert after == {
        name: attrs.evolve(record, version=record.version + 1, messages=(), archived=True)
        if name in decided
        else record
        for name, record in before.items()
    }
    async with opened(url) as ledger:
        assert {name: await ledger.get(name) for name in before} == after
        assert await ledger.get_many(list(before)) == after
        assert [each async for each in ledger.unfinished()] == [
            each for each in after.values() if not each.archived
        ]
        for name in before:
            assert not await ledger.permit(fresh(name)), name
            events = [change.event for change in await ledger.history(name)]
            assert (events == ["Permitted", "Archived"]) is (name in decided), name
        feed = await ledger.changes()
        assert {change.client_transaction_id for change in feed} == {"expired", "reversing"}
    assert await archive_ledger(url, BEFORE, tmp_path / "another") == 0  # nothing is left to do
    assert await known(url) == after


async def test_an_archived_attempt_takes_no_event(url: str, tmp_path: Path) -> None:
    """Not even a correction: whoever writes one hears of it, and the record stays."""
    async with opened(url) as ledger:
        record = await brought(ledger, State.CANCELLED)
    await archive_ledger(url, BEFORE, tmp_path / "archive")
    async with opened(url) as ledger:
        archived = await record_in(ledger, "order-1")
        for seen in (record, archived):
            for event in (
                FoundAccepted(at=NOW + 9, transaction_id=7),
                Notified(at=NOW + 9, transaction_id=7),
            ):
                await error_of(TransitionError, ledger.apply(seen, event), match="archived as cancelled")
        assert await ledger.get("order-1") == archived


async def test_an_archived_payment_is_not_given_back(url: str, tmp_path: Path) -> None:
    """Nothing could be noted of it, and nothing is sent: whoever asked for it is told so."""
    service = FakeService()
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    await archive_ledger(url, BEFORE, tmp_path / "archive")
    async with opened(url) as ledger, tracking(service, ledger, PAYPHONE) as tracker:
        paid = await pending_of(tracker, "order-1")
        assert "archived" in str(await error_of(UsageError, tracker.reverse(paid)))
        assert paid.outcome.paid is True
    assert not service.begun


@pytest.mark.parametrize("state", [State.ACCEPTED, State.CANCELLED])
async def test_an_archived_sale_is_queried_where_it_is_notified(
    url: str, tmp_path: Path, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated webhook raises nothing; a payment that the ledger cannot take any more is logged."""
    service = FakeService()
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado" if state is State.ACCEPTED else "Cancelado")
        assert (await outcome_of(service, pending)).state is state
    await archive_ledger(url, service.clock.time() + 1, tmp_path / "archive")
    service.decide("Aceptado")
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        asked = len(service.queried_at)
        caplog.clear()
        for _ in range(3):
            assert await tracker.notify(hint()) is Receipt.LATE
        await service.clock.advance(60)
        assert len(service.queried_at) == asked + 1
        assert ("order-17: cancelled, and yet accepted" in caplog.messages) is (state is State.CANCELLED)
        assert (await record_in(ledger)).state is state


async def test_an_archived_sale_of_which_the_service_says_nothing_new(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told to look at it: the service calls it cancelled, as the ledger does."""
    service = FakeService()
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).state is State.CANCELLED
    await archive_ledger(url, service.clock.time() + 1, tmp_path / "archive")
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        asked = len(service.queried_at)
        caplog.clear()
        outcome = await (await pending_of(tracker)).check()
        assert (outcome.state, len(service.queried_at)) == (State.CANCELLED, asked + 1)
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_an_archived_form_that_comes_back_is_what_it_was(url: str, tmp_path: Path) -> None:
    """A page of months ago is loaded again."""
    service = FakeService()
    async with opened(url) as ledger:
        form = attrs.evolve(fresh(), kind="form", links_dead_at=NOW + 20)
        assert await ledger.permit(form)
        for event in (Prepared(at=NOW, expires_at=NOW + 20), FoundCancelled(at=NOW + 9)):
            form = await ledger.apply(form, event)
    await archive_ledger(url, BEFORE, tmp_path / "archive")
    async with opened(url) as ledger, tracking(service, ledger, PAYPHONE) as tracker:
        outcome = await tracker.returned("id=7&clientTransactionId=order-1")
        assert outcome.state is State.CANCELLED
    assert not service.begun


async def test_what_an_archived_attempt_still_forbids(url: str, tmp_path: Path) -> None:
    """A purchase stays paid, a transaction another's, and only what was refused is tried again, as the next attempt."""
    async with opened(url) as ledger:
        await took(ledger, "paid", *PATHS[State.ACCEPTED])
        await brought(ledger, State.REFUSED, "refused")
    await archive_ledger(url, BEFORE, tmp_path / "archive")
    async with opened(url) as ledger:
        held = await error_of(PurchaseHeldError, ledger.permit(attrs.evolve(fresh("again"), purchase="paid")))
        assert (held.holder.client_transaction_id, held.holder.state) == ("paid", State.ACCEPTED)
        assert [each.client_transaction_id for each in await ledger.asks("paid")] == ["paid"]
        with pytest.raises(TransactionTakenError):
            await took(ledger, "other", Created(at=NOW, transaction_id=7, expires_at=NOW + 300))
        assert not await ledger.permit(fresh("refused"))
        await error_of(TransitionError, ledger.permit(fresh("refused", attempt=3)))
        second = await took(
            ledger, "refused", Created(at=NOW, transaction_id=8, expires_at=NOW),
            FoundAccepted(at=NOW, transaction_id=8), attempt=2,
        )  # fmt: skip
        attempts = (await ledger.find(["refused"]))[0]["refused"]
        assert ([each.archived for each in attempts], attempts[-1]) == ([True, False], second)


async def test_an_archived_refusal_is_looked_at_before_it_is_sent_again(url: str, tmp_path: Path) -> None:
    """It was notified, and its only query failed: it exists, which the archive's file alone says by now."""
    service = FakeService()
    service.scripts = [posted(1, refuses(800))]
    service.status_scripts = [reset] * 2
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        await error_of(RefusedError, tracker.sale(sale()))
        await tracker.notify(hint())
        await tracker.health()
    await archive_ledger(url, service.clock.time() + 1, tmp_path / "archive")
    service.decide("Aceptado")
    service.status_scripts.clear()
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        assert (await record_in(ledger)).archived
        await error_of(LedgerUnavailableError, tracker.sale(sale()))
    assert service.posted == {"order-17": 1}


async def test_an_archived_refusal_of_what_exists_is_looked_at_before_it_is_sent_again(
    url: str, tmp_path: Path
) -> None:
    """Something in front repeated the POST, and the query after the refusal came too early to find what it created."""
    service = FakeService()
    service.scripts = [posted(1, refuses(22, 2061))]
    service.status_scripts = [lambda: refusal(20, status=404)] * 2
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        await error_of(CustomerBusyError, tracker.sale(sale()))
    await archive_ledger(url, service.clock.time() + 1, tmp_path / "archive")
    service.decide("Aceptado")
    service.status_scripts.clear()
    async with opened(url) as ledger, tracking(service, ledger) as tracker:
        assert (await record_in(ledger)).archived
        await error_of(LedgerUnavailableError, tracker.sale(sale()))
    assert service.posted == {"order-17": 1}


async def two_open(ledger: Ledger, links_dead_at: float) -> tuple[Record, Record]:
    """A form and a push of one purchase, both open."""
    form = attrs.evolve(fresh("form"), kind="form", purchase="cart", links_dead_at=links_dead_at)
    push = attrs.evolve(fresh("push", at=NOW + 1), purchase="cart", beside_open_form=True)
    await ledger.permit(form)
    form = await ledger.apply(form, Prepared(at=NOW, expires_at=NOW + 20))
    await ledger.permit(push)
    return form, await ledger.apply(push, Lost(at=NOW + 9, expires_at=NOW + 300))


async def test_two_payments_are_not_said_again_once_one_is_archived(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """What was said of the second payment has left the ledger with it; nobody is called a second time."""
    url = postgres.url(database)
    async with opened(url) as ledger:
        for record in await two_open(ledger, BEFORE + 20):
            await ledger.apply(record, FoundAccepted(at=NOW + 10, transaction_id=5))
    assert await archive_ledger(url, BEFORE, tmp_path / "archive") == 1
    async with opened(url) as ledger:
        assert isinstance(ledger, Shared)
        await ledger.note_overpaid(BEFORE)
        assert (await ledger.history("form"))[-1].event == "FoundAccepted"


@pytest.mark.parametrize("dies", [False, True])
async def test_a_later_payment_beside_an_archived_one_is_seen(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Two asks of one purchase were open at once: the second one's payment says that the first was paid. So does the
    next process where the one that wrote it died.
    """
    async with opened(url) as ledger:
        form, push = await two_open(ledger, NOW + 20)
        await ledger.apply(form, FoundAccepted(at=NOW + 10, transaction_id=5))
    assert await archive_ledger(url, BEFORE, tmp_path / "archive") == 1
    async with opened(url) as ledger:
        dies = dies and isinstance(ledger, Shared)  # SQLite writes both in one transaction
        with monkeypatch.context() as killed:
            if dies:
                killed.setattr(batch, "_note_overpaid", AsyncMock())
            await ledger.apply(push, FoundAccepted(at=NOW + 2000, transaction_id=6))
        if isinstance(ledger, Shared):
            await ledger.note_overpaid(NOW + 2001)
        assert [change.event for change in await ledger.changes()] == ["FoundAccepted", "Overpaid"]


async def test_two_payments_are_said_before_others_are_archived(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process died before it said so, and the newest changes, among which they are found, are the archive's."""
    url = postgres.url(database)
    async with opened(url) as ledger:
        await brought(ledger, State.REFUSED, "old")
        for name in ("first", "second"):
            record = attrs.evolve(fresh(name), purchase="cart")
            await ledger.permit(record)
            for event in PATHS[State.REFUSED]:
                record = await ledger.apply(record, event)
        with monkeypatch.context() as killed:
            killed.setattr(batch, "_note_overpaid", AsyncMock())
            for number, name in enumerate(("first", "second"), 8):
                found = FoundAccepted(at=BEFORE + 1, transaction_id=number)
                await ledger.apply(await record_in(ledger, name), found)
    assert await archive_ledger(url, BEFORE, tmp_path / "archive") == 1
    async with opened(url) as ledger:
        assert [each.event for each in await ledger.changes()][-1] == "Overpaid"


async def test_a_payment_that_is_archived_as_it_is_written(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its commit and the look at its purchase, which is paid twice: no later operation fails by that."""
    url, look_up = postgres.url(database), PostgresDatabase.look_up

    async def late(self: PostgresDatabase, *keys: Any) -> Any:
        monkeypatch.setattr(PostgresDatabase, "look_up", look_up)
        await archive_ledger(url, BEFORE, tmp_path / "archive")
        return await look_up(self, *keys)

    async with opened(url) as ledger:
        refused = []
        for name in ("first", "second"):
            record = attrs.evolve(fresh(name), purchase="cart")
            await ledger.permit(record)
            refused.append(await ledger.apply(record, PATHS[State.REFUSED][0]))
        await ledger.apply(refused[0], FoundAccepted(at=NOW + 90, transaction_id=8))
        monkeypatch.setattr(PostgresDatabase, "look_up", late)
        await ledger.apply(refused[1], FoundAccepted(at=NOW + 90, transaction_id=9))
        assert (await record_in(ledger, "second")).archived


async def test_an_archive_that_the_database_refuses_says_why(tmp_path: Path) -> None:
    """Another program has put a trigger there: what stays in the ledger is not tried again and again."""
    path = tmp_path / "charges.db"
    async with opened(f"sqlite:{path}") as ledger:
        await brought(ledger, State.ACCEPTED)
    with closing(sqlite3.connect(path)) as program:
        program.execute(
            "CREATE TRIGGER another BEFORE INSERT ON changes BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    archiving = archive_ledger(f"sqlite:{path}", BEFORE, tmp_path / "archive")
    await error_of(LedgerUnavailableError, archiving, match="SQLITE_CONSTRAINT_TRIGGER")


async def test_what_stays(url: str, tmp_path: Path) -> None:
    """What was decided later, what has another attempt that stays, and forms whose links may be handed out."""
    async with opened(url) as ledger:
        late = await brought(ledger, State.PENDING, "late")
        await ledger.apply(late, FoundCancelled(at=BEFORE))
        await brought(ledger, State.REFUSED, "retried")
        await ledger.permit(fresh("retried", attempt=2))
        for name, dead in (("alive", BEFORE), ("kept", NOW), ("dead", NOW)):
            form = attrs.evolve(fresh(name), kind="form", links_dead_at=dead)
            await ledger.permit(form)
            form = await ledger.apply(form, Prepared(at=NOW, expires_at=NOW + 20))
            await ledger.apply(form, FoundCancelled(at=NOW))
            if name == "kept":
                await ledger.keep_links(form, "secret", NOW)
    file = tmp_path / "archive"
    assert await archive_ledger(url, BEFORE, file) == 1
    assert ids_in(file) == ["dead"]
    assert {name for name, record in (await known(url)).items() if record.archived} == {"dead"}


# Crashes


class Killer:
    """Kills this process before a step: a statement, or a sync to the disk."""

    def __init__(self, at: int) -> None:
        self.left = at

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return called


def crashes(url: str, file: Path, at: int) -> bool:
    """Archive in a child that is killed at a step; whether it was."""
    child = os.fork()
    if not child:
        killer = Killer(at)
        databases = (PostgresDatabase, SqliteDatabase)
        steps = [*((each, name) for each in databases for name in ("fetch", "insert")), (os, "fsync")]
        for owner, name in steps:
            setattr(owner, name, killer.before(getattr(owner, name)))
        try:
            asyncio.run(archive_ledger(url, BEFORE, file))
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_kill_at_any_step(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is in the ledger, or in the file; what is left in the ledger is archived to another one."""
    monkeypatch.setattr(archives, "BLOCK", 4)
    names = [f"order-{number}" for number in range(3)]

    async def fill(url: str) -> None:
        async with opened(url) as ledger:
            for name in names:
                await brought(ledger, State.ACCEPTED, name)
            await brought(ledger, State.PENDING, "open")

    for at in range(1, 1000):
        folder = tmp_path / str(at)
        folder.mkdir()
        url, file = asyncio.run(url_of(kind, request, folder)), folder / "archive"
        asyncio.run(fill(url))
        killed = crashes(url, file, at)
        found = asyncio.run(known(url))
        assert list(found) == [*names, "open"]
        gone = {name for name, record in found.items() if record.archived}
        assert gone <= set(ids_in(file) if file.exists() else ())
        assert asyncio.run(archive_ledger(url, BEFORE, folder / "rest")) == 3 - len(gone)
        assert {*gone, *ids_in(folder / "rest")} == set(names)
        found = asyncio.run(known(url))
        assert [record.archived for record in found.values()] == [True] * 3 + [False]
        if not killed:
            break
    assert at > 10


async def test_the_file_is_on_disk_before_it_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, then its content: a power failure finds each attempt in one of the two."""
    url, steps = f"sqlite:{tmp_path / 'charges.db'}", []
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)

    def noted(owner: object, name: str, what: Callable[..., str]) -> None:
        function = getattr(owner, name)

        def called(*arguments: Any) -> Any:
            steps.append(what(*arguments))
            return function(*arguments)

        monkeypatch.setattr(owner, name, called)

    noted(os, "fsync", lambda file: "directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
    noted(SqliteDatabase, "insert", lambda *_: "archived")
    await archive_ledger(url, BEFORE, tmp_path / "archive")
    assert steps == ["directory", "file", "archived"]


async def test_a_cancelled_call(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends soon; what left the ledger is in the file, and the rest is archived to another one."""
    monkeypatch.setattr(archives, "BLOCK", 8)
    async with opened(url) as ledger:
        for number in range(20):
            await brought(ledger, State.CANCELLED, f"order-{number}")
    file, begun = tmp_path / "archive", asyncio.Event()
    loop, fsync, files = asyncio.get_running_loop(), os.fsync, list[int]()

    def synced(written: int) -> None:
        fsync(written)
        if not stat.S_ISDIR(os.fstat(written).st_mode):
            files.append(written)
        if len(files) == 2:
            loop.call_soon_threadsafe(begun.set)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        archiving = asyncio.create_task(archive_ledger(url, BEFORE, file))
        await begun.wait()
        archiving.cancel()
        await error_of(asyncio.CancelledError, archiving)
    gone = {name for name, record in (await known(url)).items() if record.archived}
    assert 0 < len(gone) < 20
    assert gone <= set(ids_in(file))
    assert await archive_ledger(url, BEFORE, tmp_path / "rest") == 20 - len(gone)


async def test_permits_while_the_disk_is_slow(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shop goes on, in this loop and in other processes. What changes meanwhile stays in the ledger."""
    url = postgres.url(database)
    async with opened(url) as ledger:
        for name in ("a", "b", "c"):
            await brought(ledger, State.CANCELLED, name)
        loop, fsync, file = asyncio.get_running_loop(), os.fsync, tmp_path / "archive"

        async def charge() -> None:
            assert await ledger.permit(fresh("order"))
            await ledger.apply(await record_in(ledger, "b"), FoundAccepted(at=NOW + 9, transaction_id=7))

        def slow(written: int) -> None:
            if not stat.S_ISDIR(os.fstat(written).st_mode):
                asyncio.run_coroutine_threadsafe(charge(), loop).result(5)
            fsync(written)

        monkeypatch.setattr(os, "fsync", slow)
        assert await asyncio.wait_for(archive_ledger(url, BEFORE, file), 10) == 2
    assert ids_in(file) == ["a", "b", "c"]
    gone = {name for name, record in (await known(url)).items() if record.archived}
    assert gone == {"a", "c"}


@pytest.mark.parametrize("fault", ["full", "cut", "changed"])
async def test_a_disk_that_fails(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Nothing is deleted that is not on the disk as it was written."""
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    before, file = await known(url), tmp_path / "archive"
    # Instead of the sync: the disk loses what it took.
    faults: dict[str, Any] = {
        "full": OSError("full"),
        "cut": lambda _: os.truncate(file, 5),
        "changed": lambda _: file.write_bytes(b" " * file.stat().st_size),
    }
    lose = Mock(side_effect=faults[fault])
    with monkeypatch.context() as patched:
        patched.setattr(archives, "_sync", Mock())
        patched.setattr(os, "fsync", lose)
        await error_of(LedgerUnavailableError, archive_ledger(url, BEFORE, file))
    assert await known(url) == before


async def test_a_full_disk_cuts_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the file is one attempt that left the ledger."""
    monkeypatch.setattr(archives, "BLOCK", 8)
    url, file = f"sqlite:{tmp_path / 'charges.db'}", tmp_path / "archive"
    async with opened(url) as ledger:
        for number in range(20):
            await brought(ledger, State.CANCELLED, f"order-{number}")
    fsync, blocks = os.fsync, list[int]()

    def filled(written: int) -> None:
        if not stat.S_ISDIR(os.fstat(written).st_mode):
            blocks.append(written)
        if len(blocks) == 2:  # it took a part of the second
            os.truncate(file, file.stat().st_size - 20)
            raise OSError(errno.ENOSPC, "full")
        fsync(written)

    monkeypatch.setattr(os, "fsync", filled)
    await error_of(LedgerUnavailableError, archive_ledger(url, BEFORE, file))
    assert file.read_bytes().endswith(b"}\n")
    gone = {name for name, record in (await known(url)).items() if record.archived}
    assert gone == set(ids_in(file))


async def test_what_cannot_be_archived(tmp_path: Path) -> None:
    file, url = tmp_path / "archive", f"sqlite:{tmp_path / 'charges.db'}"
    await error_of(LedgerMissingError, archive_ledger(url, BEFORE, file))
    with pytest.raises(ConfigurationError, match="sqlite:PATH or postgresql:"):
        await archive_ledger("memory:", BEFORE, file)
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
        await error_of(LedgerInUseError, archive_ledger(url, BEFORE, file))
    for when in (4e9, float("nan")):
        await error_of(ConfigurationError, archive_ledger(url, when, file), match="future")
    await error_of(LedgerUnavailableError, archive_ledger(url, BEFORE, tmp_path / "nowhere" / "archive"))
    file.write_text("precious")
    await error_of(ConfigurationError, archive_ledger(url, BEFORE, file), match="must be a new file")
    assert file.read_text() == "precious"
    file.unlink()
    assert await archive_ledger(url, BEFORE, file) == 1


async def test_permits_beside_an_archive(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """While the ledger is in use no archived id is permitted again, and no correction is lost."""
    url = postgres.url(database)
    names = [f"order-{number:03}" for number in range(300)]
    async with opened(url) as ledger, opened(url) as other:
        records = await asyncio.gather(*(brought(ledger, State.CANCELLED, name) for name in names))
        archiving = asyncio.create_task(archive_ledger(url, BEFORE, tmp_path / "archive"))
        granted, corrected = 0, set()
        while not archiving.done():
            granted += sum(await asyncio.gather(*(ledger.permit(fresh(name)) for name in names)))
            for record in records[::50]:
                try:
                    await other.apply(record, FoundAccepted(at=NOW + 9, transaction_id=7))
                except TransitionError:
                    continue
                corrected.add(record.client_transaction_id)
        assert granted == 0
        await archiving
        for record in records:
            found = await record_in(ledger, record.client_transaction_id)
            assert found.state is (
                State.ACCEPTED if found.client_transaction_id in corrected else State.CANCELLED
            )
            assert found.archived or found.client_transaction_id in corrected


async def test_two_archives_at_once(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one moves while the other reads is in the file of the one: the other wrote it without its changes."""
    url, fetch = postgres.url(database), PostgresDatabase.fetch

    async def interleaved(database: PostgresDatabase, name: str, parameters: tuple[Any, ...]) -> Any:
        if name == "archivable_changes" and not (tmp_path / "one").exists():
            assert await archive_ledger(url, BEFORE, tmp_path / "one") == 1
        return await fetch(database, name, parameters)

    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    monkeypatch.setattr(PostgresDatabase, "fetch", interleaved)
    assert await archive_ledger(url, BEFORE, tmp_path / "other") == 0
    assert [ids_in(tmp_path / each) for each in ("one", "other")] == [["order-1"], []]


async def test_an_archive_of_what_another_has_moved_goes_on(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the block and written it to their files: each attempt is moved once, and neither fails.

    One that was decided since is in neither file, and stays.
    """
    url, insert = postgres.url(database), PostgresDatabase.insert
    found = FoundAccepted(at=NOW + 500, transaction_id=7)

    async def interleaved(book: PostgresDatabase, permits: list[Any], changes: list[Any]) -> Any:
        if not (tmp_path / "one").exists():
            assert await archive_ledger(url, NOW + 100, tmp_path / "one") == 2
            async with opened(url) as ledger:
                await ledger.apply(await record_in(ledger, "order-4"), found)
        return await insert(book, permits, changes)

    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED, "order-1")
        await brought(ledger, State.REFUSED, "order-2")
        await brought(ledger, State.PENDING, "order-4")
        await ledger.apply(await brought(ledger, State.PENDING, "order-3"), found)
    monkeypatch.setattr(PostgresDatabase, "insert", interleaved)
    assert await archive_ledger(url, BEFORE, tmp_path / "other") == 1
    files = [ids_in(tmp_path / each) for each in ("one", "other")]
    assert files == [["order-1", "order-2"], ["order-1", "order-2", "order-3"]]
    assert [each for each, record in (await known(url)).items() if not record.archived] == ["order-4"]


async def test_what_is_corrected_while_a_block_is_read_stays(
    postgres: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was decided just now no reader of the feed can have heard."""
    url, fetch = postgres.url(database), PostgresDatabase.fetch
    async with opened(url) as ledger:
        cancelled = await brought(ledger, State.CANCELLED)
        last = (await ledger.changes())[-1].cursor
        reads = list[str]()

        async def interleaved(database: PostgresDatabase, name: str, parameters: tuple[Any, ...]) -> Any:
            reads.append(name)
            if name.startswith("archivable") and sum(each.startswith("archivable") for each in reads) == 2:
                await ledger.apply(cancelled, FoundAccepted(at=BEFORE, transaction_id=7))
            return await fetch(database, name, parameters)

        with monkeypatch.context() as patched:
            patched.setattr(PostgresDatabase, "fetch", interleaved)
            assert await archive_ledger(url, BEFORE, tmp_path / "archive") == 0
        assert [change.event for change in await ledger.changes(last)] == ["FoundAccepted"]


async def test_a_late_answer_about_what_was_archived_is_said_once(
    postgres: PostgresServer, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A person called it unpaid while its sender was cut off: the ledger takes nothing more, and nobody tries again."""
    service, held = FakeService(), Held()
    url, at = postgres.url(database), service.clock.time()
    service.scripts = [held]
    async with opened(url) as ledger, opened(url) as other, tracking(service, ledger) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await held.there.wait()
        lost = await other.apply(await record_in(other), Lost(at=at, expires_at=at + 300))
        await other.apply(lost, DecidedRefused(at=at, actor="Ana", reason="not in the portal"))
        assert await archive_ledger(url, at + 1, tmp_path / "archive") == 1
        held.go.set()
        assert (await sending).state is State.REFUSED
        await service.clock.advance(60)
        # Its query, if it was answered by now, says that the customer may approve it.
        words = "order-17: called unpaid, and yet created as transaction 1000"
        assert alarms(caplog).count(words) == 1
        assert (await tracker.health()).unwritten == 0


async def test_asks_are_numbered_on(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """Of two asks at once, one of which saw the purchase before the archive and one after it, one is refused."""
    url = postgres.url(database)
    async with opened(url) as ledger:
        await brought(ledger, State.CANCELLED, "cart")
        await archive_ledger(url, BEFORE, tmp_path / "archive")
        assert await ledger.permit(attrs.evolve(fresh("again"), purchase="cart"))
    assert await postgres.execute(database, "SELECT ask FROM payclient.attempts ORDER BY id") == [(1,), (2,)]


async def test_no_change_has_the_number_of_one_that_left(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever block had the last one: a feed goes on from there and misses nothing."""
    monkeypatch.setattr(archives, "BLOCK", 1)
    async with opened(url) as ledger:
        await ledger.permit(fresh("order-1"))
        await brought(ledger, State.REFUSED, "order-2")
        for event in PATHS[State.CANCELLED]:
            await ledger.apply(fresh("order-1"), event)
        last = (await ledger.changes())[-1].cursor
    assert await archive_ledger(url, BEFORE, tmp_path / "archive") == 2
    assert ids_in(tmp_path / "archive") == ["order-1", "order-2"]
    async with opened(url) as ledger:
        assert await ledger.changes() == []
        await brought(ledger, State.REFUSED, "order-3")
        assert [each.client_transaction_id for each in await ledger.changes(last)] == ["order-3"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the day, of which only the beginning counts; what it did is said, later by `ledger show`, too."""
    ledger, file = f"sqlite:{tmp_path / 'charges.db'}", tmp_path / "archive.jsonl"

    async def fill() -> None:
        async with opened(ledger) as book:
            await brought(book, State.ACCEPTED)

    def run(day: str, file: object, *where: str) -> int:
        return main(["ledger", "archive", "--before", day, "--to", str(file), *where])

    asyncio.run(fill())
    for day, count in (("2023-11-14", "0 attempts"), ("2023-11-15", "1 attempt")):
        assert run(day, f"{file}-{day}", "--ledger", ledger) == 0
        assert count in capsys.readouterr().err
    assert run("2023-11-14", file) == 2
    assert run("2023-11-14", f"{file}-2023-11-15", "--ledger", ledger) == 2
    assert main(["ledger", "show", "order-1", "--ledger", ledger]) == 0
    assert "Its other changes were moved to a file." in " ".join(capsys.readouterr().out.split())
