"""The simulator in a thread of its own, for tests whose code runs in other loops, or in none."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from attrs import evolve

from .clock import JumpClock
from .faults import Fault
from .forms import Form, Method
from .journal import Entry
from .server import Simulator
from .service import Counts, Sale

__all__ = ["SimulatorThread"]

_T = TypeVar("_T")

_PATIENCE = 30.0  # seconds until a call that nobody answers is given up


class SimulatorThread:
    """A `Simulator`, by default `Simulator()`, at `url` while its `with` lasts; every method may be called from
    any thread and any loop, and does not wait for the merchant: a notification is on its way when it returns.
    """

    def __init__(self, simulator: Simulator | None = None) -> None:
        self._simulator = Simulator() if simulator is None else simulator
        if not isinstance(self._simulator.clock, JumpClock):
            raise TypeError("a simulator in a thread needs a JumpClock, which any thread may move")
        #: Shared with whoever is to live in the same time, such as `open_tracker(clock=...)`.
        self.clock: JumpClock = self._simulator.clock
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="payclient-simulator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        return self._simulator.url

    @property
    def counts(self) -> Counts:
        """What the service has executed so far."""
        return self._call(lambda service: service.counts)

    @property
    def faults_done(self) -> Counter[str]:
        """How often each kind of fault has happened."""
        return self._call(lambda service: Counter(service.faults.done))

    @property
    def created_per_client_id(self) -> Counter[str]:
        """How many sales each client transaction id created; above 1, somebody was charged twice."""
        return self._call(lambda service: Counter(service.created_per_client_id))

    @property
    def sales(self) -> Mapping[int, Sale]:
        """A copy of every created sale, by its transaction id, oldest first."""
        return self._call(lambda service: {one: evolve(sale) for one, sale in service.sales.items()})

    @property
    def forms(self) -> Mapping[str, Form]:
        """A copy of every prepared payment, by its payment id, oldest first."""
        return self._call(lambda service: {one: evolve(form) for one, form in service.forms.items()})

    @property
    def log(self) -> tuple[Entry, ...]:
        """What happened, oldest first; the last thousand entries."""
        return self._call(lambda service: service.log)

    def approve(self, sale: int | str) -> None:
        """The customer approves now; `sale` and what is raised are as for `Simulator.approve`."""
        self._decide(sale, "approved")

    def reject(self, sale: int | str) -> None:
        """The customer rejects now."""
        self._decide(sale, "rejected")

    def ignore(self, sale: int | str) -> None:
        """The customer will not answer, so the sale expires."""
        self._run_there(lambda service: service.ignore(sale))

    def forge(self, sale: int | str, pretended_id: int | None = None) -> None:
        """Send a notification though nobody answered, by default with the sale's own id."""
        self._call(lambda service: service.start_forged(sale, pretended_id))

    def pay(self, payment_id: str, method: Method = "card", *, declined: bool = False) -> str:
        """A customer opens the link and pays; returned and raised is what `Simulator.pay` does."""
        return self._run_there(lambda service: service.pay(payment_id, method, declined=declined))

    def cancel_form(self, payment_id: str, method: Method = "card") -> str | None:
        """A customer opens the link and closes it by its X; otherwise like `pay`."""
        return self._run_there(lambda service: service.cancel_form(payment_id, method))

    def notification(self, sale: int | str) -> str:
        """The query of a sale's notification (§6), to be sent by hand where no socket listens."""
        return self._call(lambda service: service.notification_query(sale))

    def notifications_done(self) -> None:
        """Wait until the notifications on their way are done. Not from the loop that receives them."""
        self._run_there(lambda service: service.notifications_done())

    def fail_next(self, fault: Fault, *, times: int = 1) -> None:
        """Let this befall the next exchanges that it is meant for."""
        self._call(lambda service: service.fail_next(fault, times=times))

    def use_scenario(self, name: str) -> None:
        """From now on customers and faults are those of this scenario."""
        self._call(lambda service: service.use_scenario(name))

    def advance(self, seconds: float) -> None:
        """Let time pass in a call, here and for whoever shares the clock."""
        self._run_there(lambda service: service.advance(seconds))

    def stop(self) -> None:
        """Die as a killed process does; `start` listens again at the same address, with all that there was."""
        self._run_there(lambda service: service.stop())

    def start(self) -> None:
        """Listen again after `stop`."""
        self._run_there(lambda service: service.start())

    def _decide(self, sale: int | str, how: Literal["approved", "rejected"]) -> None:
        self._call(lambda service: service.decide(sale, how))

    def _call(self, function: Callable[[Simulator], _T]) -> _T:
        async def call(service: Simulator) -> _T:
            return function(service)

        return self._run_there(call)

    def _run_there(self, make: Callable[[Simulator], Coroutine[Any, Any, _T]]) -> _T:
        if self._loop is None or not self._thread.is_alive():
            raise RuntimeError("the SimulatorThread is not open: use `with`")
        if threading.current_thread() is self._thread:
            raise RuntimeError("called from the simulator's own thread, which would wait for itself")
        return asyncio.run_coroutine_threadsafe(make(self._simulator), self._loop).result(_PATIENCE)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised again by who started the thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with self._simulator:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stop.wait()
