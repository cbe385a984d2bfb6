"""Named arrays in files: .npz for several, .npy for one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from npusim.errors import DataError, UsageError
from npusim.files import check_regular, replacing
from npusim.ir import Array

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every member, so that equal arrays make equal files."""


def read_arrays(path: Path, names: Sequence[str]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The arrays of a .npz that bear these names, or the one array of a .npy.

    Returns:
        name -> array, and the names in the file that nobody asked for.

    Raises:
        DataError: the file is damaged, lacks a name, or is a .npy where several are wanted.
        OSError: the file cannot be opened.
    """
    found = load_arrays(path)
    if isinstance(found, np.ndarray):
        if len(names) != 1:
            raise DataError(
                "one array for several inputs",
                where=str(path),
                wanted=f"an .npz with {', '.join(names)}",
            )
        return {names[0]: found}, ()
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"no array named {', '.join(missing)}",
            where=str(path),
            got=", ".join(found) or "no array at all",
            wanted=", ".join(names),
            hint="Name the arrays of the .npz after the model's inputs (`npusim inspect`).",
        )
    return {name: found[name] for name in names}, tuple(k for k in found if k not in names)


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """Everything in a .npz, by name, or the one array of a .npy.

    Raises:
        DataError: the file is damaged.
        OSError: the file cannot be opened, or is none (a pipe, a folder).
    """
    try:
        check_regular(path)
        # Given a path, numpy.load leaves a damaged archive open.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(
            "cannot be read as arrays",
            where=str(path),
            got=damage(error),
            wanted="a .npz or .npy of numbers, as numpy.savez and numpy.save write them",
        ) from error


def damage(error: Exception) -> str:
    """What NumPy found wrong with a file; its advice to load pickles, which run code, left out."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "Object arrays" in text:
        return "Python objects, which are not read"
    return "another kind of file" if "pickle" in text else text


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes a .npz, or a .npy if the path ends so; equal arrays make equal bytes.

    numpy.savez cannot take an array named "file" and stamps each member with the time.

    Raises:
        UsageError: another ending, or several arrays for a .npy.
        OSError: the file cannot be written; then an older file of that name is left as it was.
    """
    check_output(path)
    if path.suffix == ".npy" and len(arrays) != 1:
        raise UsageError(
            f"{len(arrays)} arrays do not fit one .npy", where=str(path), wanted="a .npz"
        )
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def check_output(path: Path) -> None:
    """Refuses a path that write_arrays could not write, before any work is done.

    Raises:
        UsageError: not a .npz or .npy, or its folder does not exist.
    """
    if path.suffix not in {".npz", ".npy"}:
        raise UsageError(
            "unknown file type", where=str(path), wanted="a name ending in .npz or .npy"
        )
    if not path.parent.is_dir():
        raise UsageError(
            "the folder does not exist", where=str(path.parent), hint="Create it first."
        )
