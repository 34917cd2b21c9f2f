"""Several transactions under one client transaction id, and refusals that say that something exists: never a lie."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from crowd import in_virtual_time
from fake_ledgers import FailingLedger, HookedLedger, SharedLedger, disk_full, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Held,
    Script,
    alarms,
    answer,
    error_of,
    events_of,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    posted,
    record_in,
    refusal,
    refused,
    refuses,
    reset,
    sale,
    seen_dead,
    selling,
    tracking,
    unlisted,
    when,
)
from payclient.events import Evidence, FoundAccepted, FoundCancelled, FoundPending, Notified
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from virtual_loop import VirtualClock

State = payclient.State
Profile = payclient.ServiceProfile
pytestmark = pytest.mark.usefixtures("delays")

BY_OUR_ID, BY_ITS_ID = "/api/Sale/client/{client_transaction_id}", "/api/Sale/{transaction_id}"
#: A profile that can be asked by client transaction id only, one by transaction id only, and one that cannot be asked.
BY_CLIENT = attrs.evolve(
    PROFILE, status=StatusProfile(by_client_transaction_id=BY_OUR_ID, state_field="state")
)
BY_ID = attrs.evolve(PROFILE, status=StatusProfile(by_transaction_id=BY_ITS_ID, state_field="state"))
NO_QUERY = attrs.evolve(PROFILE, status=None)

BUSY, DUPLICATE, INNER = refuses(22, 2061), refuses(23), refuses(22, 23)
EXISTS = pytest.mark.parametrize("says", [BUSY, DUPLICATE], ids=["2061", "23"])


def lagging(service: FakeService, seconds: float) -> None:
    """Let no query find anything before so many seconds have passed."""
    until = service.clock.monotonic() + seconds
    service.instead = lambda path: answer(200, []) if service.clock.monotonic() < until else None


# --- Several under one id


@pytest.mark.parametrize(
    ("profile", "last", "seconds", "paid"),
    [
        (PROFILE, lost_request, 60, 1000), (BY_CLIENT, lost_request, 60, 1001), (PROFILE, BUSY, 0, 1001),
        (PROFILE, DUPLICATE, 0, 1001),
    ],
)  # fmt: skip
async def test_whichever_of_two_is_approved_is_paid(
    service: FakeService, profile: Profile, last: Script, seconds: float, paid: int
) -> None:
    """Two pending ones bind neither id, and the cancelled other decides nothing."""
    async with selling(service, posted(2, last), profile=profile) as (_, pending):
        await service.clock.advance(seconds)
        assert (pending.state, pending.transaction_id) == (State.PENDING, None)
        service.decide("Cancelado", 2001 - paid)
        await service.clock.advance(60)
        assert pending.outcome.paid is None
        service.decide("Aceptado", paid)
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, paid)
    assert service.posted == {"order-17": 2}


@pytest.mark.parametrize("first", [1000, 999])
async def test_what_a_search_finds_of_others_decides_nothing(
    service: FakeService, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The service looks for ids that begin so: another's payment neither hides ours nor is one too many."""
    async with selling(service, profile=BY_CLIENT) as (_, pending):
        service.add_sale(999, clientTransactionId="order-170")
        sales = sorted(service.sales.values(), key=lambda each: each["transactionId"] != first)
        service.instead = lambda path: answer(200, sales)
        await service.clock.advance(60)
        assert pending.state is State.PENDING
        service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    assert (alarms(caplog), await events_of(service.ledger)) == (
        [],
        ["Permitted", "Created", "FoundAccepted"],
    )


@pytest.mark.parametrize("profile", [PROFILE, BY_CLIENT])
async def test_the_cancelled_one_of_two_hides_no_paid_one(service: FakeService, profile: Profile) -> None:
    """Our answer named one, the customer approved the other: it is paid, under the other's id."""
    async with selling(service, posted(1, FakeService.take), profile=profile) as (tracker, pending):
        assert pending.transaction_id == 1001
        service.decide("Cancelado", 1001)
        await service.clock.advance(100)
        assert (pending.state, pending.outcome.report) == (State.PENDING, None)
        service.decide("Aceptado", 1000)
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1000)
        assert (await tracker.sale(sale())).transaction_id == 1000
    (last,) = [
        change for change in await service.ledger.history("order-17") if change.event == "FoundAccepted"
    ]
    assert json.loads(last.detail or "") == {"transaction_id": 1000, "instead_of": 1001}


async def test_a_cancelled_candidate_hides_no_paid_one(service: FakeService) -> None:
    """Nothing of a repeated POST was answered, and a notification named the one that was cancelled."""
    async with selling(service, posted(1, lost_answer)) as (tracker, pending):
        service.decide("Cancelado")
        service.decide("Aceptado", 1001)
        await tracker.notify(hint())
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1001)


@pytest.mark.parametrize("profile", [PROFILE, BY_CLIENT])
@pytest.mark.parametrize("state", ["Cancelado", "Aceptado"])
async def test_several_of_others_decide_nothing(service: FakeService, profile: Profile, state: str) -> None:
    """Two transactions of another account under our client transaction id, and ours not among them: a conflict."""
    body = {"clientTransactionId": "order-17", "amount": 1150, "currency": "USD", "state": state}
    theirs = [body | {"transactionId": number} for number in (2001, 2002)]
    service.instead = lambda path: None if path.endswith("/1000") else answer(200, theirs)
    async with selling(service, profile=profile) as (_, pending):
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (None, 1000)
    assert ("Conflicted" in await events_of(service.ledger)) is (profile is BY_CLIENT)


async def test_all_cancelled_is_cancelled_after_one_look(service: FakeService) -> None:
    """One query by the id that is ours, and one that looks at all; the second one ends it."""
    async with selling(service) as (_, pending):
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


@pytest.mark.parametrize("said", FAILING)
async def test_a_failing_look_decides_nothing(service: FakeService, said: Callable[[], HttpResponse]) -> None:
    """Cancelled is said only once all were looked at; it is queried again."""
    async with selling(service) as (_, pending):
        service.decide("Cancelado")
        service.instead = lambda path: said() if "client" in path else None
        await service.clock.advance(60)
        assert any("client" in path for path in service.queries)
        assert pending.outcome.paid is None
        service.instead = lambda path: None
        assert (await outcome_of(service, pending)).paid is False


async def test_a_look_that_lags_is_waited_for_and_not_for_ever(service: FakeService) -> None:
    """ "Not found" by the client transaction id, of what exists, says nothing of others before `absent_after`."""
    service.instead = unlisted
    async with selling(service, schedule=payclient.Fixed(2.0)) as (_, pending):
        service.decide("Cancelado")
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
        await service.clock.advance(700)
        assert pending.outcome.paid is False


async def test_what_answers_a_query_by_its_number_need_not_repeat_that(service: FakeService) -> None:
    """The transaction of a notification is bound by a report that names only our own id."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        unnumbered = {name: each for name, each in service.sales[1000].items() if name != "transactionId"}
        service.instead = lambda path: answer(200, unnumbered) if "/1000" in path else None
        await tracker.notify(hint(1000))
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_cancelled_sale_that_a_notification_named_has_its_transaction_id(
    service: FakeService, is_listed: bool
) -> None:
    """Its answer was lost; our own id finds its namesake, or nothing."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        listed = [service.sales[1000] | {"transactionId": 999}] if is_listed else []
        service.instead = lambda path: answer(200, listed) if "client" in path else None
        await tracker.notify(hint(1000))
        await service.clock.advance(1300)
        assert (pending.state, pending.transaction_id) == (State.CANCELLED, 1000)


