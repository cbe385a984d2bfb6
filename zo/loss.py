"""Cross-entropy of int8 logits in integers: base 2, Q16, the same bits on every machine.

With d = zmax - z in 0..255 the exponentials of a network's fixed output scale are one table of
256 entries, and the logarithm of their sum is read from a table of 257 entries with linear
interpolation. Against float64 the loss is off by at most 0.0001 bit (2 to 1000 classes).

Units: one is 2^-16 bit; a nat is 1/ln 2 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization, DataError

Int64 = npt.NDArray[np.int64]

FRACTION_BITS = 16
ONE_BIT = 1 << FRACTION_BITS

_EXP_BITS = 30
_SLOPE_BITS = 24
_LOG_SEGMENT_BITS = 8
_LOG_REST_BITS = _EXP_BITS - _LOG_SEGMENT_BITS

#: Largest output scale: above it a difference of two logits does not fit the integers.
MAX_SCALE = 64.0


def exp2_table(scale: float) -> Int64:
    """E[d] = round(2^30 * 2^(-d * scale * log2 e)) for d = 0..255: exp(-d * scale) in Q30."""
    slope = scale * math.log2(math.e)
    return np.array([round(2.0**_EXP_BITS * math.exp2(-d * slope)) for d in range(256)], np.int64)


def log2_table() -> Int64:
    """T[i] = round(2^16 * log2(1 + i/256)) for i = 0..256."""
    segments = 1 << _LOG_SEGMENT_BITS
    return np.array(
        [round(ONE_BIT * math.log2(1 + i / segments)) for i in range(segments + 1)], np.int64
    )


@dataclass(frozen=True)
class IntegerCrossEntropy:
    """The loss of one network.

    slope: K = round(scale * log2(e) * 2^24).
    exps: the 256 entries of exp2_table.
    logs: the 257 entries of log2_table.
    """

    slope: int
    exps: Int64
    logs: Int64
    fraction_bits: ClassVar[int] = FRACTION_BITS

    @classmethod
    def for_scale(cls, scale: float, where: str = "") -> IntegerCrossEntropy:
        """The tables for logits whose real value is code * scale (+ a constant).

        Raises BadQuantization where the scale is not in (0, 64).
        """
        if not 0 < scale < MAX_SCALE:
            raise BadQuantization(
                "the output scale is out of the integer loss's range",
                where=where,
                got=scale,
                wanted=f"above 0 and below {MAX_SCALE:g}",
            )
        slope = round(scale * math.log2(math.e) * 2.0**_SLOPE_BITS)
        return cls(slope, exp2_table(scale), log2_table())

    def log2_q16(self, total: Int64) -> Int64:
        """log2(total / 2^30) in Q16, total >= 2^30."""
        total = np.asarray(total, np.int64)
        shift = np.frexp(total.astype(np.float64))[1].astype(np.int64) - 1 - _EXP_BITS
        rest = (total >> shift) & ((1 << _EXP_BITS) - 1)
        i = rest >> _LOG_REST_BITS
        part = rest & ((1 << _LOG_REST_BITS) - 1)
        rise = (self.logs[i + 1] - self.logs[i]) * part
        half = 1 << (_LOG_REST_BITS - 1)
        part_q16 = self.logs[i] + ((rise + half) >> _LOG_REST_BITS)
        log2: Int64 = (shift << FRACTION_BITS) + part_q16
        return log2

    def distance_q16(self, distance: Int64) -> Int64:
        """d * scale * log2 e in Q16, d = 0..255."""
        half = 1 << (_SLOPE_BITS - FRACTION_BITS - 1)
        return (distance * self.slope + half) >> (_SLOPE_BITS - FRACTION_BITS)

    def __call__(self, logits: npt.ArrayLike, labels: npt.ArrayLike) -> Int64:
        """The loss of each sample.

        Args:
            logits: integer codes [N, classes] of 8 bits; a zero point does not matter.
            labels: integers [N], 0 .. classes-1.

        Returns:
            int64 [N], Q16 bits, each below 2^31.
        """
        z = np.asarray(logits).astype(np.int64)
        distance = z.max(axis=1, keepdims=True) - z
        own = np.take_along_axis(distance, np.asarray(labels, np.int64)[:, None], axis=1)[:, 0]
        return self.log2_q16(self.exps[distance].sum(axis=1)) + self.distance_q16(own)

    def largest(self, classes: int) -> int:
        """A bound on one sample's loss, Q16 bits."""
        spread = int(self.distance_q16(np.array([255], np.int64))[0])
        return spread + math.ceil(math.log2(classes) * ONE_BIT) + 1


@dataclass(frozen=True)
class FloatCrossEntropy:
    """The same loss in float64, for comparison: rounded to 2^-32 bit, so that sums are exact.

    scale: real size of a code of the logits.
    """

    scale: float
    fraction_bits: ClassVar[int] = 32

    def __call__(self, logits: npt.ArrayLike, labels: npt.ArrayLike) -> Int64:
        """As IntegerCrossEntropy, in units of 2^-32 bit."""
        x = np.asarray(logits).astype(np.float64) * (self.scale * math.log2(math.e))
        x -= x.max(axis=1, keepdims=True)
        own = np.take_along_axis(x, np.asarray(labels, np.int64)[:, None], axis=1)[:, 0]
        bits = np.log2(np.exp2(x).sum(axis=1)) - own
        codes: Int64 = np.rint(np.ldexp(bits, self.fraction_bits)).astype(np.int64)
        return codes

    def largest(self, classes: int) -> int:
        """A bound on one sample's loss, 2^-32 bits."""
        spread = 255 * self.scale * math.log2(math.e) + math.log2(classes)
        return math.ceil(math.ldexp(spread, self.fraction_bits)) + 1


Loss = IntegerCrossEntropy | FloatCrossEntropy


def check_labels(labels: npt.NDArray[np.int64], classes: int, where: str) -> None:
    """Raise DataError where a label names no output of the network."""
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            "the labels do not fit the network's outputs",
            where=where,
            got=f"labels {int(labels.min())} .. {int(labels.max())}",
            wanted=f"0 .. {classes - 1}",
            hint="Train on data with the classes that the network was made for.",
        )
