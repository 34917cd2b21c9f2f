"""The samples, end to end: what the SDK sends reaches the simulated service whole, and what that answers is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web

import payclient
from payclient import Tracker
from payclient.errors import (
    CustomerBusyError,
    NotCreatedError,
    RefusedError,
    UnauthorizedError,
    ValidationFailedError,
)
from payclient.events import Evidence
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import State
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest, StatusReport
from payclient.profile import ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.simulator import ManualClock, Simulator
from payclient.transport import AiohttpTransport
from payclient.validation import from_service
from payclient.wire import HttpRequest, HttpResponse, decode_status
from simulated import QUERIES

SAMPLES = Path(__file__).parent / "samples"
TOKEN = "token-1"
ID = "ID_UNICO_X_TRANSACCION-001"

WORDS = {"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"}
#: A profile and settings that say the same of one service, the way that the sampled status answers.
SHOP = ServiceProfile(
    name="shop",
    not_found_codes=frozenset({20}),
    duplicate_codes=frozenset({23}),
    wallet_link_field="payWithBrand",
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="transactionStatus",
        states=WORDS,
    ),
)
SERVICE = attrs.evolve(
    QUERIES,
    state_field="transactionStatus",
    state_words={state: word for word, state in WORDS.items()},
    wallet_link_field="payWithBrand",
    duplicate_code=23,
)


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_bytes())


def ours(fields: dict[str, Any]) -> dict[str, Any]:
    return {from_service(name): value for name, value in fields.items()}


def modelled(name: str) -> dict[str, Any]:
    """The fields of a sampled request, as the models take them."""
    fields = sample(name)
    order = fields["order"]
    items = [LineItem(**ours(item)) for item in order["lineItems"]]
    return ours(fields) | {"order": Order(bill_to=BillTo(**ours(order["billTo"])), line_items=tuple(items))}


SALE = SaleRequest(**modelled("sale_request.json"))
PREPARE = PrepareRequest(**modelled("prepare_request.json"))


class Wire:
    """aiohttp as ever, and what it carried: each answer's status and body, by the path of its request."""

    def __init__(self, url: str) -> None:
        self.transport = AiohttpTransport(url, connect_timeout=5.0)
        self.carried: list[tuple[HttpRequest, HttpResponse]] = []
        self.on_its_way = 0

    async def __call__(self, request: HttpRequest, before_send: payclient.BeforeSend | None) -> HttpResponse:
        self.on_its_way += 1
        try:
            response = await self.transport(request, before_send)
        finally:
            self.on_its_way -= 1
        self.carried.append((request, response))
        return response

    @property
    def last(self) -> Any:
        return json.loads(self.carried[-1][1].body)


@asynccontextmanager
async def session_over(
    url: str, token: str = TOKEN, profile: ServiceProfile = SHOP
) -> AsyncIterator[tuple[PaySession, Wire]]:
    """A session, and what it carries."""
    wire = Wire(url)
    async with PaySession(url, token, profile=profile, transport=wire) as session:
        yield session, wire
    await wire.transport.aclose()


class Recorded(Simulator):
    """A simulator that keeps the bodies that it was sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bodies: list[Any] = []

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and request.path.startswith("/api/"):
            assert request.headers["Content-Type"] == "application/json"
            assert request.headers["Authorization"].startswith("Bearer ")
            self.bodies.append(await request.json())
        return await super().serve(request)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Recorded, PaySession, Wire]]:
    """A simulator over HTTP on a clock that stands, a session to it, and what went between them."""
    service = Recorded(clock=ManualClock(), settings=SERVICE, token=TOKEN, **options)
    async with service, session_over(service.url) as (session, wire):
        yield service, session, wire


def typed(value: Any) -> Any:
    """A JSON value with the type of each leaf, so that 1, 1.0 and True are three things."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value).__name__, value