async def test_a_clock_that_is_set_forward_hastens_no_look_that_lags(service: FakeService) -> None:
    """By the next process's clock the sale is old: the index may lag all the same, and the twin of the sale is paid."""
    async with selling(service, posted(1, FakeService.take)):
        pass
    service.clock.jump_wall(700)
    service.instead = unlisted
    async with tracking(service, service.ledger) as tracker:
        service.decide("Cancelado", 1001)
        await service.clock.advance(60)
        assert (await pending_of(tracker)).outcome.paid is None
        service.decide("Aceptado", 1000)
        service.instead = lambda path: None
        assert (await outcome_of(service, await pending_of(tracker))).paid is True


async def test_a_clock_that_is_set_forward_hastens_no_proof_of_absence(service: FakeService) -> None:
    """Its answer is lost, and by the next process's clock it is old: the index may lag all the same."""
    async with selling(service, lost_answer):
        pass
    service.clock.jump_wall(700)
    service.instead = unlisted
    async with tracking(service, service.ledger) as tracker:
        await service.clock.advance(400)
        assert (await pending_of(tracker)).state is State.UNKNOWN
        service.decide("Aceptado")
        service.instead = lambda path: None
        assert (await outcome_of(service, await pending_of(tracker))).paid is True


@pytest.mark.parametrize(
    ("other", "paid"),
    [({"transactionId": 999}, False), ({"transactionId": 1001, "state": "Aceptado", "amount": 5}, None)],
    ids=["another cancelled one", "another amount"],
)
async def test_what_a_look_finds(service: FakeService, other: dict[str, object], paid: bool | None) -> None:
    """Cancelled if nothing under this id is open or paid; another amount there is a conflict."""
    async with selling(service) as (_, pending):
        service.decide("Cancelado")
        listed = [service.sales[1000] | other] + ([] if paid is False else [service.sales[1000]])
        service.instead = lambda path: answer(200, listed) if "client" in path else None
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (paid, 1000)
    assert ("Conflicted" in await events_of(service.ledger)) is (paid is None)


@pytest.mark.parametrize("found_here", [True, False])
async def test_a_cancelled_sale_that_turns_out_to_be_paid_is_an_alarm(
    service: FakeService, caplog: pytest.LogCaptureFixture, found_here: bool
) -> None:
    """A correction, and a critical line: somebody, here or at another process, was told that nothing was paid."""
    async with selling(service) as (tracker, pending):
        if found_here:
            service.decide("Cancelado")
            assert (await outcome_of(service, pending)).paid is False
        else:
            cancelled = FoundCancelled(at=service.clock.time(), transaction_id=1000)
            await service.ledger.apply(await record_in(service.ledger), cancelled)
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True
    assert alarms(caplog) == ["order-17: cancelled, and yet accepted"]


