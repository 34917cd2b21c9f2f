"""`PendingSale`: the handle of a sale that may exist."""

from __future__ import annotations

from payclient.events import Evidence
from payclient.lifecycle import Record, State
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller

__all__ = ["PendingSale"]


class PendingSale:
    """A sale that may exist: follow it to its outcome. Made by the tracker."""

    __slots__ = ("_ask", "_poller", "_record")

    def __init__(self, poller: Poller, record: Record) -> None:
        self._poller = poller
        self._record = record
        # A sale that is being sent here is followed by its sender.
        sending = record.state is State.SENDING and not poller.is_elsewhere(record)
        self._ask = None if sending else poller.follow(record)

    def _now(self) -> Record:
        return self._record if self._ask is None else self._ask.record

    def __repr__(self) -> str:
        record = self._now()
        return f"<PendingSale {record.client_transaction_id} {record.state} transaction_id={record.transaction_id}>"

    @property
    def client_transaction_id(self) -> str:
        """The merchant's id."""
        return self._record.client_transaction_id

    @property
    def attempt(self) -> int:
        """Which attempt of its client transaction id this is; one more only where the one before created nothing."""
        return self._record.attempt

    @property
    def kind(self) -> str:
        """`sale` for a push request, `form` for a payment form."""
        return self._record.kind

    @property
    def digest(self) -> bytes:
        """The ledger's keyed digest of the content that was sent."""
        return self._record.digest

    @property
    def transaction_id(self) -> int | None:
        """The service's id; None while it is not known."""
        return self._now().transaction_id

    @property
    def state(self) -> State:
        """Where it stands, as far as this process has heard."""
        return self._now().state

    @property
    def expires_at(self) -> float | None:
        """UTC seconds since the epoch from which the customer can no longer approve (§8); never early."""
        return self._now().expires_at

    @property
    def remaining(self) -> float:
        """Seconds until `expires_at`, at least 0."""
        return self._poller.remaining(self._now())

    @property
    def notified_at(self) -> float | None:
        """When a notification came, in UTC seconds since the epoch (§6)."""
        return self._now().notified_at

    @property
    def outcome(self) -> Outcome:
        """What is known now, without waiting."""
        return Outcome.of(self._now(), report=None if self._ask is None else self._ask.report)

    @property
    def refusal(self) -> tuple[Evidence, str | None]:
        """What a refusal rests on, and its error's class name."""
        record = self._now()
        return record.evidence, record.error_type

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome; whose `paid` is True, False, or None: nobody knows.

        Without a timeout (seconds) it ends when the sale is decided or after the last query. With one it may raise
        `StillPendingError`: tracking goes on, wait again. `TrackerClosedError` if the tracker closes meanwhile.
        """
        return await self._poller.wait(self._now(), timeout)

    async def check(self) -> Outcome:
        """Ask the service once, now (at most once a second for a sale), and say what is known."""
        return await self._poller.check(self._now())
