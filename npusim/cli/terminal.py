"""What the verbs write: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table

    from npusim.counters import Statistics

T = TypeVar("T")

PLAIN_INTERVAL = 5.0
"""Seconds between two progress lines where standard error is no terminal."""


@dataclass
class Session:
    """What one command line carries besides its options.

    verbosity: -1 with -q, 0, 1 with -v, 2 with -vv.
    """

    verbosity: int = 0


def verbosity() -> int:
    """That of the command line being run."""
    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context else None
    return session.verbosity if session else 0


def say(text: str, level: int = 0) -> None:
    """A message for people; level 1 is shown with -v only, level 0 not with -q."""
    if verbosity() >= level:
        click.echo(text, err=True)


def note(text: str) -> None:
    """A sentence about what was assumed or left out; "" says nothing."""
    if text:
        say(f"note: {text}")


def warn(text: str) -> None:
    """A message that -q does not silence."""
    click.echo(f"warning: {text}", err=True)


def emit(text: str) -> None:
    """A result, to standard output."""
    with naming_output():
        click.echo(text)


@contextmanager
def naming_output() -> Iterator[None]:
    """Errors of writing to standard output say so: its disk may be full."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def emit_json(data: Any) -> None:
    """A result as JSON; a NaN or an infinity in it is an error of the caller."""
    emit(json.dumps(data, indent=2, allow_nan=False))


def emit_table(table: Table) -> None:
    """A result as a table, as wide as it needs to be where nobody's terminal limits it."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    with naming_output():
        console.print(table)


def emit_statistics(statistics: Statistics) -> None:
    """Counts a layer, as a table."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("node")
    for heading in ("outputs", "lowest", "highest", "streams", "saturated", "constants"):
        table.add_column(heading, justify="right")
    for node, counts in statistics.layers.items():
        shares = counts.to_json()
        table.add_row(
            node,
            f"{counts.outputs:,}",
            f"{shares['low_share']:.3%}",
            f"{shares['high_share']:.3%}",
            f"{counts.streams:,}",
            f"{counts.saturated:,} ({shares['saturated_share']:.3%})",
            f"{counts.constants:,}",
        )
    emit_table(table)


def track(items: Iterable[T], total: int, what: str, size: Callable[[T], int]) -> Iterator[T]:
    """Yields the items and shows how much of ``total`` is done; ``size`` says an item's share.

    A bar on a terminal, a line every few seconds in a pipe, nothing with -q.
    """
    if verbosity() < 0:
        yield from items
    elif sys.stderr.isatty():
        yield from _bar(items, total, what, size)
    else:
        yield from _lines(items, total, what, size)


def _bar(items: Iterable[T], total: int, what: str, size: Callable[[T], int]) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            bar.advance(task, size(item))
            yield item


def _lines(items: Iterable[T], total: int, what: str, size: Callable[[T], int]) -> Iterator[T]:
    done, last = 0, time.monotonic()
    for item in items:
        done += size(item)
        if time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            say(f"{what}: {done} of {total}")
        yield item
