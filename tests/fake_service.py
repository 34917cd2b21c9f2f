"""A service as a function: the whole of a `Transport`, for tests of what stands above it, and a tracker over it."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs

import payclient
from fake_ledgers import SharedLedger
from manual_clock import ManualClock
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.session import PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport

PROFILE = payclient.ServiceProfile(
    name="test",
    duplicate_codes=frozenset({23}),
    not_found_codes=frozenset({20}),
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="state",
    ),
)

Script = Callable[["FakeService", HttpRequest, BeforeSend], Awaitable[HttpResponse]]


def answer(status: int, value: object, **headers: str) -> HttpResponse:
    """An answer with a JSON body, or with these bytes."""
    return HttpResponse(status, headers, value if isinstance(value, bytes) else json.dumps(value).encode())


def refusal(
    code: int, inner: int | None = None, status: int = 400, retry_after: int | None = None
) -> HttpResponse:
    """An error object (§7)."""
    errors = [] if inner is None else [{"message": "inner", "errorCode": inner}]
    said = answer(status, {"message": "general", "errorCode": code, "errors": errors})
    return said if retry_after is None else attrs.evolve(said, headers={"Retry-After": str(retry_after)})


#: The links of every form.
LINKS = {"payWithPayPhone": "https://pay.example/w?x=1", "payWithCard": "https://pay.example/c?x=1"}

#: What a query, a confirmation or a cancellation answers instead of the truth.
Said = Callable[[], HttpResponse]


class FakeService:
    """Creates sales, prepares forms, answers queries; one entry of `scripts` misbehaves for each next one of either.

    A form that is paid and not confirmed within five minutes is reversed.
    """

    def __init__(self, clock: Any = None) -> None:
        self.clock: ManualClock = clock or ManualClock()
        self.first_id = 1000
        #: transaction id -> its status object.
        self.sales: dict[int, dict[str, object]] = {}
        self.scripts: list[Script] = []
        #: What a status query answers instead; called once for each query.
        self.status_scripts: list[Said] = []
        #: What a status query by this path is answered instead; None: the truth.
        self.instead: Callable[[str], HttpResponse | None] = lambda path: None
        self.confirm_scripts: list[Said] = []
        self.cancel_scripts: list[Said] = []
        #: Complete requests by client transaction id: what reached the service.
        self.posted: Counter[str] = Counter()
        #: When each of them was executed.
        self.posted_at: dict[str, float] = {}
        #: POSTs that were begun, whether or not their bytes left.
        self.begun = 0
        self.queries: list[str] = []
        #: When each of them came.
        self.queried_at: list[float] = []
        #: The bodies of the forms' requests, by client transaction id.
        self.prepared: dict[str, dict[str, object]] = {}
        self.confirms: Counter[int] = Counter()
        self.confirmed: set[int] = set()
        self.paid_at: dict[int, float] = {}
        self.cancels: list[object] = []
        #: Of the tracker over it that was opened last.
        self.ledger: Ledger = MemoryLedger()
        self._forms = 0

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        self.begun += request.method == "POST"
        if request.method == "GET":
            await before_send()
            self.queries.append(request.path)
            self.queried_at.append(self.clock.monotonic())
            return await self.reply(request.path)
        if request.path == "/api/button/V2/Confirm":
            await before_send()
            return self.confirm(json.loads(request.body))
        if request.path == "/api/Cancel":
            await before_send()
            self.cancels.append(json.loads(request.body))
            return self.cancel_scripts.pop(0)() if self.cancel_scripts else answer(200, True)
        if self.scripts:
            return await self.scripts.pop(0)(self, request, before_send)
        return await self.take(request, before_send)

    async def reply(self, path: str) -> HttpResponse:
        """Answer a status query, by the truth unless told otherwise."""
        await asyncio.sleep(0)
        if self.status_scripts:
            return self.status_scripts.pop(0)()
        return self.instead(path) or self.status(path)

    async def take(self, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        """The ordinary way: connect, permit, create, answer."""
        await asyncio.sleep(0)
        await before_send()
        return self.execute(request)

    def execute(self, request: HttpRequest) -> HttpResponse:
        """Execute the charge, or prepare the form."""
        if request.path == "/api/button/Prepare":
            return self.prepare(json.loads(request.body))
        return answer(200, {"transactionId": self.create(request)})

    def create(self, request: HttpRequest) -> int:
        """Create the sale."""
        data = json.loads(request.body)
        identifier = self.first_id + len(self.sales)
        self.posted[data["clientTransactionId"]] += 1
        self.posted_at[data["clientTransactionId"]] = self.clock.monotonic()
        self.sales[identifier] = {
            "transactionId": identifier, "clientTransactionId": data["clientTransactionId"],
            "amount": data["amount"], "currency": data["currency"], "state": "Pendiente",
        }  # fmt: skip
        return identifier

    def add_sale(self, transaction_id: int = 1000, /, **changes: object) -> None:
        """A paid sale of order-17 that no answer told of."""
        self.sales[transaction_id] = {
            "transactionId": transaction_id, "clientTransactionId": "order-17", "amount": 1150,
            "currency": "USD", "state": "Aceptado", **changes,
        }  # fmt: skip

    def status(self, path: str) -> HttpResponse:
        """The truth about either id."""
        self.reverse_late()
        if path.startswith("/api/Sale/client/"):
            name = path.rpartition("/")[2]
            return answer(200, [sale for sale in self.sales.values() if sale["clientTransactionId"] == name])
        sale = self.sales.get(int(path.rpartition("/")[2]))
        return refusal(20, status=404) if sale is None else answer(200, sale)

    def decide(self, state: str, transaction_id: int = 1000) -> None:
        """The customer acts, or the request expires."""
        self.sales[transaction_id]["state"] = state

    def prepare(self, body: dict[str, object]) -> HttpResponse:
        """Prepare a form."""
        self.prepared[str(body["clientTransactionId"])] = body
        self._forms += 1
        return answer(200, {"paymentId": f"P{self._forms}", **LINKS})

    def pay(self, identifier: str, transaction_id: int = 5001, **changes: object) -> str:
        """The customer pays a form; returns what the browser brings back."""
        body = self.prepared[identifier]
        self.sales[transaction_id] = {
            "transactionId": transaction_id, "clientTransactionId": identifier, "amount": body["amount"],
            "currency": body["currency"], "transactionStatus": "Approved", **changes,
        }  # fmt: skip
        self.paid_at[transaction_id] = self.clock.monotonic()
        return f"?id={transaction_id}&clientTransactionId={identifier}"

    def reverse_late(self) -> None:
        """What is paid and not confirmed in five minutes is reversed."""
        for transaction_id, paid_at in self.paid_at.items():
            if transaction_id not in self.confirmed and self.clock.monotonic() - paid_at > 300:
                self.sales[transaction_id]["transactionStatus"] = "Canceled"

    def confirm(self, body: dict[str, object]) -> HttpResponse:
        """Confirm a paid form."""
        transaction_id = body["id"]
        assert isinstance(transaction_id, int)
        assert set(body) == {"id", "clientTxId"}
        self.confirms[transaction_id] += 1
        self.reverse_late()
        if self.confirm_scripts:
            return self.confirm_scripts.pop(0)()
        found = self.sales.get(transaction_id)
        if found is None:
            return refusal(20, status=404)
        self.confirmed.add(transaction_id)
        return answer(200, found)


@asynccontextmanager
async def tracking(
    service: FakeService,
    ledger: Ledger | None = None,
    profile: payclient.ServiceProfile = PROFILE,
    status: payclient.StatusSource | None = None,
    *,
    transport: Transport | None = None,
    token: str | Callable[[], Awaitable[str]] | None = None,
    **options: Any,
) -> AsyncIterator[payclient.Tracker]:
    """A tracker over the service, or over what stands in front of it, on its clock."""
    service.ledger = MemoryLedger() if ledger is None else ledger
    async with (
        PaySession(
            "https://pay.example", token or "token", profile=profile, transport=transport or service
        ) as session,
        payclient.Tracker(session, service.ledger, clock=service.clock, status=status, **options) as tracker,
    ):
        yield tracker


@asynccontextmanager
async def two_processes(
    service: FakeService, profile: payclient.ServiceProfile = PROFILE, **options: Any
) -> AsyncIterator[tuple[payclient.Tracker, payclient.Tracker]]:
    """The trackers of two processes with one ledger; the first one's has these options."""
    async with (
        tracking(service, ledger := SharedLedger(), profile, **options) as one,
        tracking(service, SharedLedger(ledger), profile) as other,
    ):
        yield one, other


