"""An asyncio SDK with which a merchant charges people and knows what happened.

Start with `open_tracker` and `Tracker.sale`. The names here are those that an application uses. Plumbing
is imported from its module: `payclient.wire` (requests, answers), `payclient.lifecycle` (states and records),
`payclient.ledger`, `payclient.clock`, `payclient.profile`; `payclient.sync`, `payclient.web` and `payclient.simulator`
stand beside.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from payclient.amounts import split_tax, to_cents
    from payclient.batch import ChargeResult, ChargeRow, charge_all
    from payclient.clock import Timeouts
    from payclient.errors import (
        AlreadyPaidError,
        ConfigurationError,
        CustomerBusyError,
        DifferentRequestError,
        InvalidNotificationError,
        InvalidRequestError,
        LedgerError,
        LedgerInUseError,
        LedgerMissingError,
        LedgerUnavailableError,
        NotCancellableError,
        NotCreatedError,
        NotReversibleError,
        NotSentError,
        OutcomeUnknownError,
        PayError,
        PurchaseOpenError,
        RateLimitedError,
        RefusedError,
        StillPendingError,
        TrackerClosedError,
        TransitionError,
        TransportError,
        UnauthorizedError,
        UsageError,
        ValidationFailedError,
    )
    from payclient.ledger import open_ledger
    from payclient.lifecycle import State
    from payclient.models import (
        BillTo,
        LineItem,
        Notification,
        Order,
        PrepareRequest,
        PrepareResult,
        SaleRequest,
        SaleResult,
        StatusReport,
        derive_id,
    )
    from payclient.notifications import (
        Receipt,
        acknowledgement,
        notification_url,
        parse_external_notification,
        parse_notification,
    )
    from payclient.profile import DOCUMENT, PAYPHONE, ServiceProfile
    from payclient.schedule import Attentive, Fixed, Schedule, Steps
    from payclient.session import Exchange, PaySession
    from payclient.tracking import (
        FormLink,
        Health,
        Outcome,
        PaymentForm,
        PendingSale,
        Purchase,
        StatusSource,
        Tracker,
        TransactionRef,
        as_decided,
        open_tracker,
        open_tracker_from_env,
    )

__all__ = [
    "DOCUMENT", "PAYPHONE", "AlreadyPaidError", "Attentive", "BillTo", "ChargeResult", "ChargeRow",
    "ConfigurationError", "CustomerBusyError", "DifferentRequestError", "Exchange", "Fixed", "FormLink",
    "Health", "InvalidNotificationError", "InvalidRequestError", "LedgerError", "LedgerInUseError",
    "LedgerMissingError", "LedgerUnavailableError", "LineItem", "NotCancellableError", "NotCreatedError",
    "NotReversibleError", "NotSentError", "Notification", "Order", "Outcome", "OutcomeUnknownError",
    "PayError", "PaySession", "PaymentForm", "PendingSale", "PrepareRequest", "PrepareResult", "Purchase",
    "PurchaseOpenError", "RateLimitedError", "Receipt", "RefusedError", "SaleRequest", "SaleResult",
    "Schedule", "ServiceProfile", "State", "StatusReport", "StatusSource", "Steps", "StillPendingError",
    "Timeouts", "Tracker", "TrackerClosedError", "TransactionRef", "TransitionError", "TransportError",
    "UnauthorizedError", "UsageError", "ValidationFailedError", "acknowledgement", "as_decided", "charge_all",
    "derive_id", "notification_url", "open_ledger", "open_tracker", "open_tracker_from_env",
    "parse_external_notification", "parse_notification", "split_tax", "to_cents",
]  # fmt: skip


if not _TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what is first used: `payclient --version` needs no HTTP client, and a script no simulator."""
        from importlib import import_module

        if name in __all__:
            # The lightest first: the search ends at the first one that has the name.
            homes = "errors amounts lifecycle models notifications profile schedule clock session ledger tracking batch"
            found = (import_module(f"payclient.{home}") for home in homes.split())
            globals()[name] = value = next(getattr(home, name) for home in found if hasattr(home, name))
            return value
        try:
            if not name.startswith("_"):
                return import_module(f"payclient.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"payclient.{name}":
                raise
        raise AttributeError(f"module 'payclient' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
