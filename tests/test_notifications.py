"""`parse_notification` reads two ids however they come, and nothing else; the tracker takes them as hints."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import payclient
from fake_service import (
    PROFILE,
    FakeService,
    Script,
    error_of,
    events_of,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    record_in,
    reset,
    sale,
    selling,
    tracking,
)
from payclient.errors import InvalidNotificationError
from payclient.notifications import is_notification_key, parse_return
from payclient.profile import ReturnProfile, StatusProfile

IDS = {"id": "1000", "clientTransactionID": "order-17"}
EXPECTED = hint()
Receipt, State = payclient.Receipt, payclient.State


@pytest.mark.parametrize(
    "delivery",
    [
        {"query": urlencode(IDS)},
        {"query": "?" + urlencode(IDS)},
        {"query": IDS},
        {"query": urlencode({"order": "7", "ID": "1000", "CLIENTTRANSACTIONID": "order-17"})},
        {"body": urlencode(IDS).encode(), "content_type": "application/x-www-form-urlencoded"},
        {"body": urlencode(IDS).encode()},
        {"body": urlencode(IDS).encode(), "content_type": None},
        {"body": json.dumps(IDS).encode(), "content_type": "application/json; charset=utf-8"},
        {"body": json.dumps({"id": 1000, "clientTransactionId": "order-17", "other": None}).encode()},
        {"body": b"\xef\xbb\xbf" + json.dumps(IDS).encode()},
        {"query": urlencode(IDS) + "&shop=Jos%E9&msg=est\udce1"},
        {"body": urlencode(IDS).encode() + b"&shop=Jos\xe9"},
        {"query": "id=1000", "body": b"clientTransactionID=order-17"},
        {"query": urlencode(IDS), "body": urlencode(IDS).encode()},
    ],
)
def test_both_ids_are_read_however_they_are_delivered(delivery: dict[str, object]) -> None:
    """The document shows no method and no encoding (§6): query, form and JSON, any letter case; others stand beside."""
    assert payclient.parse_notification(**delivery) == EXPECTED  # type: ignore[arg-type]  # each a keyword


@pytest.mark.parametrize(
    "delivery",
    [
        {},
        *({"query": query} for query in (
            "id=1000", "clientTransactionID=order-17", "id=0&clientTransactionID=a", "id=-1&clientTransactionID=a",
            "id=01&clientTransactionID=a", "id=1.0&clientTransactionID=a", "id=٣&clientTransactionID=a",
            "id=9223372036854775808&clientTransactionID=a", "id=1&id=2&clientTransactionID=a",
            "id=&id=1&clientTransactionID=a", "id=1&clientTransactionID=a&clientTransactionId=b",
            "id=1&clientTransactionID=%20", "id=1&clientTransactionID=a%0Ab",
            "id=1&clientTransactionID=%FF", "id=1&clientTransactionID=" + "a" * 9000,
            "id=1&clientTransactionID=a&" + "&".join(f"a{n}=1" for n in range(60)))),
        *({"body": body} for body in (
            urlencode(IDS | {"more": "x" * 9000}).encode(), b'{"id": true, "clientTransactionID": "a"}',
            b'{"id": 1, "clientTransactionID": true}', b'{"id": 1.5, "clientTransactionID": "a"}')),
        {"query": urlencode(IDS), "body": b"x" * 9000},
        {"body": b"{", "content_type": "application/json"}, {"body": b"[1]", "content_type": "application/json"},
        {"body": b"\xff\xfe", "content_type": "text/plain"},
        {"body": urlencode(IDS).encode(), "content_type": "multipart/form-data; boundary=x"},
    ],
    ids=lambda delivery: str(delivery)[:60],
)  # fmt: skip
def test_anything_else_is_no_notification(delivery: dict[str, object]) -> None:
    """`InvalidNotificationError`, whose text repeats nothing of what came."""
    with pytest.raises(payclient.InvalidNotificationError) as raised:
        payclient.parse_notification(**delivery)  # type: ignore[arg-type]  # each a keyword
    assert "order-17" not in str(raised.value)


async def test_a_notification_asks_at_once_and_again_while_pending(service: FakeService) -> None:
    """MATCHED: one query ahead of the routine, then after 0.25, 0.75, 2 and 5 s; the second is a DUPLICATE."""
    async with selling(service) as (tracker, pending):
        await service.clock.advance(20.5)
        asked = len(service.queries)
        assert await tracker.notify(hint()) is Receipt.MATCHED
        assert await tracker.notify(hint()) is Receipt.DUPLICATE
        assert len(service.queries) == asked  # it returned before any query
        assert pending.notified_at is not None
        await service.clock.advance(2.0)
        assert len(service.queries) >= asked + 3
        service.decide("Aceptado")
        await service.clock.advance(3.0)
        assert pending.outcome.paid is True


async def test_a_candidate_binds_an_unknown_sale_by_its_transaction_id(service: FakeService) -> None:
    """UNKNOWN without a query by client transaction id: the notified id is asked, and binds if it is ours."""
    by_id = StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
    profile = attrs.evolve(PROFILE, status=by_id)
    async with selling(service, lost_answer, profile=profile) as (tracker, pending):
        service.add_sale(2000, clientTransactionId="of-somebody")
        assert await tracker.notify(hint(2000)) is Receipt.MATCHED  # forged: not ours
        await service.clock.advance(2)
        assert pending.state is State.UNKNOWN
        service.decide("Aceptado")
        assert await tracker.notify(hint(1000)) is Receipt.MATCHED
        await service.clock.advance(2)
        assert (pending.state, pending.transaction_id) == (State.ACCEPTED, 1000)


async def test_a_forged_notification_mutes_no_true_one(service: FakeService) -> None:
    """It named the same id, long before the customer acted: the repetition is queried at once all the same."""
    async with selling(service, schedule=payclient.Fixed(1000.0)) as (tracker, pending):
        assert await tracker.notify(hint()) is Receipt.MATCHED
        await service.clock.advance(60)
        service.decide("Aceptado")
        assert await tracker.notify(hint()) is Receipt.DUPLICATE
        await service.clock.advance(2)
        assert pending.state is State.ACCEPTED


async def test_unmatched_and_conflicting_notifications_change_nothing(service: FakeService) -> None:
    """UNMATCHED writes nothing; CONFLICT is one event, and overwrites nothing."""
    async with selling(service) as (tracker, pending):
        assert await tracker.notify(hint(5, "nobody")) is Receipt.UNMATCHED
        assert await events_of(service.ledger, "nobody") == []
        assert await tracker.notify(hint(7)) is Receipt.CONFLICT
        assert pending.transaction_id == 1000
        assert await events_of(service.ledger) == ["Permitted", "Created", "Conflicted"]
    await error_of(payclient.TrackerClosedError, tracker.notify(hint()))


async def test_a_wall_clock_that_was_set_back_mutes_no_conflict(service: FakeService) -> None:
    """One hint a second that anybody can send is written, whatever hour it is called."""
    async with selling(service) as (tracker, _):
        for number in (7, 8):
            assert await tracker.notify(hint(number)) is Receipt.CONFLICT
            service.clock.jump_wall(-3600)
            await service.clock.advance(1)
    assert (await events_of(service.ledger)).count("Conflicted") == 2


async def test_a_wall_clock_that_was_set_back_hides_no_late_notification(service: FakeService) -> None:
    """By its times it came an hour before the decision; the process ended before its query had an answer."""
    async with selling(service) as (tracker, pending):
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        service.clock.jump_wall(-3600)
        service.status_scripts = [reset] * 5
        assert await tracker.notify(hint()) is Receipt.LATE
    service.status_scripts = []
    service.decide("Aceptado")
    async with tracking(service, service.ledger) as tracker:
        await service.clock.advance(10)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_another_id_of_a_paid_sale_is_a_conflict_too(service: FakeService) -> None:
    """It is no late notification of the sale, whose own transaction is known."""
    async with selling(service) as (tracker, pending):
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        assert await tracker.notify(hint(7)) is Receipt.CONFLICT
    assert (await record_in(service.ledger)).notified_at is None
    assert (await events_of(service.ledger))[-1] == "Conflicted"


@pytest.mark.parametrize("identifier", [0, -1, 2**63, "1000", True, None])
async def test_an_id_that_no_transaction_has_is_no_hint(service: FakeService, identifier: Any) -> None:
    """Made by hand from what came, it would be a candidate that no query rules out: nothing could be proven absent."""
    made = payclient.Notification(transaction_id=identifier, client_transaction_id="order-17")
    async with selling(service, lost_request) as (tracker, pending):
        await error_of(payclient.InvalidNotificationError, tracker.notify(made))
        for name in ("a\0", "", " "):
            await error_of(payclient.InvalidNotificationError, tracker.notify(hint(1, name)))
        assert (await outcome_of(service, pending)).paid is False
    assert "Notified" not in await events_of(service.ledger)


async def test_a_flood_of_forged_notifications_asks_at_most_once_a_second(service: FakeService) -> None:
    """Thousands of forged ids: no more than a query a second, few writes, no wrong state."""
    async with selling(service) as (tracker, pending):
        await service.clock.advance(10)
        before = len(service.queries)
        for second in range(10):
            for number in range(100):
                await tracker.notify(hint(1_000_000 + second * 100 + number))
                await tracker.notify(hint(1000))
            await service.clock.advance(1)
        assert len(service.queries) - before <= 12
        assert len(await events_of(service.ledger)) <= 15
        assert pending.state is State.PENDING


@pytest.mark.parametrize(
    ("script", "state"),
    [(FakeService.take, State.PENDING), (lost_answer, State.UNKNOWN)],
    ids=["pending", "unknown"],
)
async def test_without_a_status_source_a_notification_ends_the_wait(
    service: FakeService, script: Script, state: payclient.State
) -> None:
    """Nobody can be asked: the wait ends with `paid` None and `notified_at` set, and says no more than that."""
    async with selling(service, script, profile=payclient.DOCUMENT) as (tracker, pending):
        await service.clock.advance(20)
        assert await tracker.notify(hint()) is Receipt.MATCHED
        outcome = await outcome_of(service, pending, seconds=2)
    assert (outcome.state, outcome.paid) == (state, None)
    assert outcome.notified_at is not None


# --- External notifications

EXTERNAL = {
    "Amount": 1150, "ClientTransactionId": "order-17", "TransactionId": 1000, "StatusCode": 3,
    "TransactionStatus": "Approved", "PhoneNumber": "0984111222", "Email": None, "Taxes": [], "Currency": "USD",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{}, {"TransactionId": "1000"}, {"transactionId": 1000}, {"More": {"x": 1}}], ids=str
)
def test_an_external_notification_gives_the_two_ids(changes: dict[str, object]) -> None:
    """Its verdict is not read: nobody signed it."""
    assert payclient.parse_external_notification(json.dumps(EXTERNAL | changes).encode()) == EXPECTED


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"true", b"{}", b"{", b"\xff", b"id=1000&clientTransactionID=order-17",
        *(
            json.dumps(EXTERNAL | changes).encode()
            for changes in (
                {"TransactionId": None}, {"TransactionId": True}, {"TransactionId": 0}, {"TransactionId": -1},
                {"TransactionId": 1.0}, {"TransactionId": 2**63}, {"transactionid": 1001}, {"ClientTransactionId": " "},
                {"ClientTransactionId": "a\n"}, {"ClientTransactionId": None}, {"Canary": "x" * 70_000},
            )
        ),
    ],
    ids=lambda body: str(body[:20]),
)  # fmt: skip
def test_what_is_no_external_notification_is_refused(body: bytes) -> None:
    """By one error, which repeats nothing."""
    with pytest.raises(payclient.InvalidNotificationError) as caught:
        payclient.parse_external_notification(body)
    assert "order-17" not in str(caught.value)


def test_what_is_as_large_as_it_may_be_is_read() -> None:
    """8 KiB of query and body together, and a secret of 16 bytes; one more, or less, is refused."""
    given = urlencode(IDS)
    for more, good in ((8192, True), (8193, False)):
        delivery: dict[str, Any] = {"query": given, "body": b" " * (more - len(given))}
        with nullcontext() if good else pytest.raises(InvalidNotificationError, match="too large"):
            assert payclient.parse_notification(**delivery) == EXPECTED
    for secret, good in ((b"x" * 16, True), (b"x" * 15, False)):
        with (
            nullcontext() if good else pytest.raises(payclient.ConfigurationError, match="at least 16 bytes")
        ):
            payclient.notification_url("https://shop.example/notify", "order-17", secret)


class Arguments(dict[str, Any]):
    """A query as Flask has it: `items` gives the first value of each name."""

    def getlist(self, name: str) -> Any:
        return self[name]


def test_what_a_browser_brings_back_is_read_by_the_profiles_names() -> None:
    """In any letter case; the service's come after the address's own."""
    names = ReturnProfile(transaction_id="Id", client_transaction_id="ClientTransactionId", message="Msg")
    back = parse_return(Arguments({"id": ["7", "8"], "clienttransactionid": ["cart-1"]}), names)
    assert (back.transaction_id, back.client_transaction_id, back.unusable) == (8, "cart-1", False)
    assert parse_return("ID=0&MSG=denied", names, "cart-1").unusable
    with pytest.raises(InvalidNotificationError, match="registered domain"):
        parse_return("msg=denied", names)
    with pytest.raises(InvalidNotificationError, match="another form"):
        parse_return("id=7&clientTransactionId=cart-2", names, "cart-1")


def test_each_receipt_is_acknowledged() -> None:
    """000, and 333 for what came before; what is not ours is answered as if it were."""
    for receipt in Receipt:
        body = json.loads(payclient.acknowledgement(receipt))
        before = receipt is Receipt.DUPLICATE
        assert body == {"Response": not before, "ErrorCode": "333" if before else "000"}


# --- Addresses that nobody guesses


SECRET = "sixteen bytes and more"


@given(st.text(min_size=1, max_size=50).filter(lambda text: text.isprintable()))
def test_an_address_is_of_one_sale_and_one_secret(identifier: str) -> None:
    """The last part of its path is 32 characters that need no escape, and belongs to this id alone."""
    url = payclient.notification_url("https://shop.example/notify/?shop=1", identifier, SECRET)
    key = re.fullmatch(r"https://shop\.example/notify/([A-Za-z0-9_-]{32})\?shop=1", url)
    assert key is not None
    assert is_notification_key(key[1], identifier, SECRET.encode())
    assert not is_notification_key(key[1], identifier + "x", SECRET.encode())
    assert not is_notification_key(key[1], identifier, b"another secret of ours")
    assert not is_notification_key(key[1][:-1], identifier, SECRET.encode())
    assert not is_notification_key("ñ" + key[1], identifier, SECRET.encode())


def test_an_id_that_cannot_be_sent_is_for_the_request_to_refuse() -> None:
    """It was a UnicodeEncodeError, with the secret among the local variables of its frames."""
    url = payclient.notification_url("https://shop.example/notify", "order-\ud800", SECRET)
    with pytest.raises(payclient.InvalidRequestError):
        sale("order-\ud800", response_url=url)


@pytest.mark.parametrize("secret", ["", "too short", b"fifteen bytes..", None, 17])
def test_a_secret_that_can_be_guessed_is_refused(secret: object) -> None:
    """It is not repeated either."""
    with pytest.raises(payclient.ConfigurationError, match="at least 16 bytes") as caught:
        payclient.notification_url("https://shop.example/notify", "order-17", secret)  # type: ignore[arg-type]  # meant
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    "base", ["", "/notify", "shop.example/notify", "ftp://shop.example", "https://s/n#x", "https://[shop"]
)
def test_a_base_is_an_address(base: str) -> None:
    """The service must be able to call it (§6)."""
    with pytest.raises(payclient.ConfigurationError, match="base"):
        payclient.notification_url(base, "order-17", SECRET)
