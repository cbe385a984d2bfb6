"""A graph of NPU operators as a QDQ network in ONNX.

Every operator becomes DequantizeLinear -> operator -> (Clip) -> QuantizeLinear, so that any runtime
can run it and the frontend reads back the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from npusim._version import __version__
from npusim.ir import INTEGER_RANGE, Array, Graph, Node, QParams, Site, Value
from npusim.passes.qdq import dequantized
from npusim.passes.rewrite import NOTES

OPSET = 19
IR_VERSION = 9


def to_model(graph: Graph, changed: Mapping[str, Array]) -> onnx.ModelProto:
    """The network with ``changed`` constants in place of the graph's own of these names."""
    writer = _Writer(graph, {**graph.initializers, **changed})
    for site in graph.sites():
        _WRITERS[site.node.op](writer, site)
    proto = helper.make_graph(
        writer.nodes,
        graph.name or "npusim",
        [_info(v) for v in graph.inputs],
        [_info(v) for v in graph.outputs],
        writer.tensors,
    )
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="npusim",
        producer_version=__version__,
    )
    for key, value in graph.metadata.items():
        if key == NOTES:
            continue
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    return model


def _info(value: Value) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.type.dtype))
    return helper.make_tensor_value_info(
        value.name, kind, ["N" if d is None else d for d in value.type.shape]
    )


class _Writer:
    """ONNX nodes and tensors of the file as far as it is written."""

    def __init__(self, graph: Graph, constants: Mapping[str, Array]) -> None:
        self.graph = graph
        self.constants = constants
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._written: set[str] = set()
        self._real: dict[str, str] = {}
        self._names = {*graph.values, *(n.name for n in graph.nodes)}

    def fresh(self, wish: str) -> str:
        name, number = wish, 1
        while name in self._names:
            number += 1
            name = f"{wish}_{number}"
        self._names.add(name)
        return name

    def tensor(self, name: str, array: Array) -> str:
        """Write a constant once."""
        if name not in self._written:
            self._written.add(name)
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op: str, inputs: list[str], output: str, name: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name, **attrs))
        return output

    def scales(self, name: str, qparams: QParams, dtype: str) -> list[str]:
        """Names of scale and zero point tensors."""
        shape = (-1,) if qparams.per_channel else ()
        scale = self.fresh(f"{name}_scale")
        point = self.fresh(f"{name}_zero_point")
        self.tensor(scale, qparams.scales().reshape(shape))
        self.tensor(point, qparams.zero_points().astype(dtype).reshape(shape))
        return [scale, point]

    def plain(self, name: str) -> str:
        """The tensor as it is, written where it is a constant."""
        if name in self.constants:
            self.tensor(name, self.constants[name])
        return name

    def real(self, name: str) -> str:
        """The float tensor behind a DequantizeLinear of ``name``."""
        if name not in self._real:
            value = self.graph.value(name)
            assert value.qparams is not None, name
            scales = self.scales(name, value.qparams, value.type.dtype)
            axis = {} if value.qparams.axis is None else {"axis": value.qparams.axis}
            self._real[name] = self.add(
                "DequantizeLinear",
                [self.plain(name), *scales],
                self.fresh(f"{name}_dequantized"),
                self.fresh(f"{name}/dequantize"),
                **axis,
            )
        return self._real[name]

    def quantize(self, site: Site, number: str) -> None:
        """Clip where the clamp asks for it, then QuantizeLinear to the node's output."""
        value = site.output
        qparams = site.output_qparams
        clamp = site.attrs.clamp
        if clamp != INTEGER_RANGE[value.type.dtype]:
            limits = dequantized(np.asarray(clamp, np.int64), qparams)
            ends = [
                self.tensor(self.fresh(f"{value.name}_{end}"), limit)
                for end, limit in zip(("min", "max"), limits, strict=True)
            ]
            name = self.fresh(f"{value.name}_clipped")
            number = self.add("Clip", [number, *ends], name, self.fresh(f"{site.node.name}/clip"))
        scales = self.scales(value.name, qparams, value.type.dtype)
        name = self.fresh(f"{site.node.name}/quantize")
        self.add("QuantizeLinear", [number, *scales], value.name, name)

    def unit(self, site: Site, op: str, inputs: list[str], **attrs: Any) -> None:
        """An operator on dequantized inputs whose result is quantized."""
        middle = self.fresh(f"{site.output.name}_real")
        self.quantize(site, self.add(op, inputs, middle, site.node.name, **attrs))

    def moved(self, site: Site, op: str, extra: list[str], **attrs: Any) -> None:
        """An operator that works on codes and floats alike."""
        inputs = [self.plain(site.node.inputs[0]), *extra]
        self.add(op, inputs, site.output.name, site.node.name, **attrs)


def _reals(writer: _Writer, node: Node) -> list[str]:
    return [writer.real(i) for i in node.inputs if i]


def _conv(writer: _Writer, site: Site) -> None:
    attrs = site.attrs
    writer.unit(
        site,
        "Conv",
        _reals(writer, site.node),
        kernel_shape=list(site.value(1).type.shape[2:]),
        strides=list(attrs.strides),
        pads=list(attrs.pads),
        dilations=list(attrs.dilations),
        group=attrs.group,
    )


