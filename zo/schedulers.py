"""How many directions q a step uses, and at which learning rate; all decisions in integers.

A scheduler is a frozen value; its state is separate and explicit. After every step it is told
what the step measured anyway; no forward pass is made for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

BEST_AT_START = (1 << 31) - 1
PERMILLE = 1000


class Observation(NamedTuple):
    """What one step measured.

    loss_sum: sum of the Q16 losses of all its image-forwards. forwards: how many those are.
    epoch_end: whether the step was the last of its epoch.
    """

    loss_sum: int
    forwards: int
    epoch_end: bool


class Choice(NamedTuple):
    """Indices into ``qs`` and ``lr_factors``."""

    q_index: int
    lr_index: int


@dataclass(frozen=True, slots=True)
class State:
    """A scheduler's whole memory, in integers.

    index: place in the set of q. best, wait: best window metric so far and windows since.
    loss_sum, forwards: of the window that is running.
    """

    index: int = 0
    best: int = BEST_AT_START
    wait: int = 0
    loss_sum: int = 0
    forwards: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: int(value) for name, value in data.items()})


class Scheduler(Protocol):
    """What the loop asks for. ``qs`` and ``lr_factors`` are all values a step can get."""

    name: ClassVar[str]

    @property
    def qs(self) -> tuple[int, ...]: ...

    @property
    def lr_factors(self) -> tuple[float, ...]: ...

    def init(self) -> State: ...

    def choice(self, state: State) -> Choice: ...

    def update(self, state: State, observation: Observation) -> tuple[State, int | None]:
        """The next state, and the window's metric where a window ended with this step."""


@dataclass(frozen=True, slots=True)
class Window:
    """When a window ends: after ``forwards`` image-forwards, or with an epoch where it is None."""

    forwards: int | None = 10_000

    def add(self, state: State, observation: Observation) -> tuple[State, int | None]:
        """The state with the step counted, and the mean Q16 loss (rounded down) at an end."""
        loss_sum = state.loss_sum + observation.loss_sum
        forwards = state.forwards + observation.forwards
        ended = observation.epoch_end if self.forwards is None else forwards >= self.forwards
        if not ended:
            return replace(state, loss_sum=loss_sum, forwards=forwards), None
        return replace(state, loss_sum=0, forwards=0), loss_sum // forwards


@dataclass(frozen=True, slots=True)
class FixedQ:
    """The same q in every step."""

    name: ClassVar[str] = "fixed"

    q: int
    window: Window = Window()

    @property
    def qs(self) -> tuple[int, ...]:
        return (self.q,)

    @property
    def lr_factors(self) -> tuple[float, ...]:
        return (1.0,)

    def init(self) -> State:
        return State()

    def choice(self, state: State) -> Choice:
        return Choice(0, 0)

    def update(self, state: State, observation: Observation) -> tuple[State, int | None]:
        return self.window.add(state, observation)


@dataclass(frozen=True, slots=True)
class QScheduler:
    """q rises to the next value of its set when the loss stalls, and never falls.

    At the end of a window with metric m (mean of the losses the steps measured anyway): if
    1000 m < (1000 - min_delta) best, then best = m and wait = 0; else wait += 1, and at
    ``patience`` windows in a row without progress q is raised and wait = 0.

    Source: the scheme of "QScheduler: Adaptive Gradient Sampling for Zeroth-Order On-Device
    Training on INT8 NPUs" (arXiv 2607.18802), of which the abstract is public. The constants are
    npusim's own defaults.

    Args:
        qs: ascending values of q; the first is where training starts, the last is the cap.
        patience: windows without progress before q rises.
        min_delta: progress that counts, in thousandths of the best metric.
    """

    name: ClassVar[str] = "qscheduler"

    qs: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    patience: int = 3
    min_delta: int = 1
    window: Window = Window()

    @property
    def lr_factors(self) -> tuple[float, ...]:
        return (1.0,)

    def init(self) -> State:
        return State()

    def choice(self, state: State) -> Choice:
        return Choice(state.index, 0)

    def update(self, state: State, observation: Observation) -> tuple[State, int | None]:
        counted, metric = self.window.add(state, observation)
        if metric is None:
            return counted, None
        if PERMILLE * metric < (PERMILLE - self.min_delta) * counted.best:
            return replace(counted, best=metric, wait=0), metric
        waited = counted.wait + 1
        if waited >= self.patience and counted.index + 1 < len(self.qs):
            return replace(counted, index=counted.index + 1, wait=0), metric
        return replace(counted, wait=waited), metric
