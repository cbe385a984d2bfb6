"""The graph that everything works on: frozen dataclasses, no ONNX types inside.

Two kinds of node share these classes. Straight from a file a node's ``op`` is the file's operator
("Conv", "com.microsoft.QGemm") and its ``attrs`` are a plain mapping. After the passes every node
is an NPU operator: ``op`` is a lower-case name of the registry in npusim.ops and ``attrs`` is that
operator's frozen dataclass. Tensors keep the order of axes that the file gave them (NCHW for
images); how a buffer lies in memory is the program's business, not the graph's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import ModelError

Array = npt.NDArray[Any]

INTEGER_RANGE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
        for name in ("int8", "uint8", "int16", "uint16", "int32")
    }
)


@dataclass(frozen=True, slots=True)
class QParams:
    """Affine quantization: real = (code - zero_point) * scale.

    scale: float32 values, as Python floats; one, or one a channel along ``axis``.
    zero_point: as many integers.
    axis: the axis of the channels, None for per-tensor.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    @classmethod
    def make(cls, scale: Any, zero_point: Any, axis: int | None = None) -> QParams:
        """From anything array-like; a size-1 scale is per-tensor whatever the axis."""
        scales = np.asarray(scale, np.float32).ravel()
        points = np.broadcast_to(np.asarray(zero_point, np.int64).ravel(), scales.shape)
        return cls(
            tuple(float(s) for s in scales),
            tuple(int(z) for z in points),
            None if scales.size == 1 else axis,
        )

    @property
    def per_channel(self) -> bool:
        return self.axis is not None

    def scales(self) -> npt.NDArray[np.float32]:
        return np.asarray(self.scale, np.float32)

    def zero_points(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.zero_point, np.int64)

    def scalar(self) -> tuple[np.float32, int]:
        """(scale, zero_point) of a per-tensor quantization."""
        assert not self.per_channel
        return np.float32(self.scale[0]), self.zero_point[0]


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype is NumPy's name; a None in shape is the batch and stands first only."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def lifted(self) -> bool:
        """True where the first axis is a batch of any size."""
        return bool(self.shape) and self.shape[0] is None

    def concrete(self, batch: int) -> tuple[int, ...]:
        """The shape with ``batch`` in place of the None."""
        return tuple(batch if d is None else d for d in self.shape)

    def per_image(self) -> int:
        """Elements of one image (of the whole tensor where it is not lifted)."""
        return math.prod(d for d in self.shape if d is not None)

    def __str__(self) -> str:
        dims = ",".join("N" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph. ``name`` is the name it has in the file."""

    name: str
    type: TensorType
    qparams: QParams | None = None

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest code of an integer tensor."""
        return INTEGER_RANGE[self.type.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. An absent optional input is the empty string.

    origin: names of the file's nodes that this one stands for, in execution order.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Any = field(default_factory=dict)
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, the values they pass, and the constants.

    initializers: name -> array, in the file's own shape and dtype; read-only.
    metadata: the file's metadata_props, and what the frontend has to say about it.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    initializers: Mapping[str, Array]
    metadata: Mapping[str, str] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    path: str = ""

    def value(self, name: str) -> Value:
        try:
            return self.values[name]
        except KeyError:
            raise ModelError("no tensor of this name", where=name) from None

    def is_constant(self, name: str) -> bool:
        return name in self.initializers

    def producer(self, name: str) -> Node | None:
        """The node that makes this value; None for an input or a constant."""
        return next((n for n in self.nodes if name in n.outputs), None)

    def consumers(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if name in n.inputs)

    def sites(self) -> Iterator[Site]:
        return (Site(self, node) for node in self.nodes)

    def site(self, node_name: str) -> Site:
        for node in self.nodes:
            if node.name == node_name:
                return Site(self, node)
        raise ModelError("no node of this name", where=node_name)

    def with_(self, **changes: Any) -> Graph:
        return replace(self, **changes)

    def pruned(self) -> Graph:
        """Without values and constants that no node, input or output names."""
        used = {v.name for v in (*self.inputs, *self.outputs)}
        for node in self.nodes:
            used.update(node.inputs, node.outputs)
        return self.with_(
            values={k: v for k, v in self.values.items() if k in used},
            initializers={k: v for k, v in self.initializers.items() if k in used},
        )

    def cut(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """The part between two sets of tensors, as a graph of its own.

        Raises ModelError where an output needs an input that is not named.
        """
        need = list(outputs)
        keep: set[str] = set()
        while need:
            name = need.pop()
            if not name or name in inputs or self.is_constant(name):
                continue
            node = self.producer(name)
            if node is None:
                raise ModelError(
                    "this input is needed to compute the wanted tensors",
                    where=name,
                    wanted=", ".join(outputs),
                )
            if node.name not in keep:
                keep.add(node.name)
                need += node.inputs
        return self.with_(
            inputs=tuple(self.value(n) for n in inputs),
            outputs=tuple(self.value(n) for n in outputs),
            nodes=tuple(n for n in self.nodes if n.name in keep),
        ).pruned()


@dataclass(frozen=True, slots=True)
class Site:
    """A node in its graph: what an operator's functions are given to look at."""

    graph: Graph
    node: Node

    @property
    def attrs(self) -> Any:
        return self.node.attrs

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def value(self, index: int) -> Value:
        return self.graph.value(self.node.inputs[index])

    def constant(self, index: int) -> Array | None:
        """The constant behind input ``index``; None where it is absent or computed."""
        return self.graph.initializers.get(self.node.inputs[index]) if self.has(index) else None

    def qparams(self, index: int) -> QParams:
        qparams = self.value(index).qparams
        assert qparams is not None, f"{self.node.name}: input {index} is not quantized"
        return qparams

    @property
    def output(self) -> Value:
        return self.graph.value(self.node.outputs[0])

    @property
    def output_qparams(self) -> QParams:
        qparams = self.output.qparams
        assert qparams is not None, f"{self.node.name}: output is not quantized"
        return qparams
