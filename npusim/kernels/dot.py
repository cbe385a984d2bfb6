"""The inner loop of every convolution and fully connected layer: int16 pairs into int32 sums.

A tile is PIXELS output pixels against CHANNELS output channels. A pixel is an address in an int16
map; what it reads are runs of int16 at fixed distances. The weights are int16
[pairs][CHANNELS][2] in the order of the runs; the two products of a pair are added exactly
(pmaddwd), so that a sum is exact while it fits int32, which compile proves.
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

    dot_tile(origin, offsets, runs, run_count, weights, start, sums): address of the map; of int64
    [PIXELS], the pixels' distances from it in bytes; of int64 [run_count, 2], each run's distance
    from its pixel in bytes and its length in pairs; of the weights; of int32 [CHANNELS] that every
    sum starts from; of int32 [PIXELS][CHANNELS] that is overwritten with the sums. A run may read
    one int16 past its end, whose weights are zero.
    """
    lanes = _LANES[instruction]
    vectors = CHANNELS // lanes
    # Registers hold PIXELS x 2 vectors of sums; narrower vectors take the channels in turns.
    turns = max(1, vectors // 2)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        origin, offsets, runs, run_count, weights, start, sums = args
        for turn in range(turns):
            skip = _word(turn * 4 * lanes * (vectors // turns))
            tables = (builder.add(address, skip) for address in (weights, start, sums))
            _tile_turn(
                builder,
                instruction,
                lanes,
                vectors // turns,
                (origin, offsets, runs, run_count),
                *tables,
            )
        return context.get_dummy_value()

    @intrinsic
    def dot_tile(
        typing: Any,
        origin: Any,
        offsets: Any,
        runs: Any,
        run_count: Any,
        weights: Any,
        start: Any,
        sums: Any,
    ) -> Any:
        return void(*[int64] * 7), codegen

    return dot_tile


def _tile_turn(
    builder: Any,
    instruction: str,
    lanes: int,
    vectors: int,
    reads: tuple[Any, ...],
    weights: Any,
    start: Any,
    sums: Any,
) -> None:
    """Code for the channels that one turn holds in registers."""
    origin, offsets, runs, run_count = reads
    sum_kind = ir.VectorType(I32, lanes)
    totals = [
        [cgutils.alloca_once(builder, sum_kind) for _ in range(vectors)] for _ in range(PIXELS)
    ]
    for v in range(vectors):
        first = _load(builder, builder.add(start, _word(4 * lanes * v)), sum_kind)
        for r in range(PIXELS):
            builder.store(first, totals[r][v])
    pixels = [
        builder.add(origin, _load(builder, builder.add(offsets, _word(8 * r)), I64))
        for r in range(PIXELS)
    ]
    position = cgutils.alloca_once(builder, I64)
    builder.store(weights, position)
    with cgutils.for_range(builder, run_count, intp=I64) as run:
        entry = builder.add(runs, builder.mul(run.index, _word(16)))
        distance = _load(builder, entry, I64)
        pairs = _load(builder, builder.add(entry, _word(8)), I64)
        starts = [builder.add(pixel, distance) for pixel in pixels]
        at = builder.load(position)
        with cgutils.for_range(builder, pairs, intp=I64) as loop:
            w = builder.add(at, builder.mul(loop.index, _word(4 * CHANNELS)))
            _multiply_step(
                builder, instruction, totals, starts, builder.shl(loop.index, _word(2)), w
            )
        builder.store(builder.add(at, builder.mul(pairs, _word(4 * CHANNELS))), position)
    for r in range(PIXELS):
        for v in range(vectors):
            address = builder.add(sums, _word(4 * CHANNELS * r + 4 * lanes * v))
            _store(builder, builder.load(totals[r][v]), address)


def _multiply_step(
    builder: Any, instruction: str, totals: list[list[Any]], starts: list[Any], step: Any, at: Any
) -> None:
    """One pair of every pixel against the weights at one address."""
    sum_kind = totals[0][0].type.pointee
    lanes = sum_kind.count
    pair_kind = ir.VectorType(I16, 2 * lanes)
    w = [
        _load(builder, builder.add(at, _word(4 * lanes * v)), pair_kind)
        for v in range(len(totals[0]))
    ]
    for row, start in zip(totals, starts, strict=True):
        pair = _load(builder, builder.add(start, step), I32)
        x = builder.bitcast(_splat(builder, pair, sum_kind), pair_kind)
        for v, total in enumerate(row):
            product = _multiply_pairs(builder, x, w[v], lanes, instruction)
            builder.store(builder.add(builder.load(total), product), total)


dot_tile = make_dot_tile(dot_instruction())
