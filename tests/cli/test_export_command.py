"""npusim export: a checkpoint's weights in the model's own file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import npusim
from npusim.cli import main
from npusim.weights import WeightStore
from npusim.zo.checkpoint import load_checkpoint

GREY = ("--scale", str(1 / 255), "--channel-order", "GRAY")


def export(*arguments: object) -> int:
    return main(["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_path: Path, data_path: Path) -> Path:
    """The folder of a short training run that changes weights."""
    out = tmp_path_factory.mktemp("run") / "out"
    options = ["--steps", "20", "--lr", "5", "--batch", "4", "--engine", "numpy", "-q"]
    given = ["train", str(model_path), "--data", str(data_path), "--out", str(out), *GREY]
    assert main([*given, *options]) == 0
    return out


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_it_equals_what_training_wrote(model_path: Path, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.onnx"
    assert export(model_path, "--checkpoint", run / "checkpoint.h5", "--output", target) == 0
    assert target.read_bytes() == (run / "trained.onnx").read_bytes()
    assert (tmp_path / "again.run.json").exists()


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_standard_output_says_what_was_written(
    model_path: Path,
    run: Path,
    tmp_path: Path,
    quiet: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "again.onnx"
    given = (model_path, "--checkpoint", run / "checkpoint.h5", "--output", target, *quiet)
    assert export(*given) == 0
    shown = capsys.readouterr()
    assert "again.onnx is the given network" in shown.out
    assert f"output: {target}" in shown.out
    assert f"record: {tmp_path / 'again.run.json'}" in shown.out
    assert shown.err == ""


def test_a_file_is_replaced_on_request_only(
    model_path: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "again.onnx"
    target.write_bytes(b"precious")
    given = (model_path, "--checkpoint", run / "checkpoint.h5", "--output", target)
    assert export(*given) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert target.read_bytes() == b"precious"
    assert export(*given, "--overwrite") == 0
    assert target.read_bytes() == (run / "trained.onnx").read_bytes()


def test_what_is_read_is_never_written(
    model_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = run / "checkpoint.h5"
    before = {p: p.read_bytes() for p in (model_path, checkpoint)}
    for target in before:
        given = (model_path, "--checkpoint", checkpoint, "--output", target, "--overwrite")
        assert export(*given) == 2
        assert f"{target}: this file is read and cannot be" in capsys.readouterr().err
    assert export(model_path, "--checkpoint", checkpoint, "--output", run.parent / "..") == 2
    assert {p: p.read_bytes() for p in before} == before


def test_only_trained_tensors_change(model_path: Path, run: Path) -> None:
    before, after = initializers(model_path), initializers(run / "trained.onnx")
    assert list(before) == list(after)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed
    assert changed <= {"w", "v", "b"}
    for name in changed:
        assert before[name].dtype == after[name].dtype
        assert before[name].shape == after[name].shape


def test_the_weights_are_those_of_the_checkpoint(run: Path) -> None:
    store = WeightStore.of(npusim.load(run / "trained.onnx"))
    assert store.crc() == load_checkpoint(run / "checkpoint.h5").weights_crc


def test_another_model_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, target = run / "trained.onnx", tmp_path / "y.onnx"
    assert export(other, "--checkpoint", run / "checkpoint.h5", "--output", target) == 3
    assert "did not start from this model" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("content", [None, b"", b"no HDF5", "half"])
def test_a_bad_checkpoint_is_refused(
    content: bytes | str | None,
    model_path: Path,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, target = tmp_path / "c.h5", tmp_path / "y.onnx"
    if content == "half":
        whole = (run / "checkpoint.h5").read_bytes()
        content = whole[: len(whole) // 2]
    if isinstance(content, bytes):
        path.write_bytes(content)
    assert export(model_path, "--checkpoint", path, "--output", target) == 3
    shown = capsys.readouterr().err
    assert "c.h5" in shown
    assert len(shown.strip().splitlines()) == 1
    assert not target.exists()


def test_a_folder_that_is_not_there(model_path: Path, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "absent" / "y.onnx"
    assert export(model_path, "--checkpoint", run / "checkpoint.h5", "--output", target) in (2, 3)
