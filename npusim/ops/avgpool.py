"""Mean of each window."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from npusim.errors import UnsupportedOp
from npusim.ir import Array, Node, Site
from npusim.numerics import requant, rounding
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OnnxRow, OpSpec, Rule, register
from npusim.ops.pool_window import (
    PoolAttrs,
    check_windows,
    counted,
    infer,
    padded,
    pool_attrs,
    taps,
)
from npusim.ops.spatial import require_channels_first
from npusim.ops.unit import QOperands, Step, Unit, operands_of


@dataclass(frozen=True)
class AveragePoolFloat32(Lowered):
    """clip(rint(float32(float32(mean / output_scale) + zero_point))).

    mean: the window's dequantized elements summed in float32 row by row, divided by their number.
    The zero point is added before rounding, so ties depend on its parity.
    """

    input_scale: float
    output_scale: float
    zero_point: int
    lo: int
    hi: int

    def apply(self, mean: Array) -> Array:
        """Codes of the float32 means."""
        code = mean / np.float32(self.output_scale) + np.float32(self.zero_point)
        return rounding.round_half_even(code, 0, self.lo, self.hi)


def covers_image(site: Site) -> bool:
    """True where one window is the whole, unpadded image."""
    return site.attrs.kernel == site.value(0).type.shape[2:] and not any(site.attrs.pads)


def lower_float32(site: Site, profile: Profile) -> Lowered:
    """onnxruntime takes its global pool's arithmetic where the window covers the image."""
    check_windows(site)
    (sx, _), (sy, zy) = site.qparams(0).scalar(), site.output_qparams.scalar()
    if covers_image(site):
        positions = site.attrs.kernel[0] * site.attrs.kernel[1]
        requant.prove_sum(site, positions)
        channels = int(site.value(0).type.shape[1] or 1)
        ratio = requant.mean_float32(sx, sy, positions)
        return requant.float_scale(ratio, channels, zy, site.attrs.clamp)
    return AveragePoolFloat32(float(sx), float(sy), zy, *site.attrs.clamp)


def reference_float32(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    centred = padded(site, x - site.qparams(0).zero_points(), 0)
    if isinstance(lowered, requant.FloatScale):
        return lowered.apply(np.sum(list(taps(site, centred)), axis=0), 1)
    assert isinstance(lowered, AveragePoolFloat32)
    real = taps(site, centred.astype(np.float32) * np.float32(lowered.input_scale))
    total = functools.reduce(np.add, real)
    return lowered.apply(total / counted(site).astype(np.float32))


def lower_fixed(how: str) -> Lower:
    """TFLite's AveragePool, then its Quantize where the scales differ (else that is exact)."""

    def lower(site: Site, profile: Profile) -> Lowered:
        attrs: PoolAttrs = site.attrs
        check_windows(site)
        requant.prove_sum(site, attrs.kernel[0] * attrs.kernel[1])
        if attrs.count_include_pad and any(attrs.pads):
            raise UnsupportedOp(
                f"profile {profile.name} has no average that counts the padding",
                where=site.node.name,
                got="count_include_pad = 1",
                wanted="count_include_pad = 0",
                hint="Put a Pad before the AveragePool.",
            )
        return requant.rescale_fixed(site.qparams(0), site.output_qparams, how, attrs.clamp)

    return lower


def reference_fixed(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """The mean of the raw codes, half away from zero, then requantized."""
    x = inputs[0]
    assert x is not None
    assert isinstance(lowered, requant.FixedPoint)
    total = np.sum(list(taps(site, padded(site, x, 0))), axis=0)
    mean = rounding.divide_half_away(total, counted(site))
    return lowered.apply(mean - site.qparams(0).zero_points(), 1)


def convert(unit: Unit) -> Step:
    """ONNX AveragePool."""
    return Step("avgpool", pool_attrs(unit), unit.names(0))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearAveragePool: x, sx, zx, sy, zy."""
    require_channels_first(node.op, node.name, node.attrs.get("channels_last", 0))
    x, sx, zx, sy, zy = operands_of(node, 4, 5)
    return QOperands("AveragePool", node.attrs, ((x, sx, zx),), (sy, zy))


SPEC = register(
    OpSpec(
        name="avgpool",
        summary="Mean of each window.",
        attrs=PoolAttrs,
        infer=infer,
        onnx=(
            OnnxRow("AveragePool", (7, 10, 11, 19, 22), "qdq", convert),
            OnnxRow("QLinearAveragePool", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32, reference_float32, "pool_bind:bind_average"),
            "q31-double": Rule(lower_fixed("double"), reference_fixed, "pool_bind:bind_average"),
            "q31-single": Rule(lower_fixed("single"), reference_fixed, "pool_bind:bind_average"),
            "neural-art": neural_art_arith.AVERAGE,
        },
    )
)
