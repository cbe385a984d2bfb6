"""From scales and weights to the numbers of the neural-art NPU, one formula a function.

Scales are float32 values held in float64; every formula is evaluated in float64 unless it says
otherwise. Codes and zero points are signed here: a uint8 tensor counts as int8 with 128 taken off
codes and zero point [inferred]. Evidence tags: silicon, descriptor (read from generated files with
numbers that reproduce), vendor, inferred, unknown; docs/neural-art.md has the pipeline.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization
from npusim.numerics import rounding
from npusim.numerics.rounding import INT32_MAX, INT32_MIN, Int64

Float64 = npt.NDArray[np.float64]

SHIFT_MAX = 31
"""Largest shift of an arithmetic unit that we assume [unknown]."""

GAIN_BITS = 8
"""Fraction bits of the gain that a trained bias acts through [inferred]."""

GAIN_MAX = 2**30
"""Keeps gain * (bias - old bias) inside int64 for any two int32 biases."""

MEAN_BITS = 8
"""Fraction bits of a global average's int16 stream [silicon]."""


class Affine(NamedTuple):
    """Numbers of a step out = round((multiplier * x + constant) / 2**shift).

    multiplier: int64 [C] or [1]. constant: int64 [C]. dropped: bits that the shift was lowered by
    because a constant or the shift itself would not fit.
    """

    multiplier: Int64
    shift: int
    constant: Int64
    dropped: int


def round_real(values: Any, how: str) -> Int64:
    """Real numbers to integers: "floor", "half_away", "half_up" or "half_even"."""
    values = np.asarray(values, np.float64)
    match how:
        case "floor":
            whole = np.floor(values)
        case "half_up":
            whole = np.floor(values + 0.5)
        case "half_even":
            whole = np.rint(values)
        case _:
            assert how == "half_away", how
            whole = np.copysign(np.floor(np.abs(values) + 0.5), values)
    return np.asarray(whole, np.int64)


def sum_shift(weights: Int64) -> int:
    """shift_o = max(0, bit_length(max_c |S_c|) - 7), S_c the signed sum of a channel's weights.

    weights: [channels, ...], zero points taken off. One shift for a convolution, shared by all its
    pieces and passes. bit_length, not ceil(log2): 512 gives 3. [descriptor: 505 layers, silicon]
    It assumes |acc| <= 256 max |S_c|, which is no bound: streams can saturate.
    """
    totals = np.abs(weights.reshape(weights.shape[0], -1).sum(axis=1))
    return max(0, int(totals.max()).bit_length() - 7)


def normal_shift(ratio: float) -> int:
    """The s for which round(ratio * 2**s) lies in [2**14, 2**15) [descriptor, silicon].

    Raises BadQuantization where ratio is not a positive finite number.
    """
    if not 0.0 < ratio < math.inf:
        raise BadQuantization("a ratio of scales must be positive and finite", got=ratio)
    shift = 15 - math.frexp(ratio)[1]
    rounded = round_real(math.ldexp(ratio, shift), "half_away")
    return shift - 1 if rounded == 2**15 else shift


def bounded_shift(ratio: float) -> int:
    """``normal_shift``, lowered to SHIFT_MAX where it exceeds it.

    Raises BadQuantization where only a left shift could hold the ratio.
    """
    shift = normal_shift(ratio)
    if shift < 0:
        raise BadQuantization(
            "the scales need a multiplier that 16 bits do not hold", got=ratio, wanted="< 2**15"
        )
    return min(shift, SHIFT_MAX)


def multipliers(ratios: Any, shift: int) -> Int64:
    """A = round(ratio * 2**shift)."""
    return round_real(np.ldexp(ratios, shift), "half_away")


def affine(ratios: Float64, offsets: Float64, zero_point: int, how: str) -> Affine:
    """A = round(ratio * 2**s), C = floor(offset * 2**s) + zero_point * 2**s.

    s is the ``normal_shift`` of the largest ratio; where the shift exceeds SHIFT_MAX or a constant
    leaves int32, s is lowered by the smallest amount that fits [unknown]. how: rounding of C, floor
    unless a switch says otherwise.
    """
    wanted = normal_shift(float(ratios.max()))
    for shift in range(bounded_shift(float(ratios.max())), -1, -1):
        constant = round_real(np.ldexp(offsets, shift), how) + zero_point * 2**shift
        if constant.min() >= INT32_MIN and constant.max() <= INT32_MAX:
            return Affine(multipliers(ratios, shift), shift, constant, wanted - shift)
    raise BadQuantization(
        "a bias is too large for the 32-bit constant",
        got=f"{np.abs(offsets).max():g} output steps",
        wanted="less than 2**31",
    )


def mid_exponent(output_scale: float) -> int:
    """M = ceil(log2(255 * sy)) + 1 of the two-step requantization [descriptor: 108 of 108]."""
    fraction, exponent = math.frexp(255 * output_scale)
    # 255 * sy = fraction * 2**exponent with fraction in [0.5, 1): a power of two is its own ceil.
    return exponent - (fraction == 0.5) + 1


def mid_scale(exponent: int) -> float:
    """S = 2**-(15 - M): the scale of the int16 stream between the two steps [descriptor]."""
    return math.ldexp(1.0, exponent - 15)


