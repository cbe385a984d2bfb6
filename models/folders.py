"""Image files: a folder a class, or a folder with an index.csv."""

from __future__ import annotations

import csv
import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from npusim.errors import DataError
from npusim.files import check_regular
from npusim.ir import Array
from npusim.models.dataset import DataSet, Indices, make_dataset

SUFFIXES = (".jpg", ".jpeg", ".png")
SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
INDEX = "index.csv"

# What Pillow raises for files that are no images, are cut short or are damaged.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image on disk. digest: its SHA-256 where an index gives one, else empty."""

    path: Path
    label: int
    digest: str = ""


@dataclass(frozen=True)
class FileImages:
    """JPEG and PNG files, decoded when they are read.

    mode: "L" where every file is grey, else "RGB" (alpha is dropped, palettes are resolved).
    """

    files: tuple[ImageFile, ...]
    mode: str
    shape: tuple[int, int, int] | None

    @property
    def dtype(self) -> str:
        return "uint8"

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Indices) -> Array:
        images = [decode(self.files[i], self.mode) for i in indices]
        shapes = sorted({image.shape for image in images})
        if len(shapes) > 1:
            raise DataError(
                "images of several sizes are no one array",
                where=str(self.files[indices[0]].path.parent),
                got=", ".join(f"{h}x{w}" for h, w, _ in shapes[:3]),
                hint="Read them one by one, or resize them.",
            )
        return np.stack(images)


@contextmanager
def _opened(source: Path | io.BytesIO) -> Iterator[Image.Image]:
    """The image, with too many pixels an error and remarks on metadata and transparency silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(source, formats=("JPEG", "PNG")) as image:
            yield image


def decode(file: ImageFile, mode: str) -> Array:
    """The pixels of a file, uint8 [H, W, 1 or 3]. Raises DataError naming a corrupt file."""
    try:
        check_regular(file.path)
        data = file.path.read_bytes()
        if file.digest and hashlib.sha256(data).hexdigest() != file.digest:
            raise DataError(
                f"the file is not the one that {INDEX} lists",
                where=str(file.path),
                got="another SHA-256",
            )
        with _opened(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert(mode), np.uint8)
    except DECODE_ERRORS as error:
        raise _corrupt(file.path, error) from None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _corrupt(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, UnidentifiedImageError):  # its text names a buffer, or the path again
        reason = "neither a JPEG nor a PNG file"
    elif isinstance(error, OSError):  # its text would name the path again
        reason = error.strerror or reason
    return DataError(
        "the image cannot be decoded",
        where=str(path),
        got=reason,
        hint="Repair or remove it, or leave such images out with --skip-corrupt.",
    )


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    """(mode, (width, height)) without decoding the pixels."""
    try:
        check_regular(path)
        with _opened(path) as image:
            mode, size = image.mode, image.size
    except DECODE_ERRORS as error:
        raise _corrupt(path, error) from None
    if mode.startswith(("I", "F")):
        raise DataError(
            "images of more than 8 bits a channel are not read",
            where=str(path),
            got=f"mode {mode}",
            hint="Convert them to 8 bits, or store them as floats in an .npz.",
        )
    return mode, size


def subfolders(folder: Path) -> list[Path]:
    """Visible folders inside this one, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def folder_splits(folder: Path) -> tuple[str, ...]:
    """Names of the splits where the folders inside are train, test, ... and no classes."""
    names = [p.name for p in subfolders(folder)]
    return tuple(names) if names and all(n.lower() in SPLIT_NAMES for n in names) else ()


def load_class_folders(folder: Path, split: str, skip_corrupt: bool) -> DataSet:
    """``folder[/split]/<class>/*.jpg|jpeg|png``; classes are the folders, sorted by name.

    A class is numbered over the folders of all splits, so that a split may lack one.

    Raises:
        DataError: a class folder without images, one class only, a corrupt image.
    """
    roots = [folder / name for name in folder_splits(folder)] or [folder]
    names = tuple(sorted({c.name for root in roots for c in subfolders(root)}))
    present = subfolders(folder / split if split else folder)
    files = [
        ImageFile(path, names.index(class_folder.name))
        for class_folder in present
        for path in _class_images(class_folder)
    ]
    dataset = _dataset(folder, split, files, names, skip_corrupt)
    for class_folder in present:
        if not (dataset.labels == names.index(class_folder.name)).any():
            raise DataError("no image of this class can be decoded", where=str(class_folder))
    return dataset


