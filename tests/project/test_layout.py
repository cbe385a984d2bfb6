"""The shape of the project: names, imports, file sizes, and a command line that starts at once."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

FOLDERS = ("npusim", "quant", "zo", "models", "bench")
SHORT_NAMES = frozenset(FOLDERS[1:])
HEAVY = ("numba", "llvmlite", "onnxruntime", "onnx", "sklearn", "matplotlib", "numpy", "rich")


def sources(root: Path) -> list[Path]:
    """All Python files of the project and its tests."""
    return [p for folder in (*FOLDERS, "tests") for p in sorted((root / folder).rglob("*.py"))]


def imported_names(path: Path) -> set[str]:
    """Top-level names of all absolute imports of a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_no_module_is_imported_by_its_short_name(root: Path) -> None:
    guilty = {str(p): SHORT_NAMES & imported_names(p) for p in sources(root)}
    assert len(guilty) > 20
    assert {p: names for p, names in guilty.items() if names} == {}


def test_every_package_folder_is_listed_in_setup_cfg(root: Path) -> None:
    config = ConfigParser()
    config.read(root / "setup.cfg", "utf-8")
    listed = config["options"]["packages"].split()
    assert all(name == "npusim" or name.startswith("npusim.") for name in listed)
    there = set()
    for folder in FOLDERS:
        for init in (root / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(root).parts
            there.add(".".join(parts if folder == "npusim" else ("npusim", *parts)))
    assert there == set(listed)


def test_help_imports_no_numeric_library() -> None:
    code = (
        "import sys; from npusim.cli import main; assert main(['--help']) == 0; "
        f"print('imported:', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Usage: npusim" in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["imported:"]


@pytest.mark.long
def test_help_answers_within_half_a_second() -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "npusim.cli", "--help"], capture_output=True, check=True
        )
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < 0.5
