"""What the units of the neural-art NPU do to sums and codes: the int64 reference.

Every class holds the numbers of one node, as an override file may change them, and computes with
them alone. Codes are signed (a uint8 tensor counts as int8, ``offset`` = 128 is put back at the
end). Magnitudes stay below 2**62: int16 streams, 16-bit multipliers and 32-bit constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from npusim.errors import UsageError
from npusim.ir import Array
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_lowering import GAIN_BITS, GAIN_MAX, SHIFT_MAX
from npusim.numerics.neural_art_passes import Segment, Split, segments
from npusim.numerics.requant import along
from npusim.numerics.rounding import INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, Int64

SHIFTS: Mapping[str, Callable[[Any, Any], Int64]] = MappingProxyType(
    {
        "floor": rounding.shift_floor,
        "half_away": rounding.shift_half_away,
        "half_up": rounding.shift_half_up,
        "half_even": rounding.shift_half_even,
    }
)
"""The roundings of a right shift, by the names that the switches use."""


class Stream(NamedTuple):
    """Values of a tensor, and how many of them the hardware's int16 or int32 saturation changed."""

    values: Int64
    saturated: int


def saturate16(values: Int64) -> Stream:
    """An int16 stream. On the NPU this saturation is silent, so it is counted here."""
    clipped = rounding.saturate(values, INT16_MIN, INT16_MAX)
    return Stream(clipped, int(np.count_nonzero(clipped != values)))


def chain(sums: Iterable[tuple[Segment, Int64]], shift: int, ties: str) -> Stream:
    """One int16 stream from the exact sums of every segment, in execution order.

    First pass of a piece: x16 = sat16(round(acc >> shift)). Later passes add to it:
    x16 = sat16(round((acc + (x16 << shift)) >> shift)), the tie rule seeing the sign of the total
    [descriptor]. Pieces are added with saturation [silicon for one pass a piece].
    """
    total: Int64 = np.zeros((), np.int64)
    saturated = 0
    for _, passes in groupby(sums, key=lambda item: item[0].piece):
        piece: Int64 = np.zeros((), np.int64)
        for _, acc in passes:
            raised = acc + rounding.shift_left(piece, shift)
            piece, count = saturate16(SHIFTS[ties](raised, shift))
            saturated += count
        total, count = saturate16(total + piece)
        saturated += count
    return Stream(total, saturated)


_MULTIPLIER, _CONSTANT = (INT16_MIN, INT16_MAX), (INT32_MIN, INT32_MAX)
_SHIFT, _CODE, _SIZE = (0, SHIFT_MAX), (-128, 127), (1, INT32_MAX)
_RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        **dict.fromkeys(("rows", "columns", "channels", "counts"), _SIZE),
        **dict.fromkeys(("multiplier", "multipliers", "final_multiplier"), _MULTIPLIER),
        **dict.fromkeys(("shift", "shifts", "multiplier_shift", "final_shift"), _SHIFT),
        **dict.fromkeys(("pre_shift", "pre_shifts", "constant_shift"), _SHIFT),
        **dict.fromkeys(("constant", "bias"), _CONSTANT),
        **dict.fromkeys(("lo", "hi", "zeros"), _CODE),
        "gain": (0, GAIN_MAX),
    }
)
"""Smallest and largest value of the fields below, whichever class has them."""


