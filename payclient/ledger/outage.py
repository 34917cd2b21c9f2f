"""One log line a minute about a ledger that cannot be written, however many operations fail."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Outage"]

logger = logging.getLogger("payclient.ledger")

#: Seconds from one line to the next.
INTERVAL = 60.0


class Outage:
    """Counts the seconds of an outage by `clock`, and logs its course."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._logged: float | None = None

    def failed(self, fault: BaseException) -> None:
        """The ledger could not be used."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if self._logged is None or now - self._logged >= INTERVAL:
            self._logged = now
            logger.error("%s, for %.0f s so far: nothing is sent until it can be", fault, now - self._since)

    def worked(self) -> None:
        """The ledger was used."""
        if self._since is not None:
            # An outage that no line told of needs none that ends it.
            if self._logged is not None and self._logged >= self._since:
                logger.warning("the ledger works again after %.0f s", self._clock() - self._since)
            self._since = None
