"""The README and the guides: every example runs, and what they list is what the code has."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
import payclient.sync
import payclient.web  # the guides name it as a user's module would have imported it
from fake_service import sale
from payclient.cli import main
from payclient.cli.guide import TOPICS
from payclient.lifecycle import TRANSITIONS, State
from payclient.simulator import PAYPHONE, TEST_MODE, Answers, Fault, Simulator

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "payclient" / "guide"
DOCUMENTS = {"README": ROOT / "README.md", **{topic: GUIDE / f"{topic}.md" for topic in TOPICS}}


def text(name: str) -> str:
    """One of the documents."""
    return DOCUMENTS[name].read_text(encoding="utf-8")


def blocks(language: str, name: str) -> list[str]:
    """The fenced blocks of a language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)


#: The preset without its rate: twenty examples a second are not thirty queries a minute.
UNHURRIED = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)


def is_module(example: str) -> bool:
    """Whether a block is a file of its own, which `test_web_shops.py` or `test_pytest_plugin.py` runs."""
    return re.match(r"# \w+\.py", example) is not None


# What the blocks print, in the order in which they stand.
PRINTED = {
    "README": "True 1001", "start": "order-17 True", "payphone": "True", "batch": "None",
    "es/empezar": "True", "forms": "200 origin", "operations": "0", "fulfilment": "[('order-17', 1)]",
    "logs": "", "profile": "shop 600", "sync": "order-17 True", "errors": "Amount: must be 1 to",
    "testing": "",
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
async def test_every_python_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is run as it stands, but for the address of the service, in the order of the document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("payclient"), "handlers", [])
    Path("shop.toml").write_text(blocks("toml", "profile")[0], encoding="utf-8")
    # The customers answer at once, sooner than it is likely: query as soon.
    answers = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(0.01, 0.0))
    shipped: list[str] = []
    async with Simulator(
        token="secret", settings=attrs.evolve(PAYPHONE, queries_per_minute=None), answers=answers
    ) as service:
        for variable, value in {
            "BASE_URL": service.url, "TOKEN": "secret", "PROFILE": "payphone", "LEDGER": "sqlite:charges.db",
        }.items():  # fmt: skip
            monkeypatch.setenv(f"PAYCLIENT_{variable}", value)
        opening, opening_session = payclient.open_tracker, payclient.PaySession

        def open_tracker(base_url: str | None, token: str, **options: Any) -> Any:
            options |= {"schedule": payclient.Fixed(0.05), "profile": UNHURRIED}
            return opening(base_url or service.url, token, **options)

        def open_blocking(*rest: Any, **more: Any) -> Any:
            return payclient.sync.Tracker(lambda: open_tracker(*rest, **more))

        def session(base_url: str | None, *rest: Any, **more: Any) -> Any:
            return opening_session(base_url or service.url, *rest, **more)

        monkeypatch.setattr(payclient, "open_tracker", open_tracker)
        monkeypatch.setattr(payclient.sync, "open_tracker", open_blocking)
        monkeypatch.setattr(payclient, "PaySession", session)

        async def customer_comes_back(form: payclient.PaymentForm) -> str:
            return (await service.pay(form.payment_id)).partition("?")[2]

        known: dict[str, Any] = {
            "payclient": payclient, "token": "secret", "customer_comes_back": customer_comes_back,
            "Simulator": Simulator, "PAYPHONE": PAYPHONE, "TEST_MODE": TEST_MODE, "Fault": Fault,
            "ship": lambda: shipped.append("order-17"), "offer_another_way": lambda: pytest.fail("not paid"),
            "seen_in_the_portal": lambda identifier: pytest.fail("nothing is unknown"),
            "hold_for_review": lambda outcome: pytest.fail("unknown"), "request": sale(amount_with_tax=None, tax=100),
        }  # fmt: skip
        found = [example for example in blocks("python", name) if not is_module(example)]
        assert found
        examples = [example for example in found if "payclient.sync" not in example]
        if name == "README":  # the first one starts a loop of its own
            program = compile(examples.pop(0), "README.md", "exec")
            await asyncio.to_thread(exec, program, {"__name__": "__main__"})
            # What follows shows pieces of one program, in which the tracker is open.
            opened = (
                'async with payclient.open_tracker(None, token, ledger="sqlite:charges.db") as tracker:\n'
            )
            examples[1:] = [opened + textwrap.indent("\n".join(examples[1:]), "    ")]
        for example in examples:
            code = compile(
                example.replace("https://pay.payphonetodoesposible.com", service.url),
                f"{name}.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )  # fmt: skip
            result = eval(code, known)  # noqa: S307 - our own documents
            if inspect.isawaitable(result):
                async with asyncio.timeout(60):
                    await result
        for example in found:
            if "payclient.sync" in example:  # where no loop runs
                await asyncio.to_thread(exec, compile(example, f"{name}.md", "exec"), known)
        assert set(service.created_per_client_id.values()) <= {1}
        if name == "start":
            assert shipped == ["order-17"]
        if name == "payphone":
            assert known["outcome"].paid is True  # the form's, confirmed
            assert service.collected_per_client_id == {"first-1": 100, "button-1": 1150}
    assert PRINTED[name] in capsys.readouterr().out


def diagram() -> str:
    """The lifecycle's table as a Mermaid state diagram; printed by `python tests/test_guides.py`."""
    lines = ["stateDiagram-v2", "    [*] --> sending: permit (INSERT)"]
    for state, events in TRANSITIONS.items():
        moves: dict[State, list[str]] = {}
        for event, target in events.items():
            if target is not None:
                words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", event.__name__).lower()
                moves.setdefault(target, []).append(words)
        lines += [f"    {state} --> {target}: {', '.join(words)}" for target, words in moves.items()]
    lines += [f"    {state} --> [*]" for state in State if state.decided]
    return "\n".join(lines) + "\n"


def test_the_diagram_is_the_table() -> None:
    """The picture is printed from `TRANSITIONS`."""
    assert blocks("mermaid", "unknown") == [diagram()]


def test_the_error_tree_is_the_modules() -> None:
    """Every error class stands in the tree."""
    errors = [name for name in payclient.__all__ if name.endswith("Error")]
    assert [name for name in errors if name not in blocks("", "errors")[0]] == []


def logged(path: Path) -> Iterator[tuple[str, str, str]]:
    """Event, logger and level of each log record that a module makes."""
    code = path.read_text(encoding="utf-8")
    name = re.search(r'= Log\("payclient\.(\w+)"\)|import (\w+)_log as log', code)
    for call in ast.walk(ast.parse(code)):
        match call:
            case ast.Call(func=ast.Attribute(attr="warn_once"), args=[ast.Constant(value=str(event)), *_]):
                yield event, "payclient.tracker", "warning"
            case ast.Call(func=ast.Name("log"), args=[ast.Constant(level), ast.Constant(event), *_]):
                assert name is not None
                yield str(event), f"payclient.{name.group(1) or name.group(2)}", str(level)
            case ast.Call(func=ast.Attribute(value=ast.Name("logger" | "logging"))) if path.stem != "logs":
                pytest.fail(f"{path}:{call.lineno} logs without an event name")


def test_the_events_of_the_log_are_the_codes() -> None:
    """The guide lists each event that is logged, with its logger and level, and no other."""
    modules = [
        path for path in (ROOT / "payclient").rglob("*.py") if not {"simulator", "cli"} & set(path.parts)
    ]
    events = {row for path in modules for row in logged(path)}
    listed = re.findall(r"^\| `(\w+)` \| `(payclient\.\w+)` \| (\w+) \|", text("logs"), re.MULTILINE)
    assert set(listed) == events
    assert len(listed) == len({event for event, _, _ in events})


def test_every_setting_of_a_profile_is_explained() -> None:
    """The table names each field of `ServiceProfile`, or its table as `confirm.*`."""
    table = text("profile").partition("| setting |")[2]
    fields = {field.name for field in attrs.fields(payclient.ServiceProfile)} - {"name"}
    assert {name for name in fields if f"`{name}`" not in table and f"`{name}.*`" not in table} == set()


def test_the_documents_are_short() -> None:
    """The README is a shop window, and a guide is read in one sitting."""
    assert len(text("README").splitlines()) <= 180
    assert len(text("README").split()) <= 1300
    assert {name for name in TOPICS if len(text(name).splitlines()) > 150} == set()


def test_every_link_leads_somewhere() -> None:
    """Relative links between the documents name files that are there."""
    dead = [
        (name, link)
        for name, path in DOCUMENTS.items()
        for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text(name))
        if not link.startswith("https://") and not (path.parent / link).is_file()
    ]
    assert dead == []
    assert set(GUIDE.rglob("*.md")) == {DOCUMENTS[topic] for topic in TOPICS}


