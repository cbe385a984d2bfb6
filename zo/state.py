"""The state of a training run: what changes from step to step, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.weights import WeightStore
from npusim.zo.schedulers import State
from npusim.zo.tensors import Trained

if TYPE_CHECKING:
    from npusim.zo.algorithm import Algorithm


class Done(NamedTuple):
    """What made one step's move: enough to make it again."""

    step: int
    q_index: int
    lr_index: int
    coefficients: tuple[int, ...]


@dataclass
class TrainState:
    """What a checkpoint must hold.

    weights: one array [O, P] a trained tensor, of the update's own kind; updated in place.
    scheduler: the scheduler's state.
    step: steps done. forwards: image-forwards done by them.
    still: int64 [tensors], nil weight steps since the last window's end; still_steps: steps since.
    warned: bool [tensors], whether the freeze of a tensor was reported.
    history: the last steps, oldest first, as many as the update looks back on.
    medians: of the last steps' |D_k|, oldest first, where they are clipped.
    """

    weights: tuple[npt.NDArray[Any], ...]
    scheduler: State
    step: int
    forwards: int
    still: npt.NDArray[np.int64]
    still_steps: int
    warned: npt.NDArray[np.bool_]
    history: tuple[Done, ...] = field(default=())
    medians: tuple[int, ...] = field(default=())


def initial_state(
    algorithm: Algorithm, tensors: tuple[Trained, ...], store: WeightStore
) -> TrainState:
    """Before step 0: the imported codes."""
    return TrainState(
        weights=tuple(algorithm.update_of(t).init(store.codes(t.name)) for t in tensors),
        scheduler=algorithm.scheduler.init(),
        step=0,
        forwards=0,
        still=np.zeros(len(tensors), np.int64),
        still_steps=0,
        warned=np.zeros(len(tensors), np.bool_),
    )
