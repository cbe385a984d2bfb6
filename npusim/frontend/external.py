"""External data: tensors whose bytes lie in files beside the model.

A model comes from anywhere, so a location is followed only to a regular file inside the model's
own folder: no absolute path, no "..", no link that leads out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from npusim.errors import ModelError


@dataclass(frozen=True, slots=True)
class Location:
    """Where a tensor's bytes lie. length: bytes, None for all that follows offset."""

    path: Path
    relative: str
    offset: int
    length: int | None


def is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def locate(tensor: onnx.TensorProto, folder: Path) -> Location:
    """The checked location of an external tensor's data.

    Raises ModelError, naming the tensor and the file, where the location is not allowed, missing,
    or shorter than it should be.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    relative = entries.get("location", "")
    path = _inside(folder, relative, tensor.name)
    offset, length = (_number(entries.get(k), k, tensor.name) for k in ("offset", "length"))
    location = Location(path, relative, offset or 0, length)
    size = path.stat().st_size
    if location.offset + (length or 0) > size:
        raise ModelError(
            f"external data of {relative} end before this tensor's do",
            where=tensor.name,
            got=f"{size} bytes",
            wanted=f"{location.offset + (length or 0)} bytes",
            hint="Copy the complete data file beside the model.",
        )
    return location


def embed(tensor: onnx.TensorProto, folder: Path) -> None:
    """Read an external tensor's bytes into the message itself."""
    location = locate(tensor, folder)
    length = location.length
    if length is None:
        length = location.path.stat().st_size - location.offset
    if length > 8 * max(1, math.prod(max(d, 0) for d in tensor.dims)) + 8:
        raise ModelError(
            "external data are longer than the tensor", where=tensor.name, got=f"{length} bytes"
        )
    with location.path.open("rb") as file:
        file.seek(location.offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _inside(folder: Path, relative: str, name: str) -> Path:
    parts = PurePosixPath(relative), PureWindowsPath(relative)
    leaves = any(p.is_absolute() or p.drive or ".." in p.parts for p in parts)
    if not relative or "\0" in relative or leaves:
        raise ModelError(
            "external data must lie in a file inside the model's folder",
            where=name,
            got=repr(relative),
        )
    path = folder / relative
    if not path.exists():
        raise ModelError(
            "external data are missing",
            where=name,
            wanted=f"the file {relative} beside the model",
            hint="Copy it from where the model came from.",
        )
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise ModelError(
            "external data must lie in a regular file inside the model's folder",
            where=name,
            got=repr(relative),
        )
    return path


def _number(text: str | None, key: str, name: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"external data with a bad {key}", where=name, got=repr(text))
    return int(text)
