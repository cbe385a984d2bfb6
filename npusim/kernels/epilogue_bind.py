"""Epilogue records from the requantizers that compile has frozen."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from npusim.ir import Array, Value
from npusim.kernels.dot import CHANNELS
from npusim.kernels.epilogue import (
    EPILOGUE,
    FIXED_AWAY,
    FIXED_DOUBLE,
    FIXED_SINGLE,
    FLOAT_SCALE,
    ONE_STEP,
    TWO_STEP,
)
from npusim.kernels.plan import Builder, record, stored_bias
from npusim.kernels.stream import TIES
from npusim.numerics.lowered import Lowered
from npusim.numerics.neural_art_epilogue import Convolution, OneStep, TwoStep
from npusim.numerics.requant import FixedPoint, FloatScale

FIXED_RULES = {"double": FIXED_DOUBLE, "single": FIXED_SINGLE, "away": FIXED_AWAY}

SIGNED_BIAS = 128
"""From the signed codes of neural-art, int8 or uint8 less 128, to what is stored."""


def padded(values: Array, group: int) -> Array:
    """[group * n] with every group's channels filled up with zeros to whole blocks of 16."""
    per_group = values.reshape(group, -1)
    blocks = -(-per_group.shape[1] // CHANNELS)
    out = np.zeros((group, blocks * CHANNELS), values.dtype)
    out[:, : per_group.shape[1]] = per_group
    return out.ravel()


@singledispatch
def epilogue(
    lowered: Lowered, builder: Builder, output: Value, group: int, constant: int = 0
) -> int:
    """Address of the EPILOGUE record of a requantizer.

    constant: offset of the int64 constants in the packed buffer, for requantizers that have them.
    """
    raise AssertionError(f"no kernel finishes {type(lowered).__name__}")


@epilogue.register
def _(lowered: FloatScale, builder: Builder, output: Value, group: int, constant: int = 0) -> int:
    return _record(
        builder,
        output,
        rule=FLOAT_SCALE,
        low=lowered.lo,
        high=lowered.hi,
        zero_point=lowered.zero_point,
        multiplier=builder.constant(padded(lowered.multiplier, group)),
    )


@epilogue.register
def _(lowered: FixedPoint, builder: Builder, output: Value, group: int, constant: int = 0) -> int:
    return _record(
        builder,
        output,
        low=lowered.lo,
        high=lowered.hi,
        zero_point=lowered.zero_point,
        rule=FIXED_RULES[lowered.rounding],
        multiplier=builder.constant(padded(lowered.multiplier, group)),
        shift=builder.constant(padded(lowered.shift, group)),
    )


@epilogue.register
def _(lowered: TwoStep, builder: Builder, output: Value, group: int, constant: int = 0) -> int:
    return _record(
        builder,
        output,
        rule=TWO_STEP,
        first_shift=lowered.multiplier_shift,
        second_multiplier=lowered.final_multiplier,
        second_shift=lowered.final_shift,
        constant=constant,
        **_steps(lowered, builder, group),
    )


@epilogue.register
def _(lowered: OneStep, builder: Builder, output: Value, group: int, constant: int = 0) -> int:
    return _record(
        builder,
        output,
        rule=ONE_STEP,
        first_shift=lowered.multiplier_shift,
        constant=constant,
        **_steps(lowered, builder, group),
    )


def _steps(lowered: Convolution, builder: Builder, group: int) -> dict[str, int]:
    return {
        "low": lowered.lo,
        "high": lowered.hi,
        "bias": SIGNED_BIAS,
        "multiplier": builder.constant(padded(lowered.multiplier.astype(np.int64), group)),
        "ties": TIES[lowered.ties],
    }


def _record(builder: Builder, output: Value, **fields: int) -> int:
    assert EPILOGUE.names is not None
    unused = dict.fromkeys(EPILOGUE.names, 0)
    return builder.constant(record(EPILOGUE, **{**unused, "bias": stored_bias(output), **fields}))
