"""A service that sheds, fails, hangs or babbles, in virtual time: the rates that are kept, and that every wait ends."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import payclient
from crowd import (
    BOUND,
    PROFILE,
    Service,
    farthest,
    in_virtual_time,
    limited,
    now,
    push,
    pushed,
    tracking,
    waited,
)
from fake_service import pending_of, two_processes
from payclient.events import Evidence
from payclient.ledger.memory import MemoryLedger
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

#: "Not found".
MISSING = HttpResponse(404, {}, b'{"message": "none", "errorCode": 20}')


class Shedding(Service):
    """Answers a share of the queries by 429, each query after so many seconds."""

    def __init__(
        self, share: float, retry_after: str | None = None, *, after: float = 0.05, undecided: bool = False
    ) -> None:
        super().__init__(self.shed, undecided=undecided)
        self.share, self.retry_after, self.after = share, retry_after, after
        self.dice = random.Random(5)  # noqa: S311 - it must repeat

    async def shed(self) -> HttpResponse | None:
        await asyncio.sleep(self.after)
        return limited(self.retry_after) if self.dice.random() < self.share else None


# --- 429


@in_virtual_time
async def test_a_round_of_429_slows_once() -> None:
    """32 in flight are all answered 429 with `Retry-After: 0`: the next query comes within ten seconds."""
    all_there = asyncio.Event()

    async def shed() -> HttpResponse | None:
        if len(service.queried_at) > 32:
            return None
        if len(service.queried_at) == 32:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(random.uniform(0.0, 0.5))  # noqa: S311 - no secret
        return limited("0")

    service = Service(shed, undecided=True)
    async with tracking(service, schedule=payclient.Fixed(1.0)) as tracker:
        await pushed(tracker, 40)
        while len(service.queried_at) < 40:
            await asyncio.sleep(0.05)
            assert now() < 60.0, "no query came any more"
    assert farthest(service.queried_at) <= 2.0


@in_virtual_time
async def test_nothing_but_429_slows_to_a_query_in_ten_seconds_and_is_forgotten() -> None:
    """However long it lasts; a few successes later the queries come as before."""
    service = Shedding(1.0, undecided=True)
    async with tracking(service, schedule=payclient.Fixed(2.0)) as tracker:
        await pushed(tracker, 40)
        await asyncio.sleep(200.0)
        assert farthest(service.queried_at) <= 10.5
        assert sum(when > 100.0 for when in service.queried_at) <= 12
        service.share, count = 0.0, len(service.queried_at)
        await asyncio.sleep(30.0)
        assert len(service.queried_at) - count > 100


@in_virtual_time
async def test_a_retry_after_is_obeyed_up_to_a_minute() -> None:
    """More than ten seconds where the service says so, and never more than sixty."""

    async def shed() -> HttpResponse | None:
        return {1: limited("25"), 2: limited("86400")}.get(len(service.queried_at))

    service = Service(shed, undecided=True)
    async with tracking(service, schedule=payclient.Fixed(1.0)) as tracker:
        pending = await tracker.sale(push("order-1"))
        await asyncio.sleep(10.0)
        assert (await pending.check()).paid is None
        assert len(service.queried_at) == 1, "asked by hand in the midst of the pause"
        await asyncio.sleep(110.0)
    first, second, third = service.queried_at[:3]
    assert second - first == pytest.approx(25.0, abs=2.0)
    assert third - second == pytest.approx(60.0, abs=2.0)


@in_virtual_time
async def test_processes_that_share_a_rate_end_every_wait_of_a_service_that_sheds() -> None:
    """Two trackers over one ledger: 120 queries a minute for both, also while some are answered 429."""
    service = Shedding(0.3)
    async with two_processes(service, attrs.evolve(PROFILE, queries_per_minute=120.0)) as trackers:
        pendings = [await trackers[number % 2].sale(push(f"order-{number}")) for number in range(40)]
        outcomes = await waited(pendings)
        assert None not in {outcome.paid for outcome in outcomes}
    assert all(
        sum(when <= other < when + 60 for other in service.queried_at) <= 122 for when in service.queried_at
    )


@in_virtual_time
async def test_a_shared_rate_is_slowed_once_by_a_round_of_429() -> None:
    """32 in flight are shed with `Retry-After: 0`: both processes go on within ten seconds."""
    service = Shedding(1.0, "0", after=5.0, undecided=True)
    async with two_processes(service, attrs.evolve(PROFILE, queries_per_minute=600.0)) as trackers:
        for number in range(80):
            await trackers[number % 2].sale(push(f"order-{number}"))
        await asyncio.sleep(60.0)
        service.share = 0.0
        await asyncio.sleep(90.0)
    assert farthest(service.queried_at) <= 10.5
    assert sum(when > 100.0 for when in service.queried_at) > 100


@in_virtual_time
async def test_under_the_profile_rate_a_wait_is_longer_not_poorer() -> None:
    """A tight rate alone ends nobody's wait before its last query."""
    service = Service(undecided=True)
    async with tracking(service, profile=attrs.evolve(PROFILE, queries_per_minute=6.0)) as tracker:
        await waited(await pushed(tracker, 20), bound=2000.0)
        assert now() > BOUND
    late = [name for when, name in service.asked if when > 300.0]
    assert min(late.count(f"order-{number}") for number in range(20)) == 7


