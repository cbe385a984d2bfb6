"""What a run is asked for, and the settings that come of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import npusim
from npusim.errors import UsageError
from npusim.lowering import compile_chosen
from npusim.zo.algorithm import compose, trained_tensors
from npusim.zo.checkpoint import Checkpoint
from npusim.zo.data import DataSpec
from npusim.zo.explain import explain
from npusim.zo.loop import Limits
from npusim.zo.settings import AUTO, Settings, preset


@dataclass(frozen=True)
class TrainRequest:
    """What a run is asked for.

    model: the ONNX file. out: the folder for log, checkpoint and result.
    settings, data: fields of Settings and DataSpec that the user gave; the others come from the
        checkpoint of a resumed run, or are the preset's, or the defaults.
    profile, lowering: see npusim.lowering.compile_chosen; a resumed run keeps its own.
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
    resume: bool = False
    overwrite: bool = False


def chosen_settings(request: TrainRequest) -> Settings:
    """The user's settings over those of the preset over the defaults.

    Schedules that need the length of the run take the limit of image-forwards.
    """
    given = {**preset(request.preset), **request.settings}
    settings = dataclasses.replace(Settings(), **given)
    runs_out = settings.lr_schedule in ("cosine", "linear") or settings.q.startswith("ramp")
    if settings.horizon is None and runs_out:
        return dataclasses.replace(settings, horizon=request.limits.forwards)
    return settings


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
    program, _ = compile_chosen(npusim.load(request.model), request.profile, request.engine)
    tensors = trained_tensors(algorithm, program.graph, program.weights)
    sources = dict.fromkeys(preset(request.preset), f"preset {request.preset}")
    sources |= dict.fromkeys(request.settings, "given")
    if algorithm.settings.horizon is not None:
        sources.setdefault("horizon", "--max-forwards")
    return list(explain(algorithm, tensors, sources))
