"""A data set as a network's inputs: pre-processed, shifted, checked, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import BadShape, UsageError
from npusim.ir import Array, Graph, Value
from npusim.models.dataset import DataSet, Indices, train_validation_split
from npusim.models.inference import infer_preprocess
from npusim.models.opening import BUILT_IN
from npusim.models.preprocess import METADATA_KEY, Preprocess, PreprocessError, check
from npusim.models.shifts import Shift, shift_images

BATCH = 256


@dataclass(frozen=True)
class Inputs:
    """Images of a data set, made into inputs of a network when they are asked for.

    target: the network's input, whose type and shape ``batch`` returns.
    shifts, shift_seed: the corruption of the raw images, and which draw of it.
    assumptions: sentences about what the network's file does not say.
    """

    dataset: DataSet
    target: Value
    preprocess: Preprocess
    shifts: tuple[Shift, ...] = ()
    shift_seed: int = 0
    assumptions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def labels(self) -> Indices:
        """int64 [n]."""
        return self.dataset.labels

    def batch(self, indices: Any) -> Array:
        """Inputs at these places, [n, ...] in the network's input type.

        An image's values do not depend on the others of the batch. Raises DataError naming an
        image that cannot be decoded.
        """
        chosen = np.asarray(indices, np.int64)
        if self.dataset.shape is None:
            parts = [self._prepared(chosen[i : i + 1]) for i in range(len(chosen))]
            return np.concatenate(parts)
        return self._prepared(chosen)

    def _prepared(self, indices: Indices) -> Array:
        raw = self.dataset.read(indices)
        shifted = shift_images(raw, self.dataset.ids[indices], self.shifts, self.shift_seed)
        return self.preprocess.apply(shifted, len(self.target.type.shape))

    def batches(self, size: int = BATCH) -> Iterator[tuple[Array, Indices]]:
        """(inputs, labels) of ``size`` images at a time, in order; the last may be smaller."""
        for start in range(0, len(self), size):
            places = np.arange(start, min(start + size, len(self)))
            yield self.batch(places), self.labels[places]

    def arrays(self) -> tuple[Array, Indices]:
        """(inputs, labels) of all images."""
        return np.concatenate([x for x, _ in self.batches()]), self.labels

    def subset(self, indices: Any) -> Inputs:
        """The inputs at these places, in the order given."""
        return replace(self, dataset=self.dataset.subset(indices))

    def split(self, fraction: float, seed: int) -> tuple[Inputs, Inputs]:
        """(training, validation), as ``train_validation_split``."""
        train, validation = train_validation_split(self.dataset, fraction, seed)
        return replace(self, dataset=train), replace(self, dataset=validation)

    def describe(self) -> dict[str, Any]:
        """What the inputs are, for logs and reports: plain JSON values. Decodes all images."""
        return {
            "dataset": self.dataset.name,
            "source": self.dataset.source,
            "split": self.dataset.split,
            "images": len(self),
            "skipped": list(self.dataset.skipped),
            "sha256": self.dataset.content_hash(),
            "shift": ",".join(str(s) for s in self.shifts),
            "shift_seed": self.shift_seed,
            "preprocess": asdict(self.preprocess),
        }


def make_inputs(
    graph: Graph,
    dataset: DataSet,
    *,
    overrides: Mapping[str, Any] | None = None,
    shifts: tuple[Shift, ...] = (),
    shift_seed: int = 0,
) -> Inputs:
    """Inputs of ``graph`` from ``dataset``, checked before any image is decoded.

    Args:
        graph: a network with one input; its metadata may hold ``npusim.preprocess``.
        overrides: fields of Preprocess that the user sets; they win over the metadata.

    Raises:
        BadShape: the network has several inputs, or the images do not fit its input.
        DataError: see ``npusim.models.preprocess.check`` and ``infer_preprocess``.
        UsageError: a field that the user sets makes no sense, or none for these images.
    """
    if len(graph.inputs) != 1:
        raise BadShape(
            "a data set can feed networks with one input only",
            where=graph.path or graph.name,
            got=", ".join(v.name for v in graph.inputs),
        )
    changes = dict(overrides or {})
    base, assumptions = _base_preprocess(graph, dataset, changes)
    try:
        preprocess = base.overridden(changes)
        check(preprocess, graph.inputs[0], dataset, output_classes(graph))
    except PreprocessError as error:
        if error.field not in changes:
            raise
        option = f"--{error.field.replace('_', '-')}"
        raise UsageError(error.problem, where=option, got=error.got, wanted=error.wanted) from None
    return Inputs(dataset, graph.inputs[0], preprocess, shifts, shift_seed, assumptions)


def _base_preprocess(
    graph: Graph, dataset: DataSet, changes: Mapping[str, Any]
) -> tuple[Preprocess, tuple[str, ...]]:
    """(what the network's file says of its input, or what follows from it; the assumptions)."""
    text = graph.metadata.get(METADATA_KEY)
    if text is None:
        return infer_preprocess(graph, dataset, changes)
    stored = Preprocess.from_json(text)
    if dataset.images.dtype == "uint8" or {"scale", "mean", "std"} & set(changes):
        return stored, ()
    # Scaling floats that are in the input's range already would give a plausible wrong accuracy.
    note = (
        f"assumed that the {dataset.images.dtype} data are the input's own values; "
        "the scale, mean and std of the network's file are for uint8 pixels"
    )
    return replace(stored, scale=1.0, mean=(0.0,), std=(1.0,)), (note,)


def output_classes(graph: Graph) -> int | None:
    """Number of classes of a classifier: one output [N, classes]; None for other networks."""
    shape = graph.outputs[0].type.shape
    return shape[1] if len(graph.outputs) == 1 and len(shape) == 2 else None


def named_source(graph: Graph) -> str | None:
    """The data set that the network's metadata names, if it can be opened: a built-in name, or a
    path where something still is. None otherwise.
    """
    text = graph.metadata.get(METADATA_KEY)
    if text is None:
        return None
    preprocess = Preprocess.from_json(text)
    for spec in (preprocess.source, preprocess.dataset):
        if spec in BUILT_IN or (spec and spec == preprocess.source and Path(spec).exists()):
            return spec
    return None
