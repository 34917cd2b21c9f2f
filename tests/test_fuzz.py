"""Hostile bytes for every reader of what others wrote: only our own errors, no verdict that the body does not carry.

The body is read a second time by the standard library, which keeps repeated names apart. A search of hours:
`PAYCLIENT_TESTS_EXAMPLES=100000 python -m pytest tests/test_fuzz.py`.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payclient.errors import CustomerBusyError, InvalidNotificationError, OutcomeUnknownError, RefusedError
from payclient.models import SaleResult
from payclient.notifications import parse_external_notification, parse_notification, parse_return
from payclient.profile import ReturnProfile, ServiceProfile, StatusProfile
from payclient.wire import (
    HttpResponse,
    decode_confirm,
    decode_prepare,
    decode_sale,
    decode_status,
    decode_undone,
)

WORDS = {"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"}
PROFILE = ServiceProfile(
    name="fuzz",
    not_found_codes=frozenset({20}),
    refusing_statuses=frozenset({418}),
    status=StatusProfile(
        by_transaction_id="/{transaction_id}", state_field="transactionStatus", states=WORDS
    ),
)
RETURNED = ReturnProfile(transaction_id="id", client_transaction_id="clientTransactionId", message="msg")

STATUSES = (200, 201, 204, 302, 400, 401, 403, 404, 408, 409, 418, 429, 500, 502, 503)

#: Seconds of processor time for one call, for bodies of up to a megabyte.
LONGEST = 1.0

#: All that an error about what anybody may send says: nothing of what came.
MESSAGES = {
    "the query is too large",
    "the redirect does not name the form that the browser comes from",
    "a form could not be used: is it opened from the registered domain?",
    "a notification must have one TransactionId and one ClientTransactionId",
    "the notification is too large",
    "a notification must have one id and one clientTransactionID",
    "id must be a transaction id",
    "clientTransactionID must be a client transaction id",
    "the parameters cannot be read",
    "the body must be JSON",
    "the body must be a JSON object",
    "the body must be text",
}


class Pairs(list[tuple[str, Any]]):
    """A JSON object, with every name as often as it was written."""

    def values_of(self, name: str) -> list[Any]:
        return [value for key, value in self if key == name]

    def lacks(self, name: str) -> bool:
        return all(value is None for value in self.values_of(name))


#: What the standard library cannot read; then only the kind of answer is checked.
TOO_DEEP = object()


def read(body: bytes) -> Any:
    """The JSON value of a body, its objects as pairs; None where it has none, or `TOO_DEEP`."""

    def refuse(_: str) -> NoReturn:
        raise ValueError

    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        # An integer may have more digits than Python reads; it is no id and no code then.
        return json.loads(text, object_pairs_hook=Pairs, parse_constant=refuse, parse_int=_whole)
    except RecursionError:
        return TOO_DEEP
    except ValueError:
        return None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= 20 else float(digits)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**63


def _outcome_of(reader: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a reader gives, or the error of ours that it raises, in time."""
    began = time.process_time()
    outcome: Any
    try:
        outcome = reader(*arguments, **options)
    except (RefusedError, OutcomeUnknownError, InvalidNotificationError) as error:
        outcome = error
    assert time.process_time() - began < LONGEST, "it took too long"
    if isinstance(outcome, InvalidNotificationError):
        assert str(outcome) in MESSAGES, "an error that may repeat what came"
    return outcome


def _may_refuse(status: int, data: Any) -> bool:
    """Whether an answer may be a refusal, by the table of answers."""
    if status in PROFILE.refusing_statuses:
        return True
    if not isinstance(data, Pairs):
        return False
    if status in (401, 403) and any(isinstance(text, str) for text in data.values_of("message")):
        return True
    codes = [code for code in data.values_of("errorCode") if type(code) is int]
    if 200 <= status <= 299 or 400 <= status <= 499:
        return bool(codes)
    return status >= 500 and bool(codes) and (bool({22, 800} & set(codes)) or _names_2061(data))


def _names_2061(data: Any) -> bool:
    return isinstance(data, Pairs) and any(
        2061 in entry.values_of("errorCode")
        for entries in data.values_of("errors")
        if isinstance(entries, list)
        for entry in entries
        if isinstance(entry, Pairs)
    )


