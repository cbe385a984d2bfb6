"""Checkpoints: everything a run needs to go on as if it had never stopped, in one HDF5 file.

Writing is atomic (npusim.files), and a CRC-32 covers all that is read from the file. The file is
made in memory first, since HDF5 itself cannot be relied on to survive a full disk.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from npusim.errors import CheckpointError
from npusim.files import replacing
from npusim.zo.reference import exposed
from npusim.zo.schedulers import State
from npusim.zo.state import Done, TrainState

SCHEMA_VERSION = 3
_DAMAGE = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError)
RESUMABLE = "The previous checkpoint is intact: make room and use --resume."


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file.

    header: line 0 of the log that it belongs to; holds settings, model CRC, lowering, table.
    run: options of the run that decide no weight of a step but what the run is (its data).
    log_bytes: length of the log at this point.
    weights_crc: CRC of all weights as exposed at this point.
    """

    header: Mapping[str, Any]
    run: Mapping[str, Any]
    state: TrainState
    log_bytes: int
    weights_crc: int

    def codes(self) -> dict[str, npt.NDArray[Any]]:
        """Trained tensor name -> codes as exposed at this point: [O, P], biases [O]."""
        tensors = zip(self.header["tensors"], self.state.weights, strict=True)
        return {
            t["name"]: exposed(w).reshape(-1) if t["kind"] == "bias" else exposed(w)
            for t, w in tensors
        }


def save_checkpoint(
    path: Path,
    checkpoint: Checkpoint,
    ready: Callable[[], None] = lambda: None,
    hint: str = RESUMABLE,
) -> None:
    """Replace the file at ``path`` in one step.

    Args:
        ready: called when all bytes are on the disk and only the name is not yet the new file's.
        hint: what to do where it cannot be written.

    Raises CheckpointError where it cannot be written; the old file is then as it was.
    """
    image = _to_hdf5(checkpoint)
    try:
        with replacing(path) as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
            ready()
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint cannot be written: {error.strerror}",
            where=str(path),
            hint=hint,
        ) from error


def require_checkpoint(path: Path) -> None:
    """Raise CheckpointError where there is no file."""
    if not path.is_file():
        raise CheckpointError(
            "there is no checkpoint here",
            where=str(path),
            hint="Start the run without --resume.",
        )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises CheckpointError where the file is missing, damaged or of another version.
    """
    require_checkpoint(path)
    try:
        with h5py.File(path, "r") as file:
            _check_schema(file, path)
            checkpoint = _from_hdf5(file)
            stated = int(file.attrs["crc"])
    except _DAMAGE as error:
        raise CheckpointError("the checkpoint is damaged", where=str(path), got=error) from error
    if (found := _crc(checkpoint)) != stated:
        raise CheckpointError(
            "the checkpoint is damaged",
            where=str(path),
            got=f"CRC {found:08x}",
            wanted=f"{stated:08x}",
        )
    return checkpoint


def _crc(checkpoint: Checkpoint) -> int:
    """CRC-32 of everything in a checkpoint, scalars and arrays."""
    state = checkpoint.state
    scalars = {
        "header": checkpoint.header,
        "run": checkpoint.run,
        "log_bytes": checkpoint.log_bytes,
        "weights_crc": checkpoint.weights_crc,
        "scheduler": dataclasses.asdict(state.scheduler),
        "step": state.step,
        "forwards": state.forwards,
        "still_steps": int(state.still_steps),
        "history": state.history,
        "medians": state.medians,
    }
    crc = zlib.crc32(json.dumps(scalars).encode())
    for array in (state.still, state.warned, *state.weights):
        crc = zlib.crc32(f"{array.dtype.str}{array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).tobytes(), crc)
    return crc


def _to_hdf5(checkpoint: Checkpoint) -> memoryview:
    buffer = io.BytesIO()
    state = checkpoint.state
    with h5py.File(buffer, "w") as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["log_bytes"] = checkpoint.log_bytes
        file.attrs["weights_crc"] = checkpoint.weights_crc
        file.attrs["crc"] = _crc(checkpoint)
        file.attrs["step"] = state.step
        file.attrs["forwards"] = state.forwards
        # As data sets: an attribute is limited to 64 kB.
        file["header"] = json.dumps(checkpoint.header)
        file["run"] = json.dumps(checkpoint.run)
        file["scheduler"] = json.dumps(dataclasses.asdict(state.scheduler))
        file["still"] = state.still
        file["still_steps"] = state.still_steps
        file["warned"] = state.warned
        file["history"] = json.dumps(state.history)
        file["medians"] = json.dumps(state.medians)
        for tensor, array in zip(checkpoint.header["tensors"], state.weights, strict=True):
            file[f"weights/{tensor['id']}"] = array
            file[f"weights/{tensor['id']}"].attrs["name"] = tensor["name"]
    return buffer.getbuffer()


def _check_schema(file: h5py.File, path: Path) -> None:
    found = file.attrs.get("schema_version")
    if found != SCHEMA_VERSION:
        raise CheckpointError(
            "this is not a checkpoint of this version of npusim",
            where=str(path),
            got=f"schema {found}",
            wanted=f"schema {SCHEMA_VERSION}",
        )


def _from_hdf5(file: h5py.File) -> Checkpoint:
    header = json.loads(file["header"][()])
    state = TrainState(
        weights=tuple(file[f"weights/{t['id']}"][()] for t in header["tensors"]),
        scheduler=State.from_json(json.loads(file["scheduler"][()])),
        step=int(file.attrs["step"]),
        forwards=int(file.attrs["forwards"]),
        still=file["still"][()],
        still_steps=int(file["still_steps"][()]),
        warned=file["warned"][()],
        history=tuple(
            Done(step, q, lr, tuple(d)) for step, q, lr, d in json.loads(file["history"][()])
        ),
        medians=tuple(json.loads(file["medians"][()])),
    )
    return Checkpoint(
        header,
        json.loads(file["run"][()]),
        state,
        int(file.attrs["log_bytes"]),
        int(file.attrs["weights_crc"]),
    )
