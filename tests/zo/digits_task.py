"""A small training task for the tests of zo: the packaged digits network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npusim.models import demo_task
from npusim.zo.loop import Limits, Progress
from npusim.zo.request import TrainRequest

MODEL = demo_task().model_path


def ignore(progress: Progress) -> None:
    """A watcher that looks at nothing."""


def request(out: Path, steps: int | None = 6, **changes: Any) -> TrainRequest:
    """Digits under rotation, 200 images, batches of 5. ``changes``: fields of any of the parts."""
    limits = {"checkpoint_every": changes.pop("checkpoint_every", 4)}
    direct = {
        name: changes.pop(name)
        for name in ("resume", "overwrite", "threads", "engine", "profile", "model")
        if name in changes
    }
    data = {
        name: changes.pop(name)
        for name in ("shift", "limit", "val_split", "val_data")
        if name in changes
    }
    resumed = direct.get("resume", False)
    base = {} if resumed else {"batch": 5, "lr": 0.5, "crc_every": 3}
    base_data = {} if resumed else {"data": "digits", "limit": 200, "shift": "rotation:35"}
    fields = {"model": MODEL, **direct}
    return TrainRequest(
        out=out,
        settings={**base, **changes},
        data={**base_data, **data},
        limits=Limits(steps=steps, **limits),
        **fields,
    )
