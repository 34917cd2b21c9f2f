"""A statement of the service or the bank: its columns, its lines, and the words that say what was paid."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.tables import Dialect, dialect_of
from payclient.errors import InvalidRequestError
from payclient.profile import ServiceProfile
from payclient.rows.cells import CellError, RowError, find_mark, read_cell, signed_currency
from payclient.rows.format import KEY, SHOWABLE, Layout, plain
from payclient.rows.records import HIDDEN, Records, named, read_records
from payclient.validation import escape_text, to_service

_NUMBER = re.compile(r"[1-9][0-9]{0,18}")

#: An amount that was given back.
_BACK = re.compile(r"-\s*([^-()]*)|([^-()]*?)\s*-|\(\s*([^-()]*?)\s*\)")

#: Words in the name of a column that may hold a state, and a cell that says "not paid"; without accents and capitals.
_STATE = re.compile(r"estado|estatus|\bstate\b|status|resultado|\bresult\b|situacion")
_NOT_PAID = re.compile(
    r"(rechaz|cancel|anul|revers|devuel|devol|declin|deneg|negad|no aprob|no autoriz|pendi|expir|reject|refus|refund|"
    r"fall|fail|void)\w*"
)

#: Faults shown of a statement; all are counted.
_SHOWN = 20


@attrs.frozen(kw_only=True)
class Entry:
    """One line of a statement: a payment, or one that was given back. One that is read has at least one of the ids."""

    line: int
    transaction_id: int | None = None
    client_transaction_id: str | None = None
    #: Cents, less than 0 where it was given back.
    amount: int
    currency: str | None = None
    #: Whether its state is a known word. Nothing but the ids is read of another line.
    is_read: bool = True


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class StatementOptions(Layout):
    """How the statement is written; what is left out is found in the file, never guessed."""

    map: tuple[str, ...] = ()
    """FIELD=COLUMN for client_transaction_id, transaction_id, amount, currency or state. Repeatable."""
    paid: tuple[str, ...] = ()
    """A word of the column state that means paid, beside Aceptado and the profile's. Repeatable."""
    returned: tuple[str, ...] = ()
    """A word of the column state that means given back, as an amount less than 0 does. Repeatable."""
    ignore_rest: Annotated[bool, Parameter(parse=False)] = True

    FIELDS = frozenset({KEY, "transaction_id", "amount", "currency", "state"})

    def field_of(self, name: str) -> str | None:
        """Return the field that a name means in one of its spellings, whatever its accents and capitals."""
        spellings = {plain(each): field for field in self.FIELDS for each in (field, to_service(field))}
        return spellings.get(plain(name))

    def signs(self, profile: ServiceProfile) -> dict[str, int]:
        """Return the known words of the column state, in lower case: 1 means paid, -1 given back."""
        states = {} if profile.status is None else profile.status.states
        paid = ["Aceptado", *self.paid, *(word for word, state in states.items() if state == "Aceptado")]
        return {word.casefold(): 1 for word in paid} | {word.casefold(): -1 for word in self.returned}


#: The content of a statement: its lines, how many of them have each unknown word as their state, the lines at its end
#: that name no payment, and how it is written.
Statement = tuple[list[Entry], Counter[str], list[int], Dialect]


def read_statement(path: Path, options: StatementOptions, profile: ServiceProfile) -> Statement:
    """Read a statement. Raises `InvalidRequestError` with what is wrong, line by line."""
    with named(path):
        file = read_records(path, options)
        _check_columns(file, options)
        rows, faults = _rows(file, options)
        unnamed = _take_unnamed(rows)
        if unnamed and not rows:  # there is nothing to total: the column of the ids is another one
            faults.append(RowError(unnamed[0], None, "names no payment"))
        if faults and not rows:  # no amount is left that could show its mark
            raise InvalidRequestError(terminal.listed(faults, _SHOWN))
        mark = _mark(file, options, [row.get("amount") for _, row in rows])
        signs = options.signs(profile)
        entries, others = list[Entry](), Counter[str]()
        for line, row in rows:
            word = str(row.get("state") or "").strip()
            sign = signs.get(word.casefold()) if "state" in row else 1
            if sign is None:
                others[word if SHOWABLE.fullmatch(word) else "?"] += 1
            try:
                entries.append(_entry(line, row, mark, sign))
            except CellError as error:
                faults.append(RowError(line, None, str(error)))
        if faults:
            raise InvalidRequestError(terminal.listed(faults, _SHOWN))
        dialect = dialect_of(path, file, mark, given_mark=options.decimal_mark)
        return entries, others, unnamed, dialect


