"""The commands by name. An error of one of them is a line on stderr and exit code 2, without a traceback."""

import importlib
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from payclient.cli import terminal
from payclient.cli.configuration import Configuration
from payclient.cli.texts import choose_language, language_option, reason
from payclient.errors import PayError, RefusedError, TransportError

#: The commands by name: the place of each one's function, the first sentence of its help, and an example.
COMMANDS: dict[str, dict[str, str]] = tomllib.loads(
    files("payclient.cli").joinpath("commands.toml").read_text(encoding="utf-8")
)


def make_app(command: str | None) -> App:
    """Return the command line. Only this command's module is imported now; cyclopts imports others when needed."""
    app = App(
        name="payclient",
        help="Charge people by push request, and know what happened.",
        help_format="markdown" if command else "plaintext",  # importing Markdown is slow
        default_parameter=Parameter(negative=(), show_default=lambda value: str(value) if value else None),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.register_install_completion_command(
        help="Complete commands and options in this shell, from its next start on."
    )
    ledger = App(name="ledger", help="Read the ledger, and decide by hand what nobody else can.")
    ledger.help_epilogue = _example("ledger list")
    app.command(ledger)
    for name, entry in COMMANDS.items():
        module, _, function = f"payclient.cli.{entry['function']}".partition(":")
        is_called = name.split()[0] == command
        (ledger if name.startswith("ledger ") else app).command(
            getattr(importlib.import_module(module), function) if is_called else f"{module}:{function}",
            name=name.removeprefix("ledger "),
            help=None if is_called else entry.get("sentence"),
            help_epilogue=_example(name),
        )

    app.meta.end_of_options_delimiter = ""  # a `--` is for the command
    app.meta.suppress_keyboard_interrupt = False  # it would exit without a word

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Path | None = None,
        batch: str | None = None,
        language: Literal["es", "en"] | None = None,  # `run` has read it already
    ) -> object:
        """Run one command.

        :param config: The file of settings. Default: payclient.toml.
        :param batch: The section [batch.NAME] of that file, which goes before the rest of it.
        :param language: The language of what people read. Default: LANG's.
        """
        app.config = (Configuration(config, batch),)
        return app(tokens)

    return app


def _example(name: str) -> str:
    return f"Example: payclient {name} {COMMANDS[name]['example']}".strip()


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    2 where our own checks refuse it, 3 where the service does, 4 without a usable answer, 130 where it is interrupted.
    """
    terminal.open_closed()
    terminal.show_warnings()
    terminal.command_line.set(tuple(arguments))
    choose_language(language_option(arguments))
    try:
        known = {name.split()[0] for name in COMMANDS}
        code = make_app(next((each for each in arguments if each in known), None)).meta(list(arguments))
    except (PayError, CycloptsError) as error:
        words = terminal.without_password(str(error))
        # cyclopts says in English what is wrong with a command line, as `--help` says what is right.
        terminal.complain(reason(words) if isinstance(error, PayError) else words)
        return 3 if isinstance(error, RefusedError) else 4 if isinstance(error, TransportError) else 2
    except KeyboardInterrupt:
        terminal.complain(reason("interrupted"))
        return 130
    # The reader of our output closed it, as `head` does; of a help rich exits then.
    except (BrokenPipeError, SystemExit):
        return 2
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        terminal.complain(reason(f"{place}{type(error).__name__}: {error.strerror}"))
        return 2
    finally:
        is_lost = terminal.finish_output()
    # An exit code with a meaning of its own, such as that all rows are paid, is kept.
    return code if isinstance(code, int) else 2 if is_lost else 0
