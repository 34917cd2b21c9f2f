"""Confirm, cancel and reverse: their requests, every answer to them, and what is sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import payclient
from fake_service import Scripted, answer, error_of, refusal
from payclient.errors import (
    ConfigurationError,
    InvalidRequestError,
    NotCancellableError,
    NotReversibleError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    UnauthorizedError,
)
from payclient.profile import PAYPHONE, UndoProfile
from payclient.session import Exchange, PaySession
from payclient.validation import to_service
from payclient.wire import HttpResponse

REPORT = {
    "transactionId": 7, "clientTransactionId": "form-1", "transactionStatus": "Approved", "amount": 1150,
    "currency": "USD",
}  # fmt: skip


def session_of(service: Scripted, profile: payclient.ServiceProfile = PAYPHONE, **options: Any) -> PaySession:
    return PaySession(
        "https://pay.example", options.pop("token", "token"), profile=profile, transport=service, **options
    )


pytestmark = pytest.mark.usefixtures("delays")


Call = Callable[[PaySession], Any]
CONFIRM: Call = lambda session: session.confirm(7, "form-1")  # noqa: E731 - three of a kind
CANCEL: Call = lambda session: session.cancel(transaction_id=7)  # noqa: E731 - a line each
REVERSE: Call = lambda session: session.reverse(transaction_id=7)  # noqa: E731 - a line each
UNDO = [CANCEL, REVERSE]
CALLS = [CONFIRM, *UNDO]


async def test_what_each_operation_sends_and_tells() -> None:
    """A confirmation is by both ids and answers the report; the others are by either, and a bare `true` is success."""
    told: list[Exchange] = []
    service = Scripted(answer(200, REPORT), *[answer(200, True)] * 4)
    async with session_of(service, on_exchange=told.append) as session:
        assert await session.confirm(7, "form-1") == payclient.StatusReport(
            state="Aceptado", transaction_id=7, client_transaction_id="form-1", amount=1150, currency="USD",
            raw=REPORT,
        )  # fmt: skip
        for call in (session.cancel, session.reverse):
            await call(transaction_id=7)
            await call(client_transaction_id="form-1")
            await error_of(TypeError, call())
        for either in (session.cancel, session.reverse, session.status):
            await error_of(TypeError, either(transaction_id=7, client_transaction_id="form-1"))
    assert service.bodies == [
        ("POST", "/api/button/V2/Confirm", {"id": 7, "clientTxId": "form-1"}),
        ("POST", "/api/Cancel", {"id": 7}), ("POST", "/api/Cancel/Client", {"clientId": "form-1"}),
        ("POST", "/api/Reverse", {"id": 7}), ("POST", "/api/Reverse/Client", {"clientId": "form-1"}),
    ]  # fmt: skip
    assert [(exchange.operation, exchange.client_transaction_id) for exchange in told] == [
        ("confirm", "form-1"), ("cancel", None), ("cancel", "form-1"), ("reverse", None), ("reverse", "form-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        answer(200, False), answer(200, None), answer(200, 1), answer(200, "true"), answer(200, [True]),
        answer(200, {}), answer(302, True), answer(400, True), answer(500, True), HttpResponse(200),
        HttpResponse(200, {}, b"True"), HttpResponse(200, {}, b"<html>"), HttpResponse(429),
        refusal(25, status=500), ConnectionResetError(),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("call", UNDO)
async def test_nothing_else_is_undone_and_nothing_unknown_is_sent_again(call: Call, said: Any) -> None:
    """It may be withdrawn or reversed: one request, and an error that says so."""
    service = Scripted(said)
    async with session_of(service) as session:
        await error_of(OutcomeUnknownError, call(session))
    assert len(service.requests) == 1


@pytest.mark.parametrize("call", CALLS)
async def test_what_was_not_sent_is_sent_again(call: Call) -> None:
    """Proven: nobody answered at the door."""
    said = answer(200, REPORT) if call is CONFIRM else answer(200, True)
    service = Scripted(said, refused=2)
    async with session_of(service) as session:
        await call(session)
    assert len(service.requests) == 1
    async with session_of(Scripted(refused=9)) as session:
        await error_of(NotSentError, call(session))
    # A confirmation may be repeated, whatever became of the last one.
    for unknown in (ConnectionResetError(), HttpResponse(503, {}, b"<html>")) if call is CONFIRM else ():
        service = Scripted(unknown, unknown, said)
        async with session_of(service) as session:
            assert (await call(session)).state == "Aceptado"
        service = Scripted(*[unknown] * 3)
        async with session_of(service) as session:
            await error_of(OutcomeUnknownError, call(session))
        assert len(service.requests) == 3


@pytest.mark.parametrize(
    "said",
    [
        answer(200, True), answer(200, {}), answer(200, []), answer(200, [REPORT]), answer(302, REPORT),
        answer(404, REPORT), HttpResponse(200),
        HttpResponse(200, {}, json.dumps(REPORT).encode()[:-1] + b',"transactionStatus":"Pending"}'),
    ],
    ids=str,
)  # fmt: skip
async def test_no_other_answer_is_a_confirmation(said: HttpResponse) -> None:
    """Strict: an object with its state, once."""
    async with session_of(Scripted(said)) as session:
        await error_of(OutcomeUnknownError, session.confirm(7, "form-1"))


@pytest.mark.parametrize(
    ("call", "said", "kind"),
    [
        (CONFIRM, refusal(20, status=404), RefusedError),
        (CANCEL, refusal(25), NotCancellableError),
        (CANCEL, refusal(22, 2029), NotCancellableError),
        (CANCEL, refusal(20, status=404), RefusedError),
        (REVERSE, refusal(20, status=404), NotReversibleError),
        (REVERSE, refusal(100, status=404), RefusedError),
        *((call, answer(401, {"message": "no"}), UnauthorizedError) for call in CALLS),
    ],
)
async def test_each_refusal_has_its_class(call: Call, said: HttpResponse, kind: type[RefusedError]) -> None:
    """The profile's codes of "too late" are classes of their own; all else keeps what the service said."""
    async with session_of(Scripted(said)) as session:
        with pytest.raises(RefusedError) as caught:
            await call(session)
    assert type(caught.value) is kind
    assert caught.value.http_status == said.status
    assert caught.value.error_code == json.loads(said.body).get("errorCode")


