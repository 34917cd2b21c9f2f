"""The tracker over a service that is a function, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import payclient
from fake_service import (
    PROFILE,
    FakeService,
    lost_request,
    outcome_of,
    pending_of,
    record_in,
    refuses,
    sale,
    tracking,
)
from payclient.events import DecidedRefused, Evidence, NotSent
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.profile import StatusProfile
from payclient.session import PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

__all__ = ["outcome_of", "tracking"]  # where other tests import them from

State = payclient.State


@pytest.fixture
def service() -> FakeService:
    return FakeService()


pytestmark = pytest.mark.usefixtures("delays")


async def test_an_accepted_sale_is_paid(service: FakeService) -> None:
    """The service says `Aceptado`: ACCEPTED, and `paid` is True."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.transaction_id) == (State.PENDING, 1000)
        assert pending.remaining == 300
        service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.ACCEPTED, True, 1000)
    assert outcome.evidence is Evidence.QUERY
    assert outcome.report is not None
    assert outcome.report.amount == 1150


async def test_an_expiry_is_presumed_and_then_confirmed(service: FakeService) -> None:
    """Five minutes unheard make EXPIRED; the query after them makes it CANCELLED."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(301)
        assert pending.state is State.EXPIRED
        assert pending.outcome.paid is None
        service.decide("Cancelado")
        outcome = await outcome_of(service, pending)
    assert outcome.state is State.CANCELLED


async def test_an_expired_sale_that_stays_pending_is_unknown_not_unpaid(service: FakeService) -> None:
    """The wait ends after the last query, with `paid` None: nobody knows."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
        assert service.clock.monotonic() == 300 + 140
        service.decide("Aceptado")
        await service.clock.advance(700)
        found = await pending_of(tracker)
        assert found.outcome.paid is True  # a correction, ten minutes later


async def test_the_same_request_again_sends_nothing(service: FakeService) -> None:
    """A double click gets the same sale, open or decided."""
    async with tracking(service) as tracker:
        first, second = await asyncio.gather(tracker.sale(sale()), tracker.sale(sale()))
        third = await tracker.sale(sale())
        service.decide("Aceptado")
        await outcome_of(service, third)
        fourth = await tracker.sale(sale())
        assert {p.transaction_id for p in (first, second, third, fourth)} == {1000}
        assert (await fourth.wait()).paid is True
    assert service.posted == {"order-17": 1}


async def test_other_content_under_a_known_id_is_refused(service: FakeService) -> None:
    """`DifferentRequestError`, while it sends, when it is open and when it is decided; nothing is sent."""
    other = sale(tax=151)
    async with tracking(service) as tracker:
        first = asyncio.create_task(tracker.sale(sale()))
        await asyncio.sleep(0)
        with pytest.raises(payclient.DifferentRequestError):
            await tracker.sale(other)
        pending = await first
        with pytest.raises(payclient.DifferentRequestError):
            await tracker.sale(other)
        service.decide("Aceptado")
        await outcome_of(service, pending)
        with pytest.raises(payclient.DifferentRequestError) as raised:
            await tracker.sale(other)
        assert raised.value.client_transaction_id == "order-17"
    assert service.posted == {"order-17": 1}


async def test_a_refusal_raises_and_allows_another_attempt(service: FakeService) -> None:
    """An error object created nothing: the caller may ask again, and that is a new attempt."""
    ledger = MemoryLedger()
    service.scripts = [refuses(22)]
    async with tracking(service, ledger) as tracker:
        with pytest.raises(payclient.NotCreatedError):
            await tracker.sale(sale())
        found = await pending_of(tracker)
        assert (found.state, found.outcome.paid) == (State.REFUSED, False)
        assert isinstance(found.outcome.error, payclient.RefusedError)
        assert found.outcome.error.error_code == 22
        await tracker.sale(sale(tax=200))  # other content is fine after a refusal
    record = await record_in(ledger)
    assert record.attempt == 2


