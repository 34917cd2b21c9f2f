"""When each entry is looked at next, in slots of a fraction of a second: to put one in costs a deque's append.

New entries come in droves, and many are decided before anything is due for them. So they wait in one line, and are
given out together when the first of them may be due: only then it is worked out when each of them is.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from payclient.following.entries import Entry

__all__: list[str] = []


class Agenda:
    """Entries by time. `width` is a slot's length in seconds: an entry comes out so much late at most, never early."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._slots: dict[int, deque[Entry]] = {}
        self._order: list[int] = []
        self._new: deque[Entry] = deque()
        #: When the new ones are given out; infinity if there are none.
        self.new_due = math.inf

    def put_new(self, entry: Entry, soonest: float) -> None:
        """A new one, which is due then or later: `pop_new` gives it out in time to `put` it."""
        entry.slot = self._new
        self._new.append(entry)
        if soonest < self.new_due:
            self.new_due = soonest

    def pop_new(self, now: float) -> Entry | None:
        """A new one, as long as there are any once one of them may be due; None if none may be."""
        if self.new_due > now:
            return None
        while self._new:
            entry = self._new.popleft()
            if entry.slot is self._new:
                entry.slot = None
                return entry
        self.new_due = math.inf
        return None

    def put(self, entry: Entry, when: float) -> None:
        """Look at it then; whatever was planned for it before counts no more."""
        width = self._width
        number = math.ceil(when / width)
        if number * width < when:  # rounded
            number += 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = deque()
            heapq.heappush(self._order, number)
        slot.append(entry)
        entry.slot = slot

    def first(self) -> float:
        """When something is due next; infinity if nothing ever is."""
        return min(self._order[0] * self._width, self.new_due) if self._order else self.new_due

    def pop(self, now: float) -> Entry | None:
        """An entry that is due, in the order of the slots; None if none is."""
        while self._order and self._order[0] * self._width <= now:
            slot = self._slots[self._order[0]]
            while slot:
                entry = slot.popleft()
                if entry.slot is slot:
                    entry.slot = None
                    return entry
            del self._slots[heapq.heappop(self._order)]
        return None

    def clear(self) -> None:
        """Forget all."""
        self._slots.clear()
        self._order.clear()
        self._new.clear()
        self.new_due = math.inf
