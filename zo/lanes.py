"""Forward passes at perturbed weights, one perturbation a thread, and updates in blocks.

A lane is one thread's memory: a worker of the core program and one scratch tensor. Tasks take a
free lane, so that neither losses nor weights depend on which thread did what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from npusim.program import AnyWorker
from npusim.weights import WeightStore
from npusim.zo.directions import layer_of
from npusim.zo.estimator import Evaluation
from npusim.zo.loss import IntegerCrossEntropy, Loss
from npusim.zo.masks import blocked
from npusim.zo.network import Labelled, TrainedNetwork
from npusim.zo.prefix import SuffixRunner, suffixes_of
from npusim.zo.reference import Where, exposed
from npusim.zo.rng import Key, Purpose
from npusim.zo.tensors import Trained, flat
from npusim.zo.updates import Kernels

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Point:
    """Where a forward pass stands.

    step, key, purpose: of the random numbers. gate: see npusim.zo.masks.blocked.
    layers: LayerQ's, one of which a direction perturbs; () where it perturbs all.
    """

    step: int
    key: Key
    purpose: Purpose = Purpose.SIGNS
    gate: bool = False
    layers: tuple[str, ...] = ()

    def layer(self, k: int) -> str | None:
        """The only layer that direction k perturbs, or None."""
        if not self.layers:
            return None
        return self.layers[layer_of(len(self.layers), self.step, k, self.key)]


@dataclass(frozen=True)
class Lane:
    """What one thread needs. chunk: images of one forward call at most.

    scratch: for the codes of the largest tensor of a dtype. loss: of steps; evaluations always
    use ``integer_loss``. runner: of LayerQ's suffixes; None: every pass runs the whole network.
    """

    worker: AnyWorker
    scratch: Mapping[type, npt.NDArray[Any]]
    tensors: tuple[Trained, ...]
    kernels: Kernels
    loss: Loss
    integer_loss: IntegerCrossEntropy
    chunk: int
    runner: SuffixRunner | None = None

    def losses_at(
        self,
        weights: Sequence[npt.NDArray[Any]],
        evaluation: Evaluation,
        batch: Labelled,
        point: Point,
    ) -> int:
        """Sum of the batch's losses at sat(w + side * mu * z_k), built from the stored weights."""
        layer = point.layer(evaluation.k)
        if layer is None or self.runner is None:
            for tensor, state in zip(self.tensors, weights, strict=True):
                moved = layer in (None, tensor.node) and evaluation.side
                codes = self._moved(tensor, state, evaluation, point) if moved else exposed(state)
                self.worker.set_weight(tensor.name, flat(tensor, codes))
            return self.measure(batch, self.loss)[0]
        if self.runner.begin(point.step):
            self.expose(weights)
        worker = self.runner.workers[layer]
        for tensor, state in zip(self.tensors, weights, strict=True):
            if self.runner.holds(layer, tensor.name):
                moved = tensor.node == layer and evaluation.side
                codes = self._moved(tensor, state, evaluation, point) if moved else exposed(state)
                worker.set_weight(tensor.name, flat(tensor, codes))
        return self.measure(batch, self.loss, layer)[0]

    def _moved(
        self, tensor: Trained, state: npt.NDArray[Any], evaluation: Evaluation, point: Point
    ) -> npt.NDArray[Any]:
        """The perturbed codes of one tensor; valid until the next call."""
        out = self.scratch[tensor.code_type][: tensor.size].reshape(tensor.shape)
        where = Where(0, tensor.id, point.step, point.key, point.purpose)
        amounts = np.int64(evaluation.side * tensor.mu) << tensor.unit_bits
        self.kernels.perturb(state, out, amounts, tensor.sat, where, evaluation.k)
        still = blocked(tensor, slice(None), state, point.gate)
        if still is not None:
            out[still] = exposed(state)[still]
        return out

    def expose(self, weights: Sequence[npt.NDArray[Any]]) -> None:
        """Give the worker the weights as they are."""
        for tensor, state in zip(self.tensors, weights, strict=True):
            self.worker.set_weight(tensor.name, flat(tensor, exposed(state)))

    def measure(
        self,
        data: Labelled,
        loss: Loss,
        layer: str | None = None,
        saturated: Counter[str] | None = None,
    ) -> tuple[int, int]:
        """(sum of the losses, correct answers) over the images, whatever the chunk.

        layer: run only what follows the start of this layer; what comes before it is kept.
        saturated: takes the int16 values of each operator that did not fit their stream.
        """
        loss_sum = correct = 0
        for start in range(0, len(data), self.chunk):
            labels = data.labels[start : start + self.chunk]
            codes = data.codes[start : start + self.chunk]
            if layer is None or self.runner is None:
                (logits,) = self.worker.forward((codes,))
            else:
                logits = self.runner.forward(layer, start, codes)
            if saturated is not None:
                saturated.update(self.worker.saturations())
            scores = logits.reshape(len(labels), -1)
            loss_sum += int(loss(scores, labels).sum())
            correct += int(np.count_nonzero(scores.argmax(axis=1) == labels))
        return loss_sum, correct


