"""Random one-node graphs with inputs that reach kind, saturation and the ends of the range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.ir import INTEGER_RANGE, Array, Graph, Node, QParams, Site, TensorType, Value
from npusim.ops.activation import ActivationAttrs
from npusim.ops.add import AddAttrs
from npusim.ops.base import spec_of
from npusim.ops.concat import ConcatAttrs
from npusim.ops.conv import ConvAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs
from npusim.ops.mul import MulAttrs
from npusim.ops.pool_window import PoolAttrs
from npusim.ops.quantize import QuantizeAttrs
from npusim.ops.requantize import RequantizeAttrs

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A graph of one node, and arrays for its inputs."""

    graph: Graph
    feeds: Mapping[str, Array]

    @property
    def site(self) -> Site:
        return Site(self.graph, self.graph.nodes[0])


@dataclass(frozen=True)
class Operand:
    """An input of the node: codes that are constant, or fed at run time."""

    name: str
    codes: Array
    qparams: QParams | None
    constant: bool = False


def one_node(
    op: str, attrs: Any, operands: list[Operand], dtype: str, qparams: QParams | None
) -> Case:
    """The case of a node with these inputs; its output shape is inferred."""
    values, feeds, constants = {}, {}, {}
    for operand in operands:
        shape = operand.codes.shape
        lifted = shape if operand.constant else (None, *shape[1:])
        kind = TensorType(operand.codes.dtype.name, lifted)
        values[operand.name] = Value(operand.name, kind, operand.qparams)
        (constants if operand.constant else feeds)[operand.name] = operand.codes
    values["y"] = Value("y", TensorType(dtype, ()), qparams)
    node = Node(op, "unit", tuple(o.name for o in operands), ("y",), attrs)
    inputs = tuple(values[name] for name in feeds)
    graph = Graph("unit", inputs, (values["y"],), (node,), values, constants)
    y = Value("y", spec_of(op).infer(Site(graph, node)), qparams)
    return Case(graph.with_(values={**values, "y": y}, outputs=(y,)), feeds)


