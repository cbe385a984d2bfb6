"""A program for the fast engine: where everything lies, and the table of steps.

Memory. Every value has a place in the arena, given in bytes an image; with n images in a call it
starts at n times that. Integer codes are stored unsigned (int8 plus 128). A value's ``order`` says
which axis of the file lies where: (0, 2, 3, 1) is channels last. Weights are packed apart, in a
buffer of their own, so that every thread can hold other weights under the same plan.

Steps are either native (a kernel's address and its row) or Python functions (software epochs and
operators without a kernel); consecutive native steps run as one table without the GIL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.ir import Array, Graph, Site, Value
from npusim.kernels.jit import StepKernel, run_table
from npusim.ops.base import Rule, rule_for

if TYPE_CHECKING:
    from npusim.kernels.worker import Worker
    from npusim.numerics.lowered import Lowered
    from npusim.numerics.profile import Profile

ALIGNMENT = 64

ALWAYS = ""
"""Key of packed entries that belong to no tensor: written once, when a worker is made."""

Order = tuple[int, ...]
PythonStep = Callable[["Worker"], None]
Bind = Callable[["Builder", Site, "Lowered", Rule], bool]
Packer = Callable[[Array, Array], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: byte offset an image, and the order of its axes in memory."""

    offset: int
    order: Order


@dataclass(frozen=True, slots=True)
class Packed:
    """Where a weight or bias tensor lies in the packed buffer and how its codes get there.

    pack(codes, out): writes codes ([O, P] or [O]) into the bytes out.
    """

    offset: int
    size: int
    pack: Packer


@dataclass(frozen=True)
class Plan:
    """Immutable; shared by all threads. See the module's text.

    counters: node -> its place among the saturation counters, for those whose kernel counts.
    counted: the references of all nodes with int16 streams, for those whose kernel does not.
    """

    graph: Graph
    places: Mapping[str, Place]
    arena_bytes: int
    scratch_bytes: int
    packed_bytes: int
    packed: Mapping[str, tuple[Packed, ...]]
    steps: tuple[Array | PythonStep, ...]
    keep_alive: tuple[Array, ...]
    counters: Mapping[str, int]
    counted: tuple[_ReferenceStep, ...]

    @cached_property
    def referenced(self) -> frozenset[str]:
        """Names of the tensors that reference steps read."""
        steps = [s for s in self.steps if isinstance(s, _ReferenceStep)]
        return frozenset(name for s in (*steps, *self.counted) for name in s.site.node.inputs)

    def run(self, worker: Worker) -> None:
        for step in self.steps:
            if callable(step):
                step(worker)
            else:
                run_table(step, worker.context_address)


def channels_last(rank: int) -> Order:
    """(0, 2, .., rank - 1, 1)."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def same_memory(shape: tuple[int | None, ...], a: Order, b: Order) -> bool:
    """True where both orders put the elements of this shape at the same places."""
    return [i for i in a if shape[i] != 1] == [i for i in b if shape[i] != 1]


def stored_bias(value: Value) -> int:
    """What is added to a code of this value before it is stored."""
    return 128 if value.type.dtype == "int8" else 0


@dataclass
class Builder:
    """Collects places, steps and packed weights while the operators bind themselves."""

    graph: Graph
    places: dict[str, Place] = field(default_factory=dict)
    steps: list[Array | PythonStep] = field(default_factory=list)
    packed: dict[str, list[Packed]] = field(default_factory=dict)
    keep_alive: list[Array] = field(default_factory=list)
    arena_bytes: int = 0
    packed_bytes: int = 0
    scratch_bytes: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    def output(self, name: str, order: Order) -> int:
        """A new place for a value; returns its offset."""
        value = self.graph.value(name)
        size = value.type.per_image() * np.dtype(value.type.dtype).itemsize
        return self._place(name, order, size)

    def _place(self, key: str, order: Order, size: int) -> int:
        offset = self.arena_bytes
        self.arena_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        self.places[key] = Place(offset, order)
        return offset

    def alias(self, name: str, offset: int, order: Order) -> None:
        """A value that shares another's memory."""
        self.places[name] = Place(offset, order)

    def input(self, name: str, order: Order) -> int:
        """The offset of a value in this order of axes; copied into it where it lies otherwise."""
        value = self.graph.value(name)
        place = self.places[name]
        if same_memory(value.type.shape, place.order, order):
            return place.offset
        key = f"{name}@{order}"
        if key not in self.places:
            size = value.type.per_image() * np.dtype(value.type.dtype).itemsize
            self._place(key, order, size)
            self.steps.append(_Relayout(value, place, self.places[key]))
        return self.places[key].offset

    def constant(self, array: Array) -> int:
        """Address of a read-only copy that lives as long as the plan."""
        kept = np.ascontiguousarray(array)
        self.keep_alive.append(kept)
        return int(kept.ctypes.data)

    def weights(self, name: str, size: int, pack: Packer) -> int:
        """Reserve ``size`` bytes of the packed buffer for a weight or bias; returns the offset."""
        offset = self.packed_bytes
        self.packed_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        self.packed.setdefault(name, []).append(Packed(offset, size, pack))
        return offset

    def scratch(self, size: int) -> None:
        """Ask for this much work space."""
        self.scratch_bytes = max(self.scratch_bytes, size)

    def counter(self, node: str) -> int:
        """Offset in bytes of the saturation counter of a node."""
        return 8 * self.counters.setdefault(node, len(self.counters))

    def native(self, kernel: StepKernel, row: Array) -> None:
        """Append a native step; row is a record of the kernel's type."""
        entry = np.array([[kernel.address, self.constant(row)]], np.int64)
        last = self.steps[-1] if self.steps else None
        if isinstance(last, np.ndarray):
            self.steps[-1] = np.concatenate([last, entry])
        else:
            self.steps.append(entry)

    def python(self, step: PythonStep) -> None:
        self.steps.append(step)


