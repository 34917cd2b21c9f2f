"""`payclient confirm`, `cancel` and `reverse`: one request each, the last two asked for first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from payclient.cli import main
from payclient.session import PaySession
from payclient.simulator import PAYPHONE, Answers, Simulator

TOKEN = "token-never-shown"


class Service:
    """A simulator in a thread of its own, so that a command may have its own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, simulator: Simulator) -> None:
        self.loop = loop
        self.simulator = simulator

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def session(self, work: Callable[[PaySession], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            async with PaySession(self.simulator.url, TOKEN, profile="payphone") as session:
                return await work(session)

        return asyncio.run(run())

    def sale(self, identifier: str) -> int:
        request = payclient.SaleRequest(
            phone_number="0984111222", country_code="593", currency="USD", amount_without_tax=100,
            client_transaction_id=identifier, store_id=identifier,
        )  # fmt: skip
        number = self.session(lambda session: session.sale(request)).transaction_id
        assert isinstance(number, int)
        return number

    def paid_form(self, identifier: str) -> int:
        request = payclient.PrepareRequest(
            currency="USD", amount_without_tax=100, client_transaction_id=identifier, store_id="S1",
            response_url="https://shop.example/back",
        )  # fmt: skip
        payment_id = self.session(lambda session: session.prepare(request)).payment_id
        self.do(self.simulator.pay(payment_id))
        number = self.simulator.forms[payment_id].transaction_id
        assert number is not None
        return number


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    simulator = Simulator(
        token=TOKEN,
        # A whole day, whatever the hour of the test.
        settings=attrs.evolve(PAYPHONE, reversal_hour=24),
        answers=Answers(approve=0.0, reject=0.0, ignore=1.0, delay=(60.0, 0.0)),
    )
    asyncio.run_coroutine_threadsafe(simulator.__aenter__(), loop).result(10)
    try:
        yield Service(loop, simulator)
    finally:
        asyncio.run_coroutine_threadsafe(simulator.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(autouse=True)
def environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)
    monkeypatch.setenv("PAYCLIENT_BASE_URL", service.simulator.url)
    monkeypatch.setenv("PAYCLIENT_PROFILE", "payphone")


def test_a_paid_form_is_confirmed_and_may_be_again(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    number = service.paid_form("cli-form-1")
    for _ in range(2):
        arguments = ["confirm", "--transaction-id", str(number), "--client-transaction-id", "cli-form-1"]
        assert main(arguments) == 0
        out = capfd.readouterr().out
        assert "Aceptado" in out
        assert "USD 1.00" in out
    assert main(["confirm", "--transaction-id", "999999", "--client-transaction-id", "cli-form-1"]) == 3
    assert TOKEN not in capfd.readouterr().err


@pytest.mark.parametrize("by", ["transaction", "client"])
def test_a_push_is_withdrawn_once(service: Service, by: str, capfd: pytest.CaptureFixture[str]) -> None:
    number = service.sale(f"cli-sale-{by}")
    arguments = ["cancel", "--yes"]
    arguments += (
        ["--transaction-id", str(number)]
        if by == "transaction"
        else ["--client-transaction-id", f"cli-sale-{by}"]
    )
    assert main(arguments) == 0
    assert "withdrawn" in capfd.readouterr().out
    assert main(arguments) == 3
    assert "25" in capfd.readouterr().err


def test_a_payment_is_given_back_once(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    number = service.paid_form("cli-form-2")
    assert service.simulator.collected_per_client_id["cli-form-2"] == 100
    assert main(["reverse", "--transaction-id", str(number), "--yes"]) == 0
    assert "reversed" in capfd.readouterr().out
    assert service.simulator.collected_per_client_id["cli-form-2"] == 0


@pytest.mark.parametrize("command", ["cancel", "reverse"])
@pytest.mark.parametrize(("answer", "code"), [("", 2), ("no", 2), ("y", 3)])
def test_on_a_terminal_it_asks(
    command: str, answer: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only a yes is one; then the service knows no such transaction."""
    asked: list[str] = []

    def put(_: object, question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.console.Console.input", put)
    assert main([command, "--transaction-id", "999999"]) == code
    assert len(asked) == 1
    assert "transaction 999999" in asked[0]
    assert ("nothing was sent" in capfd.readouterr().err) == (code == 2)


@pytest.mark.parametrize("command", ["cancel", "reverse"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--transaction-id", "7"], "--yes"),
        (["--yes"], "--transaction-id or --client-transaction-id"),
        (["--yes", "--transaction-id", "7", "--client-transaction-id", "x"], "--transaction-id or"),
        (["--yes", "--transaction-id", "0"], "transactionId"),
        (["--yes", "--transaction-id", "7", "--profile", "document"], "by_transaction_id"),
    ],
)
def test_bad_input_is_2_and_nothing_is_sent(
    command: str, arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Said in one line."""
    assert main([command, *arguments]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_the_token_may_be_in_a_file(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the message says where there is none."""
    number = service.sale("cli-token-file")
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    monkeypatch.delenv("PAYCLIENT_TOKEN")
    monkeypatch.setenv("PAYCLIENT_TOKEN_FILE", str(tmp_path / "token"))
    assert main(["status", "--transaction-id", str(number)]) == 0


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Proven not sent, or unknown: 4 either way, and the error says which."""
    monkeypatch.setenv("PAYCLIENT_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("payclient.session.RETRY_DELAYS", ())
    assert main(["reverse", "--transaction-id", "7", "--yes"]) == 4
    assert main(["confirm", "--transaction-id", "7", "--client-transaction-id", "x"]) == 4


@pytest.mark.parametrize("by", ["transaction", "client"])
def test_reversed_by_the_ledger(
    service: Service,
    by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The ledger keeps what came of it, and the same command sends nothing again; what it does not have is refused."""
    name, url = f"cli-kept-{by}", f"sqlite:{tmp_path / 'charges.db'}"

    async def charge() -> int:
        request = payclient.SaleRequest(
            phone_number="0984111333", country_code="593", currency="USD", amount_without_tax=100,
            client_transaction_id=name, store_id=name,
        )  # fmt: skip
        async with payclient.open_tracker(
            service.simulator.url, TOKEN, ledger=url, profile="payphone"
        ) as tracker:
            sale = await tracker.sale(request)
            assert sale.transaction_id is not None
            await asyncio.to_thread(service.do, service.simulator.approve(sale.transaction_id))
            assert (await sale.check()).paid
            return sale.transaction_id

    number = asyncio.run(charge())
    monkeypatch.setenv("PAYCLIENT_LEDGER", url)
    which = ["--transaction-id", str(number)] if by == "transaction" else ["--client-transaction-id", name]
    before = service.simulator.counts.reversed
    for _ in range(2):
        assert main(["reverse", *which, "--yes"]) == 0
        assert "reversed" in capfd.readouterr().out
    assert service.simulator.counts.reversed == before + 1
    assert main(["ledger", "show", name]) == 0
    assert "accepted → reversing" in capfd.readouterr().out
    for other in (["--transaction-id", "999"], ["--client-transaction-id", "other"]):
        assert main(["reverse", *other, "--yes"]) == 2
    assert service.simulator.counts.reversed == before + 1
