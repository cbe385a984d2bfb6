"""npusim.arrays: what is written is read again; damaged files are named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from npusim.arrays import check_output, read_arrays, write_arrays
from npusim.errors import DataError, UsageError

ARRAYS = {
    "file": np.arange(6, dtype=np.int8).reshape(2, 3),
    "a/b:0": np.float32([0.5, -0.0]),
    "scalar": np.array(7, np.uint8),
}


def test_round_trip_of_awkward_names(tmp_path: Path) -> None:
    write_arrays(tmp_path / "y.npz", ARRAYS)
    back, ignored = read_arrays(tmp_path / "y.npz", list(ARRAYS))
    assert ignored == ()
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_numpy_reads_it(tmp_path: Path) -> None:
    write_arrays(tmp_path / "y.npz", ARRAYS)
    with np.load(tmp_path / "y.npz") as loaded:
        assert set(loaded.files) == set(ARRAYS)


def test_equal_arrays_make_equal_files(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", ARRAYS)
    write_arrays(tmp_path / "b.npz", ARRAYS)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_npy_for_a_single_array(tmp_path: Path) -> None:
    write_arrays(tmp_path / "y.npy", {"out": ARRAYS["file"]})
    back, _ = read_arrays(tmp_path / "y.npy", ["anything"])
    np.testing.assert_array_equal(back["anything"], ARRAYS["file"])
    with pytest.raises(UsageError, match=r"do not fit one \.npy"):
        write_arrays(tmp_path / "y.npy", ARRAYS)
    with pytest.raises(DataError, match="several inputs"):
        read_arrays(tmp_path / "y.npy", ["a", "b"])


def test_missing_and_unused_names(tmp_path: Path) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS)
    with pytest.raises(DataError, match=r"no array named image.*scalar.*wanted image"):
        read_arrays(tmp_path / "x.npz", ["image"])
    assert read_arrays(tmp_path / "x.npz", ["scalar"])[1] == ("file", "a/b:0")


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 not a zip", b"\x93NUMPY\x01"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: cannot be read as arrays"):
        read_arrays(path, ["x"])


def test_numpys_advice_to_load_unsafely_is_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("1 2 3\n4 5 6\n")
    with pytest.raises(DataError, match=r"got another kind of file") as text:
        read_arrays(tmp_path / "x.npy", ["x"])
    np.save(tmp_path / "y.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="got Python objects") as objects:
        read_arrays(tmp_path / "y.npy", ["y"])
    for error in (text, objects):
        assert "unsafely" not in str(error.value)
        assert "pickle" not in str(error.value)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
def test_truncated_files_are_named(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "x.npz"
    write_arrays(path, ARRAYS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataError, match="cannot be read as arrays"):
        read_arrays(path, list(ARRAYS))


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as arrays"):
        read_arrays(tmp_path / "x.npy", ["x"])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    write_arrays(path, ARRAYS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(path, {"bad": np.array([{}], object)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ending in \.npz or \.npy"):
        check_output(tmp_path / "y.txt")
    with pytest.raises(UsageError, match="does not exist"):
        check_output(tmp_path / "absent" / "y.npz")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(OSError, match=r"not a regular file.*x\.npz"):
        read_arrays(tmp_path / "x.npz", ["x"])
