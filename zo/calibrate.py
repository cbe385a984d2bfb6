"""A first learning rate for a network that nothing is known about: ``--lr auto``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError, UsageError
from npusim.zo.algorithm import Algorithm
from npusim.zo.lanes import Lanes
from npusim.zo.network import Labelled
from npusim.zo.rates import StepSize
from npusim.zo.rng import MASK32, batch_order
from npusim.zo.step import point_of
from npusim.zo.tensors import Trained
from npusim.zo.updates import Sign

WANTED_LSB = 0.05
"""Root mean square of the move that one direction of a step causes."""

PROBES = 8
"""Batches that are measured, each along the directions of one step that no run reaches."""


class Calibrated(NamedTuple):
    """The rate, rounded to three digits, and the image-forwards that finding it took."""

    rate: float
    forwards: int


def calibrated_rate(
    algorithm: Algorithm,
    tensors: tuple[Trained, ...],
    weights: Sequence[npt.NDArray[Any]],
    lanes: Lanes,
    data: Labelled,
    loss_bits: int,
) -> Calibrated:
    """The learning rate at which one direction moves a weight by 0.05 LSB (root mean square).

    Measures the coefficients of 8 steps at the imported weights, on the first 8 batches of the
    first epoch and along the directions of steps 2^32 - 1, 2^32 - 2, ...

    Raises:
        UsageError: the sign update's rate is a number of LSB already.
        NumericsError: no loss changed.
    """
    if isinstance(algorithm.update, Sign):
        raise UsageError(
            "the sign update moves by its rate, whatever the loss",
            where="--lr auto",
            wanted="a number of LSB per image-forward",
        )
    q = algorithm.scheduler.qs[algorithm.scheduler.choice(algorithm.scheduler.init()).q_index]
    batch, evaluations = algorithm.settings.batch, algorithm.estimator.evaluations(q)
    order = batch_order(len(data), 0, algorithm.key)
    found = []
    for probe in range(PROBES):
        start = probe * batch % (len(data) - batch + 1)
        images = data.subset(order[start : start + batch])
        point = point_of(algorithm, tensors, MASK32 - probe)
        losses = lanes.losses(weights, evaluations, images, point)
        found.append(algorithm.estimator.coefficients(losses))
    move = _move(algorithm, q, loss_bits) * float(np.sqrt(np.mean(np.square(found, dtype=float))))
    if not move:
        raise NumericsError(
            "no perturbation changed the loss",
            where="--lr auto",
            hint="Use a larger --mu, or give a number.",
        )
    return Calibrated(float(f"{WANTED_LSB / move:.3g}"), PROBES * len(evaluations) * batch)


def _move(algorithm: Algorithm, q: int, loss_bits: int) -> float:
    """LSB that a coefficient of 1 moves a weight by, at a learning rate of 1."""
    mu = algorithm.selection.mu
    divisor = algorithm.estimator.divisor(q, mu) * math.sqrt(algorithm.direction.second_moment)
    eta = algorithm.forwards(q) if algorithm.settings.lr_scaling == "linear" else 1
    return StepSize(q, algorithm.settings.batch, divisor, eta, loss_bits).nats * eta
