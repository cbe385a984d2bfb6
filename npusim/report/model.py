"""What a model consists of and how a profile would run it: the data behind ``npusim inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from npusim.errors import NpusimError
from npusim.ir import Graph, Site, Value
from npusim.numerics.lowered import Lowered
from npusim.numerics.profile import Profile
from npusim.ops.base import spec_of
from npusim.program import lower_site
from npusim.report.evidence import evidence_of
from npusim.weights import WeightStore

SCHEMA_VERSION = 1

PLACES: Mapping[str, str] = {
    "npu": "NPU",
    "layout": "layout only",
    "software": "software epoch",
}


@dataclass(frozen=True, slots=True)
class TensorRow:
    """An input or output of the model; scale and zero_point are None for a float tensor."""

    name: str
    type: str
    scale: float | None
    zero_point: int | None


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator.

    origin: the file's nodes it stands for. runs_on: "npu", "layout" or "software".
    bit_accurate: False where it computes with floats. rule, evidence, source: the profile's
    arithmetic for it, how sure that is for this node, and why ("" for operators that only move or
    compare codes). refusal: why the profile cannot compute it, "" where it can.
    inputs: their types. tensor, output: name and type of what it computes.
    weights: its quantization scheme, "" without weights. macs: multiply-accumulates an image.
    """

    name: str
    op: str
    origin: tuple[str, ...]
    runs_on: str
    bit_accurate: bool
    rule: str
    evidence: str
    source: str
    refusal: str
    inputs: tuple[str, ...]
    tensor: str
    output: str
    weights: str
    parameters: int
    macs: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model under a profile. activations, weights: scheme -> number of such tensors."""

    path: str
    name: str
    profile: str
    opsets: Mapping[str, int]
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    operators: tuple[OperatorRow, ...]
    parameters: int
    macs: int
    activations: Mapping[str, int]
    weights: Mapping[str, int]
    metadata: Mapping[str, str]
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def refused(self) -> tuple[OperatorRow, ...]:
        """Operators that the profile cannot compute."""
        return tuple(row for row in self.operators if row.refusal)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"runs": not self.refused}


def model_report(graph: Graph, profile: Profile) -> ModelReport:
    """Looks at a graph of NPU operators, and tries to lower each under the profile."""
    rows = tuple(_operator(site, profile) for site in graph.sites())
    constants = graph.initializers
    return ModelReport(
        path=graph.path,
        name=graph.name,
        profile=profile.name,
        opsets=dict(graph.opsets),
        inputs=tuple(map(_tensor, graph.inputs)),
        outputs=tuple(map(_tensor, graph.outputs)),
        operators=rows,
        parameters=WeightStore.of(graph).parameters(),
        macs=sum(row.macs for row in rows),
        activations=_count(v for name, v in graph.values.items() if name not in constants),
        weights=_count(v for name, v in graph.values.items() if name in constants),
        metadata=dict(graph.metadata),
    )


def scheme(value: Value) -> str:
    """A tensor's quantization in words, such as "int8 per channel, symmetric"."""
    if value.qparams is None:
        return value.type.dtype
    spread = "per channel" if value.qparams.per_channel else "per tensor"
    centre = "asymmetric" if any(value.qparams.zero_point) else "symmetric"
    return f"{value.type.dtype} {spread}, {centre}"


def _count(values: Iterable[Value]) -> dict[str, int]:
    return dict(Counter(scheme(value) for value in values).most_common())


def _tensor(value: Value) -> TensorRow:
    scale, zero_point = None, None
    if value.qparams is not None and not value.qparams.per_channel:
        scale, zero_point = value.qparams.scale[0], value.qparams.zero_point[0]
    return TensorRow(value.name, str(value.type), scale, zero_point)


def _operator(site: Site, profile: Profile) -> OperatorRow:
    spec = spec_of(site.node.op)
    names = [name for name in site.node.inputs if name]
    lowered, refusal = _lowered(site, profile)
    evidence = None if lowered is None else evidence_of(site, lowered, profile)
    return OperatorRow(
        name=site.node.name,
        op=site.node.op,
        origin=site.node.origin,
        runs_on=spec.runs_on,
        bit_accurate=not _computes_with_floats(site),
        rule=profile.rules.get(spec.name, "") if lowered else "none",
        evidence=evidence.level if evidence else "",
        source=evidence.source if evidence else "",
        refusal=refusal,
        inputs=tuple(str(site.graph.value(n).type) for n in names if not site.graph.is_constant(n)),
        tensor=site.output.name,
        output=str(site.output.type),
        weights="" if spec.weight is None else scheme(site.value(spec.weight)),
        parameters=sum(
            int(site.graph.initializers[n].size) for n in names if site.graph.is_constant(n)
        ),
        macs=spec.macs(site),
    )


def _lowered(site: Site, profile: Profile) -> tuple[Lowered | None, str]:
    """The node's numbers under the profile, or None and why there are none."""
    try:
        return lower_site(site, profile), ""
    except NpusimError as error:
        return None, str(error)


def _computes_with_floats(site: Site) -> bool:
    """True where a result depends on float arithmetic that is not part of a profile's rule."""
    types = [site.output.type.dtype]
    types += [site.value(i).type.dtype for i in range(len(site.node.inputs)) if site.has(i)]
    return spec_of(site.node.op).runs_on == "software" and any(t.startswith("float") for t in types)
