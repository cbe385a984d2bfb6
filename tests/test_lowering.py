"""npusim.lowering: the numbers of a trained file, of a user's file, or fresh ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import npusim
from npusim.errors import ModelError, UsageError
from npusim.ir import Graph, Node, QParams, TensorType, Value
from npusim.lowering import (
    METADATA_KEY,
    _differing,
    compile_chosen,
    lowering_metadata,
    recompiled,
    recompiled_differences,
)
from npusim.numerics.lowered import lowering_to_json
from npusim.numerics.neural_art_lowering import sum_shift
from npusim.ops.conv import ConvAttrs

CODES = np.arange(-128, 128)
X = CODES.astype(np.int8).reshape(1, 1, 16, 16)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A 1x1 convolution of codes, scales chosen so that y = x * 3 / 8."""
    constants = {
        "xs": np.float32(1),
        "ws": np.float32(1 / 8),
        "ys": np.float32(1),
        "zero": np.int8(0),
        "w": np.int8([[[[3]]]]),
    }
    inputs = ["x", "xs", "zero", "w", "ws", "zero", "ys", "zero"]
    shape = [1, 1, 16, 16]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("QLinearConv", inputs, ["y"], name="conv")],
            "scaled",
            [helper.make_tensor_value_info("x", TensorProto.INT8, shape)],
            [helper.make_tensor_value_info("y", TensorProto.INT8, shape)],
            [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    path = tmp_path_factory.mktemp("scaled") / "scaled.onnx"
    onnx.save(model, path)
    return npusim.load(path)


def doubled(graph: Graph) -> dict[str, Any]:
    """The onnxruntime profile's lowering with twice the multiplier."""
    numbers = lowering_to_json(npusim.compile(graph, "onnxruntime", "numpy").lowering)
    multiplier = numbers["conv"]["multiplier"]
    multiplier["values"] = [2 * value for value in multiplier["values"]]
    return numbers


def carrying(graph: Graph, **changes: Any) -> Graph:
    entry = json.loads(lowering_metadata("onnxruntime", 1, doubled(graph))[METADATA_KEY])
    return graph.with_(metadata={METADATA_KEY: json.dumps(entry | changes)})


def result(graph: Graph, profile: str | None = None, choice: str | None = None) -> np.ndarray:
    return compile_chosen(graph, profile, "numpy", choice)[0].run({"x": X})["y"].ravel()


def test_without_metadata_or_choice_it_is_fresh(graph: Graph) -> None:
    program, note = compile_chosen(graph, None, "numpy")
    assert note == ""
    assert program.profile.name == npusim.DEFAULT_PROFILE
    np.testing.assert_array_equal(result(graph, "onnxruntime"), np.rint(CODES * 3 / 8))


def test_the_files_numbers_are_used_and_it_says_so(graph: Graph) -> None:
    program, note = compile_chosen(carrying(graph), None, "numpy")
    assert "carries" in note
    assert program.profile.name == "onnxruntime"
    np.testing.assert_array_equal(result(carrying(graph)), np.rint(CODES * 6 / 8))


def test_the_files_numbers_go_through_unchanged(graph: Graph) -> None:
    for profile in ("onnxruntime", "tflite", "neural-art"):
        fresh = npusim.compile(graph, profile, "numpy")
        kept = graph.with_(metadata=lowering_metadata(profile, 1, fresh.lowering))
        program, note = compile_chosen(kept, None, "numpy")
        assert "carries" in note
        assert program.profile.name == profile
        assert lowering_to_json(program.lowering) == lowering_to_json(fresh.lowering)


def test_fresh_numbers_on_demand(graph: Graph) -> None:
    fresh = result(carrying(graph), choice="fresh")
    np.testing.assert_array_equal(fresh, result(graph, "onnxruntime"))
    assert "not used" in compile_chosen(carrying(graph), None, "numpy", "fresh")[1]


def test_another_profile_has_no_use_for_them(graph: Graph) -> None:
    program, note = compile_chosen(carrying(graph), "tflite", "numpy")
    assert program.profile.name == "tflite"
    assert "unused" in note


def test_a_users_file(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"conv": {"multiplier": [1.0]}}), "utf-8")
    wanted = np.clip(CODES * 3, -128, 127)
    np.testing.assert_array_equal(result(graph, "onnxruntime", str(path)), wanted)
    np.testing.assert_array_equal(result(carrying(graph), choice=str(path)), wanted)
    path.write_text(json.dumps({"conv": {"multiplier": [1.0, 1.0]}}), "utf-8")
    with pytest.raises(UsageError, match="length"):
        result(graph, choice=str(path))
    with pytest.raises(UsageError, match="absent"):
        result(graph, choice=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "entry",
    [
        "no json",
        "[]",
        "3",
        "{}",
        '{"profile": 3, "nodes": {}}',
        '{"profile": "onnxruntime", "nodes": []}',
        '{"profile": "onnxruntime", "nodes": {"conv": 3}}',
        '{"profile": "zzz"}',
        "[" * 100_000,
        '{"profile": "onnxruntime", "nodes": {"other": {}}}',
        '{"profile": "onnxruntime", "nodes": {"conv": {"multiplier": [1, 2]}}}',
        '{"profile": "onnxruntime", "nodes": {"conv": {"lo": "a"}}}',
    ],
)
def test_damaged_entries_are_refused_with_the_way_out(graph: Graph, entry: str) -> None:
    damaged = graph.with_(metadata={METADATA_KEY: entry})
    with pytest.raises(ModelError, match=r"npusim\.lowering.*--lowering fresh"):
        compile_chosen(damaged, None, "numpy")
    fresh = result(damaged, "onnxruntime", "fresh")
    np.testing.assert_array_equal(fresh, result(graph, "onnxruntime"))


