"""npusim evaluate: top-1 accuracy with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.data_options import DataRequest, data_options
from npusim.cli.options import (
    engine_option,
    json_option,
    lowering_option,
    profile_option,
    q_json_option,
    seed_option,
    stats_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.terminal import emit, emit_json, emit_statistics, emit_table, note, track

if TYPE_CHECKING:
    from npusim.distance import ProfileDistance
    from npusim.models import Inputs
    from npusim.program import Program

SCHEMA_VERSION = 1


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@data_options()
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Images held in memory at once; the result does not depend on it.",
)
@click.option(
    "--against",
    metavar="PROFILE",
    multiple=True,
    help="Also run this profile, and show the share of differing codes in each layer and the "
    "change of accuracy; may be given several times.",
)
@stats_option
@q_json_option
@profile_option
@lowering_option
@seed_option
@threads_option
@engine_option
@json_option
@verbosity_options
def command(
    model: Path,
    request: DataRequest,
    batch: int,
    against: tuple[str, ...],
    stats: bool,
    profile: str | None,
    q_json: Path | None,
    lowering: str | None,
    seed: int,
    threads: int,
    engine: str,
    as_json: bool,
) -> None:
    """Measure MODEL's top-1 accuracy on a data set, with its 95 % Wilson interval."""
    import npusim
    from npusim.cli.data_options import open_inputs
    from npusim.counters import Statistics
    from npusim.evaluation import Accuracy, class_scores, score_chunks, total
    from npusim.lowering import compile_chosen

    graph = npusim.load(model, q_json)
    class_scores(graph)
    inputs = open_inputs(request, graph, prefer="test", seed=seed)
    program, sentence = compile_chosen(graph, profile, engine, lowering)
    note(sentence)
    if against:
        if stats:
            raise click.UsageError("--against and --stats exclude one another.")
        programs = [program, *(npusim.compile(graph, name, engine) for name in against)]
        _compare(programs, inputs, batch, threads, as_json)
        return
    parts: list[Accuracy] = []
    statistics = Statistics() if stats else None
    chunks = score_chunks(program, inputs, batch, threads, statistics)
    for part in track(chunks, len(inputs), "images", size=lambda done: done.total):
        parts.append(part)
    result = total(parts)
    if as_json:
        emit_json(
            {
                "schema_version": SCHEMA_VERSION,
                "model": str(model),
                "profile": program.profile.name,
                "engine": engine,
                **result.to_json(),
                "data": inputs.describe(),
                **({} if statistics is None else {"statistics": statistics.to_json()}),
            }
        )
    else:
        emit(f"top-1 {result}")
        if statistics is not None:
            emit_statistics(statistics)


def _compare(
    programs: list[Program], inputs: Inputs, batch: int, threads: int, as_json: bool
) -> None:
    from npusim.distance import distance_chunks

    found: list[ProfileDistance] = []
    chunks = distance_chunks(programs, inputs, batch, threads)
    images = track(chunks, len(inputs), "images", size=lambda done: done[0].accuracy.total)
    for part in images:
        found = [a + b for a, b in zip(found, part, strict=True)] if found else list(part)
    if as_json:
        facts = {"model": programs[0].graph.path, "data": inputs.describe()}
        profiles = [distance.to_json() for distance in found]
        emit_json({"schema_version": SCHEMA_VERSION, **facts, "profiles": profiles})
    else:
        _table(found)


def _table(found: list[ProfileDistance]) -> None:
    """Shares of codes that differ from the first profile's, a column a profile."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("node")
    table.add_column("codes", justify="right")
    for distance in found[1:]:
        table.add_column(distance.profile, justify="right")
    for i, layer in enumerate(found[0].layers):
        others = (distance.layers[i] for distance in found[1:])
        shares = (f"{other.share:.3%} (max {other.largest})" for other in others)
        table.add_row(layer.node, f"{layer.values:,}", *shares)
    emit_table(table)
    for distance in found:
        changed = f", {distance.decisions} decisions change" if distance is not found[0] else ""
        emit(f"{distance.profile}: top-1 {distance.accuracy}{changed}")
