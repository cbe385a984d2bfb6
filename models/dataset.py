"""A labelled image data set, its subsets and its splits.

Which images a subset or a split holds follows from the seed and from each image's place in its
source, by an integer hash: not from threads, from NumPy's version or from what was drawn before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from npusim.errors import DataError, UsageError
from npusim.ir import Array

Indices = npt.NDArray[np.int64]

HASH_CHUNK = 256


class ImageSource(Protocol):
    """Where the pixels of a data set are: an array, or files that are decoded when asked for."""

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of every image; None where images differ in size."""
        ...

    @property
    def dtype(self) -> str:
        """uint8 for images, int8 or float32 for tensors that were prepared elsewhere."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> Array:
        """The images at these places, [n, H, W, C]. Raises DataError naming a bad image."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory (or memory-mapped), [N, H, W, C]."""

    pixels: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width, channels = self.pixels.shape
        return height, width, channels

    @property
    def dtype(self) -> str:
        return str(self.pixels.dtype)

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, indices: Indices) -> Array:
        return np.ascontiguousarray(self.pixels[indices])


@dataclass(frozen=True)
class DataSet:
    """Images with labels.

    name: the data set's name ("digits", or its folder's or file's name).
    source: what ``open_dataset`` opens it with again: a built-in name or an absolute path.
    split: the named split it is ("" where the source has none).
    images: all images of the split; a subset shares them.
    ids: int64 [n], the places in ``images`` of this data set's images. They stay with an image
        through subsets and splits, and seed its corruption.
    labels: int64 [n], 0 <= label < number of classes.
    class_names: in label order; empty where the source has numbers only.
    skipped: files that could not be decoded and were left out at the user's wish.
    """

    name: str
    source: str
    split: str
    images: ImageSource
    ids: Indices
    labels: Indices
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of every image; None where images differ in size."""
        return self.images.shape

    @property
    def classes(self) -> int:
        """Number of classes: of the names, or the largest label + 1 where there are no names."""
        return len(self.class_names) or int(self.labels.max()) + 1

    def read(self, indices: Any) -> Array:
        """Raw images [n, H, W, C] at these places of this data set."""
        return self.images.read(self.ids[np.asarray(indices, np.int64)])

    def subset(self, indices: Any) -> DataSet:
        """The images at these places, in the order given."""
        chosen = np.asarray(indices, np.int64)
        return replace(self, ids=self.ids[chosen], labels=self.labels[chosen])

    def content_hash(self) -> str:
        """SHA-256 (hexadecimal) of class names, labels and decoded pixels, in order.

        It does not depend on the container: a folder of PNG files and an .npz with the same
        pixels, labels and names have one hash.
        """
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        digest.update(self.labels.astype("<i8").tobytes())
        for image in self._each():
            digest.update(repr((image.shape, str(image.dtype))).encode())
            digest.update(image.tobytes())
        return digest.hexdigest()

    def _each(self) -> Iterator[Array]:
        step = HASH_CHUNK if self.shape is not None else 1
        for start in range(0, len(self), step):
            yield from self.read(np.arange(start, min(start + step, len(self))))


def make_dataset(
    name: str,
    source: str,
    split: str,
    images: ImageSource,
    labels: Array,
    class_names: tuple[str, ...] = (),
    skipped: tuple[str, ...] = (),
) -> DataSet:
    """A whole split as a DataSet, after the checks that every format shares.

    Raises:
        DataError: no images; as many labels as images not given; labels that are no integers,
            negative or beyond the class names; fewer than two classes.
    """
    if not len(images):
        raise DataError("there are no images here", where=source)
    codes = _label_codes(labels, source)
    if len(codes) != len(images):
        raise DataError(
            "images and labels differ in number",
            where=source,
            got=f"{len(images)} images and {len(codes)} labels",
        )
    _check_label_range(codes, class_names, source)
    ids = np.arange(len(images), dtype=np.int64)
    return DataSet(name, source, split, images, ids, codes, class_names, skipped)


def _label_codes(labels: Array, source: str) -> Indices:
    """Labels as int64 [n]; a trailing axis of 1 is dropped."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            "labels must be class numbers",
            where=source,
            got=f"{labels.dtype}{list(labels.shape)}",
            wanted="integers of shape [N] or [N, 1]",
            hint="Turn one-hot labels into numbers with argmax(axis=1).",
        )
    return labels.astype(np.int64)


