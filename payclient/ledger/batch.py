"""Operations on a ledger, and batches of them: what is written in one transaction, and how each is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import attrs

from payclient.errors import LedgerUnavailableError, PayError, TransitionError
from payclient.events import Created, Event, NotSent
from payclient.ledger import PurchaseHeldError, TransactionTakenError
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

__all__ = ["Apply", "Batch", "Database", "Get", "Operation", "Permit", "Read", "Write", "resolve"]

#: Times that a write is tried which the database does not take, though by what the ledger holds it should.
TRIES = 3


# Operations. Mutable, since attrs makes those four times as fast; nothing changes them but the writer that has them.


@attrs.define(eq=False)
class Permit:
    """Insert the attempt; the answer is whether it was granted."""

    future: asyncio.Future[Any]
    record: Record
    row: tuple[Any, ...]
    tries: int = 0
    #: By the loop's clock.
    since: float = 0.0


@attrs.define(eq=False)
class Apply:
    """Let the attempt take the event; the answer is the record as it is then."""

    future: asyncio.Future[Any]
    record: Record
    event: Event
    #: None where the caller's record does not take the event; the ledger's may.
    after: Record | None = None
    row: tuple[Any, ...] | None = None
    tries: int = 0
    since: float = 0.0

    def aim(self, before: Record, after: Record) -> None:
        """Let the event move the attempt from this record to that one."""
        self.record, self.after, self.row = before, after, change_row(before, self.event, after)


@attrs.define(eq=False)
class Get:
    """Find the attempts of these ids; the answer is a list of them, the newest last, by id."""

    future: asyncio.Future[Any]
    ids: Sequence[str]
    since: float = 0.0


@attrs.define(eq=False)
class Read:
    """Execute a named statement; the answer is its rows."""

    future: asyncio.Future[Any]
    name: str
    parameters: tuple[Any, ...]
    since: float = 0.0


Write = Permit | Apply
Operation = Write | Get | Read
Answer = tuple[Operation, Any, BaseException | None]


class Database(Protocol):
    """What batches and archives do in a database. Over SQLite none of this ever waits."""

    #: What `insert` raises, having changed nothing, for a row that the database does not take, and the others for a
    #: value; any other exception is about the database as a whole.
    value_faults: tuple[type[BaseException], ...]

    async def insert(self, permits: list[tuple[Any, ...]], changes: list[tuple[Any, ...]]) -> Container[str]:
        """Insert all rows, each of another client transaction id, but for those that other rows of the database
        forbid; return the ids of the inserted ones.
        """

    async def find(self, ids: Sequence[str]) -> Sequence[Sequence[Any]]:
        """Return the records of these ids as rows, by id and attempt."""

    async def find_asks(self, purchases: Sequence[str]) -> Sequence[Sequence[Any]]:
        """Return the records of these purchases as rows, in the order of their permits."""

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> Sequence[Sequence[Any]]:
        """Return the rows of a named statement."""

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Begin a transaction beside which nobody writes, and commit it."""

    def unavailable(self, error: BaseException, doing: str) -> LedgerUnavailableError:
        """Return a fault as callers see it, without any statement or value."""


