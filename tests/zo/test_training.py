"""The training loop: what its bits may and may not depend on, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from digits_task import MODEL, ignore, request

import npusim
from npusim.errors import BadQuantization, CheckpointError, NumericsError, UsageError
from npusim.zo.checkpoint import load_checkpoint, save_checkpoint
from npusim.zo.loop import Limits, Progress
from npusim.zo.rng import Purpose
from npusim.zo.run import TrainResult, replay, train
from npusim.zo.tensors import Selection, select_trained

Train = Callable[..., TrainResult]


def log_of(result: TrainResult) -> bytes:
    return result.files["log"].read_bytes()


def records(result: TrainResult) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_of(result).splitlines()]


def test_another_seed_gives_other_weights(train_digits: Train) -> None:
    assert train_digits("a", seed=1).crc != train_digits("b", seed=2).crc


def test_a_resumed_run_equals_an_uninterrupted_one(train_digits: Train) -> None:
    options = {"q": "qscheduler", "window": 20, "patience": 1, "checkpoint_every": 2}
    whole = train_digits("whole", steps=9, **options)
    qs = {r["q"] for r in records(whole) if r["type"] == "step"}
    assert len(qs) > 1, "the scheduler's state must matter"
    train_digits("parts", steps=3, **options)
    train_digits("parts", steps=5, resume=True)
    parts = train_digits("parts", steps=9, resume=True)
    assert parts.crc == whole.crc
    assert log_of(parts) == log_of(whole)
    assert parts.files["trained"].read_bytes() == whole.files["trained"].read_bytes()
    assert parts.before == whole.before


def test_a_log_that_ran_ahead_of_its_checkpoint_is_cut_back(
    train_digits: Train, tmp_path: Path
) -> None:
    whole = train_digits("whole", steps=8)
    train_digits("parts", steps=4)
    log = tmp_path / "parts" / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"type":"step","step":4,"torn')
    assert log_of(train_digits("parts", steps=8, resume=True)) == log_of(whole)


def test_a_log_shorter_than_its_checkpoint_is_refused(train_digits: Train, tmp_path: Path) -> None:
    train_digits("parts", steps=4)
    log = tmp_path / "parts" / "log.jsonl"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="shorter"):
        train_digits("parts", steps=8, resume=True)


def test_zero_steps_change_no_byte(train_digits: Train) -> None:
    result = train_digits(steps=0)
    assert result.crc == npusim.compile(npusim.load(MODEL)).weights.crc()
    before, after = onnx.load(MODEL), onnx.load(result.files["trained"])
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert old.SerializeToString() == new.SerializeToString()
    assert result.before == result.after


def test_the_trained_file_holds_the_trained_codes(train_digits: Train) -> None:
    result = train_digits(steps=6)
    again = npusim.compile(npusim.load(result.files["trained"]))
    assert again.weights.crc() == result.crc
    assert result.crc != npusim.compile(npusim.load(MODEL)).weights.crc()


def test_a_replay_notices_a_changed_coefficient(train_digits: Train) -> None:
    result = train_digits(steps=7)
    lines = log_of(result).splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if b'"step":3,' in line)
    record = json.loads(lines[place])
    record["d"][0] += 10**7
    lines[place] = json.dumps(record).encode() + b"\n"
    result.files["log"].write_bytes(b"".join(lines))
    assert replay(MODEL, result.files["log"]).mismatch == 6


def test_replay_refuses_another_model(train_digits: Train) -> None:
    result = train_digits(steps=3, lr=5.0)
    with pytest.raises(CheckpointError, match="other weights"):
        replay(result.files["trained"], result.files["log"])


def test_damaged_logs_are_refused(train_digits: Train) -> None:
    result = train_digits(steps=3)
    good = log_of(result)
    for bad, message in (
        (b"", "empty"),
        (good.split(b"\n", 1)[1], "not a training log"),
        (good.replace(b'"d":[', b'"d":', 1), "damaged"),
        (good.replace(b'"schema_version":3', b'"schema_version":99'), "format"),
    ):
        result.files["log"].write_bytes(bad)
        with pytest.raises(CheckpointError, match=message):
            replay(MODEL, result.files["log"])


def test_the_log_says_what_each_step_did(train_digits: Train) -> None:
    result = train_digits(q="fixed:2", steps=4, eval_every=20, window=40)
    header, *rest = records(result)
    assert header["model_crc"] == npusim.compile(npusim.load(MODEL)).weights.crc()
    steps = [r for r in rest if r["type"] == "step"]
    assert [r["forwards"] for r in steps] == [20, 40, 60, 80]
    for record in steps:
        pairs = zip(record["loss_plus"], record["loss_minus"], strict=True)
        assert record["d"] == [plus - minus for plus, minus in pairs]
        assert len(record["d"]) == 2
        assert any(record["d"]), "the perturbed weights must be the ones that run"
        assert len(record["changed"]) == len(record["max_delta"]) == len(header["tensors"])
    assert [("window_loss" in r) for r in steps] == [False, True, False, True]
    assert [("crc" in r) for r in steps] == [False, False, True, False]
    assert sum(r["type"] == "evaluation" for r in rest) == 1 + 4 + 1
    assert rest[-1] == {"type": "stop", "reason": "finished", "step": 4, "crc": result.crc}


def test_forwards_are_a_limit_that_no_step_passes(train_digits: Train, tmp_path: Path) -> None:
    asked = replace(request(tmp_path / "run", q="fixed:2"), limits=Limits(forwards=59))
    result = train(asked, ignore)
    assert (result.step, result.forwards) == (2, 40)


def test_only_chosen_layers_are_trained(train_digits: Train) -> None:
    result = train_digits(train_layers=("fc*",), lr=5.0)
    before = npusim.compile(npusim.load(MODEL)).weights
    after = npusim.compile(npusim.load(result.files["trained"])).weights
    changed = {
        t.name
        for t in before.tensors
        if not np.array_equal(before.codes(t.name), after.codes(t.name))
    }
    assert len(changed) == 1
    assert next(iter(changed)).startswith("fc.weight")
    header = records(result)[0]
    assert [t["id"] for t in header["tensors"]] == [4]  # counted among all tensors


def test_a_layer_that_is_not_there_is_named(train_digits: Train) -> None:
    with pytest.raises(UsageError, match="conv9"):
        train_digits(train_layers=("conv9*",))


def test_a_saturation_range_follows_the_imported_codes() -> None:
    program = npusim.compile(npusim.load(MODEL))
    store, graph = program.weights, program.graph
    name = next(t.name for t in store.tensors if t.kind == "weight")
    codes = np.array(store.codes(name))
    codes[0, 0] = -128
    (first, *others) = select_trained(
        graph, store.replaced({name: codes}), Selection(), Purpose.SIGNS
    )
    assert first.sat == (-128, 127)
    assert {t.sat for t in others} == {(-127, 127)}


def test_weights_with_a_zero_point_are_refused_by_name() -> None:
    graph = npusim.load(MODEL)
    store = npusim.compile(graph).weights
    name = next(t.name for t in store.tensors if t.kind == "weight")
    value = graph.value(name)
    assert value.qparams is not None
    points = (3,) * len(value.qparams.zero_point)
    shifted = replace(value, qparams=replace(value.qparams, zero_point=points))
    with pytest.raises(BadQuantization, match=name):
        select_trained(
            graph.with_(values={**graph.values, name: shifted}), store, Selection(), Purpose.SIGNS
        )


def test_a_run_that_is_there_is_not_overwritten_by_accident(train_digits: Train) -> None:
    first = train_digits(steps=2)
    with pytest.raises(UsageError, match="--resume"):
        train_digits(steps=2)
    assert train_digits(steps=2, overwrite=True).crc == first.crc


def test_a_resumed_run_keeps_its_options(train_digits: Train) -> None:
    train_digits(steps=2)
    for changes in ({"lr": 0.1}, {"shift": "noise:0.1"}, {"profile": "tflite"}):
        with pytest.raises(UsageError, match="keeps the options"):
            train_digits(steps=4, resume=True, **changes)
    assert train_digits(steps=4, resume=True, lr=0.5, shift="rotation:35").step == 4


def test_resume_without_a_checkpoint_says_so(train_digits: Train) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train_digits(resume=True)


def test_a_damaged_checkpoint_is_refused(train_digits: Train) -> None:
    path = train_digits(steps=2).files["checkpoint"]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
    path.write_bytes(content)
    checkpoint = load_checkpoint(path)
    checkpoint.state.weights[0][0, 0] += 512
    save_checkpoint(path, checkpoint)
    with pytest.raises(CheckpointError, match="CRC"):
        train_digits(steps=4, resume=True)


def test_layers_that_cannot_move_are_reported_once(train_digits: Train) -> None:
    seen: list[str] = []

    def watch(progress: Progress) -> None:
        seen.extend(progress.warnings)

    frozen = train_digits("frozen", lr=1e-7, window=20, steps=6)
    texts = [r["text"] for r in records(frozen) if r["type"] == "warning"]
    assert len(texts) == len(set(texts)) == 3
    assert all("frozen" in text for text in texts)
    train(request(frozen.files["log"].parent, steps=6, lr=1e-7, window=20, overwrite=True), watch)
    assert seen == texts
    lively = train_digits("lively", lr=0.5, window=20, steps=6)
    assert not [r for r in records(lively) if r["type"] == "warning"]


def test_a_float16_overflow_stops_with_a_resumable_checkpoint(
    train_digits: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.zo import updates

    train_digits("run", update="faithful", lr=20.0, steps=2)
    with monkeypatch.context() as patched:
        patched.setattr(updates, "HALF_MAX", 1e-9)
        with pytest.raises(NumericsError, match="float16"):
            train_digits("run", resume=True, steps=5)
    assert load_checkpoint(tmp_path / "run" / "checkpoint.h5").state.step == 2
    assert train_digits("run", resume=True, steps=5).step == 5
