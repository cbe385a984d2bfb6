"""MNIST's idx files, plain or gzipped.

Format: http://yann.lecun.com/exdb/mnist (two zero bytes, the type 0x08 = uint8, the number of
axes, the big-endian sizes, the data). Images and labels are paired by name:
``<prefix>-images-idx3-ubyte[.gz]`` with ``<prefix>-labels-idx1-ubyte[.gz]`` ("." in place of the
last "-" is accepted). The prefix is the split; ``t10k`` is called ``test``.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from npusim.errors import DataError
from npusim.ir import Array
from npusim.models.dataset import ArrayImages, DataSet, make_dataset

IMAGES = re.compile(r"(?P<prefix>.+)-images[-.]idx3-ubyte(\.gz)?")
UINT8 = 0x08


def image_files(folder: Path) -> dict[str, Path]:
    """Split -> file of its images."""
    found = {}
    for path in sorted(folder.iterdir()):
        match = IMAGES.fullmatch(path.name)
        if match and path.is_file():
            prefix = match["prefix"]
            found["test" if prefix == "t10k" else prefix] = path
    return found


def mnist_splits(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(image_files(folder)))


def load_mnist(folder: Path, split: str, skip_corrupt: bool) -> DataSet:
    """One split of a folder of idx files. Raises DataError for a missing pair or damaged file."""
    images = image_files(folder)[split]
    x = read_idx(images)
    y = read_idx(_labels_of(images))
    if x.ndim != 3 or y.ndim != 1:
        raise DataError(
            "images must have three axes and labels one",
            where=str(images),
            got=f"{x.ndim} and {y.ndim}",
        )
    names = tuple(str(i) for i in range(max(10, int(y.max(initial=0)) + 1)))
    return make_dataset(folder.name, str(folder), split, ArrayImages(x[..., None]), y, names)


def _labels_of(images: Path) -> Path:
    plain = images.name.replace("-images", "-labels").replace("idx3", "idx1")
    stem = plain.removesuffix(".gz")
    for name in (stem, f"{stem}.gz"):
        if (images.parent / name).is_file():
            return images.parent / name
    raise DataError("its labels are missing", where=str(images), wanted=f"{stem}[.gz] beside it")


def read_idx(path: Path) -> Array:
    """The uint8 array of an idx file. Raises DataError for another type or a wrong length."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("the file cannot be read", where=str(path), got=error) from None
    if len(data) < 4 or data[:3] != bytes((0, 0, UINT8)) or len(data) < 4 + 4 * data[3]:
        raise DataError(
            "not an idx file of bytes", where=str(path), got=data[:4].hex() or "0 bytes"
        )
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if values.size != int(np.prod(shape, dtype=object)):
        raise DataError(
            "the file is cut short or too long",
            where=str(path),
            got=f"{values.size} bytes",
            wanted=f"{'*'.join(map(str, shape))} bytes",
        )
    return values.reshape(shape)
