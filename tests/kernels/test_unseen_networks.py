"""neural-art on small networks unlike any measured one: only the general rules make their numbers.

Kernels up to 7x7, many channels, a max pool before the mean, any zero point, int8 and uint8. Both
engines must agree, uint8 must be int8 moved by 128, and every convolution must lie as close to the
real sum as its roundings allow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.counters import Statistics
from npusim.ir import Graph, Node, QParams, TensorType, Value
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.ops.add import AddAttrs
from npusim.ops.conv import ConvAttrs, accumulate
from npusim.ops.gemm import GemmAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs
from npusim.ops.pool_window import PoolAttrs

VARIANTS = ("neural-art/atonn-1.1.1", "neural-art/atonn-1.1.3")
CHANNELS = (1, 3, 16, 24, 40, 72)


@dataclass(frozen=True)
class Shape:
    """What a network is drawn from. points: zero points of its tensors, signed."""

    kernel: tuple[int, int]
    stride: int
    channels: tuple[int, int]
    size: tuple[int, int]
    points: tuple[int, ...]
    depthwise: bool
    seed: int


def shapes() -> st.SearchStrategy[Shape]:
    point = st.sampled_from([-128, 0, 127]) | st.integers(-128, 127)
    side = st.integers(7, 12)
    return st.builds(
        Shape,
        kernel=st.tuples(st.sampled_from([1, 3, 5, 7]), st.sampled_from([1, 3, 5, 7])),
        stride=st.sampled_from([1, 2]),
        channels=st.tuples(st.sampled_from(CHANNELS), st.sampled_from(CHANNELS)),
        size=st.tuples(side, side),
        points=st.tuples(*[point] * 6),
        depthwise=st.booleans(),
        seed=st.integers(0, 99),
    )


def network(s: Shape, dtype: str = "int8") -> Graph:
    """conv -> max pool -> 3x3 conv (dense or depthwise) -> add its input -> mean -> Gemm."""
    rng = np.random.default_rng(s.seed)
    (kh, kw), (inputs, wide), (height, width) = s.kernel, s.channels, s.size
    rows, cols = (-(-d // s.stride) for d in (height, width))
    pooled = (-(-rows // 2), -(-cols // 2))
    move = 128 if dtype == "uint8" else 0
    codes = {
        "w": rng.integers(-128, 128, (wide, inputs, kh, kw)),
        "v": rng.integers(-128, 128, (wide, 1 if s.depthwise else wide, 3, 3)),
        "u": rng.integers(-128, 128, (6, wide)),
    }
    first = 0.02 * 74 * 74 * 0.01 * (inputs * kh * kw) ** 0.5 / 30
    second = first * 74 * 74 * 0.01 * (codes["v"][0].size) ** 0.5 / 30
    last = second * 20 * 74 * 0.01 * wide**0.5 / 30
    scales = (0.02, first, second, second, second, last)
    dims: tuple[tuple[int | None, ...], ...] = (
        (None, inputs, height, width), (None, wide, rows, cols), (None, wide, *pooled),
        (None, wide, *pooled), (None, wide), (None, 6),
    )  # fmt: skip
    values = {
        name: Value(name, TensorType(dtype, shape), QParams.make(scale, point + move))
        for name, shape, scale, point in zip("xabcmy", dims, scales, s.points, strict=True)
    }
    values["p"] = replace(values["a"], name="p", type=TensorType(dtype, (None, wide, *pooled)))
    for name, array in codes.items():
        channel = np.linspace(0.007, 0.01, len(array)) if name != "u" else [0.01]
        kind = TensorType("int8", array.shape)
        values[name] = Value(name, kind, QParams.make(channel, 0, 0))
    bias = QParams.make(np.float32(0.02) * values["w"].qparams.scales(), 0, 0)  # type: ignore[union-attr]
    values["i"] = Value("i", TensorType("int32", (wide,)), bias)
    clamp = (move - 128, move + 127)
    pads = (kh // 2, kw // 2, kh // 2, kw // 2)
    odd = (0, 0, rows % 2, cols % 2)
    nodes = (
        Node("conv", "first", ("x", "w", "i"), ("a",),
             ConvAttrs((s.stride, s.stride), pads, clamp=clamp)),
        Node("maxpool", "pool", ("a",), ("p",), PoolAttrs((2, 2), (2, 2), odd, clamp=clamp)),
        Node("conv", "second", ("p", "v"), ("b",),
             ConvAttrs(pads=(1, 1, 1, 1), group=wide if s.depthwise else 1, clamp=clamp)),
        Node("add", "join", ("p", "b"), ("c",), AddAttrs(clamp)),
        Node("global_average_pool", "mean", ("c",), ("m",), GlobalAveragePoolAttrs(False, clamp)),
        Node("gemm", "last", ("m", "u"), ("y",), GemmAttrs(clamp=clamp)),
    )  # fmt: skip
    constants = {name: array.astype(np.int8) for name, array in codes.items()}
    constants["i"] = rng.integers(-9000, 9000, wide).astype(np.int32)
    return Graph("net", (values["x"],), (values["y"],), nodes, values, constants)


def images(s: Shape, dtype: str = "int8") -> Any:
    rng = np.random.default_rng(s.seed + 1)
    codes = rng.integers(-128, 128, (3, s.channels[0], *s.size))
    return (codes + (128 if dtype == "uint8" else 0)).astype(dtype)


def computed(s: Shape, profile: str, engine: str, dtype: str = "int8") -> Any:
    program = npusim.compile(network(s, dtype), profile, engine)
    statistics = Statistics()
    values = program.run({"x": images(s, dtype)}, taps=["*"], statistics=statistics)
    return program, values, statistics.layers


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(s=shapes())
def test_engines_and_dtypes_agree(variant: str, s: Shape) -> None:
    _, wanted, counts = computed(s, variant, "numpy")
    _, fast, fast_counts = computed(s, variant, "fast")
    _, moved, moved_counts = computed(s, variant, "fast", "uint8")
    assert counts == fast_counts == moved_counts
    for name, array in wanted.items():
        np.testing.assert_array_equal(fast[name], array)
        np.testing.assert_array_equal(moved[name].astype(int) - 128, array)


@settings(max_examples=12, deadline=None)
@given(s=shapes())
def test_convolutions_are_as_close_as_their_roundings_allow(s: Shape) -> None:
    program, values, counts = computed(s, VARIANTS[0], "fast")
    for name in ("first", "second"):
        if counts[name].saturated:
            continue
        site, lowered = program.graph.site(name), program.lowering[name]
        assert isinstance(lowered, Convolution)
        (sx, zx), (sy, zy) = site.qparams(0).scalar(), site.output_qparams.scalar()
        x = values[site.node.inputs[0]].astype(np.int64) - zx
        w = program.graph.initializers[site.node.inputs[1]].astype(np.int64)
        channel = (site.qparams(1).scales().astype(float) * float(sx)).reshape(1, -1, 1, 1)
        bias = program.graph.initializers["i"].reshape(1, -1, 1, 1) if site.has(2) else 0
        real = (accumulate(site, x, w) + bias) * channel / float(sy) + zy
        # Half a unit of int16 for every pass, one for the steps, 2**-14 of the value for A and A2.
        rounding = len(lowered.segments()) * 0.5 * 2.0**lowered.shift * channel / float(sy)
        allowed = rounding + 0.6 + 2.0**-13 * np.abs(real - zy) + 0.05
        error = np.abs(np.clip(real, -128, 127) - values[site.output.name])
        assert (error <= allowed).all()


def test_the_general_rules_split_what_no_board_has_shown() -> None:
    s = Shape((7, 7), 1, (72, 40), (8, 8), (3, -128, 0, 5, 9, -4), False, 1)
    lowering = npusim.compile(network(s), VARIANTS[0], "numpy").lowering
    first, second = lowering["first"], lowering["second"]
    assert isinstance(first, Convolution)
    assert isinstance(second, Convolution)
    assert (first.rows, first.columns, first.form) == ((3, 3, 1), (6, 1), "wide")
    # A map of 64 pixels hides the load of one unit of 18 taps; a line of 8 wide pixels holds 8.
    assert [units * passes * depth for depth, units, passes in first.channels] == [72] * 6
    assert first.channels[0] == (8, 1, 9)
    assert (second.rows, second.columns, second.channels) == ((3,), (3,), ((8, 1, 5),))
