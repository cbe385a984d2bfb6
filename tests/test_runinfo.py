"""npusim.runinfo: run.json says what was run on what."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from npusim.runinfo import fingerprint, versions, write_run_info


def test_contents(tmp_path: Path) -> None:
    source = tmp_path / "x.bin"
    source.write_bytes(b"abc")
    path = tmp_path / "run.json"
    write_run_info(path, "train", {"lr": 0.5, "out": tmp_path}, inputs=[source], crc=7)
    info = json.loads(path.read_text("utf-8"))
    assert info["verb"] == "train"
    assert info["arguments"] == {"lr": 0.5, "out": str(tmp_path)}
    assert info["crc"] == 7
    digest = hashlib.sha256(b"abc").hexdigest()
    assert info["inputs"] == {str(source): {"bytes": 3, "sha256": digest}}
    assert {"python", "npusim", "numpy", "numba", "onnx"} <= set(info["versions"])
    assert set(tmp_path.iterdir()) == {source, path}


def test_versions_are_those_of_the_packages() -> None:
    import numpy as np

    assert versions()["numpy"] == np.__version__


def test_a_folders_fingerprint_follows_names_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"1")
    before = fingerprint(tmp_path)
    assert before["files"] == 1
    (tmp_path / "cat" / "a.png").rename(tmp_path / "cat" / "b.png")
    renamed = fingerprint(tmp_path)
    (tmp_path / "cat" / "b.png").write_bytes(b"12")
    assert len({d["listing_sha256"] for d in (before, renamed, fingerprint(tmp_path))}) == 3


def test_an_absent_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_run_info(tmp_path / "run.json", "run", {}, inputs=[tmp_path / "absent"])
    assert list(tmp_path.iterdir()) == []
