"""The rounding primitives against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.numerics import rounding

FEW = settings(max_examples=150, deadline=None)
INT32 = st.integers(-(2**31), 2**31 - 1)
SHIFTS = st.integers(0, 40)


def floor(value: Fraction) -> int:
    return math.floor(value)


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def half_away(value: Fraction) -> int:
    return half_up(value) if value >= 0 else -half_up(-value)


def half_even(value: Fraction) -> int:
    return round(value)  # Python rounds a Fraction half to even


SHIFT_RULES: list[tuple[Callable[[Any, Any], Any], Callable[[Fraction], int]]] = [
    (rounding.shift_floor, floor),
    (rounding.shift_half_up, half_up),
    (rounding.shift_half_away, half_away),
    (rounding.shift_half_even, half_even),
]


def near_ties(shift: int) -> st.SearchStrategy[int]:
    """Multiples of half of 2**shift, give or take one."""
    half = max(1, 2**shift // 2)
    return st.builds(lambda k, d: k * half + d, st.integers(-2000, 2000), st.integers(-1, 1))


@pytest.mark.parametrize(("shift", "rule"), SHIFT_RULES)
@FEW
@given(data=st.data(), amount=SHIFTS)
def test_shifts(
    shift: Callable[[Any, Any], Any], rule: Callable[[Fraction], int], data: Any, amount: int
) -> None:
    value = data.draw(st.one_of(near_ties(amount), st.integers(-(2**60), 2**60)))
    assert int(shift(value, amount)) == rule(Fraction(value, 2**amount))


@pytest.mark.parametrize(("shift", "rule"), SHIFT_RULES)
def test_shifts_of_all_small_numbers(
    shift: Callable[[Any, Any], Any], rule: Callable[[Fraction], int]
) -> None:
    values, amounts = np.arange(-70, 71), np.arange(0, 7)[:, None]
    wanted = [[rule(Fraction(int(v), 2 ** int(a))) for v in values] for a in amounts.ravel()]
    np.testing.assert_array_equal(shift(values, amounts), wanted)


@FEW
@given(st.integers(-(2**40), 2**40), st.integers(1, 4096))
def test_divide_half_away(value: int, divisor: int) -> None:
    assert int(rounding.divide_half_away(value, divisor)) == half_away(Fraction(value, divisor))


@FEW
@given(st.integers(-(2**40), 2**40))
def test_saturate(value: int) -> None:
    assert int(rounding.saturate(value, -128, 127)) == max(-128, min(127, value))


def gemmlowp_high_multiply(a: int, b: int) -> int:
    """fixedpoint.h, SaturatingRoundingDoublingHighMul, in Python's unbounded integers."""
    if a == b == -(2**31):
        return 2**31 - 1
    product = a * b
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    return nudged // 2**31 if nudged >= 0 else -(-nudged // 2**31)


@FEW
@given(INT32, INT32)
def test_high_multiply(a: int, b: int) -> None:
    got = int(rounding.saturating_rounding_doubling_high_multiply(a, b))
    assert got == gemmlowp_high_multiply(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (-(2**31), -(2**31)),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), 2**31 - 1),
        (2**30, -1),
        (-(2**30), 1),
        (-(2**30) - 1, 1),  # the first product that goes to -1
    ],
)
def test_high_multiply_at_the_rails(a: int, b: int) -> None:
    got = int(rounding.saturating_rounding_doubling_high_multiply(a, b))
    assert got == gemmlowp_high_multiply(a, b)


def gemmlowp_divide_by_power_of_two(value: int, exponent: int) -> int:
    """fixedpoint.h, RoundingDivideByPOT."""
    mask = 2**exponent - 1
    remainder, threshold = value & mask, (mask >> 1) + (value < 0)
    return (value >> exponent) + (remainder > threshold)


@FEW
@given(INT32, st.integers(0, 31))
def test_half_away_is_gemmlowps_division(value: int, exponent: int) -> None:
    got = int(rounding.shift_half_away(value, exponent))
    assert got == gemmlowp_divide_by_power_of_two(value, exponent)


@FEW
@given(st.integers(-(2**24), 2**24), st.integers(2**30, 2**31 - 1), st.integers(-31, 6))
def test_double_rounding(value: int, multiplier: int, shift: int) -> None:
    high = gemmlowp_high_multiply(value << max(shift, 0), multiplier)
    wanted = gemmlowp_divide_by_power_of_two(high, max(-shift, 0))
    assert int(rounding.multiply_double_rounding(value, multiplier, shift)) == wanted


