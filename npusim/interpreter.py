"""The slow engine: every operator by its int64 NumPy reference. It defines what a program means.

Works without Numba.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npusim.errors import NumericsError
from npusim.ir import Array, Graph, Site, Value
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops.base import rule_for
from npusim.weights import WeightStore, WeightTensor


class ReferenceWorker:
    """Same interface as the fast engine's worker (npusim.kernels.worker)."""

    def __init__(
        self, graph: Graph, profile: Profile, lowering: Mapping[str, Lowered], batch: int
    ) -> None:
        self._graph = graph
        self._steps = [
            (site, rule_for(site, profile), lowering[site.node.name]) for site in graph.sites()
        ]
        self._tensors: dict[str, WeightTensor] = {}
        self._constants = {name: _widen(array) for name, array in graph.initializers.items()}
        self._values: dict[str, Array] = {}
        self.batch = batch

    def load(self, store: WeightStore) -> None:
        self._tensors = {tensor.name: tensor for tensor in store.tensors}
        for name in self._tensors:
            self.set_weight(name, store.codes(name))

    def set_weight(self, name: str, codes: Array) -> None:
        self._constants[name] = _widen(self._tensors[name].to_onnx(codes))

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        inputs = (value.name for value in self._graph.inputs)
        self._values = dict(zip(inputs, map(_widen, arrays), strict=True))
        for site, rule, lowered in self._steps:
            result = rule.reference(site, lowered, self._inputs(site))
            self._values[site.node.outputs[0]] = _checked(site.output, result)
        return tuple(self.value(v.name) for v in self._graph.outputs)

    def saturations(self) -> dict[str, int]:
        """Saturated int16 streams of the last forward, by node; computed when asked for."""
        return {
            site.node.name: rule.saturated(site, lowered, self._inputs(site))
            for site, rule, lowered in self._steps
            if rule.saturated is not None
        }

    def _inputs(self, site: Site) -> tuple[Array | None, ...]:
        return tuple(
            self._constants[name] if name in self._constants else self._values.get(name)
            for name in site.node.inputs
        )

    def value(self, name: str) -> Array:
        dtype = self._graph.value(name).type.dtype
        return np.ascontiguousarray(self._values[name]).astype(dtype)


def _widen(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _checked(value: Value, array: Array) -> Array:
    """A reference's result, which must fit the value's type."""
    if value.type.dtype == "float32":
        return array.astype(np.float32)
    low, high = value.range
    if array.size and (array.min() < low or array.max() > high):
        raise NumericsError(
            "an operator's reference left the range of its output",
            where=value.name,
            got=f"{array.min()}..{array.max()}",
            wanted=f"{low}..{high}",
        )
    return array
