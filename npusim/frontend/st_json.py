"""ST's ``*_Q.json``: the scale and zero point of every tensor of a pre-lowered network.

Beside an ONNX file whose weights are floats on a grid, ST's tools write a JSON file whose
``tensors.<name>.format`` says how each tensor is quantized: ``class`` "integer", ``type`` "S8",
"U8" or "S32", and ``params`` = [scales, zero points]. npusim.frontend.st_formats applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import BadQuantization, ModelError
from npusim.files import read_json
from npusim.ir import Graph, QParams
from npusim.passes.qdq import check_scale

_TYPES = {"S8": "int8", "U8": "uint8", "S32": "int32"}


@dataclass(frozen=True, slots=True)
class Format:
    """dtype: NumPy's name of the codes. qparams: axis is unknown here, one scale or one a channel.

    type: as the file writes it; dtype is "" for integer types that nothing here computes with.
    """

    dtype: str
    type: str
    qparams: QParams


@dataclass(frozen=True, slots=True)
class Formats:
    """tensors: name -> format, of integer tensors only. path: of the JSON file."""

    path: str
    tensors: Mapping[str, Format]


def read_formats(path: Path) -> Formats:
    """The integer formats of a ``*_Q.json``.

    Raises ModelError that names the file, or the tensor whose entry is damaged.
    """
    try:
        data = read_json(path)
    except OSError as error:
        raise ModelError("cannot read the file", where=str(path), got=error.strerror) from None
    except ValueError as error:
        raise ModelError("the file is no JSON", where=str(path), got=error) from None
    tensors = data.get("tensors") if isinstance(data, dict) else None
    if not isinstance(tensors, dict):
        raise ModelError(
            "the file names no tensors",
            where=str(path),
            wanted='{"tensors": {name: {"format": {"params": [scales, zero points]}}}}',
            hint="Give the *_Q.json that ST's tools write beside the *_OE_*.onnx.",
        )
    found = {name: _format(name, entry, path) for name, entry in tensors.items()}
    return Formats(str(path), {name: f for name, f in found.items() if f is not None})


def _format(name: str, entry: Any, path: Path) -> Format | None:
    """None for a float tensor."""
    form = entry.get("format") if isinstance(entry, dict) else None
    if not isinstance(form, dict) or form.get("class") != "integer" or "params" not in form:
        return None
    try:
        scales, points = form["params"]
        scale = np.asarray(scales, np.float64).reshape(-1).astype(np.float32)
        point = np.asarray(points, np.int64).reshape(-1)
        fits = point.size in (1, scale.size) and np.array_equal(point, np.ravel(points))
    except (ValueError, TypeError, OverflowError):
        fits = False
    if not fits:
        raise BadQuantization(
            "damaged scales and zero points", where=f"{path}, tensor {name}", got=form["params"]
        )
    check_scale(scale, f"{path}, tensor {name}")
    kind = str(form.get("type"))
    return Format(_TYPES.get(kind, ""), kind, QParams.make(scale, point, 0))


def beside(model: Path, graph: Graph) -> Path | None:
    """The JSON file that lies beside a model and is about it; None where there is none.

    ``M_Q.json`` or ``M_q.json`` for ``M.onnx``; else the only ``*_Q.json`` (or ``model_q.json``) of
    the folder, if it names the inputs and outputs of the network.
    """
    for ending in ("_Q.json", "_q.json"):
        own = model.with_name(model.stem + ending)
        if own.is_file():
            return own
    try:
        others = sorted({*model.parent.glob("*_Q.json"), *model.parent.glob("model_q.json")})
    except OSError:
        return None
    if len(others) != 1:
        return None
    try:
        tensors = read_json(others[0])["tensors"]
        about = all(value.name in tensors for value in (*graph.inputs, *graph.outputs))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return others[0] if about else None
