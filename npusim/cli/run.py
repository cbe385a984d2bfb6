"""npusim run: a forward pass over the arrays of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.options import (
    check_free,
    engine_option,
    json_option,
    lowering_option,
    overwrite_option,
    profile_option,
    q_json_option,
    record_of,
    stats_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.terminal import emit, emit_json, emit_statistics, note

if TYPE_CHECKING:
    from npusim.counters import Statistics
    from npusim.ir import Array

SCHEMA_VERSION = 1


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    required=True,
    help="An .npz keyed by input names, or an .npy for a model with one input.",
)
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to write the outputs: an .npz keyed by their names, or an .npy for a single one.",
)
@click.option(
    "--taps",
    metavar="GLOB",
    multiple=True,
    help="Also write the tensors whose names, or whose nodes' names, match (`npusim inspect` shows "
    "both); may be given several times.",
)
@overwrite_option
@stats_option
@q_json_option
@profile_option
@lowering_option
@threads_option
@engine_option
@json_option
@verbosity_options
def command(
    model: Path,
    source: Path,
    target: Path,
    taps: tuple[str, ...],
    overwrite: bool,
    stats: bool,
    profile: str | None,
    q_json: Path | None,
    lowering: str | None,
    threads: int,
    engine: str,
    as_json: bool,
) -> None:
    """Run MODEL on the arrays of a file and write its outputs.

    Arrays have the model's own dtypes and shapes; the batch may be of any size where the model
    allows it. A record of the run is written beside the outputs, as NAME.run.json. Standard output
    says what was written.
    """
    import npusim
    from npusim.arrays import check_output, read_arrays, write_arrays
    from npusim.counters import Statistics
    from npusim.lowering import FRESH, compile_chosen
    from npusim.runinfo import write_run_info

    check_output(target)
    changes = Path(lowering) if lowering not in (None, FRESH) else None
    check_free(target, overwrite, [model, source, q_json, changes])
    graph = npusim.load(model, q_json)
    arrays, ignored = read_arrays(source, [value.name for value in graph.inputs])
    if ignored:
        note(f"{source}: not inputs of the model, ignored: {', '.join(ignored)}")
    program, sentence = compile_chosen(graph, profile, engine, lowering)
    note(sentence)
    statistics = Statistics() if stats else None
    outputs = program.run(arrays, taps=taps, threads=threads, statistics=statistics)
    write_arrays(target, outputs)
    arguments = {
        "profile": program.profile.name,
        "lowering": lowering,
        "taps": taps,
        "engine": engine,
        "threads": threads,
    }
    record = record_of(target)
    write_run_info(record, "run", arguments, [model, source], [target])
    files = {"output": str(target), "record": str(record)}
    if as_json:
        emit_json({**_result(outputs, statistics), "files": files})
        return
    for name, array in outputs.items():
        emit(f"{name}: {array.dtype}{list(array.shape)}")
    if statistics is not None:
        emit_statistics(statistics)
    for kind, path in files.items():
        emit(f"{kind}: {path}")


def _result(outputs: Mapping[str, Array], statistics: Statistics | None) -> dict[str, Any]:
    shapes = {name: {"dtype": a.dtype.name, "shape": a.shape} for name, a in outputs.items()}
    counted = {} if statistics is None else {"statistics": statistics.to_json()}
    return {"schema_version": SCHEMA_VERSION, "outputs": shapes, **counted}
