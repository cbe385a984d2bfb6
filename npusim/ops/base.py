"""What an operator is, and the registry of all of them.

One operator is one file in this folder, which ends in ``register(OpSpec(...))``, and one test file.
The file gives attributes, shape rule, multiply count, the ONNX operators it stands for, and its
arithmetic: one ``Rule`` for each way a profile can compute it. A rule's reference is slow int64
NumPy; where a rule names no kernel the fast engine runs that same reference.

The registry is the only mutable state of the package and is complete after
``import npusim.ops``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npusim.errors import UnsupportedOp
from npusim.ir import Array, Site, TensorType

if TYPE_CHECKING:
    from npusim.numerics.lowered import Lowered
    from npusim.numerics.profile import Profile

Lower = Callable[[Site, "Profile"], "Lowered"]
Reference = Callable[[Site, "Lowered", tuple[Array | None, ...]], Array]
Saturated = Callable[[Site, "Lowered", tuple[Array | None, ...]], int]


@dataclass(frozen=True, slots=True)
class Rule:
    """One arithmetic of one operator.

    lower: turns scales (and, where the hardware does, weights) into the integers or float32
        numbers that the arithmetic uses; called once at compile.
    reference: (site, lowered, inputs) -> output. Integer tensors come and go as int64 codes in
        the file's order of axes, float tensors as float32; constants arrive like activations, an
        absent input as None. It must import nothing of npusim.kernels.
    kernel: "module:function" below npusim.kernels whose function binds the node to a native
        step, or None.
    saturated: of the same arguments as the reference, how many values of int16 streams between
        the units could not be held; None where the arithmetic has no such streams.
    """

    lower: Lower
    reference: Reference
    kernel: str | None = None
    saturated: Saturated | None = None


@dataclass(frozen=True, slots=True)
class OnnxRow:
    """An ONNX operator that this operator stands for.

    since: the operator versions (ONNX ``since_version``) that ``convert`` understands.
    form: "qdq" (a float operator between DequantizeLinear and QuantizeLinear), "qoperator" (the
        operator itself takes codes), "any" (moves elements; codes and floats alike), or "float"
        (a software epoch).
    convert: see npusim.ops.unit for what it is given and returns.
    """

    op_type: str
    since: tuple[int, ...]
    form: str
    convert: Callable[[Any], Any]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Everything there is to know about one operator.

    runs_on: "npu", "layout" (costs nothing where only the order of axes changes) or "software"
        (a software epoch on the CPU, not bit-accurate where it is float).
    weight: index of the input that holds weight codes, None where there is none; the bias, if
        any, is the input after it.
    """

    name: str
    summary: str
    attrs: type
    infer: Callable[[Site], TensorType]
    rules: Mapping[str, Rule]
    onnx: tuple[OnnxRow, ...] = ()
    macs: Callable[[Site], int] = field(default=lambda site: 0)
    runs_on: str = "npu"
    weight: int | None = None


_REGISTRY: dict[str, OpSpec] = {}


def register(spec: OpSpec) -> OpSpec:
    assert spec.name not in _REGISTRY, f"operator {spec.name} is registered twice"
    _REGISTRY[spec.name] = spec
    return spec


def spec_of(name: str) -> OpSpec:
    return _REGISTRY[name]


def all_specs() -> tuple[OpSpec, ...]:
    """Every operator, by name."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def rule_for(site: Site, profile: Profile) -> Rule:
    """The arithmetic that ``profile`` uses for this node.

    Raises UnsupportedOp where the profile does not say how to compute the operator.
    """
    spec = spec_of(site.node.op)
    chosen = profile.rules.get(spec.name)
    if chosen is None and len(spec.rules) == 1 and "exact" in spec.rules:
        return spec.rules["exact"]
    if chosen is None:
        raise UnsupportedOp(
            f"profile {profile.name} has no rule for operator {spec.name}",
            where=site.node.name,
            wanted=f"a profile with one ({', '.join(sorted(spec.rules))})",
            hint="Choose another one with --profile.",
        )
    return spec.rules[chosen]
