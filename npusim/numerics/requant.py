"""From scales to the numbers that requantize, and the requantizers themselves.

``FloatScale`` is onnxruntime's (float32 multiplier), ``FixedPoint`` TFLite's (q31 mantissa and
shift). Sources: onnxruntime 1.32 core/mlas/lib/quantize.cpp (MlasRequantizeOutput); TFLite
kernels/internal/quantization_util.cc and kernel_util.cc; docs/numerics.md has the comparisons.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization, NumericsError
from npusim.ir import Array, QParams, Site
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.rounding import Float32, Int64

ADD_LEFT_SHIFT = 20
"""TFLite's headroom for 8-bit additions (kernels/add.cc)."""

MULTIPLY: Mapping[str, Callable[[Any, Any, Any], Int64]] = MappingProxyType(
    {
        "double": rounding.multiply_double_rounding,
        "single": rounding.multiply_single_rounding,
        "away": rounding.multiply_single_rounding_away,
    }
)
"""Fixed-point multiplication: high multiply, then a rounding shift; one half up; one half away."""


@dataclass(frozen=True)
class Requantizer(Lowered, ABC):
    """Numbers that turn exact sums into codes."""

    @abstractmethod
    def apply(self, acc: Array, axis: int) -> Int64:
        """Codes of the exact int64 sums ``acc``, whose channels lie along ``axis``."""


@dataclass(frozen=True)
class TwoOperands(Lowered, ABC):
    """Numbers that combine two code tensors into a third."""

    @abstractmethod
    def apply(self, x1: Array, x2: Array) -> Int64:
        """Output codes for int64 codes of equal or broadcasting shapes."""


@dataclass(frozen=True)
class FloatScale(Requantizer):
    """clip(rint(float32(float32(acc) * multiplier)) + zero_point).

    multiplier: float32 [C]; lo, hi: the smallest and largest code.
    """

    multiplier: Float32
    zero_point: int
    lo: int
    hi: int

    def apply(self, acc: Array, axis: int) -> Int64:
        scaled = acc.astype(np.float32) * along(self.multiplier, acc.ndim, axis)
        return rounding.round_half_even(scaled, self.zero_point, self.lo, self.hi)


@dataclass(frozen=True)
class FixedPoint(Requantizer):
    """clip(round(acc * multiplier * 2**(shift - 31)) + zero_point).

    multiplier: int32 [C], q31. shift: int32 [C], positive to the left as in TFLite.
    rounding: a key of MULTIPLY.
    """

    multiplier: npt.NDArray[np.int32]
    shift: npt.NDArray[np.int32]
    rounding: str
    zero_point: int
    lo: int
    hi: int

    def apply(self, acc: Array, axis: int) -> Int64:
        multiplier = along(self.multiplier, acc.ndim, axis)
        shift = along(self.shift, acc.ndim, axis)
        scaled = multiply(acc, multiplier, shift, self.rounding)
        return rounding.saturate(scaled + self.zero_point, self.lo, self.hi)


def multiply(acc: Any, multiplier: Any, shift: Any, how: str) -> Int64:
    """acc * multiplier * 2**(shift - 31), rounded as ``how`` says (a key of MULTIPLY)."""
    return MULTIPLY[how](acc, multiplier, shift)


def along(values: Array, ndim: int, axis: int) -> Array:
    """``values`` [C] (or [1]) shaped so that it broadcasts along ``axis`` of ``ndim`` axes."""
    shape = [1] * ndim
    shape[axis] = values.size
    return values.reshape(shape)


def read_only(values: Any, dtype: Any) -> Array:
    """A read-only copy, as a Lowered holds it."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def float_scale(ratio: Any, channels: int, zero_point: int, clamp: tuple[int, int]) -> FloatScale:
    """A FloatScale whose float32 ratio (one, or one a channel) covers ``channels``."""
    ratios = np.broadcast_to(np.ravel(ratio), (channels,))
    return FloatScale(read_only(ratios, np.float32), zero_point, *clamp)


def fixed_point(
    ratio: Any, channels: int, how: str, zero_point: int, clamp: tuple[int, int]
) -> FixedPoint:
    """A FixedPoint for the real (float64) ratio, one or one a channel."""
    ratios = np.broadcast_to(np.asarray(ratio, np.float64).ravel(), (channels,))
    mantissas, shifts = zip(*(quantize_multiplier(float(r)) for r in ratios), strict=True)
    multiplier, shift = read_only(mantissas, np.int32), read_only(shifts, np.int32)
    return FixedPoint(multiplier, shift, how, zero_point, *clamp)


def mean_float32(sx: np.float32, sy: np.float32, positions: int) -> np.float32:
    """onnxruntime's multiplier of a global average: float32(sx / float32(sy * positions))."""
    return np.float32(sx / np.float32(sy * np.float32(positions)))


def mean_fixed_point(
    ratio: float, positions: int, channels: int, how: str, zero_point: int, clamp: tuple[int, int]
) -> FixedPoint:
    """TFLite's Mean: the multiplier of ``ratio`` divided by the number of positions in integers.

    kernels/internal/reference/reduce.h, QuantizedMeanOrSum: the mantissa is first raised by as
    many bits as the count has, limited so that the remaining shift stays a legal one.
    """
    mantissa, exponent = quantize_multiplier(ratio)
    raised = min(positions.bit_length() - 1, 32, 31 + exponent)
    multiplier = (mantissa << raised) // positions
    return FixedPoint(
        read_only(np.full(channels, multiplier), np.int32),
        read_only(np.full(channels, exponent - raised), np.int32),
        how,
        zero_point,
        *clamp,
    )


