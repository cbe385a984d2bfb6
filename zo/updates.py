"""How a step's coefficients move the weights: one frozen value a mode, state kept outside.

The state of a tensor is one array [O, P]: int8 codes, or int16 masters whose low 8 bits are a
fraction of an LSB. ``fraction_bits`` tells which, and how codes are exposed from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError, UsageError
from npusim.zo.estimator import TwoSided
from npusim.zo.reference import BlockStats, Where

LN2 = math.log(2.0)
HALF_MAX = 65504.0  # largest float16
MULT_BITS = 15
MAX_SHIFT = 62
Q16 = 65536


class StepSize(NamedTuple):
    """What the size of one step's move depends on.

    eta: learning rate of the step, LSB^2 per nat: w -= eta / q * sum_k dL_k / (2 mu) s_k.
    """

    q: int
    batch: int
    mu: int
    eta: float


class Kernels(Protocol):
    """The functions of npusim.zo.reference and npusim.zo.kernels."""

    def residual(
        self,
        masters: npt.NDArray[np.int16],
        coefficients: npt.NDArray[np.int64],
        mult: npt.NDArray[np.int64],
        shift: npt.NDArray[np.int64],
        scale: npt.NDArray[np.float64],
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats: ...

    def faithful(
        self,
        codes: npt.NDArray[np.int8],
        coefficients: npt.NDArray[np.float32],
        eta: np.float32,
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats: ...

    def perturb(
        self,
        state: npt.NDArray[Any],
        out: npt.NDArray[np.int8],
        fraction_bits: int,
        amount: int,
        sat: tuple[int, int],
        where: Where,
        k: int,
    ) -> None: ...


class Rate(NamedTuple):
    """value / 2^16-bit-sums to moves: mult * 2^-shift, one pair for all channels of a tensor."""

    mult: int
    shift: int


def fixed_point(value: float) -> Rate:
    """The closest mult * 2^-shift with mult in [2^14, 2^15) and shift in 0..62.

    Raises NumericsError where the value is out of that range.
    """
    mantissa, exponent = math.frexp(value) if math.isfinite(value) else (0.0, 0)
    mult = round(mantissa * 2.0**MULT_BITS)
    if mult == 1 << MULT_BITS:
        mult, exponent = mult >> 1, exponent + 1
    shift = MULT_BITS - exponent
    if mult < 1 << (MULT_BITS - 1) or not 0 <= shift <= MAX_SHIFT:
        raise NumericsError(
            "the learning rate does not fit the integer update",
            where="--lr",
            got=f"a move of {value:g} / 256 LSB per 2^-16 bit of loss",
            wanted=f"2^-{MAX_SHIFT - MULT_BITS + 1} .. 2^{MULT_BITS}",
        )
    return Rate(mult, shift)


class Update(Protocol):
    """What the loop asks for."""

    name: ClassVar[str]
    fraction_bits: ClassVar[int]

    def init(self, codes: npt.NDArray[np.int8]) -> npt.NDArray[Any]:
        """The state of a tensor that holds these codes [O, P]."""

    def plan(self, size: StepSize, estimator: TwoSided) -> dict[str, Any]:
        """Constants of a step of this size, as JSON: an entry of the header's table."""

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        coefficients: npt.NDArray[np.int64],
        plan: Mapping[str, Any],
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats:
        """Update a block of output channels in place."""

    def frozen(self, still: int, moves: int) -> bool:
        """Whether a tensor of which ``still`` of ``moves`` weight steps were nil will not learn."""


