"""Reading the window attributes that ONNX's convolutions and poolings share."""

from __future__ import annotations

from npusim.errors import BadShape
from npusim.ops.unit import Unit

Pair = tuple[int, int]


def require_image(unit: Unit) -> Pair:
    """(height, width) of the first input, which must be [N, C, H, W].

    Raises UnsupportedOp for sequences and volumes.
    """
    shape = unit.shape(0)
    if len(shape) != 4:
        raise unit.refused(
            "only two-dimensional images are supported", got=list(shape), wanted="[N, C, H, W]"
        )
    return shape[2], shape[3]


def pair(unit: Unit, name: str, default: Pair = (1, 1)) -> Pair:
    """A (vertical, horizontal) attribute of positive integers."""
    values = unit.attr(name)
    if values is None:
        return default
    if len(values) != 2 or min(values) < 1:
        raise BadShape(f"{unit.node.op}: bad {name}", where=unit.node.name, got=list(values))
    return int(values[0]), int(values[1])


def pads_of(
    unit: Unit, kernel: Pair, strides: Pair, dilations: Pair, *, ceil_mode: bool = False
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right), with auto_pad worked out.

    Raises BadShape or UnsupportedOp where the attributes make no sense.
    """
    auto = unit.attr("auto_pad", "NOTSET")
    sizes = require_image(unit)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sides = [
            _same(size, k, s, d, auto == "SAME_LOWER")
            for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        return sides[0][0], sides[1][0], sides[0][1], sides[1][1]
    if auto not in ("NOTSET", "VALID"):
        raise unit.refused("unknown auto_pad", got=auto)
    pads = tuple(unit.attr("pads") or ()) if auto == "NOTSET" else ()
    pads = tuple(int(p) for p in pads or (0, 0, 0, 0))
    if len(pads) != 4 or min(pads) < 0:
        raise BadShape(f"{unit.node.op}: bad pads", where=unit.node.name, got=list(pads))
    for i, size in enumerate(sizes):
        reach = dilations[i] * (kernel[i] - 1) + 1
        if size + pads[i] + pads[i + 2] < reach and not ceil_mode:
            raise BadShape(
                f"{unit.node.op}: window is larger than the padded image",
                where=unit.node.name,
                got=reach,
                wanted=f"at most {size + pads[i] + pads[i + 2]}",
            )
    return pads[0], pads[1], pads[2], pads[3]


def _same(size: int, kernel: int, stride: int, dilation: int, lower: bool) -> Pair:
    """Padding that makes ceil(size / stride) windows; the odd one after the image, or before."""
    windows = -(-size // stride)
    total = max(0, (windows - 1) * stride + dilation * (kernel - 1) + 1 - size)
    small = total // 2
    return (total - small, small) if lower else (small, total - small)


def require_channels_first(unit_op: str, where: str, channels_last: int) -> None:
    """Raises BadShape for the NHWC variants of onnxruntime's own operators."""
    if channels_last:
        raise BadShape(
            f"{unit_op} with channels_last is not supported",
            where=where,
            hint="Export the network with NCHW operators.",
        )
