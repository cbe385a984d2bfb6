"""The images a run trains on and those it holds out, as the options describe them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from npusim.errors import DataError
from npusim.ir import Graph
from npusim.models import (
    Inputs,
    limited,
    make_inputs,
    named_source,
    open_dataset,
    parse_shifts,
)
from npusim.zo.loss import check_labels
from npusim.zo.network import Labelled, TrainedNetwork


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What is trained on and validated with; JSON-able, kept in checkpoints.

    data: spec of npusim.models.open_dataset; None: what the network's metadata name.
    split: named split to train on; None: "train" where there is one.
    limit: images of each data set at most. overrides: fields of Preprocess.
    shift, shift_seed: corruption of all images, and its draw for training.
    val_data: a data set to validate on (its test split where it has one); else val_split, a
        fraction in (0, 1), of the training images is held out.
    val_data_split: named split of val_data.
    val_shift_seed: the corruption's draw for validation; None: shift_seed + 1.
    skip_corrupt: leave out images that cannot be decoded.
    """

    data: str | None = None
    split: str | None = None
    limit: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    shift: str = ""
    shift_seed: int = 0
    val_data: str | None = None
    val_data_split: str | None = None
    val_split: float = 0.2
    val_shift_seed: int | None = None
    skip_corrupt: bool = False

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        overrides = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data["overrides"].items()
        }
        return cls(**{**data, "overrides": overrides})


@dataclass(frozen=True)
class Splits:
    """training, validation: as ``spec`` says. clean: validation without the corruption, or None."""

    training: Inputs
    validation: Inputs
    clean: Inputs | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was assumed and left out."""
        skipped = {*self.training.dataset.skipped, *self.validation.dataset.skipped}
        return (
            *self.training.assumptions,
            *(f"{name} cannot be decoded and is left out" for name in sorted(skipped)),
        )


def open_splits(spec: DataSpec, graph: Graph, seed: int) -> Splits:
    """The inputs that the spec asks for.

    Args:
        seed: chooses which images are held out, and those of a limit.

    Raises:
        DataError: no data set is given and the network's metadata name none that is here, or the
            data set is unfit. UsageError for a bad shift or fraction.
    """
    source = spec.data or named_source(graph)
    if source is None:
        raise DataError(
            "the network's file names no data set that is here",
            where=graph.path or graph.name,
            hint="Give one with --data, for example --data PATH_TO_CLASS_FOLDERS or --data digits.",
        )
    training = _inputs(spec, graph, source, spec.split, "train", seed, spec.shift_seed)
    draw = spec.shift_seed + 1 if spec.val_shift_seed is None else spec.val_shift_seed
    if spec.val_data is not None:
        held_out = _inputs(spec, graph, spec.val_data, spec.val_data_split, "test", seed, draw)
    else:
        training, held_out = training.split(spec.val_split, seed)
        held_out = dataclasses.replace(held_out, shift_seed=draw)
    clean = dataclasses.replace(held_out, shifts=()) if held_out.shifts else None
    return Splits(training, held_out, clean)


def encode_inputs(inputs: Inputs, network: TrainedNetwork) -> Labelled:
    """All images as codes of the quantized input, made by the network's own QuantizeLinear.

    Raises DataError where a label names no output of the network.
    """
    check_labels(inputs.labels, network.classes, inputs.dataset.source)
    codes = [network.encode(images) for images, _ in inputs.batches()]
    return Labelled(np.concatenate(codes), inputs.labels)


def _inputs(
    spec: DataSpec,
    graph: Graph,
    source: str,
    split: str | None,
    prefer: str,
    seed: int,
    draw: int,
) -> Inputs:
    dataset = open_dataset(source, split, prefer=prefer, skip_corrupt=spec.skip_corrupt)
    if spec.limit is not None:
        dataset = limited(dataset, spec.limit, seed)
    return make_inputs(
        graph,
        dataset,
        overrides=spec.overrides,
        shifts=parse_shifts(spec.shift),
        shift_seed=draw,
    )
