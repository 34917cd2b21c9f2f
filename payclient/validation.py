"""The rules of values for any service: as far as the document goes, and what no service could take.

A model declares each field with its rule. Two checks are made of the rules: a quick one, written as one expression when
the class is made, and `_find_faults`, which is exact and runs only where the quick one doubts.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Set
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeGuard
from urllib.parse import SplitResult, urlsplit

import attrs
import orjson

from payclient.amounts import MAX_CENTS
from payclient.errors import ConfigurationError, ErrorDetail, InvalidRequestError

#: Characters of the longest text that any profile takes: no field of the document needs more.
MAX_TEXT = 4096

#: Characters that are kept of a text that others wrote.
_TEXT = 500

#: Ids that drop out of an address.
DOTS = frozenset({".", ".."})

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
#: Printable for Python, and shown by nothing: Unicode's Default_Ignorable_Code_Point.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{1,20})?")


# --- The one rule between our spelling and the service's: `product_sku` is `productSKU`

#: Words that the service writes in capitals (§2.4).
CAPITALS = frozenset({"sku"})

_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*")


@cache
def to_service(name: str) -> str:
    """Spell a field as the service does: `amount_with_tax` is `amountWithTax`."""
    first, *rest = name.split("_")
    return first + "".join(word.upper() if word in CAPITALS else word.capitalize() for word in rest)


@cache
def from_service(name: str) -> str:
    """Spell a field as our models do: `productSKU` is `product_sku`."""
    return _HUMP.sub(lambda hump: "_" + hump[0].lower(), name).lstrip("_")


def service_names(model: type[Any], names: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the service's name of each field of a model; `names` has those that follow no rule."""
    return {field.name: names.get(field.name, to_service(field.name)) for field in attrs.fields(model)}


def field_fault(name: str, *descriptions: str) -> ErrorDetail:
    """Make an entry about one of our fields, in the shape of the service's code 800 (§7.5, §7.6)."""
    return ErrorDetail("Amount" if name == "amount" else to_service(name), 0, descriptions)


# --- Texts and addresses


def text_fault(value: str) -> str | None:
    """Return what no service could take in a text, or None."""
    if len(value) > MAX_TEXT:
        return f"must be at most {MAX_TEXT:,} characters"
    if _CONTROL.search(value):
        return "must have no control characters or lone surrogates"
    return None


def id_fault(value: str) -> str | None:
    """Return why an id or a key could be taken for another one that looks the same, or None."""
    if value in DOTS:
        return "must not be . or .., which drop out of an address"
    if invisible := next((c for c in value if not c.isprintable() or _IGNORABLE.match(c)), None):
        return f"must have visible characters only, and has U+{ord(invisible):04X}"
    if not unicodedata.is_normalized("NFC", value):
        return "must be in Unicode's normal form NFC"
    return None


def blank_fault(value: str) -> str | None:
    """Return why a text could be taken for one without the blanks at its ends, or None."""
    return None if value == value.strip() else "must not begin or end with a blank"


def escape_text(text: str) -> str:
    """Return the text with what is not printable escaped, so that every database and terminal takes it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def sanitize_text(text: str) -> str:
    """Return at most 500 characters of a text that others wrote, escaped."""
    return escape_text(text[:_TEXT])[:_TEXT]


def is_safe_link(link: str, hosts: Set[str] | None) -> bool:
    """Return whether a form link may be handed out: https (http for loopback), no tricks, one of the hosts if given."""
    if not link.isascii() or not link.isprintable() or " " in link or "\\" in link:
        return False
    parts = parse_address(link)
    if parts is None or "@" in parts.netloc or not is_secure(parts):
        return False
    return hosts is None or parts.hostname in {host.lower() for host in hosts}


def parse_address(address: str) -> SplitResult | None:
    """Return the parts of an address that has a host, or None."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is not a number
    except ValueError:
        return None
    return parts if parts.hostname else None


def is_secure(parts: SplitResult) -> bool:
    """Return whether nobody between reads what is sent to an address: https, or http for loopback."""
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


