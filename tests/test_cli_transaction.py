"""`payclient confirm`, `cancel` and `reverse`: one request each, the last two asked for first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import payclient
from cli_runs import Said
from fake_service import form, sale
from payclient import sync
from payclient.cli import main
from payclient.session import PaySession
from payclient.simulator import PAYPHONE, Fault, Simulator, SimulatorThread

TOKEN = "token-never-shown"


def sold(service: SimulatorThread, identifier: str, ledger: str = "memory:") -> int:
    """The transaction id of a new Sale, which is paid if a ledger keeps it."""
    with sync.open_tracker(service.url, TOKEN, ledger=ledger, profile="payphone") as tracker:
        pending = tracker.sale(sale(identifier, store_id=identifier))
        assert pending.transaction_id is not None
        if ledger != "memory:":
            service.approve(pending.transaction_id)
            assert pending.check().paid
        return pending.transaction_id


def paid(service: SimulatorThread, identifier: str) -> int:
    """The transaction id of a form that was paid."""
    with sync.open_tracker(service.url, TOKEN, ledger="memory:", profile="payphone") as tracker:
        payment_id = tracker.prepare(form(identifier)).payment_id
    service.pay(payment_id)
    return int(service.forms[payment_id].transaction_id)


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatorThread]:
    """Its customers do nothing by themselves; a payment may be given back at whatever hour of the test."""
    settings = attrs.evolve(PAYPHONE, reversal_hour=24)
    with SimulatorThread(Simulator(token=TOKEN, settings=settings)) as thread:
        yield thread


@pytest.fixture(autouse=True)
def environment(service: SimulatorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)
    monkeypatch.setenv("PAYCLIENT_BASE_URL", service.url)
    monkeypatch.setenv("PAYCLIENT_PROFILE", "payphone")


def test_a_paid_form_is_confirmed_and_may_be_again(service: SimulatorThread, capfd: Said) -> None:
    number = paid(service, "cli-form-1")
    for _ in range(2):
        arguments = ["confirm", "--transaction-id", str(number), "--client-transaction-id", "cli-form-1"]
        assert main(arguments) == 0
        out = capfd.readouterr().out
        assert "Aceptado" in out
        assert "USD 11.50" in out
    assert main(["confirm", "--transaction-id", "999999", "--client-transaction-id", "cli-form-1"]) == 3
    assert TOKEN not in capfd.readouterr().err


def test_a_prepared_form_says_who_confirms_it(tmp_path: Path, capfd: Said) -> None:
    """Its own process ends at once. Where no other one follows it, the service gives the payment back."""
    arguments = [
        "prepare", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}", "--new-ledger", "--currency", "USD",
        "--client-transaction-id", "cli-form-2", "--store-id", "S1", "--response-url",
        "https://shop.example/back", "--amount-without-tax", "500",
    ]  # fmt: skip
    assert main(arguments) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert (
        "gives a payment back that nobody confirms within 5 min 0 s: keep `payclient follow` running" in said
    )


@pytest.mark.parametrize(
    ("state", "ids", "code"),
    [
        ("Aceptado", (7, "form-7"), 0),
        ("Cancelado", (7, "form-7"), 3),
        # What decides nothing is neither paid nor unpaid.
        ("Pendiente", (7, "form-7"), 4),
        (None, (7, "form-7"), 4),
        ("Aceptado", (8, "form-7"), 4),
        ("Aceptado", (7, "form-8"), 4),
        ("Cancelado", (8, "form-8"), 4),
    ],
)
def test_a_confirmation_that_does_not_say_is_repeated(
    state: str | None, ids: tuple[int, str], code: int, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    async def confirm(*_: object) -> payclient.StatusReport:
        return payclient.StatusReport(state=state, transaction_id=ids[0], client_transaction_id=ids[1])  # type: ignore[arg-type]  # one of its words

    monkeypatch.setattr(PaySession, "confirm", confirm)
    assert main(["confirm", "--transaction-id", "7", "--client-transaction-id", "form-7"]) == code
    assert ("repeat it" in capfd.readouterr().err) == (code == 4)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("throttle", operation="confirm"),
        Fault("refuse", operation="confirm", status=401, error_code=1),
    ],
)
def test_a_confirmation_that_was_not_looked_at_is_repeated(
    service: SimulatorThread, fault: Fault, capfd: Said
) -> None:
    """Called refused, a script would repeat it no more, and the service would give the payment back."""
    number = str(paid(service, f"cli-{fault.kind}"))
    arguments = ["confirm", "--transaction-id", number, "--client-transaction-id", f"cli-{fault.kind}"]
    service.fail_next(fault)
    assert main(arguments) == 4
    assert "repeat it" in capfd.readouterr().err
    assert main(arguments) == 0


def test_a_push_is_withdrawn_once(service: SimulatorThread, capfd: Said) -> None:
    """By either id."""
    sold(service, "sale-b")
    for which in (["--transaction-id", str(sold(service, "sale-a"))], ["--client-transaction-id", "sale-b"]):
        assert main(["cancel", "--yes", *which]) == 0
        assert "withdrawn" in capfd.readouterr().out
        assert main(["cancel", "--yes", *which]) == 3
        assert "25" in capfd.readouterr().err


def test_a_payment_is_given_back_until_its_hour(service: SimulatorThread, capfd: Said) -> None:
    """Later the refusal says until when it could be, and what to do instead."""
    arguments = ["reverse", "--transaction-id", str(paid(service, "form-2")), "--yes"]
    service.change_settings({"reversal_hour": 0})
    assert main(arguments) == 3
    assert "too late to reverse" in " ".join(capfd.readouterr().err.split())
    assert service.collected_per_client_id["form-2"] == 1150
    service.change_settings({"reversal_hour": 24})
    assert main(arguments) == 0
    assert "reversed" in capfd.readouterr().out
    assert service.collected_per_client_id["form-2"] == 0


@pytest.mark.parametrize("command", ["cancel", "reverse"])
def test_on_a_terminal_it_asks(command: str, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Only a yes is one; then the service knows no such transaction."""
    answers, asked = ["", "no", "y"], list[str]()

    def put(_: object, question: str) -> str:
        asked.append(question)
        return answers[len(asked) - 1]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.console.Console.input", put)
    for code in (2, 2, 3):
        assert main([command, "--transaction-id", "999999"]) == code
        assert ("nothing was sent" in capfd.readouterr().err) == (code == 2)
    assert len(asked) == 3
    assert "transaction 999999" in asked[0]


