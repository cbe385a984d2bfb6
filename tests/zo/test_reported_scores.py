"""What a run says besides accuracy: silent saturation, and what compiling anew would change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from digits_task import ignore, request

import npusim
from npusim.lowering import recompiled_differences
from npusim.zo.loop import Limits
from npusim.zo.request import TrainRequest
from npusim.zo.run import train


def test_evaluations_record_saturation_whatever_the_threads(shared: Path, tmp_path: Path) -> None:
    """ResNet8's first convolution saturates on the NPU (docs/numerics.md)."""
    model = shared / "models" / "mlperf_tiny" / "resnet.onnx"
    cifar = {"data": str(shared / "data" / "cifar10"), "limit": 60, "val_split": 0.5}
    counts = []
    for threads in (1, 2):
        out = tmp_path / str(threads)
        limits = Limits(steps=0)
        settings = {"batch": 5, "lr": 0.01}
        asked = TrainRequest(model, out, settings, data=cifar, limits=limits, threads=threads)
        result = train(asked, ignore)
        counts.append(result.before.saturated)
        lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
        records = [r["saturated"] for r in lines if r["type"] == "evaluation"]
        assert records[0] == result.before.saturated
    assert counts[0] == counts[1]
    assert counts[0]["model/conv2d/BiasAdd"] > 0


@pytest.mark.parametrize("lr", [0.5, 20.0])
def test_accuracy_after_compiling_anew(lr: float, tmp_path: Path) -> None:
    """Large steps move the weights so far that other numbers follow from them."""
    result = train(request(tmp_path / "out", steps=12, lr=lr, profile="neural-art"), ignore)
    program = npusim.compile(npusim.load(result.files["trained"]))
    assert recompiled_differences(program, program.weights) == result.recompiled_numbers
    assert (result.recompiled is None) == (not result.recompiled_numbers)
    if lr > 1:
        assert result.recompiled is not None
        assert result.after is not None
        assert result.recompiled.total == result.after.total
