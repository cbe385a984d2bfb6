"""Profile onnxruntime against onnxruntime: random one-node QOperator models, no value differs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from oracle import expected
from random_units import MAKERS, Case, random_case

import npusim
from npusim.ir import Array

FEW, MANY = 12, 300


def computed(case: Case, engine: str) -> Array:
    output: Array = npusim.compile(case.graph, "onnxruntime", engine).run(case.feeds)["y"]
    return output


def check(kind: str, seeds: Iterable[int], engine: str, values: int | None = None) -> None:
    """Compare model after model, until ``values`` output values are equal where that is given."""
    compared = 0
    for seed in seeds:
        case = random_case(kind, seed)
        wanted = expected(case.site, case.feeds)
        np.testing.assert_array_equal(
            computed(case, engine), wanted, err_msg=f"{kind} {seed}: {case.site.attrs}", strict=True
        )
        compared += wanted.size
        if values is not None and compared >= values:
            return
    assert values is None


@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("kind", MAKERS)
def test_some_random_units_equal_onnxruntime(kind: str, engine: str) -> None:
    check(kind, range(FEW), engine)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("kind", MAKERS)
def test_many_random_units_equal_onnxruntime(kind: str, engine: str) -> None:
    """Eight QLinear operators times 300 models."""
    check(kind, range(FEW, FEW + MANY), engine)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["QGemm", "QLinearConcat", "QLinearMul", "Requantize"])
def test_rules_found_by_experiment_hold_on_many_values(kind: str) -> None:
    """onnxruntime documents none of these; 100,000 values each."""
    check(kind, range(10_000, 20_000), "numpy", values=100_000)


@pytest.mark.parametrize("kind", MAKERS)
def test_cases_do_not_depend_on_the_machine(kind: str) -> None:
    first, again = random_case(kind, 3), random_case(kind, 3)
    assert first.site.attrs == again.site.attrs
    for name, array in first.feeds.items():
        np.testing.assert_array_equal(array, again.feeds[name], strict=True)
