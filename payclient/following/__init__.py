"""Follows open sales to their end: clock, queries, notifications, waits. **Never POSTs.**

What is asked of it is here, and the parts are modules of their own: `entries` (what is known), `driving` (one agenda
and one timer for all), `planning` (when to look), `agenda` (what is due), `turns` (who may ask), `querying`,
`notifying`, `waiting`.

Over a ledger that several processes have open, `sharing` says which sales this one asks for; of the others it keeps an
entry where somebody waits, learns what the ledger says, and asks nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from payclient.asking import StatusSource
from payclient.clock import Clock, start
from payclient.credentials import Credentials
from payclient.errors import PayError
from payclient.events import Suspected
from payclient.following.budget import Budget
from payclient.following.driving import Driver
from payclient.following.entries import Entries, Entry
from payclient.following.notifying import Arrivals, Notifying
from payclient.following.planning import Planning
from payclient.following.querying import Querying
from payclient.following.sharing import Sharing
from payclient.following.turns import Pace
from payclient.following.waiting import Waiting
from payclient.ledger import Ledger, Shared
from payclient.lifecycle import Record, State
from payclient.models import Notification
from payclient.notifications import Receipt
from payclient.outcomes import Outcome
from payclient.schedule import Schedule

__all__: list[str] = []


class Following:
    """All open sales of one tracker."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        status: StatusSource | None,
        credentials: Credentials | None = None,
        schedule: Schedule,
        proves_absence: bool,
        asks_by_id: bool = True,
        sale_window: float,
        form_window: float,
        total_timeout: float,
        absent_after: float,
        queries_per_minute: float | None,
        budget: str = "queries",
        trouble: Callable[[Exception], object],
        write_late: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._absent_after = absent_after
        self._arrivals = Arrivals()
        self._entries = Entries(
            ledger,
            clock,
            sale_window=sale_window,
            # A form's link may be loaded as late as it is handed out, and then lives once more.
            longest_life={"sale": sale_window + total_timeout, "form": 2 * form_window + total_timeout},
            follow=self.follow,
            decided=self._decided if isinstance(ledger, Shared) else self._arrivals.decided,
            trouble=trouble,
            write_late=write_late,
        )
        pace = Pace(queries_per_minute)
        #: None: no other process has this ledger.
        self._sharing: Sharing | None = None
        if isinstance(ledger, Shared):
            self._sharing = Sharing(
                ledger,
                clock,
                self._entries,
                total_timeout=total_timeout,
                let_go=lambda entry: self._driver.let_go(entry),
                notified=self._notified,
                trouble=trouble,
            )
            if queries_per_minute:
                pace = Budget(
                    queries_per_minute,
                    ledger,
                    clock,
                    name=budget,
                    ready=lambda: self._driver.go_on(),
                    trouble=trouble,
                )
        planning = Planning(
            schedule,
            asks=status is not None,
            sale_window=sale_window,
            absent_after=absent_after,
            arrivals=self._arrivals,
        )
        querying = None
        if status is not None:
            querying = Querying(
                self._entries,
                clock,
                pace,
                status,
                proves_absence=proves_absence,
                asks_by_id=asks_by_id,
                credentials=credentials,
                absent_after=absent_after,
                scale=planning.scale,
                turn=lambda: self._driver.turn(total_timeout, insists=False),
            )
        self._driver = Driver(
            self._entries,
            clock,
            planning,
            pace,
            querying,
            sale_window=sale_window,
            patience=total_timeout,
            besides=None if self._sharing is None else self._sharing.besides,
        )
        self._waiting = Waiting(ledger, clock, self._entries, self.follow)
        self._notifying = Notifying(
            ledger,
            clock,
            self._entries,
            self._arrivals,
            hurry=self._notified,
            look_again=self._driver.look_again,
        )
        self._closed = False

    # --- What is open

    def follow(self, record: Record) -> Entry | None:
        """Follow an open sale; None if it is decided. The same sale is followed once."""
        entry = self._entries.get(record.client_transaction_id)
        if entry is not None and entry.record.attempt == record.attempt:
            if record.version > entry.record.version:
                self._entries.take(entry, record)
            if entry.elsewhere and self._entries.holds(entry):
                self._reconsider(entry)
            return entry
        if record.state.decided or self._closed or (entry and entry.record.attempt > record.attempt):
            return None
        if entry is not None:
            # There is a next attempt, so this one created nothing; nobody here has heard of it.
            self._entries.wake(entry, spent=True)
        now = self._clock.monotonic()
        entry = self._entries.add(record, now)
        if self._sharing is not None and self.elsewhere(record):
            self._driver.let_go(entry)
        else:
            self._driver.begin(entry, now)
        return entry

    def get(self, client_transaction_id: str) -> Record | None:
        """The record of an open sale that is followed here: of others only the ledger knows the newest."""
        entry = self._entries.get(client_transaction_id)
        return None if entry is None or entry.elsewhere else entry.record

    @property
    def changed(self) -> asyncio.Event:
        """Set, and replaced, at the next change that the feed shows."""
        return self._entries.changed

    def touch(self) -> None:
        """Something changed that the feed shows."""
        self._entries.touch()

    def open_records(self) -> Iterator[Record]:
        """The records of all open sales."""
        return (entry.record for entry in self._entries.values())

    async def suspect(self, lane: bytes) -> None:
        """Code 2061 came in a lane: evidence that an unknown sale of the same lane landed. It decides nothing."""
        for entry in self._entries.values():
            if entry.record.state is State.UNKNOWN and entry.record.lane == lane:
                await self._entries.apply(entry, Suspected(at=self._clock.time()))

    def _decided(self, before: Record, after: Record) -> None:
        self._arrivals.decided(before, after)
        if self._sharing is not None:
            self._sharing.decided(after.client_transaction_id)

    def look_later(self, record: Record) -> None:
        """Query a refused attempt once more when absence can be proven, unless another attempt was made meanwhile."""
        when = self._clock.monotonic() + self._absent_after
        self._clock.call_at(when, lambda: start(self._look_again(record)))

    async def _look_again(self, record: Record) -> None:
        if self._closed:
            return
        with suppress(PayError):
            newest = await self._ledger.get(record.client_transaction_id)
            if newest is not None and newest.attempt == record.attempt:
                self._driver.look_again(newest)

    # --- With other processes

    async def share(self, take_over: Callable[[list[Record]], Awaitable[None]]) -> None:
        """Follow what no living process follows, from now on; each time it is given to `take_over`."""
        assert self._sharing is not None  # noqa: S101 - asked for a shared ledger only
        await self._sharing.begin(take_over)

    async def take_lane(self, lane: bytes) -> bool:
        """Whether this process charges this customer alone from now on."""
        return self._sharing is None or await self._sharing.take_lane(lane)

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        """Let other processes charge these customers."""
        if self._sharing is not None:
            await self._sharing.drop_lanes(lanes)

    def permitted(self, client_transaction_id: str) -> None:
        """This process was granted a permit, and follows what comes of it."""
        if self._sharing is not None:
            self._sharing.permitted(client_transaction_id)

    def elsewhere(self, record: Record) -> bool:
        """Whether another process sends it, or follows it."""
        return self._sharing is not None and not self._sharing.ours(record.client_transaction_id)

    def _reconsider(self, entry: Entry) -> None:
        """Somebody asks for it whom another process followed: is it ours by now?"""
        if not self.elsewhere(entry.record):
            entry.elsewhere = False
            self._driver.begin(entry, self._clock.monotonic())
        elif entry.slot is None and entry.query is None:
            self._driver.let_go(entry)  # whoever waits now is not kept waiting for ever

    def _notified(self, record: Record, *, again: bool = False) -> None:
        if self._entries.get(record.client_transaction_id) is None and self.elsewhere(record):
            return  # whoever follows it hears of it too
        if (entry := self.follow(record)) is not None:
            self._driver.hurry(entry, again=again)

    # --- What is asked of it

    async def wait(self, record: Record, timeout: float | None) -> Outcome:
        """Until the sale is decided, or nothing more will be asked; see `PendingSale.wait`."""
        return await self._waiting.wait(record, timeout)

    async def check(self, record: Record) -> Outcome:
        """One query now, shared with whoever asks too, at most one a second; then what is known."""
        entry = self.follow(record)
        if entry is None:
            return await self._waiting.settled(record)
        report = await self._driver.ask(entry)
        return Outcome.of(entry.record, report=report or entry.report)

    async def turn(self, patience: float, *, insists: bool = True) -> bool:
        """Wait until another request than a query may be made; see `Driver.turn`."""
        return await self._driver.turn(patience, insists=insists)

    async def notify(self, notification: Notification) -> Receipt:
        """Take a hint; see `Tracker.notify`."""
        return await self._notifying.notify(notification)

    def remaining(self, record: Record) -> float:
        """Seconds until the customer can no longer approve, at least 0."""
        return 0.0 if record.expires_at is None else max(record.expires_at - self._clock.time(), 0.0)

    async def aclose(self) -> None:
        """Stop: waits end by `TrackerClosedError`; the ledger knows what is open."""
        self._closed = True
        self._driver.stop()
        if self._sharing is not None:
            await self._sharing.aclose()
        await self._driver.aclose()
        self._waiting.close()
        self._entries.clear()
