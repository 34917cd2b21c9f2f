"""The one rule between our spelling and the service's: `product_sku` is `productSKU`."""

from __future__ import annotations

import re
from functools import cache

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
