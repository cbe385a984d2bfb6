"""Operators between DequantizeLinear and QuantizeLinear in all their arrangements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, assert_same_function, random_codes

import npusim
from npusim.errors import NpusimError
from npusim.frontend.onnx import read
from npusim.passes import PIPELINE
from npusim.passes.verify import check_order

Build = Callable[[Net, str], str]


def ops(graph: npusim.ir.Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def conv(net: Net, x: str, channels: int = 4, **attrs: object) -> str:
    group = int(str(attrs.get("group", 1)))
    codes = random_codes((channels, channels // group, 3, 3))
    w = net.dq(net.const(codes), 0.01, 0)
    return net.node("Conv", [x, w], f"conv_{net.count}", **attrs)


def built(build: Build, shape: list[int], result: list[int], dtype: str = "int8") -> Net:
    """x -> Q -> DQ -> build -> Q -> y."""
    net = Net()
    x = net.qdq(net.input("x", shape), 0.02, 3, dtype)
    net.q(build(net, x), 0.09, -7 if dtype == "int8" else 90, dtype, output="y")
    net.output("y", result, dtype)
    return net


SHAPE = [1, 4, 9, 8]
CASES: dict[str, tuple[Build, list[int], list[str]]] = {
    "conv relu": (lambda n, x: n.node("Relu", [conv(n, x)]), [1, 4, 7, 6], ["conv"]),
    "conv clip": (
        lambda n, x: n.node(
            "Clip", [conv(n, x), n.const(np.float32(-1)), n.const(np.float32(1.23))]
        ),
        [1, 4, 7, 6],
        ["conv"],
    ),
    "clip without a maximum": (
        lambda n, x: n.node("Clip", [conv(n, x), n.const(np.float32(-0.5))]),
        [1, 4, 7, 6],
        ["conv"],
    ),
    "same upper, stride 2": (
        lambda n, x: conv(n, x, auto_pad="SAME_UPPER", strides=[2, 2]),
        [1, 4, 5, 4],
        ["conv"],
    ),
    "same lower, stride 2": (
        lambda n, x: conv(n, x, auto_pad="SAME_LOWER", strides=[2, 2]),
        [1, 4, 5, 4],
        ["conv"],
    ),
    "valid": (lambda n, x: conv(n, x, auto_pad="VALID"), [1, 4, 7, 6], ["conv"]),
    "depthwise, uneven pads": (
        lambda n, x: conv(n, x, group=4, pads=[0, 1, 2, 0], strides=[2, 1]),
        [1, 4, 5, 7],
        ["conv"],
    ),
    "grouped, dilated": (
        lambda n, x: conv(n, x, group=2, dilations=[2, 3], pads=[2, 3, 2, 3]),
        [1, 4, 9, 8],
        ["conv"],
    ),
    "maxpool": (
        lambda n, x: n.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        [1, 4, 5, 4],
        ["maxpool", "requantize"],
    ),
    "maxpool, ceil mode": (
        lambda n, x: n.node("MaxPool", [x], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
        [1, 4, 5, 4],
        ["maxpool", "requantize"],
    ),
    "average": (
        lambda n, x: n.node("AveragePool", [x], kernel_shape=[3, 2], pads=[1, 1, 1, 0]),
        [1, 4, 9, 8],
        ["avgpool"],
    ),
    "average that counts padding": (
        lambda n, x: n.node(
            "AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        ),
        [1, 4, 9, 8],
        ["avgpool"],
    ),
    "average, ceil mode": (
        lambda n, x: n.node("AveragePool", [x], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
        [1, 4, 5, 4],
        ["avgpool"],
    ),
    "global average": (
        lambda n, x: n.node("GlobalAveragePool", [x]),
        [1, 4, 1, 1],
        ["global_average_pool"],
    ),
    "mean over height and width": (
        lambda n, x: n.node("ReduceMean", [x], axes=[-1, 2], keepdims=0),
        [1, 4],
        ["global_average_pool"],
    ),
    "relu alone": (lambda n, x: n.node("Relu", [x]), SHAPE, ["requantize"]),
    "clip alone": (
        lambda n, x: n.node("Clip", [x, n.const(np.float32(-0.7)), n.const(np.float32(0.77))]),
        SHAPE,
        ["requantize"],
    ),
    "nothing": (lambda n, x: x, SHAPE, ["requantize"]),
    "add itself": (lambda n, x: n.node("Add", [x, x]), SHAPE, ["add"]),
    "add relu": (
        lambda n, x: n.node("Relu", [n.node("Add", [x, n.qdq(conv(n, x, pads=[1] * 4), 0.1, 5)])]),
        SHAPE,
        ["conv", "add"],
    ),
    "add a constant": (
        lambda n, x: n.node("Add", [n.dq(n.const(random_codes((4, 1, 1))), 0.01, 0), x]),
        SHAPE,
        ["add"],
    ),
    "mul by a float constant": (
        lambda n, x: n.node("Mul", [x, n.const(np.float32(0.37))]),
        SHAPE,
        ["mul"],
    ),
    "concat": (
        lambda n, x: n.node("Concat", [x, n.qdq(conv(n, x, pads=[1] * 4), 0.1, 5)], axis=-3),
        [1, 8, 9, 8],
        ["conv", "concat"],
    ),
    "pad that is no zero": (
        lambda n, x: n.node(
            "Pad", [x, n.const(np.asarray([0, 0, 1, 0, 0, 0, 0, 2])), n.const(np.float32(0.02))]
        ),
        [1, 4, 10, 10],
        ["pad", "requantize"],
    ),
    "pad merged into conv": (
        lambda n, x: conv(n, n.node("Pad", [x, n.const(np.asarray([0, 0, 1, 0, 0, 0, 0, 2]))])),
        [1, 4, 8, 8],
        ["conv"],
    ),
    "flatten after conv": (
        lambda n, x: n.node("Flatten", [conv(n, x)]),
        [1, 4 * 7 * 6],
        ["conv", "reshape"],
    ),
    "maxpool and relu after conv": (
        lambda n, x: n.node("Relu", [n.node("MaxPool", [conv(n, x)], kernel_shape=[2, 2])]),
        [1, 4, 6, 5],
        ["conv", "maxpool"],
    ),
    "pad after conv": (
        lambda n, x: n.node(
            "Pad",
            [conv(n, x), n.const(np.asarray([0, 0, 1, 1, 0, 0, 1, 1])), n.const(np.float32(0.3))],
        ),
        [1, 4, 9, 8],
        ["conv", "pad"],
    ),
    "transposes": (
        lambda n, x: n.node("Transpose", [conv(n, x)], perm=[0, 2, 3, 1]),
        [1, 7, 6, 4],
        ["conv", "transpose"],
    ),
    "squeeze and unsqueeze": (
        lambda n, x: n.node(
            "Unsqueeze",
            [
                n.node("Squeeze", [n.node("GlobalAveragePool", [x]), n.const(np.asarray([2, 3]))]),
                n.const(np.asarray([-1])),
            ],
        ),
        [1, 4, 1],
        ["global_average_pool", "reshape", "reshape"],
    ),
    "relu between dequantized tensors": (
        lambda n, x: n.node("AveragePool", [n.node("Relu", [x])], kernel_shape=[2, 2]),
        [1, 4, 8, 7],
        ["requantize", "avgpool"],
    ),
    "reshape with 0 and -1": (
        lambda n, x: n.node("Reshape", [x, n.const(np.asarray([0, 2, -1]))]),
        [1, 2, 144],
        ["reshape", "requantize"],
    ),
    "identity and dropout": (
        lambda n, x: n.node("Identity", [n.node("Dropout", [conv(n, x)])]),
        [1, 4, 7, 6],
        ["conv"],
    ),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("case", CASES)
def test_form(case: str, dtype: str, tmp_path: Path) -> None:
    build, result, wanted = CASES[case]
    graph = assert_same_function(built(build, SHAPE, result, dtype).save(tmp_path))
    assert ops(graph) == ["quantize", *wanted]
    assert graph.outputs[0].type.shape == (None, *result[1:])


@pytest.mark.parametrize("case", CASES)
def test_invariants_hold_between_passes(case: str, tmp_path: Path) -> None:
    build, result, _ = CASES[case]
    graph = read(built(build, SHAPE, result).save(tmp_path))
    for step in PIPELINE:
        check_order(graph)
        again = step(graph)
        assert again.inputs[0].name == "x"
        assert [v.name for v in again.outputs] == ["y"]
        graph = again
    check_order(graph)


def test_relu_at_the_floor_of_the_range_costs_nothing(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", SHAPE), 0.02, -128)
    pooled = net.node("AveragePool", [net.node("Relu", [x])], kernel_shape=[2, 2])
    net.q(pooled, 0.0131, -128, output="y")
    net.output("y", [1, 4, 8, 7], "int8")
    assert ops(assert_same_function(net.save(tmp_path))) == ["quantize", "avgpool"]


def test_one_result_under_two_scales(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", SHAPE), 0.02, 3)
    y = conv(net, x)
    net.q(y, 0.09, -7, output="a")
    net.q(y, 0.05, 1, output="b")
    net.q(y, 0.05, 1, output="c")
    for name in "abc":
        net.output(name, [1, 4, 7, 6], "int8")
    graph = assert_same_function(net.save(tmp_path))
    assert ops(graph) == ["quantize", "conv", "conv", "reshape"]
    assert len({n.name for n in graph.nodes}) == 4


def test_quantizing_again_with_the_same_scale_is_dropped(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", SHAPE), 0.02, 3)
    for _ in range(3):
        x = net.qdq(x, 0.02, 3)
    net.q(net.node("Transpose", [x], perm=[0, 2, 3, 1]), 0.02, 3, output="y")
    net.output("y", [1, 9, 8, 4], "int8")
    assert ops(assert_same_function(net.save(tmp_path), share=0)) == ["quantize", "transpose"]


def test_codes_at_both_ends(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", [1, 9, 8, 4], "uint8")
    x = net.dq(net.node("Transpose", [x], perm=[0, 3, 1, 2]), 0.02, 120, "uint8")
    net.q(conv(net, x), 0.09, 128, "uint8", output="y")
    net.output("y", [1, 4, 7, 6], "uint8")
    graph = assert_same_function(net.save(tmp_path))
    assert ops(graph) == ["transpose", "conv"]
    assert graph.inputs[0].qparams == graph.value(graph.nodes[1].inputs[0]).qparams


def test_notes_say_what_was_done(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 6]), 0.02, 3)
    w = net.const(random_codes((6, 5)).astype(np.float32) * np.float32(0.01), "w")
    b = net.const(np.ones(5, np.float32), "b")
    net.q(net.node("Gemm", [x, w, b], "fc"), 0.05, -3, output="y")
    net.output("y", [1, 5], "int8")
    notes = npusim.load(net.save(tmp_path)).metadata["npusim.notes"].splitlines()
    assert notes == [
        "fc: float constant w lies on an int8 grid and is read as its codes",
        "fc: float bias b rounded to int32, half to even",
    ]


def test_softmax_is_a_float_epoch(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 6]), 0.02, 3)
    net.node("Softmax", [x], output="y")
    net.output("y", [1, 6])
    graph = assert_same_function(net.save(tmp_path), step=1e-6, share=1.0)
    assert ops(graph) == ["quantize", "dequantize", "softmax"]


def test_scales_may_be_vectors_of_one(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", SHAPE), [0.02], [3])
    net.q(conv(net, x), [0.09], [-7], output="y")
    net.output("y", [1, 4, 7, 6], "int8")
    assert ops(assert_same_function(net.save(tmp_path))) == ["quantize", "conv"]


def test_missing_zero_points_mean_uint8(tmp_path: Path) -> None:
    net = Net()
    scale = net.const(np.float32(0.02))
    q = net.node("QuantizeLinear", [net.input("x", SHAPE), scale])
    x = net.node("DequantizeLinear", [q, scale])
    net.node("QuantizeLinear", [conv(net, x), net.const(np.float32(0.09))], output="y")
    net.output("y", [1, 4, 7, 6], "uint8")
    assert assert_same_function(net.save(tmp_path)).outputs[0].type.dtype == "uint8"


def test_old_opset_with_attributes(tmp_path: Path) -> None:
    net = Net(opset=10)
    x = net.qdq(net.input("x", SHAPE), 0.02, 3)
    y = net.node("Clip", [conv(net, x)], min=-1.0, max=2.0)
    y = net.node("Pad", [y], pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0)
    y = net.node("Unsqueeze", [net.node("Flatten", [y])], axes=[1])
    net.q(net.node("Squeeze", [y], axes=[1]), 0.09, -7, output="y")
    net.output("y", [1, 4 * 9 * 8], "int8")
    graph = assert_same_function(net.save(tmp_path))
    assert ops(graph) == ["quantize", "conv", "pad", "reshape", "reshape", "reshape"]


REFUSED: dict[str, tuple[Build, str]] = {
    "negative pads": (
        lambda n, x: n.node("Pad", [x, n.const(np.asarray([0, 0, -1, 0, 0, 0, 0, 0]))], "p"),
        "p: Pad: negative padding",
    ),
    "reflected pads": (
        lambda n, x: n.node(
            "Pad", [x, n.const(np.asarray([0, 0, 1, 0, 0, 0, 0, 0]))], "p", mode="reflect"
        ),
        "p: Pad: only constant padding",
    ),
    "pad between codes": (
        lambda n, x: n.node(
            "Pad",
            [x, n.const(np.asarray([0, 0, 1, 0, 0, 0, 0, 0])), n.const(np.float32(0.011))],
            "p",
        ),
        "p: Pad: constant is no code",
    ),
    "mean over channels": (
        lambda n, x: n.node("ReduceMean", [x], "m", axes=[1]),
        "m: ReduceMean: only means over height and width",
    ),
    "cosine": (lambda n, x: n.node("Cos", [x], "c"), "c: operator Cos .opset 17. cannot"),
    "two convolutions in a row": (
        lambda n, x: n.node("Conv", [conv(n, x), n.dq(n.const(random_codes((4, 4, 1, 1))), 1, 0)]),
        "without a QuantizeLinear after it|input of Conv is not quantized",
    ),
    "float operand": (
        lambda n, x: n.node("Add", [x, "x"], "a"),
        r"a: input of Add is not quantized \(got tensor x\)\. Only a part .*after tensor x",
    ),
    "computed weights": (
        lambda n, x: n.node("MatMul", [x, x], "m"),
        "m: MatMul: input .* is computed",
    ),
    "float result of two readers": (
        lambda n, x: n.node("Add", [n.node("Relu", [conv(n, x)], output="r"), "r"], "a"),
        r"a: input of Add is not quantized \(got tensor r\)\. Only a part .*after tensor r,",
    ),
    "float result that is an output": (
        lambda n, x: n.output("c", [1, 4, 7, 6]) or conv(n, x, output="c"),
        r"result of Conv .*\(got tensor c, an output of the network\)\. Only a part .*tensor c,",
    ),
    "per-channel activations": (
        lambda n, x: n.dq(n.q(x, [0.1] * 4, [0] * 4), [0.1] * 4, [0] * 4),
        "activations need one scale",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_node(case: str, tmp_path: Path) -> None:
    build, message = REFUSED[case]
    with pytest.raises(NpusimError, match=message):
        npusim.load(built(build, SHAPE, SHAPE).save(tmp_path))


def test_sequences_are_refused_in_a_sentence(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 9]), 0.02, 3)
    w = net.dq(net.const(random_codes((4, 4, 3))), 0.01, 0)
    net.q(net.node("Conv", [x, w], "conv"), 0.1, 0, output="y")
    net.output("y", [1, 4, 7], "int8")
    with pytest.raises(NpusimError, match="conv: Conv: only two-dimensional images"):
        npusim.load(net.save(tmp_path))


def test_a_float_network_is_refused_with_advice(tmp_path: Path) -> None:
    net = Net()
    net.input("x", [1, 4, 9, 8])
    net.node("Conv", ["x", net.const(np.ones((4, 4, 3, 3), np.float32))], "conv", output="y")
    net.output("y", [1, 4, 7, 6])
    with pytest.raises(NpusimError, match=r"conv: Conv is a float operator.*quantize_static"):
        npusim.load(net.save(tmp_path))
