"""A service that sheds, fails, hangs or babbles, in virtual time: the rates that are kept, and that every wait ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import attrs
import pytest

import crowd as virtual
import payclient
from fake_ledgers import SharedLedger
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

#: Seconds in which a wait must have ended: the sale window, and ten minutes.
BOUND = 900.0

Trouble = Callable[[], Awaitable[HttpResponse | None]]


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run it on a loop whose time jumps to the next timer."""

    async def wrapped() -> None:
        await main()

    with asyncio.Runner(loop_factory=virtual.VirtualLoop) as runner:
        runner.run(wrapped())


def now() -> float:
    return asyncio.get_running_loop().time()


def limited(retry_after: str | None = None) -> HttpResponse:
    """A 429."""
    return HttpResponse(429, {} if retry_after is None else {"Retry-After": retry_after}, b"{}")


class Service(virtual.Service):
    """Answers each query by `trouble`, and as it should where that gives None. `undecided`: nobody ever answers."""

    def __init__(self, trouble: Trouble | None = None, *, undecided: bool = False) -> None:
        super().__init__(11, faults=False)
        self.trouble = trouble
        self.undecided = undecided
        #: When each query was made, and when it was answered.
        self.made: list[float] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "GET":
            self.made.append(now())
            if self.trouble is not None:
                if before_send is not None:
                    await before_send()
                if (answer := await self.trouble()) is not None:
                    return answer
        answer = await super().__call__(request, before_send)
        if request.method == "POST" and self.undecided:
            self.truth[json.loads(request.body)["clientTransactionId"]] = (1e9, "Aceptado")
        return answer


def tracking(
    service: Service,
    *,
    ledger: Ledger | None = None,
    profile: payclient.ServiceProfile = virtual.PROFILE,
    status: payclient.StatusSource | None = None,
    schedule: payclient.Schedule | None = None,
    session: payclient.PaySession | None = None,
) -> payclient.Tracker:
    if session is None:
        session = payclient.PaySession("https://pay.example", "token", profile=profile, transport=service)
    return payclient.Tracker(
        session, MemoryLedger() if ledger is None else ledger, status=status, schedule=schedule,
        clock=virtual.VirtualClock(),
    )  # fmt: skip


async def waits_of(
    tracker: payclient.Tracker, count: int, bound: float = BOUND
) -> tuple[Sequence[payclient.Outcome], float]:
    """Make so many sales and wait for all; their outcomes, and the seconds that the last of them took."""
    began = now()
    pendings = [await tracker.sale(virtual.request(f"order-{number}")) for number in range(count)]
    async with asyncio.timeout(100 * BOUND):
        outcomes = await asyncio.gather(*(pending.wait() for pending in pendings))
    took = now() - began
    assert took <= bound, f"the last wait took {took:.0f} s"
    return outcomes, took


# --- 429


def test_a_round_of_429_slows_once() -> None:
    """32 in flight are all answered 429 with `Retry-After: 0`: the next query comes within ten seconds."""

    all_there = asyncio.Event()

    async def shed() -> HttpResponse | None:
        if len(service.made) > 32:
            return None
        if len(service.made) == 32:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(random.uniform(0.0, 0.5))  # noqa: S311 - no secret
        return limited("0")

    service = Service(shed, undecided=True)

    async def main() -> None:
        async with tracking(service, schedule=payclient.Fixed(1.0)) as tracker:
            for number in range(40):
                await tracker.sale(virtual.request(f"order-{number}"))
            while len(service.made) < 40:
                await asyncio.sleep(0.05)
                assert now() < 60.0, "no query came any more"
        assert max(after - before for before, after in pairwise(service.made)) <= 2.0

    in_virtual_time(main)


@pytest.mark.parametrize("retry_after", [None, "0", "1"])
def test_a_service_that_sheds_for_ever_ends_every_wait(retry_after: str | None) -> None:
    """Of 40 sales each wait ends in time, and with the truth; no two queries are ever more than ten seconds apart."""
    dice = random.Random(5)  # noqa: S311 - it must repeat

    async def shed() -> HttpResponse | None:
        await asyncio.sleep(0.05)
        return limited(retry_after) if dice.random() < 0.3 else None

    async def main() -> None:
        service = Service(shed)
        async with tracking(service) as tracker:
            outcomes, _ = await waits_of(tracker, 40)
            assert None not in {outcome.paid for outcome in outcomes}
        service = Service(shed, undecided=True)
        async with tracking(service) as tracker:
            await waits_of(tracker, 40)
        busy = [when for when in service.made if when < service.made[0] + 290.0]
        assert max(after - before for before, after in pairwise(busy)) <= 10.5

    in_virtual_time(main)


