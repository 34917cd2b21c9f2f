"""The `Simulator` that a program opens: the service, its routes and its notifications; and one in a thread."""

import asyncio
import copy
import threading
from collections.abc import Coroutine, Mapping
from itertools import islice
from typing import Any, Final, Self

from aiohttp import web
from attrs import asdict, define, field
from yarl import URL

from .books import Books
from .clock import JumpClock, sleep
from .control_api import control_routes
from .faults import Fault, Faults
from .form_pages import form_routes
from .merchant_api import MerchantApi
from .messages import REASONS, Reason, say
from .notifications import Notifications
from .routes import Route, json_reply
from .scenarios import Answers, scenario
from .settings import Settings
from .transactions import METHODS, Form, LogEntry, Sale, Transaction

_SHOWN: Final = 12
_LONGEST: Final = 366 * 86_400  # seconds
_LONGEST_DOWN: Final = 3_600  # seconds
_UNTIL_ANSWERED: Final = 0.02  # seconds
_PATIENCE: Final = 30.0  # seconds until a call to another thread is given up


@define(eq=False, repr=False, slots=False, kw_only=True)
class Simulator(Books):
    """The simulated service, at `url` while its `async with` lasts; sales and forms stay readable afterwards.

    Without a `token` any bearer token is taken, but there must be one. `accounts` are the tokens instead, each with the
    name of its account, which finds its own sales and forms only; the mapping may change while the service is open.
    Unless `control` says otherwise, the page at / and the control routes below /_simulator exist on a loopback host
    only, because they take no token. Its clock is the machine's, begins at noon, and `advance` lets it jump.

    Where a sale is an argument, it is a transaction id or a client transaction id, whose newest sale is meant. Raises
    LookupError where there is no such sale, and ValueError where the sale must be pending and is decided; for a payment
    id likewise, whose form must be open and its link alive.
    """

    host: str = "127.0.0.1"
    port: int = 0
    control: bool | None = None
    #: Whether `approve`, `reject` and `forge` return once the notification is done, after 5 seconds at most.
    waits_for_delivery: bool = field(default=True, init=False)
    _runner: web.ServerRunner | None = field(default=None, init=False)
    _restarting: asyncio.Task[None] | None = field(default=None, init=False)
    #: Those of the connections whose request is not answered yet. aiohttp forgets a client that hung up meanwhile.
    _serving: set[asyncio.Task[None]] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.clock, JumpClock):  # a test at night is to pass as well
            self.set_time_of_day("12:00")
        self._notifications = Notifications(self)
        self._merchant_api = MerchantApi(self, self._notifications)
        self._routes = self._all_routes()

    @classmethod
    def scenario(cls, name: str, **options: Any) -> Self:
        """Return a simulator with the customers and faults of a scenario; ValueError for another name.

        `options` are the constructor's.
        """
        chosen = scenario(name)
        return cls(**{"answers": chosen.answers, "faults": Faults(chosen.chances), **options})

    async def __aenter__(self) -> Self:
        if self._url:
            raise RuntimeError("a Simulator is opened once; make another")
        await self.start()
        await self._notifications.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self.timetable.close()  # after the last request, which may have set a timer
        await self._notifications.close()

    # The process

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request; what no route answers is refused in JSON, and logged."""
        found = [(one, one.match(request.rel_url.raw_path)) for one in self._routes]
        methods = {one.method: (one, match) for one, match in found if match is not None}
        self._serving.add(request.task)
        try:
            if request.method in methods:
                route, match = methods[request.method]
                return await route.answer(request, match)
            if methods:
                raise web.HTTPMethodNotAllowed(request.method, methods)
            raise web.HTTPNotFound
        except web.HTTPException as error:
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            self.log_entry("request", f"{request.method} {request.path}", status=error.status)
            return json_reply({"message": error.reason}, error.status, headers)
        finally:
            self._serving.discard(request.task)

    async def start(self) -> None:
        """Listen again after `stop`, at the same address and with all that there was."""
        if self._runner is not None:
            raise RuntimeError("the Simulator listens already")
        # Closing does not wait for a request that a client left hanging.
        runner = web.ServerRunner(web.Server(self.serve, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._url = str(URL.build(scheme="http", host=self.host, port=self.port))

    async def stop(self) -> None:
        """Die as a killed process does: connections break and new ones are refused until `start`.

        Sales, forms and timers are kept, and so are notifications on their way.
        """
        if self._runner is None:
            raise RuntimeError("the Simulator does not listen")
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections if runner.server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()
        self.log_entry("service", "stopped")

    async def restart(self, down: float = 0.0) -> None:
        """Stop, and start again after so many seconds of its clock, an hour at most; the state is kept."""
        await self.stop()
        await sleep(self.clock, down)
        await self.start()
        self.log_entry("service", "started again")

    def restart_soon(self, down: float = 0.0) -> None:
        """Restart in the background, once the answer to the request for it is on its way."""
        if not 0 <= down <= _LONGEST_DOWN:
            raise ValueError(f"down must be 0 to {_LONGEST_DOWN}")

        async def later() -> None:
            await asyncio.sleep(_UNTIL_ANSWERED)
            await self.restart(down)

        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.create_task(later())

    async def advance(self, seconds: float) -> None:
        """Let time pass at once, a year at most; RuntimeError where the clock in use cannot jump."""
        if not 0 <= seconds <= _LONGEST:
            raise ValueError(f"seconds must be 0 to {_LONGEST}")
        if (jump := getattr(self.clock, "advance", None)) is None:
            raise RuntimeError("the simulator's clock cannot be moved")
        if (moving := jump(seconds)) is not None:
            await moving
        self.timetable.run_due()
        self.log_entry("service", f"{seconds:g} seconds passed")

    def change_settings(self, changes: Mapping[str, object]) -> None:
        """Change settings, as JSON has them, for all requests to come; ValueError for what cannot be."""
        self.settings: Settings = self.settings.changed(changes)
        self._routes = self._all_routes()
        self.log_entry("service", f"settings: {', '.join(changes)}")

    def use_accounts(self, accounts: Mapping[str, str]) -> None:
        """Take these tokens from now on, each with the name of its account, and no other."""
        self.accounts: Mapping[str, str] | None = dict(accounts)

    # Faults

    def fail_next(self, fault: Fault, *, times: int = 1) -> None:
        """Let a fault affect the next exchanges that it applies to; ValueError if `times` is not 1 or more."""
        if not isinstance(fault, Fault):
            raise TypeError(
                f'fault must be a Fault, such as Fault("reset"); {type(fault).__name__} was given'
            )
        if type(times) is not int or times < 1:
            raise ValueError("times must be a whole number from 1")
        self.faults.script.append((fault, times))
        self.log_entry("service", f"next {fault.operation}: {fault.kind}")

    def fail_by_chance(self, fault: Fault, chance: float) -> None:
        """Let a fault happen by chance too, from now on; ValueError where the chances exceed 1."""
        self.faults.chances = {**self.faults.chances, fault: chance}

    def clear_faults(self) -> None:
        """Drop all faults to come; those that happened stay counted."""
        self.faults.script.clear()
        self.faults.chances = {}

    def use_scenario(self, name: str) -> None:
        """Take customers and faults of this scenario from now on; ValueError for another name."""
        chosen = scenario(name)
        self.answers: Answers | None = chosen.answers
        self.faults.script.clear()
        self.faults.chances = chosen.chances
        self.log_entry("service", f"scenario {name}")

    # Results

    def read_log(self, after: int = 0) -> list[LogEntry]:
        """Return the entries after that number."""
        return [entry for entry in self.log if entry.number > after]

    def overview(self) -> dict[str, object]:
        """Return what the page shows: counts, the newest pending sales and forms, and the newest log entry's number."""
        self.timetable.run_due()
        pending = (sale.as_json() for sale in reversed(self.sales.values()) if sale.how is None)
        forms = list(self.forms.values())[-_SHOWN:][::-1]
        return {
            "time": self.clock.time(),
            "log": self.last_entry,
            "counts": asdict(self.counts),
            "pending": list(islice(pending, _SHOWN)),
            "forms": [{**form.as_json(), "links": self._live_links(form)} for form in forms],
        }

    @property
    def reasons(self) -> dict[str, str]:
        """The names of reasons of a decline, with what each means."""
        return {reason: say(reason, "en") for reason in REASONS}

    # The customers

    async def approve(self, sale: int | str) -> Sale:
        """Approve a pending sale as its customer; returns once the notification is done, after 5 seconds at most."""
        return await self._answer_as_customer(sale, "approved")

    async def reject(self, sale: int | str, reason: Reason | None = None) -> Sale:
        """Reject a pending sale as its customer, or as the bank for a reason; otherwise like `approve`."""
        return await self._answer_as_customer(sale, "rejected", reason)

    async def ignore(self, sale: int | str) -> Sale:
        """Never answer a pending sale, so that it expires."""
        found = self.pending_sale(sale)
        found.ignored = True
        return found

    async def forge(self, sale: int | str, pretended_id: int | None = None) -> None:
        """Send a notification though the customer has not answered, by default with the sale's own id."""
        found = self.sale(sale)
        self._notifications.send(found, pretended_id)
        await self._wait_for_notification(found)

    async def notifications_done(self) -> None:
        """Wait until the notifications that are on their way are done, 5 seconds at most."""
        await self._notifications.delivered()

    def notify_merchant(self, transaction: Transaction) -> None:
        self._notifications.send_all(transaction)

    async def _answer_as_customer(self, sale: int | str, how: str, reason: Reason | None = None) -> Sale:
        found = self.pending_sale(sale)
        self.decide_sale(found, how, reason)
        await self._wait_for_notification(found)
        return found

    async def _wait_for_notification(self, sale: Sale) -> None:
        if self.waits_for_delivery:
            await self._notifications.delivered(sale)

    def _all_routes(self) -> list[Route]:
        return [*self._merchant_api.routes(), *form_routes(self), *control_routes(self)]

    def _live_links(self, form: Form) -> dict[str, str]:
        live = [one for one in METHODS if form.how is None and not self.is_expired(form, one)]
        return {method: self.link(form, method) for method in live}


