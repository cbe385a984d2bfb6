"""How kernels are compiled, cached and called.

A *step kernel* has the signature ``(row address, context address)``: the row is a NumPy record
that holds what compile froze for one node, the context is what differs from call to call. A
program is a table of (kernel address, row address), run by one function that releases the GIL.

Numba's own cache key is the file of the cached function, so that a change in a function called
from another file runs old machine code. Here every cache entry is stamped with a hash over all
kernel sources and the chosen instruction set.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from numba.types import int64, void, voidptr

from npusim.kernels.isa import dot_instruction

CONTEXT = np.dtype(
    [
        ("arena", np.int64),  # address of the activations
        ("packed", np.int64),  # address of the packed weights and biases
        ("scratch", np.int64),  # address of the kernels' work space
        ("stats", np.int64),  # address of the saturation counters, int64 a node
        ("batch", np.int64),  # images in this call
    ]
)

_STEP_SIGNATURE = void(int64, int64)


@cache
def source_stamp() -> str:
    """Hash over every kernel source and the dot instruction in use."""
    digest = hashlib.sha256(dot_instruction().encode())
    here = Path(__file__).parent
    sources = [*here.glob("*.py"), *(here.parent.parent / "zo").glob("*kernels.py")]
    sources += (here.parent / "zo").glob("*kernels.py")
    for path in sorted(sources):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class _StampedCache(FunctionCache):  # type: ignore[misc]
    """Numba's file cache, fresh only while no kernel source has changed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = source_stamp()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As Numba's, but a file of the cache that cannot be read only costs a compilation."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a truncated or foreign pickle raises almost anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """As Numba's; a damaged index is replaced, and a full disk costs only the cache."""
        try:
            super().save_overload(sig, data)
        except OSError:
            return
        except Exception:  # the index cannot be read
            with contextlib.suppress(OSError):
                self._cache_file.flush()
                super().save_overload(sig, data)


def _cache_for(function: Callable[..., Any]) -> FunctionCache | None:
    try:
        return _StampedCache(function)
    except RuntimeError:  # no writable place for the cache: compile in every process
        return None


def njit_kernel(function: Callable[..., Any]) -> Any:
    """Compile on first call, without the GIL, cached on disk."""
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    stamped = _cache_for(function)
    if stamped is not None:
        dispatcher._cache = stamped
    return dispatcher


class StepKernel:
    """A step kernel, compiled when its address is first asked for."""

    def __init__(self, function: Callable[[int, int], None]) -> None:
        self._function = function
        self._compiled: CFunc | None = None

    @property
    def address(self) -> int:
        if self._compiled is None:
            options = {"nopython": True, "error_model": "numpy"}
            compiled = CFunc(
                self._function,
                (_STEP_SIGNATURE.args, _STEP_SIGNATURE.return_type),
                locals={},
                options=options,
            )
            stamped = _cache_for(self._function)
            if stamped is not None:
                compiled._cache = stamped
            compiled.compile()
            self._compiled = compiled
        return int(self._compiled.address)


def step_kernel(function: Callable[[int, int], None]) -> StepKernel:
    """Decorator of step kernels."""
    return StepKernel(function)


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address (int64) as a void pointer, for numba.carray."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return voidptr(int64), codegen


@intrinsic
def _call_step(typing: Any, kernel: Any, row: Any, context: Any) -> Any:
    def codegen(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word, word])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], args[2]])
        return ctx.get_dummy_value()

    return void(int64, int64, int64), codegen


@njit_kernel
def run_table(table: Any, context: Any) -> None:
    """Run the steps of table (int64 [steps, 2]: kernel address, row address) one after another."""
    for i in range(table.shape[0]):
        _call_step(table[i, 0], table[i, 1], context)
