"""One way in to every data set: ``open_dataset`` recognises the format by what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npusim.errors import DataError
from npusim.models import cifar10, digits, folders, mnist, stl10, tables
from npusim.models.dataset import DataSet

BUILT_IN = (digits.NAME,)

# Names under which a preferred split is looked for, best first.
SYNONYMS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation"),
}


@dataclass(frozen=True, slots=True)
class Format:
    """How a format is recognised and read.

    matches: True for a path of this format. splits: its named splits, sorted, () for none.
    load: (path, split or "", skip_corrupt) -> DataSet.
    """

    name: str
    matches: Callable[[Path], bool]
    splits: Callable[[Path], tuple[str, ...]]
    load: Callable[[Path, str, bool], DataSet]


def _is_table(path: Path) -> bool:
    suffixes = tables.NPZ_SUFFIXES + tables.HDF5_SUFFIXES
    return path.is_file() and path.suffix.lower() in suffixes


# The first match wins: files that only one format has stand before plain folders.
FORMATS = (
    Format(".npz or .h5 with x and y", _is_table, tables.table_splits, tables.load_table),
    Format(
        f"image files listed in {folders.INDEX}",
        lambda path: (path / folders.INDEX).is_file(),
        folders.index_splits,
        folders.load_indexed,
    ),
    Format(
        "CIFAR-10 batches",
        lambda path: path.is_dir() and bool(cifar10.batch_files(path)),
        cifar10.cifar10_splits,
        cifar10.load_cifar10,
    ),
    Format(
        "STL-10 binaries",
        lambda path: path.is_dir() and bool(stl10.stl10_splits(path)),
        stl10.stl10_splits,
        stl10.load_stl10,
    ),
    Format(
        "MNIST idx files",
        lambda path: path.is_dir() and bool(mnist.image_files(path)),
        mnist.mnist_splits,
        mnist.load_mnist,
    ),
    Format(
        "a folder a class of JPEG or PNG files",
        lambda path: path.is_dir() and bool(folders.subfolders(path)),
        folders.folder_splits,
        folders.load_class_folders,
    ),
)


def dataset_splits(spec: str) -> tuple[str, ...]:
    """Named splits of a data set, sorted; () where it has none. Raises as ``open_dataset``."""
    if spec in BUILT_IN:
        return digits.SPLITS
    path = _existing(spec)
    return _format_of(path).splits(path)


def open_dataset(
    spec: str,
    split: str | None = None,
    *,
    prefer: str | None = None,
    skip_corrupt: bool = False,
) -> DataSet:
    """Reads a data set; pixels of image files are decoded later, when they are asked for.

    Args:
        spec: "digits" (./digits is a folder of that name), or a path: class folders (with or
            without train/ and test/ above them), a folder with index.csv, .npz or .h5 with x and
            y, MNIST idx files, STL-10 binaries, CIFAR-10 batches (Python or binary).
        split: the named split to read; a source without splits has none to name.
        prefer: the split to read where ``split`` is not given and the source has several:
            "train" or "test" (validation where there is no test).
        skip_corrupt: leave images out that cannot be decoded (they are listed in ``skipped``);
            all files are decoded once for this.

    Raises:
        DataError: nothing is there, the format is none of these, the split does not exist, or
            what ``make_dataset`` and the format's own reader refuse.

    Example:
        >>> len(open_dataset("digits", "test"))
        797
    """
    if spec in BUILT_IN:
        return digits.load_digits_split(_choose(spec, digits.SPLITS, split, prefer))
    path = _existing(spec)
    try:
        form = _format_of(path)
        return form.load(path, _choose(spec, form.splits(path), split, prefer), skip_corrupt)
    except OSError as error:
        raise DataError("the data set cannot be read", where=spec, got=error) from None


def _existing(spec: str) -> Path:
    path = Path(spec).expanduser()
    if not path.exists():
        raise DataError(
            "there is no such data set",
            where=spec,
            wanted=f"a path, or a built-in name ({', '.join(BUILT_IN)})",
        )
    return path.resolve()


def _format_of(path: Path) -> Format:
    for form in FORMATS:
        if form.matches(path):
            return form
    raise DataError(
        "the data set's format is not recognised",
        where=str(path),
        got="an empty folder" if path.is_dir() and not any(path.iterdir()) else None,
        wanted="; ".join(form.name for form in FORMATS),
        hint="Unpack archives first.",
    )


def _choose(spec: str, splits: tuple[str, ...], split: str | None, prefer: str | None) -> str:
    """The split to read, "" where the source has none."""
    if split is not None:
        if split in splits:
            return split
        raise DataError(
            f"the data set has no split {split!r}",
            where=spec,
            got=", ".join(splits) or "no named splits",
        )
    if not splits:
        return ""
    lower = {name.lower(): name for name in splits}
    for name in SYNONYMS.get(prefer or "", (prefer,)):
        if name in lower:
            return lower[name]
    if len(splits) == 1:
        return splits[0]
    raise DataError(
        "the data set has several splits",
        where=spec,
        got=", ".join(splits),
        hint="Name one with --split.",
    )
