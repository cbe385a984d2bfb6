"""The activation functions against their textbook forms, in both precisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npusim.numerics import functions

# The ends show that nothing overflows; 0 and small numbers are where terms cancel.
POINTS = np.array([-90, -9.5, -3, -2.5, -1, -0.3, -1e-3, 0, 1e-3, 0.4, 1, 2.5, 3, 8, 90.0])


def logistic(x: float) -> float:
    return math.exp(min(x, 0)) / (1 + math.exp(-abs(x)))


def normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def log_sum(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def cubic(x: float) -> float:
    return math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


TEXTBOOK: dict[str, tuple[tuple[float, ...], Callable[[float], float]]] = {
    "sigmoid": ((), logistic),
    "sigmoid_in_steps": ((), logistic),
    "tanh": ((), math.tanh),
    "hard_sigmoid": ((0.25, 0.4), lambda x: min(max(0.25 * x + 0.4, 0.0), 1.0)),
    "hard_swish": ((), lambda x: x * min(max(x + 3, 0.0), 6.0) / 6),
    "leaky_relu": ((-0.2,), lambda x: x if x > 0 else -0.2 * x),
    "elu": ((1.5,), lambda x: x if x > 0 else 1.5 * math.expm1(x)),
    "selu": ((1.5, 1.1), lambda x: 1.1 * (x if x > 0 else 1.5 * math.expm1(x))),
    "softplus": ((), log_sum),
    "softsign": ((), lambda x: x / (1 + abs(x))),
    "mish": ((), lambda x: x * math.tanh(log_sum(x))),
    "swish": ((1.5,), lambda x: x * logistic(1.5 * x)),
    "gelu": ((), lambda x: x * normal(x)),
    "gelu_by_erfc": ((), lambda x: x * normal(x)),
    "gelu_tanh": ((), lambda x: x / 2 * (1 + cubic(x))),
}


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_function(name: str, dtype: str) -> None:
    numbers, textbook = TEXTBOOK[name]
    x = POINTS.astype(dtype)
    y = getattr(functions, name)(x, *numbers)
    assert y.dtype == dtype
    unit = np.finfo(dtype).eps
    wanted = np.array([textbook(float(v)) for v in x])
    # Cancellation of 1 and terms near it loses absolute, not relative, precision.
    assert np.abs(y - wanted).max() <= 4 * unit * np.abs(wanted).max()
    near = np.abs(x) <= 3
    assert np.abs(y - wanted)[near].max() <= 4 * unit * max(1.0, np.abs(wanted[near]).max())


def test_the_two_sigmoids_differ_in_the_last_bit() -> None:
    """Which of them a runtime computes decides codes at ties."""
    x = (np.arange(1, 256) / 512).astype(np.float32)
    once, in_steps = functions.sigmoid(x), functions.sigmoid_in_steps(x)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.array_equal(once, exact.astype(np.float32))
    different: Any = once != in_steps
    assert 0 < np.count_nonzero(different) < x.size
    assert np.abs(once - in_steps).max() <= np.finfo(np.float32).eps
    assert in_steps[0] == np.float32(1) / (1 + np.float32(math.exp(-float(x[0]))))


def test_float32_rounds_after_every_operation() -> None:
    x = np.array([0.7, -1.3], np.float32)
    f32 = np.float32
    e = np.exp(x.astype(np.float64)).astype(np.float32)
    assert functions.elu(x, 0.3)[1] == f32(0.3) * (e[1] - f32(1))
    assert functions.hard_sigmoid(x, 0.2, 0.5)[0] == f32(0.2) * x[0] + f32(0.5)
    assert functions.softsign(x)[1] == x[1] * (1 / (1 + f32(1.3)))
    root = f32(math.sqrt(0.5))
    erf = f32(math.erf(float(x[0] * root)))
    assert functions.gelu(x)[0] == f32(0.5) * x[0] * (1 + erf)
