"""Connections to PostgreSQL: one host after another, settings read before anything is trusted, a schema made once,
and LISTEN.

Errors of asyncpg may quote a statement, a value or the address with its password: nothing of it goes further than
the fault's name.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import asyncpg

from payclient.clock import cancel_all
from payclient.errors import ConfigurationError, LedgerUnavailableError, PayError
from payclient.ledger import unavailable
from payclient.ledger.records import (
    VERSION,
    check_one_key,
    check_version,
    lacking,
    missing,
    read_statements,
    refuse_if,
)
from payclient.logs import ledger_log as log
from payclient.secret import Secret

#: Seconds until a server must have let us in, and of each where the address has several: one that is frozen takes the
#: connection and says nothing.
CONNECT = 5.0
CONNECT_TO_EACH = 2.0
#: Seconds that opening a ledger waits for a server that takes no more connections or is only starting.
OPENING = 30.0
#: Seconds that this machine's clock may be off the server's: by so much too early it may take a form's links for dead.
CLOCKS_APART = 30.0
#: Seconds in which a connection must have closed.
LETTING_GO = 1.0
#: Seconds from one look at everything to the next, and from one probe of the listening connection to the next.
POLL = 5.0
#: The exceptions of asyncpg where the server, or the network on the way to it, fails.
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a wire that breaks in the midst of a transaction
    OSError,
    TimeoutError,
    ValueError,
)

#: The unique keys, by the names that the server gives them: a restore that failed amid may have left one out.
_KEYS = frozenset(
    {
        "attempts_pkey", "attempts_client_transaction_id_attempt_key", "attempts_purchase_ask_key", "changes_pkey",
        "changes_attempt_id_version_key", "form_links_pkey", "open_attempts_pkey",
    }
)  # fmt: skip

#: Connections of this process.
_open_here: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()


def _detach_in_child() -> None:
    """Point a forked child's copies of the sockets at the null device.

    However the child ends, asyncpg would say goodbye to the server on them, and end the parent's connections.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for connection in _open_here:
        if (transport := getattr(connection, "_transport", None)) is not None:
            with suppress(OSError, ValueError):
                os.dup2(null, transport.get_extra_info("socket").fileno(), inheritable=False)
    _open_here.clear()
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach_in_child)


class _BusyServerError(LedgerUnavailableError):
    """The server takes no connection now, and may take one soon."""


def drop(connection: asyncpg.Connection | None) -> None:
    """Terminate a connection, whatever state it is in."""
    if connection is not None:
        with suppress(*FAULTS):
            connection.terminate()


async def let_go(connection: asyncpg.Connection) -> None:
    """Close a connection. A statement of it that got no answer is cancelled, or it would keep a session waiting in
    the server, and the next one another.
    """
    with suppress(Exception):  # asyncpg terminates what it cannot close
        async with asyncio.timeout(LETTING_GO):
            await connection.close()


def pauses() -> Iterator[float]:
    """Yield the seconds between attempts to reach a server."""
    return itertools.chain((0.0, 0.05, 0.1, 0.2, 0.5, 1.0), itertools.repeat(2.0))


def _split(url: Secret[str]) -> tuple[list[Secret[str]], list[str], str]:
    """Return the address of each host, the schemas that it names, and the address without user and options."""
    parts = re.fullmatch(r"postgresql://([^/?#]*@)?([^/?#@]*)([^?]*)\??(.*)", url.reveal(), re.DOTALL)
    user, hosts, path, query = parts.groups("") if parts else ("", "", "", "")
    schemas = re.findall(r"(?:^|&)schema=([^&]*)", query)
    rest = re.sub(r"(^|&)schema=[^&]*", "", query).removeprefix("&")
    each_host = [Secret(f"postgresql://{user}{host}{path}?{rest}") for host in hosts.split(",")]
    return each_host, schemas, f"postgresql://{hosts}{path}"


