"""Under which session options onnxruntime computes the integers of the profile ``onnxruntime``.

The table of docs/numerics.md ("Compare with your onnxruntime"). What a session does without these
options depends on the processor, so that nothing is asserted of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net

import npusim
from npusim.ir import Array

OUT, IN = 8, 32
PRECISION, INT8 = "session.x64quantprecision", "session.qdqisint8allowed"


def weights(dtype: str, per_channel: bool) -> tuple[Array, Array, Array]:
    """(codes [O, I, 3, 3] over the whole range, scales, zero points)."""
    point = 128 if dtype == "uint8" else 0
    codes = np.random.default_rng(0).integers(-127, 128, (OUT, IN, 3, 3)) + point
    scales = np.float32(0.003) * np.linspace(1, 2, OUT if per_channel else 1, dtype=np.float32)
    shape = (OUT,) if per_channel else ()
    return codes.astype(dtype), scales.reshape(shape), np.full(shape, point)


def network(folder: Path, form: str, x: str, w: str, per_channel: bool) -> Path:
    """Float input, one convolution in either form, float output."""
    net = Net()
    point = 128 if x == "uint8" else 0
    codes, scales, points = weights(w, per_channel)
    source = net.input("x", [1, IN, 8, 8])
    kernel = net.const(codes, "w")
    if form == "QDQ":
        real = [net.qdq(source, 0.02, point, x), net.dq(kernel, scales, points, w, axis=0)]
        y = net.q(net.node("Conv", real), 0.2, point, x)
    else:
        parts = (0.02, point, x), (scales, points, w), (0.2, point, x)
        first, second, third = (
            [net.const(np.asarray(s, np.float32)), net.const(np.asarray(z, t))] for s, z, t in parts
        )
        quantized = net.q(source, 0.02, point, x)
        y = net.node("QLinearConv", [quantized, *first, kernel, *second, *third])
    net.dq(y, 0.2, point, x, output="y")
    net.output("y", [1, OUT, 6, 6])
    return net.save(folder)


def differing(path: Path, *entries: str) -> int:
    """Values of the output that are not npusim's, with full optimization and these options."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 1
    for entry in entries:
        options.add_session_config_entry(entry, "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(1).normal(0, 1.2, (30, IN, 8, 8)).astype(np.float32)
    ours = npusim.compile(npusim.load(path), "onnxruntime", "numpy").run({"x": images})["y"]
    theirs = np.concatenate([session.run(None, {"x": images[i : i + 1]})[0] for i in range(30)])
    return int(np.count_nonzero(ours != theirs))


@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize(
    ("form", "x", "w", "entries"),
    [
        ("QOperator", "uint8", "int8", [PRECISION]),
        ("QOperator", "uint8", "uint8", []),
        ("QOperator", "uint8", "uint8", [PRECISION]),
        ("QOperator", "int8", "int8", []),
        ("QDQ", "uint8", "int8", [PRECISION]),
        ("QDQ", "uint8", "uint8", [PRECISION]),
        ("QDQ", "int8", "int8", [PRECISION]),
        ("QDQ", "int8", "int8", [INT8]),
    ],
)
def test_the_options_of_the_table_give_the_integers_of_the_profile(
    tmp_path: Path, form: str, x: str, w: str, entries: list[str], per_channel: bool
) -> None:
    path = network(tmp_path, form, x, w, per_channel)
    assert differing(path, *entries) == 0


@pytest.mark.parametrize("both", [True, False])
def test_int8_weights_that_stay_int8_take_no_precision_option(tmp_path: Path, both: bool) -> None:
    """The option turns the weights into uint8, for which there is no kernel beside int8.

    Where a processor does not saturate, onnxruntime does not look at it.
    """
    if not differing(network(tmp_path, "QOperator", "uint8", "int8", False)):
        pytest.skip("this processor adds uint8 x int8 exactly")
    path = network(tmp_path, "QDQ" if both else "QOperator", "int8", "int8", False)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        differing(path, *((PRECISION, INT8) if both else (PRECISION,)))
