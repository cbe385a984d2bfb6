"""The options of npusim train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

# Options that a checkpoint keeps, by the dataclass of npusim.zo they belong to.
SETTINGS = (
    "seed", "batch", "update", "residual_bits", "history", "acc_bits", "acc_residual", "q", "q0",
    "q_max", "window", "patience", "metric", "reset_best", "sides", "direction", "clip", "layerq",
    "mu", "layer_mu", "gate", "mask", "lr", "lr_scaling", "lr_schedule", "horizon", "geometry",
    "train_layers", "train_weights", "train_bias", "loss", "crc_every", "eval_every",
)  # fmt: skip
DATA = (
    "data", "split", "limit", "shift", "shift_seed", "skip_corrupt",
    "val_data", "val_data_split", "val_split", "val_shift_seed",
)  # fmt: skip
_UPDATES = ("residual", "faithful", "sr", "sign", "replay-residual", "int8-acc")


def _window(context: click.Context, option: click.Parameter, value: str) -> int | None:
    """A number of image-forwards; None for an epoch."""
    if value == "epoch":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter("neither a number of image-forwards nor epoch")
    return int(value)


def _rate(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """A number, or auto."""
    if value is None or value == "auto":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter("neither a number nor auto") from None


def _list(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part for part in value.split(",") if part)


def _number(context: click.Context, option: click.Parameter, value: str) -> int:
    return int(value)


_OPTIONS = (
    click.option("--out", type=click.Path(path_type=Path), help="Folder for all results."),
    click.option("--demo", is_flag=True, help="Adapt the packaged digits network, in a minute; "
                 "without --out into a new folder npusim-demo."),
    click.option("--preset", metavar="NAME",
                 help="Several settings at once: zo-i8, qscheduler-faithful or "
                 "qscheduler-faithful-int8; options given besides replace its own."),
    click.option("--explain", is_flag=True,
                 help="Say in words what would be done, with every constant, and stop."),
    click.option("--q", default="qscheduler", show_default=True,
                 help="Directions a step: fixed:N, qscheduler, ramp:A:B or variance:N."),
    click.option("--q0", type=click.IntRange(1), default=1, show_default=True,
                 help="Where the scheduler's set of q begins."),
    click.option("--q-max", type=click.IntRange(1), default=64, show_default=True,
                 help="Most directions a step of the scheduler."),
    click.option("--window", callback=_window, default="10000", show_default=True,
                 help="Image-forwards (or epoch) after which the scheduler looks at the loss."),
    click.option("--patience", type=click.IntRange(1), default=3, show_default=True,
                 help="Windows without progress that are a stall."),
    click.option("--metric", type=click.Choice(["train-loss", "val-loss", "val-accuracy"]),
                 default="train-loss", show_default=True, help="What progress is measured by."),
    click.option("--reset-best/--keep-best", default=False,
                 help="Forget the best metric at a stall.  [default: keep]"),
    click.option("--sides", type=click.Choice(["two-sided", "leave-one-out", "one-sided"]),
                 default="two-sided", show_default=True, help="How losses become coefficients."),
    click.option("--direction", type=click.Choice(["rademacher", "gaussian"]),
                 default="rademacher", show_default=True, help="Distribution of directions."),
    click.option("--clip", type=click.FloatRange(0), default=0.0,
                 help="Largest coefficient, in running medians.  [default: none]"),
    click.option("--layerq", is_flag=True, help="Perturb one random layer a direction."),
    click.option("--update", type=click.Choice(_UPDATES), default="residual", show_default=True,
                 help="How coefficients move the weights."),
    click.option("--residual-bits", type=click.Choice(["8", "16"]), callback=_number, default="8",
                 show_default=True, help="Fraction bits of the masters of residual."),
    click.option("--history", type=click.IntRange(1), default=8, show_default=True,
                 help="Steps that replay-residual looks back on."),
    click.option("--acc-bits", type=click.Choice(["16", "8"]), callback=_number, default="16",
                 show_default=True, help="Width of the sums of int8-acc."),
    click.option("--acc-residual/--no-acc-residual", default=False,
                 help="Whether int8-acc keeps masters.  [default: no]"),
    click.option("--steps", type=click.IntRange(0), help="Steps in total."),
    click.option("--max-forwards", type=click.IntRange(0),
                 help="Image-forwards in total.  [default: 100000 where --steps is not given]"),
    click.option("--batch", type=click.IntRange(1), default=10, show_default=True,
                 help="Images a step."),
    click.option("--mu", type=click.IntRange(1, 127),
                 help="Size of a perturbation, in codes.  [default: 2; 1 for gaussian]"),
    click.option("--layer-mu", metavar="GLOB=N[,...]", callback=_list, default="",
                 help="Another size for some layers."),
    click.option("--gate", is_flag=True,
                 help="Leave out codes closer than mu to an end of their range."),
    click.option("--mask", metavar="KIND:F", default="",
                 help="Train a fraction F of each layer's weights: random, smallest or largest."),
    click.option("--lr", callback=_rate, help="Learning rate, LSB^2 per nat per image-forward "
                 "(--lr-scaling linear) or per step (none), or auto: measured.  [default: auto; "
                 "3 for faithful, 0.0005 for sign]"),
    click.option("--lr-scaling", type=click.Choice(["linear", "none"]),
                 help="[default: none for faithful, else linear]"),
    click.option("--lr-schedule", type=click.Choice(["constant", "patience", "cosine", "linear"]),
                 default="constant", show_default=True, help="Course of the learning rate."),
    click.option("--horizon", type=click.IntRange(1),
                 help="Image-forwards of a decay or ramp.  [default: --max-forwards]"),
    click.option("--geometry", type=click.Choice(["lsb", "real"]), default="lsb",
                 show_default=True, help="Steps alike in codes, or in real units."),
    click.option("--train-layers", metavar="GLOB[,...]", callback=_list, default="*",
                 show_default=True,
                 help="Names of the layers or tensors to train; @last is the last layer."),
    click.option("--train-weights/--no-train-weights", default=True,
                 help="Whether weights are trained.  [default: yes]"),
    click.option("--train-bias/--no-train-bias", default=False,
                 help="Whether biases are trained.  [default: no; yes with zo-i8]"),
    click.option("--loss", type=click.Choice(["integer", "float"]), default="integer",
                 show_default=True, help="float is for comparison with faithful and sr."),
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
                 help="Rebuild the weights of a run from MODEL and its log alone and compare "
                 "checksums."),
)  # fmt: skip


def train_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
