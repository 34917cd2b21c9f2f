"""Under `asyncio.eager_task_factory` a task may have ended before its creator has stored it: nothing hangs for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

import payclient
from crowd import BOUND, PROFILE, Service, hint, now, push, tracking
from fake_service import form
from payclient.ledger.memory import MemoryLedger
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_rates import FORMS, Forms
from virtual_loop import VirtualLoop

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11 has no eager tasks")


def in_eager_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run it in virtual time on a loop whose tasks begin at once."""

    async def wrapped() -> None:
        async with asyncio.timeout(10 * BOUND):
            await main()

    with asyncio.Runner(loop_factory=partial(VirtualLoop, eager=True)) as runner:  # type: ignore[abstract]  # no I/O in it
        runner.run(wrapped())


def test_a_source_that_answers_at_once_ends_every_wait() -> None:
    """Its query has ended before it is known to run: the next one is made all the same."""
    asked = 0

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        nonlocal asked
        asked += 1
        return payclient.StatusReport(
            state="Aceptado" if asked > 3 else "Pendiente",
            transaction_id=reference.transaction_id,
            client_transaction_id=None,
        )

    async def main() -> None:
        async with tracking(Service(), status=status) as tracker:
            pending = await tracker.sale(push("order-1"))
            await pending.check()
            assert (await pending.wait()).paid is True
            assert now() < 300.0
            again = await tracker.sale(push("order-1"))
            assert (await again.wait()).paid is True

    in_eager_time(main)


def test_waits_notifications_and_expiries() -> None:
    """A crowd ends as it does without eager tasks."""

    async def main() -> None:
        service = Service()
        async with tracking(service) as tracker:
            pendings = await asyncio.gather(*(tracker.sale(push(f"order-{number}")) for number in range(50)))
            one = pendings[0]
            await tracker.notify(hint(one))
            outcomes = [outcome async for outcome in payclient.as_decided(pendings)]
            assert None not in {outcome.paid for outcome in outcomes}
            assert now() < BOUND

    in_eager_time(main)


def test_a_token_is_renewed_each_time() -> None:
    """A callable that gives one without waiting is asked again after each 401."""
    given = 0

    async def token() -> str:
        nonlocal given
        given += 1
        return f"token-{given}"

    async def main() -> None:
        async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
            assert before_send is not None
            await before_send()
            assert request.headers is not None
            if request.headers["Authorization"] == f"Bearer token-{given}" and given % 2:
                return HttpResponse(401, {}, b'{"message": "expired"}')
            return HttpResponse(404, {}, b'{"message": "none", "errorCode": 20}')

        async with payclient.PaySession(
            "https://pay.example", token, profile=PROFILE, transport=transport
        ) as session:
            for count in (2, 2, 2):
                assert await session.status(transaction_id=1) is None
                assert given == count

    in_eager_time(main)


def test_forms_are_prepared_and_confirmed() -> None:
    """One live form however many ask, and its return is confirmed, twice in a row."""

    async def main() -> None:
        service = Forms()
        async with tracking(service, profile=FORMS, ledger=MemoryLedger()) as tracker:
            for number in range(2):
                forms = await asyncio.gather(*(tracker.live_form(f"cart-{number}", form) for _ in range(3)))
                (name,) = {form.client_transaction_id for form in forms}
                back = f"?id={service.forms[name]['transactionId']}&clientTransactionId={name}"
                assert (await tracker.returned(back)).paid is True
                assert (await tracker.returned(back)).paid is True

    in_eager_time(main)
