"""Coefficients of the estimators: exact integers, unbiased, bounded; and theory's numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from npusim.errors import NumericsError, UsageError
from npusim.zo.algorithm import compose
from npusim.zo.directions import DIRECTIONS, Rademacher, layer_of
from npusim.zo.estimator import (
    ESTIMATORS,
    Evaluation,
    LeaveOneOut,
    OneSided,
    check_width,
    clipped,
    make_estimator,
)
from npusim.zo.reference import Where
from npusim.zo.settings import Settings

Array = npt.NDArray[np.float64]


def test_leave_one_out_coefficients_sum_to_zero() -> None:
    estimator = LeaveOneOut()
    assert estimator.evaluations(3) == tuple(Evaluation(k, 1) for k in range(3))
    losses = np.array([10, 3, 2**40], np.int64)
    found = estimator.coefficients(losses)
    assert found.tolist() == [3 * x - int(losses.sum()) for x in losses.tolist()]
    assert found.sum() == 0


def test_one_sided_coefficients_are_differences_to_the_base() -> None:
    estimator = OneSided()
    assert estimator.evaluations(2) == (Evaluation(0, 0), Evaluation(0, 1), Evaluation(1, 1))
    assert estimator.coefficients(np.array([7, 10, 5])).tolist() == [3, -2]


def estimate(name: str, loss: Callable[[Array], float], w: Array, q: int, step: int) -> Array:
    """g of one step on a function of real weights, in the estimator's own units."""
    estimator, direction = make_estimator(name), Rademacher()
    where, mu = Where(0, 0, step, (1, 2), direction.purpose), 2
    z = [where.directions((1, len(w)), k)[0] for k in range(q)]
    losses = [loss(w + e.side * mu * z[e.k]) for e in estimator.evaluations(q)]
    d = estimator.coefficients(np.array([round(x * 2**20) for x in losses], np.int64))
    total = sum(int(c) * s for c, s in zip(d, z, strict=True))
    return np.asarray(total / 2**20 / estimator.divisor(q, mu), np.float64)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("q", [2, 5])
def test_the_mean_estimate_is_the_gradient(name: str, q: int) -> None:
    """Neither 1/mu nor q enters twice: over many steps the mean is the gradient itself."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=12)

    def loss(w: Array) -> float:
        return float(gradient @ w) + 50.0

    found = np.mean([estimate(name, loss, np.zeros(12), q, t) for t in range(600)], axis=0)
    noise = np.linalg.norm(gradient) / np.sqrt(600 * q)
    assert np.abs(found - gradient).max() < 5 * noise


def test_leave_one_out_cancels_the_bias_of_second_order() -> None:
    """For Rademacher z a diagonal quadratic adds the same to every loss."""
    curvature = np.arange(1.0, 9.0)

    def loss(w: Array) -> float:
        return float((curvature * w * w).sum())

    assert not estimate("leave-one-out", loss, np.zeros(8), 4, 0).any()
    assert estimate("one-sided", loss, np.zeros(8), 4, 0).any()


@pytest.mark.parametrize("q", [1, 4, 16])
def test_the_expected_size_of_an_estimate(q: int) -> None:
    """Rademacher: E ||g_hat||^2 = ((d + q - 1) / q) ||g||^2."""
    rng = np.random.default_rng(q)
    d, steps = 60, 200
    gradient = rng.normal(size=d)
    sizes = [
        (estimate("two-sided", lambda w: float(gradient @ w), np.zeros(d), q, t) ** 2).sum()
        for t in range(steps)
    ]
    wanted = (d + q - 1) / q * (gradient**2).sum()
    assert abs(np.mean(sizes) - wanted) < 5 * np.std(sizes) / np.sqrt(steps)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_second_moments_of_the_directions(name: str) -> None:
    direction = DIRECTIONS[name]()
    z = Where(0, 0, 0, (3, 4), direction.purpose).directions((200, 500), 0).astype(float)
    assert abs(z.mean()) < 5 * np.sqrt(direction.second_moment / z.size)
    assert (z**2).mean() == pytest.approx(direction.second_moment, rel=0.02)
    assert np.abs(z).max() <= direction.largest


@pytest.mark.parametrize(("name", "factor"), [("one-sided", 1), ("leave-one-out", 16)])
def test_the_width_check_knows_the_estimator(name: str, factor: int) -> None:
    estimator = make_estimator(name)
    largest = (2**47 - 1) // (16 * 10 * factor)
    check_width(estimator, 16, 10, largest)
    for wrong in ({"largest_loss": largest + 1}, {"largest_z": 2}, {"q": 17}):
        arguments = {"q": 16, "batch": 10, "largest_loss": largest, "largest_z": 1, **wrong}
        with pytest.raises(NumericsError, match="overflow"):
            check_width(estimator, **arguments)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_coefficients_sum_beyond_the_bound(name: str) -> None:
    rng, estimator = np.random.default_rng(1), make_estimator(name)
    for q in (2, 3, 8):
        count = len(estimator.evaluations(q))
        for _ in range(50):
            losses = rng.choice([0, 1000], count) * 10
            found = int(np.abs(estimator.coefficients(losses)).sum())
            assert found <= estimator.largest_sum(q, 10, 1000)


def test_clipping_waits_for_medians_and_then_limits() -> None:
    d = np.array([5, -100, 7])
    medians: tuple[int, ...] = ()
    for _ in range(8):
        found, medians = clipped(d, medians, 2.0)
        assert found.tolist() == [5, -100, 7]
    assert medians == (7,) * 8
    found, after = clipped(d, medians, 2.0)
    assert found.tolist() == [5, -14, 7]
    assert after == (7,) * 9
    assert clipped(d, (1,) * 64, 1.0)[1] == (*(1,) * 63, 7)
    assert clipped(d, medians, 0.0)[0] is d


def test_leave_one_out_needs_two_directions() -> None:
    with pytest.raises(UsageError, match="leave-one-out needs more"):
        compose(Settings(sides="leave-one-out", q="fixed:1"))
    assert compose(Settings(sides="leave-one-out")).scheduler.qs == (2, 4, 8, 16, 32, 64)


def test_layers_are_drawn_with_equal_odds() -> None:
    found = [layer_of(5, step, k, (1, 2)) for step in range(200) for k in range(10)]
    counts = np.bincount(found, minlength=5)
    assert counts.sum() == 2000
    assert counts.min() > 320
    assert len(counts) == 5
