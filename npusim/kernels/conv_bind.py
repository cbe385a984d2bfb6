"""Binds convolutions and fully connected layers to their kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from npusim.ir import Array, Site
from npusim.kernels.conv import CONV, conv_step, pack_weights
from npusim.kernels.depthwise import DEPTHWISE, depthwise_step, pack_depthwise
from npusim.kernels.dot import CHANNELS, PIXELS
from npusim.kernels.epilogue_bind import epilogue, padded
from npusim.kernels.plan import ALWAYS, Builder, channels_last, record, stored_bias
from npusim.kernels.split import Depth, Rounding, depth_of, rounding_of, windows_of
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.numerics.requant import largest_offset
from npusim.ops.base import Rule

# A band's map should stay in the second-level cache beside the weights of 16 channels.
_MAP_BYTES = 160 << 10

# Pixels finished together: their sums, pieces and totals should stay in the first-level cache.
_BLOCK = 8 * PIXELS


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution's sizes; a fully connected layer is one of 1x1 on a 1x1 map."""

    images: int
    height: int
    width: int
    channels: int
    rows: int
    cols: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    group: int

    @property
    def inputs(self) -> int:
        """Weights of one output channel."""
        return self.kernel[0] * self.kernel[1] * self.channels // self.group

    @property
    def reach(self) -> int:
        """Rows of input that a window spans."""
        return (self.kernel[0] - 1) * self.dilations[0] + 1

    @property
    def map_width(self) -> int:
        """Pixels of a padded row that any window reads."""
        return (self.cols - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1

    def flattened(self) -> Geometry:
        """One column where every window is one pixel and none is skipped, so that rows are long."""
        if self.kernel != (1, 1) or self.strides != (1, 1) or any(self.pads):
            return self
        pixels = self.height * self.width
        return replace(self, height=pixels, width=1, rows=pixels, cols=1)


def bind_conv(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    n, channels, height, width = site.value(0).type.shape
    out_channels, _, kh, kw = site.value(1).type.shape
    _, _, rows, cols = site.output.type.shape
    a = site.attrs
    geometry = Geometry(
        n or 1,
        int(height or 0),
        int(width or 0),
        int(channels or 0),
        int(rows or 0),
        int(cols or 0),
        int(out_channels or 0),
        (int(kh or 0), int(kw or 0)),
        a.strides,
        a.dilations,
        a.pads,
        a.group,
    )
    if a.group == channels == out_channels:
        return _bind_depthwise(builder, site, lowered, geometry)
    return _bind_dense(builder, site, lowered, geometry)


def bind_gemm(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    shape = site.value(0).type.shape
    rows = int(np.prod([d for d in shape[:-1] if d is not None], dtype=np.int64))
    inputs, outputs = int(shape[-1] or 0), int(site.output.type.shape[-1] or 0)
    geometry = Geometry(rows, 1, 1, inputs, 1, 1, outputs, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    return _bind_dense(builder, site, lowered, geometry, last_axis=True)


def _bind_dense(
    builder: Builder, site: Site, lowered: Lowered, g: Geometry, last_axis: bool = False
) -> bool:
    if 0 in (g.rows, g.cols, g.channels, g.out_channels):
        return False
    each = g.channels // g.group
    rounding = rounding_of(lowered, g.kernel, each)
    if not _sums_fit(site, rounding):
        return False
    depth = depth_of(rounding, g.kernel, each, g.group == 1 and g.dilations[1] == 1)
    flat = g.flattened()
    rank = len(site.value(0).type.shape)
    axes = tuple(range(rank)) if last_axis else channels_last(rank)
    row = record(
        CONV,
        x=builder.input(site.node.inputs[0], axes),
        y=builder.output(site.node.outputs[0], axes),
        weights=_pack_weights(builder, site, g, depth),
        depth=depth.size,
        runs=builder.constant(
            depth.distances(2 * flat.map_width * g.channels, 2 * g.channels, g.dilations)
        ),
        segments=builder.constant(depth.segments),
        segment_count=len(depth.segments),
        **_band(builder, flat),
        **_finish(builder, site, lowered, rounding, g.group, g.inputs),
        **_sizes(flat),
    )
    builder.native(conv_step, row)
    return True


def _band(builder: Builder, g: Geometry) -> dict[str, int]:
    """How much of the input is widened at a time, and where in the scratch that lies."""
    line = 2 * g.map_width * g.channels
    image = ((g.rows - 1) * g.strides[0] + g.reach) * line
    images, rows = max(1, _MAP_BYTES // image), g.rows
    if image > _MAP_BYTES:
        lines = max(g.reach, _MAP_BYTES // line)
        rows = min(g.rows, (lines - g.reach) // g.strides[0] + 1)
    lines = images * ((rows - 1) * g.strides[0] + g.reach)
    # A run may read one int16 past the map.
    offsets = -(-(lines * line + 2) // 64) * 64
    work = offsets + 8 * (images * rows * g.cols + PIXELS)
    builder.scratch(work + 3 * 4 * CHANNELS * _BLOCK)
    return {
        "reach": g.reach,
        "map_width": g.map_width,
        "band_images": images,
        "band_rows": rows,
        "offsets": offsets,
        "work": work,
        "block": _BLOCK,
    }


def _bind_depthwise(builder: Builder, site: Site, lowered: Lowered, g: Geometry) -> bool:
    if 0 in (g.rows, g.cols, g.channels):
        return False
    lanes = -(-g.channels // CHANNELS) * CHANNELS
    taps = g.kernel[0] * g.kernel[1]
    builder.scratch(g.cols * 3 * 4 * CHANNELS)
    rounding = rounding_of(lowered, g.kernel, 1)
    if not _sums_fit(site, rounding):
        return False
    windows = windows_of(rounding)
    axes = channels_last(len(site.value(0).type.shape))
    pack = partial(_write_depthwise, zero_points=_weight_zero_points(site, g))
    row = record(
        DEPTHWISE,
        x=builder.input(site.node.inputs[0], axes),
        y=builder.output(site.node.outputs[0], axes),
        weights=builder.weights(site.node.inputs[1], 2 * taps * lanes, pack),
        kernel_y=g.kernel[0],
        kernel_x=g.kernel[1],
        segments=builder.constant(windows),
        segment_count=len(windows),
        **_finish(builder, site, lowered, rounding, 1, taps),
        **{k: v for k, v in _sizes(g).items() if k not in ("out_channels", "group")},
    )
    builder.native(depthwise_step, row)
    return True


def _sums_fit(site: Site, rounding: Rounding) -> bool:
    """True where the products of every segment fit the kernel's int32 sums.

    Lowering proves it for its own numbers; a user's split of the depth may be another.
    """
    x, w = (largest_offset(site.value(i).range, site.qparams(i).zero_points()) for i in (0, 1))
    return max(segment.terms for segment in rounding.segments) * x * w < 2**31


def _finish(
    builder: Builder, site: Site, lowered: Lowered, rounding: Rounding, group: int, terms: int
) -> dict[str, int]:
    """What follows the products, ``terms`` a sum: biases, stream rounding, epilogue."""
    outputs = _output_channels(site)
    size = padded(np.zeros(outputs, np.int32), group).nbytes
    bias = site.node.inputs[2] if site.has(2) else ALWAYS
    start, constant = 0, 0
    if isinstance(lowered, Convolution):
        # The sums start from zero; the bias acts through the constant of the last step.
        start = builder.weights(ALWAYS, size, _write_zeros)
        write = partial(_write_constants, lowered=lowered, group=group)
        constant = builder.weights(bias, 2 * size, write)
    else:
        start = builder.weights(bias, size, partial(_write_bias, group=group))
    return {
        "start": start,
        "zero_point": site.qparams(0).scalar()[1] + stored_bias(site.value(0)),
        "stream_shift": rounding.shift,
        "ties": rounding.ties,
        "narrow": int(rounding.narrow(terms)),
        "counter": builder.counter(site.node.name),
        "epilogue": epilogue(lowered, builder, site.output, group, constant),
    }


def _sizes(g: Geometry) -> dict[str, int]:
    return {
        "images": g.images,
        "height": g.height,
        "width": g.width,
        "channels": g.channels,
        "rows": g.rows,
        "cols": g.cols,
        "out_channels": g.out_channels,
        "group": g.group,
        "stride_y": g.strides[0],
        "stride_x": g.strides[1],
        "dilation_y": g.dilations[0],
        "dilation_x": g.dilations[1],
        "top": g.pads[0],
        "left": g.pads[1],
    }


def _pack_weights(builder: Builder, site: Site, g: Geometry, depth: Depth) -> int:
    blocks = -(-(g.out_channels // g.group) // CHANNELS) * g.group
    pack = partial(
        _write_weights,
        zero_points=_weight_zero_points(site, g),
        order=depth.order,
        group=g.group,
        depth=depth.size,
    )
    return builder.weights(site.node.inputs[1], 2 * blocks * CHANNELS * depth.size, pack)


def _write_weights(
    codes: Array, out: Array, zero_points: Array, order: Array, group: int, depth: int
) -> None:
    pack_weights(codes, zero_points, order, group, depth, out.view(np.int16))


def _write_depthwise(codes: Array, out: Array, zero_points: Array) -> None:
    pack_depthwise(codes, zero_points, out.view(np.int16))


def _write_bias(codes: Array, out: Array, group: int) -> None:
    out.view(np.int32)[:] = padded(codes.astype(np.int32), group) if codes.size else 0


def _write_zeros(codes: Array, out: Array) -> None:
    out[:] = 0


def _write_constants(codes: Array, out: Array, lowered: Convolution, group: int) -> None:
    """The last step's constant for these bias codes (none where there is no bias)."""
    bias = codes.astype(np.int64) if codes.size else None
    out.view(np.int64)[:] = padded(lowered.constants(bias).values, group)


def _weight_zero_points(site: Site, g: Geometry) -> Array:
    return np.broadcast_to(site.qparams(1).zero_points(), (g.out_channels,)).copy()


def _output_channels(site: Site) -> int:
    at = 1 if site.node.op == "conv" else -1
    return int(site.output.type.shape[at] or 0)
