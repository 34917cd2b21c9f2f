"""One cell -> one value, or an error. Nothing is coerced, rounded or guessed, and no error repeats a value."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any

import attrs

from payclient.errors import InvalidRequestError
from payclient.models import BillTo, LineItem, Order
from payclient.rows.format import AMOUNTS, INTEGERS, KEY, PURCHASE
from payclient.validation import from_service


class CellError(ValueError):
    """A cell is not valid; the text gives the reason, without the value, and may be shown."""


@attrs.frozen
class RowError:
    """Why a row cannot be sent; `str()` is one line."""

    #: Counted from 1, the header included.
    line: int
    #: As the file spells it; None where the reason is about the whole row.
    column: str | None
    reason: str

    @property
    def words(self) -> str:
        """The column and the reason."""
        return f"{self.column}: {self.reason}" if self.column else self.reason

    def __str__(self) -> str:
        return f"line {self.line}{', ' if self.column else ': '}{self.words}"


# --- Amounts: "1.250,50" and "1,250.50" are the same money, and "1,250" may be two

#: The decimal marks, and what each is called.
MARKS = {",": "comma", ".": "point"}


def _pattern(mark: str) -> re.Pattern[str]:
    # Between groups of three digits: the other mark, a space that breaks or not, an apostrophe.
    between = re.escape("".join(MARKS).replace(mark, "") + " \xa0\u202f'\u2019")
    grouped = rf"[1-9][0-9]{{0,2}}(?P<between>[{between}])[0-9]{{3}}(?:(?P=between)[0-9]{{3}}){{0,3}}"
    number = rf"(?P<whole>[0-9]{{1,15}}|{grouped})(?:{re.escape(mark)}(?P<decimals>[0-9]+))?"
    # The sign or the code of a currency stands before or after the amount.
    sign, blank = r"US\$|S/|[$€£]|[A-Z]{3}", "[ \xa0\u202f]*"
    return re.compile(rf"(?P<before>{sign})?{blank}{number}{blank}(?(before)|(?P<after>{sign})?)")


_PATTERNS = {mark: _pattern(mark) for mark in MARKS}

#: The currency that a sign stands for; `$` is the sign of many.
_SIGNS = {"US$": "USD", "S/": "PEN", "€": "EUR", "£": "GBP"}


def find_mark(texts: Iterable[str]) -> str:
    """Return the mark that the amounts prove; a point where none has a mark.

    Raises `InvalidRequestError` where they contradict each other, or may mean two things and none proves which.
    """
    amounts = {text for text in texts if "," in text or "." in text}
    comma, point = ({*filter(_PATTERNS[mark].fullmatch, amounts)} for mark in MARKS)
    tell = "give --decimal-mark , or --decimal-mark ."
    # A mark is proven by an amount that can be read by this mark alone.
    if comma - point and point - comma:
        raise InvalidRequestError(f"some amounts have a decimal comma and others a decimal point: {tell}")
    if comma and comma == point:
        raise InvalidRequestError(
            'amounts such as "1,000" or "1.000" may mean one or one thousand, and no other amount of the '
            f"file proves which: {tell}"
        )
    return "," if comma - point else "."


def cents_of(text: str, mark: str, currency: str | None = None) -> int:
    """Return the cents of an amount in units, exactly. Raises `CellError`, also for the sign of another currency."""
    match = _PATTERNS[mark].fullmatch(text)
    if match is None:
        example = "1.250,50" if mark == "," else "1,250.50"
        raise CellError(f"is not an amount with a decimal {MARKS[mark]}, such as {example}")
    decimals, sign = match["decimals"] or "", match["before"] or match["after"]
    if len(decimals) > 2:
        raise CellError(f"has {len(decimals)} digits after the decimal {MARKS[mark]}; two is the most")
    fits = currency not in ("EUR", "GBP", "PEN") if sign == "$" else _SIGNS.get(sign, sign) == currency
    if sign and currency and not fits:
        raise CellError("has the sign of another currency")
    return int(re.sub(r"[^0-9]", "", match["whole"])) * 100 + int(decimals.ljust(2, "0"))


def signed_currency(text: str) -> str | None:
    """Return the currency whose sign or code an amount has; None for `$`, and for an amount without one."""
    match = re.search(r"US\$|S/|[€£]|[A-Z]{3}", text)
    return None if match is None else _SIGNS.get(match[0], match[0])


# --- Cells

NOT_TEXT = "must be a text, because a number keeps no zero in front: format the column as text"

#: A formula, also behind a sign: `=A1`, `+SUM(A1)`, `@SUM(A1)`.
FORMULA = re.compile(r"^\s*(=|[-+@]\s*[A-Za-z.]+\()", re.ASCII)

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PHONE, _IDS = frozenset({"phone_number"}), frozenset({KEY, PURCHASE, "store_id", "client_user_id"})
_SHORTENED = "is a number as a spreadsheet shortens it: format the column as text"

#: The damage that a conversion does to a text: the fields where it is one (None: all), its form, the fault.
_DAMAGES: Sequence[tuple[frozenset[str] | None, re.Pattern[str], str]] = (
    # "5,93999E+11"; an id such as "12E5" is valid.
    (_PHONE, re.compile(r"^[+-]?[0-9]+([.,][0-9]+)?[eE]\+?[0-9]+$"), _SHORTENED),
    (_IDS, re.compile(r"^[0-9][.,][0-9]+E\+[0-9]+$"), _SHORTENED),
    (_PHONE, re.compile(r"^[0-9]+\.0$"), "is a number that ends in .0"),
    (
        None,
        re.compile("[\udc80-\udcff]"),
        "is not of the file's encoding: give --encoding, or save it as CSV UTF-8",
    ),
    (None, re.compile("\N{REPLACEMENT CHARACTER}"), "has a character that was lost in a conversion"),
    (None, FORMULA, "is a formula; its value is needed"),
    # `#REF!`, `#N/A`, `#¿NOMBRE?`, and a number too wide for its cell.
    (None, re.compile(r"^#(N/A|[\w¡¿/ ]+[!?]|#{2,})$"), "is an error of the spreadsheet"),
)


def read_cell(
    cell: Any, field: str, mark: str | None, *, json: bool = False, currency: str | None = None
) -> Any:
    """Return the value of a text, or of a typed cell. Raises `CellError`.

    `mark`: the decimal mark of amounts in units; None: amounts are whole cents. `json`: the values have types already,
    which the model checks. `currency`: the one whose sign an amount may have; None: any.
    """
    if field == "order":
        return _order_of(cell)
    if json and not isinstance(cell, str):
        return cell
    if not isinstance(cell, str):
        cell = _text_of(cell, field)
        mark = mark and "."  # which the text of a number has
    if field == "by_nick_name" and not json:
        if cell not in ("true", "false"):
            raise CellError("must be true or false")
        return cell == "true"
    if json or field not in INTEGERS:
        _check_damage(cell, field)
        return cell
    if mark is not None and field in AMOUNTS:
        return cents_of(cell, mark, currency)
    if not _INTEGER.fullmatch(cell):
        cents = "must be whole cents (write 10.50 as 1050), or use --amounts decimal"
        raise CellError(cents if field in AMOUNTS else "must be a whole number")
    return int(cell)


def _check_damage(cell: str, field: str) -> None:
    if cell.isascii() and (cell.isdigit() if field in _PHONE else cell.isalnum()):
        return
    for fields, form, words in _DAMAGES:
        if (fields is None or field in fields) and form.search(cell):
            raise CellError(words)


def _text_of(cell: object, field: str) -> str:
    """Return the text of a spreadsheet's cell that is not a text. Raises `CellError`."""
    if isinstance(cell, CellError):
        raise cell
    if isinstance(cell, bool):
        if field != "by_nick_name":
            raise CellError("must not be true or false")
        return str(cell).lower()
    if isinstance(cell, date) and field not in INTEGERS | _IDS | _PHONE:
        return cell.isoformat().removesuffix("T00:00:00")
    if isinstance(cell, (date, time, timedelta)):
        raise CellError("must not be a date or a time: format the column as text")
    # A spreadsheet shows fifteen digits of a number.
    text = f"{cell:.15g}" if isinstance(cell, float) else str(cell)
    if field not in INTEGERS and not _INTEGER.fullmatch(text):
        raise CellError(NOT_TEXT)
    return text