def first_step(scales: Float64, shift: int, mid: float) -> tuple[Int64, int]:
    """(A_c, s1) with A_c = round(sx * sw_c * 2**(shift_o + s1) / S), the largest in [2^14, 2^15).

    scales: sx * sw_c. [descriptor: 64 of 64 multipliers; silicon]
    """
    ratios = np.ldexp(scales, shift) / mid
    first_shift = bounded_shift(float(ratios.max()))
    return multipliers(ratios, first_shift), first_shift


def second_step(
    mid: float, output_scale: float, bias: Float64, zero_point: int, how: str
) -> Affine:
    """A2 = round(S / sy * 2**s2), C_c = floor(bias_c / sy * 2**s2) + zy * 2**s2.

    bias: real values, see bias_two_step. [A2 and C descriptor; silicon with bias 0]
    """
    return affine(np.array([mid / output_scale]), bias / output_scale, zero_point, how)


def one_step(
    scales: Float64, shift: int, output_scale: float, bias: Float64, zero_point: int, how: str
) -> Affine:
    """A_c = round(sx * sw_c / sy * 2**(shift_o + s)), C_c = floor(bias_c / sy * 2**s) + zy * 2**s.

    scales: sx * sw_c. [descriptor: A 9695 of 9698, s 138 of 138, C 9609 of 9698, rest one unit off]
    """
    ratios = np.ldexp(scales / output_scale, shift)
    return affine(ratios, bias / output_scale, zero_point, how)


def bias_two_step(bias: Int64, scale: Float64) -> Float64:
    """Real bias b * sb_c, rounded to float32 once."""
    return (bias.astype(np.float64) * scale).astype(np.float32).astype(np.float64)


def bias_one_step(bias: Int64, scale: Float64) -> Float64:
    """Real bias float32(b) * float32(sb_c), a product of float32."""
    product: npt.NDArray[np.float32] = bias.astype(np.float32) * scale.astype(np.float32)
    return product.astype(np.float64)


def bias_gain(scale: Float64, output_scale: float, shift: int) -> Int64:
    """K_c = round(sb_c / sy * 2**(s + 8)): what one step of a trained bias adds to C [inferred].

    Capped at GAIN_MAX, which only a network whose accumulator steps exceed its output steps meets.
    """
    exact = np.ldexp(scale / output_scale, shift + GAIN_BITS)
    return round_real(np.minimum(exact, GAIN_MAX), "half_away")


def rescale(ratio: float, zero_in: int, zero_out: int, how: str) -> Affine:
    """Requantize: A = round(ratio * 2**s), BC = floor((zo - ratio * zi) * 2**s).

    ratio = s_in / s_out. [descriptor: 4 of 4; silicon after a global average]
    """
    return affine(np.array([ratio]), np.array([zero_out - ratio * zero_in]), 0, how)


def mean_step(count: int, fraction_bits: int) -> tuple[int, int]:
    """(mulval, s) with mulval = round(2**(fraction_bits + s) / N) in [2**14, 2**15).

    fraction_bits: MEAN_BITS for a global average (N = 81: 25891 >> 13; 4096: 16384 >> 18)
    [silicon], 0 for AveragePool (2x2: 16384 >> 16) [descriptor; other windows inferred].
    """
    ratio = math.ldexp(1.0 / count, fraction_bits)
    shift = bounded_shift(ratio)
    return int(multipliers(ratio, shift)), shift


class AddNumbers(NamedTuple):
    """out = round(((A*x1 >> a) + (B*x2 >> b) + (C << c)) / 2**shift)."""

    multipliers: tuple[int, int]
    pre_shifts: tuple[int, int]
    constant: int
    constant_shift: int
    shift: int


def add_step(
    ratios: tuple[float, float], zeros: tuple[int, int], zero_out: int, how: str
) -> AddNumbers:
    """Numbers of an Add from r_i = sx_i / sy [descriptor: all seven of 149 of 150 Adds].

    S from the larger ratio; each multiplier with the smallest pre-shift that puts it in
    [2**14, 2**15); C the nearest integer of (zy - r1 zx1 - r2 zx2) 2**S / 2**c with the smallest
    c for which |C| < 2**15. how: the tie rule of C, undecided.
    """
    shift = bounded_shift(max(ratios))
    pre = [min(normal_shift(r) - shift, SHIFT_MAX) for r in ratios]
    scaled = [int(multipliers(r, shift + p)) for r, p in zip(ratios, pre, strict=True)]
    offset = zero_out - ratios[0] * zeros[0] - ratios[1] * zeros[1]
    constant_shift = 0
    while abs(constant := _constant(offset, shift - constant_shift, how)) >= 2**15:
        constant_shift += 1
    return AddNumbers((scaled[0], scaled[1]), (pre[0], pre[1]), constant, constant_shift, shift)


def _constant(offset: float, shift: int, how: str) -> int:
    return int(round_real(math.ldexp(offset, shift), how))


def product_shift(zeros: tuple[int, int]) -> int:
    """Smallest shift that keeps every product of two centred int8 codes inside int16 [inferred]."""
    first, second = (max(127 - z, z + 128) for z in zeros)
    shift = 0
    while int(rounding.shift_half_away(first * second, shift)) > rounding.INT16_MAX:
        shift += 1
    return shift
