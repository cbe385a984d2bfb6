"""The wheel check of .ci finds what it is there for; .ci/run gives it the real wheel."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def checker(root: Path) -> ModuleType:
    path = root / ".ci" / "wheel_contents.py"
    spec = importlib.util.spec_from_file_location("wheel_contents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, names: set[str]) -> str:
    path = folder / "npusim-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in {*names, "npusim-0.dist-info/RECORD"}:
            archive.writestr(name, "")
    return str(path)


@pytest.fixture(scope="module")
def tracked(checker: ModuleType, root: Path) -> set[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        names: set[str] = checker.tracked()
    assert {"npusim/cli/__init__.py", "npusim/zo/__init__.py", "npusim/py.typed"} <= names
    return names


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        (set(), set(), "the wheel holds the"),
        ({"npusim/zo/__init__.py"}, set(), "missing from the wheel: npusim/zo/__init__.py"),
        (set(), {"zo/__init__.py"}, "top-level names: npusim, zo"),
        (set(), {"npusim/scratch.py"}, "not to be shipped: npusim/scratch.py"),
    ],
)
def test_a_wheel_is_what_git_tracks(
    checker: ModuleType,
    tracked: set[str],
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    removed: set[str],
    added: set[str],
    message: str,
) -> None:
    monkeypatch.chdir(root)
    code = checker.main(wheel(tmp_path, (tracked - removed) | added))
    assert code == (1 if removed or added else 0)
    assert message in capsys.readouterr().out
