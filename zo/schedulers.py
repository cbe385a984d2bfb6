"""How many directions q a step uses, and at which learning rate; all decisions in integers.

A schedule composes a rule of q, a rule of the learning rate, and what counts as a stall. All are
frozen values; the state is separate and explicit. After every step a schedule is told what the
step measured anyway; only a metric on validation images costs forward passes of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

BEST_AT_START = (1 << 31) - 1
PERMILLE = 1000
MOST_RATES = 64
LR_FLOOR = 16
Q16 = 65536


class Observation(NamedTuple):
    """What one step measured.

    loss_sum: sum of the Q16 losses of all its image-forwards. forwards: how many those are.
    epoch_end: whether the step was the last of its epoch. coefficients: its D_k.
    """

    loss_sum: int
    forwards: int
    epoch_end: bool
    coefficients: Sequence[int] = ()


class Validated(NamedTuple):
    """An evaluation on validation images: sum of the Q16 losses, correct answers, images."""

    loss_sum: int
    correct: int
    total: int


Validate = Callable[[], Validated]


class Choice(NamedTuple):
    """Indices into ``qs`` and ``lr_factors``."""

    q_index: int
    lr_index: int


@dataclass(frozen=True, slots=True)
class State:
    """A schedule's whole memory, in integers.

    index: place in the set of q. rate: place among the rates of lr-patience.
    best, wait: best window metric so far and windows since.
    loss_sum, forwards: of the window that is running. total: image-forwards since the start.
    squares, directions: sum of D_k^2 and their number in the first window; windows: how many
    have ended.
    """

    index: int = 0
    best: int = BEST_AT_START
    wait: int = 0
    loss_sum: int = 0
    forwards: int = 0
    rate: int = 0
    total: int = 0
    squares: int = 0
    directions: int = 0
    windows: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: int(value) for name, value in data.items()})


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
        ended_state = replace(state, loss_sum=0, forwards=0, windows=state.windows + 1)
        return ended_state, loss_sum // forwards


@dataclass(frozen=True, slots=True)
class Stall:
    """When progress has stalled.

    At the end of a window with metric m (smaller is better): if 1000 m < (1000 - min_delta) best,
    then best = m and wait = 0; else wait += 1, and ``patience`` such windows in a row are a stall.

    metric: "train-loss", the mean of the losses the steps measured anyway; "val-loss", of one pass
        over the validation images; "val-accuracy", 65536 times the share of wrong answers there.
    reset_best: forget the best at a stall.
    """

    patience: int = 3
    min_delta: int = 1
    metric: str = "train-loss"
    reset_best: bool = False

    @property
    def validates(self) -> bool:
        return self.metric != "train-loss"

    def measure(self, mean: int, validate: Validate | None) -> int:
        """The window's metric from its mean loss, or from an evaluation."""
        if not self.validates:
            return mean
        assert validate is not None
        found = validate()
        if self.metric == "val-loss":
            return found.loss_sum // found.total
        return (found.total - found.correct) * Q16 // found.total

    def judge(self, state: State, metric: int) -> tuple[State, bool]:
        """The state with the window judged, and whether this is a stall."""
        if PERMILLE * metric < (PERMILLE - self.min_delta) * state.best:
            return replace(state, best=metric, wait=0), False
        waited = state.wait + 1
        return replace(state, wait=waited), waited >= self.patience


