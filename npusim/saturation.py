"""What saturated while a network ran: on the neural-art NPU it happens silently.

The counts come from the int64 references, layer by layer, on the tensors that the program itself
computed, so they cost a slow forward pass and are exact for either engine.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from npusim.ir import Array, Site
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.ops import conv, gemm
from npusim.ops.neural_art_weighted import Counts, count

if TYPE_CHECKING:
    from npusim.program import Program
    from npusim.weights import WeightStore

_GEOMETRIES = MappingProxyType({"conv": conv.NEURAL_ART, "gemm": gemm.NEURAL_ART})


def saturation_counts(
    program: Program, feeds: Mapping[str, Array], weights: WeightStore | None = None
) -> dict[str, Counts]:
    """Counts of every convolution and Gemm that the neural-art rule computes, by node name.

    Args:
        program: compiled for any profile; layers under other rules are left out.
        feeds, weights: as for ``Program.run``.
    """
    layers = [
        site
        for site in program.graph.sites()
        if isinstance(program.lowering[site.node.name], Convolution)
    ]
    inputs = {site.node.inputs[0] for site in layers}
    computed = inputs - {v.name for v in program.graph.inputs}
    taps = [glob.escape(name) for name in sorted(computed)]
    values = {**feeds, **program.run(feeds, taps=taps, weights=weights)}
    store = weights or program.weights
    return {site.node.name: _counted(program, site, values, store) for site in layers}


def _counted(
    program: Program, site: Site, values: Mapping[str, Array], store: WeightStore
) -> Counts:
    lowered = program.lowering[site.node.name]
    assert isinstance(lowered, Convolution)
    names = site.node.inputs
    constants = [store.onnx(name) if name else None for name in names[1:]]
    inputs = [None if x is None else x.astype(np.int64) for x in (values[names[0]], *constants)]
    return count(_GEOMETRIES[site.node.op], site, lowered, tuple(inputs))