def _check_refusal(error: RefusedError, status: int, data: Any) -> None:
    assert _may_refuse(status, data), f"refused without a reason: {error!r}"
    assert not isinstance(error, CustomerBusyError) or _names_2061(data)
    for text in (error.message, *error.user_messages):
        assert text.isprintable()
        # A name and its descriptions are joined; each is bounded.
        assert len(text) <= 60 * 502
    assert len(error.errors) <= 50


def check_sale(status: int, body: bytes) -> None:
    """Created by a strict id on 2xx and nothing beside it; refused by an error object; else unknown."""
    outcome = _outcome_of(decode_sale, HttpResponse(status, {}, body), PROFILE, "order-1")
    if isinstance(outcome, OutcomeUnknownError):
        candidate = outcome.candidate_id
        assert candidate is None or str(candidate).encode() in body, "a candidate from nowhere"
        return
    refused = isinstance(outcome, RefusedError)
    assert refused or 200 <= status <= 299
    data = read(body)
    if data is TOO_DEEP:
        return
    if refused:
        _check_refusal(outcome, status, data)
        # A refusing status needs no body that can be read; the two readers differ over numbers such as 1e999.
        if status not in PROFILE.refusing_statuses:
            assert isinstance(data, Pairs)
            assert data.lacks("transactionId")
        assert not isinstance(data, Pairs) or len(data.values_of("errorCode")) <= 1
    else:
        assert isinstance(data, Pairs), "created by what is no JSON object"
        assert data.values_of("transactionId") == [outcome.transaction_id]
        assert _is_id(outcome.transaction_id)
        assert data.lacks("errorCode")


def check_prepare(status: int, body: bytes) -> None:
    """A form has a payment id of its body and links that may be handed out."""
    outcome = _outcome_of(decode_prepare, HttpResponse(status, {}, body), PROFILE, "order-1")
    if isinstance(outcome, OutcomeUnknownError):
        return
    data = read(body)
    if isinstance(outcome, RefusedError):
        if data is not TOO_DEEP:
            _check_refusal(outcome, status, data)
        return
    assert outcome.payment_id.strip()
    assert outcome.links
    for link in outcome.links.values():
        parts = urlsplit(link)
        host = parts.hostname or ""
        assert parts.scheme == "https" or host in ("localhost", "::1") or host.startswith("127.")
        assert link.isascii()
        assert link.isprintable()
        assert not set(link) & set(" \\")
        assert "@" not in parts.netloc
    if data is not TOO_DEEP:
        assert isinstance(data, Pairs), "prepared by what is no JSON object"
        assert outcome.payment_id in data.values_of("paymentId")


def check_status(status: int, body: bytes) -> None:
    """Accepted, or any other state, only by the profile's word for it on 2xx; not found only where it says so."""
    outcome = _outcome_of(decode_status, HttpResponse(status, {}, body), PROFILE)
    if isinstance(outcome, OutcomeUnknownError):
        return
    data = read(body)
    if data is TOO_DEEP:
        return
    if isinstance(outcome, RefusedError):
        # Without a body that can be read, 401 and 429 say that much by themselves.
        assert status in (401, 429) or _may_refuse(status, data), f"refused without a reason: {outcome!r}"
        return
    if outcome is None:
        empty = data == [] and not isinstance(data, Pairs) and 200 <= status <= 299
        assert empty or (isinstance(data, Pairs) and 20 in data.values_of("errorCode"))
        assert status not in (401, 403, 408, 429), "not found by what was not looked up"
        return
    assert 200 <= status <= 299
    entries = [data] if isinstance(data, Pairs) else data
    assert isinstance(entries, list)
    words = [word for entry in entries for word in entry.values_of("transactionStatus")]
    states = {WORDS.get(word) for word in words if isinstance(word, str)}
    assert outcome.state is None or outcome.state in states, "a state that the body does not name"
    identifiers = [each for entry in entries for each in entry.values_of("transactionId")]
    for identifier in (outcome.transaction_id, *outcome.also_accepted):
        assert identifier is None or (_is_id(identifier) and identifier in identifiers)


