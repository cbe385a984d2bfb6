"""Bounds of declared sizes, and shape inference that a file of a few bytes cannot blow up.

Data propagation, which follows shapes that nodes compute, keeps an entry for every element of every
vector it meets: an input declared as float[2147483648] is enough to exhaust the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx

from npusim.errors import BadShape

MAX_DIMENSION = 2**24
MAX_ELEMENTS = 2**31
LONGEST_VECTOR = 1024
"""Elements of a vector that data propagation may meet; a computed shape has a few."""


def check_declared(model: onnx.ModelProto) -> None:
    """Raises BadShape, naming the tensor, where a declared shape is larger than anything here.

    Constants are not looked at: their shapes are compared with their data.
    """
    graph = model.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        _check(info.name or "a tensor without a name", _sizes(info) or ())


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that the onnx package infers; data propagation where needed."""
    plain = onnx.shape_inference.infer_shapes(model)
    if _complete(plain) or _has_long_vector(plain.graph):
        return plain
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _check(name: str, sizes: tuple[int | None, ...]) -> None:
    known = [d for d in sizes if d is not None]
    if any(d > MAX_DIMENSION for d in known) or math.prod(known) > MAX_ELEMENTS:
        raise BadShape(
            "tensor is too large",
            where=name,
            got=known,
            wanted=f"sizes of at most {MAX_DIMENSION} and at most {MAX_ELEMENTS} elements",
        )


def _infos(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    graph = model.graph
    yield from (*graph.input, *graph.output, *graph.value_info)
    for tensor in graph.initializer:
        yield onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)


def _sizes(info: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """Declared sizes, None for open ones; None where even their number is open."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)


def _complete(model: onnx.ModelProto) -> bool:
    """Whether the shape of everything that a node computes is known."""
    known = {i.name for i in _infos(model) if None not in (_sizes(i) or (None,))}
    known.update(i.name for i in _infos(model) if _sizes(i) == ())
    return all(o in known for node in model.graph.node for o in node.output if o)


def _has_long_vector(graph: onnx.GraphProto) -> bool:
    """Among what is no constant: those of constants are bounded by the file's own size."""
    constants = {t.name for t in graph.initializer}
    for info in (*graph.input, *graph.output, *graph.value_info):
        sizes = _sizes(info) or ()
        if len(sizes) == 1 and info.name not in constants and (sizes[0] or 0) > LONGEST_VECTOR:
            return True
    return False
