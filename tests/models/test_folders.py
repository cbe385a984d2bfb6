"""Class folders and indexed folders of images."""

from __future__ import annotations

import csv
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from npusim.errors import DataError
from npusim.models import dataset_splits, open_dataset


def everything(spec: Path, **options: object) -> np.ndarray:
    dataset = open_dataset(str(spec), **options)  # type: ignore[arg-type]
    return dataset.read(np.arange(len(dataset)))


def test_classes_are_the_sorted_folders(class_folders: Path) -> None:
    dataset = open_dataset(str(class_folders))
    assert dataset.class_names == ("cat", "dog", "eel")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.shape == (4, 4, 3)
    assert dataset.source == str(class_folders)
    with Image.open(class_folders / "dog" / "4.png") as image:
        np.testing.assert_array_equal(dataset.read([4])[0], np.asarray(image))


def test_grey_images_have_one_channel_unless_one_is_coloured(class_folders: Path) -> None:
    for path in class_folders.glob("*/*.png"):
        with Image.open(path) as image:
            image.convert("L").save(path)
    assert open_dataset(str(class_folders)).shape == (4, 4, 1)
    Image.new("P", (4, 4)).save(class_folders / "cat" / "0.png", transparency=b"\x00\x80")
    assert everything(class_folders).shape == (9, 4, 4, 3)


def test_split_folders(class_folders: Path, tmp_path: Path) -> None:
    root = tmp_path / "both"
    root.mkdir()
    (root / "train").symlink_to(class_folders)
    (root / "val").symlink_to(class_folders)
    assert dataset_splits(str(root)) == ("train", "val")
    assert open_dataset(str(root), prefer="test").split == "val"
    assert open_dataset(str(root), "train").split == "train"
    with pytest.raises(DataError, match=r"train, val.*--split"):
        open_dataset(str(root))
    with pytest.raises(DataError, match=r"no split 'test'.*train, val"):
        open_dataset(str(root), "test")


def test_a_class_has_one_number_in_all_splits(class_folders: Path, tmp_path: Path) -> None:
    root = tmp_path / "both"
    (root / "test").mkdir(parents=True)
    (root / "train").symlink_to(class_folders)
    for name in ("cat", "eel"):
        (root / "test" / name).symlink_to(class_folders / name)
    dataset = open_dataset(str(root), "test")
    assert dataset.class_names == ("cat", "dog", "eel")
    assert dataset.labels.tolist() == [0, 0, 0, 2, 2, 2]


def test_an_empty_class_is_named(class_folders: Path) -> None:
    (class_folders / "fox").mkdir()
    with pytest.raises(DataError, match=r"fox: the class folder holds no images"):
        open_dataset(str(class_folders))


def test_one_class_only_is_refused(class_folders: Path) -> None:
    for name in ("dog", "eel"):
        (class_folders / name).rename(class_folders.parent / name)
    with pytest.raises(DataError, match="all images are of one class"):
        open_dataset(str(class_folders))


@pytest.mark.parametrize("kept_bytes", [0, 20, 60])
def test_a_corrupt_image_is_named_and_left_out_only_on_request(
    class_folders: Path, kept_bytes: int
) -> None:
    bad = class_folders / "dog" / "4.png"
    bad.write_bytes(bad.read_bytes()[:kept_bytes])
    with pytest.raises(
        DataError, match=r"dog/4\.png: the image cannot be decoded.*skip-corrupt"
    ) as error:
        everything(class_folders)
    assert "identify" not in str(error.value)
    assert ("neither a JPEG nor a PNG" in str(error.value)) == (kept_bytes == 0)
    dataset = open_dataset(str(class_folders), skip_corrupt=True)
    assert dataset.skipped == (str(bad),)
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


