"""CIFAR-10's batches, the Python version (pickles) and the binary version.

Format: https://www.cs.toronto.edu/~kriz/cifar.html (32x32 RGB, channel by channel, rows first).
The pickles are read by an unpickler that knows NumPy arrays of bytes and Python's plain types and
nothing else, and that builds them itself: a batch cannot name a function to call.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import DataError
from npusim.ir import Array
from npusim.models.dataset import ArrayImages, DataSet, make_dataset

SIZE = 32
IMAGE_BYTES = 3 * SIZE * SIZE
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def batch_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Split -> its batch files, of the Python version or else of the binary one."""
    for end in ("", ".bin"):
        train = [folder / f"data_batch_{i}{end}" for i in range(1, 6)]
        groups = {"test": [folder / f"test_batch{end}"], "train": train}
        found = {s: tuple(p for p in ps if p.is_file()) for s, ps in groups.items()}
        if any(found.values()):
            return {s: ps for s, ps in found.items() if ps}
    return {}


def cifar10_splits(folder: Path) -> tuple[str, ...]:
    return tuple(batch_files(folder))


def load_cifar10(folder: Path, split: str, skip_corrupt: bool) -> DataSet:
    """All batches of a split that are there. Raises DataError for a damaged or hostile batch."""
    batches = [
        read_binary(path) if path.suffix == ".bin" else read_pickled(path)
        for path in batch_files(folder)[split]
    ]
    x = np.concatenate([x for x, _ in batches])
    y = np.concatenate([y for _, y in batches])
    images = x.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    return make_dataset(folder.name, str(folder), split, ArrayImages(images), y, CLASS_NAMES)


def read_binary(path: Path) -> tuple[Array, Array]:
    """(pixels uint8 [n, 3072], labels int64 [n]) of a .bin batch: a label byte, then the image."""
    data = np.fromfile(path, np.uint8)
    if data.size == 0 or data.size % (IMAGE_BYTES + 1):
        raise DataError(
            "the batch does not hold whole images",
            where=str(path),
            got=f"{data.size} bytes",
            wanted=f"a multiple of {IMAGE_BYTES + 1}",
        )
    records = data.reshape(-1, IMAGE_BYTES + 1)
    return records[:, 1:], records[:, 0].astype(np.int64)


def read_pickled(path: Path) -> tuple[Array, Array]:
    """(pixels uint8 [n, 3072], labels int64 [n]) of a pickled batch."""
    try:
        with path.open("rb") as stream:
            batch = _BatchUnpickler(stream, encoding="bytes").load()
        fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()}
        x = fields["data"].array.reshape(-1, IMAGE_BYTES)
        labels = fields["labels"]
        y = np.array([int(v) for v in labels], np.int64)
    except DataError as error:
        raise DataError(error.problem, where=str(path), got=error.got, hint=error.hint) from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(
            "not a CIFAR-10 batch",
            where=str(path),
            got=f"{type(error).__name__}: {error}",
            wanted="a pickled dictionary with data [n, 3072] and labels",
        ) from None
    return x, y


class _Dtype:
    """Stands for numpy.dtype in a pickle. Only bytes are accepted, so its state says nothing."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise DataError("a batch holds an array that is no bytes", got=code, wanted="uint8")

    def __setstate__(self, state: Any) -> None:
        del state


class _PickledArray:
    """Stands for numpy.ndarray in a pickle."""

    array: Array

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, raw = state
        assert isinstance(dtype, _Dtype)
        flat = np.frombuffer(raw, np.uint8)
        self.array = flat.reshape(shape, order="F" if column_major else "C")


def _reconstruct(*_: Any) -> _PickledArray:
    return _PickledArray()


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _PickledArray:
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order in ("F", b"F"), raw))
    return array


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise DataError("a batch holds text in an unexpected encoding", got=encoding)
    return text.encode("latin1")


_KNOWN: dict[str, Any] = {
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _PickledArray,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy.core.numeric._frombuffer": _frombuffer,
    "numpy._core.numeric._frombuffer": _frombuffer,
    "_codecs.encode": _encode,
}


class _BatchUnpickler(pickle.Unpickler):
    """An unpickler whose every global is one of the harmless stand-ins above."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get(f"{module}.{name}")
        if known is None:
            raise DataError(
                "the pickle asks for something that no CIFAR-10 batch needs",
                got=f"{module}.{name}",
                hint="Do not use this file: loading it with Python's pickle would run code.",
            )
        return known
