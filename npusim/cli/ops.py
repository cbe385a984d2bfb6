"""npusim ops: the supported operators."""

from __future__ import annotations

import click

from npusim.cli.options import json_option, verbosity_options
from npusim.cli.terminal import emit, emit_json, emit_table


@click.command()
@click.option(
    "--markdown", is_flag=True, help="The whole page, with every profile's rules and sources."
)
@click.option(
    "--c-header", metavar="PROFILE", help="A profile's rules, switches and roundings as a C header."
)
@json_option
@verbosity_options
def command(markdown: bool, c_header: str | None, as_json: bool) -> None:
    """List the supported operators, where they run, and the numerics profiles.

    Each profile's rule for every operator, its evidence and source are in --markdown and --json.
    """
    from npusim.report.operators import operators_json, operators_page

    if markdown + as_json + (c_header is not None) > 1:
        raise click.UsageError("--markdown, --c-header and --json exclude one another.")
    if c_header is not None:
        from npusim.numerics.profile import load_profile
        from npusim.report.c_header import c_header as header_of

        emit(header_of(load_profile(c_header)).rstrip("\n"))
    elif markdown:
        emit(operators_page().rstrip("\n"))
    elif as_json:
        emit_json(operators_json())
    else:
        _table()


def _table() -> None:
    from rich.table import Table

    from npusim.numerics.profile import DEFAULT_PROFILE, load_profile, profile_names
    from npusim.report.model import PLACES
    from npusim.report.operators import profile_summary, supported_operators

    table = Table("operator", "runs on", "ONNX operators", box=None, pad_edge=False)
    for op in supported_operators():
        onnx = ", ".join(dict.fromkeys(row.op_type for row in op.onnx))
        table.add_row(op.name, PLACES[op.runs_on], onnx)
    emit_table(table)
    emit("")
    profiles = Table("profile", "whose arithmetic", box=None, pad_edge=False)
    for name in profile_names():
        default = " (default)" if name == DEFAULT_PROFILE else ""
        profiles.add_row(name + default, profile_summary(load_profile(name)))
    emit_table(profiles)
