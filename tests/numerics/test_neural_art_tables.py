"""Activation tables: the correctly rounded one, and the piecewise quadratic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import UsageError
from npusim.numerics.neural_art_tables import QuadraticTable, rounded_table
from npusim.numerics.overrides import override
from npusim.numerics.requant import read_only

CODES = np.arange(-128, 128)


def test_a_rounded_table_is_the_nearest_code() -> None:
    table = rounded_table(np.tanh, (0.03, 5), (1 / 128, -1))
    exact = np.tanh((CODES - 5) * 0.03) * 128 - 1
    assert np.abs(np.clip(exact, -128, 127) - table.apply(CODES)).max() <= 0.5
    assert table.silicon is False


def test_a_rounded_table_rounds_ties_away_and_saturates() -> None:
    table = rounded_table(lambda x: x, (1.0, 0), (2.0, 0))
    assert table.apply(np.array([-3, -1, 0, 1, 3])).tolist() == [-2, -1, 0, 1, 2]
    wide = rounded_table(lambda x: x, (4.0, 0), (1.0, 3))
    assert wide.apply(np.array([-128, 0, 127])).tolist() == [-128, 3, 127]


def quadratic(
    segments: list[int], rows: list[list[int]], ties: str = "half_away"
) -> QuadraticTable:
    return QuadraticTable(
        read_only(segments, np.int64), read_only(np.ravel(rows), np.int64), 2, 4, 6, ties
    )


def test_a_segment_finds_its_row() -> None:
    """16 segments of 16 codes; log2 of the inner segments in the top two bits."""
    segments = [0] * 16
    segments[0] = 1 << 6 | 1  # rows 1 and 2, 8 codes each
    segments[5] = 3 << 6 | 3  # rows 3..10, 2 codes each
    segments[15] = 2 << 6 | 11  # rows 11..14, 4 codes each
    rows = [[0, 0, 4 * k] for k in range(15)]  # y = k
    y = quadratic(segments, rows).apply(CODES)
    assert y[:8].tolist() == [1] * 8
    assert y[8:16].tolist() == [2] * 8
    assert y[16:80].tolist() == [0] * 64
    assert y[80:96].tolist() == [k for k in range(3, 11) for _ in range(2)]
    assert y[240:].tolist() == [k for k in range(11, 15) for _ in range(4)]


@settings(max_examples=50, deadline=None)
@given(
    x=st.integers(-128, 127),
    row=st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 3),
    ties=st.sampled_from(["half_away", "half_up"]),
)
def test_the_quadratic(x: int, row: tuple[int, int, int], ties: str) -> None:
    a, b, c = row
    total = a * x * x + (b << 2) * x + (c << 4)
    sign = -1 if ties == "half_away" and total < 0 else 1
    expected = max(-128, min(127, sign * (sign * total + 32 >> 6)))
    assert quadratic([0] * 16, [list(row)], ties).apply(np.array(x)) == expected


@pytest.mark.parametrize("code", [-128, -1, 0, 127])
def test_the_squared_code_is_the_raw_one(code: int) -> None:
    table = QuadraticTable(
        read_only([0] * 16, np.int64), read_only([1, 0, 0], np.int64), 0, 0, 8, "half_away"
    )
    assert table.apply(np.array(code)) == (code * code + 128) >> 8


def test_a_rounded_table_stays_inside_its_clamp_and_int64() -> None:
    table = rounded_table(lambda x: x * 1e30, (1.0, 0), (1.0, 0), (-100, 90))
    assert table.apply(np.array([-1, 0, 1])).tolist() == [-100, 0, 90]
    steep = rounded_table(lambda x: x, (10.0, 0), (1.0, -128))
    assert steep.apply(np.array([25, 26, -128])).tolist() == [122, 127, -128]


IDENTITY = {
    "type": "QuadraticTable",
    "segments": [0] * 15 + [1 << 6 | 1],
    "rows": [0, 1, 0, 0, 2, 0, 0, 3, 5],
    "linear_shift": 0,
    "constant_shift": 1,
    "shift": 0,
}


def filled(**fields: object) -> QuadraticTable:
    """What a lowering file with these fields makes of a rounded table."""
    fresh = {"act": rounded_table(np.tanh, (0.03, 0), (0.01, 0))}
    table = override(fresh, {"act": {**IDENTITY, **fields}})["act"]
    assert isinstance(table, QuadraticTable)
    return table


def test_known_rows_take_the_place_of_a_rounded_table() -> None:
    table = filled()
    assert table.apply(np.array([-128, -7, 111])).tolist() == [-128, -7, 111]
    assert table.apply(np.array([20])).tolist() == [20]
    assert table.ties == "half_away"
    assert filled(ties="floor").ties == "floor"


def test_shifts_and_segments_that_are_not_given_are_zero() -> None:
    fresh = {"act": rounded_table(np.tanh, (0.03, 0), (0.01, 0))}
    table = override(fresh, {"act": {"type": "QuadraticTable", "rows": [0, 1, 2]}})["act"]
    assert table.to_json() == {
        "segments": {"dtype": "int64", "values": [0] * 16},
        "rows": {"dtype": "int64", "values": [0, 1, 2]},
        **dict.fromkeys(("linear_shift", "constant_shift", "shift"), 0),
        "ties": "half_away",
    }


def test_shifts_that_are_not_given_are_none() -> None:
    fresh = {"act": rounded_table(np.tanh, (0.03, 0), (0.01, 0))}
    fields = {"type": "QuadraticTable", "segments": [0] * 16, "rows": [0, 1, 3]}
    table: Any = override(fresh, {"act": fields})["act"]
    assert (table.linear_shift, table.constant_shift, table.shift) == (0, 0, 0)
    assert table.apply(np.array([-50, 7])).tolist() == [-47, 10]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": []}, "every row that a segment names"),
        ({"rows": [0] * 6}, "every row that a segment names"),
        ({"rows": [0] * 10}, "three numbers a row"),
        ({"rows": [0] * 8 + [2**15]}, "act.rows.*does not fit its field"),
        ({"rows": [0] * 8 + [-(2**15) - 1]}, "does not fit its field"),
        ({"rows": [0] * 21, "segments": [3 << 6] * 16}, "24 or more"),
        ({"segments": [0] * 15}, "another length"),
        ({"segments": [256] + [0] * 15}, "act.segments.*does not fit"),
        ({"segments": [-1] + [0] * 15}, "act.segments.*does not fit"),
        ({"shift": 32}, "act.shifts.*does not fit"),
        ({"linear_shift": -1}, "act.shifts.*does not fit"),
        ({"constant_shift": 32}, "act.shifts.*does not fit"),
        ({"ties": "up"}, "unknown rounding"),
        ({"type": "Convolution"}, "no field of this name"),
    ],
)
def test_rows_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        filled(**fields)


def test_the_largest_numbers_fit() -> None:
    edge = filled(rows=[2**15 - 1, -(2**15), 0] * 128, segments=[255] * 16, shift=31)
    assert edge.rows.size == 384
    filled(constant_shift=31, linear_shift=31)


def test_codes_of_a_board_may_be_given_as_such() -> None:
    fresh = {"act": rounded_table(np.tanh, (0.03, 0), (0.01, 0))}
    codes = list(range(-128, 128))
    table = override(fresh, {"act": {"codes": codes, "silicon": True}})["act"]
    assert table.to_json() == {"codes": {"dtype": "int64", "values": codes}, "silicon": True}