def shape(value: Any) -> Any:
    """A JSON value by its names and types alone."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value).__name__


# --- The requests


async def test_the_sampled_sale_is_accepted_as_it_stands() -> None:
    """§2.2: what the service receives is the sample, name for name and type for type, and it creates the sale."""
    async with serving() as (service, session, _):
        result = await session.sale(SALE)
        (body,) = service.bodies
        assert typed(body) == typed(sample("sale_request.json"))
        (sale,) = service.sales.values()
    assert (sale.transaction_id, sale.client_transaction_id) == (result.transaction_id, ID)
    assert (sale.amount, sale.currency, sale.store_id) == (315, "USD", "your_storeId")
    assert sale.response_url == sample("sale_request.json")["responseUrl"]


async def test_the_sampled_prepare_is_accepted_as_it_stands() -> None:
    """§2.3: the same of a form; what the sample has as null is left out."""
    async with serving() as (service, session, wire):
        result = await session.prepare(PREPARE)
        (body,) = service.bodies
        wanted = {name: value for name, value in sample("prepare_request.json").items() if value is not None}
        assert typed(body) == typed(wanted)
        (form,) = service.forms.values()
    assert result.payment_id == form.payment_id
    assert (form.client_transaction_id, form.amount, form.currency) == (ID, 315, "USD")
    assert form.response_url == wanted["responseUrl"]
    assert form.cancellation_url == wanted["cancellationUrl"]
    assert set(wire.last) == {"paymentId", "payWithCard", "payWithBrand"}
    assert (result.pay_with_card, result.pay_with_wallet) == (
        wire.last["payWithCard"],
        wire.last["payWithBrand"],
    )


async def test_the_sampled_sale_through_the_tracker() -> None:
    """The front door sends the same bytes."""
    async with serving() as (service, session, _):
        async with Tracker(session, MemoryLedger(), clock=service.clock) as tracker:
            pending = await tracker.sale(SALE)
        assert typed(service.bodies) == [typed(sample("sale_request.json"))]
        assert pending.transaction_id in service.sales


# --- The errors


async def test_a_busy_customer_is_answered_as_sampled() -> None:
    """§7.3: the general code 22 with an entry 2061, word for word."""
    async with serving() as (_, session, wire):
        await session.sale(SALE)
        with pytest.raises(CustomerBusyError) as caught:
            await session.sale(attrs.evolve(SALE, client_transaction_id="order-2"))
        assert wire.last == sample("sale_error_2061.json")
    assert caught.value.error_code == 22
    assert [detail.error_code for detail in caught.value.errors] == [2061]
    assert caught.value.user_messages == ("El cliente tiene transacciones pendientes con su local",)


async def test_a_wrong_token_is_answered_as_sampled() -> None:
    """§5: one message and no code, on 401, for a Sale, a Prepare and a query alike."""
    async with serving() as (service, _, _):
        async with session_over(service.url, "token-2") as (session, wire):
            for call in (session.sale(SALE), session.prepare(PREPARE), session.status(transaction_id=5)):
                with pytest.raises(UnauthorizedError) as caught:
                    await call
                assert shape(wire.last) == shape(sample("error_401.json"))
                assert caught.value.http_status == 401
                assert caught.value.error_code is None
                assert caught.value.user_messages == (wire.last["message"],)
        assert service.counts.created == service.counts.prepared == 0


async def test_not_found_is_answered_as_sampled() -> None:
    """Code 20 is "not found" where the profile knows it, else an error."""
    async with serving() as (service, session, wire):
        assert await session.status(transaction_id=5) is None
        assert await session.status(client_transaction_id=ID) is None
        for _, response in wire.carried:
            assert response.status == 404
            said = json.loads(response.body)
            # The sample has no `errors` at all, the simulator an empty list.
            assert shape({name: value for name, value in said.items() if value != []}) == shape(
                sample("reverse_error_20.json")
            )
            assert said["errorCode"] == sample("reverse_error_20.json")["errorCode"]
        unaware = attrs.evolve(SHOP, not_found_codes=frozenset())
        async with PaySession(service.url, TOKEN, profile=unaware) as other:
            with pytest.raises(RefusedError) as caught:
                await other.status(transaction_id=5)
        assert caught.value.error_code == 20


async def test_an_error_with_details_has_the_sampled_shape() -> None:
    """§7.2, §7.5: a general code with entries, as the sample of a cancellation has them too, whatever the code."""
    keys = set(sample("cancel_error_25.json"))
    async with serving() as (service, session, wire):
        body = json.dumps({"clientTransactionId": "x", "amount": 1}).encode()
        with pytest.raises(ValidationFailedError) as caught:
            await session.send_sale(attrs.evolve(session.encode_sale(SALE), body=body))
        assert set(wire.last) == keys
        assert all({"message", "errorCode"} <= set(entry) for entry in wire.last["errors"])
        assert {"phoneNumber", "countryCode", "currency"} <= set(caught.value.fields)
        assert service.counts.created == 0
    refusing = attrs.evolve(SERVICE, refuse_with={str(SALE.phone_number): 22})
    async with (
        Simulator(settings=refusing) as strict,
        PaySession(strict.url, TOKEN, profile=SHOP) as session,
    ):
        with pytest.raises(NotCreatedError) as refused:
            await session.sale(SALE)
    assert refused.value.error_code == 22


# --- The status


def test_the_sampled_status_is_read_with_its_profile() -> None:
    """Every field that payclient knows, by the profile's field and words; without them it is no state."""
    body = (SAMPLES / "status_approved.json").read_bytes()
    report = decode_status(HttpResponse(200, {}, body), SHOP)
    assert report == StatusReport(
        state="Aceptado",
        transaction_id=23178284,
        client_transaction_id=ID,
        amount=315,
        currency="USD",
        raw=sample("status_approved.json"),
    )
    for secret in ("aloy", "593999999999", "1234567890", "SOBECK", "530219"):
        assert secret not in repr(report)
    unmapped = attrs.evolve(
        SHOP,
        status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="transactionStatus"),
    )
    other = decode_status(HttpResponse(200, {}, body), unmapped)
    assert other is not None
    assert other.state is None


