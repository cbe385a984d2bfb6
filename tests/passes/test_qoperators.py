"""Networks of QOperator nodes become the same operators as QDQ networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, assert_same_function, random_codes

import npusim
from npusim.errors import NpusimError

SHAPE = [1, 4, 6, 5]
Build = Callable[[Net, str], str]


def qparams(net: Net, scale: object, point: object, dtype: str = "int8") -> list[str]:
    return [
        net.const(np.asarray(scale, np.float32)),
        net.const(np.asarray(point).astype(dtype)),
    ]


def contrib(net: Net, op: str, inputs: list[str], **attrs: object) -> str:
    return net.node(op, inputs, op.lower(), domain="com.microsoft", **attrs)


def qlinear_conv(net: Net, x: str, bias: bool = True) -> str:
    scales = np.asarray([0.01, 0.02, 0.03], np.float32)
    w = net.const(random_codes((3, 4, 3, 3)), "w")
    inputs = [
        x,
        *qparams(net, 0.02, 3),
        w,
        *qparams(net, scales, [0, 0, 0]),
        *qparams(net, 0.1, -5),
    ]
    if bias:
        inputs.append(net.const(np.asarray([100, -2000, 5], np.int32), "b"))
    return net.node("QLinearConv", inputs, "qconv", pads=[1, 1, 1, 1])


def qlinear_matmul(net: Net, x: str) -> str:
    flat = net.node("Flatten", [x])
    w = net.const(random_codes((120, 7)), "w")
    return net.node(
        "QLinearMatMul",
        [flat, *qparams(net, 0.02, 3), w, *qparams(net, 0.01, 0), *qparams(net, 0.3, -5)],
    )


def qgemm(net: Net, x: str) -> str:
    flat = net.node("Flatten", [x])
    w = net.const(random_codes((7, 120)), "w")
    b = net.const(random_codes((7,)).astype(np.int32) * 50, "b")
    scales = np.linspace(0.01, 0.02, 7)
    return contrib(
        net,
        "QGemm",
        [
            flat,
            *qparams(net, 0.02, 3),
            w,
            *qparams(net, scales, [0] * 7),
            b,
            *qparams(net, 0.3, -5),
        ],
        transB=1,
    )


def binary(op: str) -> Build:
    def build(net: Net, x: str) -> str:
        other = net.const(random_codes((4, 1, 1)), "k")
        return contrib(
            net,
            op,
            [x, *qparams(net, 0.02, 3), other, *qparams(net, 0.01, -1), *qparams(net, 0.03, -5)],
        )

    return build


def pooled(op: str, **attrs: object) -> Build:
    def build(net: Net, x: str) -> str:
        inputs = [x, *qparams(net, 0.02, 3), *qparams(net, 0.013, -5)]
        return contrib(net, op, inputs, channels_last=0, **attrs)

    return build


def concat(net: Net, x: str) -> str:
    other = net.const(random_codes((1, 2, 6, 5)), "k")
    return contrib(
        net,
        "QLinearConcat",
        [*qparams(net, 0.03, -5), x, *qparams(net, 0.02, 3), other, *qparams(net, 0.01, -1)],
        axis=1,
    )


CASES: dict[str, tuple[Build, list[int], str]] = {
    "conv": (qlinear_conv, [1, 3, 6, 5], "conv"),
    "conv without bias": (lambda n, x: qlinear_conv(n, x, bias=False), [1, 3, 6, 5], "conv"),
    "matmul": (qlinear_matmul, [1, 7], "gemm"),
    "gemm": (qgemm, [1, 7], "gemm"),
    "add": (binary("QLinearAdd"), SHAPE, "add"),
    "mul": (binary("QLinearMul"), SHAPE, "mul"),
    "average": (
        pooled("QLinearAveragePool", kernel_shape=[2, 3], strides=[2, 1]),
        [1, 4, 3, 3],
        "avgpool",
    ),
    "global average": (pooled("QLinearGlobalAveragePool"), [1, 4, 1, 1], "global_average_pool"),
}


def net_of(build: Build, result: list[int]) -> Net:
    net = Net(contrib=True)
    y = build(net, net.input("x", SHAPE, "int8"))
    net.node("Identity", [y], output="y")
    net.output("y", result, "int8")
    return net


@pytest.mark.parametrize("case", CASES)
def test_equal_to_onnxruntime_kernels(case: str, tmp_path: Path) -> None:
    build, result, op = CASES[case]
    graph = assert_same_function(net_of(build, result).save(tmp_path), share=0)
    assert graph.nodes[-1].op == op
    assert graph.outputs[0].type.shape == (None, *result[1:])


def test_weights_keep_their_names(tmp_path: Path) -> None:
    node = npusim.load(net_of(qlinear_conv, [1, 3, 6, 5]).save(tmp_path)).nodes[-1]
    assert (node.name, node.inputs) == ("qconv", ("x", "w", "b"))


def test_concat_stays_at_its_batch(tmp_path: Path) -> None:
    graph = npusim.load(net_of(concat, [1, 6, 6, 5]).save(tmp_path))
    assert [n.op for n in graph.nodes] == ["concat"]
    assert graph.outputs[0].type.shape == (1, 6, 6, 5)


def test_channels_last_is_refused(tmp_path: Path) -> None:
    def build(net: Net, x: str) -> str:
        inputs = [x, *qparams(net, 0.02, 3), *qparams(net, 0.013, -5)]
        return contrib(net, "QLinearAveragePool", inputs, channels_last=1, kernel_shape=[1, 1])

    with pytest.raises(
        NpusimError, match=r"qlinearaveragepool: .*QLinearAveragePool with channels_last"
    ):
        npusim.load(net_of(build, SHAPE).save(tmp_path))


def test_gemm_with_float_result_is_refused(tmp_path: Path) -> None:
    net = Net(contrib=True)
    w = net.const(random_codes((5, 3)))
    inputs = [net.input("x", [1, 5], "int8"), *qparams(net, 1, 0), w, *qparams(net, 1, 0)]
    net.node("QGemm", inputs, "g", domain="com.microsoft", output="y")
    net.output("y", [1, 3])
    with pytest.raises(NpusimError, match="g: QGemm with a float result"):
        npusim.load(net.save(tmp_path))


def test_quantize_of_the_contrib_domain(tmp_path: Path) -> None:
    net = Net(contrib=True)
    q = contrib(net, "QuantizeLinear", [net.input("x", SHAPE), *qparams(net, 0.02, 3)])
    x = contrib(net, "DequantizeLinear", [q, *qparams(net, 0.02, 3)])
    net.q(net.node("Relu", [x]), 0.03, -128, output="y")
    net.output("y", SHAPE, "int8")
    graph = assert_same_function(net.save(tmp_path))
    assert [n.op for n in graph.nodes] == ["quantize", "requantize"]
