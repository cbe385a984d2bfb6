"""Accuracy of a program on labelled inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.errors import BadShape, DataError
from npusim.ir import Array, Graph
from npusim.statistics import wilson

if TYPE_CHECKING:
    from npusim.counters import Statistics
    from npusim.models import Inputs
    from npusim.program import Program

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Top-1 accuracy: how many of ``total`` images have the largest output at their label."""

    correct: int
    total: int

    @property
    def top1(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the accuracy at CONFIDENCE."""
        return wilson(self.correct, self.total, CONFIDENCE)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.top1:.2%} ({self.correct} of {self.total}, "
            f"{CONFIDENCE:.0%} interval {low:.2%} to {high:.2%})"
        )

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "correct": self.correct,
            "total": self.total,
            "top1": self.top1,
            "interval": [low, high],
            "confidence": CONFIDENCE,
        }


def score_chunks(
    program: Program,
    inputs: Inputs,
    chunk: int,
    threads: int = 1,
    statistics: Statistics | None = None,
) -> Iterator[Accuracy]:
    """Runs ``chunk`` images at a time and yields the accuracy of each chunk.

    Only one chunk of images is in memory. Equal largest outputs count as the first of them, as
    numpy.argmax does. statistics: see ``Program.run``.

    Raises:
        BadShape: the model has several inputs or no output of class scores.
        DataError: there is no image.
    """
    if not len(inputs):
        raise DataError("there is no image to evaluate on")
    name = class_scores(program.graph)
    source = program.graph.inputs[0].name
    for images, labels in inputs.batches(chunk):
        feeds = {source: images}
        scores = program.run(feeds, threads=threads, statistics=statistics)[name]
        yield Accuracy(count_correct(scores, labels), len(labels))


def count_correct(scores: Array, labels: Array) -> int:
    """Images whose largest score is at the label; scores [N, classes], or with axes of size 1."""
    return int(np.count_nonzero(scores.reshape(len(labels), -1).argmax(axis=1) == labels))


def class_scores(graph: Graph) -> str:
    """The name of the output that scores the classes: the only one, one vector an image.

    Raises BadShape where the model is not such a classifier.
    """
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise BadShape(
            "only models with one input and one output can be evaluated",
            where=graph.path or graph.name,
            got=f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs",
        )
    output = graph.outputs[0]
    wide = [d for d in output.type.shape[1:] if d != 1]
    if len(output.type.shape) < 2 or len(wide) > 1:
        raise BadShape(
            "the output is not one vector of class scores an image",
            where=output.name,
            got=output.type,
            wanted="a shape such as [N,10]",
        )
    return output.name


def total(parts: list[Accuracy]) -> Accuracy:
    """The accuracy over all chunks."""
    return Accuracy(sum(p.correct for p in parts), sum(p.total for p in parts))
