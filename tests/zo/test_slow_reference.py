"""Whole training runs equal a slow reference that shares no code with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digits_task import MODEL, request
from slow_reference import Case, Codes, faithful_step, residual_step

import npusim
from npusim.zo.checkpoint import load_checkpoint
from npusim.zo.data import DataSpec, encode_inputs, open_splits
from npusim.zo.network import cut_network
from npusim.zo.run import TrainResult

STEPS = 3


def case_of(path: Path, changes: dict[str, Any]) -> tuple[Case, dict[int, str], Codes]:
    """The same task for the slow reference: case, tensor names and imported codes by id."""
    network = cut_network(npusim.compile(npusim.load(MODEL), engine="numpy"))
    asked = request(path, **changes)
    spec = DataSpec(**asked.data)
    seed = asked.settings["seed"]
    data = encode_inputs(open_splits(spec, network.program.graph, seed).training, network)
    store, core = network.program.weights, network.core
    names = {t.id: t.name for t in store.tensors if t.kind == "weight"}
    codes = {t: np.array(store.codes(name)) for t, name in names.items()}

    def logits(moved: Codes, images: list[int]) -> np.ndarray[Any, Any]:
        weights = core.weights.replaced({names[t]: w for t, w in moved.items()})
        feeds = {core.graph.inputs[0].name: data.codes[images]}
        return core.run(feeds, weights=weights)[core.graph.outputs[0].name]

    qparams = core.graph.outputs[0].qparams
    assert qparams is not None
    q, batch = int(asked.settings["q"].split(":")[1]), asked.settings["batch"]
    linear = asked.settings["update"] == "residual"
    case = Case(
        logits,
        data.labels.tolist(),
        float(qparams.scalar()[0]),
        seed,
        batch,
        q,
        asked.settings["mu"],
        asked.settings["lr"] * (2 * q * batch if linear else 1),
        {t: (-128 if w.min() == -128 else -127, 127) for t, w in codes.items()},
    )
    return case, names, codes


@pytest.mark.parametrize(("q", "mu"), [(1, 2), (3, 5)])
def test_residual(
    q: int, mu: int, tmp_path: Path, train_digits: Callable[..., TrainResult]
) -> None:
    changes = {"q": f"fixed:{q}", "mu": mu, "update": "residual", "seed": 2**40 + 7}
    result = train_digits(steps=STEPS, **changes)
    case, names, codes = case_of(tmp_path, changes)
    masters = {t: w.astype(np.int64) * 256 for t, w in codes.items()}
    for step in range(STEPS):
        residual_step(case, masters, step)
    trained = load_checkpoint(result.files["checkpoint"])
    for (t, name), state in zip(names.items(), trained.state.weights, strict=True):
        assert (state == masters[t]).all(), name
        assert (trained.codes()[name] == masters[t] + 128 >> 8).all()
        assert (state != codes[t].astype(np.int64) * 256).any()


@pytest.mark.parametrize(("q", "mu"), [(1, 2), (3, 5)])
def test_faithful(
    q: int, mu: int, tmp_path: Path, train_digits: Callable[..., TrainResult]
) -> None:
    changes = {"q": f"fixed:{q}", "mu": mu, "update": "faithful", "seed": 3, "lr": 20.0}
    result = train_digits(steps=STEPS, **changes)
    case, names, codes = case_of(tmp_path, changes)
    before = {t: w.copy() for t, w in codes.items()}
    for step in range(STEPS):
        faithful_step(case, codes, step)
    trained = load_checkpoint(result.files["checkpoint"]).codes()
    for t, name in names.items():
        assert (trained[name] == codes[t]).all(), name
        assert (codes[t] != before[t]).any()
