"""Arrays in one file: .npz (NumPy) and .h5 (HDF5) with ``x`` and ``y``.

A file may hold one split (``x``, ``y``) or several (``x_train``, ``y_train``, ``x_test``, ...),
and ``class_names``, an array of strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from npusim.arrays import damage
from npusim.errors import DataError
from npusim.ir import Array
from npusim.models.dataset import ArrayImages, DataSet, make_dataset

NPZ_SUFFIXES = (".npz",)
HDF5_SUFFIXES = (".h5", ".hdf5")
CHANNEL_COUNTS = (1, 3)


def table_splits(path: Path) -> tuple[str, ...]:
    """Splits of the file: the endings of its x_<split> arrays; () where it holds plain x."""
    names = _names(path)
    if "x" in names:
        return ()
    return tuple(sorted(n[2:] for n in names if n.startswith("x_") and f"y_{n[2:]}" in names))


def load_table(path: Path, split: str, skip_corrupt: bool) -> DataSet:
    """x and y of a split.

    x: uint8 pixels (other integers are taken where they fit), int8 codes or floats; [N, H, W],
       [N, H, W, C], [N, C, H, W] (C of 1 or 3) or [N, features].
    y: integers [N] or [N, 1].

    Raises:
        DataError: an array is missing, is no numbers, holds NaN, or the two differ in length.
    """
    end = f"_{split}" if split else ""
    arrays = _read(path, (f"x{end}", f"y{end}"), ("class_names",))
    names = arrays.get("class_names")
    return make_dataset(
        path.stem,
        str(path),
        split,
        ArrayImages(as_images(arrays[f"x{end}"], f"{path}: x{end}")),
        arrays[f"y{end}"],
        () if names is None else tuple(_text(n) for n in names.ravel().tolist()),
    )


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _names(path: Path) -> tuple[str, ...]:
    if path.suffix.lower() in NPZ_SUFFIXES:
        try:
            with path.open("rb") as stream, NpzFile(stream, allow_pickle=False) as archive:
                return tuple(archive.files)
        except Exception as error:  # NumPy's parser raises almost anything on a damaged file
            raise _unreadable(path, error) from None
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return tuple(k for k, v in file.items() if isinstance(v, h5py.Dataset))
    except (OSError, RuntimeError, KeyError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError("the file cannot be read", where=str(path), got=damage(error))


def _read(path: Path, wanted: tuple[str, ...], optional: tuple[str, ...]) -> Mapping[str, Array]:
    names = _names(path)
    for name in wanted:
        if name not in names:
            raise DataError(
                f"the file holds no array {name}",
                where=str(path),
                got=", ".join(names) or "no arrays",
                hint="Store images as x and class numbers as y.",
            )
    chosen = [n for n in (*wanted, *optional) if n in names]
    if path.suffix.lower() in NPZ_SUFFIXES:
        try:
            with path.open("rb") as stream, NpzFile(stream, allow_pickle=False) as archive:
                return {n: archive[n] for n in chosen}
        except Exception as error:  # as above
            raise _unreadable(path, error) from None
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return {n: np.asarray(file[n][()]) for n in chosen}
    except (OSError, RuntimeError) as error:
        raise _unreadable(path, error) from None


def as_images(x: Array, where: str) -> Array:
    """x as [N, H, W, C] of uint8, int8 or float32.

    [N, C, H, W] is recognised where axis 1 is 1 or 3 and the last axis is not. [N, features]
    becomes [N, 1, features, 1], which flattens back to itself.

    Raises DataError for other shapes and types, and for values that are not finite.
    """
    pixels = _plain_numbers(x, where)
    if pixels.ndim == 2:
        return pixels[:, None, :, None]
    if pixels.ndim == 3:
        return pixels[..., None]
    if pixels.ndim == 4:
        channels_last = pixels.shape[3] in CHANNEL_COUNTS
        if not channels_last and pixels.shape[1] in CHANNEL_COUNTS:
            return pixels.transpose(0, 2, 3, 1)
        if channels_last:
            return pixels
    raise DataError(
        "images have an unexpected shape",
        where=where,
        got=list(x.shape),
        wanted="[N, H, W], [N, H, W, 1 or 3], [N, 1 or 3, H, W] or [N, features]",
    )


def _plain_numbers(x: Array, where: str) -> Array:
    if x.dtype.kind == "f":
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            raise DataError(
                f"image {bad[0][0]} holds a value that is no finite number",
                where=where,
                got=x[tuple(bad[0])],
            )
        return x.astype(np.float32)
    if x.dtype in (np.uint8, np.int8):
        return x
    if x.dtype.kind in "iu" and x.size and x.min() >= 0 and x.max() <= 255:
        return x.astype(np.uint8)
    raise DataError(
        "pixels have an unexpected type or range",
        where=where,
        got=x.dtype,
        wanted="uint8, int8, a float, or integers in 0..255",
    )
