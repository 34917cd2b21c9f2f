"""Under `asyncio.eager_task_factory` a task may have ended before its creator has stored it: nothing hangs for it."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import Any

import pytest

import payclient
from crowd import BOUND, PROFILE, Service, hint, now, push, tracking
from fake_service import form
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_rates import FORMS, Forms
from virtual_loop import in_virtual_time

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11 has no eager tasks")


in_eager_time = functools.partial(in_virtual_time, eager=True, longest=10 * BOUND)


@in_eager_time
async def test_a_source_that_answers_at_once_ends_every_wait() -> None:
    """Its query has ended before it is known to run: the next one is made all the same."""
    asked = 0

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        nonlocal asked
        asked += 1
        state: Any = "Aceptado" if asked > 3 else "Pendiente"
        return payclient.StatusReport(
            state=state, transaction_id=reference.transaction_id, client_transaction_id=None
        )

    async with tracking(Service(), status=status) as tracker:
        pending = await tracker.sale(push("order-1"))
        await pending.check()
        assert (await pending.wait()).paid is True
        assert now() < 300.0
        again = await tracker.sale(push("order-1"))
        assert (await again.wait()).paid is True


@in_eager_time
async def test_waits_notifications_and_expiries() -> None:
    """A crowd ends as it does without eager tasks."""
    async with tracking(Service()) as tracker:
        pendings = await asyncio.gather(*(tracker.sale(push(f"order-{number}")) for number in range(50)))
        await tracker.notify(hint(pendings[0]))
        outcomes = [outcome async for outcome in payclient.as_decided(pendings)]
        assert None not in {outcome.paid for outcome in outcomes}
        assert now() < BOUND


@in_eager_time
async def test_a_token_is_renewed_each_time() -> None:
    """A callable that gives one without waiting is asked again after each 401."""
    given = 0

    async def token() -> str:
        nonlocal given
        given += 1
        return f"token-{given}"

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        assert request.headers is not None
        if request.headers["Authorization"] == f"Bearer token-{given}" and given % 2:
            return HttpResponse(401, {}, b'{"message": "expired"}')
        return HttpResponse(404, {}, b'{"message": "none", "errorCode": 20}')

    url = "https://pay.example"
    async with payclient.PaySession(url, token, profile=PROFILE, transport=transport) as session:
        for count in (2, 2, 2):
            assert await session.status(transaction_id=1) is None
            assert given == count


@in_eager_time
async def test_forms_are_prepared_and_confirmed() -> None:
    """One live form however many ask, and its return is confirmed, twice in a row."""
    service = Forms()
    async with tracking(service, profile=FORMS) as tracker:
        for number in range(2):
            forms = await asyncio.gather(*(tracker.live_form(f"cart-{number}", form) for _ in range(3)))
            (name,) = {form.client_transaction_id for form in forms}
            back = f"?id={service.forms[name]['transactionId']}&clientTransactionId={name}"
            assert (await tracker.returned(back)).paid is True
            assert (await tracker.returned(back)).paid is True
