"""The options about data that several verbs share, and the inputs they ask for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.terminal import note, say
from npusim.errors import DataError, UsageError

if TYPE_CHECKING:
    from npusim.ir import Graph
    from npusim.models import Inputs


FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
"""Of those of npusim.models.preprocess (which takes long to import) what every Pillow has."""


@dataclass(frozen=True)
class DataRequest:
    """What the data options said. overrides: fields of Preprocess that were given."""

    data: str | None = None
    split: str | None = None
    limit: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    shift: str = ""
    shift_seed: int = 0
    skip_corrupt: bool = False


class Numbers(click.ParamType):
    """Numbers separated by commas, as a tuple of floats."""

    name = "number[,number...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in value.split(","))
        except ValueError:
            numbers = (math.nan,)
        if not all(map(math.isfinite, numbers)):
            self.fail(f"{value!r} is not a list of numbers such as 0.5,0.5,0.5", param, ctx)
        return numbers


class Size(click.ParamType):
    """HEIGHT,WIDTH (or one number for a square), as a tuple of two integers."""

    name = "height,width|side"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        parts = value.replace("x", ",").split(",")
        if len(parts) > 2 or not all(p.isdecimal() and int(p) > 0 for p in parts):
            self.fail(f"{value!r} is neither HEIGHT,WIDTH nor the side of a square", param, ctx)
        return int(parts[0]), int(parts[-1])


_PREPROCESS_OPTIONS = (
    click.option("--layout", type=click.Choice(["NHWC", "NCHW"]), help="Axes of the input."),
    click.option("--scale", type=float, help="input = (pixel * scale - mean) / std."),
    click.option("--mean", type=Numbers(), help="One value, or one a channel."),
    click.option("--std", type=Numbers(), help="One value, or one a channel."),
    click.option("--resize", type=Size(), help="Resize images to HEIGHT,WIDTH or a square."),
    click.option("--resize-filter", type=click.Choice(FILTERS), help="Pillow's filter for it."),
    click.option("--crop", type=Size(), help="Cut HEIGHT,WIDTH or a square from the centre."),
    click.option("--channel-order", type=click.Choice(["RGB", "BGR", "GRAY"])),
)
_PREPROCESS_FIELDS = (
    "layout",
    "scale",
    "mean",
    "std",
    "resize",
    "resize_filter",
    "crop",
    "channel_order",
)

_DATA_OPTIONS = (
    click.option(
        "--data",
        metavar="DATA",
        help="Data set: digits (built in), class folders of JPEG/PNG, .npz or .h5 with x and y, "
        "MNIST idx files, STL-10 binaries, CIFAR-10 batches.",
    ),
    click.option("--split", help="Named split of the data set, such as train or test."),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        help="At most so many images, chosen by --seed with the classes in proportion.",
    ),
    *_PREPROCESS_OPTIONS,
    click.option(
        "--shift",
        default="",
        metavar="KIND:AMOUNT[,...]",
        help="Corrupt the images: noise:0.1, rotation:30, contrast:0.15, colour:0.2.",
    ),
    click.option(
        "--shift-seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Which draw of the corruption.",
    ),
    click.option("--skip-corrupt", is_flag=True, help="Leave out images that do not decode."),
)


def data_options() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds the data options; the verb receives them as one ``request``."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def wrapped(**arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in _PREPROCESS_FIELDS}
            request = DataRequest(
                data=arguments.pop("data"),
                split=arguments.pop("split"),
                limit=arguments.pop("limit"),
                overrides={name: value for name, value in given.items() if value is not None},
                shift=arguments.pop("shift"),
                shift_seed=arguments.pop("shift_seed"),
                skip_corrupt=arguments.pop("skip_corrupt"),
            )
            return verb(request=request, **arguments)

        decorated: Callable[..., Any] = wrapped
        for option in reversed(_DATA_OPTIONS):
            decorated = option(decorated)
        return decorated

    return decorate


def open_inputs(
    request: DataRequest,
    graph: Graph,
    *,
    prefer: str = "test",
    seed: int = 0,
    data: str | None = None,
    split: str | None = None,
    shift_seed: int | None = None,
) -> Inputs:
    """The inputs that the options ask for; says on stderr what was assumed and left out.

    Args:
        prefer: "train" or "test": the split to take where none is named.
        seed: chooses the images of ``--limit``.
        data, split, shift_seed: stand for the request's own (for a second data set; its split is
            not taken from the request where ``data`` is given).

    Raises:
        DataError: no data set is given and the network's metadata name none that can be opened,
            or the data set is unfit. UsageError for a bad ``--shift``.
    """
    from npusim.models import limited, make_inputs, named_source, open_dataset, parse_shifts

    shifts = parse_shifts(request.shift)
    if request.shift_seed and not shifts:
        raise UsageError("the option has no effect here", where="--shift-seed", wanted="--shift")
    spec = data or request.data or named_source(graph)
    if spec is None:
        raise DataError(
            "the network's file names no data set that is here",
            where=graph.path or graph.name,
            hint="Give one with --data, for example --data PATH_TO_CLASS_FOLDERS or --data digits.",
        )
    dataset = open_dataset(
        spec,
        split or (None if data else request.split),
        prefer=prefer,
        skip_corrupt=request.skip_corrupt,
    )
    if request.limit is not None:
        dataset = limited(dataset, request.limit, seed)
    inputs = make_inputs(
        graph,
        dataset,
        overrides=request.overrides,
        shifts=shifts,
        shift_seed=request.shift_seed if shift_seed is None else shift_seed,
    )
    _tell(inputs)
    return inputs


def _tell(inputs: Inputs) -> None:
    for sentence in inputs.assumptions:
        note(sentence)
    for name in inputs.dataset.skipped:
        say(f"skipped: {name} cannot be decoded")
