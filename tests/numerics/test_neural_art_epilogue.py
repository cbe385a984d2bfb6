"""The int64 references against plain Python integers, one value at a time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import UsageError
from npusim.numerics.lowered import lowering_from_json, lowering_to_json
from npusim.numerics.neural_art_epilogue import (
    AddStep,
    GlobalAverage,
    Joined,
    Keep,
    MulSteps,
    OneStep,
    Rescale,
    TwoStep,
    WindowAverage,
    chain,
    saturate16,
)
from npusim.numerics.neural_art_passes import Segment
from npusim.numerics.requant import read_only

TIES = st.sampled_from(["half_away", "half_up", "half_even"])
CODES = st.integers(-128, 127)


def shifted(value: int, shift: int, how: str) -> int:
    """value / 2**shift to an integer, in the plainest way there is."""
    if how == "floor" or shift == 0:
        return value >> shift
    half = 1 << (shift - 1)
    if how == "half_away":
        return (abs(value) + half >> shift) * (1 if value >= 0 else -1)
    if how == "half_up":
        return value + half >> shift
    down, rest = value >> shift, value % (1 << shift)
    return down + (rest > half or (rest == half and down % 2 == 1))


def clip(value: int, lo: int, hi: int) -> int:
    return max(lo, min(hi, value))


def sat16(value: int) -> int:
    return clip(value, -(2**15), 2**15 - 1)


def one(value: int) -> Any:
    """An array [1, 1] of one value."""
    return np.array([[value]], np.int64)


def near_ties(shift: int) -> st.SearchStrategy[int]:
    """Sums at and beside every tie of ``shift`` bits, inside and outside of int16."""
    unit = 1 << shift
    return st.builds(
        lambda k, half, off: k * unit + half * (unit >> 1) + off,
        st.integers(-(2**16), 2**16),
        st.integers(0, 1),
        st.integers(-1, 1),
    )


def segment(piece: int, index: int) -> Segment:
    return Segment(piece, index, (0, 1), (0, 1), (0, 1), 1)


SHARED: dict[str, Any] = {
    "form": "unsigned", "rows": (1,), "columns": (1,), "channels": ((1, 1, 1),), "shift": 0,
    "ties": "half_away", "lo": -128, "hi": 127, "offset": 0, "dropped": 0,
}  # fmt: skip


def arrays(**numbers: int | list[int]) -> dict[str, Any]:
    return {k: read_only(np.atleast_1d(v), np.int64) for k, v in numbers.items()}


def two_step(**changes: Any) -> TwoStep:
    numbers: dict[str, Any] = {
        "multiplier_shift": 15, "mid_exponent": 1, "final_multiplier": 16384, "final_shift": 20,
        **arrays(multiplier=20000, constant=0, bias=0, gain=0),
    }  # fmt: skip
    return TwoStep(**SHARED | numbers | changes)


def one_step(**changes: Any) -> OneStep:
    numbers = {"multiplier_shift": 19, **arrays(multiplier=20000, constant=0, bias=0, gain=0)}
    return OneStep(**SHARED | numbers | changes)


def test_saturation_is_counted() -> None:
    values = np.array([-(2**15) - 1, -(2**15), 0, 2**15 - 1, 2**15, 2**40])
    stream = saturate16(values)
    assert stream.values.tolist() == [-(2**15), -(2**15), 0, 2**15 - 1, 2**15 - 1, 2**15 - 1]
    assert stream.saturated == 3


@settings(max_examples=80, deadline=None)
@given(data=st.data(), shift=st.integers(0, 8), ties=TIES)
def test_chain(data: st.DataObject, shift: int, ties: str) -> None:
    passes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    total, saturated, sums = 0, 0, []
    for piece, count in enumerate(passes):
        x16 = 0
        for index in range(count):
            acc = data.draw(near_ties(shift))
            sums.append((segment(piece, index), one(acc)))
            exact = shifted(acc + (x16 << shift), shift, ties)
            x16 = sat16(exact)
            saturated += x16 != exact
        exact = total + x16
        total = sat16(exact)
        saturated += exact != total
    stream = chain(iter(sums), shift, ties)
    assert stream.values.tolist() == [[total]]
    assert stream.saturated == saturated


def test_a_pass_rounds_with_the_sign_of_the_total() -> None:
    """-1.5 alone rounds to -2; with a carried 2 the total 0.5 rounds to 1, not to 2 - 2."""
    stream = chain([(segment(0, 0), one(4)), (segment(0, 1), one(-3))], 1, "half_away")
    assert stream.values.tolist() == [[1]]


def test_pieces_are_rounded_apart_and_their_sum_saturates() -> None:
    rounded = chain([(segment(0, 0), one(1)), (segment(1, 0), one(1))], 1, "half_away")
    assert rounded.values.tolist() == [[2]]
    large = chain([(segment(0, 0), one(30000)), (segment(1, 0), one(30000))], 0, "half_away")
    assert (large.values.tolist(), large.saturated) == ([[32767]], 1)


@settings(max_examples=80, deadline=None)
@given(
    x16=st.integers(-(2**15), 2**15 - 1),
    multiplier=st.integers(1, 2**15 - 1),
    multiplier_shift=st.integers(0, 20),
    final=st.integers(2**14, 2**15 - 1),
    final_shift=st.integers(0, 24),
    constant=st.integers(-(2**31), 2**31 - 1),
    ties=TIES,
    bounds=st.tuples(CODES, CODES).map(sorted),
    offset=st.sampled_from([0, 128]),
)
def test_two_step(
    x16: int, multiplier: int, multiplier_shift: int, final: int, final_shift: int, constant: int,
    ties: str, bounds: list[int], offset: int,
) -> None:  # fmt: skip
    layer = two_step(
        ties=ties, multiplier_shift=multiplier_shift, final_multiplier=final,
        final_shift=final_shift, lo=bounds[0], hi=bounds[1], offset=offset,
        **arrays(multiplier=multiplier, constant=constant, bias=0, gain=0),
    )  # fmt: skip
    exact = shifted(multiplier * x16, multiplier_shift, ties)
    y16 = sat16(exact)
    code = clip(shifted(final * y16 + constant, final_shift, ties), *bounds) + offset
    found = layer.requantize(one(x16), None, 1)
    assert found.values.tolist() == [[code]]
    assert found.saturated == (y16 != exact)


@settings(max_examples=80, deadline=None)
@given(
    x16=st.integers(-(2**15), 2**15 - 1),
    multiplier=st.integers(1, 2**15 - 1),
    shift=st.integers(0, 24),
    constant=st.integers(-(2**31), 2**31 - 1),
    ties=TIES,
    bounds=st.tuples(CODES, CODES).map(sorted),
    offset=st.sampled_from([0, 128]),
)
def test_one_step(
    x16: int, multiplier: int, shift: int, constant: int, ties: str, bounds: list[int], offset: int
) -> None:
    layer = one_step(
        ties=ties, multiplier_shift=shift, lo=bounds[0], hi=bounds[1], offset=offset,
        **arrays(multiplier=multiplier, constant=constant, bias=0, gain=0),
    )  # fmt: skip
    code = clip(shifted(multiplier * x16 + constant, shift, ties), *bounds) + offset
    found = layer.requantize(one(x16), None, 1)
    assert (found.values.tolist(), found.saturated) == ([[code]], 0)


@settings(max_examples=60, deadline=None)
@given(unit=st.integers(-200, 200), half=st.integers(-1, 1), ties=TIES)
def test_output_ties(unit: int, half: int, ties: str) -> None:
    """x16 * 2**14 + C around every half step of 2**20."""
    constant = (unit << 20) + (1 << 19) + half
    layer = one_step(
        ties=ties, multiplier_shift=20, **arrays(multiplier=1, constant=constant, bias=0, gain=0)
    )
    assert layer.apply(one(0)).item() == clip(shifted(constant, 20, ties), -128, 127)


@pytest.mark.parametrize("make", [one_step, two_step])
def test_channels_lie_along_the_axis(make: Any) -> None:
    layer = make(
        **arrays(multiplier=[16384, 20000], constant=[0, 5 << 20], bias=[0, 0], gain=[0, 0])
    )
    x16 = np.arange(-4, 4).reshape(2, 2, 2) * 4000
    first = layer.apply(x16, axis=0)
    last = layer.apply(np.moveaxis(x16, 0, -1), axis=-1)
    assert np.array_equal(np.moveaxis(last, -1, 0), first)
    assert not np.array_equal(layer.apply(x16, axis=1), first)
    assert np.array_equal(layer.apply(x16), layer.apply(x16, axis=1))


class TestBias:
    @settings(max_examples=60, deadline=None)
    @given(
        gain=st.integers(0, 2**23),
        old=st.integers(-(2**31), 2**31 - 1),
        new=st.integers(-(2**31), 2**31 - 1),
        constant=st.integers(-(2**31), 2**31 - 1),
    )
    def test_a_new_bias_moves_the_constant(
        self, gain: int, old: int, new: int, constant: int
    ) -> None:
        layer = one_step(**arrays(multiplier=1, constant=constant, bias=old, gain=gain))
        exact = constant + ((gain * (new - old) + 128) >> 8)
        found = layer.constants(np.array([new]))
        assert found.values.tolist() == [clip(exact, -(2**31), 2**31 - 1)]
        assert found.saturated == (found.values[0] != exact)

    def test_the_bias_of_the_file_changes_nothing(self) -> None:
        layer = one_step(**arrays(multiplier=1, constant=12345, bias=77, gain=999))
        assert layer.constants(np.array([77])).values.tolist() == [12345]
        given = layer.constants(None)
        assert (given.values.tolist(), given.saturated) == ([12345], 0)

    @pytest.mark.parametrize(("steps", "moved"), [(-3, -1), (-1, 0), (1, 1), (3, 2)])
    def test_half_a_unit_of_the_constant_goes_up(self, steps: int, moved: int) -> None:
        layer = one_step(**arrays(multiplier=1, constant=0, bias=10, gain=128))
        assert layer.constants(np.array([10 + steps])).values.tolist() == [moved]

    @pytest.mark.parametrize("make", [one_step, two_step])
    def test_saturation_of_the_constant_is_counted_once(self, make: Any) -> None:
        layer = make(**arrays(multiplier=16384, constant=2**31 - 1, bias=0, gain=256))
        found = layer.requantize(one(0), np.array([1]), 1)
        assert (found.values.item(), found.saturated) == (127, 0)
        assert layer.constants(np.array([1])).saturated == 1
        assert layer.apply(one(0), np.array([-(2**31) + 1])).item() == 0


class TestChangedNumbers:
    def test_a_new_shift_keeps_the_scale_of_two_steps(self) -> None:
        layer = two_step(shift=3)
        moved = layer.changed(shift=5)
        assert (moved.shift, moved.multiplier_shift) == (5, 13)
        assert moved.constant.tolist() == layer.constant.tolist()
        assert layer.changed(shift=5, multiplier_shift=15).multiplier_shift == 15

    def test_a_new_shift_keeps_the_scale_of_one_step(self) -> None:
        layer = one_step(shift=3, **arrays(multiplier=20000, constant=-1001, bias=0, gain=33))
        down, up = layer.changed(shift=4), layer.changed(shift=2)
        assert (down.multiplier_shift, down.constant.tolist(), down.gain.tolist()) == (
            18,
            [-501],
            [16],
        )
        assert (up.multiplier_shift, up.constant.tolist(), up.gain.tolist()) == (20, [-2002], [66])
        given = layer.changed(shift=4, constant=layer.constant)
        assert (given.constant.tolist(), given.gain.tolist()) == ([-1001], [16])
        raw = layer.changed(shift=4, multiplier_shift=19)
        assert (raw.multiplier_shift, raw.constant.tolist()) == (19, [-1001])

    def test_another_split(self) -> None:
        layer = one_step(rows=(3, 2), columns=(5,), channels=((8, 2, 1), (8, 2, 1)))
        assert layer.changed(channels=((4, 2, 2), (8, 1, 2))).channels == ((4, 2, 2), (8, 1, 2))
        whole = layer.changed(rows=(5,), channels=((16, 1, 1),))
        assert [s.rows for s in whole.segments()] == [(0, 5)]
        for change in (
            {"rows": (3, 3)},
            {"columns": (4,)},
            {"channels": ((8, 2, 1), (8, 1, 1))},
            {"rows": (5,)},
            {"channels": ((8, 2, 1),)},
        ):
            with pytest.raises(UsageError):
                layer.changed(**change)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("shift", -1), ("shift", 32), ("multiplier_shift", 32), ("ties", "up"), ("lo", -129),
            ("hi", 128), ("rows", (0, 1)), ("channels", ((-1, -1, 1),)),
        ],
    )  # fmt: skip
    def test_numbers_that_do_not_fit(self, name: str, value: Any) -> None:
        with pytest.raises(UsageError, match=name):
            one_step(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("multiplier", 2**15), ("multiplier", -(2**15) - 1), ("constant", 2**31),
            ("constant", -(2**31) - 1), ("bias", 2**31), ("gain", 2**30 + 1), ("gain", -1),
        ],
    )  # fmt: skip
    def test_arrays_that_do_not_fit(self, name: str, value: int) -> None:
        with pytest.raises(UsageError, match=name):
            one_step(**arrays(**{name: value}))

    @pytest.mark.parametrize("multiplier", [[0, 2**15], [2**15, 0], [0, -(2**15) - 1]])
    def test_one_number_of_many_that_does_not_fit(self, multiplier: list[int]) -> None:
        with pytest.raises(UsageError, match="multiplier"):
            one_step(**arrays(multiplier=multiplier))

    def test_the_widest_numbers_fit(self) -> None:
        layer = one_step(
            shift=31, multiplier_shift=31,
            **arrays(multiplier=2**15 - 1, constant=-(2**31), bias=2**31 - 1, gain=2**30),
        )  # fmt: skip
        assert layer.apply(one(2**15 - 1)).item() == shifted(
            (2**15 - 1) ** 2 - 2**31, 31, "half_up"
        )


def rescale(**changes: Any) -> Rescale:
    numbers: dict[str, Any] = {
        "multiplier": 16384, "pre_shift": 0, "constant": 0, "shift": 14, "ties": "half_away",
        "pre_rounding": "floor", "lo": -128, "hi": 127, "offset": 0,
    }  # fmt: skip
    return Rescale(**numbers | changes)


@settings(max_examples=80, deadline=None)
@given(
    x=st.integers(-(2**15), 2**15 - 1),
    multiplier=st.integers(2**14, 2**15 - 1),
    pre_shift=st.integers(0, 8),
    constant=st.integers(-(2**22), 2**22),
    shift=st.integers(0, 20),
    ties=TIES,
    pre_rounding=st.sampled_from(["floor", "half_away", "half_up", "half_even"]),
    bounds=st.tuples(CODES, CODES).map(sorted),
    offset=st.sampled_from([0, 128]),
)
def test_rescale(
    x: int, multiplier: int, pre_shift: int, constant: int, shift: int, ties: str,
    pre_rounding: str, bounds: list[int], offset: int,
) -> None:  # fmt: skip
    step = rescale(
        multiplier=multiplier, pre_shift=pre_shift, constant=constant, shift=shift, ties=ties,
        pre_rounding=pre_rounding, lo=bounds[0], hi=bounds[1], offset=offset,
    )  # fmt: skip
    total = shifted(multiplier * x, pre_shift, pre_rounding) + constant
    assert step.apply(one(x)).item() == clip(shifted(total, shift, ties), *bounds) + offset


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("floor", [-2, -1, 0, 1]), ("half_away", [-2, -1, 1, 2]), ("half_up", [-1, 0, 1, 2]),
        ("half_even", [-2, 0, 0, 2]),
    ],
)  # fmt: skip
def test_roundings_by_name(how: str, codes: list[int]) -> None:
    """-1.5, -0.5, 0.5 and 1.5, once in the pre-shift and once in the last shift."""
    x = np.array([-3, -1, 1, 3])
    early = rescale(multiplier=1, pre_shift=1, shift=0, pre_rounding=how)
    assert early.apply(x).tolist() == codes
    assert rescale(multiplier=1, shift=1, ties=how).apply(x).tolist() == codes


def test_keep() -> None:
    assert Keep(-100, 50, 128).apply(np.array([-128, 0, 127])).tolist() == [28, 128, 178]


@settings(max_examples=80, deadline=None)
@given(
    x=st.tuples(CODES, CODES),
    multipliers=st.tuples(st.integers(2**14, 2**15 - 1), st.integers(2**14, 2**15 - 1)),
    pre=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    constant=st.integers(-(2**15) + 1, 2**15 - 1),
    constant_shift=st.integers(0, 9),
    shift=st.integers(0, 15),
    ties=TIES,
    pre_rounding=st.sampled_from(["floor", "half_away"]),
    bounds=st.tuples(CODES, CODES).map(sorted),
    offset=st.sampled_from([0, 128]),
)
def test_add(
    x: tuple[int, int], multipliers: tuple[int, int], pre: tuple[int, int], constant: int,
    constant_shift: int, shift: int, ties: str, pre_rounding: str, bounds: list[int], offset: int,
) -> None:  # fmt: skip
    step = AddStep(
        multipliers, pre, constant, constant_shift, shift, ties, pre_rounding, *bounds, offset
    )
    total = constant << constant_shift
    for code, multiplier, p in zip(x, multipliers, pre, strict=True):
        total += shifted(multiplier * code, p, pre_rounding)
    expected = clip(shifted(total, shift, ties), *bounds) + offset
    assert step.apply(one(x[0]), one(x[1])).item() == expected


@settings(max_examples=80, deadline=None)
@given(
    x=st.tuples(CODES, CODES),
    zeros=st.tuples(CODES, CODES),
    shift=st.integers(0, 3),
    ties=TIES,
    last=st.integers(0, 15),
)
def test_mul(x: tuple[int, int], zeros: tuple[int, int], shift: int, ties: str, last: int) -> None:
    step = MulSteps(zeros, shift, ties, rescale(shift=last, ties=ties))
    centred = x[1] - zeros[1]
    product = sat16(shifted(x[0] * centred, shift, ties))
    middle = sat16(shifted((product << shift) - zeros[0] * centred, shift, ties))
    expected = clip(shifted(16384 * middle, last, ties), -128, 127)
    assert step.apply(one(x[0]), one(x[1])).item() == expected


@settings(max_examples=60, deadline=None)
@given(
    sums=st.integers(-128 * 4096, 127 * 4096),
    multiplier=st.integers(2**14, 2**15 - 1),
    shift=st.integers(4, 18),
    ties=TIES,
)
def test_global_average(sums: int, multiplier: int, shift: int, ties: str) -> None:
    last = rescale(pre_shift=8, ties=ties, constant=77)
    step = GlobalAverage(multiplier, shift, ties, last)
    exact = shifted(sums * multiplier, shift, ties)
    assert step.stream(one(sums)).values.item() == sat16(exact)
    assert step.stream(one(sums)).saturated == (sat16(exact) != exact)
    total = (16384 * sat16(exact) >> 8) + 77
    assert step.apply(one(sums)).item() == clip(shifted(total, 14, ties), -128, 127)


@settings(max_examples=60, deadline=None)
@given(sums=st.integers(-600, 600), which=st.integers(0, 1), ties=TIES)
def test_window_average(sums: int, which: int, ties: str) -> None:
    step = WindowAverage((2, 3), (16384, 21845), (15, 16), ties, Keep(-120, 90, 0))
    exact = shifted(sums * (16384, 21845)[which], (15, 16)[which], ties)
    assert step.apply(one(sums), one(2 + which)).item() == clip(exact, -120, 90)


def test_window_average_saturates_before_the_requantization() -> None:
    step = WindowAverage((1,), (16384,), (14,), "half_away", rescale(shift=15))
    assert step.apply(np.array([-1000, 1000]), np.array([1, 1])).tolist() == [-64, 64]


def test_every_lowering_goes_to_json_and_back() -> None:
    lowering = {
        "two": two_step(**arrays(multiplier=[1, 2], constant=[3, 4], bias=[5, 6], gain=[7, 8])),
        "one": one_step(),
        "join": Joined((rescale(shift=9), Keep(-1, 1, 0))),
        "add": AddStep((1, 2), (3, 4), 5, 6, 7, "half_away", "floor", -8, 9, 0),
        "mul": MulSteps((1, 2), 3, "half_up", rescale(shift=3)),
        "mean": GlobalAverage(1, 2, "half_even", rescale(pre_shift=8)),
        "pool": WindowAverage((2, 4), (5, 6), (7, 8), "half_away", Keep(-1, 2, 0)),
    }
    data = json.loads(json.dumps(lowering_to_json(lowering)))
    again = lowering_from_json(data)
    assert {k: type(v) for k, v in again.items()} == {k: type(v) for k, v in lowering.items()}
    assert lowering_to_json(again) == data
    assert again["join"] == lowering["join"]
    assert again["one"].segments() == lowering["one"].segments()


def test_the_middle_of_a_product_saturates() -> None:
    """255 * 255 without a shift is 65025; both signs."""
    step = MulSteps((-128, -128), 0, "half_away", rescale(multiplier=1, shift=9))
    assert step.apply(one(127), one(127)).item() == 64  # 32767 / 512
    other = MulSteps((127, -128), 0, "half_away", rescale(multiplier=1, shift=9))
    assert other.apply(one(-128), one(127)).item() == -64


@pytest.mark.parametrize(("total", "code"), [(300, 27), (-300, -28)])
def test_a_mean_saturates_before_it_is_rescaled(total: int, code: int) -> None:
    offset = -100 if total > 0 else 100
    last = rescale(multiplier=1, shift=0, constant=offset)
    step = WindowAverage((1,), (1,), (0,), "half_away", last)
    assert step.apply(one(total), one(1)).item() == code
