"""What a network computes, as one hash: a run goes on only with the network it began with."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from npusim.ir import Graph


def fingerprint(graph: Graph) -> str:
    """SHA-256, in hexadecimal, of nodes, attributes, types, quantization and constants.

    The names of the graph and of its file, and what the file says besides, are left out.
    """
    parts = (graph.inputs, graph.outputs, graph.nodes, graph.values, graph.initializers)
    digest = hashlib.sha256()
    for piece in _pieces(parts):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    """A value as bytes that no other value of these types has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        yield from _all((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}:".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield from _all(sorted(value.items()))
    elif isinstance(value, tuple | list):
        yield from _all(value)
    else:
        yield f"{type(value).__name__} {value!r};".encode()


def _all(values: Iterable[Any]) -> Iterator[bytes]:
    yield b"("
    for value in values:
        yield from _pieces(value)
    yield b")"
