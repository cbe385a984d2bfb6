"""Pre-processing: from raw images to a network's input, kept in the network's own file.

The ONNX metadata entry ``npusim.preprocess`` holds a Preprocess as JSON, so that a network's file
says by itself how its input is made and which data set it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from PIL import Image

from npusim.errors import BadShape, DataError
from npusim.files import parse_json
from npusim.ir import Array, Value
from npusim.models.dataset import DataSet

METADATA_KEY = "npusim.preprocess"

LAYOUTS = ("NCHW", "NHWC")
CHANNEL_ORDERS = ("RGB", "BGR", "GRAY")
DTYPES = ("float32", "uint8", "int8")
FILTERS: Mapping[str, Image.Resampling] = {f.name.lower(): f for f in Image.Resampling}

Size = tuple[int, int]


class PreprocessError(DataError):
    """A field of Preprocess has a value that makes no sense. field: its name."""

    def __init__(self, name: str, got: object, wanted: object) -> None:
        super().__init__(f"bad pre-processing: {name}", got=got, wanted=wanted)
        self.field = name


@dataclass(frozen=True)
class Preprocess:
    """How raw images become inputs: resize, crop, channel order, normalise, layout, dtype.

    layout: "NCHW" or "NHWC". An input of two axes takes the same values, flattened.
    scale, mean, std: input = (pixel * scale - mean) / std, in float32; mean and std are one value
        or one a channel, in the channel order of the input.
    resize: (height, width), with the Pillow filter of that name.
    crop: (height, width) cut from the centre, after resizing.
    channel_order: "RGB", "BGR" or "GRAY" (ITU-R 601 luma, as Pillow computes it).
    dtype: "float32", "uint8" or "int8" (integers are rounded half to even and saturated).
    dataset, source: name of the data set, and what ``open_dataset`` opens it with.

    Raises DataError, naming the field, for values that make no sense.
    """

    layout: str = "NCHW"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: Size | None = None
    resize_filter: str = "bilinear"
    crop: Size | None = None
    channel_order: str = "RGB"
    dtype: str = "float32"
    dataset: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        choices = {
            "layout": LAYOUTS,
            "channel_order": CHANNEL_ORDERS,
            "dtype": DTYPES,
            "resize_filter": tuple(FILTERS),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise _bad(name, getattr(self, name), " or ".join(allowed))
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                channels = f"one value, or one for each of {self.channels} channels"
                raise _bad(name, getattr(self, name), channels)
        for name, values in (("scale", (self.scale,)), ("mean", self.mean), ("std", self.std)):
            if not np.isfinite(values).all():
                raise _bad(name, getattr(self, name), "finite numbers")
        if min(self.std) <= 0:
            raise _bad("std", self.std, "values above 0")
        for name in ("resize", "crop"):
            size = getattr(self, name)
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise _bad(name, size, "height and width, 1 or more")

    @property
    def channels(self) -> int:
        return 1 if self.channel_order == "GRAY" else 3

    def to_json(self) -> str:
        """One line of JSON with sorted keys: the same bytes for the same values."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Preprocess:
        """Reads ``to_json``'s text. Raises DataError for other text, naming the field."""
        try:
            record = parse_json(text)
        except ValueError as error:
            raise DataError("not JSON", where=METADATA_KEY, got=error) from None
        if not isinstance(record, dict):
            raise DataError("not a JSON object", where=METADATA_KEY, got=type(record).__name__)
        return cls().overridden(record)

    def overridden(self, changes: Mapping[str, Any]) -> Preprocess:
        """With some fields replaced by values as JSON or a command line gives them.

        Raises DataError for a name that is no field and for a value of the wrong type.
        """
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise _bad(name, "an unknown field", ", ".join(sorted(known)))
        return replace(self, **{name: _typed(name, value) for name, value in changes.items()})

    def image_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """(height, width, channels) after resize and crop of an image of this (H, W, C)."""
        height, width = self.crop or self.resize or shape[:2]
        return height, width, self.channels

    def tensor_shape(self, shape: tuple[int, int, int], axes: int) -> tuple[int, ...]:
        """Shape of one input without its batch axis, where the input has this many axes."""
        height, width, channels = self.image_shape(shape)
        if axes == 2:
            return (height * width * channels,)
        if axes == 3 and channels == 1:
            return (height, width)
        return (channels, height, width) if self.layout == "NCHW" else (height, width, channels)

    def apply(self, images: Array, axes: int = 4) -> Array:
        """Inputs [n, ...] of raw images [n, H, W, C] that share a size.

        axes: number of axes of the network's input, batch included.
        """
        shaped = self._cropped(self._resized(images))
        values = self._normalised(_with_channels(shaped, self.channel_order))
        ordered = values.transpose(0, 3, 1, 2) if self.layout == "NCHW" else values
        shape = self.tensor_shape(tuple(images.shape[1:]), axes)
        return np.ascontiguousarray(ordered).reshape(len(images), *shape)

    def _resized(self, images: Array) -> Array:
        if self.resize is None or tuple(images.shape[1:3]) == self.resize:
            return images
        if images.dtype != np.uint8:
            raise _bad("resize", f"pixels of {images.dtype}", "uint8 pixels")
        height, width = self.resize
        resampling = FILTERS[self.resize_filter]
        resized = [
            np.asarray(
                Image.fromarray(i[:, :, 0] if i.shape[2] == 1 else i).resize(
                    (width, height), resampling
                )
            )
            for i in images
        ]
        return np.stack(resized).reshape(len(images), height, width, images.shape[3])

    def _cropped(self, images: Array) -> Array:
        if self.crop is None:
            return images
        height, width = self.crop
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        return images[:, top : top + height, left : left + width]

    def _normalised(self, images: Array) -> Array:
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        values = (images.astype(np.float32) * np.float32(self.scale) - mean) / std
        if self.dtype == "float32":
            return np.asarray(values)
        limits = np.iinfo(self.dtype)
        codes: Array = np.clip(np.rint(values), limits.min, limits.max).astype(self.dtype)
        return codes


