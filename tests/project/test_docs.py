"""Links between the pages lead somewhere, and the pages say what the command line does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim.cli import VERBS, main


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


def test_version(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    assert main(["--version"]) == 0
    version = capsys.readouterr().out.split()[1]
    assert version in (root / "npusim" / "_version.py").read_text("utf-8")
