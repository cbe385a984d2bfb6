"""Binds max, average and global average pooling to their kernels."""

from __future__ import annotations

import dataclasses

import numpy as np

from npusim.ir import Array, Site
from npusim.kernels.dot import CHANNELS
from npusim.kernels.epilogue_bind import epilogue
from npusim.kernels.plan import Builder, channels_last, record, stored_bias
from npusim.kernels.pool import POOL, float_mean_step, max_step, stream_mean_step, sum_step
from npusim.kernels.stream import INT16_MAX, INT16_MIN, TIES
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import GlobalAverage, WindowAverage
from npusim.numerics.requant import FixedPoint, FloatScale
from npusim.ops.avgpool import AveragePoolFloat32
from npusim.ops.base import Rule
from npusim.ops.pool_window import PoolAttrs, counted


def bind_max(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    if not _is_map(site):
        return False
    low, high = (code + stored_bias(site.output) for code in site.attrs.clamp)
    row = _row(builder, site, site.attrs, builder.constant(np.zeros(1, np.int64)))
    row["low"], row["high"] = low, high
    builder.native(max_step, row)
    return True


def bind_average(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    if not _is_map(site) or not np.all(counts := counted(site)):
        return False
    row = _row(builder, site, site.attrs, builder.constant(counts))
    if isinstance(lowered, AveragePoolFloat32):
        bias = stored_bias(site.output)
        row["low"], row["high"], row["bias"] = lowered.lo + bias, lowered.hi + bias, bias
        row["input_scale"], row["output_scale"] = lowered.input_scale, lowered.output_scale
        row["output_zero"] = lowered.zero_point
        builder.scratch(4 * int(row["channels"][0]))
        builder.native(float_mean_step, row)
        return True
    if isinstance(lowered, FloatScale | FixedPoint):
        # A FloatScale takes the sum over a whole map, a FixedPoint the rounded mean.
        row["divide"] = isinstance(lowered, FixedPoint)
        return _sums(builder, site, lowered, row)
    return _stream_means(builder, site, lowered, row, counts)


def bind_global_average(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    height, width = site.value(0).type.shape[2:] if _is_map(site) else (0, 0)
    if not height or not width:
        return False
    counts = np.array([height * width], np.int64)
    row = _row(builder, site, PoolAttrs(kernel=(height, width)), builder.constant(counts))
    if isinstance(lowered, FloatScale | FixedPoint):
        return _sums(builder, site, lowered, row)
    return _stream_means(builder, site, lowered, row, counts)


def _stream_means(
    builder: Builder, site: Site, lowered: Lowered, row: Array, counts: Array
) -> bool:
    """neural-art: a reciprocal for every position, and the step after it as a table."""
    if isinstance(lowered, GlobalAverage):
        numbers = (np.full(counts.shape, n) for n in (lowered.multiplier, lowered.shift))
        row["low"], row["high"] = INT16_MIN, INT16_MAX
        row["counter"] = builder.counter(site.node.name)
    else:
        assert isinstance(lowered, WindowAverage)
        which = np.searchsorted(np.array(lowered.counts), counts)
        numbers = (np.array(n)[which] for n in (lowered.multipliers, lowered.shifts))
        row["low"], row["high"] = -128, 127
        row["counter"] = builder.counter(f"{site.node.name} (codes)")
    row["multipliers"], row["shifts"] = (builder.constant(n.astype(np.int64)) for n in numbers)
    row["ties"] = TIES[lowered.ties]
    codes = lowered.rescale.apply(np.arange(INT16_MIN, INT16_MAX + 1, dtype=np.int64))
    row["table"] = builder.constant((codes + stored_bias(site.output)).astype(np.uint8))
    builder.scratch(8 * int(row["channels"][0]))
    builder.native(stream_mean_step, row)
    return True


def _sums(builder: Builder, site: Site, lowered: FloatScale | FixedPoint, row: Array) -> bool:
    finish = epilogue(_for_channels(lowered, int(row["channels"][0])), builder, site.output, 1)
    row["epilogue"] = finish
    builder.scratch(4 * CHANNELS)
    builder.native(sum_step, row)
    return True


def _for_channels(lowered: FloatScale | FixedPoint, channels: int) -> FloatScale | FixedPoint:
    """The requantizer with one number a channel where it has one for all."""
    repeats = channels // lowered.multiplier.size
    if isinstance(lowered, FloatScale):
        return dataclasses.replace(lowered, multiplier=np.tile(lowered.multiplier, repeats))
    multiplier, shift = np.tile(lowered.multiplier, repeats), np.tile(lowered.shift, repeats)
    return dataclasses.replace(lowered, multiplier=multiplier, shift=shift)


def _is_map(site: Site) -> bool:
    return len(site.value(0).type.shape) == 4 and site.value(0).type.dtype in ("int8", "uint8")


def _row(builder: Builder, site: Site, window: PoolAttrs, counts: int) -> Array:
    n, channels, height, width = site.value(0).type.shape
    rank = len(site.output.type.shape)
    rows, cols = site.output.type.shape[2:] if rank == 4 else (1, 1)
    _, zero_point = site.qparams(0).scalar() if site.value(0).qparams else (None, 0)
    return record(
        POOL,
        x=builder.input(site.node.inputs[0], channels_last(4)),
        y=builder.output(site.node.outputs[0], channels_last(rank)),
        images=n or 1,
        height=height or 0,
        width=width or 0,
        channels=channels or 0,
        rows=rows or 0,
        cols=cols or 0,
        kernel_y=window.kernel[0],
        kernel_x=window.kernel[1],
        stride_y=window.strides[0],
        stride_x=window.strides[1],
        dilation_y=window.dilations[0],
        dilation_x=window.dilations[1],
        top=window.pads[0],
        left=window.pads[1],
        counts=counts,
        zero_point=zero_point + stored_bias(site.value(0)),
        input_bias=stored_bias(site.value(0)),
        low=0,
        high=255,
        bias=stored_bias(site.output),
        epilogue=0,
        divide=0,
        multipliers=0,
        shifts=0,
        ties=0,
        table=0,
        counter=0,
        input_scale=0,
        output_scale=0,
        output_zero=0,
    )
