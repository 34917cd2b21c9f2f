"""The `Simulator` that a program opens: the service, its routes and its notifications."""

import ipaddress
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Literal, Self

from aiohttp import web

from .answers import Answers
from .api import Api
from .changes import Changes
from .clock import Clock, SystemClock
from .control import Control
from .external import ExternalNotices
from .forms import METHODS, Form, Forms, Method
from .limits import QueryLimit
from .notify import Notifier
from .service import Counts, Sale, Service
from .settings import ACCEPTED, Settings
from .site import Site

__all__ = ["Simulator"]


class Simulator:
    """The simulated service, at `url` while its `async with` lasts; sales and forms stay readable afterwards.

    Without a `token` any bearer token is taken, but there must be one. Unless `control` says otherwise, the
    JSON routes below /_simulator exist on a loopback host only, because they ask for no token.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        answers: Answers | None = None,
        control: bool | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.clock: Clock = SystemClock() if clock is None else clock
        self._host = host
        self._port = port
        self._token = token
        self._control = _is_loopback(host) if control is None else control
        self._service = Service(self.settings, self.clock, answers, self._on_answered)
        self._notifier = Notifier(self.settings, self._service.tally)
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
        self._runner: web.AppRunner | None = None
        self._url: str | None = None

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("a Simulator is opened once; make another")
        # Closing does not wait for a request that a client left hanging.
        runner = self._runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._url = f"http://{host}:{runner.addresses[0][1]}"  # at once: the answer to a Prepare has it
        await self._notifier.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._service.close()  # after the last request, which may have set the timer
        await self._notifier.close()

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        if self._url is None:
            raise RuntimeError("the Simulator is not open yet: use `async with`")
        return self._url

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
    def created_per_client_id(self) -> Counter[str]:
        """How many sales each client transaction id created; above 1, somebody was charged twice."""
        return self._service.created_per_client_id

    @property
    def collected_per_client_id(self) -> Counter[str]:
        """The cents that each client transaction id paid and did not get back."""
        return self._service.transactions.collected_per_client_id

    async def approve(self, transaction_id: int) -> None:
        """The customer approves now; returns once the notification is done, after 5 seconds at most.

        LookupError if there is no such sale, ValueError if it is not pending.
        """
        await self._answer(transaction_id, "approved")

    async def reject(self, transaction_id: int) -> None:
        """The customer rejects now; otherwise like `approve`."""
        await self._answer(transaction_id, "rejected")

    async def ignore(self, transaction_id: int) -> None:
        """The customer will not answer, so the sale expires; raises like `approve`."""
        self._service.ignore(transaction_id)

    async def pay(self, payment_id: str, method: Method = "card", *, declined: bool = False) -> str:
        """A customer opens the link and pays, with all that the form asks for, or with a card that is declined.

        Returns the address to which the browser is sent. LookupError if there is no such payment, ValueError
        if it is paid, declined or cancelled already, or the link has expired.
        """
        return self._forms.pay(self._opened(payment_id, method), method, declined=declined)

    async def cancel_form(self, payment_id: str, method: Method = "card") -> str | None:
        """A customer opens the link and closes it by its X; otherwise like `pay`.

        None if the merchant gave no address for it.
        """
        return self._forms.cancel(self._opened(payment_id, method), method)

    async def notifications_done(self) -> None:
        """Wait until the notifications that are on their way are done, 5 seconds at most."""
        await self._notifier.delivered()

    def _opened(self, payment_id: str, method: Method) -> Form:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        form = self._forms.forms.get(payment_id)
        if form is None:
            raise LookupError("no prepared payment has this payment id")
        self._forms.load(form, method)
        return form

    async def _answer(self, transaction_id: int, how: Literal["approved", "rejected"]) -> None:
        self._service.answer(transaction_id, how)
        await self._notifier.delivered(transaction_id)

    def _on_answered(self, sale: Sale) -> None:
        self._notifier.start(sale)
        if sale.state == ACCEPTED:
            self._external.start(sale)

    def _application(self) -> web.Application:
        application = web.Application()
        api = Api(self._service, self._forms, self._changes, self._limit, self._token, lambda: self.url)
        api.add_routes(application.router)
        Site(self.settings, self._forms).add_routes(application.router)
        if self._control:
            Control(self._service, self._forms, self._answer).add_routes(application.router)
        return application


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
