"""Counting what saturates silently on the neural-art NPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import npusim
from npusim.ir import Graph, Node, QParams, TensorType, Value
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.reshape import ReshapeAttrs
from npusim.saturation import saturation_counts


def network(depth: int = 32) -> Graph:
    """A 3x3 convolution and a Gemm, with weights that cancel out in the sum."""
    w = np.full((1, depth, 3, 3), 127, np.int8)
    w[:, depth // 2 :] = -127
    bias = QParams.make(0.02 * 0.01, 0)
    values = [
        Value("x", TensorType("int8", (None, depth, 3, 3)), QParams.make(0.02, 0)),
        Value("w", TensorType("int8", w.shape), QParams.make(0.01, 0)),
        Value("b", TensorType("int32", (1,)), bias),
        Value("m[0]", TensorType("int8", (None, 1, 1, 1)), QParams.make(0.05, 0)),
        Value("r", TensorType("int8", (None, 1)), QParams.make(0.05, 0)),
        Value("v", TensorType("int8", (1, 1)), QParams.make(0.01, 0)),
        Value("y", TensorType("int8", (None, 1)), QParams.make(0.05, 0)),
    ]
    by_name = {v.name: v for v in values}
    return Graph(
        name="net",
        inputs=(by_name["x"],),
        outputs=(by_name["y"],),
        nodes=(
            Node("conv", "conv", ("x", "w", "b"), ("m[0]",), ConvAttrs()),
            Node("reshape", "reshape", ("m[0]",), ("r",), ReshapeAttrs((None, 1))),
            Node("gemm", "gemm", ("r", "v"), ("y",), GemmAttrs()),
        ),
        values=by_name,
        initializers={
            "w": w,
            "b": np.zeros(1, np.int32),
            "v": np.full((1, 1), 64, np.int8),
        },
    )


def counts(x: Any, **options: Any) -> Any:
    program = npusim.compile(network(), "neural-art", engine="numpy", **options)
    return saturation_counts(program, {"x": x})


def test_quiet_layers_count_nothing() -> None:
    found = counts(np.ones((2, 32, 3, 3), np.int8))
    assert set(found) == {"conv", "gemm"}
    assert found["conv"]._asdict() == {
        "saturated": 0,
        "constants": 0,
        "wide": 0,
        "low": 0,
        "high": 0,
        "total": 2,
    }


def test_streams_and_rails() -> None:
    x = np.zeros((3, 32, 3, 3), np.int8)
    x[0, :16], x[0, 16:] = 127, -128
    x[1, :16], x[1, 16:] = -128, 127
    found = counts(x)
    # 4 passes of 8 channels: three leave int16 in images 0 and 1, and so does the step after them.
    assert found["conv"].saturated > 2
    assert (found["conv"].low, found["conv"].high, found["conv"].total) == (1, 1, 3)
    assert (found["gemm"].saturated, found["gemm"].low, found["gemm"].high) == (0, 0, 0)


def test_sums_between_units_are_counted_beyond_24_bits() -> None:
    """After 1, 2, 3 of 4 units: 4.7, 9.4 and 14.0 million, in images of either sign."""
    graph = network(depth=128)
    program = npusim.compile(graph, "neural-art", engine="numpy")
    layer: Any = program.lowering["conv"]
    store = program.weights.replaced({"w": np.full((1, 128 * 9), -128, np.int8)})
    x = np.full((2, 128, 3, 3), 127, np.int8)
    x[1] = -128
    for channels, wide in (((32, 4, 1), 4), ((32, 2, 2), 0), ((64, 2, 1), 2), ((128, 1, 1), 0)):
        lowering = {"conv": layer.changed(channels=(channels,))}
        again = npusim.compile(graph, "neural-art", engine="numpy", lowering=lowering)
        assert saturation_counts(again, {"x": x}, store)["conv"].wide == wide


def test_layers_of_other_profiles_are_left_out() -> None:
    program = npusim.compile(network(), "onnxruntime", engine="numpy")
    assert saturation_counts(program, {"x": np.zeros((1, 32, 3, 3), np.int8)}) == {}


def test_other_weights_are_counted() -> None:
    program = npusim.compile(network(), "neural-art", engine="numpy")
    x = np.full((1, 32, 3, 3), 100, np.int8)
    assert saturation_counts(program, {"x": x})["conv"].high == 0
    grown = program.weights.replaced({"w": np.full((1, 288), 127, np.int8)})
    assert saturation_counts(program, {"x": x}, grown)["conv"].high == 1
