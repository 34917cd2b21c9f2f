"""Several transactions under one client transaction id, and refusals that say that something exists: never a lie."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger
from fake_service import (
    PROFILE,
    FakeService,
    Script,
    answer,
    events_of,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    record_in,
    refusal,
    refuses,
    sale,
    tracking,
)
from payclient.events import Evidence
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from virtual_loop import VirtualClock, run

State = payclient.State
pytestmark = pytest.mark.usefixtures("delays")

#: A profile that can be asked by client transaction id only, and one that cannot.
BY_CLIENT = attrs.evolve(
    PROFILE,
    status=StatusProfile(
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
    ),
)
BY_ID = attrs.evolve(
    PROFILE,
    status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state"),
)
NO_QUERY = attrs.evolve(PROFILE, status=None)


def posted(times: int, then: Script) -> Script:
    """Something in front sends the POST so many times more, and we see the last answer only."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        for _ in range(times):
            service.create(request)

        async def passed() -> None:
            """The permit was asked for already."""

        return await then(service, request, passed)

    return script


# --- Several under one id


@pytest.mark.parametrize(("profile", "paid"), [(PROFILE, 1000), (BY_CLIENT, 1001)])
async def test_whichever_of_two_is_approved_is_paid(
    service: FakeService, profile: payclient.ServiceProfile, paid: int
) -> None:
    """Two pending ones bind neither id, and the cancelled other decides nothing."""
    service.scripts = [posted(1, lost_answer)]
    async with tracking(service, profile=profile) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(60)
        assert (pending.state, pending.transaction_id) == (State.PENDING, None)
        service.decide("Cancelado", 2001 - paid)
        await service.clock.advance(60)
        assert pending.outcome.paid is None
        service.decide("Aceptado", paid)
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, paid)
    assert service.posted == {"order-17": 2}


@pytest.mark.parametrize("profile", [PROFILE, BY_CLIENT])
async def test_the_cancelled_one_that_we_know_hides_no_paid_one(
    service: FakeService, profile: payclient.ServiceProfile, caplog: pytest.LogCaptureFixture
) -> None:
    """Our answer named one, the customer approved the other: it is paid, under the other's id."""
    service.scripts = [posted(1, FakeService.take)]
    ledger = MemoryLedger()
    async with tracking(service, ledger, profile) as tracker:
        pending = await tracker.sale(sale())
        assert pending.transaction_id == 1001
        service.decide("Cancelado", 1001)
        await service.clock.advance(100)
        assert pending.state is State.PENDING
        assert pending.outcome.report is None
        service.decide("Aceptado", 1000)
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1000)
        assert (await tracker.sale(sale())).transaction_id == 1000
    (last,) = [change for change in await ledger.history("order-17") if change.event == "FoundAccepted"]
    assert json.loads(last.detail or "") == {"transaction_id": 1000, "instead_of": 1001}


@pytest.mark.parametrize("profile", [PROFILE, BY_CLIENT])
@pytest.mark.parametrize("state", ["Cancelado", "Aceptado"])
async def test_several_that_are_not_ours_decide_nothing(
    service: FakeService, profile: payclient.ServiceProfile, state: str
) -> None:
    """Two transactions of another account under our client transaction id, and ours not among them: a conflict."""
    ledger = MemoryLedger()
    shipped = service.status

    def theirs(path: str) -> HttpResponse:
        if path.endswith("/1000"):
            return shipped(path)
        body = {"clientTransactionId": "order-17", "amount": 1150, "currency": "USD", "state": state}
        return answer(200, [body | {"transactionId": number} for number in (2001, 2002)])

    service.status = theirs  # type: ignore[method-assign]  # whatever is asked by client id
    async with tracking(service, ledger, profile) as tracker:
        pending = await tracker.sale(sale())
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (None, 1000)
    assert ("Conflicted" in await events_of(ledger)) is (profile is BY_CLIENT)


