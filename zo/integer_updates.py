"""Update modes that store nothing but int8 codes, and compute in integers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from npusim.zo.rates import StepSize, per_row, rate_plan
from npusim.zo.reference import BlockStats, Where, exposed, shifted, statistics
from npusim.zo.tensors import Trained
from npusim.zo.updates import CodesOnly, Int64, Kernels, Past, Residual, Update, largest_z, masters

DECAY = 230
"""A residual that is made anew forgets: 230 / 256 of it lasts a step."""

_MOST_SHIFT = 54  # so that 2^(shift + 7) plus a product below 2^62 stays inside int64


@dataclass(frozen=True, slots=True)
class ReplayResidual(CodesOnly):
    """The residual of the last steps made anew from their random numbers: no state at all.

    E = 0; for the last ``history`` steps, oldest first: U = delta_j + ((E * 230) >> 8);
    dW = (U + 128) >> 8; E = U - (dW << 8). Then w = sat(w - dW of the newest). Costs ``history``
    times the sign passes of ``residual``.
    """

    name: ClassVar[str] = "replay-residual"
    default_scaling: ClassVar[str] = "linear"
    history: int = 8

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        return rate_plan(size, 8, tensor.rho)

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        shape = (state.shape[0], state.shape[1])
        kept: Int64 = np.zeros(shape, np.int64)
        for step in past:
            total = kernels.sums(shape, step.coefficients, where._replace(step=step.step))
            mult, shift = (per_row(step.plan, n, where.row, len(state)) for n in ("mult", "shift"))
            wanted = shifted(total, mult, shift) + ((kept * DECAY) >> 8)
            move = (wanted + 128) >> 8
            kept = wanted - (move << 8)
        before = state.copy()
        state[...] = np.clip(state - move, *tensor.sat)
        still = int(np.count_nonzero(move == 0))
        largest = float(np.abs(wanted).max()) / 256
        return statistics(before, state, tensor.sat, still, largest)


@dataclass(frozen=True, slots=True)
class NarrowAccumulator:
    """The step's sum in int16 or int8, with one exponent a block of 256 weights.

    e = max(0, bit_length(max |D_k| max |z|) - 8) (int8: - 3) at the step's start; acc += (s_k D_k +
    (1 << e >> 1)) >> e, k ascending; a block whose max |acc| reaches 2^14 (int8: 2^6) is halved.
    At the end A = acc << e moves the weight: w = sat(w - ((A mult + 2^(sh+7)) >> (sh+8))), or,
    with ``keep``, an int16 master as in ``residual``.

    bits: 16 or 8. A block is 256 consecutive positions of one output channel.
    """

    name: ClassVar[str] = "int8-acc"
    default_scaling: ClassVar[str] = "linear"
    history: ClassVar[int] = 1
    bits: int = 16
    keep: bool = False

    def init(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return masters(codes, 8) if self.keep else codes.copy()

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        return rate_plan(size, 8, tensor.rho, _MOST_SHIFT)

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        now, shape = past[-1], (state.shape[0], state.shape[1])
        largest = int(np.abs(now.coefficients).max()) * largest_z(where.purpose)
        start = max(0, largest.bit_length() - (8 if self.bits == 16 else 3))
        total = kernels.block_sums(shape, now.coefficients, self.bits, start, where)
        mult, shift = (per_row(now.plan, n, where.row, len(state)) for n in ("mult", "shift"))
        delta = shifted(total, mult, shift if self.keep else shift + 8)
        before = exposed(state).copy()
        low, high = (bound * (256 if self.keep else 1) for bound in tensor.sat)
        state[...] = np.clip(state.astype(np.int64) - delta, low, high)
        still = int(np.count_nonzero(delta == 0))
        scale = np.ldexp(mult.astype(np.float64), -shift - 8)[:, None]
        return statistics(
            before, exposed(state), tensor.sat, still, float((np.abs(total) * scale).max())
        )

    def frozen(self, still: int, moves: int) -> bool:
        """As in the mode that it stands for: half of the moves nil, or all without a residual."""
        return 2 * still > moves if self.keep else still == moves

    def for_bias(self) -> Update:
        return Residual()