#: Parts of the names of fields that hold a person's data, in any letter case and with any marks between.
_PERSONAL = re.compile(
    "name|nombre|apellido|phone|telefon|msisdn|mobile|movil|celular|mail|correo|document|identifica|cedula|passport"
    "|pasaporte|holder|titular|owner|user|customer|payer|address|direccion|birth|cardnumber|numero(de)?tarjeta|firstdigits"
    "|firstsix|cvv|cvc|optionalparameter|^bin|bin$|^pan$|^(tel|dni|ruc|rut|nit|nif|cpf|curp|ssn|taxid)$"
)


def is_personal(field: str) -> bool:
    """Return whether a field of an answer may hold a person's data, by its name: a ledger never keeps such a field."""
    return _PERSONAL.search(re.sub("[^a-z]", "", unicodedata.normalize("NFKD", field).lower())) is not None


def is_positive(value: object) -> TypeGuard[float]:
    """Return whether a setting is a positive, finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- Rules


@attrs.frozen
class Rule:
    """The rule for the value of one field. None passes unless `required`."""

    kind: type
    wanted: str
    #: Each returns what is wrong with a value of the kind, or None.
    checks: tuple[Callable[[Any], str | None], ...] = ()
    #: An expression over a value `{0}` of the kind and the object `{1}`; true only for what all checks pass. The
    #: characters of texts are looked at together.
    quick: str = ""
    object: Any = None
    required: bool = False
    #: A code, of which a merchant uses few (currencies, countries, stores, places): each of them is checked only once.
    is_code: bool = False
    #: The method that gives the value where it is left out.
    computed: str = ""

    def condition(self, name: str) -> str:
        """Return the quick check of a field as an expression over `name`, `name_kind` and `name_object`."""
        quick = f"type({name}) is {name}_kind"
        if self.quick and not self.is_code:
            quick += f" and {self.quick.format(name, f'{name}_object')}"
        return f"({quick})" if self.required else f"({name} is None or {quick})"

    def faults(self, value: Any) -> list[str]:
        """Return everything that is wrong with a value."""
        if value is None:
            return ["must be given"] if self.required else []
        exact = self.kind in (int, bool)  # Python's `True` is an int, and no merchant's is
        if type(value) is not self.kind if exact else not isinstance(value, self.kind):
            return [f"must be {self.wanted}; {type(value).__name__} was given"]
        return [fault for check in self.checks if (fault := check(value)) is not None]


#: The words for what an amount must be.
CENTS = 'an int of cents, such as 1050 (to_cents("10.50") converts)'

#: The metadata of an attrs field: its rule.
Declared = Mapping[str, Rule]


def _unless(good: Callable[[Any], object], fault: str) -> Callable[[Any], str | None]:
    return lambda value: None if good(value) else fault


_not_blank = _unless(str.strip, "must not be empty")


def text(*checks: Callable[[str], str | None], required: bool = False, **more: Any) -> Declared:
    """Declare a text of at most 4,096 characters, without control characters; not blank where required.

    `more` are attributes of its `Rule`.
    """
    checks = (text_fault, *([_not_blank] if required else []), *checks)
    return {"rule": Rule(str, "a text", checks, required=required, **more)}


def store(*, required: bool = False) -> Declared:
    """Declare the id of a branch, a text without blanks at its ends."""
    return text(blank_fault, required=required, is_code=True)


def url(*, required: bool = False) -> Declared:
    """Declare an http or https address, with a host."""
    check = _unless(re.compile("(?i)https?://[^/?#]").match, "must be an http(s) address")
    return text(check, quick='{0}[:8] == "https://" and {0}[8:9].isalnum()', required=required)


def _form(expression: str, fault: str, **more: Any) -> Declared:
    """Declare a text of a form, given as a regular expression."""
    match = re.compile(expression).fullmatch
    return text(_unless(match, fault), quick="{1}({0})", object=match, **more)


def degrees(limit: int) -> Declared:
    """Declare a decimal text from -limit to limit."""
    check = _unless(
        lambda value: _DECIMAL.fullmatch(value) and abs(float(value)) <= limit,
        f"must be a decimal text from -{limit} to {limit}",
    )
    return text(check, is_code=True)


def cents(*, part: bool = False, computed: str = "") -> Declared:
    """Declare an amount from 0 to 10**18 cents (§1); a part of another amount is bounded by it (§2.1)."""
    check = _unless(lambda value: 0 <= value <= MAX_CENTS, f"must be 0 to {MAX_CENTS} cents")
    quick = "{0} >= 0" if part else "0 <= {0} <= MAX_CENTS"
    return {"rule": Rule(int, CENTS, (check,), quick, computed=computed)}


def instance(kind: type) -> Declared:
    """Declare an object of a class."""
    return {"rule": Rule(kind, kind.__name__)}


def tuple_of(kind: type) -> Declared:
    """Declare a tuple of objects of a class."""
    check = _unless(
        lambda values: all(type(value) is kind for value in values), f"must be {kind.__name__} objects"
    )
    return {"rule": Rule(tuple, "a tuple", (check,), "set(map(type, {0})) <= {{{1}}}", kind, required=True)}


_digits = re.compile(r"\+?[0-9][0-9 -]*").fullmatch
_are_digits = _unless(
    lambda value: not value.strip() or _digits(value), "must be digits, such as 0984111222 or +593984111222"
)
_is_counted = _unless(lambda value: abs(value) <= MAX_CENTS, "must be -10**18 to 10**18")

#: An id that is required, and that no other text looks like.
UNMISTAKABLE_ID: Declared = text(
    blank_fault,
    lambda value: None if text_fault(value) else id_fault(value),
    quick="{0} and {0} == {0}.strip() and ({0}.isascii() and {0} not in DOTS or id_fault({0}) is None)",
    required=True,
)
#: A currency code, required (ISO 4217).
CURRENCY: Declared = _form(
    "[A-Z]{3}", "must be three capital letters (ISO 4217)", required=True, is_code=True
)
#: A country calling code, required (E.164).
CALLING_CODE: Declared = _form(
    r"\+?[0-9]{1,4}", "must be a country calling code, such as 593 (E.164)", required=True, is_code=True
)
#: A country code (ISO 3166-1).
COUNTRY: Declared = _form("[A-Z]{2}", "must be two capital letters (ISO 3166-1)")
#: A phone number with `+` and its country code (§2.3, §2.4).
PHONE: Declared = _form(r"\+[1-9][0-9]{5,14}", "must be + country code and number, such as +593991112223")
#: The phone number of a wallet user (§2.2): digits, perhaps after a `+`, and parted by blanks or dashes.
WALLET_PHONE: Declared = text(
    _are_digits, quick="({0}.isdigit() and {0}.isascii() or {1}({0}))", object=_digits
)
#: The language of a form (§2.3).
LANGUAGE: Declared = _form("es|en", "must be 'es' or 'en'")
#: A whole number from -10**18 to 10**18.
INTEGER: Declared = {"rule": Rule(int, "an int", (_is_counted,), "-MAX_CENTS <= {0} <= MAX_CENTS")}
#: True or False.
FLAG: Declared = {"rule": Rule(bool, "True or False", quick="{0} is False", required=True)}


# --- The two checks


def rules_of(model: type[Any]) -> dict[str, Rule]:
    """Return the rule of each field, by the field's name."""
    return {field.name: field.metadata["rule"] for field in attrs.fields(model)}


