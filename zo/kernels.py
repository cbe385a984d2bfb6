"""The Numba versions of npusim.zo.reference: same functions, same arguments, same bits.

They make no array as large as a tensor: one Philox block of 128 signs at a time is made, used and
forgotten, so that an update needs no gradient buffer. All release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.kernels.jit import njit_kernel
from npusim.zo.reference import BlockStats, Where, exposed
from npusim.zo.rng import KEY_INCREMENTS, MASK32, MULTIPLIERS, POSITION_BITS

__all__ = ["exposed", "faithful", "perturb", "residual"]

_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(KEY_INCREMENTS[0]), np.uint64(KEY_INCREMENTS[1])
_MASK = np.uint64(MASK32)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_BLOCK = 128
_POSITION_BITS = np.uint64(POSITION_BITS)

_SUBNORMAL_BELOW = np.float32(2.0**-14)
_SUBNORMAL_MAGIC = np.float32(0.75)  # float32 has steps of 2^-24 here, as float16 near zero
_ROUND_DOWN_BIAS = np.uint32(0x0FFF)
_LOW_BIT = np.uint32(13)
_KEEP = np.uint32(0xFFFFE000)


@njit_kernel
def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, words: Any) -> Any:
    """Ten rounds on one counter; all arguments uint64 below 2^32; words: uint64 [4]."""
    for _ in range(10):
        low = _M0 * c0
        high = _M1 * c2
        c0 = (high >> _HALF) ^ c1 ^ k0
        c1 = high & _MASK
        c2 = (low >> _HALF) ^ c3 ^ k1
        c3 = low & _MASK
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    words[0] = c0
    words[1] = c1
    words[2] = c2
    words[3] = c3


@njit_kernel
def _block_words(row: Any, block: Any, tensor: Any, step: Any, k: Any, key: Any, words: Any) -> Any:
    """The 128 sign bits of one block of positions of one output channel."""
    first = (np.uint64(row) << _POSITION_BITS) | np.uint64(block)
    _philox(first, np.uint64(tensor), np.uint64(step), np.uint64(k), key[0], key[1], words)


@njit_kernel
def _perturb(
    state: Any,
    out: Any,
    bits: Any,
    amount: Any,
    sat: Any,
    row: Any,
    tensor: Any,
    step: Any,
    k: Any,
    key: Any,
) -> Any:
    rows, positions = state.shape
    words = np.empty(4, np.uint64)
    half = (1 << bits) >> 1
    for r in range(rows):
        for start in range(0, positions, 32):
            if start & (_BLOCK - 1) == 0:
                _block_words(row + r, start >> 7, tensor, step, k, key, words)
            word = words[(start >> 5) & 3]
            for i in range(start, min(start + 32, positions)):
                negative = np.int64((word >> np.uint64(i - start)) & _ONE)
                moved = ((np.int64(state[r, i]) + half) >> bits) + ((amount ^ -negative) + negative)
                out[r, i] = min(max(moved, sat[0]), sat[1])


@njit_kernel
def _add_direction(total: Any, coefficient: Any, words: Any) -> Any:
    """total[128] += D_k s_k, without a branch: -x is (x ^ -1) + 1."""
    for w in range(4):
        word = words[w]
        for j in range(32):
            negative = np.int64((word >> np.uint64(j)) & _ONE)
            total[w * 32 + j] += (coefficient ^ -negative) + negative


@njit_kernel
def _move_masters(masters: Any, total: Any, mult: Any, shift: Any, sat: Any, stats: Any) -> Any:
    """One block's update; stats: int64 [4], changed, saturated, still, largest |A|."""
    half = (np.int64(1) << shift) >> 1
    low, high = np.int64(sat[0]), np.int64(sat[1])
    for i in range(masters.shape[0]):
        delta = (total[i] * mult + half) >> shift
        delta = min(max(delta, np.int64(-0x80000000)), np.int64(0x7FFFFFFF))
        old = np.int64(masters[i])
        new = min(max(old - delta, low * 256), high * 256)
        masters[i] = new
        code = (new + 128) >> 8
        stats[0] += code != (old + 128) >> 8
        stats[1] += (code == low) | (code == high)
        stats[2] += delta == 0
        stats[3] = max(stats[3], abs(total[i]))


