"""Distributions of the random directions z along which a step measures the loss.

A direction value says which random numbers a weight gets and how both the perturbation and the
replay of an update are computed. It is stateless: everything follows from the address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.zo.rng import Purpose


@dataclass(frozen=True, slots=True)
class Rademacher:
    """z is +1 or -1 with equal odds: one bit a weight."""

    name: ClassVar[str] = "rademacher"
    purpose: ClassVar[Purpose] = Purpose.SIGNS
