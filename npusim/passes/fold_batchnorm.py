"""Fold BatchNormalization into the quantized convolution or Gemm before it.

y = a * (conv + b) + c, with a = gamma / sqrt(var + eps): the codes of the weights stay, their scale
is multiplied by |a|, and the codes of a channel with a negative factor change sign. The bias
becomes float here; QuantizeBias gives it codes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.errors import BadQuantization, BadShape, UnsupportedOp
from npusim.ir import INTEGER_RANGE, Array, Graph, Node, QParams
from npusim.passes.qdq import DEQUANTIZE, dequantized, read_qparams
from npusim.passes.quantize_constants import WEIGHTED, channel_axis, insert_codes
from npusim.passes.rewrite import Rewrite, consumers, producers

BATCHNORM = "BatchNormalization"


@dataclass(frozen=True)
class FoldBatchNorm:
    """Raises UnsupportedOp for one that stands behind anything else than Conv, Gemm or MatMul."""

    def __call__(self, graph: Graph) -> Graph:
        for node in graph.nodes:
            if node.op == BATCHNORM:
                graph = _fold(graph, node)
        return graph


def _fold(graph: Graph, norm: Node) -> Graph:
    before = producers(graph).get(norm.inputs[0])
    weights = _weights_of(graph, before)
    alone = before is not None and len(consumers(graph)[before.outputs[0]]) == 1
    if before is None or weights is None or not alone:
        raise UnsupportedOp(
            "BatchNormalization stands behind no quantized Conv or Gemm of its own",
            where=norm.name,
            got=before.op if before else "an input",
            hint="Fold it in the float network before quantizing, for instance with"
            " onnxruntime.quantization.shape_inference.quant_pre_process.",
        )
    factor, offset = _affine(graph, norm)
    work = Rewrite(graph)
    codes = graph.initializers[weights.inputs[0]]
    qparams = read_qparams(graph, weights, codes.shape)
    axis = channel_axis(before.op, before.attrs, codes.ndim)
    if codes.ndim < 2 or factor.size != codes.shape[axis]:
        raise BadQuantization(
            "BatchNormalization has another number of channels", where=norm.name, got=factor.size
        )
    bias = _bias_of(graph, before, factor.size)
    if bias.size != factor.size:
        raise BadShape("bias does not have one value a channel", where=before.name, got=bias.size)
    bias = bias * factor + offset
    codes, scaled = _scaled(codes, qparams, axis, factor, weights.inputs[0])
    name = work.fresh(f"{weights.inputs[0]}_folded")
    inputs = (*before.inputs[:2], work.constant(f"{before.name}_bias", bias.astype(np.float32)))
    work.nodes[before.name] = replace(
        before,
        inputs=inputs,
        outputs=norm.outputs,
        origin=(*before.origin, *norm.origin),
    )
    del work.nodes[norm.name]
    work.note(f"{before.name}: {norm.name} is folded into its weights and bias")
    insert_codes(work, work.nodes[before.name], 1, name, codes, scaled)
    return work.graph()


def _weights_of(graph: Graph, node: Node | None) -> Node | None:
    """The DequantizeLinear of the node's constant weights."""
    if node is None or node.op not in WEIGHTED:
        return None
    source = producers(graph).get(node.inputs[1])
    known = source is not None and source.op == DEQUANTIZE
    return source if known and source and graph.is_constant(source.inputs[0]) else None


def _affine(graph: Graph, norm: Node) -> tuple[Array, Array]:
    """float64 (factor, offset) of each channel."""
    tensors = [graph.initializers.get(n) for n in norm.inputs[1:5]]
    if norm.attrs.get("training_mode", 0) or any(t is None for t in tensors):
        raise UnsupportedOp("BatchNormalization is not constant", where=norm.name)
    gamma, beta, mean, variance = (t.astype(np.float64) for t in tensors if t is not None)
    if len({t.shape for t in (gamma, beta, mean, variance)}) != 1 or gamma.ndim != 1:
        raise BadShape("BatchNormalization's tensors do not fit one another", where=norm.name)
    epsilon = float(norm.attrs.get("epsilon", 1e-5))
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + epsilon)
        offset = beta - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        raise BadQuantization("BatchNormalization is not finite", where=norm.name)
    return factor, offset


def _bias_of(graph: Graph, node: Node, channels: int) -> Array:
    """The float64 bias of each channel, 0 where there is none."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return np.zeros(channels)
    name = node.inputs[2]
    source = producers(graph).get(name)
    numbers = graph.initializers.get(name)
    if source is not None and source.op == DEQUANTIZE and graph.is_constant(source.inputs[0]):
        codes = graph.initializers[source.inputs[0]]
        numbers = dequantized(codes, read_qparams(graph, source, codes.shape))
    if numbers is None:
        raise UnsupportedOp("bias is computed, not constant", where=node.name, got=name)
    return numbers.astype(np.float64).reshape(-1)


def _scaled(
    codes: Array, qparams: QParams, axis: int, factor: Array, name: str
) -> tuple[Array, QParams]:
    """Codes and scales of weights times ``factor``; a factor of 0 makes the weights 0."""
    shape = [1] * codes.ndim
    shape[axis] = -1
    points = np.broadcast_to(qparams.zero_points(), factor.shape).reshape(shape)
    centred = (codes.astype(np.int64) - points) * np.sign(factor).astype(np.int64).reshape(shape)
    result = centred + points
    low, high = INTEGER_RANGE[codes.dtype.name]
    if result.min() < low or result.max() > high:
        raise BadQuantization(
            "a BatchNormalization factor is negative and a weight code has no negative",
            where=name,
            got=f"codes {int(result.min())} to {int(result.max())}",
            wanted=f"{low} to {high}",
            hint="Fold BatchNormalization in the float network before quantizing.",
        )
    scales = np.broadcast_to(qparams.scales(), factor.shape)
    scale = np.where(factor == 0, scales, scales * np.abs(factor)).astype(np.float32)
    if not (scale > 0).all():
        raise BadQuantization("a folded scale is too small for float32", where=name)
    return result.astype(codes.dtype), QParams.make(scale, points.reshape(-1), axis)
