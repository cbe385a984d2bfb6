"""Fixtures of the tests of zo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from digits_task import ignore, request

from npusim.zo.run import TrainResult, train


@pytest.fixture
def train_digits(tmp_path: Path) -> Callable[..., TrainResult]:
    """Runs ``train`` on the request that the arguments describe; folder by name."""

    def run(name: str = "run", **changes: Any) -> TrainResult:
        return train(request(tmp_path / name, **changes), ignore)

    return run
