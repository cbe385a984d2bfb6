"""The data options: what the verb receives, and the inputs made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from npusim.cli import main
from npusim.cli.data_options import FILTERS, DataRequest, data_options, open_inputs
from npusim.errors import DataError, UsageError
from npusim.ir import Graph, TensorType, Value


def parsed(*arguments: str) -> Any:
    """What a verb with the data options receives for these arguments."""

    @click.command()
    @data_options()
    @click.option("--other", default=1)
    def verb(request: DataRequest, other: int) -> DataRequest:
        assert other == 1
        return request

    result = CliRunner().invoke(verb, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value


def digits_like(metadata: dict[str, str] | None = None) -> Graph:
    x = Value("x", TensorType("float32", (None, 1, 8, 8)))
    y = Value("y", TensorType("float32", (None, 10)))
    return Graph("net", (x,), (y,), (), {"x": x, "y": y}, {}, metadata or {}, path="net.onnx")


def test_options_become_one_request() -> None:
    assert parsed() == DataRequest()
    request = parsed(
        *("--data", "digits", "--split", "test", "--limit", "5", "--skip-corrupt"),
        *("--layout", "NHWC", "--scale", "0.5", "--mean", "1,2,3", "--std", "2"),
        *("--resize", "32x24", "--crop", "16", "--channel-order", "BGR"),
        *("--shift", "noise:0.1", "--shift-seed", "4"),
    )
    assert request == DataRequest(
        data="digits",
        split="test",
        limit=5,
        overrides={
            "layout": "NHWC",
            "scale": 0.5,
            "mean": (1.0, 2.0, 3.0),
            "std": (2.0,),
            "resize": (32, 24),
            "crop": (16, 16),
            "channel_order": "BGR",
        },
        shift="noise:0.1",
        shift_seed=4,
        skip_corrupt=True,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resize", "0"),
        ("--resize", "1,2,3"),
        ("--mean", "a"),
        ("--mean", "nan"),
        ("--std", "1,inf"),
        ("--resize-filter", "magic"),
        ("--limit", "0"),
        ("--layout", "X"),
    ],
)
def test_bad_values_are_usage_errors(arguments: tuple[str, str]) -> None:
    with pytest.raises(click.UsageError):
        parsed(*arguments)


def test_the_filters_are_some_of_the_pre_processing() -> None:
    from npusim.models.preprocess import FILTERS as KNOWN

    assert set(FILTERS) <= set(KNOWN)


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("mean", (1.0, 2.0), "--mean"),
        ("std", (0.0,), "--std"),
        ("std", (-1.0,), "--std"),
        ("scale", float("nan"), "--scale"),
        ("crop", (9, 9), "--crop"),
        ("resize_filter", "magic", "--resize-filter"),
    ],
)
def test_a_value_that_makes_no_sense_names_its_option(
    field: str, value: object, option: str
) -> None:
    request = DataRequest(data="digits", overrides={field: value})
    with pytest.raises(UsageError, match=option):
        open_inputs(request, digits_like())


def test_notes_are_silent_with_q(
    model_path: Path, data_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["evaluate", str(model_path), "--data", str(data_path), "--channel-order", "GRAY"]
    assert main(given) == 0
    assert "note: assumed" in capsys.readouterr().err
    assert main([*given, "-q"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("top-1 ")


def test_a_draw_of_no_corruption_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--shift-seed.*wanted --shift"):
        open_inputs(DataRequest(data="digits", shift_seed=3), digits_like())


def test_inputs_of_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    request = DataRequest(data="digits", limit=30, shift="rotation:90")
    inputs = open_inputs(request, digits_like(), prefer="train", seed=3)
    assert (len(inputs), inputs.dataset.split) == (30, "train")
    assert np.bincount(inputs.labels).tolist() == [3] * 10
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "note: assumed NCHW GRAY" in captured.err
    other = open_inputs(request, digits_like(), data="digits", split="test", shift_seed=9)
    assert (other.dataset.split, other.shift_seed) == ("test", 9)


def test_the_metadata_stand_for_a_missing_data_set() -> None:
    named = digits_like({"npusim.preprocess": '{"dataset": "digits", "channel_order": "GRAY"}'})
    assert open_inputs(DataRequest(), named).dataset.name == "digits"
    with pytest.raises(DataError, match=r"net\.onnx.*--data") as caught:
        open_inputs(DataRequest(), digits_like())
    assert caught.value.exit_code == 3


def test_a_bad_shift_is_told_before_the_data_are_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown shift"):
        open_inputs(DataRequest(data=str(tmp_path), shift="blur:1"), digits_like())


def test_skipped_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    for label in range(10):
        (tmp_path / str(label)).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / str(label) / "a.png")
    (tmp_path / "7" / "bad.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.png"):
        open_inputs(DataRequest(data=str(tmp_path)), digits_like())
    inputs = open_inputs(DataRequest(data=str(tmp_path), skip_corrupt=True), digits_like())
    assert len(inputs) == 10
    assert f"skipped: {tmp_path}/7/bad.png" in capsys.readouterr().err
