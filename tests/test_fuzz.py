"""Hostile bytes for every reader of what others wrote; `python -m fuzz` does it for longer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz import checks
from payclient.models import SaleResult

ROOT = Path(__file__).parents[1]

statuses = st.sampled_from(checks.STATUSES) | st.integers(100, 599)
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
    checks.check_sale(status, body)


@given(statuses, bodies())
@example(200, b'{"paymentId":"p","payWithCard":"https://pay.example/c"}')
@example(200, b'{"paymentId":"p","payWithCard":"https://pay.example/\\n"}')
def test_prepare(status: int, body: bytes) -> None:
    """Whatever comes, a form is prepared only by an answer with an id and safe links."""
    checks.check_prepare(status, body)


@given(statuses, bodies())
@example(200, b'[{"transactionStatus":"Approved","transactionId":1},{"transactionStatus":"Approved"}]')
@example(500, b'{"transactionStatus":"Approved"}')
@example(200, b"true")
@example(400, b"true")
def test_status(status: int, body: bytes) -> None:
    """Whatever comes, a sale is accepted only by the profile's word for it on a 2xx, and undone by `true` alone."""
    checks.check_status(status, body)
    checks.check_operations(status, body)


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
    checks.check_notification(query, body, content_type)


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
        checks.check_all(status, body)


@pytest.mark.parametrize(
    "body",
    [b'{"transactionId":12,"transactionId":13}', b'{"transactionId":12,"errorCode":1}', b"13", b"<html>"],
)
def test_the_second_reading_catches_a_lie(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """A reader that takes a foreign body for a created sale is caught."""
    monkeypatch.setattr(checks, "decode_sale", lambda *_: SaleResult(transaction_id=13, raw={}))
    with pytest.raises(AssertionError):
        checks.check_sale(200, body)


def test_without_atheris_the_command_says_so(tmp_path: Path) -> None:
    """The long command needs a package that few have; it says which in one line."""
    (tmp_path / "atheris.py").write_text("raise ImportError")
    path = f"{tmp_path}:{ROOT}:{ROOT / 'tests'}"
    command = [sys.executable, "-m", "fuzz", "--runs", "1"]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("fuzz: atheris is missing")
    assert done.stderr.count("\n") == 1
