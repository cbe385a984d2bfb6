"""Relu and Clip as bounds of codes.

Quantizing never changes the order of two numbers, so Q(min(max(x, a), b)) = min(max(Q(x), Q(a)),
Q(b)) for every x: a Relu or Clip before a QuantizeLinear is exactly a clamp of codes. Between two
dequantized tensors it is one only where its bounds are codes themselves.
"""

from __future__ import annotations

import numpy as np

from npusim.errors import UnsupportedOp
from npusim.ir import INTEGER_RANGE, Graph, Node, QParams
from npusim.passes.qdq import dequantized, quantized

ACTIVATIONS = ("Relu", "Clip")


def bounds(graph: Graph, node: Node) -> tuple[float, float]:
    """Smallest and largest number that a Relu or Clip lets through.

    Raises UnsupportedOp where a bound is computed or not a number.
    """
    if node.op == "Relu":
        return 0.0, float("inf")
    found = []
    for index, key, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        name = node.inputs[index] if index < len(node.inputs) else ""
        array = graph.initializers.get(name)
        if name and (array is None or array.size != 1):
            raise UnsupportedOp("Clip: bound is computed, not constant", where=node.name, got=name)
        value = node.attrs.get(key, default) if array is None else array.ravel()[0]
        found.append(float(np.float32(value)))
    low, high = found
    if np.isnan(low) or np.isnan(high):
        raise UnsupportedOp("Clip: bound is not a number", where=node.name)
    return min(low, high), high


def clamp_of(
    limits: tuple[tuple[float, float], ...], qparams: QParams, dtype: str
) -> tuple[int, int]:
    """Codes that remain possible after all these bounds, in order."""
    low, high = INTEGER_RANGE[dtype]
    for a, b in limits:
        first, last = (int(c) for c in quantized(np.asarray([a, b], np.float32), qparams, dtype))
        low, high = (min(max(c, first), last) for c in (low, high))
    return low, high


def exact_code(value: float, qparams: QParams, dtype: str) -> int | None:
    """The code that stands for exactly this number; None where there is none."""
    number = np.asarray([value], np.float32)
    code = quantized(number, qparams, dtype)
    return int(code[0]) if dequantized(code, qparams)[0] == number[0] else None


def exact_clamp(
    limits: tuple[float, float], qparams: QParams, dtype: str
) -> tuple[int, int] | None:
    """The bounds as codes, where both are codes or lie beyond all codes; else None."""
    ends = np.asarray(INTEGER_RANGE[dtype], np.int64).astype(dtype)
    smallest, largest = (float(v) for v in dequantized(ends, qparams))
    low = int(ends[0]) if limits[0] <= smallest else exact_code(limits[0], qparams, dtype)
    high = int(ends[1]) if limits[1] >= largest else exact_code(limits[1], qparams, dtype)
    if low is None or high is None:
        return None
    return min(low, high), high
