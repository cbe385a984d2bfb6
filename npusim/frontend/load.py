"""A file to a graph of NPU operators."""

from __future__ import annotations

import os
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontend.onnx import read
from npusim.frontend.st_formats import with_formats
from npusim.frontend.st_json import beside, read_formats
from npusim.ir import Graph
from npusim.passes import PIPELINE


def load(path: str | os.PathLike[str], q_json: str | os.PathLike[str] | None = None) -> Graph:
    """Read a quantized ONNX network and run every pass of the pipeline on it.

    Args:
        path: the ONNX file.
        q_json: ST's ``*_Q.json`` with the network's scales; None looks for it beside the file
            (npusim.frontend.st_json.beside).

    Raises npusim.errors.ModelError (or a subclass), which names the file, node or tensor, where
    the network cannot be read or cannot be run exactly.
    """
    try:
        return finished(_scaled(read(Path(path)), Path(path), q_json))
    except (LookupError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        # No known file comes here; a damaged one that does is still no reason for a traceback.
        raise ModelError(
            "the network has a form that nothing here expects",
            where=str(path),
            got=repr(error),
            hint="Please report this with the file.",
        ) from error


def _scaled(graph: Graph, path: Path, q_json: str | os.PathLike[str] | None) -> Graph:
    """With the scales of a JSON file, if one is named or lies beside the network."""
    file = Path(q_json) if q_json is not None else beside(path, graph)
    return graph if file is None else with_formats(graph, read_formats(file))


def finished(graph: Graph) -> Graph:
    """A raw graph after every pass of the pipeline."""
    for step in PIPELINE:
        graph = step(graph)
    return graph
