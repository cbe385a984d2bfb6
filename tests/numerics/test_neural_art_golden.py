"""The neural-art rules against a real STM32N657 and against files that ST's compiler generated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.ir import Graph
from npusim.numerics import neural_art
from npusim.numerics import neural_art_lowering as formulas
from npusim.numerics.neural_art_epilogue import Convolution, GlobalAverage, OneStep, TwoStep
from npusim.numerics.neural_art_passes import UNSIGNED, Window
from npusim.numerics.profile import Profile, load_profile
from npusim.numerics.requant import read_only

NETWORKS = ("conv16_3x3", "conv32_1x1", "conv32_5x5", "depthwise_3x3")


def _board(folder: Path) -> tuple[Any, Any]:
    with np.load(folder / "network_val_io.npz") as file:
        y = file["c_outputs_1"]
        return file["c_inputs_1"], y.reshape(y.shape[0], -1)


def _outputs(graph: Graph, profile: Profile, x: Any, engine: str = "numpy") -> Any:
    program = npusim.compile(graph, profile, engine)
    return program.run({graph.inputs[0].name: x})[graph.outputs[0].name]


@pytest.mark.parametrize("engine", ["numpy", "fast"])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_output_of_the_board_is_reproduced(shared: Path, network: str, engine: str) -> None:
    folder = shared / "golden" / "neural_art" / network
    x, board = _board(folder)
    graph = npusim.load(folder / "model.onnx")
    assert np.array_equal(_outputs(graph, load_profile("neural-art"), x, engine), board)


@pytest.mark.long
def test_the_board_tells_the_rules_apart(shared: Path) -> None:
    """Each of these differs on the 5x5 network, so equality above is worth something."""
    folder = shared / "golden" / "neural_art" / "conv32_5x5"
    x, board = _board(folder)
    graph = npusim.load(folder / "model.onnx")
    profile = load_profile("neural-art")
    for switch, value in (
        ("requant", "one_step"),
        ("max_rows", 5),
        ("ties", "half_up"),
        ("ties", "half_even"),
        ("shift", 3),
        ("shift", 5),
    ):
        changed = replace(profile, switches={**profile.switches, switch: value})
        y = _outputs(graph, changed, x)
        assert np.count_nonzero(y != board) > 0, (switch, value)


class TestGeneratedFile:
    """A three-layer network whose generated multipliers and constants are known."""

    LAYERS = (
        # input, weights, bias, output; offsets of A and C; map; A2, s1; so; channels
        ((0, 7, 6, 8), (9968, 9776), 36, (17929, 14), 3, (3, 1, 1)),
        ((9, 5, 4, 10), (9840, 9648), 18, (22482, 12), 4, (8, 2, 1)),
        ((11, 3, 2, 12), (10000, 9904), 9, (24008, 13), 4, (8, 2, 2)),
    )

    @pytest.fixture
    def folder(self, shared: Path) -> Path:
        return shared / "golden" / "neural_art" / "lowering_rppg"

    def _lowered(self, folder: Path) -> list[tuple[TwoStep, Any, Any]]:
        interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(
            str(folder / "spatial_cnn_int8.tflite")
        )
        interpreter.allocate_tensors()
        details = {
            t["index"]: t["quantization_parameters"] for t in interpreter.get_tensor_details()
        }
        raw = (folder / "network_rppg_atonbuf.xSPI2.raw").read_bytes()
        found = []
        for (x, w, b, y), (at_a, at_c), size, *_ in self.LAYERS:
            codes = interpreter.get_tensor(w).transpose(0, 3, 1, 2).astype(np.int64)
            scales = {i: details[i]["scales"].astype(np.float64) for i in (x, w, b, y)}
            count = codes.shape[0]
            lowered = neural_art.convolution(
                neural_art.Tensor(float(scales[x][0]), -128),
                neural_art.Weights(
                    codes, scales[w], interpreter.get_tensor(b).astype(np.int64), scales[b]
                ),
                neural_art.Output(float(scales[y][0]), -128),
                Window((3, 3), (1, 1), codes.shape[1], count, (size, size), (size, size), UNSIGNED),
                neural_art.Switches(),
                "layer",
            )
            assert isinstance(lowered, TwoStep)
            a = np.frombuffer(raw, "<i2", count, at_a)
            c = np.frombuffer(raw, "<i4", count, at_c)
            found.append((lowered, a, c))
        return found

    def test_multipliers_constants_shifts_and_passes(self, folder: Path) -> None:
        equal = 0
        for (lowered, a, c), layer in zip(self._lowered(folder), self.LAYERS, strict=True):
            *_, (a2, s1), so, channels = layer
            assert np.array_equal(lowered.multiplier, a)
            assert (lowered.final_multiplier, lowered.multiplier_shift) == (a2, s1)
            assert (lowered.shift, lowered.final_shift, lowered.dropped) == (so, 20, 0)
            assert lowered.channels == (channels,)
            assert np.abs(lowered.constant - c).max() <= 1
            equal += int(np.count_nonzero(lowered.constant == c))
        assert equal >= 61  # of 64

    def test_global_average(self, folder: Path) -> None:
        fields = {
            e["node"]: e["fields"]
            for e in json.loads((folder / "descriptors_digest.json").read_text())
        }
        pool = fields["AveragePool_19_init5"]
        last = fields["RequantizeLinear_inserted_id62_init5"]
        lowered = neural_art.global_average(
            neural_art.Tensor(float(np.float32(0.02132595)), -128),
            neural_art.Output(float(np.float32(0.00951532)), -128),
            pool["inputX"] * pool["inputX"],
            neural_art.Switches(),
            "mean",
        )
        assert (lowered.multiplier, lowered.shift) == (pool["mulval"], pool["shift_o"])
        assert lowered.rescale.multiplier == last["A_scalar"]
        assert lowered.rescale.constant == last["B_scalar"] << 16 | last["C_scalar"]
        assert lowered.rescale.pre_shift == last["Ax_shift"]
        assert lowered.rescale.shift == last["shift_o"]


@pytest.mark.parametrize(
    ("acc", "multiplier", "constant", "code"),
    [(325464, 6802, -40619801, -12), (245296, 6692, -23812828, 4)],
)
def test_published_board_values(acc: int, multiplier: int, constant: int, code: int) -> None:
    """One Gemm output each: shift_o 6, one step with shift 19."""
    layer = one_channel(shift=6, multiplier=multiplier, multiplier_shift=19, constant=constant)
    stream = layer.stream([(layer.segments()[0], np.array([[acc]]))])
    assert stream.saturated == 0
    assert layer.apply(stream.values).tolist() == [[code]]


def one_channel(**numbers: Any) -> OneStep:
    """A one-step layer of one channel, one tap and one pass."""
    one: dict[str, Any] = {
        "form": UNSIGNED, "rows": (1,), "columns": (1,), "channels": ((1, 1, 1),),
        "ties": "half_away", "bias": 0, "gain": 0, "lo": -128, "hi": 127, "offset": 0, "dropped": 0,
    }  # fmt: skip
    one |= numbers
    for name in ("multiplier", "constant", "bias", "gain"):
        one[name] = read_only([one[name]], np.int64)
    return OneStep(**one)


def test_the_classes_of_a_golden_network(shared: Path) -> None:
    graph = npusim.load(shared / "golden" / "neural_art" / "conv32_5x5" / "model.onnx")
    lowering = npusim.compile(graph, "neural-art", engine="numpy").lowering
    assert isinstance(lowering["Conv2D_3"], Convolution)
    assert isinstance(lowering["AveragePool_7"], GlobalAverage)
    assert lowering["Conv2D_3"].rows == (3, 2)
    assert formulas.mean_step(64 * 64, 8) == (
        lowering["AveragePool_7"].multiplier,
        lowering["AveragePool_7"].shift,
    )
