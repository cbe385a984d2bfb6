"""BatchNormalization folded into quantized weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, assert_same_function, random_codes

import npusim
from npusim.errors import NpusimError

CHANNELS = 5
SCALES = np.asarray([0.01, 0.02, 0.005, 0.03, 0.013], np.float32)


def norm(net: Net, x: str, gamma: np.ndarray, variance: float = 2.0) -> str:
    rng = np.random.default_rng(1)
    tensors = [gamma, rng.normal(size=CHANNELS), rng.normal(size=CHANNELS) * 0.1]
    names = [net.const(t.astype(np.float32)) for t in tensors]
    names.append(net.const(np.full(CHANNELS, variance, np.float32)))
    return net.node("BatchNormalization", [x, *names], "bn", epsilon=1e-3)


def net_of(form: str, gamma: np.ndarray, codes: np.ndarray | None = None) -> Net:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 7, 7]), 0.02, 3)
    codes = random_codes((CHANNELS, 4, 3, 3)) if codes is None else codes
    codes[:, 0, 0, 0] = 127
    if form == "float":
        w = net.const(codes.astype(np.float32) * SCALES.reshape(-1, 1, 1, 1), "w")
    else:
        w = net.dq(net.const(codes, "w"), SCALES, np.zeros(CHANNELS), axis=0)
    inputs = [x, w]
    if form == "bias":
        inputs.append(net.const(np.linspace(-1, 1, CHANNELS, dtype=np.float32), "b"))
    net.q(norm(net, net.node("Conv", inputs, "conv"), gamma), 0.11, -5, output="y")
    net.output("y", [1, CHANNELS, 5, 5], "int8")
    return net


@pytest.mark.parametrize("form", ["codes", "float", "bias"])
@pytest.mark.parametrize("sign", [1, -1])
def test_folded(form: str, sign: int, tmp_path: Path) -> None:
    gamma = np.asarray([1.0, 0.5, 2.0, 0.0, 1.5]) * np.asarray([1, sign, 1, 1, sign])
    graph = assert_same_function(net_of(form, gamma).save(tmp_path))
    assert [n.op for n in graph.nodes] == ["quantize", "conv"]
    assert graph.nodes[1].name == "conv"
    assert "bn" in graph.nodes[1].origin
    assert len(graph.nodes[1].inputs) == 3


def test_a_code_without_a_negative_is_refused(tmp_path: Path) -> None:
    codes = random_codes((CHANNELS, 4, 3, 3))
    codes[1, 1, 1, 1] = -128
    path = net_of("codes", np.asarray([1.0, -0.5, 1, 1, 1]), codes).save(tmp_path)
    with pytest.raises(NpusimError, match="w: a BatchNormalization factor is negative"):
        npusim.load(path)


def test_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NpusimError, match="bn: BatchNormalization is not finite"):
        npusim.load(net_of("codes", np.full(CHANNELS, np.nan)).save(tmp_path))


def test_alone_it_is_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, CHANNELS, 7, 7]), 0.02, 3)
    net.q(norm(net, x, np.ones(CHANNELS)), 0.11, -5, output="y")
    net.output("y", [1, CHANNELS, 7, 7], "int8")
    with pytest.raises(NpusimError, match="bn: BatchNormalization stands behind no quantized"):
        npusim.load(net.save(tmp_path))
