"""Corruptions for domain-shift studies: ``noise:0.1``, ``rotation:30``, ``contrast:0.15``,
``colour:0.2``, in any sequence separated by commas.

They act on raw uint8 images, seen as values in [0, 1], one after the other; each result is
clipped to [0, 1] and the last is rounded back to uint8. What is random depends on the seed and on
the image's own id only: an image is corrupted alike alone, in a batch and in a subset. The bits
come from PCG64, whose stream NumPy keeps; Gaussian values from them by Box and Muller, since the
stream of Generator.normal is not promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npusim.errors import UsageError
from npusim.ir import Array
from npusim.models.dataset import Indices

Floats = npt.NDArray[np.float64]

CHUNK = 256


@dataclass(frozen=True, slots=True)
class Shift:
    """One corruption: its kind and its amount."""

    kind: str
    amount: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}"


@dataclass(frozen=True, slots=True)
class ShiftKind:
    """What a kind does. apply: (images [n, H, W, C] in [0, 1], amount, streams [n]) -> images."""

    low: float
    high: float
    summary: str
    apply: Callable[[Floats, float, list[np.random.SeedSequence]], Floats]


def gaussian(stream: np.random.SeedSequence, count: int) -> Floats:
    """``count`` standard normal values of a stream (Box and Muller, 1958; the cosine half)."""
    raw = np.random.PCG64(stream).random_raw(2 * count) >> np.uint64(11)
    u = raw.astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log1p(-u[:count]))
    return np.asarray(radius * np.cos(2.0 * np.pi * u[count:]))


def _noise(images: Floats, sigma: float, streams: list[np.random.SeedSequence]) -> Floats:
    size = images[0].size
    noise = np.stack([gaussian(s, size) for s in streams])
    return images + sigma * noise.reshape(images.shape)


def _rotation(images: Floats, degrees: float, streams: list[np.random.SeedSequence]) -> Floats:
    """Anticlockwise about the centre; bilinear, black outside."""
    height, width = images.shape[1:3]
    angle = np.deg2rad(degrees)
    y, x = np.mgrid[:height, :width] - np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    source_x = np.cos(angle) * x - np.sin(angle) * y + (width - 1) / 2
    source_y = np.sin(angle) * x + np.cos(angle) * y + (height - 1) / 2
    left, top = np.floor(source_x).astype(int), np.floor(source_y).astype(int)
    right_part, lower_part = source_x - left, source_y - top
    rotated = np.zeros_like(images)
    for dy in (0, 1):
        for dx in (0, 1):
            yy, xx = top + dy, left + dx
            weight = (lower_part if dy else 1 - lower_part) * (right_part if dx else 1 - right_part)
            inside = (yy >= 0) & (yy < height) & (xx >= 0) & (xx < width)
            corner = images[:, yy.clip(0, height - 1), xx.clip(0, width - 1)]
            rotated += corner * (weight * inside)[..., None]
    return rotated


def _contrast(images: Floats, factor: float, streams: list[np.random.SeedSequence]) -> Floats:
    """Towards each image's own mean, a channel at a time (as CIFAR-10-C's contrast)."""
    mean = images.mean(axis=(1, 2), keepdims=True)
    return np.asarray(mean + factor * (images - mean))


def _colour(images: Floats, amount: float, streams: list[np.random.SeedSequence]) -> Floats:
    """A warm cast (cold where negative): red times 1 + amount, blue times 1 - amount."""
    if images.shape[3] != 3:
        raise UsageError(
            "a colour cast needs colour images",
            where="--shift",
            got=f"{images.shape[3]} channel",
            wanted="3 channels",
        )
    return np.asarray(images * np.array([1.0 + amount, 1.0, 1.0 - amount]))


KINDS = {
    "noise": ShiftKind(0.0, 1.0, "Gaussian noise of this standard deviation", _noise),
    "rotation": ShiftKind(-360.0, 360.0, "rotation by these degrees, anticlockwise", _rotation),
    "contrast": ShiftKind(0.0, 4.0, "contrast multiplied by this factor", _contrast),
    "colour": ShiftKind(-1.0, 1.0, "red times 1 + this, blue times 1 - this", _colour),
}


def parse_shifts(text: str) -> tuple[Shift, ...]:
    """``"rotation:35,noise:0.1"`` as Shifts, in order; "" is none.

    Raises UsageError for an unknown kind, a missing or bad number, a number out of range.
    """
    return tuple(_parse(part.strip()) for part in text.split(",")) if text.strip() else ()


def _parse(part: str) -> Shift:
    kind, _, amount_text = part.partition(":")
    known = KINDS.get(kind)
    if known is None:
        raise UsageError("unknown shift", where="--shift", got=repr(part), wanted=", ".join(KINDS))
    try:
        amount = float(amount_text)
    except ValueError:
        raise UsageError(
            f"{kind} needs a number", where="--shift", got=repr(part), wanted=f"{kind}:NUMBER"
        ) from None
    if not known.low <= amount <= known.high:
        raise UsageError(
            f"{kind} is out of range",
            where="--shift",
            got=amount_text,
            wanted=f"{known.low:g} to {known.high:g}",
        )
    return Shift(kind, amount)


def shift_images(images: Array, ids: Indices, shifts: tuple[Shift, ...], seed: int) -> Array:
    """Corrupted copies, uint8 [n, H, W, C].

    Args:
        images: uint8 [n, H, W, C].
        ids: int64 [n], the images' places in their data set (``DataSet.ids``).
        seed: of the draw, 0 or more; another seed is another draw of the same corruption.

    Raises UsageError for pixels that are not uint8 and for a negative seed.
    """
    if not shifts:
        return images
    if images.dtype != np.uint8:
        raise UsageError(
            "only uint8 images can be shifted",
            where="--shift",
            got=images.dtype,
            hint="Store the images as uint8 pixels, or leave --shift out.",
        )
    if seed < 0:
        raise UsageError("a seed is negative", where="--shift-seed", got=seed, wanted=">= 0")
    parts = [
        _shift_chunk(images[i : i + CHUNK], ids[i : i + CHUNK], shifts, seed)
        for i in range(0, len(images), CHUNK)
    ]
    return np.concatenate(parts) if parts else images


def _shift_chunk(images: Array, ids: Indices, shifts: tuple[Shift, ...], seed: int) -> Array:
    values = images.astype(np.float64) / 255.0
    for place, shift in enumerate(shifts):
        # The place keeps two noises of one sequence apart.
        streams = [np.random.SeedSequence([seed, int(i), place]) for i in ids]
        values = KINDS[shift.kind].apply(values, shift.amount, streams).clip(0.0, 1.0)
    return np.rint(values * 255.0).astype(np.uint8)