def corrected_phone(
    phone: str, country: str, shapes: Mapping[str, str], *, is_text: bool = True
) -> tuple[str, str]:
    """Return a phone and its country as the profile's shape has them, so that one customer is one. Raises `CellError`.

    With `0#########` and 593 these are one: 0984111222, 984111222, 593984111222, +593 98 411 1222, 00593984111222.
    """
    code = country.removeprefix("+")
    if (shape := shapes.get(code)) is None:
        if not is_text:
            raise CellError(NOT_TEXT)
        return phone, country
    digits, prefix = re.sub(r"[^0-9]", "", phone), shape.rstrip("#")
    starts = (code,) if "+" in phone else ("", code, f"00{code}")
    rests = {digits.removeprefix(start).removeprefix(prefix) for start in starts if digits.startswith(start)}
    # No number begins with a second zero.
    fitting = [
        rest for rest in rests if len(rest) == shape.count("#") and not (prefix and rest.startswith(prefix))
    ]
    if len(fitting) != 1 or not re.fullmatch(r"\s*\+?[0-9 ().\xa0-]+", phone):
        raise CellError(f"is not a phone of country {code}, such as {shape}")
    return prefix + fitting[0], code


# --- Objects of JSON


def _order_of(data: Any) -> Order:
    """Return the order of a JSON object, its names in either spelling; null is left out. Raises `CellError`."""
    try:
        values = _spelled(data)
        bill_to, items = values.pop("bill_to", None), values.pop("line_items", [])
        if not isinstance(items, list):
            raise CellError("line_items: must be an array")
        return Order(
            bill_to=None if bill_to is None else BillTo(**_spelled(bill_to)),
            line_items=tuple(LineItem(**_spelled(item)) for item in items),
            **values,
        )
    except InvalidRequestError as error:
        raise CellError("; ".join(f"{field}: {why}" for field, why in faults_of(error))) from None
    except (AttributeError, TypeError):  # also of a name that no model has
        raise CellError("must be an object, and each of its names known") from None


def _spelled(data: Any) -> dict[str, Any]:
    values = {from_service(name): value for name, value in data.items() if value is not None}
    if len(values) < sum(value is not None for value in data.values()):
        raise CellError("has a name in two spellings")
    return values


def faults_of(error: InvalidRequestError) -> list[tuple[str, str]]:
    """Return each field that an error names, and what is wrong with it."""
    return [(from_service(each.message), "; ".join(each.error_descriptions)) for each in error.errors]