async def test_all_cancelled_is_cancelled_after_one_look(service: FakeService) -> None:
    """One query by the id that is ours, and one that looks at all; the second one ends it."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.CANCELLED, False, 1000)
        assert service.queries == ["/api/Sale/1000", "/api/Sale/client/order-17"]
        await service.clock.advance(100_000)
        assert len(service.queries) == 2


FAILING: list[Callable[[], HttpResponse]] = [
    lambda: HttpResponse(502, {}, b"<html>"),
    lambda: HttpResponse(429, {}, b""),
    lambda: HttpResponse(401, {}, b'{"message": "no"}'),
    lambda: HttpResponse(200, {}, b"{}"),
    lambda: refusal(5),
]


@pytest.mark.parametrize("number", range(len(FAILING)))
async def test_a_look_that_fails_decides_nothing(service: FakeService, number: int) -> None:
    """Cancelled is said only once all were looked at; it is queried again."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        status = service.status
        service.status = lambda path: FAILING[number]() if "client" in path else status(path)  # type: ignore[method-assign]  # only one of the two
        await service.clock.advance(60)
        assert any("client" in path for path in service.queries)
        assert pending.outcome.paid is None
        service.status = status  # type: ignore[method-assign]  # both again
        outcome = await outcome_of(service, pending)
    assert outcome.paid is False


async def test_a_look_that_lags_is_waited_for_and_not_for_ever(service: FakeService) -> None:
    """ "Not found" by the client transaction id, of what exists, says nothing of others before `absent_after`."""
    async with tracking(service, schedule=payclient.Fixed(2.0)) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        status = service.status
        service.status = lambda path: status(path if "client" not in path else "/api/Sale/client/none")  # type: ignore[method-assign]  # a lagging index
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
        await service.clock.advance(700)
        assert pending.outcome.paid is False


async def test_a_look_that_finds_only_another_cancelled_one_is_cancelled(service: FakeService) -> None:
    """Whichever it names, nothing under this id is open or paid."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        status, other = service.status, service.sales[1000] | {"transactionId": 999}
        service.status = lambda path: (  # type: ignore[method-assign]  # the newest is not listed yet
            HttpResponse(200, {}, json.dumps([other]).encode()) if "client" in path else status(path)
        )
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (False, 1000)


async def test_a_look_waits_for_its_turn(service: FakeService) -> None:
    """Twenty cancelled at once, at 30 queries a minute: never more, both kinds together."""
    async with tracking(service, profile=attrs.evolve(PROFILE, queries_per_minute=30.0)) as tracker:
        pendings = [
            await tracker.sale(sale(f"o{number}", phone=f"09841112{number:02}")) for number in range(20)
        ]
        for number in service.sales:
            service.decide("Cancelado", number)
        await service.clock.advance(120)
        assert {pending.outcome.paid for pending in pendings} == {False}
    assert len(service.queried_at) == 40
    assert min(later - earlier for earlier, later in pairwise(service.queried_at)) >= 1.7


async def test_a_look_that_finds_others_only_is_a_conflict(service: FakeService) -> None:
    """Another amount under our client transaction id: somebody must look at it."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        service.sales[1001] = service.sales[1000] | {"transactionId": 1001, "state": "Aceptado", "amount": 5}
        outcome = await outcome_of(service, pending)
        assert outcome.paid is None
    assert "Conflicted" in await events_of(ledger)