def test_nothing_but_429_slows_to_a_query_in_ten_seconds_and_is_forgotten() -> None:
    """However long it lasts; a few successes later the queries come as before."""
    shedding = True

    async def shed() -> HttpResponse | None:
        await asyncio.sleep(0.05)
        return limited() if shedding else None

    service = Service(shed, undecided=True)

    async def main() -> None:
        nonlocal shedding
        async with tracking(service, schedule=payclient.Fixed(2.0)) as tracker:
            for number in range(40):
                await tracker.sale(virtual.request(f"order-{number}"))
            await asyncio.sleep(200.0)
            assert max(after - before for before, after in pairwise(service.made)) <= 10.5
            assert sum(when > 100.0 for when in service.made) <= 12
            shedding = False
            count = len(service.made)
            await asyncio.sleep(30.0)
            assert len(service.made) - count > 100

    in_virtual_time(main)


def test_a_retry_after_is_obeyed_up_to_a_minute() -> None:
    """More than ten seconds where the service says so, and never more than sixty."""

    async def shed() -> HttpResponse | None:
        return {1: limited("25"), 2: limited("86400")}.get(len(service.made))

    service = Service(shed, undecided=True)

    async def main() -> None:
        async with tracking(service, schedule=payclient.Fixed(1.0)) as tracker:
            pending = await tracker.sale(virtual.request("order-1"))
            await asyncio.sleep(10.0)
            assert (await pending.check()).paid is None
            assert len(service.made) == 1, "asked by hand in the midst of the pause"
            await asyncio.sleep(110.0)
        first, second, third = service.made[:3]
        assert second - first == pytest.approx(25.0, abs=2.0)
        assert third - second == pytest.approx(60.0, abs=2.0)

    in_virtual_time(main)


def test_a_service_that_only_sheds_ends_every_wait() -> None:
    """Nobody is left waiting for last queries that a crowd cannot get; what nobody knows is None."""

    async def shed() -> HttpResponse | None:
        await asyncio.sleep(0.05)
        return limited()

    async def main() -> None:
        async with tracking(Service(shed)) as tracker:
            outcomes, _ = await waits_of(tracker, 100)
            assert {outcome.paid for outcome in outcomes} == {None}

    in_virtual_time(main)


def test_processes_that_share_a_rate_end_every_wait_of_a_service_that_sheds() -> None:
    """Two trackers over one ledger: 120 queries a minute for both, also while some are answered 429."""
    dice = random.Random(5)  # noqa: S311 - it must repeat

    async def shed() -> HttpResponse | None:
        await asyncio.sleep(0.05)
        return limited() if dice.random() < 0.3 else None

    async def main() -> None:
        service = Service(shed)
        profile = attrs.evolve(virtual.PROFILE, queries_per_minute=120.0)
        first = SharedLedger()
        async with (
            tracking(service, ledger=first, profile=profile) as one,
            tracking(service, ledger=SharedLedger(first), profile=profile) as other,
        ):
            pendings = [
                await (one, other)[number % 2].sale(virtual.request(f"order-{number}"))
                for number in range(40)
            ]
            outcomes = await asyncio.gather(*(pending.wait() for pending in pendings))
            assert now() <= BOUND
            assert None not in {outcome.paid for outcome in outcomes}
        assert all(sum(when <= other < when + 60 for other in service.made) <= 122 for when in service.made)

    in_virtual_time(main)


def test_a_shared_rate_is_slowed_once_by_a_round_of_429() -> None:
    """32 in flight are shed with `Retry-After: 0`: both processes go on within ten seconds."""
    shedding = True

    async def shed() -> HttpResponse | None:
        await asyncio.sleep(5.0)
        return limited("0") if shedding else None

    async def main() -> None:
        nonlocal shedding
        service = Service(shed, undecided=True)
        profile = attrs.evolve(virtual.PROFILE, queries_per_minute=600.0)
        first = SharedLedger()
        async with (
            tracking(service, ledger=first, profile=profile) as one,
            tracking(service, ledger=SharedLedger(first), profile=profile) as other,
        ):
            for number in range(80):
                await (one, other)[number % 2].sale(virtual.request(f"order-{number}"))
            await asyncio.sleep(60.0)
            shedding = False
            await asyncio.sleep(60.0)
        assert max(after - before for before, after in pairwise(service.made)) <= 10.5
        assert sum(when > 100.0 for when in service.made) > 100

    in_virtual_time(main)


