"""Max and average pooling over channels-last maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.kernels.dot import CHANNELS
from npusim.kernels.epilogue import EPILOGUE, finish
from npusim.kernels.fill import fill
from npusim.kernels.geometry import WINDOW_FIELDS
from npusim.kernels.jit import CONTEXT, njit_kernel, pointer, step_kernel
from npusim.kernels.stream import shift_right

POOL = np.dtype(
    [
        *WINDOW_FIELDS,
        ("kernel_y", np.int64),
        ("kernel_x", np.int64),
        ("counts", np.int64),  # address of int64 [rows, cols]: elements a mean is over
        ("low", np.int64),  # smallest stored output
        ("high", np.int64),  # largest stored output
        ("bias", np.int64),  # added to an output code before it is stored
        ("input_bias", np.int64),  # 128 where the input is int8
        ("divide", np.int64),  # 1: divide each sum by its count, half away from zero, first
        ("multipliers", np.int64),  # address of int64 [rows, cols]: reciprocal of each count
        ("shifts", np.int64),  # address of int64 [rows, cols]: shift of each product
        ("ties", np.int64),  # rounding of that shift
        ("table", np.int64),  # address of uint8 [65536]: stored output of each int16 mean
        ("input_scale", np.float64),
        ("output_scale", np.float64),
        ("output_zero", np.float64),
    ]
)


@njit_kernel
def _window(p: Any, x: Any, image: Any, row: Any, col: Any, tap: Any) -> Any:
    """Index of the first channel of one tap; -1 in the padding."""
    iy = row * p.stride_y - p.top + (tap // p.kernel_x) * p.dilation_y
    ix = col * p.stride_x - p.left + (tap % p.kernel_x) * p.dilation_x
    if iy < 0 or iy >= p.height or ix < 0 or ix >= p.width:
        return -1
    return ((image * p.height + iy) * p.width + ix) * p.channels


@njit_kernel
def _arrays(p: Any, context: Any) -> Any:
    images = context.batch * p.images
    x = carray(
        pointer(context.arena + p.x * context.batch),
        images * p.height * p.width * p.channels,
        np.uint8,
    )
    y = carray(
        pointer(context.arena + p.y * context.batch),
        (images * p.rows * p.cols, p.channels),
        np.uint8,
    )
    return x, y


@step_kernel
def max_step(row_address: Any, context_address: Any) -> None:
    """The largest stored code of each window; a window all in padding gives the lowest."""
    p = carray(pointer(row_address), 1, POOL)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    x, y = _arrays(p, context)
    low, high = np.uint8(p.low), np.uint8(p.high)
    for i in range(len(y)):
        out = y[i]
        fill(out, low)
        image, at = divmod(i, p.rows * p.cols)
        for tap in range(p.kernel_y * p.kernel_x):
            start = _window(p, x, image, at // p.cols, at % p.cols, tap)
            if start >= 0:
                source = x[start : start + p.channels]
                for k in range(p.channels):
                    out[k] = max(out[k], source[k])
        for k in range(p.channels):
            out[k] = min(out[k], high)


@step_kernel
def float_mean_step(row_address: Any, context_address: Any) -> None:
    """onnxruntime's average: float32 sums in window order, rounded after the zero point."""
    p = carray(pointer(row_address), 1, POOL)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    x, y = _arrays(p, context)
    counts = carray(pointer(p.counts), p.rows * p.cols, np.int64)
    input_scale, output_scale = np.float32(p.input_scale), np.float32(p.output_scale)
    output_zero = np.float32(p.output_zero)
    low, high = np.float32(p.low - p.bias), np.float32(p.high - p.bias)
    totals = carray(pointer(context.scratch), p.channels, np.float32)
    for i in range(len(y)):
        fill(totals, np.float32(0))
        image, at = divmod(i, p.rows * p.cols)
        for tap in range(p.kernel_y * p.kernel_x):
            start = _window(p, x, image, at // p.cols, at % p.cols, tap)
            if start >= 0:
                for k in range(p.channels):
                    code = np.float32(np.int64(x[start + k]) - p.zero_point)
                    totals[k] = totals[k] + code * input_scale
        count = np.float32(counts[at])
        for k in range(p.channels):
            code = np.rint(totals[k] / count / output_scale + output_zero)
            y[i, k] = np.uint8(np.int64(min(max(code, low), high)) + p.bias)


@step_kernel
def sum_step(row_address: Any, context_address: Any) -> None:
    """Integer means: exact sums of zero-centred codes (or their rounded mean) into an epilogue."""
    p = carray(pointer(row_address), 1, POOL)[0]
    e = carray(pointer(p.epilogue), 1, EPILOGUE)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    x, y = _arrays(p, context)
    counts = carray(pointer(p.counts), p.rows * p.cols, np.int64)
    sums = carray(pointer(context.scratch), (1, CHANNELS), np.int32)
    for i in range(len(y)):
        image, at = divmod(i, p.rows * p.cols)
        for channel in range(0, p.channels, CHANNELS):
            lanes = min(CHANNELS, p.channels - channel)
            fill(sums[0], np.int32(0))
            for tap in range(p.kernel_y * p.kernel_x):
                start = _window(p, x, image, at // p.cols, at % p.cols, tap)
                if start >= 0:
                    for k in range(lanes):
                        sums[0, k] += np.int32(x[start + channel + k])
            for k in range(lanes):
                sums[0, k] = _centred(np.int64(sums[0, k]), counts[at], p)
            finish(sums, e, context, channel, y[i : i + 1, channel : channel + lanes])


@step_kernel
def stream_mean_step(row_address: Any, context_address: Any) -> None:
    """neural-art: the sum times a reciprocal becomes an int16 stream, and a table its output code.

    Sums are over signed codes with their zero point left in; padding that counts is a zero point.
    """
    p = carray(pointer(row_address), 1, POOL)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    x, y = _arrays(p, context)
    positions = p.rows * p.cols
    counts = carray(pointer(p.counts), positions, np.int64)
    multipliers = carray(pointer(p.multipliers), positions, np.int64)
    shifts = carray(pointer(p.shifts), positions, np.int64)
    table = carray(pointer(p.table), 65536, np.uint8)
    sums = carray(pointer(context.scratch), p.channels, np.int64)
    saturated = np.int64(0)
    for i in range(len(y)):
        image, at = divmod(i, positions)
        fill(sums, counts[at] * (p.zero_point - 128))
        for tap in range(p.kernel_y * p.kernel_x):
            start = _window(p, x, image, at // p.cols, at % p.cols, tap)
            if start >= 0:
                for k in range(p.channels):
                    sums[k] += np.int64(x[start + k]) - p.zero_point
        for k in range(p.channels):
            mean = shift_right(sums[k] * multipliers[at], shifts[at], p.ties)
            clipped = min(max(mean, p.low), p.high)
            saturated += np.int64(clipped != mean)
            y[i, k] = table[clipped + 32768]
    carray(pointer(context.stats + p.counter), 1, np.int64)[0] += saturated


@njit_kernel
def _centred(total: Any, count: Any, p: Any) -> Any:
    """Sum minus its zero points; or the mean code, half away from zero, minus one zero point."""
    if p.divide == 0:
        return total - count * p.zero_point
    code_total = total - count * p.input_bias
    magnitude = (abs(code_total) + count // 2) // count
    mean = magnitude if code_total >= 0 else -magnitude
    return mean - (p.zero_point - p.input_bias)
