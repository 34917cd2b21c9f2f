"""Every wait ends within the sale window and ten minutes, whatever the service does, short of silence for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import crowd as virtual
import payclient
from fake_ledgers import SharedLedger
from payclient.events import Evidence
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_storms import BOUND, Service, in_virtual_time, limited, now, tracking

#: What a query may come to; the last is the truth.
BEHAVIOURS = [
    "429", "429 0", "429 5", "429 9999", "401", "500", "503", "html", "empty", "hangs", "resets", "slow",
    "unmapped", "not found", "another's", "truth",
]  # fmt: skip


async def misbehave(what: str) -> HttpResponse | None:
    """Answer as told; None is the truth."""
    await asyncio.sleep(0.05)
    match what.split():
        case ["429", *after]:
            return limited(after[0] if after else None)
        case ["401"]:
            return HttpResponse(401, {}, b'{"message": "no"}')
        case ["500" | "503"]:
            return HttpResponse(int(what), {}, b"{}")
        case ["html"]:
            return HttpResponse(200, {}, b"<html>busy</html>")
        case ["empty"]:
            return HttpResponse(200, {}, b"")
        case ["hangs"]:
            await asyncio.sleep(3600.0)
        case ["resets"]:
            raise ConnectionResetError
        case ["slow"]:
            await asyncio.sleep(20.0)
        case ["unmapped"]:
            return HttpResponse(200, {}, b'{"transactionId": 1, "state": "Pondering"}')
        case ["not", "found"]:
            return HttpResponse(404, {}, b'{"message": "none", "errorCode": 20}')
        case ["another's"]:
            return HttpResponse(
                200, {}, b'{"transactionId": 999999, "clientTransactionId": "x", "state": "Aceptado"}'
            )
    return None


def check(behaviours: Sequence[str], count: int, lost: bool) -> None:
    async def main() -> None:
        number = 0

        async def trouble() -> HttpResponse | None:
            nonlocal number
            number += 1
            return await misbehave(behaviours[number % len(behaviours)])

        service = Service(trouble)

        async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            answer = await service(request, before_send)
            if lost and request.method == "POST" and len(service.truth) % 3 == 0:
                raise ConnectionResetError
            return answer

        session = payclient.PaySession(
            "https://pay.example", "token", profile=virtual.PROFILE, transport=transport
        )
        async with tracking(service, session=session) as tracker:
            began = now()
            pendings = [await tracker.sale(virtual.request(f"order-{each}")) for each in range(count)]
            async with asyncio.timeout(100 * BOUND):
                outcomes = await asyncio.gather(*(pending.wait() for pending in pendings))
            assert now() - began <= BOUND, f"the last wait took {now() - began:.0f} s"
        for outcome in outcomes:
            if outcome.paid is not None and outcome.evidence is not Evidence.ABSENT:
                assert outcome.paid is (service.truth[outcome.client_transaction_id][1] == "Aceptado")

    in_virtual_time(main)


@example(["429 9999", "html", "unmapped", "unmapped", "429"], 40, True)
@given(
    st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=12), st.sampled_from([1, 5, 40]), st.booleans()
)
def test_every_wait_ends(behaviours: list[str], count: int, lost: bool) -> None:
    """Of any mixture, repeated for ever, for one sale or forty, where answers were lost or not; and never a lie."""
    check(behaviours, count, lost)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_wait_ends_whatever_the_service_always_does(behaviour: str) -> None:
    """One and the same, for forty sales of which some answers were lost."""
    check([behaviour], 40, lost=True)


def test_a_sale_whose_own_queries_fail_ends_its_wait() -> None:
    """However well the queries of all others are answered: what nobody knows is None."""

    async def main() -> None:
        service = Service()

        async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            poisoned = b"poisoned" in request.body or "poisoned" in request.path
            if poisoned and request.method == "GET":
                return HttpResponse(500, {}, b"{}")
            answer = await service(request, before_send)
            if poisoned:
                raise ConnectionResetError
            return answer

        session = payclient.PaySession(
            "https://pay.example", "token", profile=virtual.PROFILE, transport=transport
        )
        async with tracking(service, session=session) as tracker:
            pending = await tracker.sale(virtual.request("poisoned"))
            waiting, began = asyncio.create_task(pending.wait()), now()
            others = 0
            while not waiting.done() and now() < began + 2 * BOUND:
                await tracker.sale(virtual.request(f"order-{others}"))
                others += 1
                await asyncio.wait({waiting}, timeout=4.0)
            assert waiting.done()
            assert now() - began <= BOUND
            assert (await waiting).paid is None

    in_virtual_time(main)


def test_a_wait_beside_the_process_that_asks_ends_with_its_last_query() -> None:
    """What is never decided: who waits in another process learns of the last query as it is written."""

    async def main() -> None:
        service, first = Service(undecided=True), SharedLedger()
        async with (
            tracking(service, ledger=first) as one,
            tracking(service, ledger=SharedLedger(first)) as other,
        ):
            pending = await one.sale(virtual.request("order-1"))
            found = await other.find("order-1")
            assert found is not None
            beside = asyncio.create_task(found.wait())
            assert (await pending.wait()).paid is None
            async with asyncio.timeout(1.0):
                outcome = await beside
            assert (outcome.evidence, outcome.paid) == (Evidence.LAST_QUERY, None)

    in_virtual_time(main)
