"""Give float constants of quantized operators their codes.

A weight that is float in the file, beside a quantized input, is taken where its values lie exactly
on a symmetric int8 grid; a bias becomes int32 with the scale of the products it is added to,
rounded half to even as onnxruntime's quantizer does. A DequantizeLinear is put behind either, so
that later passes see one form only. The codes keep the initializer's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.errors import BadQuantization, BadShape, UnsupportedOp
from npusim.ir import Array, Graph, Node, QParams
from npusim.passes.activation import ACTIVATIONS
from npusim.passes.grid import grid_of
from npusim.passes.qdq import DEQUANTIZE, dequantized, read_qparams
from npusim.passes.rewrite import Rewrite, producers
from npusim.passes.rows import row_of

WEIGHTED = ("Conv", "Gemm", "MatMul")
ELEMENTWISE = ("Add", "Mul", "PRelu")
# A bias whose scale differs from sx * sw by more than rounding noise is brought to that scale.
SCALE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class RecoverWeights:
    """Float weights, and float constants of Add, Mul and PRelu, that lie on a grid."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        made = producers(graph)
        for node in graph.nodes:
            if node.op not in (*WEIGHTED, *ELEMENTWISE):
                continue
            if not any(dequantize_behind(made, i) for i in node.inputs[:2]):
                continue
            for index, name in enumerate(node.inputs[:2]):
                array = work.constants.get(name)
                if array is not None and array.dtype.kind == "f":
                    if node.op == "PRelu" and array.size != 1:
                        raise UnsupportedOp(
                            "PRelu: only one slope for the whole tensor is supported",
                            where=node.name,
                            got=list(array.shape),
                        )
                    weighted = node.op in WEIGHTED
                    axis = channel_axis(node.op, node.attrs, array.ndim) if weighted else None
                    _recover(work, node, index, axis)
        return work.graph()


