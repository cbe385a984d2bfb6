"""Merge Pad into the convolution or pooling after it, where the integers stay the same.

A convolution's own padding contributes nothing, which is what the zero point as a code does; so a
Pad with any other code stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.ir import Graph, Node
from npusim.passes.rewrite import Rewrite, consumers


@dataclass(frozen=True)
class MergePad:
    """Only a Pad of the two last axes whose one reader is a conv."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        readers = consumers(graph)
        outputs = {v.name for v in graph.outputs}
        for pad in graph.nodes:
            if pad.op != "pad" or pad.outputs[0] in outputs:
                continue
            after = readers[pad.outputs[0]]
            if len(after) == 1 and _exact(graph, pad, after[0]):
                del work.nodes[pad.name]
                work.nodes[after[0].name] = _merged(pad, work.nodes[after[0].name])
        return work.graph()


def _exact(graph: Graph, pad: Node, conv: Node) -> bool:
    qparams = graph.value(pad.inputs[0]).qparams
    pads = pad.attrs.pads
    if conv.op != "conv" or qparams is None or len(pads) != 4:
        return False
    spatial = pads[0] == pads[1] == (0, 0) and min(*pads[2], *pads[3]) >= 0
    return bool(spatial and pad.attrs.value == qparams.zero_point[0])


def _merged(pad: Node, conv: Node) -> Node:
    rows, cols = pad.attrs.pads[2:]
    top, left, bottom, right = conv.attrs.pads
    pads = (top + rows[0], left + cols[0], bottom + rows[1], right + cols[1])
    return replace(
        conv,
        inputs=(pad.inputs[0], *conv.inputs[1:]),
        attrs=replace(conv.attrs, pads=pads),
        origin=tuple(dict.fromkeys((*pad.origin, *conv.origin))),
    )
