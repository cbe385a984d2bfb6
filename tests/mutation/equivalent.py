"""Mutants that no test can tell from the original, with the reason of each."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "neural_art_epilogue.py",
        "Convolution.changed",
        "for old_depth, new_depth in "
        "((np.prod(self.channels[0]), np.prod(c)) for c in new.channels):",
        "0 -> -1",
    ): "the channels of every piece have the same product: split makes them so, changed keeps them",
}
"""(file, function, source line, change) -> why it computes the same."""
