"""npusim compare: a model's integers beside those that a board or another program computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npusim.cli.options import (
    engine_option,
    json_option,
    lowering_option,
    profile_option,
    q_json_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.terminal import emit, emit_json, note

if TYPE_CHECKING:
    from npusim.compare import Comparison, Difference
    from npusim.search import Findings

EXIT_DIFFERS = 1
PAIRS = 2000


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("dump", type=click.Path(path_type=Path))
@click.option(
    "--side",
    type=click.Choice(["device", "reference"]),
    default="device",
    show_default=True,
    help="Which outputs of a network_val_io.npz: c_outputs_* or m_outputs_*.",
)
@click.option(
    "--search",
    is_flag=True,
    help="Vary the arithmetic, one change at a time (then two), to find what explains DUMP.",
)
@click.option(
    "--pairs",
    type=click.IntRange(0),
    show_default=str(PAIRS),
    help="Most pairs of changes that --search tries where no single one explains it.",
)
@q_json_option
@profile_option
@lowering_option
@threads_option
@engine_option
@json_option
@verbosity_options
def command(
    model: Path,
    dump: Path,
    side: str,
    search: bool,
    pairs: int | None,
    q_json: Path | None,
    profile: str | None,
    lowering: str | None,
    threads: int,
    engine: str,
    as_json: bool,
) -> int:
    """Run MODEL on the inputs in DUMP and compare it with the tensors in DUMP.

    DUMP is ST's network_val_io.npz, or an .npz keyed by the names of the model's tensors. The exit
    code is 0 where every value is equal and 1 where one differs.
    """
    import npusim
    from npusim.compare import compare
    from npusim.dumps import read_dump
    from npusim.lowering import compile_chosen
    from npusim.search import search as search_for

    if pairs is not None and not search:
        raise click.UsageError("--pairs says how long --search goes on: give both.")
    graph = npusim.load(model, q_json)
    given = read_dump(dump, graph, side)
    if given.ignored:
        note(f"{dump}: not tensors of the model, ignored: {', '.join(given.ignored)}")
    program, sentence = compile_chosen(graph, profile, engine, lowering)
    note(sentence)
    comparison = compare(program, given, threads)
    most = PAIRS if pairs is None else pairs
    findings = search_for(program, given, threads, most) if search else None
    if as_json:
        found = {} if findings is None else {"search": findings.to_json()}
        facts = {"model": str(model), "dump": str(dump), "profile": program.profile.name}
        emit_json({**comparison.to_json(), **facts, **found})
    else:
        _show(comparison, program.profile.name, findings)
    return 0 if comparison.equal else EXIT_DIFFERS


def _show(comparison: Comparison, profile: str, findings: Findings | None) -> None:
    for tensor in comparison.tensors:
        _show_tensor(tensor)
    equal = sum(not t.differing for t in comparison.tensors)
    emit(f"{equal} of {len(comparison.tensors)} tensors equal under profile {profile}")
    if comparison.first_divergent is not None:
        emit(f"first divergent: {comparison.first_divergent.name}")
    if findings is None:
        return
    emit(f"{findings.verdict} ({findings.tried} variants of the arithmetic tried)")
    if findings.skipped:
        emit(f"{findings.skipped} pairs of changes not tried: --pairs N tries more")
    for explanation in findings.explanations:
        emit(f"  equal with {explanation}")
    if not findings.explanations:
        from npusim.search import described

        for settings, count in findings.closest:
            emit(f"  close: {described(settings)}: {count} values differ in the first images")


def _show_tensor(tensor: Difference) -> None:
    if not tensor.differing:
        emit(f"{tensor.name}: {tensor.values} values equal")
        return
    decisions = "" if tensor.decisions is None else f", {tensor.decisions} decisions change"
    emit(
        f"{tensor.name}: {tensor.differing} of {tensor.values} values differ, by up to "
        f"{tensor.largest:g}{decisions}"
    )
    for at in tensor.first:
        emit(f"  {list(at.index)}: expected {at.expected:g}, got {at.got:g}")
