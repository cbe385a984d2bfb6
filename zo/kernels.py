"""The Numba versions of npusim.zo.reference: same functions, same arguments, same bits.

A tensor is visited in units of 128 weights of one output channel, sixteen units at a time: their
Philox counters are the lanes of one vector, whatever the shape of the tensor. Directions are made,
used and forgotten there, so that an update needs no gradient buffer. All release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.kernels.jit import njit_kernel
from npusim.kernels.signs import add_where_set
from npusim.zo.direction_kernels import (
    GAUSSIAN,
    LANES,
    PURPOSE_SHIFT,
    UNIT,
    fill,
    locate,
    memory,
    philox,
)
from npusim.zo.reference import BlockStats, Where, exposed, fraction_bits
from npusim.zo.rng import Purpose

__all__ = ["block_sums", "exposed", "half_sums", "perturb", "residual", "sums"]

_SUBNORMAL_BELOW = np.float32(2.0**-14)
_SUBNORMAL_MAGIC = np.float32(0.75)  # float32 has steps of 2^-24 here, as float16 near zero
_ROUND_DOWN_BIAS = np.uint32(0x0FFF)
_LOW_BIT = np.uint32(13)
_KEEP = np.uint32(0xFFFFE000)


@njit_kernel
def _perturb(
    state: Any, out: Any, bits: Any, amounts: Any, sat: Any, place: Any, k: Any, key: Any
) -> Any:
    rows, positions = state.shape
    blocks = (positions + UNIT - 1) // UNIT
    counters, words, z = memory()
    half = (1 << bits) >> 1
    for group in range(0, rows * blocks, LANES):
        locate(group, blocks, place[0], counters)
        fill(counters, place, k, key, words, z)
        for lane in range(min(LANES, rows * blocks - group)):
            r, start = (group + lane) // blocks, (group + lane) % blocks * UNIT
            amount, signs = amounts[r], z[lane]
            old = state[r, start : start + UNIT]
            new = out[r, start : start + UNIT]
            for i in range(old.shape[0]):
                moved = ((np.int64(old[i]) + half) >> bits) + amount * signs[i]
                new[i] = min(max(moved, sat[0]), sat[1])


@njit_kernel
def _add(total: Any, coefficient: Any, z: Any) -> Any:
    """total[16, 128] += D_k z_k, in the integers of ``total``."""
    for lane in range(LANES):
        for i in range(UNIT):
            total[lane, i] += coefficient * z[lane, i]


@njit_kernel
def _add_signs(
    coefficients: Any, counters: Any, place: Any, key: Any, words: Any, total: Any
) -> Any:
    """int32 sums of signs: all positive at first, then -2 D_k where the bit is set."""
    second, step = (
        np.uint64(place[1]) | (np.uint64(place[3]) << PURPOSE_SHIFT),
        np.uint64(place[2]),
    )
    start = np.int64(0)
    for k in range(coefficients.shape[0]):
        start += coefficients[k]
    total[:] = start
    for k in range(coefficients.shape[0]):
        philox(counters, second, step, np.uint64(k), key, words)
        add_where_set(total.ctypes.data, words.ctypes.data, LANES, LANES, -2 * coefficients[k])


@njit_kernel
def _group_sums(
    counters: Any, coefficients: Any, place: Any, key: Any, words: Any, z: Any, total: Any
) -> Any:
    if total.itemsize == 4 and place[3] != GAUSSIAN:
        _add_signs(coefficients, counters, place, key, words, total)
        return
    total[:] = 0
    for k in range(coefficients.shape[0]):
        fill(counters, place, k, key, words, z)
        _add(total, coefficients[k], z)


@njit_kernel
def _move_masters(
    masters: Any, total: Any, mult: Any, shift: Any, unit: Any, bits: Any, sat: Any, stats: Any
) -> Any:
    """One unit's update; stats: int64 [4], changed, saturated, still, largest |A|.

    mult: int32, so that a product of a 32-bit sum is one instruction.
    """
    half = (np.int64(1) << shift) >> 1
    low, high = np.int64(sat[0]) << bits, np.int64(sat[1]) << bits
    exposed_half = (np.int64(1) << bits) >> 1
    changed = saturated = still = largest = np.int64(0)
    for i in range(masters.shape[0]):
        a = np.int64(total[i])
        delta = (a * np.int64(mult) + half) >> shift
        delta = min(max(delta, np.int64(-0x80000000)), np.int64(0x7FFFFFFF)) << unit
        old = np.int64(masters[i])
        new = min(max(old - delta, low), high)
        masters[i] = new
        code = (new + exposed_half) >> bits
        changed += np.int64(code != (old + exposed_half) >> bits)
        saturated += np.int64((code == sat[0]) | (code == sat[1]))
        still += np.int64(delta == 0)
        largest = max(largest, abs(a))
    stats[0] += changed
    stats[1] += saturated
    stats[2] += still
    stats[3] = max(stats[3], largest)


@njit_kernel
def _residual(
    masters: Any, coefficients: Any, rates: Any, scale: Any, bits: Any, sat: Any, place: Any,
    key: Any, total: Any,
) -> Any:  # fmt: skip
    """rates: mult, shift and log2 unit, int64 [R] each. total: scratch of the width of the sums."""
    rows, positions = masters.shape
    blocks = (positions + UNIT - 1) // UNIT
    counters, words, z = memory()
    stats = np.zeros(4, np.int64)
    largest = 0.0
    for group in range(0, rows * blocks, LANES):
        locate(group, blocks, place[0], counters)
        _group_sums(counters, coefficients, place, key, words, z, total)
        for lane in range(min(LANES, rows * blocks - group)):
            r, start = (group + lane) // blocks, (group + lane) % blocks * UNIT
            stats[3] = 0
            block = masters[r, start : start + UNIT]
            mult, shift, unit = np.int32(rates[0, r]), rates[1, r], rates[2, r]
            _move_masters(block, total[lane], mult, shift, unit, bits, sat, stats)
            largest = max(largest, stats[3] * scale[r])
    return stats[0], stats[1], stats[2], largest


@njit_kernel
def _sums(out: Any, coefficients: Any, place: Any, key: Any, total: Any) -> Any:
    rows, positions = out.shape
    blocks = (positions + UNIT - 1) // UNIT
    counters, words, z = memory()
    for group in range(0, rows * blocks, LANES):
        locate(group, blocks, place[0], counters)
        _group_sums(counters, coefficients, place, key, words, z, total)
        for lane in range(min(LANES, rows * blocks - group)):
            r, start = (group + lane) // blocks, (group + lane) % blocks * UNIT
            part = out[r, start : start + UNIT]
            for i in range(part.shape[0]):
                part[i] = total[lane, i]


@njit_kernel
def _add_half(g: Any, coefficient: Any, z: Any) -> Any:
    """g[128] = fp16(g + z c_k), values of float16 in float32; below 65520 only."""
    bits = g.view(np.uint32)
    for i in range(UNIT):
        x = g[i] + np.float32(z[i]) * coefficient
        g[i] = x
        tiny = (x + _SUBNORMAL_MAGIC) - _SUBNORMAL_MAGIC
        odd = (bits[i] >> _LOW_BIT) & np.uint32(1)
        bits[i] = np.uint32(bits[i] + _ROUND_DOWN_BIAS + odd) & _KEEP
        g[i] = tiny if abs(x) < _SUBNORMAL_BELOW else g[i]


@njit_kernel
def _half_sums(out: Any, coefficients: Any, place: Any, key: Any) -> Any:
    rows, positions = out.shape
    blocks = (positions + UNIT - 1) // UNIT
    counters, words, z = memory()
    g = np.empty((LANES, UNIT), np.float32)
    for group in range(0, rows * blocks, LANES):
        locate(group, blocks, place[0], counters)
        g[:] = 0
        for k in range(coefficients.shape[0]):
            fill(counters, place, k, key, words, z)
            for lane in range(LANES):
                _add_half(g[lane], coefficients[k], z[lane])
        for lane in range(min(LANES, rows * blocks - group)):
            r, start = (group + lane) // blocks, (group + lane) % blocks * UNIT
            part = out[r, start : start + UNIT]
            part[:] = g[lane, : part.shape[0]]


@njit_kernel
def _halve_if_full(acc: Any, exponent: Any, limit: Any) -> Any:
    """One block's accumulator after an addition; returns its exponent."""
    largest = np.int64(0)
    for i in range(acc.shape[0]):
        largest = max(largest, abs(np.int64(acc[i])))
    if largest < limit:
        return exponent
    for i in range(acc.shape[0]):
        acc[i] = (np.int64(acc[i]) + 1) >> 1
    return exponent + 1


