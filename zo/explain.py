"""What an algorithm does, in words: every constant, and where it comes from."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from npusim.zo.algorithm import Algorithm, layers_of
from npusim.zo.settings import AUTO, Settings, option
from npusim.zo.tensors import Trained

_DEFAULT = "npusim's default"


def explain(
    algorithm: Algorithm, tensors: tuple[Trained, ...], given: Mapping[str, str]
) -> Iterator[str]:
    """Lines of text.

    Args:
        tensors: what is trained. given: setting -> where it comes from, of those not defaults.
    """
    yield "One step:"
    for number, text in enumerate(_parts(algorithm, tensors), start=1):
        yield f"{number}. {text}"
    yield ""
    yield "Settings:"
    for field in dataclasses.fields(Settings):
        value = getattr(algorithm.settings, field.name)
        yield f"  {option(field.name)[2:]} = {_shown(value)}  ({given.get(field.name, _DEFAULT)})"
    yield ""
    if algorithm.settings.lr == AUTO:
        yield "The learning rate is measured when the run begins; image-forwards of a step by q:"
        for q in algorithm.scheduler.qs:
            yield f"  q {q}: {algorithm.forwards(q)}"
        return
    yield "Learning rate of a step (LSB^2 per nat) by q:"
    for q in algorithm.scheduler.qs:
        yield f"  q {q}: {algorithm.eta(q, 0):g}, {algorithm.forwards(q)} image-forwards"


def _parts(algorithm: Algorithm, tensors: tuple[Trained, ...]) -> Iterator[str]:
    settings, schedule = algorithm.settings, algorithm.scheduler
    weights = sum(t.size for t in tensors if t.kind == "weight")
    biases = sum(t.size for t in tensors if t.kind == "bias")
    layers = len(layers_of(tensors))
    yield (
        f"{settings.batch} images; {weights} weights and {biases} biases of {layers} layers are "
        "trained; quantization scales are fixed."
    )
    sizes = sorted({t.mu for t in tensors})
    yield (
        f"Directions: {_text(algorithm.direction)} Perturbed codes are sat(w +- mu z) with "
        f"mu {', '.join(map(str, sizes))}; a bias moves in units of mu_b codes, mu_b = "
        "clamp(2^round(log2(s_ref / (s_x s_w))), 16, 1024)."
    )
    if settings.layerq:
        yield (
            "LayerQ: each direction perturbs one layer, drawn with equal odds; N is divided by "
            f"the number of layers, {layers}."
        )
    yield f"Estimate: {_text(algorithm.estimator)}"
    if settings.clip:
        yield f"|D_k| is limited to {settings.clip:g} times the running median of 64 steps."
    yield f"Loss: {settings.loss}, base 2, at the int8 tensor before the last DequantizeLinear."
    yield f"Update: {_text(algorithm.update)}"
    if biases and settings.update not in ("residual", "sign"):
        yield "Biases keep what rounding leaves over (int64 masters, 1/256 code)."
    yield f"q: {_text(schedule.q)} q is one of {', '.join(map(str, schedule.qs))}."
    yield f"Learning rate: {_text(schedule.rate)}"
    window = schedule.window.forwards
    length = "an epoch" if window is None else f"{window} image-forwards"
    yield f"A window is {length}. {_text(schedule.stall)}"
    yield (
        "Nothing of this is the paper's own: the QScheduler article's constants are not public. "
        "Random numbers: Philox4x32-10, see docs/training.md."
    )


def _text(value: Any) -> str:
    """The documentation of a component's class, as one paragraph, and its own constants."""
    text = " ".join((inspect.getdoc(type(value)) or "").split())
    fields = [
        f"{f.name} = {getattr(value, f.name)}"
        for f in dataclasses.fields(value)
        if not dataclasses.is_dataclass(getattr(value, f.name))
    ]
    return text + (f" [{', '.join(fields)}]" if fields else "")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return "none" if value in (None, "") else str(value)
