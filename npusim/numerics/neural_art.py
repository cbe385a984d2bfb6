"""The neural-art profile's switches, and the lowering of every operator under them.

The functions take plain scales, zero points and codes; npusim.ops.neural_art_* gather those from a
graph. Splits are in neural_art_passes, formulas in neural_art_lowering, and what the numbers then
do in neural_art_epilogue. npusim/numerics/profiles/neural_art.toml says how sure each switch is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npusim.errors import BadQuantization, NumericsError, UsageError
from npusim.numerics import neural_art_lowering as formulas
from npusim.numerics.neural_art_epilogue import (
    SHIFTS,
    AddStep,
    Convolution,
    GlobalAverage,
    Keep,
    MulSteps,
    OneStep,
    Rescale,
    TwoStep,
    WindowAverage,
)
from npusim.numerics.neural_art_lowering import Affine, Float64
from npusim.numerics.neural_art_passes import Split, SplitLimits, Window, segments, split
from npusim.numerics.profile import Profile
from npusim.numerics.requant import read_only
from npusim.numerics.rounding import Int64

_ROUNDINGS = tuple(SHIFTS)
_TIES = tuple(name for name in SHIFTS if name != "floor")


@dataclass(frozen=True, slots=True)
class Switches:
    """Options of the arithmetic; a profile's switches of the same names.

    requant: "two_step" or "one_step". shift: "auto" (the rule), or one number for every layer.
    ties: rounding of every numeric step. pre_rounding: of the shift inside an arithmetic step.
    constant_rounding: of the constants C and BC. add_constant_ties: of an Add's C.
    accumulator_bits: width that no sum of a pass may leave; accumulator_check: "refuse" or "off".
    """

    requant: str = "two_step"
    shift: str | int = "auto"
    ties: str = "half_away"
    pre_rounding: str = "floor"
    constant_rounding: str = "floor"
    add_constant_ties: str = "half_away"
    accumulator_bits: int = 32
    accumulator_check: str = "refuse"
    limits: SplitLimits = dataclasses.field(default_factory=SplitLimits)

    @classmethod
    def of(cls, profile: Profile) -> Switches:
        """The switches that a profile sets. Raises UsageError for a value there is none of."""
        for name, choices in CHOICES.items():
            if name in profile.switches and profile.switches[name] not in choices:
                raise UsageError(
                    "a switch has no such value",
                    where=f"{profile.name}, {name}",
                    got=profile.switches[name],
                    wanted=", ".join(choices),
                )
        own = {f.name for f in dataclasses.fields(cls)} & set(profile.switches)
        split_names = {f.name for f in dataclasses.fields(SplitLimits)} & set(profile.switches)
        return cls(
            **{name: profile.switches[name] for name in own},
            limits=SplitLimits(**{name: profile.switches[name] for name in split_names}),
        )


CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "requant": ("two_step", "one_step"),
        "ties": _TIES,
        "pre_rounding": _ROUNDINGS,
        "constant_rounding": _ROUNDINGS,
        "add_constant_ties": _TIES,
        "accumulator_check": ("refuse", "off"),
        "unit_map": ("input", "output_when_strided"),
        "passes": ("fitted", "single"),
    }
)
"""What the switches that are names may be; the first is the default."""


class Tensor(NamedTuple):
    """Scale and zero point of an activation in signed codes."""

    scale: float
    zero_point: int


class Output(NamedTuple):
    """Likewise, with the smallest and largest signed code that a fused Relu or Clip leaves.

    offset: 128 for uint8, else 0.
    """

    scale: float
    zero_point: int
    lo: int = -128
    hi: int = 127
    offset: int = 0


class Weights(NamedTuple):
    """Codes of a convolution or Gemm, output channels first, zero points taken off.

    codes: int64 [channels, ...]. scales: float32 values [channels]. bias: int64 [channels] codes.
    bias_scales: float32 values [channels].
    """

    codes: Int64
    scales: Float64
    bias: Int64
    bias_scales: Float64


def convolution(
    x: Tensor, weights: Weights, y: Output, window: Window, switches: Switches, where: str
) -> Convolution:
    """Lowering of a convolution or Gemm.

    Raises BadQuantization where the scales do not fit the hardware's numbers, NumericsError where
    a sum could leave the accumulator.
    """
    parts = split(window, switches.limits)
    shift = _shift(weights, switches)
    _check_accumulator(x, parts, shift, switches, where)
    try:
        numbers = _requantizer(x, weights, y, shift, switches)
    except BadQuantization as error:
        raise _located(error, where) from None
    shared: dict[str, Any] = {
        "form": window.form,
        "rows": parts.rows,
        "columns": parts.columns,
        "channels": parts.channels,
        "shift": shift,
        "ties": switches.ties,
        "bias": read_only(weights.bias, np.int64),
        **_bounds(y),
    }
    return (TwoStep if switches.requant == "two_step" else OneStep)(**shared, **numbers)


def _shift(weights: Weights, switches: Switches) -> int:
    return formulas.sum_shift(weights.codes) if switches.shift == "auto" else int(switches.shift)


def _requantizer(
    x: Tensor, weights: Weights, y: Output, shift: int, switches: Switches
) -> dict[str, Any]:
    """The fields of TwoStep or OneStep that the requantization adds to the split."""
    scales = x.scale * weights.scales
    how = switches.constant_rounding
    if switches.requant == "one_step":
        real = formulas.bias_one_step(weights.bias, weights.bias_scales)
        last = formulas.one_step(scales, shift, y.scale, real, y.zero_point, how)
        numbers: dict[str, Any] = {"multiplier_shift": last.shift}
        multiplier = last.multiplier
    else:
        exponent = formulas.mid_exponent(y.scale)
        mid = formulas.mid_scale(exponent)
        real = formulas.bias_two_step(weights.bias, weights.bias_scales)
        multiplier, multiplier_shift = formulas.first_step(scales, shift, mid)
        last = formulas.second_step(mid, y.scale, real, y.zero_point, how)
        numbers = {
            "multiplier_shift": multiplier_shift,
            "mid_exponent": exponent,
            "final_multiplier": last.multiplier.item(),
            "final_shift": last.shift,
        }
    gain = formulas.bias_gain(weights.bias_scales, y.scale, last.shift)
    return numbers | {
        "multiplier": read_only(multiplier, np.int64),
        "constant": read_only(last.constant, np.int64),
        "gain": read_only(gain, np.int64),
        "dropped": last.dropped,
    }


def _check_accumulator(x: Tensor, parts: Split, shift: int, switches: Switches, where: str) -> None:
    """Show from the codes' range, not today's weights, that every sum of a pass fits."""
    if switches.accumulator_check == "off":
        return
    largest = max(127 - x.zero_point, x.zero_point + 128) * 128
    for s in segments(parts):
        carried = 2 ** (15 + shift) if s.index else 0
        if s.terms * largest + carried >= 2 ** (switches.accumulator_bits - 1):
            raise NumericsError(
                "the sums of a pass may not fit in the accumulator",
                where=where,
                got=f"{s.terms} products, up to {s.terms * largest + carried}",
                wanted=f"less than 2**{switches.accumulator_bits - 1}",
                hint="Give the layer more passes in a lowering file, or split it.",
            )


def requantizer(x: Tensor, y: Output, switches: Switches, where: str) -> Rescale | Keep:
    """Codes to codes: nothing but saturation where scale and zero point are equal [inferred]."""
    if (x.scale, x.zero_point) == (y.scale, y.zero_point):
        return Keep(**_bounds(y))
    return _rescale(x.scale / y.scale, x.zero_point, y, 0, switches, where)


def global_average(
    x: Tensor, y: Output, positions: int, switches: Switches, where: str
) -> GlobalAverage:
    """int16 mean with 8 fraction bits, then a requantize step [silicon]."""
    multiplier, shift = formulas.mean_step(positions, formulas.MEAN_BITS)
    ratio = x.scale / y.scale
    last = _rescale(ratio, x.zero_point, y, formulas.MEAN_BITS, switches, where)
    return GlobalAverage(multiplier, shift, switches.ties, last)


def window_average(
    x: Tensor, y: Output, counts: Sequence[int], switches: Switches, where: str
) -> WindowAverage:
    """AveragePool by reciprocal; counts: the numbers of positions that windows have."""
    sizes = tuple(sorted(set(counts)))
    steps = [formulas.mean_step(count, 0) for count in sizes]
    return WindowAverage(
        counts=sizes,
        multipliers=tuple(multiplier for multiplier, _ in steps),
        shifts=tuple(shift for _, shift in steps),
        ties=switches.ties,
        rescale=requantizer(x, y, switches, where),
    )


def add(x1: Tensor, x2: Tensor, y: Output, switches: Switches, where: str) -> AddStep:
    """One arithmetic step [descriptor]."""
    try:
        numbers = formulas.add_step(
            (x1.scale / y.scale, x2.scale / y.scale),
            (x1.zero_point, x2.zero_point),
            y.zero_point,
            switches.add_constant_ties,
        )
    except BadQuantization as error:
        raise _located(error, where) from None
    return AddStep(
        **numbers._asdict(),
        ties=switches.ties,
        pre_rounding=switches.pre_rounding,
        lo=y.lo,
        hi=y.hi,
        offset=y.offset,
    )


def mul(x1: Tensor, x2: Tensor, y: Output, switches: Switches, where: str) -> MulSteps:
    """Product, removal of a zero point, requantize [fields from descriptors, order inferred]."""
    zeros = (x1.zero_point, x2.zero_point)
    shift = formulas.product_shift(zeros)
    ratio = x1.scale * x2.scale / y.scale * 2**shift
    return MulSteps(zeros, shift, switches.ties, _rescale(ratio, 0, y, 0, switches, where))


def _rescale(
    ratio: float, zero_in: int, y: Output, pre_shift: int, switches: Switches, where: str
) -> Rescale:
    try:
        numbers: Affine = formulas.rescale(ratio, zero_in, y.zero_point, switches.constant_rounding)
    except BadQuantization as error:
        raise _located(error, where) from None
    return Rescale(
        multiplier=numbers.multiplier.item(),
        pre_shift=pre_shift,
        constant=numbers.constant.item(),
        shift=numbers.shift,
        ties=switches.ties,
        pre_rounding=switches.pre_rounding,
        lo=y.lo,
        hi=y.hi,
        offset=y.offset,
    )


def _bounds(y: Output) -> dict[str, int]:
    return {"lo": y.lo, "hi": y.hi, "offset": y.offset}


def _located(error: BadQuantization, where: str) -> BadQuantization:
    return BadQuantization(
        error.problem, where=where, got=error.got, wanted=error.wanted, hint=error.hint
    )
