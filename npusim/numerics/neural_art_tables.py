"""Activation functions on the neural-art NPU: int8 to int8 by table.

The unit evaluates a piecewise quadratic on the raw code. Its rows are fitted by the vendor's
compiler and lie in a network's ROM data; where they are known they are used (QuadraticTable).
Where they are not, a correctly rounded table stands in, and says that it is not silicon's.

Evidence: form of the tables and of the evaluation [inferred]; rows [unknown without ROM data].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npusim.ir import Array
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import SHIFTS
from npusim.numerics.neural_art_lowering import round_real
from npusim.numerics.requant import read_only
from npusim.numerics.rounding import Int64

_SEGMENT_BITS = 4
"""Outer segments are 16 codes wide; there are 16 of them."""

_ROW_BITS = 6
"""Low bits of a ROM0 byte that name the first row of the segment."""


@dataclass(frozen=True)
class RoundedTable(Lowered):
    """codes: int64 [256], the output of every signed code from -128 on. silicon: always False."""

    codes: Int64
    silicon: bool = False

    def apply(self, x: Int64) -> Int64:
        """Output codes of signed codes."""
        values: Int64 = self.codes[x + 128]
        return values


@dataclass(frozen=True)
class QuadraticTable(Lowered):
    """y = sat8(round((A x^2 + (B << linear_shift) x + (C << constant_shift)) >> shift)).

    segments: int64 [16] bytes (ROM0): log2 of the inner segments << 6 | first row.
    rows: int64 [rows * 3], A, B, C of each row (ROM1), 16 bits each.
    """

    segments: Int64
    rows: Int64
    linear_shift: int
    constant_shift: int
    shift: int
    ties: str

    def apply(self, x: Int64) -> Int64:
        """Output codes of signed codes."""
        position = x + 128
        entry = self.segments[position >> _SEGMENT_BITS]
        inner = (position % 2**_SEGMENT_BITS) >> (_SEGMENT_BITS - (entry >> _ROW_BITS))
        row = entry % 2**_ROW_BITS + inner
        a, b, c = (self.rows.reshape(-1, 3)[row, i] for i in range(3))
        total = a * x * x + rounding.shift_left(b, self.linear_shift) * x
        total = total + rounding.shift_left(c, self.constant_shift)
        return rounding.saturate(SHIFTS[self.ties](total, self.shift), -128, 127)


def rounded_table(
    function: Callable[[Array], Array],
    x: tuple[float, int],
    y: tuple[float, int],
) -> RoundedTable:
    """The nearest code of function(real), ties away from zero.

    function: float64 [256] -> float64 [256]. x, y: (scale, zero point) in signed codes.
    """
    reals = (np.arange(-128, 128) - x[1]) * np.float64(x[0])
    codes = round_real(np.asarray(function(reals)) / y[0], "half_away") + y[1]
    return RoundedTable(read_only(np.clip(codes, -128, 127), np.int64))
