"""What only the PostgreSQL ledger has: other processes, a wire that breaks, a server that ends, settings that lie."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import AsyncMock, Mock

import asyncpg
import attrs
import pytest
from asyncpg.transaction import Transaction

from cutting_proxy import PostgresProxy
from fake_service import FakeService, error_of, posted, record_in, refuses, sale, tracking, unlisted
from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    LedgerUnavailableError,
    PayError,
    TransitionError,
)
from payclient.events import (
    Exhausted,
    FoundAccepted,
    FoundCancelled,
    Lost,
    Notified,
    NotSent,
    Prepared,
    Returned,
)
from payclient.ledger import Ledger, PurchaseHeldError, Shared, archive_ledger, open_ledger
from payclient.ledger import postgres as postgres_ledger
from payclient.ledger import postgres_connection as connecting
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.postgres import PostgresDatabase, PostgresLedger
from payclient.ledger.postgres_connection import Server
from payclient.ledger.records import change_row, permit_row, read_statements
from payclient.lifecycle import Record, State, advance
from payclient.secret import Secret
from payclient.tracking.context import open_tracker
from postgres_server import PostgresServer
from test_ledger import NOW, brought, fresh, until

T = TypeVar("T")


@asynccontextmanager
async def opened(url: str, **options: float) -> AsyncIterator[PostgresLedger]:
    ledger = await PostgresLedger.open(Secret(url), **options)  # type: ignore[arg-type]  # of the tests' own
    try:
        yield ledger
    finally:
        await ledger.aclose()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database)


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[PostgresLedger]:
    async with opened(url) as ledger:
        yield ledger


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> list[PostgresDatabase]:
    """The connections of every ledger that is opened from here on."""
    made: list[PostgresDatabase] = []

    class Kept(PostgresDatabase):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(postgres_ledger, "PostgresDatabase", Kept)
    return made


# The schema


async def test_the_first_processes_make_it_together(postgres: PostgresServer, new_database: str) -> None:
    """Also in an empty schema that somebody made for us, whose owner may be all that the database's user may be."""
    await postgres.execute(new_database, "CREATE SCHEMA payclient")
    ledgers = await asyncio.gather(*(open_ledger(postgres.url(new_database)) for _ in range(6)))
    assert len({ledger.digest_key for ledger in ledgers}) == 1
    assert sum(ledger.created for ledger in ledgers) == 1
    assert await ledgers[0].permit(fresh())
    for ledger in ledgers:
        await ledger.aclose()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE payclient.meta SET schema_version = 2", "must have schema version 1, and has version 2"),
        ("DROP TABLE payclient.meta", "another program"), ("DELETE FROM payclient.meta", "another program"),
        ("ALTER TABLE payclient.meta DROP digest_key", "another program"),
        ("ALTER TABLE payclient.changes DISABLE TRIGGER guard_change", "lacks"),
        ("DROP INDEX payclient.open_attempts_due", "lacks"), ("DROP FUNCTION payclient.write", "lacks"),
        # As another release makes it, whose rules may grant a permit that this one's do not.
        ("CREATE OR REPLACE FUNCTION payclient.check_permit() RETURNS trigger LANGUAGE plpgsql AS "
         "$$BEGIN RETURN new; END$$", "it: check_permit; another release"),
        # As after a restore that went on over an error: two processes at once would be granted one permit each.
        ("ALTER TABLE payclient.attempts DROP CONSTRAINT attempts_client_transaction_id_attempt_key", "makes it: att"),
        ("ALTER TABLE payclient.attempts DROP CONSTRAINT attempts_purchase_ask_key", "it: attempts_purchase_ask_key"),
        ("ALTER TABLE payclient.changes DROP CONSTRAINT changes_attempt_id_version_key", "it: changes_a"),
        # A crash of the server would empty it; a process would give numbers that readers of the feed have passed.
        ("ALTER TABLE payclient.attempts SET UNLOGGED", "makes it: attempts,"),
        ("ALTER SEQUENCE payclient.cursors CACHE 100", "it: cursors;"),
        # Left behind by a program that copied rows without guards.
        ("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || "
         "' SET session_replication_role = replica'; END $$", "it: close_decided, drop_archived, guard_change"),
        # Rows were restored into a ledger that `init` had made: which key counts would change with each write.
        ("INSERT INTO payclient.meta SELECT 1, 'another key'", "two digest keys"),
        ("SELECT setval('payclient.cursors', 1, false)", "behind"), ("SELECT setval('payclient.cursors', 1)", "behind"),
    ],
)  # fmt: skip
async def test_what_is_no_ledger(
    postgres: PostgresServer, new_database: str, damage: str, words: str
) -> None:
    url = postgres.url(new_database)
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    await postgres.execute(new_database, damage)
    await error_of(ConfigurationError, open_ledger(url), match=words)


async def test_a_schema_that_was_renamed(postgres: PostgresServer, new_database: str) -> None:
    """Its functions go by the old name: beside a new ledger of that name, what it has paid was charged again."""
    url = postgres.url(new_database)
    async with opened(f"{url}?schema=shop-1") as ledger:
        await brought(ledger, State.ACCEPTED)
    await postgres.execute(new_database, 'ALTER SCHEMA "shop-1" RENAME TO "shop-2"')
    async with opened(f"{url}?schema=shop-1") as ledger:
        assert await ledger.get("order-1") is None
    await error_of(ConfigurationError, open_ledger(f"{url}?schema=shop-2"), match="it: asks, check_change")


async def test_a_dump_that_went_through_windows(postgres: PostgresServer, new_database: str) -> None:
    """Its functions have other line ends, and the same rules: it is opened as before."""
    url = postgres.url(new_database)
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
    made = "SELECT pg_get_functiondef(oid) AS sql FROM pg_proc WHERE pronamespace = 'payclient'::regnamespace"
    for row in await postgres.execute(new_database, made):
        await postgres.execute(new_database, row["sql"].replace("\n", "\r\n"))
    async with opened(url) as ledger:
        assert not await ledger.permit(fresh())


async def test_a_sequence_that_was_set_right(postgres: PostgresServer, new_database: str) -> None:
    """As `setval(max + 1, false)` or RESTART sets it: the next number is a new one, though none was given since."""
    url = postgres.url(new_database)
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
        last = (await ledger.changes())[-1].cursor
    await postgres.execute(new_database, f"SELECT setval('payclient.cursors', {last + 1}, false)")
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED, "order-18")
        assert (await ledger.changes())[-1].cursor > last


async def test_the_keys_outlive_an_upgrade_of_the_system(postgres: PostgresServer, new_database: str) -> None:
    """Another C library, as another image brings it, sorts otherwise: an index by words finds nothing."""
    async with opened(postgres.url(new_database)):
        collations = """SELECT DISTINCT collname FROM pg_attribute JOIN pg_index ON indexrelid = attrelid
            JOIN pg_class AS c ON c.oid = indrelid JOIN pg_collation AS s ON s.oid = attcollation
            WHERE relnamespace = 'payclient'::regnamespace"""
        assert await postgres.execute(new_database, collations) == [("C",)]


