"""Move QuantizeLinear in front of operators that only move or compare elements.

Conv -> Reshape -> Q becomes Conv -> Q -> Reshape: the codes are the same, and the convolution
stands right before the QuantizeLinear that it needs. Transposes of a network's float input stay
where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.errors import BadShape
from npusim.ir import Graph, Node
from npusim.passes.activation import ACTIVATIONS
from npusim.passes.qdq import DEQUANTIZE, QUANTIZE, codes_dtype, quantized, read_qparams
from npusim.passes.rewrite import Rewrite, consumers, producers
from npusim.passes.rows import row_of


@dataclass(frozen=True)
class HoistQuantize:
    """Also swaps a Relu or Clip with such an operator before it, so that it joins its unit."""

    def __call__(self, graph: Graph) -> Graph:
        graph = _swap_activations(graph)
        work = Rewrite(graph)
        made = producers(graph)
        readers = consumers(graph)
        outputs = {v.name for v in graph.outputs}
        for node in reversed(graph.nodes):
            if not _moves(node) or node.outputs[0] in outputs:
                continue
            source = made.get(node.inputs[0])
            after = [work.nodes[n.name] for n in readers[node.outputs[0]]]
            if source is None or source.op == DEQUANTIZE:
                continue
            if after and all(n.op == QUANTIZE for n in after):
                del work.nodes[node.name]
                kept = [n for n in readers[node.inputs[0]] if n.name != node.name]
                for index, quantize in enumerate(after):
                    name = work.fresh(node.name) if index else node.name
                    kept.append(_hoist(work, replace(node, name=name), quantize))
                readers[node.inputs[0]] = kept
        return work.graph()


def _moves(node: Node) -> bool:
    return row_of(node.op, "any") is not None and node.op != "Concat"


def _hoist(work: Rewrite, node: Node, quantize: Node) -> Node:
    """node -> quantize becomes quantize -> node; returns the quantize."""
    codes = work.fresh(f"{node.inputs[0]}_{quantize.name}")
    before = replace(quantize, inputs=(node.inputs[0], *quantize.inputs[1:]), outputs=(codes,))
    inputs = (codes, *node.inputs[1:])
    if node.op == "Pad":
        inputs = (codes, *_pad_inputs(work, node, quantize))
    after = replace(node, inputs=inputs, outputs=quantize.outputs)
    work.replace(quantize.name, before, after)
    return before


def _pad_inputs(work: Rewrite, node: Node, quantize: Node) -> tuple[str, ...]:
    """The inputs of a Pad of codes: its value becomes a code."""
    graph = work.old
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    value = graph.initializers.get(name, np.asarray(node.attrs.get("value", 0.0)))
    if value.size != 1:
        raise BadShape("Pad: constant is no single number", where=node.name, got=value.size)
    code = quantized(value.reshape(1), read_qparams(graph, quantize), codes_dtype(graph, quantize))
    pads = node.inputs[1] if len(node.inputs) > 1 else ""
    return pads, work.constant(f"{node.name}_code", code.reshape(())), *node.inputs[3:]


def _swap_activations(graph: Graph) -> Graph:
    """mover -> Relu becomes Relu -> mover, again and again until none is left."""
    while True:
        made, readers = producers(graph), consumers(graph)
        outputs = {v.name for v in graph.outputs}
        for node in graph.nodes:
            mover = made.get(node.inputs[0]) if node.op in ACTIVATIONS else None
            if mover is None or not _moves(mover) or mover.op == "Pad":
                continue
            alone = len(readers[mover.outputs[0]]) == 1 and mover.outputs[0] not in outputs
            source = made.get(mover.inputs[0])
            if alone and source is not None and source.op != DEQUANTIZE:
                graph = _swapped(graph, mover, node)
                break
        else:
            return graph


def _swapped(graph: Graph, mover: Node, activation: Node) -> Graph:
    work = Rewrite(graph)
    middle = work.fresh(f"{activation.outputs[0]}_before_{mover.name}")
    first = replace(activation, inputs=(mover.inputs[0], *activation.inputs[1:]), outputs=(middle,))
    second = replace(mover, inputs=(middle, *mover.inputs[1:]), outputs=activation.outputs)
    del work.nodes[mover.name]
    work.replace(activation.name, first, second)
    return work.graph()
