"""JSONL: an object a line, with orders if there are any, structured by a strict cattrs converter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import attrs
from cattrs import BaseValidationError, Converter

from payclient.errors import InvalidRequestError
from payclient.models import LineItem, SaleRequest
from payclient.rows.cells import CellError, Cells, FileRow, RowError, check_text, errors_of
from payclient.rows.formats import AMOUNTS, FAULT, FIELDS, KEY, Format, field_of
from payclient.validation import from_service, to_service

__all__ = ["Objects"]

_ITEM_AMOUNTS = frozenset({"unit_price", "total_amount", "tax_amount"})

#: Column and reason.
Faults = list[tuple[str | None, str]]

#: A line's number and its object, or why it has none; then the line itself.
Parsed = tuple[int, dict[str, Any] | CellError, str]


class Objects:
    """The objects of a file of lines."""

    def __init__(self, text: str, form: Format) -> None:
        self._form = form
        self.parsed = [
            (number, _parse(line), line) for number, line in enumerate(text.split("\n"), 1) if line.strip()
        ]

    def amounts(self) -> Iterator[str]:
        """Return every amount that is a text; a JSON number has a point."""
        for _, data, _ in self.parsed:
            if isinstance(data, dict):
                values = self._fields(data, [])
                for names, found in ((AMOUNTS, values), *((_ITEM_AMOUNTS, item) for item in _items(values))):
                    yield from (text for name in names if isinstance(text := found.get(name), str))

    def row(self, parsed: Parsed, cells: Cells, constants: Mapping[str, Any]) -> FileRow:
        """Return one row."""
        line, data, text = parsed
        if isinstance(data, CellError):
            return FileRow(line, None, None, (RowError(line, None, str(data)),), text)
        faults: Faults = []
        values = self._fields(data, faults)
        both = sorted(constants.keys() & values.keys())
        faults += [(field, "is there, and --set gives it as well") for field in both]
        values |= constants
        key = values.get(KEY)
        if not isinstance(key, str) or not key:
            faults.append((self._form.key_column, "is required" if key in (None, "") else "must be a text"))
            key = None
        for field, value in values.items():
            if isinstance(value, str) and field in FIELDS - AMOUNTS:
                try:
                    check_text(value, field)
                except CellError as error:
                    faults.append((field, str(error)))
        if cells.decimal:
            _to_cents(cells, values, AMOUNTS - constants.keys(), "", faults)
            for number, item in enumerate(_items(values)):
                _to_cents(cells, item, _ITEM_AMOUNTS, f"order.line_items[{number}].", faults)
        if faults:
            found = tuple(RowError(line, column, why) for column, why in faults)
            return FileRow(line, key, None, found, text)
        try:
            return FileRow(line, key, _converter.structure(values, SaleRequest), (), text)
        except (InvalidRequestError, BaseValidationError) as error:
            return FileRow(line, key, None, tuple(errors_of(error, line, {})), text)

    def _fields(self, data: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
        """Return the row's values by the model's names; other names stay as they are, for the converter to refuse."""
        form, plain, values = self._form, {}, {}
        own_key = None if field_of(form.key) == KEY or KEY in form.columns else field_of(form.key) or form.key
        for name, value in data.items():
            fields = [field for field, column in form.columns.items() if column == name]
            if fields or (name == own_key and name not in FIELDS):
                values.update(dict.fromkeys(fields or [KEY], value))
            elif name not in form.ignored and name != FAULT:
                plain[name] = value
        found: dict[str, Any] = _respell(plain, "", faults)
        if own_key is not None and KEY in found:
            faults.append((None, f"{KEY} stands beside the key {form.key}"))
        elif own_key in FIELDS:
            values[KEY] = found.get(own_key)
        faults += [(field, "is there twice") for field in sorted(found.keys() & values.keys() - {KEY})]
        return found | values


def _parse(text: str) -> dict[str, Any] | CellError:
    if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
        return CellError("is not UTF-8")
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=Decimal)
    except CellError as error:
        return error
    except (ValueError, RecursionError):
        return CellError("is not JSON: is it cut?")
    return data if isinstance(data, dict) else CellError("is not a JSON object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CellError("a name stands twice in one object")
    return result


def _no_constant(_: str) -> Any:
    raise CellError("has NaN or Infinity, which are not numbers of JSON")


def _respell(value: Any, path: str, faults: Faults) -> Any:
    """Spell the names of a value as the models do, and leave null out."""
    if isinstance(value, list):
        return [
            _respell(item, f"{path.removesuffix('.')}[{number}].", faults)
            for number, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, inner in value.items():
        field = from_service(name)
        field = field if name in (field, to_service(field)) else name
        if field in result:
            faults.append((f"{path}{field}", "is there twice"))
        elif inner is not None:
            result[field] = _respell(inner, f"{path}{field}.", faults)
    return result


def _items(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    order = values.get("order")
    items = order.get("line_items") if isinstance(order, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _to_cents(
    cells: Cells,
    values: dict[str, Any],
    names: frozenset[str],
    path: str,
    faults: Faults,
) -> None:
    for name in names & values.keys():
        value = values[name]
        try:
            if type(value) is int:
                values[name] = value * 100
            elif isinstance(value, Decimal) and abs(value.adjusted()) < 30:
                values[name] = attrs.evolve(cells, mark=".").cents(f"{value:f}")
            elif isinstance(value, str):
                values[name] = cells.cents(value)
            else:
                raise CellError("is not an amount")
        except CellError as error:
            faults.append((f"{path}{name}", str(error)))


def _make_converter() -> Converter:
    """Return a converter that coerces nothing and refuses unknown names."""
    converter = Converter(forbid_extra_keys=True)

    def strict(kind: type, what: str) -> Any:
        def structure(value: Any, _: Any) -> Any:
            if type(value) is not kind:
                raise CellError(f"must be {what}")
            return value

        return structure

    for kind, what in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        converter.register_structure_hook(kind, strict(kind, what))

    def items(value: Any, _: Any) -> tuple[LineItem, ...]:
        if not isinstance(value, list):
            raise CellError("must be an array")
        return tuple(converter.structure(value, list[LineItem]))

    @converter.register_structure_hook_factory(attrs.has)
    def objects(kind: Any, converter: Converter) -> Any:
        inner = converter.gen_structure_attrs_fromdict(kind)

        def structure(value: Any, kind: Any) -> Any:
            if not isinstance(value, dict):
                raise CellError("must be an object")
            return inner(value, kind)

        return structure

    converter.register_structure_hook_func(lambda kind: kind == tuple[LineItem, ...], items)
    return converter


_converter = _make_converter()
