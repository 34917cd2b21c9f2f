"""When each open ask is looked at next, in slots of a fraction of a second: adding one costs an append. Pure.

New asks come in droves, and many are decided before anything is due for them. So they wait in one line, and come out
together when the first of them may be due: only then it is worked out when each of them is.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Awaitable
from typing import Any, Generic, TypeVar

__all__: list[str] = []


class Scheduled:
    """What is looked at when its time comes, and waits in a line for its request."""

    __slots__ = ("line", "slot", "task")

    def __init__(self) -> None:
        #: Where the due times have it; an item of another slot is stale.
        self.slot: deque[Any] | None = None
        #: The line in which it waits for its request; 0: in none.
        self.line = 0
        #: Its request in flight.
        self.task: Awaitable[Any] | None = None


_S = TypeVar("_S", bound=Scheduled)


class DueTimes(Generic[_S]):
    """A heap of slots. `width` is a slot's length in seconds: an item comes out so much late at most, never early."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._slots: dict[int, deque[_S]] = {}
        self._order: list[int] = []
        self._new: deque[_S] = deque()
        #: When the new ones come out; infinity if there are none.
        self.new_due = math.inf

    def put_new(self, item: _S, soonest: float) -> None:
        """Add a new one, which is due then or later: `pop_new` returns it in time to `put` it."""
        item.slot = self._new
        self._new.append(item)
        if soonest < self.new_due:
            self.new_due = soonest

    def pop_new(self, now: float) -> _S | None:
        """A new one, as long as there are any once one of them may be due; None if none may be."""
        if self.new_due > now:
            return None
        while self._new:
            item = self._new.popleft()
            if item.slot is self._new:
                item.slot = None
                return item
        self.new_due = math.inf
        return None

    def put(self, item: _S, when: float) -> None:
        """Look at it then; what was planned for it before counts no more."""
        width = self._width
        number = math.ceil(when / width)
        if number * width < when:  # rounded
            number += 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = deque()
            heapq.heappush(self._order, number)
        slot.append(item)
        item.slot = slot

    def first(self) -> float:
        """When something is due next; infinity if nothing ever is."""
        return min(self._order[0] * self._width, self.new_due) if self._order else self.new_due

    def pop(self, now: float) -> _S | None:
        """An item that is due, in the order of the slots; None if none is."""
        while self._order and self._order[0] * self._width <= now:
            slot = self._slots[self._order[0]]
            while slot:
                item = slot.popleft()
                if item.slot is slot:
                    item.slot = None
                    return item
            del self._slots[heapq.heappop(self._order)]
        return None

    def clear(self) -> None:
        """Forget all."""
        self._slots.clear()
        self._order.clear()
        self._new.clear()
        self.new_due = math.inf
