"""Philox4x32-10 and zo.rng's addressing."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.errors import NumericsError
from npusim.zo.rng import (
    SPLIT_EPOCH,
    Purpose,
    batch_order,
    check_address,
    key_of,
    philox4x32,
    sign_bits,
    signs,
)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word) for word in philox4x32(counter, key)) == expected


def test_a_sign_depends_on_what_the_weight_is_not_on_how_weights_are_packed() -> None:
    key, rng = key_of(0x0123456789ABCDEF), np.random.default_rng(0)
    whole = signs(range(40), 300, 7, 11, 3, key)
    o, p = rng.integers(0, 40, 500), rng.integers(0, 300, 500)
    assert (whole[o, p] == 1 - 2 * sign_bits(o, p, 7, 11, 3, key).astype(np.int64)).all()
    assert (signs(range(17, 23), 300, 7, 11, 3, key) == whole[17:23]).all()
    assert (signs(range(40), 130, 7, 11, 3, key) == whole[:, :130]).all()


def test_the_address_is_the_specified_counter() -> None:
    o, p, tensor, step, k, key = 300, 700, 5, 9, 2, (3, 4)
    words = philox4x32((o << 14 | p >> 7, tensor | 0 << 16, step, k), key)
    bit = int(words[p >> 5 & 3]) >> (p & 31) & 1
    assert int(sign_bits(o, p, tensor, step, k, key)) == bit


def test_each_field_of_the_address_gives_other_signs() -> None:
    base = signs(range(4), 512, 1, 2, 3, (4, 5))
    others = [
        signs(range(4, 8), 512, 1, 2, 3, (4, 5)),
        signs(range(4), 512, 2, 2, 3, (4, 5)),  # another layer under the same seed
        signs(range(4), 512, 1, 3, 3, (4, 5)),
        signs(range(4), 512, 1, 2, 4, (4, 5)),
        signs(range(4), 512, 1, 2, 3, (5, 5)),
        signs(range(4), 512, 1, 2, 3, (4, 6)),
    ]
    for other in others:
        assert abs(float((base * other).mean())) < 0.1


def test_signs_are_balanced() -> None:
    z = signs(range(100), 1000, 0, 0, 0, (0, 0))
    assert set(np.unique(z)) == {-1, 1}
    assert abs(float(z.mean())) < 4 / np.sqrt(z.size)


def test_batch_order_sorts_by_two_words_then_by_number() -> None:
    n, epoch, key = 1000, 3, (8, 9)
    keys = []
    for j in range(n):
        w0, w1, _, _ = philox4x32((j, 2 << 16, epoch, 0), key)
        keys.append((int(w0), int(w1), j))
    expected = [j for _, _, j in sorted(keys)]
    assert batch_order(n, epoch, key).tolist() == expected
    assert batch_order(n, epoch + 1, key).tolist() != expected
    assert sorted(batch_order(n, SPLIT_EPOCH, key).tolist()) == list(range(n))


def test_tensors_beyond_the_address_are_refused() -> None:
    check_address((1 << 18, 1 << 21), 65535, Purpose.SIGNS)
    for shape, tensor in (((1 << 18) + 1, 1), 0), ((1, (1 << 21) + 1), 0), ((1, 1), 65536):
        with pytest.raises(NumericsError):
            check_address(shape, tensor, Purpose.SIGNS)
    check_address((1, 1 << 16), 0, Purpose.GAUSSIAN)
    with pytest.raises(NumericsError, match="too large"):
        check_address((1, (1 << 16) + 1), 0, Purpose.GAUSSIAN, where="conv1.weight")


def test_seeds_have_64_bits() -> None:
    assert key_of(0xFEDCBA9876543210) == (0x76543210, 0xFEDCBA98)
    for seed in (-1, 1 << 64):
        with pytest.raises(NumericsError):
            key_of(seed)
