"""Coefficients and the constants of the updates."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from npusim.errors import NumericsError, UsageError
from npusim.zo.algorithm import compose
from npusim.zo.estimator import Evaluation, TwoSided, check_width
from npusim.zo.rates import StepSize, fixed_point
from npusim.zo.settings import Settings
from npusim.zo.tensors import Trained
from npusim.zo.updates import Faithful, Residual, half_coefficients

TENSOR = Trained(0, "w", "layer", (3, 5), (-127, 127))


def test_two_sided_coefficients_are_exact_differences() -> None:
    estimator = TwoSided()
    assert estimator.evaluations(2) == (
        Evaluation(0, 1), Evaluation(0, -1), Evaluation(1, 1), Evaluation(1, -1),
    )  # fmt: skip
    losses = np.array([10, 3, 2**40, 2**40 + 1], np.int64)
    assert estimator.coefficients(losses).tolist() == [7, -1]


def test_overflow_is_refused_before_the_first_step() -> None:
    estimator = TwoSided()
    largest = (2**47 - 1) // 640
    check_width(estimator, 64, 10, largest)
    with pytest.raises(NumericsError, match="overflow") as caught:
        check_width(estimator, 64, 10, largest + 1)
    assert "--batch" in str(caught.value)


@pytest.mark.parametrize("value", [2.0**-30, 1.35e-5, 0.3, 1 - 2.0**-20, 1.0, 7.9, 32767.4])
def test_rates_are_15_bit_mantissas(value: float) -> None:
    mult, shift = fixed_point(value)
    assert 2**14 <= mult < 2**15
    assert 0 <= shift <= 62
    assert abs(Fraction(mult, 2**shift) / Fraction(value) - 1) <= Fraction(1, 2**15)


@pytest.mark.parametrize("value", [0.0, -1.0, 32768.0, 2.0**-60, float("inf"), float("nan")])
def test_rates_that_do_not_fit_are_refused(value: float) -> None:
    with pytest.raises(NumericsError, match="learning rate"):
        fixed_point(value)


def test_the_residual_rate_divides_by_q_and_mu_once() -> None:
    """w -= eta/q sum_k (dL_k / 2 mu) s_k with dL in nats of the batch mean."""
    q, batch, mu, eta = 4, 10, 2, 0.8
    plan = Residual().plan(StepSize(q, batch, TwoSided().divisor(q, mu), eta), TENSOR)
    losses_bits = 3.0  # sum over the batch of L+ - L-, in bits
    delta = losses_bits * 65536 * plan["mult"] / 2 ** plan["shift"] / 256
    nats = losses_bits * math.log(2) / batch
    assert delta == pytest.approx(eta / q * nats / (2 * mu), rel=2**-14)


def test_the_faithful_coefficient_divides_by_q_and_mu_once() -> None:
    q, batch, mu = 4, 10, 2
    plan = Faithful().plan(StepSize(q, batch, TwoSided().divisor(q, mu), 0.8), TENSOR)
    half = half_coefficients(np.array([3 * 65536]), plan["batch"], plan["divisor"])
    assert float(half[0]) == pytest.approx(3 * math.log(2) / batch / (2 * mu) / q, rel=1e-3)


def test_linear_scaling_gives_every_forward_pass_the_same_drift() -> None:
    fixed = [compose(Settings(q=f"fixed:{q}")) for q in (1, 4, 64)]
    for algorithm, q in zip(fixed, (1, 4, 64), strict=True):
        assert algorithm.eta(q, 0) / (2 * q * 10) == pytest.approx(0.01)
    unscaled = compose(Settings(q="fixed:64", lr=0.3, lr_scaling="none"))
    assert unscaled.eta(64, 0) == 0.3


def test_a_coefficient_beyond_float16_is_an_error() -> None:
    q, divisor = 4, 16
    at_limit = 65504 / q * divisor / math.log(2)  # batch 1: in units of 2^-16 bit below
    fits = int(at_limit * 65536 * 0.999)
    assert np.isfinite(half_coefficients(np.array([fits] + [0] * 3), 1, divisor)).all()
    with pytest.raises(NumericsError, match="float16"):
        half_coefficients(np.array([int(at_limit * 65536 * 1.001)] + [0] * 3), 1, divisor)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"q": "fixed:0"}, "--q"),
        ({"q": "linear"}, "--q"),
        ({"update": "adam"}, "adam"),
        ({"batch": 0}, "--batch"),
        ({"q_max": 0}, "--q-max"),
        ({"mu": 128}, "--mu"),
        ({"window": 0}, "--window"),
        ({"lr": 0.0}, "--lr"),
        ({"lr": float("nan")}, "--lr"),
        ({"lr_scaling": "sqrt"}, "--lr-scaling"),
    ],
)
def test_bad_settings_name_their_option(changes: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        compose(Settings(**changes))  # type: ignore[arg-type]


def test_the_scheduler_is_capped() -> None:
    assert compose(Settings(q_max=16)).scheduler.qs == (1, 2, 4, 8, 16)
