"""npusim.files: all or nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from limits import files_no_larger_than

from npusim.arrays import write_arrays
from npusim.files import check_regular, read_json, replacing

LIMIT = 4096


def test_a_new_file_and_a_replaced_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"two"):
        with replacing(path) as file:
            file.write(content)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_block_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fill() -> None:
        with files_no_larger_than(LIMIT), replacing(path) as file:
            file.write(b"x" * (LIMIT + 1))

    with pytest.raises(OSError, match="too large") as caught:
        fill()
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_absent_folder_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "a"
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        pass
    assert caught.value.filename == str(path)


def test_a_full_disk_is_named_where_numpy_writes(tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        with files_no_larger_than(LIMIT):
            write_arrays(path, {"x": np.zeros(LIMIT + 1)})

    for name in ("a.npy", "a.npz"):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            fill(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
        assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught, replacing(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path)


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is made up."""

    def refused(**options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{options['dir']}/.a.x.part")

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(PermissionError) as caught, replacing(tmp_path / "a"):
        pass
    assert caught.value.filename == str(tmp_path / "a")


def test_errors_about_other_files_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "a"):
        (tmp_path / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "other")


def test_json_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in ("[" * 100_000, "{", '"' + "\\ud8"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"."):
            read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="utf-8"):
        read_json(path)
    path.write_text('{"a": [1]}')
    assert read_json(path) == {"a": [1]}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file") as caught:
        read_json(tmp_path / "pipe")
    assert caught.value.filename == str(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        check_regular(tmp_path)
