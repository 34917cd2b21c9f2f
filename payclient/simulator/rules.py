"""What the service refuses: the field rules of both operations (§2.1 to §2.4).

Only what the document states is checked. Lengths, formats and bounds are not shown, and unknown fields pass.
"""

import re
from collections.abc import Mapping, Set
from typing import Final

from .addresses import is_address
from .refusals import FieldFault

__all__ = [
    "NESTED_FIELDS",
    "PREPARE_FIELDS",
    "SALE_FIELDS",
    "failing_fields",
    "failing_prepare_fields",
    "failing_reference",
    "redirect_field",
]

_REQUIRED: Final[dict[str, type]] = {
    "phoneNumber": str,
    "countryCode": str,
    "amount": int,
    "currency": str,
    "clientTransactionId": str,
}
_COMPONENTS: Final = ("amountWithoutTax", "amountWithTax", "tax", "service", "tip")
_OPTIONAL: Final[dict[str, type]] = {
    **dict.fromkeys(_COMPONENTS, int),
    **dict.fromkeys(("storeId", "reference", "responseUrl"), str),
    "timeZone": int,
    **dict.fromkeys(("lat", "lng", "clientUserId"), str),
    **dict.fromkeys(("optionalParameter1", "optionalParameter2", "optionalParameter3", "nickName"), str),
    "order": dict,
}
_PREPARE_REQUIRED: Final[dict[str, type]] = {
    "amount": int,
    "currency": str,
    "clientTransactionId": str,
    "storeId": str,
}
_PREPARE_OPTIONAL: Final[dict[str, type]] = {
    **dict.fromkeys(_COMPONENTS, int),
    **dict.fromkeys(("reference", "phoneNumber", "email", "documentId"), str),
    **dict.fromkeys(("cancellationUrl", "optionalParameter"), str),
    "order": dict,
    "timeZone": int,
    **dict.fromkeys(("lat", "lng"), str),
}
_REDIRECT_FIELDS: Final = ("responseUrl", "ResponseUrl")  # §2.3: samples have both
_FULL_PHONE: Final = re.compile(r"\+[1-9][0-9]+")
_ORDER: Final[dict[str, type]] = {"billTo": dict, "lineItems": list}
_BILL_TO: Final[dict[str, type]] = {
    "billToId": int,
    **dict.fromkeys(("address1", "address2", "country", "state", "locality", "firstName", "lastName"), str),
    **dict.fromkeys(("phoneNumber", "email", "postalCode", "customerId", "ipAddress"), str),
}
_LINE_ITEM: Final[dict[str, type]] = {
    "productName": str,
    **dict.fromkeys(("unitPrice", "quantity", "totalAmount", "taxAmount"), int),
    **dict.fromkeys(("productSKU", "productDescription"), str),
}
#: Every field of a request by its name, and those of the objects inside.
SALE_FIELDS: Final[Mapping[str, type]] = {**_REQUIRED, **_OPTIONAL}
PREPARE_FIELDS: Final[Mapping[str, type]] = {
    **_PREPARE_REQUIRED,
    **_PREPARE_OPTIONAL,
    _REDIRECT_FIELDS[0]: str,
}
NESTED_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "order": _ORDER,
    "billTo": _BILL_TO,
    "lineItems": _LINE_ITEM,
}
_KINDS: Final[dict[type, str]] = {
    str: "una cadena",
    int: "un número entero",
    bool: "un booleano",
    dict: "un objeto",
    list: "una lista",
}


def failing_fields(
    body: Mapping[str, object],
    *,
    nick_name_flag: str | None = None,
    phone_optional_by_nick_name: bool = False,
    may_lack: Set[str] = frozenset(),
) -> list[FieldFault]:
    """The faults of a Sale's body; none means that it is valid. `may_lack` names fields that §2.2 requires."""
    required, optional = _REQUIRED, _OPTIONAL
    if nick_name_flag is not None:
        optional = {**optional, nick_name_flag: bool}
        if body.get(nick_name_flag) is True:
            # §2.2: the request goes to the user name, so there must be one.
            required = {**required, "nickName": str}
            if phone_optional_by_nick_name:
                del required["phoneNumber"]
                optional = {**optional, "phoneNumber": str}

    return _faults(body, required, {k: v for k, v in optional.items() if k not in required}, may_lack)


