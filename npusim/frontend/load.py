"""A file to a graph of NPU operators."""

from __future__ import annotations

import os
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontend.onnx import read
from npusim.ir import Graph
from npusim.passes import PIPELINE


def load(path: str | os.PathLike[str]) -> Graph:
    """Read a quantized ONNX network and run every pass of the pipeline on it.

    Raises npusim.errors.ModelError (or a subclass), which names the file, node or tensor, where
    the network cannot be read or cannot be run exactly.
    """
    try:
        return finished(read(Path(path)))
    except (LookupError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        # No known file comes here; a damaged one that does is still no reason for a traceback.
        raise ModelError(
            "the network has a form that nothing here expects",
            where=str(path),
            got=repr(error),
            hint="Please report this with the file.",
        ) from error


def finished(graph: Graph) -> Graph:
    """A raw graph after every pass of the pipeline."""
    for step in PIPELINE:
        graph = step(graph)
    return graph
