"""Connecting to PostgreSQL: settings that are read before anything is trusted, and a schema made once.

What asyncpg raises may quote a statement, a value or the address with its password: nothing of it goes further than
the fault's name.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import attrs

from payclient.errors import ConfigurationError, LedgerMissingError, LedgerUnavailableError, PayError
from payclient.ledger.postgres_schema import (
    APPLICATION,
    BARRIER,
    EXISTING,
    INSERT_META,
    NAMES,
    SCHEMA,
    SELECT_META,
    SELECT_NAMES,
    SETTINGS,
    VERSION,
)

__all__ = ["FAULTS", "Address", "Connect", "connector", "drop", "open_ledger_schema", "unavailable"]

#: Opens one connection. A closure: no repr of it shows the address, which may hold a password.
Connect = Callable[[], Awaitable["asyncpg.Connection"]]

#: Seconds until a server must have let us in.
CONNECT = 5.0
#: What asyncpg raises where something is wrong on the way to the server or with it.
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a wire that breaks in the midst of a transaction
    OSError,
    TimeoutError,
    ValueError,
)


@attrs.frozen
class Address:
    """A URL that may hold a password: error trackers show the local variables of a frame by their repr."""

    url: str = attrs.field(repr=False)

    @property
    def location(self) -> str:
        """The address without its user, password and options."""
        rest = self.url.removeprefix("postgresql://").partition("?")[0]
        hosts, slash, database = rest.partition("/")
        return f"postgresql://{hosts.rpartition('@')[2]}{slash}{database}"


def unavailable(error: BaseException, doing: str) -> LedgerUnavailableError:
    """What a fault of PostgreSQL is to a caller; it quotes the fault's name, never a statement or a value."""
    return LedgerUnavailableError(f"the ledger could not be {doing} ({type(error).__name__})")


def connector(address: Address) -> Connect:
    """What opens a connection to this address. It raises `ConfigurationError` or `LedgerUnavailableError`."""

    async def connect() -> asyncpg.Connection:
        fault: PayError
        try:
            # No cache of statements: behind a pooler, the next statement may meet another server.
            return await asyncpg.connect(
                address.url,
                timeout=CONNECT,
                statement_cache_size=0,
                server_settings={"application_name": "payclient"},
            )
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            fault = ConfigurationError(f"the ledger's server refuses its address ({type(error).__name__})")
        except (asyncpg.PostgresError, asyncpg.InternalClientError, TimeoutError, OSError) as error:
            fault = unavailable(error, "opened")
        except (asyncpg.InterfaceError, ValueError):
            fault = ConfigurationError("the ledger's address is no postgresql://USER@HOST/DATABASE")
        # Outside the `except`, so that not even `__context__` keeps what asyncpg said.
        raise fault

    return connect


def drop(connection: asyncpg.Connection | None) -> None:
    """Let go of a connection, whatever state it is in."""
    if connection is not None:
        with suppress(*FAULTS):
            connection.terminate()


async def open_ledger_schema(connection: asyncpg.Connection, create: bool) -> tuple[bytes, bool]:
    """Check the server and the schema, made if there is none and `create`; the ledger's digest key, and whether it was.

    Raises `ConfigurationError` for what is no ledger or no safe place for one, `LedgerMissingError`,
    `LedgerUnavailableError`.
    """
    created = False
    try:
        _check_settings(await connection.fetchrow(SETTINGS))
        _, meta, filled = await connection.fetchrow(EXISTING)
        if not meta:
            if filled:
                raise ConfigurationError("the database's schema payclient is another program's")
            if not create:
                raise LedgerMissingError(
                    "the ledger must exist, and there is no ledger in this database; `payclient ledger init` makes one"
                )
            created = await _create(connection)
        return await _check_schema(connection), created
    except FAULTS as error:
        fault: PayError = unavailable(error, "opened")
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            fault = ConfigurationError(
                "the database's user may not read or make the ledger's schema, payclient"
            )
    raise fault


def _check_settings(row: Sequence[Any]) -> None:
    commit, standbys, fsync, pages, read_only, isolation, encoding, standby, version = row
    faults = [
        (version < 140000, f"PostgreSQL is {version // 10000}; a ledger needs 14 or later"),
        (standby, "the server is a standby, which takes no writes: give the primary's address"),
        (read_only != "off", "default_transaction_read_only is on: a ledger must write"),
        (
            isolation != "read committed",
            f"default_transaction_isolation is {isolation}: a ledger needs read committed",
        ),
        (encoding != "UTF8", f"the database's encoding is {encoding}: a ledger needs UTF8"),
        (fsync != "on", "fsync is off: a power failure would lose what was charged"),
        (pages != "on", "full_page_writes is off: a power failure could tear what was charged"),
        (commit == "off", "synchronous_commit is off: a permit could be lost after its charge was sent"),
        (
            commit == "local" and standbys != "",
            "synchronous_commit is local, but there are synchronous standbys: a failover would lose permits whose "
            "charges were sent",
        ),
    ]
    for wrong, words in faults:
        if wrong:
            raise ConfigurationError(words)


async def _create(connection: asyncpg.Connection) -> bool:
    """Make the schema; False where another process has just made it."""
    # One transaction, so that a pooler keeps to one server.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(BARRIER)
        # Another process may have made it, or a person only the empty schema, for a user who may not.
        schema, meta, _ = await connection.fetchrow(EXISTING)
        if meta:
            return False
        if not schema:
            await connection.execute("CREATE SCHEMA payclient")
        for statement in SCHEMA:
            await connection.execute(statement)
        await connection.execute(INSERT_META, APPLICATION, VERSION, secrets.token_bytes(32))
        return True


async def _check_schema(connection: asyncpg.Connection) -> bytes:
    try:
        row = await connection.fetchrow(SELECT_META)
    except (asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError):
        row = None
    if row is None or row[0] != APPLICATION:
        raise ConfigurationError("the database's schema payclient is another program's")
    if row[1] != VERSION:
        raise ConfigurationError(
            f"the ledger must have schema version {VERSION}, and has version {row[1]}: another release of "
            "payclient made it; nothing was changed"
        )
    if not {name for (name,) in await connection.fetch(SELECT_NAMES)} >= NAMES:
        raise ConfigurationError(
            "the ledger lacks a table, an index, a function or a trigger that it was made with"
        )
    return bytes(row[2])
