"""What onnxruntime's quantizer writes is read, and computes what onnxruntime computes from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, assert_same_function

import npusim
from npusim.ir import Array


def float_net(folder: Path) -> Path:
    """A small residual network in float."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Array:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    net = Net(opset=17)
    x = net.input("x", [1, 3, 12, 12])
    y = net.node("Conv", [x, net.const(weights(8, 3, 3, 3)), net.const(weights(8))], pads=[1] * 4)
    y = net.node("Relu", [y])
    z = net.node("Conv", [y, net.const(weights(8, 1, 3, 3))], pads=[1] * 4, group=8)
    y = net.node("Relu", [net.node("Add", [y, z])])
    y = net.node("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = net.node("Clip", [y, net.const(np.float32(0)), net.const(np.float32(6))])
    y = net.node("Flatten", [net.node("GlobalAveragePool", [y])])
    y = net.node("Gemm", [y, net.const(weights(5, 8)), net.const(weights(5))], transB=1)
    net.node("Softmax", [y], output="y")
    net.output("y", [1, 5])
    for i, node in enumerate(net.nodes):
        node.name = f"{node.op_type}_{i}"
    return net.save(folder, "float.onnx")


def quantized_net(folder: Path, form: str, per_channel: bool, activations: str) -> Path:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.batches = iter([rng.normal(size=(1, 3, 12, 12)).astype(np.float32)] * 2)

        def get_next(self) -> dict[str, Array] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"x": batch}

    path = folder / "quantized.onnx"
    quantize_static(
        float_net(folder),
        path,
        Reader(),
        quant_format=QuantFormat[form],
        per_channel=per_channel,
        reduce_range=True,  # onnxruntime's own kernels saturate otherwise on some processors
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
    )
    return path


@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_read_and_equal(form: str, per_channel: bool, activations: str, tmp_path: Path) -> None:
    path = quantized_net(tmp_path, form, per_channel, activations)
    graph = assert_same_function(path, step=0.02, share=0.6)
    ops = [n.op for n in graph.nodes]
    assert ops.count("conv") == 2
    assert ops.count("gemm") == 1
    assert "softmax" in ops
    assert graph.inputs[0].type.lifted
    assert {graph.value(n.outputs[0]).type.dtype for n in graph.nodes} == {
        "float32",
        "int8" if activations == "QInt8" else "uint8",
    }


def test_the_float_network_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(npusim.errors.ModelError, match="this network is not quantized"):
        npusim.load(float_net(tmp_path))