def codes(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    """Codes over the whole range, one time in four the two ends only."""
    lo, hi = INTEGER_RANGE[dtype]
    if rng.random() < 0.25:
        return rng.choice(np.array([lo, hi], dtype), shape)
    return rng.integers(lo, hi + 1, shape).astype(dtype)


def zero_point(rng: Rng, dtype: str) -> int:
    """Any, the middle, or an end."""
    lo, hi = INTEGER_RANGE[dtype]
    return int(rng.choice([rng.integers(lo, hi + 1), (lo + hi + 1) // 2, lo, hi]))


def style(rng: Rng) -> str:
    """How scales are drawn, see ``scales``."""
    return str(rng.choice(["any", "powers", "decimals"]))


def scales(rng: Rng, kind: str, low: float, high: float, count: int = 1) -> Array:
    """float32 scales between exp(low) and exp(high).

    kind: "any"; "powers" of two, which make exact ties; "decimals" of one digit, whose ratios are
    ties in decimal arithmetic, so that the rounding of each float32 operation decides.
    """
    scale = np.exp(rng.uniform(low, high, count))
    if kind == "powers":
        scale = 2.0 ** np.round(np.log2(scale))
    if kind == "decimals":
        digit = 10.0 ** np.floor(np.log10(scale))
        scale = np.round(scale / digit) * digit
    return scale.astype(np.float32)


def activation(rng: Rng, dtype: str, kind: str) -> QParams:
    """A per-tensor quantization."""
    return QParams.make(scales(rng, kind, -7, 1), zero_point(rng, dtype))


def weight(rng: Rng, dtype: str, channels: int, kind: str, axis: int) -> QParams:
    """Per channel or per tensor; zero points other than the middle half the time."""
    count = channels if rng.random() < 0.5 else 1
    # One zero point for all channels: onnxruntime refuses several.
    point = zero_point(rng, dtype) if rng.random() < 0.5 else (0 if dtype == "int8" else 128)
    return QParams.make(scales(rng, kind, -8, -2, count), point, axis)


def output(rng: Rng, dtype: str, spread: float, kind: str) -> QParams:
    """A quantization whose range the output's standard deviation ``spread`` fills or exceeds."""
    wanted = np.log(max(spread, 1e-6) / rng.choice([1.0, 8.0, 40.0, 100.0]))
    return QParams.make(scales(rng, kind, wanted - 0.7, wanted + 0.7), zero_point(rng, dtype))


def clamp(rng: Rng, dtype: str) -> tuple[int, int]:
    """The whole range, or (one time in four) the part that a fused Clip leaves."""
    lo, hi = INTEGER_RANGE[dtype]
    if rng.random() < 0.75:
        return lo, hi
    first, last = sorted(rng.integers(lo, hi + 1, 2))
    return int(first), int(last)


def spread_of(x: QParams, w: QParams, terms: int) -> float:
    """About the standard deviation of a sum of products of uniform codes."""
    return float(x.scales().max() * w.scales().max() * 74.0 * 74.0 * np.sqrt(terms))


def bias(rng: Rng, channels: int, terms: int, x: QParams, w: QParams) -> Operand:
    largest = 2000 * max(1, int(np.sqrt(terms)))
    qparams = QParams.make(x.scales() * w.scales(), 0, 0)
    return Operand("b", rng.integers(-largest, largest, channels).astype(np.int32), qparams, True)


def dtypes(rng: Rng) -> tuple[str, str]:
    """(activation, weight): the pairs that onnxruntime has kernels for."""
    pairs = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]
    return pairs[rng.integers(3)]


CHANNELS = [
    (1, 3, 5), (1, 16, 8), (1, 40, 33), (2, 3, 2), (2, 20, 20), (4, 1, 1), (8, 1, 2), (40, 1, 1),
]  # fmt: skip
"""(groups, input channels of a group, output channels of a group) of convolutions."""


def conv(rng: Rng) -> Case:
    dtype, wtype = dtypes(rng)
    kind = style(rng)
    kernel = rng.integers(1, 6, 2)
    group, inner, outer = (int(v) for v in rng.choice(CHANNELS))
    dilations = rng.integers(1, 3, 2)
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    around = np.add(pads[:2], pads[2:])
    size = np.maximum(1, dilations * (kernel - 1) + 1 - around + rng.integers(0, 7, 2))
    attrs = ConvAttrs(pair(rng.integers(1, 4, 2)), pads, pair(dilations), group, clamp(rng, dtype))
    terms = int(inner * kernel.prod())
    channels = group * outer
    x, w = activation(rng, dtype, kind), weight(rng, wtype, channels, kind, 0)
    operands = [
        Operand("x", codes(rng, dtype, (int(rng.integers(1, 3)), group * inner, *size)), x),
        Operand("w", codes(rng, wtype, (channels, inner, *kernel)), w, True),
    ]
    if rng.random() < 0.7:
        operands.append(bias(rng, channels, terms, x, w))
    return one_node(
        "conv", attrs, operands, dtype, output(rng, dtype, spread_of(x, w, terms), kind)
    )


def gemm(rng: Rng, transposed: bool, has_bias: bool) -> Case:
    dtype, wtype = dtypes(rng)
    kind = style(rng)
    inputs, outputs = int(rng.integers(1, 300)), int(rng.integers(1, 40))
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    # Only QLinearMatMul takes more than two axes.
    matrix = transposed or has_bias or rng.random() < 0.7
    leading = tuple(int(d) for d in rng.integers(1, 7, 1 if matrix else 2))
    x, w = activation(rng, dtype, kind), weight(rng, wtype, outputs, kind, 0 if transposed else 1)
    operands = [
        Operand("x", codes(rng, dtype, (*leading, inputs)), x),
        Operand("w", codes(rng, wtype, shape), w, True),
    ]
    if has_bias:
        operands.append(bias(rng, outputs, inputs, x, w))
    attrs = GemmAttrs(transposed, clamp(rng, dtype))
    return one_node(
        "gemm", attrs, operands, dtype, output(rng, dtype, spread_of(x, w, inputs), kind)
    )


def matmul(rng: Rng) -> Case:
    return gemm(rng, transposed=False, has_bias=False)


def qgemm(rng: Rng) -> Case:
    has_bias = rng.random() < 0.7
    return gemm(rng, transposed=not has_bias or rng.random() < 0.5, has_bias=has_bias)


def two_operands(
    op: str, attrs: type, spread: Callable[[float, float], float]
) -> Callable[[Rng], Case]:
    def make(rng: Rng) -> Case:
        dtype = ("uint8", "int8")[rng.integers(2)]
        kind = style(rng)
        shape = (int(rng.integers(1, 3)), *(int(d) for d in rng.integers(1, 9, 2)), 4)
        other = [shape, shape, (shape[0], shape[1], 1, 1)][rng.integers(3)]
        constant = rng.random() < 0.3
        if constant:
            other = [(1, *shape[1:]), (1, shape[1], 1, 1), (1, 1, 1, 1)][rng.integers(3)]
        a, b = activation(rng, dtype, kind), activation(rng, dtype, kind)
        operands = [
            Operand("a", codes(rng, dtype, shape), a),
            Operand("b", codes(rng, dtype, other), b, constant),
        ]
        if rng.random() < 0.5:
            operands.reverse()
        size = spread(74 * a.scale[0], 74 * b.scale[0])
        numbers = attrs(clamp=clamp(rng, dtype))
        return one_node(op, numbers, operands, dtype, output(rng, dtype, size, kind))

    return make


def average_pool(rng: Rng) -> Case:
    dtype = ("uint8", "int8")[rng.integers(2)]
    kind = style(rng)
    kernel = rng.integers(1, 5, 2)
    size = kernel + rng.integers(0, 7, 2)
    attrs = PoolAttrs(
        pair(kernel),
        pair(rng.integers(1, 4, 2)),
        tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel)),  # type: ignore[arg-type]
        ceil_mode=bool(rng.integers(2)),
        count_include_pad=bool(rng.integers(2)),
        clamp=clamp(rng, dtype),
    )
    x = activation(rng, dtype, kind)
    codes_ = codes(rng, dtype, (int(rng.integers(1, 3)), int(rng.integers(1, 20)), *size))
    y = x if rng.random() < 0.3 else output(rng, dtype, 74 * x.scale[0], kind)
    return one_node("avgpool", attrs, [Operand("x", codes_, x)], dtype, y)


def max_pool(rng: Rng) -> Case:
    dtype = ("uint8", "int8")[rng.integers(2)]
    kernel, dilations = rng.integers(1, 5, 2), rng.integers(1, 3, 2)
    size = dilations * (kernel - 1) + 1 + rng.integers(0, 7, 2)
    attrs = PoolAttrs(
        pair(kernel),
        pair(rng.integers(1, 4, 2)),
        tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel)),  # type: ignore[arg-type]
        pair(dilations),
        ceil_mode=bool(rng.integers(2)),
        clamp=clamp(rng, dtype),
    )
    x = activation(rng, dtype, "any")
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 40)), *size)
    return one_node("maxpool", attrs, [Operand("x", codes(rng, dtype, shape), x)], dtype, x)


