"""What decides the lowering of Add, AveragePool, Conv and Gemm, on shapes where each axis matters.

Expected integers come from the formulas of docs/numerics.md and docs/neural-art.md, written here
in plain numbers. Heights differ from widths, strides from each other, groups from one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from random_units import Case, Operand, one_node

import npusim
from npusim.ir import QParams
from npusim.numerics.neural_art_passes import Window
from npusim.numerics.requant import FloatScale
from npusim.ops import conv, gemm
from npusim.ops.add import AddAttrs, repeats_first
from npusim.ops.avgpool import AveragePoolFloat32, covers_image
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.pool_window import PoolAttrs


def ran(case: Case, profile: str) -> tuple[Any, Any]:
    """(codes, lowered numbers) of the one node."""
    program = npusim.compile(case.graph, profile, engine="numpy")
    return program.run(case.feeds)["y"].astype(np.int64), program.lowering["unit"]


def random_codes(seed: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


# Add of onnxruntime


def add_case(a: Any, b: Any) -> Case:
    operands = [
        Operand("a", np.asarray(a, np.int8), QParams.make(np.float32(0.2), 119)),
        Operand("b", np.asarray(b, np.int8), QParams.make(np.float32(0.1), -65)),
    ]
    return one_node("add", AddAttrs(), operands, "int8", QParams.make(np.float32(0.6), 40))


def as_float32(exact: Fraction) -> Fraction:
    """The nearest float32; exact where float64's rounding on the way would not be."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    return Fraction(
        float(min([near, *around], key=lambda f: (abs(Fraction(float(f)) - exact), bits(f) % 2)))
    )


def bits(number: np.float32) -> int:
    return int(number.view(np.int32))


def sum_in_order(
    one: tuple[int, float, int], two: tuple[int, float, int], scale: float, zero: int
) -> int:
    """clip(rint(fma(a, ra, fma(b, rb, F)))), F = f32(zy - fma(ra, za, f32(rb zb)))."""
    (a, sa, za), (b, sb, zb) = one, two
    ra, rb = (Fraction(float(np.float32(s) / np.float32(scale))) for s in (sa, sb))
    last = as_float32(zero - as_float32(ra * za + as_float32(rb * zb)))
    return max(-128, min(127, round(as_float32(a * ra + as_float32(b * rb + last)))))


@pytest.mark.parametrize(
    ("first", "second", "exchanged"),
    [
        ((2, 3, 1, 1), (2, 3, 4, 5), True),
        ((2, 3, 4, 1), (2, 3, 1, 5), True),
        ((2, 3, 1, 1), (2, 3, 4, 1), True),
        ((2, 1, 1, 1), (2, 3, 1, 1), True),
        ((2, 3, 1), (2, 3, 4), True),
        ((2, 3, 4, 5), (2, 3, 1, 1), False),
        ((2, 3, 1, 5), (2, 3, 4, 1), False),
        ((2, 3, 1, 5), (2, 3, 4, 5), False),  # the innermost axis counts, and is not repeated
        ((2, 1, 4, 5), (2, 3, 4, 5), False),
        ((2, 3, 4, 5), (2, 3, 4, 5), False),
        ((2, 1, 1), (2, 1, 1), False),
    ],
)
def test_the_operand_repeated_along_the_innermost_axis_comes_second(
    first: tuple[int, ...], second: tuple[int, ...], exchanged: bool
) -> None:
    case = add_case(np.zeros(first), np.zeros(second))
    assert repeats_first(case.site) is exchanged
    assert ran(case, "onnxruntime")[1].exchanged is exchanged


A_CODES, B_CODES = (-56, 16, 54, 96), (108, -48, -112, -46, 3)


