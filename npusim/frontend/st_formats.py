"""Give a raw graph the scales of ST's ``*_Q.json``, as QuantizeLinear and DequantizeLinear nodes.

Weights and biases that are floats on a grid become their codes; float activations that the JSON
gives an integer format get a QuantizeLinear and a DequantizeLinear. Where the network has such
nodes of its own, both must say the same. What comes out is an ordinary QDQ graph.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from npusim.errors import BadQuantization, ModelError
from npusim.frontend.st_json import Format, Formats
from npusim.ir import Array, Graph, Node, QParams
from npusim.passes.activation import ACTIVATIONS, bounds, clamp_of
from npusim.passes.qdq import DEQUANTIZE, QUANTIZE, codes_dtype, dequantized, read_qparams
from npusim.passes.quantize_constants import ELEMENTWISE, WEIGHTED, channel_axis
from npusim.passes.rewrite import Rewrite, consumers, producers
from npusim.passes.rows import row_of

SAME = 1e-6
"""Relative difference up to which two scales are one number printed differently."""

ON_GRID = 2.0**-20
"""Largest distance of a float constant from its code's number, relative to it."""


def with_formats(graph: Graph, formats: Formats) -> Graph:
    """The raw graph with the scales of the JSON file.

    Raises ModelError that names the tensor where the JSON contradicts the network, names no tensor
    of it, or gives a constant a grid that it does not lie on.
    """
    named = [name for name in formats.tensors if name in graph.values or graph.is_constant(name)]
    if not named:
        raise ModelError(
            "the file names no tensor of the network",
            where=formats.path,
            got=", ".join(list(formats.tensors)[:3]) or "no integer tensor",
            wanted=", ".join(v.name for v in (*graph.inputs, *graph.outputs)),
            hint="Give the *_Q.json that was written with this *_OE_*.onnx.",
        )
    check_agreement(graph, formats)
    work = Rewrite(graph)
    work.note(
        f"scales and zero points of {len(named)} tensors are those of {Path(formats.path).name}"
    )
    _constants(work, formats)
    _activations(work, formats)
    return work.graph()


def check_agreement(graph: Graph, formats: Formats) -> None:
    """Raises BadQuantization naming the tensor where the JSON and a Q or DQ node disagree."""
    made = producers(graph)
    for node in graph.nodes:
        if node.op not in (QUANTIZE, DEQUANTIZE):
            continue
        own, dtype = read_qparams(graph, node), codes_dtype(graph, node)
        for name in _described(node, made):
            given = formats.tensors.get(name)
            if given is not None and not _same(own, given.qparams, dtype, given.dtype):
                raise BadQuantization(
                    f"{node.op} {node.name} and {formats.path} give it different numbers",
                    where=name,
                    got=f"{_shown(own, dtype)} in the network",
                    wanted=f"{_shown(given.qparams, given.dtype)} from the JSON",
                    hint="The two files are not of one compilation.",
                )


def _described(node: Node, made: dict[str, Node]) -> tuple[str, ...]:
    """Tensors whose format a Q or DQ node states: its codes, and the reals it makes or ends."""
    if node.op == DEQUANTIZE:
        return node.inputs[0], node.outputs[0]
    before = made.get(node.inputs[0])
    computed = before is not None and not _keeps_scale(before) and before.op != DEQUANTIZE
    return (node.outputs[0], node.inputs[0]) if computed else (node.outputs[0],)


def _keeps_scale(node: Node) -> bool:
    moves = row_of(node.op, "any") is not None and node.op != "Concat"
    return node.op in ACTIVATIONS or moves


def _same(a: QParams, b: QParams, a_dtype: str = "", b_dtype: str = "") -> bool:
    if a_dtype != b_dtype or len(a.scale) != len(b.scale) or a.zero_point != b.zero_point:
        return False
    return bool(np.allclose(a.scales(), b.scales(), rtol=SAME, atol=0))


