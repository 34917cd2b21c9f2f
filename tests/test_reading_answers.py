"""What each answer proves, seen from outside: SEMANTICS' table of answers to a Sale, reports that are not ours, ids."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from fake_service import PROFILE, FakeService, outcome_of, sale, tracking
from payclient.cli import main
from payclient.profile import StatusProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

State = payclient.State

SHOP = attrs.evolve(
    PROFILE,
    duplicate_codes=frozenset(),
    uncertain_codes=frozenset({500, 501}),
    refusing_statuses=frozenset({418, 429, 503}),
)
CREATED = '{"transactionId": 5}'
ERROR = '{"message": "no", "errorCode": 5}'
BUSY = '{"errorCode": 5, "errors": [{"errorCode": 2061}]}'


async def read(status: int, body: str, profile: payclient.ServiceProfile) -> str:
    """Send one Sale that is answered so, and say what came of it: created, refused (by which class), unknown."""

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        return HttpResponse(status, {}, body.encode())

    async with payclient.PaySession(
        "https://pay.example", "token", profile=profile, transport=transport
    ) as session:
        try:
            result = await session.sale(sale())
        except payclient.RefusedError as error:
            return f"refused {type(error).__name__}"
        except payclient.OutcomeUnknownError as error:
            return f"unknown {error.candidate_id}"
        return f"created {result.transaction_id}"


#: By row of the table: statuses, bodies, what they are.
TABLE: list[tuple[list[int], list[str], str]] = [
    ([200, 201, 299], [CREATED, '{"transactionId": 5, "errorCode": null}'], "created 5"),
    ([200, 299, 400, 404, 409, 498], [ERROR, '{"errorCode": -1}'], "refused RefusedError"),
    # Code 0 is a success to whoever writes it.
    ([200, 400, 404], ['{"errorCode": 0}', '{"errorCode": 0, "errors": [{"errorCode": 2061}]}'], "unknown None"),
    # An id wherever it stands.
    (
        [200, 400, 404],
        [
            '{"errorCode": 0, "data": {"transactionId": 5}}',
            '{"errorCode": 5, "data": {"transactionId": 5}}',
            '{"errorCode": 5, "TransactionId": 5}',
            '{"errorCode": 5, "TRANSACTIONID": 5}',
            '{"errorCode": 5, "transaction_id": 5}',
            '{"errorCode": 5, "\\u0074ransactionId": 5}',
            '{"errorCode": 5, "errors": [{"errorCode": 2061, "x": [[{"transactionid": 5}]]}]}',
            '{"errorCode": 5, "data": {"transactionId": 5}, "data": null}',
            '{"errorCode": 5, "transactionId": {"transactionId": 5}}',
            '{"errorCode": 22, "transactionId": 5}',
        ],
        "unknown 5",
    ),
    ([400], ['{"errorCode": 5, "data": {"transactionId": "5"}}'], "unknown None"),
    ([400], ['{"errorCode": 5, "transactionId": 0}', '{"errorCode": 5, "a": {"transactionId": {}}}'], "unknown None"),
    (
        [400],
        ['{"errorCode": 5, "message": "transactionId 5 ClientTransactionId", "transactionId": null}'],
        "refused RefusedError",
    ),
    # Something in between gave up, whatever else.
    ([408, 425, 499], [ERROR, BUSY, '{"errorCode": 22}', "", '{"message": "no"}'], "unknown None"),
    ([408, 425, 499], [CREATED], "unknown 5"),
    # The service itself failed.
    (
        [200, 400, 418, 429, 500, 503],
        ['{"errorCode": 500}', '{"errorCode": 501}', '{"errorCode": 5, "errors": [{"errorCode": 500}]}'],
        "unknown None",
    ),
    ([500, 502, 599], ['{"errorCode": 22}'], "refused NotCreatedError"),
    ([500, 502, 599], ['{"errorCode": 800}'], "refused ValidationFailedError"),
    ([500, 502, 599], [BUSY], "refused CustomerBusyError"),
    ([500, 502, 599], [ERROR, ""], "unknown None"),
    ([401, 403], ['{"message": "no"}'], "refused UnauthorizedError"),
    ([401, 403], ["", "{}", "<html>"], "unknown None"),
    ([401, 403], ['{"message": "no", "transactionId": 5}'], "unknown 5"),
    ([401, 403], ['{"message": "no", "data": {"transactionId": 5}}'], "unknown 5"),
    ([429], [ERROR, "", "<html>", "[]"], "refused RateLimitedError"),
    (
        [418, 503],
        ["", "<html>\\\\</html>", "[]", "{}", '{"transactionId": null}', '{"errors": [{"errorCode": 2061}]}'],
        "refused RefusedError",
    ),
    ([418, 429, 503], [CREATED, '{"a": {"transactionid": 5}}', '[{"transactionId": 5}]'], "unknown 5"),
    ([418, 429, 503], ['{"TransactionId": 5', '{"x": "' + "transaction" * 40_000 + '"}'], "unknown None"),
    ([418, 429, 503], ['{"transactionId": "x"}'], "unknown None"),
    # A field given twice.
    ([200], ['{"transactionId": 1, "transactionId": 2}'], "unknown 2"),
    # What is said of another Sale.
    ([200], ['{"transactionId": 5, "clientTransactionId": "order-17"}'], "created 5"),
    ([200], ['{"transactionId": 5, "clientTransactionId": "order-18"}'], "unknown 5"),
    ([200], ['{"transactionId": 5, "clientTransactionId": 17}'], "unknown 5"),
    ([200, 400], ['{"errorCode": 5, "clientTransactionId": "order-17"}'], "refused RefusedError"),
    ([200, 400], ['{"errorCode": 5, "clientTransactionId": "order-18"}'], "unknown None"),
    # All else.
    ([301, 302, 307, 399], [ERROR, BUSY, "", "<html>"], "unknown None"),
    ([400, 404, 500, 502], [CREATED], "unknown 5"),
    ([200, 204, 400, 404], ["", "{}", "null", "[]", '"ok"', "<html>", '{"errorCode": 5'], "unknown None"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "what"),
    [(status, body, what) for statuses, bodies, what in TABLE for body in bodies for status in statuses],
)
async def test_each_row_of_the_table(status: int, body: str, what: str) -> None:
    """Created by one strict id, refused by proof alone, unknown by all else; an id that was seen is kept."""
    assert await read(status, body, SHOP) == what


async def test_without_a_refusing_status_429_needs_the_error_object() -> None:
    """The profile's statuses come before the row of 429."""
    assert await read(429, "<html>", PROFILE) == "unknown None"
    assert await read(429, ERROR, PROFILE) == "refused RateLimitedError"


