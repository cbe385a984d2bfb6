"""LayerQ's forward passes: what lies before the perturbed layer is run once a step and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from npusim.ir import Graph
from npusim.program import AnyWorker, Program, compile_graph
from npusim.weights import WeightStore

Activations = Mapping[str, npt.NDArray[Any]]


def boundary(graph: Graph, layer: str) -> tuple[str, ...]:
    """The tensors that are computed before a layer and read by it or by what follows it.

    layer: name of a node of the graph, whose nodes are in execution order.
    """
    place = next(i for i, node in enumerate(graph.nodes) if node.name == layer)
    before = {v.name for v in graph.inputs}
    before.update(name for node in graph.nodes[:place] for name in node.outputs)
    read = {name for node in graph.nodes[place:] for name in node.inputs}
    return tuple(name for name in graph.values if name in before and name in read)


@dataclass(frozen=True)
class Suffix:
    """The network from one layer on. inputs: the boundary; program: what runs from there."""

    inputs: tuple[str, ...]
    program: Program


def suffixes_of(core: Program, layers: Sequence[str]) -> dict[str, Suffix]:
    """The suffix of each layer, with the lowering of the whole network."""
    outputs = tuple(v.name for v in core.graph.outputs)
    found = {}
    for layer in layers:
        inputs = boundary(core.graph, layer)
        graph = core.graph.cut(inputs, outputs)
        found[layer] = Suffix(
            inputs, compile_graph(graph, core.profile, core.engine, core.lowering)
        )
    return found


@dataclass
class SuffixRunner:
    """One thread's workers for all suffixes, and the activations of the present step's batch.

    core: the thread's worker of the whole network. tensors: suffix -> its weight tensors.
    """

    core: AnyWorker
    suffixes: Mapping[str, Suffix]
    workers: Mapping[str, AnyWorker]
    _step: int = -1
    _kept: dict[int, Activations] = field(default_factory=dict)

    @classmethod
    def make(
        cls, core: AnyWorker, suffixes: Mapping[str, Suffix], store: WeightStore, images: int
    ) -> SuffixRunner:
        """Workers for up to ``images`` images, with the weights of ``store``."""
        workers = {}
        for layer, suffix in suffixes.items():
            part = suffix.program.weights
            workers[layer] = suffix.program.worker(images)
            workers[layer].load(part.replaced({t.name: store.codes(t.name) for t in part.tensors}))
        return cls(core, suffixes, workers)

    def holds(self, layer: str, name: str) -> bool:
        """Whether a weight tensor belongs to the suffix of a layer."""
        tensors = self.suffixes[layer].program.weights.tensors
        return any(t.name == name for t in tensors)

    def begin(self, step: int) -> bool:
        """Forget the activations of another step; True where there were none of this one."""
        if step == self._step:
            return False
        self._step, self._kept = step, {}
        return True

    def forward(self, layer: str, start: int, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Logits of the images from number ``start`` of the batch on.

        The core's worker must hold the unperturbed weights when a step's images come first.
        """
        if start not in self._kept:
            self.core.forward((codes,))
            names = {name for suffix in self.suffixes.values() for name in suffix.inputs}
            self._kept[start] = {name: self.core.value(name) for name in sorted(names)}
        kept = self._kept[start]
        inputs = tuple(kept[name] for name in self.suffixes[layer].inputs)
        (logits,) = self.workers[layer].forward(inputs)
        return logits
