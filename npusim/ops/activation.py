"""Activation functions: codes to codes, one by one, so that each is a table of 256 codes.

All of them are here, one entry of ``_FUNCTIONS`` each, since they differ in the function alone.
Relu and Clip are none of them: they are bounds of the operator before (npusim.passes.activation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from npusim.errors import UnsupportedOp
from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics import code_tables, functions, rounding
from npusim.numerics.code_tables import Function
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_tables import QuadraticTable, RoundedTable, rounded_table
from npusim.numerics.profile import Profile
from npusim.ops.base import Lower, OnnxRow, OpSpec, Rule, register
from npusim.ops.neural_art_site import offset, output, signed, tensor
from npusim.ops.unit import QOperands, Step, Unit, operands_of

Inputs = tuple[Array | None, ...]
_TABLE = "elementwise:bind_unary"


@dataclass(frozen=True, slots=True)
class ActivationAttrs:
    """function: a key of ONNX. numbers: its numbers after x, in order.

    clamp: smallest and largest code the output may take (a fused Relu or Clip).
    """

    function: str
    numbers: tuple[float, ...] = ()
    clamp: tuple[int, int] = (-128, 127)


ONNX: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "sigmoid": functions.sigmoid,
        "tanh": functions.tanh,
        "hard_sigmoid": functions.hard_sigmoid,
        "hard_swish": functions.hard_swish,
        "leaky_relu": functions.leaky_relu,
        "elu": functions.elu,
        "selu": functions.selu,
        "softplus": functions.softplus,
        "softsign": functions.softsign,
        "mish": functions.mish,
        "swish": functions.swish,
        "gelu": functions.gelu,
        "gelu_tanh": functions.gelu_tanh,
    }
)
"""The functions as ONNX's float operators compute them."""

TFLITE: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        **{name: ONNX[name] for name in ("tanh", "elu", "gelu_tanh")},
        "sigmoid": functions.sigmoid_in_steps,
        "gelu": functions.gelu_by_erfc,
    }
)
"""Those that TFLite's kernels look up in tables, as they compute them."""


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.value(0).type.shape)


def _function(site: Site, known: Mapping[str, Callable[..., Array]] = ONNX) -> Function:
    attrs: ActivationAttrs = site.attrs
    which = known[attrs.function]
    return lambda x: which(x, *attrs.numbers)


def _first(site: Site) -> int:
    """The smallest code of the input; refuses types other than int8 and uint8."""
    return -128 + offset(site.value(0))


# -- rules -------------------------------------------------------------------------------------


def lower_float32(site: Site, profile: Profile) -> Lowered:
    return code_tables.through_float32(
        _function(site), site.qparams(0), _first(site), site.output_qparams, site.attrs.clamp
    )


def lower_lookup(site: Site, profile: Profile) -> Lowered:
    """TFLite's tables. Raises UnsupportedOp for an Elu that TFLite has not."""
    attrs: ActivationAttrs = site.attrs
    if attrs.function == "elu" and attrs.numbers != (1.0,):
        raise UnsupportedOp(
            "TFLite's Elu has no alpha", where=site.node.name, got=attrs.numbers[0], wanted=1.0
        )
    function = _function(site, TFLITE)
    return code_tables.by_reciprocal(
        function, site.qparams(0), _first(site), site.output_qparams, attrs.clamp
    )


def lower_leaky(how: str) -> Lower:
    def lower(site: Site, profile: Profile) -> Lowered:
        attrs: ActivationAttrs = site.attrs
        return code_tables.leaky_fixed_point(
            attrs.numbers[0], site.qparams(0), site.output_qparams, how, attrs.clamp
        )

    return lower


def lower_hard_swish(site: Site, profile: Profile) -> Lowered:
    return code_tables.hard_swish_fixed_point(
        site.qparams(0), site.output_qparams, site.attrs.clamp, site.node.name
    )


