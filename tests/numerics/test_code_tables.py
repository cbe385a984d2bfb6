"""Tables of one code, and TFLite's fixed-point LeakyRelu and HardSwish, against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npusim.errors import BadQuantization
from npusim.ir import QParams
from npusim.numerics import code_tables
from npusim.numerics.code_tables import HardSwishFixedPoint, LeakyFixedPoint
from npusim.numerics.functions import Real
from npusim.numerics.lowered import lowering_from_json, lowering_to_json

ALL = (-128, 127)


def same(x: Real) -> Real:
    return x


def test_ties_and_zero_points() -> None:
    """Halves: to even before the zero point is added, or away from zero."""
    x, y = QParams.make(0.5, 1), QParams.make(1.0, 3)
    codes = np.array([-2, 0, 1, 2, 4, 6])  # -1.5, -0.5, 0, 0.5, 1.5, 2.5
    even = code_tables.through_float32(same, x, -128, y, ALL)
    away = code_tables.by_reciprocal(same, x, -128, y, ALL)
    assert even.apply(codes).tolist() == [1, 3, 3, 3, 5, 5]
    assert away.apply(codes).tolist() == [1, 2, 3, 4, 5, 6]
    assert away.apply(np.array([[-128], [127]])).tolist() == [[-62], [66]]


def test_unsigned_codes_and_clamps() -> None:
    x, y = QParams.make(2.0, 128), QParams.make(1.0, 10)
    for make in (code_tables.through_float32, code_tables.by_reciprocal):
        table = make(same, x, 0, y, (5, 200))
        assert table.apply(np.array([0, 126, 128, 200, 255])).tolist() == [5, 6, 10, 154, 200]
        assert (table.first, table.codes.size) == (0, 256)
        assert table.codes.flags.writeable is False


def test_division_and_reciprocal_differ() -> None:
    """x / s is not x * (1 / s) in float32."""
    x, y = QParams.make(0.7, 0), QParams.make(1.4, 0)
    seen = 0
    for scale in np.arange(0.011, 0.4, 0.0137):
        x, y = QParams.make(scale / 2, 0), QParams.make(scale, 0)
        (sx, _), (sy, _) = x.scalar(), y.scalar()
        real = np.arange(-128, 128).astype(np.float32) * sx
        product = real * (np.float32(1) / sy)
        wanted = np.sign(product) * np.floor(np.abs(product).astype(np.float64) + 0.5)
        table = code_tables.by_reciprocal(same, x, -128, y, ALL)
        assert np.array_equal(table.codes, wanted)
        exact = code_tables.through_float32(same, x, -128, y, ALL)
        assert np.array_equal(exact.codes, np.rint(real / sy))
        seen += int(np.count_nonzero(np.abs(product) % 0.5 != np.abs(real / sy) % 0.5))
    assert seen > 0


def test_far_numbers_saturate_without_a_warning() -> None:
    x, y = QParams.make(1e9, 0), QParams.make(1e-38, 0)
    for make in (code_tables.through_float32, code_tables.by_reciprocal):
        table = make(lambda v: v * np.float32(1e20), x, -128, y, ALL)
        assert table.apply(np.array([-1, 0, 1])).tolist() == [-128, 0, 127]
        assert make(lambda v: v * v * v * v * v, x, -128, y, ALL).codes[255] == 127


def test_a_table_begins_at_its_first_code() -> None:
    table = code_tables.CodeTable(np.arange(100, 110), 3)
    assert table.apply(np.array([3, 4, 12])).tolist() == [100, 101, 109]


def test_leaky_relu_uses_a_multiplier_on_each_side() -> None:
    x, y = QParams.make(0.5, 10), QParams.make(0.25, -20)
    for how in ("double", "single"):
        lowered = code_tables.leaky_fixed_point(0.125, x, y, how, (-25, 90))
        expected = LeakyFixedPoint((2**30,) * 2, (2, -1), (10, -20), how, -25, 90)
        assert lowered == expected
        assert lowered.apply(np.array([-128, 6, 10, 11, 100])).tolist() == [-25, -21, -20, -18, 90]


def test_leaky_relu_rounds_as_its_multiplier_does() -> None:
    """A tie below zero: a high multiply rounds it up, the right shift after it away from zero."""
    x, y = QParams.make(1.0, 0), QParams.make(1.0, 0)
    double, single = (
        code_tables.leaky_fixed_point(0.5, x, y, how, ALL) for how in ("double", "single")
    )
    codes = np.array([-5, -3, -1, 0, 1])
    assert double.apply(codes).tolist() == [-2, -1, 0, 0, 1]
    assert single.apply(codes).tolist() == [-2, -1, 0, 0, 1]
    quarter = code_tables.leaky_fixed_point(0.25, x, y, "double", ALL)
    assert quarter.apply(np.array([-6, -2])).tolist() == [-2, -1]
    up = code_tables.leaky_fixed_point(0.25, x, y, "single", ALL)
    assert up.apply(np.array([-6, -2])).tolist() == [-1, 0]


def test_leaky_relu_keeps_its_sides_apart() -> None:
    """Ratios 3 and 2.1009: no product is a tie, and none of either side counts for the other."""
    x, y = QParams.make(0.3, 4), QParams.make(0.1, -9)
    lowered = code_tables.leaky_fixed_point(0.7003, x, y, "double", (-500, 500))
    got = lowered.apply(np.arange(-128, 128)).tolist()
    assert got == [round((3 if c > 4 else 2.1009) * (c - 4)) - 9 for c in range(-128, 128)]


def test_alpha_counts_in_float32() -> None:
    x, y = QParams.make(0.3, 0), QParams.make(0.7, 0)
    lowered = code_tables.leaky_fixed_point(0.01, x, y, "double", ALL)
    ratio = float(np.float32(0.3) * np.float32(0.01) / np.float32(0.7))
    fraction, exponent = math.frexp(ratio)
    assert (lowered.multiplier[1], lowered.shift[1]) == (round(fraction * 2**31), exponent)


def plain_hard_swish(lowered: HardSwishFixedPoint, code: int) -> int:
    """TFLite's kernel, one code in Python's integers."""

    def high(a: int, b: int) -> int:
        total = a * b + (2**14 if a * b >= 0 else 1 - 2**14)
        return int(math.copysign(abs(total) // 2**15, total))

    def narrow(v: int) -> int:
        return max(-(2**15), min(2**15 - 1, v))

    def right(v: int, by: int) -> int:
        return int(math.copysign((abs(v) + (2**by >> 1)) >> by, v))

    raised = (code - lowered.zero_points[0]) * 128
    share, shift = raised, lowered.factor_shift
    if shift > 0:
        share = narrow(share << (shift - 1))
    share = high(share, lowered.factor)
    if shift > 0:
        share = narrow(share << 1)
    if shift < 0:
        share = right(share, -shift)
    share = (share + 2**15) >> 1
    product = share * high(raised, lowered.multiplier)
    cut = int(math.copysign(abs(product) // 2**15, product))
    value = right(cut, lowered.shift) + lowered.zero_points[1]
    return max(lowered.lo, min(lowered.hi, value))


@pytest.mark.parametrize("zero_point", [-128, 0, 7, 127])
@pytest.mark.parametrize("scale", [0.001, 0.005859375, 0.0117, 0.0235, 0.04, 0.05, 0.3, 2.0])
def test_hard_swish(scale: float, zero_point: int) -> None:
    """Factors below, at and above one; saturated left shifts."""
    x = QParams.make(scale, zero_point)
    for ratio in (0.013, 0.9, 2.5):
        y = QParams.make(scale * ratio, -13)
        lowered = code_tables.hard_swish_fixed_point(x, y, (-120, 110), "n")
        got = lowered.apply(np.arange(-128, 128)).tolist()
        assert got == [plain_hard_swish(lowered, c) for c in range(-128, 128)]
        real = (np.arange(-128, 128) - zero_point) * scale
        wanted = real * np.clip(real + 3, 0, 6) / 6 / (scale * ratio) - 13
        assert np.abs(np.clip(wanted, -120, 110) - got).max() < 1.1 + 0.02 / ratio


def test_hard_swish_of_any_numbers() -> None:
    """Without a last shift and with wide bounds every bit inside shows."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        lowered = HardSwishFixedPoint(
            factor=int(rng.integers(2**14, 2**15)),
            factor_shift=int(rng.integers(-5, 6)),
            multiplier=int(rng.integers(2**14, 2**15)),
            shift=int(rng.integers(0, 3)),
            zero_points=(int(rng.integers(-128, 128)), 7),
            lo=-(2**16),
            hi=2**16,
        )
        got = lowered.apply(np.arange(-128, 128)).tolist()
        assert got == [plain_hard_swish(lowered, c) for c in range(-128, 128)]


