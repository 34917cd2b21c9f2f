"""The log of the service: the newest entries, each with a number. No personal data."""

from collections import deque
from typing import Literal

from attrs import frozen

from .clock import ServiceClock

_KEPT = 1000
_LONGEST = 200  # characters of somebody else's text, so that the log stays small whatever is sent

_Kind = Literal["request", "customer", "notification", "page", "service"]


@frozen(kw_only=True)
class LogEntry:
    """One line: `at` in UTC seconds since the epoch, `number` counted from 1."""

    number: int
    at: float
    kind: _Kind
    text: str
    client_transaction_id: str | None = None
    transaction_id: int | None = None
    #: The HTTP status of the answer; None: there was none.
    status: int | None = None
    #: The kind of the fault that befell it, or the error of a notification.
    fault: str | None = None


class EventLog:
    """Keeps the last thousand entries."""

    def __init__(self, clock: ServiceClock) -> None:
        self._clock = clock
        self._entries: deque[LogEntry] = deque(maxlen=_KEPT)
        #: The number of the newest entry; 0 if there is none.
        self.last = 0

    def write(
        self,
        kind: _Kind,
        text: str,
        client_transaction_id: str | None = None,
        transaction_id: int | None = None,
        *,
        status: int | None = None,
        fault: str | None = None,
    ) -> None:
        self.last += 1
        client_id = client_transaction_id and client_transaction_id[:_LONGEST]
        self._entries.append(
            LogEntry(
                number=self.last, at=self._clock.time(), kind=kind, text=text[:_LONGEST], status=status, fault=fault,
                client_transaction_id=client_id, transaction_id=transaction_id,
            )
        )  # fmt: skip

    def after(self, number: int) -> list[LogEntry]:
        """Return what came after that number, oldest first."""
        return [entry for entry in self._entries if entry.number > number]
