"""What conv and gemm share: codes minus zero points, and their lowering to each requantizer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.errors import BadQuantization, BadShape
from npusim.ir import Array, Site
from npusim.numerics import requant
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops.unit import Unit

Sizes = Callable[[Site], tuple[int, int]]
"""(output channels, products in one sum) of a node."""


def check_weights(unit: Unit, index: int, axis: int, outputs: int) -> None:
    """Raises BadQuantization or BadShape unless weights and bias are what an NPU can use.

    axis: the axis of output channels. outputs: how many there are.
    """
    weights = unit.input(index).qparams
    if (
        weights is None
        or weights.axis not in (None, axis)
        or len(weights.scale) not in (1, outputs)
    ):
        raise BadQuantization(
            "weights may have one scale, or one an output channel",
            where=unit.node.name,
            got=f"{len(weights.scale)} along axis {weights.axis}" if weights else "none",
        )
    unit.constant(index)
    bias = unit.constant(index + 1)
    if bias is not None and (bias.dtype != np.int32 or bias.size != outputs):
        raise BadShape(
            "bias must be one int32 code an output channel",
            where=unit.node.name,
            got=f"{bias.dtype}{list(bias.shape)}",
            wanted=f"int32[{outputs}]",
        )


def weight_shape(site: Site) -> tuple[int, ...]:
    """The shape of the weights as integers."""
    return tuple(int(d or 1) for d in site.value(1).type.shape)


def centred(site: Site, inputs: tuple[Array | None, ...]) -> tuple[Array, Array]:
    """Activation and weight codes (int64) with their zero points taken off."""
    x, w = inputs[0], inputs[1]
    assert x is not None
    assert w is not None
    weights = site.qparams(1)
    points = requant.along(weights.zero_points(), w.ndim, weights.axis or 0)
    return x - site.qparams(0).zero_points(), w - points


def biased(acc: Array, inputs: tuple[Array | None, ...], axis: int) -> Array:
    """Sums plus the int32 bias, where there is one."""
    bias = inputs[2] if len(inputs) > 2 else None
    return acc if bias is None else acc + requant.along(bias, acc.ndim, axis)


def lower_float32(sizes: Sizes) -> Callable[[Site, Profile], Lowered]:
    """onnxruntime: multiplier = float32(float32(sx * sw) / sy)."""

    def lower(site: Site, profile: Profile) -> Lowered:
        channels, terms = sizes(site)
        requant.prove_accumulator(site, terms)
        sx, _ = site.qparams(0).scalar()
        sy, zy = site.output_qparams.scalar()
        ratio = sx * site.qparams(1).scales() / sy
        return requant.float_scale(ratio, channels, zy, site.attrs.clamp)

    return lower


def lower_fixed(sizes: Sizes, rounding: str) -> Callable[[Site, Profile], Lowered]:
    """TFLite: the float64 ratio sx * sw / sy as a q31 multiplier and a shift."""

    def lower(site: Site, profile: Profile) -> Lowered:
        channels, terms = sizes(site)
        requant.prove_accumulator(site, terms)
        sx, _ = site.qparams(0).scalar()
        sy, zy = site.output_qparams.scalar()
        ratio = np.float64(sx) * site.qparams(1).scales() / np.float64(sy)
        return requant.fixed_point(ratio, channels, rounding, zy, site.attrs.clamp)

    return lower