@dataclass(frozen=True)
class QuantizeBias:
    """Raises BadQuantization where a bias does not fit int32."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        made = producers(graph)
        for node in graph.nodes:
            if node.op in WEIGHTED and len(node.inputs) > 2 and node.inputs[2]:
                scale = _product_scale(graph, made, node)
                if scale is not None:
                    _bias(work, made, node, scale)
        return work.graph()


def dequantize_behind(made: Mapping[str, Node], name: str) -> Node | None:
    """The DequantizeLinear that gives ``name`` its scale.

    Looks through operators that keep the scale: those that move elements, Relu and Clip.
    """
    node = made.get(name)
    while node is not None and node.op != DEQUANTIZE:
        keeps = node.op in ACTIVATIONS or row_of(node.op, "any") is not None
        node = made.get(node.inputs[0]) if keeps and node.op != "Concat" else None
    return node


def channel_axis(op: str, attrs: Mapping[str, Any], rank: int) -> int:
    """The axis of output channels in the weights of a Conv, Gemm or MatMul."""
    return 0 if op == "Conv" or (op == "Gemm" and attrs.get("transB", 0)) else rank - 1


def _recover(work: Rewrite, node: Node, index: int, axis: int | None) -> None:
    name = node.inputs[index]
    array = work.constants[name]
    if not np.isfinite(array).all():
        raise BadQuantization("constant is not finite", where=name)
    if axis is not None and array.ndim < 2:
        raise BadShape(f"weights of {node.op} have too few axes", where=name, got=list(array.shape))
    found = grid_of(array, axis)
    if found is None:
        raise UnsupportedOp(
            f"float constant of {node.op} lies on no int8 grid",
            where=node.name,
            got=name,
            hint="Quantize weights too, for instance with onnxruntime.quantization.",
        )
    codes, qparams = found
    work.note(f"{node.name}: float constant {name} lies on an int8 grid and is read as its codes")
    used = any(name in n.inputs for n in work.nodes.values() if n.name != node.name)
    insert_codes(work, node, index, work.fresh(f"{name}_codes") if used else name, codes, qparams)


def insert_codes(
    work: Rewrite, node: Node, index: int, name: str, codes: Array, qparams: QParams
) -> None:
    """Make input ``index`` of the node the dequantized constant ``codes`` called ``name``."""
    work.set_constant(name, codes)
    scale = work.constant(
        f"{name}_scale", qparams.scales().reshape(-1 if qparams.axis is not None else ())
    )
    points = qparams.zero_points().astype(codes.dtype)
    point = work.constant(
        f"{name}_zero_point", points.reshape(-1 if qparams.axis is not None else ())
    )
    real = work.fresh(f"{name}_real")
    current = work.nodes[node.name]
    inputs = (*current.inputs[:index], real, *current.inputs[index + 1 :])
    attrs = {} if qparams.axis is None else {"axis": qparams.axis}
    dequantize = Node(
        DEQUANTIZE, work.fresh(f"{name}/dequantize"), (name, scale, point), (real,), attrs, ()
    )
    work.replace(node.name, dequantize, replace(current, inputs=inputs))


def _product_scale(graph: Graph, made: dict[str, Node], node: Node) -> Array | None:
    """float32 sx * sw, one or one a channel; None where either is not quantized."""
    sources = [dequantize_behind(made, i) for i in node.inputs[:2]]
    if sources[0] is None or sources[1] is None:
        return None
    x, w = read_qparams(graph, sources[0]), read_qparams(graph, sources[1])
    if x.per_channel:
        return None
    product: Array = np.float32(x.scale[0]) * w.scales()
    return product


def _bias(work: Rewrite, made: dict[str, Node], node: Node, scale: Array) -> None:
    found = _bias_numbers(work, made, node, scale)
    if found is None:
        return
    name, numbers = found
    rounded = _rounded(numbers, scale, name)
    shared = sum(name in n.inputs for n in work.nodes.values()) > 1
    wish = work.fresh(f"{name}_codes") if shared else name
    insert_codes(work, node, 2, wish, rounded, QParams.make(scale, 0, 0))


def _bias_numbers(
    work: Rewrite, made: dict[str, Node], node: Node, scale: Array
) -> tuple[str, Array] | None:
    """Name and float values of a bias that needs new codes; None where its codes are right."""
    name = node.inputs[2]
    numbers = work.constants.get(name)
    if numbers is not None:
        work.note(f"{node.name}: float bias {name} rounded to int32, half to even")
        return name, numbers
    source = made.get(name)
    codes = work.constants.get(source.inputs[0]) if source else None
    if source is None or source.op != DEQUANTIZE or codes is None:
        return None
    qparams = read_qparams(work.old, source, codes.shape)
    given = qparams.scales()
    fits = given.size == 1 or scale.size in (1, given.size)
    close = fits and np.allclose(given, scale, rtol=SCALE_TOLERANCE, atol=0)
    if codes.dtype == np.int32 and close and not any(qparams.zero_point):
        return None
    work.note(f"{node.name}: bias {source.inputs[0]} brought to the scale of its products")
    return work.fresh(f"{source.inputs[0]}_rescaled"), dequantized(codes, qparams)


def _rounded(numbers: Array, scale: Array, name: str) -> Array:
    """int32 codes of a bias, rounded half to even.

    Raises BadShape or BadQuantization where they do not fit.
    """
    if not np.isfinite(numbers).all():
        raise BadQuantization("bias is not finite", where=name)
    if scale.size not in (1, numbers.size):
        raise BadShape(
            "bias does not have one value an output channel",
            where=name,
            got=list(numbers.shape),
            wanted=[scale.size],
        )
    with np.errstate(all="ignore"):
        rounded = np.rint(numbers.astype(np.float32).reshape(-1) / scale)
    info = np.iinfo(np.int32)
    if not ((rounded >= info.min) & (rounded < info.max)).all():
        raise BadQuantization(
            "bias does not fit int32 with the scale of its products",
            where=name,
            got=float(np.abs(rounded).max()),
            hint="The scales of input and weights are too small for it.",
        )
    codes: Array = rounded.astype(np.int32).reshape(numbers.shape)
    return codes
