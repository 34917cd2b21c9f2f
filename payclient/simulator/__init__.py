"""The service, read a second time: it imports nothing of payclient, so that no misreading is made twice.

- Description: `settings`, `payphone` (one real service's settings), `messages`.
- Behaviour: `rules` (of a request), `transactions`, `books` (what becomes of them), `status`, `notifications`.
- Play: `answers` (the customers), `faults`, `scenarios`, `clock`.
- Routes: `merchant_api`, `form_pages`, `control_api` (with the page), `server` (the `Simulator`), `thread`.
"""

from .answers import Answers
from .clock import JumpClock, ServiceClock
from .faults import Fault, FaultPlan, Faults
from .messages import RefusalError
from .payphone import PAYPHONE, TEST_MODE
from .scenarios import SCENARIOS, Scenario
from .server import Simulator
from .settings import Settings
from .thread import SimulatorThread
from .transactions import Counts, Form, LogEntry, Sale

__all__ = [
    "PAYPHONE",
    "SCENARIOS",
    "TEST_MODE",
    "Answers",
    "Counts",
    "Fault",
    "FaultPlan",
    "Faults",
    "Form",
    "JumpClock",
    "LogEntry",
    "RefusalError",
    "Sale",
    "Scenario",
    "ServiceClock",
    "Settings",
    "Simulator",
    "SimulatorThread",
]  # fmt: skip
