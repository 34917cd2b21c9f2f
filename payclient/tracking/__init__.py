"""From a request to its outcome: sends through the ledger, and follows what is open to its end.

- Front door: `context` opens the `tracker`; `outcomes`, `purchases`, `forms`, `reversals`, `health`.
- Sending: `attempts`, the only way to send sales, forms and rows; `late_writes`, where the ledger fails.
- Following: `asks` (those that are open), `poller` (the only loop), `queries`, `arrivals` (notifications),
  `confirmations` (of forms), `recovery` (after a crash), `leases` (among processes).
- Rules, all pure: `followup` (when to query, and by which id), `evidence` (what an answer means), `returned_form`
  (which id is confirmed), `rate_limit`.

An *ask* is a client transaction id that a customer is asked to pay, by a push or a form; its newest attempt counts.
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
