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
    q_json_option,
    seed_option,
    threads_option,
    verbosity_options,
)
from npusim.cli.train_options import DATA, SETTINGS, train_options
from npusim.errors import UsageError

EXIT_DIFFERS, EXIT_INTERRUPTED = 1, 130
REPLAY_OPTIONS = frozenset(
    {"model", "replay_log", "q_json", "engine", "threads", "as_json", "verbose", "quiet"}
)
"""What --replay looks at."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@train_options
@data_options()
@q_json_option
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
    step; --resume then goes on as if the run had never stopped. Standard output says what came of
    it, and under --replay whether the log's checksums agree.
    """
    from npusim.zo.stop import StopRequest

    with StopRequest():  # loading takes seconds: a SIGTERM then is an interruption like any other
        return _command(model, request, options)


def _command(model: Path | None, request: DataRequest, options: dict[str, Any]) -> int:
    from npusim.cli import train_report

    if options["replay_log"] is not None:
        if model is None:
            raise UsageError("--replay needs the MODEL that the run started from")
        _refuse_others("--replay", REPLAY_OPTIONS)
        used = {name: options[name] for name in ("engine", "threads", "q_json")}
        equal = train_report.run_replay(model, options["replay_log"], options["as_json"], **used)
        return 0 if equal else EXIT_DIFFERS
    if (model is None) != options["demo"]:
        raise UsageError("give a MODEL, or --demo to use the packaged one")
    if options["demo"] and options["q_json"]:
        raise UsageError("--demo takes no --q-json")
    if options["explain"]:
        if options["as_json"]:
            raise UsageError("--explain takes no --json")
        train_report.run_explain(_request(model, request, options))
        return 0
    made = _request(model, request, options)
    finished = train_report.run_training(made, options["as_json"])
    if options["demo"] and finished:
        train_report.tell_next(made, click.get_current_context().command.params)
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
        q_json=options["q_json"],
        resume=options["resume"],
        overwrite=options["overwrite"],
    )
    if not options["demo"]:
        if options["out"] is None and not options["explain"]:
            raise UsageError("a folder for the results is needed", where="--out", got="none")
        return made
    keep_out = options["out"] is not None
    return demo_request(made, limited, keep_out, writes=not options["explain"])


def _refuse_others(option: str, taken: frozenset[str]) -> None:
    """Raise UsageError for options on the command line that ``option`` would not look at."""
    context = click.get_current_context()
    unused = [p for p in context.command.params if p.name not in taken and _given(p.name or "")]
    if unused:
        names = ", ".join(max(p.opts, key=len) for p in unused)
        raise UsageError(
            f"{option} makes no use of {names}",
            hint="Its log says how the run was made: leave them out.",
        )


def _given(name: str) -> bool:
    """Whether an option stands on the command line, after the verb or before it."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return True
        context = context.parent
    return False
