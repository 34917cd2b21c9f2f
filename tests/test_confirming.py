"""Forms that come back: recorded, confirmed once and again, and never believed; and requests withdrawn."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, repeat
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qsl

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import MultiDict

import payclient
from fake_ledgers import FailingLedger, HookedLedger, HookedSharedLedger, SharedLedger, disk_full, once
from fake_service import (
    FakeService,
    Gate,
    Held,
    alarms,
    answer,
    collected_by,
    error_of,
    events_of,
    form,
    held_by,
    hint,
    lost_answer,
    outcome_of,
    pending_of,
    posted,
    record_in,
    refusal,
    reset,
    sale,
    selling,
    tracking,
    two_processes,
    unlisted,
)
from payclient.events import Conflicted, DecidedRefused, Evidence, FoundAccepted, Notified, Prepared, Returned
from payclient.ledger import Change, Ledger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile, UndoProfile
from payclient.session import PaySession
from payclient.tracking import leases
from payclient.tracking.recovery import LOOK_BACK
from payclient.tracking.returned_form import MOST_IDS, MOST_REFUSALS, ReturnedForm
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from raw_server import turns

State = payclient.State
Said = Callable[[], HttpResponse]

#: As the preset, but that status queries need not wait for one another.
PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)
assert PROFILE.status is not None
STATUS = PROFILE.status
#: Nobody can be asked about a form by our own id.
BLIND = attrs.evolve(PROFILE, status=attrs.evolve(STATUS, by_client_transaction_id=None))

pytestmark = pytest.mark.usefixtures("delays")


@asynccontextmanager
async def prepared(
    service: FakeService, profile: payclient.ServiceProfile = PROFILE, ledger: Ledger | None = None
) -> AsyncIterator[payclient.Tracker]:
    """A tracker that has prepared one form, for a cart."""
    async with tracking(service, ledger, profile) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
        yield tracker


async def the_end(
    service: FakeService, tracker: payclient.Tracker, seconds: float = 3000.0
) -> payclient.Outcome:
    """What becomes of that form within so many seconds."""
    return await outcome_of(service, await pending_of(tracker, "form-1"), seconds)


async def until(service: FakeService, done: Callable[[], bool], seconds: int = 400) -> None:
    """Let virtual time pass."""
    for _ in range(seconds):
        if done():
            return
        await service.clock.advance(1.0)
    pytest.fail("it never came to that")


async def pass_by(service: FakeService, seconds: int) -> None:
    """Let so many seconds go by, and as many rounds of the leases, which go by real time."""
    for _ in range(seconds):
        await service.clock.advance(1.0)
        await asyncio.sleep(0.005)


@pytest.fixture
def lent_by_clock(quick_rounds: None, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do, and a lease lasts by the clock of the test."""
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())


async def told_elsewhere(
    service: FakeService, ledger: SharedLedger, kind: type[Notified | Returned] = Returned, number: int = 5001
) -> None:
    """Name a payment of the form to another process, which writes that down and dies."""
    event = kind(at=service.clock.time(), transaction_id=number)
    await SharedLedger(ledger).apply(await record_in(ledger, "form-1"), event)


async def passing(service: FakeService, call: Coroutine[None, None, payclient.Outcome]) -> payclient.Outcome:
    """What a call gives while virtual time passes."""
    work = asyncio.create_task(call)
    await until(service, work.done)
    return await work


def back(number: int, identifier: str = "form-1") -> str:
    """What a browser brings back; 0: the customer closed the form."""
    return f"id={number}&clientTransactionId={identifier}"


async def state_of(service: FakeService) -> payclient.State:
    """What the ledger has of that form."""
    return (await record_in(service.ledger, "form-1")).state


# --- Paid


