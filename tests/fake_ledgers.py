"""Ledgers for tests of what stands above them: one that several trackers share, and one that fails for a while."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import payclient
from payclient.events import Event, Notified, Returned
from payclient.ledger import Change, FoundRecords
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record

__all__ = ["FailingLedger", "HookedLedger", "HookedSharedLedger", "SharedLedger", "disk_full", "once"]

#: What happens beside the write of an event, by the name of its class; a permit's is "Permitted".
Hooks = Mapping[str, Callable[[], object]]

Woken = Callable[[str | None], None]


class SharedLedger(MemoryLedger):
    """One process's view of a ledger in memory that several share, by the loop's time; `with_` is another's."""

    def __init__(self, with_: SharedLedger | None = None) -> None:
        super().__init__()
        self.watchers: list[Woken] = []
        #: Who holds what until when; when any process may make the next query.
        self.holders: dict[str, tuple[object, float]] = {}
        self.rate = [0.0]
        if with_ is not None:
            self.__dict__.update(with_.__dict__)
        self.name = object()
        self.holds: float | None = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def permit(self, record: Record) -> bool:
        granted = await super().permit(record)
        if granted:
            name, seconds = (None, 60.0) if self.holds is None else (self.name, self.holds)
            self.holders[record.client_transaction_id] = (name, self._now() + seconds)
        return granted

    async def apply(self, record: Record, event: Event) -> Record:
        after = await super().apply(record, event)
        if isinstance(event, Notified | Returned):
            name, due = self.holders[record.client_transaction_id]
            soon = self._now() + (0.0 if name is None and self.holds is not None else 30.0)
            self.holders[record.client_transaction_id] = (name, min(due, soon))
        for woken in tuple(self.watchers):
            asyncio.get_running_loop().call_soon(woken, record.client_transaction_id)
        return after

    def watch(self, woken: Woken) -> Callable[[], None]:
        self.watchers.append(woken)

        def unwatch() -> None:
            with suppress(ValueError):
                self.watchers.remove(woken)

        return unwatch

    def hold(self, seconds: float) -> None:
        self.holds = seconds

    async def claim_due(self, limit: int, seconds: float) -> list[Record]:
        now = self._now()
        found = [
            record
            async for record in self.unfinished()
            if self.holders[record.client_transaction_id][1] <= now
        ][:limit]
        self.holders |= {record.client_transaction_id: (self.name, now + seconds) for record in found}
        return found

    async def renew(self, seconds: float) -> int:
        held, until = await self.held(), self._now() + seconds
        self.holders |= {each: (self.name, max(self.holders[each][1], until)) for each in held}
        return len(held)

    async def held(self) -> set[str]:
        return {
            record.client_transaction_id
            async for record in self.unfinished()
            if self.holders[record.client_transaction_id][0] is self.name
        }

    async def defer(self, seconds: Mapping[str, float]) -> None:
        for each in set(seconds) & await self.held():
            name = self.name if seconds[each] <= 86_400 else None
            self.holders[each] = (name, self._now() + seconds[each])

    async def reserve(self, gap: float) -> float:
        begin = max(self.rate[0], self._now())
        self.rate[0] = begin + gap
        return begin - self._now()

    async def note_overpaid(self, at: float) -> None:
        """Nothing: this ledger writes that with the payment."""

    async def pause(self, seconds: float) -> None:
        self.rate[0] = max(self.rate[0], self._now() + seconds)


class FailingLedger(MemoryLedger):
    """A ledger in memory of which every operation fails while `fails` says so of its name."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__()
        self.fails = fails

    def _check(self, name: str) -> None:
        if self.fails(name):
            raise payclient.LedgerUnavailableError("disk full")

    async def peek(self, client_transaction_id: str) -> Record:
        """What it holds, also while it fails."""
        found, _ = await super().find((client_transaction_id,))
        return found[client_transaction_id][-1]

    async def permit(self, record: Record) -> bool:
        self._check("permit")
        return await super().permit(record)

    async def apply(self, record: Record, event: Event) -> Record:
        self._check("apply")
        return await super().apply(record, event)

    async def find(self, ids: Sequence[str], purchase: str | None = None) -> FoundRecords:
        self._check("get")
        return await super().find(ids, purchase)

    async def drop_links(self, now: float) -> float | None:
        self._check("drop_links")
        return await super().drop_links(now)

    async def history(self, client_transaction_id: str) -> list[Change]:
        self._check("get")
        return await super().history(client_transaction_id)

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        self._check("get")
        return await super().changes(since, limit)


def disk_full() -> None:
    """A hook that fails."""
    raise payclient.LedgerUnavailableError("disk full")


def once(hook: Callable[[], object]) -> Callable[[], object]:
    """A hook that does nothing from the second time on."""
    hooks = [hook]
    return lambda: hooks.pop()() if hooks else None


class ForgetfulLedger(MemoryLedger):
    """A ledger that forgets its last commits, as a failover to an asynchronous standby does."""

    def forget(self, identifier: str) -> None:
        """Forget the newest attempt of an id."""
        self._attempts[identifier].pop()
        if not self._attempts[identifier]:
            del self._attempts[identifier]


class HookedLedger(MemoryLedger):
    """A ledger in memory; before or after it writes certain events, something happens."""

    def __init__(self, *, before: Hooks | None = None, after: Hooks | None = None) -> None:
        super().__init__()
        self.before, self.after = before or {}, after or {}

    async def permit(self, record: Record) -> bool:
        await _happen(self.before, "Permitted")
        granted = await super().permit(record)
        await _happen(self.after, "Permitted")
        return granted

    async def apply(self, record: Record, event: Event) -> Record:
        await _happen(self.before, type(event).__name__)
        after = await super().apply(record, event)
        await _happen(self.after, type(event).__name__)
        return after


class HookedSharedLedger(HookedLedger, SharedLedger):
    """One that several processes share."""


async def _happen(hooks: Hooks, name: str) -> None:
    happening = hooks[name]() if name in hooks else None
    if inspect.isawaitable(happening):
        await happening
