"""Weights and biases in every form a file can hold them, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, assert_same_function, random_codes

import npusim
from npusim.errors import NpusimError
from npusim.ir import Graph

SCALES = np.asarray([0.01, 0.02, 0.005, 0.03, 0.013], np.float32)
SX, SY = 0.02, 0.11


def weights(net: Net, form: str, dtype: str = "int8") -> str:
    """The dequantized (or float) weights [5, 4, 3, 3] called w."""
    codes = random_codes((5, 4, 3, 3), dtype)
    codes[:, 0, 0, 0] = 127
    point = np.zeros(5, dtype) if dtype == "int8" else np.full(5, 130, dtype)
    real = ((codes.astype(int) - point.reshape(-1, 1, 1, 1)) * SCALES.reshape(-1, 1, 1, 1)).astype(
        np.float32
    )
    if form == "codes":
        return net.dq(net.const(codes, "w"), SCALES, point, dtype, axis=0)
    if form == "negative axis":
        return net.dq(net.const(codes, "w"), SCALES, point, dtype, axis=-4)
    if form == "per tensor":
        return net.dq(net.const(codes, "w"), [0.01], [point[0]], dtype)
    if form == "no zero point":
        scale = net.const(np.float32(0.01))
        return net.node("DequantizeLinear", [net.const(codes.astype("uint8"), "w"), scale])
    if form == "float Q DQ":
        q = net.q(net.const(real, "w"), SCALES, point, dtype, axis=0)
        return net.dq(q, SCALES, point, dtype, axis=0)
    assert form == "float on grid"
    return net.const(real, "w")


def conv_net(form: str, bias: str, dtype: str = "int8", x_dtype: str = "int8") -> Net:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 7, 7]), SX, 3, x_dtype)
    inputs = [x, weights(net, form, dtype)]
    numbers = np.asarray([0.5, -0.3, 0.0, 1.1, -2.0], np.float32)
    scale = np.float32(SX) * (SCALES if form in ("codes", "float Q DQ") else np.float32(0.01))
    if bias == "float":
        inputs.append(net.const(numbers, "b"))
    elif bias == "codes":
        codes = np.rint(numbers / scale).astype(np.int32)
        axis = {"axis": 0} if scale.ndim else {}
        inputs.append(
            net.dq(
                net.const(codes, "b"), scale, np.zeros_like(codes) if axis else 0, "int32", **axis
            )
        )
    elif bias == "other scale":
        inputs.append(
            net.dq(net.const(np.rint(numbers * 1000).astype(np.int32), "b"), 0.001, 0, "int32")
        )
    y = net.node("Conv", inputs, "conv", pads=[1, 1, 1, 1])
    net.q(y, SY, -5 if x_dtype == "int8" else 100, x_dtype, output="y")
    net.output("y", [1, 5, 7, 7], x_dtype)
    return net


def conv_of(graph: Graph) -> npusim.ir.Node:
    return next(n for n in graph.nodes if n.op == "conv")


@pytest.mark.parametrize("bias", ["none", "float", "codes", "other scale"])
@pytest.mark.parametrize(
    "form",
    ["codes", "negative axis", "per tensor", "no zero point", "float Q DQ", "float on grid"],
)
def test_forms_compute_what_the_file_says(form: str, bias: str, tmp_path: Path) -> None:
    graph = assert_same_function(conv_net(form, bias).save(tmp_path))
    node = conv_of(graph)
    weight = graph.initializers[node.inputs[1]]
    assert weight.dtype == ("uint8" if form == "no zero point" else "int8")
    assert weight.shape == (5, 4, 3, 3)
    assert len(node.inputs) == (2 if bias == "none" else 3)
    assert graph.inputs[0].type.lifted


@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("form", ["codes", "per tensor", "float Q DQ"])
def test_unsigned_weights(form: str, x_dtype: str, tmp_path: Path) -> None:
    net = conv_net(form, "float", "uint8", x_dtype)
    graph = assert_same_function(net.save(tmp_path))
    assert graph.initializers[conv_of(graph).inputs[1]].dtype == "uint8"


def test_names_of_initializers_are_kept(tmp_path: Path) -> None:
    for form in ("codes", "per tensor", "float on grid"):
        graph = npusim.load(conv_net(form, "float").save(tmp_path))
        assert conv_of(graph).inputs[1:] == ("w", "b")


def test_float_weights_off_every_grid_are_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 7, 7]), SX, 3)
    w = net.const(np.random.default_rng(0).normal(size=(5, 4, 3, 3)).astype(np.float32), "w")
    net.q(net.node("Conv", [x, w], "conv"), SY, 0, output="y")
    net.output("y", [1, 5, 5, 5], "int8")
    with pytest.raises(NpusimError, match="conv: float constant of Conv lies on no int8 grid"):
        npusim.load(net.save(tmp_path))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e20])
def test_bad_scales_are_refused_by_name(bad: float, tmp_path: Path) -> None:
    net = Net()
    net.input("x", [1, 4])
    scale = net.const(np.float32(bad), "the_scale")
    q = net.node("QuantizeLinear", ["x", scale, net.const(np.int8(0))])
    net.node("DequantizeLinear", [q, scale], output="y")
    net.output("y", [1, 4])
    with pytest.raises(NpusimError, match="the_scale: scale is not a positive number"):
        npusim.load(net.save(tmp_path))


def test_one_weight_under_two_scales(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 5, 5]), SX, 3)
    net.const(random_codes((4, 4, 1, 1)), "w")
    first = net.node("Conv", [x, net.dq("w", 0.01, 0)], "first")
    second = net.node("Conv", [net.qdq(first, 0.05, 1), net.dq("w", 0.02, 0)], "second")
    net.q(second, 0.2, -3, output="y")
    net.output("y", [1, 4, 5, 5], "int8")
    graph = assert_same_function(net.save(tmp_path), share=0.2)
    names = [n.inputs[1] for n in graph.nodes if n.op == "conv"]
    assert len(set(names)) == 2
    assert [graph.value(n).qparams.scale[0] for n in names] == pytest.approx([0.01, 0.02])


def test_a_bias_too_large_for_int32_is_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 5, 5]), 1e-6, 3)
    w = net.dq(net.const(random_codes((4, 4, 1, 1)), "w"), 1e-6, 0)
    b = net.const(np.full(4, 3.0, np.float32), "b")
    net.q(net.node("Conv", [x, w, b], "conv"), 0.2, -3, output="y")
    net.output("y", [1, 4, 5, 5], "int8")
    with pytest.raises(NpusimError, match="b: bias does not fit int32"):
        npusim.load(net.save(tmp_path))


@pytest.mark.parametrize("form", ["gemm", "gemm transposed", "matmul", "matmul add", "transpose"])
def test_linear_layers(form: str, tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 6]), SX, 3)
    transposed = form in ("gemm transposed", "transpose")
    codes = random_codes((5, 6) if transposed else (6, 5))
    w = net.dq(net.const(codes, "w"), SCALES, np.zeros(5), axis=0 if transposed else 1)
    bias = net.const(np.linspace(-1, 1, 5, dtype=np.float32), "b")
    if form.startswith("gemm"):
        y = net.node("Gemm", [x, w, bias], "fc", transB=int(transposed))
    elif form == "matmul":
        y = net.node("MatMul", [x, w], "fc")
    elif form == "matmul add":
        y = net.node("Add", [bias, net.node("MatMul", [x, w], "fc")])
    else:
        y = net.node("Add", [net.node("MatMul", [x, net.node("Transpose", [w])], "fc"), bias])
    net.q(y, 0.05, -3, output="y")
    net.output("y", [1, 5], "int8")
    graph = assert_same_function(net.save(tmp_path), share=0.3)
    node = graph.nodes[-1]
    assert (node.op, node.name, node.inputs[1]) == ("gemm", "fc", "w")
    assert node.attrs.transposed is transposed
    assert len(node.inputs) == (2 if form == "matmul" else 3)


def test_linear_layer_on_a_sequence(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", ["N", 3, 6]), SX, 3)
    w = net.dq(net.const(random_codes((6, 5)), "w"), 0.01, 0)
    net.q(net.node("MatMul", [x, w], "fc"), 0.05, -3, output="y")
    net.output("y", ["N", 3, 5], "int8")
    graph = assert_same_function(net.save(tmp_path), share=0.2)
    assert graph.outputs[0].type.shape == (None, 3, 5)