def test_hard_swish_saturates_before_and_after_its_factor() -> None:
    """A factor that a user gives may be small, so that only the first saturation is reached."""
    lowered = HardSwishFixedPoint(2**12, 5, 24576, 7, (2, 3), *ALL)
    got = lowered.apply(np.arange(-128, 128)).tolist()
    assert got == [plain_hard_swish(lowered, c) for c in range(-128, 128)]


def test_numbers_of_hard_swish() -> None:
    x, y = QParams.make(3 / 128, 2), QParams.make(0.5, 3)
    lowered = code_tables.hard_swish_fixed_point(x, y, ALL, "n")
    assert lowered == HardSwishFixedPoint(2**14, 2, 24576, 11, (2, 3), -128, 127)
    # A mantissa that rounds to 2**15 becomes the largest of 15 bits.
    close = QParams.make(np.nextafter(np.float32(1), np.float32(0)), 0)
    assert code_tables.hard_swish_fixed_point(close, y, ALL, "n").multiplier == 2**15 - 1
    half = QParams.make(np.float32(1 + 2**-15), 0)  # mantissa 2**14 + 1/2
    assert code_tables.hard_swish_fixed_point(half, QParams.make(1, 0), ALL, "n").multiplier == (
        2**14 + 1
    )


def test_the_ratios_of_hard_swish_are_float32() -> None:
    """Among many scales there are some whose 15 bits depend on it."""

    def fifteen_bits(ratio: float) -> int:
        return min(math.floor(math.frexp(ratio)[0] * 2**15 + 0.5), 2**15 - 1)

    differing = 0
    for sx, sy in np.exp(np.random.default_rng(3).uniform(-4, 0, (4000, 2))).astype(np.float32):
        x, y = QParams.make(sx, 0), QParams.make(sy, 0)
        lowered = code_tables.hard_swish_fixed_point(x, y, ALL, "n")
        raised = sx / np.float32(128)
        assert lowered.multiplier == fifteen_bits(float(raised / sy))
        assert lowered.factor == fifteen_bits(float(raised / np.float32(3 / 2**15)))
        differing += lowered.multiplier != fifteen_bits(float(raised) / float(sy))
    assert differing > 0


def test_hard_swish_refuses_what_tflite_refuses() -> None:
    y = QParams.make(0.01, 0)
    code_tables.hard_swish_fixed_point(QParams.make(1.27, 0), y, ALL, "n")
    with pytest.raises(BadQuantization, match=r"swish_3: hard swish.*below 128"):
        code_tables.hard_swish_fixed_point(QParams.make(1.29, 0), y, ALL, "swish_3")


def test_all_kinds_go_to_json_and_back() -> None:
    x, y = QParams.make(0.02, 3), QParams.make(0.01, 0)
    lowering = {
        "a": code_tables.leaky_fixed_point(0.1, x, y, "double", ALL),
        "b": code_tables.hard_swish_fixed_point(x, y, ALL, "b"),
        "c": code_tables.through_float32(same, x, -128, y, ALL),
    }
    back = lowering_from_json(lowering_to_json(lowering))
    assert (back["a"], back["b"]) == (lowering["a"], lowering["b"])
    assert lowering_to_json(back) == lowering_to_json(lowering)
