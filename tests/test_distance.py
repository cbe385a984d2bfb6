"""npusim.distance: how far profiles lie apart, against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.cli import main
from npusim.distance import LayerDistance, distance_chunks
from npusim.errors import DataError
from npusim.models import demo_task, make_inputs, open_dataset

IMAGES = 60
PROFILES = ("neural-art", "onnxruntime", "tflite")


@pytest.fixture(scope="module")
def programs() -> list[Any]:
    graph = npusim.load(demo_task().model_path)
    return [npusim.compile(graph, name, "numpy") for name in PROFILES]


@pytest.fixture(scope="module")
def inputs(programs: list[Any]) -> Any:
    whole = make_inputs(programs[0].graph, open_dataset("digits", prefer="test"))
    return whole.subset(np.arange(IMAGES))


def total(programs: list[Any], inputs: Any, chunk: int) -> list[Any]:
    found: list[Any] = []
    for part in distance_chunks(programs, inputs, chunk):
        found = [a + b for a, b in zip(found, part, strict=True)] if found else list(part)
    return found


def test_counts_are_those_of_whole_runs(programs: list[Any], inputs: Any) -> None:
    found = total(programs, inputs, 25)
    images, labels = inputs.arrays()
    graph = programs[0].graph
    runs = [p.run({graph.inputs[0].name: images}, taps=["*"]) for p in programs]
    scores = [run[graph.outputs[0].name].reshape(IMAGES, -1).argmax(axis=1) for run in runs]
    differing = 0
    for program, run, best, distance in zip(programs, runs, scores, found, strict=True):
        assert distance.profile == program.profile.name
        assert distance.accuracy.correct == np.count_nonzero(best == labels)
        assert distance.decisions == np.count_nonzero(best != scores[0])
        assert [layer.node for layer in distance.layers][-1] == "fc_Gemm"
        for layer in distance.layers:
            name = graph.site(layer.node).output.name
            apart = np.abs(run[name].astype(int) - runs[0][name].astype(int))
            assert layer.values == apart.size
            assert (layer.differing, layer.largest) == (np.count_nonzero(apart), apart.max())
            assert layer.share == layer.differing / apart.size
            differing += layer.differing
    assert differing > 10
    assert not any(layer.differing for layer in found[0].layers)


def test_chunks_change_nothing(programs: list[Any], inputs: Any) -> None:
    assert total(programs, inputs, 7) == total(programs, inputs, IMAGES)


def test_no_image(programs: list[Any], inputs: Any) -> None:
    with pytest.raises(DataError):
        next(distance_chunks(programs, inputs.subset(np.arange(0)), 5))
    assert LayerDistance("empty", 0, 0, 0).share == 0


def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(demo_task().model_path)
    common = ["evaluate", model, "--data", "digits", "--limit", "20", "--engine", "numpy"]
    others = ["--profile", "tflite", "--against", "onnxruntime", "--against", "neural-art"]
    assert main([*common, *others, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["profile"] for p in report["profiles"]] == ["tflite", "onnxruntime", "neural-art"]
    assert report["profiles"][0]["decisions"] == 0
    assert report["profiles"][2]["layers"][-1]["values"] == 200
    assert main([*common, *others]) == 0
    text = capsys.readouterr().out
    assert "neural-art: top-1" in text
    assert "fc_Gemm" in text
    assert main([*common, *others, "--stats"]) == 2
