"""npusim inspect: what a model consists of and where it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.options import (
    json_option,
    lowering_option,
    profile_option,
    q_json_option,
    verbosity_options,
)
from npusim.cli.terminal import emit, emit_json, emit_table, note

if TYPE_CHECKING:
    from npusim.report.model import ModelReport, TensorRow

LONGEST = 300
"""Characters of a metadata entry that the text form shows; --json has all of it."""

SHOWN = 6
"""Elements of an array that the text form of a lowering shows."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--show-lowering",
    is_flag=True,
    help="Also show the integers or float32 numbers each operator computes with (those of "
    "--lowering, or of a trained model).",
)
@q_json_option
@lowering_option
@profile_option
@json_option
@verbosity_options
def command(
    model: Path,
    show_lowering: bool,
    q_json: Path | None,
    lowering: str | None,
    profile: str | None,
    as_json: bool,
) -> None:
    """Show MODEL's operators and where they run, its quantization, parameters and MACs.

    Every operator is tried under the profile; one that it cannot compute is marked, with the
    reason. The names of nodes and tensors are those that `run --taps` takes.
    """
    import npusim
    from npusim.lowering import compile_chosen, profile_of
    from npusim.numerics.lowered import lowering_to_json
    from npusim.numerics.profile import DEFAULT_PROFILE, load_profile
    from npusim.report.model import model_report

    if lowering is not None and not show_lowering:
        raise click.UsageError("--lowering changes only what --show-lowering shows: give both.")
    graph = npusim.load(model, q_json)
    if not show_lowering:
        chosen = load_profile(profile or profile_of(graph) or DEFAULT_PROFILE)
        _show(model_report(graph, chosen), None, as_json)
        return
    program, sentence = compile_chosen(graph, profile, "numpy", lowering)
    note(sentence)
    numbers = lowering_to_json(program.lowering)
    _show(model_report(graph, program.profile), numbers, as_json)


def _show(report: ModelReport, lowering: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        emit_json(report.to_json() | ({} if lowering is None else {"lowering": lowering}))
        return
    _summary(report)
    _operators(report)
    for name, numbers in (lowering or {}).items():
        emit(f"{name}: {json.dumps(_shortened(numbers))}")


def _summary(report: ModelReport) -> None:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in report.opsets.items())
    emit(f"{report.path}: {report.name} (opset {opsets}), profile {report.profile}")
    if report.refused:
        count = f"{len(report.refused)} of {len(report.operators)} operators"
        emit(f"  cannot run under this profile: {count}, see below")
    for label, rows in (("input", report.inputs), ("output", report.outputs)):
        for row in rows:
            emit(f"  {label:12}{_tensor(row)}")
    emit(f"  {'parameters':12}{report.parameters:,}")
    emit(f"  {'MACs':12}{report.macs:,} an image")
    for label, counts in (("activations", report.activations), ("constants", report.weights)):
        emit(f"  {label:12}{'; '.join(f'{n} {scheme}' for scheme, n in counts.items())}")
    for key, text in report.metadata.items():
        emit(f"  {key}: {_excerpt(text)}")


def _excerpt(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def _tensor(row: TensorRow) -> str:
    if row.scale is None:
        return f"{row.name} {row.type}"
    return f"{row.name} {row.type} scale {row.scale:.8g} zero point {row.zero_point}"


def _operators(report: ModelReport) -> None:
    from rich.table import Table

    from npusim.report.model import PLACES

    table = Table(box=None, pad_edge=False)
    for heading in ("node", "operator", "runs on", "rule", "tensor", "type", "weights"):
        table.add_column(heading)
    for heading in ("parameters", "MACs"):
        table.add_column(heading, justify="right")
    for row in report.operators:
        place = PLACES[row.runs_on] + ("" if row.bit_accurate else ", not bit-accurate")
        rule = f"{row.rule} [{row.evidence}]" if row.evidence else row.rule
        rule = "cannot run" if row.refusal else rule
        counts = (f"{n:,}" if n else "" for n in (row.parameters, row.macs))
        table.add_row(row.name, row.op, place, rule, row.tensor, row.output, row.weights, *counts)
    emit_table(table)
    for row in report.refused:
        reason = row.refusal.removeprefix(f"{row.name}: ")
        emit(f"cannot run under this profile: {row.name}: {reason}")
    for source, level in {row.source: row.evidence for row in report.operators}.items():
        if source:
            emit(f"[{level}] {source}")


def _shortened(value: Any) -> Any:
    """Long lists of a lowering with their middle left out."""
    if isinstance(value, dict):
        return {key: _shortened(v) for key, v in value.items()}
    if isinstance(value, list) and len(value) > SHOWN:
        return [*value[:SHOWN], f"... {len(value)} in all"]
    return value
