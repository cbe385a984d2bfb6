"""Sum of two quantized tensors with scales of their own, broadcast as NumPy does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Site, TensorType
from npusim.numerics import requant, rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OpSpec, Rule, register
from npusim.ops.broadcast import broadcast_shape


@dataclass(frozen=True, slots=True)
class AddAttrs:
    """clamp: smallest and largest code the output may take (a fused Relu or Clip)."""

    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    shape = broadcast_shape(site.value(0).type.shape, site.value(1).type.shape)
    return TensorType(site.output.type.dtype, shape)


@dataclass(frozen=True)
class AddFloat32(requant.TwoOperands):
    """clip(rint(fma(x1, ratio1, fma(x2, ratio2, offset)))) on raw codes, all in float32.

    ratio = s/sy; offset = float32(zy - fma(ratio1, z1, float32(ratio2 * z2))).
    """

    ratio1: float
    ratio2: float
    offset: float
    lo: int
    hi: int

    def apply(self, x1: Array, x2: Array) -> Array:
        second = rounding.fused_multiply_add(x2, self.ratio2, self.offset)
        total = rounding.fused_multiply_add(x1, self.ratio1, second)
        return rounding.round_half_even(total, 0, self.lo, self.hi)


def lower_float32(site: Site, profile: Profile) -> Lowered:
    (s1, z1), (s2, z2) = site.qparams(0).scalar(), site.qparams(1).scalar()
    sy, zy = site.output_qparams.scalar()
    ratio1, ratio2 = s1 / sy, s2 / sy
    taken_off = rounding.fused_multiply_add(ratio1, z1, ratio2 * np.float32(z2))
    offset = np.float32(zy) - taken_off
    return AddFloat32(float(ratio1), float(ratio2), float(offset), *site.attrs.clamp)


def lower_fixed(how: str) -> Lower:
    """TFLite's parameters, see requant.add_fixed_point."""

    def lower(site: Site, profile: Profile) -> Lowered:
        return requant.add_fixed_point(
            site.qparams(0), site.qparams(1), site.output_qparams, how, site.attrs.clamp
        )

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x1, x2 = inputs
    assert x1 is not None
    assert x2 is not None
    assert isinstance(lowered, requant.TwoOperands)
    return lowered.apply(x1, x2)


SPEC = register(
    OpSpec(
        name="add",
        summary="Sum of two tensors with scales of their own.",
        attrs=AddAttrs,
        infer=infer,
        rules={
            "float32": Rule(lower_float32, reference, "elementwise:bind_binary"),
            "q31-double": Rule(lower_fixed("double"), reference, "elementwise:bind_binary"),
            "q31-single": Rule(lower_fixed("single"), reference, "elementwise:bind_binary"),
            "neural-art": neural_art_arith.ADD,
        },
    )
)
