"""A run goes on only from an undamaged checkpoint, with its own log and its own network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from digits_task import MODEL
from onnx import numpy_helper

import npusim
from npusim.errors import CheckpointError
from npusim.zo.checkpoint import load_checkpoint, save_checkpoint
from npusim.zo.fingerprint import fingerprint
from npusim.zo.run import TrainResult

Train = Callable[..., TrainResult]


def test_the_fingerprint_is_of_what_a_network_computes() -> None:
    graph = npusim.load(MODEL)
    known = fingerprint(graph)
    assert fingerprint(npusim.load(MODEL)) == known
    assert fingerprint(graph.with_(name="other", path="elsewhere", metadata={"a": "b"})) == known
    node = next(n for n in graph.nodes if n.op == "conv")
    value = next(v for v in graph.values.values() if v.qparams is not None)
    assert value.qparams is not None
    name, array = next(iter(graph.initializers.items()))
    changed = replace(node.attrs, pads=tuple(p + 1 for p in node.attrs.pads))
    scaled = replace(value.qparams, scale=tuple(2 * s for s in value.qparams.scale))
    others = [
        graph.with_(
            nodes=tuple(replace(n, attrs=changed) if n is node else n for n in graph.nodes)
        ),
        graph.with_(values={**graph.values, value.name: replace(value, qparams=scaled)}),
        graph.with_(values={**graph.values, value.name: replace(value, qparams=None)}),
        graph.with_(initializers={**graph.initializers, name: array + array.dtype.type(1)}),
        graph.with_(nodes=graph.nodes[:-1]),
        graph.with_(outputs=()),
    ]
    assert len({known, *map(fingerprint, others)}) == 1 + len(others)


def test_a_run_does_not_go_on_with_other_scales(train_digits: Train, tmp_path: Path) -> None:
    """The codes of all weights are the same; the scale of the last activation is another."""
    train_digits("run", steps=2)
    model = onnx.load(MODEL)
    quantizer = [n for n in model.graph.node if n.op_type == "QuantizeLinear"][-1]
    users = [n for n in model.graph.node if quantizer.input[1] in n.input]
    assert {n.op_type for n in users} == {"QuantizeLinear", "DequantizeLinear"}
    scale = next(t for t in model.graph.initializer if t.name == quantizer.input[1])
    wider = numpy_helper.to_array(scale) * np.float32(1.0625)
    scale.CopyFrom(numpy_helper.from_array(wider, scale.name))
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    with pytest.raises(CheckpointError, match="scales or constants") as caught:
        train_digits("run", steps=4, resume=True, model=other)
    assert str(other) in str(caught.value)
    assert train_digits("run", steps=4, resume=True).step == 4


def test_a_run_does_not_go_on_with_another_log(train_digits: Train, tmp_path: Path) -> None:
    train_digits("run", steps=2)
    other = train_digits("other", steps=4, seed=1)
    (tmp_path / "run" / "log.jsonl").write_bytes(other.files["log"].read_bytes())
    with pytest.raises(CheckpointError, match="not of the run"):
        train_digits("run", steps=4, resume=True)


def _attribute(name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.attrs[name] = file.attrs[name] + 1

    return change


def _text(name: str, old: bytes, new: bytes) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        text = file[name][()]
        assert old in text
        del file[name]
        file[name] = text.replace(old, new)

    return change


def _array(name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        array = file[name][()]
        del file[name]
        file[name] = array ^ array.dtype.type(1)

    return change


@pytest.mark.parametrize(
    "change",
    [
        *map(_attribute, ("log_bytes", "weights_crc", "step", "forwards", "crc")),
        *map(_array, ("still", "still_steps", "warned")),
        _text("header", b'"lr": 0.5', b'"lr": 0.6'),
        _text("run", b'"data": "digits"', b'"data": "digit"'),
        _text("scheduler", b": 0", b": 1"),
        _text("history", b"[[2, 0", b"[[2, 1"),
        _text("medians", b"[]", b"[1]"),
        lambda file: file.attrs.__delitem__("crc"),
    ],
)
def test_any_change_of_the_state_is_noticed(
    change: Callable[[h5py.File], Any], train_digits: Train
) -> None:
    path = train_digits(steps=3).files["checkpoint"]
    save_checkpoint(path, load_checkpoint(path))
    load_checkpoint(path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_a_change_of_what_masters_hold_beyond_their_codes_is_noticed(train_digits: Train) -> None:
    path = train_digits(steps=3).files["checkpoint"]
    with h5py.File(path, "r+") as file:
        name = next(iter(file["weights"]))
        masters = file["weights"][name]
        values = masters[()]
        values.flat[0] = (values.flat[0] & ~0xFF) + ((int(values.flat[0]) + 1) & 0xFF)
        masters[...] = values
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
