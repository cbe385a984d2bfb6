"""Options that several verbs share. They may stand before the verb or after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from npusim.cli.terminal import Session
from npusim.errors import UsageError
from npusim.numerics.profile import DEFAULT_PROFILE

F = TypeVar("F", bound=Callable[..., Any])


def available_cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def given_by_user(ctx: click.Context, param: click.Parameter) -> bool:
    """Whether the option stands on the command line at this level."""
    assert param.name is not None
    return ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE


def _inherited(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The value given after the verb, else what stood before the verb, else the default."""
    if given_by_user(ctx, param) or ctx.parent is None:
        return value
    assert param.name is not None
    return ctx.parent.params.get(param.name, value)


def profile_option(function: F) -> F:
    """``profile: str | None``, the name of a numerics profile."""
    return click.option(
        "--profile",
        metavar="NAME",
        callback=_inherited,
        help="Numerics profile: whose arithmetic to follow (`npusim ops` lists them).  "
        f"[default: {DEFAULT_PROFILE}, or the one that a trained model carries]",
    )(function)


def seed_option(function: F) -> F:
    """``seed: int``."""
    return click.option(
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        show_default=True,
        callback=_inherited,
        help="Seed of everything random.",
    )(function)


def threads_option(function: F) -> F:
    """``threads: int``."""
    return click.option(
        "--threads",
        type=click.IntRange(1, 1024),
        default=available_cpus,
        show_default="all cores",
        callback=_inherited,
        help="Threads to compute with; results do not depend on it.",
    )(function)


def json_option(function: F) -> F:
    """``as_json: bool``."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_inherited,
        help="Write the result to standard output as JSON.",
    )(function)


def overwrite_option(function: F) -> F:
    """``overwrite: bool``; see ``check_free``."""
    return click.option(
        "--overwrite", is_flag=True, help="Replace the output where there is a file already."
    )(function)


def check_free(target: Path, overwrite: bool, read: Sequence[Path | None] = ()) -> None:
    """Refuses an output before any work is done.

    Args:
        target: the file to write; its record is written beside it (``record_of``).
        overwrite: whether it may replace another file.
        read: files that the verb reads, which it never replaces.
    """
    if target.is_dir():
        raise UsageError(
            "there is a folder of this name", where=str(target), hint="Choose another --output."
        )
    for path in (target, record_of(target)):
        for source in read:
            if source is not None and path.exists() and source.exists() and path.samefile(source):
                raise UsageError(
                    "this file is read and cannot be written too",
                    where=str(path),
                    hint="Choose another --output.",
                )
    if target.exists() and not overwrite:
        raise UsageError(
            "there is a file of this name already",
            where=str(target),
            hint="Choose another --output, or replace it with --overwrite.",
        )


def record_of(target: Path) -> Path:
    """Where the record of a run that writes ``target`` goes."""
    return target.with_name(f"{target.stem}.run.json")


def engine_option(function: F) -> F:
    """``engine: str``."""
    return click.option(
        "--engine",
        type=click.Choice(["fast", "numpy"]),
        default="fast",
        show_default=True,
        help="Compiled kernels, or the slow NumPy reference that defines the result.",
    )(function)


def lowering_option(function: F) -> F:
    """``lowering: str | None``; see npusim.lowering."""
    return click.option(
        "--lowering",
        metavar="FILE|fresh",
        help="Compute with the numbers of a JSON file where it names some, or with none of those "
        "that a trained model carries.",
    )(function)


def q_json_option(function: F) -> F:
    """``q_json: Path | None``; see npusim.load."""
    return click.option(
        "--q-json",
        type=click.Path(path_type=Path),
        help="The *_Q.json of ST's tools with the scales of a *_OE_*.onnx.  [default: the one "
        "beside the model]",
    )(function)


def stats_option(function: F) -> F:
    """``stats: bool``; see npusim.counters."""
    return click.option(
        "--stats",
        is_flag=True,
        help="Also count, layer by layer, int16 streams that saturated and outputs at the ends of "
        "their range.",
    )(function)


def verbosity_options(function: F) -> F:
    """-v and -q, which the session keeps: see npusim.cli.terminal."""
    louder = click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_louder, help="Say more."
    )
    quieter = click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_quieter,
        help="Only warnings and errors.",
    )
    return louder(quieter(function))


def _louder(ctx: click.Context, param: click.Parameter, value: int) -> None:
    ctx.ensure_object(Session).verbosity += value


def _quieter(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Session).verbosity -= value
