"""The batch is opened where images do not mix, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Net, random_codes, random_inputs, run_npusim

import npusim
from npusim.ir import Graph


def loaded(net: Net, folder: Path) -> Graph:
    return npusim.load(net.save(folder))


def moved(
    folder: Path, op: str, constant: object, shape: list[int], result: list[int], **attrs: object
) -> Graph:
    """x -> Q -> DQ -> op -> DQ (the output)."""
    net = Net()
    x = net.qdq(net.input("x", shape), 0.02, 3)
    extra = [] if constant is None else [net.const(np.asarray(constant))]
    net.node(op, [x, *extra], output="y", **attrs)
    net.output("y", result)
    return loaded(net, folder)


@pytest.mark.parametrize(
    ("op", "constant", "result", "attrs"),
    [
        ("Reshape", [1, -1], [1, 24], {}),
        ("Reshape", [-1, 24], [1, 24], {}),
        ("Reshape", [1, 4, 6], [1, 4, 6], {}),
        ("Unsqueeze", [0], [1, 1, 2, 3, 4], {}),
        ("Flatten", None, [1, 24], {"axis": 1}),
        ("Transpose", None, [1, 3, 4, 2], {"perm": [0, 2, 3, 1]}),
    ],
)
def test_opened(
    op: str, constant: object, result: list[int], attrs: dict[str, object], tmp_path: Path
) -> None:
    graph = moved(tmp_path, op, constant, [1, 2, 3, 4], result, **attrs)
    assert graph.inputs[0].type.shape == (None, 2, 3, 4)
    assert graph.outputs[0].type.shape == (None, *result[1:])
    feeds = random_inputs(graph, batch=3)
    together = run_npusim(graph, feeds)["y"]
    for i in range(3):
        alone = run_npusim(graph, {"x": feeds["x"][i : i + 1]})["y"]
        assert np.array_equal(together[i : i + 1], alone)


@pytest.mark.parametrize(
    ("op", "constant", "result", "attrs"),
    [
        ("Reshape", [2, 12], [2, 12], {}),
        ("Reshape", [24], [24], {}),
        ("Flatten", None, [2, 12], {"axis": 2}),
        ("Transpose", None, [2, 1, 3, 4], {"perm": [1, 0, 2, 3]}),
        ("Squeeze", [0], [2, 3, 4], {}),
        ("Pad", [1, 0, 0, 0, 0, 0, 0, 0], [2, 2, 3, 4], {}),
    ],
)
def test_left_fixed(
    op: str, constant: object, result: list[int], attrs: dict[str, object], tmp_path: Path
) -> None:
    graph = moved(tmp_path, op, constant, [1, 2, 3, 4], result, **attrs)
    assert graph.inputs[0].type.shape == (1, 2, 3, 4)
    assert graph.outputs[0].type.shape == tuple(result)


def test_larger_fixed_batches_stay(tmp_path: Path) -> None:
    graph = moved(tmp_path, "Reshape", [8, 6], [8, 2, 3], [8, 6])
    assert graph.outputs[0].type.shape == (8, 6)


def test_a_batch_left_open_is_open(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", ["batch", 3, 4, 4]), 0.02, 3)
    shape = net.node("Shape", [x])
    first = net.node("Slice", [shape, net.const(np.asarray([0])), net.const(np.asarray([1]))])
    wanted = net.node("Concat", [first, net.const(np.asarray([-1]))], axis=0)
    net.node("Reshape", [x, wanted], output="y")
    net.output("y", ["batch", 48])
    graph = loaded(net, tmp_path)
    assert graph.outputs[0].type.shape == (None, 48)
    assert run_npusim(graph, random_inputs(graph, batch=5))["y"].shape == (5, 48)


def test_a_constant_with_a_batch_of_its_own_keeps_the_graph_fixed(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 3]), 0.02, 3)
    k = net.dq(net.const(random_codes((4, 3))), 0.01, 0)
    net.q(net.node("Add", [x, k]), 0.03, 0, output="y")
    net.output("y", [4, 3], "int8")
    assert loaded(net, tmp_path).inputs[0].type.shape == (1, 3)


def test_batches_that_do_not_align_keep_the_graph_fixed(tmp_path: Path) -> None:
    net = Net()
    a = net.qdq(net.input("a", [1, 4]), 0.02, 3)
    b = net.qdq(net.input("b", [1, 1, 4]), 0.02, 3)
    net.q(net.node("Add", [a, b]), 0.03, 0, output="y")
    net.output("y", [1, 1, 4], "int8")
    assert loaded(net, tmp_path).inputs[0].type.shape == (1, 4)
