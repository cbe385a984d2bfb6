"""npusim evaluate: top-1 accuracy with its interval."""

from __future__ import annotations

from pathlib import Path

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
from npusim.cli.terminal import emit, emit_json, emit_statistics, say, track

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
    program, note = compile_chosen(graph, profile, engine, lowering)
    if note:
        say(f"note: {note}")
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
