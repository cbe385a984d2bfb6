"""The neural-art rule of convolution and Gemm: sums by piece and pass, then the requantizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npusim.errors import BadQuantization, UnsupportedOp
from npusim.ir import Array, Site
from npusim.numerics import neural_art
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution, Stream
from npusim.numerics.neural_art_lowering import Float64
from npusim.numerics.neural_art_passes import Segment, Window, input_form
from npusim.numerics.profile import Profile
from npusim.numerics.rounding import Int64
from npusim.ops.base import Rule
from npusim.ops.neural_art_site import offset, output, tensor
from npusim.ops.weighted import centred

STREAM_BITS = 24
"""Width of the streams between chained units [descriptor]; what leaves it is counted."""


class Geometry(NamedTuple):
    """What a convolution and a Gemm tell the rule about themselves.

    window: (site, input form) -> what the split depends on.
    channels_first: weights in the file's shape -> [channels, ...].
    sums: (site, centred x, centred w in the file's shape, segment) -> exact sums of the segment.
    axis: of the channels in sums and output.
    kernel: see npusim.ops.base.Rule.
    """

    window: Callable[[Site, str], Window]
    channels_first: Callable[[Site, Array], Array]
    sums: Callable[[Site, Array, Array, Segment], Array]
    axis: int
    kernel: str


class Counts(NamedTuple):
    """What happened silently in one layer.

    saturated: values that an int16 stream could not hold. constants: channels whose 32-bit
        constant could not be held.
    wide: sums between chained units beyond STREAM_BITS bits, whose fate is unknown; they are
        computed exactly here.
    low, high: outputs at the smallest and largest code. total: outputs.
    """

    saturated: int
    constants: int
    wide: int
    low: int
    high: int
    total: int


def rule(geometry: Geometry) -> Rule:
    """The neural-art rule of an operator of this geometry."""

    def lower(site: Site, profile: Profile) -> Lowered:
        return _lower(geometry, site, profile)

    def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
        assert isinstance(lowered, Convolution)
        return run(geometry, site, lowered, inputs).values

    def saturated(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> int:
        assert isinstance(lowered, Convolution)
        return run(geometry, site, lowered, inputs).saturated

    return Rule(lower, reference, geometry.kernel, saturated)


def run(
    geometry: Geometry, site: Site, lowered: Convolution, inputs: tuple[Array | None, ...]
) -> Stream:
    """Output codes in the output's own range, and how many values saturated on the way."""
    x, w = centred(site, inputs)
    bias = inputs[2] if len(inputs) > 2 else None
    stream = lowered.stream(
        (segment, geometry.sums(site, x, w, segment)) for segment in lowered.segments()
    )
    codes = lowered.requantize(stream.values, bias, geometry.axis)
    return Stream(codes.values, stream.saturated + codes.saturated)


def count(
    geometry: Geometry, site: Site, lowered: Convolution, inputs: tuple[Array | None, ...]
) -> Counts:
    """Run the layer by its reference and count what saturated."""
    codes, saturated = run(geometry, site, lowered, inputs)
    x, w = centred(site, inputs)
    bias = inputs[2] if len(inputs) > 2 else None
    limit = 2 ** (STREAM_BITS - 1)
    wide = sum(
        int(np.count_nonzero((total < -limit) | (total >= limit)))
        for total in _unit_sums(geometry, site, lowered, x, w)
    )
    low, high = lowered.lo + lowered.offset, lowered.hi + lowered.offset
    return Counts(
        saturated,
        lowered.constants(bias).saturated,
        wide,
        int(np.count_nonzero(codes == low)),
        int(np.count_nonzero(codes == high)),
        codes.size,
    )


def _unit_sums(
    geometry: Geometry, site: Site, lowered: Convolution, x: Array, w: Array
) -> Iterator[Int64]:
    """What every unit but the last of a chain hands on, without the carried stream."""
    for segment in lowered.segments():
        first, last = segment.channels
        step = (last - first) // segment.units
        for stop in range(first + step, last, step):
            yield geometry.sums(site, x, w, replace(segment, channels=(first, stop)))


def _lower(geometry: Geometry, site: Site, profile: Profile) -> Convolution:
    switches = neural_art.Switches.of(profile)
    x, y = tensor(site, 0), output(site, site.attrs.clamp)
    window = geometry.window(site, input_form(x.zero_point))
    return neural_art.convolution(
        x, _weights(geometry, site, x.scale), y, window, switches, site.node.name
    )


def _weights(geometry: Geometry, site: Site, input_scale: float) -> neural_art.Weights:
    codes, qparams = site.constant(1), site.qparams(1)
    if codes is None:
        raise UnsupportedOp(
            "the shift of a layer is made from its weights, which must be constants",
            where=site.node.name,
            got=f"{site.node.inputs[1]} is computed",
        )
    points = qparams.zero_points()
    if np.any(points != offset(site.value(1))):
        raise BadQuantization(
            "the NPU's weights are signed and have no zero point",
            where=site.node.inputs[1],
            got=f"{site.value(1).type.dtype} with zero points {sorted(set(points.tolist()))}",
            wanted="zero point 0 for int8, 128 for uint8",
        )
    first = geometry.channels_first(site, codes.astype(np.int64) - int(points[0]))
    scales = np.broadcast_to(qparams.scales().astype(np.float64), first.shape[:1])
    bias, bias_scales = _bias(site, input_scale * scales)
    return neural_art.Weights(first, scales, bias, bias_scales)


def _bias(site: Site, product: Float64) -> tuple[Int64, Float64]:
    """Bias codes and scales; zeros at scale sx * sw (float32) where the layer has none."""
    if not site.has(2):
        scales = product.astype(np.float32).astype(np.float64)
        return np.zeros(product.shape, np.int64), scales
    codes = site.constant(2)
    if codes is None:
        raise UnsupportedOp(
            "the constants of a layer are made from its bias, which must be a constant",
            where=site.node.name,
            got=f"{site.node.inputs[2]} is computed",
        )
    scales = site.qparams(2).scales().astype(np.float64)
    return codes.astype(np.int64), np.broadcast_to(scales, product.shape)
