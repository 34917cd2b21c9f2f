"""How an attempt ended, written down however long the ledger fails. Memory never says more than the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat

import attrs

from payclient.clock import Clock, cancel_all, drain, sleep, start
from payclient.errors import LedgerUnavailableError, TransitionError
from payclient.events import Conflicted, Created, Event, Evidence, Found, Lost, NotSent, Prepared
from payclient.ledger import Ledger, TransactionTakenError
from payclient.lifecycle import Record, State, advance, transition_error
from payclient.logs import tracker_log as log

#: Seconds from one log line about a ledger that fails to the next.
LINE_EVERY = 60.0

#: Seconds that closing gives a ledger for what it could not take until then.
LAST_TRY = 5.0

#: Seconds from one try to write what the ledger could not take to the next; the last one goes on.
WRITE_AGAIN = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class LateWrites:
    """Writes events through one ledger, and keeps those that it cannot take, to write them again."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        total: float = 0.0,
        on_write: Callable[[Record, Record], object] = lambda record, before: None,
    ) -> None:
        """`total`: the total time-out, in seconds. `on_write`: called with each record written, and the one before."""
        self._ledger = ledger
        self._clock = clock
        self._total = total
        self._on_write = on_write
        #: Client transaction id -> what the ledger could not take, in order.
        self.kept: dict[str, list[tuple[Record, Event]]] = {}
        self._again: asyncio.Task[None] | None = None
        self._silent_until = float("-inf")
        self._failures = 0
        #: Client transaction ids whose permits the ledger has forgotten.
        self._lost: set[str] = set()

    def log_failure(self, error: Exception) -> None:
        """Log that the ledger fails: one line a minute, however many operations fail."""
        self._failures += 1
        now = self._clock.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LINE_EVERY
            what = "the ledger failed: %s, %d times since the last line; trying again"
            log("error", "ledger_failed", "", what, type(error).__name__, self._failures)
            self._failures = 0

    async def write(self, record: Record, event: Event) -> Record:
        """Write an attempt's event and return its record. If the ledger fails, keep it and return `unwritten`."""
        try:
            await self.write_earlier(record.client_transaction_id)
            return await self._write(record, event)
        except Exception as error:  # whatever it is: what was sent must not be called unsent
            self.log_failure(error)
            if isinstance(event, Found):
                return record  # the ask is queried again instead: a late answer may be out of date
            self.kept.setdefault(record.client_transaction_id, []).append((record, event))
            if self._again is None or self._again.done():  # one that others cancelled
                self._again = start(self._write_again())
            return unwritten(record, event)

    async def _write(self, record: Record, event: Event) -> Record:
        """Write an event, or return what is known instead where the attempt's state does not take it."""
        identifier = record.client_transaction_id
        try:
            known: Record | None = await self._apply(record, event)
        except TransitionError:
            # An operator or another process decided the attempt meanwhile, or a write that seemed to fail has reached
            # the ledger. The ledger's record stands.
            known = await self._ledger.get(identifier)
            if known is not None and known.attempt < record.attempt:
                known = None  # an earlier attempt, which shows nothing of this one
            if known is None:
                if isinstance(event, Created | Lost):
                    self.note_lost_permit(record, None)
            elif isinstance(event, Created) and _contradicts(event, record, known):
                known = await self._note_created(record, event, known)
            elif known.evidence is not event.evidence:
                log("warning", "decided_otherwise", identifier, "%s came too late", type(event).__name__)
        # Without a record our permit was never committed; one that is SENDING is left to its sender.
        if known is not None and known.state is not State.SENDING:
            self._on_write(known, record)
        return known or record

    async def _note_created(self, record: Record, event: Created, known: Record) -> Record:
        """Log and write that what a person or a wrong proof called unpaid was created; return the newest record."""
        what = f"called unpaid, and yet created as transaction {event.transaction_id}"
        log("critical", "outcome_alarm", record.client_transaction_id, "%s", what)
        with suppress(TransitionError):  # it was archived since
            named = Conflicted(at=event.at, what=what, created_id=event.transaction_id)
            noted = await self._ledger.apply(record, named)
            if known.attempt == record.attempt:  # else a newer attempt counts
                return noted
        return known

    async def _apply(self, record: Record, event: Event) -> Record:
        """Write an event. Raises `TransitionError` where the attempt's state does not take it."""
        if isinstance(event, NotSent):
            # Our permit may not have been committed. Then the row may be that of another process, which was granted the
            # same attempt and sends it.
            known = await self._ledger.get(record.client_transaction_id)
            if known is None or (known.attempt, known.created_at) != (record.attempt, record.created_at):
                raise transition_error(record, "the permit was not committed")
        try:
            return await self._ledger.apply(record, event)
        except TransactionTakenError as taken:
            if not isinstance(event, Created):
                raise
            identifier = record.client_transaction_id
            log("error", "transaction_taken", identifier, "%s", taken)
            # Never early: the request may have arrived as late as the total time-out.
            ends = record.created_at + self._total + (event.expires_at - event.at)
            with suppress(TransitionError):  # unknown already
                record = await self._ledger.apply(record, Lost(at=event.at, expires_at=ends))
            return await self._ledger.apply(record, Conflicted(at=event.at, what=str(taken)))

    async def _write_again(self) -> None:
        """Write what the ledger could not take, at a beat that becomes slow, until nothing is left."""
        for seconds in chain(WRITE_AGAIN, repeat(WRITE_AGAIN[-1])):
            await sleep(self._clock, seconds)
            await asyncio.gather(*map(self.write_earlier, self.kept), return_exceptions=True)
            if not self.kept:
                return

    async def write_earlier(self, client_transaction_id: str) -> None:
        """Write the kept events of one id. Raises `LedgerUnavailableError` where the ledger cannot take one yet."""
        while late := self.kept.get(client_transaction_id):
            record, event = late[0]
            try:
                await self._write(record, event)
            except Exception as error:  # whatever it is must not end the writing of all
                self.log_failure(error)
                raise LedgerUnavailableError("an earlier event of the ask is not written yet") from None
            if late and late[0][1] is event:
                del late[0]
            if not late and self.kept.get(client_transaction_id) is late:  # else another call has ended it
                del self.kept[client_transaction_id]

    async def restore_end(self, record: Record) -> bool:
        """Write the end of an attempt's POST once more where a failover made the ledger forget that end, and return
        whether it had. Until then the ledger takes nothing that a query finds.
        """
        known = await self._ledger.get(record.client_transaction_id)
        if self.note_lost_permit(record, known) or known is None or known.state is not State.SENDING:
            return False
        if (end := _end_of(record, self._clock.time())) is None:
            return False
        with suppress(TransitionError):  # another process has ended it since
            await self._ledger.apply(known, end)
        return True

    def note_lost_permit(self, record: Record, known: Record | None) -> bool:
        """Return whether the ledger, which has `known` now, has forgotten an attempt's permit or granted it once more.
        The alarm of that is raised once.
        """
        is_known = known is not None and (
            known.attempt > record.attempt or known.created_at == record.created_at
        )
        identifier = record.client_transaction_id
        if not (is_known or identifier in self._lost):
            self._lost.add(identifier)
            what = "the ledger has lost its permit, as by a failover: it may be paid"
            log("critical", "permit_lost", identifier, what)
        return not is_known

    async def aclose(self) -> None:
        """Try once more; what the ledger cannot take stays SENDING, and is unknown at the next start."""
        if self._again is not None:
            await cancel_all([self._again])
        if self.kept:
            await drain([start(self.write_earlier(each)) for each in self.kept], LAST_TRY)
            if self.kept:
                what = "the ledger could not take the end of %d attempts"
                log("error", "ends_not_written", "", what, len(self.kept))