async def test_a_paid_form_that_comes_back_is_confirmed(service: FakeService) -> None:
    """Recorded first, then confirmed; the page loaded again gives the same outcome and asks no more."""
    async with prepared(service) as tracker:
        # Its parameters stand behind those of the shop's own address, also in Flask's mapping, in whatever letter case.
        outcome = await tracker.returned(MultiDict(parse_qsl(f"id=77&{service.pay('form-1')[1:]}")))
        assert (outcome.paid, outcome.state, outcome.transaction_id) == (True, State.ACCEPTED, 5001)
        assert outcome.report is not None
        for query in (
            {"id": "5001", "clientTransactionId": "form-1"}, "id=77&cart=9&ID=5001&clienttransactionid=form-1",
        ):  # fmt: skip
            again = await tracker.returned(query)
            assert attrs.evolve(again, report=outcome.report) == outcome
    assert await events_of(service.ledger, "form-1") == ["Permitted", "Prepared", "Returned", "FoundAccepted"]
    assert service.confirms == {5001: 1}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_confirmation_is_logged_with_its_status(
    service: FakeService, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is not valid, and one that may not confirm, are mended in different places."""
    service.confirm_scripts = [lambda: answer(status, {"message": "no"})]
    async with prepared(service) as tracker:
        await passing(service, tracker.returned(service.pay("form-1")))
        assert (await the_end(service, tracker)).paid
    assert f"confirmations are refused ({status})" in caplog.text


def confirm_without_names(service: FakeService, number: int, *, listed: bool = True, **odd: object) -> None:
    """The next confirmation is carried out, and its answer does not say whose payment it is."""
    named = {"clientTransactionId", "amount", "currency"}
    told = {name: each for name, each in service.sales[number].items() if name not in named} | odd
    service.confirmed.add(number)
    service.confirm_scripts = [lambda: answer(200, told)]
    if not listed:
        others = [each for other, each in service.sales.items() if other != number]
        service.instead = lambda path: answer(200, others) if "/client/" in path else None


@pytest.mark.parametrize(
    ("before", "odd"), [([], {}), (["Reviewing"], {}), (["Pending"], {}), ([], {"amount": "1150"})]
)
async def test_a_payment_that_is_confirmed_without_a_name_is_found_by_our_id(
    service: FakeService, before: list[str], odd: dict[str, object]
) -> None:
    """Also where the customer had closed the form, so that nobody queries it any more."""
    async with prepared(service) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
        service.pay("form-1")
        confirm_without_names(service, 5001, listed=False, **odd)
        states = [{"transactionId": 5001, "transactionStatus": each} for each in before]
        service.confirm_scripts[:0] = [partial(answer, 200, each) for each in states]
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(10)
        service.instead = lambda path: None
        await service.clock.advance(20)
        assert await state_of(service) is State.ACCEPTED
        await collected_by(tracker, "cart-1")
    assert service.confirms == {5001: 1 + len(before)}


@pytest.mark.parametrize("closed", [False, True])
async def test_a_declined_card_cancels_no_form_of_which_a_payment_was_confirmed_without_a_name(
    service: FakeService, closed: bool
) -> None:
    """The payment is listed late: until then nobody knows."""
    async with prepared(service) as tracker:
        if closed:
            await tracker.returned(back(0))
        service.pay("form-1", transactionStatus="Canceled")
        service.pay("form-1", 5002)
        confirm_without_names(service, 5002, listed=False)
        await tracker.returned(back(5002))
        await service.clock.advance(60)
        await held_by(tracker, "cart-1")
        service.instead = lambda path: None
        await service.clock.advance(60)
        assert await state_of(service) is State.ACCEPTED
    assert service.confirms == {5002: 1}


async def test_a_confirmation_answered_without_its_number_may_be_anothers(service: FakeService) -> None:
    """A proxy may give the answer to the wrong request, and the service gives the payment back."""
    async with prepared(service) as tracker:
        query = service.pay("form-1")
        service.confirm_scripts = [lambda: answer(200, {"transactionStatus": "Approved"}), *[reset] * 1000]
        await passing(service, tracker.returned(query))
        await service.clock.advance(2000)
        assert (await state_of(service)) is State.CANCELLED
    assert not service.confirmed


async def test_a_paid_form_whose_browser_never_came_back_is_confirmed_too(service: FakeService) -> None:
    """The status query finds it paid, which is not enough: it would be reversed."""
    async with prepared(service) as tracker:
        await service.clock.advance(60)
        service.pay("form-1")
        assert (await the_end(service, tracker)).paid is True
        assert service.confirmed == {5001}
        assert service.clock.monotonic() < 120


async def test_a_form_is_not_accepted_while_its_confirmation_is_unknown(service: FakeService) -> None:
    """The query says Approved and no confirmation comes through: nobody knows, until it is reversed."""
    service.confirm_scripts = [reset] * 1000
    async with prepared(service) as tracker:
        service.pay("form-1")
        pending = await pending_of(tracker, "form-1")
        waiting = asyncio.create_task(pending.wait())
        await service.clock.advance(250)
        assert (pending.state, waiting.done()) == (State.PENDING, False)
        await until(service, waiting.done)
        assert (await waiting).paid is False


async def test_what_stands_after_the_window_is_believed(service: FakeService) -> None:
    """No confirmation is taken, and yet it is not reversed: then the status tells."""
    service.confirm_scripts = [reset] * 1000
    service.reverse_late = lambda: None  # type: ignore[method-assign]  # this service forgets to
    async with prepared(service) as tracker:
        service.pay("form-1")
        assert (await the_end(service, tracker)).paid is True
        assert service.clock.monotonic() > 600  # the window, and as much for a service that reverses late


@pytest.mark.parametrize("profile", [PROFILE, BLIND])
async def test_a_crash_between_return_and_confirm_is_recovered(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """The return is on record; the next entry confirms it, also when the form has expired meanwhile."""
    async with prepared(service, profile):
        pass
    ledger, at = service.ledger, service.clock.time()
    record = await record_in(ledger, "form-1")
    service.pay("form-1")
    for transaction_id in (999, 5001):  # the first is forged
        await ledger.apply(record, Returned(at=at, transaction_id=transaction_id))
    async with tracking(service, ledger, profile) as tracker:
        assert (await the_end(service, tracker, 100)).paid is True
    assert 5001 in service.confirmed


async def test_a_return_that_others_write_while_a_form_is_read_is_confirmed(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read began before it, and is answered after it; the process that wrote it is gone."""
    monkeypatch.setattr(leases, "RENEW", 0.02)
    ours = SharedLedger()
    others, gate, read = SharedLedger(ours), Gate(), ours.get_many

    async def slowly(ids: Sequence[str]) -> dict[str, Record]:
        found = await read(ids)
        task = asyncio.current_task()
        if not gate.there.is_set() and task is not None and "_run_rounds" in repr(task.get_coro()):
            await gate()
        return found

    monkeypatch.setattr(ours, "get_many", slowly)
    async with prepared(service, BLIND, ours):
        service.pay("form-1")
        record = await record_in(others, "form-1")
        at = service.clock.time()
        for event in (Conflicted(at=at, what="another's"), Returned(at=at, transaction_id=5001)):
            await others.apply(record, event)
            await gate.there.wait()
        await asyncio.sleep(0)  # it is woken by then
        gate.go.set()
        async with asyncio.timeout(10):
            while 5001 not in service.confirmed:
                await asyncio.sleep(0.01)  # the rounds are in real time
                await service.clock.advance(1.0)


@pytest.mark.parametrize("profile", [PROFILE, BLIND])
@pytest.mark.parametrize("operations", [["history"], ["apply"], ["claim_due"], ["claim_due", "get_many"]])
async def test_a_ledger_that_fails_as_a_process_takes_over_loses_no_form(
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    profile: payclient.ServiceProfile,
    operations: list[str],
) -> None:
    """It is claimed by then, so that no other process confirms it, beside a sale that died as it was being sent."""
    monkeypatch.setattr(leases, "RENEW", 0.02)
    ledger = SharedLedger()
    others, failed = SharedLedger(ledger), asyncio.Event()

    def fail_once(operation: str) -> None:
        works = getattr(others, operation)

        async def fail(*arguments: object) -> object:
            failed.set()
            monkeypatch.setattr(others, operation, works)
            if operation == "claim_due":  # its answer is lost
                await works(*arguments)
            raise payclient.LedgerUnavailableError("gone")

        monkeypatch.setattr(others, operation, fail)

    async with prepared(service, profile, ledger) as tracker:
        await tracker.sale(sale())
    service.pay("form-1")
    await told_elsewhere(service, ledger)
    await ledger.permit(Record(client_transaction_id="died", created_at=service.clock.time()))
    async with tracking(service, others, profile) as other:
        for operation in operations:
            fail_once(operation)
        ledger.holders |= dict.fromkeys(ledger.holders, (None, 0.0))
        await failed.wait()
        await pass_by(service, 100)
        assert (await pending_of(other, "form-1")).outcome.paid is True
        assert (await pending_of(other, "died")).state is State.UNKNOWN
    assert "the ledger failed" in caplog.text


@pytest.mark.usefixtures("quick_rounds")
@pytest.mark.parametrize("reaches", [True, False])
async def test_who_has_no_answer_leaves_a_form_that_came_back_to_others(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, *, reaches: bool
) -> None:
    """Its token was replaced, or its host is cut off, and its customers are not: another process confirms the form."""
    monkeypatch.setattr(leases, "LEASE", 0.02)
    ledger = SharedLedger()

    async def cut_off(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.path.endswith("Prepare"):
            return await service(request, before_send)
        if reaches:
            return answer(401, {"message": "no"})
        raise ConnectionResetError

    async with tracking(service, ledger, BLIND, transport=cut_off) as one:
        await one.prepare(form())
        service.pay("form-1")
        ledger.holders["form-1"] = ledger.name, 0.0
        assert (await passing(service, one.returned(back(5001)))).paid is None
        async with tracking(service, SharedLedger(ledger), BLIND):
            await pass_by(service, 200)
            assert service.confirmed == {5001}


@pytest.mark.usefixtures("looks_at_once")
async def test_what_was_answered_before_a_cancelled_return_is_confirmed_no_more(service: FakeService) -> None:
    """By whatever process looks for abandoned forms, and however often: a forged id must not use up the rate."""
    ledger = SharedLedger()
    async with prepared(service, PROFILE, ledger) as tracker:
        await passing(service, tracker.returned(back(999)))
        await service.clock.advance(60)
        assert service.confirms == {999: MOST_REFUSALS}
        gone = await passing(service, tracker.returned({"clientTransactionId": "form-1", "id": "0"}))
        assert gone.state is State.CANCELLED
        await pass_by(service, 60)
    assert service.confirms == {999: MOST_REFUSALS}


@pytest.mark.usefixtures("quick_rounds")
async def test_what_had_no_answer_is_confirmed_anew_where_another_process_is_told_of_it(
    service: FakeService,
) -> None:
    """It was named before it was paid, and given up in an outage; then its browser comes back to one that dies."""
    service.instead = unlisted
    ledger = SharedLedger()
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, PROFILE, ledger) as tracker:
        await passing(service, tracker.returned(back(5001)))
        await service.clock.advance(400)
        service.confirm_scripts = []
        service.pay("form-1")
        await told_elsewhere(service, ledger)
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.usefixtures("quick_rounds")
async def test_what_had_its_answer_is_confirmed_no_more_where_another_process_is_told_of_it(
    service: FakeService,
) -> None:
    """The holder of the form hears of each event: a forged id that comes again and again uses up no rate."""
    ledger = SharedLedger()
    async with prepared(service, PROFILE, ledger) as tracker:
        await passing(service, tracker.returned(back(999)))
        await service.clock.advance(60)
        await told_elsewhere(service, ledger, Notified, 999)
        await pass_by(service, 60)
    assert service.confirms == {999: MOST_REFUSALS}


@pytest.mark.usefixtures("quick_rounds")
@pytest.mark.parametrize("profile", [PROFILE, BLIND])
async def test_a_return_to_a_process_that_dies_is_confirmed_by_the_holder_of_the_form(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """The holder lives, so that nobody else claims the form, and no query need find what was not confirmed."""
    service.instead = unlisted
    ledger = SharedLedger()
    async with prepared(service, profile, ledger):
        service.pay("form-1")
        await told_elsewhere(service, ledger)
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.parametrize("hears", [True, False], ids=["hears", "deaf"])
@pytest.mark.parametrize("profile", [PROFILE, BLIND])
@pytest.mark.parametrize("seconds", [0, 30])
@pytest.mark.usefixtures("lent_by_clock")
async def test_a_form_that_came_back_is_claimed_once_its_process_is_dead(
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    profile: payclient.ServiceProfile,
    seconds: int,
    hears: bool,
) -> None:
    """Within a minute, not at the end to which a form is put off that nobody can query; `seconds` after it was made."""
    ledger = SharedLedger()
    if not hears:
        monkeypatch.setattr(ledger, "watch", lambda _: lambda: None)

    service.confirm_scripts = [reset] * 1000
    async with prepared(service, profile, ledger) as tracker:
        await pass_by(service, seconds)
        is_put_off = ledger.holders["form-1"][1] > 2 * profile.form_window
        # In tests a process hears also of what it wrote itself, and does not put it off then.
        assert is_put_off is (profile is BLIND and seconds > 0 and not hears)
        service.pay("form-1")
        returning = asyncio.create_task(tracker.returned(back(5001)))
        await pass_by(service, 31)
        await returning
    service.confirm_scripts = []
    async with tracking(service, SharedLedger(ledger), profile):
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.usefixtures("lent_by_clock")
async def test_a_form_that_no_query_finds_expires_once_its_process_is_dead(service: FakeService) -> None:
    """Another process claims it at its end, so that a person can decide it."""
    ledger = SharedLedger()
    async with prepared(service, BLIND, ledger):
        await pass_by(service, 5)
    async with tracking(service, SharedLedger(ledger), BLIND):
        for _ in range(30):
            await service.clock.advance(50)
            await asyncio.sleep(0.02)
        assert (await record_in(ledger, "form-1")).evidence is Evidence.NO_QUERY


@pytest.mark.usefixtures("lent_by_clock")
async def test_a_form_that_no_query_found_is_queried_days_later_by_who_can(service: FakeService) -> None:
    """The profile of its process, which is gone, queries by transaction id alone, and that of the next one by ours."""
    ledger = SharedLedger()
    async with prepared(service, BLIND, ledger):
        service.pay("form-1")
        service.confirmed.add(5001)
        for _ in range(30):
            await service.clock.advance(3000)
            await asyncio.sleep(0.02)
        assert (await record_in(ledger, "form-1")).evidence is Evidence.NO_QUERY
    async with tracking(service, SharedLedger(ledger), PROFILE):
        await service.clock.advance(2 * 86_400)
        await pass_by(service, 30)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.usefixtures("lent_by_clock")
async def test_a_form_that_is_queried_while_it_is_confirmed_is_put_off_no_longer(
    service: FakeService,
) -> None:
    """It was paid after its last query, and is queried in the background until its process dies."""
    ledger = SharedLedger()
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, PROFILE, ledger) as tracker:
        for _ in range(34):
            await service.clock.advance(50)
            await asyncio.sleep(0.005)
        assert (await record_in(ledger, "form-1")).evidence is Evidence.LAST_QUERY
        service.pay("form-1")
        returning = asyncio.create_task(tracker.returned(back(5001)))
        queried = len(service.queries)
        await pass_by(service, 120)
        await returning
        assert len(service.queries) > queried
    service.confirm_scripts = []
    async with tracking(service, SharedLedger(ledger), PROFILE):
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.parametrize(("until_next", "failing"), [(0.05, 0), (0.05, 1), (1000.0, None)])
@pytest.mark.parametrize("is_writing", [False, True])
async def test_a_form_that_comes_back_elsewhere_is_put_off_for_no_year(
    service: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    is_writing: bool,
    until_next: float,
    failing: int | None,
) -> None:
    """Where it was only made, and its holder is yet to write how long nothing is due, or writes that at this moment;
    that write fails, or the next one, and both processes end.
    """
    monkeypatch.setattr(leases, "RENEW", 0.05)
    monkeypatch.setattr(SharedLedger, "_now", lambda _: service.clock.monotonic())
    ledger, gate, writes = SharedLedger(), Gate(), count()
    defer = ledger.defer

    async def slowly(seconds: Mapping[str, float]) -> None:
        await gate()
        if next(writes) == failing:
            disk_full()
        await defer(seconds)

    monkeypatch.setattr(ledger, "defer", slowly)

    service.confirm_scripts = [reset] * 1000
    async with tracking(service, ledger, BLIND) as tracker:
        (watcher,) = ledger.watchers
        ledger.watchers.clear()  # PostgreSQL tells nobody that a form was prepared
        await tracker.prepare(form())
        ledger.watchers.append(watcher)
        service.pay("form-1")
        if is_writing:
            await gate.there.wait()
        await told_elsewhere(service, ledger)
        await service.clock.advance(1)  # its holder is woken
        monkeypatch.setattr(leases, "RENEW", until_next)
        gate.go.set()
        await pass_by(service, 30)
    monkeypatch.setattr(leases, "RENEW", 0.05)
    service.confirm_scripts = []
    async with tracking(service, SharedLedger(ledger), BLIND):
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.usefixtures("lent_by_clock")
async def test_a_form_that_nobody_can_query_is_renewed_no_more(service: FakeService) -> None:
    """Another process can claim it, as one that can query it after an upgrade; its own hears of its last write, too."""
    ledger = SharedLedger()
    async with prepared(service, attrs.evolve(PROFILE, status=None, confirm=None), ledger):
        for _ in range(100):  # of both times
            await service.clock.advance(20.0)
            await asyncio.sleep(0.002)
        assert (await record_in(ledger, "form-1")).evidence is Evidence.NO_QUERY
        await asyncio.sleep(0.05)
        assert ledger.holders["form-1"][1] > service.clock.monotonic() + 3600


@pytest.mark.parametrize("returns", [1330, 1341])
@pytest.mark.usefixtures("lent_by_clock")
async def test_an_expired_form_that_came_back_is_put_off_no_more(service: FakeService, returns: int) -> None:
    """Its queries end then, or right before: the next process confirms it within its window."""
    ledger = SharedLedger()

    service.confirm_scripts = [reset] * 1000
    async with prepared(service, PROFILE, ledger) as tracker:
        await service.clock.advance(returns - 15)
        await pass_by(service, 15)
        service.pay("form-1")
        returning = asyncio.create_task(tracker.returned(back(5001)))
        await pass_by(service, 40)
        await returning
        assert await state_of(service) is State.EXPIRED
    service.confirm_scripts = []
    async with tracking(service, SharedLedger(ledger), PROFILE):
        await pass_by(service, 60)
        assert await state_of(service) is State.ACCEPTED


async def test_an_expired_form_is_still_confirmed(service: FakeService) -> None:
    async with prepared(service, BLIND) as tracker:
        assert (await the_end(service, tracker)).state is State.EXPIRED
        assert (await tracker.returned(service.pay("form-1"))).paid is True


async def test_a_notification_of_a_form_confirms_it(service: FakeService) -> None:
    async with prepared(service, BLIND) as tracker:
        service.pay("form-1")
        assert await tracker.notify(hint(5001, "form-1")) is payclient.Receipt.MATCHED
        assert (await the_end(service, tracker, 10)).paid is True


@pytest.mark.parametrize("fails", [False, True])
async def test_a_hint_of_a_form_that_is_being_prepared_is_not_confirmed(
    service: FakeService, fails: bool
) -> None:
    """Nobody has its links yet: whoever names a payment of it guesses, whether or not the ledger takes that."""
    service.scripts = [held := Held()]
    ledger = HookedLedger(before={"Notified": disk_full} if fails else {})
    async with tracking(service, ledger, PROFILE) as tracker:
        preparing = asyncio.create_task(tracker.prepare(form()))
        await held.there.wait()
        told = tracker.notify(hint(5001, "form-1"))
        if fails:
            await error_of(payclient.LedgerUnavailableError, told)
        else:
            assert await told is payclient.Receipt.EARLY
        await service.clock.advance(5)
        assert not service.confirms
        held.go.set()
        await preparing


async def test_the_mark_of_names_that_were_dropped_is_not_confirmed(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """More than are kept were named to a form as it was prepared: no transaction has the number of the mark."""
    service.scripts = [held := Held()]
    async with tracking(service, profile=BLIND) as tracker:
        preparing = asyncio.create_task(tracker.prepare(form()))
        await held.there.wait()
        for number in range(1, 20):
            named = Notified(at=service.clock.time(), transaction_id=number)
            await service.ledger.apply(await record_in(service.ledger, "form-1"), named)
        held.go.set()
        await preparing
        await service.clock.advance(30)
    assert {1, 19} <= service.confirms.keys()
    assert "form-1: a confirmation failed: InvalidRequestError" not in caplog.messages


@pytest.mark.parametrize("is_another", [False, True])
async def test_a_form_is_confirmed_that_was_named_before_its_answer_was_on_record(
    service: FakeService, is_another: bool
) -> None:
    """The ledger could not take the answer, its customer has paid, and no query finds a form by our own id."""
    ours = HookedSharedLedger(before={"Prepared": once(disk_full)})
    async with (
        tracking(service, ours, BLIND) as tracker,
        tracking(service, SharedLedger(ours), BLIND) as another,
    ):
        await tracker.prepare(form())
        service.pay("form-1")
        told = (another if is_another else tracker).notify(hint(5001, "form-1"))
        assert await told is payclient.Receipt.EARLY
        await service.clock.advance(5)
        assert await state_of(service) is State.ACCEPTED


async def test_no_other_payment_is_confirmed_while_an_answer_is_not_on_record(service: FakeService) -> None:
    """The first was confirmed, and the ledger does not take that; the customer has paid by another card, too."""
    hooks = {"FoundAccepted": disk_full}
    async with prepared(service, ledger=HookedLedger(before=hooks)) as tracker:
        for number in (5001, 5002):
            service.pay("form-1", number)
            await passing(service, tracker.returned(back(number)))
        hooks.clear()
        assert (await the_end(service, tracker)).transaction_id == 5001
    assert service.confirmed == {5001}


async def test_two_declined_cards_keep_each_other_in_no_doubt(service: FakeService) -> None:
    """Both browsers come back at once: once each is answered the form is cancelled, long before the window is over."""
    async with prepared(service, BLIND) as tracker:
        calls = []
        for number in (5001, 5002):
            service.pay("form-1", number, transactionStatus="Canceled")
            calls.append(asyncio.create_task(tracker.returned(back(number))))
        await service.clock.advance(30)
        assert await state_of(service) is State.CANCELLED
        await asyncio.gather(*calls)


# --- Untrusted


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 1}, {"currency": "EUR"}, {"clientTransactionId": "form-2"}, {"transactionId": 5002},
        {"amount": None}, {"clientTransactionId": None}, {"transactionId": None},
    ],
)  # fmt: skip
async def test_another_payment_decides_nothing(service: FakeService, changes: dict[str, object]) -> None:
    """Somebody else's payment, or a cheaper one, under our client transaction id."""
    async with prepared(service, BLIND) as tracker:
        outcome = await tracker.returned(service.pay("form-1", 5001, **changes))
        assert (outcome.paid, outcome.state) == (None, State.PENDING)
    assert "Conflicted" in await events_of(service.ledger, "form-1")


