"""A fixed tenth of the mutants of npusim/numerics: some test notices each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_no_mutant_of_the_share_survives(root: Path) -> None:
    command = [sys.executable, str(root / "tests" / "mutate.py"), "--part", "3/10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all |" in done.stdout
