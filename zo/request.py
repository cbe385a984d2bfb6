"""What a run is asked for, and the settings that come of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import npusim
from npusim.errors import UsageError
from npusim.lowering import compile_chosen
from npusim.zo.algorithm import compose, trained_tensors
from npusim.zo.checkpoint import Checkpoint
from npusim.zo.data import DataSpec
from npusim.zo.explain import explain
from npusim.zo.loop import Limits
from npusim.zo.settings import AUTO, Settings, option, preset

MEASURED = ("residual", "sr", "replay-residual", "int8-acc")
"""Update modes whose learning rate is measured where none is given."""


def _grows(settings: Settings) -> bool:
    return settings.q == "qscheduler" or settings.q.startswith("variance")


def _runs_out(settings: Settings) -> bool:
    return settings.lr_schedule in ("cosine", "linear") or settings.q.startswith("ramp")


_USED: Mapping[str, tuple[Callable[[Settings], bool], str]] = MappingProxyType(
    {
        "q0": (_grows, "--q qscheduler or variance:N"),
        "q_max": (_grows, "--q qscheduler or variance:N"),
        "horizon": (_runs_out, "--lr-schedule cosine or linear, or --q ramp:A:B"),
        "residual_bits": (lambda s: s.update == "residual", "--update residual"),
        "history": (lambda s: s.update == "replay-residual", "--update replay-residual"),
        "acc_bits": (lambda s: s.update == "int8-acc", "--update int8-acc"),
        "acc_residual": (lambda s: s.update == "int8-acc", "--update int8-acc"),
    }
)
"""Options that only some others give an effect: when, and which."""


@dataclass(frozen=True)
class TrainRequest:
    """What a run is asked for.

    model: the ONNX file. out: the folder for log, checkpoint and result.
    settings, data: fields of Settings and DataSpec that the user gave; the others come from the
        checkpoint of a resumed run, or are the preset's, or the defaults.
    profile, lowering: see npusim.lowering.compile_chosen; a resumed run keeps its own.
    q_json: see npusim.load.
    resume: go on from the checkpoint in ``out``. overwrite: replace a run that is there.
    """

    model: Path
    out: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    profile: str | None = None
    lowering: str | None = None
    engine: str = "fast"
    threads: int = 1
    q_json: Path | None = None
    resume: bool = False
    overwrite: bool = False


def chosen_settings(request: TrainRequest) -> Settings:
    """The user's settings over those of the preset over the defaults.

    Schedules that need the length of the run take the limit of image-forwards. The learning rate
    is measured where none is given, but not for the modes whose small steps round to nothing
    (faithful) or whose rate is a number of LSB (sign): these have a default.
    """
    _refuse_unused(request)
    given = {**preset(request.preset), **request.settings}
    settings = dataclasses.replace(Settings(), **given)
    if settings.lr is None and settings.lr_scaling != "none" and settings.update in MEASURED:
        settings = dataclasses.replace(settings, lr=AUTO)
    if settings.horizon is None and _runs_out(settings):
        return dataclasses.replace(settings, horizon=request.limits.forwards)
    return settings


def _refuse_unused(request: TrainRequest) -> None:
    """Raise UsageError for an option that the others leave without effect."""
    given = {**preset(request.preset), **request.settings}
    settings = dataclasses.replace(Settings(), **given)
    for name, (used, needs) in _USED.items():
        if name in request.settings and not used(settings):
            raise UsageError("the option has no effect here", where=option(name), wanted=needs)
    if "val_split" in request.data and "val_data" in request.data:
        raise UsageError(
            "nothing is held out where there are other images to validate on",
            where="--val-split",
            hint="Leave out --val-split or --val-data.",
        )
    for name in ("shift_seed", "val_shift_seed"):
        if name in request.data and not request.data.get("shift"):
            raise UsageError("the option has no effect here", where=option(name), wanted="--shift")
    if "val_data_split" in request.data and "val_data" not in request.data:
        raise UsageError(
            "the option has no effect here", where="--val-data-split", wanted="--val-data"
        )


def resolve(request: TrainRequest, old: Checkpoint | None) -> tuple[Settings, DataSpec, str | None]:
    """Settings, data and profile of the run: the user's over the defaults, or the checkpoint's.

    Raises UsageError where the user asks a resumed run for another value than it began with.
    """
    if old is None:
        spec = dataclasses.replace(DataSpec(), **request.data)
        return chosen_settings(request), spec, request.profile
    settings = Settings.from_json(old.header["settings"])
    spec = DataSpec.from_json(old.run["data"])
    given = {**preset(request.preset), **request.settings, **request.data}
    kept = {**settings.to_json(), **spec.to_json()}
    if request.profile is not None:
        given["profile"], kept["profile"] = request.profile, old.header["profile"]
    for name, value in given.items():
        if value not in (kept[name], AUTO):
            raise UsageError(
                "a resumed run keeps the options it began with",
                where=f"--{name.replace('_', '-')}",
                got=value,
                wanted=kept[name],
                hint="Leave the option out, or start a new run in another --out.",
            )
    return settings, spec, old.header["profile"]


def explain_request(request: TrainRequest) -> list[str]:
    """What ``train`` would do, in words; needs the model, but neither data nor a folder.

    Raises the errors of ``compose`` and ``trained_tensors``.
    """
    algorithm = compose(chosen_settings(request))
    graph = npusim.load(request.model, request.q_json)
    program, _ = compile_chosen(graph, request.profile, request.engine, request.lowering)
    tensors = trained_tensors(algorithm, program.graph, program.weights)
    sources = dict.fromkeys(preset(request.preset), f"preset {request.preset}")
    sources |= dict.fromkeys(request.settings, "given")
    if algorithm.settings.horizon is not None:
        sources.setdefault("horizon", "--max-forwards")
    return list(explain(algorithm, tensors, sources))