def reference(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    assert inputs[0] is not None
    assert isinstance(lowered, code_tables.OneOperand)
    return lowered.apply(inputs[0])


def lower_neural_art(site: Site, profile: Profile) -> Lowered:
    """The nearest code of the exact function: what the NPU's fitted rows approximate."""
    x, y = tensor(site, 0), output(site, site.attrs.clamp)
    with np.errstate(over="ignore"):
        return rounded_table(
            _function(site), (x.scale, x.zero_point), (y.scale, y.zero_point), (y.lo, y.hi)
        )


def reference_neural_art(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    """Rows that the user gave may leave the bounds of a fused Clip, so these come after."""
    assert isinstance(lowered, RoundedTable | QuadraticTable)
    codes = lowered.apply(signed(site, 0, inputs)) + offset(site.output)
    return rounding.saturate(codes, *site.attrs.clamp)


_ALWAYS = {
    "float32": Rule(lower_float32, reference, _TABLE),
    "neural-art": Rule(lower_neural_art, reference_neural_art, _TABLE),
}
_LOOKUP = {"lookup": Rule(lower_lookup, reference, _TABLE)}
_LEAKY = {
    "q31-double": Rule(lower_leaky("double"), reference, _TABLE),
    "q31-single": Rule(lower_leaky("single"), reference, _TABLE),
}
_HARD_SWISH = {"int16": Rule(lower_hard_swish, reference, _TABLE)}


# -- ONNX --------------------------------------------------------------------------------------


def _step(unit: Unit, op: str, function: str, numbers: tuple[float, ...]) -> Step:
    """Raises UnsupportedOp where a number is none, or infinite."""
    if not all(math.isfinite(n) for n in numbers):
        raise unit.refused("its attributes are no finite numbers", got=list(numbers))
    return Step(op, ActivationAttrs(function, numbers, unit.clamp), unit.names(0))


def _convert(op: str, defaults: Mapping[str, float], unit: Unit) -> Step:
    """An operator whose attributes are numbers; defaults: their names, in the function's order."""
    numbers = tuple(float(np.float32(unit.attr(k, v))) for k, v in defaults.items())
    return _step(unit, op, op, numbers)


def _convert_gelu(unit: Unit) -> Step:
    """Gelu by erf, or its approximation by tanh."""
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    how = unit.attr("approximate", "none")
    if how not in kinds:
        raise unit.refused("unknown approximation", got=how, wanted="none or tanh")
    return _step(unit, "gelu", kinds[how], ())


def _convert_prelu(unit: Unit) -> Step:
    """PRelu with one slope is a LeakyRelu."""
    codes, slope = unit.constant(1), unit.input(1)
    if codes is None or codes.size != 1:
        raise unit.refused(
            "only one slope for the whole tensor is supported", got=list(slope.type.shape)
        )
    if slope.qparams is None:
        raise unit.refused("slope is not quantized", got=slope.name)
    scale, zero_point = slope.qparams.scale[0], slope.qparams.zero_point[0]
    alpha = np.float32(int(codes.ravel()[0]) - zero_point) * np.float32(scale)
    return _step(unit, "leaky_relu", "leaky_relu", (float(alpha),))


def _from_qlinear(op: str, names: tuple[str, ...], node: Node) -> QOperands:
    """com.microsoft QLinearSigmoid and QLinearLeakyRelu: x, sx, zx, sy, zy."""
    x, sx, zx, sy, zy = operands_of(node, 4, 5)
    attrs = {k: v for k, v in node.attrs.items() if k in names}
    return QOperands(op, attrs, ((x, sx, zx),), (sy, zy))


def _row(
    onnx: str, since: tuple[int, ...], op: str, defaults: Mapping[str, float] | None = None
) -> OnnxRow:
    return OnnxRow(onnx, since, "qdq", partial(_convert, op, defaults or {}))


def _qlinear(onnx: str, names: tuple[str, ...] = ()) -> OnnxRow:
    convert = partial(_from_qlinear, onnx, names)
    return OnnxRow(f"QLinear{onnx}", (1,), "qoperator", convert, "com.microsoft")


_FUNCTIONS: tuple[tuple[str, str, tuple[OnnxRow, ...], Mapping[str, Rule]], ...] = (
    (
        "sigmoid",
        "1 / (1 + exp(-x)).",
        (_row("Sigmoid", (6, 13), "sigmoid"), _qlinear("Sigmoid")),
        _LOOKUP,
    ),
    ("tanh", "Hyperbolic tangent.", (_row("Tanh", (6, 13), "tanh"),), _LOOKUP),
    (
        "hard_sigmoid",
        "alpha x + beta, between 0 and 1.",
        (_row("HardSigmoid", (6, 22), "hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),),
        {},
    ),
    (
        "hard_swish",
        "x times a hard sigmoid.",
        (_row("HardSwish", (14, 22), "hard_swish"),),
        _HARD_SWISH,
    ),
    (
        "leaky_relu",
        "x, but alpha x below 0.",
        (
            _row("LeakyRelu", (6, 16), "leaky_relu", {"alpha": 0.01}),
            OnnxRow("PRelu", (7, 9, 16), "qdq", _convert_prelu),
            _qlinear("LeakyRelu", ("alpha",)),
        ),
        _LEAKY,
    ),
    (
        "elu",
        "x, but alpha (exp(x) - 1) below 0.",
        (_row("Elu", (6, 22), "elu", {"alpha": 1.0}),),
        _LOOKUP,
    ),
    (
        "selu",
        "gamma times elu.",
        (_row("Selu", (6, 22), "selu", {"alpha": 1.67326319217681, "gamma": 1.05070102214813}),),
        {},
    ),
    ("softplus", "log(1 + exp(x)).", (_row("Softplus", (1, 22), "softplus"),), {}),
    ("softsign", "x / (1 + |x|).", (_row("Softsign", (1, 22), "softsign"),), {}),
    ("mish", "x tanh(softplus(x)).", (_row("Mish", (18, 22), "mish"),), {}),
    ("swish", "x sigmoid(alpha x).", (_row("Swish", (24,), "swish", {"alpha": 1.0}),), {}),
    (
        "gelu",
        "x times the normal distribution function, or its approximation by tanh.",
        (OnnxRow("Gelu", (20,), "qdq", _convert_gelu),),
        _LOOKUP,
    ),
)
"""(name, summary, ONNX rows, rules beyond those of every function)."""

SPECS = tuple(
    register(OpSpec(name, summary, ActivationAttrs, infer, {**_ALWAYS, **rules}, rows))
    for name, summary, rows, rules in _FUNCTIONS
)