async def test_a_cancelled_sale_that_turns_out_to_be_paid_is_an_alarm(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """A correction, and a critical line: somebody may have been told that nothing was paid."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(5)
        found = await pending_of(tracker)
        assert found.outcome.paid is True
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL] == [
        "order-17: cancelled, and yet accepted"
    ]


@pytest.mark.parametrize("profile", [PROFILE, BY_CLIENT])
async def test_two_accepted_is_accepted_with_an_alarm(
    service: FakeService, profile: payclient.ServiceProfile, caplog: pytest.LogCaptureFixture
) -> None:
    service.scripts = [posted(1, lost_answer)]
    ledger = MemoryLedger()
    async with tracking(service, ledger, profile) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado", 1000)
        service.decide("Aceptado", 1001)
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    (alarm,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "accepted more than once: also 1001" in alarm.getMessage()
    (change,) = [change for change in await ledger.history("order-17") if change.event == "Conflicted"]
    assert "1001" in (change.detail or "")


# --- Refusals that say that something exists


BUSY, DUPLICATE = refuses(22, 2061), refuses(23)
EXISTS = pytest.mark.parametrize("says", [BUSY, DUPLICATE], ids=["2061", "23"])


@EXISTS
@pytest.mark.parametrize(
    ("word", "state"),
    [("Pendiente", State.PENDING), ("Aceptado", State.ACCEPTED), ("Cancelado", State.CANCELLED)],
)
async def test_a_repeated_post_is_found(service: FakeService, says: Script, word: str, state: State) -> None:
    """The first created, the second was refused: one query finds ours, and its handle is returned."""

    async def decided(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        service.decide(word)
        return await says(service, request, before_send)

    service.scripts = [posted(1, decided)]
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.transaction_id) == (state, 1000)
        assert service.queries == ["/api/Sale/client/order-17"]
        service.decide("Cancelado" if word == "Cancelado" else "Aceptado")
        outcome = await outcome_of(service, pending)
        assert outcome.paid is (word != "Cancelado")
        assert (await tracker.sale(sale())).transaction_id == 1000
    assert service.posted == {"order-17": 1}
    assert "Refused" not in await events_of(ledger)


@EXISTS
async def test_two_that_were_created_bind_neither(service: FakeService, says: Script) -> None:
    """Whichever of them is approved is the payment."""
    service.scripts = [posted(2, says)]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.transaction_id) == (State.PENDING, None)
        service.decide("Aceptado", 1001)
        assert (await outcome_of(service, pending)).transaction_id == 1001


async def test_two_that_were_paid_are_an_alarm(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the first query of all finds them."""

    async def both(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        service.decide("Aceptado", 1000)
        service.decide("Aceptado", 1001)
        return await BUSY(service, request, before_send)

    service.scripts = [posted(2, both)]
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale())).state is State.ACCEPTED
    assert any(
        record.levelno == logging.CRITICAL and "1001" in record.getMessage() for record in caplog.records
    )
    assert "Conflicted" in await events_of(ledger)


@pytest.mark.parametrize("says", [BUSY, DUPLICATE, refuses(22, 23)], ids=["2061", "23", "inner 23"])
async def test_not_found_proves_the_refusal(service: FakeService, says: Script) -> None:
    """One query, which finds nothing: the attempt created nothing, and another one may follow."""
    service.scripts = [says]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale())
        assert service.queries == ["/api/Sale/client/order-17"]
        found = await pending_of(tracker)
        assert (found.state, found.outcome.paid) == (State.REFUSED, False)
        assert (await tracker.sale(sale())).state is State.PENDING


@pytest.mark.parametrize(("number", "created"), [*((number, 1) for number in range(len(FAILING))), (0, 0)])
async def test_a_failing_query_leaves_it_unknown(service: FakeService, number: int, created: int) -> None:
    """Never refused on no evidence: it is found, or proven absent, as any lost answer is."""
    service.scripts = [posted(created, DUPLICATE if number % 2 else BUSY)]
    service.status_scripts = [FAILING[number]] * 3
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.outcome.paid) == (State.UNKNOWN, None)
        service.status_scripts.clear()
        if created:
            service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
    assert outcome.paid is bool(created)
    assert service.posted == ({"order-17": 1} if created else {})


@pytest.mark.parametrize(
    "change", [{"amount": 1}, {"currency": "EUR"}, {"clientTransactionId": "x"}, {"amount": "1150"}]
)
async def test_one_that_is_not_ours_proves_nothing(service: FakeService, change: dict[str, object]) -> None:
    """What was found is another's, and ours may exist beside it."""
    service.scripts = [posted(1, BUSY)]
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        service.add_sale(1000, **change)
        service.status = lambda path: answer(200, [service.sales[1000]])  # type: ignore[method-assign]  # whatever is asked
        pending = await tracker.sale(sale())
        assert pending.state is State.UNKNOWN
        assert (await outcome_of(service, pending)).paid is None
    assert "Conflicted" in await events_of(ledger)