@asynccontextmanager
async def selling(
    service: FakeService,
    *scripts: Script,
    ledger: Ledger | None = None,
    purchase: str | None = None,
    **options: Any,
) -> AsyncIterator[tuple[payclient.Tracker, payclient.PendingSale]]:
    """A tracker over the service, and the sale of order-17 that it made, which met these scripts."""
    service.scripts += scripts
    async with tracking(service, ledger, **options) as tracker:
        yield tracker, await tracker.sale(sale(), purchase=purchase)


@asynccontextmanager
async def refused(service: FakeService, *scripts: Script, **options: Any) -> AsyncIterator[payclient.Tracker]:
    """A tracker over the service whose sale of order-17 met the first of these scripts, and was refused."""
    service.scripts += scripts
    async with tracking(service, **options) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        yield tracker


async def paid(
    service: FakeService, tracker: payclient.Tracker, identifier: str = "order-17", purchase: str = "cart"
) -> payclient.PendingSale:
    """A sale that its customer approved."""
    pending = await tracker.sale(sale(identifier), purchase=purchase)
    assert pending.transaction_id is not None
    service.decide("Aceptado", pending.transaction_id)
    assert (await outcome_of(service, pending)).paid
    return pending


async def outcome_of(
    service: FakeService,
    pending: payclient.PendingSale,
    seconds: float = 3000.0,
    *,
    ledger: Ledger | None = None,
) -> payclient.Outcome:
    """Let virtual time pass until the wait ends; no faster than the ledger, if it is one with a thread of its own."""
    wait = asyncio.ensure_future(pending.wait())
    for _ in range(int(seconds)):
        if wait.done():
            break
        await service.clock.advance(1.0)
        if ledger is not None:
            await ledger.get("what was queued before is written")
    assert wait.done(), "the wait did not end"
    return await wait


