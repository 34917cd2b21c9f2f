"""The README's examples run, against the simulator, in the order in which they stand."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from functools import partial
from pathlib import Path

import pytest

import payclient
from payclient.lifecycle import TRANSITIONS, State
from payclient.simulator import PAYPHONE, Answers, Settings, Simulator

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


async def test_every_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is run as it stands, but for the base address; the first charge is shipped."""
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text(blocks("toml")[0], encoding="utf-8")
    settings = Settings(
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_words={"Pendiente": "Pending", "Aceptado": "Approved", "Cancelado": "Canceled"},
    )
    # The customers answer at once, sooner than it is likely: ask as soon.
    quick = partial(payclient.open_tracker, schedule=payclient.Fixed(0.05))
    monkeypatch.setattr(payclient, "open_tracker", quick)
    answers = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=lambda random: 0.01)
    shipped: list[str] = []
    async with (
        Simulator(token="secret", settings=settings, answers=answers) as service,
        Simulator(token="secret", settings=PAYPHONE, answers=answers) as real,
    ):

        async def customer_comes_back(form: payclient.PaymentForm) -> str:
            return (await real.pay(form.payment_id)).partition("?")[2]

        names: dict[str, object] = {
            "token": "secret",
            "base_url": service.url,
            "customer_comes_back": customer_comes_back,
            "ship": lambda: shipped.append("order-17"),
            "offer_another_way": lambda: pytest.fail("not paid"),
            "hold_for_review": lambda outcome: pytest.fail("unknown"),
        }
        # Those that begin with a file's name are modules of shops, which `test_web_shops.py` serves.
        examples = [example for example in blocks("python") if not re.match(r"# \w+\.py", example)]
        assert len(examples) >= 6
        for example in examples:
            code = compile(
                textwrap.dedent(example)
                .replace("https://pay.example", service.url)
                .replace("https://pay.payphonetodoesposible.com", real.url),
                "README.md",
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )
            result = eval(code, names)  # noqa: S307 - our own README
            if inspect.isawaitable(result):
                async with asyncio.timeout(60):
                    await result
    assert shipped == ["order-17"]
    assert set(service.created_per_client_id.values()) == {1}
    assert names["outcome"].paid is True  # type: ignore[attr-defined]  # the form's, confirmed
    assert real.collected_per_client_id == {"first-1": 100, "button-1": 1150}
    assert "order-17 True" in capsys.readouterr().out


def diagram() -> str:
    """The lifecycle's table as a Mermaid state diagram; printed by `python tests/test_readme.py`."""
    lines = ["stateDiagram-v2", "    [*] --> sending: permit (INSERT)"]
    for state, events in TRANSITIONS.items():
        moves: dict[State, list[str]] = {}
        for event, target in events.items():
            if target is not None:
                words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", event.__name__).lower()
                moves.setdefault(target, []).append(words)
        lines += [f"    {state} --> {target}: {', '.join(words)}" for target, words in moves.items()]
    lines += [f"    {state} --> [*]" for state in (State.ACCEPTED, State.CANCELLED, State.REFUSED)]
    return "\n".join(lines) + "\n"


def test_the_diagram_is_the_table() -> None:
    """The README's picture is printed from `TRANSITIONS`."""
    assert blocks("mermaid") == [diagram()]


def test_the_two_commands_stand_on_one_line_each() -> None:
    """One ends in the demo, one in the test command."""
    commands = [
        line for block in blocks("sh") for line in block.splitlines() if line.startswith("python3 -m venv")
    ]
    assert [command.split()[-1] for command in commands] == ["demo", "pytest"]


def test_the_error_tree_is_the_modules() -> None:
    """Every error class stands in the README's tree."""
    errors = [name for name in payclient.__all__ if name.endswith("Error")]
    assert [name for name in errors if name not in README] == []


if __name__ == "__main__":
    print(diagram(), end="")
