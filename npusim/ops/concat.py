"""Join tensors along one axis, each requantized to the output's scale where they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.errors import BadShape
from npusim.ir import INTEGER_RANGE, Array, Node, Site, TensorType
from npusim.numerics import requant
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import QOperands, Step, Unit


@dataclass(frozen=True, slots=True)
class ConcatAttrs:
    """axis: counted from the front, never the batch."""

    axis: int


def infer(site: Site) -> TensorType:
    axis = site.attrs.axis
    shapes = [site.value(i).type.shape for i in range(len(site.node.inputs))]
    joined = sum(int(s[axis] or 0) for s in shapes)
    return TensorType(site.output.type.dtype, (*shapes[0][:axis], joined, *shapes[0][axis + 1 :]))


@dataclass(frozen=True)
class ConcatFloat32(Lowered):
    """Each operand through float32: clip(rint(float32((x - z) * s) / sy) + zy)."""

    input_scale: tuple[float, ...]
    output_scale: float
    zero_point: int
    lo: int
    hi: int

    def operand(self, index: int) -> requant.ThroughFloat32:
        """The requantizer of one operand; it takes codes minus their zero point."""
        scale = self.input_scale[index]
        return requant.ThroughFloat32(scale, self.output_scale, self.zero_point, self.lo, self.hi)


@dataclass(frozen=True)
class ConcatFixedPoint(Lowered):
    """Each operand by a q31 multiplier and shift, as the Quantize that TFLite's converter puts."""

    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    rounding: str
    zero_point: int
    lo: int
    hi: int

    def operand(self, index: int) -> requant.FixedPoint:
        """The requantizer of one operand; it takes codes minus their zero point."""
        return requant.FixedPoint(
            requant.read_only([self.multiplier[index]], np.int32),
            requant.read_only([self.shift[index]], np.int32),
            self.rounding,
            self.zero_point,
            self.lo,
            self.hi,
        )


def is_float(site: Site) -> bool:
    return site.output.qparams is None


def scales(site: Site) -> list[np.float32]:
    return [site.qparams(i).scalar()[0] for i in range(len(site.node.inputs))]


def lower_float32(site: Site, profile: Profile) -> Lowered:
    if is_float(site):
        return Nothing()
    sy, zy = site.output_qparams.scalar()
    inputs = tuple(float(s) for s in scales(site))
    return ConcatFloat32(inputs, float(sy), zy, *INTEGER_RANGE[site.output.type.dtype])


def lower_fixed(how: str) -> Lower:
    def lower(site: Site, profile: Profile) -> Lowered:
        if is_float(site):
            return Nothing()
        sy, zy = site.output_qparams.scalar()
        pairs = [requant.quantize_multiplier(float(s) / float(sy)) for s in scales(site)]
        multipliers, shifts = (tuple(column) for column in zip(*pairs, strict=True))
        bounds = INTEGER_RANGE[site.output.type.dtype]
        return ConcatFixedPoint(multipliers, shifts, how, zy, *bounds)

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    parts = [x for x in inputs if x is not None]
    if isinstance(lowered, ConcatFloat32 | ConcatFixedPoint):
        parts = [
            lowered.operand(i).apply(x - site.qparams(i).zero_points(), 0)
            for i, x in enumerate(parts)
        ]
    return np.concatenate(parts, axis=site.attrs.axis)


def convert(unit: Unit) -> Step:
    """ONNX Concat."""
    shapes = [unit.shape(i) for i in range(len(unit.inputs))]
    rank, axis = len(shapes[0]), int(unit.attr("axis", 1))
    axis += rank if axis < 0 else 0
    rests = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if not 0 <= axis < rank or len(rests) != 1 or any(len(s) != rank for s in shapes):
        raise BadShape(
            "Concat: shapes do not fit", where=unit.node.name, got=f"{shapes}, axis {axis}"
        )
    return Step("concat", ConcatAttrs(axis), unit.names(*range(len(shapes))))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearConcat: sy, zy, then x, sx, zx of each tensor."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise BadShape(
            "QLinearConcat: inputs are no triples", where=node.name, got=len(node.inputs)
        )
    sy, zy, *rest = node.inputs
    triples = tuple((rest[i], rest[i + 1], rest[i + 2]) for i in range(0, len(rest), 3))
    return QOperands("Concat", node.attrs, triples, (sy, zy))


SPEC = register(
    OpSpec(
        name="concat",
        summary="Join tensors along one axis, each requantized where its scale differs.",
        attrs=ConcatAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Concat", (4, 11, 13), "qdq", convert),
            OnnxRow("Concat", (4, 11, 13), "any", convert),
            OnnxRow("QLinearConcat", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32, reference, "elementwise:bind_concat"),
            "q31-double": Rule(lower_fixed("double"), reference, "elementwise:bind_concat"),
            "q31-single": Rule(lower_fixed("single"), reference, "elementwise:bind_concat"),
            "neural-art": neural_art_arith.CONCAT,
        },
    )
)
