"""`payclient.toml`: the settings of a shop and of its batches. The command line and the environment override them."""

import os
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import attrs
from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Dict

from payclient.errors import ConfigurationError

NAME = "payclient.toml"

#: The settings of every command, and those of `charge`. A person's consent, such as --yes, is never read from a file.
SHARED = frozenset({"base_url", "profile", "token_file", "ledger"})
SETTINGS = SHARED | {
    "key", "map", "set", "ignore", "ignore_rest", "sheet", "header_row", "delimiter", "encoding", "amounts",
    "decimal_mark", "keep", "report", "report_delimiter", "report_decimal_mark", "html", "rate",
    "max_in_flight", "max_pending", "wait", "retry",
}  # fmt: skip

#: Commands of the simulated service, which is no shop, and of the guides.
_WITHOUT = frozenset({"demo", "guide", "simulate"})

#: The argument that names a command's own file; the settings file is looked for beside that file.
_FILES = {"charge": "FILE", "reconcile": "STATEMENT"}

#: Settings with a value for each field; an option replaces the value of its field only.
_PAIRS = ("map", "set")

#: The settings that are given: the value of each, and the option, variable or file that gives it.
origins: ContextVar[Mapping[str, tuple[Any, str]]] = ContextVar("origins", default={})  # noqa: B039 - never written


@attrs.frozen
class Configuration:
    """A source of options for cyclopts: one file, whose section `[batch.NAME]` overrides the rest of it."""

    #: None: beside the command's file, else in the working directory, else in the user's configuration folder.
    path: Path | None
    batch: str | None

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add the settings of the file to the options. Raises `ConfigurationError` for a file that is not valid."""
        if not commands or commands[0] in _WITHOUT:
            return
        path = self._find(_FILES.get(commands[0]), arguments)
        values = {} if path is None else _read(path, self.batch)
        reconcile = values.pop("reconcile", {})
        section = reconcile if commands[0] == "reconcile" else {}
        general = {
            n: each for n, each in values.items() if n in SHARED or commands[0] in ("charge", "doctor")
        }
        for name in _PAIRS:
            _complete(arguments, section or general, name, path)
        # A command need not have an option for each general setting, but must have one for those of its section.
        for table, is_open in ((section, False), (general, True)):
            for command in reversed(commands):
                table = {command: table}
            Dict(table, source=str(path), allow_unknown=is_open)(app, commands, arguments)
        origins.set({name: (value, str(path)) for name, value in general.items()} | _given(arguments))

    def _find(self, argument: str | None, arguments: ArgumentCollection) -> Path | None:
        """Return the settings file; `argument` names the command's own file, beside which it is looked for."""
        if self.path is not None:
            return self.path.absolute()
        file = next((each.tokens[0].value for each in arguments if each.name == argument and each.tokens), "")
        user = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        places = (Path(file).parent, Path(), Path(user) / "payclient")
        found = next((path.absolute() for place in places if (path := place / NAME).is_file()), None)
        if found is None and self.batch is not None:
            raise ConfigurationError(f"--batch {self.batch}: no {NAME} was found; nothing was sent")
        me = os.geteuid() if hasattr(os, "geteuid") else 0
        # Root trusts all, as in containers.
        if found is not None and me != 0 and found.stat().st_uid not in (0, me):
            raise ConfigurationError(
                f"{found}: belongs to another user, who could send your token anywhere: give --config to use it all "
                "the same; nothing was sent"
            )
        return found


def _given(arguments: ArgumentCollection) -> dict[str, tuple[Any, str]]:
    """Return the values that the command line and the environment give, each with its option or variable."""
    tokens = ((each.name, each.tokens[0]) for each in arguments if each.tokens)
    return {
        name.removeprefix("--").replace("-", "_"): (token.value, token.keyword or "")
        for name, token in tokens
        if token.source in ("cli", "env")
    }


def _read(path: Path, batch: str | None) -> dict[str, Any]:
    """Return the settings of a file as values of options; relative paths start at its folder."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigurationError(f"{path}: must be TOML in UTF-8: {error}") from None
    batches, reconcile = table.pop("batch", {}), table.pop("reconcile", {})
    if not isinstance(batches, dict) or (batch is not None and not isinstance(batches.get(batch), dict)):
        raise ConfigurationError(f"{path}: must have a section [batch.{batch or 'NAME'}]; nothing was sent")
    for section in (table, reconcile, *batches.values()):
        _check_names(path, section, None if section is reconcile else SETTINGS)
    values = {}
    for name, value in {**table, **batches.get(batch, {})}.items():
        name, above = _plain(name), table.get(name)
        if name in _PAIRS and isinstance(value, dict) and isinstance(above, dict):
            value = above | value
        values[name] = _flat(_beside(path.absolute().parent, name, value))
    return {**values, "reconcile": {name: _flat(value) for name, value in reconcile.items()}}


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _check_names(path: Path, section: Mapping[str, Any], known: frozenset[str] | None) -> None:
    """Raise `ConfigurationError` for a token in the file, and for a setting that is not among the known ones."""
    for name in map(_plain, section):
        if name in ("token", "payclient_token"):
            raise ConfigurationError(
                f"{path}: a token must not stand here, where it is copied and shared: write it to a file of its "
                "own, name that by token_file, and revoke this one; nothing was sent"
            )
        if known is not None and name not in known:
            settings = ", ".join(sorted(known))
            raise ConfigurationError(f"{path}: {name}: a setting must be one of {settings}; nothing was sent")


def _beside(folder: Path, name: str, value: Any) -> Any:
    """Return a setting's value; a relative path starts at the folder of the file, not at the working directory."""
    from payclient.profile import PRESETS  # `--help` needs no profile

    if name in ("token_file", "report", "html") or (name == "profile" and value not in PRESETS):
        return os.path.join(folder, str(value))
    if name == "ledger" and str(value).startswith("sqlite:"):
        # From another working directory it would be another ledger, which knows no earlier charge.
        return f"sqlite:{os.path.join(folder, str(value)[7:])}"
    return value


def _complete(arguments: ArgumentCollection, values: Mapping[str, Any], name: str, path: Path | None) -> None:
    """Add the pairs of the settings file to an option, except for fields that the command line gives."""
    argument = next((each for each in arguments if each.name == f"--{name}"), None)
    if argument is None or not argument.tokens:
        return
    from payclient.validation import from_service  # `--help` needs none

    given = {from_service(token.value.partition("=")[0]) for token in argument.tokens}
    for pair in values.get(name, ()):
        if from_service(str(pair).partition("=")[0]) not in given:
            argument.append(Token(keyword=argument.name, value=str(pair), source=str(path)))


def _flat(value: Any) -> Any:
    return [f"{name}={each}" for name, each in value.items()] if isinstance(value, dict) else value
