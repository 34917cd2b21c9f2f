"""Something between us and the service repeats an answer: no sale takes another one's answer for its own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import payclient
import payclient.session as session_module
from fake_ledgers import HookedLedger, SharedLedger
from fake_service import (
    LINKS,
    PROFILE,
    FakeService,
    answers,
    error_of,
    events_of,
    form,
    lost_answer,
    lost_request,
    outcome_of,
    posted,
    record_in,
    refuses,
    sale,
)
from fake_service import answer as respond
from fake_service import tracking as following
from payclient.events import Event, FoundAccepted, Recovered
from payclient.ledger import Ledger
from payclient.lifecycle import Record
from raw_server import RawServer, answer, hang, next_turns, read, turns, write
from test_ledger import opened, url_of

State = payclient.State

REFUSED = {"message": "no", "errorCode": 22, "errors": [{"message": "x", "errorCode": 5}]}


ABSENT = {"message": "no", "errorCode": 20}


class FailingOnce:
    """A ledger whose first write of an answer fails."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fails = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def apply(self, record: Record, event: Event) -> Record:
        if self._fails:
            self._fails = False
            raise payclient.LedgerUnavailableError("disk full")
        return await self._ledger.apply(record, event)


@asynccontextmanager
async def tracking(server: RawServer, ledger: Ledger | None = None) -> AsyncIterator[payclient.Tracker]:
    """A tracker over real connections, of a service that cannot be asked."""
    book = await payclient.open_ledger("memory:") if ledger is None else ledger
    async with (
        payclient.PaySession(server.url, "token") as session,
        payclient.Tracker(session, book) as tracker,
    ):
        yield tracker


def created(number: int) -> bytes:
    return answer({"transactionId": number})


@pytest.mark.parametrize(
    ("body", "status"),
    [(REFUSED, 200), (REFUSED, 400), (REFUSED, 500), ({}, 200), ({"transactionId": 5, "errorCode": 22}, 200)],
)
async def test_what_creates_nothing_ends_its_connection(body: object, status: int) -> None:
    """What follows a refusal or a strange answer there, when the next request has left, is nobody's answer."""
    said = answer(body, status)
    copy = said if body == REFUSED else created(5)
    async with (
        RawServer((read, write(said), read, write(copy)), (read, write(created(13)))) as server,
        tracking(server) as tracker,
    ):
        if body == REFUSED:
            await error_of(payclient.NotCreatedError, tracker.sale(sale("order-1")))
        else:
            assert (await tracker.sale(sale("order-1"))).state is State.UNKNOWN
        pending = await tracker.sale(sale("order-2", "0984111333"))
        assert (pending.state, pending.transaction_id) == (State.PENDING, 13)
    assert [connection.complete for connection in server.connections] == [1, 1]


@pytest.mark.parametrize(
    ("body", "status"),
    [(REFUSED, 400), (REFUSED, 429), (REFUSED, 500), ({"message": "who?"}, 401), (ABSENT, 404)],
)
async def test_an_error_of_a_query_ends_its_connection(body: object, status: int) -> None:
    """Its second copy would refuse the next sale, which was executed; or prove something else absent."""
    copy = answer(body, status)
    async with (
        RawServer((read, write(copy), read, write(copy)), (read, write(created(13)))) as server,
        payclient.PaySession(server.url, "token", profile=PROFILE) as session,
    ):
        if body == ABSENT:
            assert await session.status(transaction_id=12) is None
        else:
            await error_of(payclient.PayError, session.status(transaction_id=12))
        assert (await session.sale(sale("order-2"))).transaction_id == 13
    assert [connection.complete for connection in server.connections] == [1, 1]


