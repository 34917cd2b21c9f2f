"""Amounts with a decimal mark: "1.250,50" and "1,250.50" are the same money, and "1,250" may be two.

Which mark a file uses is told or proven by its own values, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from payclient.errors import InvalidRequestError

__all__ = ["AMBIGUOUS", "MARKS", "cents_of", "find_mark", "mark_of"]

#: The marks, and what each is called.
MARKS = {",": "comma", ".": "point"}

#: A value that is an amount with either mark, and another one with each.
AMBIGUOUS = "?"

_OTHER = {",": ".", ".": ","}
#: Between groups of three digits: the other mark, a space that breaks or not, an apostrophe.
_SPACES = " \N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}'\N{RIGHT SINGLE QUOTATION MARK}"


def _pattern(mark: str) -> re.Pattern[str]:
    between = re.escape(_OTHER[mark] + _SPACES)
    whole = rf"[0-9]{{1,15}}|[1-9][0-9]{{0,2}}([{between}])[0-9]{{3}}(?:\1[0-9]{{3}}){{0,3}}"
    return re.compile(rf"({whole})(?:{re.escape(mark)}([0-9]+))?".replace(r"\1", r"\2"))


_PATTERNS = {mark: _pattern(mark) for mark in MARKS}


def mark_of(text: str) -> str | None:
    """Return the decimal mark that a value proves, `AMBIGUOUS`, or None: it proves none, or is not an amount."""
    fitting = [mark for mark, pattern in _PATTERNS.items() if pattern.fullmatch(text)]
    if not fitting or not any(mark in text for mark in MARKS):
        return None
    return fitting[0] if len(fitting) == 1 else AMBIGUOUS


def find_mark(name: str, texts: Iterable[str]) -> tuple[str | None, str | None]:
    """Return the mark that the amounts prove, and why they contradict each other, if they do.

    Raises `InvalidRequestError` where amounts may mean two things and none tells which.
    """
    found = {mark_of(text) for text in texts}
    proven = [mark for mark in MARKS if mark in found]
    if len(proven) > 1:
        return proven[0], (
            f"{name}: some amounts have a decimal comma and others a decimal point: "
            "give --decimal-mark , or --decimal-mark ."
        )
    if not proven and AMBIGUOUS in found:
        raise InvalidRequestError(
            f'{name}: amounts such as "1,000" or "1.000" may mean one or one thousand, and no other amount of the '
            "file tells which: give --decimal-mark , or --decimal-mark ."
        )
    return (proven[0] if proven else None), None


def cents_of(text: str, mark: str | None) -> int:
    """Return the cents of an amount in units, exactly. `ValueError` says what is wrong, without repeating the text.

    `mark` None: nothing in the file has one.
    """
    if mark is None:
        if re.fullmatch(r"[0-9]{1,15}", text):
            return int(text) * 100
        raise ValueError("is not an amount such as 10.50")
    match = _PATTERNS[mark].fullmatch(text)
    if match is None:
        example = "1.250,50" if mark == "," else "1,250.50"
        raise ValueError(f"is not an amount with a decimal {MARKS[mark]}, such as {example}")
    decimals = match[3] or ""
    if len(decimals) > 2:
        raise ValueError(
            f"has {len(decimals)} digits after the decimal {MARKS[mark]}, and an amount has two at most"
        )
    return int(re.sub(r"[^0-9]", "", match[1])) * 100 + int(decimals.ljust(2, "0"))