# The server


@asynccontextmanager
async def configured(postgres: PostgresServer, setting: str, value: str) -> AsyncIterator[None]:
    """The whole server, until this ends."""

    async def set_to(sql: str, wanted: str) -> None:
        await postgres.execute("postgres", sql)
        await postgres.execute("postgres", "SELECT pg_reload_conf()")

        async def read() -> bool:
            return bool((await postgres.execute("postgres", f"SHOW {setting}"))[0][0] == wanted)

        await until(read)

    before = (await postgres.execute("postgres", f"SHOW {setting}"))[0][0]
    await set_to(f"ALTER SYSTEM SET {setting} = '{value}'", value)
    try:
        yield
    finally:
        await set_to(f"ALTER SYSTEM RESET {setting}", before)


#: What the statement `settings` reads of a server that is a safe place for a ledger, but for its time.
SAFE = {
    "synchronous_commit": "on", "synchronous_standby_names": "", "fsync": "on", "full_page_writes": "on",
    "default_transaction_read_only": "off", "default_transaction_isolation": "read committed",
    "server_encoding": "UTF8", "client_min_messages": "notice", "in_recovery": False, "server_version_num": 150000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("unsafe", "ahead", "words"),
    [
        ({"synchronous_commit": "off"}, 0, "synchronous_commit is off"),
        ({"synchronous_commit": "local", "synchronous_standby_names": "nobody"}, 0, "standbys"),
        ({"fsync": "off"}, 0, "fsync is off"),
        ({"full_page_writes": "off"}, 0, "full_page_writes is off"),
        ({"default_transaction_read_only": "on"}, 0, "read_only"),
        ({"default_transaction_isolation": "serializable"}, 0, "isolation"),
        ({"server_encoding": "SQL_ASCII"}, 0, "encoding"),
        ({"client_min_messages": "error", "synchronous_standby_names": "nobody"}, 0, "could not warn"),
        ({"client_min_messages": "error"}, 0, "another program"),  # there is no standby to be warned of
        ({"in_recovery": True}, 0, "standby"),
        ({"server_version_num": 130011}, 0, "PostgreSQL is 13"),
        # A host whose clock is off would take another's living form for dead, and collect the purchase again.
        ({}, 40, "40 s ahead of"),
        ({}, -40, "40 s behind"),
        ({}, 20, "another program"),
        ({"synchronous_commit": "local"}, -20, "another program"),  # alone it does not matter
    ],
)
async def test_unsafe_servers(unsafe: dict[str, object], ahead: int, words: str) -> None:
    """What would lose commits, or change what they mean, is refused in words before anything else is looked at."""
    settings = (*(SAFE | unsafe).values(), time.time() - ahead)
    somebody_elses_schema = (True, False, True)
    connection = AsyncMock()
    connection.fetchrow.side_effect = [settings, somebody_elses_schema]
    with pytest.raises(ConfigurationError, match=words):
        await Server(Secret("postgresql://host/shop")).check(connection, create=False)


async def test_settings_are_read(postgres: PostgresServer, new_database: str) -> None:
    """Each by its name, and nothing is made in a server that is not safe."""
    for setting in (
        "synchronous_commit = local", "default_transaction_read_only = on",
        "default_transaction_isolation = 'repeatable read'", "client_min_messages = error",
    ):  # fmt: skip
        await postgres.execute("postgres", f"ALTER DATABASE {new_database} SET {setting}")
    async with configured(postgres, "full_page_writes", "off"):
        settings = Server(Secret(postgres.url(new_database))).statements["settings"]
        ((*found, now),) = await postgres.execute(new_database, settings)
        shown = {name: (await postgres.execute(new_database, f"SHOW {name}"))[0][0] for name in [*SAFE][:8]}
        assert found == [*shown.values(), False, int(found[-1])]
        assert {*shown.values()} == {"local", "", "on", "off", "repeatable read", "UTF8", "error"}
        assert now == pytest.approx(time.time(), abs=5)
        await error_of(ConfigurationError, open_ledger(postgres.url(new_database)), match="read_only")
    assert not await postgres.execute(new_database, "SELECT FROM pg_namespace WHERE nspname = 'payclient'")


async def test_a_database_that_publishes_all_of_its_tables(
    postgres: PostgresServer, new_database: str
) -> None:
    """For a program that captures changes: the server takes no update of a row that such a program could not tell."""
    await postgres.execute(new_database, "CREATE PUBLICATION changes FOR ALL TABLES")
    async with aclosing(await PostgresLedger.open(Secret(postgres.url(new_database)))) as ledger:
        assert await ledger.service_fingerprint(b"e") == b"e"
        assert await ledger.reserve(1.0) == 0.0
        await brought(ledger, State.ACCEPTED)
        assert await ledger.renew(1.0) == 0


async def test_a_setting_that_is_changed_while_it_is_open(
    postgres: PostgresServer, ledger: PostgresLedger
) -> None:
    """What a power failure could lose is not written, until the setting is safe again."""
    record = await brought(ledger, State.PENDING)
    unsent = await brought(ledger, State.SENDING, "order-3")
    async with configured(postgres, "synchronous_commit", "off"):
        await error_of(LedgerUnavailableError, ledger.permit(fresh("order-2")))
        await error_of(LedgerUnavailableError, ledger.apply(record, FoundAccepted(at=NOW)))
        await error_of(LedgerUnavailableError, ledger.apply(unsent, NotSent(at=NOW)))
        known = {"order-1": record, "order-3": unsent}
        assert await ledger.get_many(["order-1", "order-2", "order-3"]) == known
    assert await ledger.permit(fresh("order-2"))


async def test_no_repr_shows_a_password(url: str) -> None:
    async with opened(url.replace("payclient@", "payclient:s3cret-word@")) as ledger:
        assert "s3cret-word" not in f"{ledger!r}{ledger.location}"


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("postgresql://@PORT/nowhere", ConfigurationError), ("postgresql://@PORT/postgres", ConfigurationError),
        ("postgresql://@1/postgres", LedgerUnavailableError), ("postgresql://@no/postgres", ConfigurationError),
        ("postgresql://@PORT/postgres?sslmode=odd", ConfigurationError),
        ("postgresql://@PORT/postgres?odd=1", ConfigurationError), ("postgres://@PORT/postgres", ConfigurationError),
    ],
)  # fmt: skip
async def test_a_password_goes_nowhere(postgres: PostgresServer, address: str, kind: type[PayError]) -> None:
    """Not into an error, nor what an error tracker reads of its frames; the tracker's frame is one of them."""
    url = address.replace("@", "ana:s3cret-word@127.0.0.1:").replace("PORT", str(postgres.port))
    opening = open_tracker("https://pay.example", "token", ledger=url)
    caught = await error_of(kind, opening.__aenter__())
    error: BaseException | None = caught
    assert caught.__cause__ is None
    while error is not None:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        ours = [frame for frame in shown.stack if os.sep + "payclient" + os.sep in frame.filename]
        assert "s3cret-word" not in "".join(
            [*map(repr, (str(error), error)), *(str(frame.locals) for frame in ours)]
        )
        error = error.__context__