def _shown(qparams: QParams, dtype: str) -> str:
    several = ", ..." if len(qparams.scale) > 1 else ""
    return f"{dtype} scale {qparams.scale[0]:.9g}{several} zero point {qparams.zero_point[0]}"


def _constants(work: Rewrite, formats: Formats) -> None:
    """Float constants of weighted and element-wise operators become dequantized codes."""
    for node in work.old.nodes:
        if node.op not in (*WEIGHTED, *ELEMENTWISE):
            continue
        for index, name in enumerate(node.inputs[:3]):
            array, given = work.constants.get(name), formats.tensors.get(name)
            if array is None or given is None or array.dtype.kind != "f":
                continue
            weighted = node.op in WEIGHTED and index == 1
            axis = channel_axis(node.op, node.attrs, array.ndim) if weighted else 0
            qparams = QParams.make(given.qparams.scales(), given.qparams.zero_points(), axis)
            codes = _codes(name, array, qparams, given)
            _dequantize(work, node.name, name, codes, qparams)


def _codes(name: str, array: Array, qparams: QParams, given: Format) -> Array:
    """The codes of a float constant. Raises BadQuantization where it does not lie on the grid."""
    if not given.dtype:
        raise BadQuantization("codes of this type are not supported", where=name, got=given.type)
    channels = array.shape[qparams.axis] if qparams.axis is not None and array.ndim else 1
    if qparams.axis is not None and channels != len(qparams.scale):
        raise BadQuantization(
            "the JSON has another number of channels",
            where=name,
            got=len(qparams.scale),
            wanted=channels,
        )
    shape = [1] * array.ndim
    if qparams.axis is not None:
        shape[qparams.axis] = -1
    points = qparams.zero_points().reshape(shape)
    with np.errstate(all="ignore"):
        steps = np.rint(array.astype(np.float64) / qparams.scales().reshape(shape)) + points
    info = np.iinfo(given.dtype)
    inside = np.isfinite(steps) & (steps >= info.min) & (steps <= info.max)
    codes: Array = np.where(inside, steps, 0).astype(given.dtype)
    distance = np.abs(dequantized(codes, qparams).astype(np.float64) - array)
    off = ~inside | (distance > ON_GRID * np.abs(array))
    if off.any():
        raise BadQuantization(
            "the constant does not lie on the grid that the JSON gives it",
            where=name,
            got=float(array[off].ravel()[0]),
            wanted=f"multiples of {qparams.scale[0]:.9g} in {given.dtype}",
            hint="The two files are not of one compilation.",
        )
    return codes


def _dequantize(work: Rewrite, user: str, name: str, codes: Array, qparams: QParams) -> None:
    """The constant ``name`` becomes codes, and all its readers read them dequantized."""
    real = work.fresh(f"{name}_real")
    work.rename_uses(name, real)
    work.set_constant(name, codes)
    node = _node(work, DEQUANTIZE, name, real, qparams, codes.dtype.name)
    work.replace(user, node, work.nodes[user])


def _node(work: Rewrite, op: str, source: str, target: str, qparams: QParams, dtype: str) -> Node:
    """A QuantizeLinear or DequantizeLinear with new constants for its numbers."""
    form = -1 if qparams.per_channel else ()
    scale = work.constant(f"{target}_scale", qparams.scales().reshape(form))
    point = work.constant(f"{target}_zero_point", qparams.zero_points().astype(dtype).reshape(form))
    attrs = {"axis": qparams.axis} if qparams.per_channel else {}
    return Node(op, work.fresh(f"{target}/{op}"), (source, scale, point), (target,), attrs, ())


