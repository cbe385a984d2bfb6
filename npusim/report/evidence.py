"""How sure the arithmetic of one node is: its rule's evidence, weakened by its cases.

A profile's evidence for an operator speaks of the nodes that were measured. A node that differs
from all of these in a way that may matter is only as sure as the weakest thing it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from npusim.ir import Site
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution
from npusim.numerics.profile import EVIDENCE, Evidence, Profile
from npusim.ops.base import spec_of


@dataclass(frozen=True, slots=True)
class Case:
    """words: for the page of operators. applies: whether a node with these numbers is one."""

    words: str
    applies: Callable[[Site, Lowered], bool]


def _uint8(site: Site, lowered: Lowered) -> bool:
    present = (i for i in range(len(site.node.inputs)) if site.has(i))
    types = [site.output.type.dtype, *(site.value(i).type.dtype for i in present)]
    return "uint8" in types


def _bias(site: Site, lowered: Lowered) -> bool:
    weight = spec_of(site.node.op).weight
    codes = None if weight is None else site.constant(weight + 1)
    return codes is not None and bool(codes.any())


def _passes(site: Site, lowered: Lowered) -> bool:
    if not isinstance(lowered, Convolution):
        return False
    return len({segment.channels for segment in lowered.segments()}) > 1


def _dilated(site: Site, lowered: Lowered) -> bool:
    return max(getattr(site.attrs, "dilations", (1, 1))) > 1


def _grouped(site: Site, lowered: Lowered) -> bool:
    groups = getattr(site.attrs, "group", 1)
    return groups not in (1, site.value(0).type.shape[1])


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "uint8": Case("uint8 tensors", _uint8),
        "bias": Case("bias that is not 0", _bias),
        "passes": Case("several passes over the channels", _passes),
        "dilated": Case("dilated kernel", _dilated),
        "grouped": Case("grouped, not depthwise", _grouped),
    }
)


def evidence_of(site: Site, lowered: Lowered, profile: Profile) -> Evidence | None:
    """The weakest evidence of what this node needs; None where it only moves or compares codes."""
    rule = profile.evidence.get(site.node.op)
    if rule is None:
        return None
    cases = [e for name, e in profile.cases.items() if CASES[name].applies(site, lowered)]
    return max((rule, *cases), key=lambda e: EVIDENCE.index(e.level))
