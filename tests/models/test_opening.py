"""Formats that are no image files, and what is refused."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from npusim.errors import DataError
from npusim.models import dataset_splits, open_dataset

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 9, 1, 0])


def read_all(spec: Path, split: str | None = None) -> np.ndarray:
    dataset = open_dataset(str(spec), split)
    return dataset.read(np.arange(len(dataset)))


def save(path: Path, **arrays: Any) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, value in arrays.items():
                file[name] = value
    return path


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.hdf5"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_tables(tmp_path: Path, name: str, layout: str) -> None:
    x = IMAGES if layout == "NHWC" else IMAGES.transpose(0, 3, 1, 2)
    path = save(tmp_path / name, x=x, y=LABELS[:, None])
    np.testing.assert_array_equal(read_all(path), IMAGES)
    dataset = open_dataset(str(path))
    assert dataset.labels.tolist() == LABELS.tolist()
    assert (dataset.name, dataset.class_names, dataset.classes) == ("a", (), 10)


@pytest.mark.parametrize("name", ["a.npz", "a.h5"])
def test_tables_with_splits_and_class_names(tmp_path: Path, name: str) -> None:
    names = np.array([f"class {i}".encode() for i in range(10)])
    path = save(
        tmp_path / name,
        x_train=IMAGES[..., 0],
        y_train=LABELS,
        x_test=IMAGES[:3, ..., 0],
        y_test=LABELS[:3],
        class_names=names,
    )
    assert dataset_splits(str(path)) == ("test", "train")
    dataset = open_dataset(str(path), prefer="train")
    assert (len(dataset), dataset.shape) == (6, (32, 32, 1))
    assert dataset.class_names[9] == "class 9"


def test_feature_vectors_and_floats(tmp_path: Path) -> None:
    x = RNG.normal(size=(6, 5))
    dataset = open_dataset(str(save(tmp_path / "f.npz", x=x, y=LABELS)))
    assert (dataset.shape, dataset.images.dtype) == ((1, 5, 1), "float32")


BAD_TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "no y": ({"x": IMAGES}, "no array y"),
    "lengths": ({"x": IMAGES, "y": LABELS[:5]}, "6 images and 5 labels"),
    "NaN": ({"x": np.where(np.arange(12).reshape(6, 2) == 5, np.nan, 0.0), "y": LABELS}, "image 2"),
    "negative": ({"x": IMAGES, "y": LABELS - 1}, "label -1 of image 0 is negative"),
    "one hot": ({"x": IMAGES, "y": np.eye(10, dtype=int)[LABELS]}, "argmax"),
    "float labels": ({"x": IMAGES, "y": LABELS * 1.0}, "class numbers"),
    "one class": ({"x": IMAGES, "y": LABELS * 0}, "one class"),
    "range": ({"x": IMAGES.astype(int) * 2, "y": LABELS}, "unexpected type or range"),
    "text": ({"x": np.array([b"a"] * 6), "y": LABELS}, "unexpected type"),
    "axes": ({"x": IMAGES[..., None], "y": LABELS}, "unexpected shape"),
    "channels": ({"x": np.zeros((6, 8, 8, 5), np.uint8), "y": LABELS}, "unexpected shape"),
    "empty": ({"x": IMAGES[:0], "y": LABELS[:0]}, "no images"),
    "names": ({"x": IMAGES, "y": LABELS, "class_names": np.array([b"a", b"b"])}, "has no class"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
@pytest.mark.parametrize("name", ["a.npz", "a.h5"])
def test_bad_tables_are_refused(tmp_path: Path, case: str, name: str) -> None:
    arrays, message = BAD_TABLES[case]
    path = save(tmp_path / name, **arrays)
    with pytest.raises(DataError, match=message):
        open_dataset(str(path))


@pytest.mark.parametrize("name", ["a.npz", "a.h5"])
def test_damaged_tables_are_refused(tmp_path: Path, name: str) -> None:
    whole = save(tmp_path / name, x=IMAGES, y=LABELS).read_bytes()
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], b"\x93NUMPY" + bytes(99)):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            open_dataset(str(tmp_path / name))


class Bomb:
    """What a hostile pickle would call."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_an_npz_with_a_pickle_is_refused(tmp_path: Path) -> None:
    x = np.array([Bomb(tmp_path / "ran")] * 6, object)
    path = save(tmp_path / "a.npz", x=x, y=LABELS)
    with pytest.raises(DataError, match="cannot be read"):
        open_dataset(str(path))
    assert not (tmp_path / "ran").exists()


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def test_mnist_pairs_by_name_plain_or_gzipped(tmp_path: Path) -> None:
    grey = np.ascontiguousarray(IMAGES[..., 0])
    labels = LABELS.astype(np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(grey))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    (tmp_path / "t10k-images.idx3-ubyte.gz").write_bytes(gzip.compress(idx(grey[:4])))
    (tmp_path / "t10k-labels.idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[:4])))
    assert dataset_splits(str(tmp_path)) == ("test", "train")
    np.testing.assert_array_equal(read_all(tmp_path, "train")[..., 0], grey)
    np.testing.assert_array_equal(read_all(tmp_path, "test")[..., 0], grey[:4])
    assert len(open_dataset(str(tmp_path), "test").class_names) == 10


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(IMAGES[..., 0])[:-1], idx(LABELS.astype(np.uint8)), "cut short"),
        (b"\0\0\x0d\x03", idx(LABELS.astype(np.uint8)), "not an idx file"),
        (b"", idx(LABELS.astype(np.uint8)), "not an idx file"),
        (idx(IMAGES[..., 0]), None, "labels are missing"),
        (idx(IMAGES[..., 0]), idx(LABELS[:5].astype(np.uint8)), "6 images and 5 labels"),
        (idx(LABELS.astype(np.uint8)), idx(LABELS.astype(np.uint8)), "three axes"),
    ],
)
def test_bad_idx_files_are_refused(
    tmp_path: Path, images: bytes, labels: bytes | None, message: str
) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    if labels is not None:
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path))


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(idx(IMAGES[..., 0]))
    for damaged in (packed[:50], b"nothing", packed[:-8] + bytes(8)):
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            open_dataset(str(tmp_path))


