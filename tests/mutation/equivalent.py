"""Mutants that no test can tell from the original, with the reason of each."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
"""(file, function, source line, change) -> why it computes the same."""
