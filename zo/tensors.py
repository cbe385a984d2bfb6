"""Which weight tensors a run trains, and what training must know of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization, ModelError
from npusim.ir import Graph
from npusim.weights import WeightStore, WeightTensor
from npusim.zo.rng import Purpose, check_address


@dataclass(frozen=True, slots=True)
class Trained:
    """One trained weight tensor.

    id: its place among all weight and bias tensors of the whole network: part of the address of
        its random numbers, whether or not the others are trained.
    shape: (output channels O, weights an output channel P).
    sat: the range its codes may take: -128 belongs to it only where the imported tensor holds it.
    """

    id: int
    name: str
    node: str
    shape: tuple[int, int]
    sat: tuple[int, int]

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


def select_trained(
    graph: Graph, store: WeightStore, patterns: Sequence[str], purpose: Purpose
) -> tuple[Trained, ...]:
    """The weight tensors whose name, or whose layer's name, matches one of the globs.

    Args:
        graph: the whole network. store: its weights as imported.
        patterns: shell patterns; each must match something.
        purpose: of the directions' random numbers, whose address must be large enough.

    Raises:
        ModelError: a pattern matches nothing, or there is nothing to train.
        BadQuantization: a chosen tensor is not int8 with zero point 0.
    """
    weights = [t for t in store.tensors if t.kind == "weight"]
    for pattern in patterns:
        if not any(_matches(t, (pattern,)) for t in weights):
            raise ModelError(
                "no layer with weights has a name like this",
                where=f"--train-layers {pattern}",
                wanted=", ".join(t.node for t in weights) or "a network with weights",
            )
    chosen = [t for t in weights if _matches(t, patterns)]
    if not chosen:
        raise ModelError("the network has no weights to train", where=graph.path or graph.name)
    for tensor in chosen:
        _check_trainable(graph, tensor, store.codes(tensor.name))
    trained = tuple(_trained(t, store.codes(t.name)) for t in chosen)
    for one in trained:
        check_address(one.shape, one.id, purpose, where=one.name)
    return trained


def exposed_store(
    store: WeightStore, trained: Iterable[Trained], codes: Iterable[npt.NDArray[np.int8]]
) -> WeightStore:
    """The whole network's weights with these codes [O, P] in place of the trained tensors'."""
    return store.replaced({t.name: c for t, c in zip(trained, codes, strict=True)})


def _matches(tensor: WeightTensor, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tensor.node, p) or fnmatchcase(tensor.name, p) for p in patterns)


def _trained(tensor: WeightTensor, codes: npt.NDArray[Any]) -> Trained:
    low = -128 if int(codes.min()) == -128 else -127
    channels, positions = codes.shape
    return Trained(tensor.id, tensor.name, tensor.node, (channels, positions), (low, 127))


def _check_trainable(graph: Graph, tensor: WeightTensor, codes: npt.NDArray[Any]) -> None:
    qparams = graph.value(tensor.name).qparams
    points = qparams.zero_points() if qparams is not None else np.zeros(1, np.int64)
    if codes.dtype == np.int8 and not points.any():
        return
    raise BadQuantization(
        "these weights can be run but not trained",
        where=f"{tensor.name} (layer {tensor.node})",
        got=f"{codes.dtype} with zero point {int(points[np.abs(points).argmax()])}",
        wanted="int8 with zero point 0",
        hint="Quantize the weights symmetrically to int8, or leave the layer out with "
        "--train-layers.",
    )
