"""What is kept of an approval and of a decline: from the service's answer to each place where a merchant looks."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from fake_service import PROFILE as PLAIN
from fake_service import FakeService, outcome_of, pending_of, tracking
from fake_service import form as form_of
from fake_service import sale as push
from payclient.cli import main
from payclient.errors import ConfigurationError
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.models import StatusReport
from payclient.profile import PAYPHONE as PRESET
from payclient.simulator import PAYPHONE, Answers, Simulator, SimulatorThread
from payclient.simulator.messages import MESSAGE_CODES, Reason, say
from payclient.wire import HttpResponse, decode_status

#: The preset, without its limit of queries.
PROFILE = attrs.evolve(PRESET, queries_per_minute=30_000)
KEPT = PRESET.receipt_fields
SAMPLE = Path(__file__).parent / "samples" / "status_approved.json"

PERSONAL = (
    "email", "Email", "e_mail", "phoneNumber", "document", "documentId", "name", "cardHolder", "holderName", "bin",
    "cardBin", "firstName", "LAST_NAME", "optionalParameter4", "clientUserId", "address1", "storeName", "cvv",
    "cardNumber", "telefono", "correoElectronico", "titular", "apellidos", "movil", "numero_de_tarjeta", "firstSix",
    "ruc", "DNI", "payer_id", "tel",
)  # fmt: skip


TOML = f"""
name = "shop"
sale_window = 10
queries_per_minute = 60000
nick_name_flag = "chargeByNickName"
not_found_codes = [20]
receipt_fields = {list(KEPT)}
[status]
by_transaction_id = "/api/Sale/{{transaction_id}}"
state_field = "transactionStatus"
states = {{ Pending = "Pendiente", Canceled = "Cancelado", Approved = "Aceptado" }}
"""


def words(reason: Reason) -> str:
    """What `Outcome.reason` must be: the vendor's text and its code."""
    return f"{say(reason, 'es')} ({MESSAGE_CODES[reason]})"


def shop(service: Simulator, ledger: str = "memory:") -> Any:
    return payclient.open_tracker(service.url, "token", ledger=ledger, profile=PROFILE)


# --- The profile


def test_what_cannot_be_kept() -> None:
    """Personal fields, however they are written, and what is not a list of names; by default nothing is kept."""
    for name in PERSONAL:
        with pytest.raises(
            ConfigurationError, match=r"receipt_fields: must list .* phones, e-mail addresses, documents"
        ):
            payclient.ServiceProfile.parse({"receipt_fields": ["authorizationCode", name]})
    wrong: list[Any] = ["message", 5, [5], [""], ["a b"], {"a": 1}, None, [f"f{n}" for n in range(21)]]
    for value in wrong:
        with pytest.raises(ConfigurationError, match="receipt_fields"):
            payclient.ServiceProfile.parse({"receipt_fields": value})
    assert payclient.DOCUMENT.receipt_fields == ()
    assert attrs.evolve(PRESET, receipt_fields=["date"]).receipt_fields == ("date",)


# --- An answer


def read(answer: object, profile: payclient.ServiceProfile = PROFILE) -> StatusReport:
    report = decode_status(HttpResponse(200, {}, json.dumps(answer).encode()), profile)
    assert report is not None
    return report


def test_a_published_answer_gives_its_receipt() -> None:
    """The fields of the preset, and no person's."""
    answer = json.loads(SAMPLE.read_text(encoding="utf-8"))
    report = read(answer)
    assert report.receipt == {name: answer[name] for name in KEPT if answer.get(name) not in (None, "")}
    assert {"authorizationCode", "cardBrand", "lastDigits"} <= set(report.receipt)
    assert report.reason is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"message": "Fondos Insuficientes", "messageCode": 16}, "Fondos Insuficientes (16)"),
        ({"message": "Fondos Insuficientes", "messageCode": 0}, "Fondos Insuficientes"),
        ({"message": "Fondos Insuficientes"}, "Fondos Insuficientes"), ({"message": None, "messageCode": 16}, "16"),
        ({"message": " ", "messageCode": 0}, None), ({"message": ["Fondos"], "messageCode": "16"}, "16"),
        ({"message": {"es": "Fondos"}, "messageCode": True}, None), ({"message": "x" * 10_000}, "x" * 200), ({}, None),
        ({"message": "a\nb\x00", "messageCode": 16.5}, "a\\nb\\x00"),
    ],
)  # fmt: skip
def test_why_it_was_declined(fields: dict[str, object], reason: str | None) -> None:
    """A text and its code, whatever the service wrote into them; and a decline has no receipt."""
    report = read({"transactionStatus": "Canceled", "statusCode": 2, "transactionId": 7, **fields})
    assert (report.state, report.reason, report.receipt) == ("Cancelado", reason, {})


