"""A training algorithm: direction, estimator, schedule and update composed into one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from npusim.errors import UsageError
from npusim.ir import Graph
from npusim.weights import WeightStore
from npusim.zo.directions import Direction, make_direction
from npusim.zo.estimator import Estimator, check_width, make_estimator
from npusim.zo.integer_updates import NarrowAccumulator, ReplayResidual
from npusim.zo.masks import parse_mask, with_masks
from npusim.zo.network import TrainedNetwork
from npusim.zo.rates import StepSize
from npusim.zo.rng import Key, key_of
from npusim.zo.schedulers import (
    AnyQ,
    AnyRate,
    Collect,
    Constant,
    Decay,
    Fixed,
    Halving,
    QScheduler,
    Ramp,
    Schedule,
    Stall,
    Window,
)
from npusim.zo.settings import AUTO, Settings, check_settings
from npusim.zo.tensors import Selection, Trained, select_trained
from npusim.zo.updates import Faithful, Residual, Sign, Stochastic, Update

Q_SET = (1, 2, 4, 8, 16, 32, 64)
MOST_QS = 64

#: eta_f (LSB^2 per nat per image-forward) and eta (LSB^2 per nat per step): each the default of
#: its own scaling. Of the sign update: LSB per image-forward and per step.
DEFAULT_LR: Mapping[str, float] = MappingProxyType({"linear": 0.01, "none": 3.0})
SIGN_LR: Mapping[str, float] = MappingProxyType({"linear": 0.0005, "none": 0.02})

UPDATES = ("residual", "faithful", "sr", "sign", "replay-residual", "int8-acc")
Table = list[list[list[dict[str, Any]]]]


@dataclass(frozen=True)
class Algorithm:
    """The composed values; ``table`` holds the constants of every step that can occur."""

    settings: Settings
    direction: Direction
    estimator: Estimator
    scheduler: Schedule
    update: Update
    rate: float

    @cached_property
    def key(self) -> Key:
        return key_of(self.settings.seed)

    @cached_property
    def bias_update(self) -> Update:
        return self.update.for_bias()

    @property
    def selection(self) -> Selection:
        s = self.settings
        assert s.mu is not None
        return Selection(s.train_layers, s.train_weights, s.train_bias, s.mu, s.layer_mu)

    def update_of(self, tensor: Trained) -> Update:
        return self.bias_update if tensor.kind == "bias" else self.update

    def forwards(self, q: int) -> int:
        """Image-forwards of one step."""
        return len(self.estimator.evaluations(q)) * self.settings.batch

    def eta(self, q: int, lr_index: int) -> float:
        """eta_step: the learning rate of one step in LSB^2 per nat."""
        lr = self.rate * self.scheduler.lr_factors[lr_index]
        return lr * self.forwards(q) if self.settings.lr_scaling == "linear" else lr

    def table(self, tensors: tuple[Trained, ...], loss_bits: int = 16) -> Table:
        """The update's constants by [q index][lr index][trained tensor].

        Raises NumericsError where a learning rate does not fit the update's integers.
        """
        groups = len(layers_of(tensors)) if self.settings.layerq else 1
        return [
            [
                [self.update_of(t).plan(self._size(q, i, t, groups, loss_bits), t) for t in tensors]
                for i in range(len(self.scheduler.lr_factors))
            ]
            for q in self.scheduler.qs
        ]

    def check(self, network: TrainedNetwork) -> None:
        """Raise NumericsError where the integers of a step could overflow."""
        loss = network.loss_of(self.settings.loss)
        largest = loss.largest(network.classes)
        # A narrow accumulator may round every one of its terms up.
        doubt = 2 if isinstance(self.update, NarrowAccumulator) else 1
        largest_z = self.direction.largest * doubt
        check_width(self.estimator, self.scheduler.qs[-1], self.settings.batch, largest, largest_z)

    def _size(
        self, q: int, lr_index: int, tensor: Trained, groups: int, loss_bits: int
    ) -> StepSize:
        divisor = self.estimator.divisor(q, tensor.mu) * self.direction.second_moment / groups
        return StepSize(q, self.settings.batch, divisor, self.eta(q, lr_index), loss_bits)


def layers_of(tensors: tuple[Trained, ...]) -> tuple[str, ...]:
    """The layers that a run trains, in execution order."""
    return tuple(dict.fromkeys(t.node for t in tensors))


def trained_tensors(algorithm: Algorithm, graph: Graph, store: WeightStore) -> tuple[Trained, ...]:
    """What the algorithm trains of a network, with its sparse masks.

    Raises the errors of npusim.zo.tensors.select_trained.
    """
    purpose = algorithm.direction.purpose
    trained = select_trained(graph, store, algorithm.selection, purpose)
    if algorithm.settings.geometry == "lsb":
        trained = tuple(dataclasses.replace(t, rho=np.ones(t.shape[0])) for t in trained)
    return with_masks(trained, store, algorithm.settings.mask, algorithm.key)


def compose(settings: Settings) -> Algorithm:
    """The algorithm that the settings describe; its own settings have no None for a default.

    Raises UsageError where a setting is unknown or out of range.
    """
    update = _update(settings)
    check_settings(settings)
    direction, estimator = make_direction(settings.direction), make_estimator(settings.sides)
    if settings.mask:
        parse_mask(settings.mask)
    scaling = settings.lr_scaling or update.default_scaling
    if scaling not in DEFAULT_LR:
        raise UsageError(
            "unknown scaling", where=f"--lr-scaling {scaling}", wanted="linear or none"
        )
    default = (SIGN_LR if isinstance(update, Sign) else DEFAULT_LR)[scaling]
    lr = default if settings.lr in (None, AUTO) else settings.lr
    assert isinstance(lr, float | int)
    full = dataclasses.replace(
        settings,
        lr=settings.lr if settings.lr == AUTO else lr,
        lr_scaling=scaling,
        mu=settings.mu or direction.default_mu,
    )
    if settings.clip and isinstance(update, Sign):
        raise UsageError("the sign update has no size to clip", where="--clip")
    return Algorithm(full, direction, estimator, _schedule(full, estimator), update, lr)


def _update(settings: Settings) -> Update:
    match settings.update:
        case "residual":
            return Residual(settings.residual_bits)
        case "faithful":
            return Faithful()
        case "sr":
            return Stochastic()
        case "sign":
            return Sign()
        case "replay-residual":
            return ReplayResidual(settings.history)
        case "int8-acc":
            return NarrowAccumulator(settings.acc_bits, settings.acc_residual)
    raise UsageError("unknown update mode", where=settings.update, wanted=" or ".join(UPDATES))


def _schedule(settings: Settings, estimator: Estimator) -> Schedule:
    stall = Stall(settings.patience, metric=settings.metric, reset_best=settings.reset_best)
    q = _q_rule(settings, estimator)
    return Schedule(q, _rate_rule(settings), stall, Window(settings.window))


def _q_rule(settings: Settings, estimator: Estimator) -> AnyQ:
    kind, *numbers = settings.q.split(":")
    unknown = UsageError(
        "unknown schedule of q",
        where=f"--q {settings.q}",
        wanted="fixed:N, qscheduler, ramp:A:B or variance:N",
    )
    if not all(n.isdecimal() for n in numbers):
        raise unknown
    values = [int(n) for n in numbers]
    rule: AnyQ
    if kind == "fixed" and values == [0]:
        raise UsageError("a step needs a direction", where=f"--q {settings.q}", wanted="1 or more")
    if kind == "fixed" and len(values) == 1:
        rule = Fixed(values[0])
    elif kind == "qscheduler" and not values:
        rule = QScheduler(_q_set(settings, max(settings.q0, estimator.least_q)))
    elif kind == "ramp" and len(values) == 2 and 1 <= values[0] < values[1]:
        rule = Ramp(_ramp_set(*values), _horizon(settings, "--q ramp"))
    elif kind == "variance" and len(values) == 1:
        rule = _collect(settings, estimator, values[0])
    else:
        raise unknown
    if rule.qs[0] < estimator.least_q:
        raise UsageError(
            f"{estimator.name} needs more directions",
            where=f"--q {settings.q}",
            got=rule.qs[0],
            wanted=f"at least {estimator.least_q} in every step",
        )
    return rule


def _q_set(settings: Settings, start: int) -> tuple[int, ...]:
    """The powers of two from the start to the cap."""
    qs = tuple(q for q in Q_SET if start <= q <= settings.q_max)
    if not qs:
        raise UsageError(
            "no q is left for the scheduler",
            where="--q0 and --q-max",
            got=f"{start} .. {settings.q_max}",
            wanted=f"one of {', '.join(map(str, Q_SET))} between them",
        )
    return qs


def _ramp_set(first: int, last: int) -> tuple[int, ...]:
    """Every q of a ramp, or 64 of them evenly spaced."""
    count = min(last - first + 1, MOST_QS)
    return tuple(first + i * (last - first) // (count - 1) for i in range(count))


def _collect(settings: Settings, estimator: Estimator, target: int) -> Collect:
    qs = _q_set(settings, settings.q0)
    if target not in qs or not estimator.grows:
        raise UsageError(
            "directions cannot be collected like this",
            where=f"--q {settings.q} --sides {settings.sides}",
            wanted=f"two-sided or one-sided, and a number out of {', '.join(map(str, qs))}",
        )
    return Collect(qs, target)


def _rate_rule(settings: Settings) -> AnyRate:
    if settings.lr_schedule == "patience":
        return Halving()
    if settings.lr_schedule == "constant":
        return Constant()
    return Decay(settings.lr_schedule, _horizon(settings, f"--lr-schedule {settings.lr_schedule}"))


def _horizon(settings: Settings, where: str) -> int:
    if settings.horizon is None:
        raise UsageError(
            "this schedule needs the length of the run",
            where=where,
            got="none",
            wanted="--horizon, or --max-forwards",
        )
    return settings.horizon
