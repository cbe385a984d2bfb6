"""A whole training step in Python integers and NumPy scalars, written from the description alone.

Imports nothing of npusim.zo. ``logits`` is the only thing it is given: a function from weights
and image numbers to the int8 codes of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF
Codes = dict[int, np.ndarray[Any, Any]]  # tensor id -> [O, P]
Logits = Callable[[Codes, list[int]], np.ndarray[Any, Any]]


def philox(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Philox4x32-10."""
    a, b, c, d = counter
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        low, high = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = high >> 32 ^ b ^ k0, high & MASK, low >> 32 ^ d ^ k1, low & MASK
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return a, b, c, d


def directions(
    shape: tuple[int, int], tensor: int, step: int, k: int, case: Case
) -> np.ndarray[Any, Any]:
    """z of every weight (o, p)."""
    z = np.empty(shape, np.int64)
    for o in range(shape[0]):
        for p in range(shape[1]):
            if case.gaussian:
                words = philox((o << 14 | p >> 2, tensor | 3 << 16, step, k), case.seed)
                z[o, p] = words[p & 3].bit_count() - 16
                continue
            if p % 128 == 0:
                words = philox((o << 14 | p >> 7, tensor, step, k), case.seed)
            z[o, p] = 1 - 2 * (words[p >> 5 & 3] >> (p & 31) & 1)
    return z


