"""Sparse masks, the gate at the ends of the range, and what each tensor's size of a step is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from digits_task import MODEL

import npusim
from npusim.errors import NumericsError, UsageError
from npusim.zo.algorithm import compose, trained_tensors
from npusim.zo.masks import blocked, parse_mask, restored
from npusim.zo.reference import BlockStats
from npusim.zo.rng import Purpose, halves
from npusim.zo.settings import Settings
from npusim.zo.tensors import Trained

PROGRAM = npusim.compile(npusim.load(MODEL))


def tensors_of(**changes: object) -> tuple[Trained, ...]:
    algorithm = compose(Settings(**{"q": "fixed:2", **changes}))  # type: ignore[arg-type]
    return trained_tensors(algorithm, PROGRAM.graph, PROGRAM.weights)


def test_random_masks_are_the_specified_bits() -> None:
    for tensor in tensors_of(mask="random:0.25", seed=5):
        rows = range(tensor.shape[0])
        draw = halves(Purpose.MASK, rows, tensor.shape[1], tensor.id, 0, (5, 0))
        assert tensor.mask is not None
        assert (tensor.mask == (draw < 16384)).all()


@pytest.mark.parametrize("kind", ["smallest", "largest"])
def test_masks_by_size_hold_exactly_their_share(kind: str) -> None:
    for tensor in tensors_of(mask=f"{kind}:0.3"):
        assert tensor.mask is not None
        assert np.count_nonzero(tensor.mask) == round(0.3 * tensor.size)
        size = np.abs(PROGRAM.weights.codes(tensor.name).astype(int))
        inside, outside = size[tensor.mask], size[~tensor.mask]
        if kind == "smallest":
            assert inside.max() <= outside.min()
        else:
            assert inside.min() >= outside.max()


@pytest.mark.parametrize("text", ["random", "random:0", "all:0.5", "random:x", "largest:1.1"])
def test_what_is_no_mask_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--mask"):
        parse_mask(text)


def test_the_gate_stops_what_would_saturate() -> None:
    tensor = Trained(0, "w", "layer", (1, 6), (-127, 127), mu=2)
    codes = np.array([[127, 126, 125, -125, -126, 0]], np.int8)
    found = blocked(tensor, slice(None), codes, gate=True)
    assert found is not None
    assert found.tolist() == [[True, True, False, False, True, False]]
    assert blocked(tensor, slice(None), codes, gate=False) is None
    masked = replace(tensor, mask=np.array([[True] * 5 + [False]]))
    found = blocked(masked, slice(None), codes, gate=False)
    assert found is not None
    assert found.tolist() == [[False] * 5 + [True]]


def test_blocked_weights_are_put_back_and_not_counted() -> None:
    before = np.array([[256, 512, 768]], np.int16)
    state = np.array([[0, 0, 768]], np.int16)
    still = np.array([[True, False, False]])
    stats = restored(before, state, still, (-127, 127), BlockStats(2, 0, 1, 9.0))
    assert state.tolist() == [[256, 0, 768]]
    assert stats == (1, 0, 1, 9.0)


def test_each_layers_rate_divides_by_its_own_mu() -> None:
    first, *others = tensors_of(layer_mu=("conv1*=1",))
    assert first.mu == 1
    assert {t.mu for t in others} == {2}
    algorithm = compose(Settings(q="fixed:2"))
    plans = algorithm.table((first, *others))[0][0]
    values = [p["mult"] / 2 ** p["shift"] for p in plans]
    assert values[0] == pytest.approx(2 * values[1], rel=1e-4)


def test_gaussian_and_layerq_keep_the_unit_of_the_rate() -> None:
    """E[z z^T] = 8 I is divided out, and so is the chance of a layer."""
    tensors = tensors_of()

    def value(**changes: object) -> float:
        algorithm = compose(Settings(**{"q": "fixed:2", "mu": 2, **changes}))  # type: ignore[arg-type]
        plan = algorithm.table(tensors)[0][0][0]
        return float(plan["mult"] / 2 ** plan["shift"])

    assert value(direction="gaussian") == pytest.approx(value() / 8, rel=1e-4)
    assert value(layerq=True) == pytest.approx(value() * 3, rel=1e-4)


def test_real_geometry_is_capped_and_leaves_biases_nearly_alone() -> None:
    for tensor in tensors_of(geometry="real", train_bias=True):
        assert tensor.rho.shape == (tensor.shape[0],)
        assert tensor.rho.min() >= 1 / 16
        assert tensor.rho.max() <= 16
        if tensor.kind == "bias":
            assert (tensor.unit_bits >= 4).all()
            assert (tensor.unit_bits <= 10).all()
    assert all((t.rho == 1).all() for t in tensors_of())


def test_a_rate_too_small_for_a_narrow_accumulator_is_refused() -> None:
    algorithm = compose(Settings(q="fixed:2", update="int8-acc", lr=1e-10))
    with pytest.raises(NumericsError, match="--lr"):
        algorithm.table(tensors_of())
    compose(Settings(q="fixed:2", lr=1e-10)).table(tensors_of())
