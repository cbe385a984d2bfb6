"""main(): exit codes, one clear line for every error, options before and after the verb."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import click
import pytest
from rich.table import Table

import npusim.cli
from npusim.cli import VERBS, main
from npusim.cli.options import (
    available_cpus,
    profile_option,
    seed_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.terminal import emit_table, say, track, verbosity
from npusim.errors import BoardError, DataError, NumericsError, UsageError
from npusim.numerics.profile import DEFAULT_PROFILE


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A verb ``ops`` that notes its options; an exception put in the list is raised instead."""
    seen: list[object] = []

    @click.command()
    @profile_option
    @seed_option
    @threads_option
    @verbosity_options
    def command(**options: object) -> int | None:
        if seen:
            wish = seen.pop()
            if isinstance(wish, BaseException):
                raise wish
            assert isinstance(wish, int)
            return wish
        seen.append({**options, "verbosity": verbosity()})
        return None

    module = ModuleType("npusim.cli.ops")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "npusim.cli.ops", module)
    return seen


def test_every_verb_has_a_module_with_a_command_and_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in VERBS:
        assert main([name, "--help"]) == 0
        assert f"Usage: npusim {name}" in capsys.readouterr().out


def test_options_mean_the_same_before_and_after_the_verb(verb: list[object]) -> None:
    wanted = {"profile": "tflite", "seed": 7, "threads": 3, "verbosity": 2}
    options = ["--profile", "tflite", "--seed", "7", "--threads", "3", "-vv"]
    assert main([*options, "ops"]) == 0
    assert verb.pop() == wanted
    assert main(["ops", *options]) == 0
    assert verb.pop() == wanted


def test_an_option_after_the_verb_wins(verb: list[object]) -> None:
    assert main(["--seed", "1", "--threads", "1", "ops", "--seed", "2"]) == 0
    assert verb == [{"profile": None, "seed": 2, "threads": 1, "verbosity": 0}]


def test_defaults(verb: list[object]) -> None:
    assert main(["ops"]) == 0
    assert verb == [{"profile": None, "seed": 0, "threads": available_cpus(), "verbosity": 0}]


def test_an_option_that_the_verb_does_not_take_is_refused(
    verb: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", "ops"]) == 2
    assert "ops takes no --json" in capsys.readouterr().err
    assert verb == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["ops", "--nonsense"], "--nonsense"),
        (["ops", "--threads", "0"], "threads"),
        (["--seed", "-1", "ops"], "seed"),
        (["run"], "MODEL"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("no image", where="folder"), 3, "npusim: folder: no image."),
        (NumericsError("not a number"), 1, "npusim: not a number."),
        (UsageError("pick one"), 2, "npusim: pick one."),
        (BoardError("silent"), 4, "npusim: silent."),
        (FileNotFoundError(2, "No such file", "a.onnx"), 3, "npusim: a.onnx: No such file."),
        (OSError("truncated HDF5"), 3, "npusim: truncated HDF5."),
        (MemoryError(), 3, "npusim: not enough memory."),
        (KeyError("x"), 70, "npusim: an error of npusim itself (KeyError: 'x')."),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    verb: list[object],
    error: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb.append(error)
    assert main(["ops"]) == code
    shown = capsys.readouterr()
    assert shown.err.strip().startswith(message)
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""


def test_an_internal_error_shows_its_traceback_with_v(
    verb: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    verb.append(KeyError("x"))
    assert main(["ops", "-v"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_verbs_number_is_the_exit_code(verb: list[object]) -> None:
    verb.append(130)
    assert main(["ops"]) == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "npusim.cli", "ops", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert result.returncode == npusim.cli.PIPE_CLOSED
    assert result.stderr == ""


def test_progress_passes_everything_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npusim.cli.terminal.PLAIN_INTERVAL", 0.0)
    assert list(track([2, 3], 5, "images", size=int)) == [2, 3]
    assert capsys.readouterr().err.splitlines() == ["images: 2 of 5", "images: 5 of 5"]


def test_messages_follow_the_verbosity(
    verb: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @verbosity_options
    def command() -> None:
        for level in (-1, 0, 1):
            say(f"level {level}", level)

    monkeypatch.setattr(sys.modules["npusim.cli.ops"], "command", command)
    for options, lines in ((["-q"], 1), ([], 2), (["-v"], 3)):
        assert main(["ops", *options]) == 0
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_tables_show_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("node", box=None)
    table.add_row("conv[/x] [bold] :smile:")
    emit_table(table)
    assert "conv[/x] [bold] :smile:" in capsys.readouterr().out


def test_help_says_which_profile_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "evaluate", "inspect", "compare", "train"):
        assert main([verb, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert f"[default: {DEFAULT_PROFILE}, or the one that a trained model carries]" in text


def test_a_full_disk_behind_standard_output_is_named() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "npusim.cli", "ops"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == npusim.cli.INVALID
    assert result.stderr.startswith("npusim: standard output: No space left on device.")
