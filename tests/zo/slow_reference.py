"""A whole training step in Python integers and NumPy scalars, written from the description alone.

Imports nothing of npusim.zo. ``logits`` is the only thing it is given: a function from weights
and image numbers to the int8 codes of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    shape: tuple[int, int], tensor: int, step: int, k: int, seed: int
) -> np.ndarray[Any, Any]:
    """s of every weight (o, p)."""
    z = np.empty(shape, np.int64)
    for o in range(shape[0]):
        for p in range(shape[1]):
            if p % 128 == 0:
                words = philox((o << 14 | p >> 7, tensor, step, k), seed)
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
    """What a step depends on. sat: tensor id -> range."""

    logits: Logits
    labels: list[int]
    scale: float
    seed: int
    batch: int
    q: int
    mu: int
    eta: float
    sat: dict[int, tuple[int, int]]


def coefficients(case: Case, codes: Codes, step: int) -> list[int]:
    """D_k at these exposed codes."""
    images = batch_of(step, case.batch, len(case.labels), case.seed)
    found = []
    for k in range(case.q):
        sums = []
        for side in (1, -1):
            moved = {}
            for t, w in codes.items():
                z = directions(w.shape, t, step, k, case.seed)
                wide = w.astype(np.int64) + side * case.mu * z
                moved[t] = np.clip(wide, *case.sat[t]).astype(np.int8)
            scores = case.logits(moved, images)
            pairs = zip(scores.tolist(), images, strict=True)
            sums.append(sum(sample_loss(z, case.labels[i], case.scale) for z, i in pairs))
        found.append(sums[0] - sums[1])
    return found


def residual_step(case: Case, masters: Codes, step: int) -> None:
    """One step of update mode residual; masters int64, changed in place."""
    codes = {t: m + 128 >> 8 for t, m in masters.items()}
    d = coefficients(case, codes, step)
    value = case.eta * math.log(2) * 256 / (case.batch * 65536 * 2 * case.mu * case.q)
    shift = 0
    while not 2**14 <= round(value * 2**shift) < 2**15:
        shift += 1
    mult = round(value * 2**shift)
    for t, m in masters.items():
        z = [directions(m.shape, t, step, k, case.seed) for k in range(case.q)]
        low, high = case.sat[t]
        for at in np.ndindex(*m.shape):
            total = sum(d[k] * int(z[k][at]) for k in range(case.q))
            delta = total * mult + (1 << shift >> 1) >> shift
            delta = min(max(delta, -(2**31)), 2**31 - 1)
            m[at] = min(max(int(m[at]) - delta, low * 256), high * 256)


def faithful_step(case: Case, codes: Codes, step: int) -> None:
    """One step of update mode faithful; codes int8, changed in place."""
    d = coefficients(case, codes, step)
    nats = [np.float32(x * math.log(2.0) / (case.batch * 65536)) for x in d]
    c = [np.float16(x / np.float32(2 * case.mu * case.q)) for x in nats]
    eta = np.float32(case.eta)
    for t, w in codes.items():
        z = [directions(w.shape, t, step, k, case.seed) for k in range(case.q)]
        low, high = case.sat[t]
        for at in np.ndindex(*w.shape):
            g = np.float16(0)
            for k in range(case.q):
                g = np.float16(np.float32(g) + np.float32(int(z[k][at])) * np.float32(c[k]))
            wanted = float(np.rint(np.float32(w[at]) - eta * np.float32(g)))
            w[at] = int(min(max(wanted, low), high))
