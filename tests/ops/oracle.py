"""One-node ONNX models of operators in their QOperator form, run by onnxruntime.

``unit_model`` writes any node of a graph as such a model: the same constants, scales and zero
points, with the node's activations as inputs. What onnxruntime computes for it is the definition
of the profile ``onnxruntime``.

Sessions of uint8 activations with int8 weights set ``session.x64quantprecision``: without VNNI
onnxruntime otherwise adds pairs of u8 x s8 products in saturating 16-bit arithmetic. An optimizer
pass then turns the int8 weights into uint8, so optimization stays on, and weights may use their
whole range. int8 with int8 and uint8 with uint8 are exact without it (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from npusim.ir import Array, Site, Value

MICROSOFT = "com.microsoft"
OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1))
TYPES: Mapping[str, int] = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "float32": TensorProto.FLOAT,
}


class _Unit:
    """A one-node model in the making."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, array: Array) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def quantization(self, value: Value) -> list[str]:
        """Names of the scale and the zero point of a quantized tensor."""
        qparams = value.qparams
        assert qparams is not None
        scale, points = qparams.scales(), qparams.zero_points().astype(value.type.dtype)
        if not qparams.per_channel:
            scale, points = scale.reshape(()), points.reshape(())
        return [
            self.constant(f"{value.name}/scale", scale),
            self.constant(f"{value.name}/zero_point", points),
        ]

    def quantized(self, index: int) -> list[str]:
        """An input's name with its scale and zero point."""
        value = self.site.value(index)
        return [value.name, *self.quantization(value)]

    def output(self) -> list[str]:
        return self.quantization(self.site.output)

    def bias(self) -> list[str]:
        return [self.site.value(2).name] if self.site.has(2) else []


def _conv(unit: _Unit) -> onnx.NodeProto:
    attrs = unit.site.attrs
    inputs = [*unit.quantized(0), *unit.quantized(1), *unit.output(), *unit.bias()]
    return _node(
        unit,
        "QLinearConv",
        inputs,
        "",
        strides=attrs.strides,
        pads=attrs.pads,
        dilations=attrs.dilations,
        group=attrs.group,
    )


def _gemm(unit: _Unit) -> onnx.NodeProto:
    if not unit.site.has(2) and not unit.site.attrs.transposed:
        inputs = [*unit.quantized(0), *unit.quantized(1), *unit.output()]
        return _node(unit, "QLinearMatMul", inputs, "")
    inputs = [*unit.quantized(0), *unit.quantized(1), *(unit.bias() or [""]), *unit.output()]
    return _node(unit, "QGemm", inputs, MICROSOFT, transB=int(unit.site.attrs.transposed))


def _elementwise(op_type: str) -> Callable[[_Unit], onnx.NodeProto]:
    def write(unit: _Unit) -> onnx.NodeProto:
        inputs = [*unit.quantized(0), *unit.quantized(1), *unit.output()]
        return _node(unit, op_type, inputs, MICROSOFT)

    return write


def _avgpool(unit: _Unit) -> onnx.NodeProto:
    attrs = unit.site.attrs
    assert attrs.dilations == (1, 1)
    return _node(
        unit,
        "QLinearAveragePool",
        [*unit.quantized(0), *unit.output()],
        MICROSOFT,
        kernel_shape=attrs.kernel,
        strides=attrs.strides,
        pads=attrs.pads,
        ceil_mode=int(attrs.ceil_mode),
        count_include_pad=int(attrs.count_include_pad),
    )


def _global_average_pool(unit: _Unit) -> onnx.NodeProto:
    inputs = [*unit.quantized(0), *unit.output()]
    return _node(unit, "QLinearGlobalAveragePool", inputs, MICROSOFT)


def _concat(unit: _Unit) -> onnx.NodeProto:
    operands = [name for i in range(len(unit.site.node.inputs)) for name in unit.quantized(i)]
    return _node(
        unit, "QLinearConcat", [*unit.output(), *operands], MICROSOFT, axis=unit.site.attrs.axis
    )


def _maxpool(unit: _Unit) -> onnx.NodeProto:
    attrs = unit.site.attrs
    return _node(
        unit,
        "MaxPool",
        [unit.site.value(0).name],
        "",
        kernel_shape=attrs.kernel,
        strides=attrs.strides,
        pads=attrs.pads,
        dilations=attrs.dilations,
        ceil_mode=int(attrs.ceil_mode),
    )


