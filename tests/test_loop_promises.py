"""The half with the loop: what a second notification, a closing, a gone caller or a late write must not lose."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, HookedLedger, SharedLedger
from fake_service import (
    PROFILE,
    FakeService,
    Held,
    answer,
    answers,
    error_of,
    events_of,
    form,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    record_in,
    refusal,
    refused,
    refuses,
    sale,
    selling,
    tracking,
    when,
)
from payclient.batch import charge_all
from payclient.clock import SystemClock, within
from payclient.events import DecidedAccepted, DecidedCancelled, DecidedRefused, Evidence, Recovered
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

Receipt, State = payclient.Receipt, payclient.State
pytestmark = pytest.mark.usefixtures("delays")

#: One query a minute: whoever comes second waits.
SCARCE = attrs.evolve(PROFILE, queries_per_minute=1)
#: Nobody can be queried.
NO_QUERY = attrs.evolve(PROFILE, status=None)


class Withheld(FakeService):
    """A service whose answers to queries are held back while `open` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        response = await super().__call__(request, before_send)
        if request.method == "GET":
            await self.open.wait()
        return response


@pytest.fixture
def service() -> Withheld:
    return Withheld()


async def turns(true: Callable[[], object]) -> None:
    """Let the loop turn until it is so; no time passes."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


async def in_turns(work: Awaitable[payclient.Outcome]) -> payclient.Outcome:
    """What comes of it while no time passes."""
    task = asyncio.ensure_future(work)
    await turns(task.done)
    return await task


async def decide_as_operator(service: FakeService, is_refused: bool = True) -> None:
    """A person's word, which no process hears of."""
    decision = DecidedRefused if is_refused else DecidedAccepted
    record = await record_in(service.ledger)
    await service.ledger.apply(record, decision(at=service.clock.time(), actor="ana", reason="seen"))


# --- Notifications


@pytest.mark.parametrize("seconds", [0.2, 2.0, 600.0], ids=["soon", "while its query runs", "late"])
async def test_every_late_notification_earns_a_query(service: Withheld, seconds: float) -> None:
    """However long after the forged one's query the genuine one comes; and the two cost few."""
    async with refused(service, refuses(22)) as tracker:
        if seconds == 2.0:
            service.open.clear()  # the service has answered then, and the answer is on its way
        assert await tracker.notify(hint(999)) is Receipt.LATE
        await service.clock.advance(seconds)
        assert len(service.queries) <= 2
        service.add_sale()
        assert await tracker.notify(hint(1000)) is Receipt.LATE
        service.open.set()
        await service.clock.advance(10)
        assert (await pending_of(tracker)).outcome.paid is True
        asked = len(service.queries)
        await service.clock.advance(600)
        assert len(service.queries) == asked


async def test_a_notification_while_a_second_attempt_is_sent_is_for_that_one(service: Withheld) -> None:
    """The first one was refused as existing, and is still to be queried: what it was not named binds the second."""
    async with refused(service, refuses(22, 2061), held := Held()) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await held.there.wait()
        assert await tracker.notify(hint()) is Receipt.EARLY
        record = await record_in(service.ledger)
        assert (record.attempt, record.candidate_ids) == (2, (1000,))
        held.go.set()
        await sending


async def test_a_notification_of_an_old_attempt_leaves_the_new_one_followed(service: Withheld) -> None:
    """As it is written, the refused sale is sent again: what is waited for and queried is the second attempt."""
    waits: list[asyncio.Future[payclient.Outcome]] = []

    async def send_again() -> None:
        pending = await tracker.sale(sale())
        waits.append(asyncio.ensure_future(pending.wait()))
        await asyncio.sleep(0)

    async with refused(service, refuses(22), ledger=HookedLedger(after={"Notified": send_again})) as tracker:
        assert await tracker.notify(hint(2000)) is Receipt.LATE
        await service.clock.advance(5)
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert [(await wait).paid for wait in waits] == [True]


async def test_a_notification_before_the_answer_is_queried_with_it(service: Withheld) -> None:
    """Our own answer comes last: the query is made at once then, and not as the schedule has it."""
    service.scripts = [held := Held()]
    async with tracking(service, schedule=payclient.Fixed(100.0)) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await held.there.wait()
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is Receipt.EARLY
        held.go.set()
        pending = await sending
        assert pending.transaction_id == 1000
        await service.clock.advance(0.5)
        assert pending.outcome.paid is True


