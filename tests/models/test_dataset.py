"""Subsets, splits and hashes of data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import DataError, UsageError
from npusim.models import DataSet, limited, open_dataset, train_validation_split
from npusim.models.dataset import ArrayImages, make_dataset, stable_keys


def numbered(labels: list[int]) -> DataSet:
    """Images whose pixels are their place."""
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return make_dataset("numbered", "numbered", "", ArrayImages(pixels), np.array(labels))


def test_stable_keys_are_splitmix64() -> None:
    """The first outputs of SplitMix64 seeded 0, from its authors' C code, applied to itself."""
    first = 0xE220A8397B1DCDAF
    assert int(stable_keys(0, np.array([0]))[0]) == _splitmix64(first)
    assert _splitmix64(0) == first


def _splitmix64(state: int) -> int:
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60).filter(lambda v: len(set(v)) > 1),
    st.integers(1, 60),
    st.integers(0, 2**64 - 1),
)
def test_a_limit_keeps_the_proportions(labels: list[int], n: int, seed: int) -> None:
    whole = numbered(labels)
    part = limited(whole, n, seed)
    assert len(part) == min(n, len(labels))
    assert (np.diff(part.ids) > 0).all()
    np.testing.assert_array_equal(part.read(np.arange(len(part))).ravel(), part.ids)
    np.testing.assert_array_equal(part.labels, whole.labels[part.ids])
    share = np.bincount(labels, minlength=5) * (len(part) / len(labels))
    assert (np.abs(np.bincount(part.labels, minlength=5) - share) < 1.0).all()


def test_the_split_is_the_seeds_alone() -> None:
    whole = numbered([i % 3 for i in range(90)])
    train, validation = train_validation_split(whole, 0.2, 7)
    assert sorted([*train.ids, *validation.ids]) == list(range(90))
    assert np.bincount(validation.labels).tolist() == [6, 6, 6]
    assert validation.ids.tolist() == train_validation_split(whole, 0.2, 7)[1].ids.tolist()
    assert validation.ids.tolist() != train_validation_split(whole, 0.2, 8)[1].ids.tolist()


def test_an_image_stays_on_its_side_when_the_set_is_reordered() -> None:
    """The choice hangs on an image's id, not on its place in the subset."""
    whole = numbered([i % 2 for i in range(40)])
    reversed_set = whole.subset(np.arange(40)[::-1])
    assert set(limited(whole, 10, 1).ids) == set(limited(reversed_set, 10, 1).ids)


def test_a_part_must_not_be_empty() -> None:
    whole = numbered([0, 1, 0])
    with pytest.raises(UsageError, match="between 0 and 1"):
        train_validation_split(whole, 1.0)
    with pytest.raises(DataError, match="too few images"):
        train_validation_split(whole, 0.1)
    with pytest.raises(UsageError, match="--limit"):
        limited(whole, 0)


def test_the_hash_is_of_the_content(class_folders: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(class_folders))
    images = dataset.read(np.arange(9))
    names = np.array([n.encode() for n in dataset.class_names])
    np.savez(tmp_path / "same.npz", x=images, y=dataset.labels, class_names=names)
    assert open_dataset(str(tmp_path / "same.npz")).content_hash() == dataset.content_hash()
    images[8, 3, 3, 2] ^= 1
    np.savez(tmp_path / "other.npz", x=images, y=dataset.labels, class_names=names)
    assert open_dataset(str(tmp_path / "other.npz")).content_hash() != dataset.content_hash()
    assert dataset.subset([1, 0]).content_hash() != dataset.subset([0, 1]).content_hash()


def test_the_digits_are_built_in_and_their_splits_disjoint() -> None:
    train, test = open_dataset("digits", "train"), open_dataset("digits", "test")
    assert (len(train), len(test), train.shape) == (1000, 797, (8, 8, 1))
    assert not set(train.ids) & set(test.ids)
    assert (train.images.dtype, train.read([0]).max()) == ("uint8", 255)
    with pytest.raises(DataError, match=r"no split 'val'.*test, train"):
        open_dataset("digits", "val")
