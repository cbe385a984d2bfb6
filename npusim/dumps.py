"""Tensors that something else computed, read for comparison with a program.

Two forms of .npz are read: ST's network_val_io.npz (``stedgeai validate --mode target``), with
``m_inputs_1``, ``m_outputs_1`` (reference) and ``c_outputs_1`` (device), and plain files keyed by
the names of the network's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npusim.arrays import load_arrays
from npusim.errors import DataError, DumpError
from npusim.ir import Array, Graph, Value
from npusim.passes.qdq import dequantized, quantized

DEVICE, REFERENCE = "device", "reference"

_VAL_IO = re.compile(r"([mc])_(inputs|outputs)_(\d+)")
_SIDES = {DEVICE: "c", REFERENCE: "m"}


@dataclass(frozen=True, slots=True)
class Dump:
    """inputs: for ``Program.run``. tensors: name -> array in the shape that the graph gives it.

    source: the file. ignored: names in it that mean nothing here.
    """

    source: str
    inputs: Mapping[str, Array]
    tensors: Mapping[str, Array]
    ignored: tuple[str, ...] = ()


def read_dump(path: Path, graph: Graph, side: str = DEVICE) -> Dump:
    """A dump of this graph's tensors.

    Args:
        side: of a network_val_io.npz, whose outputs: DEVICE or REFERENCE.

    Raises:
        DumpError: the file is damaged, lacks an input, holds no other tensor of the graph, or an
            array does not fit.
        OSError: the file cannot be opened.
    """
    try:
        arrays = load_arrays(path)
    except DataError as error:
        raise DumpError(error.problem, where=error.where, got=error.got) from error
    if isinstance(arrays, np.ndarray):
        raise DumpError("one array without a name", where=str(path), wanted="a .npz of several")
    if any(_VAL_IO.fullmatch(name) for name in arrays):
        return _val_io(path, graph, arrays, side)
    inputs = {v.name: arrays[v.name] for v in graph.inputs if v.name in arrays}
    tensors = {n: a for n, a in arrays.items() if n in graph.values and n not in inputs}
    tensors = {n: a for n, a in tensors.items() if not graph.is_constant(n)}
    ignored = tuple(n for n in arrays if n not in inputs and n not in tensors)
    return _dump(path, graph, inputs, tensors, ignored)


def _val_io(path: Path, graph: Graph, arrays: Mapping[str, Array], side: str) -> Dump:
    """Inputs and outputs by their numbers, which count from 1."""
    inputs = _numbered(arrays, "m_inputs", graph.inputs)
    outputs = _numbered(arrays, f"{_SIDES[side]}_outputs", graph.outputs)
    ignored = tuple(n for n in arrays if not _VAL_IO.fullmatch(n))
    return _dump(path, graph, inputs, outputs, ignored)


def _numbered(
    arrays: Mapping[str, Array], prefix: str, values: tuple[Value, ...]
) -> dict[str, Array]:
    keys = {value.name: f"{prefix}_{i + 1}" for i, value in enumerate(values)}
    return {name: arrays[key] for name, key in keys.items() if key in arrays}


def _dump(
    path: Path,
    graph: Graph,
    inputs: Mapping[str, Array],
    tensors: Mapping[str, Array],
    ignored: tuple[str, ...],
) -> Dump:
    missing = [v.name for v in graph.inputs if v.name not in inputs]
    if missing or not tensors:
        raise DumpError(
            f"no array for input {missing[0]}" if missing else "no array for any other tensor",
            where=str(path),
            got=", ".join([*inputs, *tensors, *ignored]) or "no array at all",
            wanted="m_inputs_1 and c_outputs_1, or arrays named after the network's tensors",
        )
    fed = {n: _as_input(fitted(a, graph.value(n), path), graph, n) for n, a in inputs.items()}
    shaped = {n: fitted(a, graph.value(n), path) for n, a in tensors.items()}
    return Dump(str(path), fed, shaped, ignored)


def fitted(array: Array, value: Value, path: Path) -> Array:
    """The array in the value's shape, any batch.

    Axes of size 1 may be missing or added, and channels may come last.
    Raises DumpError where it does not fit.
    """
    wanted = value.type.shape
    if array.ndim and 0 not in array.shape:
        batch = array.shape[0] if value.type.lifted else 1
        shape = value.type.concrete(batch)
        if _squeezed(array.shape) == _squeezed(shape):
            return array.reshape(shape)
        if array.ndim == len(wanted) == 4:
            moved: Array = array.transpose(0, 3, 1, 2)
            if moved.shape == shape:
                return moved
    raise DumpError(
        "the array does not fit the tensor",
        where=f"{path}, {value.name}",
        got=f"{array.dtype}{list(array.shape)}",
        wanted=value.type,
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without axes of size 1 behind the first."""
    return (shape[0], *(d for d in shape[1:] if d != 1))


def _as_input(array: Array, graph: Graph, name: str) -> Array:
    """In the input's own dtype: codes may be given for floats that are quantized first, or floats
    for codes."""
    value = graph.value(name)
    if array.dtype == np.dtype(value.type.dtype):
        return array
    if value.type.dtype == "float32" and array.dtype.kind == "f":
        return array.astype(np.float32)
    if value.qparams is not None and array.dtype.kind == "f":
        return quantized(array, value.qparams, value.type.dtype)
    quantize = next((n for n in graph.consumers(name) if n.op == "quantize"), None)
    codes = graph.value(quantize.outputs[0]) if quantize is not None else None
    if codes is not None and codes.qparams and codes.type.dtype == array.dtype.name:
        return dequantized(array, codes.qparams)
    raise DumpError(
        "the input has another type", where=name, got=array.dtype, wanted=value.type.dtype
    )