BAD_IDS: dict[str, list[Any]] = {
    "transaction_id": [0, -1, True, 7.0, "7", "../1", 2**63, [7]],
    "client_transaction_id": ["", " ", "a\n", "a\x00", "\ud800", ".", "..", 7, b"a", "x" * 5000],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name in BAD_IDS for bad in BAD_IDS[name]])
async def test_what_is_no_id_is_refused_before_anything_is_sent(name: str, bad: Any) -> None:
    """Strict, and by the field's name."""
    one, both = {name: bad}, {"transaction_id": 7, "client_transaction_id": "form-1", name: bad}
    async with session_of(Scripted()) as session:
        for call in (
            session.confirm(**both), session.cancel(**one), session.reverse(**one), session.status(**one),
        ):  # fmt: skip
            with pytest.raises(InvalidRequestError) as caught:
                await call
            assert [detail.message for detail in caught.value.errors] == [to_service(name)]


async def test_a_profile_that_lacks_the_names_says_which() -> None:
    """Nothing is guessed, and nothing sent."""
    half = attrs.evolve(
        PAYPHONE,
        confirm=None,
        cancel=UndoProfile(by_transaction_id="/c", transaction_id_field="id"),
        reverse=UndoProfile(by_client_transaction_id="/r", client_transaction_id_field="id"),
    )
    async with session_of(Scripted(), half) as session:
        with pytest.raises(ConfigurationError, match=r"\[confirm\]"):
            await session.confirm(7, "form-1")
        with pytest.raises(ConfigurationError, match=r"cancel\.by_client_transaction_id"):
            await session.cancel(client_transaction_id="form-1")
        with pytest.raises(ConfigurationError, match=r"reverse\.by_transaction_id"):
            await session.reverse(transaction_id=7)
    async with session_of(Scripted(), payclient.DOCUMENT) as session:
        for call in CALLS:
            await error_of(ConfigurationError, call(session))
        queries: list[dict[str, Any]] = [{}, {"transaction_id": 12}, {"client_transaction_id": "a"}]
        for arguments in queries:
            with pytest.raises(ConfigurationError, match=r"status\.by_"):
                await session.status(**arguments)
    with pytest.raises(ConfigurationError, match=r"\[status\]"):
        attrs.evolve(PAYPHONE, status=None)
