"""Every formula against exact rational arithmetic, with ties and limits provoked on purpose."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import BadQuantization
from npusim.numerics import neural_art_lowering as formulas
from npusim.numerics.neural_art_lowering import round_real

SCALES = st.floats(2.0**-12, 2.0**-2, width=32)


def floats(*values: float) -> Any:
    return np.array(values, np.float64)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("floor", [-3, -3, -2, -1, 0, 1, 2, 2]),
        ("half_up", [-3, -2, -1, 0, 1, 2, 3, 3]),
        ("half_even", [-3, -2, -2, 0, 0, 2, 2, 3]),
        ("half_away", [-3, -3, -2, -1, 1, 2, 3, 3]),
    ],
)
def test_rounding_of_reals(how: str, expected: list[int]) -> None:
    values = floats(-2.75, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.75)
    assert round_real(values, how).tolist() == expected


@pytest.mark.parametrize(
    ("total", "shift"),
    [(0, 0), (127, 0), (128, 1), (-128, 1), (255, 1), (256, 2), (511, 2), (512, 3), (-513, 3)],
)
def test_shift_of_the_sums(total: int, shift: int) -> None:
    weights = np.zeros((2, 3, 2, 3), np.int64)
    weights[1, :, 0, 0] = (total, 0, 0)
    assert formulas.sum_shift(weights) == shift


def test_shift_of_the_sums_takes_signed_sums_over_the_whole_kernel() -> None:
    weights = np.full((1, 8, 3, 3), 127, np.int64)
    assert formulas.sum_shift(weights) == (8 * 9 * 127).bit_length() - 7
    weights[:, 4:] = -127
    assert formulas.sum_shift(weights) == 0


@pytest.mark.parametrize(
    ("ratio", "shift"),
    [
        (1.0, 14), (0.5, 15), (2.0, 13), (1.999, 14), (2.0**-20, 34), (3.0, 13),
        ((2**15 - 0.5) / 2**15, 14),  # rounds to 2**15 at the first try
        ((2**15 - 0.6) / 2**15, 15),
    ],
)  # fmt: skip
def test_normal_shift(ratio: float, shift: int) -> None:
    assert formulas.normal_shift(ratio) == shift


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.inf, math.nan])
def test_impossible_ratios_are_refused(ratio: float) -> None:
    with pytest.raises(BadQuantization, match="positive and finite"):
        formulas.normal_shift(ratio)


def test_a_shift_stays_within_the_unit() -> None:
    assert formulas.bounded_shift(2.0**-17) == 31
    assert formulas.bounded_shift(2.0**-18) == 31
    assert formulas.bounded_shift(2.0**14) == 0
    assert formulas.bounded_shift(32767.0) == 0
    with pytest.raises(BadQuantization, match="16 bits"):
        formulas.bounded_shift(2.0**15)


@settings(max_examples=60, deadline=None)
@given(ratio=st.floats(2.0**-16, 2.0**14))
def test_multipliers_are_normal(ratio: float) -> None:
    shift = formulas.normal_shift(ratio)
    code = int(formulas.multipliers(ratio, shift))
    assert 2**14 <= code < 2**15
    assert abs(Fraction(ratio) * 2**shift - code) <= Fraction(1, 2)


def test_multipliers_round_half_away() -> None:
    assert formulas.multipliers(floats(2.5, 3.5, 2.25, -2.5), 0).tolist() == [3, 4, 2, -3]
    assert formulas.multipliers(floats(1.25), 1).tolist() == [3]


@settings(max_examples=60, deadline=None)
@given(
    ratios=st.lists(st.floats(2.0**-6, 2.0), min_size=1, max_size=4),
    offset=st.floats(-500, 500),
    zero_point=st.integers(-128, 127),
)
def test_affine(ratios: list[float], offset: float, zero_point: int) -> None:
    found = formulas.affine(floats(*ratios), floats(offset), zero_point, "floor")
    assert found.dropped == 0
    assert 2**14 <= found.multiplier.max() < 2**15
    for ratio, code in zip(ratios, found.multiplier.tolist(), strict=True):
        assert abs(Fraction(ratio) * 2**found.shift - code) <= Fraction(1, 2)
    exact = math.floor(Fraction(offset) * 2**found.shift) + zero_point * 2**found.shift
    assert found.constant.tolist() == [exact]


def test_a_constant_beyond_32_bits_lowers_the_shift_as_little_as_fits() -> None:
    # ratio 1 wants shift 14; 2**17 * 2**14 = 2**31 does not fit, 2**17 * 2**13 does.
    found = formulas.affine(floats(1.0), floats(2.0**17, 0.0), 0, "floor")
    assert (found.shift, found.dropped, found.constant.tolist()) == (13, 1, [2**30, 0])
    assert found.multiplier.tolist() == [2**13]
    fits = formulas.affine(floats(1.0), floats(-(2.0**17), 0.0), 0, "floor")
    assert (fits.shift, fits.dropped, fits.constant.tolist()) == (14, 0, [-(2**31), 0])
    below = formulas.affine(floats(1.0), floats(-(2.0**17), 0.0), -1, "floor")
    assert (below.shift, below.dropped) == (13, 1)
    exact = formulas.affine(floats(1.0), floats(2.0**17 - 2.0**-14), 0, "floor")
    assert (exact.dropped, exact.constant.tolist()) == (0, [2**31 - 1])


def test_a_shift_beyond_31_is_lowered() -> None:
    found = formulas.affine(floats(2.0**-20), floats(0.0), 0, "floor")
    assert (found.shift, found.dropped, found.multiplier.tolist()) == (31, 3, [2**11])


def test_a_bias_that_no_shift_holds_is_refused() -> None:
    last = formulas.affine(floats(1.0), floats(2.0**31 - 1), 0, "floor")
    assert (last.shift, last.dropped, last.multiplier.tolist()) == (0, 14, [1])
    with pytest.raises(BadQuantization, match="too large"):
        formulas.affine(floats(1.0), floats(2.0**31), 0, "floor")


def test_the_constant_follows_its_switch() -> None:
    for how, code in (("floor", -1), ("half_away", -1), ("half_even", 0), ("half_up", 0)):
        found = formulas.affine(floats(1.0), floats(-(2.0**-15)), 3, how)
        assert found.constant.tolist() == [code + 3 * 2**14]


@pytest.mark.parametrize(
    ("scale", "exponent"),
    [(1 / 255, 1), (2 / 255, 2), (0.00701727578, 2), (0.0036461418, 1), (0.02855774, 4)],
)
def test_mid_exponent(scale: float, exponent: int) -> None:
    assert formulas.mid_exponent(scale) == exponent
    assert formulas.mid_exponent(np.nextafter(scale, 0)) == exponent


def test_mid_exponent_just_above_a_power_of_two() -> None:
    assert formulas.mid_exponent(np.nextafter(2.0 / 255, 1)) == 3
    assert formulas.mid_exponent(4 / 255) == 3


@settings(max_examples=40, deadline=None)
@given(scale=SCALES)
def test_the_middle_scale_holds_the_whole_output_range(scale: float) -> None:
    exponent = formulas.mid_exponent(scale)
    assert 2 ** (exponent - 2) < 255 * Fraction(scale) <= 2 ** (exponent - 1) * (1 + 2**-50)
    assert Fraction(formulas.mid_scale(exponent)) == Fraction(2) ** (exponent - 15)


@settings(max_examples=60, deadline=None)
@given(
    sx=SCALES,
    sw=st.lists(SCALES, min_size=1, max_size=3),
    sy=SCALES,
    shift=st.integers(0, 6),
    bias=st.integers(-(2**20), 2**20),
    zero_point=st.integers(-128, 127),
)
def test_both_requantizations(
    sx: float, sw: list[float], sy: float, shift: int, bias: int, zero_point: int
) -> None:
    scales = sx * floats(*sw)
    real = formulas.bias_one_step(np.array([bias]), scales[:1])
    try:
        one = formulas.one_step(scales, shift, sy, real, zero_point, "floor")
    except BadQuantization:  # sx * sw / sy may exceed 2**15
        return
    ratios = [Fraction(s) / Fraction(sy) * 2**shift for s in scales.tolist()]
    for ratio, code in zip(ratios, one.multiplier.tolist(), strict=True):
        assert abs(ratio * 2**one.shift - code) <= Fraction(1, 2) + Fraction(1, 10**9)
    offset = Fraction(float(real[0])) / Fraction(sy)
    assert abs(offset * 2**one.shift + zero_point * 2**one.shift - one.constant[0]) <= 1 + 1e-6
    mid = formulas.mid_scale(formulas.mid_exponent(sy))
    try:
        first, first_shift = formulas.first_step(scales, shift, mid)
    except BadQuantization:
        return
    for s, code in zip(scales.tolist(), first.tolist(), strict=True):
        exact = Fraction(s) * 2 ** (shift + first_shift) / Fraction(mid)
        assert abs(exact - code) <= Fraction(1, 2) + Fraction(1, 10**9)
    second = formulas.second_step(mid, sy, real, zero_point, "floor")
    exact = Fraction(mid) / Fraction(sy) * 2**second.shift
    assert abs(exact - int(second.multiplier[0])) <= Fraction(1, 2) + Fraction(1, 10**9)
    assert abs((offset + zero_point) * 2**second.shift - second.constant[0]) <= 1 + 1e-6


def test_one_step_by_hand() -> None:
    found = formulas.one_step(floats(0.25, 0.125), 3, 0.5, floats(0.3), -4, "floor")
    # ratios 4 and 2: shift 12; 0.3 / 0.5 * 2**12 = 2457.6
    assert (found.shift, found.multiplier.tolist()) == (12, [16384, 8192])
    assert found.constant.tolist() == [2457 - 4 * 4096]


def test_two_step_by_hand() -> None:
    first, shift = formulas.first_step(floats(0.25, 0.125), 3, 0.5)
    assert (first.tolist(), shift) == ([16384, 8192], 12)
    second = formulas.second_step(0.25, 0.5, floats(0.3), -4, "floor")
    # A2 = 0.5 * 2**15; 0.6 * 2**15 = 19660.8
    assert (second.shift, second.multiplier.tolist()) == (15, [16384])
    assert second.constant.tolist() == [19660 - 4 * 32768]


def test_the_two_products_of_a_bias_differ_in_float32() -> None:
    bias, scale = np.array([2**25 + 1, 3]), floats(0.1, 0.25)
    two = formulas.bias_two_step(bias, scale)
    one = formulas.bias_one_step(bias, scale)
    assert two.tolist() == [float(np.float32((2**25 + 1) * 0.1)), 0.75]
    assert one.tolist() == [float(np.float32(2**25 + 1) * np.float32(0.1)), 0.75]
    assert two.dtype == one.dtype == np.float64


def test_two_step_bias_is_rounded_once() -> None:
    # 16777217 * 1.5 is not a float32, nor is 16777217: rounding twice gives another value.
    assert formulas.bias_two_step(np.array([16777217]), floats(1.5))[0] == 25165826.0
    assert formulas.bias_one_step(np.array([16777217]), floats(1.5))[0] == 25165824.0


def test_gain_of_a_bias() -> None:
    assert formulas.bias_gain(floats(0.25, 0.5), 0.5, 3).tolist() == [1024, 2048]
    assert formulas.bias_gain(floats(2.5), 1.0, -8).tolist() == [3]
    assert formulas.bias_gain(floats(2.0**40), 1.0, 0).tolist() == [2**30]


@settings(max_examples=60, deadline=None)
@given(ratio=st.floats(2.0**-8, 2.0**7), zi=st.integers(-128, 127), zo=st.integers(-128, 127))
def test_rescale(ratio: float, zi: int, zo: int) -> None:
    found = formulas.rescale(ratio, zi, zo, "floor")
    assert abs(Fraction(ratio) * 2**found.shift - int(found.multiplier[0])) <= Fraction(1, 2)
    exact = (zo - Fraction(ratio) * zi) * 2**found.shift
    assert -1 - Fraction(1, 1000) <= int(found.constant[0]) - exact <= Fraction(1, 1000)


@pytest.mark.parametrize(
    ("count", "bits", "step"),
    [
        (81, 8, (25891, 13)), (4096, 8, (16384, 18)), (4, 0, (16384, 16)), (9, 0, (29127, 18)),
        (1, 8, (16384, 6)), (49, 8, (21400, 12)), (2**20, 8, (16384, 26)), (3, 0, (21845, 16)),
    ],
)  # fmt: skip
def test_reciprocals(count: int, bits: int, step: tuple[int, int]) -> None:
    assert formulas.mean_step(count, bits) == step


class TestAdd:
    def test_by_hand(self) -> None:
        found = formulas.add_step((1.0, 0.25), (3, -5), 7, "half_away")
        assert (found.shift, found.multipliers, found.pre_shifts) == (14, (16384, 16384), (0, 2))
        # (7 - 3 + 1.25) * 2**14 = 86016 = 21504 * 4
        assert (found.constant, found.constant_shift) == (21504, 2)

    def test_second_operand_larger(self) -> None:
        found = formulas.add_step((0.25, 1.0), (0, 0), 0, "half_away")
        assert (found.shift, found.multipliers, found.pre_shifts) == (14, (16384, 16384), (2, 0))
        assert (found.constant, found.constant_shift) == (0, 0)

    @pytest.mark.parametrize(
        ("zero", "constant"), [(1, (16384, 0)), (2, (16384, 1)), (-2, (-16384, 1))]
    )
    def test_smallest_shift_of_the_constant(self, zero: int, constant: tuple[int, int]) -> None:
        found = formulas.add_step((1.0, 1.0), (0, 0), zero, "half_away")
        assert (found.constant, found.constant_shift) == constant

    @pytest.mark.parametrize(
        ("how", "constant"), [("half_away", -3), ("half_even", -2), ("half_up", -2)]
    )
    def test_ties_of_the_constant(self, how: str, constant: int) -> None:
        # An offset of -2.5 * 2**-14 at shift 14.
        found = formulas.add_step((1.0, 2.5 * 2.0**-14), (0, 1), 0, how)
        assert (found.constant, found.shift) == (constant, 14)

    def test_a_tiny_ratio_keeps_to_the_unit(self) -> None:
        found = formulas.add_step((1.0, 2.0**-40), (0, 0), 0, "half_away")
        assert found.pre_shifts == (0, 31)
        assert found.multipliers[1] == 2**5
        small = formulas.add_step((2.0**-20, 2.0**-20), (0, 0), 0, "half_away")
        assert (small.shift, small.pre_shifts, small.multipliers) == (31, (3, 3), (2**14, 2**14))

    @settings(max_examples=60, deadline=None)
    @given(
        ratios=st.tuples(st.floats(2.0**-6, 4.0), st.floats(2.0**-6, 4.0)),
        zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
        zero=st.integers(-128, 127),
    )
    def test_numbers_are_the_nearest(
        self, ratios: tuple[float, float], zeros: tuple[int, int], zero: int
    ) -> None:
        found = formulas.add_step(ratios, zeros, zero, "half_away")
        for ratio, code, pre in zip(ratios, found.multipliers, found.pre_shifts, strict=True):
            assert 2**14 <= code < 2**15
            assert abs(Fraction(ratio) * 2 ** (found.shift + pre) - code) <= Fraction(1, 2)
        assert 0 in found.pre_shifts
        offset = zero - sum(Fraction(r) * z for r, z in zip(ratios, zeros, strict=True))
        exact = offset * 2**found.shift / 2**found.constant_shift
        assert abs(exact - found.constant) <= Fraction(1, 2) + Fraction(1, 10**6)
        assert abs(found.constant) < 2**15
        if found.constant_shift:
            assert abs(2 * exact) >= 2**15 - 1


@pytest.mark.parametrize(
    ("zeros", "shift"),
    [
        ((0, 0), 0),
        ((-128, 0), 0),
        ((-128, -128), 1),
        ((-128, -2), 1),
        ((89, 23), 0),
        ((-128, -1), 0),
        ((1, -128), 1),
        ((-1, 1), 0),
        ((0, 127), 0),
    ],
)
def test_shift_of_a_product(zeros: tuple[int, int], shift: int) -> None:
    assert formulas.product_shift(zeros) == shift
