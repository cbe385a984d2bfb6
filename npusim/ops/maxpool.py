"""Largest code of each window; padding never wins. Input and output share one scale."""

from __future__ import annotations

import numpy as np

from npusim.ir import Array, Site
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OpSpec, Rule, register
from npusim.ops.pool_window import PoolAttrs, infer, padded, taps


def lower(site: Site, profile: Profile) -> Lowered:
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    floating = x.dtype == np.float32
    surrounded = padded(site, x, -np.inf if floating else np.iinfo(np.int64).min)
    largest: Array = np.max(list(taps(site, surrounded)), axis=0)
    return largest if floating else rounding.saturate(largest, *site.attrs.clamp)


SPEC = register(
    OpSpec(
        name="maxpool",
        summary="Largest value of each window.",
        attrs=PoolAttrs,
        infer=infer,
        rules={"exact": Rule(lower, reference, "pool_bind:bind_max")},
    )
)
