"""The service, made a second time from its document: nothing of payclient is imported, nor any misreading with it.

- Description: `settings` (the document's, and one real service's), `messages`.
- Behaviour: `rules` (of a request), `transactions`, `books` (what becomes of them), `status`, `notifications`.
- Play: `scenarios` (the customers), `faults`, `clock`.
- Routes: `merchant_api`, `form_pages`, `control_api` (with the page), `server` (the `Simulator`).
"""

from .clock import JumpClock, ServiceClock
from .faults import Fault, Faults
from .messages import RefusalError
from .scenarios import SCENARIOS, TEST_MODE, Answers, Scenario
from .server import Simulator, SimulatorThread
from .settings import PAYPHONE, Settings
from .transactions import Counts, Form, LogEntry, Sale

__all__ = [
    "PAYPHONE", "SCENARIOS", "TEST_MODE", "Answers", "Counts", "Fault", "Faults", "Form", "JumpClock", "LogEntry",
    "RefusalError", "Sale", "Scenario", "ServiceClock", "Settings", "Simulator", "SimulatorThread",
]  # fmt: skip
