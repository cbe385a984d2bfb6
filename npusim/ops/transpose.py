"""Another order of the axes."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OpSpec, Rule, register


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


SPEC = register(
    OpSpec(
        name="transpose",
        summary="Another order of the axes.",
        attrs=TransposeAttrs,
        infer=infer,
        rules={"exact": Rule(lower, reference, "layout:bind_transpose")},
        runs_on="layout",
    )
)
