"""The commands by name, and what becomes of their errors: one line, exit 2, no traceback."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from payclient.cli import terminal
from payclient.errors import PayError

__all__: list[str] = []

#: Each is a module beside this one with a function of its name; a new command is a new line here.
COMMANDS = (
    "cancel", "charge", "confirm", "demo", "doctor", "ledger", "prepare", "reverse", "sale", "schedule",
    "status", "simulate",
)  # fmt: skip


def make_app() -> App:
    """The command line with all its commands."""
    app = App(
        name="payclient",
        help="Charge people by push request, and know what happened.",
        version=_version,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name in COMMANDS:
        app.command(getattr(importlib.import_module(f"payclient.cli.{name}"), name), name=name)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code: 2 where our own checks refuse it, 130 where it is interrupted."""
    terminal.show_warnings()
    terminal.command_line.set(tuple(arguments))
    try:
        code = make_app()(list(arguments))
    except (PayError, CycloptsError) as error:
        terminal.complain(str(error))
        return 2
    except KeyboardInterrupt:
        terminal.complain("interrupted")
        return 130
    except BrokenPipeError:
        return 1
    return code if isinstance(code, int) else 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("payclient")
    except PackageNotFoundError:
        return "0 (not installed)"
