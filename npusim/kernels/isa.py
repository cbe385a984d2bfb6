"""Which instruction makes the dot products, from the features Numba compiles for.

``avx2`` and ``sse2`` name vpmaddwd / pmaddwd; ``generic`` is target-independent code that any
processor runs. All give the same bits. NUMBA_CPU_NAME picks another target on any host;
NPUSIM_DOT (avx2, sse2, generic) overrides the choice, for tests.
"""

from __future__ import annotations

import os
from functools import cache

from numba.core.registry import cpu_target

from npusim.errors import UsageError

DOT_INSTRUCTIONS = ("avx2", "sse2", "generic")

# LLVM processor names that have AVX2, for a target given by name without a list of features.
_AVX2_NAMES = ("haswell", "broadwell", "skylake", "znver", "alderlake", "icelake", "x86-64-v3")


@cache
def dot_instruction() -> str:
    """One of DOT_INSTRUCTIONS.

    Raises UsageError where NPUSIM_DOT is none of them.
    """
    forced = os.environ.get("NPUSIM_DOT")
    if forced:
        if forced not in DOT_INSTRUCTIONS:
            raise UsageError(
                "unknown dot instruction",
                where="NPUSIM_DOT",
                got=forced,
                wanted=" or ".join(DOT_INSTRUCTIONS),
            )
        return forced
    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    if not is_x86(triple):
        return "generic"
    has_avx2 = "+avx2" in features.split(",") or str(processor).startswith(_AVX2_NAMES)
    return "avx2" if has_avx2 else "sse2"


def is_x86(triple: str | None = None) -> bool:
    """True for an x86-64 target; without a triple, for the one that Numba compiles for."""
    if triple is None:
        triple = cpu_target.target_context.codegen().magic_tuple()[0]
    return str(triple).startswith("x86_64")
