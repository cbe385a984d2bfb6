"""Mutants that no test can tell from the original, with the reason of each."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "neural_art_epilogue.py",
        "Convolution.changed",
        (
            "for old_depth, new_depth in "
            "((np.prod(self.channels[0]), np.prod(c)) for c in new.channels):"
        ),
        "0 -> -1",
    ): "the channels of every piece have the same product: split makes them so, changed keeps them",
    (
        "neural_art_epilogue.py",
        "MulSteps.apply",
        "product = saturate16(SHIFTS[self.ties](x1 * centred, self.shift)).values",
        "no saturate16",
    ): "a code times a centred code is at most 128 * 255 = 32640, which int16 holds",
}
"""(file, function, source line, change) -> why it computes the same."""
