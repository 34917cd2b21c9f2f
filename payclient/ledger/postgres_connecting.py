"""Connecting to PostgreSQL: one host after another, settings read before anything is trusted, a schema made once.

What asyncpg raises may quote a statement, a value or the address with its password: nothing of it goes further than
the fault's name.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import weakref
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

__all__ = [
    "FAULTS",
    "Address",
    "Connect",
    "connector",
    "drop",
    "open_ledger_schema",
    "patiently",
    "unavailable",
]

#: Opens one connection. A closure: no repr of it shows the address, which may hold a password.
Connect = Callable[[], Awaitable["asyncpg.Connection"]]

#: Seconds until a server must have let us in, and of each where the address has several: one that is frozen takes the
#: connection and says nothing.
CONNECT = 5.0
CONNECT_TO_EACH = 2.0
#: Seconds that opening a ledger waits for a server that takes no more connections or is only starting; and between its
#: attempts.
OPENING = 30.0
AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
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

    def each_host(self) -> list[str]:
        """An address for each of its hosts."""
        authority = re.match("[^/?#]*", self.url.removeprefix("postgresql://"))
        whole = authority[0] if authority else ""
        user, at, hosts = whole.rpartition("@")
        rest = self.url.removeprefix("postgresql://")[len(whole) :]
        return [f"postgresql://{user}{at}{host}{rest}" for host in hosts.split(",")]

    @property
    def location(self) -> str:
        """The address without its user, password and options."""
        rest = self.url.removeprefix("postgresql://").partition("?")[0]
        hosts, slash, database = rest.partition("/")
        return f"postgresql://{hosts.rpartition('@')[2]}{slash}{database}"


def unavailable(error: BaseException, doing: str) -> LedgerUnavailableError:
    """What a fault of PostgreSQL is to a caller; it quotes the fault's name, never a statement or a value."""
    if isinstance(error, PayError):  # our own words
        return LedgerUnavailableError(str(error))
    return LedgerUnavailableError(f"the ledger could not be {doing} ({type(error).__name__})")


#: Connections of this process.
_open_here: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """Point a child's copies of the sockets at nothing.

    However the child ends, asyncpg would say goodbye to the server on them, and end the parent's connections.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in _open_here:
        if (transport := getattr(connection, "_transport", None)) is not None:
            with suppress(OSError, ValueError):
                os.dup2(nothing, transport.get_extra_info("socket").fileno(), inheritable=False)
    _open_here.clear()
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class _BusyServerError(LedgerUnavailableError):
    """The server takes no connection now, and may take one soon."""


def connector(address: Address) -> Connect:
    """What opens a connection to this address. It raises `ConfigurationError` or `LedgerUnavailableError`."""
    hosts = [Address(url) for url in address.each_host()]

    async def connect() -> asyncpg.Connection:
        faults: list[PayError] = []
        for host in hosts:
            try:
                return await _connect(host, CONNECT if len(hosts) == 1 else CONNECT_TO_EACH)
            except PayError as error:
                faults.append(error)
        # Of several hosts the one that answered says more than those that did not.
        said = [fault for fault in faults if isinstance(fault, ConfigurationError | _BusyServerError)]
        raise (said or faults)[-1].with_traceback(None)

    return connect


async def patiently(connect: Connect) -> asyncpg.Connection:
    """Connect, and try again for `OPENING` seconds where the server takes no connection now."""
    loop = asyncio.get_running_loop()
    until = loop.time() + OPENING
    for pause in itertools.chain(AGAIN, itertools.repeat(AGAIN[-1])):
        try:
            return await connect()
        except _BusyServerError as error:
            if loop.time() + pause > until:
                # As its own kind the error would pickle by a private name.
                fault = LedgerUnavailableError(f"{error}; it was tried again for {OPENING:.0f} s")
                break
        await asyncio.sleep(pause)
    raise fault


async def _connect(address: Address, timeout: float) -> asyncpg.Connection:
    fault: PayError
    try:
        # No cache of statements: behind a pooler, the next statement may meet another server.
        connection: asyncpg.Connection = await asyncpg.connect(
            address.url,
            timeout=timeout,
            statement_cache_size=0,
            server_settings={"application_name": "payclient"},
        )
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        fault = ConfigurationError(f"the ledger's server refuses its address ({type(error).__name__})")
    except (asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError) as error:
        fault = _BusyServerError(
            f"the ledger's server takes no more connections ({type(error).__name__})"
            if isinstance(error, asyncpg.TooManyConnectionsError)
            else f"the ledger's server is starting or stopping ({type(error).__name__})"
        )
    except (asyncpg.PostgresError, asyncpg.InternalClientError, TimeoutError, OSError) as error:
        fault = unavailable(error, "opened")
    except (asyncpg.InterfaceError, ValueError):
        fault = ConfigurationError("the ledger's address is not a valid postgresql://USER@HOST/DATABASE")
    else:
        _open_here.add(connection)
        return connection
    # Outside the `except`, so that not even `__context__` keeps what asyncpg said.
    raise fault


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
