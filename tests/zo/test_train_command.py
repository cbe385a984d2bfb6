"""npusim train on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from digits_task import MODEL

from npusim.cli import main
from npusim.models import METADATA_KEY

SHORT = ("--limit", "100", "--batch", "5", "--lr", "0.5", "--threads", "1")


def run(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


@pytest.mark.parametrize("update", ["residual", "faithful"])
def test_trains_and_says_what_came_of_it(
    update: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(MODEL, "--out", out, "--steps", 5, *SHORT, "--update", update) == 0
    text = capsys.readouterr().err
    for word in ("accuracy before", "accuracy after", "interval", "trained.onnx", "log.jsonl"):
        assert word in text
    names = {path.name for path in out.iterdir()}
    assert names == {"trained.onnx", "log.jsonl", "checkpoint.h5", "run.json"}
    info = json.loads((out / "run.json").read_text())
    assert info["arguments"]["update"] == update
    assert info["result"]["steps"] == 5


def test_json_goes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(MODEL, "--out", out, "--steps", 2, *SHORT, "--shift", "noise:0.1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["finished"] is True
    assert result["after"]["total"] == result["clean_after"]["total"] == 20


def test_resumes_without_repeating_any_option(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = (*SHORT, "--q", "fixed:2", "--shift", "noise:0.1", "--val-split", "0.3")
    assert run(MODEL, "--out", whole, "--steps", 6, *options) == 0
    assert run(MODEL, "--out", parts, "--steps", 2, *options) == 0
    assert run(MODEL, "--out", parts, "--steps", 6, "--resume") == 0
    assert (parts / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_a_resumed_run_cannot_change_course(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(MODEL, "--out", tmp_path, "--steps", 2, *SHORT) == 0
    assert run(MODEL, "--out", tmp_path, "--steps", 4, "--resume", "--lr", "0.1") == 2
    assert "--lr" in capsys.readouterr().err


def test_a_preset_gives_way_to_what_is_given(tmp_path: Path) -> None:
    arguments = ("--preset", "zo-i8", "--q", "fixed:4", "--steps", 2, *SHORT)
    assert run(MODEL, "--out", tmp_path, *arguments) == 0
    header = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    settings = header["settings"]
    assert (settings["sides"], settings["q"], settings["batch"]) == ("leave-one-out", "fixed:4", 5)
    assert {t["kind"] for t in header["tensors"]} == {"weight", "bias"}
    assert run(MODEL, "--out", tmp_path, "--steps", 4, "--resume") == 0


@pytest.mark.parametrize("preset", ["zo-i8", "qscheduler-faithful", "qscheduler-faithful-int8"])
def test_explains_every_constant(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MODEL, "--explain", "--preset", preset, "--mu", 3) == 0
    text = capsys.readouterr().out
    assert "mu = 3  (given)" in text
    assert f"(preset {preset})" in text
    assert "seed = 0  (npusim's default)" in text
    first = {"zo-i8": 16, "qscheduler-faithful": 1, "qscheduler-faithful-int8": 16}[preset]
    assert f"  q {first}: " in text
    for word in ("Estimate", "Update", "window", "not public"):
        assert word in text


def test_a_last_layer_by_its_place(tmp_path: Path) -> None:
    assert run(MODEL, "--out", tmp_path, "--train-layers", "@last", "--steps", 1, *SHORT) == 0
    header = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert [t["id"] for t in header["tensors"]] == [4]


def test_replays_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MODEL, "--out", tmp_path, "--steps", 4, *SHORT) == 0
    log = tmp_path / "log.jsonl"
    assert run(MODEL, "--replay", log) == 0
    assert "equal" in capsys.readouterr().err
    text = log.read_text().replace('"reason":"finished","step":4,"crc":', '"crc":1')
    log.write_text(text)
    assert run(MODEL, "--replay", log) == 1
    assert "differs" in capsys.readouterr().err


def test_without_data_the_sentence_shows_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    model = onnx.load(MODEL)
    kept = [p for p in model.metadata_props if p.key != METADATA_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    path = tmp_path / "nameless.onnx"
    onnx.save(model, path)
    assert run(path, "--out", tmp_path / "out", "--steps", 1) == 3
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "MODEL"),
        ((MODEL, "--demo"), "MODEL"),
        ((MODEL,), "--out"),
        (("--replay", "log.jsonl"), "MODEL"),
        ((MODEL, "--out", "x", "--q", "sometimes"), "--q"),
        ((MODEL, "--out", "x", "--window", "week"), "--window"),
        ((MODEL, "--out", "x", "--mu", "500"), "--mu"),
        ((MODEL, "--out", "x", "--preset", "best"), "--preset"),
        ((MODEL, "--out", "x", "--lr", "fast"), "--lr"),
        ((MODEL, "--out", "x", "--q", "ramp:1:4", "--steps", "3"), "--horizon"),
        ((MODEL, "--out", "x", "--sides", "leave-one-out", "--q", "fixed:1"), "leave-one-out"),
        ((MODEL, "--out", "x", "--q", "variance:3"), "--q"),
        ((MODEL, "--out", "x", "--mask", "half"), "--mask"),
        ((MODEL, "--out", "x", "--layer-mu", "conv9=2"), "--layer-mu"),
        ((MODEL, "--out", "x", "--loss", "float"), "--loss"),
        ((MODEL, "--out", "x", "--no-train-weights"), "--no-train-weights"),
        ((MODEL, "--out", "x", "--q0", "64", "--q-max", "8"), "--q0"),
    ],
)
def test_usage_errors(
    arguments: tuple[object, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert word in capsys.readouterr().err


def test_the_demo_leaves_a_model_that_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--demo", "--steps", 3) == 0
    demo = tmp_path / "npusim-demo" / "demo.onnx"
    assert demo.read_bytes() == MODEL.read_bytes()
    assert "accuracy after" in capsys.readouterr().err
    assert run("--demo", "--steps", 3) == 0, "the demonstration can be repeated"
    shutil.copy(demo, tmp_path / "demo.onnx")
    assert run("demo.onnx", "--out", "again", "--steps", 2, "--limit", 100) == 0


@pytest.mark.long
def test_the_demo_adapts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracy after stands clearly above before: their intervals are apart."""
    assert run("--demo", "--out", tmp_path / "demo", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["after"]["interval"][0] > result["before"]["interval"][1] + 0.2
