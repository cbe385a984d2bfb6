"""What no mode's bits may depend on: threads, batch split, blocks, engine, interruptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from digits_task import MODEL

import npusim
from npusim.zo import run as run_module
from npusim.zo import step as step_module
from npusim.zo.run import TrainResult, replay

Train = Callable[..., TrainResult]

MODES: dict[str, dict[str, Any]] = {
    "residual": {"update": "residual"},
    "residual-16": {"update": "residual", "residual_bits": 16},
    "faithful": {"update": "faithful", "lr": 20.0},
    "faithful-float": {"update": "faithful", "lr": 20.0, "loss": "float"},
    "sr": {"update": "sr"},
    "sign": {"update": "sign", "lr": 0.002, "train_bias": True},
    "replay-residual": {"update": "replay-residual", "history": 3},
    "int16-acc": {"update": "int8-acc", "q": "fixed:6"},
    "int8-acc": {"update": "int8-acc", "acc_bits": 8, "q": "fixed:6"},
    "int8-acc-residual": {"update": "int8-acc", "acc_bits": 8, "acc_residual": True},
    "leave-one-out": {"sides": "leave-one-out", "q": "fixed:3", "train_bias": True},
    "one-sided": {"sides": "one-sided", "train_bias": True, "train_weights": False},
    "gaussian": {"direction": "gaussian", "sides": "one-sided"},
    "real": {"geometry": "real", "train_bias": True},
    "masks": {"mask": "random:0.3", "gate": True, "layer_mu": ("fc*=1",), "train_bias": True},
    "clip": {"clip": 0.5},
    "auto": {"lr": "auto", "sides": "leave-one-out"},
    "layerq": {"layerq": True, "q": "fixed:4", "train_bias": True},
    "variance": {"q": "variance:2", "window": 40, "q_max": 8},
    "ramp": {"q": "ramp:1:3", "horizon": 300, "lr_schedule": "cosine"},
    "validation": {"q": "qscheduler", "window": 30, "patience": 1, "metric": "val-accuracy",
                   "lr_schedule": "patience", "reset_best": True},
}  # fmt: skip


def options_of(name: str) -> dict[str, Any]:
    return {"q": "fixed:2", "lr": 0.5, **MODES[name]}


def log_of(result: TrainResult) -> bytes:
    return result.files["log"].read_bytes()


@pytest.mark.parametrize("name", MODES)
def test_bits_depend_on_nothing_but_the_settings(
    name: str, train_digits: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(name)
    plain = train_digits("plain", **options)
    assert plain.crc != npusim.compile(npusim.load(MODEL)).weights.crc()
    assert log_of(train_digits("engine", engine="numpy", **options)) == log_of(plain)
    monkeypatch.setattr(run_module, "MOST_IMAGES_A_CALL", 3)
    monkeypatch.setattr(step_module, "BLOCK_WEIGHTS", 100)
    assert log_of(train_digits("others", threads=2, **options)) == log_of(plain)


@pytest.mark.parametrize("name", MODES)
def test_resumed_runs_and_replays_end_at_the_same_weights(name: str, train_digits: Train) -> None:
    options = options_of(name)
    whole = train_digits("whole", steps=7, **options)
    train_digits("parts", steps=2, **options)
    train_digits("parts", steps=5, resume=True)
    parts = train_digits("parts", steps=7, resume=True)
    assert log_of(parts) == log_of(whole)
    assert parts.files["trained"].read_bytes() == whole.files["trained"].read_bytes()
    done = replay(MODEL, whole.files["log"])
    assert (done.steps, done.mismatch, done.crc) == (7, None, whole.crc)
    assert done.compared == 3  # after steps 3 and 6, and at the end


@pytest.mark.parametrize("name", ["int16-acc", "sr", "replay-residual", "sign", "leave-one-out"])
def test_zero_steps_change_no_byte(name: str, train_digits: Train) -> None:
    result = train_digits(steps=0, **options_of(name))
    assert result.crc == npusim.compile(npusim.load(MODEL)).weights.crc()


def test_weights_off_the_mask_never_move(train_digits: Train) -> None:
    result = train_digits(mask="smallest:0.1", lr=5.0, q="fixed:2")
    before = npusim.compile(npusim.load(MODEL)).weights
    after = npusim.compile(npusim.load(result.files["trained"])).weights
    for tensor in before.tensors:
        if tensor.kind == "weight":
            old, new = before.codes(tensor.name), after.codes(tensor.name)
            moved = old != new
            assert moved.any()
            assert np.count_nonzero(moved) <= round(0.1 * old.size)
            assert np.abs(old[moved].astype(int)).max() <= np.quantile(np.abs(old.astype(int)), 0.1)


def test_biases_alone(train_digits: Train) -> None:
    result = train_digits(train_weights=False, train_bias=True, lr=5.0, q="fixed:2")
    before = npusim.compile(npusim.load(MODEL)).weights
    after = npusim.compile(npusim.load(result.files["trained"])).weights
    for tensor in before.tensors:
        same = np.array_equal(before.codes(tensor.name), after.codes(tensor.name))
        assert same == (tensor.kind == "weight")
