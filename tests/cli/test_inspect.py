"""npusim inspect: what it says of a small network, in words and in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_nets import Net

import npusim
from npusim.cli import main
from npusim.errors import BadQuantization
from npusim.lowering import lowering_metadata


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_json(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(inspected(capsys, str(model_path), "--json"))
    assert report["schema_version"] == 1
    operators = {row["name"]: row for row in report["operators"]}
    assert [row["op"] for row in report["operators"] if row["macs"]] == ["conv", "gemm"]
    conv, gemm = operators["conv"], operators["classifier"]
    assert conv["macs"] == 2 * 3 * 3 * 4 * 4
    assert gemm["macs"] == 32 * 4
    assert report["macs"] == conv["macs"] + gemm["macs"]
    assert report["parameters"] == 2 * 9 + 2 + 32 * 4
    assert conv["weights"] == "int8 per channel, symmetric"
    assert gemm["weights"] == "int8 per tensor, symmetric"
    assert conv["runs_on"] == "npu"
    assert conv["bit_accurate"]
    assert "relu" in conv["origin"]
    assert operators["x_q"]["runs_on"] == "software"
    assert not operators["x_q"]["bit_accurate"]
    assert report["inputs"] == [
        {"name": "image", "type": "float32[N,1,6,6]", "scale": None, "zero_point": None}
    ]
    assert report["runs"]
    assert "lowering" not in report


def test_the_profile_names_the_arithmetic(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = {}
    for profile in ("onnxruntime", "tflite"):
        report = json.loads(inspected(capsys, str(model_path), "--json", "--profile", profile))
        assert report["profile"] == profile
        rules[profile] = {row["op"]: row["rule"] for row in report["operators"]}["conv"]
    assert rules["onnxruntime"] != rules["tflite"]


def test_lowering(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(inspected(capsys, str(model_path), "--json", "--show-lowering"))
    assert {"conv", "classifier"} <= set(report["lowering"])
    text = inspected(capsys, str(model_path), "--show-lowering")
    assert any(line.startswith("conv: {") for line in text.splitlines())


def test_text(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspected(capsys, str(model_path))
    assert "software epoch, not bit-accurate" in text
    assert "int8 per channel, symmetric" in text
    assert "MACs" in text


def test_every_node_and_tensor_that_it_shows_can_be_tapped(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(inspected(capsys, str(model_path), "--json"))["operators"]
    shown = inspected(capsys, str(model_path))
    graph = npusim.load(model_path)
    program = npusim.compile(graph, engine="numpy")
    images = {"image": np.zeros((1, 1, 6, 6), np.float32)}
    for row in rows:
        assert row["tensor"] in shown
        for tap in (row["name"], row["tensor"]):
            assert row["tensor"] in program.run(images, taps=[tap])


def unsigned_conv(path: Path) -> Path:
    """A convolution of uint8 by uint8 with a zero point that the NPU cannot have."""
    net = Net()
    x = net.qdq(net.input("x", [1, 1, 4, 4]), 0.02, 3, "uint8")
    w = net.dq(net.const(np.full((1, 1, 2, 2), 9, np.uint8), "w"), 0.01, 7, "uint8")
    net.q(net.node("Conv", [x, w]), 0.1, 0, "uint8", output="y")
    net.output("y", [1, 1, 3, 3], "uint8")
    onnx.save(net.model(), path)
    return path


def test_a_node_that_the_profile_cannot_run_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(unsigned_conv(tmp_path / "m.onnx"))
    text = inspected(capsys, path)
    assert "cannot run under this profile: 1 of 2 operators" in text
    assert any(
        line.startswith("cannot run under this profile: ") and "no zero point" in line
        for line in text.splitlines()
    )
    report = json.loads(inspected(capsys, path, "--json"))
    assert not report["runs"]
    refused = {row["op"]: row["refusal"] for row in report["operators"] if row["refusal"]}
    assert set(refused) == {"conv"}
    with pytest.raises(BadQuantization) as error:
        npusim.compile(npusim.load(path))
    assert refused["conv"] == str(error.value)
    assert "cannot run" not in inspected(capsys, path, "--profile", "onnxruntime")
    assert json.loads(inspected(capsys, path, "--json", "--profile", "onnxruntime"))["runs"]


def test_a_trained_file_is_shown_under_its_own_profile(
    tmp_path: Path, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(model_path)
    program = npusim.compile(npusim.load(model_path), "tflite", "numpy")
    carried = lowering_metadata("tflite", program.weights.crc(), program.lowering)
    onnx.helper.set_model_props(model, carried)
    onnx.save(model, tmp_path / "trained.onnx")
    for options in ([], ["--show-lowering"]):
        text = inspected(capsys, str(tmp_path / "trained.onnx"), *options)
        assert "profile tflite" in text.splitlines()[0]


def test_a_lowering_that_would_not_be_looked_at_is_refused(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(model_path), "--lowering", "fresh"]) == 2
    assert "--show-lowering" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["absent.onnx", "."])
def test_no_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", name]) == 3
    assert name in capsys.readouterr().err


def test_a_name_that_is_no_text(model_path: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/tiny\xff.onnx"
    Path(os.fsdecode(path)).write_bytes(model_path.read_bytes())
    command = [sys.executable, "-m", "npusim.cli", "inspect", path]
    result = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert rb"tiny\udcff.onnx" in result.stdout
