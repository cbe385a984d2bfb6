"""Makes digits.onnx, the packaged network: trains a small CNN in NumPy and quantizes it.

``python -m npusim.models.pretrain_digits --output FILE`` makes it anew. Only the data set's "train"
split is used. Everything random comes from SEED, so that one machine always writes the same
bytes; another machine's floating point may differ in the last bits of a weight.

The network, [N, 1, 8, 8] in [0, 1] to 10 logits: 3x3 convolution to 8 channels, ReLU; 3x3
convolution to 16 channels with stride 2, ReLU; fully connected from 4x4x16.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from npusim.files import replacing
from npusim.models.dataset import Indices, stable_keys
from npusim.models.digits import load_digits_split
from npusim.models.shifts import gaussian

Floats = npt.NDArray[np.float64]
Parameters = dict[str, Floats]

SEED = 1
EPOCHS = 40
BATCH = 50
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
# Confident logits have losses that hardly depend on small steps of the weights: without smoothing
# the same zeroth-order run gains 10 points less.
LABEL_SMOOTHING = 0.1
CLASSES = 10
KERNEL = 3
PAD = 1

SHAPES = {
    "conv1.weight": (8, 1, KERNEL, KERNEL),
    "conv1.bias": (8,),
    "conv2.weight": (16, 8, KERNEL, KERNEL),
    "conv2.bias": (16,),
    "fc.weight": (10, 256),
    "fc.bias": (10,),
}
STRIDES = {"conv1": 1, "conv2": 2}


def initial_parameters(seed: int) -> Parameters:
    """He's initialisation (arXiv 1502.01852): variance 2 / fan-in; biases 0."""
    parameters = {}
    for place, (name, shape) in enumerate(SHAPES.items()):
        count, fan_in = int(np.prod(shape)), int(np.prod(shape[1:]))
        values = gaussian(np.random.SeedSequence([seed, place]), count).reshape(shape)
        is_bias = name.endswith("bias")
        parameters[name] = np.zeros(shape) if is_bias else values * np.sqrt(2.0 / fan_in)
    return parameters


def patches(x: Floats, stride: int) -> Floats:
    """The windows of a padded 3x3 convolution, [N, H', W', C * 9], of x [N, C, H, W]."""
    padded = np.pad(x, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(2, 3))
    chosen = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(chosen).reshape(*chosen.shape[:3], -1)


def patches_backward(gradient: Floats, shape: tuple[int, ...], stride: int) -> Floats:
    """The transpose of ``patches``: sums the windows' gradients back into x's [N, C, H, W]."""
    n, channels, height, width = shape
    windows = gradient.reshape(*gradient.shape[:3], channels, KERNEL, KERNEL)
    padded = np.zeros((n, channels, height + 2 * PAD, width + 2 * PAD))
    rows, columns = gradient.shape[1] * stride, gradient.shape[2] * stride
    for dy in range(KERNEL):
        for dx in range(KERNEL):
            padded[:, :, dy : dy + rows : stride, dx : dx + columns : stride] += windows[
                ..., dy, dx
            ].transpose(0, 3, 1, 2)
    return padded[:, :, PAD:-PAD, PAD:-PAD]


@dataclass(frozen=True)
class Activations:
    """What a forward pass computed: layer inputs as matrices, and outputs after ReLU."""

    columns1: Floats
    hidden1: Floats
    columns2: Floats
    hidden2: Floats
    logits: Floats


def forward(parameters: Parameters, x: Floats) -> Activations:
    """All activations for images x [N, 1, 8, 8]."""

    def convolved(columns: Floats, layer: str) -> Floats:
        weight = parameters[f"{layer}.weight"]
        y = columns @ weight.reshape(len(weight), -1).T + parameters[f"{layer}.bias"]
        return np.maximum(y, 0.0).transpose(0, 3, 1, 2)

    columns1 = patches(x, STRIDES["conv1"])
    hidden1 = convolved(columns1, "conv1")
    columns2 = patches(hidden1, STRIDES["conv2"])
    hidden2 = convolved(columns2, "conv2")
    flat = hidden2.reshape(len(x), -1)
    logits = flat @ parameters["fc.weight"].T + parameters["fc.bias"]
    return Activations(columns1, hidden1, columns2, hidden2, logits)


