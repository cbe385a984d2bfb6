"""What an operator's ONNX row is given and what it returns.

Rows of form "qdq", "any" and "float": ``convert(unit: Unit) -> Step``.
Rows of form "qoperator": ``convert(node: Node) -> QOperands``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import BadShape, UnsupportedOp
from npusim.ir import Array, Node, Value


@dataclass(frozen=True, slots=True)
class Unit:
    """One operator of the file with the codes around it.

    node: the file's node; its attributes as a mapping.
    since: the version of the operator that the file means.
    inputs: what stands for each of the node's inputs, None where one is absent: the codes behind
        its DequantizeLinear (form "qdq"), or the tensor itself. Their shapes are known.
    output: the codes that the QuantizeLinear after it writes (form "qdq"), else the tensor itself;
        its shape is not known yet.
    clamp: smallest and largest code that the output may take, with Relu and Clip in it.
    constants: values of constant tensors by name.
    moved: the file has a DequantizeLinear before the operator, which now stands behind it: numbers
        among the operator's attributes and inputs are real ones, not codes.
    """

    node: Node
    since: int
    inputs: tuple[Value | None, ...]
    output: Value
    clamp: tuple[int, int]
    constants: Mapping[str, Array]
    moved: bool = False

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Value:
        """The tensor behind an input that must be there.

        Raises BadShape where it is absent.
        """
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise BadShape("input is missing", where=self.node.name, wanted=f"input {index}")
        return value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an input; sizes are known before the batch is lifted."""
        return tuple(int(d or 1) for d in self.input(index).type.shape)

    def constant(self, index: int) -> Array | None:
        """The constant behind an input, None where the input is absent.

        Raises UnsupportedOp where it is computed at run time.
        """
        if not self.has(index):
            return None
        name = self.input(index).name
        if name not in self.constants:
            raise self.refused(f"input {name} is computed, not constant")
        return self.constants[name]

    def ints(self, index: int, attribute: str) -> tuple[int, ...] | None:
        """Integers that newer versions read from an input and older ones from an attribute."""
        array = self.constant(index)
        if array is not None:
            return tuple(int(v) for v in array.ravel())
        value = self.attr(attribute)
        return None if value is None else tuple(int(v) for v in value)

    def axes(self, given: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Axes counted from the front.

        Raises BadShape where one lies beyond ``rank`` axes or is named twice.
        """
        counted = tuple(a + rank if a < 0 else a for a in given)
        if any(not 0 <= a < rank for a in counted) or len(set(counted)) != len(counted):
            raise BadShape(
                f"{self.node.op}: bad axes", where=self.node.name, got=list(given), wanted=rank
            )
        return counted

    def names(self, *indices: int) -> tuple[str, ...]:
        """Names of inputs; absent ones at the end are dropped."""
        return tuple(self.input(i).name for i in indices if self.has(i))

    def code(self, number: float) -> float:
        """A number of the file as the tensor holds it: a code where the operator works on codes.

        Raises UnsupportedOp where no code stands for exactly this number.
        """
        if not self.moved:
            return number
        qparams = self.input(0).qparams
        assert qparams is not None
        scale, zero_point = qparams.scalar()
        low, high = self.input(0).range
        with np.errstate(over="ignore"):  # of the number in float32, and of its quotient
            real = np.float32(number)
            steps = np.rint(real / scale)
        if not np.isfinite(real):
            raise self.refused("constant is not finite", got=number)
        code = int(np.clip(steps + zero_point, low, high))
        if np.float32(code - zero_point) * scale != real:
            raise self.refused("constant is no code of its tensor", got=number)
        return code

    def refused(self, problem: str, got: object = None, wanted: object = None) -> UnsupportedOp:
        """The error to raise for an attribute that nothing here can compute."""
        return UnsupportedOp(
            f"{self.node.op}: {problem}", where=self.node.name, got=got, wanted=wanted
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The operator that stands for a unit.

    op: its name in the registry. attrs: its attributes. inputs: names of its inputs.
    """

    op: str
    attrs: Any
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QOperands:
    """How an operator that takes codes is written with QuantizeLinear and DequantizeLinear.

    op: the float operator between. attrs: its attributes.
    operands: (codes, scale, zero point) of each input, as tensor names; "" where absent.
    bias: name of int32 codes whose scale is the product of the first two operands' scales.
    axes: channel axis of each operand's scales; empty where there are no channels.
    result: (scale, zero point) of the output.
    """

    op: str
    attrs: Mapping[str, Any]
    operands: tuple[tuple[str, str, str], ...]
    result: tuple[str, str]
    bias: str = ""
    axes: tuple[int | None, ...] = ()


def operands_of(node: Node, required: int, total: int) -> tuple[str, ...]:
    """Names of the node's inputs, filled up with "" to ``total``.

    Raises BadShape where one of the first ``required`` is absent or there are more than ``total``;
    onnx.checker does not know the operators of com.microsoft.
    """
    names = node.inputs
    if len(names) > total or len(names) < required:
        raise BadShape(
            f"wrong number of inputs of {node.op}",
            where=node.name,
            got=len(names),
            wanted=f"{required} to {total}",
        )
    return (*names, *[""] * (total - len(names)))
