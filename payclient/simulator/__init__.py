"""The service, read a second time: it imports nothing of payclient, so that no misreading is made twice.

Read `settings`, `rules`, `answers`, `service`, `notify`, `forms`, `pages`, then the routes
`api`, `site`, `control`, and `server`, in this order.
"""

from .answers import Answers
from .clock import Clock, ManualClock, SystemClock, TimerHandle
from .forms import Form
from .server import Simulator
from .service import Counts, Sale
from .settings import Settings

__all__ = [
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
