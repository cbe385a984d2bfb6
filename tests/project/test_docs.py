"""Links between the pages lead somewhere, and the pages say what the command line does."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.cli import VERBS, main
from npusim.models.demo import MODEL_PATH
from npusim.numerics.profile import DEFAULT_PROFILE


def pages(root: Path) -> list[Path]:
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


def test_relative_links_lead_somewhere(root: Path) -> None:
    broken = []
    for page in pages(root):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_every_page_is_reachable_from_the_index(root: Path) -> None:
    text = "".join(p.read_text("utf-8") for p in pages(root))
    for page in (root / "docs").rglob("*.md"):
        assert page.name == "index.md" or page.name in text


def test_the_pages_name_every_verb(root: Path) -> None:
    for page in (root / "README.md", root / "docs" / "command-line.md"):
        text = page.read_text("utf-8")
        assert [verb for verb in VERBS if verb not in text] == []


def test_the_taps_of_the_pages_match(root: Path) -> None:
    """Examples with the packaged network name what is in it."""
    program = npusim.compile(npusim.load(MODEL_PATH), engine="numpy")
    images = {program.graph.inputs[0].name: np.zeros((1, 1, 8, 8), np.float32)}
    text = "".join(page.read_text("utf-8") for page in pages(root))
    lines = [line for line in text.splitlines() if "--taps" in line and "digits.onnx" in line]
    assert lines
    for line in lines:
        words = shlex.split(line)
        for option, value in itertools.pairwise(words):
            if option == "--taps":
                program.run(images, taps=[value])


def test_the_pages_name_the_default_profile(root: Path) -> None:
    for page in (root / "README.md", root / "docs" / "command-line.md"):
        text = " ".join(page.read_text("utf-8").split())
        assert f"default profile is `{DEFAULT_PROFILE}`" in text


def test_version(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    assert main(["--version"]) == 0
    version = capsys.readouterr().out.split()[1]
    assert version in (root / "npusim" / "_version.py").read_text("utf-8")
