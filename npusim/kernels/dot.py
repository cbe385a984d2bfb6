"""The inner loop of every convolution and fully connected layer: int16 pairs into int32 sums.

A tile is PIXELS rows of the input panel against CHANNELS output channels. The panel holds int16
[pixels][depth], the weights int16 [depth / 2][CHANNELS][2]; the products of a pair are added
exactly (pmaddwd), so that the sum is exact while it fits int32, which compile proves.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.types import int64, void

from npusim.kernels.isa import dot_instruction

PIXELS = 6
CHANNELS = 16

_LANES = {"avx2": 8, "sse2": 4, "generic": 4}
_INSTRUCTION = {"avx2": "llvm.x86.avx2.pmadd.wd", "sse2": "llvm.x86.sse2.pmadd.wd"}

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def _word(value: int) -> Any:
    return ir.Constant(I64, value)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = 1


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, undefined, zeros)


def _multiply_pairs(builder: Any, x: Any, w: Any, lanes: int, instruction: str) -> Any:
    """Sum of the two products of each pair of int16: <2n x i16> twice -> <n x i32>."""
    sums = ir.VectorType(I32, lanes)
    if instruction in _INSTRUCTION:
        kind = ir.FunctionType(sums, [x.type, w.type])
        function = cgutils.get_or_insert_function(builder.module, kind, _INSTRUCTION[instruction])
        return builder.call(function, [x, w])
    wide = ir.VectorType(I32, 2 * lanes)
    products = builder.mul(builder.sext(x, wide), builder.sext(w, wide))
    even, odd = (
        builder.shuffle_vector(
            products, products, ir.Constant(sums, [2 * i + parity for i in range(lanes)])
        )
        for parity in (0, 1)
    )
    return builder.add(even, odd)


def make_dot_tile(instruction: str) -> Any:
    """The tile as a Numba intrinsic.

    dot_tile(panel, row_bytes, pairs, weights, start, sums): address of the first pixel's int16 row,
    bytes between two rows, how many int16 pairs deep, address of the weights, of int32 [CHANNELS]
    that every sum starts from, and of int32 [PIXELS][CHANNELS] that is overwritten with the sums.
    """
    lanes = _LANES[instruction]
    vectors = CHANNELS // lanes
    # Registers hold PIXELS x 2 vectors of sums; narrower vectors take the channels in turns.
    turns = max(1, vectors // 2)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        panel, row_bytes, pairs, weights, start, sums = args
        for turn in range(turns):
            skip = _word(turn * 4 * lanes * (vectors // turns))
            tables = (builder.add(address, skip) for address in (weights, start, sums))
            _tile_turn(
                builder, instruction, lanes, vectors // turns, panel, row_bytes, pairs, *tables
            )
        return context.get_dummy_value()

    @intrinsic
    def dot_tile(
        typing: Any, panel: Any, row_bytes: Any, pairs: Any, weights: Any, start: Any, sums: Any
    ) -> Any:
        return void(int64, int64, int64, int64, int64, int64), codegen

    return dot_tile


def _tile_turn(
    builder: Any,
    instruction: str,
    lanes: int,
    vectors: int,
    panel: Any,
    row_bytes: Any,
    pairs: Any,
    weights: Any,
    start: Any,
    sums: Any,
) -> None:
    sum_kind, pair_kind = ir.VectorType(I32, lanes), ir.VectorType(I16, 2 * lanes)
    totals = [
        [cgutils.alloca_once(builder, sum_kind) for _ in range(vectors)] for _ in range(PIXELS)
    ]
    for v in range(vectors):
        first = _load(builder, builder.add(start, _word(4 * lanes * v)), sum_kind)
        for r in range(PIXELS):
            builder.store(first, totals[r][v])
    rows = [builder.add(panel, builder.mul(row_bytes, _word(r))) for r in range(PIXELS)]
    with cgutils.for_range(builder, pairs, intp=I64) as loop:
        at = builder.add(weights, builder.mul(loop.index, _word(4 * CHANNELS)))
        w = [
            _load(builder, builder.add(at, _word(4 * lanes * v)), pair_kind) for v in range(vectors)
        ]
        step = builder.shl(loop.index, _word(2))
        for r in range(PIXELS):
            pair = _load(builder, builder.add(rows[r], step), I32)
            x = builder.bitcast(_splat(builder, pair, sum_kind), pair_kind)
            for v in range(vectors):
                product = _multiply_pairs(builder, x, w[v], lanes, instruction)
                total = builder.add(builder.load(totals[r][v]), product)
                builder.store(total, totals[r][v])
    for r in range(PIXELS):
        for v in range(vectors):
            address = builder.add(sums, _word(4 * CHANNELS * r + 4 * lanes * v))
            _store(builder, builder.load(totals[r][v]), address)


dot_tile = make_dot_tile(dot_instruction())
