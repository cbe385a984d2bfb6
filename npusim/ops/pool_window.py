"""The sliding window that max and average pooling share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import UnsupportedOp
from npusim.ir import Array, Site, TensorType
from npusim.ops.spatial import pads_of, pair
from npusim.ops.unit import Unit


@dataclass(frozen=True, slots=True)
class PoolAttrs:
    """kernel, strides, dilations: (vertical, horizontal). pads: (top, left, bottom, right).

    ceil_mode: the last window may hang over the padded image.
    count_include_pad: padding counts in an average's divisor (average pooling only).
    clamp: smallest and largest code the output may take.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    clamp: tuple[int, int] = (-128, 127)


def pool_attrs(unit: Unit) -> PoolAttrs:
    """The attributes of an ONNX MaxPool or AveragePool."""
    kernel, strides = pair(unit, "kernel_shape"), pair(unit, "strides")
    dilations = pair(unit, "dilations")
    ceil_mode = bool(unit.attr("ceil_mode", 0))
    return PoolAttrs(
        kernel=kernel,
        strides=strides,
        pads=pads_of(unit, kernel, strides, dilations, ceil_mode=ceil_mode),
        dilations=dilations,
        ceil_mode=ceil_mode and unit.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID"),
        count_include_pad=bool(unit.attr("count_include_pad", 0)),
        clamp=unit.clamp,
    )


def pooled_size(
    size: int, kernel: int, stride: int, begin: int, end: int, dilation: int, ceil_mode: bool
) -> int:
    """Windows along one axis (ONNX: a window must start inside the image or its leading pad)."""
    span = size + begin + end - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count


def infer(site: Site) -> TensorType:
    attrs: PoolAttrs = site.attrs
    n, channels, height, width = site.value(0).type.shape
    assert height is not None
    assert width is not None
    top, left, bottom, right = attrs.pads
    (kh, kw), (sy, sx), (dy, dx) = attrs.kernel, attrs.strides, attrs.dilations
    rows = pooled_size(height, kh, sy, top, bottom, dy, attrs.ceil_mode)
    cols = pooled_size(width, kw, sx, left, right, dx, attrs.ceil_mode)
    return TensorType(site.output.type.dtype, (n, channels, rows, cols))


def output_sizes(site: Site) -> tuple[int, int]:
    """(rows, cols) of the output."""
    rows, cols = infer(site).shape[2:]
    assert rows is not None
    assert cols is not None
    return rows, cols


def padded(site: Site, x: Array, fill: Any) -> Array:
    """x [N, C, H, W] surrounded by ``fill`` as far as any window reaches."""
    attrs: PoolAttrs = site.attrs
    top, left = attrs.pads[:2]
    rows, cols = output_sizes(site)
    height = attrs.strides[0] * (rows - 1) + attrs.dilations[0] * (attrs.kernel[0] - 1) + 1
    width = attrs.strides[1] * (cols - 1) + attrs.dilations[1] * (attrs.kernel[1] - 1) + 1
    bottom = max(0, height - top - x.shape[2])
    right = max(0, width - left - x.shape[3])
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)


def taps(site: Site, x: Array) -> Iterator[Array]:
    """What each position of the window sees of padded x: arrays [N, C, rows, cols], row by row."""
    attrs: PoolAttrs = site.attrs
    rows, cols = output_sizes(site)
    (kh, kw), (sy, sx), (dy, dx) = attrs.kernel, attrs.strides, attrs.dilations
    for i in range(0, kh * dy, dy):
        for j in range(0, kw * dx, dx):
            yield x[:, :, i : i + sy * (rows - 1) + 1 : sy, j : j + sx * (cols - 1) + 1 : sx]


def inside(site: Site) -> Array:
    """How many elements of the image each window sees: int64 [rows, cols]."""
    height, width = (int(d or 1) for d in site.value(0).type.shape[2:])
    image = padded(site, np.ones((1, 1, height, width), np.int64), 0)
    seen: Array = np.sum(list(taps(site, image)), axis=0)[0, 0]
    return seen


def counted(site: Site) -> Array:
    """How many elements each window's mean is over: int64 [rows, cols].

    With count_include_pad it is the whole kernel, even where a last window in ceil_mode hangs over
    the padding: so onnxruntime's QLinearAveragePool.
    """
    attrs: PoolAttrs = site.attrs
    if attrs.count_include_pad:
        return np.full(output_sizes(site), attrs.kernel[0] * attrs.kernel[1], np.int64)
    return inside(site)


def check_windows(site: Site) -> None:
    """Raises UnsupportedOp where a window sees nothing but padding; onnxruntime refuses it too."""
    if not inside(site).all():
        raise UnsupportedOp(
            "a window sees nothing but padding",
            where=site.node.name,
            got=f"pads {list(site.attrs.pads)}, kernel {list(site.attrs.kernel)}",
            wanted="pads smaller than the kernel",
        )
