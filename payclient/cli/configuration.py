"""`payclient.toml`: the settings of a shop and of its batches. The command line and the environment override them."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import attrs
from cyclopts import App, Argument, ArgumentCollection, Token
from cyclopts.config import Dict

from payclient.errors import ConfigurationError
from payclient.validation import from_service

NAME = "payclient.toml"

#: The settings of every command, and those of `charge`. A person's consent, such as --yes, is never read from a file.
SHARED = frozenset({"base_url", "profile", "token_file", "ledger"})
SETTINGS = SHARED | {
    "key", "map", "set", "ignore_rest", "sheet", "header_row", "delimiter", "encoding", "amounts",
    "decimal_mark", "keep", "report", "report_delimiter", "report_decimal_mark", "html", "rate",
    "max_in_flight", "max_pending", "wait", "retry",
}  # fmt: skip

#: Commands of the simulated service, which is not a shop, and of the guides.
_WITHOUT = frozenset({"demo", "guide", "simulate"})

#: The argument that names a command's own file; the settings file is looked for beside that file.
_FILES = {"charge": "FILE", "reconcile": "STATEMENT"}

#: Settings with a value for each field.
_PAIRS = frozenset({"map", "set"})

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
        known = (each for each in arguments if each.name[:2] == "--" and each.parameter.parse is not False)
        options = {_plain(each.name[2:]): each for each in known}
        _drop_empty_variables(options.values())
        _check_shared(options)
        if not commands or commands[0] in _WITHOUT:
            return
        path = self._find(commands[0], arguments)
        values = {} if path is None else self._read(path, commands[0])
        for name in _PAIRS & options.keys():
            option = options[name]
            for pair in _others(values.get(name, ()), [token.value for token in option.tokens]):
                option.append(Token(keyword=option.name, value=pair, source=str(path)))
        table = values
        for command in reversed(commands):
            table = {command: table}
        Dict(table, source=str(path), allow_unknown=True)(app, commands, arguments)
        _check_shared(options)  # those of the file, too
        origins.set({name: (value, str(path)) for name, value in values.items()} | _given(options))

    def _find(self, command: str, arguments: ArgumentCollection) -> Path | None:
        """Return the settings file, or None. Raises `ConfigurationError` for one that is not to be trusted."""
        if self.path is not None:
            return self.path.absolute()
        named = {each.name: each.tokens[0].value for each in arguments if each.tokens}
        command_file = named.get(_FILES.get(command, ""), "")
        user = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        places = (Path(command_file).parent, Path(), Path(user) / "payclient")
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

    def _read(self, path: Path, command: str) -> dict[str, Any]:
        """Return what a file sets for a command, as values of options."""
        table = _parse(path)
        batches = table.pop("batch", {})
        are_tables = isinstance(batches, dict) and all(isinstance(each, dict) for each in batches.values())
        if not are_tables or self.batch not in (None, *batches):
            raise ConfigurationError(
                f"{path}: must have a section [batch.{self.batch or 'NAME'}]; nothing was sent"
            )
        shared = _read_section(path, table)
        sections = {name: _read_section(path, each) for name, each in batches.items()}
        batch = sections.get(self.batch or "", {})
        for name in _PAIRS & shared.keys() & batch.keys():
            batch[name] = _others(shared[name], batch[name]) + batch[name]
        values = shared | batch
        if command not in ("charge", "doctor"):
            values = {name: value for name, value in values.items() if name in SHARED}
        return values


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigurationError(f"{path}: must be TOML in UTF-8: {error}") from None


def _drop_empty_variables(options: Iterable[Argument]) -> None:
    """Let an empty environment variable be not set."""
    for option in options:
        option.tokens = [each for each in option.tokens if each.value or each.source != "env"]


def _check_shared(options: Mapping[str, Argument]) -> None:
    """Refuse an empty value: `--base-url "$URL"` without that variable would be the preset's address, a real one."""
    for name in SHARED & options.keys():
        if any(not each.value for each in options[name].tokens):
            raise ConfigurationError(f"{options[name].name}: must not be empty; nothing was sent")


def _given(options: Mapping[str, Argument]) -> dict[str, tuple[Any, str]]:
    """Return the values that the command line and the environment give, each with its option or variable."""
    tokens = ((name, each.tokens[0]) for name, each in options.items() if each.tokens)
    return {name: (each.value, each.keyword or "") for name, each in tokens if each.source in ("cli", "env")}


def _others(pairs: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return the pairs of fields that none of the given pairs has: a pair replaces the one of its field only."""
    fields = {*map(_field, given)}
    return [each for each in pairs if _field(each) not in fields]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _field(pair: object) -> str:
    return from_service(str(pair).partition("=")[0])


def _read_section(path: Path, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section by plain names, as values of options.

    Raises `ConfigurationError` for a token, and for a setting that is not known.
    """
    values = {_plain(name): value for name, value in section.items()}
    for name in values:
        if name in ("token", "payclient_token"):
            raise ConfigurationError(
                f"{path}: a token must not stand here, where it is copied and shared: write it to a file of its "
                "own, name that by token_file, and revoke this one; nothing was sent"
            )
        if name not in SETTINGS:
            settings = ", ".join(sorted(SETTINGS))
            raise ConfigurationError(f"{path}: {name}: a setting must be one of {settings}; nothing was sent")
    return {name: _option(path.parent, name, value) for name, value in values.items()}


def _option(folder: Path, name: str, value: Any) -> Any:
    """Return a setting as an option's value; a relative path starts at the folder of the file."""
    from payclient.profile import PRESETS  # `--help` needs no profile

    if name in ("token_file", "report", "html") or (name == "profile" and str(value) not in PRESETS):
        return os.path.join(folder, str(value))
    if name == "ledger" and str(value).startswith("sqlite:"):
        # From another working directory it would be another ledger, which knows no earlier charge.
        return f"sqlite:{os.path.join(folder, str(value)[7:])}"
    if isinstance(value, dict):
        return [f"{field}={each}" for field, each in value.items()]
    if name in _PAIRS or isinstance(value, list):
        return [*map(str, value if isinstance(value, list) else [value])]
    return value
