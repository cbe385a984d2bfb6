"""What no rule may compute is refused at compile, with the node's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_units import Case, Operand, one_node

import npusim
from npusim.errors import NumericsError, UnsupportedOp
from npusim.ir import QParams
from npusim.numerics import requant
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.pool_window import PoolAttrs

PROFILES = ["onnxruntime", "tflite", "tflite-single"]
UNIT = QParams.make(1.0, 0)


def gemm(inputs: int, bias: int = 0) -> Case:
    operands = [
        Operand("x", np.zeros((1, inputs), np.uint8), UNIT),
        Operand("w", np.zeros((1, inputs), np.int8), UNIT, constant=True),
        Operand("b", np.array([bias], np.int32), None, constant=True),
    ]
    return one_node("gemm", GemmAttrs(), operands, "int8", UNIT)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_longest_sum_that_fits_int32_compiles(profile: str) -> None:
    longest = (2**31 - 1) // (255 * 128)
    npusim.compile(gemm(longest).graph, profile, "numpy")
    with pytest.raises(NumericsError, match=r"unit.*32-bit accumulator"):
        npusim.compile(gemm(longest + 1).graph, profile, "numpy")


def test_the_bias_counts() -> None:
    with pytest.raises(NumericsError, match="unit"):
        npusim.compile(gemm(1, bias=2**31 - 1).graph, "onnxruntime", "numpy")


def test_weight_zero_points_count() -> None:
    """uint8 weights with zero point 0 reach 255, int8 ones 128."""
    x = Operand("x", np.zeros((1, 40000), np.uint8), UNIT)
    w = Operand("w", np.zeros((1, 40000), np.uint8), UNIT, constant=True)
    case = one_node("gemm", GemmAttrs(), [x, w], "uint8", UNIT)
    with pytest.raises(NumericsError):
        npusim.compile(case.graph, "onnxruntime", "numpy")


@pytest.mark.parametrize(("bias", "largest_bias"), [(None, 0), ([0], 0), ([-7], 7), ([5], 5)])
def test_the_bound_of_a_sum_of_products(bias: list[int] | None, largest_bias: int) -> None:
    """252 is the largest distance of a uint8 code from 3, 132 that of an int8 code from -5."""
    operands = [
        Operand("x", np.zeros((1, 4), np.uint8), QParams.make(1.0, 3)),
        Operand("w", np.zeros((1, 4), np.int8), QParams.make(1.0, -5), constant=True),
    ]
    if bias is not None:
        operands.append(Operand("b", np.array(bias, np.int32), None, constant=True))
    site = one_node("gemm", GemmAttrs(), operands, "int8", UNIT).graph.site("unit")
    requant.prove_accumulator(site, 64000)
    bound = 65000 * 252 * 132 + largest_bias
    with pytest.raises(NumericsError, match=f"65000 products a sum, up to {bound},"):
        requant.prove_accumulator(site, 65000)


def test_the_bound_of_a_sum_of_codes() -> None:
    x = Operand("x", np.zeros((1, 1, 4, 4), np.int8), UNIT)
    # The output's zero point would allow fewer codes.
    case = one_node("avgpool", PoolAttrs((2, 2)), [x], "int8", QParams.make(1.0, 100))
    site = case.graph.site("unit")
    requant.prove_sum(site, 2**24 - 1)
    with pytest.raises(NumericsError, match=f"16777216 codes a sum, up to {2**31},"):
        requant.prove_sum(site, 2**24)


def pool(op: str, attrs: PoolAttrs, size: tuple[int, int] = (4, 4)) -> Case:
    x = Operand("x", np.zeros((1, 1, *size), np.int8), UNIT)
    return one_node(op, attrs, [x], "int8", UNIT)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("op", ["maxpool", "avgpool"])
@pytest.mark.parametrize(
    "attrs",
    [
        PoolAttrs((2, 2), pads=(2, 0, 0, 0)),
        PoolAttrs((1, 3), pads=(0, 0, 1, 0)),
        PoolAttrs((2, 2), pads=(3, 0, 3, 0), dilations=(6, 1)),
    ],
)
def test_a_window_of_padding_only_is_refused(op: str, attrs: PoolAttrs, profile: str) -> None:
    with pytest.raises(UnsupportedOp, match=r"unit.*nothing but padding"):
        npusim.compile(pool(op, attrs).graph, profile, "numpy")


def test_tflite_has_no_average_that_counts_padding() -> None:
    case = pool("avgpool", PoolAttrs((2, 2), pads=(1, 1, 0, 0), count_include_pad=True))
    with pytest.raises(UnsupportedOp, match="count_include_pad"):
        npusim.compile(case.graph, "tflite", "numpy")
    npusim.compile(case.graph, "onnxruntime", "numpy")


@pytest.mark.parametrize("engine", ["numpy", "fast"])
def test_padding_contributes_nothing_whatever_the_zero_point(engine: str) -> None:
    """A convolution over padding only sees the code of zero, which is the zero point."""
    x: Any = np.full((1, 1, 1, 1), 55, np.int8)
    operands = [
        Operand("x", x, QParams.make(1.0, 55)),
        Operand("w", np.full((1, 1, 3, 3), 100, np.int8), UNIT, constant=True),
    ]
    case = one_node("conv", ConvAttrs(pads=(1, 1, 1, 1)), operands, "int8", QParams.make(1.0, -7))
    output = npusim.compile(case.graph, "onnxruntime", engine).run(case.feeds)["y"]
    np.testing.assert_array_equal(output, np.full((1, 1, 1, 1), -7, np.int8))