async def test_without_a_source_what_was_notified_early_expires_all_the_same(service: Withheld) -> None:
    """Nobody can be asked: the notification ends the wait, and the clock is still written down."""
    service.scripts = [held := Held()]
    async with tracking(service, profile=NO_QUERY) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await held.there.wait()
        assert await tracker.notify(hint()) is Receipt.EARLY
        held.go.set()
        assert (await in_turns((await sending).wait())).paid is None
        await service.clock.advance(301)
        assert (await record_in(service.ledger)).state is State.EXPIRED


# --- Closing


async def test_who_waits_for_a_query_is_let_go_at_the_close(service: Withheld) -> None:
    """`check()` waits for its turn under a tight rate; a tracker that closes keeps nobody waiting."""
    async with tracking(service, profile=SCARCE) as tracker:
        first, second = await tracker.sale(sale("order-1")), await tracker.sale(sale("order-2", "0984111223"))
        await first.check()
        waiting = asyncio.ensure_future(second.check())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
    await turns(waiting.done)
    assert isinstance(waiting.exception(), payclient.TrackerClosedError | None)
    assert waiting.exception() is not None or waiting.result().paid is None


async def test_a_check_under_way_at_the_close_says_what_is_known(service: Withheld) -> None:
    """It is not its caller who is cancelled."""
    async with selling(service) as (_, pending):
        service.open.clear()
        checking = asyncio.create_task(pending.check())
        await turns(lambda: service.queries)
    assert (await checking).state is State.PENDING


# --- A caller that has gone


async def test_what_a_gone_caller_sent_is_followed(service: Withheld) -> None:
    """Nobody waits for it, and the feed has its end all the same."""
    service.scripts = [held := Held()]
    async with tracking(service) as tracker:
        caller = asyncio.ensure_future(tracker.sale(sale()))
        await held.there.wait()
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        held.go.set()
        await service.clock.advance(1)
        service.decide("Aceptado")
        await service.clock.advance(120)
        assert (await record_in(service.ledger)).state is State.ACCEPTED


async def charged(tracker: payclient.Tracker) -> list[payclient.ChargeResult]:
    """The results of a batch of that one sale."""
    async with charge_all(tracker, [sale()]) as results:
        return [result async for result in results]


@pytest.mark.parametrize("fails", [True, False])
async def test_who_asks_for_a_rows_sale_gets_what_the_batch_gets(service: Withheld, fails: bool) -> None:
    """The same id by `sale` while a batch sends it: one POST, and nobody hangs, also where the row is refused."""
    service.scripts = [held := Held(refuses(22) if fails else FakeService.take)]
    async with tracking(service) as tracker:
        batch = asyncio.ensure_future(charged(tracker))
        await held.there.wait()
        beside = asyncio.ensure_future(tracker.sale(sale()))
        held.go.set()
        if not fails:
            service.decide("Aceptado")
        for _ in range(100):
            await service.clock.advance(1)
        assert batch.done()
        assert beside.done()
        await batch
        if fails and beside.exception() is not None:
            assert isinstance(beside.exception(), payclient.NotCreatedError)
        else:
            assert beside.result().transaction_id == 1000
    assert service.posted["order-17"] <= 1 + fails


async def test_who_asks_beside_a_row_whose_batch_is_cancelled_does_not_hang(service: Withheld) -> None:
    """The batch's task is cancelled in its send: who waits for the same send is let go, and the sale is not lost."""
    service.scripts = [held := Held()]
    async with tracking(service) as tracker:
        before = asyncio.all_tasks()
        batch = asyncio.ensure_future(charged(tracker))
        await held.there.wait()
        rows = asyncio.all_tasks() - before
        beside = asyncio.ensure_future(tracker.sale(sale()))
        for _ in range(10):
            await asyncio.sleep(0)
        for task in rows:
            task.cancel()
        await turns(lambda: batch.done() and beside.done())
        await asyncio.gather(batch, return_exceptions=True)
        # Raising would mean that nothing was created.
        assert (await beside).state is State.UNKNOWN
    assert service.posted == {"order-17": 1}


