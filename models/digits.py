"""scikit-learn's handwritten digits: 1,797 grey images of 8x8, the built-in data set.

Source: UCI Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak), CC BY 4.0. Values
0..16 are spread over 0..255. The split is this package's own: 797 images, chosen once, are held
out as "test"; the packaged network was pre-trained on the 1,000 of "train" only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from npusim.models.dataset import ArrayImages, DataSet, limited, make_dataset

NAME = "digits"
SPLITS = ("test", "train")
TRAIN_IMAGES = 1000
SPLIT_SEED = 0


@cache
def _all_digits() -> DataSet:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255.0 / 16.0)).astype(np.uint8)
    pixels.setflags(write=False)
    names = tuple(str(i) for i in range(10))
    return make_dataset(NAME, NAME, "", ArrayImages(pixels[..., None]), bunch.target, names)


def load_digits_split(split: str) -> DataSet:
    """ "train" (1,000 images) or "test" (the other 797): stratified, uint8 [n, 8, 8, 1]."""
    whole = _all_digits()
    train = limited(whole, TRAIN_IMAGES, SPLIT_SEED)
    if split == "train":
        return replace(train, split="train")
    rest = np.setdiff1d(whole.ids, train.ids)
    return replace(whole.subset(rest), split="test")
