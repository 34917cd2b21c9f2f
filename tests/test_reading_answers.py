"""What each answer proves, seen from outside: SEMANTICS' table of answers to a Sale, reports that are not ours, ids."""

from __future__ import annotations

import asyncio
import enum
import gzip
import json
import time
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_service import (
    PROFILE,
    FakeService,
    Script,
    Scripted,
    answer,
    error_of,
    events_of,
    lost_answer,
    outcome_of,
    sale,
    selling,
    tracking,
)
from payclient.wire import HttpResponse

State = payclient.State

PLAIN = attrs.evolve(PROFILE, duplicate_codes=frozenset(), uncertain_codes=frozenset({500, 501}))
REFUSING = attrs.evolve(PLAIN, refusing_statuses=frozenset({418, 429, 503}))


def session_of(said: HttpResponse, profile: payclient.ServiceProfile) -> payclient.PaySession:
    return payclient.PaySession("https://pay.example", "token", profile=profile, transport=Scripted(said))


async def read(status: int, body: str | bytes, profile: payclient.ServiceProfile) -> str:
    """Send one Sale that is answered so, and say what came of it: created, refused (by which class), unknown."""
    said = HttpResponse(status, {}, body if isinstance(body, bytes) else body.encode())
    async with session_of(said, profile) as session:
        (outcome,) = await asyncio.gather(session.sale(sale()), return_exceptions=True)
    if isinstance(outcome, payclient.SaleResult):
        assert outcome.raw["transactionId"] == outcome.transaction_id
        return f"created {outcome.transaction_id}"
    assert isinstance(outcome, (payclient.RefusedError, payclient.OutcomeUnknownError))
    assert (outcome.http_status, outcome.client_transaction_id) == (status, "order-17")
    if isinstance(outcome, payclient.OutcomeUnknownError):
        return f"unknown {outcome.candidate_id}"
    return type(outcome).__name__


ID, CREATED = '"transactionId": 5', '{"transactionId": 5}'
ERROR = '{"message": "no", "errorCode": 5}'
BUSY = '{"errorCode": 5, "errors": [{"message": "b", "errorCode": 2061}]}'
INVALID = '{"errorCode": 800, "errors": [{"message": "Amount", "errorCode": 0, "errorDescriptions": ["d"]}]}'
HTML = "<html></html>"

