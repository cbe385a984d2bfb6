"""A training algorithm: direction, estimator, scheduler and update composed into one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from npusim.errors import UsageError
from npusim.zo.directions import Rademacher
from npusim.zo.estimator import TwoSided, check_width
from npusim.zo.network import TrainedNetwork
from npusim.zo.rng import Key, key_of
from npusim.zo.schedulers import FixedQ, QScheduler, Window
from npusim.zo.updates import Faithful, Residual, StepSize, make_update

Q_SET = (1, 2, 4, 8, 16, 32, 64)

#: eta_f of the residual update (LSB^2 per nat per image-forward), eta of the faithful one
#: (LSB^2 per nat per step): each the default of its own scaling.
DEFAULT_LR: Mapping[str, float] = MappingProxyType({"linear": 0.01, "none": 3.0})
DEFAULT_SCALING: Mapping[str, str] = MappingProxyType({"residual": "linear", "faithful": "none"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides the weights of a run besides the model and the data.

    q: "fixed:N" or "qscheduler". q_max: cap of the scheduler's set.
    window: image-forwards a window of the scheduler; None: an epoch.
    mu: size of a perturbation in LSB.
    lr, lr_scaling: None means the default of the update; "linear": ``lr`` is in LSB^2 per nat per
        image-forward; "none": in LSB^2 per nat per step.
    train_layers: globs over names of layers or weight tensors.
    crc_every: steps between weight CRCs in the log. eval_every: image-forwards between
        evaluations on the validation set, 0: only before and after.
    """

    seed: int = 0
    batch: int = 10
    update: str = "residual"
    q: str = "qscheduler"
    q_max: int = 64
    window: int | None = 10_000
    patience: int = 3
    mu: int = 2
    lr: float | None = None
    lr_scaling: str | None = None
    train_layers: tuple[str, ...] = ("*",)
    crc_every: int = 50
    eval_every: int = 50_000

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "train_layers": tuple(data["train_layers"])})

    @property
    def scaling(self) -> str:
        return self.lr_scaling or DEFAULT_SCALING[self.update]

    @property
    def rate(self) -> float:
        return DEFAULT_LR[self.scaling] if self.lr is None else self.lr


@dataclass(frozen=True)
class Algorithm:
    """The composed values; ``table`` holds the constants of every step that can occur."""

    settings: Settings
    direction: Rademacher
    estimator: TwoSided
    scheduler: FixedQ | QScheduler
    update: Residual | Faithful

    @cached_property
    def key(self) -> Key:
        return key_of(self.settings.seed)

    def forwards(self, q: int) -> int:
        """Image-forwards of one step."""
        return len(self.estimator.evaluations(q)) * self.settings.batch

    def eta(self, q: int, lr_index: int) -> float:
        """eta_step: the learning rate of one step in LSB^2 per nat."""
        lr = self.settings.rate * self.scheduler.lr_factors[lr_index]
        return lr * self.forwards(q) if self.settings.scaling == "linear" else lr

    def table(self, tensors: int) -> list[list[list[dict[str, Any]]]]:
        """The update's constants by [q index][lr index][trained tensor].

        Raises NumericsError where a learning rate does not fit the update's integers.
        """
        return [
            [
                [self.update.plan(self._size(q, i), self.estimator)] * tensors
                for i in range(len(self.scheduler.lr_factors))
            ]
            for q in self.scheduler.qs
        ]

    def check(self, network: TrainedNetwork) -> None:
        """Raise NumericsError where the integers of a step could overflow."""
        largest = network.loss.largest(network.classes)
        check_width(self.estimator, max(self.scheduler.qs), self.settings.batch, largest)

    def _size(self, q: int, lr_index: int) -> StepSize:
        return StepSize(q, self.settings.batch, self.settings.mu, self.eta(q, lr_index))


def compose(settings: Settings) -> Algorithm:
    """The algorithm that the settings describe; its own settings have no None for a default.

    Raises UsageError where a setting is unknown or out of range.
    """
    update = make_update(settings.update)
    if settings.scaling not in DEFAULT_LR:
        raise UsageError(
            "unknown scaling", where=f"--lr-scaling {settings.scaling}", wanted="linear or none"
        )
    settings = dataclasses.replace(settings, lr=settings.rate, lr_scaling=settings.scaling)
    _check(settings)
    return Algorithm(settings, Rademacher(), TwoSided(), _scheduler(settings), update)


def _scheduler(settings: Settings) -> FixedQ | QScheduler:
    kind, _, count = settings.q.partition(":")
    window = Window(settings.window)
    if kind == "fixed" and count.isdecimal() and int(count) >= 1:
        return FixedQ(int(count), window)
    if kind == "qscheduler" and not count:
        qs = tuple(q for q in Q_SET if q <= settings.q_max)
        return QScheduler(qs, settings.patience, window=window)
    raise UsageError(
        "unknown schedule of q", where=f"--q {settings.q}", wanted="fixed:N or qscheduler"
    )


def _check(settings: Settings) -> None:
    for name, least in (("batch", 1), ("mu", 1), ("patience", 1), ("q_max", 1), ("crc_every", 1)):
        value = getattr(settings, name)
        if value < least:
            option = f"--{name.replace('_', '-')}"
            raise UsageError("too small", where=option, got=value, wanted=f"at least {least}")
    if settings.window is not None and settings.window < 1:
        raise UsageError("too small", where="--window", got=settings.window, wanted="at least 1")
    if settings.mu > 127:
        raise UsageError("too large", where="--mu", got=settings.mu, wanted="at most 127 LSB")
    if not 0 < settings.rate < float("inf"):
        raise UsageError(
            "not a learning rate", where="--lr", got=settings.rate, wanted="above 0, finite"
        )
