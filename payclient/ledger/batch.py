"""Operations on a ledger, and batches of them: what is written in one transaction, and how each is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import attrs

from payclient.errors import LedgerUnavailableError, PayError, TransitionError
from payclient.events import Created, Event, NotSent
from payclient.ledger import PurchaseHeldError, TransactionTakenError, unavailable
from payclient.ledger.records import (
    change_row,
    grouped,
    may_permit,
    moved,
    overpaid,
    purchase_holder,
    record_of,
)
from payclient.lifecycle import Record, State, advance

__all__ = ["Batch", "Database", "Get", "Operation", "Read", "Write", "resolve"]

#: Tries of a write that the database does not take, although the ledger's records allow the write.
TRIES = 3

Row = tuple[Any, ...]
Rows = Sequence[Sequence[Any]]


# Mutable, since attrs makes those four times as fast; nothing changes them but the writer that has them.


@attrs.define(eq=False)
class Operation:
    """One call on the ledger, which awaits the future."""

    future: asyncio.Future[Any]


@attrs.define(eq=False)
class Write(Operation):
    """Insert the attempt, and answer whether it was permitted; or apply an event, and answer the updated record."""

    record: Record
    event: Event | None = None
    #: The row to insert; None where the caller's record does not take the event, though the ledger's may.
    row: Row | None = None
    after: Record | None = None
    tries: int = 0

    def prepare(self, event: Event, before: Record, after: Record) -> None:
        """Set the row that the event writes, as it leads from `before` to `after`."""
        self.record, self.after, self.row = before, after, change_row(before, event, after)


@attrs.define(eq=False)
class Get(Operation):
    """Find the attempts of these ids, and all of a purchase; the answer is a list of attempts, the newest last, by id,
    and one of those of the purchase.
    """

    ids: Sequence[str]
    purchase: str | None = None


@attrs.define(eq=False)
class Read(Operation):
    """Execute a named statement; the answer is its rows."""

    name: str
    parameters: Row


class Database(Protocol):
    """What batches and archives do in a database. Over SQLite none of this ever waits."""

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

    def exclusive_transaction(self) -> AbstractAsyncContextManager[None]:
        """Begin a transaction beside which nobody writes, and commit it."""


class Batch:
    """Operations that are carried out together: first the writes, in one transaction where the database has one open,
    then the reads. The answers are results and exceptions.
    """

    def __init__(self, operations: Sequence[Operation], paid: list[Write] | None = None) -> None:
        """`paid`: writes of a failed batch that may have paid, whose purchases `write` has yet to check."""
        self.operations = operations
        self.writes: list[Write] = [each for each in operations if isinstance(each, Write)]
        self.answers: dict[Operation, Any] = {}
        self._paid = [] if paid is None else paid

    def fail(self, error: LedgerUnavailableError, operations: Iterable[Operation] | None = None) -> None:
        """Answer these operations by the error, or all that have no answer."""
        if operations is None:
            operations = [each for each in self.operations if each not in self.answers]
        for each in operations:
            self._fail(each, error)

    async def write(self, database: Database) -> None:
        """Carry out the writes."""
        try:
            await self._write(database)
        finally:
            for each in self.writes:
                # Without an answer the write may be on record all the same.
                after = self.answers.get(each, each.after)
                is_paid = isinstance(after, Record) and after.state is State.ACCEPTED
                if is_paid and each.record.state is not State.ACCEPTED:
                    self._paid.append(each)
        if self._paid:
            await self._note_overpaid(database)
            self._paid.clear()

    async def _write(self, database: Database) -> None:
        """Carry out the writes in rounds: in each the first one that is left of each client transaction id."""
        writes = self.writes
        while writes:
            first: dict[str, Write] = {}
            later = [
                each
                for each in writes
                if first.setdefault(each.record.client_transaction_id, each) is not each
            ]
            writes = await self._insert(database, list(first.values())) + later

    async def read(self, database: Database) -> None:
        """Carry out the reads."""
        await self._get(database, [each for each in self.operations if isinstance(each, Get)])
        for each in self.operations:
            if isinstance(each, Read):
                try:
                    self.answers[each] = await database.fetch(each.name, each.parameters)
                except database.value_faults as error:
                    self._fail(each, unavailable(error, "read"))

    async def _get(self, database: Database, gets: list[Get]) -> None:
        """Answer all by one look-up; where the database does not take an id, each by a look-up of its own."""
        if not gets:
            return
        ids = {id_ for each in gets for id_ in each.ids}
        purchases = {each.purchase for each in gets if each.purchase is not None}
        try:
            attempts, asks = await database.look_up(list(ids), list(purchases))
        except database.value_faults as error:
            if len(gets) == 1:
                self._fail(gets[0], unavailable(error, "read"))
            else:
                for each in gets:
                    await self._get(database, [each])
            return
        found, of_purchase = grouped(attempts), grouped(asks, "purchase")
        for each in gets:
            known = {id_: found[id_] for id_ in each.ids if id_ in found}
            self.answers[each] = known, of_purchase.get(each.purchase or "", [])

    async def _insert(self, database: Database, writes: list[Write]) -> list[Write]:
        """Insert these writes, no two of which have one id, and answer them; return those to try again."""
        permits, changes = rows_of(writes)
        fault: LedgerUnavailableError | None = None
        inserted: Container[str] = ()
        try:
            if permits or changes:
                inserted = await database.insert(permits, changes)
        except database.value_faults as error:
            if len(writes) > 1:
                return [again for each in writes for again in await self._insert(database, [each])]
            fault = unavailable(error, "written")
        rest = []
        for each in writes:
            if each.record.client_transaction_id in inserted:
                self.answers[each] = each.after or True  # a permit has no record after it
            else:
                rest.append(each)
        return await self._settle(database, rest, fault) if rest else []

    async def _settle(
        self, database: Database, writes: list[Write], fault: LedgerUnavailableError | None
    ) -> list[Write]:
        """Answer the writes that the database did not take by what it holds; return those to try again."""
        ids = [each.record.client_transaction_id for each in writes]
        purchases = {each.record.purchase for each in writes if each.event is None}
        try:
            attempts, of_purchases = await database.look_up(ids, list(purchases))
        except database.value_faults as error:
            if len(writes) > 1:
                raise
            self._fail(writes[0], fault or unavailable(error, "read"))
            return []
        known, asks = grouped(attempts), [record_of(row) for row in of_purchases]
        again = []
        for each in writes:
            found = known.get(each.record.client_transaction_id, [])
            try:
                if await _may_try_again(database, each, found, asks, fault):
                    again.append(each)
                else:
                    self.answers[each] = False
            except (PayError, PurchaseHeldError) as error:
                self._fail(each, error)
        return again

    async def _note_overpaid(self, database: Database) -> None:
        """Write `Overpaid` for each payment in `_paid` whose purchase another ask has paid, too."""
        purchases = {each.record.purchase for each in self._paid}
        _, rows = await database.look_up((), list(purchases))
        if len(rows) == len(purchases):
            return  # no purchase has another ask
        asks = [record_of(row) for row in rows]
        # Of several writes about one attempt the last counts.
        paid = {(each.record.client_transaction_id, each.record.attempt): each for each in self._paid}
        for record in asks:
            each = paid.get((record.client_transaction_id, record.attempt))
            if each is None or each.event is None:
                continue
            if also_paid := overpaid(asks, each.record, record, each.event.at):
                noted = advance(record, also_paid)
                with suppress(*database.value_faults):
                    inserted = await database.insert([], [change_row(record, also_paid, noted)])
                    if inserted and record == self.answers.get(each):  # no later write has changed it
                        self.answers[each] = noted

    def _fail(self, operation: Operation, error: BaseException) -> None:
        if isinstance(operation, Write) and isinstance(error, PayError):
            identifier = operation.record.client_transaction_id
            error = type(error)(str(error), client_transaction_id=identifier)
        self.answers[operation] = error


async def _may_try_again(
    database: Database, write: Write, attempts: list[Record], asks: list[Record], fault: PayError | None
) -> bool:
    """Return whether a write is worth another try by the ledger's records, which may be newer than the caller's.

    False: an attempt forbids the permit. Raises what else the write is answered by.
    """
    event, row = write.event, write.row
    write.tries += 1
    if event is None:
        if not may_permit(attempts, write.record):
            return False
        if holder := purchase_holder(asks, write.record):
            raise PurchaseHeldError(holder)
    else:
        write.prepare(event, *moved(attempts, write.record, event))
        record = write.record
        if isinstance(event, Created) and record.credentials:
            key = (event.transaction_id, record.credentials, record.client_transaction_id)
            if await database.fetch("taken_by", key):
                raise TransactionTakenError.of(record, event.transaction_id)
        if write.row != row:
            return True  # it is another write now, after what the ledger has
        if fault is None and isinstance(event, NotSent):
            # PostgreSQL takes NotSent only from the process that was granted the attempt.
            raise TransitionError("another process was granted this attempt")
    if fault is not None or write.tries == TRIES:
        raise fault or LedgerUnavailableError("the ledger did not take this")
    return True


def rows_of(writes: Iterable[Write]) -> tuple[list[Row], list[Row]]:
    """Return the rows to insert: those of permits, and those of changes."""
    permits: list[Row] = []
    changes: list[Row] = []
    for each in writes:
        if each.row is not None:
            (permits if each.event is None else changes).append(each.row)
    return permits, changes


def resolve(answers: dict[Operation, Any]) -> None:
    """Resolve the future of each operation by its answer. Called in the loop."""
    for operation, answer in answers.items():
        if operation.future.done():  # cancelled
            continue
        if isinstance(answer, BaseException):
            operation.future.set_exception(answer)
        else:
            operation.future.set_result(answer)