# --- What stays


async def test_both_are_there_after_a_restart(tmp_path: Path) -> None:
    """In the ledger, by the outcome and the feed, and nothing of the person; what is given back keeps its receipt."""
    file = tmp_path / "charges.db"
    names = ("paid", "declined", "given-back", "form")
    async with Simulator(token="token", settings=PAYPHONE, answers=Answers.parse("ignore=1")) as service:
        async with shop(service, f"sqlite:{file}") as tracker:
            for number, name in enumerate(names[:3], 1):
                await tracker.sale(push(name, f"098400000{number}"))
            await service.approve("paid")
            await service.reject("declined", "stolen_card")
            await service.approve("given-back")
            for pending in tracker.open_sales():
                await pending.check()
            await tracker.reverse(await pending_of(tracker, "given-back"))
            form = await tracker.prepare(form_of("form"))
            url = await service.pay(form.payment_id, declined=True, reason="insufficient_funds")
            await tracker.returned(url.partition("?")[2])
        async with shop(service, f"sqlite:{file}") as tracker:
            outcomes = {name: (await pending_of(tracker, name)).outcome for name in names}
            news = {}
            async for outcome in tracker.outcomes():
                news[outcome.client_transaction_id] = outcome
                if outcome.client_transaction_id == "form" and outcome.paid is False:
                    break
    paid = outcomes["paid"]
    assert paid.receipt["authorizationCode"] == f"W{paid.transaction_id}"
    assert set(paid.receipt) <= set(KEPT)
    assert {"cardBrand", "lastDigits", "date"} <= set(paid.receipt)
    assert (paid.reason, outcomes["declined"].reason) == (None, words("stolen_card"))
    assert (outcomes["form"].paid, outcomes["form"].reason) == (False, words("insufficient_funds"))
    assert (outcomes["declined"].receipt, outcomes["given-back"].paid) == ({}, False)
    assert outcomes["given-back"].receipt["authorizationCode"] == f"W{outcomes['given-back'].transaction_id}"
    assert {name: (each.reason, each.receipt) for name, each in news.items()} == {
        name: (each.reason, each.receipt) for name, each in outcomes.items()
    }
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (b"984000001", b"cliente@example.com", b"1799999999", b"CLIENTE SIMULADO", b"530219"):
        assert secret not in held
    assert "authorizationCode" not in repr(paid)


@pytest.mark.usefixtures("delays")
async def test_a_source_of_the_users_own_gives_both_and_no_personal_field() -> None:
    """What it calls a receipt is looked at like an answer of the service: hostile texts, and many, block no record."""
    service, ledger = FakeService(), MemoryLedger()
    junk: Any = {
        "authorizationCode": "W7", "email": "ann@shop.example", "teléfono": "0984111222", "cédula": 1716151413,
        5: "x", "tip": 1.5, "message": ["no"],
        "cardBrand": "Vi\ud83d",  # a cut emoji, as `json.loads` gives it
        "\ud800\x00": "\x00" + "ñ" * 2000, "huge": 10**400, "endless": -(10**5000),
    } | {f"field{number}": number for number in range(100)}  # fmt: skip
    paid = StatusReport(state="Aceptado", client_transaction_id="order-1", receipt=junk)
    declined = StatusReport(state="Cancelado", client_transaction_id="order-22", reason="no funds")
    said = {"order-1": paid, "order-22": declined}

    async def status(reference: payclient.TransactionRef) -> StatusReport:
        return said[reference.client_transaction_id]

    async with tracking(service, ledger, PLAIN, status=status) as tracker:
        receipt: Any = {
            "authorizationCode": "W7",
            "cardBrand": "Vi\\ud83d",
            "\\ud800\\x00": "\\x00" + "ñ" * 199,
        }
        receipt |= {f"field{number}": number for number in range(13)}
        for name, kept in (("order-1", (None, receipt)), ("order-22", ("no funds", {}))):
            outcome = await outcome_of(service, await tracker.sale(push(name, f"09840000{len(name):02}")))
            assert (outcome.reason, outcome.receipt) == kept