def _end_of(record: Record, at: float) -> Event | None:
    """Return the event by which the POST of an attempt that is not SENDING ended; None where it created nothing."""
    if record.expires_at is None:
        return None
    if record.kind == "sale" and record.transaction_id is not None:
        return Created(at=at, transaction_id=record.transaction_id, expires_at=record.expires_at)
    if record.kind == "form" and record.state is not State.UNKNOWN:
        return Prepared(at=at, expires_at=record.expires_at)
    return Lost(at=at, expires_at=record.expires_at, candidate_id=next(iter(record.candidate_ids), None))


def _contradicts(created: Created, record: Record, known: Record) -> bool:
    """Return whether the service created an attempt that the ledger calls unpaid, not knowing of the transaction."""
    is_unpaid = known.attempt > record.attempt or known.state.paid is False
    return is_unpaid and created.transaction_id != known.transaction_id


def unwritten(record: Record, event: Event) -> Record:
    """Return the record to show while the ledger has not taken the event; its version stays the ledger's.

    A SENDING attempt is shown as UNKNOWN, with the event's transaction id as a candidate; any other as it is.
    """
    if record.state is not State.SENDING:
        return record
    after = advance(record, event)
    return attrs.evolve(
        record,
        state=State.UNKNOWN,
        evidence=Evidence.NO_ANSWER,
        expires_at=after.expires_at,
        candidate_ids=after.candidate_ids if after.transaction_id is None else (after.transaction_id,),
    )
