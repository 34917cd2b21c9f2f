"""Rules of a request: its body as the settings let a client write it, and its fields (§2.1 to §2.4).

Only what the document states is checked, and what the settings add. Unknown fields pass.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from .messages import FieldFault, RefusalError
from .settings import Settings

Kinds = Mapping[str, type]


def _kinds(text: str = "", whole: str = "", **others: type) -> Kinds:
    return {**dict.fromkeys(text.split(), str), **dict.fromkeys(whole.split(), int), **others}


_COMPONENTS: Final = ("amountWithoutTax", "amountWithTax", "tax", "service", "tip")
_BOTH: Final = _kinds(
    "currency clientTransactionId storeId reference responseUrl phoneNumber lat lng",
    whole=f"amount {' '.join(_COMPONENTS)} timeZone",
    order=dict,
)
_SALE: Final = _kinds(
    "countryCode clientUserId optionalParameter1 optionalParameter2 optionalParameter3 nickName"
)
_OPTIONAL: Final = _kinds(
    "clientUserId optionalParameter1 optionalParameter2 optionalParameter3 optionalParameter4"
)
#: The fields of each operation; a confirmation calls the merchant's id by a name of its own.
_FIELDS: Final[Mapping[str, Kinds]] = {
    "sale": {**_BOTH, **_SALE},
    "prepare": {**_BOTH, **_kinds("email documentId cancellationUrl optionalParameter")},
    "confirm": {"id": int, "clientTxId": str},
    "cancel": {"id": int},
    "cancel_by_client_id": {"clientId": str},
    "reverse": {"id": int},
    "reverse_by_client_id": {"clientId": str},
}
#: Those that must be there; of the operations on a payment all must.
_REQUIRED: Final = {
    "sale": ("phoneNumber", "countryCode", "amount", "currency", "clientTransactionId"),
    "prepare": ("amount", "currency", "clientTransactionId", "storeId", "responseUrl"),
}
_NESTED: Final[Mapping[str, Kinds]] = {
    "order": _kinds(billTo=dict, lineItems=list),
    "billTo": _kinds(
        "address1 address2 country state locality firstName lastName phoneNumber email postalCode customerId ipAddress",
        whole="billToId",
    ),
    "lineItems": _kinds(
        "productName productSKU productDescription", "unitPrice quantity totalAmount taxAmount"
    ),
}
_KIND_NAMES: Final = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "array"}
_WHOLE: Final = re.compile(r"\s*-?[0-9]{1,18}\s*", re.ASCII)
_BOOLEANS: Final = {"true": True, "false": False}
_WEB_FORM: Final = "application/x-www-form-urlencoded"
_TOLERATED: Final = (_WEB_FORM, "text/json")


def fields_of(operation: str, settings: Settings) -> Kinds:
    """Return each field of an operation's body with its type, those included whose names are settings."""
    fields = dict(_FIELDS[operation])
    if settings.tolerant and operation in _REQUIRED:
        fields |= _OPTIONAL
    if operation == "sale" and settings.nick_name_flag is not None:
        fields[settings.nick_name_flag] = bool
    if operation == "prepare" and settings.language_field is not None:
        fields[settings.language_field] = str
    return fields


def members_of(content_type: str, raw: bytes) -> dict[str, Any] | None:
    """Return the members of a JSON object or of a web form; None if it is neither."""
    try:
        if content_type == _WEB_FORM:
            return dict(parse_qsl(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=500))
        body = orjson.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def parse_body(content_type: str, raw: bytes, settings: Settings) -> dict[str, Any]:
    """Return the members of a body as they were written; RefusalError if there are none."""
    if content_type != "application/json" and not (settings.tolerant and content_type in _TOLERATED):  # §5.2
        raise RefusalError(800, faults=(FieldFault("Content-Type", "content type"),))
    if (members := members_of(content_type, raw)) is None:
        raise RefusalError(800, faults=(FieldFault("body", "body"),))
    return members


