"""What a program computes, beside what something else computed from the same inputs."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.errors import DumpError
from npusim.ir import Array, Graph

if TYPE_CHECKING:
    from npusim.dumps import Dump
    from npusim.program import Program

SCHEMA_VERSION = 1

FIRST = 5
"""Differing values that are shown of a tensor."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One differing value; index: in the tensor's own shape, the batch first."""

    index: tuple[int, ...]
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How one tensor differs.

    values: how many were compared. differing: how many of them differ.
    largest: the largest difference, in steps of the code (LSB); of a tensor without codes, as
        numbers.
    first: the first differing values in memory order, at most FIRST.
    decisions: images whose largest value lies elsewhere; None where an image is no vector.
    """

    name: str
    values: int
    differing: int
    largest: float
    first: tuple[Mismatch, ...]
    decisions: int | None

    def to_json(self) -> dict[str, Any]:
        first = [{"index": m.index, "expected": m.expected, "got": m.got} for m in self.first]
        return {
            "name": self.name,
            "values": self.values,
            "differing": self.differing,
            "largest": self.largest,
            "first": first,
            "decisions": self.decisions,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """tensors: in execution order."""

    tensors: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return not any(t.differing for t in self.tensors)

    @property
    def differing(self) -> int:
        """Values that differ, over all tensors."""
        return sum(t.differing for t in self.tensors)

    @property
    def first_divergent(self) -> Difference | None:
        """The earliest tensor that differs."""
        return next((t for t in self.tensors if t.differing), None)

    def to_json(self) -> dict[str, Any]:
        divergent = self.first_divergent
        return {
            "schema_version": SCHEMA_VERSION,
            "equal": self.equal,
            "first_divergent": divergent.name if divergent else None,
            "tensors": [t.to_json() for t in self.tensors],
        }


def difference(name: str, expected: Array, got: Array) -> Difference:
    """The differences of two arrays of one shape; integers are compared as integers."""
    assert expected.shape == got.shape, (name, expected.shape, got.shape)
    wide = np.int64 if expected.dtype.kind in "iu" and got.dtype.kind in "iu" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    differs = ~((a == b) | ((a != a) & (b != b)))  # two NaN are one value
    with np.errstate(invalid="ignore"):
        largest = np.abs(a - b)[differs].max(initial=0)
    where = np.argwhere(differs)[:FIRST]
    first = tuple(
        Mismatch(tuple(int(i) for i in at), a[tuple(at)].item(), b[tuple(at)].item())
        for at in where
    )
    count = int(np.count_nonzero(differs))
    return Difference(name, a.size, count, largest.item(), first, _decisions(a, b))


def _decisions(a: Array, b: Array) -> int | None:
    """Images whose arg max differs, where every image is one vector of more than one value."""
    wide = [d for d in a.shape[1:] if d != 1]
    if a.ndim < 2 or len(wide) != 1 or not a.shape[0]:
        return None
    best = (x.reshape(len(x), -1).argmax(axis=1) for x in (a, b))
    return int(np.count_nonzero(np.not_equal(*best)))


def compare(program: Program, dump: Dump, threads: int = 1) -> Comparison:
    """Run the dump's inputs and compare every tensor that it holds.

    Codes are compared as codes; where the network dequantizes an output, its codes are.
    Raises DumpError where a tensor's type is another one.
    """
    graph = program.graph
    sources = {name: codes_of(graph, name) for name in dump.tensors}
    values = program.run(
        dump.inputs, taps=[glob.escape(s) for s in set(sources.values())], threads=threads
    )
    order = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    names = sorted(dump.tensors, key=lambda name: order.get(sources[name], -1))
    return Comparison(
        tuple(
            difference(
                name, expected_codes(graph, sources[name], dump, name), values[sources[name]]
            )
            for name in names
        )
    )


def codes_of(graph: Graph, name: str) -> str:
    """The codes that a dequantized tensor stands for, else the tensor itself."""
    node = graph.producer(name)
    return node.inputs[0] if node is not None and node.op == "dequantize" else name


def expected_codes(graph: Graph, source: str, dump: Dump, name: str) -> Array:
    """What the dump holds of a tensor, in the codes of ``source``.

    Floats of a quantized tensor become the nearest codes, without saturation.
    """
    value, array = graph.value(source), dump.tensors[name]
    shape = value.type.concrete(array.shape[0] if array.ndim else 1)
    if value.qparams is not None and array.dtype.kind == "f":
        scale, zero_point = value.qparams.scalar()
        with np.errstate(all="ignore"):
            steps = np.rint(array.astype(np.float64) / scale) + zero_point
        return steps.reshape(shape)
    same = array.dtype.name == value.type.dtype
    if not same and not (array.dtype.kind == "f" and value.type.dtype == "float32"):
        raise DumpError(
            "the array has another type than the tensor",
            where=f"{dump.source}, {name}",
            got=array.dtype,
            wanted=value.type.dtype,
        )
    return array.reshape(shape)
