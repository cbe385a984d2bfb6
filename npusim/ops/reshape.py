"""Same elements, other shape: Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

import math
from dataclasses import dataclass

from npusim.errors import BadShape
from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import Step, Unit


@dataclass(frozen=True, slots=True)
class ReshapeAttrs:
    """shape: the output's shape, None for the batch."""

    shape: tuple[int | None, ...]


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.attrs.shape)


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    return x.reshape(tuple(-1 if d is None else d for d in site.attrs.shape))


def convert(unit: Unit) -> Step:
    """ONNX Reshape, Flatten, Squeeze, Unsqueeze and Identity, to the shape that they give."""
    shape = unit.shape(0)
    result = _TARGETS[unit.node.op](unit, shape)
    if math.prod(result) != math.prod(shape):
        raise BadShape(
            f"{unit.node.op} changes the number of elements",
            where=unit.node.name,
            got=list(result),
            wanted=f"{math.prod(shape)} elements",
        )
    return Step("reshape", ReshapeAttrs(result), unit.names(0))


def _reshaped(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    """0 keeps a size (unless allowzero), -1 takes what is left."""
    wanted = unit.ints(1, "shape") or ()
    keep = not unit.attr("allowzero", 0)
    if keep and any(w == 0 for w in wanted[len(shape) :]):
        raise BadShape("Reshape: 0 beyond the input's axes", where=unit.node.name, got=list(wanted))
    sizes = [shape[i] if w == 0 and keep else w for i, w in enumerate(wanted)]
    if sizes.count(-1) == 1:
        rest = math.prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // rest if rest else 0
    if any(s < 1 for s in sizes):
        raise BadShape("Reshape: bad shape", where=unit.node.name, got=list(wanted))
    return tuple(sizes)


def _flattened(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    axis = int(unit.attr("axis", 1))
    (axis,) = (axis,) if axis == len(shape) else unit.axes((axis,), len(shape))
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _squeezed(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    ones = tuple(i for i, d in enumerate(shape) if d == 1)
    chosen = unit.axes(unit.ints(1, "axes") or ones, len(shape))
    return tuple(d for i, d in enumerate(shape) if i not in chosen)


def _unsqueezed(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    given = unit.ints(1, "axes") or ()
    rank = len(shape) + len(given)
    chosen = unit.axes(given, rank)
    rest = iter(shape)
    return tuple(1 if i in chosen else next(rest) for i in range(rank))


def _unchanged(unit: Unit, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


_TARGETS = {
    "Reshape": _reshaped,
    "Flatten": _flattened,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Identity": _unchanged,
    "Dropout": _unchanged,
}


SPEC = register(
    OpSpec(
        name="reshape",
        summary="Same elements, other shape.",
        attrs=ReshapeAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Reshape", (5, 13, 14, 19, 21, 23, 24, 25), "any", convert),
            OnnxRow("Flatten", (1, 9, 11, 13, 21, 23, 24, 25), "any", convert),
            OnnxRow("Squeeze", (1, 11, 13, 21, 23, 24, 25), "any", convert),
            OnnxRow("Unsqueeze", (1, 11, 13, 21, 23, 24, 25), "any", convert),
            OnnxRow("Identity", (1, 13, 14, 16, 19, 21, 23, 24, 25), "any", convert),
            OnnxRow("Dropout", (7, 10, 12, 13, 22), "any", convert),
        ),
        rules={"exact": Rule(lower, reference, "layout:bind_reshape")},
        runs_on="layout",
    )
)
