"""The graph of NPU operators while FuseUnits makes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.errors import BadQuantization, BadShape, ModelError, UnsupportedOp
from npusim.ir import INTEGER_RANGE, Array, Graph, Node, QParams, Site, TensorType, Value
from npusim.numerics.lowered import Nothing
from npusim.ops.base import OnnxRow, spec_of
from npusim.ops.unit import Step, Unit
from npusim.passes.qdq import dequantized, quantized
from npusim.passes.refuse_unsupported import QUANTIZE_TENSOR
from npusim.passes.rewrite import Rewrite, needed


class Builder:
    """Nodes, values and constants of the new graph.

    real: float tensor of the file -> codes that stand for it. origins: the same -> file's nodes.
    Tensors of the new graph that have no counterpart in the file get fresh names.
    """

    def __init__(self, raw: Graph) -> None:
        self.raw = raw
        self.names = Rewrite(raw)
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {v.name: v for v in raw.inputs}
        self.constants: dict[str, Array] = dict(raw.initializers)
        for name in raw.initializers:
            self.values[name] = raw.values[name]
        self.real: dict[str, str] = {}
        self.origins: dict[str, tuple[str, ...]] = {}
        self._alias: dict[str, str] = {}
        self._made: dict[tuple[str, str, QParams], str] = {}
        self._node_names: set[str] = set()

    # -- tensors -------------------------------------------------------------------------------

    def resolve(self, name: str) -> str:
        """The tensor that a tensor of the file has become."""
        while name in self._alias:
            name = self._alias[name]
        return name

    def value(self, name: str, node: Node) -> Value:
        """The new graph's value for a tensor; ``node`` is who asks.

        Raises UnsupportedOp where the tensor is a float result that nothing quantizes.
        """
        value = self.values.get(self.resolve(name))
        if value is None:
            raise UnsupportedOp(f"input of {node.op} is not quantized", where=node.name, got=name)
        return value

    def target(self, name: str, dtype: str, qparams: QParams) -> Value:
        """A tensor of codes that is to be made; its shape follows."""
        return Value(name, TensorType(dtype, ()), qparams)

    def assign(self, name: str, qparams: QParams, node: Node) -> None:
        """Give codes that came without a scale (an input, and what it was made of) this one."""
        value = self.value(name, node)
        if value.qparams is not None:
            return
        if qparams.per_channel and name not in self.constants:
            raise BadQuantization(
                "activations need one scale for the whole tensor",
                where=node.name,
                got=f"{len(qparams.scale)} scales",
            )
        self.values[name] = replace(value, qparams=qparams)
        maker = next((n for n in self.nodes if name in n.outputs), None)
        for source in maker.inputs if maker else ():
            self.assign(source, qparams, node)

    def reading(self, name: str, qparams: QParams) -> str:
        """The codes ``name`` read with these scales: itself, or a second name of a constant."""
        value = self.values[name]
        if value.qparams == qparams:
            return name
        if name not in self.constants:
            raise BadQuantization(
                "one tensor of codes is read with two different scales",
                where=name,
                got=f"{value.qparams} and {qparams}",
                hint="QuantizeLinear and DequantizeLinear of a tensor must agree.",
            )
        copy = self.names.fresh(f"{name}_rescaled")
        self._constant(copy, self.constants[name], qparams)
        return copy

    def alike(self, names: tuple[str, ...]) -> bool:
        """Whether all tensors are codes with the same scale, or none is codes."""
        codes = [self.real.get(n) for n in names]
        found = {(self.values[c].type.dtype, self.values[c].qparams) for c in codes if c}
        return len(found) <= 1 and (all(codes) or not any(codes))

    def reuse(self, source: str, target: Value) -> bool:
        """Whether the same codes exist already; then ``target`` becomes another name of them."""
        assert target.qparams is not None
        if target.name in self.values:
            return True
        made = self._made.get((source, target.type.dtype, target.qparams))
        codes = self.real.get(source)
        if made is None and codes is not None and self._same(codes, target):
            made = codes
        if made is None:
            return False
        self._rename(made, target.name)
        return True

    def remember(self, source: str, target: Value) -> None:
        assert target.qparams is not None
        self._made[(source, target.type.dtype, target.qparams)] = target.name

    def _same(self, codes: str, target: Value) -> bool:
        """Whether quantizing the dequantized codes gives every code back."""
        value = self.values[codes]
        if (value.qparams, value.type.dtype) != (target.qparams, target.type.dtype):
            return False
        if value.qparams is None or value.qparams.per_channel:
            return False
        low, high = INTEGER_RANGE[value.type.dtype]
        every = np.arange(low, high + 1).astype(value.type.dtype)
        back = quantized(dequantized(every, value.qparams), value.qparams, value.type.dtype)
        return bool((back == every).all())

    def _rename(self, codes: str, name: str) -> None:
        if name in {v.name for v in self.raw.outputs}:
            value = self.values[codes]
            self._emit(
                Step("reshape", spec_of("reshape").attrs(shape=value.type.shape), (codes,)),
                replace(value, name=name),
                f"{name}/copy",
                (),
            )
        else:
            self._alias[name] = codes

    def _constant(self, name: str, array: Array, qparams: QParams | None) -> None:
        array = np.array(array) if array.flags.writeable else array
        array.flags.writeable = False
        self.constants[name] = array
        self.values[name] = Value(name, TensorType(array.dtype.name, array.shape), qparams)

    # -- nodes ---------------------------------------------------------------------------------

    def compute(
        self,
        node: Node,
        row: OnnxRow,
        since: int,
        target: Value,
        clamp: tuple[int, int],
        origin: tuple[str, ...],
    ) -> None:
        """Emit a unit: the operator on codes, its result quantized to ``target``."""
        inputs: list[Value | None] = []
        before: tuple[str, ...] = ()
        for name in node.inputs:
            inputs.append(self._operand(name, node) if name else None)
            before += self.origins.get(name, ())
        unit = Unit(node, since, tuple(inputs), target, clamp, self.constants)
        step = row.convert(unit)
        for name in step.inputs:
            if self.values[name].qparams is None:
                raise UnsupportedOp(
                    f"input of {node.op} is not quantized", where=node.name, got=name
                )
        self._emit(step, target, node.name, (*before, *origin))

    def _operand(self, name: str, node: Node) -> Value:
        codes = self.real.get(name)
        if codes is not None:
            return self.values[codes]
        constant = self.constants.get(name)
        if constant is not None and constant.dtype.kind in "iub":
            return self.values[name]
        grid = "a float constant that lies on no int8 grid: "
        raise UnsupportedOp(
            f"input of {node.op} is not quantized",
            where=node.name,
            got=f"{grid if constant is not None else 'tensor '}{name}",
            hint=QUANTIZE_TENSOR.format(name),
        )

    def convert(
        self,
        source: str,
        target: Value,
        clamp: tuple[int, int],
        node: Node,
        origin: tuple[str, ...],
    ) -> None:
        """Emit a quantize (of a float tensor) or requantize (of codes)."""
        codes = self.real.get(source)
        before = self.origins.get(source, ())
        if codes is not None and codes in self.constants:
            value = self.values[codes]
            assert value.qparams is not None
            assert target.qparams is not None
            numbers = dequantized(self.constants[codes], value.qparams)
            result = quantized(numbers, target.qparams, target.type.dtype)
            self._constant(target.name, np.asarray(np.clip(result, *clamp)), target.qparams)
            return
        op = "quantize" if codes is None else "requantize"
        name = codes or self.value(source, node).name
        step = Step(op, spec_of(op).attrs(clamp=clamp), (name,))
        self._emit(step, target, node.name, (*before, *origin))

    def clamped(self, source: str, target: str, clamp: tuple[int, int], node: Node) -> None:
        """Emit a Relu or Clip between two dequantized tensors."""
        codes = self.real[source]
        value = self.values[codes]
        self.origins[target] = (*self.origins.get(source, ()), *node.origin)
        if clamp == value.range:
            self.real[target] = codes
            return
        result = replace(value, name=self.names.fresh(f"{target}_codes"))
        step = Step("requantize", spec_of("requantize").attrs(clamp=clamp), (codes,))
        self._emit(step, result, node.name, self.origins[target])
        self.real[target] = result.name

    def move(self, node: Node, row: OnnxRow, since: int, agreed: str) -> None:
        """Emit an operator that moves elements, on codes where the file has them behind a DQ.

        agreed: name of the codes that a QuantizeLinear after it makes of them unchanged, or "".
        """
        target = node.outputs[0]
        moved = node.inputs[0] in self.real
        inputs = tuple(
            self.values[self.real[i]] if i in self.real else self.value(i, node) if i else None
            for i in node.inputs
        )
        first = inputs[0]
        assert first is not None
        if first.qparams is not None and first.qparams.per_channel and node.op != "Transpose":
            raise UnsupportedOp(
                f"{node.op} of per-channel weights is not supported", where=node.name
            )
        name = (agreed or self.names.fresh(f"{target}_codes")) if moved else target
        result = Value(name, TensorType(first.type.dtype, ()), first.qparams)
        clamp = INTEGER_RANGE.get(first.type.dtype, (0, 0))
        unit = Unit(node, since, inputs, result, clamp, self.constants, moved)
        origin = (*self.origins.get(node.inputs[0], ()), *node.origin)
        step = row.convert(unit)
        if all(i in self.constants for i in step.inputs):
            self._constant_step(step, result, node)
        else:
            self._emit(step, result, node.name, origin)
        if moved:
            self.real[target] = name
            self.origins[target] = origin
            if target in {v.name for v in self.raw.outputs}:
                self.as_float(target, node)

    def floating(self, node: Node, row: OnnxRow, since: int) -> None:
        """Emit a software epoch in float."""
        inputs = tuple(self.values[self.as_float(i, node)] if i else None for i in node.inputs)
        target = Value(node.outputs[0], TensorType("float32", ()))
        unit = Unit(node, since, inputs, target, (0, 0), self.constants)
        self._emit(row.convert(unit), target, node.name, node.origin)

    def as_float(self, name: str, node: Node) -> str:
        """The float tensor ``name``, dequantized here if it is codes so far."""
        if name in self.values or name not in self.real:
            return self.value(name, node).name
        target = Value(name, TensorType("float32", ()))
        step = Step("dequantize", spec_of("dequantize").attrs(), (self.real[name],))
        origin = self.origins.get(name, ())
        self._emit(step, target, origin[-1] if origin else f"{name}/dequantize", origin)
        return name

    def _constant_step(self, step: Step, target: Value, node: Node) -> None:
        """Compute a mover of constants at once."""
        qparams = target.qparams
        if qparams is not None and qparams.per_channel:
            qparams = _moved_axis(step, qparams)
        site = self._site(step, target, node.name, node.origin)
        inputs = tuple(self.constants[i] for i in step.inputs)
        wide = tuple(i.astype(np.int64) if i.dtype.kind in "iu" else i for i in inputs)
        result = spec_of(step.op).rules["exact"].reference(site, Nothing(), wide)
        self._constant(target.name, result.astype(target.type.dtype), qparams)

    def _site(self, step: Step, target: Value, name: str, origin: tuple[str, ...]) -> Site:
        """The node in its graph, with its output's shape inferred."""
        self.values[target.name] = target
        node = Node(step.op, name, step.inputs, (target.name,), step.attrs, origin)
        graph = Graph(
            self.raw.name, (), (), (node,), values=self.values, initializers=self.constants
        )
        site = Site(graph, node)
        try:
            kind = spec_of(step.op).infer(site)
        except (ValueError, IndexError, AssertionError, TypeError) as error:
            shapes = [str(self.values[i].type) for i in step.inputs]
            raise BadShape(
                f"shapes do not fit {step.op}", where=name, got=", ".join(shapes), hint=str(error)
            ) from None
        if any(d is not None and d < 1 for d in kind.shape):
            raise BadShape("result has no elements", where=name, got=str(kind))
        self.values[target.name] = replace(target, type=kind)
        return site

    def _emit(self, step: Step, target: Value, wish: str, origin: tuple[str, ...]) -> None:
        name, number = wish, 1
        while name in self._node_names:
            number += 1
            name = f"{wish}_{number}"
        self._node_names.add(name)
        site = self._site(step, target, name, origin)
        self.nodes.append(site.node)

    def graph(self) -> Graph:
        """Raises ModelError where an output was not made."""
        for value in self.raw.outputs:
            if value.name not in self.values:
                raise ModelError("output was not made", where=value.name)
        names = {v.name for v in self.raw.outputs}
        return needed(
            self.raw.with_(
                inputs=tuple(self.values[v.name] for v in self.raw.inputs),
                outputs=tuple(self.values[v.name] for v in self.raw.outputs),
                nodes=tuple(self.nodes),
                values=self.values,
                initializers=self.constants,
            ),
            names,
        )


def _moved_axis(step: Step, qparams: QParams) -> QParams:
    """Where the channels of per-channel weights are after a Transpose."""
    return replace(qparams, axis=step.attrs.perm.index(qparams.axis))
