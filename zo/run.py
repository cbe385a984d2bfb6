"""A whole training run from a model file to a trained one: what ``npusim train`` does."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import npusim
from npusim.errors import CheckpointError, DataError, UsageError
from npusim.frontend.export import export
from npusim.lowering import compile_chosen, lowering_metadata, recompiled, recompiled_differences
from npusim.numerics.lowered import lowering_from_json, lowering_to_json
from npusim.program import Program
from npusim.weights import WeightStore
from npusim.zo import reference
from npusim.zo.algorithm import Algorithm, compose, layers_of, trained_tensors
from npusim.zo.calibrate import calibrated_rate
from npusim.zo.checkpoint import Checkpoint, load_checkpoint
from npusim.zo.data import DataSpec, Splits, encode_inputs, open_splits
from npusim.zo.folder import (
    RECORD_NAME,
    TRAINED_NAME,
    check_apart,
    check_log,
    check_ready,
    check_same,
    remove_leftovers,
)
from npusim.zo.lanes import Lanes, Threads
from npusim.zo.lock import FolderLock
from npusim.zo.log import NOT_BEGUN, LogWriter
from npusim.zo.loop import (
    CHECKPOINT_NAME,
    LOG_NAME,
    Run,
    Score,
    Watcher,
    log_score,
    make_header,
    run_loop,
)
from npusim.zo.loss import Loss
from npusim.zo.network import Labelled, TrainedNetwork, cut_network
from npusim.zo.replay import Replayed, replay_log
from npusim.zo.request import TrainRequest, resolve
from npusim.zo.settings import AUTO, Settings
from npusim.zo.state import initial_state
from npusim.zo.step import Trainer
from npusim.zo.stop import StopRequest
from npusim.zo.tensors import Trained

MOST_IMAGES_A_CALL = 64


@dataclass(frozen=True)
class TrainResult:
    """The outcome. Scores are None where a run was interrupted (after) or saw no shift (clean).

    finished: False where a signal stopped it; it can then be resumed.
    recompiled: the validation images under the lowering that the trained weights would give, None
        where it is the one that they were trained through; recompiled_numbers: node -> names of the
        numbers that would change.
    moved: codes that differ from the given network's. next_forwards: image-forwards that one more
        step would take.
    """

    finished: bool
    step: int
    forwards: int
    crc: int
    moved: int
    next_forwards: int
    before: Score
    after: Score | None
    clean_before: Score | None
    clean_after: Score | None
    recompiled: Score | None
    recompiled_numbers: Mapping[str, tuple[str, ...]]
    files: Mapping[str, Path]
    profile: str
    settings: Settings
    data: DataSpec


def train(
    request: TrainRequest, watch: Watcher, tell: Callable[[str], None] = lambda _: None
) -> TrainResult:
    """Train, or go on training, until a limit or a signal.

    Args:
        watch: called after every step.
        tell: called with sentences about what was assumed or done.

    Raises NpusimError; see the modules that do the work.
    """
    if request.resume and request.overwrite:
        raise UsageError("a run is either resumed or replaced", where="--resume --overwrite")
    check_apart(request)
    check_ready(request)
    with StopRequest() as stop, FolderLock(request.out) as lock:
        if request.out.is_dir():
            lock.take()
            check_ready(request)  # another run may have ended meanwhile
        return _train(request, watch, tell, stop, lock)


def _train(
    request: TrainRequest,
    watch: Watcher,
    tell: Callable[[str], None],
    stop: StopRequest,
    lock: FolderLock,
) -> TrainResult:
    """``train``, when an existing folder is its own; a new one is made only for results."""
    old = load_checkpoint(request.out / CHECKPOINT_NAME) if request.resume else None
    settings, spec, profile = resolve(request, old)
    algorithm = compose(settings)
    program, note = _compile(request, profile, old)
    network = cut_network(program)
    algorithm.check(network)
    kernels = kernel_module(request.engine)
    tensors = trained_tensors(algorithm, program.graph, program.weights)
    splits = open_splits(spec, program.graph, settings.seed)
    for sentence in (note, *splits.notes):
        if sentence:
            tell(sentence)
    training = encode_inputs(splits.training, network)
    if len(training) < settings.batch:
        raise DataError(
            "there are fewer training images than a batch holds",
            where=splits.training.dataset.source,
            got=len(training),
            wanted=settings.batch,
            hint="Use a smaller --batch.",
        )
    with Threads(request.threads) as threads:
        chunk = min(max(settings.batch, 16), MOST_IMAGES_A_CALL)
        loss = network.loss_of(settings.loss)
        layers = layers_of(tensors) if settings.layerq else ()
        lanes = Lanes(network, tensors, kernels, program.weights, threads, chunk, loss, layers)
        validation = encode_inputs(splits.validation, network)
        algorithm, spent = _with_rate(algorithm, tensors, program, lanes, training, loss, tell)
        table = algorithm.table(tensors, loss.fraction_bits)
        trainer = Trainer(
            algorithm, tensors, table, kernels, lanes, training, validation, loss.fraction_bits
        )
        session = _Session(request, program, network, splits, trainer, spec, spent)
        lock.take()
        check_ready(request)
        return session.run(old, watch, tell, stop)


def replay(
    model: Path, log: Path, engine: str = "fast", threads: int = 1, q_json: Path | None = None
) -> Replayed:
    """Rebuild a run's weights from its model and its log, and compare every CRC in the log.

    No image is run, so that no profile matters.
    """
    graph = npusim.load(model, q_json)
    with Threads(threads) as pool:
        return replay_log(log, graph, WeightStore.of(graph), kernel_module(engine), pool)


def kernel_module(engine: str) -> ModuleType:
    """The Numba kernels, or the NumPy reference with the same functions."""
    if engine == "numpy":
        return reference
    from npusim.zo import kernels

    return kernels


@dataclass(frozen=True)
class _Session:
    """The parts of one call of ``train``. spent: image-forwards before the first step."""

    request: TrainRequest
    program: Program
    network: TrainedNetwork
    splits: Splits
    trainer: Trainer
    spec: DataSpec
    spent: int

    def run(
        self,
        old: Checkpoint | None,
        watch: Watcher,
        tell: Callable[[str], None],
        stop: StopRequest,
    ) -> TrainResult:
        validation = self.trainer.validation
        unshifted = self.splits.clean
        clean = encode_inputs(unshifted, self.network) if unshifted is not None else None
        header = self._header(validation)
        stop.defer()
        with self._log(header, old) as log:
            run = self._run(validation, header, log, old)
            if old is None:
                self._begin(run, clean)
            finished = run_loop(run, self.request.limits, stop, watch)
            if finished:
                tell(self._export(run.weights(), self.request.out / TRAINED_NAME))
            return self._result(run, finished, clean)

    def _header(self, validation: Labelled) -> dict[str, Any]:
        lowering = lowering_to_json(self.program.lowering)
        program, profile = self.program, self.program.profile.name
        return make_header(
            self.trainer, program.graph, program.weights, validation, profile, lowering
        )

    def _log(self, header: Mapping[str, Any], old: Checkpoint | None) -> LogWriter:
        """A new log, or the old one at the checkpoint's length."""
        path = self.request.out / LOG_NAME
        if old is not None:
            check_same(old.header, header, self.request)
        remove_leftovers(self.request.out)
        if old is None:
            return LogWriter.create(path)
        check_log(path, old)
        return LogWriter.reopen(path, old.log_bytes)

    def _run(
        self,
        validation: Labelled,
        header: Mapping[str, Any],
        log: LogWriter,
        old: Checkpoint | None,
    ) -> Run:
        """The run at its first step, or at the checkpoint's.

        Raises CheckpointError where the checkpoint's weights have not the CRC that it states.
        """
        store, trainer, out = self.program.weights, self.trainer, self.request.out
        if old is None:
            state = initial_state(trainer.algorithm, trainer.tensors, store)
            state.forwards = self.spent
            return Run(trainer, store, state, validation, header, log, out)
        run = Run(trainer, store, old.state, validation, old.header, log, out, old.run)
        if run.weights().crc() != old.weights_crc:
            raise CheckpointError(
                "the weights in the checkpoint are damaged",
                where=str(out / CHECKPOINT_NAME),
                got=f"CRC {run.weights().crc():08x}",
                wanted=f"{old.weights_crc:08x}",
            )
        return run

    def _begin(self, run: Run, clean: Labelled | None) -> None:
        """Header, first evaluation and first checkpoint, so that even step 0 can be resumed.

        Only then the results of an earlier run in the folder are removed.
        """
        run.log.write(run.header)
        run.last_score = log_score(run)
        run.options = {
            "data": self.spec.to_json(),
            "before": dataclasses.asdict(run.last_score),
            "clean_before": dataclasses.asdict(run.evaluate(clean)) if clean else None,
        }
        run.checkpoint(NOT_BEGUN)
        for name in (TRAINED_NAME, RECORD_NAME):
            (self.request.out / name).unlink(missing_ok=True)

    def _result(self, run: Run, finished: bool, clean: Labelled | None) -> TrainResult:
        store = run.weights()
        files = {"log": self.request.out / LOG_NAME, "checkpoint": run.folder / CHECKPOINT_NAME}
        if finished:
            files["trained"] = self.request.out / TRAINED_NAME
        return TrainResult(
            finished=finished,
            step=run.state.step,
            forwards=run.state.forwards,
            crc=store.crc(),
            moved=_moved(self.program.weights, store),
            next_forwards=self._next_forwards(run),
            before=Score(**run.options["before"]),
            after=run.last_score if finished else None,
            clean_before=Score(**run.options["clean_before"]) if clean else None,
            clean_after=run.evaluate(clean) if clean and finished else None,
            recompiled=self._recompiled(store, run.validation) if finished else None,
            recompiled_numbers=recompiled_differences(self.program, store) if finished else {},
            files=files,
            profile=self.program.profile.name,
            settings=self.trainer.algorithm.settings,
            data=self.spec,
        )

    def _recompiled(self, store: WeightStore, data: Labelled) -> Score | None:
        """The trained network compiled anew; None where that changes no number."""
        if not recompiled_differences(self.program, store):
            return None
        network = cut_network(recompiled(self.program, store))
        core = network.core
        names = core.graph.inputs[0].name, core.graph.outputs[0].name
        logits = core.run({names[0]: data.codes}, threads=self.request.threads)[names[1]]
        logits = logits.reshape(len(data), -1)
        loss_sum = int(network.loss(logits, data.labels).sum())
        correct = int(np.count_nonzero(logits.argmax(axis=1) == data.labels))
        return Score(correct, len(data), loss_sum / len(data) / 65536)

    def _next_forwards(self, run: Run) -> int:
        algorithm = self.trainer.algorithm
        return algorithm.forwards(algorithm.scheduler.most(run.state.scheduler))

    def _export(self, store: WeightStore, path: Path) -> str:
        """Write the trained network; a sentence about what was written.

        Raises CheckpointError, with the command that makes the file, where it cannot be written.
        """
        program, request = self.program, self.request
        metadata = lowering_metadata(program.profile.name, program.weights.crc(), program.lowering)
        try:
            return export(program.graph, store, path, metadata).message
        except OSError as error:
            words = ["npusim", "export", request.model, "--output", path]
            words += ["--checkpoint", request.out / CHECKPOINT_NAME]
            words += ["--q-json", request.q_json] if request.q_json else []
            raise CheckpointError(
                f"the trained network cannot be written: {error.strerror or error}",
                where=str(path),
                hint="Training is complete and its checkpoint is safe. Make room and write the "
                f"file with: {shlex.join(map(str, words))}",
            ) from error