def _gemm(writer: _Writer, site: Site) -> None:
    inputs, transposed = _reals(writer, site.node), site.attrs.transposed
    if len(site.value(0).type.shape) == 2:
        writer.unit(site, "Gemm", inputs, transB=int(transposed))
        return
    weights, name = inputs[1], site.node.name
    if transposed:
        turned = writer.fresh(f"{weights}_transposed")
        turn = writer.fresh(f"{name}/transpose")
        weights = writer.add("Transpose", [weights], turned, turn, perm=[1, 0])
    if len(inputs) == 2:
        writer.unit(site, "MatMul", [inputs[0], weights])
        return
    product = writer.fresh(f"{site.output.name}_product")
    writer.add("MatMul", [inputs[0], weights], product, writer.fresh(f"{name}/matmul"))
    writer.unit(site, "Add", [product, inputs[2]])


def _binary(op: str) -> Callable[[_Writer, Site], None]:
    def write(writer: _Writer, site: Site) -> None:
        writer.unit(site, op, _reals(writer, site.node))

    return write


def _pool_attrs(site: Site) -> dict[str, Any]:
    attrs = site.attrs
    return {
        "kernel_shape": list(attrs.kernel),
        "strides": list(attrs.strides),
        "pads": list(attrs.pads),
        "dilations": list(attrs.dilations),
        "ceil_mode": int(attrs.ceil_mode),
    }


def _maxpool(writer: _Writer, site: Site) -> None:
    writer.moved(site, "MaxPool", [], **_pool_attrs(site))


def _avgpool(writer: _Writer, site: Site) -> None:
    include = int(site.attrs.count_include_pad)
    inputs = _reals(writer, site.node)
    writer.unit(site, "AveragePool", inputs, **_pool_attrs(site), count_include_pad=include)


def _global_average_pool(writer: _Writer, site: Site) -> None:
    inputs = _reals(writer, site.node)
    if site.attrs.keepdims:
        writer.unit(site, "GlobalAveragePool", inputs)
        return
    axes = writer.tensor(writer.fresh(f"{site.node.name}_axes"), np.asarray([2, 3], np.int64))
    writer.unit(site, "ReduceMean", [*inputs, axes], keepdims=0)


def _concat(writer: _Writer, site: Site) -> None:
    values = [site.value(i) for i in range(len(site.node.inputs))]
    if all(v.qparams == site.output.qparams for v in values):
        names = [writer.plain(v.name) for v in values]
        writer.add("Concat", names, site.output.name, site.node.name, axis=site.attrs.axis)
        return
    middle = writer.fresh(f"{site.output.name}_real")
    inputs = _reals(writer, site.node)
    number = writer.add("Concat", inputs, middle, site.node.name, axis=site.attrs.axis)
    scales = writer.scales(site.output.name, site.output_qparams, site.output.type.dtype)
    name = writer.fresh(f"{site.node.name}/quantize")
    writer.add("QuantizeLinear", [number, *scales], site.output.name, name)


def _pad(writer: _Writer, site: Site) -> None:
    sides = site.attrs.pads
    pads = np.asarray([s[0] for s in sides] + [s[1] for s in sides], np.int64)
    value = np.asarray(site.attrs.value, site.value(0).type.dtype)
    name = site.node.name
    extra = [
        writer.tensor(writer.fresh(f"{name}_pads"), pads),
        writer.tensor(writer.fresh(f"{name}_value"), value),
    ]
    writer.moved(site, "Pad", extra)


def _reshape(writer: _Writer, site: Site) -> None:
    shape = np.asarray([-1 if d is None else d for d in site.attrs.shape], np.int64)
    name = writer.fresh(f"{site.node.name}_shape")
    writer.moved(site, "Reshape", [writer.tensor(name, shape)])


def _transpose(writer: _Writer, site: Site) -> None:
    writer.moved(site, "Transpose", [], perm=list(site.attrs.perm))


def _quantize(writer: _Writer, site: Site) -> None:
    writer.quantize(site, writer.plain(site.node.inputs[0]))


def _requantize(writer: _Writer, site: Site) -> None:
    writer.quantize(site, writer.real(site.node.inputs[0]))


def _dequantize(writer: _Writer, site: Site) -> None:
    value = site.value(0)
    scales = writer.scales(value.name, site.qparams(0), value.type.dtype)
    inputs = [writer.plain(value.name), *scales]
    writer.add("DequantizeLinear", inputs, site.output.name, site.node.name)


def _softmax(writer: _Writer, site: Site) -> None:
    writer.moved(site, "Softmax", [], axis=site.attrs.axis)


_WRITERS: Mapping[str, Callable[[_Writer, Site], None]] = {
    "conv": _conv,
    "gemm": _gemm,
    "add": _binary("Add"),
    "mul": _binary("Mul"),
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "global_average_pool": _global_average_pool,
    "concat": _concat,
    "pad": _pad,
    "reshape": _reshape,
    "transpose": _transpose,
    "quantize": _quantize,
    "requantize": _requantize,
    "dequantize": _dequantize,
    "softmax": _softmax,
}