def _check_label_range(labels: Indices, class_names: tuple[str, ...], source: str) -> None:
    for bad in np.flatnonzero(labels < 0)[:1]:
        raise DataError(
            f"label {int(labels[bad])} of image {int(bad)} is negative",
            where=source,
            wanted="0 or more",
        )
    if class_names:
        for bad in np.flatnonzero(labels >= len(class_names))[:1]:
            raise DataError(
                f"label {int(labels[bad])} of image {int(bad)} has no class",
                where=source,
                wanted=f"less than {len(class_names)}",
            )
    if len(np.unique(labels)) < 2:
        raise DataError(
            "all images are of one class",
            where=source,
            got=f"label {int(labels[0])} only",
            wanted="two classes or more",
        )


def stable_keys(seed: int, ids: Indices) -> npt.NDArray[np.uint64]:
    """A 64-bit key for each image, from the seed and its id alone.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) applied twice: to the seed, and to the id
    added to the hashed seed. Arithmetic is modulo 2^64.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)

    def mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        z = z + golden
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    return mix(mix(np.array([seed & (2**64 - 1)], np.uint64)) + ids.astype(np.uint64))


def _quotas(counts: Indices, n: int) -> Indices:
    """n shared among classes in proportion to ``counts``, by largest remainder.

    Ties go to the class that stands first. No quota exceeds its count.
    """
    total = int(counts.sum())
    quotas = counts * n // total
    remainder = counts * n % total
    order = np.argsort(-remainder, kind="stable")
    quotas[order[: n - int(quotas.sum())]] += 1
    return quotas


def _stratified(dataset: DataSet, n: int, seed: int) -> Indices:
    """Places of n images with the classes in proportion, ascending."""
    keys = stable_keys(seed, dataset.ids)
    classes, counts = np.unique(dataset.labels, return_counts=True)
    chosen = []
    for label, quota in zip(classes, _quotas(counts.astype(np.int64), n), strict=True):
        members = np.flatnonzero(dataset.labels == label)
        order = np.lexsort((dataset.ids[members], keys[members]))
        chosen.append(members[order[:quota]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def limited(dataset: DataSet, n: int, seed: int = 0) -> DataSet:
    """At most n images with the classes in proportion, chosen by the seed, in their old order.

    Raises UsageError for n < 1.
    """
    if n < 1:
        raise UsageError("a data set must keep an image", where="--limit", got=n, wanted=">= 1")
    if n >= len(dataset):
        return dataset
    return dataset.subset(_stratified(dataset, n, seed))


def train_validation_split(
    dataset: DataSet, fraction: float = 0.1, seed: int = 0
) -> tuple[DataSet, DataSet]:
    """(training, validation): ``fraction`` of each class goes to validation, order is kept.

    Raises UsageError unless 0 < fraction < 1, DataError where a part would be empty.
    """
    if not 0.0 < fraction < 1.0:
        raise UsageError(
            "not a fraction", where="validation split", got=fraction, wanted="between 0 and 1"
        )
    n = round(len(dataset) * fraction)
    if not 0 < n < len(dataset):
        raise DataError(
            "too few images to split",
            where=dataset.source,
            got=f"{len(dataset)} images and a validation fraction of {fraction:g}",
        )
    held_out = _stratified(dataset, n, seed)
    kept = np.setdiff1d(np.arange(len(dataset)), held_out)
    return dataset.subset(kept), dataset.subset(held_out)
