"""Functions of one 8-bit code as tables of 256 codes, and TFLite's two that are no tables.

Sources: onnxruntime's QLinear kernels, which dequantize, compute in float32 and quantize; TFLite
kernels/activations.cc (PopulateLookupTable, LeakyReluPrepare, HardSwishPrepare) and
kernels/internal/reference/{leaky_relu,hard_swish}.h; docs/numerics.md has the comparisons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npusim.errors import BadQuantization
from npusim.ir import Array, QParams
from npusim.numerics import rounding
from npusim.numerics.functions import Real
from npusim.numerics.lowered import Lowered
from npusim.numerics.requant import multiply, quantize_multiplier, read_only
from npusim.numerics.rounding import Int64

Function = Callable[[Real], Real]

_HIRES_BITS = 7
"""TFLite's hard swish raises input codes by this much, to fill 16 bits."""

_Q15 = 15


@dataclass(frozen=True)
class OneOperand(Lowered, ABC):
    """Numbers that turn one code into another."""

    @abstractmethod
    def apply(self, x: Array) -> Int64:
        """Output codes of the int64 codes ``x``."""


@dataclass(frozen=True)
class CodeTable(OneOperand):
    """codes: int64 [256], the output of every code from ``first`` on."""

    codes: Int64
    first: int

    def apply(self, x: Array) -> Int64:
        result: Int64 = self.codes[x - self.first]
        return result


def every_code(first: int) -> Int64:
    """The 256 codes of an 8-bit type whose smallest one is ``first``."""
    return np.arange(first, first + 256)


def through_float32(
    function: Function, x: QParams, first: int, y: QParams, clamp: tuple[int, int]
) -> CodeTable:
    """onnxruntime: clip(rint(float32(function(float32((x - zx) * sx)) / sy)) + zy).

    first: the input type's smallest code.
    """
    sy, zy = y.scalar()
    with np.errstate(over="ignore"):  # an infinite quotient saturates
        quotient = _evaluated(function, x, first) / sy
    codes = rounding.round_half_even(quotient, zy, *clamp)
    return CodeTable(read_only(codes, np.int64), first)


def by_reciprocal(
    function: Function, x: QParams, first: int, y: QParams, clamp: tuple[int, int]
) -> CodeTable:
    """TFLite's look-up tables: the product with float32(1 / sy), rounded half away from zero."""
    sy, zy = y.scalar()
    with np.errstate(over="ignore"):
        quotient = _evaluated(function, x, first) * (1 / sy)
    codes = rounding.round_half_away(quotient, zy, *clamp)
    return CodeTable(read_only(codes, np.int64), first)


def _evaluated(function: Function, x: QParams, first: int) -> Real:
    sx, zx = x.scalar()
    with np.errstate(over="ignore", under="ignore"):
        return function((every_code(first) - zx).astype(np.float32) * sx)


@dataclass(frozen=True)
class LeakyFixedPoint(OneOperand):
    """TFLite's LeakyRelu: one multiplier for codes above the zero point and one for those below.

    multiplier, shift: above, below. zero_points: of input and output. rounding: as FixedPoint's.
    """

    multiplier: tuple[int, int]
    shift: tuple[int, int]
    zero_points: tuple[int, int]
    rounding: str
    lo: int
    hi: int

    def apply(self, x: Array) -> Int64:
        centred = x - self.zero_points[0]
        above = multiply(np.maximum(centred, 0), self.multiplier[0], self.shift[0], self.rounding)
        below = multiply(np.minimum(centred, 0), self.multiplier[1], self.shift[1], self.rounding)
        return rounding.saturate(above + below + self.zero_points[1], self.lo, self.hi)


def leaky_fixed_point(
    alpha: float, x: QParams, y: QParams, how: str, clamp: tuple[int, int]
) -> LeakyFixedPoint:
    """The ratios sx / sy and sx * alpha / sy, computed in float32 as TFLite does."""
    (sx, zx), (sy, zy) = x.scalar(), y.scalar()
    (m1, e1), (m2, e2) = (
        quantize_multiplier(float(r)) for r in (sx / sy, sx * np.float32(alpha) / sy)
    )
    return LeakyFixedPoint((m1, m2), (e1, e2), (zx, zy), how, *clamp)


@dataclass(frozen=True)
class HardSwishFixedPoint(OneOperand):
    """TFLite's HardSwish in 16 bits: x at the output's scale, times a factor between 0 and 1.

    factor, factor_shift: take x to the factor's scale, where 3.0 is 2**15; a positive shift is to
    the left. multiplier, shift: take x to the output's scale; the shift is to the right and last.
    zero_points: of input and output.
    """

    factor: int
    factor_shift: int
    multiplier: int
    shift: int
    zero_points: tuple[int, int]
    lo: int
    hi: int

    def apply(self, x: Array) -> Int64:
        raised = rounding.shift_left(x - self.zero_points[0], _HIRES_BITS)
        product = self._share(raised) * _high_multiply(raised, self.multiplier)
        # The shares were rounded; this product is cut off, so that the errors cancel.
        cut = np.sign(product) * rounding.shift_floor(np.abs(product), _Q15)
        code = rounding.shift_half_away(cut, self.shift) + self.zero_points[1]
        return rounding.saturate(code, self.lo, self.hi)

    def _share(self, raised: Int64) -> Int64:
        """min(max(x + 3, 0), 6) / 6 in units of 2**-15."""
        left, right = max(self.factor_shift, 0), max(-self.factor_shift, 0)
        # All but the last bit of a left shift come first, so that only the last may saturate.
        x = _saturate16(rounding.shift_left(raised, max(left - 1, 0)))
        x = _high_multiply(x, self.factor)
        x = _saturate16(rounding.shift_left(x, min(left, 1)))
        x = rounding.shift_half_away(x, right)
        return rounding.shift_floor(x + 2**_Q15, 1)


def hard_swish_fixed_point(
    x: QParams, y: QParams, clamp: tuple[int, int], where: str
) -> HardSwishFixedPoint:
    """TFLite's parameters, computed in float32.

    Raises BadQuantization, which names the node, where sx / sy is 128 or more: TFLite refuses it.
    """
    (sx, zx), (sy, zy) = x.scalar(), y.scalar()
    raised = np.float32(2.0**-_HIRES_BITS) * sx
    m, e = quantize_multiplier(float(raised / sy))
    if e > 0:
        raise BadQuantization(
            "hard swish needs an output scale closer to that of its input",
            where=where,
            got=f"{sx:g} / {sy:g}",
            wanted="a ratio below 128",
        )
    # TFLite divides in float32; a third is never close enough to a half of the 15 bits to matter.
    f, ef = quantize_multiplier(float(raised) * 2**_Q15 / 3)
    return HardSwishFixedPoint(_sixteen_bits(f), ef, _sixteen_bits(m), -e, (zx, zy), *clamp)


def _sixteen_bits(mantissa: int) -> int:
    """A q31 mantissa as a q15 one, rounded half up, at most 2**15 - 1."""
    return min((mantissa + 2**15) >> 16, rounding.INT16_MAX)


def _high_multiply(a: Int64, b: int) -> Int64:
    """gemmlowp's SaturatingRoundingDoublingHighMul of int16; b > 0, so that it never saturates.

    Its nudge (2**14, or 1 - 2**14 for negative products) and its truncation are rounding half up.
    """
    return rounding.shift_half_up(a * b, _Q15)


def _saturate16(values: Int64) -> Int64:
    return rounding.saturate(values, rounding.INT16_MIN, rounding.INT16_MAX)