class Server:
    """The server and the schema of a ledger, by their address: no repr shows it, since it may hold a password.

    Raises `ConfigurationError` for a schema that is not a plain name.
    """

    def __init__(self, url: Secret[str], *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._hosts, schemas, location = _split(url)
        self.schema: str = schemas[0] if schemas else "payclient"
        if len(schemas) > 1 or not re.fullmatch(r"(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,62}", self.schema):
            raise ConfigurationError(
                "the ledger's schema must be one name of letters, digits, _ and -, such as ?schema=shop_17"
            )
        if self.schema != "payclient":
            location += f"?schema={self.schema}"
        self.location: str = location
        self.statements: dict[str, str] = {
            key: sql.replace("payclient.", f'"{self.schema}".')
            for key, sql in read_statements("postgres.sql").items()
        }
        #: The tables, views, indices, functions and guards that a ledger must have.
        self._names = _KEYS.union(
            re.findall(r'^CREATE [A-Z ]+ (?:"[^"]+"\.)?(\w+)', self.statements["schema"], re.MULTILINE)
        )
        self._bodies: list[str] = re.findall(r"\$\$(.*?)\$\$", self.statements["schema"], re.DOTALL)

    async def connect(self) -> asyncpg.Connection:
        """Connect to the first host that can be reached. Raises `ConfigurationError`, `LedgerUnavailableError`."""
        faults: list[PayError] = []
        for host in self._hosts:
            try:
                return await _connect(host, CONNECT if len(self._hosts) == 1 else CONNECT_TO_EACH)
            except PayError as error:
                faults.append(error)
        # Where all hosts failed, one that answered says more than one that did not.
        said = [fault for fault in faults if isinstance(fault, ConfigurationError | _BusyServerError)]
        raise (said or faults)[-1].with_traceback(None)

    async def open(self, *, timeout: float, create: bool = False) -> tuple[asyncpg.Connection, bytes, bool]:
        """Connect, and check the server and the schema, which `create` makes in an empty database; return
        the connection, the digest key, and whether the schema was made.

        Raises `ConfigurationError` for what is not a ledger or not a safe place for one, `LedgerMissingError`,
        `LedgerUnavailableError`.
        """
        connection = await self.connect()
        try:
            async with asyncio.timeout(timeout):
                return connection, *await self.check(connection, create)
        except FAULTS as error:
            await let_go(connection)
            fault: PayError = unavailable(error, "opened")
            if isinstance(error, asyncpg.InsufficientPrivilegeError):
                words = f"the database's user may not read or make the ledger's schema, {self.schema}"
                fault = ConfigurationError(words)
        except BaseException:
            drop(connection)
            raise
        raise fault

    async def open_patiently(self, *, create: bool = False) -> tuple[asyncpg.Connection, bytes, bool]:
        """Open, and try again for `OPENING` seconds while the server takes no connections. Raises as `open`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPENING
        for pause in pauses():
            try:
                return await self.open(timeout=OPENING, create=create)
            except _BusyServerError as error:
                if loop.time() + pause > until:
                    # Not as a `_BusyServerError`, which would pickle by a private name.
                    fault = LedgerUnavailableError(f"{error}; it was tried again for {OPENING:.0f} s")
                    break
            await asyncio.sleep(pause)
        raise fault

    async def check(self, connection: asyncpg.Connection, create: bool) -> tuple[bytes, bool]:
        """Check the server and the schema; return the digest key, and whether the schema was made."""
        _check_settings(await connection.fetchrow(self.statements["settings"]), read_only=self._read_only)
        _, meta, filled = await connection.fetchrow(self.statements["existing"], self.schema)
        foreign = ConfigurationError(f"the database's schema {self.schema} is another program's")
        if filled and not meta:
            raise foreign
        if not (meta or create):
            raise missing(self.location)
        created = not meta and await self._create(connection)
        try:
            rows = await connection.fetch(self.statements["meta"])
        except (asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError):
            rows = []
        if not rows:
            raise foreign
        version, digest_key = rows[0]
        check_version(version)
        check_one_key(key for _, key in rows)
        rows = await connection.fetch(self.statements["names"], self.schema, self._bodies)
        if lost := ", ".join(sorted(self._names - {name for (name,) in rows})):
            raise lacking(
                f"a table, a key, an index, a function or a trigger as this release makes it: {lost}"
            )
        if not self._read_only:
            await self._check_writable(connection)
        return bytes(digest_key), created

    async def _check_writable(self, connection: asyncpg.Connection) -> None:
        if lacking := await connection.fetch(self.statements["missing_rights"], self.schema):
            rights = ", ".join(f"{privilege} on {relation}" for privilege, relation in lacking)
            raise ConfigurationError(
                f"the database's user lacks rights in the ledger's schema, {self.schema}: {rights}; what became of a "
                "charge could not be written"
            )
        if await connection.fetchval(self.statements["is_behind"]):
            raise ConfigurationError(
                "the ledger's sequence, cursors, is behind its rows, which were copied without it: set it (setval)"
            )

    async def _create(self, connection: asyncpg.Connection) -> bool:
        """Make the schema; return False where another process has just made it."""
        # One transaction, so that a pooler keeps to one server.
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(self.statements["lock_creation"])
            # Another process may have made it, or a person only the empty schema, for a user who may not.
            schema, meta, _ = await connection.fetchrow(self.statements["existing"], self.schema)
            if meta:
                return False
            if not schema:
                await connection.execute(f'CREATE SCHEMA "{self.schema}"')
            await connection.execute(self.statements["schema"])
            await connection.execute(self.statements["insert_meta"], VERSION, secrets.token_bytes(32))
            return True


async def _connect(url: Secret[str], timeout: float) -> asyncpg.Connection:
    """Connect to one host. The error that it raises has none of asyncpg's words."""
    fault: PayError
    try:
        # No cache of statements: behind a pooler, the next statement may meet another server.
        connection: asyncpg.Connection = await asyncpg.connect(
            url.reveal(),
            timeout=timeout,
            statement_cache_size=0,
            server_settings={"application_name": "payclient"},
        )
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.InsufficientPrivilegeError,
    ) as error:
        fault = ConfigurationError(f"the ledger's server refuses its address ({type(error).__name__})")
    except (asyncpg.UndefinedObjectError, asyncpg.DataError, asyncpg.CantChangeRuntimeParamError) as error:
        # asyncpg hands what it does not know itself, such as psycopg's `connect_timeout`, on as a setting.
        name = type(error).__name__
        fault = ConfigurationError(
            f"an option behind the ? of the ledger's address is not asyncpg's, nor a setting of the server ({name})"
        )
    except (asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError) as error:
        what = "the ledger's server takes no more connections, or is starting or stopping"
        fault = _BusyServerError(f"{what} ({type(error).__name__})")
    except (asyncpg.PostgresError, asyncpg.InternalClientError, TimeoutError, OSError) as error:
        fault = unavailable(error, "opened")
    except (asyncpg.InterfaceError, ValueError, OverflowError):  # a port, for instance
        fault = ConfigurationError(
            "the ledger's address is not a valid postgresql://USER@HOST/DATABASE, or an option behind the ? of it "
            "lacks a valid value, as sslmode=verify-full does without sslrootcert=FILE"
        )
    except asyncio.CancelledError as cancelled:
        cancelled.__traceback__ = cancelled.__context__ = None  # asyncpg's frames hold the password
        raise
    else:
        _open_here.add(connection)
        return connection
    # Outside the `except`, so that not even `__context__` keeps what asyncpg said.
    raise fault


