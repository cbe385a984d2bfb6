"""Refuse at once what no later pass can make run, in the order that helps a reader most."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import BadShape, UnsupportedOp
from npusim.ir import Graph, Node
from npusim.passes.activation import ACTIVATIONS
from npusim.passes.fold_batchnorm import BATCHNORM
from npusim.passes.qdq import DEQUANTIZE, QUANTIZE
from npusim.passes.rows import row_of

QUANTIZE_FIRST = (
    "Quantize the network first, for instance with onnxruntime.quantization.quantize_static."
)
QUANTIZE_TENSOR = (
    "Only a part of the network is quantized: put a QuantizeLinear and a DequantizeLinear after"
    " tensor {}, or quantize the network again with all of its operators."
)
"""Once there are quantized operators; with the name of a tensor that has none."""


@dataclass(frozen=True)
class RefuseUnsupported:
    """Returns the graph as it is.

    Raises UnsupportedOp for an operator that nothing can run, and for a float network, by its first
    float computation; BadShape for an input with open sizes.
    """

    def __call__(self, graph: Graph) -> Graph:
        for node in graph.nodes:
            known = node.op in (QUANTIZE, DEQUANTIZE, BATCHNORM, *ACTIVATIONS)
            if not known and row_of(node.op, "any", "float", "qdq", "qoperator") is None:
                raise unknown(graph, node)
        _require_quantized(graph)
        for value in graph.inputs:
            if None in value.type.shape:
                raise BadShape(
                    "only the first axis (the batch) of an input may have an open size",
                    where=value.name,
                    got=str(value.type).replace("N", "?"),
                    hint="Fix the other sizes, for instance with"
                    " onnxruntime.tools.make_dynamic_shape_fixed.",
                )
        return graph


def unknown(graph: Graph, node: Node) -> UnsupportedOp:
    return UnsupportedOp(
        f"operator {node.op} (opset {graph.opsets.get('', 0)}) cannot be run",
        where=node.name,
        hint="`npusim ops` lists the operators that can be run.",
    )


def _require_quantized(graph: Graph) -> None:
    if any(n.op in (QUANTIZE, DEQUANTIZE) or row_of(n.op, "qoperator") for n in graph.nodes):
        return
    for node in graph.nodes:
        if row_of(node.op, "qdq") is not None or node.op == BATCHNORM:
            raise UnsupportedOp(
                f"{node.op} is a float operator: this network is not quantized",
                where=node.name,
                hint=QUANTIZE_FIRST,
            )
