"""Convolution and fully connected layers: int16 maps against packed int16 weights.

A band of the input (some rows, or several whole images) is widened to zero-centred int16 with its
padding, once. Every output pixel is then an address in that map, and every tap, or row of
neighbouring taps, a *run* of channels at a fixed distance from it, whatever the strides, dilations,
pads and groups. The runs are cut into segments whose sums a profile may round one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.kernels.dot import CHANNELS, PIXELS, dot_tile
from npusim.kernels.epilogue import EPILOGUE, finish
from npusim.kernels.fill import copy, fill
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
        ("depth", np.int64),  # int16 of an output channel's packed weights
        ("runs", np.int64),  # address of int64 [runs, 2]: byte distance, pairs (see dot_tile)
        ("reach", np.int64),  # rows of input that a window spans
        ("map_width", np.int64),  # pixels of a widened row
        ("band_images", np.int64),  # images widened together; 1 where band_rows is not all rows
        ("band_rows", np.int64),  # rows of output in a band
        ("offsets", np.int64),  # offset in the scratch of the pixels' addresses
        ("work", np.int64),  # offset in the scratch of int32 [3][block, 16]
        ("block", np.int64),  # pixels that are finished together, a multiple of PIXELS
    ]
)

# A part of the depth whose sum is rounded to an int16 stream by itself: its first run, how many
# runs, its first pair of weights, and the piece of the kernel that it belongs to.
SEGMENT = np.dtype([("run", np.int64), ("runs", np.int64), ("pair", np.int64), ("piece", np.int64)])


@njit_kernel
def _widen(source: Any, zero: Any, to: Any) -> None:
    """to[i] = source[i] - zero for every element of source."""
    for k in range(len(source)):
        to[k] = np.int16(source[k]) - zero


@njit_kernel
def _widen_band(c: Any, x: Any, image: Any, images: Any, row: Any, rows: Any, to: Any) -> Any:
    """Widen what output rows row .. row + rows - 1 of some images read; lines of one image."""
    lines = (rows - 1) * c.stride_y + c.reach
    zero = np.int16(c.zero_point)
    line_size, left = c.map_width * c.channels, min(c.left, c.map_width)
    inside = min(c.width, c.map_width - left) * c.channels
    for i in range(images):
        for n in range(lines):
            iy = row * c.stride_y - c.top + n
            line = to[(i * lines + n) * line_size :][:line_size]
            if iy < 0 or iy >= c.height:
                fill(line, np.int16(0))
                continue
            start = ((image + i) * c.height + iy) * c.width * c.channels
            fill(line[: left * c.channels], np.int16(0))
            _widen(x[start : start + inside], zero, line[left * c.channels :])
            fill(line[left * c.channels + inside :], np.int16(0))
    return lines


@njit_kernel
def _address_pixels(c: Any, images: Any, rows: Any, lines: Any, to: Any) -> Any:
    """Byte distances of a band's output pixels from the start of the map; how many there are."""
    pixel = 2 * c.channels
    count = 0
    for i in range(images):
        for r in range(rows):
            first = (i * lines + r * c.stride_y) * c.map_width * pixel
            for col in range(c.cols):
                to[count] = first + col * c.stride_x * pixel
                count += 1
    # The last tile works on whole PIXELS; what it computes beyond the last pixel is not used.
    fill(to[count : count + PIXELS], to[count - 1])
    return count


