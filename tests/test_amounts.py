"""Cents: conversion, tax and the sum rule never lose one."""

import time
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, getcontext, localcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payclient.amounts import MAX_CENTS, TaxSplit, split_tax, sum_fault, to_cents

CENTS = st.integers(0, MAX_CENTS)
RATES = st.decimals(0, 1000, allow_nan=False, allow_infinity=False, places=6)


@pytest.mark.parametrize(
    ("units", "cents"),
    [
        ("10.50", 1050), ("10.5", 1050), ("10", 1000), (10, 1000), (Decimal("10.50"), 1050), ("0.01", 1), ("0", 0),
        ("-0", 0), ("1.2300000", 123), ("1e2", 10_000), ("+5", 500), (" 5 ", 500), ("1e16", 10**18),
        (Decimal("0.29"), 29), ("1.15", 115), ("1000000000000.99", 100_000_000_000_099),
    ],
)  # fmt: skip
def test_units_become_cents(units: Any, cents: int) -> None:
    """§1: the value in currency units is multiplied by 100."""
    assert to_cents(units) == cents
    assert type(to_cents(units)) is int


@given(
    st.decimals(allow_nan=False, allow_infinity=False)
    | st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,6})?", fullmatch=True)
)
@example(Decimal("1e-1000022"))
@example(Decimal("90000000000000000"))
@example("10000000000000000.01")
def test_exact_or_refused(units: Decimal | str) -> None:
    """The cents are exactly a hundred times the units, or it raises."""
    exact = Decimal(units)
    try:
        cents = to_cents(units)
    except ValueError:
        with localcontext(Context(prec=200, Emax=999999999999, Emin=-999999999999)):
            hundredfold = exact * 100
            assert hundredfold < 0 or hundredfold > MAX_CENTS or hundredfold % 1 != 0
    else:
        assert 0 <= cents <= MAX_CENTS
        assert Decimal(cents) == exact.scaleb(2, Context(prec=200))


JUNK = [
    "", " ", "abc", "1,50", "$5", "1_000", "１０", "٣", "10 50", "NaN", "sNaN", "Infinity", "0x10", "1e",
    "1e400", "1e-400", "1e999999999", "1e-999999999", "1e-1000022",
    "0e999999999", "1" * 101, "0." + "0" * 200 + "1", Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"),
    Decimal("-Infinity"), Decimal("1e999999"), Decimal("1e-999999"), Decimal("9" * 5000), 1 << 3_000_000,
]  # fmt: skip
OTHER_TYPES: list[Any] = [1.0, 0.1, float("nan"), float("inf"), True, False, None, b"1", [1], 1j]


@pytest.mark.parametrize(
    ("values", "error"), [(JUNK, ValueError), (OTHER_TYPES, TypeError)], ids=["junk", "types"]
)
def test_junk_is_refused_at_once(values: list[Any], error: type[Exception]) -> None:
    """A float is no money, nor is a bool; no notation, however huge, is counted with for long."""
    said = "must be a Decimal, a text or an int; " if error is TypeError else ""
    for value in values:
        began = time.process_time()
        with pytest.raises(error, match=rf"^an amount {said}"):
            to_cents(value)
        with pytest.raises(error, match=rf"^a rate {said}"):
            split_tax(100, value)
        assert time.process_time() - began < 0.5
    rounded: dict[Any, str] = {
        "0.005": "whole cents", "10.505": "whole cents", Decimal("0.001"): "whole cents", "-0.01": "0 to", -1: "0 to",
        Decimal(-5): "0 to", "10000000000000000.01": "0 to", 10**17: "0 to", 10**400: "0 to",
    }  # fmt: skip
    for value, words in rounded.items():
        with pytest.raises(ValueError, match=rf"^an amount must be {words}"):
            to_cents(value)


@given(CENTS, CENTS)
def test_the_callers_decimal_context_changes_nothing(cents: int, total: int) -> None:
    """Neither its precision nor its traps."""
    text = f"{cents // 100}.{cents % 100:02}"
    expected = split_tax(total, "15.5")
    with localcontext(Context(prec=2, traps=[Inexact])):
        assert to_cents(text) == cents
        assert split_tax(total, Decimal("15.5")) == expected
        getcontext().traps[InvalidOperation] = False
        with pytest.raises(ValueError, match=r"must be finite"):
            to_cents("abc")


@given(CENTS, RATES)
@example(3, Decimal(100))  # 1.5 cents of tax, which are 2
@example(4, Decimal(15))
def test_the_split_adds_up_and_rounds_half_up(total: int, rate: Decimal) -> None:
    """The parts are the total, and the tax is what Decimal says with all its digits."""
    split = split_tax(total, rate)
    assert split == (split.amount_with_tax, split.tax) == TaxSplit(*split)
    assert split.amount_with_tax + split.tax == total
    assert 0 <= split.tax <= total
    with localcontext(Context(prec=100)):
        exact = Decimal(total) * rate / (100 + rate)
        assert Decimal(split.tax) == exact.quantize(Decimal(1), ROUND_HALF_UP)
    assert split_tax(1150, "15") == split_tax(1150, 15) == (1000, 150)


@pytest.mark.parametrize(
    ("total", "rate", "error", "said"),
    [
        (-1, "15", ValueError, "a total must be 0 to"), (MAX_CENTS + 1, "15", ValueError, "a total must be 0 to"),
        *((each, "15", TypeError, "a total must be an int of cents; ") for each in (True, 1.0, "100", None)),
        *((100, each, ValueError, "a rate must be 0 to 1000 percent") for each in ("-1", -1, "1000.01", 1001)),
    ],
)  # fmt: skip
def test_what_cannot_be_split(total: Any, rate: Any, error: type[Exception], said: str) -> None:
    """Totals have the type and the range of amounts; rates are 0 to 1,000 percent."""
    with pytest.raises(error, match=f"^{said}"):
        split_tax(total, rate)


@given(st.lists(st.none() | CENTS, min_size=5, max_size=5), st.none() | CENTS)
def test_the_sum_rule(parts: list[int | None], amount: int | None) -> None:
    """§2.1.1 and §2.1.2: at least one part, and `amount` is the sum of those given."""
    fault = sum_fault(amount, parts)
    given_parts = [part for part in parts if part is not None]
    if not given_parts:
        assert fault is not None
        assert fault.startswith("must have a part")
    elif amount is None or amount == sum(given_parts):
        assert fault is None
    else:
        assert fault is not None
        assert str(abs(amount - sum(given_parts))) in fault
        assert ("more" in fault) == (amount > sum(given_parts))