def _are_printable(*texts: str | None) -> bool:
    """Return whether texts are short and have no control character. orjson, which escapes most of those, is quick."""
    try:
        written = orjson.dumps(texts)
    except orjson.JSONEncodeError:
        return False  # a lone surrogate
    if len(written) > MAX_TEXT:
        return False
    # orjson escapes quotes too, and leaves U+007F, and U+0080 to U+009F, whose first byte is C2.
    if 0x5C in written or 0x7F in written or 0xC2 in written:
        return "".join(filter(None, texts)).isprintable()
    return True


def compile_check(model: type[CheckedModel]) -> Callable[[Any], None]:
    """Write the quick check of a model as one expression; whatever fails it goes to the exact check.

    The quick check is in every charge's way: a validator for each field costs three times as much.
    """
    rules = rules_of(model)
    codes = [name for name, rule in rules.items() if rule.is_code]
    texts = [name for name, rule in rules.items() if rule.kind is str and not rule.is_code]

    @lru_cache(maxsize=256)
    def has_valid_codes(*values: str | None) -> bool:
        return not any(rules[name].faults(value) for name, value in zip(codes, values, strict=True))

    conditions = [rule.condition(name) for name, rule in rules.items()]
    if texts:
        conditions.append(f"are_printable({', '.join(texts)})")
    if codes:
        conditions.append(f"has_valid_codes({', '.join(codes)})")
    source = [
        "def __attrs_post_init__(self):",
        *(f" {name} = self.{name}" for name in rules),
        *(
            f" if {name} is None:\n  {name} = self.{rule.computed}()\n  object.__setattr__(self, '{name}', {name})"
            for name, rule in rules.items()
            if rule.computed
        ),
        f" if not ({' and '.join([*conditions, model.agreement])}):",
        "  self._check()",
    ]
    scope: dict[str, Any] = {"MAX_CENTS": MAX_CENTS, "DOTS": DOTS, "id_fault": id_fault}
    scope |= {"are_printable": _are_printable, "has_valid_codes": has_valid_codes}
    for name, rule in rules.items():
        scope |= {f"{name}_kind": rule.kind, f"{name}_object": rule.object}
    exec("\n".join(source), scope)  # noqa: S102 - of our own text only, as attrs writes `__init__`
    return scope["__attrs_post_init__"]  # type: ignore[no-any-return]  # just made


