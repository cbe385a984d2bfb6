"""Compute what depends on constants alone: Constant, Shape arithmetic, QuantizeLinear of weights.

DequantizeLinear is kept, since the codes behind it are what the NPU needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import BadQuantization, ModelError
from npusim.ir import Array, Graph, Node
from npusim.passes.qdq import QUANTIZE, codes_dtype, quantized, read_qparams
from npusim.passes.rewrite import Rewrite

# Operators that are computed here; each writes no more than its inputs and attributes announce.
FOLDABLE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div"),
        *("Equal", "Expand", "Flatten", "Floor", "Gather", "Greater", "Identity", "Less", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "ReduceProd", "Reshape"),
        *("Shape", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze"),
        "Where",
    }
)


@dataclass(frozen=True)
class FoldConstants:
    """max_elements: the largest result that is computed; a larger one is refused."""

    max_elements: int = 1 << 26

    def __call__(self, graph: Graph) -> Graph:
        """Raises ModelError where a constant cannot be computed or is too large."""
        work = Rewrite(graph)
        for node in graph.nodes:
            result = self._result(work, node)
            if result is not None:
                del work.nodes[node.name]
                work.set_constant(node.outputs[0], result)
        return work.graph()

    def _result(self, work: Rewrite, node: Node) -> Array | None:
        if len([o for o in node.outputs if o]) != 1 or not node.outputs[0]:
            return None
        inputs = {i: work.constants[i] for i in node.inputs if i in work.constants}
        constant = len(inputs) == len({i for i in node.inputs if i})
        if node.op in ("Shape", "Size") and not constant:
            return _shape(work, node)
        if not constant or (node.op != QUANTIZE and node.op not in FOLDABLE):
            return None
        if node.op == "Constant":
            return _constant(node)
        if node.op == QUANTIZE:
            graph = work.old.with_(initializers=work.constants)
            array = inputs[node.inputs[0]]
            if not np.isfinite(array).all():
                raise BadQuantization("constant is not finite", where=node.inputs[0])
            qparams = read_qparams(graph, node, array.shape)
            return quantized(array, qparams, codes_dtype(graph, node))
        self._check_size(work, node, inputs)
        return _evaluate(node, inputs, work.old.opsets.get("", 0))

    def _check_size(self, work: Rewrite, node: Node, inputs: Mapping[str, Array]) -> None:
        count = _announced(work, node, inputs)
        if count > self.max_elements:
            raise ModelError(
                f"constant result of {node.op} is too large",
                where=node.name,
                got=f"{count} elements",
                wanted=f"at most {self.max_elements}",
            )


def _announced(work: Rewrite, node: Node, inputs: Mapping[str, Array]) -> int:
    """An upper bound of the number of elements that the node will write."""
    arrays = list(inputs.values())
    known = [max(a.size, 1) for a in arrays]
    if node.op in ("ConstantOfShape", "Expand", "Tile"):
        sizes = arrays[-1].ravel().astype(object)
        return math.prod(abs(int(s)) for s in sizes) * (known[0] if len(arrays) > 1 else 1)
    if node.op == "Range":
        start, limit, step = (float(a.ravel()[0]) if a.size else 0.0 for a in _three(arrays))
        return int(min(abs((limit - start) / step), 1e18)) if step else 0
    if node.op in ("Gather", "Concat"):
        return math.prod(known) if node.op == "Gather" else sum(known)
    shape = np.broadcast_shapes(*(a.shape for a in arrays)) if _elementwise(arrays) else ()
    return max(math.prod(shape), *known)


def _three(arrays: list[Array]) -> list[Array]:
    return (arrays * 3)[:3]


def _elementwise(arrays: list[Array]) -> bool:
    try:
        np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return False
    return True


def _shape(work: Rewrite, node: Node) -> Array | None:
    value = work.values.get(node.inputs[0])
    if value is None or None in value.type.shape:
        return None
    shape = np.asarray(value.type.shape, np.int64)
    if node.op == "Size":
        return np.asarray(shape.prod(), np.int64)
    return shape[node.attrs.get("start", 0) : node.attrs.get("end", len(shape))]


def _constant(node: Node) -> Array:
    for key, value in node.attrs.items():
        if key == "value":
            return np.asarray(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise ModelError("Constant of a kind that is not supported", where=node.name)


def _evaluate(node: Node, inputs: Mapping[str, Array], opset: int) -> Array:
    """One node through the onnx package's reference implementation."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    names = [i for i in dict.fromkeys(node.inputs) if i]
    attrs = {k: _attribute(k, v) for k, v in node.attrs.items()}
    proto = onnx.helper.make_node(node.op, list(node.inputs), list(node.outputs), **attrs)
    info = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(inputs[n].dtype), list(inputs[n].shape)
        )
        for n in names
    ]
    out = onnx.helper.make_empty_tensor_value_info(node.outputs[0])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "constant", info, [out]),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    try:
        feeds = {n: np.array(inputs[n]) for n in names}
        results: Any = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # the reference raises whatever NumPy raises
        raise ModelError(
            f"constant {node.op} cannot be computed", where=node.name, got=error
        ) from None
    return np.asarray(results[0])


def _attribute(key: str, value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.from_array(value, key) if isinstance(value, np.ndarray) else value
