"""One thread's memory for a plan: activations, packed weights, work space."""

from __future__ import annotations

import numpy as np

from npusim.ir import Array, Value
from npusim.kernels.jit import CONTEXT
from npusim.kernels.plan import ALIGNMENT, ALWAYS, Packed, Place, Plan, record
from npusim.weights import WeightStore, WeightTensor


class Worker:
    """Runs a plan on up to ``batch`` images at a time; not to be shared between threads."""

    def __init__(self, plan: Plan, batch: int) -> None:
        self._plan = plan
        self._arena = _aligned(plan.arena_bytes * batch)
        self._packed = _aligned(plan.packed_bytes)
        self._scratch = _aligned(plan.scratch_bytes)
        self._stats = np.zeros(max(1, len(plan.counters)), np.int64)
        self._constants: dict[str, Array] = {}
        self._tensors: dict[str, WeightTensor] = {}
        self._images = 0
        self._context = record(
            CONTEXT,
            arena=self._arena.ctypes.data,
            packed=self._packed.ctypes.data,
            scratch=self._scratch.ctypes.data,
            stats=self._stats.ctypes.data,
            batch=0,
        )
        self.context_address = int(self._context.ctypes.data)
        self.batch = batch
        for entry in plan.packed.get(ALWAYS, ()):
            entry.pack(np.empty(0, np.int32), self._part(entry))

    def _part(self, entry: Packed) -> Array:
        return self._packed[entry.offset : entry.offset + entry.size]

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of each buffer."""
        return {
            "activations": self._arena.nbytes,
            "weights": self._packed.nbytes,
            "scratch": self._scratch.nbytes,
        }

    def load(self, store: WeightStore) -> None:
        """Take over all weights and biases."""
        self._tensors = {tensor.name: tensor for tensor in store.tensors}
        for name in self._tensors:
            self.set_weight(name, store.codes(name))

    def set_weight(self, name: str, codes: Array) -> None:
        """Replace one weight ([O, P]) or bias ([O]) tensor."""
        if name in self._plan.referenced:
            self._constants[name] = self._tensors[name].to_onnx(codes).astype(np.int64)
        for entry in self._plan.packed.get(name, ()):
            entry.pack(codes, self._part(entry))

    def forward(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Outputs for inputs in the order of the graph's; arrays of the values' own dtypes.

        All lifted inputs have the same number of images, at most ``batch``.
        """
        graph = self._plan.graph
        lifted = [a.shape[0] for a, v in zip(arrays, graph.inputs, strict=True) if v.type.lifted]
        self._images = lifted[0] if lifted else 1
        self._context["batch"] = self._images
        self._stats[:] = 0
        for array, value in zip(arrays, graph.inputs, strict=True):
            self._write(value, array)
        self._plan.run(self)
        return tuple(self.value(v.name) for v in graph.outputs)

    def value(self, name: str) -> Array:
        """Any value of the last forward, as a new array in the file's order and dtype."""
        value = self._plan.graph.value(name)
        return self._codes(value, self.stored(value, self._plan.places[name]))

    def saturations(self) -> dict[str, int]:
        """Saturated int16 streams of the last forward, by node: those that have such streams."""
        counters = self._plan.counters
        return {
            node: int(self._stats[counters[node]]) if node in counters else step.saturated(self)
            for step in self._plan.counted
            for node in (step.site.node.name,)
        }

    def stored(self, value: Value, place: Place) -> Array:
        """The raw memory of a value, seen in the file's order of axes."""
        shape = value.type.concrete(self._images)
        dtype = _storage(value)
        start = place.offset * self._images
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        flat = self._arena[start : start + size].view(dtype)
        memory = flat.reshape([shape[i] for i in place.order])
        return memory.transpose(np.argsort(place.order))

    def operand(self, name: str) -> Array | None:
        """An input of a reference step: int64 codes, or float32 as it is."""
        if not name:
            return None
        if name in self._constants:
            return self._constants[name]
        if self._plan.graph.is_constant(name):
            array = self._plan.graph.initializers[name]
        else:
            array = self.value(name)
        return array if array.dtype.kind == "f" else array.astype(np.int64)

    def put(self, value: Value, array: Array) -> None:
        """Store the result of a reference step."""
        self._write(value, array.astype(value.type.dtype))

    def _write(self, value: Value, array: Array) -> None:
        target = self.stored(value, self._plan.places[value.name])
        if array.dtype == np.int8:
            np.bitwise_xor(array.view(np.uint8), np.uint8(128), out=target)
        else:
            target[...] = array

    @staticmethod
    def _codes(value: Value, stored: Array) -> Array:
        if value.type.dtype == "int8":
            return np.ascontiguousarray(stored ^ np.uint8(128)).view(np.int8)
        return np.array(stored, order="C")


def _storage(value: Value) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if value.type.dtype == "int8" else value.type.dtype)


def _aligned(size: int) -> Array:
    """Zeroed bytes that start at a multiple of ALIGNMENT and have slack behind them."""
    raw = np.zeros(size + 2 * ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size + ALIGNMENT]