class CheckedModel:
    """A model that checks its fields when it is made. Raises `InvalidRequestError` with every fault at once."""

    __slots__ = ()

    #: An expression over the fields, true only if they agree with each other.
    agreement: ClassVar[str] = "True"

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        cls.__attrs_post_init__ = compile_check(cls)  # type: ignore[method-assign, assignment]  # of its own rules

    def __attrs_post_init__(self) -> None:
        self._check()

    def _find_faults(self) -> dict[str, list[str]]:
        """Return everything that is wrong, by the field's name."""
        found = {name: rule.faults(getattr(self, name)) for name, rule in rules_of(type(self)).items()}
        return {name: faults for name, faults in found.items() if faults}

    def _check(self) -> None:
        """Raise for all faults at once, or make texts plain. No local variable has a value: error trackers show it."""
        if faults := self._find_faults():
            errors = [field_fault(name, *descriptions) for name, descriptions in faults.items()]
            identifier = getattr(self, "client_transaction_id", None)
            raise InvalidRequestError(errors=errors, client_transaction_id=loggable_id(identifier))
        self._keep_plain_texts()

    def _keep_plain_texts(self) -> None:
        """Replace texts of other classes: a member of an enum is sent as its value, and may format as its name."""
        for name, rule in rules_of(type(self)).items():
            if rule.kind is str and isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, str.__str__(value))


# --- Files and arguments


def file_fault(path: str | os.PathLike[str]) -> str | None:
    """Return why a path is not to be read, or None: reading a pipe or a device might never end."""
    if not os.path.exists(path) or os.path.isfile(path):
        return None
    return "must be a regular file, not a directory, a pipe or a device"


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return what a file holds. Raises `OSError`, whose `strerror` says why, also for what is not a regular file."""
    if fault := file_fault(path):
        raise OSError(errno.EINVAL, fault)
    return Path(path).read_bytes()


def check_type(name: str, value: object, kind: Any) -> None:
    """Raise `TypeError` where an argument is of another type or union, which no type checker has seen."""
    if not isinstance(value, kind):
        wanted = kind.__name__ if isinstance(kind, type) else kind
        raise TypeError(f"{name} must be a {wanted}; {type(value).__name__} was given")


def check_setting(name: str, value: object, kind: Any, wanted: str) -> None:
    """Raise `ConfigurationError` where a setting that may be left out is of another type."""
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name} must be {wanted}; {type(value).__name__} was given")


def check_method(name: str, value: object, method: str, wanted: str) -> None:
    """Raise `ConfigurationError` where a setting that may be left out has no such method."""
    if value is not None and not callable(getattr(value, method, None)):
        raise ConfigurationError(f"{name} must be {wanted}; {type(value).__name__} was given")


def loggable_id(value: object) -> str | None:
    """Return an id that may stand in an error, or None for what is not an id."""
    return value if isinstance(value, str) and len(value) <= 200 and not text_fault(value) else None
