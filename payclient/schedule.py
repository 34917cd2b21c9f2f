"""When to query next: pure functions of time. All times are seconds."""

from __future__ import annotations

import zlib
from typing import Protocol

import attrs

__all__ = ["Fixed", "Schedule"]

#: Gaps of the last queries: the first counts from the expiry, the others from one another.
LAST_QUERIES = (2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)

#: Ages of an expired sale at which it is queried again in the background.
AFTERTHOUGHTS = (600.0, 3600.0, 86400.0)

#: The push request's life that the figures above are made for (§8); they scale with a profile's own.
NORMAL_WINDOW = 300.0


class Schedule(Protocol):
    """Says when to ask for a pending sale."""

    def gap(self, age: float) -> float:
        """Seconds from a query made at this age of the sale to the next one."""


@attrs.frozen
class Fixed:
    """Ask at a fixed beat."""

    seconds: float = 2.0

    def gap(self, age: float) -> float:
        """The same at every age."""
        return self.seconds


def phase(client_transaction_id: str) -> float:
    """A part of one, from 0 to 1, by the id alone: it spreads queries, and repeats after a restart."""
    return zlib.crc32(client_transaction_id.encode("utf-8", "surrogatepass")) / 2**32
