"""Base of the numbers that a compiled operator computes with.

A ``Lowered`` is a frozen dataclass whose fields are integers, floats, strings, tuples of them, or
read-only arrays. It is what ``inspect --show-lowering`` prints and what a checkpoint stores, so it
goes to JSON and back without loss.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np


@dataclasses.dataclass(frozen=True)
class Lowered:
    """Numbers of one node under one rule; operators derive from it."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; arrays become {"dtype": ..., "values": ...}."""
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of to_json."""
        return cls(**{f.name: _decode(data[f.name]) for f in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class Nothing(Lowered):
    """For operators that only move or compare codes."""


def _encode(value: Any) -> Any:
    if isinstance(value, Lowered):
        return {"type": type(value).__name__, **value.to_json()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and "dtype" in value:
        array = np.asarray(value["values"], value["dtype"])
        array.flags.writeable = False
        return array
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value
