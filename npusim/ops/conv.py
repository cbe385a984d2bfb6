"""Convolution: dense, grouped, depthwise, dilated; one image of NCHW at a time is [C, H, W]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.errors import BadShape
from npusim.ir import Array, Node, Site, TensorType
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_passes import Segment, Window
from npusim.numerics.requant import Requantizer
from npusim.ops import neural_art_weighted
from npusim.ops.base import OnnxRow, OpSpec, Rule, register
from npusim.ops.spatial import pads_of, pair, require_image
from npusim.ops.unit import QOperands, Step, Unit, operands_of
from npusim.ops.weighted import (
    biased,
    centred,
    check_weights,
    lower_fixed,
    lower_float32,
    weight_shape,
)


@dataclass(frozen=True, slots=True)
class ConvAttrs:
    """strides, dilations: (vertical, horizontal). pads: (top, left, bottom, right).

    clamp: smallest and largest code the output may take (a fused Relu or Clip).
    """

    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    clamp: tuple[int, int] = (-128, 127)


def output_size(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Positions of a window along one axis; ``pad`` is the sum of both sides."""
    return (size + pad - dilation * (kernel - 1) - 1) // stride + 1


def infer(site: Site) -> TensorType:
    attrs: ConvAttrs = site.attrs
    n, _, height, width = site.value(0).type.shape
    out_channels, _, kh, kw = weight_shape(site)
    assert height is not None
    assert width is not None
    top, left, bottom, right = attrs.pads
    rows = output_size(height, kh, attrs.strides[0], top + bottom, attrs.dilations[0])
    cols = output_size(width, kw, attrs.strides[1], left + right, attrs.dilations[1])
    return TensorType(site.output.type.dtype, (n, out_channels, rows, cols))


def accumulate(site: Site, x: Array, w: Array) -> Array:
    """Exact int64 sums of (already zero-centred) x [N,C,H,W] and w [O,C/g,kh,kw]."""
    attrs: ConvAttrs = site.attrs
    top, left, bottom, right = attrs.pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    out_channels, _, kh, kw = w.shape
    (sy, sx), (dy, dx) = attrs.strides, attrs.dilations
    rows = output_size(x.shape[2], kh, sy, 0, dy)
    cols = output_size(x.shape[3], kw, sx, 0, dx)
    groups = attrs.group
    xg = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    wg = w.reshape(groups, out_channels // groups, *w.shape[1:])
    total = np.zeros((x.shape[0], groups, out_channels // groups, rows, cols), np.int64)
    for i in range(kh):
        for j in range(kw):
            window = xg[
                :,
                :,
                :,
                i * dy : i * dy + sy * (rows - 1) + 1 : sy,
                j * dx : j * dx + sx * (cols - 1) + 1 : sx,
            ]
            total += np.einsum("ngchw,goc->ngohw", window, wg[:, :, :, i, j], optimize=False)
    return total.reshape(x.shape[0], out_channels, rows, cols)


def macs(site: Site) -> int:
    out = site.output.type.per_image()
    return out * sizes(site)[1]


def sizes(site: Site) -> tuple[int, int]:
    """(output channels, products in one sum)."""
    shape = weight_shape(site)
    return shape[0], int(np.prod(shape[1:]))


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """Exact sums, then the lowered requantizer; padding contributes nothing."""
    acc = biased(accumulate(site, *centred(site, inputs)), inputs, axis=1)
    assert isinstance(lowered, Requantizer)
    return lowered.apply(acc, 1)


def window(site: Site, form: str) -> Window:
    """What the neural-art split of the kernel depends on."""
    attrs: ConvAttrs = site.attrs
    channels, depth, kh, kw = weight_shape(site)
    rows, cols = (int(d or 1) for d in site.output.type.shape[2:])
    height, width = (int(d or 1) for d in site.value(0).type.shape[2:])
    return Window(
        kernel=(kh, kw),
        strides=attrs.strides,
        depth=depth,
        outputs=channels // attrs.group,
        map_size=(height, width),
        output_size=(rows, cols),
        form=form,
        depthwise=attrs.group > 1 and depth == 1,
    )


def segment_sums(site: Site, x: Array, w: Array, segment: Segment) -> Array:
    """Sums over one part of the kernel: its channels of every group, its rows and columns."""
    (top, bottom), (left, right), (first, last) = segment.rows, segment.columns, segment.channels
    part = np.zeros_like(w[:, first:last])
    part[:, :, top:bottom, left:right] = w[:, first:last, top:bottom, left:right]
    grouped = x.reshape(x.shape[0], site.attrs.group, -1, *x.shape[2:])[:, :, first:last]
    return accumulate(site, grouped.reshape(x.shape[0], -1, *x.shape[2:]), part)


NEURAL_ART = neural_art_weighted.Geometry(
    window, lambda site, w: w, segment_sums, axis=1, kernel="conv_bind:bind_conv"
)


def convert(unit: Unit) -> Step:
    """ONNX Conv. Raises UnsupportedOp or BadShape where it is no exact convolution of images."""
    require_image(unit)
    weights, channels = unit.shape(1), unit.shape(0)[1]
    group = int(unit.attr("group", 1))
    if len(weights) != 4 or group < 1 or weights[1] * group != channels or weights[0] % group:
        raise BadShape(
            "Conv: weights do not fit the input",
            where=unit.node.name,
            got=f"weights {list(weights)}, group {group}, {channels} channels",
        )
    check_weights(unit, 1, axis=0, outputs=weights[0])
    kernel = (weights[2], weights[3])
    strides, dilations = pair(unit, "strides"), pair(unit, "dilations")
    if pair(unit, "kernel_shape", kernel) != kernel:
        raise BadShape(
            "Conv: kernel_shape is not the weights'", where=unit.node.name, wanted=list(kernel)
        )
    pads = pads_of(unit, kernel, strides, dilations)
    return Step("conv", ConvAttrs(strides, pads, dilations, group, unit.clamp), unit.names(0, 1, 2))


def from_qlinear(node: Node) -> QOperands:
    """QLinearConv: x, sx, zx, w, sw, zw, sy, zy, bias."""
    x, sx, zx, w, sw, zw, sy, zy, bias = operands_of(node, 8, 9)
    return QOperands("Conv", node.attrs, ((x, sx, zx), (w, sw, zw)), (sy, zy), bias, axes=(None, 0))


SPEC = register(
    OpSpec(
        name="conv",
        summary="Convolution: dense, grouped, depthwise, dilated.",
        attrs=ConvAttrs,
        infer=infer,
        onnx=(
            OnnxRow("Conv", (1, 11, 22), "qdq", convert),
            OnnxRow("QLinearConv", (10,), "qoperator", from_qlinear),
        ),
        rules={
            "float32": Rule(lower_float32(sizes), reference, "conv_bind:bind_conv"),
            "q31-double": Rule(lower_fixed(sizes, "double"), reference, "conv_bind:bind_conv"),
            "q31-single": Rule(lower_fixed(sizes, "single"), reference, "conv_bind:bind_conv"),
            "neural-art": neural_art_weighted.rule(NEURAL_ART),
        },
        macs=macs,
        weight=1,
    )
)
