"""npusim evaluate: accuracy against a count by hand, independent of batches and threads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.cli import main
from npusim.statistics import wilson

GREY = ("--scale", str(1 / 255), "--channel-order", "GRAY")


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_the_count_is_right(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(capsys, model_path, "--data", data_path, *GREY)
    with np.load(data_path) as data:
        x = (data["x"] * np.float32(1 / 255)).astype(np.float32)[:, None]
        labels = data["y"]
    scores = npusim.compile(npusim.load(model_path), engine="numpy").run({"image": x})["scores"]
    correct = int((scores.argmax(1) == labels).sum())
    assert 0 < correct < 23
    assert (result["correct"], result["total"]) == (correct, 23)
    assert result["top1"] == pytest.approx(correct / 23)
    assert result["interval"] == pytest.approx(list(wilson(correct, 23)))


def test_batches_threads_and_engine_change_nothing(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = evaluated(capsys, model_path, "--data", data_path, *GREY, "--threads", 1)
    for options in (("--batch", 1), ("--batch", 7, "--threads", 2), ("--engine", "numpy")):
        again = evaluated(capsys, model_path, "--data", data_path, *GREY, *options)
        assert again | {"engine": "fast"} == first


def test_limit_and_text(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(capsys, model_path, "--data", data_path, *GREY, "--limit", 8)
    assert result["total"] == 8
    assert main(["evaluate", str(model_path), "--data", str(data_path), *GREY]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("top-1 ")
    assert "of 23" in shown.out


def test_statistics_do_not_depend_on_batches(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--data", data_path, *GREY, "--profile", "neural-art", "--stats")
    first, again = (
        evaluated(capsys, model_path, *options, "--batch", batch)["statistics"] for batch in (1, 9)
    )
    assert first == again
    assert isinstance(first, dict)
    assert first["layers"]["conv"]["outputs"] == 23 * 2 * 4 * 4
    assert main(["evaluate", *map(str, (model_path, *options))]) == 0
    assert "saturated" in capsys.readouterr().out


def test_a_shift_is_seeded(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shifted = (model_path, "--data", data_path, *GREY, "--shift", "noise:0.3", "--shift-seed", 5)
    assert evaluated(capsys, *shifted) == evaluated(capsys, *shifted)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 3),
        (("--data", "absent"), 3),
        (("--data", "{tmp}"), 3),
        (("--data", "{data}", "--shift", "earthquake:3"), 2),
        (("--data", "{data}", "--limit", "0"), 2),
        (("--data", "{data}", "--batch", "0"), 2),
        (("--data", "{data}", "--split", "absent"), 3),
        (("--data", "digits"), 3),
    ],
)
def test_bad_input_is_one_clear_line(
    options: tuple[str, ...],
    code: int,
    model_path: Path,
    data_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [option.format(tmp=tmp_path, data=data_path) for option in options]
    assert main(["evaluate", str(model_path), *filled]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "npusim itself" not in shown.err
    assert "Traceback" not in shown.err