@njit_kernel
def _residual(
    masters: Any,
    coefficients: Any,
    mult: Any,
    shift: Any,
    scale: Any,
    sat: Any,
    row: Any,
    tensor: Any,
    step: Any,
    key: Any,
) -> Any:
    rows, positions = masters.shape
    words = np.empty(4, np.uint64)
    total = np.empty(_BLOCK, np.int64)
    stats = np.zeros(4, np.int64)
    largest = 0.0
    for r in range(rows):
        stats[3] = 0
        for start in range(0, positions, _BLOCK):
            total[:] = 0
            for k in range(coefficients.shape[0]):
                _block_words(row + r, start >> 7, tensor, step, k, key, words)
                _add_direction(total, coefficients[k], words)
            block = masters[r, start : start + _BLOCK]
            _move_masters(block, total, mult[r], shift[r], sat, stats)
        largest = max(largest, stats[3] * scale[r])
    return stats[0], stats[1], stats[2], largest


@njit_kernel
def _add_single(g: Any, coefficient: Any, words: Any) -> Any:
    """g[128] += s_k c_k in float32: the product with a sign is exact."""
    for w in range(4):
        word = words[w]
        for j in range(32):
            sign = np.float32(1 - 2 * np.int32((word >> np.uint64(j)) & _ONE))
            g[w * 32 + j] += sign * coefficient


@njit_kernel
def _round_to_half(values: Any) -> Any:
    """Round float32 [128] to the nearest float16 values, ties to even; below 65520 only."""
    bits = values.view(np.uint32)
    for i in range(_BLOCK):
        x = values[i]
        tiny = (x + _SUBNORMAL_MAGIC) - _SUBNORMAL_MAGIC
        odd = (bits[i] >> _LOW_BIT) & np.uint32(1)
        bits[i] = np.uint32(bits[i] + _ROUND_DOWN_BIAS + odd) & _KEEP
        values[i] = tiny if abs(x) < _SUBNORMAL_BELOW else values[i]


@njit_kernel
def _move_codes(codes: Any, g: Any, eta: Any, sat: Any, stats: Any) -> Any:
    """One block's update; stats: int64 [3]; returns the largest move in LSB."""
    largest = np.float32(0)
    low, high = np.float32(sat[0]), np.float32(sat[1])
    for i in range(codes.shape[0]):
        move = np.float32(eta * g[i])
        old = np.float32(codes[i])
        wanted = np.rint(np.float32(old - move))
        new = min(max(wanted, low), high)
        codes[i] = np.int8(new)
        stats[0] += new != old
        stats[1] += (new == low) | (new == high)
        stats[2] += wanted == old
        largest = max(largest, abs(move))
    return largest


@njit_kernel
def _faithful(
    codes: Any, coefficients: Any, eta: Any, sat: Any, row: Any, tensor: Any, step: Any, key: Any
) -> Any:
    rows, positions = codes.shape
    words = np.empty(4, np.uint64)
    g = np.empty(_BLOCK, np.float32)
    stats = np.zeros(3, np.int64)
    largest = np.float32(0)
    for r in range(rows):
        for start in range(0, positions, _BLOCK):
            g[:] = 0
            for k in range(coefficients.shape[0]):
                _block_words(row + r, start >> 7, tensor, step, k, key, words)
                _add_single(g, coefficients[k], words)
                _round_to_half(g)
            block = codes[r, start : start + _BLOCK]
            largest = max(largest, _move_codes(block, g, eta, sat, stats))
    return stats[0], stats[1], stats[2], float(largest)


def _key(where: Where) -> tuple[np.uint64, np.uint64]:
    return np.uint64(where.key[0]), np.uint64(where.key[1])


def perturb(
    state: npt.NDArray[Any],
    out: npt.NDArray[np.int8],
    fraction_bits: int,
    amount: int,
    sat: tuple[int, int],
    where: Where,
    k: int,
) -> None:
    """See npusim.zo.reference.perturb."""
    row, tensor, step, _ = where
    _perturb(state, out, fraction_bits, amount, sat, row, tensor, step, k, _key(where))


def residual(
    masters: npt.NDArray[np.int16],
    coefficients: npt.NDArray[np.int64],
    mult: npt.NDArray[np.int64],
    shift: npt.NDArray[np.int64],
    scale: npt.NDArray[np.float64],
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """See npusim.zo.reference.residual."""
    row, tensor, step, _ = where
    return BlockStats(
        *_residual(masters, coefficients, mult, shift, scale, sat, row, tensor, step, _key(where))
    )


def faithful(
    codes: npt.NDArray[np.int8],
    coefficients: npt.NDArray[np.float32],
    eta: np.float32,
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """See npusim.zo.reference.faithful."""
    row, tensor, step, _ = where
    return BlockStats(
        *_faithful(codes, coefficients, np.float32(eta), sat, row, tensor, step, _key(where))
    )
