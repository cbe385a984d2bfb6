"""Open the batch: where images provably do not mix, the first axis may have any size.

Every input starts with a first axis of 1 (a batch that the file leaves open is read as 1). The
pass follows that axis through every operator; where it stays the first axis and no operator
combines positions of it, it becomes None. Otherwise the graph stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from npusim.ir import Graph, Node, Site, TensorType, Value
from npusim.ops.base import spec_of
from npusim.passes.rewrite import noted

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class LiftBatch:
    """The shapes that Reshape operators name are opened too."""

    def __call__(self, graph: Graph) -> Graph:
        if not graph.inputs or any(v.type.shape[:1] != (1,) for v in graph.inputs):
            return graph
        values = dict(graph.values)
        for value in graph.inputs:
            values[value.name] = _opened(value, (None, *value.type.shape[1:]))
        nodes = []
        for node in graph.nodes:
            lifted = _lift(graph, node, values)
            if lifted is None:
                return noted(graph, f"{node.name}: mixes images, so the batch stays 1")
            nodes.append(lifted)
        names = [v.name for v in graph.outputs]
        if any(not values[n].type.lifted for n in names):
            return graph
        return graph.with_(
            nodes=tuple(nodes),
            values=values,
            inputs=tuple(values[v.name] for v in graph.inputs),
            outputs=tuple(values[n] for n in names),
        )


def _opened(value: Value, shape: Shape) -> Value:
    return replace(value, type=TensorType(value.type.dtype, shape))


def _lift(graph: Graph, node: Node, values: dict[str, Value]) -> Node | None:
    """The node with an open batch, and its output's type in ``values``; None where images mix."""
    shapes = [values[i].type.shape for i in node.inputs if i]
    constant = [i in graph.initializers for i in node.inputs if i]
    output = graph.value(node.outputs[0])
    if all(constant):
        return node
    open_ranks = {len(s) for s, c in zip(shapes, constant, strict=True) if not c}
    opened = [s[:1] == (None,) for s, c in zip(shapes, constant, strict=True) if not c]
    if not all(opened) or len(open_ranks) != 1:
        return None
    attrs = node.attrs
    if node.op == "reshape":
        if output.type.shape[:1] != (1,) or not _same_images(shapes[0], output.type.shape):
            return None
        attrs = replace(attrs, shape=(None, *output.type.shape[1:]))
    elif not _separate(node, shapes, constant):
        return None
    lifted = replace(node, attrs=attrs)
    view = graph.with_(values=values)
    kind = spec_of(node.op).infer(Site(view, lifted))
    if kind.shape != (None, *output.type.shape[1:]):
        return None
    values[output.name] = replace(output, type=kind)
    return lifted


def _same_images(before: Shape, after: Shape) -> bool:
    return math.prod(d or 1 for d in before[1:]) == math.prod(d or 1 for d in after[1:])


def _separate(node: Node, shapes: list[Shape], constant: list[bool]) -> bool:
    """Whether the operator treats positions of the first axis alike and apart."""
    attrs, rank = node.attrs, len(shapes[0])
    if node.op == "transpose":
        return bool(attrs.perm[0] == 0)
    if node.op in ("concat", "softmax"):
        return attrs.axis % rank != 0 and not any(constant)
    if node.op == "pad":
        return bool(attrs.pads[0] == (0, 0))
    if node.op == "gemm":
        return rank >= 2
    if node.op in ("conv", "maxpool", "avgpool", "global_average_pool"):
        return rank == 4
    if node.op in ("add", "mul"):
        longest = max(len(s) for s, c in zip(shapes, constant, strict=True) if not c)
        return all(
            len(s) < longest or s[0] == 1 for s, c in zip(shapes, constant, strict=True) if c
        )
    return node.op in ("quantize", "dequantize", "requantize")
