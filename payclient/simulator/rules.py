"""Rules of a request: its body as the settings let a client write it, and its fields (§2.1 to §2.4).

Only what the document states is checked, and what the settings add. Unknown fields pass.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from .messages import FieldFault, RefusalError, invalid
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
_FULL_PHONE: Final = re.compile(r"\+[1-9][0-9]+")
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
    if operation == "prepare" and "code" in settings.paths:
        fields["transactionSummaryUrl"] = str
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


def read_body(operation: str, content_type: str, raw: bytes, settings: Settings) -> dict[str, Any]:
    """Return the members of a body, in the document's names and types; RefusalError if there are none."""
    if content_type != "application/json" and not (settings.tolerant and content_type in _TOLERATED):  # §5.2
        raise invalid(FieldFault("Content-Type", "content type"))
    if (body := members_of(content_type, raw)) is None:
        raise invalid(FieldFault("body", "body"))
    if settings.tolerant:
        return canonical(body, fields_of(operation, settings))
    if operation == "prepare" and body.get("responseUrl") is None and "ResponseUrl" in body:
        body["responseUrl"] = body.pop("ResponseUrl")  # §2.3: samples have both
    return body


def canonical(members: Mapping[str, object], fields: Kinds) -> dict[str, Any]:
    """Return the members by the names in `fields`, whatever their letter case, and of those types where possible.

    What is null or unknown is left out; of a name that comes twice the last one counts.
    """
    names = {name.lower(): name for name in fields}
    read: dict[str, Any] = {}
    for spelled, value in members.items():
        name = names.get(spelled.lower())
        if name is not None and value is not None:
            read[name] = _converted(value, fields[name], _NESTED.get(name, {}))
    return read


def _converted(value: object, kind: type, nested: Kinds) -> object:
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
        case dict() if kind is dict:
            return canonical(value, nested)
        case list() if kind is list:
            return [canonical(one, nested) if isinstance(one, dict) else one for one in value]
        case _:
            return value


def check(operation: str, body: Mapping[str, Any], settings: Settings) -> None:
    """Raise RefusalError for a body that breaks a rule, names an unknown store, or is to be refused."""
    if faults := failing_fields(operation, body, settings):
        raise invalid(*faults)
    store, phone, least = body.get("storeId"), body.get("phoneNumber"), settings.least_amount
    if least is not None and body.get("amount", least) < least:
        raise RefusalError(107, 107, values=(f"{least // 100},{least % 100:02}",))
    pattern = settings.phone_pattern
    if pattern and operation == "sale" and phone and not re.fullmatch(pattern, phone):
        raise RefusalError.of(120)
    if settings.stores is not None and store is not None and store not in settings.stores:
        raise RefusalError.of(100)
    for name in ("phoneNumber", "nickName", "storeId", "clientTransactionId"):
        if isinstance(value := body.get(name), str) and value in settings.refuse_with:
            raise RefusalError.of(settings.refuse_with[value])


def failing_fields(operation: str, body: Mapping[str, Any], settings: Settings) -> list[FieldFault]:
    """Return the faults of a body in the order of its fields' importance; none means that it is valid."""
    kinds = fields_of(operation, settings)
    optional = settings.optional_fields - {"phoneNumber"}
    required = [name for name in _REQUIRED.get(operation, kinds) if name not in optional]
    if operation == "sale" and settings.nick_name_flag and body.get(settings.nick_name_flag) is True:
        required.append("nickName")  # §2.2: the request goes to the user name, so there must be one
        if "phoneNumber" in settings.optional_fields:
            required.remove("phoneNumber")
    faults = list(_type_faults(body, kinds, required))
    if operation not in _REQUIRED:
        return faults
    faults += _failing_sum(body)
    failing = {fault.field for fault in faults}
    faults += [fault for fault in _out_of_limits(operation, body, settings) if fault.field not in failing]
    if operation == "prepare":
        faults += [fault for fault in _failing_form(body, settings) if fault.field not in failing]
    return faults


def _type_faults(
    members: Mapping[str, Any], kinds: Kinds, required: Sequence[str] = (), path: str = ""
) -> Iterator[FieldFault]:
    """Yield a fault for each required field that is missing, and for each value of a wrong type."""
    for name in dict.fromkeys((*required, *kinds)):
        value = members.get(name)
        if value is None or (name in required and type(value) is str and not value.strip()):
            if name in required:  # elsewhere null stands for absent
                yield FieldFault(path + name, "required")
        elif type(value) is not kinds[name]:  # not isinstance: True is not an amount of cents
            yield FieldFault(path + name, "type", (_KIND_NAMES[kinds[name]],))
        elif isinstance(value, dict):
            yield from _type_faults(value, _NESTED[name], path=f"{path}{name}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _type_faults(item, _NESTED[name], path=f"{path}{name}[{index}].")
                else:
                    yield FieldFault(f"{path}{name}[{index}]", "type", (_KIND_NAMES[dict],))


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


def _out_of_limits(operation: str, body: Mapping[str, Any], settings: Settings) -> Iterator[FieldFault]:
    for limited, (low, high) in settings.limits.items():
        name = limited.removeprefix(f"{operation}.")
        value = body.get(name)
        if isinstance(value, str) and not low <= len(value) <= high:
            yield FieldFault(name, "length", (low, high))
        elif type(value) is int and not low <= value <= high:
            yield FieldFault(name, "range", (low, high))


def _failing_form(body: Mapping[str, Any], settings: Settings) -> Iterator[FieldFault]:
    for name in ("responseUrl", "cancellationUrl"):
        if type(value := body.get(name)) is str and not _is_address(value):
            yield FieldFault(name, "url")
    if type(phone := body.get("phoneNumber")) is str and not _FULL_PHONE.fullmatch(phone):
        yield FieldFault("phoneNumber", "phone")
    language_field = settings.language_field or ""
    if type(given := body.get(language_field)) is str and given not in {"en", "es"}:
        yield FieldFault(language_field, "language")


def _is_address(text: str) -> bool:
    """Return whether the text is an absolute address, such as one that a browser can be sent to."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if the port is not a number
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname) and text.isprintable() and " " not in text