@dataclass(frozen=True, slots=True)
class Residual:
    """Masters M = 256 w in int16; what rounding leaves over is kept and adds up.

    delta_i = (A_i * mult + 2^(sh-1)) >> sh with A_i = sum_k D_k s_ki replayed from the random
    numbers (no gradient buffer); M <- clamp(M - delta); exposed code (M + 128) >> 8.
    """

    name: ClassVar[str] = "residual"
    fraction_bits: ClassVar[int] = 8

    def init(self, codes: npt.NDArray[np.int8]) -> npt.NDArray[np.int16]:
        return codes.astype(np.int16) * np.int16(256)

    def plan(self, size: StepSize, estimator: TwoSided) -> dict[str, Any]:
        divisor = size.batch * Q16 * estimator.divisor(size.q, size.mu)
        rate = fixed_point(size.eta * LN2 * 256 / divisor)
        return {"mult": rate.mult, "shift": rate.shift}

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        coefficients: npt.NDArray[np.int64],
        plan: Mapping[str, Any],
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats:
        rows = len(state)
        mult = np.full(rows, plan["mult"], np.int64)
        shift = np.full(rows, plan["shift"], np.int64)
        scale = np.full(rows, math.ldexp(plan["mult"], -plan["shift"]) / 256)
        return kernels.residual(state, coefficients, mult, shift, scale, sat, where)

    def frozen(self, still: int, moves: int) -> bool:
        """The median |delta| is below one unit of the master."""
        return 2 * still > moves


@dataclass(frozen=True, slots=True)
class Faithful:
    """The paper's shape: gradients summed in float16, codes rounded to nearest at every step.

    c_k = fp16(f32(D_k ln2 / (B 2^16)) / f32(2 mu q)); g = fp16(f32(g) + s_k f32(c_k)), k
    ascending from g = 0; w = sat(rint(f32(w) - f32(eta * g))), eta a float32, half to even.
    """

    name: ClassVar[str] = "faithful"
    fraction_bits: ClassVar[int] = 0

    def init(self, codes: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        return codes.copy()

    def plan(self, size: StepSize, estimator: TwoSided) -> dict[str, Any]:
        return {
            "eta": float(np.float32(size.eta)),
            "batch": size.batch,
            "divisor": estimator.divisor(size.q, size.mu),
        }

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        coefficients: npt.NDArray[np.int64],
        plan: Mapping[str, Any],
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats:
        halves = half_coefficients(coefficients, plan["batch"], plan["divisor"])
        return kernels.faithful(
            state, halves.astype(np.float32), np.float32(plan["eta"]), sat, where
        )

    def frozen(self, still: int, moves: int) -> bool:
        """Not one weight moved."""
        return still == moves


def half_coefficients(
    coefficients: npt.NDArray[np.int64], batch: int, divisor: int
) -> npt.NDArray[np.float16]:
    """c_k of the faithful update, float16 [q].

    Raises NumericsError where a sum of them could leave float16's range: some |c_k| above
    65504/q, or the sum with all signs alike (rounding is monotonic, so no weight's is larger).
    """
    nats = (coefficients * LN2 / (batch * Q16)).astype(np.float32)
    single = nats / np.float32(divisor)
    with np.errstate(over="ignore"):
        halves = single.astype(np.float16)
        worst = np.float16(0)
        for half in np.abs(halves):
            worst = np.float16(np.float32(worst) + np.float32(half))
    limit = HALF_MAX / len(coefficients)
    if not (np.abs(single) <= limit).all() or not np.isfinite(worst):
        raise NumericsError(
            "the gradient does not fit its float16 buffer",
            where="--update faithful",
            got=f"a coefficient of {float(np.abs(single).max()):g}",
            wanted=f"at most 65504 / q = {limit:g}",
            hint="Use a larger --mu, or --update residual, which has no such limit.",
        )
    return halves


UPDATES: Mapping[str, type[Residual] | type[Faithful]] = MappingProxyType(
    {Residual.name: Residual, Faithful.name: Faithful}
)


def make_update(name: str) -> Residual | Faithful:
    """The update mode of this name; raises UsageError with the names there are."""
    if name not in UPDATES:
        raise UsageError("unknown update mode", where=name, wanted=" or ".join(UPDATES))
    return UPDATES[name]()
