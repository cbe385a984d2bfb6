"""The training loop: steps, evaluations, log and checkpoints, until a limit or a signal."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npusim.ir import Graph
from npusim.weights import WeightStore
from npusim.zo.checkpoint import RESUMABLE, Checkpoint, save_checkpoint
from npusim.zo.fingerprint import fingerprint
from npusim.zo.log import SCHEMA_VERSION, LogWriter
from npusim.zo.network import Labelled
from npusim.zo.reference import exposed
from npusim.zo.state import TrainState
from npusim.zo.step import BatchOrder, Stepped, Trainer, train_step
from npusim.zo.stop import StopRequest
from npusim.zo.tensors import exposed_store

LOG_NAME = "log.jsonl"
CHECKPOINT_NAME = "checkpoint.h5"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends, and how often it saves. None: no limit.

    steps: in total. forwards: image-forwards in total; a step that would pass it is not begun.
    checkpoint_every: steps between checkpoints.
    """

    steps: int | None = None
    forwards: int | None = None
    checkpoint_every: int = 500


@dataclass(frozen=True, slots=True)
class Score:
    """Top-1 result of an evaluation: correct of total, mean loss in bits.

    saturated: operator -> int16 values that did not fit their stream, which the NPU does not tell;
        operators without any are left out.
    """

    correct: int
    total: int
    loss: float
    saturated: Mapping[str, int] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


@dataclass(frozen=True)
class Progress:
    """What a display can show after a step. loss: mean of the step's, in bits."""

    step: int
    forwards: int
    q: int
    loss: float
    score: Score | None
    warnings: tuple[str, ...] = ()


Watcher = Callable[[Progress], None]


@dataclass
class Run:
    """A run and its files. ``store``: all weights as imported. ``validation``: held-out images.

    options: what a checkpoint keeps so that --resume needs no option again.
    """

    trainer: Trainer
    store: WeightStore
    state: TrainState
    validation: Labelled
    header: Mapping[str, Any]
    log: LogWriter
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    last_score: Score | None = None

    def weights(self) -> WeightStore:
        """All weights of the network as exposed now."""
        codes = [exposed(w) for w in self.state.weights]
        return exposed_store(self.store, self.trainer.tensors, codes)

    def evaluate(self, data: Labelled) -> Score:
        """The unperturbed network on labelled images."""
        loss_sum, correct, saturated = self.trainer.lanes.evaluate(self.state.weights, data)
        return Score(correct, len(data), loss_sum / len(data) / 65536, saturated)

    def checkpoint(self, hint: str = RESUMABLE) -> None:
        """Write the checkpoint; the log up to here is made safe first.

        The first one of a run gives a new log its name, and so replaces an earlier run.

        Args:
            hint: what to do where it cannot be written.
        """
        self.log.sync()
        crc = self.weights().crc()
        save_checkpoint(
            self.folder / CHECKPOINT_NAME,
            Checkpoint(self.header, self.options, self.state, self.log.size, crc),
            self.log.publish,
            hint,
        )


def run_loop(run: Run, limits: Limits, stop: StopRequest, watch: Watcher) -> bool:
    """Train until a limit or a signal; leaves a checkpoint of the last step.

    What is logged after that checkpoint (last score, CRC) is written anew if the run is resumed.

    Returns:
        True where a limit was reached, False where a signal asked to stop.

    Raises:
        CheckpointError: log or checkpoint cannot be written.
        NumericsError: the faithful update's float16 would overflow; the checkpoint is kept.
    """
    order = BatchOrder(run.trainer)
    while not (finished := _finished(run, limits)) and not stop.requested:
        _one_step(run, order, watch)
        if run.state.step % limits.checkpoint_every == 0:
            run.checkpoint()
    run.checkpoint()
    if finished:
        run.last_score = log_score(run)
    reason = "finished" if finished else "interrupted"
    run.log.write(
        {"type": "stop", "reason": reason, "step": run.state.step, "crc": run.weights().crc()}
    )
    run.log.sync()
    return finished