class SimulatorThread:
    """A `Simulator`, by default `Simulator()`, at `url` while its `with` lasts.

    Every method and attribute of `Simulator` is here too, to be used from any thread and any loop: methods are called
    without `await`, attributes are copies, and may be set. No call but `notifications_done` waits for the merchant: a
    notification is on its way when `approve` returns.
    """

    def __init__(self, simulator: Simulator | None = None) -> None:
        self._simulator = Simulator() if simulator is None else simulator
        self._simulator.waits_for_delivery = False
        if not isinstance(self._simulator.clock, JumpClock):
            raise TypeError("a simulator in a thread needs a JumpClock, which any thread may move")
        #: To be shared with all that is to have the same time, such as `open_tracker(clock=...)`.
        self.clock: JumpClock = self._simulator.clock
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="payclient-simulator", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._simulator.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._simulator.__aexit__(None, None, None))
        self._end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if callable(getattr(Simulator, name, None)):
            return lambda *args, **options: self._call(name, *args, **options)
        return self._call(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "clock":
            super().__setattr__(name, value)
        else:  # here it would change nothing
            self._call("__setattr__", name, value)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the simulator in its thread, or copy an attribute, and return the result."""

        async def there() -> Any:
            result = getattr(self._simulator, name)
            if callable(result):
                result = result(*args, **options)
            return copy.deepcopy(await result if asyncio.iscoroutine(result) else result)

        if threading.current_thread() is self.__dict__.get("_thread"):
            raise RuntimeError("called from the simulator's own thread, which would wait for itself")
        return self._run(there())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            work.close()
            raise RuntimeError("the SimulatorThread is not open: use `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
