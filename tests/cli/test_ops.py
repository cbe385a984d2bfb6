"""npusim ops, and the page that is made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim.cli import main
from npusim.numerics.profile import load_profile, profile_names
from npusim.ops.base import all_specs
from npusim.report.operators import operators_page, supported_operators


def test_the_page_in_docs_is_what_the_registry_says(root: Path) -> None:
    page = (root / "docs" / "operators.md").read_text("utf-8")
    assert page == operators_page(), "run: npusim ops --markdown > docs/operators.md"


def test_markdown_is_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--markdown"]) == 0
    assert capsys.readouterr().out == operators_page()


def test_every_operator_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["profiles"]) == set(profile_names())
    assert [op["name"] for op in data["operators"]] == [spec.name for spec in all_specs()]
    assert main(["ops"]) == 0
    operators, profiles = capsys.readouterr().out.split("\n\n")
    lines = operators.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [spec.name for spec in all_specs()]
    names = [line.split()[0] for line in profiles.splitlines()[1:]]
    assert names == list(profile_names())
    assert "neural-art (default)" in profiles


def test_the_table_fits_a_terminal_and_names_each_operator_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ops"]) == 0
    text = capsys.readouterr().out
    assert "Concat, Concat" not in text
    for line in text.splitlines():
        assert len(line.rstrip()) <= 120, line
    for line in text.split("\n\n")[0].splitlines():
        names = line.split("  ")[-1].split(", ")
        assert len(names) == len(set(names)), line


def test_rules_are_those_of_the_profiles() -> None:
    for op in supported_operators():
        for name, (rule, level, source) in op.rules.items():
            assert load_profile(name).rules[op.name] == rule
            assert level
            assert source


def test_markdown_and_json_exclude_one_another() -> None:
    assert main(["ops", "--markdown", "--json"]) == 2
