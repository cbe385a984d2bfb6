"""One training step, and the update alone (which is all that a replay of the log does)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.zo.algorithm import Algorithm, layers_of
from npusim.zo.estimator import clipped
from npusim.zo.lanes import Lanes, Point, Threads
from npusim.zo.masks import blocked, restored
from npusim.zo.network import Labelled
from npusim.zo.reference import BlockStats, Where
from npusim.zo.rng import batch_order
from npusim.zo.schedulers import Observation, Validated
from npusim.zo.state import Done, TrainState
from npusim.zo.tensors import Trained
from npusim.zo.updates import Kernels, Past

Table = Sequence[Sequence[Sequence[Mapping[str, Any]]]]

#: Weights of one task of an update; bits do not depend on it.
BLOCK_WEIGHTS = 1 << 16


@dataclass(frozen=True)
class Trainer:
    """What stays the same over a run.

    data: the training set. validation: held-out images, for a scheduler that asks for them.
    table: Algorithm.table(). loss_bits: fraction bits of the steps' losses.
    """

    algorithm: Algorithm
    tensors: tuple[Trained, ...]
    table: Table
    kernels: Kernels
    lanes: Lanes
    data: Labelled
    validation: Labelled
    loss_bits: int = 16

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
    batch = order.batch(state.step)
    measured = _measure(trainer, state, batch, choice.q_index)
    coefficients, medians = clipped(measured.coefficients, state.medians, algorithm.settings.clip)
    done = Done(state.step, measured.q_index, choice.lr_index, tuple(int(d) for d in coefficients))
    state.history = (*state.history, done)[-algorithm.update.history :]
    stats = apply_update(
        trainer.lanes.threads,
        trainer.kernels,
        algorithm,
        trainer.tensors,
        state.weights,
        state.history,
        trainer.table,
    )
    state.medians = medians
    q = algorithm.scheduler.qs[measured.q_index]
    losses, evaluations = measured.losses, algorithm.estimator.evaluations(q)
    sides = {
        name: [int(x) for x, e in zip(losses, evaluations, strict=True) if e.side == side]
        for name, side in (("loss_plus", 1), ("loss_minus", -1), ("loss_base", 0))
    }
    forwards = len(losses) * len(batch)
    record = {
        "type": "step",
        "step": state.step,
        "q": q,
        "q_index": measured.q_index,
        "lr_index": choice.lr_index,
        "mu": algorithm.settings.mu,
        "lr": algorithm.rate * algorithm.scheduler.lr_factors[choice.lr_index],
        **{name: values for name, values in sides.items() if values},
        "d": list(done.coefficients),
        "forwards": state.forwards + forwards,
        **_columns(stats),
    }
    loss_sum = int(losses.sum()) >> (trainer.loss_bits - 16)
    window_loss = _advance(trainer, state, stats, loss_sum, forwards, measured.coefficients)
    return Stepped(record, loss_sum / forwards, window_loss)


class _Measured(NamedTuple):
    """Losses of a step's evaluations, their D_k, and the index of the q that it came to."""

    losses: npt.NDArray[np.int64]
    coefficients: npt.NDArray[np.int64]
    q_index: int


def _measure(trainer: Trainer, state: TrainState, batch: Labelled, q_index: int) -> _Measured:
    """Run the step's evaluations; a scheduler may ask for more directions."""
    algorithm, lanes = trainer.algorithm, trainer.lanes
    point = point_of(algorithm, trainer.tensors, state.step)
    losses = np.empty(0, np.int64)
    while True:
        evaluations = algorithm.estimator.evaluations(algorithm.scheduler.qs[q_index])
        new = lanes.losses(state.weights, evaluations[len(losses) :], batch, point)
        losses = np.concatenate([losses, new])
        coefficients = algorithm.estimator.coefficients(losses)
        if not algorithm.scheduler.wants_more(state.scheduler, coefficients.tolist()):
            return _Measured(losses, coefficients, q_index)
        q_index += 1


def point_of(algorithm: Algorithm, tensors: tuple[Trained, ...], step: int) -> Point:
    """Where the forward passes of a step stand."""
    settings = algorithm.settings
    layers = layers_of(tensors) if settings.layerq else ()
    return Point(step, algorithm.key, algorithm.direction.purpose, settings.gate, layers)


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
    coefficients: npt.NDArray[np.int64],
) -> int | None:
    """Count the step in ``state``; the window's metric where one ended."""
    state.step += 1
    state.forwards += forwards
    state.still += np.array([s.still for s in stats], np.int64)
    state.still_steps += 1
    ended = state.step % trainer.steps_per_epoch == 0
    observation = Observation(loss_sum, forwards, ended, coefficients.tolist())

    def validate() -> Validated:
        """These forward passes decide something, so they count."""
        loss, correct, _ = trainer.lanes.evaluate(state.weights, trainer.validation)
        state.forwards += len(trainer.validation)
        return Validated(loss, correct, len(trainer.validation))

    state.scheduler, metric = trainer.algorithm.scheduler.update(
        state.scheduler, observation, validate
    )
    return metric


def apply_update(
    threads: Threads,
    kernels: Kernels,
    algorithm: Algorithm,
    tensors: tuple[Trained, ...],
    weights: Sequence[npt.NDArray[Any]],
    history: Sequence[Done],
    table: Table,
) -> list[BlockStats]:
    """Move every trained weight, in place; needs no data and no forward pass.

    Args:
        weights: one array a tensor, of the update's kind.
        history: the steps that the update looks back on, the present one last.

    Returns:
        What happened, one a tensor.
    """
    past = _past(algorithm, tensors, history, table)
    now = history[-1].step
    purpose, gate = algorithm.direction.purpose, algorithm.settings.gate

    def one(block: tuple[int, slice]) -> BlockStats:
        index, rows = block
        tensor, state = tensors[index], weights[index][rows]
        where = Where(rows.start, tensor.id, now, algorithm.key, purpose)
        update = algorithm.update_of(tensor)
        still = blocked(tensor, rows, state, gate)
        before = None if still is None else state.copy()
        stats = update.move(kernels, state, past[index][-update.history :], tensor, where)
        if still is None or before is None:
            return stats
        return restored(before, state, still, tensor.sat, stats)

    blocks = [(i, rows) for i, tensor in enumerate(tensors) for rows in _blocks(tensor)]
    parts: list[list[BlockStats]] = [[] for _ in tensors]
    for (index, _), stats in zip(blocks, threads.map(one, blocks), strict=True):
        parts[index].append(stats)
    return [_total(stats) for stats in parts]


def _past(
    algorithm: Algorithm, tensors: tuple[Trained, ...], history: Sequence[Done], table: Table
) -> list[list[Past]]:
    """The steps as each tensor sees them: directions that left it alone have D_k = 0."""
    found: list[list[Past]] = [[] for _ in tensors]
    for done in history:
        point = point_of(algorithm, tensors, done.step)
        layers = [point.layer(k) for k in range(len(done.coefficients))]
        plans = table[done.q_index][done.lr_index]
        for i, tensor in enumerate(tensors):
            pairs = zip(done.coefficients, layers, strict=True)
            own = [d if layer in (None, tensor.node) else 0 for d, layer in pairs]
            found[i].append(Past(done.step, np.array(own, np.int64), plans[i]))
    return found


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
