""".ci/run and README.md cannot drift apart."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def readme_commands(root: Path) -> list[str]:
    """The commands of README's quick start: one a code block."""
    text = (root / "README.md").read_text("utf-8")
    quick_start = text.split("## Quick start")[1].split("\n## ")[0]
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", quick_start, re.DOTALL)]


def test_the_quick_start_has_two_commands_with_their_own_set_up(root: Path) -> None:
    commands = readme_commands(root)
    assert len(commands) == 2
    for command in commands:
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].endswith("npusim train --demo")
    assert "pytest" in commands[1]


def test_ci_runs_the_readme_test_command(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    shown = subprocess.run(
        [script, "--show-test-command"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == readme_commands(root)[1]


def test_ci_is_a_valid_strict_script(root: Path) -> None:
    script = root / ".ci" / "run"
    assert "set -euo pipefail" in script.read_text("utf-8")
    subprocess.run(["bash", "-n", script], check=True)