def test_under_the_profile_rate_a_wait_is_longer_not_poorer() -> None:
    """A tight rate alone ends nobody's wait before its last query."""

    async def main() -> None:
        service = Service(undecided=True)
        profile = attrs.evolve(virtual.PROFILE, queries_per_minute=6.0)
        async with tracking(service, profile=profile) as tracker:
            _, took = await waits_of(tracker, 20, bound=2000.0)
            assert took > BOUND
        late = [name for when, name in service.queries if when > 300.0]
        assert min(late.count(f"order-{number}") for number in range(20)) == 7

    in_virtual_time(main)


# --- A status source of the user's


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_status_source_that_never_answers_ends_its_wait(stubborn: bool) -> None:
    """Its query ends at the total time-out, also where it does not let itself be cancelled."""

    closing = False

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if closing or not stubborn:
                    raise

    async def main() -> None:
        nonlocal closing
        async with tracking(Service(), status=status) as tracker:
            pending = await tracker.sale(virtual.request("order-1"))
            began = now()
            assert (await pending.check()).paid is None
            assert now() - began <= 31.0
            outcomes, _ = await waits_of(tracker, 1)
            assert [outcome.paid for outcome in outcomes] == [None]
        closing = True

    in_virtual_time(main)


def test_a_status_source_that_hangs_for_some_holds_nobody_else_up() -> None:
    """32 of its queries hang: the others are answered within the time-out, and a sale that hangs is asked for less."""
    asked: list[str] = []

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        asked.append(reference.client_transaction_id)
        if reference.client_transaction_id.startswith("hangs"):
            await asyncio.get_running_loop().create_future()
        return payclient.StatusReport(
            state="Aceptado", transaction_id=reference.transaction_id, client_transaction_id=None
        )

    async def main() -> None:
        async with tracking(Service(), status=status) as tracker:
            hanging = [await tracker.sale(virtual.request(f"hangs-{number}")) for number in range(32)]
            await asyncio.gather(*(pending.check() for pending in hanging), return_exceptions=True)
            outcomes, took = await waits_of(tracker, 10)
            assert {outcome.paid for outcome in outcomes} == {True}
            assert took <= 60.0
            await asyncio.gather(*(pending.wait() for pending in hanging))
            assert now() <= BOUND + 60.0
        assert asked.count("hangs-0") <= 25

    in_virtual_time(main)


@pytest.mark.parametrize("error", [RuntimeError("x"), asyncio.CancelledError(), KeyError("state"), OSError()])
def test_whatever_a_status_source_raises_is_a_failure(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It backs off, is logged a few times, raises out of no `check()`, and the wait ends."""
    asked: list[float] = []

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        asked.append(now())
        raise error

    async def main() -> None:
        async with tracking(Service(), status=status, schedule=payclient.Fixed(1.0)) as tracker:
            pending = await tracker.sale(virtual.request("order-1"))
            assert (await pending.check()).paid is None
            assert (await pending.wait()).paid is None
            assert now() <= BOUND

    in_virtual_time(main)
    assert sum(when < 300.0 for when in asked) <= 20
    assert len([each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]) <= 3


def test_a_service_that_sheds_does_not_keep_absence_from_being_proven() -> None:
    """After a restart a wait for an unknown sale goes on to the proof, though one query in eight is shed for ever."""
    queries = itertools.count()

    async def shed() -> HttpResponse | None:
        return limited("1") if next(queries) % 8 == 0 else None

    class Loses(Service):
        """Every POST is lost on its way."""

        async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            if request.method == "GET":
                missing = HttpResponse(404, {}, b'{"message": "none", "errorCode": 20}')
                return await shed() or missing
            assert before_send is not None
            await before_send()
            raise payclient.OutcomeUnknownError("lost")

    async def main() -> None:
        ledger, service = MemoryLedger(), Loses()
        profile = attrs.evolve(virtual.PROFILE, not_found_codes=frozenset({20}))
        async with tracking(service, ledger=ledger, profile=profile) as tracker:
            pending = await tracker.sale(virtual.request("order-1"))
            assert pending.state is payclient.State.UNKNOWN
        await asyncio.sleep(400)
        async with tracking(service, ledger=ledger, profile=profile) as tracker:
            found = await tracker.find("order-1")
            assert found is not None
            began = now()
            outcome = await found.wait()
            assert (outcome.state, outcome.evidence) == ("refused", "absent")
            assert now() - began <= BOUND

    in_virtual_time(main)
