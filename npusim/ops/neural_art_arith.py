"""The neural-art rules of Add, Mul, Concat, requantize and the average pools."""

from __future__ import annotations

import numpy as np

from npusim.ir import Array, Site
from npusim.numerics import neural_art
from npusim.numerics.lowered import Lowered, Nothing
from npusim.numerics.neural_art_epilogue import (
    AddStep,
    GlobalAverage,
    Joined,
    Keep,
    MulSteps,
    Rescale,
    WindowAverage,
)
from npusim.numerics.profile import Profile
from npusim.ops.base import Rule
from npusim.ops.neural_art_site import output, signed, tensor
from npusim.ops.pool_window import PoolAttrs, counted, padded, taps

Inputs = tuple[Array | None, ...]


def _lower_add(site: Site, profile: Profile) -> Lowered:
    y, switches = output(site, site.attrs.clamp), neural_art.Switches.of(profile)
    return neural_art.add(tensor(site, 0), tensor(site, 1), y, switches, site.node.name)


def _lower_mul(site: Site, profile: Profile) -> Lowered:
    y, switches = output(site, site.attrs.clamp), neural_art.Switches.of(profile)
    return neural_art.mul(tensor(site, 0), tensor(site, 1), y, switches, site.node.name)


def _reference_pair(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    assert isinstance(lowered, AddStep | MulSteps)
    return lowered.apply(signed(site, 0, inputs), signed(site, 1, inputs))


def _lower_requantize(site: Site, profile: Profile) -> Lowered:
    y, switches = output(site, site.attrs.clamp), neural_art.Switches.of(profile)
    return neural_art.requantizer(tensor(site, 0), y, switches, site.node.name)


def _reference_requantize(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    assert isinstance(lowered, Rescale | Keep)
    return lowered.apply(signed(site, 0, inputs))


def _lower_concat(site: Site, profile: Profile) -> Lowered:
    if site.output.qparams is None:
        return Nothing()
    y, switches = output(site), neural_art.Switches.of(profile)
    return Joined(
        tuple(
            neural_art.requantizer(tensor(site, i), y, switches, site.node.name)
            for i in range(len(site.node.inputs))
        )
    )


def _reference_concat(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    parts = [x for x in inputs if x is not None]
    if isinstance(lowered, Joined):
        parts = [step.apply(signed(site, i, inputs)) for i, step in enumerate(lowered.operands)]
    return np.concatenate(parts, axis=site.attrs.axis)


def _lower_mean(site: Site, profile: Profile) -> Lowered:
    y, switches = output(site, site.attrs.clamp), neural_art.Switches.of(profile)
    positions = int(np.prod([int(d or 1) for d in site.value(0).type.shape[2:]]))
    return neural_art.global_average(tensor(site, 0), y, positions, switches, site.node.name)


def _reference_mean(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    assert isinstance(lowered, GlobalAverage)
    x = signed(site, 0, inputs)
    sums = x.sum(axis=tuple(range(2, x.ndim)), keepdims=site.attrs.keepdims)
    return lowered.apply(sums)


def _saturated_mean(site: Site, lowered: Lowered, inputs: Inputs) -> int:
    """int16 means that saturated; those of windows are rounded to codes at once."""
    if not isinstance(lowered, GlobalAverage):
        return 0
    x = signed(site, 0, inputs)
    return lowered.stream(x.sum(axis=tuple(range(2, x.ndim)))).saturated


def _whole_map(site: Site) -> bool:
    """One window over the whole map without padding: the NPU's global average."""
    attrs: PoolAttrs = site.attrs
    return attrs.kernel == site.value(0).type.shape[2:] and not any(attrs.pads)


def _lower_average(site: Site, profile: Profile) -> Lowered:
    if _whole_map(site):
        return _lower_mean(site, profile)
    y, switches = output(site, site.attrs.clamp), neural_art.Switches.of(profile)
    counts = np.unique(counted(site)).tolist()
    return neural_art.window_average(tensor(site, 0), y, counts, switches, site.node.name)


def _reference_average(site: Site, lowered: Lowered, inputs: Inputs) -> Array:
    zero_point, counts = tensor(site, 0).zero_point, counted(site)
    centred = padded(site, signed(site, 0, inputs) - zero_point, 0)
    # Padding that counts is a real zero, so its code is the zero point.
    sums = np.sum(list(taps(site, centred)), axis=0) + zero_point * counts
    if isinstance(lowered, GlobalAverage):
        return lowered.apply(sums)
    assert isinstance(lowered, WindowAverage)
    return lowered.apply(sums, counts)


ADD = Rule(_lower_add, _reference_pair, "elementwise:bind_binary")
MUL = Rule(_lower_mul, _reference_pair, "elementwise:bind_binary")
REQUANTIZE = Rule(_lower_requantize, _reference_requantize, "elementwise:bind_unary")
CONCAT = Rule(_lower_concat, _reference_concat, "elementwise:bind_concat")
GLOBAL_AVERAGE = Rule(
    _lower_mean, _reference_mean, "pool_bind:bind_global_average", _saturated_mean
)
AVERAGE = Rule(_lower_average, _reference_average, "pool_bind:bind_average", _saturated_mean)