def valid_body(operation: str, members: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the fields of a request; RefusalError if they break a rule, or a setting refuses them."""
    body, faults = read(operation, members, settings)
    if operation == "confirm" and body.get("id") is None:
        raise RefusalError(20)
    if faults:
        raise RefusalError(800, faults=tuple(faults))
    store, phone, least = body.get("storeId"), body.get("phoneNumber"), settings.least_amount
    if least is not None and body.get("amount", least) < least:
        raise RefusalError(107, values=(f"{least // 100},{least % 100:02}",))
    pattern = settings.phone_pattern
    if pattern and operation == "sale" and phone and not re.fullmatch(pattern, phone):
        raise RefusalError(120)
    if settings.stores is not None and store is not None and store not in settings.stores:
        raise RefusalError(100)
    for name in ("phoneNumber", "nickName", "storeId", "clientTransactionId"):
        if body.get(name) in settings.refuse_with:
            raise RefusalError(settings.refuse_with[body[name]])
    return body


def read(
    operation: str, members: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, Any], list[FieldFault]]:
    """Return the fields by the document's names, and their faults: what is missing first, then what is wrong."""
    kinds, faults = fields_of(operation, settings), list[FieldFault]()
    if operation == "prepare" and "ResponseUrl" in members:
        members = {"responseUrl": members["ResponseUrl"], **members}  # §2.3: samples have both
    body = _typed(members, kinds, settings.tolerant, faults)
    required = _required(operation, body, settings)
    missing = [name for name in required if name not in body or not str(body[name]).strip()]
    faults = [*(FieldFault(name, "required") for name in missing), *faults]
    if operation in _REQUIRED:
        failing = {fault.field for fault in faults}
        more = (*_failing_sum(body), *_failing_values(operation, body, settings))
        faults += [fault for fault in more if fault.field not in failing]
    return body, faults


def _required(operation: str, body: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return the fields that must be there."""
    optional = settings.optional_fields - {"phoneNumber"}
    required = [name for name in _REQUIRED.get(operation, _FIELDS[operation]) if name not in optional]
    if operation == "sale" and settings.nick_name_flag and body.get(settings.nick_name_flag) is True:
        required.append("nickName")  # §2.2: the request goes to the user name, so there must be one
        if "phoneNumber" in settings.optional_fields:
            required.remove("phoneNumber")
    return required


def _typed(
    members: Mapping[str, Any], kinds: Kinds, is_tolerant: bool, faults: list[FieldFault], path: str = ""
) -> dict[str, Any]:
    """Return the members that are not null by the names in `kinds`, and add a fault for each of a wrong type.

    A tolerant service takes names in any letter case; of one that comes twice the last counts.
    """
    if is_tolerant:
        names = {name.lower(): name for name in kinds}
        spelled = {names[name.lower()]: one for name, one in members.items() if name.lower() in names}
        members = {name: _converted(value, kinds[name]) for name, value in spelled.items()}
    typed: dict[str, Any] = {}
    for name, kind in kinds.items():
        value: Any = members.get(name)
        if value is None:
            continue
        is_typed = type(value) is kind  # not isinstance: True is not an amount of cents
        if not is_typed:
            faults.append(FieldFault(path + name, "type", (_KIND_NAMES[kind],)))
        elif kind is dict:
            nested = _NESTED[name.partition("[")[0]]
            value = _typed(value, nested, is_tolerant, faults, f"{path}{name}.")
        elif kind is list:
            items = {f"{name}[{index}]": one for index, one in enumerate(value)}
            value = [*_typed(items, dict.fromkeys(items, dict), is_tolerant, faults, path).values()]
        typed[name] = value
    return typed


def _converted(value: object, kind: type) -> object:
    """Return a value as its field's type where a tolerant service takes it; any other value as it is."""
    match value:
        case str() if kind is int and _WHOLE.fullmatch(value):
            return int(value)
        case str() if kind is bool and value.strip().lower() in _BOOLEANS:
            return _BOOLEANS[value.strip().lower()]
        case str() if kind is not str and not value.strip():
            return None
        case int() | float() if kind is str and not isinstance(value, bool):
            return str(value)
        case _:
            return value


def _failing_sum(body: Mapping[str, Any]) -> Iterator[FieldFault]:
    """Yield what is wrong with the amounts of a body as a whole."""
    amount = body.get("amount")
    parts = {name: body[name] for name in _COMPONENTS if body.get(name) is not None}
    if type(amount) is not int or not all(type(value) is int for value in parts.values()):
        return  # a value of a wrong type is a fault of its own
    if not parts:
        yield FieldFault("Amount", "no component")  # §2.1.2
    elif sum(parts.values()) != amount:
        yield FieldFault("Amount", "sum")  # §2.1.1, §7.6
    if parts.get("amountWithoutTax") and parts.get("amountWithTax") and "tax" not in parts:
        yield FieldFault("tax", "mixed")  # §2.1.4


def _failing_values(operation: str, body: Mapping[str, Any], settings: Settings) -> Iterator[FieldFault]:
    """Yield what is wrong with single values."""
    for limited, (low, high) in settings.limits.items():
        name = limited.removeprefix(f"{operation}.")
        value = body.get(name)
        if isinstance(value, str) and not low <= len(value) <= high:
            yield FieldFault(name, "length", (low, high))
        elif type(value) is int and not low <= value <= high:
            yield FieldFault(name, "range", (low, high))
    if operation == "prepare":
        formats = {**_FORMATS, settings.language_field or "": ("language", {"en", "es"}.__contains__)}
        for name, (message, is_valid) in formats.items():
            if isinstance(value := body.get(name), str) and not is_valid(value):
                yield FieldFault(name, message)


def _is_address(text: str) -> bool:
    """Return whether the text is an absolute address, such as one that a browser can be sent to."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if the port is not a number
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname) and text.isprintable() and " " not in text


#: The texts of a form that must have a form of their own, with the message for another.
_FORMATS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "responseUrl": ("url", _is_address),
    "cancellationUrl": ("url", _is_address),
    "phoneNumber": ("phone", re.compile(r"\+[1-9][0-9]+").fullmatch),
}