def test_a_pipe_among_the_images_is_named_and_not_waited_for(class_folders: Path) -> None:
    os.mkfifo(class_folders / "dog" / "z.png")
    with pytest.raises(DataError, match=r"z\.png: the image cannot be .*not a regular file"):
        open_dataset(str(class_folders))
    dataset = open_dataset(str(class_folders), skip_corrupt=True)
    assert dataset.skipped == (str(class_folders / "dog" / "z.png"),)
    write_index(class_folders, [{"file": f"{c}/z.png", "label": c} for c in ("dog", "cat")])
    with pytest.raises(DataError, match="not a regular file"):
        open_dataset(str(class_folders))


def test_a_truncated_jpeg_is_corrupt(class_folders: Path) -> None:
    path = class_folders / "cat" / "big.jpg"
    noise = np.random.default_rng(1).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"big\.jpg"):
        everything(class_folders)


def test_a_class_whose_every_image_is_corrupt_is_named(class_folders: Path) -> None:
    for path in (class_folders / "eel").iterdir():
        path.write_bytes(b"not an image")
    with pytest.raises(DataError, match="eel: no image of this class"):
        open_dataset(str(class_folders), skip_corrupt=True)


def test_sixteen_bit_images_are_refused(class_folders: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(class_folders / "cat" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png: images of more than 8 bits"):
        open_dataset(str(class_folders))


def write_index(folder: Path, rows: list[dict[str, str]]) -> None:
    with (folder / "index.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_an_index_names_classes_splits_and_digests(class_folders: Path) -> None:
    paths = sorted(class_folders.glob("*/*.png"))
    rows = [
        {
            "file": str(p.relative_to(class_folders)),
            "label": str(10 - int(p.stem)),
            "split": "test" if int(p.stem) % 2 else "train",
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
        }
        for p in paths
    ]
    write_index(class_folders, rows)
    dataset = open_dataset(str(class_folders), "test")
    assert dataset.class_names == tuple(str(i) for i in range(2, 11))
    assert dataset.labels.tolist() == [7, 5, 3, 1]
    Image.new("RGB", (4, 4)).save(paths[1])
    with pytest.raises(DataError, match=r"1\.png.*not the one that index.csv lists"):
        dataset.read([0])


def test_an_index_without_labels_takes_the_folders(class_folders: Path) -> None:
    write_index(class_folders, [{"file": f"cat/{i}.png"} for i in (0, 1)] + [{"file": "dog/4.png"}])
    assert open_dataset(str(class_folders)).labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"file": "../secret.png"}, "outside the folder"),
        ({"file": "/etc/passwd"}, "outside the folder"),
        ({"name": "cat/0.png"}, "lists no files"),
        ({"file": "alone.png"}, "no class"),
    ],
)
def test_a_bad_index_is_refused(class_folders: Path, row: dict[str, str], message: str) -> None:
    write_index(class_folders, [row])
    with pytest.raises(DataError, match=message):
        open_dataset(str(class_folders))


def test_a_listed_file_that_is_missing_is_named(class_folders: Path) -> None:
    write_index(class_folders, [{"file": "cat/0.png"}, {"file": "dog/gone.png"}])
    with pytest.raises(DataError, match=r"gone\.png"):
        open_dataset(str(class_folders))


def test_the_public_sets(shared: Path) -> None:
    cifar = open_dataset(str(shared / "data" / "cifar10"), prefer="test")
    assert (len(cifar), cifar.split, cifar.shape) == (1000, "test", (32, 32, 3))
    assert np.bincount(cifar.labels).tolist() == [100] * 10
    plain = open_dataset(str(shared / "data" / "cifar10" / "test"))
    np.testing.assert_array_equal(plain.read([0, 999]), cifar.read([0, 999]))
    eurosat = open_dataset(str(shared / "data" / "eurosat"))
    assert (len(eurosat), eurosat.shape, eurosat.class_names[0]) == (
        2700,
        (64, 64, 3),
        "AnnualCrop",
    )
    stl = open_dataset(str(shared / "data" / "stl10_examples"))
    assert (len(stl), len(stl.class_names), stl.shape) == (246, 26, (96, 96, 3))
