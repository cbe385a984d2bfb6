"""Depthwise convolution: every channel with its own filter, one row of output at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.kernels.dot import CHANNELS
from npusim.kernels.epilogue import EPILOGUE, finish
from npusim.kernels.fill import copy, fill
from npusim.kernels.geometry import WEIGHT_FIELDS, WINDOW_FIELDS
from npusim.kernels.jit import CONTEXT, njit_kernel, pointer, step_kernel
from npusim.kernels.lanes import add_pass_lanes, add_piece_lanes
from npusim.kernels.stream import add_pass

DEPTHWISE = np.dtype(
    [
        *WINDOW_FIELDS,
        *WEIGHT_FIELDS,  # segments: WINDOW records
        ("kernel_y", np.int64),
        ("kernel_x", np.int64),
    ]
)

# A part of the kernel whose sum is rounded to an int16 stream by itself: first row and column, and
# the ones after the last.
WINDOW = np.dtype(
    [("top", np.int64), ("left", np.int64), ("bottom", np.int64), ("right", np.int64)]
)


@njit_kernel
def _add_tap(x: Any, w: Any, zero: Any, lanes: Any, sums: Any) -> None:
    """sums[0:lanes] += (x - zero) * w, in int32."""
    for k in range(lanes):
        sums[k] += np.int32(np.int16(x[k]) - zero) * np.int32(w[k])


@njit_kernel
def _sum_pixel(d: Any, part: Any, x: Any, weights: Any, at: Any, channel: Any, sums: Any) -> None:
    """sums[0:16] += the products of the taps of one part. at: (image, top row, left column)."""
    image, top, left = at
    lanes = min(CHANNELS, d.channels - channel)
    zero = np.int16(d.zero_point)
    for ky in range(part.top, part.bottom):
        iy = top + ky * d.dilation_y
        if iy < 0 or iy >= d.height:
            continue
        for kx in range(part.left, part.right):
            ix = left + kx * d.dilation_x
            if ix < 0 or ix >= d.width:
                continue
            first = ((image * d.height + iy) * d.width + ix) * d.channels + channel
            tap = (ky * d.kernel_x + kx) * CHANNELS
            w = weights[tap : tap + CHANNELS]
            if lanes == CHANNELS:
                _add_tap(x[first : first + CHANNELS], w, zero, CHANNELS, sums)
            else:
                _add_tap(x[first : first + lanes], w, zero, lanes, sums)


@njit_kernel
def _sum_row(
    d: Any, x: Any, weights: Any, start: Any, line: Any, channel: Any, sums: Any, work: Any
) -> Any:
    """One output row of 16 channels into int32 sums [cols, 16]; how many int16 saturated.

    work: int32 [2 * cols, 16]. Depthwise kernels are cut into pieces but never into passes.
    """
    parts = carray(pointer(d.segments), d.segment_count, WINDOW)
    image, row = divmod(line, d.rows)
    top = row * d.stride_y - d.top
    if d.stream_shift < 0:
        for col in range(d.cols):
            copy(start, sums[col])
            at = (image, top, col * d.stride_x - d.left)
            _sum_pixel(d, parts[0], x, weights, at, channel, sums[col])
        return np.int64(0)
    exact, rounded = work[: d.cols], work[d.cols :]
    saturated = np.int64(0)
    fill(sums.reshape(-1), np.int32(0))
    for s in range(d.segment_count):
        fill(work.reshape(-1), np.int32(0))
        for col in range(d.cols):
            at = (image, top, col * d.stride_x - d.left)
            _sum_pixel(d, parts[s], x, weights, at, channel, exact[col])
        total, stream = np.int64(sums.ctypes.data), np.int64(rounded.ctypes.data)
        if d.narrow:
            saturated += add_pass_lanes(np.int64(exact.ctypes.data), stream, d.cols, d.stream_shift)
        else:
            saturated += add_pass(exact.reshape(-1), rounded.reshape(-1), d.stream_shift, d.ties)
        saturated += add_piece_lanes(total, stream, d.cols)
    return saturated


@step_kernel
def depthwise_step(row: Any, context_address: Any) -> None:
    """A depthwise convolution with one filter a channel."""
    d = carray(pointer(row), 1, DEPTHWISE)[0]
    e = carray(pointer(d.epilogue), 1, EPILOGUE)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    images = context.batch * d.images
    x = carray(
        pointer(context.arena + d.x * context.batch),
        images * d.height * d.width * d.channels,
        np.uint8,
    )
    y = carray(
        pointer(context.arena + d.y * context.batch),
        (images * d.rows, d.cols, d.channels),
        np.uint8,
    )
    sums = carray(pointer(context.scratch), (d.cols, CHANNELS), np.int32)
    work = carray(
        pointer(context.scratch + 4 * CHANNELS * d.cols), (2 * d.cols, CHANNELS), np.int32
    )
    taps = d.kernel_y * d.kernel_x
    saturated = np.int64(0)
    for channel in range(0, d.channels, CHANNELS):
        lanes = min(CHANNELS, d.channels - channel)
        weights = carray(
            pointer(context.packed + d.weights + 2 * taps * channel), taps * CHANNELS, np.int16
        )
        start = carray(pointer(context.packed + d.start + 4 * channel), CHANNELS, np.int32)
        for line in range(images * d.rows):
            saturated += _sum_row(d, x, weights, start, line, channel, sums, work)
            out = y[line, :, channel : channel + lanes]
            saturated += finish(sums, e, context, channel, out)
    carray(pointer(context.stats + d.counter), 1, np.int64)[0] += saturated


@njit_kernel
def pack_depthwise(codes: Any, zero_points: Any, out: Any) -> None:
    """codes [C, taps] -> int16 [blocks][taps][16], zero-centred; other lanes stay zero."""
    channels, taps = codes.shape
    for c in range(channels):
        block, lane = divmod(c, CHANNELS)
        for t in range(taps):
            at = (block * taps + t) * CHANNELS + lane
            out[at] = np.int16(codes[c, t]) - zero_points[c]
