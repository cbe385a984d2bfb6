"""Perturbation and weight updates in plain NumPy: what npusim.zo.kernels must equal bit for bit.

Both modules offer the same functions with the same arguments, so that training also works where
Numba is absent. All take a block of whole output channels, ``rows``, of one tensor [O, P]; the
arrays hold only that block. Masters are int16 multiples of 1/256 LSB, codes are int8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.zo.rng import Key, signs

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


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
    """The random numbers' address of a block: first output channel, tensor id, step, key."""

    row: int
    tensor: int
    step: int
    key: Key


def exposed(state: npt.NDArray[Any], fraction_bits: int) -> npt.NDArray[np.int8]:
    """The codes of a state whose lowest ``fraction_bits`` are a fraction: rounded, half up."""
    if not fraction_bits:
        return state.astype(np.int8)
    return ((state.astype(np.int32) + (1 << fraction_bits >> 1)) >> fraction_bits).astype(np.int8)


def perturb(
    state: npt.NDArray[Any],
    out: npt.NDArray[np.int8],
    fraction_bits: int,
    amount: int,
    sat: tuple[int, int],
    where: Where,
    k: int,
) -> None:
    """out = sat(w + amount * s_k), w the exposed codes of ``state``; ``state`` is not touched."""
    rows = range(where.row, where.row + len(state))
    z = signs(rows, state.shape[1], where.tensor, where.step, k, where.key)
    out[...] = np.clip(exposed(state, fraction_bits) + amount * z, *sat)


def residual(
    masters: npt.NDArray[np.int16],
    coefficients: npt.NDArray[np.int64],
    mult: npt.NDArray[np.int64],
    shift: npt.NDArray[np.int64],
    scale: npt.NDArray[np.float64],
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """Replay-accumulate: M <- clamp(M - delta) with the directions made anew from their numbers.

    A_i = sum_k D_k s_ki; delta_i = (A_i * mult + 2^(sh-1)) >> sh, saturated to int32.

    Args:
        masters: int16 [R, P], changed in place.
        coefficients: D_k, int64 [q].
        mult, shift: int64 [R], the fixed-point rate of each output channel.
        scale: float64 [R], mult * 2^-shift / 256, for the statistics only.
    """
    rows = range(where.row, where.row + len(masters))
    total = np.zeros(masters.shape, np.int64)
    for k, coefficient in enumerate(coefficients):
        z = signs(rows, masters.shape[1], where.tensor, where.step, k, where.key)
        total += coefficient * z
    half = (np.int64(1) << shift >> 1)[:, None]
    delta = np.clip((total * mult[:, None] + half) >> shift[:, None], INT32_MIN, INT32_MAX)
    before = exposed(masters, 8)
    low, high = sat
    masters[...] = np.clip(masters.astype(np.int64) - delta, low * 256, high * 256)
    after = exposed(masters, 8)
    return BlockStats(
        int(np.count_nonzero(before != after)),
        int(np.count_nonzero((after == low) | (after == high))),
        int(np.count_nonzero(delta == 0)),
        float((np.abs(total).max(axis=1) * scale).max()),
    )


def faithful(
    codes: npt.NDArray[np.int8],
    coefficients: npt.NDArray[np.float32],
    eta: np.float32,
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """g = fp16(f32(g) + s_k c_k), k ascending; w = sat(rint(f32(w) - f32(eta * g))).

    Args:
        codes: int8 [R, P], changed in place.
        coefficients: c_k, float32 [q] holding float16 values.
        eta: the learning rate of the step, LSB^2 per nat.
    """
    rows = range(where.row, where.row + len(codes))
    g = np.zeros(codes.shape, np.float16)
    for k, coefficient in enumerate(coefficients):
        z = signs(rows, codes.shape[1], where.tensor, where.step, k, where.key)
        g = (g.astype(np.float32) + z.astype(np.float32) * coefficient).astype(np.float16)
    move = np.float32(eta) * g.astype(np.float32)
    wanted = np.rint(codes.astype(np.float32) - move)
    low, high = sat
    after = np.clip(wanted, low, high).astype(np.int8)
    stats = BlockStats(
        int(np.count_nonzero(codes != after)),
        int(np.count_nonzero((after == low) | (after == high))),
        int(np.count_nonzero(wanted == codes)),
        float(np.abs(move).max()),
    )
    codes[...] = after
    return stats