#: By row of the table: statuses, bodies, what they are.
TABLE: list[tuple[list[int], list[str | bytes], str]] = [
    # One strict id on 2xx, and no errorCode.
    ([200, 201, 299], [CREATED, f'{{{ID}, "errorCode": null}}', f'{{{ID}, "clientTransactionId": null}}'],
     "created 5"),
    ([200], [
        f'{{{ID}, "message": null, "extra": [1], "note": "\\u00f3"}}', f"\ufeff{CREATED}", '{"transaction\\u0049d": 5}',
        f' \n{{"clientTransactionId": "order-17", {ID}}}\n', f'{{{ID}, "inner": {{{ID}, "errorCode": 5}}}}',
    ], "created 5"),
    ([200], ['{"transactionId": 1}'], "created 1"),
    ([200], [f'{{"transactionId": {2**63 - 1}}}'], f"created {2**63 - 1}"),
    # The error object; its class is by 2061, 800, 22, then the status.
    ([200, 202, 299, 400, 404, 409, 422, 498], [ERROR, '{"errorCode": -1}', '{"errorCode": 1}'], "RefusedError"),
    ([400], [
        '{"errorCode": -5, "errors": "x", "message": 5}', '{"errorCode": 5, "transactionId": null, "note": "\\u00f3"}',
        '{"errorCode": 5, "errors": [{"errorCode": 7}, {"errorCode": 8}]}',
        '{"errorCode": 5, "message": "transactionId 5 ClientTransactionId", "transactionId": null}',
    ], "RefusedError"),
    ([200, 400, 401, 429, 500, 502, 599],
     [BUSY, BUSY.replace("5,", "800,", 1), BUSY.replace("5,", "22,", 1)], "CustomerBusyError"),
    ([200, 400, 429, 500, 503], [INVALID, '{"errorCode": 800}'], "ValidationFailedError"),
    ([200, 400, 401, 500, 599], ['{"message": "m", "errorCode": 22}'], "NotCreatedError"),
    ([401, 403], [ERROR, '{"message": "no"}', '{"message": ""}', '{"message": "m", "errorCode": "5"}'],
     "UnauthorizedError"),
    ([429], [ERROR], "RateLimitedError"),
    # What is said of another Sale.
    ([200], [f'{{{ID}, "clientTransactionId": "order-18"}}', f'{{{ID}, "clientTransactionId": 17}}',
             f'{{{ID}, "clientTransactionID": "order-18"}}'], "unknown 5"),
    ([200, 400], ['{"errorCode": 5, "clientTransactionId": "order-17"}'], "RefusedError"),
    ([200, 400], ['{"errorCode": 5, "clientTransactionId": "order-18"}',
                  '{"errorCode": 5, "clientTransactionID": "order-18"}'], "unknown None"),
    # Code 0 is a success to whoever writes it; other kinds of code are none.
    ([200, 400, 404, 500], ['{"errorCode": 0}', '{"errorCode": 0, "errors": [{"errorCode": 2061}]}'], "unknown None"),
    ([400], [
        '{"errorCode": "22"}', '{"errorCode": 22.0}', '{"errorCode": true}', '{"errorCode": null}',
        '{"errorCode": [22]}', '{"errors": [{"errorCode": 2061}]}', '{"message": "m", "errors": []}',
        '[{"errorCode": 22}]', '{"errorCode": 22', '{"ErrorCode": 22}', '{"errorCode": 22, "errorCode": 5}',
    ], "unknown None"),
    # An id wherever it stands, and both at once.
    ([200, 400, 404], [
        '{"errorCode": 0, "data": {"transactionId": 5}}', '{"errorCode": 5, "data": {"transactionId": 5}}',
        '{"errorCode": 5, "TransactionId": 5}', '{"errorCode": 5, "TRANSACTIONID": 5}',
        '{"errorCode": 5, "transaction_id": 5}', '{"errorCode": 5, "\\u0074ransactionId": 5}',
        '{"errorCode": 5, "errors": [{"errorCode": 2061, "x": [[{"transactionid": 5}]]}]}',
        '{"errorCode": 5, "data": {"transactionId": 5}, "data": null}',
        '{"errorCode": 5, "transactionId": {"transactionId": 5}}', '{"errorCode": 22, "transactionId": 5}',
        '{"errorCode": 22, "transactionId": 5, "transactionId": null}',
    ], "unknown 5"),
    ([200], [f'{{{ID}, "errorCode": "5"}}', f'{{{ID}, "errorCode": 22, "errorCode": null}}'], "unknown 5"),
    ([401, 429, 500], [f'{{{ID}, "errorCode": 5, "message": "No"}}'], "unknown 5"),
    ([401, 403], [f'{{{ID}, "message": "no"}}', '{"message": "no", "data": {"transactionId": 5}}'], "unknown 5"),
    ([302, 400, 401, 404, 408, 409, 425, 429, 499, 500, 502, 503, 504], [CREATED], "unknown 5"),
    ([400], [
        '{"errorCode": 5, "data": {"transactionId": "5"}}', '{"errorCode": 5, "transactionId": 0}',
        '{"errorCode": 5, "a": {"transactionId": {}}}',
        '{"transactionId": "x", "transactionId": null, "errorCode": 22}',
    ], "unknown None"),
    # A field given twice.
    ([200], ['{"transactionId": 1, "transactionId": 2}'], "unknown 2"),
    ([200], [f"{{{ID}, {ID}}}", f"\ufeff{{{ID}, {ID}}}", f'{{"transactionId": null, {ID}}}',
             f'{{{ID}, "transaction\\u0049d": 5}}'], "unknown 5"),
    # Something in between gave up, or the service itself failed, whatever else.
    ([408, 425, 499], [ERROR, BUSY, INVALID, '{"errorCode": 22}', "", "{}", '{"message": "no"}'], "unknown None"),
    ([200, 400, 500],
     ['{"errorCode": 500}', '{"errorCode": 501}', '{"errorCode": 5, "errors": [{"errorCode": 500}]}'], "unknown None"),
    ([500, 502, 503, 599], [ERROR, ""], "unknown None"),
    ([600], ['{"errorCode": 22}'], "unknown None"),
    # All else: other statuses, wrong ids, no JSON, other JSON.
    ([401, 403], ["", "{}", HTML, '{"message": 5}'], "unknown None"),
    ([400, 402], ['{"message": "m"}'], "unknown None"),
    ([429], ["", HTML, '{"message": "slow"}'], "unknown None"),
    ([100, 199, 300, 301, 302, 303, 307, 308, 399], [ERROR, BUSY, "", HTML], "unknown None"),
    ([200, 204, 400, 404, 409], ["", "{}", "null", "[]", '"ok"', "5", "true", HTML, "{", " ", "'", "\x00"],
     "unknown None"),
    ([200], [f'{{"transactionId": {value}}}' for value in (
        '"12"', "12.0", "true", "false", "0", "-1", "-0", str(2**63), str(2**64), "9" * 30, "9" * 5000, "1e3", "1e400",
        "[]", "[5]", "{}", "null", '""', "12.5", "NaN", "Infinity")], "unknown None"),
    ([200], [f"{{{ID}}}}}", f"[{CREATED}]", f"{{{ID},}}", f'{{{ID}, "x": NaN}}', '{"TransactionId": 5}',
             '{"result": {"transactionId": 5}}', f'{{{ID}, "m": "Matr\u00edcula"}}'.encode("latin-1"),
             f'{{{ID}, "x": {"[" * 100_000}', f'{{{ID}, "x": {"[" * 1020}{"]" * 1020}, {ID}}}',
             f'{{{ID}, "x": "\\ud800"}}'], "unknown 5"),
    ([200], [f"{{{ID}", b"\xff\xfe{\x00}\x00", CREATED.encode("utf-16"), b"\x1f\x8b\x08\x00", "\ufeff\ufeff{}"],
     "unknown None"),
]  # fmt: skip