@pytest.mark.parametrize("repeated", ["first", "second"])
def test_a_repeated_operand_is_added_last_or_first(repeated: str) -> None:
    """Near-ties of scales 0.2, 0.1 and 0.6, where the order of the two additions decides."""
    a, b = np.array(A_CODES), np.array(B_CODES)
    if repeated == "first":
        case = add_case(a[:, None], np.stack([b] * len(a)))
    else:
        case = add_case(np.stack([a] * len(b)), b[:, None])
    y = ran(case, "onnxruntime")[0]
    y = y if repeated == "first" else y.T
    pairs = [[((i, 0.2, 119), (j, 0.1, -65)) for j in B_CODES] for i in A_CODES]
    as_written = [[sum_in_order(one, two, 0.6, 40) for one, two in row] for row in pairs]
    exchanged = [[sum_in_order(two, one, 0.6, 40) for one, two in row] for row in pairs]
    assert as_written != exchanged
    assert y.tolist() == (exchanged if repeated == "first" else as_written)


# AveragePool of onnxruntime


def pool_case(attrs: PoolAttrs, codes: Any, zero: int) -> Case:
    x = Operand("x", np.asarray(codes, np.int8), QParams.make(np.float32(0.5), 4))
    return one_node("avgpool", attrs, [x], "int8", QParams.make(np.float32(1.0), zero))


def test_a_padded_window_of_the_image_s_size_is_no_global_pool() -> None:
    """Each mean is over what its window sees: 2, 4, 6, 8 of real 3, not of 15 kernel positions."""
    codes = np.full((2, 2, 3, 5), 10)  # real 3
    for pads in [(1, 2, 0, 0), (0, 0, 1, 2), (0, 0, 0, 1), (1, 0, 0, 0)]:
        case = pool_case(PoolAttrs((3, 5), pads=pads), codes, 7)
        y, lowered = ran(case, "onnxruntime")
        assert not covers_image(case.site)
        assert isinstance(lowered, AveragePoolFloat32)
        assert y.shape == (2, 2, 1 + pads[0] + pads[2], 1 + pads[1] + pads[3])
        assert (y == 3 + 7).all()
    whole = pool_case(PoolAttrs((3, 5)), codes, 7)
    assert covers_image(whole.site)
    assert isinstance(ran(whole, "onnxruntime")[1], FloatScale)
    for smaller in [(3, 4), (2, 5)]:
        assert not covers_image(pool_case(PoolAttrs(smaller), codes, 7).site)


@pytest.mark.parametrize(("zero", "padded", "whole"), [(7, 12, 11), (8, 12, 12)])
def test_ties_of_a_padded_window_see_the_zero_point(zero: int, padded: int, whole: int) -> None:
    """rint(4.5 + 7) = 12 where the zero point is added before, rint(4.5) + 7 = 11 after."""
    same = np.full((1, 1, 2, 4), 13)  # real 4.5
    y = ran(pool_case(PoolAttrs((2, 4), pads=(0, 0, 1, 0)), same, zero), "onnxruntime")[0]
    assert y.ravel().tolist() == [padded, padded]
    y = ran(pool_case(PoolAttrs((2, 4)), same, zero), "onnxruntime")[0]
    assert y.ravel().tolist() == [whole]


# Convolution and Gemm of the NPU

SX, SY = (float(np.float32(s)) for s in (0.02, 0.05))
SW = float(np.float32(0.003))
ZY = -20


def weighted_case(op: str, attrs: Any, x: Any, w: Any, zero: int) -> Case:
    operands = [
        Operand("x", x, QParams.make(np.float32(SX), zero)),
        Operand("w", w, QParams.make(np.float32(SW), 0), constant=True),
    ]
    return one_node(op, attrs, operands, "int8", QParams.make(np.float32(SY), ZY))


def rnd(values: Any, shift: int) -> Any:
    """sign(v) ((|v| + 2**(shift - 1)) >> shift)."""
    return np.sign(values) * ((np.abs(values) + (1 << shift >> 1)) >> shift)


def sat16(values: Any) -> Any:
    return np.clip(values, -(2**15), 2**15 - 1)


def normalised(ratio: float) -> tuple[int, int]:
    """(A, s) with A = round(ratio 2**s) in [2**14, 2**15)."""
    shift = next(s for s in range(40) if math.floor(ratio * 2**s + 0.5) >= 2**14)
    return math.floor(ratio * 2**shift + 0.5), shift


def sum_shift(w: Any) -> int:
    largest = np.abs(w.astype(np.int64).reshape(len(w), -1).sum(axis=1)).max()
    return max(0, int(largest).bit_length() - 7)


