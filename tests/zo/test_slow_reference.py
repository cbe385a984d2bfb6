"""Whole training runs equal a slow reference that shares no code with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digits_task import MODEL, request
from slow_reference import (
    Case,
    Codes,
    accumulator_step,
    coefficients,
    faithful_step,
    replay_residual_step,
    residual_move,
    residual_step,
    sign_step,
    stochastic_step,
)

import npusim
from npusim.ir import Graph
from npusim.program import Program
from npusim.zo.checkpoint import load_checkpoint
from npusim.zo.data import DataSpec, encode_inputs, open_splits
from npusim.zo.network import cut_network
from npusim.zo.run import TrainResult

STEPS = 3
Train = Callable[..., TrainResult]


def scales_of(graph: Graph, node: str) -> tuple[float, list[float]]:
    """s_x and the s_c of a layer."""
    site = graph.site(node)
    channels = site.constant(1).shape[0]
    weights = site.qparams(1).scales().tolist()
    return float(site.qparams(0).scale[0]), weights * (channels // len(weights))


def units_of(graph: Graph, node: str) -> list[int]:
    """mu_b of each channel."""
    x, scales = scales_of(graph, node)
    reference = math.exp(sum(map(math.log, scales)) / len(scales))
    exact = [2 ** round(math.log2(reference / (x * s))) for s in scales]
    return [min(max(int(unit), 16), 1024) for unit in exact]


def real_factors(graph: Graph, node: str) -> list[float]:
    """rho_c of the weights for geometry real."""
    _, scales = scales_of(graph, node)
    reference = math.exp(sum(map(math.log, scales)) / len(scales))
    return [min(max((reference / s) ** 2, 1 / 16), 16.0) for s in scales]


def forwards_of(sides: str, q: int) -> int:
    return {"two-sided": 2 * q, "leave-one-out": q, "one-sided": q + 1}[sides]


def case_of(path: Path, changes: dict[str, Any]) -> tuple[Case, dict[int, str], Codes]:
    """The same task for the slow reference: case, tensor names and imported codes by id."""
    program: Program = npusim.compile(npusim.load(MODEL), engine="numpy")
    network, graph = cut_network(program), program.graph
    asked = request(path, **changes)
    settings = asked.settings
    data = encode_inputs(
        open_splits(DataSpec(**asked.data), graph, settings["seed"]).training, network
    )
    core = network.core
    kinds = ("weight", "bias") if settings.get("train_bias") else ("weight",)
    tensors = {t.id: t for t in program.weights.tensors if t.kind in kinds}
    codes = {t: np.array(program.weights.codes(x.name)) for t, x in tensors.items()}
    codes = {t: w.reshape(len(w), -1) for t, w in codes.items()}

    def logits(moved: Codes, images: list[int]) -> np.ndarray[Any, Any]:
        changed = {
            tensors[t].name: w.reshape(-1).astype(np.int32)
            if tensors[t].kind == "bias"
            else w.astype(np.int8)
            for t, w in moved.items()
        }
        weights = core.weights.replaced(changed)
        feeds = {core.graph.inputs[0].name: data.codes[images]}
        return core.run(feeds, weights=weights)[core.graph.outputs[0].name]

    qparams = core.graph.outputs[0].qparams
    assert qparams is not None
    q, batch, sides = int(settings["q"].split(":")[1]), settings["batch"], settings.get("sides")
    linear = settings["update"] != "faithful"
    forwards = forwards_of(sides or "two-sided", q) * batch
    units, rho, sat = {}, {}, {}
    for t, x in tensors.items():
        bias, channels = x.kind == "bias", len(codes[t])
        units[t] = units_of(graph, x.node) if bias else [1] * channels
        real = settings.get("geometry") == "real"
        rho[t] = real_factors(graph, x.node) if real else [1.0] * channels
        sat[t] = (-(2**31), 2**31 - 1) if bias else (-128 if codes[t].min() == -128 else -127, 127)
    case = Case(
        logits,
        data.labels.tolist(),
        float(qparams.scalar()[0]),
        settings["seed"],
        batch,
        q,
        settings["mu"],
        settings["lr"] * (forwards if linear else 1),
        sat,
        units,
        rho,
        sides or "two-sided",
        settings.get("direction") == "gaussian",
    )
    return case, {t: x.name for t, x in tensors.items()}, codes


def check(result: TrainResult, names: dict[int, str], states: Codes) -> None:
    """The checkpoint's states are these."""
    trained = load_checkpoint(result.files["checkpoint"]).state.weights
    for (t, name), state in zip(names.items(), trained, strict=True):
        assert (state == states[t]).all(), name


