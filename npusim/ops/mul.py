"""Product of two quantized tensors with scales of their own, broadcast as NumPy does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics import requant, rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OnnxRow, OpSpec, Rule, register
from npusim.ops.broadcast import broadcast_shape
from npusim.ops.unit import QOperands, Step, Unit, operands_of


@dataclass(frozen=True, slots=True)
class MulAttrs:
    """clamp: smallest and largest code the output may take (a fused Relu or Clip)."""

    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    shape = broadcast_shape(site.value(0).type.shape, site.value(1).type.shape)
    return TensorType(site.output.type.dtype, shape)


@dataclass(frozen=True)
class MulFloat32(requant.Requantizer):
    """clip(rint(float32(float32(acc) * multiplier) + zero_point)), acc = (x1 - z1) * (x2 - z2).

    The zero point is added before rounding, so ties depend on its parity.
    """

    multiplier: float
    zero_point: int
    lo: int
    hi: int

    def apply(self, acc: Array, axis: int) -> Array:
        scaled = acc.astype(np.float32) * np.float32(self.multiplier)
        return rounding.round_half_even(scaled + np.float32(self.zero_point), 0, self.lo, self.hi)


def lower_float32(site: Site, profile: Profile) -> Lowered:
    """onnxruntime: multiplier = float32(float32(s1 * s2) / sy)."""
    (s1, _), (s2, _) = site.qparams(0).scalar(), site.qparams(1).scalar()
    sy, zy = site.output_qparams.scalar()
    return MulFloat32(float(s1 * s2 / sy), zy, *site.attrs.clamp)


def lower_fixed(how: str) -> Lower:
    """TFLite's ratio s1 * s2 / sy, which it computes in float32 (kernels/mul.cc)."""

    def lower(site: Site, profile: Profile) -> Lowered:
        (s1, _), (s2, _) = site.qparams(0).scalar(), site.qparams(1).scalar()
        sy, zy = site.output_qparams.scalar()
        return requant.fixed_point(np.float64(s1 * s2 / sy), 1, how, zy, site.attrs.clamp)

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x1, x2 = inputs
    assert x1 is not None
    assert x2 is not None
    (_, z1), (_, z2) = site.qparams(0).scalar(), site.qparams(1).scalar()
    assert isinstance(lowered, requant.Requantizer)
    return lowered.apply((x1 - z1) * (x2 - z2), 0)


def convert(unit: Unit) -> Step:
    """ONNX Mul of two quantized tensors."""
    return Step("mul", MulAttrs(unit.clamp), unit.names(0, 1))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearMul: a, sa, za, b, sb, zb, sy, zy."""
    a, sa, za, b, sb, zb, sy, zy = operands_of(node, 7, 8)
    return QOperands("Mul", {}, ((a, sa, za), (b, sb, zb)), (sy, zy))


SPEC = register(
    OpSpec(
        name="mul",
        summary="Product of two tensors with scales of their own.",
        attrs=MulAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Mul", (7, 13, 14), "qdq", convert),
            OnnxRow("QLinearMul", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32, reference, "elementwise:bind_binary"),
            "q31-double": Rule(lower_fixed("double"), reference, "elementwise:bind_binary"),
            "q31-single": Rule(lower_fixed("single"), reference, "elementwise:bind_binary"),
            "neural-art": neural_art_arith.MUL,
        },
    )
)
