"""Profiles are complete, and every rule they name exists and says where it comes from."""

from __future__ import annotations

import pytest

import npusim.ops  # noqa: F401
from npusim.errors import UsageError
from npusim.numerics.profile import load_profile, profile_names
from npusim.ops.base import all_specs, spec_of

LOCAL = [n for n in profile_names() if n.startswith(("onnxruntime", "tflite"))]
NOT_IN_TFLITE = {"hard_sigmoid", "selu", "softplus", "softsign", "mish", "swish"}


@pytest.mark.parametrize("name", LOCAL)
def test_every_operator_has_a_rule(name: str) -> None:
    profile = load_profile(name)
    missing = {s.name for s in all_specs() if profile.rules.get(s.name, "exact") not in s.rules}
    assert missing == (NOT_IN_TFLITE if name.startswith("tflite") else set())


@pytest.mark.parametrize("name", profile_names())
def test_every_rule_exists_and_has_a_source(name: str) -> None:
    profile = load_profile(name)
    assert profile.summary
    for operator, rule in profile.rules.items():
        assert rule in spec_of(operator).rules
        assert len(profile.evidence[operator].source) > 10


def test_there_are_the_profiles_of_the_documentation() -> None:
    assert {"onnxruntime", "tflite", "tflite-single", "tflite/litert-2.3"} <= set(profile_names())


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"onnxruntime.*tflite"):
        load_profile("tensorrt")


def test_a_variant_changes_its_own_rules_only() -> None:
    plain, litert = load_profile("tflite"), load_profile("tflite/litert-2.3")
    changed = {op for op in plain.rules if plain.rules[op] != litert.rules[op]}
    assert changed == {"gemm"}
