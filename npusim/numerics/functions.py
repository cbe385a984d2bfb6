"""Activation functions of real numbers, step by step in the precision of their argument.

Each takes and returns a vector of float32 or float64. In float32 every operation rounds as the
float kernels of onnxruntime do, in the same order, but for exp, log, tanh and erf: their last bit
differs between libraries and processors, so they are computed in float64 and rounded once, which
is the same everywhere. In float64 a function is as good as exact for 8-bit codes.

Branches are written as minimum and maximum: where one side is 0 the sum is exact.
Sources: ONNX's operator definitions; docs/numerics.md has the comparisons.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[Any]

_ROOT_HALF = math.sqrt(0.5)
_CUBIC = 0.044715
"""Factor of x**3 in Gelu's approximation by tanh."""


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)), rounded once."""
    return (1 / (1 + _exp(-x.astype(np.float64)))).astype(x.dtype)


def sigmoid_in_steps(x: Real) -> Real:
    """The same with every operation rounded."""
    return 1 / (1 + _exp(-x))


def tanh(x: Real) -> Real:
    return np.tanh(x.astype(np.float64)).astype(x.dtype)


def hard_sigmoid(x: Real, alpha: float, beta: float) -> Real:
    """alpha * x + beta, at least 0 and at most 1."""
    return np.maximum(np.minimum(alpha * x + beta, 1), 0)


def hard_swish(x: Real) -> Real:
    """x times the hard sigmoid with alpha 1/6 and beta 1/2."""
    return x * hard_sigmoid(x, 1 / 6, 0.5)


def leaky_relu(x: Real, alpha: float) -> Real:
    """x, but alpha * x below 0."""
    return np.maximum(x, 0) + alpha * np.minimum(x, 0)


def elu(x: Real, alpha: float) -> Real:
    """x, but alpha * (exp(x) - 1) below 0."""
    return np.maximum(x, 0) + alpha * (_exp(np.minimum(x, 0)) - 1)


def selu(x: Real, alpha: float, gamma: float) -> Real:
    """gamma * elu(x)."""
    return gamma * elu(x, alpha)


def softplus(x: Real) -> Real:
    """log(1 + exp(x)), written so that nothing overflows."""
    return np.maximum(x, 0) + _log(1 + _exp(-np.abs(x)))


def softsign(x: Real) -> Real:
    """x / (1 + abs(x)), by way of the reciprocal."""
    return x * (1 / (1 + np.abs(x)))


def mish(x: Real) -> Real:
    """x * tanh(softplus(x))."""
    return x * tanh(softplus(x))


def swish(x: Real, alpha: float) -> Real:
    """x * sigmoid(alpha * x)."""
    return x * sigmoid(alpha * x)


def gelu(x: Real) -> Real:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    y: Real = 0.5 * x * (1 + _erf(x * _ROOT_HALF))
    return y


def gelu_by_erfc(x: Real) -> Real:
    """The same as x / 2 * erfc(-x / sqrt(2)): TFLite's way."""
    y: Real = 0.5 * x * _erfc(x * -_ROOT_HALF)
    return y


def gelu_tanh(x: Real) -> Real:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    inner = math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)
    y: Real = 0.5 * x * (1 + tanh(inner))
    return y


def _exp(x: Real) -> Real:
    with np.errstate(over="ignore"):  # infinity is right where it leads to 0
        return np.exp(x.astype(np.float64)).astype(x.dtype)


def _log(x: Real) -> Real:
    return np.log(x.astype(np.float64)).astype(x.dtype)


def _erf(x: Real) -> Real:
    return np.array([math.erf(v) for v in x], x.dtype)


def _erfc(x: Real) -> Real:
    return np.array([math.erfc(v) for v in x], x.dtype)