async def test_a_lost_request_is_proven_absent_only_late(service: FakeService) -> None:
    """ "Not found" twice, later than `absent_after` and a tenth of it apart: REFUSED, nothing was created."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(599)
        assert pending.state is State.UNKNOWN
        await service.clock.advance(30)
        assert pending.state is State.UNKNOWN
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)
        assert (await tracker.sale(sale())).state is State.PENDING
    assert service.posted == {"order-17": 1}


async def test_without_a_query_by_client_id_nothing_proves_absence(service: FakeService) -> None:
    """The wait still ends, with `paid` None; the sale stays unknown for an operator."""
    service.scripts = [lost_request]
    profile = payclient.ServiceProfile(
        not_found_codes=frozenset({20}),
        status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state"),
    )
    async with tracking(service, profile=profile) as tracker:
        outcome = await outcome_of(service, await tracker.sale(sale()))
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
    assert not service.queries


async def test_wait_with_a_timeout_leaves_the_sale_tracked(service: FakeService) -> None:
    """`StillPendingError` is a TimeoutError; waiting again goes on."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        wait = asyncio.create_task(pending.wait(timeout=5))
        await service.clock.advance(6)
        with pytest.raises(payclient.StillPendingError):
            await wait
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_check_asks_once_for_all_who_ask(service: FakeService) -> None:
    """Ten checks at once are one query, and at most one a second."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await asyncio.gather(*(pending.check() for _ in range(10)))
        await pending.check()
        assert len(service.queries) == 1
        service.decide("Aceptado")
        await service.clock.advance(1.0)
        assert (await pending.check()).paid is True


async def test_closing_waits_for_the_send_in_flight(service: FakeService) -> None:
    """What was sent is recorded before the tracker is gone."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        caller = asyncio.create_task(tracker.sale(sale()))
        await asyncio.sleep(0)
    await caller
    record = await record_in(ledger)
    assert record.state is State.PENDING