@njit_kernel
def _block_sums(
    out: Any, coefficients: Any, start: Any, limit: Any, place: Any, key: Any, acc: Any
) -> Any:
    """acc: scratch [16, 128] of the accumulator's type; blocks of 256 are two lanes."""
    rows, positions = out.shape
    blocks = (positions + 2 * UNIT - 1) // (2 * UNIT) * 2
    counters, words, z = memory()
    exponents = np.empty(LANES // 2, np.int64)
    pairs = acc.reshape((LANES // 2, 2 * UNIT))
    for group in range(0, rows * blocks, LANES):
        locate(group, blocks, place[0], counters)
        acc[:] = 0
        exponents[:] = start
        count = min(LANES, rows * blocks - group) // 2
        for k in range(coefficients.shape[0]):
            fill(counters, place, k, key, words, z)
            signs = z.reshape((LANES // 2, 2 * UNIT))
            for b in range(count):
                first = (group + 2 * b) % blocks * UNIT
                size = min(2 * UNIT, positions - first)
                e = exponents[b]
                half = (np.int64(1) << e) >> 1
                for i in range(size):
                    pairs[b, i] += (signs[b, i] * coefficients[k] + half) >> e
                exponents[b] = _halve_if_full(pairs[b, :size], e, limit)
        for b in range(count):
            r, first = (group + 2 * b) // blocks, (group + 2 * b) % blocks * UNIT
            part = out[r, first : first + 2 * UNIT]
            for i in range(part.shape[0]):
                part[i] = np.int64(pairs[b, i]) << exponents[b]


def _place(where: Where) -> tuple[npt.NDArray[np.int64], tuple[np.uint64, np.uint64]]:
    place = np.array([where.row, where.tensor, where.step, where.purpose], np.int64)
    return place, (np.uint64(where.key[0]), np.uint64(where.key[1]))


def _narrowed(
    coefficients: npt.NDArray[np.int64], largest: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Coefficients, and scratch of 32 bits where no sum can leave them, else of 64.

    largest: largest |z|.
    """
    fits = sum(abs(int(d)) for d in coefficients) * largest < 1 << 31
    kind = np.int32 if fits else np.int64
    return coefficients, np.empty((LANES, UNIT), kind)


def _largest(where: Where) -> int:
    return 16 if where.purpose == Purpose.GAUSSIAN else 1


def perturb(
    state: npt.NDArray[Any],
    out: npt.NDArray[Any],
    amounts: npt.NDArray[np.int64],
    sat: tuple[int, int],
    where: Where,
    k: int,
) -> None:
    """See npusim.zo.reference.perturb."""
    place, key = _place(where)
    _perturb(state, out, fraction_bits(state.dtype), amounts, sat, place, k, key)


def residual(
    masters: npt.NDArray[Any],
    coefficients: npt.NDArray[np.int64],
    rates: npt.NDArray[np.int64],
    scale: npt.NDArray[np.float64],
    sat: tuple[int, int],
    where: Where,
) -> BlockStats:
    """See npusim.zo.reference.residual."""
    place, key = _place(where)
    narrow, total = _narrowed(coefficients, _largest(where))
    bits = fraction_bits(masters.dtype)
    return BlockStats(*_residual(masters, narrow, rates, scale, bits, sat, place, key, total))


def sums(
    shape: tuple[int, int], coefficients: npt.NDArray[np.int64], where: Where
) -> npt.NDArray[np.int64]:
    """See npusim.zo.reference.sums."""
    place, key = _place(where)
    narrow, total = _narrowed(coefficients, _largest(where))
    out = np.empty(shape, np.int64)
    _sums(out, narrow, place, key, total)
    return out


def half_sums(
    shape: tuple[int, int], coefficients: npt.NDArray[np.float32], where: Where
) -> npt.NDArray[np.float32]:
    """See npusim.zo.reference.half_sums."""
    place, key = _place(where)
    out = np.empty(shape, np.float32)
    _half_sums(out, coefficients, place, key)
    return out


def block_sums(
    shape: tuple[int, int],
    coefficients: npt.NDArray[np.int64],
    bits: int,
    start: int,
    where: Where,
) -> npt.NDArray[np.int64]:
    """See npusim.zo.reference.block_sums."""
    place, key = _place(where)
    out = np.empty(shape, np.int64)
    kind = np.int16 if bits == 16 else np.int8
    limit = 1 << (bits - 2)
    _block_sums(out, coefficients, start, limit, place, key, np.empty((LANES, UNIT), kind))
    return out
