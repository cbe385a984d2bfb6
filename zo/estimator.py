"""Which losses a step measures, and the integer coefficients D_k made of them.

The gradient estimate of a step is g = sum_k D_k z_k ln2 / (B 2^16 N), with D_k an exact integer
of summed Q16 losses, B the batch and N the estimator's own divisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError, UsageError

_LIMIT_BITS = 62
_MULTIPLIER_BITS = 15
_CLIP_HISTORY = 64
_CLIP_LEAST = 8

Int64 = npt.NDArray[np.int64]


class Evaluation(NamedTuple):
    """One forward pass over the batch at w + side * mu * z_k; side 0 is w itself."""

    k: int
    side: int


@dataclass(frozen=True, slots=True)
class TwoSided:
    """Central differences: D_k = sum L(w + mu z_k) - sum L(w - mu z_k); 2q forward passes.

    Source: Spall, "Multivariate stochastic approximation using a simultaneous perturbation
    gradient approximation" (IEEE Trans. Autom. Control 37, 1992), averaged over q directions.
    """

    name: ClassVar[str] = "two-sided"
    least_q: ClassVar[int] = 1
    grows: ClassVar[bool] = True

    def evaluations(self, q: int) -> tuple[Evaluation, ...]:
        """In the order in which ``coefficients`` expects their losses."""
        return tuple(Evaluation(k, side) for k in range(q) for side in (1, -1))

    def coefficients(self, losses: Int64) -> Int64:
        """D_k from the batch sums of the Q16 losses.

        Args:
            losses: int64, one an evaluation, in their order.

        Returns:
            int64 [q].
        """
        pairs = losses.reshape(-1, 2)
        difference: Int64 = pairs[:, 0] - pairs[:, 1]
        return difference

    def divisor(self, q: int, mu: int) -> int:
        """N: two-sided differences are divided by 2 mu, and directions are averaged, once."""
        return 2 * mu * q

    def largest_sum(self, q: int, batch: int, largest_loss: int) -> int:
        """A bound on sum_k |D_k| for losses in 0..largest_loss."""
        return batch * q * largest_loss


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Each loss against the mean of the others: D_k = q L_k - sum_j L_j, q forward passes.

    The D_k sum to 0; for Rademacher z the bias of second order cancels. Source: the leave-one-out
    baseline of Kool, van Hoof, Welling, "Buy 4 REINFORCE samples, get a baseline for free!"
    (ICLR workshop 2019), for one-sided differences.
    """

    name: ClassVar[str] = "leave-one-out"
    least_q: ClassVar[int] = 2
    grows: ClassVar[bool] = False  # every D_k depends on q

    def evaluations(self, q: int) -> tuple[Evaluation, ...]:
        return tuple(Evaluation(k, 1) for k in range(q))

    def coefficients(self, losses: Int64) -> Int64:
        difference: Int64 = len(losses) * losses - losses.sum()
        return difference

    def divisor(self, q: int, mu: int) -> int:
        """N: D_k is (q - 1) times the difference to the others' mean."""
        return mu * q * (q - 1)

    def largest_sum(self, q: int, batch: int, largest_loss: int) -> int:
        return batch * q * largest_loss * q


@dataclass(frozen=True, slots=True)
class OneSided:
    """Forward differences against the unperturbed loss: D_k = L_k - L_0, q + 1 forward passes."""

    name: ClassVar[str] = "one-sided"
    least_q: ClassVar[int] = 1
    grows: ClassVar[bool] = True

    def evaluations(self, q: int) -> tuple[Evaluation, ...]:
        return (Evaluation(0, 0), *(Evaluation(k, 1) for k in range(q)))

    def coefficients(self, losses: Int64) -> Int64:
        difference: Int64 = losses[1:] - losses[0]
        return difference

    def divisor(self, q: int, mu: int) -> int:
        return mu * q

    def largest_sum(self, q: int, batch: int, largest_loss: int) -> int:
        return batch * q * largest_loss


Estimator = TwoSided | LeaveOneOut | OneSided

ESTIMATORS: Mapping[str, type[Estimator]] = MappingProxyType(
    {kind.name: kind for kind in (TwoSided, LeaveOneOut, OneSided)}
)


def make_estimator(name: str) -> Estimator:
    """The estimator of this name; raises UsageError with the names there are."""
    if name not in ESTIMATORS:
        raise UsageError(
            "unknown estimator", where=f"--sides {name}", wanted=" or ".join(ESTIMATORS)
        )
    return ESTIMATORS[name]()


def check_width(
    estimator: Estimator, q: int, batch: int, largest_loss: int, largest_z: int = 1
) -> None:
    """Refuse what could overflow int64 in A * mult + rounding, before step 0.

    Raises NumericsError unless largest_sum * largest |z| * 2^15 < 2^62.
    """
    bits = (estimator.largest_sum(q, batch, largest_loss) * largest_z) << _MULTIPLIER_BITS
    if bits >= 1 << _LIMIT_BITS:
        raise NumericsError(
            "the sum over a step's directions could overflow 64 bits",
            where="training",
            got=f"batch {batch}, q {q}, largest loss {largest_loss} / 2^16 bits",
            wanted=f"largest sum of {estimator.name} coefficients * 2^{_MULTIPLIER_BITS} below "
            f"2^{_LIMIT_BITS}",
            hint="Use a smaller --batch or fewer directions (--q, --q-max).",
        )


def clipped(
    coefficients: Int64, medians: tuple[int, ...], factor: float
) -> tuple[Int64, tuple[int, ...]]:
    """Limit |D_k| to ``factor`` times the running median, in integers.

    The running median is the lower median of the last 64 steps' own lower medians of |D_k| (before
    clipping); it limits nothing until there are 8.

    Args:
        medians: of the earlier steps, oldest first. factor: 0 clips nothing; in thousandths.

    Returns:
        The coefficients to use, and the medians with this step's.
    """
    if not factor:
        return coefficients, medians
    size = np.sort(np.abs(coefficients))
    after = (*medians, int(size[(len(size) - 1) // 2]))[-_CLIP_HISTORY:]
    if len(medians) < _CLIP_LEAST:
        return coefficients, after
    limit = round(factor * 1000) * sorted(medians)[(len(medians) - 1) // 2] // 1000
    return np.clip(coefficients, -limit, limit), after
