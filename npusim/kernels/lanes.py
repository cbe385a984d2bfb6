"""int16 streams and affine steps on sixteen channels at a time, in 32-bit vector registers.

Numba widens every int32 sum and product to int64, which no vector unit below AVX512 shifts or
multiplies well. These intrinsics compute what npusim.kernels.stream and the steps of
npusim.kernels.epilogue compute, ties away from zero only, where nothing exceeds 32 bits; the
callers check that it does not.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.types import int64

from npusim.kernels.dot import CHANNELS

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
LANES = ir.VectorType(I32, CHANNELS)


class _Vectors:
    """Short names for building vector code."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def constant(self, value: int) -> Any:
        return ir.Constant(LANES, [value] * CHANNELS)

    def splat(self, word: Any) -> Any:
        """An int64 as sixteen int32."""
        narrow = self.b.trunc(word, I32)
        undefined = ir.Constant(LANES, ir.Undefined)
        first = self.b.insert_element(undefined, narrow, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, self.constant(0))

    def load(self, address: Any, kind: Any = LANES) -> Any:
        loaded = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def load_wide(self, address: Any) -> Any:
        """Sixteen int64 as int32."""
        return self.b.trunc(self.load(address, ir.VectorType(I64, CHANNELS)), LANES)

    def store(self, value: Any, address: Any) -> None:
        stored = self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()))
        stored.align = 1

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        value = self.b.select(self.b.icmp_signed("<", value, low), low, value)
        return self.b.select(self.b.icmp_signed(">", value, high), high, value)

    def rounding(self, shift: Any) -> tuple[Any, Any, Any]:
        """What ``shift_right`` needs of a shift: itself, half of 2**shift, and a mask."""
        one = ir.Constant(I64, 1)
        half = self.b.lshr(self.b.shl(one, shift), one)
        nonzero = self.b.icmp_signed("!=", shift, ir.Constant(I64, 0))
        mask = self.b.sext(nonzero, I64)
        return self.splat(shift), self.splat(half), self.splat(mask)

    def shift_right(self, value: Any, rounding: tuple[Any, Any, Any]) -> Any:
        """Rounded right shift, ties away from zero."""
        shift, half, mask = rounding
        sign = self.b.and_(self.b.ashr(value, self.constant(31)), mask)
        return self.b.ashr(self.b.add(self.b.add(value, half), sign), shift)

    def saturate16(self, value: Any, count: Any) -> Any:
        """Clamp to int16; adds the lanes that changed to the vector behind ``count``."""
        clipped = self.clamp(value, self.constant(-(2**15)), self.constant(2**15 - 1))
        changed = self.b.zext(self.b.icmp_signed("!=", clipped, value), LANES)
        self.b.store(self.b.add(self.b.load(count), changed), count)
        return clipped

    def total(self, count: Any) -> Any:
        """Sum of the lanes behind ``count`` as int64."""
        kind = ir.FunctionType(I32, [LANES])
        add = cgutils.get_or_insert_function(
            self.b.module, kind, f"llvm.vector.reduce.add.v{CHANNELS}i32"
        )
        return self.b.zext(self.b.call(add, [self.b.load(count)]), I64)

    def at(self, address: Any, index: Any, pitch: Any) -> Any:
        """address + index * pitch."""
        step = pitch if not isinstance(pitch, int) else ir.Constant(I64, pitch)
        return self.b.add(address, self.b.mul(index, step))


@intrinsic
def add_pass_lanes(typing: Any, sums: Any, piece: Any, rows: Any, shift: Any) -> Any:
    """stream.add_pass on int32 [rows][16] at two addresses; returns how many saturated."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, piece, rows, shift = args
        v = _Vectors(builder)
        count = cgutils.alloca_once_value(builder, v.constant(0))
        builder.store(v.constant(0), count)
        rounding = v.rounding(shift)
        with cgutils.for_range(builder, rows, intp=I64) as loop:
            source, target = (v.at(a, loop.index, 4 * CHANNELS) for a in (sums, piece))
            raised = builder.add(v.load(source), builder.shl(v.load(target), rounding[0]))
            v.store(v.saturate16(v.shift_right(raised, rounding), count), target)
        return v.total(count)

    return int64(int64, int64, int64, int64), codegen


@intrinsic
def add_piece_lanes(typing: Any, total: Any, piece: Any, rows: Any) -> Any:
    """stream.add_piece on int32 [rows][16] at two addresses; returns how many saturated."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, piece, rows = args
        v = _Vectors(builder)
        count = cgutils.alloca_once_value(builder, v.constant(0))
        builder.store(v.constant(0), count)
        with cgutils.for_range(builder, rows, intp=I64) as loop:
            target, source = (v.at(a, loop.index, 4 * CHANNELS) for a in (total, piece))
            added = builder.add(v.load(target), v.load(source))
            v.store(v.saturate16(added, count), target)
        return v.total(count)

    return int64(int64, int64, int64), codegen


