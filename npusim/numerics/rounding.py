"""Every rounding, shift and saturation of the integer arithmetic, in int64 and float32 NumPy.

These functions define what the fast kernels must compute. Integers come and go as int64 arrays (or
anything that broadcasts to them); callers keep magnitudes below 2**62, which every operator proves
when it is lowered. Shift amounts may be arrays; they are never negative unless a function says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def saturate(values: Any, lo: int, hi: int) -> Int64:
    """The nearest integer to each value in lo..hi, both included."""
    return np.clip(np.asarray(values, np.int64), lo, hi)


def shift_floor(values: Any, shift: Any) -> Int64:
    """floor(v / 2**shift): the arithmetic right shift."""
    return np.right_shift(np.asarray(values, np.int64), np.asarray(shift, np.int64))


def shift_half_up(values: Any, shift: Any) -> Int64:
    """v / 2**shift to the nearest integer, ties toward plus infinity."""
    return shift_floor(np.asarray(values, np.int64) + _half(shift), shift)


def shift_half_away(values: Any, shift: Any) -> Int64:
    """v / 2**shift to the nearest integer, ties away from zero.

    gemmlowp's RoundingDivideByPOT and the rounding mode of the Neural-ART units.
    """
    values = np.asarray(values, np.int64)
    result: Int64 = np.sign(values) * shift_half_up(np.abs(values), shift)
    return result


def shift_half_even(values: Any, shift: Any) -> Int64:
    """v / 2**shift to the nearest integer, ties to the even one."""
    values, shift = np.asarray(values, np.int64), np.asarray(shift, np.int64)
    below = shift_floor(values, shift)
    twice_rest = 2 * (values - np.left_shift(below, shift))
    unit = np.left_shift(np.int64(1), shift)
    up = (twice_rest > unit) | ((twice_rest == unit) & (below % 2 == 1))
    return np.where(up, below + 1, below)


def shift_left(values: Any, shift: Any) -> Int64:
    """v * 2**shift."""
    return np.left_shift(np.asarray(values, np.int64), np.asarray(shift, np.int64))


def divide_half_away(values: Any, divisor: Any) -> Int64:
    """v / divisor (positive) to the nearest integer, ties away from zero.

    TFLite's average pooling: (v + d/2) / d for v > 0, else (v - d/2) / d, in C's division.
    """
    values, divisor = np.asarray(values, np.int64), np.asarray(divisor, np.int64)
    result: Int64 = np.sign(values) * ((np.abs(values) + divisor // 2) // divisor)
    return result


def saturating_rounding_doubling_high_multiply(a: Any, b: Any) -> Int64:
    """High 32 bits of 2*a*b for int32 a, b, as gemmlowp's fixedpoint.h defines it.

    (a*b + nudge) / 2**31 truncated toward zero, nudge = 2**30 where a*b >= 0 and 1 - 2**30
    elsewhere; -2**31 times itself, the one overflow, saturates to 2**31 - 1.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    nudged = product + np.where(product >= 0, 2**30, 1 - 2**30)
    truncated = np.sign(nudged) * shift_floor(np.abs(nudged), 31)
    return np.minimum(truncated, INT32_MAX)


def multiply_double_rounding(values: Any, multiplier: Any, shift: Any) -> Int64:
    """v * multiplier * 2**(shift - 31), rounded twice: TFLite's MultiplyByQuantizedMultiplier.

    A positive shift is to the left and comes first; a negative one is a rounding right shift after
    the high multiply. TFLite leaves a left shift beyond int32 undefined; it saturates here.
    """
    shift = np.asarray(shift, np.int64)
    shifted = saturate(shift_left(values, np.maximum(shift, 0)), INT32_MIN, INT32_MAX)
    high = saturating_rounding_doubling_high_multiply(shifted, multiplier)
    return shift_half_away(high, np.maximum(-shift, 0))


def multiply_single_rounding(values: Any, multiplier: Any, shift: Any) -> Int64:
    """v * multiplier * 2**(shift - 31), rounded once, half up: TFLITE_SINGLE_ROUNDING."""
    product = np.asarray(values, np.int64) * np.asarray(multiplier, np.int64)
    return shift_half_up(product, 31 - np.asarray(shift, np.int64))


def multiply_single_rounding_away(values: Any, multiplier: Any, shift: Any) -> Int64:
    """v * multiplier * 2**(shift - 31), rounded once, ties away from zero."""
    product = np.asarray(values, np.int64) * np.asarray(multiplier, np.int64)
    return shift_half_away(product, 31 - np.asarray(shift, np.int64))


def round_half_even(values: Any, zero_point: int, lo: int, hi: int) -> Int64:
    """clip(rint(v) + zero_point) of float32 v; infinities saturate, NaN becomes ``lo``.

    The clip comes first so that no float leaves the range of int64; as the bounds are integers
    that float32 holds exactly, the order does not matter. As onnxruntime's MlasQuantizeLinear.
    """
    return _bounded(np.rint(np.asarray(values, np.float32)), zero_point, lo, hi)


def round_half_away(values: Any, zero_point: int, lo: int, hi: int) -> Int64:
    """clip(round(v) + zero_point), round as C's: ties away from zero (TFLite's TfLiteRound)."""
    values = np.asarray(values, np.float32)
    magnitude = np.abs(values)
    whole = np.floor(magnitude)
    # The difference is exact in float32, where magnitude + 0.5 would not be.
    rounded = np.copysign(np.where(_rest(magnitude, whole) >= 0.5, whole + 1, whole), values)
    return _bounded(rounded, zero_point, lo, hi)


def fused_multiply_add(a: Any, b: Any, c: Any) -> Float32:
    """a*b + c of float32 operands, rounded to float32 once, as an FMA instruction does.

    The product of two float32 is exact in float64. The sum may not be, and rounding it twice would
    be wrong on ties, so it is rounded to odd first (Boldo and Melquiond, 2008).
    """
    product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32)
    addend = np.asarray(c, np.float32)
    total = np.asarray(product + addend)
    of_addend = total - product
    error = (product - (total - of_addend)) + (addend - of_addend)
    even = total.view(np.int64) % 2 == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & even, np.nextafter(total, toward), total)
    return odd.astype(np.float32)


def _half(shift: Any) -> Int64:
    """Half of 2**shift, 0 where the shift is 0."""
    return shift_floor(np.left_shift(np.int64(1), np.asarray(shift, np.int64)), 1)


def _rest(magnitude: Float32, whole: Float32) -> Float32:
    with np.errstate(invalid="ignore"):  # inf - inf
        return magnitude - whole


def _bounded(values: Float32, zero_point: int, lo: int, hi: int) -> Int64:
    bounded = np.fmin(np.fmax(values, lo - zero_point), hi - zero_point)
    return bounded.astype(np.int64) + zero_point