async def test_a_form_whose_request_others_cancel_is_prepared_anew(service: Withheld) -> None:
    """Its caller was not cancelled, and nobody has its links: a bare cancellation would end a web view unanswered."""
    service.scripts = [held := Held()]
    async with tracking(service) as tracker:
        before = asyncio.all_tasks()
        preparing = asyncio.ensure_future(tracker.prepare(form()))
        await held.there.wait()
        for task in asyncio.all_tasks() - before - {preparing}:
            task.cancel()
        await error_of(payclient.OutcomeUnknownError, preparing, "prepare another form")


async def test_who_joins_a_form_that_others_cancel_gets_a_form(service: Withheld) -> None:
    """Its request has not left: the next one may be prepared. Who joins a sale is told so, and may try again."""
    async with tracking(service) as tracker:
        first: list[asyncio.Task[object]] = [asyncio.ensure_future(tracker.live_form("cart", form))]
        await asyncio.sleep(0)
        first.append(asyncio.ensure_future(tracker.sale(sale())))
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        joining = asyncio.ensure_future(tracker.live_form("cart", form))
        joining_sale = asyncio.ensure_future(tracker.sale(sale()))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        assert (await joining).is_live(service.clock.time())
        await error_of(payclient.NotSentError, joining_sale, "others cancelled it")
        assert all(each.cancelled() for each in first)
    assert (len(service.prepared), service.posted) == (1, {})


# --- Attempts


@asynccontextmanager
async def refused_unheard(
    service: Withheld, ledger: SharedLedger
) -> AsyncIterator[tuple[payclient.Tracker, payclient.Tracker, payclient.PendingSale]]:
    """Two processes, and a lost sale of the first that a person calls refused: neither hears of it."""
    async with (
        selling(service, lost_request, ledger=ledger) as (first, pending),
        tracking(service, SharedLedger(ledger)) as second,
    ):
        assert (await pending_of(second)).state is State.UNKNOWN
        unheard, ledger.watchers[:] = ledger.watchers[:], []
        await decide_as_operator(service)
        ledger.watchers[:] = unheard
        yield first, second, pending
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("looked_up", [False, True], ids=["heard", "looked up"])
async def test_a_new_attempt_elsewhere_ends_the_wait_for_the_old(service: Withheld, looked_up: bool) -> None:
    """Its permit is heard of, or a batch reads the row: who waits for the first does not hang."""
    ledger = SharedLedger()
    async with refused_unheard(service, ledger) as (first, second, pending):
        waiting = asyncio.ensure_future(pending.wait())
        await asyncio.sleep(0)
        if looked_up:
            ledger.watchers.clear()
        assert (await second.sale(sale())).attempt == 2
        if looked_up:
            assert not waiting.done()
            assert (await first.attempts.find(["order-17"]))["order-17"].attempt == 2
        else:
            await service.clock.advance(1)
        assert (await in_turns(waiting)).paid is not True


async def test_a_handle_of_the_old_attempt_leaves_the_new_one_followed(service: Withheld) -> None:
    """The handle takes the first attempt for open: the wait for its successor goes on."""
    async with refused_unheard(service, SharedLedger()) as (first, second, old):
        assert (await second.sale(sale())).attempt == 2  # by the ledger's word, and not its own memory's
        new = await pending_of(first)
        assert (old.attempt, new.attempt) == (1, 2)
        waiting = asyncio.ensure_future(new.wait())
        await asyncio.sleep(0)
        assert (await in_turns(old.wait())).paid is not True
        service.decide("Aceptado")
        await service.clock.advance(10)
        assert (await in_turns(waiting)).paid is True


async def test_a_permit_that_was_not_ours_is_not_called_unsent(service: Withheld) -> None:
    """The commit is uncertain and the row is another process's, which sends: its attempt is left alone."""

    class Uncertain(MemoryLedger):
        async def permit(self, record: Record) -> bool:
            assert await super().permit(attrs.evolve(record, created_at=record.created_at - 1))
            raise payclient.LedgerUnavailableError("the connection was lost")

    async with tracking(service, Uncertain()) as tracker:
        await error_of(payclient.LedgerUnavailableError, tracker.sale(sale()))
        await service.clock.advance(120)
        assert await events_of(service.ledger) == ["Permitted"]
    assert not service.posted


