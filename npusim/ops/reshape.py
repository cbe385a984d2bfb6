"""Same elements, other shape: Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OpSpec, Rule, register


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


SPEC = register(
    OpSpec(
        name="reshape",
        summary="Same elements, other shape.",
        attrs=ReshapeAttrs,
        infer=infer,
        rules={"exact": Rule(lower, reference, "layout:bind_reshape")},
        runs_on="layout",
    )
)
