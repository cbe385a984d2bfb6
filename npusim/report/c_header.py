"""A profile as a C header, from the same data that the simulator computes with.

The header holds the rule of every operator, the switches, and the roundings as C99 functions. It
is a pure function of the profile: equal profiles give equal bytes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from npusim.numerics import neural_art
from npusim.numerics import neural_art_lowering as formulas
from npusim.numerics.neural_art_epilogue import SHIFTS
from npusim.numerics.profile import Evidence, Profile, load_profile, profile_names

PREFIX = "NPUSIM"

NUMBERS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "SHIFT_MAX": (formulas.SHIFT_MAX, "largest shift of an arithmetic unit"),
        "GAIN_BITS": (formulas.GAIN_BITS, "fraction bits of the gain of a trained bias"),
        "MEAN_BITS": (formulas.MEAN_BITS, "fraction bits of a global average's int16 stream"),
    }
)
"""Conventions of the neural-art rules that no switch changes."""

_FUNCTIONS = """\
/* Right shifts of 64-bit values: the shift is 0 or more, and 0 changes nothing. */
typedef char npusim_right_shift_is_arithmetic[((-1) >> 1) == -1 ? 1 : -1];

static inline int64_t npusim_shift_floor(int64_t value, int shift) { return value >> shift; }

/* Ties upwards. */
static inline int64_t npusim_shift_half_up(int64_t value, int shift)
{
    return shift == 0 ? value : (value + ((int64_t)1 << (shift - 1))) >> shift;
}

/* Ties away from zero. */
static inline int64_t npusim_shift_half_away(int64_t value, int shift)
{
    return shift == 0 ? value : (value + ((int64_t)1 << (shift - 1)) - (value < 0)) >> shift;
}

/* Ties to the even result. */
static inline int64_t npusim_shift_half_even(int64_t value, int shift)
{
    if (shift == 0)
        return value;
    return (value + ((int64_t)1 << (shift - 1)) - 1 + ((value >> shift) & 1)) >> shift;
}

static inline int64_t npusim_saturate(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static inline int64_t npusim_shift_right(int64_t value, int shift, enum npusim_rounding rounding)
{
    switch (rounding) {
    case NPUSIM_ROUNDING_FLOOR: return npusim_shift_floor(value, shift);
    case NPUSIM_ROUNDING_HALF_UP: return npusim_shift_half_up(value, shift);
    case NPUSIM_ROUNDING_HALF_EVEN: return npusim_shift_half_even(value, shift);
    case NPUSIM_ROUNDING_HALF_AWAY: break;
    }
    return npusim_shift_half_away(value, shift);
}

/* value * multiplier * 2^(shift - 31), a positive shift being to the left. */
static inline int64_t npusim_q31_double(int32_t value, int32_t multiplier, int shift)
{
    int64_t factor = (int64_t)1 << (shift > 0 ? shift : 0);
    int64_t shifted = npusim_saturate(value * factor, INT32_MIN, INT32_MAX);
    int64_t product = shifted * multiplier;
    int64_t nudge = product >= 0 ? (int64_t)1 << 30 : 1 - ((int64_t)1 << 30);
    int64_t high = npusim_saturate((product + nudge) / ((int64_t)1 << 31), INT32_MIN, INT32_MAX);
    return npusim_shift_half_away(high, shift < 0 ? -shift : 0);
}

static inline int64_t npusim_q31_single(int32_t value, int32_t multiplier, int shift)
{
    return npusim_shift_half_up((int64_t)value * multiplier, 31 - shift);
}

static inline int64_t npusim_q31_away(int32_t value, int32_t multiplier, int shift)
{
    return npusim_shift_half_away((int64_t)value * multiplier, 31 - shift);
}
"""


def c_header(profile: Profile) -> str:
    """The text of the header, ASCII, lines ending in a newline."""
    guard = f"{PREFIX}_PROFILE_{_upper(profile.name)}_H"
    parts = [
        f"/* Numerics profile {profile.name}.",
        *_wrapped(profile.summary + ".", " * "),
        f" * Written by `npusim ops --c-header {profile.name}`; do not edit. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        f'#define {PREFIX}_PROFILE "{profile.name}"',
        "",
        *_enum("rule", _all_rules(), "Arithmetic of an operator."),
        *_enum("rounding", SHIFTS, "Rounding of a right shift."),
        *_rules(profile),
        *(_switches(profile) if profile.switches else ()),
        _FUNCTIONS,
        f"#endif /* {guard} */",
    ]
    return "\n".join(parts) + "\n"


def _all_rules() -> list[str]:
    """Rules of all profiles, so that one number means one rule in every header."""
    profiles = (load_profile(name) for name in profile_names())
    return sorted({rule for profile in profiles for rule in profile.rules.values()})


def _enum(name: str, values: Iterable[str], comment: str) -> list[str]:
    entries = [f"    {_constant(name, value)} = {i}," for i, value in enumerate(values)]
    return [f"/* {comment} */", f"enum npusim_{name} {{", *entries, "};", ""]


def _rules(profile: Profile) -> list[str]:
    lines = ["/* Rules of the operators; those that are not named only move or compare codes. */"]
    for operator, rule in sorted(profile.rules.items()):
        lines += _define(f"RULE_OF_{operator}", _constant("rule", rule), profile.evidence[operator])
    return [*lines, ""]


def _switches(profile: Profile) -> list[str]:
    """Names become enums, those of roundings the enum that all share."""
    lines: list[str] = []
    for name, choices in neural_art.CHOICES.items():
        if not set(choices) <= set(SHIFTS):
            lines += _enum(name, choices, f"Values of the switch {name}.")
    lines += ["/* Switches. */", f"#define {PREFIX}_AUTO (-1)"]
    for name, value in sorted(profile.switches.items()):
        why = profile.evidence[f"switch {name}"]
        lines += _define(f"SWITCH_{name}", _switch_value(name, value), why)
    lines += ["", "/* Conventions that no switch changes. */"]
    for name, (number, what) in NUMBERS.items():
        lines.append(f"#define {PREFIX}_{name} {number} /* {what} */")
    return [*lines, ""]


def _switch_value(name: str, value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if value == "auto":
        return f"{PREFIX}_AUTO"
    choices = neural_art.CHOICES[name]
    return _constant("rounding" if set(choices) <= set(SHIFTS) else name, str(value))


def _define(name: str, value: str, why: Evidence) -> list[str]:
    comment = _wrapped(f"{why.level}: {why.source}", " * ")
    comment[0] = f"/* {comment[0].removeprefix(' * ')}"
    comment[-1] += " */"
    return [*comment, f"#define {PREFIX}_{_upper(name)} {value}"]


def _wrapped(text: str, indent: str) -> list[str]:
    """Lines of at most 96 characters that hold neither comment marks nor anything but ASCII."""
    plain = text.replace("*/", "* /").replace("/*", "/ *").encode("ascii", "replace").decode()
    return textwrap.wrap(plain, 96, initial_indent=indent, subsequent_indent=indent)


def _constant(kind: str, value: str) -> str:
    return f"{PREFIX}_{_upper(kind)}_{_upper(value)}"


def _upper(name: str) -> str:
    """A name as a part of a C identifier."""
    return re.sub(r"\W+", "_", name.replace("-", "_"), flags=re.ASCII).upper()
