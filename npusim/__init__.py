"""npusim: exact off-board simulation of, and training through, INT8 NPUs.

graph = npusim.load("model.onnx")
program = npusim.compile(graph)
outputs = program.run({graph.inputs[0].name: images})
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from npusim._version import __version__
from npusim.numerics.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from npusim.ir import Graph
    from npusim.numerics.lowered import Lowered
    from npusim.numerics.profile import Profile
    from npusim.program import Program

__all__ = ["DEFAULT_PROFILE", "__version__", "compile", "load"]


def load(path: str | os.PathLike[str]) -> Graph:
    """Read a quantized network into a graph of NPU operators.

    Raises npusim.errors.ModelError, which names the node or tensor, where the file cannot be run.
    """
    from npusim.frontend.load import load as load_file

    return load_file(path)


def compile(
    graph: Graph,
    profile: str | Profile | None = None,
    engine: str = "fast",
    lowering: Mapping[str, Lowered] | None = None,
) -> Program:
    """Bind a graph to a numerics profile; see npusim.program.compile_graph."""
    from npusim.program import compile_graph

    return compile_graph(graph, profile, engine, lowering)