def _finished(run: Run, limits: Limits) -> bool:
    if limits.steps is not None and run.state.step >= limits.steps:
        return True
    algorithm = run.trainer.algorithm
    most = algorithm.scheduler.most(run.state.scheduler)
    after = run.state.forwards + algorithm.forwards(most)
    return limits.forwards is not None and after > limits.forwards


def _one_step(run: Run, order: BatchOrder, watch: Watcher) -> None:
    settings = run.trainer.algorithm.settings
    before = run.state.forwards
    stepped = train_step(run.trainer, order, run.state)
    record = dict(stepped.record)
    if stepped.window_loss is not None:
        record["window_loss"] = stepped.window_loss
    if run.state.step % settings.crc_every == 0:
        record["crc"] = run.weights().crc()
    run.log.write(record)
    warnings = _freeze_warnings(run, stepped)
    for text in warnings:
        run.log.write({"type": "warning", "step": record["step"], "text": text})
    due = settings.eval_every and before // settings.eval_every != (
        run.state.forwards // settings.eval_every
    )
    if due:
        run.last_score = log_score(run)
    watch(
        Progress(
            run.state.step,
            run.state.forwards,
            record["q"],
            stepped.loss / 65536,
            run.last_score,
            warnings,
        )
    )


def log_score(run: Run) -> Score:
    """Evaluate now and write the record of it."""
    score = run.evaluate(run.validation)
    run.log.write(
        {
            "type": "evaluation",
            "step": run.state.step,
            "forwards": run.state.forwards,
            "correct": score.correct,
            "total": score.total,
            "loss": score.loss,
            "saturated": dict(score.saturated),
        }
    )
    return score


def _freeze_warnings(run: Run, stepped: Stepped) -> tuple[str, ...]:
    """At a window's end: layers whose weights hardly moved in it, each reported once."""
    if stepped.window_loss is None:
        return ()
    state = run.state
    texts = []
    for i, tensor in enumerate(run.trainer.tensors):
        moves = tensor.size * state.still_steps
        update = run.trainer.algorithm.update_of(tensor)
        if update.frozen(int(state.still[i]), moves) and not state.warned[i]:
            state.warned[i] = True
            share = int(state.still[i]) / moves
            texts.append(
                f"layer {tensor.node}: {share:.0%} of its weights' steps were rounded to nothing; "
                "it is close to frozen. Raise --lr."
            )
    state.still[:] = 0
    state.still_steps = 0
    return tuple(texts)


def make_header(
    trainer: Trainer,
    graph: Graph,
    store: WeightStore,
    validation: Labelled,
    profile: str,
    lowering: Any,
) -> dict[str, Any]:
    """Line 0 of the log: with the model, all that a replay needs.

    Args:
        graph, store: the network and its weights as imported.
        lowering: node name -> the numbers it computes with, as JSON.
    """
    algorithm = trainer.algorithm
    return {
        "type": "header",
        "schema_version": SCHEMA_VERSION,
        "graph": fingerprint(graph),
        "model_crc": store.crc(),
        "data_crc": data_crc(trainer.data),
        "validation_crc": data_crc(validation),
        "settings": algorithm.settings.to_json(),
        "direction": algorithm.direction.name,
        "estimator": algorithm.estimator.name,
        "loss_bits": trainer.loss_bits,
        "q": list(algorithm.scheduler.qs),
        "tensors": [
            {
                "id": t.id,
                "name": t.name,
                "node": t.node,
                "kind": t.kind,
                "shape": list(t.shape),
                "sat": list(t.sat),
                "mu": t.mu,
                "unit_bits": t.unit_bits.tolist() if t.kind == "bias" else 0,
            }
            for t in trainer.tensors
        ],
        "table": trainer.table,
        "profile": profile,
        "lowering": lowering,
    }


def data_crc(data: Labelled) -> int:
    """CRC-32 of the codes and the labels (little-endian int64), in their order."""
    labels = np.ascontiguousarray(data.labels, "<i8")
    return zlib.crc32(labels.tobytes(), zlib.crc32(np.ascontiguousarray(data.codes).tobytes()))