def _activation(op_type: str, *names: str) -> Callable[[_Unit], onnx.NodeProto]:
    def write(unit: _Unit) -> onnx.NodeProto:
        numbers = dict(zip(names, unit.site.attrs.numbers, strict=True))
        if op_type.startswith("QLinear"):
            inputs = [*unit.quantized(0), *unit.output()]
            return _node(unit, op_type, inputs, MICROSOFT, **numbers)
        return helper.make_node(op_type, ["real"], ["result"], **numbers)

    return write


def _quantize(unit: _Unit) -> onnx.NodeProto:
    return _node(unit, "QuantizeLinear", [unit.site.value(0).name, *unit.output()], "")


def _dequantize(unit: _Unit) -> onnx.NodeProto:
    return _node(unit, "DequantizeLinear", unit.quantized(0), "")


WRITERS: Mapping[str, Callable[[_Unit], onnx.NodeProto]] = {
    "conv": _conv,
    "gemm": _gemm,
    "add": _elementwise("QLinearAdd"),
    "mul": _elementwise("QLinearMul"),
    "avgpool": _avgpool,
    "global_average_pool": _global_average_pool,
    "concat": _concat,
    "maxpool": _maxpool,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "sigmoid": _activation("QLinearSigmoid"),
    "leaky_relu": _activation("QLinearLeakyRelu", "alpha"),
}

UNFUSED: Mapping[str, Callable[[_Unit], onnx.NodeProto]] = {
    "hard_sigmoid": _activation("HardSigmoid", "alpha", "beta"),
    "hard_swish": _activation("HardSwish"),
    "elu": _activation("Elu", "alpha"),
    "selu": _activation("Selu", "alpha", "gamma"),
    "softplus": _activation("Softplus"),
    "softsign": _activation("Softsign"),
}
"""Operators without a kernel for codes: float ones between DequantizeLinear and QuantizeLinear."""


def unit_model(site: Site) -> onnx.ModelProto:
    """The node as an ONNX model of its own; some are float nodes between codes."""
    unit = _Unit(site)
    nodes = _between_floats(unit) if _keeps_its_nodes(site) else [WRITERS[site.node.op](unit)]
    activations = []
    for name in dict.fromkeys(n for n in site.node.inputs if n):
        if site.graph.is_constant(name):
            unit.constant(name, site.graph.initializers[name])
        else:
            activations.append(_info(site.graph.value(name)))
    graph = helper.make_graph(nodes, "unit", activations, [_output_info(site)], unit.initializers)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def _keeps_its_nodes(site: Site) -> bool:
    return site.node.op == "requantize" or site.node.op in UNFUSED


def _between_floats(unit: _Unit) -> list[onnx.NodeProto]:
    """DequantizeLinear, the float operator if there is one, QuantizeLinear."""
    first = helper.make_node("DequantizeLinear", unit.quantized(0), ["real"])
    op = unit.site.node.op
    middle = [UNFUSED[op](unit)] if op in UNFUSED else []
    last = "result" if middle else "real"
    return [first, *middle, _node(unit, "QuantizeLinear", [last, *unit.output()], "")]


def _node(
    unit: _Unit, op_type: str, inputs: list[str], domain: str, **attrs: Any
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [unit.site.output.name], domain=domain, **attrs)


def _info(value: Value) -> onnx.ValueInfoProto:
    dims = ["N" if d is None else d for d in value.type.shape]
    return helper.make_tensor_value_info(value.name, TYPES[value.type.dtype], dims)


def _output_info(site: Site) -> onnx.ValueInfoProto:
    """Without a shape: the file's node may drop axes that npusim's node keeps, or keep them."""
    return helper.make_tensor_value_info(site.output.name, TYPES[site.output.type.dtype], None)


def saturates_without_vnni(site: Site) -> bool:
    """True for uint8 activations with int8 weights, see the module's text."""
    if site.node.op not in ("conv", "gemm"):
        return False
    return (site.value(0).type.dtype, site.value(1).type.dtype) == ("uint8", "int8")


def session(site: Site) -> onnxruntime.InferenceSession:
    """onnxruntime ready to run the unit."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if saturates_without_vnni(site):
        options.add_session_config_entry("session.x64quantprecision", "1")
    if _keeps_its_nodes(site):
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # keeps the nodes as they are
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(
        unit_model(site).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def expected(site: Site, feeds: Mapping[str, Array]) -> Array:
    """What onnxruntime computes for the node, in the output's dtype and npusim's shape."""
    output: Array = session(site).run(None, dict(feeds))[0]
    if site.node.op == "global_average_pool" and not site.attrs.keepdims:
        output = output.reshape(output.shape[:2])
    clamp = getattr(site.attrs, "clamp", None)
    return output if clamp is None or output.dtype == np.float32 else np.clip(output, *clamp)
