"""From scales to requantizers."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import BadQuantization
from npusim.ir import QParams
from npusim.numerics import requant
from npusim.numerics.lowered import Lowered

CODES = (-128, 127)


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=2.0**-31, max_value=2.0**29))
def test_quantized_multiplier_is_the_nearest(real: float) -> None:
    mantissa, shift = requant.quantize_multiplier(real)
    assert 2**30 <= mantissa < 2**31
    scaled = Fraction(real) * Fraction(2) ** (31 - shift)
    assert abs(scaled - mantissa) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("real", "wanted"),
    [
        (1.0, (2**30, 1)),
        (0.5, (2**30, 0)),
        (math.nextafter(1.0, 0.0), (2**30, 1)),  # the mantissa rounds up to 2**31
        (0.0, (0, 0)),
        (2.0**-33, (0, 0)),
        (2.0**-32, (2**30, -31)),
    ],
)
def test_quantized_multiplier_at_the_ends(real: float, wanted: tuple[int, int]) -> None:
    assert requant.quantize_multiplier(real) == wanted


def test_a_multiplier_too_large_names_the_limit() -> None:
    for real in (2.0**31, 2.0**30, math.nextafter(2.0**30, 0.0)):
        with pytest.raises(BadQuantization, match=r"2\*\*30"):
            requant.quantize_multiplier(real)
    assert requant.quantize_multiplier(2.0**29) == (2**30, 30)


def test_an_equal_scale_changes_no_code() -> None:
    """So operators need no special case where TFLite and onnxruntime skip the arithmetic."""
    codes = np.arange(-128, 128)
    for scale, point in ((0.1, -128), (3e-5, 7), (1.0, 127)):
        same = QParams.make(scale, point)
        for how in requant.MULTIPLY:
            fixed = requant.rescale_fixed(same, same, how, CODES)
            np.testing.assert_array_equal(fixed.apply(codes - point, 0), codes)
        real = requant.through_float32(same, same, CODES)
        np.testing.assert_array_equal(real.apply(codes - point, 0), codes)


@pytest.mark.parametrize("how", requant.MULTIPLY)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fixed_point_is_close_to_the_real_product(how: str, data: Any) -> None:
    ratio = data.draw(st.floats(min_value=1e-6, max_value=0.9))
    acc = data.draw(st.integers(-(2**24), 2**24))
    fixed = requant.fixed_point(ratio, 1, how, 0, (-(2**31), 2**31 - 1))
    assert abs(int(fixed.apply(np.array([acc]), 0)[0]) - acc * ratio) <= 1.01


def test_channels_lie_along_the_axis() -> None:
    lowered = requant.float_scale([0.5, 0.25], 2, 3, CODES)
    acc = np.full((1, 2, 2, 2), 8)
    assert np.unique(lowered.apply(acc, 1)[0, 0]).tolist() == [7]
    assert np.unique(lowered.apply(acc, 1)[0, 1]).tolist() == [5]
    np.testing.assert_array_equal(lowered.apply(acc, 3)[0, 0], [[7, 5], [7, 5]])


def test_one_ratio_covers_all_channels() -> None:
    assert requant.float_scale(0.5, 3, 0, CODES).multiplier.tolist() == [0.5, 0.5, 0.5]
    assert requant.fixed_point(0.5, 3, "double", 0, CODES).multiplier.tolist() == [2**30] * 3


@pytest.mark.parametrize(
    "lowered",
    [
        requant.float_scale([0.1, 3e-7], 2, -4, CODES),
        requant.fixed_point([0.1, 3e-7], 2, "double", 5, CODES),
        requant.ThroughFloat32(float(np.float32(0.1)), 0.5, 3, *CODES),
        requant.add_fixed_point(
            QParams.make(0.1, 3), QParams.make(0.7, -9), QParams.make(0.3, 0), "double", CODES
        ),
    ],
)
def test_numbers_survive_json(lowered: Lowered) -> None:
    data = json.loads(json.dumps(lowered.to_json()))
    again = type(lowered).from_json(data)
    assert again.to_json() == lowered.to_json()
    for name, value in vars(lowered).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(again, name), value, strict=True)
            assert not value.flags.writeable


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.floats(min_value=1e-3, max_value=100))
def test_mean_divides_in_integers(positions: int, ratio: float) -> None:
    lowered = requant.mean_fixed_point(ratio, positions, 1, "double", 0, CODES)
    multiplier, shift = int(lowered.multiplier[0]), int(lowered.shift[0])
    assert 0 < multiplier < 2**31
    exact = Fraction(ratio) / positions
    got = Fraction(multiplier) * Fraction(2) ** (shift - 31)
    assert abs(got / exact - 1) < Fraction(1, 2**28)


WIDE = (-(2**31), 2**31 - 1)
"""Bounds that show every float32 as it is."""


def test_float_scale_rounds_the_sum_and_the_product_to_float32() -> None:
    lowered = requant.float_scale(3.0, 1, 0, WIDE)
    # 2**24 + 1 becomes 2**24 before it is multiplied; 3 * 2**24 + 3 would round to ... + 4.
    assert lowered.apply(np.array([2**24 + 1]), 0).tolist() == [3 * 2**24]
    assert lowered.apply(np.array([2**23 + 1]), 0).tolist() == [3 * 2**23 + 4]


def test_ties_of_the_requantizers() -> None:
    acc = np.array([-5, -3, -1, 1, 3, 5])
    assert requant.float_scale(0.5, 1, 0, CODES).apply(acc, 0).tolist() == [-2, -2, 0, 0, 2, 2]
    for how, wanted in (
        ("double", [-2, -1, 0, 1, 2, 3]),
        ("single", [-2, -1, 0, 1, 2, 3]),
        ("away", [-3, -2, -1, 1, 2, 3]),
    ):
        assert requant.fixed_point(0.5, 1, how, 0, CODES).apply(acc, 0).tolist() == wanted
    quarter = requant.fixed_point(0.25, 1, "double", 0, CODES)
    assert quarter.apply(np.array([-6, -2, 2, 6]), 0).tolist() == [-2, -1, 1, 2]


def test_through_float32_rounds_after_every_operation() -> None:
    generator = np.random.default_rng(5)
    f32 = np.float32
    apart = 0
    for acc, a, b in zip(
        generator.integers(-(2**26), 2**26, 400), *generator.uniform(0.5, 1, (2, 400)), strict=True
    ):
        lowered = requant.ThroughFloat32(a, b, 0, *WIDE)  # numbers of a file, in float64
        real = f32(f32(acc) * f32(a))
        wanted = round(float(real / f32(b)))
        assert lowered.apply(np.array([acc]), 0).tolist() == [wanted]
        apart += wanted != round(float(f32(float(acc) * float(f32(a)) / float(f32(b)))))
    assert apart > 50


def test_through_float32_rounds_ties_to_even() -> None:
    lowered = requant.through_float32(QParams.make(0.5, 3), QParams.make(1.0, 7), (-1, 9))
    assert lowered.apply(np.array([-40, -3, -1, 1, 3, 40]), 0).tolist() == [-1, 5, 7, 7, 9, 9]


def test_add_raises_both_operands_to_a_common_scale() -> None:
    x1, x2, y = QParams.make(0.5, 1), QParams.make(0.25, 3), QParams.make(1.0, -4)
    eighth = QParams.make(0.125, 0)
    for left, right, shifts in (
        (x1, x2, (0, -1, -19)),
        (x2, x1, (-1, 0, -19)),
        (eighth, x2, (-1, 0, -20)),
    ):
        lowered = requant.add_fixed_point(left, right, y, "double", (-10, 20))
        assert lowered.multiplier == (2**30,) * 3
        assert lowered.shift == shifts
    lowered = requant.add_fixed_point(x1, x2, y, "double", (-10, 20))
    a, b = np.array([3, 4, 2, 100, -100]), np.array([7, 3, 3, 0, 0])
    # 1 + 1; 1.5 and 0.5, whose ties go away from zero; the clamp.
    assert lowered.apply(a, b).tolist() == [-2, -2, -3, 20, -10]


def test_an_addition_keeps_20_bits_of_fraction() -> None:
    """2**-20 of the common scale is the smallest part of a code that can decide."""
    x1, x2 = QParams.make(1.0, 0), QParams.make(2.0**-19, 0)
    lowered = requant.add_fixed_point(x1, x2, QParams.make(2.0, 0), "double", CODES)
    one, step = np.array([-1]), np.array([[1], [2], [3]])
    assert lowered.apply(one, step).ravel().tolist() == [0, 0, 0]
    assert lowered.apply(one, -step).ravel().tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("codes", "zero_points", "largest"),
    [
        (CODES, [3], 131), (CODES, [-5], 132), (CODES, [-20, 30], 158), (CODES, [-40, 10], 167),
        ((0, 255), [200], 200), ((0, 255), [10], 245), ((0, 255), [90, 120], 165),
    ],
)  # fmt: skip
def test_the_largest_distance_from_a_zero_point(
    codes: tuple[int, int], zero_points: list[int], largest: int
) -> None:
    assert requant.largest_offset(codes, np.array(zero_points)) == largest


def test_mean_float32() -> None:
    generator = np.random.default_rng(6)
    for sx, sy in generator.uniform(0.001, 1, (50, 2)).astype(np.float32):
        for positions in (1, 3, 49, 4096):
            found = requant.mean_float32(sx, sy, positions)
            divisor = nearest(Fraction(float(sy)) * positions)
            assert type(found) is np.float32
            assert float(found) == nearest(Fraction(float(sx)) / Fraction(divisor))
    # The count itself is a float32.
    many = requant.mean_float32(np.float32(1), np.float32(3), 2**24 + 1)
    assert many == np.float32(1) / np.float32(3 * 2**24)


def test_a_ratio_counts_in_float64() -> None:
    assert requant.fixed_point(0.1, 1, "double", 0, CODES).multiplier[0] == round(0.8 * 2**31)


@pytest.mark.parametrize(
    ("ratio", "positions", "multiplier", "shift"),
    [
        (1.0, 49, 2**35 // 49, 1 - 5),
        (2.0**-30, 49, 2**32 // 49, -31),  # two more bits are all that the shift allows
        (4.0, 2**40, 2**22, 3 - 32),
    ],
)
def test_mean_raises_the_mantissa_as_far_as_it_may(
    ratio: float, positions: int, multiplier: int, shift: int
) -> None:
    lowered = requant.mean_fixed_point(ratio, positions, 2, "double", 0, CODES)
    assert (lowered.multiplier.tolist(), lowered.shift.tolist()) == ([multiplier] * 2, [shift] * 2)


def nearest(value: Fraction) -> float:
    """The float32 nearest to a normal number, ties to even."""
    exponent = math.frexp(float(value))[1] - 24
    return math.ldexp(round(value / Fraction(2) ** exponent), exponent)