async def test_a_query_that_is_repeated_ends_no_sale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends with its first answer, and not after the pause, in which a sale would have taken it."""
    pausing = asyncio.Event()

    def pause(tries: int, chance: float) -> float:
        pausing.set()
        return 0.1

    monkeypatch.setattr(session_module, "sleep_time_seconds", pause)
    async with (
        RawServer(
            (read, write(answer({}, 503)), read, hang),
            (read, write(created(13)), read, write(answer(ABSENT, 404))),
        ) as server,
        payclient.PaySession(server.url, "token", profile=PROFILE) as session,
    ):
        query = asyncio.create_task(session.status(transaction_id=12))
        await pausing.wait()
        assert (await session.sale(sale())).transaction_id == 13
        assert await query is None
    assert [connection.complete for connection in server.connections] == [1, 2]


async def test_one_answer_for_two_sales(caplog: pytest.LogCaptureFixture) -> None:
    """The second one is unknown, with a conflict, and its own answer is not taken for a third one's."""
    ledger = await payclient.open_ledger("memory:")
    first = (read, write(created(12)), read, write(created(12)), next_turns, write(created(13)), read)
    async with RawServer(first, (read, write(created(14)))) as server, tracking(server, ledger) as tracker:
        assert (await tracker.sale(sale("order-1", "0984111001"))).transaction_id == 12
        second = await tracker.sale(sale("order-2", "0984111002"))
        assert (second.state, second.transaction_id) == (State.UNKNOWN, None)
        third = await tracker.sale(sale("order-3", "0984111003"))
        assert (third.state, third.transaction_id) == (State.PENDING, 14)
        assert (await tracker.sale(sale("order-2", "0984111002"))).state is State.UNKNOWN
        record = await record_in(ledger, "order-2")
        assert record.candidate_ids == ()
    (conflict,) = [each for each in await ledger.history("order-2") if each.event == "Conflicted"]
    assert (
        json.loads(conflict.detail or "")["what"]
        == "the answer names transaction 12, which is another sale's"
    )
    assert [each.levelno for each in caplog.records if "another sale's" in each.message] == [logging.ERROR]
    assert sum(json.loads(body)["clientTransactionId"] == "order-2" for body in server.bodies()) == 1


def nameless(service: FakeService) -> None:
    """Every query is answered by the first transaction, without the id of its sale."""
    service.instead = lambda _: respond(
        200, {name: each for name, each in service.sales[1000].items() if name != "clientTransactionId"}
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("state", ["Aceptado", "Cancelado", "Pendiente"])
async def test_the_answer_to_the_query_of_another_sale_decides_nothing(
    kind: str, state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It names no sale, and a transaction that another one has: one payment would have paid two."""
    service = FakeService()
    async with opened(await url_of(kind, request, tmp_path)) as ledger, following(service, ledger) as tracker:
        await tracker.sale(sale())
        service.decide(state)
        service.scripts = [lost_request]
        second = await tracker.sale(sale("order-18", phone="0984111333"))
        nameless(service)
        outcome = await second.check()
        assert (outcome.state, outcome.transaction_id, outcome.report) == (State.UNKNOWN, None, None)
        assert await events_of(ledger, "order-18") == ["Permitted", "Lost", "Conflicted"]


async def test_the_answer_to_the_query_of_another_sale_pays_no_refused_one() -> None:
    """It is queried before it is sent again, and may exist: what is found is another one's payment."""
    service = FakeService()
    async with following(service) as tracker:
        await tracker.sale(sale())
        service.decide("Aceptado")
        service.scripts = [refuses(22, 2061)]
        second = sale("order-18", phone="0984111333")
        await error_of(payclient.CustomerBusyError, tracker.sale(second))
        nameless(service)
        await error_of(payclient.NotSentError, tracker.sale(second), match="another sale's transaction")
        assert await events_of(service.ledger, "order-18") == ["Permitted", "Refused"]


class Asked(SharedLedger):
    """A ledger that several processes share; something happens as it is asked who has a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[], Awaitable[None]] | None = None

    async def taken_by(self, record: Record, transaction_id: int) -> str | None:
        if self.hook is not None:
            await self.hook()
        return await super().taken_by(record, transaction_id)


async def test_the_answer_to_the_query_of_another_sale_cancels_no_form() -> None:
    """The form's customer may pay it still, and its cart would have been free for another ask."""
    service = FakeService()
    async with following(service, profile=payclient.PAYPHONE) as tracker:
        await tracker.sale(sale())
        service.sales[1000]["transactionStatus"] = "Canceled"
        await tracker.prepare(form(), purchase="cart-1")
        nameless(service)
        assert (await tracker.returned("id=0&clientTransactionId=form-1")).state is State.PENDING
        assert await events_of(service.ledger, "form-1") == ["Permitted", "Prepared", "Returned"]


async def test_a_ledger_that_cannot_say_who_has_a_transaction_leaves_the_sale_unknown() -> None:
    """It was refused as existing, and found: to raise would say that nothing was created."""
    service, ledger = FakeService(), Asked()

    async def fail() -> None:
        raise payclient.LedgerUnavailableError("away")

    async with following(service, ledger) as tracker:
        service.scripts = [posted(1, refuses(22, 2061))]
        nameless(service)
        ledger.hook = fail
        pending = await tracker.sale(sale())
        assert pending.state is State.UNKNOWN
        ledger.hook = None
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid


async def test_what_is_found_paid_while_the_ledger_is_read_is_not_given_back() -> None:
    """The answer "cancelled" is older; no query of that one may undo what another process has found."""
    service, ledger = FakeService(), Asked()

    async def find_paid() -> None:
        ledger.hook = None
        found = FoundAccepted(at=service.clock.time(), transaction_id=1000)
        await SharedLedger(ledger).apply(await record_in(ledger), found)
        await turns()

    async with following(service, ledger) as tracker:
        service.scripts = [lost_answer]
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        nameless(service)
        ledger.hook = find_paid
        assert (await pending.check()).paid
        assert (await record_in(ledger)).state is State.ACCEPTED


async def test_one_answer_for_two_forms() -> None:
    """Nobody is given the links of another cart's form."""
    links = answer({"paymentId": "P1", "payWithCard": "https://pay.example/c?x=1"})
    fresh = answer({"paymentId": "P2", "payWithCard": "https://pay.example/c?x=2"})
    first = (read, write(links), read, write(links), next_turns, write(fresh), read)
    async with RawServer(first, (read, write(fresh))) as server, tracking(server) as tracker:
        assert (await tracker.prepare(form("form-1"))).payment_id == "P1"
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(form("form-2")))
        assert (await tracker.prepare(form("form-3"))).payment_id == "P2"
    assert len(server.connections) == 2


async def test_the_copy_of_an_earlier_answer_is_no_form() -> None:
    """Others were answered in between."""
    service = FakeService()
    async with following(service) as tracker:
        forms = [await tracker.prepare(form(f"form-{number}")) for number in range(3)]
        service.scripts = [answers(200, {"paymentId": forms[0].payment_id, **LINKS})]
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(form("form-3")))


