"""Surround a tensor with a constant code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OpSpec, Rule, register


@dataclass(frozen=True, slots=True)
class PadAttrs:
    """pads: (before, after) of every axis. value: the code (or float) that is put there."""

    pads: tuple[tuple[int, int], ...]
    value: float = 0


def infer(site: Site) -> TensorType:
    dims = [
        None if d is None else d + before + after
        for d, (before, after) in zip(site.value(0).type.shape, site.attrs.pads, strict=True)
    ]
    return TensorType(site.output.type.dtype, tuple(dims))


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    return np.pad(x, site.attrs.pads, constant_values=x.dtype.type(site.attrs.value))


SPEC = register(
    OpSpec(
        name="pad",
        summary="Surround a tensor with a constant.",
        attrs=PadAttrs,
        infer=infer,
        rules={"exact": Rule(lower, reference)},
    )
)
