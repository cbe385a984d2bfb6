"""Distributions of the random directions z along which a step measures the loss.

A direction value says which random numbers a weight gets and how both the perturbation and the
replay of an update are computed. It is stateless: everything follows from the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from npusim.errors import UsageError
from npusim.zo.rng import Key, Purpose, philox4x32


@dataclass(frozen=True, slots=True)
class Rademacher:
    """z is +1 or -1 with equal odds: one bit a weight."""

    name: ClassVar[str] = "rademacher"
    purpose: ClassVar[Purpose] = Purpose.SIGNS
    second_moment: ClassVar[int] = 1
    largest: ClassVar[int] = 1
    default_mu: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Gaussian:
    """z = popcount(32 random bits) - 16: binomial, mean 0, variance 8, -16..16.

    E[z z^T] = 8 I, so that an estimate along z is divided by 8 as well.
    """

    name: ClassVar[str] = "gaussian"
    purpose: ClassVar[Purpose] = Purpose.GAUSSIAN
    second_moment: ClassVar[int] = 8
    largest: ClassVar[int] = 16
    default_mu: ClassVar[int] = 1


Direction = Rademacher | Gaussian

DIRECTIONS: Mapping[str, type[Direction]] = MappingProxyType(
    {kind.name: kind for kind in (Rademacher, Gaussian)}
)


def make_direction(name: str) -> Direction:
    """The distribution of this name; raises UsageError with the names there are."""
    if name not in DIRECTIONS:
        raise UsageError(
            "unknown distribution of directions",
            where=f"--direction {name}",
            wanted=" or ".join(DIRECTIONS),
        )
    return DIRECTIONS[name]()


def layer_of(groups: int, step: int, k: int, key: Key) -> int:
    """LayerQ: which of ``groups`` layers direction k of a step perturbs, with equal odds.

    (word 0 of counter (0, 5 << 16, step, k)) * groups >> 32.
    """
    word = philox4x32((0, int(Purpose.LAYER) << 16, step, k), key)[0]
    return int(word) * groups >> 32