def global_average_pool(rng: Rng) -> Case:
    dtype = ("uint8", "int8")[rng.integers(2)]
    kind = style(rng)
    shape = (int(rng.integers(1, 3)), *(int(d) for d in rng.integers(1, 17, 3)))
    x = activation(rng, dtype, kind)
    attrs = GlobalAveragePoolAttrs(bool(rng.integers(2)), INTEGER_RANGE[dtype])
    y = output(rng, dtype, 74 * x.scale[0] / np.sqrt(shape[2] * shape[3]), kind)
    return one_node(
        "global_average_pool", attrs, [Operand("x", codes(rng, dtype, shape), x)], dtype, y
    )


def concat(rng: Rng) -> Case:
    dtype = ("uint8", "int8")[rng.integers(2)]
    kind = style(rng)
    axis, batch = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    common = [int(d) for d in rng.integers(1, 9, 3)]
    y = output(rng, dtype, float(np.exp(rng.uniform(-3, 3))), kind)
    operands = []
    for index in range(int(rng.integers(1, 5))):
        shape = [batch, *common]
        shape[axis] = int(rng.integers(1, 9))
        x = y if rng.random() < 0.2 else activation(rng, dtype, kind)
        operands.append(Operand(f"x{index}", codes(rng, dtype, tuple(shape)), x))
    return one_node("concat", ConcatAttrs(axis), operands, dtype, y)


