"""Program.run and npusim.compile: what they accept, and what they say of anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.errors import UsageError
from npusim.models.demo import MODEL_PATH
from npusim.program import Program


@pytest.fixture(scope="module")
def program() -> Program:
    return npusim.compile(npusim.load(MODEL_PATH), engine="numpy")


@pytest.fixture(scope="module")
def feeds(program: Program) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    return {program.graph.inputs[0].name: images}


def test_a_tap_names_a_tensor_or_the_node_that_computes_it(
    program: Program, feeds: dict[str, np.ndarray]
) -> None:
    node = next(n for n in program.graph.nodes if n.op == "conv")
    assert node.name != node.outputs[0]
    by_node = program.run(feeds, taps=[node.name])
    by_tensor = program.run(feeds, taps=[node.outputs[0]])
    assert by_node.keys() == by_tensor.keys() == {*outputs(program), node.outputs[0]}
    for name, array in by_node.items():
        np.testing.assert_array_equal(array, by_tensor[name])


def test_every_tensor_and_node_that_is_shown_can_be_tapped(
    program: Program, feeds: dict[str, np.ndarray]
) -> None:
    for node in program.graph.nodes:
        for name in (node.name, node.outputs[0]):
            assert node.outputs[0] in program.run(feeds, taps=[name])


def test_one_pattern_may_be_a_text(program: Program, feeds: dict[str, np.ndarray]) -> None:
    everything = program.run(feeds, taps="*")
    assert len(everything) == len(program.graph.nodes) + len(program.graph.inputs)


def test_a_tap_that_matches_nothing(program: Program, feeds: dict[str, np.ndarray]) -> None:
    node = program.graph.nodes[1].name
    with pytest.raises(UsageError, match=rf"{node}x: no tensor and no node.*Did you mean"):
        program.run(feeds, taps=[f"{node}x"])
    with pytest.raises(UsageError, match="npusim inspect"):
        program.run(feeds, taps=["?%%%%%%%%%%"])
    constant = next(iter(program.graph.initializers))
    with pytest.raises(UsageError, match="no tensor and no node"):
        program.run(feeds, taps=[constant])


@pytest.mark.parametrize("wrong", [np.zeros((1, 1, 8, 8), np.float32), [1], None])
def test_feeds_are_a_mapping(program: Program, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"arrays by input name.*Write program.run\(\{"):
        program.run(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [str(MODEL_PATH), MODEL_PATH, None])
def test_a_file_is_not_compiled(wrong: str | Path | None) -> None:
    with pytest.raises(UsageError, match=r"npusim\.compile\(npusim\.load\(path\)\)"):
        npusim.compile(wrong)  # type: ignore[arg-type]


def test_a_program_says_what_it_is(program: Program) -> None:
    text = repr(program)
    assert text.startswith("<Program of ")
    for word in (MODEL_PATH.name, "operators", "parameters", "neural-art", "numpy"):
        assert word in text


def outputs(program: Program) -> set[str]:
    return {value.name for value in program.graph.outputs}
