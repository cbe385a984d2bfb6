"""The weights of a network, apart from the graph, so that perturbed copies never touch it.

Codes are kept in the order that training and the random numbers use: a weight is (o, p), o its
output channel and p = (kh * KW + kw) * C_in_of_the_group + c_in (for Gemm: p = input). Kernels
pack from this order; files are written in theirs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from npusim.errors import BadShape, ModelError
from npusim.ir import Array, Graph, Site
from npusim.ops.base import spec_of


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """One weight or bias tensor.

    id: its place among all weight and bias tensors in execution order, weight before bias.
    name: the initializer's name. node: the operator that uses it first.
    kind: "weight" or "bias". shape: in the file.
    axes: the order of the file's axes that gives (o, p); output channels first.
    """

    id: int
    name: str
    node: str
    kind: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def to_codes(self, array: Array) -> Array:
        """File order -> [O, P] (bias: [O])."""
        if self.kind == "bias":
            return np.ascontiguousarray(array.reshape(-1))
        moved = array.transpose(self.axes)
        return np.ascontiguousarray(moved.reshape(moved.shape[0], -1))

    def to_onnx(self, codes: Array) -> Array:
        """The inverse of to_codes."""
        if self.kind == "bias":
            return codes.reshape(self.shape)
        moved = codes.reshape([self.shape[a] for a in self.axes])
        return np.ascontiguousarray(moved.transpose(np.argsort(self.axes)))


class WeightStore:
    """All weight and bias codes of a graph, by initializer name. Immutable."""

    def __init__(self, tensors: tuple[WeightTensor, ...], codes: Mapping[str, Array]) -> None:
        self.tensors = tensors
        for array in codes.values():
            array.flags.writeable = False
        self._codes = MappingProxyType(dict(codes))

    @classmethod
    def of(cls, graph: Graph) -> WeightStore:
        """The weights that the file holds."""
        tensors = tuple(_tensors(graph))
        return cls(tensors, {t.name: t.to_codes(graph.initializers[t.name]) for t in tensors})

    def tensor(self, name: str) -> WeightTensor:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise ModelError("no weight tensor of this name", where=name)

    def codes(self, name: str) -> Array:
        """Weight codes [O, P] (int8 or uint8), bias codes [O] (int32); read-only."""
        return self._codes[name]

    def onnx(self, name: str) -> Array:
        """The same in the file's order and shape."""
        return self.tensor(name).to_onnx(self._codes[name])

    def replaced(self, changes: Mapping[str, Array]) -> WeightStore:
        """A store with other codes for the named tensors.

        Raises BadShape where a shape or dtype differs from what is there.
        """
        merged = dict(self._codes)
        for name, array in changes.items():
            old = merged[self.tensor(name).name]
            if array.shape != old.shape or array.dtype != old.dtype:
                raise BadShape(
                    "new weights do not fit",
                    where=name,
                    got=f"{array.dtype}{array.shape}",
                    wanted=f"{old.dtype}{old.shape}",
                )
            merged[name] = array.copy()
        return WeightStore(self.tensors, merged)

    def crc(self) -> int:
        """CRC-32 over all tensors in id order, in the file's order of elements, little-endian."""
        crc = 0
        for tensor in self.tensors:
            array = self.onnx(tensor.name)
            crc = zlib.crc32(array.astype(array.dtype.newbyteorder("<")).tobytes(), crc)
        return crc

    def parameters(self) -> int:
        """How many weights and biases there are."""
        return sum(int(c.size) for c in self._codes.values())


def _tensors(graph: Graph) -> list[WeightTensor]:
    found: dict[str, WeightTensor] = {}
    for site in graph.sites():
        index = spec_of(site.node.op).weight
        if index is None:
            continue
        for i, kind in ((index, "weight"), (index + 1, "bias")):
            array = site.constant(i)
            if array is None:
                if site.has(i):
                    raise ModelError(
                        f"the {kind} is computed at run time",
                        where=site.node.name,
                        hint="Only constant weights can be run on the NPU.",
                    )
                continue
            name = site.node.inputs[i]
            axes = _axes(site, array) if kind == "weight" else (0,)
            if name in found and found[name].axes != axes:
                raise ModelError(
                    "one tensor is the weights of two operators that read it differently",
                    where=name,
                    got=f"{found[name].node} and {site.node.name}",
                    hint="Give each its own copy in the file.",
                )
            if name not in found:
                found[name] = WeightTensor(
                    len(found), name, site.node.name, kind, tuple(array.shape), axes
                )
    return list(found.values())


def _axes(site: Site, array: Array) -> tuple[int, ...]:
    if array.ndim == 2:
        return (0, 1) if getattr(site.attrs, "transposed", True) else (1, 0)
    return (0, *range(2, array.ndim), 1)