class Threads:
    """A pool that maps in order; one thread means no pool. Use it as a context manager."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results in the order of the items."""
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))


class Lanes:
    """One lane a thread.

    Args:
        network: whose core is run. store: all weights of the network.
        tensors: the trained ones. kernels: see npusim.zo.updates.Kernels.
        threads: the pool. chunk: images of one forward call at most. loss: of steps.
        layers: LayerQ's, whose prefixes are kept within a step.
    """

    def __init__(
        self,
        network: TrainedNetwork,
        tensors: tuple[Trained, ...],
        kernels: Kernels,
        store: WeightStore,
        threads: Threads,
        chunk: int,
        loss: Loss | None = None,
        layers: tuple[str, ...] = (),
    ) -> None:
        self._free: SimpleQueue[Lane] = SimpleQueue()
        step_loss = loss or network.loss
        suffixes = suffixes_of(network.core, layers)
        for _ in range(threads.count):
            worker = network.core.worker(chunk)
            worker.load(_part_of(store, network.core.weights))
            runner = SuffixRunner.make(worker, suffixes, store, chunk) if layers else None
            scratch, evaluated = _scratch(tensors), network.loss
            lane = Lane(worker, scratch, tensors, kernels, step_loss, evaluated, chunk, runner)
            self._free.put(lane)
        self.threads = threads

    def losses(
        self,
        weights: Sequence[npt.NDArray[Any]],
        evaluations: Sequence[Evaluation],
        batch: Labelled,
        point: Point,
    ) -> npt.NDArray[np.int64]:
        """The batch sum of the losses of every evaluation, int64, in their order."""

        def one(evaluation: Evaluation) -> int:
            with self._lane() as lane:
                return lane.losses_at(weights, evaluation, batch, point)

        return np.array(self.threads.map(one, evaluations), np.int64)

    def evaluate(
        self, weights: Sequence[npt.NDArray[Any]], data: Labelled
    ) -> tuple[int, int, dict[str, int]]:
        """(sum of the Q16 losses, correct answers, saturated values) at the unperturbed weights.

        Saturated: operator -> int16 values that did not fit; operators without any are left out.
        """
        share = -(-len(data) // self.threads.count)
        bounds = [slice(i, i + share) for i in range(0, len(data), share)]

        def one(bound: slice) -> tuple[int, int, Counter[str]]:
            saturated: Counter[str] = Counter()
            with self._lane() as lane:
                lane.expose(weights)
                part = Labelled(data.codes[bound], data.labels[bound])
                loss_sum, correct = lane.measure(part, lane.integer_loss, None, saturated)
            return loss_sum, correct, saturated

        parts = self.threads.map(one, bounds)
        counts = sum((p[2] for p in parts), Counter())
        return sum(p[0] for p in parts), sum(p[1] for p in parts), dict(sorted(counts.items()))

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)


def _scratch(tensors: tuple[Trained, ...]) -> dict[type, npt.NDArray[Any]]:
    """Room for the largest tensor of each type of codes."""
    return {
        kind: np.empty(max((t.size for t in tensors if t.code_type is kind), default=0), kind)
        for kind in (np.int8, np.int32)
    }


def _part_of(store: WeightStore, part: WeightStore) -> WeightStore:
    """The weights of a part of the network, with the codes of the whole one's store."""
    return part.replaced({t.name: store.codes(t.name) for t in part.tensors})
