"""Small ONNX networks for tests, and onnxruntime without optimization to compare them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import npusim
from npusim.ir import Array, Graph

Sizes = Sequence[int | str]


class Net:
    """Collects nodes and tensors; every method returns the name of the tensor it made."""

    def __init__(self, opset: int = 17, contrib: bool = False) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.opsets = [helper.make_opsetid("", opset)]
        if contrib:
            self.opsets.append(helper.make_opsetid("com.microsoft", 1))
        self.count = 0

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def input(self, name: str, shape: Sizes, dtype: str = "float32") -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, shape: Sizes, dtype: str = "float32") -> None:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))

    def const(self, array: Any, name: str = "") -> str:
        name = name or self._name("c")
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, inputs: Sequence[str], name: str = "", **attrs: Any) -> str:
        output = attrs.pop("output", "") or self._name("t")
        self.nodes.append(helper.make_node(op, list(inputs), [output], name, **attrs))
        return str(output)

    def q(
        self, x: str, scale: Any, point: Any, dtype: str = "int8", output: str = "", **attrs: Any
    ) -> str:
        scales = [self.const(np.asarray(scale, np.float32)), self.const(np.asarray(point, dtype))]
        return self.node("QuantizeLinear", [x, *scales], output=output, **attrs)

    def dq(self, x: str, scale: Any, point: Any, dtype: str = "int8", **attrs: Any) -> str:
        scales = [self.const(np.asarray(scale, np.float32)), self.const(np.asarray(point, dtype))]
        return self.node("DequantizeLinear", [x, *scales], **attrs)

    def qdq(self, x: str, scale: Any, point: Any, dtype: str = "int8") -> str:
        return self.dq(self.q(x, scale, point, dtype), scale, point, dtype)

    def model(self, ir_version: int = 9) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.tensors)
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=ir_version)

    def save(self, folder: Path, name: str = "net.onnx") -> Path:
        path = folder / name
        path.write_bytes(self.model().SerializeToString())
        return path


def random_codes(shape: Sequence[int], dtype: str = "int8", seed: int = 0) -> Array:
    """Codes of the whole range; weights of int8 without -128."""
    info = np.iinfo(dtype)
    low = -127 if dtype == "int8" else info.min
    return np.random.default_rng(seed).integers(low, info.max, shape, dtype, endpoint=True)


def random_inputs(graph: Graph, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Inputs of the graph's types: normal floats, or codes of the whole range."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for value in graph.inputs:
        shape = value.type.concrete(batch)
        if value.type.dtype == "float32":
            arrays[value.name] = rng.normal(0, 1, shape).astype(np.float32)
        else:
            low, high = value.range
            arrays[value.name] = rng.integers(low, high, shape, value.type.dtype, endpoint=True)
    return arrays


def run_onnxruntime(path: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The file run node by node as it is written, without any fusion."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_npusim(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The graph run by the integer references under the onnxruntime profile."""
    program = npusim.compile(graph, profile="onnxruntime", engine="numpy")
    return dict(program.run(dict(feeds)))


def assert_same_function(
    path: Path, step: float = 1.0, share: float = 0.03, seed: int = 0
) -> Graph:
    """Load the file, and compare with onnxruntime on random input.

    step: what one code is worth in the outputs (1 for codes, the scale for floats). At most
    ``share`` of the outputs may differ, by one code: roundings of float32 at ties.
    Returns the loaded graph.
    """
    graph = npusim.load(path)
    feeds = random_inputs(graph, seed=seed)
    ours, theirs = run_npusim(graph, feeds), run_onnxruntime(path, feeds)
    assert set(ours) == set(theirs)
    for name, wanted in theirs.items():
        got = ours[name]
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        difference = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
        assert difference.max() <= step * 1.001
        assert (difference > step * 0.001).mean() <= share
        assert len(np.unique(wanted)) > 1
    return graph
