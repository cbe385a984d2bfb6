"""Random directions for npusim.zo.kernels: sixteen units of 128 weights at a time.

The counters of sixteen units of one tensor are the lanes of one vector, whatever its shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.kernels.jit import njit_kernel
from npusim.zo.rng import KEY_INCREMENTS, MASK32, MULTIPLIERS, POSITION_BITS, Purpose

LANES = 16
UNIT = 128

_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(KEY_INCREMENTS[0]), np.uint64(KEY_INCREMENTS[1])
_MASK = np.uint64(MASK32)
_HALF = np.uint64(32)
_BYTE = np.uint64(255)
_POSITION_BITS = np.uint64(POSITION_BITS)
GAUSSIAN = int(Purpose.GAUSSIAN)
_BLOCK_MASK = np.uint64((1 << POSITION_BITS) - 1)
PURPOSE_SHIFT = np.uint64(16)
_COUNTERS = UNIT // 4  # counters of a unit of integer Gaussians: one word a weight

# The eight signs of a byte of random bits, as one 64-bit store.
_SIGNS = (
    np.array([[1 - 2 * (byte >> j & 1) for j in range(8)] for byte in range(256)], np.int8)
    .view(np.uint64)
    .ravel()
)


@njit_kernel
def philox(first: Any, second: Any, step: Any, k: Any, key: Any, words: Any) -> Any:
    """Ten rounds on sixteen counters that differ in their first word; words: uint32 [4, 16]."""
    for lane in range(LANES):
        c0, c1, c2, c3 = first[lane], second, step, k
        k0, k1 = key
        for _ in range(10):
            low = _M0 * c0
            high = _M1 * c2
            c0 = (high >> _HALF) ^ c1 ^ k0
            c1 = high & _MASK
            c2 = (low >> _HALF) ^ c3 ^ k1
            c3 = low & _MASK
            k0 = (k0 + _W0) & _MASK
            k1 = (k1 + _W1) & _MASK
        words[0, lane] = c0
        words[1, lane] = c1
        words[2, lane] = c2
        words[3, lane] = c3


@njit_kernel
def _fill_signs(words: Any, z: Any) -> Any:
    """The 128 signs of each lane; z: int8 [16, 128]."""
    out = z.view(np.uint64)
    for lane in range(LANES):
        for w in range(4):
            word = np.uint64(words[w, lane])
            out[lane, 4 * w] = _SIGNS[word & _BYTE]
            out[lane, 4 * w + 1] = _SIGNS[(word >> np.uint64(8)) & _BYTE]
            out[lane, 4 * w + 2] = _SIGNS[(word >> np.uint64(16)) & _BYTE]
            out[lane, 4 * w + 3] = _SIGNS[(word >> np.uint64(24)) & _BYTE]


@njit_kernel
def _popcount(word: Any) -> Any:
    """How many of 32 bits are set; word: uint64 below 2^32."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x55555555))
    word = (word & np.uint64(0x33333333)) + ((word >> np.uint64(2)) & np.uint64(0x33333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    return ((word * np.uint64(0x01010101)) & _MASK) >> np.uint64(24)


@njit_kernel
def _fill_gaussians(counters: Any, second: Any, step: Any, k: Any, key: Any, z: Any) -> Any:
    """The 128 integer Gaussians of each unit: 32 counters of four weights."""
    first, words = np.empty(LANES, np.uint64), np.empty((4, LANES), np.uint32)
    for lane in range(LANES):
        block = counters[lane] & _BLOCK_MASK
        start = counters[lane] - block + block * np.uint64(_COUNTERS)
        for half in range(_COUNTERS // LANES):
            for i in range(LANES):
                first[i] = (start + np.uint64(half * LANES + i)) & _MASK
            philox(first, second, step, k, key, words)
            for i in range(LANES):
                for w in range(4):
                    bits = np.int64(_popcount(np.uint64(words[w, i])))
                    z[lane, (half * LANES + i) * 4 + w] = np.int8(bits - 16)


@njit_kernel
def locate(unit: Any, blocks: Any, row: Any, counters: Any) -> Any:
    """The first counter words of the signs of sixteen units; a row has ``blocks`` of them."""
    o, block = row + unit // blocks, unit % blocks
    for lane in range(LANES):
        counters[lane] = ((np.uint64(o) << _POSITION_BITS) | np.uint64(block)) & _MASK
        block += 1
        if block == blocks:
            o, block = o + 1, 0


@njit_kernel
def fill(counters: Any, place: Any, k: Any, key: Any, words: Any, z: Any) -> Any:
    """Direction k of sixteen units; place: int64 [4], see _place."""
    step, direction = np.uint64(place[2]), np.uint64(k)
    second = np.uint64(place[1]) | (np.uint64(place[3]) << PURPOSE_SHIFT)
    if place[3] == GAUSSIAN:
        _fill_gaussians(counters, second, step, direction, key, z)
    else:
        philox(counters, second, step, direction, key, words)
        _fill_signs(words, z)


@njit_kernel
def memory() -> Any:
    """Scratch for counters, random words and directions of sixteen units."""
    z = np.empty((LANES, UNIT), np.int8)
    return np.empty(LANES, np.uint64), np.empty((4, LANES), np.uint32), z
