"""Base of the numbers that a compiled operator computes with.

A ``Lowered`` is a frozen dataclass whose fields are integers, floats, strings, tuples of them, or
read-only arrays. It is what ``inspect --show-lowering`` prints and what a checkpoint stores, so it
goes to JSON and back without loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from npusim.errors import CheckpointError


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

    def stand_in(self, kind: str) -> Lowered:
        """Numbers of class ``kind`` that a user may give in place of these, to be filled in.

        These themselves where there is no such choice.
        """
        return self

    def changed(self, **changes: Any) -> Self:
        """A copy with other numbers, which the class may check against one another."""
        return dataclasses.replace(self, **changes)


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
    if isinstance(value, dict):
        return _class_named(value["type"]).from_json(value)
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value


def lowering_to_json(lowering: Mapping[str, Lowered]) -> dict[str, Any]:
    """Numbers of every node as plain JSON types; the class of each is under "type"."""
    return {node: _encode(numbers) for node, numbers in lowering.items()}


def lowering_from_json(data: Mapping[str, Any]) -> dict[str, Lowered]:
    """The inverse of lowering_to_json. Raises CheckpointError for a class there is none of."""
    return {node: _decode(numbers) for node, numbers in data.items()}


def _class_named(name: str) -> type[Lowered]:
    for kind in _below(Lowered):
        if kind.__name__ == name:
            return kind
    raise CheckpointError("a lowering of a kind that this version does not know", got=name)


def _below(base: type[Lowered]) -> Iterator[type[Lowered]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)