async def test_the_simulators_status_has_the_samples_names_and_types() -> None:
    """Each field of the simulator's answer is one of the sample's, of its type, and is read to the same report."""
    async with serving() as (service, session, wire):
        result = await session.sale(SALE)
        await service.approve(result.transaction_id)
        report = await session.status(transaction_id=result.transaction_id)
        seen = sample("status_approved.json")
        for name, value in wire.last.items():
            assert type(value) is type(seen[name]), name
        for name in ("clientTransactionId", "amount", "currency", "transactionStatus", "statusCode"):
            assert wire.last[name] == seen[name]
    wanted = decode_status(HttpResponse(200, {}, json.dumps(seen).encode()), SHOP)
    assert report is not None
    assert wanted is not None
    assert attrs.evolve(report, raw={}, transaction_id=1) == attrs.evolve(wanted, raw={}, transaction_id=1)


# --- To the outcome


class Shop:
    """A tracker on a simulator, whose time passes while somebody waits."""

    def __init__(self, service: Simulator, tracker: Tracker, wire: Wire) -> None:
        assert isinstance(service.clock, ManualClock)
        self.service, self.tracker, self.clock = service, tracker, service.clock
        self._wire = wire

    async def outcome(self, client_transaction_id: str, limit: int = 6000) -> payclient.Outcome:
        """Let virtual time pass until the wait ends; a query is let through before time goes on."""
        pending = await self.tracker.find(client_transaction_id)
        assert pending is not None
        wait = asyncio.ensure_future(pending.wait())
        for _ in range(limit):
            for _ in range(3):
                await asyncio.sleep(0)
                while self._wire.on_its_way:  # noqa: ASYNC110 - the loop's sockets need real turns
                    await asyncio.sleep(0.001)
            if wait.done():
                break
            await self.clock.advance(1.0)
        assert wait.done(), "the wait did not end"
        return await wait


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with (
        serving() as (service, session, wire),
        Tracker(session, MemoryLedger(), clock=service.clock) as tracker,
    ):
        yield Shop(service, tracker, wire)


FormStep = Callable[[Shop, payclient.PaymentForm], Awaitable[object]]