async def pending_of(tracker: payclient.Tracker, identifier: str = "order-17") -> payclient.PendingSale:
    """The handle of what is there."""
    found = await tracker.find(identifier)
    assert found is not None
    return found


async def record_in(ledger: Ledger, identifier: str = "order-17") -> Record:
    """The record of what is there."""
    record = await ledger.get(identifier)
    assert record is not None
    return record


async def events_of(ledger: Ledger, identifier: str = "order-17") -> list[str]:
    """What happened to it, by the names of its events."""
    return [change.event for change in await ledger.history(identifier)]


_Error = TypeVar("_Error", bound=BaseException)


async def error_of(kind: type[_Error], call: Awaitable[object], match: str = "") -> _Error:
    """The error of this kind that a call raises, with these words; it must raise one."""
    try:
        await call
    except kind as error:
        if not re.search(match, str(error)):
            raise AssertionError(f"{match!r} is not in {error}") from error
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


async def held_by(tracker: payclient.Tracker, purchase: str) -> payclient.PurchaseOpenError:
    """What says that another push of the purchase is not sent, since it may be paid by another ask."""
    return await error_of(payclient.PurchaseOpenError, tracker.sale(sale("another"), purchase=purchase))


async def collected_by(tracker: payclient.Tracker, purchase: str) -> payclient.AlreadyPaidError:
    """What says that another push of the purchase is not sent, since it is paid."""
    return await error_of(payclient.AlreadyPaidError, tracker.sale(sale("another"), purchase=purchase))


