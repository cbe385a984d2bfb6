"""The int16 streams between the units of an NPU that rounds while it sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.kernels.jit import njit_kernel

HALF_AWAY, HALF_UP, HALF_EVEN, FLOOR = range(4)
TIES = {"half_away": HALF_AWAY, "half_up": HALF_UP, "half_even": HALF_EVEN, "floor": FLOOR}

INT16_MIN, INT16_MAX = np.int64(-(2**15)), np.int64(2**15 - 1)


@njit_kernel
def shift_right(value: Any, shift: Any, ties: Any) -> Any:
    """int64 value / 2**shift, rounded by one of TIES; a shift of 0 changes nothing."""
    if shift == 0 or ties == FLOOR:
        return value >> shift
    half = np.int64(1) << (shift - 1)
    if ties == HALF_AWAY:
        return (value + half + (value >> 63)) >> shift
    if ties == HALF_UP:
        return (value + half) >> shift
    return (value + half - 1 + ((value >> shift) & 1)) >> shift


@njit_kernel
def add_pass(sums: Any, piece: Any, shift: Any, ties: Any) -> Any:
    """piece = sat16(round((sum + (piece << shift)) >> shift)); returns how many saturated."""
    saturated = np.int64(0)
    for i in range(len(sums)):
        raised = np.int64(sums[i]) + (np.int64(piece[i]) << shift)
        rounded = shift_right(raised, shift, ties)
        clipped = min(max(rounded, INT16_MIN), INT16_MAX)
        saturated += np.int64(clipped != rounded)
        piece[i] = np.int32(clipped)
    return saturated
