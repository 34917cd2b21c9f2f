"""Whose silence it is: under another account's token "not found" proves nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from itertools import chain, repeat
from pathlib import Path

import attrs
import pytest

import payclient
from fake_ledgers import HookedLedger, disk_full
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Script,
    answer,
    answers,
    collected_by,
    error_of,
    events_of,
    form,
    held_by,
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
    tracking,
    when,
)
from payclient.events import Evidence, FoundCancelled
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.profile import StatusProfile, UndoProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from test_ledger import ledger as ledger  # the fixture
from test_ledger import url_of

State = payclient.State


class Accounts(FakeService):
    """One address with two accounts: each token finds what its own account made."""

    def __init__(self) -> None:
        super().__init__()
        #: Token -> account; a token that is not here is answered 401.
        self.accounts = {"token-1": "shop", "token-2": "other"}
        self.owners: dict[int, str] = {}
        #: The shop's ledger.
        self.book: Ledger = MemoryLedger()
        #: What every token was asked for.
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        token = (request.headers or {})["Authorization"].removeprefix("Bearer ")
        assert before_send is not None
        account = self.accounts.get(token)
        if account is None:
            await before_send()
            return answer(401, {"message": "no"})
        if request.method == "GET":
            await before_send()
            self.asked.append((token, request.path))
            return self.seen_by(account, request.path)
        before = set(self.sales)
        try:
            return await super().__call__(request, before_send)
        finally:
            for created in set(self.sales) - before:
                self.owners[created] = account

    def seen_by(self, account: str, path: str) -> HttpResponse:
        everything = self.sales
        self.sales = {number: each for number, each in everything.items() if self.owners[number] == account}
        try:
            found = self.status(path)
        finally:
            self.sales = everything
        return refusal(20, status=404) if found.body == b"[]" else found


@pytest.fixture
def service() -> Accounts:
    return Accounts()


BOTH = ("order-17", "order-18")


def push(identifier: str = "order-17") -> payclient.SaleRequest:
    """A sale of a customer of its own."""
    return sale(identifier, "0984111222" if identifier == "order-17" else "0984111333")


def under(
    service: Accounts, token: str | Callable[[], Awaitable[str]], profile: payclient.ServiceProfile = PROFILE
) -> AbstractAsyncContextManager[payclient.Tracker]:
    """A process of the shop with this token."""
    return tracking(service, service.book, profile, token=token)


async def sold(service: Accounts, *scripts: Script, ids: Sequence[str] = ("order-17",)) -> None:
    """Sales under the first token, by a process that ends then."""
    service.scripts = list(scripts)
    async with under(service, "token-1") as tracker:
        for identifier in ids:
            await tracker.sale(push(identifier))


async def sold_by_other(service: Accounts, *ids: str) -> None:
    """Sales of the other account, from a ledger of its own."""
    async with tracking(service, MemoryLedger(), token="token-2") as tracker:
        for identifier in ids:
            await tracker.sale(push(identifier))


async def ended(service: Accounts, token: str) -> payclient.Outcome:
    """What a process with this token says at the end."""
    async with under(service, token) as tracker:
        return await outcome_of(service, await pending_of(tracker))


async def another(service: Accounts, *ids: str) -> Accounts:
    """Another shop's service, which counts from one number too, and answers short reports of its first sale."""
    other = Accounts()
    other.clock, other.book = service.clock, service.book
    await sold_by_other(other, *ids)
    other.sales[1000]["clientTransactionId"] = None
    return other


async def test_anothers_not_found_proves_nothing(service: Accounts, caplog: pytest.LogCaptureFixture) -> None:
    """An executed charge stays unknown under another token, is not sent again, and one warning says why."""
    await sold(service, lost_answer, lost_answer, ids=BOTH)
    service.decide("Aceptado")
    async with under(service, "token-2") as tracker:
        for identifier in BOTH:
            outcome = await outcome_of(service, await pending_of(tracker, identifier))
            assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
        await service.clock.advance(100_000)
        assert (await tracker.sale(sale())).state is State.UNKNOWN
    assert [each for each in caplog.messages if "one ledger for each account" in each] == [
        'order-17: sent under another token than the one in use, whose "not found" proves nothing; '
        "use one ledger for each account"
    ]
    assert (await ended(service, "token-1")).paid is True
    assert service.posted == {"order-17": 1, "order-18": 1}
    assert "token-" not in caplog.text


