"""Profile tflite against the int8 cases of CMSIS-NN: every value equal."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import cmsis_nn
import numpy as np
import pytest

import npusim
from npusim.ir import Array
from npusim.numerics.requant import FixedPoint


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "cmsis_nn_s8"


def run(golden: cmsis_nn.Golden, engine: str) -> Array:
    lowering = {"unit": golden.lowered}
    program = npusim.compile(golden.case.graph, "tflite", engine, lowering)
    return program.run(golden.case.feeds)["y"]


@pytest.mark.parametrize("engine", ["numpy", "fast"])
def test_every_int8_case_is_exact(folder: Path, engine: str) -> None:
    names = cmsis_nn.case_names(folder)
    goldens = {name: cmsis_nn.golden(folder / f"{name}.npz") for name in names}
    wrong = [name for name, golden in goldens.items() if not golden.matches(run(golden, engine))]
    assert wrong == []
    assert len(names) == 37


def test_one_rounding_would_not_be(folder: Path) -> None:
    """The cases can tell the profiles tflite and tflite-single apart."""
    wrong = 0
    for name in cmsis_nn.case_names(folder):
        golden = cmsis_nn.golden(folder / f"{name}.npz")
        if isinstance(golden.lowered, FixedPoint):
            lowered = dataclasses.replace(golden.lowered, rounding="single")
            wrong += not golden.matches(run(dataclasses.replace(golden, lowered=lowered), "numpy"))
    assert wrong > 0


def test_kinds_of_cases(folder: Path) -> None:
    ops = {
        cmsis_nn.golden(folder / f"{name}.npz").case.site.node.op
        for name in cmsis_nn.case_names(folder)
    }
    assert ops == {"conv", "gemm", "avgpool", "maxpool", "mul", "pad"}


@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("name", ["ds_cnn_s", "ds_cnn_l"])
def test_ds_cnn_networks_are_exact(folder: Path, name: str, engine: str) -> None:
    config, arrays = cmsis_nn.read(folder / f"{name}.npz")
    x = arrays["input"]
    for key, layer in layers(config):
        numbers = {k.removeprefix(f"layer_{key}_"): v for k, v in arrays.items() if key in k}
        x = layer_output(key, layer, {**numbers, "input": x}, engine)
    np.testing.assert_array_equal(x, arrays["output_ref"])


def layers(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """("12_fully_connected", its configuration) of every layer, in order."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for key, value in config.items():
        match = re.fullmatch(r"([a-z_]+(?:_2d)?)_(\d+)_([a-z_]+)", key)
        assert match is not None
        found.setdefault((int(match[2]), match[1]), {})[match[3]] = value
    return [(f"{index}_{op}", layer) for (index, op), layer in sorted(found.items())]


def layer_output(key: str, layer: dict[str, Any], arrays: dict[str, Array], engine: str) -> Array:
    """Codes of one layer in the order NHWC."""
    if "softmax" in key:
        return cmsis_nn.softmax(arrays["input"], layer["mult"], layer["shift"], layer["diff_min"])
    if "pool" in key:
        golden = cmsis_nn.whole_average(layer, arrays["input"])
    elif "fully" in key:
        golden = cmsis_nn.gemm({**layer, "out_ch": arrays["bias"].size}, arrays)
    else:
        depthwise = {"ch_mult": 1} if "depthwise" in key else {}
        golden = cmsis_nn.conv(layer | depthwise, arrays)
    return cmsis_nn.channels_last(run(golden, engine)).ravel()