@pytest.mark.parametrize("state", [State.SENDING, State.UNKNOWN])
async def test_another_sales_transaction_is_a_conflict_whatever_is_known_by_then(state: State) -> None:
    """Another process may have called it unknown since, as after a pause of this one."""
    service = FakeService()

    async def recover() -> None:
        if state is State.UNKNOWN:
            record = await record_in(ledger, "order-2")
            await ledger.apply(record, Recovered(at=record.created_at, expires_at=record.created_at + 330))

    async with following(service, ledger := HookedLedger()) as tracker:
        await tracker.sale(sale("order-1"))
    ledger.before, service.scripts = {"Created": recover}, [answers(200, {"transactionId": 1000})]
    async with following(service, ledger) as tracker:
        await tracker.sale(sale("order-2", "0984111002"))
    assert (await events_of(ledger, "order-2"))[-1] == "Conflicted"


@pytest.mark.parametrize("fails", [False, True], ids=["written", "written late"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_one_answer_for_two_processes(
    kind: str, fails: bool, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Something in front keeps an answer and gives it to a later process too: the ledger knows whose it is."""
    async with opened(await url_of(kind, request, tmp_path)) as ledger:
        service = FakeService()
        async with following(service, ledger) as tracker:
            first = await tracker.sale(sale("order-1"))
            assert first.transaction_id == 1000
        service.scripts = [posted(1, answers(200, {"transactionId": 1000}))]
        async with following(service, FailingOnce(ledger) if fails else ledger) as tracker:
            second = await tracker.sale(sale("order-2", "0984111002"))
            assert (second.state, second.transaction_id) == (State.UNKNOWN, None)
            await service.clock.advance(1)
            service.decide("Cancelado", 1001)
            service.decide("Aceptado", 1000)
            outcome = await outcome_of(service, second, ledger=ledger)
            assert (outcome.paid, outcome.transaction_id) == (False, 1001)
        events = [each.event for each in await ledger.history("order-2")]
        if not fails:
            assert events == ["Permitted", "Lost", "Conflicted", "FoundCancelled"]
        assert sum("another sale's" in each.message for each in caplog.records) == 1
        assert service.posted == {"order-1": 1, "order-2": 1}
