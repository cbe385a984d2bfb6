"""From exact int32 sums to output codes, on tiles of [pixels][16 channels].

Every rule here has its int64 reference in npusim.numerics. Codes are stored u8-biased: an int8
code plus 128, a uint8 code as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from npusim.kernels.dot import CHANNELS
from npusim.kernels.jit import njit_kernel, pointer
from npusim.kernels.lanes import one_step_lanes, two_step_lanes
from npusim.kernels.stream import HALF_AWAY, HALF_UP, INT16_MAX, INT16_MIN, shift_right

EPILOGUE = np.dtype(
    [
        ("rule", np.int64),  # FLOAT_SCALE, ...
        ("zero_point", np.int64),
        ("low", np.int64),
        ("high", np.int64),
        ("bias", np.int64),  # added to a code before it is stored: 128 for int8, 0 for uint8
        ("multiplier", np.int64),  # address of [channels]: float32, int32 or (steps) int64
        ("shift", np.int64),  # address of int32 [channels]
        ("constant", np.int64),  # offset of int64 [channels] in the packed buffer (steps)
        ("ties", np.int64),  # rounding of the steps
        ("first_shift", np.int64),
        ("second_multiplier", np.int64),
        ("second_shift", np.int64),
    ]
)

_INT32_MIN, _INT32_MAX = np.int64(-(2**31)), np.int64(2**31 - 1)

FLOAT_SCALE, FIXED_DOUBLE, FIXED_SINGLE, FIXED_AWAY, TWO_STEP, ONE_STEP = range(6)


@intrinsic
def _round_half_even(typing: Any, value: Any) -> Any:
    """float32 to the nearest whole float32, ties to even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FloatType()
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), "llvm.rint.f32"
        )
        return builder.call(function, args)

    return types.float32(types.float32), codegen


@njit_kernel
def _float_scale(sums: Any, multiplier: Any, low: Any, high: Any, shifted: Any, out: Any) -> None:
    """onnxruntime: clip(rint(float32(sum) * multiplier) + zero_point)."""
    for c in range(len(out)):
        scaled = _round_half_even(np.float32(sums[c]) * multiplier[c])
        scaled = low if scaled < low else scaled
        scaled = high if scaled > high else scaled
        out[c] = np.uint8(np.int32(scaled) + shifted)


@njit_kernel
def _high_half(a: Any, b: Any) -> Any:
    """The saturating rounding doubling high multiply of two int32, as int64."""
    product = np.int64(a) * np.int64(b)
    nudge = np.int64(1 << 30) if product >= 0 else np.int64(1 - (1 << 30))
    total = product + nudge
    # C's division truncates toward zero; an arithmetic shift would floor.
    return (total + ((total >> 63) & np.int64((1 << 31) - 1))) >> 31


@njit_kernel
def _fixed_double(sums: Any, multiplier: Any, shift: Any, e: Any, out: Any) -> None:
    """TFLite with two roundings: high half of the doubled product, then a rounded shift."""
    for c in range(len(out)):
        left, right = max(shift[c], 0), max(-shift[c], 0)
        shifted = min(max(np.int64(sums[c]) << left, _INT32_MIN), _INT32_MAX)
        code = shift_right(_high_half(shifted, multiplier[c]), right, HALF_AWAY) + e.zero_point
        out[c] = np.uint8(min(max(code, e.low), e.high) + e.bias)


@njit_kernel
def _fixed_once(sums: Any, multiplier: Any, shift: Any, e: Any, ties: Any, out: Any) -> None:
    """TFLite with one rounding of the whole product."""
    for c in range(len(out)):
        product = np.int64(sums[c]) * np.int64(multiplier[c])
        code = shift_right(product, 31 - shift[c], ties) + e.zero_point
        out[c] = np.uint8(min(max(code, e.low), e.high) + e.bias)


@njit_kernel
def _two_step(stream: Any, multiplier: Any, constant: Any, e: Any, out: Any) -> Any:
    """int16 to int16 by channel, then to a code with the constant; how many saturated between."""
    saturated = np.int64(0)
    for c in range(len(out)):
        rounded = shift_right(multiplier[c] * np.int64(stream[c]), e.first_shift, e.ties)
        middle = min(max(rounded, INT16_MIN), INT16_MAX)
        saturated += np.int64(middle != rounded)
        total = e.second_multiplier * middle + constant[c]
        code = shift_right(total, e.second_shift, e.ties)
        out[c] = np.uint8(min(max(code, e.low), e.high) + e.bias)
    return saturated


