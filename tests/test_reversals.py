"""Paid, and given back: by the tracker, by somebody else, and by a request of which nobody knows what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import HookedLedger, HookedSharedLedger, SharedLedger, disk_full, once
from fake_service import PROFILE as PLAIN
from fake_service import (
    FakeService,
    Gate,
    alarms,
    answer,
    collected_by,
    error_of,
    events_of,
    form,
    held_by,
    hint,
    outcome_of,
    paid,
    pending_of,
    posted,
    record_in,
    refusal,
    reset,
    sale,
    selling,
    tracking,
    two_processes,
)
from payclient.events import Event, Evidence
from payclient.ledger import open_ledger
from payclient.lifecycle import Record, State
from payclient.profile import StatusProfile, UndoProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

pytestmark = pytest.mark.usefixtures("delays")

PROFILE = attrs.evolve(
    PLAIN,
    reverse=UndoProfile(
        by_transaction_id="/api/Reverse", transaction_id_field="id", too_late_codes=frozenset({20})
    ),
)


class Service(FakeService):
    """Gives a payment back; one entry of `reverse_scripts` misbehaves for each next request."""

    def __init__(self) -> None:
        super().__init__()
        self.reversals: list[int] = []
        #: What is answered or raised, and whether it is given back all the same.
        self.reverse_scripts: list[tuple[HttpResponse | Exception, bool]] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.path != "/api/Reverse":
            return await super().__call__(request, before_send)
        number = json.loads(request.body)["id"]
        said, done = self.reverse_scripts.pop(0) if self.reverse_scripts else (answer(200, True), True)
        if isinstance(said, ConnectionRefusedError):
            raise said
        assert before_send is not None
        await before_send()
        self.reversals.append(number)
        await asyncio.sleep(0)
        if done:
            self.decide("Cancelado", number)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
def service() -> Service:
    return Service()


async def test_a_payment_is_given_back(service: Service) -> None:
    """The feed carries it, the purchase is not paid any more, and may be asked for again."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        outcome = await tracker.reverse(pending)
        assert (outcome.state, outcome.paid, outcome.evidence) == (State.REVERSED, False, Evidence.ANSWER)
        assert pending.outcome.paid is False
        assert (await tracker.reverse(pending)).state is State.REVERSED
        assert service.reversals == [pending.transaction_id]
        changes = await service.ledger.changes()
        assert [change.after for change in changes] == [State.ACCEPTED, State.REVERSING, State.REVERSED]
        purchase = await tracker.purchase("cart")
        assert (purchase.paid, purchase.collected) == (False, 0)
        await tracker.sale(sale("second"), purchase="cart")


@pytest.mark.parametrize("lags", [True, False])
async def test_a_status_that_lags_does_not_unsay_a_reversal(
    service: Service, caplog: pytest.LogCaptureFixture, lags: bool
) -> None:
    """The service answered that the payment is given back; where its status says otherwise later, a person looks."""
    service.reverse_scripts = [(answer(200, True), not lags)]
    async with tracking(service, profile=PROFILE) as tracker:
        assert (await tracker.reverse(await paid(service, tracker))).state is State.REVERSED
        await tracker.notify(hint())
        await service.clock.advance(5)
        assert alarms(caplog) == (["order-17: given back, and yet accepted"] if lags else [])
        assert "FoundCancelled" not in await events_of(service.ledger)


async def test_only_one_request_leaves(service: Service) -> None:
    """Several calls, here and in another process: one is permitted, and the others say what is known."""
    async with two_processes(service, PROFILE) as (one, other):
        pending = await paid(service, one)
        there = await pending_of(other)
        calls = [one.reverse(pending) for _ in range(3)] + [other.reverse(there) for _ in range(3)]
        outcomes = await asyncio.gather(*calls)
        assert {outcome.state for outcome in outcomes} <= {State.REVERSING, State.REVERSED}
        assert len(service.reversals) == 1
        assert (await events_of(service.ledger)).count("ReversalPermitted") == 1


