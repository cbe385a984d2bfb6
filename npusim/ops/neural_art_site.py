"""What the neural-art rules read from a graph: scales and codes, all in signed codes."""

from __future__ import annotations

from npusim.errors import BadQuantization
from npusim.ir import Array, Site, Value
from npusim.numerics.neural_art import Output, Tensor

_OFFSETS = {"int8": 0, "uint8": 128}


def offset(value: Value) -> int:
    """What takes the value's codes to signed ones: 128 for uint8.

    Raises BadQuantization for any other type: the NPU's streams are 8 bits wide.
    """
    if value.type.dtype not in _OFFSETS:
        raise BadQuantization(
            "the neural-art profile computes 8-bit tensors only",
            where=value.name,
            got=value.type.dtype,
            wanted="int8 or uint8",
        )
    return _OFFSETS[value.type.dtype]


def tensor(site: Site, index: int) -> Tensor:
    """Scale and zero point of input ``index``."""
    scale, zero_point = site.qparams(index).scalar()
    return Tensor(float(scale), zero_point - offset(site.value(index)))


def output(site: Site, clamp: tuple[int, int] | None = None) -> Output:
    """Scale, zero point and range of the output; clamp: in the output's own codes."""
    scale, zero_point = site.output_qparams.scalar()
    shift = offset(site.output)
    lo, hi = site.output.range if clamp is None else clamp
    return Output(float(scale), zero_point - shift, lo - shift, hi - shift, shift)


def signed(site: Site, index: int, inputs: tuple[Array | None, ...]) -> Array:
    """Codes of input ``index`` as int64 in -128..127."""
    x = inputs[index]
    assert x is not None
    return x - offset(site.value(index))
