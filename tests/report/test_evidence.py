"""The evidence of a node: its rule's, or that of the weakest case it falls under."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_units import Case, Operand, one_node

from npusim.ir import QParams
from npusim.numerics.profile import EVIDENCE, load_profile, profile_names
from npusim.ops.conv import ConvAttrs
from npusim.ops.pool_window import PoolAttrs
from npusim.program import lower_site
from npusim.report.evidence import CASES, evidence_of

NEURAL_ART = load_profile("neural-art")


def conv(
    channels: int = 3, bias: int = 0, dtype: str = "int8", outputs: int = 4, **attrs: Any
) -> Case:
    """A 3x3 convolution of an 8x8 map; bias: of every output channel."""
    group = attrs.get("group", 1)
    point = 128 if dtype == "uint8" else 0
    one = QParams.make([0.01], [point])
    x = Operand("x", np.zeros((1, channels, 8, 8), dtype), one)
    w = np.ones((outputs, channels // group, 3, 3), np.int8)
    weight = Operand("w", w, QParams.make([0.01], [0]), constant=True)
    b = np.full(outputs, bias, np.int32)
    biases = Operand("b", b, QParams.make([0.0001], [0]), constant=True)
    lo, hi = (0, 255) if dtype == "uint8" else (-128, 127)
    attributes = ConvAttrs(clamp=(lo, hi), **attrs)
    return one_node("conv", attributes, [x, weight, biases], dtype, one)


def level(case: Case, profile: str = "neural-art") -> str:
    chosen = load_profile(profile)
    evidence = evidence_of(case.site, lower_site(case.site, chosen), chosen)
    assert evidence is not None
    return evidence.level


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (conv(), "silicon"),
        (conv(channels=4, group=4), "silicon"),
        (conv(bias=7), "descriptor"),
        (conv(channels=64, outputs=64), "descriptor"),
        (conv(dilations=(2, 2)), "inferred"),
        (conv(channels=4, group=2), "inferred"),
        (conv(dtype="uint8"), "inferred"),
        (conv(dtype="uint8", bias=7), "inferred"),
    ],
    ids=["plain", "depthwise", "bias", "deep", "dilated", "grouped", "uint8", "uint8 and bias"],
)
def test_what_was_not_measured_is_not_called_silicon(case: Case, wanted: str) -> None:
    assert level(case) == wanted


def test_another_profile_does_not_know_the_cases_of_the_npu() -> None:
    assert level(conv(dtype="uint8", bias=7), "onnxruntime") == "measured"
    assert level(conv(), "neural-art/atonn-1.1.3") == "descriptor"


def test_operators_that_only_move_codes_have_none() -> None:
    pool = one_node(
        "maxpool",
        PoolAttrs((2, 2)),
        [Operand("x", np.zeros((1, 1, 4, 4), np.uint8), QParams.make([1.0], [0]))],
        "uint8",
        QParams.make([1.0], [0]),
    )
    assert evidence_of(pool.site, lower_site(pool.site, NEURAL_ART), NEURAL_ART) is None


@pytest.mark.parametrize("name", profile_names())
def test_every_case_of_a_profile_is_known_and_sourced(name: str) -> None:
    for case, evidence in load_profile(name).cases.items():
        assert case in CASES
        assert evidence.level in EVIDENCE
        assert len(evidence.source) > 10
