"""The durable record of attempts: what must be on disk before a byte leaves, and what is known since.

The permit *is* the INSERT of an attempt: its unique key decides who may send. Read `records` (rows), `batch` and
`writer` (what both databases share), then `sqlite` with `sqlite_files`, or `postgres` with `postgres_connection`;
`memory` stands alone, `archive` makes files, and the statements are in `*.sql`.

A ledger holds no personal data in the clear, but keyed digests. Their key lies in the ledger, so that anyone who has
the file can test guesses, such as all phone numbers of a country. Guard the file and its backups as a list of
customers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import attrs
import orjson

from payclient.errors import ConfigurationError, LedgerUnavailableError, PayError, TransitionError
from payclient.events import Event, Evidence
from payclient.lifecycle import Record, State
from payclient.logs import ledger_log as log
from payclient.secret import Secret
from payclient.validation import check_type

__all__ = ["Change", "Ledger", "archive_ledger", "backup_ledger", "open_ledger"]

#: NUL, and the surrogates that stand for no byte of a file's name.
_IN_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")


class TransactionTakenError(TransitionError):
    """The answer names a transaction that another client transaction id has; nothing was changed."""

    @classmethod
    def of(cls, record: Record, transaction_id: int | None) -> Self:
        """Return the error of an attempt that was answered with this transaction."""
        return cls(
            f"the answer names transaction {transaction_id}, which is another sale's",
            client_transaction_id=record.client_transaction_id,
        )


@attrs.frozen(kw_only=True)
class Change:
    """One row of the append-only history: an event that an attempt took. `at` is UTC seconds."""

    #: Its place in the ledger's order, rising; a feed goes on from here.
    cursor: int
    client_transaction_id: str
    attempt: int
    at: float
    #: The event's class name; `Permitted` for the first.
    event: str
    #: None for the first.
    before: State | None
    after: State
    evidence: Evidence
    #: The further facts of the event: ids, an actor and a reason, a conflict.
    detail: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The further facts of the event by their names."""
        return orjson.loads(self.detail) if self.detail else {}


#: The attempts of each client transaction id, and those of a purchase.
FoundRecords = tuple[dict[str, list[Record]], list[Record]]


class PurchaseHeldError(Exception):
    """Another ask of the same purchase is paid, or may yet be paid: nothing was permitted. `holder` is that ask."""

    def __init__(self, holder: Record) -> None:
        self.holder = holder


def unavailable(error: BaseException, done: str) -> LedgerUnavailableError:
    """Return the error of a ledger that could not be `done`: with the fault's name, without any statement or value."""
    if isinstance(error, PayError):  # our own words
        return LedgerUnavailableError(str(error))
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if type(error) is OSError:  # others have a class that says what it is
        name = errno.errorcode.get(error.errno or 0, name)
    return LedgerUnavailableError(f"the ledger could not be {done} ({name})")


