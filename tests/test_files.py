"""npusim.files: all or nothing."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npusim.arrays import write_arrays
from npusim.files import check_regular, read_json, replacing


@pytest.fixture
def small_disk() -> Iterator[int]:
    """No file may grow beyond so many bytes."""
    limit = 4096
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


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


def test_a_full_disk_changes_nothing(tmp_path: Path, small_disk: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="too large") as caught, replacing(path) as file:
        file.write(b"x" * (small_disk + 1))
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_absent_folder_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "a"
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        pass
    assert caught.value.filename == str(path)


def test_a_full_disk_is_named_where_numpy_writes(tmp_path: Path, small_disk: int) -> None:
    for name in ("a.npy", "a.npz"):
        with pytest.raises(OSError) as caught:  # noqa: PT011  # NumPy's words are its own
            write_arrays(tmp_path / name, {"x": np.zeros(small_disk + 1)})
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
