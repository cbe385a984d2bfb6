"""How the neural-art NPU splits the sum of a convolution into pieces and channel passes.

A convolution unit takes kernels of at most 3 rows and 6 columns and a few input channels at a
time. A larger kernel is cut into *pieces*; the input channels of a piece are cut into *passes* of
chained units. Sums inside a pass are exact, but what leaves a pass is a rounded int16 stream, so
the split decides which integers come out. It is partly the vendor scheduler's choice: the rule
below is fitted to generated files and every layer's split can be overridden.

Evidence: cuts of 5x5 and 7x7 at stride 1 [silicon]; a 7x7 at stride 2 and the passes
[descriptor: 827 of 836 generated layers]; thresholds between the measured map sizes, order of the
pieces, dense multi-channel 5x5 and 7x7 [inferred].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

UNSIGNED, SIGNED, WIDE = "unsigned", "signed", "wide"


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Numbers of the rule for cuts and passes; a profile's switches of the same names.

    max_rows, max_columns, max_columns_strided: largest kernel of one piece (the last at a
        horizontal stride of 2 or more).
    batch_depth: most channels a unit takes for a kernel of several taps.
    line_bytes: a unit's line buffer; bounds channels * width * bytes of a feature.
    pointwise_depth_unsigned, pointwise_depth: most channels for one tap, for unsigned input and
        for the other input forms (and for large maps).
    large_map_pixels, large_map_channels: a map from which on ``pointwise_depth`` always holds.
    max_units: units that can be chained.
    load_per_tap: pixels that one chained unit asks for and each tap of the kernel.
    pointwise_kernels: most output channels a unit works on at a time for one tap.
    unit_map: "input", or "output_when_strided": whose pixels bound the units.
    passes: "fitted" (the rule above) or "single" (every piece in one pass).
    """

    max_rows: int = 3
    max_columns: int = 6
    max_columns_strided: int = 12
    batch_depth: int = 8
    line_bytes: int = 2048
    pointwise_depth_unsigned: int = 128
    pointwise_depth: int = 24
    large_map_pixels: int = 3600
    large_map_channels: int = 64
    max_units: int = 4
    load_per_tap: int = 4
    pointwise_kernels: int = 24
    unit_map: str = "input"
    passes: str = "fitted"


@dataclass(frozen=True, slots=True)
class Window:
    """What the split of a convolution depends on.

    kernel: (rows, columns). strides: (vertical, horizontal). depth: input channels of a group.
    map_size: (height, width) of the input; output_size likewise. outputs: output channels of
    a group. form: UNSIGNED (zero point -128), SIGNED (0) or WIDE (16-bit features, any other).
    depthwise: one input channel a group.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    depth: int
    outputs: int
    map_size: tuple[int, int]
    output_size: tuple[int, int]
    form: str
    depthwise: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces and passes of a convolution.

    rows, columns: sizes of the pieces in order, e.g. (3, 3, 1) and (6, 1).
    channels: for each piece, rows outer and columns inner, (channels a unit, units, passes);
        their product is the depth.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    channels: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One pass of one piece: the part of the kernel whose sum becomes one int16 stream.

    All bounds are (start, stop). piece counts the pieces, index the passes inside the piece.
    units: chained units that share the channels equally (they add exactly).
    """

    piece: int
    index: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    channels: tuple[int, int]
    units: int

    @property
    def terms(self) -> int:
        """Products of one sum."""
        spans = (self.rows, self.columns, self.channels)
        return math.prod(stop - start for start, stop in spans)


def input_form(zero_point: int) -> str:
    """How the features of a zero point (signed codes) reach the unit [descriptor, silicon]."""
    return {-128: UNSIGNED, 0: SIGNED}.get(zero_point, WIDE)


def cut(size: int, limit: int) -> tuple[int, ...]:
    """Full pieces first and the rest last: cut(7, 3) = (3, 3, 1)."""
    full, rest = divmod(size, limit)
    return (limit,) * full + ((rest,) if rest else ())


def split(window: Window, limits: SplitLimits) -> Split:
    """Pieces and passes by the general rule."""
    max_columns = limits.max_columns if window.strides[1] < 2 else limits.max_columns_strided
    rows, columns = cut(window.kernel[0], limits.max_rows), cut(window.kernel[1], max_columns)
    channels = tuple(channel_passes(window, r * c, limits) for r in rows for c in columns)
    return Split(rows, columns, channels)


def channel_passes(window: Window, taps: int, limits: SplitLimits) -> tuple[int, int, int]:
    """(channels a unit, units, passes) of a piece of ``taps`` taps.

    The fewest passes, then the fewest units, that divide the depth and keep to both limits.
    """
    depth = window.depth
    if window.depthwise or limits.passes == "single":
        return depth, 1, 1
    most = depth_limit(window, taps, limits)
    ceiling = unit_ceiling(window, taps, limits)
    return next(
        (depth // (units * passes), units, passes)
        for passes in range(1, depth + 1)
        for units in range(1, ceiling + 1)
        if depth % (units * passes) == 0 and depth // (units * passes) <= most
    )


def depth_limit(window: Window, taps: int, limits: SplitLimits) -> int:
    """Most channels of one unit."""
    height, width = window.map_size
    if taps > 1:
        feature_bytes = 2 if window.form == WIDE else 1
        return max(1, min(limits.batch_depth, limits.line_bytes // (width * feature_bytes)))
    large = width * height >= limits.large_map_pixels and window.depth >= limits.large_map_channels
    if window.form == UNSIGNED and not large:
        return limits.pointwise_depth_unsigned
    return limits.pointwise_depth


def unit_ceiling(window: Window, taps: int, limits: SplitLimits) -> int:
    """Most units that are chained: the largest power of two whose load the map can hide."""
    strided = limits.unit_map == "output_when_strided" and max(window.strides) > 1
    height, width = window.output_size if strided else window.map_size
    if taps > 1:
        double_load = 2 * limits.load_per_tap * taps
    else:
        double_load = largest_divisor(window.outputs, limits.pointwise_kernels)
    units = limits.max_units
    while units > 1 and units * double_load > 2 * height * width:
        units //= 2
    return units


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``."""
    return next(d for d in range(limit, 0, -1) if number % d == 0)


def segments(parts: Split) -> Iterator[Segment]:
    """Every pass in execution order: pieces outer (rows, then columns), passes inner [inferred]."""
    piece = 0
    top = 0
    for height in parts.rows:
        left = 0
        for width in parts.columns:
            depth, units, passes = parts.channels[piece]
            for index in range(passes):
                first = index * depth * units
                yield Segment(
                    piece=piece,
                    index=index,
                    rows=(top, top + height),
                    columns=(left, left + width),
                    channels=(first, first + depth * units),
                    units=units,
                )
            piece += 1
            left += width
        top += height
