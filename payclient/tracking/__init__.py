"""From a request to its outcome: sends through the ledger, and follows what is open to its end.

`tracker` is the front door, which `context` opens, `attempts` the only way to send, `poller` the only loop. What they
decide by is pure: `followup` says when to query and by which id, `evidence` what an answer means, `confirmations` which
ids of a form that came back are confirmed, `rate_limit` when the next request may be made.
"""

from payclient.tracking.context import open_tracker, open_tracker_from_env
from payclient.tracking.followup import StatusSource, TransactionRef
from payclient.tracking.forms import FormLink, PaymentForm
from payclient.tracking.health import Health
from payclient.tracking.outcomes import Outcome, PendingSale, as_decided
from payclient.tracking.purchases import Purchase
from payclient.tracking.tracker import Tracker

__all__ = [
    "FormLink",
    "Health",
    "Outcome",
    "PaymentForm",
    "PendingSale",
    "Purchase",
    "StatusSource",
    "Tracker",
    "TransactionRef",
    "as_decided",
    "open_tracker",
    "open_tracker_from_env",
]
