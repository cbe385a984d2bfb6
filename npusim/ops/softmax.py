"""Softmax in float32: a software epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import QOperands, Step, Unit, operands_of


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs:
    """axis: counted from the front."""

    axis: int


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.value(0).type.shape)


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """float32 throughout; other runtimes differ in the last bits of exp."""
    x = inputs[0]
    assert x is not None
    axis = site.attrs.axis
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    result: Array = powers / np.sum(powers, axis=axis, keepdims=True)
    return result


def convert(unit: Unit) -> Step:
    """ONNX Softmax. Before version 13 it flattens what follows ``axis``: taken for the last one."""
    rank = len(unit.shape(0))
    axis = int(unit.attr("axis", -1 if unit.since >= 13 else 1))
    axis += rank if axis < 0 else 0
    if not 0 <= axis < rank:
        raise unit.refused("axis beyond the tensor's axes", got=unit.attr("axis"))
    if unit.since < 13 and any(d != 1 for d in unit.shape(0)[axis + 1 :]):
        raise unit.refused("softmax over several axes is not supported", got=f"axis {axis}")
    return Step("softmax", SoftmaxAttrs(axis), unit.names(0))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearSoftmax: x, sx, zx, sy, zy; computed in float here, then quantized."""
    x, sx, zx, sy, zy = operands_of(node, 4, 5)
    axis = {k: v for k, v in node.attrs.items() if k == "axis"}
    return QOperands("Softmax", axis, ((x, sx, zx),), (sy, zy))


SPEC = register(
    OpSpec(
        name="softmax",
        summary="Softmax in float32.",
        attrs=SoftmaxAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Softmax", (1, 11, 13), "float", convert),
            OnnxRow("QLinearSoftmax", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={"exact": Rule(lower, reference)},
        runs_on="software",
    )
)
