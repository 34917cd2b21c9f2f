"""The open sales of one tracker: what is known of each, and how that changes.

Every change goes through the ledger first. There may be 100,000 entries, so that what few of them need is kept aside.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs

from payclient.asking import is_noted
from payclient.clock import Clock
from payclient.errors import LedgerError, TransitionError
from payclient.events import Event
from payclient.ledger import Ledger
from payclient.lifecycle import DROPPED, MOST_CANDIDATES, Record, State
from payclient.models import StatusReport

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

NEVER = float("-inf")

#: What is compared for every sale: CPython 3.11 takes ten times as long to find a member of an enum.
PENDING = State.PENDING

#: Candidates of one sale of which it is remembered what was asked.
MOST_REMEMBERED = 4 * MOST_CANDIDATES

#: Seconds by which clocks may seem to drift apart before sales get an offset of their own.
SAME_OFFSET = 0.001


@attrs.define(eq=False)
class Candidate:
    """What was asked of a transaction id that may be ours. Times are the monotonic clock's."""

    queries: int = 0
    asked_at: float = NEVER
    #: When the service last answered that there is no such transaction.
    missing_at: float = NEVER
    #: The service named another's client transaction id for it.
    is_another: bool = False


# Mutable, since it is what a query leaves for the next one.
@attrs.define(eq=False)
class Case:
    """What only few sales have: an unknown outcome, a notification, faults. Times are the monotonic clock's."""

    #: When it was first followed here. Proof of absence counts from it: the permit was earlier, whatever the
    #: wall clock did since, and whoever's it was.
    begun: float
    #: Seconds after its permit at which it is presumed to end, while its record does not know.
    life: float
    #: Queries made since the last notification; None: it has been chased to its end.
    chase: int | None = None
    #: Queries in a row that brought nothing.
    failures: int = 0
    #: What of the last report was not ours.
    conflict: str | None = None
    #: The first of two proofs of absence.
    absent_at: float | None = None
    missing_since: float | None = None
    #: When it was last asked for by its client transaction id.
    client_asked_at: float = NEVER
    #: Whether the last query was by a candidate id.
    by_candidate: bool = False
    #: What was asked of each transaction id that may be ours.
    candidates: dict[int, Candidate] = attrs.field(factory=dict)

    def candidate(self, record: Record) -> int | None:
        """The candidate id of the next query; None: it goes by the client transaction id.

        The two take turns, and of several candidates the one that was asked least comes first. Between two proofs of
        absence each of them is asked once more.
        """
        left = self.unasked(record)
        if self.absent_at is None and self.by_candidate:
            return None
        return min(reversed(left), key=lambda each: self.about(each).queries, default=None)

    def unasked(self, record: Record) -> list[int]:
        """The candidate ids, without those that were asked since the first proof of absence."""
        since = float("inf") if self.absent_at is None else self.absent_at
        known = self.candidates
        return [
            each
            for each in record.candidate_ids
            if each != DROPPED and (each not in known or known[each].asked_at < since)
        ]

    def is_anothers(self, transaction_id: int) -> bool:
        """Whether the service named another's client transaction id for this one."""
        return transaction_id in self.candidates and self.candidates[transaction_id].is_another

    def all_missing(self, record: Record) -> bool:
        """Whether the service answered "not found" of every candidate since the first proof of absence."""
        since = float("inf") if self.absent_at is None else self.absent_at
        return all(self.about(each).missing_at >= since for each in record.candidate_ids)

    def about(self, candidate_id: int) -> Candidate:
        """What was asked of this candidate."""
        found = self.candidates.get(candidate_id)
        if found is None:
            if len(self.candidates) >= MOST_REMEMBERED:
                del self.candidates[next(iter(self.candidates))]
            found = self.candidates[candidate_id] = Candidate()
        return found


class Entry:
    """One open sale. Times are the monotonic clock's."""

    __slots__ = (
        "asked_at", "case", "elsewhere", "last_asked", "offset", "query", "queued", "record", "report", "slot", "spent",
        "waiters",
    )  # fmt: skip

    def __init__(self, record: Record, offset: float) -> None:
        self.record = record
        #: From the wall clock's time, which records have, to the monotonic clock's. One number for most.
        self.offset = offset
        self.case: Case | None = None
        #: Where the agenda has it; an item of another slot is stale.
        self.slot: deque[Entry] | None = None
        #: The line in which it waits for its turn to be asked for; 0: in none.
        self.queued = 0
        self.asked_at = NEVER
        #: Last queries made after the expiry.
        self.last_asked = 0
        #: Every query that a wait hopes for has been made.
        self.spent = False
        self.query: asyncio.Task[StatusReport | None] | None = None
        #: The service's last word other than `Pendiente`.
        self.report: StatusReport | None = None
        self.waiters: set[asyncio.Future[None]] | None = None
        #: Another process follows it; here it is only waited for.
        self.elsewhere = False

    @property
    def expires(self) -> float:
        """When the customer can no longer approve; never early."""
        expires_at = self.record.expires_at
        if expires_at is None:
            return self.offset + self.record.created_at + (0.0 if self.case is None else self.case.life)
        return self.offset + expires_at

    def age(self, now: float) -> float:
        """Seconds since its permit, at least 0."""
        age = now - self.offset - self.record.created_at
        return age if age > 0.0 else 0.0


