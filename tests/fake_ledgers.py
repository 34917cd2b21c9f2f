"""Ledgers for tests of what stands above them: one that several trackers share, and one that fails for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import payclient
from payclient.ledger import Change
from payclient.ledger.memory import MemoryLedger

__all__ = ["FailingLedger", "SharedLedger"]

Woken = Callable[[str | None], None]


class SharedLedger(MemoryLedger):
    """One process's view of a ledger in memory that several share, by the loop's time; `with_` is another's."""

    def __init__(self, with_: SharedLedger | None = None) -> None:
        super().__init__()
        other = self if with_ is None else with_
        if with_ is not None:
            self.__dict__.update(with_.__dict__)
        self.name = object()
        self.watchers: list[Woken] = [] if with_ is None else other.watchers
        self.followers: dict[str, object] = {} if with_ is None else other.followers
        self.leases: dict[object, float] = {} if with_ is None else other.leases
        self.lanes: dict[bytes, object] = {} if with_ is None else other.lanes
        self.budgets: dict[str, float] = {} if with_ is None else other.budgets

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _lives(self, name: object) -> bool:
        return self.leases.get(name, 0.0) > self._now()

    async def permit(self, record: payclient.Record) -> bool:
        granted = await super().permit(record)
        if granted:
            self.followers[record.client_transaction_id] = self.name
        return granted

    async def apply(self, record: payclient.Record, event: payclient.Event) -> payclient.Record:
        after = await super().apply(record, event)
        for woken in tuple(self.watchers):
            asyncio.get_running_loop().call_soon(woken, record.client_transaction_id)
        return after

    def watch(self, woken: Woken) -> Callable[[], None]:
        self.watchers.append(woken)

        def unwatch() -> None:
            with suppress(ValueError):
                self.watchers.remove(woken)

        return unwatch

    async def renew(self, seconds: float) -> bool:
        lived = self._lives(self.name)
        self.leases[self.name] = self._now() + seconds
        return lived

    async def claim(self, limit: int, sending_after: float) -> list[payclient.Record]:
        found = [
            record
            async for record in self.unfinished()
            if not self._lives(self.followers.get(record.client_transaction_id))
            and record.state is not payclient.State.SENDING
        ][:limit]
        self.followers |= {record.client_transaction_id: self.name for record in found}
        return found

    async def held(self) -> set[str]:
        return {
            record.client_transaction_id
            async for record in self.unfinished()
            if self.followers.get(record.client_transaction_id) is self.name
        }

    async def release(self, client_transaction_ids: Sequence[str]) -> None:
        for each in client_transaction_ids:
            self.followers.pop(each, None)

    async def take_lanes(self, lanes: Sequence[bytes]) -> set[bytes]:
        taken = {each for each in lanes if self.lanes.get(each, self.name) is self.name}
        self.lanes |= dict.fromkeys(taken, self.name)
        return taken

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        for each in lanes:
            self.lanes.pop(each, None)

    async def reserve(self, budget: str, queries: int, gap: float) -> float:
        begin = max(self.budgets.get(budget, 0.0), self._now())
        self.budgets[budget] = begin + queries * gap
        return begin - self._now()

    async def pause(self, budget: str, seconds: float) -> None:
        self.budgets[budget] = max(self.budgets.get(budget, 0.0), self._now() + seconds)


class FailingLedger(MemoryLedger):
    """A ledger in memory of which every operation fails while `fails` says so of its name."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__()
        self.fails = fails

    def _check(self, name: str) -> None:
        if self.fails(name):
            raise payclient.LedgerUnavailableError("disk full")

    async def peek(self, client_transaction_id: str) -> payclient.Record:
        """What it holds, also while it fails."""
        record = await super().get(client_transaction_id)
        assert record is not None
        return record

    async def permit(self, record: payclient.Record) -> bool:
        self._check("permit")
        return await super().permit(record)

    async def apply(self, record: payclient.Record, event: payclient.Event) -> payclient.Record:
        self._check("apply")
        return await super().apply(record, event)

    async def get(self, client_transaction_id: str) -> payclient.Record | None:
        self._check("get")
        return await super().get(client_transaction_id)

    async def get_many(self, client_transaction_ids: Sequence[str]) -> dict[str, payclient.Record]:
        self._check("get")
        return await super().get_many(client_transaction_ids)

    async def history(self, client_transaction_id: str) -> list[Change]:
        self._check("get")
        return await super().history(client_transaction_id)

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        self._check("get")
        return await super().changes(since, limit)
