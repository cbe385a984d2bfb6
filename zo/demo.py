"""The embedded default: ``npusim train --demo``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from npusim.files import replacing
from npusim.models import demo_task
from npusim.zo.folder import check_folder
from npusim.zo.loop import Limits
from npusim.zo.request import TrainRequest

FOLDER = Path("npusim-demo")
MODEL_NAME = "demo.onnx"
FORWARDS = 300_000
MOST_FOLDERS = 1000
LEARNING_RATE = 0.5
"""Chosen for this network and length: a run of --lr auto, which is more careful, gains less."""


def demo_request(
    request: TrainRequest, keep_limits: bool, keep_out: bool, writes: bool = True
) -> TrainRequest:
    """The request with the demonstration's model, data and length where the user set none.

    Copies the packaged model into the output folder, so that ``npusim train demo.onnx`` works.

    Args:
        keep_limits, keep_out: the user gave limits, a folder. Without a folder each run has a new
            one: npusim-demo, npusim-demo-2 and so on.
        writes: False where nothing is to be trained, and so no folder to be made.

    Raises UsageError where the user's folder holds a run already (see ``check_folder``).
    """
    task = demo_task()
    out = request.out if keep_out else _folder(fresh=not (request.resume or request.overwrite))
    if writes and not request.resume:
        check_folder(dataclasses.replace(request, out=out))
    data = {
        "data": task.data,
        "split": task.train_split,
        "shift": task.shift,
        "shift_seed": task.train_shift_seed,
        "val_data": task.data,
        "val_data_split": task.test_split,
        "val_shift_seed": task.test_shift_seed,
    }
    every = request.limits.checkpoint_every
    limits = Limits(forwards=FORWARDS, checkpoint_every=every)
    return dataclasses.replace(
        request,
        model=_copied(task.model_path, out) if writes else task.model_path,
        out=out,
        data={**data, **request.data},
        settings={"lr": LEARNING_RATE, **request.settings},
        limits=request.limits if keep_limits else limits,
    )


def _folder(fresh: bool) -> Path:
    """FOLDER, or the first of its kind that is not there yet."""
    names = [FOLDER, *(Path(f"{FOLDER}-{n}") for n in range(2, MOST_FOLDERS))]
    return next((name for name in names if not (fresh and name.exists())), FOLDER)


def _copied(model: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / MODEL_NAME
    with replacing(target) as file:
        file.write(model.read_bytes())
    return target