class Ledger(Protocol):
    """The durable record that sending, following and forms share.

    Every method raises `LedgerUnavailableError` where it cannot do its work. Cancelling a call is safe: what was queued
    is still carried out, in order.
    """

    #: 32 random bytes of this ledger's own, with which content and lanes are hashed.
    digest_key: bytes
    #: The address of this ledger, with the absolute path of a file and without any user or password.
    location: str
    #: Whether this opening made the ledger: a new one knows no earlier charge.
    created: bool

    async def service_fingerprint(self, mine: bytes, *, moved: bool = False) -> bytes:
        """Return the fingerprint of the service that this ledger is used with.

        Where the ledger has none yet, or the service has `moved`, `mine` is written into it first.
        """

    async def permit(self, record: Record) -> bool:
        """Insert a SENDING attempt; it is durable when this returns True.

        False: there is an attempt of its client transaction id that forbids it (the same number, or one that is not
        REFUSED). Raises `PurchaseHeldError` where an ask of its purchase under another id is paid or open; an open
        form counts unless the record says `beside_open_form`. Where two at once exclude each other, one is granted,
        whichever processes they come from.
        """

    async def apply(self, record: Record, event: Event) -> Record:
        """Apply the event to the attempt and return the updated record. Durable once this returns.

        `record` is what the event was made of: where the ledger's is newer, the event is applied to that one.
        Raises `TransitionError`, changing nothing, where its state does not take the event, or what is known since has
        overtaken it. Its subclass `TransactionTakenError` is raised for a `Created` whose transaction id another client
        transaction id has, sent under the same credentials.
        """

    async def find(self, ids: Sequence[str], purchase: str | None = None) -> FoundRecords:
        """Return the attempts of each of those ids, number n at n - 1, and those of a purchase in the order of their
        permits, in one round trip. An id without an attempt is left out.
        """

    async def get(self, client_transaction_id: str) -> Record | None:
        """Return the newest attempt of a client transaction id."""
        return (await self.get_many((client_transaction_id,))).get(client_transaction_id)

    async def get_many(self, client_transaction_ids: Sequence[str]) -> dict[str, Record]:
        """Return the newest attempts of those ids that have one."""
        found, _ = await self.find(client_transaction_ids)
        return {key: attempts[-1] for key, attempts in found.items()}

    async def asks(self, purchase: str) -> list[Record]:
        """Return every attempt of a purchase, in the order of their permits."""
        return (await self.find((), purchase))[1]

    async def taken_by(self, record: Record, transaction_id: int) -> str | None:
        """Return which other sale, sent under the credentials of this one, has a transaction; None: none has."""

    async def keep_links(self, record: Record, links: str, until: float) -> None:
        """Keep the links of a form until a time (UTC seconds): secrets, which no other method returns."""

    async def links(self, purchase: str, now: float) -> dict[str, str]:
        """Return the links that are kept of the purchase's forms that live, by client transaction id."""

    async def drop_links(self, now: float) -> float | None:
        """Delete the links of every form that is decided or whose time is over; return when the next ones are dead.

        A form that its customer closed keeps them: it may be handed out again. Fails where the ledger takes no writes,
        though there is nothing to delete.
        """

    def unfinished(self) -> AsyncIterator[Record]:
        """Yield every attempt that is SENDING, UNKNOWN, PENDING, EXPIRED or REVERSING at the call, oldest first."""

    def records(self) -> AsyncIterator[Record]:
        """Yield every attempt there is, in the order of their permits."""

    async def history(self, client_transaction_id: str) -> list[Change]:
        """Return every change of a client transaction id, oldest first."""

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        """Return the changes after a cursor into a state other than SENDING, UNKNOWN and PENDING, oldest first."""

    async def aclose(self) -> None:
        """Carry out what is queued and let go of the ledger. May be called twice."""