def _bad(name: str, got: object, wanted: object) -> PreprocessError:
    return PreprocessError(name, got, wanted)


def _typed(name: str, value: Any) -> Any:
    """A field's value from JSON (lists for tuples). Raises DataError for the wrong type."""
    try:
        if name == "scale":
            return _number(value)
        if name in ("mean", "std"):
            values = value if isinstance(value, list | tuple) else (value,)
            return tuple(_number(v) for v in values)
        if name in ("resize", "crop"):
            return None if value is None else tuple(_whole(v) for v in value)
    except (TypeError, ValueError):
        raise _bad(name, repr(value), "numbers") from None
    if not isinstance(value, str):
        raise _bad(name, repr(value), "text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _with_channels(images: Array, order: str) -> Array:
    """Images [n, H, W, 1 or 3] in the wanted channel order."""
    grey = images.shape[3] == 1
    if order == "GRAY":
        return images if grey else _luma(images)
    if grey:
        return np.repeat(images, 3, axis=3)
    return images[..., ::-1] if order == "BGR" else images


def _luma(images: Array) -> Array:
    """ITU-R 601 luma of RGB, [n, H, W, 1]; for uint8 in Pillow's 16-bit fixed point."""
    if images.dtype == np.uint8:
        weights = np.array([19595, 38470, 7471], np.uint32)
        luma = ((images * weights).sum(axis=3, keepdims=True) + 0x8000) >> 16
        return np.asarray(luma, np.uint8)
    weighted = images * np.array([0.299, 0.587, 0.114], np.float32)
    return np.asarray(weighted.sum(axis=3, keepdims=True), np.float32)


def check(preprocess: Preprocess, target: Value, dataset: DataSet, classes: int | None) -> None:
    """Refuses a data set that the network cannot take, before an image is decoded.

    Args:
        target: the network's input.
        classes: number of the network's outputs, None where it is not a classifier.

    Raises:
        BadShape: the prepared images have another shape or type than the input.
        DataError: more or other classes than outputs; images that differ in size, not resized.
    """
    shape = _raw_shape(preprocess, dataset)
    before_crop = preprocess.resize or shape[:2]
    if preprocess.crop and (
        preprocess.crop[0] > before_crop[0] or preprocess.crop[1] > before_crop[1]
    ):
        raise _bad("crop", preprocess.crop, f"at most {before_crop[0]},{before_crop[1]}")
    _check_input(preprocess, target, dataset, shape)
    if classes is not None:
        _check_classes(dataset, classes)


def _raw_shape(preprocess: Preprocess, dataset: DataSet) -> tuple[int, int, int]:
    if dataset.shape is not None:
        return dataset.shape
    if preprocess.resize is None:
        first, other = _two_sizes(dataset)
        raise DataError(
            "the images differ in size",
            where=dataset.source,
            got=f"{first} and {other}",
            hint="Give one size with --resize HEIGHT,WIDTH.",
        )
    return (*preprocess.resize, preprocess.channels)


def _two_sizes(dataset: DataSet) -> tuple[str, str]:
    """The first image and the first of another size, as "file HxW" or "image i HxW"."""
    files = getattr(dataset.images, "files", None)
    sizes = []
    for i in range(len(dataset)):
        height, width = dataset.read([i]).shape[1:3]
        name = files[dataset.ids[i]].path.name if files else f"image {i}"
        sizes.append(((height, width), f"{name} {height}x{width}"))
        if sizes[-1][0] != sizes[0][0]:
            break
    return sizes[0][1], sizes[-1][1]


def _check_input(
    preprocess: Preprocess, target: Value, dataset: DataSet, shape: tuple[int, int, int]
) -> None:
    wanted = target.type.shape[1:]
    got = preprocess.tensor_shape(shape, len(target.type.shape))
    if got != wanted:
        raise BadShape(
            f"images of {dataset.name} do not fit the network's input",
            where=target.name,
            got=f"{preprocess.layout} {preprocess.channel_order} {list(got)} an image",
            wanted=list(wanted),
            hint="Set --resize HEIGHT,WIDTH, --layout or --channel-order.",
        )
    if preprocess.dtype != target.type.dtype:
        raise BadShape(
            "the pre-processing makes another type than the network's input",
            where=target.name,
            got=preprocess.dtype,
            wanted=target.type.dtype,
        )


def _check_classes(dataset: DataSet, classes: int) -> None:
    if dataset.classes > classes or (dataset.class_names and dataset.classes != classes):
        raise DataError(
            "the data set and the network differ in their number of classes",
            where=dataset.source,
            got=f"{dataset.classes} classes",
            wanted=f"{classes}, the network's outputs",
        )
