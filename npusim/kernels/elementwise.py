"""Operators that map codes to codes one by one, as tables made from their own reference.

One operand has 256 codes and two have 65,536 pairs, so that every arithmetic of any profile is a
table look-up; the table is filled by running the operator's reference once on all codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from npusim.ir import Array, Site, Value
from npusim.kernels.jit import CONTEXT, pointer, step_kernel
from npusim.kernels.plan import Builder, Order, channels_last, record, stored_bias
from npusim.numerics.lowered import Lowered
from npusim.ops.base import Rule

UNARY = np.dtype(
    [
        ("x", np.int64),  # offset of the input in the arena, bytes an image
        ("y", np.int64),  # offset of the output
        ("outer", np.int64),  # blocks an image
        ("block", np.int64),  # bytes of a block of the input
        ("pitch", np.int64),  # bytes from one block of the output to the next
        ("start", np.int64),  # of the first block in the output
        ("table", np.int64),  # address of uint8 [256]
    ]
)

BINARY = np.dtype(
    [
        ("x1", np.int64),  # offsets in the arena, bytes an image
        ("x2", np.int64),
        ("y", np.int64),
        ("size", np.int64),  # bytes an image
        ("table", np.int64),  # address of uint8 [256, 256]
    ]
)


@step_kernel
def unary_step(row: Any, context_address: Any) -> None:
    """y = table[x], block by block, into blocks that may lie further apart (concatenation)."""
    r = carray(pointer(row), 1, UNARY)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    outer = r.outer * context.batch
    x = carray(pointer(context.arena + r.x * context.batch), (outer, r.block), np.uint8)
    y = carray(pointer(context.arena + r.y * context.batch), (outer, r.pitch), np.uint8)
    table = carray(pointer(r.table), 256, np.uint8)
    for i in range(outer):
        for k in range(r.block):
            y[i, r.start + k] = table[x[i, k]]


@step_kernel
def binary_step(row: Any, context_address: Any) -> None:
    """y = table[x1, x2] for two tensors of one shape and order."""
    r = carray(pointer(row), 1, BINARY)[0]
    context = carray(pointer(context_address), 1, CONTEXT)[0]
    size = r.size * context.batch
    x1 = carray(pointer(context.arena + r.x1 * context.batch), size, np.uint8)
    x2 = carray(pointer(context.arena + r.x2 * context.batch), size, np.uint8)
    y = carray(pointer(context.arena + r.y * context.batch), size, np.uint8)
    table = carray(pointer(r.table), 65536, np.uint8)
    for i in range(size):
        y[i] = table[(np.int64(x1[i]) << 8) | np.int64(x2[i])]


def bind_unary(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    if not _eight_bits(site.value(0), site.output):
        return False
    codes = rule.reference(site, lowered, (_all_codes(site.value(0)),))
    order = builder.places[site.node.inputs[0]].order
    size = site.output.type.per_image()
    row = record(
        UNARY,
        x=builder.input(site.node.inputs[0], order),
        y=builder.output(site.node.outputs[0], order),
        outer=1,
        block=size,
        pitch=size,
        start=0,
        table=builder.constant(_stored(codes, site.output)),
    )
    builder.native(unary_step, row)
    return True


def bind_binary(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    x1, x2 = site.value(0), site.value(1)
    if not _eight_bits(x1, x2, site.output) or x1.type.shape != x2.type.shape:
        return False
    if any(site.constant(i) is not None for i in (0, 1)):
        return False
    pairs = (_all_codes(x1)[:, None], _all_codes(x2)[None, :])
    codes = rule.reference(site, lowered, pairs)
    order = builder.places[x1.name].order
    row = record(
        BINARY,
        x1=builder.input(x1.name, order),
        x2=builder.input(x2.name, order),
        y=builder.output(site.node.outputs[0], order),
        size=site.output.type.per_image(),
        table=builder.constant(_stored(codes, site.output)),
    )
    builder.native(binary_step, row)
    return True


def bind_concat(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    """One table step an operand, each into its own part of the output's blocks."""
    values = [site.value(i) for i in range(len(site.node.inputs))]
    if not _eight_bits(site.output, *values) or any(site.graph.is_constant(v.name) for v in values):
        return False
    rank, axis = len(site.output.type.shape), site.attrs.axis
    order = channels_last(rank)
    if axis == 0:
        return False
    tables = _concat_tables(site, lowered, rule, rank)
    y = builder.output(site.node.outputs[0], order)
    outer, pitch = _blocks(site.output, order, axis)
    start = 0
    for value, table in zip(values, tables, strict=True):
        _, block = _blocks(value, order, axis)
        row = record(
            UNARY,
            x=builder.input(value.name, order),
            y=y,
            outer=outer,
            block=block,
            pitch=pitch,
            start=start,
            table=builder.constant(_stored(table, site.output)),
        )
        builder.native(unary_step, row)
        start += block
    return True


def _concat_tables(site: Site, lowered: Lowered, rule: Rule, rank: int) -> list[Array]:
    shape = [1] * rank
    shape[site.attrs.axis] = 256
    operands = tuple(_all_codes(site.value(i)).reshape(shape) for i in range(len(site.node.inputs)))
    joined = rule.reference(site, lowered, operands)
    return np.split(joined.ravel(), len(operands))


def _blocks(value: Value, order: Order, axis: int) -> tuple[int, int]:
    """(blocks an image before ``axis`` in memory, bytes of a block)."""
    at = order.index(axis)
    shape = value.type.shape
    outer = int(np.prod([shape[i] or 1 for i in order[:at]], dtype=np.int64))
    return outer, value.type.per_image() // max(1, outer)


def _eight_bits(*values: Value) -> bool:
    return all(v.type.dtype in ("int8", "uint8") for v in values)


def _all_codes(value: Value) -> Array:
    """The 256 codes in the order of their stored bytes."""
    return np.arange(256, dtype=np.int64) - stored_bias(value)


def _stored(codes: Array, value: Value) -> Array:
    return (codes + stored_bias(value)).astype(np.uint8)
