"""Which notifications a decided sale sends (§6), and what goes wrong with them."""

from .clock import Clock
from .faults import FaultPlan
from .journal import Journal
from .notify import Notifier
from .service import Sale

__all__ = ["FOREIGN", "Deliveries"]

#: What a forged notification adds to the true transaction id.
FOREIGN = 1_000_000_007


class Deliveries:
    """Sends one notification for each answer, but for what the plan has in mind."""

    def __init__(self, plan: FaultPlan, notifier: Notifier, clock: Clock, journal: Journal) -> None:
        self._plan = plan
        self._notifier = notifier
        self._clock = clock
        self._journal = journal

    def answered(self, sale: Sale) -> None:
        """The customer has approved or rejected."""
        if sale.response_url is None:
            return
        fault = self._plan.next("notification", sale.client_transaction_id, sale.client_transaction_id)
        match None if fault is None else fault.kind:
            case "lost":
                self._journal.write(
                    "notification",
                    "never sent",
                    client_transaction_id=sale.client_transaction_id,
                    transaction_id=sale.transaction_id,
                    fault="lost",
                )
                return
            case "late" if fault is not None:
                self._clock.call_at(self._clock.monotonic() + fault.seconds, self._notifier.start, sale)
                return
            case "duplicate":
                self._notifier.start(sale)
            case "forged":
                self.forge(sale, sale.transaction_id + FOREIGN)
        self._notifier.start(sale)

    def forge(self, sale: Sale, pretended_id: int) -> None:
        """A notification that the service never meant; ValueError if the sale has no `responseUrl`."""
        if sale.response_url is None:
            raise ValueError(f"sale {sale.transaction_id} has no responseUrl")
        self._notifier.start(sale, pretended_id=pretended_id)

    def done(self, sale: Sale, number: int, result: str) -> None:
        """One was delivered, or failed."""
        self._journal.write(
            "notification",
            "notification" if number == sale.transaction_id else "forged notification",
            client_transaction_id=sale.client_transaction_id,
            transaction_id=number,
            status=int(result.removeprefix("HTTP ")) if result.startswith("HTTP ") else None,
            fault=None if result.startswith("HTTP ") else result,
        )
