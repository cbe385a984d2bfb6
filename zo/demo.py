"""The embedded default: ``npusim train --demo``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from npusim.files import replacing
from npusim.models import demo_task
from npusim.zo.loop import Limits
from npusim.zo.request import TrainRequest

FOLDER = Path("npusim-demo")
MODEL_NAME = "demo.onnx"
FORWARDS = 300_000
LEARNING_RATE = 0.5  # a small network, far from the default's ResNet8


def demo_request(request: TrainRequest, keep_limits: bool, keep_out: bool) -> TrainRequest:
    """The request with the demonstration's model, data and length where the user set none.

    Copies the packaged model into the output folder, so that ``npusim train demo.onnx`` works.
    """
    task = demo_task()
    out = request.out if keep_out else FOLDER
    out.mkdir(parents=True, exist_ok=True)
    model = out / MODEL_NAME
    with replacing(model) as file:
        file.write(task.model_path.read_bytes())
    data = {
        "data": task.data,
        "split": task.train_split,
        "shift": task.shift,
        "shift_seed": task.train_shift_seed,
        "val_data": task.data,
        "val_data_split": task.test_split,
        "val_shift_seed": task.test_shift_seed,
    }
    limits = (
        request.limits
        if keep_limits
        else Limits(forwards=FORWARDS, checkpoint_every=request.limits.checkpoint_every)
    )
    return dataclasses.replace(
        request,
        model=model,
        out=out,
        data={**data, **request.data},
        settings={"lr": LEARNING_RATE, **request.settings},
        limits=limits,
        overwrite=request.overwrite or not (keep_out or request.resume),
    )