def _activations(work: Rewrite, formats: Formats) -> None:
    """Q and DQ behind every float activation whose integer format the network does not state."""
    graph = work.graph()
    outputs = {value.name for value in graph.outputs}
    readers = consumers(graph)
    known: dict[str, Format] = {}

    def open_(name: str) -> bool:
        """A float tensor that is not only read by QuantizeLinear nodes."""
        value, after = graph.values.get(name), readers[name]
        real = value is None or value.type.dtype.startswith("float")
        return real and (name in outputs or any(n.op != QUANTIZE for n in after))

    for value in graph.inputs:
        given = formats.tensors.get(value.name)
        if given is not None and open_(value.name):
            known[value.name] = _quantize_input(work, value.name, given)
    for node in graph.nodes:
        name = node.outputs[0]
        before = known.get(node.inputs[0]) if _keeps_scale(node) else None
        given = formats.tensors.get(name) or _deferred(graph, node, formats)
        if node.op == DEQUANTIZE:
            known[name] = Format(codes_dtype(graph, node), "", read_qparams(graph, node))
        elif node.op == QUANTIZE or not open_(name):
            continue
        elif before is not None and (given is None or _kept(graph, node, before, given)):
            known[name] = before
        elif given is not None:
            after = readers[name]
            joins = before is None and name not in outputs and len(after) == 1
            if not (joins and _is_saturation(after[0], given, formats)):
                known[name] = _quantize_output(work, node.name, name, given)


def _deferred(graph: Graph, node: Node, formats: Formats) -> Format | None:
    """The format of an activation that the JSON leaves out: that of the operator before it."""
    if node.op not in ACTIVATIONS:
        return None
    before = next((n for n in graph.nodes if node.inputs[0] in n.outputs), None)
    is_real = before is not None and before.op not in (QUANTIZE, DEQUANTIZE)
    return formats.tensors.get(node.inputs[0]) if is_real else None


def _kept(graph: Graph, node: Node, before: Format, given: Format) -> bool:
    """Whether a node that keeps scales also keeps all codes, so that nothing need be inserted."""
    if not _same(before.qparams, given.qparams, before.dtype, given.dtype):
        return False
    if node.op not in ACTIVATIONS:
        return True
    info = np.iinfo(before.dtype)
    limits = clamp_of((bounds(graph, node),), before.qparams, before.dtype)
    return limits == (info.min, info.max)


def _is_saturation(node: Node, given: Format, formats: Formats) -> bool:
    """Whether a node is a Relu or Clip that the operator before it does by saturating."""
    if node.op not in ACTIVATIONS:
        return False
    after = formats.tensors.get(node.outputs[0])
    return after is None or _same(given.qparams, after.qparams, given.dtype, after.dtype)


def _quantize_output(work: Rewrite, producer: str, name: str, given: Format) -> Format:
    """producer -> Q -> DQ, whose output has the old name."""
    _check_activation(name, given)
    exact, codes = work.fresh(f"{name}_exact"), work.fresh(f"{name}_codes")
    node = work.nodes[producer]
    renamed = replace(node, outputs=tuple(exact if o == name else o for o in node.outputs))
    work.values[exact] = replace(work.values[name], name=exact)
    first = _node(work, QUANTIZE, exact, codes, given.qparams, given.dtype)
    last = _node(work, DEQUANTIZE, codes, name, given.qparams, given.dtype)
    work.replace(producer, renamed, first, last)
    return given


def _quantize_input(work: Rewrite, name: str, given: Format) -> Format:
    """input -> Q -> DQ, which all readers of the input then read."""
    _check_activation(name, given)
    codes, real = work.fresh(f"{name}_codes"), work.fresh(f"{name}_real")
    work.rename_uses(name, real)
    first = _node(work, QUANTIZE, name, codes, given.qparams, given.dtype)
    last = _node(work, DEQUANTIZE, codes, real, given.qparams, given.dtype)
    work.nodes = {first.name: first, last.name: last, **work.nodes}
    return given


def _check_activation(name: str, given: Format) -> None:
    if given.dtype not in ("int8", "uint8") or given.qparams.per_channel:
        raise BadQuantization(
            "activations need 8-bit codes and one scale for the whole tensor",
            where=name,
            got=f"{given.type} with {len(given.qparams.scale)} scales",
        )
