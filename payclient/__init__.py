"""An asyncio SDK with which a merchant charges people and knows what happened."""

from payclient.amounts import (
    TaxSplit,
    split_tax,
    to_cents,
)
from payclient.asking import (
    StatusSource,
    TransactionRef,
)
from payclient.batch import (
    ChargeResult,
    Charges,
    charge_all,
)
from payclient.clock import (
    Clock,
    SystemClock,
)
from payclient.deadlines import (
    Timeouts,
)
from payclient.errors import (
    AlreadyPaidError,
    ConfigurationError,
    CustomerBusyError,
    DifferentRequestError,
    ErrorDetail,
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
from payclient.events import Event, Evidence
from payclient.exchanging import Exchange
from payclient.forms import (
    FormLink,
    PaymentForm,
)
from payclient.ledger import (
    Change,
    Ledger,
    backup_ledger,
    open_ledger,
)
from payclient.lifecycle import TRANSITIONS, Record, State, advance
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest, derive_id
from payclient.notifications import (
    Receipt,
    acknowledgement,
    notification_url,
    parse_external_notification,
    parse_notification,
)
from payclient.outcomes import (
    Outcome,
)
from payclient.pending import (
    PendingSale,
)
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.profile_tables import ConfirmProfile, ReturnProfile, StatusProfile, UndoProfile
from payclient.profiles import (
    PAYPHONE,
)
from payclient.results import FormLinks, Notification, PrepareResult, SaleResult, StatusReport
from payclient.schedule import (
    Attentive,
    Fixed,
    Schedule,
    Steps,
)
from payclient.session import PaySession
from payclient.tracker import (
    Tracker,
    as_decided,
    open_tracker,
)
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport

__all__ = [
    "DOCUMENT",
    "PAYPHONE",
    "TRANSITIONS",
    "AlreadyPaidError",
    "Attentive",
    "BeforeSend",
    "BillTo",
    "Change",
    "ChargeResult",
    "Charges",
    "Clock",
    "ConfigurationError",
    "ConfirmProfile",
    "CustomerBusyError",
    "DifferentRequestError",
    "ErrorDetail",
    "Event",
    "Evidence",
    "Exchange",
    "Fixed",
    "FormLink",
    "FormLinks",
    "HttpRequest",
    "HttpResponse",
    "InvalidNotificationError",
    "InvalidRequestError",
    "Ledger",
    "LedgerError",
    "LedgerInUseError",
    "LedgerMissingError",
    "LedgerUnavailableError",
    "LineItem",
    "NotCancellableError",
    "NotCreatedError",
    "NotReversibleError",
    "NotSentError",
    "Notification",
    "Order",
    "Outcome",
    "OutcomeUnknownError",
    "PayError",
    "PaySession",
    "PaymentForm",
    "PendingSale",
    "PrepareRequest",
    "PrepareResult",
    "PurchaseOpenError",
    "RateLimitedError",
    "Receipt",
    "Record",
    "RefusedError",
    "ReturnProfile",
    "SaleRequest",
    "SaleResult",
    "Schedule",
    "ServiceProfile",
    "State",
    "StatusProfile",
    "StatusReport",
    "StatusSource",
    "Steps",
    "StillPendingError",
    "SystemClock",
    "TaxSplit",
    "Timeouts",
    "Tracker",
    "TrackerClosedError",
    "TransactionRef",
    "TransitionError",
    "Transport",
    "TransportError",
    "UnauthorizedError",
    "UndoProfile",
    "UsageError",
    "ValidationFailedError",
    "acknowledgement",
    "advance",
    "as_decided",
    "backup_ledger",
    "charge_all",
    "derive_id",
    "notification_url",
    "open_ledger",
    "open_tracker",
    "parse_external_notification",
    "parse_notification",
    "split_tax",
    "to_cents",
]
