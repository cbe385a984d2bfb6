"""The settings of a run, their defaults, and the presets that are a few of them at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, Self

from npusim.errors import UsageError

AUTO = "auto"
_TUPLES = ("train_layers", "layer_mu")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides the weights of a run besides the model and the data.

    update: mode of npusim.zo.algorithm.UPDATES. residual_bits: fraction bits of its masters, 8 or
        16. history: steps that replay-residual remembers. acc_bits: width of int8-acc's sums, 16
        or 8. acc_residual: whether it keeps masters.
    q: "fixed:N", "qscheduler", "ramp:A:B" or "variance:N". q0, q_max: ends of the set of q.
    window: image-forwards a window of the scheduler; None: an epoch.
    patience, metric, reset_best: see npusim.zo.schedulers.Stall.
    sides: estimator. direction: distribution. clip: largest |D_k| in running medians; 0: none.
    layerq: perturb one random layer a direction.
    mu: size of a perturbation in LSB; None: the direction's default. layer_mu: "GLOB=N" for some.
    gate: leave out codes closer than mu to an end of the range. mask: sparse mask, "" for none.
    lr, lr_scaling: None means the default of the update; "linear": ``lr`` is in LSB^2 per nat per
        image-forward; "none": in LSB^2 per nat per step. lr may be "auto" until a run begins.
    lr_schedule: "constant", "patience", "cosine" or "linear". horizon: image-forwards over which
        the last two, and a ramp of q, run.
    geometry: "lsb", or "real" for steps that are alike in real units.
    train_layers: globs over names of layers or tensors. train_weights, train_bias: which kinds.
    loss: "integer", or "float" for comparison with the faithful update.
    crc_every: steps between weight CRCs in the log. eval_every: image-forwards between
        evaluations on the validation set, 0: only before and after.
    """

    seed: int = 0
    batch: int = 10
    update: str = "residual"
    residual_bits: int = 8
    history: int = 8
    acc_bits: int = 16
    acc_residual: bool = False
    q: str = "qscheduler"
    q0: int = 1
    q_max: int = 64
    window: int | None = 10_000
    patience: int = 3
    metric: str = "train-loss"
    reset_best: bool = False
    sides: str = "two-sided"
    direction: str = "rademacher"
    clip: float = 0.0
    layerq: bool = False
    mu: int | None = None
    layer_mu: tuple[str, ...] = ()
    gate: bool = False
    mask: str = ""
    lr: float | str | None = None
    lr_scaling: str | None = None
    lr_schedule: str = "constant"
    horizon: int | None = None
    geometry: str = "lsb"
    train_layers: tuple[str, ...] = ("*",)
    train_weights: bool = True
    train_bias: bool = False
    loss: str = "integer"
    crc_every: int = 50
    eval_every: int = 50_000

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises LookupError or TypeError where fields are missing or unknown."""
        fields = {field.name: data[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**data, **fields, **{name: tuple(data[name]) for name in _TUPLES}})


#: Names of few settings at once; what the user gives besides replaces theirs.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "zo-i8": {
            "update": "residual",
            "sides": "leave-one-out",
            "q": "fixed:16",
            "batch": 10,
            "mu": 2,
            "geometry": "lsb",
            "train_bias": True,
            "lr_schedule": "constant",
        },
        "qscheduler-faithful": {
            "update": "faithful",
            "sides": "two-sided",
            "q": "qscheduler",
            "q0": 1,
            "q_max": 64,
            "patience": 3,
            "metric": "train-loss",
            "lr_scaling": "none",
            "train_bias": False,
        },
        "qscheduler-faithful-int8": {
            "update": "faithful",
            "sides": "two-sided",
            "q": "qscheduler",
            "q0": 16,
            "q_max": 64,
            "patience": 3,
            "metric": "train-loss",
            "lr_scaling": "none",
            "train_bias": False,
        },
    }
)

_CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "metric": ("train-loss", "val-loss", "val-accuracy"),
        "lr_schedule": ("constant", "patience", "cosine", "linear"),
        "geometry": ("lsb", "real"),
        "loss": ("integer", "float"),
        "residual_bits": (8, 16),
        "acc_bits": (16, 8),
    }
)
_LEAST: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("batch", "patience", "q0", "q_max", "crc_every", "history", "window"), 1)
    | {"horizon": 1, "mu": 1}
)


def preset(name: str | None) -> Mapping[str, Any]:
    """The settings of a preset, none for None; raises UsageError for a name there is not."""
    if name is None:
        return {}
    if name not in PRESETS:
        raise UsageError("unknown preset", where=f"--preset {name}", wanted=", ".join(PRESETS))
    return PRESETS[name]


def check_settings(settings: Settings) -> None:
    """Raise UsageError, with its option, where a setting is unknown, or out of range."""
    for name in ("seed", "eval_every", *_LEAST):
        value = getattr(settings, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError("not a whole number", where=option(name), got=value)
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UsageError("too small", where=option(name), got=value, wanted=f"at least {least}")
    for name, choices in _CHOICES.items():
        value = getattr(settings, name)
        if value not in choices:
            wanted = " or ".join(map(str, choices))
            raise UsageError("unknown value", where=option(name), got=value, wanted=wanted)
    if settings.mu is not None and settings.mu > 127:
        raise UsageError("too large", where="--mu", got=settings.mu, wanted="at most 127 LSB")
    lr = settings.lr
    if lr != AUTO and lr is not None and not (isinstance(lr, float | int) and 0 < lr < math.inf):
        raise UsageError("not a learning rate", where="--lr", got=lr, wanted="above 0, finite")
    if not 0 <= settings.clip < math.inf:
        raise UsageError("not a limit", where="--clip", got=settings.clip, wanted="at least 0")
    if settings.loss == "float" and settings.update not in ("faithful", "sr"):
        raise UsageError(
            "the float loss is for comparison with a float gradient",
            where="--loss float",
            wanted="--update faithful or sr",
        )
    if not (settings.train_weights or settings.train_bias):
        raise UsageError("nothing is left to train", where="--no-train-weights --no-train-bias")


def option(name: str) -> str:
    """The command line's name of a setting."""
    return f"--{name.replace('_', '-')}"