async def test_a_payment_that_is_not_ours_is_confirmed_once(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer said so, which the log calls no status, and stands in the way of no later payment of the form."""
    async with prepared(service, BLIND) as tracker:
        await tracker.returned(service.pay("form-1", 5001, amount=1))
        assert "form-1: a report is not ours: amount 1" in caplog.messages
        assert (await passing(service, tracker.returned(service.pay("form-1", 5002)))).paid is True
    assert service.confirms == {5001: 1, 5002: 1}


async def test_a_flood_costs_a_query_a_second_and_a_bounded_record(service: FakeService) -> None:
    """And what nobody knows is dropped after a few tries."""
    async with prepared(service, BLIND) as tracker:
        flood = [asyncio.create_task(tracker.returned(back(number))) for number in range(1, 500)]
        await until(service, lambda: all(task.done() for task in flood))
        assert service.confirms.total() <= service.clock.monotonic() + 2
        await service.clock.advance(120)
        assert service.confirms.total() <= MOST_IDS * MOST_REFUSALS
        assert (await events_of(service.ledger, "form-1")).count("Returned") <= MOST_IDS
        for number in range(500, 520):
            await passing(service, tracker.returned(back(number)))
            await service.clock.advance(20)
        assert (await passing(service, tracker.returned(service.pay("form-1")))).paid is True


async def test_a_forged_id_keeps_no_declined_form_open(service: FakeService) -> None:
    """The service knew of no such transaction, often enough: the customer's declined card ends the form."""
    async with prepared(service) as tracker:
        await passing(service, tracker.returned(back(2000)))
        await service.clock.advance(60)
        assert service.confirms == {2000: MOST_REFUSALS}
        declined = service.pay("form-1", transactionStatus="Canceled")
        outcome = await passing(service, tracker.returned(declined))
        assert (outcome.paid, outcome.state) == (False, State.CANCELLED)


async def test_a_forged_id_is_left_alone_though_the_ledger_cannot_be_read(service: FakeService) -> None:
    failures: Iterator[bool] = iter(())
    async with prepared(
        service, ledger=FailingLedger(lambda name: name == "get" and next(failures, False))
    ) as tracker:
        await passing(service, tracker.returned(back(999)))
        failures = repeat(True, 90)
        await service.clock.advance(300)
    assert service.confirms == {999: MOST_REFUSALS}


async def test_a_payment_that_is_named_amid_a_flood_is_confirmed(service: FakeService) -> None:
    """More ids came than are kept, and one a moment ago: the genuine one is not on record, yet confirmed."""
    service.instead = unlisted
    async with prepared(service) as tracker:
        for number in range(17):
            await tracker.notify(hint(2000 + number, "form-1"))
            await service.clock.advance(1)
        await service.clock.advance(200)
        service.pay("form-1")
        await tracker.notify(hint(3000, "form-1"))
        assert await tracker.notify(hint(5001, "form-1")) is payclient.Receipt.CONFLICT
        assert (await the_end(service, tracker, 100)).paid is True


async def test_a_flood_of_what_was_declined_costs_a_query_a_second(service: FakeService) -> None:
    """Its customer knows both ids, and each answer would end what is known of the form."""
    async with prepared(service) as tracker:
        for number in (4998, 4999):
            await passing(
                service, tracker.returned(service.pay("form-1", number, transactionStatus="Canceled"))
            )
        for number in range(100):
            await tracker.notify(hint(4998 + number % 2, "form-1"))
            await service.clock.advance(0.1)
        assert service.confirms.total() <= service.clock.monotonic() + 3
        assert len(await events_of(service.ledger, "form-1")) < 60
        await service.clock.advance(60)
        assert (await passing(service, tracker.returned(service.pay("form-1")))).paid is True


async def test_a_declined_page_that_is_loaded_again_and_again_is_written_once(service: FakeService) -> None:
    """Each load names it anew, and the purchase would have an open ask for as long."""
    async with prepared(service, BLIND) as tracker:
        declined = service.pay("form-1", transactionStatus="Canceled")
        loads = []
        for _ in range(20):
            loads.append(asyncio.create_task(tracker.returned(declined)))
            await service.clock.advance(0.5)
        assert not any([(await each).paid for each in loads])
        assert (await events_of(service.ledger, "form-1")).count("Returned") == 1


@pytest.mark.parametrize(
    "query",
    [
        "", "id=5001", "id=5001&clientTransactionId=", "id=5001&clientTransactionId=nobodys",
        "id=5001&clientTransactionId=order-17", "id=-1&clientTransactionId=form-1",
        "id=1e3&clientTransactionId=form-1", "id=99999999999999999999&clientTransactionId=form-1",
        "id=5001&clientTransactionId=form-1%00", "id=%ff&clientTransactionId=form-1",
        "msg=El+dominio+no+esta+registrado", "id=5001&clientTransactionId=form-1&x=" + "x" * 9000,
        {"id": 5001, "clientTransactionId": "form-1"}, {"id": "x" * 9000}, None, 5,
    ],
)  # fmt: skip
async def test_rubbish_is_refused_by_one_error(service: FakeService, query: Any) -> None:
    """Nothing is asked and nothing written; the sale of that name is no form."""
    async with prepared(service) as tracker:
        await tracker.sale(sale())
        error = await error_of(payclient.InvalidNotificationError, tracker.returned(query))
        assert "xxx" not in str(error)
        assert not service.confirms
        assert "Returned" not in await events_of(service.ledger, "form-1")


@given(
    st.text(max_size=80)
    | st.dictionaries(st.sampled_from(["id", "ID", "clientTransactionId", "msg"]), st.text())
)
async def test_any_query_is_an_outcome_or_that_error(query: str | dict[str, str]) -> None:
    async with prepared(FakeService()) as tracker:
        try:
            outcome = await tracker.returned(query, client_transaction_id="form-1")
        except payclient.InvalidNotificationError:
            return
        assert outcome.paid is not True


async def test_the_merchants_own_word_of_the_form_counts(service: FakeService) -> None:
    """Where the query names none; another form's return is refused. Other parameters may be in any encoding."""
    async with prepared(service) as tracker:
        service.pay("form-1")
        with pytest.raises(payclient.InvalidNotificationError, match="another form"):
            await tracker.returned(back(1, "form-2"), client_transaction_id="form-1")
        query = "shop=Jos%E9&id=5001"
        assert (await tracker.returned(query, client_transaction_id="form-1")).paid is True


# --- Cancelled


@pytest.mark.parametrize(
    "query", [back(0), "clientTransactionId=form-1", "msg=no&clientTransactionId=form-1"]
)
async def test_a_cancelled_return_is_believed_where_the_service_knows_of_no_payment(
    service: FakeService, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The browser's word alone is nothing; with "not found" it is cancelled, on evidence of its own.

    Paid after all, it is an alarm: somebody may have been charged twice.
    """
    async with prepared(service) as tracker:
        outcome = await tracker.returned(query)
        assert (outcome.paid, outcome.state, outcome.evidence) == (False, State.CANCELLED, Evidence.UNPAID)
        assert await tracker.returned(query) == outcome
        corrected = await tracker.returned(service.pay("form-1"))
        assert (corrected.paid, corrected.evidence) == (True, Evidence.QUERY)
    assert alarms(caplog) == ["form-1: cancelled, and yet accepted"]
    assert await events_of(service.ledger, "form-1") == [
        "Permitted", "Prepared", "Returned", "Abandoned", "Returned", "FoundAccepted",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "changes", "state"),
    [
        (BLIND, {}, State.PENDING), (PROFILE, {}, State.PENDING), (PROFILE, {"amount": 1}, State.PENDING),
        (PROFILE, {"transactionStatus": "Pending"}, State.PENDING),
        (PROFILE, {"transactionStatus": "Canceled"}, State.CANCELLED),
    ],
)  # fmt: skip
async def test_what_the_service_says_counts_after_a_cancelled_return(
    service: FakeService, profile: payclient.ServiceProfile, changes: dict[str, object], state: State
) -> None:
    """A forged one never hides a payment, which is confirmed; where nobody can be asked nothing is decided."""
    async with prepared(service, profile) as tracker:
        service.pay("form-1", 5001, **changes)
        outcome = await tracker.returned(back(0))
        assert (outcome.state, outcome.paid) == (state, state.paid)
        if profile is PROFILE and not changes:
            assert (await the_end(service, tracker, 10)).paid is True


async def test_a_cancelled_return_holds_no_purchase_for_good(service: FakeService) -> None:
    """Nobody can be asked about the form, and no payment of it was named: its end frees the purchase."""
    async with prepared(service, BLIND) as tracker:
        await tracker.returned(back(0))
        await the_end(service, tracker)
        await service.clock.advance(3000)
        await tracker.sale(sale(), purchase="cart-1")


async def test_an_unanswered_question_after_a_cancelled_return_is_asked_again(service: FakeService) -> None:
    """Also by the next entry."""
    async with prepared(service) as tracker:
        service.status_scripts = [reset] * 3
        assert (await tracker.returned(back(0))).paid is None
    service.status_scripts = []
    async with tracking(service, service.ledger, PROFILE) as tracker:
        assert (await the_end(service, tracker, 10)).evidence is Evidence.UNPAID


async def test_a_closed_form_that_is_paid_is_confirmed_though_no_query_is_answered(
    service: FakeService,
) -> None:
    """Its customer closed it in one tab and paid in another: what is still asked holds up no confirmation."""
    async with prepared(service) as tracker:
        service.status_scripts = [reset] * 1000
        await passing(service, tracker.returned(back(0)))
        assert (await passing(service, tracker.returned(service.pay("form-1")))).paid is True


async def test_a_form_that_its_customer_closed_is_handed_out_again(service: FakeService) -> None:
    """The service does not call it cancelled, so that another tab may pay it: no second form beside it."""
    async with tracking(service, profile=PROFILE) as tracker:
        first = await tracker.live_form("cart-9", form)
        assert await tracker.live_form("cart-9", form) is first
        await tracker.returned(back(0, first.client_transaction_id))
        second = await tracker.live_form("cart-9", form)
        assert second.client_transaction_id == first.client_transaction_id


async def test_a_closed_form_that_is_paid_is_confirmed_by_one_request_at_a_time(service: FakeService) -> None:
    """Its payment comes back twice within a second, and the service does not answer; health says so meanwhile."""
    async with prepared(service) as tracker:
        await tracker.returned(back(0))
        await service.clock.advance(10)
        service.confirm_scripts = [reset]
        query = service.pay("form-1")
        await tracker.returned(query)
        assert (await tracker.health()).unconfirmed == 1
        again = asyncio.create_task(tracker.returned(query))
        await service.clock.advance(0.5)
        assert service.confirms[5001] == 1
        await service.clock.advance(10)
        assert (await again).paid is True


async def test_a_form_that_could_not_be_used_is_said(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The commonest fault there: the page is not of the registered domain. The text itself is not logged."""
    async with prepared(service) as tracker:
        await tracker.returned("msg=Canary&clientTransactionId=form-1")
        with pytest.raises(payclient.InvalidNotificationError, match="registered domain"):
            await tracker.returned("msg=Canary")
    assert "form-1: the form could not be used: is it opened from the registered domain?" in caplog.messages
    assert "Canary" not in caplog.text


async def test_a_refused_form_stays_refused(service: FakeService) -> None:
    """An operator said that nothing was created, and a browser says otherwise: the record stands until it is paid."""
    async with prepared(service, BLIND) as tracker:
        await the_end(service, tracker)
        record = await record_in(service.ledger, "form-1")
        await service.ledger.apply(record, DecidedRefused(at=1.0, actor="Ana", reason="seen"))
        assert (await tracker.returned(back(5001))).state is State.REFUSED
        assert not service.confirms
        service.pay("form-1", transactionStatus="Pending")
        await tracker.notify(hint(5001, "form-1"))
        await service.clock.advance(2)
        service.pay("form-1")
        await service.clock.advance(60)
        assert await state_of(service) is State.ACCEPTED


@pytest.mark.parametrize("profile", [PROFILE, BLIND])
async def test_a_notification_is_confirmed_though_somebody_forged_it_before(
    service: FakeService, profile: payclient.ServiceProfile
) -> None:
    """The ids are guessed easily: a browser brought this one and then none, and its form is paid after that."""
    async with prepared(service, profile) as tracker:
        await tracker.returned(back(5001))
        await service.clock.advance(60)
        await tracker.returned(back(0))
        assert await state_of(service) is (State.CANCELLED if profile is PROFILE else State.PENDING)
        service.pay("form-1")
        assert await tracker.notify(hint(5001, "form-1")) is payclient.Receipt.DUPLICATE
        await service.clock.advance(5)
        assert (await pending_of(tracker, "form-1")).outcome.paid is True
    assert service.confirmed == {5001}


@pytest.mark.parametrize("said", ["no such transaction", "another's"])
async def test_a_forged_notification_that_is_repeated_is_written_and_logged_once(
    service: FakeService, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    """It names the form once a second for as long as anybody likes."""
    another = {"transactionId": 777, "clientTransactionId": "another", "transactionStatus": "Approved"}
    service.confirm_scripts = [lambda: answer(200, another)] * 100 if said == "another's" else []
    async with prepared(service) as tracker:
        for _ in range(100):
            await tracker.notify(hint(777, "form-1"))
            await service.clock.advance(1)
        assert (await events_of(service.ledger, "form-1")).count("Conflicted") == 1
    assert sum("is not ours" in each for each in caplog.messages) == (said == "another's")


async def test_what_somebody_else_decided_is_asked_no_more(service: FakeService) -> None:
    service.confirm_scripts = [reset] * 3
    async with prepared(service, BLIND) as tracker:
        pending = await pending_of(tracker, "form-1")
        await tracker.returned(service.pay("form-1"))
        assert pending.notified_at is not None
        record, tries = await record_in(service.ledger, "form-1"), service.confirms[5001]
        await service.ledger.apply(record, FoundAccepted(at=1.0, transaction_id=5001))
        await service.clock.advance(60)
        assert service.confirms[5001] == tries


async def test_a_form_whose_prepare_is_still_on_its_way_waits_for_it(service: FakeService) -> None:
    """The ledger could not take the answer yet: the verdict comes when it can."""
    async with tracking(service, profile=BLIND) as tracker:
        now = service.clock.time()
        record = Record(
            client_transaction_id="form-1", kind="form", amount=1150, currency="USD", created_at=now
        )
        assert await service.ledger.permit(record)
        service.prepared["form-1"] = {"amount": 1150, "currency": "USD"}
        assert (await tracker.returned(service.pay("form-1"))).state is State.SENDING
        await service.ledger.apply(record, Prepared(at=now, expires_at=now + 600))
        await service.clock.advance(10)
        assert (await pending_of(tracker, "form-1")).outcome.paid is True


async def test_a_fault_of_ours_loses_no_form(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged by its class, and the form asked for again."""
    confirm, faults = PaySession.confirm, [RuntimeError("Canary")]

    async def faulty(self: PaySession, *ids: Any, **options: Any) -> payclient.StatusReport:
        if faults:
            raise faults.pop()
        return await confirm(self, *ids, **options)

    monkeypatch.setattr(PaySession, "confirm", faulty)
    async with prepared(service, BLIND) as tracker:
        assert (await tracker.returned(service.pay("form-1"))).paid is None
        assert (await the_end(service, tracker, 10)).paid is True
    assert "form-1: confirming failed: RuntimeError" in caplog.messages
    assert "Canary" not in caplog.text


# --- The service's moods


@pytest.mark.parametrize(
    ("said", "times", "seconds"),
    [
        (lambda: HttpResponse(429, {"Retry-After": "7"}, b""), 2, 100),
        (lambda: answer(401, {"message": "no"}), 2, 100),
        (lambda: refusal(500), 2, 100),
        (lambda: refusal(20, status=404), 2, 100),
        # Only "no such transaction" leaves an id alone: a service that refuses for another reason is asked on.
        (lambda: refusal(22), MOST_REFUSALS + 1, 200),
        (lambda: answer(200, []), 2, 100),
        (reset, 2, 100),
        ("Pending", 2, 100),
    ],
)
async def test_no_answer_but_a_report_ends_the_asking(
    service: FakeService, said: Said | str, times: int, seconds: int
) -> None:
    """Rate limits, refusals, foreign bodies and silence say nothing about the payment."""
    async with prepared(service, BLIND) as tracker:
        query = service.pay("form-1")
        pending = service.sales[5001] | {"transactionStatus": said}
        service.confirm_scripts = [(lambda: answer(200, pending)) if isinstance(said, str) else said] * times
        outcome = await tracker.returned(query)
        assert (outcome.paid, outcome.state) == (None, State.PENDING)
        assert (await the_end(service, tracker, seconds)).paid is True
    assert service.confirmed == {5001}


async def test_after_the_window_it_gives_up_and_a_reload_begins_anew(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, BLIND) as tracker:
        query = service.pay("form-1")
        await tracker.returned(query)
        await service.clock.advance(400)
        tries = service.confirms[5001]
        assert tries > 20
        await service.clock.advance(600)
        assert service.confirms[5001] == tries
        assert caplog.messages == [
            "form-1: a confirmation failed: OutcomeUnknownError",
            "form-1: not confirmed in time; its status will tell",
        ]
        service.confirm_scripts = []
        assert (await tracker.returned(query)).paid is False  # reversed meanwhile


async def test_a_wall_clock_that_is_set_forward_hides_no_confirmed_payment(service: FakeService) -> None:
    """By two hours, in an outage: the form had been closed, and was paid and confirmed without an answer."""
    async with prepared(service) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
        query = service.pay("form-1")
        service.confirmed.add(5001)
        service.confirm_scripts = service.status_scripts = [reset] * 1000
        await tracker.returned(query)
        service.clock.jump_wall(7200)
        await service.clock.advance(400)
        service.confirm_scripts, service.status_scripts = [], []
        await service.clock.advance(60)
        assert await state_of(service) is State.ACCEPTED


async def test_a_short_window_is_over_sooner(service: FakeService) -> None:
    assert BLIND.confirm is not None
    profile = attrs.evolve(BLIND, confirm=attrs.evolve(BLIND.confirm, window=60.0))
    service.confirm_scripts = [reset] * 1000
    async with prepared(service, profile) as tracker:
        await tracker.returned(service.pay("form-1"))
        await service.clock.advance(80)
        tries = service.confirms[5001]
        await service.clock.advance(200)
        assert service.confirms[5001] == tries


@pytest.mark.parametrize("setting", ["confirm", "returned"])
async def test_a_profile_that_lacks_the_names_says_which(service: FakeService, setting: str) -> None:
    none: dict[str, Any] = {setting: None}
    async with tracking(service, profile=attrs.evolve(PROFILE, **none)) as tracker:
        with pytest.raises(payclient.ConfigurationError, match=rf"\[{setting}\]"):
            await tracker.returned(back(1))


async def test_closing_ends_the_asking(service: FakeService) -> None:
    """Who waits for the first answer is let go; what is open is asked at the next entry."""
    async with prepared(service) as tracker:
        service.confirm_scripts = [reset] * 100
        query = service.pay("form-1")
        await tracker.returned(query)
        waiting = asyncio.create_task(tracker.returned(query))
        await asyncio.sleep(0)
    assert (await waiting).paid is None


async def test_what_is_answered_as_a_tracker_closes_is_not_written_later(service: FakeService) -> None:
    """The ledger takes neither it nor, until then, the answer to a sale, which the closing writes once more."""
    query, last_try = Gate(), Gate()
    tries: list[Callable[[], object]] = [last_try, disk_full]
    ledger = HookedLedger(before={"Created": lambda: tries.pop()(), "Abandoned": disk_full})

    async def shop() -> None:
        transport = query.before(service, "/client/form-1")
        async with tracking(service, ledger, PROFILE, transport=transport) as tracker:
            await tracker.prepare(form())
            await tracker.sale(sale())
            returning = asyncio.create_task(tracker.returned(back(0)))
            await query.there.wait()
        assert (await returning).paid is None

    closing = asyncio.create_task(shop())
    await last_try.there.wait()
    query.go.set()
    await service.clock.advance(1)
    last_try.go.set()
    await closing
    ledger.before = {}
    await service.clock.advance(100)
    assert await events_of(ledger, "form-1") == ["Permitted", "Prepared", "Returned"]


async def test_closing_ends_the_wait_for_a_turn(service: FakeService) -> None:
    """Under a tight rate: whoever came back is let go, though his confirmation has not been asked for yet."""
    async with prepared(service, attrs.evolve(PROFILE, queries_per_minute=1)) as tracker:
        await (await pending_of(tracker, "form-1")).check()
        waiting = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await service.clock.advance(1)
        assert not service.confirms
    async with asyncio.timeout(5):
        assert (await waiting).paid is None


# --- Withdrawing a push


async def test_a_push_that_nobody_answers_is_withdrawn(service: FakeService) -> None:
    """The service's bare `true` is its word; a second call sends nothing."""
    async with selling(service, profile=PROFILE) as (tracker, pending):
        waiting = asyncio.create_task(pending.wait())
        outcome = await tracker.cancel(pending)
        assert (outcome.paid, outcome.state, outcome.evidence) == (False, State.CANCELLED, Evidence.WITHDRAWN)
        assert (await waiting).paid is False
        assert (await tracker.cancel(pending)).paid is False
    assert service.cancels == [{"id": 1000}]


async def test_what_is_named_while_a_withdrawal_is_on_its_way_is_queried_first(service: FakeService) -> None:
    """Only a query by its id can tell of it: of two transactions that a repeated POST had created it was paid."""
    gate = Gate()
    cancel = UndoProfile(by_client_transaction_id="/api/Cancel", client_transaction_id_field="clientId")
    slow, profile = gate.before(service, "/api/Cancel"), attrs.evolve(BLIND, cancel=cancel)
    async with selling(service, posted(1, lost_answer), profile=profile, transport=slow) as (
        tracker,
        pending,
    ):
        withdrawing = asyncio.create_task(tracker.cancel(pending))
        await gate.there.wait()
        service.sales[1000]["transactionStatus"] = "Approved"
        service.status_scripts = [reset]
        await tracker.notify(hint(1000))
        gate.go.set()
        assert (await withdrawing).paid is None
        assert (await outcome_of(service, pending, 60)).paid is True


async def test_what_was_named_before_a_withdrawal_is_queried_first(service: FakeService) -> None:
    """No query by our own id settles what was named: the customer approved it, and the service says `true`."""
    cancel = UndoProfile(by_client_transaction_id="/api/Cancel", client_transaction_id_field="clientId")
    async with selling(service, lost_answer, profile=attrs.evolve(BLIND, cancel=cancel)) as (
        tracker,
        pending,
    ):
        service.status_scripts = [reset]
        await tracker.notify(hint(1000))
        service.sales[1000]["transactionStatus"] = "Approved"
        assert (await passing(service, tracker.cancel(pending))).paid is not False
        assert (await outcome_of(service, pending, 60)).paid is True


@pytest.mark.parametrize("status", [None, attrs.evolve(STATUS, by_transaction_id=None)])
async def test_a_withdrawal_settles_what_was_named_where_no_query_goes_by_that(
    service: FakeService, status: StatusProfile | None
) -> None:
    """The service's answer is all that there will ever be, but for "not found" by our own id."""
    cancel = UndoProfile(by_client_transaction_id="/api/Cancel", client_transaction_id_field="clientId")
    profile = attrs.evolve(PROFILE, status=status, confirm=None, cancel=cancel)
    service.instead = unlisted
    async with selling(service, lost_answer, profile=profile) as (tracker, pending):
        await tracker.notify(hint(1000))
        assert (await tracker.cancel(pending)).paid is False


async def test_a_withdrawal_goes_on_when_its_caller_is_cancelled(service: FakeService) -> None:
    """As a web framework does it: where no status can be queried, nothing but the answer tells of it."""
    gate = Gate()
    profile = attrs.evolve(PROFILE, status=None, confirm=None)
    slow = gate.before(service, "/api/Cancel")
    async with selling(service, profile=profile, transport=slow) as (tracker, pending):
        withdrawing = asyncio.create_task(tracker.cancel(pending))
        await gate.there.wait()
        withdrawing.cancel()
        await error_of(asyncio.CancelledError, withdrawing)
        gate.go.set()
        assert (await outcome_of(service, pending, 60)).paid is False


@pytest.mark.parametrize("said", [[], [reset], [lambda: answer(200, [])]])
@pytest.mark.parametrize("state", ["Approved", "Pending"])
async def test_a_withdrawal_decides_nothing_while_there_is_another_transaction(
    service: FakeService, state: str, said: list[Said]
) -> None:
    """A POST was repeated in front: the one that we know of is withdrawn, and the customer may pay the other.

    Nor does it where the query for others is not answered, or its index lags, or both are open, ours first.
    """
    async with selling(service, posted(1, FakeService.take), profile=PROFILE) as (tracker, pending):
        service.sales[1000]["transactionStatus"] = state
        service.sales[1001]["transactionStatus"] = "Canceled" if state == "Approved" or said else "Pending"
        service.sales = dict(reversed(service.sales.items()))
        service.status_scripts = [*said]
        outcome = await passing(service, tracker.cancel(pending))
        assert outcome.paid is (True if state == "Approved" else None)
        service.sales[1000]["transactionStatus"] = "Approved"
        service.sales[1001]["transactionStatus"] = "Canceled"
        assert (await outcome_of(service, pending)).paid is True
    assert service.cancels == [{"id": 1001}]


@pytest.mark.parametrize(
    ("said", "word", "paid"),
    [
        (lambda: answer(200, True), "Approved", True),
        (lambda: refusal(25, 2029), "Approved", True),
        (reset, "Approved", True),
        (lambda: answer(200, "true"), "Approved", True),
        (reset, "Pending", None),
        (reset, None, None),
    ],
)
async def test_what_the_status_tells_after_a_withdrawal_goes_before_its_answer(
    service: FakeService, said: Said, word: str | None, paid: bool | None
) -> None:
    """Done, too late or unanswered: the customer may have been quicker, and may still answer. None: no query."""
    profile = PROFILE if word else attrs.evolve(PROFILE, status=None, confirm=None)
    async with selling(service, profile=profile) as (tracker, pending):
        service.sales[1000]["transactionStatus"] = word
        service.cancel_scripts = [said]
        outcome = await passing(service, tracker.cancel(pending))
        assert (outcome.paid, outcome.state) == (paid, State.ACCEPTED if paid else State.PENDING)


async def test_a_withdrawal_takes_no_longer_where_a_push_lives_for_a_day(service: FakeService) -> None:
    """The queries after it are seconds apart, whatever the window."""
    profile = attrs.evolve(PROFILE, sale_window=86_400.0, absent_after=172_800.0)
    async with selling(service, profile=profile) as (tracker, pending):
        service.cancel_scripts = [reset]
        assert (await passing(service, tracker.cancel(pending))).paid is None
        assert service.clock.monotonic() < 10


@pytest.mark.parametrize("said", [lambda: refusal(20, status=404), lambda: answer(401, {"message": "no"})])
async def test_another_refusal_of_a_withdrawal_is_raised(service: FakeService, said: Said) -> None:
    """Nothing was withdrawn, and the sale is still followed."""
    async with selling(service, profile=PROFILE) as (tracker, pending):
        service.cancel_scripts = [said]
        refused = await error_of(payclient.RefusedError, tracker.cancel(pending))
        assert refused.client_transaction_id == "order-17"
        assert pending.state is State.PENDING


@pytest.mark.parametrize("what", ["no path", "a form"])
async def test_what_is_not_withdrawn(service: FakeService, what: str) -> None:
    """Without a path in the profile nothing is; of a form the service might say `true`, and it be paid all the same."""
    profile = PROFILE if what == "a form" else attrs.evolve(PROFILE, cancel=None)
    async with prepared(service, profile) as tracker:
        await tracker.sale(sale())
        pending = await pending_of(tracker, "form-1" if what == "a form" else "order-17")
        with pytest.raises((payclient.UsageError, payclient.ConfigurationError), match=r"cancel|a form"):
            await tracker.cancel(pending)
    assert not service.cancels
    for late in (tracker.cancel(pending), tracker.returned(back(1))):
        await error_of(payclient.TrackerClosedError, late)


# --- Hostile and unlucky


async def paid_after_it_was_given_up(
    service: FakeService, ledger: Ledger | None = None, profile: payclient.ServiceProfile = PROFILE
) -> None:
    """Returned cancelled, paid from another tab, returned once more, and the process dies."""
    async with prepared(service, profile, ledger) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
    service.pay("form-1")
    record = await record_in(service.ledger, "form-1")
    await service.ledger.apply(record, Returned(at=service.clock.time(), transaction_id=5001))


@pytest.mark.parametrize("hours", [0, 20])
async def test_a_form_paid_after_it_was_given_up_is_recovered_too(service: FakeService, hours: int) -> None:
    """It is decided, and so not among what is unfinished; the feed knows it. Also where the service carried the
    confirmation out, and its answer was lost with the process, for hours.
    """
    await paid_after_it_was_given_up(service)
    if hours:
        service.confirmed.add(5001)
        await service.clock.advance(hours * 3600)
        assert await state_of(service) is State.CANCELLED
    async with tracking(service, service.ledger, PROFILE):
        await until(service, lambda: 5001 in service.confirms, 5)
    assert await state_of(service) is State.ACCEPTED


async def test_a_ledger_that_fails_as_a_process_looks_back_loses_no_form(service: FakeService) -> None:
    """The tracker opens all the same, at once, and looks back again later."""
    ledger = FailingLedger(lambda name: False)
    await paid_after_it_was_given_up(service, ledger)
    ledger.fails = lambda name: name == "get"
    async with tracking(service, ledger, PROFILE):
        await service.clock.advance(30)
        ledger.fails = lambda name: False
        await until(service, lambda: 5001 in service.confirms, 60)
        await service.clock.advance(1)
    assert await state_of(service) is State.ACCEPTED


async def test_a_payment_that_a_query_found_is_on_record_before_it_is_confirmed(service: FakeService) -> None:
    """Nothing else named it; the answer is lost, and the process with it: the next one confirms it at once."""
    async with prepared(service):
        service.pay("form-1")
        service.confirm_scripts = [reset] * 1000
        await until(service, lambda: 5001 in service.confirms, 300)
    tries, record = service.confirms[5001], await service.ledger.get("form-1")
    assert record is not None
    assert (record.state, record.candidate_ids, record.notified_at) == (State.PENDING, (5001,), None)
    async with tracking(service, service.ledger, PROFILE):
        await until(service, lambda: service.confirms[5001] > tries, 2)


async def test_what_only_a_browser_brought_is_no_word_of_the_service(service: FakeService) -> None:
    """Forged, while the ledger failed, to a form whose links nobody has: it is named later, and moves nothing."""
    failing: set[str] = set()
    service.scripts = [lost_answer]
    service.status_scripts = [reset] * 100
    async with tracking(service, FailingLedger(lambda name: name in failing), PROFILE) as tracker:
        await error_of(payclient.OutcomeUnknownError, tracker.prepare(form(), purchase="cart-1"))
        service.confirm_scripts = [reset] * 100
        failing.add("apply")
        await error_of(payclient.LedgerUnavailableError, passing(service, tracker.returned(back(5001))))
        failing.clear()
        await service.clock.advance(60)
        record = await service.ledger.get("form-1")
    assert record is not None
    assert (record.state, record.candidate_ids) == (State.UNKNOWN, (5001,))


async def test_a_closed_form_holds_its_purchase_until_it_is_confirmed(service: FakeService) -> None:
    """Given up and paid all the same; then the service carries a confirmation out, and is silent for half an hour.

    Also from a push that names no purchase, and whose client transaction id is the purchase's name.
    """

    def silent() -> HttpResponse:
        service.confirmed.add(5001)
        return reset()

    async with prepared(service) as tracker:
        assert (await tracker.returned(back(0))).state is State.CANCELLED
        service.confirm_scripts, service.status_scripts = [silent] * 4000, [reset] * 4000
        await passing(service, tracker.returned(service.pay("form-1")))
        said = (await held_by(tracker, "cart-1")).until
        await service.clock.advance(30 * 60)
        until = (await held_by(tracker, "cart-1")).until
        assert until == said
        await error_of(payclient.PurchaseOpenError, tracker.sale(sale("cart-1")))
        assert until is not None
        assert until > service.clock.time()
        service.confirm_scripts, service.status_scripts = [], []
        await service.clock.advance(60)
        assert await state_of(service) is State.ACCEPTED
        await collected_by(tracker, "cart-1")


async def test_what_a_query_found_is_on_record_before_a_later_try(service: FakeService) -> None:
    """The ledger failed at the first one, which may be carried out: a process that takes over must know of it."""
    ledger = HookedLedger(before={"FoundPending": once(disk_full)})
    async with prepared(service, ledger=ledger):
        service.pay("form-1")
        service.confirm_scripts = [reset] * 1000
        await service.clock.advance(120)
        assert "FoundPending" in await events_of(ledger, "form-1")


async def test_a_form_whose_expiry_is_not_written_holds_its_purchase(service: FakeService) -> None:
    """Its links are dead, and its last queries are still to come."""
    ledger = HookedLedger(before={"Expired": disk_full})
    async with prepared(service, ledger=ledger) as tracker:
        service.instead = lambda path: answer(500, {"message": "no"})
        await service.clock.advance(1600)
        assert (await record_in(ledger, "form-1")).state is State.PENDING
        await held_by(tracker, "cart-1")


@pytest.mark.parametrize("answered", ["not found", "declined"])
async def test_a_closed_form_holds_its_purchase_until_its_links_die(
    service: FakeService, answered: str
) -> None:
    """An id was named to it: forged, or that of a card that was declined."""
    async with prepared(service) as tracker:
        began = service.clock.time()
        await tracker.returned(back(0))
        if answered == "declined":
            service.pay("form-1", transactionStatus="Canceled")
        await passing(service, tracker.returned(back(5001)))
        await service.clock.advance(60)
        until = (await held_by(tracker, "cart-1")).until
        assert until is not None
        await service.clock.advance(until - service.clock.time() + 1)
        assert (await tracker.sale(sale(), purchase="cart-1")).state is State.PENDING
        assert service.clock.time() < began + 30 * 60


@pytest.mark.parametrize("fails", [False, True])
async def test_a_form_paid_after_it_was_given_up_outlives_its_process(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Another process takes over what the dead one followed, and looks back for such forms, again where that fails."""
    for name, value in (("RENEW", 0.02), ("ABANDONED_ROUNDS", 10**9)):
        monkeypatch.setattr(leases, name, value)
    ledger, faults = SharedLedger(), [disk_full] if fails else []
    other, changes = SharedLedger(ledger), ledger.changes

    async def read(since: int, limit: int = 500) -> list[Change]:
        if faults:
            faults.pop()()
        return await changes(since, limit)

    async with tracking(service, ledger, PROFILE) as living:
        async with tracking(service, other, PROFILE) as dead:
            await dead.sale(sale())
        await paid_after_it_was_given_up(service, other)
        monkeypatch.setattr(ledger, "changes", read)
        ledger.holders["order-17"] = (None, 0.0)  # its lease is over
        await living.notify(hint(1000))
        async with asyncio.timeout(10):
            while 5001 not in service.confirmed:
                await asyncio.sleep(0.01)  # the rounds are in real time
                await service.clock.advance(1.0)
    assert await state_of(service) is State.ACCEPTED


async def test_a_look_that_ends_leaves_a_look_to_who_takes_over_meanwhile(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form was given up and paid since the look began; its process ended, another is taking over what it had."""
    for name, value in (("RENEW", 0.02), ("PAGE", 1), ("ABANDONED_ROUNDS", 10**9)):
        monkeypatch.setattr(leases, name, value)
    ledger, look, claim = SharedLedger(), Gate(), Gate()
    other, changes, claim_due = SharedLedger(ledger), ledger.changes, ledger.claim_due

    async def read(since: int, limit: int | None = None) -> list[Change]:
        if limit is None and not look.there.is_set():
            await look()
            return []
        return await changes(since, limit or 500)

    async def claimed(limit: int, seconds: float) -> list[Record]:
        found = await claim_due(limit, seconds)
        if not found and look.there.is_set():
            await claim()  # after it has taken over
        return found

    async with tracking(service, ledger, PROFILE) as living:
        async with tracking(service, other, PROFILE) as dead:
            for number in (1, 2):
                await dead.sale(sale(f"order-{number}"))
        monkeypatch.setattr(ledger, "changes", read)
        monkeypatch.setattr(ledger, "claim_due", claimed)
        ledger.holders["order-1"] = (None, 0.0)  # its lease is over
        await look.there.wait()
        await paid_after_it_was_given_up(service, other)
        ledger.holders["order-2"] = (None, 0.0)
        await living.notify(hint(1001, "order-2"))
        await claim.there.wait()
        look.go.set()
        await service.clock.advance(1)
        claim.go.set()
        await until(service, lambda: 5001 in service.confirmed, 5)


async def test_one_look_at_the_feed_for_all_that_is_taken_over(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages are claimed: each look reads all that was decided while a form's links live."""
    monkeypatch.setattr(leases, "PAGE", 2)
    ledger = SharedLedger()
    async with tracking(service, ledger, PROFILE) as living:
        async with tracking(service, SharedLedger(ledger), PROFILE) as dead:
            for number in range(7):
                await dead.sale(sale(f"order-{number}"))
        ledger.holders.update(dict.fromkeys(ledger.holders, (None, 0.0)))
        reads = AsyncMock(wraps=ledger.changes)
        monkeypatch.setattr(ledger, "changes", reads)
        await living.notify(hint(1000, "order-0"))
        await service.clock.advance(1)
        assert len(await ledger.held()) == 7
    assert reads.await_count == 2


@pytest.mark.usefixtures("quick_rounds")
async def test_a_living_process_goes_on_with_what_a_dead_one_confirmed(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the dead one followed nothing else, so that nothing is left to be taken over: the form was decided."""
    monkeypatch.setattr(leases, "ABANDONED_ROUNDS", 2)
    ledger = SharedLedger()
    other = SharedLedger(ledger)
    async with tracking(service, ledger, PROFILE):
        async with tracking(service, other, PROFILE):
            await paid_after_it_was_given_up(service, other)
        service.confirmed.add(5001)  # and the answer was lost
        await pass_by(service, 20)
    assert await state_of(service) is State.ACCEPTED


async def test_what_was_given_up_days_ago_is_confirmed_while_its_links_live(service: FakeService) -> None:
    """Where the links of a service live for days, so does the look back of the next process."""
    profile = attrs.evolve(PROFILE, form_window=2.0 * LOOK_BACK)
    await paid_after_it_was_given_up(service, profile=profile)
    service.confirmed.add(5001)
    await service.clock.advance(2.0 * LOOK_BACK)
    async with tracking(service, service.ledger, profile):
        await service.clock.advance(60)
    assert await state_of(service) is State.ACCEPTED


async def test_what_was_given_up_a_day_ago_is_left_alone(service: FakeService) -> None:
    """Its links are dead, and what was paid was reversed; nor is one asked that did not come back since."""
    await paid_after_it_was_given_up(service)
    await service.clock.advance(LOOK_BACK + 1)
    async with tracking(service, service.ledger, PROFILE) as tracker:
        await tracker.prepare(form("form-2"))
        await tracker.returned(back(0, "form-2"))
    async with tracking(service, service.ledger, PROFILE):
        await service.clock.advance(60)
    assert not service.confirms


@pytest.mark.parametrize(("wish", "within"), [("0", 2), ("20", 21), ("3600", 31)])
async def test_retry_after_never_costs_the_payment(service: FakeService, wish: str, within: int) -> None:
    """0 is at once by the back-off; an hour would be after the service has reversed it."""
    service.confirm_scripts = [lambda: HttpResponse(429, {"Retry-After": wish}, b"")]
    async with prepared(service, BLIND) as tracker:
        assert (await tracker.returned(service.pay("form-1"))).paid is None
        await until(service, lambda: 5001 in service.confirmed, within)
        assert service.clock.monotonic() >= within - 2


async def test_a_payment_that_is_not_ours_is_not_confirmed_by_a_query(service: FakeService) -> None:
    """A confirmation cannot be taken back: what was paid wrongly is reversed."""
    async with prepared(service) as tracker:
        service.pay("form-1", 5001, amount=1)
        assert (await (await pending_of(tracker, "form-1")).check()).paid is None
        await service.clock.advance(30)
        assert not service.confirms


async def test_a_return_waits_no_longer_than_the_total_time_out(service: FakeService) -> None:
    """The service hangs with another id of the form: nobody knows, and the page is answered."""
    gate = Gate()
    async with tracking(service, profile=BLIND, transport=gate.before(service, "/Confirm")) as tracker:
        await tracker.prepare(form())
        forged = asyncio.create_task(tracker.returned(back(1)))
        real = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await service.clock.advance(29)
        assert not real.done()
        await service.clock.advance(2)
        assert {(await forged).paid, (await real).paid} == {None}
        gate.go.set()
        await until(service, lambda: 5001 in service.confirmed, 60)


async def test_another_card_after_a_slow_refusal_is_one_form(service: FakeService) -> None:
    """What was planned for the first card does not forget the second one."""
    gate = Gate()
    async with tracking(service, profile=BLIND, transport=gate.before(service, "/Confirm")) as tracker:
        await tracker.prepare(form())
        first = asyncio.create_task(tracker.returned(service.pay("form-1", transactionStatus="Canceled")))
        await gate.there.wait()
        await service.clock.advance(2)
        gate.go.set()
        assert (await first).paid is False
        service.confirm_scripts = [reset] * 6
        assert (await tracker.returned(service.pay("form-1", 5002))).paid is False
        await service.clock.advance(20)
        assert (await tracker.health()).unconfirmed == 1
        await until(service, lambda: 5002 in service.confirmed, 60)


async def test_a_form_is_confirmed_once_another_ones_links_are_dead(service: FakeService) -> None:
    """The other one was declined, and then somebody named a transaction of which the service says nothing."""

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        return reset() if b"777" in request.body else await service(request, before_send)

    async with tracking(service, profile=BLIND, transport=transport) as tracker:
        await tracker.prepare(form("form-2"), purchase="cart-1")
        await tracker.returned(service.pay("form-2", 5000, transactionStatus="Canceled"))
        await service.clock.advance(1400)
        await tracker.prepare(form(), purchase="cart-1")
        await tracker.notify(hint(777, "form-2"))
        assert (await tracker.returned(service.pay("form-1"))).paid is None
        assert not service.confirms[5001]
        await until(service, lambda: 5001 in service.confirmed, 200)


async def test_a_ledger_that_is_down_stops_no_confirmation(service: FakeService) -> None:
    """The caller hears of it; the customer's payment is not reversed for it, and is on record once it can be."""
    down: set[str] = set()
    async with prepared(service, BLIND, FailingLedger(lambda name: name in down)) as tracker:
        query = service.pay("form-1")
        service.confirm_scripts = [reset] * 3
        down |= {"apply"}
        await error_of(payclient.LedgerUnavailableError, tracker.returned(query))
        down |= {"get"}
        await until(service, lambda: 5001 in service.confirmed, 200)
        down.clear()
        assert (await the_end(service, tracker, 30)).paid is True
        await service.clock.advance(30)
        assert (await events_of(service.ledger, "form-1")).count("Returned") == 1


slowly = partial(turns, 5)


async def test_a_payment_whose_write_seems_to_fail_ends_the_wait(service: FakeService) -> None:
    """The ledger took it, and no query finds the form: neither its wait nor the feed waits until it expires."""
    ledger = HookedLedger(after={"FoundAccepted": once(disk_full)})
    async with prepared(service, BLIND, ledger) as tracker:
        pending = await pending_of(tracker, "form-1")
        waits = [asyncio.ensure_future(pending.wait()), asyncio.ensure_future(anext(tracker.outcomes()))]
        await passing(service, tracker.returned(service.pay("form-1")))
        await service.clock.advance(5)
        assert all(each.done() for each in waits)
        assert [(await each).paid for each in waits] == [True, True]


async def test_a_flood_at_once_is_bounded_too(service: FakeService) -> None:
    """While the first is still being written, the others count already; the same id is written once."""
    ledger = HookedLedger(before={"Returned": slowly})
    async with prepared(service, BLIND, ledger) as tracker:
        flood = [asyncio.create_task(tracker.returned(back(number % 100 + 1))) for number in range(300)]
        await until(service, lambda: all(task.done() for task in flood))
        assert (await events_of(ledger, "form-1")).count("Returned") == MOST_IDS


async def test_a_tracker_closed_while_a_return_is_written_asks_nothing(service: FakeService) -> None:
    """The record is there for the next entry; no task is left behind."""
    ledger = HookedLedger(before={"Returned": slowly})
    async with prepared(service, BLIND, ledger) as tracker:
        returning = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await turns(2)
    assert (await returning).paid is None
    assert not service.confirms
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with tracking(service, ledger, BLIND):
        await until(service, lambda: 5001 in service.confirmed, 5)


@pytest.mark.parametrize("shared", [False, True])
async def test_a_form_that_a_person_gave_up_as_it_was_confirmed_is_an_alarm(
    service: FakeService, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    """Here or in another process: it is paid after all, and the person must know."""
    gate = Gate()
    slow = gate.before(service, "/Confirm")
    async with two_processes(service, PROFILE, transport=slow) as (tracker, other):
        await tracker.prepare(form())
        await service.clock.advance(1300)
        confirming = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await gate.there.wait()
        deciding = other if shared else tracker
        await deciding.resolve("form-1", as_="cancelled", actor="Ana", reason="called")
        gate.go.set()
        assert (await confirming).paid is True
    assert alarms(caplog) == ["form-1: cancelled, and yet accepted"]


async def test_a_browser_that_comes_again_as_the_tracker_closes_does_not_wait(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger is slow to read: by then no confirmation is made any more that the page could wait for."""
    service.confirm_scripts, read = [reset], Gate()

    async def read_slowly(identifier: str) -> Record:
        await read()
        return await record_in(service.ledger, identifier)

    async with prepared(service, BLIND) as tracker:
        query = service.pay("form-1")
        await tracker.returned(query)
        with monkeypatch.context() as patched:
            patched.setattr(service.ledger, "get", read_slowly)
            again = asyncio.create_task(tracker.returned(query))
            await read.there.wait()
    read.go.set()
    await turns(20)
    assert again.done()


async def test_a_return_that_a_closing_tracker_cannot_write_is_confirmed(service: FakeService) -> None:
    """The ledger fails at that moment, so that no next process would learn of it: the payment would be reversed."""

    async def fail_slowly() -> None:
        await slowly()
        disk_full()

    ledger = HookedLedger(before={"Returned": once(fail_slowly)})
    async with prepared(service, BLIND, ledger) as tracker:
        returning = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await turns(2)
    await error_of(payclient.LedgerUnavailableError, returning)
    async with tracking(service, ledger, BLIND):
        await until(service, lambda: 5001 in service.confirmed, 5)


async def test_a_restart_gives_a_confirmation_no_more_time(service: FakeService) -> None:
    """`confirm_by` counts from the return that the first process wrote: the service began no window anew."""
    service.confirm_scripts = [reset] * 100
    async with prepared(service) as tracker:
        await tracker.returned(service.pay("form-1"))
        ends = service.clock.time() + 300
    await service.clock.advance(100)
    async with tracking(service, service.ledger, PROFILE) as tracker:
        assert ends - 30 <= ((await tracker.health()).confirm_by or 0) <= ends


async def test_a_form_declined_and_then_paid_is_paid(service: FakeService) -> None:
    """The second card is another transaction of the same form: a correction, and not somebody else's."""
    async with prepared(service) as tracker:
        declined = await tracker.returned(service.pay("form-1", 5001, transactionStatus="Canceled"))
        assert (declined.paid, declined.evidence) == (False, Evidence.QUERY)
        outcome = await tracker.returned(service.pay("form-1", 5002))
        assert (outcome.paid, outcome.transaction_id) == (True, 5002)


async def test_what_was_found_in_an_outage_is_not_written_over_a_later_word(service: FakeService) -> None:
    """Two cards were declined while the ledger could not be written; the third one paid. That is not given back."""
    is_down = False
    ledger = FailingLedger(lambda name: name == "apply" and is_down)
    async with prepared(service, PROFILE, ledger) as tracker:
        is_down = True
        for transaction_id in (5001, 5002):
            service.pay("form-1", transaction_id, transactionStatus="Canceled")
        await error_of(payclient.LedgerError, tracker.returned(back(0)))
        await service.clock.advance(20)
        is_down = False
        outcome = await passing(service, tracker.returned(service.pay("form-1", 5003)))
        assert outcome.paid is True
        await service.clock.advance(60)
        record = await record_in(ledger, "form-1")
        assert (record.state, record.transaction_id) == (State.ACCEPTED, 5003)


async def test_what_was_found_paid_in_an_outage_and_is_given_back_is_not_written(
    service: FakeService,
) -> None:
    failing: set[str] = set()

    def confirmed() -> HttpResponse:
        failing.add("apply")
        return answer(200, service.sales[5001])

    service.confirm_scripts = [confirmed]
    async with prepared(service, ledger=FailingLedger(lambda name: name in failing)) as tracker:
        await tracker.returned(service.pay("form-1"))
        service.sales[5001]["transactionStatus"] = "Canceled"
        await service.clock.advance(20)
        failing.clear()
        await service.clock.advance(60)
        assert await events_of(service.ledger, "form-1") == [
            "Permitted",
            "Prepared",
            "Returned",
            "FoundCancelled",
        ]


async def test_a_429_to_a_confirmation_slows_the_queries(service: FakeService) -> None:
    """They took the turns of the confirmations that the service wanted fewer of; the next success ends that."""
    async with prepared(service, BLIND) as tracker:
        await tracker.sale(sale())
        service.confirm_scripts = [lambda: refusal(5, status=429, retry_after=25)]
        await tracker.returned(service.pay("form-1"))
        await service.clock.advance(24)
        assert not service.queries
        await until(service, lambda: 5001 in service.confirmed, 60)
        await service.clock.advance(30)
        assert len(service.queries) > 3


async def test_forged_ids_do_not_use_up_the_window_under_a_tight_rate(service: FakeService) -> None:
    """Each of them held up the payment for as long as one confirmation waits for its turn, 15 seconds."""
    async with prepared(service, attrs.evolve(PROFILE, queries_per_minute=2)) as tracker:
        for number in range(MOST_IDS - 1):
            await tracker.notify(hint(901 + number, "form-1"))
        service.pay("form-1")
        await tracker.notify(hint(5001, "form-1"))
        await until(service, lambda: 5001 in service.confirmed, 60)


async def test_a_confirmation_waits_for_no_query_of_its_form(service: FakeService) -> None:
    """The status hangs for half a minute as the browser comes back: its customer would stand there as long."""
    gate = Gate()
    async with tracking(service, None, PROFILE, transport=gate.before(service, "form-1")) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
        await until(service, gate.there.is_set)
        returning = asyncio.create_task(tracker.returned(service.pay("form-1")))
        await until(service, returning.done, 2)
        assert (await returning).paid is True
        gate.go.set()


@pytest.mark.parametrize("by", ["a query", "a person"])
async def test_a_decided_form_is_let_go_of_whoever_decided_it(service: FakeService, by: str) -> None:
    """It came back with an id that no transaction has, and was left by its customer: no worker keeps it for weeks."""

    def kept() -> list[object]:
        gc.collect()
        return [
            each for each in gc.get_objects() if type(each) is ReturnedForm and each.record.purchase == by
        ]

    async with tracking(service, profile=PROFILE) as tracker:
        await tracker.prepare(form(), purchase=by)
        await passing(service, tracker.returned(back(666)))
        assert len(kept()) == 1
        if by == "a query":
            service.pay("form-1", transactionStatus="Canceled")
        await service.clock.advance(4000)
        if by == "a person":
            await tracker.resolve("form-1", as_="cancelled", actor="ann", reason="nobody paid")
            await service.clock.advance(2)
        assert await state_of(service) is State.CANCELLED
        assert kept() == []
