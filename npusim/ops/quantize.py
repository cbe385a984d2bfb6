"""Float to codes (QuantizeLinear)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Site, TensorType
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops.base import Lower, OpSpec, Rule, register


@dataclass(frozen=True, slots=True)
class QuantizeAttrs:
    """clamp: smallest and largest code the output may take (a fused Relu or Clip)."""

    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.value(0).type.shape)


@dataclass(frozen=True)
class QuantizeNumbers(Lowered):
    """clip(round(float32(x / scale)) + zero_point); ties: "even" or "away" (from zero)."""

    scale: float
    zero_point: int
    lo: int
    hi: int
    ties: str

    def apply(self, x: Array) -> Array:
        """Codes of float32 ``x``."""
        to_integer = rounding.round_half_even if self.ties == "even" else rounding.round_half_away
        with np.errstate(over="ignore"):  # an infinite quotient saturates
            quotient = x / np.float32(self.scale)
        return to_integer(quotient, self.zero_point, self.lo, self.hi)


def lower_ties(ties: str) -> Lower:
    def lower(site: Site, profile: Profile) -> Lowered:
        scale, zero_point = site.output_qparams.scalar()
        lo, hi = site.attrs.clamp
        return QuantizeNumbers(float(scale), zero_point, lo, hi, ties)

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    assert isinstance(lowered, QuantizeNumbers)
    return lowered.apply(x)


SPEC = register(
    OpSpec(
        name="quantize",
        summary="Float to codes.",
        attrs=QuantizeAttrs,
        infer=infer,
        rules={
            "half-even": Rule(lower_ties("even"), reference),
            "half-away": Rule(lower_ties("away"), reference),
        },
        runs_on="software",
    )
)
