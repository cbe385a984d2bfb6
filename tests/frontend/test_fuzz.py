"""Damaged files: only an NpusimError may escape, whatever byte is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, random_codes

from npusim.errors import NpusimError
from npusim.frontend.load import finished
from npusim.frontend.onnx import read


def seeds() -> list[bytes]:
    """A QDQ and a QOperator network, small so that most bytes matter."""
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 5, 5]), 0.02, 3)
    w = net.dq(net.const(random_codes((3, 2, 3, 3)), "w"), 0.01, 0)
    y = net.qdq(net.node("Relu", [net.node("Conv", [x, w], "conv", pads=[1] * 4)]), 0.1, 0)
    y = net.qdq(net.node("MaxPool", [y], kernel_shape=[2, 2], ceil_mode=1), 0.1, 0)
    y = net.node("Reshape", [y, net.const(np.asarray([1, -1]))])
    net.node("Softmax", [y], output="y")
    net.output("y", [1, 48])
    other = Net(contrib=True)
    scales = [other.const(np.float32(0.1)), other.const(np.int8(3))]
    a = other.node("QLinearAdd", ["x", *scales, "x", *scales, *scales], domain="com.microsoft")
    other.input("x", [1, 4, 4], "int8")
    other.node("Flatten", [a], output="y")
    other.output("y", [1, 16], "int8")
    return [n.model().SerializeToString() for n in (net, other)]


SEEDS = seeds()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut short, or a few bytes changed, or a piece taken out or doubled."""
    kind = rng.integers(4)
    if kind == 0:
        return data[: rng.integers(len(data))]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(rng.integers(1, 5)):
            changed[rng.integers(len(data))] = rng.integers(256)
        return bytes(changed)
    start = int(rng.integers(len(data)))
    end = start + int(rng.integers(1, 40))
    return data[:start] + data[end:] if kind == 2 else data[:end] + data[start:]


def survive(count: int, folder: Path, seed: int) -> tuple[int, int]:
    rng = np.random.default_rng(seed)
    path = folder / "net.onnx"
    loaded = refused = 0
    for i in range(count):
        path.write_bytes(damaged(SEEDS[i % len(SEEDS)], rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                finished(read(path))
            loaded += 1
        except NpusimError:
            refused += 1
    return loaded, refused


def test_damaged_files(tmp_path: Path) -> None:
    _, refused = survive(150, tmp_path, seed=1)
    assert refused > 30


@pytest.mark.long
def test_many_damaged_files(tmp_path: Path) -> None:
    loaded, refused = survive(2000, tmp_path, seed=2)
    assert refused > 400
    assert loaded > 20