def test_a_carried_profile_that_is_unknown(graph: Graph) -> None:
    """The file is named, and a profile of the user's choice, or fresh numbers, are a way out."""
    strange = carrying(graph, profile="abacus").with_(path="net.onnx")
    with pytest.raises(ModelError, match=r"^net\.onnx: .*abacus.*--lowering fresh"):
        compile_chosen(strange, None, "numpy")
    assert "abacus: unused" in compile_chosen(strange, "onnxruntime", "numpy")[1]
    compile_chosen(strange, None, "numpy", "fresh")


class TestRecompilation:
    """A 1x1 convolution from 1 to 2 channels whose weights are trained."""

    @pytest.fixture
    def program(self) -> Any:
        codes = np.int8([[[[100]]], [[[-30]]]])
        q = QParams.make
        values = {
            "x": Value("x", TensorType("int8", (None, 1, 2, 2)), q(0.02, 3)),
            "w": Value("w", TensorType("int8", (2, 1, 1, 1)), q([0.01, 0.02], 0, 0)),
            "b": Value("b", TensorType("int32", (2,)), q([0.0002, 0.0004], 0, 0)),
            "y": Value("y", TensorType("int8", (None, 2, 2, 2)), q(0.03, -5)),
        }
        graph = Graph(
            "net",
            (values["x"],),
            (values["y"],),
            (Node("conv", "conv", ("x", "w", "b"), ("y",), ConvAttrs()),),
            values,
            {"w": codes, "b": np.int32([10, -20])},
        )
        return npusim.compile(graph, "neural-art", "numpy")

    def test_the_same_weights_change_nothing(self, program: Any) -> None:
        assert recompiled_differences(program, program.weights) == {}

    def test_weights_that_keep_the_sums_in_their_octave(self, program: Any) -> None:
        trained = program.weights.replaced({"w": np.int8([[127], [127]])})
        assert recompiled_differences(program, trained) == {}

    def test_a_larger_sum_shifts_more(self, program: Any) -> None:
        trained = program.weights.replaced({"w": np.int8([[-128], [0]])})
        assert sum_shift(np.int64([[128], [0]])) == 1
        assert recompiled_differences(program, trained) == {"conv": ("shift", "multiplier_shift")}
        again = recompiled(program, trained)
        assert (program.lowering["conv"].shift, again.lowering["conv"].shift) == (0, 1)
        assert again.weights.crc() == trained.crc()

    def test_a_trained_bias_moves_the_constant(self, program: Any) -> None:
        trained = program.weights.replaced({"b": np.int32([10, 500])})
        assert recompiled_differences(program, trained) == {"conv": ("constant", "bias")}

    def test_overrides_are_differences_too(self, program: Any) -> None:
        rescale = {"x": ("rescale", 3), "y": ("rescale", 4)}
        assert list(_differing({"a": rescale}, {"a": {**rescale, "y": ("rescale", 5)}})) == ["a.y"]
        assert list(_differing({"a": 1}, {"b": 1})) == ["type"]
        layer = program.lowering["conv"].changed(ties="half_up")
        changed = npusim.compile(program.graph, "neural-art", "numpy", {"conv": layer})
        assert recompiled_differences(changed, changed.weights) == {"conv": ("ties",)}

    def test_profiles_whose_numbers_come_from_scales_alone(self, program: Any) -> None:
        other = npusim.compile(program.graph, "onnxruntime", "numpy")
        trained = other.weights.replaced({"w": np.int8([[-128], [0]]), "b": np.int32([1, 2])})
        assert recompiled_differences(other, trained) == {}