async def test_closing_ends_a_wait_by_an_error_of_its_own(service: FakeService) -> None:
    """Nobody waits for ever."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        wait = asyncio.create_task(pending.wait())
        await asyncio.sleep(0)
    with pytest.raises(payclient.TrackerClosedError):
        await wait
    with pytest.raises(payclient.TrackerClosedError):
        await pending.wait()
    with pytest.raises(payclient.TrackerClosedError):
        await tracker.sale(sale("another"))


async def test_recovery_makes_a_sending_attempt_unknown_and_follows_what_is_open(
    service: FakeService,
) -> None:
    """A crash left one SENDING and one PENDING: neither is sent again, both are decided."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await tracker.sale(sale("pending"))

        died = asyncio.Event()

        async def crash(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
            await before_send()
            service.create(request)
            await died.wait()
            raise ConnectionResetError

        service.scripts = [crash]
        send = asyncio.create_task(tracker.sale(sale("sending", phone="0984111223")))
        await service.clock.advance(1)
        snapshot = [record async for record in ledger.unfinished()]
        assert {record.state for record in snapshot} == {State.PENDING, State.SENDING}
        # The process dies here: a second tracker takes over the same ledger.
        service.decide("Aceptado", 1000)
        service.decide("Aceptado", 1001)
        async with tracking(service, ledger) as after:
            found = await pending_of(after, "sending")
            assert found.state is State.UNKNOWN
            for name in ("pending", "sending"):
                sale_again = await after.sale(
                    sale(name, phone="0984111222" if name == "pending" else "0984111223")
                )
                assert (await outcome_of(service, sale_again)).paid is True
        died.set()
        await send
    assert service.posted == {"pending": 1, "sending": 1}


async def test_without_a_status_source_a_wait_ends_after_the_expiry(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns once at the start; `paid` stays None, and is not called unpaid by a clock."""
    async with tracking(service, profile=payclient.DOCUMENT) as tracker:
        assert "can never become True" in caplog.text
        assert 'a wait lasts until a notification or the expiry; give profile="payphone"' in caplog.text
        outcome = await outcome_of(service, await tracker.sale(sale()))
    assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
    assert 310 <= service.clock.monotonic() <= 312


async def test_a_status_source_of_the_merchants_own(service: FakeService) -> None:
    """Another way to ask, and its faults end nothing."""
    answers: list[payclient.StatusReport | Exception | None] = [
        RuntimeError("down"),
        payclient.StatusReport(state="Aceptado", transaction_id=1000),
    ]

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        assert reference.client_transaction_id == "order-17"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with tracking(service, profile=payclient.DOCUMENT, status=status) as tracker:
        assert (await outcome_of(service, await tracker.sale(sale()))).paid is True


async def test_the_feed_has_decisions_presumptions_and_corrections(service: FakeService) -> None:
    """`outcomes()` gives EXPIRED, then ACCEPTED, each with its cursor, and goes on from one."""
    async with tracking(service) as tracker:
        await tracker.sale(sale())
        feed = tracker.outcomes()
        first = asyncio.ensure_future(anext(feed))
        await service.clock.advance(301)
        expired = await first
        service.decide("Aceptado")
        second = asyncio.ensure_future(anext(feed))
        await service.clock.advance(10)
        accepted = await second
        assert [expired.state, accepted.state] == [State.EXPIRED, State.ACCEPTED]
        assert accepted.cursor is not None
        again = [await anext(tracker.outcomes(since=expired.cursor or 0))]
        assert [outcome.cursor for outcome in again] == [accepted.cursor]


async def test_as_decided_gives_outcomes_in_the_order_of_their_decision(service: FakeService) -> None:
    """The second customer is quicker than the first."""
    async with tracking(service) as tracker:
        pendings = [await tracker.sale(sale(f"o{n}", phone=f"09841112{n:02}")) for n in range(2)]
        service.decide("Aceptado", 1001)
        order = []

        async def collect() -> None:
            async for outcome in payclient.as_decided(pendings):
                order.append(outcome.client_transaction_id)

        task = asyncio.create_task(collect())
        await service.clock.advance(5)
        service.decide("Cancelado", 1000)
        await service.clock.advance(5)
        await task
    assert order == ["o1", "o0"]


async def test_an_operators_word_during_the_send_stands(service: FakeService) -> None:
    """A late answer that the lifecycle does not take any more gives the ledger's record."""
    ledger = MemoryLedger()

    async def decided_meanwhile(
        service: FakeService, request: HttpRequest, before_send: BeforeSend
    ) -> HttpResponse:
        await before_send()
        record = await record_in(ledger)
        await ledger.apply(record, NotSent(at=0.0))
        return await service.take(request, _nothing)

    service.scripts = [decided_meanwhile]
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        assert pending.state is State.REFUSED
    with pytest.raises(payclient.TransitionError):
        record = await record_in(ledger)
        await ledger.apply(record, DecidedRefused(at=0.0, actor="Ana", reason="called"))


async def _nothing() -> None:
    pass


async def test_rate_limits_and_errors_of_the_status_query_fail_nobodys_wait(service: FakeService) -> None:
    """429 with `Retry-After`, 500 and 401 slow the queries; the wait ends with the truth."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.status_scripts = [
            lambda: HttpResponse(429, {"Retry-After": "20"}, b""),
            lambda: HttpResponse(503, {}, b""),
            lambda: HttpResponse(503, {}, b""),
            lambda: HttpResponse(503, {}, b""),
            lambda: HttpResponse(401, {}, b'{"message": "no"}'),
        ]
        service.decide("Aceptado")
        await service.clock.advance(15)
        assert len(service.queries) == 1
        assert (await outcome_of(service, pending)).paid is True


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_ledger_of_another_service(service: FakeService, tmp_path: Path, kind: str) -> None:
    """A test system would not find what the real one charged, and prove it absent: the ledger is refused."""
    ledger = MemoryLedger() if kind == "memory" else await SqliteLedger.open(str(tmp_path / "charges.db"))

    def tracker(base_url: str) -> payclient.Tracker:
        session = PaySession(base_url, "token", profile=PROFILE, transport=service)
        return payclient.Tracker(session, ledger, clock=service.clock)

    service.scripts = [lost_request]
    async with tracker("https://pay.example") as first:
        assert (await first.sale(sale())).state is State.UNKNOWN
    with pytest.raises(payclient.ConfigurationError, match="used with another service"):
        await tracker("https://sandbox.pay.example").__aenter__()
    async with tracker("https://PAY.example:443/") as again:
        assert [each.client_transaction_id for each in again.open_sales()] == ["order-17"]
    await ledger.aclose()


def test_a_tracker_s_own_time_is_its_loop_s(service: FakeService) -> None:
    """Of the loop in which it was entered last, and of the running one until then."""

    async def main(tracker: payclient.Tracker) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert before <= tracker.clock.monotonic() <= loop.time()
        async with tracker:
            assert tracker.clock.monotonic == loop.time

    async def make() -> payclient.Tracker:
        session = PaySession("https://pay.example", "token", profile=PROFILE, transport=service)
        return payclient.Tracker(session, MemoryLedger())

    for _ in range(2):
        with asyncio.Runner() as runner:
            runner.run(main(runner.run(make())))
