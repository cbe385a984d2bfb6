"""Sum of two quantized tensors with scales of their own, broadcast as NumPy does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

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
class AddAttrs:
    """clamp: smallest and largest code the output may take (a fused Relu or Clip)."""

    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    shape = broadcast_shape(site.value(0).type.shape, site.value(1).type.shape)
    return TensorType(site.output.type.dtype, shape)


@dataclass(frozen=True)
class AddFloat32(requant.TwoOperands):
    """clip(rint(fma(a, ratio_a, fma(b, ratio_b, offset)))) on raw codes, all in float32.

    ratio = s/sy; offset = float32(zy - fma(ratio_a, za, float32(ratio_b * zb))).
    exchanged: b is the first operand and a the second, else a is the first.
    """

    ratio_a: float
    ratio_b: float
    offset: float
    exchanged: bool
    lo: int
    hi: int

    def apply(self, x1: Array, x2: Array) -> Array:
        a, b = (x2, x1) if self.exchanged else (x1, x2)
        of_b = rounding.fused_multiply_add(b, self.ratio_b, self.offset)
        total = rounding.fused_multiply_add(a, self.ratio_a, of_b)
        return rounding.round_half_even(total, 0, self.lo, self.hi)


def repeats_first(site: Site) -> bool:
    """True where broadcasting holds the first operand still along the innermost axis that counts.

    onnxruntime's kernel wants the repeated operand second and exchanges the two, which changes
    the order of the additions. The batch counts as more than one image.
    """
    shapes = (reversed(site.value(i).type.shape) for i in (0, 1))
    for first, second in zip_longest(*shapes, fillvalue=1):
        if first != second:
            return first == 1
        if first != 1:
            return False
    return False


def lower_float32(site: Site, profile: Profile) -> Lowered:
    exchanged = repeats_first(site)
    a, b = (1, 0) if exchanged else (0, 1)
    (sa, za), (sb, zb) = site.qparams(a).scalar(), site.qparams(b).scalar()
    sy, zy = site.output_qparams.scalar()
    ratio_a, ratio_b = sa / sy, sb / sy
    taken_off = rounding.fused_multiply_add(ratio_a, za, ratio_b * np.float32(zb))
    offset = np.float32(zy) - taken_off
    lo, hi = site.attrs.clamp
    return AddFloat32(float(ratio_a), float(ratio_b), float(offset), exchanged, lo, hi)


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


def convert(unit: Unit) -> Step:
    """ONNX Add of two quantized tensors."""
    return Step("add", AddAttrs(unit.clamp), unit.names(0, 1))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearAdd: a, sa, za, b, sb, zb, sy, zy."""
    a, sa, za, b, sb, zb, sy, zy = operands_of(node, 7, 8)
    return QOperands("Add", {}, ((a, sa, za), (b, sb, zb)), (sy, zy))


SPEC = register(
    OpSpec(
        name="add",
        summary="Sum of two tensors with scales of their own.",
        attrs=AddAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Add", (7, 13, 14), "qdq", convert),
            OnnxRow("QLinearAdd", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32, reference, "elementwise:bind_binary"),
            "q31-double": Rule(lower_fixed("double"), reference, "elementwise:bind_binary"),
            "q31-single": Rule(lower_fixed("single"), reference, "elementwise:bind_binary"),
            "neural-art": neural_art_arith.ADD,
        },
    )
)
