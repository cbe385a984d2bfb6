"""Pre-processing, what is inferred of it, and the checks before any work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from npusim.errors import BadShape, DataError, UsageError
from npusim.ir import Node, QParams, TensorType, Value
from npusim.models import (
    METADATA_KEY,
    DataSet,
    Preprocess,
    limited,
    make_inputs,
    named_source,
    open_dataset,
)
from npusim.models.dataset import ArrayImages, make_dataset

PIXELS = np.random.default_rng(9).integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)


def images_of(pixels: np.ndarray, names: tuple[str, ...] = ("a", "b", "c")) -> DataSet:
    labels = np.arange(len(pixels)) % 3
    return make_dataset("set", "set", "", ArrayImages(pixels), labels, names)


def test_json_round_trip() -> None:
    original = Preprocess(
        layout="NHWC",
        scale=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        resize=(40, 30),
        resize_filter="lanczos",
        crop=(32, 24),
        channel_order="BGR",
        dataset="pets",
        source="/data/pets",
    )
    assert Preprocess.from_json(original.to_json()) == original
    assert Preprocess.from_json("{}") == Preprocess()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"laoyut": "NHWC"}', "laoyut"),
        ('{"layout": "HWC"}', "layout.*NCHW or NHWC"),
        ('{"scale": "1"}', "scale"),
        ('{"scale": NaN}', "scale.*finite"),
        ('{"mean": [1, 2]}', "mean.*one for each of 3 channels"),
        ('{"std": 0}', "std"),
        ('{"resize": [32]}', "resize"),
        ('{"resize": [32, 1.5]}', "resize"),
        ('{"crop": [0, 1]}', "crop"),
        ('{"resize_filter": "magic"}', "bicubic"),
        ('{"dtype": "int32"}', "dtype"),
        ('{"dataset": 3}', "dataset"),
    ],
)
def test_bad_metadata_are_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Preprocess.from_json(text)


def test_normalisation_layout_and_channel_order() -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    p = Preprocess(scale=1 / 255, mean=mean, std=std, channel_order="BGR")
    expected = (PIXELS[..., ::-1] / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(p.apply(PIXELS), expected.transpose(0, 3, 1, 2), atol=1e-5)
    assert p.apply(PIXELS).dtype == np.float32
    nhwc = replace(p, layout="NHWC").apply(PIXELS)
    np.testing.assert_array_equal(nhwc.transpose(0, 3, 1, 2), p.apply(PIXELS))
    np.testing.assert_array_equal(p.apply(PIXELS, axes=2), p.apply(PIXELS).reshape(6, -1))


def test_grey_from_colour_as_pillow_does_and_back() -> None:
    grey = Preprocess(channel_order="GRAY", dtype="uint8").apply(PIXELS)
    expected = np.stack([np.asarray(Image.fromarray(i).convert("L")) for i in PIXELS])
    np.testing.assert_array_equal(grey[:, 0], expected)
    colour = Preprocess(dtype="uint8").apply(PIXELS[..., :1])
    np.testing.assert_array_equal(colour, np.repeat(PIXELS[..., :1], 3, 3).transpose(0, 3, 1, 2))


def test_integer_inputs_round_and_saturate() -> None:
    p = Preprocess(mean=(128.0,), dtype="int8")
    np.testing.assert_array_equal(p.apply(PIXELS), (PIXELS.astype(int) - 128).transpose(0, 3, 1, 2))
    doubled = replace(p, scale=2.0).apply(PIXELS)
    assert (doubled.min(), doubled.max(), doubled.dtype) == (-128, 127, np.int8)


def test_resize_then_crop_from_the_centre() -> None:
    p = Preprocess(layout="NHWC", resize=(8, 10), crop=(4, 6), resize_filter="nearest")
    doubled = PIXELS.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(p.apply(PIXELS), doubled[:, 2:6, 2:8].astype(np.float32))


def test_inputs_follow_the_metadata_and_the_flags_win(signature) -> None:
    stored = Preprocess(layout="NCHW", scale=1 / 255, dataset="set")
    graph = signature((None, 3, 4, 5), metadata={METADATA_KEY: stored.to_json()})
    inputs = make_inputs(graph, images_of(PIXELS))
    np.testing.assert_array_equal(inputs.batch([2])[0], stored.apply(PIXELS[2:3])[0])
    assert inputs.assumptions == ()
    flagged = make_inputs(graph, images_of(PIXELS), overrides={"scale": 1.0, "mean": (1.0,)})
    np.testing.assert_array_equal(flagged.batch([2])[0, 0], PIXELS[2, :, :, 0] - np.float32(1))


def test_batches_cover_all_images_in_order(signature) -> None:
    inputs = make_inputs(signature((None, 4, 5, 3)), images_of(PIXELS))
    x, y = inputs.arrays()
    pieces = list(inputs.batches(4))
    assert [len(p) for p, _ in pieces] == [4, 2]
    np.testing.assert_array_equal(np.concatenate([p for p, _ in pieces]), x)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in pieces]), y)
    train, validation = inputs.split(0.5, 0)
    assert sorted([*train.dataset.ids, *validation.dataset.ids]) == list(range(6))


def test_a_description_is_plain_json(signature) -> None:
    record = make_inputs(signature((None, 4, 5, 3)), images_of(PIXELS)).describe()
    assert json.loads(json.dumps(record))["images"] == 6


@pytest.mark.parametrize(
    ("shape", "dtype", "assumed"),
    [
        ((None, 3, 4, 5), "float32", ("NCHW", "RGB", (0.0,))),
        ((None, 4, 5, 3), "float32", ("NHWC", "RGB", (0.0,))),
        ((None, 4, 5, 1), "float32", ("NHWC", "GRAY", (0.0,))),
        ((None, 60), "float32", ("NHWC", "RGB", (0.0,))),
        ((None, 4, 5, 3), "uint8", ("NHWC", "RGB", (0.0,))),
        ((None, 4, 5, 3), "int8", ("NHWC", "RGB", (128.0,))),
    ],
)
def test_what_is_inferred_from_the_input_is_said(signature, shape, dtype, assumed) -> None:
    inputs = make_inputs(signature(shape, dtype), images_of(PIXELS))
    p = inputs.preprocess
    assert (p.layout, p.channel_order, p.mean) == assumed
    assert len(inputs.assumptions) == 2
    assert inputs.batch([0, 1]).shape == (2, *shape[1:])


@pytest.mark.parametrize(
    ("scale", "zero_point", "expected"),
    [
        (1.0, -128, (1.0, 0.0, 1.0)),
        (1 / 255, -128, (1 / 255, 0.0, 1.0)),
        (2 / 255, 0, (1.0, 127.5, 127.5)),
        (1.0, 0, (1.0, 128.0, 1.0)),
    ],
)
def test_the_first_quantization_tells_the_range(signature, scale, zero_point, expected) -> None:
    graph = quantized_first(signature, scale, zero_point)
    p = make_inputs(graph, images_of(PIXELS)).preprocess
    assert (p.scale, p.mean[0], p.std[0]) == pytest.approx(expected)


def quantized_first(signature, scale: float, zero_point: int):
    graph = signature((None, 3, 4, 5))
    qparams = QParams.make(scale, zero_point)
    codes = Value("codes", TensorType("int8", (None, 3, 4, 5)), qparams)
    moved = Value("moved", TensorType("float32", (None, 3, 4, 5)))
    nodes = (
        Node("transpose", "t", ("x",), ("moved",)),
        Node("quantize", "q", ("moved",), ("codes",)),
    )
    return graph.with_(nodes=nodes, values={**graph.values, "codes": codes, "moved": moved})


def test_an_unusual_range_is_not_guessed(signature) -> None:
    graph = quantized_first(signature, 4.7 / 255, -14)
    with pytest.raises(DataError, match=r"cannot be told.*--scale, --mean and --std"):
        make_inputs(graph, images_of(PIXELS))
    make_inputs(graph, images_of(PIXELS), overrides={"scale": 1 / 255})


def test_float_data_are_not_scaled_twice(signature) -> None:
    stored = Preprocess(scale=1 / 255)
    graph = signature((None, 3, 4, 5), metadata={METADATA_KEY: stored.to_json()})
    floats = (PIXELS / 255).astype(np.float32)
    inputs = make_inputs(graph, images_of(floats))
    np.testing.assert_array_equal(inputs.batch([0])[0], floats[0].transpose(2, 0, 1))
    assert "own values" in inputs.assumptions[0]


def test_mismatches_are_refused_before_any_image_is_decoded(signature, class_folders: Path) -> None:
    dataset = open_dataset(str(class_folders))
    for path in class_folders.glob("*/*.png"):
        path.unlink()
    with pytest.raises(BadShape, match=r"do not fit.*\[3, 4, 4\].*\[3, 8, 8\].*--resize"):
        make_inputs(signature((None, 3, 8, 8)), dataset)
    with pytest.raises(BadShape, match=r"another type.*float32.*int8"):
        make_inputs(signature((None, 3, 4, 4), "int8", metadata={METADATA_KEY: "{}"}), dataset)
    with pytest.raises(DataError, match=r"3 classes.*wanted 10"):
        make_inputs(signature((None, 3, 4, 4), classes=10), dataset)
    with pytest.raises(BadShape, match="type of input"):
        make_inputs(signature((None, 3, 4, 4), "int32"), dataset)
    with pytest.raises(BadShape, match="no axis"):
        make_inputs(signature((None, 4, 4, 4)), dataset)
    with pytest.raises(UsageError, match="--crop"):
        make_inputs(signature(), dataset, overrides={"crop": (5, 4)})


def test_numbered_classes_need_outputs_enough(signature) -> None:
    dataset = images_of(PIXELS, ())
    make_inputs(signature((None, 3, 4, 5), classes=10), dataset)
    with pytest.raises(DataError, match=r"3 classes.*wanted 2"):
        make_inputs(signature((None, 3, 4, 5), classes=2), dataset)


def test_images_of_several_sizes_need_a_resize(signature, class_folders: Path) -> None:
    Image.new("RGB", (7, 6)).save(class_folders / "dog" / "wide.png")
    dataset = open_dataset(str(class_folders))
    with pytest.raises(DataError, match=r"0\.png 4x4 and wide\.png 6x7.*--resize"):
        make_inputs(signature(), dataset)
    inputs = make_inputs(signature(), dataset, overrides={"resize": (4, 4)})
    assert inputs.arrays()[0].shape == (10, 3, 4, 4)
    assert len(limited(dataset, 5).content_hash()) == 64


def test_the_metadata_name_a_data_set_while_it_is_there(signature, class_folders: Path) -> None:
    def named(**record: str) -> str | None:
        return named_source(signature(metadata={METADATA_KEY: json.dumps(record)}))

    assert named(dataset="digits") == "digits"
    assert named(dataset="pets", source=str(class_folders)) == str(class_folders)
    assert named(dataset="pets", source=str(class_folders / "gone")) is None
    assert named_source(signature()) is None


def test_two_inputs_are_refused(signature) -> None:
    graph = signature()
    with pytest.raises(BadShape, match="one input only"):
        make_inputs(graph.with_(inputs=graph.inputs * 2), images_of(PIXELS))


def test_the_public_resnet8_takes_raw_pixels(shared: Path) -> None:
    """What is inferred for it gives its accuracy; other scalings give chance."""
    import onnxruntime as ort

    import npusim

    path = shared / "models" / "mlperf_tiny" / "resnet.onnx"
    dataset = limited(open_dataset(str(shared / "data" / "cifar10"), "test"), 200)
    inputs = make_inputs(npusim.load(path), dataset)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options)
    x, y = inputs.arrays()
    right = [session.run(None, {"input_1": i[None]})[0].argmax() for i in x] == y
    assert inputs.preprocess.layout == "NHWC"
    assert right.mean() > 0.68
