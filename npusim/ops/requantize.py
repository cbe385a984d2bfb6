"""Codes to codes of another scale, zero point or type; also a Relu or Clip on its own."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ir import Array, Site, TensorType
from npusim.numerics import requant
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OpSpec, Rule, register


@dataclass(frozen=True, slots=True)
class RequantizeAttrs:
    """clamp: smallest and largest code the output may take (a fused Relu or Clip)."""

    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.value(0).type.shape)


def lower_float32(site: Site, profile: Profile) -> Lowered:
    return requant.through_float32(site.qparams(0), site.output_qparams, site.attrs.clamp)


def lower_fixed(how: str) -> Lower:
    """TFLite's Quantize from codes to codes (kernels/quantize.cc)."""

    def lower(site: Site, profile: Profile) -> Lowered:
        return requant.rescale_fixed(site.qparams(0), site.output_qparams, how, site.attrs.clamp)

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    assert isinstance(lowered, requant.Requantizer)
    return lowered.apply(x - site.qparams(0).zero_points(), 0)


SPEC = register(
    OpSpec(
        name="requantize",
        summary="Codes to codes of another scale, zero point or type.",
        attrs=RequantizeAttrs,
        infer=infer,
        rules={
            "float32": Rule(lower_float32, reference, "elementwise:bind_unary"),
            "q31-double": Rule(lower_fixed("double"), reference, "elementwise:bind_unary"),
            "q31-single": Rule(lower_fixed("single"), reference, "elementwise:bind_unary"),
            "neural-art": neural_art_arith.REQUANTIZE,
        },
    )
)