@pytest.mark.parametrize(
    "option",
    ["connect_timeout=5", "timezone=odd", "fsync=on", "channel_binding=require", "sslmode=verify-full"],
)
async def test_an_option_of_another_program(monkeypatch: pytest.MonkeyPatch, url: str, option: str) -> None:
    """As hosts of databases give it for psycopg: no outage, and named as what it is."""
    monkeypatch.setenv("HOME", os.devnull)  # where libpq and asyncpg look for root.crt
    await error_of(ConfigurationError, open_ledger(f"{url}?{option}"), match="an option behind the [?] of")


# Several processes that write

#: A payment of a pending attempt, written by somebody with psql.
PAY = """
    INSERT INTO payclient.changes (attempt_id, version, at, event, evidence, before, after, state_evidence, decided_at)
    SELECT id, version + 1, 9.0, 'Made', 'operator', state, 'accepted', 'operator', 9.0
    FROM payclient.records WHERE client_transaction_id = $1"""


@asynccontextmanager
async def person(url: str) -> AsyncIterator[tuple[asyncpg.Connection, Transaction]]:
    """Somebody with psql in the midst of a transaction, which ends with the test, however that ends."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction
    finally:
        await connection.close()


async def test_the_feed_waits_for_who_may_come_before(
    url: str, ledger: PostgresLedger, postgres: PostgresServer, database: str
) -> None:
    """What is not committed yet holds back what has a higher number, up to where the reader began, and no writer."""
    records = {name: await brought(ledger, State.PENDING, name) for name in "abcde"}

    async def told(since: int = 0) -> str:
        return "".join(each.client_transaction_id for each in await ledger.changes(since))

    waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = 'payclient'"
    async with opened(url) as other:
        async with person(url) as (first, earlier), person(url) as (second, later):
            await first.execute(PAY, "a")
            await other.apply(records["b"], FoundAccepted(at=NOW))
            reading = asyncio.ensure_future(told())
            await until(lambda: postgres.execute(database, waits))
            await second.execute(PAY, "c")
            await other.apply(records["d"], FoundAccepted(at=NOW))
            assert await other.permit(fresh("f"))
            assert not reading.done()
            await earlier.commit()
            assert await reading == "ab"
            await later.commit()
        assert await told() == "abcd"
        last = (await ledger.changes())[-1].cursor
        # Holds nobody for ever: the feed cannot be read, and goes on later.
        async with person(url) as (stuck, _):
            await stuck.execute(PAY, "e")
            await brought(other, State.ACCEPTED, "g")
            await error_of(LedgerUnavailableError, told(last))
        assert await told(last) == "g"


async def test_a_process_that_begins_beside_a_writer_that_is_stuck_looks_back_later(
    url: str, ledger: PostgresLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """What was refused as existing, by a process that is gone, is queried all the same: it is paid."""
    service = FakeService()
    service.scripts, service.instead = [posted(1, refuses(22, 2061))], unlisted
    async with tracking(service, ledger) as tracker:
        await error_of(CustomerBusyError, tracker.sale(sale()))
    service.decide("Aceptado")
    service.instead = lambda _: None
    async with opened(url) as next_one, person(url) as (stuck, transaction):
        await stuck.execute("LOCK TABLE payclient.changes IN ROW EXCLUSIVE MODE")
        async with tracking(service, next_one):

            async def is_told_of() -> bool:
                return "the ledger failed: LedgerUnavailableError" in caplog.text

            async def is_paid() -> bool:
                await service.clock.advance(10)
                return (await record_in(next_one)).state is State.ACCEPTED

            await until(is_told_of)
            await transaction.rollback()
            await until(is_paid)


async def test_an_attempt_is_either_paid_or_tried_again(url: str, ledger: PostgresLedger) -> None:
    """Of a correction of the refused attempt and the next permit, in two processes at once, one comes through."""
    async with opened(url) as other:
        for number in range(40):
            record = await brought(ledger, State.REFUSED, name := f"order-{number}")
            corrected, granted = await asyncio.gather(
                ledger.apply(record, FoundAccepted(at=NOW + 9, transaction_id=7)),
                other.permit(fresh(name, attempt=2)),
                return_exceptions=True,
            )
            assert isinstance(corrected, Record) is not granted
            assert isinstance(corrected, Record | TransitionError)
            assert isinstance(granted, bool)


async def beside(url: str, write: Callable[[asyncpg.Connection], Awaitable[object]], work: Awaitable[T]) -> T:
    """What comes of work that begins while somebody else's write is not committed yet, and may wait for it."""
    async with person(url) as (writer, transaction):
        await write(writer)
        working = asyncio.ensure_future(work)

        async def waits() -> object:
            return working.done() or await writer.fetch("SELECT FROM pg_locks WHERE NOT granted")

        await until(waits)
        await transaction.commit()
    return await working


async def beside_a_change(url: str, change: str, work: Awaitable[T]) -> T:
    """`beside` a change of the only attempt."""
    columns = "(attempt_id, version, at, before, decided_at, event, evidence, after, state_evidence)"
    row = f"attempt_id, version + 1, at, after, at, {change} FROM payclient.changes ORDER BY version DESC LIMIT 1"
    statement = f"INSERT INTO payclient.changes {columns} SELECT {row}"
    return await beside(url, lambda writer: writer.execute(statement), work)


async def declined_form(ledger: Ledger) -> tuple[Record, Record]:
    """A form that holds its purchase no more, since its card was declined; and a push for the same purchase."""
    form = attrs.evolve(fresh("form"), kind="form", purchase="order")
    assert await ledger.permit(form)
    for event in (Prepared(at=NOW, expires_at=NOW + 1200), FoundCancelled(at=NOW)):
        form = await ledger.apply(form, event)
    return form, attrs.evolve(fresh("push"), purchase="order")


async def test_a_push_waits_for_the_return_of_its_purchases_form(url: str, ledger: PostgresLedger) -> None:
    """Another process is about to commit that the customer tried a second card, and then confirms the payment."""
    form, push = await declined_form(ledger)
    event = Returned(at=NOW, transaction_id=7)
    row = change_row(form, event, advance(form, event))

    def write(writer: asyncpg.Connection) -> Awaitable[object]:
        return PostgresDatabase(writer, read_statements("postgres.sql")).insert([], [row])

    with pytest.raises(PurchaseHeldError):
        await beside(url, write, ledger.permit(push))


async def test_the_return_of_a_form_waits_for_a_push_of_its_purchase(
    url: str, ledger: PostgresLedger
) -> None:
    """Another process is about to commit the permit of the push, which the confirmation of the form must see."""
    form, push = await declined_form(ledger)

    def write(writer: asyncpg.Connection) -> Awaitable[object]:
        return PostgresDatabase(writer, read_statements("postgres.sql")).insert([permit_row(push)], [])

    async def asks_after_return() -> list[Record]:
        await ledger.apply(form, Returned(at=NOW, transaction_id=7))
        return await ledger.asks("order")

    assert len(await beside(url, write, asks_after_return())) == 2


