"""The four measured one-layer networks as graphs of NPU operators, without the frontend.

Each is Transpose, (Pad), Conv, Relu, AveragePool over the whole map, Reshape, with the scales in a
JSON file beside the model and the weights as floats on their grid.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from npusim.ir import Array, Graph, Node, QParams, TensorType, Value
from npusim.numerics.profile import Profile
from npusim.ops.avgpool import SPEC as AVGPOOL
from npusim.ops.conv import ConvAttrs
from npusim.ops.pad import PadAttrs
from npusim.ops.reshape import ReshapeAttrs
from npusim.ops.transpose import TransposeAttrs

PoolAttrs = AVGPOOL.attrs


def _scales(folder: Path) -> dict[str, QParams]:
    tensors = json.loads((folder / "model_q.json").read_text())["tensors"]
    return {name: QParams.make(*t["format"]["params"], axis=0) for name, t in tensors.items()}


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next(onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name)


def _attrs(node: onnx.NodeProto, constants: dict[str, Array], zero_point: int) -> Any:
    match node.op_type:
        case "Transpose":
            return TransposeAttrs(tuple(_attribute(node, "perm")))
        case "Pad":
            before, after = np.split(constants[node.input[1]], 2)
            return PadAttrs(tuple(zip(before.tolist(), after.tolist(), strict=True)), zero_point)
        case "Conv":
            pads, group = tuple(_attribute(node, "pads")), _attribute(node, "group")
            return ConvAttrs(pads=pads, group=group)
        case "AveragePool":
            kernel = tuple(_attribute(node, "kernel_shape"))
            return PoolAttrs(kernel, strides=kernel)
        case _:
            return ReshapeAttrs((None, *constants[node.input[1]].tolist()[1:]))


def load(folder: Path) -> Graph:
    """The graph of one golden folder; its input is x, its output y."""
    file = onnx.load(str(folder / "model.onnx")).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in file.initializer}
    scales = _scales(folder)
    layers = [n for n in file.node if n.op_type not in {"QuantizeLinear", "DequantizeLinear"}]
    qparams = scales[file.input[0].name]
    values = {"x": Value("x", TensorType("int8", (None, 64, 64, 3)), qparams)}
    nodes: list[Node] = []
    initializers: dict[str, Array] = {}
    previous = "x"
    for layer in (n for n in layers if n.op_type != "Relu"):
        inputs = (previous,)
        if layer.op_type == "Conv":
            for name in layer.input[1:]:
                dtype = "int32" if name.endswith("bias") else "int8"
                scale = scales[name].scales().reshape(-1, *[1] * (constants[name].ndim - 1))
                initializers[name] = np.rint(constants[name] / scale).astype(dtype)
                shape = TensorType(dtype, initializers[name].shape)
                values[name] = Value(name, shape, scales[name])
                inputs += (name,)
        attrs = _attrs(layer, constants, qparams.zero_point[0])
        qparams = scales[layer.output[0]]
        op = {"AveragePool": "avgpool"}.get(layer.op_type, layer.op_type.lower())
        previous = "y" if layer is layers[-1] else layer.output[0]
        nodes.append(Node(op, layer.name, inputs, (previous,), attrs))
        values[previous] = Value(previous, TensorType("int8", ()), qparams)
        values[previous] = _typed(values, nodes[-1], initializers)
    return Graph(
        name=folder.name,
        inputs=(values["x"],),
        outputs=(values["y"],),
        nodes=tuple(nodes),
        values=values,
        initializers=initializers,
    )


def _typed(values: dict[str, Value], node: Node, initializers: dict[str, Array]) -> Value:
    """The node's output with the type that its operator infers."""
    from npusim.ops.base import spec_of

    graph = Graph("", (), (), (node,), values, initializers)
    inferred = spec_of(node.op).infer(graph.site(node.name))
    value = values[node.outputs[0]]
    return Value(value.name, inferred, value.qparams)


def with_switch(profile: Profile, name: str, value: Any) -> Profile:
    """The profile with one switch changed."""
    return replace(profile, switches={**profile.switches, name: value})
