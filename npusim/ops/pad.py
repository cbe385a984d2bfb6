"""Surround a tensor with a constant code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.errors import BadShape
from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import Step, Unit


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


def convert(unit: Unit) -> Step:
    """ONNX Pad with a constant. Raises UnsupportedOp where the constant is no code."""
    rank = len(unit.shape(0))
    if unit.attr("mode", "constant") != "constant":
        raise unit.refused("only constant padding is supported", got=unit.attr("mode"))
    pads = unit.ints(1, "pads") or ()
    axes = unit.axes(unit.ints(3, "axes") or tuple(range(rank)), rank)
    if len(pads) != 2 * len(axes):
        raise BadShape("Pad: bad pads", where=unit.node.name, got=list(pads))
    if pads and min(pads) < 0:
        raise unit.refused("negative padding is not supported", got=list(pads))
    sides = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        sides[axis] = (pads[i], pads[i + len(axes)])
    given = unit.constant(2)
    if given is not None and given.size != 1:
        raise BadShape("Pad: constant is no single number", where=unit.node.name, got=given.size)
    value = unit.attr("value", 0.0) if given is None else given.ravel()[0].item()
    return Step("pad", PadAttrs(tuple(sides), unit.code(value)), unit.names(0))


SPEC = register(
    OpSpec(
        name="pad",
        summary="Surround a tensor with a constant.",
        attrs=PadAttrs,
        infer=infer,
        onnx=(OnnxRow("Pad", (2, 11, 13, 18, 19, 21, 23, 24, 25), "any", convert),),
        rules={"exact": Rule(lower, reference)},
    )
)
