"""The integer cross-entropy."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from slow_reference import sample_loss

from npusim.errors import BadQuantization, DataError
from npusim.zo.loss import (
    FloatCrossEntropy,
    IntegerCrossEntropy,
    check_labels,
    exp2_table,
    log2_table,
)


def random_logits(classes: int, n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Logits of every spread, one-sided and flat ones among them."""
    rng = np.random.default_rng(classes)
    width = rng.integers(1, 129, (n, 1))
    z = rng.integers(-128, 128, (n, classes)) * width // 128
    return z.astype(np.int8), rng.integers(0, classes, n)


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("scale", [1e-4, 0.01, 0.0625, 0.17, 1.0, 9.3, 63.9])
def test_within_a_ten_thousandth_bit_of_float64(classes: int, scale: float) -> None:
    z, labels = random_logits(classes)
    x = z.astype(np.float64) * scale * math.log2(math.e)
    top = x.max(axis=1, keepdims=True)
    exact = np.log2(np.exp2(x - top).sum(axis=1)) + top[:, 0] - x[np.arange(len(z)), labels]
    found = IntegerCrossEntropy.for_scale(scale)(z, labels)
    assert np.abs(found / 65536 - exact).max() <= 1e-4
    assert found.min() >= 0
    assert found.max() < 2**31
    assert found.max() <= IntegerCrossEntropy.for_scale(scale).largest(classes)


def test_tables_have_their_checksums() -> None:
    assert len(log2_table()) == 257
    assert zlib.crc32(log2_table().astype("<i4").tobytes()) == 0x1F588C94
    assert zlib.crc32(exp2_table(0.1).astype("<i4").tobytes()) == 0x710E397D


def test_equals_python_integers() -> None:
    for scale in (0.02, 0.3, 5.0):
        loss = IntegerCrossEntropy.for_scale(scale)
        z, labels = random_logits(10, n=200)
        wanted = [
            sample_loss(row.tolist(), int(y), scale) for row, y in zip(z, labels, strict=True)
        ]
        assert loss(z, labels).tolist() == wanted


def test_a_zero_point_does_not_matter() -> None:
    loss = IntegerCrossEntropy.for_scale(0.1)
    z, labels = random_logits(10, n=100)
    shifted = (z.astype(np.int64) + 128).astype(np.uint8)
    assert (loss(shifted, labels) == loss(z, labels)).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, 64.0, float("nan"), float("inf")])
def test_scales_out_of_range_are_refused(scale: float) -> None:
    with pytest.raises(BadQuantization, match="logits_codes"):
        IntegerCrossEntropy.for_scale(scale, where="logits_codes")


def test_labels_without_an_output_are_refused() -> None:
    check_labels(np.array([0, 9]), 10, "data")
    for labels in ([0, 10], [-1, 3]):
        with pytest.raises(DataError, match="labels do not fit"):
            check_labels(np.array(labels), 10, "data")


def test_the_float_loss_is_the_same_loss() -> None:
    for scale in (0.02, 0.3, 5.0):
        z, labels = random_logits(10, n=500)
        fine = FloatCrossEntropy(scale)
        found = fine(z, labels)
        integer = IntegerCrossEntropy.for_scale(scale)(z, labels)
        assert np.abs(found / 2**32 - integer / 2**16).max() <= 1e-4
        assert found.max() <= fine.largest(10)
