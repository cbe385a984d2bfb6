"""Rebuilding every weight of a run from the model, the log's header and its coefficients D_k."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import CheckpointError, NpusimError
from npusim.ir import Graph
from npusim.weights import WeightStore
from npusim.zo.algorithm import Algorithm, compose, trained_tensors
from npusim.zo.fingerprint import fingerprint
from npusim.zo.lanes import Threads
from npusim.zo.log import ends_in_mid_line, read_log
from npusim.zo.reference import exposed
from npusim.zo.settings import Settings
from npusim.zo.state import Done, initial_state
from npusim.zo.step import apply_update
from npusim.zo.tensors import Trained, exposed_store
from npusim.zo.updates import Kernels

_WRONG_TYPES = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)


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
    algorithm, tensors = _begun(header, graph, store, f"{path}:1", path)
    state = initial_state(algorithm, tensors, store)

    def rebuilt() -> WeightStore:
        return exposed_store(store, tensors, [exposed(w) for w in state.weights])

    steps, compared, mismatch, last = 0, 0, None, ""
    for line, record in enumerate(records, start=2):
        last = record["type"]
        if record["type"] == "step":
            done = _done(record, steps, algorithm, f"{path}:{line}")
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
            steps += 1
        if "crc" in record:
            compared += 1
            if mismatch is None and rebuilt().crc() != record["crc"]:
                mismatch = steps
    final = rebuilt()
    torn = ends_in_mid_line(path)
    complete = last == "stop" and not torn
    return Replayed(steps, compared, mismatch, final.crc(), final, complete, torn)


def _begun(
    header: Mapping[str, Any], graph: Graph, store: WeightStore, where: str, path: Path
) -> tuple[Algorithm, tuple[Trained, ...]]:
    """The algorithm and the trained tensors of a header.

    Raises CheckpointError where a field is missing or none that a run writes, or the network is
    another one.
    """
    found = header.get("model_crc")
    if type(found) is not int:
        raise _damaged(where, "model_crc", found)
    if found != store.crc():
        raise CheckpointError(
            "the log was made from other weights than the model holds",
            where=str(path),
            got=f"CRC {store.crc():08x}",
            wanted=f"{found:08x}",
            hint="Give the model file that the run started from.",
        )
    if header.get("graph") != fingerprint(graph):
        raise CheckpointError(
            "the log was made from another network than the model holds",
            where=str(path),
            hint="Give the model file that the run started from.",
        )
    bits = header.get("loss_bits")
    if type(bits) is not int or not 0 <= bits <= 62:
        raise _damaged(where, "loss_bits", bits)
    try:
        algorithm = compose(Settings.from_json(header["settings"]))
        tensors = trained_tensors(algorithm, graph, store)
        table = algorithm.table(tensors, bits)
    except (*_WRONG_TYPES, NpusimError) as error:
        raise _damaged(where, "settings", error) from error
    if not _alike(header.get("table"), table):
        raise _damaged(where, "table", header.get("table"))
    return algorithm, tensors


def _alike(found: Any, wanted: Any) -> bool:
    """Whether two JSON values differ in nothing but numbers, which have the same type and fit."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(_alike(found[name], value) for name, value in wanted.items())
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(map(_alike, found, wanted))
        )
    if isinstance(wanted, float):
        return isinstance(found, float) and math.isfinite(found)
    return _is_integer(found) if type(wanted) is int else type(found) is type(wanted)


def _done(record: Mapping[str, Any], step: int, algorithm: Algorithm, where: str) -> Done:
    """What a step's record says; raises CheckpointError where no run can have written it."""
    scheduler = algorithm.scheduler
    least = {"step": step, "q_index": 0, "lr_index": 0}
    most = {"step": step, "q_index": len(scheduler.qs) - 1}
    most["lr_index"] = len(scheduler.lr_factors) - 1
    for name, low in least.items():
        value: Any = record.get(name)
        if not _is_integer(value) or not low <= value <= most[name]:
            raise _damaged(where, name, value, f"{low} .. {most[name]}")
    q, d = scheduler.qs[record["q_index"]], record.get("d")
    if not isinstance(d, list) or len(d) != q or not all(map(_is_integer, d)):
        raise _damaged(where, "d", d, f"{q} integers of 64 bits")
    mu = record.get("mu")
    if mu != algorithm.settings.mu:
        raise _damaged(where, "mu", mu, str(algorithm.settings.mu))
    return Done(step, record["q_index"], record["lr_index"], tuple(d))


def _is_integer(value: Any) -> bool:
    """A JSON integer of 64 bits."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _damaged(where: str, name: str, got: object, wanted: str | None = None) -> CheckpointError:
    text = "nothing" if got is None else str(got)
    return CheckpointError(
        f"the log is damaged: no run writes this {name}",
        where=where,
        got=text if len(text) <= 200 else f"{text[:200]} ...",
        wanted=wanted,
    )
