"""Switches of the profile reach the numbers, and numbers that do not fit name the layer."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from npusim.errors import BadQuantization, NumericsError, UsageError
from npusim.numerics import neural_art
from npusim.numerics.neural_art import Output, Switches, Tensor, Weights
from npusim.numerics.neural_art_epilogue import OneStep, TwoStep
from npusim.numerics.neural_art_passes import UNSIGNED, SplitLimits, Window
from npusim.numerics.profile import load_profile

NEURAL_ART = load_profile("neural-art")
X, Y = Tensor(0.02, -128), Output(0.05, -20, -100, 90, 128)
WINDOW = Window((3, 3), (1, 1), 24, 2, (8, 8), (8, 8), UNSIGNED)


def weights(bias: int = 1000) -> Weights:
    codes = np.arange(2 * 24 * 9).reshape(2, 24, 3, 3) % 90 - 30
    scales = np.array([0.001, 0.003])
    return Weights(codes, scales, np.array([bias, -bias]), 0.02 * scales)


def lowered(**changes: Any) -> Any:
    return neural_art.convolution(X, weights(), Y, WINDOW, replace(Switches(), **changes), "layer")


def test_the_profile_is_what_the_code_assumes() -> None:
    assert Switches.of(NEURAL_ART) == Switches()
    assert Switches.of(load_profile("neural-art/atonn-1.1.1")) == Switches()
    assert Switches.of(load_profile("neural-art/atonn-1.1.3")) == Switches(requant="one_step")


def test_a_profile_without_switches_has_the_defaults() -> None:
    assert Switches.of(replace(NEURAL_ART, switches={})) == Switches()
    for name, choices in neural_art.CHOICES.items():
        assert choices[0] == getattr(Switches(), name, getattr(SplitLimits(), name, None))


def test_every_switch_is_in_the_file_with_evidence() -> None:
    names = {f.name for kind in (Switches, SplitLimits) for f in fields(kind)} - {"limits"}
    assert set(NEURAL_ART.switches) == names
    assert {f"switch {name}" for name in names} <= set(NEURAL_ART.evidence)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requant", "three_step"), ("ties", "floor"), ("pre_rounding", "up"), ("unit_map", "both"),
        ("constant_rounding", "ceil"), ("add_constant_ties", "floor"), ("passes", "many"),
        ("accumulator_check", "warn"),
    ],
)  # fmt: skip
def test_a_value_that_a_switch_has_not(name: str, value: str) -> None:
    profile = replace(NEURAL_ART, switches={**NEURAL_ART.switches, name: value})
    with pytest.raises(UsageError, match=rf"neural-art, {name}: .*got {value}"):
        Switches.of(profile)


def test_every_switch_reaches_the_code() -> None:
    changed: dict[str, Any] = {
        "requant": "one_step", "shift": 4, "ties": "half_up", "pre_rounding": "half_away",
        "constant_rounding": "half_even", "add_constant_ties": "half_even",
        "accumulator_bits": 40, "accumulator_check": "off",
    }  # fmt: skip
    limits: dict[str, Any] = {
        f.name: f.default + 1 for f in fields(SplitLimits) if isinstance(f.default, int)
    } | {"unit_map": "output_when_strided", "passes": "single"}
    profile = replace(NEURAL_ART, switches={**changed, **limits})
    assert Switches.of(profile) == Switches(**changed, limits=SplitLimits(**limits))


def test_two_steps_and_one() -> None:
    two, one = lowered(), lowered(requant="one_step")
    assert isinstance(two, TwoStep)
    assert isinstance(one, OneStep)
    assert (two.shift, one.shift) == (5, 5)
    assert (two.lo, two.hi, two.offset, two.dropped) == (-100, 90, 128, 0)
    assert two.bias.tolist() == one.bias.tolist() == [1000, -1000]
    assert two.mid_exponent == 5  # log2(255 * 0.05) = 3.67
    for layer in (two, one):
        last = layer.multiplier_shift if layer is one else layer.final_shift
        gain = weights().bias_scales / 0.05 * 2.0 ** (last + 8)
        assert np.abs(layer.gain - gain).max() <= 0.5


def test_the_shift_can_be_given() -> None:
    assert lowered(shift=3).shift == 3
    assert lowered(shift=3).multiplier_shift == lowered().multiplier_shift + 2


def test_constants_follow_their_rounding() -> None:
    floor, away = lowered(), lowered(constant_rounding="half_away")
    assert np.abs(floor.constant - away.constant).max() <= 1
    assert np.any(floor.constant != away.constant)


def test_ties_reach_every_class() -> None:
    up = replace(Switches(), ties="half_up", pre_rounding="half_even")
    wide = Output(0.07, 0)
    two = Tensor(0.01, 5)
    steps: list[Any] = [
        neural_art.convolution(X, weights(), Y, WINDOW, up, "layer"),
        neural_art.requantizer(X, wide, up, "layer"),
        neural_art.global_average(X, wide, 9, up, "layer"),
        neural_art.global_average(X, wide, 9, up, "layer").rescale,
        neural_art.window_average(X, wide, [4], up, "layer"),
        neural_art.add(X, two, wide, up, "layer"),
        neural_art.mul(X, two, wide, up, "layer"),
        neural_art.mul(X, two, wide, up, "layer").rescale,
    ]
    assert {s.ties for s in steps} == {"half_up"}
    assert {s.pre_rounding for s in steps if hasattr(s, "pre_rounding")} == {"half_even"}


def test_offsets_and_bounds_reach_every_class() -> None:
    two = Tensor(0.01, 5)
    steps: list[Any] = [
        neural_art.requantizer(X, Y, Switches(), "layer"),
        neural_art.requantizer(Tensor(0.05, -20), Y, Switches(), "layer"),
        neural_art.global_average(X, Y, 9, Switches(), "layer").rescale,
        neural_art.window_average(X, Y, [4], Switches(), "layer").rescale,
        neural_art.add(X, two, Y, Switches(), "layer"),
        neural_art.mul(X, two, Y, Switches(), "layer").rescale,
    ]
    assert {(s.lo, s.hi, s.offset) for s in steps} == {(-100, 90, 128)}


def test_pre_shifts() -> None:
    assert neural_art.global_average(X, Y, 9, Switches(), "layer").rescale.pre_shift == 8
    assert neural_art.requantizer(X, Y, Switches(), "layer").pre_shift == 0


def test_a_product_keeps_its_scale_through_the_middle_shift() -> None:
    step = neural_art.mul(Tensor(0.5, -128), Tensor(0.5, -128), Output(0.25, 3), Switches(), "m")
    # ratio 1 on the product, 2 on the halved product; zero point 3 at shift 13.
    assert (step.shift, step.zeros) == (1, (-128, -128))
    assert (step.rescale.multiplier, step.rescale.shift, step.rescale.constant) == (
        16384,
        13,
        24576,
    )


def test_a_product_that_fits_is_not_shifted() -> None:
    step = neural_art.mul(Tensor(0.5, 0), Tensor(0.5, 0), Output(0.25, 3), Switches(), "m")
    assert (step.shift, step.zeros) == (0, (0, 0))
    assert (step.rescale.multiplier, step.rescale.shift) == (16384, 14)


def test_counts_of_a_pool_are_sorted_and_single() -> None:
    step = neural_art.window_average(X, Y, [9, 4, 9, 6], Switches(), "pool")
    assert step.counts == (4, 6, 9)
    assert (step.multipliers, step.shifts) == ((16384, 21845, 29127), (16, 17, 18))


def test_accumulator() -> None:
    """Three passes of 8 * 9 products of at most 255 * 128, and 2**(15 + 6) carried on."""
    assert lowered(shift=6, accumulator_bits=24).shift == 6
    with pytest.raises(NumericsError, match=r"layer: .*72 products, up to 4447232.*2\*\*22"):
        lowered(shift=6, accumulator_bits=23)
    assert lowered(accumulator_bits=23).shift == 5
    assert lowered(shift=6, accumulator_bits=23, accumulator_check="off").shift == 6


def test_sums_as_large_as_the_accumulator_are_refused() -> None:
    """8 products of 128 * 128 are 2**17, one more than 18 bits hold."""
    window = replace(WINDOW, kernel=(1, 1), depth=8)
    tap = weights()._replace(codes=np.ones((2, 8, 1, 1), np.int64))
    x = Tensor(0.02, 0)
    wide = neural_art.convolution(x, tap, Y, window, Switches(accumulator_bits=19), "layer")
    assert wide.shift == 0
    with pytest.raises(NumericsError, match="8 products, up to 131072, wanted less than 2"):
        neural_art.convolution(x, tap, Y, window, Switches(accumulator_bits=18), "layer")


@pytest.mark.parametrize(("kernel", "products"), [((5, 3), 72), ((3, 9), 144)])
def test_later_pieces_count_their_own_products(kernel: tuple[int, int], products: int) -> None:
    """The first piece has the most: 3x3 of 5x3, and 3x6 of 3x9, with 8 channels each."""
    window = replace(WINDOW, kernel=kernel, depth=8)
    x, codes = Tensor(0.02, 0), np.ones((2, 8, *kernel), np.int64)
    layer = weights()._replace(codes=codes)
    bits = (products * 2**14).bit_length() + 1
    neural_art.convolution(x, layer, Y, window, Switches(accumulator_bits=bits), "layer")
    with pytest.raises(NumericsError, match=f"{products} products"):
        neural_art.convolution(x, layer, Y, window, Switches(accumulator_bits=bits - 1), "layer")


@pytest.mark.parametrize(("zero_point", "largest"), [(-128, 255), (0, 128), (100, 228)])
def test_the_accumulator_bound_takes_the_zero_point(zero_point: int, largest: int) -> None:
    window = replace(WINDOW, depth=8)
    one_pass = weights()._replace(codes=weights().codes[:, :8])
    bound = 72 * largest * 128
    for bits in range(18, 26):
        switches = Switches(accumulator_bits=bits)
        x = Tensor(0.02, zero_point)
        if bound < 2 ** (bits - 1):
            neural_art.convolution(x, one_pass, Y, window, switches, "layer")
        else:
            with pytest.raises(NumericsError, match=f"up to {bound},"):
                neural_art.convolution(x, one_pass, Y, window, switches, "layer")


def test_impossible_scales_name_the_layer() -> None:
    tiny = Output(1e-12, 0)
    calls: list[Any] = [
        lambda: neural_art.convolution(X, weights(), tiny, WINDOW, Switches(), "layer"),
        lambda: neural_art.requantizer(X, tiny, Switches(), "layer"),
        lambda: neural_art.global_average(X, tiny, 9, Switches(), "layer"),
        lambda: neural_art.add(X, X, tiny, Switches(), "layer"),
    ]
    for call in calls:
        with pytest.raises(BadQuantization, match=r"^layer: "):
            call()


def test_codes_are_whole_int8_unless_said_otherwise() -> None:
    assert Output(0.5, 3) == (0.5, 3, -128, 127, 0)
