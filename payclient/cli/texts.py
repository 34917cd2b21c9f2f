"""The words that an operator reads, in English or in Spanish: `texts.toml` holds them all, beside each other.

Logs, exceptions and what machines read are English everywhere.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

LANGUAGES = ("en", "es")

_language_index: ContextVar[int] = ContextVar("language", default=0)


def language_option(arguments: Sequence[str]) -> str | None:
    """Return the value of --language, if it is given. Errors need it before cyclopts reads the options."""
    given = re.search("\0--language[=\0](en|es)\0", "\0".join(("", *arguments, "")))
    return given and given[1]


def choose_language(given: str | None) -> None:
    """Use this language from now on. None: Spanish if LC_ALL, LC_MESSAGES or LANG is Spanish, else English."""
    set_ = next((each for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (each := os.environ.get(name))), "")
    _language_index.set(LANGUAGES.index(given or ("es" if set_.lower().startswith("es") else "en")))


def language() -> str:
    """Return the language of this run."""
    return LANGUAGES[_language_index.get()]


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """Return all texts by section and name, each in two languages; of what the code says, by its English."""
    return tomllib.loads(files("payclient.cli").joinpath("texts.toml").read_text(encoding="utf-8"))


class _Number(int):
    """A number as the language writes it: `{count}` is 1,234 and `{count:row}` is 1,234 rows."""

    def __format__(self, noun: str) -> str:
        text = f"{int(self):,}" if _language_index.get() == 0 else f"{int(self):,}".replace(",", ".")
        if not noun:
            return text
        forms = table()["noun"].get(noun)
        one, _, many = (forms[_language_index.get()] if forms else sentence(noun)).partition("|")
        return f"{text} {one if self == 1 else many or one}"


def text(key: str, /, **values: object) -> str:
    """Return a text by its section and name, such as `plan.rows`, with its values filled in."""
    section, _, name = key.partition(".")
    numbers = {each: _Number(value) if type(value) is int else value for each, value in values.items()}
    form: str = table()[section][name][_language_index.get()]
    return form.format(**numbers)


def sentence(english: str) -> str:
    """Return a sentence or a name of the code, such as a column's, in this run's language."""
    return english if _language_index.get() == 0 else str(table()["sentence"].get(english, english))


def counted(number: int, noun: str = "") -> str:
    """Return `1 charge`, or `1,234 charges`: a number of a noun, or of what has an outcome; else the number alone."""
    return format(_Number(number), noun)


def label(word: str) -> str:
    """Return the word of one outcome, or of a class of `reconcile`."""
    return sentence(word).partition("|")[0]


@cache
def _reasons() -> list[tuple[re.Pattern[str], str]]:
    pairs = [pair for section in ("reason", "foreign") for pair in table()[section].items()]
    return [(re.compile("(.+?)".join(map(re.escape, en.split("{}"))), re.DOTALL), es) for en, es in pairs]


class _Part(str):
    """A part of a reason that varies: a reason itself, such as a file's, or (`{:state}`) the word of an outcome."""

    def __format__(self, kind: str) -> str:
        return label(self) if kind else reason(self)


def reason(english: str) -> str:
    """Return an error's text in this run's language, as far as `texts.toml` has its parts."""
    if _language_index.get() == 0:
        return english
    # Look up the whole text, else its longest known beginning, then the rest.
    cuts = [match.start() for match in re.finditer("; ", english)]
    for cut in (len(english), *reversed(cuts)):
        for pattern, spanish in _reasons():
            if match := pattern.fullmatch(english[:cut]):
                rest = english[cut + 2 :]
                return spanish.format(*map(_Part, match.groups())) + (f"; {reason(rest)}" if rest else "")
    # No beginning is known: look up the last part, such as "nothing was sent", then what follows the name of a column.
    head, semicolon, tail = english.rpartition("; ")
    if semicolon and (said := reason(tail)) != tail:
        return f"{reason(head)}; {said}"
    about, colon, rest = english.partition(": ")
    return f"{about}: {reason(rest)}" if colon else english
