"""Rebuilding every weight of a run from the model, the log's header and its coefficients D_k."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npusim.errors import CheckpointError
from npusim.ir import Graph
from npusim.weights import WeightStore
from npusim.zo.algorithm import compose, trained_tensors
from npusim.zo.lanes import Threads
from npusim.zo.log import ends_in_mid_line, read_log
from npusim.zo.reference import exposed
from npusim.zo.settings import Settings
from npusim.zo.state import Done, initial_state
from npusim.zo.step import apply_update
from npusim.zo.tensors import exposed_store
from npusim.zo.updates import Kernels


@dataclass(frozen=True)
class Replayed:
    """The outcome.

    steps: replayed. compared: how many CRCs the log holds. mismatch: the first step after which
    the CRC differs from the log's, None where all are equal. store: the rebuilt weights.
    complete: whether the log ends with its "stop" record; where not, the run was killed or the log
    was cut, and the CRC of its end is not known. torn: whether its last line has no end.
    """

    steps: int
    compared: int
    mismatch: int | None
    crc: int
    store: WeightStore
    complete: bool
    torn: bool

    @property
    def equal(self) -> bool:
        """Whether the whole run was rebuilt, and every CRC of the log agrees."""
        return self.complete and self.compared > 0 and self.mismatch is None


def replay_log(
    path: Path, graph: Graph, store: WeightStore, kernels: Kernels, threads: Threads
) -> Replayed:
    """Replay a log on the weights it started from.

    Raises CheckpointError where the log is damaged, or was made from other weights.
    """
    records = read_log(path)
    header = next(records, None)
    if header is None:
        raise CheckpointError("the log is empty", where=str(path))
    if header["model_crc"] != store.crc():
        raise CheckpointError(
            "the log was made from other weights than the model holds",
            where=str(path),
            got=f"CRC {store.crc():08x}",
            wanted=f"{header['model_crc']:08x}",
            hint="Give the model file that the run started from.",
        )
    algorithm = compose(Settings.from_json(header["settings"]))
    tensors = trained_tensors(algorithm, graph, store)
    state = initial_state(algorithm, tensors, store)

    def rebuilt() -> WeightStore:
        return exposed_store(store, tensors, [exposed(w) for w in state.weights])

    steps, compared, mismatch, last = 0, 0, None, ""
    for record in records:
        last = record["type"]
        if record["type"] == "step":
            done = Done(record["step"], record["q_index"], record["lr_index"], tuple(record["d"]))
            state.history = (*state.history, done)[-algorithm.update.history :]
            apply_update(
                threads,
                kernels,
                algorithm,
                tensors,
                state.weights,
                state.history,
                header["table"],
            )
            steps = record["step"] + 1
        if "crc" in record:
            compared += 1
            if mismatch is None and rebuilt().crc() != record["crc"]:
                mismatch = steps
    final = rebuilt()
    torn = ends_in_mid_line(path)
    complete = last == "stop" and not torn
    return Replayed(steps, compared, mismatch, final.crc(), final, complete, torn)