@pytest.mark.parametrize("connects", [False, True])
async def test_a_process_that_stood_still_gives_nothing_back(service: Service, connects: bool) -> None:
    """Woken too late after the permit: another may have been told meanwhile that it is still paid."""
    hooks = {} if connects else {"ReversalPermitted": lambda: service.clock.jump_wall(31)}

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if connects and request.path == "/api/Reverse":  # a laptop that slept as it looked for the service
            service.clock.jump_wall(31)
        return await service(request, before_send)

    async with tracking(service, HookedLedger(after=hooks), PROFILE, transport=slow) as tracker:
        await error_of(payclient.NotSentError, tracker.reverse(await paid(service, tracker)))
        assert service.reversals == []
        assert (await tracker.purchase("cart")).paid is True


async def test_a_reversal_goes_on_without_its_caller(service: Service) -> None:
    """Who is cancelled detaches; the request is not cut, and its answer is written."""
    async with tracking(service, profile=PROFILE) as tracker:
        caller = asyncio.ensure_future(tracker.reverse(await paid(service, tracker)))
        while not service.reversals:  # noqa: ASYNC110 - no event of the service tells
            await asyncio.sleep(0)
        caller.cancel()
        await error_of(asyncio.CancelledError, caller)
    assert (await service.ledger.changes())[-1].after is State.REVERSED
    assert (await events_of(service.ledger))[-1] == "Reversed"
    assert len(service.reversals) == 1


@pytest.mark.parametrize("during", ["ReversalPermitted", "Reversed"])
async def test_a_reversal_is_followed_though_all_tasks_were_cancelled(service: Service, during: str) -> None:
    """As a program that ends does, which may go on for a while; a query finds out in it what became of the payment."""
    gate = Gate()
    hooks = {during: gate}
    ledger = HookedLedger(after=hooks) if during == "ReversalPermitted" else HookedLedger(before=hooks)
    async with tracking(service, ledger, PROFILE) as tracker:
        reversing = asyncio.create_task(tracker.reverse(await paid(service, tracker)))
        await gate.there.wait()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.wait([reversing])
        await service.clock.advance(100)
        assert (await tracker.purchase("cart")).paid is (not service.reversals)


async def test_what_is_not_paid_is_not_given_back(service: Service) -> None:
    """Nothing is sent; nor where the profile does not say how."""
    async with selling(service, profile=PROFILE) as (tracker, pending):
        await error_of(payclient.UsageError, tracker.reverse(pending))
    async with tracking(service) as tracker:
        pending = await paid(service, tracker, "second")
        await error_of(payclient.ConfigurationError, tracker.reverse(pending))
        assert (await record_in(service.ledger, "second")).state is State.ACCEPTED
    assert service.reversals == []


@pytest.mark.parametrize("is_another", [False, True])
async def test_a_clock_that_jumps_does_not_keep_it_paid(service: Service, is_another: bool) -> None:
    """A query finds it paid while the request to give it back is on its way, which by then should have ended."""
    gate = Gate()
    slow = gate.before(service, "/api/Reverse")
    async with two_processes(service, PROFILE, transport=slow) as (tracker, other):
        reversing = asyncio.create_task(tracker.reverse(await paid(service, tracker)))
        await gate.there.wait()
        service.clock.jump_wall(3600)
        await (await pending_of(other if is_another else tracker)).check()
        gate.go.set()
        assert (await reversing).state is State.REVERSED


async def test_a_late_answer_gives_no_other_payment_back(service: Service) -> None:
    """Its POST was repeated: meanwhile another process found the other one paid, and the list that is queried lags."""
    gate = Gate()
    slow = gate.before(service, "/api/Reverse")
    async with two_processes(service, PROFILE, transport=slow) as (tracker, other):
        service.scripts = [posted(1, FakeService.take)]
        pending = await paid(service, tracker)
        reversing = asyncio.create_task(tracker.reverse(pending))
        await gate.there.wait()
        there = await pending_of(other)
        service.decide("Aceptado")
        service.decide("Cancelado", 1001)
        await service.clock.advance(100)
        assert ((await there.check()).paid, there.transaction_id) == (True, 1000)
        del service.sales[1000]
        gate.go.set()
        assert (await reversing).paid is True


