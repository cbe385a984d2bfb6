"""npusim.compare, npusim.dumps and npusim.search: what differs, and what explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli import main
from npusim.compare import Mismatch, compare, difference
from npusim.dumps import Dump, fitted, read_dump
from npusim.errors import DumpError, NpusimError
from npusim.ir import Graph, Node, QParams, TensorType, Value
from npusim.numerics.lowered import lowering_to_json
from npusim.ops.conv import ConvAttrs
from npusim.ops.dequantize import DequantizeAttrs
from npusim.ops.gemm import GemmAttrs
from npusim.ops.global_average_pool import GlobalAveragePoolAttrs
from npusim.ops.quantize import QuantizeAttrs
from npusim.search import NETWORK, Setting, lowering_under, search


def network(floats: bool = False) -> Graph:
    """5x5 convolution of 16 channels, 1x1 convolution, mean, Gemm; optionally float at the ends."""
    rng = np.random.default_rng(3)

    def codes(*shape: int) -> Any:
        return rng.integers(-127, 128, shape).astype(np.int8)

    q = QParams.make
    types = {
        "x": ((None, 16, 6, 6), q(0.02, -128)),
        "a": ((None, 8, 6, 6), q(0.5, -128)),
        "b": ((None, 4, 6, 6), q(1.0, 3)),
        "m": ((None, 4), q(0.5, 3)),
        "y": ((None, 5), q(0.4, -4)),
    }
    weights = {"w": codes(8, 16, 5, 5), "v": codes(4, 8, 1, 1) // 16, "u": codes(5, 4)}
    scales = {"w": 0.01, "v": 0.16, "u": 0.01}
    values = {n: Value(n, TensorType("int8", s), p) for n, (s, p) in types.items()}
    values |= {
        n: Value(n, TensorType("int8", a.shape), q(scales[n], 0)) for n, a in weights.items()
    }
    nodes = (
        Node("conv", "first", ("x", "w"), ("a",), ConvAttrs(pads=(2, 2, 2, 2))),
        Node("conv", "second", ("a", "v"), ("b",), ConvAttrs()),
        Node("global_average_pool", "mean", ("b",), ("m",), GlobalAveragePoolAttrs(False)),
        Node("gemm", "last", ("m", "u"), ("y",), GemmAttrs()),
    )
    ends = ("x", "y")
    if floats:
        ends = ("image", "scores")
        values |= {
            "image": Value("image", TensorType("float32", (None, 16, 6, 6))),
            "scores": Value("scores", TensorType("float32", (None, 5))),
        }
        nodes = (
            Node("quantize", "q", ("image",), ("x",), QuantizeAttrs()),
            *nodes,
            Node("dequantize", "dq", ("y",), ("scores",), DequantizeAttrs()),
        )
    return Graph("net", (values[ends[0]],), (values[ends[1]],), nodes, values, weights)


X = np.random.default_rng(4).integers(-128, 128, (6, 16, 6, 6)).astype(np.int8)


def compiled(graph: Graph | None = None, *settings: Setting, profile: str = "neural-art") -> Any:
    base = npusim.compile(graph or network(), profile, "numpy")
    chosen, lowering = lowering_under(base, settings)
    return npusim.compile(base.graph, chosen, "numpy", lowering)


def dump_of(program: Any, *names: str) -> Dump:
    feeds = {program.graph.inputs[0].name: X}
    values = program.run(feeds, taps=names)
    return Dump("dump", feeds, {n: values[n] for n in names or values})


class TestDifference:
    def test_equal(self) -> None:
        found = difference("y", np.int8([[1, -128]]), np.int8([[1, -128]]))
        assert (found.values, found.differing, found.largest, found.first) == (2, 0, 0, ())
        assert found.decisions == 0

    def test_counts_first_places_and_decisions(self) -> None:
        a = np.int8([[1, 127, 0], [3, 2, 1], [5, 5, 5]])
        b = np.int8([[1, -128, 2], [3, 2, 2], [5, 5, 5]])
        found = difference("y", a, b)
        assert (found.values, found.differing, found.largest) == (9, 3, 255)
        assert found.first[:2] == (Mismatch((0, 1), 127, -128), Mismatch((0, 2), 0, 2))
        assert found.decisions == 1
        assert difference("y", a.reshape(3, 3, 1, 1), b.reshape(3, 3, 1, 1)).decisions == 1

    def test_only_some_places_are_kept(self) -> None:
        found = difference("y", np.zeros((2, 3, 4, 5), np.int8), np.ones((2, 3, 4, 5), np.int8))
        assert (found.differing, len(found.first), found.decisions) == (120, 5, None)

    def test_floats(self) -> None:
        a = np.float32([[0.5, np.nan, np.inf]])
        assert difference("y", a, a).differing == 0
        assert difference("y", a, np.float32([[0.75, 1, np.inf]])).differing == 2


class TestDumps:
    def write(self, folder: Path, **arrays: Any) -> Path:
        path = folder / "network_val_io.npz"
        np.savez(path, **arrays)
        return path

    @pytest.mark.parametrize("side", ["device", "reference"])
    def test_val_io(self, tmp_path: Path, side: str) -> None:
        y = compiled().run({"x": X})["y"]
        path = self.write(
            tmp_path,
            m_inputs_1=X.transpose(0, 2, 3, 1),
            c_inputs_1=X,
            m_outputs_1=y,
            c_outputs_1=(y ^ 1).reshape(6, 1, 1, 5),
            extra=y,
        )
        dump = read_dump(path, network(), side)
        assert np.array_equal(dump.inputs["x"], X)
        assert np.array_equal(dump.tensors["y"], y if side == "reference" else y ^ 1)
        assert dump.ignored == ("extra",)
        found = compare(compiled(), dump)
        assert found.equal == (side == "reference")
        assert found.tensors[0].largest == (side == "device")

    def test_tensors_by_name_come_in_execution_order(self, tmp_path: Path) -> None:
        program = compiled()
        values = program.run({"x": X}, taps=["*"])
        values["b"] = values["b"] + np.int8(1)
        path = self.write(tmp_path, y=values["y"], b=values["b"], a=values["a"], x=X, w=X)
        dump = read_dump(path, program.graph)
        assert dump.ignored == ("w",)
        found = compare(program, dump)
        assert [t.name for t in found.tensors] == ["a", "b", "y"]
        assert [bool(t.differing) for t in found.tensors] == [False, True, False]
        assert found.first_divergent is found.tensors[1]
        assert found.to_json()["first_divergent"] == "b"

    def test_codes_for_floats_and_floats_for_codes(self, tmp_path: Path) -> None:
        program = compiled(network(floats=True))
        y = compiled().run({"x": X})["y"]
        for scores in (y, (y.astype(np.float32) + 4) * np.float32(0.4)):
            dump = read_dump(self.write(tmp_path, image=X, scores=scores), program.graph)
            assert compare(program, dump).equal
        changed = y.copy()
        changed[2, 3] -= 2
        scores = (changed.astype(np.float32) + 4) * np.float32(0.4)
        found = compare(
            program, read_dump(self.write(tmp_path, image=X, scores=scores), program.graph)
        )
        assert (found.tensors[0].name, found.tensors[0].differing) == ("scores", 1)
        assert found.tensors[0].largest == 2
        real = (X.astype(np.float32) + 128) * np.float32(0.02)
        assert compare(compiled(), read_dump(self.write(tmp_path, x=real, y=y), network())).equal

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"y": np.zeros((6, 5), np.int8)}, "no array for input x.*got y"),
            ({"x": X}, "no array for any other tensor"),
            ({"m_inputs_1": X, "m_outputs_1": X}, "no array for any other tensor"),
            ({"x": X, "y": np.zeros((6, 4), np.int8)}, r"y: the array does not fit.*\[6, 4\]"),
            ({"x": X[:, :3], "y": np.zeros((6, 5), np.int8)}, "x: the array does not fit"),
            ({"x": X, "y": np.zeros((), np.int8)}, "y: the array does not fit"),
            ({"x": X.view(np.uint8), "y": np.zeros((6, 5), np.int8)}, "x: .*another type.*uint8"),
            ({"x": X, "y": np.zeros((6, 5), np.uint8)}, "y: .*another type.*uint8"),
        ],
    )  # fmt: skip
    def test_refused(self, tmp_path: Path, arrays: Any, message: str) -> None:
        path = self.write(tmp_path, **arrays)
        with pytest.raises(DumpError, match=message):
            compare(compiled(), read_dump(path, network()))

    def test_damaged_files(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npz"
        path.write_bytes(b"PK damaged")
        with pytest.raises(DumpError, match=r"x\.npz"):
            read_dump(path, network())
        np.save(tmp_path / "x.npy", X)
        with pytest.raises(DumpError, match="without a name"):
            read_dump(tmp_path / "x.npy", network())

    def test_channels_last_where_only_that_fits(self) -> None:
        value = Value("t", TensorType("int8", (None, 2, 3, 3)))
        array = np.arange(36, dtype=np.int8).reshape(2, 2, 3, 3)
        moved = array.transpose(0, 2, 3, 1)
        assert np.array_equal(fitted(moved, value, Path("d")), array)
        assert np.array_equal(fitted(array, value, Path("d")), array)


PLANTED = [
    Setting("first", "shift", 0),
    Setting("second", "shift", 0),
    Setting("first", "max_rows", 10**6),
    Setting("first", "channels", ((1, 1, 16),) * 2),
    Setting("first", "requant", "one_step"),
    Setting(NETWORK, "requant", "one_step"),
    Setting(NETWORK, "passes", "single"),
    Setting(NETWORK, "ties", "half_even"),
    Setting(NETWORK, "profile", "tflite"),
]


class TestSearch:
    @pytest.mark.parametrize("planted", PLANTED, ids=str)
    def test_a_planted_change_is_found(self, planted: Setting) -> None:
        base = compiled()
        if planted.what == "shift":
            planted = Setting(planted.where, "shift", base.lowering[planted.where].shift + 2)
        dump = dump_of(compiled(None, planted), "a", "b", "m", "y")
        assert not compare(base, dump).equal
        findings = search(base, dump, most_pairs=0)
        assert any((planted,) in e.alternatives for e in findings.explanations)
        assert findings.verdict != "not explained"
        for explanation in findings.explanations:
            for settings in explanation.alternatives:
                assert compare(compiled(None, *settings), dump).equal

    def test_tensors_of_all_layers_leave_one_explanation(self) -> None:
        base = compiled()
        planted = Setting("first", "max_rows", 10**6)
        findings = search(base, dump_of(compiled(None, planted), "a", "b", "m", "y"))
        assert findings.verdict == "explained"
        assert (planted,) in findings.explanations[0].alternatives

    def test_as_compiled_and_others_that_cannot_be_told_apart(self) -> None:
        base = compiled()
        # Zeros in, zeros out, whatever the rounding.
        zeros = {"x": np.full((2, 16, 6, 6), -128, np.int8)}
        dump = Dump("dump", zeros, dict(base.run(zeros)))
        findings = search(base, dump)
        assert findings.verdict == "several explain it equally"
        assert findings.explanations[0].alternatives == ((),)
        assert "as compiled" in str(findings.explanations[0])

    def test_what_changes_nothing_is_no_explanation(self) -> None:
        findings = search(compiled(), dump_of(compiled(), "a", "b", "m", "y"))
        assert findings.explanations[0].alternatives == ((),)
        assert not any(
            s.what == "unit_map" for e in findings.explanations for a in e.alternatives for s in a
        )

    def test_pairs_only_where_nothing_single_explains(self) -> None:
        base = compiled()
        shift = base.lowering["second"].shift + 2
        both = (Setting("first", "max_rows", 10**6), Setting("second", "shift", shift))
        dump = dump_of(compiled(None, *both), "a", "b")
        alone = search(base, dump, most_pairs=0)
        assert alone.verdict == "not explained"
        assert alone.closest[0][1] > 0
        findings = search(base, dump, most_pairs=300)
        wanted = lowering_to_json(lowering_under(base, both)[1])
        found = [a for e in findings.explanations for a in e.alternatives]
        assert wanted in [lowering_to_json(lowering_under(base, a)[1]) for a in found]
        assert {len(settings) for settings in found} == {2}
        assert findings.skipped > 0

    def test_not_explained(self) -> None:
        program = compiled()
        dump = dump_of(program, "a", "y")
        dump.tensors["a"][5, 3, 1, 1] ^= 64  # type: ignore[index]
        findings = search(program, dump, most_pairs=40)
        assert findings.verdict == "not explained"
        assert findings.to_json()["explanations"] == []
        assert findings.closest[0] == ((), 0)  # the first images are equal

    def test_another_profile_has_profiles_to_try(self) -> None:
        base = compiled(profile="onnxruntime")
        findings = search(base, dump_of(compiled(), "a", "b", "m", "y"))
        assert findings.verdict == "explained"
        assert (Setting(NETWORK, "profile", "neural-art"),) in findings.explanations[0].alternatives

    def test_unusable_settings_are_left_out(self) -> None:
        with pytest.raises(NpusimError):
            compiled(None, Setting(NETWORK, "ties", "floor"))


GOLDEN = ("conv16_3x3", "conv32_1x1", "conv32_5x5", "depthwise_3x3")


class TestCommand:
    def paths(self, shared: Path, network: str) -> list[str]:
        folder = shared / "golden" / "neural_art" / network
        return [str(folder / "model.onnx"), str(folder / "network_val_io.npz")]

    @pytest.mark.parametrize("network", GOLDEN)
    def test_the_board_is_equal(
        self, shared: Path, network: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = self.paths(shared, network)
        assert main(["compare", *paths, "--profile", "neural-art", "--engine", "numpy"]) == 0
        assert "1 of 1 tensors equal" in capsys.readouterr().out

    def test_the_search_names_the_profile(
        self, shared: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--profile", "onnxruntime", "--search", "--json"]
        assert main(["compare", *self.paths(shared, "conv16_3x3"), *options]) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["tensors"][0]["differing"] == 5
        assert report["tensors"][0]["largest"] == 1
        assert report["search"]["verdict"] == "explained"
        (alternatives,) = report["search"]["explanations"]
        assert [{"where": "network", "what": "profile", "value": "neural-art"}] in alternatives

    def test_text(self, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
        paths = self.paths(shared, "conv32_5x5")
        options = ["--profile", "tflite", "--search"]
        assert main(["compare", *paths, *options]) == 1
        text = capsys.readouterr().out
        assert "of 320 values differ, by up to" in text
        assert "expected" in text
        assert "equal with network: profile = neural-art" in text

    def test_pairs_without_a_search_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", "absent.onnx", "absent.npz", "--pairs", "3"]) == 2
        assert "--search" in capsys.readouterr().err

    def test_a_dump_that_cannot_be_read(
        self, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = self.paths(shared, "conv16_3x3")[0]
        assert main(["compare", model, str(tmp_path / "absent.npz")]) == 3
        assert "absent.npz" in capsys.readouterr().err
