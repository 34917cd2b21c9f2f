"""`live_form` over the generations of its key in the ledger: after long, after a restart, and in another process."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import attrs
import pytest

import payclient
from crowd import in_virtual_time, tracking
from fake_ledgers import SharedLedger
from fake_service import form as form_request
from fake_service import pending_of
from payclient.ledger.memory import MemoryLedger
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_rates import FORMS, Forms


class Shop(Forms):
    """Confirms no form while `silent`."""

    silent = False

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if self.silent and request.path.endswith("Confirm"):
            assert before_send is not None
            await before_send()
            raise ConnectionResetError
        return await super().__call__(request, before_send)


def back_of(service: Shop, form: payclient.PaymentForm) -> str:
    """What the browser of a customer who paid brings back."""
    number = service.forms[form.client_transaction_id]["transactionId"]
    return f"?id={number}&clientTransactionId={form.client_transaction_id}"


async def assert_paid(tracker: payclient.Tracker, form: payclient.PaymentForm) -> None:
    with pytest.raises(payclient.AlreadyPaidError) as raised:
        await tracker.live_form("cart", form_request)
    assert raised.value.outcome.paid is True
    assert raised.value.client_transaction_id == form.client_transaction_id
    assert pickle.loads(pickle.dumps(raised.value)).outcome.paid is True  # noqa: S301 - our own


@pytest.mark.parametrize("age", [0.0, 1300.0], ids=["at once", "its links are dead"])
@in_virtual_time
async def test_a_paid_cart_gets_no_other_form(age: float) -> None:
    """In the same process, after a restart, and in another one over the same ledger."""

    service, ledger = Shop(), SharedLedger()
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        form = await tracker.live_form("cart", form_request)
        assert await tracker.live_form("cart", form_request) is form
        assert (await tracker.returned(back_of(service, form))).paid is True
        await asyncio.sleep(age)
        await assert_paid(tracker, form)
        async with tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other:
            await assert_paid(other, form)
            await other.live_form("other cart", form_request)
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        await assert_paid(tracker, form)
    assert len(service.forms) == 2


@in_virtual_time
async def test_a_form_that_came_back_undecided_forbids_another() -> None:
    """No confirmation comes through: nobody knows, so that none is prepared here, elsewhere or after a restart."""

    service, ledger = Shop(), SharedLedger()
    service.silent = True
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        form = await tracker.live_form("cart", form_request)
        assert (await tracker.returned(back_of(service, form))).paid is None
        await asyncio.sleep(541.0)  # its margin begins
        async with tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other:
            for each in (tracker, other):
                with pytest.raises(payclient.PurchaseOpenError) as raised:
                    await each.live_form("cart", form_request)
                assert raised.value.pending.client_transaction_id == form.client_transaction_id
                assert raised.value.until > raised.value.pending.expires_at
                assert pickle.loads(pickle.dumps(raised.value)).until == raised.value.until  # noqa: S301 - our own
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        with pytest.raises(payclient.PurchaseOpenError):
            await tracker.live_form("cart", form_request)
    assert len(service.forms) == 1


@in_virtual_time
async def test_an_older_generation_counts() -> None:
    """The last of one key is live as the first is paid after all, though its links are dead."""

    service, ledger = Shop(), MemoryLedger()
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        forms = []
        for _ in range(3):
            forms.append(await tracker.live_form("cart", form_request))
            await asyncio.sleep(1700)
        assert len({form.client_transaction_id for form in forms}) == 3
        last = await tracker.live_form("cart", form_request)
        assert await tracker.live_form("cart", form_request) is last
        await tracker.returned(back_of(service, forms[0]))
        await assert_paid(tracker, forms[0])


@in_virtual_time
async def test_workers_that_ask_at_once_get_one_form() -> None:
    """The ones that lose its permit wait for its links, which the ledger keeps while they live."""

    service, ledger = Shop(), SharedLedger()
    async with (
        tracking(service, ledger=ledger, profile=FORMS) as one,
        tracking(service, ledger=SharedLedger(ledger), profile=FORMS) as other,
    ):
        forms = await asyncio.gather(*(each.live_form("cart", form_request) for each in (one, other) * 3))
        assert len({(form.client_transaction_id, form.card.url) for form in forms}) == 1
        await one.returned(back_of(service, forms[1]))
        await assert_paid(one, forms[1])
        await assert_paid(other, forms[1])
        await asyncio.sleep(1)
        assert await ledger.links("cart", 0.0) == {}


async def test_a_paid_cart_stays_paid_in_a_file_that_is_opened_again(tmp_path: Path) -> None:
    """A SQLite ledger, closed and opened by the next process."""
    service = Shop()
    forms: list[payclient.PaymentForm] = []
    for _ in range(2):
        ledger = await payclient.open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
        try:
            session = payclient.PaySession("https://pay.example", "token", profile=FORMS, transport=service)
            async with payclient.Tracker(session, ledger) as tracker:
                if forms:
                    await assert_paid(tracker, forms[0])
                else:
                    forms.append(await tracker.live_form("cart", form_request))
                    await tracker.returned(back_of(service, forms[0]))
        finally:
            await ledger.aclose()
    assert len(service.forms) == 1


class Dropping(MemoryLedger):
    """Remembers until when it kept links after the last deletion; None: it kept none."""

    until: float | None = None

    async def drop_links(self, now: float) -> float | None:
        self.until = await super().drop_links(now)
        return self.until


class GivenUp(Shop):
    """Every form is cancelled."""

    def status(self, identifier: str) -> dict[str, object]:
        return super().status(identifier) | {"state": "Cancelado"}


@in_virtual_time
async def test_the_links_of_a_form_that_a_query_finds_cancelled_are_deleted() -> None:
    """Within a second, and not only once they are dead."""

    service, ledger = GivenUp(), Dropping()
    async with tracking(service, ledger=ledger, profile=FORMS) as tracker:
        form = await tracker.live_form("cart", form_request)
        await asyncio.sleep(0.1)
        assert ledger.until is not None
        found = await pending_of(tracker, form.client_transaction_id)
        assert (await found.wait()).state is payclient.State.CANCELLED
        await asyncio.sleep(1)
        assert ledger.until is None


@in_virtual_time
async def test_the_links_of_a_confirmed_form_are_deleted_where_forms_are_not_queried() -> None:
    """A profile without a query by client transaction id: the confirmation alone says that it is paid."""

    service, ledger = Shop(), Dropping()
    assert FORMS.status is not None
    profile = attrs.evolve(FORMS, status=attrs.evolve(FORMS.status, by_client_transaction_id=None))
    async with tracking(service, ledger=ledger, profile=profile) as tracker:
        form = await tracker.live_form("cart", form_request)
        await asyncio.sleep(0.1)
        assert ledger.until is not None
        assert (await tracker.returned(back_of(service, form))).paid is True
        await asyncio.sleep(1)
        assert ledger.until is None
