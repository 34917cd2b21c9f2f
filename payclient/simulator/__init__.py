"""The service, read a second time: it imports nothing of payclient, so that no misreading is made twice.

Read `settings`, `refusals`, `rules`, `limits`, `answers`, `agenda`, `transactions`, `service`, `forms`, `changes`,
`status`, `notify`, `external`, `pages`, then what goes wrong: `faults`, `traffic`, `deliveries`, `scenarios`, then the
routes `reading`, `messages`, `api`, `site`, `control`, `steering`, `phone` with `guard` before them, and `listening`,
`server`, `thread`, in this order; `payphone` is one real service's settings.
"""

from .answers import Answers
from .clock import Clock, JumpClock, ManualClock, SystemClock, TimerHandle
from .faults import Fault, FaultPlan, Faults
from .forms import Form
from .journal import Entry
from .payphone import PAYPHONE, TEST_MODE
from .scenarios import SCENARIOS, Scenario
from .server import Simulator
from .service import Counts, Sale
from .settings import Settings
from .thread import SimulatorThread

__all__ = [
    "PAYPHONE",
    "SCENARIOS",
    "TEST_MODE",
    "Answers",
    "Clock",
    "Counts",
    "Entry",
    "Fault",
    "FaultPlan",
    "Faults",
    "Form",
    "JumpClock",
    "ManualClock",
    "Sale",
    "Scenario",
    "Settings",
    "Simulator",
    "SimulatorThread",
    "SystemClock",
    "TimerHandle",
]