class Deaf(SharedLedger):
    """A process that no change of another one wakes."""

    def watch(self, woken: object) -> Callable[[], None]:
        return lambda: None


async def test_a_fault_of_ours_in_a_reversal_leaves_it_to_its_queries(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at the payment any more."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        monkeypatch.setattr(payclient.PaySession, "reverse", AsyncMock(side_effect=RuntimeError("broken")))
        await error_of(RuntimeError, tracker.reverse(pending))
        await service.clock.advance(100)
        assert (await record_in(service.ledger)).state is State.ACCEPTED


async def test_a_process_that_saw_no_payment_calls_it_not_paid_while_it_is_given_back(
    service: Service,
) -> None:
    """What it knows is from before the payment, and its clock is ahead: its query is older than the reversal."""
    gate, one = Gate(), SharedLedger()
    async with (
        tracking(service, one, PROFILE, transport=gate.before(service, "/api/Reverse")) as tracker,
        tracking(service, Deaf(one), PROFILE) as other,
    ):
        await tracker.sale(sale())
        there = await pending_of(other)
        service.decide("Aceptado")
        await service.clock.advance(2)
        await (pending := await pending_of(tracker)).check()
        reversing = asyncio.create_task(tracker.reverse(pending))
        await gate.there.wait()
        assert there.state is State.PENDING
        service.clock.jump_wall(3600)
        await there.check()
        assert (await record_in(one)).state is State.REVERSING
        gate.go.set()
        assert (await reversing).state is State.REVERSED


async def test_a_refused_reversal_leaves_it_paid(service: Service) -> None:
    """As does one that was not sent; either may be tried again."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), False)] + [(ConnectionRefusedError(), False)] * 100
        refused = await error_of(payclient.NotReversibleError, tracker.reverse(pending))
        assert (await pending_of(tracker)).outcome.paid is True
        waiting = asyncio.ensure_future(tracker.reverse(pending))
        await service.clock.advance(100.0)
        not_sent = await error_of(payclient.NotSentError, waiting)
        assert refused.client_transaction_id == not_sent.client_transaction_id == "order-17"
        assert (await pending_of(tracker)).outcome.paid is True
        service.reverse_scripts = []
        assert (await tracker.reverse(pending)).paid is False


async def test_the_end_of_a_first_reversal_ends_no_second_one(service: Service) -> None:
    """It was written, and the ledger said that it was not: written again, it would call paid what is given back."""
    ledger = HookedLedger(after={"ReversalRefused": once(disk_full)})
    async with tracking(service, ledger, PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), False), (ConnectionResetError(), True)]
        await error_of(payclient.NotReversibleError, tracker.reverse(pending))
        await service.clock.advance(0.1)
        assert (await tracker.reverse(pending)).state is State.REVERSING
        await service.clock.advance(1)  # the first one's end is written again
        assert (await record_in(ledger)).state is State.REVERSING
        await service.clock.advance(600)
    assert (await record_in(ledger)).state is State.REVERSED


@pytest.mark.parametrize("is_on_record", [False, True])
async def test_a_permit_that_may_be_on_record_ends_as_not_sent(service: Service, is_on_record: bool) -> None:
    """The ledger failed at it, and nothing was sent: the payment is paid, and may be given back."""
    fails = {"ReversalPermitted": once(disk_full)}
    ledger = HookedLedger(after=fails) if is_on_record else HookedLedger(before=fails)
    async with tracking(service, ledger, PROFILE) as tracker:
        pending = await paid(service, tracker)
        await error_of(payclient.LedgerUnavailableError, tracker.reverse(pending))
        assert (await record_in(ledger)).state is State.ACCEPTED
        assert service.reversals == []
        assert (await tracker.reverse(pending)).state is State.REVERSED


async def test_a_permit_that_failed_ends_no_other_reversal(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger failed at it, and took that of another call meanwhile."""
    gate = Gate()
    async with (
        aclosing(await open_ledger(f"sqlite:{tmp_path / 'sales.db'}")) as ledger,
        tracking(service, ledger, PROFILE, transport=gate.before(service, "/api/Reverse")) as tracker,
    ):
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending, ledger=ledger)).paid
        apply, reversing = ledger.apply, []

        async def fail(record: Record, event: Event) -> Record:
            monkeypatch.setattr(ledger, "apply", apply)
            await service.clock.advance(0.1)
            reversing.append(asyncio.create_task(tracker.reverse(pending)))
            await gate.there.wait()
            raise payclient.LedgerUnavailableError("disk full")

        service.reverse_scripts = [(ConnectionResetError(), True)]
        monkeypatch.setattr(ledger, "apply", fail)
        await error_of(payclient.LedgerUnavailableError, tracker.reverse(pending))
        assert (await record_in(ledger)).state is State.REVERSING
        gate.go.set()
        assert (await reversing[0]).state is State.REVERSING


