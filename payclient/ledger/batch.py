"""Operations on a ledger, and how a batch of them is carried out: the writes in one transaction, then the reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import attrs

from payclient.errors import LedgerUnavailableError, PayError, TransitionError
from payclient.events import Created, Event, NotSent
from payclient.ledger import PurchaseHeldError, TransactionTakenError, unavailable
from payclient.ledger.records import advance_attempt, change_row, grouped, may_permit, overpaid
from payclient.lifecycle import PAID, Record, State, advance

__all__ = ["Database", "Get", "Operation", "Read", "Write", "fail", "read", "resolve", "write", "writes_of"]

#: Tries of a write that the database does not take, although the ledger's records allow the write.
TRIES = 3

Row = tuple[Any, ...]
Rows = Sequence[Sequence[Any]]


# Mutable, since attrs makes those four times as fast; nothing changes them but the writer that has them.


@attrs.define(eq=False)
class Operation:
    """One call on the ledger, which awaits the future that the writer makes of it."""

    future: asyncio.Future[Any] = attrs.field(init=False)
    #: A result or an exception, once the operation is carried out; never None then.
    answer: Any = attrs.field(default=None, init=False)

    def fail(self, error: BaseException) -> None:
        self.answer = error


@attrs.define(eq=False)
class Write(Operation):
    """Insert the attempt, and answer whether it was permitted; or apply an event, and answer the updated record."""

    #: As the caller knows it.
    record: Record
    event: Event | None = None
    #: The row to insert; None where the caller's record does not take the event, though the ledger's may.
    row: Row | None = None
    #: As the row leads from one to the other.
    before: Record = attrs.field(init=False)
    after: Record | None = attrs.field(default=None, init=False)
    tries: int = attrs.field(default=0, init=False)

    @property
    def identifier(self) -> str:
        return self.record.client_transaction_id

    def prepare(self, event: Event, before: Record, after: Record) -> None:
        """Set the row that the event writes, as it leads from `before` to `after`."""
        self.before, self.after, self.row = before, after, change_row(before, event, after)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, PayError):  # many writes may share it: a copy names this id
            error = type(error)(str(error), client_transaction_id=self.identifier)
        self.answer = error


@attrs.define(eq=False)
class Get(Operation):
    """Find attempts and asks; the answer is that of `Ledger.find`."""

    ids: Sequence[str]
    purchase: str | None


@attrs.define(eq=False)
class Read(Operation):
    """Do something in the database beside the writes; the answer is what that returns."""

    work: Callable[[Database], Awaitable[Any]]


def writes_of(operations: Iterable[Operation]) -> list[Write]:
    return [each for each in operations if isinstance(each, Write)]


def fail(operations: Iterable[Operation], error: LedgerUnavailableError) -> None:
    """Answer the operations that have no answer by the error."""
    for each in operations:
        if each.answer is None:
            each.fail(error)


def resolve(operations: Iterable[Operation]) -> None:
    """Resolve the future of each operation by its answer. Called in the loop."""
    for each in operations:
        if each.future.done():  # cancelled
            continue
        if isinstance(each.answer, BaseException):
            each.future.set_exception(each.answer)
        else:
            each.future.set_result(each.answer)


class Database(Protocol):
    """The work of batches and archives in a database. Over SQLite none of this ever waits."""

    #: Exceptions about a row or a value that the database does not take; nothing was changed. Any other exception is
    #: about the database as a whole.
    value_faults: tuple[type[BaseException], ...]

    async def insert(self, permits: list[Row], changes: list[Row]) -> Container[str]:
        """Insert all rows, each of another client transaction id, but for those that other rows of the database
        forbid; return the ids of the inserted ones.
        """

    async def look_up(self, ids: Sequence[str], purchases: Sequence[str]) -> tuple[Rows, Rows]:
        """Return rows of the records of client transaction ids, and of those of purchases, in one round trip."""

    async def fetch(self, name: str, parameters: Row) -> Rows:
        """Return the rows of a named statement."""

    async def end_deletion(self, *, were_deleted: bool) -> bool:
        """Wipe the deleted links from the disk, and return whether all are. Unless some `were_deleted` just now, write
        what changes nothing; raise where the database takes no write.
        """


async def read(database: Database, operations: Sequence[Operation]) -> None:
    """Carry out the reads among the operations."""
    await _get(database, [each for each in operations if isinstance(each, Get)])
    for each in operations:
        if isinstance(each, Read):
            try:
                each.answer = await each.work(database)
            except database.value_faults as error:
                each.fail(unavailable(error, "read"))


async def _get(database: Database, gets: list[Get]) -> None:
    """Answer all by one look-up; where the database does not take an id, each by a look-up of its own."""
    if not gets:
        return
    ids = {id_ for each in gets for id_ in each.ids}
    purchases = {each.purchase for each in gets if each.purchase is not None}
    try:
        attempts, asks = await database.look_up(list(ids), list(purchases))
    except database.value_faults as error:
        for each in gets:
            if len(gets) > 1:
                await _get(database, [each])
            else:
                each.fail(unavailable(error, "read"))
        return
    found, of_purchase = grouped(attempts), grouped(asks, "purchase")
    for each in gets:
        known = {id_: found[id_] for id_ in each.ids if id_ in found}
        each.answer = known, of_purchase.get(each.purchase or "", [])


async def write(database: Database, writes: Sequence[Write]) -> None:
    """Carry out the writes, and note what is overpaid."""
    waiting = writes
    while waiting:
        # In rounds: in each the first that is left of each client transaction id.
        first: dict[str, Write] = {}
        for each in waiting:
            first.setdefault(each.identifier, each)
        later = [each for each in waiting if each is not first[each.identifier]]
        waiting = await _insert(database, list(first.values())) + later
    accepted = (each for each in writes if getattr(each.answer, "state", None) is State.ACCEPTED)
    if paid := [each for each in accepted if each.before.state not in PAID]:
        await _note_overpaid(database, paid)


async def _insert(database: Database, writes: list[Write]) -> list[Write]:
    """Insert these writes, all of different ids, and answer them; return those to try again."""
    permits = [each.row for each in writes if each.row and each.event is None]
    changes = [each.row for each in writes if each.row and each.event]
    fault: LedgerUnavailableError | None = None
    inserted: Container[str] = ()
    try:
        inserted = await database.insert(permits, changes)
    except database.value_faults as error:
        if len(writes) > 1:
            return [again for each in writes for again in await _insert(database, [each])]
        fault = unavailable(error, "written")
    rest = []  # had no row, or one that the database did not take
    for each in writes:
        if each.identifier in inserted:
            each.answer = each.after or True  # a permit has no record after it
        else:
            rest.append(each)
    return await _answer_uninserted(database, rest, fault) if rest else []


async def _answer_uninserted(
    database: Database, writes: list[Write], fault: LedgerUnavailableError | None
) -> list[Write]:
    """Answer writes that were not inserted by the records of the database; return those to try again.

    `fault`: why the database did not take the only one of them; None: rows of the database forbade them.
    """
    purchases = {each.record.purchase for each in writes if each.event is None}
    try:
        attempts, of_purchases = await database.look_up([each.identifier for each in writes], list(purchases))
    except database.value_faults as error:
        if len(writes) > 1:
            raise
        writes[0].fail(fault or unavailable(error, "read"))
        return []
    known, asks = grouped(attempts), grouped(of_purchases, "purchase")
    again = []
    for each in writes:
        found, others = known.get(each.identifier, []), asks.get(each.record.purchase, [])
        try:
            if await _answer_or_try_again(database, each, found, others, fault):
                again.append(each)
        except (PayError, PurchaseHeldError) as error:
            each.fail(error)
    return again


async def _answer_or_try_again(
    database: Database, write: Write, attempts: list[Record], asks: list[Record], fault: PayError | None
) -> bool:
    """Answer a write, raise the error that is its answer, or return True where it is tried again.

    The ledger's records decide: they may be newer than the caller's. `fault`: why the database did not take the write;
    None: rows of the database forbade it.
    """
    event, row = write.event, write.row
    write.tries += 1
    if event is None:
        if not may_permit(attempts, asks, write.record):
            write.answer = False
            return False
    else:
        write.prepare(event, *advance_attempt(attempts, write.record, event))
        record = write.before
        if isinstance(event, Created) and record.credentials:
            key = (event.transaction_id, record.credentials, record.client_transaction_id)
            if await database.fetch("taken_by", key):
                raise TransactionTakenError.of(record, event.transaction_id)
        if write.row != row:
            return True  # the ledger's newer record makes another row of it
    if fault is not None:
        raise fault
    if write.tries < TRIES:
        return True
    if isinstance(event, NotSent):
        # PostgreSQL takes NotSent only from the process that was granted the attempt.
        raise TransitionError("another process was granted this attempt")
    raise LedgerUnavailableError("the ledger did not take this")


async def _note_overpaid(database: Database, paid: list[Write]) -> None:
    """Write `Overpaid` for each of these payments whose purchase another ask has paid, too."""
    purchases = {each.record.purchase for each in paid}
    _, rows = await database.look_up((), list(purchases))
    if len(rows) == len(purchases):
        return  # no purchase has another ask
    # The last of several writes about one attempt counts.
    payments = {(each.identifier, each.record.attempt): each for each in paid}
    for asks in grouped(rows, "purchase").values():
        for record in asks:
            write = payments.get((record.client_transaction_id, record.attempt))
            if write is None or write.event is None:
                continue
            write.answer = await _write_overpaid(database, asks, record, write.event.at) or write.answer


async def _write_overpaid(database: Database, asks: list[Record], record: Record, at: float) -> Record | None:
    """Write `Overpaid` where others of these asks are paid, too, and return the record after it."""
    if (also_paid := overpaid(asks, record, at)) is not None:
        noted = advance(record, also_paid)
        with suppress(*database.value_faults):
            if await database.insert(permits=[], changes=[change_row(record, also_paid, noted)]):
                return noted
    return None


async def note_unsaid(database: Database, at: float) -> None:
    """Write `Overpaid` where none followed a payment: its process or connection ended, or a write came between."""
    newest = {purchase: payment for purchase, *payment in await database.fetch("unsaid", ())}
    _, rows = await database.look_up((), list(newest))
    for purchase, asks in grouped(rows, "purchase").items():
        for record in asks:
            # Where the version is another, another process may have written it by now.
            if [record.client_transaction_id, record.version] == newest[purchase]:
                await _write_overpaid(database, asks, record, at)