async def test_a_push_waits_for_the_payment_of_one_that_had_its_last_query(
    url: str, ledger: PostgresLedger
) -> None:
    """Another process is about to commit that the service found it paid all the same."""
    record = await brought(ledger, State.EXPIRED)
    await ledger.apply(record, Exhausted(at=NOW))
    change = "'FoundAccepted', 'query', 'accepted', 'query'"
    push = attrs.evolve(fresh("push"), purchase=record.purchase)
    with pytest.raises(PurchaseHeldError):
        await beside_a_change(url, change, ledger.permit(push))


async def test_a_permit_waits_for_a_correction_under_way(url: str, ledger: PostgresLedger) -> None:
    """Another process is about to commit that the refused attempt is paid."""
    await brought(ledger, State.REFUSED)
    change = "'FoundAccepted', 'query', 'accepted', 'query'"
    assert await beside_a_change(url, change, ledger.permit(fresh(attempt=2))) is False


async def test_what_is_being_written_is_not_archived(
    url: str, ledger: PostgresLedger, tmp_path: Path
) -> None:
    """An event that is not committed yet as its block is moved would be deleted, and be in no file."""
    await brought(ledger, State.CANCELLED)
    change = "'Notified', 'notification', after, state_evidence"
    assert await beside_a_change(url, change, archive_ledger(url, time.time(), tmp_path / "old.jsonl")) == 0


async def test_processes_that_write_in_another_order(url: str, ledger: PostgresLedger) -> None:
    """Of the same ids asked for in opposite orders each permit goes to one, and nobody waits for nobody."""
    names = [f"order-{number}" for number in range(500)]
    async with opened(url) as other:
        async with asyncio.timeout(60):
            first, second = await asyncio.gather(
                asyncio.gather(*(ledger.permit(fresh(name)) for name in names)),
                asyncio.gather(*(other.permit(fresh(name)) for name in reversed(names))),
            )
        assert [a + b for a, b in zip(first, reversed(second), strict=True)] == [1] * 500


# The wire


@asynccontextmanager
async def through_proxy(
    postgres: PostgresServer, database: str, **options: float
) -> AsyncIterator[tuple[PostgresProxy, PostgresLedger]]:
    """A ledger behind a wire that can break, whose connection has been used once."""
    async with (
        PostgresProxy(postgres.port) as proxy,
        opened(postgres.url(database, port=proxy.port), **options) as ledger,
    ):
        assert await ledger.permit(fresh("warm"))
        yield proxy, ledger


async def test_a_wire_that_breaks_before_the_commit(postgres: PostgresServer, database: str) -> None:
    """The permit is none, nothing was written, and the next one is granted."""
    async with through_proxy(postgres, database) as (proxy, ledger):
        proxy.cut_before = True
        caught = await error_of(LedgerUnavailableError, ledger.permit(fresh()))
        assert caught.client_transaction_id == "order-1"
        assert await ledger.get("order-1") is None
        assert await ledger.permit(fresh())


async def test_a_wire_that_breaks_after_the_commit(postgres: PostgresServer, database: str, url: str) -> None:
    """An uncertain commit is no permit; the process that asked may close it as not sent, and no other."""
    async with through_proxy(postgres, database) as (proxy, ledger), opened(url) as other:
        proxy.cut_after = True
        await error_of(LedgerUnavailableError, ledger.permit(fresh()))
        assert (await ledger.get("order-1")) == fresh()
        assert await other.permit(fresh()) is False
        # Even by a clock that shows the very same time.
        await error_of(TransitionError, other.apply(fresh(), NotSent(at=NOW)), match="another process")
        assert (await ledger.apply(fresh(), NotSent(at=NOW))).state is State.REFUSED
        assert await other.permit(fresh(attempt=2))


