"""The Numba kernels of zo equal its NumPy reference, and both equal big integers."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.zo import kernels, reference
from npusim.zo.reference import Where, exposed
from npusim.zo.rng import signs

Generator = np.random.Generator
MODULES = [reference, kernels]


def random_where(rng: Generator) -> Where:
    key = (int(rng.integers(0, 2**32)), int(rng.integers(0, 2**32)))
    return Where(
        int(rng.integers(0, 2**18 - 8)),
        int(rng.integers(0, 2**16)),
        int(rng.integers(0, 2**32)),
        key,
    )


def random_codes(rng: Generator, sat: tuple[int, int]) -> npt.NDArray[np.int8]:
    """A tensor of which every third code stands at an end of the range."""
    shape = int(rng.integers(1, 6)), int(rng.integers(1, 400))
    codes = rng.integers(sat[0], sat[1] + 1, shape)
    ends = rng.choice(sat, shape)
    return np.where(rng.random(shape) < 1 / 3, ends, codes).astype(np.int8)


def random_masters(rng: Generator, sat: tuple[int, int]) -> npt.NDArray[np.int16]:
    codes = random_codes(rng, sat).astype(np.int64)
    fraction = rng.integers(-128, 128, codes.shape)
    return np.clip(codes * 256 + fraction, sat[0] * 256, sat[1] * 256).astype(np.int16)


@pytest.mark.parametrize("sat", [(-127, 127), (-128, 127)])
@pytest.mark.parametrize("bits", [0, 8])
def test_perturb(sat: tuple[int, int], bits: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        state: npt.NDArray[Any] = random_masters(rng, sat) if bits else random_codes(rng, sat)
        before, where, k = state.copy(), random_where(rng), int(rng.integers(0, 64))
        amount = int(rng.integers(-8, 9))
        z = signs(
            range(where.row, where.row + len(state)),
            state.shape[1],
            where.tensor,
            where.step,
            k,
            where.key,
        )
        wanted = np.clip(exposed(state, bits).astype(np.int64) + amount * z, *sat)
        for module in MODULES:
            out = np.empty(state.shape, np.int8)
            module.perturb(state, out, bits, amount, sat, where, k)
            assert (out == wanted).all()
            assert (state == before).all()


@pytest.mark.parametrize("module", MODULES)
def test_perturbing_never_drifts_at_saturated_codes(module: Any) -> None:
    """+mu, -2 mu, +mu in place would not come back: both sides start from the stored weight."""
    stored = np.array([[127, 126, -127, -126, 0]], np.int8)
    plus, minus = np.empty_like(stored), np.empty_like(stored)
    for k in range(20):
        module.perturb(stored, plus, 0, 2, (-127, 127), Where(0, 0, 0, (1, 2)), k)
        module.perturb(stored, minus, 0, -2, (-127, 127), Where(0, 0, 0, (1, 2)), k)
        z = signs(range(1), 5, 0, 0, k, (1, 2))[0]
        assert plus[0, 0] == (127 if z[0] > 0 else 125)
        assert minus[0, 0] == (125 if z[0] > 0 else 127)
        assert stored.tolist() == [[127, 126, -127, -126, 0]]


def test_residual_is_a_stored_accumulation_in_big_integers() -> None:
    rng = np.random.default_rng(2)
    for _ in range(12):
        sat = (-127, 127) if rng.random() < 0.5 else (-128, 127)
        masters = random_masters(rng, sat)
        rows, where = len(masters), random_where(rng)
        q = int(rng.choice([1, 2, 16]))
        coefficients = rng.integers(-(2**36), 2**36, q) >> int(rng.integers(0, 36))
        mult, shift = rng.integers(2**14, 2**15, rows), rng.integers(0, 45, rows)
        z = [
            signs(
                range(where.row, where.row + rows),
                masters.shape[1],
                where.tensor,
                where.step,
                k,
                where.key,
            )
            for k in range(q)
        ]
        wanted = masters.copy()
        for o, p in np.ndindex(*masters.shape):
            total = sum(int(d) * int(s[o, p]) for d, s in zip(coefficients, z, strict=True))
            exact = Fraction(total * int(mult[o]), 2 ** int(shift[o]))
            # Half up, except that a shift of 0 has nothing to round.
            delta = floor(exact + Fraction(1, 2)) if shift[o] else int(exact)
            delta = min(max(delta, -(2**31)), 2**31 - 1)
            moved = int(masters[o, p]) - delta
            wanted[o, p] = min(max(moved, sat[0] * 256), sat[1] * 256)
        scale = np.ldexp(mult.astype(np.float64), -shift) / 256
        results = []
        for module in MODULES:
            state = masters.copy()
            results.append(module.residual(state, coefficients, mult, shift, scale, sat, where))
            assert (state == wanted).all()
        assert results[0] == results[1]


def test_residual_statistics() -> None:
    masters = np.array([[127 * 256, 0, 127]], np.int16)
    coefficients, mult, shift = np.array([4]), np.array([16384]), np.array([14])
    where = Where(0, 0, 0, (0, 0))
    z = signs(range(1), 3, 0, 0, 0, (0, 0))[0]
    for module in MODULES:
        state = masters.copy()
        stats = module.residual(state, coefficients, mult, shift, np.ones(1), (-127, 127), where)
        assert state.tolist() == [
            [min(127 * 256, 127 * 256 - 4 * int(z[0])), -4 * int(z[1]), 127 - 4 * int(z[2])]
        ]
        crossed = int(z[2] < 0)  # 127 + 4 is past the half way to code 1
        assert stats == (crossed, 1, 0, 4.0)


@pytest.mark.parametrize("exponent", [-9, -6, -3, 0, 2, 3])
def test_faithful(exponent: int) -> None:
    """float16 sums of every size, subnormal ones included."""
    rng = np.random.default_rng(100 + exponent)
    for trial in range(12):
        sat = (-127, 127) if trial % 2 else (-128, 127)
        codes, where = random_codes(rng, sat), random_where(rng)
        q = int(rng.choice([1, 4, 16]))
        halves = (rng.normal(size=q) * 10.0**exponent).astype(np.float16)
        eta = np.float32(10.0 ** (rng.integers(-1, 4) - exponent))
        results, states = [], []
        for module in MODULES:
            state = codes.copy()
            results.append(module.faithful(state, halves.astype(np.float32), eta, sat, where))
            states.append(state)
        assert (states[0] == states[1]).all()
        assert results[0] == results[1]


@pytest.mark.parametrize("module", MODULES)
def test_zero_coefficients_change_nothing(module: Any) -> None:
    rng = np.random.default_rng(3)
    sat, where = (-128, 127), random_where(rng)
    masters, codes = random_masters(rng, sat), random_codes(rng, sat)
    rows = len(masters)
    state = masters.copy()
    ones = np.ones(rows, np.int64)
    zeros = np.zeros(4, np.int64)
    module.residual(state, zeros, ones << 14, ones * 20, np.ones(rows), sat, where)
    assert (state == masters).all()
    again = codes.copy()
    module.faithful(again, np.zeros(4, np.float32), np.float32(1), sat, where)
    assert (again == codes).all()


@pytest.mark.parametrize("name", ["residual", "faithful"])
def test_blocks_of_channels_give_the_bits_of_the_whole(name: str) -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(-127, 128, (9, 300)).astype(np.int8)
    whole = codes.astype(np.int16) * 256 if name == "residual" else codes.copy()
    parts = whole.copy()

    def move(state: npt.NDArray[Any], row: int) -> None:
        where = Where(row, 3, 4, (5, 6))
        if name == "residual":
            n = len(state)
            mult, shift = np.full(n, 20000), np.full(n, 18)
            kernels.residual(
                state, np.array([99, -70]), mult, shift, np.ones(n), (-127, 127), where
            )
        else:
            c = np.array([0.5, -0.3], np.float16).astype(np.float32)
            kernels.faithful(state, c, np.float32(3), (-127, 127), where)

    move(whole, 0)
    for start, stop in ((0, 1), (1, 6), (6, 9)):
        move(parts[start:stop], start)
    assert (whole == parts).all()
