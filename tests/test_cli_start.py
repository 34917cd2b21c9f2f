"""How the command line starts: what it imports, what each command's help ends with, and completion."""

import importlib
import inspect
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runs import Said
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
    assert not found & {f"payclient.cli.{each['function'].partition(':')[0]}" for each in COMMANDS.values()}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_ends_with_an_example_that_can_be_read(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """Its options exist, and none that must be given is missing; the token of the environment is not shown."""
    monkeypatch.setenv("PAYCLIENT_TOKEN", "never-shown")
    assert main([*command.split(), "--help"]) == 0
    out = capfd.readouterr().out
    assert "never-shown" not in out
    _, begin, example = " ".join(out.split()).rpartition("Example: ")
    words = shlex.split(example)
    assert begin
    assert words[: len(command.split()) + 1] == ["payclient", *command.split()]
    make_app(words[1]).parse_args(words[1:], print_error=False, exit_on_error=False)


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    """The first sentence stands twice, so that the list needs no import."""
    for each in COMMANDS.values():
        module, _, function = each["function"].partition(":")
        said = inspect.getdoc(getattr(importlib.import_module(f"payclient.cli.{module}"), function)) or ""
        assert " ".join(said.split()).startswith(each.get("sentence", "").removesuffix(".")), function


def test_completion_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """For bash, zsh and fish, in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", "bash"]) == 0
    (script,) = tmp_path.rglob("completions/payclient")
    assert {"charge", "--skip-bad", "resolve"} <= {*script.read_text().replace("'", " ").split()}


def test_a_reader_who_has_read_enough_is_told_nothing() -> None:
    """As by `payclient guide --all | head -1`: no traceback and no word of a broken pipe."""
    with subprocess.Popen(
        [sys.executable, "-m", "payclient", "guide", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"# ")
        process.stdout.close()
        assert process.stderr.read() == b""


def test_help_that_nobody_reads_ends_as_any_other_output() -> None:
    """The library that prints it would exit with 1, which no help names."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "payclient", "ledger"], stdout=closed, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (2, b"")


def test_a_terminal_without_a_width_is_still_told_everything() -> None:
    """The library of the tables took COLUMNS=0 at its word: nothing was shown, and a question never came."""
    done = subprocess.run(
        [sys.executable, "-m", "payclient", "charge", "no-such.csv", "--dry-run"],
        env={**os.environ, "COLUMNS": "0"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no-such.csv" in done.stderr


def test_an_interrupt_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """In a command that does nothing about it itself."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("payclient.cli.guide._text", interrupt)
    assert main(["guide", "start"]) == 130
    assert capfd.readouterr() == ("", "payclient: interrupted\n")


def test_an_interrupt_before_a_command_begins_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its modules are imported, or another one as it ends."""

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("payclient.cli.app.run", interrupted)
    assert main(["guide", "start"]) == 130
