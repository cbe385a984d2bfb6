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
    with pytest.raises(BadQuantization, match=r"2\*\*30"):
        requant.quantize_multiplier(2.0**31)


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
