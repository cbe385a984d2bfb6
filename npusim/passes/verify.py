"""What a finished graph promises. Run at the end of every load; cheap."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import BadQuantization, BadShape, ModelError
from npusim.ir import INTEGER_RANGE, Graph, Node, Site
from npusim.ops.base import all_specs, spec_of

MAX_ELEMENTS = 2**31 - 1
# A smaller scale of an activation takes ratios out of float32. Weights may have smaller ones: those
# of channels that are all zero.
SMALLEST_SCALE = 1e-12


def check_order(graph: Graph) -> None:
    """What holds between any two passes: each name is made once, and before it is read.

    Raises ModelError where not.
    """
    known = {v.name for v in graph.inputs} | set(graph.initializers)
    names: set[str] = set()
    for node in graph.nodes:
        missing = [i for i in node.inputs if i and i not in known]
        if missing:
            raise ModelError("input that nothing before computes", where=node.name, got=missing[0])
        if node.name in names or not node.name:
            raise ModelError("node names are not unique", where=node.name)
        twice = known.intersection(o for o in node.outputs if o)
        if twice:
            raise ModelError("tensor is computed twice", where=node.name, got=min(twice))
        names.add(node.name)
        known.update(node.outputs)
    for value in graph.outputs:
        if value.name not in known:
            raise ModelError("output that nothing computes", where=value.name)


def _check_outputs(graph: Graph) -> None:
    for value in graph.outputs:
        if graph.is_constant(value.name) or graph.producer(value.name) is None:
            raise ModelError(
                "output is a constant or an input: there is nothing to compute",
                where=value.name,
                hint="Remove this output from the network.",
            )


@dataclass(frozen=True)
class Verify:
    """Returns the graph as it is.

    Raises ModelError, BadShape or BadQuantization where a promise of npusim.ir is broken.
    """

    def __call__(self, graph: Graph) -> Graph:
        check_order(graph)
        _check_outputs(graph)
        for node in graph.nodes:
            _check_node(graph, node)
        for value in graph.values.values():
            _check_value(graph, value.name)
        return graph


def _check_node(graph: Graph, node: Node) -> None:
    if node.op not in {s.name for s in all_specs()}:
        raise ModelError("not an operator of the NPU", where=node.name, got=node.op)
    if not isinstance(node.attrs, spec_of(node.op).attrs):
        raise ModelError("attributes of another operator", where=node.name)
    kind = spec_of(node.op).infer(Site(graph, node))
    if kind != graph.value(node.outputs[0]).type:
        raise BadShape("shape is not what the operator gives", where=node.name, wanted=kind)
    clamp = getattr(node.attrs, "clamp", None)
    low, high = INTEGER_RANGE.get(kind.dtype, (0, 0))
    if (
        clamp is not None
        and kind.dtype in INTEGER_RANGE
        and not low <= clamp[0] <= clamp[1] <= high
    ):
        raise BadQuantization("clamp leaves the range of the codes", where=node.name, got=clamp)


def _check_value(graph: Graph, name: str) -> None:
    value = graph.value(name)
    made = name not in graph.initializers
    if made and not value.type.shape:
        raise BadShape("tensors without axes are not supported", where=name)
    if any(d is None for d in value.type.shape[1:]):
        raise BadShape("size is not known", where=name, got=str(value.type))
    if value.type.per_image() > MAX_ELEMENTS:
        raise BadShape("tensor is too large", where=name, got=str(value.type))
    if made and value.qparams is not None and min(value.qparams.scale) < SMALLEST_SCALE:
        raise BadQuantization(
            "scale is too small",
            where=name,
            got=min(value.qparams.scale),
            wanted=f"at least {SMALLEST_SCALE:g}",
        )
    if made and value.type.dtype not in ("float32", "int8", "uint8"):
        raise BadQuantization(
            "tensors of this type are not supported",
            where=name,
            got=value.type.dtype,
            wanted="float32, int8 or uint8",
        )
    if made and value.type.dtype in INTEGER_RANGE and value.qparams is None:
        raise BadQuantization("codes without a scale", where=name)
    if made and value.qparams is not None and value.qparams.per_channel:
        raise BadQuantization("activation with several scales", where=name)
