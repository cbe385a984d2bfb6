"""npusim.statistics: Wilson's interval against its definition and published values."""

from __future__ import annotations

import doctest

import pytest

import npusim.statistics
from npusim.statistics import wilson


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(npusim.statistics)
    assert result.attempted == 2
    assert result.failed == 0


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(correct: int, total: int, low: float, high: float) -> None:
    assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("correct", range(8))
def test_the_ends_solve_the_score_equation(correct: int) -> None:
    # |p^ - p| = z sqrt(p (1 - p) / n) defines both ends.
    for end in wilson(correct, 7, 0.9):
        distance = abs(correct / 7 - end)
        assert distance == pytest.approx(1.6448536 * (end * (1 - end) / 7) ** 0.5, abs=1e-7)


def test_a_wider_confidence_is_a_wider_interval() -> None:
    assert wilson(5, 9, 0.99)[0] < wilson(5, 9, 0.9)[0] < wilson(5, 9, 0.9)[1]


@pytest.mark.parametrize(("correct", "total"), [(0, 0), (-1, 5), (6, 5)])
def test_no_proportion(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson(correct, total)