@njit_kernel
def _sum_segment(
    c: Any, context: Any, group: Any, block: Any, first: Any, count: Any, segment: Any, sums: Any
) -> None:
    """int32 [count, 16]: sums of one segment for 16 channels and pixels from ``first`` on."""
    channel = block * CHANNELS
    weights = context.packed + c.weights + 2 * c.depth * channel + 4 * CHANNELS * segment.pair
    start = context.packed + c.start + 4 * channel
    origin = context.scratch + 2 * group * (c.channels // c.group)
    offsets = context.scratch + c.offsets + 8 * first
    runs = c.runs + 16 * segment.run
    for p in range(0, count, PIXELS):
        to = sums + 4 * CHANNELS * p
        dot_tile(origin, offsets + 8 * p, runs, segment.runs, weights, start, to)


@njit_kernel
def _stream_block(
    c: Any, context: Any, group: Any, block: Any, first: Any, count: Any, work: Any
) -> Any:
    """The int16 stream of 16 channels, where the segments' sums lie; how many saturated.

    work: address of int32 [3][c.block, 16]: sums, the running piece, the total.
    """
    size = c.block * CHANNELS
    sums, piece, total = carray(pointer(work), (3, size), np.int32)
    segments = carray(pointer(c.segments), c.segment_count, SEGMENT)
    saturated = np.int64(0)
    fill(total[: count * CHANNELS], np.int32(0))
    for s in range(c.segment_count):
        if s == 0 or segments[s].piece != segments[s - 1].piece:
            fill(piece[: count * CHANNELS], np.int32(0))
        _sum_segment(c, context, group, block, first, count, segments[s], work)
        if c.narrow:
            saturated += add_pass_lanes(work, work + 4 * size, count, c.stream_shift)
        else:
            saturated += add_pass(sums[: count * CHANNELS], piece, c.stream_shift, c.ties)
        if s + 1 == c.segment_count or segments[s].piece != segments[s + 1].piece:
            saturated += add_piece_lanes(work + 8 * size, work + 4 * size, count)
    copy(total[: count * CHANNELS], sums)
    return saturated


@njit_kernel
def _multiply_band(c: Any, e: Any, context: Any, group: Any, count: Any, y: Any) -> Any:
    """All output channels of a group for a widened band, into y [count, channels]; saturated."""
    group_out = c.out_channels // c.group
    blocks = (group_out + CHANNELS - 1) // CHANNELS
    work = context.scratch + c.work
    sums = carray(pointer(work), (c.block, CHANNELS), np.int32)
    whole = carray(pointer(c.segments), c.segment_count, SEGMENT)[0]
    saturated = np.int64(0)
    for b in range(group * blocks, (group + 1) * blocks):
        lanes = min(CHANNELS, group_out - (b - group * blocks) * CHANNELS)
        to = group * group_out + (b - group * blocks) * CHANNELS
        for first in range(0, count, c.block):
            size = min(c.block, count - first)
            if c.stream_shift >= 0:
                saturated += _stream_block(c, context, group, b, first, size, work)
            else:
                _sum_segment(c, context, group, b, first, size, whole, work)
            out = y[first : first + size, to : to + lanes]
            saturated += finish(sums, e, context, b * CHANNELS, out)
    return saturated


@step_kernel
def conv_step(row: Any, context_address: Any) -> None:
    """A convolution of any stride, dilation, padding and group, or a fully connected layer."""
    c = carray(pointer(row), 1, CONV)[0]
    e = carray(pointer(c.epilogue), 1, EPILOGUE)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    images = context.batch * c.images
    x = carray(
        pointer(context.arena + c.x * context.batch),
        images * c.height * c.width * c.channels,
        np.uint8,
    )
    y = carray(
        pointer(context.arena + c.y * context.batch),
        (images * c.rows * c.cols, c.out_channels),
        np.uint8,
    )
    band_map = carray(pointer(context.scratch), c.offsets // 2, np.int16)
    offsets = carray(pointer(context.scratch + c.offsets), (c.work - c.offsets) // 8, np.int64)
    saturated = np.int64(0)
    for image in range(0, images, c.band_images):
        together = min(c.band_images, images - image)
        for first_row in range(0, c.rows, c.band_rows):
            rows = min(c.band_rows, c.rows - first_row)
            lines = _widen_band(c, x, image, together, first_row, rows, band_map)
            count = _address_pixels(c, together, rows, lines, offsets)
            first = (image * c.rows + first_row) * c.cols
            for group in range(c.group):
                out = y[first : first + count]
                saturated += _multiply_band(c, e, context, group, count, out)
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