@pytest.mark.parametrize("profile", [BY_ID, NO_QUERY])
async def test_without_a_query_2061_refuses_and_a_duplicate_is_unknown(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """Nobody can be asked."""
    service.scripts = [BUSY, DUPLICATE]
    async with tracking(service, profile=profile) as tracker:
        with pytest.raises(payclient.CustomerBusyError):
            await tracker.sale(sale())
        assert (await tracker.sale(sale())).state is State.UNKNOWN
    assert not service.queries


@pytest.mark.parametrize("says", [refuses(22), refuses(20), refuses(22, 7)])
async def test_no_other_refusal_costs_a_query(service: FakeService, says: Script) -> None:
    """They say nothing of what exists."""
    service.scripts = [says]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale())
    assert not service.queries


@EXISTS
async def test_what_is_said_to_exist_after_it_was_proven_absent(service: FakeService, says: Script) -> None:
    """A duplicate may be the earlier attempt after all; 2061 speaks of any sale of this customer: it is a refusal."""
    service.scripts = [lost_request, says]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert (await outcome_of(service, pending)).evidence is Evidence.ABSENT
        if says is DUPLICATE:
            assert (await tracker.sale(sale())).state is State.UNKNOWN
        else:
            with pytest.raises(payclient.CustomerBusyError):
                await tracker.sale(sale())


def lagging(service: FakeService, seconds: float) -> None:
    """Let no query find anything before so many seconds have passed."""
    shipped, until = service.status, service.clock.monotonic() + seconds

    def status(path: str) -> HttpResponse:
        return answer(200, []) if service.clock.monotonic() < until else shipped(path)

    service.status = status  # type: ignore[method-assign]  # an index that lags


@EXISTS
async def test_an_index_that_lags_corrects_the_refusal_later(
    service: FakeService, says: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """The one query after the refusal finds nothing yet: what was created and paid is found at `absent_after`."""
    lagging(service, 300)
    service.scripts = [posted(1, says)]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale())
        service.decide("Aceptado")
        await service.clock.advance(599)
        assert len(service.queries) == 1
        await service.clock.advance(10)
        found = await pending_of(tracker)
        assert (found.state, found.transaction_id) == (State.ACCEPTED, 1000)
        assert len(service.queries) == 2
    assert service.posted == {"order-17": 1}
    assert [each.levelno for each in caplog.records if "yet accepted" in each.message] == [logging.CRITICAL]


async def test_a_second_refusal_is_looked_at_later_too(service: FakeService) -> None:
    """Tried again before the later look at the first attempt: the second one, which was created, is found as well."""
    lagging(service, 500)
    service.scripts = [BUSY, posted(1, BUSY)]
    async with tracking(service) as tracker:
        for _ in range(2):
            with pytest.raises(payclient.RefusedError):
                await tracker.sale(sale())
            await service.clock.advance(100)
        service.decide("Aceptado")
        await service.clock.advance(700)
        found = await pending_of(tracker)
        assert (found.state, found.transaction_id, found.attempt) == (State.ACCEPTED, 1000, 2)
    assert service.posted == {"order-17": 1}


