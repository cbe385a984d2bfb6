"""Drop operators that change nothing in inference."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.ir import Graph, Node
from npusim.passes.rewrite import Rewrite


@dataclass(frozen=True)
class RemoveIdentity:
    """Identity, Dropout (always inference here), and Cast of a tensor to its own type.

    One that stands between two names that must both stay (an input and an output, or two outputs)
    is kept; it becomes a copy later.
    """

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        outputs = {v.name for v in graph.outputs}
        fixed = outputs | {v.name for v in graph.inputs}
        for name in list(work.nodes):
            node = work.nodes[name]
            if not self._idle(work, node):
                continue
            source, target = node.inputs[0], node.outputs[0]
            if target not in outputs:
                del work.nodes[name]
                work.rename_uses(target, source)
            elif source not in fixed and source not in work.constants:
                del work.nodes[name]
                _rename_producer(work, source, target)
        return work.graph()

    def _idle(self, work: Rewrite, node: Node) -> bool:
        if node.op == "Cast":
            source, target = (work.values.get(n) for n in (node.inputs[0], node.outputs[0]))
            return bool(source and target and source.type.dtype == target.type.dtype)
        return node.op in ("Identity", "Dropout")


def _rename_producer(work: Rewrite, old: str, new: str) -> None:
    """The node that makes ``old`` makes ``new`` instead."""
    for node in list(work.nodes.values()):
        if old in node.outputs:
            outputs = tuple(new if o == old else o for o in node.outputs)
            work.nodes[node.name] = replace(node, outputs=outputs)
    work.rename_uses(old, new)
