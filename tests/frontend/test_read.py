"""Reading files: what is sorted, dropped, or refused, and with which words."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_nets import Net, random_codes

import npusim
from npusim.errors import BadShape, ModelError, NpusimError, UnsupportedOp
from npusim.frontend.onnx import read


def small() -> Net:
    """x -> Q -> DQ -> Conv -> Q -> y."""
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 5, 5]), 0.02, 3)
    w = net.dq(net.const(random_codes((3, 2, 3, 3)), "w"), 0.01, 0)
    net.q(net.node("Conv", [x, w], "conv"), 0.1, 0, output="y")
    net.output("y", [1, 3, 3, 3], "int8")
    return net


def refused(folder: Path, model: onnx.ModelProto, message: str) -> NpusimError:
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(NpusimError, match=message) as caught:
        npusim.load(path)
    return caught.value


def test_nodes_are_sorted_and_unused_ones_dropped(tmp_path: Path) -> None:
    net = small()
    net.node("Sigmoid", ["x"], "unused")
    model = net.model()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert [n.op for n in npusim.load(path).nodes] == ["quantize", "conv"]


def test_names_are_made_unique(tmp_path: Path) -> None:
    model = small().model()
    for node in model.graph.node:
        node.name = "same"
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    names = [n.name for n in read(path).nodes]
    assert len(set(names)) == len(names)
    for node in model.graph.node:
        node.name = ""
    path.write_bytes(model.SerializeToString())
    assert "Conv_3" in [n.name for n in read(path).nodes]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the file"):
        npusim.load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        npusim.load(tmp_path)


def test_a_file_above_2_gb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**31 + 5)
    with pytest.raises(ModelError, match="larger than an ONNX message may be"):
        npusim.load(path)


@pytest.mark.parametrize("data", [b"", b"hello, this is no model", b"\x08\x09"])
def test_no_model(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"net\.onnx: "):
        npusim.load(path)


@pytest.mark.parametrize("opset", [6, 1000])
def test_opsets_out_of_range(opset: int, tmp_path: Path) -> None:
    model = small().model()
    model.opset_import[0].version = opset
    error = refused(tmp_path, model, "ONNX opset is not supported")
    assert error.got == opset


def test_duplicate_tensor_names(tmp_path: Path) -> None:
    model = small().model()
    model.graph.node[1].output[0] = model.graph.node[0].output[0]
    refused(tmp_path, model, "several tensors have this name")


def test_missing_inputs_and_cycles(tmp_path: Path) -> None:
    model = small().model()
    model.graph.node[0].input[0] = "nowhere"
    refused(tmp_path, model, "nowhere")
    model = small().model()
    model.graph.node[0].input[0] = "y"
    refused(tmp_path, model, "y")


def test_missing_output(tmp_path: Path) -> None:
    model = small().model()
    model.graph.output[0].name = "z"
    refused(tmp_path, model, "z: output that nothing computes")
    del model.graph.output[:]
    refused(tmp_path, model, "the graph has no output")


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    net = small()
    inner = helper.make_graph([], "inner", [], [])
    c = net.const(np.asarray(True))
    branches = {"then_branch": inner, "else_branch": inner}
    net.nodes.append(helper.make_node("If", [c], ["z"], "branch", **branches))
    net.output("z", [1])
    refused(tmp_path, net.model(), "branch: operator If is control flow")


@pytest.mark.parametrize(("domain", "words"), [("my.ops", "domain my.ops"), ("", "domain ai.onnx")])
def test_unknown_operators(domain: str, words: str, tmp_path: Path) -> None:
    net = small()
    net.node("Twirl", ["y"], "odd", domain=domain, output="z")
    net.output("z", [1])
    model = net.model()
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 3))
    error = refused(tmp_path, model, f"odd: unknown operator Twirl of {words}")
    assert isinstance(error, UnsupportedOp)
    assert error.hint


def test_open_sizes_besides_the_batch(tmp_path: Path) -> None:
    net = Net()
    net.qdq(net.input("x", ["N", 2, "H", 5]), 0.02, 3)
    net.nodes[-1].output[0] = "y"
    net.output("y", ["N", 2, "H", 5])
    refused(tmp_path, net.model(), "x: only the first axis")


def test_huge_declared_sizes_are_not_allocated(tmp_path: Path) -> None:
    model = small().model()
    weights = next(t for t in model.graph.initializer if t.name == "w")
    weights.dims[0] = 2**40
    refused(tmp_path, model, "w: tensor's data do not have the length")
    weights.ClearField("raw_data")
    refused(tmp_path, model, "w: tensor holds fewer values")
    weights.dims[0] = -1
    refused(tmp_path, model, "w: tensor with a negative size")


def test_a_huge_input_is_refused(tmp_path: Path) -> None:
    model = small().model()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**40
    refused(tmp_path, model, "too large|refuses the model")


def external(folder: Path, location: str, **more: str) -> Path:
    model = small().model()
    weights = next(t for t in model.graph.initializer if t.name == "w")
    (folder / "w.bin").write_bytes(b"\0" * 8 + weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "8", **more}.items():
        weights.external_data.add(key=key, value=value)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    graph = npusim.load(external(tmp_path, "w.bin"))
    assert np.array_equal(graph.initializers["w"], random_codes((3, 2, 3, 3)))


@pytest.mark.parametrize(
    ("location", "more", "message"),
    [
        ("gone.bin", {}, "w: external data are missing .*gone.bin"),
        ("../w.bin", {}, "w: external data must lie"),
        ("a/../../w.bin", {}, "w: external data must lie"),
        ("/etc/passwd", {}, "w: external data must lie"),
        ("C:\\w.bin", {}, "w: external data must lie"),
        ("..\\w.bin", {}, "w: external data must lie"),
        ("", {}, "w: external data must lie"),
        ("link.bin", {}, "w: external data must lie in a regular file"),
        ("fifo", {}, "w: external data must lie in a regular file"),
        (".", {}, "w: external data must lie in a regular file"),
        ("w.bin", {"length": "1000"}, "w: external data of w.bin end before"),
        ("w.bin", {"length": "7"}, "w: tensor's data do not have the length"),
        ("w.bin", {"length": "-7"}, "w: external data with a bad length"),
        ("w.bin", {"length": "7e3"}, "w: external data with a bad length"),
    ],
)
def test_external_data_that_are_refused(
    location: str, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(b"\0" * 100)
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    os.mkfifo(folder / "fifo")
    with pytest.raises(ModelError, match=message):
        npusim.load(external(folder, location, **more))


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.bin").symlink_to(tmp_path / "w.bin")
    assert npusim.load(external(tmp_path, "link.bin")).nodes


def test_external_data_that_are_too_long(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    with (tmp_path / "w.bin").open("r+b") as file:
        os.truncate(file.fileno(), 2**30)
    with pytest.raises(ModelError, match="w: external data are longer than the tensor"):
        npusim.load(path)


def test_metadata_are_kept(tmp_path: Path) -> None:
    model = small().model()
    model.metadata_props.add(key="npusim.preprocess", value="{}")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert npusim.load(path).metadata["npusim.preprocess"] == "{}"


@pytest.mark.parametrize("kind", ["input", "value_info", "output"])
@pytest.mark.parametrize("sizes", [[2**31], [2**24 + 1], [2**12, 2**12, 2**8]])
def test_huge_declared_sizes_are_refused_by_name(
    kind: str, sizes: list[int], tmp_path: Path
) -> None:
    """Data propagation would keep an entry for every element of a vector."""
    declared = {k: [1] for k in ("input", "value_info", "output")} | {kind: sizes}
    infos = {
        k: [helper.make_tensor_value_info(f"of_{k}", TensorProto.FLOAT, d)]
        for k, d in declared.items()
    }
    nodes = [
        helper.make_node("Mul", ["of_input", "of_input"], ["of_value_info"]),
        helper.make_node("Relu", ["of_value_info"], ["of_output"]),
    ]
    graph = helper.make_graph(
        nodes, "g", infos["input"], infos["output"], value_info=infos["value_info"]
    )
    path = tmp_path / "huge.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadShape, match=f"^of_{kind}: tensor is too large"):
        read(path)


def test_long_vectors_are_not_propagated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    infer = onnx.shape_inference.infer_shapes

    def watched(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        asked.append(options)
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", watched)
    for length, calls in ((2**24, [{}]), (4, [{}, {"data_prop": True}])):
        net = Net()
        x = net.input("x", [length])
        shape = net.node("Cast", [net.node("Mul", [x, x])], to=TensorProto.INT64)
        net.node("ConstantOfShape", [shape], output="y")
        net.output("y", [None])
        asked.clear()
        read(net.save(tmp_path))
        assert asked == calls


@pytest.mark.parametrize("kind", ["input", "output"])
def test_nameless_inputs_and_outputs_name_the_file(kind: str, tmp_path: Path) -> None:
    model = small().model()
    getattr(model.graph, kind)[0].name = ""
    refused(tmp_path, model, rf"net\.onnx: {kind} 0 of the graph has no name")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.COMPLEX64, "complex64"),
        (TensorProto.COMPLEX128, "complex128"),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (TensorProto.STRING, "string"),
    ],
)
def test_types_that_nothing_computes_with(kind: int, name: str, tmp_path: Path) -> None:
    model = small().model()
    model.graph.input[0].type.tensor_type.elem_type = kind
    refused(tmp_path, model, rf"^x: tensors of this type are not supported \(got {name}\)")
    model = small().model()
    next(t for t in model.graph.initializer if t.name == "w").data_type = kind
    refused(tmp_path, model, rf"^w: tensors of this type are not supported \(got {name}\)")


@pytest.mark.parametrize("inputs", [[], ["x_q"], ["x_q", ""]])
def test_microsofts_dequantize_linear_without_inputs(inputs: list[str], tmp_path: Path) -> None:
    model = small().model()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    node = next(n for n in model.graph.node if n.op_type == "DequantizeLinear")
    given = [node.input[0] if name == "x_q" else name for name in inputs]
    node.domain, node.name = "com.microsoft", "dq"
    del node.input[:]
    node.input.extend(given)
    refused(tmp_path, model, "^dq: DequantizeLinear has a wrong number of inputs")


def test_a_zero_point_that_is_no_integer(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", [1, 2])
    point = net.const(np.float32([np.inf]), "point")
    net.node("QuantizeLinear", [x, net.const(np.float32(0.1)), point], output="y")
    net.output("y", [1, 2], "int8")
    model = net.model()
    model.opset_import[0].version = 13
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    refused(tmp_path, model, "^point: zero point is not an integer")


@pytest.mark.parametrize("number", [1e38, np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_padding_with_numbers_that_no_code_stands_for(number: float, tmp_path: Path) -> None:
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 5, 5]), 0.02, 3)
    pads = net.const(np.asarray([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    y = net.node("Pad", [x, pads, net.const(np.float32(number))], "pad")
    net.q(y, 0.02, 3, output="y")
    net.output("y", [1, 2, 7, 7], "int8")
    refused(tmp_path, net.model(), "^pad: Pad: constant is")
