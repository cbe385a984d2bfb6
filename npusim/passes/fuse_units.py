"""Turn DequantizeLinear -> operator -> Relu -> QuantizeLinear into one operator of the NPU.

The pass walks the file's nodes in execution order and keeps, for every float tensor of the file,
what stands for it: codes (behind a DequantizeLinear), a computation whose QuantizeLinear is still
to come, or a float tensor of the new graph. A computation is emitted where its QuantizeLinear
stands, once for each different one. What each operator becomes says its row in npusim.ops; see
npusim.ops.unit. Every other float computation is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import BadQuantization, UnsupportedOp
from npusim.ir import Graph, Node
from npusim.ops.base import OnnxRow
from npusim.passes.activation import ACTIVATIONS, bounds, clamp_of, exact_clamp
from npusim.passes.builder import Builder
from npusim.passes.qdq import DEQUANTIZE, QUANTIZE, codes_dtype, read_qparams
from npusim.passes.refuse_unsupported import QUANTIZE_TENSOR, unknown
from npusim.passes.rewrite import consumers
from npusim.passes.rows import row_of, since_of


@dataclass(frozen=True)
class Pending:
    """A float tensor that waits for its QuantizeLinear.

    node, row: the computation; None where only activations stand before the QuantizeLinear.
    source: the float tensor that the activations work on (where node is None).
    activations: bounds of Relu and Clip after it, in order. origin: names of the file's nodes.
    """

    node: Node | None
    row: OnnxRow | None
    source: str
    activations: tuple[tuple[float, float], ...] = ()
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class FuseUnits:
    """Raises UnsupportedOp or BadQuantization, naming the node, for what cannot become integers."""

    def __call__(self, graph: Graph) -> Graph:
        walk = _Walk(graph)
        for node in graph.nodes:
            walk.visit(node)
        return walk.finished()


class _Walk:
    """The state of one walk over the file's nodes."""

    def __init__(self, graph: Graph) -> None:
        self.raw = graph
        self.readers = consumers(graph)
        self.outputs = {v.name for v in graph.outputs}
        self.out = Builder(graph)
        self.pending: dict[str, Pending] = {}

    def visit(self, node: Node) -> None:
        if node.op == DEQUANTIZE:
            self._dequantize(node)
        elif node.op == QUANTIZE:
            self._quantize(node)
        elif node.op in ACTIVATIONS:
            self._activation(node)
        else:
            self._operator(node)

    def finished(self) -> Graph:
        for value in self.raw.outputs:
            self._refuse_pending(value.name)
        return self.out.graph()

    def _dequantize(self, node: Node) -> None:
        codes, target = self.out.resolve(node.inputs[0]), node.outputs[0]
        kind, dtype = self.out.value(codes, node).type, codes_dtype(self.raw, node)
        if kind.dtype != dtype:
            raise BadQuantization(
                "codes and zero point have different types",
                where=node.name,
                got=kind.dtype,
                wanted=dtype,
            )
        qparams = read_qparams(self.raw, node, kind.shape)
        self.out.assign(codes, qparams, node)
        self.out.real[target] = self.out.reading(codes, qparams)
        self.out.origins[target] = node.origin
        if target in self.outputs:
            self.out.as_float(target, node)

    def _quantize(self, node: Node) -> None:
        source = node.inputs[0]
        qparams = read_qparams(self.raw, node)
        if qparams.per_channel:
            raise BadQuantization(
                "activations need one scale for the whole tensor",
                where=node.name,
                got=f"{len(qparams.scale)} scales",
                hint="Quantize activations per tensor; only weights may be per channel.",
            )
        target = self.out.target(node.outputs[0], codes_dtype(self.raw, node), qparams)
        waiting = self.pending.get(source, Pending(None, None, source))
        clamp = clamp_of(waiting.activations, qparams, target.type.dtype)
        if self.out.reuse(source, target):
            return
        origin = (*waiting.origin, *node.origin)
        if waiting.node is not None and waiting.row is not None:
            since = since_of(self.raw, waiting.node, waiting.row)
            self.out.compute(waiting.node, waiting.row, since, target, clamp, origin)
        else:
            self.out.convert(waiting.source, target, clamp, node, origin)
        self.out.remember(source, target)

    def _activation(self, node: Node) -> None:
        source, target = node.inputs[0], node.outputs[0]
        limits = bounds(self.raw, node)
        waiting = self.pending.get(source)
        codes = self.out.real.get(source)
        quantized_next = target not in self.outputs and all(
            r.op == QUANTIZE or r.op in ACTIVATIONS for r in self.readers[target]
        )
        if waiting is None and codes is not None and not quantized_next:
            value = self.out.value(codes, node)
            assert value.qparams is not None
            clamp = exact_clamp(limits, value.qparams, value.type.dtype)
            if clamp is None:
                raise UnsupportedOp(
                    f"{node.op} with bounds that are no codes needs a QuantizeLinear after it",
                    where=node.name,
                    got=limits,
                )
            self.out.clamped(source, target, clamp, node)
            return
        before = waiting or Pending(None, None, source)
        self.pending[target] = Pending(
            before.node,
            before.row,
            before.source,
            (*before.activations, limits),
            (*before.origin, *node.origin),
        )

    def _operator(self, node: Node) -> None:
        row = row_of(node.op, "any", "float", "qdq")
        quantized = row_of(node.op, "qdq")
        if row is None:
            raise unknown(self.raw, node)
        if quantized is not None and not self._movable(node, row):
            self.pending[node.outputs[0]] = Pending(node, quantized, "", (), node.origin)
            return
        for name in node.inputs:
            self._refuse_pending(name)
        since = since_of(self.raw, node, row)
        if row.form == "float":
            self.out.floating(node, row, since)
        else:
            self.out.move(node, row, since, self._agreed(node))

    def _movable(self, node: Node, row: OnnxRow) -> bool:
        """Whether an operator that has both forms moves codes here (a Concat of equal scales)."""
        if row.form != "any":
            return row.form == "float"
        followed = all(r.op in (QUANTIZE, *ACTIVATIONS) for r in self.readers[node.outputs[0]])
        return self.out.alike(node.inputs) and (node.outputs[0] in self.outputs or not followed)

    def _agreed(self, node: Node) -> str:
        """What a QuantizeLinear after the node calls its codes, where it changes none; else ""."""
        source = self.out.real.get(node.inputs[0])
        if source is not None:
            value = self.out.value(source, node)
            for reader in self.readers[node.outputs[0]]:
                if (
                    reader.op == QUANTIZE
                    and read_qparams(self.raw, reader) == value.qparams
                    and codes_dtype(self.raw, reader) == value.type.dtype
                ):
                    return reader.outputs[0]
        return ""

    def _refuse_pending(self, name: str) -> None:
        waiting = self.pending.get(name)
        if waiting is None:
            return
        what = waiting.node or self.raw.producer(name)
        assert what is not None
        raise UnsupportedOp(
            f"the result of {what.op} is used without a QuantizeLinear after it",
            where=what.name,
            got=f"tensor {name}{self._uses(name)}",
            hint=QUANTIZE_TENSOR.format(name),
        )

    def _uses(self, name: str) -> str:
        """Where a float tensor goes, to stand behind its name."""
        others = [n.name for n in self.readers[name] if n.op != QUANTIZE]
        uses = ["an output of the network"] * (name in self.outputs)
        uses += [f"read by {', '.join(others)}"] * bool(others)
        return f", {' and '.join(uses)}" if uses else ""
