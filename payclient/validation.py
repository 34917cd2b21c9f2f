"""What a value must be, whoever the service is: as far as the document goes, and what no service could take.

Each model has one fused test, quick and coarse; only where that doubts are the faults gathered here, exactly.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from functools import cache, lru_cache
from types import NoneType
from typing import Any
from urllib.parse import urlsplit

from payclient.amounts import COMPONENTS, MAX_CENTS, sum_fault
from payclient.errors import ErrorDetail, InvalidRequestError

__all__: list[str] = []

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


def is_safe_link(link: str, hosts: frozenset[str] | None) -> bool:
    """Whether a form link may be handed out: https (http for loopback), no tricks, one of the hosts where given."""
    if not link.isascii() or not link.isprintable() or " " in link or "\\" in link:
        return False
    try:
        parts = urlsplit(link)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or (hosts is not None and host not in hosts):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


#: Longer text is refused, whatever the profile: no field of the document needs it.
MAX_TEXT = 4096

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
#: Printable for Python, and shown by nothing: Unicode's Default_Ignorable_Code_Point.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
#: Ids that an address takes for a place.
DOTS = frozenset({".", ".."})
CURRENCY = re.compile(r"[A-Z]{3}")
COUNTRY = re.compile(r"[A-Z]{2}")
CALLING_CODE = re.compile(r"\+?[0-9]{1,4}")
FULL_PHONE = re.compile(r"\+[1-9][0-9]{5,14}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{1,20})?")
INTS = frozenset({int, NoneType})
TEXTS = frozenset({str, NoneType})


class Faults:
    """Gathers every fault of one object, in the shape of the service's code 800 (§7.5)."""

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.found: dict[str, list[str]] = {}

    def add(self, name: str, description: str) -> None:
        """Note one fault of a field."""
        self.found.setdefault(
            name[:1].upper() + name[1:] if name == "amount" else to_service(name), []
        ).append(description)

    def text(self, *names: str, required: bool = False) -> None:
        """Texts that a service could take; `required` ones are there and not blank."""
        for name in names:
            value = getattr(self.subject, name)
            if value is None:
                if required:
                    self.add(name, "is required")
            elif not isinstance(value, str):
                self.add(name, f"is a text, not {type(value).__name__}")
            elif fault := text_fault(value):
                self.add(name, fault)
            elif required and not value.strip():
                self.add(name, "is empty")

    def pattern(self, name: str, pattern: re.Pattern[str], description: str) -> None:
        """A text of this form."""
        value = getattr(self.subject, name)
        if isinstance(value, str) and not pattern.fullmatch(value):
            self.add(name, description)

    def identifier(self, name: str) -> None:
        """An id without blanks at its ends."""
        value = getattr(self.subject, name)
        if isinstance(value, str) and value != value.strip():
            self.add(name, "has blanks at its ends")

    def unmistakable(self, name: str) -> None:
        """An id that no other text looks like."""
        value = getattr(self.subject, name)
        if isinstance(value, str) and not text_fault(value) and (fault := id_fault(value)):
            self.add(name, fault)

    def cents(self, *names: str) -> None:
        """Amounts in cents."""
        for name in names:
            value = getattr(self.subject, name)
            if value is None:
                continue
            if type(value) is not int:
                self.add(name, f"is an int of cents, not {type(value).__name__}")
            elif not 0 <= value <= MAX_CENTS:
                self.add(name, f"is 0 to {MAX_CENTS} cents")

    def integer(self, *names: str) -> None:
        """Whole numbers."""
        for name in names:
            value = getattr(self.subject, name)
            if value is not None and (type(value) is not int or abs(value) > MAX_CENTS):
                self.add(name, "is an int" if type(value) is not int else "is out of range")

    def degrees(self, name: str, limit: int) -> None:
        """A decimal text within a limit."""
        value = getattr(self.subject, name)
        if isinstance(value, str) and not in_degrees(value, limit):
            self.add(name, f"is a decimal text from -{limit} to {limit}")

    def url(self, *names: str) -> None:
        """Addresses."""
        for name in names:
            value = getattr(self.subject, name)
            if isinstance(value, str) and not value.lower().startswith(("https://", "http://")):
                self.add(name, "is an http(s) address")

    def instance(self, name: str, kind: type) -> None:
        """An object of this class."""
        value = getattr(self.subject, name)
        if value is not None and not isinstance(value, kind):
            self.add(name, f"is {kind.__name__}, not {type(value).__name__}")

    def amounts(self) -> None:
        """The amount rules (§2.1)."""
        self.cents("amount", *COMPONENTS)
        if self.found:
            return
        subject = self.subject
        if fault := sum_fault(subject.amount, [getattr(subject, name) for name in COMPONENTS]):
            self.add("amount", fault)
        both = subject.amount_with_tax is not None and subject.amount_without_tax is not None
        if both and subject.tax is None:
            self.add("tax", "is required beside amountWithTax and amountWithoutTax")

    def report(self, client_transaction_id: object = None) -> None:
        """Raise `InvalidRequestError` with everything that was found."""
        if self.found:
            raise InvalidRequestError(
                errors=[ErrorDetail(name, 0, tuple(texts)) for name, texts in self.found.items()],
                client_transaction_id=loggable_id(client_transaction_id),
            )


def text_fault(value: str) -> str | None:
    """Say what no service could take in a text, or None."""
    if len(value) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    if _CONTROL.search(value):
        return "has control characters or lone surrogates"
    return None


def id_fault(value: str) -> str | None:
    """Return why an id or a key could be taken for another one, or None: two that look the same are one."""
    if value in DOTS:
        return "must not be . or .., which drop out of an address"
    if invisible := next((c for c in value if not c.isprintable() or _IGNORABLE.match(c)), None):
        return f"must have visible characters only, and has U+{ord(invisible):04X}"
    if not unicodedata.is_normalized("NFC", value):
        return "must be in Unicode's normal form NFC"
    return None


def loggable_id(value: object) -> str | None:
    """Only a sane id goes into an error."""
    return value if isinstance(value, str) and len(value) <= 200 and not text_fault(value) else None


def in_degrees(value: str, limit: int) -> bool:
    """Whether a decimal text is within the limit on both sides."""
    return _DECIMAL.fullmatch(value) is not None and abs(float(value)) <= limit


@lru_cache(maxsize=256)
def fits(country_code: str | None, currency: str | None, lat: str | None, lng: str | None) -> bool:
    """A merchant charges in few countries, currencies and places, so their patterns are matched once each."""
    return (
        country_code is not None
        and currency is not None
        and CALLING_CODE.fullmatch(country_code) is not None
        and CURRENCY.fullmatch(currency) is not None
        and (lat is None or in_degrees(lat, 90))
        and (lng is None or in_degrees(lng, 180))
    )
