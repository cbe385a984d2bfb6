"""Activation functions from the file to the codes, under every profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx_nets import Net, run_onnxruntime
from random_units import Case, Operand, one_node

import npusim
from npusim.errors import NpusimError, UnsupportedOp, UsageError
from npusim.ir import Graph, QParams
from npusim.lowering import compile_chosen
from npusim.numerics.neural_art_tables import QuadraticTable, RoundedTable
from npusim.ops.activation import ActivationAttrs

NEWEST = min(24, onnx.defs.onnx_opset_version())
ENGINES = ["numpy", "fast"]

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
    "HardSigmoid": ("hard_sigmoid", {}),
    "HardSigmoid, other line": ("hard_sigmoid", {"alpha": 0.31, "beta": 0.4}),
    "HardSwish": ("hard_swish", {}),
    "LeakyRelu": ("leaky_relu", {}),
    "LeakyRelu, rising to the left": ("leaky_relu", {"alpha": -0.3}),
    "Elu": ("elu", {}),
    "Elu, half": ("elu", {"alpha": 0.5}),
    "Selu": ("selu", {}),
    "Selu, other numbers": ("selu", {"alpha": 1.1, "gamma": 0.9}),
    "Softplus": ("softplus", {}),
    "Softsign": ("softsign", {}),
    "Mish": ("mish", {}),
    "Gelu": ("gelu", {}),
    "Gelu, by tanh": ("gelu", {"approximate": "tanh"}),
    "Swish": ("swish", {}),
    "Swish, steeper": ("swish", {"alpha": 1.7}),
}
BY_TANH_OR_PRODUCT = {"Tanh", "Mish", "Gelu, by tanh", "Swish", "Swish, steeper"}
"""onnxruntime's tanh, and its products, are off by a last bit near ties now and then."""


def unit(
    build: Any, x: tuple[float, int], y: tuple[float, int], dtype: str = "int8", opset: int = NEWEST
) -> Net:
    """Codes in, every one of them once -> build -> codes out."""
    net = Net(opset, contrib=True)
    real = net.dq(net.input("x", [1, 4, 8, 8], dtype), *x, dtype)
    net.q(build(net, real), *y, dtype, output="y")
    net.output("y", [1, 4, 8, 8], dtype)
    return net


def every_code(dtype: str) -> dict[str, Any]:
    info = np.iinfo(dtype)
    return {"x": np.arange(info.min, info.max + 1).astype(dtype).reshape(1, 4, 8, 8)}