#: Of a profile whose gateway answers some statuses before the service sees the request.
REFUSING_TABLE: list[tuple[list[int], list[str | bytes], str]] = [
    ([429], [ERROR, "", HTML, "[]"], "RateLimitedError"),
    ([418, 503], ["", f"{HTML}\\\\", "[]", "{}", '{"transactionId": null}', '{"errors": [{"errorCode": 2061}]}'],
     "RefusedError"),
    ([418, 429, 503], [CREATED, '{"a": {"transactionid": 5}}', f"[{CREATED}]", '{"transaction\\u0049d": 5}'],
     "unknown 5"),
    ([418], [CREATED.encode("utf-16"), "<transactionId>5</transactionId>", "Transaction-Id 5"], "unknown None"),
    ([418], ["<p>No such transaction</p>"], "RefusedError"),
    ([418, 429, 503], ['{"TransactionId": 5', '{"x": "' + "transaction" * 40_000 + '"}', '{"transactionId": "x"}'],
     "unknown None"),
    ([418, 429, 503], ['{"errorCode": 500}', '{"errorCode": 5, "errors": [{"errorCode": 501}]}'], "unknown None"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "statuses", "bodies", "what"),
    [
        *((PLAIN, *row) for row in TABLE), *((REFUSING, *row) for row in REFUSING_TABLE),
        # The preset takes no failure of the service for a refusal.
        (payclient.PAYPHONE, [400], ['{"errorCode": 500}', '{"errorCode": 501}'], "unknown None"),
        (payclient.PAYPHONE, [400], ['{"errorCode": 100}'], "RefusedError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_each_row_of_the_table(
    profile: payclient.ServiceProfile, statuses: list[int], bodies: list[str | bytes], what: str
) -> None:
    """Created by one strict id, refused by proof alone, unknown by all else; an id that was seen is kept."""
    found = {(status, body[:99]): await read(status, body, profile) for body in bodies for status in statuses}
    assert {case: said for case, said in found.items() if said != what} == {}


async def test_a_refusing_status_refuses_nothing_that_may_be_named() -> None:
    """The profile calls the status a refusal, unless an id is in the body, of which compressed bytes show nothing."""
    # Gzip has a byte of 0 in its head, which is distrusted by itself; brotli need not have one.
    for coding, body in (("gzip", gzip.compress(CREATED.encode())), ("Br", b"\x1b\x13\xf8\x25\xc2")):
        async with session_of(HttpResponse(418, {"content-Encoding": coding}, body), REFUSING) as session:
            await error_of(payclient.OutcomeUnknownError, session.sale(sale()))


@pytest.mark.parametrize(
    "body",
    [
        '{"errorCode": 5, "x": ' + "[" * 1000 + '{"transactionId": 5}' + "]" * 1000 + "}",
        '{"errorCode": 5, "x": [' + '{"transactionid": null},' * 30_000 + "1]}",
        '{"errorCode": 5, "\\u0041": "' + "transaction" * 60_000 + '"}',
        '{"errorCode": 5, "transaction": [' + "9" * 100_000 + "]}",
    ],
)
async def test_a_hostile_refusal_is_searched_within_bounds(body: str) -> None:
    """What cannot be searched for an id in a moment refuses nothing."""
    began = time.process_time()
    assert (await read(400, body, PROFILE)).startswith("unknown")
    assert time.process_time() - began < 1.0


# --- Reports that are not ours


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transactionId", "1000"), ("transactionId", 1000.0), ("clientTransactionId", 17), ("amount", "1150"),
        ("amount", 1150.0), ("currency", ["USD"]), ("clientTransactionId", "order-18"), ("amount", 1151),
        ("currency", "EUR"),
    ],
)  # fmt: skip
async def test_anothers_field_conflicts(field: str, value: object, caplog: pytest.LogCaptureFixture) -> None:
    """Another's, or there and not to be read, which is not "not said": one event, and never a verdict."""
    service = FakeService()
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        report = service.sales[1000] | {"state": "Aceptado", field: value}
        service.status_scripts = [lambda: answer(200, report), lambda: answer(200, [report])] * 250
        assert (await outcome_of(service, pending)).paid is None
    (event,) = [change for change in await ledger.history("order-17") if change.event == "Conflicted"]
    what = json.loads(event.detail or "")["what"]
    assert ("another client transaction id" if value == "order-18" else field) in what
    assert what in caplog.text