def _store_lanes(v: _Vectors, codes: Any, out: Any, lanes: Any) -> None:
    """Store the first ``lanes`` of sixteen bytes."""
    b = v.b
    whole = b.icmp_signed("==", lanes, ir.Constant(I64, CHANNELS))
    narrow = b.trunc(codes, ir.VectorType(I8, CHANNELS))
    with b.if_else(whole) as (then, otherwise):
        with then:
            v.store(narrow, out)
        with otherwise:
            buffer = cgutils.alloca_once(b, narrow.type)
            b.store(narrow, buffer)
            start = b.ptrtoint(buffer, I64)
            with cgutils.for_range(b, lanes, intp=I64) as loop:
                byte = v.load(b.add(start, loop.index), I8)
                v.store(byte, b.add(out, loop.index))


@intrinsic
def two_step_lanes(
    typing: Any,
    stream: Any,
    rows: Any,
    multiplier: Any,
    constant: Any,
    first_shift: Any,
    second_multiplier: Any,
    second_shift: Any,
    low: Any,
    high: Any,
    bias: Any,
    out: Any,
    pitch: Any,
    lanes: Any,
) -> Any:
    """epilogue's two steps on int32 [rows][16] into bytes ``pitch`` apart; how many saturated.

    multiplier, constant: addresses of int64 [16].
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stream, rows, multiplier, constant, first, second, last, *bounds, out, pitch, lanes = args
        v = _Vectors(builder)
        low, high, bias = (v.splat(bound) for bound in bounds)
        count = cgutils.alloca_once_value(builder, v.constant(0))
        builder.store(v.constant(0), count)
        a, c, a2 = v.load_wide(multiplier), v.load_wide(constant), v.splat(second)
        rounding, last_rounding = v.rounding(first), v.rounding(last)
        with cgutils.for_range(builder, rows, intp=I64) as loop:
            x = v.load(v.at(stream, loop.index, 4 * CHANNELS))
            middle = v.saturate16(v.shift_right(builder.mul(a, x), rounding), count)
            total = builder.add(builder.mul(a2, middle), c)
            code = v.clamp(v.shift_right(total, last_rounding), low, high)
            _store_lanes(v, builder.add(code, bias), v.at(out, loop.index, pitch), lanes)
        return v.total(count)

    return int64(*[int64] * 13), codegen


@intrinsic
def one_step_lanes(
    typing: Any,
    stream: Any,
    rows: Any,
    multiplier: Any,
    constant: Any,
    shift: Any,
    low: Any,
    high: Any,
    bias: Any,
    out: Any,
    pitch: Any,
    lanes: Any,
) -> Any:
    """epilogue's one step on int32 [rows][16] into bytes ``pitch`` apart; returns 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stream, rows, multiplier, constant, shift, *bounds, out, pitch, lanes = args
        v = _Vectors(builder)
        low, high, bias = (v.splat(bound) for bound in bounds)
        a, c, rounding = v.load_wide(multiplier), v.load_wide(constant), v.rounding(shift)
        with cgutils.for_range(builder, rows, intp=I64) as loop:
            x = v.load(v.at(stream, loop.index, 4 * CHANNELS))
            total = builder.add(builder.mul(a, x), c)
            code = v.clamp(v.shift_right(total, rounding), low, high)
            _store_lanes(v, builder.add(code, bias), v.at(out, loop.index, pitch), lanes)
        return ir.Constant(I64, 0)

    return int64(*[int64] * 11), codegen
