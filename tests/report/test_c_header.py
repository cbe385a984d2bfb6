"""The C header of a profile: it compiles, rounds as the simulator does, and names the switches."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npusim.cli import main
from npusim.numerics import rounding
from npusim.numerics.neural_art_epilogue import SHIFTS
from npusim.numerics.profile import Evidence, Profile, load_profile, profile_names
from npusim.report.c_header import c_header

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsanitize=undefined")

PROGRAM = """\
#include <inttypes.h>
#include <stdio.h>
#include "profile.h"
int main(void)
{
    int64_t value;
    int multiplier, shift;
    while (scanf("%" SCNd64 " %d %d", &value, &multiplier, &shift) == 3) {
        int i, right = shift < 0 ? -shift : shift;
        for (i = 0; i < 4; i++)
            printf("%" PRId64 " ", npusim_shift_right(value, right, (enum npusim_rounding)i));
        printf("%" PRId64 " ", npusim_q31_double((int32_t)(value % 2147483647), multiplier, shift));
        printf("%" PRId64 " ", npusim_q31_single((int32_t)(value % 2147483647), multiplier, shift));
        printf("%" PRId64 "\\n", npusim_q31_away((int32_t)(value % 2147483647), multiplier, shift));
    }
    return 0;
}
"""


def defines(text: str) -> dict[str, str]:
    lines = (line.split() for line in text.splitlines() if line.startswith("#define"))
    return {parts[1]: parts[2] for parts in lines if len(parts) > 2}


def built(folder: Path, header: str, program: str) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    (folder / "profile.h").write_text(header, "ascii")
    (folder / "main.c").write_text(program, "ascii")
    target = folder / "main"
    done = subprocess.run(
        [compiler, *STRICT, "main.c", "-o", str(target)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_compiles_without_a_warning(tmp_path: Path, name: str) -> None:
    text = c_header(load_profile(name))
    assert text == c_header(load_profile(name))
    assert max(map(len, text.splitlines())) <= 100
    target = built(tmp_path, text, '#include "profile.h"\nint main(void) { return 0; }\n')
    assert subprocess.run([target], check=True).returncode == 0


def test_the_functions_round_as_the_simulator_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    shifts = rng.integers(-20, 12, 4000)
    values = rng.integers(-(2**31) + 2, 2**31 - 1, 4000) >> rng.integers(0, 31, 4000)
    ties = rng.integers(-9, 10, 400) * 2 ** np.abs(shifts[:400]) // 2
    values[:400] = ties
    values[400:404] = (2**31 - 2, -(2**31) + 2, 2**31 - 2, -(2**31) + 2)
    multipliers = rng.integers(2**30, 2**31, 4000)
    multipliers[400:402] = 2**31 - 1
    target = built(tmp_path, c_header(load_profile("neural-art")), PROGRAM)
    lines = "\n".join(map("{} {} {}".format, values, multipliers, shifts))
    done = subprocess.run([target], input=lines, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = np.array([line.split() for line in done.stdout.splitlines()], np.int64).T
    for got, shift in zip(found, SHIFTS.values(), strict=False):
        np.testing.assert_array_equal(got, shift(values, np.abs(shifts)))
    q31 = (
        rounding.multiply_double_rounding,
        rounding.multiply_single_rounding,
        rounding.multiply_single_rounding_away,
    )
    for got, multiply in zip(found[4:], q31, strict=True):
        np.testing.assert_array_equal(got, multiply(values, multipliers, shifts))


def test_it_holds_rules_and_switches() -> None:
    two, one = (defines(c_header(load_profile(f"neural-art/atonn-1.1.{v}"))) for v in (1, 3))
    assert two["NPUSIM_RULE_OF_CONV"] == "NPUSIM_RULE_NEURAL_ART"
    assert two["NPUSIM_SWITCH_REQUANT"] == "NPUSIM_REQUANT_TWO_STEP"
    assert one["NPUSIM_SWITCH_REQUANT"] == "NPUSIM_REQUANT_ONE_STEP"
    assert two["NPUSIM_SWITCH_TIES"] == "NPUSIM_ROUNDING_HALF_AWAY"
    assert two["NPUSIM_SWITCH_SHIFT"] == "NPUSIM_AUTO"
    assert two["NPUSIM_SWITCH_MAX_ROWS"] == "3"
    assert {k for k in two if two[k] != one[k]} == {"NPUSIM_PROFILE", "NPUSIM_SWITCH_REQUANT"} | {
        k for k in two if k.endswith("_H")
    }
    switches = {k for k in two if k.startswith("NPUSIM_SWITCH_")}
    assert len(switches) == len(load_profile("neural-art").switches)
    assert not any("SWITCH" in k for k in defines(c_header(load_profile("tflite"))))


def test_a_rule_has_one_number_in_every_header() -> None:
    enums = {c_header(load_profile(n)).split("enum npusim_rule {")[1].split("}")[0] for n in
             profile_names()}  # fmt: skip
    assert len(enums) == 1


def test_text_cannot_end_a_comment(tmp_path: Path) -> None:
    why = Evidence("assumed", "a */ b /* c \N{RIGHTWARDS ARROW} " + "long " * 60)
    profile = Profile("own/one", "ends */ here", {"conv": "float32"}, evidence={"conv": why})
    built(tmp_path, c_header(profile), '#include "profile.h"\nint main(void) { return 0; }\n')
    base = load_profile("neural-art")
    given = replace(base, switches={**base.switches, "shift": 4})
    assert defines(c_header(given))["NPUSIM_SWITCH_SHIFT"] == "4"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--c-header", "neural-art"]) == 0
    assert capsys.readouterr().out == c_header(load_profile("neural-art"))
    assert main(["ops", "--c-header", "absent"]) == 2
    assert "absent" in capsys.readouterr().err
    assert main(["ops", "--c-header", "tflite", "--json"]) == 2
