"""npusim.counters: the same counts from both engines, any threads and any split of the batch."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from random_units import random_case

import npusim
import npusim.counters
from npusim.counters import LayerCounts, Statistics, stream_steps
from npusim.errors import BadQuantization, UnsupportedOp
from npusim.ir import Graph, Node, QParams, TensorType, Value
from npusim.numerics.neural_art_epilogue import GlobalAverage
from npusim.ops.conv import ConvAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs
from npusim.saturation import saturation_counts

VARIANTS = ("neural-art/atonn-1.1.1", "neural-art/atonn-1.1.3")
MORE_BIAS = 2**30


def network(depthwise: bool = False, scale: float = 0.05) -> Graph:
    """A 7x7 convolution in pieces and passes, whose sums saturate, and a mean over the map."""
    channels = 16
    shape = (channels, 1 if depthwise else channels, 7, 7)
    w = np.random.default_rng(1).integers(-127, 128, shape).astype(np.int8)
    values = [
        Value("x", TensorType("int8", (None, channels, 8, 9)), QParams.make(0.02, 4)),
        Value("w", TensorType("int8", w.shape), QParams.make(0.01, 0)),
        Value("b", TensorType("int32", (channels,)), QParams.make(0.02 * 0.01, 0)),
        Value("m", TensorType("int8", (None, channels, 2, 3)), QParams.make(scale, -3)),
        Value("y", TensorType("int8", (None, channels)), QParams.make(scale / 2, 9)),
    ]
    by_name = {v.name: v for v in values}
    group = channels if depthwise else 1
    return Graph(
        name="net",
        inputs=(by_name["x"],),
        outputs=(by_name["y"],),
        nodes=(
            Node("conv", "conv", ("x", "w", "b"), ("m",), ConvAttrs(group=group)),
            Node("global_average_pool", "mean", ("m",), ("y",), GlobalAveragePoolAttrs(False)),
        ),
        values=by_name,
        initializers={"w": w, "b": np.zeros(channels, np.int32)},
    )


def images(count: int) -> Any:
    return np.random.default_rng(2).choice(np.int8([-128, 0, 127]), (count, 16, 8, 9))


def saturating(graph: Graph, profile: str, engine: str, ties: str = "half_away") -> Any:
    """A program with a smaller shift than the rule's."""
    lowering: Any = npusim.compile(graph, profile, "numpy").lowering
    conv, mean = lowering["conv"], lowering["mean"]
    small = {
        "conv": conv.changed(shift=max(0, conv.shift - 4), ties=ties),
        "mean": mean.changed(shift=mean.shift - 1),
    }
    return npusim.compile(graph, profile, engine, small)


def counted(program: Any, x: Any, **options: Any) -> Any:
    statistics = Statistics()
    program.run({"x": x}, statistics=statistics, **options)
    return statistics.layers


@pytest.mark.parametrize("profile", VARIANTS)
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("ties", ["half_away", "half_even"])
def test_engines_threads_and_splits_count_the_same(
    profile: str, depthwise: bool, ties: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = network(depthwise), images(7)
    slow = saturating(graph, profile, "numpy", ties)
    fast = saturating(graph, profile, "fast", ties)
    wanted = counted(slow, x)
    assert list(wanted) == ["conv", "mean"]
    assert wanted["conv"].saturated > 0
    assert wanted["mean"].saturated > 0
    assert counted(fast, x) == wanted
    assert counted(fast, x, threads=3) == wanted
    for program in (slow, fast):
        monkeypatch.setattr(program, "_parts", lambda *_: [slice(0, 2), slice(2, 3), slice(3, 7)])
        assert counted(program, x) == wanted
        assert counted(program, x, threads=2) == wanted


def test_they_are_the_counts_of_the_slow_counter() -> None:
    program, x = saturating(network(), VARIANTS[0], "fast"), images(5)
    slow, layer = saturation_counts(program, {"x": x})["conv"], counted(program, x)["conv"]
    assert layer.outputs == slow.total
    assert (layer.low, layer.high, layer.saturated) == (slow.low, slow.high, slow.saturated)


def test_streams_of_an_output() -> None:
    lowering: Any = npusim.compile(network(), VARIANTS[0], "numpy").lowering
    conv = lowering["conv"]
    assert (conv.rows, conv.columns) == ((3, 3, 1), (6, 1))
    passes = sum(passes for _, _, passes in conv.channels)
    assert passes > 6
    assert stream_steps(conv) == passes + 5 + 1
    assert isinstance(lowering["mean"], GlobalAverage)
    assert stream_steps(lowering["mean"]) == 1
    one: Any = npusim.compile(network(), VARIANTS[1], "numpy").lowering
    assert stream_steps(one["conv"]) == passes + 5


def test_a_constant_counts_once_a_channel_whatever_the_images() -> None:
    for engine in ("fast", "numpy"):
        program = npusim.compile(network(scale=1e-4), VARIANTS[0], engine)
        bias = np.zeros(16, np.int32)
        bias[[1, 5]] = MORE_BIAS
        grown = program.weights.replaced({"b": bias})
        for count in (1, 4):
            assert counted(program, images(count), weights=grown)["conv"].constants == 2
        assert counted(program, images(2))["conv"].constants == 0


def test_other_profiles_have_no_streams() -> None:
    layers = counted(npusim.compile(network(scale=1e-3), "onnxruntime"), images(3))
    assert layers["conv"].streams == layers["conv"].saturated == 0
    assert layers["conv"].outputs == 3 * 16 * 6
    assert layers["conv"].low + layers["conv"].high > 100


@pytest.mark.parametrize("kind", ["QLinearConv", "QLinearGlobalAveragePool", "QLinearAveragePool"])
def test_random_units_count_the_same(kind: str) -> None:
    compared = 0
    for seed in range(8):
        case = random_case(kind, seed)
        found = []
        try:
            for engine in ("numpy", "fast"):
                program = npusim.compile(case.graph, VARIANTS[0], engine)
                statistics = Statistics()
                program.run(case.feeds, statistics=statistics)
                found.append(statistics.to_json())
        except (BadQuantization, UnsupportedOp):
            continue
        assert found[0] == found[1]
        compared += 1
    assert compared > 2


def test_sums_and_shares() -> None:
    a, b = LayerCounts(10, 1, 2, 40, 4, 3), LayerCounts(6, 0, 2, 24, 4, 1)
    assert a + b == LayerCounts(16, 1, 4, 64, 8, 3)
    shares = (a + b).to_json()
    assert (shares["low_share"], shares["high_share"]) == (1 / 16, 4 / 16)
    assert shares["saturated_share"] == 8 / 64
    assert LayerCounts(0, 0, 0, 0, 0, 0).to_json()["saturated_share"] == 0


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(npusim.counters).failed == 0