async def test_a_late_decision_of_the_old_attempt_leaves_the_new_one_followed(service: Withheld) -> None:
    """REFUSED, notified and queried late while its successor is pending: the successor's wait still ends."""
    async with refused(service, refuses(22)) as tracker:
        service.open.clear()
        assert await tracker.notify(hint(999)) is Receipt.LATE
        await service.clock.advance(1)
        held, service.open = service.open, asyncio.Event()
        service.open.set()  # for the query that is made before another attempt
        pending = await tracker.sale(sale())
        waiting = asyncio.ensure_future(pending.wait())
        held.set()
        await service.clock.advance(5)
        service.decide("Aceptado")
        for _ in range(60):
            await service.clock.advance(1)
        assert (await in_turns(waiting)).paid is True


async def test_a_handle_of_a_refused_attempt_keeps_its_own_outcome(service: Withheld) -> None:
    """Charged again under the same id: what was refused is refused, whatever becomes of the next attempt."""
    async with refused(service, refuses(22)) as tracker:
        old = await pending_of(tracker)
        assert (await tracker.sale(sale())).attempt == 2
        assert (await in_turns(old.wait())).state is State.REFUSED


async def test_a_conflict_is_noted_of_each_attempt(service: Withheld) -> None:
    """What was said of the first attempt silences nothing about the second."""
    async with tracking(service) as tracker:
        for _ in range(2):
            service.sales.clear()  # what is found otherwise than it was sent lets no other attempt through
            service.scripts = [refuses(22)]
            await error_of(payclient.NotCreatedError, tracker.sale(sale()))
            service.add_sale(amount=7)
            await tracker.notify(hint(1000))
            await service.clock.advance(5)
    history = await service.ledger.history("order-17")
    assert [each.attempt for each in history if each.event == "Conflicted"] == [1, 2]


async def test_a_cancelled_transaction_that_was_named_hides_no_paid_one(service: Withheld) -> None:
    """Before a refused sale is sent again, everything under its id is looked at."""
    async with refused(service, refuses(22)) as tracker:
        service.add_sale(state="Cancelado")
        await tracker.notify(hint(1000))
        await service.clock.advance(5)
        service.add_sale(1001)
        assert (await tracker.sale(sale())).outcome.paid is True
    assert not service.posted


# --- Never early


async def test_the_window_counts_from_the_answer(service: Withheld) -> None:
    """The service may have begun it as late as it answered."""
    began = service.clock.time()
    async with selling(service, when(lambda: service.clock.advance(20))) as (tracker, pending):
        assert pending.expires_at == began + 20 + 300
        await service.clock.advance(299)
        assert (await pending_of(tracker)).state is State.PENDING
        await service.clock.advance(2)
        assert (await pending_of(tracker)).state is State.EXPIRED


async def test_what_a_crash_left_in_its_send_is_followed_by_whoever_enters(service: Withheld) -> None:
    """It may have reached the service as late as the total time-out. Nobody asks for it: it is decided all the same."""
    began = service.clock.time()
    record = Record(client_transaction_id="order-17", created_at=began, amount=1150, currency="USD")
    assert await service.ledger.permit(record)
    await service.clock.advance(10)
    async with tracking(service, service.ledger) as tracker:
        found = await pending_of(tracker)
        assert (found.state, found.expires_at) == (State.UNKNOWN, began + 30 + 300)
    service.add_sale()
    async with tracking(service, service.ledger):
        await service.clock.advance(120)
    newest = await record_in(service.ledger)
    assert (newest.state, newest.transaction_id) == (State.ACCEPTED, 1000)


async def test_the_window_of_a_sale_counts_from_its_latest_send(service: Withheld) -> None:
    """The answer repeats another sale's id from before a restart: ours may have been begun all the same."""
    async with tracking(service) as tracker:
        await tracker.sale(sale("order-16", "0984111223"))
    async with selling(service, answers(200, {"transactionId": 1000}), ledger=service.ledger) as (_, pending):
        assert (pending.state, pending.expires_at) == (State.UNKNOWN, service.clock.time() + 30 + 300)


