"""The files of a run's folder: what may be there before it begins, and what belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npusim.errors import CheckpointError, UsageError
from npusim.zo.checkpoint import Checkpoint, require_checkpoint
from npusim.zo.log import read_log
from npusim.zo.loop import CHECKPOINT_NAME, LOG_NAME
from npusim.zo.request import TrainRequest

TRAINED_NAME, RECORD_NAME = "trained.onnx", "run.json"


def _earlier(folder: Path) -> list[Path]:
    return [folder / name for name in (CHECKPOINT_NAME, LOG_NAME, TRAINED_NAME)]


def check_folder(request: TrainRequest) -> None:
    """Raise UsageError where the folder holds a run that nobody asked to replace, or is a file."""
    if request.out.exists() and not request.out.is_dir():
        raise UsageError("this is no folder", where=str(request.out), wanted="a folder for --out")
    if any(path.exists() for path in _earlier(request.out)) and not request.overwrite:
        known = (request.out / CHECKPOINT_NAME).exists()
        go_on = "Go on with it by --resume, replace it" if known else "Replace it"
        raise UsageError(
            "there is a run in this folder already"
            if known
            else "there are files of a run without its checkpoint in this folder",
            where=str(request.out),
            hint=f"{go_on} by --overwrite, or choose another --out.",
        )


def check_ready(request: TrainRequest) -> None:
    """Raise where the folder holds no run to go on with, or one that is in the way."""
    if request.resume:
        require_checkpoint(request.out / CHECKPOINT_NAME)
    else:
        check_folder(request)


def check_apart(request: TrainRequest) -> None:
    """Raise UsageError where the run would replace a file that it reads, and needs to the end."""
    folder = request.out.resolve()
    results = [*_earlier(folder), folder / RECORD_NAME]
    for path in filter(None, (request.model, request.q_json)):
        if path.resolve() in results or path.parent.resolve() / path.name in results:
            raise UsageError(
                "the run would replace this file, which it starts from",
                where=str(path),
                hint="Choose another --out, or give the file another name.",
            )


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while it wrote (see npusim.files)."""
    for name in (CHECKPOINT_NAME, LOG_NAME, TRAINED_NAME, RECORD_NAME):
        for path in folder.glob(f".{name}.*.part*"):
            path.unlink(missing_ok=True)


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], request: TrainRequest) -> None:
    """Raise CheckpointError where model or data are not those that the run began with."""
    differences = {
        "model_crc": "the model's weights",
        "graph": "the model's nodes, scales or constants",
        "data_crc": "the training images",
        "validation_crc": "the validation images",
        "tensors": "the trained tensors",
        "table": "the constants of the update",
    }
    for name, what in differences.items():
        if _plain(old[name]) != _plain(new[name]):
            raise CheckpointError(
                f"the run cannot be resumed: {what} are not those it began with",
                where=f"{request.model} and {request.out / CHECKPOINT_NAME}",
                hint="Give the model and the data that the run started from.",
            )


def check_log(path: Path, old: Checkpoint) -> None:
    """Raise CheckpointError where the log is another run's, or damaged in its first line."""
    if not path.exists() or path.stat().st_size < old.log_bytes:
        return  # which LogWriter.reopen has a word for
    if next(read_log(path), None) != old.header:
        raise CheckpointError(
            "the log is not of the run that the checkpoint is of",
            where=str(path),
            hint="Both files belong together; start a new run if one is lost.",
        )


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
