"""What saturates in each layer while a program runs: counters that ``run --stats`` shows.

On an NPU whose units pass int16 streams to one another saturation is silent, so it is counted: in
the streams between the units, and as outputs at either end of their range. Counts are sums over
images: they depend on no thread, batch split or engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.ir import Array, Site
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution, GlobalAverage, TwoStep
from npusim.ops.base import rule_for, spec_of

if TYPE_CHECKING:
    from npusim.program import AnyWorker, Program
    from npusim.weights import WeightStore

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Counts of one node.

    outputs: output values. low, high: those at the smallest and the largest code that the operator
        can give; with a Relu fused into it the smallest is the zero.
    streams: values of int16 streams between the units (0 where the arithmetic has none).
    saturated: those that int16 could not hold. constants: channels whose 32-bit constant could
        not be held; a property of the weights, not of the images.
    """

    outputs: int
    low: int
    high: int
    streams: int
    saturated: int
    constants: int

    def __add__(self, other: LayerCounts) -> LayerCounts:
        """Of both runs; of constants the larger number."""
        return LayerCounts(
            self.outputs + other.outputs,
            self.low + other.low,
            self.high + other.high,
            self.streams + other.streams,
            self.saturated + other.saturated,
            max(self.constants, other.constants),
        )

    def to_json(self) -> dict[str, Any]:
        """The counts, and shares of low, high (of outputs) and saturated (of streams)."""
        return asdict(self) | {
            "low_share": _share(self.low, self.outputs),
            "high_share": _share(self.high, self.outputs),
            "saturated_share": _share(self.saturated, self.streams),
        }


class Statistics:
    """Sums the counts of every run that it is given to; see ``Program.run``.

    >>> statistics = Statistics()
    >>> statistics.add({"conv": LayerCounts(8, 1, 0, 16, 2, 0)})
    >>> statistics.add({"conv": LayerCounts(8, 0, 3, 16, 0, 0)})
    >>> statistics.layers["conv"].saturated
    2
    """

    def __init__(self) -> None:
        self._layers: dict[str, LayerCounts] = {}

    @property
    def layers(self) -> Mapping[str, LayerCounts]:
        """Node name -> counts, in execution order."""
        return dict(self._layers)

    def add(self, counts: Mapping[str, LayerCounts]) -> None:
        """Counts of further images."""
        for node, more in counts.items():
            old = self._layers.get(node)
            self._layers[node] = more if old is None else old + more

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        layers = {node: counts.to_json() for node, counts in self._layers.items()}
        return {"schema_version": SCHEMA_VERSION, "layers": layers}


def layer_counts(program: Program, worker: AnyWorker, store: WeightStore) -> dict[str, LayerCounts]:
    """Counts of a worker's last forward, in execution order.

    Args:
        worker: of this program; its values are read.
        store: the weights that were loaded into it.

    Returns:
        Node -> counts, for nodes that compute 8-bit codes (not for those that only move them).
    """
    saturations = worker.saturations()
    found = {}
    for site in computing_sites(program):
        lowered, codes = program.lowering[site.node.name], worker.value(site.output.name)
        low, high = getattr(site.attrs, "clamp", site.output.range)
        saturated = saturations.get(site.node.name)
        found[site.node.name] = LayerCounts(
            outputs=codes.size,
            low=int(np.count_nonzero(codes == low)),
            high=int(np.count_nonzero(codes == high)),
            streams=0 if saturated is None else codes.size * stream_steps(lowered),
            saturated=saturated or 0,
            constants=_constants(site, lowered, store),
        )
    return found


def computing_sites(program: Program) -> Iterator[Site]:
    """Nodes that compute 8-bit codes under a rule of the profile, in execution order."""
    for site in program.graph.sites():
        exact = spec_of(site.node.op).rules.get("exact")
        is_code = site.output.type.dtype in ("int8", "uint8")
        if is_code and rule_for(site, program.profile) is not exact:
            yield site


def stream_steps(lowered: Lowered) -> int:
    """How many int16 values go into one output: after every pass, sum of pieces and step."""
    if isinstance(lowered, GlobalAverage):
        return 1
    if not isinstance(lowered, Convolution):
        return 0
    sums = len(lowered.rows) * len(lowered.columns) - 1
    return len(lowered.segments()) + sums + isinstance(lowered, TwoStep)


def _constants(site: Site, lowered: Lowered, store: WeightStore) -> int:
    if not isinstance(lowered, Convolution) or not site.has(2):
        return 0
    bias: Array = store.onnx(site.node.inputs[2]).reshape(-1).astype(np.int64)
    return lowered.constants(bias).saturated


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
