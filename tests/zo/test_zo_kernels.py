"""The Numba kernels of zo equal its NumPy reference, and both equal big integers."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.zo import kernels, reference
from npusim.zo.reference import FRACTION_BITS, Where, exposed
from npusim.zo.rng import Purpose, gaussians, signs

Generator = np.random.Generator
MODULES = [reference, kernels]
PURPOSES = [Purpose.SIGNS, Purpose.GAUSSIAN]
KINDS = [np.int8, np.int16, np.int32]


def random_where(rng: Generator, purpose: Purpose = Purpose.SIGNS) -> Where:
    key = (int(rng.integers(0, 2**32)), int(rng.integers(0, 2**32)))
    return Where(
        int(rng.integers(0, 2**18 - 8)),
        int(rng.integers(0, 2**16)),
        int(rng.integers(0, 2**32)),
        key,
        purpose,
    )


def random_shape(rng: Generator) -> tuple[int, int]:
    return int(rng.integers(1, 40)), int(rng.choice([1, 9, 27, 128, 129, 300, 600]))


def random_state(
    rng: Generator, sat: tuple[int, int], kind: type = np.int16, shape: Any = None
) -> npt.NDArray[Any]:
    """Codes or masters, of which every third stands at an end of the range."""
    shape = shape or random_shape(rng)
    codes = rng.integers(sat[0], sat[1] + 1, shape)
    codes = np.where(rng.random(shape) < 1 / 3, rng.choice(sat, shape), codes)
    bits = FRACTION_BITS[np.dtype(kind)]
    half = 1 << bits >> 1
    masters = (codes << bits) + rng.integers(-half, half + 1, shape)
    return np.clip(masters, sat[0] << bits, sat[1] << bits).astype(kind)


@pytest.mark.parametrize("sat", [(-127, 127), (-128, 127)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_perturb(sat: tuple[int, int], kind: type, purpose: Purpose) -> None:
    rng = np.random.default_rng(1)
    draw = signs if purpose == Purpose.SIGNS else gaussians
    for _ in range(10):
        state, where = random_state(rng, sat, kind), random_where(rng, purpose)
        before, k, amount = state.copy(), int(rng.integers(0, 64)), int(rng.integers(-8, 9))
        rows = range(where.row, where.row + len(state))
        z = draw(rows, state.shape[1], where.tensor, where.step, k, where.key)
        wanted = np.clip(exposed(state).astype(np.int64) + amount * z, *sat)
        for module in MODULES:
            out = np.empty(state.shape, np.int8)
            module.perturb(state, out, np.full(len(state), amount), sat, where, k)
            assert (out == wanted).all()
            assert (state == before).all()


@pytest.mark.parametrize("module", MODULES)
def test_perturbing_never_drifts_at_saturated_codes(module: Any) -> None:
    """+mu, -2 mu, +mu in place would not come back: both sides start from the stored weight."""
    stored = np.array([[127, 126, -127, -126, 0]], np.int8)
    plus, minus = np.empty_like(stored), np.empty_like(stored)
    for k in range(20):
        where = Where(0, 0, 0, (1, 2))
        module.perturb(stored, plus, np.array([2]), (-127, 127), where, k)
        module.perturb(stored, minus, np.array([-2]), (-127, 127), where, k)
        z = signs(range(1), 5, 0, 0, k, (1, 2))[0]
        assert plus[0, 0] == (127 if z[0] > 0 else 125)
        assert minus[0, 0] == (125 if z[0] > 0 else 127)
        assert stored.tolist() == [[127, 126, -127, -126, 0]]


@pytest.mark.parametrize("module", MODULES)
def test_a_bias_moves_in_units_of_its_own(module: Any) -> None:
    """mu_b codes a unit, and 256 fractions of it kept."""
    biases = np.array([[1000], [-(2**29)]], np.int64) * 256
    sat, where, units = (-(2**29), 2**29), Where(0, 3, 0, (5, 6)), np.array([4, 10])
    z = signs(range(2), 1, 3, 0, 0, (5, 6))[:, 0]
    out = np.empty((2, 1), np.int32)
    module.perturb(biases, out, np.int64(2) << units, sat, where, 0)
    assert out[:, 0].tolist() == [1000 + 32 * z[0], max(-(2**29), -(2**29) + 2048 * int(z[1]))]
    rates = np.stack([np.full(2, 16384), np.full(2, 14), units])
    module.residual(biases, np.array([3]), rates, np.ones(2), sat, where)
    moved = [256000 - 3 * 16 * int(z[0]), max(-(2**37), -(2**37) - 3 * 1024 * int(z[1]))]
    assert biases[:, 0].tolist() == moved


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_residual_is_a_stored_accumulation_in_big_integers(kind: type) -> None:
    rng = np.random.default_rng(2)
    bits = FRACTION_BITS[np.dtype(kind)]
    for trial in range(10):
        sat = (-127, 127) if trial % 2 else (-128, 127)
        masters = random_state(rng, sat, kind, (int(rng.integers(1, 5)), 150))
        rows, where = len(masters), random_where(rng)
        q = int(rng.choice([1, 2, 16]))
        coefficients = rng.integers(-(2**36), 2**36, q) >> int(rng.integers(0, 36))
        mult, shift = rng.integers(2**14, 2**15, rows), rng.integers(0, 45, rows)
        z = [where.directions((rows, 150), k) for k in range(q)]
        wanted = masters.copy()
        for o, p in np.ndindex(*masters.shape):
            total = sum(int(d) * int(s[o, p]) for d, s in zip(coefficients, z, strict=True))
            exact = Fraction(total * int(mult[o]), 2 ** int(shift[o]))
            # Half up, except that a shift of 0 has nothing to round.
            delta = floor(exact + Fraction(1, 2)) if shift[o] else int(exact)
            delta = min(max(delta, -(2**31)), 2**31 - 1)
            moved = int(masters[o, p]) - delta
            wanted[o, p] = min(max(moved, sat[0] << bits), sat[1] << bits)
        scale = np.ldexp(mult.astype(np.float64), -shift - bits)
        rates = np.stack([mult, shift, np.zeros(rows, np.int64)])
        results = []
        for module in MODULES:
            state = masters.copy()
            results.append(module.residual(state, coefficients, rates, scale, sat, where))
            assert (state == wanted).all()
        assert results[0] == results[1]


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("size", [2**10, 2**26, 2**27, 2**31, 2**44])
def test_sums_of_any_width(purpose: Purpose, size: int) -> None:
    """The kernel goes from 32 to 64 bits where a sum could leave them."""
    rng = np.random.default_rng(size)
    for q in (1, 5, 16):
        shape, where = random_shape(rng), random_where(rng, purpose)
        coefficients = rng.integers(-size, size, q)
        coefficients[0] = size - 1
        z = [where.directions(shape, k) for k in range(q)]
        wanted = sum(int(d) * s.astype(object) for d, s in zip(coefficients, z, strict=True))
        for module in MODULES:
            assert (module.sums(shape, coefficients, where) == wanted).all()


def test_residual_statistics() -> None:
    masters = np.array([[127 * 256, 0, 127]], np.int16)
    coefficients, rates = np.array([4]), np.array([[16384], [14], [0]])
    where = Where(0, 0, 0, (0, 0))
    z = signs(range(1), 3, 0, 0, 0, (0, 0))[0]
    for module in MODULES:
        state = masters.copy()
        stats = module.residual(state, coefficients, rates, np.ones(1), (-127, 127), where)
        assert state.tolist() == [
            [min(127 * 256, 127 * 256 - 4 * int(z[0])), -4 * int(z[1]), 127 - 4 * int(z[2])]
        ]
        crossed = int(z[2] < 0)  # 127 + 4 is past the half way to code 1
        assert stats == (crossed, 1, 0, 4.0)


@pytest.mark.parametrize("exponent", [-9, -6, -3, 0, 2, 3])
@pytest.mark.parametrize("purpose", PURPOSES)
def test_half_sums(exponent: int, purpose: Purpose) -> None:
    """float16 sums of every size, subnormal ones included."""
    rng = np.random.default_rng(100 + exponent)
    for q in (1, 4, 16):
        halves = (rng.normal(size=q) * 10.0**exponent / 8).astype(np.float16).astype(np.float32)
        where, shape = random_where(rng, purpose), random_shape(rng)
        found = [module.half_sums(shape, halves, where) for module in MODULES]
        assert (found[0] == found[1]).all()
        assert (found[0].astype(np.float16) == found[0]).all()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("purpose", PURPOSES)
def test_block_sums(bits: int, purpose: Purpose) -> None:
    """Enough directions that blocks are halved, by other powers in one tensor."""
    rng = np.random.default_rng(bits)
    largest = 16 if purpose == Purpose.GAUSSIAN else 1
    for q in (1, 7, 200):
        coefficients = np.abs(rng.integers(-3000, 3000, q))
        most = int(coefficients.max()) * largest
        start = max(0, most.bit_length() - (8 if bits == 16 else 3))
        where, shape = random_where(rng, purpose), random_shape(rng)
        found = [module.block_sums(shape, coefficients, bits, start, where) for module in MODULES]
        assert (found[0] == found[1]).all()


@pytest.mark.parametrize("module", MODULES)
def test_zero_coefficients_change_nothing(module: Any) -> None:
    rng = np.random.default_rng(3)
    sat, where = (-128, 127), random_where(rng)
    masters = random_state(rng, sat)
    state, rows = masters.copy(), len(masters)
    zeros, rates = np.zeros(4, np.int64), np.stack([np.full(rows, x) for x in (1 << 14, 20, 0)])
    module.residual(state, zeros, rates, np.ones(rows), sat, where)
    assert (state == masters).all()
    assert not module.half_sums(masters.shape, np.zeros(4, np.float32), where).any()
    assert not module.block_sums(masters.shape, zeros, 16, 5, where).any()


def test_blocks_of_channels_give_the_bits_of_the_whole() -> None:
    rng = np.random.default_rng(4)
    whole = random_state(rng, (-127, 127), shape=(37, 300))
    parts, d = whole.copy(), np.array([99, -70])
    rates = np.stack([np.full(37, x) for x in (20000, 10, 0)])

    def move(state: npt.NDArray[Any], row: int) -> None:
        n = len(state)
        where = Where(row, 3, 4, (5, 6))
        kernels.residual(state, d, rates[:, :n], np.ones(n), (-127, 127), where)

    move(whole, 0)
    for start, stop in ((0, 1), (1, 6), (6, 37)):
        move(parts[start:stop], start)
    assert (whole == parts).all()
    where = Where(0, 3, 4, (5, 6))
    all_sums = kernels.block_sums((37, 300), d, 16, 0, where)
    rest = kernels.block_sums((32, 300), d, 16, 0, where._replace(row=5))
    assert (all_sums[5:] == rest).all()
