"""Constant folding, int8 grids, bounds of activations, and the invariants of finished graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_nets import Net, random_codes

import npusim
from npusim.errors import NpusimError
from npusim.ir import QParams
from npusim.passes.activation import clamp_of, exact_clamp
from npusim.passes.grid import grid_of
from npusim.passes.qdq import dequantized, quantized
from npusim.passes.verify import Verify


@pytest.mark.parametrize("axis", [0, 1, None])
def test_grid_gives_back_what_a_quantizer_chose(axis: int | None) -> None:
    codes = random_codes((6, 40))
    codes[:, 0] = codes[0, :] = 127
    size = 1 if axis is None else codes.shape[axis]
    scale = np.random.default_rng(2).uniform(1e-4, 1, size).astype(np.float32)
    qparams = QParams.make(scale, 0, axis)
    found = grid_of(dequantized(codes, qparams), axis)
    assert found is not None
    assert np.array_equal(found[0], codes)
    assert found[1] == qparams


@pytest.mark.parametrize("largest", [1, 2, 50, 126, 128])
def test_grid_where_the_largest_code_is_not_127(largest: int) -> None:
    codes = np.arange(-largest, min(largest, 127) + 1).astype(np.int8)
    scale = np.float32(0.0371)
    found = grid_of(codes * scale, None)
    assert found is not None
    assert np.array_equal(dequantized(*found), codes * scale)
    assert largest == 1 or np.array_equal(found[0], codes)


def test_no_grid() -> None:
    rng = np.random.default_rng(0)
    assert grid_of(rng.normal(size=(3, 50)).astype(np.float32), 0) is None
    assert grid_of(rng.normal(size=(3, 400)).astype(np.float32), 0) is None


def test_zeros_have_a_grid() -> None:
    found = grid_of(np.zeros((2, 3), np.float32), 0)
    assert found is not None
    assert not found[0].any()
    assert found[1].scale == (1.0, 1.0)


@given(
    st.floats(-10, 10, width=32),
    st.floats(-10, 10, width=32),
    st.integers(-128, 127),
    st.floats(0.001953125, 0.25, width=32),
)
def test_clamping_codes_equals_clipping_numbers(a: float, b: float, point: int, s: float) -> None:
    """Q(clip(x)) == clip(Q(x)) for numbers on and between all codes."""
    qparams = QParams.make(s, point)
    limits = (min(a, b), max(a, b))
    numbers = np.linspace(-12, 12, 997, dtype=np.float32)
    clipped = quantized(np.clip(numbers, *np.float32(limits)), qparams, "int8")
    low, high = clamp_of((limits,), qparams, "int8")
    assert np.array_equal(clipped, np.clip(quantized(numbers, qparams, "int8"), low, high))


def test_exact_clamp() -> None:
    qparams = QParams.make(0.5, -10)
    assert exact_clamp((0.0, np.inf), qparams, "int8") == (-10, 127)
    assert exact_clamp((-1000.0, 3.0), qparams, "int8") == (-128, -4)
    assert exact_clamp((0.0, 3.2), qparams, "int8") is None


def shaped(net: Net, shape: str, result: list[int], folder: Path) -> npusim.ir.Graph:
    net.node("Reshape", [net.qdq(net.input("x", [1, 2, 6]), 0.1, 0), shape], output="y")
    net.output("y", result)
    return npusim.load(net.save(folder))


def test_shape_arithmetic(tmp_path: Path) -> None:
    net = Net()
    four = net.node("Constant", [], value_int=4)
    twelve = net.node("Mul", [four, net.const(np.int64(3))])
    sizes = [net.node("Unsqueeze", [s, net.const(np.asarray([0]))]) for s in (twelve,)]
    shape = net.node("Concat", [net.const(np.asarray([1])), *sizes], axis=0)
    assert shaped(net, shape, [1, 12], tmp_path).outputs[0].type.shape == (None, 12)


def test_huge_constants_are_refused(tmp_path: Path) -> None:
    net = Net()
    shape = net.node("ConstantOfShape", [net.const(np.asarray([10**6, 10**6]))], "huge")
    with pytest.raises(NpusimError, match="huge: constant result of ConstantOfShape is too large"):
        shaped(net, shape, [1, 12], tmp_path)


def test_constants_that_cannot_be_computed_are_refused(tmp_path: Path) -> None:
    net = Net()
    shape = net.node("Reshape", [net.const(np.asarray([1, 2, 6])), net.const(np.asarray([2]))], "r")
    with pytest.raises(NpusimError, match=r"r: constant Reshape cannot|refuses the model"):
        shaped(net, shape, [1, 12], tmp_path)


def finished(folder: Path) -> npusim.ir.Graph:
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 6, 5]), 0.02, 3)
    w = net.dq(net.const(random_codes((4, 4, 3, 3))), 0.01, 0)
    net.q(net.node("Conv", [x, w], "conv"), 0.1, 0, output="y")
    net.output("y", [1, 4, 4, 3], "int8")
    return npusim.load(net.save(folder))


def test_verify_accepts_finished_graphs_and_finds_broken_ones(tmp_path: Path) -> None:
    graph = finished(tmp_path)
    assert Verify()(graph) is graph
    first, conv = graph.nodes
    broken = {
        "input that nothing before computes": graph.with_(nodes=(conv, first)),
        "node names are not unique": graph.with_(nodes=(first, replace(conv, name=first.name))),
        "not an operator": graph.with_(nodes=(first, replace(conv, op="Conv"))),
        "clamp leaves the range": graph.with_(
            nodes=(first, replace(conv, attrs=replace(conv.attrs, clamp=(-200, 0))))
        ),
        "shape is not what": graph.with_(
            nodes=(first, replace(conv, attrs=replace(conv.attrs, pads=(1, 1, 1, 1))))
        ),
        "codes without a scale": graph.with_(
            values={**graph.values, "y": replace(graph.value("y"), qparams=None)}
        ),
        "output that nothing computes": graph.with_(nodes=(first,)),
    }
    for message, bad in broken.items():
        with pytest.raises(NpusimError, match=message):
            Verify()(bad)
