"""Read MatMul or Gemm of a transposed constant as Gemm of the constant itself.

Exporters write a linear layer's weights as Transpose(DequantizeLinear(w)). Taking w as it lies in
the file lets trained codes go back to the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.ir import Graph, Node
from npusim.passes.merge_bias import constant_behind
from npusim.passes.rewrite import Rewrite, producers


@dataclass(frozen=True)
class AbsorbTranspose:
    """Only two-dimensional constants whose axes are swapped."""

    def __call__(self, graph: Graph) -> Graph:
        work = Rewrite(graph)
        made = producers(graph)
        for node in graph.nodes:
            if node.op in ("MatMul", "Gemm"):
                _absorb(work, made, node)
        return work.graph()


def _absorb(work: Rewrite, made: dict[str, Node], node: Node) -> None:
    transpose = made.get(node.inputs[1])
    if transpose is None or transpose.op != "Transpose":
        return
    weights = constant_behind(work, made, transpose.inputs[0])
    if weights is None or weights.ndim != 2 or tuple(transpose.attrs.get("perm", (1, 0))) != (1, 0):
        return
    work.nodes[node.name] = replace(
        node,
        op="Gemm",
        inputs=(node.inputs[0], transpose.inputs[0], *node.inputs[2:]),
        attrs={**node.attrs, "transB": 1 - int(node.attrs.get("transB", 0))},
        origin=(*transpose.origin, *node.origin),
    )
