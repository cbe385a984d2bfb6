"""Mutants that no test can tell from the original, with the reason of each."""

from __future__ import annotations

_LOWERING = "neural_art_lowering.py"
_TABLES = "neural_art_tables.py"
_FREE_AXIS = "NumPy takes any negative number for the free axis of a reshape"
_POSITIVE = "ties of positive numbers go up either way"

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "neural_art_epilogue.py",
        "Convolution.changed",
        (
            "for old_depth, new_depth in "
            "((np.prod(self.channels[0]), np.prod(c)) for c in new.channels):"
        ),
        "0 -> -1",
    ): "the channels of every piece have the same product: split makes them so, changed keeps them",
    (
        "neural_art_epilogue.py",
        "MulSteps.apply",
        "product = saturate16(SHIFTS[self.ties](x1 * centred, self.shift)).values",
        "no saturate16",
    ): "a code times a centred code is at most 128 * 255 = 32640, which int16 holds",
    (
        _LOWERING,
        "round_real",
        "whole = np.copysign(np.floor(np.abs(values) + 0.5), values)",
        "floor(a, ...) -> a",
    ): "the fraction of a magnitude is dropped by the conversion to int64 too",
    (
        _LOWERING,
        "sum_shift",
        "totals = np.abs(weights.reshape(weights.shape[0], -1).sum(axis=1))",
        "1 -> 2",
    ): _FREE_AXIS,
    **{
        (_LOWERING, function, line, "'half_away' -> 'half_up'"): _POSITIVE
        for function, line in (
            ("normal_shift", 'rounded = round_real(math.ldexp(ratio, shift), "half_away")'),
            ("bias_gain", 'return round_real(np.minimum(exact, GAIN_MAX), "half_away")'),
        )
    },
    (
        _LOWERING,
        "product_shift",
        "while int(rounding.shift_half_away(first * second, shift)) > rounding.INT16_MAX:",
        "shift_half_away -> shift_half_up",
    ): _POSITIVE,
    (
        "neural_art_passes.py",
        "largest_divisor",
        "return next(d for d in range(limit, 0, -1) if number % d == 0)",
        "0 -> -1",
    ): "the search ends at 1, which divides every number",
    (
        "overrides.py",
        "_items",
        "if old and isinstance(old[0], Lowered) and isinstance(value, dict):",
        "0 -> -1",
    ): "the items of a tuple are all numbers of steps, or none is",
    (
        "requant.py",
        "mean_float32",
        "return np.float32(sx / np.float32(sy * np.float32(positions)))",
        "float32 -> float64 #2",
    ): "float64 has over twice the bits of float32, so that a quotient rounded twice is the same",
    (
        "rounding.py",
        "fused_multiply_add",
        "toward = np.where(error > 0, np.inf, -np.inf)",
        "Gt -> GtE",
    ): "it is read where the error is not 0",
    (
        "requant.py",
        "prove_accumulator",
        (
            "largest_bias = 0 if bias is None else "
            "int(np.max(np.abs(bias.astype(np.int64)), initial=0))"
        ),
        "0 -> -1 #2",
    ): "a bias has a magnitude of 0 or more in every channel",
    **{
        (
            "requant.py",
            "prove_sum",
            "largest = largest_offset(site.value(0).range, site.qparams(0).zero_points())",
            change,
        ): "an operator that sums codes has one input, the first and the last"
        for change in ("0 -> -1", "0 -> -1 #2")
    },
    **{
        (
            "rounding.py",
            "saturating_rounding_doubling_high_multiply",
            "nudged = product + np.where(product >= 0, 2**30, 1 - 2**30)",
            change,
        ): "products of 0 and -1 are truncated to 0 with either nudge"
        for change in ("GtE -> Gt", "0 -> 1", "0 -> -1")
    },
    (
        _TABLES,
        "RoundedTable.apply",
        "values: Int64 = self.codes[x + 128]",
        "Add -> Sub",
    ): "from -256 to -1 an index counts from the end of 256 codes: the same ones",
    (
        _TABLES,
        "QuadraticTable.apply",
        "position = x + 128",
        "Add -> Sub",
    ): "256 less is 16 segments less, counted from the end, and the same remainder",
    (
        _TABLES,
        "QuadraticTable.apply",
        "a, b, c = (self.rows.reshape(-1, 3)[row, i] for i in range(3))",
        "1 -> 2",
    ): _FREE_AXIS,
    (
        "neural_art_passes.py",
        "channel_passes",
        "for passes in range(1, depth + 1)",
        "1 -> 2 #2",
    ): "depth + 1 passes never divide the depth",
}
"""(file, function, source line, change) -> why it computes the same."""
