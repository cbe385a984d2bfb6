"""Profile tflite/litert-2.3 against LiteRT's reference kernels: no value differs.

Unlike the cases of CMSIS-NN these begin at scales, not at multipliers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import litert
import numpy as np
import pytest
import random_units as units
from random_units import Case, Operand, Rng

import npusim
from npusim.ir import QParams
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.pool_window import PoolAttrs

PROFILE = "tflite/litert-2.3"
CODES = (-128, 127)
FEW, MANY = 15, 200


def conv(rng: Rng) -> Case:
    """Dense or depthwise int8 convolution without padding, weights symmetric."""
    kind = units.style(rng)
    kernel, dilations = rng.integers(1, 5, 2), rng.integers(1, 3, 2)
    group, inner, outer = ((1, 5, 7), (1, 16, 3), (6, 1, 1), (3, 1, 2))[rng.integers(4)]
    size = dilations * (kernel - 1) + 1 + rng.integers(0, 5, 2)
    strides = (1, 1) if dilations.max() > 1 else (int(rng.integers(1, 4)),) * 2
    attrs = ConvAttrs(strides, dilations=units.pair(dilations), group=group, clamp=CODES)
    terms, channels = int(inner * kernel.prod()), group * outer
    return weighted(
        rng, "conv", attrs, (2, group * inner, *size), (channels, inner, *kernel), terms, kind
    )


def gemm(rng: Rng) -> Case:
    inputs, outputs = (int(n) for n in rng.integers(1, 200, 2))
    attrs = GemmAttrs(True, CODES)
    return weighted(rng, "gemm", attrs, (3, inputs), (outputs, inputs), inputs, units.style(rng))


def weighted(
    rng: Rng, op: str, attrs: ConvAttrs | GemmAttrs, shape: tuple[int, ...],
    weights: tuple[int, ...], terms: int, kind: str,
) -> Case:  # fmt: skip
    x = units.activation(rng, "int8", kind)
    w = dataclasses.replace(units.weight(rng, "int8", weights[0], kind, 0), zero_point=(0,))
    w = QParams.make(w.scale, 0, w.axis)
    operands = [
        Operand("x", units.codes(rng, "int8", shape), x),
        Operand("w", np.maximum(units.codes(rng, "int8", weights), -127), w, True),
        units.bias(rng, weights[0], terms, x, w),
    ]
    y = units.output(rng, "int8", units.spread_of(x, w, terms), kind)
    return units.one_node(op, attrs, operands, "int8", y)


def average_pool(rng: Rng) -> Case:
    """TFLite's pool keeps its input's quantization."""
    kernel = rng.integers(1, 6, 2)
    shape = (2, int(rng.integers(1, 9)), *(kernel + rng.integers(0, 6, 2)))
    x = units.activation(rng, "int8", "any")
    attrs = PoolAttrs(units.pair(kernel), units.pair(rng.integers(1, 4, 2)), clamp=CODES)
    return units.one_node(
        "avgpool", attrs, [Operand("x", units.codes(rng, "int8", shape), x)], "int8", x
    )


def function(op: str, which: str = "", y: QParams | None = None) -> Callable[[Rng], Case]:
    """A function of one code; ``y`` where TFLite takes that output only."""

    def make(rng: Rng) -> Case:
        site = units.activation_function(op)(rng).site
        attrs = dataclasses.replace(site.attrs, function=which or op, clamp=CODES)
        x = units.activation(rng, "int8", units.style(rng))
        scale = site.output_qparams.scale[0]
        if op == "hard_swish":  # TFLite refuses ratios of 128 and more
            scale = max(scale, x.scale[0] / 100)
        operand = Operand("x", np.arange(-128, 128).astype(np.int8)[None], x)
        made = y or QParams.make(scale, units.zero_point(rng, "int8"))
        return units.one_node(op, attrs, [operand], "int8", made)

    return make


def quantize(rng: Rng) -> Case:
    """Values that TFLite's conversion to int32 can hold."""
    case = units.quantize(rng)
    return dataclasses.replace(case, feeds={"x": np.clip(case.feeds["x"], -1e4, 1e4)})


MAKERS: Mapping[str, Callable[[Rng], Case]] = {
    "CONV_2D": conv,
    "FULLY_CONNECTED": gemm,
    "ADD": units.MAKERS["QLinearAdd"],
    "MUL": units.MAKERS["QLinearMul"],
    "AVERAGE_POOL_2D": average_pool,
    "MEAN": units.global_average_pool,
    "QUANTIZE": units.requantize,
    "QUANTIZE_FLOAT": quantize,
    "LOGISTIC": function("sigmoid", y=QParams.make(1 / 256, -128)),
    "TANH": function("tanh"),
    "LEAKY_RELU": function("leaky_relu"),
    "HARD_SWISH": function("hard_swish"),
    "GELU": function("gelu"),
    "GELU_TANH": function("gelu", "gelu_tanh"),
}


def check(kind: str, seeds: range, engine: str) -> None:
    for seed in seeds:
        case = MAKERS[kind](np.random.default_rng([seed, 7]))
        wanted = litert.expected(case.site, case.feeds)
        output = npusim.compile(case.graph, PROFILE, engine).run(case.feeds)["y"]
        np.testing.assert_array_equal(output, wanted, err_msg=f"{kind} {seed}", strict=True)


@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("kind", MAKERS)
def test_some_random_operators_equal_litert(kind: str, engine: str) -> None:
    check(kind, range(FEW), engine)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("kind", MAKERS)
def test_many_random_operators_equal_litert(kind: str, engine: str) -> None:
    check(kind, range(FEW, FEW + MANY), engine)
