"""A small quantized classifier and a data set for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

CLASSES = 4
SIZE = 6


def tiny_classifier(rng: np.random.Generator) -> onnx.ModelProto:
    """QDQ: image [1,1,6,6] -> conv 3x3, relu -> flatten -> gemm -> scores [1,4]."""
    constants: dict[str, np.ndarray] = {
        "x_scale": np.float32(1 / 255),
        "x_zero": np.int8(-128),
        "w_scale": np.float32([0.01, 0.02]),
        "w_zero": np.zeros(2, np.int8),
        "w": rng.integers(-127, 128, (2, 1, 3, 3), np.int8),
        "b_scale": np.float32([0.01, 0.02]) * np.float32(1 / 255),
        "b_zero": np.zeros(2, np.int32),
        "b": rng.integers(-500, 500, 2, np.int32),
        "h_scale": np.float32(0.02),
        "h_zero": np.int8(-128),
        "v_scale": np.float32(0.01),
        "v_zero": np.int8(0),
        "v": rng.integers(-127, 128, (32, CLASSES), np.int8),
        "y_scale": np.float32(0.1),
        "y_zero": np.int8(3),
    }

    def quantize(name: str, source: str, kind: str) -> onnx.NodeProto:
        inputs = [source, f"{kind}_scale", f"{kind}_zero"]
        return helper.make_node("QuantizeLinear", inputs, [f"{name}_codes"], name=f"{name}_q")

    def dequantize(name: str, source: str, kind: str, **attrs: int) -> onnx.NodeProto:
        inputs = [source, f"{kind}_scale", f"{kind}_zero"]
        return helper.make_node("DequantizeLinear", inputs, [name], name=f"{name}_dq", **attrs)

    nodes = [
        quantize("x", "image", "x"),
        dequantize("xf", "x_codes", "x"),
        dequantize("wf", "w", "w", axis=0),
        dequantize("bf", "b", "b", axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        quantize("h", "r", "h"),
        dequantize("hf", "h_codes", "h"),
        helper.make_node("Flatten", ["hf"], ["flat"], name="flatten"),
        quantize("f", "flat", "h"),
        dequantize("ff", "f_codes", "h"),
        dequantize("vf", "v", "v"),
        helper.make_node("Gemm", ["ff", "vf"], ["g"], name="classifier"),
        quantize("y", "g", "y"),
        dequantize("scores", "y_codes", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(tiny_classifier(np.random.default_rng(1)), path)
    return path


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """Five images, values in [0, 1]."""
    return np.random.default_rng(2).random((5, 1, SIZE, SIZE), np.float32)


@pytest.fixture(scope="session")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 grey uint8 images with labels, as an .npz of x and y."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("data") / "grey.npz"
    x = rng.integers(0, 256, (23, SIZE, SIZE), np.uint8)
    np.savez(path, x=x, y=np.arange(23) % CLASSES)
    return path