async def test_a_wall_clock_that_is_set_forward_amid_a_send_ends_no_window_early(service: Withheld) -> None:
    """By an hour, and the answer is lost: its customer has the whole window, and the wait lasts as long."""
    script = when(lambda: service.clock.jump_wall(3600), lost_request)
    async with selling(service, script, profile=NO_QUERY) as (_, pending):
        assert (pending.state, pending.expires_at) == (State.UNKNOWN, service.clock.time() + 300)
        waiting = asyncio.create_task(pending.wait())
        await service.clock.advance(290)
        assert not waiting.done()
        await service.clock.advance(60)
        assert (await waiting).paid is None


async def test_a_wall_clock_set_back_between_two_runs_keeps_no_wait_for_ever(service: Withheld) -> None:
    """By its record the sale ends tomorrow: it is over a whole life from now, all the same."""
    async with selling(service):
        pass
    service.clock.jump_wall(-86_400)
    async with tracking(service, service.ledger) as tracker:
        outcome = await outcome_of(service, await pending_of(tracker), 900)
        assert (outcome.state, outcome.paid) == (State.EXPIRED, None)


# --- What the ledger could not take


class Flaky(FailingLedger):
    """Fails at what it is told to."""

    def __init__(self, *failing: str) -> None:
        super().__init__(lambda name: name in self.failing)
        self.failing = {*failing}

    async def full_behind_it(
        self, service: FakeService, request: HttpRequest, before_send: BeforeSend
    ) -> HttpResponse:
        """A script: the sale is permitted and created, and from then on nothing can be written."""
        response = await service.take(request, before_send)
        self.failing = {"apply"}
        return response


async def test_a_late_answer_that_was_decided_otherwise_ends_the_wait(service: Withheld) -> None:
    """Nobody can be queried, and nothing was heard: what a person decided is read as the answer is written."""
    ledger = Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger, profile=NO_QUERY) as (_, pending):
        waiting = asyncio.ensure_future(pending.wait())
        ledger.failing.clear()
        at = service.clock.time()
        await ledger.apply(await record_in(ledger), Recovered(at=at, expires_at=at + 330))
        await decide_as_operator(service, is_refused=False)
        await service.clock.advance(10)
        assert (await in_turns(waiting)).paid is True


@pytest.mark.parametrize("is_sent_again", [False, True])
async def test_a_late_answer_that_created_what_is_called_refused_raises_an_alarm(
    service: Withheld, caplog: pytest.LogCaptureFixture, is_sent_again: bool
) -> None:
    """A person let it be charged again as the answer could not be written: its transaction may be paid, too."""
    ledger = Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger, profile=NO_QUERY):
        ledger.failing.clear()
        at = service.clock.time()
        await ledger.apply(await record_in(ledger), Recovered(at=at, expires_at=at + 330))
        await decide_as_operator(service, is_refused=True)
        if is_sent_again:  # by another process
            fresh = Record(client_transaction_id="order-17", attempt=2, amount=1150, currency="USD")
            assert await ledger.permit(fresh)
        await service.clock.advance(10)
        words = "called unpaid, and yet created as transaction 1000"
        assert [each.levelname for each in caplog.records if words in each.message] == ["CRITICAL"]
        newest = (await ledger.history("order-17"))[-1]
        assert (newest.attempt, newest.detail) == (1, f'{{"what": "{words}", "created_id": 1000}}')


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_was_created_though_it_is_called_refused_is_not_sent_again(
    service: Withheld, is_restarted: bool
) -> None:
    """The service's own answer says that it exists: it is followed, and looked at before another attempt."""
    ledger = Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger):
        service.status_scripts = [lambda: refusal(0, status=503)] * 9
        ledger.failing.clear()
        at = service.clock.time()
        await ledger.apply(await record_in(ledger), Recovered(at=at, expires_at=at + 330))
        await decide_as_operator(service, is_refused=True)
        await service.clock.advance(10)
        service.decide("Aceptado")
        service.status_scripts.clear()
        if not is_restarted:
            await service.clock.advance(400)
            assert (await record_in(ledger)).state.paid
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale())).outcome.paid
    assert service.posted == {"order-17": 1}