# --- A status source of the user's


@pytest.mark.parametrize("stubborn", [False, True])
@in_virtual_time
async def test_a_status_source_that_never_answers_ends_its_wait(stubborn: bool) -> None:
    """Its query ends at the total time-out, also where it does not let itself be cancelled."""
    closing = False

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if closing or not stubborn:
                    raise

    async with tracking(Service(), status=status) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (await pending.check()).paid is None
        assert now() <= 31.5
        assert [outcome.paid for outcome in await waited([pending])] == [None]
    closing = True


@in_virtual_time
async def test_a_status_source_that_hangs_for_some_holds_nobody_else_up() -> None:
    """32 of its queries hang: the others are answered within the time-out, and a sale that hangs is asked for less."""
    asked: list[str] = []

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        asked.append(reference.client_transaction_id)
        if reference.client_transaction_id.startswith("hangs"):
            await asyncio.get_running_loop().create_future()
        return payclient.StatusReport(
            state="Aceptado", transaction_id=reference.transaction_id, client_transaction_id=None
        )

    async with tracking(Service(), status=status) as tracker:
        hanging = await pushed(tracker, 32, "hangs")
        await asyncio.gather(*(pending.check() for pending in hanging), return_exceptions=True)
        outcomes = await waited(await pushed(tracker, 10), bound=60.0)
        assert {outcome.paid for outcome in outcomes} == {True}
        await waited(hanging)
    assert asked.count("hangs-0") <= 25