async def test_the_preset_takes_no_failure_of_the_service_for_a_refusal() -> None:
    """Codes 500 and 501 say that the service failed, not that it did nothing."""
    for code in (500, 501):
        assert await read(400, json.dumps({"errorCode": code}), payclient.PAYPHONE) == "unknown None"
    assert await read(400, '{"errorCode": 100}', payclient.PAYPHONE) == "refused RefusedError"


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
        ("transactionId", "1000"), ("transactionId", 1000.0), ("clientTransactionId", 17),
        ("clientTransactionId", ["order-17"]), ("amount", "1150"), ("amount", 1150.0), ("currency", 840),
        ("currency", ["USD"]),
    ],
)  # fmt: skip
async def test_a_field_of_another_type_is_a_conflict(field: str, value: object) -> None:
    """It is there and cannot be read, which is not "not said": an event, and never a verdict."""
    service = FakeService()
    ledger = await payclient.open_ledger("memory:")
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        report = service.sales[1000] | {"state": "Aceptado", field: value}
        for kind in (report, [report]):
            service.status_scripts = [
                lambda kind=kind: HttpResponse(200, {}, json.dumps(kind).encode())  # type: ignore[misc]  # bound now
            ] * 500
        outcome = await outcome_of(service, pending)
        assert outcome.paid is None
    events = [change for change in await ledger.history("order-17") if change.event == "Conflicted"]
    assert events
    assert field in (events[0].detail or "")


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


@pytest.mark.parametrize("readable_first", [True, False])
@pytest.mark.parametrize("word", ["Aceptado", "Pendiente", "Cancelado"])
async def test_of_several_the_unreadable_one_never_decides(word: str, readable_first: bool) -> None:
    """One that is paid and can be read is a verdict, in any order; of all others the unreadable one is told."""
    good = {"transactionId": 1, "clientTransactionId": "a", "amount": 5, "currency": "USD", "state": word}
    several = [good, good | {"transactionId": 2, "amount": "5"}]

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        body = json.dumps(several if readable_first else several[::-1]).encode()
        return HttpResponse(200, {}, body)

    async with payclient.PaySession(
        "https://pay.example", "token", profile=PROFILE, transport=transport
    ) as session:
        report = await session.status(client_transaction_id="a")
    assert report is not None
    assert report.state == word
    assert report.unreadable == (() if word == "Aceptado" else ("amount",))
    assert report.transaction_id == (1 if word == "Aceptado" else None)
    assert report.also_accepted == ((2,) if word == "Aceptado" else ())


CODED = attrs.evolve(
    PROFILE,
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="state",
        code_field="statusCode",
        codes={1: "Pendiente", 2: "Cancelado", 3: "Aceptado"},
    ),
)


@pytest.mark.parametrize("code", [1, 2, 4, 0, "3", 3.0, True, [3]])
@pytest.mark.parametrize("word", ["Aceptado", "Cancelado"])
async def test_a_number_that_contradicts_the_word_decides_nothing(code: Any, word: str) -> None:
    """Which of the two is true nobody knows; once they agree, the sale is decided."""
    if (code, word) == (2, "Cancelado"):
        return
    service = FakeService()
    async with tracking(service, profile=CODED) as tracker:
        pending = await tracker.sale(sale())
        service.sales[1000] |= {"state": word, "statusCode": code}
        await service.clock.advance(100)
        assert pending.state is State.PENDING
        service.sales[1000]["statusCode"] = None
        assert (await outcome_of(service, pending)).paid is (word == "Aceptado")