def requantize(rng: Rng) -> Case:
    dtype, made = (("uint8", "int8")[i] for i in rng.integers(0, 2, 2))
    kind = style(rng)
    x = activation(rng, dtype, kind)
    attrs = RequantizeAttrs(INTEGER_RANGE[made])
    every = np.arange(*INTEGER_RANGE[dtype]).astype(dtype)[None]
    return one_node(
        "requantize",
        attrs,
        [Operand("x", every, x)],
        made,
        output(rng, made, 74 * x.scale[0], kind),
    )


def activation_function(op: str) -> Callable[[Rng], Case]:
    """A function of one code, on every code; scales around those where it is neither flat nor
    linear."""

    def make(rng: Rng) -> Case:
        dtype = ("uint8", "int8")[rng.integers(2)]
        kind = style(rng)
        x = activation(rng, dtype, kind)
        y = QParams.make(scales(rng, kind, -7, -1), zero_point(rng, dtype))
        numbers = {"hard_sigmoid": 2, "leaky_relu": 1, "elu": 1, "selu": 2}.get(op, 0)
        # float32, as a file's attributes are.
        drawn = tuple(float(n) for n in rng.uniform(0.01, 1.5, numbers).astype(np.float32))
        attrs = ActivationAttrs(op, drawn, clamp(rng, dtype))
        lo, hi = INTEGER_RANGE[dtype]
        every = np.arange(lo, hi + 1).astype(dtype).reshape(2, 128)
        return one_node(op, attrs, [Operand("x", every, x)], dtype, y)

    return make


EXACT_FUNCTIONS = (
    "hard_sigmoid", "hard_swish", "leaky_relu", "elu", "selu", "sigmoid", "softplus", "softsign",
)  # fmt: skip
"""Those on which onnxruntime's float kernels and correctly rounded ones gave the same codes."""


def any_function(rng: Rng) -> Case:
    return activation_function(str(rng.choice(EXACT_FUNCTIONS)))(rng)


def quantize(rng: Rng) -> Case:
    dtype = ("uint8", "int8")[rng.integers(2)]
    y = activation(rng, dtype, style(rng))
    steps = rng.integers(-600, 600, (2, 50)) / rng.choice([1, 2, 4])
    x = (steps * y.scale[0]).astype(np.float32) + rng.choice([0, 1e-3]) * rng.standard_normal(
        (2, 50)
    ).astype(np.float32)
    x[0, :2] = 3e38, -3e38
    return one_node(
        "quantize",
        QuantizeAttrs(INTEGER_RANGE[dtype]),
        [Operand("x", x.astype(np.float32), None)],
        dtype,
        y,
    )


def pair(values: Array) -> tuple[int, int]:
    first, second = (int(v) for v in values)
    return first, second


MAKERS: Mapping[str, Callable[[Rng], Case]] = {
    "QLinearConv": conv,
    "QLinearMatMul": matmul,
    "QGemm": qgemm,
    "QLinearAdd": two_operands("add", AddAttrs, lambda a, b: float(np.hypot(a, b))),
    "QLinearMul": two_operands("mul", MulAttrs, lambda a, b: a * b),
    "QLinearAveragePool": average_pool,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearConcat": concat,
    "MaxPool": max_pool,
    "Requantize": requantize,
    "QuantizeLinear": quantize,
    "QLinearSigmoid": activation_function("sigmoid"),
    "QLinearLeakyRelu": activation_function("leaky_relu"),
    "Activation": any_function,
}


def random_case(kind: str, seed: int) -> Case:
    """Case number ``seed`` of an operator, the same on every machine."""
    return MAKERS[kind](np.random.default_rng([seed, sorted(MAKERS).index(kind)]))