def test_the_public_mnist(shared: Path) -> None:
    dataset = open_dataset(str(shared / "data" / "mnist"))
    assert (len(dataset), dataset.shape, dataset.split) == (10000, (28, 28, 1), "test")
    assert dataset.labels[:3].tolist() == [7, 2, 1]


def test_stl10_is_column_major_with_labels_from_one(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (3, 96, 96, 3)).astype(np.uint8)
    (tmp_path / "train_X.bin").write_bytes(x.transpose(0, 3, 2, 1).tobytes())
    (tmp_path / "train_y.bin").write_bytes(bytes((1, 10, 2)))
    np.testing.assert_array_equal(read_all(tmp_path), x)
    dataset = open_dataset(str(tmp_path))
    assert dataset.labels.tolist() == [0, 9, 1]
    assert dataset.class_names[9] == "truck"
    (tmp_path / "train_y.bin").write_bytes(bytes((1, 11, 2)))
    with pytest.raises(DataError, match="label 10 of image 1 has no class"):
        open_dataset(str(tmp_path))
    (tmp_path / "train_X.bin").write_bytes(bytes(100))
    with pytest.raises(DataError, match="whole images"):
        open_dataset(str(tmp_path))


def test_cifar10_binary(tmp_path: Path) -> None:
    planes = IMAGES.transpose(0, 3, 1, 2).reshape(6, -1)
    records = np.concatenate([LABELS[:, None].astype(np.uint8), planes], axis=1)
    (tmp_path / "data_batch_2.bin").write_bytes(records[3:].tobytes())
    (tmp_path / "data_batch_1.bin").write_bytes(records[:3].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[:4].tobytes())
    np.testing.assert_array_equal(read_all(tmp_path, "train"), IMAGES)
    assert open_dataset(str(tmp_path), "test").labels.tolist() == LABELS[:4].tolist()
    (tmp_path / "test_batch.bin").write_bytes(records[:4].tobytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin.*whole images"):
        open_dataset(str(tmp_path), "test")


# How Python 2 wrote the published batches: protocol 2, keys and pixels as byte strings.
PYTHON2_HEAD = (
    b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x00K\x09eU\x04dataq\x04"
    b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07"
    b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
)


def test_cifar10_as_python2_pickled_it(tmp_path: Path) -> None:
    planes = IMAGES[:2].transpose(0, 3, 1, 2).tobytes()
    (tmp_path / "test_batch").write_bytes(
        PYTHON2_HEAD + struct.pack("<i", len(planes)) + planes + b"tbu."
    )
    np.testing.assert_array_equal(read_all(tmp_path), IMAGES[:2])
    assert open_dataset(str(tmp_path)).labels.tolist() == [0, 9]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("key", [str, str.encode])
def test_cifar10_pickled_by_python3(tmp_path: Path, protocol: int, key: Any) -> None:
    planes = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)).reshape(6, -1)
    batch = {key("data"): planes, key("labels"): LABELS.tolist()}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol))
    np.testing.assert_array_equal(read_all(tmp_path), IMAGES)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Bomb(marker), "labels": [0]}))
    with pytest.raises(DataError, match=r"test_batch.*no CIFAR-10 batch needs.*posix\.mkdir"):
        open_dataset(str(tmp_path))
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": 3}),
        pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}),
        pickle.dumps({"data": np.array([None] * 3072), "labels": [0, 1]}),
        pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [0, 1]}),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch"):
        open_dataset(str(tmp_path))


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such data set.*digits"):
        open_dataset(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="an empty folder"):
        open_dataset(str(tmp_path))
    (tmp_path / "data.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"not recognised.*Unpack"):
        open_dataset(str(tmp_path / "data.tar.gz"))


@pytest.mark.parametrize("kind", ["npz", "h5", "batch", "idx"])
def test_flipped_and_missing_bytes_raise_data_errors_only(tmp_path: Path, kind: str) -> None:
    planes = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)).reshape(6, -1)
    if kind in ("npz", "h5"):
        spec = path = save(tmp_path / f"a.{kind}", x=IMAGES, y=LABELS)
    elif kind == "batch":
        spec, path = tmp_path, tmp_path / "test_batch"
        path.write_bytes(pickle.dumps({"data": planes, "labels": LABELS.tolist()}))
    else:
        spec, path = tmp_path, tmp_path / "train-images-idx3-ubyte"
        path.write_bytes(idx(IMAGES[..., 0]))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(LABELS.astype(np.uint8)))
    whole = path.read_bytes()
    rng = np.random.default_rng(11)
    refused = 0
    for round_ in range(60):
        damaged = bytearray(whole[: rng.integers(len(whole))] if round_ % 3 == 0 else whole)
        for place in rng.integers(0, max(1, min(len(damaged), 300)), 4):
            damaged[place : place + 1] = bytes([rng.integers(256)])
        path.write_bytes(damaged)
        try:
            read_all(spec)
        except DataError:
            refused += 1
    assert refused >= 20