async def test_a_receipt_of_the_greatest_size_is_kept_whole(tmp_path: Path) -> None:
    """20 fields of 200 characters that are each escaped six times as long."""
    names = [f"field{number}" + "x" * 55 for number in range(20)]
    profile = attrs.evolve(PROFILE, receipt_fields=names)
    report = read(
        {"transactionStatus": "Approved", "statusCode": 3} | dict.fromkeys(names, "ñ" * 300), profile
    )
    assert report.receipt == dict.fromkeys(names, "ñ" * 200)
    service = FakeService()
    ledger = await SqliteLedger.open(str(tmp_path / "charges.db"))

    async def status(_: object) -> StatusReport:
        return attrs.evolve(report, transaction_id=None, client_transaction_id="first")

    async with tracking(service, ledger, PLAIN, status=status) as tracker:
        outcome = await (await tracker.sale(push("first"))).check()
    assert outcome.receipt == report.receipt
    await ledger.aclose()


# --- Where a merchant looks


def by_id(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["client_transaction_id"]: row for row in rows}


def test_the_command_line_shows_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The report, the page, `ledger show` and `ledger export`: of 8 charges some are paid and some declined."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAYCLIENT_TOKEN", "token")
    monkeypatch.setenv("PAYCLIENT_LEDGER", "sqlite:charges.db")
    header = "client_transaction_id,phone_number,country_code,currency,amount_without_tax,store_id\n"
    rows = "".join(f"order-{number},098400000{number},593,USD,1150,S1\n" for number in range(8))
    Path("charges.csv").write_text(header + rows, encoding="utf-8")
    Path("shop.toml").write_text(TOML, encoding="utf-8")
    why_not: tuple[Reason, ...] = ("insufficient_funds",)
    crowd = Answers(approve=0.5, reject=0.5, ignore=0.0, delay=(0.01, 0.0), reasons=why_not, seed=3)
    with SimulatorThread(Simulator(token="token", settings=PAYPHONE, answers=crowd)) as service:
        for report_to in (["report.csv", "--html", "report.html"], ["report.jsonl"]):
            profile = ["--profile", "shop.toml", "--new-ledger", "--yes"]
            assert (
                main(["charge", "charges.csv", "--base-url", service.url, *profile, "--report", *report_to])
                == 3
            )
        sales = service.sales.values()
    capfd.readouterr()
    declined = next(sale for sale in sales if sale.how == "rejected")
    paid = next(sale for sale in sales if sale.how == "approved")
    report = by_id(csv.DictReader(Path("report.csv").read_text().splitlines()))
    as_json = by_id(map(json.loads, Path("report.jsonl").read_text().splitlines()))
    why, code_of = words("insufficient_funds"), f"W{paid.transaction_id}"
    for lines_of in (report, as_json):
        assert lines_of[declined.client_transaction_id]["message"] == why
        assert not lines_of[declined.client_transaction_id]["receipt"]
    assert json.loads(report[paid.client_transaction_id]["receipt"])["authorizationCode"] == code_of
    assert as_json[paid.client_transaction_id]["receipt"]["authorizationCode"] == code_of
    page = Path("report.html").read_text(encoding="utf-8")
    assert why in page
    assert f"authorizationCode {code_of}" in page
    for identifier, shown in ((declined.client_transaction_id, why), (paid.client_transaction_id, code_of)):
        assert main(["ledger", "show", identifier]) == 0
        assert shown in capfd.readouterr().out
    assert main(["ledger", "export", "--format", "jsonl"]) == 0
    exported = by_id(map(json.loads, capfd.readouterr().out.splitlines()))
    assert exported[declined.client_transaction_id]["reason"] == why
    assert exported[paid.client_transaction_id]["receipt"] == as_json[paid.client_transaction_id]["receipt"]
    assert main(["ledger", "export", "--format", "csv"]) == 0
    cells = by_id(csv.DictReader(capfd.readouterr().out.splitlines()))
    assert json.loads(cells[paid.client_transaction_id]["receipt"])["authorizationCode"] == code_of
    for text in (page, Path("report.csv").read_text(), json.dumps(exported)):
        assert not any(
            secret in text for secret in ("cliente@example.com", "1799999999", "CLIENTE SIMULADO", "0984000")
        )


def test_a_report_of_fewer_columns_is_still_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on with an earlier version's report writes it anew."""
    monkeypatch.chdir(tmp_path)
    Path("report.csv").write_text(
        "client_transaction_id,transaction_id,state,paid\norder-1,7,accepted,true\n"
    )
    from payclient.cli.report import Report

    assert Report(Path("report.csv")).earlier == {"order-1": (None, None, None)}
