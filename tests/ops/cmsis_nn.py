"""CMSIS-NN's int8 unit-test cases as one-node graphs with the multipliers those tests give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from random_units import Case, Operand, one_node

from npusim.ir import Array, QParams
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.requant import FixedPoint, read_only
from npusim.numerics.rounding import (
    INT32_MAX,
    saturate,
    shift_half_away,
)
from npusim.numerics.rounding import (
    saturating_rounding_doubling_high_multiply as high_multiply,
)
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.mul import MulAttrs
from npusim.ops.pad import PadAttrs
from npusim.ops.pool_window import PoolAttrs

Config = Mapping[str, Any]
Arrays = Mapping[str, Array]

SKIPPED = {
    "int16 activations": ("s16", "int16", "s64"),
    "packed 4-bit weights": ("int4",),
    "operators that npusim does not have": (
        "lstm", "svdf", "transpose_conv", "batch_matmul", "maximum", "minimum", "softmax",
    ),
    "shapes are not in the file": ("transpose_",),
    "whole networks, which have a test of their own": ("ds_cnn",),
}  # fmt: skip


@dataclass(frozen=True)
class Golden:
    """A case, the numbers it computes with, and the codes that CMSIS-NN expects (NHWC order)."""

    case: Case
    lowered: Lowered
    expected: Array

    def matches(self, output: Array) -> bool:
        return bool(np.array_equal(channels_last(output).ravel(), self.expected))


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """(configuration, arrays) of a file, names in lower case and without prefixes."""
    with np.load(path) as archive:
        config = {k.lower(): v for k, v in json.loads(bytes(archive["config"])).items()}
        arrays = {k.removeprefix("a_"): archive[k] for k in archive.files if k != "config"}
    return config, arrays


def case_names(folder: Path) -> list[str]:
    """The cases of operators, types and widths that npusim has."""
    marks = tuple(mark for group in SKIPPED.values() for mark in group)
    names = sorted(path.stem for path in folder.glob("*.npz"))
    return [name for name in names if not any(mark in name for mark in marks)]


def golden(path: Path) -> Golden:
    """The case of one file."""
    config, arrays = read(path)
    name = path.stem
    if name == "mul":
        return _mul(config, arrays)
    if "pooling" in name:
        return _pool("avgpool" if name.startswith("avg") else "maxpool", config, arrays)
    if name.startswith("fully_connected"):
        return gemm(config, arrays)
    if name.startswith("pad_"):
        return _pad(config, arrays)
    return conv(config, arrays)


def conv(config: Config, arrays: Arrays) -> Golden:
    """Dense, grouped or depthwise ("ch_mult" in the configuration) convolution."""
    kernel = (config["filter_y"], config["filter_x"])
    inputs, outputs = config["in_ch"], config["out_ch"]
    depthwise = "ch_mult" in config
    depth = 1 if depthwise else config.get("filter_ch", inputs)
    if depthwise:
        w = arrays["weights"].reshape(1, *kernel, outputs).transpose(3, 0, 1, 2)
    else:
        w = channels_first(arrays["weights"].reshape(outputs, *kernel, depth))
    strides = (config["stride_y"], config["stride_x"])
    dilations = (config["dilation_y"], config["dilation_x"])
    size = (config["input_h"], config["input_w"])
    pads = _pads(config, "pad_y", "pad_x", kernel, strides, dilations, ("output_h", "output_w"))
    attrs = ConvAttrs(strides, pads, dilations, inputs // depth, _clamp(config, "out_activation"))
    x = channels_first(arrays["input"].reshape(config["input_batches"], *size, inputs))
    lowered = _fixed(arrays["output_mult"], arrays["output_shift"], config, attrs.clamp)
    operands = [_input(x, config["input_offset"]), _weights(np.ascontiguousarray(w), 0)]
    return _golden("conv", attrs, [*operands, *_bias(arrays)], lowered, arrays)


def gemm(config: Config, arrays: Arrays) -> Golden:
    """Fully connected, one multiplier for all outputs."""
    outputs = config["out_ch"]
    w = arrays["weights"].reshape(outputs, -1)
    attrs = GemmAttrs(True, _clamp(config, "out_activation"))
    x = arrays["input"].reshape(-1, w.shape[1])
    multiplier = np.full(outputs, config["output_multiplier"])
    shift = np.full(outputs, config["output_shift"])
    lowered = _fixed(multiplier, shift, config, attrs.clamp)
    operands = [_input(x, config["input_offset"]), _weights(w, config.get("filter_offset", 0))]
    return _golden("gemm", attrs, [*operands, *_bias(arrays)], lowered, arrays)


def _pool(op: str, config: Config, arrays: Arrays) -> Golden:
    kernel, strides = (
        (config["filter_h"], config["filter_w"]),
        (config["stride_h"], config["stride_w"]),
    )
    names = ("output_h", "output_w")
    pads = _pads(config, "padding_h", "padding_w", kernel, strides, (1, 1), names)
    attrs = PoolAttrs(kernel, strides, pads, clamp=_clamp(config, "activation"))
    size = (config["input_h"], config["input_w"], config["input_c"])
    x = channels_first(arrays["input_tensor"].reshape(-1, *size))
    channels = np.ones(config["input_c"], np.int64)
    same = FixedPoint(
        read_only(channels << 30, np.int32),
        read_only(channels, np.int32),
        "double",
        0,
        *attrs.clamp,
    )
    return _golden(op, attrs, [_input(x, 0)], same if op == "avgpool" else Nothing(), arrays)


def _mul(config: Config, arrays: Arrays) -> Golden:
    attrs = MulAttrs(_clamp(config, "out_activation"))
    operands = [
        Operand(
            f"input{i}", arrays[f"input{i}"][None], QParams.make(1, -config[f"input{i}_offset"])
        )
        for i in (1, 2)
    ]
    lowered = _fixed([config["output_mult"]], [config["output_shift"]], config, attrs.clamp)
    return _golden("mul", attrs, operands, lowered, arrays)


def _pad(config: Config, arrays: Arrays) -> Golden:
    x = arrays["input_tensor"].reshape([config[f"input_{axis}"] for axis in "nhwc"])
    pads = tuple((config[f"pre_pad_{axis}"], config[f"post_pad_{axis}"]) for axis in "nchw")
    operands = [_input(channels_first(x), 0)]
    return _golden("pad", PadAttrs(pads, config["pad_value"]), operands, Nothing(), arrays)


def _golden(
    op: str, attrs: Any, operands: list[Operand], lowered: Lowered, arrays: Arrays
) -> Golden:
    point = lowered.zero_point if isinstance(lowered, FixedPoint) else 0
    case = one_node(op, attrs, operands, "int8", QParams.make(1, point))
    return Golden(case, lowered, arrays.get("output_ref", arrays.get("output", np.array([]))))


def _input(x: Array, offset: int) -> Operand:
    return Operand("x", x, QParams.make(1, -offset))


def _weights(w: Array, offset: int) -> Operand:
    return Operand("w", w, QParams.make(1, -offset), constant=True)


def _bias(arrays: Arrays) -> list[Operand]:
    bias = arrays.get("biases", arrays.get("bias"))
    return [] if bias is None else [Operand("b", bias, None, constant=True)]


def _fixed(multiplier: Any, shift: Any, config: Config, clamp: tuple[int, int]) -> FixedPoint:
    numbers = read_only(multiplier, np.int32), read_only(shift, np.int32)
    return FixedPoint(*numbers, "double", config["output_offset"], *clamp)


def _clamp(config: Config, prefix: str) -> tuple[int, int]:
    return config[f"{prefix}_min"], config[f"{prefix}_max"]


def _pads(
    config: Config, top: str, left: str, kernel: tuple[int, int], strides: tuple[int, int],
    dilations: tuple[int, int], outputs: tuple[str, str],
) -> tuple[int, int, int, int]:  # fmt: skip
    """(top, left, bottom, right): CMSIS-NN states the first two and the size of the output."""
    before = (config[top], config[left])
    after = [
        max(0, (config[out] - 1) * s + (k - 1) * d + 1 - pad - config[size])
        for out, size, k, s, d, pad in zip(
            outputs, ("input_h", "input_w"), kernel, strides, dilations, before, strict=True
        )
    ]
    return (*before, after[0], after[1])


def channels_first(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def channels_last(x: Array) -> Array:
    return np.moveaxis(x, 1, -1)


def whole_average(config: Config, x: Array) -> Golden:
    """DS-CNN's average pool over the whole map."""
    names = {"filter_h": "input_h", "filter_w": "input_w", "input_c": "in_ch"}
    plain = {**{k: config[v] for k, v in names.items()}, "output_h": 1, "output_w": 1}
    plain |= {"padding_h": 0, "padding_w": 0, "stride_h": 1, "stride_w": 1}
    return _pool(
        "avgpool",
        {**config, **plain, "activation_min": -128, "activation_max": 127},
        {"input_tensor": x},
    )


