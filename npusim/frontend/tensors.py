"""Tensors of a file to NumPy arrays, with every declared size checked before it is used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from npusim.errors import BadShape, ModelError
from npusim.ir import Array

REFUSED = ("STRING", "COMPLEX", "FLOAT8", "FLOAT4")
"""How the names of element types begin that nothing here computes with."""


def dtype_name(elem_type: int, where: str) -> str:
    """NumPy's name of an ONNX element type.

    Raises ModelError where the number names no type, or one that nothing here computes with.
    """
    try:
        name = onnx.TensorProto.DataType.Name(elem_type)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        raise ModelError("unknown element type", where=where, got=elem_type) from None
    if name.startswith(REFUSED):
        raise ModelError("tensors of this type are not supported", where=where, got=name.lower())
    return str(dtype.name)


def to_array(tensor: onnx.TensorProto) -> Array:
    """The values of a tensor whose data lie in the message; read-only.

    Raises ModelError or BadShape, naming the tensor, where sizes or types do not fit.
    """
    where = tensor.name or "a constant"
    dtype = dtype_name(tensor.data_type, where)
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims):
        raise BadShape("tensor with a negative size", where=where, got=list(dims))
    _check_length(tensor, dims, dtype, where)
    try:
        array: Array = np.array(numpy_helper.to_array(tensor))
    except Exception as error:  # the onnx package raises many kinds on damaged data
        raise ModelError("tensor cannot be decoded", where=where, got=error) from None
    array.flags.writeable = False
    return array


def _check_length(tensor: onnx.TensorProto, dims: tuple[int, ...], dtype: str, where: str) -> None:
    count = math.prod(dims)
    if not tensor.HasField("raw_data"):
        if count and count > 2 * _typed_values(tensor):
            raise BadShape(
                "tensor holds fewer values than its shape says",
                where=where,
                got=_typed_values(tensor),
                wanted=count,
            )
        return
    bits = 4 if dtype in ("int4", "uint4") else 8 * np.dtype(_np_dtype(tensor)).itemsize
    wanted = (count * bits + 7) // 8
    if len(tensor.raw_data) != wanted:
        raise BadShape(
            "tensor's data do not have the length its shape says",
            where=where,
            got=f"{len(tensor.raw_data)} bytes",
            wanted=f"{wanted} bytes",
        )


def _np_dtype(tensor: onnx.TensorProto) -> Any:
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)


def _typed_values(tensor: onnx.TensorProto) -> int:
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    return max(len(getattr(tensor, f)) for f in (*fields, "string_data"))
