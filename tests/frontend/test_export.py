"""Trained weights written back into their file, or into a new one where it cannot hold them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_nets import Net, random_codes, random_inputs, run_npusim, run_onnxruntime

import npusim
from npusim.errors import BadShape, ModelError
from npusim.files import replacing
from npusim.frontend.export import export
from npusim.frontend.qdq_writer import to_model
from npusim.ir import Array, Graph
from npusim.weights import WeightStore

SCALES = np.asarray([0.01, 0.02, 0.03], np.float32)


def conv_net(form: str) -> Net:
    net = Net()
    x = net.qdq(net.input("x", [1, 2, 5, 5]), 0.02, 3)
    codes = random_codes((3, 2, 3, 3))
    codes[:, 0, 0, 0] = 127
    real = codes * SCALES.reshape(-1, 1, 1, 1)
    if form == "codes":
        w = net.dq(net.const(codes, "w"), SCALES, [0] * 3, axis=0)
    elif form == "float Q DQ":
        q = net.q(net.const(real + 0.001, "w"), SCALES, [0] * 3, axis=0)
        w = net.dq(q, SCALES, [0] * 3, axis=0)
    else:
        w = net.const(real, "w")
    y = net.node("Conv", [x, w, net.const(np.asarray([0.1, -0.2, 0], np.float32), "b")], "conv")
    if form == "batch normalization":
        ones = [net.const(np.full(3, v, np.float32)) for v in (1.5, 0.1, 0.0, 1.0)]
        y = net.node("BatchNormalization", [y, *ones])
    net.q(y, 0.1, 0, output="y")
    net.output("y", [1, 3, 3, 3], "int8")
    return net


def nudged(graph: Graph) -> dict[str, Array]:
    """The graph's weights and biases with a tenth of the codes moved by one."""
    rng = np.random.default_rng(3)
    store = WeightStore.of(graph)
    arrays = {}
    for tensor in store.tensors:
        array = store.onnx(tensor.name).copy()
        chosen = rng.random(array.shape) < 0.1
        array[chosen] -= np.sign(array[chosen]).astype(array.dtype)
        arrays[tensor.name] = array
    return arrays


def raw(path: Path) -> dict[str, bytes]:
    model = onnx.load(path)
    return {t.name: t.SerializeToString() for t in model.graph.initializer}


def test_unchanged_weights_change_no_byte(tmp_path: Path, shared: Path) -> None:
    source = shared / "models/mlperf_tiny/resnet.onnx"
    graph = npusim.load(source)
    target = tmp_path / "trained.onnx"
    result = export(graph, WeightStore.of(graph), target, {"npusim.note": "kept"})
    assert result.rewritten
    assert raw(target) == raw(source)
    before, after = onnx.load(source), onnx.load(target)
    assert before.graph == after.graph
    metadata = {p.key: p.value for p in after.metadata_props}
    assert metadata == {p.key: p.value for p in before.metadata_props} | {"npusim.note": "kept"}


def test_trained_resnet(tmp_path: Path, shared: Path) -> None:
    graph = npusim.load(shared / "models/mlperf_tiny/resnet.onnx")
    store = WeightStore.of(graph)
    codes = {
        t.name: store.tensor(t.name).to_codes(a)
        for t, a in zip(store.tensors, nudged(graph).values(), strict=True)
    }
    trained = store.replaced(codes)
    target = tmp_path / "trained.onnx"
    assert export(graph, trained, target).rewritten
    assert WeightStore.of(npusim.load(target)).crc() == trained.crc() != store.crc()
    run_onnxruntime(target, random_inputs(graph))