def softmax(row: Array, multiplier: int, shift: int, smallest: int) -> Array:
    """CMSIS-NN's arm_softmax_s8 of one row, so that whole networks can be compared.

    gemmlowp's exp_on_negative_values with 5 integer bits and one_over_one_plus_x.
    """
    differences = row.astype(np.int64) - row.max()
    scaled = high_multiply(differences << shift, multiplier)
    powers = np.array([exp_of_negative(int(v)) for v in scaled], np.int64)
    kept = differences >= smallest
    total = int(np.sum(shift_half_away(powers, 12)[kept]))
    headroom = 32 - total.bit_length()
    scale = one_over_one_plus((total << headroom) - 2**31)
    codes = shift_half_away(high_multiply(powers, scale), 35 - headroom) - 128
    return np.where(kept, saturate(codes, -128, 127), -128).astype(np.int8)


def exp_of_negative(value: int) -> int:
    """exp(v) for v <= 0 in Q5.26, as Q0.31."""
    if value == 0:
        return INT32_MAX
    quarter = 1 << 24
    reduced = (value & (quarter - 1)) - quarter
    x = (reduced << 5) + (1 << 28)
    square = int(high_multiply(x, x))
    quartic = shift_half_away(high_multiply(square, square), 2)
    cubic = high_multiply(high_multiply(square, x) + quartic, 715827883)
    series = x + shift_half_away(cubic + square, 1)
    result = 1895147668 + high_multiply(1895147668, series)
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for bit, factor in enumerate(factors):
        if (reduced - value) & (quarter << bit):
            result = high_multiply(result, factor)
    return int(result)


def one_over_one_plus(value: int) -> int:
    """1 / (1 + v) for v in Q0.31, by three Newton steps."""
    total = value + INT32_MAX
    half = (total + 1) // 2
    x = 1515870810 + int(high_multiply(half, -1010580540))
    for _ in range(3):
        x += int(high_multiply(x, (1 << 29) - int(high_multiply(half, x)))) << 2
    return min(x << 1, INT32_MAX)
