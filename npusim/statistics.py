"""Confidence intervals of what is counted."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927).

    Args:
        correct: successes, 0..total.
        total: trials, at least 1.
        confidence: probability that the interval is to cover, in (0, 1).

    Returns:
        (low, high), both in [0, 1].

    >>> low, high = wilson(8, 10)
    >>> f"{low:.4f} {high:.4f}"
    '0.4902 0.9433'
    """
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"{correct} successes of {total} trials are no proportion")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = correct / total, z * z / total
    centre = share + spread / 2
    half = sqrt(spread * share * (1 - share) + spread * spread / 4)
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))
