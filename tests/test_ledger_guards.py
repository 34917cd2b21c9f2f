"""What both databases refuse by themselves, to whoever writes to them: illegal moves, second permits, a new past."""

# ruff: noqa: S608 - our own names and words

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import attrs
import pytest

from payclient.ledger import Change, Ledger, archive_ledger, open_ledger
from payclient.ledger.records import read_statements
from payclient.lifecycle import TRANSITIONS, Record, State
from test_ledger import NOW, PATHS, brought, took
from test_ledger import url as url  # the fixture

LEGAL = {(before, target or before) for before, table in TRANSITIONS.items() for target in table.values()}

#: What a database raises that refuses a row.
Refused = (sqlite3.IntegrityError, asyncpg.RaiseError, asyncpg.IntegrityConstraintViolationError)


class Shell:
    """A ledger, and somebody with the database's own shell beside it."""

    def __init__(self, ledger: Ledger, url: str, shared: asyncpg.Connection | None) -> None:
        self.ledger = ledger
        self.kind = "sqlite" if shared is None else "postgres"
        self._url = url
        self._shared = shared

    async def archive(self, path: Path) -> None:
        """Archive what is decided, as the ledger's owner does."""
        await self.ledger.aclose()
        await archive_ledger(self._url, NOW + 1000, path / "archive")
        self.ledger = await open_ledger(self._url)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute it and commit."""
        if self._shared is not None:
            return [tuple(row) for row in await self._shared.fetch(sql)]
        with closing(sqlite3.connect(self._url.removeprefix("sqlite:"))) as connection, connection:
            return connection.execute(sql).fetchall()

    async def tables(self) -> list[list[tuple[Any, ...]]]:
        """All that is kept of attempts."""
        return [
            await self.run(f"SELECT * FROM {table}") for table in ("attempts", "changes", "open_attempts")
        ]

    async def is_refused(self, sql: str) -> bool:
        """Whether it is; then nothing has changed."""
        before = await self.tables()
        try:
            await self.run(sql)
        except Refused:
            assert await self.tables() == before
            return True
        return False

    async def add_change(self, to: str, name: str = "order-1", **given: str) -> bool:
        """Add the next change of an id by hand, but for what is given; whether it was taken."""
        decided = "9.0" if to in ("accepted", "cancelled", "refused", "reversed") else "NULL"
        columns = {
            "cursor": "100000", "attempt_id": "id", "version": "version + 1", "at": "9.0", "event": "'Made'",
            "evidence": "'operator'", "before": "state", "after": f"'{to}'", "state_evidence": "'operator'",
            "decided_at": decided,
        } | given  # fmt: skip
        verb = columns.pop("verb", "INSERT")
        return not await self.is_refused(
            f"{verb} INTO changes ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM records "
            f"WHERE client_transaction_id = '{name}'"
        )

    async def add_attempt(self, attempt: int, **given: str) -> bool:
        """Add an attempt by hand as a copy of the first; whether it was taken."""
        names = [
            "client_transaction_id", "kind", "digest", "lane", "credentials", "amount", "currency",
            "created_at", "purchase", "beside_open_form",
        ]  # fmt: skip
        columns = {"id": "100000", "attempt": str(attempt), **{name: name for name in names}}
        columns |= {"owner": "owner", "ask": "100000"} if self.kind == "postgres" else {}
        columns |= given
        verb = columns.pop("verb", "INSERT")
        return not await self.is_refused(
            f"{verb} INTO attempts ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM attempts "
            "WHERE id = (SELECT min(id) FROM attempts)"
        )

    async def add_archived(self, to: str, name: str, **given: str) -> bool:
        """Archive an id by hand, as it is but for what is given; whether that was taken."""
        facts = ("transaction_id", "expires_at", "notified_at", "decided_at", "error_code", "error_type")
        as_it_is = {each: each for each in facts} | {"event": "'Archived'", "state_evidence": "evidence"}
        return await self.add_change(to, name, **as_it_is | given)


@pytest.fixture
async def shell(url: str) -> AsyncIterator[Shell]:
    shared = None
    if url.startswith("postgresql"):
        settings = {"search_path": "payclient"}
        shared = await asyncpg.connect(url, statement_cache_size=0, server_settings=settings)
    shell = Shell(await open_ledger(url), url, shared)
    yield shell
    await shell.ledger.aclose()
    if shared is not None:
        await shared.close()


@pytest.mark.parametrize(
    ("file", "digest"), [("sqlite.sql", "3db18d36da04d13f"), ("postgres.sql", "2979868c503d409d")]
)
def test_the_schema_has_a_version(file: str, digest: str) -> None:
    """Change the digest with the tables or `TRANSITIONS`, and once version 1 is released raise `VERSION` too."""
    assert hashlib.sha256(read_statements(file)["schema"].encode()).hexdigest()[:16] == digest


async def test_no_personal_data(shell: Shell) -> None:
    """Nothing is kept but what a record and a change hold, and which process was granted the permit."""
    known = {field.name for each in (Record, Change) for field in attrs.fields(each)}
    for table in ("attempts", "changes"):
        sql = f"SELECT name FROM pragma_table_info('{table}')"
        if shell.kind == "postgres":
            sql = f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
            known |= {"owner", "ask"}
        assert {name for (name,) in await shell.run(sql)} - known <= {"id", "attempt_id", "state_evidence"}


async def test_moves(shell: Shell) -> None:
    """The database takes a move exactly where the lifecycle has one, and only as the next change."""
    pairs = list(product(State, State))
    for before, after in pairs:
        await brought(shell.ledger, before, f"{before}-{after}")
    for number, (before, after) in enumerate(pairs):
        taken = await shell.add_change(after, f"{before}-{after}", cursor=str(100000 + number))
        assert taken is ((before, after) in LEGAL), (before, after)
        record = await shell.ledger.get(f"{before}-{after}")
        assert record is not None
        assert record.state is (after if taken else before)


async def test_a_change_is_the_next_one(shell: Shell) -> None:
    """No other comes in, nor does it take another's place, which PostgreSQL has no statement for."""
    await brought(shell.ledger, State.PENDING)
    for verb in ("INSERT", "REPLACE") if shell.kind == "sqlite" else ("INSERT",):
        for name, value in (
            ("after", "'paid'"),
            ("before", "'unknown'"),
            ("version", "version"),  # the newest change once more
            ("version", "version + 2"),
            ("cursor", "id"),
            ("cursor", "(SELECT max(cursor) FROM changes)"),
            ("decided_at", "NULL"),
            ("attempt_id", "50000"),
            ("attempt_id", "100001"),
            ("attempt_id", "NULL"),
        ):
            assert not await shell.add_change("accepted", verb=verb, **{name: value}), (verb, name, value)
    assert not await shell.add_change("unknown", before="'sending'", version="version + 2")