@EXISTS
async def test_a_later_look_is_not_about_the_next_attempt(
    service: FakeService, says: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused attempt and a paid one of the same id: what is found later is the second one's, and no alarm."""
    service.scripts = [says]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale())
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        await service.clock.advance(1000)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("way", [PROFILE, BY_CLIENT, BY_ID, "the index lags", "a source"])
async def test_a_refused_sale_that_is_found_pending_holds_back_another(
    service: FakeService, way: payclient.ServiceProfile | str, caplog: pytest.LogCaptureFixture
) -> None:
    """A notification of a refused sale is worth a query; while its transaction is open none other is made."""
    source: payclient.StatusSource | None = None
    if way == "a source":

        async def ask(reference: payclient.TransactionRef) -> payclient.StatusReport:
            state: Any = service.sales[1000]["state"]
            return payclient.StatusReport(state=state, client_transaction_id=reference.client_transaction_id)

        source = ask
    elif isinstance(way, str):
        shipped = service.status
        service.status = lambda path: answer(200, []) if "/client/" in path else shipped(path)  # type: ignore[method-assign]  # an index that lags
    profile = way if isinstance(way, payclient.ServiceProfile) else PROFILE if source is None else NO_QUERY
    ledger = MemoryLedger()
    service.scripts = [posted(1, refuses(22))]
    async with tracking(service, ledger, profile, source) as tracker:
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale())
        for _ in range(3):
            assert await tracker.notify(hint()) in (payclient.Receipt.LATE, payclient.Receipt.DUPLICATE)
            await service.clock.advance(5)
            with pytest.raises(payclient.CustomerBusyError):
                await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}
    assert (await events_of(ledger)).count("Conflicted") == 1
    assert sum("refused, and yet the customer may approve it" in each for each in caplog.messages) == 1


async def refused_and_found_later(service: FakeService, tracker: payclient.Tracker, says: Script) -> None:
    """The first of two POSTs created, the index lagged, and the customer has paid since."""
    lagging(service, 10)
    service.scripts = [posted(1, says)]
    with pytest.raises(payclient.RefusedError):
        await tracker.sale(sale())
    service.decide("Aceptado")
    await service.clock.advance(20)


@pytest.mark.parametrize("says", [BUSY, DUPLICATE, refuses(22, 23)], ids=["2061", "23", "inner 23"])
async def test_a_refused_sale_that_was_paid_is_not_sent_again(service: FakeService, says: Script) -> None:
    """Whichever of its codes said that it exists, the next try looks again."""
    async with tracking(service) as tracker:
        await refused_and_found_later(service, tracker, says)
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


async def test_a_refused_sale_that_was_paid_is_not_sent_again_though_the_ledger_does_not_take_it(
    service: FakeService,
) -> None:
    """The look before the next try finds it paid, and that one write fails."""
    fails: list[bool] = []
    ledger = FailingLedger(lambda name: name == "apply" and bool(fails) and fails.pop())
    async with tracking(service, ledger) as tracker:
        await refused_and_found_later(service, tracker, BUSY)
        fails.append(True)
        with pytest.raises(payclient.LedgerUnavailableError):
            await tracker.sale(sale())
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("change", [{"amount": "1150"}, {"amount": 7}, {"currency": "EUR"}])
async def test_a_refused_sale_whose_id_is_found_otherwise_is_not_sent_again(
    service: FakeService, change: dict[str, object]
) -> None:
    """What is under its id cannot be read, or is not as it was sent: nobody can tell whether it exists."""
    async with tracking(service) as tracker:
        await refused_and_found_later(service, tracker, BUSY)
        service.sales[1000] |= change
        with pytest.raises(payclient.NotSentError):
            await tracker.sale(sale())
    assert service.posted == {"order-17": 1}