@pytest.mark.parametrize(
    ("profile", "last"), [(PROFILE, lost_request), (BY_CLIENT, lost_request), (PROFILE, BUSY)]
)
async def test_two_accepted_is_accepted_with_an_alarm(
    service: FakeService, profile: Profile, last: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the first query of all finds them, which is made at once after a refusal as existing."""
    one, two = (lambda: service.decide("Aceptado", 1000)), (lambda: service.decide("Aceptado", 1001))
    service.scripts = [posted(2, when(one, when(two, last)))]
    async with selling(service, profile=profile) as (_, pending):
        assert pending.state is (State.ACCEPTED if last is BUSY else State.UNKNOWN)
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    (alarm,) = alarms(caplog)
    assert "accepted more than once: also 1001" in alarm
    (found,) = [each for each in await service.ledger.history("order-17") if each.event == "Conflicted"]
    assert "1001" in (found.detail or "")


async def test_a_second_payment_of_a_paid_sale_is_an_alarm_though_the_ledger_fails(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, though the history that may have it cannot be read at that moment, and no second time."""
    async with selling(service, posted(1, FakeService.take), profile=BY_CLIENT) as (tracker, pending):
        service.decide("Aceptado", 1000)
        assert (await outcome_of(service, pending)).transaction_id == 1000
        service.decide("Aceptado", 1001)
        read = service.ledger.history
        gone = AsyncMock(side_effect=payclient.LedgerUnavailableError("gone"))
        monkeypatch.setattr(service.ledger, "history", gone)
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(2)
        assert gone.called
        monkeypatch.setattr(service.ledger, "history", read)
        await (await pending_of(tracker)).check()
    assert alarms(caplog) == ["order-17: accepted more than once: also 1001"]


async def test_a_payment_of_an_open_sale_reads_no_history(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It corrects nothing, and each sale would cost one more read."""
    async with selling(service) as (_, pending):
        read = AsyncMock(wraps=service.ledger.history)
        monkeypatch.setattr(service.ledger, "history", read)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid
    assert not read.called


async def test_a_payment_that_was_given_back_hides_no_other_one(service: FakeService) -> None:
    """Both of two POSTs were approved, and the portal gave back the one we know: the sale is paid by the other."""
    async with selling(service, posted(1, FakeService.take)) as (tracker, pending):
        service.decide("Aceptado", 1001)
        assert (await outcome_of(service, pending)).transaction_id == 1001
        service.decide("Aceptado", 1000)
        service.decide("Cancelado", 1001)
        await service.clock.advance(5)
        outcome = await (await pending_of(tracker)).check()
    assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.ACCEPTED, True, 1000)
    assert "FoundCancelled" not in await events_of(service.ledger)


# --- Refusals that say that something exists


@EXISTS
@pytest.mark.parametrize(
    ("word", "state"),
    [("Pendiente", State.PENDING), ("Aceptado", State.ACCEPTED), ("Cancelado", State.CANCELLED)],
)
async def test_a_repeated_post_is_found(service: FakeService, says: Script, word: str, state: State) -> None:
    """The first created, the second was refused: one query finds ours, and its handle is returned."""
    decided = when(lambda: service.decide(word), says)
    async with selling(service, posted(1, decided)) as (tracker, pending):
        assert (pending.state, pending.transaction_id) == (state, 1000)
        assert service.queries == ["/api/Sale/client/order-17"]
        service.decide("Cancelado" if word == "Cancelado" else "Aceptado")
        assert (await outcome_of(service, pending)).paid is (word != "Cancelado")
        assert (await tracker.sale(sale())).transaction_id == 1000
    assert service.posted == {"order-17": 1}
    assert "Refused" not in await events_of(service.ledger)


async def test_what_was_found_and_not_written_is_queried_again(service: FakeService) -> None:
    """It is not written later as it was: what was found approved may have been given back since."""
    decided = when(lambda: service.decide("Aceptado"), BUSY)
    ledger = HookedLedger(before={"FoundAccepted": once(disk_full)})
    async with selling(service, posted(1, decided), ledger=ledger) as (_, pending):
        assert pending.state is State.UNKNOWN
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        await service.clock.advance(60)
    assert "FoundAccepted" not in await events_of(ledger)


@pytest.mark.parametrize(
    ("says", "queries"),
    [(BUSY, 1), (DUPLICATE, 1), (INNER, 1), (refuses(22), 0), (refuses(20), 0), (refuses(22, 7), 0)],
    ids=["2061", "23", "inner 23", "22", "20", "inner 7"],
)
async def test_not_found_proves_the_refusal(service: FakeService, says: Script, queries: int) -> None:
    """One query, which finds nothing: the attempt created nothing. Refusals that say nothing of it cost no query."""
    async with refused(service, says) as tracker:
        assert service.queries == ["/api/Sale/client/order-17"] * queries
        found = await pending_of(tracker)
        assert (found.state, found.outcome.paid) == (State.REFUSED, False)
        again = await tracker.sale(sale(tax=200))  # other content is fine after a refusal
        assert (again.state, again.attempt) == (State.PENDING, 2)


@pytest.mark.parametrize(("number", "created"), [*((number, 1) for number in range(len(FAILING))), (0, 0)])
async def test_a_failing_query_leaves_it_unknown(service: FakeService, number: int, created: int) -> None:
    """Never refused on no evidence: it is found, or proven absent, as any lost answer is."""
    service.status_scripts = [FAILING[number]] * 3
    says = DUPLICATE if number % 2 else BUSY
    async with selling(service, posted(created, says)) as (_, pending):
        assert (pending.state, pending.outcome.paid) == (State.UNKNOWN, None)
        service.status_scripts.clear()
        if created:
            service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is bool(created)
    assert service.posted == ({"order-17": 1} if created else {})


@pytest.mark.parametrize(
    "change", [{"amount": 1}, {"currency": "EUR"}, {"clientTransactionId": "x"}, {"amount": "1150"}]
)
async def test_one_that_is_not_ours_proves_nothing(service: FakeService, change: dict[str, object]) -> None:
    """What was found is another's, and ours may exist beside it."""
    service.instead = lambda path: answer(200, [service.sales[1000] | {"state": "Aceptado"} | change])
    async with selling(service, posted(1, BUSY)) as (_, pending):
        assert pending.state is State.UNKNOWN
        assert (await outcome_of(service, pending)).paid is None
    assert "Conflicted" in await events_of(service.ledger)


@pytest.mark.parametrize("profile", [BY_ID, NO_QUERY])
async def test_without_a_query_a_duplicate_alone_is_unknown(service: FakeService, profile: Profile) -> None:
    """Nobody can be asked."""
    async with refused(service, BUSY, DUPLICATE, profile=profile) as tracker:
        assert (await tracker.sale(sale())).state is State.UNKNOWN
    assert not service.queries


@EXISTS
async def test_what_is_said_to_exist_after_it_was_proven_absent(service: FakeService, says: Script) -> None:
    """A duplicate may be the earlier attempt after all; 2061 speaks of any sale of this customer: it is a refusal."""
    async with selling(service, lost_request, says) as (tracker, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.ABSENT
        if says is DUPLICATE:
            assert (await tracker.sale(sale())).state is State.UNKNOWN
        else:
            await error_of(payclient.CustomerBusyError, tracker.sale(sale()))


async def test_what_exists_may_be_any_earlier_attempt_that_was_thought_absent(service: FakeService) -> None:
    """The one in between was refused for itself, which says nothing of the one before."""
    async with selling(service, lost_request, refuses(5, status=401), DUPLICATE) as (tracker, pending):
        assert (await outcome_of(service, pending)).evidence is Evidence.ABSENT
        await error_of(payclient.UnauthorizedError, tracker.sale(sale()))
        assert (await tracker.sale(sale())).state is State.UNKNOWN


@EXISTS
@pytest.mark.parametrize("way", ["here", "in the next process", "written late"])
async def test_an_index_that_lags_corrects_the_refusal_later(
    service: FakeService, says: Script, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one query after the refusal finds nothing yet: what was created and paid is found at `absent_after`."""
    lagging(service, 300)
    service.scripts = [posted(1, says)]
    ledger = HookedLedger(before={"Refused": once(disk_full)} if way == "written late" else {})
    async with AsyncExitStack() as process:
        tracker = await process.enter_async_context(tracking(service, ledger))
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        service.decide("Aceptado")
        await service.clock.advance(100)
        if way == "in the next process":
            await process.aclose()
            tracker = await process.enter_async_context(tracking(service, ledger))
        await service.clock.advance(490)
        if way != "written late":  # until it was, the sale was followed as an unknown one
            assert len(service.queries) == 1
        await service.clock.advance(30)
        found = await pending_of(tracker)
        assert (found.state, found.transaction_id) == (State.ACCEPTED, 1000)
        assert way == "written late" or len(service.queries) == 2
    assert service.posted == {"order-17": 1}
    assert len([each for each in alarms(caplog) if "yet accepted" in each]) == 1


@EXISTS
@pytest.mark.parametrize("fails", [0, 1, 3, 40])
@pytest.mark.parametrize("named", [[77], [77, 78], [77, 78, 79]], ids=len)
async def test_no_forged_hint_is_looked_at_instead_of_what_is_listed_late(
    service: FakeService, says: Script, named: list[int], fails: int
) -> None:
    """However many were named, the look at `absent_after` goes by our own id, also where it is made once more."""
    lagging(service, 300)
    async with refused(service, posted(1, says)) as tracker:
        service.decide("Aceptado")
        if fails > 3:  # from the hint until after `absent_after`
            service.status_scripts = [reset] * fails
        for number in named:
            await service.clock.advance(20)
            await tracker.notify(hint(number))
        await service.clock.advance(500 - 20 * len(named))
        if fails <= 3:
            service.status_scripts = [reset] * fails
        await service.clock.advance(2000)
        assert (await pending_of(tracker)).state is State.ACCEPTED


@EXISTS
@pytest.mark.parametrize("way", ["not taken by the ledger", "failed", "waiting for its turn"])
async def test_no_forged_hint_takes_the_place_of_that_look(
    service: FakeService, says: Script, way: str
) -> None:
    """The look at `absent_after` is made again by our own id, and one that waits for its turn stays by it."""
    lagging(service, 300)
    service.scripts = [posted(1, says), says]
    is_late = way == "waiting for its turn"
    profile = attrs.evolve(PROFILE, queries_per_minute=0.5 if is_late else None)
    ledger = HookedLedger(before={"FoundAccepted": once(disk_full)} if way.startswith("not") else {})
    async with tracking(service, ledger, profile) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        service.decide("Aceptado")
        await service.clock.advance(590)
        if is_late:
            await error_of(payclient.RefusedError, tracker.sale(sale("another", phone="0984111333")))
            await service.clock.advance(15)
        elif way == "failed":
            service.status_scripts = [reset] * 2
            await service.clock.advance(11)
        assert len(service.queries) == 1 + is_late + (way == "failed")
        await tracker.notify(hint(77))
        await service.clock.advance(2000)
        assert (await pending_of(tracker)).state is State.ACCEPTED


@EXISTS
@pytest.mark.parametrize("between", [refuses(5, status=401), seen_dead], ids=["401", "dead"])
@pytest.mark.parametrize("way", ["here", "in the next process", "hours later"])
async def test_a_later_refusal_does_not_end_the_look_at_an_earlier_one(
    service: FakeService, says: Script, between: Script, way: str
) -> None:
    """What the first attempt created is listed late, and the second one, refused for itself, takes its word."""
    lagging(service, 300)
    service.scripts, ledger = [posted(1, says), between], MemoryLedger()
    async with AsyncExitStack() as process:
        tracker = await process.enter_async_context(tracking(service, ledger))
        for _ in range(2):
            await error_of(payclient.PayError, tracker.sale(sale()))
        service.decide("Aceptado")
        if way != "here":
            await process.aclose()
            if way == "hours later":
                await service.clock.advance(10_000)
            tracker = await process.enter_async_context(tracking(service, ledger))
        await service.clock.advance(700)
        found = await pending_of(tracker)
        assert (found.state, found.transaction_id, len(service.queries)) == (State.ACCEPTED, 1000, 3)


@EXISTS
async def test_a_later_refusal_of_another_process_does_not_end_the_look(
    service: FakeService, says: Script
) -> None:
    """The process that planned the look finds the newer attempt, refused as well, and queries that one."""
    lagging(service, 300)
    service.scripts, ledger = [posted(1, says), refuses(5, status=401)], MemoryLedger()
    async with tracking(service, ledger) as tracker, tracking(service, ledger) as another:
        for each in (tracker, another):
            await error_of(payclient.PayError, each.sale(sale()))
        service.decide("Aceptado")
        await service.clock.advance(700)
        found = await pending_of(tracker)
        assert (found.state, found.attempt, found.transaction_id) == (State.ACCEPTED, 2, 1000)


@pytest.mark.parametrize("answers", [True, False])
async def test_what_another_process_sent_in_silence_does_not_end_the_look(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Behind a pooler it is not heard that the newer attempt was refused; nobody waits for that one."""
    lagging(service, 300)
    held, ledger = Held(refuses(5, status=401)), SharedLedger()
    monkeypatch.setattr(ledger, "watch", lambda _: lambda: None)
    service.scripts = [posted(1, BUSY), held]
    async with tracking(service, ledger) as tracker, tracking(service, SharedLedger(ledger)) as another:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        sending = asyncio.create_task(error_of(payclient.UnauthorizedError, another.sale(sale())))
        await held.there.wait()
        assert (await tracker.sale(sale())).state is State.SENDING
        held.go.set()
        await sending
        service.decide("Aceptado")
        if not answers:
            service.instead = lambda path: reset()
        await service.clock.advance(2000)
        assert not tracker.open_sales()
        assert (await pending_of(tracker)).state is (State.ACCEPTED if answers else State.REFUSED)


async def test_no_look_is_made_without_an_id_to_query_by(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """By transaction id alone a newer attempt takes no later look of one that was notified, which could only fail."""

    async def notified() -> None:
        await tracker.notify(hint(77))

    service.scripts = [when(notified, BUSY), refuses(5, status=401)]
    async with tracking(service, profile=BY_ID) as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        await service.clock.advance(20)
        await error_of(payclient.UnauthorizedError, tracker.sale(sale()))
        await service.clock.advance(5000)
    assert len(service.queries) == 2
    assert "query failed" not in caplog.text


@EXISTS
@pytest.mark.parametrize("shares", [False, True])
async def test_a_later_attempt_that_another_process_sends_does_not_end_the_look(
    service: FakeService, says: Script, shares: bool
) -> None:
    """Somebody waits for it where the look was planned: it is followed there until it is read as refused."""
    lagging(service, 300)
    held, ledger = Held(refuses(5, status=401)), SharedLedger()
    ledgers = (ledger, SharedLedger(ledger)) if shares else [MemoryLedger()] * 2
    service.scripts = [posted(1, says), held]
    async with tracking(service, ledgers[0]) as tracker, tracking(service, ledgers[1]) as another:
        await error_of(payclient.PayError, tracker.sale(sale()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(error_of(payclient.UnauthorizedError, another.sale(sale())))
            await held.there.wait()
            pending = await tracker.sale(sale())
            tasks.create_task(pending.wait())
            held.go.set()
            service.decide("Aceptado")
            await service.clock.advance(700)
        assert (await pending_of(tracker)).state is State.ACCEPTED


async def test_an_answer_about_an_earlier_attempt_leaves_who_waits_for_the_newer_one(
    service: FakeService,
) -> None:
    """It was on its way as a person refused that one, and the sale was sent again."""
    gate = Gate()
    service.scripts = [lost_request]
    async with (
        tracking(service, transport=gate.before(service, "order-17")) as tracker,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task((await tracker.sale(sale())).check())
        await gate.there.wait()
        await tracker.resolve("order-17", as_="refused", actor="Ana", reason="called")
        waiting = tasks.create_task((await tracker.sale(sale())).wait())
        await asyncio.sleep(0)
        service.decide("Aceptado")
        gate.go.set()
        await service.clock.advance(10)
        assert waiting.done()
        waiting.cancel()


@EXISTS
async def test_a_ledger_that_cannot_be_read_does_not_end_the_look(service: FakeService, says: Script) -> None:
    lagging(service, 300)
    failing: set[str] = set()
    async with refused(
        service, posted(1, says), ledger=FailingLedger(lambda name: name in failing)
    ) as tracker:
        service.decide("Aceptado")
        failing.add("get")
        await service.clock.advance(700)
        failing.clear()
        assert (await pending_of(tracker)).state is State.ACCEPTED


@EXISTS
async def test_a_later_refusal_that_is_not_on_record_does_not_end_the_look(
    service: FakeService, says: Script
) -> None:
    """The ledger failed as the newer attempt was refused for itself."""
    lagging(service, 300)
    failing: set[str] = set()
    refused = when(lambda: failing.add("apply"), refuses(5, status=401))
    service.scripts = [posted(1, says), refused]
    async with tracking(service, FailingLedger(lambda name: name in failing)) as tracker:
        for _ in range(2):
            await error_of(payclient.PayError, tracker.sale(sale()))
        await service.clock.advance(20)
        failing.clear()
        service.decide("Aceptado")
        await service.clock.advance(700)
        assert (await pending_of(tracker)).state is State.ACCEPTED


@EXISTS
async def test_a_later_attempt_on_its_way_does_not_end_the_look(service: FakeService, says: Script) -> None:
    """It is due while the newer one waits for its answer, which refuses that one for itself."""
    lagging(service, 599)
    held = Held(refuses(5, status=401))
    async with refused(service, posted(1, says), held) as tracker:
        await service.clock.advance(598)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(error_of(payclient.UnauthorizedError, tracker.sale(sale())))
            await held.there.wait()
            service.decide("Aceptado")
            await service.clock.advance(5)
            held.go.set()
        await service.clock.advance(700)
        assert (await pending_of(tracker)).state is State.ACCEPTED


@EXISTS
@pytest.mark.parametrize("named", [1000, 999], ids=["pending", "forged"])
async def test_a_notification_does_not_end_the_later_look_of_the_next_process(
    service: FakeService, says: Script, named: int
) -> None:
    """Its one query finds nobody's payment yet; what was refused as existing is paid later, and is found."""
    lagging(service, 100)
    service.scripts, ledger = [posted(1, says)], MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        service.instead = lambda path: None if path.endswith("/1000") else answer(200, [])
        await tracker.notify(hint(named))
        await service.clock.advance(10)
    async with tracking(service, ledger) as tracker:
        await service.clock.advance(10)
        service.decide("Aceptado")
        service.instead = lambda path: None
        await service.clock.advance(700)
        assert (await pending_of(tracker)).outcome.paid is True


@EXISTS
async def test_a_sale_that_is_found_pending_keeps_its_later_look(service: FakeService, says: Script) -> None:
    """One by the notification's own id is planned for the end of the window, when the index may lag behind still."""
    service.instead = unlisted
    async with refused(service, posted(1, says)) as tracker:
        await service.clock.advance(100)
        await tracker.notify(hint())
        await service.clock.advance(400)
        service.decide("Aceptado")
        service.instead = lambda path: None
        await service.clock.advance(150)
        assert (await pending_of(tracker)).outcome.paid is True


@EXISTS
async def test_a_query_that_fails_does_not_end_the_later_look(service: FakeService, says: Script) -> None:
    """That of a notification, made again at once while the index lags: what was refused as existing is paid later."""
    lagging(service, 100)
    async with refused(service, posted(1, says), profile=BY_CLIENT) as tracker:
        service.status_scripts = [reset]
        await tracker.notify(hint())
        await service.clock.advance(50)
        service.decide("Aceptado")
        await service.clock.advance(700)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_a_permit_that_failed_does_not_end_the_look_at_an_earlier_attempt(service: FakeService) -> None:
    """The ledger fails for a while: the second attempt is in no ledger, and would take no word of what is paid."""
    lagging(service, 30)
    failing = False
    service.scripts, ledger = [posted(1, BUSY)], FailingLedger(lambda name: failing)
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))

        async def permit(record: Record) -> bool:
            nonlocal failing
            failing = True
            raise payclient.LedgerUnavailableError("away")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ledger, "permit", permit)
            await error_of(payclient.LedgerUnavailableError, tracker.sale(sale()))
        await service.clock.advance(20)
        failing = False
        service.decide("Aceptado")
        await service.clock.advance(620)
        assert (await pending_of(tracker)).outcome.paid is True


@EXISTS
async def test_a_wait_for_a_refusal_that_is_never_written_ends(service: FakeService, says: Script) -> None:
    """The ledger fails from then on: the sale is shown as unknown, and its expiry counts as that of any other."""
    lagging(service, float("inf"))
    async with refused(
        service, posted(1, says), ledger=HookedLedger(before={"Refused": disk_full})
    ) as tracker:
        assert (await outcome_of(service, await pending_of(tracker))).paid is None


async def test_a_second_refusal_is_looked_at_later_too(service: FakeService) -> None:
    """Tried again before the later look at the first attempt: the second one, which was created, is found as well."""
    lagging(service, 500)
    service.scripts = [BUSY, posted(1, BUSY)]
    async with tracking(service) as tracker:
        for _ in range(2):
            await error_of(payclient.RefusedError, tracker.sale(sale()))
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
    async with refused(service, says) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        await service.clock.advance(1000)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("way", [PROFILE, BY_CLIENT, BY_ID, "the index lags", "a source"])
async def test_a_refused_sale_that_is_found_pending_holds_back_another(
    service: FakeService, way: Profile | str, caplog: pytest.LogCaptureFixture
) -> None:
    """A notification of a refused sale is worth a query; while its transaction is open none other is made."""

    async def ask(reference: payclient.TransactionRef) -> payclient.StatusReport:
        state: Any = service.sales[1000]["state"]
        return payclient.StatusReport(state=state, client_transaction_id=reference.client_transaction_id)

    if way == "the index lags":
        service.instead = unlisted
    source = ask if way == "a source" else None
    profile = way if isinstance(way, Profile) else NO_QUERY if source else PROFILE
    async with refused(service, posted(1, refuses(22)), profile=profile, status=source) as tracker:
        for _ in range(3):
            assert await tracker.notify(hint()) in (payclient.Receipt.LATE, payclient.Receipt.DUPLICATE)
            await service.clock.advance(5)
            await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        service.decide("Aceptado")
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}
    assert (await events_of(service.ledger)).count("Conflicted") == 1
    assert sum("refused, and yet the customer may approve it" in each for each in caplog.messages) == 1


async def test_a_refused_sale_in_a_state_that_the_profile_does_not_map_holds_back_another(
    service: FakeService,
) -> None:
    """Its customer may be about to pay."""
    async with refused(service, posted(1, refuses(22))) as tracker:
        service.decide("In review")
        await tracker.notify(hint())
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
    assert service.posted == {"order-17": 1}


async def test_a_refused_sale_that_was_found_pending_is_queried_once_its_customer_has_answered(
    service: FakeService,
) -> None:
    """Nobody sends it again, and no other notification comes: it is paid all the same."""
    async with refused(service, posted(1, refuses(22))) as tracker:
        await tracker.notify(hint())
        await service.clock.advance(5)
        service.decide("Aceptado")
        await service.clock.advance(310)
        assert (await pending_of(tracker)).outcome.paid is True
        assert len(service.queries) == 2


async def test_a_refused_sale_that_stays_pending_is_not_queried_for_ever(service: FakeService) -> None:
    """A service that says Pendiente of what nobody answered would be asked every five minutes for years."""
    async with refused(service, posted(1, refuses(22))) as tracker:
        await tracker.notify(hint())
        await service.clock.advance(1000)
        asked = len(service.queries)
        await service.clock.advance(86400)
        assert len(service.queries) == asked


async def refused_and_found_later(service: FakeService, tracker: payclient.Tracker, says: Script) -> None:
    """The first of two POSTs created, the index lagged, and the customer has paid since."""
    lagging(service, 10)
    service.scripts = [posted(1, says)]
    await error_of(payclient.RefusedError, tracker.sale(sale()))
    service.decide("Aceptado")
    await service.clock.advance(20)


@pytest.mark.parametrize("says", [BUSY, DUPLICATE, INNER], ids=["2061", "23", "inner 23"])
@pytest.mark.parametrize("unwritten", [False, True])
async def test_a_paid_refusal_is_not_sent_again(service: FakeService, says: Script, unwritten: bool) -> None:
    """Whichever code said that it exists, the next try looks again; also where the write of what it finds fails."""
    failing: list[bool] = []
    ledger = FailingLedger(lambda name: name == "apply" and bool(failing) and failing.pop())
    async with tracking(service, ledger) as tracker:
        await refused_and_found_later(service, tracker, says)
        if unwritten:
            failing.append(True)
            await error_of(payclient.LedgerUnavailableError, tracker.sale(sale()))
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


async def test_a_refusal_by_a_code_that_is_called_a_duplicate_since_is_not_sent_again(
    service: FakeService,
) -> None:
    """The code came into the profile after it had been met: the attempt before is looked for all the same."""
    async with tracking(service, profile=attrs.evolve(PROFILE, duplicate_codes=frozenset())) as tracker:
        await refused_and_found_later(service, tracker, DUPLICATE)
    async with tracking(service, service.ledger) as tracker:
        service.scripts = []
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
        await error_of(payclient.NotSentError, tracker.sale(sale()))
    assert service.posted == {"order-17": 1}


@in_virtual_time
async def test_a_tracker_that_closes_meanwhile_leaves_what_may_exist() -> None:
    """The query hangs until the total time-out: unknown, never refused; closing waits for it."""
    service, query = FakeService(VirtualClock()), Gate()
    service.scripts = [posted(1, BUSY)]
    async with tracking(service, transport=query.before(service, "/client/order-17")) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        await query.there.wait()
    await sending
    assert (await record_in(service.ledger)).state is State.UNKNOWN


async def test_the_query_waits_for_its_turn(service: FakeService) -> None:
    """Ten busy customers at once, at 30 queries a minute: one query in two seconds, and none is unknown.

    Five once more: each is queried before it is sent, and after it is refused.
    """
    async with tracking(service, profile=attrs.evolve(PROFILE, queries_per_minute=30.0)) as tracker:
        for count in (10, 5):
            service.scripts = [BUSY] * count
            sales = [asyncio.create_task(tracker.sale(sale(f"o{number}"))) for number in range(count)]
            await service.clock.advance(60)
            errors = await asyncio.gather(*sales, return_exceptions=True)
            assert {type(error) for error in errors} == {payclient.CustomerBusyError}
    assert len(service.queried_at) == 20
    assert min(later - earlier for earlier, later in pairwise(service.queried_at)) >= 1.7


@pytest.mark.parametrize("is_refused_before", [True, False])
async def test_a_429_to_the_query_of_a_refused_attempt_pauses_all(
    service: FakeService, *, is_refused_before: bool
) -> None:
    """Before it is sent again, or as it is refused: no other query is made in the minute that the service asks for."""
    async with tracking(service) as tracker:
        for limits in [False, True] if is_refused_before else [True]:
            limited = [lambda: refusal(1, status=429, retry_after=60)]
            service.scripts, service.status_scripts = [BUSY], limited if limits else []
            await asyncio.gather(tracker.sale(sale()), return_exceptions=True)
        service.scripts = []
        pending = await tracker.sale(sale("another"))
        made = len(service.queries)
        await service.clock.advance(59)
        assert len(service.queries) == made
        await service.clock.advance(60)
        assert len(service.queries) > made
        assert pending.state is State.PENDING


async def test_a_turn_that_nobody_waits_for_any_more_takes_no_request_of_the_rate(
    service: FakeService,
) -> None:
    """Ten customers tried again in a pause of the service, and gave up: the next one is queried as it is over."""
    async with tracking(service, profile=attrs.evolve(PROFILE, queries_per_minute=30.0)) as tracker:
        service.scripts = [BUSY] * 11
        refused = [asyncio.create_task(tracker.sale(sale(f"o{number}"))) for number in range(11)]
        await service.clock.advance(60)
        await asyncio.gather(*refused, return_exceptions=True)
        pending = await tracker.sale(sale())
        service.status_scripts = [lambda: refusal(1, status=429, retry_after=60)]
        await pending.check()
        gave_up = [asyncio.create_task(tracker.sale(sale(f"o{number}"))) for number in range(10)]
        await service.clock.advance(59)
        errors = await asyncio.gather(*gave_up, return_exceptions=True)
        assert {type(error) for error in errors} == {payclient.NotSentError}
        late = asyncio.create_task(tracker.sale(sale("o10")))
        await service.clock.advance(10)
        assert service.posted["o10"] == 1
        await late


# --- A refused attempt that turns out to be paid


async def test_a_paid_refusal_is_corrected(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    """The first query lagged. A notification is worth one more, and the feed shows the correction, with an alarm."""
    service.status_scripts = [lambda: answer(200, [])]
    async with refused(service, posted(1, BUSY)) as tracker:
        service.decide("Aceptado")
        await service.clock.advance(5)
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(2)
        outcome = await (await pending_of(tracker)).wait()
        assert (outcome.paid, outcome.transaction_id, outcome.error) == (True, 1000, None)
        assert len(service.queries) == 2
        feed = tracker.outcomes()
        first, second = await anext(feed), await anext(feed)
        assert (first.state, first.transaction_id, first.notified_at) == (State.REFUSED, None, None)
        assert isinstance(first.error, payclient.RefusedError)
        assert (second.state, second.transaction_id, second.error) == (State.ACCEPTED, 1000, None)
        assert (await tracker.sale(sale())).state is State.ACCEPTED
    assert alarms(caplog)
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("fault", ["reset", "429", "ledger"])
@pytest.mark.parametrize("notified", [True, False])
async def test_the_query_of_a_decided_sale_is_made_again_until_it_is_answered(
    service: FakeService, fault: str, notified: bool
) -> None:
    """It is the only one that would find it paid: after a notification, or ten minutes after "it exists"."""
    ledger = HookedLedger(before={"FoundAccepted": once(disk_full)} if fault == "ledger" else {})
    service.status_scripts = [lambda: answer(200, [])]
    async with refused(service, posted(1, BUSY), ledger=ledger) as tracker:
        service.decide("Aceptado")
        faults = {"reset": reset, "429": lambda: refusal(29, status=429)}
        service.status_scripts = [faults[fault]] * 3 if fault in faults else []
        if notified:
            await tracker.notify(hint())
        await service.clock.advance(50 if notified else 650)
        assert (await pending_of(tracker)).outcome.paid is True
        asked = len(service.queries)
        await service.clock.advance(100)
        assert len(service.queries) == asked
    if fault == "reset":  # each failure doubles the gap
        assert service.queried_at[-1] - service.queried_at[-4] >= 2 + 4 + 8


async def test_a_wall_clock_that_is_set_forward_makes_no_cancelled_twin_final(service: FakeService) -> None:
    """By an hour: the customer may still approve what the service calls cancelled, and nothing is sent beside it."""
    service.status_scripts = [lambda: answer(200, [])]
    async with refused(service, posted(1, BUSY)) as tracker:
        service.decide("Cancelado")
        service.clock.jump_wall(3600)
        await service.clock.advance(20)
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        assert service.posted == {"order-17": 1}
        await service.clock.advance(320)
        await tracker.sale(sale())


async def test_a_wall_clock_that_was_set_back_puts_no_query_of_what_exists_off(service: FakeService) -> None:
    """By a day, between two runs: the next one queries once more what was refused as existing, ten minutes later."""
    service.status_scripts = [lambda: answer(200, [])]
    async with refused(service, posted(1, BUSY)):
        pass
    service.clock.jump_wall(-86_400)
    async with tracking(service, service.ledger) as tracker:
        service.decide("Aceptado")
        await service.clock.advance(650)
        assert (await pending_of(tracker)).outcome.paid is True


@pytest.mark.parametrize("word", ["Pendiente", "Cancelado", None])
async def test_a_refused_attempt_stays_refused_on_any_other_word(
    service: FakeService, word: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One query for a notification, and no state but paid takes it; what is open is said loudly."""
    service.status_scripts = [lambda: answer(200, [])]
    async with refused(service, posted(1, BUSY)) as tracker:
        if word is None:
            service.sales.clear()
        else:
            service.decide(word)
        await tracker.notify(hint())
        await service.clock.advance(60)
        assert len(service.queries) == 2
        assert (await pending_of(tracker)).state is State.REFUSED
    assert (word == "Pendiente") == ("Conflicted" in await events_of(service.ledger))
    assert "does not take" not in caplog.text


@pytest.mark.parametrize("paid", [True, False])
async def test_what_an_earlier_attempt_created_and_was_cancelled_decides_no_unknown_one(
    service: FakeService, paid: bool
) -> None:
    """The second POST is executed late; until then only the first one's transaction is found."""
    lagging(service, 5.0)
    async with refused(service, posted(1, BUSY), lost_request) as tracker:
        service.decide("Cancelado")
        await service.clock.advance(400)
        pending = await tracker.sale(sale())
        await service.clock.advance(20)
        if paid:
            service.add_sale(1001)
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == ((True, 1001) if paid else (False, 1000))


async def test_what_an_earlier_attempt_created_decides_none_that_another_process_sends(
    service: FakeService,
) -> None:
    """Who waits for the second one knows it as SENDING still, as its sender has written that it is unknown."""
    lagging(service, 5.0)
    gate, ledger = Gate(), MemoryLedger()
    service.scripts = [posted(1, BUSY), when(gate, lost_request)]
    async with tracking(service, ledger) as tracker, tracking(service, ledger) as another:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        service.decide("Cancelado")
        await service.clock.advance(400)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tracker.sale(sale()))
            await gate.there.wait()
            pending = await another.sale(sale())
            waiting = tasks.create_task(pending.wait())
            await asyncio.sleep(0)
            gate.go.set()
            await service.clock.advance(60)
            service.add_sale(1001)
            await service.clock.advance(60)
        assert (waiting.result().paid, waiting.result().transaction_id) == (True, 1001)


async def test_an_attempt_that_names_its_purchase_no_more_is_for_the_same_one(service: FakeService) -> None:
    """What another ask of that purchase may have created is queried before it is sent."""
    lagging(service, 5.0)
    service.scripts = [refuses(22), posted(1, BUSY)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        await error_of(payclient.CustomerBusyError, tracker.sale(sale("order-18"), purchase="cart"))
        service.decide("Aceptado")
        await service.clock.advance(6)
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale()))
    assert service.posted == {"order-18": 1}


async def test_what_was_not_sent_makes_no_other_sale_suspect(service: FakeService) -> None:
    """An earlier attempt waits for its customer: that is a query's word, and no answer of 2061."""
    lagging(service, 5.0)
    service.scripts = [lost_request, posted(1, BUSY)]
    async with tracking(service) as tracker:
        await tracker.sale(sale("order-16"))
        for _ in range(2):
            await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
            await service.clock.advance(10)
    assert (await events_of(service.ledger, "order-16")).count("Suspected") == 1
    assert service.posted == {"order-17": 1}


async def test_a_query_that_began_while_another_process_sent_decides_nothing(service: FakeService) -> None:
    """Its answer is about the earlier attempt, and comes once the second one is unknown, which may be executed late."""
    lagging(service, 5.0)
    sends, queries, ledger = Gate(), Gate(), MemoryLedger()
    service.scripts = [posted(1, BUSY), when(sends, lost_request)]
    async with (
        tracking(service, ledger) as tracker,
        tracking(service, ledger, transport=queries.before(service, "/client/order-17")) as another,
    ):
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        service.decide("Cancelado")
        await service.clock.advance(400)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(tracker.sale(sale()))
            await sends.there.wait()
            checking = tasks.create_task((await another.sale(sale())).check())
            await queries.there.wait()
            sends.go.set()
            assert (await sending).state is State.UNKNOWN
            queries.go.set()
            assert (await checking).paid is None
        assert (await record_in(ledger)).state is State.UNKNOWN


@pytest.mark.parametrize("word", ["Pendiente", "Aceptado"])
async def test_an_answer_about_what_is_being_sent_is_none_about_a_refused_attempt(
    service: FakeService, caplog: pytest.LogCaptureFixture, word: str
) -> None:
    """The later look at the first attempt is on its way as the second is sent, whose answer comes last of all."""
    query, held = Gate(), Held()
    later = query.before(service, "/client/order-17")

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        is_look = service.clock.monotonic() > 1 and not query.there.is_set()
        return await (later if is_look else service)(request, before_send)

    async with refused(service, BUSY, held, transport=transport) as tracker:
        await service.clock.advance(1000)
        assert query.there.is_set()
        sending = asyncio.create_task(tracker.sale(sale()))
        await held.there.wait()
        service.decide(word)
        query.go.set()
        await service.clock.advance(0.5)
        held.go.set()
        assert (await outcome_of(service, await sending)).paid is (True if word == "Aceptado" else None)
        changes = await tracker.history("order-17")
        assert [each.event for each in changes if each.attempt == 1] == ["Permitted", "Refused"]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("word", ["Pendiente", "Aceptado", "Cancelado"])
async def test_two_processes_that_send_a_refused_sale_again_have_one_sale(
    service: FakeService, caplog: pytest.LogCaptureFixture, word: str
) -> None:
    """The one looks for the refused attempt as the other sends the next, which is what it finds."""
    ledger, query = SharedLedger(), Gate()
    service.scripts = [BUSY]
    async with (
        tracking(service, ledger) as tracker,
        tracking(
            service, SharedLedger(ledger), transport=query.before(service, "/client/order-17")
        ) as another,
    ):
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
        await service.clock.advance(30)
        late = asyncio.create_task(another.sale(sale()))
        await query.there.wait()
        pending = await tracker.sale(sale())
        service.decide(word)
        query.go.set()
        assert (await late).attempt == pending.attempt == 2
    assert service.posted == {"order-17": 1}
    assert not alarms(caplog)


async def test_a_second_query_that_finds_a_newer_attempt_says_nothing_of_the_refused_one(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """What was named is cancelled, so our own id is queried, too. A person refuses it then, and it is sent again."""
    query = Gate()
    second = query.before(service, "/client/order-17")

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        is_first = query.there.is_set() or service.queries[-1:] != ["/api/Sale/1000"]
        return await (service if is_first else second)(request, before_send)

    service.instead = lambda path: refusal(500, status=503) if service.clock.monotonic() < 338 else None
    async with selling(service, lost_answer, transport=transport) as (tracker, _):
        await service.clock.advance(338)
        service.decide("Cancelado")
        await tracker.notify(hint())
        await service.clock.advance(20)
        assert query.there.is_set()
        await tracker.resolve("order-17", as_="refused", actor="ana", reason="seen")
        assert (await tracker.sale(sale())).attempt == 2
        query.go.set()
        await service.clock.advance(1)
        changes = await tracker.history("order-17")
        assert [each.event for each in changes if each.attempt == 1][-1] == "DecidedRefused"
    assert not alarms(caplog)


@pytest.mark.parametrize("approved", [True, False])
@in_virtual_time
async def test_a_batch_looks_again_before_it_charges_after_2061(approved: bool) -> None:
    """Each POST comes twice, and the query after 2061 lags: made again before the next try, it finds the sale."""
    service = FakeService(VirtualClock())
    service.scripts = [posted(1, BUSY)] * 100
    async with tracking(service) as tracker, payclient.charge_all(tracker, [sale()]) as results:
        lagging(service, 3.0)
        word = "Aceptado" if approved else "Pendiente"
        asyncio.get_running_loop().call_later(60.0, service.decide, word)
        paid = [None if each.outcome is None else each.outcome.paid async for each in results]
    assert service.posted == {"order-17": 1}
    assert paid == [True if approved else None]


@EXISTS
@pytest.mark.parametrize(
    "between", [refuses(5, status=401), refuses(22), seen_dead], ids=["401", "22", "dead"]
)
async def test_every_earlier_attempt_is_looked_at_before_the_next(
    service: FakeService, says: Script, between: Script
) -> None:
    """The POST came twice and the query lagged; the next attempt was refused for itself, and is not the only one."""
    lagging(service, 5.0)
    service.scripts = [posted(1, says), between]
    async with tracking(service) as tracker:
        for _ in range(2):
            await error_of(payclient.PayError, tracker.sale(sale()))
        await service.clock.advance(10)
        service.decide("Aceptado")
        found = await tracker.sale(sale())
        assert (found.state, found.transaction_id) == (State.ACCEPTED, 1000)
    assert service.posted == {"order-17": 1}


async def test_what_an_earlier_attempt_was_named_is_asked_for_before_the_next(service: FakeService) -> None:
    """The first one was refused and notified; the second one was not, and both are not listed by our own id."""
    service.instead = unlisted
    async with refused(service, posted(1, refuses(22)), refuses(5, status=401)) as tracker:
        service.status_scripts = [lambda: refusal(20, status=404)] * 3
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await error_of(payclient.UnauthorizedError, tracker.sale(sale()))
        service.status_scripts = []
        service.decide("Aceptado")
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


async def test_what_an_earlier_attempt_of_another_content_paid_is_not_this_one(service: FakeService) -> None:
    """It is listed late, and the cart has changed since: neither is it called paid, nor is another sale sent."""
    service.scripts, service.instead = [posted(1, BUSY), BUSY], unlisted
    changed = sale(amount_with_tax=2000)
    async with tracking(service) as tracker:
        for request in (sale(), changed):
            await error_of(payclient.CustomerBusyError, tracker.sale(request))
        service.instead = lambda path: None
        service.decide("Aceptado")
        await error_of(payclient.NotSentError, tracker.sale(changed), match="is not as it was sent")
        assert (await record_in(service.ledger)).state is State.REFUSED
    assert service.posted == {"order-17": 1}


async def test_what_was_named_and_cannot_be_read_may_be_ours(service: FakeService) -> None:
    """The next attempt is not sent beside it."""
    unreadable = answer(200, {"state": "Aceptado", "transactionId": "1000"})
    service.instead = lambda path: unlisted(path) or unreadable
    async with tracking(service) as tracker:
        service.scripts = [refuses(22)]
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        await tracker.notify(hint())
        await error_of(payclient.NotSentError, tracker.sale(sale()))
    assert not service.posted


async def test_what_was_named_is_paid_by_its_own_transaction(service: FakeService) -> None:
    """More were named than are kept, none of which is queried by no id; and the report names none."""
    service.instead = lambda path: (
        answer(200, {"state": "Aceptado", "clientTransactionId": "order-17"})
        if path == "/api/Sale/1000"
        else refusal(20, status=404)
    )
    async with tracking(service) as tracker:
        service.scripts = [refuses(22)]
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        service.status_scripts = [reset] * 100
        for number in range(20):
            await tracker.notify(hint(1000 + number))
        service.status_scripts = []
        assert (await tracker.sale(sale())).transaction_id == 1000
    assert "/api/Sale/0" not in service.queries
    assert not service.posted


async def test_a_cancelled_earlier_attempt_of_another_content_keeps_nothing_from_being_sent(
    service: FakeService,
) -> None:
    """The repeated POST of a cart was cancelled; the cart has changed since."""
    lagging(service, 5.0)
    async with refused(service, posted(1, BUSY), refuses(5, status=401)) as tracker:
        await error_of(payclient.UnauthorizedError, tracker.sale(sale(tax=100)))
        await service.clock.advance(10)
        service.decide("Cancelado")
        await error_of(payclient.CustomerBusyError, tracker.sale(sale(tax=100)), match="wait until it has")
        await service.clock.advance(340)
        assert (await tracker.sale(sale(tax=100))).state is State.PENDING


async def test_the_history_is_read_once_for_all_earlier_attempts(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that sends a refused id again every few minutes would read the whole history for each of hundreds."""
    service.scripts = [refuses(22)] * 5
    async with tracking(service) as tracker:
        for _ in range(4):
            await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        read = AsyncMock(wraps=service.ledger.history)
        monkeypatch.setattr(service.ledger, "history", read)
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        assert read.await_count == 1


@pytest.mark.parametrize("identifier", ["order-17", "another"])
async def test_a_sale_notified_while_it_connects_is_not_sent(service: FakeService, identifier: str) -> None:
    """One process sends what was refused again, under any id of its purchase, and stands still; another is notified."""
    one = SharedLedger()
    two = SharedLedger(one)
    woken = asyncio.Event()

    async def late(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await woken.wait()
        return await service.take(request, before_send)

    service.scripts = [posted(1, refuses(800)), late]
    async with tracking(service, one) as first, tracking(service, two) as second:
        await error_of(payclient.RefusedError, first.sale(sale(), purchase="cart"))
        again = asyncio.create_task(first.sale(sale(identifier), purchase="cart"))
        await service.clock.advance(1)
        service.status_scripts = [reset] * 10
        assert await second.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(20)
        woken.set()
        await error_of(payclient.NotSentError, again)
        service.status_scripts = []
        service.decide("Aceptado")
        assert (await first.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize(
    ("identifier", "purchase"), [("order-17", "cart"), ("another", "cart"), ("order-17", "another cart")]
)
async def test_a_sale_notified_right_before_its_next_permit_is_not_sent(
    service: FakeService, identifier: str, purchase: str
) -> None:
    """Another process is told of what something in front repeated, as the permit is on its way to the ledger."""
    ledger = HookedLedger()
    service.scripts = [posted(1, refuses(800))]
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        told = Notified(at=service.clock.time(), transaction_id=1000)
        ledger.before = {"Permitted": partial(ledger.apply, await record_in(ledger), told)}
        await error_of(payclient.NotSentError, tracker.sale(sale(identifier), purchase=purchase))
        service.decide("Aceptado")
        assert (await tracker.sale(sale(), purchase=purchase)).outcome.paid is True
    assert service.posted == {"order-17": 1}


async def test_a_refused_sale_sent_again_without_its_purchase_is_paid_by_another_of_it(
    service: FakeService,
) -> None:
    """Another refused push of the purchase was notified, and is queried first: it is paid, and nothing is sent."""
    service.scripts = [refuses(800), posted(1, refuses(800))]
    async with tracking(service) as tracker:
        for identifier in ("order-17", "another"):
            await error_of(payclient.RefusedError, tracker.sale(sale(identifier), purchase="cart"))
        service.decide("Aceptado")
        service.status_scripts = [reset] * 20
        await tracker.notify(hint(1000, "another"))
        await service.clock.advance(5)
        service.status_scripts = []
        await error_of(payclient.AlreadyPaidError, tracker.sale(sale()))
    assert service.posted == {"another": 1}


async def test_a_paid_refusal_is_not_sent_again_for_another_purchase(service: FakeService) -> None:
    """The id was refused as existing for one purchase: sent for another one it is queried first all the same."""
    lagging(service, 10)
    service.scripts = [posted(1, BUSY)]
    async with tracking(service) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale(), purchase="cart"))
        service.decide("Aceptado")
        await service.clock.advance(20)
        await error_of(payclient.DifferentRequestError, tracker.sale(sale(), purchase="another"))
        assert (await tracker.purchase("cart")).paid is True
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("bound", [True, False])
async def test_a_second_query_that_crosses_what_is_found_gives_nothing_back(
    service: FakeService, bound: bool
) -> None:
    """The index lists the cancelled one alone; as that answer is on its way, another process finds the other one.

    The cancelled one was the answer's, and the other is paid; or it was only named, and the other is open.
    """
    one = SharedLedger()
    two = SharedLedger(one)
    gate, lists = Gate(), 0

    async def crossing(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        nonlocal lists
        lists += "client" in request.path
        if lists == 1 and "client" in request.path:
            before = answer(200, [dict(service.sales[1001])])
            await gate()
            return before
        return await service(request, before_send)

    service.scripts = [posted(1, FakeService.take if bound else lost_answer)]
    async with tracking(service, one, transport=crossing) as first, tracking(service, two) as second:
        pending = await first.sale(sale())
        service.decide("Cancelado", 1001)
        checking = asyncio.ensure_future(pending.check() if bound else first.notify(hint(1001)))
        await gate.there.wait()
        at, record = service.clock.time(), await record_in(two)
        if bound:
            service.decide("Aceptado", 1000)
            await two.apply(record, FoundAccepted(at=at, transaction_id=1000, instead_of=1001))
        else:
            await two.apply(record, FoundPending(at=at, transaction_id=1000))
        await service.clock.advance(0)
        gate.go.set()
        await checking
        await service.clock.advance(0)
        assert (await pending_of(second)).state is (State.ACCEPTED if bound else State.PENDING)


def source_of(service: FakeService) -> payclient.StatusSource:
    """A source of the user's that goes by a transaction id where it is given one, else by ours."""

    async def source(ids: payclient.TransactionRef) -> payclient.StatusReport | None:
        number = ids.transaction_id or ids.candidate_id
        ours = [each for each in service.sales if service.sales[each]["clientTransactionId"] == "order-17"]
        found = service.sales.get(number or min(ours, default=0))
        if found is None:
            return None
        state: Any = found["state"]
        whose = str(found["clientTransactionId"])
        return payclient.StatusReport(
            state=state, transaction_id=number or ours[0], client_transaction_id=whose,
            amount=1150, currency="USD", raw={},
        )  # fmt: skip

    return source


async def test_a_forged_hint_whose_report_names_nobody_keeps_no_refused_sale_from_being_sent(
    service: FakeService,
) -> None:
    """Anybody may name another's transaction: the query by our own id decides."""
    service.add_sale(999, clientTransactionId=None)
    async with refused(service, refuses(5)) as tracker:
        await tracker.notify(hint(999))
        await service.clock.advance(10)
        assert (await tracker.sale(sale())).attempt == 2


async def test_a_forged_hint_lets_nothing_be_sent_beside_what_a_source_finds_by_our_id(
    service: FakeService,
) -> None:
    """A source is given our own id beside the transaction id that was named."""
    async with refused(service, posted(1, BUSY), profile=NO_QUERY, status=source_of(service)) as tracker:
        service.decide("Aceptado")
        await tracker.notify(hint(77))
        await service.clock.advance(20)
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 1}


async def test_what_a_source_finds_by_a_hint_locks_no_id(service: FakeService) -> None:
    """It is another's transaction, and nothing was created of ours: the sale may be sent again."""
    async with refused(service, BUSY, profile=NO_QUERY, status=source_of(service)) as tracker:
        service.add_sale(77, clientTransactionId="another")
        await tracker.notify(hint(77))
        await service.clock.advance(20)
        assert (await tracker.sale(sale())).state is State.PENDING


async def test_what_a_source_finds_cancelled_by_a_hint_hides_no_other(service: FakeService) -> None:
    """The cancelled one of two was named; by our own id the source finds the other, which is paid."""
    async with refused(service, posted(2, BUSY), profile=NO_QUERY, status=source_of(service)) as tracker:
        service.decide("Cancelado", 1001)
        await tracker.notify(hint(1001))
        await service.clock.advance(400)
        service.decide("Aceptado", 1000)
        assert (await tracker.sale(sale())).outcome.paid is True
    assert service.posted == {"order-17": 2}


async def test_a_forged_hint_mutes_no_source_that_finds_by_our_id(service: FakeService) -> None:
    """Queries by what was named take turns with those by our own id."""
    async with selling(service, lost_answer, status=source_of(service)) as (tracker, pending):
        await tracker.notify(hint(77))
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