async def test_what_is_written_stays(shell: Shell, tmp_path: Path) -> None:
    """No statement can alter what an attempt is or was, or its history."""
    await brought(shell.ledger, State.PENDING)
    await brought(shell.ledger, State.ACCEPTED, "archived")
    await shell.archive(tmp_path)
    assert [len(rows) for rows in await shell.tables()] == [2, 2, 1]  # each attempt has one change
    for sql in (
        "UPDATE attempts SET client_transaction_id = 'other'", "UPDATE attempts SET amount = 1",
        "DELETE FROM attempts", "UPDATE changes SET after = 'accepted'",
        "UPDATE changes SET transaction_id = 8", "DELETE FROM changes WHERE event = 'Created'",
        "DELETE FROM changes WHERE event = 'Archived'",
        *(f"TRUNCATE {table}" for table in ("attempts", "changes") if shell.kind == "postgres"),
    ):  # fmt: skip
        assert await shell.is_refused(sql), sql


async def test_nothing_follows_what_was_archived(shell: Shell, tmp_path: Path) -> None:
    """Nor does a change take the number of one that left."""
    await brought(shell.ledger, State.CANCELLED)
    await shell.archive(tmp_path)
    assert not await shell.add_change("accepted")
    assert not await shell.add_archived("cancelled", "order-1")
    for version, before, after in (("1", "sending", "pending"), ("2", "pending", "cancelled")):
        assert not await shell.add_change(after, before=f"'{before}'", version=version)


@pytest.mark.parametrize(
    ("name", "to", "given"),
    [("open", "pending", {}), ("open", "accepted", {}), ("paid", "reversed", {}),
     ("paid", "accepted", {"transaction_id": "8"}), ("paid", "accepted", {"decided_at": "1.0"}),
     ("paid", "accepted", {"state_evidence": "'operator'"})],
)  # fmt: skip
async def test_only_what_is_decided_is_archived_by_hand(
    shell: Shell, name: str, to: str, given: dict[str, str]
) -> None:
    """As it is; then its other changes leave."""
    await brought(shell.ledger, State.PENDING, "open")
    await brought(shell.ledger, State.ACCEPTED, "paid")
    assert not await shell.add_archived(to, name, **given)
    assert await shell.add_archived("accepted", "paid")
    assert [change.event for change in await shell.ledger.history("paid")] == ["Permitted", "Archived"]


async def test_no_form_with_links_is_archived_by_hand(shell: Shell) -> None:
    """Its links may be handed out."""
    await shell.ledger.keep_links(await brought(shell.ledger, State.CANCELLED), "{}", NOW + 1000)
    assert not await shell.add_archived("cancelled", "order-1")
    await shell.ledger.drop_links(NOW + 1000)
    assert await shell.add_archived("cancelled", "order-1")


async def test_no_archived_permit_is_written_by_hand(shell: Shell, tmp_path: Path) -> None:
    """Of an id whose two attempts were refused and archived only the third may follow."""
    for number in (1, 2):
        await took(shell.ledger, "retried", *PATHS[State.REFUSED], attempt=number)
    await brought(shell.ledger, State.PENDING, "template")
    await shell.archive(tmp_path)
    own = {"client_transaction_id": "'retried'", "purchase": "'retried'"}
    for number in (1, 2, 3):
        assert await shell.add_attempt(number, **own) is (number == 3)


@pytest.mark.parametrize(
    ("state", "attempt", "granted"),
    [
        (State.PENDING, 1, False), (State.PENDING, 2, False), (State.ACCEPTED, 1, False),
        (State.ACCEPTED, 2, False), (State.REFUSED, 1, False), (State.REFUSED, 3, False),
        (State.REFUSED, 0, False), (State.REFUSED, 2, True),
    ],
)  # fmt: skip
async def test_permits(shell: Shell, state: State, attempt: int, granted: bool) -> None:
    await brought(shell.ledger, state)
    if shell.kind == "sqlite":
        assert not await shell.add_attempt(1, verb="REPLACE")
        assert not await shell.add_attempt(1, verb="REPLACE", id="id", client_transaction_id="'other'")
    assert await shell.add_attempt(attempt) is granted


async def test_the_key_alone_refuses_a_second_permit(shell: Shell) -> None:
    await brought(shell.ledger, State.PENDING)
    if shell.kind == "sqlite":
        await shell.run("DROP TRIGGER guard_permit")
    assert not await shell.add_attempt(1)
