"""Looking up ONNX rows in the operators' registry."""

from __future__ import annotations

import npusim.ops  # noqa: F401  (fills the registry)
from npusim.errors import UnsupportedOp
from npusim.frontend.opset import since_version, split_op
from npusim.ir import Graph, Node
from npusim.ops.base import OnnxRow, all_specs


def row_of(op: str, *forms: str) -> OnnxRow | None:
    """The row for a file's operator in the first of these forms that has one."""
    domain, name = split_op(op)
    for form in forms:
        for spec in all_specs():
            for row in spec.onnx:
                if (row.domain, row.op_type, row.form) == (domain, name, form):
                    return row
    return None


def since_of(graph: Graph, node: Node, row: OnnxRow) -> int:
    """The operator's version in this file.

    Raises UnsupportedOp where the row does not read that version.
    """
    domain, name = split_op(node.op)
    opset = graph.opsets.get(domain, 1)
    since = since_version(node.op, opset)
    if since not in row.since:
        raise UnsupportedOp(
            f"version {since} of operator {name} (opset {opset}) is not read",
            where=node.name,
            wanted=f"one of {', '.join(map(str, row.since))}",
            hint="Convert the network to opset 17 with onnx.version_converter.",
        )
    return since
