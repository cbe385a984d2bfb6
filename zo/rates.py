"""Learning rates as integers: how far a step's sums move a weight, mult * 2^-shift a channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError

LN2 = math.log(2.0)
MULT_BITS = 15
MAX_SHIFT = 62


class StepSize(NamedTuple):
    """What the size of one step's move of one tensor depends on.

    q, batch: directions and images of the step. divisor: N of the estimator for this tensor.
    eta: learning rate of the step, LSB^2 per nat: w -= eta / q * sum_k dL_k / (2 mu) s_k.
    loss_bits: fraction bits of the summed losses (16 for the integer loss).
    largest: a bound on |sum_k D_k z_k|.
    """

    q: int
    batch: int
    divisor: float
    eta: float
    loss_bits: int = 16
    largest: int = 0

    @property
    def nats(self) -> float:
        """From D_k to nats of the batch mean an LSB, before averaging: ln2 / (B 2^bits N)."""
        return LN2 / (self.batch * 2.0**self.loss_bits * self.divisor)


class Rate(NamedTuple):
    """value / 2^-16-bit-sums to moves: mult * 2^-shift."""

    mult: int
    shift: int


def fixed_point(value: float, most: int = MAX_SHIFT) -> Rate:
    """The closest mult * 2^-shift with mult in [2^14, 2^15) and shift in 0..most.

    Raises NumericsError where the value is out of that range.
    """
    mantissa, exponent = math.frexp(value) if math.isfinite(value) else (0.0, 0)
    mult = round(mantissa * 2.0**MULT_BITS)
    if mult == 1 << MULT_BITS:
        mult, exponent = mult >> 1, exponent + 1
    shift = MULT_BITS - exponent
    if mult < 1 << (MULT_BITS - 1) or not 0 <= shift <= most:
        raise NumericsError(
            "the learning rate does not fit the integer update",
            where="--lr",
            got=f"a move of {value:g} fractions of an LSB per unit of loss",
            wanted=f"2^-{most - MULT_BITS + 1} .. 2^{MULT_BITS}",
        )
    return Rate(mult, shift)


def rate_plan(
    size: StepSize, bits: int, rho: npt.NDArray[np.float64], most: int = MAX_SHIFT
) -> dict[str, Any]:
    """mult and shift of eta_step ln2 2^bits rho_c / (B 2^16 N), as JSON.

    One number each where all channels have the same, else a list with one a channel.

    Args:
        bits: fraction bits of what is moved. rho: float64 [O]. most: largest shift.
    """
    value = size.eta * size.nats * 2.0**bits
    rates = [fixed_point(value * float(r), most) for r in rho]
    if len(set(rates)) == 1:
        return {"mult": rates[0].mult, "shift": rates[0].shift}
    return {"mult": [r.mult for r in rates], "shift": [r.shift for r in rates]}


def per_row(plan: Mapping[str, Any], name: str, row: int, rows: int) -> npt.NDArray[np.int64]:
    """A plan's entry for ``rows`` output channels from ``row`` on: int64 [rows]."""
    value = plan[name]
    if isinstance(value, list):
        return np.array(value[row : row + rows], np.int64)
    return np.full(rows, value, np.int64)
