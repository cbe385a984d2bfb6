"""Mean over all positions of each channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics import requant
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops import neural_art_arith
from npusim.ops.base import Lower, OnnxRow, OpSpec, Rule, register
from npusim.ops.spatial import require_channels_first, require_image
from npusim.ops.unit import QOperands, Step, Unit, operands_of


@dataclass(frozen=True, slots=True)
class GlobalAveragePoolAttrs:
    """keepdims: the result is [N, C, 1, 1], else [N, C].

    clamp: smallest and largest code the output may take.
    """

    keepdims: bool = True
    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    n, channels, *spatial = site.value(0).type.shape
    ones = (1,) * len(spatial) if site.attrs.keepdims else ()
    return TensorType(site.output.type.dtype, (n, channels, *ones))


def positions(site: Site) -> int:
    """Positions that one mean is over."""
    return int(np.prod([d or 1 for d in site.value(0).type.shape[2:]]))


def channels(site: Site) -> int:
    return int(site.value(0).type.shape[1] or 1)


def lower_float32(site: Site, profile: Profile) -> Lowered:
    """onnxruntime: multiplier = float32(sx / float32(sy * N))."""
    requant.prove_sum(site, positions(site))
    (sx, _), (sy, zy) = site.qparams(0).scalar(), site.output_qparams.scalar()
    ratio = requant.mean_float32(sx, sy, positions(site))
    return requant.float_scale(ratio, channels(site), zy, site.attrs.clamp)


def lower_fixed(how: str) -> Lower:
    """TFLite's Mean: the multiplier of sx / sy, divided by N in integers."""

    def lower(site: Site, profile: Profile) -> Lowered:
        requant.prove_sum(site, positions(site))
        (sx, _), (sy, zy) = site.qparams(0).scalar(), site.output_qparams.scalar()
        ratio = float(sx) / float(sy)
        return requant.mean_fixed_point(
            ratio, positions(site), channels(site), how, zy, site.attrs.clamp
        )

    return lower


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    x = inputs[0]
    assert x is not None
    spatial = tuple(range(2, x.ndim))
    acc = np.sum(x - site.qparams(0).zero_points(), spatial, keepdims=site.attrs.keepdims)
    assert isinstance(lowered, requant.Requantizer)
    return lowered.apply(acc, 1)


def convert(unit: Unit) -> Step:
    """ONNX GlobalAveragePool, and ReduceMean over height and width."""
    require_image(unit)
    keepdims = True
    if unit.node.op == "ReduceMean":
        axes = unit.ints(1, "axes")
        if axes is None or sorted(unit.axes(axes, 4)) != [2, 3]:
            raise unit.refused("only means over height and width", got=axes, wanted=[2, 3])
        keepdims = bool(unit.attr("keepdims", 1))
    return Step("global_average_pool", GlobalAveragePoolAttrs(keepdims, unit.clamp), unit.names(0))


def from_qlinear(node: Node) -> QOperands:
    """com.microsoft QLinearGlobalAveragePool: x, sx, zx, sy, zy."""
    require_channels_first(node.op, node.name, node.attrs.get("channels_last", 0))
    x, sx, zx, sy, zy = operands_of(node, 4, 5)
    return QOperands("GlobalAveragePool", {}, ((x, sx, zx),), (sy, zy))


SPEC = register(
    OpSpec(
        name="global_average_pool",
        summary="Mean over all positions of each channel.",
        attrs=GlobalAveragePoolAttrs,
        infer=infer,
        onnx=(
            OnnxRow("GlobalAveragePool", (1, 22), "qdq", convert),
            OnnxRow("ReduceMean", (1, 11, 13, 18), "qdq", convert),
            OnnxRow("QLinearGlobalAveragePool", (1,), "qoperator", from_qlinear, "com.microsoft"),
        ),
        rules={
            "float32": Rule(lower_float32, reference, "pool_bind:bind_global_average"),
            "q31-double": Rule(lower_fixed("double"), reference, "pool_bind:bind_global_average"),
            "q31-single": Rule(lower_fixed("single"), reference, "pool_bind:bind_global_average"),
            "neural-art": neural_art_arith.GLOBAL_AVERAGE,
        },
    )
)