def check_operations(status: int, body: bytes) -> None:
    """Confirmed by the profile's word on 2xx; undone by a bare `true` and by nothing else."""
    response = HttpResponse(status, {}, body)
    report = _outcome_of(decode_confirm, response, PROFILE, "order-1")
    if not isinstance(report, (RefusedError, OutcomeUnknownError)):
        assert 200 <= status <= 299
        assert report.state is None or b"transactionStatus" in body or b"\\" in body
    undone = _outcome_of(decode_undone, response, PROFILE, None, "reverse")
    if isinstance(undone, RefusedError):
        data = read(body)
        if data is not TOO_DEEP:
            _check_refusal(undone, status, data)
    elif not isinstance(undone, OutcomeUnknownError):
        assert 200 <= status <= 299
        assert read(body) is True


def check_notification(query: str | None, body: bytes, content_type: str) -> None:
    """Two ids of the form that ids have, or one error of ours that repeats nothing of what came."""
    found = _outcome_of(parse_notification, query=query, body=body, content_type=content_type)
    if not isinstance(found, InvalidNotificationError):
        assert _is_id(found.transaction_id)
        identifier = found.client_transaction_id
        assert identifier.strip()
        assert all(character.isprintable() or ord(character) > 0x9F for character in identifier)
        assert not any(0xD800 <= ord(character) <= 0xDFFF for character in identifier)


def check_others(body: bytes) -> None:
    """A return names one of our ids and perhaps one of theirs; an external notification is two ids of a JSON object."""
    back = _outcome_of(parse_return, body.decode("utf-8", "surrogateescape"), RETURNED)
    if not isinstance(back, InvalidNotificationError):
        assert back.transaction_id is None or _is_id(back.transaction_id)
        assert back.client_transaction_id.strip()
    found = _outcome_of(parse_external_notification, body)
    if not isinstance(found, InvalidNotificationError):
        assert _is_id(found.transaction_id)
        assert str(found.transaction_id).encode() in body


def check_all(status: int, body: bytes) -> None:
    """Every reader, with the same bytes."""
    check_sale(status, body)
    check_prepare(status, body)
    check_status(status, body)
    check_operations(status, body)
    check_others(body)
    check_notification(None, body, "application/json")
    check_notification(None, body, "application/x-www-form-urlencoded")
    check_notification(body.decode("utf-8", "surrogateescape"), b"", "")


# --- What comes

statuses = st.sampled_from(STATUSES) | st.integers(100, 599)
numbers = st.one_of(
    st.sampled_from([0, 1, 12, 20, 22, 800, 2061, -1, 2**63 - 1, 2**63, 2**64, 10**30, 12.0, True, None]),
    st.integers(),
)
texts = st.one_of(
    st.sampled_from(
        [
            "", "12", "Approved", "Pending", "Canceled", "Amount", "order-1", "USD",
            "https://pay.example/c", "http://127.0.0.1/c", "http://pay.example/c", "https://a@b/", "javascript:x",
        ]
    ),
    st.text(max_size=8),
)  # fmt: skip
names = st.sampled_from(
    [
        "transactionId", "errorCode", "message", "errors", "errorDescriptions", "paymentId", "payWithCard",
        "payWithWallet", "transactionStatus", "clientTransactionId", "amount", "currency", "id",
        "clientTransactionID", "CLIENTTRANSACTIONID", "x",
    ]
)  # fmt: skip