@FEW
@given(INT32, st.integers(2**30, 2**31 - 1), st.integers(-30, 20))
def test_single_rounding(value: int, multiplier: int, shift: int) -> None:
    exact = Fraction(value * multiplier) * Fraction(2) ** (shift - 31)
    assert int(rounding.multiply_single_rounding(value, multiplier, shift)) == half_up(exact)
    away = int(rounding.multiply_single_rounding_away(value, multiplier, shift))
    assert away == half_away(exact)


def test_left_shift_beyond_int32_saturates() -> None:
    assert int(rounding.multiply_double_rounding(2**30, 2**30, 4)) == 2**30
    assert int(rounding.multiply_double_rounding(-(2**30), 2**30, 4)) == -(2**30)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@FEW
@given(st.one_of(FLOATS, st.integers(-600, 600).map(lambda k: k / 2)), st.integers(-128, 127))
def test_float_to_codes(value: float, zero_point: int) -> None:
    even = rounding.round_half_even(np.float32(value), zero_point, -128, 127)
    away = rounding.round_half_away(np.float32(value), zero_point, -128, 127)
    exact = Fraction(float(np.float32(value)))
    assert int(even) == max(-128, min(127, half_even(exact) + zero_point))
    assert int(away) == max(-128, min(127, half_away(exact) + zero_point))


def test_a_float_just_below_a_half_is_not_rounded_up() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert int(rounding.round_half_away(below, 0, -128, 127)) == 0


@pytest.mark.parametrize("to_codes", [rounding.round_half_even, rounding.round_half_away])
def test_float_to_codes_at_the_ends(to_codes: Callable[..., Any]) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38], np.float32)
    np.testing.assert_array_equal(to_codes(values, 3, -128, 127), [127, -128, -128, 127, -128])


@FEW
@given(FLOATS, FLOATS, FLOATS)
def test_fused_multiply_add(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if abs(exact) < Fraction(float(np.finfo(np.float32).max)):
        assert float(rounding.fused_multiply_add(a, b, c)) == nearest_float32(exact)


def test_fused_multiply_add_rounds_once() -> None:
    """The float64 sum is inexact and lies on a tie of float32: rounding it again would be wrong."""
    a, c = np.float32(1 + 2**-12), np.float32(2**-60)
    tie = Fraction(float(a)) ** 2
    assert float(rounding.fused_multiply_add(a, a, c)) == nearest_float32(tie + Fraction(2) ** -60)
    assert float(rounding.fused_multiply_add(a, a, -c)) == nearest_float32(tie - Fraction(2) ** -60)


# Products of two float32 beside 2**-24, a tie of float32 beyond 1; they lie below the last bit that
# float64 holds beside 1, above and under the tie, and under the odd float64 before the tie.
ABOVE = (4097, 16773121, -60)  # 2**36 + 1
BELOW = (2**18 - 1, 2**18 + 1, -60)  # 2**36 - 1
EXACT = (1, 1, -24)
UNDER = (2699, 795659, -55)  # 2**31 - 7


@pytest.mark.parametrize("product", [ABOVE, BELOW, UNDER, EXACT])
@pytest.mark.parametrize("sign", [1, -1])
def test_fused_multiply_add_beside_ties(product: tuple[int, int, int], sign: int) -> None:
    first, second, exponent = product
    a, b = np.float32(sign * math.ldexp(first, -20)), np.float32(math.ldexp(second, exponent + 20))
    for k in range(8):
        c = np.float32(sign * (1 + k * 2.0**-23))
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        assert float(rounding.fused_multiply_add(a, b, c)) == nearest_float32(exact)


def test_operands_count_as_float32() -> None:
    tenth, three_tenths = Fraction(float(np.float32(0.1))), Fraction(float(np.float32(0.3)))
    wanted = nearest_float32(3 * tenth - three_tenths)
    assert float(rounding.fused_multiply_add(0.1, 3, -0.3)) == wanted
    assert float(rounding.fused_multiply_add(3, 0.1, -0.3)) == wanted
    assert int(rounding.round_half_even(2.5 + 1e-10, 0, -128, 127)) == 2
    assert int(rounding.round_half_away(2.5 - 1e-10, 0, -128, 127)) == 3


def nearest_float32(value: Fraction) -> float:
    """The float32 nearest to an exact number, ties to even."""
    if value == 0:
        return 0.0
    exponent = max(math.frexp(float(value))[1] - 24, -149)
    exponent += abs(value) >= Fraction(2) ** (exponent + 24)
    exponent -= exponent > -149 and abs(value) < Fraction(2) ** (exponent + 23)
    return float(half_even(value / Fraction(2) ** exponent) * Fraction(2) ** exponent)
