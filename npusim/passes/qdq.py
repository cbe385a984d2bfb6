"""Reading QuantizeLinear and DequantizeLinear nodes of a raw graph."""

from __future__ import annotations

import numpy as np

from npusim.errors import BadQuantization, UnsupportedOp
from npusim.ir import Array, Graph, Node, QParams

QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
# The ratio of larger scales leaves float32, and no calibration gives them.
LARGEST_SCALE = 1e9
CODES = ("int8", "uint8", "int32")
ACTIVATIONS = ("int8", "uint8")


def _constant(graph: Graph, node: Node, index: int, what: str) -> Array | None:
    if index >= len(node.inputs) or not node.inputs[index]:
        return None
    array = graph.initializers.get(node.inputs[index])
    if array is None:
        raise BadQuantization(
            f"{what} of {node.op} is computed, not constant",
            where=node.name,
            got=node.inputs[index],
            hint="Only static quantization can run on the NPU.",
        )
    return array


def check_scale(scale: Array, where: str) -> None:
    """Raises BadQuantization, naming the tensor, unless every scale is finite and positive."""
    if scale.dtype not in (np.float32, np.float64) or not scale.size:
        raise BadQuantization("scale is not float32", where=where, got=scale.dtype)
    bad = ~(np.isfinite(scale) & (scale > 0) & (scale <= LARGEST_SCALE))
    if bad.any():
        raise BadQuantization(
            f"scale is not a positive number up to {LARGEST_SCALE:g}",
            where=where,
            got=float(scale.ravel()[int(np.flatnonzero(bad)[0])]),
            hint="Quantize the network again with calibration data that reach this tensor.",
        )


def codes_dtype(graph: Graph, node: Node) -> str:
    """NumPy name of the codes that a Q or DQ node writes or reads.

    Raises BadQuantization for types other than int8, uint8 and (to dequantize) int32.
    """
    zero_point = _constant(graph, node, 2, "zero point")
    if zero_point is not None:
        dtype = zero_point.dtype.name
    elif node.op == QUANTIZE:
        dtype = _output_dtype(node)
    else:
        constant = graph.initializers.get(node.inputs[0])
        value = graph.values.get(node.inputs[0])
        known = constant.dtype.name if constant is not None else value and value.type.dtype
        dtype = known or "uint8"
    if dtype not in (CODES if node.op == DEQUANTIZE else ACTIVATIONS):
        raise BadQuantization(
            "codes of this type are not supported",
            where=node.name,
            got=dtype,
            wanted="int8 or uint8",
            hint="Quantize the network to 8 bits.",
        )
    return dtype


def _output_dtype(node: Node) -> str:
    number = int(node.attrs.get("output_dtype", 0))
    return {0: "uint8", 2: "uint8", 3: "int8"}.get(number, f"ONNX type {number}")


def read_qparams(graph: Graph, node: Node, shape: tuple[int | None, ...] | None = None) -> QParams:
    """Scale and zero point of a Q or DQ node.

    shape: of the tensor, to count a negative axis from the front and to check the scales' number.
    Raises BadQuantization or UnsupportedOp that names the node or the scale's tensor.
    """
    scale = _constant(graph, node, 1, "scale")
    zero_point = _constant(graph, node, 2, "zero point")
    if scale is None:
        raise BadQuantization("scale is missing", where=node.name)
    if node.attrs.get("block_size", 0):
        raise UnsupportedOp("blocked quantization is not supported", where=node.name)
    check_scale(scale, node.inputs[1])
    if zero_point is not None and not zero_point.dtype.name.startswith(("int", "uint")):
        raise BadQuantization(
            "zero point is not an integer", where=node.inputs[2], got=zero_point.dtype.name
        )
    points = np.zeros(1, np.int64) if zero_point is None else zero_point
    if zero_point is not None and zero_point.size not in (1, scale.size):
        raise BadQuantization(
            "scale and zero point have different sizes",
            where=node.inputs[2],
            got=zero_point.size,
            wanted=scale.size,
        )
    axis = int(node.attrs.get("axis", 1))
    if scale.size > 1:
        if scale.ndim != 1 or (shape is not None and not _fits(axis, scale.size, shape)):
            raise BadQuantization(
                "per-channel scales do not fit the tensor",
                where=node.name,
                got=f"{list(scale.shape)} scales along axis {axis}",
                wanted=f"those of {list(shape)}" if shape is not None else None,
            )
        axis = axis + len(shape) if axis < 0 and shape is not None else axis
    with np.errstate(over="ignore", under="ignore"):
        rounded = scale.astype(np.float32)
    check_scale(rounded, node.inputs[1])
    return QParams.make(rounded, points, axis)


def _fits(axis: int, size: int, shape: tuple[int | None, ...]) -> bool:
    return -len(shape) <= axis < len(shape) and shape[axis] == size


def dequantized(codes: Array, qparams: QParams) -> Array:
    """(codes - zero_point) * scale in float32, as DequantizeLinear computes it."""
    scale, points = qparams.scales(), qparams.zero_points()
    if qparams.axis is not None:
        shape = [1] * codes.ndim
        shape[qparams.axis] = -1
        scale, points = scale.reshape(shape), points.reshape(shape)
    with np.errstate(all="ignore"):
        result: Array = (codes.astype(np.int64) - points).astype(np.float32) * scale
    return result.astype(np.float32).reshape(codes.shape)


def quantized(values: Array, qparams: QParams, dtype: str) -> Array:
    """rint(values / scale) + zero_point, saturated, as QuantizeLinear computes it."""
    scale, points = qparams.scales(), qparams.zero_points()
    if qparams.axis is not None:
        shape = [1] * values.ndim
        shape[qparams.axis] = -1
        scale, points = scale.reshape(shape), points.reshape(shape)
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        steps = np.rint(values.astype(np.float32) / scale).astype(np.float64)
    codes = np.clip(steps + points, info.min, info.max)
    result: Array = codes.astype(dtype).reshape(values.shape)
    return result