def test_a_tracker_that_closes_meanwhile_leaves_what_may_exist() -> None:
    """The query hangs until the total time-out: unknown, never refused; closing waits for it."""

    async def main() -> Record:
        service = FakeService()
        service.clock = VirtualClock()  # type: ignore[assignment]  # as far as it is used
        service.scripts = [posted(1, BUSY)]
        asked = asyncio.Event()

        async def hanging(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            if request.method == "GET":
                asked.set()
                await asyncio.Event().wait()
            return await service(request, before_send)

        ledger = MemoryLedger()
        async with tracking(service, ledger, transport=hanging) as tracker:
            sending = asyncio.create_task(tracker.sale(sale()))
            await asked.wait()
        await sending
        return await record_in(ledger)

    assert run(main()).state is State.UNKNOWN


async def test_the_query_waits_for_its_turn(service: FakeService) -> None:
    """Twenty busy customers at once, at 30 queries a minute: one query in two seconds, and none is unknown."""
    profile = attrs.evolve(PROFILE, queries_per_minute=30.0)
    service.scripts = [BUSY] * 10
    async with tracking(service, profile=profile) as tracker:
        sales = [asyncio.create_task(tracker.sale(sale(f"o{number}"))) for number in range(10)]
        await service.clock.advance(60)
        errors = await asyncio.gather(*sales, return_exceptions=True)
    assert {type(error) for error in errors} == {payclient.CustomerBusyError}
    assert len(service.queried_at) == 10
    assert min(later - earlier for earlier, later in pairwise(service.queried_at)) >= 1.7


# --- A refused attempt that turns out to be paid


async def test_a_refused_attempt_that_was_paid_is_corrected(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The first query lagged. A notification is worth one more, and the feed shows the correction, with an alarm."""
    service.scripts = [posted(1, BUSY)]
    service.status_scripts = [lambda: HttpResponse(200, {}, b"[]")]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.CustomerBusyError):
            await tracker.sale(sale())
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(2)
        outcome = await (await pending_of(tracker)).wait()
        assert (outcome.paid, outcome.transaction_id, outcome.error) == (True, 1000, None)
        assert len(service.queries) == 2
        feed = tracker.outcomes()
        states = [(await anext(feed)).state, (await anext(feed)).state]
        assert states == [State.REFUSED, State.ACCEPTED]
        assert (await tracker.sale(sale())).state is State.ACCEPTED
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("word", ["Pendiente", "Cancelado", None])
async def test_a_refused_attempt_stays_refused_on_any_other_word(
    service: FakeService, word: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One query for a notification, and no state but paid takes it; what is open is said loudly."""
    service.scripts = [posted(1, BUSY)]
    service.status_scripts = [lambda: HttpResponse(200, {}, b"[]")]
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        with pytest.raises(payclient.CustomerBusyError):
            await tracker.sale(sale())
        if word is None:
            service.sales.clear()
        else:
            service.decide(word)
        await tracker.notify(hint())
        await service.clock.advance(60)
        assert len(service.queries) == 2
        found = await pending_of(tracker)
        assert found.state is State.REFUSED
    assert (word == "Pendiente") == ("Conflicted" in await events_of(ledger))
    assert "does not take" not in caplog.text


class Repeated(FakeService):
    """Each POST comes twice: the first creates, the second gets 2061; the query by our id sees it `lag` later."""

    def __init__(self, lag: float) -> None:
        super().__init__()
        self.clock = VirtualClock()  # type: ignore[assignment]  # as far as it is used
        self.lag = lag
        self.created_at = 0.0

    async def take(self, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await asyncio.sleep(0)
        await before_send()
        self.create(request)
        self.created_at = self.clock.monotonic()
        return refusal(22, 2061)

    def status(self, path: str) -> HttpResponse:
        if self.clock.monotonic() - self.created_at < self.lag:
            return refusal(20, status=404)
        return super().status(path)


@pytest.mark.parametrize("approved", [True, False])
def test_a_batch_looks_again_before_it_charges_after_2061(approved: bool) -> None:
    """The query after 2061 lagged: made again before the next try, it finds the sale, and nothing is sent."""

    async def main() -> tuple[dict[str, int], list[bool | None]]:
        service = Repeated(3.0)
        async with tracking(service) as tracker, payclient.charge_all(tracker, [sale()]) as results:
            asyncio.get_running_loop().call_later(
                60.0, service.decide, "Aceptado" if approved else "Pendiente"
            )
            paid = [None if each.outcome is None else each.outcome.paid async for each in results]
        return dict(service.posted), paid

    posted, paid = run(main())
    assert posted == {"order-17": 1}
    assert paid == [True if approved else None]
