"""npusim train: adapt a network's int8 weights by zeroth-order training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from npusim.cli.data_options import DataRequest, data_options
from npusim.cli.options import (
    engine_option,
    json_option,
    lowering_option,
    profile_option,
    seed_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.train_options import DATA, SETTINGS, train_options
from npusim.errors import UsageError

EXIT_DIFFERS, EXIT_INTERRUPTED = 1, 130


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@train_options
@data_options()
@profile_option
@seed_option
@threads_option
@engine_option
@lowering_option
@json_option
@verbosity_options
def command(model: Path | None, request: DataRequest, **options: Any) -> int:
    """Adapt MODEL's int8 weights to a data set by zeroth-order training.

    Only forward passes are run, through exactly the integers that the NPU computes. Writes
    trained.onnx, log.jsonl, checkpoint.h5 and run.json to --out. Ctrl-C stops after the current
    step; --resume then goes on as if the run had never stopped.
    """
    from npusim.cli import train_report

    if options["replay_log"] is not None:
        if model is None:
            raise UsageError("--replay needs the MODEL that the run started from")
        equal = train_report.run_replay(
            model, options["replay_log"], options["profile"], options["engine"], options["threads"]
        )
        return 0 if equal else EXIT_DIFFERS
    if (model is None) != options["demo"]:
        raise UsageError("give a MODEL, or --demo to use the packaged one")
    if options["explain"]:
        train_report.run_explain(_request(model, request, options))
        return 0
    finished = train_report.run_training(_request(model, request, options), options["as_json"])
    return 0 if finished else EXIT_INTERRUPTED


def _request(model: Path | None, data: DataRequest, options: dict[str, Any]) -> Any:
    """The options as npusim.zo.run wants them; what the user did not give is left out."""
    from npusim.zo.demo import demo_request
    from npusim.zo.loop import Limits
    from npusim.zo.request import TrainRequest

    fields = {**options, **{name: getattr(data, name) for name in DATA[:6]}}
    given = {name: value for name, value in fields.items() if _given(name)}
    chosen = {name: given[name] for name in DATA if name in given}
    if data.overrides:
        chosen["overrides"] = data.overrides
    limited = options["steps"] is not None or options["max_forwards"] is not None
    forwards = options["max_forwards"] if limited else 100_000
    made = TrainRequest(
        model=model or Path(),
        out=options["out"] or Path("npusim-run"),
        settings={name: given[name] for name in SETTINGS if name in given},
        preset=options["preset"],
        data=chosen,
        limits=Limits(options["steps"], forwards, options["checkpoint_every"]),
        profile=options["profile"],
        lowering=options["lowering"],
        engine=options["engine"],
        threads=options["threads"],
        resume=options["resume"],
        overwrite=options["overwrite"],
    )
    if not options["demo"]:
        if options["out"] is None and not options["explain"]:
            raise UsageError("a folder for the results is needed", where="--out", got="none")
        return made
    return demo_request(made, keep_limits=limited, keep_out=options["out"] is not None)


def _given(name: str) -> bool:
    """Whether an option stands on the command line, after the verb or before it."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return True
        context = context.parent
    return False
