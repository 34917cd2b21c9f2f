"""The commands by name. An error of one of them is a line on stderr and exit code 2, without a traceback."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from payclient.cli import installed_version, terminal
from payclient.cli.configuration import Configuration
from payclient.cli.texts import choose_language, language, language_option, reason, text
from payclient.errors import PayError

_BOOK = "--ledger sqlite:charges.db"

#: The place of each command's function, the first sentence of its help, and an example. The sentence is repeated here,
#: because `payclient --help` imports no command. That list has no ledger command, so that these repeat none.
COMMANDS: dict[str, tuple[str, str | None, str]] = {
    "cancel": (
        "transaction:cancel", "Withdraw a push request that nobody answered.", "--client-transaction-id order-17",
    ),
    "charge": (
        "charge:charge", "Charge every row of a file, each customer once, and follow it to its end.",
        "charges.csv --ledger sqlite:charges.db --profile payphone --report report.csv",
    ),
    "confirm": (
        "transaction:confirm", "Confirm one paid form, which the service reverses otherwise; it may be repeated.",
        "--transaction-id 5017 --client-transaction-id form-17 --profile payphone",
    ),
    "demo": (
        "demo:demo", "Charge 200 made-up customers of the simulator, and compare the report with what it did.", "",
    ),
    "doctor": (
        "doctor:doctor", "Look at settings, network, ledger, profile and a page of yours, and print what to change.",
        "--ledger sqlite:charges.db --profile payphone",
    ),
    "follow": (
        "follow:follow", "Follow what is open and print each outcome as a line of JSON, until SIGTERM or Ctrl-C.",
        "--since 4711 --ledger sqlite:charges.db --profile payphone",
    ),
    "guide": ("guide:guide", "Show a guide: start, payphone, web, forms, batch, testing, es/empezar ...", "batch"),
    "ledger list": ("ledger:list_", None, f"--unresolved {_BOOK}"),
    "ledger show": ("ledger:show", None, f"order-17 {_BOOK}"),
    "ledger init": ("ledger:init", None, _BOOK),
    "ledger backup": ("ledger:backup", None, f"charges-monday.db {_BOOK}"),
    "ledger archive": ("ledger:archive", None, f"--before 2026-01-01 --to charges-2025.jsonl {_BOOK}"),
    "ledger moved": ("ledger:moved", None, f"--base-url https://new.example {_BOOK}"),
    "ledger resolve": (
        "ledger:resolve", None, f"order-17 --as accepted --actor Ana --reason 'seen in the portal' {_BOOK}"
    ),
    "ledger export": ("ledger:export", None, f"--out charges.csv {_BOOK}"),
    "prepare": (
        "sale:prepare", "Prepare a payment form and print its links, each with its time left.",
        "--amount-without-tax 1050 --currency USD --client-transaction-id form-17 --store-id S1 "
        "--response-url https://shop.example/back --ledger sqlite:charges.db --profile payphone",
    ),
    "reconcile": (
        "reconcile:reconcile", "Compare the ledger with a statement of the service or the bank, cent by cent.",
        "statement.xlsx --ledger sqlite:charges.db --since 2026-03-01 --until 2026-03-31 --report differences.xlsx",
    ),
    "reverse": ("transaction:reverse", "Give one payment back, whole.", "--client-transaction-id order-17"),
    "sale": (
        "sale:sale", "Charge one customer by a push request and follow it to its end.",
        "--phone-number 0984111222 --country-code 593 --amount-without-tax 1050 --currency USD "
        "--client-transaction-id order-17 --ledger sqlite:charges.db --profile payphone",
    ),
    "simulate": (
        "simulate:simulate", "Simulate the service on this machine, with a page to play with at its address.",
        "--port 8700 --profile payphone",
    ),
    "status": ("transaction:status", "Query a transaction's state once.", "--client-transaction-id order-17"),
}  # fmt: skip


def make_app(command: str | None) -> App:
    """Return the command line. Only this command's module is imported now; cyclopts imports others when needed."""
    formatter = None
    if language() != "en":
        from payclient.cli.help import Help

        formatter = Help()
    app = App(
        name="payclient",
        help="Charge people by push request, and know what happened.",
        help_format="markdown" if command else "plaintext",  # importing Markdown is slow
        help_formatter=formatter,
        version=installed_version,
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
    ledger.help_epilogue = text("help.example", command=f"payclient ledger list --unresolved {_BOOK}")
    app.command(ledger)
    for name, (place, sentence, example) in COMMANDS.items():
        module, _, function = f"payclient.cli.{place}".partition(":")
        is_called = name.split()[0] == command
        (ledger if name.startswith("ledger ") else app).command(
            getattr(importlib.import_module(module), function) if is_called else f"{module}:{function}",
            name=name.removeprefix("ledger "),
            help=None if is_called else sentence,
            help_epilogue=text("help.example", command=f"payclient {name} {example}".strip()),
        )

    app.meta.end_of_options_delimiter = ""  # a `--` is for the command
    app.meta.suppress_keyboard_interrupt = False  # it would exit without a word

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[
            Path | None, Parameter(help="The file of settings. Default: payclient.toml.")
        ] = None,
        batch: Annotated[
            str | None, Parameter(help="Its section [batch.NAME], above the rest of it.")
        ] = None,
        language: Annotated[  # `run` has read it already
            Literal["en", "es"] | None, Parameter(help="Of what people read; LANG's.")
        ] = None,
    ) -> object:
        app.config = (Configuration(config, batch),)
        return app(tokens)

    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 2 where our own checks refuse it, 130 where it is interrupted."""
    terminal.open_closed()
    terminal.show_warnings()
    terminal.command_line.set(tuple(arguments))
    choose_language(language_option(arguments))
    try:
        known = {name.split()[0] for name in COMMANDS}
        code = make_app(next((each for each in arguments if each in known), None)).meta(list(arguments))
    except (PayError, CycloptsError) as error:
        terminal.complain(reason(str(error)))
        return 2
    except KeyboardInterrupt:
        terminal.complain(reason("interrupted"))
        return 130
    except BrokenPipeError:  # the reader of our output closed it, as `head` does
        return 2
    except OSError as error:
        terminal.complain(reason(f"{type(error).__name__}: {error.strerror}"))
        return 2
    finally:
        terminal.settle()
    return code if isinstance(code, int) else 0
