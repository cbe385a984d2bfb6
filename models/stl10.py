"""STL-10's binaries: train_X.bin, train_y.bin, test_X.bin, test_y.bin, class_names.txt.

Format: https://cs.stanford.edu/~acoates/stl10 (96x96 RGB, one byte a value, channel by channel,
each channel in column-major order; labels 1..10).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npusim.errors import DataError
from npusim.models.dataset import ArrayImages, DataSet, make_dataset

SIZE = 96
IMAGE_BYTES = 3 * SIZE * SIZE
CLASS_NAMES = (
    "airplane",
    "bird",
    "car",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
)


def stl10_splits(folder: Path) -> tuple[str, ...]:
    """Splits whose images are there (the unlabelled images are none)."""
    return tuple(s for s in ("test", "train") if (folder / f"{s}_X.bin").is_file())


def load_stl10(folder: Path, split: str, skip_corrupt: bool) -> DataSet:
    """One split; the images are memory-mapped. Raises DataError for files of a wrong length."""
    images, labels = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
    if not labels.is_file():
        raise DataError("its labels are missing", where=str(images), wanted=labels.name)
    size = images.stat().st_size
    if size == 0 or size % IMAGE_BYTES:
        raise DataError(
            "the file does not hold whole images",
            where=str(images),
            got=f"{size} bytes",
            wanted=f"a multiple of {IMAGE_BYTES}",
        )
    columns = np.memmap(images, np.uint8, "r").reshape(-1, 3, SIZE, SIZE)
    y = np.fromfile(labels, np.uint8).astype(np.int64) - 1
    return make_dataset(
        folder.name,
        str(folder),
        split,
        ArrayImages(columns.transpose(0, 3, 2, 1)),
        y,
        _class_names(folder),
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    path = folder / "class_names.txt"
    if not path.is_file():
        return CLASS_NAMES
    return tuple(path.read_text("utf-8", errors="replace").split())
