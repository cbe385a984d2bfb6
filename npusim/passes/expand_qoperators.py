"""Write QOperator nodes (QLinearConv, QGemm, ...) as the float operator between Q and DQ.

Both kinds of file then take the same way; which integers the operator computes is the numerics
profile's business either way. What belongs where says the operator's own row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.errors import BadQuantization
from npusim.ir import Graph, Node
from npusim.ops.unit import QOperands
from npusim.passes.qdq import DEQUANTIZE, QUANTIZE, check_scale
from npusim.passes.rewrite import Rewrite
from npusim.passes.rows import row_of, since_of


@dataclass(frozen=True)
class ExpandQOperators:
    """Raises BadQuantization where scales are not constant."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        for node in graph.nodes:
            row = row_of(node.op, "qoperator")
            if row is not None:
                since_of(graph, node, row)
                _expand(work, node, row.convert(node))
        return work.graph()


def _expand(work: Rewrite, node: Node, operands: QOperands) -> None:
    axes = operands.axes or (None,) * len(operands.operands)
    before = [
        _dequantize(work, operand, axis)
        for operand, axis in zip(operands.operands, axes, strict=True)
    ]
    if operands.bias:
        scale = _bias_scale(work, node, operands)
        before.append(_dequantize(work, (operands.bias, scale, ""), 0))
    result = work.fresh(f"{node.outputs[0]}_real")
    name = work.fresh(f"{node.name}/quantize")
    inputs = tuple(n.outputs[0] for n in before)
    middle = Node(operands.op, node.name, inputs, (result,), operands.attrs, node.origin)
    after = Node(QUANTIZE, name, (result, *operands.result), node.outputs, {}, ())
    work.replace(node.name, *before, middle, after)


def _dequantize(work: Rewrite, operand: tuple[str, str, str], axis: int | None) -> Node:
    real = work.fresh(f"{operand[0]}_real")
    name = work.fresh(f"{operand[0]}/dequantize")
    return Node(DEQUANTIZE, name, operand, (real,), {} if axis is None else {"axis": axis}, ())


def _bias_scale(work: Rewrite, node: Node, operands: QOperands) -> str:
    """sx * sw in float32: the scale that a bias of codes has."""
    x, w = (work.constants.get(o[1]) for o in operands.operands[:2])
    if x is None or w is None:
        raise BadQuantization("scales are computed, not constant", where=node.name)
    for scale, operand in ((x, operands.operands[0]), (w, operands.operands[1])):
        check_scale(scale, operand[1])
    if x.size != 1:
        raise BadQuantization("activations need one scale", where=node.name, got=x.size)
    product = x.astype(np.float32).reshape(-1) * w.astype(np.float32).reshape(-1)
    return work.constant(f"{operands.bias}_scale", np.asarray(product, np.float32))