def passed(sums: list[Any], shift: int) -> Any:
    """x16 of one piece: each pass adds to the stored sum, sat16(rnd(acc + (x16 << so), so))."""
    x16 = np.zeros_like(sums[0])
    for acc in sums:
        x16 = sat16(rnd(acc + (x16 << shift), shift))
    return x16


def two_step(x16: Any, shift: int) -> Any:
    """Codes of the stream: A_c and s1, then A2 and s2."""
    mid = 2.0 ** (math.ceil(math.log2(255 * SY)) + 1 - 15)
    first, s1 = normalised(SX * SW * 2**shift / mid)
    second, s2 = normalised(mid / SY)
    y16 = sat16(rnd(first * x16, s1))
    return np.clip(rnd(second * y16 + (ZY << s2), s2), -128, 127)


def slow_sums(x: Any, w: Any, strides: tuple[int, int], pads: tuple[int, int]) -> Any:
    """Plain sums of centred x [N, C, H, W] and w [O, C, kh, kw], pads on both sides."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0],) * 2, (pads[1],) * 2))
    kh, kw = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    return np.einsum("nchwij,ocij->nohw", windows, w)


def test_what_the_split_of_a_convolution_depends_on() -> None:
    attrs = ConvAttrs((1, 2), (1, 0, 1, 0), (1, 1), group=3)
    case = weighted_case(
        "conv", attrs, random_codes(1, (1, 6, 7, 12)), random_codes(2, (12, 2, 3, 4)), 0
    )
    assert conv.window(case.site, "signed") == Window(
        kernel=(3, 4),
        strides=(1, 2),
        depth=2,
        outputs=4,
        map_size=(7, 12),
        output_size=(7, 5),
        form="signed",
        depthwise=False,
    )


@pytest.mark.parametrize(
    ("height", "width", "channels"),
    # min(8, 2048 / width) channels a unit, 144 positions and more: 4 units.
    [(2, 512, (4, 4, 2)), (512, 2, (8, 4, 1))],
)
def test_the_line_buffer_holds_rows_of_the_map(
    height: int, width: int, channels: tuple[int, int, int]
) -> None:
    x, w = random_codes(3, (1, 32, height, width)), random_codes(4, (3, 32, 3, 3))
    case = weighted_case("conv", ConvAttrs(pads=(1, 1, 1, 1)), x, w, -128)
    y, lowered = ran(case, "neural-art")
    assert lowered.channels == (channels,)
    depth, units, passes = channels
    step = depth * units
    real, wide = x.astype(np.int64) + 128, w.astype(np.int64)
    parts = [
        slow_sums(real[:, i * step : (i + 1) * step], wide[:, i * step : (i + 1) * step], *STILL)
        for i in range(passes)
    ]
    shift = sum_shift(w)
    assert lowered.shift == shift
    wanted = two_step(passed(parts, shift), shift)
    assert np.array_equal(y, wanted)
    if passes > 1:
        assert not np.array_equal(y, two_step(passed([sum(parts)], shift), shift))


STILL = ((1, 1), (1, 1))


def test_units_of_a_grouped_1x1_follow_the_outputs_of_a_group() -> None:
    """12 outputs a group ask for 6 positions a unit, so 12 positions hide two units of 24."""
    x, w = random_codes(5, (8, 96, 3, 4)), random_codes(6, (24, 48, 1, 1))
    case = weighted_case("conv", ConvAttrs(group=2), x, w, 0)
    y, lowered = ran(case, "neural-art")
    assert lowered.channels == ((24, 2, 1),)
    shift = sum_shift(w)
    real, wide = x.astype(np.int64), w.astype(np.int64)[:, :, 0, 0]
    halves = [
        [np.einsum("nchw,oc->nohw", real[:, 48 * g :][:, part], wide[12 * g : 12 * g + 12, part])
         for g in range(2)]
        for part in (slice(0, 24), slice(24, 48))
    ]  # fmt: skip
    one, two = (np.concatenate(parts, axis=1) for parts in halves)
    assert np.array_equal(y, two_step(passed([one + two], shift), shift))
    assert not np.array_equal(y, two_step(passed([one, two], shift), shift))


@pytest.mark.parametrize(
    ("strides", "columns"), [((2, 1), (6, 1)), ((1, 2), (7,)), ((1, 1), (6, 1)), ((2, 2), (7,))]
)
def test_columns_are_cut_by_the_horizontal_stride(
    strides: tuple[int, int], columns: tuple[int, ...]
) -> None:
    x, w = random_codes(7, (8, 2, 9, 11)), random_codes(8, (3, 2, 2, 7)) // 2 + np.int8(60)
    case = weighted_case("conv", ConvAttrs(strides, (1, 2, 1, 2)), x, w, 0)
    y, lowered = ran(case, "neural-art")
    assert (lowered.rows, lowered.columns) == ((2,), columns)
    shift, real = sum_shift(w), x.astype(np.int64)

    def piece(first: int, last: int) -> Any:
        kept = np.zeros(w.shape, np.int64)
        kept[:, :, :, first:last] = w[:, :, :, first:last]
        return passed([slow_sums(real, kept, strides, (1, 2))], shift)

    whole, cut = piece(0, 7), sat16(piece(0, 6) + piece(6, 7))
    wanted, other = (whole, cut) if len(columns) == 1 else (cut, whole)
    assert np.array_equal(y, two_step(wanted, shift))
    assert not np.array_equal(two_step(other, shift), two_step(wanted, shift))


@pytest.mark.parametrize(
    ("zero", "depth", "channels"),
    [
        (-128, 25, (25, 1, 1)),
        (-128, 100, (100, 1, 1)),
        (-128, 128, (128, 1, 1)),
        (-128, 129, (43, 1, 3)),
        (0, 24, (24, 1, 1)),
        (0, 25, (5, 1, 5)),
        (0, 100, (20, 1, 5)),
        (3, 128, (16, 1, 8)),
    ],
)
def test_a_gemm_takes_128_unsigned_inputs_at_a_time_and_24_others(
    zero: int, depth: int, channels: tuple[int, int, int]
) -> None:
    x, w = random_codes(9, (40, depth)), random_codes(10, (5, depth))
    case = weighted_case("gemm", GemmAttrs(), x, w, zero)
    y, lowered = ran(case, "neural-art")
    form = {-128: "unsigned", 0: "signed", 3: "wide"}[zero]
    assert gemm.window(case.site, form).form == form
    assert (lowered.form, lowered.channels) == (form, (channels,))
    step, _, passes = channels
    real, wide = x.astype(np.int64) - zero, w.astype(np.int64)
    cuts = [slice(i * step, (i + 1) * step) for i in range(passes)]
    shift = sum_shift(w)
    sums = [real[:, cut] @ wide[:, cut].T for cut in cuts]
    assert np.array_equal(y, two_step(passed(sums, shift), shift))


@pytest.mark.parametrize("op", ["conv", "gemm"])
def test_a_layer_without_bias_has_the_gains_of_a_zero_bias_of_float32_scales(op: str) -> None:
    """Scales 0.03 and 0.3 to 0.011: sx sw rounded to float32 gives 219629024, unrounded ...014."""
    shape, attrs = ((1, 3, 1, 1), ConvAttrs()) if op == "conv" else ((1, 3), GemmAttrs())
    sx, sw, sy = (np.float32(s) for s in (0.03, 0.3, 0.011))
    operands = [
        Operand("x", random_codes(11, shape), QParams.make(sx, 0)),
        Operand("w", random_codes(12, (2, *shape[1:])), QParams.make(sw, 0), constant=True),
    ]
    zeros = Operand("b", np.zeros(2, np.int32), QParams.make(sx * sw, 0), constant=True)
    bare, biased = (
        ran(one_node(op, attrs, inputs, "int8", QParams.make(sy, 0)), "neural-art")[1]
        for inputs in (operands, [*operands, zeros])
    )
    assert bare.final_shift == 20
    exact = Fraction(float(sx * sw)) / Fraction(float(sy)) * 2 ** (20 + 8)
    assert bare.gain.tolist() == [round(exact)] * 2 == [219629024] * 2
    assert bare.to_json() == biased.to_json()
