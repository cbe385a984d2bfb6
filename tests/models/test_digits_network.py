"""The packaged network: how it is made, what it reaches, and its task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from npusim.models import METADATA_KEY, Preprocess, demo_task, open_dataset, parse_shifts
from npusim.models.digits_onnx import Affine, quantized_model, quantized_weight
from npusim.models.pretrain_digits import (
    forward,
    initial_parameters,
    loss_and_gradients,
    main,
    patches,
    patches_backward,
    train,
    training_images,
)
from npusim.models.shifts import shift_images


def accuracy(model: bytes, shift: str, split: str = "test", seed: int = 2) -> float:
    """Top-1 of a model in onnxruntime without graph optimization."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options)
    dataset = open_dataset("digits", split)
    raw = dataset.read(np.arange(len(dataset)))
    images = shift_images(raw, dataset.ids, parse_shifts(shift), seed)
    proto = onnx.load_from_string(model)
    metadata = {p.key: p.value for p in proto.metadata_props}
    x = Preprocess.from_json(metadata[METADATA_KEY]).apply(images)
    logits = session.run(None, {session.get_inputs()[0].name: x})[0]
    return float((logits.argmax(axis=1) == dataset.labels).mean())


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--help"], 0, "--output"),
        ([], 2, "--output"),
        (["--output", "here.onnx"], 2, "--overwrite"),
        (["--output", "absent/digits.onnx"], 2, "absent"),
    ],
)
def test_its_script_writes_what_it_is_told_to_only(
    arguments: list[str],
    code: int,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise AssertionError("it must not train")

    monkeypatch.setattr("npusim.models.pretrain_digits.training_images", fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.onnx").write_bytes(b"precious")
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == code
    shown = capsys.readouterr()
    assert word in shown.out + shown.err
    assert (tmp_path / "here.onnx").read_bytes() == b"precious"


def test_its_script_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.models.pretrain_digits.train", lambda x, y: initial_parameters(1))
    before = demo_task().model_path.read_bytes()
    main(["--output", str(tmp_path / "digits.onnx")])
    assert onnx.load(tmp_path / "digits.onnx").graph.node
    assert demo_task().model_path.read_bytes() == before


def test_the_packaged_network_knows_the_digits_and_not_the_shifted_ones() -> None:
    task = demo_task()
    model = task.model_path.read_bytes()
    assert len(model) < 50_000
    assert accuracy(model, "") > 0.96
    assert 0.2 < accuracy(model, task.shift, task.test_split, task.test_shift_seed) < 0.6


def test_the_packaged_network_is_per_channel_qdq() -> None:
    proto = onnx.load(demo_task().model_path)
    onnx.checker.check_model(proto, full_check=True)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    for layer, channels in (("conv1", 8), ("conv2", 16), ("fc", 10)):
        codes = constants[f"{layer}.weight_quantized"]
        assert (codes.dtype, codes.min() >= -127) == (np.int8, True)
        assert np.abs(codes.reshape(channels, -1)).max(axis=1).tolist() == [127] * channels
        assert constants[f"{layer}.bias_quantized"].dtype == np.int32
        assert constants[f"{layer}.weight_scale"].shape == (channels,)


def test_gradients_are_those_of_the_loss() -> None:
    x, labels = training_images()
    x, labels = x[:4] + 0.1, labels[:4]
    parameters = {n: p + 0.01 for n, p in initial_parameters(0).items()}
    _, gradients = loss_and_gradients(parameters, x, labels)
    step = 1e-6
    for name, value in parameters.items():
        place = tuple(s // 2 for s in value.shape)
        losses = []
        for sign in (1, -1):
            moved = value.copy()
            moved[place] += sign * step
            losses.append(loss_and_gradients({**parameters, name: moved}, x, labels)[0])
        numeric = (losses[0] - losses[1]) / (2 * step)
        assert gradients[name][place] == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_backward_of_patches_is_their_transpose(stride: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 8, 8))
    columns = patches(x, stride)
    y = rng.normal(size=columns.shape)
    back = patches_backward(y, x.shape, stride)
    assert (columns * y).sum() == pytest.approx((x * back).sum())


def test_making_it_is_deterministic_and_learns() -> None:
    x, labels = training_images()
    made = [
        quantized_model(train(x, labels, epochs=3), x).SerializeToString(deterministic=True)
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert accuracy(made[0], "") > 0.8


def test_int8_is_close_to_float() -> None:
    x, labels = training_images()
    parameters = train(x, labels, epochs=2)
    model = quantized_model(parameters, x).SerializeToString()
    float_accuracy = (forward(parameters, x).logits.argmax(axis=1) == labels).mean()
    assert abs(accuracy(model, "", "train") - float_accuracy) < 0.02


def test_quantization_of_weights_and_ranges() -> None:
    codes, scales = quantized_weight(np.array([[0.5, -1.27], [0.0, 2.54]]))
    assert codes.tolist() == [[50, -127], [0, 127]]
    np.testing.assert_allclose(scales, [0.01, 0.02], rtol=1e-6)
    assert Affine.covering(0.0, 1.0) == Affine(np.float32(1 / 255), -128)
    assert Affine.covering(0.5, 2.55).zero_point == -128
    assert Affine.covering(-1.0, 1.0).zero_point in (-1, 0)
