"""npusim train on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from digits_task import MODEL

from npusim.cli import main
from npusim.cli.train_report import Meter
from npusim.models import METADATA_KEY
from npusim.zo.loop import Limits, Progress

SHORT = ("--limit", "100", "--batch", "5", "--lr", "0.5", "--threads", "1")


def run(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


@pytest.mark.parametrize("update", ["residual", "faithful"])
def test_trains_and_says_what_came_of_it(
    update: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(MODEL, "--out", out, "--steps", 5, *SHORT, "--update", update) == 0
    text = capsys.readouterr().out
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
    capsys.readouterr()
    assert run(MODEL, "--replay", log, "-q") == 0
    shown = capsys.readouterr()
    assert "replayed 4 steps" in shown.out
    assert "equal to all checksums of the log (1)" in shown.out
    assert shown.err == ""
    text = log.read_text().replace('"reason":"finished","step":4,"crc":', '"crc":1')
    log.write_text(text)
    assert run(MODEL, "--replay", log) == 1
    assert "differs" in capsys.readouterr().out
    assert run(MODEL, "--replay", log, "--json") == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["equal"] is False
    assert verdict["steps"] == 4
    assert verdict["mismatch"] == 4


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
        ((MODEL, "--out", "x", "--q", "fixed:0"), "1 or more"),
        ((MODEL, "--out", "x", "--train-layers", "nothing"), "--train-layers nothing"),
        ((MODEL, "--out", "x", "--resize-filter", "magic"), "--resize-filter"),
        ((MODEL, "--out", "x", "--std", "0"), "--std"),
        ((MODEL, "--out", "x", "--mean", "1,2"), "--mean"),
        ((MODEL, "--explain", "--json"), "--json"),
        (("--demo", "--q-json", "x.json"), "--q-json"),
        ((MODEL, "--out", "x", "--q", "fixed:4", "--q0", "2"), "--q0"),
        ((MODEL, "--out", "x", "--q", "fixed:4", "--q-max", "2"), "--q-max"),
        ((MODEL, "--out", "x", "--horizon", "9"), "--horizon"),
        ((MODEL, "--out", "x", "--history", "9"), "--history"),
        ((MODEL, "--out", "x", "--acc-bits", "8"), "--acc-bits"),
        ((MODEL, "--out", "x", "--acc-residual"), "--acc-residual"),
        ((MODEL, "--out", "x", "--update", "sign", "--residual-bits", "16"), "--residual-bits"),
        ((MODEL, "--out", "x", "--val-data-split", "test"), "--val-data"),
        ((MODEL, "--out", "x", "--val-data", "digits", "--val-split", "0.3"), "--val-split"),
        ((MODEL, "--out", "x", "--shift-seed", "3"), "--shift"),
        ((MODEL, "--out", "x", "--resume", "--overwrite"), "--overwrite"),
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
    assert not Path("x").exists()


def test_the_demo_leaves_a_model_that_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--demo", "--steps", 3) == 0
    demo = tmp_path / "npusim-demo" / "demo.onnx"
    assert demo.read_bytes() == MODEL.read_bytes()
    shown = capsys.readouterr()
    assert "accuracy after" in shown.out
    before = (tmp_path / "npusim-demo" / "log.jsonl").read_bytes()
    command = shown.err.splitlines()[-1].split()
    assert command[:3] == ["npusim", "train", "npusim-demo/demo.onnx"]
    for word in ("--data", "--shift", "--lr", "--out"):
        assert word in command
    assert run(*command[2:]) == 0
    again = command[command.index("--out") + 1]
    assert (tmp_path / again / "log.jsonl").read_bytes() == before
    assert run("--demo", "--steps", 2) == 0, "the demonstration can be repeated"
    assert (tmp_path / "npusim-demo-2" / "trained.onnx").exists()
    assert (tmp_path / "npusim-demo" / "log.jsonl").read_bytes() == before
    assert run("--demo", "--steps", 2, "--out", "npusim-demo") == 2
    assert (tmp_path / "npusim-demo" / "log.jsonl").read_bytes() == before
    assert run("--demo", "--steps", 2, "--overwrite") == 0
    assert (tmp_path / "npusim-demo" / "log.jsonl").read_bytes() != before
    shutil.copy(demo, tmp_path / "demo.onnx")
    assert run("demo.onnx", "--out", "again", "--steps", 2, "--limit", 100) == 0


@pytest.mark.long
def test_the_demo_adapts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracy after stands clearly above before: their intervals are apart."""
    assert run("--demo", "--out", tmp_path / "demo", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["after"]["interval"][0] > result["before"]["interval"][1] + 0.2


@pytest.mark.parametrize(
    "option",
    [
        ("--seed", 99),
        ("--lr", 3),
        ("--data", "digits"),
        ("--out", "d"),
        ("--profile", "tflite"),
        ("--overwrite",),
        ("--shift", "noise:1"),
        ("--demo",),
    ],
)
def test_a_replay_refuses_what_it_does_not_look_at(
    option: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(MODEL, "--replay", tmp_path / "log.jsonl", *option) == 2
    assert f"--replay makes no use of {option[0]}." in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["half a line", "whole lines"])
def test_a_log_that_was_cut_is_not_equal(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(MODEL, "--out", tmp_path, "--steps", 4, *SHORT, "--crc-every", 1) == 0
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    steps = [i for i, line in enumerate(lines) if json.loads(line)["type"] == "step"]
    rest = lines[steps[2]][:30] if kept == "half a line" else b""
    log.write_bytes(b"".join(lines[: steps[2]]) + rest)
    capsys.readouterr()
    assert run(MODEL, "--replay", log) == 1
    shown = capsys.readouterr()
    assert "replayed 2 steps" in shown.out
    assert "the rest of the run is not in the log" in shown.out
    assert ("last line of the log is incomplete" in shown.err) == bool(rest)
    assert "warning: " in shown.err


def test_results_stay_with_q_and_notes_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (MODEL, "--steps", 2, *SHORT)
    assert run(*given, "--out", tmp_path / "a") == 0
    loud = capsys.readouterr()
    assert run(*given, "--out", tmp_path / "b", "-q") == 0
    quiet = capsys.readouterr()
    assert "note: " in loud.err
    assert loud.err.startswith("preparing")
    assert "note: " not in quiet.err
    assert "preparing" not in quiet.err
    assert quiet.out == loud.out.replace(f"{tmp_path}/a", f"{tmp_path}/b")


def test_a_folder_that_is_taken_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.jsonl").write_text("an earlier run")
    assert run(tmp_path / "absent.onnx", "--data", "absent", "--out", tmp_path) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "log.jsonl").read_text() == "an earlier run"
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "absent.onnx", "--data", "absent", "--out", tmp_path / "file") == 2


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--max-forwards", 7), "--max-forwards 10 or more"),
        (("--max-forwards", 39, "--q", "fixed:4"), "--max-forwards 40 or more"),
        (("--steps", 2, "--lr", 1e-7), "raise --lr"),
    ],
)
def test_a_run_that_did_nothing_says_what_to_do(
    options: tuple[object, ...], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (MODEL, "--out", tmp_path, *SHORT[:4], "--threads", 1)
    rate = () if "--lr" in options else ("--lr", 0.5)
    assert run(*given, *rate, *options, "-q") == 0
    shown = capsys.readouterr()
    assert " 0 codes changed" in shown.out
    assert advice in shown.err


def test_scales_beside_a_model_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def load(path: object, q_json: object = None) -> object:
        seen.append(q_json)
        return original(path)

    import npusim

    original = npusim.load
    monkeypatch.setattr(npusim, "load", load)
    scales = tmp_path / "scales.json"
    scales.write_text("{}")
    out = tmp_path / "out"
    assert run(MODEL, "--out", out, "--steps", 1, *SHORT, "--q-json", scales) == 0
    assert run(MODEL, "--replay", out / "log.jsonl", "--q-json", scales) == 0
    assert run(MODEL, "--explain", "--q-json", scales) == 0
    assert seen == [scales] * 3
    assert str(scales) in json.loads((out / "run.json").read_text())["inputs"]


def test_the_learning_rate_is_measured_where_none_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (MODEL, "--limit", 100, "--batch", 5, "--threads", 1, "--steps", 1)
    assert run(*given, "--out", tmp_path / "a") == 0
    assert "--lr auto is" in capsys.readouterr().err
    assert run(*given, "--out", tmp_path / "b", "--lr", "auto") == 0
    assert (tmp_path / "a" / "log.jsonl").read_bytes() == (
        tmp_path / "b" / "log.jsonl"
    ).read_bytes()
    for update in ("faithful", "sign"):
        capsys.readouterr()
        assert run(*given, "--out", tmp_path / update, "--update", update) == 0
        assert "auto" not in capsys.readouterr().err


def test_the_speed_is_that_of_the_last_seconds_and_starts_after_the_first_step() -> None:
    now = [1000.0]
    meter = Meter(Limits(forwards=10_000), lambda: now[0])

    def step(number: int, forwards: int, seconds: float) -> str:
        now[0] += seconds
        progress = Progress(number, forwards, 1, 2.0, None)
        meter.see(progress)
        return meter.text(progress)

    assert "left" not in step(1, 100, 60.0)
    assert meter.speed == 0
    assert "100/s" in step(2, 200, 1.0)
    assert "97 s left" in step(3, 300, 1.0)
    for number in range(4, 44):
        text = step(number, 300 + 10 * (number - 3), 1.0)
    assert "10/s" in text
    assert "930 s left" in text
