"""Corruptions of raw images."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.errors import UsageError
from npusim.models import parse_shifts, shift_images

IMAGES = np.random.default_rng(5).integers(0, 256, (20, 9, 9, 3)).astype(np.uint8)
IDS = np.arange(20)


def shifted(text: str, images: np.ndarray = IMAGES, seed: int = 0) -> np.ndarray:
    return shift_images(images, np.arange(len(images)), parse_shifts(text), seed)


def test_an_image_is_shifted_alike_in_every_batch() -> None:
    shifts = parse_shifts("rotation:20,noise:0.2,contrast:0.5,colour:0.1")
    together = shift_images(IMAGES, IDS, shifts, 3)
    chosen = np.array([17, 2])
    np.testing.assert_array_equal(
        shift_images(IMAGES[chosen], IDS[chosen], shifts, 3), together[chosen]
    )


def test_noise_has_its_deviation_and_depends_on_seed_and_image() -> None:
    grey = np.full((50, 16, 16, 3), 128, np.uint8)
    noisy = shifted("noise:0.1", grey)
    assert abs((noisy / 255.0).std() - 0.1) < 0.001
    assert abs((noisy / 255.0).mean() - 128 / 255) < 0.002
    assert (noisy[0] != noisy[1]).mean() > 0.9
    assert (noisy != shifted("noise:0.1", grey, seed=1)).mean() > 0.9
    twice = shifted("noise:0.1,noise:0.1", grey)
    assert abs((twice / 255.0).std() - 0.1 * np.sqrt(2)) < 0.002


def test_noise_is_the_same_everywhere() -> None:
    """Values computed once: another platform or NumPy must give the same pixels."""
    noisy = shifted("noise:0.1", np.full((2, 2, 2, 1), 100, np.uint8), seed=42)
    assert noisy.ravel().tolist() == [136, 127, 104, 109, 118, 83, 103, 117]


def test_a_right_angle_moves_pixels() -> None:
    np.testing.assert_array_equal(shifted("rotation:90"), np.rot90(IMAGES, axes=(1, 2)))
    np.testing.assert_array_equal(shifted("rotation:-180"), IMAGES[:, ::-1, ::-1])
    np.testing.assert_array_equal(shifted("rotation:0"), IMAGES)


def test_a_small_turn_is_anticlockwise_and_black_outside() -> None:
    image = np.zeros((1, 9, 9, 1), np.uint8)
    image[0, 4, 8] = 255
    turned = shifted("rotation:30", image)[0, :, :, 0]
    assert turned[:4].sum() > 200
    assert turned[5:].sum() == 0
    white = np.full((1, 9, 9, 1), 255, np.uint8)
    assert shifted("rotation:45", white)[0, 0, 0, 0] == 0


def test_contrast_keeps_each_channels_mean() -> None:
    flat = shifted("contrast:0")
    np.testing.assert_array_equal(
        flat, np.broadcast_to(np.rint(IMAGES.mean((1, 2), keepdims=True)), IMAGES.shape)
    )
    np.testing.assert_array_equal(shifted("contrast:1"), IMAGES)
    halved = shifted("contrast:0.5").astype(float)
    assert abs(halved.std() / IMAGES.std() - 0.5) < 0.05


def test_colour_cast_warms() -> None:
    grey = np.full((1, 2, 2, 3), 100, np.uint8)
    assert shifted("colour:0.2", grey)[0, 0, 0].tolist() == [120, 100, 80]
    assert shifted("colour:-0.2", grey)[0, 0, 0].tolist() == [80, 100, 120]


def test_order_counts_and_nothing_is_a_copy_of_the_input() -> None:
    assert (shifted("contrast:0.2,noise:0.2") != shifted("noise:0.2,contrast:0.2")).any()
    assert shifted("") is IMAGES
    assert shifted("noise:0", IMAGES[:0]).shape == (0, 9, 9, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blur:1", "unknown shift.*noise, rotation"),
        ("noise", "noise needs a number"),
        ("noise:much", "noise:NUMBER"),
        ("noise:-0.1", "out of range"),
        ("rotation:nan", "out of range"),
        ("noise:0.1,,", "unknown shift"),
    ],
)
def test_bad_shifts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_shifts(text)


def test_what_cannot_be_shifted_is_refused() -> None:
    with pytest.raises(UsageError, match="only uint8"):
        shifted("noise:0.1", IMAGES.astype(np.float32))
    with pytest.raises(UsageError, match="colour images"):
        shifted("colour:0.1", IMAGES[..., :1])
    with pytest.raises(UsageError, match="negative"):
        shifted("noise:0.1", seed=-1)