@pytest.mark.parametrize("error", [RuntimeError("x"), asyncio.CancelledError()])
@in_virtual_time
async def test_what_a_source_raises_fails(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It backs off, is logged a few times, raises out of no `check()`, and the wait ends."""
    asked: list[float] = []

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        asked.append(now())
        raise error

    async with tracking(Service(), status=status, schedule=payclient.Fixed(1.0)) as tracker:
        pending = await tracker.sale(push("order-1"))
        assert (await pending.check()).paid is None
        assert (await waited([pending]))[0].paid is None
    assert sum(when < 300.0 for when in asked) <= 20
    assert len([each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]) <= 3


@in_virtual_time
async def test_a_service_that_sheds_does_not_keep_absence_from_being_proven() -> None:
    """After a restart a wait for an unknown sale goes on to the proof, though one query in eight is shed for ever."""
    queries, ledger = itertools.count(), MemoryLedger()

    async def loses(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        if request.method == "POST":
            raise ConnectionResetError
        return limited("1") if next(queries) % 8 == 0 else MISSING

    async with tracking(Service(), ledger=ledger, transport=loses) as tracker:
        assert (await tracker.sale(push("order-1"))).state is payclient.State.UNKNOWN
    await asyncio.sleep(400)
    async with tracking(Service(), ledger=ledger, transport=loses) as tracker:
        (outcome,) = await waited([await pending_of(tracker, "order-1")])
        assert (outcome.state, outcome.evidence) == ("refused", "absent")


#: What a query may come to; the last is the truth.
BEHAVIOURS = [
    "429", "429 0", "429 5", "429 9999", "401", "500", "503", "html", "empty", "hangs", "resets", "slow",
    "unmapped", "not found", "another's", "truth",
]  # fmt: skip

#: What some of them answer.
ANSWERS = {
    "401": HttpResponse(401, {}, b'{"message": "no"}'), "500": HttpResponse(500, {}, b"{}"),
    "503": HttpResponse(503, {}, b"{}"), "html": HttpResponse(200, {}, b"<html>busy</html>"),
    "empty": HttpResponse(200, {}, b""), "not found": MISSING,
    "unmapped": HttpResponse(200, {}, b'{"transactionId": 1, "state": "Pondering"}'),
    "another's": HttpResponse(
        200, {}, b'{"transactionId": 999999, "clientTransactionId": "x", "state": "Aceptado"}'
    ),
}  # fmt: skip


async def misbehave(what: str) -> HttpResponse | None:
    """Answer as told; None is the truth."""
    await asyncio.sleep(0.05)
    if what.startswith("429"):
        return limited(what.partition(" ")[2] or None)
    if what == "resets":
        raise ConnectionResetError
    await asyncio.sleep({"hangs": 3600.0, "slow": 20.0}.get(what, 0.0))
    return ANSWERS.get(what)


@in_virtual_time
async def check(behaviours: Sequence[str], count: int, lost: bool) -> None:
    behaving = itertools.cycle([*behaviours[1:], behaviours[0]])
    service = Service(lambda: misbehave(next(behaving)))

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        answer = await service(request, before_send)
        if lost and request.method == "POST" and len(service.truth) % 3 == 0:
            raise ConnectionResetError
        return answer

    async with tracking(service, transport=transport) as tracker:
        outcomes = await waited(await pushed(tracker, count))
        assert now() <= BOUND
    for outcome in outcomes:
        if outcome.paid is not None and outcome.evidence is not Evidence.ABSENT:
            assert outcome.paid is (service.truth[outcome.client_transaction_id][1] == "Aceptado")


@example(["429 9999", "html", "unmapped", "unmapped", "429"], 40, True)
@given(st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=12), st.sampled_from([1, 5]), st.booleans())
def test_every_wait_ends(behaviours: list[str], count: int, lost: bool) -> None:
    """Of any mixture, repeated for ever, for one sale or some, where answers were lost or not; and never a lie."""
    check(behaviours, count, lost)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_wait_ends_whatever_the_service_always_does(behaviour: str) -> None:
    check([behaviour], 40, lost=True)


@in_virtual_time
async def test_a_sale_whose_own_queries_fail_ends_its_wait() -> None:
    """However well the queries of all others are answered: what nobody knows is None."""
    service = Service()

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        poisoned = b"poisoned" in request.body or "poisoned" in request.path
        if poisoned and request.method == "GET":
            return HttpResponse(500, {}, b"{}")
        answer = await service(request, before_send)
        if poisoned:
            raise ConnectionResetError
        return answer

    async with tracking(service, transport=transport) as tracker:
        pending = await tracker.sale(push("poisoned"))
        waiting = asyncio.create_task(waited([pending]))
        others = itertools.count()
        while not waiting.done() and now() < 2 * BOUND:
            await tracker.sale(push(f"order-{next(others)}"))
            await asyncio.wait({waiting}, timeout=4.0)
        assert waiting.done()
        assert (await waiting)[0].paid is None


@in_virtual_time
async def test_a_wait_beside_the_process_that_asks_ends_with_its_last_query() -> None:
    """What is never decided: who waits in another process learns of the last query as it is written."""
    async with two_processes(Service(undecided=True)) as (one, other):
        pending = await one.sale(push("order-1"))
        beside = asyncio.create_task((await pending_of(other, "order-1")).wait())
        assert (await pending.wait()).paid is None
        async with asyncio.timeout(1.0):
            outcome = await beside
        assert (outcome.evidence, outcome.paid) == (Evidence.LAST_QUERY, None)