def _check_settings(row: Sequence[Any], *, read_only: bool) -> None:
    """Raise `ConfigurationError` for the first setting with which a ledger could not write, or could lose a permit."""
    commit, standbys, fsync, pages, writes_nothing, isolation, encoding, shown, *server = row
    is_standby, version, server_time = server
    ahead = time.time() - server_time
    refuse_if(
        (version < 140000, f"PostgreSQL is {version // 10000}; a ledger needs 14 or later"),
        (is_standby, "the server is a standby, which takes no writes: give the primary's address"),
        (
            writes_nothing != "off" and not read_only,
            "default_transaction_read_only is on: a ledger must write",
        ),
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
        (
            shown == "error" and standbys != "",
            "client_min_messages is error: the server could not warn that a commit is on no standby, whose permit a "
            "failover would lose",
        ),
        (
            abs(ahead) > CLOCKS_APART,
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the database "
            "server's: machines that share a ledger must agree when a form's links are dead; set it (NTP)",
        ),
    )


# The writes of other processes: LISTEN on a connection of its own, and a poll all the same. A listener that dies, or a
# pooler that cannot LISTEN, costs time and loses nobody: every watcher is called to look again after each reconnection
# and every few seconds.

#: Called with a client transaction id that was notified or decided; None: look again at all that you wait for.
Woken = Callable[[str | None], None]


class Listener:
    """Calls its watchers, on the event loop in which it was made."""

    def __init__(self, server: Server, poll: float) -> None:
        self._server = server
        self._poll = poll
        self._watchers: set[Woken] = set()
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Call `woken` for each change from now on, until what this returns is called."""
        self._watchers.add(woken)
        return partial(self._watchers.discard, woken)

    def _wake(self, client_transaction_id: str | None) -> None:
        for woken in tuple(self._watchers):
            try:
                woken(client_transaction_id)
            except Exception as error:  # one watcher's fault is not another's
                what = "a watcher of the ledger failed: %s"
                log("error", "ledger_watcher_failed", "", what, type(error).__name__)

    def _on_notify(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        self._wake(str(payload) or None)

    async def _listen(self) -> None:
        """Wake the watchers at each notification, over one connection after another, and every few seconds."""
        seen: set[int] = set()  # the cursors of the hints that the watchers were woken for
        while True:
            connection: asyncpg.Connection | None = None
            try:
                connection = await self._server.connect()
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                async with asyncio.timeout(self._poll):
                    await connection.add_listener(self._server.schema, self._on_notify)
                while not lost.is_set():
                    self._wake(None)  # before the query, which a silent wire holds up
                    rows = await connection.fetch(self._server.statements["hinted"], timeout=self._poll)
                    # Once for each hint, which may be forged: the process that follows its ask queries at once.
                    for cursor, hinted in rows:
                        if cursor not in seen:
                            self._wake(hinted)
                    seen = {cursor for cursor, _ in rows}
                    with suppress(TimeoutError):
                        # Not `wait_for`, which may lose our cancellation on CPython 3.11.
                        async with asyncio.timeout(self._poll):
                            await lost.wait()
            except Exception:  # whatever it is: go on by another connection
                self._wake(None)
                await asyncio.sleep(self._poll)  # in which asyncpg cancels what got no answer
            finally:
                drop(connection)

    async def aclose(self) -> None:
        """Stop listening."""
        await cancel_all([self._task])