async def test_what_a_broken_wire_left_behind_is_waited_for(
    postgres: PostgresServer, database: str, url: str
) -> None:
    """A lost statement that still waits in the server is done before anything is read again."""
    async with through_proxy(postgres, database) as (proxy, ledger), person(url) as (blocker, transaction):
        await blocker.execute("LOCK payclient.attempts")
        permit = asyncio.ensure_future(ledger.permit(fresh()))
        await until(lambda: blocker.fetch("SELECT FROM pg_locks WHERE NOT granted"))
        proxy.abort()
        await error_of(LedgerUnavailableError, permit)
        reading = asyncio.ensure_future(ledger.get("order-1"))
        await until(lambda: blocker.fetch("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        assert not reading.done()
        await transaction.rollback()
        assert await reading == fresh()


async def test_a_server_that_falls_silent(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hangs: what was asked and what is asked then fails in a bounded time, and it goes on when it can."""
    async with through_proxy(postgres, database) as (proxy, ledger):
        monkeypatch.setattr(postgres_ledger, "ANSWERING", 0.2)
        monkeypatch.setattr(postgres_ledger, "REACHING", 0.2)
        monkeypatch.setattr(connecting, "CONNECT", 0.2)
        proxy.silent = True
        for work in (ledger.permit(fresh()), ledger.get("warm"), ledger.changes()):
            await error_of(LedgerUnavailableError, asyncio.wait_for(work, 60))
        proxy.silent = False
        monkeypatch.undo()
        assert await ledger.get("warm") is not None


@pytest.mark.parametrize("write", [False, True])
async def test_a_wire_that_falls_silent(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    """One failure: then another connection does the work, though the silent one was never closed."""
    async with through_proxy(postgres, database) as (proxy, ledger):
        with monkeypatch.context() as hurry:
            hurry.setattr(postgres_ledger, "ANSWERING", 0.2)
            proxy.mutes = True
            work: Awaitable[Any] = ledger.permit(fresh()) if write else ledger.get("warm")
            await error_of(LedgerUnavailableError, work)
        assert await ledger.get("warm") is not None


@pytest.mark.parametrize("table", ["attempts", "changes"])
@pytest.mark.parametrize("write", [False, True])
async def test_who_waits_in_vain_leaves_one_session_at_the_server(
    monkeypatch: pytest.MonkeyPatch, url: str, ledger: PostgresLedger, write: bool, table: str
) -> None:
    """However long it waits: the server may take no more sessions than a hundred, from all programs."""
    await ledger.permit(fresh("warm"))
    async with opened(url, poll=0.1) as other, person(url) as (blocker, _):
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        for name in ("ANSWERING", "REACHING"):
            monkeypatch.setattr(postgres_ledger, name, 0.2)
        await blocker.execute(f"LOCK payclient.{table}")
        other.watch(heard := Heard())
        for number in range(4):
            work: Awaitable[Any] = ledger.permit(fresh(f"order-{number}")) if write else ledger.get("warm")
            await error_of(LedgerUnavailableError, work)
            await heard.next()
        await until(lambda: blocker.fetch(f"SELECT 1 WHERE ({waiting}) <= 2"))  # and that of the listener


async def test_another_ledger_in_its_place(
    postgres: PostgresServer,
    new_database: str,
    monkeypatch: pytest.MonkeyPatch,
    databases: list[PostgresDatabase],
) -> None:
    """After a lost connection a ledger that was made anew is not taken for ours: its digests are others."""
    monkeypatch.setattr(postgres_ledger, "REACHING", 0.1)
    async with opened(postgres.url(new_database)) as ledger:
        await postgres.execute(new_database, "DROP SCHEMA payclient CASCADE")
        async with opened(postgres.url(new_database)) as other:
            databases[0].connection.terminate()
            await error_of(LedgerUnavailableError, ledger.permit(fresh()))
            assert await other.get("order-1") is None


async def test_a_user_who_may_only_write(postgres: PostgresServer, new_database: str) -> None:
    """Who may not make the ledger is told so; made by another, it is used with no more than these rights."""
    await postgres.execute(new_database, "CREATE ROLE clerk LOGIN")
    url = postgres.url(new_database, user="clerk")
    await error_of(ConfigurationError, open_ledger(url), match="may not")
    await (await open_ledger(postgres.url(new_database))).aclose()
    await error_of(ConfigurationError, open_ledger(url), match="may not")
    await postgres.execute(
        new_database,
        """DO $$ BEGIN
        GRANT USAGE ON SCHEMA payclient TO clerk;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA payclient TO clerk;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA payclient TO clerk;
        END $$""",
    )
    async with opened(url) as ledger:
        await brought(ledger, State.ACCEPTED)
        assert await ledger.renew(60) == 0
        assert await ledger.claim_due(1, 60.0) == []
        assert await ledger.reserve(1.0) == 0
        assert len(await ledger.changes()) == 1
    for revoked, lacking in (
        ("USAGE ON SEQUENCE payclient.cursors", "USAGE on cursors"),
        ("SELECT ON payclient.transactions", "USAGE on cursors, SELECT on transactions"),
        (
            "INSERT ON payclient.changes, payclient.form_links",
            "INSERT on changes, USAGE on cursors, INSERT on form_",
        ),
    ):
        await postgres.execute(new_database, f"REVOKE {revoked} FROM clerk")
        words = f"lacks rights in the ledger's schema, payclient: {lacking}"
        await error_of(ConfigurationError, open_ledger(url), match=words)
    async with aclosing(await open_ledger(url, read_only=True)) as reader:
        assert len(await reader.changes()) == 1
    await postgres.execute(new_database, "ALTER ROLE clerk SET default_transaction_read_only = on")
    await error_of(ConfigurationError, open_ledger(url), match="must write")
    async with aclosing(await open_ledger(url, read_only=True)) as reader:
        assert len(await reader.changes()) == 1
    await postgres.execute(new_database, "ALTER ROLE clerk RESET ALL")
    await postgres.execute(new_database, "ALTER TABLE payclient.meta ENABLE ROW LEVEL SECURITY")
    await error_of(ConfigurationError, open_ledger(url), match="another program")
    await postgres.execute(new_database, "CREATE POLICY all_of_it ON payclient.meta USING (true)")
    await postgres.execute(new_database, "REVOKE EXECUTE ON FUNCTION payclient.write FROM PUBLIC")
    await error_of(
        ConfigurationError,
        open_ledger(url),
        match="SELECT on meta, UPDATE on meta, SELECT on transactions, EXECUTE on write",
    )
    await postgres.execute(new_database, f"REVOKE CONNECT ON DATABASE {new_database} FROM PUBLIC")
    await error_of(ConfigurationError, open_ledger(url), match="refuses its address")
    await postgres.execute(new_database, "DROP OWNED BY clerk")
    await postgres.execute(new_database, "DROP ROLE clerk")


async def test_a_commit_that_no_standby_has(postgres: PostgresServer, database: str) -> None:
    """Waiting for a standby may be cut short by a time-out or a person: then a permit is none."""
    async with opened(postgres.url(database)) as ledger:
        await ledger.permit(fresh("warm"))
        permits: list[asyncio.Future[bool]] = []
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

        async def one_waits() -> object:
            # The server's sessions take the setting up before its checkpointer does, which makes commits wait.
            if not permits or permits[-1].done():
                permits.append(asyncio.ensure_future(ledger.permit(fresh(f"order-{len(permits)}"))))
            return await postgres.execute("postgres", f"SELECT {waiting}")

        async with configured(postgres, "synchronous_standby_names", "nobody"):
            await until(one_waits)
            await postgres.execute("postgres", f"SELECT pg_cancel_backend(pid) {waiting}")
            await error_of(LedgerUnavailableError, permits[-1])
        last = fresh(f"order-{len(permits) - 1}")
        assert await ledger.get(last.client_transaction_id) == last  # here, and on no standby


async def test_a_commit_that_no_standby_has_in_time_stays_out_of_sight(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To cancel it would show it on no standby: it waits on in the server, and is there once a standby has it."""
    async with opened(postgres.url(database)) as ledger:
        for name in ("ANSWERING", "REACHING"):
            monkeypatch.setattr(postgres_ledger, name, 0.3)
        async with configured(postgres, "synchronous_standby_names", "nobody"):
            for number in count():  # the server takes the setting up a moment later
                try:
                    await ledger.permit(last := fresh(f"order-{number}"))
                except LedgerUnavailableError:
                    break
            await error_of(LedgerUnavailableError, ledger.get("warm"))
            asks = await postgres.execute(database, "SELECT client_transaction_id FROM payclient.attempts")
            assert last.client_transaction_id not in [each for (each,) in asks]
        monkeypatch.undo()
        assert await ledger.get(last.client_transaction_id) == last


async def test_a_warning_about_another_statement_denies_no_permit(
    databases: list[PostgresDatabase], ledger: PostgresLedger
) -> None:
    """As where a probe did not reach its standby: the permit after it has a commit of its own, which counts."""
    await ledger.permit(fresh())
    await databases[-1].connection.execute("DO $$ BEGIN RAISE WARNING 'on no standby'; END $$")
    assert await ledger.permit(fresh("order-2")) is True


@pytest.mark.parametrize(
    ("function", "is_permit"), [("GetNewTransactionId", True), ("SyncRepWaitForLSN", False)]
)
async def test_a_server_that_runs_out_of_transaction_numbers(function: str, is_permit: bool) -> None:
    """Its warning comes with each permit for weeks, and says nothing of a standby."""
    connection = Mock()
    database = PostgresDatabase(connection, {"write": ""})
    (note,) = connection.add_log_listener.call_args.args

    async def warned(*_: object, **__: object) -> Any:
        note(connection, Mock(severity_en="WARNING", server_source_function=function))
        return [("order-1",)]

    connection.fetch = warned
    connection.fetchval, connection.get_server_pid = AsyncMock(return_value=1), Mock(return_value=2)
    inserting = database.insert([permit_row(fresh())], [])
    if is_permit:
        assert "order-1" in await inserting
    else:
        await error_of(LedgerUnavailableError, inserting, match="perhaps on no standby")


async def test_behind_a_pooler(databases: list[PostgresDatabase], ledger: PostgresLedger) -> None:
    """A pooler's next server knows nothing of our statements: they are asked without being prepared from then on."""
    await ledger.permit(fresh())
    await databases[-1].connection.execute("DEALLOCATE ALL")
    assert await ledger.permit(fresh()) is False
    assert await ledger.permit(fresh("order-2")) is True
    assert await ledger.get("order-2") == fresh("order-2")


async def test_a_poolers_next_server_as_another_program_left_it(
    postgres: PostgresServer, databases: list[PostgresDatabase], ledger: PostgresLedger
) -> None:
    """What a permit and the feed wait for may stay out of sight there, and the warning that a commit is on no standby
    be left out.
    """
    session = databases[-1].connection
    await session.execute("SET default_transaction_isolation = 'repeatable read'")
    await error_of(LedgerUnavailableError, ledger.permit(fresh()))
    await error_of(LedgerUnavailableError, ledger.changes())
    await session.execute("RESET ALL")
    async with configured(postgres, "synchronous_standby_names", "nobody"):
        await session.execute("SET client_min_messages = error")
        await error_of(LedgerUnavailableError, ledger.permit(fresh()))
    assert await ledger.get("order-1") is None
    assert await ledger.permit(fresh())
    assert await ledger.changes() == []


async def test_nothing_stays_at_the_servers_of_a_pooler(
    databases: list[PostgresDatabase], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer, which shows a process id of its own, keeps its servers: each ledger left its statements there."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: 716315604)
    async with opened(url) as ledger:
        assert await ledger.permit(fresh())
        assert await ledger.get("order-1") == fresh()
        assert not await databases[-1].connection.fetch("SELECT FROM pg_prepared_statements")


async def test_a_server_that_restarts(postgres: PostgresServer, url: str) -> None:
    """What was acknowledged is there, the call under way fails in words, and the next one waits and is granted."""
    async with opened(url) as ledger, person(url) as (blocker, _):
        names = [f"order-{number}" for number in range(20)]
        assert all(await asyncio.gather(*(ledger.permit(fresh(name)) for name in names)))
        await blocker.execute("LOCK payclient.attempts")
        under_way = asyncio.ensure_future(ledger.permit(fresh("under way")))
        await until(lambda: blocker.fetch("SELECT FROM pg_locks WHERE NOT granted"))
        await asyncio.to_thread(postgres.stop)
        blocker.terminate()
        await error_of(LedgerUnavailableError, under_way)
        later = asyncio.ensure_future(ledger.permit(fresh("later")))
        await asyncio.sleep(0)
        await asyncio.to_thread(postgres.start)
        assert await later
        assert len(await ledger.get_many([*names, "under way", "later"])) == 21


async def test_a_wire_that_breaks_in_an_unforeseen_way(
    monkeypatch: pytest.MonkeyPatch, ledger: PostgresLedger
) -> None:
    """uvloop raises RuntimeError for a transport that is closed: the ledger connects again, and goes on."""
    fetch, broken = PostgresDatabase.fetch, ["notify", "look_up", "wait_for_own"]

    async def breaking(self: PostgresDatabase, name: str, parameters: tuple[Any, ...]) -> Any:
        if name in broken:
            broken.remove(name)
            raise RuntimeError("the handler is closed")
        return await fetch(self, name, parameters)

    record = fresh()
    assert await ledger.permit(record)
    monkeypatch.setattr(PostgresDatabase, "fetch", breaking)
    await ledger.apply(record, Notified(at=NOW, transaction_id=7))
    await error_of(LedgerUnavailableError, ledger.get(record.client_transaction_id))
    assert await ledger.get(record.client_transaction_id) is not None
    assert not broken


async def test_closing_without_a_server(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends all the same, in a bounded time."""
    monkeypatch.setattr(postgres_ledger, "REACHING", 0.1)
    ledger = await open_ledger(url)
    await asyncio.to_thread(postgres.stop)
    permit = asyncio.ensure_future(ledger.permit(fresh()))
    await asyncio.sleep(0)
    await asyncio.wait_for(ledger.aclose(), 20)
    await error_of(LedgerUnavailableError, permit)
    await asyncio.to_thread(postgres.start)


async def test_closing_while_a_write_has_no_answer(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it is told as the ledger is closed: the server's answer may take as long as a write is tried."""
    monkeypatch.setattr(postgres_ledger, "CLOSING", 0.1)
    async with through_proxy(postgres, database) as (proxy, ledger):
        proxy.mutes = True
        permit = asyncio.ensure_future(ledger.permit(fresh()))
        await asyncio.sleep(0)
        await ledger.aclose()
        async with asyncio.timeout(2):
            await error_of(LedgerUnavailableError, permit)


# Waking


class Heard:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    def __call__(self, word: str | None) -> None:
        self.words.put_nowait(word)

    async def next(self) -> str | None:
        return await asyncio.wait_for(self.words.get(), 60)


async def test_a_listener_whose_wire_falls_silent_connects_again(
    postgres: PostgresServer, database: str
) -> None:
    """It asks for a sign of life, since nobody closes such a connection."""
    async with through_proxy(postgres, database, poll=0.1) as (proxy, ledger):
        ledger.watch(heard := Heard())
        assert await heard.next() is None
        asked, proxy.mutes = proxy.asked, True
        await until(lambda: asyncio.sleep(0, proxy.asked > asked))


async def test_waking(url: str, ledger: PostgresLedger) -> None:
    """Notifications, decisions and ends of another process are heard of by id, and nothing else is."""
    assert isinstance(ledger, Shared)
    assert not isinstance(MemoryLedger(), Shared)
    heard = Heard()
    stop = ledger.watch(heard)
    assert await heard.next() is None  # it listens: now look at everything
    async with opened(url) as other:
        await brought(other, State.PENDING, "a")
        await brought(other, State.ACCEPTED, "b")
        assert await heard.next() == "b"
        await other.apply(fresh("a"), Notified(at=NOW, transaction_id=7))
        assert await heard.next() == "a"
        await other.apply(fresh("a"), Notified(at=NOW, transaction_id=7))  # once more, and no news
        await other.apply(fresh("a"), FoundAccepted(at=NOW))
        assert await heard.next() == "a"
        await brought(other, State.UNKNOWN, "c")
        for number in (7, 8):  # each may be the one
            await other.apply(fresh("c"), Notified(at=NOW, transaction_id=number))
            assert await heard.next() == "c"
        await other.apply(await brought(other, State.EXPIRED, "e"), Exhausted(at=NOW + 400))
        assert [await heard.next() for _ in range(2)] == ["e", "e"]  # a wait that hoped for more is over
        long = "x" * 2000
        await brought(other, State.ACCEPTED, long)
        assert await heard.next() is None  # no room for the name: look at everything
        stop()
        ledger.watch(later := Heard())
        await brought(other, State.ACCEPTED, "d")
        assert await later.next() == "d"
    assert heard.words.empty()


async def test_a_look_tells_once_of_a_hint(url: str) -> None:
    """Of a return, too; it may be forged, and whoever hears of it makes a request."""
    async with opened(url, poll=0.05) as ledger:
        for key, event in (
            ("a", Notified(at=NOW, transaction_id=7)),
            ("b", Returned(at=NOW, transaction_id=8)),
        ):
            await brought(ledger, State.PENDING, key)
            await ledger.apply(fresh(key), event)
        ledger.watch(heard := Heard())
        said: list[str | None] = []
        while said.count(None) < 5:
            said.append(await heard.next())
        assert sorted(each for each in said if each) == ["a", "b"]


async def test_a_listener_that_is_killed(url: str) -> None:
    """It listens again at once, and then says that something may have gone unheard."""
    async with opened(url, poll=3600.0) as ledger:
        heard = Heard()
        ledger.watch(heard)
        assert await heard.next() is None
        connection = await asyncpg.connect(url)
        listening = "FROM pg_stat_activity WHERE query LIKE '%Notified%' AND pid <> pg_backend_pid()"
        await until(lambda: connection.fetchval(f"SELECT count(*) > 0 {listening} AND state = 'idle'"))
        await connection.fetch(f"SELECT pg_terminate_backend(pid) {listening}")
        assert await heard.next() is None
        await brought(ledger, State.ACCEPTED)
        assert await heard.next() == "order-1"
        await connection.close()


async def test_a_listener_without_a_server(
    postgres: PostgresServer, database: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll goes on, and it listens again once the server is back."""
    async with through_proxy(postgres, database, poll=0.05) as (proxy, ledger), opened(url) as other:
        # Once both are open, which may take longer on a loaded machine.
        monkeypatch.setattr(connecting, "CONNECT", 0.1)
        heard = Heard()
        ledger.watch(heard)
        assert await heard.next() is None
        proxy.silent = True
        for _ in range(6):
            assert await heard.next() is None
        proxy.silent = False
        monkeypatch.undo()
        numbers = count()

        async def woken() -> bool:
            await brought(other, State.ACCEPTED, f"order-{next(numbers)}")
            return await heard.next() is not None

        await until(woken)


async def test_a_failing_watcher(url: str, ledger: PostgresLedger, caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: str | None) -> None:
        raise ValueError("secret")

    heard = Heard()
    ledger.watch(failing)
    ledger.watch(heard)
    with caplog.at_level(logging.ERROR):
        assert await heard.next() is None
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


# Sharing the work


#: Seconds, of the database's clock: no test takes so long, on whatever machine.
HOUR = 3600.0


async def test_what_is_due_is_claimed_by_one(
    url: str, ledger: PostgresLedger, postgres: PostgresServer, database: str
) -> None:
    """By the database's clock, whatever the clocks of the clients say; and held by that one for the time it says."""
    states = [State.SENDING, State.UNKNOWN, State.PENDING, State.EXPIRED, State.ACCEPTED, State.REFUSED]
    for number, state in enumerate(states):
        await brought(ledger, state, f"order-{number}")
    await ledger.permit(fresh("oldest", at=-1e9))
    assert await ledger.claim_due(10, HOUR) == []
    await postgres.execute(database, "UPDATE payclient.open_attempts SET due = clock_timestamp()")
    async with opened(url) as first, opened(url) as second:
        claims = await asyncio.gather(first.claim_due(2, HOUR), second.claim_due(2, HOUR))
        claimed = [record.client_transaction_id for claim in claims for record in claim]
        assert len(set(claimed)) == len(claimed) == 4
        rest = [record.client_transaction_id for record in await second.claim_due(10, HOUR)]
        assert {*claimed, *rest} == {"oldest", "order-0", "order-1", "order-2", "order-3"}
        assert await first.held() == {record.client_transaction_id for record in claims[0]}
        assert await ledger.claim_due(10, HOUR) == []
        assert (await first.renew(HOUR), await second.renew(HOUR), await ledger.renew(HOUR)) == (2, 3, 0)
        # What is decided is nobody's.
        await ledger.apply((await ledger.get("order-2")) or fresh(), FoundAccepted(at=NOW))
        assert await first.renew(HOUR) + await second.renew(HOUR) == 4
    assert len(await ledger.history("oldest")) == 1


async def test_what_a_process_is_permitted_it_holds(url: str, ledger: PostgresLedger) -> None:
    """Until it is closed, dies, or lets it be due; renewing never shortens it."""
    async with opened(url) as first:
        first.hold(HOUR)
        await first.permit(fresh())
        assert await first.renew(1.0) == 1
        assert await ledger.claim_due(10, HOUR) == []
        await first.defer({"order-1": 0.0})
        assert await first.renew(HOUR) == 1  # nobody was quicker
        assert await ledger.claim_due(10, HOUR) == []
        await first.defer({"order-1": 0.0})
        assert [record.state for record in await ledger.claim_due(10, HOUR)] == [State.SENDING]
        assert await first.renew(HOUR) == 0
        await first.defer({"order-1": 0.0})  # it is not this one's any more
        assert await first.held() == set()
        assert await ledger.held() == {"order-1"}
        await first.permit(fresh("closed"))
        await first.permit(fresh("much later"))
        await first.permit(fresh("days later"))
        await first.defer({"closed": 10.0, "days later": 2 * 86_400.0})
        assert await first.held() == {"closed", "much later"}  # another process may know more then
    # It was closed: what it followed is another's at once, but for what has time.
    assert [record.client_transaction_id for record in await ledger.claim_due(10, HOUR)] == ["closed"]


@pytest.mark.parametrize("kind", [Notified, Returned])
@pytest.mark.parametrize("held", [True, False])
async def test_a_notification_hastens_what_has_time(
    ledger: PostgresLedger,
    postgres: PostgresServer,
    database: str,
    held: bool,
    kind: type[Notified | Returned],
) -> None:
    """Its holder may have died: another looks at it soon, and at what nobody holds at once."""
    if held:
        ledger.hold(HOUR)
    record = await brought(ledger, State.EXPIRED)
    due = "SELECT extract(epoch FROM due - clock_timestamp())::float8 FROM payclient.open_attempts"
    assert (await postgres.execute(database, due))[0][0] > (HOUR / 2 if held else 30)
    record = await ledger.apply(record, kind(at=NOW, transaction_id=7))
    least, most = (10, 30) if held else (-10, 0)
    assert least < (await postgres.execute(database, due))[0][0] <= most
    await ledger.defer({"order-1": -5.0})  # it is due: a notification puts nothing off
    await ledger.apply(record, kind(at=NOW, transaction_id=7))
    assert (await postgres.execute(database, due))[0][0] < 0


async def test_an_end_that_loses_a_deadlock(ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the request was not sent is written once more: nothing of it says that another process was granted it."""
    assert await ledger.permit(fresh())
    fetch, lost = PostgresDatabase.fetch, [asyncpg.DeadlockDetectedError()]

    async def losing(self: PostgresDatabase, name: str, parameters: tuple[Any, ...]) -> Any:
        if name == "write" and lost:
            raise lost.pop()
        return await fetch(self, name, parameters)

    monkeypatch.setattr(PostgresDatabase, "fetch", losing)
    assert (await ledger.apply(fresh(), NotSent(at=NOW))).state is State.REFUSED


async def test_a_read_that_loses_a_deadlock(
    url: str, ledger: PostgresLedger, postgres: PostgresServer, database: str
) -> None:
    """It fails by itself: the connection stays, and with it what else is asked of the ledger."""
    ledger.hold(HOUR)
    for name in ("a", "b"):
        await ledger.permit(fresh(name))
    ids = await postgres.execute(database, "SELECT attempt_id FROM payclient.open_attempts ORDER BY 1")
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'payclient' AND datname = current_database()"
    before = await postgres.execute(database, ours)
    lock = "SELECT FROM payclient.open_attempts WHERE attempt_id = $1 FOR UPDATE"
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'payclient'"
    async with person(url) as (other, transaction):
        await other.execute("SET deadlock_timeout = '1h'")  # so that it is the ledger which gives way
        await other.execute(lock, ids[1][0])
        deferred = asyncio.ensure_future(ledger.defer({"a": 60.0, "b": 60.0}))
        await until(lambda: postgres.execute(database, waits))
        seen = asyncio.ensure_future(ledger.held())
        await other.execute(lock, ids[0][0])
        await error_of(LedgerUnavailableError, deferred, match="DeadlockDetected")
        await transaction.rollback()
        assert await seen == {"a", "b"}
    assert await postgres.execute(database, ours) == before


async def test_processes_that_write_and_renew_at_once(url: str, ledger: PostgresLedger) -> None:
    """They pass each other by: nobody waits long, and nothing fails."""
    async with opened(url) as other:
        ledger.hold(1.0)
        names = [f"order-{number}" for number in range(300)]
        records = await asyncio.gather(*(brought(ledger, State.PENDING, name) for name in names))

        async def renew() -> None:
            for _ in range(30):
                await other.claim_due(100, 1.0)
                await other.renew(3.0)
                await other.defer(dict.fromkeys(names[:10], 0.0))

        async with asyncio.timeout(60):
            await asyncio.gather(
                renew(),
                *(ledger.apply(record, Notified(at=NOW, transaction_id=7)) for record in reversed(records)),
                *(other.apply(record, FoundAccepted(at=NOW)) for record in records[::2]),
            )
        assert len(await ledger.changes(limit=1000)) == 150


async def test_one_rate_of_queries(url: str, ledger: PostgresLedger) -> None:
    async with opened(url) as other:
        waits = [await each.reserve(60.0) for each in (ledger, other, ledger)]
        assert waits[0] == 0
        assert waits == pytest.approx([0, 60, 120], abs=5)
        await other.pause(600)
        await other.pause(10)
        assert await ledger.reserve(30.0) == pytest.approx(600, abs=5)


async def test_a_server_whose_clock_is_set_back_holds_up_queries_for_minutes(
    postgres: PostgresServer, database: str, ledger: PostgresLedger
) -> None:
    """Not until its clock is again where it was, for which all processes would query nothing."""
    tomorrow = "UPDATE payclient.meta SET next_query_at = clock_timestamp() + interval '1 day'"
    await postgres.execute(database, tomorrow)
    assert await ledger.reserve(1.0) == pytest.approx(160, abs=5)


class LosingConnection(AsyncMock):
    """A connection of a listener, which is lost when the test says so."""

    def add_termination_listener(self, lost: Callable[[object], None]) -> None:
        self.lost = lost


@pytest.mark.parametrize("turns", range(5))
async def test_closing_as_the_listeners_connection_is_lost(turns: int) -> None:
    """However many turns of the loop lie between the two, the listener ends and closing does not hang."""
    connection = LosingConnection(terminate=Mock())
    listener = connecting.Listener(Mock(connect=AsyncMock(return_value=connection)), 60.0)
    for _ in range(10):  # by then it waits
        await asyncio.sleep(0)
    connection.lost(connection)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await listener.aclose()


async def test_look_ups_use_an_index_though_nothing_is_there_yet(postgres: PostgresServer) -> None:
    """Their plan is kept while the tables grow."""
    database = await postgres.database()
    async with opened(postgres.url(database)):
        pass
    await postgres.execute(database, "ANALYZE")
    read = """
        WITH found AS MATERIALIZED (SELECT FROM payclient.asks('{a}') UNION ALL SELECT FROM payclient.find('{a}'))
        SELECT count(*), (SELECT sum(seq_scan) FROM pg_stat_xact_user_tables WHERE schemaname = 'payclient') FROM found
    """
    assert await postgres.execute(database, read) == [(0, 0)]


async def test_writes_use_an_index_though_nothing_was_there(
    url: str, ledger: PostgresLedger, postgres: PostgresServer, database: str
) -> None:
    """Their plan is kept while the tables grow."""
    rows = """DO $$ BEGIN
        SET LOCAL session_replication_role = replica;
        INSERT INTO payclient.attempts
        SELECT n, 1, 1150, 0, NULL, 1, 1, false, 'row-' || n, 'sale', '', '', '', 'USD', 'row-' || n
        FROM generate_series(1000001, 1002000) AS n;
    END $$"""
    read = "SELECT sum(idx_tup_fetch + seq_tup_read)::int FROM pg_stat_xact_user_tables WHERE schemaname = 'payclient'"
    await postgres.execute(database, "VACUUM ANALYZE")
    async with person(url) as (writer, _):
        written = PostgresDatabase(writer, read_statements("postgres.sql"))

        async def count_read(name: str) -> int:
            before, record = await writer.fetchval(read), fresh(name)
            lost = Lost(at=NOW, expires_at=NOW)
            await written.insert([permit_row(record)], [])
            await written.insert([], [change_row(record, lost, advance(record, lost))])
            return int(await writer.fetchval(read) - before)

        await count_read("first")
        await postgres.execute(database, rows)
        assert await count_read("second") < 100


async def test_who_looks_for_payments_beside_another_reads_the_changes_of_one_purchase(
    postgres: PostgresServer,
) -> None:
    """Whatever a plan would rather do that knows nothing of the tables, as after a copy: it holds up the permits. It
    finds each attempt by its id, however many there are.
    """
    database = await postgres.database()
    async with opened(postgres.url(database)):
        pass
    rows = """DO $$ BEGIN
        SET LOCAL session_replication_role = replica;
        INSERT INTO payclient.attempts
        SELECT 6 * n, 1, 1, n, NULL, 1, 1, false, n, 'sale', '', '', '', 'USD', n FROM generate_series(1, 4000) AS n;
        INSERT INTO payclient.changes
            (cursor, attempt_id, at, version, event, evidence, before, after, state_evidence)
        SELECT 6 * n + k, 6 * n, n, k, 'Notified', '', 'sending', 'sending', ''
        FROM generate_series(1, 4000) AS n, generate_series(1, 5) AS k;
    END $$"""
    await postgres.execute(database, rows)
    for knows in ("SELECT", "ANALYZE"):
        await postgres.execute(database, knows)
        plan = await postgres.execute(database, f"EXPLAIN {read_statements('postgres.sql')['unsaid']}")
        # The scan of the newest ones is the first, without a number.
        scans = ("Seq Scan on changes changes_", "Seq Scan on attempts")
        assert not [line for (line,) in plan if any(scan in line for scan in scans)]
