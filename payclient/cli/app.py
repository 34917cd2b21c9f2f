"""The commands by name, and what becomes of their errors: one line, exit 2, no traceback."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App, CycloptsError, Parameter

from payclient.cli import terminal
from payclient.errors import PayError

__all__: list[str] = []

#: The module beside this one in which each is a function of its name; a new command is a new name here.
COMMANDS = {
    "cancel": "transaction", "charge": "charge", "confirm": "transaction", "demo": "demo", "doctor": "doctor",
    "follow": "follow", "guide": "guide", "ledger": "ledger", "prepare": "prepare", "reverse": "transaction",
    "sale": "sale", "status": "transaction", "simulate": "simulate",
}  # fmt: skip


def make_app() -> App:
    """Return the command line with all its commands."""
    app = App(
        name="payclient",
        help="Charge people by push request, and know what happened.",
        version=_version,
        default_parameter=Parameter(negative=(), show_default=lambda value: str(value) if value else None),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, module in COMMANDS.items():
        app.command(getattr(importlib.import_module(f"payclient.cli.{module}"), name), name=name)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 2 where our own checks refuse it, 130 where it is interrupted."""
    terminal.open_closed()
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
    except OSError as error:
        terminal.complain(f"{type(error).__name__}: {error.strerror}")
        return 2
    finally:
        terminal.settle()
    return code if isinstance(code, int) else 0


def _version() -> str:
    try:
        return version("payclient")
    except PackageNotFoundError:
        return "0 (not installed)"
