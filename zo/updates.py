"""How a step's coefficients move the weights: one frozen value a mode, state kept outside.

The state of a tensor is one array [O, P] whose dtype says what it holds (reference.FRACTION_BITS):
int8 codes, or masters whose low bits are a fraction of an LSB. Biases are int64 masters in every
mode that has no rule of its own for them: they always keep what rounding leaves over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from npusim.errors import NumericsError
from npusim.zo.rates import LN2, StepSize, per_row, rate_plan
from npusim.zo.reference import BlockStats, Where, exposed, fraction_bits, statistics
from npusim.zo.rng import Purpose, halves
from npusim.zo.tensors import Trained

HALF_MAX = 65504.0  # largest float16
DITHER_BITS = 16
MAX_ETA = 2.0**30

Int64 = npt.NDArray[np.int64]


class Kernels(Protocol):
    """The functions of npusim.zo.reference and npusim.zo.kernels."""

    def residual(
        self,
        masters: npt.NDArray[Any],
        coefficients: Int64,
        rates: Int64,
        scale: npt.NDArray[np.float64],
        sat: tuple[int, int],
        where: Where,
    ) -> BlockStats: ...

    def sums(self, shape: tuple[int, int], coefficients: Int64, where: Where) -> Int64: ...

    def half_sums(
        self, shape: tuple[int, int], coefficients: npt.NDArray[np.float32], where: Where
    ) -> npt.NDArray[np.float32]: ...

    def block_sums(
        self, shape: tuple[int, int], coefficients: Int64, bits: int, start: int, where: Where
    ) -> Int64: ...

    def perturb(
        self,
        state: npt.NDArray[Any],
        out: npt.NDArray[Any],
        amounts: Int64,
        sat: tuple[int, int],
        where: Where,
        k: int,
    ) -> None: ...


class Past(NamedTuple):
    """One step as an update sees it: its number, the tensor's D_k, and its constants."""

    step: int
    coefficients: Int64
    plan: Mapping[str, Any]


