"""How far numerics profiles lie apart on a network: codes that differ in each layer, and accuracy.

Every profile runs the whole network, so a layer's count holds what it inherits from the layers
before it as well as what it rounds differently itself.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.compare import codes_of
from npusim.counters import computing_sites
from npusim.errors import DataError
from npusim.evaluation import Accuracy, class_scores, count_correct
from npusim.ir import Array

if TYPE_CHECKING:
    from npusim.models import Inputs
    from npusim.program import Program


@dataclass(frozen=True, slots=True)
class LayerDistance:
    """values: output codes of the node over all images. differing: those unlike the first
    program's. largest: the largest difference, in codes."""

    node: str
    values: int
    differing: int
    largest: int

    @property
    def share(self) -> float:
        return self.differing / self.values if self.values else 0.0

    def __add__(self, other: LayerDistance) -> LayerDistance:
        return LayerDistance(
            self.node,
            self.values + other.values,
            self.differing + other.differing,
            max(self.largest, other.largest),
        )


@dataclass(frozen=True, slots=True)
class ProfileDistance:
    """One program beside the first one.

    layers: in execution order. accuracy: its own. decisions: images that it puts in another class.
    """

    profile: str
    layers: tuple[LayerDistance, ...]
    accuracy: Accuracy
    decisions: int

    def __add__(self, other: ProfileDistance) -> ProfileDistance:
        layers = tuple(a + b for a, b in zip(self.layers, other.layers, strict=True))
        correct = self.accuracy.correct + other.accuracy.correct
        accuracy = Accuracy(correct, self.accuracy.total + other.accuracy.total)
        return ProfileDistance(self.profile, layers, accuracy, self.decisions + other.decisions)

    def to_json(self) -> dict[str, Any]:
        layers = [
            {
                "node": layer.node,
                "values": layer.values,
                "differing": layer.differing,
                "share": layer.share,
                "largest": layer.largest,
            }
            for layer in self.layers
        ]
        return {
            "profile": self.profile,
            **self.accuracy.to_json(),
            "decisions": self.decisions,
            "layers": layers,
        }


def distance_chunks(
    programs: Sequence[Program], inputs: Inputs, chunk: int, threads: int = 1
) -> Iterator[tuple[ProfileDistance, ...]]:
    """Every program beside the first, for ``chunk`` images at a time; add them up.

    Args:
        programs: of one graph. The first one is compared with itself too.

    Raises:
        BadShape: the model has several inputs or no output of class scores.
        DataError: there is no image.
    """
    if not len(inputs):
        raise DataError("there is no image to evaluate on")
    graph = programs[0].graph
    scores, source = class_scores(graph), graph.inputs[0].name
    layers = {site.node.name: site.output.name for site in computing_sites(programs[0])}
    taps = [glob.escape(name) for name in {*layers.values(), codes_of(graph, scores)}]
    for images, labels in inputs.batches(chunk):
        runs = [p.run({source: images}, taps=taps, threads=threads) for p in programs]
        yield tuple(
            _beside(program, runs[0], run, layers, scores, labels)
            for program, run in zip(programs, runs, strict=True)
        )


def _beside(
    program: Program,
    first: dict[str, Array],
    run: dict[str, Array],
    layers: dict[str, str],
    scores: str,
    labels: Array,
) -> ProfileDistance:
    best = [y[scores].reshape(len(labels), -1).argmax(axis=1) for y in (first, run)]
    return ProfileDistance(
        program.profile.name,
        tuple(_layer(node, first[name], run[name]) for node, name in layers.items()),
        Accuracy(count_correct(run[scores], labels), len(labels)),
        int(np.count_nonzero(best[0] != best[1])),
    )


def _layer(node: str, a: Array, b: Array) -> LayerDistance:
    distance = np.abs(a.astype(np.int16) - b.astype(np.int16))
    return LayerDistance(
        node, a.size, int(np.count_nonzero(distance)), int(distance.max(initial=0))
    )