@pytest.mark.parametrize(
    ("owner", "state", "paid"), [("shop", State.REFUSED, False), ("other", State.UNKNOWN, None)]
)
async def test_a_rotated_token_proves_itself(
    service: Accounts, owner: str, state: State, paid: bool | None
) -> None:
    """A token that finds what the old one made is the same account's; one that finds nothing of it is not."""
    await sold(service, lost_request, ids=BOTH)
    service.accounts = {"token-9": owner}
    outcome = await ended(service, "token-9")
    assert (outcome.state, outcome.paid) == (state, paid)


async def test_what_another_account_made_under_the_same_ids_proves_no_account(service: Accounts) -> None:
    """Only the transaction that our own answer named says whose it is: another's order-18 looks like ours."""
    await sold(service, lost_request, lost_request, ids=BOTH)
    # As another shop of the same merchant may have sent it, from another ledger.
    await sold_by_other(service, "order-18")
    async with under(service, "token-2") as tracker:
        await service.clock.advance(100)
        outcome = await outcome_of(service, await pending_of(tracker))
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)


@pytest.mark.parametrize("named", [False, True], ids=["by client id", "by a candidate"])
@pytest.mark.parametrize("state", ["Aceptado", "Cancelado", "Pendiente"])
async def test_another_accounts_sale_of_the_same_id_decides_nothing(
    service: Accounts, state: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its order has our id, amount and currency: our unknown sale stays unknown, with one conflict."""
    await sold(service, lost_answer)
    await sold_by_other(service, "order-17")
    service.decide(state, 1001)
    async with under(service, "token-2") as tracker:
        if named:
            await tracker.notify(hint(1001))
        outcome = await outcome_of(service, await pending_of(tracker))
        assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.UNKNOWN, None, None)
    assert (await events_of(service.book)).count("Conflicted") == 1
    service.decide("Cancelado")
    outcome = await ended(service, "token-1")
    assert (outcome.state, outcome.transaction_id) == (State.CANCELLED, 1000)
    assert service.posted == {"order-17": 2}
    assert sum("found under other credentials" in each for each in caplog.messages) == 1


async def test_another_account_takes_no_candidate_away(service: Accounts) -> None:
    """Their transaction of that number is another order's; ours of the same number is asked for under our token."""
    service.scripts = [lost_answer]
    async with under(service, "token-1") as tracker:
        await tracker.sale(sale())
        await tracker.notify(hint(1001))
    await sold_by_other(service, "order-18")
    assert service.owners[1001] == "other"
    await ended(service, "token-2")
    assert (await record_in(service.book)).candidate_ids == (1001,)


async def test_an_expired_sale_proves_a_rotated_token_too(service: Accounts) -> None:
    """After a long stop all that was pending is expired; what it finds of one teaches about an unknown one."""
    await sold(service, FakeService.take, lost_answer, ids=BOTH[::-1])
    service.decide("Aceptado", 1001)
    service.accounts = {"token-9": "shop"}
    await service.clock.advance(3600)
    async with under(service, "token-9") as tracker:
        await outcome_of(service, await pending_of(tracker, "order-18"))
        assert (await outcome_of(service, await pending_of(tracker))).paid is True


FORMS = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_form_is_not_cancelled_by_another_accounts_form(service: Accounts, comes_back: bool) -> None:
    """Theirs of the same id is: ours may be paid and holds its purchase, also where its customer came back."""
    async with under(service, "token-1", FORMS) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
    service.pay("form-1", statusCode=2, transactionStatus="Canceled")
    service.owners[5001] = "other"
    async with under(service, "token-2", FORMS) as tracker:
        if comes_back:
            outcome = await tracker.returned("id=0&clientTransactionId=form-1")
            assert (outcome.state, outcome.paid) == (State.PENDING, None)
        await service.clock.advance(200)
        assert (await pending_of(tracker, "form-1")).outcome.paid is None
        await held_by(tracker, "cart-1")


@pytest.mark.parametrize("profile", [PROFILE, FORMS], ids=["not confirmed", "confirmed"])
async def test_a_form_is_not_paid_by_another_accounts_form(
    service: Accounts, profile: payclient.ServiceProfile
) -> None:
    """Theirs of the same id and amount is, whether a query or a confirmation says so."""
    async with under(service, "token-1", profile) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
    service.pay("form-1", state="Aceptado")
    service.owners[5001] = "other"
    async with under(service, "token-2", profile) as tracker:
        await service.clock.advance(1300)
        if profile is FORMS:
            closing = asyncio.create_task(tracker.returned("id=0&clientTransactionId=form-1"))
            await service.clock.advance(5)
            assert (await closing).paid is None
        await service.clock.advance(5000)
        assert (await pending_of(tracker, "form-1")).outcome.paid is None


async def test_a_form_is_paid_by_what_its_browser_brought_under_a_rotated_token(service: Accounts) -> None:
    """No other account's transaction has that number."""
    service.accounts["rotated"] = "shop"
    async with under(service, "token-1", FORMS) as tracker:
        await tracker.prepare(form(), purchase="cart-1")
    async with under(service, "rotated", FORMS) as tracker:
        query = service.pay("form-1")
        service.owners[5001] = "shop"
        assert (await tracker.returned(query)).paid is True


async def test_a_number_and_an_id_of_two_transactions_prove_no_account(service: Accounts) -> None:
    """Another account has our number for one sale and our client transaction id for another: both are cancelled."""
    await sold(service)
    service.decide("Aceptado")
    other = await another(service, "another-1", "order-17")
    for number in (1000, 1001):
        other.decide("Cancelado", number)
    assert (await ended(other, "token-2")).paid is None
    assert (await ended(service, "token-1")).paid is True


async def test_another_account_gives_no_payment_back(service: Accounts) -> None:
    """It has our number for one sale, our client transaction id for another without a number: both are cancelled."""
    await sold(service)
    service.decide("Aceptado")
    assert (await ended(service, "token-1")).paid is True
    other = await another(service, "another-1", "order-17")
    for number in (1000, 1001):
        other.decide("Cancelado", number)
    other.sales[1001]["transactionId"] = None
    async with under(other, "token-2") as tracker:
        assert (await (await pending_of(tracker)).check()).paid is True


async def test_a_number_alone_proves_no_account(service: Accounts) -> None:
    """Each account may count its transactions from one number: a report without an id of ours teaches nothing."""
    await sold(service, FakeService.take, lost_answer, ids=BOTH[::-1])
    service.decide("Aceptado", 1001)
    other = await another(service, "another-1")
    async with under(other, "token-2") as tracker:
        await service.clock.advance(100)
        assert (await outcome_of(service, await pending_of(tracker))).paid is None
        await tracker.sale(sale())
    assert other.posted == {"another-1": 1}
    assert (await ended(service, "token-1")).paid is True
    assert service.posted == {"order-18": 1, "order-17": 1}


@pytest.mark.parametrize(("theirs", "ours"), [("Aceptado", "Cancelado"), ("Cancelado", "Aceptado")])
async def test_a_number_decides_nothing_for_another_token(service: Accounts, theirs: str, ours: str) -> None:
    """Another account's transaction has our number and amount, and none there has our client transaction id."""
    await sold(service)
    other = await another(service, "another-1")
    other.decide(theirs)
    async with under(other, "token-2") as tracker:
        assert (await outcome_of(service, await pending_of(tracker))).paid is None
        await service.clock.advance(2000)
        assert (await pending_of(tracker)).outcome.paid is None
    service.decide(ours)
    async with under(service, "token-1") as tracker:
        assert (await (await pending_of(tracker)).check()).paid is (ours == "Aceptado")


@pytest.mark.parametrize("by_number", [True, False])
@pytest.mark.parametrize(
    ("theirs", "ours"), [("Aceptado", "Pendiente"), ("Cancelado", "Pendiente"), ("Cancelado", "Aceptado")]
)
async def test_our_id_without_a_number_decides_nothing_for_another_token(
    service: Accounts, by_number: bool, theirs: str, ours: str
) -> None:
    """Another account's sale has our client transaction id and amount, and its report no transaction id."""
    assert PROFILE.status is not None
    status = PROFILE.status if by_number else attrs.evolve(PROFILE.status, by_transaction_id=None)
    profile = attrs.evolve(PROFILE, status=status)
    async with under(service, "token-1", profile) as tracker:
        pending = await tracker.sale(push())
        service.decide(ours)
        if ours == "Aceptado":
            assert (await outcome_of(service, pending)).paid is True
    other = await another(service, "another-1", "order-17")
    for number in (1000, 1001):
        other.decide(theirs, number)
    other.sales[1001]["transactionId"] = None
    async with under(other, "token-2", profile) as tracker:
        await (await pending_of(tracker)).check()
        await service.clock.advance(700)
        assert (await pending_of(tracker)).outcome.paid is (True if ours == "Aceptado" else None)
        error = payclient.AlreadyPaidError if ours == "Aceptado" else payclient.PurchaseOpenError
        await error_of(error, tracker.sale(push("order-18"), purchase="order-17"))


async def test_a_number_corrects_nothing_for_another_token(service: Accounts) -> None:
    """Our sale was cancelled; another account's transaction has its number and amount, and is paid."""
    await sold(service)
    service.decide("Cancelado")
    assert (await ended(service, "token-1")).paid is False
    other = await another(service, "another-1")
    other.decide("Aceptado")
    async with under(other, "token-2") as tracker:
        await tracker.notify(hint())
        await service.clock.advance(100)
        assert (await pending_of(tracker)).outcome.paid is False


async def test_a_rotated_token_decides_by_short_reports(service: Accounts) -> None:
    """A report without our client transaction id proves no account, and the query by that id finds the sale."""
    await sold(service)
    service.accounts = {"token-9": "shop"}
    service.decide("Aceptado")
    shipped = service.status

    def short(path: str) -> HttpResponse:
        found = shipped(path)
        return HttpResponse(found.status, {}, found.body.replace(b"clientTransactionId", b"other"))

    service.status = short  # type: ignore[method-assign]  # reports without our id
    assert (await ended(service, "token-9")).paid is True
    assert [path for _, path in service.asked] == ["/api/Sale/1000", "/api/Sale/client/order-17"]


@pytest.mark.parametrize("token", ["token-1", "token-2"])
async def test_what_was_found_is_never_proven_absent(service: Accounts, token: str) -> None:
    """Found pending while it counted as being sent, and never again: a wait ends, and nothing is sent again."""
    service.book = HookedLedger(before={"Created": disk_full, "Lost": disk_full})
    async with under(service, "token-1") as tracker:
        await tracker.sale(sale())
        await service.clock.advance(20)
    assert (await record_in(service.book)).transaction_id == 1000
    service.sales.clear()
    async with under(service, token) as tracker:
        outcome = await outcome_of(service, await pending_of(tracker))
        assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.UNKNOWN, None, 1000)
        await tracker.sale(sale())
    assert service.posted == {"order-17": 1}


