"""The fast engine against the int64 references: no value differs, in any profile."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from random_units import MAKERS, Case, random_case

import npusim
from npusim.errors import BadQuantization, UnsupportedOp
from npusim.numerics.profile import profile_names

FEW, MANY = 6, 60


def both(case: Case, profile: str) -> bool:
    """Compare the engines on a case; False where the profile refuses it."""
    try:
        slow = npusim.compile(case.graph, profile, "numpy")
    except (BadQuantization, UnsupportedOp):
        return False
    wanted = slow.run(case.feeds)["y"]
    fast = npusim.compile(case.graph, profile, "fast", lowering=slow.lowering)
    for threads in (1, 2):
        got = fast.run(case.feeds, threads=threads)["y"]
        np.testing.assert_array_equal(got, wanted, strict=True)
    return True


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("kind", MAKERS)
def test_engines_agree(kind: str, profile: str) -> None:
    assert sum(both(random_case(kind, seed), profile) for seed in range(FEW)) > 0


@pytest.mark.long
@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("kind", MAKERS)
def test_engines_agree_on_many(kind: str, profile: str) -> None:
    """As many as are wanted, whatever share of the random nodes the profile refuses."""
    compared = (both(random_case(kind, seed), profile) for seed in range(FEW, 20 * MANY))
    assert sum(itertools.islice(filter(None, compared), MANY)) == MANY


@pytest.mark.parametrize("ties", ["half_away", "half_up", "half_even", "floor"])
@pytest.mark.parametrize("requant", ["two_step", "one_step"])
def test_engines_agree_where_streams_saturate(ties: str, requant: str) -> None:
    """A smaller shift than the rule's makes the int16 streams saturate in most segments."""
    variant = {"two_step": "neural-art/atonn-1.1.1", "one_step": "neural-art/atonn-1.1.3"}
    compared = 0
    for seed in range(12):
        case = random_case("QLinearConv", seed)
        try:
            program = npusim.compile(case.graph, variant[requant], "numpy")
        except (BadQuantization, UnsupportedOp):
            continue
        old = program.lowering["unit"]
        new = dataclasses.replace(old, shift=max(0, old.shift - 3), ties=ties)  # type: ignore[call-arg]
        slow, fast = (
            npusim.compile(case.graph, variant[requant], engine, {"unit": new})
            for engine in ("numpy", "fast")
        )
        np.testing.assert_array_equal(fast.run(case.feeds)["y"], slow.run(case.feeds)["y"])
        compared += 1
    assert compared >= 4
