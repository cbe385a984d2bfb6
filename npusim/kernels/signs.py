"""Adding random signs to sums, sixteen weights an instruction: the bits are the vector's mask."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.types import int64, void

UNIT_WORDS = 4
"""32-bit words of random bits of a unit: 128 weights."""

_LANES = 16
_I1, _I16, _I32, _I64 = ir.IntType(1), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SUMS, _MASK = ir.VectorType(_I32, _LANES), ir.VectorType(_I1, _LANES)


def _splat(builder: Any, word: Any) -> Any:
    undefined = ir.Constant(_SUMS, ir.Undefined)
    first = builder.insert_element(undefined, word, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_SUMS, [0] * _LANES))


def _add_where(builder: Any, address: Any, bits: Any, addend: Any) -> None:
    """Add to the sixteen int32 at ``address`` where a bit is set."""
    pointer = builder.inttoptr(address, _SUMS.as_pointer())
    old = builder.load(pointer)
    old.align = 4
    zero = ir.Constant(_SUMS, None)
    chosen = builder.select(builder.bitcast(bits, _MASK), addend, zero)
    builder.store(builder.add(old, chosen), pointer).align = 4


@intrinsic
def add_where_set(typing: Any, total: Any, words: Any, pitch: Any, units: Any, addend: Any) -> Any:
    """total[u, 32 w + j] += addend where bit j of words[w, u] is set.

    total: address of int32 [units][128]; words: of uint32 [4][pitch]. Sums wrap at 32 bits.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, words, pitch, units, addend = args
        amount = _splat(builder, builder.trunc(addend, _I32))
        with cgutils.for_range(builder, units, intp=_I64) as loop:
            row = builder.add(total, builder.mul(loop.index, ir.Constant(_I64, 512)))
            for w in range(UNIT_WORDS):
                place = builder.add(builder.mul(pitch, ir.Constant(_I64, w)), loop.index)
                address = builder.add(words, builder.mul(place, ir.Constant(_I64, 4)))
                word = builder.load(builder.inttoptr(address, _I32.as_pointer()))
                for half in range(2):
                    shifted = builder.lshr(word, ir.Constant(_I32, 16 * half))
                    target = builder.add(row, ir.Constant(_I64, 128 * w + 64 * half))
                    _add_where(builder, target, builder.trunc(shifted, _I16), amount)
        return context.get_dummy_value()

    return void(int64, int64, int64, int64, int64), codegen