@pytest.mark.parametrize(("name", "value"), [("amount", 1150.0), ("amount", True), ("currency", b"USD")])
async def test_a_users_own_source_is_read_as_strictly(name: str, value: Any) -> None:
    """A float that equals our cents is not our cents."""
    report = payclient.StatusReport(state="Aceptado", transaction_id=1000, **{name: value})

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport:
        return report

    service = FakeService()
    async with tracking(service, status=status) as tracker:
        pending = await tracker.sale(sale(amount_with_tax=None, tax=1) if value is True else sale())
        assert (await outcome_of(service, pending)).paid is None
        report = attrs.evolve(report, amount=None, currency=None)
        await service.clock.advance(700)
        assert (await pending.wait()).paid is True


@pytest.mark.parametrize("identifier", ["1000", 1000.0, True, 0, 2**63])
@pytest.mark.parametrize("script", [lost_answer, FakeService.take], ids=["unknown", "pending"])
async def test_a_users_own_source_names_a_transaction_by_its_number_alone(
    identifier: Any, script: Script
) -> None:
    """Anything else is a conflict, as in an answer of the service, and never becomes the sale's id."""
    report = payclient.StatusReport(
        state="Aceptado", transaction_id=identifier, client_transaction_id="order-17", amount=1150
    )
    service = FakeService()
    async with selling(service, script, status=AsyncMock(return_value=report)) as (_, pending):
        assert (await outcome_of(service, pending)).paid is None
        assert pending.transaction_id in (None, 1000)
    assert "Conflicted" in await events_of(service.ledger)


