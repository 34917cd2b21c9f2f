"""The `Simulator` that a program opens: the service, its routes and its notifications."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from aiohttp import web

from .answers import Answers
from .api import Api
from .changes import Changes
from .clock import Clock, JumpClock, sleep
from .control import Control
from .deliveries import Deliveries
from .external import ExternalNotices
from .faults import Fault, FaultPlan, Faults
from .forms import Form, Forms, Method
from .guard import guard, is_loopback
from .journal import Entry, Journal
from .limits import QueryLimit
from .listening import Listener
from .notify import Notifier
from .phone import Phone
from .scenarios import scenario
from .service import Counts, Sale, Service
from .settings import ACCEPTED, Settings
from .site import Site
from .steering import Steering
from .traffic import Traffic, is_of

__all__ = ["Simulator"]


class Simulator:
    """The simulated service, at `url` while its `async with` lasts; sales and forms stay readable afterwards.

    Without a `token` any bearer token is taken, but there must be one. `accounts` are the tokens instead, each with the
    name of its account, which finds its own sales and forms only; the mapping may change while the service is open.
    Unless `control` says otherwise, the page at / and the JSON routes below /_simulator exist on a loopback host only,
    because they ask for no token. Its clock is the machine's, and `advance` lets it jump.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        accounts: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        answers: Answers | None = None,
        faults: Faults | None = None,
        control: bool | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.clock: Clock = JumpClock() if clock is None else clock
        #: What goes wrong, and in `done` what did.
        self.faults = FaultPlan(faults)
        self._host = host
        self._token = token
        self._accounts = accounts
        self._control = is_loopback(host) if control is None else control
        self._service = Service(self.settings, self.clock, answers, self._on_answered)
        self._journal = Journal(self.clock)
        self._notifier = Notifier(
            self.settings, self._service.tally, lambda *result: self._deliveries.done(*result)
        )
        self._deliveries = Deliveries(self.faults, self._notifier, self.clock, self._journal)
        self._service.on_decided = self._on_decided
        self._external = ExternalNotices(self.settings, self._notifier, self._service.tally)
        self._forms = Forms(
            self.settings,
            self.clock,
            self._service.agenda,
            self._service.transactions,
            self._service.tally,
            self._external.start,
        )
        self._changes = Changes(self._service, self._forms, self.clock)
        self._limit = QueryLimit(self.clock, self.settings.queries_per_minute)
        self._listener = Listener(host, port, lambda: self._application())
        self._traffic: Traffic | None = None
        self._restarting: asyncio.Task[None] | None = None

    @classmethod
    def scenario(cls, name: str, **options: Any) -> Self:
        """A simulator whose customers and faults are those of a scenario; ValueError if there is none such.

        `options` are the constructor's.
        """
        chosen = scenario(name)
        return cls(**{"answers": chosen.answers, "faults": chosen.faults, **options})

    async def __aenter__(self) -> Self:
        if self._listener.url is not None:
            raise RuntimeError("a Simulator is opened once; make another")
        await self.start()
        await self._notifier.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        self._release()
        await self._listener.close()
        self._service.close()  # after the last request, which may have set the timer
        await self._notifier.close()

    async def start(self) -> None:
        """Listen again after `stop`, at the same address and with all that there was."""
        await self._listener.start()

    async def stop(self) -> None:
        """Die as a killed process does: connections break and new ones are refused until `start`.

        Sales, forms and timers are kept, and so are notifications on their way.
        """
        self._release()
        await self._listener.kill()
        self._journal.write("service", "stopped")

    async def restart(self, down: float = 0.0) -> None:
        """`stop`, and `start` after so many seconds of its clock; the state is kept."""
        await self.stop()
        if down:
            await sleep(self.clock, down)
        await self.start()
        self._journal.write("service", "started again")

    async def advance(self, seconds: float) -> None:
        """Let time pass in a call; TypeError where the clock in use cannot jump."""
        jump = getattr(self.clock, "advance", None)
        if jump is None:
            raise TypeError("the simulator's clock cannot be moved")
        if (moving := jump(seconds)) is not None:
            await moving
        self._service.agenda.run_due()
        self._journal.write("service", f"{seconds:g} seconds passed")

    def fail_next(self, fault: Fault, *, times: int = 1) -> None:
        """Let this befall the next exchanges that it is meant for; ValueError if `times` is not 1 or more."""
        self.faults.add(fault, times)

    def use_scenario(self, name: str) -> None:
        """From now on customers and faults are those of this scenario; ValueError if there is none such."""
        chosen = scenario(name)
        self._service.use(chosen.answers)
        self.faults.clear()
        self.faults.chances = chosen.faults
        self._journal.write("service", f"scenario {name}")

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        if self._listener.url is None:
            raise RuntimeError("the Simulator is not open yet: use `async with`")
        return self._listener.url

    @property
    def sales(self) -> Mapping[int, Sale]:
        """Every created sale by its transaction id, oldest first."""
        return MappingProxyType(self._service.sales)

    @property
    def forms(self) -> Mapping[str, Form]:
        """Every prepared payment by its payment id, oldest first."""
        return MappingProxyType(self._forms.forms)

    @property
    def counts(self) -> Counts:
        """What the service has executed so far."""
        return self._service.counts

    @property
    def log(self) -> tuple[Entry, ...]:
        """What happened, oldest first; the last thousand entries."""
        return tuple(self._journal.after(0))

    @property
    def created_per_client_id(self) -> Counter[str]:
        """How many sales each client transaction id created; above 1, somebody was charged twice."""
        return self._service.created_per_client_id

    @property
    def collected_per_client_id(self) -> Counter[str]:
        """The cents that each client transaction id paid and did not get back."""
        return self._service.transactions.collected_per_client_id

    async def approve(self, sale: int | str) -> None:
        """The customer approves now; returns once the notification is done, after 5 seconds at most.

        `sale` is a transaction id or a client transaction id, whose newest sale is meant. LookupError if there is no
        such sale, ValueError if it is not pending.
        """
        await self._notifier.delivered(self.decide(sale, "approved"))

    async def reject(self, sale: int | str) -> None:
        """The customer rejects now; otherwise like `approve`."""
        await self._notifier.delivered(self.decide(sale, "rejected"))

    def decide(self, sale: int | str, how: Literal["approved", "rejected"]) -> int:
        """The customer answers now, and the notification is on its way; the sale's transaction id."""
        return self._service.answer(sale, how).transaction_id

    async def ignore(self, sale: int | str) -> None:
        """The customer will not answer, so the sale expires; raises like `approve`."""
        self._service.ignore(sale)

    async def forge(self, sale: int | str, pretended_id: int | None = None) -> None:
        """Send a notification though nobody answered, by default with the sale's own id; raises like `approve`."""
        await self._notifier.delivered(self.start_forged(sale, pretended_id))

    def start_forged(self, sale: int | str, pretended_id: int | None = None) -> int:
        """Like `forge`, without waiting for it; the sale's transaction id."""
        one = self._service.meant(sale)
        self._deliveries.forge(one, one.transaction_id if pretended_id is None else pretended_id)
        return one.transaction_id

    def notification_query(self, sale: int | str) -> str:
        """The query that the notification of this sale has (§6); LookupError if there is no such sale."""
        return self._notifier.query(self._service.meant(sale))

    async def pay(self, payment_id: str, method: Method = "card", *, declined: bool = False) -> str:
        """A customer opens the link and pays, with all that the form asks for, or with a card that is declined.

        Returns the address to which the browser is sent. LookupError if there is no such payment, ValueError
        if it is paid, declined or cancelled already, or the link has expired.
        """
        return self._forms.pay(self._forms.opened(payment_id, method), method, declined=declined)

    async def cancel_form(self, payment_id: str, method: Method = "card") -> str | None:
        """A customer opens the link and closes it by its X; otherwise like `pay`.

        None if the merchant gave no address for it.
        """
        return self._forms.cancel(self._forms.opened(payment_id, method), method)

    async def notifications_done(self) -> None:
        """Wait until the notifications that are on their way are done, 5 seconds at most."""
        await self._notifier.delivered()

    async def _answer(self, transaction_id: int, how: Literal["approved", "rejected"]) -> None:
        await self._notifier.delivered(self.decide(transaction_id, how))

    def _on_decided(self, sale: Sale) -> None:
        self._journal.write(
            "customer",
            str(sale.how),
            client_transaction_id=sale.client_transaction_id,
            transaction_id=sale.transaction_id,
        )

    def _on_answered(self, sale: Sale) -> None:
        self._deliveries.answered(sale)
        if sale.state == ACCEPTED:
            self._external.start(sale)

    def _release(self) -> None:
        """Let go of what waits: requests that stall, and readers of the log."""
        if self._traffic is not None:
            self._traffic.stop()
        self._journal.close()

    def _restart_soon(self, down: float) -> None:
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.create_task(self.restart(down))

    def _account_of(self, token: str) -> str | None:
        if self._accounts is not None:
            return self._accounts.get(token)
        return "" if (token.strip() if self._token is None else token == self._token) else None

    def _application(self) -> web.Application:
        api = Api(self._service, self._forms, self._changes, self._limit, self._account_of, lambda: self.url)
        site = Site(self.settings, self._forms)
        self._traffic = Traffic(
            self.faults,
            self._journal,
            self.clock,
            self.approve,
            api.operation_of,
            is_merchants=is_of(api),
            is_customers=is_of(site),
        )
        application = web.Application(middlewares=[guard(self._host), self._traffic.middleware()])
        api.add_routes(application.router)
        site.add_routes(application.router)
        if self._control:
            Control(self._service, self._forms, self._answer).add_routes(application.router)
            Steering(self, self._journal, self._restart_soon).add_routes(application.router)
            Phone(self._service, self._forms, self.faults, self.clock, self._journal).add_routes(
                application.router
            )
        return application
