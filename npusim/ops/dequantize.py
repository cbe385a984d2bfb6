"""Codes to float32 (DequantizeLinear)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.numerics.requant import along
from npusim.ops.base import OpSpec, Rule, register


@dataclass(frozen=True, slots=True)
class DequantizeAttrs:
    """None; scale and zero point are the input tensor's."""


def infer(site: Site) -> TensorType:
    return TensorType(site.output.type.dtype, site.value(0).type.shape)


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """float32((x - z) * s); the difference is exact."""
    x = inputs[0]
    assert x is not None
    qparams = site.qparams(0)
    axis = qparams.axis or 0
    centred = x - along(qparams.zero_points(), x.ndim, axis)
    return centred.astype(np.float32) * along(qparams.scales(), x.ndim, axis)


SPEC = register(
    OpSpec(
        name="dequantize",
        summary="Codes to float32.",
        attrs=DequantizeAttrs,
        infer=infer,
        rules={"exact": Rule(lower, reference)},
        runs_on="software",
    )
)