@dataclass(frozen=True)
class ThroughFloat32(Requantizer):
    """clip(rint(float32((x - z) * input_scale) / output_scale) + zero_point): DQ, then Q.

    ``acc`` is x - z; there is one scale for all channels.
    """

    input_scale: float
    output_scale: float
    zero_point: int
    lo: int
    hi: int

    def apply(self, acc: Array, axis: int) -> Int64:
        real = acc.astype(np.float32) * np.float32(self.input_scale)
        quotient = real / np.float32(self.output_scale)
        return rounding.round_half_even(quotient, self.zero_point, self.lo, self.hi)


def through_float32(x: QParams, y: QParams, clamp: tuple[int, int]) -> ThroughFloat32:
    """The requantizer between two per-tensor quantizations, as float32 operators compute it."""
    (sx, _), (sy, zy) = x.scalar(), y.scalar()
    return ThroughFloat32(float(sx), float(sy), zy, *clamp)


def rescale_fixed(x: QParams, y: QParams, how: str, clamp: tuple[int, int]) -> FixedPoint:
    """The requantizer between two per-tensor quantizations, as TFLite's Quantize computes it."""
    (sx, _), (sy, zy) = x.scalar(), y.scalar()
    return fixed_point(float(sx) / float(sy), 1, how, zy, clamp)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(q31 mantissa, shift) with real ~ mantissa * 2**(shift - 31); 0 gives (0, 0).

    TFLite's QuantizeMultiplier: the mantissa lies in [2**30, 2**31), rounded half away from zero;
    below 2**-32 the result is 0. Raises BadQuantization above 2**30, which TFLite refuses too.
    """
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    # The mantissa has 53 bits, so fraction * 2**31 + 0.5 is exact and floor rounds half up.
    mantissa = math.floor(math.ldexp(fraction, 31) + 0.5)
    if mantissa == 2**31:
        mantissa, shift = 2**30, shift + 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        raise BadQuantization(
            "the scales need a multiplier that no fixed point holds",
            got=real,
            wanted="less than 2**30",
        )
    return mantissa, shift


@dataclass(frozen=True)
class AddFixedPoint(TwoOperands):
    """TFLite's quantized Add: both operands at 2**20 times a common scale, then one multiplier.

    multiplier, shift: of operand 1, operand 2 and the output. zero_points: likewise.
    """

    multiplier: tuple[int, int, int]
    shift: tuple[int, int, int]
    zero_points: tuple[int, int, int]
    rounding: str
    lo: int
    hi: int

    def apply(self, x1: Array, x2: Array) -> Int64:
        code = self._scaled(self._raised(x1, 0) + self._raised(x2, 1), 2) + self.zero_points[2]
        return rounding.saturate(code, self.lo, self.hi)

    def _raised(self, x: Array, which: int) -> Int64:
        raised = rounding.shift_left(x - self.zero_points[which], ADD_LEFT_SHIFT)
        return self._scaled(raised, which)

    def _scaled(self, values: Array, which: int) -> Int64:
        return multiply(values, self.multiplier[which], self.shift[which], self.rounding)


def add_fixed_point(
    x1: QParams, x2: QParams, y: QParams, how: str, clamp: tuple[int, int]
) -> AddFixedPoint:
    """TFLite's parameters of Add (kernels/add.cc, Prepare), all in float64."""
    (s1, z1), (s2, z2), (sy, zy) = x1.scalar(), x2.scalar(), y.scalar()
    # float32 * 2 is exact; the quotients are float64 as in TFLite.
    common = 2.0 * max(float(s1), float(s2))
    ratios = (float(s1) / common, float(s2) / common, common / (2**ADD_LEFT_SHIFT * float(sy)))
    (m1, e1), (m2, e2), (my, ey) = (quantize_multiplier(r) for r in ratios)
    return AddFixedPoint((m1, m2, my), (e1, e2, ey), (z1, z2, zy), how, *clamp)


def largest_offset(dtype_range: tuple[int, int], zero_points: Int64) -> int:
    """max |code - zero_point| over all codes of the range."""
    lo, hi = dtype_range
    return int(max(np.max(zero_points - lo), np.max(hi - zero_points)))


def prove_accumulator(site: Site, terms: int) -> None:
    """Show that ``terms`` products and the bias of a conv or gemm always fit in int32.

    The bound uses the codes' range, not today's weights, so training cannot break it. Raises
    NumericsError, which names the node, where it does not hold.
    """
    x, w = site.value(0), site.value(1)
    bias = site.constant(2)
    largest_bias = 0 if bias is None else int(np.max(np.abs(bias.astype(np.int64)), initial=0))
    bound = terms * largest_offset(x.range, site.qparams(0).zero_points())
    bound = bound * largest_offset(w.range, site.qparams(1).zero_points()) + largest_bias
    _refuse_beyond_int32(site, bound, f"{terms} products a sum")


def prove_sum(site: Site, terms: int) -> None:
    """Show that a sum of ``terms`` codes minus their zero point always fits in int32.

    Raises NumericsError, which names the node, where it does not.
    """
    largest = largest_offset(site.value(0).range, site.qparams(0).zero_points())
    _refuse_beyond_int32(site, terms * largest, f"{terms} codes a sum")


def _refuse_beyond_int32(site: Site, bound: int, what: str) -> None:
    if bound >= 2**31:
        raise NumericsError(
            "its sums may not fit in the 32-bit accumulator",
            where=site.node.name,
            got=f"{what}, up to {bound}",
            wanted="less than 2**31",
            hint="Split the layer so that each part sums fewer terms.",
        )
