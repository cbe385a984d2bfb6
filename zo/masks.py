"""Sparse training: which weights of a tensor move at all."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import UsageError
from npusim.weights import WeightStore
from npusim.zo.reference import BlockStats, exposed
from npusim.zo.rng import Key, Purpose, halves
from npusim.zo.tensors import Trained

KINDS = ("random", "smallest", "largest")


def parse_mask(text: str) -> tuple[str, float]:
    """ "KIND:FRACTION" as (kind, fraction).

    Raises UsageError where it is neither.
    """
    kind, _, share = text.partition(":")
    try:
        fraction = float(share)
    except ValueError:
        fraction = math.nan
    if kind not in KINDS or not 0 < fraction <= 1:
        raise UsageError(
            "not a sparse mask",
            where=f"--mask {text}",
            wanted="random:F, smallest:F or largest:F with F in (0, 1]",
        )
    return kind, fraction


def with_masks(
    trained: tuple[Trained, ...], store: WeightStore, text: str, key: Key
) -> tuple[Trained, ...]:
    """The tensors with the mask that ``text`` asks for; biases keep all of theirs.

    random: where 16 random bits (purpose 4) are below round(65536 F). smallest, largest: the
    round(F O P) weights of each tensor with the smallest or largest |imported code|, ties by
    position (Sparse MeZO, Liu et al. 2024, trains the smallest).
    """
    if not text:
        return trained
    kind, fraction = parse_mask(text)
    return tuple(
        dataclasses.replace(t, mask=_mask(t, store.codes(t.name), kind, fraction, key))
        if t.kind == "weight"
        else t
        for t in trained
    )


def _mask(
    tensor: Trained, codes: npt.NDArray[Any], kind: str, fraction: float, key: Key
) -> npt.NDArray[np.bool_]:
    channels, positions = tensor.shape
    if kind == "random":
        draw = halves(Purpose.MASK, range(channels), positions, tensor.id, 0, key)
        return draw < round(65536 * fraction)
    size = np.abs(codes.astype(np.int64)).ravel()
    order = np.argsort(size if kind == "smallest" else -size, kind="stable")
    mask = np.zeros(tensor.size, np.bool_)
    mask[order[: round(fraction * tensor.size)]] = True
    return mask.reshape(tensor.shape)


def blocked(
    tensor: Trained, rows: slice, state: npt.NDArray[Any], gate: bool
) -> npt.NDArray[np.bool_] | None:
    """Which weights of a block stand still in a step: off the mask, or at a range's end.

    gate: also those whose exposed code is closer than mu to an end of the range.
    """
    found = None if tensor.mask is None else ~tensor.mask[rows]
    if not gate or tensor.kind == "bias":
        return found
    codes = exposed(state).astype(np.int64)
    low, high = tensor.sat
    near = (codes - tensor.mu < low) | (codes + tensor.mu > high)
    return near if found is None else near | found


def restored(
    before: npt.NDArray[Any],
    state: npt.NDArray[Any],
    still_there: npt.NDArray[np.bool_],
    sat: tuple[int, int],
    stats: BlockStats,
) -> BlockStats:
    """Put blocked weights back, in place; the statistics of what is left of the move."""
    state[still_there] = before[still_there]
    old, new = exposed(before), exposed(state)
    return BlockStats(
        int(np.count_nonzero(old != new)),
        int(np.count_nonzero((new == sat[0]) | (new == sat[1]))),
        int(np.count_nonzero((before == state) & ~still_there)),
        stats.largest,
    )
