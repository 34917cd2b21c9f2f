"""The service, read a second time: it imports nothing of payclient, so that no misreading is made twice.

Read `settings`, `rules`, `codes`, `limits`, `answers`, `agenda`, `transactions`, `service`, `forms`, `changes`,
`status`, `notify`, `external`, `pages`, then the routes `reading`, `messages`, `api`, `site`, `control`, and `server`,
in this order; `payphone` is one real service's settings.
"""

from .answers import Answers
from .clock import Clock, ManualClock, SystemClock, TimerHandle
from .forms import Form
from .payphone import PAYPHONE, TEST_MODE
from .server import Simulator
from .service import Counts, Sale
from .settings import Settings

__all__ = [
    "PAYPHONE",
    "TEST_MODE",
    "Answers",
    "Clock",
    "Counts",
    "Form",
    "ManualClock",
    "Sale",
    "Settings",
    "Simulator",
    "SystemClock",
    "TimerHandle",
]
