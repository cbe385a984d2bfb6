"""Setting and copying parts of arrays.

Numba compiles a broadcasting assignment anew wherever one stands, which takes longer than
the kernels around it; these loops are compiled once for every type.
"""

from __future__ import annotations

from typing import Any

from npusim.kernels.jit import njit_kernel


@njit_kernel
def fill(to: Any, value: Any) -> None:
    """Every element of a vector becomes ``value``."""
    for i in range(len(to)):
        to[i] = value


@njit_kernel
def copy(source: Any, to: Any) -> None:
    """The first elements of a vector become those of another."""
    for i in range(len(source)):
        to[i] = source[i]