class Batch:
    """Operations that are carried out together: first the writes, in one transaction where the database has one open,
    then the reads.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.writes: list[Write] = [each for each in operations if isinstance(each, (Permit, Apply))]
        self.answers: list[Answer] = []

    def fail(self, error: LedgerUnavailableError, *, writes_too: bool = False) -> None:
        """Answer by the error what has no answer; with `writes_too`, since nothing was committed, every write too."""
        if writes_too:
            self.answers.clear()
        answered = {id(operation) for operation, _, _ in self.answers}
        for each in self.writes if writes_too else self.operations:
            if id(each) not in answered:
                self._fail(each, error)

    def deny_permits(self, error: LedgerUnavailableError) -> None:
        """Answer every permit by the error."""
        answers, self.answers = self.answers, []
        for answer in answers:
            if isinstance(answer[0], Permit):
                self._fail(answer[0], error)
            else:
                self.answers.append(answer)

    async def write(self, database: Database) -> None:
        """Carry out the writes."""
        writes = self.writes
        while writes:
            now, later = _first_of_each_id(writes)
            writes = await self._insert(database, now) + later
        await self._note_overpaid(database)

    async def read(self, database: Database) -> None:
        """Carry out the reads."""
        await self._get(database, [each for each in self.operations if isinstance(each, Get)])
        for each in self.operations:
            if isinstance(each, Read):
                try:
                    self._answer(each, await database.fetch(each.name, each.parameters))
                except database.value_faults as error:
                    self._fail(each, database.unavailable(error, "read"))

    async def _get(self, database: Database, gets: list[Get]) -> None:
        """Find with one look-up the records of all."""
        if not gets:
            return
        try:
            found = grouped(await database.find(list({id_ for each in gets for id_ in each.ids})))
        except database.value_faults as error:
            if len(gets) == 1:
                self._fail(gets[0], database.unavailable(error, "read"))
            else:
                for each in gets:
                    await self._get(database, [each])
            return
        for each in gets:
            self._answer(each, {id_: found[id_] for id_ in each.ids if id_ in found})

    async def _insert(self, database: Database, writes: list[Write]) -> list[Write]:
        """Insert these writes, no two of which have one id, and answer them; return those to try again."""
        permits: list[tuple[Any, ...]] = []
        changes: list[tuple[Any, ...]] = []
        for each in writes:
            if each.row is not None:
                (permits if isinstance(each, Permit) else changes).append(each.row)
        fault: BaseException | None = None
        inserted: Container[str] = ()
        if permits or changes:
            try:
                inserted = await database.insert(permits, changes)
            except database.value_faults as error:
                if len(writes) > 1:
                    return [again for each in writes for again in await self._insert(database, [each])]
                fault = database.unavailable(error, "written")
        rest = []
        for each in writes:
            if each.record.client_transaction_id in inserted:
                self.answers.append((each, True if isinstance(each, Permit) else each.after, None))
            else:
                rest.append(each)
        return await self._settle_not_inserted(database, rest, fault) if rest else []

    async def _settle_not_inserted(
        self, database: Database, writes: list[Write], fault: BaseException | None
    ) -> list[Write]:
        """Answer the writes that the database did not take by what it holds; return those to try again."""
        try:
            known = grouped(await database.find([each.record.client_transaction_id for each in writes]))
            asks = await self._find_asks(database, writes)
        except database.value_faults as error:
            if len(writes) > 1:
                raise
            self._fail(writes[0], fault or database.unavailable(error, "read"))
            return []
        again = []
        for each in writes:
            attempts, row = known.get(each.record.client_transaction_id, []), each.row
            try:
                if isinstance(each, Apply):
                    await self._aim(database, each, attempts, fault)
                elif self._settle(each, attempts, asks):
                    continue
            except TransitionError as error:
                self._fail(each, error)
                continue
            each.tries += 1
            if each.row == row and (fault is not None or each.tries == TRIES):
                self._fail(each, fault or LedgerUnavailableError("the ledger did not take this"))
            else:
                again.append(each)
        return again

    async def _find_asks(self, database: Database, writes: list[Write]) -> list[Record]:
        """Return the asks of the purchases that permits are wanted for."""
        purchases = {each.record.purchase for each in writes if isinstance(each, Permit)}
        return [record_of(row) for row in await database.find_asks(list(purchases))] if purchases else []

    async def _aim(
        self, database: Database, write: Apply, attempts: list[Record], fault: BaseException | None
    ) -> None:
        """Let the event move the ledger's attempt, not the caller's. Raises `TransitionError` where it may not."""
        row, event = write.row, write.event
        write.aim(*moved(attempts, write.record, event))
        if isinstance(event, Created) and await self._is_taken(database, write.record, event):
            raise TransactionTakenError.of(write.record, event.transaction_id)
        if write.row == row and isinstance(event, NotSent) and fault is None:
            raise TransitionError("another process was granted this attempt")

    def _settle(self, permit: Permit, attempts: list[Record], asks: list[Record]) -> bool:
        """Answer a permit that the ledger forbids, and return whether it does. Raises as `may_permit` does."""
        if not may_permit(attempts, permit.record):
            self._answer(permit, False)
        elif holder := purchase_holder(asks, permit.record):
            self._fail(permit, PurchaseHeldError(holder))
        else:
            return False
        return True

    async def _note_overpaid(self, database: Database) -> None:
        """Write down, in the same transaction where there is one, which purchases were paid before."""
        paid = [
            (place, each, after)
            for place, (each, after, _) in enumerate(self.answers)
            if isinstance(each, Apply)
            and after is not None
            and after.state is State.ACCEPTED is not each.record.state
        ]
        if not paid:
            return
        try:
            rows = await database.find_asks(purchases := list({after.purchase for _, _, after in paid}))
        except database.value_faults:
            return  # a purchase that the database cannot look up is nobody's
        if len(rows) == len(purchases):
            return  # each is its purchase's only ask
        asks = [record_of(row) for row in rows]
        newest = {(each.client_transaction_id, each.attempt): each for each in asks}
        for place, each, after in paid:
            record = newest[after.client_transaction_id, after.attempt]
            event = overpaid(asks, each.record, record, each.event.at)
            if event is not None:
                noted = advance(record, event)
                with suppress(*database.value_faults):
                    if await database.insert([], [change_row(record, event, noted)]) and record == after:
                        self.answers[place] = (each, noted, None)

    async def _is_taken(self, database: Database, record: Record, event: Created) -> bool:
        """Return whether another client transaction id has the transaction, sent under the same credentials."""
        key = (event.transaction_id, record.credentials, record.client_transaction_id)
        return bool(record.credentials and await database.fetch("holder", key))

    def _answer(self, operation: Operation, result: object) -> None:
        self.answers.append((operation, result, None))

    def _fail(self, operation: Operation, error: BaseException) -> None:
        if isinstance(operation, (Permit, Apply)) and isinstance(error, PayError):
            identifier = operation.record.client_transaction_id
            error = type(error)(str(error), client_transaction_id=identifier)
        self.answers.append((operation, None, error))


def _first_of_each_id(writes: list[Write]) -> tuple[list[Write], list[Write]]:
    """Return the first of each client transaction id, for whose next ones the order matters; and those."""
    now: list[Write] = []
    later: list[Write] = []
    seen = {each.record.client_transaction_id for each in writes}
    if len(seen) == len(writes):
        return writes, later
    for each in writes:
        if (identifier := each.record.client_transaction_id) in seen:
            seen.remove(identifier)
            now.append(each)
        else:
            later.append(each)
    return now, later


def resolve(answers: list[Answer]) -> None:
    """Give each caller the answer, in the loop."""
    for operation, result, error in answers:
        if operation.future.done():  # cancelled
            continue
        if error is None:
            operation.future.set_result(result)
        else:
            operation.future.set_exception(error)