class Update(Protocol):
    """What the loop asks for. ``history``: how many steps, the present one included, it sees."""

    name: ClassVar[str]
    default_scaling: ClassVar[str]

    @property
    def history(self) -> int: ...

    def init(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The state of a tensor that holds these codes: [O, P], biases [O]."""

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        """Constants of a step of this size, as JSON: an entry of the header's table."""

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        """Update a block of output channels in place; the present step is the last of ``past``."""

    def frozen(self, still: int, moves: int) -> bool:
        """Whether a tensor of which ``still`` of ``moves`` weight steps were nil will not learn."""

    def for_bias(self) -> Update:
        """What moves biases in this mode."""


def masters(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Codes with ``bits`` fraction bits: int16 or int32 [O, P]; biases int64 [O, 1], 8 bits."""
    if codes.dtype == np.int32:
        return codes.astype(np.int64).reshape(-1, 1) * 256
    return codes.astype(np.int16 if bits == 8 else np.int32) * (1 << bits)


@dataclass(frozen=True, slots=True)
class Residual:
    """Masters M = 256 w in int16; what rounding leaves over is kept and adds up.

    delta_i = (A_i * mult + 2^(sh-1)) >> sh with A_i = sum_k D_k s_ki replayed from the random
    numbers (no gradient buffer); M <- clamp(M - delta); exposed code (M + 128) >> 8. A bias moves
    in units of mu_b / 256.

    bits: fraction bits; 16 keeps int32 masters, for networks whose steps are below 1/256 LSB.
    """

    name: ClassVar[str] = "residual"
    default_scaling: ClassVar[str] = "linear"
    history: ClassVar[int] = 1
    bits: int = 8

    def init(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return masters(codes, self.bits)

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        return rate_plan(size, 8 if tensor.kind == "bias" else self.bits, tensor.rho)

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        now, rows = past[-1], len(state)
        mult = per_row(now.plan, "mult", where.row, rows)
        shift = per_row(now.plan, "shift", where.row, rows)
        units = tensor.unit_bits[where.row : where.row + rows]
        scale = np.ldexp(mult.astype(np.float64), -shift - fraction_bits(state.dtype))
        rates = np.stack([mult, shift, units])
        return kernels.residual(state, now.coefficients, rates, scale, tensor.sat, where)

    def frozen(self, still: int, moves: int) -> bool:
        """The median |delta| is below one unit of the master."""
        return 2 * still > moves

    def for_bias(self) -> Update:
        return Residual()


@dataclass(frozen=True, slots=True)
class Sign:
    """Every weight moves by the same step against the sign of its estimate (ZO-signSGD).

    M <- clamp(M - sign(A_i) * step), step = max(1, round(256 eta)) in 1/256 LSB; A_i = 0 moves
    nothing. Here eta is in LSB, not in LSB^2 per nat. Source: Liu et al., "signSGD via
    Zeroth-Order Oracle" (ICLR 2019).
    """

    name: ClassVar[str] = "sign"
    default_scaling: ClassVar[str] = "linear"
    history: ClassVar[int] = 1

    def init(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return masters(codes, 8)

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        check_eta(size.eta)
        return {"step": max(1, round(size.eta * 256))}

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        now, rows = past[-1], len(state)
        total = kernels.sums((rows, state.shape[1]), now.coefficients, where)
        units = tensor.unit_bits[where.row : where.row + rows]
        delta = np.sign(total) * (np.int64(now.plan["step"]) << units)[:, None]
        before = exposed(state)
        low, high = (bound * 256 for bound in tensor.sat)
        state[...] = np.clip(state.astype(np.int64) - delta, low, high)
        still = int(np.count_nonzero(total == 0))
        largest = now.plan["step"] / 256 if still < total.size else 0.0
        return statistics(before, exposed(state), tensor.sat, still, largest)

    def frozen(self, still: int, moves: int) -> bool:
        return 2 * still > moves

    def for_bias(self) -> Update:
        return self


@dataclass(frozen=True, slots=True)
class CodesOnly:
    """What the modes share whose state is the codes themselves; biases move by ``residual``."""

    def init(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return codes.copy()

    def frozen(self, still: int, moves: int) -> bool:
        """Not one weight moved."""
        return still == moves

    def for_bias(self) -> Update:
        return Residual()


@dataclass(frozen=True, slots=True)
class Faithful(CodesOnly):
    """The paper's shape: gradients summed in float16, codes rounded to nearest at every step.

    c_k = fp16(f32(D_k ln2 / (B 2^16)) / f32(2 mu q)); g = fp16(f32(g) + s_k f32(c_k)), k
    ascending from g = 0; w = sat(rint(f32(w) - f32(eta * g))), eta a float32, half to even.
    """

    name: ClassVar[str] = "faithful"
    default_scaling: ClassVar[str] = "none"
    history: ClassVar[int] = 1

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        return half_plan(size, tensor)

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        g, eta = half_gradient(kernels, state, past[-1], where)
        step = eta * g
        wanted = np.rint(state.astype(np.float32) - step)
        before = state.copy()
        state[...] = np.clip(wanted, *tensor.sat)
        still = int(np.count_nonzero(wanted == before))
        return statistics(before, state, tensor.sat, still, float(np.abs(step).max()))


@dataclass(frozen=True, slots=True)
class Stochastic(CodesOnly):
    """float16 sums as in ``faithful``, but rounded up or down at random.

    T = rint(eta g 2^16) in int64; w = sat(((w << 16) - T + dither) >> 16) with 16 random bits of
    purpose 1 as dither: the mean move is the wanted one, at the price of noise.
    """

    name: ClassVar[str] = "sr"
    default_scaling: ClassVar[str] = "linear"
    history: ClassVar[int] = 1

    def plan(self, size: StepSize, tensor: Trained) -> dict[str, Any]:
        return half_plan(size, tensor)

    def move(
        self,
        kernels: Kernels,
        state: npt.NDArray[Any],
        past: Sequence[Past],
        tensor: Trained,
        where: Where,
    ) -> BlockStats:
        g, eta = half_gradient(kernels, state, past[-1], where)
        steps = eta.astype(np.float64) * g.astype(np.float64)  # exact: 24 + 11 bits
        fixed = np.rint(np.ldexp(steps, DITHER_BITS)).astype(np.int64)
        rows = range(where.row, where.row + len(state))
        args = (rows, state.shape[1], where.tensor, where.step, where.key)
        dither = halves(Purpose.DITHER, *args)
        moved = ((state.astype(np.int64) << DITHER_BITS) - fixed + dither) >> DITHER_BITS
        before = state.copy()
        state[...] = np.clip(moved, *tensor.sat)
        still = int(np.count_nonzero(moved == before))
        return statistics(before, state, tensor.sat, still, float(np.abs(steps).max()))


def largest_z(purpose: Purpose) -> int:
    """Largest |z| of a distribution of directions."""
    return 16 if purpose == Purpose.GAUSSIAN else 1


def check_eta(eta: float) -> None:
    """Raise NumericsError where the learning rate is beyond any use."""
    if not eta < MAX_ETA:
        raise NumericsError(
            "the learning rate is too large", where="--lr", got=eta, wanted="below 2^30"
        )


def half_plan(size: StepSize, tensor: Trained) -> dict[str, Any]:
    """Constants of the modes that sum in float16; eta one a channel where rho differs.

    Raises NumericsError where the learning rate is beyond any use.
    """
    check_eta(size.eta)
    etas = [float(np.float32(size.eta * r)) for r in tensor.rho]
    return {
        "eta": etas[0] if len(set(etas)) == 1 else etas,
        "batch": size.batch,
        "divisor": size.divisor,
        "loss_bits": size.loss_bits,
    }


def half_gradient(
    kernels: Kernels, state: npt.NDArray[Any], now: Past, where: Where
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """g [R, P] summed in float16, and eta [R, 1]; both float32."""
    plan, rows = now.plan, len(state)
    c = half_coefficients(
        now.coefficients, plan["batch"], plan["divisor"], plan["loss_bits"], where.purpose
    )
    eta = plan["eta"]
    chosen = eta[where.row : where.row + rows] if isinstance(eta, list) else [eta] * rows
    g = kernels.half_sums((rows, state.shape[1]), c.astype(np.float32), where)
    return g, np.array(chosen, np.float32)[:, None]


def half_coefficients(
    coefficients: Int64,
    batch: int,
    divisor: float,
    loss_bits: int = 16,
    purpose: Purpose = Purpose.SIGNS,
) -> npt.NDArray[np.float16]:
    """c_k of the modes that sum in float16, float16 [q].

    Raises NumericsError where a sum of them could leave float16's range: some |c_k| above
    65504/q, or the sum with all signs alike (rounding is monotonic, so no weight's is larger).
    """
    most = largest_z(purpose)
    nats = (coefficients * LN2 / (batch * 2.0**loss_bits)).astype(np.float32)
    single = nats / np.float32(divisor)
    with np.errstate(over="ignore"):
        halves_ = single.astype(np.float16)
        worst = np.float16(0)
        for half in np.abs(halves_):
            worst = np.float16(np.float32(worst) + most * np.float32(half))
    limit = HALF_MAX / (len(coefficients) * most)
    if not (np.abs(single) <= limit).all() or not np.isfinite(worst):
        raise NumericsError(
            "the gradient does not fit its float16 buffer",
            where="--update faithful or sr",
            got=f"a coefficient of {float(np.abs(single).max()):g}",
            wanted=f"at most 65504 / q = {limit:g}",
            hint="Use a larger --mu, or --update residual, which has no such limit.",
        )
    return halves_
