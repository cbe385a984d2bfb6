"""Largest code of each window; padding never wins. Input and output share one scale."""

from __future__ import annotations

import numpy as np

from npusim.ir import Array, Site
from npusim.numerics import rounding
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.profile import Profile
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.pool_window import PoolAttrs, check_windows, infer, padded, pool_attrs, taps
from npusim.ops.unit import Step, Unit


def lower(site: Site, profile: Profile) -> Lowered:
    check_windows(site)
    return Nothing()


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    floating = x.dtype == np.float32
    surrounded = padded(site, x, -np.inf if floating else np.iinfo(np.int64).min)
    largest: Array = np.max(list(taps(site, surrounded)), axis=0)
    return largest if floating else rounding.saturate(largest, *site.attrs.clamp)


def convert(unit: Unit) -> Step:
    """ONNX MaxPool. Raises UnsupportedOp where it also returns positions."""
    if any(unit.node.outputs[1:]) or unit.attr("storage_order", 0):
        raise unit.refused("positions of the largest elements are not supported")
    return Step("maxpool", pool_attrs(unit), unit.names(0))


SPEC = register(
    OpSpec(
        name="maxpool",
        summary="Largest value of each window.",
        attrs=PoolAttrs,
        infer=infer,
        onnx=(OnnxRow("MaxPool", (1, 8, 10, 11, 12, 22), "any", convert),),
        rules={"exact": Rule(lower, reference, "pool_bind:bind_max")},
    )
)
