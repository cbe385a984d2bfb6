"""Numbers at the edge of the kernels' 32-bit arithmetic: both engines still agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_units import Case, Operand, one_node

import npusim
from npusim.counters import Statistics
from npusim.ir import Array, QParams
from npusim.numerics.profile import Profile, load_profile
from npusim.ops.gemm import GemmAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs

FULL = (-128, 127)


def gemm(x: Array, w: Array, scale: float = 1.0) -> Case:
    """int8 x [N, K] with zero point -128 times int8 w [O, K]; the output's scale is ``scale``."""
    operands = [
        Operand("x", x.astype(np.int8), QParams.make(1.0, -128)),
        Operand("w", w.astype(np.int8), QParams.make(1.0, 0), True),
    ]
    return one_node("gemm", GemmAttrs(True, FULL), operands, "int8", QParams.make(scale, 0))


def unchecked() -> Profile:
    """neural-art, whose rule would refuse sums that the tests want to see computed exactly."""
    profile = load_profile("neural-art")
    return replace(profile, switches={**profile.switches, "accumulator_check": "off"})


def agree(case: Case, profile: str | Profile = "neural-art", **changes: Any) -> Array:
    """The output, which both engines give, with some numbers of the lowering changed."""
    lowered = npusim.compile(case.graph, profile, "numpy").lowering["unit"]
    lowering = {"unit": lowered.changed(**changes)}
    slow, fast = (
        npusim.compile(case.graph, profile, engine, lowering).run(case.feeds)["y"]
        for engine in ("numpy", "fast")
    )
    np.testing.assert_array_equal(fast, slow)
    return slow


def test_a_split_whose_sums_do_not_fit_is_still_exact() -> None:
    case = gemm(np.full((1, 140_000), 127), np.full((2, 140_000), 127), 1e8)
    agree(case, unchecked(), channels=((140_000, 1, 1),))


def test_a_sum_that_its_rounding_carries_past_32_bits() -> None:
    case = gemm(np.full((1, 65_790), 127), np.full((1, 65_790), 127), 1e8)
    assert agree(case, unchecked(), channels=((65_790, 1, 1),), shift=26) > 0


def test_a_carried_stream_that_does_not_fit_beside_the_sum() -> None:
    case = gemm(np.full((1, 131_580), 127), np.full((1, 131_580), -128), 1e8)
    assert agree(case, unchecked(), channels=((65_790, 1, 2),), shift=15) < 0


@pytest.mark.parametrize("multiplier", [-32768, -20000, 32767])
@pytest.mark.parametrize("constant", [0, 1_100_000_000, -1_100_000_000, 2_000_000_000])
def test_last_steps_beyond_32_bits(multiplier: int, constant: int) -> None:
    rng = np.random.default_rng(0)
    case = gemm(rng.integers(-128, 128, (64, 40)), rng.integers(-127, 128, (16, 40)), 400.0)
    agree(case, final_multiplier=multiplier, constant=np.full(16, constant, np.int64))


@pytest.mark.parametrize("ties", ["half_away", "half_up"])
def test_the_stream_between_the_steps_saturates(ties: str) -> None:
    rng = np.random.default_rng(1)
    case = gemm(rng.integers(-128, 128, (64, 40)), rng.integers(-127, 128, (16, 40)), 400.0)
    lowered = npusim.compile(case.graph, "neural-art", "numpy").lowering["unit"]
    # The constant brings codes from about the largest int16 into the middle of the range.
    constant = np.full(16, -32_000 * lowered.final_multiplier, np.int64)  # type: ignore[attr-defined]
    shift = lowered.multiplier_shift - 4  # type: ignore[attr-defined]
    codes = agree(case, multiplier_shift=shift, ties=ties, constant=constant)
    assert np.any((codes > -128) & (codes < 127))


@pytest.mark.parametrize("scale", [3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6])
def test_a_left_shift_beyond_int32_saturates_under_tflite(scale: float) -> None:
    rows = [[127] * n + [0] * (60_000 - n) for n in (60_000, 47_000, 31_000)]
    w = np.array(rows + [[-v for v in row] for row in rows])
    case = gemm(np.full((1, 60_000), 127), w, scale)
    assert agree(case, "tflite").ravel().tolist() == [127] * 3 + [-128] * 3


def test_means_that_saturate_are_counted_alike() -> None:
    """A smaller shift than the rule's: the int16 mean of large codes does not fit."""
    x = np.random.default_rng(2).integers(60, 128, (3, 20, 4, 4)).astype(np.int8)
    case = one_node(
        "global_average_pool",
        GlobalAveragePoolAttrs(True, FULL),
        [Operand("x", x, QParams.make(0.1, 3))],
        "int8",
        QParams.make(0.1, 3),
    )
    lowered = npusim.compile(case.graph, "neural-art", "numpy").lowering["unit"]
    lowering = {"unit": lowered.changed(shift=lowered.shift - 1)}  # type: ignore[attr-defined]
    counts = []
    for engine in ("numpy", "fast"):
        statistics = Statistics()
        program = npusim.compile(case.graph, "neural-art", engine, lowering)
        program.run(case.feeds, statistics=statistics)
        counts.append({name: c.saturated for name, c in statistics.layers.items()})
    assert counts[0] == counts[1]
    assert counts[0]["unit"] > 0
