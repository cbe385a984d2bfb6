"""run.json: what was run, with which versions, on which files. Every verb that writes files
writes one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from npusim._version import __version__
from npusim.files import replacing

SCHEMA_VERSION = 1
PACKAGES = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "h5py", "pillow", "scikit-learn")


def write_run_info(
    path: Path,
    verb: str,
    arguments: Mapping[str, object],
    inputs: Iterable[str | Path] = (),
    outputs: Iterable[str | Path] = (),
    **facts: object,
) -> None:
    """Writes a run.json, replacing an old one in one step.

    Args:
        path: the file to write.
        verb: the command line's verb.
        arguments: its options as they were understood; what JSON cannot say is written as text.
        inputs, outputs: files and folders read and written; each gets its hash.
        facts: further entries of the top level.

    Raises:
        OSError: a file cannot be read or written.
    """
    info = {
        "schema_version": SCHEMA_VERSION,
        "verb": verb,
        "command_line": sys.argv[1:],
        "arguments": dict(arguments),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "inputs": {str(file): fingerprint(Path(file)) for file in inputs},
        "outputs": {str(file): fingerprint(Path(file)) for file in outputs},
        **facts,
    }
    with replacing(path) as file:
        file.write((json.dumps(info, indent=2, default=str) + "\n").encode())


def versions() -> dict[str, str]:
    """Versions of Python, npusim and what it computes with; nothing is imported for it."""
    found = {"python": platform.python_version(), "npusim": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; of a folder, the SHA-256 of its files' names and sizes.

    A folder of images is not read again for its hash: names and sizes tell data sets apart.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        listing = "".join(f"{p.relative_to(path)}\0{p.stat().st_size}\n" for p in files)
        digest = hashlib.sha256(listing.encode()).hexdigest()
        return {"files": len(files), "listing_sha256": digest}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
