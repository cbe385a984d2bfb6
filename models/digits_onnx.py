"""Quantizes the digits' CNN and writes it as a QDQ int8 ONNX graph.

The scheme: int8 activations with a scale and a zero point a tensor, over the range seen on the
training images; int8 weights with a symmetric scale an output channel, codes -127..127; int32
biases at the product of the two scales. Every tensor that passes between operators has its
QuantizeLinear and DequantizeLinear, as onnxruntime's own quantizer writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from npusim.models.preprocess import METADATA_KEY, Preprocess
from npusim.models.pretrain_digits import STRIDES, Floats, Parameters, forward

OPSET = 13
IR_VERSION = 8
INPUT = "image"
OUTPUT = "logits"


@dataclass(frozen=True, slots=True)
class Affine:
    """A tensor's int8 quantization: real = (code - zero_point) * scale."""

    scale: np.float32
    zero_point: int

    @classmethod
    def covering(cls, low: float, high: float) -> Affine:
        """The range [low, high], widened to hold 0, over the codes -128..127."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32((high - low) / 255.0)
        return cls(scale, int(np.clip(np.rint(-128.0 - low / float(scale)), -128, 127)))


def quantized_weight(weight: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """(codes in -127..127 of the weight's shape, scales [O]): symmetric, an output channel."""
    largest = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    scales = (largest / 127.0).astype(np.float32)
    codes = np.rint(weight / scales.reshape(-1, *[1] * (weight.ndim - 1)))
    return np.clip(codes, -127, 127).astype(np.int8), scales


@dataclass
class QdqBuilder:
    """The nodes and constants of a graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(op, inputs, [output], name=f"{output}_{op}", **attributes)
        )
        return output

    def through(self, tensor: str, affine: Affine, result: str = "") -> str:
        """``tensor`` after QuantizeLinear and DequantizeLinear; its name, or ``result``."""
        scale = self.constant(f"{tensor}_scale", affine.scale)
        zero = self.constant(f"{tensor}_zero_point", np.int8(affine.zero_point))
        codes = self.node("QuantizeLinear", [tensor, scale, zero], f"{tensor}_quantized")
        return self.node(
            "DequantizeLinear", [codes, scale, zero], result or f"{tensor}_dequantized"
        )

    def parameters(self, layer: str, parameters: Parameters, x: Affine) -> list[str]:
        """Dequantized weight and bias of a layer whose input is quantized as ``x``."""
        codes, scales = quantized_weight(parameters[f"{layer}.weight"])
        bias_scales = x.scale * scales
        bias = np.rint(parameters[f"{layer}.bias"] / bias_scales).astype(np.int32)
        return [
            self._dequantized(f"{layer}.weight", codes, scales),
            self._dequantized(f"{layer}.bias", bias, bias_scales),
        ]

    def _dequantized(self, name: str, codes: Any, scales: npt.NDArray[np.float32]) -> str:
        inputs = [
            self.constant(f"{name}_quantized", codes),
            self.constant(f"{name}_scale", scales),
            self.constant(f"{name}_zero_point", np.zeros(len(scales), codes.dtype)),
        ]
        return self.node("DequantizeLinear", inputs, f"{name}_dequantized", axis=0)


def quantized_model(parameters: Parameters, images: Floats) -> onnx.ModelProto:
    """The network as QDQ int8, calibrated on ``images`` [N, 1, 8, 8] in [0, 1]."""
    seen = forward(parameters, images)
    hidden1 = Affine.covering(0.0, float(seen.hidden1.max()))
    hidden2 = Affine.covering(0.0, float(seen.hidden2.max()))
    logits = Affine.covering(float(seen.logits.min()), float(seen.logits.max()))
    pixels = Affine.covering(0.0, 1.0)
    b = QdqBuilder()
    x = b.through(INPUT, pixels)
    for layer, before, after in (("conv1", pixels, hidden1), ("conv2", hidden1, hidden2)):
        y = b.node(
            "Conv",
            [x, *b.parameters(layer, parameters, before)],
            layer,
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[STRIDES[layer]] * 2,
        )
        x = b.through(b.node("Relu", [y], f"{layer}_relu"), after)
    flat = b.through(b.node("Flatten", [x], "flat", axis=1), hidden2)
    y = b.node("Gemm", [flat, *b.parameters("fc", parameters, hidden2)], "fc", transB=1)
    b.through(y, logits, result=OUTPUT)
    return _model(b)


def _model(builder: QdqBuilder) -> onnx.ModelProto:
    graph = helper.make_graph(
        builder.nodes,
        "digits",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", 10])],
        builder.constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="npusim",
    )
    preprocess = Preprocess(
        layout="NCHW",
        scale=1 / 255,
        channel_order="GRAY",
        dataset="digits",
        source="digits",
    )
    helper.set_model_props(model, {METADATA_KEY: preprocess.to_json()})
    onnx.checker.check_model(model, full_check=True)
    return model