@dataclass(frozen=True)
class Numbers(Lowered):
    """Numbers that an override file may have changed: each must fit the hardware's width.

    Raises UsageError where one does not.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("ties", "pre_rounding") and value not in SHIFTS:
                raise UsageError(
                    "no rounding of this name",
                    where=field.name,
                    got=value,
                    wanted=", ".join(SHIFTS),
                )
            lo, hi = _RANGES.get(field.name, (None, None))
            if lo is not None and not (lo <= np.min(value) and np.max(value) <= hi):
                raise UsageError(
                    "a number does not fit", where=field.name, got=value, wanted=f"{lo}..{hi}"
                )


@dataclass(frozen=True)
class Convolution(Numbers, ABC):
    """The part that every convolution and Gemm shares: split, shift, and the 32-bit constant.

    form: how features reach the unit: "unsigned", "signed" or "wide" (16 bits); it bounds the
        passes and changes no value.
    rows, columns, channels: the split, see neural_art_passes.Split.
    shift: right shift of every sum (shift_o). ties: rounding of every numeric step.
    multiplier, multiplier_shift: A_c and its shift.
    constant: C_c, int64 [channels]: bias and output zero point. bias: the int64 bias codes that it
        was made from; gain: what one step of a bias changes, in 2**-8 of C.
    lo, hi: smallest and largest signed code; offset: added last (128 for uint8).
    dropped: bits that the last shift was lowered by because a number did not fit.
    """

    form: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    channels: tuple[tuple[int, int, int], ...]
    shift: int
    ties: str
    multiplier: Int64
    multiplier_shift: int
    constant: Int64
    bias: Int64
    gain: Int64
    lo: int
    hi: int
    offset: int
    dropped: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.channels) != len(self.rows) * len(self.columns):
            raise UsageError(
                "channels must hold (channels a unit, units, passes) for every piece",
                got=len(self.channels),
                wanted=len(self.rows) * len(self.columns),
            )

    def segments(self) -> tuple[Segment, ...]:
        """Every pass of every piece in execution order."""
        return tuple(segments(Split(self.rows, self.columns, self.channels)))

    def changed(self, **changes: Any) -> Self:
        """A copy with other numbers.

        A new ``shift`` alone moves ``multiplier_shift`` the other way so that the real scale
        stays. Raises UsageError where the split no longer covers the kernel.
        """
        if "shift" in changes and "multiplier_shift" not in changes:
            moved = self.multiplier_shift + self.shift - changes["shift"]
            changes |= self._rescaled(moved, changes)
        new = replace(self, **changes)
        for name in ("rows", "columns"):
            _same_total(name, sum(getattr(self, name)), sum(getattr(new, name)))
        for old_depth, new_depth in ((np.prod(self.channels[0]), np.prod(c)) for c in new.channels):
            _same_total("channels", int(old_depth), int(new_depth))
        return new

    def _rescaled(self, multiplier_shift: int, changes: dict[str, Any]) -> dict[str, Any]:
        return {"multiplier_shift": multiplier_shift}

    def stream(self, sums: Iterable[tuple[Segment, Int64]]) -> Stream:
        """The int16 stream of the exact sums of all segments."""
        return chain(sums, self.shift, self.ties)

    def constants(self, bias: Int64 | None) -> Stream:
        """C_c for the present bias codes: C0 + ((gain * (b - b0) + 128) >> 8), int32 saturated."""
        if bias is None:
            return Stream(self.constant, 0)
        moved = rounding.shift_half_up(self.gain * (bias - self.bias), GAIN_BITS)
        constant = self.constant + moved
        clipped = rounding.saturate(constant, INT32_MIN, INT32_MAX)
        return Stream(clipped, int(np.count_nonzero(clipped != constant)))

    @abstractmethod
    def requantize(self, x16: Int64, bias: Int64 | None, axis: int) -> Stream:
        """Output codes of the int16 stream, whose channels lie along ``axis``.

        Counted are int16 values between the steps; constants are counted by ``constants``.
        """

    def apply(self, x16: Int64, bias: Int64 | None = None, axis: int = 1) -> Int64:
        """Output codes of the int16 stream; ``requantize`` without the count."""
        return self.requantize(x16, bias, axis).values

    def _codes(self, values: Int64, shift: int) -> Int64:
        rounded = SHIFTS[self.ties](values, shift)
        return rounding.saturate(rounded, self.lo, self.hi) + self.offset


@dataclass(frozen=True)
class TwoStep(Convolution):
    """Compilers 1.1.0 and 1.1.1: int16 to int16 by channel, then to int8 with the constant.

    y16 = sat16(round(A_c * x16 >> multiplier_shift)); out = sat8(round((A2 * y16 + C_c) >>
    final_shift)). mid_exponent: M; the scale of y16 is 2**-(15 - M) (not used by the arithmetic).
    """

    mid_exponent: int
    final_multiplier: int
    final_shift: int

    def requantize(self, x16: Int64, bias: Int64 | None, axis: int) -> Stream:
        multiplier = along(self.multiplier, x16.ndim, axis)
        middle = saturate16(SHIFTS[self.ties](multiplier * x16, self.multiplier_shift))
        constant = along(self.constants(bias).values, x16.ndim, axis)
        total = self.final_multiplier * middle.values + constant
        return Stream(self._codes(total, self.final_shift), middle.saturated)


@dataclass(frozen=True)
class OneStep(Convolution):
    """Compiler 1.1.3: out = sat8(round((A_c * x16 + C_c) >> multiplier_shift))."""

    def requantize(self, x16: Int64, bias: Int64 | None, axis: int) -> Stream:
        total = along(self.multiplier, x16.ndim, axis) * x16
        total = total + along(self.constants(bias).values, x16.ndim, axis)
        return Stream(self._codes(total, self.multiplier_shift), 0)

    def _rescaled(self, multiplier_shift: int, changes: dict[str, Any]) -> dict[str, Any]:
        """C and gain count units of 2**-multiplier_shift: they follow it, C by flooring."""
        moved = multiplier_shift - self.multiplier_shift
        scaled = {
            name: rounding.shift_floor(
                rounding.shift_left(getattr(self, name), max(moved, 0)), max(-moved, 0)
            )
            for name in ("constant", "gain")
            if name not in changes
        }
        return {"multiplier_shift": multiplier_shift, **scaled}


def _same_total(name: str, old: int, new: int) -> None:
    if old != new:
        raise UsageError("the split must cover the whole kernel", where=name, got=new, wanted=old)


@dataclass(frozen=True)
class Rescale(Numbers):
    """out = sat8(round(((A * x >> pre_shift) + C) >> shift)): one arithmetic step on codes.

    Requantize, an operand of Concat, and the step after a global average (pre_shift 8).
    pre_rounding: rounding of the pre-shift (floor).
    """

    multiplier: int
    pre_shift: int
    constant: int
    shift: int
    ties: str
    pre_rounding: str
    lo: int
    hi: int
    offset: int

    def apply(self, x: Int64) -> Int64:
        """Output codes of signed codes (or of an int16 stream) of any shape."""
        scaled = SHIFTS[self.pre_rounding](self.multiplier * x, self.pre_shift)
        rounded = SHIFTS[self.ties](scaled + self.constant, self.shift)
        return rounding.saturate(rounded, self.lo, self.hi) + self.offset


@dataclass(frozen=True)
class Keep(Numbers):
    """Same scale and zero point on both sides: saturation only [inferred for Concat]."""

    lo: int
    hi: int
    offset: int

    def apply(self, x: Int64) -> Int64:
        """Output codes of signed codes."""
        return rounding.saturate(x, self.lo, self.hi) + self.offset


@dataclass(frozen=True)
class Joined(Numbers):
    """Concat: a Rescale or Keep for each operand."""

    operands: tuple[Rescale | Keep, ...]


@dataclass(frozen=True)
class AddStep(Numbers):
    """out = sat8(round(((A*x1 >> a) + (B*x2 >> b) + (C << c)) >> shift)), signed raw codes."""

    multipliers: tuple[int, int]
    pre_shifts: tuple[int, int]
    constant: int
    constant_shift: int
    shift: int
    ties: str
    pre_rounding: str
    lo: int
    hi: int
    offset: int

    def apply(self, x1: Int64, x2: Int64) -> Int64:
        """Output codes of signed codes of equal or broadcasting shapes."""
        pre = SHIFTS[self.pre_rounding]
        total = pre(self.multipliers[0] * x1, self.pre_shifts[0])
        total = total + pre(self.multipliers[1] * x2, self.pre_shifts[1])
        total = total + rounding.shift_left(self.constant, self.constant_shift)
        rounded = SHIFTS[self.ties](total, self.shift)
        return rounding.saturate(rounded, self.lo, self.hi) + self.offset


@dataclass(frozen=True)
class MulSteps(Numbers):
    """Three arithmetic steps [fields from descriptors; never replayed; order inferred].

    p = sat16(round(x1 * (x2 - z2) >> shift)); q = sat16(round(((p << shift) - z1 * (x2 - z2)) >>
    shift)); out = the ``rescale`` of q. shift: the smallest that keeps a product inside int16.
    """

    zeros: tuple[int, int]
    shift: int
    ties: str
    rescale: Rescale

    def apply(self, x1: Int64, x2: Int64) -> Int64:
        """Output codes of signed codes of equal or broadcasting shapes."""
        centred = x2 - self.zeros[1]
        product = saturate16(SHIFTS[self.ties](x1 * centred, self.shift)).values
        removed = rounding.shift_left(product, self.shift) - self.zeros[0] * centred
        middle = saturate16(SHIFTS[self.ties](removed, self.shift)).values
        return self.rescale.apply(middle)


@dataclass(frozen=True)
class GlobalAverage(Numbers):
    """x16 = sat16(round(sum * multiplier >> shift)), 8 fraction bits; then rescale [silicon]."""

    multiplier: int
    shift: int
    ties: str
    rescale: Rescale

    def stream(self, sums: Int64) -> Stream:
        """The int16 mean of exact sums of signed raw codes (zero point left in)."""
        return saturate16(SHIFTS[self.ties](sums * self.multiplier, self.shift))

    def apply(self, sums: Int64) -> Int64:
        """Output codes of exact sums."""
        return self.rescale.apply(self.stream(sums).values)


@dataclass(frozen=True)
class WindowAverage(Numbers):
    """AveragePool: sat8(round(sum * multiplier >> shift)), then ``rescale`` to the output.

    counts: the window sizes that occur (one, unless padding is left out of the mean [inferred]);
    multipliers, shifts: the reciprocal of each.
    """

    counts: tuple[int, ...]
    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    ties: str
    rescale: Rescale | Keep

    def apply(self, sums: Int64, counts: Array) -> Int64:
        """Output codes of exact sums of signed raw codes over ``counts`` positions each."""
        which = np.searchsorted(np.array(self.counts), counts)
        multiplier = np.array(self.multipliers, np.int64)[which]
        shift = np.array(self.shifts, np.int64)[which]
        code = rounding.saturate(SHIFTS[self.ties](sums * multiplier, shift), -128, 127)
        return self.rescale.apply(code)