def _moved(before: WeightStore, after: WeightStore) -> int:
    """How many codes differ."""
    names = (tensor.name for tensor in before.tensors)
    return sum(int(np.count_nonzero(before.codes(n) != after.codes(n))) for n in names)


def _with_rate(
    algorithm: Algorithm,
    tensors: tuple[Trained, ...],
    program: Program,
    lanes: Lanes,
    data: Labelled,
    loss: Loss,
    tell: Callable[[str], None],
) -> tuple[Algorithm, int]:
    """The algorithm with a number in place of ``--lr auto``, and the image-forwards it took."""
    if algorithm.settings.lr != AUTO:
        return algorithm, 0
    weights = initial_state(algorithm, tensors, program.weights).weights
    found = calibrated_rate(algorithm, tensors, weights, lanes, data, loss.fraction_bits)
    tell(f"--lr auto is {found.rate:g} here (0.05 LSB a direction; {found.forwards} forwards)")
    return compose(dataclasses.replace(algorithm.settings, lr=found.rate)), found.forwards


def _compile(
    request: TrainRequest, profile: str | None, old: Checkpoint | None
) -> tuple[Program, str]:
    """The program, and a sentence about its lowering; a resumed run keeps the one it has."""
    graph = npusim.load(request.model, request.q_json)
    if old is None:
        return compile_chosen(graph, profile, request.engine, request.lowering)
    if request.lowering is not None:
        raise UsageError("a resumed run keeps its lowering", where="--lowering")
    lowering = lowering_from_json(old.header["lowering"])
    return npusim.compile(graph, profile, request.engine, lowering), ""
