"""One-operator .tflite models of an operator, run by LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from npusim.ir import Array, QParams, Site

TYPES: Mapping[str, int] = {
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int32": schema.TensorType.INT32,
    "float32": schema.TensorType.FLOAT32,
}

VERSIONS: Mapping[int, int] = {
    schema.BuiltinOperator.FULLY_CONNECTED: 5,
    schema.BuiltinOperator.CONV_2D: 3,
    schema.BuiltinOperator.DEPTHWISE_CONV_2D: 3,
    schema.BuiltinOperator.HARD_SWISH: 1,
}
"""The operator versions that brought 8-bit signed codes; 2 for all others."""


class _Model:
    """A flat model in the making: tensors, buffers and one operator."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]

    def tensor(
        self, name: str, dtype: str, shape: tuple[int, ...], qparams: QParams | None,
        axis: int = 0, data: Array | None = None,
    ) -> int:  # fmt: skip
        """Index of a new tensor; ``axis`` is where a per-channel scale lies in TFLite's order."""
        tensor = schema.TensorT()
        tensor.name, tensor.type, tensor.shape = name, TYPES[dtype], list(shape)
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            tensor.buffer = len(self.buffers)
            self.buffers.append(buffer)
        if qparams is not None:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = list(qparams.scale)
            tensor.quantization.zeroPoint = list(qparams.zero_point)
            tensor.quantization.quantizedDimension = axis if qparams.per_channel else 0
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def finish(
        self, code: int, options: Any, inputs: list[int], output: int, fed: list[int]
    ) -> bytes:
        """The file with one operator; ``options`` may be None."""
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = 0, inputs, [output]
        if options is not None:
            kind = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            operator.builtinOptions = options
        opcode = schema.OperatorCodeT()
        opcode.builtinCode, opcode.version = code, VERSIONS.get(code, 2)
        opcode.deprecatedBuiltinCode = min(code, 127)
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, [operator]
        graph.inputs, graph.outputs = fed, [output]
        model = schema.ModelT()
        model.version, model.operatorCodes = 3, [opcode]
        model.subgraphs, model.buffers = [graph], self.buffers
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _binary(code: str, options: type) -> Callable[[Site], tuple[int, Any]]:
    return lambda site: (getattr(schema.BuiltinOperator, code), options())


def _mean(site: Site) -> tuple[int, Any]:
    options = schema.ReducerOptionsT()
    options.keepDims = site.attrs.keepdims
    return schema.BuiltinOperator.MEAN, options


def _concat(site: Site) -> tuple[int, Any]:
    options = schema.ConcatenationOptionsT()
    options.axis = (0, 3, 1, 2)[site.attrs.axis]
    return schema.BuiltinOperator.CONCATENATION, options


def _average(site: Site) -> tuple[int, Any]:
    options = schema.Pool2DOptionsT()
    options.filterHeight, options.filterWidth = site.attrs.kernel
    options.strideH, options.strideW = site.attrs.strides
    options.padding = schema.Padding.VALID
    return schema.BuiltinOperator.AVERAGE_POOL_2D, options


def is_depthwise(site: Site) -> bool:
    """A convolution that TFLite calls depthwise: weights are [1, kh, kw, O] there."""
    return bool(site.node.op == "conv" and site.attrs.group > 1)


def _conv(site: Site) -> tuple[int, Any]:
    options = schema.DepthwiseConv2DOptionsT() if is_depthwise(site) else schema.Conv2DOptionsT()
    options.padding = schema.Padding.VALID
    options.strideH, options.strideW = site.attrs.strides
    options.dilationHFactor, options.dilationWFactor = site.attrs.dilations
    if is_depthwise(site):
        options.depthMultiplier = site.value(1).type.shape[0] // site.attrs.group
        return schema.BuiltinOperator.DEPTHWISE_CONV_2D, options
    return schema.BuiltinOperator.CONV_2D, options


def _leaky_relu(site: Site) -> tuple[int, Any]:
    options = schema.LeakyReluOptionsT()
    (options.alpha,) = site.attrs.numbers
    return schema.BuiltinOperator.LEAKY_RELU, options


def _gelu(site: Site) -> tuple[int, Any]:
    options = schema.GeluOptionsT()
    options.approximate = site.attrs.function == "gelu_tanh"
    return schema.BuiltinOperator.GELU, options


def _plain(code: str) -> Callable[[Site], tuple[int, Any]]:
    return lambda site: (getattr(schema.BuiltinOperator, code), None)


OPERATORS: Mapping[str, Callable[[Site], tuple[int, Any]]] = {
    "add": _binary("ADD", schema.AddOptionsT),
    "mul": _binary("MUL", schema.MulOptionsT),
    "requantize": _binary("QUANTIZE", schema.QuantizeOptionsT),
    "quantize": _binary("QUANTIZE", schema.QuantizeOptionsT),
    "global_average_pool": _mean,
    "concat": _concat,
    "avgpool": _average,
    "conv": _conv,
    "sigmoid": _plain("LOGISTIC"),
    "tanh": _plain("TANH"),
    "hard_swish": _binary("HARD_SWISH", schema.HardSwishOptionsT),
    "leaky_relu": _leaky_relu,
    "gelu": _gelu,
    "gemm": _binary("FULLY_CONNECTED", schema.FullyConnectedOptionsT),
}


def expected(site: Site, feeds: Mapping[str, Array]) -> Array:
    """What LiteRT's reference kernel computes for the node, in ONNX's order of axes."""
    model = _Model()
    inputs = [_add_input(model, site, index, feeds) for index in range(len(site.node.inputs))]
    arrays = {
        tensor: channels_last(feeds[name])
        for tensor, name in zip(inputs, site.node.inputs, strict=True)
        if name in feeds
    }
    if site.node.op == "global_average_pool":
        axes = np.array([1, 2], np.int32)
        inputs.append(model.tensor("axes", "int32", (2,), None, data=axes))
    batch = next(iter(arrays.values())).shape[0]
    shape = channels_last(np.empty(site.output.type.concrete(batch))).shape
    output = model.tensor("y", site.output.type.dtype, shape, site.output.qparams)
    code, options = OPERATORS[site.node.op](site)
    content = model.finish(code, options, inputs, output, list(arrays))
    return np.clip(channels_first(_run(content, arrays, output)), *site.attrs.clamp)


def _add_input(model: _Model, site: Site, index: int, feeds: Mapping[str, Array]) -> int:
    """Index of the tensor that holds input ``index`` in TFLite's order of axes."""
    value, data = site.value(index), site.constant(index)
    if data is None:
        shape = channels_last(feeds[value.name]).shape
        return model.tensor(value.name, value.type.dtype, shape, value.qparams)
    if index == 1 and is_depthwise(site):
        data = np.ascontiguousarray(data[:, 0].transpose(1, 2, 0)[None])
        return model.tensor(value.name, value.type.dtype, data.shape, value.qparams, 3, data)
    data = channels_last(data)
    return model.tensor(value.name, value.type.dtype, data.shape, value.qparams, 0, data)


def _run(content: bytes, arrays: Mapping[int, Array], output: int) -> Array:
    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for tensor, array in arrays.items():
        interpreter.set_tensor(tensor, array)
    interpreter.invoke()
    result: Array = interpreter.get_tensor(output)
    return result


def channels_last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x


def channels_first(x: Array) -> Array:
    return np.moveaxis(x, -1, 1) if x.ndim == 4 else x