class Entries:
    """The index of what is open. `follow` takes up a newer attempt, `decided` is told of each decision."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        sale_window: float,
        longest_life: dict[str, float],
        follow: Callable[[Record], object],
        decided: Callable[[Record, Record], object],
        trouble: Callable[[Exception], object],
        write_late: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._window = sale_window
        self._longest_life = longest_life
        self._offset = 0.0
        self._follow = follow
        self._decided = decided
        self._trouble = trouble
        self._write_late = write_late
        self._by_id: dict[str, Entry] = {}
        #: The entry of an open sale, by its client transaction id.
        self.get = self._by_id.get
        self._changed = asyncio.Event()
        #: Whether anybody has the event; making one costs as much as all the rest of a decision.
        self._watched = False

    @property
    def changed(self) -> asyncio.Event:
        """Set, and replaced, at the next change that the feed shows."""
        self._watched = True
        return self._changed

    def values(self) -> Iterator[Entry]:
        """Every entry there is at the call."""
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def holds(self, entry: Entry) -> bool:
        """Whether this entry is still the one of its sale."""
        return self._by_id.get(entry.record.client_transaction_id) is entry

    def add(self, record: Record, now: float) -> Entry:
        """A new entry for an open sale, in the place of an older attempt's."""
        entry = self._by_id[record.client_transaction_id] = Entry(record, self._offset_of(record, now))
        if record.state is not PENDING:
            entry.case = Case(now, self._window)
        return entry

    def _offset_of(self, record: Record, now: float) -> float:
        offset = now - self._clock.time()
        expires_at = record.expires_at
        if expires_at is None:
            expires_at = record.created_at + self._window
        # Never later than a whole life from now, however the wall clock jumped between two runs.
        if offset + expires_at > (latest := now + self._longest_life[record.kind]):
            offset = latest - expires_at
        # The number that the others have will do, if it is hardly later: there may be 100,000 of it.
        if not 0.0 <= self._offset - offset < SAME_OFFSET:
            self._offset = offset
        return self._offset

    def case(self, entry: Entry) -> Case:
        """What only few sales have, made where there is none yet."""
        if entry.case is None:
            entry.case = Case(self._clock.monotonic(), self._window)
        return entry.case

    def slim(self, entry: Entry) -> None:
        """Let go of what the ledger has and a pending sale's following does not need."""
        record = entry.record
        if record.digest and record.state is State.PENDING:
            entry.record = attrs.evolve(record, digest=b"", lane=b"", currency=sys.intern(record.currency))

    def touch(self) -> None:
        """Something changed that the feed shows."""
        if self._watched:
            self._changed.set()
            self._changed = asyncio.Event()
            self._watched = False

    async def apply(self, entry: Entry, event: Event) -> None:
        """Let the ledger take an event, and tell whoever waits. Where it fails the entry is asked for again, later."""
        try:
            try:
                self.take(entry, await self._ledger.apply(entry.record, event))
            except TransitionError:
                if await self.reread(entry):
                    return
                # The ledger may lack what it could not take before.
                before = entry.record
                if await self._write_late(before.client_transaction_id) or entry.record is before:
                    raise
                self.take(entry, await self._ledger.apply(entry.record, event))
        except TransitionError:
            self.case(entry).failures += 1
            if entry.case is not None and entry.case.failures == 1:
                logger.error(
                    "%s: %s does not take %s",
                    entry.record.client_transaction_id, entry.record.state, type(event).__name__,
                )  # fmt: skip
        except LedgerError as error:
            # Not known until it is on disk: it is asked for again.
            self.case(entry).failures += 1
            self._trouble(error)

    async def has_noted(self, entry: Entry, events: Sequence[Event]) -> bool:
        """Return whether a decided sale's history has this one conflict; its entry is made anew for each query."""
        return entry.record.state.decided and await is_noted(self._ledger, entry.record, events)

    async def reread(self, entry: Entry) -> bool:
        """It changed elsewhere (an operator, another process): take what the ledger has; False if nothing is new."""
        newest = await self._ledger.get(entry.record.client_transaction_id)
        return newest is not None and self.learn(entry, newest)

    def learn(self, entry: Entry, newest: Record) -> bool:
        """Take what the ledger has; False if nothing is new."""
        if newest.attempt > entry.record.attempt:
            # This one created nothing, somebody else proved, and sent the next: that is the one to follow.
            if self.holds(entry):
                del self._by_id[newest.client_transaction_id]
            self.wake(entry, spent=True)
            self._follow(newest)
            return True
        if newest.attempt == entry.record.attempt and newest.version > entry.record.version:
            self.take(entry, newest)
            return True
        return False

    def take(self, entry: Entry, record: Record) -> None:
        """What the ledger holds of it from now on."""
        before, entry.record = entry.record, record
        if record.expires_at != before.expires_at and record.expires_at is not None:
            entry.offset = self._offset_of(record, self._clock.monotonic())
        if entry.case is not None and not set(record.candidate_ids) <= set(before.candidate_ids):
            entry.case.absent_at = None  # what was just named is asked for before anything is proven
        if record.state is before.state:
            return
        self.touch()
        if not record.state.decided:
            return
        self._decided(before, record)
        if entry.waiters:
            self.wake(entry)
        current = self._by_id.pop(record.client_transaction_id, None)
        if current is entry or current is None:
            return
        # A decided sale that was notified is asked for beside the books, and may be in them again by now.
        if current.record.attempt == record.attempt:
            current.record = record
            self.wake(current)
        else:
            self._by_id[record.client_transaction_id] = current

    def wake(self, entry: Entry, *, spent: bool = False) -> None:
        """End the waits: it is decided, or nothing more is asked for it."""
        if spent:
            entry.spent = True
        for waiter in entry.waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let go of all."""
        self._by_id.clear()
        self._changed.set()