@runtime_checkable
class Shared(Ledger, Protocol):
    """A ledger that several processes have open: it wakes them, and shares out what is open among them.

    Each open attempt has a time at which it is due. Until then one process holds and follows it, and puts that time off
    while it lives; then any process may claim the attempt. All times here are the database's. Holding is for
    efficiency only: two processes that follow one attempt query twice, and write nothing wrong.
    """

    def watch(self, woken: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `woken` with each client transaction id that is notified or decided, by whichever process.

        Call `woken` with None every few seconds, and whenever a change may have been missed: look again at all that you
        wait for. The function that this returns ends the watch.
        """

    def hold(self, seconds: float) -> None:
        """From now on hold each attempt that is permitted here: no other process may claim it for so many seconds."""

    async def claim_due(self, limit: int, seconds: float) -> list[Record]:
        """Claim up to `limit` open attempts that are due, and hold them for so many seconds, oldest first.

        One that is SENDING is due when nobody can be sending it any more.
        """

    async def renew(self, seconds: float) -> int:
        """Renew for so many seconds this process's leases that end soon, and return how many it holds."""

    async def held(self) -> set[str]:
        """Return the client transaction ids of the attempts that this process holds."""

    async def defer(self, seconds: Mapping[str, float]) -> None:
        """Hold this process's leases of these client transaction ids for so many seconds without renewal.

        A notification shortens that to 30 seconds, whether the holder lives or not. What is put off for more than a day
        is held by nobody: then any process may claim it, and after a notification at once.
        """

    async def note_overpaid(self, at: float) -> None:
        """Write that a purchase was paid twice where a process ended between the second payment and that."""

    async def reserve(self, gap: float) -> float:
        """Reserve a query in the rate of all processes, with `gap` seconds behind it; return the seconds until it."""

    async def pause(self, seconds: float) -> None:
        """Forbid every process to query for so many seconds. Queries that are reserved already may be made."""


async def open_ledger(url: str | Secret[str], *, create: bool = True, read_only: bool = False) -> Ledger:
    """Open `memory:`, `sqlite:PATH` (relative, or absolute as in `sqlite:/var/lib/shop/charges.db`) or
    `postgresql://USER@HOST/DATABASE`.

    A ledger that is not there is made, which is logged as a warning: a new one knows no earlier charge. With `create`
    False `LedgerMissingError` is raised instead, and nothing is made. With `read_only` nothing is made either; a SQLite
    file is then read beside its owner, and a write to it raises `LedgerUnavailableError`.

    Raises `ConfigurationError` for another address or an unsafe server or file, `LedgerInUseError` for a file that
    another process owns, and `LedgerUnavailableError` for a ledger that cannot be reached.
    """
    url = Secret.of(url)  # error trackers record the local variables of a frame that raises
    create = create and not read_only
    if url.reveal() == "memory:":
        from payclient.ledger.memory import MemoryLedger

        return MemoryLedger()
    kind, address = _class_and_address(
        url, "ledger must be memory:, sqlite:PATH or postgresql://USER@HOST/DATABASE"
    )
    ledger: Ledger = await kind.open(address, create=create, read_only=read_only)
    if ledger.created:
        what = "the ledger %s is new: it knows no earlier charge"
        log("warning", "ledger_created", "", what, ledger.location)
    return ledger


async def backup_ledger(url: str | Secret[str], path: str | os.PathLike[str]) -> None:
    """Copy a SQLite ledger, `sqlite:PATH`, to a new file that is a ledger too; its owner may go on writing meanwhile.

    Call it from any process and any event loop. The copy is of mode 0600, put in place whole, and never over another
    file. A copy does not know what was charged after it: restore it only where the ledger itself is lost, and never
    charge with both.

    Raises `ConfigurationError` where `path` is there already or `url` is not that of a SQLite ledger,
    `LedgerMissingError`, `LedgerUnavailableError`.
    """
    url = Secret.of(url)  # as in `open_ledger`
    source = _sqlite_path(url)
    if source is None:
        raise ConfigurationError(
            "a ledger that is backed up must be sqlite:PATH; for PostgreSQL use pg_dump or its own backups"
        )
    from payclient.ledger.archive import back_up

    await asyncio.to_thread(back_up, source, os.fspath(path))


async def archive_ledger(url: str | Secret[str], before: float, path: str | os.PathLike[str]) -> int:
    """Move the attempts that were decided before a time (UTC seconds) out of a ledger into a new file of mode 0600;
    return how many.

    An attempt stays while it is open, unknown or being given back, while another attempt of its client transaction id
    stays, and while it has links that may be handed out. The file keeps an attempt with all its changes, as a line of
    JSON. The ledger keeps its ids, its purchase, the digest of its content and how it ended: permits, `find` and
    purchases answer as before; its history is in the file, and it takes no more events.

    A block of attempts at a time is written and read back; then the history of those that have not changed meanwhile
    is deleted. After a crash, or cancelled, archive the rest to another file; the last block may be in both. A SQLite
    ledger must be closed; a PostgreSQL one may be in use.

    Raises `ConfigurationError` where `path` is there already, where `before` is in the future, or for another kind of
    ledger; `LedgerMissingError`, `LedgerInUseError`, `LedgerUnavailableError`.
    """
    from payclient.ledger.archive import archive

    url = Secret.of(url)  # as in `open_ledger`
    check_type("before", before, int | float)
    if not before <= time.time():
        raise ConfigurationError("the time before which attempts are archived must not be in the future")
    file = os.path.abspath(os.fspath(path))  # noqa: ASYNC240 - reads no disk
    words = "a ledger that is archived must be sqlite:PATH or postgresql://USER@HOST/DATABASE"
    kind, address = _class_and_address(url, words)
    ledger = await kind.open(address, create=False)
    try:
        if isinstance(ledger, Shared):
            # Overpayments are looked for among the newest changes, of which the archive makes one for each attempt.
            await ledger.note_overpaid(time.time())
        return await archive(ledger, before, file)
    finally:
        await ledger.aclose()


def _sqlite_path(url: Secret[str]) -> str | None:
    """Return the path of a SQLite ledger, or None. Raises `ConfigurationError` for another library's spelling."""
    kind, _, path = str(url.reveal()).partition(":")
    if kind != "sqlite" or path in ("", ":memory:") or _IN_NO_PATH.search(path):
        return None
    if path.startswith("//"):
        name = path.lstrip("/") or "charges.db"
        raise ConfigurationError(
            f"a SQLite ledger must be sqlite:PATH without two slashes: sqlite:{name} is in this directory, and "
            f"sqlite:/{name} at the root of the disk; nothing was opened"
        )
    return path


def _class_and_address(url: Secret[str], words: str) -> tuple[Any, str | Secret[str]]:
    """Return the class of a ledger in a database, loaded only here, and its address there.

    Raises `ConfigurationError`: with these words for any other ledger, or where asyncpg is not installed.
    """
    if (path := _sqlite_path(url)) is not None:
        from payclient.ledger.sqlite import SqliteLedger

        return SqliteLedger, path
    if not str(url.reveal()).startswith("postgresql://"):
        raise ConfigurationError(words)
    try:
        from payclient.ledger.postgres import PostgresLedger
    except ImportError:
        words = "a postgresql: ledger needs asyncpg: pip install payclient[postgres]"
        raise ConfigurationError(words) from None
    return PostgresLedger, url