class Names(dict[str, Any]):
    """A JSON object that may name a field more than once: `json` writes its pairs as they come."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Names]:
    return st.lists(st.tuples(names, values), max_size=5).map(Names)


values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), objects(inner)),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bytes, JSON of the names that matter, and such JSON cut, doubled or with a byte put in."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.binary(max_size=60))
    value = draw(st.one_of(objects(values), st.lists(objects(values), max_size=3), values))
    body = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    place = draw(st.integers(0, len(body)))
    if kind == 1:
        return body[:place]
    if kind == 2:
        return body + body
    if kind == 3:
        return body[:place] + draw(st.binary(min_size=1, max_size=3)) + body[place:]
    return b"\xef\xbb\xbf" + body if kind == 4 else body


@given(statuses, bodies())
@example(200, b'{"transactionId":12,"transactionId":13}')
@example(200, b'{"transactionId":12,"error\\u0043ode":22}')
@example(200, b'{"transactionId":' + b"9" * 5000 + b"}")
@example(418, b'{"errorCode":1e40020,"transactionId":""}')
@example(502, b'{"errorCode":22,"errors":[{"errorCode":2061}]}')
def test_sale(status: int, body: bytes) -> None:
    """Whatever comes, a Sale is created or refused only by an answer that says so."""
    check_sale(status, body)


@given(statuses, bodies())
@example(200, b'{"paymentId":"p","payWithCard":"https://pay.example/c"}')
@example(200, b'{"paymentId":"p","payWithCard":"https://pay.example/\\n"}')
def test_prepare(status: int, body: bytes) -> None:
    """Whatever comes, a form is prepared only by an answer with an id and safe links."""
    check_prepare(status, body)


@given(statuses, bodies())
@example(200, b'[{"transactionStatus":"Approved","transactionId":1},{"transactionStatus":"Approved"}]')
@example(500, b'{"transactionStatus":"Approved"}')
@example(200, b"true")
@example(400, b"true")
def test_status(status: int, body: bytes) -> None:
    """Whatever comes, a sale is accepted only by the profile's word for it on a 2xx, and undone by `true` alone."""
    check_status(status, body)
    check_operations(status, body)


queries = st.one_of(
    st.none(),
    st.text(max_size=40),
    st.lists(st.tuples(names, st.one_of(texts, numbers.map(str))), max_size=4).map(
        lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
    ),
)
content_types = st.sampled_from([
    "", "application/json", "application/x-www-form-urlencoded", "text/plain; charset=x", "multipart/form-data",
])  # fmt: skip


encoded = queries.map(lambda text: (text or "").encode("utf-8", "replace"))


@given(queries, bodies() | encoded, content_types)
@example("id=7&clientTransactionID=%ff", b"", "")
@example("id=7&clientTransactionID=\ud800", b"", "")
@example("id=7&clientTransactionID=a&ID=8", b"", "")
@example("&" * 60, b"", "")
def test_notification(query: str | None, body: bytes, content_type: str) -> None:
    """Whatever comes, a notification is two ids or `InvalidNotificationError`."""
    check_notification(query, body, content_type)


LARGE = [
    b"[" * 1_000_000, b'{"a":' * 200_000, b"[" * 900 + b"]" * 900,
    b'{"transactionId":' + b"[" * 900 + b"]" * 900 + b"}", b'{"transactionId":' + b"9" * 1_000_000 + b"}",
    b'{"transactionId":1,"x":"' + b"\\u0041" * 160_000 + b'"}',
    b'{"transactionId":1,"transactionId":' + b"9" * 900_000 + b"}",
    b'{"errorCode":22,"errors":[' + b'{"errorCode":1},' * 20_000 + b'{"errorCode":2061}]}',
    b'{"errorCode":22,"message":"' + b"\\u0000" * 150_000 + b'"}',
    b'[{"transactionStatus":"Approved","transactionId":1},' + b"{}," * 300_000 + b"{}]",
    b'{"' + b"errorCode" * 100_000 + b'":1,"transactionId":1}', b"\\" * 1_000_000, b"&" * 1_000_000, b"%" * 8000,
    b"id=7&clientTransactionID=" + b"%41" * 2600,
]  # fmt: skip


@pytest.mark.parametrize("body", LARGE, ids=range(len(LARGE)))
def test_large_bodies(body: bytes) -> None:
    """A megabyte of the worst that is known takes less than a second of each reader."""
    for status in (200, 400, 500):
        check_all(status, body)


@pytest.mark.parametrize(
    "body",
    [b'{"transactionId":12,"transactionId":13}', b'{"transactionId":12,"errorCode":1}', b"13", b"<html>"],
)
def test_the_second_reading_catches_a_lie(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """A reader that takes a foreign body for a created sale is caught."""
    monkeypatch.setitem(globals(), "decode_sale", lambda *_: SaleResult(transaction_id=13, raw={}))
    with pytest.raises(AssertionError):
        check_sale(200, body)
