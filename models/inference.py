"""What is assumed of a network's input where its file says nothing.

Layout, channel order and type follow from the input's shape and type; the range of values from
the scale of the first quantization, which can represent nothing else. Each assumption comes with
a sentence for the user. A range that fits no usual convention is refused: guessing would give an
accuracy that looks like a fault of the network.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from npusim.errors import BadShape, DataError
from npusim.ir import Graph, Value
from npusim.models.dataset import DataSet
from npusim.models.preprocess import DTYPES, Preprocess

MOVERS = ("transpose", "reshape", "pad")

# (smallest value, largest value) of the quantized input -> how pixels get there. The bounds are
# loose by a few per cent since calibration seldom meets the extremes exactly.
TOLERANCE = 0.06


def infer_preprocess(
    graph: Graph, dataset: DataSet, given: Collection[str]
) -> tuple[Preprocess, tuple[str, ...]]:
    """(pre-processing, sentences that state what was assumed).

    Args:
        given: names of fields that the user sets; nothing is assumed of them.

    Raises:
        BadShape: the input's shape or type is none that images fit.
        DataError: the range of values cannot be told.
    """
    target = graph.inputs[0]
    record: dict[str, Any] = {"dataset": dataset.name, "source": dataset.source}
    notes = []
    layout, channels = _layout(target, dataset)
    order = "GRAY" if channels == 1 else "RGB"
    record |= {"layout": layout, "channel_order": order, "dtype": _dtype(target)}
    if not {"layout", "channel_order"} <= set(given):
        notes.append(f"assumed {layout} {order} from the input's shape {target.type}")
    if not {"scale", "mean", "std"} & set(given):
        normal, note = _normalisation(graph, dataset)
        record |= normal
        notes.append(note)
    return Preprocess().overridden(record), tuple(notes)


def _layout(target: Value, dataset: DataSet) -> tuple[str, int]:
    """(layout, channels) from the axis of size 1 or 3; NCHW, ONNX's own, where both are."""
    shape = target.type.shape
    if len(shape) != 4:
        return "NHWC", dataset.shape[2] if dataset.shape else 3
    for layout, axis in (("NCHW", 1), ("NHWC", 3)):
        if shape[axis] in (1, 3):
            return layout, int(shape[axis] or 0)
    raise BadShape(
        "no axis of the input has 1 or 3 channels",
        where=target.name,
        got=target.type,
        hint="Images have 1 or 3 channels; feed such an input with npusim run.",
    )


def _dtype(target: Value) -> str:
    if target.type.dtype not in DTYPES:
        raise BadShape(
            "images cannot be turned into this type of input",
            where=target.name,
            got=target.type.dtype,
            wanted=", ".join(DTYPES),
        )
    return target.type.dtype


def _normalisation(graph: Graph, dataset: DataSet) -> tuple[dict[str, Any], str]:
    """(scale, mean and std; the sentence about them)."""
    target = graph.inputs[0]
    if dataset.images.dtype != "uint8":
        return {}, f"assumed that the {dataset.images.dtype} data are the input's own values"
    if target.type.dtype == "int8":
        return {"mean": [128.0]}, "assumed int8 input codes of pixel - 128"
    if target.type.dtype == "uint8":
        return {}, "assumed uint8 input codes that are the pixels"
    span = quantized_range(graph)
    if span is None:
        return {}, "assumed raw pixel values 0..255 (the input is not quantized first)"
    shown = f"the input's quantization holds {span[0]:.4g} to {span[1]:.4g}"
    if _near(span, (0.0, 1.0)):
        return {"scale": 1 / 255}, f"assumed pixel / 255: {shown}"
    if _near(span, (-1.0, 1.0)):
        return {"mean": [127.5], "std": [127.5]}, f"assumed (pixel - 127.5) / 127.5: {shown}"
    if _near(span, (0.0, 255.0)):
        return {}, f"assumed raw pixel values 0..255: {shown}"
    if _near(span, (-128.0, 127.0)):
        return {"mean": [128.0]}, f"assumed pixel - 128: {shown}"
    raise DataError(
        "how pixels are scaled cannot be told from the network",
        where=target.name,
        got=shown,
        hint="Give --scale, --mean and --std: input = (pixel * scale - mean) / std.",
    )


def _near(span: tuple[float, float], wanted: tuple[float, float]) -> bool:
    slack = TOLERANCE * (wanted[1] - wanted[0])
    return all(abs(a - b) <= slack for a, b in zip(span, wanted, strict=True))


def quantized_range(graph: Graph) -> tuple[float, float] | None:
    """(smallest, largest) real value of the quantized input, None where it stays float.

    The input is followed through operators that only move elements.
    """
    name = graph.inputs[0].name
    while True:
        consumers = graph.consumers(name)
        nodes = [n for n in consumers if n.op in ("quantize", *MOVERS)]
        if not nodes:
            return None
        name = nodes[0].outputs[0]
        if nodes[0].op == "quantize":
            break
    value = graph.value(name)
    assert value.qparams is not None
    scale, zero_point = value.qparams.scalar()
    low, high = value.range
    return float(scale) * (low - zero_point), float(scale) * (high - zero_point)
