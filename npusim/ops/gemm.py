"""Fully connected layer: Gemm, and MatMul with constant weights."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ir import Array, Site, TensorType
from npusim.numerics.lowered import Lowered
from npusim.numerics.requant import Requantizer
from npusim.ops.base import OpSpec, Rule, register
from npusim.ops.weighted import biased, centred, lower_fixed, lower_float32, weight_shape


@dataclass(frozen=True, slots=True)
class GemmAttrs:
    """transposed: weights are [outputs, inputs] (ONNX transB=1), else [inputs, outputs].

    clamp: smallest and largest code the output may take (a fused Relu or Clip).
    """

    transposed: bool = True
    clamp: tuple[int, int] = (-128, 127)


def infer(site: Site) -> TensorType:
    rows, cols = site.value(1).type.shape
    outputs = rows if site.attrs.transposed else cols
    return TensorType(site.output.type.dtype, (*site.value(0).type.shape[:-1], outputs))


def macs(site: Site) -> int:
    return site.output.type.per_image() * int(site.value(0).type.shape[-1] or 1)


def sizes(site: Site) -> tuple[int, int]:
    """(outputs, inputs)."""
    rows, cols = weight_shape(site)
    return (rows, cols) if site.attrs.transposed else (cols, rows)


def reference(site: Site, lowered: Lowered, inputs: tuple[Array | None, ...]) -> Array:
    """Exact sums, then the lowered requantizer."""
    x, w = centred(site, inputs)
    acc = biased(x @ (w.T if site.attrs.transposed else w), inputs, axis=-1)
    assert isinstance(lowered, Requantizer)
    return lowered.apply(acc, -1)


SPEC = register(
    OpSpec(
        name="gemm",
        summary="Fully connected layer.",
        attrs=GemmAttrs,
        infer=infer,
        rules={
            "float32": Rule(lower_float32(sizes), reference, "conv_bind:bind_gemm"),
            "q31-double": Rule(
                lower_fixed(sizes, "double", float32_product=True), reference, "conv_bind:bind_gemm"
            ),
            "q31-single": Rule(
                lower_fixed(sizes, "single", float32_product=True), reference, "conv_bind:bind_gemm"
            ),
        },
        macs=macs,
        weight=1,
    )
)
