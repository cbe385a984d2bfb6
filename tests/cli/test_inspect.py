"""npusim inspect: what it says of a small network, in words and in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npusim.cli import main


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