async def test_what_was_created_though_it_is_called_cancelled_is_queried(service: Withheld) -> None:
    """A person called it unpaid as the answer could not be written: the customer pays it all the same."""
    ledger = Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger):
        ledger.failing.clear()
        at = service.clock.time()
        unknown = await ledger.apply(await record_in(ledger), Recovered(at=at, expires_at=at + 330))
        await ledger.apply(unknown, DecidedCancelled(at=at, actor="ana", reason="seen"))
        service.decide("Aceptado")
        await service.clock.advance(10)
        assert (await record_in(ledger)).state is State.ACCEPTED


@pytest.mark.parametrize("queries", [True, False])
async def test_what_was_created_is_not_sent_again_where_its_own_id_cannot_be_queried(
    service: Withheld, queries: bool
) -> None:
    """By the transaction that the answer names it is found; without any query nobody can say that it is not paid."""
    assert PROFILE.status is not None
    by_transaction = attrs.evolve(PROFILE.status, by_client_transaction_id=None)
    profile, ledger = attrs.evolve(PROFILE, status=by_transaction if queries else None), Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger, profile=profile) as (tracker, _):
        service.decide("Aceptado")
        ledger.failing.clear()
        at = service.clock.time()
        await ledger.apply(await record_in(ledger), Recovered(at=at, expires_at=at + 330))
        await decide_as_operator(service, is_refused=True)
        await service.clock.advance(10)
        if queries:
            assert (await tracker.sale(sale())).outcome.paid
        else:
            await error_of(payclient.NotSentError, tracker.sale(sale()), match="was created")
    assert service.posted == {"order-17": 1}


async def test_an_unwritten_answer_names_its_id_to_the_first_query(service: Withheld) -> None:
    """Its transaction id is what the query goes by, though the ledger does not have it yet."""
    ledger = Flaky()
    async with selling(service, ledger.full_behind_it, ledger=ledger):
        await service.clock.advance(40)
        assert "/api/Sale/1000" in service.queries
        ledger.failing.clear()
        await service.clock.advance(60)


@pytest.mark.parametrize("which", ["wall", "monotonic"])
async def test_a_process_that_stood_still_sends_nothing(service: Withheld, which: str) -> None:
    """By whichever of its clocks it sees that: a suspended machine stops one of them."""

    async def stand_still() -> None:
        if which == "wall":
            service.clock.jump_wall(31)
        else:
            await service.clock.advance(31)
            service.clock.jump_wall(-31)

    async with tracking(service, HookedLedger(after={"Permitted": stand_still})) as tracker:
        await error_of(payclient.NotSentError, tracker.sale(sale()), match="stopped for 31 s")
    assert not service.posted
    record = await record_in(service.ledger)
    assert (record.state, record.evidence) == (State.REFUSED, Evidence.NOT_SENT)


# --- The last queries


async def test_an_exhausted_wait_ends_though_the_ledger_cannot_be_read(service: Withheld) -> None:
    """What is known is true all the same."""
    fails: set[str] = set()
    async with selling(service, lost_answer, ledger=FailingLedger(fails.__contains__)) as (_, pending):
        service.instead = lambda path: answer(500, {})
        assert (await outcome_of(service, pending)).state is State.UNKNOWN
        fails.add("get")
        assert (await in_turns(pending.wait())).state is State.UNKNOWN


async def test_an_exhausted_wait_begins_again_and_ends_at_once(service: Withheld) -> None:
    """Who waits once more for a sale of which nothing more is queried hears what is known, also an operator's word."""
    async with selling(service) as (_, pending):
        assert (await outcome_of(service, pending)).paid is None
        assert (await in_turns(pending.wait())).paid is None
        await decide_as_operator(service)
        assert (await in_turns(pending.wait())).paid is False