def computed(graph: Graph, profile: str, engine: str, feeds: dict[str, Any]) -> Any:
    return npusim.compile(graph, profile, engine).run(feeds)["y"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_codes_are_those_of_onnxruntime(form: str, dtype: str, engine: str, tmp_path: Path) -> None:
    operator, attrs = form.partition(",")[0], FORMS[form][1]
    if not onnx.defs.has(operator):
        pytest.skip("this onnx package is older than the operator")
    middle = 0 if dtype == "int8" else 128
    different: Any = 0
    for x, y in (
        ((0.05, middle), (0.0078125, middle)),
        ((0.031, middle - 90), (0.02, middle - 100)),
        ((0.11, middle + 40), (0.04, middle + 3)),
    ):
        net = unit(lambda n, real: n.node(operator, [real], **attrs), x, y, dtype)
        path = net.save(tmp_path)
        graph, feeds = npusim.load(path), every_code(dtype)
        assert [n.op for n in graph.nodes] == [FORMS[form][0]]
        wanted = run_onnxruntime(path, feeds)["y"]
        got = computed(graph, "onnxruntime", engine, feeds)
        assert got.dtype == wanted.dtype
        assert len(np.unique(wanted)) > 20
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1
        different += np.count_nonzero(got != wanted)
    assert different <= (3 if form in BY_TANH_OR_PRODUCT else 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("operator", "attrs"), [("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.2})])
def test_operators_of_codes(
    operator: str, attrs: dict[str, float], dtype: str, tmp_path: Path
) -> None:
    """com.microsoft QLinearSigmoid and QLinearLeakyRelu are the same as the QDQ form."""
    middle = 0 if dtype == "int8" else 128
    net = Net(17, contrib=True)
    numbers = [
        net.const(np.asarray(v, t))
        for v, t in ((0.06, "f4"), (middle, dtype), (0.01, "f4"), (middle + 9, dtype))
    ]
    inputs = [net.input("x", [1, 4, 8, 8], dtype), *numbers]
    net.node(f"QLinear{operator}", inputs, "q", output="y", domain="com.microsoft", **attrs)
    net.output("y", [1, 4, 8, 8], dtype)
    path = net.save(tmp_path)
    graph, feeds = npusim.load(path), every_code(dtype)
    got = computed(graph, "onnxruntime", "fast", feeds)
    assert np.array_equal(got, run_onnxruntime(path, feeds)["y"])
    pair = unit(
        lambda n, real: n.node(operator, [real], **attrs),
        (0.06, middle),
        (0.01, middle + 9),
        dtype,
        17,
    )
    other = npusim.load(pair.save(tmp_path, "pair.onnx"))
    assert other.nodes[0].attrs == graph.nodes[0].attrs
    assert np.array_equal(got, computed(other, "onnxruntime", "numpy", feeds))


def test_x_times_its_sigmoid_is_two_operators(tmp_path: Path) -> None:
    def silu(net: Net, real: str) -> str:
        gate = net.qdq(net.node("Sigmoid", [real]), 1 / 256, -128)
        return net.node("Mul", [real, gate])

    path = unit(silu, (0.04, 3), (0.03, -100)).save(tmp_path)
    graph, feeds = npusim.load(path), every_code("int8")
    assert [n.op for n in graph.nodes] == ["sigmoid", "mul"]
    wanted = run_onnxruntime(path, feeds)["y"].astype(int)
    got = computed(graph, "onnxruntime", "fast", feeds)
    assert np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("profile", ["onnxruntime", "tflite", "neural-art"])
def test_a_clip_after_it_is_a_clamp(profile: str, tmp_path: Path) -> None:
    def clipped(net: Net, real: str) -> str:
        bounds = [net.const(np.float32(v)) for v in (-0.4, 0.72)]
        return net.node("Clip", [net.node("Tanh", [real]), *bounds])

    path = unit(clipped, (0.02, 5), (0.01, -7)).save(tmp_path)
    graph, feeds = npusim.load(path), every_code("int8")
    assert [n.op for n in graph.nodes] == ["tanh"]
    for engine in ENGINES:
        got = computed(graph, profile, engine, feeds)
        assert (got.min(), got.max()) == (-47, 65)
        assert np.abs(got - run_onnxruntime(path, feeds)["y"].astype(int)).max() <= 1


SLOPES: dict[str, Any] = {
    "float": lambda n: n.const(np.array([[[0.3]]], np.float32)),
    "float scalar": lambda n: n.const(np.float32(0.3)),
    "codes": lambda n: n.dq(n.const(np.array([[[73]]], np.int8)), 0.004, 3),
}


@pytest.mark.parametrize("slope", SLOPES)
def test_prelu_with_one_slope(slope: str, tmp_path: Path) -> None:
    net = unit(lambda n, real: n.node("PRelu", [real, SLOPES[slope](n)]), (0.05, 9), (0.03, 2))
    path = net.save(tmp_path)
    graph, feeds = npusim.load(path), every_code("int8")
    assert graph.nodes[0].op == "leaky_relu"
    wanted = 0.3 if slope != "codes" else 0.28
    assert graph.nodes[0].attrs.numbers == (pytest.approx(wanted, rel=1e-6),)
    got = computed(graph, "onnxruntime", "fast", feeds)
    assert np.array_equal(got, run_onnxruntime(path, feeds)["y"])


REFUSED: dict[str, tuple[Any, str]] = {
    "slopes": (
        lambda n, x: n.node("PRelu", [x, n.const(np.ones((4, 1, 1), np.float32))], "p"),
        r"p: PRelu: only one slope for the whole tensor.*4, 1, 1",
    ),
    "slopes in codes": (
        lambda n, x: n.node("PRelu", [x, n.dq(n.const(np.ones((4, 1, 1), np.int8)), 0.1, 0)], "p"),
        "p: PRelu: only one slope for the whole tensor",
    ),
    "computed slope": (
        lambda n, x: n.node("PRelu", [x, x], "p"),
        "p: PRelu: input x is computed, not constant",
    ),
    "infinite alpha": (
        lambda n, x: n.node("LeakyRelu", [x], "r", alpha=float("inf")),
        "r: LeakyRelu: its attributes are no finite numbers",
    ),
    "unknown approximation": (
        lambda n, x: n.node("Gelu", [x], "g", approximate="fast"),
        "g: Gelu: unknown approximation.*fast",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_node(case: str, tmp_path: Path) -> None:
    build, message = REFUSED[case]
    with pytest.raises(UnsupportedOp, match=message):
        npusim.load(unit(build, (0.1, 0), (0.1, 0), opset=20).save(tmp_path))


def case_of(
    op: str, numbers: tuple[float, ...] = (), dtype: str = "int8", clamp: Any = (-128, 127)
) -> Case:
    shift = 0 if dtype == "int8" else 128
    codes = np.arange(-128, 128) + shift
    x = Operand("x", codes.astype(dtype).reshape(1, 256), QParams.make(0.05, 11 + shift))
    attrs = ActivationAttrs(op, numbers, tuple(c + shift for c in clamp))
    return one_node(op, attrs, [x], dtype, QParams.make(0.01, shift - 40))


@pytest.mark.parametrize("profile", ["tflite", "tflite-single", "tflite/litert-2.3"])
@pytest.mark.parametrize("op", ["mish", "softsign", "softplus", "hard_sigmoid", "selu", "swish"])
def test_what_tflite_has_not_is_refused(op: str, profile: str) -> None:
    with pytest.raises(UnsupportedOp, match=f"unit.*{profile} has no rule for operator {op}"):
        npusim.compile(case_of(op).graph, profile)


def test_tflite_has_one_elu() -> None:
    npusim.compile(case_of("elu", (1.0,)).graph, "tflite", "numpy")
    with pytest.raises(UnsupportedOp, match="unit: TFLite's Elu has no alpha"):
        npusim.compile(case_of("elu", (0.5,)).graph, "tflite", "numpy")


def test_16_bit_codes_are_refused() -> None:
    x = Operand("x", np.zeros((1, 4), np.int32), QParams.make(0.05, 0))
    graph = one_node("tanh", ActivationAttrs("tanh"), [x], "int8", QParams.make(0.01, 0)).graph
    for profile in ("onnxruntime", "tflite", "neural-art"):
        with pytest.raises(NpusimError, match=r"x.*8-bit"):
            npusim.compile(graph, profile, "numpy")


# -- neural-art --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_npus_stand_in_is_the_nearest_code(dtype: str, engine: str) -> None:
    case = case_of("mish", (), dtype, (-60, 120))
    shift = 0 if dtype == "int8" else 128
    program = npusim.compile(case.graph, "neural-art", engine)
    lowered = program.lowering["unit"]
    assert isinstance(lowered, RoundedTable)
    assert lowered.silicon is False
    real = (np.arange(-128, 128) - 11) * float(np.float32(0.05))
    exact = real * np.tanh(np.log1p(np.exp(real))) / float(np.float32(0.01)) - 40
    got = program.run(case.feeds)["y"][0].astype(int) - shift
    assert np.abs(np.clip(exact, -60, 120) - got).max() <= 0.5
    assert (got.min(), got.max()) == (-60, 120)


def rows() -> dict[str, Any]:
    """y = x / 2 below 0 and x^2 / 64 from there, in raw codes."""
    return {
        "type": "QuadraticTable",
        "segments": [0] * 8 + [1] * 8,
        "rows": [0, 8, 0, 1, 0, 0],
        "linear_shift": 2,
        "constant_shift": 0,
        "shift": 6,
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rows_of_the_user(dtype: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"unit": rows()}))
    case = case_of("tanh", (), dtype, (-30, 127))
    shift = 0 if dtype == "int8" else 128
    program, note = compile_chosen(case.graph, "neural-art", engine, str(path))
    assert "rows.json" in note
    assert isinstance(program.lowering["unit"], QuadraticTable)
    got = program.run(case.feeds)["y"][0].astype(int) - shift
    half = [-((1 - c) // 2) for c in range(-128, 0)]
    square = [(c * c + 32) // 64 for c in range(128)]
    assert got.tolist() == np.clip(half + square, -30, 127).tolist()


def test_rows_belong_to_the_npu_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"unit": rows()}))
    with pytest.raises(UsageError, match=r"unit.*QuadraticTable|no field of this name"):
        compile_chosen(case_of("tanh").graph, "onnxruntime", "numpy", str(path))
