"""JSONL: an object in each line, with orders if there are any."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn

from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.rows.cells import Cells, check_text
from payclient.rows.faults import CellError, Fault, kind_of
from payclient.rows.formats import AMOUNTS, FAULT, FIELDS, KEY, Format, field_of
from payclient.rows.lines import Lines
from payclient.rows.row import Row, make_row, short_digest
from payclient.spelling import from_service, to_service

__all__ = ["JsonlRows"]

_SHOWABLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_INNER: dict[str, type] = {"order": Order, "bill_to": BillTo}
_ITEM_AMOUNTS = frozenset({"unit_price", "total_amount", "tax_amount"})


class JsonlRows:
    """The objects of a file, one a line."""

    #: A JSON file has no header.
    names: tuple[str, ...] = ()
    delimiter: str | None = None
    #: Nor other names than the fields'.
    spelled: Mapping[str, str] = MappingProxyType({})

    def __init__(self, lines: Lines, name: str, form: Format, constants: Mapping[str, Any]) -> None:
        self._lines = lines
        self._begin = lines.offset
        self._form = form
        self.constants = constants
        self._mapped: dict[str, list[str]] = {}
        for field, spelled in form.columns.items():
            self._mapped.setdefault(spelled, []).append(field)
        self.cells = Cells(form.amounts == "decimal", form.decimal_mark)

    def __iter__(self) -> Iterator[Row]:
        for line, offset, raw, text in self.records():
            if text.strip():
                yield self._row(text, line, offset, raw)

    def at(self, offset: int, line: int) -> Row | None:
        """The row that begins at a byte."""
        for _, _, raw, text in self.records(offset):
            return self._row(text, line, offset, raw) if text.strip() else None
        return None

    def amounts(self) -> Iterator[str]:
        """Every amount that is a text; a JSON number has a point."""
        for _, _, _, text in self.records():
            try:
                data = _parse(text)
            except CellError:
                continue
            values = self._respell(data, [])
            yield from (value for field in AMOUNTS if isinstance(value := values.get(field), str))
            for item in _items(values):
                yield from (value for field in _ITEM_AMOUNTS if isinstance(value := item.get(field), str))

    def records(self, offset: int | None = None) -> Iterator[tuple[int, int, bytes, str]]:
        """Line, offset, bytes and text of each line."""
        lines = self._lines
        lines.seek(self._begin if offset is None else offset)
        begin = lines.offset
        for text in lines:
            yield lines.number, begin, lines.take(), text
            begin = lines.offset

    def _row(self, text: str, line: int, offset: int, raw: bytes) -> Row:
        digest = short_digest(raw)
        try:
            data = _parse(text)
        except CellError as error:
            return Row(line, None, None, (Fault(line, None, str(error)),), offset, digest)
        faults: list[tuple[str | None, str, Any]] = []
        values = self._respell(data, faults)
        for field, value in self.constants.items():
            if field in values:
                faults.append((field, "is there, and --set gives it as well", values[field]))
            values[field] = value
        key = values.get(KEY)
        if not isinstance(key, str) or not key:
            empty = key in (None, "")
            faults.append((self._form.key_column, "is required" if empty else "is a text", key))
            key = None
        self._check(values, faults)
        if faults or key is None:
            found = (Fault(line, column, why, _kind(value)) for column, why, value in faults)
            return Row(line, key, None, tuple(found), offset, digest)
        return make_row(
            lambda: _converter.structure(values, SaleRequest), line, key, {}, values, offset, digest
        )

    def _respell(self, data: Mapping[str, Any], faults: list[tuple[str | None, str, Any]]) -> dict[str, Any]:
        """The row's values by the model's names; a name that is no field is a fault."""
        form, plain, values = self._form, {}, {}
        key = None if field_of(form.key) == KEY or KEY in form.columns else form.key
        for name, value in data.items():
            if name in self._mapped:
                values.update(dict.fromkeys(self._mapped[name], value))
            elif name in form.ignored or name == FAULT:
                continue
            elif name == key and name not in FIELDS:
                values[KEY] = value
            else:
                plain[name] = value
        found = _respell(plain, SaleRequest, "", faults)
        for field in found.keys() & values.keys():
            if field == KEY and key is not None:
                faults.append((None, f"{KEY} stands beside the key {key}", None))
            else:
                faults.append((field, "is there twice", None))
        values = found | values
        if key is not None and key in FIELDS:
            if KEY in found:
                faults.append((None, f"{KEY} stands beside the key {key}", None))
            values[KEY] = found.get(key)
        return values

    def _check(self, values: dict[str, Any], faults: list[tuple[str | None, str, Any]]) -> None:
        """What a spreadsheet made of texts; and decimal amounts -> cents."""
        for field, value in values.items():
            if isinstance(value, str) and field in FIELDS and field not in AMOUNTS:
                try:
                    check_text(value, field)
                except CellError as error:
                    faults.append((field, str(error), value))
        if self.cells.decimal:
            self._to_cents(values, AMOUNTS - self.constants.keys(), "", faults)
            for number, item in enumerate(_items(values)):
                self._to_cents(item, _ITEM_AMOUNTS, f"order.line_items[{number}].", faults)

    def _to_cents(
        self,
        values: dict[str, Any],
        names: frozenset[str],
        path: str,
        faults: list[tuple[str | None, str, Any]],
    ) -> None:
        for name in names & values.keys():
            value = values[name]
            try:
                if type(value) is int:
                    values[name] = value * 100
                elif isinstance(value, Decimal) and abs(value.adjusted()) < 30:
                    values[name] = attrs.evolve(self.cells, mark=".").cents(f"{value:f}")
                elif isinstance(value, str):
                    values[name] = self.cells.cents(value)
                else:
                    raise CellError("is no amount")
            except CellError as error:
                faults.append((f"{path}{name}", str(error), value))


def _kind(value: Any) -> str | None:
    return None if value is None else kind_of(value)


def _items(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    order = values.get("order")
    items = order.get("line_items") if isinstance(order, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _parse(text: str) -> dict[str, Any]:
    if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
        raise CellError("is not UTF-8")
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=Decimal)
    except CellError:
        raise
    except (ValueError, RecursionError):
        data = _NO_JSON
    if data is _NO_JSON:
        raise CellError("is no JSON: is it cut?")
    if not isinstance(data, dict):
        raise CellError("is no JSON object")
    return data


_NO_JSON = object()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CellError("a name stands twice in one object")
    return result


def _no_constant(_: str) -> Any:
    raise CellError("has a number that is none (NaN or Infinity)")


def _respell(
    data: Mapping[str, Any], model: type, path: str, faults: list[tuple[str | None, str, Any]]
) -> dict[str, Any]:
    """Names as the model spells them, null left out; names that are not the model's are faults."""
    fields = {field.name for field in attrs.fields(model)}
    result: dict[str, Any] = {}
    for name, value in data.items():
        field = from_service(name)
        if field not in fields or name not in (field, to_service(field)):
            faults.append((f"{path}{name}" if _SHOWABLE.fullmatch(name) else path, "unknown name", None))
        elif field in result:
            faults.append((f"{path}{field}", "is there twice", None))
        elif value is not None:
            if field in _INNER and isinstance(value, dict):
                value = _respell(value, _INNER[field], f"{path}{field}.", faults)
            elif field == "line_items" and isinstance(value, list):
                value = [
                    _respell(item, LineItem, f"{path}{field}[{number}].", faults)
                    if isinstance(item, dict)
                    else item
                    for number, item in enumerate(value)
                ]
            result[field] = value
    return result


def _strict(kind: type, what: str) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise CellError(f"must be {what}")
        return value

    return structure


def _make_converter() -> Converter:
    """A converter that coerces nothing and knows no other names."""
    converter = Converter()
    for kind, what in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        converter.register_structure_hook(kind, _strict(kind, what))

    def items(value: Any, _: Any) -> tuple[LineItem, ...]:
        if not isinstance(value, list):
            raise CellError("must be an array")
        return tuple(converter.structure(value, list[LineItem]))

    converter.register_structure_hook_func(lambda kind: kind == tuple[LineItem, ...], items)
    for model in (BillTo, LineItem, Order, SaleRequest):
        inner = make_dict_structure_fn(model, converter, _cattrs_forbid_extra_keys=True)
        converter.register_structure_hook(model, partial(_structure_object, inner))
    return converter


def _structure_object(inner: Callable[[Any, Any], Any], value: Any, kind: Any) -> Any:
    if not isinstance(value, dict):
        raise CellError("must be an object")
    return inner(value, kind)


_converter = _make_converter()