async def test_a_number_given_twice_decides_nothing() -> None:
    """An object that says two things says nothing."""
    body = b'{"transactionId": 1000, "state": "Aceptado", "statusCode": 2, "statusCode": 3}'
    service = FakeService()
    async with tracking(service, profile=CODED) as tracker:
        pending = await tracker.sale(sale())
        service.status_scripts = [lambda: HttpResponse(200, {}, body)] * 500
        assert (await outcome_of(service, pending)).paid is None


async def test_the_preset_reads_the_number_too() -> None:
    """1 is pending, 2 cancelled, 3 approved."""
    words = {"Pending": (1, "Pendiente"), "Canceled": (2, "Cancelado"), "Approved": (3, "Aceptado")}
    for word, (_, state) in words.items():
        for code in (1, 2, 3):
            body = json.dumps({"transactionId": 5, "transactionStatus": word, "statusCode": code}).encode()

            async def transport(
                request: HttpRequest, before_send: BeforeSend | None, body: bytes = body
            ) -> HttpResponse:
                assert before_send is not None
                await before_send()
                return HttpResponse(200, {}, body)

            async with payclient.PaySession(
                None, "token", profile="payphone", transport=transport
            ) as session:
                report = await session.status(transaction_id=5)
                assert report is not None
                assert report.state == (state if words[word][0] == code else None)


# --- Profiles, acknowledgements, ids


def test_absence_cannot_be_proven_while_the_customer_may_approve() -> None:
    """`absent_after` is at least the sale window, in Python and in a file."""
    with pytest.raises(payclient.ConfigurationError, match="absent_after: must be at least sale_window"):
        payclient.ServiceProfile(absent_after=299)
    with pytest.raises(payclient.ConfigurationError, match="absent_after: must be at least sale_window"):
        payclient.ServiceProfile.parse({"sale_window": 60, "absent_after": 59.9})
    assert payclient.ServiceProfile(absent_after=300).absent_after == 300


#: Each looks like another id, or like none: by what the error says of it.
MISTAKABLE = {
    ".": "must not be", "..": "must not be", "order\u200b17": "U+200B", "\ufefforder-17": "U+FEFF",
    "order\u00ad17": "U+00AD", "order\u202e17": "U+202E", "order\u00a017": "U+00A0",
    "order\u034f17": "U+034F", "order\u316417": "U+3164", "order-17\ufe0f": "U+FE0F",
    "cafe\u0301-17": "NFC", "\u212b-17": "NFC",
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


@pytest.mark.parametrize(
    "identifier", ["caf\u00e9-17", "\u00c5-17", "orden 17", "...", "\u65e5\u672c", "a.b"]
)
def test_an_id_that_says_what_it_shows_is_taken(identifier: str) -> None:
    """Letters of any script in their composed form."""
    assert sale(identifier).client_transaction_id == identifier
    assert payclient.derive_id(identifier) != payclient.derive_id("order-17")


@pytest.mark.parametrize("identifier", list(MISTAKABLE))
def test_a_file_with_such_a_key_is_refused(
    identifier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent, and before a ledger is made."""
    rows = tmp_path / "rows.csv"
    fields = "client_transaction_id,phone_number,country_code,currency,amount_without_tax"
    rows.write_text(f"{fields}\nplain,0984111222,593,USD,100\n{identifier},0984111223,593,USD,100\n", "utf-8")
    token = tmp_path / "token"
    token.write_text("secret-token")
    ledger = tmp_path / "charges.db"
    status = main(
        [
            "charge", str(rows), "--base-url", "http://127.0.0.1:9", "--token-file", str(token),
            "--ledger", f"sqlite:{ledger}", "--new-ledger", "--report", str(tmp_path / "report.csv"), "--yes",
        ]
    )  # fmt: skip
    said = "".join(capsys.readouterr())
    assert status == 2, said
    assert MISTAKABLE[identifier] in said
    assert not ledger.exists()


# --- Caches


@pytest.mark.parametrize(
    ("age", "found"), [("0", True), ("1", False), (" 3600", False), ("unreadable", False)]
)
@pytest.mark.parametrize("body", ["[]", '{"errorCode": 20}'])
async def test_a_cache_proves_no_absence(age: str, found: bool, body: str) -> None:
    """A "not found" of some age is of an earlier query, when the sale may not have been there yet."""

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        return HttpResponse(200, {"age": age}, body.encode())

    async with payclient.PaySession(
        "https://pay.example", "token", profile=PROFILE, transport=transport
    ) as session:
        if found:
            assert await session.status(client_transaction_id="order-17") is None
        else:
            with pytest.raises(payclient.OutcomeUnknownError, match="cache"):
                await session.status(client_transaction_id="order-17")
