"""The service over HTTP, and the `Simulator` that a program opens."""

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Literal, Self

import attrs
import orjson
from aiohttp import web

from .answers import Answers
from .clock import Clock, SystemClock
from .notify import Notifier
from .rules import Fault, Refusal, validation_refusal
from .service import Counts, Sale, Service
from .settings import ACCEPTED, CANCELLED, PENDING, Settings

__all__ = ["Simulator"]

_STATUS_CODES = {PENDING: 1, CANCELLED: 2, ACCEPTED: 3}
_TRANSACTION_ID = re.compile(r"[1-9][0-9]{0,18}")


class Simulator:
    """The simulated service, at `url` while its `async with` lasts; its sales stay readable afterwards.

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
        self._notifier = Notifier(self.settings.notification_method, self._service.tally)
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
        await self._notifier.open()
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._url = f"http://{host}:{runner.addresses[0][1]}"
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
    def counts(self) -> Counts:
        """What the service has executed so far."""
        return self._service.counts

    @property
    def created_per_client_id(self) -> Counter[str]:
        """How many sales each client transaction id created; above 1, somebody was charged twice."""
        return self._service.created_per_client_id

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

    async def notifications_done(self) -> None:
        """Wait until the notifications that are on their way are done, 5 seconds at most."""
        await self._notifier.delivered()

    async def _answer(self, transaction_id: int, how: Literal["approved", "rejected"]) -> None:
        self._service.answer(transaction_id, how)
        await self._notifier.delivered(transaction_id)

    def _on_answered(self, sale: Sale) -> None:
        self._notifier.start(sale)

    def _application(self) -> web.Application:
        application = web.Application()
        router = application.router
        router.add_post("/api/Sale", self._post_sale)
        if (template := self.settings.status_by_client_transaction_id) is not None:
            # By default aiohttp keeps braces out of a path's variables; a merchant's id may have them.
            path = template.replace("{client_transaction_id}", "{client_transaction_id:[^/]+}")
            router.add_get(path, self._get_status_by_client_id)
        if self.settings.status_by_transaction_id is not None:
            router.add_get(self.settings.status_by_transaction_id, self._get_status)
        if self._control:
            router.add_get("/_simulator/counts", self._get_counts)
            router.add_get("/_simulator/sales", self._get_sales)
            router.add_post("/_simulator/sales/{transaction_id}/{verb:approve|reject}", self._post_answer)
        return application

    async def _post_sale(self, request: web.Request) -> web.Response:
        raw = await request.read()
        tally = self._service.tally
        tally["requests"] += 1
        if not self._is_authorized(request):
            tally["refused"] += 1
            return self._unauthorized()
        body = _parse_body(request.content_type, raw)
        result = body if isinstance(body, Refusal) else self._service.create(body)
        if isinstance(result, Refusal):
            tally["refused"] += 1
            return _json(result.as_json(), self.settings.error_status)
        return _json({"transactionId": result.transaction_id})

    async def _get_status(self, request: web.Request) -> web.Response:
        if not self._count_query(request):
            return self._unauthorized()
        sale = self._sale_in_path(request)
        if sale is None or self._service.is_forgotten(sale):
            return self._not_found()
        return _json(self._status(sale))

    async def _get_status_by_client_id(self, request: web.Request) -> web.Response:
        if not self._count_query(request):
            return self._unauthorized()
        found = self._service.find_by_client_id(request.match_info["client_transaction_id"])
        sales = [sale for sale in found if not self._service.is_forgotten(sale)]
        if not sales:
            return self._not_found()
        if self.settings.client_status_as_array:
            return _json([self._status(sale) for sale in sales])
        return _json(self._status(sales[0]))

    async def _get_counts(self, _: web.Request) -> web.Response:
        created = self._service.created_per_client_id
        duplicates = {one: times for one, times in created.items() if times > 1}
        return _json({**attrs.asdict(self._service.counts), "duplicates": duplicates})

    async def _get_sales(self, _: web.Request) -> web.Response:
        return _json([_summary(sale) for sale in self._service.sales.values()])

    async def _post_answer(self, request: web.Request) -> web.Response:
        sale = self._sale_in_path(request)
        if sale is None:
            return _json({"message": "no sale has this transaction id"}, 404)
        try:
            await self._answer(
                sale.transaction_id, "approved" if request.match_info["verb"] == "approve" else "rejected"
            )
        except ValueError as error:
            return _json({"message": str(error)}, 409)
        return _json(_summary(sale))

    def _sale_in_path(self, request: web.Request) -> Sale | None:
        text = request.match_info["transaction_id"]
        return self._service.find(int(text)) if _TRANSACTION_ID.fullmatch(text) else None

    def _count_query(self, request: web.Request) -> bool:
        self._service.tally["requests"] += 1
        self._service.tally["queries"] += 1
        return self._is_authorized(request)

    def _is_authorized(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")  # §5.1
        return scheme == "Bearer" and (bool(token.strip()) if self._token is None else token == self._token)

    def _unauthorized(self) -> web.Response:
        return _json(
            {"message": "Authorization has been denied for this request."}, self.settings.unauthorized_status
        )

    def _not_found(self) -> web.Response:
        http_status, error_code = self.settings.not_found
        return _json(Refusal(error_code, "La transacción no existe").as_json(), http_status)

    def _status(self, sale: Sale) -> dict[str, object]:
        return {
            "transactionId": sale.transaction_id,
            "clientTransactionId": sale.client_transaction_id,
            "amount": sale.amount,
            "currency": sale.currency,
            self.settings.state_field: self.settings.state_words.get(sale.state, sale.state),
            "statusCode": _STATUS_CODES[sale.state],
        }


def _parse_body(content_type: str, raw: bytes) -> dict[str, object] | Refusal:
    if content_type != "application/json":  # §5.2
        return validation_refusal([Fault("Content-Type", "Debe ser application/json")])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return validation_refusal([Fault("body", "El cuerpo no es JSON")])
    if not isinstance(body, dict):
        return validation_refusal([Fault("body", "El cuerpo debe ser un objeto")])
    return body


def _summary(sale: Sale) -> dict[str, object]:
    return {
        "transaction_id": sale.transaction_id,
        "client_transaction_id": sale.client_transaction_id,
        "state": sale.state,
        "how": sale.how,
        "amount": sale.amount,
        "currency": sale.currency,
    }


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
