"""Fully connected layer: Gemm, and MatMul with constant weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.errors import BadShape, UnsupportedOp
from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_passes import Segment, Window
from npusim.numerics.requant import Requantizer
from npusim.ops import neural_art_weighted
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import QOperands, Step, Unit, operands_of
from npusim.ops.weighted import (
    biased,
    centred,
    check_weights,
    lower_fixed,
    lower_float32,
    weight_shape,
)


@dataclass(frozen=True, slots=True)
class GemmAttrs:
    """transposed: weights are [outputs, inputs] (ONNX transB=1), else [inputs, outputs].

    clamp: smallest and largest code the output may take (a fused Relu or Clip).
    """

    transposed: bool = True
    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    rows, cols = site.value(1).type.shape
    outputs = rows if site.attrs.transposed else cols
    return TensorType(site.output.type.dtype, (*site.value(0).type.shape[:-1], outputs))


def macs(site: Site) -> int:
    return site.output.type.per_image() * int(site.value(0).type.shape[-1] or 1)


def sizes(site: Site) -> tuple[int, int]:
    """(outputs, inputs)."""
    rows, cols = weight_shape(site)
    return (rows, cols) if site.attrs.transposed else (cols, rows)


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """Exact sums, then the lowered requantizer."""
    x, w = centred(site, inputs)
    acc = biased(x @ (w.T if site.attrs.transposed else w), inputs, axis=-1)
    assert isinstance(lowered, Requantizer)
    return lowered.apply(acc, -1)


def window(site: Site, form: str) -> Window:
    """A 1x1 convolution on the rows between batch and channels, one position for a vector."""
    outputs, depth = sizes(site)
    rows = int(np.prod([int(d or 1) for d in site.value(0).type.shape[1:-1]]))
    return Window((1, 1), (1, 1), depth, outputs, (1, rows), (1, rows), form)


def outputs_first(site: Site, w: Array) -> Array:
    """Weights as [outputs, inputs]."""
    return w if site.attrs.transposed else w.T


def segment_sums(site: Site, x: Array, w: Array, segment: Segment) -> Array:
    """Sums over the inputs of one pass."""
    first, last = segment.channels
    return np.asarray(x[..., first:last] @ outputs_first(site, w)[:, first:last].T)


NEURAL_ART = neural_art_weighted.Geometry(
    window, outputs_first, segment_sums, axis=-1, kernel="conv_bind:bind_gemm"
)


def convert(unit: Unit) -> Step:
    """ONNX Gemm and MatMul with constant weights, alpha = beta = 1."""
    transposed = unit.node.op == "Gemm" and bool(unit.attr("transB", 0))
    if unit.attr("alpha", 1.0) != 1.0 or (unit.has(2) and unit.attr("beta", 1.0) != 1.0):
        raise unit.refused("alpha and beta must be 1", got=dict(unit.node.attrs))
    if unit.attr("transA", 0):
        raise unit.refused("transA is not supported")
    unit.constant(1)
    x, weights = unit.shape(0), unit.shape(1)
    if len(weights) != 2 or len(x) < 2 or x[-1] != weights[1 if transposed else 0]:
        raise BadShape(
            f"{unit.node.op}: weights do not fit the input",
            where=unit.node.name,
            got=f"input {list(x)}, weights {list(weights)}",
        )
    axis = 0 if transposed else 1
    check_weights(unit, 1, axis=axis, outputs=weights[axis])
    return Step("gemm", GemmAttrs(transposed, unit.clamp), unit.names(0, 1, 2))


def from_qlinear_matmul(node: Node) -> QOperands:
    """QLinearMatMul: a, sa, za, b, sb, zb, sy, zy."""
    a, sa, za, b, sb, zb, sy, zy = operands_of(node, 8, 8)
    return QOperands("MatMul", {}, ((a, sa, za), (b, sb, zb)), (sy, zy), axes=(None, -1))


def from_qgemm(node: Node) -> QOperands:
    """com.microsoft QGemm: a, sa, za, b, sb, zb, c, sy, zy. Raises UnsupportedOp without sy."""
    a, sa, za, b, sb, zb, c, sy, zy = operands_of(node, 6, 9)
    if not sy:
        raise UnsupportedOp("QGemm with a float result is not supported", where=node.name)
    axis = 0 if node.attrs.get("transB", 0) else 1
    return QOperands("Gemm", node.attrs, ((a, sa, za), (b, sb, zb)), (sy, zy), c, (None, axis))


SPEC = register(
    OpSpec(
        name="gemm",
        summary="Fully connected layer.",
        attrs=GemmAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Gemm", (7, 9, 11, 13), "qdq", convert),
            OnnxRow("MatMul", (1, 9, 13), "qdq", convert),
            OnnxRow("QLinearMatMul", (10, 21), "qoperator", from_qlinear_matmul),
            OnnxRow("QGemm", (1,), "qoperator", from_qgemm, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32(sizes), reference, "conv_bind:bind_gemm"),
            "q31-double": Rule(lower_fixed(sizes, "double"), reference, "conv_bind:bind_gemm"),
            "q31-single": Rule(lower_fixed(sizes, "single"), reference, "conv_bind:bind_gemm"),
            "q31-away": Rule(lower_fixed(sizes, "away"), reference, "conv_bind:bind_gemm"),
            "neural-art": neural_art_weighted.rule(NEURAL_ART),
        },
        macs=macs,
        weight=1,
    )
)