async def pay_by_wallet(here: Shop, form: payclient.PaymentForm) -> None:
    assert form.card.is_live(here.clock.time())
    await here.clock.advance(30.0)
    await here.service.pay(form.payment_id, "wallet")


async def decline(here: Shop, form: payclient.PaymentForm) -> None:
    await here.service.pay(form.payment_id, "card", declined=True)


async def close(here: Shop, form: payclient.PaymentForm) -> None:
    """Closed by its X it is no transaction: nobody's word says what became of it, so `paid` stays None."""
    await here.service.cancel_form(form.payment_id)


async def open_too_long(here: Shop, form: payclient.PaymentForm) -> None:
    """Ten minutes after its load a link is dead there too (§8), and the tracker never says that it was paid."""
    here.service.open_form(form.payment_id, "card")
    form.card.mark_loaded(here.clock.time())
    await here.clock.advance(600.0)
    with pytest.raises(ValueError, match="has expired"):
        await here.service.pay(form.payment_id, "card")
    assert not form.card.is_live(here.clock.time())


async def leave_alone(here: Shop, form: payclient.PaymentForm) -> None:
    """Its links die by the clock; at the end of the longest life that they may have, the record does too."""
    await here.clock.advance(600.0)
    assert not form.card.is_live(here.clock.time())
    assert not form.wallet.is_live(here.clock.time())


async def pay_at_the_last_moment(here: Shop, form: payclient.PaymentForm) -> None:
    """Loaded just before it dies, and paid just before that life ends: nearly twenty minutes, and still found."""
    await here.clock.advance(599.0)
    here.service.open_form(form.payment_id, "card")
    await here.clock.advance(599.0)
    await here.service.pay(form.payment_id, "card")


@pytest.mark.parametrize(
    ("step", "how", "state", "paid", "evidence"),
    [
        (pay_by_wallet, "paid", State.ACCEPTED, True, Evidence.QUERY),
        (pay_at_the_last_moment, "paid", State.ACCEPTED, True, Evidence.QUERY),
        (decline, "declined", State.CANCELLED, False, Evidence.QUERY),
        (close, "cancelled", State.EXPIRED, None, Evidence.CLOCK),
        (open_too_long, None, State.EXPIRED, None, Evidence.CLOCK),
        (leave_alone, None, State.EXPIRED, None, Evidence.CLOCK),
    ],
)
async def test_a_form_to_its_end(
    step: FormStep, how: str | None, state: State, paid: bool | None, evidence: Evidence
) -> None:
    """Prepared, handed out, and whatever its customer does: the wait says what is true, as far as anybody knows."""
    async with shop() as here:
        form = await here.tracker.prepare(PREPARE)
        await step(here, form)
        outcome = await here.outcome(ID)
        assert (outcome.state, outcome.paid, outcome.evidence) == (state, paid, evidence)
        assert here.service.forms[form.payment_id].how == how
        if paid:
            assert outcome.transaction_id == here.service.forms[form.payment_id].transaction_id
        if step is leave_alone:
            assert here.clock.time() >= form.prepared_at + 1200.0


@pytest.mark.parametrize(
    ("how", "state", "paid"),
    [
        ("approve", State.ACCEPTED, True),
        ("reject", State.CANCELLED, False),
        ("ignore", State.CANCELLED, False),
    ],
)
async def test_a_sampled_sale_to_its_end(how: str, state: State, paid: bool) -> None:
    """The sampled Sale, approved, rejected and left alone: paid, not paid, and cancelled on the service's word."""
    # Without the sample's responseUrl: nobody is there to be notified.
    async with shop() as here:
        pending = await here.tracker.sale(attrs.evolve(SALE, response_url=None))
        assert pending.transaction_id is not None
        await getattr(here.service, how)(pending.transaction_id)
        outcome = await here.outcome(ID)
    assert (outcome.state, outcome.paid) == (state, paid)


def test_every_sample_goes_through() -> None:
    """A new sample asks for a test here."""
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in SAMPLES.glob("*.json"):
        assert f'"{path.name}"' in tested
