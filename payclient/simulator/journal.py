"""What happened at the service, for whoever watches: the newest entries, each with a number. No personal data."""

import asyncio
from collections import deque
from typing import Literal

from attrs import asdict, frozen

from .clock import Clock

__all__ = ["Entry", "Journal"]

_KEPT = 1000
_LONGEST = 200  # characters of somebody else's id, so that the log stays small whatever is sent


@frozen(kw_only=True)
class Entry:
    """One line: `at` in UTC seconds since the epoch, `number` counted from 1."""

    number: int
    at: float
    kind: Literal["request", "customer", "notification", "page", "service"]
    text: str
    client_transaction_id: str | None = None
    transaction_id: int | None = None
    #: The HTTP status of the answer; None: there was none.
    status: int | None = None
    #: The kind of the fault that befell it.
    fault: str | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Journal:
    """Keeps the last thousand entries, and wakes who waits for the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
        self._last = 0
        #: How many wait for the next entry.
        self.readers = 0
        self._more = asyncio.Event()

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 if there is none."""
        return self._last

    def write(
        self,
        kind: Literal["request", "customer", "notification", "page", "service"],
        text: str,
        *,
        client_transaction_id: str | None = None,
        transaction_id: int | None = None,
        status: int | None = None,
        fault: str | None = None,
    ) -> None:
        self._last += 1
        self._entries.append(
            Entry(
                number=self._last,
                at=self._clock.time(),
                kind=kind,
                text=text,
                client_transaction_id=client_transaction_id and client_transaction_id[:_LONGEST],
                transaction_id=transaction_id,
                status=status,
                fault=fault,
            )
        )
        self._wake()

    def after(self, number: int) -> list[Entry]:
        """What came after that number, oldest first."""
        return [entry for entry in self._entries if entry.number > number]

    async def wait(self, number: int) -> None:
        """Until there is something after that number, or the service closes."""
        if self._last <= number:
            self.readers += 1
            try:
                await self._more.wait()
            finally:
                self.readers -= 1

    def close(self) -> None:
        """Wake who waits."""
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