class QRule(Protocol):
    """Which q a step begins with. ``qs``: all values that can occur, ascending."""

    name: ClassVar[str]

    @property
    def qs(self) -> tuple[int, ...]: ...

    def index(self, state: State) -> int: ...

    def stalled(self, state: State) -> State: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same q in every step."""

    name: ClassVar[str] = "fixed"
    q: int

    @property
    def qs(self) -> tuple[int, ...]:
        return (self.q,)

    def index(self, state: State) -> int:
        return 0

    def stalled(self, state: State) -> State:
        return state


@dataclass(frozen=True, slots=True)
class QScheduler:
    """q rises to the next value of its set when the loss stalls, and never falls.

    Source: the scheme of "QScheduler: Adaptive Gradient Sampling for Zeroth-Order On-Device
    Training on INT8 NPUs" (arXiv 2607.18802), of which the abstract is public. The constants are
    npusim's own defaults.

    qs: ascending values of q; the first is where training starts, the last is the cap.
    """

    name: ClassVar[str] = "qscheduler"
    qs: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    def index(self, state: State) -> int:
        return state.index

    def stalled(self, state: State) -> State:
        if state.index + 1 == len(self.qs):
            return state
        return replace(state, index=state.index + 1, wait=0)


@dataclass(frozen=True, slots=True)
class Ramp:
    """q grows evenly with the image-forwards done, from the first of ``qs`` to the last.

    index = min(len(qs) - 1, total * len(qs) // horizon). Source: the linear schedule of the
    number of samples in MeZO's code (Malladi et al. 2023).
    """

    name: ClassVar[str] = "ramp"
    qs: tuple[int, ...]
    horizon: int

    def index(self, state: State) -> int:
        return min(len(self.qs) - 1, state.total * len(self.qs) // self.horizon)

    def stalled(self, state: State) -> State:
        return state


@dataclass(frozen=True, slots=True)
class Collect:
    """Directions are collected within a step until the estimate's variance is small enough.

    In the first window q = ``target`` in every step, and sum D_k^2 = S over n directions is
    recorded. After it a step begins with qs[0] directions and goes on to the next of ``qs`` while
    sum_k D_k^2 * target * n > S * q^2: until the variance a weight of the mean over q directions
    (sum D^2 / q^2, up to constants, since every weight's share of one direction is +-D_k) is at
    most what ``target`` directions gave at the start. Source: the rule of FwdLLM (Xu et al.,
    USENIX ATC 2024), which collects forward gradients until their variance is below a threshold;
    theirs is absolute, ours relative to the run's own first window.
    """

    name: ClassVar[str] = "variance"
    qs: tuple[int, ...]
    target: int

    def index(self, state: State) -> int:
        return self.qs.index(self.target) if state.windows == 0 else 0

    def stalled(self, state: State) -> State:
        return state

    def wants_more(self, state: State, coefficients: Sequence[int]) -> bool:
        """Whether a step with these D_k should go on collecting."""
        q = len(coefficients)
        if state.windows == 0 or q >= self.qs[-1]:
            return False
        squares = sum(int(d) ** 2 for d in coefficients)
        return squares * self.target * state.directions > state.squares * q * q


class RateRule(Protocol):
    """At which multiple of the learning rate a step moves. ``factors``: all that can occur."""

    name: ClassVar[str]

    @property
    def factors(self) -> tuple[float, ...]: ...

    def index(self, state: State) -> int: ...

    def stalled(self, state: State) -> State: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same learning rate in every step."""

    name: ClassVar[str] = "constant"
    factors: ClassVar[tuple[float, ...]] = (1.0,)

    def index(self, state: State) -> int:
        return 0

    def stalled(self, state: State) -> State:
        return state


@dataclass(frozen=True, slots=True)
class Halving:
    """The learning rate is halved at every stall, down to a sixteenth.

    The floor is there because the best of a lucky window is hardly beaten again.
    """

    name: ClassVar[str] = "patience"
    factors: ClassVar[tuple[float, ...]] = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / LR_FLOOR)

    def index(self, state: State) -> int:
        return state.rate

    def stalled(self, state: State) -> State:
        if state.rate + 1 == len(self.factors):
            return state
        return replace(state, rate=state.rate + 1, wait=0)


@dataclass(frozen=True, slots=True)
class Decay:
    """The learning rate falls with the image-forwards done, in 64 steps over ``horizon``.

    x = (i + 1/2) / 64, i = min(63, total * 64 // horizon): (1 + cos(pi x)) / 2 or 1 - x.
    """

    name: ClassVar[str] = "decay"
    shape: str
    horizon: int

    @property
    def factors(self) -> tuple[float, ...]:
        places = [(i + 0.5) / MOST_RATES for i in range(MOST_RATES)]
        if self.shape == "cosine":
            return tuple((1 + math.cos(math.pi * x)) / 2 for x in places)
        return tuple(1 - x for x in places)

    def index(self, state: State) -> int:
        return min(MOST_RATES - 1, state.total * MOST_RATES // self.horizon)

    def stalled(self, state: State) -> State:
        return state


AnyQ = Fixed | QScheduler | Ramp | Collect
AnyRate = Constant | Halving | Decay


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the loop asks: q and learning rate of each step."""

    q: AnyQ
    rate: AnyRate = Constant()
    stall: Stall = Stall()
    window: Window = Window()

    @property
    def qs(self) -> tuple[int, ...]:
        return self.q.qs

    @property
    def lr_factors(self) -> tuple[float, ...]:
        return self.rate.factors

    @property
    def name(self) -> str:
        return self.q.name

    def init(self) -> State:
        return State()

    def choice(self, state: State) -> Choice:
        return Choice(self.q.index(state), self.rate.index(state))

    def most(self, state: State) -> int:
        """The largest q that the next step can come to."""
        return self.qs[-1] if isinstance(self.q, Collect) else self.qs[self.q.index(state)]

    def wants_more(self, state: State, coefficients: Sequence[int]) -> bool:
        """Whether the step should go on to the next q of the set."""
        return isinstance(self.q, Collect) and self.q.wants_more(state, coefficients)

    def update(
        self, state: State, observation: Observation, validate: Validate | None = None
    ) -> tuple[State, int | None]:
        """The next state, and the window's metric where a window ended with this step."""
        state = replace(state, total=state.total + observation.forwards)
        if isinstance(self.q, Collect) and state.windows == 0:
            squares = sum(int(d) ** 2 for d in observation.coefficients)
            state = replace(
                state,
                squares=state.squares + squares,
                directions=state.directions + len(observation.coefficients),
            )
        counted, mean = self.window.add(state, observation)
        if mean is None:
            return counted, None
        metric = self.stall.measure(mean, validate)
        judged, stalled = self.stall.judge(counted, metric)
        if stalled:
            judged = self.rate.stalled(self.q.stalled(judged))
            if self.stall.reset_best and judged.wait == 0:
                judged = replace(judged, best=BEST_AT_START)
        return judged, metric