def record(dtype: np.dtype[Any], **fields: int) -> Array:
    """A one-element record array with every field given by name."""
    row = np.zeros(1, dtype)
    assert dtype.names is not None
    assert set(fields) == set(dtype.names), set(fields) ^ set(dtype.names)
    for name, value in fields.items():
        row[name] = value
    return row


@dataclass(frozen=True, slots=True)
class _Relayout:
    """Copies a value into another order of axes."""

    value: Value
    source: Place
    target: Place

    def __call__(self, worker: Worker) -> None:
        worker.stored(self.value, self.target)[...] = worker.stored(self.value, self.source)


@dataclass(frozen=True, slots=True)
class _ReferenceStep:
    """Runs an operator's int64 reference: software epochs, and operators without a kernel."""

    site: Site
    rule: Rule
    lowered: Lowered

    def __call__(self, worker: Worker) -> None:
        inputs = tuple(worker.operand(name) for name in self.site.node.inputs)
        worker.put(self.site.output, self.rule.reference(self.site, self.lowered, inputs))

    def saturated(self, worker: Worker) -> int:
        """Saturated int16 streams of the last forward, counted by the reference."""
        assert self.rule.saturated is not None
        inputs = tuple(worker.operand(name) for name in self.site.node.inputs)
        return self.rule.saturated(self.site, self.lowered, inputs)


def build_plan(graph: Graph, profile: Profile, lowering: Mapping[str, Lowered]) -> Plan:
    """Bind every node of a graph of NPU operators to steps."""
    builder = Builder(graph)
    counted = []
    for value in graph.inputs:
        builder.output(value.name, tuple(range(len(value.type.shape))))
    for site in graph.sites():
        rule = rule_for(site, profile)
        lowered = lowering[site.node.name]
        if rule.saturated is not None:
            counted.append(_ReferenceStep(site, rule, lowered))
        if rule.kernel is None or not _kernel(rule.kernel)(builder, site, lowered, rule):
            order = channels_last(len(site.output.type.shape))
            builder.output(site.node.outputs[0], order)
            builder.python(_ReferenceStep(site, rule, lowered))
    return Plan(
        graph,
        builder.places,
        builder.arena_bytes,
        builder.scratch_bytes,
        builder.packed_bytes,
        {name: tuple(entries) for name, entries in builder.packed.items()},
        tuple(builder.steps),
        tuple(builder.keep_alive),
        builder.counters,
        tuple(counted),
    )


def _kernel(name: str) -> Bind:
    """The binding function behind a rule's ``kernel``; it returns False where it does not apply."""
    module, _, function = name.partition(":")
    found: Bind = getattr(importlib.import_module(f"npusim.kernels.{module}"), function)
    return found
