"""Activation functions on the neural-art NPU: int8 to int8 by table.

The unit evaluates a piecewise quadratic on the raw code. Its rows are fitted by the vendor's
compiler and lie in a network's ROM data; where they are known they are used (QuadraticTable),
given for the node in a lowering file under "type": "QuadraticTable". Where they are not, a
correctly rounded table stands in, and says that it is not silicon's.

Evidence: form of the tables and of the evaluation [inferred]; rows [unknown without ROM data].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from npusim.errors import NumericsError
from npusim.ir import Array
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import SHIFTS
from npusim.numerics.neural_art_lowering import SHIFT_MAX, round_real
from npusim.numerics.requant import read_only
from npusim.numerics.rounding import Int64

_SEGMENT_BITS = 4
"""Outer segments are 16 codes wide; there are 16 of them."""

_ROW_BITS = 6
"""Low bits of a ROM0 byte that name the first row of the segment."""


@dataclass(frozen=True)
class RoundedTable(Lowered):
    """codes: int64 [256], the output of every signed code from -128 on.

    silicon: False; a user who gives codes that a board computed may say True.
    """

    codes: Int64
    silicon: bool = False

    def stand_in(self, kind: str) -> Lowered:
        """A QuadraticTable without rows, for rows that the user knows."""
        return _UNKNOWN_ROWS if kind == "QuadraticTable" else self

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

    def changed(self, **changes: Any) -> Self:
        """A copy with other numbers.

        Raises NumericsError where a segment names a row that is not there, or a number has more
        bits than the unit's field.
        """
        table = super().changed(**changes)
        _check_widths(table)
        inner = 2 ** (table.segments >> _ROW_BITS)
        last = int(np.max(table.segments % 2**_ROW_BITS + inner))
        if table.rows.size % 3 or last > table.rows.size // 3:
            raise NumericsError(
                "a quadratic table needs three numbers a row, and every row that a segment names",
                where="rows",
                got=f"{table.rows.size} numbers",
                wanted=f"{3 * last} or more",
            )
        return table

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


_UNKNOWN_ROWS = QuadraticTable(
    read_only([0] * 16, np.int64), read_only([], np.int64), 0, 0, 0, "half_away"
)
"""What a lowering file fills in; without rows it is refused."""


def _check_widths(table: QuadraticTable) -> None:
    shifts = (table.linear_shift, table.constant_shift, table.shift)
    for where, numbers, low, high in (
        ("segments", table.segments, 0, 255),
        ("rows", table.rows, -(2**15), 2**15 - 1),
        ("shifts", np.asarray(shifts), 0, SHIFT_MAX),
    ):
        if np.any(numbers < low) or np.any(numbers > high):
            raise NumericsError(
                "a number does not fit its field",
                where=where,
                got=f"{numbers.min()} to {numbers.max()}",
                wanted=f"{low} to {high}",
            )
    if table.ties not in SHIFTS:
        raise NumericsError(
            "unknown rounding", where="ties", got=table.ties, wanted=", ".join(SHIFTS)
        )


def rounded_table(
    function: Callable[[Array], Array],
    x: tuple[float, int],
    y: tuple[float, int],
    clamp: tuple[int, int] = (-128, 127),
) -> RoundedTable:
    """The nearest code of function(real), ties away from zero.

    function: float64 [256] -> float64 [256]. x, y: (scale, zero point) in signed codes.
    clamp: smallest and largest signed code of the output.
    """
    reals = (np.arange(-128, 128) - x[1]) * x[0]
    # Whole bounds commute with rounding, and keep every quotient inside int64.
    quotients = np.clip(np.asarray(function(reals)) / y[0], clamp[0] - y[1], clamp[1] - y[1])
    return RoundedTable(read_only(round_real(quotients, "half_away") + y[1], np.int64))
