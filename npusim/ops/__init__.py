"""The operators. Importing this package fills the registry of npusim.ops.base."""

from npusim.ops import (
    activation,
    add,
    avgpool,
    concat,
    conv,
    dequantize,
    gemm,
    global_average_pool,
    maxpool,
    mul,
    pad,
    quantize,
    requantize,
    reshape,
    softmax,
    transpose,
)

__all__ = [
    "activation",
    "add",
    "avgpool",
    "concat",
    "conv",
    "dequantize",
    "gemm",
    "global_average_pool",
    "maxpool",
    "mul",
    "pad",
    "quantize",
    "requantize",
    "reshape",
    "softmax",
    "transpose",
]
