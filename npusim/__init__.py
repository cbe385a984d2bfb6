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


def load(path: str | os.PathLike[str], q_json: str | os.PathLike[str] | None = None) -> Graph:
    """Read a quantized network into a graph of NPU operators.

    Args:
        path: an ONNX file.
        q_json: the ``*_Q.json`` that ST's tools write beside a ``*_OE_*.onnx``: scales and zero
            points of its tensors. None: ``M_Q.json`` beside ``M.onnx`` is taken where there is one.

    Raises npusim.errors.ModelError, which names the node or tensor, where the file cannot be run.
    """
    from npusim.frontend.load import load as load_file

    return load_file(path, q_json)


def compile(
    graph: Graph,
    profile: str | Profile | None = None,
    engine: str = "fast",
    lowering: Mapping[str, Lowered] | str | None = None,
) -> Program:
    """Bind a graph to a numerics profile.

    Args:
        graph: from ``load``.
        profile: a profile or its name; None is the one that a trained file was trained under,
            else DEFAULT_PROFILE.
        engine: "fast" (compiled kernels) or "numpy" (the int64 references).
        lowering: the numbers to compute with. None: those that a trained file carries, else fresh
            ones; "fresh"; the path of a JSON file of changes; or numbers by node name, as
            ``Program.lowering`` holds them.

    Raises:
        UnsupportedOp: the profile cannot compute an operator.
        BadQuantization, BadShape: the network does not fit the profile or itself.
        UsageError: ``graph`` is no graph.
    """
    from npusim.errors import UsageError
    from npusim.ir import Graph
    from npusim.lowering import compile_chosen
    from npusim.program import compile_graph

    if not isinstance(graph, Graph):
        raise UsageError(
            "a graph is compiled, not a file",
            where="npusim.compile",
            got=type(graph).__name__,
            wanted="what npusim.load returns",
            hint="Write npusim.compile(npusim.load(path)).",
        )
    if lowering is None or isinstance(lowering, str):
        return compile_chosen(graph, profile, engine, lowering)[0]
    return compile_graph(graph, profile, engine, lowering)
