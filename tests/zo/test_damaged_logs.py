"""Logs that are JSON but not what a run writes are refused with the line's number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from digits_task import MODEL

import npusim
from npusim.cli import main
from npusim.errors import CheckpointError
from npusim.zo.run import TrainResult, replay

Train = Callable[..., TrainResult]
MISSING = object()


def changed(log: Path, number: int, path: tuple[Any, ...], value: Any) -> None:
    """Set a field of line ``number``, or remove it."""
    lines = log.read_text().splitlines()
    record = place = json.loads(lines[number - 1])
    for key in path[:-1]:
        place = place[key]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    lines[number - 1] = json.dumps(record)
    log.write_text("\n".join(lines) + "\n")


HEADER = [
    (("settings",), MISSING),
    (("settings",), 5),
    (("settings",), []),
    (("settings", "seed"), MISSING),
    (("settings", "seed"), "x"),
    (("settings", "mu"), "x"),
    (("settings", "batch"), 1.5),
    (("settings", "clip"), "x"),
    (("settings", "q"), 7),
    (("settings", "lr"), [1]),
    (("settings", "mask"), 3),
    (("settings", "train_layers"), [5]),
    (("settings", "layer_mu"), 5),
    (("settings", "unknown"), 5),
    (("table",), MISSING),
    (("table",), 5),
    (("table",), []),
    (("table", 0, 0, 0), {}),
    (("table", 0, 0, 0, "mult"), "x"),
    (("table", 0, 0, 0, "shift"), 1.0),
    (("table", 0, 0, 0, "shift"), 2**70),
    (("model_crc",), MISSING),
    (("model_crc",), "x"),
    (("graph",), MISSING),
    (("loss_bits",), "x"),
    (("loss_bits",), 2**70),
    (("schema_version",), MISSING),
]
STEP = [
    (("d",), MISSING),
    (("d",), 5),
    (("d",), []),
    (("d", 0), "x"),
    (("d", 0), 2**70),
    (("d", 0), 1.5),
    (("d", 0), None),
    (("q_index",), 99),
    (("q_index",), -1),
    (("q_index",), "x"),
    (("lr_index",), 1),
    (("lr_index",), MISSING),
    (("step",), 7),
    (("step",), True),
    (("step",), MISSING),
    (("mu",), "x"),
]


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [*((1, *case) for case in HEADER), *((3, *case) for case in STEP)],
)
def test_fields_that_no_run_writes_are_refused(
    line: int, path: tuple[Any, ...], value: Any, train_digits: Train
) -> None:
    log = train_digits(steps=2, q="fixed:2").files["log"]
    assert replay(MODEL, log).equal
    changed(log, line, path, value)
    with pytest.raises(CheckpointError, match=r"log\.jsonl") as caught:
        replay(MODEL, log)
    assert f"log.jsonl:{line}:" in str(caught.value) or path == ("graph",)
    assert main(["train", str(MODEL), "--replay", str(log)]) == 3


def test_a_step_too_few_is_noticed(train_digits: Train) -> None:
    log = train_digits(steps=3).files["log"]
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3] + lines[4:]))
    with pytest.raises(CheckpointError, match=r"log\.jsonl:4: .*this step"):
        replay(MODEL, log)


def test_deep_nesting_is_a_damaged_line(train_digits: Train) -> None:
    log = train_digits(steps=2).files["log"]
    log.write_bytes(log.read_bytes() + b"[" * 100_000 + b"\n")
    with pytest.raises(CheckpointError, match="damaged"):
        replay(MODEL, log)


@pytest.mark.parametrize("update", ["residual", "faithful", "sr", "sign", "int8-acc"])
@pytest.mark.parametrize("scaling", ["linear", "none"])
def test_a_rate_beyond_any_use_is_refused(
    update: str, scaling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--update", update, "--lr", "1e308", "--lr-scaling", scaling, "--train-bias"]
    out = tmp_path / "out"
    words = ["train", str(MODEL), "--out", str(out), "--limit", "100", "--engine", "numpy"]
    assert main([*words, *options]) == 1
    assert "--lr: the learning rate" in capsys.readouterr().err
    assert not out.exists()


def test_another_network_with_these_weights_is_refused(
    train_digits: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = train_digits(steps=2).files["log"]
    graph = npusim.load(MODEL)
    other = graph.with_(outputs=(*graph.outputs, *graph.outputs))
    monkeypatch.setattr(npusim, "load", lambda *_: other)
    with pytest.raises(CheckpointError, match="another network"):
        replay(MODEL, log)