def batch_of(step: int, batch: int, samples: int, seed: int) -> list[int]:
    """The image numbers of a step."""
    epoch, place = divmod(step, samples // batch)
    keys = [(*philox((j, 2 << 16, epoch, 0), seed)[:2], j) for j in range(samples)]
    return [j for _, _, j in sorted(keys)][place * batch : (place + 1) * batch]


def sample_loss(z: list[int], label: int, scale: float) -> int:
    """Q16 base-2 cross-entropy of one image."""
    slope = round(scale * math.log2(math.e) * 2**24)
    top = max(z)
    total = sum(round(2**30 * 2.0 ** (-(top - v) * scale * math.log2(math.e))) for v in z)
    n = total.bit_length() - 1
    rest = (total >> (n - 30)) - 2**30
    i, part = rest >> 22, rest & (2**22 - 1)
    left, right = (round(65536 * math.log2(1 + j / 256)) for j in (i, i + 1))
    log2 = (n - 30) * 65536 + left + ((right - left) * part + 2**21 >> 22)
    return log2 + ((top - z[label]) * slope + 128 >> 8)


@dataclass(frozen=True)
class Case:
    """What a step depends on.

    eta: of the step. sat: tensor id -> range. units: id -> codes of a unit for each channel, mu_b
    of biases. rho: id -> factor of each channel's rate.
    """

    logits: Logits
    labels: list[int]
    scale: float
    seed: int
    batch: int
    q: int
    mu: int
    eta: float
    sat: dict[int, tuple[int, int]]
    units: dict[int, list[int]]
    rho: dict[int, list[float]]
    sides: str = "two-sided"
    gaussian: bool = False

    @property
    def divisor(self) -> float:
        n = {
            "two-sided": 2 * self.mu * self.q,
            "leave-one-out": self.mu * self.q * (self.q - 1),
            "one-sided": self.mu * self.q,
        }[self.sides]
        return n * (8 if self.gaussian else 1)


def loss_at(case: Case, codes: Codes, step: int, k: int, side: int) -> int:
    """Summed loss of the step's batch at w + side mu z_k."""
    moved = {}
    for t, w in codes.items():
        z = directions(w.shape, t, step, k, case) if side else np.zeros(w.shape, np.int64)
        wide = w.astype(np.int64) + side * case.mu * np.array(case.units[t])[:, None] * z
        moved[t] = np.clip(wide, *case.sat[t])
    images = batch_of(step, case.batch, len(case.labels), case.seed)
    pairs = zip(case.logits(moved, images).tolist(), images, strict=True)
    return sum(sample_loss(z, case.labels[i], case.scale) for z, i in pairs)


def coefficients(case: Case, codes: Codes, step: int) -> list[int]:
    """D_k at these exposed codes."""
    plus = [loss_at(case, codes, step, k, 1) for k in range(case.q)]
    if case.sides == "two-sided":
        return [x - loss_at(case, codes, step, k, -1) for k, x in enumerate(plus)]
    if case.sides == "leave-one-out":
        return [case.q * x - sum(plus) for x in plus]
    base = loss_at(case, codes, step, 0, 0)
    return [x - base for x in plus]


def rate(case: Case, bits: int, rho: float) -> tuple[int, int]:
    """mult and shift."""
    value = case.eta * math.log(2) * 2**bits / (case.batch * 65536 * case.divisor) * rho
    shift = 0
    while not 2**14 <= round(value * 2**shift) < 2**15:
        shift += 1
    return round(value * 2**shift), shift


def delta_of(total: int, mult: int, shift: int) -> int:
    delta = total * mult + (1 << shift >> 1) >> shift
    return min(max(delta, -(2**31)), 2**31 - 1)


def sum_of(d: list[int], z: list[np.ndarray[Any, Any]], at: tuple[int, ...]) -> int:
    return sum(d[k] * int(z[k][at]) for k in range(len(d)))


def all_directions(
    case: Case, shape: tuple[int, int], t: int, step: int
) -> list[np.ndarray[Any, Any]]:
    return [directions(shape, t, step, k, case) for k in range(case.q)]


def residual_move(
    case: Case, masters: Codes, d: list[int], step: int, only: list[int], bits: int = 8
) -> None:
    """The residual update of the tensors in ``only``; masters int64, changed in place."""
    for t in only:
        m, (low, high) = masters[t], case.sat[t]
        z = all_directions(case, m.shape, t, step)
        for at in np.ndindex(*m.shape):
            mult, shift = rate(case, bits, case.rho[t][at[0]])
            delta = delta_of(sum_of(d, z, at), mult, shift) * case.units[t][at[0]]
            m[at] = min(max(int(m[at]) - delta, low << bits), high << bits)


def residual_step(case: Case, masters: Codes, step: int, bits: int = 8) -> None:
    """One step of update mode residual."""
    codes = {t: m + (1 << bits >> 1) >> bits for t, m in masters.items()}
    residual_move(case, masters, coefficients(case, codes, step), step, list(masters), bits)


def sign_step(case: Case, masters: Codes, step: int) -> None:
    """One step of update mode sign; eta in LSB."""
    d = coefficients(case, {t: m + 128 >> 8 for t, m in masters.items()}, step)
    for t, m in masters.items():
        z, (low, high) = all_directions(case, m.shape, t, step), case.sat[t]
        for at in np.ndindex(*m.shape):
            total = sum_of(d, z, at)
            move = ((total > 0) - (total < 0)) * max(1, round(256 * case.eta))
            moved = int(m[at]) - move * case.units[t][at[0]]
            m[at] = min(max(moved, low * 256), high * 256)


def half_gradient(
    case: Case, d: list[int], z: list[np.ndarray[Any, Any]], at: tuple[int, ...]
) -> Any:
    nats = [np.float32(x * math.log(2.0) / (case.batch * 65536)) for x in d]
    c = [np.float16(x / np.float32(case.divisor)) for x in nats]
    g = np.float16(0)
    for k in range(case.q):
        g = np.float16(np.float32(g) + np.float32(int(z[k][at])) * np.float32(c[k]))
    return np.float32(g)


def faithful_step(case: Case, codes: Codes, step: int) -> None:
    """One step of update mode faithful; codes changed in place."""
    d = coefficients(case, codes, step)
    eta = np.float32(case.eta)
    for t, w in codes.items():
        z, (low, high) = all_directions(case, w.shape, t, step), case.sat[t]
        for at in np.ndindex(*w.shape):
            g = half_gradient(case, d, z, at)
            w[at] = int(min(max(float(np.rint(np.float32(w[at]) - eta * g)), low), high))


def stochastic_step(case: Case, codes: Codes, step: int) -> None:
    """One step of update mode sr."""
    d = coefficients(case, codes, step)
    for t, w in codes.items():
        z, (low, high) = all_directions(case, w.shape, t, step), case.sat[t]
        for o, p in np.ndindex(*w.shape):
            g = half_gradient(case, d, z, (o, p))
            fixed = round(Fraction(float(np.float32(case.eta))) * Fraction(float(g)) * 65536)
            word = philox((o << 14 | p >> 3, t | 1 << 16, step, 0), case.seed)[p >> 1 & 3]
            dither = word >> 16 * (p & 1) & 0xFFFF
            w[o, p] = min(max((int(w[o, p]) << 16) - fixed + dither >> 16, low), high)


def replay_residual_step(
    case: Case, codes: Codes, past: list[tuple[int, list[int]]], step: int, history: int
) -> None:
    """One step of update mode replay-residual; ``past`` grows by the step and its D_k."""
    past.append((step, coefficients(case, codes, step)))
    for t, w in codes.items():
        recent = [(s, d, all_directions(case, w.shape, t, s)) for s, d in past[-history:]]
        low, high = case.sat[t]
        for at in np.ndindex(*w.shape):
            kept = move = 0
            for _, d, z in recent:
                wanted = delta_of(sum_of(d, z, at), *rate(case, 8, 1.0)) + (kept * 230 >> 8)
                move = wanted + 128 >> 8
                kept = wanted - (move << 8)
            w[at] = min(max(int(w[at]) - move, low), high)


def accumulator_step(case: Case, state: Codes, step: int, bits: int, keep: bool) -> None:
    """One step of update mode int8-acc; state: masters where ``keep``, else codes."""
    codes = {t: m + 128 >> 8 for t, m in state.items()} if keep else state
    d = coefficients(case, codes, step)
    first = max(0, max(map(abs, d)).bit_length() - (8 if bits == 16 else 3))
    for t, w in state.items():
        z, (low, high) = all_directions(case, w.shape, t, step), case.sat[t]
        for o in range(w.shape[0]):
            for start in range(0, w.shape[1], 256):
                places = range(start, min(start + 256, w.shape[1]))
                acc, e = dict.fromkeys(places, 0), first
                for k in range(case.q):
                    for p in places:
                        acc[p] += int(z[k][o, p]) * d[k] + (1 << e >> 1) >> e
                    if max(map(abs, acc.values())) >= 1 << bits - 2:
                        acc, e = {p: a + 1 >> 1 for p, a in acc.items()}, e + 1
                mult, shift = rate(case, 8, 1.0)
                for p in places:
                    a = acc[p] << e
                    if keep:
                        moved = int(w[o, p]) - delta_of(a, mult, shift)
                        w[o, p] = min(max(moved, low * 256), high * 256)
                    else:
                        moved = int(w[o, p]) - (a * mult + (1 << shift + 7) >> shift + 8)
                        w[o, p] = min(max(moved, low), high)
