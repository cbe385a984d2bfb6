"""The part of a network that training runs: from its quantized input to its int8 logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization, BadShape
from npusim.ir import Graph, Node
from npusim.program import Program, compile_graph
from npusim.zo.loss import FloatCrossEntropy, IntegerCrossEntropy, Loss

_CODE_TYPES = ("int8", "uint8")


@dataclass(frozen=True)
class Labelled:
    """A data set as the quantized network sees it.

    codes: [N, ...] in the dtype of the quantized input. labels: int64 [N].
    """

    codes: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: npt.NDArray[np.int64]) -> Labelled:
        return Labelled(self.codes[indices], self.labels[indices])


@dataclass(frozen=True)
class TrainedNetwork:
    """A program, the parts of it that training uses, and the loss of its logits.

    program: the whole network, as ``npusim run`` runs it.
    encoder: from the file's input to the quantized one; None where the input is codes already.
    core: from quantized input to logits; same lowering as ``program``.
    loss: on the codes of the logits. scale: their real size. classes: how many there are.
    """

    program: Program
    encoder: Program | None
    core: Program
    loss: IntegerCrossEntropy
    scale: float
    classes: int

    def loss_of(self, kind: str) -> Loss:
        """The integer loss, or the float one for comparison."""
        return FloatCrossEntropy(self.scale) if kind == "float" else self.loss

    def encode(self, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Codes of the quantized input for images in the model's own input dtype."""
        if self.encoder is None:
            return images
        name = self.encoder.graph.inputs[0].name
        return self.encoder.run({name: images})[self.encoder.graph.outputs[0].name]


def cut_network(program: Program) -> TrainedNetwork:
    """Find the quantized input and the logits, and compile what lies between.

    Raises:
        BadShape: the network is not a classifier with one input, one output and a free batch.
        BadQuantization: there is no int8 tensor of logits, or its scale is out of range.
    """
    graph = program.graph
    source = _quantized_input(graph)
    logits = _logits(graph)
    value = graph.value(logits)
    if value.type.dtype not in _CODE_TYPES or value.qparams is None:
        raise BadQuantization(
            "the integer loss needs 8-bit logits before the last DequantizeLinear",
            where=logits,
            got=value.type,
        )
    classes = value.type.per_image()
    wide = [d for d in value.type.shape[1:] if d != 1]
    if not value.type.lifted or len(wide) != 1:
        raise BadShape(
            "the logits are not one vector of class scores an image",
            where=logits,
            got=value.type,
            wanted="a shape such as [N,10]",
        )
    core = compile_graph(
        graph.cut((source,), (logits,)), program.profile, program.engine, program.lowering
    )
    scale, _ = value.qparams.scalar()
    loss = IntegerCrossEntropy.for_scale(float(scale), where=logits)
    return TrainedNetwork(program, _encoder(program, source), core, loss, float(scale), classes)


def _encoder(program: Program, source: str) -> Program | None:
    name = program.graph.inputs[0].name
    if name == source:
        return None
    graph = program.graph.cut((name,), (source,))
    return compile_graph(graph, program.profile, program.engine, program.lowering)


def _quantized_input(graph: Graph) -> str:
    """The first tensor of codes on the way from the only input."""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise BadShape(
            "only networks with one input and one output can be trained",
            where=graph.path or graph.name,
            got=f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs",
        )
    value = graph.inputs[0]
    if not value.type.lifted:
        raise BadShape(
            "the network's batch cannot be changed",
            where=value.name,
            got=value.type,
            wanted="an operator graph that runs any number of images",
        )
    while value.type.dtype not in _CODE_TYPES:
        users = graph.consumers(value.name)
        if len(users) != 1:
            raise BadQuantization(
                "the input is not quantized before it is used",
                where=value.name,
                got=f"{value.type.dtype} read by {len(users)} nodes",
                wanted="one QuantizeLinear on the way from the input",
            )
        value = graph.value(users[0].outputs[0])
    return value.name


def _logits(graph: Graph) -> str:
    """The codes that feed the last DequantizeLinear; a Softmax after it is skipped."""
    name = graph.outputs[0].name
    while (node := graph.producer(name)) is not None and _after_logits(graph, node):
        name = node.inputs[0]
    return name


def _after_logits(graph: Graph, node: Node) -> bool:
    """Whether a node at the end of the network only presents the logits."""
    if node.op in ("softmax", "dequantize"):
        return True
    value = graph.value(node.inputs[0])
    if node.op == "quantize":  # of a Softmax whose output is quantized again
        before = graph.producer(value.name)
        return before is not None and before.op == "softmax"
    return node.op in ("reshape", "transpose") and value.type.dtype not in _CODE_TYPES