def _rows(
    file: Records, options: StatementOptions
) -> tuple[list[tuple[int, dict[str, Any]]], list[RowError]]:
    """Return the cells of each line by their fields, and the faults of lines that cannot be read."""
    rows, faults = list[tuple[int, dict[str, Any]]](), list[RowError]()
    for each in file.rows:
        if each.fault not in (None, HIDDEN):
            faults.append(RowError(each.line, None, each.fault))
        elif not each.is_empty:
            found = list(zip(each.names, each.cells, strict=False))
            _check_state(found, options)
            rows.append((each.line, {field: cell for n, cell in found for field in options.fields_of(n)}))
    return rows, faults


def _take_unnamed(rows: list[tuple[int, dict[str, Any]]]) -> list[int]:
    """Remove the last lines that have no id, such as a total, and return which they were."""
    unnamed = list[int]()
    while rows and not (rows[-1][1].get(KEY) or rows[-1][1].get("transaction_id")):
        unnamed.insert(0, rows.pop()[0])
    return unnamed


def _check_columns(file: Records, form: StatementOptions) -> None:
    """Raise `InvalidRequestError` where a header lacks the amount, an id or a `--map` column, or has a field twice."""
    fields = Counter(field for column in file.names for field in form.fields_of(column))
    if twice := sorted(field for field, count in fields.items() if count > 1):
        raise InvalidRequestError(f"line {file.line}: {twice[0]} is there twice")
    lacking = {*form.columns, "amount", KEY} - {*fields} - ({KEY} if "transaction_id" in fields else set())
    if file.delimiter and lacking:
        tell = " ".join(f"--map {field}=COLUMN" for field in sorted(lacking))
        there = ", ".join(name.strip() for name in file.names if SHOWABLE.fullmatch(name.strip()))
        has = f"; the line has {there}" if fields and there else ""
        raise InvalidRequestError(f"line {file.line} lacks columns: give {tell}{has}")


def _check_state(row: Sequence[tuple[str, Any]], form: StatementOptions) -> None:
    """Raise `InvalidRequestError` where a column that is not read may say that a line was not paid."""
    if any("state" in form.fields_of(column) for column, _ in row):
        return
    for column, cell in row:
        said = plain(cell.strip()) if isinstance(cell, str) else ""
        may_say = _STATE.search(plain(column.strip())) or _NOT_PAID.fullmatch(said)
        if may_say and not form.fields_of(column):
            shown = column.strip() if SHOWABLE.fullmatch(column.strip()) else "COLUMN"
            raise InvalidRequestError(
                f"the column {shown} may say that a line was not paid: give --map state={shown}, and "
                "--paid WORD for each word of it that means paid"
            )


def _mark(file: Records, options: StatementOptions, amounts: Sequence[Any]) -> str | None:
    """Return the decimal mark, or None for cents. Raises `InvalidRequestError` where no amount shows which."""
    if options.amounts == "cents" or not file.delimiter:  # JSONL has whole cents
        return None
    texts = [_unsigned(each)[0] for each in amounts if isinstance(each, str)]
    proven = any("," in each or "." in each for each in texts)
    if not (proven or options.amounts or any(isinstance(each, float) and each % 1 for each in amounts)):
        raise InvalidRequestError("no amount shows what 25 means: give --amounts cents or decimal")
    return options.decimal_mark or find_mark(texts)


def _entry(line: int, row: Mapping[str, Any], mark: str | None, sign: int | None) -> Entry:
    """Return the payment of a line; of one whose state is not known (None) the ids only. Raises `CellError`."""
    names = (name for name in (KEY, "transaction_id") if row.get(name))
    ids = {name: escape_text(str(read_cell(row[name], KEY, mark)).strip()) for name in names}
    number, cents = ids.get("transaction_id", ""), 0
    is_number = _NUMBER.fullmatch(number) is not None
    currency = escape_text(str(row.get("currency") or "").strip()) or None
    if sign is not None:
        amount, negative = _unsigned(row.get("amount", ""))
        if not ids:
            raise CellError("names no payment")
        if number and not is_number:
            raise CellError("transaction_id: must be a number, 1 or more")
        cents = read_cell(amount, "amount", mark, currency=currency)
        currency = currency or signed_currency(str(amount))
        if type(cents) is not int:
            raise CellError("amount: must be given")
        cents *= -1 if negative else sign
    return Entry(
        line=line,
        transaction_id=int(number) if is_number else None,
        client_transaction_id=ids.get(KEY),
        amount=cents,
        currency=currency,
        is_read=sign is not None,
    )


def _unsigned(amount: Any) -> tuple[Any, bool]:
    """Return an amount without its sign, and whether it is less than 0: -10.50, 10.50- and (10.50)."""
    if not isinstance(amount, str):
        return (abs(amount), amount < 0) if type(amount) in (int, float) else (amount, False)
    found = _BACK.fullmatch(amount.strip().replace("\N{MINUS SIGN}", "-"))
    return (found[found.lastindex or 0], True) if found else (amount, False)
