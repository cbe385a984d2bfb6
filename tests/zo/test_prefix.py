"""LayerQ with kept prefixes: fewer layers are run, and every bit is the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from digits_task import MODEL

import npusim
from npusim.zo import run as run_module
from npusim.zo.network import cut_network
from npusim.zo.prefix import SuffixRunner, boundary, suffixes_of
from npusim.zo.run import TrainResult


@pytest.mark.parametrize("sides", ["two-sided", "leave-one-out", "one-sided"])
def test_kept_prefixes_change_no_bit(
    sides: str, train_digits: Callable[..., TrainResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"layerq": True, "q": "fixed:5", "sides": sides, "train_bias": True}
    kept = train_digits("kept", **options)
    monkeypatch.setattr(run_module, "MOST_IMAGES_A_CALL", 3)
    split = train_digits("split", threads=2, **options)
    plain = run_module.Lanes

    def forgetful(*arguments: object) -> object:
        return plain(*arguments[:-1])  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "Lanes", forgetful)
    whole = train_digits("whole", **options)
    logs = {result.files["log"].read_bytes() for result in (kept, split, whole)}
    assert len(logs) == 1


def test_a_suffix_begins_at_its_layer_and_runs_nothing_before() -> None:
    core = cut_network(npusim.compile(npusim.load(MODEL))).core
    layers = [t.node for t in core.weights.tensors if t.kind == "weight"]
    suffixes = suffixes_of(core, layers)
    sizes = [len(suffixes[layer].program.graph.nodes) for layer in layers]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == len(core.graph.nodes) > sizes[1] > sizes[-1]
    for layer in layers:
        assert boundary(core.graph, layer) == suffixes[layer].inputs
        assert suffixes[layer].program.graph.nodes[0].name == layer


def test_the_prefix_runs_once_a_step() -> None:
    core = cut_network(npusim.compile(npusim.load(MODEL))).core
    layers = [t.node for t in core.weights.tensors if t.kind == "weight"]
    worker = core.worker(4)
    worker.load(core.weights)
    runner = SuffixRunner.make(worker, suffixes_of(core, layers), core.weights, 4)
    shape = core.graph.inputs[0].type.concrete(4)
    codes = np.arange(np.prod(shape)).reshape(shape) % 100
    codes = codes.astype(core.graph.inputs[0].type.dtype)
    (wanted,) = (a.copy() for a in worker.forward((codes,)))
    assert runner.begin(0)
    assert not runner.begin(0)
    for layer in layers:
        assert (runner.forward(layer, 0, codes) == wanted).all()
        # Other images under the same number: what is kept is used.
        assert layer == layers[0] or (runner.forward(layer, 0, codes * 0) == wanted).all()
    assert runner.begin(1)
    assert (runner.forward(layers[-1], 0, codes * 0) != wanted).any()
