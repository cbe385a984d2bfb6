"""Small networks' signatures and image folders for the tests of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from npusim.ir import Graph, TensorType, Value

Signature = Callable[..., Graph]


@pytest.fixture
def signature() -> Signature:
    """Makes a graph with an input and an output and nothing between."""

    def make(
        shape: tuple[int | None, ...] = (None, 3, 4, 4),
        dtype: str = "float32",
        classes: int = 3,
        metadata: dict[str, str] | None = None,
    ) -> Graph:
        x = Value("x", TensorType(dtype, shape))
        y = Value("y", TensorType("float32", (None, classes)))
        return Graph("net", (x,), (y,), (), {"x": x, "y": y}, {}, metadata or {})

    return make


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Three classes of three RGB images of 4x4, as PNG (exact) in a folder each."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3)).astype(np.uint8)
    root = tmp_path / "pets"
    for i, image in enumerate(pixels):
        folder = root / ("cat", "dog", "eel")[i // 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    return root
