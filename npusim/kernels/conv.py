"""Convolution and fully connected layers: panels of int16 pixels against packed int16 weights.

A block of output pixels is gathered into a panel [pixels][depth] of zero-centred int16 values
(padding is 0), whatever the strides, dilations and pads; the panel then meets every block of 16
output channels. The order of the depth is free: it is a list of runs of channels, cut into
segments whose sums a profile may round one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.kernels.dot import CHANNELS, PIXELS, dot_tile
from npusim.kernels.epilogue import EPILOGUE, finish
from npusim.kernels.geometry import WEIGHT_FIELDS, WINDOW_FIELDS
from npusim.kernels.jit import CONTEXT, njit_kernel, pointer, step_kernel
from npusim.kernels.lanes import add_pass_lanes, add_piece_lanes
from npusim.kernels.stream import add_pass

CONV = np.dtype(
    [
        *WINDOW_FIELDS,
        *WEIGHT_FIELDS,  # segments: SEGMENT records
        ("out_channels", np.int64),
        ("group", np.int64),
        ("depth", np.int64),  # int16 of a panel row, even
        ("runs", np.int64),  # address of RUN records
        ("run_count", np.int64),
        ("block", np.int64),  # pixels of a panel, a multiple of PIXELS
    ]
)

# Channels of one tap, or of neighbouring taps of a row, that lie together: where they are read and
# where in the panel row they go.
RUN = np.dtype(
    [
        ("ky", np.int64),
        ("kx", np.int64),  # of the first tap
        ("taps", np.int64),  # more than 1 only where dilation_x is 1 and count is all channels
        ("channel", np.int64),  # the first one, within the group
        ("count", np.int64),  # channels of each tap
        ("at", np.int64),
    ]
)

# A part of the depth whose sum is rounded to an int16 stream by itself.
SEGMENT = np.dtype([("first", np.int64), ("pairs", np.int64), ("piece", np.int64)])


@njit_kernel
def _gather(c: Any, group: Any, x: Any, first: Any, count: Any, panel: Any) -> None:
    """Fill panel[0:count] with the inputs of output pixels first .. first + count - 1."""
    runs = carray(pointer(c.runs), c.run_count, RUN)
    pixels = c.rows * c.cols
    group_channels = c.channels // c.group
    zero = np.int16(c.zero_point)
    for p in range(count):
        image, at = divmod(first + p, pixels)
        top, left = at // c.cols * c.stride_y - c.top, at % c.cols * c.stride_x - c.left
        for r in range(c.run_count):
            run = runs[r]
            to = panel[p, run.at : run.at + run.taps * run.count]
            iy, ix = top + run.ky * c.dilation_y, left + run.kx * c.dilation_x
            # Taps begin .. end - 1 lie inside the image.
            begin, end = min(max(-ix, 0), run.taps), max(min(c.width - ix, run.taps), 0)
            if iy < 0 or iy >= c.height:
                end = 0
            if begin >= end:
                to[:] = 0
                continue
            start = ((image * c.height + iy) * c.width + ix + begin) * c.channels
            start += group * group_channels + run.channel
            inside = (end - begin) * run.count
            to[: begin * run.count] = 0
            _copy_centred(x[start : start + inside], zero, to[begin * run.count :])
            to[end * run.count :] = 0


@njit_kernel
def _copy_centred(source: Any, zero: Any, to: Any) -> None:
    """to[i] = source[i] - zero for every element of source."""
    for k in range(len(source)):
        to[k] = np.int16(source[k]) - zero


@njit_kernel
def _sum_segment(c: Any, context: Any, block: Any, count: Any, segment: Any, sums: Any) -> None:
    """Sums of one segment of the depth for one block of 16 channels: int32 [count, 16]."""
    channel = block * CHANNELS
    weights = context.packed + c.weights + 2 * c.depth * channel + 4 * CHANNELS * segment.first
    start = context.packed + c.start + 4 * channel
    panel = context.scratch + 4 * segment.first
    for p in range(0, count, PIXELS):
        dot_tile(
            panel + p * 2 * c.depth,
            2 * c.depth,
            segment.pairs,
            weights,
            start,
            sums + 4 * CHANNELS * p,
        )


@njit_kernel
def _stream_block(c: Any, context: Any, block: Any, count: Any, work: Any) -> Any:
    """The int16 stream of one block of channels, where the segments' sums lie: how many saturated.

    work: address of int32 [3][c.block, 16]: sums, the running piece, the total.
    """
    size = c.block * CHANNELS
    sums, piece, total = carray(pointer(work), (3, size), np.int32)
    segments = carray(pointer(c.segments), c.segment_count, SEGMENT)
    saturated = np.int64(0)
    total[: count * CHANNELS] = 0
    for s in range(c.segment_count):
        if s == 0 or segments[s].piece != segments[s - 1].piece:
            piece[: count * CHANNELS] = 0
        _sum_segment(c, context, block, count, segments[s], work)
        if c.narrow:
            saturated += add_pass_lanes(work, work + 4 * size, count, c.stream_shift)
        else:
            saturated += add_pass(sums[: count * CHANNELS], piece, c.stream_shift, c.ties)
        if s + 1 == c.segment_count or segments[s].piece != segments[s + 1].piece:
            saturated += add_piece_lanes(work + 8 * size, work + 4 * size, count)
    sums[: count * CHANNELS] = total[: count * CHANNELS]
    return saturated


@njit_kernel
def _multiply_block(c: Any, e: Any, context: Any, group: Any, first: Any, count: Any) -> Any:
    """All output channels of a group for one gathered block of pixels; how many saturated."""
    group_out = c.out_channels // c.group
    blocks = (group_out + CHANNELS - 1) // CHANNELS
    work = context.scratch + 2 * c.block * c.depth
    sums = carray(pointer(work), (c.block, CHANNELS), np.int32)
    whole = carray(pointer(c.segments), c.segment_count, SEGMENT)[0]
    y = carray(
        pointer(context.arena + c.y * context.batch),
        (context.batch * c.images * c.rows * c.cols, c.out_channels),
        np.uint8,
    )
    saturated = np.int64(0)
    for b in range(blocks):
        if c.stream_shift >= 0:
            saturated += _stream_block(c, context, group * blocks + b, count, work)
        else:
            _sum_segment(c, context, group * blocks + b, count, whole, work)
        lanes = min(CHANNELS, group_out - b * CHANNELS)
        to = group * group_out + b * CHANNELS
        out = y[first : first + count, to : to + lanes]
        saturated += finish(sums, e, context, (group * blocks + b) * CHANNELS, out)
    return saturated


@step_kernel
def conv_step(row: Any, context_address: Any) -> None:
    """A convolution of any stride, dilation, padding and group, or a fully connected layer."""
    c = carray(pointer(row), 1, CONV)[0]
    e = carray(pointer(c.epilogue), 1, EPILOGUE)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    images = context.batch * c.images
    total = images * c.rows * c.cols
    x = carray(
        pointer(context.arena + c.x * context.batch),
        images * c.height * c.width * c.channels,
        np.uint8,
    )
    panel = carray(pointer(context.scratch), (c.block, c.depth), np.int16)
    saturated = np.int64(0)
    for first in range(0, total, c.block):
        count = min(c.block, total - first)
        for group in range(c.group):
            _gather(c, group, x, first, count, panel)
            saturated += _multiply_block(c, e, context, group, first, count)
    carray(pointer(context.stats + c.counter), 1, np.int64)[0] += saturated


@njit_kernel
def pack_weights(
    codes: Any, zero_points: Any, order: Any, group: Any, depth: Any, out: Any
) -> None:
    """codes [O, P] -> int16 [blocks][depth / 2][16][2], zero-centred.

    order: int64 [P], where in the depth each p goes. zero_points: int64 [O]. out: int16, as large
    as blocks * depth * 16 and zero wherever no weight goes.
    """
    outputs, inputs = codes.shape
    group_out = outputs // group
    blocks = (group_out + CHANNELS - 1) // CHANNELS
    for o in range(outputs):
        g, within = divmod(o, group_out)
        block, lane = divmod(within, CHANNELS)
        base = (g * blocks + block) * depth * CHANNELS + 2 * lane
        zero = zero_points[o]
        for p in range(inputs):
            k = order[p]
            out[base + (k >> 1) * (2 * CHANNELS) + (k & 1)] = np.int16(codes[o, p]) - zero
