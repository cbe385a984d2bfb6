"""Every public model at hand is loaded, or refused with words that say why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import npusim
from npusim.errors import ModelError

LOADED = {
    "mlperf_tiny/resnet.onnx": {
        "transpose": 1, "quantize": 1, "conv": 9, "add": 3, "avgpool": 1, "reshape": 1,
        "gemm": 1, "dequantize": 1, "softmax": 1,
    },
    "mlperf_tiny/deep_autoencoder.onnx": {"quantize": 1, "gemm": 10, "dequantize": 1},
    "onnxruntime_testdata/conv_qdq_external_ini.onnx": {"quantize": 1, "conv": 1, "dequantize": 1},
    "onnxruntime_testdata/conv_qdq_s8s8.onnx": {"quantize": 1, "conv": 1, "dequantize": 1},
    "onnxruntime_testdata/conv_qdq_u8u8.onnx": {"quantize": 1, "conv": 1, "dequantize": 1},
    "onnxruntime_testdata/transform__qdq_conv.onnx": {"conv": 1},
    "onnxruntime_testdata/transform__qdq_optimization__dup_qdq.onnx": {
        "quantize": 1, "add": 1, "reshape": 1, "dequantize": 1,
    },
}  # fmt: skip

REFUSED = {
    "float/mobilenetv2_1.00": "Conv is a float operator: this network is not quantized",
    "float/mobilenet_v2_0.35": "Conv is a float operator: this network is not quantized",
    "mlperf_tiny/pretrainedResnet_float": "Conv is a float operator",
    "refuse/mnist_conv": "Conv is a float operator",
    "refuse/resnet18": "fc.weight: external data are missing .*resnet18.external",
    "deeploy/": "unknown operator RequantShift",
    "onnxruntime_testdata/conv.int4": "codes of this type are not supported .got int4",
    "onnxruntime_testdata/dynamic_quantize": "operator DynamicQuantizeLinear",
    "onnxruntime_testdata/transform__fusion__dynamic": "operator DynamicQuantizeLinear",
    "onnxruntime_testdata/matmul_integer": "operator MatMulInteger",
    "onnxruntime_testdata/transform__fusion__matmul": "the graph has no output",
    "onnxruntime_testdata/layout_transform_reshape": "operator Sub .opset 11. cannot be run",
    "onnxruntime_testdata/layout_transform_fix": "not supported .got uint16",
    "onnxruntime_testdata/nhwc_resize": "operator Resize .opset 18. cannot be run",
    "onnxruntime_testdata/qdq_minimal_model": "operator Cast .opset 13. cannot be run",
    "onnxruntime_testdata/transform__fusion__qdq_fusion_int8": "only the first axis",
    "onnxruntime_testdata/qdq_with_multi": "Add is used without a QuantizeLinear after it",
    "onnxruntime_testdata/transform__qdq_with_multi_consumer_dq_nodes.fixed.onnx": (
        "Add is used without a QuantizeLinear after it"
    ),
    "onnxruntime_testdata/transform__qdq_with_multi_consumer_dq_nodes.fixed.qdq_contrib": (
        "Add is used without a QuantizeLinear after it"
    ),
    "onnxruntime_testdata/transform__qdq_with_multi_consumer_dq_nodes.fixed.qdq16": "got uint16",
    "onnxruntime_testdata/transform__fusion__constant_folding_qdq_node_unit.graph_output.qdq16": (
        "got uint16"
    ),
    "onnxruntime_testdata/transform__fusion__constant": "Add is used without a QuantizeLinear",
}


@pytest.mark.parametrize("name", LOADED)
def test_loaded(name: str, shared: Path) -> None:
    graph = npusim.load(shared / "models" / name)
    assert Counter(n.op for n in graph.nodes) == LOADED[name]
    assert all(v.type.lifted for v in (*graph.inputs, *graph.outputs))


def test_all_others_are_refused_for_their_reason(shared: Path) -> None:
    folder = shared / "models"
    refused = 0
    for path in sorted(folder.rglob("*.onnx")):
        name = path.relative_to(folder).as_posix()
        if name in LOADED:
            continue
        reason = max((p for p in REFUSED if name.startswith(p)), key=len, default=None)
        assert reason is not None, f"{name} is a model that no test expects"
        with pytest.raises(ModelError, match=REFUSED[reason]):
            npusim.load(path)
        refused += 1
    assert refused


def test_resnet(shared: Path) -> None:
    graph = npusim.load(shared / "models/mlperf_tiny/resnet.onnx")
    assert [str(v.type) for v in graph.inputs] == ["float32[N,32,32,3]"]
    assert [str(v.type) for v in graph.outputs] == ["float32[N,10]"]
    weights = [graph.initializers[n.inputs[1]] for n in graph.nodes if n.op in ("conv", "gemm")]
    assert sum(int((w == -128).sum()) for w in weights) == 144


@pytest.mark.parametrize("name", ["conv16_3x3", "conv32_1x1", "conv32_5x5", "depthwise_3x3"])
def test_networks_of_the_npu_vendor(name: str, shared: Path) -> None:
    graph = npusim.load(shared / "golden/neural_art" / name / "model.onnx")
    assert [n.op for n in graph.nodes] == ["transpose", "conv", "avgpool", "reshape"]
    conv = graph.nodes[1]
    assert graph.initializers[conv.inputs[1]].dtype == "int8"
    assert graph.value(conv.inputs[1]).qparams.per_channel
