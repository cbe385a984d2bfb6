"""Which weight and bias tensors a run trains, and what training must know of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import BadQuantization, ModelError, UsageError
from npusim.ir import Graph, Site
from npusim.ops.base import spec_of
from npusim.weights import WeightStore, WeightTensor
from npusim.zo.rng import Purpose, check_address

LAST = "@last"
_LARGEST_PRODUCT = 255 * 128  # |activation - zero point| times |weight|
_UNIT_BITS = (4, 10)  # mu_b lies in 16..1024
_RHO = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """One trained tensor.

    id: its place among all weight and bias tensors of the whole network: part of the address of
        its random numbers, whether or not the others are trained.
    kind: "weight" or "bias". shape: (output channels O, weights an output channel P or 1).
    sat: the range its codes may take: -128 belongs to a weight's only where the imported tensor
        holds it; a bias's keeps every sum inside int32.
    mu: size of a perturbation in LSB. unit_bits: int64 [O], log2 of one LSB of training in codes:
        0 for weights, log2 mu_b for biases.
    rho: float64 [O], (s_ref / s_c)^2 within 1/16..16, s_c the real size of one LSB of training and
        s_ref the geometric mean of the layer's weight scales.
    mask: bool [O, P], which weights train; None: all.
    """

    id: int
    name: str
    node: str
    shape: tuple[int, int]
    sat: tuple[int, int]
    kind: str = "weight"
    mu: int = 2
    unit_bits: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rho: npt.NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    mask: npt.NDArray[np.bool_] | None = None

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def code_type(self) -> type[np.int8] | type[np.int32]:
        return np.int8 if self.kind == "weight" else np.int32


@dataclass(frozen=True, slots=True)
class Selection:
    """What a run trains.

    layers: globs over names of layers or tensors; "@last" is the last layer with weights.
    weights, biases: which kinds. mu: LSB. layer_mu: "GLOB=N", the first that matches counts.
    """

    layers: tuple[str, ...] = ("*",)
    weights: bool = True
    biases: bool = False
    mu: int = 2
    layer_mu: tuple[str, ...] = ()

    def mu_of(self, tensor: WeightTensor) -> int:
        for entry in self.layer_mu:
            pattern, _, value = entry.rpartition("=")
            if _matches(tensor, (pattern,)):
                return int(value)
        return self.mu


def select_trained(
    graph: Graph, store: WeightStore, selection: Selection, purpose: Purpose
) -> tuple[Trained, ...]:
    """The tensors that a run trains, in the order of their ids.

    Args:
        graph: the whole network. store: its weights as imported.
        purpose: of the directions' random numbers, whose address must be large enough.

    Raises:
        ModelError: there is nothing to train.
        BadQuantization: a chosen weight tensor is not int8 with zero point 0.
        UsageError: a pattern matches nothing, or a layer's mu is not a number of codes.
    """
    _check_mu(selection, store)
    weights = [t for t in store.tensors if t.kind == "weight"]
    patterns = [weights[-1].node if p == LAST and weights else p for p in selection.layers]
    for pattern in patterns:
        if not any(_matches(t, (pattern,)) for t in store.tensors):
            raise UsageError(
                "no layer with weights has a name like this",
                where=f"--train-layers {pattern}",
                wanted=", ".join(t.node for t in weights) or "a network with weights",
            )
    kinds = {"weight": selection.weights, "bias": selection.biases}
    chosen = [t for t in store.tensors if kinds[t.kind] and _matches(t, patterns)]
    if not chosen:
        raise ModelError("the network has no weights to train", where=graph.path or graph.name)
    trained = tuple(_trained(graph, t, store, selection.mu_of(t)) for t in chosen)
    for one in trained:
        check_address(one.shape, one.id, purpose, where=one.name)
    return trained


def exposed_store(
    store: WeightStore, trained: Iterable[Trained], codes: Iterable[npt.NDArray[Any]]
) -> WeightStore:
    """The whole network's weights with these codes [O, P] in place of the trained tensors'."""
    return store.replaced({t.name: flat(t, c) for t, c in zip(trained, codes, strict=True)})


def flat(tensor: Trained, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Codes [O, P] as the core wants them: biases are [O]."""
    return codes.reshape(-1) if tensor.kind == "bias" else codes


def _check_mu(selection: Selection, store: WeightStore) -> None:
    for entry in selection.layer_mu:
        pattern, _, value = entry.rpartition("=")
        fits = value.isdecimal() and 1 <= int(value) <= 127
        if not fits or not any(_matches(t, (pattern,)) for t in store.tensors):
            raise UsageError(
                "not a layer and its size of a perturbation",
                where=f"--layer-mu {entry}",
                wanted="GLOB=N with the name of a layer and N in 1 .. 127",
            )


def _matches(tensor: WeightTensor, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tensor.node, p) or fnmatchcase(tensor.name, p) for p in patterns)


def _trained(graph: Graph, tensor: WeightTensor, store: WeightStore, mu: int) -> Trained:
    codes = store.codes(tensor.name)
    site = graph.site(tensor.node)
    index = spec_of(site.node.op).weight
    assert index is not None
    scales = _scales(site, index, len(codes))
    reference = np.exp(np.log(scales).mean())
    if tensor.kind == "weight":
        _check_trainable(graph, tensor, codes)
        low = -128 if int(codes.min()) == -128 else -127
        rho = np.clip((reference / scales) ** 2, 1 / _RHO, _RHO)
        units = np.zeros(len(codes), np.int64)
        shape = (codes.shape[0], codes.shape[1])
        return Trained(
            tensor.id, tensor.name, tensor.node, shape, (low, 127), "weight", mu, units, rho
        )
    steps = _bias_scales(site, index, scales)
    units = np.clip(np.rint(np.log2(reference / steps)), *_UNIT_BITS).astype(np.int64)
    rho = np.clip((reference / (steps * np.exp2(units))) ** 2, 1 / _RHO, _RHO)
    weight = site.constant(index)
    assert weight is not None
    sat = _bias_range(codes, weight.size // len(codes))
    shape = (len(codes), 1)
    return Trained(tensor.id, tensor.name, tensor.node, shape, sat, "bias", mu, units, rho)


def _scales(site: Site, index: int, channels: int) -> npt.NDArray[np.float64]:
    """s_c of the layer's weights."""
    qparams = site.value(index).qparams
    scales = np.ones(1) if qparams is None else qparams.scales().astype(np.float64)
    return np.broadcast_to(scales, (channels,))


def _bias_scales(
    site: Site, index: int, scales: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Real size of one bias code: s_x s_c."""
    x = site.value(0).qparams
    return scales if x is None else scales * float(x.scalar()[0])


def _bias_range(codes: npt.NDArray[Any], positions: int) -> tuple[int, int]:
    """Biases for which no sum leaves int32; never narrower than what was imported."""
    room = (1 << 31) - 1 - _LARGEST_PRODUCT * positions
    return min(-room, int(codes.min())), max(room, int(codes.max()))


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
