"""The neural-art rules of every operator on graphs of one node, against plain Python loops."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_units import Case, Operand, one_node

import npusim
from npusim.errors import BadQuantization, NumericsError, UnsupportedOp
from npusim.ir import QParams
from npusim.numerics import neural_art
from npusim.numerics.lowered import Nothing
from npusim.numerics.neural_art import Output, Tensor
from npusim.numerics.neural_art_epilogue import (
    Convolution,
    GlobalAverage,
    Joined,
    Keep,
    OneStep,
    TwoStep,
    WindowAverage,
)
from npusim.numerics.profile import Profile, load_profile
from npusim.numerics.requant import read_only
from npusim.ops.add import AddAttrs
from npusim.ops.concat import ConcatAttrs
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs
from npusim.ops.mul import MulAttrs
from npusim.ops.pool_window import PoolAttrs
from npusim.ops.requantize import RequantizeAttrs

NEURAL_ART = load_profile("neural-art")
SWITCHES = neural_art.Switches()


def with_(**switches: Any) -> Profile:
    return replace(NEURAL_ART, switches={**NEURAL_ART.switches, **switches})


def ran(case: Case, profile: Profile = NEURAL_ART, **options: Any) -> tuple[Any, Any]:
    """(codes, lowered numbers) of the one node."""
    program = npusim.compile(case.graph, profile, engine="numpy", **options)
    return program.run(case.feeds)["y"].astype(np.int64), program.lowering["unit"]


def random_codes(seed: int, shape: tuple[int, ...], dtype: str = "int8") -> Any:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def conv_case(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attrs: ConvAttrs,
    zero_point: int = -128,
    bias: bool = True,
) -> Case:
    channels = w_shape[0]
    scales = np.linspace(0.001, 0.004, channels, dtype=np.float32)
    operands = [
        Operand("x", random_codes(1, x_shape), QParams.make(0.02, zero_point)),
        Operand("w", random_codes(2, w_shape), QParams.make(scales, 0, 0), constant=True),
    ]
    if bias:
        codes = np.arange(channels, dtype=np.int32) * 997 - 1500
        operands.append(Operand("b", codes, QParams.make(scales * 0.02, 0, 0), constant=True))
    return one_node("conv", attrs, operands, "int8", QParams.make(0.05, -20))


def slow_convolution(case: Case, lowered: Convolution) -> Any:
    """Every output by itself, with loops over the parts of the kernel."""
    attrs: ConvAttrs = case.site.attrs
    x = case.feeds["x"].astype(int) - case.site.qparams(0).zero_point[0]
    w = case.graph.initializers["w"].astype(int)
    top, left = attrs.pads[:2]
    images, _, height, width = x.shape
    rows, cols = case.site.output.type.shape[2:]
    y = np.zeros((images, w.shape[0], rows, cols), np.int64)
    per_group = w.shape[0] // attrs.group
    for n, o, r, c in itertools.product(*map(range, y.shape)):
        first = o // per_group * w.shape[1]
        sums = []
        for part in lowered.segments():
            acc = 0
            for i, j, k in itertools.product(
                range(*part.rows), range(*part.columns), range(*part.channels)
            ):
                row = r * attrs.strides[0] + i * attrs.dilations[0] - top
                col = c * attrs.strides[1] + j * attrs.dilations[1] - left
                if 0 <= row < height and 0 <= col < width:
                    acc += int(x[n, first + k, row, col] * w[o, k, i, j])
            sums.append((part, np.array([acc])))
        channel = replace(
            lowered,
            **{
                name: read_only(getattr(lowered, name)[o : o + 1], np.int64)
                for name in ("multiplier", "constant", "bias", "gain")
            },
        )
        y[n, o, r, c] = channel.apply(channel.stream(sums).values, None, 0).item()
    return y


CONVOLUTIONS = {
    "3x3 with passes": ((1, 24, 4, 4), (3, 24, 3, 3), ConvAttrs(pads=(1, 1, 1, 1)), (8, 1, 3)),
    "5x5 in two pieces": ((2, 3, 6, 6), (4, 3, 5, 5), ConvAttrs(pads=(2, 2, 2, 2)), (3, 1, 1)),
    "7x7 in six pieces": ((1, 2, 7, 8), (2, 2, 7, 7), ConvAttrs(pads=(3, 3, 2, 2)), (2, 1, 1)),
    "strided": (
        (1, 4, 9, 7),
        (3, 4, 3, 3),
        ConvAttrs(strides=(2, 1), pads=(1, 0, 0, 1)),
        (4, 1, 1),
    ),
    "dilated": ((1, 2, 8, 8), (2, 2, 3, 3), ConvAttrs(dilations=(2, 3)), (2, 1, 1)),
    "1x1": ((1, 30, 3, 3), (4, 30, 1, 1), ConvAttrs(), (15, 2, 1)),
    "grouped": ((1, 36, 4, 4), (4, 18, 3, 3), ConvAttrs(group=2, pads=(1, 1, 1, 1)), (6, 1, 3)),
    "depthwise": ((1, 4, 6, 6), (4, 1, 5, 5), ConvAttrs(group=4, pads=(2, 2, 2, 2)), (1, 1, 1)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("variant", ["atonn-1.1.1", "atonn-1.1.3"])
def test_convolution(name: str, variant: str) -> None:
    x_shape, w_shape, attrs, channels = CONVOLUTIONS[name]
    case = conv_case(x_shape, w_shape, attrs, zero_point=0 if name == "1x1" else 3)
    y, lowered = ran(case, load_profile(f"neural-art/{variant}"))
    assert isinstance(lowered, TwoStep if variant == "atonn-1.1.1" else OneStep)
    assert lowered.channels[0] == channels
    assert np.array_equal(y, slow_convolution(case, lowered))
    assert len(np.unique(y)) > 10


def test_passes_change_the_result() -> None:
    """Otherwise the order of the segments would not be tested by anything."""
    case = conv_case((20, 24, 8, 8), (3, 24, 3, 3), ConvAttrs(pads=(1, 1, 1, 1)))
    y, lowered = ran(case)
    whole, single = ran(case, with_(passes="single"))
    assert (lowered.channels, single.channels) == (((8, 1, 3),), ((24, 1, 1),))
    assert 0 < np.count_nonzero(y != whole) < y.size
    assert np.abs(y - whole).max() == 1


@pytest.mark.parametrize(("zero_point", "form"), [(-128, "unsigned"), (0, "signed"), (5, "wide")])
def test_lowering_of_a_convolution(zero_point: int, form: str) -> None:
    case = conv_case((1, 3, 4, 4), (2, 3, 3, 3), ConvAttrs(clamp=(-20, 100)), zero_point)
    lowered = ran(case)[1]
    w, site = case.graph.initializers["w"].astype(np.int64), case.site
    scales = site.qparams(1).scales().astype(np.float64)
    bias = case.graph.initializers["b"].astype(np.int64)
    expected = neural_art.convolution(
        Tensor(float(np.float32(0.02)), zero_point),
        neural_art.Weights(w, scales, bias, site.qparams(2).scales().astype(np.float64)),
        Output(float(np.float32(0.05)), -20, -20, 100),
        neural_art.Window((3, 3), (1, 1), 3, 2, (4, 4), (2, 2), form),
        SWITCHES,
        "unit",
    )
    assert lowered.to_json() == expected.to_json()
    assert (lowered.form, lowered.lo, lowered.hi) == (form, -20, 100)


def test_a_layer_without_bias_gets_zeros() -> None:
    case = conv_case((1, 3, 4, 4), (2, 3, 3, 3), ConvAttrs(), bias=False)
    y, lowered = ran(case)
    assert lowered.bias.tolist() == [0, 0]
    assert lowered.constant.tolist() == [-20 << lowered.final_shift] * 2
    assert lowered.gain.min() > 0
    assert np.array_equal(y, slow_convolution(case, lowered))


def test_a_trained_bias_acts_through_its_gain() -> None:
    case = conv_case((1, 3, 4, 4), (2, 3, 3, 3), ConvAttrs())
    program = npusim.compile(case.graph, NEURAL_ART, engine="numpy")
    moved = program.weights.codes("b") + np.array([4000, -4000], np.int32)
    y = program.run(case.feeds, weights=program.weights.replaced({"b": moved}))["y"]
    lowered: Any = program.lowering["unit"]
    constant = lowered.constant + (lowered.gain * np.array([4000, -4000]) + 128 >> 8)
    by_hand = replace(lowered, constant=read_only(constant, np.int64))
    assert np.array_equal(y, slow_convolution(case, by_hand))
    assert not np.array_equal(y, program.run(case.feeds)["y"])


def as_uint8(case: Case, op: str, attrs: Any) -> Case:
    """The same unit with uint8 tensors: codes and zero points 128 higher."""
    operands = []
    for name in case.graph.nodes[0].inputs:
        value = case.graph.value(name)
        assert value.qparams is not None
        constant = case.graph.is_constant(name)
        codes = case.graph.initializers[name] if constant else case.feeds[name]
        qparams = value.qparams
        if codes.dtype == np.int8:
            codes = (codes.astype(np.int16) + 128).astype(np.uint8)
            qparams = replace(qparams, zero_point=tuple(z + 128 for z in qparams.zero_point))
        operands.append(Operand(name, codes, qparams, constant))
    y = case.graph.value("y").qparams
    assert y is not None
    shifted = replace(y, zero_point=(y.zero_point[0] + 128,))
    return one_node(op, attrs, operands, "uint8", shifted)


def gemm_case(depth: int = 300, outputs: int = 5, *, transposed: bool = True) -> Case:
    codes = random_codes(3, (outputs, depth))
    operands = [
        Operand("x", random_codes(4, (3, depth)), QParams.make(0.02, -3)),
        Operand(
            "w",
            codes if transposed else np.ascontiguousarray(codes.T),
            QParams.make(np.float32(0.001), 0),
            constant=True,
        ),
    ]
    return one_node("gemm", GemmAttrs(transposed), operands, "int8", QParams.make(0.07, 4))


@pytest.mark.parametrize("transposed", [True, False])
def test_gemm(transposed: bool) -> None:
    case = gemm_case(transposed=transposed)
    y, lowered = ran(case)
    assert lowered.channels == ((20, 1, 15),)
    x = case.feeds["x"].astype(np.int64) + 3
    w = random_codes(3, (5, 300)).astype(np.int64)
    sums = [(s, x[:, slice(*s.channels)] @ w[:, slice(*s.channels)].T) for s in lowered.segments()]
    assert len(sums) == 15
    assert np.array_equal(y, lowered.apply(lowered.stream(sums).values, None, -1))
    assert len(np.unique(y)) > 8


def test_gemm_on_rows_of_vectors_has_a_map() -> None:
    operands = [
        Operand("x", random_codes(4, (2, 200, 30)), QParams.make(0.02, 0)),
        Operand("w", random_codes(3, (24, 30)), QParams.make(0.001, 0), constant=True),
    ]
    case = one_node("gemm", GemmAttrs(), operands, "int8", QParams.make(0.07, 4))
    y, lowered = ran(case)
    assert lowered.channels == ((15, 2, 1),)
    assert y.shape == (2, 200, 24)


PAIRS = {"add": AddAttrs, "mul": MulAttrs}


def pair_case(op: str, clamp: tuple[int, int] = (-128, 127)) -> Case:
    operands = [
        Operand("a", random_codes(5, (2, 3, 5, 5)), QParams.make(0.03, -128)),
        Operand("b", random_codes(6, (2, 3, 1, 1)), QParams.make(0.011, 9)),
    ]
    return one_node(op, PAIRS[op](clamp=clamp), operands, "int8", QParams.make(0.04, 3))


@pytest.mark.parametrize("op", PAIRS)
def test_pairs(op: str) -> None:
    case = pair_case(op, (-100, 90))
    y, lowered = ran(case)
    one = Tensor(float(np.float32(0.03)), -128)
    two = Tensor(float(np.float32(0.011)), 9)
    expected = getattr(neural_art, op)(
        one, two, Output(float(np.float32(0.04)), 3, -100, 90), SWITCHES, "unit"
    )
    assert lowered == expected
    a, b = (case.feeds[n].astype(np.int64) for n in "ab")
    assert np.array_equal(y, expected.apply(a, b))
    real = (a + 128) * 0.03 + (b - 9) * 0.011 if op == "add" else (a + 128) * 0.03 * (b - 9) * 0.011
    assert np.abs(np.clip(real / 0.04 + 3, -100, 90) - y).max() < (1 if op == "add" else 2)


def test_requantize_and_keep() -> None:
    x = Operand("x", np.arange(-128, 128, dtype=np.int8).reshape(1, 256), QParams.make(0.5, 2))
    attrs = RequantizeAttrs((-100, 100))
    y, lowered = ran(one_node("requantize", attrs, [x], "int8", QParams.make(0.75, -3)))
    assert np.abs((np.arange(-128, 128) - 2) / 1.5 - 3 - y[0]).max() <= 0.5
    assert (lowered.pre_shift, lowered.lo, lowered.hi) == (0, -100, 100)
    y, lowered = ran(one_node("requantize", attrs, [x], "int8", QParams.make(0.5, 2)))
    assert isinstance(lowered, Keep)
    assert np.array_equal(y[0], np.clip(np.arange(-128, 128), -100, 100))
    moved = ran(one_node("requantize", attrs, [x], "int8", QParams.make(0.5, 5)))[0]
    assert np.array_equal(moved[0], np.clip(np.arange(-125, 131), -100, 100))


def concat_case() -> Case:
    operands = [
        Operand("a", random_codes(7, (2, 2, 3)), QParams.make(0.5, 2)),
        Operand("b", random_codes(8, (2, 4, 3)), QParams.make(0.25, 2)),
    ]
    return one_node("concat", ConcatAttrs(1), operands, "int8", QParams.make(0.5, 2))


def test_concat() -> None:
    case = concat_case()
    y, lowered = ran(case)
    assert isinstance(lowered, Joined)
    assert [type(step).__name__ for step in lowered.operands] == ["Keep", "Rescale"]
    b = case.feeds["b"].astype(np.int64)
    halved = np.sign(b - 2) * ((np.abs(b - 2) + 1) // 2) + 2
    assert np.array_equal(y[:, :2], case.feeds["a"])
    # Rounding sees the sign of the whole code, so a tie may go either way.
    assert np.abs(y[:, 2:] - halved).max() <= 1
    assert np.array_equal(y[:, 2:], lowered.operands[1].apply(b))


def test_concat_of_floats_moves_them() -> None:
    operands = [Operand("a", np.ones((2, 2), np.float32), None)] * 2
    operands = [operands[0], replace(operands[1], name="b")]
    case = one_node("concat", ConcatAttrs(1), operands, "float32", None)
    program = npusim.compile(case.graph, NEURAL_ART, engine="numpy")
    assert isinstance(program.lowering["unit"], Nothing)
    assert np.array_equal(program.run(case.feeds)["y"], np.ones((2, 4)))


def mean_case(keepdims: bool = True) -> Case:
    x = Operand("x", random_codes(9, (4, 6, 5, 7)), QParams.make(0.02, -5))
    attrs = GlobalAveragePoolAttrs(keepdims, (-90, 60))
    return one_node("global_average_pool", attrs, [x], "int8", QParams.make(0.002, 11))


@pytest.mark.parametrize("keepdims", [True, False])
def test_global_average(keepdims: bool) -> None:
    case = mean_case(keepdims)
    y, lowered = ran(case)
    x, out = Tensor(float(np.float32(0.02)), -5), Output(float(np.float32(0.002)), 11, -90, 60)
    assert lowered == neural_art.global_average(x, out, 35, SWITCHES, "unit")
    sums = case.feeds["x"].astype(np.int64).sum(axis=(2, 3))
    assert y.shape == ((4, 6, 1, 1) if keepdims else (4, 6))
    assert np.array_equal(y.reshape(4, 6), lowered.apply(sums))
    real = np.clip((sums / 35 + 5) * 10 + 11, -90, 60)
    assert np.abs(real - y.reshape(4, 6)).max() < 0.6


def pool_case(attrs: PoolAttrs, scale: float = 0.02) -> Case:
    x = Operand("x", random_codes(10, (2, 3, 6, 6)), QParams.make(0.02, -5))
    zero_point = -5 if scale == 0.02 else 8
    return one_node("avgpool", attrs, [x], "int8", QParams.make(scale, zero_point))


def test_average_pool() -> None:
    case = pool_case(PoolAttrs((2, 2), (2, 2)))
    y, lowered = ran(case)
    sums = case.feeds["x"].astype(np.int64).reshape(2, 3, 3, 2, 3, 2).sum(axis=(3, 5))
    assert (lowered.counts, lowered.multipliers, lowered.shifts) == ((4,), (16384,), (16,))
    assert isinstance(lowered.rescale, Keep)
    assert np.array_equal(y, np.sign(sums) * ((np.abs(sums) + 2) // 4))


@pytest.mark.parametrize("included", [True, False])
def test_average_pool_with_padding(included: bool) -> None:
    attrs = PoolAttrs((3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=included)
    case = pool_case(attrs, 0.01)
    y, lowered = ran(case)
    assert isinstance(lowered, WindowAverage)
    assert lowered.counts == ((9,) if included else (4, 6, 9))
    x = case.feeds["x"].astype(np.int64)
    for n, c, i, j in itertools.product(*map(range, y.shape)):
        window = x[n, c, max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]
        count = 9 if included else window.size
        total = int(window.sum()) - 5 * (count - window.size)
        assert y[n, c, i, j] == lowered.apply(np.array(total), np.array(count))
    real = (x[:, :, 1:4, 1:4].mean(axis=(2, 3)) + 5) * 2 + 8
    assert np.abs(np.clip(real, -128, 127) - y[:, :, 2, 2]).max() < 2


def test_a_window_over_the_whole_map_is_a_global_average() -> None:
    y, lowered = ran(pool_case(PoolAttrs((6, 6), (6, 6)), 0.003))
    assert isinstance(lowered, GlobalAverage)
    x = pool_case(PoolAttrs((6, 6))).feeds["x"].astype(np.int64)
    assert np.array_equal(y[:, :, 0, 0], lowered.apply(x.sum(axis=(2, 3))))
    padded = ran(pool_case(PoolAttrs((6, 6), (1, 1), (1, 0, 0, 0))))[1]
    assert isinstance(padded, WindowAverage)


@pytest.mark.parametrize(
    ("case", "attrs"),
    [
        (conv_case((1, 3, 5, 5), (2, 3, 3, 3), ConvAttrs()), ConvAttrs(clamp=(0, 255))),
        (gemm_case(), GemmAttrs(clamp=(0, 255))),
        (pair_case("add"), AddAttrs((0, 255))),
        (pair_case("mul"), MulAttrs((0, 255))),
        (concat_case(), ConcatAttrs(1)),
        (mean_case(), GlobalAveragePoolAttrs(clamp=(38, 188))),
        (pool_case(PoolAttrs((2, 2)), 0.01), PoolAttrs((2, 2), clamp=(0, 255))),
    ],
    ids=lambda v: v.graph.nodes[0].op if isinstance(v, Case) else "",
)
def test_uint8_tensors_count_as_signed_ones(case: Case, attrs: Any) -> None:
    y = ran(case)[0]
    assert np.array_equal(ran(as_uint8(case, case.graph.nodes[0].op, attrs))[0], y + 128)


class TestRefused:
    def test_weights_with_a_zero_point(self) -> None:
        case = conv_case((1, 3, 4, 4), (2, 3, 3, 3), ConvAttrs())
        w = case.graph.value("w")
        assert w.qparams is not None
        values = {
            **case.graph.values,
            "w": replace(w, qparams=replace(w.qparams, zero_point=(0, 1))),
        }
        with pytest.raises(BadQuantization, match="no zero point"):
            npusim.compile(case.graph.with_(values=values), NEURAL_ART, engine="numpy")

    def test_computed_weights(self) -> None:
        case = gemm_case()
        w = case.graph.value("w")
        graph = case.graph.with_(initializers={}, inputs=(*case.graph.inputs, w))
        with pytest.raises(UnsupportedOp, match="must be constants"):
            NEURAL_ART_RULE.lower(graph.site("unit"), NEURAL_ART)

    def test_tensors_of_16_bits(self) -> None:
        x = Operand("x", np.zeros((1, 4), np.int16), QParams.make(0.5, 2))
        case = one_node("requantize", RequantizeAttrs(), [x], "int8", QParams.make(0.75, -3))
        with pytest.raises(BadQuantization, match="int16"):
            npusim.compile(case.graph, NEURAL_ART, engine="numpy")

    def test_sums_beyond_the_accumulator_name_the_layer(self) -> None:
        case = gemm_case(24)
        with pytest.raises(NumericsError, match=r"unit.*24 products"):
            npusim.compile(case.graph, with_(accumulator_bits=19), engine="numpy")
        off = with_(accumulator_bits=19, accumulator_check="off")
        assert np.array_equal(ran(case, off)[0], ran(case)[0])


NEURAL_ART_RULE = npusim.ops.base.spec_of("gemm").rules["neural-art"]