def test_every_app_that_a_command_serves_is_a_module_of_the_guides() -> None:
    """Such as `uvicorn shop_fastapi:app`: who copies the modules of the guides can run the command."""
    whole = "\n".join(map(text, DOCUMENTS))
    served = set(re.findall(r"\b(\w+):(?:app|make_app)\b", whole))
    assert served - set(re.findall(r"^# (\w+)\.py", whole, re.MULTILINE)) == set()


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A list, one of them, or all as one text."""
    assert main(["guide"]) == 0
    listed = capsys.readouterr().out
    assert all(f"payclient guide {topic}" in listed for topic in TOPICS)
    assert main(["guide", "es/empezar"]) == 0
    assert capsys.readouterr().out == text("es/empezar")
    assert main(["guide", "--all"]) == 0
    assert capsys.readouterr().out == "\n".join(text(topic) for topic in TOPICS)
    assert main(["guide", "cooking"]) == 2
    assert "must be one of start, payphone" in capsys.readouterr().err


def test_a_terminal_shows_code_as_it_is_copied() -> None:
    """Prose is set for reading; a line of code begins at the left edge, and ends where it ends."""
    master, terminal = os.openpty()
    with open(master, "rb", buffering=0) as reading, os.fdopen(terminal, "wb") as end:
        command = [sys.executable, "-m", "payclient", "guide", "ledger"]
        process = subprocess.Popen(command, stdout=end, env={**os.environ, "TERM": "xterm"}, cwd=ROOT)
        end.close()
        shown = b""
        with contextlib.suppress(OSError):  # what a terminal raises at its end
            while part := reading.read(4096):
                shown += part
        assert process.wait(60) == 0
    plain = re.sub(r"\x1b(\[[0-9;]*m|\]8;[^\x1b]*\x1b\\\\)", "", shown.decode()).replace("\r\n", "\n")
    assert "\npayclient ledger list --unresolved --ledger sqlite:charges.db\n" in plain


def test_every_option_in_the_shell_examples_exists() -> None:
    """Each `payclient` line of a document names a command and options that its help has."""
    helps: dict[str, str] = {}
    wrong = []
    for name in DOCUMENTS:
        for block in blocks("sh", name):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.partition(" #")[0]
                if not line.startswith("payclient "):
                    continue
                words = line.split()[1:]
                command = words[:2] if words[0] == "ledger" else words[:1]
                key = " ".join(command)
                if key not in helps:
                    with contextlib.redirect_stdout(io.StringIO()) as out:
                        main([*command, "--help"])
                    helps[key] = out.getvalue()
                wrong += [
                    (name, line, word) for word in words if word.startswith("--") and word not in helps[key]
                ]
    assert wrong == []


if __name__ == "__main__":
    print(diagram(), end="")
