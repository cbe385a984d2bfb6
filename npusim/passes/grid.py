"""Finding the int8 grid that float numbers lie on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.ir import Array, QParams

MAX_LEVELS = 256


def grid_of(values: Array, axis: int | None) -> tuple[Array, QParams] | None:
    """Symmetric int8 codes and scales that reproduce every float32 exactly.

    axis: the axis of the channels, None for one scale.
    Returns (codes, qparams with zero point 0), or None where there is no such grid. Among the
    scales that fit, max|w|/127 comes first (what a quantizer chooses), then the largest.
    """
    if not values.size:
        return None
    channels = values.astype(np.float32).reshape(1, -1)
    if axis is not None:
        channels = np.moveaxis(values, axis, 0).astype(np.float32).reshape(values.shape[axis], -1)
    scales = []
    for channel in channels:
        scale = _scale(np.unique(channel))
        if scale is None:
            return None
        scales.append(scale)
    steps = np.asarray(scales, np.float32)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    codes = np.rint(values.astype(np.float32) / steps.reshape(shape)).astype(np.int8)
    return codes, QParams.make(steps, 0, axis)


def _scale(levels: npt.NDArray[np.float32]) -> np.float32 | None:
    """A scale of which all levels are multiples by -128..127; 1 where all are 0."""
    if levels.size > MAX_LEVELS or not np.isfinite(levels).all():
        return None
    largest = np.float32(np.abs(levels).max(initial=0))
    if largest == 0:
        return np.float32(1)
    for count in (127, 128, *range(1, 127)):
        near = np.float32(largest / np.float32(count))
        below, above = np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))
        for scale in (near, below, above):
            if _fits(levels, np.float32(scale)):
                return np.float32(scale)
    return None


def _fits(levels: npt.NDArray[np.float32], scale: np.float32) -> bool:
    if not scale > 0:
        return False
    with np.errstate(all="ignore"):
        codes = np.rint(levels / scale)
        exact = (codes * scale == levels) & (codes >= -128) & (codes <= 127)
    return bool(exact.all())
