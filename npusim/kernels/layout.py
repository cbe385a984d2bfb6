"""Transpose and Reshape: other names for the same memory wherever that is possible."""

from __future__ import annotations

from npusim.ir import Site
from npusim.kernels.plan import Builder
from npusim.numerics.lowered import Lowered
from npusim.ops.base import Rule


def bind_transpose(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    """Costs nothing: the output is the same memory with its axes named otherwise."""
    perm: tuple[int, ...] = site.attrs.perm
    if site.graph.is_constant(site.node.inputs[0]):
        return False
    place = builder.places[site.node.inputs[0]]
    order = tuple(perm.index(axis) for axis in place.order)
    if site.output.type.lifted and order[0] != 0:
        return False
    builder.alias(site.node.outputs[0], place.offset, order)
    return True


def bind_reshape(builder: Builder, site: Site, lowered: Lowered, rule: Rule) -> bool:
    """Costs nothing where the input lies in the file's order (or only one axis is not 1)."""
    if site.graph.is_constant(site.node.inputs[0]):
        return False
    rank = len(site.value(0).type.shape)
    offset = builder.input(site.node.inputs[0], tuple(range(rank)))
    shape = site.output.type.shape
    builder.alias(site.node.outputs[0], offset, tuple(range(len(shape))))
    return True