def failing_prepare_fields(
    body: Mapping[str, object], *, language_field: str | None = None, may_lack: Set[str] = frozenset()
) -> list[FieldFault]:
    """The faults of a Button/Prepare's body (§2.3); none means that it is valid. `may_lack` as above."""
    redirect = redirect_field(body)
    optional = _PREPARE_OPTIONAL if language_field is None else {**_PREPARE_OPTIONAL, language_field: str}
    faults = _faults(body, {**_PREPARE_REQUIRED, redirect: str}, optional, may_lack)
    failing = {fault.field for fault in faults}
    for name in (redirect, "cancellationUrl"):
        value = body.get(name)
        if name not in failing and type(value) is str and not is_address(value):
            faults.append(FieldFault(name, f"El campo {name} debe ser una URL"))
    phone = body.get("phoneNumber")
    if type(phone) is str and not _FULL_PHONE.fullmatch(phone):
        faults.append(FieldFault("phoneNumber", "El campo phoneNumber debe ser +, código de país y número"))
    if language_field is not None:
        language = body.get(language_field)
        if type(language) is str and language not in {"en", "es"}:
            faults.append(FieldFault(language_field, f"El campo {language_field} debe ser en o es"))
    return faults


def redirect_field(body: Mapping[str, object]) -> str:
    """The spelling in which a Button/Prepare's body has its redirect field, or the first if it has none."""
    return next((name for name in _REDIRECT_FIELDS if body.get(name) is not None), _REDIRECT_FIELDS[0])


def failing_reference(body: Mapping[str, object], required: Mapping[str, type]) -> list[FieldFault]:
    """The faults of a body that only says which transaction is meant."""
    faults: list[FieldFault] = []
    _check_required(body, required, frozenset(), faults)
    return faults


def _faults(
    body: Mapping[str, object],
    required: Mapping[str, type],
    optional: Mapping[str, type],
    may_lack: Set[str],
) -> list[FieldFault]:
    faults: list[FieldFault] = []
    _check_required(body, required, may_lack, faults)
    _check_kinds(body, optional, "", faults)
    _check_sum(body, faults)
    order = body.get("order")
    if type(order) is dict:
        _check_order(order, faults)
    return faults


def _check_required(
    body: Mapping[str, object], required: Mapping[str, type], may_lack: Set[str], faults: list[FieldFault]
) -> None:
    for field, kind in required.items():
        value = body.get(field)
        if value is None or (type(value) is str and not value.strip()):
            if field not in may_lack:
                faults.append(FieldFault(field, f"El campo {field} es obligatorio"))
        elif type(value) is not kind:
            faults.append(_wrong_kind(field, kind))


def _check_kinds(
    members: Mapping[str, object], kinds: Mapping[str, type], path: str, faults: list[FieldFault]
) -> None:
    for name, kind in kinds.items():
        value = members.get(name)
        # `type() is`, because True is an int to isinstance and no amount of cents. null stands for absent.
        if value is not None and type(value) is not kind:
            faults.append(_wrong_kind(path + name, kind))


def _check_sum(body: Mapping[str, object], faults: list[FieldFault]) -> None:
    amount = body.get("amount")
    parts = {name: body[name] for name in _COMPONENTS if body.get(name) is not None}
    cents = [value for value in parts.values() if type(value) is int]
    if type(amount) is not int or len(cents) != len(parts):
        return  # already named as failing; a sum with them would say nothing
    if not parts:
        faults.append(FieldFault("Amount", "El monto necesita al menos un componente"))  # §2.1.2
    elif sum(cents) != amount:
        faults.append(
            FieldFault("Amount", "El monto no es igual a la suma de sus componentes")
        )  # §2.1.1, §7.6
    if parts.get("amountWithoutTax") and parts.get("amountWithTax") and "tax" not in parts:
        faults.append(FieldFault("tax", "Un cobro mixto necesita el campo tax"))  # §2.1.4


def _check_order(order: Mapping[str, object], faults: list[FieldFault]) -> None:
    _check_kinds(order, _ORDER, "order.", faults)
    bill_to, line_items = order.get("billTo"), order.get("lineItems")
    if type(bill_to) is dict:
        _check_kinds(bill_to, _BILL_TO, "order.billTo.", faults)
    if type(line_items) is list:
        for index, item in enumerate(line_items):
            if type(item) is dict:
                _check_kinds(item, _LINE_ITEM, f"order.lineItems[{index}].", faults)
            else:
                faults.append(_wrong_kind(f"order.lineItems[{index}]", dict))


def _wrong_kind(field: str, kind: type) -> FieldFault:
    return FieldFault(field, f"El campo {field} debe ser {_KINDS[kind]}")
