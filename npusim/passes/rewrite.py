"""A graph under change, for the length of one pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from npusim.ir import Array, Graph, Node, QParams, TensorType, Value

NOTES = "npusim.notes"


class Rewrite:
    """Copies of a graph's tables that a pass edits, and the graph that they make.

    nodes: name -> node, in execution order. Names of new tensors and nodes never collide with old
    ones, also not with those that the pass removes.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.nodes: dict[str, Node] = {n.name: n for n in graph.nodes}
        self.values: dict[str, Value] = dict(graph.values)
        self.constants: dict[str, Array] = dict(graph.initializers)
        self._taken = {*self.values, *self.nodes, *(o for n in graph.nodes for o in n.outputs)}

    def fresh(self, wish: str) -> str:
        """A name that no tensor and no node has: ``wish`` or ``wish`` with a number."""
        name, number = wish, 1
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name

    def constant(self, wish: str, array: Array, qparams: QParams | None = None) -> str:
        """Add a constant; returns its name."""
        name = self.fresh(wish)
        self.set_constant(name, array, qparams)
        return name

    def set_constant(self, name: str, array: Array, qparams: QParams | None = None) -> None:
        """Add a constant under exactly this name, or replace the one that has it."""
        if array.flags.writeable:
            array = array.copy()
            array.flags.writeable = False
        self.constants[name] = array
        self.values[name] = Value(name, TensorType(array.dtype.name, array.shape), qparams)

    def rename_uses(self, old: str, new: str) -> None:
        """Make every node that reads ``old`` read ``new``."""
        for node in [n for n in self.nodes.values() if old in n.inputs]:
            inputs = tuple(new if i == old else i for i in node.inputs)
            self.nodes[node.name] = replace(node, inputs=inputs)

    def replace(self, name: str, *new: Node) -> None:
        """Put nodes in the place of the node of this name."""
        ordered: dict[str, Node] = {}
        for key, node in self.nodes.items():
            if key == name:
                ordered.update((n.name, n) for n in new)
            else:
                ordered[key] = node
        self.nodes = ordered

    def note(self, text: str) -> None:
        """Tell the reader of the graph something; see ``noted``."""
        self.old = noted(self.old, text)

    def graph(self) -> Graph:
        """The changed graph, without what no output needs."""
        outputs = {v.name for v in self.old.outputs}
        return needed(
            self.old.with_(
                nodes=tuple(self.nodes.values()), values=self.values, initializers=self.constants
            ),
            outputs,
        )


def noted(graph: Graph, text: str) -> Graph:
    """With one more line in the graph's notes, the entry "npusim.notes" of its metadata."""
    lines = [*graph.metadata.get(NOTES, "").splitlines(), text]
    return graph.with_(metadata={**graph.metadata, NOTES: "\n".join(dict.fromkeys(lines))})


def needed(graph: Graph, outputs: set[str]) -> Graph:
    """Without nodes that ``outputs`` do not depend on, and without their tensors."""
    wanted = set(outputs)
    kept = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return graph.with_(nodes=tuple(reversed(kept))).pruned()


def producers(graph: Graph) -> dict[str, Node]:
    """Tensor -> the node that makes it."""
    return {o: n for n in graph.nodes for o in n.outputs if o}


def consumers(graph: Graph) -> dict[str, list[Node]]:
    """Tensor -> the nodes that read it, each once."""
    table: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            table[name].append(node)
    return table
