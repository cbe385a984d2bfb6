"""Depthwise convolution: every channel with its own filter, one row of output at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.kernels.dot import CHANNELS
from npusim.kernels.epilogue import EPILOGUE, finish
from npusim.kernels.jit import CONTEXT, njit_kernel, pointer, step_kernel

DEPTHWISE = np.dtype(
    [
        ("x", np.int64),  # offset of the input in the arena, bytes an image
        ("y", np.int64),  # offset of the output
        ("weights", np.int64),  # offset of the packed weights
        ("start", np.int64),  # offset of the biases, int32
        ("images", np.int64),  # images for one of the batch
        ("zero_point", np.int64),  # of the stored (u8-biased) input
        ("height", np.int64),
        ("width", np.int64),
        ("channels", np.int64),
        ("rows", np.int64),  # of the output
        ("cols", np.int64),
        ("kernel_y", np.int64),
        ("kernel_x", np.int64),
        ("stride_y", np.int64),
        ("stride_x", np.int64),
        ("dilation_y", np.int64),
        ("dilation_x", np.int64),
        ("top", np.int64),
        ("left", np.int64),
        ("epilogue", np.int64),  # address of the EPILOGUE record
    ]
)


@njit_kernel
def _add_tap(x: Any, w: Any, zero: Any, lanes: Any, sums: Any) -> None:
    """sums[0:lanes] += (x - zero) * w, in int32."""
    for k in range(lanes):
        sums[k] += np.int32(np.int16(x[k]) - zero) * np.int32(w[k])


@njit_kernel
def _sum_row(
    d: Any, x: Any, weights: Any, start: Any, image: Any, row: Any, channel: Any, sums: Any
) -> None:
    """Exact sums of one output row for 16 channels: int32 [cols, 16]."""
    lanes = min(CHANNELS, d.channels - channel)
    zero = np.int16(d.zero_point)
    for col in range(d.cols):
        total = sums[col]
        total[:] = start
        for ky in range(d.kernel_y):
            iy = row * d.stride_y - d.top + ky * d.dilation_y
            if iy < 0 or iy >= d.height:
                continue
            for kx in range(d.kernel_x):
                ix = col * d.stride_x - d.left + kx * d.dilation_x
                if ix < 0 or ix >= d.width:
                    continue
                at = ((image * d.height + iy) * d.width + ix) * d.channels + channel
                tap = (ky * d.kernel_x + kx) * CHANNELS
                w = weights[tap : tap + CHANNELS]
                if lanes == CHANNELS:
                    _add_tap(x[at : at + CHANNELS], w, zero, CHANNELS, total)
                else:
                    _add_tap(x[at : at + lanes], w, zero, lanes, total)


@step_kernel
def depthwise_step(row: Any, context_address: Any) -> None:
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
    taps = d.kernel_y * d.kernel_x
    for channel in range(0, d.channels, CHANNELS):
        lanes = min(CHANNELS, d.channels - channel)
        weights = carray(
            pointer(context.packed + d.weights + 2 * taps * channel), taps * CHANNELS, np.int16
        )
        start = carray(pointer(context.packed + d.start + 4 * channel), CHANNELS, np.int32)
        for line in range(images * d.rows):
            _sum_row(d, x, weights, start, line // d.rows, line % d.rows, channel, sums)
            finish(sums, e, channel, y[line, :, channel : channel + lanes])


@njit_kernel
def pack_depthwise(codes: Any, zero_points: Any, out: Any) -> None:
    """codes [C, taps] -> int16 [blocks][taps][16], zero-centred; other lanes stay zero."""
    channels, taps = codes.shape
    for c in range(channels):
        block, lane = divmod(c, CHANNELS)
        for t in range(taps):
            at = (block * taps + t) * CHANNELS + lane
            out[at] = np.int16(codes[c, t]) - zero_points[c]
