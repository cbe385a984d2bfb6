"""Perturbation and sums over directions in plain NumPy: what npusim.zo.kernels must equal.

Both modules offer the same functions with the same arguments, so that training also works where
Numba is absent. All take a block of whole output channels of one tensor [O, P]; the arrays hold
only that block. A state's dtype says what it holds, see ``FRACTION_BITS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.zo.rng import Key, Purpose, directions

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
ACC_BLOCK = 256

#: How many of a state's lowest bits are a fraction of a code, by its dtype: int8 codes; int16 and
#: int32 masters of weights; int64 masters of biases.
FRACTION_BITS: Mapping[np.dtype[Any], int] = MappingProxyType(
    {
        np.dtype(np.int8): 0,
        np.dtype(np.int16): 8,
        np.dtype(np.int32): 16,
        np.dtype(np.int64): 8,
    }
)


class BlockStats(NamedTuple):
    """What an update did to a block of weights.

    changed: exposed codes that differ from before.
    saturated: exposed codes at an end of the tensor's range afterwards.
    still: weights that the update's own rounding left where they were.
    largest: largest step before rounding, in LSB.
    """

    changed: int
    saturated: int
    still: int
    largest: float


class Where(NamedTuple):
    """The random numbers' address of a block: first output channel, tensor id, step, key.

    purpose: SIGNS or GAUSSIAN, the distribution of the directions.
    """

    row: int
    tensor: int
    step: int
    key: Key
    purpose: Purpose = Purpose.SIGNS

    def directions(self, shape: tuple[int, int], k: int) -> npt.NDArray[np.int64]:
        """z of direction k for a block of this shape."""
        rows = range(self.row, self.row + shape[0])
        return directions(self.purpose, rows, shape[1], self.tensor, self.step, k, self.key)


def fraction_bits(dtype: np.dtype[Any]) -> int:
    """See FRACTION_BITS."""
    return FRACTION_BITS[dtype]


def exposed(state: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The codes of a state, rounded half up: int8 [O, P] of weights, int32 [O, 1] of biases."""
    bits = fraction_bits(state.dtype)
    if not bits:
        return state
    kind = np.int32 if state.dtype == np.int64 else np.int8
    wide: npt.NDArray[Any] = state.astype(np.int32 if state.dtype == np.int16 else np.int64)
    wide += 1 << bits >> 1
    wide >>= bits
    return wide.astype(kind)


def perturb(
    state: npt.NDArray[Any],
    out: npt.NDArray[Any],
    amounts: npt.NDArray[np.int64],
    sat: tuple[int, int],
    where: Where,
    k: int,
) -> None:
    """out = sat(w + amount * z_k), w the exposed codes of ``state``; ``state`` is not touched.

    Args:
        out: int8 (weights) or int32 (biases). amounts: int64 [R], signed, one an output channel.
    """
    z = where.directions((state.shape[0], state.shape[1]), k)
    out[...] = np.clip(exposed(state).astype(np.int64) + amounts[:, None] * z, *sat)


def sums(
    shape: tuple[int, int], coefficients: npt.NDArray[np.int64], where: Where
) -> npt.NDArray[np.int64]:
    """A_i = sum_k D_k z_ki, with the directions made anew from their numbers: int64 [R, P]."""
    total = np.zeros(shape, np.int64)
    for k, coefficient in enumerate(coefficients):
        if coefficient:
            total += coefficient * where.directions(shape, k)
    return total


def residual(
    masters: npt.NDArray[Any],
    coefficients: npt.NDArray[np.int64],
    rates: npt.NDArray[np.int64],
    scale: npt.NDArray[np.float64],
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """Replay-accumulate: M <- clamp(M - unit * delta), delta = (A * mult + 2^(sh-1)) >> sh.

    Args:
        masters: int16, int32 or int64 [R, P], changed in place.
        coefficients: D_k, int64 [q].
        rates: int64 [3, R], mult, shift and log2 of the unit of each output channel; the unit is
            how many fractions of the master one of delta is: 1 for weights, mu_b for biases.
        scale: float64 [R], the factor from A to LSB, for the statistics only.
    """
    total = sums((masters.shape[0], masters.shape[1]), coefficients, where)
    delta = shifted(total, rates[0], rates[1]) << rates[2][:, None]
    before = exposed(masters)
    low, high = (bound << fraction_bits(masters.dtype) for bound in sat)
    masters[...] = np.clip(masters.astype(np.int64) - delta, low, high)
    largest = float((np.abs(total).max(axis=1) * scale).max())
    return statistics(before, exposed(masters), sat, int(np.count_nonzero(delta == 0)), largest)


def shifted(
    total: npt.NDArray[np.int64], mult: npt.NDArray[np.int64], shift: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """delta = (A * mult + 2^(sh-1)) >> sh, saturated to int32; mult and shift one a row."""
    half = (np.int64(1) << shift >> 1)[:, None]
    delta: npt.NDArray[np.int64] = (total * mult[:, None] + half) >> shift[:, None]
    return np.clip(delta, INT32_MIN, INT32_MAX)


def statistics(
    before: npt.NDArray[Any],
    after: npt.NDArray[Any],
    sat: tuple[int, int],
    still: int,
    largest: float,
) -> BlockStats:
    """The statistics of an update from the exposed codes on both sides of it."""
    changed = int(np.count_nonzero(before != after))
    saturated = int(np.count_nonzero((after == sat[0]) | (after == sat[1])))
    return BlockStats(changed, saturated, still, largest)


def half_sums(
    shape: tuple[int, int], coefficients: npt.NDArray[np.float32], where: Where
) -> npt.NDArray[np.float32]:
    """g = fp16(f32(g) + z_k c_k), k ascending from g = 0: float16 values in float32 [R, P].

    Args:
        coefficients: c_k, float32 [q] holding float16 values.
    """
    g = np.zeros(shape, np.float16)
    for k, coefficient in enumerate(coefficients):
        z = where.directions(shape, k).astype(np.float32)
        g = (g.astype(np.float32) + z * coefficient).astype(np.float16)
    return g.astype(np.float32)


def block_sums(
    shape: tuple[int, int],
    coefficients: npt.NDArray[np.int64],
    bits: int,
    start: int,
    where: Where,
) -> npt.NDArray[np.int64]:
    """sum_k D_k z_k in a narrow accumulator with one exponent a block of 256 weights.

    acc += (z_k D_k + (1 << e >> 1)) >> e, k ascending; when max |acc| of a block reaches
    2^(bits-2), acc = (acc + 1) >> 1 and e += 1 there. A block is 256 consecutive positions of one
    output channel (the last may be shorter).

    Args:
        bits: of the accumulator, 16 or 8. start: e of every block at the step's start.

    Returns:
        acc << e, int64 [R, P].
    """
    blocks = -(-shape[1] // ACC_BLOCK)
    padding = ((0, 0), (0, blocks * ACC_BLOCK - shape[1]))
    acc = np.zeros((shape[0], blocks, ACC_BLOCK), np.int64)
    e = np.full((shape[0], blocks, 1), start, np.int64)
    for k, coefficient in enumerate(coefficients):
        z = np.pad(where.directions(shape, k), padding).reshape(acc.shape)
        used = np.pad(np.ones(shape, np.int64), padding).reshape(acc.shape)
        acc += used * ((z * coefficient + (np.int64(1) << e >> 1)) >> e)
        full = np.abs(acc).max(axis=2, keepdims=True) >= 1 << (bits - 2)
        acc = np.where(full, (acc + 1) >> 1, acc)
        e += full
    return (acc << e).reshape(shape[0], -1)[:, : shape[1]]
