"""The command line: ``npusim VERB ...``.

Each verb is one module of this package with an attribute ``command``, imported only when it is
chosen: ``npusim --help`` must answer at once, and the numeric libraries take seconds to load.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

import click

from npusim._version import __version__
from npusim.cli.options import (
    given_by_user,
    json_option,
    profile_option,
    seed_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.terminal import Session, naming_output
from npusim.errors import NpusimError

VERBS: Mapping[str, str] = MappingProxyType(
    {
        "inspect": "Show a model's operators, quantization, parameters and MACs.",
        "run": "Run a model on the arrays of a file.",
        "evaluate": "Measure a model's top-1 accuracy on a data set.",
        "compare": "Compare a model with what a board or another program computed.",
        "train": "Adapt a model's int8 weights by zeroth-order training.",
        "export": "Write the weights of a checkpoint back into its ONNX model.",
        "ops": "List the supported operators and their arithmetic.",
    }
)

INVALID, INTERNAL, INTERRUPTED, PIPE_CLOSED = 3, 70, 130, 141


class LazyGroup(click.Group):
    """A group that knows its verbs' names and help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"npusim.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuses an option before the verb that the verb would not look at."""
        name, command, rest = super().resolve_command(ctx, args)
        known = {parameter.name for parameter in command.params} if command else set()
        for option in self.params:
            unknown = option.expose_value and option.name not in known
            if unknown and given_by_user(ctx, option):
                raise click.UsageError(f"{name} takes no {option.opts[0]}.", ctx)
        return name, command, rest


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Options before the verb and after it mean the same. Results go to standard output, "
    "messages to standard error.",
)
@click.version_option(__version__, prog_name="npusim", message="%(prog)s %(version)s")
@profile_option
@seed_option
@threads_option
@json_option
@verbosity_options
def group(**_options: object) -> None:
    """Exact simulation of, and training through, INT8 NPUs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code; no exception leaves it.

    0 ok, 1 a check failed or training diverged, 2 usage, 3 a model, data or file that cannot be
    used, 4 board, 70 an error of npusim itself, 130 interrupted, 141 the reader of the output left.
    """
    session = Session()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text at all
    try:
        line = list(sys.argv[1:] if arguments is None else arguments)
        with group.make_context("npusim", line, obj=session) as context:
            result = group.invoke(context)
        with naming_output():
            sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more when it ends: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        text, code = explain(error)
        if code == INTERNAL and session.verbosity > 0:
            traceback.print_exc()
        click.echo(f"npusim: {text}", err=True)
        return code
    return result if isinstance(result, int) else 0


def explain(error: Exception) -> tuple[str, int]:
    """What to tell the user about an exception, and the exit code."""
    if isinstance(error, NpusimError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}.", INVALID
    if isinstance(error, MemoryError):
        return "not enough memory. Use a smaller batch or fewer threads.", INVALID
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("npusim"):
        hint = " --engine numpy does without it." if error.name in ("numba", "llvmlite") else ""
        return f"the Python package {error.name} is missing. Install it with pip.{hint}", INVALID
    what = f"an error of npusim itself ({type(error).__name__}: {error})"
    return f"{what}. Please report it with the command; -v shows where it happened.", INTERNAL
