"""What the service refuses: the field rules of both operations (§2.1 to §2.4) and the error object (§7).

Only what the document states is checked. Lengths, formats and bounds are not shown, and unknown fields pass.
"""

import re
from collections.abc import Iterable, Mapping, Set
from typing import Final

from attrs import frozen

from .addresses import is_address

__all__ = [
    "NESTED_FIELDS",
    "PREPARE_FIELDS",
    "SALE_FIELDS",
    "Fault",
    "Refusal",
    "failing_fields",
    "failing_prepare_fields",
    "failing_reference",
    "redirect_field",
    "validation_refusal",
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
    "storeId": str,
    "reference": str,
    "responseUrl": str,
    "timeZone": int,
    "lat": str,
    "lng": str,
    "clientUserId": str,
    "optionalParameter1": str,
    "optionalParameter2": str,
    "optionalParameter3": str,
    "nickName": str,
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
    "reference": str,
    "phoneNumber": str,
    "email": str,
    "documentId": str,
    "cancellationUrl": str,
    "optionalParameter": str,
    "order": dict,
    "timeZone": int,
    "lat": str,
    "lng": str,
}
_REDIRECT_FIELDS: Final = ("responseUrl", "ResponseUrl")  # §2.3: samples have both
_FULL_PHONE: Final = re.compile(r"\+[1-9][0-9]+")
_ORDER: Final[dict[str, type]] = {"billTo": dict, "lineItems": list}
_BILL_TO: Final[dict[str, type]] = {
    "billToId": int,
    "address1": str,
    "address2": str,
    "country": str,
    "state": str,
    "locality": str,
    "firstName": str,
    "lastName": str,
    "phoneNumber": str,
    "email": str,
    "postalCode": str,
    "customerId": str,
    "ipAddress": str,
}
_LINE_ITEM: Final[dict[str, type]] = {
    "productName": str,
    "unitPrice": int,
    "quantity": int,
    "totalAmount": int,
    "taxAmount": int,
    "productSKU": str,
    "productDescription": str,
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


@frozen
class Fault:
    """One failing field and what is wrong with it."""

    field: str
    description: str


@frozen
class Refusal:
    """The service's error object (§7)."""

    error_code: int
    message: str
    errors: tuple[dict[str, object], ...] = ()

    def as_json(self, *, without_empty: bool = False) -> dict[str, object]:
        """The object of §7; `without_empty` leaves `errors` out where there are none."""
        error: dict[str, object] = {"message": self.message, "errorCode": self.error_code}
        return error if without_empty and not self.errors else {**error, "errors": self.errors}


def validation_refusal(faults: Iterable[Fault]) -> Refusal:
    """Code 800 with one entry per failing field (§7.4, §7.5).

    The document shows it for Button/Prepare; a Sale that breaks the same rules (§2.1) is answered alike.
    """
    descriptions: dict[str, list[str]] = {}
    for fault in faults:
        descriptions.setdefault(fault.field, []).append(fault.description)
    entries = tuple(
        {"message": field, "errorCode": 0, "errorDescriptions": texts}
        for field, texts in descriptions.items()
    )
    return Refusal(800, "Las validaciones han fallado", entries)


def failing_fields(
    body: Mapping[str, object],
    *,
    nick_name_flag: str | None = None,
    phone_optional_by_nick_name: bool = False,
    may_lack: Set[str] = frozenset(),
) -> list[Fault]:
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
) -> list[Fault]:
    """The faults of a Button/Prepare's body (§2.3); none means that it is valid. `may_lack` as above."""
    redirect = redirect_field(body)
    optional = _PREPARE_OPTIONAL if language_field is None else {**_PREPARE_OPTIONAL, language_field: str}
    faults = _faults(body, {**_PREPARE_REQUIRED, redirect: str}, optional, may_lack)
    failing = {fault.field for fault in faults}
    for name in (redirect, "cancellationUrl"):
        value = body.get(name)
        if name not in failing and type(value) is str and not is_address(value):
            faults.append(Fault(name, f"El campo {name} debe ser una URL"))
    phone = body.get("phoneNumber")
    if type(phone) is str and not _FULL_PHONE.fullmatch(phone):
        faults.append(Fault("phoneNumber", "El campo phoneNumber debe ser +, código de país y número"))
    if language_field is not None:
        language = body.get(language_field)
        if type(language) is str and language not in {"en", "es"}:
            faults.append(Fault(language_field, f"El campo {language_field} debe ser en o es"))
    return faults


def redirect_field(body: Mapping[str, object]) -> str:
    """The spelling in which a Button/Prepare's body has its redirect field, or the first if it has none."""
    return next((name for name in _REDIRECT_FIELDS if body.get(name) is not None), _REDIRECT_FIELDS[0])


def failing_reference(body: Mapping[str, object], required: Mapping[str, type]) -> list[Fault]:
    """The faults of a body that only says which transaction is meant."""
    faults: list[Fault] = []
    _check_required(body, required, frozenset(), faults)
    return faults


def _faults(
    body: Mapping[str, object],
    required: Mapping[str, type],
    optional: Mapping[str, type],
    may_lack: Set[str],
) -> list[Fault]:
    faults: list[Fault] = []
    _check_required(body, required, may_lack, faults)
    _check_kinds(body, optional, "", faults)
    _check_sum(body, faults)
    order = body.get("order")
    if type(order) is dict:
        _check_order(order, faults)
    return faults


def _check_required(
    body: Mapping[str, object], required: Mapping[str, type], may_lack: Set[str], faults: list[Fault]
) -> None:
    for field, kind in required.items():
        value = body.get(field)
        if value is None or (type(value) is str and not value.strip()):
            if field not in may_lack:
                faults.append(Fault(field, f"El campo {field} es obligatorio"))
        elif type(value) is not kind:
            faults.append(_wrong_kind(field, kind))


def _check_kinds(
    members: Mapping[str, object], kinds: Mapping[str, type], path: str, faults: list[Fault]
) -> None:
    for name, kind in kinds.items():
        value = members.get(name)
        # `type() is`, because True is an int to isinstance and no amount of cents. null stands for absent.
        if value is not None and type(value) is not kind:
            faults.append(_wrong_kind(path + name, kind))


def _check_sum(body: Mapping[str, object], faults: list[Fault]) -> None:
    amount = body.get("amount")
    parts = {name: body[name] for name in _COMPONENTS if body.get(name) is not None}
    cents = [value for value in parts.values() if type(value) is int]
    if type(amount) is not int or len(cents) != len(parts):
        return  # already named as failing; a sum with them would say nothing
    if not parts:
        faults.append(Fault("Amount", "El monto necesita al menos un componente"))  # §2.1.2
    elif sum(cents) != amount:
        faults.append(Fault("Amount", "El monto no es igual a la suma de sus componentes"))  # §2.1.1, §7.6
    if parts.get("amountWithoutTax") and parts.get("amountWithTax") and "tax" not in parts:
        faults.append(Fault("tax", "Un cobro mixto necesita el campo tax"))  # §2.1.4


def _check_order(order: Mapping[str, object], faults: list[Fault]) -> None:
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


def _wrong_kind(field: str, kind: type) -> Fault:
    return Fault(field, f"El campo {field} debe ser {_KINDS[kind]}")