@njit_kernel
def _one_step(stream: Any, multiplier: Any, constant: Any, e: Any, out: Any) -> None:
    """int16 to a code by channel with the constant."""
    for c in range(len(out)):
        total = multiplier[c] * np.int64(stream[c]) + constant[c]
        code = shift_right(total, e.first_shift, e.ties)
        out[c] = np.uint8(min(max(code, e.low), e.high) + e.bias)


@njit_kernel
def _narrow(multiplier: Any, constant: Any, e: Any) -> Any:
    """True where no sum of the steps of these channels can exceed 32 bits."""
    if e.ties != HALF_AWAY or max(e.first_shift, e.second_shift) > 30:
        return False
    largest, offset = np.int64(0), np.int64(0)
    for c in range(CHANNELS):
        largest, offset = max(largest, abs(multiplier[c])), max(offset, abs(constant[c]))
    first = (largest << 15) + (np.int64(1) << e.first_shift)
    last = (abs(e.second_multiplier) << 15) + (np.int64(1) << e.second_shift)
    if e.rule == ONE_STEP:
        return first + offset < _INT32_MAX
    return max(first, last + offset) < _INT32_MAX


@njit_kernel
def _finish_steps(sums: Any, e: Any, context: Any, channel: Any, out: Any) -> Any:
    a, c = e.multiplier + 8 * channel, context.packed + e.constant + 8 * channel
    multiplier, constant = (
        carray(pointer(a), CHANNELS, np.int64),
        carray(pointer(c), CHANNELS, np.int64),
    )
    saturated = np.int64(0)
    if _narrow(multiplier, constant, e):
        stream, to = np.int64(sums.ctypes.data), np.int64(out.ctypes.data)
        rows, lanes = out.shape
        pitch = np.int64(out.strides[0])
        if e.rule == ONE_STEP:
            return one_step_lanes(
                stream, rows, a, c, e.first_shift, e.low, e.high, e.bias, to, pitch, lanes
            )
        return two_step_lanes(
            stream,
            rows,
            a,
            c,
            e.first_shift,
            e.second_multiplier,
            e.second_shift,
            e.low,
            e.high,
            e.bias,
            to,
            pitch,
            lanes,
        )
    for p in range(len(out)):
        if e.rule == TWO_STEP:
            saturated += _two_step(sums[p], multiplier, constant, e, out[p])
        else:
            _one_step(sums[p], multiplier, constant, e, out[p])
    return saturated


@njit_kernel
def _finish_fixed(sums: Any, e: Any, channel: Any, out: Any) -> None:
    multiplier = carray(pointer(e.multiplier + 4 * channel), CHANNELS, np.int32)
    shift = carray(pointer(e.shift + 4 * channel), CHANNELS, np.int32)
    for p in range(len(out)):
        if e.rule == FIXED_DOUBLE:
            _fixed_double(sums[p], multiplier, shift, e, out[p])
        elif e.rule == FIXED_SINGLE:
            _fixed_once(sums[p], multiplier, shift, e, HALF_UP, out[p])
        else:
            _fixed_once(sums[p], multiplier, shift, e, HALF_AWAY, out[p])


@njit_kernel
def finish(sums: Any, e: Any, context: Any, channel: Any, out: Any) -> Any:
    """Stored codes of a block of pixels; returns how many int16 values saturated on the way.

    sums: int32 [pixels, 16], of the (padded) channels from ``channel`` on. out: uint8
    [pixels, lanes], lanes <= 16. Loops over lanes have a length that is not known when compiled:
    LLVM would unroll sixteen steps and then vectorize none of them.
    """
    if e.rule == FLOAT_SCALE:
        scales = carray(pointer(e.multiplier + 4 * channel), CHANNELS, np.float32)
        low, high = np.float32(e.low - e.zero_point), np.float32(e.high - e.zero_point)
        shifted = np.int32(e.zero_point + e.bias)
        for p in range(len(out)):
            _float_scale(sums[p], scales, low, high, shifted, out[p])
        return np.int64(0)
    if e.rule < TWO_STEP:
        _finish_fixed(sums, e, channel, out)
        return np.int64(0)
    return _finish_steps(sums, e, context, channel, out)
