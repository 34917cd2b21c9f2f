"""How the command line starts: what it imports, what each command's help ends with, and completion."""

import ast
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

from payclient.cli import main
from payclient.cli.app import COMMANDS, make_app

#: What a start takes time for, and neither `--version` nor `--help` needs.
HEAVY = (
    "aiohttp", "jinja2", "python_calamine", "asyncio", "cattrs", "payclient.ledger", "payclient.tracking",
)  # fmt: skip


def imported_by(*arguments: str) -> set[str]:
    """The modules that a new process has imported at the end of a command."""
    called = f"import sys; from payclient.cli import main; main({[*arguments]!r})"
    program = f"{called}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {*done.stderr.split()}


def test_the_version_needs_nothing_but_ourselves() -> None:
    """Imports are what a start takes time for; only modules are counted, because time depends on the machine."""
    found = imported_by("--version")
    assert not found & {*HEAVY, "rich", "cyclopts"}
    assert {name for name in found if name.startswith("payclient")} == {"payclient", "payclient.cli"}


def test_help_imports_no_command() -> None:
    """The list of the commands needs none of them, nor what they need."""
    found = imported_by("--help")
    assert not found & {*HEAVY, "rich.markdown"}
    assert not found & {f"payclient.cli.{module}" for module, _, _ in COMMANDS.values()}


def leaves() -> list[str]:
    """Every command, `ledger list` and the like as well."""
    found = []
    for name in COMMANDS:
        command = make_app(name)[name]
        below = [f"{name} {each}" for each in command if not each.startswith("-")]
        found += [name, *below]
    return found


@pytest.mark.parametrize("command", leaves())
def test_the_help_of_each_command_ends_with_an_example_that_can_be_read(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its options exist, and none that must be given is missing."""
    assert main([*command.split(), "--help"]) == 0
    out = capfd.readouterr().out
    _, begin, example = " ".join(out.split()).rpartition("Example: ")
    words = shlex.split(example)
    assert begin
    assert words[: len(command.split()) + 1] == ["payclient", *command.split()]
    make_app(words[1]).parse_args(words[1:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    """The first sentence stands twice, so that the list needs no import."""
    module, sentence, _ = COMMANDS[name]
    if isinstance(found := make_app(name)[name], App) and found.default_command is None:
        assert found.help == sentence
        return
    source = ast.parse((Path(__file__).parents[1] / f"payclient/cli/{module}.py").read_text())
    (function,) = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert " ".join((ast.get_docstring(function) or "").split()).startswith(sentence.removesuffix("."))


def test_completion_is_installed_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For bash, zsh and fish, in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", "bash"]) == 0
    (script,) = tmp_path.rglob("completions/payclient")
    assert {"charge", "--skip-bad", "resolve"} <= {*script.read_text().replace("'", " ").split()}