async def test_a_hint_about_what_had_its_last_query_ends_no_wait_of_the_next_process(
    service: Withheld,
) -> None:
    """It asks anew, and waits for the answer: the notification of a payment brings a query first."""
    ledger = MemoryLedger()
    async with selling(service, ledger=ledger) as (_, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.LAST_QUERY
    async with tracking(service, ledger) as tracker:
        wait = asyncio.ensure_future((await pending_of(tracker)).wait())
        await service.clock.advance(0.1)
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is Receipt.MATCHED
        await service.clock.advance(2)
        assert (await wait).paid is True


@pytest.mark.parametrize(("state", "paid"), [("Aceptado", True), ("Pendiente", None)])
async def test_what_a_late_query_finds_ends_the_wait_of_the_same_attempt(
    service: Withheld, state: str, paid: bool | None
) -> None:
    """Whichever query finds the end of a sale, everybody who waits for it hears of it."""
    async with selling(service) as (tracker, pending):
        waiting = [asyncio.ensure_future(pending.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await tracker.notify(hint())
        service.decide(state)
        for _ in range(500):
            await service.clock.advance(1)
        assert [(await in_turns(each)).paid for each in waiting[1:]] == [paid, paid]
        assert waiting[0].cancelled()


@pytest.mark.parametrize("another", [False, True], ids=["by its tracker", "by another of its process"])
async def test_a_sale_that_is_being_sent_is_left_to_its_sender(service: Withheld, another: bool) -> None:
    """Whoever looks it up or enters meanwhile neither queries it nor takes it over: the answer tells."""
    service.scripts = [held := Held()]
    async with tracking(service, ledger := SharedLedger()) as first:
        sending = asyncio.ensure_future(first.sale(sale()))
        await held.there.wait()
        async with tracking(service, ledger) if another else nullcontext(first) as second:
            assert (await pending_of(second)).state is State.SENDING
            await service.clock.advance(25.0)
            assert service.queries == []
            held.go.set()
            assert (await sending).transaction_id == 1000
    assert await events_of(ledger) == ["Permitted", "Created"]


@pytest.mark.parametrize("window", [300.0, 60.0])
async def test_a_created_sale_that_is_not_found_for_long_is_an_event(
    service: Withheld, window: float
) -> None:
    """Not found is not pending: tolerated for 15 of 300 seconds, then noted once, and it decides nothing.

    A service may list what its customers have answered, and no more: the history is not read at each query.
    """
    async with selling(service, profile=attrs.evolve(PROFILE, sale_window=window)) as (_, pending):
        read = AsyncMock(wraps=service.ledger.history)
        service.ledger.history = read  # type: ignore[method-assign]
        shipped = service.sales.copy()
        service.sales.clear()
        await service.clock.advance(window / 30)
        assert await events_of(service.ledger) == ["Permitted", "Created"]
        await service.clock.advance(window / 20)
        assert await events_of(service.ledger) == ["Permitted", "Created", "Conflicted"]
        await service.clock.advance(window / 4)
        assert read.await_count < 10 < len(service.queries)
        assert await events_of(service.ledger) == ["Permitted", "Created", "Conflicted"]
        service.sales.update(shipped)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_a_sale_that_was_found_since_is_missing_anew(service: Withheld) -> None:
    """Two silences of ten seconds are no long one: what a query found in between ends the first."""
    async with selling(service) as (_, pending):
        shipped = service.sales.copy()
        for each in ({}, shipped, {}, shipped):
            service.sales = dict(each)
            await service.clock.advance(10)
        assert pending.state is State.PENDING
        assert "Conflicted" not in await events_of(service.ledger)


@pytest.mark.parametrize(("phone", "suspected"), [("0984111222", True), ("0984111223", False)])
async def test_a_busy_customer_is_evidence_of_nobody_else(
    service: Withheld, phone: str, suspected: bool
) -> None:
    """Code 2061 is noted of an unknown sale of the same customer, and decides nothing."""
    async with selling(service, lost_request, refuses(22, 2061)) as (tracker, unknown):
        await error_of(payclient.CustomerBusyError, tracker.sale(sale("order-18", phone)))
        assert unknown.state is State.UNKNOWN
    assert await events_of(service.ledger) == ["Permitted", "Lost", *["Suspected"] * suspected]


async def test_a_candidate_that_the_service_does_not_repeat_is_bound(service: Withheld) -> None:
    """Queried by the id that a notification named, the service repeats our client id only."""

    def short(path: str) -> HttpResponse:
        sold = service.sales[1000]
        found = {name: value for name, value in sold.items() if name != "transactionId"}
        return answer(200, found if path == "/api/Sale/1000" else [])

    service.instead = short
    async with selling(service, lost_answer) as (tracker, pending):
        service.decide("Aceptado")
        await tracker.notify(hint())
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1000)


async def test_a_429_uses_up_no_last_query(service: Withheld) -> None:
    """More of them than there are last queries: the wait goes on until the service answers."""
    async with selling(service) as (_, pending):
        await service.clock.advance(300)
        service.status_scripts = [lambda: refusal(0, status=429, retry_after=1)] * 10
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_a_refusal_as_existing_is_queried_once_more_and_no_more(service: Withheld) -> None:
    """An index that lags has caught up by then; what is not there then is not asked for ever."""
    async with refused(service, refuses(22, 2061)):
        await service.clock.advance(3600)
    assert len(service.queries) == 2


async def test_a_forged_notification_does_not_use_up_the_later_look(service: Withheld) -> None:
    """What was refused as existing is queried once an index that lags has caught up, whatever was notified before."""
    async with refused(service, refuses(22, 2061)) as tracker:
        await tracker.notify(hint(999))
        await service.clock.advance(10)
        service.add_sale()
        await service.clock.advance(700)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_a_clock_that_is_set_forward_makes_no_sale_live_longer(service: Withheld) -> None:
    """Its answer is lost and it is found an hour later by the wall clock: its window is as long as any."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.clock.jump_wall(3600)
        states = []
        for seconds in (30, 310):
            await service.clock.advance(seconds)
            states.append(pending.state)
    assert states == [State.PENDING, State.EXPIRED]


async def test_a_closed_tracker_watches_its_ledger_no_more(service: Withheld) -> None:
    """The ledger stays open and is read by others: nothing of it wakes a tracker that is closed."""
    ledger = SharedLedger()
    async with tracking(service, ledger):
        assert ledger.watchers
    assert not ledger.watchers


async def test_a_write_that_fails_is_logged(service: Withheld, caplog: pytest.LogCaptureFixture) -> None:
    """The query has found the payment, and the ledger does not take it: one line a minute says so."""
    failing = [""]
    ledger = FailingLedger(lambda name: name in failing)
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        failing.append("apply")
        service.decide("Aceptado")
        await service.clock.advance(50)
        assert [getattr(each, "event", each.message) for each in caplog.records] != []
        failing.clear()
        assert (await outcome_of(service, pending)).paid is True


async def test_a_duplicate_after_an_operators_refusal_is_unknown(service: Withheld) -> None:
    """What the operator thought absent may be there after all: nobody may charge it a third time."""
    async with selling(service, lost_request, refuses(23)) as (tracker, _):
        await tracker.resolve("order-17", as_="refused", actor="ana", reason="not in the portal")
        assert (await tracker.sale(sale())).state is State.UNKNOWN


async def test_what_every_check_of_a_paid_sale_says_is_noted_once(service: Withheld) -> None:
    """The service's report became another sale's: one event and one alarm, however often it is asked."""
    async with selling(service) as (_, pending):
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        service.sales[1000]["amount"] = 7
        for _ in range(3):
            await service.clock.advance(5)
            assert (await in_turns(pending.check())).paid is True
        assert (await events_of(service.ledger)).count("Conflicted") == 1


async def test_work_that_others_cancel_is_late() -> None:
    """A `CancelledError` would end the caller's task, which nobody has cancelled."""
    work = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(within(SystemClock(), 60.0, work))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(TimeoutError):
        await call


async def test_what_is_cancelled_before_it_begins_is_no_warning(service: FakeService) -> None:
    """A factory that names the tasks of a program is not asyncio's eager one: its tasks begin later, or never."""
    asyncio.get_running_loop().set_task_factory(
        lambda loop, work, **options: asyncio.Task(work, loop=loop, **options | {"name": "ours"})
    )
    async with tracking(service) as tracker:
        with warnings.catch_warnings(record=True, action="always") as warned:
            async with charge_all(tracker, [sale("order-1")]):
                """It is left at once."""
            gc.collect()
    assert not [each.message for each in warned]