def masters_of(codes: Codes, bits: int = 8) -> Codes:
    return {t: w.astype(np.int64) << (8 if w.dtype == np.int32 else bits) for t, w in codes.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"q": "fixed:1", "mu": 2},
        {"q": "fixed:3", "mu": 5},
        {"q": "fixed:3", "mu": 2, "sides": "leave-one-out", "train_bias": True},
        {"q": "fixed:2", "mu": 3, "sides": "one-sided", "train_bias": True},
        {"q": "fixed:2", "mu": 1, "direction": "gaussian"},
        {"q": "fixed:2", "mu": 2, "geometry": "real"},
        {"q": "fixed:1", "mu": 2, "residual_bits": 16},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_residual(changes: dict[str, Any], tmp_path: Path, train_digits: Train) -> None:
    changes = {"update": "residual", "seed": 2**40 + 7, **changes}
    result = train_digits(steps=STEPS, **changes)
    case, names, codes = case_of(tmp_path, changes)
    bits = changes.get("residual_bits", 8)
    masters = masters_of(codes, bits)
    for step in range(STEPS):
        residual_step(case, masters, step, bits)
    check(result, names, masters)
    exposed = load_checkpoint(result.files["checkpoint"]).codes()
    for t, name in names.items():
        wanted = masters[t] + (1 << bits >> 1) >> bits
        assert (exposed[name].reshape(wanted.shape) == wanted).all()
        assert (masters[t] != masters_of(codes, bits)[t]).any()


@pytest.mark.parametrize(("q", "mu"), [(1, 2), (3, 5)])
@pytest.mark.parametrize("mode", ["faithful", "sr"])
def test_float16_modes(mode: str, q: int, mu: int, tmp_path: Path, train_digits: Train) -> None:
    lr = 20.0 if mode == "faithful" else 0.5
    changes = {"q": f"fixed:{q}", "mu": mu, "update": mode, "seed": 3, "lr": lr}
    result = train_digits(steps=STEPS, **changes)
    case, names, codes = case_of(tmp_path, changes)
    before = {t: w.copy() for t, w in codes.items()}
    for step in range(STEPS):
        (faithful_step if mode == "faithful" else stochastic_step)(case, codes, step)
    check(result, names, codes)
    assert all((codes[t] != before[t]).any() for t in codes)


def test_sign(tmp_path: Path, train_digits: Train) -> None:
    changes = {"q": "fixed:2", "mu": 2, "update": "sign", "seed": 4, "lr": 0.002}
    changes["train_bias"] = True
    result = train_digits(steps=STEPS, **changes)
    case, names, codes = case_of(tmp_path, changes)
    masters = masters_of(codes)
    for step in range(STEPS):
        sign_step(case, masters, step)
    check(result, names, masters)


def test_replay_residual(tmp_path: Path, train_digits: Train) -> None:
    """More steps than it remembers."""
    changes = {"q": "fixed:2", "mu": 2, "update": "replay-residual", "seed": 5}
    result = train_digits(steps=STEPS + 1, history=2, lr=2.0, **changes)
    case, names, codes = case_of(tmp_path, {**changes, "lr": 2.0})
    before, past = {t: w.copy() for t, w in codes.items()}, []
    for step in range(STEPS + 1):
        replay_residual_step(case, codes, past, step, history=2)
    check(result, names, codes)
    assert all((codes[t] != before[t]).any() for t in codes)


@pytest.mark.parametrize(("bits", "keep"), [(16, False), (8, False), (16, True), (8, True)])
def test_narrow_accumulators(bits: int, keep: bool, tmp_path: Path, train_digits: Train) -> None:
    changes = {"q": "fixed:12", "mu": 2, "update": "int8-acc", "seed": 6}
    result = train_digits(steps=1, acc_bits=bits, acc_residual=keep, **changes)
    case, names, codes = case_of(tmp_path, {**changes, "lr": 0.5})
    state = masters_of(codes) if keep else {t: w.copy() for t, w in codes.items()}
    accumulator_step(case, state, 0, bits, keep)
    check(result, names, state)
    assert all((state[t] != codes[t]).any() for t in codes)


def test_biases_keep_their_residual_in_every_mode(tmp_path: Path, train_digits: Train) -> None:
    changes = {"q": "fixed:2", "mu": 2, "update": "faithful", "seed": 7, "lr": 20.0}
    changes["train_bias"] = True
    result = train_digits(steps=1, **changes)
    case, names, codes = case_of(tmp_path, changes)
    biases = [t for t, w in codes.items() if w.dtype == np.int32]
    masters = masters_of({t: codes[t] for t in biases})
    residual_move(case, masters, coefficients(case, codes, 0), 0, biases)
    trained = load_checkpoint(result.files["checkpoint"]).state.weights
    for (t, name), state in zip(names.items(), trained, strict=True):
        if t in biases:
            assert (state == masters[t]).all(), name
            assert (masters[t] != codes[t].astype(np.int64) * 256).any()