@pytest.mark.parametrize("readable_first", [True, False])
@pytest.mark.parametrize("word", ["Aceptado", "Pendiente", "Cancelado"])
async def test_of_several_the_unreadable_one_never_decides(word: str, readable_first: bool) -> None:
    """One that is paid and can be read is a verdict, in any order; of all others the unreadable one is told."""
    good = {"transactionId": 1, "clientTransactionId": "a", "amount": 5, "currency": "USD", "state": word}
    several = [good, good | {"transactionId": 2, "amount": "5"}]
    async with session_of(answer(200, several if readable_first else several[::-1]), PROFILE) as session:
        report = await session.status(client_transaction_id="a")
    assert report is not None
    paid = word == "Aceptado"
    assert (report.state, report.unreadable) == (word, () if paid else ("amount",))
    assert (report.transaction_id, report.also_accepted) == ((1, (2,)) if paid else (None, ()))


assert PROFILE.status is not None
CODED = attrs.evolve(
    PROFILE,
    status=attrs.evolve(
        PROFILE.status, code_field="statusCode", codes={1: "Pendiente", 2: "Cancelado", 3: "Aceptado"}
    ),
)


@pytest.mark.parametrize(
    ("word", "code"),
    [
        *(("Aceptado", code) for code in ("1", "2", "4", "0", '"3"', "3.0", "true", "[3]", '2, "statusCode": 3')),
        ("Cancelado", "1"), ("Cancelado", "3"),
    ],
)  # fmt: skip
async def test_a_number_that_contradicts_the_word_decides_nothing(
    word: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which of the two is true nobody knows, nor of a number given twice; once they agree, the sale is decided.

    The log does not blame the profile's words, which are mapped.
    """
    service = FakeService()
    async with tracking(service, profile=CODED) as tracker:
        pending = await tracker.sale(sale())
        service.sales[1000]["state"] = word
        body = json.dumps(service.sales[1000])[:-1] + f', "statusCode": {code}}}'
        service.status_scripts = [lambda: HttpResponse(200, {}, body.encode())] * 500
        await service.clock.advance(100)
        assert pending.state is State.PENDING
        service.status_scripts.clear()
        assert (await outcome_of(service, pending)).paid is (word == "Aceptado")
    given_twice = "," in code  # no JSON that can be read
    assert ("or two that differ (status.codes)" in caplog.text) is not given_twice


# --- Ids that could be taken for others

#: Each looks like another id, or like none: by what the error says of it.
MISTAKABLE = {
    ".": "must not be", "..": "must not be", "order\u200b17": "U+200B", "\ufefforder-17": "U+FEFF",
    "order\u00ad17": "U+00AD", "order\u202e17": "U+202E", "order\u00a017": "U+00A0",
    "order\u034f17": "U+034F", "order\u316417": "U+3164", "order-17\ufe0f": "U+FE0F",
    "cafe\u0301-17": "NFC", "\u212b-17": "NFC", " order-17": "begin or end", "order-17 ": "begin or end",
}  # fmt: skip


@pytest.mark.parametrize(("identifier", "words"), MISTAKABLE.items())
def test_an_id_that_could_be_taken_for_another_is_refused(identifier: str, words: str) -> None:
    """In a Sale, in a Prepare, and as a key that ids are derived from; nothing is sent."""
    for make in (
        lambda: sale(identifier),
        lambda: payclient.PrepareRequest(
            currency="USD", client_transaction_id=identifier, store_id="S1", tax=15, response_url="https://shop.example"
        ),
        lambda: payclient.derive_id("order", identifier),
    ):  # fmt: skip
        with pytest.raises(payclient.InvalidRequestError) as raised:
            make()
        assert words in raised.value.user_messages[0]
    # Letters of any script in their composed form say what they show.
    for good in ("caf\u00e9-17", "\u00c5-17", "orden 17", "...", "\u65e5\u672c", "a.b"):
        assert sale(good).client_transaction_id == good
        assert payclient.derive_id(good) != payclient.derive_id("order-17")


class Order17(str, enum.Enum):  # noqa: UP042 - a StrEnum formats as its value
    """A text that formats as its name, and not as its value."""

    ID = "order-17"


async def test_an_id_of_another_class_of_texts_is_queried_as_it_was_sent() -> None:
    """Queried as `Order17.ID`, an executed sale would be "not found", proven absent, and sent again."""
    service = FakeService()
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale(Order17.ID))
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        assert f"{pending.client_transaction_id}" == "order-17"
    async with payclient.PaySession(
        "https://pay.example", "token", profile=PROFILE, transport=service
    ) as session:
        assert await session.status(client_transaction_id=Order17.ID) is not None
    address = payclient.notification_url("https://shop.example/told", Order17.ID, "s" * 16)
    assert address == payclient.notification_url("https://shop.example/told", "order-17", "s" * 16)


# --- Between us and the service

#: Ids that a proxy which decodes a path makes shorter: to the path of another id.
SHORTENED = ["/17", "17/", "./17", "../17", "a/../17", "a/..", "a//17"]


@pytest.mark.parametrize("identifier", [*SHORTENED, "a/17", "a/b/17", "17..", "a/...", ".17", "a.b/17"])
@pytest.mark.parametrize("body", [b"[]", b'{"errorCode": 20}'])
async def test_not_found_of_an_id_that_a_proxy_shortens_proves_no_absence(
    identifier: str, body: bytes
) -> None:
    """It would be the answer to a query for another id; a report names its own."""
    async with session_of(HttpResponse(200, {}, body), PROFILE) as session:
        if identifier in SHORTENED:
            with pytest.raises(payclient.OutcomeUnknownError, match="another id"):
                await session.status(client_transaction_id=identifier)
        else:
            assert await session.status(client_transaction_id=identifier) is None
    async with session_of(HttpResponse(200, {}, b'[{"state": "Aceptado"}]'), PROFILE) as session:
        assert await session.status(client_transaction_id=identifier) is not None


async def test_a_lost_sale_of_an_id_that_a_proxy_shortens_stays_unknown() -> None:
    """It was executed, and each query was answered for another id: called refused, it would be charged again."""
    service = FakeService()
    service.scripts = [lost_answer]
    service.status_scripts = [lambda: HttpResponse(200, {}, b"[]")] * 500
    async with tracking(service, profile=PROFILE) as tracker:
        pending = await tracker.sale(sale("a/../17"))
        assert (await outcome_of(service, pending)).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("age", "found"), [("0", True), ("1", False), (" 3600", False), ("unreadable", False)]
)
@pytest.mark.parametrize(
    ("body", "state"),
    [(b"[]", None), (b'{"errorCode": 20}', None), (b'[{"state": "Aceptado"}]', "Aceptado"),
     (b'{"state": "Pendiente"}', "Pendiente")],
)  # fmt: skip
async def test_what_a_cache_stored_is_no_answer(
    age: str, found: bool, body: bytes, state: str | None
) -> None:
    """It is of an earlier query: the sale may not have been there yet, not been approved, or not been given back."""
    async with session_of(HttpResponse(200, {"age": age}, body), PROFILE) as session:
        if found:
            report = await session.status(client_transaction_id="order-17")
            assert (None if report is None else report.state) == state
        else:
            with pytest.raises(payclient.OutcomeUnknownError, match="cache"):
                await session.status(client_transaction_id="order-17")


@pytest.mark.parametrize(
    ("status", "error"), [(401, payclient.UnauthorizedError), (429, payclient.RateLimitedError)]
)
async def test_a_refusal_of_some_age_is_a_refusal_all_the_same(
    status: int, error: type[payclient.RefusedError]
) -> None:
    """A proxy that limits the rate may mark its answers: unheeded, each query would come at its usual time."""
    async with session_of(HttpResponse(status, {"Age": "3", "Retry-After": "60"}, b""), PROFILE) as session:
        with pytest.raises(error):
            await session.status(client_transaction_id="order-17")
