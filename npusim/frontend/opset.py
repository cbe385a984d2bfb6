"""Which version of an operator a file means."""

from __future__ import annotations

import onnx.defs

STANDARD = ("", "ai.onnx")
CONTRIB = "com.microsoft"


def split_op(op: str) -> tuple[str, str]:
    """("com.microsoft", "QGemm") from "com.microsoft.QGemm"; the standard domain is ""."""
    domain, _, name = op.rpartition(".")
    return domain, name


def since_version(op: str, opset: int) -> int:
    """The ONNX version of the operator's definition that ``opset`` means; 0 where there is none.

    Operators of com.microsoft have one version only, 1.
    """
    domain, name = split_op(op)
    if domain:
        return 1 if domain == CONTRIB else 0
    try:
        return int(onnx.defs.get_schema(name, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0
