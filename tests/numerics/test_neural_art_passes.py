"""Cuts and channel passes: measured cases, every limit at its edge, and what must always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.numerics.neural_art_passes import (
    SIGNED,
    UNSIGNED,
    WIDE,
    Segment,
    SplitLimits,
    Window,
    channel_passes,
    cut,
    depth_limit,
    input_form,
    largest_divisor,
    segments,
    split,
    unit_ceiling,
)

LIMITS = SplitLimits()


def window(depth: int, size: int, taps: int = 3, **changes: Any) -> Window:
    square = (size, size)
    base = Window((taps, taps), (1, 1), depth, depth, square, square, UNSIGNED)
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("size", "limit", "pieces"),
    [(1, 3, (1,)), (3, 3, (3,)), (4, 3, (3, 1)), (5, 3, (3, 2)), (7, 3, (3, 3, 1)), (7, 6, (6, 1))],
)
def test_cut(size: int, limit: int, pieces: tuple[int, ...]) -> None:
    assert cut(size, limit) == pieces


def test_form_of_the_input() -> None:
    assert [input_form(z) for z in (-128, 0, -127, 1, 127)] == [UNSIGNED, SIGNED, WIDE, WIDE, WIDE]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # ResNet18 at 32x32 input, from the specification.
        (window(64, 32), (8, 4, 2)),
        (window(128, 16), (8, 4, 4)),
        (window(256, 8), (8, 1, 32)),
        (window(512, 4), (8, 1, 64)),
        # lowering_rppg, from generated files.
        (window(3, 36), (3, 1, 1)),
        (window(16, 18), (8, 2, 1)),
        (window(32, 9), (8, 2, 2)),
    ],
)
def test_known_passes(layer: Window, expected: tuple[int, int, int]) -> None:
    assert split(layer, LIMITS).channels == (expected,)


def test_known_cuts() -> None:
    seven = split(window(3, 64, taps=7), LIMITS)
    assert (seven.rows, seven.columns) == ((3, 3, 1), (6, 1))
    strided = split(window(3, 64, taps=7, strides=(2, 2)), LIMITS)
    assert (strided.rows, strided.columns) == ((3, 3, 1), (7,))
    assert split(window(3, 64, taps=7, strides=(2, 1)), LIMITS).columns == (6, 1)
    wide = split(window(3, 64, kernel=(1, 13), strides=(1, 2)), LIMITS)
    assert wide.columns == (12, 1)


@pytest.mark.parametrize(
    ("layer", "taps", "limit"),
    [
        (window(64, 256), 9, 8),
        (window(64, 257), 9, 7),  # a line of 2048 bytes
        (window(64, 4000), 9, 1),
        (window(64, 128, form=WIDE), 9, 8),
        (window(64, 129, form=WIDE), 9, 7),  # two bytes a feature
        (window(64, 129, form=SIGNED), 9, 8),
        (window(64, 8), 2, 8),
        (window(64, 8), 1, 128),
        (window(64, 8, form=SIGNED), 1, 24),
        (window(64, 8, form=WIDE), 1, 24),
        (window(64, 59), 1, 128),
        (window(64, 60), 1, 24),  # 3600 pixels and 64 channels
        (window(63, 60), 1, 128),
    ],
)
def test_channels_of_a_unit(layer: Window, taps: int, limit: int) -> None:
    assert depth_limit(layer, taps, LIMITS) == limit


@pytest.mark.parametrize(
    ("pixels", "taps", "outputs", "units"),
    [
        (71, 9, 16, 1), (72, 9, 16, 2), (143, 9, 16, 2), (144, 9, 16, 4),
        (10**6, 9, 16, 4), (39, 5, 16, 1), (40, 5, 16, 2), (1, 9, 16, 1),
        (23, 1, 24, 1), (24, 1, 48, 2), (47, 1, 24, 2), (48, 1, 24, 4),
        (24, 1, 25, 4), (3, 1, 3, 2), (2, 1, 3, 1), (2, 1, 1, 4), (1, 1, 1, 2),
        (20, 2, 24, 2),  # two taps load as a kernel does
    ],
)  # fmt: skip
def test_chained_units(pixels: int, taps: int, outputs: int, units: int) -> None:
    layer = window(64, 8, map_size=(1, pixels), outputs=outputs)
    assert unit_ceiling(layer, taps, LIMITS) == units


def test_whose_map_bounds_the_units() -> None:
    layer = window(64, 16, strides=(2, 2), output_size=(8, 8))
    assert unit_ceiling(layer, 9, LIMITS) == 4
    older = replace(LIMITS, unit_map="output_when_strided")
    assert unit_ceiling(layer, 9, older) == 1
    assert unit_ceiling(replace(layer, strides=(1, 2)), 9, older) == 1
    assert unit_ceiling(replace(layer, strides=(1, 1)), 9, older) == 4


def test_depthwise_and_single_take_one_pass() -> None:
    assert channel_passes(window(1, 4, depthwise=True), 9, LIMITS) == (1, 1, 1)
    assert channel_passes(window(512, 4), 9, replace(LIMITS, passes="single")) == (512, 1, 1)


def test_three_units_where_two_do_not_divide() -> None:
    assert channel_passes(window(24, 32), 9, LIMITS) == (8, 3, 1)


@pytest.mark.parametrize(
    ("number", "limit", "divisor"),
    [(64, 24, 16), (48, 24, 24), (37, 24, 1), (3, 24, 3), (24, 24, 24)],
)
def test_largest_divisor(number: int, limit: int, divisor: int) -> None:
    assert largest_divisor(number, limit) == divisor


def test_order_of_the_segments() -> None:
    parts = split(window(32, 3, kernel=(4, 7)), LIMITS)
    assert parts.channels == ((8, 1, 4),) * 3 + ((32, 1, 1),)
    found = list(segments(parts))
    assert [(s.piece, s.index) for s in found] == [(p, i) for p in range(3) for i in range(4)] + [
        (3, 0)
    ]
    assert found[5] == Segment(1, 1, (0, 3), (6, 7), (8, 16), 1)
    assert found[8] == Segment(2, 0, (3, 4), (0, 6), (0, 8), 1)
    assert found[12] == Segment(3, 0, (3, 4), (6, 7), (0, 32), 1)


def test_units_share_the_channels_of_a_pass() -> None:
    assert [s.channels for s in segments(split(window(64, 32), LIMITS))] == [(0, 32), (32, 64)]
    assert {s.units for s in segments(split(window(64, 32), LIMITS))} == {4}


@settings(max_examples=50, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 8), st.integers(1, 14)),
    stride=st.integers(1, 2),
    depth=st.integers(1, 70),
    outputs=st.integers(1, 70),
    size=st.integers(1, 64),
    form=st.sampled_from([UNSIGNED, SIGNED, WIDE]),
)
def test_the_segments_cover_the_kernel_once(
    kernel: tuple[int, int], stride: int, depth: int, outputs: int, size: int, form: str
) -> None:
    layer = Window(kernel, (stride, stride), depth, outputs, (size, size), (size, size), form)
    seen = [
        (row, column, channel)
        for s in segments(split(layer, LIMITS))
        for row in range(*s.rows)
        for column in range(*s.columns)
        for channel in range(*s.channels)
    ]
    assert len(seen) == len(set(seen)) == kernel[0] * kernel[1] * depth


@settings(max_examples=50, deadline=None)
@given(depth=st.integers(1, 200), size=st.integers(1, 64), taps=st.sampled_from([1, 3]))
def test_no_split_with_fewer_passes_or_units_fits(depth: int, size: int, taps: int) -> None:
    layer = window(depth, size, taps=taps)
    channels, units, passes = channel_passes(layer, taps * taps, LIMITS)
    most, ceiling = (
        depth_limit(layer, taps * taps, LIMITS),
        unit_ceiling(layer, taps * taps, LIMITS),
    )
    assert channels <= most
    assert units <= ceiling
    better = [
        (p, u)
        for p in range(1, passes + 1)
        for u in range(1, ceiling + 1)
        if (p, u) < (passes, units) and depth % (u * p) == 0 and depth // (u * p) <= most
    ]
    assert not better