async def test_a_token_that_is_not_given_costs_no_permit(service: Service) -> None:
    """Where nothing tells what became of a reversal, it would be undecided for ever, though nothing was sent."""
    ledger = HookedLedger()
    async with tracking(service, ledger, PROFILE) as tracker:
        await paid(service, tracker)
    tokens: list[str] = []

    async def token() -> str:
        return tokens.pop()

    async with tracking(service, ledger, attrs.evolve(PROFILE, status=None), token=token) as tracker:
        pending = await pending_of(tracker)
        await error_of(IndexError, tracker.reverse(pending))
        assert (await record_in(ledger)).state is State.ACCEPTED
        tokens.append("token")
        assert (await tracker.reverse(pending)).state is State.REVERSED


async def test_a_token_that_fails_after_a_reversal_leaves_it_to_its_queries(service: Service) -> None:
    """It is asked for anew as the reversal is answered, for the query whether another transaction is paid."""
    tokens = ["token"]

    async def token() -> str:
        return tokens.pop()

    async def expiring(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        said = await service(request, before_send)
        if request.path == "/api/Reverse":
            service.status_scripts = [lambda: answer(401, {"message": "no"})]
            await other.check()
        return said

    async with tracking(service, None, PROFILE, transport=expiring, token=token) as tracker:
        pending = await paid(service, tracker)
        other = await tracker.sale(sale("other", phone="0984111223"))
        await service.clock.advance(1.5)
        assert (await tracker.reverse(pending)).state is State.REVERSING
        tokens += ["token"] * 100
        await service.clock.advance(600)
        assert (await record_in(service.ledger)).state is State.REVERSED


@pytest.mark.parametrize("pauses", [False, True], ids=["just queried", "paused"])
async def test_an_earlier_query_tells_nothing_of_a_refused_reversal(
    service: Service, caplog: pytest.LogCaptureFixture, pauses: bool
) -> None:
    """It was repeated in between, and gave the payment back: one more query is made, at once or after the pause.

    The alarm names nobody: the request was our own.
    """
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        await service.clock.advance(5)
        if pauses:
            service.status_scripts = [lambda: refusal(29, status=429, retry_after=20)]
            await (await tracker.sale(sale("other", phone="0984111223"))).check()
        await (await pending_of(tracker)).check()
        service.reverse_scripts = [(refusal(20), True)]
        reversing = asyncio.ensure_future(tracker.reverse(pending))
        await service.clock.advance(2)
        if pauses:
            await error_of(payclient.NotReversibleError, reversing)
            await service.clock.advance(30)
        else:
            assert (await reversing).state is State.REVERSED
        assert (await record_in(service.ledger)).state is State.REVERSED
    assert alarms(caplog) == ["order-17: accepted, and found given back"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_copy_of_a_refused_reversal_may_come_later(service: Service, fails: bool) -> None:
    """A proxy held the first one back; the second was refused, and the query after it found the sale paid."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), False)]
        reversing = asyncio.ensure_future(tracker.reverse(pending))
        await service.clock.advance(2)
        await error_of(payclient.NotReversibleError, reversing)
        if fails:
            service.status_scripts = [reset]
            await tracker.notify(hint())
        await service.clock.advance(50)
        service.decide("Cancelado", pending.transaction_id or 0)
        await service.clock.advance(20)
        assert (await record_in(service.ledger)).state is State.REVERSED


@pytest.mark.parametrize("refused", [True, False])
async def test_a_query_on_its_way_tells_nothing_of_a_reversal(
    service: Service, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """Its answer is from before the request that gave the payment back, and comes after it."""
    gate = Gate()

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        said = await service(request, before_send)
        if request.method == "GET" and service.clock.monotonic() > 5 and not gate.there.is_set():
            await gate()
        return said

    async with tracking(service, profile=PROFILE, transport=slow) as tracker:
        pending = await paid(service, tracker)
        await service.clock.advance(10)
        checking = asyncio.ensure_future((await pending_of(tracker)).check())
        await gate.there.wait()
        service.reverse_scripts = [(refusal(20), True)] if refused else []
        reversing = asyncio.ensure_future(tracker.reverse(pending))
        await service.clock.advance(2)
        gate.go.set()
        await service.clock.advance(2)
        assert (await reversing).state is State.REVERSED
        await checking
    assert "order-17: given back, and yet accepted" not in alarms(caplog)


async def test_an_answer_that_a_cache_stored_before_a_reversal_tells_nothing_of_it(service: Service) -> None:
    """The payment was given back, and an older "accepted" called it paid."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        accepted = json.dumps(service.sales[1000]).encode()
        service.reverse_scripts = [(ConnectionResetError(), True)]
        service.status_scripts = [lambda: HttpResponse(200, {"Age": "1000"}, accepted)] * 200
        assert (await tracker.reverse(pending)).state is State.REVERSING
        await service.clock.advance(100)
        assert pending.state is State.REVERSING
        service.status_scripts.clear()
        await service.clock.advance(60)
        assert (await pending.check()).state is State.REVERSED


async def test_what_is_given_back_is_what_the_permit_is_for(service: Service) -> None:
    """Another transaction is found paid in the place of the first, as the process waits for its token."""
    token, ledger, profile = Gate(), SharedLedger(), attrs.evolve(PROFILE, status=None)
    found = payclient.StatusReport(
        state="Aceptado", transaction_id=1000, client_transaction_id="order-17", amount=1150
    )
    source = AsyncMock(side_effect=lambda query: found)

    async def slowly() -> str:
        await token()
        return "token"

    async with (
        tracking(service, ledger, profile, source) as tracker,
        tracking(service, SharedLedger(ledger), profile, source, token=slowly) as another,
    ):
        pending = await paid(service, tracker)
        reversing = asyncio.create_task(another.reverse(await pending_of(another)))
        await token.there.wait()
        service.add_sale(1001)
        found = attrs.evolve(found, transaction_id=1001, others=(1000,))
        await service.clock.advance(1)
        assert (await pending.check()).transaction_id == 1001
        token.go.set()
        assert (await reversing).state is State.REVERSED
    assert service.reversals == [1001]


async def test_of_two_that_were_paid_the_other_one_stays_paid(service: Service) -> None:
    """A POST was repeated in front and the customer approved both: one is given back, and the purchase is paid."""
    service.scripts = [posted(1, FakeService.take)]
    profile = attrs.evolve(PROFILE, receipt_fields=("transactionId",))
    async with tracking(service, profile=profile) as tracker:
        service.clock.call_at(1.0, service.decide, "Aceptado", 1000)
        assert (await tracker.reverse(await paid(service, tracker))).paid is not False
        await held_by(tracker, "cart")
        await service.clock.advance(700)
        there = await pending_of(tracker)
        assert (there.outcome.paid, there.transaction_id) == (True, 1000)
        assert there.outcome.receipt == {"transactionId": 1000}
        assert (await tracker.reverse(there)).state is State.REVERSED
    assert service.reversals == [1001, 1000]


@pytest.mark.parametrize(
    ("done", "restarts"), [(True, True), (False, True), (True, False)], ids=["done", "not done", "no restart"]
)
async def test_a_lost_answer_is_settled_by_a_query(service: Service, done: bool, restarts: bool) -> None:
    """Nobody waits, and it is queried, also after a crash; "accepted" counts once the request cannot be on its way."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(ConnectionResetError(), done)]
        outcome = await tracker.reverse(pending)
        assert (outcome.state, outcome.paid, pending.state) == (State.REVERSING, None, State.REVERSING)
        assert (await tracker.cancel(pending)).state is State.REVERSING
        assert pending.remaining == pytest.approx(60.0)  # twice the total time-out
        # It may have been given back by now: nobody calls its purchase paid, or free.
        assert (await held_by(tracker, "cart")).until == pending.expires_at
        purchase = await tracker.purchase("cart")
        assert (purchase.paid, purchase.held_until) == (None, pending.expires_at)
        if not done:
            await service.clock.advance(10)
            assert (await pending.check()).state is State.REVERSING
            assert (await record_in(service.ledger)).state is State.REVERSING
        if not restarts:
            await service.clock.advance(600)
    if restarts:
        async with tracking(service, service.ledger, PROFILE) as tracker:
            await outcome_of(service, await pending_of(tracker))
    record = await record_in(service.ledger)
    assert record.state is (State.REVERSED if done else State.ACCEPTED)
    assert record.evidence is Evidence.QUERY
    assert len(service.reversals) == 1


async def test_a_form_that_is_given_back_holds_its_purchase_no_longer_than_that(service: Service) -> None:
    """Its links would hold it for 25 minutes; they are dead once it was paid."""
    async with tracking(service, profile=PROFILE) as tracker:
        await tracker.prepare(form(), purchase="cart")
        service.pay("form-1", state="Aceptado")
        await tracker.notify(hint(5001, "form-1"))
        pending = await pending_of(tracker, "form-1")
        assert (await outcome_of(service, pending)).paid is True
        service.reverse_scripts = [(ConnectionResetError(), True)]
        assert (await tracker.reverse(pending)).state is State.REVERSING
        assert (await held_by(tracker, "cart")).until == pending.expires_at
        await service.clock.advance(100)
        await tracker.prepare(form("form-2"), purchase="cart")


@pytest.mark.parametrize("finds_forms", [True, False])
async def test_a_lost_answer_is_settled_long_after_its_process_ended(
    service: Service, finds_forms: bool
) -> None:
    """The last queries of a form are overdue, and one is enough: another one is made once "accepted" counts."""
    assert PROFILE.status is not None
    by_its_id = attrs.evolve(PROFILE, status=attrs.evolve(PROFILE.status, by_client_transaction_id=None))
    async with tracking(service, profile=PROFILE) as tracker:
        await tracker.prepare(form())
        service.pay("form-1")
        service.decide("Aceptado", 5001)
        service.reverse_scripts = [(ConnectionResetError(), False)]
        assert (await outcome_of(service, await pending_of(tracker, "form-1"))).paid
        assert (await tracker.reverse(await pending_of(tracker, "form-1"))).state is State.REVERSING
    await service.clock.advance(900)
    async with tracking(service, service.ledger, PROFILE if finds_forms else by_its_id):
        await service.clock.advance(100)
    assert (await record_in(service.ledger, "form-1")).state is State.ACCEPTED


async def test_a_lost_answer_is_settled_by_the_process_that_lost_it(service: Service) -> None:
    """The payment was decided, so that no process held it any more."""
    async with tracking(service, SharedLedger(), PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(ConnectionResetError(), True)]
        await tracker.reverse(pending)
        await service.clock.advance(100)
        assert (await record_in(service.ledger)).state is State.REVERSED


async def test_the_feed_says_at_once_that_a_payment_is_given_back(service: Service) -> None:
    """The goods are held before the request has its answer."""
    gate = Gate()
    slow = gate.before(service, "/api/Reverse")
    async with tracking(service, profile=PROFILE, transport=slow) as tracker:
        pending, feed = await paid(service, tracker), tracker.outcomes()
        assert (await anext(feed)).state is State.ACCEPTED
        news = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0)
        reversing = asyncio.ensure_future(tracker.reverse(pending))
        await gate.there.wait()
        async with asyncio.timeout(5):
            assert (await news).state is State.REVERSING
        gate.go.set()
        await reversing


@pytest.mark.parametrize("can_query", [True, False])
async def test_a_check_without_a_query_hangs_no_later_wait(service: Service, can_query: bool) -> None:
    """The service wanted a pause when somebody looked at the payment, or nothing can be queried at all."""
    profile = PROFILE if can_query else attrs.evolve(PROFILE, status=None)
    async with tracking(service, profile=profile) as tracker:
        await tracker.sale(sale())
        service.decide("Aceptado")
        await service.clock.advance(400)
        if can_query:
            service.instead = lambda path: refusal(29, status=429, retry_after=20)
            await (await tracker.sale(sale("other", phone="0984111223"))).check()
        else:
            await tracker.resolve("order-17", as_="accepted", actor="Ana", reason="seen in the portal")
        pending = await pending_of(tracker)
        assert (await pending.check()).paid is True
        service.instead = lambda path: None
        service.reverse_scripts = [(ConnectionResetError(), True)]
        assert (await tracker.reverse(pending)).state is State.REVERSING
        assert (await outcome_of(service, await pending_of(tracker))).paid is (False if can_query else None)


async def test_a_wall_clock_that_jumps_calls_nothing_paid_that_is_being_given_back(service: Service) -> None:
    """It is looked at while the request is on its way: "accepted" counts no sooner, and the answer is the outcome."""
    gate = Gate()
    slow = gate.before(service, "/api/Reverse")
    async with tracking(service, profile=PROFILE, transport=slow) as tracker:
        pending = await paid(service, tracker)
        await (await pending_of(tracker)).check()
        reversing = asyncio.ensure_future(tracker.reverse(pending))
        await gate.there.wait()
        service.clock.jump_wall(100)
        for seconds in (2, 40):  # within the time-out, and while a copy may come late
            await service.clock.advance(seconds)
            assert (await (await pending_of(tracker)).check()).paid is None
        gate.go.set()
        outcome = await reversing
        assert (outcome.state, outcome.paid) == (State.REVERSED, False)


async def test_a_wall_clock_that_was_set_back_holds_no_reversal(service: Service) -> None:
    """By a day, after its permit: "accepted" counts once the request cannot be on its way, by the monotonic clock."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        service.reverse_scripts = [(ConnectionResetError(), False)]
        assert (await tracker.reverse(pending)).state is State.REVERSING
        service.clock.jump_wall(-86_400)
        await service.clock.advance(200)
        assert (await record_in(service.ledger)).state is State.ACCEPTED


async def test_a_second_reversal_counts_its_own_time(service: Service) -> None:
    """The payment was looked at since the first one was refused: "accepted" says nothing while the second is sent."""
    gate = Gate()
    slow = gate.before(service, "/api/Reverse")
    service.reverse_scripts = [(refusal(20), False)]
    async with tracking(service, profile=PROFILE, transport=slow) as tracker:
        pending = await paid(service, tracker)
        gate.go.set()
        first = asyncio.ensure_future(tracker.reverse(pending))
        await service.clock.advance(2)
        await error_of(payclient.NotReversibleError, first)
        await service.clock.advance(48)
        gate.go.clear()
        gate.there.clear()
        second = asyncio.ensure_future(tracker.reverse(pending))
        await gate.there.wait()
        service.clock.jump_wall(100)
        await service.clock.advance(20)
        assert (await (await pending_of(tracker)).check()).paid is None
        gate.go.set()
        assert (await second).state is State.REVERSED


async def test_a_second_reversal_counts_its_own_time_where_nothing_was_heard_of_the_end_of_the_first(
    service: Service,
) -> None:
    """A page of another process looked at the first: "accepted" says nothing while the second is sent."""
    gate, ledger = Gate(), SharedLedger()
    slow = gate.before(service, "/api/Reverse")
    gate.go.set()
    service.reverse_scripts = [(ConnectionResetError(), False)]
    async with (
        tracking(service, ledger, PROFILE, transport=slow) as tracker,
        tracking(service, SharedLedger(ledger), PROFILE) as other,
    ):
        pending = await paid(service, tracker)
        ledger.watchers.clear()
        assert (await tracker.reverse(pending)).state is State.REVERSING
        assert (await (await pending_of(other)).check()).paid is None
        await service.clock.advance(65)
        assert (await (await pending_of(tracker)).check()).paid is True
        gate.go.clear()
        gate.there.clear()
        second = asyncio.ensure_future(tracker.reverse(await pending_of(tracker)))
        await gate.there.wait()
        assert (await (await pending_of(other)).check()).paid is None
        gate.go.set()
        assert (await second).state is State.REVERSED


async def test_somebody_else_gave_it_back(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """In the portal: a query finds it, which is a correction with an alarm, and never an error in the log."""
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await paid(service, tracker)
        await service.clock.advance(100)
        assert (await pending.check()).paid is True
        service.decide("Cancelado")
        await service.clock.advance(2)
        outcome = await pending.check()
        assert (outcome.state, outcome.paid, pending.state) == (State.REVERSED, False, State.REVERSED)
        assert [each.levelname for each in caplog.records] == ["CRITICAL"]
        service.decide("Aceptado")  # nonsense: it stays given back, and is looked at by a person
        await service.clock.advance(2)
        assert (await pending.check()).state is State.REVERSED


async def test_what_was_cancelled_before_it_was_accepted_is_not_given_back(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes query one sale: the older word, "cancelled", is written after the newer one, "accepted"."""
    gate = Gate()
    ledger = HookedSharedLedger(before={"FoundCancelled": gate})
    async with (
        selling(service, ledger=ledger, purchase="cart") as (_, pending),
        tracking(service, SharedLedger(ledger)) as other,
    ):
        there = await pending_of(other)
        service.decide("Cancelado")
        checking = asyncio.ensure_future(pending.check())
        await gate.there.wait()
        service.decide("Aceptado")
        assert (await there.check()).paid is True
        gate.go.set()
        assert (await checking).paid is True
        await collected_by(other, "cart")
    assert (await record_in(ledger)).state is State.ACCEPTED
    assert "does not take" not in caplog.text


async def test_an_answer_from_before_it_was_accepted_does_not_give_it_back(service: Service) -> None:
    """The process that asked first has heard meanwhile what another one found; it has no second look of its own."""
    by_client = StatusProfile(
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
    )
    profile, gate = attrs.evolve(PLAIN, status=by_client), Gate()

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        said = await service(request, before_send)
        if request.method == "GET":
            await gate()
        return said

    ledger = SharedLedger()
    async with (
        selling(service, ledger=ledger, profile=profile, transport=slow) as (_, pending),
        tracking(service, SharedLedger(ledger), profile) as other,
    ):
        there = await pending_of(other)
        service.decide("Cancelado")
        checking = asyncio.ensure_future(pending.check())
        await gate.there.wait()
        service.decide("Aceptado")
        assert (await there.check()).paid is True
        await service.clock.advance(0.1)
        gate.go.set()
        assert (await checking).paid is True
    assert (await record_in(ledger)).state is State.ACCEPTED


async def test_a_handle_of_a_closed_tracker_is_given_back_by_another(
    service: Service, tmp_path: Path
) -> None:
    """Its own ledger is closed: the outcome is returned all the same, as the money was given back."""
    address = f"sqlite:{tmp_path / 'sales.db'}"
    async with aclosing(await open_ledger(address)) as ledger, tracking(service, ledger, PROFILE) as tracker:
        pending = await paid(service, tracker)
    async with aclosing(await open_ledger(address)) as ledger, tracking(service, ledger, PROFILE) as tracker:
        assert (await tracker.reverse(pending)).state is State.REVERSED
    assert service.reversals == [pending.transaction_id]


async def test_a_ledger_out_of_its_place_permits_no_reversal(service: Service, tmp_path: Path) -> None:
    """The next process, over a backup that was put in its place, does not know of it and would send it once more."""
    path = tmp_path / "sales.db"
    async with (
        aclosing(await open_ledger(f"sqlite:{path}")) as ledger,
        tracking(service, ledger, PROFILE) as tracker,
    ):
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending, ledger=ledger)).paid
        path.rename(tmp_path / "old.db")
        await error_of(payclient.LedgerUnavailableError, tracker.reverse(pending), match="must stay at")
        assert not service.reversals
        (tmp_path / "old.db").rename(path)
        assert (await tracker.reverse(await pending_of(tracker))).state is State.REVERSED
    assert service.reversals == [1000]
