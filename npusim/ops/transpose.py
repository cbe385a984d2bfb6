"""Another order of the axes."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import BadShape
from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.unit import Step, Unit


@dataclass(frozen=True, slots=True)
class TransposeAttrs:
    """perm: axis ``i`` of the output is axis ``perm[i]`` of the input."""

    perm: tuple[int, ...]


def infer(site: Site) -> TensorType:
    shape = site.value(0).type.shape
    return TensorType(site.output.type.dtype, tuple(shape[p] for p in site.attrs.perm))


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    return x.transpose(site.attrs.perm)


def convert(unit: Unit) -> Step:
    """ONNX Transpose; without perm the axes are reversed."""
    rank = len(unit.shape(0))
    perm = tuple(int(p) for p in unit.attr("perm") or reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise BadShape("Transpose: bad perm", where=unit.node.name, got=list(perm))
    return Step("transpose", TransposeAttrs(perm), unit.names(0))


SPEC = register(
    OpSpec(
        name="transpose",
        summary="Another order of the axes.",
        attrs=TransposeAttrs,
        infer=infer,
        onnx=(OnnxRow("Transpose", (1, 13, 21, 23, 24, 25), "any", convert),),
        rules={"exact": Rule(lower, reference, "layout:bind_transpose")},
        runs_on="layout",
    )
)
