"""Files that parse but make no sense: only an NpusimError may escape, also when they run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nets import Net, random_codes, random_inputs

import npusim
from npusim.errors import NpusimError
from npusim.frontend.load import finished
from npusim.frontend.onnx import read

Rng = np.random.Generator
INTEGERS = (0, 1, -1, 2, 3, 4, 7, 100, -2, 2**31, -(2**31), 2**40, -(2**63), 2**63 - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-45, 1e-7)
OPERATORS = (
    *("Conv", "Gemm", "MatMul", "Add", "Mul", "Relu", "Clip", "MaxPool", "AveragePool", "Pad"),
    *("Concat", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Softmax", "Identity"),
    *("QuantizeLinear", "DequantizeLinear", "ReduceMean", "GlobalAveragePool", "Shape", "Range"),
    *("BatchNormalization", "Expand", "Cast", "Sub", "Sigmoid", "QLinearConv", "QLinearMatMul"),
)
LISTS = ("axes", "pads", "strides", "dilations", "kernel_shape", "perm")
NUMBERS = ("axis", "group", "transA", "transB", "keepdims", "ceil_mode", "allowzero", "block_size")
CASTS = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


def layers() -> Net:
    """A network with most operators."""
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 8, 8]), 0.02, 3)
    w = net.dq(net.const(random_codes((4, 4, 3, 3))), [0.01] * 4, [0] * 4, axis=0)
    b = net.const(np.ones(4, np.float32))
    y = net.qdq(net.node("Relu", [net.node("Conv", [x, w, b], pads=[1] * 4)]), 0.1, -5)
    y = net.qdq(net.node("Add", [x, y]), 0.1, 4)
    y = net.qdq(net.node("Mul", [y, net.const(np.float32(0.5))]), 0.05, 0)
    y = net.qdq(net.node("Concat", [x, y], axis=1), 0.05, 0)
    y = net.node("Pad", [y, net.const(np.asarray([0, 0, 1, 1, 0, 0, 1, 1]))])
    y = net.node("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = net.qdq(net.node("AveragePool", [y], kernel_shape=[2, 2]), 0.03, 2)
    y = net.qdq(net.node("GlobalAveragePool", [y]), 0.02, 1)
    y = net.node("Reshape", [y, net.const(np.asarray([1, -1]))])
    fc = net.dq(net.const(random_codes((8, 5))), 0.01, 0)
    y = net.node("Add", [net.node("MatMul", [y, fc]), net.const(np.ones(5, np.float32))])
    net.node("Softmax", [net.qdq(y, 0.02, 0)], output="y")
    net.output("y", [1, 5])
    return net


def qoperators() -> Net:
    """A network of QOperator nodes."""
    net = Net(contrib=True)
    q = [net.const(np.float32(0.1)), net.const(np.int8(3))]
    x = net.input("x", [1, 4, 6, 6], "int8")
    w = [net.const(random_codes((4, 4, 3, 3))), q[0], net.const(np.int8(0))]
    y = net.node("QLinearConv", [x, *q, *w, *q, net.const(np.ones(4, np.int32))], pads=[1] * 4)
    y = net.node("QLinearAdd", [x, *q, y, *q, *q], domain="com.microsoft")
    pool = {"kernel_shape": [2, 2], "domain": "com.microsoft"}
    y = net.node("QLinearAveragePool", [y, *q, *q], **pool)
    y = net.node("QLinearConcat", [*q, y, *q, y, *q], domain="com.microsoft", axis=1)
    y = net.node("QLinearGlobalAveragePool", [y, *q, *q], domain="com.microsoft")
    y = net.node("Flatten", [y])
    fc = [net.const(random_codes((5, 8))), q[0], net.const(np.int8(0))]
    gemm = [y, *q, *fc, net.const(np.ones(5, np.int32)), *q]
    net.node("QGemm", gemm, domain="com.microsoft", transB=1, output="y")
    net.output("y", [1, 5], "int8")
    return net


def pick(rng: Rng, items: object) -> object:
    values = list(items)  # type: ignore[call-overload]
    return values[int(rng.integers(len(values)))]


def other_operator(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, graph.node)
    node.op_type = pick(rng, OPERATORS)


def other_input(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, graph.node)
    if node.input:
        names = ["", *(n for q in graph.node for n in (*q.input, *q.output))]
        node.input[int(rng.integers(len(node.input)))] = pick(rng, names)


def input_removed(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, graph.node)
    if node.input:
        del node.input[int(rng.integers(len(node.input)))]


def attribute_changed(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, [n for n in graph.node if n.attribute])
    attribute = pick(rng, node.attribute)
    if attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = pick(rng, INTEGERS)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = pick(rng, INTEGERS)


def attribute_removed(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, [n for n in graph.node if n.attribute])
    node.attribute.remove(pick(rng, node.attribute))


def attribute_added(graph: onnx.GraphProto, rng: Rng) -> None:
    node = pick(rng, graph.node)
    name = pick(rng, (*LISTS, *NUMBERS))
    value: object = int(rng.integers(-3, 4))
    if name in LISTS:
        value = [int(v) for v in rng.integers(-1, 4, rng.integers(1, 5))]
    if all(a.name != name for a in node.attribute):
        node.attribute.append(helper.make_attribute(name, value))


def size_changed(graph: onnx.GraphProto, rng: Rng) -> None:
    tensor = pick(rng, graph.initializer)
    if tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = pick(rng, INTEGERS)
    else:
        tensor.dims.append(1)


def values_changed(graph: onnx.GraphProto, rng: Rng) -> None:
    tensor = pick(rng, graph.initializer)
    itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if not tensor.raw_data or math.prod(tensor.dims) * itemsize != len(tensor.raw_data):
        return
    array = numpy_helper.to_array(tensor)
    changes: tuple[Callable[[], object], ...] = (
        lambda: array.astype(pick(rng, CASTS)),
        lambda: array.reshape(-1),
        lambda: array.reshape(-1)[: rng.integers(2)],
        lambda: array.reshape(1, *array.shape),
        lambda: np.concatenate([array.reshape(-1)] * 3),
        lambda: np.full_like(array, pick(rng, FLOATS if array.dtype.kind == "f" else (0, 1, 100))),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed = numpy_helper.from_array(np.asarray(pick(rng, changes)()), tensor.name)
    tensor.CopyFrom(changed)


def input_type_changed(graph: onnx.GraphProto, rng: Rng) -> None:
    kind = graph.input[0].type.tensor_type
    if rng.random() < 0.3:
        kind.elem_type = int(rng.integers(25))
    elif rng.random() < 0.3:
        pick(rng, kind.shape.dim).Clear()
    else:
        pick(rng, kind.shape.dim).dim_value = pick(rng, INTEGERS)


def output_renamed(graph: onnx.GraphProto, rng: Rng) -> None:
    pick(rng, graph.node).output[0] = "y"


CHANGES: tuple[Callable[[onnx.GraphProto, Rng], None], ...] = (
    other_operator,
    other_input,
    input_removed,
    attribute_changed,
    attribute_removed,
    attribute_added,
    size_changed,
    values_changed,
    input_type_changed,
    output_renamed,
)


def survive(count: int, folder: Path, seed: int) -> tuple[int, int]:
    """How many changed networks ran, and how many were refused."""
    rng = np.random.default_rng(seed)
    originals = [net().model() for net in (layers, qoperators)]
    path = folder / "net.onnx"
    ran = refused = 0
    for i in range(count):
        model = onnx.ModelProto()
        model.CopyFrom(originals[i % len(originals)])
        for _ in range(int(rng.integers(1, 4))):
            CHANGES[int(rng.integers(len(CHANGES)))](model.graph, rng)
        if rng.random() < 0.1:
            model.opset_import[0].version = int(rng.integers(7, 28))
        path.write_bytes(model.SerializeToString())
        try:
            graph = finished(read(path))
            program = npusim.compile(graph, profile="onnxruntime", engine="numpy")
            if all(v.type.per_image() < 100_000 for v in graph.values.values()):
                program.run(random_inputs(graph))
            ran += 1
        except NpusimError:
            refused += 1
    return ran, refused


def test_changed_networks(tmp_path: Path) -> None:
    ran, refused = survive(150, tmp_path, seed=1)
    assert ran > 8
    assert refused > 60


@pytest.mark.long
def test_many_changed_networks(tmp_path: Path) -> None:
    ran, refused = survive(2000, tmp_path, seed=2)
    assert ran > 200
    assert refused > 800
