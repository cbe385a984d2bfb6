"""The embedded default: a small network for the digits, and the task it is adapted to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL_PATH = Path(__file__).with_name("digits.onnx")


@dataclass(frozen=True)
class DemoTask:
    """What ``npusim train --demo`` does: adapt a packaged network to a shifted domain.

    model_path: the pre-trained int8 network; its metadata hold its pre-processing.
    data: spec of the data set, for ``open_dataset``.
    shift: the corruption, for ``parse_shifts``; both splits are shifted.
    train_split: the images to adapt on. test_split: images that neither the pre-training nor the
        adaptation ever sees.
    train_shift_seed, test_shift_seed: two draws of the noise.
    lr, max_forwards: learning rate (in the unit of zeroth-order training: LSB^2 per nat per
        image-forward) and budget, in image-forwards, that adapt it in about a minute.
    """

    model_path: Path
    data: str
    shift: str
    train_split: str
    test_split: str
    train_shift_seed: int
    test_shift_seed: int
    lr: float
    max_forwards: int


def demo_task() -> DemoTask:
    """The demonstration's task."""
    return DemoTask(
        model_path=MODEL_PATH,
        data="digits",
        shift="rotation:30,noise:0.1",
        train_split="train",
        test_split="test",
        train_shift_seed=1,
        test_shift_seed=2,
        lr=0.5,
        max_forwards=100_000,
    )