@pytest.mark.parametrize("form", ["codes", "float Q DQ", "float on grid"])
def test_each_form_keeps_its_type(form: str, tmp_path: Path) -> None:
    source = conv_net(form).save(tmp_path)
    graph = npusim.load(source)
    arrays = nudged(graph)
    target = tmp_path / "trained.onnx"
    assert export(graph, arrays, target).rewritten
    again = npusim.load(target)
    before = {t.name: t for t in onnx.load(source).graph.initializer}
    after = {t.name: t for t in onnx.load(target).graph.initializer}
    for name, tensor in before.items():
        assert after[name].data_type == tensor.data_type
        assert after[name].dims == tensor.dims
    name = graph.nodes[1].inputs[1]
    assert np.array_equal(again.initializers[name], arrays[name])
    if form != "codes":
        grid = numpy_helper.to_array(after["w"]) / SCALES.reshape(-1, 1, 1, 1)
        assert np.allclose(grid, np.rint(grid), atol=1e-5)
    feeds = random_inputs(graph)
    assert (
        np.abs(
            run_onnxruntime(target, feeds)["y"].astype(int)
            - run_npusim(again, feeds)["y"].astype(int)
        ).max()
        <= 1
    )


def test_unchanged_floats_keep_their_bytes(tmp_path: Path) -> None:
    source = conv_net("float Q DQ").save(tmp_path)
    graph = npusim.load(source)
    export(graph, WeightStore.of(graph), tmp_path / "trained.onnx")
    assert raw(tmp_path / "trained.onnx") == raw(source)


def test_a_file_may_be_written_over_itself(tmp_path: Path) -> None:
    path = conv_net("codes").save(tmp_path)
    graph = npusim.load(path)
    arrays = nudged(graph)
    assert export(graph, arrays, path).rewritten
    assert np.array_equal(npusim.load(path).initializers["w"], arrays["w"])


def test_folded_batch_normalization_needs_a_new_file(tmp_path: Path) -> None:
    graph = npusim.load(conv_net("batch normalization").save(tmp_path))
    arrays = nudged(graph)
    target = tmp_path / "trained.onnx"
    result = export(graph, arrays, target, {"npusim.note": "x"})
    assert not result.rewritten
    assert "new QDQ network" in result.message
    again = npusim.load(target)
    assert [n.op for n in again.nodes] == ["quantize", "conv"]
    assert again.metadata["npusim.note"] == "x"
    for name, array in arrays.items():
        assert np.array_equal(again.initializers[name], array)
    feeds = random_inputs(graph, batch=2)
    assert np.array_equal(run_onnxruntime(target, feeds)["y"], run_npusim(again, feeds)["y"])


def test_external_data_are_written_beside_the_file(tmp_path: Path, shared: Path) -> None:
    graph = npusim.load(shared / "models/onnxruntime_testdata/conv_qdq_external_ini.onnx")
    target = tmp_path / "trained.onnx"
    arrays = nudged(graph)
    assert export(graph, arrays, target).rewritten
    assert len(data_files(tmp_path)) == 1
    model = onnx.load(target, load_external_data=False)
    assert any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    again = npusim.load(target)
    assert all(np.array_equal(again.initializers[n], a) for n, a in arrays.items())
    run_onnxruntime(target, random_inputs(graph))


def data_files(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.iterdir())
    return [n for n in names if re.fullmatch(r"trained\.onnx\.[0-9a-f]{12}\.data", n)]