async def test_each_attempt_keeps_the_token_of_its_own_exchange(service: Accounts) -> None:
    """A callable gives another token while a request waits for its connection: that one goes with the old."""
    tokens, connecting = iter(["token-1", "token-2", "token-2"]), Gate()

    async def token() -> str:
        return next(tokens)

    async def slow(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await connecting()
        return await lost_request(service, request, before_send)

    service.scripts = [slow]
    async with under(service, token) as tracker:
        first = asyncio.create_task(tracker.sale(sale()))
        await connecting.there.wait()
        del service.accounts["token-1"]
        await error_of(payclient.UnauthorizedError, tracker.sale(push("order-18")))
        connecting.go.set()
        await first
        await tracker.sale(sale("order-19", "0984111444"))
    one, two = await record_in(service.book), await record_in(service.book, "order-19")
    assert one.credentials != two.credentials
    service.accounts["token-1"] = "shop"
    assert (await ended(service, "token-2")).paid is None
    outcome = await ended(service, "token-1")  # after a restart too: the digest stands in the ledger
    assert (outcome.paid, outcome.evidence) == (False, Evidence.ABSENT)


@pytest.mark.parametrize("is_seen", [False, True], ids=["by this query", "by another query"])
async def test_a_refusal_that_says_exists_is_believed_under_its_own_token_only(
    service: Accounts, is_seen: bool
) -> None:
    """A repeated POST is answered by 2061; the token is renewed, and another account's finds nothing."""
    tokens = chain(["token-1"], repeat("token-2"))

    async def token() -> str:
        return next(tokens)

    async def expires() -> None:
        del service.accounts["token-1"]
        if is_seen:
            await asyncio.create_task(other.check())  # is answered 401

    async with under(service, token) as tracker:
        other = await tracker.sale(push("order-18"))
        service.scripts = [posted(1, when(expires, refuses(22, 2061)))]
        assert (await tracker.sale(sale())).state is State.UNKNOWN


async def test_what_another_account_has_of_a_refused_sale_is_not_believed(service: Accounts) -> None:
    """Refused by 2061; under the renewed token its id is another account's, which is paid. The shop asks otherwise."""
    tokens = chain(["token-1"], repeat("token-2"))

    async def token() -> str:
        return next(tokens)

    async def silent(query: payclient.TransactionRef) -> None:
        raise TimeoutError

    service.add_sale()
    service.owners[1000] = "other"

    async def expires() -> None:
        del service.accounts["token-1"]
        await error_of(payclient.UnauthorizedError, tracker.sale(push("order-18")))

    service.scripts = [when(expires, refuses(22, 2061))]
    async with tracking(service, service.book, token=token, status=silent) as tracker:
        pending = await tracker.sale(sale())
        assert (pending.state, pending.outcome.paid) == (State.UNKNOWN, None)


async def test_a_refused_sale_is_not_paid_by_another_accounts_sale_of_its_id(service: Accounts) -> None:
    """Refused as existing, and not found; under another token its id is another's: nothing is sent or believed."""
    service.scripts = [refuses(22, 2061)]
    async with under(service, "token-1") as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
    service.add_sale()
    service.owners[1000] = "other"
    async with under(service, "token-2") as tracker:
        await error_of(payclient.NotSentError, tracker.sale(sale()), match="other credentials")
    assert (await record_in(service.book)).state is State.REFUSED
    assert not service.posted


async def test_another_accounts_not_found_frees_no_notified_refusal(service: Accounts) -> None:
    """A copy of the refused request was paid: under another token it is not found, and nothing is sent again."""
    service.scripts = [refuses(22, 2061)]
    async with under(service, "token-1") as tracker:
        await error_of(payclient.CustomerBusyError, tracker.sale(sale()))
    service.add_sale(state="Aceptado")
    service.owners[1000] = "shop"
    async with under(service, "token-2") as tracker:
        await tracker.notify(hint())
        await error_of(
            payclient.NotSentError, tracker.sale(sale()), match="not found under other credentials"
        )
    assert not service.posted
    async with under(service, "token-1") as tracker:
        assert (await tracker.sale(sale())).state is State.ACCEPTED


async def test_a_notified_refusal_that_no_query_can_find_is_not_called_another_accounts(
    service: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was queried, and its token is the one in use: neither the error nor a warning speaks of another."""
    async with refused(service, refuses(800), ledger=service.book, profile=payclient.DOCUMENT) as tracker:
        await tracker.notify(hint())
        await error_of(
            payclient.NotSentError, tracker.sale(sale()), match="notified, and no query can find it"
        )
    assert "another token" not in caplog.text


async def test_a_person_ends_the_doubt_about_what_was_refused(ledger: Ledger) -> None:
    """Nobody can query it, and a notification may be forged: a person's word frees the purchase, until the next one."""
    service = FakeService()
    async with refused(service, refuses(800), ledger=ledger, profile=payclient.DOCUMENT) as tracker:
        for number in (7, 8):
            await tracker.notify(hint(number))
            await error_of(payclient.NotSentError, tracker.sale(sale()), match="no query can find it")
            words = {"actor": "Ana", "reason": "not in the portal"}
            assert (await tracker.resolve("order-17", as_="refused", **words)).paid is False
            if number == 7:
                service.scripts = [refuses(801)]
                await error_of(payclient.RefusedError, tracker.sale(sale()), match="801|general")
        await tracker.notify(hint(8))  # the same once more
        assert (await tracker.sale(sale())).attempt == 3
        assert (await tracker.purchase("order-17")).paid is None


async def test_a_persons_word_about_a_refused_sale_does_not_take_the_place_of_a_query() -> None:
    """The service can be asked, and fails for a moment: it may know by now that the sale is paid."""
    service = FakeService()
    async with refused(service, refuses(800)) as tracker:
        await tracker.notify(hint(7))
        await service.clock.advance(5)
        await tracker.resolve("order-17", as_="refused", actor="Ana", reason="not in the portal")
        service.add_sale(7)
        service.status_scripts = [reset]
        await error_of(payclient.NotSentError, tracker.sale(sale()), match="cannot be queried")
        assert (await tracker.sale(sale())).state is State.ACCEPTED


async def test_a_persons_word_is_about_each_refused_attempt(service: Accounts) -> None:
    """The first may exist, by what its refusal said; a person decides the newest."""
    async with under(service, "token-1") as tracker:
        for script in (refuses(22, 2061), refuses(800)):
            service.scripts = [script]
            await error_of(payclient.RefusedError, tracker.sale(sale()))
            await service.clock.advance(600)
    await sold_by_other(service, "order-17")
    async with under(service, "token-2") as tracker:
        await error_of(payclient.NotSentError, tracker.sale(sale()), match="other credentials")
        await tracker.resolve("order-17", as_="refused", actor="Ana", reason="not in the portal")
        assert (await tracker.sale(sale())).attempt == 3


async def test_a_person_ends_the_doubt_about_another_accounts_closed_form(
    service: Accounts, ledger: Ledger
) -> None:
    """A payment was named to it, and the token that prepared it is gone: no query under the new one can tell."""
    service.book, words = ledger, {"actor": "Ana", "reason": "not in the old portal"}
    async with under(service, "token-1") as tracker:
        await tracker.prepare(form(), purchase="cart")
    record = await record_in(ledger, "form-1")
    await ledger.apply(record, FoundCancelled(at=service.clock.time()))
    async with under(service, "token-2") as tracker:
        await tracker.notify(hint(5001, "form-1"))
        await held_by(tracker, "cart")
        await error_of(
            payclient.TransitionError,
            tracker.resolve("form-1", as_="cancelled", **words),
            "may still be paid",
        )
        await service.clock.advance(10_000)
        await error_of(payclient.NotSentError, tracker.sale(sale(), purchase="cart"), "other credentials")
        await tracker.resolve("form-1", as_="cancelled", **words)
        await error_of(
            payclient.TransitionError, tracker.resolve("form-1", as_="cancelled", **words), "is cancelled"
        )
        assert (await tracker.sale(sale(), purchase="cart")).state is State.PENDING
        await tracker.notify(hint(5002, "form-1"))
        assert (await tracker.resolve("form-1", as_="accepted", **words)).paid is True


async def test_each_refused_attempt_is_believed_under_its_own_token_only(service: Accounts) -> None:
    """A copy of the first was paid; the second, of another account, was named: neither may be sent once more there."""
    for token, script in (("token-1", refuses(22, 2061)), ("token-2", refuses(800))):
        service.scripts = [script]
        async with under(service, token) as tracker:
            await error_of(payclient.RefusedError, tracker.sale(sale()))
    service.add_sale()
    service.owners[1000] = "shop"
    async with under(service, "token-2") as tracker:
        await tracker.notify(hint())
        await error_of(payclient.NotSentError, tracker.sale(sale()), match="other credentials")
    assert not service.posted


async def test_a_candidates_not_found_under_another_token_counts_for_nothing(service: Accounts) -> None:
    """Absence needs each candidate not found under a token that may say so."""
    await sold(service, lost_answer)
    async with under(service, "token-2") as tracker:
        await tracker.notify(hint())
        assert (await outcome_of(service, await pending_of(tracker))).paid is None


#: A query of the shop's account.
BY_OUR_ID = ("token-1", "/api/Sale/client/order-17")


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_candidate_that_another_account_does_not_find_proves_no_absence(
    service: Accounts, *, is_listed: bool
) -> None:
    """Between the two proofs the token is another account's, for the one query of the named id that is answered.

    "Not found" by that id before the first proof is too old to count.
    """
    token, seen_by = "token-1", service.seen_by

    async def current() -> str:
        return token

    def ailing(account: str, path: str) -> HttpResponse:
        if "client" in path:
            return refusal(20, status=404)  # the index lags
        if account == "shop":
            is_early = service.clock.monotonic() < 599
            return refusal(20, status=404) if is_early and not is_listed else answer(500, {"message": "no"})
        return seen_by(account, path)

    async def use(renewed: str, until: Callable[[], bool]) -> None:
        nonlocal token
        token, service.accounts = renewed, {renewed: "shop" if renewed == "token-1" else "other"}
        for _ in range(1000):
            if until():
                return
            await service.clock.advance(1)
        pytest.fail("it never came to that")

    service.seen_by = ailing  # type: ignore[method-assign]  # a service that is half down
    service.scripts = [lost_answer]
    async with under(service, current) as tracker:
        await tracker.sale(push())
        await tracker.notify(hint(1000))
        await service.clock.advance(599)
        before = len(service.asked)
        await use("token-1", lambda: BY_OUR_ID in service.asked[before:])  # the first proof
        await use("token-2", lambda: ("token-2", "/api/Sale/1000") in service.asked)
        before = len(service.asked)
        await use("token-1", lambda: BY_OUR_ID in service.asked[before:])  # what would be the second
        assert (await record_in(service.book)).state is State.UNKNOWN


async def test_a_form_is_not_given_up_under_another_token(service: Accounts) -> None:
    """Its customer came back cancelled, and another account knows of no payment: that is nobody's word."""
    async with under(service, "token-1", FORMS) as tracker:
        await tracker.prepare(form())
    for token, expected in (("token-2", (State.PENDING, None)), ("token-1", (State.CANCELLED, False))):
        async with under(service, token, FORMS) as tracker:
            outcome = await tracker.returned("id=0&clientTransactionId=form-1")
            assert (outcome.state, outcome.paid) == expected


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_database_keeps_the_credentials(
    service: Accounts, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """They come back as they went, and differ from another token's."""
    url = await url_of(kind, request, tmp_path)
    async with aclosing(await payclient.open_ledger(url)) as opened:
        for number, token in enumerate(("token-1", "token-1", "token-2")):
            async with tracking(service, opened, token=token) as tracker:
                await tracker.sale(sale(f"order-{number}", f"09841112{number}2"))
    async with aclosing(await payclient.open_ledger(url, create=False)) as again:
        one, same, other = [(await record_in(again, f"order-{n}")).credentials for n in range(3)]
    assert one == same != other
    assert one != b""
    assert b"token" not in one + other


async def test_no_token_reaches_ledger_log_or_repr(
    tmp_path: Path, service: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a digest with the ledger's own key is kept; two ledgers keep different ones."""
    caplog.set_level(logging.DEBUG)
    digests = []
    for name in ("a.db", "b.db"):
        opened = await payclient.open_ledger(f"sqlite:{tmp_path / name}")
        async with tracking(service, opened, token="token-1") as tracker:
            pending = await tracker.sale(sale(name))
            record = await record_in(opened, name)
            digests.append(record.credentials)
            assert "token-1" not in f"{record!r}{pending!r}{pending.outcome!r}{tracker!r}{caplog.text}"
        await opened.aclose()
    assert len(set(digests)) == 2
    assert b"token-1" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert repr(digests[0]) not in caplog.text


async def test_not_found_under_another_token_is_no_last_word(service: Accounts) -> None:
    """The first account's customer approved: a shop that was started with another's token must not ask again."""
    await sold(service)
    service.decide("Aceptado")
    async with under(service, "token-2") as tracker:
        assert (await outcome_of(service, await pending_of(tracker))).paid is None
        await held_by(tracker, "order-17")
    async with under(service, "token-1") as tracker:
        assert (await outcome_of(service, await pending_of(tracker))).paid
        await collected_by(tracker, "order-17")
    assert service.posted == {"order-17": 1}


async def test_not_found_of_a_form_under_another_token_frees_no_purchase(service: Accounts) -> None:
    """The first account's customer may have paid it."""
    async with under(service, "token-1", FORMS) as tracker:
        await tracker.prepare(form(), purchase="order-17")
    async with under(service, "token-2", FORMS) as tracker:
        await service.clock.advance(5000)
        await held_by(tracker, "order-17")


UNDO = attrs.evolve(
    PROFILE,
    cancel=UndoProfile(by_client_transaction_id="/api/Cancel", client_transaction_id_field="id"),
    reverse=UndoProfile(by_client_transaction_id="/api/Reverse", client_transaction_id_field="id"),
)


#: The same, where no query goes by our own id.
UNDO_UNLISTED = attrs.evolve(
    UNDO, status=StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
)


@pytest.mark.parametrize("profile", [UNDO, UNDO_UNLISTED], ids=["both ids", "its id"])
@pytest.mark.parametrize("is_paid", [False, True], ids=["withdrawn", "given back"])
async def test_what_another_account_undoes_is_another_sale(
    service: Accounts, is_paid: bool, profile: payclient.ServiceProfile
) -> None:
    """It had a sale of the same id: ours stands, and is not called unpaid."""
    await sold(service)
    if is_paid:
        service.decide("Aceptado")
        assert (await ended(service, "token-1")).paid
        service.scripts = [answers(200, True)]
    async with under(service, "token-2", profile) as tracker:
        pending = await pending_of(tracker)
        undo = asyncio.create_task((tracker.reverse if is_paid else tracker.cancel)(pending))
        await service.clock.advance(60)
        assert (await undo).paid is None
    service.decide("Aceptado")
    async with under(service, "token-1", UNDO) as tracker:
        assert (await outcome_of(service, await pending_of(tracker))).paid


#: And where only that one does.
UNDO_UNNUMBERED = attrs.evolve(
    UNDO,
    status=StatusProfile(
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
    ),
)


@pytest.mark.parametrize(("token", "paid"), [("token-2", None), ("token-1", False)])
async def test_another_account_withdraws_nothing_where_no_status_can_be_queried(
    service: Accounts, token: str, paid: bool | None
) -> None:
    """Its own push of the same id is withdrawn: ours holds its purchase, since its customer may approve it."""
    profile = attrs.evolve(UNDO, status=None)
    async with under(service, "token-1", profile) as tracker:
        await tracker.sale(push())
    async with under(service, token, profile) as tracker:
        pending = await pending_of(tracker)
        assert (await tracker.cancel(pending)).paid is paid
        if paid is None:
            await held_by(tracker, "order-17")


@pytest.mark.parametrize("profile", [UNDO, UNDO_UNNUMBERED], ids=["both ids", "our id"])
async def test_another_accounts_not_found_withdraws_no_twin(
    service: Accounts, profile: payclient.ServiceProfile
) -> None:
    """The token is renewed right after the withdrawal, for another account: the twin of the push may be approved."""
    tokens = iter(service.accounts)

    async def token() -> str:
        return next(tokens)

    async def renewing(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        response = await service(request, before_send)
        if request.path == "/api/Cancel":
            shop = service.accounts.pop("token-1")
            await asyncio.create_task(other.check())  # is answered 401
            service.accounts["token-1"] = shop
        return response

    async with tracking(service, service.book, profile, transport=renewing, token=token) as tracker:
        other = await tracker.sale(push("order-18"))
        service.scripts = [posted(1, FakeService.take)]
        pending = await tracker.sale(push())
        service.decide("Cancelado", pending.transaction_id or 0)
        service.decide("Aceptado", 1001)
        undo = asyncio.create_task(tracker.cancel(pending))
        await service.clock.advance(60)
        assert (await undo).paid is None
    assert (await ended(service, "token-1")).paid
