"""Which losses a step measures, and the integer coefficients D_k made of them.

The gradient estimate of a step is g = sum_k D_k z_k ln2 / (B 2^16 N), with D_k an exact integer
of summed Q16 losses, B the batch and N the estimator's own divisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError

_LIMIT_BITS = 62
_MULTIPLIER_BITS = 15


class Evaluation(NamedTuple):
    """One forward pass over the batch at w + side * mu * z_k."""

    k: int
    side: int


@dataclass(frozen=True, slots=True)
class TwoSided:
    """Central differences: D_k = sum L(w + mu z_k) - sum L(w - mu z_k); 2q forward passes.

    Source: Spall, "Multivariate stochastic approximation using a simultaneous perturbation
    gradient approximation" (IEEE Trans. Autom. Control 37, 1992), averaged over q directions.
    """

    name: ClassVar[str] = "two-sided"

    def evaluations(self, q: int) -> tuple[Evaluation, ...]:
        """In the order in which ``coefficients`` expects their losses."""
        return tuple(Evaluation(k, side) for k in range(q) for side in (1, -1))

    def coefficients(self, losses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """D_k from the batch sums of the Q16 losses.

        Args:
            losses: int64 [2q], plus and minus of each direction in turn.

        Returns:
            int64 [q].
        """
        pairs = losses.reshape(-1, 2)
        difference: npt.NDArray[np.int64] = pairs[:, 0] - pairs[:, 1]
        return difference

    def divisor(self, q: int, mu: int) -> int:
        """N: two-sided differences are divided by 2 mu, and directions are averaged, once."""
        return 2 * mu * q

    def largest_sum(self, q: int, batch: int, largest_loss: int) -> int:
        """A bound on |sum_k D_k s_k| for losses in 0..largest_loss."""
        return batch * q * largest_loss


def check_width(estimator: TwoSided, q: int, batch: int, largest_loss: int) -> None:
    """Refuse what could overflow int64 in A * mult + rounding, before step 0.

    Raises NumericsError unless largest_sum * 2^15 < 2^62.
    """
    bits = estimator.largest_sum(q, batch, largest_loss) << _MULTIPLIER_BITS
    if bits >= 1 << _LIMIT_BITS:
        raise NumericsError(
            "the sum over a step's directions could overflow 64 bits",
            where="training",
            got=f"batch {batch}, q {q}, largest loss {largest_loss} / 2^16 bits",
            wanted=f"batch * q * largest loss * 2^{_MULTIPLIER_BITS} below 2^{_LIMIT_BITS}",
            hint="Use a smaller --batch or fewer directions (--q, --q-max).",
        )
