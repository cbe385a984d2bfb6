"""The state of a training run: what changes from step to step, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.weights import WeightStore
from npusim.zo.schedulers import FixedQ, QScheduler, State
from npusim.zo.tensors import Trained
from npusim.zo.updates import Faithful, Residual


@dataclass
class TrainState:
    """What a checkpoint must hold.

    weights: one array [O, P] a trained tensor, of the update's own kind; updated in place.
    scheduler: the scheduler's state.
    step: steps done. forwards: image-forwards done by them.
    still: int64 [tensors], nil weight steps since the last window's end; still_steps: steps since.
    warned: bool [tensors], whether the freeze of a tensor was reported.
    """

    weights: tuple[npt.NDArray[Any], ...]
    scheduler: State
    step: int
    forwards: int
    still: npt.NDArray[np.int64]
    still_steps: int
    warned: npt.NDArray[np.bool_]


def initial_state(
    update: Residual | Faithful,
    scheduler: FixedQ | QScheduler,
    tensors: tuple[Trained, ...],
    store: WeightStore,
) -> TrainState:
    """Before step 0: the imported codes."""
    return TrainState(
        weights=tuple(update.init(store.codes(t.name)) for t in tensors),
        scheduler=scheduler.init(),
        step=0,
        forwards=0,
        still=np.zeros(len(tensors), np.int64),
        still_steps=0,
        warned=np.zeros(len(tensors), np.bool_),
    )
