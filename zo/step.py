"""One training step, and the update alone (which is all that a replay of the log does)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.zo.algorithm import Algorithm
from npusim.zo.lanes import Lanes, Point, Threads
from npusim.zo.network import Labelled
from npusim.zo.reference import BlockStats, Where
from npusim.zo.rng import batch_order
from npusim.zo.schedulers import Observation
from npusim.zo.state import TrainState
from npusim.zo.tensors import Trained
from npusim.zo.updates import Kernels

Table = Sequence[Sequence[Sequence[Mapping[str, Any]]]]

#: Weights of one task of an update; bits do not depend on it.
BLOCK_WEIGHTS = 1 << 16


@dataclass(frozen=True)
class Trainer:
    """What stays the same over a run. data: the training set. table: Algorithm.table()."""

    algorithm: Algorithm
    tensors: tuple[Trained, ...]
    table: Table
    kernels: Kernels
    lanes: Lanes
    data: Labelled

    @property
    def steps_per_epoch(self) -> int:
        """A last short batch of an epoch is dropped, since B enters the rate."""
        return len(self.data) // self.algorithm.settings.batch


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step gives: its log record, the mean Q16 loss, and the window's, at its end."""

    record: dict[str, Any]
    loss: float
    window_loss: int | None


class BatchOrder:
    """The batches of consecutive steps; an epoch's order is made once."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def batch(self, step: int) -> Labelled:
        """The images of a step: slice ``step mod steps_per_epoch`` of the epoch's order."""
        trainer = self._trainer
        epoch, place = divmod(step, trainer.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = batch_order(len(trainer.data), epoch, trainer.algorithm.key)
        size = trainer.algorithm.settings.batch
        return trainer.data.subset(self._order[place * size : (place + 1) * size])


def train_step(trainer: Trainer, order: BatchOrder, state: TrainState) -> Stepped:
    """Measure the step's losses, update ``state`` in place, and tell what happened."""
    algorithm = trainer.algorithm
    choice = algorithm.scheduler.choice(state.scheduler)
    q = algorithm.scheduler.qs[choice.q_index]
    evaluations = algorithm.estimator.evaluations(q)
    point = Point(state.step, algorithm.key, algorithm.settings.mu, algorithm.update.fraction_bits)
    batch = order.batch(state.step)
    losses = trainer.lanes.losses(state.weights, evaluations, batch, point)
    coefficients = algorithm.estimator.coefficients(losses)
    plans = trainer.table[choice.q_index][choice.lr_index]
    stats = apply_update(
        trainer.lanes.threads,
        trainer.kernels,
        algorithm,
        trainer.tensors,
        state.weights,
        coefficients,
        plans,
        state.step,
    )
    forwards = len(evaluations) * len(batch)
    record = {
        "type": "step",
        "step": state.step,
        "q": q,
        "q_index": choice.q_index,
        "lr_index": choice.lr_index,
        "mu": algorithm.settings.mu,
        "lr": algorithm.settings.rate * algorithm.scheduler.lr_factors[choice.lr_index],
        "loss_plus": [int(x) for x, e in zip(losses, evaluations, strict=True) if e.side > 0],
        "loss_minus": [int(x) for x, e in zip(losses, evaluations, strict=True) if e.side < 0],
        "d": [int(d) for d in coefficients],
        "forwards": state.forwards + forwards,
        **_columns(stats),
    }
    window_loss = _advance(trainer, state, stats, int(losses.sum()), forwards)
    return Stepped(record, int(losses.sum()) / forwards, window_loss)


def _columns(stats: Sequence[BlockStats]) -> dict[str, list[Any]]:
    """Statistics of the step, one value a trained tensor; counts of weights, and LSB."""
    return {
        "changed": [s.changed for s in stats],
        "saturated": [s.saturated for s in stats],
        "still": [s.still for s in stats],
        "max_delta": [s.largest for s in stats],
    }


def _advance(
    trainer: Trainer,
    state: TrainState,
    stats: Sequence[BlockStats],
    loss_sum: int,
    forwards: int,
) -> int | None:
    """Count the step in ``state``; the window's mean loss where one ended."""
    state.step += 1
    state.forwards += forwards
    state.still += np.array([s.still for s in stats], np.int64)
    state.still_steps += 1
    observation = Observation(loss_sum, forwards, state.step % trainer.steps_per_epoch == 0)
    state.scheduler, window_loss = trainer.algorithm.scheduler.update(state.scheduler, observation)
    return window_loss


def apply_update(
    threads: Threads,
    kernels: Kernels,
    algorithm: Algorithm,
    tensors: tuple[Trained, ...],
    weights: Sequence[npt.NDArray[Any]],
    coefficients: npt.NDArray[np.int64],
    plans: Sequence[Mapping[str, Any]],
    step: int,
) -> list[BlockStats]:
    """Move every trained weight, in place; needs no data and no forward pass.

    Args:
        weights: one array a tensor, of the update's kind.
        coefficients: D_k of the step. plans: the table's entry, one a tensor.

    Returns:
        What happened, one a tensor.
    """

    def one(block: tuple[int, slice]) -> BlockStats:
        index, rows = block
        tensor = tensors[index]
        where = Where(rows.start, tensor.id, step, algorithm.key)
        return algorithm.update.move(
            kernels, weights[index][rows], coefficients, plans[index], tensor.sat, where
        )

    blocks = [(i, rows) for i, tensor in enumerate(tensors) for rows in _blocks(tensor)]
    parts: list[list[BlockStats]] = [[] for _ in tensors]
    for (index, _), stats in zip(blocks, threads.map(one, blocks), strict=True):
        parts[index].append(stats)
    return [_total(stats) for stats in parts]


def _blocks(tensor: Trained) -> Iterator[slice]:
    rows = max(1, BLOCK_WEIGHTS // tensor.shape[1])
    return (slice(i, min(i + rows, tensor.shape[0])) for i in range(0, tensor.shape[0], rows))


def _total(parts: list[BlockStats]) -> BlockStats:
    return BlockStats(
        sum(p.changed for p in parts),
        sum(p.saturated for p in parts),
        sum(p.still for p in parts),
        max(p.largest for p in parts),
    )