@pytest.mark.parametrize("command", ["cancel", "reverse"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--transaction-id 7", "--yes"),
        ("--yes", "one of --transaction-id and --client-transaction-id"),
        ("--yes --transaction-id 7 --client-transaction-id x", "one of --transaction-id and"),
        ("--yes --transaction-id 0", "transactionId"),
        ("--yes --transaction-id 7 --profile document", "by_transaction_id"),
    ],
)
def test_bad_input_is_2_and_nothing_is_sent(command: str, arguments: str, says: str, capfd: Said) -> None:
    """Said in one line."""
    assert main([command, *arguments.split()]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Proven not sent, or unknown: 4 either way, and the error says which."""
    monkeypatch.setenv("PAYCLIENT_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("payclient.session.RETRY_DELAYS", ())
    assert main(["reverse", "--transaction-id", "7", "--yes"]) == 4
    assert main(["confirm", "--transaction-id", "7", "--client-transaction-id", "x"]) == 4


@pytest.mark.parametrize("by", ["transaction", "client"])
def test_reversed_by_the_ledger(
    service: SimulatorThread, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """The ledger keeps what came of it, and the same command sends nothing again; what it does not have is refused."""
    name, url = f"cli-kept-{by}", f"sqlite:{tmp_path / 'charges.db'}"
    number, before = str(sold(service, name, url)), service.counts.reversed
    monkeypatch.setenv("PAYCLIENT_LEDGER", url)
    which = ["--transaction-id", number] if by == "transaction" else ["--client-transaction-id", name]
    for _ in range(2):
        assert main(["reverse", *which, "--yes"]) == 0
        assert "reversed" in capfd.readouterr().out
    assert service.counts.reversed == before + 1
    assert main(["ledger", "show", name]) == 0
    assert "accepted → reversing" in capfd.readouterr().out
    for other in (["--transaction-id", "999"], ["--client-transaction-id", "other"]):
        assert main(["reverse", *other, "--yes"]) == 2
    assert service.counts.reversed == before + 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reversal_whose_answer_is_lost_is_looked_up(
    service: SimulatorThread, when: str, tmp_path: Path, capfd: Said
) -> None:
    """Found given back at once. Else it may still be on its way: the same command queries again, and sends nothing."""
    name, url = f"cli-lost-{when}", f"sqlite:{tmp_path / 'charges.db'}"
    sold(service, name, url)
    before = service.counts.reversed
    service.fail_next(Fault("reset", when=when, operation="reverse"))
    command = ["reverse", "--client-transaction-id", name, "--ledger", url, "--yes"]
    assert main(command) == (0 if when == "after" else 4)
    assert ("the same command queries again" in capfd.readouterr().err) == (when == "before")
    assert service.counts.reversed == before + (when == "after")
    if when == "before":
        assert main([*command[:3], "--yes"]) == 0  # by somebody else, without the ledger
        assert main(command) == 0


@pytest.mark.parametrize(("state", "code"), [("accepted", 3), ("reversing", 4), ("reversed", 0)])
def test_what_another_process_reverses_is_called_what_it_is(
    service: SimulatorThread,
    state: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Said,
) -> None:
    """It had the permit first: this call sends nothing, and tells what the ledger says then."""
    name, url = f"cli-other-{state}", f"sqlite:{tmp_path / 'charges.db'}"
    sold(service, name, url)

    async def reverse(_: object, pending: payclient.PendingSale) -> payclient.Outcome:
        return attrs.evolve(await pending.wait(), state=payclient.State(state))

    async def check(pending: payclient.PendingSale) -> payclient.Outcome:
        return await reverse(None, pending)

    monkeypatch.setattr(payclient.Tracker, "reverse", reverse)
    monkeypatch.setattr(payclient.PendingSale, "check", check)
    assert main(["reverse", "--client-transaction-id", name, "--ledger", url, "--yes"]) == code
    said = capfd.readouterr()
    assert ("reversed" in said.out, "still paid" in said.err) == (code == 0, code == 3)
