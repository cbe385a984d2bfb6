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
from npusim.errors import UsageError

EXIT_DIFFERS, EXIT_INTERRUPTED = 1, 130

# Options that a checkpoint keeps, by the dataclass of npusim.zo they belong to.
_SETTINGS = (
    "seed", "batch", "update", "q", "q_max", "window", "patience", "mu", "lr", "lr_scaling",
    "train_layers", "crc_every", "eval_every",
)  # fmt: skip
_DATA = (
    "data", "split", "limit", "shift", "shift_seed", "skip_corrupt",
    "val_data", "val_data_split", "val_split", "val_shift_seed",
)  # fmt: skip


def _window(context: click.Context, option: click.Parameter, value: str) -> int | None:
    """A number of image-forwards; None for an epoch."""
    if value == "epoch":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter("neither a number of image-forwards nor epoch")
    return int(value)


_OPTIONS = (
    click.option("--out", type=click.Path(path_type=Path), help="Folder for all results."),
    click.option("--demo", is_flag=True, help="Adapt the packaged digits network, in a minute."),
    click.option("--q", default="qscheduler", show_default=True, help="fixed:N or qscheduler."),
    click.option("--q-max", type=click.IntRange(1), default=64, show_default=True,
                 help="Most directions a step of the scheduler."),
    click.option("--window", callback=_window, default="10000", show_default=True,
                 help="Image-forwards (or epoch) after which the scheduler looks at the loss."),
    click.option("--patience", type=click.IntRange(1), default=3, show_default=True,
                 help="Windows without progress before q rises."),
    click.option("--update", type=click.Choice(["residual", "faithful"]), default="residual",
                 show_default=True, help="Keep what rounding leaves over, or not (as the paper)."),
    click.option("--steps", type=click.IntRange(0), help="Steps in total."),
    click.option("--max-forwards", type=click.IntRange(0),
                 help="Image-forwards in total.  [default: 100000 where --steps is not given]"),
    click.option("--batch", type=click.IntRange(1), default=10, show_default=True,
                 help="Images a step."),
    click.option("--mu", type=click.IntRange(1, 127), default=2, show_default=True,
                 help="Size of a perturbation, in codes."),
    click.option("--lr", type=float, help="Learning rate, LSB^2 per nat per image-forward "
                 "(--lr-scaling linear) or per step (none)."),
    click.option("--lr-scaling", type=click.Choice(["linear", "none"]),
                 help="[default: linear for residual, none for faithful]"),
    click.option("--train-layers", metavar="GLOB[,...]", default="*", show_default=True,
                 help="Names of the layers or weight tensors to train."),
    click.option("--val-split", type=click.FloatRange(0, 1, True, True), default=0.2,
                 show_default=True, help="Fraction of the images held out for validation."),
    click.option("--val-data", metavar="DATA", help="A data set to validate on instead."),
    click.option("--val-data-split", help="Its named split.  [default: test]"),
    click.option("--val-shift-seed", type=click.IntRange(0),
                 help="Draw of the corruption for validation.  [default: --shift-seed + 1]"),
    click.option("--eval-every", type=click.IntRange(0), default=50_000, show_default=True,
                 help="Image-forwards between validations; 0: only before and after."),
    click.option("--crc-every", type=click.IntRange(1), default=50, show_default=True,
                 help="Steps between weight checksums in the log."),
    click.option("--checkpoint-every", type=click.IntRange(1), default=500, show_default=True,
                 help="Steps between checkpoints."),
    click.option("--resume", is_flag=True, help="Go on from the checkpoint in --out."),
    click.option("--overwrite", is_flag=True, help="Replace a run that is in --out."),
    click.option("--replay", "replay_log", type=click.Path(path_type=Path), metavar="LOG",
                 help="Rebuild the weights of a run from its log alone and compare checksums."),
)  # fmt: skip


def _train_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@_train_options
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
    finished = train_report.run_training(_request(model, request, options), options["as_json"])
    return 0 if finished else EXIT_INTERRUPTED


def _request(model: Path | None, data: DataRequest, options: dict[str, Any]) -> Any:
    """The options as npusim.zo.run wants them; what the user did not give is left out."""
    from npusim.zo.demo import demo_request
    from npusim.zo.loop import Limits
    from npusim.zo.run import TrainRequest

    options["train_layers"] = tuple(options["train_layers"].split(","))
    fields = {**options, **{name: getattr(data, name) for name in _DATA[:6]}}
    given = {name: value for name, value in fields.items() if _given(name)}
    chosen = {name: given[name] for name in _DATA if name in given}
    if data.overrides:
        chosen["overrides"] = data.overrides
    limited = options["steps"] is not None or options["max_forwards"] is not None
    forwards = options["max_forwards"] if limited else 100_000
    made = TrainRequest(
        model=model or Path(),
        out=options["out"] or Path("npusim-run"),
        settings={name: given[name] for name in _SETTINGS if name in given},
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
        if options["out"] is None:
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
