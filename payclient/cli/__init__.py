"""The command `payclient`: `app` names the module of each command, which mostly is that of its own name.

For a run over rows read `charge`, `plan`, `run`, `report`, `progress`, then the page for people: `page`, with its
template `report.html.j2`.
"""

import sys
from collections.abc import Sequence
from contextvars import copy_context
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not all(map(find_spec, ("cyclopts", "jinja2", "openpyxl", "python_calamine", "rich"))):
        from payclient.cli.texts import choose_language, text

        choose_language(None)
        print(text("help.packages"), file=sys.stderr)
        return 2
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        from importlib.metadata import version  # imported slowly

        try:
            print(version("payclient"), flush=True)
        except OSError:
            from payclient.cli import terminal

            terminal.finish_output()
            return 2
        return 0
    try:
        from payclient.cli.app import run

        # Language and settings are those of one run, also where a program makes several.
        return copy_context().run(run, arguments)
    except KeyboardInterrupt:  # before the command begins, or another one as it ends
        return 130