def loss_and_gradients(
    parameters: Parameters, x: Floats, labels: Indices
) -> tuple[float, Parameters]:
    """Mean cross-entropy with smoothed labels, in nats, and its gradient for every parameter."""
    a = forward(parameters, x)
    shifted = a.logits - a.logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.full_like(log_p, LABEL_SMOOTHING / CLASSES)
    target[np.arange(len(x)), labels] += 1.0 - LABEL_SMOOTHING
    d_logits = (np.exp(log_p) - target) / len(x)
    flat = a.hidden2.reshape(len(x), -1)
    d_hidden2 = (d_logits @ parameters["fc.weight"]).reshape(a.hidden2.shape)
    d_columns2, conv2 = _conv_backward(parameters, "conv2", a.columns2, a.hidden2, d_hidden2)
    d_hidden1 = patches_backward(d_columns2, a.hidden1.shape, STRIDES["conv2"])
    _, conv1 = _conv_backward(parameters, "conv1", a.columns1, a.hidden1, d_hidden1)
    fc = {"fc.weight": d_logits.T @ flat, "fc.bias": d_logits.sum(axis=0)}
    return float(-(target * log_p).sum() / len(x)), conv1 | conv2 | fc


def _conv_backward(
    parameters: Parameters, layer: str, columns: Floats, hidden: Floats, d_hidden: Floats
) -> tuple[Floats, Parameters]:
    """(gradient of the columns, gradients of weight and bias) through ReLU and convolution."""
    weight = parameters[f"{layer}.weight"]
    d_y = (d_hidden * (hidden > 0)).transpose(0, 2, 3, 1)
    rows = d_y.reshape(-1, len(weight))
    d_weight = (rows.T @ columns.reshape(len(rows), -1)).reshape(weight.shape)
    d_columns = d_y @ weight.reshape(len(weight), -1)
    return d_columns, {f"{layer}.weight": d_weight, f"{layer}.bias": rows.sum(axis=0)}


def minibatches(n: int, epochs: int, seed: int) -> Iterator[Indices]:
    """Places of BATCH images at a time, in a new order every epoch; a short rest is dropped."""
    for epoch in range(epochs):
        order = np.argsort(stable_keys(seed + epoch, np.arange(n)), kind="stable")
        for start in range(0, n - BATCH + 1, BATCH):
            yield order[start : start + BATCH]


def train(x: Floats, labels: Indices, *, epochs: int = EPOCHS, seed: int = SEED) -> Parameters:
    """Parameters after Adam (arXiv 1412.6980) with decoupled weight decay and a cosine rate."""
    parameters = initial_parameters(seed)
    mean = {name: np.zeros_like(p) for name, p in parameters.items()}
    square = {name: np.zeros_like(p) for name, p in parameters.items()}
    steps = epochs * (len(x) // BATCH)
    for step, places in enumerate(minibatches(len(x), epochs, seed)):
        _, gradients = loss_and_gradients(parameters, x[places], labels[places])
        rate = LEARNING_RATE * 0.5 * (1.0 + np.cos(np.pi * step / steps))
        for name, g in gradients.items():
            mean[name] += 0.1 * (g - mean[name])
            square[name] += 0.001 * (g * g - square[name])
            direction = (mean[name] / (1 - 0.9 ** (step + 1))) / (
                np.sqrt(square[name] / (1 - 0.999 ** (step + 1))) + 1e-8
            )
            parameters[name] = parameters[name] * (1 - rate * WEIGHT_DECAY) - rate * direction
    return parameters


def training_images() -> tuple[Floats, Indices]:
    """(images [1000, 1, 8, 8] in [0, 1], labels) of the digits' "train" split."""
    digits = load_digits_split("train")
    images = digits.read(np.arange(len(digits)))
    return images.transpose(0, 3, 1, 2) / 255.0, digits.labels


def write_model(path: Path) -> None:
    """Trains, quantizes and writes the network (half a minute)."""
    from npusim.models.digits_onnx import quantized_model

    x, labels = training_images()
    model = quantized_model(train(x, labels), x)
    with replacing(path) as file:
        file.write(model.SerializeToString(deterministic=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; an existing file is replaced with --overwrite only."""
    parser = argparse.ArgumentParser(
        prog="python -m npusim.models.pretrain_digits",
        description="Train the packaged digits network anew and write it as quantized ONNX.",
    )
    parser.add_argument("--output", type=Path, required=True, help="the ONNX file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.overwrite:
        parser.error(f"{options.output} is there already; --overwrite replaces it")
    if not options.output.parent.is_dir():
        parser.error(f"the folder {options.output.parent} does not exist")
    write_model(options.output)


if __name__ == "__main__":
    main()
