"""ST's pre-lowered networks: floats on a grid, with their scales in a JSON file beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import Net, random_codes, random_inputs, run_npusim

import npusim
from npusim.cli import main
from npusim.errors import ModelError
from npusim.frontend.export import export
from npusim.ir import Array, Graph

W1, W2, V = (
    random_codes((4, 2, 3, 3), seed=1),
    random_codes((4, 4, 1, 1), seed=2),
    random_codes((4, 3), seed=3),
)
S1 = np.float32([0.011, 0.013, 0.007, 0.02])
S2, SV = np.float32([0.01]), np.float32([0.009])
B1 = np.int32([300, -150, 77, 0])
X, A, C, R, D, M, Y = (
    ("x", 0.02, 3), ("a", 0.05, -128), ("c", 0.04, 5), ("r", 0.045, -30), ("d", 0.06, 2),
    ("m", 0.03, -7), ("y", 0.08, 11),
)  # fmt: skip


def on_grid(codes: Array, scale: Array, axis: int) -> Array:
    shape = [1] * codes.ndim
    shape[axis] = -1
    return codes.astype(np.float32) * scale.reshape(shape)


def body(net: Net, quantized: Callable[[str, tuple[str, float, int]], str]) -> None:
    """Conv, Relu, Conv, Clip, Add, MaxPool, mean, Gemm; ``quantized`` follows every operator."""
    bias = B1.astype(np.float32) * (np.float32(X[1]) * S1)
    one, two = net.const(on_grid(W1, S1, 0), "w1"), net.const(on_grid(W2, S2, 0), "w2")
    x = quantized(net.input("x", [1, 2, 6, 6]), X)
    conv = net.node("Conv", [x, one, net.const(bias, "b1")], "conv1", output="a0")
    a = quantized(net.node("Relu", [conv], "relu", output="a"), A)
    c = quantized(net.node("Conv", [a, two], "conv2", output="c"), C)
    low, high = net.const(np.float32(-1.5)), net.const(np.float32(2.0))
    r = quantized(net.node("Clip", [c, low, high], "clip", output="r"), R)
    d = quantized(net.node("Add", [a, r], "add", output="d"), D)
    p = net.node("MaxPool", [d], "pool", output="p", kernel_shape=[2, 2], strides=[2, 2])
    m = quantized(net.node("GlobalAveragePool", [p], "mean", output="m"), M)
    flat = net.node("Flatten", [m], "flatten", output="f")
    quantized(net.node("Gemm", [flat, net.const(on_grid(V, SV, 1), "v")], "gemm", output="y"), Y)


def params() -> dict[str, tuple[Any, Any, str]]:
    """What the JSON says of every tensor."""
    scale = {name: ([s], [z], "S8") for name, s, z in (X, A, C, R, D, M, Y)}
    bias = [float(np.float32(X[1]) * s) for s in S1]
    return scale | {
        "a0": scale["a"],
        "p": scale["d"],
        "f": scale["m"],
        "w1": ([float(s) for s in S1], [0] * 4, "S8"),
        "w2": ([float(S2[0])], [0], "S8"),
        "v": ([float(SV[0])], [0], "S8"),
        "b1": (bias, [0] * 4, "S32"),
    }


def write_json(path: Path, tensors: dict[str, tuple[Any, Any, str]]) -> Path:
    entries = {
        name: {"format": {"params": [s, z], "class": "integer", "type": kind}}
        for name, (s, z, kind) in tensors.items()
    }
    entries["floats"] = {"format": {"class": "float", "type": "F32"}}
    path.write_text(json.dumps({"version": "4.0", "tensors": entries}))
    return path


def bare(folder: Path, tensors: dict[str, tuple[Any, Any, str]] | None = None) -> Path:
    """The network without any QuantizeLinear, and its JSON beside it."""
    net = Net()
    body(net, lambda name, _: name)
    net.output("y", [1, 3])
    path = net.save(folder, "net_OE_3_2_0.onnx")
    write_json(folder / "net_OE_3_2_0_Q.json", params() if tensors is None else tensors)
    return path


def with_nodes(folder: Path) -> Path:
    """The same network as an ordinary QDQ file."""
    net = Net()
    last: list[str] = []

    def quantized(name: str, numbers: tuple[str, float, int]) -> str:
        last.append(net.qdq(name, numbers[1], numbers[2]))
        return last[-1]

    body(net, quantized)
    net.output(last[-1], [1, 3])
    return net.save(folder, "qdq.onnx")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return npusim.load(bare(tmp_path))


def test_it_is_the_network_with_quantize_nodes(graph: Graph, tmp_path: Path) -> None:
    other = npusim.load(with_nodes(tmp_path))
    assert [(n.op, n.attrs) for n in graph.nodes] == [(n.op, n.attrs) for n in other.nodes]
    feeds = random_inputs(graph, batch=5)
    ours, theirs = (list(run_npusim(g, feeds).values()) for g in (graph, other))
    assert np.array_equal(ours[0], theirs[0])
    assert len(np.unique(ours[0])) > 5


def test_codes_and_scales_are_those_of_the_json(graph: Graph) -> None:
    for name, codes, scale in (("w1", W1, S1), ("w2", W2, S2), ("v", V, SV), ("b1", B1, None)):
        assert np.array_equal(graph.initializers[name], codes)
        qparams = graph.value(name).qparams
        assert qparams is not None
        if scale is not None:
            assert np.array_equal(qparams.scales(), scale)
    assert "net_OE_3_2_0_Q.json" in graph.metadata["npusim.notes"]


def test_the_json_decides_where_several_grids_fit(tmp_path: Path) -> None:
    """Without it, even codes would be read as half of them with twice the scale."""
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 4, 4]), 0.02, 0)
    w = net.const(np.float32([[[[2]], [[64]]]]) * np.float32(0.01), "w")
    y = net.qdq(net.node("Conv", [x, w], "conv"), 0.1, 0)
    net.output(y, [1, 1, 4, 4])
    path = net.save(tmp_path)
    assert npusim.load(path).initializers["w"].ravel().tolist() != [2, 64]
    named = write_json(tmp_path / "scales.json", {"w": ([0.01], [0], "S8")})
    assert npusim.load(path, q_json=named).initializers["w"].ravel().tolist() == [2, 64]


def test_files_that_are_found(tmp_path: Path) -> None:
    path = bare(tmp_path)
    beside = tmp_path / "net_OE_3_2_0_Q.json"
    for name in ("net_OE_3_2_0_q.json", "other_Q.json", "model_q.json"):
        beside = beside.rename(tmp_path / name)
        assert np.array_equal(npusim.load(path).initializers["w1"], W1), name
    write_json(beside, {"another": ([0.1], [0], "S8")})
    with pytest.raises(ModelError):  # a file about another network is left alone
        npusim.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w1": ([0.5], [0], "S8")}, "w1: the constant does not lie on the grid"),
        ({"w1": ([0.1, 0.2], [0, 0], "S8")}, "w1: the JSON has another number of channels"),
        ({"w1": (params()["w1"][0], [0] * 4, "S16")}, "w1: codes of this type.*S16"),
        ({"c": ([0.1], [0], "S16")}, "c: activations need 8-bit codes"),
        ({"c": ([-0.1], [0], "S8")}, "tensor c"),
        ({"c": ([0.1], [0.5], "S8")}, "tensor c.*damaged"),
        ({"c": ("a", [0], "S8")}, "tensor c.*damaged"),
        ({"c": ([], [], "S8")}, "tensor c"),
        ({"c": ([0.1], [1, 2], "S8")}, "tensor c.*damaged"),
    ],
)
def test_refused_numbers_name_the_tensor(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        npusim.load(bare(tmp_path, params() | changes))


@pytest.mark.parametrize("kind", ["scale", "zero point", "type"])
def test_a_contradiction_names_the_tensor(tmp_path: Path, kind: str) -> None:
    net = Net()
    x = net.dq(net.q(net.input("x", [1, 2, 6, 6]), 0.02, 3, output="codes"), 0.02, 3)
    net.output(net.qdq(net.node("Relu", [x]), 0.02, 3), [1, 2, 6, 6])
    numbers = {"scale": ([0.0200001], [3], "S8"), "zero point": ([0.02], [4], "S8")}
    wrong = numbers.get(kind, ([0.02], [3], "U8"))
    path = net.save(tmp_path)
    named = write_json(tmp_path / "scales.json", {"codes": wrong})
    with pytest.raises(ModelError, match=r"codes: .* different numbers .*scale 0.0"):
        npusim.load(path, q_json=named)
    named = write_json(tmp_path / "scales.json", {"codes": ([0.020000001], [3], "S8")})
    npusim.load(path, q_json=named)


def test_the_operator_before_a_quantize_must_agree_too(tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 6, 6]), 0.02, 3)
    w = net.const(on_grid(W2[:, :2], S2, 0), "w")
    y = net.node("Conv", [x, w], "conv", output="sum")
    net.output(net.qdq(y, 0.04, 5), [1, 4, 6, 6])
    path = net.save(tmp_path)
    named = write_json(tmp_path / "scales.json", {"sum": ([0.05], [5], "S8")})
    with pytest.raises(ModelError, match=r"sum: .* different numbers"):
        npusim.load(path, q_json=named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON.*nested too deeply"),
        ("[]", "names no tensors"),
        ('{"tensors": {"q": {"format": {}}}}', "names no tensor of the network"),
    ],
)
def test_refused_files(tmp_path: Path, text: str, message: str) -> None:
    path = bare(tmp_path)
    named = tmp_path / "named.json"
    named.write_text(text)
    with pytest.raises(ModelError, match=message):
        npusim.load(path, q_json=named)
    with pytest.raises(ModelError, match="cannot read"):
        npusim.load(path, q_json=tmp_path / "absent.json")


def test_trained_weights_go_back_into_a_file_that_needs_no_json(
    graph: Graph, tmp_path: Path
) -> None:
    store = npusim.compile(graph, "onnxruntime", "numpy").weights
    codes = store.codes("w1").copy()
    codes[0, :5] = (1, 2, 3, 4, 5)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "trained.onnx"
    done = export(graph, store.replaced({"w1": codes}), target)
    assert not done.rewritten
    again = npusim.load(target)
    feeds = random_inputs(graph, batch=3)
    program = npusim.compile(graph, "onnxruntime", "numpy")
    wanted = program.run(feeds, weights=store.replaced({"w1": codes}))
    got = run_npusim(again, dict(zip((v.name for v in again.inputs), feeds.values(), strict=True)))
    assert np.array_equal(*(next(iter(r.values())) for r in (wanted, got)))


def test_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bare(tmp_path)
    named = (tmp_path / "net_OE_3_2_0_Q.json").rename(tmp_path / "elsewhere.json")
    assert main(["inspect", str(path)]) == 3
    assert main(["inspect", str(path), "--q-json", str(named), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["inputs"][0]["name"] == "x"


@pytest.mark.parametrize("network", ["conv16_3x3", "depthwise_3x3"])
def test_published_files_agree_with_their_json(shared: Path, network: str) -> None:
    folder = shared / "golden" / "neural_art" / network
    graph = npusim.load(folder / "model.onnx")
    assert "model_q.json" in graph.metadata["npusim.notes"]
    entries = json.loads((folder / "model_q.json").read_text())["tensors"]
    compared = 0
    for name, value in graph.values.items():
        if name in entries and value.qparams is not None:
            scales, points = entries[name]["format"]["params"]
            assert np.array_equal(np.float32(scales), value.qparams.scales())
            assert list(value.qparams.zero_point) == points
            compared += 1
    assert compared >= 5
