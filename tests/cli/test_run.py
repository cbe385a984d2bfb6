"""npusim run: arrays in, arrays out, a record beside them, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.cli import main

ENGINES = ("fast", "numpy")


def run(*arguments: object) -> int:
    return main(["run", *map(str, arguments)])


@pytest.mark.parametrize("engine", ENGINES)
def test_round_trip_equals_the_python_interface(
    model_path: Path, images: np.ndarray, tmp_path: Path, engine: str
) -> None:
    source, target = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(source, image=images)
    assert run(model_path, "--input", source, "--output", target, "--engine", engine) == 0
    program = npusim.compile(npusim.load(model_path), engine="numpy")
    wanted = program.run({"image": images})["scores"]
    with np.load(target) as written:
        assert written.files == ["scores"]
        assert written["scores"].dtype == np.float32
        np.testing.assert_array_equal(written["scores"], wanted)
    assert np.unique(wanted).size > 3


def test_single_arrays_as_npy(model_path: Path, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images)
    assert run(model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy") == 0
    assert np.load(tmp_path / "y.npy").shape == (5, 4)


def test_taps_are_written_too(model_path: Path, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images)
    arguments = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    assert run(*arguments, "--taps", "h_c*", "--taps", "x_codes") == 0
    with np.load(tmp_path / "y.npz") as written:
        assert set(written.files) == {"scores", "h_codes", "x_codes"}
        assert written["h_codes"].dtype == np.int8
        assert written["h_codes"].shape == (5, 2, 4, 4)


def test_taps_may_name_nodes(model_path: Path, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images)
    arguments = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    assert run(*arguments, "--taps", "conv") == 0
    with np.load(tmp_path / "y.npz") as written:
        assert set(written.files) == {"scores", "h_codes"}


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_standard_output_says_what_was_written(
    model_path: Path,
    images: np.ndarray,
    tmp_path: Path,
    quiet: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez(tmp_path / "x.npz", image=images, other=images)
    target = tmp_path / "y.npz"
    assert run(model_path, "--input", tmp_path / "x.npz", "--output", target, *quiet) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "scores: float32[5, 4]",
        f"output: {target}",
        f"record: {tmp_path / 'y.run.json'}",
    ]
    assert shown.err.startswith("" if quiet else "note: ")
    assert bool(shown.err) == (not quiet)


def test_an_output_is_replaced_on_request_only(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", images)
    given = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert run(*given) == 2
    assert "--overwrite" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), images)
    assert run(*given, "--overwrite") == 0
    assert np.load(tmp_path / "y.npy").shape == (5, 4)


def test_what_is_read_is_never_written(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    (tmp_path / "link.npy").symlink_to(tmp_path / "x.npy")
    (tmp_path / "y.run.json").write_text("{}")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    given = (model_path, "--overwrite", "--input", tmp_path / "x.npy", "--output")
    changes = ("--lowering", tmp_path / "y.run.json")
    for target, more in (("x.npy", ()), ("link.npy", ()), ("y.npy", changes)):
        assert run(*given, tmp_path / target, *more) == 2
        assert "is read and cannot be written" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_is_no_output(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    (tmp_path / "y.npy").mkdir()
    given = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert run(*given, "--overwrite") == 2
    assert "y.npy: there is a folder of this name" in capsys.readouterr().err


def test_the_run_is_recorded(model_path: Path, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images)
    arguments = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    assert run(*arguments, "--profile", "tflite") == 0
    record = json.loads((tmp_path / "y.run.json").read_text("utf-8"))
    assert record["arguments"]["profile"] == "tflite"
    assert set(record["inputs"]) == {str(model_path), str(tmp_path / "x.npy")}
    assert set(record["outputs"]) == {str(tmp_path / "y.npz")}


def test_results_do_not_depend_on_threads(
    model_path: Path, images: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", images)
    for threads in (1, 3):
        target = tmp_path / f"{threads}.npz"
        source = tmp_path / "x.npy"
        assert run(model_path, "--input", source, "--output", target, "--threads", threads) == 0
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "3.npz").read_bytes()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 1, 6, 5), np.float32), "image"),
        (np.zeros((5, 1, 6, 6), np.float64), "float64"),
        (np.zeros((36,), np.float32), "image"),
        (np.zeros((0, 1, 6, 6), np.float32), ""),
        (np.array(["cat"]), "image"),
    ],
)
def test_unfit_arrays_are_exit_code_3(
    model_path: Path,
    tmp_path: Path,
    array: np.ndarray,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "x.npy", array)
    code = run(model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    shown = capsys.readouterr()
    if array.size == 0:  # no image is a valid batch: its outputs are empty too
        assert code in (0, 3)
        return
    assert code == 3
    assert message in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not (tmp_path / "y.npz").exists()


def test_missing_names_are_listed(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", picture=images)
    assert run(model_path, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz") == 3
    error = capsys.readouterr().err
    assert "picture" in error
    assert "image" in error


def test_absent_files_are_exit_code_3(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    assert run(model_path, "--input", "absent.npz", "--output", tmp_path / "y.npz") == 3
    assert "absent.npz" in capsys.readouterr().err
    assert run("absent.onnx", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz") == 3
    assert "absent.onnx" in capsys.readouterr().err
    assert run(tmp_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz") == 3
    assert str(tmp_path) in capsys.readouterr().err


def test_unwritable_outputs_and_unknown_names_are_usage_errors(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    given = (model_path, "--input", tmp_path / "x.npy")
    assert run(*given, "--output", tmp_path / "y.txt") == 2
    assert run(*given, "--output", tmp_path / "absent" / "y.npz") == 2
    assert run(*given, "--output", tmp_path / "y.npz", "--profile", "abacus") == 2
    assert "onnxruntime" in capsys.readouterr().err
    assert run(*given, "--output", tmp_path / "y.npz", "--engine", "abacus") == 2
    assert run(*given, "--output", tmp_path / "y.npz", "--taps", "nothing*") == 2
    assert "nothing*" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated_models_are_exit_code_3(
    model_path: Path, tmp_path: Path, keep: float, capsys: pytest.CaptureFixture[str]
) -> None:
    content = model_path.read_bytes()
    size = int(keep * len(content)) if isinstance(keep, float) else keep
    (tmp_path / "cut.onnx").write_bytes(content[:size])
    assert main(["inspect", str(tmp_path / "cut.onnx")]) == 3
    shown = capsys.readouterr()
    assert "cut.onnx" in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_a_lowering_file_changes_the_result(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    numbers = tmp_path / "numbers.json"
    numbers.write_text('{"classifier": {"zero_point": 4}}', "utf-8")
    given = (model_path, "--input", tmp_path / "x.npy", "--taps", "y_codes")
    given += ("--profile", "onnxruntime")
    assert run(*given, "--output", tmp_path / "a.npz") == 0
    assert run(*given, "--output", tmp_path / "b.npz", "--lowering", numbers) == 0
    assert str(numbers) in capsys.readouterr().err
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        wanted = np.minimum(a["y_codes"].astype(int) + 1, 127)
        np.testing.assert_array_equal(
            b["y_codes"][a["y_codes"] > -128], wanted[a["y_codes"] > -128]
        )
    numbers.write_text('{"clasifier": {"zero_point": 4}}', "utf-8")
    given = (*given, "--output", tmp_path / "c.npz")
    assert run(*given, "--lowering", numbers) == 2
    shown = capsys.readouterr().err
    assert "Did you mean classifier?" in shown
    assert str(numbers) in shown
    numbers.write_text("{", "utf-8")
    assert run(*given, "--lowering", numbers) == 2
    assert str(numbers) in capsys.readouterr().err


def test_the_numpy_engine_needs_no_numba(
    model_path: Path, images: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", images)
    code = (
        "import sys; sys.modules.update(numba=None, llvmlite=None); "
        "from npusim.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    given = ["run", model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz"]
    results = {}
    for engine in ENGINES:
        line = [sys.executable, "-c", code, *map(str, given), "--engine", engine]
        results[engine] = subprocess.run(line, capture_output=True, text=True, check=False)
    assert results["numpy"].returncode == 0, results["numpy"].stderr
    assert results["fast"].returncode == 3
    assert "numba is missing" in results["fast"].stderr
    assert "--engine numpy" in results["fast"].stderr


def test_statistics(
    model_path: Path, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", images)
    arguments = (model_path, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    arguments += ("--overwrite",)
    found = []
    for engine in ENGINES:
        options = ("--stats", "--json", "--profile", "neural-art", "--engine", engine)
        assert run(*arguments, *options) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["outputs"]["scores"] == {"dtype": "float32", "shape": [5, 4]}
    layers = found[0]["statistics"]["layers"]
    assert layers["conv"]["outputs"] == 5 * 2 * 4 * 4
    assert layers["conv"]["streams"] == 2 * layers["conv"]["outputs"]
    assert run(*arguments, "--stats") == 0
    assert "classifier" in capsys.readouterr().out
    assert run(*arguments, "--json") == 0
    assert "statistics" not in json.loads(capsys.readouterr().out)
