"""MatMul -> Add of a constant is one operator with a bias; so is Conv or Gemm without one.

Exporters write linear layers as MatMul and Add with no QuantizeLinear between: the sum is then one
integer operator, and its constant a bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.ir import Array, Graph, Node
from npusim.passes.qdq import DEQUANTIZE
from npusim.passes.quantize_constants import WEIGHTED, channel_axis
from npusim.passes.rewrite import Rewrite, consumers, producers


@dataclass(frozen=True)
class MergeBias:
    """The bias may be float, or codes behind a DequantizeLinear."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        made, readers = producers(graph), consumers(graph)
        outputs = {v.name for v in graph.outputs}
        for add in graph.nodes:
            for index, name in enumerate(add.inputs[:2] if add.op == "Add" else ()):
                before = work.nodes.get(made[name].name) if name in made else None
                alone = len(readers[name]) == 1 and name not in outputs
                other = add.inputs[1 - index]
                if before is not None and alone and _is_bias(work, made, before, other):
                    work.nodes[before.name] = replace(
                        before,
                        inputs=(*before.inputs[:2], other),
                        outputs=add.outputs,
                        origin=(*before.origin, *add.origin),
                    )
                    _move_before(work, made.get(other), before.name)
                    del work.nodes[add.name]
                    break
        return work.graph()


def constant_behind(work: Rewrite, made: dict[str, Node], name: str) -> Array | None:
    """The constant that ``name`` is, or is dequantized from."""
    source = made.get(name)
    if source is not None and source.op == DEQUANTIZE:
        name = source.inputs[0]
    return work.constants.get(name)


def _is_bias(work: Rewrite, made: dict[str, Node], node: Node, name: str) -> bool:
    """Whether adding the constant ``name`` adds one number to each output channel."""
    bias = constant_behind(work, made, name)
    free = len(node.inputs) < 3 or not node.inputs[2]
    if node.op not in WEIGHTED or not free or bias is None:
        return False
    weights = constant_behind(work, made, node.inputs[1])
    if weights is None or weights.ndim < 2:
        return False
    channels = weights.shape[channel_axis(node.op, node.attrs, weights.ndim)]
    behind = (1,) * (weights.ndim - 2) if node.op == "Conv" else ()
    padded = (1,) * (1 + len(behind) - bias.ndim) + bias.shape
    wanted = (channels, *behind)
    return padded == wanted or (padded[0] == 1 and padded[1:] == wanted)


def _move_before(work: Rewrite, source: Node | None, name: str) -> None:
    """Make sure that the node ``source`` stands before the node called ``name``."""
    if source is not None and source.name in work.nodes:
        current = work.nodes[name]
        del work.nodes[source.name]
        work.replace(name, source, current)