def test_external_data_written_again(tmp_path: Path, shared: Path) -> None:
    """The old data file goes, unless a copy of the old model needs it."""
    graph = npusim.load(shared / "models/onnxruntime_testdata/conv_qdq_external_ini.onnx")
    target = tmp_path / "trained.onnx"
    export(graph, {}, target)
    first = data_files(tmp_path)
    export(graph, {}, target)
    assert data_files(tmp_path) == first
    export(npusim.load(target), nudged(graph), target)
    second = data_files(tmp_path)
    assert len(second) == 1
    assert second != first
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(target.read_bytes())
    export(graph, {}, target)
    assert data_files(tmp_path) == sorted([*first, *second])
    npusim.load(copy)
    copy.unlink()
    target.unlink()
    export(npusim.load(conv_net("codes").save(tmp_path)), {}, target)
    assert data_files(tmp_path) == []


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_export_leaves_model_and_data(
    failing: int, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = npusim.load(shared / "models/onnxruntime_testdata/conv_qdq_external_ini.onnx")
    target = tmp_path / "trained.onnx"
    export(graph, {}, target)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    calls = iter(range(1, 3))

    @contextmanager
    def full_disk(path: Path) -> Iterator[BinaryIO]:
        with replacing(path) as file:
            yield file
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("npusim.frontend.export.replacing", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export(graph, nudged(graph), target)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_wrong_weights_and_changed_files(tmp_path: Path) -> None:
    path = conv_net("codes").save(tmp_path)
    graph = npusim.load(path)
    target = tmp_path / "trained.onnx"
    with pytest.raises(BadShape, match="w: weights do not fit"):
        export(graph, {"w": np.zeros((1, 2, 3, 3), np.int8)}, target)
    with pytest.raises(BadShape, match="v: weights do not fit"):
        export(graph, {"v": np.zeros(1, np.int8)}, target)
    model = onnx.load(path)
    weights = next(t for t in model.graph.initializer if t.name == "w")
    weights.raw_data = bytes(len(weights.raw_data))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="has changed since it was loaded"):
        export(graph, nudged(graph), target)
    path.unlink()
    with pytest.raises(ModelError, match="cannot read the file"):
        export(graph, nudged(graph), target)
    assert not target.exists()


def everything() -> Net:
    """A network with every operator that a file can hold."""
    net = Net()
    x = net.qdq(net.input("x", [1, 4, 8, 8]), 0.02, 3)
    w = net.dq(net.const(random_codes((4, 4, 3, 3))), 0.01, 0)
    y = net.qdq(net.node("Relu", [net.node("Conv", [x, w], pads=[1] * 4)]), 0.1, -5)
    y = net.qdq(net.node("Add", [x, y]), 0.1, 4)
    y = net.qdq(net.node("Mul", [y, net.dq(net.const(random_codes((4, 1, 1))), 0.01, 1)]), 0.05, 0)
    y = net.qdq(net.node("Concat", [x, y], axis=1), 0.05, 0)
    pads = net.const(np.asarray([0, 0, 1, 1, 0, 0, 1, 1]))
    y = net.node("Pad", [y, pads, net.const(np.float32(0.1))])
    y = net.node("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = net.qdq(net.node("AveragePool", [y], kernel_shape=[2, 2]), 0.03, 2)
    y = net.node("Transpose", [y], perm=[0, 1, 3, 2])
    y = net.qdq(net.node("GlobalAveragePool", [y]), 0.02, 1)
    y = net.node("Flatten", [y])
    fc = net.dq(net.const(random_codes((8, 5))), 0.01, 0)
    bias = net.const(np.linspace(-1, 1, 5, dtype=np.float32))
    y = net.qdq(net.node("Gemm", [y, fc, bias]), 0.02, 0)
    net.node("Softmax", [y], output="y")
    net.output("y", [1, 5])
    return net


def test_a_written_network_reads_back_the_same(tmp_path: Path) -> None:
    graph = npusim.load(everything().save(tmp_path))
    path = tmp_path / "written.onnx"
    path.write_bytes(to_model(graph, {}).SerializeToString())
    again = npusim.load(path)
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes]
    assert [n.attrs for n in again.nodes] == [n.attrs for n in graph.nodes]
    assert [again.value(n.outputs[0]) for n in again.nodes] == [
        graph.value(n.outputs[0]) for n in graph.nodes
    ]
    assert WeightStore.of(again).crc() == WeightStore.of(graph).crc()
    feeds = random_inputs(graph, batch=2)
    wanted = run_npusim(graph, feeds)["y"]
    assert np.array_equal(run_npusim(again, feeds)["y"], wanted)
    assert np.allclose(run_onnxruntime(path, feeds)["y"], wanted, atol=0.02)