def alarms(caplog: Any) -> list[str]:
    """What was logged for somebody to get up at night."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.CRITICAL]


class Gate:
    """Where something is held up: `there` is set as it arrives, and it goes on once `go` is set."""

    def __init__(self) -> None:
        self.there, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.there.set()
        await self.go.wait()

    def before(self, service: Transport, path: str) -> Transport:
        """A transport that holds up on their way the requests whose path ends so."""

        async def held_up(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            if not request.path.endswith(path):
                return await service(request, before_send)
            assert before_send is not None
            await before_send()
            await self()
            return await service(request, _permitted)

        return held_up


class Held:
    """A script: the request is taken as `then` says, which sets `there`, and answered once `go` is set."""

    def __init__(self, then: Script = FakeService.take) -> None:
        self.then = then
        self.there, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(
        self, service: FakeService, request: HttpRequest, before_send: BeforeSend
    ) -> HttpResponse:
        response = await self.then(service, request, before_send)
        self.there.set()
        await self.go.wait()
        return response


class Scripted:
    """A transport that gives or raises what it is told, in turn, the last for ever: before or after its bytes left.

    `refused` requests find no connection before the first answer.
    """

    def __init__(self, *said: HttpResponse | BaseException, sends: bool = True, refused: int = 0) -> None:
        self.said = list(said)
        self.sends = sends
        self.refused = refused
        self.requests: list[HttpRequest] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if self.refused:
            self.refused -= 1
            raise ConnectionRefusedError
        self.requests.append(request)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if self.sends and before_send is not None:
            await before_send()
        if isinstance(said, BaseException):
            raise said
        return said

    @property
    def tokens(self) -> list[str]:
        """What each request was signed with."""
        return [(request.headers or {})["Authorization"] for request in self.requests]

    @property
    def bodies(self) -> list[tuple[str, str, object]]:
        """Each request's method, path and JSON."""
        return [(request.method, request.path, json.loads(request.body)) for request in self.requests]


class Permit:
    """A `before_send` that counts, and does what it is told on the way."""

    def __init__(self, action: Callable[[], Awaitable[None]] | None = None) -> None:
        self.entered = self.completed = 0
        self.action = action

    async def __call__(self) -> None:
        self.entered += 1
        if self.action is not None:
            await self.action()
        self.completed += 1


async def _permitted() -> None:
    """The permit was asked for already."""


def when(happens: Callable[[], object], then: Script = FakeService.take) -> Script:
    """Something happens once the bytes have left, and then they are taken so."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        happening = happens()
        if inspect.isawaitable(happening):
            await happening
        return await then(service, request, _permitted)

    return script


def posted(times: int, then: Script) -> Script:
    """Something in front sends the POST so many times more, and we see the last answer only."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        for _ in range(times):
            service.create(request)
        return await then(service, request, _permitted)

    return script


def fails(error: Exception, *, sends: bool = True, executes: bool = False) -> Script:
    """No answer arrives, whether or not the bytes left, and what they ask for was executed."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        if sends:
            await before_send()
        if executes:
            service.execute(request)
        raise type(error)(*error.args)

    return script


lost_answer = fails(ConnectionResetError(), executes=True)
lost_request = fails(ConnectionResetError())
#: The connection is seen dead between the permit and the first byte.
seen_dead = fails(payclient.NotSentError("seen dead"))
no_connection = fails(ConnectionRefusedError(), sends=False)


async def broken(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
    """Something of our own breaks, before any permit."""
    return None  # type: ignore[return-value]  # a fault of the transport's


def reset() -> HttpResponse:
    """No answer to a query or a confirmation."""
    raise ConnectionResetError


def unlisted(path: str) -> HttpResponse | None:
    """Nothing by our own id: `instead` of an index that lags."""
    return answer(200, []) if "/client/" in path else None


def says(response: HttpResponse) -> Script:
    """This is answered, whatever was asked."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        return response

    return script


def answers(status: int, value: object) -> Script:
    """This JSON is answered."""
    return says(answer(status, value))


def refuses(code: int, inner: int | None = None, status: int = 400, retry_after: int | None = None) -> Script:
    """An error object is answered."""
    return says(refusal(code, inner, status, retry_after))


def sale(identifier: str = "order-17", phone: str = "0984111222", **changes: object) -> payclient.SaleRequest:
    """A small Sale."""
    fields: dict[str, object] = {
        "phone_number": phone, "country_code": "593", "amount_with_tax": 1000, "tax": 150,
        "currency": "USD", "client_transaction_id": identifier, "store_id": "S1",
    }  # fmt: skip
    return payclient.SaleRequest(**(fields | changes))  # type: ignore[arg-type]  # any field, also a bad one


def form(identifier: str = "form-1") -> payclient.PrepareRequest:
    """A form for as much."""
    return payclient.PrepareRequest(
        amount_with_tax=1000, tax=150, currency="USD", client_transaction_id=identifier, store_id="S1",
        response_url="https://shop.example/back",
    )  # fmt: skip


def hint(transaction_id: int = 1000, identifier: str = "order-17") -> payclient.Notification:
    """What anybody may send."""
    return payclient.Notification(transaction_id=transaction_id, client_transaction_id=identifier)
