"""Money is an `int` of cents (§1, §2.1): conversion, tax, and the sum rule, without ever losing a cent."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # loaded with the first conversion: a charge itself has no fractions
    from fractions import Fraction

__all__ = ["TaxSplit", "split_tax", "to_cents"]

#: More cents than any service could take, and few enough for a 64-bit integer.
MAX_CENTS = 10**18

#: Longer numbers and larger exponents are refused before they are computed with.
MAX_DIGITS = 100

#: The five parts that make up `amount` (§2.1.1).
COMPONENTS = ("amount_without_tax", "amount_with_tax", "tax", "service", "tip")


class TaxSplit(NamedTuple):
    """The two parts of a taxed total, in cents; they add up to it exactly."""

    amount_with_tax: int
    tax: int


def _exact(value: Decimal | str | int, what: str) -> Fraction:
    from fractions import Fraction

    if isinstance(value, bool) or not isinstance(value, (Decimal, str, int)):
        raise TypeError(f"{what} must be a Decimal, a text or an int; {type(value).__name__} was given")
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, str) and (not value.isascii() or "_" in value or len(value) > MAX_DIGITS):
        raise ValueError(f"{what} must be a plain decimal number, such as 10.50")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(f"{what} must be a plain decimal number, such as 10.50") from None
    if not number.is_finite():
        raise ValueError(f"{what} must be finite")
    _, digits, exponent = number.as_tuple()
    if len(digits) > MAX_DIGITS or abs(int(exponent)) > MAX_DIGITS:
        raise ValueError(f"{what} must have at most {MAX_DIGITS} digits")
    return Fraction(number)  # exact, whatever the decimal context


def to_cents(value: Decimal | str | int) -> int:
    """Convert currency units to cents: `to_cents("10.50") == 1050` (§1: the value is multiplied by 100).

    A fraction of a cent, a negative or a non-finite number is a `ValueError`; a `float` or `bool` is a
    `TypeError`, since `0.1 + 0.2` is not an amount of money.
    """
    cents = _exact(value, "an amount") * 100
    if not 0 <= cents <= MAX_CENTS:
        raise ValueError(f"an amount must be 0 to {MAX_CENTS} cents")
    if cents.denominator != 1:
        raise ValueError("an amount must be whole cents, without a fraction of one")
    return cents.numerator


def split_tax(total: int, rate: Decimal | str | int) -> TaxSplit:
    """Split a total in cents that includes tax at `rate` percent; half a cent of tax rounds up.

    `split_tax(1150, "15") == TaxSplit(amount_with_tax=1000, tax=150)`. The rate is 0 to 1,000 percent.
    """
    if type(total) is not int:
        raise TypeError(f"a total must be an int of cents; {type(total).__name__} was given")
    if not 0 <= total <= MAX_CENTS:
        raise ValueError(f"a total must be 0 to {MAX_CENTS} cents")
    percent = _exact(rate, "a rate")
    if not 0 <= percent <= 1000:
        raise ValueError("a rate must be 0 to 1000 percent")
    exact = total * percent / (100 + percent)
    tax = (2 * exact.numerator + exact.denominator) // (2 * exact.denominator)
    return TaxSplit(total - tax, tax)


def sum_fault(amount: int | None, components: Iterable[int | None]) -> str | None:
    """Return what breaks the sum rule (§2.1.1, §2.1.2), or None. The parts are cents, or None where left out."""
    parts = [part for part in components if part is not None]
    if not parts:
        return "must have a part: amountWithoutTax, amountWithTax, tax, service or tip"
    total = sum(parts)
    if amount is None or amount == total:
        return None
    off = abs(amount - total)
    words = f"{off} cent{'' if off == 1 else 's'} {'more' if amount > total else 'less'}"
    return f"must be the sum of its parts, and is {words} than that"