def _class_images(folder: Path) -> list[Path]:
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(
            "the class folder holds no images",
            where=str(folder),
            wanted=f"files ending in {', '.join(SUFFIXES)}",
            hint="Remove the folder if the class is not wanted.",
        )
    return paths


def _dataset(
    folder: Path,
    split: str,
    files: Sequence[ImageFile],
    class_names: tuple[str, ...],
    skip_corrupt: bool,
) -> DataSet:
    kept, skipped = _without_corrupt(files) if skip_corrupt else (tuple(files), ())
    if not kept:
        raise DataError(
            "no image here can be decoded", where=str(folder), got=f"{len(skipped)} bad files"
        )
    headers = [_header(file.path) for file in kept]
    mode = "L" if all(mode in ("L", "1") for mode, _ in headers) else "RGB"
    sizes = {size for _, size in headers}
    width, height = headers[0][1]
    shape = (height, width, len(mode)) if len(sizes) == 1 else None
    labels = np.array([file.label for file in kept], np.int64)
    return make_dataset(
        folder.name, str(folder), split, FileImages(kept, mode, shape), labels, class_names, skipped
    )


def _without_corrupt(
    files: Sequence[ImageFile],
) -> tuple[tuple[ImageFile, ...], tuple[str, ...]]:
    """(files that decode, names of those that do not): every file is decoded once."""
    kept, skipped = [], []
    for file in files:
        try:
            decode(file, "RGB")
        except DataError:
            skipped.append(str(file.path))
        else:
            kept.append(file)
    return tuple(kept), tuple(skipped)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A line of index.csv: where the image is, its class's name, its split and its SHA-256."""

    path: Path
    class_name: str
    split: str
    digest: str


def read_index(folder: Path) -> tuple[IndexRow, ...]:
    """The images that ``folder/index.csv`` lists.

    Columns: ``file`` (a path inside the folder), optionally ``label`` or ``class`` (a name or a
    number), ``split`` and ``sha256``; others are ignored. Without a label column the class is the
    folder that holds the file; without a split column the split is the folder above the class.

    Raises:
        DataError: no ``file`` column, an empty index, a path that leaves the folder.
    """
    index = folder / INDEX
    try:
        check_regular(index)
        with index.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream, strict=True)
            columns = tuple(reader.fieldnames or ())
            records = [{k: v or "" for k, v in r.items() if k} for r in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError("the index cannot be read", where=str(index), got=error) from None
    if "file" not in columns or not records:
        raise DataError(
            "the index lists no files",
            where=str(index),
            got=f"columns {', '.join(columns) or 'none'} and {len(records)} rows",
            wanted="a column named file, and a row an image",
        )
    return tuple(_index_row(folder, r) for r in records)


def _index_row(folder: Path, record: dict[str, str]) -> IndexRow:
    relative = Path(record["file"])
    if relative.is_absolute() or ".." in relative.parts or not record["file"]:
        raise DataError(
            "a listed file lies outside the folder",
            where=str(folder / INDEX),
            got=repr(record["file"]),
            wanted="a path inside the folder",
        )
    above = relative.parts[:-1]
    label = record.get("label") or record.get("class") or (above[-1] if above else "")
    split = record.get("split") or (above[-2] if len(above) > 1 else "")
    if not label:
        raise DataError("a listed file has no class", where=str(folder / INDEX), got=relative)
    return IndexRow(folder / relative, label, split, record.get("sha256", ""))


def index_splits(folder: Path) -> tuple[str, ...]:
    """Splits that index.csv names, sorted."""
    return tuple(sorted({row.split for row in read_index(folder)} - {""}))


def load_indexed(folder: Path, split: str, skip_corrupt: bool) -> DataSet:
    """The images of one split that index.csv lists, in its order.

    Class names are sorted (as numbers where all are numbers) over all splits, so that a label
    means the same class in each of them.
    """
    rows = read_index(folder)
    names = {row.class_name for row in rows}
    if all(n.isdecimal() for n in names):
        class_names = tuple(sorted(names, key=int))
    else:
        class_names = tuple(sorted(names))
    number = {name: i for i, name in enumerate(class_names)}
    files = [
        ImageFile(r.path, number[r.class_name], r.digest) for r in rows if r.split in (split, "")
    ]
    return _dataset(folder, split, files, class_names, skip_corrupt)
