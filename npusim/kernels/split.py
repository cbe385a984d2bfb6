"""The order in which a kernel walks the depth of a convolution, and where its sums are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from npusim.ir import Array
from npusim.kernels.conv import SEGMENT
from npusim.kernels.depthwise import WINDOW
from npusim.kernels.stream import HALF_AWAY, TIES
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.numerics.neural_art_passes import Segment

EXACT = -1
"""Stream shift of an arithmetic whose sums stay exact to the end."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Segments of a kernel in execution order, and how each one's sum becomes an int16 stream.

    shift: EXACT where there is one segment whose sum is not rounded.
    """

    segments: tuple[Segment, ...]
    shift: int
    ties: int

    def narrow(self, terms: int) -> bool:
        """True where ties go away from zero and no sum on the way exceeds 32 bits.

        terms: products of one output; each is at most 255 * 255, a stream 2**15.
        """
        if self.shift == EXACT or self.ties != HALF_AWAY:
            return False
        return terms * 255 * 255 + (3 << (14 + self.shift)) + 1 < 2**31


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a convolution, run after run; each run is padded to whole pairs.

    runs: int64 [runs, 5]: kernel row, kernel column, neighbouring taps, first channel, and channels
    of each tap. segments: SEGMENT records. order: int64 [P], where each weight p = (kh * KW + kw) *
    channels + channel goes. size: int16 of an output channel.
    """

    runs: Array
    segments: Array
    order: Array
    size: int

    def distances(self, line: int, pixel: int, dilations: tuple[int, int]) -> Array:
        """int64 [runs, 2] for dot_tile; line, pixel: bytes of a row and of a pixel of the map."""
        ky, kx, taps, channel, count = self.runs.T
        bytes_ = ky * dilations[0] * line + kx * dilations[1] * pixel + 2 * channel
        return np.ascontiguousarray(np.stack([bytes_, (taps * count + 1) // 2], axis=1))


@singledispatch
def rounding_of(lowered: Lowered, kernel: tuple[int, int], channels: int) -> Rounding:
    """The rounding of a convolution with this kernel and these input channels of a group."""
    whole = Segment(0, 0, (0, kernel[0]), (0, kernel[1]), (0, channels), 1)
    return Rounding((whole,), EXACT, HALF_AWAY)


@rounding_of.register
def _(lowered: Convolution, kernel: tuple[int, int], channels: int) -> Rounding:
    return Rounding(lowered.segments(), lowered.shift, TIES[lowered.ties])


def depth_of(rounding: Rounding, kernel: tuple[int, int], channels: int, adjacent: bool) -> Depth:
    """Runs and segments one after another.

    adjacent: neighbouring taps of a row lie together in memory (one group, no dilation).
    """
    runs: list[tuple[int, ...]] = []
    segments: list[tuple[int, ...]] = []
    order = np.zeros((*kernel, channels), np.int64)
    at = 0
    for segment in rounding.segments:
        first, pair = len(runs), at // 2
        (low, high), (left, right) = segment.channels, segment.columns
        together = right - left if adjacent and high - low == channels else 1
        for ky in range(*segment.rows):
            for kx in range(left, right, together):
                size = together * (high - low)
                runs.append((ky, kx, together, low, high - low))
                places = np.arange(at, at + size).reshape(together, high - low)
                order[ky, kx : kx + together, low:high] = places
                at += size + size % 2
        segments.append((first, len(runs) - first, pair, segment.piece))
    return Depth(np.array(runs, np.int64), np.array(segments, SEGMENT), order.ravel(), at)


def windows_of(rounding: Rounding) -> Array:
    """WINDOW records of a depthwise kernel's pieces."""
    parts = [(s.rows[0], s.columns[0], s.rows[1], s.columns[1]) for s in rounding.segments]
    return np.array(parts, WINDOW)
